//! A packed store: its threads, and what its face shares with them.

pub(crate) mod config;
pub(crate) mod status;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use larder_env::{Disk, DiskError, RealDisk};
use larder_kv::LsmKv;
use larder_types::{Request, SessionId, checksum};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::backend::Backend;
use crate::backend::token_bucket::TokenBucket;
use crate::backup::{self, BackupWriter, Backups, Head};
use crate::blocking;
use crate::clock::{SuspendAwareInstant, now_ms, uptime};
use crate::commit::committer::{BlobLimits, Committer, Parts};
use crate::commit::flusher::Flusher;
use crate::commit::in_flight::StandalonesInFlight;
use crate::commit::neighbours::Neighbours;
use crate::commit::queue::{Queue, Request as Asked};
use crate::commit::spool::Spool;
use crate::counters::Counters;
use crate::error::PackError;
use crate::format::rows::Applied;
use crate::format::upload_unit;
use crate::gc::leftovers;
use crate::gc::maintenance::{self, Maintenance, MaintenanceReport};
use crate::gc::removal::Remover;
use crate::gc::repack::Repacker;
use crate::gc::repack::backoff::RepackBackoff;
use crate::ids::{StandaloneId, WorkerId};
use crate::index::Index;
use crate::limits::{BACKGROUND_REQUESTS_PER_S, STATUS_PERIOD};
use crate::owner::counting::Counting;
use crate::owner::identity::{self, Claiming};
use crate::owner::name::base;
use crate::owner::naming;
use crate::owner::numbering::Numbering;
use crate::owner::ownership::{OwnerStatus, Ownership};
use crate::owner::takeover_fence::TakeoverFence;
use crate::packer::config::PackConfig;
use crate::packer::status::{Moment, Status, StatusWriter};
use crate::peers::buckets;
use crate::peers::feed::Handed;
use crate::peers::{Joined, Others, Reads, Shares, WorkersStatus};
use crate::read::cache::Cache;
use crate::read::fetch::Fetcher;
use crate::read::readers::Readers;
use crate::read::{Bodies, Waits};
use crate::start::rebuild::Rebuild;
use crate::start::recover::{Start, recover};
use crate::upload::uploader::Uploader;

/// Directory of the index.
const INDEX_DIR: &str = "kv";
/// File in which a rebuild that goes on without blobs writes down what that concerns.
const LOSS_FILE: &str = "lost.txt";
/// File that a running store holds locked.
const LOCK_FILE: &str = "lock";

/// A worker, when it was known to own its place, and the number of its process.
type OwnerSeen = (WorkerId, SuspendAwareInstant, Arc<Numbering>);

/// A packed store that runs.
pub struct Packer {
    pub(crate) shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    uploader: tokio::task::JoinHandle<()>,
    housekeeper: tokio::task::JoinHandle<()>,
    maintenance: Arc<tokio::sync::Mutex<Maintenance>>,
    peer_clock: tokio::task::JoinHandle<()>,
    asking: tokio::task::JoinHandle<()>,
    sharing: Option<Shares>,
    _lock: larder_env::FileLock,
}

/// The parts of a store that requests need.
pub(crate) struct Shared {
    pub(crate) config: PackConfig,
    pub(crate) backend: Backend,
    pub(crate) index: Arc<Index>,
    pub(crate) spool: Arc<Spool>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) under_way: Arc<StandalonesInFlight>,
    pub(crate) readers: Arc<Readers>,
    groups: Arc<AtomicUsize>,
    pub(crate) worker: WorkerId,
    pub(crate) owner: Arc<Ownership>,
    /// The bodies that this worker's index names.
    pub(crate) bodies: Arc<Bodies>,
    /// The other workers, if the bucket is shared.
    pub(crate) others: Option<Arc<Others>>,
    disk: Arc<dyn Disk>,
    teller: StatusWriter,
    fatal: watch::Receiver<Option<String>>,
    flusher: Arc<Flusher>,
    /// Drawn for this run: seeds of sums and names of own objects come from it.
    run: u64,
    numbers: AtomicU64,
}

