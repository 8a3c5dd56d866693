//! The proxy: routes calls to PGs, cuts objects into chunks, verifies what it reads.
//!
//! | file | what |
//! |---|---|
//! | `put.rs`, `append.rs`, `read.rs`, `list.rs`, `multipart.rs`, `buckets.rs` | what it does with objects, wherever the other roles run |
//! | `expiry.rs` | ends uploads that nobody ended |
//! | `coalesce.rs` | makes pieces that appends left fewer and larger |
//! | `homes.rs`, `uploads.rs`, `home_change.rs` | changes that a bucket's home region decides |
//! | `removal.rs` | refuses changes in a region that was removed |
//! | `remote_change.rs`, `remote_parts.rs`, `region_version.rs` | what it does for other regions |
//! | `ahead.rs` | how far a read is ahead of its client |
//! | `remote.rs` | reads of large objects in other regions |
//! | `role_access.rs` | what it asks of the other roles |
//! | `regional.rs` | what the driver of regions asks of them besides |
//! | `local_roles.rs` | the other roles in this process: direct calls |
//! | `remote_roles/` | the other roles in other processes, over the net |
//!
//! # Invariants
//!
//! 1. A put is answered only when its METAX is persisted and every replica has the data of the same
//!    grant; its primary is told at once.
//! 2. A put whose caller goes away is taken back, never forgotten: its primary revokes it.
//! 3. No byte leaves that was not verified against the checksum of its 64 KiB.

mod ahead;
mod append;
mod buckets;
mod clients;
mod coalesce;
mod expiry;
mod home_change;
mod homes;
mod list;
mod local_roles;
mod multipart;
mod other_regions;
mod put;
mod read;
mod refused;
mod region_version;
mod regional;
mod remote;
mod remote_change;
mod remote_parts;
mod remote_roles;
mod removal;
mod replicated;
mod role_access;
mod task;
mod uploads;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use larder_link::ChangeKind;
use larder_objects::{
    AppendDone, AppendOptions, CompleteOptions, ListPage, ListRequest, ListedObject, ListedPart,
    ObjectError, Objects, Opened, PartsPage, PutBody, PutDone, PutOptions, ReadBody, Replication,
    UploadOptions,
};
use larder_protocol::manager::state::GatewayRecord;
use larder_protocol::scheduler::ReadCounts;
use larder_types::codec::decode;
use larder_types::{
    BucketId, BucketName, BucketRecord, CodecError, Condition, CorsRules, Epoch, ObjectKey, PgId,
    SessionId, StreamId, UploadId, UploadRow,
};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::data::DataServer;
use crate::limits::{PROXY_TIMEOUT_MS, REGION_CHANGES_MAX, REGION_PARTS_MAX, REGION_REMOTES_MAX};
use crate::manager::LocalManager;
use crate::meta::Meta;
use crate::requests::Requests;
use crate::ticket::Settled;
use ahead::Places;
pub use append::AppendCounters;
use clients::Clients;
use coalesce::Coalescing;
pub use coalesce::{CoalesceCounters, coalesce_pieces};
pub use expiry::expire_uploads;
pub use home_change::HomeChange;
pub(crate) use home_change::{answer_of, made_of};
pub use local_roles::LocalRoles;
pub use other_regions::{OtherRegions, RegionLookup};
use read::ReadPurpose;
use refused::refused;
pub use regional::{JournalRequest, RegionAccess};
pub use remote_change::ChangeOutcome;
pub use remote_parts::RemoteParts;
pub use remote_roles::{ClusterConfig, ProxyCounters, RemoteRoles};
use replicated::PositionsSeen;
pub use replicated::RegionWaits;
use role_access::RoleAccess;
pub(crate) use role_access::{BucketSnapshot, Scan, ScanStep};

/// The events that the proxy saw and that should never be, for metrics and alarms.
#[derive(Debug, Default)]
pub struct Alarms {
    /// Reads that found a copy with wrong checksums.
    pub bad_copies: AtomicU64,
    /// Reads that found no good copy.
    pub lost_reads: AtomicU64,
}

