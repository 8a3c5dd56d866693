//! The managers as they are: three, each with its thread, its log on a simulated disk, and its messages over the simulated
//! network. Other servers reach them with the client and the presence of production.
//!
//! # Invariants
//!
//! 1. All maps of one version are the same, no matter which manager shows them and after what crash; one
//!    manager leads in a term.
//! 2. What was answered as agreed on is in every later map, and what was answered as not taken in none.
//! 3. A manager gives up where its disk failed, and nowhere else.
//! 4. When nothing fails any more, one leads, all vote, and all show the same map.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use larder_env::SimDisk;
use larder_identity::limits::CERTIFICATE_VALIDITY;
use larder_identity::{AuthorityCell, Role};
use larder_net::Endpoint;
use larder_protocol::limits::QUORUM_LOG_ENTRIES_MAX;
use larder_protocol::manager::state::{Command, ServerState, Topology};
use larder_types::{ClusterId, ServerId};
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::super::proxies::Findings;
use super::super::{PROXIES, SimRng, address, subject};
use super::agreed::{Agreed, Hash};
use super::cluster_network::ClusterNetwork;
use super::disks::DiskSpeed;
use super::places::{DISK_BYTES, Ends, Place};
use super::servers::END_MAX;
use super::stand_in::{CLUSTER, founding};
use crate::inspect::{Report, look_at_quorum};
use crate::manager::quorum::{
    Founder, LogStart, ManagerError, ManagerPorts, Maps, Running, begin_log, keeps_snapshot,
    make_log,
};
use crate::managers::{Contacts, Managers, ManagersClient, MapStore, NotProposed};
use crate::recover::Recovery;

pub(super) const MANAGERS: Range<u32> = 9..12;

/// See the module's head.
pub(super) struct Quorum {
    pub(super) sim_rng: SimRng,
    pub(super) sim_network: Arc<ClusterNetwork>,
    findings: Arc<Findings>,
    agreed: Agreed,
    places: Vec<Place>,
    running: Vec<Mutex<Option<RunningManager>>>,
    restarts: AtomicU64,
    /// Logs that begin with a snapshot of the map in the end.
    snapshots: AtomicU64,
    /// Tokens that were asked for.
    asked: AtomicU64,
    recoveries: AtomicU64,
    /// All disks are gone.
    are_lost: AtomicBool,
}

/// The events that befell managers.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct MetManagers {
    /// Runs that were ended.
    pub(super) restarts: u64,
    /// Terms in which somebody led.
    pub(super) terms: u64,
    /// Tokens that were answered.
    pub(super) tokens: u64,
    /// Logs that begin with a snapshot of the map in the end.
    pub(super) snapshots: u64,
    /// Times that managers were made anew.
    pub(super) recoveries: u64,
}

/// A manager that runs.
struct RunningManager {
    manager: Running,
    watches: [AbortHandle; 2],
}

impl Drop for RunningManager {
    fn drop(&mut self) {
        self.watches.iter().for_each(AbortHandle::abort);
    }
}

fn contacts() -> Vec<(ServerId, String)> {
    MANAGERS.map(|id| (ServerId(id), address(id).to_string())).collect()
}

impl Quorum {
    /// Founds a cluster at the first manager, and has all begin.
    pub(super) fn open(
        sim_rng: &SimRng,
        sim_network: &Arc<ClusterNetwork>,
        findings: &Arc<Findings>,
    ) -> Arc<Self> {
        let quorum = Arc::new(Self {
            sim_rng: sim_rng.clone(),
            sim_network: sim_network.clone(),
            findings: findings.clone(),
            agreed: Agreed::new(findings),
            places: MANAGERS.map(|_| Place::new(sim_rng)).collect(),
            running: MANAGERS.map(|_| Mutex::default()).collect(),
            restarts: AtomicU64::new(0),
            snapshots: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            recoveries: AtomicU64::new(0),
            are_lost: AtomicBool::new(false),
        });
        quorum.found();
        (0..MANAGERS.len()).for_each(|at| quorum.begin(at));
        quorum
    }

