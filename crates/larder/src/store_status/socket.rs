//! `DIR/status.sock`: where the process that serves a store says how it is, to its own user and to root.
//!
//! HTTP over a socket of the file system, with JSON: `GET /v1/status` answers with a [`Document`](super::document::Document),
//! `GET /v1/keys` with [`KeysStatus`], `GET /v1/breakdown` with a [`CountsStatus`](larder_roles::breakdown::CountsStatus).
//! `POST /v1/keys` has root's keys read anew from their file. Nothing else can be changed by way of it.

use std::fs::{self, File};
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{Observer, StatusError};
use crate::root_keys::{KeysStatus, StoreKeys};

/// Name of the socket in the directory.
pub(crate) const SOCKET: &str = "status.sock";
const STATUS: &str = "/v1/status";
const KEYS: &str = "/v1/keys";
const BREAKDOWN: &str = "/v1/breakdown";
/// Questions at once; others wait.
const CLIENTS_MAX: usize = 2;
/// Time that a question has in all.
const ASKED_MAX: Duration = Duration::from_secs(10);
/// Pause after a failed `accept`, which fails while the process has no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Longest answer that is read: ten thousand buckets are a tenth of it.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The socket of a store that this process holds; gone from the directory with it, unless the process is killed.
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        // One that stays is removed by the next start.
        let _gone = fs::remove_file(&self.path);
    }
}

impl Socket {
    /// Listens in the directory. A socket that is there is of a process that ended, as this one holds the directory.
    ///
    /// # Errors
    /// If the file system has no sockets, or does not let one be made.
    pub(crate) fn open(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(SOCKET);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let place = Place::of(dir)?;
        Ok(Self { listener: UnixListener::bind(&place.path)?, path })
    }

    /// Answers as long as the process lives.
    pub(crate) async fn serve(self, observer: Arc<Observer>, keys: Arc<StoreKeys>) {
        let asking = Arc::new(Semaphore::new(CLIENTS_MAX));
        loop {
            let Ok(turn) = asking.clone().acquire_owned().await else { return };
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a status client could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if !is_allowed(&stream) {
                continue;
            }
            let shown = (observer.clone(), keys.clone());
            tokio::spawn(async move {
                let _turn = turn;
                if timeout(ASKED_MAX, answer(stream, shown)).await.is_err() {
                    tracing::debug!("a status client timed out");
                }
            });
        }
    }
}

/// The path of a directory's socket, short enough for a socket's address whatever the directory's is.
struct Place {
    path: PathBuf,
    /// The directory that the path goes through.
    _dir: File,
}

impl Place {
    fn of(dir: &Path) -> Result<Self, Error> {
        let opened = File::open(dir)?;
        let path = format!("/proc/self/fd/{}/{SOCKET}", opened.as_raw_fd());
        Ok(Self { path: path.into(), _dir: opened })
    }
}

/// True of this process' user, and of root, whatever rights the socket has.
fn is_allowed(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0)
}

