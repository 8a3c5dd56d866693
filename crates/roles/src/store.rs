//! A store: all four roles in one process, on one directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_env::{Disk, DiskError, FileLock, RealDisk};
use larder_metalog::LogConfig;
use larder_types::limits::{BLOCK_BYTES, PG_COUNT_MAX};
use larder_types::{BootId, DiskId, RegionId, ServerId};
use larder_volume::{Volume, VolumeConfig, VolumeError};

use crate::data::DataServer;
pub use crate::directory::{DATA_FILE, LOCK_FILE};
use crate::limits::LVS_PER_PG_MIN;
use crate::manager::{Genesis, LocalManager, LocalManagerError};
use crate::meta::{BackgroundConfig, KV_DIR, LOG_DIR, Meta, MetaConfig, OpenError, Threads};
use crate::proxy::Proxy;

/// Least bytes of an LV.
const LV_BYTES_MIN: u64 = 64 * 1024 * 1024;
/// Most bytes of an LV.
const LV_BYTES_MAX: u64 = 16 * 1024 * 1024 * 1024;
/// PVs that a disk is cut into, about.
const PVS_PER_DISK: u64 = 512;

/// PGs of a store that is told nothing else.
pub const PG_COUNT: u32 = 256;

const _: () = assert!(LV_BYTES_MIN <= LV_BYTES_MAX, "LV sizes are a range");

/// The parameters that a store is opened with.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Directory.
    pub root: PathBuf,
    /// File name in it, or absolute path of a block device, for the data.
    pub data: String,
    /// PGs of a store that is new, a power of two; [`PG_COUNT`] or what the device has room for if
    /// that is left open.
    pub pg_count: Option<u32>,
    /// Bytes of an LV of a store that is new, a power of two; what goes with the size of the disk if that is left open.
    pub lv_bytes: Option<u64>,
    /// Bytes of a log segment.
    pub log_segment_bytes: u64,
    /// Its number among regions; [`RegionId::OWN`] if it is alone.
    pub region: RegionId,
}

/// The reason why a store did not open, sorted by what the operator should do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Stop the other server, or name another directory.
    #[error("{root} is in use by another server: {reason}")]
    InUse {
        /// The directory.
        root: String,
        /// The reason that the lock gives.
        reason: String,
    },
    /// Fix the configuration.
    #[error("{field}: {found} is not allowed; use {remedy}")]
    Config {
        /// The setting.
        field: &'static str,
        /// Its value.
        found: String,
        /// The values that are allowed.
        remedy: String,
    },
    /// The disk of the directory failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The data file or device.
    #[error("the data: {0}")]
    Volume(#[from] VolumeError),
    /// The map.
    #[error(transparent)]
    Manager(#[from] LocalManagerError),
    /// Log, index or metadata.
    #[error(transparent)]
    Meta(#[from] OpenError),
}

impl StoreError {
    /// Of a lock that was not had: only one that is held says that somebody else is there.
    pub(crate) fn of_lock(root: &Path, error: DiskError) -> Self {
        match error {
            DiskError::Held { .. } => {
                Self::InUse { root: root.display().to_string(), reason: error.to_string() }
            }
            error => error.into(),
        }
    }
}

/// An open store.
pub struct Store {
    meta: Arc<Meta>,
    data: Arc<DataServer>,
    proxy: Arc<Proxy>,
    manager: Arc<LocalManager>,
    threads: Threads,
    disk: Arc<dyn Disk>,
    _lock: Option<FileLock>,
}

impl Store {
    /// Opens the store in a directory, or makes one in an empty or missing directory.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        check(config)?;
        let disk = RealDisk::open(&config.root)?;
        let lock =
            disk.lock(LOCK_FILE).map_err(|error| StoreError::of_lock(&config.root, error))?;
        let capacity_bytes = disk.capacity_bytes()?;
        Self::open_on(Arc::new(disk), Some(lock), capacity_bytes, config, genesis)
    }

    /// Opens the store on an exclusive disk of so many bytes; its index is in the directory.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) fn open_on(
        disk: Arc<dyn Disk>,
        lock: Option<FileLock>,
        capacity_bytes: u64,
        config: &StoreConfig,
        genesis: impl FnOnce(&dyn Disk, &StoreConfig) -> Result<Genesis, StoreError>,
    ) -> Result<Self, StoreError> {
        let begin = || {
            check_map_is_not_lost(&*disk, config)?;
            genesis(&*disk, config)
        };
        let manager = Arc::new(LocalManager::open(disk.clone(), config.region, begin)?);
        let boot = BootId(larder_env::rng::unique_u64());
        let volume = open_volume(&disk, &manager, &config.data, boot)?;
        let data = DataServer::new(disk.clone(), capacity_bytes, &volume, boot)?;
        let log = LogConfig {
            segment_bytes: config.log_segment_bytes,
            ..LogConfig::new(larder_env::rng::unique_u64())
        };
        let meta_config = MetaConfig { me: ServerId(0), log };
        let (meta, threads) = Meta::open(
            disk.clone(),
            &config.root,
            manager.clone(),
            data.clone(),
            volume,
            &meta_config,
        )?;
        let proxy = Arc::new(Proxy::new(meta.clone(), data.clone(), manager.clone()));
        Ok(Self { meta, data, proxy, manager, threads, disk, _lock: lock })
    }

    /// The store as its gateways see it.
    #[must_use]
    pub fn proxy(&self) -> &Arc<Proxy> {
        &self.proxy
    }

    /// The meta server.
    #[must_use]
    pub fn meta(&self) -> &Arc<Meta> {
        &self.meta
    }

    /// Begins its background work, which lasts as long as the store or the runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start_background(&self, config: &BackgroundConfig) {
        self.meta.start_background(self.disk.clone(), config);
    }

    /// The data server.
    #[must_use]
    pub fn data(&self) -> &Arc<DataServer> {
        &self.data
    }

    /// The manager.
    #[must_use]
    pub fn manager(&self) -> &Arc<LocalManager> {
        &self.manager
    }

    /// Stops the store once everything that was taken is durable.
    pub fn close(self) {
        self.meta.stop();
        self.data.stop();
        self.threads.join();
    }
}

