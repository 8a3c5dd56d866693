//! `DIR/status.sock`: where the process that serves a store says how it is, to its own user and to root.
//!
//! HTTP over a socket of the file system: `GET /v1/status` answers with a [`Document`](super::document::Document) as JSON.
//! Nothing can be changed by way of it.

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
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{Observer, StatusError};

/// Name of the socket in the directory.
pub(crate) const SOCKET: &str = "status.sock";
const PATH: &str = "/v1/status";
/// Questions at once; others wait.
const ASKING_MAX: usize = 2;
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
    pub(crate) async fn serve(self, observer: Arc<Observer>) {
        let asking = Arc::new(Semaphore::new(ASKING_MAX));
        loop {
            let Ok(turn) = asking.clone().acquire_owned().await else { return };
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "who asks for the status could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if !is_allowed(&stream) {
                continue;
            }
            let observer = observer.clone();
            tokio::spawn(async move {
                let _turn = turn;
                if timeout(ASKED_MAX, answer(stream, observer)).await.is_err() {
                    tracing::debug!("who asks for the status took too long");
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

async fn answer(stream: UnixStream, observer: Arc<Observer>) {
    let answer = service_fn(|request: Request<Incoming>| {
        let (observer, path) = (observer.clone(), request.uri().path().to_owned());
        // It takes the locks of all groups, and asks the file system.
        let made = spawn_blocking(move || respond(&path, &observer));
        async move { made.await.map_err(std::io::Error::other) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "who asked for the status broke off");
    }
}

fn respond(path: &str, observer: &Observer) -> Response<Full<Bytes>> {
    let (status, kind, body) = match path {
        PATH => match serde_json::to_vec(&observer.document()) {
            Ok(body) => (StatusCode::OK, "application/json", body),
            Err(error) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", error.to_string().into_bytes())
            }
        },
        _ => (StatusCode::NOT_FOUND, "text/plain", format!("ask for {PATH}\n").into_bytes()),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

/// Asks the process that serves the store in a directory for its document.
pub(super) async fn ask(dir: &Path) -> Result<Vec<u8>, StatusError> {
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
    let asked = timeout(ASKED_MAX, exchange(stream)).await;
    let told = asked.unwrap_or_else(|_| Err(format!("nothing within {} s", ASKED_MAX.as_secs())));
    told.map_err(|reason| StatusError::NoAnswer { dir: name(), reason })
}

async fn exchange(stream: UnixStream) -> Result<Vec<u8>, String> {
    let failed = |error: hyper::Error| match error.is_incomplete_message() {
        true => "it closed the connection: ask as the user that it runs as, or as root".to_owned(),
        false => error.to_string(),
    };
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(failed)?;
    let request = Request::get(PATH).header(HOST, "larder").body(Empty::<Bytes>::new());
    let request = request.map_err(|error| error.to_string())?;
    // The end of the connection may come before the body was read.
    tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(failed)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    match status {
        StatusCode::OK => Ok(body.to_vec()),
        _ => Err(format!("{status}: {}", String::from_utf8_lossy(&body).trim())),
    }
}
