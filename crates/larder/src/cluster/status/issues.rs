//! The issues of a cluster by its map and its space, and since when they last by what its managers have observed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use larder_net::Peer;
use larder_protocol::manager::state::{ServerRole, ServerState, Topology};
use larder_roles::observed::{
    Growth, HealthIssue, IssueDuration, MergedObservations, Observations, Place, SpaceSample,
};
use larder_roles::peers::Peers;
use larder_roles::wire::{ManagerCall, ManagerReply, ManagerService};
use larder_types::ServerId;
use serde::{Serialize, Serializer};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::space::{FULL_PERCENT, Space, Spaces};
use crate::health::volumes::Volumes;
use crate::quantity::span;
use crate::wall_clock::{now_ms, utc};

/// The time that a manager has to answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Troubles that the map shows.
pub(super) fn of_map(map: &Topology) -> BTreeSet<HealthIssue> {
    let down = map.servers.iter().filter(|(_, it)| it.state == ServerState::Down);
    let mut issues: BTreeSet<HealthIssue> =
        down.map(|(id, it)| HealthIssue::ServerDown(id.0, it.started.0)).collect();
    let pgs = super::pgs(map);
    if pgs.inactive > 0 {
        issues.insert(HealthIssue::PgsInactive);
    }
    if pgs.clean < pgs.total {
        issues.insert(HealthIssue::PgsIncomplete);
    }
    if Volumes::of(map).degraded > 0 {
        issues.insert(HealthIssue::CopiesMissing);
    }
    issues
}

/// Space of all places.
pub(super) fn places(spaces: &Spaces) -> BTreeMap<Place, Space> {
    let servers = spaces.by_server.iter().map(|(id, space)| (Place::Server(id.0), *space));
    let disks = spaces.by_disk.iter().map(|(id, space)| (Place::Disk(id.0), *space));
    let all = (spaces.all.bytes > 0).then_some((Place::Cluster, spaces.all));
    all.into_iter().chain(servers).chain(disks).collect()
}

/// Places that are nearly full. One of which somebody does not say now how full it is stays what it was.
pub(super) fn nearly_full(
    places: &BTreeMap<Place, Space>,
    before: &BTreeSet<HealthIssue>,
) -> BTreeSet<HealthIssue> {
    let is_full = |(place, space): &(&Place, &Space)| {
        let was = space.unknown > 0 && before.contains(&HealthIssue::NearlyFull(**place));
        was || space.bytes > 0 && space.percent() >= FULL_PERCENT
    };
    places.iter().filter(is_full).map(|(place, _)| HealthIssue::NearlyFull(*place)).collect()
}

/// Places that are nearly full, from one look to the next.
#[derive(Debug, Default)]
pub(super) struct Fullness {
    /// With true for one that was known to be less full at the look before.
    pub(super) full: BTreeMap<HealthIssue, bool>,
    /// Places that were wholly known to be less full.
    below: BTreeSet<Place>,
}

impl Fullness {
    /// Takes the space of all places.
    pub(super) fn look(&mut self, places: &BTreeMap<Place, Space>) {
        let before = self.full.keys().copied().collect();
        let full = nearly_full(places, &before);
        let is_below = |(_, it): &(&Place, &Space)| it.unknown == 0 && it.percent() < FULL_PERCENT;
        let below = places.iter().filter(is_below).map(|(place, _)| *place).collect();
        let below = std::mem::replace(&mut self.below, below);
        let begins = |it: HealthIssue| matches!(it, HealthIssue::NearlyFull(place) if below.contains(&place));
        self.full = full.into_iter().map(|it| (it, begins(it))).collect();
    }

    /// Forgets what was less full: it was not looked at for a time.
    pub(super) fn forget_below(&mut self) {
        self.below.clear();
    }
}

/// Bytes taken of each place whose growth may be foretold; `None` of one of which a part is not known.
pub(super) fn taken(
    places: &BTreeMap<Place, Space>,
    spaces: &Spaces,
) -> BTreeMap<Place, Option<u64>> {
    let observations = places.iter().filter(|(place, _)| !spaces.receives(**place));
    let known = |(place, space): (&Place, &Space)| {
        (*place, (space.unknown == 0).then(|| filling(*place, space, spaces).0))
    };
    observations.map(known).collect()
}

/// Bytes of a place that are taken, and those that may be yet.
fn filling(place: Place, space: &Space, spaces: &Spaces) -> (u64, u64) {
    match place {
        Place::Cluster => (spaces.taken_wanted, spaces.free_given),
        Place::Server(_) | Place::Disk(_) => (space.taken(), space.free),
    }
}

/// Asks the managers that are up, side by side, but for one.
pub(super) async fn ask(
    peers: &Peers<ManagerService>,
    map: &Topology,
    but: Option<ServerId>,
) -> Vec<Observations> {
    let (mut asked, until) = (JoinSet::new(), Instant::now() + TIMEOUT);
    for (&id, record) in &map.servers {
        let is_asked = record.state == ServerState::Up
            && record.roles.contains(&ServerRole::Manager)
            && Some(id) != but;
        if let Some(peer) = peers.of(map, id).filter(|_| is_asked) {
            asked.spawn(fetch_observations(peer, until));
        }
    }
    asked.join_all().await.into_iter().flatten().collect()
}