/// The blobs and bytes that wait to go up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// The number of blobs of the spool that are not in the backend and the index yet.
    pub blobs: usize,
    /// Bytes of bodies in the directory.
    pub body_bytes: u64,
    /// Bytes of footers in memory.
    pub footer_bytes: usize,
    /// Groups that bodies of the open blob are of, as far as they are counted.
    pub groups: usize,
}

impl Packer {
    /// Opens the store in a directory, or makes one in an empty or missing directory, over a backend. Blocks while
    /// it reads what the directory has. Must be called on a tokio runtime, on which blobs then go up.
    ///
    /// # Errors
    /// [`PackError`].
    pub async fn open(config: PackConfig, backend: Backend) -> Result<Self, PackError> {
        config.check()?;
        let disk = RealDisk::create(&config.dir)?;
        let lock = disk.lock(LOCK_FILE).map_err(|error| match error {
            DiskError::Held { .. } => PackError::InUse {
                dir: config.dir.display().to_string(),
                reason: error.to_string(),
            },
            error => error.into(),
        })?;
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let prices = config.prices.clone();
        backend.set_budgets(config.requests_per_second, prices, config.spend_per_day);
        let root = backend;
        let wanted = config.sharing.as_ref().map(|sharing| &sharing.name);
        let named = naming::name(&*disk, &root, wanted).await?;
        let prefix = named.as_ref().map_or("", |named| named.prefix.as_str());
        let backend = root.below(prefix);
        let claiming = Claiming {
            now_ms: now_ms(),
            take_over: config.take_over,
            base: base(prefix),
            is_alone: named.is_none(),
        };
        let owned = SuspendAwareInstant::now(uptime);
        let worker = identity::establish(&*disk, &backend, claiming).await?.worker;
        let leaving = backend.clone();
        let leftovers = blocking::run(move || leftovers::remove(&leaving, worker)).await?;
        if leftovers > 0 {
            tracing::info!(leftovers, "removed leftovers of uploads");
        }
        let numbering = Arc::new(Numbering::new(backend.clone(), worker, disk.clone(), uptime));
        let takeover_fence =
            TakeoverFence::establish(&backend, worker, numbering.records()).await?;
        let backups = backup::known(&backend, &takeover_fence).await?;
        let report = config.dir.join(LOSS_FILE);
        let rebuild = Rebuild {
            backend: &backend,
            worker,
            takeover_fence: &takeover_fence,
            records: numbering.records(),
            backups: &backups,
            accept_loss: config.accept_loss.then_some(report.as_path()),
            is_own: true,
        };
        let index = open_index(&config.dir.join(INDEX_DIR))?;
        let start = recover(disk.clone(), index, &rebuild, &numbering).await?;
        let cache = Self::open_cache(&*disk, &config, &backend)?;
        let joined = match named {
            Some(named) => {
                let terms = (config.sharing.clone(), config.grace);
                let reads = Reads {
                    cache: cache.clone(),
                    ahead_bytes: config.ahead_bytes,
                    dir: config.dir.clone(),
                    accept_loss: config.accept_loss,
                };
                Some(Joined::join(named, worker, root, terms, reads).await?)
            }
            None => None,
        };
        let shares = joined.is_some();
        let parts = ((worker, owned, numbering), disk, cache, joined);
        let packer = Self::start(config, backend, takeover_fence, parts, start, lock)?;
        if shares {
            let Shared { queue, index, .. } = &*packer.shared;
            buckets::share_own(queue, index)
                .await
                .map_err(|error| PackError::Deferred { reason: error.to_string() })?;
        }
        Ok(packer)
    }

