//! The other roles in the proxy's own process: direct calls.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_kv::{KvError, KvReader};
use larder_link::Change;
use larder_objects::ObjectError;
use larder_protocol::region::listing::{ListedPage, PageRequest};
use larder_protocol::{Call, Refusal, RowSpan};
use larder_types::{
    BucketId, BucketName, BucketRecord, Chunk, CorsRules, Holders, HybridClock, LvId, ObjectKey,
    OpId, OpSeq, PgId, RegionId, VersionRow, rows,
};

use tokio::time::Instant;

use super::home_change::HomeChange;
use super::other_regions::RegionLookup;
use super::role_access::{BucketSnapshot, Data, Ended, FoundRow, Lost, RoleAccess, Scan, ScanStep};
use super::task::Task;
use super::{refused, unavailable, undecodable, unexpected};
use crate::blocking;
use crate::clock::{StoreClock, now_ms};
use crate::data::{DataServer, PutWrite, ReadFailure};
use crate::limits::{DISK_FULL_TRIES_MAX, LIST_WAIT_MS_MAX};
use crate::manager::{LocalManager, LocalManagerError};
use crate::meta::{Awaited, Meta, MetaKind};
use crate::requests::Requests;
use crate::ticket::{Settled, Ticket};
use crate::wire::{Position, RemotePart};

/// The roles of this process.
pub struct LocalRoles {
    meta: Arc<Meta>,
    data: Arc<DataServer>,
    manager: Arc<LocalManager>,
}

impl LocalRoles {
    pub(super) fn new(
        meta: Arc<Meta>,
        data: Arc<DataServer>,
        manager: Arc<LocalManager>,
        requests: &Arc<Requests>,
    ) -> Self {
        meta.attach_requests(requests.clone());
        Self { meta, data, manager }
    }

    pub(super) fn meta(&self) -> &Arc<Meta> {
        &self.meta
    }

    pub(super) fn manager(&self) -> &Arc<LocalManager> {
        &self.manager
    }

    fn replicas(&self, lv: LvId) -> Result<usize, ObjectError> {
        let map = self.manager.map();
        let record = map.map.lvs.get(lv.0 as usize);
        record
            .map(|record| record.replicas.len())
            .ok_or_else(|| unavailable("the map does not know the volume of a grant yet"))
    }

    fn find_row(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> Result<Option<VersionRow>, ObjectError> {
        let row = self.get(&rows::version(bucket, key, rows::UNVERSIONED))?;
        row.map(|row| VersionRow::read(&row)).transpose().map_err(undecodable)
    }

    fn get(&self, row: &[u8]) -> Result<Option<Bytes>, ObjectError> {
        self.meta.kv().get(row).map_err(|error| self.unreadable(&error))
    }

    /// The error of a read of the index. The store says once that its index is damaged (`meta/damage.rs`), and this says
    /// where.
    fn unreadable(&self, error: &KvError) -> ObjectError {
        if self.meta.is_read_only() {
            tracing::warn!(%error, "rows of the index cannot be read");
            return ObjectError::IndexDamaged;
        }
        tracing::error!(%error, "rows of the index cannot be read");
        unavailable("the index cannot be read: see the log")
    }

    /// Refuses a call that changes something while the index is damaged.
    fn admit_call(&self, call: &Call) -> Result<(), ObjectError> {
        let is_refused = call.request().is_some() && self.meta.is_read_only();
        if is_refused { Err(ObjectError::IndexDamaged) } else { Ok(()) }
    }

    /// The error that a refusal of a call that changes nothing means.
    fn not_shown(&self, refusal: Refusal) -> ObjectError {
        match refusal {
            Refusal::IndexDamaged if self.meta.is_read_only() => ObjectError::IndexDamaged,
            refusal => refused(refusal),
        }
    }

    /// Waits until the index shows everything of these rows that a PG, or any, had taken when this was called; or of those
    /// before the row that it returns.
    async fn settle(
        &self,
        pg: Option<PgId>,
        span: &RowSpan,
    ) -> Result<Option<Vec<u8>>, ObjectError> {
        let pgs = pg.map_or_else(|| self.meta.pg_ids().collect(), |pg| vec![pg]);
        let mut tickets = Vec::new();
        for pg in pgs {
            if !self.meta.shows_all(pg, span) {
                let ticket = Arc::new(Ticket::default());
                self.meta.call(pg, Call::Settle(span.clone()), &ticket);
                tickets.push(ticket);
            }
        }
        let mut first: Option<Vec<u8>> = None;
        for ticket in tickets {
            match ticket.settled().await {
                Settled::Shows(None) => {}
                Settled::Shows(Some(before)) => {
                    first = Some(first.map_or(before.clone(), |first| first.min(before)));
                }
                Settled::Refused(refusal) => return Err(self.not_shown(refusal)),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(first)
    }

    /// As [`LocalRoles::settle`], for a while.
    async fn settle_soon(
        &self,
        pg: Option<PgId>,
        span: &RowSpan,
        deadline: Instant,
    ) -> Result<Option<Vec<u8>>, ObjectError> {
        tokio::time::timeout_at(deadline, self.settle(pg, span))
            .await
            .unwrap_or_else(|_| Err(unavailable("puts under way were not settled in time")))
    }

    /// Has the manager change the map where it may wait for a disk.
    pub(super) async fn manage<T: Send + 'static>(
        &self,
        change: impl FnOnce(&LocalManager) -> Result<T, LocalManagerError> + Send + 'static,
    ) -> Result<T, ObjectError> {
        let manager = self.manager.clone();
        match blocking::run(move || change(&manager)).await {
            Ok(outcome) => outcome.map_err(managing_failed),
            Err(_panicked) => Err(unavailable("the manager stopped: see the log")),
        }
    }
}

/// Takes a put back whose caller goes away, or that is tried again. Any later put comes after its outcome
/// in the log, so that both are lost or neither.
struct PutGuard<'a> {
    meta: &'a Meta,
    pg: PgId,
    ticket: Arc<Ticket>,
    op: Option<OpId>,
    disk_full: bool,
    armed: bool,
}

impl Drop for PutGuard<'_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        if let Some(op) = self.ticket.orphan().or(self.op) {
            self.meta.notify(self.pg, Call::Withdraw { op, disk_full: self.disk_full });
        }
    }
}

