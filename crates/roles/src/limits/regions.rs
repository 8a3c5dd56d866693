//! The limits of the driver of regions.

/// Most entries of a fetch that are being opened for another region, and as many opened ones that wait for their turn.
pub const REGION_OPENS_MAX: usize = 16;
/// Most bytes of an entry that is opened before its turn: 8 MiB of memory for a fetch, of which regions have a few each.
pub const REGION_AHEAD_BYTES_MAX: u64 = 256 << 10;
/// Milliseconds after which an entry that is not open yet is withheld from another region.
pub const REGION_OPEN_MS: u64 = 5_000;
/// Tries to open an entry for another region while other versions replace it.
pub const REGION_CHANGED_TRIES_MAX: usize = 4;
/// Most outcomes of a placement group that are counted beyond the number that was asked for.
pub const REGION_LEFT_COUNTED_MAX: u64 = 1_000;
/// Ops of a placement group that its journal keeps even if all regions have them: a region may note a little later what
/// it has reported as durable.
pub const REGION_JOURNAL_OPS_MIN: u64 = 1 << 12;
/// Ops of a placement group after which a token that no outcome is behind moves over them.
pub const REGION_QUIET_OPS: u64 = 1 << 10;
/// Milliseconds after which the gateway sends the managers the list of regions again, if they did not take it.
pub const REGION_KEEP_LIST_MS: u64 = 1_000;
/// Milliseconds between two checks for changes, while those that exist are not for the requesting region.
pub const REGION_CHECKS_MS: u64 = 10;
/// Most entries remembered as received from a region, so that they are not sent back to it.
pub const REGION_ECHOES_MAX: usize = 49_152;
/// Milliseconds for which an answer waits for news.
pub const REGION_UPDATE_MS: u64 = 2_000;
/// Most journals of placement groups that a meta server is asked for at a time.
pub const JOURNALS_MAX: usize = 4096;
/// Bytes of outcomes, about, in one answer about journals.
pub const JOURNAL_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Asks about journals that wait for news at a meta server; one more is answered at once.
pub const JOURNAL_WAITS_MAX: usize = 64;
/// Milliseconds for which an ask about journals waits until puts from before the store had a number show.
pub const JOURNAL_SETTLE_MS: u64 = 2_000;
/// Milliseconds that a primary may take to answer about journals, besides the wait for news.
pub const JOURNAL_ANSWER_MS: u64 = 3_000;
/// Milliseconds from a full answer about journals to the next ask.
pub const JOURNAL_PAUSE_MS: u64 = 5;
/// Milliseconds after which a primary is asked about journals again, if it did not answer for all, or too soon.
pub const JOURNAL_RETRY_MS: u64 = 200;
/// Most keys whose rows a meta server is asked for at a time.
pub const KEPT_KEYS_MAX: usize = 256;
/// Milliseconds for which the answer about keys waits for puts of them that are under way.
pub const KEPT_SETTLE_MS: u64 = 1_000;
/// Milliseconds for a lookup of what is here before changes of another region are taken. A key that is unknown by then
/// is looked up again, a few times, then fetched; a range without a sum is listed.
pub const REGION_CHECK_MS: u64 = 3_000;
/// The same for keys, for some time after a lookup that was late.
pub const REGION_RECHECK_MS: u64 = 300;
/// Milliseconds for which lookups are short after a late one.
pub const REGION_LATE_MS: u64 = 10_000;
/// Milliseconds between two tries to settle journals that may not be told yet.
pub const REGION_SETTLE_MS: u64 = 200;
/// Milliseconds for which keys are read for an answer to a walk: the asking region asks for the rest next.
pub const REGION_WALK_MS: u64 = 3_000;
/// Most ranges that are summed at a time.
pub const REGION_SUMS_MAX: usize = 16;
/// Milliseconds between two looks at what journals may forget.
pub const REGION_KEEP_SHORT_MS: u64 = 10_000;
/// Milliseconds between ops that forget outcomes, while there are more.
pub const REGION_FORGET_PAUSE_MS: u64 = 100;
/// Milliseconds after which a region is told all names of buckets again.
pub const REGION_NAMES_MS: u64 = 60_000;
/// Milliseconds from a question to a region on for which buckets are made that its answer names. The others are made by the next
/// answer.
pub const REGION_MAKING_MS: u64 = 5_000;
/// Milliseconds for which a bucket that could not be made here is tried again only if changes of it wait.
pub const REGION_REFUSED_MS: u64 = 60_000;
/// Most buckets of other regions of which that is remembered.
pub const REGION_REFUSED_MAX: usize = 16_384;
/// Milliseconds between two walks over all tombstones for those that may go.
pub const REGION_FREE_MS: u64 = 10_000;
/// Such pauses after which a walk begins even if no other region has come further.
pub const REGION_FREE_PASSES_MAX: u32 = 6;
/// Most calls that free tombstones at a time.
pub const REGION_FREES_MAX: usize = 32;
/// Milliseconds between two slices of such a walk.
pub const REGION_FREE_PAUSE_MS: u64 = 100;
/// Milliseconds over which the rate of a region's changes is counted.
pub const REGION_RATE_MS: u64 = 5_000;
/// Milliseconds between two statuses for `larder region status`.
pub const REGION_STATUS_MS: u64 = 1_000;
/// Milliseconds without progress after which a region that is behind is called stuck.
pub const REGION_STUCK_MS: u64 = 60_000;
/// Most entries for which the reason is kept why they cannot be taken.
pub const REGION_FAILED_MAX: usize = 256;
/// Most bytes of a fetch's entries that are put at once, so that many of them share each sync.
pub const REGION_PUTS_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Most times that an entry is put again for which the log or a disk had no room at the moment.
pub const REGION_BUSY_TRIES_MAX: u32 = 100;
/// Milliseconds between two such tries.
pub const REGION_BUSY_MS: u64 = 20;
/// Most entries of a fetch that are waited for at a time until they show.
pub const REGION_SHOWS_MAX: usize = 32;
/// Milliseconds for which a fetch that failed backs off.
pub const REGION_FETCH_BACKOFF_MS: u64 = 500;
/// Most bytes of an entry that is read whole before it is put, so that others are put beside it.
pub const REGION_WHOLE_BYTES_MAX: u64 = 1024 * 1024;
/// Most versions of which parts are here and the rest is to come.
pub const REGION_PARTIALS_MAX: usize = 64;
/// Tries to make all parts of a version the key's that fail, after which they are freed.
pub const REGION_PARTIAL_ENDS_MAX: u8 = 3;
/// Milliseconds after which an older version is begun with in place of a newer one of which nothing more has come.
pub const REGION_PARTIAL_NEWER_MS: u64 = 30_000;
/// Milliseconds after which the parts of an abandoned transfer are freed.
pub const REGION_PARTIAL_MS: u64 = 600_000;
/// Milliseconds for which a read of a key that is not here waits for its turn, and then for another region.
pub const REGION_MISS_MS: u64 = 1_500;
/// Milliseconds for which a read waits for a key that is being fetched.
pub const REGION_MISS_COMING_MS: u64 = 5_000;
/// Milliseconds for which a fetch waits for entries that another one has already.
pub const REGION_TWICE_MS: u64 = 200;
/// Most keys at a time that other regions are asked for on behalf of clients.
pub const REGION_MISSES_MAX: usize = 64;
/// Milliseconds for which the driver remembers that other regions gave no object for a key.
pub const REGION_ABSENT_MS: u64 = 1_000;
/// Most such keys that it remembers.
pub const REGION_ABSENT_KEYS_MAX: usize = 16_384;
/// Most bytes of an object that a client waits for until it has come from another region. A larger one comes in parts, and is read
/// from there meanwhile. Simulated volumes have no room for such objects: fewer bytes are many there.
pub const REGION_MISS_BYTES_MAX: u64 =
    if cfg!(test) { 400 * 1024 } else { larder_protocol::limits::REGION_PART_BYTES };
