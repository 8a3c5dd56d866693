//! The HTTP server: accepts connections, hands requests to [`super::exchange`], and drains at the end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use super::exchange::Exchange;
use super::hooks::ServerHooks;
use super::reply::ReplyBody;
use super::waiting::Waiting;
use crate::connection::activity::{ConnectionActivity, EvictedForNew, Working};
use crate::connection::connections::{Connections, Most, Place};
use crate::connection::wire::Wire;
use crate::forwarding::RequestSource;
use crate::limits::{CLIENT_STALL_TIMEOUT, CONNECTIONS_MAX};
use crate::options::{Domains, GatewayOptions, OptionsError, ServerOptions};
use crate::service::S3Service;

const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n\
content-length: 0\r\n\r\n";
/// Pause after a failed `accept`, which fails while the process has no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Listens on `address`, a host or an IP address with a port. As many clients as may be connected can also arrive at once.
/// With a shorter line the kernel drops some, who try again after a second.
///
/// # Errors
/// As the system says of the last address that the name stands for.
pub async fn listen(address: &str) -> io::Result<TcpListener> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name stands for no address");
    for address in tokio::net::lookup_host(address).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let listening = socket.and_then(|socket| {
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(CONNECTIONS_MAX as u32)
        });
        match listening {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Serves S3 on `listener` with a [`Server`] that has nothing else to do; see [`Server::serve`].
pub async fn serve<H: ServerHooks>(
    listener: TcpListener,
    service: S3Service,
    hooks: Arc<H>,
    options: ServerOptions,
    shutdown: impl Future<Output = ()>,
) -> bool {
    Server::new(service, hooks, options).serve(listener, shutdown).await
}

/// A server's requests, whichever way they come. Cheap to clone.
pub struct Server<H: ServerHooks> {
    server_state: Arc<ServerState<H>>,
    options: ServerOptions,
}

impl<H: ServerHooks> Clone for Server<H> {
    fn clone(&self) -> Self {
        Self { server_state: Arc::clone(&self.server_state), options: self.options.clone() }
    }
}

/// Answers requests: from the store, once there is one.
struct ServerState<H: ServerHooks> {
    hooks: Arc<H>,
    waiting: Waiting<H>,
    exchange: OnceLock<Exchange<H>>,
}

impl<H: ServerHooks> ServerState<H> {
    async fn answer(
        &self,
        request_source: RequestSource,
        request: Request<Incoming>,
        working: &Working,
    ) -> Response<ReplyBody<H>> {
        match self.exchange.get() {
            Some(exchange) => exchange.answer(request_source, request, working).await,
            None => self.waiting.answer(request_source, request, working),
        }
    }
}

impl<H: ServerHooks> Server<H> {
    /// A server that does not listen yet.
    #[must_use]
    pub fn new(service: S3Service, hooks: Arc<H>, options: ServerOptions) -> Self {
        let server = Self::without_store(hooks, options, service.domains().clone());
        server.begin(service);
        server
    }

    /// A server without a store: until it begins, `/readyz` and all requests but `/healthz` are answered 503.
    ///
    /// # Errors
    /// [`OptionsError`] of the domains.
    pub fn waiting(
        hooks: Arc<H>,
        options: ServerOptions,
        face: GatewayOptions,
    ) -> Result<Self, OptionsError> {
        Ok(Self::without_store(hooks, options, Domains::new(face.domains)?))
    }

    fn without_store(hooks: Arc<H>, options: ServerOptions, domains: Domains) -> Self {
        let waiting = Waiting::new(Arc::clone(&hooks), domains);
        Self {
            server_state: Arc::new(ServerState { hooks, waiting, exchange: OnceLock::new() }),
            options,
        }
    }

    /// True if it has its store.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.server_state.exchange.get().is_some()
    }

    /// Gives it its store.
    ///
    /// # Panics
    /// If it has one.
    pub fn begin(&self, service: S3Service) {
        let exchange = Exchange::new(service, Arc::clone(&self.server_state.hooks), &self.options);
        assert!(self.server_state.exchange.set(exchange).is_ok(), "a server begins once");
    }

    /// Answers a request that another server has handed on: within the same limits, and here. How long its client may be
    /// silent is that server's to watch.
    pub async fn answer_forwarded(
        &self,
        request: Request<Incoming>,
    ) -> Response<impl Body<Data = Bytes, Error = s3s::StdError> + Send + use<H>> {
        self.server_state.answer(RequestSource::Neighbour, request, &Working::elsewhere()).await
    }

    /// Serves S3 on `listener` until `shutdown` completes, then lets requests finish, at most for
    /// [`ServerOptions::drain_max`]. Returns whether all of them did.
    ///
    /// `GET /healthz`, `GET /healthz/cluster` and `GET /readyz` are answered without credentials.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> bool {
        accept_all(listener, self.server_state, self.options, shutdown).await
    }
}

async fn accept_all<H: ServerHooks>(
    listener: TcpListener,
    server_state: Arc<ServerState<H>>,
    options: ServerOptions,
    shutdown: impl Future<Output = ()>,
) -> bool {
    let connections = Arc::new(Connections::new(Most {
        open: options.connections_max,
        of_network: options.connections_of_client_max,
        idle: options.idle_before_closed,
    }));
    let (stop, stopping) = watch::channel(false);
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => match connections.admit(from.ip()) {
                    Some(place) => {
                        let client = (stream, from);
                        tokio::spawn(connection(client, Arc::clone(&server_state), stopping.clone(), place));
                    }
                    None => refuse(&stream),
                },
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop((listener, stopping));
    let _all_are_idle = stop.send(true);
    let drained = tokio::time::timeout(options.drain_max, stop.closed()).await.is_ok();
    if !drained {
        tracing::warn!("requests were cut off: they took longer than {:?}", options.drain_max);
    }
    drained
}

fn refuse(stream: &TcpStream) {
    tracing::debug!("refused a connection: the limit of connections is reached");
    // A fresh socket's buffer takes these few bytes at once; if not, closing says enough.
    let _ = stream.try_write(FULL);
}

async fn connection<H: ServerHooks>(
    (stream, from): (TcpStream, SocketAddr),
    server_state: Arc<ServerState<H>>,
    mut stopping: watch::Receiver<bool>,
    place: Place,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection was lost before its first request");
        return;
    }
    let activity = &place.activity;
    let service = service_fn(|request| {
        let (working, server_state) = (Working::begin(activity), &server_state);
        async move {
            Ok::<_, EvictedForNew>(
                server_state.answer(RequestSource::Client(from), request, &working?).await,
            )
        }
    });
    let mut served = pin!(
        http1::Builder::new()
            .header_read_timeout(None)
            .serve_connection(TokioIo::new(Wire::new(stream, Arc::clone(activity))), service)
    );
    let result = tokio::select! {
        result = served.as_mut() => result,
        _ = stopping.changed() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
        () = place.close.notified() => {
            tracing::debug!("closed an idle connection to make room for another");
            return;
        }
        () = silence(activity) => {
            tracing::debug!("a connection was closed: its client was silent");
            return;
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Completes when a connection has had no request for between one and two [`CLIENT_STALL_TIMEOUT`]s. Costs a request a
/// few relaxed stores, where a timer of its own would take a lock.
async fn silence(activity: &ConnectionActivity) {
    loop {
        tokio::time::sleep(CLIENT_STALL_TIMEOUT).await;
        if activity.idle_for().is_some_and(|idle| idle >= CLIENT_STALL_TIMEOUT) {
            return;
        }
    }
}
