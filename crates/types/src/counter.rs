//! Numbers that any thread counts, and that a process exports. Nothing may be decided by one: it is relaxed, so that
//! it says nothing of other memory.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that is counted up, or up and down.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts up.
    pub fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// Counts down.
    pub fn sub(&self, by: u64) {
        self.0.fetch_sub(by, Ordering::Relaxed);
    }
}
