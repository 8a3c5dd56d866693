//! Appends: the chunks of a piece like those of a large put, then the op that makes them the object's end (ADR 15).

use std::sync::atomic::{AtomicU64, Ordering};

use larder_objects::{
    AppendAt, AppendDone, AppendOptions, BodyDigest, ObjectError, PutBody, PutDone,
};
use larder_protocol::{AppendCall, Call, Content, Description};
use larder_types::home;
use larder_types::limits::{INLINE_BYTES_MAX, PUT_BYTES_MAX, RECORD_BYTES_MAX};
use larder_types::{
    BucketId, BucketName, BucketRecord, Decider, ETag, Epoch, ObjectKey, PgId, RegionId,
};

use super::homes::COMING;
use super::put::{Chunks, Limit, Pieces, PutRequest, StreamGuard};
use super::role_access::RoleAccess;
use super::{Proxy, unavailable, unexpected};
use crate::ticket::Settled;

/// Appends that were acknowledged, for metrics.
#[derive(Debug, Default)]
pub struct AppendCounters {
    /// At an offset that the client named.
    pub at_offset: AtomicU64,
    /// Records.
    pub records: AtomicU64,
    /// Bytes of both.
    pub bytes: AtomicU64,
}

impl AppendCounters {
    fn count(&self, at: AppendAt, bytes: u64) {
        let appends = match at {
            AppendAt::Offset(_) => &self.at_offset,
            AppendAt::End => &self.records,
        };
        appends.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn limit(at: AppendAt) -> Limit {
    match at {
        AppendAt::Offset(_) => Limit { what: "what is appended", bytes: PUT_BYTES_MAX },
        AppendAt::End => Limit { what: "the record", bytes: RECORD_BYTES_MAX },
    }
}

/// A region without a home for the bucket takes no appends.
const HOMELESS: &str = "appends to a bucket of several regions that has no home: `larder region home DIR BUCKET here` gives it one";
/// The bytes of an append, committed or small enough to come along.
pub(super) struct Appending<R: RoleAccess> {
    pub(super) content: Content,
    pub(super) size: u64,
    pub(super) digest: BodyDigest,
    guard: Option<StreamGuard<R>>,
}

impl<R: RoleAccess> Appending<R> {
    /// They are the end of the object.
    pub(super) fn claimed(self) {
        if let Some(mut guard) = self.guard {
            guard.claimed();
        }
    }
}

impl<R: RoleAccess> Proxy<R> {
    /// The region that decides an append, if it is another one. In a bucket of several regions only the home does: where the object
    /// ends has to hold in all of them.
    ///
    /// # Errors
    /// If the bucket has no home, or the region takes no changes now.
    pub(super) fn home_of_append(
        &self,
        bucket: &BucketName,
    ) -> Result<Option<RegionId>, ObjectError> {
        if self.access.region() == RegionId::OWN {
            return Ok(None);
        }
        self.may_change()?;
        match self.access.bucket(bucket, append_decider) {
            Some(Some(Decider::Region(region))) => Ok(Some(region)),
            Some(Some(Decider::Nobody)) => Err(unavailable(COMING)),
            Some(None) => Err(ObjectError::Unsupported { what: HOMELESS }),
            // A bucket that is not there is refused where the key is looked for.
            Some(Some(Decider::Here)) | None => Ok(None),
        }
    }

    /// Makes a client's append here: this region is the bucket's home, or the bucket needs none.
    ///
    /// # Errors
    /// [`ObjectError`]; [`ObjectError::SlowDown`] if another region decides about it by now.
    pub(crate) async fn append_here<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: AppendOptions,
        body: B,
    ) -> Result<AppendDone, ObjectError> {
        let made = self.append_object(bucket, key, options, body).await;
        self.changed(bucket, key, made, |_| None).await
    }

    async fn append_object<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: AppendOptions,
        mut body: B,
    ) -> Result<AppendDone, ObjectError> {
        let AppendOptions { at, attributes, condition, .. } = options;
        let place = self.place_of_append(bucket, key)?;
        let wanted = self.wanted(place, (bucket, key), attributes, condition);
        let limit = limit(at);
        if body.len().is_some_and(|len| len > limit.bytes) {
            return Err(limit.exceeded());
        }
        let appending = self.store_appended(&wanted, &mut body, limit).await?;
        let request = self.requests.begin();
        let size = appending.size;
        let call = Call::Append(Box::new(AppendCall {
            request: request.id(),
            bucket: wanted.bucket,
            epoch: wanted.epoch,
            key: wanted.key,
            offset: at.offset(),
            description: Description {
                size,
                etag: ETag::Md5(appending.digest.md5),
                checksum: appending.digest.checksum.clone(),
                attributes: wanted.attributes,
            },
            content: appending.content.clone(),
            condition: wanted.condition,
        }));
        match self.access.submit(wanted.pg, call).await? {
            Settled::Appended(done) => {
                appending.claimed();
                self.appends.count(at, size);
                self.note_appended(bucket, key, &done.made);
                let (made, clock) = (done.made, done.clock);
                let object =
                    PutDone { etag: made.etag, checksum: made.checksum, clock, size: made.size };
                Ok(AppendDone { offset: made.offset, object })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// The place of an append that is decided here, as one record says.
    fn place_of_append(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<(BucketId, Epoch, PgId), ObjectError> {
        if self.access.region() == RegionId::OWN {
            return self.place(bucket, key);
        }
        let look = |record: &BucketRecord| (record.id, record.epoch, append_decider(record));
        match self.access.bucket(bucket, look).ok_or(ObjectError::NoSuchBucket)? {
            (id, epoch, Some(Decider::Here)) => Ok((id, epoch, self.access.pg_of(id, key))),
            (.., Some(Decider::Nobody)) => Err(unavailable(COMING)),
            // It has moved since somebody looked.
            (.., Some(Decider::Region(_)) | None) => Err(ObjectError::SlowDown),
        }
    }

    /// Commits what is to be appended, or keeps it if it is small enough to come along with the append.
    pub(super) async fn store_appended<B: PutBody>(
        &self,
        wanted: &PutRequest,
        body: &mut B,
        limit: Limit,
    ) -> Result<Appending<R>, ObjectError> {
        self.access.admit_data()?;
        if body.len() == Some(0) {
            return Err(ObjectError::EmptyAppend);
        }
        let mut pieces = Pieces::default();
        while pieces.len <= INLINE_BYTES_MAX as usize {
            match body.next().await {
                Some(piece) => pieces.push(piece?),
                None if pieces.len == 0 => return Err(ObjectError::EmptyAppend),
                None => {
                    let (size, digest) = (pieces.len as u64, body.finish()?);
                    let content = Content::Inline(pieces.into_bytes());
                    return Ok(Appending { content, size, digest, guard: None });
                }
            }
        }
        let Chunks { guard, content, size, digest } =
            self.store_chunks(wanted, pieces, body, limit).await?;
        Ok(Appending { content, size, digest, guard: Some(guard) })
    }
}

/// Where an append to a bucket is decided in a store of several regions; `None` if nowhere.
pub(super) fn append_decider(record: &BucketRecord) -> Option<Decider> {
    if record.is_local() { Some(Decider::Here) } else { home::append_decider(record.home.as_ref()) }
}
