//! A port, and the servers of this process that share it.
//!
//! A process may be several servers, each with a certificate of its own. A client's hello names the server that it wants
//! (SNI), so one port is enough for all of them. The named server answers, with its own certificate. A joiner names no
//! server, and the one that lets servers join answers.
//!
//! # Invariants
//!
//! 1. The name decides which server answers and nothing else: that server's own handshake authenticates the caller. If the
//!    name is that of a server of the cluster that is not here, the connection is closed without a refusal: the server may
//!    start later. A caller that names no server is refused as at any other port.
//! 2. Handshakes are bounded in number and time, so that unfinished ones do not use up memory. At the bound the port
//!    still accepts: the new handshake evicts an older one (see [`under_way`]).

mod handshakes;

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use larder_identity::discovery::DISCOVERY;
use larder_identity::tls::ENROLMENT;
use larder_types::{ClusterId, ServerId};
use parking_lot::RwLock;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;

use crate::connection::Broken;
use crate::discovery::DiscoveryResponder;
use crate::error::{Denied, Refused};
use crate::handshake::{AcceptedConnection, buffered, in_time, offers_protocol, refused};
use crate::limits::{ACCEPT_PAUSE, CONNECTIONS_MAX, HANDSHAKES_MAX, HELLO_TIME_MAX};
use crate::metrics::Metrics;
#[cfg(feature = "simulated")]
use crate::simulated::Arrivals;
use crate::transport::{Acceptor, Arrived};
use crate::virtual_server::{Admitted, VirtualServer};
use handshakes::{HandshakeSlot, PendingHandshakes};

/// The socket, port or simulated address at which a server listens.
pub enum ListenSocket {
    /// At a port of its own.
    Own(TcpListener),
    /// At a port that it shares with other servers of its process.
    Shared(Arc<Port>),
    /// At an address of a simulated network.
    #[cfg(feature = "simulated")]
    Simulated(Arrivals),
}

impl ListenSocket {
    /// The address that it is bound to.
    ///
    /// # Errors
    /// If the socket has none.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Own(socket) => socket.local_addr(),
            Self::Shared(port) => Ok(port.address()),
            #[cfg(feature = "simulated")]
            Self::Simulated(arrivals) => Ok(arrivals.address()),
        }
    }
}

impl From<TcpListener> for ListenSocket {
    fn from(socket: TcpListener) -> Self {
        Self::Own(socket)
    }
}

#[cfg(feature = "simulated")]
impl From<Arrivals> for ListenSocket {
    fn from(arrivals: Arrivals) -> Self {
        Self::Simulated(arrivals)
    }
}

impl From<Arc<Port>> for ListenSocket {
    fn from(port: Arc<Port>) -> Self {
        Self::Shared(port)
    }
}

/// A port for several servers of this process. Once dropped, it accepts no more connections; open ones go on.
pub struct Port {
    address: SocketAddr,
    server_table: Arc<ServerTable>,
    task: JoinHandle<()>,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Port {
    /// Accepts connections to this socket. Until a server listens at the port, all but discovery requests are closed.
    ///
    /// # Errors
    /// If the socket has no address.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn open(socket: TcpListener) -> io::Result<Arc<Self>> {
        let address = socket.local_addr()?;
        let server_table = Arc::new(ServerTable { named: true, ..ServerTable::default() });
        let task = tokio::spawn(server_table.clone().accept(Acceptor::Tcp(socket)));
        Ok(Arc::new(Self { address, server_table, task }))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts of connections that were refused before they reached a server.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.server_table.metrics
    }

    /// Has this responder answer discovery requests from now on.
    pub fn answer(&self, discovery_responder: DiscoveryResponder) {
        *self.server_table.discovery_responder.write() = Some(Arc::new(discovery_responder));
    }

    pub(crate) fn server_table(&self) -> &Arc<ServerTable> {
        &self.server_table
    }
}

/// The servers behind a port.
#[derive(Default)]
pub(crate) struct ServerTable {
    virtual_servers: RwLock<Vec<Arc<VirtualServer>>>,
    discovery_responder: RwLock<Option<Arc<DiscoveryResponder>>>,
    /// True if callers must name a server: at the port of one server the name is not needed.
    named: bool,
    /// Counts refusals of connections that reached no server.
    metrics: Arc<Metrics>,
}

impl ServerTable {
    pub(crate) fn of_one(virtual_server: Arc<VirtualServer>) -> Arc<Self> {
        let metrics = virtual_server.metrics().clone();
        Arc::new(Self {
            virtual_servers: RwLock::new(vec![virtual_server]),
            metrics,
            ..Self::default()
        })
    }

    pub(crate) fn open(&self, virtual_server: Arc<VirtualServer>) {
        self.virtual_servers.write().push(virtual_server);
    }

    /// The server of this port with this id.
    pub(crate) fn virtual_server(
        &self,
        cluster: ClusterId,
        server: ServerId,
    ) -> Option<Arc<VirtualServer>> {
        let is_meant = |virtual_server: &&Arc<VirtualServer>| {
            virtual_server.subject().is_some_and(|it| (it.cluster, it.server) == (cluster, server))
        };
        self.virtual_servers.read().iter().find(is_meant).cloned()
    }

    pub(crate) fn close(&self, virtual_server: &Arc<VirtualServer>) {
        self.virtual_servers.write().retain(|other| !Arc::ptr_eq(other, virtual_server));
    }