/// Bytes of such an object that are in memory until a client has taken them.
pub const REGION_REMOTE_BYTES_MAX: u64 = if cfg!(test) { 256 * 1024 } else { 8 * 1024 * 1024 };
/// Most clients at a time that read such objects.
pub const REGION_REMOTES_MAX: usize = 16;
/// Milliseconds for which such a read that has begun is tried again before it breaks off.
pub const REGION_REMOTE_MS: u64 = 60_000;
/// Milliseconds between two tries.
pub const REGION_REMOTE_PAUSE_MS: u64 = 250;
/// Milliseconds between two messages that an answer is still coming.
pub const REGION_COMING_MS: u64 = 2_000;
/// Most bytes a second that one region is asked for, unless an operator sets another rate.
pub const REGION_BYTES_PER_S: u64 = 256 * 1024 * 1024;
/// Most milliseconds for which a server that starts waits for what other regions' clocks say, before it serves clients.
pub const REGION_CLOCKS_MS: u64 = 3_000;
/// Milliseconds between ops that note positions in other regions' journals.
pub const REGION_NOTE_MS: u64 = 1_000;
/// Most rows of a table that a comparison reads at a time: it needs memory for these, however much it answers.
pub const REGION_SLICE_ROWS_MAX: usize = 1024;
/// Request numbers that each pulling machine has.
pub const REGION_REQUESTS_PER_MACHINE: u64 = 1 << 40;
/// Most placement groups of which a meta server is told at a time how far other regions are.
pub const POSITIONS_MAX: usize = 1024;
/// Milliseconds after which the gateway tells again how far other regions are, though nothing has changed.
pub const POSITIONS_AGAIN_MS: u64 = 10_000;
/// Milliseconds between two such calls to one server: positions that change meanwhile go together.
pub const POSITIONS_PAUSE_MS: u64 = 10;
/// The same while no bucket's changes wait for other regions.
pub const POSITIONS_IDLE_MS: u64 = 1_000;
/// Milliseconds between two checks for settings left by a command.
pub const REGION_SETTINGS_MS: u64 = 1_000;
/// Milliseconds after which a report that a server did not get is repeated.
pub const POSITIONS_RETRY_MS: u64 = 500;
/// Milliseconds between two reports to another region of how far this one is.
pub const REGION_REPORT_PAUSE_MS: u64 = 20;
/// Milliseconds for which a region of a release that knows no reports is sent none.
pub const REGION_REPORT_UNKNOWN_MS: u64 = 60_000;
/// Milliseconds after which a client's query for a version's replication is answered without it.
pub const REPLICATION_MS: u64 = 500;
/// Milliseconds for which a proxy takes positions of other regions for those of now, for a version that all of them have.
pub const POSITIONS_PASSED_MS: u64 = 10_000;
/// The same for a version that one of them may lack.
pub const POSITIONS_BEHIND_MS: u64 = 200;
/// Most versions of which a proxy remembers the ops that told them.
pub const REMOTE_OPS_MAX: usize = 65_536;
/// Milliseconds for a primary to say how far other regions are, beside what it waits for them.
pub const POSITIONS_ANSWER_MS: u64 = 1_000;
/// Milliseconds for which a change waits for other regions after it was made.
pub const REGION_WAIT_MS: u64 = 5_000;
/// Most changes that wait so at a proxy.
pub const REGION_WAITS_MAX: usize = 256;
/// Most that wait at a primary.
pub const POSITION_WAITS_MAX: usize = 1024;
/// Milliseconds between two ticks of a pulling machine.
pub const REGION_TICK_MS: u64 = 50;