    /// In half of the seeds the log is so long that there will be snapshots of the map.
    fn found(&self) {
        for (id, place) in MANAGERS.map(ServerId).zip(&self.places).skip(1) {
            let log = make_log(place.disk.lock().clone(), ClusterId(CLUSTER), id);
            log.expect("a new disk takes a log");
        }
        let (disk, me) = (self.places[0].disk.lock().clone(), ServerId(MANAGERS.start));
        let founder = Founder::begin(disk, ClusterId(CLUSTER), me);
        let mut founder = founder.expect("the first manager founds the cluster");
        let mut agree = |command: &Command| {
            let applied = founder.agree(command);
            applied.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        };
        founding(PROXIES, MANAGERS).iter().for_each(&mut agree);
        if self.sim_rng.one_in(2) {
            let fillers = QUORUM_LOG_ENTRIES_MAX - 50 - self.sim_rng.below(300);
            (0..fillers).for_each(|turn| agree(&Command::SetDraining(me, turn % 2 == 0)));
            agree(&Command::SetDraining(me, false));
        }
    }

    /// Has a manager begin a run.
    pub(super) fn begin(self: &Arc<Self>, at: usize) {
        let me = ServerId(MANAGERS.start + at as u32);
        let host = self.sim_network.network.host(subject(me.0, Role::Manager));
        let (arrivals, endpoint) = (host.listen(address(me.0)), Endpoint::simulated(host));
        let ports = ManagerPorts {
            cluster: ClusterId(CLUSTER),
            me,
            disk: self.places[at].slow(),
            lock: None,
            endpoint,
            address: address(me.0).to_string(),
            managers: contacts(),
            authority: AuthorityCell::default(),
            certificate_life: CERTIFICATE_VALIDITY,
            colocated: None,
        };
        let manager = Running::start(ports, arrivals.into());
        let manager =
            manager.unwrap_or_else(|error| panic!("manager {at} does not start: {error}"));
        let watch_maps = tokio::spawn(self.clone().watch_maps(me, manager.maps.clone()));
        let watch_seat = tokio::spawn(self.clone().watch_seat(at));
        let watches = [watch_maps.abort_handle(), watch_seat.abort_handle()];
        let before = self.running[at].lock().replace(RunningManager { manager, watches });
        assert!(before.is_none(), "manager {at} runs once");
    }

    async fn watch_maps(self: Arc<Self>, me: ServerId, mut maps: Maps) {
        let mut seen = maps.newest().map.version;
        while let Ok(newest) = maps.wait_for(|map| map.version > seen).await {
            seen = newest.map.version;
            self.agreed.publish(me, &newest.map);
        }
    }

    async fn watch_seat(self: Arc<Self>, at: usize) {
        let quorum_status =
            self.running[at].lock().as_ref().map(|it| it.manager.quorum_status.clone());
        let Some(mut quorum_status) = quorum_status else { return };
        while quorum_status.changed().await.is_ok() {
            if let Some(running) = &*self.running[at].lock() {
                let counts = running.manager.counts();
                let leads = counts.leads.load(Ordering::Relaxed) > 0;
                if leads {
                    let term = counts.term.load(Ordering::Relaxed);
                    self.agreed.leads(ServerId(MANAGERS.start + at as u32), term);
                }
            }
        }
    }

    /// Waits until some manager shows the map.
    pub(super) async fn until_founded(&self) {
        while self.map().founded.is_none() {
            sleep(Duration::from_millis(10)).await;
        }
    }

    pub(super) fn map(&self) -> Arc<Topology> {
        self.agreed.newest()
    }

    pub(super) fn pace(&self, at: usize) -> &DiskSpeed {
        &self.places[at].pace
    }

    pub(super) fn coverage(&self) -> MetManagers {
        MetManagers {
            restarts: self.restarts.load(Ordering::Relaxed),
            terms: self.agreed.terms(),
            tokens: self.agreed.tokens(),
            snapshots: self.snapshots.load(Ordering::Relaxed),
            recoveries: self.recoveries.load(Ordering::Relaxed),
        }
    }

    /// The manager that leads, if one says so.
    pub(super) fn leader(&self) -> Option<usize> {
        let leads = |at: &usize| {
            self.running[*at]
                .lock()
                .as_ref()
                .is_some_and(|it| it.manager.quorum_status.borrow().leads)
        };
        (0..MANAGERS.len()).find(leads)
    }