    /// The server that answers: the one that is named, or for a joiner the one that lets servers join. Any server, which then
    /// refuses it, answers a caller that names none of the cluster.
    fn find(&self, begun: &AcceptedConnection) -> Option<Arc<VirtualServer>> {
        let virtual_servers = self.virtual_servers.read();
        let virtual_server = match begun {
            AcceptedConnection::Tls(begun) if self.named => {
                let hello = begun.client_hello();
                let name = hello.server_name().unwrap_or_default();
                let named =
                    virtual_servers.iter().find(|virtual_server| virtual_server.is_named(name));
                let enrols =
                    || virtual_servers.iter().find(|virtual_server| virtual_server.enrols());
                let joins = || offers_protocol(begun, ENROLMENT).then(enrols).flatten();
                let stranger = || {
                    virtual_servers.first().filter(|virtual_server| !virtual_server.is_beside(name))
                };
                named.or_else(joins).or_else(stranger)
            }
            _ => virtual_servers.first(),
        };
        virtual_server.cloned()
    }

    pub(crate) async fn accept(self: Arc<Self>, mut acceptor: Acceptor) {
        let handshakes = Arc::new(PendingHandshakes::default());
        let mut connections = JoinSet::new();
        loop {
            let (arrived, address) = match acceptor.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            while connections.try_join_next().is_some() {}
            if connections.len() >= CONNECTIONS_MAX {
                let why = format!("there are {CONNECTIONS_MAX} connections");
                refused(&self.metrics, address, &Denied::by_us(Refused::TooMany, why));
                continue;
            }
            let taken = handshakes.enter(network(address.ip()));
            connections.spawn(self.clone().serve(arrived, address, taken));
        }
    }

    async fn serve(
        self: Arc<Self>,
        arrived: Arrived,
        address: SocketAddr,
        mut taken: HandshakeSlot,
    ) {
        let mut met = None;
        let shaken = tokio::select! {
            biased;
            shaken = in_time(self.shake_hands(arrived, address, &mut met)) => shaken,
            () = taken.lost() => {
                let why = format!("there are {HANDSHAKES_MAX} handshakes, most of them its own");
                Err(Broken::Denied(Denied::by_us(Refused::TooMany, why)))
            }
        };
        drop(taken);
        let metrics = met.as_ref().map_or(&self.metrics, |virtual_server| virtual_server.metrics());
        match shaken {
            Ok(Some(admitted)) => {
                let virtual_server = met.expect("somebody has shaken hands");
                virtual_server.serve(admitted, address).await;
            }
            Ok(None) => {}
            Err(Broken::Denied(denied)) => refused(metrics, address, &denied),
            Err(Broken::Frame(error)) => {
                refused(metrics, address, &Denied::by_us(Refused::Garbage, error.to_string()));
            }
            Err(Broken::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
                let why = "the handshake took too long".into();
                refused(metrics, address, &Denied::by_us(Refused::Late, why));
            }
            // Some callers only check that the port is open, or come before the server.
            Err(broken) => tracing::debug!(%address, %broken, "a handshake broke"),
        }
    }

    /// Finds the server that answers and has it shake hands; `None` if the caller sent a discovery request or asked for a certificate, which
    /// was answered.
    async fn shake_hands(
        &self,
        arrived: Arrived,
        address: SocketAddr,
        met: &mut Option<Arc<VirtualServer>>,
    ) -> Result<Option<Admitted>, Broken> {
        let begun = match self.begun(arrived).await? {
            AcceptedConnection::Tls(handshake) if offers_protocol(&handshake, DISCOVERY) => {
                match self.discovery_responder() {
                    Some(discovery_responder) => {
                        discovery_responder.answer(*handshake, address, &self.metrics).await?;
                        return Ok(None);
                    }
                    None => return Err(Broken::Absent),
                }
            }
            begun => begun,
        };
        let Some(virtual_server) = self.find(&begun) else { return Err(Broken::Absent) };
        *met = Some(virtual_server.clone());
        virtual_server.shake_hands(begun, address).await
    }

    fn discovery_responder(&self) -> Option<Arc<DiscoveryResponder>> {
        self.discovery_responder.read().clone()
    }

    async fn begun(&self, arrived: Arrived) -> Result<AcceptedConnection, Broken> {
        #[cfg_attr(
            not(feature = "simulated"),
            expect(
                clippy::infallible_destructuring_match,
                reason = "simulations have another kind"
            )
        )]
        let tcp = match arrived {
            Arrived::Tcp(tcp) => tcp,
            #[cfg(feature = "simulated")]
            Arrived::Simulated(pipe, subject) => {
                return Ok(AcceptedConnection::Simulated(pipe, subject));
            }
        };
        tcp.set_nodelay(true)?;
        let begun = timeout(HELLO_TIME_MAX, self.begin(tcp)).await;
        begun.unwrap_or_else(|_elapsed| Err(Broken::Io(io::ErrorKind::TimedOut.into())))
    }

    async fn begin(&self, tcp: TcpStream) -> Result<AcceptedConnection, Broken> {
        #[cfg(feature = "plain-for-measurement")]
        if self
            .virtual_servers
            .read()
            .first()
            .is_some_and(|virtual_server| !virtual_server.is_secure())
        {
            return Ok(AcceptedConnection::Plain(tcp));
        }
        let acceptor = LazyConfigAcceptor::new(Default::default(), buffered(tcp));
        Ok(AcceptedConnection::Tls(Box::new(acceptor.await?)))
    }
}

/// The network that counts as one client: an IPv4 address, or the /64 that a customer of IPv6 has at least.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests;
