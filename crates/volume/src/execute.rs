//! Executing a group: in order, with one sync, answered as a whole.
//!
//! ```text
//!  commands ─▶ judged, reserved for, gathered ─▶ pwritev per run ─▶ dirty headers ─▶ sync ─▶ completions
//! ```
//!
//! A write's bytes reach the disk without a copy. Writes that lie one behind the other on the disk are one vectored write: a run.
//!
//! A `Verify` cuts a group in two, each part with its own sync: it has to read what came before it from the
//! device. So does the giving of a PV that has an owner, or to an LV that has another, and the freeing of one. The completions of a part
//! are right as soon as its sync returned. PVs that are given for the first time share a sync between the first and
//! the second slots of their headers, however many they are.

use std::io::IoSlice;
use std::ops::Range;

use bytes::Bytes;
use larder_env::{DiskError, DiskFile};
use larder_types::limits::BLOCK_BYTES;
use larder_types::{Extent, Grant, GrantKey, LvId};

use crate::command::{Action, Answer, Command, Completion, Refusal, Verdict};
use crate::extents;
use crate::limits::{
    GROUP_COMMANDS_MAX, IO_PARTS_MAX, RESERVE_PART, RESERVE_STEP_MAX, RESERVE_STEP_MIN,
};
use crate::pv::Pv;
use crate::volume::Volume;

static ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// The part of a group that the next sync will cover.
pub(crate) struct Part<'a, 'd> {
    run: Run<'a>,
    done: &'d mut Vec<Completion>,
    /// The first completion that is not durable yet.
    first: usize,
}

/// The space that the disk had for the write in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Space {
    Enough,
    Full,
}

/// A write as it was commanded.
struct Write<'a> {
    lv: LvId,
    grant: &'a Grant,
    extents: &'a [Extent],
    data: &'a [Bytes],
    len: u32,
}

/// Adjacent bytes not yet handed to the disk. They belong to the writes whose completions are in
/// `owners`, some of which may have been refused and have none.
struct Run<'a> {
    parts: Vec<IoSlice<'a>>,
    start: u64,
    len: u64,
    owners: Range<usize>,
}

/// A write that found the disk full, and the completions that it concerns.
struct FoundFull {
    owners: Range<usize>,
}

impl Volume {
    /// Does all of a group and appends its completions to `done`, in the order of the commands.
    ///
    /// # Panics
    /// If the group has more than [`GROUP_COMMANDS_MAX`] commands.
    pub fn execute(&mut self, group: Vec<Command>, done: &mut Vec<Completion>) {
        assert!(group.len() <= GROUP_COMMANDS_MAX, "a group of {} commands", group.len());
        self.counters.groups += 1;
        self.counters.commands += group.len() as u64;
        self.counters.largest_group = self.counters.largest_group.max(group.len() as u64);
        let expected = done.len() + group.len();
        let mut part = Part { run: Run::new(), first: done.len(), done };
        for command in &group {
            let result = self.do_unless_broken(|volume| volume.step(&command.action, &mut part));
            part.done.push(Completion { tag: command.tag, result });
        }
        let synced = self.do_unless_broken(|volume| volume.commit(&mut part).map(Ok));
        if synced.is_err() {
            for completion in &mut part.done[part.first..] {
                completion.result = Err(Refusal::Broken);
            }
        }
        assert_eq!(done.len(), expected, "each command has one completion");
    }

    /// Nothing is done on a broken disk, and a failure breaks it for good.
    fn do_unless_broken<T>(
        &mut self,
        action: impl FnOnce(&mut Self) -> Result<Result<T, Refusal>, DiskError>,
    ) -> Result<T, Refusal> {
        if self.broken.is_some() {
            return Err(Refusal::Broken);
        }
        action(self).unwrap_or_else(|error| {
            self.broken = Some(error);
            Err(Refusal::Broken)
        })
    }

