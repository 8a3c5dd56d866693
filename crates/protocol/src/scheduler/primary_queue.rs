//! The queue of requests in front of a primary, as in the paper: windows, merging and dependencies together. No role drives it:
//! it is there for the comparison (`docs/scheduling.md`).
//!
//! ```text
//!  arrived ─▶ at once, or in the window ─▶ groups ─▶ begin, or wait for others of the key
//!  due ─────▶ the window closes ──────────────┘          ▲
//!  ended ────────────────────────────────────────────────┘
//! ```
//!
//! # Invariants
//!
//! 1. Each request is in one group, and each group begins once.
//! 2. Requests are refused only on arrival: a group that leaves its window has room to wait.
//! 3. Groups of a key leave the window in order, and begin in the order of [`super::dependencies`].

use std::collections::BTreeMap;

use super::dependencies::{Access, Arrived, Dependencies, ReadWrite};
use super::merge::{Group, Merge, QueuedRequest};
use super::window::{Arrival, Window};
use crate::limits::{DEPENDENT_REQUESTS_MAX, WINDOW_REQUESTS_MAX};

/// The refusal of a request because too many wait: its client should retry later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// An action for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<K, T> {
    /// The group begins. The driver passes its number to [`PrimaryQueue::ended`] once it has ended.
    Begin(u64, Group<K, T>),
    /// The driver calls [`PrimaryQueue::due`] at this time.
    WakeAt(u64),
}

/// A group that is under way or waits for others of its key.
#[derive(Debug)]
struct Held<K, T> {
    key: K,
    access: Access,
    members: usize,
    /// `None` once it has begun.
    waits: Option<Group<K, T>>,
}

/// The requests in front of one primary.
#[derive(Debug)]
pub struct PrimaryQueue<K, T> {
    window: Window,
    merge: Merge<K, T>,
    in_window: usize,
    dependencies: Dependencies<K, u64>,
    held: BTreeMap<u64, Held<K, T>>,
    last: u64,
}

impl<K: Ord + Clone, T: Copy> PrimaryQueue<K, T> {
    /// A front without requests, with these windows and this order of writes and reads.
    #[must_use]
    pub fn new(window: Window, read_write: ReadWrite) -> Self {
        Self {
            window,
            merge: Merge::default(),
            in_window: 0,
            dependencies: Dependencies::new(read_write),
            held: BTreeMap::new(),
            last: 0,
        }
    }

    /// Takes a request that arrives.
    ///
    /// # Errors
    /// [`Full`] if [`DEPENDENT_REQUESTS_MAX`] wait.
    pub fn arrived(
        &mut self,
        now_us: u64,
        key: K,
        token: T,
        asked: QueuedRequest,
        outbox: &mut Vec<Effect<K, T>>,
    ) -> Result<(), Full> {
        if self.dependencies.waiting() + self.in_window >= DEPENDENT_REQUESTS_MAX {
            return Err(Full);
        }
        let arrival = self.window.arrived(now_us);
        self.merge.arrived(key, token, asked);
        self.in_window += 1;
        match arrival {
            Arrival::AtOnce => self.close(outbox),
            Arrival::Opens(closes_us) => outbox.push(Effect::WakeAt(closes_us)),
            Arrival::Joins => {}
        }
        if self.merge.is_full() {
            self.close(outbox);
        }
        Ok(())
    }

    /// Closes the window if it is due: at the time of [`Effect::WakeAt`], or at any other.
    pub fn due(&mut self, now_us: u64, outbox: &mut Vec<Effect<K, T>>) {
        if self.window.is_due(now_us) {
            self.close(outbox);
        }
    }

    /// Ends a group, and begins those that waited for it.
    ///
    /// # Panics
    /// If it is not under way.
    pub fn ended(&mut self, now_us: u64, number: u64, outbox: &mut Vec<Effect<K, T>>) {
        let held = self.held.remove(&number).expect("what ends has begun");
        assert!(held.waits.is_none(), "what ends has begun");
        self.window.ended(held.members);
        for number in self.dependencies.finished(&held.key, held.access) {
            let next = self.held.get_mut(&number).expect("what waits is held");
            let group = next.waits.take().expect("what waits has not begun");
            outbox.push(Effect::Begin(number, group));
        }
        self.due(now_us, outbox);
    }

    fn close(&mut self, outbox: &mut Vec<Effect<K, T>>) {
        self.window.close();
        self.in_window = 0;
        for group in self.merge.close() {
            self.last += 1;
            let access = if group.is_change() { Access::Write } else { Access::Read };
            let (key, members) = (group.key.clone(), group.members.len());
            self.window.left(members);
            let waits = match self.dependencies.arrived(&key, self.last, access) {
                Arrived::Begins => {
                    outbox.push(Effect::Begin(self.last, group));
                    None
                }
                Arrived::Waits => Some(group),
                Arrived::Full => unreachable!("room was kept when it arrived"),
            };
            self.held.insert(self.last, Held { key, access, members, waits });
        }
    }

    /// Requests that have left their window and have not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.window.under_way()
    }
}

const _: () = assert!(
    WINDOW_REQUESTS_MAX <= DEPENDENT_REQUESTS_MAX,
    "the requests of a window may all wait for others of their keys"
);

#[cfg(test)]
#[path = "primary_queue/tests.rs"]
mod tests;
