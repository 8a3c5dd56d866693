//! An object that goes up as one request, read from a file meanwhile: whatever its size, a few pieces of it are in
//! memory.
//!
//! The library makes requests of bytes that are in memory. So it is asked to put none, and the file goes along in the
//! request's extensions. Where the request passes the request scheduler it gets its length, and is signed again for that; the uplink
//! reads the file.
//!
//! # Invariants
//!
//! 1. At most [`STREAM_PIECES_AHEAD`] pieces of a body are in memory, beside those that the connection has.
//! 2. S3 is told the sum of a body, as of one that is in memory, and refuses what came damaged; unless the library is
//!    configured to tell it of none.
//! 3. A request that broke off or was refused after more than a part had gone out is not made again here.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, TryStreamExt};
use http::{HeaderValue, StatusCode, header};
use hyper::body::{Body, Frame};
use larder_env::DiskFile;
use object_store::aws::{AwsAuthorizer, AwsCredentialProvider};
use object_store::azure::{AzureAuthorizer, AzureCredentialProvider};
use object_store::client::{HttpError, HttpErrorKind, HttpRequest};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::blocking;
use crate::error::PackError;
use crate::limits::{PART_BYTES, SPOOL_READ_BYTES, STREAM_PIECES_AHEAD};

/// Stands in place of a sum where bodies are not signed.
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// The bytes of a file that changes no more, and those behind them. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Source {
    file: Arc<dyn DiskFile>,
    file_bytes: u64,
    tail: Bytes,
}

impl Source {
    pub(crate) fn new(file: Arc<dyn DiskFile>, file_bytes: u64, tail: Bytes) -> Self {
        Self { file, file_bytes, tail }
    }

    pub(crate) fn len(&self) -> u64 {
        self.file_bytes + self.tail.len() as u64
    }

    /// Some of the bytes.
    pub(crate) async fn read(&self, range: Range<u64>) -> Result<Vec<Bytes>, PackError> {
        let source = self.clone();
        blocking::run(move || source.read_now(range)).await?
    }

    fn read_now(&self, range: Range<u64>) -> Result<Vec<Bytes>, PackError> {
        assert!(range.start <= range.end && range.end <= self.len(), "it has what is read");
        let (in_file, mut pieces) = (self.file_bytes, Vec::with_capacity(2));
        if range.start < in_file {
            let mut bytes = vec![0; (range.end.min(in_file) - range.start) as usize];
            if self.file.read_at(range.start, &mut bytes)? != bytes.len() {
                return Err(PackError::damaged("a file of the spool", "it is too short"));
            }
            pieces.push(bytes.into());
        }
        if range.end > in_file {
            let at = |at: u64| (at.max(in_file) - in_file) as usize;
            pieces.push(self.tail.slice(at(range.start)..at(range.end)));
        }
        Ok(pieces)
    }

    fn ranges(&self) -> impl Iterator<Item = Range<u64>> + Send + use<> {
        let (len, step) = (self.len(), SPOOL_READ_BYTES);
        (0..len.div_ceil(step)).map(move |number| number * step..((number + 1) * step).min(len))
    }

    fn sha256(&self) -> Result<[u8; 32], PackError> {
        let mut sum = Sha256::new();
        for range in self.ranges() {
            for piece in self.read_now(range)? {
                sum.update(&piece);
            }
        }
        Ok(sum.finalize().into())
    }
}

/// The way a cloud takes requests whose bodies are read meanwhile.
#[derive(Clone)]
pub(super) struct Streams {
    pub(super) signs: Signs,
    /// Most bytes of one request.
    pub(super) put_bytes_max: u64,
}

/// Parts of a request that depend on its body, beside the length.
#[derive(Clone)]
pub(super) enum Signs {
    /// The body's sum is signed.
    S3(AwsCredentialProvider),
    /// With an account's key, the length is signed.
    Azure { credentials: AzureCredentialProvider, account: String },
    /// Nothing.
    Google,
}

/// A body, in the extensions of its request.
#[derive(Clone)]
pub(super) struct Streamed(Arc<Inner>);

struct Inner {
    source: Source,
    signs: Signs,
    sum: Mutex<Option<[u8; 32]>>,
    /// Most bytes that went out in one try.
    sent: AtomicU64,
    /// The backend, or somebody on the way, was reached.
    is_made: AtomicBool,
    /// The last answer's status; 0 before there is one.
    status: AtomicU16,
}

/// A request that is not made again although its status says that it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it was refused with {0} after much of it had been sent")]
struct RefusedLate(StatusCode);

impl Streamed {
    pub(super) fn new(source: &Source, signs: &Signs) -> Self {
        let (source, signs) = (source.clone(), signs.clone());
        Self(Arc::new(Inner {
            source,
            signs,
            sum: Mutex::new(None),
            sent: AtomicU64::new(0),
            is_made: AtomicBool::new(false),
            status: AtomicU16::new(0),
        }))
    }

    /// The one that a request has, if it has one.
    pub(super) fn of(request: &HttpRequest) -> Option<Self> {
        request.extensions().get::<Self>().cloned()
    }

    pub(super) fn len(&self) -> u64 {
        self.0.source.len()
    }

