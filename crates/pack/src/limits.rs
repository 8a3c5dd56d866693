//! The limits of packing, with their units, and how they relate.

use std::time::Duration;

use larder_types::limits::{CHUNK_BYTES_MAX, OP_BYTES_MAX, PUT_BYTES_MAX, SUM_BYTES};

/// Bytes of bodies at which a blob is full, unless the configuration says otherwise.
pub const BLOB_BYTES_DEFAULT: u64 = 1024 * 1024 * 1024;
/// Least bytes that may be configured for a blob.
pub const BLOB_BYTES_MIN: u64 = 1024 * 1024;
/// Most bytes that may be configured for a blob.
pub const BLOB_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// Bundles of one blob at most: groups that come later share the blob.
pub const BUNDLES_MAX: u8 = 8;
/// A group gets a bundle when it has brought one in so many of the bytes of a full blob since the last one was closed.
pub const BUNDLE_SHARE: u64 = 16;
/// Groups whose bytes are counted; of more, the lesser half is forgotten.
pub const GROUPS_COUNTED_MAX: usize = 1024;
/// Steps of a key that may make a group.
pub const PREFIX_DEPTH_MAX: usize = 16;
/// Classes of sizes that may be configured.
pub const SIZE_CLASSES_MAX: usize = 16;
/// Rules that may be configured: each put looks at them in their order.
pub const RULES_MAX: usize = 64;
/// Least threads that write bodies at once, unless the configuration says otherwise: they mostly wait for syncs, also
/// where there is one core.
pub const PACKING_THREADS_MIN: usize = 4;
/// Most threads that write bodies at once: more than there are units have nothing to do.
pub const PACKING_THREADS_MAX: usize = 1 + BUNDLES_MAX as usize;
/// Age of the oldest change of a blob at which it goes up, however little is in it.
pub const FLUSH_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// Bytes of bodies that may wait in the spool; puts beyond are answered `SlowDown`.
pub const SPOOL_BYTES_DEFAULT: u64 = 8 * 1024 * 1024 * 1024;
/// Most bytes of an object that is packed: such a body is held in memory as a whole. Larger ones become
/// objects of their own in the backend.
pub const PACKED_BYTES_MAX: u64 = CHUNK_BYTES_MAX as u64;
/// Bytes that one sum of an object of its own covers.
pub const OWN_SUM_BYTES: u32 = 1024 * 1024;
/// Bytes of a blob's footer at which it is full: a reader of a footer holds it in memory.
pub const FOOTER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of the footers of all blobs that wait, which are in memory; puts beyond are answered `SlowDown`.
pub const FOOTERS_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Changes that wait for the committer; more are answered `SlowDown`.
pub const QUEUE_MAX: usize = 2048;
/// Changes that share a sync.
pub const GROUP_CHANGES_MAX: usize = 1024;
/// Bytes of bodies that share a sync.
pub const GROUP_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Bytes of one part of an upload to the backend.
pub const PART_BYTES: usize = 8 * 1024 * 1024;
/// Parts of one blob under way at once.
pub const PARTS_IN_FLIGHT_MAX: usize = 4;
/// Bytes read from the spool at a time.
pub const SPOOL_READ_BYTES: u64 = 512 * 1024;
/// Pieces of a blob read from the spool that wait to go out, where it goes up as one request: 2 MiB.
pub const STREAM_PIECES_AHEAD: usize = 4;
/// Most bytes of one PUT to S3: it takes 5 GB
/// (<https://docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html>). Stores like it mean decimal ones or a
/// little more.
pub const S3_PUT_BYTES_MAX: u64 = 5_000_000_000;
/// Most bytes of one PUT to Google: an object's, 5 TiB (<https://cloud.google.com/storage/quotas>).
pub const GOOGLE_PUT_BYTES_MAX: u64 = 5 << 40;
/// Most bytes of one Put Blob to Azure: 5,000 MiB from version 2019-12-12 on, which the library's is behind
/// (<https://learn.microsoft.com/en-us/rest/api/storageservices/put-blob>).
pub const AZURE_PUT_BYTES_MAX: u64 = 5000 << 20;
/// Most units in a row that go up in parts after one request for a unit broke off. One the first time, twice as many each
/// time after: on a way that never takes a large request, one unit of so many is sent twice.
pub const PARTS_IN_A_ROW_MAX: u32 = 64;
/// Tries of one request for a unit, of which hardly anything went out each time, before the unit goes up in parts.
pub const EARLY_TRIES_MAX: u32 = 4;
/// Percent of the spool that wait when parts beside each other are worth their price: puts are soon refused.
pub const SPOOL_BEHIND_PERCENT: u64 = 75;
/// Bytes of log that are kept before the index is flushed and the log is freed.
pub const LOG_BYTES_KEPT: u64 = 128 * 1024 * 1024;
/// Bytes of a log segment. Simulated processes start often and write little: theirs are small, so that they cross from
/// one into the next, and are read in little time.
pub const LOG_SEGMENT_BYTES: u64 = if cfg!(test) { 2 << 20 } else { 16 << 20 };
/// Rows that one batch of a bucket's removal has.
pub const REMOVED_ROWS_MAX: usize = 10_000;
/// Footers that are fetched ahead while the index is rebuilt.
pub const FOOTERS_AHEAD: usize = 2;
/// Pause after a blob could not be uploaded; doubles up to [`UPLOAD_PAUSE_MAX`].
pub const UPLOAD_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause between two tries to upload a blob.
pub const UPLOAD_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Time for which one request to the backend is repeated before it is given up.
pub const BACKEND_RETRY_MAX: Duration = Duration::from_secs(30);
/// Time for which the backend may be silent within one request, beside what of an upload is still
/// on its way to it.
pub const BACKEND_SILENCE_MAX: Duration = Duration::from_secs(30);
/// Time that a connection to the backend may take.
pub const BACKEND_CONNECT_MAX: Duration = Duration::from_secs(5);
/// Bytes of an upload that are handed to the system at once.
pub const UPLINK_FRAME_BYTES: usize = 64 * 1024;
/// Bytes of an upload that may be on their way in buffers: by default Linux has 4 MiB for a connection, beside ours.
pub const UPLINK_BUFFER_BYTES_MAX: u64 = 5 * 1024 * 1024;
/// Bytes a second on one connection below which an upload is given up, and fewer are made at once.
pub const UPLINK_BYTES_PER_S_MIN: u64 = 16 * 1024;
/// Tries in a row after which not one part more is in the backend, before an upload is begun anew.
pub const FRUITLESS_TRIES_MAX: u32 = 4;
/// Requests to the backend that may be under way at once at first; the limit follows how it answers.
pub const BACKEND_REQUESTS_START: u32 = 16;
/// Least requests to the backend that may be under way at once: a blob that goes up as one, another write, and a read.
pub const BACKEND_REQUESTS_MIN: u32 = 3;
/// Most requests to the backend that are ever under way at once.
pub const BACKEND_REQUESTS_MAX: u32 = 64;
/// Of a budget of requests a second, the time for which requests that were not made may be made up for.
pub const RATE_BURST: Duration = Duration::from_millis(100);
/// Least requests a second that may be configured.
pub const RATE_MIN: f64 = 0.1;
/// Looks at an object that the backend must have, before it counts as missing: 404 may be said of what is there.
pub const MISSING_READS_MAX: u32 = 4;
/// Pause after the first of them; four times as long after each.
pub const MISSING_PAUSE: Duration = Duration::from_millis(50);
/// Time for which a blob that was missing or damaged is not repacked; twice as long each time after
/// the first.
pub const REPACK_BACKOFF: Duration = Duration::from_secs(10 * 60);
/// The longest of these.
pub const REPACK_BACKOFF_MAX: Duration = Duration::from_secs(24 * 3600);
/// Pause after the backend throttled a request; doubles up to [`THROTTLED_PAUSE_MAX`].
pub const THROTTLED_PAUSE: Duration = Duration::from_millis(100);
/// Longest of these pauses.
pub const THROTTLED_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Longest pause that the backend is granted when it asks for one.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Time that a read waits for its turn to be made.
pub const GATE_WAIT_MAX: Duration = Duration::from_secs(60);
/// Time that a request of an upload waits for its turn to be made.
pub const GATE_UPLOAD_WAIT_MAX: Duration = Duration::from_secs(5 * 60);
/// Readers that wait for their turn to ask the backend, and as many uploads; more are refused.
pub const GATE_WAITING_MAX: usize = 1024;
/// Reads in a row after which an upload that waits goes first.
pub const READS_BEFORE_WRITE: u32 = 8;
/// Of a budget of money, the time for which what is not spent gathers.
pub const BUDGET_SAVED: Duration = Duration::from_secs(3600);
/// Bytes of the directory that keep what was read, unless the configuration says otherwise.
pub const CACHE_BYTES_DEFAULT: u64 = 1024 * 1024 * 1024;
/// Least bytes that a cache may be configured with.
pub const CACHE_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// Segments that a cache has at least, as long as they are not below [`CACHE_SEGMENT_BYTES_MIN`].
pub const CACHE_SEGMENTS: u64 = 32;
/// Bytes of a cache's segment: what is given up at a time.
pub const CACHE_SEGMENT_BYTES_MIN: u64 = 1024 * 1024;
/// Bytes of a cache's segment at most: about as much is in memory while one is given up.
pub const CACHE_SEGMENT_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Of so many segments one is for what was read once.
pub const CACHE_TRIAL_SHARE: u64 = 10;
/// Bytes of a segment for each piece that it may have. That bounds the memory that says where
/// pieces are, about 40 MiB for a GiB of cache.
pub const CACHE_PIECE_BYTES: u64 = 2048;
/// Pieces given up that are remembered, to be kept if they are read again.
pub const CACHE_REMEMBERED: usize = 128 * 1024;
/// Bytes of a read up to which it is shared with others, and cached. Larger ones stream.
pub const SHARED_READ_BYTES_MAX: u64 = 1024 * 1024;
/// Bytes of all shared reads under way at once; more wait.
pub const SHARED_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Bytes that are read ahead at most, unless the configuration says otherwise.
pub const AHEAD_BYTES_DEFAULT: u64 = 2 * 1024 * 1024;
/// Most bytes that may be configured to be read ahead.
pub const AHEAD_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Bytes that are read ahead at first; they double from read to read.
pub const AHEAD_BYTES_START: u64 = 128 * 1024;
/// Most times that they double.
pub const AHEAD_DOUBLED_MAX: u32 = 7;
/// Sequences of keys being read that are remembered.
pub const SEQUENCES_MAX: usize = 32;
/// A key goes on with a sequence if it is among so many that follow.
pub const SEQUENCE_STEP_MAX: usize = 8;
/// Keys that are looked at to read ahead.
pub const AHEAD_KEYS_MAX: usize = 2048;
/// Times that a program's read looks again at an object that was replaced meanwhile.
pub const CHANGED_RETRIES_MAX: u32 = 8;
/// Time from one status that a worker writes to the next, if anything is new.
pub const STATUS_PERIOD: Duration = Duration::from_secs(1);
/// The same if nothing is new.
pub const STATUS_WRITTEN_AT_LEAST: Duration = Duration::from_secs(10);
/// Bytes that list or claim objects have at most; more is not a claim of ours.
pub const CLAIM_BYTES_MAX: u64 = 4096;
/// Bytes of a process's number or record at most.
pub const RECORD_BYTES_MAX: u64 = 64;
/// Records of processes that are read at once.
pub const RECORDS_AT_ONCE: usize = 16;
/// Numbers and records of a worker's processes that stay in the backend: the last ones.
pub const PROCESSES_KEPT: u64 = 512;
/// The same of workers that another has taken over from: their last number is not given again.
pub const PROCESSES_OF_EARLIER_KEPT: u64 = 1;
/// A number is removed only if the backend got it so long before its latest one: longer than a request for it can be
/// under way.
pub const PROCESS_AGE_MIN: Duration = Duration::from_secs(3600);
/// Old processes of which a start removes number and record; fewer are left to work in the background.
pub const PROCESSES_FORGOTTEN_AT_ONCE: usize = 16;
/// A process looks for its own number again after so long, when it finds that there is no next one and nothing counts by
/// that yet.
pub const OWN_NUMBER_SEEN_MAX: Duration = Duration::from_secs(3 * 60);
/// Time that a request, or the timer, waits for an answer to who owns the backend.
pub const OWNER_CHECK_MAX: Duration = Duration::from_secs(100);
/// Bytes of a takeover fence at most: some for each worker that ever was.
pub const TAKEOVER_FENCE_BYTES_MAX: u64 = 1024 * 1024;
/// Percent of a blob's bodies that are live below which it is repacked. All blobs together then take at most 100 / 80 =
/// 1.25 times what is live, and a byte that is freed costs at most four that are copied.
pub const REPACK_BELOW_PERCENT_DEFAULT: u8 = 80;
/// Time for which a retired blob, or an object that no version has, stays. An older index may name
/// it, that was restored or is still being read.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(24 * 3600);
/// Bytes per second that work in the background reads from the backend.
pub const BACKGROUND_BYTES_PER_S_DEFAULT: u64 = 32 * 1024 * 1024;
/// Requests per second that each kind of work in the background makes.
pub const BACKGROUND_REQUESTS_PER_S: u64 = 50;
/// Time from one look for work in the background to the next.
pub const HOUSEKEEPING_PERIOD_DEFAULT: Duration = Duration::from_secs(1);
/// Time from one look through the backend for what nothing needs to the next.
pub const STRAYS_PERIOD: Duration = Duration::from_secs(3600);
/// A blob is small if it has less than one in so many of the bytes of a full one.
pub const SMALL_BLOB_SHARE: u64 = 16;
/// Small blobs of about one size at which they are made one.
pub const SMALL_BLOBS_MAX: usize = 32;
/// Changes that are re-logged at once.
pub const RELOCATED_MAX: usize = 256;
/// Bytes of bodies that are read at once to be moved; a single one may be larger.
pub const MOVED_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Times that a blob is gone through for bodies that somebody has in it.
pub const DRAIN_PASSES_MAX: usize = 3;
/// Pause while clients want more than there is room for.
pub const RELOCATE_PAUSE: Duration = Duration::from_millis(100);
/// Pauses after which repacking is put off.
pub const RELOCATE_TRIES_MAX: u32 = 600;
/// Removals between two looks whether this worker still owns the backend.
pub const REMOVED_UNREQUESTED_MAX: u64 = 32;
/// Time from one question whether this worker still owns the backend to the next, if nothing else asks.
pub const OWNER_PERIOD: Duration = Duration::from_secs(10);
/// Age of the last answer, or failed question, up to which a request is admitted without asking.
pub const OWNER_UNSEEN_MAX: Duration = Duration::from_secs(3 * 60);
/// Time for which nobody has written to what is left of an upload before it is removed.
pub const LEFTOVER_AGE: Duration = Duration::from_secs(3600);
/// Things remembered that nothing needs; more wait until some of these are removed.
pub const UNWANTED_MAX: usize = 100_000;
/// Time from one backup of the index to the next, if anything was uploaded.
pub const BACKUP_INTERVAL_DEFAULT: Duration = Duration::from_secs(3600);
/// Backups that are kept: one more than is needed, in case it is damaged.
pub const BACKUPS_KEPT: usize = 2;
/// Bytes of rows at which a segment of a backup is full.
pub const SEGMENT_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of a backup's head at most: some for each segment.
pub const BACKUP_HEAD_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Bytes of rows that are restored at once.
pub const BACKUP_BATCH_BYTES: usize = 1024 * 1024;

