//! Changes that are answered once other regions have them, and where a version is.
//!
//! # Invariants
//!
//! 1. A change is made, and durable here, before it waits. So its client is told that it was made, whatever comes of the
//!    wait.
//! 2. Changes that wait are bounded in number and in time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_objects::{ObjectError, Opened, Replication, ReplicationStatus};
use larder_protocol::region::key_rows::tombstone_row;
use larder_types::codec::decode;
use larder_types::{
    Body, BucketId, BucketName, BucketRecord, ObjectEntry, ObjectKey, OpId, OpSeq, PgId, RegionId,
    Sharing, Tombstone, rows,
};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::role_access::RoleAccess;
use super::{Proxy, unavailable, undecodable};
use crate::limits::{
    POSITIONS_ANSWER_MS, POSITIONS_BEHIND_MS, POSITIONS_PASSED_MS, REGION_WAIT_MS,
    REGION_WAITS_MAX, REMOTE_OPS_MAX, REPLICATION_MS,
};
use crate::planted::{self, Bug};
use crate::wire::Position;

/// Changes that waited for other regions, for metrics.
#[derive(Debug)]
pub struct RegionWaits {
    /// As many regions as were to have them had them in time.
    pub met: AtomicU64,
    /// Fewer had them in time.
    pub unmet: AtomicU64,
    places: Semaphore,
}

impl Default for RegionWaits {
    fn default() -> Self {
        let places = Semaphore::new(REGION_WAITS_MAX);
        Self { met: AtomicU64::new(0), unmet: AtomicU64::new(0), places }
    }
}

