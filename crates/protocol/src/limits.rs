//! The protocol's limits, with their units.

use larder_types::limits::{CHUNK_EXTENTS_MAX, KEY_BYTES_MAX, OP_BYTES_MAX};
use larder_types::{HybridClock, MapVersion, OpSeq};

mod beats;
mod copies;
mod regions;
mod scale;
mod space;

pub use self::beats::*;
pub use self::copies::*;
pub use self::regions::*;
pub use self::scale::*;
pub use self::space::*;

/// A limit, and what it is instead where a simulation is to reach it within a few hundred calls: tables fill, logs lag and
/// histories run out there. What must be true of limits is asserted of both.
const fn limit(usual: usize, small: usize) -> usize {
    if cfg!(feature = "small-limits") { small } else { usual }
}

/// Calls that may wait in one PG for keys to come to rest, for space or for a barrier.
pub const WAITING_CALLS_MAX: usize = limit(4096, 4);
/// Barriers of one group that wait. They have a bound of their own: lists that wait for a put in doubt leave room for
/// calls that concern other keys.
pub const BARRIERS_MAX: usize = limit(1024, 2);
/// Ops of one PG that may be above the applied position before calls are turned away.
pub const TAIL_OPS_MAX: usize = limit(16_384, 24);
/// Most bytes of a message to another member: one frame carries it.
pub const PEER_FRAME_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes above which calls are turned away: those of the ops of one PG above the applied position that calls became. A
/// member reports them in one message when a view begins.
pub const TAIL_BYTES_MAX: usize = 11 * 512 * 1024;
/// Bytes of those that its primaries made of themselves, from which on they make no more; outcomes do not count.
pub const OWN_BYTES_MAX: usize = limit(512 * 1024, 1024);
/// Ops of one PG above the applied position from which on a primary takes no more of a longer log.
pub const LONGEST_OPS_MAX: usize = 4 * TAIL_OPS_MAX;
/// Bytes of them, but for outcomes: as many as an earlier release leaves, whose bound was on ops.
pub const LONGEST_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Ops of one PG above the applied position from which on a follower takes no more.
pub const FOLLOWED_OPS_MAX: usize = 2 * LONGEST_OPS_MAX;
/// Bytes of them, but for outcomes.
pub const FOLLOWED_BYTES_MAX: usize = 3 * LONGEST_BYTES_MAX / 2;
/// Bytes of puts of one PG without an outcome, from which on others with data are turned away: a snapshot's header tells
/// all of them.
pub const OPEN_BYTES_MAX: usize = limit(3 * 512 * 1024, 4096);
/// Bytes that an open put counts for at least, so that the number of their outcomes is bounded.
pub const OPEN_PUT_BYTES_MIN: usize = 256;
/// Most bytes of an op's id: two numbers.
pub const OP_ID_BYTES_MAX: usize = 20;
/// Most bytes of a put's outcome, with its id.
pub const OUTCOME_BYTES_MAX: usize = 64;
/// Bytes of a report or a snapshot's header that are no op, no open put and no session, and ops at the beginning of views
/// that came to nothing.
pub const PEER_HEAD_BYTES_MAX: usize = 48 * 1024;
/// Bytes of a message for each of which another tick passes before it is repeated, if it had no effect. With
/// [`crate::Event::Tick`] ten times a second that is no more than 10 MiB a second.
pub const REPEAT_BYTES_PER_TICK: usize = 1024 * 1024;
/// Most ticks before it is said again.
pub const REPEAT_TICKS_MAX: u64 = 12;
/// Streams to be dropped that wait in one PG for room in its log.
pub const DROPS_WAITING_MAX: usize = limit(4096, 2);
/// Ops applied to the index in one batch.
pub const APPLY_OPS_MAX: usize = limit(256, 4);
/// Bytes of changes above which a batch takes no further op. They are far below what the index takes at once: one op
/// may remove the rows of many parts. In groups that know no steps ([`REAP_ROWS_MAX`]) it may remove all rows of the
/// largest object.
pub const APPLY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Rows of chunks, parts and pieces that one op removes; an object that has more of them goes by several ops. With chunks
/// of 8 MiB an op frees 2 GiB, and reads 300 KiB of the index for it.
pub const REAP_ROWS_MAX: u32 = 256;
/// Rows of parts and pieces that are looked at together when they go: what they name may use up the step.
pub const REAP_CHECKS_MAX: usize = 32;
/// Pieces of an object that one op coalesces: with the chunk of each, fewer rows than a step of garbage has.
pub const COALESCE_PIECES_MAX: usize = (REAP_ROWS_MAX / 2 - 1) as usize;
/// Fewer pieces of one tier are not coalesced, unless they make a large one.
pub const COALESCE_PIECES_MIN: usize = 64;
/// A piece that is coalesced becomes part of one that is so many times as long, or large.
pub const COALESCE_GROWTH_MIN: u64 = 8;
/// Pieces of an object that are looked at together for some to coalesce: 1 MB of the index if their bytes are inline.
pub const COALESCE_CHECKS_MAX: usize = 512;
/// Windows that a primary remembers while proxies coalesce them.
pub const COALESCES_PLANNED_MAX: usize = 64;
/// Milliseconds after which a window of which nothing became is planned again.
pub const COALESCE_PLANNED_MS: u64 = 5000;
/// The same of any release.
pub const STEP_ROWS_MAX: u32 = 65_536;
/// Milliseconds for which space is given on most replicas of an LV before another is asked for. The managers need less
/// to find a server down, so that they draw none with it, and a restart draws none at all.
pub const NARROW_MS: u64 = 4000;
/// Milliseconds after which another is asked for again: the one that was drawn may not have been within reach either.
pub const NARROW_AGAIN_MS: u64 = 60_000;
/// Milliseconds after which an open grant is resolved although its proxy is heard and says that the put is under way.
pub const GRANT_MS_MAX: u64 = 60_000;
/// Ticks without a word from a proxy after which its open puts are resolved: it says something at each beat.
pub const SESSION_TICKS_MAX: u64 = 20;
/// Ticks after which a put is resolved whose proxy says that it is finished with it: what it said of the put is lost, or
/// would have come by now.
pub const ABANDONED_TICKS: u64 = 10;
/// Ticks after which a resolution that failed begins again, at most: 3.2 s. The first time after one tick, then after twice
/// as many each time.
pub const RETRY_TICKS_MAX: u64 = 32;
/// Milliseconds after which an open put does not hold up lists that can begin before its row.
pub const SLOW_PUT_MS: u64 = 300;
/// Milliseconds for which a list that begins at the row of an open put waits for all puts on its way together. Puts of a
/// proxy that died take as long, and most slow ones.
pub const LIST_GATHER_MS: u64 = 3_000;
/// Ticks for which a call waits for a row of which a put is open, or for space; then it is refused, so that such calls do
/// not pile up.
pub const DOUBT_TICKS_MAX: u64 = 90;
/// Replicas that may fail between two ticks before calls that wait for space are turned away: another
/// LV may be out of reach too.
pub const LV_FAILURES_MAX: u32 = 4;
/// Milliseconds after which replicas that were out of reach are asked again to open: longer than a driver tries to
/// reach one, so that questions do not pile up.
pub const LV_REOPEN_MS: u64 = 5_000;
/// Milliseconds for which a start that has no space above its marks waits for the rows to be read. Only then does it
/// draw another LV, so that one with few rows draws none.
pub const UNREAD_MS: u64 = 4_000;
/// Changes of one PG's ledger, of blocks and of objects each, that wait while a stretch of the index is read for it: a few
/// megabytes.
pub const LEDGER_CHANGES_MAX: usize = 16_384;
/// Copies of one PG's chunks that are being made at a time.
pub const REFILLS_MAX: usize = limit(32, 4);
/// Copies of one PG's chunks that readers found damaged, and that wait to be made anew; more are found again.
pub const SUSPECTS_MAX: usize = limit(1024, 2);
/// Walks that try to mend a damaged copy before it is forgotten until it is found again. With their pauses they last
/// longer than it takes to have another replica in place of one that is lost.
pub const SUSPECT_TRIES_MAX: u32 = 16;
/// Chunks whose holders change in one op: about 20 KiB.
pub const HOLDERS_CHANGES_MAX: usize = limit(128, 2);
/// Chunks of one PG whose holders are about to change.
pub const HOLDERS_WAITING_MAX: usize = 8 * HOLDERS_CHANGES_MAX;
/// Answers kept per session for repeats.
pub const REPEATS_MAX: usize = limit(65_536, 64);
/// Answers kept per group, of all its sessions: a snapshot's header tells all of them, in one message.
pub const GROUP_REPEATS_MAX: usize = 2 * REPEATS_MAX;
/// Sessions of which a group remembers something: twice as many as may be open. A header tells a floor of each.
pub const GROUP_SESSIONS_MAX: usize = 2 * SESSIONS_MAX;
/// Most bytes of what a header tells of a session besides answers: two numbers, and how many answers there are.
pub const SESSION_BYTES_MAX: usize = 24;
/// Answers of a session that one record of the log tells, when a snapshot was taken.
pub const RECORD_REPEATS_MAX: usize = limit(16_384, 4);
/// Most bytes of one such answer: four numbers of up to ten bytes, and whether it was revoked.
pub const REPEAT_BYTES_MAX: usize = 41;
/// Applied ops that a member of several remembers for one that is a little behind: about 100 KiB.
pub const HISTORY_OPS_MIN: usize = limit(256, 4);
/// Applied ops that a primary remembers while a follower takes a snapshot; one that takes longer
/// begins anew, and has twice as many then. About 8 MiB.
pub const HISTORY_OPS_MAX: usize = limit(16_384, 16);
/// Most times that this bound is doubled, to about 64 MiB.
pub const HISTORY_DOUBLINGS_MAX: u32 = 3;
/// Percent of an LV that are free, at least, where it is compacted: for a block that is won no more than three are
/// copied.
pub const FRAGMENTED_FREE_PERCENT: u64 = 25;
/// Percent of what is free that lie in pieces too short, at least: most of it.
pub const FRAGMENTED_SCATTERED_PERCENT: u64 = 50;
/// Pieces of free space that the largest chunk asked for of late may take. With more the disk seeks longer than it
/// writes, and eight of 1 MiB make the largest chunk there is.
pub const FRAGMENTED_PIECES: u32 = 8;
/// Chunks asked for after which the largest of them is forgotten, once another so many were.
pub const REQUEST_WINDOW: u32 = 1024;
/// An LV that was compacted is again only when one part in so many of it became free since.
pub const COMPACT_AGAIN_PART: u32 = 16;
/// Extents that a chunk may get by moving, if it had fewer.
pub const MOVE_EXTENTS_MAX: usize = 4;
/// Chunks of one PG that are being moved at a time.
pub const MOVES_MAX: usize = limit(32, 4);
/// Chunks that one op moves: about 60 KiB.
pub const MOVES_PER_OP_MAX: usize = limit(32, 2);
/// Milliseconds between two walks over the index to compact LVs.
pub const COMPACT_PAUSE_MS: u64 = 5_000;
/// The pause is so many times as long as the walk before read rows, if that is longer.
pub const COMPACT_PAUSE_WALKS: u64 = 8;
/// Bytes of rows in one piece of a snapshot, but for the last row's.
pub const SNAPSHOT_PIECE_BYTES: usize = limit(512 * 1024, 1024);
/// Old rows removed at once when a snapshot takes their place.
pub const SNAPSHOT_REMOVALS_MAX: usize = limit(1024, 3);
/// Ticks without a word from the primary after which a follower reports anew.
pub const SILENT_TICKS_MAX: u32 = 20;
/// Ticks without a message from a member after which its primary reports it to the managers. They need fewer to find a
/// server down, so that reports are only about servers that they reach and the primary does not.
pub const UNRESPONSIVE_TICKS_MAX: u32 = 22;
/// Ticks without a word from a learner after which its primary remembers nothing for it.
pub const LEARNER_TICKS_MAX: u32 = 80;

