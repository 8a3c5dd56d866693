//! Answers requests: finds the asking region, checks that it may ask, and has the source answer.
//!
//! # Invariants
//!
//! 1. The connection's key names the asking region, in the list as it is at that moment: a removed region gets no
//!    further answer, not even over open connections.
//! 2. A caller that is no region may only join.
//! 3. The source sees a request only when all of it is in memory and it is within its bounds.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderValue, Method, Request as HttpRequest, Response, StatusCode, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use larder_types::RegionId;
use larder_types::codec::{decode, encode};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::blocking;
use crate::compression::CODING;
use crate::error::{LinkError, Refused};
use crate::identity::Fingerprint;
use crate::limits::{
    ANSWER_BYTES_MAX, CALL_TIME_MAX, CHANGE_BYTES_MAX, CHANGE_TIME_MAX, PIECES_WAITING_MAX,
    REQUEST_BYTES_MAX,
};
use crate::members::Joiner;
use crate::message::{Declined, FetchRequest, Join, Joined, PATH, RegionList, Request};
use crate::metrics::{Metrics, PeerMetrics};
use crate::registry::{Registry, now_ms};
use crate::source::{FetchSink, Piece, Source};
use crate::transport::Caller;

/// The body of an answer.
pub(crate) type Answer = Either<Full<Bytes>, Stream>;

/// See the module's head.
pub(crate) struct RequestHandler<S> {
    pub(crate) registry: Arc<Registry>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) source: Arc<S>,
}

impl<S: Source> RequestHandler<S> {
    /// The region with this key, if there is one.
    pub(crate) fn region_of(&self, key: &Fingerprint) -> Result<RegionId, Declined> {
        let members = self.registry.now();
        match members.with_key(key) {
            None => Err(Declined::Stranger),
            Some(peer) if peer.removed => Err(Declined::Removed),
            Some(peer) => Ok(peer.number),
        }
    }

    /// Answers one request.
    pub(crate) async fn answer(
        &self,
        caller: &Caller,
        request: HttpRequest<Incoming>,
    ) -> Response<Answer> {
        let metrics = self.region_of(&caller.key).ok().map(|from| self.metrics.of(from));
        // A stranger may only join.
        let bytes_max = if metrics.is_some() {
            REQUEST_BYTES_MAX + CHANGE_BYTES_MAX
        } else {
            REQUEST_BYTES_MAX
        };
        let coding = request.headers().get(header::ACCEPT_ENCODING);
        let compress = coding.is_some_and(|coding| coding == CODING);
        let answered = match self.read(request, bytes_max).await {
            Ok(request) => self.decide(caller, request, compress).await,
            Err(declined) => Err(declined),
        };
        if let Some(metrics) = metrics {
            metrics.answered.add(1);
            if answered.is_err() {
                metrics.declined.add(1);
            }
        }
        answered.unwrap_or_else(|declined| refuse(&declined))
    }

