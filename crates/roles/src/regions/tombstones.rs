//! Frees tombstones that no region needs any more (ADR 42, 4).
//!
//! # Invariants
//!
//! 1. A tombstone of a bucket that is there goes only when every other region has reported this store's record of it as durable. This region must
//!    have passed the purge, unless the tombstone `is_former`. Nothing that may have an older version may be on its way
//!    here. Regions asked from then on have the tombstone, or had it.
//! 2. Tombstones of a deleted bucket go at once: no region had an object in it when all had closed it (ADR 47).
//! 3. It goes only if all had passed it 10 s ago: a list of all regions that has asked one of them earlier is over by then (`lists.rs`).
//! 4. The primary of the key checks again: a tombstone that was replaced by then stays.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use larder_objects::ObjectError;
use larder_protocol::limits::REGION_FREED_MAX;
use larder_protocol::region::{Name, Slot, key_rows};
use larder_types::{FreedTombstone, OpSeq, PgId, Tombstone};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::Shared;
use super::deletions;
use super::inbox::{Candidate, Inbox};
use super::runs::Unreadable;
use super::source::SourceState;
use crate::limits::{
    REGION_FREE_MS, REGION_FREE_PASSES_MAX, REGION_FREE_PAUSE_MS, REGION_FREES_MAX,
};
use crate::planted::{self, Bug};
use crate::proxy::RegionAccess;

/// Positions in this store's journals that all other regions have passed, as of some time ago: of longer than a list takes.
#[derive(Debug)]
struct PassedBefore {
    held: BTreeMap<PgId, OpSeq>,
    latest: BTreeMap<PgId, OpSeq>,
    /// The time at which the latest were read.
    latest_at: Instant,
    /// True if no walk has looked at what is held now.
    is_updated: bool,
}

impl PassedBefore {
    fn new(now: Instant) -> Self {
        Self { held: BTreeMap::new(), latest: BTreeMap::new(), latest_at: now, is_updated: false }
    }

    /// Reads the positions anew, if the latest are old enough to count.
    fn turn(&mut self, now: Instant, read: impl FnOnce() -> BTreeMap<PgId, OpSeq>) {
        if now.duration_since(self.latest_at) >= Duration::from_millis(REGION_FREE_MS) {
            let held = std::mem::replace(&mut self.latest, read());
            self.is_updated |= held != self.held;
            (self.held, self.latest_at) = (held, now);
        }
    }

    /// Returns true if more may go than when a walk took this last.
    fn take_updates(&mut self) -> bool {
        std::mem::take(&mut self.is_updated)
    }

    /// The position of a journal that counts, where all have passed that one now: regions may be others than before.
    fn of(&self, pg: PgId, now: OpSeq) -> OpSeq {
        self.held.get(&pg).copied().unwrap_or_default().min(now)
    }
}

/// Frees tombstones that may go, a few at a time. Does not end.
pub(super) async fn free<R: RegionAccess>(
    shared: Arc<Shared<R>>,
    state: Arc<SourceState<R>>,
    inbox: Inbox,
) {
    let (mut from, mut passes) = (None, 0);
    let mut before = PassedBefore::new(Instant::now());
    loop {
        let pause_ms = if from.is_none() { REGION_FREE_MS } else { REGION_FREE_PAUSE_MS };
        sleep(Duration::from_millis(pause_ms)).await;
        before.turn(Instant::now(), || passed_by_all(&shared, &state));
        if from.is_none() {
            // Where no other region has come further, little more may go.
            passes += 1;
            if !before.take_updates() && passes < REGION_FREE_PASSES_MAX {
                continue;
            }
            passes = 0;
            if let Err(error) = deletions::end_left_uploads(&shared).await {
                tracing::debug!(%error, "open uploads of deleted buckets will be checked later");
            }
        }
        from = match sweep(&shared, &state, (&inbox, &before), from).await {
            Ok(next) => next,
            Err(Unreadable::Store(error)) => {
                tracing::debug!(%error, "tombstones will be checked later");
                None
            }
            Err(error) => {
                tracing::error!(%error, "tombstones cannot be read");
                None
            }
        };
    }
}

/// The positions that all other regions have passed now.
fn passed_by_all<R: RegionAccess>(
    shared: &Shared<R>,
    state: &SourceState<R>,
) -> BTreeMap<PgId, OpSeq> {
    let members = shared.region_endpoint.members().borrow().clone();
    let of = |pg| {
        let others = members.live().map(|peer| peer.number);
        Some((pg, state.passed_by_all(others, pg)?))
    };
    (0..shared.shown.pg_count()).map(PgId).filter_map(of).collect()
}