    /// Most bytes that went out in one try.
    pub(super) fn sent(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// Returns true if a request with it reached somebody, whatever became of it.
    pub(super) fn is_made(&self) -> bool {
        self.0.is_made.load(Ordering::Relaxed)
    }

    /// Returns true if neither rights nor the backend's state explain the last answer: the request
    /// may be too large.
    pub(super) fn is_refused(&self) -> bool {
        let status = StatusCode::from_u16(self.0.status.load(Ordering::Relaxed)).ok();
        let of_rights = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::NOT_FOUND];
        status.is_some_and(|status| !may_pass(status) && !of_rights.contains(&status))
    }

    /// Takes an answer to a request with it. An error if the status lets others make such a request again, and too much
    /// of this one had gone out.
    pub(super) fn answered(&self, status: StatusCode) -> Result<(), HttpError> {
        self.0.is_made.store(true, Ordering::Relaxed);
        self.0.status.store(status.as_u16(), Ordering::Relaxed);
        match may_pass(status) && self.is_past_a_part() {
            true => Err(HttpError::new(HttpErrorKind::Unknown, RefusedLate(status))),
            false => Ok(()),
        }
    }

    /// An error of a request with it, by the kind that says whether the library may make the request again.
    pub(super) fn failed(&self, error: HttpError) -> HttpError {
        if error.kind() != HttpErrorKind::Connect {
            self.0.is_made.store(true, Ordering::Relaxed);
        }
        match self.is_past_a_part() {
            true => HttpError::new(HttpErrorKind::Unknown, error),
            false => error,
        }
    }

    fn is_past_a_part(&self) -> bool {
        self.sent() > PART_BYTES as u64
    }

    /// The pieces, from the first on.
    pub(super) fn pieces(&self) -> BoxStream<'static, Result<Bytes, PackError>> {
        let (inner, mut out) = (self.0.clone(), 0);
        let source = self.0.source.clone();
        let read = move |range| {
            let source = source.clone();
            async move { source.read(range).await }
        };
        stream::iter(self.0.source.ranges())
            .map(read)
            .buffered(STREAM_PIECES_AHEAD)
            .map_ok(|pieces| stream::iter(pieces.into_iter().map(Ok)))
            .try_flatten()
            .inspect_ok(move |piece: &Bytes| {
                out += piece.len() as u64;
                inner.sent.fetch_max(out, Ordering::Relaxed);
            })
            .boxed()
    }

    /// Gives its request what depends on the body.
    pub(super) async fn prepare(&self, request: &mut HttpRequest) -> Result<(), HttpError> {
        request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(self.len()));
        let Some(signature) = request.headers().get(header::AUTHORIZATION) else { return Ok(()) };
        let signature = signature.to_str().unwrap_or_default().to_owned();
        match &self.0.signs {
            Signs::Google => Ok(()),
            Signs::Azure { .. } if !signature.starts_with("SharedKey ") => Ok(()),
            Signs::Azure { credentials, account } => {
                let credential = credentials.get_credential().await.map_err(unsigned)?;
                request.headers_mut().remove(header::AUTHORIZATION);
                let authorizer = AzureAuthorizer::new(&credential, account);
                authorizer.try_authorize(request).map_err(unsigned)
            }
            Signs::S3(credentials) => {
                let digest = request.headers().get("x-amz-content-sha256");
                if digest.is_some_and(|digest| digest == UNSIGNED) {
                    return Ok(());
                }
                let sum = self.sum().await.map_err(unsigned)?;
                let credential = credentials.get_credential().await.map_err(unsigned)?;
                let region = region_of(&signature).unwrap_or_default();
                let authorizer = AwsAuthorizer::new(&credential, "s3", region);
                authorizer.try_authorize(request, Some(&sum)).map_err(unsigned)
            }
        }
    }

    async fn sum(&self) -> Result<[u8; 32], PackError> {
        let known = *self.0.sum.lock();
        if let Some(sum) = known {
            return Ok(sum);
        }
        let source = self.0.source.clone();
        let sum = blocking::run(move || source.sha256()).await??;
        *self.0.sum.lock() = Some(sum);
        Ok(sum)
    }
}

/// Returns true if the same request may have another answer later.
fn may_pass(status: StatusCode) -> bool {
    let for_now = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    status.is_server_error() || for_now.contains(&status)
}

/// The region that a signature of S3 is for: `AWS4-HMAC-SHA256 Credential=KEY/DATE/REGION/s3/aws4_request, …`.
fn region_of(signature: &str) -> Option<&str> {
    let scope = signature.split_once("Credential=")?.1.split(',').next()?;
    scope.rsplit('/').nth(2)
}

fn unsigned(error: impl std::error::Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, error)
}

/// A body on its way.
pub(super) struct Reading {
    /// Never locked: a body must be one that several threads may hold, and a stream is none.
    pieces: Mutex<BoxStream<'static, Result<Bytes, PackError>>>,
}

impl Reading {
    pub(super) fn of(streamed: &Streamed) -> Self {
        Self { pieces: Mutex::new(streamed.pieces()) }
    }
}

impl Body for Reading {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let piece = std::task::ready!(Pin::new(self.pieces.get_mut()).poll_next(cx));
        let framed = |piece: Result<Bytes, PackError>| piece.map(Frame::data).map_err(unsigned);
        Poll::Ready(piece.map(framed))
    }
}

#[cfg(test)]
mod tests;