impl RoleAccess for LocalRoles {
    fn clock(&self) -> &Arc<StoreClock> {
        self.meta.clock()
    }

    fn bucket<T>(&self, name: &BucketName, look: impl FnOnce(&BucketRecord) -> T) -> Option<T> {
        self.manager.map().bucket(name).map(look)
    }

    /// Here one map is everybody's.
    async fn bucket_update(&self, _: &BucketName, _: BucketSnapshot) {}

    fn buckets(&self) -> Vec<BucketRecord> {
        self.manager.map().map.buckets.values().cloned().collect()
    }

    async fn create_bucket(
        &self,
        name: &BucketName,
        location: Option<String>,
    ) -> Result<BucketRecord, ObjectError> {
        let name = name.clone();
        self.manage(move |manager| manager.create_bucket(&name, (location, None), now_ms())).await
    }

    async fn set_cors(
        &self,
        name: &BucketName,
        rules: Option<CorsRules>,
    ) -> Result<(), ObjectError> {
        let name = name.clone();
        self.manage(move |manager| manager.set_cors(&name, rules)).await
    }

    async fn begin_deletion(&self, name: &BucketName) -> Result<BucketRecord, ObjectError> {
        let name = name.clone();
        self.manage(move |manager| manager.begin_deletion(&name)).await
    }

    async fn end_deletion(&self, marked: BucketRecord, empty: bool) -> Result<(), ObjectError> {
        self.manage(move |manager| manager.end_deletion(&marked, empty)).await
    }

    /// A single node that is a region is its own gateway: this one does not speak with the others.
    async fn deleted_by_gateway(&self, marked: BucketRecord) -> Result<(), ObjectError> {
        self.end_deletion(marked, false).await?;
        Err(unavailable("a bucket is deleted in all regions at once, and this one reaches none"))
    }

    fn is_gateway(&self) -> bool {
        true
    }

    /// As with deletions: this one does not speak with other regions.
    async fn read_gateway_state(
        &self,
        _: &BucketName,
        _: &ObjectKey,
    ) -> Result<RegionLookup, ObjectError> {
        Ok(RegionLookup::Nowhere)
    }

    async fn part_at_gateway(&self, _: RemotePart) -> Result<Bytes, ObjectError> {
        Err(unavailable("the object is in another region, and this one reaches none"))
    }

    async fn change_at_gateway(
        &self,
        home: RegionId,
        _: Change,
    ) -> Result<HomeChange, ObjectError> {
        Err(unavailable(&format!(
            "region {home} is the home of this bucket and decides about such a change, and this one reaches none"
        )))
    }

    async fn list_at_gateway(
        &self,
        _: &BucketName,
        _: PageRequest,
    ) -> Result<ListedPage, ObjectError> {
        Err(unavailable("a list of all regions needs each of them, and this one reaches none"))
    }

    fn region(&self) -> RegionId {
        self.meta.region()
    }

    fn tidies(&self) -> bool {
        true
    }

