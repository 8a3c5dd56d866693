//! Wants: entries that are not here, and the claims on them.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{HybridClock, OpSeq, PgId, RegionId};

use super::super::entry::{Entry, Id, Name, Need};
use super::super::merge::{Contradiction, LocalPart, holding};
use super::queue::{Lane, Place, Queue, Size};
use super::requests::{Query, RequestedEntry};
use super::{Alarm, Effect, Fetched, LocalEntries, Lookup, Pull, Source};
use crate::limits::{
    REGION_AWAITED_TRIES_MAX, REGION_CHANGED_TRIES_MAX, REGION_CLOCK_AHEAD_MS_MAX, REGION_HELD_MS,
    REGION_UNKNOWN_MS, REGION_UNKNOWN_TRIES_MAX,
};

/// An entry's id, as one journal or comparison told it.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) region: RegionId,
    /// The group of the key there: its journal tells all changes of the key.
    pg: PgId,
    /// The position at which the journal told it; `None` in a comparison.
    pub(super) at: Option<Position>,
    pub(super) id: Id,
    /// Lookups of the entry that had no answer.
    unknown: u32,
    /// The region does not know the entry's end behind the base that is here: it is asked for all bytes.
    lacks_base: bool,
    /// Looks at it that found that another region may know it.
    awaited: u32,
    /// Fetches in a row that found another version here than they were asked for by.
    changed: u32,
    /// It could not be taken: it has a place among those of which that is so.
    pub(super) is_stuck: bool,
    /// Time for which it was held last, as it could not be taken.
    pub(super) pause_ms: u64,
}

/// A position in a journal, of an era of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    pub(super) op: OpSeq,
    pub(super) era: u32,
}

impl Claim {
    pub(super) fn new(source: Source, at: Option<Position>, id: Id) -> Self {
        let Source { region, pg } = source;
        let (unknown, awaited, changed, pause_ms) = (0, 0, 0, 0);
        let (lacks_base, is_stuck) = (false, false);
        Self { region, pg, at, id, unknown, lacks_base, awaited, changed, is_stuck, pause_ms }
    }

    pub(super) fn source(&self) -> Source {
        Source { region: self.region, pg: self.pg }
    }
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Want {
    claims: Vec<Claim>,
    need: Need,
    /// The step that is under way.
    state: State,
    /// By what regions told when it was queued last.
    size: Size,
    /// The line that it was queued in last.
    lane: Lane,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In the queues of all regions that claim it, at this clock.
    Waiting(HybridClock),
    /// A request for it is under way.
    RequestedEntry,
    /// This region's entry is being joined; the first `claims` were there when it was asked.
    Merging { region: RegionId, claims: usize },
}

/// Entries to fetch from a region.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// The entries.
    pub(super) names: Vec<(Name, Need)>,
    pub(super) asked: Vec<RequestedEntry>,
    pub(super) bytes: u64,
}

impl Want {
    /// Bytes that a fetch of it from this region is charged for, by that region's word.
    fn bytes_from(&self, region: RegionId) -> u64 {
        let reported = self.claims.iter().filter(|claim| claim.region == region);
        let most = reported.map(|claim| claim.id.bytes).max().unwrap_or(0);
        // It is known once it comes whether it grew out of a base.
        if self.need.has_bytes() { most } else { 0 }
    }

    fn size(&self, part_bytes: u64) -> Size {
        let bytes = self.claims.iter().map(|claim| claim.id.bytes).max().unwrap_or(0);
        match self.need {
            Need::Fields => Size::Bare,
            Need::Bytes(_) if bytes == 0 => Size::Bare,
            Need::Bytes(None) if bytes > part_bytes => Size::Large,
            Need::Bytes(_) => Size::Small,
        }
    }

    /// The bytes to ask this region for: all of them if it lacks the base.
    fn need_from(&self, region: RegionId) -> Need {
        match self.need {
            Need::Bytes(Some(_)) if self.lack_base(region) => Need::Bytes(None),
            need => need,
        }
    }

    fn lack_base(&self, region: RegionId) -> bool {
        self.claims.iter().any(|claim| claim.region == region && claim.lacks_base)
    }

    /// The line for it: it is stuck only if each region that told of it could not give it, or it could not be taken of each.
    pub(super) fn lane(&self) -> Lane {
        if self.claims.iter().all(|claim| claim.is_stuck) { Lane::Stuck } else { Lane::Fresh }
    }

    pub(super) fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter()
    }

    /// The clock of its place in queues, if nothing is under way for it.
    pub(super) fn waits_since(&self) -> Option<HybridClock> {
        match self.state {
            State::Waiting(clock) => Some(clock),
            State::RequestedEntry | State::Merging { .. } => None,
        }
    }

    /// The regions that claim it, some more than once.
    pub(super) fn regions(&self) -> impl Iterator<Item = RegionId> {
        self.claims.iter().map(|claim| claim.region)
    }

    /// True if this region's entry settles all claims.
    fn is_settled_by(&self, (region, claims): (RegionId, usize)) -> bool {
        claims == self.claims.len() && self.claims.iter().all(|claim| claim.region == region)
    }
}