/// Workers that share a bucket at most: each keeps an index of every other.
pub const WORKERS_MAX: usize = 64;
/// Bytes of an announcement at most.
pub const ANNOUNCEMENT_BYTES_MAX: u64 = 4096;
/// Bytes of memory that the index of another worker takes for what was read of it.
pub const PEER_INDEX_CACHE_BYTES: u64 = 16 * 1024 * 1024;
/// Time from one look of a worker in the bucket for what the others changed to the next.
pub const POLL_PERIOD_DEFAULT: Duration = Duration::from_secs(10);
/// Time for which a worker keeps what another replaced or deleted, counted from when that was seen
/// in the bucket.
pub const SUPERSEDED_KEPT_DEFAULT: Duration = Duration::from_secs(30 * 60);
/// Age of the last look at the bucket, from its beginning, up to which requests are answered.
pub const UNSEEN_MAX_DEFAULT: Duration = Duration::from_secs(10 * 60);
/// Time from one status of the others that a worker writes to the next.
pub const WORKERS_STATUS_PERIOD: Duration = Duration::from_secs(3);
/// Time by which another worker's clock may be ahead before the log says so.
pub const CLOCK_AHEAD_LOG_PAUSE: Duration = Duration::from_secs(60);
/// Moments of the past of which a worker knows what another had in the bucket.
pub const MARKS_MAX: usize = 64;
/// Looks in a row that miss the same blob before the index of its worker is made anew: a list may be late.
pub const GAP_CHECKS_MAX: u32 = 3;
/// Uploads that a rebuild remembers at once, to find parts that belong to none: some 40 MiB.
pub const UPLOADS_AT_ONCE: usize = 1_000_000;
/// Parts of lost uploads that are removed in one batch.
pub const ORPHANS_AT_ONCE: usize = 10_000;
/// Time between two such looks of a worker that starts.
pub const RECHECK_PAUSE: Duration = Duration::from_millis(500);
/// Deletes remembered as not needed any more, to be forgotten a round later; more wait.
pub const TOMBSTONES_REMEMBERED: usize = 100_000;
/// Rows that a round looks at before others have their turn.
pub const ROUND_ROWS: usize = 256;
/// Rows of each worker that a list takes at a time.
pub const LIST_ROWS: usize = 1024;
/// Calls of other workers for bodies under way at once; one more is told that this worker is busy.
pub const FEED_CALLS_MAX: usize = 256;
/// Calls for bodies that one worker may have under way.
pub const FEED_CALLS_OF_ONE_MAX: usize = FEED_CALLS_MAX / 4;
/// Calls for changes of one worker under way. One waits for changes; the other may be one whose caller has gone.
pub const CHANGE_CALLS_OF_ONE_MAX: usize = 2;
/// Bodies that are asked for of another worker at once; more wait.
pub const BODIES_REQUESTED_MAX: usize = FEED_CALLS_OF_ONE_MAX - 4;
/// Connections to another worker for bodies, beside the one for changes.
pub const BODY_LANES: usize = 3;
/// Pause after another worker said that it is busy.
pub const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Bytes of bodies for other workers in memory, until they have left; more wait.
pub const FEED_BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of bodies for one worker in memory, until they have left; more wait.
pub const FEED_BODY_BYTES_OF_ONE_MAX: usize = FEED_BODY_BYTES_MAX / 4;
/// Bytes of changes for other workers in memory, until they have left; more wait. One worker has those of one answer.
pub const FEED_CHANGES_BYTES_MAX: usize = 8 * FEED_BYTES_MAX;
/// Bytes of changes that one answer has.
pub const FEED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of changes heard of another worker after which its index is made durable.
pub const RECEIVED_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Time that a call for changes waits if there are none.
pub const FEED_WAIT_MAX: Duration = Duration::from_secs(10);
/// Pause after another worker did not answer.
pub const FEED_PAUSE: Duration = Duration::from_secs(1);
/// Requests of uploads that others have handed on, under way at once; one more is refused.
pub const HANDED_ON_MAX: usize = 128;
/// Requests that one worker may have handed on at once.
pub const HANDED_ON_OF_ONE_MAX: usize = HANDED_ON_MAX / 2;
/// Requests that are handed on to another worker at once; more wait. Its places are free a little later than those here.
pub const HANDED_ON_TO_ONE_MAX: usize = HANDED_ON_OF_ONE_MAX - 16;
/// Time for which a request that was handed on may go without a byte of its body taken, or an
/// answer.
pub const HANDED_ON_SILENCE_MAX: Duration = Duration::from_secs(5 * 60);
/// Time that the answer to a completion waits until this worker has heard of what was completed
/// elsewhere.
pub const RECEIVED_WAIT_MAX: Duration = Duration::from_secs(10);
/// Time that a call may take, beside what it waits.
pub const CALL_TIME_MAX: Duration = Duration::from_secs(10);
/// Time that the head of a request that was handed on may take.
pub const CALL_HEADERS_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(FEED_BYTES_MAX > 2 * OP_BYTES_MAX, "an answer has an entry at least");
const _: () = assert!(
    FEED_BYTES_MAX <= larder_net::limits::PAYLOAD_BYTES_MAX
        && PACKED_BYTES_MAX as usize <= larder_net::limits::PAYLOAD_BYTES_MAX,
    "the largest answer fits a frame"
);
const _: () = assert!(
    FEED_CALLS_OF_ONE_MAX <= larder_net::limits::REQUESTS_MAX,
    "a connection has room for all calls of a worker"
);
const _: () = assert!(
    2 * UNSEEN_MAX_DEFAULT.as_secs() <= SUPERSEDED_KEPT_DEFAULT.as_secs(),
    "a worker that answers has seen what replaced a version before that goes"
);
const _: () = assert!(
    SUPERSEDED_KEPT_DEFAULT.as_secs() <= GRACE_DEFAULT.as_secs(),
    "and finds the bytes where it knows them"
);
const _: () = assert!(RELOCATED_MAX < QUEUE_MAX, "work in the background leaves room for clients");
const _: () = assert!(
    MOVED_BYTES_MAX >= PACKED_BYTES_MAX,
    "bodies that are moved take no more memory than one of the largest"
);
const _: () =
    assert!(BACKUP_BATCH_BYTES < larder_kv::limits::BATCH_BYTES_MAX / 2, "it fits a batch");
