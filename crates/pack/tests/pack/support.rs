//! A store to be tested, its backend, and the few calls that tests make.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use larder_objects::{
    BodyDigest, BodyError, ListItem, ListRequest, ListedObject, ObjectError, Objects, PutBody,
    PutDone, PutOptions, ReadBody,
};
use larder_pack::{Backend, PackConfig, PackError, Packer, Packing};
use larder_types::{BucketName, Condition, EtagList, ObjectKey};
use md5::Digest;
use object_store::memory::InMemory;
use object_store::path::Path as Name;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions as StoreOptions,
    PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

pub const MIB: usize = 1024 * 1024;

/// A backend in memory whose writes can be made to fail.
#[derive(Debug, Default)]
pub struct Faulty {
    pub inner: InMemory,
    pub refuses: AtomicBool,
    /// Reads wait while somebody has this for writing.
    pub gate: tokio::sync::RwLock<()>,
    reads_waiting: AtomicUsize,
    /// Reads and looks get no answer.
    pub silent: AtomicBool,
    /// Reads that are still told that there is no such object.
    pub missing: AtomicUsize,
    /// A part of names: reads of objects that have it find nothing. And for how many reads that lasts.
    pub hidden: Mutex<(String, usize)>,
    /// Puts of blobs, in one request each, wait while somebody has this for writing.
    pub puts: tokio::sync::RwLock<()>,
    puts_waiting: AtomicUsize,
    /// Puts of names with any of these in them get no answer, and come late.
    delays: Mutex<Vec<String>>,
    delayed: Mutex<Vec<(Name, PutPayload, StoreOptions)>>,
    /// Conditional puts that are still told that they conflict, and take no effect.
    pub conflicts: AtomicUsize,
    /// Conditional puts that still take effect, and fail for those who asked.
    pub answers_lost: AtomicUsize,
    /// A name that the next lists leave out, and how many.
    pub late: Mutex<(String, usize)>,
    /// Names that lists say to be a day older than they are.
    pub aged: Mutex<BTreeSet<String>>,
    /// An object that somebody else puts while the next claim is made.
    pub beside_claim: Mutex<Option<(Name, Bytes)>>,
}