/// Milliseconds between two looks whether copies of chunks are missing somewhere.
pub const WALK_CHECK_MS: u64 = 1000;
/// The longest time between two walks that could do nothing and had the same reasons.
pub const WALK_PAUSE_MS_MAX: u64 = 120_000;
/// Pieces of background work that a meta server has under way: with chunks of 8 MiB that are 32 MiB of memory.
pub const BACKGROUND_PIECES_MAX: usize = 4;
/// Background work that yields to clients goes on with one part in this many of its budget; in as many steps it is
/// back at all of it.
pub const BACKGROUND_LEAST_PART: u64 = 8;
/// Pieces of more urgent work that begin, one after the other, before one that waits.
pub const BACKGROUND_PASSED_OVER_MAX: u32 = 16;
/// Requests of clients under way at a data server from which on background work yields. A client that waits for one
/// answer after the other has one, and of four some wait for the disk.
pub const CLIENTS_QUEUE: u32 = 4;
/// Least bytes of copies that a scrub verifies a second: little for any disk, and a small store is through soon.
pub const SCRUB_BYTES_PER_S_MIN: u64 = 1024 * 1024;
/// Milliseconds of the shortest time within which copies can be verified, for tests.
pub const SCRUB_PERIOD_MS_MIN: u64 = 4000;
/// Ticks between two questions of a primary for the sums that it lacks.
pub const DIGEST_RETRY_TICKS: u32 = 10;
/// Ticks after which a comparison is given up: many times what a member takes to read a large index.
pub const DIGEST_TICKS_MAX: u32 = 6 * 60 * 60 * 10;

