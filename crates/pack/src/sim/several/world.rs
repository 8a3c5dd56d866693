//! Runs the events of a seed, and compares what workers show.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_env::{SeededRng, SimDisk};
use larder_objects::ObjectError;
use larder_types::codec::decode;
use larder_types::limits::SUM_BYTES;
use larder_types::rows::parse_keyed;
use larder_types::{Attributes, BucketName, Condition, ETag, HybridClock, ObjectKey, ServerId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::machine::{KEPT, Machine};
use crate::commit::command::{Body, Command, Description, Done, Target};
use crate::commit::policy::Packing;
use crate::commit::queue::{Answer, Request};
use crate::format::entry::Content;
use crate::format::rows::PackedVersion;
use crate::format::sums::BodySums;
use crate::format::upload_unit::UploadUnit;
use crate::ids::{BlobId, WorkerId};
use crate::index::Index;
use crate::peers::feed::FeedUpdate;
use crate::peers::feed::places::FeedQuota;
use crate::peers::feed::wire::{FeedReply, FeedRequest, Refusal};
use crate::peers::hidden;
use crate::peers::view::Item;
use crate::sim::check::{check_counts, ended_bundles};
use crate::sim::process::{poll, sizes};
use crate::sim::world::{bucket, bytes_of};
use crate::sim::{AHEAD_MS, SimStore};

/// Workers.
const MACHINES: u64 = 3;
/// Keys that clients use.
pub(super) const KEYS: u64 = 5;
/// Steps of what goes on by itself that follow each other at a time.
const POLLS: u64 = 8;
/// Steps for which a list may not show what is there.
const LATE_STEPS_MAX: u64 = 60;
/// Rounds of all machines after which nothing is left to do.
const ROUNDS_MAX: u64 = 60;
/// Time from step to step.
const STEP: Duration = Duration::from_secs(5);

const _: () = assert!(
    LATE_STEPS_MAX * STEP.as_secs() < KEPT.as_secs() - KEPT.as_secs() / 3,
    "a list shows what is there before what it replaced may go"
);

/// Decides which of two versions counts: clock and worker.
type Rank = (HybridClock, WorkerId);

/// A put or delete that was answered.
#[derive(Debug, Clone)]
pub(super) struct Answered {
    rank: Rank,
    pub(super) value: Option<u64>,
    blob: BlobId,
    is_lost: bool,
}

/// A command that was not answered yet.
struct Pending {
    machine: usize,
    answer: oneshot::Receiver<Answer>,
    key: String,
    value: Option<u64>,
}

/// The newest that a worker has shown of a key.
#[derive(Debug, Clone, Copy)]
struct Shown {
    rank: Rank,
    is_tombstone: bool,
}

/// Everything there is.
pub(super) struct World {
    pub(super) rng: SeededRng,
    pub(super) store: Arc<SimStore>,
    pub(super) machines: Vec<Machine>,
    history: BTreeMap<String, Vec<Answered>>,
    pending: Vec<Pending>,
    shown: Vec<BTreeMap<String, Shown>>,
    /// Times at which changes were lost.
    lost_at: BTreeMap<Rank, Instant>,
    values: u64,
    /// Directories lost.
    pub(super) losses: u64,
    /// Changes that were lost with them.
    pub(super) lost: u64,
    /// Changes that were heard before they were in the bucket.
    pub(super) received: u64,
    /// Reads of bundles that waited at another worker.
    pub(super) bundled: u64,
}

impl World {
    pub(super) async fn new(seed: u64) -> Self {
        let mut rng = SeededRng::new(seed);
        let store = SimStore::new(rng.next_u64());
        store.set_calm(true);
        let machines = (0..MACHINES).map(|number| Machine::new(number, rng.next_u64())).collect();
        let mut world = Self {
            rng,
            store,
            machines,
            history: BTreeMap::new(),
            pending: Vec::new(),
            shown: vec![BTreeMap::new(); MACHINES as usize],
            lost_at: BTreeMap::new(),
            values: 0,
            losses: 0,
            lost: 0,
            received: 0,
            bundled: 0,
        };
        for at in 0..world.machines.len() {
            world.at(at);
            let store = world.store.clone();
            world.machines[at].claim(&store).await;
            let packing = world.policy();
            world.machines[at].start(&store, packing).await;
            let tombstones = hidden::tombstones(&bucket());
            let of = Some(bucket().as_str().to_owned());
            for (name, location) in [(hidden::buckets(), None), (bucket(), None), (tombstones, of)]
            {
                world.push(at, Command::MakeBucket { name, location }, None);
                world.commit(at).await;
            }
            world.until_uploaded(at).await;
        }
        world.store.set_calm(false);
        world
    }

    pub(super) async fn run(&mut self, steps: u64) {
        for step in 0..steps {
            // Later than a worker may be without having seen the bucket no list may be.
            if step % LATE_STEPS_MAX == 0 {
                self.store.catch_up();
            }
            let at = self.rng.below(MACHINES) as usize;
            self.at(at);
            self.step(at).await;
            self.check(at);
            self.read(at).await;
            tokio::time::advance(STEP).await;
        }
        self.heal().await;
    }

    /// Sets the clock to that of this machine, on which the next thing happens.
    fn at(&self, at: usize) {
        AHEAD_MS.set(self.machines[at].ahead_ms);
    }

    async fn step(&mut self, at: usize) {
        match self.rng.below(200) {
            0..40 => self.ask(at),
            40..85 => self.commit(at).await,
            85..105 => self.process(at).upload(),
            105..135 => (0..POLLS).for_each(|_| drop(self.process(at).refresh())),
            135..150 => (0..POLLS).for_each(|_| drop(self.process(at).version_gc())),
            150..160 => (0..POLLS).for_each(|_| drop(self.process(at).run_maintenance())),
            160..184 => self.receive_from_another(at),
            184..190 => self.seal(at),
            190..193 => self.process(at).flush_index(),
            193 => drop(self.store.deliver_one_late().await),
            194 | 195 => self.store.catch_up(),
            196 => self.end(at, |disk| disk.kill()).await,
            197 => self.end(at, |disk| disk.crash()).await,
            198 if self.rng.one_in(3) => self.lose_directory(at).await,
            _ => {}
        }
    }

    fn process(&mut self, at: usize) -> &mut crate::sim::process::Process {
        self.machines[at].process.as_mut().expect("a process runs")
    }

    /// A client puts or deletes.
    fn ask(&mut self, at: usize) {
        let key = format!("k{}", self.rng.below(KEYS));
        let target = Target { bucket: bucket(), key: ObjectKey::new(&key).unwrap() };
        let condition = Condition::default();
        if self.rng.one_in(3) {
            let tombstones = hidden::tombstones(&bucket());
            return self.push(
                at,
                Command::PutTombstone { target, tombstones, condition },
                Some((key, None)),
            );
        }
        self.values += 1;
        let value = self.values;
        let pieces = vec![Bytes::from(bytes_of(value))];
        let body = Body::Packed { sums: BodySums::of(value, SUM_BYTES, &pieces), pieces };
        let etag = ETag::Md5((u128::from(value) << 64).to_le_bytes());
        let description = Description { etag, checksum: None, attributes: Attributes::default() };
        let command = Command::Put { target, description, condition, body };
        self.push(at, command, Some((key, Some(value))));
    }

    fn push(&mut self, machine: usize, command: Command, of: Option<(String, Option<u64>)>) {
        let (reply, answer) = oneshot::channel();
        let request = Request::Change { command: Box::new(command), reply };
        match self.process(machine).queue.push(request) {
            Ok(()) => {}
            Err(ObjectError::SlowDown) => return,
            Err(error) => panic!("a queue is closed: {error}"),
        }
        let pending = of.map(|(key, value)| Pending { machine, answer, key, value });
        self.pending.extend(pending);
    }

    fn seal(&mut self, at: usize) {
        let (reply, _nobody_waits) = oneshot::channel();
        self.process(at).queue.push(Request::Seal { reply }).unwrap();
    }

    /// The committer does what waits first; clients hear of it.
    async fn commit(&mut self, at: usize) {
        let committed = self.process(at).commit();
        self.answers(at);
        if committed.is_err() {
            self.end(at, |_| {}).await;
        }
    }

    fn answers(&mut self, at: usize) {
        let mut answered = Vec::new();
        self.pending.retain_mut(|pending| {
            if pending.machine != at {
                return true;
            }
            match pending.answer.try_recv() {
                Ok(Ok((done, _))) => {
                    answered.push((pending.key.clone(), pending.value, done));
                    false
                }
                Ok(Err(_refused)) => false,
                Err(_) => true,
            }
        });
        for (key, value, done) in answered {
            let own = self.own(at, &key, value.is_none()).expect("what was answered is there");
            match (value, done) {
                (Some(value), Done::Put(done)) => {
                    assert_eq!((own.value, own.rank.0), (Some(value), done.clock));
                }
                (None, Done::Nothing) => {}
                (_, done) => panic!("answered as {done:?}"),
            }
            let shown = Shown { rank: own.rank, is_tombstone: value.is_none() };
            if let Some(before) = self.shown[at].insert(key.clone(), shown) {
                assert!(before.rank < own.rank, "{key} is put below what was shown: {before:?}");
            }
            self.history.entry(key).or_default().push(own);
        }
    }

    /// The put or delete that a worker itself has of a key: its version, or its tombstone.
    fn own(&self, at: usize, key: &str, is_tombstone: bool) -> Option<Answered> {
        let index = &self.machines[at].process.as_ref()?.index;
        let name = if is_tombstone { hidden::tombstones(&bucket()) } else { bucket() };
        let key = ObjectKey::new(key).unwrap();
        let version = index.version(index.bucket_id(&name)?, &key).unwrap()?;
        Some(shown_by(&version, is_tombstone))
    }

    /// A worker is told what another has not uploaded; perhaps only a part of it comes.
    fn receive_from_another(&mut self, at: usize) {
        let from = self.rng.below(MACHINES) as usize;
        let teller = self.machines[from].process.as_ref().expect("a process runs");
        let name = self.machines[from].name.clone();
        let others = self.machines[at].others();
        let Some(peer) = others.peers().into_iter().find(|peer| peer.name == name) else { return };
        let Some(known) = peer.known().filter(|of| of.worker == teller.worker) else { return };
        let feed = teller.feed();
        let ask = FeedRequest::Changes { worker: known.worker, asked: known.asks().unwrap() };
        let caller = feed.places.call(ServerId(1), FeedQuota::Bodies).expect("nobody else calls");
        let mut answering = std::pin::pin!(feed.answer(ask, caller));
        // If there is nothing to tell it waits, and nobody does so here.
        let Some(answer) = poll(answering.as_mut()) else { return };
        let (reply, payload) = answer.expect("nobody else has memory");
        if reply == FeedReply::Refused(Refusal::Diverged) {
            return;
        }
        let (mut received, _) = FeedUpdate::read(reply, payload).unwrap();
        if let FeedUpdate::Entries { bytes, is_whole, .. } = &mut received {
            self.received += u64::from(!bytes.is_empty());
            if self.rng.one_in(3) {
                bytes.truncate(self.rng.below(bytes.len() as u64 + 1) as usize);
                *is_whole = false;
            }
        }
        // A look that is under way goes before it, and answers of the store that do not come are no matter: it is told
        // again, or found in the bucket.
        let mut taking = std::pin::pin!(others.take_received(&peer, &known, received));
        let _again = (0..POLLS).find_map(|_| poll(taking.as_mut()));
    }

    async fn end(&mut self, at: usize, how: impl Fn(&SimDisk)) {
        self.machines[at].stop(how);
        self.answers(at);
        let (gone, rest): (Vec<_>, Vec<_>) =
            self.pending.drain(..).partition(|pending| pending.machine == at);
        self.pending = rest;
        self.start(at).await;
        for Pending { key, value, .. } in gone {
            // It is not known if it was taken: it was, if it is there.
            let Some(found) = self.own(at, &key, value.is_none()) else { continue };
            let history = self.history.entry(key).or_default();
            let is_new = history.iter().all(|answered| answered.rank != found.rank);
            if is_new && found.value == value {
                history.push(found);
            }
        }
        self.check(at);
    }

    async fn start(&mut self, at: usize) {
        let store = self.store.clone();
        store.set_calm(true);
        let packing = self.policy();
        self.machines[at].start(&store, packing).await;
        store.set_calm(false);
    }

    /// The policy by which bodies lie together at a worker that starts now.
    fn policy(&mut self) -> Packing {
        if self.rng.one_in(3) { Packing::Arrival } else { sizes() }
    }

    /// A machine is gone; a new one takes its worker over.
    async fn lose_directory(&mut self, at: usize) {
        self.machines[at].stop(|disk| disk.crash());
        self.pending.retain(|pending| pending.machine != at);
        let (old, prefix) = (self.machines[at].worker, self.machines[at].prefix());
        let last = self.store.last_that_counts(&prefix, old).await;
        for answered in self.history.values_mut().flatten() {
            if answered.blob.worker == old && answered.blob.seq > last {
                answered.is_lost = true;
                self.lost_at.entry(answered.rank).or_insert_with(Instant::now);
                self.lost += 1;
            }
        }
        self.shown[at].clear();
        let is_lost = |key: &String, shown: &Shown| {
            self.history[key].iter().any(|answered| answered.is_lost && answered.rank == shown.rank)
        };
        for shown in &mut self.shown {
            shown.retain(|key, shown| !is_lost(key, shown));
        }
        let (store, seed) = (self.store.clone(), self.rng.next_u64());
        self.machines[at].claim(&store).await;
        self.machines[at].lose(seed);
        self.losses += 1;
        self.start(at).await;
    }

    /// Checks that a worker shows nothing older of a key than it showed before.
    fn check(&mut self, at: usize) {
        if self.machines[at].others().fresh().is_err() {
            return;
        }
        for number in 0..KEYS {
            let key = format!("k{number}");
            let newest = self.items(at, &key).into_iter().max_by_key(Item::rank);
            let before = self.shown[at].get(&key).copied();
            let name = &self.machines[at].name;
            let Some(item) = newest else {
                // It may have been deleted, and the tombstone not be needed any more, while this worker answered nobody.
                let is_deleted = |shown: Shown| {
                    let history = self.history.get(&key).into_iter().flatten();
                    let mut later =
                        history.filter(|answered| answered.rank > shown.rank && !answered.is_lost);
                    shown.is_tombstone || later.any(|answered| answered.value.is_none())
                };
                assert!(
                    before.is_none_or(is_deleted),
                    "{name} shows {key} no longer, as {before:?}"
                );
                continue;
            };
            let now = shown_by(&item.version, item.is_tombstone);
            let history = self.history.get(&key).into_iter().flatten();
            let known = history.into_iter().find(|answered| answered.rank == now.rank);
            let known = known.unwrap_or_else(|| panic!("{name} shows {key} as nobody put it"));
            assert_eq!(known.value, now.value);
            if known.is_lost {
                let ago = self.lost_at[&known.rank].elapsed();
                assert!(ago < KEPT, "{name} shows {key} on, which was lost {ago:?} ago");
                continue;
            }
            if let Some(before) = before {
                assert!(before.rank <= now.rank, "{name} shows {key} older than before");
            }
            self.shown[at].insert(key, Shown { rank: now.rank, is_tombstone: item.is_tombstone });
        }
    }

    pub(super) fn items(&self, at: usize, key: &str) -> Vec<Item> {
        let process = self.machines[at].process.as_ref().expect("a process runs");
        let key = ObjectKey::new(key).unwrap();
        self.machines[at].others().items(&process.index, &bucket(), &key).unwrap()
    }

    async fn until_uploaded(&mut self, at: usize) {
        self.seal(at);
        for _ in 0..1000 {
            self.commit(at).await;
            self.process(at).upload();
            tokio::time::advance(Duration::from_secs(31)).await;
            if self.process(at).spool.waiting() == 0 {
                return;
            }
        }
        panic!("blobs wait for ever");
    }

    /// Nothing fails any more: all must show the same, and nothing else be left.
    async fn heal(&mut self) {
        for at in 0..self.machines.len() {
            self.at(at);
            self.end(at, |disk| disk.kill()).await;
        }
        self.store.set_calm(true);
        while self.store.deliver_one_late().await {}
        self.store.catch_up();
        let mut left = BTreeSet::new();
        for round in 0..ROUNDS_MAX {
            for at in 0..self.machines.len() {
                self.at(at);
                self.rest(at).await;
            }
            if round > 5 {
                self.check_learned();
            }
            left = self.left();
            if left == self.expected() && round > 3 {
                break;
            }
        }
        assert_eq!(left, self.expected(), "what is left in the indexes of all");
        for at in 0..self.machines.len() {
            self.check(at);
            self.compare(at).await;
            check_counts(&self.process(at).index);
            for known in self.machines[at].others().known() {
                check_counts(known.index());
                assert_eq!(ended_bundles(known.index()), 0, "rows of bundles that may be gone");
            }
        }
    }

    /// Everybody shows what counts, once all have looked after everything was uploaded.
    fn check_learned(&self) {
        let expected = self.newest();
        for at in 0..self.machines.len() {
            for key in self.history.keys() {
                let newest = self.items(at, key).into_iter().max_by_key(Item::rank);
                let now = newest.map(|item| shown_by(&item.version, item.is_tombstone));
                let value = expected.get(key).and_then(|answered| answered.value);
                let name = &self.machines[at].name;
                assert_eq!(
                    now.and_then(|answered| answered.value),
                    value,
                    "{key} as {name} shows it"
                );
            }
        }
    }

    /// A machine does all that it has to do.
    async fn rest(&mut self, at: usize) {
        for _ in 0..60 {
            if self.process(at).refresh().is_some() {
                break;
            }
        }
        let mut swept = false;
        for _ in 0..60 {
            self.commit(at).await;
            swept = swept || self.process(at).version_gc().is_some();
            drop(self.process(at).run_maintenance());
        }
        self.until_uploaded(at).await;
        tokio::time::advance(Duration::from_secs(60)).await;
    }

    /// The newest of each key that was answered and not lost: it counts.
    fn newest(&self) -> BTreeMap<String, &Answered> {
        let newest = |history: &'_ Vec<Answered>| -> Option<usize> {
            let left = history.iter().enumerate().filter(|(_, answered)| !answered.is_lost);
            left.max_by_key(|(_, answered)| answered.rank).map(|(at, _)| at)
        };
        let keys = self.history.iter();
        keys.filter_map(|(key, of)| Some((key.clone(), &of[newest(of)?]))).collect()
    }

    fn expected(&self) -> BTreeSet<(String, Rank)> {
        let live = self.newest().into_iter().filter(|(_, answered)| answered.value.is_some());
        live.map(|(key, answered)| (key, answered.rank)).collect()
    }

    /// Every version and tombstone of clients in the indexes of all workers.
    fn left(&self) -> BTreeSet<(String, Rank)> {
        let mut left = BTreeSet::new();
        for machine in &self.machines {
            let index = &machine.process.as_ref().expect("a process runs").index;
            for name in [bucket(), hidden::tombstones(&bucket())] {
                visit(index, &name, &mut |key, version| {
                    left.insert((key, shown_by(&version, false).rank));
                });
            }
        }
        left
    }

    /// A worker shows what counts, every byte of it.
    async fn compare(&mut self, at: usize) {
        let expected = self.newest();
        let expected = |key: &str| expected.get(key).and_then(|answered| answered.value);
        let values: Vec<_> = (0..KEYS).map(|number| expected(&format!("k{number}"))).collect();
        for (number, value) in values.into_iter().enumerate() {
            let key = format!("k{number}");
            let name = self.machines[at].name.clone();
            let found = self.shows(at, &key);
            let shown = found.as_ref().and_then(|item| shown_by(&item.version, false).value);
            assert_eq!(shown, value, "{key} at {name}");
            let Some(item) = found else { continue };
            assert!(self.read_item(at, &item).await, "{name} reads {key}");
        }
    }
}

pub(super) fn shown_by(version: &PackedVersion, is_tombstone: bool) -> Answered {
    let ETag::Md5(etag) = version.metax.etag else { panic!("no parts here") };
    let value = (u128::from_le_bytes(etag) >> 64) as u64;
    let rank = (version.metax.clock, WorkerId(version.op.view.0));
    let Content::Run(place) = &version.content else { panic!("no parts here") };
    let (blob, _) = UploadUnit::of(place.container).expect("nothing is large here");
    Answered { rank, value: (!is_tombstone).then_some(value), blob, is_lost: false }
}

fn visit(index: &Index, name: &BucketName, visit: &mut dyn FnMut(String, PackedVersion)) {
    let Some(id) = index.bucket_id(name) else { return };
    let rows = larder_types::rows::bucket(b'V', id);
    index
        .visit(&rows, &mut |row, value| {
            let (_, key, _) = parse_keyed(row).expect("rows name keys");
            visit(key.as_str().to_owned(), decode::<PackedVersion>("a version", value)?);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
}