impl Faulty {
    fn check(&self) -> Result<()> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Error::Generic { store: "test", source: "503 Slow Down".into() });
        }
        Ok(())
    }

    /// Reads that wait at the gate.
    pub fn waiting(&self) -> usize {
        self.reads_waiting.load(Ordering::Relaxed)
    }

    /// Puts of blobs that wait for their turn.
    pub fn puts_waiting(&self) -> usize {
        self.puts_waiting.load(Ordering::Relaxed)
    }

    /// From now on puts of names that have this in them get no answer, and come late.
    pub fn delay(&self, part: &str) {
        self.delays.lock().push(part.to_owned());
    }

    /// Waits until a put of such a name is on its way.
    pub async fn delayed(&self, part: &str) {
        while !self.delayed.lock().iter().any(|(name, ..)| name.as_ref().contains(part)) {
            tokio::task::yield_now().await;
        }
    }

    /// Nothing is late from now on, but for what is on its way.
    pub fn undelay(&self) {
        self.delays.lock().clear();
    }

    /// Lets all puts come that were late, but for those that meet their condition no more; nothing
    /// is late after that.
    pub async fn arrive(&self) {
        self.undelay();
        self.arrive_from("").await;
    }

    /// Lets all puts come that were late and whose name has this in it, in the order in which they
    /// were sent.
    pub async fn arrive_from(&self, part: &str) {
        let all = std::mem::take(&mut *self.delayed.lock());
        let (arrives, later): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(name, ..)| name.as_ref().contains(part));
        assert!(!arrives.is_empty(), "{part}");
        *self.delayed.lock() = later;
        for (name, payload, options) in arrives {
            let _exists = self.inner.put_opts(&name, payload, options).await;
        }
    }

    /// Names below a prefix, with sizes, sorted.
    pub async fn names(&self, prefix: &str) -> Vec<(String, u64)> {
        let mut found = self.inner.list(Some(&Name::from(prefix)));
        let mut names = Vec::new();
        while let Some(object) = found.next().await {
            let object = object.unwrap();
            names.push((object.location.to_string(), object.size));
        }
        names.sort();
        names
    }

    pub async fn bytes(&self, name: &str) -> Bytes {
        self.inner.get(&Name::from(name)).await.unwrap().bytes().await.unwrap()
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a faulty store")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        name: &Name,
        payload: PutPayload,
        options: StoreOptions,
    ) -> Result<PutResult> {
        self.check()?;
        if name.as_ref().contains("blobs/") {
            self.puts_waiting.fetch_add(1, Ordering::Relaxed);
            drop(self.puts.read().await);
            self.puts_waiting.fetch_sub(1, Ordering::Relaxed);
        }
        if name.as_ref().starts_with("claims/") {
            let beside = self.beside_claim.lock().take();
            if let Some((name, bytes)) = beside {
                self.inner.put(&name, bytes.into()).await?;
            }
        }
        if self.delays.lock().iter().any(|part| name.as_ref().contains(part)) {
            self.delayed.lock().push((name.clone(), payload, options));
            return Err(Error::Generic { store: "test", source: "timed out".into() });
        }
        let one_less = |left: usize| left.checked_sub(1);
        let is_one = |of: &AtomicUsize| {
            of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
        };
        let is_conditional = options.mode == PutMode::Create;
        if is_conditional && is_one(&self.conflicts) {
            return Err(Error::AlreadyExists { path: name.to_string(), source: "409".into() });
        }
        let is_lost = is_conditional && is_one(&self.answers_lost);
        let done = self.inner.put_opts(name, payload, options).await;
        match is_lost {
            true => Err(Error::Generic { store: "test", source: "timed out".into() }),
            false => done,
        }
    }

    async fn put_multipart_opts(
        &self,
        name: &Name,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.check()?;
        self.inner.put_multipart_opts(name, options).await
    }

    async fn get_opts(&self, name: &Name, options: GetOptions) -> Result<GetResult> {
        self.reads_waiting.fetch_add(1, Ordering::Relaxed);
        drop(self.gate.read().await);
        self.reads_waiting.fetch_sub(1, Ordering::Relaxed);
        if self.silent.load(Ordering::Relaxed) {
            return Err(Error::Generic { store: "test", source: "timed out".into() });
        }
        let one_less = |left: usize| left.checked_sub(1);
        if self.missing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return Err(Error::NotFound { path: name.to_string(), source: "404".into() });
        }
        {
            let mut hidden = self.hidden.lock();
            if hidden.1 > 0 && name.as_ref().contains(&hidden.0) {
                hidden.1 -= 1;
                return Err(Error::NotFound { path: name.to_string(), source: "404".into() });
            }
        }
        self.inner.get_opts(name, options).await
    }

    fn delete_stream(
        &self,
        names: BoxStream<'static, Result<Name>>,
    ) -> BoxStream<'static, Result<Name>> {
        self.inner.delete_stream(names)
    }

    fn list(&self, prefix: Option<&Name>) -> BoxStream<'static, Result<ObjectMeta>> {
        let aged = self.aged.lock().clone();
        let listed = self.inner.list(prefix).map_ok(move |mut object| {
            if aged.contains(object.location.as_ref()) {
                object.last_modified -= Duration::from_secs(24 * 3600);
            }
            object
        });
        let mut late = self.late.lock();
        let (name, left) = &mut *late;
        let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
        let is_it = prefix.is_some_and(|prefix| prefix.as_ref() == folder);
        if !is_it || *left == 0 {
            return listed.boxed();
        }
        *left -= 1;
        let name = name.clone();
        let shown = move |object: &Result<ObjectMeta>| {
            let is_late = object.as_ref().is_ok_and(|object| object.location.as_ref() == name);
            std::future::ready(!is_late)
        };
        listed.filter(shown).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Name>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Name, to: &Name, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// Small blobs that go up only when they are told to, and no cache.
pub fn config(dir: &Path) -> PackConfig {
    PackConfig {
        blob_bytes: MIB as u64,
        packed_bytes: MIB as u64,
        spool_bytes: 64 * MIB as u64,
        flush_timeout: Duration::from_secs(3600),
        housekeeping_period: Duration::from_secs(3600),
        cache_bytes: 0,
        ahead_bytes: 0,
        ..PackConfig::new(dir)
    }
}

pub async fn try_open(
    config: PackConfig,
    store: &Arc<Faulty>,
) -> std::result::Result<Packer, PackError> {
    Packer::open(config, Backend::over(store.clone())).await
}

pub async fn open(dir: &Path, store: &Arc<Faulty>) -> Packer {
    try_open(config(dir), store).await.unwrap()
}

/// The same, with what belongs to one beginning of keys together.
pub fn by_prefix(dir: &Path) -> PackConfig {
    PackConfig { packing: Packing::Prefix { delimiter: "/".into(), depth: 1 }, ..config(dir) }
}

/// The files that a process that dies now would leave behind.
pub fn snapshot(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    // Bodies are synced before the log names them, so the log is looked at first. So is what was
    // heard before the index of another worker, which is durable before the file is emptied.
    for part in ["worker", "name", "numbered", "heard", "peers", "kv", "log", "spool"] {
        copy_tree(&dir.join(part), &copy.path().join(part));
    }
    copy
}

fn copy_tree(from: &Path, to: &Path) {
    if from.is_file() {
        std::fs::copy(from, to).unwrap();
        return;
    }
    if !from.exists() {
        return;
    }
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        copy_tree(&entry.path(), &to.join(entry.file_name()));
    }
}

