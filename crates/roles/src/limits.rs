//! The roles' limits, with their units.

use std::time::Duration;

use larder_protocol::limits::{
    ABANDONED_TICKS, COALESCE_PIECES_MAX, DOUBT_TICKS_MAX, GRANT_MS_MAX, GROUP_REPEATS_MAX,
    HEDGE_AFTER_US_MAX, HEDGES_SAVED_MAX, IDLE_TICKS, LV_REOPEN_MS, MARK_KEPT_MS,
    PEER_FRAME_BYTES_MAX, REFILLS_MAX, REPEAT_BYTES_MAX, SERVER_BEAT_MS, SESSION_KEPT_MS,
    SESSION_TICKS_MAX, SILENT_MS, UNRESPONSIVE_TICKS_MAX,
};
use larder_types::limits::CHUNK_BYTES_MAX;

mod beats;
mod copies;
mod counts;
mod maps;
mod observed;
mod regions;
mod versions;

pub use beats::*;
pub use copies::*;
pub use counts::*;
pub use maps::*;
pub use observed::*;
pub use regions::*;
pub use versions::*;

/// LVs that a device must have room for, by PG: one PG must not be full while the others are empty.
pub const LVS_PER_PG_MIN: u64 = 2;
/// Milliseconds from a map that the disk did not take until it is tried again.
pub const MAP_KEEP_PAUSE_MS: u64 = 1_000;
/// Ids that managers who are made anew skip: those before them may have given some that no server has kept yet.
pub const IDS_SKIPPED: u32 = 1 << 16;
/// Versions of the map that they skip: a server or a client that has heard of some must not take theirs for the same.
pub const VERSIONS_SKIPPED: u64 = 1 << 32;
/// Milliseconds for which a start with a damaged index waits until its groups go on without the server, and between two looks.
pub const LEAVE_WAIT_MS: u64 = 30_000;
/// See [`LEAVE_WAIT_MS`].
pub const LEAVE_LOOK_MS: u64 = 100;
/// Milliseconds after which it asks groups that have not let it go to count on it no longer, and between two such requests.
pub const LEAVE_ASK_AFTER_MS: u64 = 10_000;
/// See [`LEAVE_ASK_AFTER_MS`].
pub const LEAVE_ASK_MS: u64 = 1_000;
const _: () =
    assert!(10 * SILENT_MS <= LEAVE_WAIT_MS, "its groups begin views without it meanwhile");
