//! Asks other workers.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONNECTION, TRANSFER_ENCODING};
use http::uri::InvalidUri;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::rt::TokioIo;
use larder_objects::ObjectError;
use larder_types::codec::decode;
use parking_lot::Mutex;
use tokio::net::TcpStream;

use super::handed::BodyBroken;
use super::wire::{
    Asked, CLOCK, Call, DATE, HANDED_ON, Heard, NONCE, PROOF, STREAMED, Secret, Told, ask_body,
    ask_changes, digest, draw_nonce, streamed_with,
};
use crate::clock::now_ms;
use crate::error::PackError;
use crate::format::entry::Within;
use crate::format::lot::Lot;
use crate::format::rows::BlobRow;
use crate::ids::{BlobId, ProcessId, WorkerId};
use crate::limits::{
    CALL_CONNECT_MAX, CALL_TIME_MAX, FEED_BYTES_MAX, FEED_WAIT_MAX, HANDED_ON_SILENCE_MAX,
    PACKED_BYTES_MAX,
};
use crate::owner::announce::Announcement;
use crate::read::{Held, Holder};

/// Bytes of an answer beside what it is asked for.
const HEAD_BYTES_MAX: usize = 4096;

/// Makes calls. Without a secret it reaches nobody.
#[derive(Default)]
pub(crate) struct Caller {
    pub(crate) secret: Option<Secret>,
}

impl Held {
    /// Reads an answer about bytes of a lot.
    ///
    /// # Errors
    /// Why it says nothing of them.
    pub(crate) fn read(
        (id, lot): (BlobId, Lot),
        range: &Range<u64>,
        (status, answer): (StatusCode, Bytes),
    ) -> Result<Self, String> {
        match (status, lot.within(id)) {
            (StatusCode::OK, _) if answer.len() as u64 == range.end - range.start => {
                Ok(Self::Bytes(answer))
            }
            // Nothing: of a release without numbers.
            (StatusCode::GONE, Within::Own(bundle)) if answer.is_empty() => {
                Ok(Self::Uploaded(bundle.path()))
            }
            (StatusCode::GONE, Within::Own(bundle)) => {
                match decode::<ProcessId>("who uploaded a bundle", &answer) {
                    Ok(process) => Ok(Self::Uploaded(bundle.path_of(process))),
                    Err(error) => Err(error.to_string()),
                }
            }
            (StatusCode::GONE, Within::Blob(id)) => {
                match decode::<BlobRow>("a blob's row", &answer) {
                    Ok(row) => Ok(Self::Uploaded(row.name(id).path())),
                    Err(error) => Err(error.to_string()),
                }
            }
            (status, _) => Err(format!("it answers {status}, with {} bytes", answer.len())),
        }
    }
}

/// The way to a worker.
pub(crate) struct Link {
    /// Its last announcement.
    told: Arc<Mutex<Announcement>>,
    caller: Arc<Caller>,
}

impl Link {
    pub(crate) fn new(told: Arc<Mutex<Announcement>>, caller: Arc<Caller>) -> Self {
        Self { told, caller }
    }
}

#[async_trait]
impl Holder for Link {
    async fn body(&self, within: Within, range: Range<u64>) -> Result<Held, ObjectError> {
        let told = self.told.lock().clone();
        let (id, lot) = Lot::of(within).expect("a large object is there before it is named");
        let asked = ask_body(id, lot, &range);
        let most = PACKED_BYTES_MAX as usize + HEAD_BYTES_MAX;
        let answer = match &told.address {
            Some(address) if told.worker == id.worker => {
                self.caller.call(address, &asked, most, CALL_TIME_MAX).await
            }
            _ => Err("it cannot be reached".to_owned()),
        };
        answer.and_then(|answer| Held::read((id, lot), &range, answer)).map_err(|reason| {
            let (name, bundle) = (&told.name, lot.nth());
            tracing::warn!(worker = %name, blob = %id, bundle, reason, "a body that another worker has not uploaded did not come");
            ObjectError::Unavailable {
                reason: format!("worker {name}, which has not uploaded it yet, does not give it"),
            }
        })
    }
}

impl Caller {
    /// Asks a worker for its changes from there on, and how many bytes wait behind them. Waits a
    /// while if there are none.
    pub(crate) async fn changes(
        &self,
        address: &str,
        worker: WorkerId,
        asked: &Asked,
    ) -> Result<(Heard, u64), PackError> {
        let asked = ask_changes(worker, asked);
        let most = FEED_BYTES_MAX + HEAD_BYTES_MAX;
        let within = FEED_WAIT_MAX + CALL_TIME_MAX;
        match self.call(address, &asked, most, within).await {
            Ok((StatusCode::OK, answer)) => Told::read(&answer),
            Ok((status, _)) => Err(PackError::Deferred { reason: format!("it answers {status}") }),
            Err(reason) => Err(PackError::Deferred { reason }),
        }
    }

