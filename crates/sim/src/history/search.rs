//! The search for an order of one key's calls.

use std::collections::BTreeSet;

use larder_env::SeededRng;

use super::made::Made;
use super::{Answered, Asked, Entry, If, NEVER, Shown, after, is_append};
use crate::content::len_of;

/// Steps after which a search is given up; that counts as a failure, to be looked at.
const STEPS_MAX: usize = 2_000_000;

/// How long an answer says that the object was when the call was made.
fn size_seen(entry: &Entry) -> Option<u64> {
    match entry.answered {
        Answered::Shows(Some(shown)) => Some(shown.size),
        Answered::Grown(size) | Answered::Ends(size) => Some(size),
        _ => None,
    }
}

/// A search for an order of one key's calls.
///
/// Calls without an answer are placed only where they make the next answered call possible: placed
/// anywhere else they could as well come later, or never. Of several that nobody has seen and that
/// do the same, one stands for all.
pub(super) struct Search<'a> {
    entries: &'a [Entry],
    made: &'a Made,
    marks: Vec<u64>,
    /// Values that somebody has seen, or named in a condition; `None` if others may be in objects that were seen.
    seen: Option<BTreeSet<u64>>,
    /// Whether it may be seen how long an object was that is otherwise unseen.
    lengths_count: bool,
    done: Vec<bool>,
    done_hash: u64,
    answered_left: usize,
    visited: BTreeSet<(u64, u128, u64)>,
}

/// Calls taken together: some without an answer, then one that has it; and the state after.
struct Move {
    calls: Vec<usize>,
    next: Option<Shown>,
}

/// One place in the order: what may come there, and what was taken.
struct Place {
    moves: Vec<Move>,
    taken: Vec<usize>,
}

/// Most calls without an answer, of any kind, that are placed before one call with it.
const CHAIN_MAX: usize = 3;
/// Most of them if all but the first are appends, each of which leaves its part to be seen.
const APPENDS_MAX: usize = 8;

impl<'a> Search<'a> {
    pub(super) fn new(entries: &'a [Entry], made: &'a Made) -> Self {
        let mut rng = SeededRng::new(0xC0FF_EE00);
        Self {
            entries,
            made,
            marks: entries.iter().map(|_| rng.next_u64()).collect(),
            seen: seen(entries, made),
            lengths_count: entries.iter().any(is_append),
            done: vec![false; entries.len()],
            done_hash: 0,
            answered_left: entries.iter().filter(|entry| entry.ended != NEVER).count(),
            visited: BTreeSet::new(),
        }
    }

    /// Whether there is one. A search that is given up found none.
    pub(super) fn run(&mut self) -> bool {
        let mut places = vec![Place { moves: self.moves(None), taken: Vec::new() }];
        for _step in 0..STEPS_MAX {
            if self.answered_left == 0 {
                return true;
            }
            let Some(place) = places.last_mut() else { return false };
            for at in std::mem::take(&mut place.taken) {
                self.mark(at, false);
            }
            let Some(Move { calls, next }) = place.moves.pop() else {
                places.pop();
                continue;
            };
            calls.iter().for_each(|&at| self.mark(at, true));
            place.taken = calls;
            let (value, tags) = next.map_or((0, 0), |shown| (shown.value, shown.tags));
            if self.visited.insert((self.done_hash, value, tags)) {
                let moves = self.moves(next);
                places.push(Place { moves, taken: Vec::new() });
            }
        }
        false
    }

    fn mark(&mut self, at: usize, done: bool) {
        self.done[at] = done;
        self.done_hash ^= self.marks[at];
        if self.entries[at].ended != NEVER {
            self.answered_left = if done { self.answered_left - 1 } else { self.answered_left + 1 };
        }
    }

    /// What may come next: no answered call that is left ended before it began. The last is tried
    /// first.
    fn moves(&self, state: Option<Shown>) -> Vec<Move> {
        let left = || self.entries.iter().enumerate().filter(|(at, _)| !self.done[*at]);
        let first_end = left().map(|(_, entry)| entry.ended).min().unwrap_or(NEVER);
        let (mut answered, mut open) = (Vec::new(), Vec::new());
        let mut kinds = Vec::new();
        for (at, entry) in left().take_while(|(_, entry)| entry.begun < first_end) {
            if entry.ended != NEVER {
                answered.push(at);
                continue;
            }
            let kind = match entry.asked {
                Asked::Put(value, on) if self.is_unseen(value) => {
                    Asked::Put(if self.lengths_count { len_of(value) } else { 0 }, on)
                }
                Asked::Append(value, at, on) if self.is_unseen(value) => {
                    Asked::Append(len_of(value), at, on)
                }
                asked => asked,
            };
            if !kinds.contains(&kind) {
                kinds.push(kind);
                open.push(at);
            }
        }
        answered.sort_by_key(|&at| std::cmp::Reverse(self.entries[at].ended));
        let mut moves = Vec::new();
        for at in answered {
            let keeps_state = matches!(self.entries[at].asked, Asked::SetTags(_));
            let mut found = Vec::new();
            for length in 0..=APPENDS_MAX {
                self.chains(length, &open, state, &mut Vec::new(), at, &mut found);
                if !found.is_empty() && !keeps_state {
                    break;
                }
            }
            moves.extend(found.into_iter().rev());
        }
        moves
    }