const _: () = assert!(PACKED_BYTES_MAX <= GROUP_BYTES_MAX, "a group has room for every body");
const _: () = assert!(FOOTERS_BYTES_MAX >= 2 * FOOTER_BYTES_MAX, "a blob fills while one goes up");
const _: () = assert!(FOOTER_BYTES_MAX > OP_BYTES_MAX, "a footer has room for every change");
const _: () = assert!(PART_BYTES >= 5 * 1024 * 1024, "S3 refuses smaller parts");
const _: () = assert!(PUT_BYTES_MAX / PART_BYTES as u64 <= 10_000, "S3 refuses more parts");
const _: () = assert!(BLOB_BYTES_MAX / PART_BYTES as u64 <= 10_000, "S3 refuses more parts");
const _: () = assert!(
    BLOB_BYTES_MAX + PACKED_BYTES_MAX + FOOTERS_BYTES_MAX as u64 <= S3_PUT_BYTES_MAX
        && S3_PUT_BYTES_MAX < AZURE_PUT_BYTES_MAX
        && AZURE_PUT_BYTES_MAX < GOOGLE_PUT_BYTES_MAX,
    "every blob fits one request"
);
const _: () = assert!(
    STREAM_PIECES_AHEAD as u64 * SPOOL_READ_BYTES <= PART_BYTES as u64,
    "one request takes no more memory than a part"
);
const _: () = assert!(PACKING_THREADS_MIN <= PACKING_THREADS_MAX, "each has a lot");
const _: () = assert!(SPOOL_BEHIND_PERCENT < 100, "before puts are refused");
const _: () = assert!(CACHE_BYTES_MIN >= 2 * CACHE_SEGMENT_BYTES_MIN, "one to try, one to keep");
const _: () =
    assert!(CACHE_SEGMENT_BYTES_MIN >= 2 * SUM_BYTES as u64, "a segment has room for pieces");
