//! Observes the cluster beside a manager, so that `larder status` can say since when something is wrong and how fast disks fill.
//!
//! It checks the map once a second, and asks the meta servers for their volumes, and the data servers for their free
//! space, once a minute. It changes nothing.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join;
use larder_env::clock::uptime_ms;
use larder_net::Endpoint;
use larder_protocol::manager::state::{MapVersion, Topology};
use larder_roles::limits::MANAGERS_SILENT_MS;
use larder_roles::managers::{Managers, ManagersClient};
use larder_roles::observed::{Observations, Observed};
use larder_roles::peers::Peers;
use larder_roles::quorum::{Manager, ManagerCounts};
use larder_roles::wire::{DataService, ManagerService, MetaService};
use larder_types::ServerId;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::background;
use super::issues::{self, Fullness};
use super::space::Spaces;
use crate::cluster::disk_free_space::DiskFreeSpace;

/// Time between two looks at the map.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two looks at space.
const SPACE_POLL_INTERVAL: Duration = Duration::from_secs(60);
/// A manager that has followed a leader for so long has the latest map: what appears in it then begins then.
const SETTLED: Duration = Duration::from_secs(10);
/// A pause between two looks that is longer is a gap: the process stood still, and its map is old when it goes on.
const GAP_MS: u64 = 10_000;
/// A manager without a confirmed latest map for so long has a gap, too, though it gets its leader's heartbeats.
const SILENT: Duration = Duration::from_millis(MANAGERS_SILENT_MS);

/// See the module's head.
pub(crate) struct Observer {
    me: ServerId,
    managers: Arc<ManagersClient>,
    counts: Arc<ManagerCounts>,
    observed: Arc<Observed>,
    metas: Peers<MetaService>,
    others: Peers<ManagerService>,
    datas: Peers<DataService>,
    /// The moment from which on it has followed a leader without a gap.
    led_since: Option<Instant>,
    ticked_ms: u64,
    looked: Option<MapVersion>,
    space_checked: Option<Instant>,
    fullness: Fullness,
}

impl Observer {
    /// Of a manager that runs.
    pub(crate) fn of(manager: &Manager) -> Self {
        let endpoint: &Arc<Endpoint> = manager.endpoint();
        Self {
            me: manager.server(),
            managers: manager.managers().clone(),
            counts: manager.counts().clone(),
            observed: manager.observed().clone(),
            metas: Peers::new(endpoint),
            others: Peers::new(endpoint),
            datas: Peers::new(endpoint),
            led_since: None,
            ticked_ms: uptime_ms(),
            looked: None,
            space_checked: None,
            fullness: Fullness::default(),
        }
    }

    /// Looks again and again, as long as the process lives.
    pub(crate) async fn watch(mut self) -> Infallible {
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let before_ms = std::mem::replace(&mut self.ticked_ms, uptime_ms());
            if self.ticked_ms.saturating_sub(before_ms) > GAP_MS {
                self.miss();
                continue;
            }
            let is_settled = self.led_since.is_some_and(|since| since.elapsed() >= SETTLED);
            if self.counts.has_leader.load(Ordering::Relaxed) == 0 {
                self.observed.observe_no_leader(uptime_ms(), is_settled);
                self.forget();
                continue;
            }
            if self.managers.silent() > SILENT {
                self.miss();
                continue;
            }
            self.led_since.get_or_insert_with(Instant::now);
            let map = self.managers.map();
            if map.founded.is_some() {
                self.look(&map, is_settled).await;
            }
        }
    }

    /// Notes that it has seen nothing for a time.
    fn miss(&mut self) {
        self.forget();
        self.observed.observe_gap();
    }

    /// Forgets what it has seen: it may be otherwise by now.
    fn forget(&mut self) {
        (self.led_since, self.looked) = (None, None);
        self.fullness.forget_below();
    }

    async fn look(&mut self, map: &Topology, is_settled: bool) {
        let looks_at_space =
            self.space_checked.is_none_or(|at| at.elapsed() >= SPACE_POLL_INTERVAL);
        if looks_at_space {
            self.space_checked = Some(Instant::now());
            self.check_space(map).await;
        }
        if looks_at_space || self.looked != Some(map.version) {
            let of_map = issues::of_map(map).into_iter().map(|it| (it, is_settled));
            let full = self.fullness.full.iter().map(|(it, begins)| (*it, *begins && is_settled));
            self.observed.observe(&of_map.chain(full).collect(), uptime_ms());
            self.looked = Some(map.version);
        }
        if looks_at_space {
            let reported = issues::ask(&self.others, map, Some(self.me)).await;
            self.observed.adopt(&Observations::together(reported), uptime_ms());
        }
    }

    async fn check_space(&mut self, map: &Topology) {
        let (reported, disk_free_space) =
            join(background::spaces(&self.metas, map), DiskFreeSpace::ask(&self.datas, map)).await;
        let spaces =
            Spaces::of(map, reported.iter().map(|(server, now)| (*server, now)), &disk_free_space);
        let places = issues::places(&spaces);
        self.fullness.look(&places);
        self.observed.look(&issues::taken(&places, &spaces), uptime_ms());
    }
}
