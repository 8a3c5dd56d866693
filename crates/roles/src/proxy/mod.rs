//! The proxy: routes calls to PGs, cuts objects into chunks, verifies what it reads.
//!
//! # Invariants
//!
//! 1. A put is answered only when its METAX is persisted and every replica has the data of the same
//!    grant; its primary is told at once.
//! 2. A put whose caller goes away is abandoned, never forgotten: its primary resolves it.
//! 3. No byte leaves that was not verified against the checksum of its 64 KiB.

mod buckets;
mod list;
mod multipart;
mod put;
mod read;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_objects::{
    CompleteOptions, ListPage, ListRequest, ListedObject, ListedPart, ObjectError, Objects, Opened,
    PartsPage, PutBody, PutDone, PutOptions, ReadBody, UploadOptions,
};
use larder_protocol::{Call, Refusal};
use larder_types::{
    BucketId, BucketName, BucketRecord, Condition, Epoch, ObjectKey, PgId, SessionId, StreamId,
    UploadId, UploadRow,
};

use crate::data::DataServer;
use crate::manager::{Manager, ManagerError};
use crate::meta::Meta;
use crate::requests::Requests;
use crate::ticket::{Settled, Ticket};

/// What the proxy saw that should never be, for metrics and alarms.
#[derive(Debug, Default)]
pub struct Alarms {
    /// Reads that found a copy with wrong checksums.
    pub bad_copies: AtomicU64,
    /// Reads that found no good copy.
    pub lost_reads: AtomicU64,
}

/// A proxy.
pub struct Proxy {
    meta: Arc<Meta>,
    data: Arc<DataServer>,
    manager: Arc<Manager>,
    requests: Arc<Requests>,
    streams: AtomicU64,
    alarms: Alarms,
}

impl Proxy {
    /// A proxy of a new session.
    #[must_use]
    pub fn new(meta: Arc<Meta>, data: Arc<DataServer>, manager: Arc<Manager>) -> Self {
        let session = SessionId(larder_env::rng::unique_u64());
        let requests = Arc::new(Requests::new(session));
        meta.heed(requests.clone());
        Self {
            meta,
            data,
            manager,
            requests,
            streams: AtomicU64::new(1),
            alarms: Alarms::default(),
        }
    }

    /// What it saw that should never be.
    #[must_use]
    pub fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    /// Id and epoch of a bucket, also of one that is being found empty.
    fn live(&self, name: &BucketName) -> Result<(BucketId, Epoch), ObjectError> {
        let map = self.manager.map();
        let record = map.bucket(name).ok_or(ObjectError::NoSuchBucket)?;
        Ok((record.id, record.epoch))
    }

    fn place(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<(BucketId, Epoch, PgId), ObjectError> {
        let (id, epoch) = self.live(bucket)?;
        Ok((id, epoch, self.meta.pg_of(id, key)))
    }

    /// Turns calls away early that would add data to a full disk or a full log.
    fn admit_data(&self) -> Result<(), ObjectError> {
        if self.data.is_broken() {
            return Err(unavailable("the data disk failed: replace it"));
        }
        if self.data.is_full() || self.meta.log_is_full() {
            return Err(ObjectError::Full);
        }
        self.admit()
    }

    fn admit(&self) -> Result<(), ObjectError> {
        if self.meta.log_is_busy() { Err(ObjectError::SlowDown) } else { Ok(()) }
    }

    /// Makes a call that becomes an op, and waits for it.
    async fn ask(&self, pg: PgId, call: Call) -> Result<Settled, ObjectError> {
        let ticket = Arc::new(Ticket::default());
        self.meta.call(pg, call, &ticket);
        match ticket.settled().await {
            Settled::Refused(refusal) => Err(refused(refusal)),
            settled => Ok(settled),
        }
    }

    /// Tells a bucket that is gone from one whose record changed on the way, such as one that was
    /// marked for deletion, found to have objects and is live again.
    fn bucket_gone_or_changed(&self, bucket: &BucketName, error: ObjectError) -> ObjectError {
        match error {
            ObjectError::NoSuchBucket if self.live(bucket).is_ok() => ObjectError::SlowDown,
            error => error,
        }
    }

    fn new_stream(&self) -> StreamId {
        let number = self.streams.fetch_add(1, Ordering::Relaxed);
        StreamId { session: self.requests.session(), number }
    }
}

/// What a refusal means to a face.
fn refused(refusal: Refusal) -> ObjectError {
    match refusal {
        Refusal::StaleBucket => ObjectError::NoSuchBucket,
        Refusal::PreconditionFailed => ObjectError::PreconditionFailed,
        Refusal::NoSuchKey => ObjectError::NoSuchKey,
        Refusal::NoSuchUpload => ObjectError::NoSuchUpload,
        Refusal::InvalidPart(number) => ObjectError::InvalidPart { number },
        Refusal::Busy => ObjectError::SlowDown,
        Refusal::Full => ObjectError::Full,
        Refusal::NotPrimary => unavailable("the key's placement group has no primary"),
        Refusal::StreamIncomplete => unavailable("a chunk of the object was not stored"),
        Refusal::Finished | Refusal::Revoked => unavailable("the put was revoked"),
        Refusal::DiskFailed => unavailable("the data disk failed: replace it"),
        Refusal::IndexDamaged => unavailable("the key's placement group has stopped: see the log"),
    }
}

fn unavailable(reason: &str) -> ObjectError {
    ObjectError::Unavailable { reason: reason.to_owned() }
}

impl From<ManagerError> for ObjectErrorOf {
    fn from(error: ManagerError) -> Self {
        Self(match error {
            ManagerError::BucketExists => ObjectError::BucketExists,
            ManagerError::NoSuchBucket => ObjectError::NoSuchBucket,
            ManagerError::TooManyBuckets => ObjectError::TooManyBuckets,
            ManagerError::Disk(larder_env::DiskError::Full { .. }) => ObjectError::Full,
            error @ (ManagerError::Disk(_) | ManagerError::Unusable(_)) => {
                ObjectError::Unavailable { reason: error.to_string() }
            }
        })
    }
}

/// An [`ObjectError`] made from another role's error.
struct ObjectErrorOf(ObjectError);

impl Objects for Proxy {
    async fn create_bucket(
        &self,
        name: &BucketName,
        location: Option<String>,
    ) -> Result<BucketRecord, ObjectError> {
        self.make_bucket(name, location).await
    }