impl Pull {
    /// Takes a claim: settles it if its entry is here, else wants the entry.
    pub(super) fn take(
        &mut self,
        now_ms: u64,
        mut claim: Claim,
        here: &dyn LocalEntries,
        out: &mut Vec<Effect>,
    ) {
        if let Some(alarm) = self.refusal(&claim) {
            out.push(Effect::Alarm(alarm));
            // To look at it costs no request, and it may be due soon.
            return self.hold_for(now_ms, REGION_HELD_MS, claim);
        }
        let (holds, base) = match here.entry(&claim.id.name) {
            Lookup::Found(entry) => {
                let holds = holding(entry.as_ref(), &claim.id, self.was_here(claim.id.origin));
                (holds, entry.and_then(|entry| entry.base(claim.id.bytes)))
            }
            // Most likely its PG has no primary, which could not take it either.
            Lookup::Unknown if claim.unknown < REGION_UNKNOWN_TRIES_MAX => {
                claim.unknown += 1;
                return self.held.push((now_ms + REGION_UNKNOWN_MS, claim));
            }
            Lookup::Unknown => (LocalPart::Nothing, None),
        };
        let need = match holds {
            LocalPart::All => return self.settle(&claim, out),
            LocalPart::Bytes => Need::Fields,
            LocalPart::Nothing => Need::Bytes(base),
        };
        if claim.lacks_base
            && matches!(need, Need::Bytes(Some(_)))
            && self.is_awaited(now_ms, &claim)
        {
            claim.awaited += 1;
            return self.held.push((now_ms + REGION_UNKNOWN_MS, claim));
        }
        let (name, clock, region) = (claim.id.name.clone(), claim.id.at.clock, claim.region);
        let state = State::Waiting(clock);
        let part_bytes = self.part_bytes;
        let new = || Want { claims: Vec::new(), need, state, size: Size::Small, lane: Lane::Fresh };
        let want = self.wants.entry(name.clone()).or_insert_with(new);
        if need.has_bytes() {
            want.need = need;
        }
        want.claims.push(claim);
        if want.claims.len() == 1 {
            (want.size, want.lane) = (want.size(part_bytes), want.lane());
        }
        let Some(clock) = want.waits_since() else { return };
        let (size, place) = (want.size, (clock, name));
        if want.lane == want.lane() {
            let lane = want.lane;
            return self.queue_of(region).insert(place, size, lane);
        }
        want.lane = want.lane();
        let (lane, regions) = (want.lane, want.regions().collect::<Vec<_>>());
        for region in regions {
            self.queue_of(region).remove(&place);
            self.queue_of(region).insert(place.clone(), size, lane);
        }
    }

    /// True if another region that is reached may give the end of a claim's entry behind the base.
    fn is_awaited(&self, now_ms: u64, claim: &Claim) -> bool {
        if claim.awaited >= REGION_AWAITED_TRIES_MAX {
            return false;
        }
        let Some(want) = self.wants.get(&claim.id.name) else { return false };
        want.regions().any(|region| {
            let is_reached = self.peers.get(&region).is_some_and(|it| it.quiet_until_ms <= now_ms);
            region != claim.region && is_reached && !want.lack_base(region)
        })
    }

    fn queue_of(&mut self, region: RegionId) -> &mut Queue {
        &mut self.peers.get_mut(&region).expect("who told of it is known").queue
    }

    /// The reason for not taking a claim now.
    fn refusal(&self, claim: &Claim) -> Option<Alarm> {
        let (region, at) = (claim.region, claim.id.at);
        if !at.is_qualified() || claim.id.origin.region != at.region {
            return Some(Alarm::Unsound { region });
        }
        self.is_ahead(at.clock).then_some(Alarm::ClockAhead { region: at.region, clock: at.clock })
    }

    /// True if a clock is further ahead of this region's than may be.
    fn is_ahead(&self, clock: HybridClock) -> bool {
        let ahead_ms = clock.ms().saturating_sub(self.wall_ms);
        ahead_ms > REGION_CLOCK_AHEAD_MS_MAX && !self.planted.takes_clocks_ahead()
    }

    /// Chooses entries to fetch from a region: the oldest first, until they are this much.
    pub(super) fn choose(
        &mut self,
        (region, lane): (RegionId, Lane),
        ids_max: usize,
        bytes_max: u64,
    ) -> Chosen {
        let mut chosen = Chosen::default();
        while chosen.names.len() < ids_max && chosen.bytes < bytes_max {
            let Some(place) = self.queue_of(region).pop_small(lane) else { break };
            let asked = self.begin_fetch(region, &place, u64::MAX);
            chosen.bytes = chosen.bytes.saturating_add(asked.bytes);
            chosen.names.push((place.1, asked.need));
            chosen.asked.push(asked);
        }
        chosen
    }

