//! Giving a PV to an LV.
//!
//! In each map a PV has at most one owner, and an LV at most one PV of a disk. The commands here state such facts
//! of maps, in any order and any number of times, each with its map's version. The header keeps the version of the
//! fact that it has.
//!
//! # Invariants
//!
//! 1. A PV goes to another owner, and an LV to another PV, only under a newer map. So a late command for a former
//!    owner takes nothing back, also after a restart.
//! 2. It is answered when both slots of the header name the owner: no single bad slot brings the former one back.
//! 3. What was queued for the former owner has drained by then; what comes after finds no such LV.

use larder_env::DiskError;
use larder_types::limits::REPLICAS_MAX;
use larder_types::{LvId, MapVersion, PvId};

use crate::command::{Answer, Refusal, Verdict};
use crate::execute::Part;
use crate::pv::{Pv, Remains};
use crate::v1::State;
use crate::volume::{Owner, Volume};

impl Volume {
    /// Gives a PV to a replica of an LV, as a map says.
    pub(crate) fn give(
        &mut self,
        id: PvId,
        (lv, replica): (LvId, u8),
        map: MapVersion,
        part: &mut Part<'_, '_>,
    ) -> Result<Verdict, DiskError> {
        let Some(owner) = self.owners.get(id.0 as usize).copied() else {
            return Ok(Err(Refusal::OutOfRange));
        };
        if usize::from(replica) >= REPLICAS_MAX {
            return Ok(Err(Refusal::OutOfRange));
        }
        if owner == Owner::Lv(lv) {
            let given = self.change(lv, |pv| pv.give_again(replica, map));
            return Ok(given.map(|_floor| Answer::Created));
        }
        let given = |lv: &LvId| self.pvs.get(lv).map(|pv| pv.header.given);
        let of_range = match owner {
            Owner::Damaged => return Ok(Err(Refusal::Damaged)),
            Owner::Nobody => None,
            Owner::LetGo(remains) => Some(remains.given),
            Owner::Lv(other) => given(&other),
        };
        if of_range.max(given(&lv)).is_some_and(|newest| map <= newest) {
            return Ok(Err(Refusal::Outdated));
        }
        self.hand_over(id, (lv, replica), map, part)?;
        Ok(Ok(Answer::Created))
    }

    /// Takes a PV from its owner, and its PV from the LV; then gives the one to the other.
    fn hand_over(
        &mut self,
        id: PvId,
        (lv, replica): (LvId, u8),
        map: MapVersion,
        part: &mut Part<'_, '_>,
    ) -> Result<(), DiskError> {
        let is_first = self.owners[id.0 as usize] == Owner::Nobody && !self.pvs.contains_key(&lv);
        if !is_first {
            // Headers are written by their LVs' names: those that wait belong to the owners until now.
            self.commit(part)?;
        }
        self.let_go(lv, map)?;
        let remains = match self.owners[id.0 as usize] {
            Owner::Nobody | Owner::Damaged => Remains::default(),
            Owner::LetGo(remains) => remains,
            Owner::Lv(former) => self.remove(former).expect("an owner has its PV").remains(),
        };
        let mut pv = Pv::new(id, (lv, replica), map, self.superblock.pv_offset(id));
        pv.succeed(remains);
        pv.forget_up_to(self.let_go.get(&lv).copied());
        self.write_header_of(&mut pv)?;
        self.twins_wait = true;
        if !is_first {
            self.commit(part)?;
        }
        (pv.is_alone, pv.dirty) = (true, true);
        self.dirty.push(lv);
        self.owners[id.0 as usize] = Owner::Lv(lv);
        self.insert(pv);
        Ok(())
    }

    /// Takes its PV from an LV that is given another, or none.
    pub(crate) fn let_go(&mut self, lv: LvId, map: MapVersion) -> Result<(), DiskError> {
        let Some(mut pv) = self.remove(lv) else { return Ok(()) };
        (pv.header.state, pv.header.given) = (State::LetGo, map);
        pv.header.voids.clear();
        self.write_header_of(&mut pv)?;
        self.owners[pv.header.pv.0 as usize] = Owner::LetGo(pv.remains());
        Ok(())
    }

    pub(crate) fn write_header_of(&mut self, pv: &mut Pv) -> Result<(), DiskError> {
        pv.write_header(&*self.file, &self.superblock, self.planted)?;
        self.counters.headers_written += 1;
        self.unsynced = true;
        Ok(())
    }
}
