//! Entries that may be requested from a region, by their age.

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

/// Wants by their size: none waits behind a larger one.
#[derive(Debug, Default)]
pub(super) struct Queue {
    bare: BTreeSet<Place>,
    small: BTreeSet<Place>,
    large: BTreeSet<Place>,
}

impl Queue {
    pub(super) fn insert(&mut self, place: Place, size: Size) {
        match size {
            Size::Bare => &mut self.bare,
            Size::Small => &mut self.small,
            Size::Large => &mut self.large,
        }
        .insert(place);
    }

    pub(super) fn remove(&mut self, place: &Place) {
        let _was_there =
            self.small.remove(place) || self.large.remove(place) || self.bare.remove(place);
    }

    /// Takes the first that does not come in parts.
    pub(super) fn pop_small(&mut self) -> Option<Place> {
        self.bare.pop_first().or_else(|| self.small.pop_first())
    }

    /// Takes the first that comes in parts, unless another is older.
    pub(super) fn pop_large(&mut self) -> Option<Place> {
        let large = self.large.first()?;
        let is_older = |others: &BTreeSet<Place>| others.first().is_some_and(|it| it < large);
        if is_older(&self.bare) || is_older(&self.small) { None } else { self.large.pop_first() }
    }

    pub(super) fn len(&self) -> usize {
        self.bare.len() + self.small.len() + self.large.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Place> {
        self.bare.iter().chain(&self.small).chain(&self.large)
    }
}
