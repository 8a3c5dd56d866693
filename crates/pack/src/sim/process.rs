//! One run of a worker: the production parts, stepped by hand in place of threads.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use larder_env::{Disk, DiskFile, SimDisk};
use larder_kv::{Batch, FlushReport, Kv, KvError, KvReader, Progress, SimKv, Visit};

use super::now_ms;
use crate::backend::Backend;
use crate::backend::token_bucket::TokenBucket;
use crate::backup::{self, BackupWriter, Backups, Head};
use crate::clock::{SuspendAwareInstant, uptime};
use crate::commit::committer::{BlobLimits, Committer, Marks, Parts};
use crate::commit::in_flight::StandalonesInFlight;
use crate::commit::neighbours::Neighbours;
use crate::commit::policy::{Packing, SizeClass};
use crate::commit::queue::Queue;
use crate::commit::spool::Spool;
use crate::error::PackError;
use crate::format::entry::{Container, Place};
use crate::format::sums::verifies;
use crate::format::upload_unit::UploadUnit;
use crate::gc::maintenance::{Maintenance, MaintenanceReport};
use crate::gc::removal::Remover;
use crate::gc::repack::Repacker;
use crate::gc::repack::backoff::RepackBackoff;
use crate::ids::WorkerId;
use crate::index::Index;
use crate::owner::counting::Counting;
use crate::owner::numbering::Numbering;
use crate::owner::ownership::Ownership;
use crate::owner::takeover_fence::TakeoverFence;
use crate::peers::Others;
use crate::peers::feed::{FeedSource, Handed};
use crate::peers::version_gc::VersionGc;
use crate::read::readers::Readers;
use crate::start::rebuild::Rebuild;
use crate::start::recover::{Start, recover};
use crate::upload::uploader::Uploader;

/// Bytes of bodies at which a blob is full.
pub(crate) const BLOB_BYTES: u64 = 4000;

/// The rows of an index, which outlive the process.
pub(crate) struct Rows(pub(crate) Arc<SimKv>);

impl KvReader for Rows {
    fn get(&self, key: &[u8]) -> Result<Option<bytes::Bytes>, KvError> {
        self.0.get(key)
    }

    fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: &mut Visit<'_>) -> Result<(), KvError> {
        self.0.scan(from, to, visit)
    }
}

impl Kv for Rows {
    fn snapshot(&self) -> Result<Box<dyn KvReader>, KvError> {
        self.0.snapshot()
    }

    fn apply(&self, batch: &Batch) -> Result<(), KvError> {
        self.0.apply(batch)
    }

    fn flush(&self) -> Result<FlushReport, KvError> {
        self.0.flush()
    }

    fn unflushed_bytes(&self) -> u64 {
        self.0.unflushed_bytes()
    }

    fn disk_bytes(&self) -> u64 {
        self.0.disk_bytes()
    }

    fn maintain(&self) -> Result<Progress, KvError> {
        self.0.maintain()
    }
}

/// A task that goes on step by step.
type Stepped<T> = Pin<Box<dyn Future<Output = Result<T, PackError>>>>;
type Turning = Stepped<MaintenanceReport>;

/// A process that runs.
pub(crate) struct Process {
    pub(crate) worker: WorkerId,
    pub(crate) index: Arc<Index>,
    pub(crate) spool: Arc<Spool>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) under_way: Arc<StandalonesInFlight>,
    pub(crate) committer: Committer,
    pub(crate) takeover_fence: TakeoverFence,
    pub(crate) backend: Backend,
    pub(crate) others: Option<Arc<Others>>,
    pub(crate) marks: Arc<Marks>,
    pub(crate) owner: Arc<Ownership>,
    pub(crate) numbering: Arc<Numbering>,
    uploader: Pin<Box<dyn Future<Output = ()>>>,
    maintenance: Arc<tokio::sync::Mutex<Maintenance>>,
    turning: Option<Turning>,
    version_gc: Option<Arc<tokio::sync::Mutex<VersionGc>>>,
    sweeping: Option<Stepped<u64>>,
    looking: Option<Stepped<()>>,
}

impl Process {
    /// The feed that tells others of it.
    pub(crate) fn feed(&self) -> FeedSource {
        let (spool, index) = (self.spool.clone(), self.index.clone());
        let handed = Arc::new(Handed::new(self.marks.clone()));
        FeedSource::new(self.worker, spool, index, handed)
    }

