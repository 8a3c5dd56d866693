//! Requests of one window that are one.
//!
//! | requests of one key | are one if | which acts |
//! |---|---|---|
//! | look-ups | they ask for the same version, and none that changes the key stands between them | the first; all get its answer |
//! | inline puts | they are next to each other | the last: one op with its content, answered to all when it is durable |
//! | deletes | they are next to each other | the first; all get its answer |
//!
//! Several things exclude a put or a delete from being one with another ([`Bars`]). One is a condition, as its answer
//! depends on the very state before it. Another is a bucket with versions, in which each is a version or a marker of its
//! own. So is retention or a legal hold, which the PG judges for each, and an op of another region, whose clock is its
//! identity. A put whose data lies in extents has a grant of its own, and is one with none. Conditions of a look-up are
//! decided on what it finds, and do not matter here.
//!
//! # Invariants
//!
//! 1. Nobody joins what has left its window. Every request of a group had arrived before the group began, so what it
//!    reads or writes takes place within the time of each.
//! 2. Of each key the groups leave in the order in which their first requests came, and a change that excludes stands
//!    alone between what was before it and after it.
//! 3. Puts that are one had none between them that could have seen the earlier content, and nobody was told of it. It is
//!    as if it had been overwritten at once.
//! 4. A window has at most so many requests; the caller of one more is told so before it counts.

use std::collections::BTreeMap;

use larder_types::VersionSlot;

use crate::limits::WINDOW_REQUESTS_MAX;

/// The action of a request on its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reads its METAX: the newest, or that of a version.
    LookUp {
        /// The version; `None` is the newest.
        version: Option<VersionSlot>,
    },
    /// Puts an object that is inside its METAX.
    InlinePut,
    /// Deletes it.
    Delete,
    /// Changes it in another way.
    OtherChange,
}

/// The reasons that keep a change from being one with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bars {
    /// It has a condition.
    pub is_conditional: bool,
    /// Its bucket has versions, on or suspended, or it names one.
    pub has_versions: bool,
    /// It sets or may meet retention or a legal hold.
    pub is_held: bool,
    /// It comes from another region.
    pub is_foreign: bool,
}

/// A request as far as merging is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Its action.
    pub kind: Kind,
    /// The reasons that exclude it.
    pub bars: Bars,
}

impl Asked {
    /// One that nothing excludes.
    #[must_use]
    pub fn plain(kind: Kind) -> Self {
        Self { kind, bars: Bars::default() }
    }

    /// Returns true if it changes its key.
    #[must_use]
    pub fn is_change(&self) -> bool {
        !matches!(self.kind, Kind::LookUp { .. })
    }

    /// Returns true if it may be one with another change.
    fn may_merge(&self) -> bool {
        self.kind != Kind::OtherChange && self.bars == Bars::default()
    }
}

/// Requests that are one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group<K, T> {
    /// Their key.
    pub key: K,
    /// Their action.
    pub kind: Kind,
    /// Those who asked, in the order in which they came; never empty.
    pub members: Vec<T>,
    may_merge: bool,
}

impl<K, T: Copy> Group<K, T> {
    /// The one that acts; the others get its answer.
    #[must_use]
    pub fn acting(&self) -> T {
        let at = if self.kind == Kind::InlinePut { self.members.len() - 1 } else { 0 };
        self.members[at]
    }

    /// Returns true if it changes its key.
    #[must_use]
    pub fn is_change(&self) -> bool {
        !matches!(self.kind, Kind::LookUp { .. })
    }
}

/// The groups of a key that another request may join.
#[derive(Debug, Default)]
struct Open {
    /// Look-ups since the last change.
    look_ups: Vec<usize>,
    /// The change that came last, if nothing came after it.
    change: Option<usize>,
}

/// See the module's head. Holds the requests of one window.
#[derive(Debug)]
pub struct Merge<K, T> {
    groups: Vec<Group<K, T>>,
    open: BTreeMap<K, Open>,
    requests: usize,
}

impl<K, T> Default for Merge<K, T> {
    fn default() -> Self {
        Self { groups: Vec::new(), open: BTreeMap::new(), requests: 0 }
    }
}

impl<K: Ord + Clone, T: Copy> Merge<K, T> {
    /// Returns true if the window takes no more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.requests >= WINDOW_REQUESTS_MAX
    }

    /// Returns true if nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// A request arrives.
    ///
    /// # Panics
    /// If the window is full.
    pub fn arrived(&mut self, key: K, token: T, asked: Asked) {
        assert!(!self.is_full(), "a window is left when it is full");
        self.requests += 1;
        let open = self.open.entry(key.clone()).or_default();
        let (groups, may_merge) = (&self.groups, asked.may_merge());
        let joined = match asked.is_change() {
            false => open.look_ups.iter().copied().find(|at| groups[*at].kind == asked.kind),
            true => open.change.filter(|at| {
                let last = &groups[*at];
                may_merge && last.may_merge && last.kind == asked.kind
            }),
        };
        match asked.is_change() {
            false => open.change = None,
            true => open.look_ups.clear(),
        }
        if let Some(at) = joined {
            self.groups[at].members.push(token);
            return;
        }
        let at = self.groups.len();
        match asked.is_change() {
            false => open.look_ups.push(at),
            true => open.change = Some(at),
        }
        self.groups.push(Group { key, kind: asked.kind, members: vec![token], may_merge });
    }

    /// The window closes: its groups, in the order in which they are to begin.
    pub fn close(&mut self) -> Vec<Group<K, T>> {
        let members: usize = self.groups.iter().map(|group| group.members.len()).sum();
        assert_eq!(members, self.requests, "each request is in one group");
        (self.open, self.requests) = (BTreeMap::new(), 0);
        std::mem::take(&mut self.groups)
    }
}

#[cfg(test)]
#[path = "merge/tests.rs"]
mod tests;
