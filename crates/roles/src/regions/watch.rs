//! Status of regions for operators: the lag behind each of them, and what holds it up.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use larder_link::{Later, LinkError, OldestChange, PeerStatus, RegionEndpoint, RegionStatus};
use larder_objects::ObjectError;
use larder_protocol::region::{Base, Name};
use larder_types::{BucketName, PgId, RegionId};
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Shared;
use super::reported::{Lacks, Reported};
use crate::blocking;
use crate::clock::now_ms;
use crate::limits::{REGION_FAILED_MAX, REGION_RATE_MS, REGION_STATUS_MS, REGION_STUCK_MS};
use crate::proxy::RegionAccess;

/// Counters of the exchange between regions, for metrics.
#[derive(Debug, Default)]
pub struct RegionCounters {
    /// Entries of other regions that were taken, or found to be here already when they came.
    pub taken: AtomicU64,
    /// Their bytes.
    pub taken_bytes: AtomicU64,
    /// Entries that could not be taken, and are asked for again.
    pub failed: AtomicU64,
    /// Entries that were given to other regions.
    pub entries_sent: AtomicU64,
    /// Their bytes.
    pub sent_bytes: AtomicU64,
    /// Alarms, such as clocks ahead, contradictions, and answers that no region gives.
    pub alarms: AtomicU64,
    /// Keys that clients read, that were not here, and that other regions were asked for.
    pub misses: AtomicU64,
    /// Those that came from another region.
    pub misses_filled: AtomicU64,
    /// Those that clients read from another region, as they are large.
    pub misses_remote: AtomicU64,
    /// Tombstones that were freed.
    pub freed: AtomicU64,
    /// Comparisons of all keys with another region that were begun.
    pub comparisons: AtomicU64,
    /// Milliseconds by which this machine's clock is ahead of a majority of other regions', if that is too much.
    clock_ahead_ms: AtomicU64,
    /// Thousandths of the rates at which is pulled now, as clients are served.
    share: AtomicU64,
    /// Buckets that were deleted in all regions, for clients of this one.
    pub deleted: AtomicU64,
    /// Those that were not, as a region has objects in them, does not answer, or is not known here yet.
    pub undeleted: AtomicU64,
    /// Changes of buckets that this region alone has, and those of other regions' buckets of such a name: not told, and not taken.
    pub left_out: AtomicU64,
    /// Objects that were renewed, as their bucket is shared with other regions.
    pub renewed: AtomicU64,
    /// Versions of which the beginning was here, so that only what was appended was fetched.
    pub tails: AtomicU64,
    /// Bytes of these beginnings.
    pub tails_spared_bytes: AtomicU64,
    /// Parts of versions that came with a request of their own.
    pub parts: AtomicU64,
    /// Bytes that are here of versions that are not here as a whole.
    pub parts_waiting_bytes: AtomicU64,
    /// Pages that were listed of all regions.
    pub lists: AtomicU64,
    /// Pages that were not, as a region did not answer.
    pub lists_failed: AtomicU64,
}

