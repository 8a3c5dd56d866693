//! The client of other workers' feeds.
//!
//! # Invariants
//!
//! 1. Changes have a connection of their own, so that they wait for no body. Bodies have [`BODY_LANES`], and each takes the
//!    one with the fewest: a slow one holds up no others while there are lanes. Each request that is handed on has a stream.
//! 2. A worker asks another for no more at once than its share there. More wait here, and none longer than a call may take.
//! 3. The log tells once that a worker does not answer, and why, and again when the reason changes.

use std::array;
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONNECTION, TRANSFER_ENCODING};
use http::uri::InvalidUri;
use http::{Request, Response, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::rt::TokioIo;
use larder_identity::Role;
use larder_net::{CallError, Endpoint, Peer, Refused, Unknown};
use larder_objects::ObjectError;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use super::handed::BodyBroken;
use super::identity::server_of;
use super::wire::{FeedPosition, FeedReply, FeedRequest, FeedUpdate, WorkerService};
use crate::error::PackError;
use crate::format::entry::Container;
use crate::format::upload_unit::UploadUnit;
use crate::ids::{BlobId, WorkerId};
use crate::limits::{
    BODIES_REQUESTED_MAX, BODY_LANES, BUSY_PAUSE, CALL_TIME_MAX, FEED_WAIT_MAX,
    HANDED_ON_SILENCE_MAX, HANDED_ON_TO_ONE_MAX,
};
use crate::owner::announce::Announcement;
use crate::owner::name::WorkerName;
use crate::read::{HeldBody, Holder};

/// A connection to another worker, which is made when it is needed.
type Lane = Peer<WorkerService>;

/// Makes calls. Without an endpoint it reaches nobody.
#[derive(Default)]
pub(crate) struct Caller {
    endpoint: Option<Arc<Endpoint>>,
    connections: Mutex<BTreeMap<WorkerName, Arc<PeerConnection>>>,
    /// The questions that were not answered when they were asked last, and why.
    silent: Mutex<BTreeMap<(WorkerName, What), String>>,
}

/// The things that are asked of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Changes,
    Bodies,
}

/// The connections to a worker while its claim and its address stay the same.
struct PeerConnection {
    worker: WorkerId,
    address: String,
    changes: Lane,
    bodies: [Lane; BODY_LANES],
    /// Bodies that are asked for over each of those.
    asked: [AtomicUsize; BODY_LANES],
    /// Places for bodies that are asked for.
    asking: Semaphore,
    /// Places for requests that are handed on.
    handing: Arc<Semaphore>,
}

impl PeerConnection {
    fn new(endpoint: &Arc<Endpoint>, worker: WorkerId, address: &str) -> Self {
        let lane = || Lane::new(endpoint, server_of(worker), address);
        Self {
            worker,
            address: address.to_owned(),
            changes: lane(),
            bodies: array::from_fn(|_| lane()),
            asked: array::from_fn(|_| AtomicUsize::new(0)),
            asking: Semaphore::new(BODIES_REQUESTED_MAX),
            handing: Arc::new(Semaphore::new(HANDED_ON_TO_ONE_MAX)),
        }
    }

    /// Asks over the lane with the fewest. Over one that breaks or cannot connect nothing is asked again: it would look the
    /// emptiest.
    async fn body(&self, ask: &FeedRequest) -> Result<(FeedReply, Bytes), String> {
        let deadline = Instant::now() + CALL_TIME_MAX;
        let place = timeout_at(deadline, self.asking.acquire()).await;
        let _place = place.map_err(|_elapsed| "too much is asked of it".to_owned())?;
        let asked = |at: &usize| self.asked[*at].load(Ordering::Relaxed);
        let mut left: Vec<usize> = (0..BODY_LANES).collect();
        loop {
            let at = left.iter().copied().min_by_key(asked).expect("there are lanes");
            let one_more = Counted::on(&self.asked[at]);
            let called = call(&self.bodies[at], ask, deadline).await;
            drop(one_more);
            match called {
                Err(CallError::NotSent(_) | CallError::Unknown(Unknown::Broken(_)))
                    if left.len() > 1 && Instant::now() < deadline =>
                {
                    left.retain(|known| *known != at);
                }
                called => return called.map_err(|error| reason_of(&error)),
            }
        }
    }
}