    async fn read(
        &self,
        request: HttpRequest<Incoming>,
        bytes_max: usize,
    ) -> Result<Request, Declined> {
        let unsound = |why: String| Declined::Unsound(why);
        if request.method() != Method::POST || request.uri().path() != PATH {
            return Err(unsound(format!("requests are POST {PATH}")));
        }
        let body = Limited::new(request.into_body(), bytes_max).collect();
        // A change of 8 MiB comes over a slow link.
        let is_large = bytes_max > REQUEST_BYTES_MAX;
        let max_wait = if is_large { CHANGE_TIME_MAX } else { CALL_TIME_MAX };
        let body = match timeout(max_wait, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                return Err(unsound(format!("it is longer than {bytes_max} bytes")));
            }
            Ok(Err(_)) | Err(_) => return Err(unsound("it did not come as a whole".to_owned())),
        };
        let decoded = decode::<Request>("request of a region", &body);
        if body.len() > REQUEST_BYTES_MAX && !matches!(decoded, Ok(Request::Change(_))) {
            return Err(unsound(format!("it is longer than {REQUEST_BYTES_MAX} bytes")));
        }
        let request = decoded.map_err(|error| unsound(error.to_string()))?;
        request.check()?;
        Ok(request)
    }

    async fn decide(
        &self,
        caller: &Caller,
        request: Request,
        compress: bool,
    ) -> Result<Response<Answer>, Declined> {
        if let Request::Join(join) = request {
            let joined = self.join(*caller, join).await;
            return joined.and_then(|joined| encoded(&joined, None));
        }
        let from = self.region_of(&caller.key)?;
        let metrics = self.metrics.of(from);
        let counted = Some(&*metrics);
        match request {
            Request::Fetch(fetch) => {
                self.fetch(from, FetchRequest::Entries(fetch.into()), compress, metrics).await
            }
            Request::FetchSince(fetch) => {
                self.fetch(from, FetchRequest::Entries(fetch), compress, metrics).await
            }
            Request::FetchPart(part) => {
                self.fetch(from, FetchRequest::Part(part), compress, metrics).await
            }
            Request::Hello => encoded(&in_time(self.source.hello(from)).await?, counted),
            Request::IdsQuery(ask) => {
                encoded(&in_time(self.source.query_ids(from, ask)).await?, counted)
            }
            Request::Walk(walk) => encoded(&in_time(self.source.walk(from, walk)).await?, counted),
            Request::List(list) => encoded(&in_time(self.source.list(from, list)).await?, counted),
            Request::Members(known) => encoded(&self.members(known).await?, counted),
            Request::Report(report) => {
                encoded(&in_time(self.source.reported(from, report)).await?, counted)
            }
            Request::CloseBucket(close) => {
                encoded(&in_time(self.source.close_bucket(from, close)).await?, counted)
            }
            Request::EndClosed(end) => {
                encoded(&in_time(self.source.end_closed(from, end)).await?, counted)
            }
            Request::AskHome(ask) => {
                encoded(&in_time(self.source.ask_home(from, ask)).await?, counted)
            }
            Request::TellHomes(homes) => {
                encoded(&in_time(self.source.tell_homes(from, homes)).await?, counted)
            }
            Request::Keys(keys) => encoded(&in_time(self.source.keys(from, keys)).await?, counted),
            Request::Change(change) => {
                let made = timeout(CHANGE_TIME_MAX, self.source.change(from, *change)).await;
                encoded(&made.unwrap_or(Err(Declined::Busy))?, counted)
            }
            Request::Join(_) => Err(Declined::Stranger),
        }
    }

    /// Joins in the asking region's list of regions, and answers with this one's.
    async fn members(&self, known: RegionList) -> Result<RegionList, Declined> {
        let registry = self.registry.clone();
        let merged =
            blocking::run(move || registry.merge(&known.regions).map(|()| registry.exchanged()));
        match merged.await.unwrap_or_else(|error| Err(LinkError::broken(error))) {
            Ok(regions) => Ok(RegionList { regions }),
            Err(LinkError::Unsound(why)) => {
                tracing::error!(%why, "a region has another list of regions than this one");
                Err(Declined::Unsound(why))
            }
            Err(error) => {
                tracing::error!(%error, "the list of regions cannot be changed");
                Err(Declined::NotReady)
            }
        }
    }

    async fn join(&self, caller: Caller, join: Join) -> Result<Joined, Declined> {
        let registry = self.registry.clone();
        let name = join.name.clone();
        let met = in_time(self.source.last_met()).await?;
        let admitted = blocking::run(move || {
            let joiner = Joiner {
                token: join.token,
                proof: &join.proof,
                session: &caller.session,
                fingerprint: caller.key,
                name: &join.name,
                address: &join.address,
            };
            registry.change(|members| {
                let number = members.admit(now_ms(), &joiner, met).map_err(Refused::Join)?;
                Ok(Joined { number, known: RegionList { regions: members.exchanged() } })
            })
        });
        match admitted.await.unwrap_or_else(|error| Err(LinkError::broken(error))) {
            Ok(joined) => {
                // A joiner that asks again with the same token gets the same number.
                in_time(self.source.keep(joined.known.clone())).await?;
                self.registry.are_kept(&joined.known.regions);
                tracing::info!(number = %joined.number, %name, "a region has joined");
                Ok(joined)
            }
            Err(LinkError::Refused(Refused::Join(refused))) => {
                self.metrics.joins_refused.add(1);
                tracing::warn!(%name, %refused, "a region may not join");
                Err(Declined::Join(refused))
            }
            Err(error) => {
                tracing::error!(%error, "the list of regions cannot be changed");
                Err(Declined::NotReady)
            }
        }
    }

    async fn fetch(
        &self,
        from: RegionId,
        fetch: FetchRequest,
        compress: bool,
        metrics: Arc<PeerMetrics>,
    ) -> Result<Response<Answer>, Declined> {
        let (pieces, mut received) = mpsc::channel(PIECES_WAITING_MAX);
        let sink = FetchSink::new(&fetch, pieces, compress, metrics.clone());
        let source = self.source.clone();
        let writing = tokio::spawn(async move { source.fetch(from, fetch, sink).await });
        let answering = Ends(writing.abort_handle());
        let first = timeout(CALL_TIME_MAX, received.recv()).await;
        match first {
            Ok(Some(first)) => {
                let first = Some(first);
                let stream =
                    Stream { first, received, is_over: false, metrics, _answering: answering };
                let mut response = Response::new(Either::Right(stream));
                if compress {
                    let coding = HeaderValue::from_static(CODING);
                    response.headers_mut().insert(header::CONTENT_ENCODING, coding);
                }
                Ok(response)
            }
            Ok(None) => match writing.await {
                Ok(Err(declined)) => Err(declined),
                Ok(Ok(())) | Err(_) => Err(Declined::NotReady),
            },
            Err(_elapsed) => Err(Declined::Busy),
        }
    }
}

