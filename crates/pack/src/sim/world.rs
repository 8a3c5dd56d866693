//! Runs the events of a seed, and compares what clients were told.

mod bundles;
mod copies;
mod given_up;
mod quiescence;

pub(super) use copies::Outcomes;
use given_up::GivenUp;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_env::{SeededRng, SimDisk};
use larder_kv::SimKv;
use larder_objects::{CompleteOptions, NamedPart, UploadOptions};
use larder_sim::history::CallId;
use larder_types::limits::SUM_BYTES;
use larder_types::{Attributes, BucketName, Condition, ETag, ObjectKey, OpSeq, UploadId};
use tokio::sync::oneshot;

use super::calls::{Calls, key_of};
use super::check::{check_counts, found, places};
use super::model::{Effect, History, Open, State};
use super::process::{Process, Rows, sizes};
use super::store::SimStore;
use crate::backend::Backend;
use crate::backup;
use crate::bugs::{Bug, plant};
use crate::commit::command::{Body, Command, Description, Done, Source, Target};
use crate::commit::queue::{Answer, Request};
use crate::format::entry::{Container, Content};
use crate::format::sums::BodySums;
use crate::gc::maintenance::MaintenanceReport;
use crate::ids::{BlobId, StandaloneId, WorkerId};
use crate::index::Index;
use crate::start::rebuild::Rebuild;

/// Keys that clients use.
const KEYS: u64 = 7;
/// Bytes of the largest value.
const VALUE_BYTES_MAX: u64 = 700;

/// Steps that a process goes on once another one has taken over.
const STEPS_OF_SUPERSEDED: u64 = 40;
/// Steps from one look at everything to the next.
const STEPS_BETWEEN_POLLS: u64 = 16;

/// A command that was not answered yet, and what it does.
struct Pending {
    answer: oneshot::Receiver<Answer>,
    effect: Effect,
    call: Option<CallId>,
}

/// Everything there is.
pub(super) struct World {
    rng: SeededRng,
    store: Arc<SimStore>,
    disk: Arc<SimDisk>,
    rows: Arc<SimKv>,
    process: Option<Process>,
    worker: WorkerId,
    history: History,
    /// Since the directory was new.
    calls: Calls,
    pending: Vec<Pending>,
    /// Of a process that ended: whether they were taken is not known.
    in_doubt: Vec<Effect>,
    values: u64,
    owns: u64,
    pub(super) rebuilds: u64,
    /// The outcomes of copies of the directory, if there are any.
    copies: Option<copies::Outcomes>,
    /// The bug that is planted during each take-over from an older copy.
    older_bug: Option<Bug>,
}

pub(super) fn bucket() -> BucketName {
    BucketName::new("first").unwrap()
}

fn target(key: &str) -> Target {
    Target { bucket: bucket(), key: ObjectKey::new(key).unwrap() }
}

/// The bytes of a value: no two have the same.
pub(super) fn bytes_of(value: u64) -> Vec<u8> {
    let mut rng = SeededRng::new(value);
    let len = 1 + rng.below(VALUE_BYTES_MAX) as usize;
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.resize(8 + len, value as u8);
    bytes
}

fn etag(value: u64) -> ETag {
    ETag::Md5((u128::from(value) << 64 | 7).to_le_bytes())
}

fn description(value: u64) -> Description {
    Description { etag: etag(value), checksum: None, attributes: Attributes::default() }
}

impl World {
    pub(super) async fn new(seed: u64) -> Self {
        let mut rng = SeededRng::new(seed);
        let (store, disk) = (SimStore::new(rng.next_u64()), SimDisk::new(rng.next_u64(), 1 << 30));
        let (rows, worker) = (Arc::<SimKv>::default(), WorkerId(0));
        let (history, pending, in_doubt) = (History::default(), Vec::new(), Vec::new());
        let mut world = Self {
            rng,
            store,
            disk,
            rows,
            process: None,
            worker,
            calls: Calls::of(&history.now, KEYS),
            history,
            pending,
            in_doubt,
            values: 0,
            owns: 0,
            rebuilds: 0,
            copies: None,
            older_bug: None,
        };
        world.claim().await;
        world.start().await;
        world.push(Command::MakeBucket { name: bucket(), location: None }, None);
        world.commit().await;
        // The first blob has the bucket: without it there is nothing to come back to.
        world.seal();
        world.store.set_calm(true);
        world.until_uploaded().await;
        world.store.set_calm(false);
        world
    }

