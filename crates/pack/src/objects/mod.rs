//! A packed store as a face sees it.

mod body;
mod buckets;
mod handing;
mod multipart;
mod shared;

use std::ops::Range;

use larder_objects::{
    CompleteOptions, ListPage, ListRequest, ListedObject, ListedPart, ObjectError, Objects, Opened,
    Page, PartsPage, PutBody, PutDone, PutOptions, ReadBody, UploadOptions,
};
use larder_types::codec::decode;
use larder_types::{
    Body as StoredBody, BucketId, BucketName, BucketRecord, Condition, ETag, ObjectKey, UploadId,
    UploadRow,
};

use crate::class::RequestClass;
use crate::commit::command::{Command, Description, Done, Source, Target};
use crate::commit::queue::ask;
use crate::error::{unavailable, unread};
use crate::format::entry::{Container, Content};
use crate::format::rows::PackedVersion;
use crate::index::list;
use crate::limits::FOOTERS_BYTES_MAX;
use crate::objects::multipart::unexpected;
use crate::packer::Packer;
use crate::packer::config::Acknowledge;
use crate::peers::Others;
use crate::read;

impl Packer {
    pub(crate) fn live(&self, name: &BucketName) -> Result<BucketId, ObjectError> {
        self.shared.index.bucket_id(name).ok_or(ObjectError::NoSuchBucket)
    }

    /// The other workers, if the bucket is shared.
    pub(crate) fn others(&self) -> Option<&Others> {
        self.shared.others.as_deref()
    }

    /// A bucket into which this worker can put.
    async fn usable(&self, name: &BucketName) -> Result<BucketId, ObjectError> {
        match self.others() {
            None => self.live(name),
            Some(others) => self.use_shared_bucket(others, name).await,
        }
    }

    /// Turns bodies away early that would be refused after they were taken.
    pub(crate) fn admit(&self) -> Result<(), ObjectError> {
        let (bodies, footers) = self.shared.spool.waiting_bytes();
        match bodies >= self.shared.config.spool_bytes || footers >= FOOTERS_BYTES_MAX {
            true => Err(ObjectError::SlowDown),
            false => Ok(()),
        }
    }

    /// Lets a request in, unless another worker has taken this one's place.
    async fn owned(&self) -> Result<(), ObjectError> {
        self.shared.owner.admit().await
    }

    /// Counts a client's request that would have been one to the backend without packing.
    pub(crate) fn direct(&self, class: RequestClass) {
        self.counters().direct.count(class, 1);
    }

    /// Changes something, and waits until that counts.
    pub(crate) async fn change(&self, command: Command) -> Result<Done, ObjectError> {
        let asked = ask(&self.shared.queue, command).await;
        if let Err(ObjectError::Unavailable { .. }) = asked {
            self.shared.owner.refuse_superseded()?;
        }
        let (done, blob) = asked?;
        if self.shared.config.acknowledge == Acknowledge::Uploaded
            && !self.shared.uploaded(blob).await
        {
            self.shared.owner.refuse_superseded()?;
            return Err(unavailable("the store stopped before the change was uploaded"));
        }
        Ok(done)
    }

    /// Puts a body that was taken. If that is refused, nothing of it stays anywhere.
    pub(crate) async fn put_body(
        &self,
        command: Command,
        there: Option<Container>,
    ) -> Result<PutDone, ObjectError> {
        match self.change(command).await {
            Ok(Done::Put(done)) => Ok(done),
            Ok(other) => Err(unexpected(&other)),
            // It is not known if it was put.
            Err(error @ ObjectError::Unavailable { .. }) => Err(error),
            Err(error) => {
                body::drop_refused(&self.shared, there).await;
                Err(error)
            }
        }
    }
}

pub(crate) fn target(bucket: &BucketName, key: &ObjectKey) -> Target {
    Target { bucket: bucket.clone(), key: key.clone() }
}

/// A version of the index, as faces know it. The place of the bytes stays in the index, where a
/// read finds it again under the same op; an object in parts says its parts.
pub(crate) fn opened(bucket: BucketId, key: &ObjectKey, version: PackedVersion) -> Opened {
    let body = match version.content {
        Content::Run(_) => StoredBody::Inline(bytes::Bytes::new()),
        Content::Parts { upload, parts } => StoredBody::Parts { upload, parts },
    };
    let (remote_parts, remote) = (Vec::new(), None);
    let (op, metax, key) = (version.op, version.metax, key.clone());
    Opened { bucket, key, op, metax, body, bytes: None, remote_parts, remote }
}

