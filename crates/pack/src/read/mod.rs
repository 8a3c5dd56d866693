//! Reads bodies: from the spool while their blob waits, or from the worker whose spool has it. Else
//! they come from the cache, else with one request for exactly the pieces that are needed
//! (`fetch.rs`). A large body streams past the cache.
//!
//! # Invariants
//!
//! 1. A piece leaves only after its sum verified. One that does not is asked for once more; then the read ends in an
//!    error and an alarm.
//! 2. The first piece is read before anything is answered.
//! 3. A read holds a few pieces in memory, however large the object is.

pub(crate) mod cache;
pub(crate) mod fetch;
pub(crate) mod readers;
mod sequences;

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use larder_env::DiskFile;
use larder_objects::{ObjectError, ReadBody};
use larder_types::{BucketId, ObjectKey, UploadId};
use parking_lot::Mutex;

use crate::backend::{Backend, Unread};
use crate::bugs::{self, Bug};
use crate::commit::spool::Spool;
use crate::counters::count;
use crate::error::{PackError, unread};
use crate::format::entry::{Container, Content, Place};
use crate::format::sums::verifies;
use crate::format::upload_unit::UploadUnit;
use crate::ids::WorkerId;
use crate::index::Index;
use crate::limits::{SHARED_READ_BYTES_MAX, SPOOL_READ_BYTES};
use crate::read::fetch::{Fetcher, PieceRequest};

/// The bodies that an index names, and where their bytes come from.
pub(crate) struct Bodies {
    pub(crate) backend: Backend,
    pub(crate) index: Arc<Index>,
    pub(crate) fetcher: Arc<Fetcher>,
    pub(crate) waiting: Waits,
}

/// The worker that has the bodies of blobs and bundles that are not in the backend.
pub(crate) enum Waits {
    /// This worker.
    Here { spool: Arc<Spool>, worker: WorkerId },
    /// Another worker.
    There(Arc<dyn Holder>),
}

/// A worker that has bodies which are not in the backend yet.
#[async_trait]
pub(crate) trait Holder: Send + Sync {
    /// Bytes of bodies within a blob, or a bundle, that is not known to be in the backend.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the worker does not give them: nobody else has them.
    async fn body(&self, container: Container, range: Range<u64>) -> Result<HeldBody, ObjectError>;
}

/// Where bytes are that were asked of the worker which had them.
pub(crate) enum HeldBody {
    Bytes(Bytes),
    /// In the backend by now, in the object of this name.
    Uploaded(String),
}

/// Reads `range` of the bytes of a key's object.
///
/// # Errors
/// [`ObjectError::Damaged`], [`ObjectError::Unavailable`]; [`ObjectError::Changed`] if its parts are gone.
pub(crate) async fn read(
    bodies: Arc<Bodies>,
    (bucket, key): (BucketId, &ObjectKey),
    content: Content,
    range: Range<u64>,
) -> Result<ReadBody, ObjectError> {
    let wanted = range.end - range.start;
    let reader = match content {
        Content::Run(_) if range.start == 0 => Some((bucket, key.clone())),
        _ => None,
    };
    let rest = runs(bucket, content, range);
    let mut pieces = Pieces { rest, reader, current: None, bodies };
    let first = pieces.next().await?.unwrap_or_default();
    if first.len() as u64 == wanted {
        return Ok(ReadBody::Whole(first));
    }
    let rest = stream::try_unfold(pieces, |mut pieces| async move {
        Ok(pieces.next().await?.map(|piece| (piece, pieces)))
    });
    let whole = stream::once(async { Ok(first) }).chain(rest);
    Ok(ReadBody::Stream(Box::pin(Shareable(Mutex::new(whole.boxed())))))
}

/// A stream that may be shared, as nobody can poll it without owning it.
struct Shareable(Mutex<BoxStream<'static, Result<Bytes, ObjectError>>>);

impl Stream for Shareable {
    type Item = Result<Bytes, ObjectError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.get_mut().poll_next_unpin(cx)
    }
}

