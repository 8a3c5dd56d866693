//! The driver of comparisons of the members' indexes. It begins them for groups that this server leads, and
//! sums the rows of groups that it leads or follows (ADR 20; the rules are in `protocol/pg/digest.rs`).
//!
//! ```text
//!  look, every so often ─▶ Event::Compare ─▶ … Effect::Compared: logged, counted
//!  Effect::Digest, after the batch ─▶ snapshot of the index ─▶ piece, each when the budget lets it begin ─▶ Event::Digested
//! ```
//!
//! # Invariants
//!
//! 1. The snapshot is taken under the PG's lock, in the step that applied the digest: it shows no later op of the PG.
//! 2. Summing takes no more than the budget of background work, and at most [`DIGESTS_MAX`] snapshots are kept at a time.
//! 3. A sum that its machine no longer wants is given up at the next piece. It does not keep the server from being dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use larder_kv::{Kv, KvReader};
use larder_protocol::background::Work;
use larder_protocol::comparisons::Comparisons;
use larder_protocol::digest::{Compared, Summed, Summer};
use larder_protocol::index::Visit;
use larder_protocol::manager::state::Topology;
use larder_protocol::{Event, IndexError};
use larder_types::{OpId, PgId, ServerId, View};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use super::background::Background;
use super::cluster::Cluster;
use super::index::index_error;
use super::{Meta, OtherRoles};
use crate::blocking;
use crate::limits::{
    DIFFERING_REPORTED_MAX, DIGEST_CHECK_INTERVAL, DIGEST_PIECE_BYTES, DIGESTS_MAX,
};
use crate::progress::DigestsStatus;

/// The state of a server's comparisons.
pub(super) struct Digests {
    /// `None` if this server begins none.
    comparisons: Mutex<Option<Comparisons>>,
    began: Instant,
    /// Bounds the sums that are under way.
    permits: Arc<Semaphore>,
}

impl Default for Digests {
    fn default() -> Self {
        Self {
            comparisons: Mutex::default(),
            began: Instant::now(),
            permits: Arc::new(Semaphore::new(DIGESTS_MAX)),
        }
    }
}

impl Digests {
    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn with<T>(&self, f: impl FnOnce(u64, &mut Comparisons) -> T) -> Option<T> {
        let now_ms = self.now_ms();
        self.comparisons.lock().as_mut().map(|it| f(now_ms, it))
    }
}

/// Begins comparisons until the server is gone.
pub(super) async fn run(meta: Weak<Meta>, period: Duration) {
    if let Some(meta) = meta.upgrade() {
        let boot = meta.cluster().map_or(0, |cluster| cluster.boot.0);
        let first = PgId((boot % meta.pgs.len() as u64) as u32);
        let comparisons = Comparisons::new(period.as_millis() as u64, first);
        *meta.digests.comparisons.lock() = Some(comparisons);
    }
    let look = DIGEST_CHECK_INTERVAL.min(period / 64);
    loop {
        sleep_until(Instant::now() + look).await;
        let Some(meta) = meta.upgrade().filter(|meta| !meta.is_stopping()) else { return };
        if let OtherRoles::Apart(cluster) = &meta.other_roles {
            meta.end_finished_comparisons();
            meta.begin_comparison(cluster);
        }
    }
}

impl Meta {
    /// Ends the comparison under way if its view is over: the machine reports no outcome then.
    fn end_finished_comparisons(&self) {
        let under_way = self.digests.with(|_, it| it.under_way()).flatten();
        if let Some((pg, at)) = under_way
            && self.lock(pg).pg.comparing() != Some(at)
        {
            self.digests.with(|now_ms, it| it.ended(now_ms, pg, at, Compared::Void));
        }
    }

    /// Begins the comparison that is due, of a group that is clean.
    fn begin_comparison(&self, cluster: &Cluster) {
        let led: BTreeSet<PgId> = self.led();
        let due = self.digests.with(|now_ms, it| {
            it.leads(now_ms, &led);
            it.due(now_ms)
        });
        let map = cluster.managers.map();
        for pg in due.unwrap_or_default() {
            let mut member = self.lock(pg);
            if !member.pg.may_compare() || !is_clean(&map, pg, member.pg.view()) {
                continue;
            }
            self.step(&mut member, Event::Compare);
            // Noted under the group's lock, so that the comparison cannot end before it was noted.
            if let Some(at) = member.pg.comparing() {
                self.digests.with(|now_ms, it| it.begun(now_ms, pg, at));
                return;
            }
        }
    }

