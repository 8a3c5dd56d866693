//! One request and its answer: health probes, the gate, the operation that is called, what is left of the body, request ids,
//! counting and logging.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use http::header::{CONNECTION, EXPECT};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use hyper::body::{Body as _, Incoming};
use larder_types::{BucketName, CorsRules, UploadId};
use s3s::{S3Error, S3ErrorCode};

use super::admin::{self, Admin};
use super::failures::{self, Failures};
use super::finished_request::{Caller, Target};
use super::health;
use super::hooks::ServerHooks;
use super::reply::{ReplyBody, Tally};
use crate::answer::{self, RequestInfo};
use crate::auth::gate::{Admission, Gate, Overloaded};
use crate::auth::other_services::refuse_actions;
use crate::auth::policy::Policy;
use crate::auth::{access, bearer, signed};
use crate::body::inbound::Inbound;
use crate::body::pulled::Sent;
use crate::connection::activity::Working;
use crate::connection::clearing::clear;
use crate::cors::headers;
use crate::errors;
use crate::errors::elements::{self, Names};
use crate::forms::fields::Fields;
use crate::forms::file;
use crate::forms::head::FormHead;
use crate::forms::posted::{self, Posted};
use crate::forwarding::{self, RequestSource, UploadForwarder};
use crate::limits::BODY_SHARE_BYTES_MAX;
use crate::ops::gateway;
use crate::options::ServerOptions;
use crate::request::head::Parameters;
use crate::request::ids::{RequestId, RequestIds, X_AMZ_REQUEST_ID};
use crate::request::names::bucket_name;
use crate::request::operation::{Operation, Question, S3Operation};
use crate::request::routing::{Level, Route};
use crate::request::{address, conditions, copy_source, head};
use crate::service::S3Service;

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
        request_source: RequestSource,
        mut request: Request<Incoming>,
        working: &Working,
    ) -> Response<ReplyBody<H>> {
        let respelled = address::respell(request.uri_mut());
        let route = Route::of(&request, self.service.domains(), || self.service.has_minio());
        if let Some(answer) = health::answer(&request, &route, &*self.hooks) {
            return answer.map(|body| ReplyBody::uncounted(body, working));
        }
        let id = self.ids.next();
        let waits = request.headers().contains_key(EXPECT);
        // Of a body without bytes the client is not told to go on: no 100 is sent for it.
        let waits_in_vain = waits && request.body().is_end_stream();
        let share = route.memory_bytes().min(BODY_SHARE_BYTES_MAX as u64) as u32;
        let gate = Arc::new(Gate::new(Arc::clone(&self.admission), share, route.form));
        let mut tally = self.tally(id, &route, &gate, (request_source, &request));
        let crossing = self.crossing(route.operation, &tally, &request);
        let announced = request.body().size_hint().exact();
        let (parts, body) = request.into_parts();
        let (body, left) = Inbound::new(body, Arc::clone(&gate));
        let request = Request::from_parts(parts, body);
        let run = match respelled {
            Ok(()) if route.operation == Operation::Preflight => {
                headers::preflight(|| self.rules_of(&tally.target), request.headers())
            }
            Ok(()) => {
                let run = self.run(request_source, request, &gate, &route).await;
                run.map_err(|refused| {
                    self.hinted(named(refused, tally.op, &tally.target), &tally.target)
                })
            }
            Err(refused) => Err(refused),
        };
        let has_succeeded = run.as_ref().is_ok_and(|answer| answer.status().is_success());
        let run = match gate.was_cut().filter(|_| !has_succeeded) {
            Some(cut) => Err(cut.refusal()),
            None => run,
        };
        if let Some(user) = gate.user() {
            self.service.used_by(user);
        }
        let turn = gate.finish();
        let left = left.take().filter(|body| !body.is_end_stream());
        let mut response = self.complete(run, &mut tally);
        if let Some(failure) = &tally.failure {
            self.failures.log(&tally, failure, route.form && !gate.is_open());
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
        failures::note(&tally);
        response.map(|body| ReplyBody::new(body, tally, turn, working))
    }

    /// A refusal that says what to do if the client names its bucket by the host and the operator has set no domain.
    fn hinted(&self, mut refused: S3Error, target: &Target) -> S3Error {
        let is_missing = *refused.code() == S3ErrorCode::NoSuchBucket;
        let bucket = target.label_of_host().filter(|_| is_missing);
        if let Some(bucket) = bucket.filter(|label| self.service.has_bucket(label)) {
            let message = refused.message().unwrap_or_default();
            let hint = format!(
                "{message}. The host names the bucket {bucket}: to serve buckets by their hosts, set `domains`."
            );
            refused.set_message(hint);
        }
        refused
    }

    /// The headers that let a page of another origin see the answer, if its bucket's rules do. That to a preflight has its own.
    fn crossing(
        &self,
        operation: Operation,
        tally: &Tally<H>,
        request: &Request<Incoming>,
    ) -> Option<HeaderMap> {
        if operation == Operation::Preflight {
            return None;
        }
        let rules = || self.rules_of(&tally.target);
        headers::shown(rules, request.method().as_str(), request.headers())
    }

    fn rules_of(&self, target: &Target) -> Option<CorsRules> {
        (self.service.cors)(&BucketName::new(&target.bucket()?).ok()?)
    }

    /// Completes an answer, gives it its id, and notes both.
    fn complete(
        &self,
        run: Result<Response<s3s::Body>, S3Error>,
        tally: &mut Tally<H>,
    ) -> Response<s3s::Body> {
        let asked = RequestInfo { path: tally.target.path(), id: tally.id };
        let (mut response, failure) = match run {
            Err(refused) => answer::refusal(&refused, &asked),
            Ok(response) => (response, None),
        };
        tally.failure = failure;
        tally.status = response.status().as_u16();
        let headers = response.headers_mut();
        // The server that answered it has given it its own.
        let id = headers.entry(X_AMZ_REQUEST_ID).or_insert_with(|| tally.id.header());
        tally.shown = Some(id.clone());
        headers.entry(X_AMZ_ID_2).or_insert_with(|| self.host_id.clone());
        response
    }

    /// The count of a request that begins.
    fn tally(
        &self,
        id: RequestId,
        route: &Route,
        gate: &Arc<Gate>,
        (request_source, request): (RequestSource, &Request<Incoming>),
    ) -> Tally<H> {
        let client = match request_source {
            RequestSource::Client(client) => Some(client),
            RequestSource::Neighbour => None,
        };
        let headers = request.headers();
        Tally {
            hooks: Arc::clone(&self.hooks),
            id,
            op: route.operation.name(),
            status: 0,
            started: Instant::now(),
            gate: Arc::clone(gate),
            bytes_out: 0,
            is_sent: false,
            caller: Caller::of(client, headers),
            target: Target::of(request.uri(), headers, self.service.domains()),
            failure: None,
            shown: None,
        }
    }

    async fn run(
        &self,
        request_source: RequestSource,
        request: Request<Inbound>,
        gate: &Arc<Gate>,
        route: &Route,
    ) -> Result<Response<s3s::Body>, S3Error> {
        let (mut parts, body) = request.into_parts();
        if route.level == Level::Service {
            refuse_actions(&parts.method, &parts.headers)?;
        }
        if let Operation::Admin(asked) = route.operation {
            admin::check(&parts.method)?;
            if asked == Question::Metrics {
                gate.verified(&bearer::verify(&parts.headers, &self.service.signatures.root)?);
                return self.admin.metrics(&*self.hooks, &parts.headers);
            }
        }
        if route.form {
            self.service.signatures.find(&parts.headers, parts.uri.query(), true)?;
            check_head(&parts, &parts.headers, route)?;
            return self.run_form(route, parts, body, gate).await;
        }
        let signed = self.service.signatures.verify(&parts, body.size_hint().exact())?;
        let granted = access::decide(route.operation, signed)?;
        gate.verified(granted.user());
        let (operation, payload) = granted.into_operation();
        match operation {
            Operation::Admin(Question::Status) => return self.admin.state(&self.hooks).await,
            Operation::Admin(_) => return self.admin.info(&self.hooks).await,
            _ => {}
        }
        let from_url = head::of_url(&parts.headers, parts.uri.query())?;
        check_head(&parts, from_url.as_ref().unwrap_or(&parts.headers), route)?;
        if parts.method == Method::HEAD && route.level == Level::Service {
            // As the list of buckets, without it.
            return Ok(Response::default());
        }
        if let Some((others, upload)) = self.elsewhere(request_source, operation, parts.uri.query())
        {
            // As it was signed: the other worker verifies it, and reads its URL, again.
            gate.open_to_pass().await.map_err(|Overloaded| errors::slow_down())?;
            let request = Request::from_parts(parts, body);
            let answer = others.hand_on(upload, request).await.map_err(errors::from_store)?;
            return Ok(forwarding::passed_on(answer));
        }
        gate.open().await.map_err(|Overloaded| errors::slow_down())?;
        if let Some(headers) = from_url {
            parts.headers = headers;
        }
        match operation {
            Operation::S3(operation) => {
                self.call(operation, parts, Sent::of(body, payload), gate).await
            }
            Operation::ListBuckets => self.service.operations.list_buckets(&parts),
            // Each was answered or refused before.
            Operation::PostObject
            | Operation::Preflight
            | Operation::Admin(_)
            | Operation::Unknown => Err(errors::not_implemented("This request")),
        }
    }

    /// Calls an operation of a request that was let in.
    async fn call(
        &self,
        operation: S3Operation,
        parts: Parts,
        (body, sent): (s3s::Body, Sent),
        gate: &Arc<Gate>,
    ) -> Result<Response<s3s::Body>, S3Error> {
        let (bucket, key) = address::named(&parts.uri, &parts.headers, self.service.domains())?;
        let gate = Arc::clone(gate);
        let request = gateway::Request { bucket, key, parts, body, sent, gate };
        self.service.operations.call(operation, request).await
    }

    /// Puts the object of a form. Of the request's own headers only the host counts: a form is signed by its fields, and a
    /// header could ask for what nobody signed.
    async fn run_form(
        &self,
        route: &Route,
        parts: Parts,
        mut body: Inbound,
        gate: &Arc<Gate>,
    ) -> Result<Response<s3s::Body>, S3Error> {
        if !self.service.forms {
            let message = "Uploads by HTML forms are switched off.";
            return Err(errors::error(S3ErrorCode::MethodNotAllowed, message));
        }
        if route.level != Level::Bucket {
            let message = "A form is posted to a bucket, and names its key in a field.";
            return Err(errors::error(S3ErrorCode::MethodNotAllowed, message));
        }
        gate.enter_forms().map_err(|Overloaded| errors::slow_down())?;
        let head = FormHead::read(&parts.headers, &mut body).await?;
        let fields = Fields::checked(head.fields, &self.service.signatures.region)?;
        let signed = self.service.signatures.verify_form(|name| fields.value(name))?;
        // Its address decides nothing: an upload is all that a form's author has signed.
        let granted = access::decide(Operation::S3(S3Operation::PutObject), signed)?;
        gate.verified(granted.user());
        gate.open().await.map_err(|Overloaded| errors::slow_down())?;
        let policy = Policy::parse(fields.value("policy").unwrap_or_default())?;
        let fields = posted::expand(fields, &head.file_name)?;
        let bucket = self.service.domains().bucket_in(&parts.headers, &parts.uri).to_owned();
        policy.check(SystemTime::now(), &bucket, fields.all())?;
        let file = file::read(&head.delimiter, &head.rest, &mut body, policy.length_max()).await?;
        policy.check_length(file.len() as u64)?;
        let (posted, put) = Posted::of(parts, &fields, &bucket, file.len())?;
        signed::check_digests(&put.headers)?;
        let (key, gate) = (posted.key().to_owned(), Arc::clone(gate));
        let (bucket, body, sent) = (bucket_name(&bucket)?, s3s::Body::from(file), Sent::default());
        let request = gateway::Request { bucket, key, parts: put, body, sent, gate };
        let put = self.service.operations.call(S3Operation::PutObject, request).await?;
        Ok(posted.answer(put))
    }

    /// The server that has the request's upload, if this one does not.
    fn elsewhere(
        &self,
        request_source: RequestSource,
        operation: Operation,
        query: Option<&str>,
    ) -> Option<(&dyn UploadForwarder, UploadId)> {
        let others = self
            .service
            .forwarder
            .as_deref()
            .filter(|_| request_source != RequestSource::Neighbour)?;
        let upload = forwarding::upload_of(operation, query)?;
        others.have(upload).then_some((others, upload))
    }
}

/// A refusal with what the request's address says. Of a copy that names the target, and most refusals are of the source.
fn named(refused: S3Error, op: &str, target: &Target) -> S3Error {
    let parameters = Parameters::of(target.query());
    let names = match op {
        "CopyObject" | "UploadPartCopy" => Names::default(),
        _ => Names {
            bucket: target.bucket(),
            key: target.key(),
            upload: parameters.one("uploadId").ok().flatten(),
            version: parameters.one("versionId").ok().flatten(),
        },
    };
    elements::with_names(refused, names)
}

/// Refuses what no operation takes. `headers` are those of the request and of a presigned URL.
fn check_head(parts: &Parts, headers: &HeaderMap, route: &Route) -> Result<(), S3Error> {
    signed::check_digests(headers)?;
    route.check(&parts.method)?;
    // A form is signed by its fields: its headers say nothing.
    if !route.form {
        copy_source::refuse_of_others(route.operation, headers)?;
    }
    match parts.method {
        Method::PUT | Method::POST | Method::DELETE if !route.form => {
            conditions::check_of_write(route.operation, headers)
        }
        _ => Ok(()),
    }
}