    /// Hands a client's request on, as it came.
    pub(crate) async fn hand_on<B>(
        &self,
        address: &str,
        request: Request<B>,
    ) -> Result<Response<Incoming>, String>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyBroken>,
    {
        let Some(secret) = &self.secret else { return Err("there is no way to it".to_owned()) };
        let (mut parts, body) = request.into_parts();
        let asked = parts.uri.path_and_query().map_or("", |asked| asked.as_str()).to_owned();
        let (date, nonce) = (now_ms(), draw_nonce());
        parts.version = Version::HTTP_11;
        parts.uri = asked.parse().map_err(|error: InvalidUri| error.to_string())?;
        for framing in [CONNECTION, TRANSFER_ENCODING] {
            parts.headers.remove(framing);
        }
        parts.headers.insert(HANDED_ON, HeaderValue::from_static("1"));
        parts.headers.insert(DATE, date.into());
        let call = Call {
            method: &parts.method,
            asked: &asked,
            date_ms: date,
            nonce: &nonce,
            body: STREAMED,
        };
        let of = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
        parts.headers.insert(PROOF, of(&secret.prove(&call))?);
        parts.headers.insert(NONCE, of(&nonce)?);
        let steps = Arc::new(AtomicU64::new(0));
        let body = Stepping { inner: Box::pin(body), steps: steps.clone() };
        let stream = connect(address).await?;
        let handshake = hyper::client::conn::http1::handshake(stream).await;
        let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
        // Ends with the answer's last byte, or when nobody wants it any more.
        tokio::spawn(connection);
        let answer = sender.send_request(Request::from_parts(parts, body));
        tokio::pin!(answer);
        loop {
            let before = steps.load(Ordering::Relaxed);
            match tokio::time::timeout(HANDED_ON_SILENCE_MAX, &mut answer).await {
                Ok(answer) => {
                    let mut answer = answer.map_err(|error| error.to_string())?;
                    // Without a clock it is no answer of a face, and none is made of it.
                    if let Some(clock) = header(&answer, CLOCK) {
                        let body = streamed_with(clock);
                        is_proven(secret, &nonce, &answer, &body)?;
                    }
                    answer.headers_mut().remove(PROOF);
                    return Ok(answer);
                }
                Err(_) if steps.load(Ordering::Relaxed) != before => {}
                Err(_) => return Err("it does not answer in time".to_owned()),
            }
        }
    }

    /// One call on a connection of its own.
    async fn call(
        &self,
        address: &str,
        asked: &str,
        most: usize,
        within: Duration,
    ) -> Result<(StatusCode, Bytes), String> {
        let Some(secret) = &self.secret else { return Err("there is no way to it".to_owned()) };
        let (date_ms, nonce, none) = (now_ms(), draw_nonce(), digest(b""));
        let call = Call { method: &Method::GET, asked, date_ms, nonce: &nonce, body: &none };
        let call = Request::get(asked)
            .header(http::header::HOST, address)
            .header(DATE, date_ms)
            .header(PROOF, secret.prove(&call))
            .header(NONCE, &nonce)
            .body(Empty::<Bytes>::new());
        let call = call.map_err(|error| error.to_string())?;
        let stream = connect(address).await?;
        let answered = tokio::time::timeout(within, async {
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(stream).await.map_err(|e| e.to_string())?;
            let answer = async {
                let answer = sender.send_request(call).await.map_err(|e| e.to_string())?;
                let (head, body) = answer.into_parts();
                let body = Limited::new(body, most).collect().await;
                let body = body.map_err(|error| error.to_string())?.to_bytes();
                let head = Response::from_parts(head, ());
                is_proven(secret, &nonce, &head, &digest(&body))?;
                Ok((head.status(), body))
            };
            // The connection moves only while it is polled.
            tokio::pin!(connection, answer);
            tokio::select! {
                biased;
                answer = &mut answer => answer,
                ended = &mut connection => match ended {
                    // An answer that came before the end is there still.
                    Ok(()) => answer.await,
                    Err(error) => Err(error.to_string()),
                },
            }
        });
        answered.await.unwrap_or_else(|_| Err("it does not answer in time".to_owned()))
    }
}

fn header<'a, B>(answer: &'a Response<B>, name: &str) -> Option<&'a str> {
    answer.headers().get(name)?.to_str().ok()
}

/// Checks that a worker of the bucket has made this answer to this call.
fn is_proven<B>(
    secret: &Secret,
    nonce: &str,
    answer: &Response<B>,
    body: &str,
) -> Result<(), String> {
    let (status, proof) = (answer.status(), header(answer, PROOF).unwrap_or_default());
    match secret.is_answer(nonce, status, body, proof) {
        true => Ok(()),
        false => Err(format!("it answers {status}, and does not prove who it is")),
    }
}

async fn connect(address: &str) -> Result<TokioIo<TcpStream>, String> {
    let stream = tokio::time::timeout(CALL_CONNECT_MAX, TcpStream::connect(address)).await;
    let stream = stream.map_err(|_| "it does not answer".to_owned())?;
    Ok(TokioIo::new(stream.map_err(|error| error.to_string())?))
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