    /// Notes and logs the outcome of a comparison.
    pub(super) fn compared(
        &self,
        pg: PgId,
        at: OpId,
        outcome: Compared,
        sums: &BTreeMap<ServerId, Summed>,
    ) {
        self.digests.with(|now_ms, it| it.ended(now_ms, pg, at, outcome));
        let op = at.seq;
        let reported = || -> Vec<String> {
            sums.iter().map(|(server, sum)| format!("{server}: {sum}")).collect()
        };
        match outcome {
            Compared::Equal => tracing::debug!(%pg, %op, "the members' indexes are equal"),
            Compared::Void => {
                tracing::debug!(%pg, %op, sums = ?reported(), "a comparison of indexes was abandoned")
            }
            Compared::Odd(server) => tracing::error!(
                %pg, %op, %server, sums = ?reported(),
                "a member's index differs from the majority: rebuilding it"
            ),
            Compared::Unclear => tracing::error!(
                %pg, %op, sums = ?reported(),
                "the members' indexes differ without a majority: nothing is changed"
            ),
        }
    }

    /// Begins to sum the index in the background, as of now: the group has applied a digest, and no op after it.
    pub(super) fn begin_sum(&self, cluster: &Cluster, pg: PgId, at: OpId) {
        let Some(meta) = cluster.meta.get().cloned() else { return };
        let permit = self.digests.permits.clone().try_acquire_owned().ok();
        let kept = match permit.map(|permit| Ok((permit, self.index.kv.snapshot()?))).transpose() {
            Ok(kept) => kept,
            Err::<_, larder_kv::KvError>(error) => {
                return self.fail(format!("pg {pg}: no snapshot can be taken: {error}"));
            }
        };
        let pg_count = self.pgs.len() as u32;
        let background = self.background.clone();
        cluster.runtime.spawn(async move {
            let sum = match kept {
                Some((permit, reader)) => {
                    let summing = Summing { meta: meta.clone(), background, pg, at };
                    summing.sum(permit, reader.into(), Summer::new(pg, pg_count)).await
                }
                None => Some(Summed::Nothing),
            };
            if let (Some(sum), Some(meta)) = (sum, meta.upgrade()) {
                meta.step(&mut meta.lock(pg), Event::Digested { at, sum });
            }
        });
    }

    /// The progress of comparisons; `None` if this server begins none.
    #[must_use]
    pub fn digests_now(&self) -> Option<DigestsStatus> {
        self.digests.with(|now_ms, it| {
            let (outcomes, (groups, equal)) = (it.outcomes(), it.groups());
            DigestsStatus {
                period_ms: it.period_ms(),
                groups: groups as u64,
                equal: equal as u64,
                oldest_ms: it.oldest_ms(now_ms),
                under_way: it.under_way().map(|(pg, _)| pg.0),
                begun: outcomes.begun,
                found_equal: outcomes.equal,
                found_odd: outcomes.odd,
                found_unclear: outcomes.unclear,
                void: outcomes.void,
                differing: it.differing().count() as u64,
                differing_groups: it
                    .differing()
                    .take(DIFFERING_REPORTED_MAX)
                    .map(|pg| pg.0)
                    .collect(),
            }
        })
    }
}

/// Returns true if a group has all its members in this view, and no learner.
fn is_clean(map: &Topology, pg: PgId, view: View) -> bool {
    let Some(record) = map.pg(pg) else { return false };
    let wanted = |member: &ServerId| record.target.contains(member);
    record.view == view
        && record.is_active()
        && record.learners.is_empty()
        && record.lacking.is_empty()
        && record.members.len() == usize::from(map.settings().members)
        && record.members.iter().all(wanted)
}

/// A sum under way.
struct Summing {
    meta: Weak<Meta>,
    background: Arc<Background>,
    pg: PgId,
    at: OpId,
}

impl Summing {
    /// Sums piece by piece; `None` if the sum is no longer wanted.
    async fn sum(
        self,
        _permit: OwnedSemaphorePermit,
        reader: Arc<dyn KvReader>,
        mut summer: Summer,
    ) -> Option<Summed> {
        loop {
            let piece = self.background.begin(Work::Digest, DIGEST_PIECE_BYTES as u64).await;
            if !self.is_wanted() {
                return None;
            }
            let reader = reader.clone();
            let gone_on = blocking::run(move || {
                let scan = |from: &[u8], visit: &mut Visit<'_>| {
                    reader.scan(from, None, visit).map_err(index_error)
                };
                let sum = summer.go_on(&scan, DIGEST_PIECE_BYTES);
                (summer, sum)
            });
            let (back, sum) = gone_on.await.ok()?;
            drop(piece);
            summer = back;
            match sum {
                Ok(None) => {}
                Ok(Some(sum)) => return Some(Summed::Sum(sum)),
                Err(error) => return Some(self.unreadable(&error)),
            }
        }
    }

    fn is_wanted(&self) -> bool {
        let meta = self.meta.upgrade().filter(|meta| !meta.is_stopping());
        meta.is_some_and(|meta| meta.lock(self.pg).pg.wants_sum(self.at))
    }

    fn unreadable(&self, error: &IndexError) -> Summed {
        tracing::error!(pg = %self.pg, %error, "the index cannot be read for a comparison");
        Summed::Unreadable
    }
}
