//! The protocol's limits, with their units.

/// An LV that is fuller than this takes no new objects until deletes have made room (DESIGN §3.4).
pub const LV_FULL_PERCENT: u64 = 85;
/// Blocks that wait in an LV before its floor is raised although space is not short: 1 MiB, so
/// that a raise, which writes one block, costs less than half a percent.
pub const WAITING_BLOCKS_BEFORE_RAISE: u32 = 256;
/// Calls that may wait in one PG for keys to come to rest, for space or for a barrier.
pub const WAITING_CALLS_MAX: usize = 4096;
/// Ops of one PG that may be above the applied position before calls are turned away.
pub const TAIL_OPS_MAX: usize = 16_384;
/// Ops applied to the index in one batch.
pub const APPLY_OPS_MAX: usize = 256;
/// Milliseconds after which an open grant is resolved although its proxy has said nothing.
pub const GRANT_MS_MAX: u64 = 60_000;
/// Replicas that may fail between two ticks before calls that wait for space are turned away: another
/// LV may be out of reach too.
pub const LV_FAILURES_MAX: u32 = 4;
/// Answers kept per session for repeats.
pub const REPEATS_MAX: usize = 65_536;
/// Applied ops that a member of several remembers for one that is a little behind: about 100 KiB.
pub const HISTORY_OPS_MIN: usize = 256;
/// Applied ops that a primary remembers while a follower takes a snapshot; one that takes longer
/// begins anew. About 8 MiB.
pub const HISTORY_OPS_MAX: usize = 16_384;
/// Bytes of rows in one piece of a snapshot, but for the last row's.
pub const SNAPSHOT_PIECE_BYTES: usize = 512 * 1024;
/// Old rows removed at once when a snapshot takes their place.
pub const SNAPSHOT_REMOVALS_MAX: usize = 1024;
/// Ticks without a word from the primary after which a follower reports anew.
pub const SILENT_TICKS_MAX: u32 = 20;
/// Ticks without a word from a learner after which its primary remembers nothing for it.
pub const LEARNER_TICKS_MAX: u32 = 80;

const _: () =
    assert!(SILENT_TICKS_MAX < LEARNER_TICKS_MAX, "a follower speaks up before it is let go");
const _: () =
    assert!(HISTORY_OPS_MIN < HISTORY_OPS_MAX, "a snapshot needs more than a short delay");
const _: () = assert!(APPLY_OPS_MAX < TAIL_OPS_MAX, "a batch is a part of the tail");
const _: () = assert!(WAITING_CALLS_MAX <= TAIL_OPS_MAX, "calls that wait find room when they run");