fn check(config: &StoreConfig) -> Result<(), StoreError> {
    if let Some(pg_count) = config.pg_count
        && (!pg_count.is_power_of_two() || pg_count > PG_COUNT_MAX)
    {
        return Err(StoreError::Config {
            field: "pg_count",
            found: pg_count.to_string(),
            remedy: format!("a power of two from 1 to {PG_COUNT_MAX}"),
        });
    }
    Ok(())
}

/// Refuses a directory that has no map, but what only a store that has one makes: a new map would belong to nothing of it.
pub(crate) fn check_map_is_not_lost(
    disk: &dyn Disk,
    config: &StoreConfig,
) -> Result<(), StoreError> {
    let has_files = |dir| match disk.list(dir) {
        Err(DiskError::NotFound { .. }) => Ok(false),
        listed => listed.map(|files| !files.is_empty()),
    };
    let left = if has_files(LOG_DIR)? {
        "a log".to_owned()
    } else if has_files(KV_DIR)? {
        "an index".to_owned()
    } else if has_volume(disk, &config.data)? {
        format!("data of a store in {}", config.data)
    } else {
        return Ok(());
    };
    Err(LocalManagerError::Unusable(format!("it is missing, though there is {left}")).into())
}

/// Returns true if there is a data file, or a device with a volume on it.
fn has_volume(disk: &dyn Disk, name: &str) -> Result<bool, StoreError> {
    if Path::new(name).is_absolute() {
        let described = larder_volume::describe(disk, name);
        return Ok(matches!(described, Ok(_) | Err(VolumeError::Version { .. })));
    }
    match disk.open(name, larder_env::OpenMode::Read) {
        Err(DiskError::NotFound { .. }) => Ok(false),
        opened => Ok(opened.map(|_| true)?),
    }
}