/// Most bytes of a row's key: a key of an object, escaped, and what else is in it. The index takes no longer one.
pub const ROW_KEY_BYTES_MAX: usize = 4096;
/// Most bytes of a row's value that another member sends: the index takes no longer one.
pub const ROW_VALUE_BYTES_MAX: usize = 2 * OP_BYTES_MAX;
/// The highest position of an op: far beyond what a log of a group may come to, and far from where numbers end.
pub const OP_SEQ_MAX: OpSeq = OpSeq(1 << 62);
/// The highest clock of an op, thousands of years from now: each version's is above the one before, and there must be
/// room for that.
pub const CLOCK_MAX: HybridClock = HybridClock(1 << 63);
/// Most bytes of attributes, tags and checksum of an op: half of it, and so half again for each of two that one op has.
pub const OP_DESCRIPTION_BYTES_MAX: usize = OP_BYTES_MAX / 2;
/// The last place of the quorum's log, and the last term: far from where numbers end.
pub const QUORUM_INDEX_MAX: u64 = 1 << 62;
/// See [`QUORUM_INDEX_MAX`].
pub const QUORUM_TERM_MAX: u64 = 1 << 62;
/// The last version of the map: far from where numbers end.
pub const MAP_VERSION_MAX: MapVersion = MapVersion(1 << 62);
/// Most tables of a sum: as many as a table's letter may tell apart.
pub const DIGEST_TABLES_MAX: usize = 256;