    fn step<'a>(
        &mut self,
        action: &'a Action,
        part: &mut Part<'a, '_>,
    ) -> Result<Verdict, DiskError> {
        let planted = self.planted;
        Ok(match action {
            Action::Write { lv, grant, extents, data, len } => {
                return self.write(&Write { lv: *lv, grant, extents, data, len: *len }, part);
            }
            Action::CreatePv { pv, lv, replica, map } => {
                return self.give(*pv, (*lv, *replica), *map, part);
            }
            Action::FreePv { pv, map } => return self.free(*pv, *map, part),
            Action::Verify { chunk } => return self.verify(chunk, part),
            Action::Open { lv, view, floor, boot } => {
                let boots = (*boot, self.boot);
                self.change(*lv, |pv| pv.open(*view, *floor, boots, planted)).map(Answer::Floor)
            }
            Action::RaiseFloor { lv, floor } => {
                self.change(*lv, |pv| pv.raise_floor(*floor, planted)).map(Answer::Floor)
            }
            Action::Void { lv, grant } => {
                self.change(*lv, |pv| pv.void(*grant, planted)).map(|_| Answer::Voided)
            }
        })
    }

    fn write<'a>(
        &mut self,
        write: &Write<'a>,
        part: &mut Part<'a, '_>,
    ) -> Result<Verdict, DiskError> {
        let Some(pv) = self.pvs.get(&write.lv) else { return Ok(Err(Refusal::UnknownLv)) };
        if let Err(refusal) = pv.admit(write.grant) {
            return Ok(Err(refusal));
        }
        let data_bytes: usize = write.data.iter().map(Bytes::len).sum();
        if data_bytes != write.len as usize
            || !extents::cover(write.extents, write.len, self.superblock.pv_blocks())
        {
            return Ok(Err(Refusal::OutOfRange));
        }
        let base = pv.base;
        if let Some(pv) = self.pvs.get_mut(&write.lv) {
            pv.note_write(*write.grant);
        }
        if self.reserve(write)? == Space::Full || self.queue(base, write, part)? == Space::Full {
            return Ok(Err(Refusal::Full));
        }
        Ok(Ok(Answer::Written))
    }

    /// Reserves the PV's space up to the write's end, in steps that grow with the PV. Where a step is more
    /// than the volume may grow by, or than the disk has, it reserves what the write needs and no more.
    fn reserve(&mut self, write: &Write<'_>) -> Result<Space, DiskError> {
        let pv = self.pvs.get_mut(&write.lv).expect("the write was admitted");
        let end = write.extents.iter().map(Extent::end).max().unwrap_or(0);
        if end <= pv.reserved_blocks {
            return Ok(Space::Enough);
        }
        let bytes = |blocks: u32| u64::from(blocks) * u64::from(BLOCK_BYTES);
        let (from, need) = (bytes(pv.reserved_blocks), bytes(end));
        let recorded = bytes(pv.header.provisioned_blocks);
        let part = (from / RESERVE_PART).next_multiple_of(RESERVE_STEP_MIN);
        let step = from + part.clamp(RESERVE_STEP_MIN, RESERVE_STEP_MAX);
        let wanted = step.max(recorded).max(need.next_multiple_of(RESERVE_STEP_MIN));
        // Reserving what an earlier run has reserved takes no space.
        for to in [wanted.min(self.superblock.pv_bytes), recorded, need] {
            let grows = to.saturating_sub(recorded);
            if to < need || grows > self.growth_bytes {
                continue;
            }
            match self.file.allocate(pv.base + from, to - from) {
                Ok(()) => {}
                Err(DiskError::Full { .. }) => continue,
                Err(error) => return Err(error),
            }
            self.growth_bytes -= grows;
            self.unsynced = true;
            pv.reserved_blocks = (to / u64::from(BLOCK_BYTES)) as u32;
            if to > recorded {
                pv.header.provisioned_blocks = pv.reserved_blocks;
                self.counters.provisioned_bytes += to - recorded;
                if !pv.dirty {
                    pv.dirty = true;
                    self.dirty.push(write.lv);
                }
            }
            return Ok(Space::Enough);
        }
        Ok(Space::Full)
    }

    /// Hands the write's bytes to the current run, extent by extent, and zeros behind the last.
    fn queue<'a>(
        &mut self,
        base: u64,
        write: &Write<'a>,
        part: &mut Part<'a, '_>,
    ) -> Result<Space, DiskError> {
        let owner = part.done.len();
        let mut pieces = write.data.iter();
        let mut piece: &'a [u8] = &[];
        let mut left = u64::from(write.len);
        for extent in write.extents {
            let mut at = base + extents::offset(extent);
            let end = at + extent.bytes();
            while at < end {
                while piece.is_empty() && left > 0 {
                    piece = pieces.next().expect("the pieces are as long as they say");
                }
                let source = if left > 0 { piece } else { &ZEROS[..] };
                let (now, later) = source.split_at(source.len().min((end - at) as usize));
                if !part.run.continues_at(at) && self.write_run(part)? == Space::Full {
                    return Ok(Space::Full);
                }
                part.run.add(at, now, owner);
                at += now.len() as u64;
                if left > 0 {
                    left -= now.len() as u64;
                    piece = later;
                }
            }
        }
        assert_eq!(left, 0, "the extents cover the data");
        Ok(Space::Enough)
    }

    /// Writes the current run. If the disk turns out to be full, refuses the writes in it that are
    /// completed already, and says so if the write in hand is one of them.
    fn write_run(&mut self, part: &mut Part<'_, '_>) -> Result<Space, DiskError> {
        let in_hand = part.done.len();
        let written = part.run.write(&*self.file)?;
        match written {
            Ok(0) => Ok(Space::Enough),
            Ok(bytes) => {
                self.counters.writes += 1;
                self.counters.bytes_written += bytes;
                self.unsynced = true;
                Ok(Space::Enough)
            }
            Err(full) => {
                self.unsynced = true;
                for completion in &mut part.done[full.owners.start..full.owners.end.min(in_hand)] {
                    if completion.result == Ok(Answer::Written) {
                        completion.result = Err(Refusal::Full);
                    }
                }
                Ok(if full.owners.contains(&in_hand) { Space::Full } else { Space::Enough })
            }
        }
    }

    /// Changes a PV's state and remembers to write its header. Returns the floor in force.
    pub(crate) fn change(
        &mut self,
        lv: LvId,
        change: impl FnOnce(&mut Pv) -> Result<(), Refusal>,
    ) -> Result<GrantKey, Refusal> {
        let pv = self.pvs.get_mut(&lv).ok_or(Refusal::UnknownLv)?;
        let was_dirty = pv.dirty;
        let changed = change(pv);
        if pv.dirty && !was_dirty {
            self.dirty.push(lv);
        }
        changed.map(|()| pv.header.floor)
    }

    /// Makes what was done so far durable.
    pub(crate) fn commit(&mut self, part: &mut Part<'_, '_>) -> Result<(), DiskError> {
        // The completions of those whom a full disk concerns are in the part already.
        self.write_run(part)?;
        if std::mem::take(&mut self.twins_wait) {
            // A header's first slot is durable before the second is touched, so that a crash in between can
            // be told from the loss of a header that was answered for.
            self.sync()?;
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for lv in dirty.drain(..) {
            let pv = self.pvs.get_mut(&lv).expect("a dirty PV is there");
            pv.write_header(&*self.file, &self.superblock, self.planted)?;
            self.counters.headers_written += 1;
            self.unsynced = true;
        }
        self.dirty = dirty;
        self.sync()?;
        part.first = part.done.len();
        Ok(())
    }

    pub(crate) fn sync(&mut self) -> Result<(), DiskError> {
        if self.unsynced && !self.planted.acks_before_sync() {
            self.file.sync()?;
            self.counters.syncs += 1;
            self.unsynced = false;
        }
        Ok(())
    }
}