    /// Chooses an entry of many bytes of which a part is to be fetched, unless older ones are to be fetched first.
    pub(super) fn choose_large(
        &mut self,
        (region, lane): (RegionId, Lane),
        part_bytes: u64,
    ) -> Option<RequestedEntry> {
        let place = self.queue_of(region).pop_large(lane)?;
        let asked = self.begin_fetch(region, &place, part_bytes);
        Some(RequestedEntry { is_large: true, ..asked })
    }

    /// Assigns a want to a request, so that no other region is asked for it. If all of its bytes are wanted, the
    /// request is for at most so many.
    fn begin_fetch(&mut self, region: RegionId, place: &Place, bytes_max: u64) -> RequestedEntry {
        let want = self.wants.get_mut(&place.1).expect("what waits is wanted");
        assert_eq!(want.state, State::Waiting(place.0), "what is queued waits");
        let (need, bytes) = (want.need_from(region), want.bytes_from(region));
        let is_part = need == Need::Bytes(None) && bytes_max < u64::MAX;
        want.state = State::RequestedEntry;
        let others: Vec<RegionId> = want.regions().filter(|other| *other != region).collect();
        let (name, claims, lane) = (place.1.clone(), want.claims.len(), want.lane);
        for other in others {
            self.queue_of(other).remove(place);
        }
        self.busy += 1;
        let bytes = bytes.min(bytes_max);
        RequestedEntry { name, claims, bytes, need, lane, is_large: false, is_part }
    }

    /// Puts a want back into queues, as nothing is under way for it any more.
    pub(super) fn requeue(&mut self, name: &Name) {
        let want = self.wants.get_mut(name).expect("what was asked for is wanted");
        assert_eq!(want.state, State::RequestedEntry, "one request is under way for a want");
        let clock = want.claims[0].id.at.clock;
        want.state = State::Waiting(clock);
        (want.size, want.lane) = (want.size(self.part_bytes), want.lane());
        self.busy -= 1;
        let (size, lane, regions) = (want.size, want.lane, want.regions().collect::<Vec<_>>());
        for region in regions {
            self.queue_of(region).insert((clock, name.clone()), size, lane);
        }
    }

    /// Takes out a want that something is under way for.
    fn end(&mut self, name: &Name) -> Option<Want> {
        let want = self.wants.remove(name)?;
        assert_eq!(want.waits_since(), None, "what waits does not end");
        self.busy -= 1;
        Some(want)
    }

    pub(super) fn fetched(
        &mut self,
        now_ms: u64,
        request: u64,
        Fetched { entries, untaken, withheld, baseless, changed, received_bytes }: Fetched,
        here: &dyn LocalEntries,
        out: &mut Vec<Effect>,
    ) {
        let Some((region, asked)) = self.answered(request, |what| match what {
            Query::Fetch(asked) => Some(std::mem::take(asked)),
            _ => None,
        }) else {
            return;
        };
        self.settle_budget(region, &asked, received_bytes);
        let lists = [&untaken, &withheld, &baseless, &changed];
        if received_bytes == 0 && entries.is_empty() && lists.iter().all(|names| names.is_empty()) {
            self.back_off(now_ms, region);
        }
        // Of a name that comes twice the first counts.
        let mut reported = BTreeMap::new();
        for (name, entry) in entries {
            reported.entry(name).or_insert(entry);
        }
        let [untaken, withheld, baseless, changed] =
            lists.map(|names| names.iter().collect::<BTreeSet<&Name>>());
        for RequestedEntry { name, claims, need, .. } in asked {
            let is_baseless = baseless.contains(&name);
            let has_base = matches!(need, Need::Bytes(Some(_)));
            match reported.remove(&name) {
                None if untaken.contains(&name) => self.hold(now_ms, &name),
                None if is_baseless || withheld.contains(&name) => {
                    self.hold_of(now_ms, &name, region, has_base && is_baseless);
                }
                None if changed.contains(&name) => self.look_again(now_ms, &name, here, out),
                None => self.requeue(&name),
                Some(None) => self.complete(now_ms, &name, (region, claims), here, out),
                Some(Some(entry)) => self.merge(now_ms, name, entry, (region, claims), out),
            }
        }
    }