impl RegionCounters {
    /// Part of the rates at which is pulled now, as clients are served: from an eighth to 1; 0 before the first look.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.share.load(Ordering::Relaxed) as f64 / 1000.0
    }

    /// Seconds by which this machine's clock is ahead of a majority of other regions', if that is too much; else 0.
    #[must_use]
    pub fn clock_ahead_seconds(&self) -> f64 {
        self.clock_ahead_ms.load(Ordering::Relaxed) as f64 / 1000.0
    }

    pub(super) fn set_clock_ahead(&self, ms: u64) {
        self.clock_ahead_ms.store(ms, Ordering::Relaxed);
    }

    pub(super) fn count_alarm(&self) {
        self.alarms.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn left_out(&self, count: usize) {
        self.left_out.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(super) fn set_share(&self, share: f64) {
        self.share.store((share * 1000.0) as u64, Ordering::Relaxed);
    }

    pub(super) fn count_entry_sent(&self, bytes: u64) {
        self.entries_sent.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_part_sent(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn set_parts_waiting(&self, bytes: u64) {
        self.parts_waiting_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn took_tail(&self, base: Base) {
        self.tails.fetch_add(1, Ordering::Relaxed);
        self.tails_spared_bytes.fetch_add(base.size, Ordering::Relaxed);
    }

    pub(super) fn freed(&self, count: u64) {
        self.freed.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn taken(&self, bytes: u64) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.taken_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The lag behind a region.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ReplicationLag {
    pub(super) operations: u64,
    pub(super) bytes: u64,
    /// Clock of the oldest wanted entry, in milliseconds.
    pub(super) oldest_ms: Option<u64>,
    /// That entry, with its bucket's name.
    pub(super) oldest: Option<(Name, String)>,
    pub(super) is_comparing: bool,
}

#[derive(Debug)]
struct Seen {
    behind: ReplicationLag,
    /// False until the machine has reported the lag: 0 counts only then.
    is_known: bool,
    unreachable: Option<String>,
    /// It does not answer at all, or may not.
    is_away: bool,
    /// A PG of it that has not answered for long.
    silent: Option<PgId>,
    alarm: Option<String>,
    /// The difference between its clock and this machine's, if that is too much.
    clock: Option<String>,
    /// Entries that cannot be had or taken, each with the last reason.
    failed: BTreeMap<Name, String>,
    /// The alarm stays: nothing that comes later makes up for what was lost.
    has_lost: bool,
    /// Entries that were taken.
    taken: u64,
    bytes: u64,
    rate: f64,
    /// The bytes and the time from which on the rate is counted.
    counted: (u64, Instant),
    /// Last time that something was taken, the lag shrank, or there was none.
    waits_since: Instant,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Watch {
    seen: Mutex<BTreeMap<RegionId, Seen>>,
    counters: RegionCounters,
    /// Positions that the other regions reported.
    reported: Arc<Mutex<Reported>>,
    /// The last region found to be missing in the list.
    unlisted: AtomicU16,
}

impl Seen {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            behind: ReplicationLag::default(),
            is_known: false,
            unreachable: None,
            is_away: false,
            silent: None,
            alarm: None,
            clock: None,
            failed: BTreeMap::new(),
            has_lost: false,
            taken: 0,
            bytes: 0,
            rate: 0.0,
            counted: (0, now),
            waits_since: now,
        }
    }
}

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            seen: Mutex::default(),
            counters: RegionCounters::default(),
            reported: Arc::default(),
            unlisted: AtomicU16::new(0),
        }
    }

    pub(super) fn reported(&self) -> Arc<Mutex<Reported>> {
        self.reported.clone()
    }

    pub(super) fn counters(&self) -> &RegionCounters {
        &self.counters
    }

    fn of<T>(&self, region: RegionId, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(self.seen.lock().entry(region).or_insert_with(Seen::new))
    }

    /// Returns true if a region's lag is known, and it answered last.
    pub(super) fn is_reached(&self, region: RegionId) -> bool {
        self.of(region, |seen| seen.is_known && seen.unreachable.is_none())
    }

    /// The reason why a region does not answer at all, if that was so the last time.
    pub(super) fn away(&self, region: RegionId) -> Option<String> {
        self.of(region, |seen| seen.unreachable.clone().filter(|_| seen.is_away))
    }

    pub(super) fn answered(&self, region: RegionId) {
        self.of(region, |seen| seen.unreachable = None);
    }

    pub(super) fn unanswered(&self, region: RegionId, error: &LinkError) {
        let why = error.to_string();
        self.of(region, |seen| {
            if seen.unreachable.is_none() {
                tracing::warn!(%region, %why, "a region cannot be reached");
            }
            seen.unreachable = Some(why);
            seen.is_away = matches!(
                error,
                LinkError::Later(Later::Unreachable { .. }) | LinkError::Refused(_)
            );
        });
    }

    pub(super) fn alarm(&self, region: RegionId, what: String) {
        self.counters.count_alarm();
        self.show(region, what);
    }

    /// An alarm about an answer that no region gives.
    pub(super) fn unsound(&self, region: RegionId) {
        self.alarm(region, "it says what no region says: use one release".to_owned());
    }

    /// An alarm that stays, about changes of this region or the other one that are lost.
    pub(super) fn lost(&self, region: RegionId, what: &str) {
        if !self.of(region, |seen| seen.has_lost) {
            self.alarm(region, what.to_owned());
        }
        self.of(region, |seen| seen.has_lost = true);
    }

    fn show(&self, region: RegionId, what: String) {
        self.of(region, |seen| {
            if seen.has_lost {
                return tracing::error!(%region, %what, "another region");
            }
            if seen.alarm.as_ref() != Some(&what) {
                tracing::error!(%region, %what, "another region");
            }
            seen.alarm = Some(what);
        });
    }

    /// Counts a change that cannot be taken now, and that is asked for again.
    pub(super) fn cannot_take(&self, region: RegionId, name: &Name, error: &ObjectError) {
        self.failed(region, name, format!("it cannot be taken here: {error}"));
        self.cannot_take_any(region, error);
    }

    /// Shows that changes of a region cannot be taken now.
    pub(super) fn cannot_take_any(&self, region: RegionId, error: &ObjectError) {
        self.counters.failed.fetch_add(1, Ordering::Relaxed);
        self.show(region, format!("changes of it cannot be taken here: {error}"));
    }

    /// Shows that a region's changes of a bucket wait, as the bucket cannot be made here.
    pub(super) fn cannot_make(&self, region: RegionId, bucket: &BucketName, error: &ObjectError) {
        self.counters.failed.fetch_add(1, Ordering::Relaxed);
        let why = format!("bucket {:?} cannot be made: {error}", bucket.as_str());
        self.show(region, format!("changes of it cannot be taken here: {why}"));
    }

    /// Keeps the reason why an entry cannot be had or taken now. If there are many all are forgotten: each is tried again soon.
    fn failed(&self, region: RegionId, name: &Name, why: String) {
        self.of(region, |seen| {
            if seen.failed.len() >= REGION_FAILED_MAX && !seen.failed.contains_key(name) {
                seen.failed.clear();
            }
            seen.failed.insert(name.clone(), why);
        });
    }

    /// Counts a change that the region cannot read now, and that is asked for again.
    pub(super) fn withheld(&self, region: RegionId, name: &Name) {
        self.failed(
            region,
            name,
            "the other region cannot read it now: its log says more".to_owned(),
        );
        self.show(region, "it cannot read some of its objects now: its log says more".to_owned());
    }

    pub(super) fn taken(&self, region: RegionId, bytes: u64) {
        self.counters.taken(bytes);
        self.of(region, |seen| {
            (seen.taken, seen.bytes) = (seen.taken + 1, seen.bytes + bytes);
            seen.waits_since = Instant::now();
        });
    }

    /// Counts bytes of a part.
    pub(super) fn count_received(&self, region: RegionId, bytes: u64) {
        self.counters.taken_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.of(region, |seen| {
            seen.bytes += bytes;
            if bytes > 0 {
                seen.waits_since = Instant::now();
            }
        });
    }

    pub(super) fn set_behind(&self, region: RegionId, behind: ReplicationLag) {
        self.of(region, |seen| {
            let comes_closer = behind.operations < seen.behind.operations;
            if behind.operations == 0 || comes_closer {
                seen.waits_since = Instant::now();
            }
            if behind.operations == 0 && !behind.is_comparing {
                seen.failed.clear();
                seen.alarm = seen.alarm.take().filter(|_| seen.has_lost);
            }
            (seen.behind, seen.is_known) = (behind, true);
        });
    }

    /// Sets the regions whose clocks differ from this machine's by too much, each with what is shown.
    pub(super) fn set_clocks(&self, differing: impl Iterator<Item = (RegionId, String)>) {
        let mut differing: BTreeMap<RegionId, String> = differing.collect();
        for (region, seen) in &mut *self.seen.lock() {
            seen.clock = differing.remove(region);
        }
        for (region, what) in differing {
            self.of(region, |seen| seen.clock = Some(what));
        }
    }

    /// Sets the PG of the region that does not answer: its lag is unknown.
    pub(super) fn set_silent(&self, region: RegionId, pg: Option<PgId>) {
        self.of(region, |seen| {
            if let (Some(pg), None) = (pg, seen.silent) {
                tracing::warn!(%region, %pg, "another region reports no positions for a placement group");
            }
            seen.silent = pg;
        });
    }

    /// Reports a region whose changes are here, but which the list of regions lacks.
    pub(super) fn report_unlisted(&self, region: RegionId) {
        let was = self.unlisted.swap(region.0, Ordering::Relaxed);
        if was != region.0 {
            tracing::error!(%region, "this region has been here, and the list of regions lacks it: DIR/region is an old copy. Restore the latest one");
        }
    }

    /// Discards the numbers seen last, and shows why they no longer hold.
    pub(super) fn discard_lag(&self, region: RegionId, why: &str) {
        self.show(region, why.to_owned());
        self.of(region, |seen| (seen.behind, seen.is_known) = (ReplicationLag::default(), false));
    }

    pub(super) fn status(&self, region_endpoint: &RegionEndpoint) -> RegionStatus {
        let members = region_endpoint.members().borrow().clone();
        let mut peers = Vec::new();
        for peer in members.live() {
            let mut status = self.of(peer.number, status_of);
            (status.number, status.name) = (peer.number, peer.name.clone());
            status.paused = peer.paused;
            let Lacks { groups, since, last_report } = self.reported.lock().lacks(peer.number);
            let seconds = |since: Instant| since.elapsed().as_secs_f64();
            status.lacks_groups = groups;
            status.lacks_seconds = since.map_or(0.0, seconds);
            status.asked_seconds = seconds(last_report);
            if peer.paused {
                (status.unreachable, status.stuck) = (None, false);
            }
            peers.push(status);
        }
        RegionStatus::now(members.own.number, members.own.name.clone(), peers)
    }
}

fn status_of(seen: &mut Seen) -> PeerStatus {
    let (bytes, since) = seen.counted;
    let passed = since.elapsed();
    if passed >= Duration::from_millis(REGION_RATE_MS) {
        seen.rate = (seen.bytes - bytes) as f64 / passed.as_secs_f64();
        seen.counted = (seen.bytes, Instant::now());
    }
    let ReplicationLag { operations, bytes, oldest_ms, is_comparing, .. } = seen.behind;
    let waits = operations > 0 && seen.waits_since.elapsed().as_millis() as u64 > REGION_STUCK_MS;
    let never = (!seen.is_known).then(|| "it was not reached yet since the start".to_owned());
    let silent = seen
        .silent
        .map(|pg| format!("its placement group {pg} tells nothing: it may have no primary there"));
    PeerStatus {
        number: RegionId::OWN,
        name: "unnamed".parse().expect("a name"),
        paused: false,
        unreachable: seen.unreachable.clone().or(never).or(silent),
        comparing: is_comparing,
        operations_behind: operations,
        bytes_behind: bytes,
        seconds_behind: oldest_ms.map(|oldest| now_ms().saturating_sub(oldest) as f64 / 1000.0),
        bytes_per_s: seen.rate,
        seconds_left: (seen.rate > 0.0 && operations > 0).then(|| bytes as f64 / seen.rate),
        alarm: seen.alarm.clone().or(seen.clock.clone()),
        stuck: waits,
        lacks_seconds: 0.0,
        lacks_groups: 0,
        asked_seconds: 0.0,
        oldest: seen.behind.oldest.as_ref().map(|(name, bucket)| {
            let (key, why) = (name.key.as_str().to_owned(), seen.failed.get(name).cloned());
            OldestChange { bucket: bucket.clone(), key, why }
        }),
    }
}

/// Writes the status where `larder region status` reads it. Does not end.
pub(super) async fn keep_writing_status<R: RegionAccess>(shared: Arc<Shared<R>>, dir: PathBuf) {
    let mut times = interval(Duration::from_millis(REGION_STATUS_MS));
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        let (mut status, dir) = (shared.watch.status(&shared.region_endpoint), dir.clone());
        status.homes = shared.homes.status(shared.shown.access().buckets());
        status.unshared = shared.unshared.status();
        let written = blocking::run(move || status.write(&dir)).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(%error, "the status of regions is not written");
        }
    }
}
