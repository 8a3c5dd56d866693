//! The limits of a disk, with their units, and how they relate.

use larder_types::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX, REPLICAS_MAX, SUM_BYTES};

/// Granule of a PV's size and of the start of the data area.
pub const PV_BYTES_STEP: u64 = 1024 * 1024;
/// Bytes of the largest PV.
pub const PV_BYTES_MAX: u64 = 16 * 1024 * 1024 * 1024;
/// Most PVs of one disk.
pub const PV_COUNT_MAX: u32 = 16_384;
/// Voided grants that a PV has room for above its floor.
pub const VOIDS_MAX: usize = 160;
/// Those that it takes; one more is refused with `Busy`, and its primary raises the floor. Simulations are to come so far.
pub const VOIDS_TAKEN_MAX: usize = if cfg!(feature = "small-limits") { 4 } else { VOIDS_MAX };
/// Grants of which a PV remembers that it wrote under them, the latest ones: enough for the puts that
/// are under way.
pub const WRITTEN_GRANTS_MAX: usize = 1024;
/// Commands of one group.
pub const GROUP_COMMANDS_MAX: usize = 1024;
/// Pieces of one vectored write (`IOV_MAX`).
pub const IO_PARTS_MAX: usize = 1024;
/// A PV's reservation grows by one part in this many, so that little of a disk is reserved in vain.
pub const RESERVE_PART: u64 = 8;
/// Least bytes by which a PV's reservation grows.
pub const RESERVE_STEP_MIN: u64 = 1024 * 1024;
/// Most bytes by which a PV's reservation grows beyond what a write needs.
pub const RESERVE_STEP_MAX: u64 = 64 * 1024 * 1024;
/// Most bytes of a PV whose space goes back to the file system with one command: nothing is written meanwhile.
pub const FREE_STEP_BYTES: u64 = 64 * 1024 * 1024;
/// Bytes read at a time when a chunk is verified.
pub const VERIFY_READ_BYTES: u32 = 1024 * 1024;
/// Bytes of a buffer that reads use again.
pub const READ_BUFFER_BYTES: usize = 512 * 1024;
/// Buffers kept for the next read.
pub const READ_BUFFERS_KEPT_MAX: usize = 32;

const _: () = assert!(VOIDS_TAKEN_MAX <= VOIDS_MAX, "what is taken has room");
const _: () = assert!(PV_BYTES_STEP.is_multiple_of(BLOCK_BYTES as u64), "PVs are whole blocks");
const _: () = assert!(PV_BYTES_MAX.is_multiple_of(PV_BYTES_STEP), "the largest PV is a PV");
const _: () =
    assert!(PV_BYTES_MAX / (BLOCK_BYTES as u64) <= u32::MAX as u64, "blocks are numbered by u32");
const _: () = assert!(
    PV_COUNT_MAX as u64 * PV_BYTES_MAX < i64::MAX as u64 / 2,
    "offsets in the file fit the system's"
);
const _: () = assert!(
    RESERVE_STEP_MIN.is_multiple_of(PV_BYTES_STEP) && RESERVE_STEP_MIN <= RESERVE_STEP_MAX,
    "reservations grow in whole steps"
);
const _: () = assert!(
    FREE_STEP_BYTES.is_multiple_of(PV_BYTES_STEP),
    "what goes back is whole blocks of any file system"
);
const _: () = assert!(VERIFY_READ_BYTES.is_multiple_of(SUM_BYTES), "reads hold whole sums");
const _: () = assert!(VERIFY_READ_BYTES <= CHUNK_BYTES_MAX, "no read is larger than a chunk");
const _: () = assert!(REPLICAS_MAX <= u8::MAX as usize, "a header's replica is one byte");
