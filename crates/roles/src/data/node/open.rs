//! Opens a data server of a cluster: its data file or device, or a new one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use larder_env::{Disk, DiskError, FileLock, OpenMode, RealDisk, threads};
use larder_protocol::manager::state::{Command, DiskRecord, DiskState, Outcome, Refusal, Topology};
use larder_protocol::placement::Weight;
use larder_types::limits::BLOCK_BYTES;
use larder_types::{BootId, DiskId, PvId, ServerId};
use larder_volume::{Volume, VolumeConfig, VolumeError};
use parking_lot::Mutex;

use super::freed::Freed;
use super::reads::Reads;
use super::{CopyCounters, DataNode, Running};
use crate::data::disk::DataServer;
use crate::directory::{DATA_FILE, LOCK_FILE};
use crate::limits::LVS_PER_PG_MIN;
use crate::managers::{DeferredOrders, Managers, NotProposed};

/// The parameters that a data server is opened with.
#[derive(Debug, Clone)]
pub struct DataNodeConfig {
    /// This server.
    pub me: ServerId,
    /// Its directory.
    pub root: PathBuf,
    /// File name in it, or absolute path of a block device, for the data.
    pub data: String,
}

/// The reason why a data server did not open, sorted by what the operator should do.
#[derive(Debug, thiserror::Error)]
pub enum DataNodeError {
    /// Stop the other server, or name another directory.
    #[error("{root} is in use by another server: {reason}")]
    InUse {
        /// The directory.
        root: String,
        /// The reason that the lock gives.
        reason: String,
    },
    /// Start again once the cluster is founded.
    #[error("this server knows of no cluster yet")]
    NoMap,
    /// Start again once a majority of managers runs.
    #[error("the managers have not agreed on this server's disk: {0}")]
    NotAgreed(NotProposed),
    /// Join anew, or correct the configuration.
    #[error("the managers refuse this server's disk: {0}")]
    Refused(Refusal),
    /// Restore the data, or have the disk removed from the cluster so that it is rebuilt elsewhere.
    #[error(
        "disk {disk} of this server has data according to the map, but {name} is not there: restore it, or \
         remove the disk from the cluster"
    )]
    Lost {
        /// The disk.
        disk: DiskId,
        /// Where it should lie.
        name: String,
    },
    /// Move the file away, or empty the device; or join anew.
    #[error(
        "disk {disk} was removed from the cluster for good, and {name} is what it held: put it away, and the server \
         takes up a new disk in its place"
    )]
    Removed {
        /// The disk.
        disk: DiskId,
        /// Where it lies.
        name: String,
    },
    /// Give the server its own data back.
    #[error("{name} belongs to disk {found} of cluster {cluster:016x}, which is not this server's")]
    Foreign {
        /// File.
        name: String,
        /// Disk.
        found: DiskId,
        /// Cluster.
        cluster: u64,
    },
    /// The disk of the directory failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The data file or device.
    #[error("the data: {0}")]
    Volume(#[from] VolumeError),
    /// The system gives no thread.
    #[error("the system does not let the server run: {0}")]
    System(std::io::Error),
}

impl DataNode {
    /// Opens the disk, or a new one, which the managers first add to the map.
    ///
    /// # Errors
    /// [`DataNodeError`].
    pub async fn open(
        config: &DataNodeConfig,
        boot: BootId,
        managers: Arc<dyn Managers>,
    ) -> Result<Arc<Self>, DataNodeError> {
        let disk = RealDisk::open(&config.root)?;
        let lock = disk.lock(LOCK_FILE).map_err(|error| match error {
            DiskError::Held { .. } => DataNodeError::InUse {
                root: config.root.display().to_string(),
                reason: error.to_string(),
            },
            error => error.into(),
        })?;
        let capacity_bytes = disk.capacity_bytes()?;
        let name = if config.data.is_empty() { DATA_FILE } else { &config.data };
        let (volume, id) = if exists(&disk, name)? {
            existing(&disk, name, boot, config.me, &managers.map())?
        } else {
            made(&disk, name, boot, config.me, &*managers).await?
        };
        let taken =
            OpenedDisk { disk: Arc::new(disk), capacity_bytes, volume, id, lock: Some(lock) };
        Self::run(taken, (config.me, boot), name, managers)
    }

    /// Serves a disk that was opened.
    pub(crate) fn run(
        OpenedDisk { disk, capacity_bytes, volume, id, lock }: OpenedDisk,
        (me, boot): (ServerId, BootId),
        name: &str,
        managers: Arc<dyn Managers>,
    ) -> Result<Arc<Self>, DataNodeError> {
        let server = DataServer::new(disk, capacity_bytes, &volume, boot)?;
        let runs = server.clone();
        let thread = threads::spawn("disk", move || runs.disk_loop(volume))
            .map_err(DataNodeError::System)?;
        let running = Mutex::new(Some(Running { thread, lock }));
        let (name, reads) = (name.to_owned(), Reads::new(server.clone()));
        Ok(Arc::new(Self {
            me,
            server,
            disk: id,
            name,
            deferred_orders: DeferredOrders::new(managers.clone()),
            managers,
            presence: OnceLock::new(),
            running,
            reads,
            copies: CopyCounters::default(),
            freed: Freed::default(),
        }))
    }
}

/// A disk that was opened.
pub(crate) struct OpenedDisk {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) capacity_bytes: u64,
    pub(crate) volume: Volume,
    pub(crate) id: DiskId,
    pub(crate) lock: Option<FileLock>,
}

