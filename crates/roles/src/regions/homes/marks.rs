//! Moments whose changes another region must have before it becomes a home, or is given one.
//!
//! # Invariants
//!
//! 1. A region has passed a moment once it has all that was taken until then in the bucket. That is what no
//!    put with data made, up to a barrier, and what the puts made that were open behind it.
//! 2. What was found out is kept from one question to the next: puts that come meanwhile hold up nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt, stream};
use larder_objects::ObjectError;
use larder_protocol::region::Token;
use larder_protocol::{Call, RowSpan};
use larder_types::{BucketId, Epoch, OpSeq, PgId, RegionId, rows};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::super::Shared;
use super::super::source::SourceState;
use crate::limits::{
    REGION_HOME_MARKS_MAX, REGION_HOME_SETTLE_AGAIN_MS, REGION_HOME_SETTLE_MS,
    REGION_HOME_SETTLES_MAX,
};
use crate::planted::{self, Bug};
use crate::proxy::{JournalRequest, RegionAccess};
use crate::ticket::Settled;
use crate::wire::JournalShown;

/// The last ops of PGs at a moment, without those of which a region has had everything since.
pub(in super::super) type Heads = BTreeMap<PgId, OpSeq>;

/// PGs in which puts were open at a moment. All before the row has come to an end.
type Open = BTreeMap<PgId, Vec<u8>>;

/// A moment: that from which on a bucket's record has this epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    pub(super) bucket: BucketId,
    pub(super) epoch: Epoch,
    pub(super) region: RegionId,
    /// False before the region is given the home, or its claim accepted: clients wait for little then.
    pub(super) is_last: bool,
}

/// The state of a moment.
#[derive(Debug, Clone)]
pub(super) enum Waits {
    /// Puts that were open come to an end.
    Puts(Open),
    /// Then the region has what came of them.
    Region(Heads),
}

impl<R: RegionAccess> Shared<R> {
    async fn journals(
        &self,
        ask: &JournalRequest,
    ) -> Result<Vec<(PgId, JournalShown)>, ObjectError> {
        let shown = self.shown.journals(ask).await;
        shown.map_err(|error| ObjectError::Unavailable { reason: error.to_string() })
    }

    /// The last ops of all PGs now, behind all that was taken before under the map that is known here; `None` if a group
    /// does not answer.
    pub(in super::super) async fn heads(&self) -> Result<Option<Heads>, ObjectError> {
        let count = self.shown.pg_count();
        let pgs = (0..count).map(|pg| (PgId(pg), Token::default())).collect();
        let shown = self.journals(&JournalRequest { pgs, ids_max: 0, settled: true }).await?;
        let heads: Heads = shown.into_iter().map(|(pg, shown)| (pg, shown.applied)).collect();
        Ok((heads.len() == count as usize).then_some(heads))
    }

    /// All PGs, each with the first row of a bucket's versions.
    fn all_open(&self, bucket: BucketId) -> Open {
        if planted::has(Bug::LeavesPutsOpen) {
            return Open::new();
        }
        let first = rows::bucket(b'V', bucket);
        (0..self.shown.pg_count()).map(|pg| (PgId(pg), first.clone())).collect()
    }

