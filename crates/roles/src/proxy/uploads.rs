//! Uploads in parts of buckets that have their home in another region (ADR 48).
//!
//! Where all writes go to the home, an upload lies there from its beginning: each of its steps is passed on. Where only conditions
//! do, an upload lies in the region where it began, and is completed under a condition at the home alone.

use larder_link::limits::{CHANGE_BYTES_MAX, NAMED_BYTES_MAX};
use larder_link::{ChangeKind, PartNamed, UploadAnswer, UploadStep};
use larder_objects::{
    CompleteOptions, ListedPart, NamedPart, ObjectError, PartsPage, PutBody, PutDone, UploadOptions,
};
use larder_types::limits::{LIST_PAGE_MAX, PART_NUMBER_MAX};
use larder_types::{BucketName, Condition, ETag, ObjectKey, RegionId, UploadId};

use super::home_change::{HomeChange, OTHER_ANSWER};
use super::put::Limit;
use super::role_access::RoleAccess;
use super::{Proxy, unavailable};
use crate::limits::PART_PLACE_MS;

/// Parts stay in the region where they were put.
const UPLOAD: &str = "completing this upload outside of the region that is the bucket's home";
const OF_PARTS: Limit = Limit {
    what: "a part of an upload that goes to the bucket's home, another region,",
    bytes: CHANGE_BYTES_MAX as u64,
};

impl<R: RoleAccess> Proxy<R> {
    /// The region that may have an upload which is not here, if another one is the bucket's home: all writes may have gone there when
    /// the upload began.
    pub(super) async fn home_of_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<Option<RegionId>, ObjectError> {
        let home = self.home_of(bucket, true);
        if home == Ok(None) {
            return Ok(None);
        }
        match self.find_upload(bucket, key, upload).await {
            // It goes on, whatever the home does.
            Ok(_) => Ok(None),
            Err(ObjectError::NoSuchUpload) => home,
            Err(error) => Err(error),
        }
    }

