//! Uploads in parts of buckets that have their home in another region (ADR 48).
//!
//! Where all writes go to the home, an upload lies there from its beginning: each of its steps is passed on. Where only conditions
//! do, an upload lies in the region where it began. If it is completed under a condition elsewhere than at the home, its parts are
//! put there first.

use futures::StreamExt;
use larder_link::limits::CHANGE_BYTES_MAX;
use larder_link::{ChangeAnswer, ChangeKind, PartNamed, UploadAnswer, UploadRefusal, UploadStep};
use larder_objects::{
    BodyError, CompleteOptions, ListedPart, NamedPart, ObjectError, Opened, PartsPage, PutBody,
    PutDone, ReadBody, UploadOptions, assemble,
};
use larder_types::limits::{LIST_PAGE_MAX, PART_NUMBER_MAX};
use larder_types::{
    Body, BucketId, BucketName, Condition, ETag, ObjectKey, PartRef, PgId, RegionId, UploadId,
    UploadRow,
};

use super::homes::{Made, OTHER_ANSWER};
use super::put::Limit;
use super::reach::Reach;
use super::{Proxy, unavailable};

const OF_PARTS: Limit = Limit {
    what: "a part of an upload that goes to the bucket's home, another region,",
    bytes: CHANGE_BYTES_MAX as u64,
};

