//! Reads tell of which values an object is made, and so on what each of them was appended. A value is in at most one
//! object, at one place.

use std::collections::{BTreeMap, BTreeSet};

use super::{CallResult, Entry, Invocation, Shown, is_append, shown_in, value_of};
use crate::content::len_of;

/// Most appends, from what was read, to what was only listed, that are looked for.
const LISTED_APPENDS_MAX: usize = 6;
/// Most of them of which it is known how many bytes they may have together.
const SUMMED_MAX: usize = 4;

/// The knowledge of objects that were read.
#[derive(Debug, Default, Clone)]
pub(super) struct KnownObjects {
    /// The object that each value follows; nothing, if an object begins with it.
    follows: BTreeMap<u64, Option<u128>>,
    /// Objects, by what names their values; with what each was before its last, and that.
    objects: BTreeMap<u128, (Shown, Option<u128>, u64)>,
}

impl KnownObjects {
    /// An object was read, and is made of these values.
    pub(super) fn learn(&mut self, values: &[u64]) {
        values.iter().fold(None, |before, &value| Some(self.observe_one(value, before)));
    }

    /// The object that a value makes of what it follows. At another place it would have been found twice: no order
    /// explains that, and the first place counts.
    fn observe_one(&mut self, value: u64, before: Option<Shown>) -> Shown {
        self.follows.entry(value).or_insert(before.map(|before| before.value));
        let made = before.map_or_else(|| Shown::put(value), |before| before.with(value));
        self.objects.insert(made.value, (made, before.map(|before| before.value), value));
        made
    }

    /// With objects of a key that were listed and not read, as far as they are a few appends to one that is known.
    pub(super) fn with_listed(&self, entries: &[Entry]) -> Self {
        let mut made = self.clone();
        let values: Vec<u64> = entries.iter().filter_map(value_of).collect();
        for listed in entries {
            let Some(shown) = shown_in(listed).filter(|shown| !made.knows(shown.value)) else {
                continue;
            };
            let is_open = |entry: &&Entry| {
                is_append(entry)
                    && entry.begun < listed.ended
                    && value_of(entry).is_some_and(|value| !made.has(value))
            };
            let appends = Appends::of(entries.iter().filter(is_open));
            let grown = values.iter().filter(|value| made.has(**value));
            let grown = grown.filter_map(|value| Some((made.object_of(*value)?, vec![])));
            let alone = values.iter().map(|value| (Shown::put(*value), vec![*value]));
            let bases: Vec<_> = grown.chain(alone).collect();
            let found = (0..=LISTED_APPENDS_MAX).find_map(|count| {
                bases.iter().find_map(|(from, known)| {
                    let mut path = Vec::new();
                    appends.lead(*from, shown, count, &mut path).then_some((from, known, path))
                })
            });
            if let Some((from, alone, path)) = found {
                made.learn(alone);
                path.into_iter().fold(*from, |before, value| made.observe_one(value, Some(before)));
            }
        }
        made
    }

    /// The object of which a value was the last.
    fn object_of(&self, value: u64) -> Option<Shown> {
        match self.follows.get(&value)? {
            None => Some(Shown::put(value)),
            Some(before) => self.objects.get(before).map(|(before, ..)| before.with(value)),
        }
    }

    /// An object and all that it was before, as far as that is known.
    pub(super) fn before(&self, object: u128) -> impl Iterator<Item = u128> {
        let before = |object: &u128| self.objects.get(object).and_then(|(_, before, _)| *before);
        std::iter::successors(Some(object), before)
    }

    /// The last value of an object, if it is known of which it is made.
    pub(super) fn last_of(&self, object: u128) -> Option<u64> {
        self.objects.get(&object).map(|(.., last)| *last)
    }

    /// The object that a value was appended to, if an object with it was read; in it nothing, if
    /// that began with it.
    pub(super) fn before_of(&self, value: u64) -> Option<Option<u128>> {
        self.follows.get(&value).copied()
    }

    /// True if it is known of which values the object is made.
    pub(super) fn knows(&self, object: u128) -> bool {
        self.objects.contains_key(&object)
    }

    /// True if an object with this value was read.
    pub(super) fn has(&self, value: u64) -> bool {
        self.follows.contains_key(&value)
    }

    /// True if a value may have been appended to this.
    pub(super) fn may_follow(&self, value: u64, state: Option<Shown>) -> bool {
        self.follows.get(&value).is_none_or(|before| *before == state.map(|shown| shown.value))
    }
}

/// Appends that may be in an object that nobody read.
struct Appends {
    /// Their values, and where each begins if that is known.
    values: Vec<(u64, Option<u64>)>,
    /// By how many there are, the bytes that they may have together.
    sums: Vec<BTreeSet<u64>>,
}

impl Appends {
    fn of<'a>(entries: impl Iterator<Item = &'a Entry>) -> Self {
        let values: Vec<(u64, Option<u64>)> = entries
            .filter_map(|entry| match (entry.asked, entry.answered) {
                (Invocation::Append(value, ..), CallResult::Grown(at)) => Some((value, Some(at))),
                (Invocation::Append(value, at, _), CallResult::Unknown) => Some((value, at)),
                _ => None,
            })
            .collect();
        let sums = sums_of(values.iter().map(|(value, _)| len_of(*value)), SUMMED_MAX);
        Self { values, sums }
    }

    /// True if so many of them make one object of another; then `path` has them.
    fn lead(&self, from: Shown, wanted: Shown, count: usize, path: &mut Vec<u64>) -> bool {
        if count == 0 {
            return from.value == wanted.value;
        }
        for &(value, at) in &self.values {
            let left = wanted.size.checked_sub(from.size + len_of(value));
            let sums = self.sums.get(count - 1);
            let fits = left.is_some_and(|left| sums.is_none_or(|sums| sums.contains(&left)));
            let is_there = at.is_none_or(|at| at == from.size);
            if !fits || !is_there || path.contains(&value) {
                continue;
            }
            path.push(value);
            if self.lead(from.with(value), wanted, count - 1, path) {
                return true;
            }
            path.pop();
        }
        false
    }
}

/// By how many there are, up to `count_max`, what some of these lengths may be together.
pub(super) fn sums_of(lens: impl Iterator<Item = u64>, count_max: usize) -> Vec<BTreeSet<u64>> {
    let mut sums = vec![BTreeSet::from([0])];
    sums.resize(count_max + 1, BTreeSet::new());
    for len in lens {
        for count in (0..count_max).rev() {
            let longer: Vec<u64> = sums[count].iter().map(|sum| sum + len).collect();
            sums[count + 1].extend(longer);
        }
    }
    sums
}