/// The settings that a new store is made with: LVs of a few hundredths of a percent of the disk.
pub(crate) fn genesis(disk: &dyn Disk, config: &StoreConfig) -> Result<Genesis, StoreError> {
    let device_bytes = match disk.open(&config.data, larder_env::OpenMode::Read) {
        Ok(device) if Path::new(&config.data).is_absolute() => Some(device.len()?),
        Ok(_) | Err(DiskError::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let capacity = device_bytes.map_or_else(|| disk.free_bytes(), Ok)?;
    let lv_bytes = lv_bytes(capacity, config)?;
    let (pg_count, pv_count) = match device_bytes {
        Some(_) => cut_device(capacity, lv_bytes, config)?,
        // In a file the ranges are sparse, and every PG needs one of its own however small the disk is.
        None => {
            let pg_count = config.pg_count.unwrap_or(PG_COUNT);
            (pg_count, capacity / lv_bytes + u64::from(pg_count) * LVS_PER_PG_MIN)
        }
    };
    Ok(Genesis {
        pg_count,
        lv_blocks: (lv_bytes / u64::from(BLOCK_BYTES)) as u32,
        pv_count_max: pv_count.min(u64::from(larder_volume::limits::PV_COUNT_MAX)) as u32,
    })
}

/// Bytes of an LV on a disk of so many bytes.
fn lv_bytes(capacity: u64, config: &StoreConfig) -> Result<u64, StoreError> {
    let allowed = LV_BYTES_MIN..=LV_BYTES_MAX;
    match config.lv_bytes {
        Some(bytes) if !bytes.is_power_of_two() || !allowed.contains(&bytes) => {
            Err(StoreError::Config {
                field: "lv_bytes",
                found: bytes.to_string(),
                remedy: format!("a power of two from {LV_BYTES_MIN} to {LV_BYTES_MAX}"),
            })
        }
        Some(bytes) => Ok(bytes),
        None => {
            let wanted = (capacity / PVS_PER_DISK).next_power_of_two();
            Ok(wanted.clamp(LV_BYTES_MIN, LV_BYTES_MAX))
        }
    }
}

/// PGs and PVs of a device, whose ranges are all real.
fn cut_device(
    capacity: u64,
    lv_bytes: u64,
    config: &StoreConfig,
) -> Result<(u32, u64), StoreError> {
    // One range less, for the headers.
    let pv_count = (capacity / lv_bytes).saturating_sub(1);
    let room = pv_count / LVS_PER_PG_MIN;
    let mib = |bytes: u64| bytes.div_ceil(1024 * 1024);
    if room == 0 {
        return Err(StoreError::Config {
            field: "data",
            found: format!("{}, a device of {} MiB,", config.data, mib(capacity)),
            remedy: format!("one of at least {} MiB", mib((LVS_PER_PG_MIN + 1) * lv_bytes)),
        });
    }
    let most = (1 << room.ilog2()).min(u64::from(PG_COUNT_MAX)) as u32;
    match config.pg_count {
        Some(pg_count) if pg_count > most => Err(StoreError::Config {
            field: "pg_count",
            found: format!("{pg_count} on a device of {} MiB", mib(capacity)),
            remedy: format!("at most {most}, or leave it out"),
        }),
        Some(pg_count) => Ok((pg_count, pv_count)),
        None => Ok((most.min(PG_COUNT), pv_count)),
    }
}

fn open_volume(
    disk: &Arc<dyn Disk>,
    manager: &LocalManager,
    name: &str,
    boot: BootId,
) -> Result<Volume, StoreError> {
    let map = manager.map();
    let missing = match disk.open(name, larder_env::OpenMode::Read) {
        Ok(_) => Path::new(name).is_absolute(),
        Err(DiskError::NotFound { .. }) => true,
        Err(error) => return Err(error.into()),
    };
    // A store whose map names LVs has data somewhere: nothing is made in its place.
    if missing && map.map.lvs.is_empty() {
        let config = VolumeConfig {
            cluster: map.map.cluster,
            disk_id: DiskId(0),
            pv_bytes: u64::from(map.map.lv_blocks) * u64::from(BLOCK_BYTES),
            pv_count_max: map.map.pv_count_max,
        };
        match Volume::create(&**disk, name, config, boot) {
            Err(VolumeError::Exists { .. }) => {}
            made => return Ok(made?),
        }
    }
    let volume = Volume::open(&**disk, name, boot)?;
    if volume.identity() != (map.map.cluster, DiskId(0)) {
        return Err(StoreError::Config {
            field: "data",
            found: name.to_owned(),
            remedy: "the data file or device that was made with this directory".to_owned(),
        });
    }
    Ok(volume)
}
