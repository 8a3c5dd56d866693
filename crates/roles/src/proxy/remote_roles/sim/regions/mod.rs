//! Regions as they are: two or three simulated clusters (`sim/cluster/`), each with the driver of regions at its gateway, over a
//! simulated network between them. One seed decides all of it.
//!
//! # Invariants
//!
//! 1. When nothing fails any more all regions come to have the same: keys, versions with their stamps, tags and bytes.
//! 2. Of each key the change with the greatest stamp among all that were acknowledged stays. What was deleted stays away.
//! 3. Tombstones are freed, buckets that were to be shared are, and each driver says that it is level.
//! 4. In a bucket with a home a key that must be absent is put once, in whichever region and wherever the home moves.
//!    What conditional changes of a key were answered is linearizable.
//! 5. A record that is appended in a bucket with a home is in its object once and whole, in whichever region it was appended and wherever
//!    the home moves.
//! 6. A put that waits for another region is in one when it is acknowledged.
//! 7. A list of all regions has each change that was answered before it began.
//! 8. A gateway that ends lets go of everything.
//! 9. The same seed makes the same run, to each byte that arrives at a region and when.

mod clients;
mod faults;
mod judge;
mod large;
mod locks;
mod many;
mod records;
mod region;
mod registers;
mod tests;
mod wan;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use larder_net::simulated::{Delivered, Network, NetworkConditions};
use larder_objects::ListedObject;
use larder_protocol::manager::state::Command;
use larder_types::{BucketName, BucketRecord, Metax, RegionId};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::SimRng;
use super::cluster::{MEMBERS_BACK, ManagerKind, with_threads};
use crate::clock::now_ms;
use crate::planted::Bug;
use clients::{Client, KEYS, Log};
use faults::FaultTargets;
use locks::Locks;
use records::Records;
use region::{Coverage, PROXIES_OF_EACH, Region};
use registers::Registers;

/// The most regions of a run.
const REGIONS_MAX: u16 = 3;
/// The time that everything has to come to rest. A cluster has room again once its servers are trusted
/// again, and tombstones are freed about a minute after all have passed them.
const QUIESCENCE_TIME: Duration = MEMBERS_BACK.saturating_add(Duration::from_secs(120));
/// Pause between two looks whether it has.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Within this time a change is in all other regions when nothing fails.
const SOON: Duration = Duration::from_secs(10);
/// Within this time a put that is repeated succeeds when nothing fails.
const WELL_AGAIN: Duration = Duration::from_secs(30);

/// The outcome of a run.
#[derive(Debug, Default)]
struct Ran {
    violations: Vec<String>,
    delivered: Vec<Delivered>,
    /// Simulated time.
    took: Duration,
    /// From the last fault to rest.
    rested: Duration,
    calls: u64,
    done: u64,
    lists: u64,
    /// Times that a bucket was deleted in all regions.
    removed: u64,
    /// Buckets that one region had alone, and that were shared.
    shared: u64,
    /// Buckets whose puts waited for another region.
    waited: u64,
    /// Locks that were made, and tries that came to nothing.
    locks: (u64, u64),
    /// Records that were acknowledged.
    records: u64,
    /// Uploads in parts that were completed, in a bucket with a home.
    uploaded: u64,
    coverage: Coverage,
    /// Runs of servers other than proxies that were ended.
    restarts: u64,
}

impl Ran {
    /// Counts another run in.
    fn add(&mut self, other: &Self) {
        self.took += other.took;
        self.rested = self.rested.max(other.rested);
        self.calls += other.calls;
        self.done += other.done;
        self.lists += other.lists;
        self.removed += other.removed;
        self.shared += other.shared;
        self.waited += other.waited;
        self.locks = (self.locks.0 + other.locks.0, self.locks.1 + other.locks.1);
        self.records += other.records;
        self.uploaded += other.uploaded;
        self.coverage.add(&other.coverage);
        self.restarts += other.restarts;
    }
}

/// A bucket, and what was asked of it.
struct Tried {
    name: BucketName,
    log: Arc<Mutex<Log>>,
    /// The region that has it alone at first: only its clients use it.
    of_one: Option<usize>,
    /// Clients delete it now and then.
    is_removed: bool,
    /// Its puts wait for another region.
    waits: bool,
}

impl Tried {
    fn new(name: &str, of_one: Option<usize>, is_removed: bool) -> Self {
        let name = BucketName::new(name).expect("it is a name");
        let log = Arc::new(Mutex::new(Log::new(of_one.is_some())));
        Self { name, log, of_one, is_removed, waits: false }
    }

