//! Faults planted on purpose, to prove that the simulator finds such.

/// The faults that this log has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bugs {
    /// Recovery goes on behind records that do not verify, and does not miss what they were.
    pub chain_not_checked: bool,
    /// The cut of a torn tail never reaches the disk, nor do the zeros that later writes put behind
    /// themselves; and recovery does not sync what it gives back.
    pub cut_tail_not_synced: bool,
    /// A commit returns before its records are synced.
    pub ack_before_sync: bool,
}
