//! Puts: small ones in one op, larger ones in one chunk, the largest as a stream of chunks.

use std::pin::pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use larder_objects::{BodyDigest, BodyError, ObjectError, PutBody, PutDone, PutOptions};
use larder_protocol::{Call, Content, Description, PutCall};
use larder_types::checksum::{seed_of, sum_blocks};
use larder_types::limits::{CHUNK_BYTES_MAX, INLINE_BYTES_MAX, OBJECT_BYTES_MAX, PUT_BYTES_MAX};
use larder_types::{
    Attributes, BucketId, BucketName, Condition, ETag, Epoch, HybridClock, ObjectKey, PgId,
    Request, StreamId, Target,
};
use tokio::time::Instant;

use super::region_version::RegionVersion;
use super::role_access::{Ended, RoleAccess};
use super::{Proxy, max_wait};
use crate::limits::PUT_WINDOW_CHUNKS;

/// Everything about a put but its bytes.
pub(super) struct PutRequest {
    pub(super) bucket: BucketId,
    pub(super) epoch: Epoch,
    pub(super) pg: PgId,
    pub(super) key: ObjectKey,
    pub(super) target: Target,
    pub(super) attributes: Attributes,
    pub(super) condition: Condition,
    /// The number of replicas that must have the data before the client is answered; 0: all of the volume.
    pub(super) required_copies: u8,
    /// Another region has it, and tells what it is.
    pub(super) remote_version: Option<Box<RegionVersion>>,
}

/// Bytes of a body on their way into chunks.
#[derive(Clone, Default)]
pub(super) struct Pieces {
    pieces: Vec<Bytes>,
    pub(super) len: usize,
}

impl Pieces {
    pub(super) fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }

    /// Takes the first `len` bytes, without copying.
    fn take(&mut self, len: usize) -> Self {
        assert!(len <= self.len, "only what is there can be taken");
        let mut taken = Self::default();
        let mut rest = Vec::new();
        for mut piece in std::mem::take(&mut self.pieces) {
            let want = len - taken.len;
            if want == 0 {
                rest.push(piece);
            } else if piece.len() <= want {
                taken.push(piece);
            } else {
                taken.push(piece.split_to(want));
                rest.push(piece);
            }
        }
        self.pieces = rest;
        self.len -= len;
        taken
    }

    pub(super) fn into_bytes(self) -> Bytes {
        let mut pieces = self.pieces;
        match pieces.len() {
            0 => Bytes::new(),
            1 => pieces.remove(0),
            _ => {
                let mut joined = BytesMut::with_capacity(self.len);
                pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
                joined.freeze()
            }
        }
    }
}

/// The limit on the length of a body, and its name where that is too little.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) what: &'static str,
    pub(super) bytes: u64,
}

pub(super) const OF_REMOTE_CHANGE: Limit = Limit { what: "the object", bytes: OBJECT_BYTES_MAX };
const OF_PUTS: Limit = Limit { what: "the object", bytes: PUT_BYTES_MAX };

/// Frees the chunks of a stream that gets no parent.
pub(super) struct StreamGuard<R: RoleAccess> {
    access: Arc<R>,
    pg: PgId,
    bucket: BucketId,
    stream: StreamId,
    armed: bool,
}

impl<R: RoleAccess> StreamGuard<R> {
    pub(super) fn stream(&self) -> StreamId {
        self.stream
    }

    /// A parent has claimed the chunks.
    pub(super) fn claimed(&mut self) {
        self.armed = false;
    }
}

/// The chunks of a body, committed and without a parent yet.
pub(super) struct Chunks<R: RoleAccess> {
    pub(super) guard: StreamGuard<R>,
    /// The parent's names for them.
    pub(super) content: Content,
    /// Bytes of them all.
    pub(super) size: u64,
    pub(super) digest: BodyDigest,
}

impl<R: RoleAccess> Drop for StreamGuard<R> {
    fn drop(&mut self) {
        if self.armed {
            let (bucket, stream) = (self.bucket, self.stream);
            self.access.notify(self.pg, Call::DropStream { bucket, stream });
        }
    }
}

