//! Describes a volume, for inspection. Opens for reading only and changes nothing.

use std::sync::Arc;

use larder_env::{Disk, OpenMode};
use larder_types::limits::BLOCK_BYTES;
use larder_types::{DiskId, Grant, GrantKey, LvId, MapVersion, PvId, View};
use parking_lot::RwLock;

use crate::buffers::Buffers;
use crate::error::VolumeError;
use crate::reader::VolumeReader;
use crate::v1::{Found, Header, PAGE_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use crate::volume::read_superblock;

/// A volume as its superblock and headers describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The cluster's own number.
    pub cluster: u64,
    /// The disk's number in the cluster.
    pub disk: DiskId,
    /// Bytes of each PV.
    pub pv_bytes: u64,
    /// The most PVs that it can have.
    pub pv_count_max: u32,
    /// Offset of PV 0; the others follow it.
    pub data_start: u64,
    /// Copies of the superblock that are good: 2, or 1 if one is damaged.
    pub superblock_copies: usize,
    /// PVs in use.
    pub pvs: Vec<PvDescription>,
    /// PVs that were in use and are nobody's now, each with the map of which that is known.
    pub let_go: Vec<(PvId, MapVersion)>,
    /// PVs whose header is lost.
    pub damaged: Vec<PvId>,
}

/// A PV in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PvDescription {
    /// The range.
    pub pv: PvId,
    /// Its owner.
    pub lv: LvId,
    /// Index of the replica in the LV.
    pub replica: u8,
    /// View in force.
    pub view: View,
    /// Floor in force.
    pub floor: GrantKey,
    /// Voided grants that view and floor do not exclude already.
    pub voids: Vec<Grant>,
    /// Bytes reserved from its start, as recorded.
    pub provisioned_bytes: u64,
    /// The number of times that its header was written.
    pub generation: u64,
    /// The newest map under which it was given; 0 if that was not stored yet.
    pub given: MapVersion,
}

impl From<Header> for PvDescription {
    fn from(header: Header) -> Self {
        Self {
            pv: header.pv,
            lv: header.lv,
            replica: header.replica,
            view: header.view,
            floor: header.floor,
            voids: header.voids,
            provisioned_bytes: u64::from(header.provisioned_blocks) * u64::from(BLOCK_BYTES),
            generation: header.generation,
            given: header.given,
        }
    }
}

/// A reader of a volume that nobody runs, for inspection. PVs whose header is lost cannot be read.
///
/// # Errors
/// As [`describe`].
pub fn reader(disk: &dyn Disk, name: &str) -> Result<VolumeReader, VolumeError> {
    let file = disk.open(name, OpenMode::Read)?;
    let read = |offset, bytes: &mut [u8]| file.read_at(offset, bytes);
    let superblock = read_superblock(name, read)?;
    let headers = superblock.read_headers(read)?;
    let bases = headers.into_iter().enumerate().filter_map(|(index, found)| match found {
        Found::InUse(header, _) => Some((header.lv, superblock.pv_offset(PvId(index as u32)))),
        Found::Free | Found::LetGo(_) | Found::Damaged => None,
    });
    let bases = Arc::new(RwLock::new(bases.collect()));
    let (pv_blocks, buffers) = (superblock.pv_blocks(), Buffers::default());
    Ok(VolumeReader { file, bases, pv_blocks, buffers })
}

/// Describes the volume in a file or on a device.
///
/// # Errors
/// [`VolumeError`] if there is none, or it cannot be read.
pub fn describe(disk: &dyn Disk, name: &str) -> Result<Description, VolumeError> {
    let file = disk.open(name, OpenMode::Read)?;
    let read = |offset, bytes: &mut [u8]| file.read_at(offset, bytes);
    let superblock = read_superblock(name, read)?;
    let mut superblock_copies = 0;
    for offset in SUPERBLOCK_OFFSETS {
        let mut page = [0; PAGE_BYTES];
        let is_read = read(offset, &mut page).is_ok();
        let is_good = is_read && Superblock::decode(&page) == Ok(superblock);
        superblock_copies += usize::from(is_good);
    }
    let (mut pvs, mut let_go, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    for (index, found) in superblock.read_headers(read)?.into_iter().enumerate() {
        match found {
            Found::Free => {}
            Found::InUse(header, _) => pvs.push(header.into()),
            Found::LetGo(header) => let_go.push((PvId(index as u32), header.given)),
            Found::Damaged => damaged.push(PvId(index as u32)),
        }
    }
    Ok(Description {
        cluster: superblock.cluster,
        disk: superblock.disk,
        pv_bytes: superblock.pv_bytes,
        pv_count_max: superblock.pv_count,
        data_start: superblock.data_start(),
        superblock_copies,
        pvs,
        let_go,
        damaged,
    })
}
