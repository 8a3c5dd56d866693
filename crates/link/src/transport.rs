//! The transport of links: TLS over TCP, or in simulations streams within the process (`simulated.rs`).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use larder_identity::session::SessionSecret;
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::error::LinkError;
use crate::identity::{Fingerprint, Identity};
use crate::name::Address;
#[cfg(feature = "simulated")]
use crate::simulated::{BoxedStream, SESSION, SimulatedLinks, SimulatedListener, wrong_key};
use crate::tls::{self, no_name, session_secret};
use crate::write_timeout::WriteTimeout;

/// A region's own end of all of its links.
#[derive(Debug)]
pub(crate) enum Transport {
    Tls {
        identity: Identity,
        answering: Arc<ServerConfig>,
    },
    #[cfg(feature = "simulated")]
    Simulated(Arc<dyn SimulatedLinks>),
}

impl Transport {
    pub(crate) fn of(identity: Identity) -> Result<Self, LinkError> {
        Ok(Self::Tls { answering: tls::server(&identity)?, identity })
    }

    /// The way to the region with this key.
    pub(crate) fn connector_to(&self, key: Fingerprint) -> Result<RegionConnector, LinkError> {
        match self {
            Self::Tls { identity, .. } => RegionConnector::of(identity, key),
            #[cfg(feature = "simulated")]
            Self::Simulated(roads) => Ok(RegionConnector::Simulated(roads.clone(), key)),
        }
    }

    /// Takes connections from where this region listens.
    pub(crate) fn acceptor(&self, listen_socket: ListenSocket) -> Acceptor {
        match (self, listen_socket) {
            (Self::Tls { answering, .. }, ListenSocket::Tcp(socket)) => {
                Acceptor::Tls(socket, answering.clone().into())
            }
            #[cfg(feature = "simulated")]
            (Self::Simulated(_), ListenSocket::Simulated(door)) => Acceptor::Simulated(door),
            #[cfg(feature = "simulated")]
            _ => panic!("a region listens where it speaks"),
        }
    }

    #[cfg(test)]
    pub(crate) fn answering(&self) -> &Arc<ServerConfig> {
        match self {
            Self::Tls { answering, .. } => answering,
            #[cfg(feature = "simulated")]
            Self::Simulated(_) => panic!("it has no TLS"),
        }
    }
}

/// Sends requests over one connection.
pub(crate) type Sender = SendRequest<Full<Bytes>>;

/// The way to a region with a certain key.
#[derive(Debug, Clone)]
pub(crate) enum RegionConnector {
    Tls(Arc<ClientConfig>),
    #[cfg(feature = "simulated")]
    Simulated(Arc<dyn SimulatedLinks>, Fingerprint),
}

impl From<Arc<ClientConfig>> for RegionConnector {
    fn from(tls: Arc<ClientConfig>) -> Self {
        Self::Tls(tls)
    }
}

impl RegionConnector {
    pub(crate) fn of(identity: &Identity, key: Fingerprint) -> Result<Self, LinkError> {
        tls::client(identity, key).map(Self::Tls)
    }

    /// Connects, and verifies the key of the other end.
    pub(crate) async fn open(&self, address: &Address) -> io::Result<(Sender, SessionSecret)> {
        match self {
            Self::Tls(tls) => {
                let tcp = TcpStream::connect(address.as_str()).await?;
                tcp.set_nodelay(true)?;
                let connector = TlsConnector::from(tls.clone());
                let stream = connector.connect(no_name(), WriteTimeout::new(tcp)).await?;
                let secret = session_secret(stream.get_ref().1).map_err(io::Error::other)?;
                Ok((sender_over(stream).await?, secret))
            }
            #[cfg(feature = "simulated")]
            Self::Simulated(roads, key) => {
                let (stream, shown) = roads.open(address).await?;
                if shown != *key {
                    return Err(wrong_key());
                }
                Ok((sender_over(WriteTimeout::new(stream)).await?, SESSION))
            }
        }
    }
}

/// Begins to speak HTTP over a stream.
async fn sender_over<S>(stream: S) -> io::Result<Sender>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let shaken = handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await;
    let (sender, connection) = shaken.map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a region broke");
        }
    });
    Ok(sender)
}

/// Where a region listens.
#[derive(Debug)]
pub enum ListenSocket {
    /// At a socket.
    Tcp(TcpListener),
    /// At a place of a simulation.
    #[cfg(feature = "simulated")]
    Simulated(Box<dyn SimulatedListener>),
}

impl From<TcpListener> for ListenSocket {
    fn from(socket: TcpListener) -> Self {
        Self::Tcp(socket)
    }
}

impl ListenSocket {
    /// The address that it is bound to.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(socket) => socket.local_addr(),
            #[cfg(feature = "simulated")]
            Self::Simulated(door) => Ok(door.address()),
        }
    }
}

/// Where connections come from.
pub(crate) enum Acceptor {
    Tls(TcpListener, TlsAcceptor),
    #[cfg(feature = "simulated")]
    Simulated(Box<dyn SimulatedListener>),
}

impl Acceptor {
    pub(crate) async fn accept(&mut self) -> io::Result<(Arrived, SocketAddr)> {
        match self {
            Self::Tls(socket, tls) => {
                let (tcp, address) = socket.accept().await?;
                Ok((Arrived::Tls(tcp, tls.clone()), address))
            }
            #[cfg(feature = "simulated")]
            Self::Simulated(door) => {
                let (stream, key, address) = door.next().await;
                Ok((Arrived::Simulated(stream, key), address))
            }
        }
    }
}

/// A connection that came.
pub(crate) enum Arrived {
    Tls(TcpStream, TlsAcceptor),
    /// With the key of the caller.
    #[cfg(feature = "simulated")]
    Simulated(BoxedStream, Fingerprint),
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) key: Fingerprint,
    pub(crate) session: SessionSecret,
}

/// A connection whose caller is known by its key.
pub(crate) enum AcceptedStream {
    Tls(Box<TlsStream<WriteTimeout<TcpStream>>>),
    #[cfg(feature = "simulated")]
    Simulated(WriteTimeout<BoxedStream>),
}

impl Arrived {
    pub(crate) async fn shake_hands(
        self,
        is_compressed: Arc<AtomicBool>,
    ) -> io::Result<(AcceptedStream, Caller)> {
        match self {
            Self::Tls(tcp, tls) => {
                tcp.set_nodelay(true)?;
                let stream = tls.accept(WriteTimeout::of(tcp, is_compressed)).await?;
                let session = stream.get_ref().1;
                let shown = session.peer_certificates().and_then(<[_]>::first);
                let shown = shown.ok_or_else(|| io::Error::other("no certificate was shown"))?;
                let key = Fingerprint::of(shown).map_err(io::Error::other)?;
                let session = session_secret(session).map_err(io::Error::other)?;
                Ok((AcceptedStream::Tls(Box::new(stream)), Caller { key, session }))
            }
            #[cfg(feature = "simulated")]
            Self::Simulated(stream, key) => {
                let stream = WriteTimeout::of(stream, is_compressed);
                Ok((AcceptedStream::Simulated(stream), Caller { key, session: SESSION }))
            }
        }
    }
}
