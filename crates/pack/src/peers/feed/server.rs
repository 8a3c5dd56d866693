//! Answers other workers.

use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use larder_identity::{Role, Roles};
use larder_net::{
    Endpoint, Handler, Listener, PeerIdentity, Responder, Services, Stream, StreamHandler,
    Streaming,
};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::ends::Ends;
use super::handed::{Handed, HandedBody};
use super::places::{FeedQuota, Place, Places};
use super::wire::{FeedPosition, FeedReply, FeedRequest, Message, Refusal, WorkerService};
use crate::blocking;
use crate::bugs::{self, Bug};
use crate::commit::spool::Spool;
use crate::error::PackError;
use crate::format::entry::Container;
use crate::format::upload_unit::UploadUnit;
use crate::ids::{BlobId, ProcessId, WorkerId};
use crate::index::Index;
use crate::limits::{
    CALL_HEADERS_MAX, CALL_TIME_MAX, FEED_BYTES_MAX, FEED_WAIT_MAX, PACKED_BYTES_MAX,
};
use crate::owner::ownership::Ownership;

/// The parts of a store that the feed answers from.
pub(crate) struct FeedSource {
    pub(crate) worker: WorkerId,
    pub(crate) spool: Arc<Spool>,
    pub(crate) index: Arc<Index>,
    /// Answers requests that others hand on.
    handed: Arc<Handed>,
    /// Says when another process has the worker's place.
    owner: Option<Arc<Ownership>>,
    ends: Ends,
    pub(crate) places: Places,
}

/// Answers calls.
struct Calls(Arc<FeedSource>);

/// Answers requests that are handed on, each over a stream of its own.
struct Streams(Arc<FeedSource>);

impl Handler<WorkerService> for Calls {
    fn request(
        &self,
        from: &PeerIdentity,
        ask: FeedRequest,
        _payload: Bytes,
        responder: Responder<WorkerService>,
    ) {
        let of = match ask {
            FeedRequest::Changes { .. } => FeedQuota::Changes,
            FeedRequest::Body { .. } => FeedQuota::Bodies,
        };
        let place = self.0.places.call(from.subject.server, of);
        let Some(place) = place else { return responder.busy() };
        let (wanted, unwanted) = oneshot::channel::<()>();
        responder.when_unwanted(move || drop(wanted));
        let feed = self.0.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                // Nobody would hear an answer any more.
                _ = unwanted => {}
                answer = feed.answer(ask, place) => match answer {
                    Some((reply, payload)) => responder.answer(&reply, payload),
                    None => responder.busy(),
                },
            }
        });
    }

    fn message(&self, _from: &PeerIdentity, message: Message, _payload: Bytes) {
        match message {}
    }
}

impl StreamHandler for Streams {
    fn serve(&self, from: PeerIdentity, stream: Stream) -> Streaming {
        let (feed, place) = (self.0.clone(), self.0.places.stream(from.subject.server));
        Box::pin(async move {
            // One without a place is answered, too: its caller reads that, and not that a connection broke.
            let has_place = place.is_some();
            let answer = service_fn(|request: Request<Incoming>| {
                let feed = feed.clone();
                async move {
                    let answer = match has_place {
                        true => feed.handed.answer(request).await,
                        false => None,
                    };
                    Ok::<_, Infallible>(answer.unwrap_or_else(not_now))
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(CALL_HEADERS_MAX)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), answer);
            if let Err(error) = connection.await {
                tracing::debug!(%from, %error, "a forwarded request ended early");
            }
            drop(place);
        })
    }
}

/// The answer to a request for which there is no face yet, or no place.
fn not_now() -> Response<HandedBody> {
    let nothing = Empty::new().map_err(|never| match never {});
    let mut answer = Response::new(HandedBody::new(nothing));
    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    answer
}

impl FeedSource {
    pub(crate) fn new(
        worker: WorkerId,
        spool: Arc<Spool>,
        index: Arc<Index>,
        handed: Arc<Handed>,
    ) -> Self {
        let (owner, ends, places) = (None, Ends::default(), Places::new());
        Self { worker, spool, index, handed, owner, ends, places }
    }

    /// The same, that tells nothing once the worker's place is another's.
    pub(crate) fn owned(self, owner: Arc<Ownership>) -> Self {
        Self { owner: Some(owner), ..self }
    }

