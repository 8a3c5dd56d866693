//! Reads the blocks that the rows of the index name, and the objects and bytes of each bucket. It does so in the background
//! while a server serves above valid high-water marks, and before a single node serves if there are none
//! (ADR 39).
//!
//! # Invariants
//!
//! 1. The index is read in stretches, each from a snapshot of its own that is dropped at the stretch's end.
//!    So [`STRETCH_ROWS_MAX`] bounds the memory that the index must keep for a snapshot.
//! 2. One walk reads for all PGs. It holds a PG's lock only to hand over the findings of a stretch, and then for one LV at a
//!    time.
//! 3. A PG whose rows contradict each other is halted, and others are served. If the index cannot be read the server ends. In
//!    both cases the next start reads the rows first. A single node whose index is damaged goes on instead
//!    (`damage.rs`): what a mark says holds whether or not the rows can be read.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use larder_env::threads::{Condvar, slow_point};
use larder_kv::{Kv, KvError};
use larder_protocol::pg::{LedgerWalk, Role};
use larder_protocol::{IndexError, LvInfo};
use larder_types::codec::decode;
use larder_types::rows::{self, SPACE_TABLES};
use larder_types::{OpId, PgId};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::error::OpenError;
use super::{Here, Member, Meta};
use crate::limits::STRETCH_ROWS_MAX;

/// Set once a single node has read which space its rows leave free.
#[derive(Default)]
pub(super) struct SpaceReadiness {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl SpaceReadiness {
    fn set(&self) {
        *self.is_over.lock() = true;
        self.changed.notify_all();
    }
}

impl Meta {
    /// Has every PG of a single node serve; nothing is appended before. Returns the walk that is to be made in the background,
    /// unless all rows were read first.
    pub(super) fn begin_space(&self, here: &Here) -> Result<Option<LedgerWalk>, OpenError> {
        let map = here.manager.map();
        let (records, boot) = (&map.map.lvs, here.data.boot());
        let mut lvs: BTreeMap<PgId, Vec<LvInfo>> = BTreeMap::new();
        for record in records {
            here.data.create(record);
            lvs.entry(record.pg).or_default().push(record.info(boot));
        }
        let mut walk = LedgerWalk::new(self.pgs.len() as u32);
        let (mut is_early, mut is_left) = (true, true);
        for pg in self.pg_ids() {
            let mut member = self.lock(pg);
            // The proxy of the last run is gone, and its session with it.
            member.pg.end_sessions();
            walk.add(&mut member.pg);
            let has = |lv| lvs.get(&pg).is_some_and(|lvs| lvs.iter().any(|info| info.lv == lv));
            is_early &= member.pg.has_marks() && member.pg.marks_are_of(has);
        }
        // Nobody waits for rows that cannot be read.
        if !is_early && !self.is_read_only() {
            tracing::info!("the index has no valid marks: scanning all rows before serving");
            let begun = Instant::now();
            match self.read_ledgers(&mut walk) {
                Ok(is_whole) => assert!(is_whole, "nobody stops a server that nobody knows of yet"),
                // A further walk would note the rows of its last stretch once more.
                Err(_) if self.is_read_only() => is_left = false,
                Err(error) => return Err(error),
            }
            log_index_read(begun);
        }
        let is_known = !is_early && !self.is_read_only();
        for pg in self.pg_ids() {
            let mut member = self.lock(pg);
            let lvs = lvs.remove(&pg).unwrap_or_default().into_iter();
            if member.pg.role() == Role::Halted {
                continue;
            }
            match (is_early, is_known) {
                (true, _) => self.adopt_early(&mut member, lvs),
                (false, true) => self.adopt_with_space(&mut member, lvs),
                (false, false) => self.adopt_without_space(&mut member, lvs),
            }?;
        }
        if is_known {
            // The flush makes the marks durable for the next start.
            self.flush.ask();
        }
        if is_known || !is_left {
            self.space_readiness.set();
            return Ok(None);
        }
        Ok(Some(walk))
    }

    fn adopt_without_space(
        &self,
        member: &mut Member,
        lvs: impl Iterator<Item = LvInfo>,
    ) -> Result<(), OpenError> {
        let Member { pg, out, .. } = &mut *member;
        let adopted = pg.adopt_without_space(lvs, out);
        adopted.map_err(|fault| OpenError::Contradiction(fault.to_string()))?;
        self.perform(member);
        Ok(())
    }

    fn adopt_early(
        &self,
        member: &mut Member,
        lvs: impl Iterator<Item = LvInfo>,
    ) -> Result<(), OpenError> {
        let Member { pg, out, .. } = &mut *member;
        let adopted = pg.adopt_early(lvs, out);
        adopted.map_err(|fault| OpenError::Contradiction(fault.to_string()))?;
        self.perform(member);
        Ok(())
    }

    fn adopt_with_space(
        &self,
        member: &mut Member,
        lvs: impl Iterator<Item = LvInfo>,
    ) -> Result<(), OpenError> {
        let Member { pg, out, .. } = &mut *member;
        let known = pg.derive_space(lvs).or_else(|| pg.ledger_fault().map(Err));
        let space = known.ok_or_else(|| IndexError("a PG's rows were not read".to_owned()))?;
        let space = space.map_err(|fault| OpenError::Contradiction(fault.to_string()))?;
        pg.forget_ledger();
        pg.adopt_space(space, out);
        pg.write_marks(&self.index)?;
        self.perform(member);
        Ok(())
    }

