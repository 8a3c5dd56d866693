//! One request and its answer, around the protocol library: health probes, the gate, the body
//! guard, what is left of the body, request ids, counting and logging.

use std::sync::Arc;
use std::time::Instant;

use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderName, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use larder_types::{BucketName, CorsRules, UploadId};
use s3s::{S3Error, S3ErrorCode};

use super::admin::{self, Admin};
use super::ended::{Caller, Target};
use super::failures::Failures;
use super::health;
use super::hooks::ServerHooks;
use super::reply::{ReplyBody, Tally};
use crate::admission::{Admission, Overloaded};
use crate::auth::gate::{Gate, Verified};
use crate::auth::signed;
use crate::body::guard::{ChunkGuard, Verdict};
use crate::body::inbound::Inbound;
use crate::body::watched::{Found, Watched};
use crate::compat::digested::{Differs, Digested, Expectation};
use crate::compat::repairs::{self, Asked};
use crate::compat::unread_xml::{Unread, WhollyRead};
use crate::compat::{address, headers, subresources};
use crate::connection::clearing::clear;
use crate::connection::pulse::Working;
use crate::cors::crossing;
use crate::errors;
use crate::forms::body::FormBody;
use crate::forms::fields::{Fields, Unmet};
use crate::forms::head::FormHead;
use crate::limits::BODY_SHARE_BYTES_MAX;
use crate::neighbours::{self, Neighbours, Whence};
use crate::options::ServerOptions;
use crate::request::ids::{RequestId, RequestIds, X_AMZ_REQUEST_ID};
use crate::request::shape::{ADMIN_STATUS, Level, PREFLIGHT, Shape};
use crate::service::S3Service;

/// Headers that say where a form goes and how its body is framed.
const OF_TRANSPORT: [HeaderName; 4] = [HOST, CONTENT_TYPE, CONTENT_LENGTH, TRANSFER_ENCODING];
const X_AMZ_ID_2: &str = "x-amz-id-2";

/// The state that all connections of a server share.
pub(crate) struct Exchange<H: ServerHooks> {
    service: S3Service,
    hooks: Arc<H>,
    admission: Arc<Admission>,
    ids: RequestIds,
    host_id: HeaderValue,
    failures: Failures,
    admin: Admin,
}

impl<H: ServerHooks> Exchange<H> {
    pub(crate) fn new(service: S3Service, hooks: Arc<H>, options: &ServerOptions) -> Self {
        let admission =
            Admission::new(options.requests_max, options.body_budget_bytes, options.waiting_max);
        let ids = RequestIds::new();
        let host_id = ids.next().header();
        Self {
            service,
            hooks,
            admission: Arc::new(admission),
            ids,
            host_id,
            failures: Failures::new(),
            admin: Admin::default(),
        }
    }

    pub(crate) async fn answer(
        &self,
        whence: Whence,
        mut request: Request<Incoming>,
        working: &Working,
    ) -> Response<ReplyBody<H>> {
        let respelled = address::respell(request.uri_mut());
        let shape = Shape::of(&request, &self.service.domains);
        if let Some(answer) = health::answer(&request, &shape, &*self.hooks) {
            return answer.map(|body| ReplyBody::uncounted(body, working));
        }
        let id = self.ids.next();
        let waits = request.headers().contains_key(EXPECT);
        // Of a body without bytes the client is not told to go on: no 100 is sent for it.
        let waits_in_vain = waits && request.body().is_end_stream();
        let share = shape.body_bytes.min(BODY_SHARE_BYTES_MAX as u64) as u32;
        let gate = Arc::new(Gate::new(Arc::clone(&self.admission), share, shape.form));
        let mut tally = self.tally(id, &shape, &gate, (whence, &request));
        let crossing = self.crossing(&tally, &request);
        let announced = request.body().size_hint().exact();
        let (parts, body) = request.into_parts();
        let (body, left) = Inbound::new(body, Arc::clone(&gate));
        let request = Request::from_parts(parts, body);
        let run = match respelled {
            Ok(()) if shape.op == PREFLIGHT => {
                crossing::preflight(|| self.rules_of(&tally.target), request.headers())
            }
            Ok(()) => self.run(whence, request, &gate, &shape).await,
            Err(refused) => Err(refused),
        };
        let mut response = run.unwrap_or_else(errors::response);
        if let Some(cut) = gate.was_cut().filter(|_| !response.status().is_success()) {
            response = errors::response(cut.refusal());
        }
        if let Some(user) = gate.user() {
            self.service.used_by(user);
        }
        let turn = gate.finish();
        let left = left.take().filter(|body| !body.is_end_stream());
        self.complete(&mut response, &mut tally);
        if let Some(failure) = &tally.failure {
            self.failures.log(&tally, failure, shape.form && !gate.is_open());
        }
        let status = response.status();
        let headers = response.headers_mut();
        if let Some(crossing) = crossing {
            headers.extend(crossing);
        }
        let untouched = left.as_ref().is_some_and(|body| body.size_hint().exact() == announced);
        if waits_in_vain || waits && !status.is_success() {
            // The client may send the body after all: nothing else can be read here. And botocore reads no other answer
            // rightly on a connection on which one came in place of a 100.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(body) = left.filter(|_| !(waits && untouched)) {
            clear(body, headers, working);
        }
        tracing::debug!(request = %id, op = shape.op, status = tally.status, "answered");
        response.map(|body| ReplyBody::new(body, tally, turn, working))
    }

