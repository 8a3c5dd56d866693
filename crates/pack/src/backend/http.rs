//! Requests to a backend over HTTP. Every one passes the request scheduler. A request that a busy backend refuses is
//! retried after the pause that it names, or after one that doubles.
//!
//! Lost connections and errors of the server are the business of the library above, which makes such a request again
//! through here.
//!
//! # Invariants
//!
//! 1. A request counts as often as it is made.
//! 2. One is made again for a bounded time; then its answer is given as it is.
//! 3. A body from a file is signed anew each time. After more than a part of it went out no request is made again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::{HeaderMap, Method, StatusCode, header};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};

use super::adaptive_limiter::Answer;
use super::request_scheduler::RequestScheduler;
use super::streamed::Streamed;
use crate::class::RequestClass;
use crate::limits::{BACKEND_RETRY_MAX, RETRY_AFTER_MAX, THROTTLED_PAUSE, THROTTLED_PAUSE_MAX};

/// Beginnings of the hosts that give out keys; asking them is not asking the backend.
const KEY_HOSTS: [&str; 7] = [
    "169.254.",
    "metadata.google.internal",
    "oauth2.googleapis.com",
    "iamcredentials.googleapis.com",
    "sts.",
    "login.",
    "localhost:50342",
];

/// Connects through a request scheduler.
pub(super) struct GatedConnector<C> {
    pub(super) inner: C,
    pub(super) scheduler: Arc<RequestScheduler>,
}

/// A client behind the request scheduler.
struct Gated {
    inner: HttpClient,
    scheduler: Arc<RequestScheduler>,
}

impl<C> std::fmt::Debug for GatedConnector<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GatedConnector")
    }
}

impl std::fmt::Debug for Gated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gated")
    }
}

impl<C: HttpConnector> HttpConnector for GatedConnector<C> {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = self.inner.connect(options)?;
        Ok(HttpClient::new(Gated { inner, scheduler: self.scheduler.clone() }))
    }
}

#[async_trait]
impl HttpService for Gated {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let Some(class) = classify(&request) else { return self.inner.execute(request).await };
        let streamed = Streamed::of(&request);
        let (head, body) = request.into_parts();
        let (mut pause, mut refused_since) = (THROTTLED_PAUSE, None);
        loop {
            let mut again = HttpRequest::from_parts(head.clone(), body.clone());
            if let Some(streamed) = &streamed {
                streamed.prepare(&mut again).await?;
            }
            let entered = self.scheduler.enter(class).await;
            let pass = entered.map_err(|not| HttpError::new(HttpErrorKind::Unknown, not))?;
            let answer = self.inner.execute(again).await;
            let response = match answer {
                Ok(response) => response,
                Err(error) => {
                    let is_late = error.kind() == HttpErrorKind::Timeout;
                    pass.answered(if is_late { Answer::Late } else { Answer::Unknown });
                    let error = Unanswered::at(&head.uri, &error).into_error(error.kind());
                    return Err(match &streamed {
                        Some(streamed) => streamed.failed(error),
                        None => error,
                    });
                }
            };
            let (status, asked) = (response.status(), retry_after(response.headers()));
            let says = if is_throttled(status) { Answer::Throttled(asked) } else { Answer::Good };
            pass.answered(says);
            if let Some(streamed) = &streamed {
                streamed.answered(status)?;
            }
            if !is_throttled(status) {
                return Ok(response);
            }
            let wait = jittered(pause).max(asked.unwrap_or_default());
            // A slow upload took its time before it was refused.
            let since = *refused_since.get_or_insert_with(Instant::now);
            if since.elapsed() + wait > BACKEND_RETRY_MAX {
                return Ok(response);
            }
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(THROTTLED_PAUSE_MAX);
        }
    }
}

/// A request without an answer, with the place that it went to. The library makes it again and logs it, and names no place.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {reason}")]
struct Unanswered {
    place: String,
    reason: String,
}

impl Unanswered {
    /// Names host and bucket, which begins the path. A query may hold a key.
    fn at(uri: &http::Uri, error: &HttpError) -> Self {
        let host = uri.authority().map_or("", |authority| authority.as_str());
        let bucket = uri.path().trim_start_matches('/').split('/').next().unwrap_or_default();
        let mut causes = vec![error.to_string()];
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            let text = error.to_string();
            // Some say their cause's words as well.
            if causes.last().is_none_or(|last| !last.ends_with(&text)) {
                causes.push(text);
            }
            cause = error.source();
        }
        Self { place: format!("{host}/{bucket}"), reason: causes.join(": ") }
    }

    fn into_error(self, kind: HttpErrorKind) -> HttpError {
        HttpError::new(kind, self)
    }
}

