//! Space of one PG's volume group: allocates extents, and holds freed ones back until the floors have passed and they
//! have rested.
//!
//! # Invariants
//!
//! 1. A block is free, withheld, used, waiting or resting, never two of these.
//! 2. A freed extent becomes free only when *every* replica's floor is above the op that freed it ("Space" in
//!    `ARCHITECTURE.md`): until then a late write may still be under way.
//! 3. An LV gives no space before every replica has answered its `Open` in the current view, or is out of reach.
//! 4. All of this is derived from METAX: nothing here is ever stored as the truth. What is not derived yet is not given
//!    (`unread.rs`).
//! 5. A replica whose copies are to be given up gets no new ones: its LV gives no space.
//! 6. A replica out of reach gets no new ones either, nor one whose disk has no room. Its LV gives space on the others
//!    only if these are most of it, and the grant names these alone (`degraded.rs`).
//! 7. An allocation takes what rests before it fails (`resting.rs`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use larder_types::limits::{BLOCK_BYTES, CHUNK_BLOCKS_MAX, CHUNK_EXTENTS_MAX};
use larder_types::{DiskId, Extent, GrantKey, Holders, LvId, OpId, OpSeq, View};

use crate::limits::{LV_FULL_PERCENT, REFUSED_MS, WAITING_BLOCKS_BEFORE_RAISE, WITHHELD_MS};
use crate::lv::LvInfo;
pub use compact::Fragmentation;
use compact::{CompactionPace, LargestRequest};
pub use derived::{Space, SpaceFault};
use heat::Notes;
use need::LeavingReplica;
pub use need::Need;
use resting::{Rest, Resting};
use unread::Unread;
pub use usage::SpaceUse;

mod compact;
mod degraded;
mod derived;
mod heat;
mod need;
mod resting;
mod unread;
mod usage;

/// Free runs of one LV.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FreeRuns {
    by_start: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
    blocks: u32,
}

impl FreeRuns {
    /// All of an LV.
    #[must_use]
    pub fn whole(blocks: u32) -> Self {
        let mut runs = Self::default();
        runs.insert(0, blocks);
        runs.blocks = blocks;
        runs
    }

    /// Free blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Takes an extent that METAX says is used.
    ///
    /// # Errors
    /// The extent, if not all of it was free: two objects claim a block.
    pub fn claim(&mut self, extent: Extent) -> Result<(), Extent> {
        let Some((&start, &len)) = self.by_start.range(..=extent.first).next_back() else {
            return Err(extent);
        };
        if u64::from(start) + u64::from(len) < u64::from(extent.first) + u64::from(extent.blocks) {
            return Err(extent);
        }
        self.remove(start, len);
        self.insert(start, extent.first - start);
        self.insert(extent.end(), start + len - extent.end());
        self.blocks -= extent.blocks;
        Ok(())
    }

    /// Gives blocks back, joined with their free neighbours.
    ///
    /// # Panics
    /// If one of them is free already: then the same block was given to two objects.
    pub fn release(&mut self, extent: Extent) {
        assert!(extent.blocks > 0, "an extent has blocks");
        let (mut start, mut end) = (extent.first, extent.end());
        if let Some((&before, &len)) = self.by_start.range(..extent.end()).next_back() {
            assert!(before + len <= extent.first, "block {} was free already", extent.first);
            if before + len == extent.first {
                self.remove(before, len);
                start = before;
            }
        }
        if let Some(&len) = self.by_start.get(&end) {
            self.remove(end, len);
            end += len;
        }
        self.insert(start, end - start);
        self.blocks += extent.blocks;
    }

    /// Takes `need` blocks: the tightest single run, lowest address first; else several runs, largest
    /// first, up to [`CHUNK_EXTENTS_MAX`].
    pub fn allocate(&mut self, need: u32) -> Option<Vec<Extent>> {
        assert!(need > 0 && need <= CHUNK_BLOCKS_MAX, "a chunk has 1 to {CHUNK_BLOCKS_MAX} blocks");
        if self.blocks < need {
            return None;
        }
        if let Some(&(_, start)) = self.by_len.range((need, 0)..).next() {
            let extent = Extent { first: start, blocks: need };
            self.claim(extent).expect("the run was found free");
            return Some(vec![extent]);
        }
        let mut extents = Vec::new();
        let mut missing = need;
        for &(len, start) in self.by_len.iter().rev().take(CHUNK_EXTENTS_MAX) {
            let blocks = len.min(missing);
            extents.push(Extent { first: start, blocks });
            missing -= blocks;
            if missing == 0 {
                break;
            }
        }
        if missing > 0 {
            return None;
        }
        for &extent in &extents {
            self.claim(extent).expect("the run was found free");
        }
        Some(extents)
    }