async fn in_time<T>(asking: impl Future<Output = Result<T, Declined>>) -> Result<T, Declined> {
    timeout(CALL_TIME_MAX, asking).await.unwrap_or(Err(Declined::Busy))
}

/// Encodes an answer that is in memory.
fn encoded<T: Serialize>(
    answer: &T,
    metrics: Option<&PeerMetrics>,
) -> Result<Response<Answer>, Declined> {
    let bytes = encode(answer);
    if bytes.len() > ANSWER_BYTES_MAX {
        let len = bytes.len();
        tracing::error!(len, "a response to a region exceeds the maximum length");
        return Err(Declined::Unsound(format!("its answer has {len} bytes")));
    }
    if let Some(metrics) = metrics {
        metrics.bytes_answered.add(bytes.len() as u64);
    }
    Ok(Response::new(Either::Left(bytes.into())))
}

fn refuse(declined: &Declined) -> Response<Answer> {
    let mut response = Response::new(Either::Left(encode(declined).into()));
    *response.status_mut() = match declined {
        Declined::Busy | Declined::NotReady => StatusCode::SERVICE_UNAVAILABLE,
        Declined::Unsound(_) => StatusCode::BAD_REQUEST,
        Declined::Stranger | Declined::Removed | Declined::Join(_) => StatusCode::FORBIDDEN,
    };
    response
}

/// A task that is aborted when this is dropped.
struct Ends(AbortHandle);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The body of the answer to a fetch. It ends with an error unless the sink has written all of it.
pub(crate) struct Stream {
    first: Option<Piece>,
    received: mpsc::Receiver<Piece>,
    is_over: bool,
    metrics: Arc<PeerMetrics>,
    _answering: Ends,
}

impl Body for Stream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let piece = match self.first.take() {
            Some(first) => Some(first),
            None => ready!(self.received.poll_recv(context)),
        };
        Poll::Ready(match piece {
            Some(Piece::Bytes(bytes)) => {
                self.metrics.bytes_answered.add(bytes.len() as u64);
                Some(Ok(Frame::data(bytes)))
            }
            Some(Piece::End) => {
                self.is_over = true;
                None
            }
            None => Some(Err(io::Error::other("the answer is not complete"))),
        })
    }
}
