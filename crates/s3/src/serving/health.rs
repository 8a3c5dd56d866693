//! Health probes: Larder's own paths, and MinIO's, by which load balancers and clients ask that were set up for that. They are
//! answered without credentials, and count as no requests.

use http::{HeaderName, Method, Request, Response, StatusCode};

use super::hooks::ServerHooks;
use crate::auth::signed;
use crate::request::routing::Route;

/// MinIO's name for the servers that a write needs at least.
const WRITE_QUORUM: HeaderName = HeaderName::from_static("x-minio-write-quorum");

/// The answer to a probe; `None` for what is none. A bucket of such a name cannot exist, but below a bucket's own domain they
/// are keys.
pub(crate) fn answer<B>(
    request: &Request<B>,
    route: &Route,
    hooks: &impl ServerHooks,
) -> Option<Response<s3s::Body>> {
    if route.virtual_host || !matches!(*request.method(), Method::GET | Method::HEAD) {
        return None;
    }
    let (path, query) = (request.uri().path(), request.uri().query());
    // Below a bucket `minio` MinIO's paths are keys, in requests that are signed.
    if path.starts_with("/minio/") && signed::is_signed(request.headers(), query) {
        return None;
    }
    let of_ready = |is_ready| match is_ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    Some(match path {
        "/healthz" | "/minio/health/live" => shown(StatusCode::OK),
        "/readyz" | "/minio/health/ready" => with_caveat(of_ready(hooks.ready()), hooks),
        "/healthz/cluster" | "/minio/health/cluster" | "/minio/health/cluster/read" => {
            let health = hooks.cluster();
            let status = match is_maintenance(query) {
                // Nothing that cannot be done now could be done without this machine.
                true if health.takes_writes && health.can_spare_this => StatusCode::OK,
                true => StatusCode::PRECONDITION_FAILED,
                // A cluster that takes no writes may serve all reads.
                false if path == "/minio/health/cluster/read" => of_ready(hooks.ready()),
                false => of_ready(health.takes_writes),
            };
            let mut response = with_caveat(status, hooks);
            response.headers_mut().insert(WRITE_QUORUM, u16::from(health.write_quorum).into());
            response
        }
        _ => return None,
    })
}

/// True if the question is whether this machine may be taken away.
fn is_maintenance(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|parameter| parameter == "maintenance=true"))
}

fn shown(status: StatusCode) -> Response<s3s::Body> {
    said(status, None)
}

fn with_caveat(status: StatusCode, hooks: &impl ServerHooks) -> Response<s3s::Body> {
    said(status, hooks.caveat())
}

fn said(status: StatusCode, caveat: Option<&str>) -> Response<s3s::Body> {
    let reason = status.canonical_reason().unwrap_or("");
    let text = match caveat {
        Some(caveat) => format!("{reason}\n{caveat}\n"),
        None => format!("{reason}\n"),
    };
    let mut response = Response::new(s3s::Body::from(text));
    *response.status_mut() = status;
    response
}