/// Milliseconds during which managers send only older maps, before the server logs it.
pub const OLDER_MAP_LOG_MS: u64 = 5_000;
/// Time for which such an order is held. Disks that take longer to keep a map make each order be given again.
pub const DEFERRED_ORDER_MAX: Duration = Duration::from_secs(10);
/// Orders of managers that a server defers until it has the map that they refer to. Those beyond the limit are repeated
/// by the managers.
pub const DEFERRED_ORDERS_MAX: usize = 4_096;
/// Most volumes whose space, and most buckets whose objects, a meta server reports in one response.
pub const VOLUMES_REPORTED_MAX: usize = 100_000;
/// See [`VOLUMES_REPORTED_MAX`].
pub const BUCKETS_REPORTED_MAX: usize = 100_000;
/// Most of them in one that is sent, and in one that is taken, with its bytes: a word of a group has some dozen.
pub const BATCH_SENT_MAX: usize = 512;
/// See [`BATCH_SENT_MAX`].
pub const BATCH_MESSAGES_MAX: usize = 4096;
/// See [`BATCH_SENT_MAX`].
pub const BATCH_BYTES_MAX: usize = 256 * 1024;
/// Time after which they leave, though more are to come.
pub const BATCH_AGE_MAX: Duration = Duration::from_millis(2);
const _: () = assert!(
    BATCH_SENT_MAX <= BATCH_MESSAGES_MAX && 256 * BATCH_SENT_MAX <= BATCH_BYTES_MAX,
    "what is sent is taken"
);
/// Groups led by a meta server that remove a step of their garbage at one tick, one after the other: 10,240 rows a second.
pub const REAPS_PER_TICK_MAX: u32 = 4;
/// Milliseconds after which a manager that keeps volumes from moving for balance is told of.
pub const BALANCE_HELD_UP_MS: u64 = 60 * 1000;
/// Milliseconds after which a server that keeps the cluster's version low is told of: longer than a machine takes to come back.
pub const VERSION_HELD_BACK_MS: u64 = 5 * 60 * 1000;
/// Bytes that may wait in the log's buffer before calls are turned away; less with small segments, of
/// which one is always ready ahead.
pub const LOG_BUFFER_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Part of a segment that may wait before calls are turned away.
pub const LOG_BUFFER_SEGMENT_PART: u64 = 4;
/// Milliseconds for which a group's ops are turned away while the log is behind, before one is taken.
pub const STARVED_MS: u64 = 500;
/// Beats after which a meta server looks again for sessions that ended long ago and that a group remembers.
pub const SESSION_CHECKS: u32 = 10;
/// Milliseconds between two looks at what is due: lazy outcomes, floors, puts in doubt, free space.
pub const TICK_MS: u64 = 100;
/// Milliseconds between two steps in which a data server gives space back that nobody has: within them 640 MiB in a second.
pub const FREE_PAUSE_MS: u64 = 100;
/// Physical volumes that are looked at for it in a row, if nothing is to go back of them.
pub const FREES_MAX: usize = 256;
/// Threads that write objects of a fill.
pub const FILL_THREADS_MAX: usize = 8;
/// Objects that each of them writes at a time, or as many as have [`FILL_BATCH_BYTES`] of data.
pub const FILL_BATCH_OBJECTS: u64 = 1024;
/// Bytes of data that each of them has under way.
pub const FILL_BATCH_BYTES: u64 = 8 * 1024 * 1024;
/// Bytes that the index may not have flushed while a fill goes on.
pub const FILL_UNFLUSHED_BYTES_MAX: u64 = 3 * larder_kv::limits::FLUSH_BYTES;
/// Times that a fill looks for a place for an object: once, for a volume that is drawn, and while it opens.
pub const FILL_PLACE_TRIES: u32 = 4;
/// Rows of one stretch of a walk for what the index names. It bounds for how long a snapshot of the index
/// is kept. So the memory that the index cannot give back meanwhile is bounded by what is written in a
/// fraction of a second. In a simulation, which has some hundred rows, a walk has several too.
pub const STRETCH_ROWS_MAX: usize = if cfg!(test) { 32 } else { 32_768 };
/// Log bytes that may pile up before the index is flushed and the log behind it freed. Bounds the time
/// of a restart.
pub const LOG_BYTES_BEFORE_FLUSH: u64 = 128 * 1024 * 1024;
/// Bytes of data writes that may wait for one disk.
pub const DISK_QUEUE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Commands that may wait for one disk.
pub const DISK_QUEUE_COMMANDS_MAX: usize = 65_536;
/// Bytes of data written by one disk group before it is synced.
pub const DISK_GROUP_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of one piece of a large read.
pub const READ_PIECE_BYTES: u64 = larder_volume::limits::READ_BUFFER_BYTES as u64;
/// Most bytes of an object that are read at its cached location while METAX is requested: reading more takes longer
/// than METAX.
pub const LOCATED_BYTES_MAX: u32 = 256 * 1024;
/// Objects of which a proxy of a cluster remembers where they lie.
pub const LOCATIONS_MAX: usize = 65_536;
/// Pieces of a large read that are asked for at once before its client was found to wait for one.
pub const READ_WINDOW_PIECES_FIRST: usize = 2;
/// The same of a client that takes them as fast as they come: 4 MiB in a round trip, which takes a millisecond in a cluster.
/// More would only wait at the disks, before what others ask of them.
pub const READ_WINDOW_PIECES_MAX: usize = 8;
/// Pieces in a row for which a client does not wait, until fewer are asked for at once.
pub const READ_WINDOW_CALM_PIECES: usize = 16;
/// Pieces that all reads of a proxy together hold ahead of their clients: 32 MiB. With none left reads go on piece by piece.
pub const READ_AHEAD_PIECES_MAX: usize = 64;
/// Pieces of an object that was appended to that are looked up at once: with inline ones, at most 64 KiB of rows.
pub const READ_PIECES_AHEAD: usize = 32;
/// Times that a read looks up pieces at one byte again because they were coalesced, before it gives up. Each time they
/// are part of a larger piece, and a few make the largest.
pub const COALESCES_FOLLOWED_MAX: u32 = 8;
/// An object's pieces are looked at after so many appends to it.
pub const COALESCE_EVERY: u32 = COALESCE_PIECES_MAX as u32;
/// Objects whose pieces a proxy is to look at. One that finds no place is looked at after its next appends.
pub const COALESCE_QUEUE_MAX: usize = 1024;
/// Windows of one object that a proxy coalesces before it goes on with others.
pub const COALESCE_TURN_WINDOWS: usize = 16;
/// Milliseconds after which an object is looked at again of which pieces were to stay, the first time; then twice as many each
/// time.
pub const COALESCE_AGAIN_MS: u64 = 1000;
/// Times that it is looked at again, within some four minutes. Later appends have it looked at as well.
pub const COALESCE_AGAIN_MAX: u32 = 8;
/// Objects of which a proxy remembers from where on to look.
pub const COALESCE_KEYS_MAX: usize = 4096;
/// Chunks of one large put that may be on their way to disk while the next is read.
pub const PUT_WINDOW_CHUNKS: usize = 2;
/// Places at which a put's data is tried while disks have no room where it should lie.
pub const DISK_FULL_TRIES_MAX: u32 = 8;
/// Milliseconds that a list waits for puts under way before it answers 503.
pub const LIST_WAIT_MS_MAX: u64 = 10_000;
/// Milliseconds that a list of a cluster may take before it answers 503, with all that its page waits for
/// one after the other. Longer than one wait for puts or for another primary.
pub const SCAN_MS_MAX: u64 = 30_000;
/// Uploads that a bucket's deletion has in memory at once.
pub const UPLOADS_PER_PAGE: usize = 1000;
/// Bytes of cache of the index's blocks.
pub const KV_CACHE_BYTES: u64 = 96 * 1024 * 1024;
/// An index of up to this part of the cache is taken to lie in it: blocks that were merged away take room in it for
/// a while.
pub const KV_CACHE_FILLED_PART: u64 = 2;
/// Free bytes of the file system that new data leaves for the log and the index, so that deletes go on.
pub const RESERVE_BYTES: u64 = 512 * 1024 * 1024;
/// The same on small disks: one part in this many.
pub const RESERVE_PART: u64 = 16;
/// Little room is left on a disk with less free above the reserve than one part in so many.
pub const LITTLE_ROOM_PART: u64 = 64;
/// Free bytes above the reserve with which another LV is begun: with less, a chunk of the largest size would find
/// none left, and be sent in vain.
pub const LV_FREE_BYTES_MIN: u64 = 2 * CHUNK_BYTES_MAX as u64;
/// Below one part in this many of the reserve nothing new is taken at all.
pub const RESERVE_LAST_PART: u64 = 4;
/// The time that a proxy waits for the last copies of a put whose client was answered before it says who
/// has it. Until then readers of the object wait, and what is not there then is copied later.
pub const STRAGGLER_MAX: Duration = Duration::from_millis(100);
/// KiB of data that such puts hold in a proxy together.
pub const STRAGGLERS_KIB_MAX: usize = 64 * 1024;
/// Within so many bytes of the reserve the free space is looked at before each group: no tick is so
/// long that a disk takes more between two.
pub const NEARLY_FULL_BYTES: u64 = 4 * 1024 * 1024 * 1024;
/// Rows of one answer to a scan.
pub const ROWS_MAX: u32 = 2048;
/// Bytes of rows and values in it, but for the last row's.
pub const ROWS_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Milliseconds for which a server that starts waits for managers.
pub const START_TIMEOUT_MS: u64 = 30_000;
/// Milliseconds that a manager may take to give the authority's key.
pub const AUTHORITY_WAIT_MS: u64 = 2_000;
/// Milliseconds for which a manager that did not answer is passed over while others do.
pub const MANAGER_AVOIDED_MS: u64 = 30_000;
/// Milliseconds of the first pause after no manager answered; doubled with each further.
pub const MANAGERS_PAUSE_MS_MIN: u64 = 50;
/// The longest such pause, and that between two rounds of asking who leads.
pub const MANAGERS_PAUSE_MS_MAX: u64 = 1_000;
/// Managers to which each message of a server goes: one may be dead without its connections knowing.
pub const MANAGERS_PER_MESSAGE: usize = 2;
/// Milliseconds for which a leading manager is looked for and waited for.
pub const PROPOSE_WAIT_MS: u64 = 10_000;
/// Milliseconds that a manager may take to make a join token. It waits for the token, where there are too
/// many for some to go and for the token again, for its server, and for the map.
pub const ISSUE_MS_MAX: u64 = 5 * PROPOSE_WAIT_MS;
/// By how many milliseconds the clock of a manager may be ahead that has expired tokens removed: by the first after which
/// some go.
pub const CLOCK_AHEAD_MS: [u64; 3] = [24 * 3600 * 1000, 3600 * 1000, 0];
/// Milliseconds for which a server that joins waits for a manager that lets it.
pub const JOIN_WAIT_MS: u64 = 60_000;
/// Milliseconds between two rounds of asking them.
pub const JOIN_PAUSE_MS: u64 = 500;
/// The longest pause, in milliseconds, of a manager that asks the others for the authority's key.
pub const AUTHORITY_PAUSE_MS_MAX: u64 = 10_000;
/// The longest time between two looks whether a certificate is due.
pub const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// The shortest pause after a certificate could not be renewed.
pub const RENEWAL_PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest such pause.
pub const RENEWAL_PAUSE_MAX: Duration = Duration::from_secs(600);
/// Pause between two rounds of asking the machines that a new one was told of.
pub const DISCOVERY_PAUSE: Duration = Duration::from_millis(500);
/// For how long a machine that asked counts as there: several rounds, with connections that are not answered.
pub const DISCOVERY_FRESH: Duration = Duration::from_secs(20);
/// The interval at which a machine that waits for others says so.
pub const DISCOVERY_LOG_PAUSE: Duration = Duration::from_secs(10);
/// For how long the managers agree on the places of a machine that joins; it asks again.
pub const ADMIT_MAX: Duration = Duration::from_secs(4);
/// Machines that a list of peers names: a discovery request must fit what is said before anybody is known. Others name some of them.
pub const PEERS_MAX: usize = 32;
/// Bytes of a machine's name, `host:port`.
pub const PEER_NAME_BYTES_MAX: usize = 80;
/// Messages and proposals that wait for a manager's thread.
pub const MANAGER_INBOX_MAX: usize = 4_096;
/// Of those, how many at most share a write.
pub const MANAGER_BATCH_MAX: usize = 256;
/// Milliseconds between two looks of a manager at what is due.
pub const MANAGER_TICK_MS: u64 = 50;
/// Bytes of records after which the file of a manager's log is written anew, if no snapshot came before.
pub const QUORUM_FILE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Rows that one response to a scan examines, with those of other PGs. A response that reached the limit names the key
/// to continue from, even if it returns no row.
pub const ROWS_VISITED_MAX: usize = 64 * 1024;
/// The time for which a call of another process may be under way in a PG; its caller has given up before.
pub const CALL_MAX: Duration = Duration::from_secs(90);
/// The time that a meta server waits for a newer map that a scan or an order refers to.
pub const MAP_LAG_MAX: Duration = Duration::from_secs(2);
/// The time that a data server may take to answer a primary: it syncs, and drains what waits before it.
pub const DATA_ANSWER_MAX: Duration = Duration::from_secs(30);
/// The time for which a primary tries to reach a data server before it counts as failed. Longer than the
/// managers need to find it down, and than connections take to come back after a restart.
pub const DATA_REACH_MAX: Duration = Duration::from_secs(4);
/// Pause between two tries.
pub const DATA_PAUSE: Duration = Duration::from_millis(100);
/// Groups whose rows one walk over the index reads, each for a follower: with three pieces each in memory.
pub const WALK_LANES_MAX: usize = 128;
/// Bytes of rows in a piece of such a walk, but for the last row's.
pub const WALK_PIECE_BYTES: usize = 128 * 1024;
/// The time that such a walk waits for a follower that takes nothing: one that is there asks ten times a
/// second.
pub const LANE_STALL_MAX: Duration = Duration::from_secs(2);
/// Bytes of ops in one message to a member, or one op.
pub const PEER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Times that a read follows a chunk that moved while a piece of it was read, before it says that the data
/// cannot be read now. Between two moves of one chunk lies a walk over the index.
pub const MOVES_FOLLOWED_MAX: u32 = 4;
/// Rows that a walk looks at in one go.
pub const REBUILD_ROWS_MAX: u32 = 8192;
/// Copies that one go asks for.
pub const REBUILD_PIECE_COPIES_MAX: usize = REFILLS_MAX;
/// Time between two looks whether it is time to verify copies.
pub const SCRUB_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time for which a scrub waits to lead groups that it had begun with: longer than views take to begin
/// after a restart.
pub const SCRUB_LED_TIMEOUT: Duration = Duration::from_secs(60);
/// Rows that a scrub looks at in one go.
pub const SCRUB_ROWS_MAX: u32 = 8192;
/// Bytes of copies that one go asks for, but for the last chunk's: what a restart has verified twice.
pub const SCRUB_PIECE_BYTES: u64 = 64 * 1024 * 1024;
/// Copies that one go asks for, but for the last chunk's: small ones are many.
pub const SCRUB_PIECE_COPIES_MAX: usize = 512;
/// Least time between two writes of where the scrub is.
pub const SCRUB_SAVE: Duration = Duration::from_secs(10);
/// Damaged copies of a round that are logged one by one; the others are counted.
pub const SCRUB_LOGGED_MAX: u64 = 100;
/// Time between two looks whether it is time to compare the members of a group.
pub const DIGEST_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of the index that are read in one go to sum the rows of a group.
pub const DIGEST_PIECE_BYTES: usize = 1024 * 1024;
/// Groups whose rows a server sums at a time: each has a snapshot of the index, which keeps what is replaced on disk.
pub const DIGESTS_MAX: usize = 4;
/// Groups told one by one whose members differ.
pub const DIFFERING_REPORTED_MAX: usize = 16;
/// Time between two looks at how many requests of clients are under way while there is background work.
pub const LOAD_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The time that a data server may take to say so; one that takes longer has too much to do.
pub const LOAD_TIMEOUT: Duration = Duration::from_millis(200);
/// Seconds over which the rate of background work is told.
pub const RATE_SECONDS: f64 = 10.0;
/// Volumes whose floors a meta server tells one by one: those that are furthest behind.
pub const FLOORS_REPORTED_MAX: usize = 64;

