//! The search for an order of one key's calls.

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};

use larder_env::SeededRng;

use super::known_objects::{KnownObjects, sums_of};
use super::{
    CallCondition, CallResult, Entry, Invocation, NEVER, Shown, after, is_append, shown_in,
    value_of,
};
use crate::content::len_of;

/// Tries from which on it is kept what a call was found to take: this also bounds what is kept.
const KEPT_TRIES_MIN: u64 = 1_000;
/// Most moves that are kept of one call: longer lists are found again.
const KEPT_MOVES_MAX: usize = 1_000;

/// The cost at which a search is given up; that counts as a failure, to be looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) steps: usize,
    /// Calls tried in chains without an answer.
    pub(super) tried: u64,
    /// Moves in memory, of some 130 bytes each.
    pub(super) moves: usize,
}

impl Limits {
    /// A quarter of an hour, and half a gigabyte.
    pub(super) const PATIENT: Self =
        Self { steps: 2_000_000, tried: 2_000_000_000, moves: 4_000_000 };

    /// Those of a thorough search: where a history is wrong nearly all orders are to be tried, and it comes after
    /// one that says already that few calls explain nothing.
    pub(super) fn of_thorough(self) -> Self {
        Self { steps: self.steps / 10, tried: self.tried / 10, ..self }
    }
}

/// The result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// An order explains the calls.
    Explained,
    /// None does.
    Unexplained,
    /// None does that takes as few calls without an answer as will do; of others it was not found out.
    UnexplainedByFew,
    /// It was not found out.
    GivenUp,
}

/// The length that an answer gives the object at the time of the call.
fn size_seen(entry: &Entry) -> Option<u64> {
    match entry.answered {
        CallResult::Shows(Some(shown)) => Some(shown.size),
        CallResult::Grown(size) | CallResult::Ends(size) => Some(size),
        _ => None,
    }
}

/// A search for an order of one key's calls.
///
/// Calls without an answer are placed only where they make the next answered call possible: placed
/// anywhere else they could as well come later, or never. Of several that nobody has seen and that
/// do the same, one stands for all.
///
/// A search that is not thorough takes as few of them as make a call possible. That may be too few. A condition that is not
/// met says of the object only what it is not, a length fits many, and a later call may tell which it was.
pub(super) struct Search<'a> {
    entries: &'a [Entry],
    made: &'a KnownObjects,
    marks: Vec<u64>,
    /// Values that somebody has seen, or named in a condition; `None` if others may be in objects that were seen.
    seen: Option<BTreeSet<u64>>,
    /// True if it may be seen how long an object was that is otherwise unseen.
    lengths_count: bool,
    /// With which objects tags were seen, and what those were before; `None` if that is not known of all.
    tagged: BTreeMap<u64, Option<BTreeSet<u128>>>,
    done: Vec<bool>,
    done_hash: u64,
    answered_left: usize,
    visited: BTreeSet<(u64, u128, u64)>,
    /// The call that puts or appends a value.
    of_value: BTreeMap<u64, usize>,
    /// Calls that were tried in chains.
    tried: Cell<u64>,
    /// Moves in memory.
    held: Cell<usize>,
    /// A limit was reached: not all moves were found.
    given_up: Cell<bool>,
    limits: Limits,
    is_thorough: bool,
    /// The moves found before a call, by their key: the call, the state, and which calls are open.
    kept: BTreeMap<(usize, Option<Shown>, u64), Vec<Move>>,
}

/// Calls taken together: some without an answer, then one that has it; and the state after.
#[derive(Clone)]
struct Move {
    calls: Vec<usize>,
    next: Option<Shown>,
}

/// One place in the order: what may come there, and what was taken.
struct Place {
    moves: Vec<Move>,
    taken: Vec<usize>,
}

/// Calls without an answer that may come next.
struct Open {
    calls: Vec<usize>,
    /// Of several that do the same, the one that comes before this one.
    twins: BTreeMap<usize, usize>,
    sums: OnceCell<Vec<BTreeSet<u64>>>,
}

