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

mod under_way;

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use larder_identity::knocking::KNOCKING;
use larder_identity::tls::ENROLMENT;
use larder_types::{ClusterId, ServerId};
use parking_lot::RwLock;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;

use crate::connection::Broken;
use crate::error::{Denied, Refused};
use crate::handshake::{Begun, asks_for, buffered, in_time, refused};
use crate::house::{Admitted, House};
use crate::knock::Doorkeeper;
use crate::limits::{ACCEPT_PAUSE, CONNECTIONS_MAX, HANDSHAKES_MAX, HELLO_TIME_MAX};
use crate::metrics::Metrics;
#[cfg(feature = "simulated")]
use crate::simulated::Arrivals;
use crate::transport::{Acceptor, Arrived};
use under_way::{Taken, UnderWay};

/// The socket, port or simulated address at which a server listens.
pub enum Ear {
    /// At a port of its own.
    Own(TcpListener),
    /// At a port that it shares with other servers of its process.
    Shared(Arc<Port>),
    /// At an address of a simulated network.
    #[cfg(feature = "simulated")]
    Simulated(Arrivals),
}

impl Ear {
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

impl From<TcpListener> for Ear {
    fn from(socket: TcpListener) -> Self {
        Self::Own(socket)
    }
}

#[cfg(feature = "simulated")]
impl From<Arrivals> for Ear {
    fn from(arrivals: Arrivals) -> Self {
        Self::Simulated(arrivals)
    }
}

impl From<Arc<Port>> for Ear {
    fn from(port: Arc<Port>) -> Self {
        Self::Shared(port)
    }
}

/// A port for several servers of this process. Once dropped, it accepts no more connections; open ones go on.
pub struct Port {
    address: SocketAddr,
    street: Arc<Street>,
    task: JoinHandle<()>,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Port {
    /// Accepts connections to this socket. Until a server listens at the port, all but knocks are closed.
    ///
    /// # Errors
    /// If the socket has no address.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn open(socket: TcpListener) -> io::Result<Arc<Self>> {
        let address = socket.local_addr()?;
        let street = Arc::new(Street { named: true, ..Street::default() });
        let task = tokio::spawn(street.clone().accept(Acceptor::Tcp(socket)));
        Ok(Arc::new(Self { address, street, task }))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts of connections that were refused before they reached a server.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.street.metrics
    }

    /// Has this doorkeeper answer knocks from now on.
    pub fn answer(&self, doorkeeper: Doorkeeper) {
        *self.street.doorkeeper.write() = Some(Arc::new(doorkeeper));
    }

    pub(crate) fn street(&self) -> &Arc<Street> {
        &self.street
    }
}

/// The servers behind a port.
#[derive(Default)]
pub(crate) struct Street {
    houses: RwLock<Vec<Arc<House>>>,
    doorkeeper: RwLock<Option<Arc<Doorkeeper>>>,
    /// True if callers must name a server: at the port of one server the name is not needed.
    named: bool,
    /// Counts refusals of connections that reached no server.
    metrics: Arc<Metrics>,
}

impl Street {
    pub(crate) fn of_one(house: Arc<House>) -> Arc<Self> {
        let metrics = house.metrics().clone();
        Arc::new(Self { houses: RwLock::new(vec![house]), metrics, ..Self::default() })
    }

    pub(crate) fn open(&self, house: Arc<House>) {
        self.houses.write().push(house);
    }

    /// The server of this port with this id.
    pub(crate) fn house(&self, cluster: ClusterId, server: ServerId) -> Option<Arc<House>> {
        let is_meant = |house: &&Arc<House>| {
            house.subject().is_some_and(|it| (it.cluster, it.server) == (cluster, server))
        };
        self.houses.read().iter().find(is_meant).cloned()
    }

    pub(crate) fn close(&self, house: &Arc<House>) {
        self.houses.write().retain(|other| !Arc::ptr_eq(other, house));
    }

    /// The server that answers: the one that is named, or for a joiner the one that lets servers join. Any server, which then
    /// refuses it, answers a caller that names none of the cluster.
    fn find(&self, begun: &Begun) -> Option<Arc<House>> {
        let houses = self.houses.read();
        let house = match begun {
            Begun::Tls(begun) if self.named => {
                let hello = begun.client_hello();
                let name = hello.server_name().unwrap_or_default();
                let named = houses.iter().find(|house| house.is_named(name));
                let enrols = || houses.iter().find(|house| house.enrols());
                let joins = || asks_for(begun, ENROLMENT).then(enrols).flatten();
                let stranger = || houses.first().filter(|house| !house.is_beside(name));
                named.or_else(joins).or_else(stranger)
            }
            _ => houses.first(),
        };
        house.cloned()
    }

    pub(crate) async fn accept(self: Arc<Self>, mut acceptor: Acceptor) {
        let handshakes = Arc::new(UnderWay::default());
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

    async fn serve(self: Arc<Self>, arrived: Arrived, address: SocketAddr, mut taken: Taken) {
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
        let metrics = met.as_ref().map_or(&self.metrics, |house| house.metrics());
        match shaken {
            Ok(Some(admitted)) => {
                let house = met.expect("somebody has shaken hands");
                house.serve(admitted, address).await;
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

    /// Finds the server that answers and has it shake hands; `None` if the caller knocked or asked for a certificate, which
    /// was answered.
    async fn shake_hands(
        &self,
        arrived: Arrived,
        address: SocketAddr,
        met: &mut Option<Arc<House>>,
    ) -> Result<Option<Admitted>, Broken> {
        let begun = match self.begun(arrived).await? {
            Begun::Tls(handshake) if asks_for(&handshake, KNOCKING) => match self.doorkeeper() {
                Some(doorkeeper) => {
                    doorkeeper.answer(*handshake, address, &self.metrics).await?;
                    return Ok(None);
                }
                None => return Err(Broken::Absent),
            },
            begun => begun,
        };
        let Some(house) = self.find(&begun) else { return Err(Broken::Absent) };
        *met = Some(house.clone());
        house.shake_hands(begun, address).await
    }

    fn doorkeeper(&self) -> Option<Arc<Doorkeeper>> {
        self.doorkeeper.read().clone()
    }

    async fn begun(&self, arrived: Arrived) -> Result<Begun, Broken> {
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
            Arrived::Simulated(pipe, subject) => return Ok(Begun::Simulated(pipe, subject)),
        };
        tcp.set_nodelay(true)?;
        let begun = timeout(HELLO_TIME_MAX, self.begin(tcp)).await;
        begun.unwrap_or_else(|_elapsed| Err(Broken::Io(io::ErrorKind::TimedOut.into())))
    }

    async fn begin(&self, tcp: TcpStream) -> Result<Begun, Broken> {
        #[cfg(feature = "plain-for-measurement")]
        if self.houses.read().first().is_some_and(|house| !house.is_secure()) {
            return Ok(Begun::Plain(tcp));
        }
        let acceptor = LazyConfigAcceptor::new(Default::default(), buffered(tcp));
        Ok(Begun::Tls(Box::new(acceptor.await?)))
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