    /// Answers workers of the bucket that come to this socket, and nobody else, until the listener is dropped.
    ///
    /// # Errors
    /// If the socket has no address.
    pub(crate) fn listen(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        socket: TcpListener,
    ) -> io::Result<Listener> {
        let workers = Roles::of(&[Role::Worker]);
        let services = Services::new()
            .with::<WorkerService>(workers, Calls(self.clone()))
            .with_streams(Role::Worker, workers, Streams(self.clone()));
        Listener::start(endpoint, socket, services)
    }

    /// Answers a call; `None` if there is too much to do.
    pub(crate) async fn answer(
        &self,
        ask: FeedRequest,
        place: Place,
    ) -> Option<(FeedReply, Bytes)> {
        let refused = |why| Some((FeedReply::Refused(why), Bytes::new()));
        let (FeedRequest::Changes { worker, .. } | FeedRequest::Body { worker, .. }) = ask;
        if worker != self.worker || self.is_superseded() {
            return refused(Refusal::OtherClaim);
        }
        match ask {
            FeedRequest::Changes { asked, .. } => self.answer_changes(&asked, place).await,
            FeedRequest::Body { blob, unit, from, to, .. } => match UploadUnit::numbered(unit) {
                Some(unit) => self.answer_body((blob, unit), from..to, place).await,
                None => refused(Refusal::Absent),
            },
        }
    }

    fn is_superseded(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.status().superseded)
    }

    /// Tells the changes from there on; if there are none, once there are some.
    async fn answer_changes(
        &self,
        asked: &FeedPosition,
        place: Place,
    ) -> Option<(FeedReply, Bytes)> {
        let refused = |why| Some((FeedReply::Refused(why), Bytes::new()));
        let mut grown = self.spool.grown();
        let end = Instant::now() + FEED_WAIT_MAX;
        loop {
            grown.mark_unchanged();
            if self.is_superseded() {
                return refused(Refusal::OtherClaim);
            }
            let memory = place.memory(FeedQuota::Changes, FEED_BYTES_MAX);
            let memory = timeout(CALL_TIME_MAX, memory).await.ok()?;
            let (reply, bytes) = match self.tell(asked) {
                Ok(Some(reply)) => reply,
                Ok(None) => return refused(Refusal::Diverged),
                Err(error) => return Some((failed(&error), Bytes::new())),
            };
            if !matches!(reply, FeedReply::Nothing { .. }) {
                return Some((reply, place.payload(bytes, memory)));
            }
            // A call that waits for changes has no memory meanwhile.
            drop(memory);
            if !matches!(timeout_at(end, grown.changed()).await, Ok(Ok(()))) {
                return Some((reply, Bytes::new()));
            }
        }
    }

    /// Returns the changes that there are now; `None` if the caller's position is from another process.
    fn tell(&self, asked: &FeedPosition) -> Result<Option<(FeedReply, Vec<u8>)>, PackError> {
        let FeedPosition { blob, from, .. } = *asked;
        if let Some(some) = self.spool.entries(blob, from, FEED_BYTES_MAX) {
            if !self.ends.has(&self.spool, asked)? {
                return Ok(None);
            }
            let behind = some.behind;
            if some.bytes.is_empty() && !some.is_whole {
                return Ok(Some((FeedReply::Nothing { blob }, Vec::new())));
            }
            let reply = FeedReply::Entries { blob, from, is_whole: some.is_whole, behind };
            return Ok(Some((reply, some.bytes)));
        }
        if from > 0 && self.spool.waits(blob) {
            // It has less than that.
            return Ok(None);
        }
        let row = self.index.blob(BlobId { worker: self.worker, seq: blob })?;
        let reply =
            row.map_or(FeedReply::Nothing { blob }, |row| FeedReply::Uploaded { blob, row });
        Ok(Some((reply, Vec::new())))
    }