/// A proxy, and how it reaches the other roles.
pub struct Proxy<R = LocalRoles> {
    access: Arc<R>,
    requests: Arc<Requests>,
    streams: AtomicU64,
    alarms: Alarms,
    appends: AppendCounters,
    region_waits: RegionWaits,
    expired_uploads: AtomicU64,
    clients: Clients,
    /// Places for the bytes of changes that other regions are to make.
    changes: Semaphore,
    /// The same for parts of uploads.
    parts: Semaphore,
    positions_seen: PositionsSeen,
    coalescing: Coalescing,
    /// Places for pieces of large objects that are read ahead.
    ahead: Places,
    /// Places for reads of large objects in other regions.
    remotes: Arc<Semaphore>,
    /// Whom it asks for what is not here.
    elsewhere: OnceLock<Weak<dyn OtherRegions>>,
}

/// A proxy whose other roles run in other processes.
pub type ClusterProxy = Proxy<RemoteRoles>;

impl Proxy {
    /// A proxy of a new session, for the roles of this process.
    #[must_use]
    pub fn new(meta: Arc<Meta>, data: Arc<DataServer>, manager: Arc<LocalManager>) -> Self {
        let session = SessionId(larder_env::rng::unique_u64());
        let requests = Arc::new(Requests::new(session));
        Self::with(LocalRoles::new(meta, data, manager, &requests), requests)
    }
}

impl ClusterProxy {
    /// A proxy of a new session. It comes when the managers know the session: before that nothing could be
    /// served.
    pub async fn begin(config: ClusterConfig) -> Self {
        let session = SessionId(larder_env::rng::unique_u64());
        let requests = Arc::new(Requests::new(session));
        Self::with(RemoteRoles::begin(config, &requests).await, requests)
    }

    /// This run, as the managers name it where it is the gateway to other regions.
    #[must_use]
    pub fn as_gateway(&self) -> GatewayRecord {
        self.access.as_gateway()
    }

    /// The counts of what it did, for metrics.
    #[must_use]
    pub fn counters(&self) -> &ProxyCounters {
        self.access.counters()
    }

    /// The counts of its choices of replicas, and the replicas that owe an answer.
    #[must_use]
    pub fn reads(&self) -> (ReadCounts, u64) {
        self.access.reads()
    }
}

impl<R> Proxy<R> {
    fn with(access: R, requests: Arc<Requests>) -> Self {
        let streams = AtomicU64::new(1);
        let (alarms, appends) = (Alarms::default(), AppendCounters::default());
        let (region_waits, elsewhere) = (RegionWaits::default(), OnceLock::new());
        let access = Arc::new(access);
        let (clients, changes) = (Clients::default(), Semaphore::new(REGION_CHANGES_MAX));
        Self {
            access,
            requests,
            streams,
            alarms,
            appends,
            region_waits,
            expired_uploads: AtomicU64::new(0),
            clients,
            changes,
            parts: Semaphore::new(REGION_PARTS_MAX),
            positions_seen: PositionsSeen::default(),
            coalescing: Coalescing::default(),
            ahead: Places::default(),
            remotes: Arc::new(Semaphore::new(REGION_REMOTES_MAX)),
            elsewhere,
        }
    }

    /// The events that it saw and that should never be.
    #[must_use]
    pub fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    /// From now on asks other regions for missing keys, as long as the given interface exists.
    ///
    /// # Panics
    /// If it was told once already.
    pub fn set_other_regions(&self, elsewhere: &Arc<dyn OtherRegions>) {
        assert!(self.elsewhere.set(Arc::downgrade(elsewhere)).is_ok(), "one is asked");
    }

    /// The driver of regions, while it runs.
    pub(super) fn elsewhere(&self) -> Option<Arc<dyn OtherRegions>> {
        self.elsewhere.get()?.upgrade()
    }

    /// Changes that waited for other regions.
    #[must_use]
    pub fn region_waits(&self) -> &RegionWaits {
        &self.region_waits
    }

    /// Uploads that it aborted, as nobody had ended them for long.
    #[must_use]
    pub fn expired_uploads(&self) -> u64 {
        self.expired_uploads.load(Ordering::Relaxed)
    }

    /// Appends that it has acknowledged.
    #[must_use]
    pub fn appends(&self) -> &AppendCounters {
        &self.appends
    }
}

