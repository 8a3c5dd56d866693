//! Copies that chunks lack, or have in the wrong place: found by a walk over METAX, made by the driver, noted by an op
//! ("Copies that are missing" in `docs/cluster.md`).
//!
//! ```text
//!  wants_walk ─▶ the driver visits every row ─▶ consider ─┬─▶ Refill: read a good copy, write it ─▶ Refilled ─┐
//!                                                         └─▶ a copy is given up ───────────────────────────┤
//!  Rebuilt, Vacated ◀── Walked, nothing unmet ◀───────────────────────────────── Op::Holders ◀──────────────┘
//! ```
//!
//! # Invariants
//!
//! 1. A copy is written under a grant of its own, in this view, at the op after the applied position, and the row is
//!    looked at in the same step. Every op that can free the chunk comes there or later. So before its extents are used
//!    again, each floor is above that op, and with it the copy's grant is void. Whatever becomes of a late copy, it
//!    never meets another object's bytes.
//! 2. No floor is raised above the grant of a copy under way: it would be refused for nothing.
//! 3. A replica counts as a holder only after its copy is durable, and by an op. The holders of a row change below the
//!    commit point, and only on the chunk that was copied.
//! 4. `Rebuilt` and `Vacated` are said only after a walk that found nothing to do for the replica. When it began, all
//!    puts of the time were in the index or open. Puts that are still open and were to be given to the replica, or were
//!    granted before it came, are waited for.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use larder_types::{
    Chunk, Grant, Holders, HoldersChange, LvId, MapVersion, Op, OpId, OpSeq, ServerId,
};

use super::Pg;
use crate::copy_pacing::CopyPriority;
use crate::index::{Index, IndexError};
use crate::limits::{
    HOLDERS_CHANGES_MAX, HOLDERS_WAITING_MAX, REFILLS_MAX, SUSPECT_TRIES_MAX, SUSPECTS_MAX,
};
use crate::message::{Effect, Outbox};
use crate::row::chunk_in;
use crate::space::{Need, VolumeGroup};

/// The attempt of every copy's grant: no put has as many.
const REFILL_ATTEMPT: u32 = u32::MAX;

/// A copy to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refill {
    /// Row of the index that has the chunk.
    pub row: Bytes,
    /// The chunk, with its place and its sums.
    pub chunk: Chunk,
    /// Replicas to read from: any that verifies.
    pub from: Holders,
    /// Index in the LV of the replica to write to.
    pub to: usize,
    /// The grant under which it is written.
    pub grant: Grant,
    /// Its urgency.
    pub priority: CopyPriority,
}

/// The result of looking at a chunk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Considered {
    /// Replicas for which something is still to be done.
    pub unmet: Holders,
    /// Copies that can be read.
    pub good: usize,
    /// The urgency of its copy, if one could be made now.
    pub priority: Option<CopyPriority>,
    /// Copies in the wrong place are given up.
    pub gives_up: bool,
    /// The copy to be made now.
    pub refill: Option<Box<Refill>>,
}

/// A copy under way.
#[derive(Debug)]
struct ActiveCopy {
    /// Grant of its chunk.
    chunk: Grant,
    to: usize,
    server: ServerId,
    /// Its own grant.
    grant: Grant,
}

/// A copy that a reader or the scrub found damaged.
#[derive(Debug)]
struct Suspect {
    /// The reason to walk that it is.
    reason: u64,
    /// The walk under way has met its chunk, and another copy that it can be made from sooner or later.
    is_met: bool,
    /// Walks that have met it in vain.
    tries: u32,
}

/// The memory of a primary about all this, for one view.
#[derive(Debug, Default)]
pub(super) struct Refills {
    /// Copies under way, by row.
    under_way: BTreeMap<Bytes, ActiveCopy>,
    /// Copies that were found damaged.
    suspects: BTreeMap<(Grant, ServerId), Suspect>,
    /// Changes that have no op yet.
    changes: Vec<HoldersChange>,
    /// Reasons to walk so far.
    reasons: u64,
    /// Reasons that a walk has dealt with.
    settled: u64,
    /// Copies that were not made.
    failed: u32,
}

