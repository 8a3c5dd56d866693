//! The requests of a key that wait for others of it: a queue for each key.
//!
//! | | waits for |
//! |---|---|
//! | a read | writes of its key that came before it and are not finished |
//! | a write | the same, and with [`ReadWrite::Waits`] reads that came before it |
//!
//! It gives the order of the priorities `window × R + depth` (Shi et al., 2019) without windows, and begins nothing later
//! (ADR 31; the property test stands beside this file).
//!
//! # Invariants
//!
//! 1. Of two requests of a key one of which writes, the one that came first begins first; the other begins when it is
//!    finished. Only a write that passes reads under way may begin beside them.
//! 2. A read waits for writes alone that had come when it came: any number of reads of a key are under way at once.
//! 3. What waits for nothing begins at once. Whenever a key has requests, one of them is under way.
//! 4. What waits is bounded; who would be one more is told so and has changed nothing.

use std::collections::{BTreeMap, VecDeque};

use crate::limits::DEPENDENT_REQUESTS_MAX;

/// The access of a request to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads.
    Read,
    /// Changes.
    Write,
}

/// The order of a write and the reads before it: it waits for them, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadWrite {
    /// It does, as where data is overwritten in place.
    Waits,
    /// It does not: extents never change, and a read that comes late notices (ADR 2).
    Passes,
}

/// The result of a request's arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrived {
    /// It begins.
    Begins,
    /// It will, when others are finished.
    Waits,
    /// There is no room for one more that waits.
    Full,
}

/// The requests of a key.
#[derive(Debug)]
struct Queue<T> {
    reads: usize,
    /// A write is under way.
    writes: bool,
    waiting: VecDeque<(T, Access)>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { reads: 0, writes: false, waiting: VecDeque::new() }
    }
}

impl<T> Queue<T> {
    /// Returns true if it could begin if nothing waited before it.
    fn lets(&self, access: Access, read_write: ReadWrite) -> bool {
        let passes = access == Access::Read || read_write == ReadWrite::Passes;
        !self.writes && (passes || self.reads == 0)
    }

    fn begin(&mut self, access: Access) {
        match access {
            Access::Read => self.reads += 1,
            Access::Write => {
                assert!(!self.writes, "one write of a key at a time");
                self.writes = true;
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.reads == 0 && !self.writes
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Dependencies<K, T> {
    read_write: ReadWrite,
    queues: BTreeMap<K, Queue<T>>,
    waiting: usize,
}

impl<K: Ord + Clone, T> Dependencies<K, T> {
    /// Without requests.
    #[must_use]
    pub fn new(read_write: ReadWrite) -> Self {
        Self { read_write, queues: BTreeMap::new(), waiting: 0 }
    }

    /// A request arrives.
    pub fn arrived(&mut self, key: &K, token: T, access: Access) -> Arrived {
        let queue = self.queues.entry(key.clone()).or_default();
        if queue.waiting.is_empty() && queue.lets(access, self.read_write) {
            queue.begin(access);
            return Arrived::Begins;
        }
        if self.waiting >= DEPENDENT_REQUESTS_MAX {
            return Arrived::Full;
        }
        self.waiting += 1;
        queue.waiting.push_back((token, access));
        Arrived::Waits
    }

    /// One that was under way is finished: those that begin now.
    ///
    /// # Panics
    /// If none of the kind was under way for the key.
    pub fn finished(&mut self, key: &K, access: Access) -> Vec<T> {
        let queue = self.queues.get_mut(key).expect("what is finished was under way");
        match access {
            Access::Read => {
                queue.reads = queue.reads.checked_sub(1).expect("a read was under way");
            }
            Access::Write => {
                assert!(queue.writes, "a write was under way");
                queue.writes = false;
            }
        }
        let mut begins = Vec::new();
        while let Some(&(_, access)) = queue.waiting.front()
            && queue.lets(access, self.read_write)
        {
            begins.extend(queue.waiting.pop_front().map(|(token, _)| token));
            queue.begin(access);
        }
        self.waiting -= begins.len();
        if queue.is_idle() {
            assert!(
                queue.waiting.is_empty(),
                "who waits for a key waits for one that is under way"
            );
            self.queues.remove(key);
        }
        begins
    }

    /// Requests that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns true if there are none, waiting or under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

#[cfg(test)]
#[path = "dependencies/tests.rs"]
mod tests;
