//! The limits of which copies are made first, and how fast.

/// The cluster's version from which on meta servers and managers agree on the order of copies.
pub const COPY_TURNS_PROTOCOL: u8 = 23;
/// Milliseconds in which the reads that make a volume hot count half.
pub const HEAT_HALF_MS: u64 = 60_000;
/// Reads, counted so, from which on a volume is hot: about seven a second that go on.
pub const HOT_READS: u64 = 600;
/// Milliseconds for which managers remember what a meta server has to copy. It says so at each beat.
pub const COPY_NEED_MS: u64 = 1_500;
/// Milliseconds after which a meta server that has made no copy holds up others no more.
pub const COPY_STUCK_MS: u64 = 15_000;
/// Milliseconds for which a copy turn is valid, counted from the report that it answers. A meta server without one for
/// as long copies on its own.
pub const COPY_TURN_MS: u64 = 5_000;
/// Times its own budget that a meta server's copies may take of what others lend that have less urgent ones.
pub const COPY_LENT_MAX: u64 = 4;

const _: () = assert!(COPY_NEED_MS > 4 * super::SERVER_BEAT_MS, "a need outlives lost beats");
const _: () = assert!(COPY_NEED_MS < COPY_TURN_MS, "a new leader speaks before its word is missed");
const _: () = assert!(
    super::BACKGROUND_PIECES_MAX * COPY_LENT_MAX as usize <= super::REFILLS_MAX * 8,
    "a few groups have all the pieces"
);