/// Most calls without an answer, of any kind, that are placed before one call with it.
const CHAIN_MAX: usize = 3;
/// Most of them if all but the first are appends, each of which leaves its part to be seen, and one that sets the tags.
const APPENDS_MAX: usize = 8;
/// Most appends among those that nobody has read.
const UNREAD_MAX: usize = 4;
/// Most appends of which it is known how many bytes they may have together.
const SUMMED_MAX: usize = 4;

impl<'a> Search<'a> {
    /// One that takes as few calls as will do.
    pub(super) fn new(entries: &'a [Entry], made: &'a KnownObjects, limits: Limits) -> Self {
        let mut rng = SeededRng::new(0xC0FF_EE00);
        Self {
            entries,
            made,
            marks: entries.iter().map(|_| rng.next_u64()).collect(),
            seen: seen(entries, made),
            tagged: tagged(entries, made),
            lengths_count: entries.iter().any(is_append),
            done: vec![false; entries.len()],
            done_hash: 0,
            answered_left: entries.iter().filter(|entry| entry.ended != NEVER).count(),
            visited: BTreeSet::new(),
            of_value: of_value(entries),
            tried: Cell::new(0),
            held: Cell::new(0),
            given_up: Cell::new(false),
            limits,
            is_thorough: false,
            kept: BTreeMap::new(),
        }
    }

    /// A thorough one, with a part of the limits.
    pub(super) fn thorough(entries: &'a [Entry], made: &'a KnownObjects, limits: Limits) -> Self {
        let search = Self::new(entries, made, limits.of_thorough());
        Self { is_thorough: true, ..search }
    }

    /// Searches for an order.
    pub(super) fn run(&mut self) -> Verdict {
        let mut places = vec![Place { moves: self.moves(None), taken: Vec::new() }];
        for _step in 0..self.limits.steps {
            if self.answered_left == 0 {
                return Verdict::Explained;
            }
            if self.given_up.get() {
                return Verdict::GivenUp;
            }
            let Some(place) = places.last_mut() else { return Verdict::Unexplained };
            for at in std::mem::take(&mut place.taken) {
                self.mark(at, false);
            }
            let Some(Move { calls, next }) = place.moves.pop() else {
                places.pop();
                continue;
            };
            self.held.update(|held| held - 1);
            calls.iter().for_each(|&at| self.mark(at, true));
            place.taken = calls;
            let (value, tags) = next.map_or((0, 0), |shown| (shown.value, shown.tags));
            if self.visited.insert((self.done_hash, value, tags)) {
                let moves = self.moves(next);
                places.push(Place { moves, taken: Vec::new() });
            }
        }
        Verdict::GivenUp
    }

    #[cfg(test)]
    pub(super) fn tried(&self) -> u64 {
        self.tried.get()
    }

    /// True if a limit is reached, now or before.
    fn is_given_up(&self) -> bool {
        let Limits { tried, moves, .. } = self.limits;
        let is_reached = self.tried.get() >= tried || self.held.get() >= moves;
        self.given_up.set(self.given_up.get() || is_reached);
        self.given_up.get()
    }

    fn mark(&mut self, at: usize, done: bool) {
        self.done[at] = done;
        self.done_hash ^= self.marks[at];
        if self.entries[at].ended != NEVER {
            self.answered_left = if done { self.answered_left - 1 } else { self.answered_left + 1 };
        }
    }

    /// The moves that may come next: no answered call that is left ended before it began. The last is tried first.
    fn moves(&mut self, state: Option<Shown>) -> Vec<Move> {
        let left = || self.entries.iter().enumerate().filter(|(at, _)| !self.done[*at]);
        let first_end = left().map(|(_, entry)| entry.ended).min().unwrap_or(NEVER);
        let (mut answered, mut open) = (Vec::new(), Vec::new());
        let mut twins = BTreeMap::new();
        let mut kinds: Vec<(Invocation, Vec<usize>)> = Vec::new();
        for (at, entry) in left().take_while(|(_, entry)| entry.begun < first_end) {
            if entry.ended != NEVER {
                answered.push(at);
                continue;
            }
            let kind = match entry.asked {
                Invocation::Put(value, on) if self.is_unseen(value) => {
                    Invocation::Put(if self.lengths_count { len_of(value) } else { 0 }, on)
                }
                Invocation::Append(value, at, on) if self.is_unseen(value) => {
                    Invocation::Append(len_of(value), at, on)
                }
                asked => asked,
            };
            let index = kinds.iter().position(|(other, _)| *other == kind);
            let index = index.unwrap_or_else(|| {
                kinds.push((kind, Vec::new()));
                kinds.len() - 1
            });
            let same = &mut kinds[index].1;
            if same.len() < doing_the_same_max(kind) {
                twins.extend(same.last().map(|&before| (at, before)));
                same.push(at);
                open.push(at);
            }
        }
        answered.sort_by_key(|&at| std::cmp::Reverse(self.entries[at].ended));
        let open = Open { calls: open, twins, sums: OnceCell::new() };
        answered.into_iter().flat_map(|at| self.moves_to(at, &open, state)).collect()
    }

