//! The limits of what passes between regions.

/// Most regions that a bucket's changes may wait for: as many as there are at a time.
pub const BUCKET_REGIONS_MAX: u8 = 8;
/// Bytes of the list of regions that the managers keep for a cluster's gateway.
pub const REGION_LIST_BYTES_MAX: usize = 128 * 1024;
/// Most PGs of another region that one request asks for ids of.
pub const REGION_REQUEST_PGS_MAX: usize = 256;
/// Most PGs that a region answers for at a time: another release may ask for more than this one does.
pub const REGION_SERVED_PGS_MAX: usize = 1024;
/// Most ids of an answer.
pub const REGION_REQUEST_IDS_MAX: usize = 1000;
/// Most things told by another region that are not here yet and may be taken.
pub const REGION_CLAIMS_MAX: usize = 16 * REGION_REQUEST_IDS_MAX;
/// Most of those beside them that cannot be taken now. The rest is passed over, until it is told again.
pub const REGION_STUCK_MAX: usize = 16 * REGION_REQUEST_IDS_MAX;
/// Most of those beside them whose buckets are not known here, and most of one bucket. The rest is passed over, too.
pub const REGION_UNNAMED_MAX: usize = 16 * REGION_REQUEST_IDS_MAX;
/// See [`REGION_UNNAMED_MAX`].
pub const REGION_UNNAMED_OF_BUCKET_MAX: usize = REGION_REQUEST_IDS_MAX;
/// Most buckets that one look asks for.
pub const REGION_BUCKETS_FOUND_MAX: usize = 1000;
/// Requests for others, while some wait, from one for what is stuck to the next.
pub const REGION_STUCK_TURN: usize = 8;
/// Milliseconds for which a PG of another region may be silent, without even an empty response, before that is
/// reported.
pub const REGION_SILENT_MS: u64 = 30_000;
/// Most entries that one request fetches.
pub const REGION_FETCH_IDS_MAX: usize = 192;
/// Most entries that a region serves for one request: another release may fetch more at a time than this one does.
pub const REGION_SERVED_ENTRIES_MAX: usize = 1024;
/// Bytes of entries from which on a request fetches no more.
pub const REGION_FETCH_BYTES_MAX: u64 = 16 << 20;
/// Bytes from which on an entry comes in parts: those of a second, half as many as this at least and four times as many at most.
pub const REGION_PART_BYTES: u64 = 2 * larder_types::limits::CHUNK_BYTES_MAX as u64;
/// Most requests that fetch of one region at a time. One of them is never for a part.
pub const REGION_FETCHES_MAX: usize = 4;
/// Most milliseconds after which a bucket that is not known here is looked for again, and what was passed over is told again.
pub const REGION_BACK_MS_MAX: u64 = 300_000;
/// Milliseconds after which a request to another region is given up.
pub const REGION_ANSWER_MS: u64 = 10_000;
/// Milliseconds between two requests for ids where nothing is known to be behind.
pub const REGION_POLL_MS: u64 = 100;
/// Milliseconds after which something is looked at again that could not be taken.
pub const REGION_HELD_MS: u64 = 5_000;
/// Most of them: they double each time.
pub const REGION_HELD_MS_MAX: u64 = 32 * REGION_HELD_MS;
/// Milliseconds after which an entry is looked up again of which a lookup had no answer.
pub const REGION_UNKNOWN_MS: u64 = 1_000;
/// Most lookups of an entry that have no answer. Then it is fetched, whether or not it is here.
pub const REGION_UNKNOWN_TRIES_MAX: u32 = 10;
/// Most checks at which a region that cannot send an entry's end is not asked for all of it, as another one may have
/// the end.
pub const REGION_AWAITED_TRIES_MAX: u32 = 10;
/// Fetches in a row of an entry which find that another version is here than they were asked for by, before the entry is held for a
/// while.
pub const REGION_CHANGED_TRIES_MAX: u32 = 3;
/// Milliseconds by which another region's clock may be ahead of this one's.
pub const REGION_CLOCK_AHEAD_MS_MAX: u64 = 60_000;
/// Milliseconds by which this machine's clock may be ahead of a majority of other machines' clocks. Changes are dated at most so much
/// later than by these.
pub const CLOCK_AHEAD_MS_MAX: u64 = 30_000;
/// Milliseconds between two questions to another machine for its clock.
pub const CLOCK_ASK_MS: u64 = 10_000;
/// The same while this machine's clock is ahead of a majority, or the other has not answered of late.
pub const CLOCK_ASK_AGAIN_MS: u64 = 1_000;
/// Milliseconds for which another machine's clock counts after it was asked for.
pub const CLOCK_FRESH_MS: u64 = 60_000;
/// Fewest other clocks by which a change of another region is refused as ahead, though the own clock has come to its time.
pub const CLOCK_JUDGES_MIN: usize = 2;
/// Milliseconds since 1970, at the beginning of 2026: a clock that shows an earlier time is wrong.
pub const CLOCK_FLOOR_MS: u64 = 1_767_225_600_000;
const _: () = assert!(
    2 * CLOCK_AHEAD_MS_MAX <= REGION_CLOCK_AHEAD_MS_MAX,
    "a region that is held back is taken also by one that is behind the majority by as much"
);
const _: () = assert!(
    CLOCK_ASK_MS + 2 * REGION_ANSWER_MS < CLOCK_FRESH_MS,
    "one question without an answer costs no reading"
);
/// Most journals of other regions of which one op notes how far they are here.
pub const REGION_NOTES_MAX: usize = 256;
/// Ops of a placement group for which its journal tells other regions what came of them: a region that is further behind
/// compares all keys. Some more are kept until the next op at which the journal forgets.
pub const REGION_JOURNAL_OPS_MAX: u64 = 1 << 16;
/// Most ops that a journal forgets at a time, and ops from one look at how far it reaches to the next.
pub const REGION_FORGET_OPS_MAX: u64 = 4096;
/// Tombstones that one op frees.
pub const REGION_FREED_MAX: usize = 64;
/// Keys that a region is asked for at least, for a list of all regions: some may be deleted elsewhere.
pub const REGION_LISTED_KEYS_MIN: u32 = 16;
/// Most live keys requested from a region at a time, and most deleted keys that it sends with them.
pub const REGION_LISTED_KEYS_MAX: u32 = 1001;
/// Most entries of a run that a comparison sums, and lists if its sum differs.
pub const REGION_RUN_IDS_MAX: usize = 256;
/// Most runs of an answer.
pub const REGION_RUNS_MAX: usize = 256;