    fn open_cache(
        disk: &dyn Disk,
        config: &PackConfig,
        backend: &Backend,
    ) -> Result<Option<Arc<Cache>>, PackError> {
        if config.cache_bytes == 0 {
            Cache::clear(disk)?;
            return Ok(None);
        }
        let counters = backend.counters().clone();
        Ok(Some(Arc::new(Cache::open(disk, config.cache_bytes, counters)?)))
    }

    fn start(
        config: PackConfig,
        backend: Backend,
        takeover_fence: TakeoverFence,
        ((worker, owned, numbering), disk, cache, joined): (
            OwnerSeen,
            Arc<dyn Disk>,
            Option<Arc<Cache>>,
            Option<Joined>,
        ),
        start: Start,
        lock: larder_env::FileLock,
    ) -> Result<Self, PackError> {
        let Start { index, log, spool, at, backups } = start;
        let (counters, stored) = (backend.counters().clone(), (Arc::new(index), Arc::new(spool)));
        let others = joined.as_ref().map(|joined| joined.others.clone());
        let neighbours = others.clone().map(|others| others as Arc<dyn Neighbours>);
        let parts = Parts::of(stored, &at, counters.clone(), neighbours, now_ms);
        let committing = parts.clone();
        let Parts { queue, index, spool, under_way, marks, groups, fatal, .. } = parts;
        let limits = BlobLimits {
            blob_bytes: config.blob_bytes,
            spool_bytes: config.spool_bytes,
            flush_timeout: config.flush_timeout,
            packing: config.packing.clone(),
            packing_threads: config.packing_threads,
        };
        let (began, committer) = (at.blob + 1, Committer::new(committing, limits, worker, log, at));
        let flusher = Arc::new(Flusher::new(marks.clone(), index.clone()));
        let flushing = flusher.clone();
        let fatal_flush = fatal.clone();
        let threads = vec![
            spawn("pack-commit", move || committer.run())?,
            spawn("pack-index", move || flushing.run(&fatal_flush))?,
        ];
        let fatal_error = fatal.subscribe();
        let (asking, stopping) = ((numbering, spool.clone()), queue.clone());
        let owner = Arc::new(Ownership::new(asking, owned, stopping, fatal, uptime));
        let uploader = Uploader {
            backend: backend.clone(),
            spool: spool.clone(),
            queue: queue.clone(),
            owner: owner.clone(),
            spool_bytes: config.spool_bytes,
        };
        let fetcher = Fetcher::new(backend.clone(), index.clone(), cache, config.ahead_bytes);
        let bodies = Arc::new(Bodies {
            backend: backend.clone(),
            index: index.clone(),
            fetcher: Arc::new(fetcher),
            waiting: Waits::Here { spool: spool.clone(), worker },
        });
        let sharing = joined.map(|joined| joined.start(&index, &spool, &queue, &marks, &owner));
        let sharing = sharing.transpose()?;
        let teller = StatusWriter::open(disk.clone(), counters, config.prices.clone(), worker.0);
        let shared = Arc::new(Shared {
            bodies,
            others,
            disk,
            teller,
            config,
            backend,
            index,
            spool,
            queue,
            under_way,
            readers: Arc::default(),
            groups,
            worker,
            owner,
            fatal: fatal_error,
            flusher,
            // Never that of bundles.
            run: larder_env::rng::unique_u64().max(upload_unit::BUNDLE_RUN + 1),
            numbers: AtomicU64::new(0),
        });
        let uploader = tokio::spawn(uploader.run());
        let maintenance = shared.maintenance(&backups, (takeover_fence, began));
        let maintenance = Arc::new(tokio::sync::Mutex::new(maintenance));
        let period = shared.config.housekeeping_period;
        let housekeeper = tokio::spawn(maintenance::run(maintenance.clone(), period));
        let peer_clock = tokio::spawn(write_status(shared.clone()));
        let asking = tokio::spawn(shared.owner.clone().watch());
        let threads = Mutex::new(threads);
        Ok(Self {
            shared,
            threads,
            uploader,
            housekeeper,
            maintenance,
            peer_clock,
            asking,
            sharing,
            _lock: lock,
        })
    }