/// One more, until it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn on(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HeldBody {
    /// Reads an answer about bytes of a unit.
    ///
    /// # Errors
    /// Why it says nothing of them.
    pub(crate) fn read(
        (id, unit): (BlobId, UploadUnit),
        range: &Range<u64>,
        (reply, payload): (FeedReply, Bytes),
    ) -> Result<Self, String> {
        match (reply, unit.container(id)) {
            (FeedReply::Body, _) if payload.len() as u64 == range.end - range.start => {
                Ok(Self::Bytes(payload))
            }
            (FeedReply::BundleUploaded(process), Container::Own(bundle)) => {
                Ok(Self::Uploaded(bundle.path_of(process)))
            }
            (FeedReply::Uploaded { blob, row }, Container::Blob(id)) if blob == id.seq => {
                Ok(Self::Uploaded(row.name(id).path()))
            }
            (FeedReply::Refused(why), _) => Err(why.to_string()),
            _ => Err(format!("its answer is about something else, with {} bytes", payload.len())),
        }
    }
}

/// The way to the bodies that another worker has not uploaded.
pub(crate) struct Link {
    /// Its last announcement.
    announcement: Arc<Mutex<Announcement>>,
    caller: Arc<Caller>,
}

impl Link {
    pub(crate) fn new(announcement: Arc<Mutex<Announcement>>, caller: Arc<Caller>) -> Self {
        Self { announcement, caller }
    }
}

#[async_trait]
impl Holder for Link {
    async fn body(&self, container: Container, range: Range<u64>) -> Result<HeldBody, ObjectError> {
        let announcement = self.announcement.lock().clone();
        let (id, unit) =
            UploadUnit::of(container).expect("a large object is there before it is named");
        self.caller.body(&announcement, (id, unit), range).await.map_err(|_error| {
            ObjectError::Unavailable {
                reason: format!(
                    "worker {}, which has not uploaded it yet, does not give it",
                    announcement.name
                ),
            }
        })
    }
}

impl Caller {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Self {
        Self { endpoint: Some(endpoint), ..Self::default() }
    }

    /// The connections to a worker, which are made anew when its claim or its address changed.
    fn connection_to(&self, announcement: &Announcement) -> Result<Arc<PeerConnection>, String> {
        let endpoint = self.endpoint.as_ref().ok_or("there is no way to it")?;
        let address = announcement.address.as_deref().ok_or("it answers nobody")?;
        let mut connections = self.connections.lock();
        let is_same = |way: &&Arc<PeerConnection>| {
            way.worker == announcement.worker && way.address == address
        };
        if let Some(way) = connections.get(&announcement.name).filter(is_same) {
            return Ok(way.clone());
        }
        let way = Arc::new(PeerConnection::new(endpoint, announcement.worker, address));
        connections.insert(announcement.name.clone(), way.clone());
        Ok(way)
    }

    /// Asks a worker for its changes from there on, and how many bytes wait behind them. Waits a
    /// while if there are none.
    pub(crate) async fn changes(
        &self,
        announcement: &Announcement,
        asked: FeedPosition,
    ) -> Result<(FeedUpdate, u64), PackError> {
        let ask = FeedRequest::Changes { worker: announcement.worker, asked };
        let deadline = Instant::now() + FEED_WAIT_MAX + CALL_TIME_MAX;
        let answer = match self.connection_to(announcement) {
            Ok(way) => {
                let called = call(&way.changes, &ask, deadline).await;
                called.map_err(|error| reason_of(&error))
            }
            Err(reason) => Err(reason),
        };
        self.note((&announcement.name, What::Changes), answer.as_ref().err());
        let (reply, payload) = answer.map_err(|reason| PackError::Deferred { reason })?;
        FeedUpdate::read(reply, payload)
    }

    /// Asks a worker for bytes of bodies that it has not uploaded.
    async fn body(
        &self,
        announcement: &Announcement,
        (id, unit): (BlobId, UploadUnit),
        range: Range<u64>,
    ) -> Result<HeldBody, String> {
        let Range { start: from, end: to } = range;
        let ask = FeedRequest::Body { worker: id.worker, blob: id.seq, unit: unit.nth(), from, to };
        let answer = match self.connection_to(announcement) {
            Ok(way) if announcement.worker == id.worker => way.body(&ask).await,
            Ok(_) => Err("another directory has its name by now".to_owned()),
            Err(reason) => Err(reason),
        };
        let held = answer.and_then(|answer| HeldBody::read((id, unit), &range, answer));
        self.note((&announcement.name, What::Bodies), held.as_ref().err());
        if let Err(reason) = &held {
            let (worker, bundle) = (&announcement.name, unit.nth());
            tracing::debug!(%worker, blob = %id, bundle, reason, "could not fetch a body that another worker has not uploaded yet");
        }
        held
    }