const _: () = assert!(
    2 <= COALESCE_GROWTH_MIN as usize
        && COALESCE_GROWTH_MIN as usize <= COALESCE_PIECES_MIN
        && COALESCE_PIECES_MIN < COALESCE_PIECES_MAX
        && COALESCE_PIECES_MAX < COALESCE_CHECKS_MAX,
    "equal pieces are coalesced, and more than the fewest"
);
const _: () = assert!(ROW_KEY_BYTES_MAX >= 2 * KEY_BYTES_MAX + 1024, "an escaped key fits");
const _: () = assert!(DIGEST_RETRY_TICKS < DIGEST_TICKS_MAX, "one that says nothing is asked");
const _: () = assert!(WALK_CHECK_MS < WALK_PAUSE_MS_MAX, "pauses grow");
const _: () = assert!(
    (SUSPECT_TRIES_MAX as u64 - 8) * WALK_PAUSE_MS_MAX > LOST_MS,
    "a damaged copy is remembered until its replica is replaced"
);
const _: () = assert!(BACKGROUND_PIECES_MAX <= REFILLS_MAX, "one PG may have all the pieces");
const _: () = assert!(BACKGROUND_PIECES_MAX <= MOVES_MAX, "one PG may have all the pieces");
const _: () = assert!(
    FRAGMENTED_FREE_PERCENT > 100 - LV_FULL_PERCENT,
    "what is compacted takes objects, so that its space is of use"
);
const _: () = assert!(
    MOVE_EXTENTS_MAX < FRAGMENTED_PIECES as usize,
    "a chunk that moves is in fewer pieces than a put that finds none better"
);
const _: () = assert!(
    MOVES_PER_OP_MAX * (KEY_BYTES_MAX * 2 + CHUNK_EXTENTS_MAX * 10 + 64) < OP_BYTES_MAX,
    "moved chunks fit an op"
);
const _: () =
    assert!(SILENT_TICKS_MAX < LEARNER_TICKS_MAX, "a follower speaks up before it is let go");
const _: () =
    assert!(HISTORY_OPS_MIN < HISTORY_OPS_MAX, "a snapshot needs more than a short delay");
const _: () = assert!(
    TAIL_BYTES_MAX
        + OP_BYTES_MAX
        + OWN_BYTES_MAX
        + HOLDERS_CHANGES_MAX * (ROW_KEY_BYTES_MAX + 64)
        + OPEN_BYTES_MAX / OPEN_PUT_BYTES_MIN * OUTCOME_BYTES_MAX
        + PEER_HEAD_BYTES_MAX
        <= PEER_FRAME_BYTES_MAX,
    "a report fits a frame, with one op more of a call and one of a primary"
);
const _: () = assert!(
    TAIL_OPS_MAX
        + OWN_BYTES_MAX / OP_ID_BYTES_MAX
        + OPEN_BYTES_MAX / OPEN_PUT_BYTES_MIN
        + LONGEST_OPS_MAX
        < FOLLOWED_OPS_MAX,
    "a follower has room for all that a primary may have above its commit point"
);
const _: () = assert!(
    LONGEST_BYTES_MAX + 4 * PEER_FRAME_BYTES_MAX < FOLLOWED_BYTES_MAX,
    "a follower has room for the longest log, and for what its primary adds to it"
);
const _: () = assert!(
    OPEN_BYTES_MAX
        + OP_BYTES_MAX
        + GROUP_REPEATS_MAX * REPEAT_BYTES_MAX
        + (GROUP_SESSIONS_MAX + GROUP_REPEATS_MAX / RECORD_REPEATS_MAX) * SESSION_BYTES_MAX
        + PEER_HEAD_BYTES_MAX
        <= PEER_FRAME_BYTES_MAX,
    "a snapshot's header fits a frame, with one open put more"
);
const _: () = assert!(
    OPEN_BYTES_MAX / OPEN_PUT_BYTES_MIN * 10 + 1024 <= OP_BYTES_MAX,
    "a snapshot's last record names open puts that are superseded, perhaps all of them"
);
const _: () = assert!(
    REPEAT_TICKS_MAX < UNRESPONSIVE_TICKS_MAX as u64 && REPEAT_TICKS_MAX < SILENT_TICKS_MAX as u64,
    "what is lost is said again before a member counts as silent"
);
const _: () = assert!(APPLY_OPS_MAX < TAIL_OPS_MAX, "a batch is a part of the tail");
const _: () = assert!(WAITING_CALLS_MAX <= TAIL_OPS_MAX, "calls that wait find room when they run");

