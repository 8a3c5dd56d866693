//! Clients of proxies, or of a single node, what they ask, and what they were answered.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use larder_env::SeededRng;
use larder_objects::{
    BodyDigest, BodyError, ListItem, ListRequest, ObjectError, Objects, PutBody, PutOptions,
    ReadBody,
};
use larder_sim::history::{CallCondition, CallResult, History, Invocation, Shown};
use larder_types::{BucketName, Condition, ETag, EtagList, Metax, ObjectKey};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::super::super::ClusterProxy;
use super::SimRng;
use super::proxies::Findings;
use crate::limits::{PAUSE_MS_MAX, PROXY_TIMEOUT_MS};

const KEYS: usize = 6;
/// Calls of one client.
const CALLS: u64 = 25;
/// No call takes longer: one that reads looks its object up, asks every replica, and may look it up once more.
pub(super) const CALL_MAX: Duration = Duration::from_millis(3 * PROXY_TIMEOUT_MS);
/// No put takes longer, however often it is begun: its time is over, but for a pause.
const PUT_MAX: Duration = Duration::from_millis(PROXY_TIMEOUT_MS + 2 * PAUSE_MS_MAX);
/// The longest that a call takes when nothing fails.
const QUICK: Duration = Duration::from_secs(5);
/// Within this time a put that is repeated succeeds when nothing fails.
const WELL_AGAIN: Duration = Duration::from_secs(20);
/// Bits of a value that say how many bytes it has.
const LEN_BITS: u32 = 20;

/// Everything that was asked.
pub(super) struct Calls {
    pub(super) history: History,
    values: u64,
    pub(super) asked: u64,
    pub(super) done: u64,
    /// Times that the bucket was deleted.
    pub(super) buckets_deleted: u64,
    pub(super) longest: Duration,
}

impl Default for Calls {
    fn default() -> Self {
        let (history, longest) = (History::new(KEYS), Duration::ZERO);
        Self { history, values: 0, asked: 0, done: 0, buckets_deleted: 0, longest }
    }
}

/// One client of a proxy.
pub(super) struct Client<P = ClusterProxy> {
    pub(super) sim_rng: SimRng,
    pub(super) findings: Arc<Findings>,
    pub(super) proxy: Arc<P>,
    pub(super) bucket: BucketName,
    /// True if it deletes the bucket now and then, and makes it again.
    pub(super) remakes: bool,
    /// Of its proxy.
    pub(super) number: usize,
    pub(super) calls: Arc<Mutex<Calls>>,
}

fn key_of(key: usize) -> ObjectKey {
    ObjectKey::new(&format!("key{key}")).expect("it is a key")
}

fn bytes_of(value: u64) -> Bytes {
    let len = (value & ((1 << LEN_BITS) - 1)) as usize;
    let mut rng = SeededRng::new(value);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

fn value_of(etag: &ETag) -> u64 {
    let (ETag::Md5(digest) | ETag::Parts(digest, _)) = etag;
    u64::from_be_bytes(digest[..8].try_into().expect("it has eight bytes"))
}

fn shown(metax: &Metax) -> Shown {
    Shown::put(value_of(&metax.etag))
}

/// The bytes of a value, in pieces; the last is the first to come.
pub(super) struct Body {
    pub(super) pieces: Vec<Bytes>,
    pub(super) value: u64,
}

impl PutBody for Body {
    fn len(&self) -> Option<u64> {
        None
    }

    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        self.pieces.pop().map(Ok)
    }

    fn finish(&mut self) -> Result<BodyDigest, BodyError> {
        let mut md5 = [0; 16];
        md5[..8].copy_from_slice(&self.value.to_be_bytes());
        Ok(BodyDigest { md5, checksum: None })
    }
}

/// All bytes of a read.
pub(super) async fn whole(body: ReadBody) -> Result<Bytes, ObjectError> {
    let mut pieces = match body {
        ReadBody::Whole(bytes) => return Ok(bytes),
        ReadBody::Stream(pieces) => pieces,
    };
    let mut read = Vec::new();
    while let Some(piece) = pieces.next().await {
        read.extend_from_slice(&piece?);
    }
    Ok(read.into())
}

