//! How far a meta server's background work is: what it tells an operator who asks.

use serde::{Deserialize, Serialize};

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The budget of all of it.
    pub background: BackgroundNow,
    /// Copies that are missing.
    pub rebuild: RebuildNow,
    /// Copies that are verified; `None` where that is switched off.
    pub scrub: Option<ScrubNow>,
    /// Floors of the volumes whose groups it leads.
    pub floors: FloorsNow,
}

/// The budget, and its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BackgroundNow {
    /// Bytes a second at most.
    pub bytes_per_s_max: u64,
    /// Bytes a second that are allowed now: fewer while clients queue.
    pub bytes_per_s_allowed: u64,
    /// Bytes a second of late.
    pub bytes_per_s: u64,
    /// Pieces under way.
    pub under_way: u64,
    /// How often it yielded since the start.
    pub yields: u64,
    /// Bytes begun since the start: of copies made.
    pub rebuild_bytes: u64,
    /// Of copies verified.
    pub scrub_bytes: u64,
}

/// Copies that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RebuildNow {
    /// Chunks that lacked a copy, or had one in the wrong place, when there were most since all was well.
    pub chunks: u64,
    /// Those of them that still do, as far as is known.
    pub left: u64,
    /// Of which no copy could be read at the last walk.
    pub lost: u64,
    /// Of which one could.
    pub single: u64,
    /// Copies made since the start.
    pub made: u64,
    /// Copies that could not be made, and are tried again.
    pub failed: u64,
}

/// Copies that are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScrubNow {
    /// Milliseconds within which every copy is to be verified.
    pub period_ms: u64,
    /// Milliseconds for which a copy may not have been verified.
    pub oldest_ms: u64,
    /// Thousandths of the round under way; `None` between two rounds.
    pub share: Option<u32>,
    /// Rounds that are over.
    pub rounds: u64,
    /// Damaged copies found by the last whole round, or by the one under way if that has found more.
    pub bad: u64,
    /// Copies verified since the start: right.
    pub right: u64,
    /// Damaged or unreadable.
    pub bad_since_start: u64,
    /// For which no answer came.
    pub unanswered: u64,
    /// Groups of which this server has no whole round on record: their age counts from when it began to keep one.
    pub never: u64,
}

/// Floors of volumes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FloorsNow {
    /// Volumes.
    pub volumes: u64,
    /// Those with a replica that has acknowledged no floor in this view.
    pub closed: u64,
    /// Ops that the furthest floor is behind its group's last op.
    pub lag_ops_max: u64,
    /// Bytes freed that wait for floors.
    pub waiting_bytes: u64,
    /// Those that are furthest behind.
    pub furthest: Vec<FloorNow>,
}

/// The floor of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FloorNow {
    /// Volume.
    pub volume: u32,
    /// Its group.
    pub pg: u32,
    /// The lowest floor that a replica has acknowledged in this view; `None` before all have.
    pub floor: Option<u64>,
    /// Ops from there to the group's last.
    pub lag_ops: u64,
    /// Bytes freed that wait for it.
    pub waiting_bytes: u64,
}