impl<R: RoleAccess> Proxy<R> {
    /// The outcome of a client's change of a key, once as many regions have it as its bucket asks for. `op_of` is as in
    /// [`Proxy::await_regions`].
    pub(super) async fn changed<T>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        made: Result<T, ObjectError>,
        op_of: impl FnOnce(&T) -> Option<OpSeq>,
    ) -> Result<T, ObjectError> {
        let done = self.bucket_deleted_or_changed(bucket, made).await?;
        self.await_regions(bucket, key, op_of(&done)).await?;
        Ok(done)
    }

    /// Waits until as many regions have a key's change as its bucket asks for. The change is this op; `None`: the one that
    /// the key's rows show.
    pub(super) async fn await_regions(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        op: Option<OpSeq>,
    ) -> Result<(), ObjectError> {
        if self.access.region() == RegionId::OWN {
            return Ok(());
        }
        let wanted =
            |record: &BucketRecord| (!record.is_local()).then_some((record.id, record.regions));
        let Some((id, regions @ 2..)) = self.access.bucket(bucket, wanted).flatten() else {
            return Ok(());
        };
        let waited = self.await_others((id, key), op, regions - 1).await;
        let count = if waited.is_ok() { &self.region_waits.met } else { &self.region_waits.unmet };
        count.fetch_add(1, Ordering::Relaxed);
        waited
    }

    async fn await_others(
        &self,
        key: (BucketId, &ObjectKey),
        op: Option<OpSeq>,
        count: u8,
    ) -> Result<(), ObjectError> {
        let (wanted, wait) = (u16::from(count) + 1, Duration::from_millis(REGION_WAIT_MS));
        let waiting = async {
            let _place = self.region_waits.places.acquire().await;
            // A primary says in time how many had it.
            self.others_with(key, op, count, wait - Duration::from_millis(POSITIONS_ANSWER_MS / 2))
                .await
        };
        let late = |have: String| {
            made(&format!(
                "{have} of {wanted} regions had it within {} s. `larder region status` names those that lack changes",
                wait.as_secs()
            ))
        };
        match timeout(wait, waiting).await {
            Ok(Ok(have)) if have >= usize::from(count) => Ok(()),
            Ok(Ok(have)) => Err(late((have + 1).to_string())),
            Ok(Err(error)) => Err(made(&error.into_reason())),
            Err(_elapsed) => Err(late("an unknown number".to_owned())),
        }
    }

    /// Counts the other regions that have a change. Returns once `count` have it, or `wait` is over.
    async fn others_with(
        &self,
        (bucket, key): (BucketId, &ObjectKey),
        op: Option<OpSeq>,
        count: u8,
        wait: Duration,
    ) -> Result<usize, ObjectError> {
        let pg = self.access.pg_of(bucket, key);
        let op = match op {
            Some(op) => op,
            None => match self.op_sent(pg, bucket, key).await? {
                Some(op) => op,
                // Deleted since, and all regions have that.
                None => return Ok(count.into()),
            },
        };
        let known = self.access.positions(pg, op, count, wait).await?;
        Ok(known.iter().filter(|(_, through)| *through >= op).count())
    }

    /// The op whose row of the journal tells of a key as it is now.
    async fn op_sent(
        &self,
        pg: PgId,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> Result<Option<OpSeq>, ObjectError> {
        let row = rows::version(bucket, key, rows::UNVERSIONED);
        if let Some(value) = self.access.settled_row(pg, &row).await? {
            let entry = ObjectEntry::read(&value).map_err(undecodable)?;
            return Ok(Some(op_of(&entry, self.access.region())));
        }
        let row = self.access.row(pg, &tombstone_row(bucket, key)).await?;
        let tombstone = row.map(|value| decode::<Tombstone>("tombstone", &value)).transpose();
        Ok(tombstone.map_err(undecodable)?.map(|tombstone| tombstone.op.seq))
    }

    /// Where a version is; `None` in a store without other regions, of a bucket that this one alone has, or if that is not known soon.
    pub(super) async fn replication_of(
        &self,
        bucket: &BucketName,
        object: &Opened,
    ) -> Result<Option<Replication>, ObjectError> {
        let own = self.access.region();
        // While it is being shared, other regions have passed ops of which they were told nothing.
        let is_shared =
            || self.access.bucket(bucket, |it| it.sharing == Sharing::All) == Some(true);
        if own == RegionId::OWN || object.remote.is_some() || !is_shared() {
            return Ok(None);
        }
        let found =
            timeout(Duration::from_millis(REPLICATION_MS), self.known_versions(object, own)).await;
        found.unwrap_or(Ok(None))
    }

    async fn known_versions(
        &self,
        object: &Opened,
        own: RegionId,
    ) -> Result<Option<Replication>, ObjectError> {
        let from = object.metax.stamp().qualified_by(own).region;
        if from != own {
            let regions = vec![from, own];
            return Ok(Some(Replication { status: ReplicationStatus::Replica, regions }));
        }
        let pg = self.access.pg_of(object.bucket, &object.key);
        // It is told by its op, or by a later one.
        let known = self.positions_now(pg, object.op.seq).await?;
        if known.is_empty() {
            return Ok(None);
        }
        let has_passed = |op| move |(_, through): &&Position| *through >= op;
        let op = match known.iter().any(|it| has_passed(object.op.seq)(&it)) {
            true => match self.sent_by(pg, object).await? {
                Some(op) => op,
                // Another has taken its place: nobody keeps where the former is.
                None => return Ok(None),
            },
            false => object.op.seq,
        };
        let have = known.iter().filter(has_passed(op)).map(|(region, _)| *region);
        let regions: Vec<RegionId> = [own].into_iter().chain(have).collect();
        let is_everywhere = regions.len() > known.len();
        let status =
            if is_everywhere { ReplicationStatus::Completed } else { ReplicationStatus::Pending };
        Ok(Some(Replication { status, regions }))
    }
}

impl<R: RoleAccess> Proxy<R> {
    /// The op by which the journal tells a version of this region first; `None` if it is the key's version no more.
    async fn sent_by(&self, pg: PgId, object: &Opened) -> Result<Option<OpSeq>, ObjectError> {
        // A put with data is told by its outcome, which may be far behind it: only the row says by which.
        if !matches!(object.body, Body::Chunk(_)) || planted::has(Bug::CountsPutAsSent) {
            return Ok(Some(object.op.seq));
        }
        if let Some(op) = self.positions_seen.sent_by(pg, object.op) {
            return Ok(Some(op));
        }
        let row = rows::version(object.bucket, &object.key, rows::UNVERSIONED);
        let Some(value) = self.access.row(pg, &row).await? else { return Ok(None) };
        let entry = ObjectEntry::read(&value).map_err(undecodable)?;
        if entry.row.op != object.op {
            return Ok(None);
        }
        let op = op_of(&entry, self.access.region());
        self.positions_seen.note_sent(pg, object.op, op);
        Ok(Some(op))
    }