const _: () = assert!(
    4 * REGION_WAITS_MAX <= larder_net::limits::REQUESTS_MAX,
    "changes that wait leave calls to a primary to others"
);
const _: () = assert!(
    REGION_QUIET_OPS < REGION_JOURNAL_OPS_MIN,
    "a region that lacks nothing is not behind what a journal keeps"
);
const _: () = assert!(
    2 * REGION_JOURNAL_OPS_MIN <= larder_protocol::limits::REGION_JOURNAL_OPS_MAX,
    "a journal keeps what a region may not have noted yet"
);
const _: () =
    assert!(REGION_WHOLE_BYTES_MAX <= REGION_PUTS_BYTES_MAX, "an entry that is read whole is put");
const _: () = assert!(
    larder_protocol::limits::REGION_CLAIMS_MAX
        + larder_protocol::limits::REGION_STUCK_MAX
        + larder_protocol::limits::REGION_UNNAMED_MAX
        <= REGION_ECHOES_MAX,
    "what is on its way here is not told back once it is"
);
const _: () = assert!(
    2 * REGION_MAKING_MS <= larder_protocol::limits::REGION_ANSWER_MS
        && REGION_UPDATE_MS < REGION_MAKING_MS,
    "an answer that names many buckets is taken in time"
);
const _: () = assert!(
    2 * REGION_UPDATE_MS < larder_protocol::limits::REGION_ANSWER_MS,
    "an answer that waits for something new is not given up"
);
const _: () = assert!(
    REGION_UPDATE_MS + 2 * JOURNAL_ANSWER_MS < larder_protocol::limits::REGION_ANSWER_MS
        && JOURNAL_SETTLE_MS < JOURNAL_ANSWER_MS,
    "an answer that waits for primaries is not given up either"
);
const _: () = assert!(
    2 * REGION_WALK_MS < larder_protocol::limits::REGION_ANSWER_MS,
    "a walk that is cut off is answered in time"
);
const _: () = assert!(
    2 * REGION_OPEN_MS <= larder_protocol::limits::REGION_ANSWER_MS,
    "an entry that is withheld is told in time, also behind one that is opened ahead"
);
const _: () = assert!(
    KEPT_SETTLE_MS < REGION_CHECK_MS && REGION_CHECK_MS < larder_protocol::limits::REGION_ANSWER_MS,
    "a key in doubt holds up no look, and a look no answer"
);
const _: () =
    assert!(JOURNAL_BYTES_MAX < larder_net::limits::PAYLOAD_BYTES_MAX, "an answer fits a frame");