impl<P: Objects> Client<P> {
    pub(super) async fn run(self) {
        for _ in 0..CALLS {
            let sim_rng = &self.sim_rng;
            sleep(sim_rng.ms(if sim_rng.one_in(4) { 1500 } else { 60 })).await;
            if self.remakes && sim_rng.one_in(8) {
                // It may be cut short anywhere.
                drop(timeout(CALL_MAX, self.remake_bucket()).await);
                continue;
            }
            let key = sim_rng.below(KEYS as u64) as usize;
            // Some go away before they are answered.
            let max_wait = if sim_rng.one_in(8) { sim_rng.ms(80) } else { CALL_MAX };
            let began = Instant::now();
            let call = async {
                match sim_rng.below(20) {
                    0..9 => {
                        // A failed call is in the history.
                        let _failed = self.put(key).await;
                    }
                    9..13 => self.get(key).await,
                    // Reads of the same bytes at once are one.
                    13..16 => drop(join_all([(); 3].map(|()| self.get(key))).await),
                    16..18 => self.list().await,
                    _ => self.delete(key).await,
                }
            };
            let is_late = timeout(max_wait, call).await.is_err() && max_wait == CALL_MAX;
            let mut calls = self.calls.lock();
            calls.asked += 1;
            calls.longest = calls.longest.max(began.elapsed());
            drop(calls);
            if is_late {
                self.findings.violated(format!("a call at proxy {} does not end", self.number));
            }
        }
    }

    fn begin(&self, key: usize, asked: Invocation) -> larder_sim::history::CallId {
        self.calls.lock().history.begin(key, asked)
    }

    fn end(&self, call: larder_sim::history::CallId, answered: CallResult) {
        let mut calls = self.calls.lock();
        calls.done += u64::from(answered != CallResult::Unknown);
        calls.history.end(call, answered);
    }

    fn draw_value(&self) -> u64 {
        let sim_rng = &self.sim_rng;
        let len = match sim_rng.below(10) {
            0..3 => 1 + sim_rng.below(2048),
            3..9 => 2049 + sim_rng.below(30_000),
            _ => 100_000 + sim_rng.below(300_000),
        };
        let mut calls = self.calls.lock();
        calls.values += 1;
        calls.values << LEN_BITS | len
    }

