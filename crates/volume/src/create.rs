//! Making a volume, so that after a crash it is there as a whole or not at all.

use std::io::IoSlice;
use std::sync::Arc;

use larder_env::disk::split_name;
use larder_env::{Disk, DiskError, DiskFile, OpenMode};
use larder_types::{BootId, DiskId};

use crate::error::VolumeError;
use crate::limits::{PV_BYTES_MAX, PV_BYTES_STEP, PV_COUNT_MAX};
use crate::v1::{PAGE_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use crate::volume::{Volume, read_superblock};

static ZEROS: [u8; 256 * PAGE_BYTES] = [0; 256 * PAGE_BYTES];

const _: () =
    assert!(PV_BYTES_STEP.is_multiple_of(256 * PAGE_BYTES as u64), "zeros end where data begins");

/// The identity of a disk and its division; fixed for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeConfig {
    /// The cluster's own number.
    pub cluster: u64,
    /// The disk's number in the cluster.
    pub disk_id: DiskId,
    /// Bytes of each PV, a multiple of 1 MiB up to 16 GiB. They are reserved as they are used.
    pub pv_bytes: u64,
    /// The most PVs that the disk can have; each costs 8 KiB at once.
    pub pv_count_max: u32,
}

impl VolumeConfig {
    fn check(&self) -> Result<(), VolumeError> {
        if !(PV_BYTES_STEP..=PV_BYTES_MAX).contains(&self.pv_bytes)
            || !self.pv_bytes.is_multiple_of(PV_BYTES_STEP)
        {
            return Err(VolumeError::Config {
                field: "pv_bytes",
                found: self.pv_bytes,
                rule: "a multiple of 1 MiB from 1 MiB to 16 GiB",
            });
        }
        if !(1..=PV_COUNT_MAX).contains(&self.pv_count_max) {
            return Err(VolumeError::Config {
                field: "pv_count_max",
                found: u64::from(self.pv_count_max),
                rule: "from 1 to 16384",
            });
        }
        Ok(())
    }
}

impl Volume {
    /// Makes a volume and opens it. `name` is a new file, or the absolute path of a block device,
    /// whose content is lost.
    ///
    /// # Errors
    /// [`VolumeError::Config`]; [`VolumeError::Exists`] if there is a volume, or a file, already; as
    /// the disk says. A file is there only after `Ok`; a half-made one is made anew by the next call.
    pub fn create(
        disk: &dyn Disk,
        name: &str,
        config: VolumeConfig,
        boot: BootId,
    ) -> Result<Self, VolumeError> {
        config.check()?;
        let superblock = Superblock {
            cluster: config.cluster,
            disk: config.disk_id,
            pv_bytes: config.pv_bytes,
            pv_count: config.pv_count_max,
        };
        if name.starts_with('/') {
            create_on_device(disk, name, &superblock)?;
        } else {
            create_file(disk, name, &superblock)?;
        }
        Self::open(disk, name, boot)
    }
}

fn create_file(disk: &dyn Disk, name: &str, superblock: &Superblock) -> Result<(), VolumeError> {
    match disk.open(name, OpenMode::Read) {
        Ok(_) => return Err(VolumeError::Exists { name: name.to_owned() }),
        Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let draft = format!("{name}.draft");
    match disk.remove(&draft) {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let file = disk.open(&draft, OpenMode::CreateNew)?;
    // Headers never meet a full disk: floors can be raised, and space freed, when nothing else can.
    file.allocate(0, superblock.data_start())?;
    write_superblock(&file, superblock)?;
    disk.rename(&draft, name)?;
    disk.sync_dir(split_name(name)?.0)?;
    Ok(())
}

/// A device cannot appear as a whole, so the superblock comes last.
fn create_on_device(
    disk: &dyn Disk,
    name: &str,
    superblock: &Superblock,
) -> Result<(), VolumeError> {
    let file = disk.open(name, OpenMode::ReadWrite)?;
    match read_superblock(name, |offset, bytes| file.read_at(offset, bytes)) {
        Ok(_) | Err(VolumeError::Version { .. }) => {
            return Err(VolumeError::Exists { name: name.to_owned() });
        }
        Err(VolumeError::Damaged { .. }) => {}
        Err(error) => return Err(error),
    }
    file.allocate(0, superblock.data_start() + superblock.pv_bytes)?;
    for offset in (0..superblock.data_start()).step_by(ZEROS.len()) {
        file.write_at(offset, &[IoSlice::new(&ZEROS)])?;
    }
    file.sync()?;
    write_superblock(&file, superblock)
}

fn write_superblock(file: &Arc<dyn DiskFile>, superblock: &Superblock) -> Result<(), VolumeError> {
    let page = superblock.encode();
    for offset in SUPERBLOCK_OFFSETS {
        file.write_at(offset, &[IoSlice::new(&page)])?;
    }
    Ok(file.sync()?)
}