    /// Its answers to requests that other workers hand on to it; `None` if it shares its bucket
    /// with nobody.
    pub(crate) fn handed(&self) -> Option<&Handed> {
        self.sharing.as_ref().map(|sharing| &*sharing.handed)
    }

    /// Does now what is due in the background, without waiting for its turn: gives up what other workers have newer,
    /// repacks, removes, backs up.
    ///
    /// # Errors
    /// [`PackError::Backend`] or [`PackError::Deferred`]: what is left is done at the next turn.
    pub async fn run_maintenance(&self) -> Result<MaintenanceReport, PackError> {
        if let Some(sharing) = &self.sharing {
            sharing.version_gc.lock().await.round().await?;
        }
        self.maintenance.lock().await.turn(now_ms()).await
    }

    /// Looks now in the bucket for what other workers changed, without waiting for its turn. Every
    /// blob that was in the bucket before the call is seen after it.
    ///
    /// # Errors
    /// [`PackError`], if not all of them could be looked at.
    pub async fn refresh(&self) -> Result<(), PackError> {
        match &self.shared.others {
            Some(others) => others.refresh().await,
            None => Ok(()),
        }
    }

    /// The state of the other workers, as this one knows it; `None` if the bucket is not shared.
    #[must_use]
    pub fn workers(&self) -> Option<WorkersStatus> {
        self.shared.others.as_ref().map(|others| others.status())
    }

    /// Bytes of bodies in the blobs of the backend, without those that are retired, and how many of them are live.
    ///
    /// # Errors
    /// [`PackError::Index`].
    pub fn blob_use(&self) -> Result<(u64, u64), PackError> {
        Repacker::use_of(&self.shared.index)
    }

    /// Closes the open blob and waits until everything taken before is in the backend. False if the store stopped
    /// before.
    pub async fn flush(&self) -> bool {
        let (reply, last) = oneshot::channel();
        let asked = self.shared.queue.push(Asked::Seal { reply });
        match (asked, last.await) {
            (Ok(()), Ok(last)) => self.shared.uploaded(last).await,
            _ => false,
        }
    }

    /// Says why the store cannot go on, once it cannot.
    #[must_use]
    pub fn fatal(&self) -> watch::Receiver<Option<String>> {
        self.shared.fatal.clone()
    }

    /// The worker's ownership of its place in the backend.
    #[must_use]
    pub fn owner(&self) -> OwnerStatus {
        self.shared.owner.status()
    }

    /// The counters of the store.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        self.shared.backend.counters()
    }

    /// The blobs and bytes that wait to go up.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        let (body_bytes, footer_bytes) = self.shared.spool.waiting_bytes();
        let groups = self.shared.groups.load(Ordering::Relaxed);
        Waiting { blobs: self.shared.spool.waiting(), body_bytes, footer_bytes, groups }
    }

    /// Bytes that the index takes on disk.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.shared.index.disk_bytes()
    }

    /// The status of the worker, with its bill.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.teller.status(self.shared.moment(), true)
    }

    /// Stops it once everything taken is durable in the directory; what is not uploaded goes up after the next
    /// start. Blocks.
    pub fn close(&self) {
        self.uploader.abort();
        self.housekeeper.abort();
        self.peer_clock.abort();
        self.asking.abort();
        if let Some(sharing) = &self.sharing {
            sharing.tasks.stop();
        }
        self.shared.queue.stop();
        self.shared.flusher.stop();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store had panicked");
            }
        }
        if let Some(others) = &self.shared.others {
            others.flush();
        }
        self.shared.teller.write_status(self.shared.moment(), false);
    }
}