    /// The headers that let a page of another origin see the answer, if its bucket's rules do. That to a preflight has its own.
    fn crossing(&self, tally: &Tally<H>, request: &Request<Incoming>) -> Option<HeaderMap> {
        if tally.op == PREFLIGHT {
            return None;
        }
        let rules = || self.rules_of(&tally.target);
        crossing::shown(rules, request.method().as_str(), request.headers())
    }

    fn rules_of(&self, target: &Target) -> Option<CorsRules> {
        (self.service.cors)(&BucketName::new(&target.bucket()?).ok()?)
    }

    /// Puts an answer right, gives it its id, and notes both.
    fn complete(&self, response: &mut Response<s3s::Body>, tally: &mut Tally<H>) {
        let asked = Asked { op: tally.op, path: tally.target.path(), id: tally.id };
        tally.failure = repairs::repair(&asked, response);
        tally.status = response.status().as_u16();
        let headers = response.headers_mut();
        // The server that answered it has given it its own.
        let id = headers.entry(X_AMZ_REQUEST_ID).or_insert_with(|| tally.id.header());
        tally.shown = Some(id.clone());
        headers.entry(X_AMZ_ID_2).or_insert_with(|| self.host_id.clone());
    }

    /// The count of a request that begins.
    fn tally(
        &self,
        id: RequestId,
        shape: &Shape,
        gate: &Arc<Gate>,
        (whence, request): (Whence, &Request<Incoming>),
    ) -> Tally<H> {
        let client = match whence {
            Whence::Client(client) => Some(client),
            Whence::Neighbour => None,
        };
        let headers = request.headers();
        Tally {
            hooks: Arc::clone(&self.hooks),
            id,
            op: shape.op,
            status: 0,
            started: Instant::now(),
            gate: Arc::clone(gate),
            bytes_out: 0,
            is_sent: false,
            caller: Caller::of(client, headers),
            target: Target::of(request.uri(), headers, &self.service.domains),
            failure: None,
            shown: None,
        }
    }

    async fn run(
        &self,
        whence: Whence,
        request: Request<Inbound>,
        gate: &Arc<Gate>,
        shape: &Shape,
    ) -> Result<Response<s3s::Body>, S3Error> {
        let service = &self.service;
        let takes = (service.version_2, service.region.as_str());
        signed::check(request.headers(), request.uri().query(), shape.form, takes)?;
        signed::check_digests(request.headers())?;
        if shape.op == ADMIN_STATUS {
            return self.tell_state(&request, gate).await;
        }
        subresources::check(request.method(), shape.level, request.uri().query())?;
        if *request.method() == Method::HEAD && shape.level == Level::Service {
            return self.head_of_service(&request, gate).await;
        }
        if let Some((others, upload)) = self.elsewhere(whence, shape.op, request.uri().query()) {
            if let Err(refusal) = self.verify(&request, gate).await? {
                return Ok(refusal);
            }
            gate.open_to_pass().await.map_err(|Overloaded| errors::slow_down())?;
            let answer = others.hand_on(upload, request).await.map_err(errors::from_store)?;
            return Ok(neighbours::passed_on(answer));
        }
        let (mut parts, body) = request.into_parts();
        headers::gather(&mut parts.headers, parts.uri.query())?;
        service.check_url(&parts.method, &parts.uri, &parts.headers)?;
        parts.extensions.insert(Arc::clone(gate));
        let request = Request::from_parts(parts, body);
        if shape.form {
            return self.run_form(request, gate).await;
        }
        let faults = (shape.xml && !shape.aws_chunked).then(XmlFaults::default);
        let request = match &faults {
            Some(faults) => faults.watched(request, shape.op)?,
            None if shape.aws_chunked => self.guarded(request),
            // The library does less about a body of which it sees that it is empty.
            None => request.map(|body| match body.is_end_stream() {
                true => s3s::Body::empty(),
                false => s3s::Body::http_body(body),
            }),
        };
        let response = called(&service.library, request).await;
        faults.map_or(Ok(()), |faults| faults.none())?;
        Ok(response)
    }

    async fn run_form(
        &self,
        request: Request<Inbound>,
        gate: &Arc<Gate>,
    ) -> Result<Response<s3s::Body>, S3Error> {
        let library = self.service.forms(Arc::clone(gate))?;
        gate.enter_forms().map_err(|Overloaded| errors::slow_down())?;
        let (mut parts, mut body) = request.into_parts();
        keep_transport(&mut parts.headers);
        let head = FormHead::read(&parts.headers, &mut body).await?;
        self.service.check_form(&head.fields)?;
        let fields = Fields::checked(head.fields, &self.service.region)?;
        let bucket = self.service.domains.bucket_in(&parts.headers, &parts.uri).to_owned();
        parts.extensions.insert(fields.clone());
        let body = FormBody::new(head.written, head.rest, body, Arc::clone(gate));
        let request = Request::from_parts(parts, s3s::Body::http_body(body));
        let mut response = called(&library, request).await;
        if response.status() == StatusCode::BAD_REQUEST
            && let Some(unmet) = Unmet::of(&fields, &bucket)
        {
            response.extensions_mut().insert(unmet);
        }
        Ok(response)
    }

