//! Objects of a store that several workers share, as a face sees them.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use larder_objects::{
    BodyDigest, BodyError, ListPage, ListRequest, ListedObject, ListedPart, ObjectError, Opened,
    PutBody, ReadBody,
};
use larder_types::{BucketName, Condition, ETag, EtagList, ObjectKey, OpId, UploadId, UploadRow};

use crate::commit::command::{Command, Description};
use crate::error::unread;
use crate::ids::WorkerId;
use crate::objects::body;
use crate::objects::{opened, target};
use crate::packer::Packer;
use crate::peers::Others;
use crate::peers::list;
use crate::peers::view::{Item, RowOwner};
use crate::read::{self, Bodies};

impl Packer {
    fn newest(
        &self,
        others: &Others,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<Item, ObjectError> {
        self.shared_bucket(others, bucket)?;
        let found = others.newest(&self.shared.index, bucket, key).map_err(unread)?;
        found.ok_or(ObjectError::NoSuchKey)
    }

    pub(crate) fn open_shared(
        &self,
        others: &Others,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<Opened, ObjectError> {
        let Item { bucket, version, .. } = self.newest(others, bucket, key)?;
        Ok(opened(bucket, key, version))
    }

    /// Where the bytes of the worker are that put something.
    fn bodies_of(&self, others: &Others, op: OpId) -> Result<Arc<Bodies>, ObjectError> {
        let worker = WorkerId(op.view.0);
        if others.is_own(worker) {
            return Ok(self.shared.bodies.clone());
        }
        let known = others.known().into_iter().find(|of| of.worker.line() == worker.line());
        Ok(known.ok_or(ObjectError::Changed)?.bodies.clone())
    }

    pub(crate) async fn read_shared(
        &self,
        others: &Others,
        object: &Opened,
        range: Range<u64>,
    ) -> Result<ReadBody, ObjectError> {
        let bodies = self.bodies_of(others, object.op)?;
        let version = bodies.index.version(object.bucket, &object.key).map_err(unread)?;
        let version = version.filter(|version| version.op == object.op);
        let content = version.ok_or(ObjectError::Changed)?.content;
        read::read(bodies, (object.bucket, &object.key), content, range).await
    }

    pub(crate) fn part_shared(
        &self,
        others: &Others,
        object: &Opened,
        (upload, number): (UploadId, u16),
    ) -> Result<ListedPart, ObjectError> {
        let bodies = self.bodies_of(others, object.op)?;
        let part = bodies.index.part(object.bucket, upload, number).map_err(unread)?;
        Ok(ListedPart { number, metax: part.ok_or(ObjectError::Changed)?.metax })
    }

    /// Returns true if this worker put a version: then it can be linked, and tagged, without its
    /// bytes.
    pub(crate) fn is_own(&self, op: OpId) -> bool {
        let others = self.shared.others.as_ref();
        others.is_none_or(|others| others.is_own(WorkerId(op.view.0)))
    }

    pub(crate) async fn delete_shared(
        &self,
        others: &Others,
        bucket: &BucketName,
        key: &ObjectKey,
        condition: Condition,
    ) -> Result<(), ObjectError> {
        self.shared_bucket(others, bucket)?;
        self.bury(target(bucket, key), condition).await
    }

    /// Tags a version. Of another worker's a copy is made here, and tagged: only its worker could do else.
    pub(crate) async fn tag_shared(
        &self,
        others: &Others,
        bucket: &BucketName,
        key: &ObjectKey,
        tags: Vec<(String, String)>,
    ) -> Result<(), ObjectError> {
        let item = self.newest(others, bucket, key)?;
        if let RowOwner::Own = item.whose {
            return self.change(Command::Tag { target: target(bucket, key), tags }).await.map(drop);
        }
        self.use_shared_bucket(others, bucket).await?;
        self.admit()?;
        let object = opened(item.bucket, key, item.version);
        let size = object.metax.size;
        let given = match size {
            0 => ReadBody::Whole(Bytes::new()),
            _ => self.read_shared(others, &object, 0..size).await?,
        };
        let (body, _) = body::take(&self.shared, Copied { given: Some(given), size }).await?;
        let metax = object.metax;
        let condition = Condition { if_match: Some(exactly(&metax.etag)), ..Condition::default() };
        let mut attributes = metax.attributes;
        attributes.tags = tags;
        let description = Description { etag: metax.etag, checksum: metax.checksum, attributes };
        let (there, target) = (body::there(&body), target(bucket, key));
        match self.put_body(Command::Put { target, description, condition, body }, there).await {
            Ok(_) => Ok(()),
            Err(ObjectError::PreconditionFailed) => Err(ObjectError::Changed),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn list_shared(
        &self,
        others: &Others,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ListedObject>, ObjectError> {
        self.shared_bucket(others, bucket)?;
        list::fill(others, &self.shared.index, bucket, request)
    }

    pub(crate) fn list_uploads_shared(
        &self,
        others: &Others,
        bucket: &BucketName,
        request: &ListRequest,
        after_upload: Option<UploadId>,
    ) -> Result<ListPage<UploadRow>, ObjectError> {
        self.shared_bucket(others, bucket)?;
        list::fill_uploads(others, &self.shared.index, bucket, request, after_upload)
    }
}

/// A condition that a version is this one.
fn exactly(etag: &ETag) -> EtagList {
    EtagList::Of(vec![etag.text()])
}

/// A body that is another's.
struct Copied {
    given: Option<ReadBody>,
    size: u64,
}

impl PutBody for Copied {
    fn len(&self) -> Option<u64> {
        Some(self.size)
    }

    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        match self.given.take()? {
            ReadBody::Whole(bytes) => Some(Ok(bytes)).filter(|_| self.size > 0),
            ReadBody::Stream(mut pieces) => {
                let piece = pieces.next().await?;
                self.given = Some(ReadBody::Stream(pieces));
                Some(piece.map_err(|_broken| BodyError::Incomplete))
            }
        }
    }

    fn finish(&mut self) -> Result<BodyDigest, BodyError> {
        // Nobody announced anything: what it is, is what the other's version says.
        Ok(BodyDigest { md5: [0; 16], checksum: None })
    }
}
