//! A bucket's home: the region that decides whether conditions of its changes hold, for all regions (ADR 48).
//!
//! # Invariants
//!
//! 1. A record is replaced only by one of a later term, or of the same term once its region has all changes that it waited for.
//! 2. A region that has the home loses it only by giving it: nobody else's term replaces its record.
//!
//! `protocol/region/home.rs` has the steps between regions, and why no two have the home.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::RegionId;

/// Most homes that a bucket ever has.
pub const HOME_COUNT_MAX: u64 = 1 << 48;

/// Orders the homes that a bucket has had. No two regions make the same one.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct HomeTerm {
    /// Grows with each home.
    pub count: u64,
    /// The region that has the home in this term, or that gave it up.
    pub of: RegionId,
}

/// Changes that go to the home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum HomeScope {
    /// Those with conditions. Others are made in any region.
    #[default]
    Conditions,
    /// All that clients make.
    Writes,
}

/// The region that has the home, as a region knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HomeState {
    /// No region has it.
    Nowhere,
    /// That of the term has it, or is about to get it. It is another than this one.
    Elsewhere,
    /// The same, and this one gave it.
    Given,
    /// This one is about to get it: that region gave it, and changes of that region may be missing.
    Coming(RegionId),
    /// This one claims it of all others, and changes of theirs may be missing. True if no region had it before.
    Claimed(bool),
    /// This one has it.
    Here,
}

/// A bucket's home, as a region knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Home {
    /// Its term.
    pub term: HomeTerm,
    /// Changes that go to it.
    pub scope: HomeScope,
    /// The region that has it.
    pub state: HomeState,
}

/// The place where a change of a bucket is to be decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decider {
    /// This region.
    Here,
    /// That region.
    Region(RegionId),
    /// No region now: this one is about to become the home.
    Nobody,
}

impl Home {
    /// The region that has it, or is about to.
    #[must_use]
    pub fn region(&self) -> Option<RegionId> {
        (self.state != HomeState::Nowhere).then_some(self.term.of)
    }

    /// True if this region is about to become the home.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        matches!(self.state, HomeState::Coming(_) | HomeState::Claimed(_))
    }

    /// True if a region may have made it: a count that is told cannot end all counting.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.term.count <= HOME_COUNT_MAX
    }

    /// The same home, as another region knows it.
    #[must_use]
    pub fn as_remote(self) -> Self {
        let state = match self.state {
            HomeState::Nowhere => HomeState::Nowhere,
            _ => HomeState::Elsewhere,
        };
        Self { state, ..self }
    }

    /// True if it may replace this record: see the module's invariants.
    #[must_use]
    pub fn may_follow(&self, before: Option<&Self>) -> bool {
        let Some(before) = before else { return true };
        let arrives = before.is_awaited() && self.state == HomeState::Here;
        // The region that has it makes the next term itself: it gives it to that region, or to none, or sets another
        // scope.
        let is_own = self.state == HomeState::Here && before.term.of == self.term.of;
        let is_given = matches!(self.state, HomeState::Given | HomeState::Nowhere) || is_own;
        match before.term.cmp(&self.term) {
            Ordering::Less => before.state != HomeState::Here || is_given,
            Ordering::Equal => arrives,
            Ordering::Greater => false,
        }
    }
}

/// Where a client's change is decided in a bucket with this home.
#[must_use]
pub fn decider(home: Option<&Home>, has_condition: bool) -> Decider {
    let Some(home) = home else { return Decider::Here };
    if !has_condition && home.scope == HomeScope::Conditions {
        return Decider::Here;
    }
    match home.state {
        HomeState::Nowhere | HomeState::Here => Decider::Here,
        HomeState::Elsewhere | HomeState::Given => Decider::Region(home.term.of),
        HomeState::Coming(_) | HomeState::Claimed(_) => Decider::Nobody,
    }
}

/// Where an append is decided in a bucket with this home that several regions have; `None` if no region has the home. Where an object
/// ends is as a condition, and holds in all regions only if one of them decides about it.
#[must_use]
pub fn append_decider(home: Option<&Home>) -> Option<Decider> {
    let home = home.filter(|home| home.state != HomeState::Nowhere)?;
    Some(decider(Some(home), true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(count: u64, of: u16, state: HomeState) -> Home {
        let term = HomeTerm { count, of: RegionId(of) };
        Home { term, scope: HomeScope::Conditions, state }
    }

    #[test]
    fn a_home_is_lost_only_by_being_given() {
        let here = home(3, 1, HomeState::Here);
        assert!(home(4, 2, HomeState::Given).may_follow(Some(&here)));
        assert!(!home(4, 2, HomeState::Elsewhere).may_follow(Some(&here)), "it is taken away");
        assert!(home(4, 1, HomeState::Nowhere).may_follow(Some(&here)), "it is given up");
        assert!(!home(3, 1, HomeState::Claimed(true)).may_follow(Some(&here)));
        assert!(!home(4, 1, HomeState::Claimed(true)).may_follow(Some(&here)));
        assert!(!home(3, 0, HomeState::Elsewhere).may_follow(Some(&here)));
        assert!(home(4, 1, HomeState::Here).may_follow(Some(&here)), "it has another scope");
        let coming = home(3, 1, HomeState::Claimed(true));
        assert!(here.may_follow(Some(&coming)));
        assert!(!here.may_follow(Some(&home(3, 1, HomeState::Nowhere))));
        assert!(!here.may_follow(Some(&home(3, 2, HomeState::Elsewhere))));
        assert!(home(3, 2, HomeState::Elsewhere).may_follow(Some(&coming)));
        assert!(coming.may_follow(None));
    }

    #[test]
    fn changes_go_where_they_are_decided() {
        let all = |home: Home| Home { scope: HomeScope::Writes, ..home };
        let cases = [
            (HomeState::Nowhere, Decider::Here),
            (HomeState::Here, Decider::Here),
            (HomeState::Elsewhere, Decider::Region(RegionId(2))),
            (HomeState::Given, Decider::Region(RegionId(2))),
            (HomeState::Coming(RegionId(1)), Decider::Nobody),
        ];
        for (state, at) in cases {
            let home = home(1, 2, state);
            assert_eq!(decider(Some(&home), true), at);
            assert_eq!(decider(Some(&home), false), Decider::Here);
            assert_eq!(decider(Some(&all(home)), false), at);
            let of_append = (state != HomeState::Nowhere).then_some(at);
            assert_eq!(append_decider(Some(&home)), of_append);
        }
        assert_eq!(append_decider(None), None);
        assert_eq!(decider(None, true), Decider::Here);
    }
}