    /// Notes whether a worker answered. The log is told what is new.
    fn note(&self, (name, what): (&WorkerName, What), reason: Option<&String>) {
        let (mut silent, of) = (self.silent.lock(), (name.clone(), what));
        let Some(reason) = reason else {
            silent.remove(&of);
            return;
        };
        if silent.get(&of) != Some(reason) {
            silent.insert(of, reason.clone());
            drop(silent);
            match what {
                // As each restart of it does.
                What::Changes => {
                    tracing::info!(worker = %name, reason, "another worker sends no changes: they are read from the bucket instead");
                }
                What::Bodies => {
                    tracing::warn!(worker = %name, reason, "another worker does not serve bodies that it has not uploaded: such reads get 503");
                }
            }
        }
    }

    /// Hands a client's request on, as it came.
    pub(crate) async fn hand_on<B>(
        &self,
        announcement: &Announcement,
        request: Request<B>,
    ) -> Result<Response<Incoming>, String>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyBroken>,
    {
        let endpoint = self.endpoint.as_ref().ok_or("there is no way to it")?;
        let way = self.connection_to(announcement)?;
        let place = timeout(CALL_TIME_MAX, way.handing.clone().acquire_owned()).await;
        let place = place.map_err(|_elapsed| "too much is handed on to it".to_owned())?;
        let (mut parts, body) = request.into_parts();
        let asked = parts.uri.path_and_query().map_or("", |asked| asked.as_str()).to_owned();
        parts.version = Version::HTTP_11;
        parts.uri = asked.parse().map_err(|error: InvalidUri| error.to_string())?;
        for framing in [CONNECTION, TRANSFER_ENCODING] {
            parts.headers.remove(framing);
        }
        let steps = Arc::new(AtomicU64::new(0));
        let body = Stepping { inner: Box::pin(body), steps: steps.clone() };
        let (server, address) = (server_of(way.worker), way.address.as_str());
        let stream = endpoint.open_stream(server, Role::Worker, address).await;
        let stream = stream.map_err(|error| reason_of(&error))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
        // Ends with the answer's last byte, or when nobody wants it any more.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a forwarded request ended early");
            }
            drop(place);
        });
        let answer = sender.send_request(Request::from_parts(parts, body));
        tokio::pin!(answer);
        loop {
            let before = steps.load(Ordering::Relaxed);
            match tokio::time::timeout(HANDED_ON_SILENCE_MAX, &mut answer).await {
                Ok(answer) => return answer.map_err(|error| error.to_string()),
                Err(_) if steps.load(Ordering::Relaxed) != before => {}
                Err(_) => return Err("it does not answer in time".to_owned()),
            }
        }
    }
}

/// Asks until the deadline; again and again if there is too much to do. At the deadline the call is cancelled at the
/// other worker, which frees its slots: a call that only ends here would keep them.
async fn call(
    lane: &Lane,
    ask: &FeedRequest,
    deadline: Instant,
) -> Result<(FeedReply, Bytes), CallError> {
    loop {
        let later = deadline + CALL_TIME_MAX;
        let called = lane.call_while_wanted(ask, Bytes::new(), later);
        match timeout_at(deadline, called).await {
            Ok(Err(CallError::Busy(_))) if Instant::now() + BUSY_PAUSE < deadline => {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            Ok(called) => return called,
            Err(_elapsed) => return Err(CallError::Unknown(Unknown::Late)),
        }
    }
}

/// The reason why a worker does not answer, with what mends it.
fn reason_of(error: &CallError) -> String {
    let remedy = match error {
        CallError::Denied(denied) => match denied.reason {
            Refused::Garbage | Refused::Version | Refused::NoService => {
                "it is of another release: run all workers of the bucket with the same one"
            }
            Refused::WrongServer => {
                "another worker answers at its address: look at --peer-advertise, and that each name runs once"
            }
            Refused::UnknownAuthority | Refused::BadCertificate | Refused::WrongRole => {
                "it is no worker of this bucket: look at --peer-advertise"
            }
            Refused::Expired | Refused::NotYetValid => "look at both clocks",
            _ => return error.to_string(),
        },
        _ => return error.to_string(),
    };
    format!("{error}; {remedy}")
}

/// A body that counts its pieces as they are taken.
struct Stepping<B> {
    inner: Pin<Box<B>>,
    steps: Arc<AtomicU64>,
}

impl<B: Body<Data = Bytes>> Body for Stepping<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.inner.as_mut().poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