impl<R: Reach> Proxy<R> {
    /// The region that has an upload, if it is another one: it decides about all writes, and the upload is not here.
    pub(super) async fn home_of_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<Option<RegionId>, ObjectError> {
        // An upload that is here goes on, whatever the home does.
        let Ok(Some(home)) = self.home_of(bucket, false) else { return Ok(None) };
        match self.find_upload(bucket, key, upload).await {
            Ok(_) => Ok(None),
            Err(ObjectError::NoSuchUpload) => Ok(Some(home)),
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
    ) -> Result<Made, ObjectError> {
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
            Made::Uploaded(UploadAnswer::Begun(upload)) => Ok(upload),
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
        let (bytes, _place) = self.read_for_home(&mut body, OF_PARTS).await?;
        let digest = body.finish()?;
        let (md5, checksum, size) = (digest.md5, digest.checksum, bytes.len() as u64);
        let step = UploadStep::Part { upload, number, md5, checksum: checksum.clone(), bytes };
        match self.step_at_home(home, place, Condition::default(), step).await? {
            Made::Put(clock) => Ok(PutDone { etag: ETag::Md5(md5), checksum, clock, size }),
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
            Made::Uploaded(UploadAnswer::Shown { upload, parts, is_truncated }) => {
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

    /// Completes an upload whose key is decided about by another region. If it is here, its parts are put there first.
    pub(super) async fn complete_upload_at(
        &self,
        home: RegionId,
        place: (&BucketName, &ObjectKey),
        upload: UploadId,
        options: CompleteOptions,
    ) -> Result<PutDone, ObjectError> {
        let (id, pg, row) = match self.find_upload(place.0, place.1, upload).await {
            Ok(found) => found,
            Err(ObjectError::NoSuchUpload) => {
                return self.complete_at(home, place, upload, options).await;
            }
            Err(error) => return Err(error),
        };
        let parts = self.parts_to_hand_over((id, pg), &row, &options).await?;
        let begins = UploadOptions { attributes: row.attributes, checksum: row.checksum };
        let there = self.begin_upload_at(home, place, begins).await?;
        let completed = async {
            for part in parts {
                self.hand_over(home, place, (id, upload), part, there).await?;
            }
            self.complete_at(home, place, there, options).await
        };
        match completed.await {
            Ok(done) => {
                // An upload that stays ends by its age.
                if let Err(error) = self.abort_upload_here(place.0, place.1, upload).await {
                    tracing::debug!(%error, "an upload that was completed at its bucket's home stays here");
                }
                Ok(done)
            }
            Err(error) => {
                if let Err(error) = self.abort_upload_at(home, place, there).await {
                    tracing::debug!(%error, "an upload that failed stays at its bucket's home");
                }
                Err(error)
            }
        }
    }

    /// The parts that a client names, once they are known to make the object.
    async fn parts_to_hand_over(
        &self,
        (bucket, pg): (BucketId, PgId),
        row: &UploadRow,
        options: &CompleteOptions,
    ) -> Result<Vec<ListedPart>, ObjectError> {
        let stored = self.parts_of(bucket, pg, row.upload).await?;
        let assembled = assemble(row, &stored, options)?;
        let is_named = |part: &ListedPart| {
            assembled.parts.binary_search_by_key(&part.number, |it| it.number).is_ok()
        };
        let parts: Vec<_> = stored.into_iter().filter(is_named).collect();
        match parts.iter().all(|part| part.metax.size <= OF_PARTS.bytes) {
            true => Ok(parts),
            false => Err(OF_PARTS.exceeded()),
        }
    }

    /// Puts a part that is here at the home.
    async fn hand_over(
        &self,
        home: RegionId,
        place: (&BucketName, &ObjectKey),
        (bucket, upload): (BucketId, UploadId),
        part: ListedPart,
        there: UploadId,
    ) -> Result<(), ObjectError> {
        let ListedPart { number, metax } = part;
        let ETag::Md5(md5) = metax.etag else { return Err(ObjectError::InvalidPart { number }) };
        let (size, checksum) = (metax.size, metax.checksum.clone());
        let parts = vec![PartRef { number, len: size }];
        let body = Body::Parts { upload, parts };
        let (key, told_parts) = (place.1.clone(), Vec::new());
        let opened = Opened { bucket, key, op: upload.op, metax, body, told_parts };
        let _place = self.place_for_change().await?;
        let mut bytes = Vec::with_capacity(size as usize);
        match self.read_range(&opened, 0..size).await? {
            ReadBody::Whole(whole) => bytes.extend_from_slice(&whole),
            ReadBody::Stream(mut pieces) => {
                while let Some(piece) = pieces.next().await {
                    bytes.extend_from_slice(&piece?);
                }
            }
        }
        let bytes = bytes.into();
        let step = UploadStep::Part { upload: there, number, md5, checksum, bytes };
        self.step_at_home(home, place, Condition::default(), step).await.map(|_made| ())
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
        let parts = parts.into_iter().map(told).collect();
        let step = UploadStep::Complete { upload, parts, checksum, size };
        match self.step_at_home(home, place, condition, step).await? {
            Made::Uploaded(UploadAnswer::Completed { etag, checksum, size, clock }) => {
                Ok(PutDone { etag, checksum, clock, size })
            }
            _ => Err(unavailable(OTHER_ANSWER)),
        }
    }
}

fn told(NamedPart { number, etag, checksum }: NamedPart) -> PartNamed {
    PartNamed { number, etag, checksum }
}

/// The answer to a step of an upload that is refused for this.
pub(super) fn refusal_of(error: &ObjectError) -> Option<ChangeAnswer> {
    let refusal = match error {
        ObjectError::NoSuchUpload => UploadRefusal::NoSuchUpload,
        ObjectError::InvalidPart { number } => UploadRefusal::Part { number: *number },
        ObjectError::InvalidPartOrder => UploadRefusal::Order,
        ObjectError::PartTooSmall { number, bytes } => {
            UploadRefusal::TooSmall { number: *number, bytes: *bytes }
        }
        ObjectError::Body(BodyError::Incomplete) => UploadRefusal::Size,
        ObjectError::Body(BodyError::BadChecksum(_)) => UploadRefusal::Checksum,
        _ => return None,
    };
    Some(ChangeAnswer::Upload(UploadAnswer::Refused(refusal)))
}

/// The error of a step that was refused so.
pub(super) fn refused(refusal: UploadRefusal) -> ObjectError {
    match refusal {
        UploadRefusal::NoSuchUpload => ObjectError::NoSuchUpload,
        UploadRefusal::Part { number } => ObjectError::InvalidPart { number },
        UploadRefusal::Order => ObjectError::InvalidPartOrder,
        UploadRefusal::TooSmall { number, bytes } => ObjectError::PartTooSmall { number, bytes },
        UploadRefusal::Size => BodyError::Incomplete.into(),
        UploadRefusal::Checksum => BodyError::BadChecksum("checksum of the whole object").into(),
    }
}
