//! The ways in which a proxy reaches the other roles.
//!
//! What a proxy does with objects is the same wherever the other roles run. What differs is behind this seam:
//! [`LocalRoles`](super::LocalRoles), direct calls in one process, and [`RemoteRoles`](super::RemoteRoles), over the net. It is a type
//! parameter, so that a call in one process costs what a call costs.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_link::Change;
use larder_objects::ObjectError;
pub use larder_objects::ScanStep;
use larder_protocol::Call;
use larder_protocol::region::listing::{ListedPage, PageRequest};
use larder_types::{
    BucketId, BucketName, BucketRecord, BucketState, Chunk, CorsRules, Epoch, Holders, HybridClock,
    ObjectKey, OpSeq, PgId, RegionId, VersionRow,
};
use tokio::time::Instant;

use super::home_change::HomeChange;
use super::other_regions::RegionLookup;
use crate::clock::StoreClock;
use crate::data::ReadFailure;
use crate::ticket::Settled;
use crate::wire::{Position, RemotePart};

/// The end of a put that was not refused.
#[derive(Debug)]
pub enum Ended {
    /// It is committed, with this clock.
    Done(HybridClock),
    /// Too few replicas wrote its data, and it was revoked: it will never take effect.
    Lost(Lost),
}

/// The reason why a put was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lost {
    /// Replicas that had no room.
    pub full: Holders,
}

/// A put's data: pieces, and their bytes together.
pub type Data = (Vec<Bytes>, u32);

/// A row of the index and its value.
pub type FoundRow = (Vec<u8>, Bytes);

/// A bucket as it is known at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketSnapshot {
    /// Its id.
    pub id: BucketId,
    epoch: Epoch,
    state: BucketState,
}

impl BucketSnapshot {
    /// As its record says.
    pub(crate) fn of(record: &BucketRecord) -> Self {
        Self { id: record.id, epoch: record.epoch, state: record.state }
    }

    /// Its id and epoch.
    pub(super) fn place(self) -> (BucketId, Epoch) {
        (self.id, self.epoch)
    }

    /// Returns true if a record of its name, or that there is none, is newer and says which bucket has the
    /// name.
    pub(super) fn is_passed(self, now: Option<&BucketRecord>) -> bool {
        let is_news = |now: &BucketRecord| now.state == BucketState::Live && Self::of(now) != self;
        now.is_none_or(is_news)
    }
}

/// The range that a scan looks at.
pub struct Scan<'a> {
    /// The rows of one PG, or of all.
    pub pg: Option<PgId>,
    /// True if everything that was taken before must show, or shows already because this call waited for it.
    pub settle: bool,
    /// First row.
    pub from: Vec<u8>,
    /// The row behind the last, if any.
    pub to: Option<&'a [u8]>,
    /// The number of rows that will do, about.
    pub wanted: usize,
}