/// Managers that vote.
pub const MANAGERS_MAX: usize = 5;
/// Milliseconds between two messages of the managers' leader to each other manager.
pub const HEARTBEAT_MS: u64 = 150;
/// Milliseconds without a leader's heartbeat before a manager starts an election.
pub const ELECTION_MS_MIN: u64 = 800;
/// Milliseconds that it waits beyond that at most, by lot: many times what an election takes, so that two seldom ask at
/// once.
pub const ELECTION_JITTER_MS: u64 = 400;
/// Milliseconds for which one that would vote for another does not ask itself: an election takes less.
pub const ELECTION_YIELD_MS: u64 = 200;
/// Checks of a leader without an answer of a majority after which its policy decides nothing: it may be the one that is cut off.
pub const LEADER_UNSURE_BEATS: u32 = 4;
/// Checks of a leader, [`HEARTBEAT_MS`] apart, without responses of a majority, after which it no longer claims to
/// lead. They are counted, not timed: a paused process has sent no requests meanwhile.
pub const LEADER_SILENT_BEATS: u32 = 16;
/// Checks without an answer after which a leader gives up the lead: longer than a healthy disk stalls.
pub const LEADER_SILENT_BEATS_MAX: u32 = 4 * LEADER_SILENT_BEATS;
/// Milliseconds for which a manager takes the leader that it heard last for the one that leads.
pub const LEADER_SILENT_MS: u64 = LEADER_SILENT_BEATS as u64 * HEARTBEAT_MS;
/// First round of a leader that grants leases of [`LEASE_GRANTED_MS`]; leaders of earlier releases, which grant
/// [`LEASE_MS`], count from 0 and never come that far.
pub const ROUND_FIRST: u64 = 1 << 48;
/// Events that wait in a manager for its disk; more messages are dropped, more proposals turned away.
pub const QUORUM_WAITING_MAX: usize = 1024;
/// Entries of the quorum's log that may be above the commit point.
pub const QUORUM_UNCOMMITTED_MAX: u64 = 1024;
/// Bytes of one command, and of the commands in one message: with all else well below a frame (1 MiB).
pub const COMMAND_BYTES_MAX: usize = 512 * 1024;
/// Applied entries after which the quorum's log is replaced by a snapshot.
pub const QUORUM_LOG_ENTRIES_MAX: u64 = 4096;
/// Bytes of commands after which it is.
pub const QUORUM_LOG_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Entries that a learner may be behind when it is promoted.
pub const PROMOTE_LAG_MAX: u64 = 64;
/// Bytes of a snapshot of the map that are sent at once.
pub const MAP_PIECE_BYTES: usize = 512 * 1024;
/// Bytes of the largest snapshot of the map.
pub const MAP_BYTES_MAX: u64 = 1024 * 1024 * 1024;

const _: () = assert!(4 * HEARTBEAT_MS < ELECTION_MS_MIN, "a few lost heartbeats elect nobody");
const _: () = assert!(
    ELECTION_MS_MIN + ELECTION_JITTER_MS < LEADER_SILENT_MS,
    "where others can elect one, they have by the time a leader does not say that it leads"
);
const _: () = assert!(COMMAND_BYTES_MAX < QUORUM_LOG_BYTES_MAX, "a snapshot is for many commands");
const _: () =
    assert!(PROMOTE_LAG_MAX < QUORUM_LOG_ENTRIES_MAX, "one that lags little needs no snapshot");

