//! The limits of copies that data servers make.

use std::time::Duration;

/// Chunks whose copies a data server makes at once: 64 MiB of memory.
pub const COPIES_MAX: usize = 8;
/// Orders that wait for that, of a few KiB each. More are refused as busy.
pub const COPIES_WAITING_MAX: usize = 1_024;
/// Pieces of a chunk that are read ahead of each other for a copy.
pub const COPY_READS_MAX: usize = 2;
/// Least time between two looks for chunks with a single copy, in the middle of another walk.
pub const SINGLE_COPIES_PAUSE: Duration = Duration::from_secs(10);
/// Seconds of work that one go of a walk asks for, by the budget of the moment.
pub const REBUILD_PIECE_SECONDS: u64 = 2;
/// Milliseconds for which a primary waits for a copy, its turn included.
pub const COPY_TIMEOUT_MS: u64 = 30_000;
/// Most milliseconds of them for which the copy waits for its turn: after that its primary would not wait for the end.
pub const COPY_TURN_MS_MAX: u64 = COPY_TIMEOUT_MS / 2;
/// Milliseconds by which a data server ends a copy before its primary waits no more.
pub const COPY_MARGIN_MS: u64 = 1_000;
/// Time for which a primary asks a data server for no copies that has let one time out, or wait long for its turn: others get
/// theirs.
pub const COPY_BACKOFF: Duration = Duration::from_secs(10);
/// Milliseconds from which on it is long.
pub const COPY_LATE_MS: u64 = 5_000;

const _: () =
    assert!(COPY_LATE_MS < COPY_TURN_MS_MAX, "a disk that hangs is asked no more for a while");
const _: () = assert!(COPY_TURN_MS_MAX + COPY_MARGIN_MS < COPY_TIMEOUT_MS, "a turn is of use");