/// The other roles, as a proxy uses them. What a stream of a body awaits is `Sync`, as the stream must be.
pub trait RoleAccess: Send + Sync + 'static {
    /// The time by which this process dates changes, or judges dates.
    fn clock(&self) -> &Arc<StoreClock>;

    /// Looks at a bucket's record, also of one that is being found empty; `None` if there is none.
    fn bucket<T>(&self, name: &BucketName, look: impl FnOnce(&BucketRecord) -> T) -> Option<T>;

    /// Called when a primary reports that a bucket, as known here, is deleted or being deleted. Waits a little for a
    /// map that shows it: the bucket is live again, or its name is another's or free. It may also be the primary whose
    /// map is behind.
    fn bucket_update(
        &self,
        name: &BucketName,
        known: BucketSnapshot,
    ) -> impl Future<Output = ()> + Send;

    /// Returns once every bucket is known here whose making was answered before, also through another proxy.
    ///
    /// # Errors
    /// If the managers cannot be asked now.
    fn catch_up(&self) -> impl Future<Output = Result<(), ObjectError>> + Send {
        std::future::ready(Ok(()))
    }

    /// All buckets, by name.
    fn buckets(&self) -> Vec<BucketRecord>;

    /// Makes a bucket; when it is made this proxy knows it.
    fn create_bucket(
        &self,
        name: &BucketName,
        location: Option<String>,
    ) -> impl Future<Output = Result<BucketRecord, ObjectError>> + Send;

    /// Sets a bucket's CORS rules, or removes them; when it is done this proxy goes by them.
    fn set_cors(
        &self,
        name: &BucketName,
        rules: Option<CorsRules>,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send;

    /// Marks a bucket as deleting, under a new epoch.
    fn begin_deletion(
        &self,
        name: &BucketName,
    ) -> impl Future<Output = Result<BucketRecord, ObjectError>> + Send;

    /// Removes a bucket that was marked so, if it was found empty; else makes it live again.
    fn end_deletion(
        &self,
        marked: BucketRecord,
        empty: bool,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send;

    /// Waits until the gateway has deleted, in all regions, a bucket that is marked here. This proxy is none.
    fn deleted_by_gateway(
        &self,
        marked: BucketRecord,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send;

    /// Returns true if this proxy is the one that speaks with other regions, if it can: another one may be
    /// by now.
    fn is_gateway(&self) -> bool;

    /// Has the gateway ask other regions for a key that is not here. It is an error if one of them has it, and it cannot be had now.
    /// This proxy is none.
    fn read_gateway_state(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<RegionLookup, ObjectError>> + Send;

    /// Has the gateway read a part of a large object where it is. This proxy is none.
    fn part_at_gateway(
        &self,
        part: RemotePart,
    ) -> impl Future<Output = Result<Bytes, ObjectError>> + Send;

    /// Has the gateway pass a client's change on to the region that is its bucket's home; of a put returns its clock. This proxy is
    /// none.
    fn change_at_gateway(
        &self,
        home: RegionId,
        change: Change,
    ) -> impl Future<Output = Result<HomeChange, ObjectError>> + Send;

    /// Has the gateway list a page of a bucket's keys in all regions. This proxy is none.
    fn list_at_gateway(
        &self,
        bucket: &BucketName,
        ask: PageRequest,
    ) -> impl Future<Output = Result<ListedPage, ObjectError>> + Send;

    /// This store's number among regions; [`RegionId::OWN`] if it is alone.
    fn region(&self) -> RegionId;

    /// Returns true if this proxy is the one that runs housekeeping of the whole store.
    fn tidies(&self) -> bool;

    /// Returns true if the other regions have removed this one, as far as the managers know.
    fn is_removed(&self) -> bool;

    /// Returns true if all servers that it may speak with know of coalescing.
    fn may_coalesce(&self) -> bool {
        true
    }

    /// Copies of data that are wanted.
    fn copies(&self) -> u8;

    /// The PG of a key.
    fn pg_of(&self, bucket: BucketId, key: &ObjectKey) -> PgId;

    /// Turns calls away early that could not be taken now.
    fn admit(&self) -> Result<(), ObjectError>;

    /// The same for calls that add data.
    fn admit_data(&self) -> Result<(), ObjectError>;

    /// Makes a call that becomes an op, and waits for it.
    fn submit(
        &self,
        pg: PgId,
        call: Call,
    ) -> impl Future<Output = Result<Settled, ObjectError>> + Send;

    /// Tells a PG something that has no answer.
    fn notify(&self, pg: PgId, call: Call);

    /// Puts an object, for a client or another region: METAX and data in parallel, committed when both are
    /// durable (`ARCHITECTURE.md`). If the future is dropped the put is taken back. It ends `by` then, at
    /// the latest.
    fn put(
        &self,
        pg: PgId,
        call: Call,
        data: Option<Data>,
        by: Instant,
    ) -> impl Future<Output = Result<Ended, ObjectError>> + Send;

    /// A put was given up so many times, last for this reason: returns when it may begin anew.
    ///
    /// # Errors
    /// If it was tried often enough, or its time is over.
    fn again(
        &self,
        tries: u32,
        lost: Lost,
        by: Instant,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send;

    /// The key's null version; waits for the outcome of puts that are under way.
    fn find(
        &self,
        pg: PgId,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<Option<VersionRow>, ObjectError>> + Send;

    /// The same as [`RoleAccess::find`], with all bytes of the version if they were read meanwhile.
    fn find_and_read(
        &self,
        pg: PgId,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<(Option<VersionRow>, Option<Bytes>), ObjectError>> + Send {
        async move { Ok((self.find(pg, bucket, key).await?, None)) }
    }

    /// A row of a PG.
    fn row(
        &self,
        pg: PgId,
        row: &[u8],
    ) -> impl Future<Output = Result<Option<Bytes>, ObjectError>> + Send + Sync;

    /// The first rows from one on, of a family of a PG's rows of which at least one is there: at most `count`.
    fn rows_from(
        &self,
        pg: PgId,
        from: Vec<u8>,
        to: &[u8],
        count: usize,
    ) -> impl Future<Output = Result<Vec<FoundRow>, ObjectError>> + Send + Sync;

    /// The same as [`RoleAccess::row`], after everything that the PG has taken shows in the index.
    fn settled_row(
        &self,
        pg: PgId,
        row: &[u8],
    ) -> impl Future<Output = Result<Option<Bytes>, ObjectError>> + Send;

    /// Returns the positions of other regions in a PG's journal, as the gateway told its primary. Waits until so many of them have an op
    /// of it, for this long at most.
    fn positions(
        &self,
        pg: PgId,
        op: OpSeq,
        count: u8,
        wait: Duration,
    ) -> impl Future<Output = Result<Vec<Position>, ObjectError>> + Send;

    /// Reads bytes of a chunk, at most [`READ_PIECE_BYTES`](crate::limits::READ_PIECE_BYTES), and verifies
    /// them.
    fn read(
        &self,
        chunk: &Arc<Chunk>,
        range: Range<u32>,
    ) -> impl Future<Output = Result<Bytes, ReadFailure>> + Send + Sync;

    /// Visits rows in their order.
    fn scan<V>(
        &self,
        scan: Scan<'_>,
        visit: V,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send
    where
        V: FnMut(&[u8], &[u8]) -> ScanStep + Send;
}
