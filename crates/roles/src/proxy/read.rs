//! Reads: find the version, then its bytes, piece by piece, each verified before it leaves.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use larder_kv::KvReader;
use larder_objects::{ListedPart, ObjectError, Opened, ReadBody};
use larder_protocol::Call;
use larder_types::codec::decode;
use larder_types::{
    Body, BucketId, BucketName, Chunk, ObjectKey, OpId, PartRow, StreamId, UploadId, VersionRow,
    rows,
};

use super::{Proxy, unavailable, unexpected};
use crate::data::{DataServer, ReadFailure};
use crate::limits::READ_PIECE_BYTES;
use crate::meta::Meta;
use crate::ticket::Settled;

/// Bytes still to be given out, not yet looked up.
enum Span {
    Inline(Bytes),
    Chunk(Box<Chunk>, Range<u32>),
    ChunkRow { stream: StreamId, number: u32, range: Range<u32> },
    PartRow { upload: UploadId, number: u16, range: Range<u64> },
}

/// A read under way.
struct Reading {
    meta: Arc<Meta>,
    data: Arc<DataServer>,
    bucket: BucketId,
    spans: VecDeque<Span>,
}

impl Proxy {
    pub(super) async fn find(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<Opened, ObjectError> {
        let (id, _, pg) = self.place(bucket, key)?;
        if self.meta.rests(pg, id, key) {
            return self.look_up(id, key);
        }
        match self.ask(pg, Call::Read { bucket: id, key: key.clone() }).await? {
            Settled::Version(Some(row)) => Ok(opened(id, key, *row)),
            Settled::Version(None) => Err(ObjectError::NoSuchKey),
            Settled::AskIndex => self.look_up(id, key),
            other => Err(unexpected(&other)),
        }
    }

    fn look_up(&self, bucket: BucketId, key: &ObjectKey) -> Result<Opened, ObjectError> {
        let row = get_row(&self.meta, &rows::version(bucket, key, rows::NULL_VERSION))?;
        let row = row.ok_or(ObjectError::NoSuchKey)?;
        Ok(opened(bucket, key, decoded::<VersionRow>("version row", &row)?))
    }

    /// The op of the key's version in the index, to tell a replaced object from a damaged one.
    fn op_now(&self, object: &Opened) -> Option<OpId> {
        self.look_up(object.bucket, &object.key).ok().map(|now| now.op)
    }

    pub(super) async fn read_range(
        &self,
        object: &Opened,
        range: Range<u64>,
    ) -> Result<ReadBody, ObjectError> {
        if range.start >= range.end {
            return Ok(ReadBody::Whole(Bytes::new()));
        }
        let mut reading = Reading {
            meta: self.meta.clone(),
            data: self.data.clone(),
            bucket: object.bucket,
            spans: VecDeque::new(),
        };
        reading.push_body(&object.body, range)?;
        // The first piece is read before anything is answered: if the object was replaced since it was
        // found, the caller can still start again.
        let first = match reading.next().await {
            Ok(Some(piece)) => piece,
            Ok(None) => Bytes::new(),
            Err(failure) => return Err(self.explain(object, failure)),
        };
        if reading.spans.is_empty() {
            return Ok(ReadBody::Whole(first));
        }
        let rest = futures::stream::unfold(Some(reading), async |reading| {
            let mut reading = reading?;
            match reading.next().await {
                Ok(Some(piece)) => Some((Ok(piece), Some(reading))),
                Ok(None) => None,
                Err(failure) => {
                    tracing::warn!(?failure, "a read under way breaks off");
                    Some((Err(ObjectError::Changed), None))
                }
            }
        });
        let first = futures::stream::once(async move { Ok(first) });
        Ok(ReadBody::Stream(Box::pin(futures::StreamExt::chain(first, rest))))
    }

    /// Why a read failed: the object was replaced meanwhile, or every copy of it is bad.
    fn explain(&self, object: &Opened, failure: ReadFailure) -> ObjectError {
        if self.op_now(object) != Some(object.op) {
            return ObjectError::Changed;
        }
        match failure {
            ReadFailure::Mismatch => {
                self.alarms.bad_copies.fetch_add(1, Ordering::Relaxed);
                self.alarms.lost_reads.fetch_add(1, Ordering::Relaxed);
                tracing::error!(
                    bucket = %object.bucket,
                    key = object.key.as_str(),
                    "every copy of an object is damaged: restore it from a backup"
                );
                ObjectError::Damaged
            }
            ReadFailure::Unreadable => unavailable("the disk does not give the data"),
        }
    }

    pub(super) fn part_of(&self, object: &Opened, number: u16) -> Result<ListedPart, ObjectError> {
        let Body::Parts { upload, .. } = &object.body else {
            return Err(ObjectError::InvalidPart { number });
        };
        let row = get_row(&self.meta, &rows::part(object.bucket, *upload, number))?;
        let row = row.ok_or(ObjectError::InvalidPart { number })?;
        Ok(ListedPart { number, metax: decoded::<PartRow>("part row", &row)?.metax })
    }
}

impl Reading {
    /// Queues a range of a body, before everything that is queued.
    fn push_body(&mut self, body: &Body, range: Range<u64>) -> Result<(), ObjectError> {
        let mut spans = Vec::new();
        match body {
            Body::Inline(bytes) => {
                spans.push(Span::Inline(bytes.slice(range.start as usize..range.end as usize)));
            }
            Body::Chunk(chunk) => {
                let range = range.start as u32..range.end as u32;
                spans.push(Span::Chunk(Box::new(chunk.clone()), range));
            }
            Body::Stream { stream, chunk_bytes, .. } => {
                let size = u64::from(*chunk_bytes);
                let mut at = range.start;
                while at < range.end {
                    let number = (at / size) as u32;
                    let end = range.end.min((u64::from(number) + 1) * size);
                    let inside = (at % size) as u32;
                    let range = inside..inside + (end - at) as u32;
                    spans.push(Span::ChunkRow { stream: *stream, number, range });
                    at = end;
                }
            }
            Body::Parts { upload, parts } => {
                let mut start = 0;
                for part in parts {
                    let end = start + part.len;
                    let (from, to) = (range.start.max(start), range.end.min(end));
                    if from < to {
                        let (upload, number) = (*upload, part.number);
                        spans.push(Span::PartRow {
                            upload,
                            number,
                            range: from - start..to - start,
                        });
                    }
                    start = end;
                }
            }
        }
        for span in spans.into_iter().rev() {
            self.spans.push_front(span);
        }
        Ok(())
    }

