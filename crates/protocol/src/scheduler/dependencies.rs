//! Dependencies between requests of the same key: a queue for each key.
//!
//! | | waits for |
//! |---|---|
//! | a read | writes of its key that came before it and are not finished |
//! | a write | the same, and with [`ReadWrite::Waits`] reads that came before it |
//!
//! It gives the order of the priorities `window × R + depth` (Shi et al., 2019) without windows, and begins no request later.
//! A property test beside this file shows it (ADR 31).
//!
//! # Invariants
//!
//! 1. Of two requests of a key, at least one of which is a write, the one that came first begins first. The other begins
//!    once that is finished, but for a write that [passes](ReadWrite::Passes) reads under way.
//! 2. A read waits for no other read: any number of reads of a key are under way at once.
//! 3. A request that depends on no other begins at once. Whenever a key has requests, one of them is under way.
//! 4. At most [`DEPENDENT_REQUESTS_MAX`] requests wait. One more is refused and changes nothing.

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

/// The order of a write and the reads before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadWrite {
    /// The write waits for the reads, as it must where data is overwritten in place.
    Waits,
    /// The write does not wait: extents are never overwritten in place, and checksums show a late read that its bytes are gone
    /// (ADR 2).
    Passes,
}

/// The result of a request's arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrived {
    /// It begins now.
    Begins,
    /// It will begin once others are finished.
    Waits,
    /// It is refused: too many wait.
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
    /// Returns true if the requests under way let it begin.
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

/// The queues of all keys that have requests.
#[derive(Debug)]
pub struct Dependencies<K, T> {
    read_write: ReadWrite,
    queues: BTreeMap<K, Queue<T>>,
    waiting: usize,
}

impl<K: Ord + Clone, T> Dependencies<K, T> {
    /// A machine without requests.
    #[must_use]
    pub fn new(read_write: ReadWrite) -> Self {
        Self { read_write, queues: BTreeMap::new(), waiting: 0 }
    }

    /// Takes a request that arrives, under a token that [`finished`](Self::finished) returns.
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

    /// Ends a request that was under way. Returns the tokens of those that begin now.
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

    /// The number of requests that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns true if no request waits or is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

#[cfg(test)]
#[path = "dependencies/tests.rs"]
mod tests;