    fn is_unseen(&self, value: u64) -> bool {
        self.seen.as_ref().is_some_and(|seen| !seen.contains(&value))
    }

    /// Whether it may come wherever another may.
    fn is_plain_append(&self, at: usize) -> bool {
        matches!(self.entries[at].asked, Asked::Append(_, None, If::Always))
    }

    /// The state after a call, if it may come in this state.
    fn after(&self, at: usize, state: Option<Shown>) -> Option<Option<Shown>> {
        let entry = &self.entries[at];
        let after = after(entry, state)?;
        match (entry.asked, entry.answered) {
            (Asked::Append(value, ..), Answered::Unknown | Answered::Grown(_)) => {
                self.made.may_follow(value, state).then_some(after)
            }
            _ => Some(after),
        }
    }

    /// Moves of exactly `length` calls without an answer before the call `last`.
    fn chains(
        &self,
        length: usize,
        open: &[usize],
        state: Option<Shown>,
        chain: &mut Vec<usize>,
        last: usize,
        found: &mut Vec<Move>,
    ) {
        if length == 0 {
            if let Some(next) = self.after(last, state) {
                let calls = chain.iter().copied().chain([last]).collect();
                found.push(Move { calls, next });
            }
            return;
        }
        let of_appends = chain.len() + length > CHAIN_MAX;
        let size_seen = size_seen(&self.entries[last]);
        let is_read = matches!(self.entries[last].answered, Answered::Shows(_));
        let is_unseen =
            |at: usize| value_of(&self.entries[at]).is_some_and(|it| self.is_unseen(it));
        let fits = |at: usize| {
            let is_part = chain.is_empty() || is_append(&self.entries[at]);
            !of_appends || size_seen.is_some() && is_part && !(is_read && is_unseen(at))
        };
        // Of two that nobody has seen either may be the first.
        let in_order = |at: usize| match chain.last() {
            Some(&before) if is_unseen(before) && is_unseen(at) => {
                before < at || !(self.is_plain_append(before) && self.is_plain_append(at))
            }
            _ => true,
        };
        let may_come = |at: &&usize| !chain.contains(at) && fits(**at) && in_order(**at);
        for &at in open.iter().filter(may_come).collect::<Vec<_>>() {
            if let Some(next) = self.after(at, state) {
                let size = next.map_or(0, |shown| shown.size);
                if of_appends && size_seen.is_some_and(|seen| size > seen) {
                    continue;
                }
                chain.push(at);
                self.chains(length - 1, open, next, chain, last, found);
                chain.pop();
            }
        }
    }
}

/// Values that were seen, as far as that can be told: a list may show an object that nobody read, made of any of them.
fn seen(entries: &[Entry], made: &Made) -> Option<BTreeSet<u64>> {
    let values: Vec<u64> = entries.iter().filter_map(value_of).collect();
    let shown: BTreeSet<u128> = entries.iter().filter_map(object_of).collect();
    let is_alone = |object: u128| values.iter().any(|&value| Shown::put(value).value == object);
    let is_known = |object: u128| made.knows(object) || is_alone(object);
    let named = entries.iter().filter_map(|entry| match entry.asked {
        Asked::Put(_, If::Value(value)) | Asked::Delete(If::Value(value)) => Some(value),
        Asked::Append(_, _, If::Value(value)) => Some(value),
        _ => None,
    });
    let is_seen = |value: &u64| made.has(*value) || shown.contains(&Shown::put(*value).value);
    let all_known = shown.iter().all(|&object| is_known(object));
    all_known.then(|| values.iter().copied().filter(is_seen).chain(named).collect())
}

fn value_of(entry: &Entry) -> Option<u64> {
    match entry.asked {
        Asked::Put(value, _) | Asked::Append(value, ..) => Some(value),
        _ => None,
    }
}

fn object_of(entry: &Entry) -> Option<u128> {
    match entry.answered {
        Answered::Shows(shown) => shown.map(|shown| shown.value),
        _ => None,
    }
}
