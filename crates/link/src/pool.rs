//! Connections to a region, which are reused.
//!
//! # Invariants
//!
//! 1. There are at most [`CONNECTIONS_MAX`] of them; a request that finds none free waits.
//! 2. A connection is used again only when all of an answer has been read.

use std::io;
use std::sync::Arc;

use larder_identity::session::SessionSecret;
use parking_lot::Mutex;
use rustls::{AlertDescription, Error as TlsError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::error::{Later, LinkError, Refused};
use crate::limits::{CONNECT_TIME_MAX, CONNECTIONS_MAX, IDLE_MAX};
use crate::metrics::PeerMetrics;
use crate::name::Address;
use crate::transport::{RegionConnector, Sender};

/// Connects to the region to which the way leads.
pub(crate) async fn connect(
    address: &Address,
    way: &RegionConnector,
) -> Result<(Sender, SessionSecret), LinkError> {
    let unreachable = |why: String| {
        LinkError::from(Later::Unreachable { address: address.clone(), why: why.into() })
    };
    match timeout(CONNECT_TIME_MAX, way.open(address)).await {
        Err(_elapsed) => {
            Err(unreachable(format!("no connection for {} s", CONNECT_TIME_MAX.as_secs())))
        }
        Ok(Err(error)) => {
            let refused = refused(address, &error).map(LinkError::from);
            Err(refused.unwrap_or_else(|| unreachable(error.to_string())))
        }
        Ok(Ok(connected)) => Ok(connected),
    }
}

/// The refusal that ended a handshake, if the two must not speak with each other.
fn refused(address: &Address, error: &io::Error) -> Option<Refused> {
    let tls = error.get_ref()?.downcast_ref::<TlsError>()?;
    match tls {
        TlsError::InvalidCertificate(_) => Some(Refused::WrongKey(address.clone())),
        TlsError::PeerIncompatible(_)
        | TlsError::NoApplicationProtocol
        | TlsError::AlertReceived(
            AlertDescription::NoApplicationProtocol
            | AlertDescription::ProtocolVersion
            | AlertDescription::HandshakeFailure,
        ) => Some(Refused::Release(address.clone())),
        _ => None,
    }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Pool {
    address: Address,
    way: RegionConnector,
    free: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
    metrics: Arc<PeerMetrics>,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

/// A connection, counted as open.
#[derive(Debug)]
struct Connection {
    sender: Sender,
    metrics: Arc<PeerMetrics>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.metrics.open.sub(1);
    }
}

/// A connection that is in use. Dropped, it is closed.
#[derive(Debug)]
pub(crate) struct PooledConnection {
    connection: Connection,
    /// It was used before: the other end may have closed it.
    pub(crate) is_used: bool,
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

impl Pool {
    pub(crate) fn new(
        address: Address,
        way: RegionConnector,
        metrics: Arc<PeerMetrics>,
    ) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        Arc::new(Self { address, way, free, idle: Mutex::default(), metrics })
    }

    /// Takes an idle connection, or makes a new one.
    pub(crate) async fn take(self: &Arc<Self>) -> Result<PooledConnection, LinkError> {
        let permit = self.free.clone().acquire_owned().await.map_err(LinkError::broken)?;
        while let Some(mut connection) = self.idle() {
            if connection.sender.ready().await.is_ok() {
                let pool = self.clone();
                return Ok(PooledConnection { connection, is_used: true, pool, _permit: permit });
            }
        }
        let (sender, _) = connect(&self.address, &self.way).await?;
        self.metrics.connected.add(1);
        self.metrics.open.add(1);
        let connection = Connection { sender, metrics: self.metrics.clone() };
        Ok(PooledConnection { connection, is_used: false, pool: self.clone(), _permit: permit })
    }

    /// Takes the connection that was used last: others grow old and are closed.
    fn idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let last = idle.pop().map(|idle| idle.connection);
        self.close_old(&mut idle);
        last
    }

    fn close_old(&self, idle: &mut Vec<Idle>) {
        idle.retain(|idle| idle.since.elapsed() < IDLE_MAX && !idle.connection.sender.is_closed());
    }

    /// Closes connections that were idle for too long.
    pub(crate) fn tend(&self) {
        self.close_old(&mut self.idle.lock());
    }
}

impl PooledConnection {
    /// The connection's sending half.
    pub(crate) fn sender(&mut self) -> &mut Sender {
        &mut self.connection.sender
    }

    /// Returns the connection to the pool. All of the answer has been read.
    pub(crate) fn give_back(self) {
        let Self { connection, pool, _permit, .. } = self;
        let mut idle = pool.idle.lock();
        idle.push(Idle { connection, since: Instant::now() });
        assert!(idle.len() <= CONNECTIONS_MAX, "each idle connection was in use");
    }
}
