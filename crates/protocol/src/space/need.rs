//! The copies that chunks lack of those that they should have: an LV's replicas change while its objects stay where
//! they are.
//!
//! # Invariants
//!
//! 1. A copy is given up only when another is left. One that can still be read goes only while as many replicas that stay,
//!    and whose servers are up, have one as copies are wanted. Which servers are up, the primary's map says whenever it
//!    changes, and requests that fail. An order that is not repeated lets nothing go: its manager may have died together
//!    with servers.
//! 2. A replica of which the manager was told that it is vacated is never named again. Though the order to vacate it
//!    may be taken back, it may be dropped by then.
//! 3. One replica of an LV leaves at a time, but for those whose disks are gone for good. Managers that follow each other
//!    may choose differently, and a chunk that gave up both copies would have one less than wanted.
//! 4. Servers that are away by the map hold back what is to go, and decide which chunks come first. They decide nothing
//!    else: one that managers do not hear may still be read, so that its copies remain sources, and may still be written.
//! 5. A replica that joins an LV is opened with a floor above everything that the index shows: no write that was
//!    granted before reaches it.

use larder_types::{BootId, Chunk, GrantKey, Holders, LvId, MapVersion, OpSeq};

use super::{FloorRaise, Lv, VolumeGroup};
use crate::limits::{ORDER_FRESH_MS, VACATE_MS};
use crate::lv::{LvInfo, Replica, ReplicaState};

/// A replica whose copies are to be given up.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeavingReplica {
    /// The manager's order.
    order: MapVersion,
    /// The time at which it was said last.
    notified_ms: u64,
    /// It is not repeated, for [`ORDER_FRESH_MS`].
    is_stale: bool,
    /// Its disk is gone for good, with all its copies.
    is_lost: bool,
    /// The manager was told that nothing names it any more, and may have dropped it: this is not taken back.
    is_vacated: bool,
}

/// The copies that a chunk lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    /// Replicas that have a copy which can be read.
    pub good: Holders,
    /// Those of the good whose servers are up by the map.
    pub within_reach: Holders,
    /// Replicas that are to have a copy, and have none or a damaged one.
    pub absent: Holders,
    /// Those of the absent that can be given one now.
    pub missing: Holders,
    /// Replicas that have a copy and are to go.
    pub leaving: Holders,
    /// Those of the leaving whose copy can be given up now.
    pub surplus: Holders,
}

impl Need {
    /// Returns true if its copies are where they should be.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.absent.is_empty() && self.leaving.is_empty()
    }
}

impl Lv {
    fn leaving(&self) -> Holders {
        self.leaving.keys().fold(Holders::default(), |all, replica| all.with(*replica))
    }

    /// Those of the leaving whose order was repeated lately.
    fn ordered_lately(&self) -> Holders {
        let fresh = self.leaving.iter().filter(|(_, leaving)| !leaving.is_stale);
        fresh.fold(Holders::default(), |all, (replica, _)| all.with(*replica))
    }

    /// Returns true if copies come or go. Only then does the driver say who is away.
    fn is_changing(&self) -> bool {
        let is_filled = |it: &Replica| it.state == ReplicaState::Rebuilding;
        !self.leaving.is_empty() || self.info.replicas.iter().any(is_filled)
    }

    /// Drops notes of absent replicas that no report confirms any more.
    fn forget_away(&mut self) {
        if !self.is_changing() {
            self.away = Holders::default();
        }
    }

    pub(super) fn lost(&self) -> Holders {
        let lost = self.leaving.iter().filter(|(_, leaving)| leaving.is_lost);
        lost.fold(Holders::default(), |all, (replica, _)| all.with(*replica))
    }

    /// Returns the copies that a chunk lacks, if those of these replicas are not to be trusted.
    fn need(&self, chunk: &Chunk, suspected: Holders) -> Need {
        let (present, leaving) = (self.present, self.leaving());
        let holders = chunk.holders.common(present);
        let stay = present.without(leaving);
        let absent = stay.without(holders);
        let is_open = |replica: &usize| self.floors[*replica].is_some();
        let open = present.iter().filter(is_open).fold(Holders::default(), Holders::with);
        let mut surplus = Holders::default();
        if !holders.without(self.lost()).is_empty() {
            surplus = holders.common(self.lost());
        }
        let to_mend = holders.common(stay).common(suspected);
        let kept = holders.common(stay).without(self.away.union(self.gone));
        let has_enough = kept.count() >= usize::from(self.info.copies.max(1));
        // Until what stays can be trusted, what leaves is read from.
        if has_enough && to_mend.is_empty() {
            surplus = holders.common(self.ordered_lately());
        }
        let good = holders.without(self.gone).without(suspected);
        Need {
            good,
            within_reach: good.without(self.away),
            absent: absent.union(to_mend),
            missing: absent.union(to_mend).common(open).without(self.gone.union(self.crowded())),
            leaving: holders.common(leaving),
            surplus,
        }
    }
}

