//! Clients of regions, what they changed, and what they were answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use larder_env::SeededRng;
use larder_objects::{
    BodyDigest, BodyError, ListItem, ListRequest, ListedObject, ObjectError, Objects, PutBody,
    PutOptions, ReadBody,
};
use larder_types::{
    BucketName, BucketRecord, Condition, ETag, HybridClock, Metax, ObjectKey, RegionId, Stamp,
};
use md5::{Digest, Md5};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::judge::{self, At};
use super::region::Region;
use crate::clock::now_ms;
use crate::limits::PROXY_TIMEOUT_MS;
use crate::proxy::ClusterProxy;

pub(super) const KEYS: usize = 4;
/// Calls of one client.
const CALLS: u64 = 16;
/// No call takes longer.
pub(super) const CALL_MAX: Duration = Duration::from_millis(4 * PROXY_TIMEOUT_MS);

/// The MD5 of a content.
pub(super) type Sum = [u8; 16];

/// Kinds of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeKind {
    Put(Sum),
    Delete,
    /// The bucket was deleted, in which the key was not.
    Empty,
}

/// A change that some client asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub(super) region: RegionId,
    pub(super) key: usize,
    pub(super) what: ChangeKind,
    /// The time at which it was asked for, in milliseconds since 1970.
    pub(super) began_ms: u64,
    /// The time at which it was acknowledged, if it was.
    pub(super) acked_ms: Option<u64>,
    /// Of a put that was acknowledged.
    pub(super) clock: Option<HybridClock>,
}

/// Everything that was asked for.
#[derive(Default)]
pub(super) struct Log {
    /// One region has the bucket alone at first.
    is_shared_late: bool,
    pub(super) changes: Vec<Change>,
    contents: BTreeMap<Sum, Bytes>,
    drawn: u64,
    pub(super) asked: u64,
    pub(super) done: u64,
    /// Lists of all regions that were answered.
    pub(super) lists: u64,
    /// Times that the bucket was deleted.
    pub(super) removed: u64,
}

impl Log {
    pub(super) fn new(is_shared_late: bool) -> Self {
        Self { is_shared_late, ..Self::default() }
    }

    /// Returns true if a put with this clock may show with that one.
    pub(super) fn shows_as(&self, put: HybridClock, shown: HybridClock) -> bool {
        put == shown || self.is_shared_late && put < shown
    }

    fn begin(&mut self, region: RegionId, key: usize, what: ChangeKind) -> usize {
        let began_ms = now_ms();
        let change = Change { region, key, what, began_ms, acked_ms: None, clock: None };
        tracing::info!(number = self.changes.len(), ?change, "a client asks");
        self.changes.push(change);
        self.changes.len() - 1
    }

    fn acked(&mut self, number: usize, clock: Option<HybridClock>) {
        let change = &mut self.changes[number];
        (change.acked_ms, change.clock) = (Some(now_ms()), clock);
        self.done += 1;
        tracing::info!(number, ?change, "a client is answered");
    }
}

pub(super) fn key_of(key: usize) -> ObjectKey {
    ObjectKey::new(&format!("key{key}")).expect("it is a key")
}

pub(super) fn sum_of(etag: &ETag) -> Sum {
    let (ETag::Md5(sum) | ETag::Parts(sum, _)) = etag;
    *sum
}

pub(super) struct Body {
    pub(super) bytes: Option<Bytes>,
    pub(super) sum: Sum,
}

impl PutBody for Body {
    fn len(&self) -> Option<u64> {
        None
    }

    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        self.bytes.take().map(Ok)
    }

    fn finish(&mut self) -> Result<BodyDigest, BodyError> {
        Ok(BodyDigest { md5: self.sum, checksum: None })
    }
}

/// A client of one region's proxy.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) region: Arc<Region>,
    /// The number of the proxy among its region's.
    pub(super) at: usize,
    pub(super) bucket: BucketName,
    pub(super) log: Arc<Mutex<Log>>,
    /// It makes the bucket where it is missing.
    pub(super) makes: bool,
    /// It deletes the bucket now and then.
    pub(super) removes: bool,
    /// Regions of which one has to have each put that is acknowledged.
    pub(super) others: Vec<Arc<Region>>,
}