    /// The managers as a server sees them that begins a run, once it knows a map.
    pub(super) async fn client(
        &self,
        endpoint: &Arc<Endpoint>,
        map_store: Option<Arc<MapStore>>,
    ) -> Arc<ManagersClient> {
        let contacts = Arc::new(Contacts::new(endpoint, contacts()));
        let client = Arc::new(match map_store {
            Some(map_store) => ManagersClient::start_keeping(contacts, map_store),
            None => ManagersClient::start(contacts),
        });
        let mut versions = client.versions();
        while client.map().founded.is_none() {
            versions.changed().await.expect("maps come as long as it is there");
        }
        client
    }

    fn any_client(&self) -> Option<Arc<ManagersClient>> {
        let at = self.sim_rng.below(MANAGERS.len() as u64) as usize;
        self.running[at].lock().as_ref().map(|it| it.manager.client.clone())
    }

    /// Has a command agreed on, in some time.
    pub(super) fn agree(self: Arc<Self>, command: Command) {
        tokio::spawn(async move {
            loop {
                let answer = match self.any_client() {
                    Some(client) => client.propose(command.clone()).await,
                    None => Err(NotProposed::NoLeader),
                };
                match answer {
                    // A command that is asked for twice may be refused then.
                    Ok(_) => return,
                    Err(_) => sleep(self.sim_rng.ms(500)).await,
                }
            }
        });
    }

    /// Asks for a new token through some manager.
    pub(super) async fn ask(&self) -> Result<(), NotProposed> {
        let Some(client) = self.any_client() else { return Err(NotProposed::NoLeader) };
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let mut hash: Hash = [9; 32];
        hash[..8].copy_from_slice(&number.to_le_bytes());
        let answer = client.propose(Command::AddToken(hash, u64::MAX)).await;
        self.agreed.answered(hash, &answer);
        answer.map(drop)
    }

