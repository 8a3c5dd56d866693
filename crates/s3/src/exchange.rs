//! One request and its answer, around the protocol library: health probes, admission, the body
//! guard, request ids, counting and logging.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use larder_types::UploadId;
use s3s::{S3Error, S3ErrorCode};

use crate::admission::{Admission, Admitted};
use crate::digested::{DigestedBody, Expectation, Mismatch};
use crate::form::FormHead;
use crate::guard::{ChunkGuard, Verdict};
use crate::ids::{RequestId, RequestIds};
use crate::limits::BODY_SHARE_BYTES_MAX;
use crate::neighbours::{self, Neighbours, Whence};
use crate::repairs::{self, Asked};
use crate::reply::{Pulse, ReplyBody, Tally, Working};
use crate::server::{ServerHooks, ServerOptions};
use crate::service::S3Service;
use crate::shape::Shape;
use crate::unread_xml::{Found, WhollyRead};
use crate::{errors, headers, signed, subresources};

const X_AMZ_ID_2: &str = "x-amz-id-2";
const X_AMZ_REQUEST_ID: &str = "x-amz-request-id";

/// What all connections of a server share.
pub(crate) struct Exchange<H: ServerHooks> {
    service: S3Service,
    hooks: Arc<H>,
    admission: Arc<Admission>,
    ids: RequestIds,
    host_id: HeaderValue,
}

impl<H: ServerHooks> Exchange<H> {
    pub(crate) fn new(service: S3Service, hooks: Arc<H>, options: &ServerOptions) -> Self {
        let admission =
            Admission::new(options.requests_max, options.body_budget_bytes, options.waiting_max);
        let ids = RequestIds::new();
        let host_id = ids.next().header();
        Self { service, hooks, admission: Arc::new(admission), ids, host_id }
    }

    pub(crate) async fn answer(
        &self,
        request: Request<Incoming>,
        working: Working,
    ) -> Result<Response<ReplyBody<H>>, Infallible> {
        Ok(self.answer_from(Whence::Client, request, &working).await)
    }

    /// Answers what another server has handed on; how long its client may be silent is that server's to watch.
    pub(crate) async fn answer_neighbour(
        &self,
        request: Request<Incoming>,
    ) -> Response<ReplyBody<H>> {
        let working = Working::begin(&Arc::new(Pulse::default()));
        self.answer_from(Whence::Neighbour, request, &working).await
    }

