//! A single node: a store as it is, with all four roles in one process, on a simulated disk that loses its power, fails and is
//! full. It begins anew each time, and clients of the run before are gone.
//!
//! # Invariants
//!
//! Those of the simulation with stand-ins (`sim/mod.rs`), and
//!
//! 1. A start fails where its disk fails, and nowhere else; so does a run.
//! 2. Whatever ended a run, an inspection of what it left behind finds no fault.
//! 3. No read breaks off because its object was replaced, unless space was short.
//! 4. At rest the counts of buckets are those of their rows, and once all objects are deleted no block is in use.

mod node;
mod rot;
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_objects::{ListItem, ListRequest, Objects};
use larder_types::{BucketName, Condition};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::super::clients::{CALL_MAX, Calls, Client};
use super::super::proxies::Findings;
use super::super::shapes::{MetShapes, Shapes};
use super::super::{QUIESCENCE_TIME, Ran, SimRng};
use super::faults::ends;
use super::places::Ends;
use super::with_threads;
use crate::Proxy;
use crate::blocking;
use crate::planted::Bug;
use crate::proxy::{coalesce_pieces, expire_uploads};
use node::{Node, Running};

/// Runs of the store of a seed, before the last.
const RUNS: u64 = 6;
/// Calls of one client that asks for objects of every shape, in each run.
const SHAPES: u64 = 25;

/// The events that a seed met, beside the calls of its clients.
#[derive(Debug, Default)]
struct Coverage {
    /// Starts that failed.
    cut_short: u64,
    runs: u64,
    /// Times that it was looked at while it stood still.
    inspected: u64,
    /// Of those with bits that had rotted, those that found it.
    rotten: u64,
    walks: u64,
    moved: u64,
    verified: u64,
    windows: u64,
    shapes: MetShapes,
}

impl Coverage {
    /// Counts another seed in.
    fn add(&mut self, other: &Self) {
        self.cut_short += other.cut_short;
        self.runs += other.runs;
        self.inspected += other.inspected;
        self.rotten += other.rotten;
        self.walks += other.walks;
        self.moved += other.moved;
        self.verified += other.verified;
        self.windows += other.windows;
        self.shapes.add(&other.shapes);
    }
}

/// A store and its clients.
struct Simulation {
    sim_rng: SimRng,
    findings: Arc<Findings>,
    node: Arc<Node>,
    bucket: BucketName,
    calls: Arc<Mutex<Calls>>,
    shapes: Arc<Shapes>,
    coverage: Mutex<Coverage>,
}

