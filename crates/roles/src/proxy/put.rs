//! Puts: small ones in one op, larger ones in one chunk, the largest as a stream of chunks.

use std::pin::pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use larder_objects::{BodyDigest, ObjectError, PutBody, PutDone, PutOptions};
use larder_protocol::{Call, Content, Description, PutCall};
use larder_types::checksum::{seed_of, sum_blocks};
use larder_types::limits::{CHUNK_BYTES_MAX, INLINE_BYTES_MAX, PUT_BYTES_MAX};
use larder_types::{
    Attributes, BucketId, BucketName, Condition, ETag, Epoch, HybridClock, ObjectKey, OpId, PgId,
    StreamId, Target,
};

use super::{Proxy, refused, unavailable, unexpected};
use crate::limits::{DISK_FULL_TRIES_MAX, PUT_WINDOW_CHUNKS};
use crate::meta::Meta;
use crate::ticket::{Settled, Ticket};

/// Everything about a put but its bytes.
pub(super) struct Wanted {
    pub(super) bucket: BucketId,
    pub(super) epoch: Epoch,
    pub(super) pg: PgId,
    pub(super) key: ObjectKey,
    pub(super) target: Target,
    pub(super) attributes: Attributes,
    pub(super) condition: Condition,
}

/// Bytes of a body on their way into chunks.
#[derive(Clone, Default)]
struct Pieces {
    pieces: Vec<Bytes>,
    len: usize,
}

impl Pieces {
    fn push(&mut self, piece: Bytes) {
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

    fn into_bytes(self) -> Bytes {
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

/// How a put ended that was not refused.
enum Ended {
    Done(HybridClock),
    /// A disk had no room for its data, and it was abandoned.
    DiskFull,
}

/// Abandons a put whose caller goes away.
struct PutGuard<'a> {
    meta: &'a Meta,
    pg: PgId,
    ticket: Arc<Ticket>,
    op: Option<OpId>,
    disk_full: bool,
    armed: bool,
}

impl Drop for PutGuard<'_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        if let Some(op) = self.ticket.orphan().or(self.op) {
            self.meta.tell(self.pg, Call::Abandon { op, disk_full: self.disk_full });
        }
    }
}

/// Frees the chunks of a stream that gets no parent.
struct StreamGuard {
    meta: Arc<Meta>,
    pg: PgId,
    bucket: BucketId,
    stream: StreamId,
    armed: bool,
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        if self.armed {
            let (bucket, stream) = (self.bucket, self.stream);
            self.meta.tell(self.pg, Call::DropStream { bucket, stream });
        }
    }
}