impl<R: RoleAccess> Proxy<R> {
    /// As [`Objects::open`], of what is here alone.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub async fn open_here(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<Opened, ObjectError> {
        self.find(bucket, key, ReadPurpose::Metax).await
    }

    /// Id and epoch of a bucket, also of one that is being found empty.
    fn live(&self, name: &BucketName) -> Result<(BucketId, Epoch), ObjectError> {
        let live = self.access.bucket(name, |record| (record.id, record.epoch));
        live.ok_or(ObjectError::NoSuchBucket)
    }

    /// A bucket as its record says, also one that is being found empty.
    fn known(&self, name: &BucketName) -> Result<BucketSnapshot, ObjectError> {
        self.access.bucket(name, BucketSnapshot::of).ok_or(ObjectError::NoSuchBucket)
    }

    /// Called when a primary reports the bucket deleted or being deleted. Returns when it may be asked again.
    ///
    /// # Errors
    /// At the deadline, while the bucket of that name is still unknown; as [`Objects::catch_up`].
    async fn await_bucket_update(
        &self,
        name: &BucketName,
        known: BucketSnapshot,
        deadline: Instant,
    ) -> Result<(), ObjectError> {
        if Instant::now() >= deadline {
            let reason =
                "the bucket is being deleted, and whether it is gone is not known here yet";
            return Err(unavailable(reason));
        }
        self.access.bucket_update(name, known).await;
        // It may have been made anew after its deletion.
        if !self.has_bucket(name) {
            self.access.catch_up().await?;
        }
        Ok(())
    }

    fn place(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<(BucketId, Epoch, PgId), ObjectError> {
        let (id, epoch) = self.live(bucket)?;
        Ok((id, epoch, self.access.pg_of(id, key)))
    }

    /// The number of replicas that must have a put's data before its client is answered; 0: all of the
    /// volume.
    fn required_copies(&self, bucket: &BucketName) -> u8 {
        let copies = self.access.copies();
        if copies <= 1 {
            return 0;
        }
        let policy = self.access.bucket(bucket, |record| record.write_policy);
        policy.unwrap_or_default().required_copies(copies)
    }

    /// Tells a bucket that is gone from one whose record changed on the way, such as one that was
    /// marked for deletion, found to have objects and is live again.
    /// A record that is missing may be that of a bucket made anew: then the one before it was known here.
    async fn bucket_deleted_or_changed<T>(
        &self,
        bucket: &BucketName,
        made: Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        if !matches!(made, Err(ObjectError::NoSuchBucket)) {
            return made;
        }
        if !self.has_bucket(bucket) {
            self.access.catch_up().await?;
        }
        if self.has_bucket(bucket) { Err(ObjectError::SlowDown) } else { made }
    }

    fn new_stream(&self) -> StreamId {
        let number = self.streams.fetch_add(1, Ordering::Relaxed);
        StreamId { session: self.requests.session(), number }
    }
}

/// The time at which a call of another process that begins now is given up.
fn max_wait() -> Instant {
    Instant::now() + Duration::from_millis(PROXY_TIMEOUT_MS)
}

fn unavailable(reason: &str) -> ObjectError {
    ObjectError::Unavailable { reason: reason.to_owned() }
}

fn decoded<T: serde::de::DeserializeOwned>(
    what: &'static str,
    row: &[u8],
) -> Result<T, ObjectError> {
    decode(what, row).map_err(undecodable)
}

fn undecodable(error: CodecError) -> ObjectError {
    tracing::error!(%error, "a row of the index cannot be used");
    unavailable("the index holds a row that cannot be used: see the log")
}

impl<R: RoleAccess> Objects for Proxy<R> {
    async fn create_bucket(
        &self,
        name: &BucketName,
        location: Option<String>,
    ) -> Result<BucketRecord, ObjectError> {
        self.may_change()?;
        self.access.create_bucket(name, location).await
    }

    async fn delete_bucket(&self, name: &BucketName) -> Result<(), ObjectError> {
        self.may_change()?;
        self.drop_bucket(name).await
    }

    async fn set_cors(
        &self,
        name: &BucketName,
        rules: Option<CorsRules>,
    ) -> Result<(), ObjectError> {
        self.may_change()?;
        self.access.set_cors(name, rules).await
    }

    fn cors(&self, name: &BucketName) -> Option<CorsRules> {
        self.access.bucket(name, |record| record.cors.clone()).flatten()
    }

    fn bucket(&self, name: &BucketName) -> Result<BucketRecord, ObjectError> {
        self.access.bucket(name, BucketRecord::clone).ok_or(ObjectError::NoSuchBucket)
    }

    fn has_bucket(&self, name: &BucketName) -> bool {
        self.access.bucket(name, |_| ()).is_some()
    }

    async fn catch_up(&self) -> Result<(), ObjectError> {
        self.access.catch_up().await
    }

    fn buckets(&self) -> Result<Vec<BucketRecord>, ObjectError> {
        Ok(self.access.buckets())
    }

