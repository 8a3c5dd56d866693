//! The state behind a simulated disk: what is durable, what only the page cache knows, and how a
//! loss of power chooses between them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use super::content::{BLOCK_BYTES, Content, SECTOR_BYTES, Sector};
use super::{Counts, Faults};
use crate::disk::{DiskError, split_name};
use crate::seeded::SeededRng;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InodeId(u64);

/// A file's content whatever its names are.
#[derive(Debug, Default)]
pub(super) struct Inode {
    /// The content of the medium.
    durable: Content,
    /// The content that reads see.
    pub(super) cached: Content,
    /// Changes since the last sync, in order.
    pending: Vec<Change>,
    /// Sectors that the medium cannot read.
    lost: BTreeSet<u64>,
    /// Open handles.
    handles: u64,
}

/// One change of a file that a loss of power keeps or loses as a whole.
#[derive(Debug)]
enum Change {
    Sector {
        index: u64,
        image: Sector,
    },
    Grow(u64),
    SetLen(u64),
    Allocate {
        offset: u64,
        len: u64,
    },
    /// Blocks of a hole, from the first up to the last. Each is lost or kept by itself.
    Hole {
        block: u64,
    },
}

/// One change of a directory that a loss of power keeps or loses as a whole.
#[derive(Debug)]
enum NameChange {
    Link { name: String, inode: InodeId },
    Unlink { name: String, inode: InodeId },
    Rename { from: String, to: String, inode: InodeId },
}

/// The fate of a mutating operation.
pub(super) enum Gate {
    /// All it wants.
    Go,
    /// Nothing: it fails.
    Fail,
    /// It is under way when the power goes.
    PowerGoes,
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) rng: SeededRng,
    pub(super) capacity: u64,
    /// Handles of earlier boots are dead.
    pub(super) boot: u64,
    pub(super) faults: Faults,
    pub(super) counts: Counts,
    /// True if its file system can give the space of a range back.
    pub(super) punches: bool,
    inodes: BTreeMap<InodeId, Inode>,
    next_inode: u64,
    names: BTreeMap<String, InodeId>,
    durable_names: BTreeMap<String, InodeId>,
    pending_names: Vec<NameChange>,
    dirs: BTreeSet<String>,
}

impl Inode {
    fn apply(durable: &mut Content, change: Change) {
        match change {
            Change::Sector { index, image } => durable.put_sector(index, Some(image)),
            Change::Grow(len) => durable.grow(len),
            Change::SetLen(len) => durable.set_len(len),
            Change::Allocate { offset, len } => durable.allocate(offset, len),
            Change::Hole { block } => durable.punch(block, block + 1),
        }
    }

    fn sync(&mut self) {
        for change in self.pending.drain(..) {
            Self::apply(&mut self.durable, change);
        }
        self.durable.drop_uncovered();
    }

    /// Keeps or loses each pending change by itself.
    fn keep_some(&mut self, rng: &mut SeededRng, counts: &mut Counts) {
        for change in self.pending.drain(..) {
            let keep = rng.one_in(2);
            match (&change, keep) {
                (Change::Sector { .. }, true) => counts.sectors_kept += 1,
                (Change::Sector { .. }, false) => counts.sectors_lost += 1,
                (_, true) => {}
                (_, false) => counts.lengths_lost += 1,
            }
            if keep {
                Self::apply(&mut self.durable, change);
            }
        }
        self.durable.drop_uncovered();
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        if end > self.cached.len() {
            self.cached.grow(end);
            self.pending.push(Change::Grow(end));
        }
        let mut at = offset;
        while at < end {
            let index = at / SECTOR_BYTES;
            let within = (at % SECTOR_BYTES) as usize;
            let take = (SECTOR_BYTES - at % SECTOR_BYTES).min(end - at) as usize;
            if take == SECTOR_BYTES as usize {
                self.lost.remove(&index);
            }
            let source = &bytes[(at - offset) as usize..][..take];
            let mut image = match self.cached.sector(index) {
                Some(sector) => **sector,
                None => [0; SECTOR_BYTES as usize],
            };
            image[within..within + take].copy_from_slice(source);
            let image = Arc::new(image);
            self.cached.put_sector(index, Some(Arc::clone(&image)));
            self.pending.push(Change::Sector { index, image });
            at += take as u64;
        }
    }