impl VolumeGroup {
    /// Replicas of an LV that are there.
    #[must_use]
    pub fn present(&self, lv: LvId) -> Holders {
        self.lvs.get(&lv).map(|lv| lv.present).unwrap_or_default()
    }

    /// The run of a replica's server in which it was opened.
    #[must_use]
    pub fn boot(&self, lv: LvId, replica: usize) -> Option<BootId> {
        self.lvs.get(&lv)?.info.replicas.get(replica).map(|it| it.boot)
    }

    /// Replicas of an LV that are gone for good and have not been dropped yet.
    #[must_use]
    pub fn lost(&self, lv: LvId) -> Holders {
        self.lvs.get(&lv).map(Lv::lost).unwrap_or_default()
    }

    /// Returns true if a chunk has a copy wherever one should be, as nearly all have.
    #[must_use]
    pub fn has_all(&self, chunk: &Chunk) -> bool {
        let has_all =
            |lv: &Lv| lv.leaving.is_empty() && chunk.holders.common(lv.present) == lv.present;
        self.lvs.get(&chunk.lv).is_none_or(has_all)
    }

    /// Returns the copies that a chunk lacks, if those of these replicas are not to be trusted; nothing in an LV that
    /// the group does not have.
    #[must_use]
    pub fn need(&self, chunk: &Chunk, suspected: Holders) -> Need {
        self.lvs.get(&chunk.lv).map(|lv| lv.need(chunk, suspected)).unwrap_or_default()
    }

    /// Returns true if these are an LV's replicas, and all of them stay.
    #[must_use]
    pub fn is_held_by(&self, lv: LvId, replicas: Holders) -> bool {
        self.lvs.get(&lv).is_some_and(|lv| lv.present == replicas && lv.leaving.is_empty())
    }

    /// Returns true if a floor above `at` was asked for: a write granted there may be refused.
    #[must_use]
    pub fn is_raised_above(&self, lv: LvId, at: GrantKey) -> bool {
        self.lvs.get(&lv).is_some_and(|lv| lv.asked > at)
    }

    /// An LV's floor is to be raised to an op, so that its replicas need not remember voids below it. Returns the floor
    /// and the replicas that can take it, unless it was asked for already.
    pub fn raise_to(&mut self, lv: LvId, op: OpSeq) -> Option<(FloorRaise, Holders)> {
        let floor = GrantKey { view: self.view, seq: op };
        let (id, lv) = (lv, self.lvs.get_mut(&lv)?);
        if lv.asked >= floor {
            return None;
        }
        lv.asked = floor;
        let within_reach = lv.present.without(lv.gone);
        let open = within_reach.iter().filter(|replica| lv.floors[*replica].is_some());
        let open = open.fold(Holders::default(), Holders::with);
        Some((FloorRaise { lv: id, floor }, open))
    }

    /// Takes an LV's replicas as they are by now; returns those that have to be opened.
    pub fn update(&mut self, info: LvInfo) -> Vec<usize> {
        let rest = self.rest_now();
        let Some(lv) = self.lvs.get_mut(&info.lv) else { return Vec::new() };
        let before = std::mem::replace(&mut lv.info, info);
        lv.present = lv.info.present();
        let (was, is) = (before.present(), lv.present);
        lv.floors.resize(lv.info.replicas.len(), None);
        let place =
            |info: &LvInfo, at: usize| info.replicas.get(at).map(|it| (it.server, it.disk, it.pv));
        let run = |info: &LvInfo, at: usize| info.replicas.get(at).map(|it| it.boot);
        let another = |at: usize| !was.has(at) || place(&before, at) != place(&lv.info, at);
        let fresh: Vec<usize> =
            is.iter().filter(|&at| another(at) || run(&before, at) != run(&lv.info, at)).collect();
        let over = was.without(is);
        // One that has restarted leaves as before: that it was vacated may be on its way to be decided.
        lv.leaving.retain(|&at, _| !over.has(at) && !another(at));
        for index in fresh.iter().copied().chain(over.iter()) {
            let replica = Holders::default().with(index);
            lv.floors[index] = None;
            lv.gone = lv.gone.without(replica);
            lv.probed = lv.probed.without(replica);
            // It was said of another server, or of another run.
            lv.away = lv.away.without(replica);
        }
        lv.gone = lv.gone.union(lv.lost());
        if !over.is_empty() {
            self.notes.changed();
        }
        if !fresh.is_empty() {
            // Every replica is asked for the next floor, also for one that the others have.
            lv.asked = GrantKey { view: self.view, ..GrantKey::default() };
            // The copies that could not be made to one that did not run, or was not there, can be made now.
            lv.pace = lv.pace.due();
        }
        lv.forget_away();
        lv.release_below_floor(rest);
        fresh
    }