    async fn put<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: PutOptions,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        if let Some(home) = self.home_of(bucket, !options.condition.is_none())? {
            let _request = self.clients.begin();
            return self.put_at_home(home, (bucket, key), options, body).await;
        }
        self.put_here(bucket, key, options, body).await
    }

    fn takes_appends(&self) -> bool {
        true
    }

    async fn append<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: AppendOptions,
        body: B,
    ) -> Result<AppendDone, ObjectError> {
        let _request = self.clients.begin();
        match self.home_of_append(bucket)? {
            Some(home) => self.append_at_home(home, (bucket, key), options, body).await,
            None => self.append_here(bucket, key, options, body).await,
        }
    }

    async fn open(&self, bucket: &BucketName, key: &ObjectKey) -> Result<Opened, ObjectError> {
        self.open_wherever(bucket, key, ReadPurpose::Metax).await
    }

    async fn open_whole(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<Opened, ObjectError> {
        self.open_wherever(bucket, key, ReadPurpose::Whole).await
    }

    async fn read(&self, object: &Opened, range: Range<u64>) -> Result<ReadBody, ObjectError> {
        let _request = self.clients.begin();
        match &object.remote {
            Some(remote) => remote.read(range).await,
            None => self.read_range(object, range).await,
        }
    }

    async fn replication(
        &self,
        bucket: &BucketName,
        object: &Opened,
    ) -> Result<Option<Replication>, ObjectError> {
        self.replication_of(bucket, object).await
    }

    async fn part(&self, object: &Opened, number: u16) -> Result<ListedPart, ObjectError> {
        self.part_of(object, number).await
    }

    async fn delete(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        condition: Condition,
    ) -> Result<(), ObjectError> {
        let has_condition = !condition.is_none();
        if let Some(home) = self.home_of(bucket, has_condition)? {
            let deleted = self.change_at_home(home, (bucket, key), condition, ChangeKind::Delete);
            return deleted.await.map(|_made| ());
        }
        self.delete_here(bucket, key, condition).await
    }

    async fn set_tags(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        tags: Vec<(String, String)>,
    ) -> Result<(), ObjectError> {
        if let Some(home) = self.home_of(bucket, false)? {
            let kind = ChangeKind::Tags(tags);
            let set = self.change_at_home(home, (bucket, key), Condition::default(), kind);
            return set.await.map(|_made| ());
        }
        self.set_tags_here(bucket, key, tags).await
    }

    async fn list(
        &self,
        bucket: &BucketName,
        request: ListRequest,
    ) -> Result<ListPage<ListedObject>, ObjectError> {
        let _request = self.clients.begin();
        self.list_objects(bucket, request).await
    }

    async fn list_all_regions(
        &self,
        bucket: &BucketName,
        request: ListRequest,
    ) -> Result<ListPage<ListedObject>, ObjectError> {
        self.list_everywhere(bucket, request).await
    }

    async fn create_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: UploadOptions,
    ) -> Result<UploadId, ObjectError> {
        let begun = self.begin_upload(bucket, key, options).await;
        self.bucket_deleted_or_changed(bucket, begun).await
    }

    async fn upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<UploadRow, ObjectError> {
        let found = match self.home_of_upload(bucket, key, upload).await {
            Ok(None) => self.find_upload(bucket, key, upload).await.map(|(_, _, row)| row),
            Ok(Some(home)) => {
                let shown = self.show_upload_at(home, (bucket, key), upload, (0, 0)).await;
                shown.map(|page| page.upload)
            }
            Err(error) => Err(error),
        };
        self.bucket_deleted_or_changed(bucket, found).await
    }

    async fn put_part<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        number: u16,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        let _request = self.clients.begin();
        let done = self.put_part_of((bucket, key), upload, number, body).await;
        self.bucket_deleted_or_changed(bucket, done).await
    }

    async fn list_parts(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        after: u16,
        max: usize,
    ) -> Result<PartsPage, ObjectError> {
        let listed = self.show_upload((bucket, key), upload, after, max).await;
        self.bucket_deleted_or_changed(bucket, listed).await
    }

    async fn complete_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        options: CompleteOptions,
    ) -> Result<PutDone, ObjectError> {
        let _request = self.clients.begin();
        self.finish_upload(bucket, key, upload, options).await
    }

    async fn abort_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<(), ObjectError> {
        self.end_upload(bucket, key, upload).await
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
    tracing::error!(?settled, "a call received the response to another call");
    unavailable("the placement group gave an answer that does not fit")
}