    /// Takes out what is free at or above a block.
    fn split_off(&mut self, from: u32) -> Self {
        let mut above = Self::default();
        let reach: Vec<_> = self.by_start.range(..from).next_back().into_iter().collect();
        let cut = reach.into_iter().chain(self.by_start.range(from..));
        let cut: Vec<Extent> = cut
            .map(|(&start, &len)| {
                let first = start.max(from);
                Extent { first, blocks: (start + len).saturating_sub(first) }
            })
            .filter(|extent| extent.blocks > 0)
            .collect();
        for extent in cut {
            self.claim(extent).expect("the run was found free");
            above.release(extent);
        }
        above
    }

    fn release_all(&mut self, runs: Self) {
        for (first, blocks) in runs.by_start {
            self.release(Extent { first, blocks });
        }
    }

    fn insert(&mut self, start: u32, len: u32) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    fn remove(&mut self, start: u32, len: u32) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

/// One LV as its primary keeps it.
#[derive(Debug)]
struct Lv {
    info: LvInfo,
    /// Replicas that are there, as `info` says.
    present: Holders,
    runs: FreeRuns,
    /// Free as well, but a replica's disk had no room for it.
    withheld: Option<Withheld>,
    /// Freed extents, by the op that freed them; ascending.
    waiting: VecDeque<(OpId, Extent)>,
    waiting_blocks: u32,
    /// Extents that could be free as well: reads that began before still find there what they read.
    resting: Resting,
    /// Floor that each replica has acknowledged in this view; `None` before its `Open` is answered.
    floors: Vec<Option<GrantKey>>,
    /// Floor asked for last.
    asked: GrantKey,
    /// Replicas that broke or are out of reach: no new space is given here.
    gone: Holders,
    /// Replicas that were asked whether they are within reach, and have not answered.
    probed: Holders,
    /// Replicas whose copies are to be given up.
    leaving: BTreeMap<usize, LeavingReplica>,
    /// Replicas whose servers are not up by the map, while copies come or go.
    away: Holders,
    pace: CompactionPace,
    /// The part of it that is not known yet.
    unread: Option<Unread>,
}

/// The part of an LV for which a replica's disk had no room. A disk gives an LV its room from the LV's
/// beginning on, as far as it was ever written.
#[derive(Debug)]
struct Withheld {
    /// Its first block.
    from: u32,
    /// The part of it that is free.
    runs: FreeRuns,
    /// Replicas that had no room, as far as that was told: the others may take what is withheld.
    crowded: Holders,
    since_ms: u64,
}

impl Lv {
    fn release(&mut self, extent: Extent) {
        self.pace.released += i64::from(extent.blocks);
        self.put_in(extent);
    }

    /// Blocks are free, or withheld.
    fn put_in(&mut self, extent: Extent) {
        let Some(withheld) = &mut self.withheld else { return self.runs.release(extent) };
        let below = extent.blocks.min(withheld.from.saturating_sub(extent.first));
        if below > 0 {
            self.runs.release(Extent { blocks: below, ..extent });
        }
        if below < extent.blocks {
            let (first, blocks) = (extent.first + below, extent.blocks - below);
            withheld.runs.release(Extent { first, blocks });
        }
    }

    /// Freed extents that no late write can reach any more rest, or are free.
    fn release_below_floor(&mut self, rest: Rest) {
        let Some(floor) = self.floor() else { return };
        while let Some(&(freed_by, extent)) = self.waiting.front() {
            if floor <= freed_by {
                break;
            }
            self.waiting.pop_front();
            if self.unread.as_mut().is_some_and(|unread| unread.holds(extent)) {
                continue;
            }
            self.waiting_blocks -= extent.blocks;
            self.rest(extent, rest);
        }
    }

