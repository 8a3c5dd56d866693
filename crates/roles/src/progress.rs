//! The progress of a meta server's background work, as it reports it to operators.

use serde::{Deserialize, Serialize};

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The budget of all of it.
    pub background: BackgroundStatus,
    /// Copies that are missing.
    pub rebuild: RebuildStatus,
    /// Copies that are verified; `None` where that is switched off.
    pub scrub: Option<ScrubStatus>,
    /// Floors of the volumes whose groups it leads.
    pub floors: FloorsStatus,
    /// Members' indexes that are compared; `None` where that is switched off.
    pub digests: Option<DigestsStatus>,
    /// Volumes that are badly fragmented.
    pub compaction: CompactionStatus,
    /// The metadata log.
    pub log: LogStatus,
}

/// Space of the volumes whose groups a meta server leads, and what buckets have there.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SpaceStatus {
    /// The volumes, at most [`VOLUMES_TOLD_MAX`](crate::limits::VOLUMES_TOLD_MAX).
    pub volumes: Vec<VolumeStatus>,
    /// The buckets with the most bytes, at most [`BUCKETS_TOLD_MAX`](crate::limits::BUCKETS_TOLD_MAX).
    pub buckets: Vec<BucketUsage>,
    /// Other buckets together; 0 is their number.
    pub other_buckets: BucketUsage,
    /// Groups whose buckets are not counted yet.
    pub uncounted: u32,
}

/// Blocks of a volume, of each of its copies. What is in none of these states holds data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// The volume.
    pub volume: u32,
    /// All of its blocks.
    pub blocks: u32,
    /// Free ones, those too that are not given for want of room on a disk.
    pub free: u32,
    /// Freed ones that are not given yet.
    pub waiting: u32,
    /// Those of which it is not known yet whether they hold data.
    pub unread: u32,
}

/// Room on the disk of a data server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRoomStatus {
    /// The disk.
    pub disk: u32,
    /// True if it has none for another volume.
    pub lacks_room: bool,
    /// Bytes of its file; `None` for a block device, on which every physical volume has its room.
    pub file: Option<FileStatus>,
}

/// A file with physical volumes, in a file system that others may use as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// Bytes reserved for physical volumes so far.
    pub held: u64,
    /// Bytes that new data may still take of the file system.
    pub spare: u64,
}

/// Objects of a bucket, and their bytes as clients see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BucketUsage {
    /// The bucket.
    pub bucket: u64,
    /// Objects.
    pub objects: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Puts in doubt: what became of them is known only when servers come back, or are removed for good.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DoubtsStatus {
    /// The number of puts.
    pub puts: u64,
    /// Those that have been so for longest.
    pub oldest: Vec<PutInDoubt>,
}

/// A put in doubt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutInDoubt {
    /// Its group.
    pub pg: u32,
    /// Its op.
    pub op: u64,
    /// Its bucket.
    pub bucket: u64,
    /// Its key.
    pub key: String,
    /// Its volume.
    pub volume: u32,
    /// Milliseconds since it began, or since its group's primary did.
    pub open_ms: u64,
    /// Replicas of the volume that may have its data and are out of reach.
    pub away: Vec<AwayReplica>,
}

/// A replica that is out of reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwayReplica {
    /// Its server.
    pub server: u32,
    /// Its disk.
    pub disk: u32,
}

/// The budget, and its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BackgroundStatus {
    /// Bytes a second at most.
    pub bytes_per_s_max: u64,
    /// Bytes a second that are allowed now: fewer while clients queue.
    pub bytes_per_s_allowed: u64,
    /// Bytes a second of late.
    pub bytes_per_s: u64,
    /// Pieces under way.
    pub under_way: u64,
    /// Times that it yielded since the start.
    pub yields: u64,
    /// Bytes begun since the start: of copies made.
    pub rebuild_bytes: u64,
    /// Of copies verified.
    pub scrub_bytes: u64,
    /// Of rows read to be summed.
    pub digest_bytes: u64,
}

/// Copies that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RebuildStatus {
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
pub struct ScrubStatus {
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
pub struct FloorsStatus {
    /// Volumes.
    pub volumes: u64,
    /// Those with a replica that has acknowledged no floor in this view.
    pub closed: u64,
    /// Ops that the furthest floor is behind its group's last op.
    pub lag_ops_max: u64,
    /// Bytes freed that wait for floors.
    pub waiting_bytes: u64,
    /// Those that are furthest behind.
    pub furthest: Vec<FloorStatus>,
}

/// The floor of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FloorStatus {
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

/// Indexes of the members of groups that are compared with each other.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DigestsStatus {
    /// Milliseconds within which the members of each group are to be compared.
    pub period_ms: u64,
    /// Groups that this server leads.
    pub groups: u64,
    /// Those whose members were found equal when they were last compared by this server, in this run of it.
    pub equal: u64,
    /// Milliseconds since the members of a group were found equal, where that is longest; counted from when this server
    /// began to lead it if it never found so.
    pub oldest_ms: u64,
    /// The group that is being compared.
    pub under_way: Option<u32>,
    /// Comparisons begun since the start.
    pub begun: u64,
    /// That found all members equal.
    pub found_equal: u64,
    /// That found one with other rows than most, which takes them anew.
    pub found_odd: u64,
    /// That found members different, and none that most are equal to.
    pub found_unclear: u64,
    /// Without a result, as a member had begun anew or was busy, or the view had ended.
    pub void: u64,
    /// Groups whose members were found to differ, and not equal since.
    pub differing: u64,
    /// Some of them.
    pub differing_groups: Vec<u32>,
}

/// Volumes that are badly fragmented: chunks move within them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CompactionStatus {
    /// Volumes that were, at the last look.
    pub fragmented: u64,
    /// Those that are being compacted.
    pub under_way: u64,
    /// Bytes that are to be moved in them, about.
    pub bytes_wanted: u64,
    /// Bytes of that for which there are copies at their new place.
    pub bytes_made: u64,
    /// Walks over the index since the start.
    pub walks: u64,
    /// Chunks copied to a new place since the start.
    pub chunks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Chunks that could not be copied.
    pub failed: u64,
}

/// The metadata log: it is trimmed behind what the index shows durably.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LogStatus {
    /// Bytes that its segments take, with those that are kept for later use.
    pub disk_bytes: u64,
    /// Bytes from the beginning of its oldest segment to its end.
    pub untrimmed_bytes: u64,
    /// Bytes trimmed since the start.
    pub trimmed_bytes: u64,
    /// Bytes written a second of late.
    pub written_per_s: u64,
    /// Bytes trimmed a second of late.
    pub trimmed_per_s: u64,
    /// The reason why its oldest segment is kept.
    pub kept: LogKept,
}

/// The reason why the oldest segment of a log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum LogKept {
    /// It is the one that is being written.
    #[default]
    BeingWritten,
    /// Nobody needs it once the index is flushed.
    ToBeFlushed,
    /// It has a put without an outcome.
    OpenPut {
        /// The put's group.
        pg: u32,
        /// Its op.
        op: u64,
    },
    /// It has a request that its proxy may repeat.
    Request {
        /// The request's group.
        pg: u32,
        /// Its op.
        op: u64,
    },
    /// It has ops that the index does not show yet.
    NotApplied {
        /// Their group.
        pg: u32,
        /// The first of them.
        op: u64,
    },
}
