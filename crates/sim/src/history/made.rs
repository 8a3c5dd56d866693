//! What was read tells of which values an object is made, and so on what each of them was appended: a value is in at most
//! one object, at one place.

use std::collections::{BTreeMap, BTreeSet};

use super::Shown;
use crate::content::{digest_of, etag_of, grown};

/// What is known of objects that were read.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// What each value follows; nothing, if an object begins with it.
    follows: BTreeMap<u64, Option<u128>>,
    objects: BTreeSet<u128>,
}

impl Made {
    /// An object was read, and is made of these values.
    pub(super) fn learn(&mut self, values: &[u64]) {
        let mut before = None;
        for &value in values {
            // At another place it has been found twice: no order explains that.
            self.follows.entry(value).or_insert(before);
            let object = match before {
                None => digest_of(&etag_of(value)),
                Some(before) => grown(before, value),
            };
            self.objects.insert(object);
            before = Some(object);
        }
    }

    /// Whether it is known of which values the object is made.
    pub(super) fn knows(&self, object: u128) -> bool {
        self.objects.contains(&object)
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