    /// Positions of the other regions in a group's journal. They never go back: if all have passed the op they may be old ones.
    async fn positions_now(&self, pg: PgId, op: OpSeq) -> Result<Vec<Position>, ObjectError> {
        if let Some(seen) = self.positions_seen.of(pg, op) {
            return Ok(seen);
        }
        let known = self.access.positions(pg, op, 0, Duration::ZERO).await?;
        self.positions_seen.note(pg, known.clone());
        Ok(known)
    }
}

/// Answers of primaries about other regions, kept so that not every read asks: positions in journals, one list for each group, and ops
/// that told versions, at most [`REMOTE_OPS_MAX`].
#[derive(Debug, Default)]
pub(super) struct PositionsSeen {
    by_pg: Mutex<BTreeMap<PgId, (Instant, Vec<Position>)>>,
    /// By the op of the put. They never change.
    sent: Mutex<BTreeMap<(PgId, OpId), OpSeq>>,
}

impl PositionsSeen {
    fn sent_by(&self, pg: PgId, put: OpId) -> Option<OpSeq> {
        self.sent.lock().get(&(pg, put)).copied()
    }

    fn note_sent(&self, pg: PgId, put: OpId, by: OpSeq) {
        let mut sent = self.sent.lock();
        if sent.len() >= REMOTE_OPS_MAX {
            // Those that are read again come back.
            sent.clear();
        }
        sent.insert((pg, put), by);
    }

    fn of(&self, pg: PgId, op: OpSeq) -> Option<Vec<Position>> {
        let seen = self.by_pg.lock();
        let (at, known) = seen.get(&pg)?;
        let have_all = !known.is_empty() && known.iter().all(|(_, through)| *through >= op);
        // A region may have joined since.
        let ms_max = if have_all { POSITIONS_PASSED_MS } else { POSITIONS_BEHIND_MS };
        (at.elapsed() < Duration::from_millis(ms_max)).then(|| known.clone())
    }

    fn note(&self, pg: PgId, known: Vec<Position>) {
        self.by_pg.lock().insert(pg, (Instant::now(), known));
    }
}

/// The error of a change that was made here, and that too few regions are known to have.
fn made(why: &str) -> ObjectError {
    unavailable(&format!("the change is made in this region, and goes on to the others: {why}"))
}

/// The op whose row of the journal told this version first. A version of another region counts by the op that stored it here,
/// which is above all earlier ones of the key.
fn op_of(entry: &ObjectEntry, own: RegionId) -> OpSeq {
    match entry.origin {
        Some(origin) if origin.region == own => origin.op.seq,
        _ => entry.row.op.seq,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn positions_are_asked_for_again_soon_until_all_have_passed() {
        let seen = PositionsSeen::default();
        let known = vec![(RegionId(2), OpSeq(300)), (RegionId(3), OpSeq(200))];
        assert_eq!(seen.of(PgId(1), OpSeq(1)), None);
        seen.note(PgId(1), known.clone());
        assert_eq!(seen.of(PgId(1), OpSeq(200)), Some(known.clone()));
        assert_eq!(seen.of(PgId(1), OpSeq(201)), Some(known.clone()), "just now");
        tokio::time::advance(Duration::from_millis(POSITIONS_BEHIND_MS)).await;
        assert_eq!(seen.of(PgId(1), OpSeq(201)), None, "the third may have it by now");
        assert_eq!(seen.of(PgId(1), OpSeq(200)), Some(known), "all have it");
        tokio::time::advance(Duration::from_millis(POSITIONS_PASSED_MS)).await;
        assert_eq!(seen.of(PgId(1), OpSeq(200)), None, "another may have joined");
        seen.note(PgId(1), Vec::new());
        assert_eq!(seen.of(PgId(1), OpSeq(1)), Some(Vec::new()), "just now");
        tokio::time::advance(Duration::from_millis(POSITIONS_BEHIND_MS)).await;
        assert_eq!(seen.of(PgId(1), OpSeq(1)), None, "a gateway may have told by now");
    }
}