/// Frees what may go among the next tombstones; returns where to go on, unless these were the last.
async fn sweep<R: RegionAccess>(
    shared: &Shared<R>,
    state: &SourceState<R>,
    (inbox, before): (&Inbox, &PassedBefore),
    from: Option<Vec<u8>>,
) -> Result<Option<Vec<u8>>, Unreadable> {
    let (tombstones, next) = shared.shown.tombstones(from).await?;
    let Some(others) = shared.others().await? else { return Ok(None) };
    let mut passed: BTreeMap<PgId, OpSeq> = BTreeMap::new();
    let (mut candidates, mut of_deleted) = (Vec::new(), Vec::new());
    for (bucket, key, tombstone) in tombstones {
        let pg = shared.shown.pg_of(bucket, &key);
        if shared.shown.is_deleted(bucket) {
            // No region has the bucket. One of the same name that is made later has another id, and other keys.
            of_deleted.push((pg, FreedTombstone { bucket, key, at: tombstone.at }));
            continue;
        }
        let by_all = *passed.entry(pg).or_insert_with(|| {
            let now = state.passed_by_all(others.iter().copied(), pg).unwrap_or_default();
            before.of(pg, now)
        });
        if by_all < tombstone.op.seq && !planted::has(Bug::FreesUnpassed) {
            continue;
        }
        let Tombstone { at, .. } = tombstone;
        let origin = key_rows::of_tombstone(shared.shown.own(), pg, &tombstone).origin;
        let is_former = origin.region != shared.shown.own() && !others.contains(&origin.region);
        let name = Name { bucket, key, slot: Slot::Null };
        candidates.push(Candidate { name, origin, is_former, pg, at });
    }
    free_all(shared, of_deleted).await?;
    if candidates.is_empty() {
        return Ok(next);
    }
    let (asks, removable) = oneshot::channel();
    inbox.may_free(candidates, asks);
    // The thread that steps the machine has ended: so does all else.
    let Ok(removable) = removable.await else { return Ok(next) };
    let removable = removable.into_iter().filter(|it| !shared.in_flight.has(&it.name));
    let freed = |Candidate { name: Name { bucket, key, .. }, pg, at, .. }| {
        (pg, FreedTombstone { bucket, key, at })
    };
    free_all(shared, removable.map(freed).collect()).await?;
    Ok(next)
}

async fn free_all<R: RegionAccess>(
    shared: &Shared<R>,
    removable: Vec<(PgId, FreedTombstone)>,
) -> Result<(), ObjectError> {
    let mut of_pg: BTreeMap<PgId, Vec<FreedTombstone>> = BTreeMap::new();
    for (pg, tombstone) in removable {
        of_pg.entry(pg).or_default().push(tombstone);
    }
    let some = |(pg, tombstones): (PgId, Vec<FreedTombstone>)| {
        let chunks = tombstones.chunks(REGION_FREED_MAX).map(move |some| (pg, some.to_vec()));
        chunks.collect::<Vec<_>>()
    };
    let freeing = of_pg.into_iter().flat_map(some).map(async |(pg, some)| {
        let count = some.len() as u64;
        shared.proxy.free_tombstones(pg, some).await.map(|()| count)
    });
    let mut freeing = futures::stream::iter(freeing).buffer_unordered(REGION_FREES_MAX);
    let mut ended = Ok(());
    while let Some(freed) = freeing.next().await {
        match freed {
            Ok(count) => shared.watch.counters().freed(count),
            Err(error) => ended = Err(error),
        }
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_passed_just_now_counts_once_no_list_knows_an_older_state() {
        let passed = |op| BTreeMap::from([(PgId(1), OpSeq(op))]);
        let (begun, turn) = (Instant::now(), Duration::from_millis(REGION_FREE_MS));
        let mut before = PassedBefore::new(begun);
        before.turn(begun + turn, || passed(5));
        assert!(!before.take_updates());
        assert_eq!(before.of(PgId(1), OpSeq(9)), OpSeq(0), "nothing was passed before");
        before.turn(begun + turn + turn / 2, || panic!("it is too early"));
        before.turn(begun + 2 * turn, || passed(7));
        assert!(before.take_updates() && !before.take_updates());
        assert_eq!(before.of(PgId(1), OpSeq(9)), OpSeq(5));
        assert_eq!(before.of(PgId(1), OpSeq(3)), OpSeq(3), "a region that joined since counts");
        before.turn(begun + 3 * turn, || passed(7));
        assert!(before.take_updates(), "a walk frees what the one before could not");
        before.turn(begun + 4 * turn, || passed(7));
        assert!(!before.take_updates());
        assert_eq!(before.of(PgId(1), OpSeq(7)), OpSeq(7));
        assert_eq!(before.of(PgId(2), OpSeq(7)), OpSeq(0));
    }
}