    /// Ends a manager's run, if it runs; it begins another after a while.
    pub(super) async fn restart(self: Arc<Self>, at: usize, ends: Ends, away: Duration) {
        if self.stop(at, ends).await {
            sleep(away).await;
            // Its disk may be gone with those of all others.
            while self.are_lost.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(10)).await;
            }
            self.sim_network.isolate(ServerId(MANAGERS.start + at as u32), false);
            self.begin(at);
        }
    }

    /// Ends a manager's run; `false` if it does not run.
    async fn stop(&self, at: usize, ends: Ends) -> bool {
        let Some(running) = self.running[at].lock().take() else { return false };
        self.restarts.fetch_add(1, Ordering::Relaxed);
        self.sim_network.isolate(ServerId(MANAGERS.start + at as u32), true);
        self.places[at].strike(ends);
        self.end_run(at, running, ends != Ends::Stopped).await;
        // A fault that was to come in this run ends with it.
        self.places[at].disk.lock().kill();
        true
    }

    /// All managers are gone with their disks; returns those that ran.
    pub(super) async fn lose_all(&self) -> Vec<usize> {
        self.are_lost.store(true, Ordering::Relaxed);
        let stops = (0..MANAGERS.len()).map(async |at| (at, self.stop(at, Ends::Wiped).await));
        let stopped = futures::future::join_all(stops).await;
        for place in &self.places {
            *place.disk.lock() = SimDisk::new(self.sim_rng.below(u64::MAX), DISK_BYTES);
        }
        stopped.into_iter().filter(|(_, ran)| *ran).map(|(at, _)| at).collect()
    }

    /// Has all managers' disks take a recovery, and those begin that ran before.
    pub(super) fn take(self: &Arc<Self>, recovery: &Recovery, ran: &[usize]) {
        self.agreed.recovered();
        self.recoveries.fetch_add(1, Ordering::Relaxed);
        for (id, place) in MANAGERS.map(ServerId).zip(&self.places) {
            let (disk, ids) = (place.disk.lock().reopen(), (ClusterId(CLUSTER), id));
            let begun = begin_log(disk, ids, &recovery.map, &recovery.voters, false);
            assert_eq!(begun.expect("a new disk takes a log"), LogStart::New(None));
        }
        self.are_lost.store(false, Ordering::Relaxed);
        // Nobody of before is heard: in production by the authority of before.
        for manager in MANAGERS.map(ServerId) {
            let others = self.sim_network.all().filter(|other| *other != manager);
            others.for_each(|other| self.sim_network.network.reset(manager, other));
        }
        for at in ran {
            self.sim_network.isolate(ServerId(MANAGERS.start + *at as u32), false);
            self.begin(*at);
        }
    }

    async fn end_run(&self, at: usize, mut running: RunningManager, may_fail: bool) {
        running.manager.stop();
        let Ok(end) = timeout(END_MAX, running.manager.ended()).await else {
            return self.findings.violated(format!("manager {at} does not end"));
        };
        self.judge_end(at, end, may_fail);
    }

    fn judge_end(&self, at: usize, end: Result<(), ManagerError>, may_fail: bool) {
        match end {
            Ok(()) => {}
            Err(ManagerError::Disk(_)) if may_fail || self.places[at].is_faulty() => {}
            Err(error) => self.findings.violated(format!("manager {at} gives up: {error}")),
        }
    }

    /// Has the disk of a manager fail, which ends it; it begins another run after a while.
    pub(super) async fn break_disk(self: Arc<Self>, at: usize, longest: Duration, away: Duration) {
        if self.running[at].lock().is_none() {
            return;
        }
        match self.sim_rng.one_in(2) {
            true => self.places[at].fail_sync(),
            false => self.places[at].ail(&self.sim_rng),
        }
        let late = Instant::now() + longest;
        while Instant::now() < late && !self.has_ended(at) {
            sleep(Duration::from_millis(5)).await;
        }
        self.restart(at, Ends::Killed, away).await;
    }

    /// Returns true if a run has ended that nobody ended, which is judged; it is told once.
    fn has_ended(&self, at: usize) -> bool {
        let mut running = self.running[at].lock();
        let end = running.as_mut().and_then(|it| it.manager.ended().now_or_never());
        drop(running);
        end.map(|end| self.judge_end(at, end, false)).is_some()
    }

    /// The state that is not as it must be when nothing fails any more.
    pub(super) fn left(&self) -> Vec<String> {
        let (mut left, mut leaders, newest) = (Vec::new(), 0, self.map());
        for (at, running) in self.running.iter().enumerate() {
            if self.has_ended(at) {
                left.push(format!("manager {at} has ended"));
            }
            let running = running.lock();
            let Some(RunningManager { manager, .. }) = &*running else {
                left.push(format!("manager {at} does not run"));
                continue;
            };
            let quorum_status = manager.quorum_status.borrow().clone();
            leaders += u32::from(quorum_status.leads);
            let voters = quorum_status.members.voters.iter().map(|id| id.0);
            if !voters.eq(MANAGERS) || !quorum_status.members.next_voters.is_empty() {
                left.push(format!("manager {at} sees the managers {:?}", quorum_status.members));
            }
            let shows = manager.maps.newest().map.version;
            let me = ServerId(MANAGERS.start + at as u32);
            let is_up = |map: &Topology| {
                map.servers.get(&me).is_some_and(|record| record.state == ServerState::Up)
            };
            if !is_up(&newest) {
                let own = manager.client.map();
                let (version, up) = (own.version, is_up(&own));
                left.push(format!("manager {at} is not up; in its map {version}: {up}"));
            }
            if quorum_status.leader.is_none() || shows != newest.version {
                left.push(format!(
                    "manager {at} follows {:?} and shows {shows}",
                    quorum_status.leader
                ));
            }
        }
        if leaders != 1 {
            left.push(format!("{leaders} managers lead"));
        }
        left
    }

    /// Looks at what a manager that was stopped keeps.
    fn check_log(&self, at: usize) {
        let me = ServerId(MANAGERS.start + at as u32);
        let (disk, mut report) = (self.places[at].disk.lock().reopen(), Report::default());
        look_at_quorum(&*disk, &subject(me.0, Role::Manager), &mut report);
        if !report.is_sound() {
            self.findings.violated(format!("manager {at} keeps {report}"));
        }
        match keeps_snapshot(disk, ClusterId(CLUSTER), me) {
            Ok(keeps) => drop(self.snapshots.fetch_add(u64::from(keeps), Ordering::Relaxed)),
            Err(error) => self.findings.violated(format!("the log of manager {at}: {error}")),
        }
    }

    /// Ends all runs, and judges what was answered.
    pub(super) async fn end(&self) {
        for at in 0..MANAGERS.len() {
            let running = self.running[at].lock().take();
            if let Some(running) = running {
                self.end_run(at, running, false).await;
                self.check_log(at);
            }
        }
        self.agreed.judge();
    }
}