    fn withheld_blocks(&self) -> u32 {
        self.withheld.as_ref().map_or(0, |withheld| withheld.runs.blocks())
    }

    fn floor(&self) -> Option<GrantKey> {
        self.present.iter().map(|replica| self.floors[replica]).min().flatten()
    }

    /// Returns true if its replicas are about to answer `Open`. One that has lost all of them will take nothing.
    fn is_opening(&self) -> bool {
        let awaits = !self.present.is_empty() && self.floor().is_none();
        awaits && self.gone.is_empty() && self.leaving.is_empty()
    }

    fn takes_objects(&self) -> bool {
        self.gone.is_empty() && self.leaving.is_empty() && self.floor().is_some() && !self.is_full()
    }

    /// Blocks that are not to be had: used ones, and those that wait.
    fn taken_blocks(&self) -> u32 {
        let to_be_had = self.runs.blocks() + self.withheld_blocks() + self.resting.blocks();
        self.info.blocks - to_be_had
    }

    fn is_full(&self) -> bool {
        self.is_full_but_for(0)
    }

    /// True if it is to take no more objects, were so many of its blocks free again.
    fn is_full_but_for(&self, blocks: u32) -> bool {
        let used = self.taken_blocks().saturating_sub(blocks);
        u64::from(used) * 100 >= u64::from(self.info.blocks) * LV_FULL_PERCENT
    }
}

/// The floor of an LV, as its primary knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    /// The LV.
    pub lv: LvId,
    /// The lowest that a replica has acknowledged in this view; `None` before all have.
    pub lowest: Option<OpSeq>,
    /// Ops of the group from there to its last.
    pub lag_ops: u64,
    /// Freed blocks that wait for it.
    pub waiting_blocks: u32,
}

/// A raise of an LV's floor that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloorRaise {
    /// The LV.
    pub lv: LvId,
    /// Its new floor.
    pub floor: GrantKey,
}

/// The LVs from which one PG, and no other, allocates.
#[derive(Debug, Default)]
pub struct VolumeGroup {
    view: View,
    lvs: BTreeMap<LvId, Lv>,
    asked: LargestRequest,
    /// Disks that refused data lately as full, and the time of the last refusal.
    refused: BTreeMap<DiskId, u64>,
    notes: Notes,
    rest: Rest,
}

/// The reason for which an allocation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSpace {
    /// LVs are still being opened: ask again when they are.
    Opening,
    /// The space that could be given has too few replicas; one that is drawn now would have no more.
    TooNarrow,
    /// The space that rows leave free is still being read: ask again when it is known.
    Unread,
    /// Another LV is needed.
    NeedLv,
    /// The free space is withheld: only an LV on other disks would find room.
    DiskFull,
}

impl VolumeGroup {
    /// An empty group of a view, in which nothing rests unless [`VolumeGroup::rest_for`] says so.
    #[must_use]
    pub fn new(view: View) -> Self {
        Self { view, ..Self::default() }
    }

    /// Adds an LV with the runs that METAX leaves free. It gives no space before it is opened.
    pub fn add(&mut self, info: LvInfo, runs: FreeRuns) {
        let floors = vec![None; info.replicas.len()];
        let asked = GrantKey { view: self.view, seq: OpSeq(0) };
        let lv = Lv {
            present: info.present(),
            runs,
            withheld: None,
            waiting: VecDeque::new(),
            waiting_blocks: 0,
            resting: Resting::default(),
            floors,
            asked,
            gone: Holders::default(),
            probed: Holders::default(),
            leaving: BTreeMap::new(),
            away: Holders::default(),
            pace: CompactionPace::default(),
            unread: None,
            info,
        };
        let known = self.lvs.insert(lv.info.lv, lv);
        assert!(known.is_none(), "an LV joins its group once");
    }

    /// The LVs of the group.
    pub fn infos(&self) -> impl Iterator<Item = &LvInfo> {
        self.lvs.values().map(|lv| &lv.info)
    }

    /// One LV.
    #[must_use]
    pub fn info(&self, lv: LvId) -> Option<&LvInfo> {
        self.lvs.get(&lv).map(|lv| &lv.info)
    }