    async fn answer_from(
        &self,
        whence: Whence,
        request: Request<Incoming>,
        working: &Working,
    ) -> Response<ReplyBody<H>> {
        let shape = Shape::of(&request, &self.service.domains);
        if let Some(status) = self.probe(&request, &shape) {
            let body = s3s::Body::from(format!("{}\n", status.canonical_reason().unwrap_or("")));
            let mut response = Response::new(ReplyBody::uncounted(body, working));
            *response.status_mut() = status;
            return response;
        }
        let id = self.ids.next();
        let uri = request.uri().clone();
        let waits = request.headers().contains_key(EXPECT);
        // Of a body without bytes the client is not told to go on: no 100 is sent for it.
        let waits_in_vain = waits && request.body().is_end_stream();
        let mut tally = Tally {
            hooks: Arc::clone(&self.hooks),
            id,
            op: shape.op,
            status: 0,
            started: Instant::now(),
            bytes_in: shape.body_bytes,
            bytes_out: 0,
        };
        let (mut response, admitted) = match self.run(whence, request, &shape).await {
            Ok((response, admitted)) => (response, Some(admitted)),
            Err(refused) => (errors::response(refused), None),
        };
        let asked = Asked { op: shape.op, path: uri.path(), id };
        let failure = repairs::repair(&asked, &mut response);
        let status = response.status();
        tally.status = status.as_u16();
        if let Some(detail) = failure {
            log_failure(shape.op, status, id, &detail);
        }
        let headers = response.headers_mut();
        if waits_in_vain || waits && !status.is_success() {
            // Whether the body comes after all is the client's choice: nothing else can be read here. And botocore
            // reads no other answer rightly on a connection on which one came in place of a 100.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        // Who answered it has given it its own.
        headers.entry(X_AMZ_REQUEST_ID).or_insert_with(|| id.header());
        headers.entry(X_AMZ_ID_2).or_insert_with(|| self.host_id.clone());
        tracing::debug!(request = %id, op = shape.op, status = tally.status, "answered");
        response.map(|body| ReplyBody::new(body, tally, admitted, working))
    }

    /// Larder's own paths. A bucket of such a name cannot exist, but below a bucket's own domain
    /// they are keys.
    fn probe(&self, request: &Request<Incoming>, shape: &Shape) -> Option<StatusCode> {
        if shape.virtual_host || !matches!(*request.method(), Method::GET | Method::HEAD) {
            return None;
        }
        match request.uri().path() {
            "/healthz" => Some(StatusCode::OK),
            "/readyz" if self.hooks.ready() => Some(StatusCode::OK),
            "/readyz" => Some(StatusCode::SERVICE_UNAVAILABLE),
            _ => None,
        }
    }

    async fn run(
        &self,
        whence: Whence,
        request: Request<Incoming>,
        shape: &Shape,
    ) -> Result<(Response<s3s::Body>, Admitted), S3Error> {
        signed::check(request.headers(), request.uri().query())?;
        signed::check_digests(request.headers())?;
        subresources::check(request.method(), shape.level, request.uri().query())?;
        let share = shape.body_bytes.min(BODY_SHARE_BYTES_MAX as u64) as u32;
        let admitted = self.admission.admit(share).await.map_err(|_| errors::slow_down())?;
        if let Some((others, upload)) = self.elsewhere(whence, shape.op, request.uri().query()) {
            let answer = others.hand_on(upload, request).await.map_err(errors::from_store)?;
            return Ok((neighbours::passed_on(answer), admitted));
        }
        let (mut parts, body) = request.into_parts();
        headers::gather(&mut parts.headers, parts.uri.query())?;
        let request = Request::from_parts(parts, body);
        let faults = (shape.xml && !shape.aws_chunked).then(XmlFaults::default);
        let request = match &faults {
            Some(faults) => faults.watched(request, shape.op)?,
            None if shape.aws_chunked => self.guarded(request),
            None if shape.op == "PostObject" => FormHead::watch(request).map(s3s::Body::http_body),
            None => request.map(s3s::Body::from),
        };
        let response = self.service.library(&request).call(request).await.unwrap_or_else(|error| {
            let error = s3s::StdError::from(error);
            let message = format!("the answer could not be written: {error}");
            errors::response(errors::error(S3ErrorCode::InternalError, message))
        });
        faults.map_or(Ok(()), |faults| faults.none())?;
        Ok((response, admitted))
    }

    /// Who has the upload that a request is about, if this server does not.
    fn elsewhere(
        &self,
        whence: Whence,
        op: &str,
        query: Option<&str>,
    ) -> Option<(&dyn Neighbours, UploadId)> {
        let others = self.service.neighbours.as_deref().filter(|_| whence == Whence::Client)?;
        let upload = neighbours::upload_of(op, query)?;
        others.have(upload).then_some((others, upload))
    }

    fn guarded(&self, request: Request<Incoming>) -> Request<s3s::Body> {
        let verdict = Verdict::default();
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(Arc::clone(&verdict));
        let guard = ChunkGuard::new(body, Arc::clone(&self.admission), verdict);
        Request::from_parts(parts, s3s::Body::http_body(guard))
    }
}

/// What may be wrong with XML that the protocol library reads by itself.
#[derive(Default)]
struct XmlFaults {
    mismatch: Mismatch,
    unread: Found,
}

impl XmlFaults {
    fn watched(&self, request: Request<Incoming>, op: &str) -> Result<Request<s3s::Body>, S3Error> {
        let expectation = Expectation::of(request.headers(), op)?;
        Ok(request.map(|body| {
            let body = WhollyRead::new(body, op, Arc::clone(&self.unread));
            match expectation {
                None => s3s::Body::http_body(body),
                Some(expectation) => {
                    let mismatch = Arc::clone(&self.mismatch);
                    s3s::Body::http_body(DigestedBody::new(body, expectation, mismatch))
                }
            }
        }))
    }

    fn none(&self) -> Result<(), S3Error> {
        let mismatch = self.mismatch.get().map(|differs| differs.refusal());
        let unread = self.unread.get().map(|unread| unread.refusal());
        mismatch.or(unread).map_or(Ok(()), Err)
    }
}

/// Failures of the server's own; those of clients are theirs to know.
fn log_failure(op: &'static str, status: StatusCode, id: RequestId, detail: &str) {
    let number = status.as_u16();
    match status {
        StatusCode::NOT_IMPLEMENTED => {}
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::INSUFFICIENT_STORAGE => {
            tracing::warn!(request = %id, op, status = number, detail, "a request was turned away");
        }
        status if status.is_server_error() => {
            tracing::error!(request = %id, op, status = number, detail, "a request failed");
        }
        _ => {}
    }
}

/// The length that a request announces for its body; what comes without one counts as the largest
/// share.
pub(crate) fn announced_bytes(headers: &HeaderMap) -> u64 {
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    match length {
        Some(bytes) => bytes,
        None if headers.contains_key(http::header::TRANSFER_ENCODING) => {
            BODY_SHARE_BYTES_MAX as u64
        }
        None => 0,
    }
}