    fn merge(
        &mut self,
        now_ms: u64,
        name: Name,
        entry: Entry,
        (region, claims): (RegionId, usize),
        out: &mut Vec<Effect>,
    ) {
        let is_ahead = self.is_ahead(entry.clock());
        if is_ahead || !entry.is_sound(name.slot) {
            out.push(Effect::Alarm(match is_ahead {
                true => Alarm::ClockAhead { region, clock: entry.clock() },
                false => Alarm::Unsound { region },
            }));
            return self.hold(now_ms, &name);
        }
        let want = self.wants.get_mut(&name).expect("what was asked for is wanted");
        assert_eq!(want.state, State::RequestedEntry, "an entry is joined once");
        want.state = State::Merging { region, claims };
        if self.planted.moves_tokens_early() {
            let early: Vec<_> = want.claims.drain(..claims).collect();
            want.state = State::Merging { region, claims: 0 };
            early.iter().for_each(|claim| self.settle(claim, out));
        }
        out.push(Effect::Merge { name, entry });
    }

    pub(super) fn merged(
        &mut self,
        now_ms: u64,
        names: &[Name],
        here: &dyn LocalEntries,
        out: &mut Vec<Effect>,
    ) {
        for name in names {
            if let Some(by) = self.merging(name) {
                self.complete(now_ms, name, by, here, out);
            }
        }
    }

    /// The region whose entry is being joined, and how many claims the want had when that region was asked.
    fn merging(&self, name: &Name) -> Option<(RegionId, usize)> {
        match self.wants.get(name)?.state {
            State::Merging { region, claims } => Some((region, claims)),
            State::Waiting(_) | State::RequestedEntry => None,
        }
    }

    /// True if claims are looked at again once an entry is joined: those of other regions, and those that came later.
    pub(super) fn is_due_for_recheck(&self, name: &Name) -> bool {
        self.merging(name).is_some_and(|by| !self.wants[name].is_settled_by(by))
    }

    pub(super) fn contradicted(
        &mut self,
        now_ms: u64,
        name: Name,
        why: Contradiction,
        out: &mut Vec<Effect>,
    ) {
        self.hold(now_ms, &name);
        out.push(Effect::Alarm(Alarm::Contradiction { name, why }));
    }

    /// Ends a want, as all that a region has of it is here: settles the region's claims from the time of the request,
    /// and examines the others again.
    fn complete(
        &mut self,
        now_ms: u64,
        name: &Name,
        (region, claims): (RegionId, usize),
        here: &dyn LocalEntries,
        out: &mut Vec<Effect>,
    ) {
        let Some(want) = self.end(name) else { return };
        for (at, claim) in want.claims.into_iter().enumerate() {
            if at < claims && claim.region == region {
                self.settle(&claim, out);
            } else {
                self.take(now_ms, claim, here, out);
            }
        }
    }

    /// Looks at all claims of a want again, as another version is here than they were asked for by. One for which that happens again
    /// and again is held for a while.
    fn look_again(
        &mut self,
        now_ms: u64,
        name: &Name,
        here: &dyn LocalEntries,
        out: &mut Vec<Effect>,
    ) {
        let Some(want) = self.end(name) else { return };
        for mut claim in want.claims {
            claim.changed += 1;
            if claim.changed > REGION_CHANGED_TRIES_MAX {
                claim.changed = 0;
                self.hold_stuck(now_ms, claim);
            } else {
                self.take(now_ms, claim, here, out);
            }
        }
    }

    /// Holds claims that cannot be taken now, and looks at them again later.
    fn hold(&mut self, now_ms: u64, name: &Name) {
        let Some(want) = self.end(name) else { return };
        for mut claim in want.claims {
            claim.changed = 0;
            self.hold_stuck(now_ms, claim);
        }
    }

    /// Asks the other regions that told of an entry, and this one later.
    fn hold_of(&mut self, now_ms: u64, name: &Name, region: RegionId, lacks_base: bool) {
        let want = self.wants.get_mut(name).expect("what was asked for is wanted");
        let is_alone = want.regions().all(|other| other == region);
        let of_region = want.claims.extract_if(.., |claim| claim.region == region);
        let of_region: Vec<_> = of_region.collect();
        match is_alone {
            true => drop(self.end(name)),
            false => self.requeue(name),
        }
        for mut claim in of_region {
            if lacks_base {
                claim.lacks_base = true;
                // The region that appended has the end alone, and tells of it in a moment.
                self.held.push((now_ms + REGION_UNKNOWN_MS, claim));
            } else {
                self.hold_stuck(now_ms, claim);
            }
        }
    }

    /// Looks again at claims that were held long enough.
    pub(super) fn retry_held(
        &mut self,
        now_ms: u64,
        here: &dyn LocalEntries,
        out: &mut Vec<Effect>,
    ) {
        let due = |(until_ms, _): &mut (u64, Claim)| *until_ms <= now_ms;
        let due: Vec<_> = self.held.extract_if(.., due).collect();
        for (_, claim) in due {
            self.take(now_ms, claim, here, out);
        }
    }
}