impl Refills {
    pub(super) fn want_walk(&mut self) {
        self.reasons += 1;
    }

    /// Copies of a chunk that are suspected stay so if there are others.
    fn meet(&mut self, space: &VolumeGroup, chunk: &Chunk, suspected: Holders) {
        let Some(info) = space.info(chunk.lv) else { return };
        if chunk.holders.common(info.present()).without(suspected).is_empty() {
            return;
        }
        for replica in suspected.iter() {
            let at = (chunk.grant, info.replicas[replica].server);
            if let Some(suspect) = self.suspects.get_mut(&at) {
                suspect.is_met = true;
            }
        }
    }

    /// The oldest grant of a copy under way.
    pub(super) fn oldest(&self) -> Option<OpSeq> {
        self.under_way.values().map(|under_way| under_way.grant.op.seq).min()
    }

    /// Copies under way, and changes that have no op yet.
    pub(super) fn len(&self) -> usize {
        self.under_way.len() + self.changes.len()
    }

    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }
}

impl Pg {
    /// A number for the walk to be begun over all that the index shows from now on; `None` if none is needed.
    #[must_use]
    pub fn wants_walk(&self) -> Option<u64> {
        let is_held = |op: &Op| matches!(op, Op::Holders { .. });
        // The changes that were decided last show in the index first.
        let is_ready = !self.refills.has_changes()
            && self.refills.under_way.is_empty()
            && !self.tail.iter().any(|tail| is_held(&tail.entry.op))
            && !self.is_moving();
        (self.has_copies_to_make() && is_ready).then_some(self.refills.reasons)
    }

    /// Something that lies in an LV is read.
    pub fn note_read(&mut self, lv: LvId, now_ms: u64) {
        if let Some(space) = &mut self.space {
            space.note_read(lv, now_ms);
        }
    }

    /// Returns true if much of what lies in an LV is read.
    #[must_use]
    pub fn has_hot(&self, now_ms: u64) -> bool {
        self.space.as_ref().is_some_and(|space| space.has_hot(now_ms))
    }

    /// Returns the number of times that copies went or could be made again in this view; 0 unless it serves.
    #[must_use]
    pub fn replica_changes(&self) -> u64 {
        self.space.as_ref().map_or(0, VolumeGroup::changes)
    }

    /// Returns true if copies may be missing, or are to be given up.
    #[must_use]
    pub fn has_copies_to_make(&self) -> bool {
        let Some(space) = self.space.as_ref().filter(|_| self.serves()) else { return false };
        self.refills.settled < self.refills.reasons
            || space.filling().next().is_some()
            || space.orders().next().is_some()
    }

    /// Looks at a chunk that a walk found in a row. A copy is asked for only if it is as urgent as `bound`. The driver makes
    /// it, and says [`crate::Event::Refilled`].
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn consider(
        &mut self,
        row: &[u8],
        chunk: &Chunk,
        bound: CopyPriority,
        index: &dyn Index,
    ) -> Result<Considered, IndexError> {
        let Some(space) = self.space.as_ref().filter(|_| self.serves()) else {
            return Ok(Considered::default());
        };
        let suspected = self.suspected(space, chunk);
        if space.need(chunk, suspected).is_met() {
            return Ok(Considered::default());
        }
        let Some(chunk) = self.shown(row, chunk.grant, index)? else {
            return Ok(Considered::default());
        };
        if self.refills.changes.iter().any(|change| change.row == row) {
            // It was met a moment ago, and the index does not show it yet.
            return Ok(Considered::default());
        }
        let need = space.need(&chunk, suspected);
        self.refills.meet(space, &chunk, suspected);
        let unmet = need.absent.union(need.leaving);
        let good = need.good.count();
        let within_reach = need.within_reach.count();
        let priority = CopyPriority::new(within_reach, space.is_hot(chunk.lv, self.now_ms));
        let is_makeable = !need.good.is_empty() && !need.missing.is_empty();
        let mut considered = Considered {
            unmet,
            good,
            priority: is_makeable.then_some(priority),
            gives_up: false,
            refill: None,
        };
        if self.refills.changes.len() >= HOLDERS_WAITING_MAX {
            return Ok(considered);
        }
        if !need.surplus.is_empty() {
            let (row, grant) = (Bytes::copy_from_slice(row), chunk.grant);
            let (gained, lost) = (Holders::default(), need.surplus);
            self.refills.changes.push(HoldersChange { row, grant, gained, lost });
            considered.gives_up = true;
        }
        if is_makeable && priority <= bound {
            considered.refill = self.refill(row, chunk, (need, priority));
        }
        Ok(considered)
    }

