//! HTTP alone: reads a request, answers it, and looks at nothing in between but method and path.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::file::{FILE_BYTES_MAX, FloorFile};
use larder_bench::content::PIECE_BYTES;

/// Pause after a failed `accept`, which fails while the process has no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until it is dropped.
pub(super) async fn serve(listener: TcpListener, file: Arc<FloorFile>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(connection(stream, Arc::clone(&file)));
            }
            Err(error) => {
                eprintln!("a connection could not be accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, file: Arc<FloorFile>) {
    let service = service_fn(|request| answer(request, &file));
    if stream.set_nodelay(true).is_ok() {
        // A client that breaks off sees that itself, and counts it.
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }
}

async fn answer(
    request: Request<Incoming>,
    file: &Arc<FloorFile>,
) -> hyper::Result<Response<FileBody>> {
    let (head, mut body) = request.into_parts();
    let mut received = 0;
    while let Some(frame) = body.frame().await.transpose()? {
        received += frame.data_ref().map_or(0, |data| data.len() as u64);
    }
    let key = head.uri.path().trim_start_matches('/').split_once('/').map(|(_, key)| key);
    let (status, size) = match (&head.method, key) {
        (&Method::GET | &Method::HEAD, Some(key)) => match file.size_of(key) {
            size if size <= FILE_BYTES_MAX => (StatusCode::OK, size),
            _ => (StatusCode::BAD_REQUEST, 0),
        },
        (&Method::PUT, Some(_)) => {
            file.note_put(received);
            (StatusCode::OK, 0)
        }
        (&Method::DELETE, _) => (StatusCode::NO_CONTENT, 0),
        _ => (StatusCode::OK, 0),
    };
    let mut response = Response::new(FileBody { file: Arc::clone(file), rest: 0..size });
    *response.status_mut() = status;
    Ok(response)
}

/// A range of the file, read piece by piece as it is sent.
struct FileBody {
    file: Arc<FloorFile>,
    rest: Range<u64>,
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let end = self.rest.end.min(self.rest.start + PIECE_BYTES as u64);
        let piece = self.file.read(self.rest.start..end);
        self.rest.start = end;
        Poll::Ready(Some(piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.end - self.rest.start)
    }
}