const _: () = assert!(
    3 * REGION_COMING_MS < larder_protocol::limits::REGION_ANSWER_MS,
    "an answer that is coming is not given up"
);
const _: () = assert!(
    REGION_SLICE_ROWS_MAX > larder_protocol::limits::REGION_RUN_IDS_MAX,
    "the rows of a run are read at once"
);
const _: () = assert!(
    REGION_TICK_MS < larder_protocol::limits::REGION_POLL_MS,
    "the machine is asked as often as it polls"
);
/// Milliseconds between two looks at how many requests of clients are under way: pulling yields to them.
pub const REGION_CLIENTS_MS: u64 = 250;
/// Milliseconds after a fetch for which other machines of a cluster are asked for that.
pub const REGION_CLIENTS_PULLED_MS: u64 = 2_000;
/// Milliseconds for such a machine to answer.
pub const GATEWAY_CLIENTS_MS: u64 = 200;
/// Milliseconds that a region may take to close a bucket, and as many to delete it.
pub const REGION_CLOSE_MS: u64 = 5_000;
/// Milliseconds for which a bucket stays closed for another region that does not end its deletion.
pub const REGION_CLOSED_MS: u64 = 30_000;
/// Milliseconds for which entries of a deleted bucket may still be sent, as they were requested before.
pub const REGION_DELETED_MS: u64 = 60_000;
/// Milliseconds after which an unanswered request for a region's buckets is repeated.
pub const REGION_NAMES_AGAIN_MS: u64 = 500;
/// Milliseconds for which a proxy waits until the gateway has deleted a bucket in all regions.
pub const REGION_DELETION_MS: u64 = 20_000;
/// Most deletions of buckets that are under way with other regions; others wait, with their buckets marked.
pub const REGION_DELETIONS_MAX: usize = 16;
/// Deletions of buckets whose ends are remembered.
pub const REGION_DELETIONS_KEPT_MAX: usize = 64;

