//! Appends: the chunks of a piece like those of a large put, then the op that makes them the object's end (ADR 15).

use std::sync::atomic::{AtomicU64, Ordering};

use larder_objects::{
    AppendAt, AppendDone, AppendOptions, BodyDigest, ObjectError, PutBody, PutDone,
};
use larder_protocol::{AppendCall, Call, Content, Description};
use larder_types::limits::{INLINE_BYTES_MAX, PUT_BYTES_MAX, RECORD_BYTES_MAX};
use larder_types::{BucketName, ETag, ObjectKey, RegionId};

use super::put::{Limit, Pieces, Wanted};
use super::reach::Reach;
use super::{Proxy, unexpected};
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

/// The request that a store among regions refuses, for the client's error.
pub(super) const IN_REGION: &str = "appends in a store that is a region (docs/regions.md)";

impl<R: Reach> Proxy<R> {
    pub(super) async fn append_object<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: AppendOptions,
        mut body: B,
    ) -> Result<AppendDone, ObjectError> {
        if self.reach.region() != RegionId::OWN {
            return Err(ObjectError::Unsupported { what: IN_REGION });
        }
        let AppendOptions { at, attributes, condition, .. } = options;
        let place = self.place(bucket, key)?;
        let wanted = self.wanted(place, (bucket, key), attributes, condition);
        self.reach.admit_data()?;
        let limit = limit(at);
        match body.len() {
            Some(0) => return Err(ObjectError::EmptyAppend),
            Some(len) if len > limit.bytes => return Err(limit.exceeded()),
            _ => {}
        }
        let mut pieces = Pieces::default();
        while pieces.len <= INLINE_BYTES_MAX as usize {
            match body.next().await {
                Some(piece) => pieces.push(piece?),
                None => {
                    let (size, digest) = (pieces.len as u64, body.finish()?);
                    let content = Content::Inline(pieces.into_bytes());
                    return self.append_piece(wanted, at, content, size, digest).await;
                }
            }
        }
        let chunks = self.store_chunks(&wanted, pieces, &mut body, limit).await?;
        let appended =
            self.append_piece(wanted, at, chunks.content, chunks.size, chunks.digest).await?;
        chunks.guard.claimed();
        Ok(appended)
    }

    /// Makes what is committed, or small enough to come along, the end of the object.
    async fn append_piece(
        &self,
        wanted: Wanted,
        at: AppendAt,
        content: Content,
        size: u64,
        digest: BodyDigest,
    ) -> Result<AppendDone, ObjectError> {
        if size == 0 {
            return Err(ObjectError::EmptyAppend);
        }
        let request = self.requests.begin();
        let call = Call::Append(Box::new(AppendCall {
            request: request.id(),
            bucket: wanted.bucket,
            epoch: wanted.epoch,
            key: wanted.key,
            offset: match at {
                AppendAt::Offset(offset) => Some(offset),
                AppendAt::End => None,
            },
            description: Description {
                size,
                etag: ETag::Md5(digest.md5),
                checksum: digest.checksum,
                attributes: wanted.attributes,
            },
            content,
            condition: wanted.condition,
        }));
        match self.reach.ask(wanted.pg, call).await? {
            Settled::Appended(done) => {
                self.appends.count(at, size);
                let (made, clock) = (done.made, done.clock);
                let object =
                    PutDone { etag: made.etag, checksum: made.checksum, clock, size: made.size };
                Ok(AppendDone { offset: made.offset, object })
            }
            other => Err(unexpected(&other)),
        }
    }
}