impl<R: RoleAccess> Proxy<R> {
    /// Makes a client's put here. Another region's client has asked the home, or none is asked.
    ///
    /// # Errors
    /// [`ObjectError`]; [`ObjectError::SlowDown`] if another region decides about it by now.
    pub(crate) async fn put_here<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: PutOptions,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        let _request = self.clients.begin();
        let made = self.put_object(bucket, key, options, body).await;
        self.changed(bucket, key, made, |_| None).await
    }

    async fn put_object<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: PutOptions,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        let PutOptions { attributes, condition, .. } = options;
        let place = self.place_of_change(bucket, key, !condition.is_none())?;
        let wanted = self.wanted(place, (bucket, key), attributes, condition);
        self.store(wanted, body).await
    }

    /// A version of a key, of which only the bytes are missing.
    pub(super) fn wanted(
        &self,
        (bucket, epoch, pg): (BucketId, Epoch, PgId),
        (name, key): (&BucketName, &ObjectKey),
        attributes: Attributes,
        condition: Condition,
    ) -> PutRequest {
        let (key, target, required_copies) =
            (key.clone(), Target::Version, self.required_copies(name));
        PutRequest {
            bucket,
            epoch,
            pg,
            key,
            target,
            attributes,
            condition,
            required_copies,
            remote_version: None,
        }
    }

    /// Stores a body as whatever is wanted.
    pub(super) async fn store<B: PutBody>(
        &self,
        wanted: PutRequest,
        mut body: B,
    ) -> Result<PutDone, ObjectError> {
        self.access.admit_data()?;
        // An object that was uploaded in parts elsewhere comes as a whole.
        let limit = if wanted.remote_version.is_some() { OF_REMOTE_CHANGE } else { OF_PUTS };
        if body.len().is_some_and(|len| len > limit.bytes) {
            return Err(limit.exceeded());
        }
        let mut pieces = Pieces::default();
        while pieces.len <= CHUNK_BYTES_MAX as usize {
            match body.next().await {
                Some(piece) => pieces.push(piece?),
                None => {
                    let digest = body.finish()?;
                    return self.store_small(wanted, pieces, digest).await;
                }
            }
        }
        let chunks = self.store_chunks(&wanted, pieces, &mut body, limit).await?;
        self.store_parent(wanted, chunks).await
    }

    async fn store_small(
        &self,
        wanted: PutRequest,
        pieces: Pieces,
        digest: BodyDigest,
    ) -> Result<PutDone, ObjectError> {
        let size = pieces.len as u64;
        let description = wanted.described(Description {
            size,
            etag: ETag::Md5(digest.md5),
            checksum: digest.checksum.clone(),
            attributes: wanted.attributes.clone(),
        })?;
        let clock = self.store_chunk(&wanted, description, pieces).await?;
        Ok(PutDone { etag: ETag::Md5(digest.md5), checksum: digest.checksum, clock, size })
    }

    /// Stores at most one chunk's bytes under one op. Retries with a new allocation if the write failed. The first op is
    /// revoked by then, so that one put takes effect once. All tries have one time.
    async fn store_chunk(
        &self,
        wanted: &PutRequest,
        description: Description,
        pieces: Pieces,
    ) -> Result<HybridClock, ObjectError> {
        let (mut tries, by) = (0, max_wait());
        loop {
            match self.try_chunk(wanted, &description, pieces.clone(), by).await? {
                Ended::Done(clock) => return Ok(clock),
                Ended::Lost(lost) => {
                    tries += 1;
                    self.access.again(tries, lost, by).await?;
                }
            }
        }
    }

    async fn try_chunk(
        &self,
        wanted: &PutRequest,
        description: &Description,
        pieces: Pieces,
        by: Instant,
    ) -> Result<Ended, ObjectError> {
        let request = self.requests.begin();
        let is_chunk = matches!(wanted.target, Target::Chunk { .. });
        let inline = pieces.len <= INLINE_BYTES_MAX as usize && !is_chunk;
        let (content, data) = if inline {
            (Content::Inline(pieces.into_bytes()), None)
        } else {
            let seed = seed_of(&request.id());
            let sums = sum_blocks(seed, pieces.pieces.iter().map(|piece| &piece[..]));
            let len = pieces.len as u32;
            (Content::Data { len, seed, sums }, Some((pieces.pieces, len)))
        };
        let call = wanted.call(request.id(), description.clone(), content);
        self.access.put(wanted.pg, call, data, by).await
    }

    /// Stores chunks while the body comes in.
    pub(super) async fn store_chunks<B: PutBody>(
        &self,
        wanted: &PutRequest,
        mut pieces: Pieces,
        body: &mut B,
        limit: Limit,
    ) -> Result<Chunks<R>, ObjectError> {
        let guard = self.new_chunks(wanted);
        let stream = guard.stream;
        let mut size = pieces.len as u64;
        let mut chunks = 0;
        let mut under_way = FuturesUnordered::new();
        let mut ended = false;
        loop {
            while pieces.len >= CHUNK_BYTES_MAX as usize || (ended && pieces.len > 0) {
                let take = pieces.len.min(CHUNK_BYTES_MAX as usize);
                under_way.push(self.store_part_of_stream(
                    wanted,
                    stream,
                    chunks,
                    pieces.take(take),
                ));
                chunks += 1;
                while under_way.len() >= PUT_WINDOW_CHUNKS {
                    under_way.next().await.transpose()?;
                }
            }
            if ended {
                break;
            }
            let mut next = pin!(body.next());
            let piece = loop {
                // Chunks under way make progress while the next bytes are awaited.
                match futures::future::select(next.as_mut(), under_way.next()).await {
                    futures::future::Either::Left((piece, _)) => break piece,
                    futures::future::Either::Right((Some(stored), _)) => drop(stored?),
                    futures::future::Either::Right((None, _)) => break next.as_mut().await,
                }
            };
            match piece {
                Some(piece) => pieces.push(piece?),
                None => ended = true,
            }
            size = u64::from(chunks) * u64::from(CHUNK_BYTES_MAX) + pieces.len as u64;
            if size > limit.bytes {
                return Err(limit.exceeded());
            }
        }
        while let Some(stored) = under_way.next().await {
            stored?;
        }
        drop(under_way);
        let digest = body.finish()?;
        let content = Content::Stream { stream, chunks, chunk_bytes: CHUNK_BYTES_MAX };
        Ok(Chunks { guard, content, size, digest })
    }

    /// A stream of chunks for a put.
    pub(super) fn new_chunks(&self, wanted: &PutRequest) -> StreamGuard<R> {
        let (access, stream) = (self.access.clone(), self.new_stream());
        StreamGuard { access, pg: wanted.pg, bucket: wanted.bucket, stream, armed: true }
    }

    pub(super) async fn store_part_of_stream(
        &self,
        wanted: &PutRequest,
        stream: StreamId,
        number: u32,
        pieces: Pieces,
    ) -> Result<(), ObjectError> {
        let description = Description {
            size: pieces.len as u64,
            etag: ETag::Md5([0; 16]),
            checksum: None,
            attributes: Attributes::default(),
        };
        let chunk_of = PutRequest {
            condition: Condition::default(),
            attributes: Attributes::default(),
            key: wanted.key.clone(),
            target: Target::Chunk { stream, number },
            remote_version: None,
            ..*wanted
        };
        self.store_chunk(&chunk_of, description, pieces).await.map(|_clock| ())
    }

    async fn store_parent(
        &self,
        wanted: PutRequest,
        chunks: Chunks<R>,
    ) -> Result<PutDone, ObjectError> {
        let Chunks { mut guard, content, size, digest } = chunks;
        let done = self.put_parent(&wanted, content, (size, digest)).await?;
        guard.claimed();
        Ok(done)
    }

    /// Makes committed chunks the content of what is wanted.
    pub(super) async fn put_parent(
        &self,
        wanted: &PutRequest,
        content: Content,
        (size, digest): (u64, BodyDigest),
    ) -> Result<PutDone, ObjectError> {
        let request = self.requests.begin();
        let (etag, checksum) = (ETag::Md5(digest.md5), digest.checksum);
        let description = wanted.described(Description {
            size,
            etag: etag.clone(),
            checksum: checksum.clone(),
            attributes: wanted.attributes.clone(),
        })?;
        let call = wanted.call(request.id(), description, content);
        match self.access.put(wanted.pg, call, None, max_wait()).await? {
            Ended::Done(clock) => Ok(PutDone { etag, checksum, clock, size }),
            Ended::Lost(_) => unreachable!("it has no data of its own"),
        }
    }
}

impl PutRequest {
    /// The description of what it is, where its bytes say this.
    fn described(&self, bytes: Description) -> Result<Description, ObjectError> {
        let Some(reported) = &self.remote_version else { return Ok(bytes) };
        let reported = reported.description();
        if reported.size == bytes.size { Ok(reported) } else { Err(BodyError::Incomplete.into()) }
    }

    /// The call that begins it, under this request id.
    fn call(&self, request: Request, description: Description, content: Content) -> Call {
        let put = PutCall {
            request,
            bucket: self.bucket,
            epoch: self.epoch,
            key: self.key.clone(),
            target: self.target.clone(),
            description,
            content,
            condition: self.condition.clone(),
            required_copies: self.required_copies,
        };
        match &self.remote_version {
            Some(reported) if put.target == Target::Version => reported.call(put),
            _ => Call::Put(Box::new(put)),
        }
    }
}

impl Limit {
    pub(super) fn exceeded(self) -> ObjectError {
        ObjectError::TooLarge { what: self.what, limit_bytes: self.bytes }
    }
}