    /// Takes the blocks that lie wholly inside a range away, and zeros what is left of it.
    fn punch(&mut self, offset: u64, len: u64) {
        let end = (offset + len).min(self.cached.len());
        let (first, last) = (offset.div_ceil(BLOCK_BYTES), end / BLOCK_BYTES);
        if first >= last {
            return self.zero(offset, end);
        }
        self.zero(offset, first * BLOCK_BYTES);
        self.zero(last * BLOCK_BYTES, end);
        // Other blocks are zeros already.
        for block in self.cached.taken(first, last) {
            self.pending.push(Change::Hole { block });
        }
        self.cached.punch(first, last);
    }

    fn zero(&mut self, from: u64, to: u64) {
        if from < to {
            self.write(from, &vec![0; (to - from) as usize]);
        }
    }

    /// Forgets what the cache has of these sectors, except of those not yet synced.
    fn evict(&mut self, first: u64, last: u64) {
        let dirty: BTreeSet<u64> = self
            .pending
            .iter()
            .filter_map(|change| match change {
                Change::Sector { index, .. } => Some(*index..*index + 1),
                Change::Hole { block } => {
                    let sectors = BLOCK_BYTES / SECTOR_BYTES;
                    Some(block * sectors..(block + 1) * sectors)
                }
                _ => None,
            })
            .flatten()
            .collect();
        let range = first..=last;
        let known = self.cached.written(range.clone()).chain(self.durable.written(range));
        let clean: BTreeSet<u64> = known.filter(|index| !dirty.contains(index)).collect();
        for index in clean {
            let sector = self.durable.sector(index).cloned();
            self.cached.put_sector(index, sector);
        }
    }

    pub(super) fn read_device(&mut self, offset: u64, buf: &mut [u8]) -> usize {
        let end = offset + buf.len() as u64;
        self.evict(offset / SECTOR_BYTES, end / SECTOR_BYTES);
        self.cached.read(offset, buf)
    }

    fn flip(&mut self, offset: u64, bit: u64) {
        let index = offset / SECTOR_BYTES;
        let mut image = self.durable.sector(index).map_or([0; SECTOR_BYTES as usize], |s| **s);
        image[(offset % SECTOR_BYTES) as usize] ^= 1 << bit;
        self.durable.put_sector(index, Some(Arc::new(image)));
        self.evict(index, index);
    }
}

impl NameChange {
    fn dir(&self) -> &str {
        let (Self::Link { name, .. } | Self::Unlink { name, .. } | Self::Rename { to: name, .. }) =
            self;
        name.rsplit_once('/').map_or("", |(dir, _)| dir)
    }

    fn inode(&self) -> InodeId {
        let (Self::Link { inode, .. } | Self::Unlink { inode, .. } | Self::Rename { inode, .. }) =
            self;
        *inode
    }

    /// Does it to `names`, unless an earlier change that it rests on was lost.
    fn apply(self, names: &mut BTreeMap<String, InodeId>) {
        match self {
            Self::Link { name, inode } => drop(names.insert(name, inode)),
            Self::Unlink { name, inode } if names.get(&name) == Some(&inode) => {
                names.remove(&name);
            }
            Self::Rename { from, to, inode } if names.get(&from) == Some(&inode) => {
                names.remove(&from);
                names.insert(to, inode);
            }
            Self::Unlink { .. } | Self::Rename { .. } => {}
        }
    }
}

impl Machine {
    pub(super) fn new(seed: u64, capacity: u64) -> Self {
        Self {
            rng: SeededRng::new(seed),
            capacity,
            boot: 0,
            faults: Faults::default(),
            counts: Counts::default(),
            punches: true,
            inodes: BTreeMap::new(),
            next_inode: 0,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            dirs: BTreeSet::from([String::new()]),
        }
    }

    /// Counts a mutating operation and says what becomes of it.
    pub(super) fn admit(&mut self) -> Gate {
        self.counts.operations += 1;
        if count_down(&mut self.faults.power_off_after) {
            return Gate::PowerGoes;
        }
        if count_down(&mut self.faults.fail_after) {
            self.counts.operations_failed += 1;
            return Gate::Fail;
        }
        Gate::Go
    }

    /// Loses power: whatever was not synced is kept or lost piece by piece.
    pub(super) fn lose_power(&mut self) {
        self.boot += 1;
        self.counts.power_losses += 1;
        self.faults = Faults::default();
        for change in std::mem::take(&mut self.pending_names) {
            if self.rng.one_in(2) {
                change.apply(&mut self.durable_names);
            } else {
                self.counts.names_lost += 1;
            }
        }
        self.names = self.durable_names.clone();
        for inode in self.inodes.values_mut() {
            inode.keep_some(&mut self.rng, &mut self.counts);
            inode.cached = inode.durable.clone();
            inode.handles = 0;
        }
        self.collect();
    }