    /// Returns true if a copy is being made of a row's chunk.
    pub(super) fn is_refilled_anywhere(&self, row: &[u8]) -> bool {
        self.refills.under_way.contains_key(row)
    }

    /// Returns true if a copy is being made of a row's chunk for this replica.
    pub(super) fn is_refilled(&self, row: &[u8], replica: usize) -> bool {
        self.refills.under_way.get(row).is_some_and(|under_way| under_way.to == replica)
    }

    /// The chunk that a row has now, if it is still the one under this grant.
    pub(super) fn shown(
        &self,
        row: &[u8],
        grant: Grant,
        index: &dyn Index,
    ) -> Result<Option<Chunk>, IndexError> {
        let Some(value) = index.get(row)? else { return Ok(None) };
        Ok(chunk_in(row, &value)?.filter(|chunk| chunk.grant == grant))
    }

    /// Replicas of a chunk whose copies readers found damaged.
    pub(super) fn suspected(&self, space: &VolumeGroup, chunk: &Chunk) -> Holders {
        let suspects = &self.refills.suspects;
        let Some(info) = space.info(chunk.lv).filter(|_| !suspects.is_empty()) else {
            return Holders::default();
        };
        let is_suspect =
            |at: &usize| suspects.contains_key(&(chunk.grant, info.replicas[*at].server));
        info.present().iter().filter(is_suspect).fold(Holders::default(), Holders::with)
    }

    fn refill(
        &mut self,
        row: &[u8],
        chunk: Chunk,
        (need, priority): (Need, CopyPriority),
    ) -> Option<Box<Refill>> {
        let at = OpId { view: self.view, seq: self.applied.seq.next() };
        let lasts = self.planted.copies_under_lasting_grants();
        let at = if lasts { OpId { seq: OpSeq(u64::MAX), ..at } } else { at };
        let space = self.space.as_ref()?;
        // One that did not get its copy is not tried again and again while others could.
        let turn = self.refills.failed as usize % need.missing.count().max(1);
        let to = need.missing.iter().nth(turn)?;
        let is_free = !self.refills.under_way.contains_key(row)
            && self.refills.under_way.len() < REFILLS_MAX
            && !space.is_raised_above(chunk.lv, at);
        if !is_free || need.good.is_empty() {
            return None;
        }
        let (row, pg) = (Bytes::copy_from_slice(row), self.id);
        // One that is away may be read after all, when there is no other.
        let from = if need.within_reach.is_empty() { need.good } else { need.within_reach };
        let grant = Grant { pg, op: at, attempt: REFILL_ATTEMPT };
        let server = space.info(chunk.lv)?.replicas[to].server;
        let under_way = ActiveCopy { chunk: chunk.grant, to, server, grant };
        self.refills.under_way.insert(row.clone(), under_way);
        Some(Box::new(Refill { row, chunk, from, to, grant, priority }))
    }

    pub(super) fn refilled(&mut self, row: Bytes, grant: Grant, is_copied: bool, out: &mut Outbox) {
        if self.refills.under_way.get(&row).is_none_or(|under_way| under_way.grant != grant) {
            return;
        }
        let Some(ActiveCopy { chunk, to, server, .. }) = self.refills.under_way.remove(&row) else {
            return;
        };
        if !is_copied {
            self.refills.failed = self.refills.failed.wrapping_add(1);
        }
        if is_copied {
            self.refills.suspects.remove(&(chunk, server));
            let (gained, lost) = (Holders::default().with(to), Holders::default());
            self.refills.changes.push(HoldersChange { row, grant: chunk, gained, lost });
        }
        if self.refills.changes.len() >= HOLDERS_CHANGES_MAX {
            self.flush_holders(out);
        }
    }

