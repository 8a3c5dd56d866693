//! The state of one PV: which writes it admits. The volume writes the header of a PV that says it is
//! `dirty`, and syncs before it answers.
//!
//! Invariants: view and floor never go down. The floor's view is never ahead of the view. No void in
//! the list is implied by view and floor alone.

use std::collections::BTreeSet;
use std::io::IoSlice;

use larder_env::{DiskError, DiskFile};
use larder_types::{BootId, Grant, GrantKey, LvId, MapVersion, OpId, PvId, View};

use crate::command::Refusal;
use crate::limits::{VOIDS_MAX, VOIDS_TAKEN_MAX, WRITTEN_GRANTS_MAX};
use crate::planted::Planted;
use crate::v1::{Header, State, Superblock};

#[derive(Debug)]
pub(crate) struct Pv {
    /// As it will be written next.
    pub header: Header,
    /// True if the header differs from what was written last.
    pub dirty: bool,
    /// Offset in the file.
    pub base: u64,
    /// Blocks from the start that this run of the server has reserved. What an earlier run reserved
    /// is reserved again, which changes nothing, rather than believed.
    pub reserved_blocks: u32,
    /// True if but one slot of the header names this owner.
    pub is_alone: bool,
    /// True if it was opened since the server started.
    is_open: bool,
    /// The view in which this run was first told to open it: grants from there on were issued to this
    /// run.
    first_view: Option<View>,
    /// Grants under which this run wrote, but for those up to `forgotten`.
    written: BTreeSet<Grant>,
    forgotten: Option<Grant>,
}

/// The remains of a range's former owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Remains {
    /// Of the header.
    pub generation: u64,
    /// Map under which the range was given last, or taken.
    pub given: MapVersion,
    /// As in the header.
    pub provisioned_blocks: u32,
    /// By this run.
    pub reserved_blocks: u32,
    /// The LV that had it last.
    pub lv: LvId,
    /// True if but one slot of the header may say that nobody has it.
    pub is_alone: bool,
}

impl Remains {
    pub(crate) fn of(header: &Header) -> Self {
        let Header { generation, given, provisioned_blocks, lv, .. } = *header;
        Self { generation, given, provisioned_blocks, reserved_blocks: 0, lv, is_alone: true }
    }
}

impl Pv {
    /// A PV that is given to an LV.
    pub(crate) fn new(pv: PvId, (lv, replica): (LvId, u8), map: MapVersion, base: u64) -> Self {
        let header = Header {
            pv,
            lv,
            state: State::InUse,
            replica,
            generation: 0,
            view: View(0),
            floor: OpId::default(),
            provisioned_blocks: 0,
            voids: Vec::new(),
            given: map,
        };
        Self::restored(header, base, false)
    }

    /// A PV as its header says; closed, unless a planted bug opens it.
    pub(crate) fn restored(header: Header, base: u64, is_open: bool) -> Self {
        Self {
            header,
            dirty: false,
            base,
            reserved_blocks: 0,
            is_alone: false,
            is_open,
            first_view: None,
            written: BTreeSet::new(),
            forgotten: None,
        }
    }

    /// Refuses a write that may not be done under this grant now.
    pub(crate) fn admit(&self, grant: &Grant) -> Result<(), Refusal> {
        if !self.is_open {
            Err(Refusal::Closed)
        } else if grant.op.view != self.header.view {
            Err(Refusal::WrongView { current: self.header.view })
        } else if grant.op < self.header.floor {
            Err(Refusal::BelowFloor)
        } else if self.header.voids.contains(grant) {
            Err(Refusal::Voided)
        } else {
            Ok(())
        }
    }

    /// Goes on where the range's former owner, if it had one, has left header and reservation.
    pub(crate) fn succeed(&mut self, remains: Remains) {
        self.header.generation = remains.generation;
        self.header.provisioned_blocks = remains.provisioned_blocks;
        self.reserved_blocks = remains.reserved_blocks;
    }

    /// The remains that another owner finds.
    pub(crate) fn remains(&self) -> Remains {
        Remains { reserved_blocks: self.reserved_blocks, ..Remains::of(&self.header) }
    }

    /// The greatest grant under which this run may have written.
    pub(crate) fn last_written(&self) -> Option<Grant> {
        self.written.last().copied().max(self.forgotten)
    }

    /// Grants up to this one may have been written in this run, to a PV that the LV had before.
    pub(crate) fn forget_up_to(&mut self, grant: Option<Grant>) {
        self.forgotten = self.forgotten.max(grant);
    }

