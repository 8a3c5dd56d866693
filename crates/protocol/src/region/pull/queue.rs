//! Entries that may be requested from a region, by their age.
//!
//! Those that are stuck have a queue of their own: they are the oldest, and would be ahead of all others.

use std::collections::BTreeSet;

use larder_types::HybridClock;

use super::super::entry::Name;

/// A want's place: its clock, and its name.
pub(super) type Place = (HybridClock, Name);

/// The bytes that a want is fetched with, as far as they decide whom it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// None: a deletion may free what others need.
    Bare,
    Small,
    /// It comes in parts.
    Large,
}

/// The line that a want waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    Fresh,
    /// All claims on it are stuck.
    Stuck,
}

/// Wants by their size: none waits behind a larger one.
#[derive(Debug, Default)]
struct Line {
    bare: BTreeSet<Place>,
    small: BTreeSet<Place>,
    large: BTreeSet<Place>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Queue {
    fresh: Line,
    stuck: Line,
}

impl Line {
    fn remove(&mut self, place: &Place) -> bool {
        self.small.remove(place) || self.large.remove(place) || self.bare.remove(place)
    }

    fn pop_large(&mut self) -> Option<Place> {
        let large = self.large.first()?;
        let is_older = |others: &BTreeSet<Place>| others.first().is_some_and(|it| it < large);
        if is_older(&self.bare) || is_older(&self.small) { None } else { self.large.pop_first() }
    }

    fn len(&self) -> usize {
        self.bare.len() + self.small.len() + self.large.len()
    }

    fn iter(&self) -> impl Iterator<Item = &Place> {
        self.bare.iter().chain(&self.small).chain(&self.large)
    }
}

impl Queue {
    fn line(&mut self, lane: Lane) -> &mut Line {
        match lane {
            Lane::Fresh => &mut self.fresh,
            Lane::Stuck => &mut self.stuck,
        }
    }

    pub(super) fn insert(&mut self, place: Place, size: Size, lane: Lane) {
        let line = self.line(lane);
        match size {
            Size::Bare => &mut line.bare,
            Size::Small => &mut line.small,
            Size::Large => &mut line.large,
        }
        .insert(place);
    }

    pub(super) fn remove(&mut self, place: &Place) {
        let _was_there = self.fresh.remove(place) || self.stuck.remove(place);
    }

    /// Takes the first of a line that does not come in parts.
    pub(super) fn pop_small(&mut self, lane: Lane) -> Option<Place> {
        let line = self.line(lane);
        line.bare.pop_first().or_else(|| line.small.pop_first())
    }

    /// Takes the first of a line that comes in parts, unless another is older.
    pub(super) fn pop_large(&mut self, lane: Lane) -> Option<Place> {
        self.line(lane).pop_large()
    }

    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.stuck.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Lane, &Place)> {
        let fresh = self.fresh.iter().map(|place| (Lane::Fresh, place));
        fresh.chain(self.stuck.iter().map(|place| (Lane::Stuck, place)))
    }
}