fn exists(disk: &RealDisk, name: &str) -> Result<bool, DataNodeError> {
    if Path::new(name).is_absolute() {
        return Ok(!matches!(
            larder_volume::describe(disk, name),
            Err(VolumeError::Damaged { reason: "there is no superblock", .. })
        ));
    }
    match disk.open(name, OpenMode::Read) {
        Ok(_) => Ok(true),
        Err(DiskError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The error of a disk that was removed from the cluster.
pub(super) fn removed(
    map: &Topology,
    me: ServerId,
    disk: DiskId,
    name: &str,
) -> Option<DataNodeError> {
    let known = map.servers.get(&me).and_then(|record| record.disks.get(&disk));
    let is_removed = known.is_some_and(|known| known.state == DiskState::Removed);
    is_removed.then(|| DataNodeError::Removed { disk, name: name.to_owned() })
}

/// Disks that the map knows this server to have.
fn disks(map: &Topology, me: ServerId) -> impl Iterator<Item = (DiskId, &DiskRecord)> {
    let record = map.servers.get(&me).into_iter();
    let disks = record.flat_map(|record| &record.disks);
    disks.filter(|(_, it)| it.state != DiskState::Removed).map(|(id, it)| (*id, it))
}

fn existing(
    disk: &RealDisk,
    name: &str,
    boot: BootId,
    me: ServerId,
    map: &Topology,
) -> Result<(Volume, DiskId), DataNodeError> {
    let volume = Volume::open(disk, name, boot)?;
    let (cluster, id) = volume.identity();
    let is_ours = map.founded.is_some_and(|(ours, _)| ours.0 == cluster);
    if let Some(removed) = removed(map, me, id, name).filter(|_| is_ours) {
        return Err(removed);
    }
    if !is_ours || !disks(map, me).any(|(known, _)| known == id) {
        return Err(DataNodeError::Foreign { name: name.to_owned(), found: id, cluster });
    }
    Ok((volume, id))
}

/// Creates a data file: for a disk that the map has already, if it has had no PV yet, or for a new disk.
async fn made(
    disk: &RealDisk,
    name: &str,
    boot: BootId,
    me: ServerId,
    managers: &dyn Managers,
) -> Result<(Volume, DiskId), DataNodeError> {
    let map = managers.map();
    let (cluster, settings) = map.founded.ok_or(DataNodeError::NoMap)?;
    let pv_bytes = u64::from(settings.lv_blocks) * u64::from(BLOCK_BYTES);
    let known = disks(&map, me).next().map(|(id, record)| (id, record.clone()));
    let (id, pv_count) = match known {
        Some((id, record)) if record.next_pv == PvId(0) => (id, record.pv_count),
        Some((disk, _)) => return Err(DataNodeError::Lost { disk, name: name.to_owned() }),
        None => {
            let pv_count = room(disk, name, pv_bytes, settings.pg_count)?;
            // A disk's weight is its size.
            let weight = Weight(pv_count.max(1));
            let command = Command::AddDisk(me, weight, pv_count);
            match agreed(managers, command).await? {
                Outcome::Disk(id) => (id, pv_count),
                other => unreachable!("adding a disk gives a disk, not {other:?}"),
            }
        }
    };
    until_kept(managers, me, id).await?;
    let config = VolumeConfig { cluster: cluster.0, disk_id: id, pv_bytes, pv_count_max: pv_count };
    Ok((Volume::create(disk, name, config, boot)?, id))
}

/// Waits until this server has kept a map that has the disk, so that a map made anew from it gives the id to no other disk.
async fn until_kept(
    managers: &dyn Managers,
    me: ServerId,
    disk: DiskId,
) -> Result<(), DataNodeError> {
    let (mut shown, mut kept) = (managers.versions(), managers.kept_versions());
    // The channels close only when the process ends.
    let ended = |_| DataNodeError::NoMap;
    while !disks(&managers.map(), me).any(|(known, _)| known == disk) {
        shown.changed().await.map_err(ended)?;
    }
    let named = managers.map().version;
    while managers.kept() < named {
        kept.changed().await.map_err(ended)?;
    }
    Ok(())
}

/// PVs that there is room for.
fn room(disk: &RealDisk, name: &str, pv_bytes: u64, pg_count: u32) -> Result<u32, DataNodeError> {
    let count = if Path::new(name).is_absolute() {
        // One range less, for the headers.
        (disk.open(name, OpenMode::Read)?.len()? / pv_bytes).saturating_sub(1)
    } else {
        places_in_file(disk.free_bytes()?, pv_bytes, pg_count)
    };
    Ok(count.min(u64::from(larder_volume::limits::PV_COUNT_MAX)) as u32)
}

/// PVs of a file in a file system with so many free bytes. Its ranges are sparse. Every PG needs some however small the disk is, and
/// leaves a part of each free: so there are more of them than there is room for, which [`DataNode::room`] tells.
fn places_in_file(free_bytes: u64, pv_bytes: u64, pg_count: u32) -> u64 {
    free_bytes / pv_bytes + u64::from(pg_count) * LVS_PER_PG_MIN
}

/// Has the managers commit a command. If it took effect without a confirmation, the map shows that at the next start.
async fn agreed(managers: &dyn Managers, command: Command) -> Result<Outcome, DataNodeError> {
    let applied = managers.propose(command).await.map_err(DataNodeError::NotAgreed)?;
    applied.map_err(DataNodeError::Refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_places_for_its_room_and_for_what_all_groups_need() {
        const GIB: u64 = 1 << 30;
        assert_eq!(places_in_file(600 * GIB, GIB, 256), 600 + 512);
        assert_eq!(places_in_file(GIB / 2, GIB, 256), 512, "two of each group");
    }
}
