//! The state of root's keys at a proxy, as it reports it.

use serde::{Deserialize, Serialize};

/// The keys that a proxy takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysTaken {
    /// Generation of the managers' record that it has; 0 while it takes those of its own file.
    pub generation: u32,
    /// Access key of the current pair.
    pub access_key: String,
    /// True if its environment gives it keys of its own: what the managers keep does not count there.
    pub is_fixed: bool,
    /// Use of the pair before, if that is taken too.
    pub previous: Option<PreviousTaken>,
}

/// Use of the pair before the current one, since this proxy takes both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviousTaken {
    /// Requests signed with it.
    pub requests: u64,
    /// Seconds since the last of them.
    pub last_s: Option<u64>,
}
