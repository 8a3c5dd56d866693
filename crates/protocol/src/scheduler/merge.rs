//! Merging: requests of one window that are carried out as one.
//!
//! | requests of one key | merge if | carried out |
//! |---|---|---|
//! | look-ups | they ask for the same version, and no change of the key came between them | the first; all get its answer |
//! | inline puts | no other request of the key came between them | the last: one op with its content, answered to all when it is durable |
//! | deletes | no other request of the key came between them | the first; all get its answer |
//!
//! Several properties keep a put or a delete from merging ([`Bars`]). A condition does, as its answer
//! depends on the state just before it. So does a bucket with versions, in which each change is a version or a marker of its
//! own. So do retention and a legal hold, which the PG judges for each, and an op of another region, whose clock is its
//! identity. A put whose data is in extents has a grant of its own, and never merges. Conditions of a look-up do not
//! matter: they are decided on the METAX that it finds.
//!
//! # Invariants
//!
//! 1. No request joins a group that has left its window. Every request of a group arrived before the group began, so the
//!    group's read or write takes place between the call and the answer of each of them.
//! 2. Groups of a key leave in the order in which their first requests came, and a change that does not merge is
//!    a group of its own.
//! 3. Between merged puts no request came that could have seen the earlier content, and no client was answered about it. It
//!    is as if that content had been overwritten at once.
//! 4. A window has at most [`WINDOW_REQUESTS_MAX`] requests.

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

/// The properties that keep a change from merging with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bars {
    /// It has a condition.
    pub is_conditional: bool,
    /// Its bucket has versions, on or suspended, or it names one.
    pub has_versions: bool,
    /// It sets retention or a legal hold, or may be refused by one.
    pub is_held: bool,
    /// It comes from another region.
    pub is_foreign: bool,
}

/// A request as far as merging is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuedRequest {
    /// Its action.
    pub kind: Kind,
    /// The properties that keep it from merging.
    pub bars: Bars,
}

impl QueuedRequest {
    /// A request that may merge.
    #[must_use]
    pub fn plain(kind: Kind) -> Self {
        Self { kind, bars: Bars::default() }
    }

    /// Returns true if it changes its key.
    #[must_use]
    pub fn is_change(&self) -> bool {
        !matches!(self.kind, Kind::LookUp { .. })
    }

    /// Returns true if it may merge with another change.
    fn may_merge(&self) -> bool {
        self.kind != Kind::OtherChange && self.bars == Bars::default()
    }
}

/// Requests that are carried out as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group<K, T> {
    /// Their key.
    pub key: K,
    /// Their action.
    pub kind: Kind,
    /// Tokens of the requests in the order in which they came; never empty.
    pub members: Vec<T>,
    may_merge: bool,
}

impl<K, T: Copy> Group<K, T> {
    /// The request that is carried out; the others get its answer.
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

/// The requests of one window, merged.
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
    /// Returns true if the window takes no more requests.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.requests >= WINDOW_REQUESTS_MAX
    }

    /// Returns true if the window has no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Takes a request that arrives.
    ///
    /// # Panics
    /// If the window is full.
    pub fn arrived(&mut self, key: K, token: T, asked: QueuedRequest) {
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

    /// Closes the window. Returns its groups, in the order in which they are to begin.
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