    /// The moves that end with an answered call, of which the last is tried first. Searches come back to the same state
    /// with the same calls open, only other answered ones taken: that changes nothing here.
    fn moves_to(&mut self, at: usize, open: &Open, state: Option<Shown>) -> Vec<Move> {
        let marks = open.calls.iter().fold(0, |marks, &call| marks ^ self.marks[call]);
        if let Some(kept) = self.kept.get(&(at, state, marks)) {
            self.held.update(|held| held + kept.len());
            return kept.clone();
        }
        if !self.may_come_after(at, open, state) {
            return Vec::new();
        }
        let (tried_before, held_before) = (self.tried.get(), self.held.get());
        let mut found: Vec<Move> = Vec::new();
        for length in 0..=APPENDS_MAX {
            self.chains(length, open, state, &mut Vec::new(), at, &mut found);
            found.retain(|it| self.may_be_tagged(at, it.next));
            self.held.set(held_before + found.len());
            let is_enough = !self.is_thorough || length >= self.enough(at);
            if !found.is_empty() && is_enough && !self.is_tagged_in_doubt(at) {
                break;
            }
        }
        found.reverse();
        let is_dear = self.tried.get() - tried_before >= KEPT_TRIES_MIN;
        if is_dear && found.len() <= KEPT_MOVES_MAX {
            self.held.update(|held| held + found.len());
            self.kept.insert((at, state, marks), found.clone());
        }
        found
    }

    /// Calls after which no longer chain tells more than those found. Of an object of which only the length is told, any of
    /// that length may be it.
    fn enough(&self, at: usize) -> usize {
        let entry = &self.entries[at];
        let is_told = size_seen(entry).is_none() || self.found_by(entry).is_some();
        if is_told { CHAIN_MAX } else { APPENDS_MAX }
    }

    /// True if open calls may lead from the state to the object that the call found, as far as that is known. One of them
    /// puts or appends each of its values from its last on, back to where it is the state.
    fn may_come_after(&self, at: usize, open: &Open, state: Option<Shown>) -> bool {
        let Some(found) = self.found_by(&self.entries[at]) else { return true };
        for object in self.made.before(found) {
            if state.is_some_and(|state| state.value == object) {
                return true;
            }
            let maker = self.made.last_of(object).and_then(|value| self.of_value.get(&value));
            if maker.is_some_and(|maker| !open.calls.contains(maker)) {
                return false;
            }
        }
        true
    }

    /// The object that a call found there, if it is told which.
    fn found_by(&self, entry: &Entry) -> Option<u128> {
        match (entry.asked, entry.answered) {
            (_, CallResult::Shows(shown)) => shown.map(|shown| shown.value),
            (Invocation::Append(value, ..), CallResult::Grown(_)) => {
                self.made.before_of(value).flatten()
            }
            _ => None,
        }
    }

    /// Tags are put to what is there, and stay while it is appended to: who sees them sees an object that began so.
    fn may_be_tagged(&self, at: usize, next: Option<Shown>) -> bool {
        let seen = self.tagged_by(at).and_then(Option::as_ref);
        next.is_none_or(|next| seen.is_none_or(|seen| seen.contains(&next.value)))
    }

    /// True if its tags were seen with an object of which it is not known how it began.
    fn is_tagged_in_doubt(&self, at: usize) -> bool {
        self.tagged_by(at).is_some_and(Option::is_none)
    }