    /// Logs the changes that wait.
    pub(super) fn flush_holders(&mut self, out: &mut Outbox) {
        while self.serves() && self.refills.has_changes() && self.has_capacity_for_own() {
            let count = self.refills.changes.len().min(HOLDERS_CHANGES_MAX);
            let changes = self.refills.changes.drain(..count).collect();
            self.append_op(Op::Holders { changes }, None, out);
            out.push(Effect::SyncSoon);
        }
        if self.serves() && self.refills.has_changes() {
            self.make_room(out);
        }
    }

    /// A put is in the index by now with these holders.
    pub(super) fn note_holders(&mut self, chunk: &Chunk) {
        if self.space.as_ref().is_some_and(|space| !space.has_all(chunk)) {
            self.refills.want_walk();
        }
    }

    /// LVs of which copies come or go: the driver says who is away of their servers ([`crate::Event::Away`]).
    #[must_use]
    pub fn lvs_changing(&self) -> BTreeSet<LvId> {
        self.space.iter().flat_map(VolumeGroup::changing).collect()
    }

    pub(super) fn vacate(
        &mut self,
        at: (LvId, usize),
        order: MapVersion,
        (is_lost, away): (bool, Holders),
    ) {
        let now_ms = self.now_ms;
        if let Some(space) = self.space.as_mut()
            && space.vacate(at, order, (is_lost, away), now_ms)
        {
            self.refills.want_walk();
        }
    }

    /// Returns true if a copy is known to be damaged, and is to be made anew.
    #[must_use]
    pub fn is_suspected(&self, grant: Grant, server: ServerId) -> bool {
        self.refills.suspects.contains_key(&(grant, server))
    }

    /// A copy is damaged, a reader or the scrub says. It is made anew from another, if the chunk is there still.
    pub(super) fn suspect(&mut self, grant: Grant, server: ServerId) {
        let refills = &mut self.refills;
        if refills.suspects.len() < SUSPECTS_MAX && !refills.suspects.contains_key(&(grant, server))
        {
            refills.want_walk();
            let suspect = Suspect { reason: refills.reasons, is_met: false, tries: 0 };
            refills.suspects.insert((grant, server), suspect);
        }
    }

    /// A walk is through.
    pub(super) fn walked(&mut self, walk: u64, unmet: &BTreeSet<(LvId, usize)>, out: &mut Outbox) {
        // A copy that was mended is forgotten already. What is not there any more, or has no other copy, is now; and so
        // is what could not be mended for long: it will be found again.
        self.refills.suspects.retain(|_, suspect| {
            let is_met = std::mem::take(&mut suspect.is_met);
            suspect.tries += u32::from(is_met);
            suspect.reason > walk || (is_met && suspect.tries < SUSPECT_TRIES_MAX)
        });
        // A chunk that moves is named at its new place by no row yet, and may be where nothing is to be named any more.
        let counts = walk == self.refills.reasons && !self.is_moving();
        let Some(space) = self.space.as_ref().filter(|_| counts) else { return };
        if unmet.is_empty() {
            self.refills.settled = walk;
        }
        // An open put makes a copy where it was to be given, and none where it was not.
        let is_open = |lv: LvId, replica: usize, given: bool| {
            let of = self.open.values().filter(|open| open.chunk.lv == lv);
            let mut of = of.map(|open| self.given(&open.chunk).has(replica));
            of.any(|is_given| is_given == given)
        };
        for (lv, replica) in space.filling() {
            if !unmet.contains(&(lv, replica)) && !is_open(lv, replica, false) {
                let disk = space.info(lv).expect("an LV that is filled").replicas[replica].disk;
                out.push(Effect::Rebuilt { lv, replica, disk });
            }
        }
        let hastens = self.planted.vacates_with_open_puts();
        let is_vacated = |(lv, replica, _): &(LvId, usize, MapVersion)| {
            !unmet.contains(&(*lv, *replica)) && (hastens || !is_open(*lv, *replica, true))
        };
        let vacated: Vec<_> = space.orders().filter(is_vacated).collect();
        for (lv, replica, order) in vacated {
            if let Some(space) = self.space.as_mut() {
                space.vacated(lv, replica);
            }
            out.push(Effect::Vacated { lv, replica, order });
        }
    }
}