/// A part of what is to be read.
enum Run {
    Placed(Place, Range<u64>),
    Part { bucket: BucketId, upload: UploadId, number: u16, range: Range<u64> },
}

fn runs(bucket: BucketId, content: Content, range: Range<u64>) -> VecDeque<Run> {
    let (upload, parts) = match content {
        Content::Run(place) => return VecDeque::from([Run::Placed(place, range)]),
        Content::Parts { upload, parts } => (upload, parts),
    };
    let mut runs = VecDeque::new();
    let mut begin = 0;
    for part in parts {
        let end = begin + part.len;
        let (from, to) = (range.start.max(begin), range.end.min(end));
        if from < to {
            let range = from - begin..to - begin;
            runs.push_back(Run::Part { bucket, upload, number: part.number, range });
        }
        begin = end;
    }
    runs
}

/// The pieces that are still to be read.
struct Pieces {
    bodies: Arc<Bodies>,
    rest: VecDeque<Run>,
    /// The object that the bytes are of, if they are one run from its beginning.
    reader: Option<(BucketId, ObjectKey)>,
    current: Option<Verified>,
}

impl Pieces {
    async fn next(&mut self) -> Result<Option<Bytes>, ObjectError> {
        loop {
            if let Some(current) = &mut self.current {
                if let Some(piece) = current.next(&self.bodies).await? {
                    return Ok(Some(piece));
                }
                self.current = None;
            }
            let Some(run) = self.rest.pop_front() else { return Ok(None) };
            let (place, range) = match run {
                Run::Placed(place, range) => (place, range),
                Run::Part { bucket, upload, number, range } => {
                    let part = self.bodies.index.part(bucket, upload, number).map_err(unread)?;
                    (part.ok_or(ObjectError::Changed)?.place, range)
                }
            };
            if range.end > place.len || place.sum_bytes == 0 {
                return Err(self.bodies.lost(&place, "the index names more bytes than there are"));
            }
            self.current = Some(Verified::new(place, range, self.reader.take()));
        }
    }
}

/// One run being read and verified.
struct Verified {
    place: Place,
    range: Range<u64>,
    /// Number of the next piece.
    index: u64,
    source: Option<Source>,
    gathered: BytesMut,
    /// The next piece was asked for a second time.
    again: bool,
    reader: Option<(BucketId, ObjectKey)>,
}

/// Where a run's bytes come from.
enum Source {
    Whole(Bytes),
    Spool { file: Arc<dyn DiskFile>, at: u64, end: u64 },
    Backend(BoxStream<'static, Result<Bytes, PackError>>),
}

impl Verified {
    fn new(place: Place, range: Range<u64>, reader: Option<(BucketId, ObjectKey)>) -> Self {
        let index = range.start / u64::from(place.sum_bytes);
        let gathered = BytesMut::new();
        Self { place, range, index, source: None, gathered, again: false, reader }
    }

    /// The next verified bytes of the range.
    async fn next(&mut self, bodies: &Bodies) -> Result<Option<Bytes>, ObjectError> {
        let step = u64::from(self.place.sum_bytes);
        let begin = self.index * step;
        if begin >= self.range.end {
            return Ok(None);
        }
        let end = (begin + step).min(self.place.len);
        loop {
            let piece = self.piece(bodies, (end - begin) as usize).await?;
            if verifies(&self.place, self.index, &piece) {
                self.index += 1;
                self.again = false;
                let from = self.range.start.max(begin) - begin;
                let to = self.range.end.min(end) - begin;
                return Ok(Some(piece.slice(from as usize..to as usize)));
            }
            count(&bodies.backend.counters().bad_pieces);
            if std::mem::replace(&mut self.again, true) {
                return Err(bodies.lost(&self.place, "its bytes do not verify"));
            }
            self.source = None;
            self.gathered.clear();
        }
    }