    /// A single node hears of its removal from the driver of regions, not from managers.
    fn is_removed(&self) -> bool {
        false
    }

    fn copies(&self) -> u8 {
        1
    }

    fn pg_of(&self, bucket: BucketId, key: &ObjectKey) -> PgId {
        self.meta.pg_of(bucket, key)
    }

    fn admit(&self) -> Result<(), ObjectError> {
        if self.meta.is_read_only() {
            return Err(ObjectError::IndexDamaged);
        }
        if self.meta.log_is_busy() { Err(ObjectError::SlowDown) } else { Ok(()) }
    }

    /// Turns away what would add data to a full disk or a full log, too.
    fn admit_data(&self) -> Result<(), ObjectError> {
        if self.data.is_broken() {
            return Err(unavailable("the data disk failed: replace it"));
        }
        if self.data.is_full() || self.meta.log_is_full() {
            return Err(ObjectError::Full);
        }
        self.admit()
    }

    async fn submit(&self, pg: PgId, call: Call) -> Result<Settled, ObjectError> {
        self.admit_call(&call)?;
        let (ticket, changes) = (Arc::new(Ticket::default()), call.request().is_some());
        self.meta.call(pg, call, &ticket);
        match ticket.settled().await {
            Settled::Refused(refusal) if changes => Err(refused(refusal)),
            Settled::Refused(refusal) => Err(self.not_shown(refusal)),
            settled => Ok(settled),
        }
    }

    /// While the index is damaged nothing is dropped: a later start does it.
    fn notify(&self, pg: PgId, call: Call) {
        if !matches!(call, Call::DropStream { .. }) || !self.meta.is_read_only() {
            self.meta.notify(pg, call);
        }
    }