    /// Begins an upload, at the home if that decides about all writes.
    pub(super) async fn begin_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: UploadOptions,
    ) -> Result<UploadId, ObjectError> {
        match self.home_of(bucket, false)? {
            Some(home) => self.begin_upload_at(home, (bucket, key), options).await,
            None => self.begin_upload_here(bucket, key, options).await,
        }
    }

    /// Puts a part where the upload is.
    pub(super) async fn put_part_of<B: PutBody>(
        &self,
        (bucket, key): (&BucketName, &ObjectKey),
        upload: UploadId,
        number: u16,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        match self.home_of_upload(bucket, key, upload).await? {
            Some(home) => self.put_part_at(home, (bucket, key), (upload, number), body).await,
            None => self.put_upload_part(bucket, key, upload, number, body).await,
        }
    }

    /// Shows an upload, with parts behind a number.
    pub(super) async fn show_upload(
        &self,
        (bucket, key): (&BucketName, &ObjectKey),
        upload: UploadId,
        after: u16,
        max: usize,
    ) -> Result<PartsPage, ObjectError> {
        match self.home_of_upload(bucket, key, upload).await? {
            Some(home) => self.show_upload_at(home, (bucket, key), upload, (after, max)).await,
            None => self.list_upload_parts(bucket, key, upload, after, max).await,
        }
    }

    /// Ends an upload where it is.
    pub(super) async fn end_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<(), ObjectError> {
        match self.home_of_upload(bucket, key, upload).await? {
            Some(home) => self.abort_upload_at(home, (bucket, key), upload).await,
            None => self.abort_upload_here(bucket, key, upload).await,
        }
    }

    async fn step_at_home(
        &self,
        home: RegionId,
        place: (&BucketName, &ObjectKey),
        condition: Condition,
        step: UploadStep,
    ) -> Result<HomeChange, ObjectError> {
        self.change_at_home(home, place, condition, ChangeKind::Upload(step)).await
    }

    /// Begins an upload at the home.
    pub(super) async fn begin_upload_at(
        &self,
        home: RegionId,
        place: (&BucketName, &ObjectKey),
        options: UploadOptions,
    ) -> Result<UploadId, ObjectError> {
        let UploadOptions { attributes, checksum } = options;
        let step = UploadStep::Begin { attributes: Box::new(attributes), checksum };
        match self.step_at_home(home, place, Condition::default(), step).await? {
            HomeChange::Uploaded(UploadAnswer::Begun(upload)) => Ok(upload),
            _ => Err(unavailable(OTHER_ANSWER)),
        }
    }

    /// Puts a part of an upload that is at the home.
    pub(super) async fn put_part_at<B: PutBody>(
        &self,
        home: RegionId,
        place: (&BucketName, &ObjectKey),
        (upload, number): (UploadId, u16),
        mut body: B,
    ) -> Result<PutDone, ObjectError> {
        if !(1..=PART_NUMBER_MAX).contains(&number) {
            return Err(ObjectError::InvalidPartOrder);
        }
        let (bytes, _place) =
            self.read_for_home(&mut body, OF_PARTS, (&self.parts, PART_PLACE_MS)).await?;
        let digest = body.finish()?;
        let (md5, checksum, size) = (digest.md5, digest.checksum, bytes.len() as u64);
        let step = UploadStep::Part { upload, number, md5, checksum: checksum.clone(), bytes };
        match self.step_at_home(home, place, Condition::default(), step).await? {
            HomeChange::Put(clock) => Ok(PutDone { etag: ETag::Md5(md5), checksum, clock, size }),
            _ => Err(unavailable(OTHER_ANSWER)),
        }
    }

    /// Shows an upload that is at the home, with parts behind a number.
    pub(super) async fn show_upload_at(
        &self,
        home: RegionId,
        place: (&BucketName, &ObjectKey),
        upload: UploadId,
        (after, max): (u16, usize),
    ) -> Result<PartsPage, ObjectError> {
        let parts_max = max.min(LIST_PAGE_MAX) as u16;
        let step = UploadStep::Show { upload, after, parts_max };
        match self.step_at_home(home, place, Condition::default(), step).await? {
            HomeChange::Uploaded(UploadAnswer::Shown { upload, parts, is_truncated }) => {
                let parts = parts.into_iter().map(|(number, metax)| ListedPart { number, metax });
                let parts = parts.collect();
                Ok(PartsPage { upload: *upload, parts, truncated: is_truncated })
            }
            _ => Err(unavailable(OTHER_ANSWER)),
        }
    }

    /// Ends an upload that is at the home.
    pub(super) async fn abort_upload_at(
        &self,
        home: RegionId,
        place: (&BucketName, &ObjectKey),
        upload: UploadId,
    ) -> Result<(), ObjectError> {
        let step = UploadStep::Abort { upload };
        self.step_at_home(home, place, Condition::default(), step).await.map(|_made| ())
    }

    /// Completes an upload whose key another region decides about, if it lies there.
    pub(super) async fn complete_upload_at(
        &self,
        home: RegionId,
        place: (&BucketName, &ObjectKey),
        upload: UploadId,
        options: CompleteOptions,
    ) -> Result<PutDone, ObjectError> {
        match self.find_upload(place.0, place.1, upload).await {
            Ok(_) => Err(ObjectError::Unsupported { what: UPLOAD }),
            Err(ObjectError::NoSuchUpload) => self.complete_at(home, place, upload, options).await,
            Err(error) => Err(error),
        }
    }

    /// Completes an upload that is at the home.
    async fn complete_at(
        &self,
        home: RegionId,
        place: (&BucketName, &ObjectKey),
        upload: UploadId,
        options: CompleteOptions,
    ) -> Result<PutDone, ObjectError> {
        let CompleteOptions { parts, condition, checksum, size } = options;
        if parts.len() > usize::from(PART_NUMBER_MAX) {
            return Err(ObjectError::InvalidPartOrder);
        }
        // No part has such an entity tag.
        if let Some(part) = parts.iter().find(|part| part.etag.len() > NAMED_BYTES_MAX) {
            return Err(ObjectError::InvalidPart { number: part.number });
        }
        let parts = parts.into_iter().map(part_named).collect();
        let step = UploadStep::Complete { upload, parts, checksum, size };
        match self.step_at_home(home, place, condition, step).await? {
            HomeChange::Uploaded(UploadAnswer::Completed { etag, checksum, size, clock }) => {
                Ok(PutDone { etag, checksum, clock, size })
            }
            _ => Err(unavailable(OTHER_ANSWER)),
        }
    }
}

fn part_named(NamedPart { number, etag, checksum }: NamedPart) -> PartNamed {
    PartNamed { number, etag, checksum }
}
