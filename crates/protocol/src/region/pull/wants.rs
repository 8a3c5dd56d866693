//! Wants: entries that are not here, and what asks for them.

use larder_types::{OpSeq, PgId, RegionId};

use super::super::entry::{Entry, Id, Name};
use super::super::merge::{Contradiction, Holding, holding};
use super::asking::What;
use super::{Alarm, Effect, Holdings, Looked, Pull};
use crate::limits::{REGION_CLOCK_AHEAD_MS_MAX, REGION_HELD_MS};

/// What one journal or comparison told of an entry.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) region: RegionId,
    /// Which journal, and its position there; `None` in a comparison.
    pub(super) at: Option<(PgId, OpSeq)>,
    pub(super) id: Id,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Want {
    claims: Vec<Claim>,
    needs_bytes: bool,
    /// What is under way.
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// A request of the region's; the first so many claims were there when it was asked.
    Asked,
    /// What this region told is being joined.
    Merging {
        region: RegionId,
        claims: usize,
    },
}

/// What is to be fetched of a region.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// The entries, and whether with their bytes.
    pub(super) names: Vec<(Name, bool)>,
    /// How many claims each has.
    pub(super) claims: Vec<(Name, usize)>,
    pub(super) bytes: u64,
}

impl Want {
    pub(super) fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter()
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.state == State::Waiting
    }
}

impl Pull {
    /// Takes what is told of an entry.
    pub(super) fn take(
        &mut self,
        now_ms: u64,
        claim: Claim,
        here: &dyn Holdings,
        out: &mut Vec<Effect>,
    ) {
        if let Some(alarm) = self.objection(now_ms, &claim) {
            out.push(Effect::Alarm(alarm));
            self.held.push((now_ms + REGION_HELD_MS, claim));
            return;
        }
        let holds = match here.entry(&claim.id.name) {
            Looked::Found(entry) => {
                holding(entry.as_ref(), &claim.id, self.was_here(claim.id.origin))
            }
            Looked::Unknown => Holding::Nothing,
        };
        let needs_bytes = match holds {
            Holding::All => return self.settle(&claim, out),
            Holding::Bytes => false,
            Holding::Nothing => true,
        };
        let (name, clock) = (claim.id.name.clone(), claim.id.at.clock);
        if let Some(want) = self.wants.get_mut(&name) {
            want.needs_bytes |= needs_bytes;
            want.claims.push(claim);
            return;
        }
        self.queue.insert((clock, name.clone()));
        let want = Want { claims: vec![claim], needs_bytes, state: State::Waiting };
        self.wants.insert(name, want);
    }

    /// Why a claim is not taken now.
    fn objection(&self, now_ms: u64, claim: &Claim) -> Option<Alarm> {
        let (region, at) = (claim.region, claim.id.at);
        if !at.is_told() || claim.id.origin.region != at.region {
            return Some(Alarm::Unsound { region });
        }
        let ahead_ms = at.clock.ms().saturating_sub(now_ms);
        let is_ahead = ahead_ms > REGION_CLOCK_AHEAD_MS_MAX && !self.planted.takes_clocks_ahead();
        is_ahead.then_some(Alarm::ClockAhead { region: at.region, clock: at.clock })
    }

    /// Chooses what is fetched of a region: the oldest first, until it is this much.
    pub(super) fn choose(&mut self, region: RegionId, ids_max: usize, bytes_max: u64) -> Chosen {
        let (mut chosen, mut places) = (Chosen::default(), Vec::new());
        for place in &self.queue {
            if chosen.names.len() == ids_max || chosen.bytes >= bytes_max {
                break;
            }
            let want = self.wants.get_mut(&place.1).expect("what waits is wanted");
            let told = want.claims.iter().filter(|claim| claim.region == region);
            let Some(most) = told.map(|claim| claim.id.bytes).max() else { continue };
            let bytes = if want.needs_bytes { most } else { 0 };
            chosen.bytes = chosen.bytes.saturating_add(bytes);
            want.state = State::Asked;
            chosen.names.push((place.1.clone(), want.needs_bytes));
            chosen.claims.push((place.1.clone(), want.claims.len()));
            places.push(place.clone());
        }
        for place in places {
            self.queue.remove(&place);
        }
        chosen
    }

    /// Nothing is under way for a want any more.
    pub(super) fn wait_again(&mut self, name: &Name) {
        let want = self.wants.get_mut(name).expect("what was asked for is wanted");
        assert_eq!(want.state, State::Asked, "one request is under way for a want");
        want.state = State::Waiting;
        self.queue.insert((want.claims[0].id.at.clock, name.clone()));
    }

    pub(super) fn fetched(
        &mut self,
        now_ms: u64,
        request: u64,
        (mut entries, untaken): (Vec<(Name, Option<Entry>)>, &[Name]),
        here: &dyn Holdings,
        out: &mut Vec<Effect>,
    ) {
        let Some((region, asked)) = self.answered(request, |what| match what {
            What::Fetch(asked) => Some(std::mem::take(asked)),
            _ => None,
        }) else {
            return;
        };
        for (name, claims) in asked {
            let at = entries.iter().position(|(told, _)| *told == name);
            match at.map(|at| entries.swap_remove(at).1) {
                None if untaken.contains(&name) => self.hold(now_ms, &name),
                None => self.wait_again(&name),
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
        let ahead_ms = entry.clock().ms().saturating_sub(now_ms);
        let is_ahead = ahead_ms > REGION_CLOCK_AHEAD_MS_MAX && !self.planted.takes_clocks_ahead();
        if is_ahead || !entry.is_sound(name.slot) {
            out.push(Effect::Alarm(match is_ahead {
                true => Alarm::ClockAhead { region, clock: entry.clock() },
                false => Alarm::Unsound { region },
            }));
            return self.hold(now_ms, &name);
        }
        let want = self.wants.get_mut(&name).expect("what was asked for is wanted");
        assert_eq!(want.state, State::Asked, "an entry is joined once");
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
        name: &Name,
        here: &dyn Holdings,
        out: &mut Vec<Effect>,
    ) {
        let state = self.wants.get(name).map(|want| want.state);
        let Some(State::Merging { region, claims }) = state else { return };
        self.complete(now_ms, name, (region, claims), here, out);
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

    /// All that a region has of an entry is here: its claims from when it was asked are settled, the others are looked
    /// at again.
    fn complete(
        &mut self,
        now_ms: u64,
        name: &Name,
        (region, claims): (RegionId, usize),
        here: &dyn Holdings,
        out: &mut Vec<Effect>,
    ) {
        let Some(want) = self.wants.remove(name) else { return };
        for (at, claim) in want.claims.into_iter().enumerate() {
            if at < claims && claim.region == region {
                self.settle(&claim, out);
            } else {
                self.take(now_ms, claim, here, out);
            }
        }
    }

    /// What cannot be taken now is looked at again later.
    fn hold(&mut self, now_ms: u64, name: &Name) {
        let Some(want) = self.wants.remove(name) else { return };
        let again = want.claims.into_iter().map(|claim| (now_ms + REGION_HELD_MS, claim));
        self.held.extend(again);
    }

    /// Looks again at what was held long enough.
    pub(super) fn look_at_held(&mut self, now_ms: u64, here: &dyn Holdings, out: &mut Vec<Effect>) {
        let due = |(until_ms, _): &mut (u64, Claim)| *until_ms <= now_ms;
        let due: Vec<_> = self.held.extract_if(.., due).collect();
        for (_, claim) in due {
            self.take(now_ms, claim, here, out);
        }
    }
}