    /// Starts as [`crate::Packer::open`] does, but for who it is.
    pub(crate) async fn start(
        worker: WorkerId,
        disk: Arc<SimDisk>,
        rows: Arc<SimKv>,
        backend: Backend,
        packing: Packing,
        others: Option<Arc<Others>>,
    ) -> Result<Self, PackError> {
        let disk: Arc<dyn Disk> = disk;
        let numbering = Arc::new(Numbering::new(backend.clone(), worker, disk.clone(), uptime));
        let takeover_fence =
            TakeoverFence::establish(&backend, worker, numbering.records()).await?;
        let heads = backup::known(&backend, &takeover_fence).await?;
        let (backups, accept_loss) = (&heads[..], None);
        let rebuild = Rebuild {
            backend: &backend,
            worker,
            takeover_fence: &takeover_fence,
            records: numbering.records(),
            backups,
            accept_loss,
            is_own: true,
        };
        let (index, applied) = Index::over(Box::new(Rows(rows)))?;
        if applied.is_none() {
            index.clear()?;
        }
        let start = recover(disk, (index, applied), &rebuild, &numbering).await?;
        let Start { index, log, spool, at, backups: heads } = start;
        let (counters, stored) = (backend.counters().clone(), (Arc::new(index), Arc::new(spool)));
        let neighbours = others.clone().map(|others| others as Arc<dyn Neighbours>);
        let parts = Parts::of(stored, &at, counters, neighbours, now_ms);
        let committing = parts.clone();
        let Parts { queue, index, spool, under_way, marks, fatal, .. } = parts;
        let limits = BlobLimits {
            blob_bytes: BLOB_BYTES,
            spool_bytes: 8 * BLOB_BYTES,
            flush_timeout: Duration::from_secs(1 << 30),
            packing,
            // One after the other, so that a seed gives the same run each time.
            packing_threads: 1,
        };
        let version_gc = others.clone().map(|others| {
            let version_gc = VersionGc::new(others, index.clone(), queue.clone(), marks.clone());
            Arc::new(tokio::sync::Mutex::new(version_gc))
        });
        let (began, committer) = (at.blob + 1, Committer::new(committing, limits, worker, log, at));
        let owned = SuspendAwareInstant::now(uptime);
        let (asking, stopping) = ((numbering.clone(), spool.clone()), queue.clone());
        let owner = Arc::new(Ownership::new(asking, owned, stopping, fatal, uptime));
        let uploader = Uploader {
            backend: backend.clone(),
            spool: spool.clone(),
            queue: queue.clone(),
            owner: owner.clone(),
            spool_bytes: 8 * BLOB_BYTES,
        };
        let mut maintenance = maintenance(
            &backend,
            &index,
            &spool,
            &queue,
            (&owner, worker),
            &heads,
            &takeover_fence,
        );
        maintenance.remover.began = began;
        if let Some(others) = &others {
            maintenance.remover.grace = others.settings().kept;
        }
        Ok(Self {
            worker,
            index,
            spool,
            queue,
            under_way,
            committer,
            takeover_fence,
            backend,
            others,
            marks,
            owner,
            numbering,
            uploader: Box::pin(uploader.run()),
            maintenance: Arc::new(tokio::sync::Mutex::new(maintenance)),
            turning: None,
            version_gc,
            sweeping: None,
            looking: None,
        })
    }

    /// Does what waits first for the committer.
    pub(crate) fn commit(&mut self) -> Result<(), PackError> {
        self.committer.turn(Some(Instant::now())).map(drop)
    }

    pub(crate) fn upload(&mut self) {
        poll(self.uploader.as_mut());
    }

    /// A step of what is done in the background; what was done, when that ends.
    pub(crate) fn run_maintenance(&mut self) -> Option<Result<MaintenanceReport, PackError>> {
        let maintenance = &self.maintenance;
        let turning = self.turning.get_or_insert_with(|| {
            let maintenance = maintenance.clone();
            Box::pin(async move { maintenance.lock().await.turn(now_ms()).await })
        });
        let done = poll(turning.as_mut())?;
        self.turning = None;
        Some(done)
    }

    /// Takes a step of giving up what other workers have newer; returns how much was given up, when
    /// a round ends.
    pub(crate) fn version_gc(&mut self) -> Option<Result<u64, PackError>> {
        let version_gc = self.version_gc.as_ref().expect("the bucket is shared");
        let sweeping = self.sweeping.get_or_insert_with(|| {
            let version_gc = version_gc.clone();
            Box::pin(async move { version_gc.lock().await.round().await })
        });
        let done = poll(sweeping.as_mut())?;
        self.sweeping = None;
        Some(done)
    }

    /// A step of a look at what other workers have in the bucket.
    pub(crate) fn refresh(&mut self) -> Option<Result<(), PackError>> {
        let others = self.others.as_ref().expect("the bucket is shared");
        let looking = self.looking.get_or_insert_with(|| {
            let others = others.clone();
            Box::pin(async move { others.refresh().await })
        });
        let done = poll(looking.as_mut())?;
        self.looking = None;
        Some(done)
    }