    /// Vacates a replica's copies, unless another replica's are being vacated. `away` has the replicas whose servers
    /// are down. Returns true if that is a change.
    pub fn vacate(
        &mut self,
        (id, replica): (LvId, usize),
        order: MapVersion,
        (is_lost, away): (bool, Holders),
        now_ms: u64,
    ) -> bool {
        let Some(lv) = self.lvs.get_mut(&id).filter(|lv| lv.present.has(replica)) else {
            return false;
        };
        if !is_lost && lv.leaving.keys().any(|other| *other != replica) {
            return false;
        }
        if is_lost {
            if !lv.gone.has(replica) {
                self.notes.changed();
            }
            lv.gone = lv.gone.with(replica);
            // With its copies those of one that was to leave are wanted again, if they can still be had.
            lv.leaving.retain(|other, it| *other == replica || it.is_lost || it.is_vacated);
        }
        let before = lv.leaving.get(&replica).copied();
        let is_vacated = before.is_some_and(|before| before.is_vacated);
        let is_stale = false;
        let leaving = LeavingReplica { order, notified_ms: now_ms, is_stale, is_lost, is_vacated };
        lv.leaving.insert(replica, leaving);
        self.set_away(id, away);
        before.is_none_or(|before| before.is_lost != is_lost)
    }

    /// Servers of these replicas of an LV are away now, and of no others: what is to go stays for them, and chunks with
    /// fewer copies within reach come first. Nothing changes for an LV of which no copies come or go.
    pub fn set_away(&mut self, lv: LvId, away: Holders) {
        let Some(lv) = self.lvs.get_mut(&lv).filter(|lv| lv.is_changing()) else { return };
        let away = away.common(lv.present);
        if std::mem::replace(&mut lv.away, away) != away {
            self.notes.changed();
        }
    }

    /// LVs of which copies come or go.
    pub fn changing(&self) -> impl Iterator<Item = LvId> {
        self.lvs.iter().filter(|(_, lv)| lv.is_changing()).map(|(id, _)| *id)
    }

    /// Forgets orders that the manager does not repeat any more; before that they let nothing go.
    pub fn forget_orders(&mut self, now_ms: u64) {
        for lv in self.lvs.values_mut() {
            lv.leaving.retain(|_, it| {
                let age_ms = now_ms.saturating_sub(it.notified_ms);
                it.is_stale = age_ms > ORDER_FRESH_MS && !it.is_lost;
                it.is_lost || it.is_vacated || age_ms <= VACATE_MS
            });
            lv.forget_away();
        }
    }

    /// Nothing names a replica any more, and nothing will: the manager is told.
    pub fn vacated(&mut self, lv: LvId, replica: usize) {
        let leaving = self.lvs.get_mut(&lv).and_then(|lv| lv.leaving.get_mut(&replica));
        if let Some(leaving) = leaving {
            leaving.is_vacated = true;
        }
    }

    /// LVs with replicas that are out of reach, but not for good: these are to be opened again.
    pub fn closed(&self) -> impl Iterator<Item = (&LvInfo, Holders)> {
        let closed = self.lvs.values().map(|lv| (&lv.info, lv.gone.without(lv.lost())));
        closed.filter(|(_, gone)| !gone.is_empty())
    }

    /// Replicas of an LV that failed in this view and have not answered an `Open` since.
    #[must_use]
    pub fn gone(&self, lv: LvId) -> Holders {
        self.lvs.get(&lv).map_or(Holders::default(), |lv| lv.gone)
    }

    /// Replicas that are being filled.
    pub fn filling(&self) -> impl Iterator<Item = (LvId, usize)> {
        self.lvs.iter().flat_map(|(&id, lv)| {
            let replicas = lv.info.replicas.iter().enumerate();
            let filling = replicas.filter(|(_, it)| it.state == ReplicaState::Rebuilding);
            filling.map(move |(index, _)| (id, index))
        })
    }

    /// Replicas that are to go, with the order.
    pub fn orders(&self) -> impl Iterator<Item = (LvId, usize, MapVersion)> {
        self.lvs.iter().flat_map(|(&id, lv)| {
            lv.leaving.iter().map(move |(&replica, leaving)| (id, replica, leaving.order))
        })
    }
}