/// `None` if it does not answer, or is of an earlier release.
async fn fetch_observations(peer: Peer<ManagerService>, until: Instant) -> Option<Observations> {
    match peer.call(&ManagerCall::Observed, Bytes::new(), until).await {
        Ok((ManagerReply::Observed, payload)) => Observations::decode(&payload),
        Ok(_) | Err(_) => None,
    }
}

/// An issue of now, as programs read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Shown {
    kind: &'static str,
    /// The server that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<u32>,
    /// The disk that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<u32>,
    /// Milliseconds since 1970; nothing if no manager knows.
    since_ms: Option<u64>,
    /// False if it may have begun earlier than that.
    is_exact: bool,
    #[serde(skip)]
    issue: HealthIssue,
    #[serde(skip)]
    lasting: Option<IssueDuration>,
}

impl Shown {
    fn of(issue: HealthIssue, lasting: Option<IssueDuration>, now_ms: u64) -> Self {
        let (kind, server, disk) = match issue {
            HealthIssue::NoLeader => ("no_leader", None, None),
            HealthIssue::PgsInactive => ("pgs_inactive", None, None),
            HealthIssue::PgsIncomplete => ("pgs_incomplete", None, None),
            HealthIssue::CopiesMissing => ("copies_missing", None, None),
            HealthIssue::ServerDown(server, _) => ("server_down", Some(server), None),
            HealthIssue::NearlyFull(Place::Cluster) => ("nearly_full", None, None),
            HealthIssue::NearlyFull(Place::Server(server)) => ("nearly_full", Some(server), None),
            HealthIssue::NearlyFull(Place::Disk(disk)) => ("nearly_full", None, Some(disk)),
        };
        let since_ms = lasting.map(|it| now_ms.saturating_sub(it.for_ms));
        let is_exact = lasting.is_some_and(|it| it.is_exact);
        Self { kind, server, disk, since_ms, is_exact, issue, lasting }
    }
}

/// The issues of a state, and what was observed of its places.
#[derive(Debug, Default)]
pub(super) struct HealthIssues {
    all: Vec<Shown>,
    fills: BTreeMap<Place, SpaceSample>,
}

impl HealthIssues {
    /// The issues of a map and its space, of which managers have said this.
    pub(super) fn of(
        map: &Topology,
        is_latest: bool,
        spaces: &Spaces,
        observations: MergedObservations,
    ) -> Self {
        let places = places(spaces);
        // It is not known what is so by now.
        let mut now = match is_latest {
            true => of_map(map),
            false => BTreeSet::from([HealthIssue::NoLeader]),
        };
        let observed = observations.issues.keys().copied().collect();
        now.extend(nearly_full(&places, &observed));
        let wall_ms = now_ms();
        let shown = |it: HealthIssue| Shown::of(it, observations.issues.get(&it).copied(), wall_ms);
        Self { all: now.into_iter().map(shown).collect(), fills: observations.fills }
    }

    /// The time for which the longest of some issues lasts.
    pub(super) fn longest(&self, of: impl Fn(HealthIssue) -> bool) -> Option<IssueDuration> {
        let some = self.all.iter().filter(|it| of(it.issue)).filter_map(|it| it.lasting);
        some.max_by_key(|it| it.for_ms)
    }

    /// Growth of a place that has this space now.
    pub(super) fn growth(&self, place: Place, space: &Space, spaces: &Spaces) -> Option<Growth> {
        // Bytes not known yet would look like growth once they are, and so would volumes that move there.
        let is_seen = space.unknown == 0 && !spaces.receives(place);
        let fill = self.fills.get(&place).filter(|_| is_seen)?;
        let (taken, free) = filling(place, space, spaces);
        Growth::of(taken.saturating_sub(fill.taken), fill.within_s, free)
    }
}

/// Programs see the issues as a list.
pub(super) fn shown<S: Serializer>(issues: &HealthIssues, into: S) -> Result<S::Ok, S::Error> {
    issues.all.serialize(into)
}

/// The time for which something lasts, as the line says it that tells what is wrong.
pub(super) fn since(lasting: Option<IssueDuration>) -> String {
    since_of("", lasting)
}

/// The same of several, of which the first has lasted longest.
pub(super) fn since_first(lasting: Option<IssueDuration>) -> String {
    since_of("the first ", lasting)
}

fn since_of(which: &str, lasting: Option<IssueDuration>) -> String {
    let Some(IssueDuration { for_ms, is_exact }) = lasting else { return String::new() };
    let now = SystemTime::now();
    let at = utc(now.checked_sub(Duration::from_millis(for_ms)).unwrap_or(now));
    let (least, before) = if is_exact { ("", "") } else { ("at least ", " or before") };
    format!(", {which}for {least}{} (since {at}{before})", span(for_ms / 1000))
}