    /// Has all its puts wait for another region, and returns once all proxies know that.
    async fn wait_for_another(&mut self, regions: &[Arc<Region>]) {
        let two = Command::SetRegions(self.name.clone(), 2);
        let waits = |it: &BucketRecord| it.regions == 2;
        let deadline = Instant::now() + QUIESCENCE_TIME;
        self.client(regions, 0, 0).make_bucket().await;
        for (number, region) in regions.iter().enumerate() {
            for at in 0..PROXIES_OF_EACH {
                while !self.client(regions, number, at).sees_that(waits).await {
                    assert!(Instant::now() < deadline, "a bucket and its policy are told in time");
                    region.world.agree(two.clone());
                    sleep(Duration::from_millis(200)).await;
                }
            }
        }
        self.waits = true;
    }

    fn client(&self, regions: &[Arc<Region>], number: usize, at: usize) -> Client {
        let mut others = if self.waits { regions.to_vec() } else { Vec::new() };
        others.retain(|it| it.number != regions[number].number);
        Client {
            region: regions[number].clone(),
            at,
            bucket: self.name.clone(),
            log: self.log.clone(),
            makes: self.of_one.is_none(),
            removes: self.is_removed,
            others,
        }
    }
}

struct Simulation {
    targets: Arc<FaultTargets>,
    tried: Vec<Tried>,
    locks: Option<(Arc<Locks>, Arc<Records>)>,
}

impl Simulation {
    async fn begin(seed: u64, by: ManagerKind) -> Self {
        let sim_rng = SimRng::new(seed);
        let conditions = NetworkConditions {
            delay_ms: sim_rng.below(120),
            late_one_in: 20 + sim_rng.below(200),
            late_ms: 100 + sim_rng.below(1500),
            split_one_in: sim_rng.below(6),
        };
        let drawn = sim_rng.clone();
        let network = Network::new(conditions, move || drawn.0.lock().next_u64());
        let count = 2 + sim_rng.below(u64::from(REGIONS_MAX) - 1) as u16;
        let regions = (1..=count).map(|number| {
            let sim_rng = SimRng::new(seed << 8 | u64::from(number));
            Region::begin(sim_rng, by, &network, (RegionId(number), count))
        });
        let regions = join_all(regions).await;
        let mut tried = vec![Tried::new("bucket", None, sim_rng.one_in(3))];
        if sim_rng.one_in(2) {
            let of_one = sim_rng.below(u64::from(count)) as usize;
            tried.push(Tried::new("scratch", Some(of_one), false));
        }
        let targets = FaultTargets { sim_rng, network, regions, is_calm: AtomicBool::new(false) };
        Self { targets: Arc::new(targets), tried, locks: None }
    }

    fn regions(&self) -> &[Arc<Region>] {
        &self.targets.regions
    }

    fn violated(&self, what: String) {
        self.regions()[0].world.violated(what);
    }

    async fn run(mut self, began: Instant) -> Ran {
        // Until every primary knows that its cluster is a region, what it deletes counts as deleted before.
        self.quiesce().await;
        if !self.tried[0].is_removed && self.targets.sim_rng.one_in(2) {
            self.tried[0].wait_for_another(&self.targets.regions).await;
        }
        if self.targets.sim_rng.one_in(2) {
            let locks = Locks::begin(self.regions()).await;
            let records = Records::new(locks.bucket().clone());
            self.locks = Some((locks, records));
        }
        let mut faults = JoinSet::new();
        faults.spawn(self.targets.clone().happen());
        for region in self.regions() {
            if self.targets.sim_rng.one_in(2) {
                faults.spawn(region.world.clone().happen());
            }
        }
        self.serve_clients().await;
        self.targets.is_calm.store(true, Ordering::Relaxed);
        self.regions().iter().for_each(|region| region.world.stop_faults());
        while let Some(ended) = faults.join_next().await {
            if let Err(panic) = ended {
                self.violated(format!("faults: {panic}"));
            }
        }
        let calm = Instant::now();
        self.quiesce().await;
        let rested = calm.elapsed();
        for tried in &self.tried {
            self.judge(tried).await;
        }
        if let Some((locks, records)) = &self.locks {
            locks.judge(self.regions()).await;
            records.judge(self.regions()).await;
        }
        self.change_when_quiescent().await;
        self.end(began, rested).await
    }