fn is_throttled(status: StatusCode) -> bool {
    matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS)
}

/// The pause that a backend asks for, in seconds. A date is taken as none: our own pause does then.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    let seconds = text.trim().parse::<u64>().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// Between half of it and all of it, so that those who were refused together do not come back together.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    let chance = (larder_env::rng::unique_u64() % 1024) as u32;
    half + half * chance / 1024
}

/// Returns the kind of a request; `None` if it does not go to the backend. S3, Google and Azure
/// differ only in the names behind the question mark.
fn classify(request: &HttpRequest) -> Option<RequestClass> {
    let host = request.uri().authority().map_or("", |authority| authority.as_str());
    if KEY_HOSTS.iter().any(|keys| host.starts_with(keys)) {
        return None;
    }
    let query = request.uri().query().unwrap_or("");
    let has = |name: &str| query.split('&').any(|pair| pair.split('=').next() == Some(name));
    let says = |pair: &str| query.split('&').any(|found| found == pair);
    Some(match *request.method() {
        Method::PUT if has("partNumber") || says("comp=block") => RequestClass::Part,
        Method::POST if has("delete") || says("comp=batch") => RequestClass::Delete,
        Method::HEAD => RequestClass::Head,
        Method::DELETE => RequestClass::Delete,
        Method::GET if has("list-type") || says("comp=list") => RequestClass::List,
        Method::GET => RequestClass::Get,
        _ => RequestClass::Put,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use larder_env::{Disk, OpenMode, SimDisk};
    use object_store::client::HttpResponseBody;
    use parking_lot::Mutex;

    use super::super::streamed::{Signs, Source};
    use super::*;
    use crate::class::Requests;
    use crate::counters::Counters;
    use crate::limits::BACKEND_REQUESTS_MIN;

    /// Gives these answers, one after the other, and at the end the last one again.
    #[derive(Debug)]
    struct Scripted(Mutex<Vec<(u16, Option<&'static str>)>>);

    #[async_trait]
    impl HttpService for Scripted {
        async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
            let mut answers = self.0.lock();
            let (status, after) = if answers.len() > 1 { answers.remove(0) } else { answers[0] };
            let mut response = http::Response::builder().status(status);
            if let Some(after) = after {
                response = response.header(header::RETRY_AFTER, after);
            }
            Ok(response.body(HttpResponseBody::from(bytes::Bytes::new())).unwrap())
        }
    }

    fn gated(answers: &[(u16, Option<&'static str>)]) -> (Gated, Arc<Counters>) {
        let counters = Arc::<Counters>::default();
        let inner = HttpClient::new(Scripted(Mutex::new(answers.to_vec())));
        (Gated { inner, scheduler: Arc::new(RequestScheduler::new(counters.clone())) }, counters)
    }

    fn request(method: Method, uri: &str) -> HttpRequest {
        let body = object_store::client::HttpRequestBody::empty();
        http::Request::builder().method(method).uri(uri).body(body).unwrap()
    }

    #[tokio::test]
    async fn a_request_refused_for_now_is_made_again_and_each_time_counted() {
        let (gated, counters) = gated(&[(503, None), (429, None), (200, None)]);
        let start = Instant::now();
        let answer = gated.call(request(Method::PUT, "http://h/b/k")).await.unwrap();
        assert_eq!(answer.status(), 200);
        let least = THROTTLED_PAUSE / 2 + THROTTLED_PAUSE;
        assert!(start.elapsed() >= least, "half of a pause and half of its double at least");
        assert_eq!(counters.requests.load(), Requests { put: 3, ..Requests::default() });
        assert_eq!(counters.throttled.load(Ordering::Relaxed), 2);
        assert_eq!(gated.scheduler.limit(), crate::limits::BACKEND_REQUESTS_START / 4);
    }

    /// Gives out one key, and counts how often.
    #[derive(Debug, Default)]
    struct Keys(std::sync::atomic::AtomicU64);

    #[async_trait]
    impl object_store::CredentialProvider for Keys {
        type Credential = object_store::aws::AwsCredential;

        async fn get_credential(&self) -> object_store::Result<Arc<Self::Credential>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let (key_id, secret_key) = ("KEY".into(), "secret".into());
            Ok(Arc::new(Self::Credential { key_id, secret_key, token: None }))
        }
    }

    #[tokio::test]
    async fn a_body_from_a_file_is_signed_anew_each_time() {
        let file = SimDisk::new(1, 1 << 20).open("f", OpenMode::CreateNew).unwrap();
        let source = Source::new(file, 0, bytes::Bytes::from_static(b"all of it"));
        let keys = Arc::<Keys>::default();
        let streamed = Streamed::new(&source, &Signs::S3(keys.clone()));
        let mut put = request(Method::PUT, "http://h/b/k");
        put.extensions_mut().insert(streamed);
        let signature = "AWS4-HMAC-SHA256 Credential=KEY/20260101/r/s3/aws4_request, Signature=1";
        put.headers_mut().insert(header::AUTHORIZATION, signature.parse().unwrap());
        let (gated, _) = gated(&[(503, None), (200, None)]);
        assert_eq!(gated.call(put).await.unwrap().status(), 200);
        assert_eq!(keys.0.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn the_pause_that_the_backend_asks_for_is_made() {
        let (gated, _) = gated(&[(503, Some("1")), (200, None)]);
        let start = Instant::now();
        gated.call(request(Method::GET, "http://h/b/k")).await.unwrap();
        assert!(start.elapsed() >= Duration::from_secs(1));
    }

    #[tokio::test]
    async fn a_pause_that_is_too_long_ends_in_the_refusal() {
        let (gated, counters) = gated(&[(503, Some("3600"))]);
        let answer = gated.call(request(Method::GET, "http://h/b/k")).await.unwrap();
        assert_eq!(answer.status(), 503);
        assert_eq!(counters.requests.load().total(), 1);
    }

    #[tokio::test]
    async fn other_refusals_are_given_as_they_are() {
        for status in [404, 412, 500, 403] {
            let (gated, counters) = gated(&[(status, None)]);
            let answer = gated.call(request(Method::GET, "http://h/b/k")).await.unwrap();
            assert_eq!(answer.status(), status);
            assert_eq!(counters.requests.load().total(), 1);
        }
    }

    /// Answers nothing in time.
    #[derive(Debug)]
    struct Late;

    #[async_trait]
    impl HttpService for Late {
        async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            Err(HttpError::new(HttpErrorKind::Timeout, late))
        }
    }

    #[tokio::test]
    async fn a_request_that_is_not_answered_in_time_halves_what_is_under_way() {
        let scheduler = Arc::new(RequestScheduler::new(Arc::default()));
        let gated = Gated { inner: HttpClient::new(Late), scheduler: scheduler.clone() };
        let before = scheduler.limit();
        for halved in [2, 4, 8, 16, 16] {
            gated.call(request(Method::PUT, "http://h/b/k")).await.unwrap_err();
            assert_eq!(scheduler.limit(), (before / halved).max(BACKEND_REQUESTS_MIN));
        }
        assert_eq!(scheduler.writes_max(), 2);
    }

    /// The library logs the error as it makes the request again.
    #[tokio::test]
    async fn a_request_without_an_answer_names_host_and_bucket_and_why() {
        let scheduler = Arc::new(RequestScheduler::new(Arc::default()));
        let gated = Gated { inner: HttpClient::new(Late), scheduler };
        let uri = "http://h:9/photos/k?partNumber=1&secret=x";
        let error = gated.call(request(Method::PUT, uri)).await.unwrap_err();
        assert_eq!(error.kind(), HttpErrorKind::Timeout);
        assert_eq!(error.to_string(), "HTTP error: h:9/photos: HTTP error: timed out");
    }

    #[test]
    fn requests_are_what_the_bill_calls_them() {
        use RequestClass::{Delete, Get, Head, List, Part, Put};
        for (method, uri, class) in [
            (Method::PUT, "http://h/b/k", Put),
            (Method::PUT, "http://h/b/k?partNumber=1&uploadId=x", Part),
            (Method::POST, "http://h/b/k?uploads", Put),
            (Method::POST, "http://h/b/k?uploadId=x", Put),
            (Method::POST, "http://h/b?delete", Delete),
            (Method::DELETE, "http://h/b/k?uploadId=x", Delete),
            (Method::GET, "http://h/b?list-type=2&prefix=x", List),
            (Method::GET, "http://h/b/k", Get),
            (Method::HEAD, "http://h/b/k", Head),
            (Method::PUT, "https://a.blob.core.windows.net/c/k?comp=block&blockid=x", Part),
            (Method::PUT, "https://a.blob.core.windows.net/c/k?comp=blocklist", Put),
            (Method::GET, "https://a.blob.core.windows.net/c?restype=container&comp=list", List),
            (
                Method::POST,
                "https://a.blob.core.windows.net/c?restype=container&comp=batch",
                Delete,
            ),
        ] {
            assert_eq!(classify(&request(method, uri)), Some(class), "{uri}");
        }
        for uri in ["http://169.254.169.254/latest/x", "https://oauth2.googleapis.com/token"] {
            assert_eq!(classify(&request(Method::POST, uri)), None, "{uri}");
        }
    }
}