/// Servers of a cluster.
pub const SERVERS_MAX: usize = 1024;
/// Runs of a server that are remembered when they have ended: more than it begins while a message is on its way.
pub const ENDED_RUNS_MAX: usize = 16;
/// Timelines that the map remembers: as often the managers' leader may change while a server is away.
pub const TIMELINES_MAX: usize = 256;
/// Disks that a server ever had.
pub const DISKS_MAX: usize = 1024;
/// LVs of a cluster.
pub const LVS_MAX: usize = 1 << 20;
/// Version of a cluster from which on its primaries know
/// [`ManagerMessage::TooFewServers`](crate::manager::policy::ManagerMessage::TooFewServers).
pub const TOO_FEW_SERVERS_VERSION: u8 = 20;
/// Version of a cluster from which on its managers begin timelines.
pub const TIMELINES_VERSION: u8 = 21;
/// Bytes of an access key.
pub const ACCESS_KEY_BYTES: std::ops::RangeInclusive<usize> = 3..=128;
/// Bytes of a secret key.
pub const SECRET_KEY_BYTES: std::ops::RangeInclusive<usize> = 8..=256;
/// Members of a PG, one more than wanted while one is replaced.
pub const PG_MEMBERS_MAX: usize = 8;
/// Learners of a PG at a time.
pub const PG_LEARNERS_MAX: usize = 1;
/// Sessions that are open.
pub const SESSIONS_MAX: usize = 4096;
/// Closed sessions that are remembered.
pub const CLOSED_SESSIONS_MAX: usize = 4096;
/// Join tokens in the map. At the bound, those that are revoked or expired make room.
pub const TOKENS_MAX: usize = 4096;

const _: () =
    assert!(CLOSED_SESSIONS_MAX >= SESSIONS_MAX, "a late opening is known for what it is");

/// Milliseconds for which nothing is heard of a server before it is taken for down.
pub const SILENT_MS: u64 = 1500;
/// Milliseconds for which a server may stand still at any time without being taken for down: a slow disk, or a machine
/// with too much to do.
pub const STALL_MS: u64 = 1000;
/// Milliseconds for which the quorum may take to say whether this manager leads, before it takes nobody for down: less than
/// a server is silent after it.
pub const CONFIRM_MS_MAX: u64 = 4 * HEARTBEAT_MS;
/// Milliseconds between two steps of the leading manager, beyond which it was stalled itself. That time does not count
/// as any server's silence: messages sent meanwhile are still in flight to it.
pub const LATE_CHECK_MS: u64 = 2 * SERVER_BEAT_MS;
/// Late looks, one after the other, by which a silent server's time is put off: a manager that is late all the time finds
/// it down all the same.
pub const LATE_CHECKS_MAX: u32 = 2;
/// Milliseconds for which a primary may answer reads alone, counted from the time that a grant of leases names.
pub const LEASE_MS: u64 = 1500;
/// Milliseconds for which it may after it sent its renewal: a grant names an earlier time, so that meta servers of earlier
/// releases hold leases no longer either.
pub const LEASE_GRANTED_MS: u64 = 900;
/// Milliseconds that clocks may drift apart during a lease, generously.
pub const LEASE_DRIFT_MS: u64 = 200;
/// Milliseconds that a server has to be up before it is trusted after its second flap; doubled with each further.
pub const PROBATION_MS: u64 = 10_000;
/// Doublings of it at most.
pub const PROBATION_DOUBLINGS_MAX: u32 = 6;
/// Milliseconds without a flap after which flaps are forgotten.
pub const FLAP_FORGET_MS: u64 = 60 * 60 * 1000;
/// Milliseconds for which the sessions of a server that is down are kept. With its silence that is longer than its meta
/// servers wait before they resolve what it has under way ([`SESSION_TICKS_MAX`]).
pub const SESSION_KEPT_MS: u64 = 1500;
/// Milliseconds that a server is down before what it has goes elsewhere.
pub const LOST_MS: u64 = 10 * 60 * 1000;
/// Milliseconds after which the leading manager looks at all groups though nothing seems to have changed.
pub const QUIESCENT_MS_MAX: u64 = 1000;
/// Milliseconds between two looks at where replicas ought to be.
pub const LV_PLAN_MS: u64 = 5000;
/// Milliseconds for which a disk counts as one without room after its server said so.
pub const DISK_FULL_MS: u64 = 6 * SERVER_BEAT_MS;
/// Milliseconds after the last repetition of an order to vacate a replica for which copies go by it. They last from one
/// repetition to the next, and as long as managers need to find a server down.
pub const ORDER_FRESH_MS: u64 = LV_PLAN_MS + SILENT_MS;
/// Milliseconds after which an order to vacate a replica is forgotten if the manager does not repeat it.
pub const VACATE_MS: u64 = 3 * LV_PLAN_MS;
/// Milliseconds for which a bucket stays marked for deletion: longer than a proxy aborts uploads for it. Then the mark is
/// lifted, and a deletion that still goes on has lost.
pub const MARK_KEPT_MS: u64 = 90_000;
/// Proposals of the leading manager that are under way.
pub const POLICY_PROPOSALS_MAX: usize = 512;
/// Renewals that wait for the quorum's confirmation.
pub const GRANTS_WAITING_MAX: usize = 4096;
/// PGs of which the target changes in one command.
pub const RETARGET_MAX: usize = 1024;
/// PGs that have a learner at a time: each may have its primary remember [`HISTORY_OPS_MAX`] ops, or more.
pub const PG_MOVES_MAX: usize = 64;
/// PGs that get another primary for balance at a time.
pub const LEADS_MAX: usize = 8;
/// LVs of which a replica is filled at a time, beside those that have more copies which can be read.
pub const LV_MOVES_MAX: usize = 128;
/// LVs that move for balance at a time: two give a full cluster with an empty machine room for an LV of three copies.
pub const BALANCE_MOVES_MAX: usize = 2;
/// Points by which the use of two disks has to differ for an LV to move from one to the other, unless the one is full.
pub const BALANCE_SPREAD_PERCENT: u64 = 5;
/// Percent of their ideal number by which LVs that take writes have to differ on two disks for one of them to move, where they are
/// evened for themselves.
pub const SHARES_SPREAD_PERCENT: u64 = 10;
/// LVs that the leading manager examines in one balance plan; the next plan continues after them.
pub const BALANCE_LVS_MAX: usize = 4096;
/// Looks of a plan for balance at LVs, disks and pairs of them, at most: far more than so many LVs take.
pub const BALANCE_CANDIDATES_MAX: usize = 1_000_000;
/// Failure domains, and disks of one, that are tried for one LV before it counts as one that cannot move.
pub const BALANCE_TRIED_MAX: usize = 8;
/// Use of a disk, in percent, up to which it takes LVs for no other reason than that their copies lie on a single machine.
pub const APART_FILL_PERCENT: u64 = 75;
/// Milliseconds after which a disk counts as one without room if a PV cannot be made there, though its server is up.
pub const UNMADE_MS_MAX: u64 = 2 * 60 * 1000;
/// Milliseconds for which such a disk takes no new PVs after it was seen last: longer than until the next look.
pub const UNMADE_KEPT_MS: u64 = 2 * LV_PLAN_MS;
/// Volumes of a group that cannot be made, at most, beside which another is drawn for it. Their physical volumes are lost to
/// the cluster, and more of them are another fault than that of one place on a disk.
pub const LVS_UNMADE_MAX: usize = 4;
/// Milliseconds for which a replica that is called empty by an order for another one may be what a late message says.
pub const MISTAKEN_MS_MAX: u64 = 30 * 1000;