    async fn delete_bucket(&self, name: &BucketName) -> Result<(), ObjectError> {
        self.drop_bucket(name).await
    }

    fn bucket(&self, name: &BucketName) -> Result<BucketRecord, ObjectError> {
        self.manager.map().bucket(name).cloned().ok_or(ObjectError::NoSuchBucket)
    }

    fn buckets(&self) -> Result<Vec<BucketRecord>, ObjectError> {
        Ok(self.manager.map().map.buckets.values().cloned().collect())
    }

    async fn put<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: PutOptions,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        let done = self.put_object(bucket, key, options, body).await;
        done.map_err(|error| self.bucket_gone_or_changed(bucket, error))
    }

    async fn open(&self, bucket: &BucketName, key: &ObjectKey) -> Result<Opened, ObjectError> {
        self.find(bucket, key).await
    }

    async fn read(&self, object: &Opened, range: Range<u64>) -> Result<ReadBody, ObjectError> {
        self.read_range(object, range).await
    }

    async fn part(&self, object: &Opened, number: u16) -> Result<ListedPart, ObjectError> {
        self.part_of(object, number)
    }

    async fn delete(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        condition: Condition,
    ) -> Result<(), ObjectError> {
        let (id, epoch, pg) = self.place(bucket, key)?;
        self.admit()?;
        let request = self.requests.begin();
        let call =
            Call::Delete { request: request.id(), bucket: id, epoch, key: key.clone(), condition };
        self.ask(pg, call).await.map(|_done| ())
    }

    async fn set_tags(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        tags: Vec<(String, String)>,
    ) -> Result<(), ObjectError> {
        let (id, _, pg) = self.place(bucket, key)?;
        self.admit()?;
        let request = self.requests.begin();
        let call = Call::SetTags { request: request.id(), bucket: id, key: key.clone(), tags };
        self.ask(pg, call).await.map(|_done| ())
    }

    async fn list(
        &self,
        bucket: &BucketName,
        request: ListRequest,
    ) -> Result<ListPage<ListedObject>, ObjectError> {
        self.list_objects(bucket, request).await
    }

    async fn create_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: UploadOptions,
    ) -> Result<UploadId, ObjectError> {
        let (id, epoch, pg) = self.place(bucket, key)?;
        self.admit_data()?;
        let request = self.requests.begin();
        let call = Call::CreateUpload {
            request: request.id(),
            bucket: id,
            epoch,
            key: key.clone(),
            attributes: options.attributes,
            checksum: options.checksum,
        };
        match self.ask(pg, call).await? {
            Settled::Done(op, _) => Ok(UploadId { pg, op }),
            other => Err(unexpected(&other)),
        }
    }

    async fn upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<UploadRow, ObjectError> {
        self.find_upload(bucket, key, upload).await.map(|(_, _, row)| row)
    }

    async fn put_part<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        number: u16,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        let done = self.put_upload_part(bucket, key, upload, number, body).await;
        done.map_err(|error| self.bucket_gone_or_changed(bucket, error))
    }

    async fn list_parts(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        after: u16,
        max: usize,
    ) -> Result<PartsPage, ObjectError> {
        self.list_upload_parts(bucket, key, upload, after, max).await
    }

    async fn complete_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        options: CompleteOptions,
    ) -> Result<PutDone, ObjectError> {
        let done = self.finish_upload(bucket, key, upload, options).await;
        done.map_err(|error| self.bucket_gone_or_changed(bucket, error))
    }

    async fn abort_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<(), ObjectError> {
        let (id, _, pg) = self.place(bucket, key)?;
        let request = self.requests.begin();
        let (request, key) = (request.id(), key.clone());
        let call = Call::AbortUpload { request, bucket: id, key, upload };
        self.ask(pg, call).await.map(|_done| ())
    }

    async fn list_uploads(
        &self,
        bucket: &BucketName,
        request: ListRequest,
        after_upload: Option<UploadId>,
    ) -> Result<ListPage<UploadRow>, ObjectError> {
        self.list_open_uploads(bucket, request, after_upload).await
    }
}

fn unexpected(settled: &Settled) -> ObjectError {
    tracing::error!(?settled, "a call was settled by an answer to another");
    unavailable("the placement group gave an answer that does not fit")
}
