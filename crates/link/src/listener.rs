//! The answering end: accepts connections, and hands each request to the [request handler](crate::requests).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::CONTENT_ENCODING;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::limits::{ACCEPT_PAUSE, CONNECT_TIME_MAX, IDLE_ANSWERING_MAX, IDLE_STRANGER_MAX};
use crate::requests::RequestHandler;
use crate::slots::{ConnectionSlots, SlotOwner};
use crate::source::Source;
use crate::transport::{AcceptedStream, Acceptor, Arrived, Caller};

/// Answers other regions. Dropped, it ends with all of its connections.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    slots: Arc<ConnectionSlots>,
    accepting: AbortHandle,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.accepting.abort();
        self.slots.close();
    }
}

impl Listener {
    pub(crate) fn start<S: Source>(
        address: SocketAddr,
        acceptor: Acceptor,
        handler: RequestHandler<S>,
    ) -> Self {
        let slots = Arc::new(ConnectionSlots::new());
        let answering = Arc::new(Answering { handler: Arc::new(handler), slots: slots.clone() });
        let accepting = tokio::spawn(answering.accept(acceptor)).abort_handle();
        Self { address, slots, accepting }
    }

    /// Address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

struct Answering<S> {
    handler: Arc<RequestHandler<S>>,
    slots: Arc<ConnectionSlots>,
}

impl<S: Source> Answering<S> {
    async fn accept(self: Arc<Self>, mut acceptor: Acceptor) {
        loop {
            match acceptor.accept().await {
                Ok((arrived, address)) => {
                    let arriving = tokio::spawn(self.clone().arrive(arrived, address));
                    self.slots.enter(SlotOwner::Arriving, arriving.abort_handle());
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection of a region cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn arrive(self: Arc<Self>, arrived: Arrived, address: SocketAddr) {
        let is_compressed = Arc::new(AtomicBool::new(false));
        let shaking = arrived.shake_hands(is_compressed.clone());
        let (stream, caller) = match timeout(CONNECT_TIME_MAX, shaking).await {
            Ok(Ok(shaken)) => shaken,
            Ok(Err(error)) => return self.tell(address, &error.to_string()),
            Err(_elapsed) => return self.tell(address, "the handshake took too long"),
        };
        let (whose, idle_max) = match self.handler.region_of(&caller.key) {
            Ok(number) => (SlotOwner::Peer(number), IDLE_ANSWERING_MAX),
            Err(declined) => {
                self.tell(address, &declined.to_string());
                (SlotOwner::Stranger, IDLE_STRANGER_MAX)
            }
        };
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(idle_max);
        let conversation =
            Conversation { handler: self.handler.clone(), caller, address, is_compressed };
        let answering = match stream {
            AcceptedStream::Tls(stream) => tokio::spawn(conversation.hold(http, stream)),
            #[cfg(feature = "simulated")]
            AcceptedStream::Simulated(stream) => {
                // The date would be that of the day on which the simulation runs.
                http.auto_date_header(false);
                tokio::spawn(conversation.hold(http, stream))
            }
        };
        self.slots.enter(whose, answering.abort_handle());
    }

    fn tell(&self, address: SocketAddr, why: &str) {
        if let Some(without_line) = self.handler.metrics.stranger() {
            tracing::warn!(%address, why, without_line, "a connection does not come from a region");
        }
    }
}

/// The requests of one connection.
struct Conversation<S> {
    handler: Arc<RequestHandler<S>>,
    caller: Caller,
    address: SocketAddr,
    is_compressed: Arc<AtomicBool>,
}

impl<S: Source> Conversation<S> {
    /// Answers requests until the connection ends.
    async fn hold<T>(self, http: http1::Builder, stream: T)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self { handler, caller, address, is_compressed } = self;
        let answer = service_fn(|request| {
            let (handler, caller, is_compressed) = (&handler, &caller, &is_compressed);
            async move {
                let answer = handler.answer(caller, request).await;
                if answer.headers().contains_key(CONTENT_ENCODING) {
                    is_compressed.store(true, Ordering::Relaxed);
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let connection = http.serve_connection(TokioIo::new(stream), answer);
        if let Err(error) = connection.await {
            tracing::debug!(%address, %error, "a connection of a region broke");
        }
    }
}
