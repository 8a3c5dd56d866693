//! The least store that keeps the contract: everything in maps under one lock. For tests only.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use futures::stream;
use larder_objects::{
    AppendAt, AppendDone, AppendOptions, BodyDigest, CompleteOptions, ListItem, ListPage,
    ListRequest, ListedObject, ListedPart, ObjectError, Objects, Opened, PartsPage, PutBody,
    PutDone, PutOptions, ReadBody, UploadOptions, assemble,
};
use larder_types::limits::RECORD_BYTES_MAX;
use larder_types::{
    Attributes, Body, BucketId, BucketName, BucketRecord, BucketState, Condition, CorsRules, ETag,
    Epoch, HybridClock, Metax, ObjectKey, OpId, OpSeq, PgId, RegionId, Unmet, UploadId, UploadRow,
    View,
};

/// Reads longer than this are streamed in pieces of this size.
const PIECE_BYTES: usize = 64 * 1024;

#[derive(Clone)]
struct Stored {
    op: OpId,
    metax: Metax,
    bytes: Bytes,
    parts: Vec<(ListedPart, u64)>,
}

struct Upload {
    row: UploadRow,
    parts: BTreeMap<u16, (Metax, Bytes)>,
}

struct Bucket {
    record: BucketRecord,
    objects: BTreeMap<ObjectKey, Stored>,
    uploads: BTreeMap<(ObjectKey, OpId), Upload>,
    completed: BTreeMap<(ObjectKey, OpId), PutDone>,
}

/// The store, and what a test may make it do.
#[derive(Default)]
pub struct Memory {
    buckets: Mutex<BTreeMap<BucketName, Bucket>>,
    ops: AtomicU64,
    /// Puts that got as far as committing.
    pub commits: AtomicUsize,
    /// The number of next reads, of bytes or of a part, that answer [`ObjectError::Changed`].
    pub change: AtomicUsize,
    /// True if puts answer [`ObjectError::Full`].
    pub full: AtomicBool,
    /// True if reads answer [`ObjectError::Damaged`].
    pub damaged: AtomicBool,
    /// True if reads of several pieces end with an error in place of the last.
    pub breaks_off: AtomicBool,
    /// Buckets that were made through another machine, and are known here after the next catch-up.
    pub elsewhere: Mutex<Vec<BucketName>>,
    /// True if it cannot catch up.
    pub is_cut_off: AtomicBool,
    /// Times that it was to catch up.
    pub catch_ups: AtomicUsize,
    /// True if it links.
    pub links: AtomicBool,
    /// True if it takes no appends.
    pub no_appends: AtomicBool,
    /// True if it keeps no CORS rules.
    pub no_cors: AtomicBool,
}

impl Memory {
    fn perhaps_changed(&self) -> Result<(), ObjectError> {
        let change = |left: usize| left.checked_sub(1);
        let changed = self.change.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        changed.map_or(Ok(()), |_| Err(ObjectError::Changed))
    }

    fn op(&self) -> OpId {
        OpId { view: View(1), seq: OpSeq(self.ops.fetch_add(1, Ordering::Relaxed) + 1) }
    }

    fn with<T>(
        &self,
        name: &BucketName,
        f: impl FnOnce(&mut Bucket) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        let mut buckets = self.buckets.lock().unwrap();
        f(buckets.get_mut(name).ok_or(ObjectError::NoSuchBucket)?)
    }
}

fn now() -> HybridClock {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    HybridClock::at_ms(now.as_millis() as u64)
}

fn metax(size: u64, digest: BodyDigest, attributes: Attributes) -> Metax {
    Metax {
        size,
        clock: now(),
        region: RegionId(0),
        etag: ETag::Md5(digest.md5),
        checksum: digest.checksum,
        attributes,
        expires_ms: None,
        encryption: None,
        retention: None,
    }
}

fn grown(old: &Metax, piece: &Metax) -> Metax {
    let both = old.checksum.as_ref().zip(piece.checksum.as_ref());
    Metax {
        size: old.size + piece.size,
        clock: piece.clock,
        etag: old.etag.followed_by(&piece.etag),
        checksum: both.and_then(|(old, next)| old.followed_by(next, piece.size)),
        ..old.clone()
    }
}

