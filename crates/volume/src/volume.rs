//! One disk: its state, and how it comes back after a restart.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;

use larder_env::{Disk, DiskError, DiskFile, OpenMode};
use larder_types::limits::BLOCK_BYTES;
use larder_types::{BootId, DiskId, Grant, LvId, PvId};
use parking_lot::RwLock;

use crate::buffers::Buffers;
use crate::error::VolumeError;
use crate::planted::Planted;
use crate::pv::{Pv, Remains};
use crate::reader::VolumeReader;
use crate::v1::{
    BadSuperblock, Found, Header, PAGE_BYTES, SUPERBLOCK_OFFSETS, Superblock, VERSION,
};

/// One disk, owned by one driver. See the crate's head for what it guarantees.
pub struct Volume {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) superblock: Superblock,
    pub(crate) boot: BootId,
    pub(crate) pvs: BTreeMap<LvId, Pv>,
    /// The owner of each PV.
    pub(crate) owners: Vec<Owner>,
    /// LVs of which this run has let go a PV, each with the greatest grant under which it may have written.
    pub(crate) let_go: BTreeMap<LvId, Grant>,
    /// PVs with a header to be written at the end of the group.
    pub(crate) dirty: Vec<LvId>,
    /// True if anything was written since the last sync.
    pub(crate) unsynced: bool,
    /// True if there are dirty PVs of whose header the first slot is not durable yet.
    pub(crate) twins_wait: bool,
    /// The failure after which this disk is out.
    pub(crate) broken: Option<DiskError>,
    pub(crate) counters: Counters,
    /// Bytes that may still be reserved for the first time.
    pub(crate) growth_bytes: u64,
    pub(crate) planted: Planted,
    reader: VolumeReader,
}

/// The owner of a PV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Nobody,
    Lv(LvId),
    /// Nobody; somebody had it.
    LetGo(Remains),
    Damaged,
}

/// Counts of a volume's work since it was opened, and the bytes it has reserved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Groups executed.
    pub groups: u64,
    /// Commands executed.
    pub commands: u64,
    /// Commands of the largest group.
    pub largest_group: u64,
    /// Vectored writes of data.
    pub writes: u64,
    /// Bytes of data written, padding included.
    pub bytes_written: u64,
    /// PV headers written.
    pub headers_written: u64,
    /// Syncs.
    pub syncs: u64,
    /// Bytes read from the device to verify chunks.
    pub bytes_verified: u64,
    /// Bytes that went back to the file system from PVs that nobody had any more.
    pub freed_bytes: u64,
    /// Bytes reserved for PVs, as far as known: what earlier runs reserved and recorded counts.
    pub provisioned_bytes: u64,
}

impl Volume {
    /// Opens a volume for writing. Everything on it is closed until its `Open` comes.
    ///
    /// It first syncs whatever an earlier run left in the page cache, and reads headers from the device. So
    /// it believes no header that a loss of power could take back.
    ///
    /// # Errors
    /// [`VolumeError`]. A PV whose header is lost, or cannot be read, does not fail the volume: it is listed by
    /// [`Volume::damaged_pvs`] and never used again.
    pub fn open(disk: &dyn Disk, name: &str, boot: BootId) -> Result<Self, VolumeError> {
        Self::open_with(disk, name, boot, Planted::None)
    }