    fn tagged_by(&self, at: usize) -> Option<&Option<BTreeSet<u128>>> {
        let Invocation::SetTags(tags) = self.entries[at].asked else { return None };
        self.tagged.get(&tags)
    }

    fn is_unseen(&self, value: u64) -> bool {
        self.seen.as_ref().is_some_and(|seen| !seen.contains(&value))
    }

    /// The state after a call, if it may come in this state.
    fn after(&self, at: usize, state: Option<Shown>) -> Option<Option<Shown>> {
        let entry = &self.entries[at];
        if let Invocation::Append(value, ..) = entry.asked
            && matches!(entry.answered, CallResult::Unknown | CallResult::Grown(_))
            && !self.made.may_follow(value, state)
        {
            return None;
        }
        after(entry, state)
    }

    /// Moves of exactly `length` calls without an answer before the call `last`.
    fn chains(
        &self,
        length: usize,
        open: &Open,
        state: Option<Shown>,
        chain: &mut Vec<usize>,
        last: usize,
        found: &mut Vec<Move>,
    ) {
        if length == 0 {
            if let Some(next) = self.after(last, state) {
                let calls = chain.iter().copied().chain([last]).collect();
                found.push(Move { calls, next });
                self.held.update(|held| held + 1);
            }
            return;
        }
        let of_appends = chain.len() + length > CHAIN_MAX;
        for &at in &open.calls {
            if self.is_given_up() {
                return;
            }
            self.tried.set(self.tried.get() + 1);
            let twin = open.twins.get(&at);
            let fits = !chain.contains(&at)
                && twin.is_none_or(|before| chain.contains(before))
                && self.is_in_order(chain, at)
                && self.leads_to(last, length, at, state)
                && (!of_appends || self.is_appended_for(last, length, chain, at, state, open));
            if fits && let Some(next) = self.after(at, state) {
                chain.push(at);
                self.chains(length - 1, open, next, chain, last, found);
                chain.pop();
            }
        }
    }

    /// True if a call may come `length` calls before `last`, by what that one tells of the object.
    fn leads_to(&self, last: usize, length: usize, at: usize, state: Option<Shown>) -> bool {
        let Some(wanted) = size_seen(&self.entries[last]).filter(|_| length == 1) else {
            return true;
        };
        let is_it = match (self.entries[at].asked, shown_in(&self.entries[last])) {
            (Invocation::Put(value, _), Some(shown)) => Shown::put(value).value == shown.value,
            _ => true,
        };
        is_it && self.size_after(at, state) == wanted
    }

    /// True if a call may be in a long chain of appends, `length` calls before `last`.
    fn is_appended_for(
        &self,
        last: usize,
        length: usize,
        chain: &[usize],
        at: usize,
        state: Option<Shown>,
        open: &Open,
    ) -> bool {
        let last = &self.entries[last];
        let Some(wanted) = size_seen(last) else { return false };
        let sets_tags = |it: usize| self.sets_tags_of(it, last);
        let is_part = chain.is_empty() || is_append(&self.entries[at]) || sets_tags(at);
        let is_read = matches!(last.answered, CallResult::Shows(_));
        let unread = chain.iter().filter(|it| self.is_unread(**it)).count();
        let may_be_unread = unread < UNREAD_MAX && !(is_read && self.is_unseen_call(at));
        // Of those to come all are appends, or all but one.
        let is_tagged = chain.iter().chain([&at]).any(|&it| sets_tags(it));
        let may_be_tagged = !is_tagged && open.calls.iter().any(|&it| sets_tags(it));
        let appends = length.saturating_sub(1 + usize::from(may_be_tagged))..length;
        let left = wanted.checked_sub(self.size_after(at, state));
        is_part
            && (!self.is_unread(at) || may_be_unread)
            && left.is_some_and(|left| appends.into_iter().any(|n| self.may_grow_by(left, n, open)))
    }

    /// True if a call sets the tags that an answer shows.
    fn sets_tags_of(&self, at: usize, last: &Entry) -> bool {
        let tags = shown_in(last).map(|shown| shown.tags);
        matches!(self.entries[at].asked, Invocation::SetTags(set) if Some(set) == tags)
    }