    /// Verifies the signature of a request that another server answers; the inner error is what the client is told.
    async fn verify(
        &self,
        request: &Request<Inbound>,
        gate: &Gate,
    ) -> Result<Result<(), Response<s3s::Body>>, S3Error> {
        self.verify_by(&self.service.examiner, request, gate).await
    }

    async fn verify_by(
        &self,
        examiner: &s3s::service::S3Service,
        request: &Request<Inbound>,
        gate: &Gate,
    ) -> Result<Result<(), Response<s3s::Body>>, S3Error> {
        let verified = Verified::default();
        let mut asked = Request::new(s3s::Body::empty());
        asked.method_mut().clone_from(request.method());
        asked.uri_mut().clone_from(request.uri());
        asked.headers_mut().clone_from(request.headers());
        headers::gather(asked.headers_mut(), request.uri().query())?;
        self.service.check_url(request.method(), request.uri(), asked.headers())?;
        asked.extensions_mut().insert(verified.clone());
        let refusal = called(examiner, asked).await;
        let Some(user) = verified.user() else { return Ok(Err(refusal)) };
        gate.verified(user);
        Ok(Ok(()))
    }

    /// Tells the state of the store or its cluster to who has root's keys.
    async fn tell_state(
        &self,
        request: &Request<Inbound>,
        gate: &Gate,
    ) -> Result<Response<s3s::Body>, S3Error> {
        admin::check(request.method())?;
        let examiner = &self.service.examiner_of_paths;
        if let Err(refusal) = self.verify_by(examiner, request, gate).await? {
            return Ok(refusal);
        }
        gate.open_to_pass().await.map_err(|Overloaded| errors::slow_down())?;
        self.admin.answer(&*self.hooks).await
    }

    /// Answers as the list of buckets, without it.
    async fn head_of_service(
        &self,
        request: &Request<Inbound>,
        gate: &Gate,
    ) -> Result<Response<s3s::Body>, S3Error> {
        let Err(refusal) = self.verify(request, gate).await? else {
            return Ok(Response::default());
        };
        if refusal.status() != StatusCode::NOT_IMPLEMENTED {
            return Ok(refusal);
        }
        // The library has verified a signature, if there is one, before it looks for an operation, and has none for this.
        match signed::signer(request.headers(), request.uri().query()) {
            Some(user) => {
                gate.verified(&user);
                Ok(Response::default())
            }
            None => Err(errors::error(S3ErrorCode::AccessDenied, "Access Denied")),
        }
    }

    /// The server that has the request's upload, if this one does not.
    fn elsewhere(
        &self,
        whence: Whence,
        op: &str,
        query: Option<&str>,
    ) -> Option<(&dyn Neighbours, UploadId)> {
        let others = self.service.neighbours.as_deref().filter(|_| whence != Whence::Neighbour)?;
        let upload = neighbours::upload_of(op, query)?;
        others.have(upload).then_some((others, upload))
    }

    fn guarded(&self, request: Request<Inbound>) -> Request<s3s::Body> {
        let verdict = Verdict::default();
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(Arc::clone(&verdict));
        let guarded = Watched::new(body, ChunkGuard::new(Arc::clone(&self.admission)), verdict);
        Request::from_parts(parts, s3s::Body::http_body(guarded))
    }
}

/// Removes all headers but those of the transport. A form is signed by its fields: a header could ask for what nobody
/// signed.
fn keep_transport(headers: &mut HeaderMap) {
    let names: Vec<HeaderName> = headers.keys().cloned().collect();
    for name in names.into_iter().filter(|name| !OF_TRANSPORT.contains(name)) {
        headers.remove(&name);
    }
}

/// The library's answer.
async fn called(
    library: &s3s::service::S3Service,
    request: Request<s3s::Body>,
) -> Response<s3s::Body> {
    library.call(request).await.unwrap_or_else(|error| {
        let error = s3s::StdError::from(error);
        let message = format!("the answer could not be written: {error}");
        errors::response(errors::error(S3ErrorCode::InternalError, message))
    })
}

/// The faults of XML that the protocol library reads by itself.
#[derive(Default)]
struct XmlFaults {
    mismatch: Found<Differs>,
    unread: Found<Unread>,
}

impl XmlFaults {
    fn watched(&self, request: Request<Inbound>, op: &str) -> Result<Request<s3s::Body>, S3Error> {
        let expectation = Expectation::of(request.headers(), op)?;
        Ok(request.map(|body| {
            let body = Watched::new(body, WhollyRead::new(op), Arc::clone(&self.unread));
            match expectation {
                None => s3s::Body::http_body(body),
                Some(expectation) => {
                    let mismatch = Arc::clone(&self.mismatch);
                    s3s::Body::http_body(Watched::new(body, Digested::new(expectation), mismatch))
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