pub fn bucket(name: &str) -> BucketName {
    BucketName::new(name).unwrap()
}

pub fn key(key: &str) -> ObjectKey {
    ObjectKey::new(key).unwrap()
}

/// Bytes that are the same for the same seed.
pub fn content(seed: u64, len: usize) -> Bytes {
    let mut rng = larder_env::SeededRng::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// A body that comes in pieces; with `broken`, it ends in an error.
pub struct Sent {
    bytes: Bytes,
    at: usize,
    announced: bool,
    broken: bool,
}

impl Sent {
    pub fn whole(bytes: Bytes) -> Self {
        Self { bytes, at: 0, announced: true, broken: false }
    }

    pub fn unannounced(bytes: Bytes) -> Self {
        Self { announced: false, ..Self::whole(bytes) }
    }

    pub fn broken(bytes: Bytes) -> Self {
        Self { broken: true, ..Self::whole(bytes) }
    }
}

impl PutBody for Sent {
    fn len(&self) -> Option<u64> {
        self.announced.then_some(self.bytes.len() as u64)
    }

    async fn next(&mut self) -> Option<std::result::Result<Bytes, BodyError>> {
        let end = (self.at + 100_000).min(self.bytes.len());
        let piece = self.bytes.slice(self.at..end);
        self.at = end;
        if piece.is_empty() {
            return self.broken.then_some(Err(BodyError::Incomplete));
        }
        Some(Ok(piece))
    }

    fn finish(&mut self) -> std::result::Result<BodyDigest, BodyError> {
        Ok(BodyDigest { md5: md5::Md5::digest(&self.bytes).into(), checksum: None })
    }
}

pub fn only_if_new() -> PutOptions {
    let condition = Condition { if_none_match: Some(EtagList::Any), ..Condition::default() };
    PutOptions { condition, ..PutOptions::default() }
}

pub async fn put(
    store: &Packer,
    name: &str,
    bytes: Bytes,
) -> std::result::Result<PutDone, ObjectError> {
    store.put(&bucket("first"), &key(name), PutOptions::default(), Sent::whole(bytes)).await
}

/// Puts an object of 1,000 bytes, and uploads all that waits.
pub async fn put_and_flush(store: &Packer, name: &str, seed: u64) {
    put(store, name, content(seed, 1000)).await.unwrap();
    assert!(store.flush().await);
}

/// Checks objects of 1,000 bytes, by the seeds that they were put with.
pub async fn holds<const N: usize>(store: &Packer, objects: [(&str, u64); N]) {
    for (name, seed) in objects {
        assert_eq!(get(store, name).await.unwrap(), content(seed, 1000), "{name}");
    }
}

pub async fn delete(store: &Packer, name: &str) {
    store.delete(&bucket("first"), &key(name), Condition::default()).await.unwrap();
}

/// All bytes of an object, or those of a range.
pub async fn get_range(
    store: &Packer,
    name: &str,
    range: Option<std::ops::Range<u64>>,
) -> std::result::Result<Bytes, ObjectError> {
    let opened = store.open(&bucket("first"), &key(name)).await?;
    let range = range.unwrap_or(0..opened.metax.size);
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    match store.read(&opened, range).await? {
        ReadBody::Whole(bytes) => Ok(bytes),
        ReadBody::Stream(mut pieces) => {
            let mut bytes = BytesMut::new();
            while let Some(piece) = pieces.next().await {
                bytes.extend_from_slice(&piece?);
            }
            Ok(bytes.freeze())
        }
    }
}

pub async fn get(store: &Packer, name: &str) -> std::result::Result<Bytes, ObjectError> {
    get_range(store, name, None).await
}

pub async fn list(store: &Packer, of: &BucketName) -> Vec<ListedObject> {
    let request = ListRequest { max: 1000, ..ListRequest::default() };
    let page = store.list(of, request).await.unwrap();
    assert!(!page.truncated);
    let entry = |item| match item {
        ListItem::Entry(entry) => entry,
        ListItem::Group(group) => panic!("a group {group} without a delimiter"),
    };
    page.items.into_iter().map(entry).collect()
}

/// A store with a bucket.
pub async fn made() -> (tempfile::TempDir, Arc<Faulty>, Packer) {
    let dir = tempfile::tempdir().unwrap();
    let backend = Arc::<Faulty>::default();
    let store = open(dir.path(), &backend).await;
    store.create_bucket(&bucket("first"), None).await.unwrap();
    (dir, backend, store)
}

/// A worker that takes over, in a directory of its own.
pub async fn successor_of(backend: &Arc<Faulty>) -> (tempfile::TempDir, Packer) {
    let dir = tempfile::tempdir().unwrap();
    let takes = PackConfig { take_over: true, ..config(dir.path()) };
    let heir = try_open(takes, backend).await.unwrap();
    (dir, heir)
}

pub fn count(counter: &std::sync::atomic::AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