impl<'a> Run<'a> {
    fn new() -> Self {
        Self { parts: Vec::new(), start: 0, len: 0, owners: 0..0 }
    }

    /// True if bytes for `offset` can be added without writing first.
    fn continues_at(&self, offset: u64) -> bool {
        self.parts.is_empty()
            || (self.start + self.len == offset && self.parts.len() < IO_PARTS_MAX)
    }

    /// Adds bytes of the write with completion `owner`, where [`Run::continues_at`].
    fn add(&mut self, offset: u64, bytes: &'a [u8], owner: usize) {
        assert!(self.continues_at(offset), "a run has no gaps");
        if self.parts.is_empty() {
            self.start = offset;
            self.owners.start = owner;
        }
        self.owners.end = owner + 1;
        self.len += bytes.len() as u64;
        self.parts.push(IoSlice::new(bytes));
    }

    /// Writes what was gathered; returns its length.
    fn write(&mut self, file: &dyn DiskFile) -> Result<Result<u64, FoundFull>, DiskError> {
        if self.parts.is_empty() {
            return Ok(Ok(0));
        }
        let written = file.write_at(self.start, &self.parts);
        self.parts.clear();
        let len = std::mem::take(&mut self.len);
        match written {
            Ok(()) => Ok(Ok(len)),
            Err(DiskError::Full { .. }) => Ok(Err(FoundFull { owners: self.owners.clone() })),
            Err(error) => Err(error),
        }
    }
}