/// Milliseconds between two looks at buckets that other regions are to have.
pub const REGION_SHARING_MS: u64 = 1_000;
/// Objects that are renewed at a time.
pub const REGION_RENEWS_MAX: usize = 32;
/// Milliseconds until more objects are renewed, while clients would be held up.
pub const REGION_RENEW_PAUSE_MS: u64 = 200;
/// Milliseconds without a move after which a region's position holds up no renewal until it moves.
pub const REGION_RENEW_STUCK_MS: u64 = 10_000;
/// Requests of clients under way, from which on objects are renewed with pauses.
pub const REGION_RENEW_CLIENTS: u32 = 4;
/// Reasons that are kept why buckets are not shared.
pub const REGION_SHARING_REASONS_MAX: usize = 256;
/// Milliseconds between two looks at orders about homes of buckets.
pub const REGION_HOMES_MS: u64 = 1_000;
/// Milliseconds after which a region is told of homes again.
pub const REGION_HOMES_REPORT_MS: u64 = 10_000;
/// Milliseconds for a region to answer about a home; it waits for its managers, and for all its primaries.
pub const REGION_HOME_ANSWER_MS: u64 = 9_000;
/// Milliseconds for which an answer about a home waits for open puts of its bucket. The asking region asks again.
pub const REGION_HOME_SETTLE_MS: u64 = 4_000;
/// Milliseconds after which a group is asked again for open puts of a bucket.
pub const REGION_HOME_SETTLE_AGAIN_MS: u64 = 50;
/// Groups that are asked for open puts of a bucket at a time.
pub const REGION_HOME_SETTLES_MAX: usize = 32;
/// Milliseconds after which regions are asked again whether this one lacks changes of theirs.
pub const REGION_HOME_LEVEL_MS: u64 = 50;
/// Milliseconds after which this region tries again to become a home.
pub const REGION_HOME_AGAIN_MS: u64 = 2_000;
/// Most homes that this region becomes at a time.
pub const REGION_HOME_RUNS_MAX: usize = 16;
/// Most moments that are kept until regions have passed them.
pub const REGION_HOME_MARKS_MAX: usize = 256;
/// Milliseconds for which they are kept after they were asked for last.
pub const REGION_HOME_MARKS_MS: u64 = 600_000;
/// Most changes whose bytes are in memory while another region makes them.
pub const REGION_CHANGES_MAX: usize = 16;
/// Milliseconds for which a change waits for such a place.
pub const CHANGE_PLACE_MS: u64 = 1_500;
/// Most parts of uploads that are in memory while another region takes them: fewer than a link has places, so that locks have some.
pub const REGION_PARTS_MAX: usize = 4;
/// Milliseconds for which a part waits for such a place. Clients send some ten at a time.
pub const PART_PLACE_MS: u64 = 10_000;
/// Most lists of all regions that are merged at a time.
pub const REGION_LISTS_MAX: usize = 16;
/// Milliseconds for which a list waits for such a place.
pub const REGION_LIST_PLACE_MS: u64 = 1_500;
/// Milliseconds for all regions to tell the keys of a page.
pub const REGION_LIST_MS: u64 = 8_000;
/// Milliseconds for a region to read its keys for a list.
pub const REGION_KEYS_MS: u64 = 6_000;
/// Most reads of keys for lists at a time.
pub const REGION_LISTED_MAX: usize = 32;
/// Most lists of other proxies' clients that a gateway has at a time, waiting ones included.
pub const GATEWAY_LISTS_MAX: usize = 2 * REGION_LISTS_MAX;
/// Milliseconds for which a proxy waits until the gateway has listed a page.
pub const GATEWAY_LIST_MS: u64 =
    super::MAP_LAG_MAX.as_millis() as u64 + REGION_LIST_PLACE_MS + REGION_LIST_MS + 500;
/// Most changes of other proxies' clients that a gateway passes on at a time.
pub const GATEWAY_CALLS_MAX: usize = 64;
/// Milliseconds for which a proxy waits for the gateway to ask other regions for a key.
pub const GATEWAY_REFRESH_MS: u64 = 3_000;
/// Milliseconds after which the gateway says that it does not know yet.
pub const GATEWAY_STATE_MS: u64 = 2_500;
/// Milliseconds for which a gateway that did not answer is not asked for keys.
pub const GATEWAY_QUIET_MS: u64 = 1_000;
/// Most keys of other proxies' clients that a gateway asks other regions for at a time: others are its own clients'.
pub const GATEWAY_READS_MAX: usize = REGION_MISSES_MAX / 2;
/// Most parts of large objects that a gateway reads at a time for other proxies' clients.
pub const GATEWAY_PARTS_MAX: usize = REGION_REMOTES_MAX;
/// Milliseconds for which a proxy waits for such a part: over a link of 256 KiB a second it takes half of that.
pub const GATEWAY_PART_MS: u64 = 60_000;
/// Most changes of other regions' clients that are made at a time.
pub const REGION_CHANGES_MADE_MAX: usize = 32;

const _: () = assert!(
    GATEWAY_STATE_MS < GATEWAY_REFRESH_MS,
    "a proxy hears that a key may be elsewhere, and does not take it for absent"
);
const _: () = assert!(
    3 * REGION_CLOSE_MS < REGION_DELETION_MS && REGION_DELETION_MS < REGION_CLOSED_MS,
    "a bucket stays closed for as long as it may be deleted"
);
const _: () = assert!(
    REGION_DELETED_MS > 2 * larder_protocol::limits::REGION_ANSWER_MS,
    "what is asked for before a bucket is deleted is told, or given up"
);
const _: () = assert!(
    REGION_CLOSED_MS <= larder_protocol::limits::MARK_KEPT_MS,
    "the managers lift only marks that nobody else does"
);
const _: () = assert!(
    REGION_LIST_MS < REGION_FREE_MS,
    "a tombstone that a region has just passed is there until lists have ended"
);
const _: () = assert!(
    REGION_KEYS_MS < REGION_LIST_MS && REGION_LIST_MS < larder_protocol::limits::REGION_ANSWER_MS,
    "a region that is late says so in time"
);
