//! Multipart uploads: a part is packed, or an object of its own, as an object of its size would be. Completing moves no
//! bytes.

use larder_objects::{
    CompleteOptions, ListedPart, ObjectError, PartsPage, PutBody, PutDone, UploadOptions,
};
use larder_types::limits::{LIST_PAGE_MAX, PART_NUMBER_MAX};
use larder_types::{Attributes, BucketId, BucketName, ETag, ObjectKey, UploadId, UploadRow};

use crate::commit::command::{Command, Description, Done, Target};
use crate::commit::plan::put_done;
use crate::error::unread;
use crate::format::entry::Content;
use crate::objects::body;
use crate::packer::Packer;

impl Packer {
    pub(crate) async fn begin_upload(
        &self,
        target: Target,
        options: UploadOptions,
    ) -> Result<UploadId, ObjectError> {
        match self.change(Command::BeginUpload { target, options }).await? {
            Done::Upload(upload) => Ok(upload),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn find_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<(BucketId, UploadRow), ObjectError> {
        let id = self.live(bucket)?;
        let row = self.shared.index.upload(id, key, upload).map_err(unread)?;
        Ok((id, row.ok_or(ObjectError::NoSuchUpload)?))
    }

    pub(crate) async fn put_upload_part<B: PutBody>(
        &self,
        target: Target,
        upload: UploadId,
        number: u16,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        if !(1..=PART_NUMBER_MAX).contains(&number) {
            return Err(ObjectError::InvalidPartOrder);
        }
        self.find_upload(&target.bucket, &target.key, upload)?;
        self.admit()?;
        let (body, digest) = body::take(&self.shared, body).await?;
        let attributes = Attributes::default();
        let description =
            Description { etag: ETag::Md5(digest.md5), checksum: digest.checksum, attributes };
        let there = body::there(&body);
        let command = Command::PutPart { target, upload, number, description, body };
        self.put_body(command, there).await
    }

    pub(crate) fn list_upload_parts(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        after: u16,
        max: usize,
    ) -> Result<PartsPage, ObjectError> {
        let (id, row) = self.find_upload(bucket, key, upload)?;
        let max = max.min(LIST_PAGE_MAX);
        let parts = self.shared.index.parts(id, upload, after, max + 1).map_err(unread)?;
        let truncated = parts.len() > max;
        let listed = |(number, part): (u16, crate::format::rows::PackedPart)| ListedPart {
            number,
            metax: part.metax,
        };
        let parts = parts.into_iter().take(max).map(listed).collect();
        Ok(PartsPage { upload: row, parts, truncated })
    }

    pub(crate) async fn finish_upload(
        &self,
        target: Target,
        upload: UploadId,
        options: CompleteOptions,
    ) -> Result<PutDone, ObjectError> {
        let command = Command::Complete { target: target.clone(), upload, options };
        match self.change(command).await {
            Ok(Done::Put(done)) => Ok(done),
            Ok(other) => Err(unexpected(&other)),
            Err(ObjectError::NoSuchUpload) => self.finished_before(&target, upload),
            Err(error) => Err(error),
        }
    }

    /// A completion that is repeated gets the answer of the first.
    fn finished_before(&self, target: &Target, upload: UploadId) -> Result<PutDone, ObjectError> {
        let id = self.live(&target.bucket)?;
        let version = self.shared.index.version(id, &target.key).map_err(unread)?;
        match version {
            Some(version) if matches!(version.content, Content::Parts { upload: of, .. } if of == upload) => {
                Ok(put_done(&version.metax))
            }
            _ => Err(ObjectError::NoSuchUpload),
        }
    }
}

pub(crate) fn unexpected(done: &Done) -> ObjectError {
    tracing::error!(?done, "a change was answered as another kind of change");
    crate::error::unavailable("the store answered wrongly")
}