    /// A map assigns the LV the PV that it has. One that returns under another index begins closed.
    pub(crate) fn give_again(&mut self, replica: u8, map: MapVersion) -> Result<(), Refusal> {
        let is_newer = map > self.header.given;
        if replica != self.header.replica {
            if !is_newer {
                return Err(Refusal::Outdated);
            }
            self.header.replica = replica;
            self.is_open = false;
        }
        self.header.given = self.header.given.max(map);
        self.dirty |= is_newer || self.is_alone;
        Ok(())
    }

    /// Something is going to be written under the grant.
    pub(crate) fn note_write(&mut self, grant: Grant) {
        self.written.insert(grant);
        if self.written.len() > WRITTEN_GRANTS_MAX {
            self.forgotten = self.forgotten.max(self.written.pop_first());
        }
    }

    /// True if nothing was or will be written under the grant, by this run and any before it.
    pub(crate) fn never_wrote(&self, grant: &Grant) -> bool {
        self.first_view.is_some_and(|first| first <= grant.op.view)
            && (self.is_implied(grant) || self.header.voids.contains(grant))
            && self.forgotten.is_none_or(|forgotten| forgotten < *grant)
            && !self.written.contains(grant)
    }

    /// Admits writes of `view`, and sets view and floor to the greater ones.
    pub(crate) fn open(
        &mut self,
        view: View,
        floor: GrantKey,
        (meant, current): (BootId, BootId),
        planted: Planted,
    ) -> Result<(), Refusal> {
        if meant != current && !planted.ignores_boot() {
            return Err(Refusal::WrongBoot { current });
        }
        let is_late = view < self.header.view && !planted.lowers_on_open();
        // The view after it is asked for below.
        let is_last = view.0 == u64::MAX;
        if is_late || is_last || floor.view > view {
            return Err(Refusal::WrongView { current: self.header.view });
        }
        self.is_open = true;
        // In a view that an earlier run was opened in, that one may have written.
        let first = if view > self.header.view { view } else { View(self.header.view.0 + 1) };
        self.first_view.get_or_insert(first);
        if view > self.header.view {
            self.header.view = view;
            self.change(true);
        }
        if planted.lowers_on_open() {
            (self.header.view, self.header.floor) = (view, floor);
            self.change(true);
        }
        self.raise_floor(floor, planted)
    }

    /// Voids every grant below `floor`.
    pub(crate) fn raise_floor(&mut self, floor: GrantKey, planted: Planted) -> Result<(), Refusal> {
        if floor.view > self.header.view {
            return Err(Refusal::WrongView { current: self.header.view });
        }
        if floor > self.header.floor {
            self.header.floor = floor;
            self.change(!planted.keeps_floor_in_memory());
        }
        Ok(())
    }

    /// Voids one grant.
    pub(crate) fn void(&mut self, grant: Grant, planted: Planted) -> Result<(), Refusal> {
        if self.is_implied(&grant) || self.header.voids.contains(&grant) {
            return Ok(());
        }
        if self.header.voids.len() >= VOIDS_TAKEN_MAX {
            return Err(Refusal::Busy);
        }
        self.header.voids.push(grant);
        self.change(!planted.keeps_void_in_memory());
        Ok(())
    }

    /// Writes the header as the next generation, to the slot that does not have the present one.
    pub(crate) fn write_header(
        &mut self,
        file: &dyn DiskFile,
        superblock: &Superblock,
        planted: Planted,
    ) -> Result<(), DiskError> {
        self.header.generation += if planted.uses_one_slot() { 2 } else { 1 };
        (self.dirty, self.is_alone) = (false, false);
        let page = self.header.encode(superblock);
        file.write_at(self.header.slot_offset(superblock), &[IoSlice::new(&page)])
    }

    /// True if view and floor alone refuse the grant for ever.
    fn is_implied(&self, grant: &Grant) -> bool {
        grant.op.view < self.header.view || grant.op < self.header.floor
    }

    fn change(&mut self, durable: bool) {
        let mut voids = std::mem::take(&mut self.header.voids);
        voids.retain(|grant| !self.is_implied(grant));
        self.header.voids = voids;
        self.dirty |= durable;
        assert!(self.header.floor.view <= self.header.view, "a floor is not ahead of its view");
        assert!(self.header.voids.len() <= VOIDS_MAX, "voids are bounded");
    }
}

#[cfg(test)]
mod tests;