    /// A replica answered `Open` or a raise with its floor. Returns whether it was out of reach before.
    pub fn floor_acknowledged(&mut self, lv: LvId, replica: usize, floor: GrantKey) -> bool {
        let rest = self.rest_now();
        let Some(lv) = self.lvs.get_mut(&lv) else { return false };
        if floor.view != self.view || !lv.present.has(replica) {
            return false;
        }
        if lv.floors[replica].is_none() {
            self.notes.changed();
        }
        lv.floors[replica] = lv.floors[replica].max(Some(floor));
        lv.probed = lv.probed.without(Holders::default().with(replica));
        let is_back = lv.gone.has(replica) && !lv.lost().has(replica);
        if is_back {
            // It is reachable again, and open in this view; requests to it meanwhile are repeated.
            lv.gone = lv.gone.without(Holders::default().with(replica));
            lv.asked = lv.asked.min(floor);
            // The copies that could not be made to it meanwhile can be now.
            lv.pace = lv.pace.due();
        }
        lv.release_below_floor(rest);
        is_back
    }

    /// A replica of the LV is broken or unreachable: the LV allocates no space until it answers an `Open` again.
    /// Returns true if that is a change.
    pub fn close(&mut self, lv: LvId, replica: usize) -> bool {
        let Some(lv) = self.lvs.get_mut(&lv) else { return false };
        let is_news = !lv.gone.has(replica);
        lv.gone = lv.gone.with(replica);
        lv.probed = lv.probed.without(Holders::default().with(replica));
        if is_news {
            self.notes.changed();
        }
        is_news
    }

    /// Replicas of an LV to be probed for writes, each with the floor that it has acknowledged, since repeating that
    /// floor changes nothing there. One with an open request is left out.
    pub fn probes(&mut self, lv: LvId) -> Vec<(usize, GrantKey)> {
        let Some(lv) = self.lvs.get_mut(&lv) else { return Vec::new() };
        let idle = lv.present.without(lv.gone).without(lv.probed);
        let floors = &lv.floors;
        let asked: Vec<_> = idle.iter().filter_map(|at| Some((at, floors[at]?))).collect();
        lv.probed = asked.iter().fold(lv.probed, |probed, &(at, _)| probed.with(at));
        asked
    }

    /// True if every replica of an LV has answered its `Open`, but for those that are gone; and one has, or all are lost.
    #[must_use]
    pub fn is_fenced(&self, lv: LvId) -> bool {
        self.lvs.get(&lv).is_some_and(|lv| {
            let is_open = |replica: usize| lv.floors[replica].is_some();
            let present = lv.present;
            (present.iter().any(is_open) || lv.lost() == present)
                && present.iter().all(|replica| is_open(replica) || lv.gone.has(replica))
        })
    }

    /// Blocks for `bytes` of data, in one LV of at least so many replicas.
    ///
    /// # Errors
    /// [`NoSpace`].
    pub fn allocate(
        &mut self,
        bytes: u32,
        replicas_min: usize,
    ) -> Result<(LvId, Vec<Extent>), NoSpace> {
        let need = bytes.div_ceil(BLOCK_BYTES).max(1);
        self.asked.note(need);
        let (mut opening, mut narrow) = (false, false);
        for (&id, lv) in &mut self.lvs {
            if replicas_min > 0 && lv.present.count() < replicas_min {
                narrow |= lv.takes_objects();
                continue;
            }
            opening |= lv.is_opening();
            if lv.takes_objects()
                && let Some(extents) = lv.runs.allocate(need)
            {
                return Ok((id, extents));
            }
        }
        if let Some(rested) = self.allocate_resting(need, replicas_min) {
            return Ok(rested);
        }
        Err(if opening {
            NoSpace::Opening
        } else if narrow {
            NoSpace::TooNarrow
        } else if self.unread().is_some() {
            NoSpace::Unread
        } else if self.lvs.values().any(|lv| lv.withheld.is_some()) {
            NoSpace::DiskFull
        } else {
            NoSpace::NeedLv
        })
    }