impl Client {
    /// Makes its calls, a while apart.
    pub(super) async fn run(self) {
        for _ in 0..CALLS {
            let sim_rng = &self.region.sim_rng;
            sleep(sim_rng.ms(if sim_rng.one_in(3) { 4000 } else { 300 })).await;
            let key = sim_rng.below(KEYS as u64) as usize;
            let call = async {
                if self.removes && sim_rng.one_in(6) {
                    return self.remove_bucket().await;
                }
                match sim_rng.below(20) {
                    0..8 => drop(self.put(key).await),
                    8..12 => drop(self.delete(key).await),
                    12..14 => self.tag(key).await,
                    14..18 => drop(self.get(key).await),
                    _ => self.list_all().await,
                }
            };
            self.log.lock().asked += 1;
            // Some go away before they are answered.
            let max_wait = if sim_rng.one_in(12) { sim_rng.ms(150) } else { CALL_MAX };
            if timeout(max_wait, call).await.is_err() && max_wait == CALL_MAX {
                self.violated("a call does not end");
            }
        }
    }

    pub(super) fn violated(&self, what: &str) {
        self.region.world.violated(format!("region {}: {what}", self.region.number));
    }

    /// Has a proxy asked; `None` if none runs, or it ends meanwhile.
    pub(super) async fn at<T>(&self, ask: impl AsyncFnOnce(&ClusterProxy) -> T) -> Option<T> {
        let (proxy, mut ends) = self.region.proxy(self.at)?;
        tokio::select! {
            biased;
            _ended = ends.changed() => None,
            answer = ask(&proxy) => Some(answer),
        }
    }

