//! One kept-alive HTTP/1.1 connection, driven by the task that uses it.
//!
//! # Invariants
//! - There is no second task: the task that waits for an answer also reads and writes the socket. So
//!   a request costs no wake-up from one task to another.
//! - A connection whose last exchange did not end in a complete answer is never used again.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::content::Content;

type Driver = Pin<Box<http1::Connection<TokioIo<TcpStream>, ContentBody>>>;

/// A connection to an endpoint.
pub(crate) struct Connection {
    sender: http1::SendRequest<ContentBody>,
    /// `None` once it has ended.
    driver: Option<Driver>,
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, driver) =
            http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        Ok(Self { sender, driver: Some(Box::pin(driver)) })
    }

    /// Waits until a request may be sent; `false` if the server has closed the connection.
    pub(crate) async fn is_usable(&mut self) -> bool {
        matches!(drive(&mut self.driver, self.sender.ready()).await, Ok(Ok(())))
    }

    /// Sends a request and waits for the answer's head.
    pub(crate) async fn send(
        &mut self,
        request: Request<ContentBody>,
    ) -> io::Result<Response<Incoming>> {
        let response = self.sender.send_request(request);
        drive(&mut self.driver, response).await?.map_err(io::Error::other)
    }

    /// The next piece of an answer's body; `None` at its end.
    pub(crate) async fn next_piece(&mut self, body: &mut Incoming) -> io::Result<Option<Bytes>> {
        while let Some(frame) = drive(&mut self.driver, body.frame()).await? {
            if let Ok(piece) = frame.map_err(io::Error::other)?.into_data() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }
}

/// Runs `future` while the connection reads and writes.
async fn drive<F: Future>(driver: &mut Option<Driver>, future: F) -> io::Result<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        let mut end = Ok(());
        if let Some(running) = driver
            && let Poll::Ready(ended) = running.as_mut().poll(context)
        {
            *driver = None;
            end = ended;
        }
        // An answer that came before the connection's end still counts.
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        match (end, &driver) {
            (Err(error), _) => Poll::Ready(Err(io::Error::other(error))),
            (Ok(()), None) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            (Ok(()), Some(_)) => Poll::Pending,
        }
    })
    .await
}

/// A request's body, made piece by piece as it is sent.
pub(crate) struct ContentBody {
    content: Content,
    sent: u64,
    first: Option<Bytes>,
}

impl ContentBody {
    /// A body of `content`; `first` is its first piece if that was made already.
    pub(crate) fn new(content: Content, first: Option<Bytes>) -> Self {
        Self { content, sent: 0, first }
    }
}

impl Body for ContentBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_end_stream() {
            return Poll::Ready(None);
        }
        let piece = self.first.take().unwrap_or_else(|| self.content.piece(self.sent));
        self.sent += piece.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.sent == self.content.size()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.content.size() - self.sent)
    }
}
