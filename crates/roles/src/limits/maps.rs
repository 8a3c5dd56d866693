//! The limits of how a server gets the managers' map.

use std::time::Duration;

/// Milliseconds that a manager lets a question for a newer map wait.
pub const MAP_WAIT_MS: u64 = 1_000;
/// Milliseconds beyond that after which another manager is asked too. A server must learn of a view that replaces a
/// failed machine before its own connections to that machine break.
pub const MAP_LATE_MS: u64 = 500;
/// Milliseconds beyond the wait after which a manager that has not answered is taken for gone: a map may be large.
pub const MAP_ANSWER_MS: u64 = 6_000;
/// Milliseconds that an announced map may take to arrive; after that the next manager is queried.
pub const MAP_NOTIFY_MS: u64 = 200;
/// Bytes of records on a page of a map that is longer than a frame may be. The last record may exceed them.
pub const MAP_PAGE_BYTES: usize = 512 * 1024;
/// Most pages in a manager's memory on their way to servers. A request above that waits, and is then refused as busy.
pub const MAP_PAGES_MAX: usize = 128;
/// Most answers with a page on their way to servers, which may share a page. With more of them all would be late on a slow
/// network. A request above that waits, and is then refused as busy.
pub const MAP_PAGES_SENT_MAX: usize = 128;
/// Pages that a manager cuts at once. Each takes milliseconds of a processor that heartbeats need, too.
pub const MAP_CUTS_MAX: usize = 2;
/// Pages of one map that those who ask for them may share.
pub const MAP_PAGES_SHARED_MAX: usize = 2 * MAP_PAGES_MAX;
/// Bytes of a map that is told in one answer to a server that takes pages. A longer answer is late when many servers start.
pub const MAP_WHOLE_BYTES_MAX: usize = 2 * MAP_PAGE_BYTES;
/// Milliseconds after a page, or a word that none can be had now, after which another manager is asked too.
pub const MAP_PAGE_LATE_MS: u64 = 3_000;
/// Milliseconds after a page for which the word that none can be had now keeps others from being asked.
pub const MAP_BUSY_MS: u64 = 10_000;
/// Milliseconds for which pages may be of an earlier map than others tell of. Then the manager is behind, and is left.
pub const MAP_BEHIND_MS: u64 = 3_000;
/// Milliseconds after a page for which a busy manager makes a start wait longer.
pub const START_BUSY_MS_MAX: u64 = 120_000;
/// Milliseconds for which managers say that they have no quorum before a command takes that for certain: they may be electing
/// a leader.
pub const NO_QUORUM_MS: u64 = 3_000;
/// Milliseconds after which a start gives up, also if pages come.
pub const START_MS_MAX: u64 = 900_000;
/// Time for which the same page is asked for again and again.
pub const MAP_PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Times that a map is fetched anew from a manager that cannot tell any more what changed meanwhile.
pub const MAP_FETCHES_MAX: usize = 4;
/// Bytes of changes of the map that are told. For more the whole map is fetched.
pub const MAP_CHANGES_BYTES_MAX: usize = 1024 * 1024;
/// Versions of the map of which a manager has the changes since, encoded, to share them among all who ask.
pub const MAP_CHANGES_SHARED_MAX: usize = 64;
/// Questions for the committed version of the map that wait at a manager. One confirmation answers all.
pub const COMMITTED_ASKERS_MAX: usize = 4096;
/// Milliseconds within which a manager answers such a question, or another is asked.
pub const COMMITTED_ANSWER_MS: u64 = 1_000;

const _: () = assert!(
    2 * MAP_PAGE_BYTES <= larder_net::limits::PAYLOAD_BYTES_MAX
        && MAP_WHOLE_BYTES_MAX <= larder_net::limits::PAYLOAD_BYTES_MAX
        && MAP_CHANGES_BYTES_MAX <= larder_net::limits::PAYLOAD_BYTES_MAX,
    "a page of the map fits a frame, and so do its changes, and a map that comes at once"
);
const _: () = assert!(
    MAP_PAGE_LATE_MS > MAP_WAIT_MS
        && MAP_BUSY_MS > MAP_PAGE_LATE_MS
        && MAP_PAGE_TIMEOUT.as_millis() > MAP_ANSWER_MS as u128,
    "a manager that has pages for others first is not late, and a page that was lost is asked for again"
);
const _: () = assert!(
    NO_QUORUM_MS >= larder_protocol::limits::LEADER_SILENT_MS
        && NO_QUORUM_MS < super::START_TIMEOUT_MS,
    "an election is over before a command gives up for it, and that is sooner than a start does"
);
const _: () = assert!(
    START_BUSY_MS_MAX > super::START_TIMEOUT_MS && START_MS_MAX > START_BUSY_MS_MAX,
    "a start that hears of its map waits longer than one that does not"
);
