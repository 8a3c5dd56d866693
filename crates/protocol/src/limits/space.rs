//! Limits of a group's space: where it is allocated, and for how long freed space rests.

/// An LV that is fuller than this takes no new objects until deletes have made room ("Space" in `ARCHITECTURE.md`).
pub const LV_FULL_PERCENT: u64 = 85;
/// Milliseconds for which an LV gives nothing of the part for which a replica's disk had no room, or only on the others.
/// So often one put finds out whether room was made.
pub const WITHHELD_MS: u64 = 10_000;
/// Milliseconds after a disk had no room for data for which puts avoid it, though it may take them. They go to other
/// disks, or to most replicas without it: as long as the put that it refused takes to come again.
pub const REFUSED_MS: u64 = 200;
/// Milliseconds for which a PG takes it that there is no other LV, before it asks again on behalf of a put for which a
/// disk has no room.
pub const POOL_EMPTY_MS: u64 = 1_000;
/// Blocks that wait in an LV before its floor is raised although space is not short. They are 1 MiB, so that a raise,
/// which writes one block, costs less than half a percent.
pub const WAITING_BLOCKS_BEFORE_RAISE: u32 = 256;
/// Milliseconds for which freed blocks rest, and for which rows that went can still be read. A read that began before finds
/// in them what it reads. A client takes 8 MiB in it that gets 140 KiB a second.
pub const FREED_REST_MS: u64 = 60_000;
/// The same while objects of the group are read chunk by chunk: a download of 20 GiB takes that long at 11 MiB a second.
pub const FREED_REST_MS_MAX: u64 = 30 * 60_000;
/// Extents of an LV that rest, 16 bytes each: of more the oldest are given again.
pub const RESTING_EXTENTS_MAX: usize = 8192;
/// At most one part in so many of an LV's blocks rests. It fits into what the LV leaves empty, as it takes no objects from
/// [`LV_FULL_PERCENT`] on.
pub const RESTING_PART: u32 = 8;
/// Of a small LV so many blocks may rest, 64 MiB: a large object has more than an eighth of it.
pub const RESTING_BLOCKS_MIN: u32 = 16_384;
/// These are at most one part in so many of it.
pub const RESTING_PART_MAX: u32 = 2;
/// Extents of a group whose rest ends in one tick: all of an LV may be due at once.
pub const RESTS_ENDED_MAX: usize = RESTING_EXTENTS_MAX / 2;
/// Bytes of memory for rows that went and can still be read, of one group: those of about 6 GiB in chunks.
pub const DEPARTED_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of memory that such a row takes beside its bytes, about.
pub const DEPARTED_ROW_BYTES: usize = 128;
/// Milliseconds after a group was short of space for which its garbage does not wait for reads.
pub const SHORT_MS: u64 = 10_000;
/// Milliseconds for which a put that finds no space waits for garbage that was spared for reads, before another LV is asked
/// for. A step of it takes two ticks and a floor, and four groups have steps in a tick.
pub const REAPED_FIRST_MS: u64 = 2_000;

const _: () = assert!(REAPED_FIRST_MS < SHORT_MS, "garbage is removed while a put waits for it");
const _: () = assert!(REFUSED_MS < WITHHELD_MS, "what was refused is withheld for longer");
const _: () =
    assert!(LV_FULL_PERCENT + 100 / RESTING_PART as u64 <= 100, "an LV has room for both");
const _: () = assert!(FREED_REST_MS < FREED_REST_MS_MAX, "a read under way lengthens a rest");