    fn size_after(&self, at: usize, state: Option<Shown>) -> u64 {
        let before = state.map_or(0, |shown| shown.size);
        match self.entries[at].asked {
            Invocation::Append(value, ..) => before + len_of(value),
            Invocation::Put(value, _) => len_of(value),
            Invocation::Delete(_) => 0,
            Invocation::SetTags(_) | Invocation::Get => before,
        }
    }

    /// True if so many appends may have so many bytes.
    fn may_grow_by(&self, bytes: u64, count: usize, open: &Open) -> bool {
        let sums = open.sums.get_or_init(|| self.sums_of(&open.calls));
        sums.get(count).is_none_or(|sums| sums.contains(&bytes))
    }

    /// By how many there are, the bytes that appends without an answer may have together.
    fn sums_of(&self, open: &[usize]) -> Vec<BTreeSet<u64>> {
        let appends = open.iter().map(|&at| &self.entries[at]).filter(|entry| is_append(entry));
        sums_of(appends.filter_map(value_of).map(len_of), SUMMED_MAX)
    }

    /// Of two appends that nobody has seen either may be the first: the order in which they began stands for both.
    fn is_in_order(&self, chain: &[usize], at: usize) -> bool {
        let is_either = |it: usize| {
            let is_plain = matches!(
                self.entries[it].asked,
                Invocation::Append(_, None, CallCondition::Always)
            );
            is_plain && self.is_unseen_call(it)
        };
        chain.last().is_none_or(|&before| before < at || !is_either(before) || !is_either(at))
    }

    fn is_unseen_call(&self, at: usize) -> bool {
        value_of(&self.entries[at]).is_some_and(|value| self.is_unseen(value))
    }

    /// True if it is not known where its value was appended.
    fn is_unread(&self, at: usize) -> bool {
        is_append(&self.entries[at])
            && value_of(&self.entries[at]).is_some_and(|value| !self.made.has(value))
    }
}

/// The most calls that do the same to place before one call: a second changes something only where
/// it appends.
fn doing_the_same_max(kind: Invocation) -> usize {
    if matches!(kind, Invocation::Append(_, None, _)) { UNREAD_MAX } else { 1 }
}

/// The call that puts or appends a value.
fn of_value(entries: &[Entry]) -> BTreeMap<u64, usize> {
    let values = entries.iter().enumerate().map(|(at, entry)| (value_of(entry), at));
    values.filter_map(|(value, at)| Some((value?, at))).collect()
}

/// True if it is known of which values an object is made.
fn is_known(object: u128, entries: &[Entry], made: &KnownObjects) -> bool {
    let is_alone = |value: u64| Shown::put(value).value == object;
    made.knows(object) || entries.iter().filter_map(value_of).any(is_alone)
}

/// Values that were seen, as far as that can be told: a list may show an object that nobody read, made of any of them.
fn seen(entries: &[Entry], made: &KnownObjects) -> Option<BTreeSet<u64>> {
    let values: Vec<u64> = entries.iter().filter_map(value_of).collect();
    let shown: BTreeSet<u128> =
        entries.iter().filter_map(shown_in).map(|shown| shown.value).collect();
    let named = entries.iter().filter_map(|entry| match entry.asked {
        Invocation::Put(_, CallCondition::Value(value))
        | Invocation::Delete(CallCondition::Value(value)) => Some(value),
        Invocation::Append(_, _, CallCondition::Value(value)) => Some(value),
        _ => None,
    });
    let is_seen = |value: &u64| made.has(*value) || shown.contains(&Shown::put(*value).value);
    let all_known = shown.iter().all(|&object| is_known(object, entries, made));
    all_known.then(|| values.iter().copied().filter(is_seen).chain(named).collect())
}

/// With which objects tags were seen.
fn tagged(entries: &[Entry], made: &KnownObjects) -> BTreeMap<u64, Option<BTreeSet<u128>>> {
    let mut tagged = BTreeMap::new();
    for shown in entries.iter().filter_map(shown_in) {
        let seen = tagged.entry(shown.tags).or_insert_with(|| Some(BTreeSet::new()));
        if !is_known(shown.value, entries, made) {
            *seen = None;
        } else if let Some(seen) = seen {
            seen.extend(made.before(shown.value));
        }
    }
    tagged
}