    /// The index becomes durable, and the log behind it may go.
    pub(crate) fn flush_index(&self) {
        let applied = self.marks.applied.load(Ordering::Relaxed);
        self.index.flush().unwrap();
        self.marks.flushed.store(applied, Ordering::Relaxed);
    }

    /// The file with what waits to go up.
    fn waiting(&self, container: Container) -> Option<Arc<dyn DiskFile>> {
        let (id, unit) = UploadUnit::of(container).filter(|(id, _)| id.worker == self.worker)?;
        self.spool.file(id.seq, unit)
    }

    /// The bytes at a place of this worker, which lies `below` a prefix of the store, verified; why not, if not.
    pub(crate) async fn read(
        &self,
        place: &Place,
        store: &super::SimStore,
        below: &str,
    ) -> Result<Vec<u8>, String> {
        let (from, to) = (place.offset as usize, (place.offset + place.len) as usize);
        let bytes = match place.container {
            _ if place.len == 0 => Vec::new(),
            container => match self.waiting(container) {
                Some(file) => {
                    let mut bytes = vec![0; place.len as usize];
                    file.read_at(place.offset, &mut bytes).map_err(|error| error.to_string())?;
                    bytes
                }
                None => {
                    let name = match container {
                        Container::Own(own) if own.bundle().is_some() => {
                            self.index.bundle_path(own).map_err(|error| error.to_string())?
                        }
                        Container::Own(own) => own.path(),
                        Container::Blob(id) => {
                            let row = self.index.blob(id).unwrap();
                            row.ok_or("the index has no such blob")?.name(id).path()
                        }
                    };
                    let all = store.get(&format!("{below}{name}")).await;
                    all.ok_or_else(|| format!("{name} is not there"))?[from..to].to_vec()
                }
            },
        };
        let mut pieces = bytes.chunks(place.sum_bytes.max(1) as usize).enumerate();
        match pieces.all(|(index, piece)| verifies(place, index as u64, piece)) {
            true => Ok(bytes),
            false => Err("its bytes do not verify".to_owned()),
        }
    }
}

/// Groups of which each often has a bundle, and never for long.
pub(super) fn sizes() -> Packing {
    let class = |name: &str, up_to_bytes| SizeClass { name: name.to_owned(), up_to_bytes };
    Packing::Size(vec![class("small", 200), class("medium", 500)])
}

fn maintenance(
    backend: &Backend,
    index: &Arc<Index>,
    spool: &Arc<Spool>,
    queue: &Arc<Queue>,
    (owner, worker): (&Arc<Ownership>, WorkerId),
    heads: &[Head],
    takeover_fence: &TakeoverFence,
) -> Maintenance {
    let (backups, pace) = (Arc::new(Backups::of(heads)), || TokenBucket::new(1 << 30, 1 << 40));
    let counters = backend.counters();
    Maintenance {
        repacker: Repacker {
            backend: backend.clone(),
            index: index.clone(),
            queue: queue.clone(),
            counters: counters.clone(),
            backups: backups.clone(),
            pace: pace(),
            below_percent: 80,
            blob_bytes: BLOB_BYTES,
            set_aside: RepackBackoff::default(),
        },
        remover: Remover {
            backend: backend.clone(),
            index: index.clone(),
            spool: spool.clone(),
            queue: queue.clone(),
            readers: Arc::<Readers>::default(),
            counters: counters.clone(),
            worker,
            owner: owner.clone(),
            takeover_fence: takeover_fence.clone(),
            grace: Duration::ZERO,
            pace: pace(),
            unwanted: BTreeMap::new(),
            counting: Counting::default(),
            has_void: false,
            began: 0,
            unrequested: 0,
            vouched: 0,
        },
        backups: BackupWriter {
            backend: backend.clone(),
            spool: spool.clone(),
            queue: queue.clone(),
            counters: counters.clone(),
            backups,
            worker,
            owner: owner.clone(),
            pace: pace(),
            interval: Duration::from_secs(600),
            last: tokio::time::Instant::now(),
            through: 0,
            tried: 0,
        },
        looked: None,
    }
}

/// Takes a step of a future. Its caller comes back by itself: there is nobody to wake.
pub(crate) fn poll<T>(future: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Option<T> {
    let waker = std::task::Waker::noop();
    match future.poll(&mut std::task::Context::from_waker(waker)) {
        std::task::Poll::Ready(done) => Some(done),
        std::task::Poll::Pending => None,
    }
}
