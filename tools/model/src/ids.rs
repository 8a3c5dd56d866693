//! Ids of the models: those of `larder-types`, one byte each, because a state is copied and hashed
//! hundreds of millions of times.

use std::fmt;

/// Number of a membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct View(pub u8);

/// Position in the log; 0 stands before every op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OpSeq(pub u8);

/// View and position: the part of a grant by which floors compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key {
    /// View in which it was issued.
    pub view: View,
    /// Its position.
    pub seq: OpSeq,
}

/// Servers, by index: members of a PG, or replicas of an LV.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Servers(u8);

impl View {
    /// The view after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl OpSeq {
    /// The position after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Servers {
    /// No server.
    pub const NONE: Self = Self(0);

    /// The first `n`.
    #[must_use]
    pub const fn first(n: usize) -> Self {
        Self((1 << n) - 1)
    }

    /// One server.
    #[must_use]
    pub const fn only(server: usize) -> Self {
        Self(1 << server)
    }

    /// True if it is among them.
    #[must_use]
    pub const fn has(self, server: usize) -> bool {
        self.0 & (1 << server) != 0
    }

    /// These and one more.
    #[must_use]
    pub const fn with(self, server: usize) -> Self {
        Self(self.0 | 1 << server)
    }

    /// These but one.
    #[must_use]
    pub const fn without(self, server: usize) -> Self {
        Self(self.0 & !(1 << server))
    }

    /// These and those.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those of these that are among the others too.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those of these that are not among the others.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// True if all of these are among the others.
    #[must_use]
    pub const fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// True if there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of elements.
    #[must_use]
    pub const fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Each, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..8).filter(move |server| self.has(*server))
    }

    /// Every choice from these, none and all of them included.
    pub fn subsets(self) -> impl Iterator<Item = Self> {
        (0..=self.0).map(Self).filter(move |chosen| chosen.within(self))
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