    /// Takes `len` bytes from the source, or fewer if it ends.
    async fn piece(&mut self, bodies: &Bodies, len: usize) -> Result<Bytes, ObjectError> {
        while self.gathered.len() < len {
            if let Some(Source::Whole(bytes)) = &mut self.source {
                return Ok(bytes.split_to(len.min(bytes.len())));
            }
            let source = match &mut self.source {
                Some(source) => source,
                None => {
                    let source = self.open(bodies).await?;
                    self.source.insert(source)
                }
            };
            match source.next().await? {
                // The usual case, of a small object: nothing is copied.
                Some(bytes) if self.gathered.is_empty() && bytes.len() == len => return Ok(bytes),
                Some(bytes) => self.gathered.extend_from_slice(&bytes),
                None => break,
            }
        }
        let len = len.min(self.gathered.len());
        Ok(self.gathered.split_to(len).freeze())
    }

    /// One request for all pieces from the next one to the last that is needed.
    async fn open(&mut self, bodies: &Bodies) -> Result<Source, ObjectError> {
        let step = u64::from(self.place.sum_bytes);
        let end = self.range.end.next_multiple_of(step).min(self.place.len);
        let range = self.place.offset + self.index * step..self.place.offset + end;
        let container = self.place.container;
        if let Some(file) = bodies.waiting.file(container) {
            return Ok(Source::Spool { file, at: range.start, end: range.end });
        }
        let name = match (bodies.name_of(container).map_err(unread)?, &bodies.waiting) {
            (Some(name), _) => name,
            (None, Waits::There(holder)) => match holder.body(container, range.clone()).await? {
                HeldBody::Bytes(bytes) => return Ok(Source::Whole(bytes)),
                HeldBody::Uploaded(name) => name,
            },
            (None, Waits::Here { .. }) => {
                return Err(bodies.lost(&self.place, "the index has no such blob"));
            }
        };
        let small = range.end - range.start <= SHARED_READ_BYTES_MAX;
        let source = match container.packed_id().filter(|_| small) {
            Some(blob) => {
                let reader = self.reader.as_ref().map(|(bucket, key)| (*bucket, key));
                let (place, pieces) = (&self.place, self.index..end.div_ceil(step));
                let wanted = PieceRequest { blob, name: &name, place, pieces, reader };
                bodies.fetcher.bytes(&wanted, self.again).await.map(Source::Whole)
            }
            None => bodies.backend.pieces_uploaded(&name, range).await.map(Source::Backend),
        };
        source.map_err(|unread| match unread {
            Unread::Missing => bodies.lost(&self.place, "the backend does not have it"),
            Unread::Failed(error) => unreached(&error),
        })
    }
}

impl Waits {
    /// The file of a blob of this worker that waits, or of a bundle of one.
    fn file(&self, container: Container) -> Option<Arc<dyn DiskFile>> {
        let (id, unit) = UploadUnit::of(container)?;
        match self {
            Self::Here { spool, worker } if id.worker == *worker => spool.file(id.seq, unit),
            _ => None,
        }
    }
}

impl Source {
    async fn next(&mut self) -> Result<Option<Bytes>, ObjectError> {
        match self {
            Self::Whole(bytes) if bytes.is_empty() => Ok(None),
            Self::Whole(bytes) => Ok(Some(std::mem::take(bytes))),
            Self::Backend(pieces) => match pieces.next().await {
                Some(Ok(bytes)) => Ok(Some(bytes)),
                Some(Err(error)) => Err(unreached(&error)),
                None => Ok(None),
            },
            Self::Spool { file, at, end } => {
                let (from, to) = (*at, (*at + SPOOL_READ_BYTES).min(*end));
                *at = to;
                if from == to {
                    return Ok(None);
                }
                read_file(file.clone(), from, (to - from) as usize).await.map(Some)
            }
        }
    }
}

async fn read_file(file: Arc<dyn DiskFile>, from: u64, len: usize) -> Result<Bytes, ObjectError> {
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; len];
        let read = file.read_at(from, &mut bytes)?;
        bytes.truncate(read);
        Ok::<_, larder_env::DiskError>(Bytes::from(bytes))
    });
    match read.await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => {
            tracing::error!(%error, "the spool cannot be read");
            Err(ObjectError::Unavailable { reason: error.to_string() })
        }
        Err(stopped) => Err(ObjectError::Unavailable { reason: stopped.to_string() }),
    }
}

