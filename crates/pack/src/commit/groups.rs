//! Decides which groups have a bundle of their own. Pure.
//!
//! Each object that is written to the backend costs a few requests beside those for its bytes. So a
//! group has no bundle before it has brought a share of a blob since the last blob was closed.
//! Until then its bodies lie in the blob that all share. Where little comes, there are as few
//! uploads as ever between two flushes. Where much comes, there is at most one more for each share.
//! A group that filled a share of its bundle has one from the beginning of the next blob.
//!
//! # Invariants
//!
//! 1. At most [`BUNDLES_MAX`] groups have a bundle at once; those that come later share the blob.
//! 2. At most [`GROUPS_COUNTED_MAX`] are counted. When there are more the lesser half is forgotten: those begin anew.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::upload_unit::UploadUnit;
use crate::limits::{BUNDLE_SHARE, BUNDLES_MAX, GROUPS_COUNTED_MAX};

/// Groups of the blob that is open.
#[derive(Debug)]
pub(crate) struct Groups {
    /// Bytes that earn a bundle.
    share: u64,
    counted: BTreeMap<String, Group>,
    bundles: u8,
    /// Groups that filled a bundle of the last blob: each has one from its first body on.
    earned: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Group {
    unit: UploadUnit,
    bytes: u64,
    /// Bytes of these that are in the group's bundle.
    bundled: u64,
}

impl Groups {
    /// None yet.
    pub(crate) fn new(blob_bytes: u64) -> Self {
        let share = blob_bytes / BUNDLE_SHARE;
        Self { share, counted: BTreeMap::new(), bundles: 0, earned: BTreeSet::new() }
    }

    /// Where the next body of a group goes.
    pub(crate) fn unit(&self, group: &str) -> UploadUnit {
        let known = self.counted.get(group).copied().unwrap_or_default();
        if known.unit != UploadUnit::SHARED || self.bundles == BUNDLES_MAX {
            return known.unit;
        }
        match known.bytes >= self.share || self.earned.contains(group) {
            true => UploadUnit::numbered(self.bundles + 1).expect("there are fewer than the most"),
            false => UploadUnit::SHARED,
        }
    }

    /// A body of a group went where [`Groups::unit`] said.
    pub(crate) fn add(&mut self, group: &str, unit: UploadUnit, bytes: u64) {
        if !self.counted.contains_key(group) {
            if self.counted.len() >= GROUPS_COUNTED_MAX {
                self.forget_some();
            }
            self.counted.insert(group.to_owned(), Group::default());
        }
        let known = self.counted.get_mut(group).expect("it is counted by now");
        assert!(known.unit == unit || known.unit == UploadUnit::SHARED, "a group has one bundle");
        known.bytes += bytes;
        if unit != UploadUnit::SHARED {
            known.unit = unit;
            known.bundled += bytes;
            self.bundles = self.bundles.max(unit.nth());
        }
    }

    /// The blob was closed.
    pub(crate) fn close(&mut self) {
        let share = self.share;
        let filled = |group: &Group| group.unit != UploadUnit::SHARED && group.bundled >= share;
        let counted = std::mem::take(&mut self.counted).into_iter();
        self.earned = counted.filter(|(_, group)| filled(group)).map(|(name, _)| name).collect();
        self.bundles = 0;
    }

    /// Groups that are counted.
    pub(crate) fn len(&self) -> usize {
        self.counted.len()
    }

    /// Forgets the half of the groups that brought least.
    fn forget_some(&mut self) {
        let bundles = |group: &Group| group.unit != UploadUnit::SHARED;
        let counted = std::mem::take(&mut self.counted).into_iter();
        let (mut kept, mut others): (Vec<_>, Vec<_>) =
            counted.partition(|(_, group)| bundles(group));
        others.sort_by_key(|(_, group)| std::cmp::Reverse(group.bytes));
        others.truncate(GROUPS_COUNTED_MAX / 2);
        kept.extend(others);
        self.counted = kept.into_iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: u64 = 100;

    fn groups() -> Groups {
        Groups::new(SHARE * BUNDLE_SHARE)
    }

    /// Brings bodies of 10 bytes; the units that they went to.
    fn bring(groups: &mut Groups, name: &str, bodies: u64) -> Vec<u8> {
        (0..bodies)
            .map(|_| {
                let unit = groups.unit(name);
                groups.add(name, unit, 10);
                unit.nth()
            })
            .collect()
    }

    #[test]
    fn a_group_shares_the_blob_until_it_has_brought_a_share() {
        let mut groups = groups();
        let a = bring(&mut groups, "a", 13);
        assert_eq!(a, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(bring(&mut groups, "b", 9), [0; 9]);
        assert_eq!(bring(&mut groups, "a", 2), [1, 1]);
        assert_eq!(bring(&mut groups, "b", 2), [0, 2]);
    }

    #[test]
    fn who_filled_a_share_of_a_bundle_has_one_at_once_and_loses_it_again() {
        let mut groups = groups();
        bring(&mut groups, "a", 20);
        bring(&mut groups, "b", 19);
        groups.close();
        assert_eq!(bring(&mut groups, "b", 1), [0], "its bundle was small");
        assert_eq!(bring(&mut groups, "a", 2), [1, 1]);
        groups.close();
        assert_eq!(bring(&mut groups, "a", 1), [0], "it brought little since");
    }

    #[test]
    fn groups_beyond_the_bundles_share_the_blob() {
        let mut groups = groups();
        for nth in 1..=BUNDLES_MAX {
            assert_eq!(bring(&mut groups, &nth.to_string(), 11)[10], nth);
        }
        assert_eq!(bring(&mut groups, "late", 30), [0; 30]);
        assert_eq!(bring(&mut groups, "1", 1), [1]);
    }

    #[test]
    fn of_many_groups_the_large_ones_are_remembered() {
        let mut groups = groups();
        bring(&mut groups, "bundled", 11);
        bring(&mut groups, "large", 9);
        for some in 0..10 * GROUPS_COUNTED_MAX {
            bring(&mut groups, &format!("small {some}"), 1);
            assert!(groups.len() <= GROUPS_COUNTED_MAX);
        }
        assert_eq!(bring(&mut groups, "large", 2), [0, 2]);
        assert_eq!(bring(&mut groups, "bundled", 1), [1]);
    }
}