    /// Kills the process: the page cache survives it, its handles do not.
    pub(super) fn kill(&mut self) {
        self.boot += 1;
        self.counts.kills += 1;
        self.faults = Faults::default();
        for inode in self.inodes.values_mut() {
            inode.handles = 0;
        }
        self.collect();
    }

    /// Drops files that neither a name, a possible name after a crash, nor a handle leads to.
    fn collect(&mut self) {
        let mut live: BTreeSet<InodeId> = self.names.values().copied().collect();
        live.extend(self.durable_names.values());
        live.extend(self.pending_names.iter().map(NameChange::inode));
        self.inodes.retain(|id, inode| inode.handles > 0 || live.contains(id));
    }

    pub(super) fn used(&self) -> u64 {
        self.inodes.values().map(|inode| inode.cached.space()).sum()
    }

    fn take_space(&mut self, bytes: u64, path: &str) -> Result<(), DiskError> {
        if bytes > 0 && self.used() + bytes > self.capacity {
            self.counts.full_refusals += 1;
            return Err(DiskError::Full { path: path.to_owned() });
        }
        Ok(())
    }

    pub(super) fn inode(&mut self, id: InodeId) -> &mut Inode {
        self.inodes.get_mut(&id).expect("a handle of this boot keeps its file")
    }

    pub(super) fn open(&mut self, name: &str) -> Result<InodeId, DiskError> {
        split_name(name)?;
        let id = self.lookup(name)?;
        self.inode(id).handles += 1;
        Ok(id)
    }

    pub(super) fn lookup(&self, name: &str) -> Result<InodeId, DiskError> {
        let missing = || DiskError::NotFound { path: name.to_owned() };
        self.names.get(name).copied().ok_or_else(missing)
    }

    pub(super) fn create(&mut self, name: &str) -> Result<InodeId, DiskError> {
        let (dir, _) = split_name(name)?;
        if self.names.contains_key(name) || self.dirs.contains(name) {
            return Err(DiskError::Exists { path: name.to_owned() });
        }
        self.create_dir(dir);
        let inode = InodeId(self.next_inode);
        self.next_inode += 1;
        self.inodes.insert(inode, Inode { handles: 1, ..Inode::default() });
        self.names.insert(name.to_owned(), inode);
        self.pending_names.push(NameChange::Link { name: name.to_owned(), inode });
        Ok(inode)
    }

    /// Directories are durable at once, as the contract asks.
    pub(super) fn create_dir(&mut self, name: &str) {
        let ends = name.match_indices('/').map(|(at, _)| at).chain([name.len()]);
        self.dirs.extend(ends.map(|end| name[..end].to_owned()));
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        split_name(name)?;
        let inode = self.lookup(name)?;
        self.names.remove(name);
        self.pending_names.push(NameChange::Unlink { name: name.to_owned(), inode });
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        if split_name(from)?.0 != split_name(to)?.0 {
            return Err(DiskError::BadName {
                name: to.to_owned(),
                rule: "a file is renamed within its directory",
            });
        }
        let inode = self.lookup(from)?;
        self.names.remove(from);
        self.names.insert(to.to_owned(), inode);
        let (from, to) = (from.to_owned(), to.to_owned());
        self.pending_names.push(NameChange::Rename { from, to, inode });
        Ok(())
    }

    pub(super) fn list(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        if !self.dirs.contains(dir) {
            return Err(DiskError::NotFound { path: dir.to_owned() });
        }
        let in_dir = |name: &str| {
            let (parent, last) = name.rsplit_once('/').unwrap_or(("", name));
            (parent == dir).then(|| last.to_owned())
        };
        Ok(self.names.keys().filter_map(|name| in_dir(name)).collect())
    }

