//! The proxies of a simulation, and what their clients ask and were answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use larder_identity::Role;
use larder_net::Endpoint;
use larder_net::simulated::Network;
use larder_objects::Objects;
use larder_protocol::manager::state::Command;
use larder_protocol::scheduler::Policy;
use larder_types::{BucketName, ServerId, WritePolicy};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::ProxyCounters;
use super::buckets::BucketMaker;
use super::clients::{Calls, Client};
use super::managers::BOOT;
use super::{ClusterConfig, ClusterProxy, PROXIES, Ran, SimRng, subject};
use crate::limits::{ORPHANS_MAX, STRAGGLERS_KIB_MAX};
use crate::managers::Managers;

/// Violations that were found.
#[derive(Default)]
pub(super) struct Findings {
    violations: Mutex<Vec<String>>,
    /// Some copy may have been given out damaged.
    pub(super) was_corrupt: AtomicBool,
}

impl Findings {
    pub(super) fn violated(&self, what: String) {
        self.violations.lock().push(what);
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.violations.lock().clone()
    }
}

/// See the module's head.
pub(super) struct Proxies {
    sim_rng: SimRng,
    findings: Arc<Findings>,
    all: Vec<Arc<ClusterProxy>>,
    endpoints: Vec<Arc<Endpoint>>,
    bucket: BucketName,
    remakes: bool,
    /// A task makes further buckets.
    makes_buckets: bool,
    caught_up: Arc<AtomicU64>,
    /// Questions for a newer map that each always has under way.
    map_requests: u64,
    calls: Arc<Mutex<Calls>>,
}

impl Proxies {
    pub(super) async fn begin(
        (sim_rng, findings): (&SimRng, &Arc<Findings>),
        network: &Arc<Network>,
        count: u32,
        managers: impl AsyncFn(ServerId, &Arc<Endpoint>) -> Arc<dyn Managers>,
    ) -> Self {
        let (mut all, mut endpoints) = (Vec::new(), Vec::new());
        for id in (PROXIES.start..).take(count as usize) {
            let endpoint = Endpoint::simulated(network.host(subject(id, Role::Proxy)));
            let proxy = ClusterProxy::begin(ClusterConfig {
                endpoint: endpoint.clone(),
                managers: managers(ServerId(id), &endpoint).await,
                me: ServerId(id),
                boot: BOOT,
                read_policy: Policy::ALL[sim_rng.below(Policy::ALL.len() as u64) as usize],
            });
            all.push(Arc::new(proxy.await));
            endpoints.push(endpoint);
        }
        let bucket = BucketName::new("bucket").expect("it is a name");
        let (sim_rng, findings, calls) = (sim_rng.clone(), findings.clone(), Arc::default());
        Self {
            sim_rng,
            findings,
            all,
            endpoints,
            bucket,
            remakes: false,
            makes_buckets: false,
            caught_up: Arc::default(),
            map_requests: 0,
            calls,
        }
    }

    /// Has all know the bucket, with a policy of writes that is drawn.
    pub(super) async fn make_bucket(&self, agree: impl FnOnce(Command)) {
        while self.all[0].create_bucket(&self.bucket, None).await.is_err()
            && self.all[0].bucket(&self.bucket).is_err()
        {
            sleep(Duration::from_millis(100)).await;
        }
        let policies = [WritePolicy::All, WritePolicy::Majority, WritePolicy::AtLeast(1)];
        let policy = policies[self.sim_rng.below(3) as usize];
        agree(Command::SetWritePolicy(self.bucket.clone(), policy));
        for proxy in &self.all {
            while proxy.bucket(&self.bucket).is_err() {
                sleep(Duration::from_millis(10)).await;
            }
        }
    }

    /// Has clients delete the bucket and make it again.
    pub(super) fn remake_buckets(&mut self) {
        self.remakes = true;
    }

    /// Has buckets be made through some proxies and looked for through others.
    pub(super) fn make_buckets(&mut self) {
        self.makes_buckets = true;
    }

    fn bucket_maker(&self) -> BucketMaker {
        BucketMaker {
            sim_rng: self.sim_rng.clone(),
            findings: self.findings.clone(),
            proxies: self.all.clone(),
            caught_up: self.caught_up.clone(),
        }
    }

    /// Has the managers be asked over their connections.
    pub(super) fn request_maps(&mut self) {
        self.map_requests = 1;
    }

    pub(super) fn client(&self, number: usize) -> Client {
        Client {
            sim_rng: self.sim_rng.clone(),
            findings: self.findings.clone(),
            proxy: self.all[number].clone(),
            bucket: self.bucket.clone(),
            remakes: self.remakes,
            number,
            calls: self.calls.clone(),
        }
    }

    /// Has clients call until each has made its calls.
    pub(super) async fn serve_clients(&self) {
        let mut clients = JoinSet::new();
        if self.makes_buckets {
            clients.spawn(self.bucket_maker().run());
        }
        for number in 0..self.all.len() {
            for _ in 0..1 + self.sim_rng.below(3) {
                clients.spawn(self.client(number).run());
            }
        }
        while let Some(ended) = clients.join_next().await {
            if let Err(panic) = ended {
                self.findings.violated(format!("a client: {panic}"));
            }
        }
    }

    /// Has every key put through each, when nothing fails any more.
    pub(super) async fn put_all(&self) {
        for number in 0..self.all.len() {
            self.client(number).put_all().await;
        }
    }

    /// Has every key read through each, when nothing fails any more.
    pub(super) async fn read_all(&self) {
        for number in 0..self.all.len() {
            self.client(number).read_all().await;
        }
    }

    /// The things that some proxies still hold or wait for.
    pub(super) fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (number, proxy) in self.all.iter().enumerate() {
            let away = &proxy.access;
            let orphans = ORPHANS_MAX - away.orphans.available_permits();
            let stragglers = STRAGGLERS_KIB_MAX - away.stragglers.available_permits();
            let (requests, owed) = (proxy.requests.finished().1.len(), proxy.reads().1);
            let waits = self.endpoints[number].metrics().in_flight.get();
            let waits = waits.saturating_sub(self.map_requests);
            let counts = [orphans as u64, stragglers as u64, requests as u64, owed, waits];
            if counts != [0; 5] {
                left.push(format!(
                    "proxy {number}: orphans, stragglers, requests, reads, calls {counts:?}"
                ));
            }
        }
        left
    }

    /// Adds what calls and counters say.
    pub(super) fn tally(&self, ran: &mut Ran) {
        let calls = self.calls.lock();
        if let Err(why) = calls.history.check() {
            ran.violations.push(why);
        }
        let sum = |counter: fn(&ProxyCounters) -> &AtomicU64| {
            let of = |proxy: &Arc<ClusterProxy>| counter(proxy.counters()).load(Ordering::Relaxed);
            self.all.iter().map(of).sum()
        };
        (ran.calls, ran.done, ran.longest) = (calls.asked, calls.done, calls.longest);
        ran.buckets_deleted = calls.buckets_deleted;
        ran.buckets_caught_up = self.caught_up.load(Ordering::Relaxed);
        ran.retries = sum(|counters| &counters.retries);
        ran.begun_anew = sum(|counters| &counters.begun_anew);
        ran.hedged = sum(|counters| &counters.reads_hedged);
        ran.joined = sum(|counters| &counters.reads_joined);
        ran.located = sum(|counters| &counters.located_reads);
        ran.located_used = sum(|counters| &counters.located_reads_used);
        ran.mismatches = sum(|counters| &counters.mismatches);
        ran.lost_sessions = sum(|counters| &counters.lost_sessions);
    }
}
