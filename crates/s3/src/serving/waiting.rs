//! Requests that come before there is a store: probes are answered as things are, everything else with 503, which clients try
//! again.
//!
//! A server listens from its start, as it must have its port before it makes anything. What it waits for may take long: the
//! managers of a cluster may be away.

use std::sync::Arc;
use std::time::Instant;

use http::header::{CONNECTION, EXPECT};
use http::{HeaderValue, Request, Response};
use hyper::body::{Body as _, Incoming};
use s3s::S3ErrorCode;

use super::finished_request::{Caller, FinishedRequest, Target};
use super::health;
use super::hooks::{ClusterHealth, ServerHooks};
use super::reply::ReplyBody;
use crate::answer::{self, RequestInfo};
use crate::connection::activity::Working;
use crate::connection::clearing::clear;
use crate::errors;
use crate::forwarding::RequestSource;
use crate::options::Domains;
use crate::request::address;
use crate::request::ids::{RequestIds, X_AMZ_REQUEST_ID};
use crate::request::routing::Route;

/// The message of the 503.
const MESSAGE: &str =
    "This server has started, and waits until it can serve requests. Please try again.";

/// See the module's head.
pub(crate) struct Waiting<H: ServerHooks> {
    unready: Unready<H>,
    ids: RequestIds,
    domains: Domains,
}

/// The hooks of a server without a store: whatever else runs in the process, this server serves nothing.
struct Unready<H>(Arc<H>);

impl<H: ServerHooks> ServerHooks for Unready<H> {
    fn ready(&self) -> bool {
        false
    }

    fn cluster(&self) -> ClusterHealth {
        ClusterHealth { takes_writes: false, ..self.0.cluster() }
    }
}

impl<H: ServerHooks> Waiting<H> {
    pub(crate) fn new(hooks: Arc<H>, domains: Domains) -> Self {
        Self { unready: Unready(hooks), ids: RequestIds::new(), domains }
    }

    /// Answers a request, of whose body nothing is read.
    pub(crate) fn answer(
        &self,
        request_source: RequestSource,
        mut request: Request<Incoming>,
        working: &Working,
    ) -> Response<ReplyBody<H>> {
        let started = Instant::now();
        // An address that cannot be read is refused by the store.
        let _as_it_came = address::respell(request.uri_mut());
        let route = Route::of(&request, &self.domains, || false);
        if let Some(answer) = health::answer(&request, &route, &self.unready) {
            return answer.map(|body| ReplyBody::uncounted(body, working));
        }
        let (parts, body) = request.into_parts();
        let client = match request_source {
            RequestSource::Client(client) => Some(client),
            RequestSource::Neighbour => None,
        };
        let target = Target::of(&parts.uri, &parts.headers, &self.domains);
        let id = self.ids.next();
        let refusal = errors::error(S3ErrorCode::ServiceUnavailable, MESSAGE);
        let asked = RequestInfo { path: target.path(), id };
        let (mut response, failure) = answer::refusal(&refusal, &asked);
        let headers = response.headers_mut();
        headers.insert(X_AMZ_REQUEST_ID, id.header());
        if parts.headers.contains_key(EXPECT) {
            // No 100 was sent: the client decides if the body comes after all.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        } else if !body.is_end_stream() {
            clear(body, headers, working);
        }
        self.unready.0.done(&FinishedRequest {
            id: id.to_string().into(),
            op: route.operation.name(),
            status: response.status().as_u16(),
            code: failure.as_ref().map(|failure| failure.code.as_str()),
            took: started.elapsed(),
            bytes_in: 0,
            bytes_out: 0,
            moved: None,
            user: None,
            caller: &Caller::of(client, &parts.headers),
            target: &target,
        });
        response.map(|body| ReplyBody::uncounted(body, working))
    }
}