const _: () = assert!(BALANCE_MOVES_MAX < LV_MOVES_MAX, "copies that are missing are not held up");
const _: () = assert!(
    ABANDONED_TICKS < SESSION_TICKS_MAX && 2 * SESSION_TICKS_MAX < DOUBT_TICKS_MAX,
    "a call waits for puts of a proxy that died until they are resolved"
);
const _: () = assert!(
    RETRY_TICKS_MAX.is_power_of_two() && 2 * RETRY_TICKS_MAX < DOUBT_TICKS_MAX,
    "a put is asked about again while calls still wait for it"
);
const _: () = assert!(
    RECORD_REPEATS_MAX * REPEAT_BYTES_MAX + 64 <= OP_BYTES_MAX,
    "a part of a session's memory fits a record"
);
const _: () = assert!(SLOW_PUT_MS < LIST_GATHER_MS, "slow puts are waited for together");
const _: () = assert!(
    LEASE_GRANTED_MS + LEASE_DRIFT_MS < SILENT_MS && LEASE_GRANTED_MS <= LEASE_MS,
    "a lease has run out when its holder is found down: nobody waits for both"
);
const _: () = assert!(
    SERVER_BEAT_MS <= PRESENCE_BEAT_MS && STALL_MS + PRESENCE_BEAT_MS < SILENT_MS,
    "a server that stands still for a moment is heard again before it counts as down"
);
const _: () = assert!(
    3 * IDLE_TICKS < UNRESPONSIVE_TICKS_MAX as u64 && 3 * IDLE_TICKS < SILENT_TICKS_MAX as u64,
    "two lost messages make nobody silent"
);
const _: () = assert!(2 * SILENT_MS <= NARROW_MS, "a server that is down is known to be");
const _: () = assert!(
    HEARTBEAT_MS + CONFIRM_MS_MAX + PRESENCE_BEAT_MS < SILENT_MS,
    "a leader that hears nobody any more takes nobody for down"
);
const _: () = assert!(
    LATE_CHECK_MS < SILENT_MS && LATE_CHECK_MS < ELECTION_MS_MIN,
    "a leader that stood still for long is no leader any more"
);
const _: () = assert!(
    FLAP_FORGET_MS > PROBATION_MS << PROBATION_DOUBLINGS_MAX,
    "a flap is not forgotten during its probation"
);
const _: () = assert!(
    POLICY_PROPOSALS_MAX <= QUORUM_WAITING_MAX,
    "the quorum takes what the policy proposes"
);