    /// Gives bytes of the bodies in a blob that waits, or in one of its bundles.
    async fn answer_body(
        &self,
        (blob, unit): (u64, UploadUnit),
        range: Range<u64>,
        place: Place,
    ) -> Option<(FeedReply, Bytes)> {
        let refused = |why| Some((FeedReply::Refused(why), Bytes::new()));
        let Range { start: from, end: to } = range;
        let len = to.checked_sub(from).filter(|len| (1..=PACKED_BYTES_MAX).contains(len));
        let Some(len) = len.and_then(|len| usize::try_from(len).ok()) else {
            return refused(Refusal::Range);
        };
        let given = if bugs::planted(Bug::BundleNotAnnounced) { UploadUnit::SHARED } else { unit };
        let Some(file) = self.spool.file(blob, given) else {
            let reply = self.not_waiting(blob, unit).unwrap_or_else(|error| failed(&error));
            return Some((reply, Bytes::new()));
        };
        let memory = timeout(CALL_TIME_MAX, place.memory(FeedQuota::Bodies, len)).await.ok()?;
        // The thread has the place and the memory: they are taken as long as it has the bytes, wanted or not.
        let read = blocking::run(move || {
            let mut bytes = vec![0; len];
            let read = file.read_at(from, &mut bytes)?;
            Ok::<_, PackError>((read == len).then(|| place.payload(bytes, memory)))
        });
        match read.await.and_then(|read| read) {
            Ok(Some(payload)) => Some((FeedReply::Body, payload)),
            Ok(None) => refused(Refusal::Range),
            Err(error) => Some((failed(&error), Bytes::new())),
        }
    }

    /// The reason why there is no file of a unit: it is uploaded, or there never was one.
    fn not_waiting(&self, blob: u64, unit: UploadUnit) -> Result<FeedReply, PackError> {
        let row = self.index.blob(BlobId { worker: self.worker, seq: blob })?;
        // The row of a blob may be gone before its bundles.
        let is_uploaded = row.is_some() || blob <= *self.spool.uploaded().borrow();
        if !is_uploaded {
            // Any number may be asked for, and not each is one of a blob.
            return Ok(FeedReply::Refused(Refusal::Absent));
        }
        let container = unit.container(BlobId { worker: self.worker, seq: blob });
        Ok(match (container, row) {
            (Container::Blob(_), Some(row)) => FeedReply::Uploaded { blob, row },
            (Container::Own(bundle), _) => {
                let process = self.index.bundle_process(bundle)?;
                FeedReply::BundleUploaded(process.unwrap_or(ProcessId::UNNUMBERED))
            }
            (Container::Blob(_), None) => FeedReply::Refused(Refusal::Absent),
        })
    }
}

fn failed(error: &PackError) -> FeedReply {
    tracing::error!(%error, "could not respond to another worker");
    FeedReply::Refused(Refusal::Failed)
}

#[cfg(test)]
mod tests {
    use larder_env::SimDisk;
    use larder_kv::SimKv;
    use larder_types::ServerId;

    use super::*;
    use crate::format::rows::BlobRow;
    use crate::ids::StandaloneId;
    use crate::read::HeldBody;

    #[tokio::test]
    async fn a_bundle_is_reported_uploaded_also_after_its_blob_was_removed() {
        let (worker, row) = (WorkerId(3), BlobRow { bytes: 9, ..BlobRow::NONE });
        let spool = Spool::new(SimDisk::new(1, 1 << 20), worker).unwrap();
        spool.start(4);
        let index = Index::over(Box::new(SimKv::default())).unwrap().0;
        index.add_blob(BlobId { worker, seq: 4 }, &row, None).unwrap();
        let handed = Arc::new(Handed::new(Arc::default()));
        let feed = FeedSource::new(worker, Arc::new(spool), Arc::new(index), handed);
        for (seq, nth, expected) in [
            (4, 0, Some(Container::Blob(BlobId { worker, seq: 4 }))),
            (4, 1, Some(Container::Own(StandaloneId { worker, run: 0, number: 4 << 8 | 1 }))),
            (3, 2, Some(Container::Own(StandaloneId { worker, run: 0, number: 3 << 8 | 2 }))),
            (3, 0, None),
            (5, 1, None),
        ] {
            let (unit, range) = (UploadUnit::numbered(nth).unwrap(), 0..5);
            let ask = FeedRequest::Body { worker, blob: seq, unit: nth, from: 0, to: 5 };
            let place = feed.places.call(ServerId(1), FeedQuota::Bodies).unwrap();
            let answer = feed.answer(ask, place).await.unwrap();
            let held = HeldBody::read((BlobId { worker, seq }, unit), &range, answer);
            let named = held.ok().map(|held| match held {
                HeldBody::Uploaded(name) => name,
                HeldBody::Bytes(_) => panic!("nothing waits"),
            });
            let expected = expected.map(|container| match container {
                Container::Blob(id) => row.name(id).path(),
                Container::Own(own) => own.path(),
            });
            assert_eq!(named, expected, "blob {seq}, lot {nth}");
        }
    }
}
