//! The HTTP client of a backend. It gives a request up when nothing moves, and never because it takes long: an uplink
//! may be slow, and many requests share it.
//!
//! # Invariants
//!
//! 1. The time allowed for a request begins anew with each frame of its body that goes out.
//! 2. It covers what the system's buffers may hold of the body, at the slowest rate that is worth waiting for.
//! 3. A request given up like that fails as timed out, so that the request scheduler slows down.
//! 4. No body goes out any more once its request was given up, or its answer was read or dropped.

use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use tokio::time::Sleep;

use super::streamed::{Reading, Streamed};
use crate::limits::{
    BACKEND_CONNECT_MAX, BACKEND_SILENCE_MAX, UPLINK_BUFFER_BYTES_MAX, UPLINK_BYTES_PER_S_MIN,
    UPLINK_FRAME_BYTES,
};

/// The time for which a request may stand still.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestTimeouts {
    /// Until the next bytes of an answer.
    pub(super) silence: Duration,
    /// Bytes a second of an upload that are worth waiting for.
    pub(super) bytes_per_s_min: u64,
}

impl Default for RequestTimeouts {
    fn default() -> Self {
        Self { silence: BACKEND_SILENCE_MAX, bytes_per_s_min: UPLINK_BYTES_PER_S_MIN }
    }
}

impl RequestTimeouts {
    /// Time until something moves, once so many bytes of a body were handed to the system.
    fn after(self, sent: u64) -> Duration {
        let buffered = sent.min(UPLINK_BUFFER_BYTES_MAX) as f64;
        self.silence + Duration::from_secs_f64(buffered / self.bytes_per_s_min as f64)
    }
}

/// A request that stood still.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nothing moved for {0:?}")]
struct StoodStill(Duration);

/// A body that nobody waits for any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its request is over")]
struct Abandoned;

/// Ends the body of a request when it is dropped. The connection would go on to send it.
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The state of a body, which its request watches.
#[derive(Clone, Default)]
struct Watched {
    sent: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

/// Makes clients.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Uplink {
    pub(super) request_timeouts: RequestTimeouts,
}

#[derive(Debug)]
struct Client {
    inner: reqwest::Client,
    request_timeouts: RequestTimeouts,
}

impl HttpConnector for Uplink {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // All TLS of this process uses the same library; the first to set it counts.
        let _already = rustls::crypto::ring::default_provider().install_default();
        let plain = options.get_config_value(&ClientConfigKey::AllowHttp);
        let inner = reqwest::Client::builder()
            .user_agent(concat!("larder/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(BACKEND_CONNECT_MAX)
            .tcp_user_timeout(self.request_timeouts.after(UPLINK_BUFFER_BYTES_MAX))
            .http1_only()
            .https_only(plain.as_deref() != Some("true"))
            // A length that is not that of the object would be taken for it.
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .build();
        let inner = inner.map_err(|error| object_store::Error::Generic {
            store: "the client of the backend",
            source: Box::new(error),
        })?;
        Ok(HttpClient::new(Client { inner, request_timeouts: self.request_timeouts }))
    }
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let streamed = Streamed::of(&request);
        let (parts, body) = request.into_parts();
        let url = parts.uri.to_string().parse::<reqwest::Url>();
        let url = url.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        let watched = Watched::default();
        let (sent, wanted) = (watched.sent.clone(), Wanted(watched.is_over.clone()));
        *request.body_mut() = Some(match streamed {
            Some(streamed) => outgoing(Reading::of(&streamed), streamed.len(), watched),
            None => in_frames(body, watched),
        });
        let answer = self.inner.execute(request);
        tokio::pin!(answer);
        loop {
            let before = sent.load(Ordering::Relaxed);
            let allowed = self.request_timeouts.after(before);
            match tokio::time::timeout(allowed, &mut answer).await {
                Ok(answer) => {
                    let answer: http::Response<reqwest::Body> = answer.map_err(failed)?.into();
                    let silence = self.request_timeouts.silence;
                    let coming = |body| Coming::new(body, silence, wanted);
                    return Ok(answer.map(|body| HttpResponseBody::new(coming(body))));
                }
                Err(_) if sent.load(Ordering::Relaxed) != before => {}
                Err(_) => return Err(HttpError::new(HttpErrorKind::Timeout, StoodStill(allowed))),
            }
        }
    }
}

/// A body that counts its bytes as they go out. One that fits a frame stays whole, so that it can follow a redirection.
fn in_frames(body: HttpRequestBody, watched: Watched) -> reqwest::Body {
    match body.as_bytes() {
        Some(bytes) if bytes.len() <= UPLINK_FRAME_BYTES => bytes.clone().into(),
        _ => {
            let len = body.content_length() as u64;
            outgoing(body, len, watched)
        }
    }
}

fn outgoing<B>(inner: B, left: u64, watched: Watched) -> reqwest::Body
where
    B: Body<Data = Bytes, Error = HttpError> + Send + Sync + Unpin + 'static,
{
    reqwest::Body::wrap(Outgoing { inner, frame: Bytes::new(), left, watched })
}

/// The body of a request, frame by frame.
struct Outgoing<B> {
    inner: B,
    frame: Bytes,
    left: u64,
    watched: Watched,
}

impl<B: Body<Data = Bytes, Error = HttpError> + Unpin> Body for Outgoing<B> {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if self.watched.is_over.load(Ordering::Relaxed) {
            return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Unknown, Abandoned))));
        }
        while self.frame.is_empty() {
            match std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => self.frame = frame.into_data().unwrap_or_default(),
            }
        }
        let len = self.frame.len().min(UPLINK_FRAME_BYTES);
        let bytes = self.frame.split_to(len);
        self.left = self.left.saturating_sub(len as u64);
        self.watched.sent.fetch_add(len as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// The body of an answer.
struct Coming {
    inner: reqwest::Body,
    silence: Duration,
    ends: Pin<Box<Sleep>>,
    _wanted: Wanted,
}

impl Coming {
    fn new(inner: reqwest::Body, silence: Duration, wanted: Wanted) -> Self {
        Self { inner, silence, ends: Box::pin(tokio::time::sleep(silence)), _wanted: wanted }
    }
}

impl Body for Coming {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
            let until = tokio::time::Instant::now() + self.silence;
            self.ends.as_mut().reset(until);
            return Poll::Ready(frame.map(|frame| frame.map_err(failed)));
        }
        std::task::ready!(self.ends.as_mut().poll(cx));
        let still = StoodStill(self.silence);
        Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Timeout, still))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// An error of the client, by the kind that says whether the request may be made again.
fn failed(error: reqwest::Error) -> HttpError {
    let kind = match () {
        () if error.is_timeout() => HttpErrorKind::Timeout,
        () if error.is_connect() => HttpErrorKind::Connect,
        () if error.is_decode() => HttpErrorKind::Decode,
        () => kind_within(&error),
    };
    // The URL has the keys of a signed request.
    HttpError::new(kind, error.without_url())
}

fn kind_within(error: &reqwest::Error) -> HttpErrorKind {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            if error.is_closed() || error.is_incomplete_message() || error.is_body_write_aborted() {
                return HttpErrorKind::Request;
            }
            if error.is_timeout() {
                return HttpErrorKind::Timeout;
            }
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            match error.kind() {
                io::ErrorKind::TimedOut => return HttpErrorKind::Timeout,
                io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof => return HttpErrorKind::Interrupted,
                _ => {}
            }
        }
        source = error.source();
    }
    HttpErrorKind::Unknown
}

#[cfg(test)]
mod tests;