/// Writes down how the store is, again and again.
async fn write_status(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(STATUS_PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let peer_clock = shared.clone();
        let reported = tokio::task::spawn_blocking(move || peer_clock.write_status());
        if reported.await.is_err() {
            return;
        }
    }
}

impl Drop for Packer {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn maintenance(
        &self,
        heads: &[Head],
        (takeover_fence, began): (TakeoverFence, u64),
    ) -> Maintenance {
        let backups = Arc::new(Backups::of(heads));
        let pace =
            || TokenBucket::new(BACKGROUND_REQUESTS_PER_S, self.config.background_bytes_per_s);
        let counters = self.backend.counters();
        let own = heads.iter().rev().find(|head| head.id.worker == self.worker);
        Maintenance {
            repacker: Repacker {
                backend: self.backend.clone(),
                index: self.index.clone(),
                queue: self.queue.clone(),
                counters: counters.clone(),
                backups: backups.clone(),
                pace: pace(),
                below_percent: self.config.repack_below_percent,
                blob_bytes: self.config.blob_bytes,
                set_aside: RepackBackoff::default(),
            },
            remover: Remover {
                backend: self.backend.clone(),
                index: self.index.clone(),
                spool: self.spool.clone(),
                queue: self.queue.clone(),
                readers: self.readers.clone(),
                counters: counters.clone(),
                worker: self.worker,
                owner: self.owner.clone(),
                takeover_fence,
                counting: Counting::default(),
                has_void: false,
                grace: self.config.grace,
                pace: pace(),
                unwanted: BTreeMap::new(),
                began,
                unrequested: 0,
                vouched: 0,
            },
            backups: BackupWriter {
                backend: self.backend.clone(),
                spool: self.spool.clone(),
                queue: self.queue.clone(),
                counters: counters.clone(),
                backups,
                worker: self.worker,
                owner: self.owner.clone(),
                pace: pace(),
                interval: self.config.backup_interval,
                last: tokio::time::Instant::now(),
                through: own.map_or(0, |head| head.blob),
                tried: 0,
            },
            looked: None,
        }
    }

    /// A seed that no other body has.
    pub(crate) fn seed(&self) -> u64 {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        checksum::seed_of(&Request { session: SessionId(self.run), number, floor: 0 })
    }

    /// A name that no other body has.
    pub(crate) fn own_id(&self) -> StandaloneId {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        StandaloneId { worker: self.worker, run: self.run, number }
    }

    fn write_status(&self) {
        self.teller.write_status(self.moment(), true);
        if let Some(others) = &self.others {
            others.write_status(&*self.disk);
        }
    }

    fn moment(&self) -> Moment {
        let (waiting_bytes, _) = self.spool.waiting_bytes();
        Moment {
            waiting_blobs: self.spool.waiting() as u64,
            waiting_bytes,
            requests_max: self.backend.requests_max(),
            budget_spent: self.backend.is_spent(),
            cache_bytes: self.bodies.fetcher.cache_bytes(),
        }
    }

    /// Waits until the backend has every blob up to this one; false if the store stops before.
    pub(crate) async fn uploaded(&self, seq: u64) -> bool {
        let (mut uploaded, mut fatal) = (self.spool.uploaded(), self.fatal.clone());
        tokio::select! {
            done = uploaded.wait_for(|through| *through >= seq) => done.is_ok(),
            _ = fatal.wait_for(Option::is_some) => false,
        }
    }
}

/// The index in a directory, and how far it is. Half an index is removed, by steps that a crash may cut off: an empty one
/// says nothing wrong.
fn open_index(dir: &Path) -> Result<(Index, Option<Applied>), PackError> {
    if let (index, Some(applied)) = Index::open(dir)? {
        return Ok((index, Some(applied)));
    }
    LsmKv::remove(dir)?;
    Index::open(dir)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, PackError> {
    Ok(std::thread::Builder::new().name(name.to_owned()).spawn(run)?)
}

#[cfg(test)]
mod tests;