/// Runs one seed.
fn run(seed: u64, bug: Option<Bug>) -> (Ran, Coverage) {
    let ((mut ran, coverage), violations) = with_threads(seed, bug, async |began| {
        let simulation = Simulation::new(seed);
        simulation.run().await;
        simulation.reported(began)
    });
    ran.violations.extend(violations);
    (ran, coverage)
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let (sim_rng, findings) = (SimRng::new(seed), Arc::<Findings>::default());
        // Else volumes and their number are so small that space runs out.
        let is_large = sim_rng.one_in(2);
        let node = Node::new(&sim_rng, &findings, is_large);
        let shapes = Shapes::new(&sim_rng, &findings, is_large);
        let bucket = BucketName::new("bucket").expect("it is a name");
        let (calls, coverage) = (Arc::default(), Mutex::default());
        Self { sim_rng, findings, node, bucket, calls, shapes, coverage }
    }

    async fn run(&self) {
        for _ in 0..RUNS {
            // It may be cut short.
            if let Some(running) = self.node.begin(self.sim_rng.one_in(6)).await {
                self.serve(running).await;
            }
            self.inspect();
            sleep(self.sim_rng.ms(3000)).await;
        }
        let Some(running) = self.node.begin(false).await else { return };
        self.quiesce(&running).await;
        self.judge(&running).await;
        self.end(running, Ends::Stopped).await;
        self.inspect();
        let Some(running) = self.node.begin(false).await else { return };
        self.quiesce(&running).await;
        self.client(&running).read_all().await;
        self.shapes.judge(&**running.proxy()).await;
        if self.sim_rng.one_in(2) {
            self.end(running, Ends::Stopped).await;
            return self.rot().await;
        }
        self.empty(&running).await;
        self.end(running, Ends::Stopped).await;
        let Some(running) = self.node.begin(false).await else { return };
        self.free_space_returned(&running).await;
        self.end(running, Ends::Stopped).await;
        self.inspect();
    }

    fn client(&self, running: &Running) -> Client<Proxy> {
        Client {
            sim_rng: self.sim_rng.clone(),
            findings: self.findings.clone(),
            proxy: running.proxy().clone(),
            bucket: self.bucket.clone(),
            remakes: self.sim_rng.one_in(3),
            number: 0,
            calls: self.calls.clone(),
        }
    }

    /// Has clients call until all have made their calls, or the run ends before.
    async fn serve(&self, running: Running) {
        let (sim_rng, proxy) = (&self.sim_rng, running.proxy().clone());
        let cut_before = self.shapes.coverage().cut;
        let mut clients = JoinSet::new();
        clients.spawn(coalesce_pieces(proxy.clone()));
        clients.spawn(expire_uploads(proxy.clone(), Duration::from_secs(10)));
        let workers = 2 + sim_rng.below(3);
        for _ in 0..workers {
            let client = self.client(&running);
            let bucket = self.bucket.clone();
            let shapes = self.shapes.clone().run_client(proxy.clone(), SHAPES);
            let both = sim_rng.one_in(2);
            clients.spawn(async move {
                // Another may have made it.
                drop(client.proxy.create_bucket(&bucket, None).await);
                if both {
                    shapes.await;
                } else {
                    client.run().await;
                }
            });
        }
        drop(proxy);
        let (ends, is_faulty) = (ends(sim_rng), sim_rng.one_in(4));
        let longest = if sim_rng.one_in(2) { 8_000 } else { 90_000 };
        let over = Instant::now() + Duration::from_millis(500) + sim_rng.ms(longest);
        let mut ended = 0;
        while Instant::now() < over && ended < workers && !running.has_given_up() {
            let pause = sim_rng.ms(2000);
            tokio::select! {
                biased;
                Some(end) = clients.join_next() => {
                    ended += 1;
                    end.unwrap_or_else(|panic| self.findings.violated(format!("a client: {panic}")));
                }
                () = sleep(pause) => self.node.inject_faults(&running).await,
            }
        }
        if sim_rng.one_in(3) && !running.has_given_up() {
            // Work in the background goes on.
            sleep(sim_rng.ms(30_000)).await;
        }
        if is_faulty {
            self.node.break_disk(&running).await;
        }
        clients.shutdown().await;
        let cut = self.shapes.coverage().cut - cut_before;
        if cut > 0 && running.has_paused_all() {
            self.findings.violated(format!("{cut} reads broke off, and space was not short"));
        }
        self.end(running, if is_faulty { Ends::Killed } else { ends }).await;
    }

    async fn end(&self, running: Running, ends: Ends) {
        {
            let (compaction, scrub) = (running.meta().compaction_now(), running.meta().scrub_now());
            let windows = running.proxy().coalesced().windows.load(Ordering::Relaxed);
            let mut coverage = self.coverage.lock();
            coverage.runs += 1;
            coverage.walks += compaction.walks;
            coverage.moved += compaction.chunks;
            coverage.verified += scrub.map_or(0, |scrub| scrub.right);
            coverage.windows += windows;
        }
        self.node.end(running, ends).await;
    }

    fn inspect(&self) {
        let Some(report) = self.node.inspect() else { return };
        self.coverage.lock().inspected += 1;
        if !report.is_sound() {
            self.findings.violated(format!("an inspection finds {report}"));
        }
    }

    /// Waits until nothing is left, and says what is left after all.
    async fn quiesce(&self, running: &Running) {
        let meta = running.meta().clone();
        if !blocking::run(move || meta.await_space()).await.expect("it does not panic") {
            self.findings.violated("what is free is not known".to_owned());
        }
        let deadline = Instant::now() + QUIESCENCE_TIME;
        loop {
            let left = running.left();
            if left.is_empty() {
                return;
            }
            if Instant::now() >= deadline {
                return self.findings.violated(format!("left at rest: {}", left.join(", ")));
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Looks at everything, when nothing fails any more.
    async fn judge(&self, running: &Running) {
        self.shapes.judge(&**running.proxy()).await;
        let client = self.client(running);
        drop(client.proxy.create_bucket(&self.bucket, None).await);
        client.put_all().await;
        client.read_all().await;
        self.check_counts(running).await;
        for wrong in running.misreported() {
            self.findings.violated(wrong);
        }
    }

    /// Objects are counted as they are listed.
    async fn check_counts(&self, running: &Running) {
        let counted = running.meta().bucket_use();
        for record in running.proxy().buckets().unwrap_or_default() {
            let listed = self.listed(running, &record.name).await;
            let count = counted.counts.get(&record.id).map_or((0, 0), |it| (it.objects, it.bytes));
            if Some(count) != listed.as_ref().map(|(keys, bytes)| (keys.len() as u64, *bytes)) {
                let name = &record.name;
                self.findings.violated(format!("{name} has {listed:?}, and is counted {count:?}"));
            }
        }
    }

    /// Keys of a bucket, and the bytes of all.
    async fn listed(
        &self,
        running: &Running,
        bucket: &BucketName,
    ) -> Option<(Vec<larder_types::ObjectKey>, u64)> {
        let (mut keys, mut bytes, mut after) = (Vec::new(), 0, None);
        loop {
            let request = ListRequest { after, max: 100, ..ListRequest::default() };
            let page = timeout(CALL_MAX, running.proxy().list(bucket, request)).await;
            let Ok(Ok(page)) = page else {
                self.findings.violated(format!("{bucket} cannot be listed at rest: {page:?}"));
                return None;
            };
            for item in page.items {
                if let ListItem::Entry(object) = item {
                    bytes += object.metax.size;
                    keys.push(object.key);
                }
            }
            after = keys.last().map(|key| key.as_str().to_owned());
            if !page.truncated {
                return Some((keys, bytes));
            }
        }
    }

    /// Deletes all objects, and ends all uploads.
    async fn empty(&self, running: &Running) {
        let proxy = running.proxy();
        for record in proxy.buckets().unwrap_or_default() {
            let Some((keys, _)) = self.listed(running, &record.name).await else { return };
            for key in keys {
                let deleted = proxy.delete(&record.name, &key, Condition::default()).await;
                if let Err(error) = deleted {
                    self.findings.violated(format!("{key:?} is not deleted at rest: {error}"));
                }
            }
        }
        // Else they go with their bucket.
        if self.sim_rng.one_in(2)
            && let Err(error) = proxy.abort_uploads_before(u64::MAX).await
        {
            self.findings.violated(format!("uploads are not aborted at rest: {error}"));
        }
        self.quiesce(running).await;
        for record in proxy.buckets().unwrap_or_default() {
            if let Err(error) = proxy.delete_bucket(&record.name).await {
                self.findings.violated(format!("{} is not deleted: {error}", record.name));
            }
        }
    }

    /// No block is in use any more: all rows were read anew. What was dropped goes in steps.
    async fn free_space_returned(&self, running: &Running) {
        self.quiesce(running).await;
        let deadline = Instant::now() + QUIESCENCE_TIME;
        while running.used_blocks() > 0 {
            if Instant::now() >= deadline {
                let used = running.used_blocks();
                return self.findings.violated(format!("{used} blocks are in use for nothing"));
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    fn reported(&self, began: Instant) -> (Ran, Coverage) {
        let mut ran =
            Ran { violations: self.findings.all(), took: began.elapsed(), ..Ran::default() };
        let calls = self.calls.lock();
        if let Err(why) = calls.history.check() {
            ran.violations.push(why);
        }
        (ran.calls, ran.done, ran.longest) = (calls.asked, calls.done, calls.longest);
        ran.buckets_deleted = calls.buckets_deleted;
        let mut coverage = std::mem::take(&mut *self.coverage.lock());
        coverage.cut_short = self.node.cut_short();
        coverage.shapes = self.shapes.coverage();
        (ran, coverage)
    }
}