    /// # Errors
    /// If it was not answered with what came of it.
    pub(super) async fn put(&self, key: usize) -> Result<(), ObjectError> {
        let value = self.draw_value();
        let on = if self.sim_rng.one_in(5) { CallCondition::Absent } else { CallCondition::Always };
        let if_none_match = (on == CallCondition::Absent).then_some(EtagList::Any);
        let condition = Condition { if_none_match, ..Condition::default() };
        let options = PutOptions { condition, ..PutOptions::default() };
        let bytes = bytes_of(value);
        let half = bytes.len() / 2;
        let body = Body { pieces: vec![bytes.slice(half..), bytes.slice(..half)], value };
        let call = self.begin(key, Invocation::Put(value, on));
        let began = Instant::now();
        let put = self.proxy.put(&self.bucket, &key_of(key), options, body).await;
        if began.elapsed() > PUT_MAX {
            self.findings.violated(format!("a put took {:?}", began.elapsed()));
        }
        let answered = match &put {
            Ok(_) => CallResult::Done,
            Err(ObjectError::PreconditionFailed) => CallResult::Unmet,
            // It says that nothing was done.
            Err(ObjectError::Full) => CallResult::Refused,
            Err(_) => CallResult::Unknown,
        };
        self.end(call, answered);
        if matches!(put, Err(ObjectError::NoSuchBucket)) {
            self.make_bucket().await;
        }
        match put {
            Ok(_) | Err(ObjectError::PreconditionFailed) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, key: usize) {
        let call = self.begin(key, Invocation::Delete(CallCondition::Always));
        let deleted = self.proxy.delete(&self.bucket, &key_of(key), Condition::default()).await;
        self.end(call, if deleted.is_ok() { CallResult::Done } else { CallResult::Unknown });
    }

    /// Empties the bucket and deletes it, if nobody puts anything meanwhile: when it was deleted no key was there. Others put
    /// into it, and those with an old map must not take the one that is gone for the one that has its name then.
    async fn remake_bucket(&self) {
        for key in 0..KEYS {
            self.delete(key).await;
        }
        let begun = self.calls.lock().history.now();
        if self.proxy.delete_bucket(&self.bucket).await.is_ok() {
            let mut calls = self.calls.lock();
            (0..KEYS).for_each(|key| calls.history.saw(key, begun, None));
            calls.buckets_deleted += 1;
        }
        self.make_bucket().await;
        for key in 0..KEYS {
            // A failed call is in the history.
            let _failed = self.put(key).await;
        }
    }

    /// Makes the bucket, unless another has or it fails; a client that misses it then makes it.
    async fn make_bucket(&self) {
        drop(self.proxy.create_bucket(&self.bucket, None).await);
    }

    async fn get(&self, key: usize) {
        let call = self.begin(key, Invocation::Get);
        self.end(
            call,
            match self.read(key).await {
                Ok(found) => CallResult::Shows(found.map(Shown::put)),
                Err(ObjectError::Damaged) => {
                    if !self.findings.was_corrupt.load(Ordering::Relaxed) {
                        self.findings.violated(format!("key {key} is called damaged"));
                    }
                    CallResult::Unknown
                }
                Err(_) => CallResult::Unknown,
            },
        );
    }

    /// The value that is there, if its bytes are.
    async fn read(&self, key: usize) -> Result<Option<u64>, ObjectError> {
        let name = key_of(key);
        let opened = match self.sim_rng.one_in(4) {
            true => self.proxy.open(&self.bucket, &name).await,
            false => self.proxy.open_whole(&self.bucket, &name).await,
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(ObjectError::NoSuchKey) => return Ok(None),
            Err(error) => return Err(error),
        };
        let value = value_of(&opened.metax.etag);
        let bytes = whole(self.proxy.read(&opened, 0..opened.metax.size).await?).await?;
        if bytes != bytes_of(value) {
            self.findings.violated(format!("key {key} has other bytes than were put"));
        }
        Ok(Some(value))
    }

    async fn list(&self) {
        let max = if self.sim_rng.one_in(2) { 1000 } else { 1 + self.sim_rng.below(3) };
        let mut after: Option<String> = None;
        loop {
            let request =
                ListRequest { max: max as usize, after: after.clone(), ..Default::default() };
            let begun = self.calls.lock().history.now();
            let Ok(page) = self.proxy.list(&self.bucket, request).await else { return };
            let entries = page.items.into_iter().map(|item| match item {
                ListItem::Entry(object) => (object.key.as_str().to_owned(), shown(&object.metax)),
                ListItem::Group(group) => panic!("no delimiter was named: {group}"),
            });
            let entries: Vec<(String, Shown)> = entries.collect();
            let last = entries.last().map(|(key, _)| key.clone());
            let covers = |key: &str| {
                after.as_ref().is_none_or(|after| key > after.as_str())
                    && (!page.truncated || last.as_ref().is_some_and(|last| key <= last.as_str()))
            };
            let mut calls = self.calls.lock();
            for key in (0..KEYS).filter(|key| covers(key_of(*key).as_str())) {
                let found = entries.iter().find(|(name, _)| *name == key_of(key).as_str());
                calls.history.saw(key, begun, found.map(|(_, shown)| *shown));
            }
            calls.done += 1;
            drop(calls);
            if !page.truncated || last.is_none() {
                return;
            }
            after = last;
        }
    }

    /// Puts every key, when nothing fails any more: then nobody waits for long, and what is full or was silent is asked
    /// again soon.
    pub(super) async fn put_all(&self) {
        for key in 0..KEYS {
            let deadline = Instant::now() + WELL_AGAIN;
            loop {
                match timeout(QUICK, self.put(key)).await {
                    Ok(Ok(())) => break,
                    Ok(Err(_)) if Instant::now() < deadline => {
                        sleep(Duration::from_millis(500)).await
                    }
                    failed => {
                        self.findings.violated(format!("key {key} is not put at rest: {failed:?}"));
                        break;
                    }
                }
            }
        }
    }

    /// Reads every key, when nothing fails any more.
    pub(super) async fn read_all(&self) {
        for key in 0..KEYS {
            let call = self.begin(key, Invocation::Get);
            match timeout(CALL_MAX, self.read(key)).await {
                Ok(Ok(found)) => self.end(call, CallResult::Shows(found.map(Shown::put))),
                other => {
                    self.findings.violated(format!("key {key} cannot be read at rest: {other:?}"))
                }
            }
        }
        self.list().await;
    }
}