/// Milliseconds for which a proxy of a cluster goes on asking for one thing before it answers 503. A few
/// times what it takes to find a primary down, let its lease run out and begin another view.
pub const PROXY_TIMEOUT_MS: u64 = 30_000;
/// Rows of uploads that one scan for abandoned ones examines.
pub const EXPIRY_ROWS_MAX: usize = 1000;
/// Milliseconds that both clocks may differ by between two searches for abandoned uploads; an eighth of `upload_life` if less.
pub const EXPIRY_CLOCK_OFF_MS_MAX: u64 = 60_000;
/// Milliseconds after which the wall's clock is believed there without a newer upload; `upload_life` if less.
pub const EXPIRY_BELIEVED_MS_MAX: u64 = 86_400_000;
/// The longest pause between two searches for abandoned uploads, in milliseconds; else it is a quarter of `upload_life`.
pub const EXPIRY_PAUSE_MS_MAX: u64 = 3_600_000;
/// Milliseconds without a confirmed latest map after which the managers count as leaderless. More than an election
/// takes, and finding another manager to ask.
pub const MANAGERS_SILENT_MS: u64 = 5_000;
/// Milliseconds after which a placement group without an active view is not waited for: more than a failover takes.
pub const UNSERVED_MS: u64 = 10_000;
/// Milliseconds that a client's request may take while no manager leads, or such a group is not served.
pub const UNAVAILABLE_TIMEOUT_MS: u64 = 1_500;
/// Milliseconds after which a proxy that deletes a bucket aborts no more of its open uploads: the next deletion goes on.
pub const DELETION_MS_MAX: u64 = 30_000;
/// Milliseconds of its first pause before it asks again; doubled with each further. A newer map ends a pause.
pub const PAUSE_MS_MIN: u64 = 10;
/// Milliseconds of its longest pause.
pub const PAUSE_MS_MAX: u64 = 1_000;
/// Times that a server may have too much to do before the client is told to slow down.
pub const BUSY_TRIES_MAX: u32 = 6;
/// Times that a call is made anew because a primary has another record of its bucket than the proxy.
pub const STALE_TRIES_MAX: u32 = 6;
/// Milliseconds for which a server is silent on its own way before the leading manager tells it by way of
/// another too. Two beats of a meta server, whose lease outlasts that by one; the first may have been taken a look late.
pub const ROUTE_SILENT_MS: u64 = 2 * SERVER_BEAT_MS - 2 * MANAGER_TICK_MS;
/// Times that a put is begun because its data was not written on every replica. With their pauses they last
/// longer than it takes to find a data server down and to have other volumes.
pub const LOST_TRIES_MAX: u32 = 14;
/// Milliseconds that are left of a put's time to take it back, when its data is not waited for any more: a new primary
/// may have to be found.
pub const WITHDRAWAL_MS: u64 = 4_000;
/// Milliseconds without which a put is not begun once more.
pub const LAST_TRY_MS: u64 = WITHDRAWAL_MS + 2_000;
/// Attempts to withdraw a put at its primary before the form of an earlier release is used.
pub const WITHDRAWALS_MAX: u32 = 3;
/// Milliseconds for which a proxy waits for a replica's write.
pub const WRITE_TIMEOUT_MS: u64 = 10_000;
/// Milliseconds for which it waits for a replica's bytes before it asks another.
pub const READ_TIMEOUT_MS: u64 = 5_000;
/// Reads that wait for one of the same bytes: each holds a sender.
pub const JOINED_MAX: usize = 1024;
/// Reads of the same bytes that one waits for, one after the other, before it reads by itself.
pub const JOINS_MAX: u32 = 2;
/// The time for which a read goes on asking while no replica answers, or some do not and none has the bytes
/// right. Connections to servers that are back may pause.
pub const READ_SILENT_MAX: Duration = Duration::from_millis(1_500);
/// Times that all replicas are asked for bytes of which each has others, by newer maps.
pub const READ_MAPS_MAX: u32 = 3;
/// Pauses of such a read that a newer map ends. Those behind are waited out: a failover makes hundreds of maps.
pub const READ_PAUSES_CUT_MAX: u32 = 3;
/// The time that a reader whose every replica has other bytes waits for a newer map, by which others may
/// have them.
pub const MAP_LATE_MAX: Duration = Duration::from_millis(50);
/// The time that a proxy waits for the map of a bucket that a primary has a later record of: a deletion takes some
/// maps.
pub const BUCKET_UPDATE_MAX: Duration = Duration::from_secs(1);
/// The time between the beginnings of two questions of a proxy to the managers, for names of buckets that it does not know.
pub const BUCKET_QUESTION_PAUSE: Duration = Duration::from_millis(20);
/// The time that a client waits for the answer. A failover of the managers is over by then.
pub const BUCKET_QUESTION_MAX: Duration = Duration::from_secs(5);
/// Requests that a data server leaves without an answer, one after the other, before it is taken for down.
pub const DOWN_FAILURES: u32 = 3;
/// Milliseconds for which one that is down is not asked.
pub const DOWN_MS: u64 = 2_000;
/// Rows that each meta server is asked for beyond its share of a page, so that chance seldom makes it short.
pub const SHARE_SLACK_ROWS: usize = 16;
/// Milliseconds between two times that a proxy tells every meta server which of its requests are finished.
pub const SESSION_BEAT_MS: u64 = 500;
/// Open requests that a proxy lists in a beat to meta servers; it reports nothing about those after them.
pub const OPEN_REPORTED_MAX: usize = 16_384;
/// Puts in doubt that a meta server tells one by one: the oldest.
pub const DOUBTS_REPORTED_MAX: usize = 64;
/// Milliseconds after which a put that has no outcome is told as one in doubt: puts of proxies that died are resolved by
/// then.
pub const DOUBT_REPORT_MS: u64 = 5_000;
/// Puts and streams of gone callers that a proxy abandons at a time. Others are abandoned for their age, or with the
/// session.
pub const ORPHANS_MAX: usize = 1024;