fn unreached(error: &PackError) -> ObjectError {
    tracing::warn!(%error, "a body could not be read from the backend");
    ObjectError::Unavailable { reason: "the backend cannot be reached".to_owned() }
}

impl Bodies {
    /// Its name in the backend; `None` if it is not known to be there, or its name is not known. A bundle that
    /// another worker told of may wait there with its blob.
    pub(crate) fn name_of(&self, container: Container) -> Result<Option<String>, PackError> {
        let own = match container {
            Container::Blob(id) => return Ok(self.index.blob(id)?.map(|row| row.name(id).path())),
            Container::Own(own) => own,
        };
        match (own.bundle(), &self.waiting) {
            // A large object is there before it is named.
            (None, _) => Ok(Some(own.path())),
            // One of this worker that waits was found in the spool.
            (Some(_), Waits::Here { .. }) => Ok(Some(self.index.bundle_path(own)?)),
            (Some(_), Waits::There(_)) if bugs::planted(Bug::BundleNotAwaited) => {
                Ok(Some(self.index.bundle_path(own)?))
            }
            (Some((blob, _)), Waits::There(_)) => {
                let is_there = self.index.is_uploaded(blob)?;
                // Nothing says its name any more if it has ended since its reader began: its worker does.
                let process = self.index.bundle_process(own)?.filter(|_| is_there);
                Ok(process.map(|process| own.path_of(process)))
            }
        }
    }

    /// Good bytes are nowhere: an alarm.
    fn lost(&self, place: &Place, reason: &str) -> ObjectError {
        count(&self.backend.counters().lost_reads);
        let (container, offset, len) = (place.container, place.offset, place.len);
        tracing::error!(?container, offset, len, reason, "an object cannot be read");
        ObjectError::Damaged
    }
}

#[cfg(test)]
mod tests {
    use larder_kv::SimKv;
    use object_store::memory::InMemory;

    use super::*;
    use crate::format::rows::BlobRow;
    use crate::ids::{BlobId, ProcessId};

    /// Another worker that does not answer.
    struct Away;

    #[async_trait]
    impl Holder for Away {
        async fn body(&self, _: Container, _: Range<u64>) -> Result<HeldBody, ObjectError> {
            Err(ObjectError::Unavailable { reason: "it is away".to_owned() })
        }
    }

    #[tokio::test]
    async fn a_bundle_of_unknown_name_is_requested_from_its_worker() {
        let backend = Backend::over(Arc::new(InMemory::new()));
        let index = Arc::new(Index::of_another(Box::new(SimKv::default())).unwrap().0);
        let fetcher = Arc::new(Fetcher::new(backend.clone(), index.clone(), None, 0));
        let waiting = Waits::There(Arc::new(Away));
        let bodies = Bodies { backend, index: index.clone(), fetcher, waiting };
        let blob = BlobId { worker: WorkerId(3), seq: 4 };
        let process = ProcessId::new(7).unwrap();
        let container = UploadUnit::numbered(1).unwrap().container(blob);
        let Container::Own(bundle) = container else { panic!("a bundle is an object of its own") };
        let row = BlobRow { process, ..BlobRow::NONE };
        index.add_blob(blob, &row, None).unwrap();
        let name = bundle.path_of(process);
        assert_eq!(bodies.name_of(container).unwrap(), Some(name), "its blob says it");
        // A reader began while the bundle had a row: now neither it nor its blob has one.
        index.forget_blob(blob).unwrap();
        assert_eq!(bodies.name_of(container).unwrap(), None);
        let place =
            Place { container, offset: 0, len: 5, seed: 7, sum_bytes: 65_536, sums: vec![9] };
        let mut pieces = Verified::new(place, 0..5, None);
        let read = pieces.next(&bodies).await;
        assert!(matches!(read, Err(ObjectError::Unavailable { .. })), "no alarm: {read:?}");
    }
}