    /// Runs the space thread of a single node.
    pub(super) fn space_loop(&self, walk: LedgerWalk) {
        let read = self.read_space(walk).and_then(|()| Ok(self.look_at_damage()?));
        match read {
            Ok(()) => {}
            Err(error) if self.is_read_only() => {
                tracing::warn!(%error, "the space is not derived, as the index is damaged");
            }
            Err(error) => self.fail_unread(&error),
        }
        self.space_readiness.set();
    }

    /// Fails the server because the index cannot be read, with void marks, so that the next start reads all rows first.
    pub(super) fn fail_unread(&self, error: &OpenError) {
        let voided = self.pg_ids().try_for_each(|pg| self.lock(pg).pg.void_marks(&self.index));
        let kept = voided.map_err(OpenError::from).and_then(|()| Ok(self.keep_void_marks()?));
        if let Err(error) = kept {
            tracing::error!(%error, "the index's marks cannot be voided: the next start may serve before it has read all rows");
        }
        self.fail(format!("the space cannot be derived: {error}"));
    }

    fn read_space(&self, mut walk: LedgerWalk) -> Result<(), OpenError> {
        let begun = Instant::now();
        while walk.pgs().next().is_some() {
            if !self.read_ledgers(&mut walk)? {
                return Ok(());
            }
            for pg in self.pg_ids() {
                self.complete_space(pg);
                self.lock(pg).pg.forget_ledger();
            }
            if self.contradictions() > 0 {
                self.keep_void_marks()?;
            }
            // Another walk, for PGs in which too much changed meanwhile.
            walk = LedgerWalk::new(self.pgs.len() as u32);
            for pg in self.pg_ids() {
                let mut member = self.lock(pg);
                if member.pg.is_unread() || member.pg.wants_count() {
                    walk.add(&mut member.pg);
                }
            }
        }
        log_index_read(begun);
        Ok(())
    }

    /// Makes the voiding of marks durable in the index.
    pub(super) fn keep_void_marks(&self) -> Result<(), KvError> {
        match self.kv().flush() {
            Err(error @ KvError::Full { .. }) => {
                tracing::warn!(%error, "the index's marks could not be voided yet");
                Ok(())
            }
            flushed => flushed.map(|_| ()),
        }
    }

    /// Adds the space that the rows of a PG leave free below its marks, if it serves without that.
    pub(super) fn complete_space(&self, pg: PgId) {
        let mut goes_on = true;
        while goes_on {
            let mut member = self.lock(pg);
            let Member { pg: machine, out, .. } = &mut *member;
            goes_on = machine.complete_space(self.clock.now(), &self.index, out);
            self.perform(&mut member);
        }
        if let Some(fault) = self.lock(pg).pg.contradiction() {
            tracing::error!(%pg, %fault, "the metadata contradicts itself: the pg is not served; run `larder inspect`");
        }
    }

    /// Reads the index for the ledgers of a walk. Returns true if it was read to its end; false if the server stops.
    pub(super) fn read_ledgers(&self, walk: &mut LedgerWalk) -> Result<bool, OpenError> {
        let pgs: Vec<PgId> = walk.pgs().collect();
        while !self.is_stopping() {
            let until = self.read_stretch(walk, &pgs)?;
            slow_point();
            for &pg in &pgs {
                walk.end_stretch(&mut self.lock(pg).pg, until.as_deref());
            }
            match until {
                Some(until) => walk.go_on(until),
                None => {
                    self.index.was_read();
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Reads a stretch. Returns the first row that was not read, if there is one.
    fn read_stretch(
        &self,
        walk: &mut LedgerWalk,
        pgs: &[PgId],
    ) -> Result<Option<Vec<u8>>, OpenError> {
        let reader = self.index.kv.snapshot()?;
        for &pg in pgs {
            if let Some(row) = reader.get(&rows::applied(pg))? {
                walk.shows(pg, decode::<OpId>("applied position", &row)?);
            }
        }
        let (from, behind) = (walk.from().to_vec(), SPACE_TABLES.map(|table| table + 1));
        let (mut until, mut unreadable, mut count) = (None, None, 0);
        reader.scan(&from, behind.last().map(std::slice::from_ref), &mut |row, value| {
            if count == STRETCH_ROWS_MAX {
                until = Some(row.to_vec());
                return ControlFlow::Break(());
            }
            count += 1;
            unreadable = walk.note(row, value).err();
            if unreadable.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        unreadable.map_or(Ok(until), |error| Err(error.into()))
    }

    /// Waits until a single node has read which space its rows leave free. Returns true if it knows that of every PG; false if
    /// it stops or has failed.
    pub fn await_space(&self) -> bool {
        let mut is_over = self.space_readiness.is_over.lock();
        while !*is_over {
            self.space_readiness.changed.wait(&mut is_over);
        }
        let is_unread = |pg| self.lock(pg).pg.is_unread();
        self.contradictions() == 0 && !self.is_read_only() && !self.pg_ids().any(is_unread)
    }

    /// The number of PGs that were halted because their rows contradict each other.
    #[must_use]
    pub fn contradictions(&self) -> usize {
        let contradicts = |pg: &PgId| self.lock(*pg).pg.contradiction().is_some();
        self.pg_ids().filter(contradicts).count()
    }
}

fn log_index_read(begun: Instant) {
    let ms = begun.elapsed().as_millis() as u64;
    tracing::info!(ms, "the index was scanned for used space");
}
