//! Giving the space of a PV back that nobody has any more.
//!
//! A map says that no LV has a PV. Its owner here, if it has one, loses it. Then its space goes back to the file system, from its end
//! on and a part with each command, so that the disk's thread is never long at it. The header's report of reserved blocks says how
//! much is left.
//!
//! # Invariants
//!
//! 1. A PV is freed only under a newer map than it was given under: a late command takes nothing from who has it now.
//! 2. Space goes back only once both slots of the header say durably that nobody has the PV. So no loss of power, and no single bad
//!    slot, gives it back to an owner whose bytes are gone.
//! 3. What was queued for the former owner has drained by then. The next owner reserves anew what went back.
//! 4. The header is lowered only after what went back is durable: it reports no less than is reserved.

use larder_env::DiskError;
use larder_types::limits::BLOCK_BYTES;
use larder_types::{LvId, MapVersion, PvId};

use crate::command::{Answer, Refusal, Verdict};
use crate::execute::Part;
use crate::limits::FREE_STEP_BYTES;
use crate::pv::{Pv, Remains};
use crate::v1::{Header, State};
use crate::volume::{Owner, Volume};

impl Volume {
    /// Takes a PV from its owner, as a map says that nobody has it, and gives a part of its space back.
    pub(crate) fn free(
        &mut self,
        id: PvId,
        map: MapVersion,
        part: &mut Part<'_, '_>,
    ) -> Result<Verdict, DiskError> {
        let is_newer = match self.owners.get(id.0 as usize) {
            None => return Ok(Err(Refusal::OutOfRange)),
            Some(Owner::Damaged) => return Ok(Err(Refusal::Damaged)),
            Some(Owner::Nobody) => return Ok(Ok(Answer::Freed { bytes: 0, is_all: true })),
            // It was nobody's then already.
            Some(Owner::LetGo(remains)) => map >= remains.given,
            Some(Owner::Lv(lv)) => map > self.pvs[lv].header.given,
        };
        if !is_newer {
            return Ok(Err(Refusal::Outdated));
        }
        if self.owned_by(id).is_some() && self.planted.frees_before_it_is_nobodys() {
            self.file.punch(self.superblock.pv_offset(id), self.superblock.pv_bytes)?;
        }
        if let Some(lv) = self.owned_by(id) {
            self.commit(part)?;
            self.let_go(lv, map)?;
        }
        self.give_back(id, part)
    }

    /// Gives the last part of what is reserved back.
    fn give_back(&mut self, id: PvId, part: &mut Part<'_, '_>) -> Result<Verdict, DiskError> {
        let bytes = |blocks: u32| u64::from(blocks) * u64::from(BLOCK_BYTES);
        let Owner::LetGo(mut remains) = self.owners[id.0 as usize] else {
            unreachable!("nobody has PV {id}")
        };
        let held = bytes(remains.provisioned_blocks.max(remains.reserved_blocks));
        // Of a header that says more nothing beyond the place is looked at.
        let held = held.min(self.superblock.pv_bytes);
        if held == 0 {
            return Ok(Ok(Answer::Freed { bytes: 0, is_all: true }));
        }
        // All that waits is written, and synced.
        self.commit(part)?;
        if remains.is_alone {
            self.write_let_go(id, &mut remains)?;
            remains.is_alone = false;
            self.owners[id.0 as usize] = Owner::LetGo(remains);
            self.sync()?;
        }
        let left = held.saturating_sub(1) / FREE_STEP_BYTES * FREE_STEP_BYTES;
        let base = self.superblock.pv_offset(id);
        let is_free = self.owned_by(id).is_none() && self.pvs.values().all(|pv| pv.header.pv != id);
        assert!(is_free && !remains.is_alone, "space goes back of what is nobody's");
        // Beyond what is reported there may be what a run before reserved and did not report.
        match self.file.punch(base + left, self.superblock.pv_bytes - left) {
            Ok(true) => self.unsynced = true,
            Ok(false) => return Ok(Err(Refusal::KeepsSpace)),
            Err(DiskError::Full { .. }) => return Ok(Err(Refusal::Full)),
            Err(error) => return Err(error),
        }
        self.sync()?;
        let blocks = (left / u64::from(BLOCK_BYTES)) as u32;
        let reported = bytes(remains.provisioned_blocks.saturating_sub(blocks));
        (remains.provisioned_blocks, remains.reserved_blocks) =
            (remains.provisioned_blocks.min(blocks), remains.reserved_blocks.min(blocks));
        self.write_let_go(id, &mut remains)?;
        self.owners[id.0 as usize] = Owner::LetGo(remains);
        self.counters.provisioned_bytes -= reported;
        self.counters.freed_bytes += held - left;
        Ok(Ok(Answer::Freed { bytes: held - left, is_all: left == 0 }))
    }

    fn owned_by(&self, id: PvId) -> Option<LvId> {
        match self.owners[id.0 as usize] {
            Owner::Lv(lv) => Some(lv),
            _ => None,
        }
    }

    /// Writes the next header of a PV that is nobody's.
    fn write_let_go(&mut self, id: PvId, remains: &mut Remains) -> Result<(), DiskError> {
        let Remains { generation, given, lv, provisioned_blocks, .. } = *remains;
        let mut pv = Pv::new(id, (lv, 0), given, self.superblock.pv_offset(id));
        pv.header = Header { state: State::LetGo, generation, provisioned_blocks, ..pv.header };
        self.write_header_of(&mut pv)?;
        remains.generation = pv.header.generation;
        Ok(())
    }
}