    pub(super) fn draw_content(&self) -> (Sum, Bytes) {
        let sim_rng = &self.region.sim_rng;
        let len = match sim_rng.below(10) {
            0 => 0,
            1..5 => 1 + sim_rng.below(2048),
            5..9 => 2049 + sim_rng.below(30_000),
            _ => 100_000 + sim_rng.below(200_000),
        };
        let mut log = self.log.lock();
        log.drawn += 1;
        let mut rng = SeededRng::new(log.drawn);
        let mut bytes = Vec::with_capacity(len as usize + 8);
        while bytes.len() < len as usize {
            bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
        bytes.truncate(len as usize);
        let (sum, bytes): (Sum, Bytes) = (Md5::digest(&bytes).into(), bytes.into());
        log.contents.insert(sum, bytes.clone());
        (sum, bytes)
    }

    /// Returns true if it was acknowledged.
    pub(super) async fn put(&self, key: usize) -> bool {
        let (sum, bytes) = self.draw_content();
        let change = self.log.lock().begin(self.region.number, key, ChangeKind::Put(sum));
        let body = Body { bytes: Some(bytes), sum };
        let put = self.at(async |proxy| {
            proxy.put(&self.bucket, &key_of(key), PutOptions::default(), body).await
        });
        match put.await {
            Some(Ok(done)) => {
                self.log.lock().acked(change, Some(done.clock));
                self.set_other_regions(change).await;
                true
            }
            Some(Err(ObjectError::NoSuchBucket)) if self.makes => {
                // Regions that make it at once have one bucket.
                self.at(async |proxy| proxy.create_bucket(&self.bucket, None).await).await;
                false
            }
            Some(Err(_)) | None => false,
        }
    }

    /// Finds a put that was acknowledged before another region had it, though it had to.
    async fn set_other_regions(&self, change: usize) {
        let mut lacking = 0;
        for region in &self.others {
            let other = Self { region: region.clone(), at: 0, ..self.clone() };
            let Some(listed) = other.list().await else { return };
            let log = self.log.lock();
            let put = log.changes[change];
            let found = listed.iter().find(|it| it.key == key_of(put.key));
            let found = found.map(|it| at(region.number, &it.metax));
            lacking += usize::from(!judge::has(&log, &put, found));
        }
        if lacking > 0 && lacking == self.others.len() {
            self.violated(&format!("no other region has put {change}, which waited for one"));
        }
    }

    /// Makes the bucket, as soon as that succeeds.
    pub(super) async fn make_bucket(&self) {
        while !self.sees_that(|_| true).await {
            self.at(async |proxy| proxy.create_bucket(&self.bucket, None).await).await;
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns true if the proxy knows the bucket, and this of it.
    pub(super) async fn sees_that(&self, is_so: impl Fn(&BucketRecord) -> bool) -> bool {
        let known = self.at(async |proxy| proxy.bucket(&self.bucket)).await;
        known.is_some_and(|known| known.is_ok_and(|record| is_so(&record)))
    }

    pub(super) async fn delete(&self, key: usize) -> bool {
        let change = self.log.lock().begin(self.region.number, key, ChangeKind::Delete);
        let delete = self
            .at(async |proxy| proxy.delete(&self.bucket, &key_of(key), Condition::default()).await);
        let is_acked = matches!(delete.await, Some(Ok(())));
        if is_acked {
            self.log.lock().acked(change, None);
        }
        is_acked
    }

    /// Empties the bucket, and deletes it in all regions if nobody puts anything meanwhile.
    async fn remove_bucket(&self) {
        for key in 0..KEYS {
            self.delete(key).await;
        }
        let begin = |key| self.log.lock().begin(self.region.number, key, ChangeKind::Empty);
        let changes: Vec<usize> = (0..KEYS).map(begin).collect();
        let removed = self.at(async |proxy| proxy.delete_bucket(&self.bucket).await).await;
        if matches!(removed, Some(Ok(()))) {
            let mut log = self.log.lock();
            changes.into_iter().for_each(|change| log.acked(change, None));
            log.removed += 1;
        }
    }

    async fn tag(&self, key: usize) {
        let tags = vec![("tag".to_owned(), self.region.sim_rng.below(1000).to_string())];
        let tag =
            self.at(async |proxy| proxy.set_tags(&self.bucket, &key_of(key), tags).await).await;
        self.log.lock().done += u64::from(matches!(tag, Some(Ok(()))));
    }

    /// Reads a key: its METAX and bytes; the outer `None` if it cannot be read.
    pub(super) async fn read(&self, key: &ObjectKey) -> Option<Option<(Metax, Bytes)>> {
        let read = async |proxy: &ClusterProxy| {
            let opened = match proxy.open(&self.bucket, key).await {
                Err(ObjectError::NoSuchKey | ObjectError::NoSuchBucket) => return Ok(None),
                opened => opened?,
            };
            let bytes = match proxy.read(&opened, 0..opened.metax.size).await? {
                ReadBody::Whole(bytes) => bytes,
                ReadBody::Stream(mut pieces) => {
                    let mut read = Vec::new();
                    while let Some(piece) = pieces.next().await {
                        read.extend_from_slice(&piece?);
                    }
                    read.into()
                }
            };
            Ok::<_, ObjectError>(Some((opened.metax, bytes)))
        };
        self.at(read).await?.ok()
    }

    /// Reads a key, and checks that its bytes are those that were put.
    pub(super) async fn get(&self, key: usize) -> Option<Option<Metax>> {
        let found = self.read(&key_of(key)).await?;
        let mut log = self.log.lock();
        log.done += 1;
        let (metax, bytes) = match found {
            Some(found) => found,
            None => return Some(None),
        };
        if log.contents.get(&sum_of(&metax.etag)) != Some(&bytes) {
            drop(log);
            self.violated(&format!("key {key} has other bytes than were put"));
        }
        Some(Some(metax))
    }

    /// The keys that the region lists.
    pub(super) async fn list(&self) -> Option<Vec<ListedObject>> {
        let request = ListRequest { max: 1000, ..ListRequest::default() };
        match self.at(async |proxy| proxy.list(&self.bucket, request).await).await? {
            Ok(page) => Some(entries(page.items)),
            Err(ObjectError::NoSuchBucket) => Some(Vec::new()),
            Err(_) => None,
        }
    }

    /// Lists the keys of all regions, and finds changes that were answered before and are not in it.
    async fn list_all(&self) {
        let request = ListRequest { max: 1000, ..ListRequest::default() };
        let before_ms = now_ms();
        let asked = self.at(async |proxy| proxy.list_all_regions(&self.bucket, request).await);
        let Some(Ok(page)) = asked.await else { return };
        let listed = entries(page.items);
        tracing::info!(region = %self.region.number, before_ms, now_ms = now_ms(), ?listed, "all regions are listed");
        let mut log = self.log.lock();
        (log.done, log.lists) = (log.done + 1, log.lists + 1);
        for key in 0..KEYS {
            let found = listed.iter().find(|it| it.key == key_of(key));
            let found = found.map(|it| at(self.region.number, &it.metax));
            let wrong = judge::unexplained(&log, key, found, before_ms);
            if let Some(wrong) = wrong {
                self.violated(&format!("a list of all regions: {wrong}"));
            }
        }
    }
}

fn entries(items: Vec<ListItem<ListedObject>>) -> Vec<ListedObject> {
    let entry = |item| match item {
        ListItem::Entry(object) => object,
        ListItem::Group(group) => panic!("no delimiter was named: {group}"),
    };
    items.into_iter().map(entry).collect()
}

/// The version that a region shows.
pub(super) fn at(shown_by: RegionId, metax: &Metax) -> At {
    let region = if metax.region == RegionId::OWN { shown_by } else { metax.region };
    At { sum: sum_of(&metax.etag), stamp: Stamp { clock: metax.clock, region } }
}
