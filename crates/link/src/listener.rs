//! The answering end: accepts connections, and hands each request to the [request handler](crate::requests).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::CONTENT_ENCODING;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::identity::Fingerprint;
use crate::limits::{ACCEPT_PAUSE, CONNECT_TIME_MAX, IDLE_ANSWERING_MAX, IDLE_STRANGER_MAX};
use crate::requests::{Caller, RequestHandler};
use crate::slots::{ConnectionSlots, SlotOwner};
use crate::source::Source;
use crate::tls::session_secret;
use crate::write_timeout::WriteTimeout;

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
        socket: TcpListener,
        tls: Arc<ServerConfig>,
        handler: RequestHandler<S>,
    ) -> std::io::Result<Self> {
        let address = socket.local_addr()?;
        let slots = Arc::new(ConnectionSlots::new());
        let acceptor = Arc::new(Acceptor {
            tls: tls.into(),
            handler: Arc::new(handler),
            slots: slots.clone(),
        });
        let accepting = tokio::spawn(acceptor.accept(socket)).abort_handle();
        Ok(Self { address, slots, accepting })
    }

    /// Address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

struct Acceptor<S> {
    tls: TlsAcceptor,
    handler: Arc<RequestHandler<S>>,
    slots: Arc<ConnectionSlots>,
}

type Shaken = TlsStream<WriteTimeout<TcpStream>>;

impl<S: Source> Acceptor<S> {
    async fn accept(self: Arc<Self>, socket: TcpListener) {
        loop {
            match socket.accept().await {
                Ok((tcp, address)) => {
                    let arriving = tokio::spawn(self.clone().arrive(tcp, address));
                    self.slots.enter(SlotOwner::Arriving, arriving.abort_handle());
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection of a region cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn arrive(self: Arc<Self>, tcp: TcpStream, address: SocketAddr) {
        let is_compressed = Arc::new(AtomicBool::new(false));
        let shaking = self.shake_hands(tcp, is_compressed.clone());
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
        let handler = self.handler.clone();
        let answering = tokio::spawn(async move {
            let answer = service_fn(|request| {
                let handler = &handler;
                let caller = &caller;
                let is_compressed = &is_compressed;
                async move {
                    let answer = handler.answer(caller, request).await;
                    if answer.headers().contains_key(CONTENT_ENCODING) {
                        is_compressed.store(true, Ordering::Relaxed);
                    }
                    Ok::<_, Infallible>(answer)
                }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(idle_max)
                .serve_connection(TokioIo::new(stream), answer);
            if let Err(error) = connection.await {
                tracing::debug!(%address, %error, "a connection of a region broke");
            }
        });
        self.slots.enter(whose, answering.abort_handle());
    }

    async fn shake_hands(
        &self,
        tcp: TcpStream,
        is_compressed: Arc<AtomicBool>,
    ) -> std::io::Result<(Shaken, Caller)> {
        tcp.set_nodelay(true)?;
        let stream = self.tls.accept(WriteTimeout::of(tcp, is_compressed)).await?;
        let tls = stream.get_ref().1;
        let shown = tls.peer_certificates().and_then(<[_]>::first);
        let shown = shown.ok_or_else(|| std::io::Error::other("no certificate was shown"))?;
        let key = Fingerprint::of(shown).map_err(std::io::Error::other)?;
        let session = session_secret(tls).map_err(std::io::Error::other)?;
        Ok((stream, Caller { key, session }))
    }

    fn tell(&self, address: SocketAddr, why: &str) {
        if let Some(without_line) = self.handler.metrics.stranger() {
            tracing::warn!(%address, why, without_line, "a connection is not a region's");
        }
    }
}
