//! What was read tells of which values an object is made, and so on what each of them was appended: a value is in at most
//! one object, at one place.

use std::collections::BTreeMap;

use super::{Entry, Shown, is_append, shown_in, value_of};
use crate::content::len_of;

/// Most appends, from what was read, to what was only listed, that are looked for.
const LISTED_APPENDS_MAX: usize = 3;

/// What is known of objects that were read.
#[derive(Debug, Default, Clone)]
pub(super) struct Made {
    /// What each value follows; nothing, if an object begins with it.
    follows: BTreeMap<u64, Option<u128>>,
    /// Objects, by what names their values; with what each was before its last.
    objects: BTreeMap<u128, (Shown, Option<u128>)>,
}

impl Made {
    /// An object was read, and is made of these values.
    pub(super) fn learn(&mut self, values: &[u64]) {
        values.iter().fold(None, |before, &value| Some(self.learn_one(value, before)));
    }

    /// The object that a value makes of what it follows. At another place it would have been found twice: no order
    /// explains that, and the first place counts.
    fn learn_one(&mut self, value: u64, before: Option<Shown>) -> Shown {
        self.follows.entry(value).or_insert(before.map(|before| before.value));
        let made = before.map_or_else(|| Shown::put(value), |before| before.with(value));
        self.objects.insert(made.value, (made, before.map(|before| before.value)));
        made
    }

    /// With objects of a key that were listed and not read, as far as they are a few appends to one that is known.
    pub(super) fn with_listed(&self, entries: &[Entry]) -> Self {
        let mut made = self.clone();
        let values: Vec<u64> = entries.iter().filter_map(value_of).collect();
        for shown in entries.iter().filter_map(shown_in) {
            if made.knows(shown.value) {
                continue;
            }
            let of_appends = entries.iter().filter(|entry| is_append(entry)).filter_map(value_of);
            let appends: Vec<u64> = of_appends.filter(|value| !made.has(*value)).collect();
            let grown = values.iter().filter(|value| made.has(**value));
            let grown = grown.filter_map(|value| Some((made.object_of(*value)?, vec![])));
            let alone = values.iter().map(|value| (Shown::put(*value), vec![*value]));
            let found = grown.chain(alone).find_map(|(from, known)| {
                let mut path = Vec::new();
                find(from, shown, &appends, &mut path).then_some((from, known, path))
            });
            if let Some((from, alone, path)) = found {
                made.learn(&alone);
                path.into_iter().fold(from, |before, value| made.learn_one(value, Some(before)));
            }
        }
        made
    }

    /// The object of which a value was the last.
    fn object_of(&self, value: u64) -> Option<Shown> {
        match self.follows.get(&value)? {
            None => Some(Shown::put(value)),
            Some(before) => self.objects.get(before).map(|(before, _)| before.with(value)),
        }
    }

    /// An object and all that it was before, as far as that is known.
    pub(super) fn before(&self, object: u128) -> impl Iterator<Item = u128> {
        let before = |object: &u128| self.objects.get(object).and_then(|(_, before)| *before);
        std::iter::successors(Some(object), before)
    }

    /// Whether it is known of which values the object is made.
    pub(super) fn knows(&self, object: u128) -> bool {
        self.objects.contains_key(&object)
    }

    /// Whether an object with this value was read.
    pub(super) fn has(&self, value: u64) -> bool {
        self.follows.contains_key(&value)
    }

    /// Whether a value may have been appended to this.
    pub(super) fn may_follow(&self, value: u64, state: Option<Shown>) -> bool {
        self.follows.get(&value).is_none_or(|before| *before == state.map(|shown| shown.value))
    }
}

/// Whether a few of these appends make one object of another; then `path` has them.
fn find(from: Shown, wanted: Shown, appends: &[u64], path: &mut Vec<u64>) -> bool {
    if from.value == wanted.value || path.len() == LISTED_APPENDS_MAX {
        return from.value == wanted.value;
    }
    for &value in appends {
        let left = wanted.size.checked_sub(from.size + len_of(value));
        let is_last = path.len() + 1 == LISTED_APPENDS_MAX;
        if path.contains(&value) || left.is_none_or(|left| is_last && left > 0) {
            continue;
        }
        path.push(value);
        if find(from.with(value), wanted, appends, path) {
            return true;
        }
        path.pop();
    }
    false
}