    /// As [`Volume::open`], with a planted bug.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open_with(
        disk: &dyn Disk,
        name: &str,
        boot: BootId,
        planted: Planted,
    ) -> Result<Self, VolumeError> {
        let file = disk.open(name, OpenMode::ReadWrite)?;
        file.sync()?;
        let read = |offset, bytes: &mut [u8]| file.read_device_at(offset, bytes);
        let superblock = read_superblock(name, read)?;
        let headers = superblock.read_headers(read)?;
        restore_superblock(&*file, &superblock)?;
        let mut volume = Self {
            reader: VolumeReader {
                file: Arc::clone(&file),
                bases: Arc::new(RwLock::new(BTreeMap::new())),
                pv_blocks: superblock.pv_blocks(),
                buffers: Buffers::default(),
            },
            file,
            superblock,
            boot,
            pvs: BTreeMap::new(),
            owners: Vec::with_capacity(headers.len()),
            let_go: BTreeMap::new(),
            dirty: Vec::new(),
            unsynced: false,
            twins_wait: false,
            broken: None,
            counters: Counters::default(),
            growth_bytes: u64::MAX,
            planted,
        };
        for (index, found) in headers.into_iter().enumerate() {
            volume.restore_pv(PvId(index as u32), found);
        }
        Ok(volume)
    }

    fn restore_pv(&mut self, id: PvId, found: Found) {
        let mut count = |header: &Header| {
            self.counters.provisioned_bytes +=
                u64::from(header.provisioned_blocks) * u64::from(BLOCK_BYTES);
        };
        let owner = match found {
            Found::Free => Owner::Nobody,
            Found::InUse(header, is_alone) => {
                count(&header);
                let (lv, is_open) = (header.lv, self.planted.is_open_after_restart());
                let mut pv = Pv::restored(header, self.superblock.pv_offset(id), is_open);
                pv.is_alone = is_alone;
                self.insert(pv);
                Owner::Lv(lv)
            }
            Found::LetGo(header) => {
                count(&header);
                Owner::LetGo(Remains::of(&header))
            }
            Found::Damaged => Owner::Damaged,
        };
        self.owners.push(owner);
    }

    pub(crate) fn insert(&mut self, pv: Pv) {
        let lv = pv.header.lv;
        self.reader.bases.write().insert(lv, pv.base);
        let before = self.pvs.insert(lv, pv);
        assert!(before.is_none(), "LV {lv} has one PV on this disk");
    }

    /// Takes an LV's PV away: no new read or write reaches it, and reads under way end.
    pub(crate) fn remove(&mut self, lv: LvId) -> Option<Pv> {
        assert!(!self.dirty.contains(&lv), "what is taken away is written first");
        self.reader.bases.write().remove(&lv);
        let pv = self.pvs.remove(&lv)?;
        if let Some(grant) = pv.last_written() {
            let last = self.let_go.entry(lv).or_insert(grant);
            *last = grant.max(*last);
        }
        Some(pv)
    }

    /// Sets the bytes that may be reserved for the first time, until the next call. Beyond it writes into
    /// space that was freed go on, and others are refused with `Full`.
    pub fn set_growth(&mut self, bytes: u64) {
        self.growth_bytes = bytes;
    }

    /// Reads beside the owner, from any thread.
    #[must_use]
    pub fn reader(&self) -> VolumeReader {
        self.reader.clone()
    }

    /// Cluster that the disk belongs to, and its number there.
    #[must_use]
    pub fn identity(&self) -> (u64, DiskId) {
        (self.superblock.cluster, self.superblock.disk)
    }

    /// This run of the server.
    #[must_use]
    pub fn boot(&self) -> BootId {
        self.boot
    }

    /// Blocks of each PV.
    #[must_use]
    pub fn pv_blocks(&self) -> u32 {
        self.superblock.pv_blocks()
    }

    /// LVs with a PV here, in order.
    pub fn lvs(&self) -> impl Iterator<Item = (LvId, PvId)> + '_ {
        self.pvs.iter().map(|(lv, pv)| (*lv, pv.header.pv))
    }

    /// PVs that no LV has, in order.
    pub fn free_pvs(&self) -> impl Iterator<Item = PvId> + '_ {
        self.pvs_of(|owner| matches!(owner, Owner::Nobody | Owner::LetGo(_)))
    }

    /// PVs whose header is lost, in order. Their LVs are rebuilt elsewhere.
    pub fn damaged_pvs(&self) -> impl Iterator<Item = PvId> + '_ {
        self.pvs_of(|owner| *owner == Owner::Damaged)
    }

    fn pvs_of(&self, wanted: impl Fn(&Owner) -> bool) -> impl Iterator<Item = PvId> {
        let owners = self.owners.iter().enumerate();
        owners.filter(move |(_, owner)| wanted(owner)).map(|(index, _)| PvId(index as u32))
    }

    /// The failure after which every command is refused, if there was one.
    #[must_use]
    pub fn broken(&self) -> Option<&DiskError> {
        self.broken.as_ref()
    }

    /// Counts of its work so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// Reads the superblock from whichever copy is good. One that the device cannot read is as bad as one that is damaged.
pub(crate) fn read_superblock(
    name: &str,
    read: impl Fn(u64, &mut [u8]) -> Result<usize, DiskError>,
) -> Result<Superblock, VolumeError> {
    let (mut worst, mut unread) = (BadSuperblock::NotOne, None);
    for offset in SUPERBLOCK_OFFSETS {
        let mut page = [0; PAGE_BYTES];
        match read(offset, &mut page) {
            Ok(_) => {}
            Err(error @ DiskError::Broken { .. }) => {
                unread = Some(error);
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        match Superblock::decode(&page) {
            Ok(superblock) => return Ok(superblock),
            Err(BadSuperblock::NotOne) => {}
            Err(bad) => worst = bad,
        }
    }
    let name = name.to_owned();
    Err(match (worst, unread) {
        (BadSuperblock::Version(found), _) => VolumeError::Version { name, found, known: VERSION },
        (_, Some(error)) => error.into(),
        (BadSuperblock::NotOne, None) => {
            VolumeError::Damaged { name, reason: "there is no superblock" }
        }
        (BadSuperblock::Damaged, None) => {
            VolumeError::Damaged { name, reason: "no copy of the superblock matches its checksum" }
        }
    })
}

/// Writes again the copy of a superblock that is not as it should be, or cannot be read, if one is so.
fn restore_superblock(file: &dyn DiskFile, superblock: &Superblock) -> Result<(), DiskError> {
    let good = superblock.encode();
    for offset in SUPERBLOCK_OFFSETS {
        let mut page = [0; PAGE_BYTES];
        let is_read = match file.read_device_at(offset, &mut page) {
            Err(DiskError::Broken { .. }) => false,
            read => read.map(|_| true)?,
        };
        if !is_read || page != good {
            file.write_at(offset, &[IoSlice::new(&good)])?;
            file.sync()?;
        }
    }
    Ok(())
}
