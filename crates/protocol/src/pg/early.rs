//! Serving before the rows are read: space above the high-water marks is allocated at once, space below once the ledger
//! has seen all rows (ADR 39).
//!
//! # Invariants
//!
//! 1. Nothing is served early without marks that are those of the applied position, nor while a contradiction is known, nor
//!    where the map lacks an LV that has a mark.
//! 2. A group whose rows contradict each other, or what was given meanwhile, is halted: others go on. Its marks are void from
//!    then on, so that the next start reads the rows before it serves.

use std::collections::BTreeMap;

use larder_types::codec::encode;
use larder_types::{Chunk, Extent, LvId, rows};

use super::{Pg, Role};
use crate::high_water::HighWater;
use crate::index::{Changes, Index, IndexError};
use crate::lv::LvInfo;
use crate::message::Outbox;
use crate::now::EventTime;
use crate::space::{SpaceFault, VolumeGroup};

impl Pg {
    /// Returns true if the index has valid marks: the group may serve before its rows are read.
    #[must_use]
    pub fn has_marks(&self) -> bool {
        self.high_water.is_some() && self.ledger.fault().is_none()
    }

    /// Returns true if the map has every LV with a mark. A map that is older than the index would draw such an LV again, as if
    /// it were empty.
    pub fn marks_are_of(&self, has: impl Fn(LvId) -> bool) -> bool {
        self.high_water.iter().flat_map(HighWater::lvs).all(has)
    }

    /// Serves from now on in these LVs, above their marks: all that have one ([`Pg::marks_are_of`]). The driver has begun to
    /// read the rows for the ledger, and calls [`Pg::complete_space`] when they are read.
    ///
    /// # Errors
    /// [`SpaceFault`] if open puts contradict each other or the map: nothing is served then.
    ///
    /// # Panics
    /// If the view is not active, not everything is applied, or there are no marks.
    pub fn adopt_early(
        &mut self,
        lvs: impl Iterator<Item = LvInfo>,
        out: &mut Outbox,
    ) -> Result<(), SpaceFault> {
        assert!(self.has_marks(), "pg {}: what lies above is known", self.id);
        self.adopt_unread(lvs, out)
    }

    /// Serves from now on in these LVs, and gives no space in them: without marks nothing is known of their blocks while the
    /// index cannot be read. If it is read later, [`Pg::complete_space`] takes what the rows leave free.
    ///
    /// # Errors
    /// As [`Pg::adopt_early`].
    ///
    /// # Panics
    /// If the view is not active, or not everything is applied.
    pub fn adopt_without_space(
        &mut self,
        lvs: impl Iterator<Item = LvInfo>,
        out: &mut Outbox,
    ) -> Result<(), SpaceFault> {
        self.high_water = None;
        self.adopt_unread(lvs, out)
    }

    fn adopt_unread(
        &mut self,
        lvs: impl Iterator<Item = LvInfo>,
        out: &mut Outbox,
    ) -> Result<(), SpaceFault> {
        assert_eq!(self.applied, self.last(), "pg {}: all of its log is applied", self.id);
        let mut open: BTreeMap<LvId, Vec<&Chunk>> = BTreeMap::new();
        for chunk in self.open_chunks() {
            open.entry(chunk.lv).or_default().push(chunk);
        }
        let mut group = VolumeGroup::new(self.view);
        for info in lvs {
            let mark = match &self.high_water {
                Some(_) if self.planted.gives_unread() => 0,
                Some(marks) => marks.mark(info.lv),
                None => info.blocks,
            };
            let open = open.remove(&info.lv).unwrap_or_default();
            group.add_above(info, mark, open.into_iter())?;
        }
        if let Some(&lv) = open.keys().next() {
            return Err(SpaceFault::UnknownLv { lv });
        }
        self.early_ms = self.now_ms;
        self.serve_in(group, out);
        Ok(())
    }

    /// Returns true while it serves in LVs whose rows are not read yet.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.serves() && self.space.as_ref().is_some_and(|space| space.unread().is_some())
    }

    /// Takes what the rows leave free of one more LV, if the ledger knows. Returns whether another LV is to be taken; call it
    /// again then. One at a time, so that calls of clients come between.
    pub fn complete_space(&mut self, now: EventTime, index: &dyn Index, out: &mut Outbox) -> bool {
        self.set_now(now);
        if !self.is_unread() {
            return false;
        }
        let completed = match self.complete_lv() {
            Ok(true) => self.completed(index, out),
            Ok(false) => Ok(()),
            Err(fault) => self.condemn(fault, index, out),
        };
        if let Err(error) = completed {
            self.halt(&error, out);
        }
        self.check();
        self.is_unread() && self.ledger.known().is_some()
    }

    /// Returns whether it was the last LV.
    fn complete_lv(&mut self) -> Result<bool, SpaceFault> {
        if let Some(fault) = self.ledger.fault() {
            return Err(fault);
        }
        let (Some(space), Some(named)) = (&mut self.space, self.ledger.known()) else {
            return Ok(false);
        };
        if let Some(lv) = named.lvs().find(|lv| space.info(*lv).is_none()) {
            return Err(SpaceFault::UnknownLv { lv });
        }
        let Some(lv) = space.unread() else { return Ok(false) };
        let open = self.open.values().map(|open| &open.chunk).filter(|chunk| chunk.lv == lv);
        let open = open.flat_map(|chunk| chunk.extents.iter().copied());
        let used: Vec<Extent> = named.of_lv(lv).chain(open).collect();
        space.complete(lv, used.into_iter())?;
        Ok(space.unread().is_none())
    }

    /// All is known: what waited for space may have some.
    fn completed(&mut self, index: &dyn Index, out: &mut Outbox) -> Result<(), IndexError> {
        let (Some(space), Some(named)) = (&self.space, self.ledger.known()) else { return Ok(()) };
        let is_held = |info: &LvInfo| named.are_held_by(info.lv, info.present());
        if !space.infos().all(is_held) {
            self.refills.want_walk();
        }
        self.high_water = Some(HighWater::known(space.tops()));
        self.feed_starved(index, out)
    }

    /// The rows contradict each other: this group serves nothing more, and no start believes its marks.
    fn condemn(
        &mut self,
        fault: SpaceFault,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        self.role = Role::Halted;
        let waiting = self.drain_waiting();
        self.refuse_appended(out);
        for (token, _) in waiting {
            self.refuse(token, crate::Refusal::IndexDamaged, out);
        }
        self.void_marks(index)?;
        self.contradiction = Some(fault);
        Ok(())
    }

    /// The contradiction between rows that was found after the group began to serve.
    #[must_use]
    pub fn contradiction(&self) -> Option<SpaceFault> {
        self.contradiction
    }

    /// Has the next start read the rows before it serves.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn void_marks(&mut self, index: &dyn Index) -> Result<(), IndexError> {
        self.high_water = None;
        let mut changes = Changes::default();
        changes.set_position(rows::high_water(self.id), encode(&HighWater::void()));
        index.write(changes)
    }

    /// Writes the marks beside the applied position, if they are known. It is for a caller that is about to write rows
    /// that name what was reserved ([`Pg::reserve`]). It is also for a start after which nothing may be applied for
    /// long.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn write_marks(&mut self, index: &dyn Index) -> Result<(), IndexError> {
        let Some(marks) = &self.high_water else { return Ok(()) };
        let mut changes = Changes::default();
        changes.set_position(rows::high_water(self.id), encode(&marks.row(self.applied)));
        index.write(changes)
    }
}