impl Objects for Packer {
    async fn create_bucket(
        &self,
        name: &BucketName,
        location: Option<String>,
    ) -> Result<BucketRecord, ObjectError> {
        self.owned().await?;
        if let Some(others) = self.others() {
            return self.make_shared_bucket(others, name, location).await;
        }
        match self.change(Command::MakeBucket { name: name.clone(), location }).await? {
            Done::Bucket(record) => Ok(record),
            other => Err(unexpected(&other)),
        }
    }

    async fn delete_bucket(&self, name: &BucketName) -> Result<(), ObjectError> {
        self.owned().await?;
        if let Some(others) = self.others() {
            return self.remove_shared_bucket(others, name).await;
        }
        self.change(Command::RemoveBucket { name: name.clone() }).await.map(drop)
    }

    fn bucket(&self, name: &BucketName) -> Result<BucketRecord, ObjectError> {
        self.shared.owner.refuse_superseded()?;
        if let Some(others) = self.others() {
            return self.shared_bucket(others, name);
        }
        self.shared.index.bucket(name).ok_or(ObjectError::NoSuchBucket)
    }

    fn buckets(&self) -> Result<Vec<BucketRecord>, ObjectError> {
        self.shared.owner.refuse_superseded()?;
        if let Some(others) = self.others() {
            return self.shared_buckets(others);
        }
        Ok(self.shared.index.buckets())
    }