fn done(metax: &Metax) -> PutDone {
    PutDone {
        etag: metax.etag.clone(),
        checksum: metax.checksum.clone(),
        clock: metax.clock,
        size: metax.size,
    }
}

fn check(condition: &Condition, current: Option<&Stored>) -> Result<(), ObjectError> {
    condition.check(current.map(|stored| &stored.metax)).map_err(|unmet| match unmet {
        Unmet::Failed => ObjectError::PreconditionFailed,
        Unmet::NoSuchKey => ObjectError::NoSuchKey,
    })
}

fn listed((number, (metax, _)): (&u16, &(Metax, Bytes))) -> ListedPart {
    ListedPart { number: *number, metax: metax.clone() }
}

async fn collect<B: PutBody>(mut body: B) -> Result<(Bytes, BodyDigest), ObjectError> {
    let mut bytes = BytesMut::new();
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece?);
    }
    Ok((bytes.freeze(), body.finish()?))
}

fn page<T>(
    entries: impl Iterator<Item = (String, T)>,
    request: &ListRequest,
    keep_after: bool,
) -> ListPage<T> {
    let mut items: Vec<ListItem<T>> = Vec::new();
    for (key, entry) in entries {
        let Some(rest) = key.strip_prefix(&request.prefix) else { continue };
        let group = request.delimiter.as_ref().and_then(|delimiter| {
            let end = rest.find(delimiter.as_str())? + delimiter.len();
            Some(format!("{}{}", request.prefix, &rest[..end]))
        });
        let after = request.after.as_deref().unwrap_or("");
        let passed = |text: &str| text < after || text == after && !keep_after;
        if passed(&key) && !after.is_empty() || group.as_deref().is_some_and(|group| group == after)
        {
            continue;
        }
        if let (Some(group), Some(ListItem::Group(last))) = (&group, items.last())
            && group == last
        {
            continue;
        }
        if items.len() == request.max {
            return ListPage { items, truncated: true };
        }
        items.push(match group {
            Some(group) => ListItem::Group(group),
            None => ListItem::Entry(entry),
        });
    }
    ListPage { items, truncated: false }
}

impl Objects for Memory {
    async fn create_bucket(
        &self,
        name: &BucketName,
        location: Option<String>,
    ) -> Result<BucketRecord, ObjectError> {
        let id = BucketId(self.op().seq.0);
        let mut buckets = self.buckets.lock().unwrap();
        if buckets.contains_key(name) {
            return Err(ObjectError::BucketExists);
        }
        let record = BucketRecord {
            id,
            name: name.clone(),
            epoch: Epoch(1),
            state: BucketState::Live,
            created_ms: now().ms(),
            location,
            write_policy: larder_types::WritePolicy::All,
            regions: 1,
            home: None,
            sharing: larder_types::Sharing::All,
            cors: None,
        };
        let bucket = Bucket {
            record: record.clone(),
            objects: BTreeMap::new(),
            uploads: BTreeMap::new(),
            completed: BTreeMap::new(),
        };
        buckets.insert(name.clone(), bucket);
        Ok(record)
    }

    async fn catch_up(&self) -> Result<(), ObjectError> {
        self.catch_ups.fetch_add(1, Ordering::Relaxed);
        if self.is_cut_off.load(Ordering::Relaxed) {
            return Err(ObjectError::Unavailable { reason: "the managers are away".to_owned() });
        }
        let made = std::mem::take(&mut *self.elsewhere.lock().unwrap());
        for name in made {
            self.create_bucket(&name, None).await?;
        }
        Ok(())
    }

    async fn delete_bucket(&self, name: &BucketName) -> Result<(), ObjectError> {
        self.with(name, |bucket| match bucket.objects.is_empty() {
            true => Ok(()),
            false => Err(ObjectError::BucketNotEmpty),
        })?;
        self.buckets.lock().unwrap().remove(name);
        Ok(())
    }