const _: () = assert!(
    FILL_THREADS_MAX as u64 * FILL_BATCH_BYTES < DISK_QUEUE_BYTES_MAX as u64
        && FILL_THREADS_MAX as u64 * FILL_BATCH_OBJECTS < DISK_QUEUE_COMMANDS_MAX as u64,
    "no write of a fill is refused because too much waits"
);
const _: () = assert!(FILL_BATCH_BYTES >= CHUNK_BYTES_MAX as u64, "every object finds room");
const _: () = assert!(
    FILL_BATCH_OBJECTS as usize * (larder_types::limits::INLINE_BYTES_MAX as usize + 1024)
        < larder_kv::limits::BATCH_BYTES_MAX,
    "the rows of a batch fit one of the index"
);
const _: () = assert!(
    PEERS_MAX * (PEER_NAME_BYTES_MAX + 1) + 1024 <= larder_net::limits::HELLO_BYTES_MAX,
    "a discovery request fits what is said before a hello"
);
const _: () = assert!(
    ADMIT_MAX.as_millis() < larder_net::limits::CONNECT_TIME_MAX.as_millis(),
    "who asks is answered before the connection is given up"
);
const _: () = assert!(
    DISCOVERY_FRESH.as_millis()
        > DISCOVERY_PAUSE.as_millis() + 3 * larder_net::limits::CONNECT_TIME_MAX.as_millis(),
    "a machine that waits does not count as gone between two rounds"
);
const _: () = assert!(
    LOAD_TIMEOUT.as_millis() < LOAD_CHECK_INTERVAL.as_millis(),
    "who is asked has answered, or not, before the next look"
);
const _: () = assert!(PAUSE_MS_MIN < PAUSE_MS_MAX, "pauses grow");
const _: () = assert!(
    MAP_WAIT_MS + MAP_LATE_MS <= SILENT_MS && MAP_LATE_MS < MAP_ANSWER_MS,
    "who asks a manager that dies asks another before the view without its machine begins"
);
const _: () = assert!(
    PROXY_TIMEOUT_MS > 2 * larder_protocol::limits::SILENT_MS + larder_protocol::limits::LEASE_MS,
    "a primary that fails is replaced while its callers wait"
);
const _: () = assert!(
    MANAGERS_SILENT_MS > larder_protocol::limits::LEADER_SILENT_MS + MAP_WAIT_MS + MAP_LATE_MS
        && UNAVAILABLE_TIMEOUT_MS < MANAGERS_SILENT_MS
        && UNSERVED_MS > 2 * larder_protocol::limits::SILENT_MS + larder_protocol::limits::LEASE_MS,
    "nothing is given up that a failover mends"
);
const _: () = assert!(
    READ_TIMEOUT_MS <= WRITE_TIMEOUT_MS && WRITE_TIMEOUT_MS + LAST_TRY_MS < PROXY_TIMEOUT_MS,
    "one server is given up before the request is"
);
const _: () = assert!(
    READ_SILENT_MAX.as_millis() > larder_net::limits::BACKOFF_MAX.as_millis(),
    "a read outlasts the pause of a connection"
);
const _: () = assert!(
    HEDGE_AFTER_US_MAX < 1000 * READ_TIMEOUT_MS,
    "another replica is asked long before one is given up"
);
const _: () = assert!(HEDGES_SAVED_MAX > DOWN_FAILURES, "hedges find a server down");
const _: () = assert!(
    DATA_REACH_MAX.as_millis() < LV_REOPEN_MS as u128,
    "a replica is asked again to open after the last question is over"
);
const _: () = assert!(
    DATA_REACH_MAX.as_millis() > SILENT_MS as u128
        && DATA_REACH_MAX.as_millis() > larder_net::limits::BACKOFF_MAX.as_millis(),
    "a data server that came back is reached before it counts as failed"
);
const _: () = assert!(
    CALL_MAX.as_millis() > GRANT_MS_MAX as u128,
    "a reader of a put that nobody ends is answered"
);
const _: () = assert!(
    PEER_BYTES_MAX <= PEER_FRAME_BYTES_MAX
        && PEER_FRAME_BYTES_MAX <= larder_net::limits::PAYLOAD_BYTES_MAX
        && ROWS_BYTES_MAX < larder_net::limits::PAYLOAD_BYTES_MAX,
    "what is gathered fits a frame"
);
const _: () = assert!(
    4 * GROUP_REPEATS_MAX * REPEAT_BYTES_MAX <= 3 * larder_net::limits::PAYLOAD_BYTES_MAX,
    "what a group remembers of sessions leaves a quarter of a snapshot's header to open puts"
);
const _: () = assert!(TICK_MS < SERVER_BEAT_MS, "beats are kept by ticks");
const _: () = assert!(
    SESSION_TICKS_MAX * TICK_MS >= 4 * SESSION_BEAT_MS,
    "a proxy is silent only if several of its beats are lost"
);
const _: () = assert!(
    ABANDONED_TICKS * TICK_MS > 2 * STRAGGLER_MAX.as_millis() as u64,
    "no report on a put is on its way any more when the put is resolved without it"
);
const _: () = assert!(
    DOUBT_TICKS_MAX * TICK_MS < LIST_WAIT_MS_MAX,
    "a list hears why it waits before it gives up"
);
const _: () = assert!(
    SESSION_TICKS_MAX * TICK_MS < DOUBT_REPORT_MS,
    "a put is told as one in doubt when more than its proxy has failed"
);
const _: () = assert!(
    DELETION_MS_MAX + 2 * PROXY_TIMEOUT_MS <= MARK_KEPT_MS,
    "a mark stays for as long as uploads of its bucket are aborted"
);
const _: () = assert!(
    LIST_WAIT_MS_MAX < SCAN_MS_MAX && SCAN_MS_MAX <= PROXY_TIMEOUT_MS,
    "a list may wait more than once, and no longer than any other request"
);
const _: () = assert!(
    SILENT_MS + SESSION_KEPT_MS > SESSION_TICKS_MAX * TICK_MS,
    "a proxy's puts are resolved before its session is closed"
);
const _: () = assert!(
    ROUTE_SILENT_MS + SERVER_BEAT_MS <= larder_protocol::limits::LEASE_GRANTED_MS
        && ROUTE_SILENT_MS + MANAGER_TICK_MS < 2 * SERVER_BEAT_MS,
    "the renewal after that is answered in time, and the beat after a lost one by the way that it came"
);
const _: () = assert!(
    (UNRESPONSIVE_TICKS_MAX as u64 - IDLE_TICKS) * TICK_MS > SILENT_MS,
    "the managers find out by themselves that a member is down"
);
const _: () = assert!(
    READ_WINDOW_PIECES_FIRST <= READ_WINDOW_PIECES_MAX
        && READ_WINDOW_PIECES_MAX < READ_AHEAD_PIECES_MAX,
    "a window grows, and no read holds all places"
);
const _: () = assert!(
    READ_PIECE_BYTES.is_multiple_of(larder_types::limits::SUM_BYTES as u64),
    "pieces are whole checksummed blocks"
);
const _: () = assert!(
    STARVED_MS + TICK_MS * larder_protocol::limits::REPEAT_TICKS_MAX
        < TICK_MS * (UNRESPONSIVE_TICKS_MAX as u64 - IDLE_TICKS),
    "a member whose log is behind gets on before it counts as unheard"
);
const _: () = assert!(
    LOG_BUFFER_BYTES_MAX * 2 <= larder_metalog::limits::BUFFER_BYTES_MAX,
    "calls are turned away long before the log's buffer refuses an op that was taken"
);
const _: () = assert!(
    MANAGER_TICK_MS < larder_protocol::limits::HEARTBEAT_MS,
    "a leader's heartbeats are in time"
);
const _: () = assert!(
    MANAGER_BATCH_MAX < larder_protocol::limits::QUORUM_WAITING_MAX,
    "the quorum takes what a batch brings while it waits for the disk"
);
const _: () = assert!(
    QUORUM_FILE_BYTES_MAX > 2 * larder_protocol::limits::QUORUM_LOG_BYTES_MAX,
    "a snapshot usually comes first"
);