const _: () = assert!(AHEAD_BYTES_START << AHEAD_DOUBLED_MAX == AHEAD_BYTES_MAX, "up to the most");
const _: () = assert!(SHARED_READ_BYTES_MAX + AHEAD_BYTES_MAX <= SHARED_BYTES_MAX, "one fits");
const _: () = assert!(
    UPLINK_BUFFER_BYTES_MAX / UPLINK_BYTES_PER_S_MIN < 6 * 60,
    "a dead connection is noticed in minutes"
);
const _: () = assert!(PROCESSES_KEPT >= 2, "a process finds its own number and the next");
const _: () = assert!(
    PROCESS_AGE_MIN.as_secs() >= 4 * OWN_NUMBER_SEEN_MAX.as_secs(),
    "the next number does not come and go while a process goes by its own"
);
const _: () = assert!(
    2 * PROCESSES_FORGOTTEN_AT_ONCE as u64 <= REMOVED_UNREQUESTED_MAX,
    "the owner is asked for before them"
);
const _: () = assert!(
    OWNER_UNSEEN_MAX.as_secs() > OWNER_PERIOD.as_secs() + OWNER_CHECK_MAX.as_secs(),
    "a question that is not answered is over before requests wait for it"
);
const _: () = assert!(
    OWNER_UNSEEN_MAX.as_secs()
        > OWNER_PERIOD.as_secs() + GATE_WAIT_MAX.as_secs() + BACKEND_RETRY_MAX.as_secs(),
    "who owns the backend is answered, or asked in vain, before requests wait for it"
);
const _: () = assert!(BACKEND_REQUESTS_START <= BACKEND_REQUESTS_MAX, "it begins below its end");
const _: () = assert!(BACKEND_REQUESTS_MIN <= BACKEND_REQUESTS_START, "and above its floor");
const _: () = assert!(
    BACKEND_REQUESTS_MIN * 3 / 4 >= 2 && BACKEND_REQUESTS_MIN * 3 / 4 < BACKEND_REQUESTS_MIN,
    "a blob that goes up for hours leaves places to another write and to a read"
);
const _: () = assert!(
    GATE_UPLOAD_WAIT_MAX.as_secs() + BACKEND_RETRY_MAX.as_secs() < 10 * 60,
    "a signature, good for a quarter of an hour, outlives the wait of its request"
);
const _: () = assert!(
    // Ten bytes a sum, beside a key and the largest attributes.
    (PUT_BYTES_MAX / OWN_SUM_BYTES as u64) as usize * 10 + 64 * 1024 <= OP_BYTES_MAX,
    "the sums of the largest put fit one record"
);
const _: () = assert!(OWN_SUM_BYTES >= SUM_BYTES, "large objects have fewer sums");
const _: () = assert!(PART_BYTES.is_multiple_of(OWN_SUM_BYTES as usize), "parts end with a sum");