    /// Waits until puts that are open in these PGs have come to an end, for [`REGION_HOME_SETTLE_MS`] at most; what remains is kept.
    async fn settle(&self, bucket: BucketId, open: &mut Open) {
        let (first, access) = (rows::bucket(b'V', bucket), self.shown.access());
        let to = &rows::prefix_end(&first);
        // Those in which something takes long come last.
        let mut groups: Vec<(PgId, Vec<u8>)> = open.clone().into_iter().collect();
        groups.sort_by_key(|(pg, from)| (*from != first, *pg));
        let known = &Mutex::new(std::mem::take(open));
        let settling = groups.into_iter().map(|(pg, mut from)| async move {
            loop {
                let span = RowSpan { from: from.clone(), to: to.clone() };
                match access.submit(pg, Call::Settle(span)).await {
                    Ok(Settled::Shows(None)) => return drop(known.lock().remove(&pg)),
                    // All before the row is settled. Puts that have come there meanwhile are no concern.
                    Ok(Settled::Shows(Some(row))) if row > from => {
                        known.lock().insert(pg, row.clone());
                        from = row;
                    }
                    _ => sleep(Duration::from_millis(REGION_HOME_SETTLE_AGAIN_MS)).await,
                }
            }
        });
        let all = stream::iter(settling).buffer_unordered(REGION_HOME_SETTLES_MAX);
        let all = all.for_each(|()| std::future::ready(()));
        let _late = timeout(Duration::from_millis(REGION_HOME_SETTLE_MS), all).await;
        *open = std::mem::take(&mut *known.lock());
    }
}

impl<R: RegionAccess> SourceState<R> {
    /// Returns true if a region has all that was here when this was asked first for the mark.
    pub(super) async fn has_passed(&self, mark: Mark) -> Result<bool, ObjectError> {
        if planted::has(Bug::MovesHomeEarly) {
            return Ok(true);
        }
        let shared = self.shared();
        let known = shared.homes.marks.lock().get(&mark).map(|(waits, _)| waits.clone());
        let is_new = known.is_none();
        let mut waits = match known {
            Some(waits) => waits,
            None if shared.heads().await?.is_none() => return Ok(false),
            None => Waits::Puts(shared.all_open(mark.bucket)),
        };
        let found = self.go_on(mark, is_new, &mut waits).await;
        let is_passed = *found.as_ref().unwrap_or(&false);
        let mut all = shared.homes.marks.lock();
        // A region that asks again has to wait for little.
        if is_passed {
            all.remove(&mark);
        } else if all.contains_key(&mark) || all.len() < REGION_HOME_MARKS_MAX {
            all.insert(mark, (waits, Instant::now()));
        }
        found
    }

    /// Waits for what a moment waits for; true if nothing is left.
    async fn go_on(
        &self,
        mark: Mark,
        is_new: bool,
        waits: &mut Waits,
    ) -> Result<bool, ObjectError> {
        let shared = self.shared();
        if let Waits::Puts(open) = waits {
            shared.settle(mark.bucket, open).await;
            if !open.is_empty() {
                let (bucket, region, groups) = (mark.bucket, mark.region, open.len());
                if is_new {
                    tracing::info!(%bucket, %region, groups, "a home waits for open puts of these groups");
                }
                return Ok(false);
            }
            let Some(heads) = shared.heads().await? else { return Ok(false) };
            *waits = Waits::Region(heads);
        }
        let Waits::Region(heads) = waits else { unreachable!("no put is left open") };
        self.drop_passed(mark.region, heads).await?;
        Ok(heads.is_empty())
    }

    /// Drops PGs of which a region has everything up to these ops.
    async fn drop_passed(&self, region: RegionId, heads: &mut Heads) -> Result<(), ObjectError> {
        let positions = self.positions(&[region], heads.keys().copied());
        let tokens: BTreeMap<PgId, Token> = positions
            .into_iter()
            .filter_map(|(pg, of)| Some((pg, Token { through: of.first()?.1 })))
            .collect();
        heads.retain(|pg, head| tokens.get(pg).is_none_or(|token| token.through < *head));
        // A token is that of the last change: of a group at rest it stays below the last op.
        let behind = heads.keys().filter_map(|pg| Some((*pg, *tokens.get(pg)?))).collect();
        let ask = JournalRequest { pgs: behind, ids_max: 0, settled: false };
        for (pg, shown) in self.shared().journals(&ask).await? {
            let has_all = shown.batch.is_ok_and(|batch| batch.left.0 == 0);
            if has_all && heads.get(&pg).is_some_and(|head| shown.applied >= *head) {
                heads.remove(&pg);
            }
        }
        Ok(())
    }
}