const _: () = assert!(
    REGION_LISTED_KEYS_MAX as usize == larder_types::limits::LIST_PAGE_MAX + 1,
    "one key more than fit tells whether a page is the last"
);
const _: () = assert!(
    REGION_RUN_IDS_MAX <= REGION_REQUEST_IDS_MAX && 2 * REGION_REQUEST_IDS_MAX <= REGION_CLAIMS_MAX,
    "the ids of a run, and those of an answer, have room"
);
const _: () = assert!(
    REGION_UNNAMED_MAX > larder_types::limits::BUCKETS_MAX
        && REGION_UNNAMED_OF_BUCKET_MAX < REGION_UNNAMED_MAX,
    "each bucket of a region has a place, and none takes all"
);
const _: () = assert!(
    REGION_POLL_MS <= REGION_HELD_MS && REGION_HELD_MS_MAX <= REGION_BACK_MS_MAX,
    "what is kept is looked at before what was passed over"
);
const _: () = assert!(
    (REGION_PART_BYTES / 2).is_multiple_of(larder_types::limits::CHUNK_BYTES_MAX as u64)
        && REGION_FETCHES_MAX > 1,
    "a part has whole chunks, and others pass it"
);
const _: () = assert!(
    REGION_SERVED_PGS_MAX >= REGION_REQUEST_PGS_MAX
        && REGION_SERVED_ENTRIES_MAX >= REGION_FETCH_IDS_MAX,
    "a region serves what its own release asks for"
);