    pub(super) fn sync_dir(&mut self, dir: &str) -> Result<(), DiskError> {
        if !self.dirs.contains(dir) {
            return Err(DiskError::NotFound { path: dir.to_owned() });
        }
        let (here, elsewhere) =
            std::mem::take(&mut self.pending_names).into_iter().partition(|c| c.dir() == dir);
        self.pending_names = elsewhere;
        let here: Vec<NameChange> = here;
        for change in here {
            change.apply(&mut self.durable_names);
        }
        self.collect();
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        (id, path): (InodeId, &str),
        offset: u64,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DiskError> {
        let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
        let bytes = parts.concat();
        let offset = self.aim(id, path, offset, bytes.len() as u64);
        let wanted = self.inode(id).cached.space_for(offset, bytes.len() as u64);
        self.take_space(wanted, path)?;
        self.inode(id).write(offset, &bytes);
        Ok(())
    }

    /// Where a write goes: where it should, unless one was to be misdirected.
    fn aim(&mut self, id: InodeId, path: &str, offset: u64, len: u64) -> u64 {
        let armed = self.faults.misdirect.as_deref().is_some_and(|prefix| path.starts_with(prefix));
        let places = self.inode(id).cached.len().saturating_sub(len) / SECTOR_BYTES;
        if !armed || len == 0 || places == 0 {
            return offset;
        }
        let wrong = self.rng.below(places + 1) * SECTOR_BYTES;
        if wrong == offset {
            return offset;
        }
        self.faults.misdirect = None;
        self.counts.writes_misdirected += 1;
        wrong
    }

    pub(super) fn allocate(
        &mut self,
        (id, path): (InodeId, &str),
        offset: u64,
        len: u64,
    ) -> Result<(), DiskError> {
        let wanted = self.inode(id).cached.space_for(offset, len);
        self.take_space(wanted, path)?;
        let inode = self.inode(id);
        inode.cached.allocate(offset, len);
        inode.pending.push(Change::Allocate { offset, len });
        Ok(())
    }

    pub(super) fn punch(&mut self, id: InodeId, offset: u64, len: u64) {
        self.counts.holes_punched += 1;
        self.inode(id).punch(offset, len);
    }

    pub(super) fn set_len(&mut self, id: InodeId, len: u64) {
        let inode = self.inode(id);
        inode.cached.set_len(len);
        inode.pending.push(Change::SetLen(len));
    }

    pub(super) fn sync(&mut self, (id, path): (InodeId, &str)) -> Result<(), DiskError> {
        let Self { inodes, rng, counts, faults, .. } = self;
        let inode = inodes.get_mut(&id).expect("a handle of this boot keeps its file");
        if std::mem::take(&mut faults.fail_next_sync) {
            counts.syncs_failed += 1;
            inode.keep_some(rng, counts);
            return Err(super::broken("sync", path));
        }
        counts.syncs += 1;
        inode.sync();
        Ok(())
    }

    pub(super) fn close(&mut self, id: InodeId) {
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.handles -= 1;
        }
        self.collect();
    }

    pub(super) fn lose_sectors(&mut self, name: &str, range: Range<u64>) -> Result<(), DiskError> {
        let id = self.lookup(name)?;
        let sectors = range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES);
        self.inode(id).lost.extend(sectors);
        Ok(())
    }

    /// Fails if a read meets a sector that cannot be read.
    pub(super) fn check_readable(
        &mut self,
        (id, path): (InodeId, &str),
        offset: u64,
        len: usize,
    ) -> Result<(), DiskError> {
        let end = offset + len as u64;
        let sectors = offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES);
        if len == 0 || self.inode(id).lost.range(sectors).next().is_none() {
            return Ok(());
        }
        self.counts.reads_failed += 1;
        Err(super::broken("read", path))
    }

    pub(super) fn flip(&mut self, name: &str, offset: u64, bit: u64) -> Result<(), DiskError> {
        let id = self.lookup(name)?;
        self.counts.bits_flipped += 1;
        self.inode(id).flip(offset, bit);
        Ok(())
    }

    /// Flips one bit of one durable sector of the files that begin with `prefix`.
    pub(super) fn rot(&mut self, prefix: &str) -> Option<(String, u64)> {
        let files: Vec<(String, InodeId)> = self
            .names
            .range(prefix.to_owned()..)
            .take_while(|(name, _)| name.starts_with(prefix))
            .map(|(name, id)| (name.clone(), *id))
            .collect();
        let sectors = |id: &InodeId| self.inodes[id].durable.written_count();
        let total: u64 = files.iter().map(|(_, id)| sectors(id)).sum();
        let mut pick = if total > 0 { self.rng.below(total) } else { return None };
        for (name, id) in files {
            let count = self.inodes[&id].durable.written_count();
            if pick >= count {
                pick -= count;
                continue;
            }
            let index = self.inodes[&id].durable.written(0..=u64::MAX).nth(pick as usize)?;
            let offset = index * SECTOR_BYTES + self.rng.below(SECTOR_BYTES);
            let bit = self.rng.below(8);
            self.counts.bits_flipped += 1;
            self.inode(id).flip(offset, bit);
            return Some((name, offset));
        }
        None
    }
}

/// Counts an armed trigger down; true when it goes off.
fn count_down(trigger: &mut Option<u64>) -> bool {
    match trigger {
        Some(1) => {
            *trigger = None;
            true
        }
        Some(left) => {
            *left -= 1;
            false
        }
        None => false,
    }
}