    async fn put(
        &self,
        pg: PgId,
        call: Call,
        data: Option<Data>,
        _: Instant,
    ) -> Result<Ended, ObjectError> {
        self.admit_call(&call)?;
        let ticket = Arc::new(Ticket::default());
        let mut guard = PutGuard {
            meta: &self.meta,
            pg,
            ticket: ticket.clone(),
            op: None,
            disk_full: false,
            armed: true,
        };
        self.meta.call(pg, call, &ticket);
        let mut replicas = 0;
        let mut clock = HybridClock::default();
        if let Some((data, len)) = data
            && let Some(granted) = ticket.granted().await
        {
            guard.op = Some(granted.grant.op);
            clock = granted.clock;
            replicas = self.replicas(granted.lv)?;
            ticket.writing(replicas);
            for replica in 0..replicas {
                let (extents, data) = (granted.extents.clone(), data.clone());
                let write = PutWrite { extents, data, len, replica };
                self.data.write(granted.lv, granted.grant, write, &ticket);
            }
        }
        match ticket.settled().await {
            Settled::Written(grant, holders) if holders.count() == replicas => {
                let (op, attempt) = (grant.op, grant.attempt);
                self.meta.notify(pg, Call::Commit { op, attempt, holders });
                guard.armed = false;
                Ok(Ended::Done(clock))
            }
            Settled::Written(..) if ticket.hit_full_disk() => {
                guard.disk_full = true;
                // The only replica: nothing was written.
                Ok(Ended::Lost(Lost { full: Holders::default().with(0) }))
            }
            // It is given up by the guard, and no bytes of it can be found.
            Settled::Written(..) if ticket.hit_busy_disk() => Err(ObjectError::SlowDown),
            Settled::Written(..) => Err(unavailable("the disk did not take the data")),
            Settled::Done(_, clock) => {
                guard.armed = false;
                Ok(Ended::Done(clock))
            }
            Settled::Refused(refusal) => {
                guard.armed = false;
                Err(refused(refusal))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Begins anew at once: there may be room in space that was written before.
    async fn again(&self, tries: u32, _: Lost, _: Instant) -> Result<(), ObjectError> {
        if tries < DISK_FULL_TRIES_MAX { Ok(()) } else { Err(ObjectError::Full) }
    }

    async fn find(
        &self,
        pg: PgId,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> Result<Option<VersionRow>, ObjectError> {
        if self.meta.is_quiescent(pg, bucket, key) {
            self.meta.requests_by_kind().note(MetaKind::LookUp);
            return self.find_row(bucket, key);
        }
        match self.submit(pg, Call::Read { bucket, key: key.clone() }).await? {
            Settled::Version(row) => Ok(row.map(|row| *row)),
            Settled::AskIndex => self.find_row(bucket, key),
            other => Err(unexpected(&other)),
        }
    }

    async fn row(&self, pg: PgId, row: &[u8]) -> Result<Option<Bytes>, ObjectError> {
        self.meta.requests_by_kind().note(MetaKind::Row);
        self.meta.note_reader(pg, row);
        let found = self.get(row)?;
        Ok(found.or_else(|| self.meta.departed(pg, row)))
    }

    async fn rows_from(
        &self,
        pg: PgId,
        from: Vec<u8>,
        to: &[u8],
        count: usize,
    ) -> Result<Vec<FoundRow>, ObjectError> {
        self.meta.requests_by_kind().note(MetaKind::List);
        self.meta.note_reader(pg, &from);
        let mut rows = Vec::new();
        let scanned = self.meta.kv().scan(&from, Some(to), &mut |row, value| {
            rows.push((row.to_vec(), Bytes::copy_from_slice(value)));
            if rows.len() < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        scanned.map_err(|error| self.unreadable(&error))?;
        self.meta.join_departed(pg, (&from, to), count, &mut rows);
        Ok(rows)
    }

    async fn settled_row(&self, pg: PgId, row: &[u8]) -> Result<Option<Bytes>, ObjectError> {
        self.meta.requests_by_kind().note(MetaKind::Row);
        let span = RowSpan { from: row.to_vec(), to: Some([row, &[0]].concat()) };
        self.settle(Some(pg), &span).await?;
        self.get(row)
    }

    async fn positions(
        &self,
        pg: PgId,
        op: OpSeq,
        count: u8,
        wait: Duration,
    ) -> Result<Vec<Position>, ObjectError> {
        let known = self.meta.positions(pg, Awaited { op, count: count.into() }, wait).await;
        known.ok_or(ObjectError::SlowDown)
    }

    async fn read(&self, chunk: &Arc<Chunk>, range: Range<u32>) -> Result<Bytes, ReadFailure> {
        if let Some(bytes) = self.data.read_cached(chunk, range.clone())? {
            return Ok(bytes);
        }
        let (data, chunk) = (self.data.clone(), chunk.clone());
        // One that waits for a thread is not begun once nobody wants it.
        Task::blocking(move || data.read(&chunk, range)).outcome().await?
    }

    /// One scan of the index has the rows of all PGs.
    async fn scan<V>(&self, scan: Scan<'_>, mut visit: V) -> Result<(), ObjectError>
    where
        V: FnMut(&[u8], &[u8]) -> ScanStep + Send,
    {
        self.meta.requests_by_kind().note(MetaKind::List);
        let Scan { pg, settle, from, to, .. } = scan;
        let deadline = Instant::now() + Duration::from_millis(LIST_WAIT_MS_MAX);
        let (mut from, mut settled) = (Some(from), !settle);
        // The first row that the index may not show yet.
        let mut unsettled: Option<Vec<u8>> = None;
        while let Some(first) = from.take() {
            if unsettled.as_ref().is_some_and(|unsettled| first >= *unsettled) || !settled {
                let span = RowSpan { from: first.clone(), to: to.map(<[u8]>::to_vec) };
                unsettled = self.settle_soon(pg, &span, deadline).await?;
                settled = true;
            }
            let mut is_over = false;
            let until = unsettled.as_deref().or(to);
            let scanned =
                self.meta.kv().scan(&first, until, &mut |row, value| match visit(row, value) {
                    ScanStep::Next => ControlFlow::Continue(()),
                    ScanStep::Seek(to) => {
                        from = Some(to);
                        ControlFlow::Break(())
                    }
                    ScanStep::Stop => {
                        is_over = true;
                        ControlFlow::Break(())
                    }
                });
            scanned.map_err(|error| self.unreadable(&error))?;
            if is_over {
                return Ok(());
            }
            from = from.or_else(|| unsettled.clone());
        }
        Ok(())
    }
}

fn managing_failed(error: LocalManagerError) -> ObjectError {
    match error {
        LocalManagerError::BucketExists => ObjectError::BucketExists,
        LocalManagerError::NoSuchBucket => ObjectError::NoSuchBucket,
        LocalManagerError::TooManyBuckets => ObjectError::TooManyBuckets,
        LocalManagerError::HasHome => ObjectError::HasHome,
        LocalManagerError::TooMuchCors => ObjectError::TooMuchCors,
        LocalManagerError::NotShared(error) => {
            ObjectError::Unavailable { reason: error.to_string() }
        }
        LocalManagerError::Home(error) => ObjectError::Unavailable { reason: error.to_string() },
        LocalManagerError::Disk(larder_env::DiskError::Full { .. }) => ObjectError::Full,
        error @ (LocalManagerError::Disk(_) | LocalManagerError::Unusable(_)) => {
            ObjectError::Unavailable { reason: error.to_string() }
        }
    }
}

#[cfg(test)]
mod tests;
