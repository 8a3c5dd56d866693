//! The urgency of a copy.

use serde::{Deserialize, Serialize};

/// Copies with the least come first: of chunks of which the fewest copies can be read, and among these, of chunks in
/// volumes that are read a lot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CopyPriority {
    /// Copies that can be read: one at least.
    pub good: u8,
    /// The chunk's volume is not read much.
    pub is_cold: bool,
}

impl CopyPriority {
    /// The priority that nothing comes before.
    pub const FIRST: Self = Self { good: 1, is_cold: false };
    /// The priority that everything comes before.
    pub const LAST: Self = Self { good: u8::MAX, is_cold: true };

    /// That of a chunk of which so many copies can be read.
    #[must_use]
    pub fn new(good: usize, is_hot: bool) -> Self {
        Self { good: u8::try_from(good).unwrap_or(u8::MAX).max(1), is_cold: !is_hot }
    }

    /// Returns true if there is no other copy of the chunk.
    #[must_use]
    pub fn is_single(self) -> bool {
        self.good <= 1
    }
}