/// An average of service or response times moves by one part in this many with each request. It forgets a slow spell
/// within some dozens, and one slow request moves it little.
pub const AVERAGE_PART: u64 = 8;
/// Microseconds for which requests of a loaded primary wait for company (Shi et al., 2019).
pub const WINDOW_US: u64 = 500;
/// Requests of one window.
pub const WINDOW_REQUESTS_MAX: usize = 1024;
/// Requests of one primary that wait for others of their keys.
pub const DEPENDENT_REQUESTS_MAX: usize = 4096;
/// Reads that are at a disk at once: as many as a hard disk sorts (NCQ), and enough to keep a solid state disk busy.
pub const READS_AT_DEVICE: u16 = 32;
/// Of these, reads for copies that are made: an eighth of the device at its busiest.
pub const REPAIRS_AT_DEVICE: u16 = 4;
/// Of these, reads for copies that are verified: with read buffers of 1 MiB each.
pub const SCRUBS_AT_DEVICE: u16 = 2;
/// Clients' reads that wait at a disk; one more is turned away.
pub const CLIENT_READS_WAITING_MAX: usize = 6144;
/// Reads for copies that are made, which wait at a disk: apart, as a queue that is full of clients' reads shall turn away
/// none that saves data.
pub const REPAIR_READS_WAITING_MAX: usize = 1024;
/// Reads for copies that are verified, which wait at a disk.
pub const SCRUB_READS_WAITING_MAX: usize = 1024;
/// A share of reads that the page cache answers moves by one part in this many with each read. A read is one or nothing,
/// so that a share which moved faster would mostly tell of the last few.
pub const MISSED_PART: u32 = 64;
/// A read that is at the device for long says that others take at least one part in this many of that. While all is well
/// the oldest of many is some times older than the average.
pub const OLDEST_PART: u64 = 4;
/// More urgent reads that begin before one of lesser urgency that waits.
pub const READS_PASSED_OVER_MAX: u32 = 16;
/// Least microseconds after which a read is hedged: less would be below the resolution of timers.
pub const HEDGE_AFTER_US_MIN: u64 = 2_000;
/// Most microseconds after which it is, and those before anything was answered: a piece over 100 Mbit/s takes 50 ms.
pub const HEDGE_AFTER_US_MAX: u64 = 250_000;
/// Of so many reads one may be hedged: less than 3 %, and more than the 2.5 % that take longer than is usual while all is
/// well.
pub const HEDGED_PART: u32 = 34;
/// Hedges that may be saved up: enough to find out that a server hangs, little for servers with too much to do.
pub const HEDGES_SAVED_MAX: u32 = 16;
/// Holders of one chunk among which one is chosen: as many as [`larder_types::Holders`] has bits.
pub const CHOICES_MAX: usize = 16;
/// Microseconds for which a holder is tried after the others when it failed or sent wrong bytes: it may fail at once,
/// and look like the fastest.
pub const REFUSED_US: u64 = 2_000_000;
/// Disks of which is remembered what was heard.
pub const HOLDERS_TRACKED_MAX: usize = 4096;
/// A disk counts as unheard when its last report is older than so many of its finish times. Its finish time is that in
/// which it would have served its queue and one request more: a slow one is tried so much more seldom.
pub const STALE_AFTER_FINISHES: u64 = 128;
/// Microseconds for which a report counts at least: while nobody reads, it does no harm to go by an old one.
pub const STALE_US_MIN: u64 = 100_000;
/// Microseconds after which no report counts.
pub const STALE_US_MAX: u64 = 60_000_000;

const _: () = assert!(STALE_US_MIN < STALE_US_MAX, "reports lose their weight");
const _: () = assert!(
    REPAIRS_AT_DEVICE + SCRUBS_AT_DEVICE < READS_AT_DEVICE,
    "clients have most of the device"
);
const _: () = assert!(HEDGE_AFTER_US_MIN < HEDGE_AFTER_US_MAX, "a delay may be between");
const _: () = assert!(3 * HEDGED_PART > 100, "at most 3 % more reads");
const _: () = assert!(CHOICES_MAX == u16::BITS as usize, "choices are bits of a u16");
const _: () =
    assert!(larder_types::limits::REPLICAS_MAX <= CHOICES_MAX, "every holder is a choice");