    /// The next verified piece.
    async fn next(&mut self) -> Result<Option<Bytes>, ReadFailure> {
        loop {
            let Some(span) = self.spans.pop_front() else { return Ok(None) };
            match span {
                Span::Inline(bytes) => return Ok(Some(bytes)),
                Span::Chunk(chunk, range) => return self.read_piece(chunk, range).await.map(Some),
                Span::ChunkRow { stream, number, range } => {
                    let row = self.row(&rows::chunk(self.bucket, stream, number))?;
                    let chunk: Chunk =
                        decode("chunk row", &row).map_err(|_error| ReadFailure::Unreadable)?;
                    self.spans.push_front(Span::Chunk(Box::new(chunk), range));
                }
                Span::PartRow { upload, number, range } => {
                    let row = self.row(&rows::part(self.bucket, upload, number))?;
                    let part: PartRow =
                        decode("part row", &row).map_err(|_error| ReadFailure::Unreadable)?;
                    if self.push_body(&part.body, range).is_err() {
                        return Err(ReadFailure::Unreadable);
                    }
                }
            }
        }
    }

    /// A row that the object names; without it the object was replaced.
    fn row(&self, row: &[u8]) -> Result<Bytes, ReadFailure> {
        match self.meta.kv().get(row) {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(ReadFailure::Mismatch),
            Err(_) => Err(ReadFailure::Unreadable),
        }
    }

    async fn read_piece(
        &mut self,
        chunk: Box<Chunk>,
        range: Range<u32>,
    ) -> Result<Bytes, ReadFailure> {
        // Pieces end at multiples of their size, so that no checksummed block is read twice.
        let piece_bytes = READ_PIECE_BYTES as u32;
        let end = range.end.min((range.start / piece_bytes + 1) * piece_bytes);
        let piece = range.start..end;
        let rest = end..range.end;
        if let Some(bytes) = self.data.read_cached(&chunk, piece.clone())? {
            if !rest.is_empty() {
                self.spans.push_front(Span::Chunk(chunk, rest));
            }
            return Ok(bytes);
        }
        let data = self.data.clone();
        let (chunk, bytes) = tokio::task::spawn_blocking(move || {
            let bytes = data.read(&chunk, piece);
            (chunk, bytes)
        })
        .await
        .map_err(|_join_error| ReadFailure::Unreadable)?;
        if !rest.is_empty() {
            self.spans.push_front(Span::Chunk(chunk, rest));
        }
        bytes
    }
}

fn opened(bucket: BucketId, key: &ObjectKey, row: VersionRow) -> Opened {
    Opened { bucket, key: key.clone(), op: row.op, metax: row.metax, body: row.body }
}

pub(super) fn get_row(meta: &Meta, row: &[u8]) -> Result<Option<Bytes>, ObjectError> {
    meta.kv().get(row).map_err(|error| {
        tracing::error!(%error, "a row of the index cannot be read");
        unavailable("the index cannot be read: see the log")
    })
}

pub(super) fn decoded<T: serde::de::DeserializeOwned>(
    what: &'static str,
    row: &[u8],
) -> Result<T, ObjectError> {
    decode(what, row).map_err(|error| {
        tracing::error!(%error, "a row of the index cannot be used");
        unavailable("the index holds a row that cannot be used: see the log")
    })
}