impl Proxy {
    pub(super) async fn put_object<B: PutBody>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        options: PutOptions,
        body: B,
    ) -> Result<PutDone, ObjectError> {
        let (id, epoch, pg) = self.place(bucket, key)?;
        let wanted = Wanted {
            bucket: id,
            epoch,
            pg,
            key: key.clone(),
            target: Target::Version,
            attributes: options.attributes,
            condition: options.condition,
        };
        self.store(wanted, body).await
    }

    /// Stores a body as whatever is wanted.
    pub(super) async fn store<B: PutBody>(
        &self,
        wanted: Wanted,
        mut body: B,
    ) -> Result<PutDone, ObjectError> {
        self.admit_data()?;
        if body.len().is_some_and(|len| len > PUT_BYTES_MAX) {
            return Err(too_large());
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
        self.store_stream(wanted, pieces, body).await
    }

    async fn store_small(
        &self,
        wanted: Wanted,
        pieces: Pieces,
        digest: BodyDigest,
    ) -> Result<PutDone, ObjectError> {
        let size = pieces.len as u64;
        let description = Description {
            size,
            etag: ETag::Md5(digest.md5),
            checksum: digest.checksum.clone(),
            attributes: wanted.attributes.clone(),
        };
        let clock = self.store_chunk(&wanted, wanted.target.clone(), description, pieces).await?;
        Ok(PutDone { etag: ETag::Md5(digest.md5), checksum: digest.checksum, clock, size })
    }

    /// Stores at most one chunk's bytes under one op: another one if a disk had no room where the first
    /// should have lain, as there may be room in space that was written before.
    async fn store_chunk(
        &self,
        wanted: &Wanted,
        target: Target,
        description: Description,
        pieces: Pieces,
    ) -> Result<HybridClock, ObjectError> {
        for _ in 0..DISK_FULL_TRIES_MAX {
            let ended = self.try_chunk(wanted, &target, &description, pieces.clone()).await?;
            if let Ended::Done(clock) = ended {
                return Ok(clock);
            }
        }
        Err(ObjectError::Full)
    }

    async fn try_chunk(
        &self,
        wanted: &Wanted,
        target: &Target,
        description: &Description,
        pieces: Pieces,
    ) -> Result<Ended, ObjectError> {
        let request = self.requests.begin();
        let inline =
            pieces.len <= INLINE_BYTES_MAX as usize && !matches!(target, Target::Chunk { .. });
        let (content, data) = if inline {
            (Content::Inline(pieces.into_bytes()), None)
        } else {
            let seed = seed_of(&request.id());
            let sums = sum_blocks(seed, pieces.pieces.iter().map(|piece| &piece[..]));
            let len = pieces.len as u32;
            (Content::Data { len, seed, sums }, Some((pieces.pieces, len)))
        };
        let call = PutCall {
            request: request.id(),
            bucket: wanted.bucket,
            epoch: wanted.epoch,
            key: wanted.key.clone(),
            target: target.clone(),
            description: description.clone(),
            content,
            condition: wanted.condition.clone(),
        };
        self.prepare_and_write(wanted.pg, call, data).await
    }

    /// The put of DESIGN §5: METAX and data in parallel, committed when both are durable.
    async fn prepare_and_write(
        &self,
        pg: PgId,
        call: PutCall,
        data: Option<(Vec<Bytes>, u32)>,
    ) -> Result<Ended, ObjectError> {
        let ticket = Arc::new(Ticket::default());
        let mut guard = PutGuard {
            meta: &self.meta,
            pg,
            ticket: ticket.clone(),
            op: None,
            disk_full: false,
            armed: true,
        };
        self.meta.call(pg, Call::Put(Box::new(call)), &ticket);
        let mut replicas = 0;
        let mut clock = HybridClock::default();
        if let Some((data, len)) = data
            && let Some(granted) = ticket.granted().await
        {
            guard.op = Some(granted.grant.op);
            clock = granted.clock;
            replicas = self.replicas(granted.lv)?;
            ticket.writing(replicas);
            for replica in 0..replicas {
                let (extents, data) = (granted.extents.clone(), data.clone());
                let write = crate::data::PutWrite { extents, data, len, replica };
                self.data.write(granted.lv, granted.grant, write, &ticket);
            }
        }
        match ticket.settled().await {
            Settled::Written(grant, holders) if holders.count() == replicas => {
                let (op, attempt) = (grant.op, grant.attempt);
                self.meta.tell(pg, Call::Commit { op, attempt, holders });
                guard.armed = false;
                Ok(Ended::Done(clock))
            }
            Settled::Written(..) if ticket.hit_full_disk() => {
                guard.disk_full = true;
                Ok(Ended::DiskFull)
            }
            Settled::Written(..) => Err(unavailable("the disk did not take the data")),
            Settled::Done(_, clock) => {
                guard.armed = false;
                Ok(Ended::Done(clock))
            }
            Settled::Refused(refusal) => {
                guard.armed = false;
                Err(refused(refusal))
            }
            other => Err(unexpected(&other)),
        }
    }

    fn replicas(&self, lv: larder_types::LvId) -> Result<usize, ObjectError> {
        let map = self.manager.map();
        let record = map.map.lvs.get(lv.0 as usize);
        record
            .map(|record| record.replicas.len())
            .ok_or_else(|| unavailable("the map does not know the volume of a grant yet"))
    }

    /// Stores chunks while the body comes in, then the parent that names them.
    async fn store_stream<B: PutBody>(
        &self,
        wanted: Wanted,
        mut pieces: Pieces,
        mut body: B,
    ) -> Result<PutDone, ObjectError> {
        let stream = self.new_stream();
        let mut guard = StreamGuard {
            meta: self.meta.clone(),
            pg: wanted.pg,
            bucket: wanted.bucket,
            stream,
            armed: true,
        };
        let mut size = pieces.len as u64;
        let mut chunks = 0;
        let mut under_way = FuturesUnordered::new();
        let mut ended = false;
        loop {
            while pieces.len >= CHUNK_BYTES_MAX as usize || (ended && pieces.len > 0) {
                let take = pieces.len.min(CHUNK_BYTES_MAX as usize);
                under_way.push(self.store_part_of_stream(
                    &wanted,
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
            if size > PUT_BYTES_MAX {
                return Err(too_large());
            }
        }
        while let Some(stored) = under_way.next().await {
            stored?;
        }
        drop(under_way);
        let digest = body.finish()?;
        let result = self.store_parent(wanted, stream, chunks, size, digest).await;
        // Chunks that a parent has claimed after all are not dropped.
        guard.armed = result.is_err();
        result
    }

    async fn store_part_of_stream(
        &self,
        wanted: &Wanted,
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
        let chunk_of = Wanted {
            condition: Condition::default(),
            attributes: Attributes::default(),
            key: wanted.key.clone(),
            target: Target::Chunk { stream, number },
            ..*wanted
        };
        let target = chunk_of.target.clone();
        self.store_chunk(&chunk_of, target, description, pieces).await.map(|_clock| ())
    }

    async fn store_parent(
        &self,
        wanted: Wanted,
        stream: StreamId,
        chunks: u32,
        size: u64,
        digest: BodyDigest,
    ) -> Result<PutDone, ObjectError> {
        let request = self.requests.begin();
        let (etag, checksum) = (ETag::Md5(digest.md5), digest.checksum);
        let description = Description {
            size,
            etag: etag.clone(),
            checksum: checksum.clone(),
            attributes: wanted.attributes,
        };
        let call = PutCall {
            request: request.id(),
            bucket: wanted.bucket,
            epoch: wanted.epoch,
            key: wanted.key,
            target: wanted.target,
            description,
            content: Content::Stream { stream, chunks, chunk_bytes: CHUNK_BYTES_MAX },
            condition: wanted.condition,
        };
        match self.prepare_and_write(wanted.pg, call, None).await? {
            Ended::Done(clock) => Ok(PutDone { etag, checksum, clock, size }),
            Ended::DiskFull => unreachable!("it has no data of its own"),
        }
    }
}

fn too_large() -> ObjectError {
    ObjectError::TooLarge { what: "the object", limit_bytes: PUT_BYTES_MAX }
}