    async fn set_cors(
        &self,
        name: &BucketName,
        rules: Option<CorsRules>,
    ) -> Result<(), ObjectError> {
        if rules.is_some() && self.no_cors.load(Ordering::Relaxed) {
            return Err(ObjectError::Unsupported { what: "keeping CORS rules" });
        }
        self.with(name, |bucket| {
            bucket.record.cors = rules;
            Ok(())
        })
    }

    fn cors(&self, name: &BucketName) -> Option<CorsRules> {
        self.with(name, |bucket| Ok(bucket.record.cors.clone())).ok().flatten()
    }

    fn bucket(&self, name: &BucketName) -> Result<BucketRecord, ObjectError> {
        self.with(name, |bucket| Ok(bucket.record.clone()))
    }

    fn buckets(&self) -> Result<Vec<BucketRecord>, ObjectError> {
        Ok(self.buckets.lock().unwrap().values().map(|bucket| bucket.record.clone()).collect())
    }

    async fn put<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: PutOptions,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        self.bucket(bucket)?;
        if self.full.load(Ordering::Relaxed) {
            return Err(ObjectError::Full);
        }
        let (bytes, digest) = collect(body).await?;
        let op = self.op();
        let metax = metax(bytes.len() as u64, digest, options.attributes);
        self.with(bucket, |bucket| {
            check(&options.condition, bucket.objects.get(key))?;
            self.commits.fetch_add(1, Ordering::Relaxed);
            let done = done(&metax);
            bucket.objects.insert(key.clone(), Stored { op, metax, bytes, parts: Vec::new() });
            Ok(done)
        })
    }

    fn takes_appends(&self) -> bool {
        !self.no_appends.load(Ordering::Relaxed)
    }

    async fn append<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: AppendOptions,
        body: B,
    ) -> Result<AppendDone, ObjectError> {
        let (bytes, digest) = collect(body).await?;
        if bytes.is_empty() {
            return Err(ObjectError::EmptyAppend);
        }
        if options.at == AppendAt::End && bytes.len() as u64 > RECORD_BYTES_MAX {
            return Err(ObjectError::TooLarge {
                what: "the record",
                limit_bytes: RECORD_BYTES_MAX,
            });
        }
        let op = self.op();
        let piece = metax(bytes.len() as u64, digest, options.attributes);
        self.with(bucket, |bucket| {
            let old = bucket.objects.get(key);
            check(&options.condition, old)?;
            let offset = old.map_or(0, |old| old.metax.size);
            if matches!(options.at, AppendAt::Offset(wanted) if wanted != offset) {
                return Err(ObjectError::WriteOffset { size: offset });
            }
            let (metax, bytes) = match old {
                None => (piece, bytes),
                Some(old) => (grown(&old.metax, &piece), [&old.bytes[..], &bytes].concat().into()),
            };
            let object = done(&metax);
            bucket.objects.insert(key.clone(), Stored { op, metax, bytes, parts: Vec::new() });
            Ok(AppendDone { offset, object })
        })
    }

    async fn open(&self, bucket: &BucketName, key: &ObjectKey) -> Result<Opened, ObjectError> {
        self.with(bucket, |bucket| {
            let stored = bucket.objects.get(key).ok_or(ObjectError::NoSuchKey)?;
            let body = if stored.parts.is_empty() {
                Body::Inline(stored.bytes.clone())
            } else {
                let upload = UploadId { pg: PgId(0), op: stored.op };
                let part = |(part, _): &(ListedPart, u64)| larder_types::PartRef {
                    number: part.number,
                    len: part.metax.size,
                };
                Body::Parts { upload, parts: stored.parts.iter().map(part).collect() }
            };
            Ok(Opened {
                bucket: bucket.record.id,
                key: key.clone(),
                op: stored.op,
                metax: stored.metax.clone(),
                body,
                remote_parts: Vec::new(),
                bytes: None,
                remote: None,
            })
        })
    }

    async fn read(&self, object: &Opened, range: Range<u64>) -> Result<ReadBody, ObjectError> {
        assert!(range.start < range.end && range.end <= object.metax.size, "the range lies inside");
        self.perhaps_changed()?;
        if self.damaged.load(Ordering::Relaxed) {
            return Err(ObjectError::Damaged);
        }
        let buckets = self.buckets.lock().unwrap();
        let bucket = buckets.values().find(|bucket| bucket.record.id == object.bucket);
        let stored = bucket.and_then(|bucket| bucket.objects.get(&object.key));
        let stored = stored.filter(|stored| stored.op == object.op).ok_or(ObjectError::Changed)?;
        let bytes = stored.bytes.slice(range.start as usize..range.end as usize);
        if bytes.len() <= PIECE_BYTES {
            return Ok(ReadBody::Whole(bytes));
        }
        let mut pieces: Vec<_> = (0..bytes.len())
            .step_by(PIECE_BYTES)
            .map(|at| Ok(bytes.slice(at..bytes.len().min(at + PIECE_BYTES))))
            .collect();
        if self.breaks_off.load(Ordering::Relaxed) {
            pieces.pop();
            pieces.push(Err(ObjectError::Damaged));
        }
        Ok(ReadBody::Stream(Box::pin(stream::iter(pieces))))
    }

    async fn part(&self, object: &Opened, number: u16) -> Result<ListedPart, ObjectError> {
        self.perhaps_changed()?;
        let buckets = self.buckets.lock().unwrap();
        let bucket = buckets.values().find(|bucket| bucket.record.id == object.bucket);
        let stored = bucket.and_then(|bucket| bucket.objects.get(&object.key));
        let stored = stored.ok_or(ObjectError::Changed)?;
        let part = stored.parts.iter().find(|(part, _)| part.number == number);
        part.map(|(part, _)| part.clone()).ok_or(ObjectError::InvalidPart { number })
    }

    async fn link(
        &self,
        source: &Opened,
        bucket: &BucketName,
        key: &ObjectKey,
        options: PutOptions,
    ) -> Result<Option<PutDone>, ObjectError> {
        let Body::Inline(bytes) = &source.body else { return Ok(None) };
        if !self.links.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let metax = Metax { clock: now(), attributes: options.attributes, ..source.metax.clone() };
        let (op, bytes) = (self.op(), bytes.clone());
        self.with(bucket, |bucket| {
            check(&options.condition, bucket.objects.get(key))?;
            let done = done(&metax);
            bucket.objects.insert(key.clone(), Stored { op, metax, bytes, parts: Vec::new() });
            Ok(Some(done))
        })
    }

    async fn delete(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        condition: Condition,
    ) -> Result<(), ObjectError> {
        self.with(bucket, |bucket| {
            check(&condition, bucket.objects.get(key))?;
            bucket.objects.remove(key);
            Ok(())
        })
    }

    async fn set_tags(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        tags: Vec<(String, String)>,
    ) -> Result<(), ObjectError> {
        self.with(bucket, |bucket| {
            let stored = bucket.objects.get_mut(key).ok_or(ObjectError::NoSuchKey)?;
            stored.metax.attributes.tags = tags;
            Ok(())
        })
    }

    async fn list(
        &self,
        bucket: &BucketName,
        request: ListRequest,
    ) -> Result<ListPage<ListedObject>, ObjectError> {
        self.with(bucket, |bucket| {
            let entries = bucket.objects.iter().map(|(key, stored)| {
                let listed = ListedObject { key: key.clone(), metax: stored.metax.clone() };
                (key.as_str().to_owned(), listed)
            });
            Ok(page(entries, &request, false))
        })
    }

    /// Shows by a group that all regions were asked.
    async fn list_all_regions(
        &self,
        bucket: &BucketName,
        request: ListRequest,
    ) -> Result<ListPage<ListedObject>, ObjectError> {
        let mut page = self.list(bucket, request).await?;
        page.items.push(ListItem::Group("of-all-regions/".to_owned()));
        Ok(page)
    }

    async fn create_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: UploadOptions,
    ) -> Result<UploadId, ObjectError> {
        let upload = UploadId { pg: PgId(0), op: self.op() };
        let row = UploadRow {
            upload,
            key: key.clone(),
            clock: now(),
            attributes: options.attributes,
            checksum: options.checksum,
        };
        self.with(bucket, |bucket| {
            let parts = BTreeMap::new();
            bucket.uploads.insert((key.clone(), upload.op), Upload { row, parts });
            Ok(upload)
        })
    }

    async fn upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<UploadRow, ObjectError> {
        self.with(bucket, |bucket| {
            let found = bucket.uploads.get(&(key.clone(), upload.op));
            found.map(|upload| upload.row.clone()).ok_or(ObjectError::NoSuchUpload)
        })
    }

    async fn put_part<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        number: u16,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        let (bytes, digest) = collect(body).await?;
        let metax = metax(bytes.len() as u64, digest, Attributes::default());
        self.with(bucket, |bucket| {
            let found = bucket.uploads.get_mut(&(key.clone(), upload.op));
            let done = done(&metax);
            found.ok_or(ObjectError::NoSuchUpload)?.parts.insert(number, (metax, bytes));
            Ok(done)
        })
    }

    async fn list_parts(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        after: u16,
        max: usize,
    ) -> Result<PartsPage, ObjectError> {
        self.with(bucket, |bucket| {
            let found = bucket.uploads.get(&(key.clone(), upload.op));
            let found = found.ok_or(ObjectError::NoSuchUpload)?;
            let mut left = found.parts.range(after.saturating_add(1)..);
            let parts = left.by_ref().take(max).map(listed).collect();
            Ok(PartsPage { upload: found.row.clone(), parts, truncated: left.next().is_some() })
        })
    }

    async fn complete_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        options: CompleteOptions,
    ) -> Result<PutDone, ObjectError> {
        let op = self.op();
        self.with(bucket, |bucket| {
            let place = (key.clone(), upload.op);
            if let Some(done) = bucket.completed.get(&place) {
                return Ok(done.clone());
            }
            let found = bucket.uploads.get(&place).ok_or(ObjectError::NoSuchUpload)?;
            let stored: Vec<_> = found.parts.iter().map(listed).collect();
            let whole = assemble(&found.row, &stored, &options)?;
            check(&options.condition, bucket.objects.get(key))?;
            let found = bucket.uploads.remove(&place).unwrap();
            let mut bytes = BytesMut::new();
            let mut parts = Vec::new();
            for named in &options.parts {
                let (metax, data) = &found.parts[&named.number];
                let listed = ListedPart { number: named.number, metax: metax.clone() };
                parts.push((listed, bytes.len() as u64));
                bytes.extend_from_slice(data);
            }
            let metax = Metax {
                size: bytes.len() as u64,
                clock: now(),
                region: RegionId(0),
                etag: whole.etag,
                checksum: whole.checksum,
                attributes: found.row.attributes,
                expires_ms: None,
                encryption: None,
                retention: None,
            };
            let done = done(&metax);
            bucket.completed.insert(place, done.clone());
            bucket.objects.insert(key.clone(), Stored { op, metax, bytes: bytes.freeze(), parts });
            Ok(done)
        })
    }

    async fn abort_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<(), ObjectError> {
        self.with(bucket, |bucket| {
            let removed = bucket.uploads.remove(&(key.clone(), upload.op));
            removed.map(|_| ()).ok_or(ObjectError::NoSuchUpload)
        })
    }

    async fn list_uploads(
        &self,
        bucket: &BucketName,
        request: ListRequest,
        after_upload: Option<UploadId>,
    ) -> Result<ListPage<UploadRow>, ObjectError> {
        self.with(bucket, |bucket| {
            let after = request.after.clone().unwrap_or_default();
            let entries = bucket
                .uploads
                .iter()
                .filter(|((key, op), _)| {
                    key.as_str() != after || after_upload.is_some_and(|after| *op > after.op)
                })
                .map(|((key, _), upload)| (key.as_str().to_owned(), upload.row.clone()));
            Ok(page(entries, &request, true))
        })
    }
}