    /// Disks of replicas, `crowded` if it is known of which, had no room for data at these extents. From the last of
    /// them on the LV gives nothing until [`VolumeGroup::offer_again`], but on the others if they are most of it.
    pub fn withhold(&mut self, lv: LvId, extents: &[Extent], crowded: Holders, now_ms: u64) {
        // A disk gives an LV room again where it had some.
        self.rest_no_more();
        let Some(lv) = self.lvs.get_mut(&lv) else { return };
        let Some(from) = extents.iter().map(|extent| extent.first).max() else { return };
        let mut runs = lv.runs.split_off(from);
        let before = lv.withheld.take();
        let from = before.as_ref().map_or(from, |before| before.from.min(from));
        let mut crowded = crowded.common(lv.present);
        let disks = crowded.iter().map(|replica| lv.info.replicas[replica].disk);
        self.refused.extend(disks.map(|disk| (disk, now_ms)));
        if let Some(before) = before {
            runs.release_all(before.runs);
            crowded = crowded.union(before.crowded);
        }
        lv.withheld = Some(Withheld { from, runs, crowded, since_ms: now_ms });
    }

    /// Gives again what was withheld for [`WITHHELD_MS`]. Returns whether replicas that had no room may lack copies.
    pub fn offer_again(&mut self, now_ms: u64) -> bool {
        let mut may_lack = false;
        self.refused.retain(|_, refused_ms| now_ms < refused_ms.saturating_add(REFUSED_MS));
        for lv in self.lvs.values_mut() {
            let due = |it: &mut Withheld| now_ms.saturating_sub(it.since_ms) >= WITHHELD_MS;
            if let Some(withheld) = lv.withheld.take_if(due) {
                lv.runs.release_all(withheld.runs);
                may_lack |= !withheld.crowded.is_empty();
            }
        }
        may_lack
    }

    /// Extents freed by `freed_by`: they wait for the floors. `at_once` is for bugs that are to be found.
    pub fn free(&mut self, lv: LvId, extents: &[Extent], freed_by: OpId, at_once: bool) {
        let Some(lv) = self.lvs.get_mut(&lv) else { return };
        for &extent in extents {
            if at_once {
                lv.release(extent);
                continue;
            }
            assert!(
                lv.waiting.back().is_none_or(|&(before, _)| before <= freed_by),
                "ops free in their order"
            );
            lv.waiting.push_back((freed_by, extent));
            lv.waiting_blocks += extent.blocks;
        }
    }

    /// Floors to be raised to `oldest_open`, the oldest op that still holds a grant (or the next op if none does). They
    /// are raised where enough space waits, or where any does and `short` of space.
    pub fn raises_due(&mut self, oldest_open: OpSeq, short: bool) -> Vec<FloorRaise> {
        let floor = GrantKey { view: self.view, seq: oldest_open };
        let mut due = Vec::new();
        for (&id, lv) in &mut self.lvs {
            let enough = if short { 1 } else { WAITING_BLOCKS_BEFORE_RAISE };
            let helps = lv.waiting.front().is_some_and(|&(freed_by, _)| freed_by < floor);
            if lv.waiting_blocks >= enough && helps && lv.floor().is_some() && lv.asked < floor {
                lv.asked = floor;
                due.push(FloorRaise { lv: id, floor });
            }
        }
        due
    }

    /// Returns true if a raise is under way that will give space back.
    #[must_use]
    pub fn regains(&self) -> bool {
        self.lvs.values().any(|lv| {
            lv.gone.is_empty()
                && lv.waiting.front().is_some_and(|&(freed_by, _)| freed_by < lv.asked)
        })
    }

    /// Returns true if freed space waits or rests anywhere, any is withheld, or a replica is out of reach.
    #[must_use]
    pub fn wants_tick(&self) -> bool {
        let waits = |lv: &Lv| {
            let (has_orders, rests) = (!lv.leaving.is_empty(), lv.resting.blocks() > 0);
            lv.waiting_blocks > 0
                || rests
                || lv.withheld.is_some()
                || !lv.gone.is_empty()
                || has_orders
        };
        self.lvs.values().any(waits)
    }

    /// Floors of all LVs, in a group whose last op is this.
    pub fn floors(&self, last: OpSeq) -> impl Iterator<Item = Floor> {
        self.lvs.iter().map(move |(&id, lv)| {
            let lowest = lv.floor().map(|floor| floor.seq);
            let lag_ops = lowest.map_or(0, |lowest| last.0.saturating_sub(lowest.0));
            Floor { lv: id, lowest, lag_ops, waiting_blocks: lv.waiting_blocks }
        })
    }
}

#[cfg(test)]
mod tests;
