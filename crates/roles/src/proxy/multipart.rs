//! Multipart uploads: parts are rows of their upload, and completing moves no data.

use larder_objects::{
    CompleteOptions, ListedPart, ObjectError, PartsPage, PutBody, PutDone, UploadOptions, assemble,
};
use larder_protocol::{Call, Description};
use larder_types::codec::decode;
use larder_types::limits::{LIST_PAGE_MAX, PART_NUMBER_MAX};
use larder_types::{
    Attributes, Body, BucketId, BucketName, Condition, ObjectKey, OpId, PartRow, PgId, Target,
    UploadId, UploadRow, rows,
};

use super::read::ReadPurpose;
use super::role_access::{RoleAccess, Scan, ScanStep};
use super::{Proxy, decoded, unavailable, unexpected};
use crate::ticket::Settled;

/// A part with the op that put it.
struct Stored {
    part: ListedPart,
    op: OpId,
}

impl<R: RoleAccess> Proxy<R> {
    /// An open upload's row, after everything that its PG has taken of it shows in the index.
    pub(super) async fn find_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<(BucketId, PgId, UploadRow), ObjectError> {
        let (id, _, pg) = self.place(bucket, key)?;
        let row = self.access.settled_row(pg, &rows::upload(id, key, upload)).await?;
        let row = row.ok_or(ObjectError::NoSuchUpload)?;
        Ok((id, pg, decoded("upload row", &row)?))
    }