    async fn put<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: PutOptions,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        self.direct(RequestClass::Put);
        self.owned().await?;
        self.usable(bucket).await?;
        self.admit()?;
        let (body, digest) = body::take(&self.shared, body).await?;
        let PutOptions { attributes, condition } = options;
        let description =
            Description { etag: ETag::Md5(digest.md5), checksum: digest.checksum, attributes };
        let there = body::there(&body);
        let target = target(bucket, key);
        self.put_body(Command::Put { target, description, condition, body }, there).await
    }

    async fn open(&self, bucket: &BucketName, key: &ObjectKey) -> Result<Opened, ObjectError> {
        self.direct(RequestClass::Get);
        self.owned().await?;
        if let Some(others) = self.others() {
            return self.open_shared(others, bucket, key);
        }
        let id = self.live(bucket)?;
        let version = self.shared.index.version(id, key).map_err(unread)?;
        Ok(opened(id, key, version.ok_or(ObjectError::NoSuchKey)?))
    }

    async fn read(&self, object: &Opened, range: Range<u64>) -> Result<ReadBody, ObjectError> {
        assert!(range.start < range.end && range.end <= object.metax.size, "the range lies inside");
        self.owned().await?;
        // Before the place of the bytes is looked up: they stay until this reader is done.
        let reader = self.shared.readers.enter();
        if let Some(others) = self.others() {
            return Ok(reader.reading(self.read_shared(others, object, range).await?));
        }
        let version = self.shared.index.version(object.bucket, &object.key).map_err(unread)?;
        let version = version.filter(|version| version.op == object.op);
        let content = version.ok_or(ObjectError::Changed)?.content;
        let of = (object.bucket, &object.key);
        let body = read::read(self.shared.bodies.clone(), of, content, range).await?;
        Ok(reader.reading(body))
    }

    async fn part(&self, object: &Opened, number: u16) -> Result<ListedPart, ObjectError> {
        self.owned().await?;
        let StoredBody::Parts { upload, parts } = &object.body else {
            return Err(ObjectError::InvalidPart { number });
        };
        if !parts.iter().any(|part| part.number == number) {
            return Err(ObjectError::InvalidPart { number });
        }
        if let Some(others) = self.others() {
            return self.part_shared(others, object, (*upload, number));
        }
        let part = self.shared.index.part(object.bucket, *upload, number).map_err(unread)?;
        Ok(ListedPart { number, metax: part.ok_or(ObjectError::Changed)?.metax })
    }

    async fn link(
        &self,
        source: &Opened,
        bucket: &BucketName,
        key: &ObjectKey,
        options: PutOptions,
    ) -> Result<Option<PutDone>, ObjectError> {
        self.direct(RequestClass::Put);
        self.owned().await?;
        // Bytes in another worker's place are its own to move and to remove: they are copied.
        if !self.is_own(source.op) {
            return Ok(None);
        }
        self.usable(bucket).await?;
        let version = self.shared.index.version(source.bucket, &source.key).map_err(unread)?;
        let version = version.filter(|version| version.op == source.op);
        let version = version.ok_or(ObjectError::Changed)?;
        // Parts belong to one object: they go when it goes.
        if let Content::Parts { .. } = version.content {
            return Ok(None);
        }
        let Some(record) = self.shared.index.bucket_by_id(source.bucket) else {
            return Err(ObjectError::Changed);
        };
        let (etag, checksum) = (version.metax.etag, version.metax.checksum);
        let PutOptions { attributes, condition } = options;
        let description = Description { etag, checksum, attributes };
        let named = target(&record.name, &source.key);
        let source = Source { bucket: source.bucket, target: named, op: source.op };
        let target = target(bucket, key);
        match self.change(Command::Link { target, description, condition, source }).await? {
            Done::Put(done) => Ok(Some(done)),
            other => Err(unexpected(&other)),
        }
    }

    async fn delete(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        condition: Condition,
    ) -> Result<(), ObjectError> {
        self.direct(RequestClass::Delete);
        self.owned().await?;
        if let Some(others) = self.others() {
            return self.delete_shared(others, bucket, key, condition).await;
        }
        self.change(Command::Delete { target: target(bucket, key), condition }).await.map(drop)
    }

    async fn set_tags(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        tags: Vec<(String, String)>,
    ) -> Result<(), ObjectError> {
        self.direct(RequestClass::Put);
        self.owned().await?;
        if let Some(others) = self.others() {
            return self.tag_shared(others, bucket, key, tags).await;
        }
        self.change(Command::Tag { target: target(bucket, key), tags }).await.map(drop)
    }

    async fn list(
        &self,
        bucket: &BucketName,
        request: ListRequest,
    ) -> Result<ListPage<ListedObject>, ObjectError> {
        self.direct(RequestClass::List);
        self.owned().await?;
        if let Some(others) = self.others() {
            return self.list_shared(others, bucket, &request);
        }
        let page = Page::new(b'V', self.live(bucket)?, &request);
        list::fill(&self.shared.index, page, None, |key, value| {
            let row = decode::<PackedVersion>("a version's row", value).ok()?;
            Some(ListedObject { key, metax: row.metax })
        })
    }

    async fn create_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: UploadOptions,
    ) -> Result<UploadId, ObjectError> {
        self.direct(RequestClass::Put);
        self.owned().await?;
        self.usable(bucket).await?;
        self.begin_upload(target(bucket, key), options).await
    }

    async fn upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<UploadRow, ObjectError> {
        self.owned().await?;
        self.own_upload(bucket, upload)?;
        self.find_upload(bucket, key, upload).map(|(_, row)| row)
    }

    async fn put_part<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        number: u16,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        self.direct(RequestClass::Part);
        self.owned().await?;
        self.own_upload(bucket, upload)?;
        self.put_upload_part(target(bucket, key), upload, number, body).await
    }

    async fn list_parts(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        after: u16,
        max: usize,
    ) -> Result<PartsPage, ObjectError> {
        self.direct(RequestClass::List);
        self.owned().await?;
        self.own_upload(bucket, upload)?;
        self.list_upload_parts(bucket, key, upload, after, max)
    }

    async fn complete_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        options: CompleteOptions,
    ) -> Result<PutDone, ObjectError> {
        self.direct(RequestClass::Put);
        self.owned().await?;
        self.own_upload(bucket, upload)?;
        self.finish_upload(target(bucket, key), upload, options).await
    }

    async fn abort_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<(), ObjectError> {
        self.direct(RequestClass::Delete);
        self.owned().await?;
        self.begun_here(upload)?;
        self.change(Command::Abort { target: target(bucket, key), upload }).await.map(drop)
    }

    async fn list_uploads(
        &self,
        bucket: &BucketName,
        request: ListRequest,
        after_upload: Option<UploadId>,
    ) -> Result<ListPage<UploadRow>, ObjectError> {
        self.direct(RequestClass::List);
        self.owned().await?;
        if let Some(others) = self.others() {
            return self.list_uploads_shared(others, bucket, &request, after_upload);
        }
        let page = Page::new(b'U', self.live(bucket)?, &request);
        list::fill(&self.shared.index, page, after_upload, |_, value| {
            decode::<UploadRow>("an upload's row", value).ok()
        })
    }
}