    async fn serve_clients(&self) {
        let mut clients = JoinSet::new();
        for tried in &self.tried {
            for number in 0..self.regions().len() {
                if tried.of_one.is_none_or(|one| one == number) {
                    for at in 0..PROXIES_OF_EACH {
                        clients.spawn(tried.client(self.regions(), number, at).run());
                    }
                }
            }
            if let Some(one) = tried.of_one {
                let longest = self.targets.sim_rng.below(40_000);
                clients.spawn(share(self.regions()[one].clone(), tried.name.clone(), longest));
            }
        }
        if let Some((locks, records)) = &self.locks {
            for region in self.regions() {
                for at in 0..PROXIES_OF_EACH {
                    clients.spawn(locks.clone().run_client(region.clone(), at));
                    clients.spawn(records.clone().run_client(region.clone(), at));
                }
            }
            clients.spawn(locks.clone().move_about(self.regions().to_vec()));
        }
        while let Some(ended) = clients.join_next().await {
            if let Err(panic) = ended {
                self.violated(format!("a client: {panic}"));
            }
        }
    }

    /// Waits until nothing is left, and says what is left after all.
    async fn quiesce(&self) {
        let deadline = Instant::now() + QUIESCENCE_TIME;
        loop {
            let left: Vec<String> =
                join_all(self.regions().iter().map(|it| it.left())).await.concat();
            if left.is_empty() {
                return;
            }
            if Instant::now() >= deadline {
                return self.violated(format!("left at rest: {}", left.join("\n")));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Compares what regions have of a bucket, with each other and with what clients were answered.
    async fn judge(&self, tried: &Tried) {
        for key in 0..KEYS {
            let mut found = Vec::new();
            for (number, region) in self.regions().iter().enumerate() {
                for at in 0..PROXIES_OF_EACH {
                    match tried.client(self.regions(), number, at).get(key).await {
                        Some(metax) => found.push((region.number, metax)),
                        None => self.violated(format!("{}: key {key} is not read", region.number)),
                    }
                }
            }
            let shown = |(region, metax): &(RegionId, Option<Metax>)| {
                let metax = metax.as_ref()?;
                Some((clients::at(*region, metax), metax.attributes.clone()))
            };
            let all: Vec<_> = found.iter().map(shown).collect();
            if all.windows(2).any(|pair| pair[0] != pair[1]) {
                self.violated(format!("regions differ in key {key} of {}: {all:?}", tried.name));
            }
            let at = all.first().cloned().flatten().map(|(at, _)| at);
            let wrong = judge::unexplained(&tried.log.lock(), key, at, u64::MAX);
            wrong.into_iter().for_each(|it| self.violated(format!("{}: {it}", tried.name)));
        }
        self.compare_lists(tried).await;
    }

    async fn compare_lists(&self, tried: &Tried) {
        let mut lists = Vec::new();
        for (number, region) in self.regions().iter().enumerate() {
            let listed = tried.client(self.regions(), number, 0).list().await;
            let of = |it: &ListedObject| (it.key.clone(), clients::at(region.number, &it.metax));
            lists.push(listed.map(|listed| listed.iter().map(of).collect::<Vec<_>>()));
        }
        if lists[0].is_none() || lists.windows(2).any(|pair| pair[0] != pair[1]) {
            self.violated(format!("regions list other keys of {}: {lists:?}", tried.name));
        }
    }

    /// Has each region change a key, which the others are to have soon.
    async fn change_when_quiescent(&self) {
        for key in 0..self.regions().len() {
            let deadline = Instant::now() + WELL_AGAIN;
            while !self.tried[0].client(self.regions(), key, 1).put(key).await {
                if Instant::now() > deadline {
                    return self.violated(format!("region {key} takes no put at rest"));
                }
                sleep(Duration::from_millis(500)).await;
            }
        }
        let deadline = Instant::now() + SOON;
        loop {
            let all = (0..self.regions().len()).map(|number| self.missing(number));
            let missing = join_all(all).await.concat();
            if missing.is_empty() {
                return;
            }
            if Instant::now() > deadline {
                return self.violated(format!("not everywhere soon: {}", missing.join("\n")));
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// The last changes that a region lacks.
    async fn missing(&self, number: usize) -> Vec<String> {
        let (tried, region) = (&self.tried[0], &self.regions()[number]);
        let Some(listed) = tried.client(self.regions(), number, 1).list().await else {
            return vec![format!("region {} lists nothing", region.number)];
        };
        let log = tried.log.lock();
        let missing = |key| {
            let found = listed.iter().find(|it| it.key == clients::key_of(key));
            let found = found.map(|it| clients::at(region.number, &it.metax));
            let why = judge::unexplained(&log, key, found, u64::MAX)?;
            Some(format!("region {}: {why}", region.number))
        };
        (0..self.regions().len()).filter_map(missing).collect()
    }

    async fn end(self, began: Instant, rested: Duration) -> Ran {
        let (delivered, took) = (self.targets.network.delivered(), began.elapsed());
        let mut ran = Ran { delivered, took, rested, ..Ran::default() };
        for region in self.regions() {
            region.close().await;
            ran.violations.extend(region.world.violations());
            ran.coverage.add(&region.coverage());
            ran.restarts += region.world.restarts();
        }
        for tried in &self.tried {
            let log = tried.log.lock();
            (ran.calls, ran.done) = (ran.calls + log.asked, ran.done + log.done);
            (ran.lists, ran.removed) = (ran.lists + log.lists, ran.removed + log.removed);
            ran.shared += u64::from(tried.of_one.is_some());
            ran.waited += u64::from(tried.waits);
        }
        if let Some((locks, records)) = &self.locks {
            (ran.locks, ran.records) = (locks.counts(), records.count());
            ran.uploaded = records.uploaded();
        }
        ran
    }
}

/// Makes a bucket that a region has alone, and shares it after a while.
async fn share(region: Arc<Region>, bucket: BucketName, longest_ms: u64) {
    region.world.agree(Command::SetLocal(bucket.clone(), true, now_ms()));
    sleep(Duration::from_millis(longest_ms)).await;
    region.world.agree(Command::SetLocal(bucket, false, now_ms()));
}

/// Has clients of two regions ask for the same locks while their home moves; returns what was violated.
fn race(seed: u64, bug: Option<Bug>) -> Vec<String> {
    let what = async |began| {
        let simulation = Simulation::begin(seed, ManagerKind::StandIn).await;
        simulation.quiesce().await;
        let [from, to, ..] = simulation.regions() else { unreachable!("there are two at least") };
        let locks = Locks::begin(simulation.regions()).await;
        locks.clone().race(from, to).await;
        simulation.quiesce().await;
        locks.judge(simulation.regions()).await;
        simulation.end(began, Duration::ZERO).await
    };
    let (ran, mut violations) = with_threads(seed, bug, what);
    violations.extend(ran.violations);
    violations
}

/// Has clients of all regions change keys under conditions while their home moves; returns what was violated.
fn compare_and_swap(seed: u64, bug: Option<Bug>) -> (registers::Counts, Vec<String>) {
    let what = async |began| {
        let simulation = Simulation::begin(seed, ManagerKind::StandIn).await;
        simulation.quiesce().await;
        let registers = Registers::new(Locks::begin(simulation.regions()).await);
        let faults = tokio::spawn(simulation.targets.clone().happen());
        let mut clients = JoinSet::new();
        for number in 0..simulation.regions().len() {
            for at in 0..PROXIES_OF_EACH {
                let regions = simulation.regions().to_vec();
                clients.spawn(registers.clone().run_client(regions, number, at));
            }
        }
        clients.spawn(registers.clone().move_about(simulation.regions().to_vec()));
        while let Some(ended) = clients.join_next().await {
            ended.expect("a client ends");
        }
        simulation.targets.is_calm.store(true, Ordering::Relaxed);
        faults.await.expect("faults end");
        simulation.quiesce().await;
        registers.judge(simulation.regions()).await;
        (registers.counts(), simulation.end(began, Duration::ZERO).await)
    };
    let ((counts, ran), mut violations) = with_threads(seed, bug, what);
    violations.extend(ran.violations);
    (counts, violations)
}

/// Reads objects of many bytes in other regions; returns what was violated, and whether a third region gave some.
fn read_large(seed: u64) -> (bool, Vec<String>) {
    let what = async |began| {
        let simulation = Simulation::begin(seed, ManagerKind::StandIn).await;
        simulation.quiesce().await;
        let had_third = simulation.read_large().await;
        simulation.quiesce().await;
        (had_third, simulation.end(began, Duration::ZERO).await)
    };
    let ((had_third, ran), mut violations) = with_threads(seed, None, what);
    violations.extend(ran.violations);
    (had_third, violations)
}

/// Changes objects of many bytes in all regions; returns what was violated.
fn change_many(seed: u64) -> Vec<String> {
    let what = async |began| {
        let simulation = Simulation::begin(seed, ManagerKind::StandIn).await;
        simulation.quiesce().await;
        simulation.change_many().await;
        simulation.end(began, Duration::ZERO).await
    };
    let (ran, mut violations) = with_threads(seed, None, what);
    violations.extend(ran.violations);
    violations
}

/// Runs one seed, of clusters with such managers.
fn run(seed: u64, by: ManagerKind, bug: Option<Bug>) -> Ran {
    let what = async |began| Simulation::begin(seed, by).await.run(began).await;
    let (mut ran, violations) = with_threads(seed, bug, what);
    ran.violations.extend(violations);
    ran
}