async fn answer(stream: UnixStream, shown: (Arc<Observer>, Arc<StoreKeys>)) {
    let answer = service_fn(|request: Request<Incoming>| {
        let (observer, keys) = shown.clone();
        let asked = SocketRequest::of(request.method(), request.uri().path());
        // It takes the locks of all groups, and asks the file system.
        let made = spawn_blocking(move || respond(asked, &observer, &keys));
        async move { made.await.map_err(std::io::Error::other) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a status client disconnected");
    }
}

/// A question to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketRequest {
    /// The document.
    Status,
    /// The counts of operations and requests.
    Breakdown,
    /// The keys that it takes.
    Now,
    /// The same, after it has read their file anew.
    ReadAnew,
}

impl SocketRequest {
    fn of(method: &Method, path: &str) -> Option<Self> {
        match (method, path) {
            (&Method::GET, STATUS) => Some(Self::Status),
            (&Method::GET, BREAKDOWN) => Some(Self::Breakdown),
            (&Method::GET, KEYS) => Some(Self::Now),
            (&Method::POST, KEYS) => Some(Self::ReadAnew),
            _ => None,
        }
    }

    const fn words(self) -> (Method, &'static str) {
        match self {
            Self::Status => (Method::GET, STATUS),
            Self::Breakdown => (Method::GET, BREAKDOWN),
            Self::Now => (Method::GET, KEYS),
            Self::ReadAnew => (Method::POST, KEYS),
        }
    }
}

fn respond(
    asked: Option<SocketRequest>,
    observer: &Observer,
    keys: &StoreKeys,
) -> Response<Full<Bytes>> {
    let made = match asked {
        Some(SocketRequest::Status) => json(&observer.document()),
        Some(SocketRequest::Breakdown) => json(&observer.counts()),
        Some(SocketRequest::Now) => json(&keys.now()),
        Some(SocketRequest::ReadAnew) => match keys.reload() {
            Ok(now) => json(&now),
            Err(reason) => Err((StatusCode::CONFLICT, reason)),
        },
        None => {
            let known = format!("ask for {STATUS}, {BREAKDOWN} or {KEYS}\n");
            Err((StatusCode::NOT_FOUND, known))
        }
    };
    let (status, kind, body) = match made {
        Ok(body) => (StatusCode::OK, "application/json", body),
        Err((status, reason)) => (status, "text/plain", reason.into_bytes()),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

fn json(value: &impl serde::Serialize) -> Result<Vec<u8>, (StatusCode, String)> {
    let failed = |error: serde_json::Error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    serde_json::to_vec(value).map_err(failed)
}

/// Asks the process that serves a store about its keys; `None` if there is none.
///
/// # Errors
/// If it does not answer, or did not do it.
pub(crate) fn request_keys(
    dir: &Path,
    asked: SocketRequest,
) -> Result<Option<KeysStatus>, StatusError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let reply = runtime.map_err(StatusError::System)?.block_on(ask(dir, asked));
    let reply = match reply {
        Err(StatusError::NotRunning { .. }) => return Ok(None),
        reply => reply?,
    };
    let failed = |error: serde_json::Error| StatusError::NoAnswer {
        dir: dir.display().to_string(),
        reason: format!("{error}; the server runs another release: restart it"),
    };
    serde_json::from_slice(&reply).map(Some).map_err(failed)
}

/// Asks the process that serves the store in a directory.
pub(super) async fn ask(dir: &Path, asked: SocketRequest) -> Result<Vec<u8>, StatusError> {
    let name = || dir.display().to_string();
    let failed = |error: Error| StatusError::NoAnswer { dir: name(), reason: error.to_string() };
    let place = Place::of(dir).map_err(failed)?;
    let stream = match UnixStream::connect(&place.path).await {
        Ok(stream) => stream,
        // A name without a process behind it, or none yet.
        Err(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            return Err(StatusError::NotRunning { dir: name() });
        }
        Err(error) => return Err(failed(error)),
    };
    let reply = timeout(ASKED_MAX, exchange(stream, asked)).await;
    let reply = reply.unwrap_or_else(|_| Err(format!("nothing within {} s", ASKED_MAX.as_secs())));
    reply.map_err(|reason| StatusError::NoAnswer { dir: name(), reason })
}

async fn exchange(stream: UnixStream, asked: SocketRequest) -> Result<Vec<u8>, String> {
    let failed = |error: hyper::Error| match error.is_incomplete_message() {
        true => "it closed the connection: ask as the user that it runs as, or as root".to_owned(),
        false => error.to_string(),
    };
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(failed)?;
    let (method, path) = asked.words();
    let request = Request::builder().method(method).uri(path).header(HOST, "larder");
    let request = request.body(Empty::<Bytes>::new());
    let request = request.map_err(|error| error.to_string())?;
    // The end of the connection may come before the body was read.
    tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(failed)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    match status {
        StatusCode::OK => Ok(body.to_vec()),
        StatusCode::NOT_FOUND => {
            Err("its release does not know the question: restart it with this one".to_owned())
        }
        _ => Err(format!("{status}: {}", String::from_utf8_lossy(&body).trim())),
    }
}