    pub(crate) async fn put_upload_part<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        number: u16,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        if !(1..=PART_NUMBER_MAX).contains(&number) {
            return Err(ObjectError::InvalidPartOrder);
        }
        let (attributes, condition) = (Attributes::default(), Condition::default());
        let place = self.place(bucket, key)?;
        let mut wanted = self.wanted(place, (bucket, key), attributes, condition);
        wanted.target = Target::Part { upload, number };
        self.store(wanted, body).await
    }

    pub(crate) async fn list_upload_parts(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        after: u16,
        max: usize,
    ) -> Result<PartsPage, ObjectError> {
        let (id, pg, row) = self.find_upload(bucket, key, upload).await?;
        let max = max.min(LIST_PAGE_MAX);
        let mut parts = self.stored_parts(id, pg, upload, after, max + 1).await?;
        let truncated = parts.len() > max;
        parts.truncate(max);
        let parts = parts.into_iter().map(|stored| stored.part).collect();
        Ok(PartsPage { upload: row, parts, truncated })
    }

    /// Parts, after everything that their PG has taken of them shows in the index.
    async fn stored_parts(
        &self,
        bucket: BucketId,
        pg: PgId,
        upload: UploadId,
        after: u16,
        max: usize,
    ) -> Result<Vec<Stored>, ObjectError> {
        let from = rows::part(bucket, upload, after.saturating_add(1));
        let end = rows::prefix_end(&rows::parts(bucket, upload));
        let mut parts = Vec::new();
        let mut damaged = false;
        let to = end.as_deref();
        let scan = Scan { pg: Some(pg), settle: true, from, to, wanted: max };
        let scanned = self.access.scan(scan, |row, value| {
            match (rows::part_number(row), decode::<PartRow>("part row", value)) {
                (Some(number), Ok(row)) => {
                    let part = ListedPart { number, metax: row.metax };
                    parts.push(Stored { part, op: row.op });
                }
                _ => damaged = true,
            }
            if damaged || parts.len() >= max { ScanStep::Stop } else { ScanStep::Next }
        });
        scanned.await?;
        if damaged {
            return Err(unavailable("the index holds a part that cannot be used"));
        }
        Ok(parts)
    }

    /// Begins an upload in this region.
    pub(crate) async fn begin_upload_here(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: UploadOptions,
    ) -> Result<UploadId, ObjectError> {
        let (id, epoch, pg) = self.place(bucket, key)?;
        self.access.admit_data()?;
        let request = self.requests.begin();
        let call = Call::CreateUpload {
            request: request.id(),
            bucket: id,
            epoch,
            key: key.clone(),
            attributes: options.attributes,
            checksum: options.checksum,
        };
        match self.access.submit(pg, call).await? {
            Settled::Done(op, _) => Ok(UploadId { pg, op }),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends an upload of this region.
    pub(crate) async fn abort_upload_here(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<(), ObjectError> {
        let (id, _, pg) = self.place(bucket, key)?;
        let request = self.requests.begin();
        let (request, key) = (request.id(), key.clone());
        let call = Call::AbortUpload { request, bucket: id, key, upload };
        self.access.submit(pg, call).await.map(|_done| ())
    }

    /// Makes an object of an upload, where its key is decided about.
    pub(super) async fn finish_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        options: CompleteOptions,
    ) -> Result<PutDone, ObjectError> {
        match self.home_of(bucket, !options.condition.is_none())? {
            Some(home) => self.complete_upload_at(home, (bucket, key), upload, options).await,
            None => {
                let here = self.complete_upload_here(bucket, key, upload, options.clone()).await;
                if here != Err(ObjectError::NoSuchUpload) {
                    return here;
                }
                match self.home_of_upload(bucket, key, upload).await? {
                    Some(home) => {
                        self.complete_upload_at(home, (bucket, key), upload, options).await
                    }
                    None => here,
                }
            }
        }
    }

    /// Makes an object of an upload of this region, and waits until as many regions have it as the policy says.
    ///
    /// # Errors
    /// [`ObjectError`]; [`ObjectError::SlowDown`] if another region decides about the key by now.
    pub(crate) async fn complete_upload_here(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        options: CompleteOptions,
    ) -> Result<PutDone, ObjectError> {
        let made = self.make_of_upload(bucket, key, upload, options).await;
        self.changed(bucket, key, made, |_| None).await
    }

    async fn make_of_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
        options: CompleteOptions,
    ) -> Result<PutDone, ObjectError> {
        let has_condition = !options.condition.is_none();
        let (id, epoch, pg) = self.place_of_change(bucket, key, has_condition)?;
        self.access.admit()?;
        let row = match self.find_upload(bucket, key, upload).await {
            Ok((.., row)) => row,
            Err(ObjectError::NoSuchUpload) => {
                return self.finished_before(bucket, key, upload).await;
            }
            Err(error) => return Err(error),
        };
        let stored = self.stored_parts(id, pg, upload, 0, usize::from(PART_NUMBER_MAX)).await?;
        let (parts, ops): (Vec<_>, Vec<_>) =
            stored.into_iter().map(|stored| (stored.part, stored.op)).unzip();
        let assembled = assemble(&row, &parts, &options)?;
        let op_of =
            |number| parts.binary_search_by_key(&number, |part| part.number).map(|at| ops[at]);
        let mut named = Vec::with_capacity(assembled.parts.len());
        for part in &assembled.parts {
            let op =
                op_of(part.number).map_err(|_| ObjectError::InvalidPart { number: part.number })?;
            named.push((*part, op));
        }
        let description = Description {
            size: assembled.size,
            etag: assembled.etag.clone(),
            checksum: assembled.checksum.clone(),
            attributes: row.attributes,
        };
        let request = self.requests.begin();
        let call = Call::CompleteUpload {
            request: request.id(),
            bucket: id,
            epoch,
            key: key.clone(),
            upload,
            description: Box::new(description),
            parts: named,
            condition: options.condition,
        };
        match self.access.submit(pg, call).await? {
            Settled::Done(_, clock) => Ok(PutDone {
                etag: assembled.etag,
                checksum: assembled.checksum,
                clock,
                size: assembled.size,
            }),
            other => Err(unexpected(&other)),
        }
    }

    /// A completion that is repeated gets the answer of the first.
    async fn finished_before(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: UploadId,
    ) -> Result<PutDone, ObjectError> {
        match self.find(bucket, key, ReadPurpose::Metax).await {
            Ok(object) if matches!(object.body, Body::Parts { upload: of, .. } if of == upload) => {
                let larder_types::Metax { etag, checksum, clock, size, .. } = object.metax;
                Ok(PutDone { etag, checksum, clock, size })
            }
            Ok(_) | Err(ObjectError::NoSuchKey) => Err(ObjectError::NoSuchUpload),
            Err(error) => Err(error),
        }
    }
}