    pub(super) async fn run(&mut self, steps: u64) {
        for step in 0..steps {
            self.step().await;
            if !self.disk.is_up() {
                // The power went while the process wrote that it has a number.
                self.end(|_| {}).await;
            }
            if self.process().owner.status().superseded {
                assert!(self.gives_up_older().await, "the owner is superseded by nobody");
            }
            if step % STEPS_BETWEEN_POLLS == 0 {
                self.refresh().await;
            }
            // Longer than any pause between two tries.
            tokio::time::advance(Duration::from_secs(31)).await;
        }
        self.heal().await;
    }

    async fn step(&mut self) {
        match self.rng.below(200) {
            0..60 => self.ask().await,
            60..110 => self.commit().await,
            110..140 => self.process().upload(),
            140..180 => {
                if let Some(Err(error)) = self.process().run_maintenance() {
                    let is_said = self.process().owner.status().superseded;
                    assert!(!error.is_superseded() || is_said, "it does not stop: {error}");
                }
            }
            180..186 => self.seal(),
            186..190 => {
                self.store.deliver_one_late().await;
            }
            190..192 if self.copies.is_some() => self.be_copied().await,
            190..192 => self.store.catch_up(),
            192..194 => self.process().flush_index(),
            194 => self.disk.power_off_after(1 + self.rng.below(20)),
            195 => self.end(|disk| disk.kill()).await,
            196 => self.end(|disk| disk.crash()).await,
            197 if self.rng.one_in(2) && !self.gives_up_older().await => {
                self.stop(|disk| disk.crash());
                self.rows = Arc::default();
                self.start().await;
            }
            198 if self.rng.one_in(2) => self.lose_directory().await,
            199 if self.rng.one_in(2) => self.be_superseded().await,
            _ => {}
        }
    }

    fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("a process runs")
    }

    fn value(&mut self) -> u64 {
        self.values += 1;
        self.values
    }

    /// A client wants something.
    async fn ask(&mut self) {
        let key = key_of(self.rng.below(KEYS));
        let (now, condition) = (&self.history.now, Condition::default());
        let uploads: Vec<_> =
            now.uploads.iter().map(|(upload, open)| (*upload, open.clone())).collect();
        let upload = match uploads.len() as u64 {
            0 => None,
            some => Some(uploads[self.rng.below(some) as usize].clone()),
        };
        let (command, effect) = match (self.rng.below(20), upload) {
            (0..8, _) => {
                let value = self.value();
                let (target, body) = (target(&key), packed(value));
                let description = description(value);
                let effect = Effect::Set { key, values: vec![value] };
                (Command::Put { target, description, condition, body }, effect)
            }
            (8, _) => {
                let value = self.value();
                let body = self.own(value).await;
                let (target, description) = (target(&key), description(value));
                let effect = Effect::Set { key, values: vec![value] };
                (Command::Put { target, description, condition, body }, effect)
            }
            (9..13, _) => {
                let target = target(&key);
                (Command::Delete { target, condition }, Effect::Remove { key })
            }
            (13 | 14, _) => match self.link(&key) {
                Some(linked) => linked,
                None => return,
            },
            (15, _) => {
                let options = UploadOptions::default();
                let command = Command::BeginUpload { target: target(&key), options };
                (command, Effect::Begin { upload: None, key })
            }
            (16 | 17, Some((upload, open))) => {
                let (number, value) = (1 + self.rng.below(3) as u16, self.value());
                let body = if self.rng.one_in(4) { self.own(value).await } else { packed(value) };
                let (target, description) = (target(&open.key), description(value));
                let command = Command::PutPart { target, upload, number, description, body };
                (command, Effect::Part { upload, number, value })
            }
            (18, Some((upload, open))) => match self.complete(upload, &open) {
                Some(completed) => completed,
                None => return,
            },
            (19, Some((upload, open))) => {
                let command = Command::Abort { target: target(&open.key), upload };
                (command, Effect::Abort { upload })
            }
            _ => return,
        };
        self.push(command, Some(effect));
    }

    fn link(&mut self, to: &str) -> Option<(Command, Effect)> {
        let from = key_of(self.rng.below(KEYS));
        let values = self.history.now.objects.get(&from)?.clone();
        let source = target(&from);
        let index = &self.process.as_ref()?.index;
        let id = index.bucket_id(&bucket())?;
        let version = index.version(id, &source.key).unwrap()?;
        let [value] = values[..] else { return None };
        if matches!(version.content, Content::Parts { .. }) || from == to {
            return None;
        }
        let source = Source { bucket: id, target: source, op: version.op };
        let (description, condition) = (description(value), Condition::default());
        let command = Command::Link { target: target(to), description, condition, source };
        Some((command, Effect::Set { key: to.to_owned(), values }))
    }

    fn complete(&mut self, upload: UploadId, open: &Open) -> Option<(Command, Effect)> {
        // One of them: all but the last would have to be large.
        let chosen = self.rng.below(open.parts.len().max(1) as u64) as usize;
        let (number, value) = open.parts.iter().nth(chosen)?;
        let part = NamedPart { number: *number, etag: etag(*value).text(), checksum: None };
        let (values, parts) = (vec![*value], vec![part]);
        let options = CompleteOptions { parts, ..CompleteOptions::default() };
        let command = Command::Complete { target: target(&open.key), upload, options };
        Some((command, Effect::Complete { upload, key: open.key.clone(), values }))
    }

    /// A body that is an object of its own already.
    async fn own(&mut self, value: u64) -> Body {
        self.owns += 1;
        let id = StandaloneId { worker: self.worker, run: 1, number: self.owns };
        let under_way = self.process().under_way.enter(id);
        let bytes = Bytes::from(bytes_of(value));
        let sums = BodySums::of(value, SUM_BYTES, std::slice::from_ref(&bytes));
        self.store.set(&id.path(), bytes).await;
        Body::There { place: sums.placed(Container::Own(id), 0), _under_way: under_way }
    }

    fn push(&mut self, command: Command, effect: Option<Effect>) {
        let (reply, answer) = oneshot::channel();
        self.process().queue.push(Request::Change { command: Box::new(command), reply }).unwrap();
        let Some(effect) = effect else { return };
        let call = self.calls.begin(&effect);
        self.pending.push(Pending { answer, effect, call });
    }

    /// A change, with which this process begins a blob.
    fn touch(&mut self) {
        let (key, value) = (key_of(0), self.value());
        let (target, condition) = (target(&key), Condition::default());
        let (description, body) = (description(value), packed(value));
        let command = Command::Put { target, description, condition, body };
        self.push(command, Some(Effect::Set { key, values: vec![value] }));
    }

    fn seal(&mut self) {
        let (reply, _nobody_waits) = oneshot::channel();
        self.process().queue.push(Request::Seal { reply }).unwrap();
    }

    /// The committer does what waits first; clients hear of it.
    async fn commit(&mut self) {
        let committed = self.process().commit();
        self.hear();
        if committed.is_err() {
            // The power went.
            self.end(|_| {}).await;
        }
    }

    fn hear(&mut self) {
        let worker = self.worker;
        let (history, calls) = (&mut self.history, &mut self.calls);
        self.pending.retain_mut(|pending| match pending.answer.try_recv() {
            Ok(Ok((done, seq))) => {
                if let (Effect::Begin { upload, .. }, Done::Upload(id)) =
                    (&mut pending.effect, done)
                {
                    *upload = Some(id);
                }
                history.push(BlobId { worker, seq }, pending.effect.clone());
                calls.end(pending.call, true);
                false
            }
            Ok(Err(_refused)) => {
                calls.end(pending.call, false);
                false
            }
            Err(oneshot::error::TryRecvError::Empty) => true,
            // A process that cannot go on: what it was about to do is in doubt.
            Err(oneshot::error::TryRecvError::Closed) => true,
        });
    }

    /// Returns two numbers of changes after a put for which the disk has no room. The first is the
    /// last that an index backup would name. The second is the last that a process knows which
    /// starts then.
    pub(super) async fn numbers_after_a_full_disk(&mut self) -> (OpSeq, OpSeq) {
        let value = self.value();
        let (target, description) = (target("k0"), description(value));
        let command = Command::Put {
            target,
            description,
            condition: Condition::default(),
            body: packed(value),
        };
        self.disk.set_capacity(0);
        self.push(command, Some(Effect::Set { key: "k0".to_owned(), values: vec![value] }));
        self.commit().await;
        assert!(self.pending.is_empty() && self.history.now.objects.is_empty(), "it is refused");
        self.disk.set_capacity(1 << 30);
        let named = self.number();
        self.end(|disk| disk.crash()).await;
        (named, self.number())
    }

    fn number(&mut self) -> OpSeq {
        let (reply, mut answer) = oneshot::channel();
        self.process().queue.push(Request::Snapshot { reply }).unwrap();
        self.process().commit().unwrap();
        answer.try_recv().unwrap().at.seq
    }

    /// The process ends, and another one starts, unless it would be refused.
    async fn end(&mut self, how: impl Fn(&SimDisk)) {
        if self.gives_up_older().await {
            return;
        }
        self.stop(how);
        self.start().await;
    }

    fn stop(&mut self, how: impl Fn(&SimDisk)) {
        how(&self.disk);
        self.process = None;
        self.hear();
        self.in_doubt.extend(self.pending.drain(..).map(|pending| pending.effect));
        self.disk = self.disk.reopen();
        self.rows.crash();
    }

    async fn start(&mut self) {
        self.store.set_calm(true);
        self.begin().await;
        self.settle().await;
        self.compare().await;
        self.store.set_calm(false);
    }

    async fn begin(&mut self) {
        let backend = Backend::over(self.store.clone());
        let (disk, rows) = (self.disk.clone(), self.rows.clone());
        let started = Process::start(self.worker, disk, rows, backend, sizes(), None).await;
        self.process = Some(started.unwrap_or_else(|error| panic!("no start: {error}")));
    }

    async fn claim(&mut self) {
        self.worker = WorkerId(self.worker.0 + 1);
        self.store.set(&format!("claims/{:016x}", self.worker.0), Bytes::from_static(b"x")).await;
    }

    /// Everything but the backend is gone, and another worker takes over.
    async fn lose_directory(&mut self) {
        let given_up = self.given_up().await;
        self.stop(|disk| disk.crash());
        self.take_over(Some(given_up)).await;
    }

    /// Another worker takes over while this one runs on: nothing counts as uploaded there that is not there here.
    async fn be_superseded(&mut self) {
        let given_up = self.given_up().await;
        let mut old = self.process.take().expect("a process runs");
        self.hear();
        self.pending.clear();
        self.take_over(Some(given_up)).await;
        for _ in 0..STEPS_OF_SUPERSEDED {
            if old.owner.status().superseded || old.commit().is_err() {
                break;
            }
            old.upload();
            tokio::time::advance(Duration::from_secs(31)).await;
        }
        let (counts, worker) = (*old.spool.uploaded().borrow(), old.worker);
        let there = self.process().takeover_fence.last(worker).unwrap_or(0);
        assert!(counts <= there, "blob {counts} of worker {worker} counts, and is void");
    }

    /// Another worker takes over from a directory; from several, if none is named.
    async fn take_over(&mut self, given_up: Option<GivenUp>) {
        self.in_doubt.clear();
        let old = self.worker;
        self.claim().await;
        (self.disk, self.rows) = (SimDisk::new(self.rng.next_u64(), 1 << 30), Arc::default());
        let seq = self.store.last_that_counts("", old).await;
        self.rebuilds += 1;
        self.calls.check();
        match &given_up {
            Some(given_up) if given_up.is_older() => self.inherit_more(given_up).await,
            _ => {
                self.history.cut_after(BlobId { worker: old, seq });
                self.calls = Calls::of(&self.history.now, KEYS);
                self.start().await;
            }
        }
        if let Some(given_up) = given_up {
            self.is_counted(&given_up.acknowledged).await;
        }
    }

    /// From an older copy: what counts is less than its clients were told, and more than it knew.
    async fn inherit_more(&mut self, given_up: &GivenUp) {
        self.history.cut_after(given_up.through);
        self.store.set_calm(true);
        if self.older_bug.is_some() {
            plant(self.older_bug);
        }
        self.begin().await;
        if self.older_bug.is_some() {
            plant(None);
        }
        let found = self.found().await;
        self.store.set_calm(false);
        given_up.check_inherited(&self.history.now, &found);
        check_counts(&self.process().index);
        self.history = History::since(found);
        self.calls = Calls::of(&self.history.now, KEYS);
    }

    /// Finds out which of the changes in doubt were taken: they are in the last blob.
    async fn settle(&mut self) {
        let found = self.found().await;
        let standing = self.process().index.standing().unwrap();
        let last = standing.last().map_or(BlobId::default(), |(id, _)| *id);
        for mut effect in std::mem::take(&mut self.in_doubt) {
            let now = &self.history.now;
            let is_taken = match &mut effect {
                Effect::Set { key, values } => found.objects.get(key) == Some(values),
                Effect::Remove { key } => !found.objects.contains_key(key),
                Effect::Begin { upload, key } => {
                    let new = found
                        .uploads
                        .iter()
                        .find(|(id, open)| !now.uploads.contains_key(id) && open.key == *key);
                    *upload = new.map(|(id, _)| *id);
                    upload.is_some()
                }
                Effect::Part { upload, number, value } => {
                    let open = found.uploads.get(upload);
                    open.is_some_and(|open| open.parts.get(number) == Some(value))
                }
                Effect::Complete { upload, key, values } => {
                    !found.uploads.contains_key(upload) && found.objects.get(key) == Some(values)
                }
                Effect::Abort { upload } => !found.uploads.contains_key(upload),
            };
            let is_possible = match &effect {
                Effect::Part { upload, .. }
                | Effect::Complete { upload, .. }
                | Effect::Abort { upload } => now.uploads.contains_key(upload),
                _ => true,
            };
            if is_taken && is_possible {
                self.history.push(last, effect);
            }
        }
    }

    /// Checks that there is what clients were told.
    async fn compare(&mut self) {
        let found = self.found().await;
        assert_eq!(found, self.history.now, "worker {}", self.worker);
        self.calls.saw(&found, KEYS);
        let process = self.process();
        check_counts(&process.index);
    }

    /// A client looks at everything, while others wait for answers.
    async fn refresh(&mut self) {
        self.store.set_calm(true);
        let found = self.found().await;
        self.store.set_calm(false);
        self.calls.saw(&found, KEYS);
    }

    async fn found(&self) -> State {
        let process = self.process.as_ref().expect("a process runs");
        found(process, &process.index, &self.store).await
    }

    async fn until_uploaded(&mut self) {
        for _ in 0..1000 {
            self.commit().await;
            self.process().upload();
            tokio::time::advance(Duration::from_secs(31)).await;
            if self.process().spool.waiting() == 0 {
                return;
            }
        }
        panic!("blobs wait for ever");
    }
}

fn packed(value: u64) -> Body {
    let pieces = vec![Bytes::from(bytes_of(value))];
    let sums = BodySums::of(value, SUM_BYTES, &pieces);
    Body::Packed { pieces, sums }
}
