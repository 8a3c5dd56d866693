//! Takes connections, finds out who is there, and serves those who may call.
//!
//! # Invariants
//!
//! 1. Nobody gets to a handler whose certificate was not verified, whose cluster is another, or who has none
//!    of the roles that may call the service. Every refusal is logged with address and reason, and counted.
//! 2. Handshakes are bounded in number and time, so that those who never finish one do not use up memory.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::LazyConfigAcceptor;

use crate::connection::{Broken, Wire, run};
use crate::endpoint::{Endpoint, Security, buffered, by_us, in_time, role_named, subject_of};
use crate::error::Denied;
use crate::hello;
use crate::identity::{PeerIdentity, Role, Roles, Subject};
use crate::join::{self, Enrolment};
use crate::limits::{ACCEPT_PAUSE, CONNECTIONS_MAX, HANDSHAKES_MAX};
use crate::metrics::{Metrics, Opened, Refused};
use crate::service::{Handler, Serve, Served, Service};
use crate::serving::Serving;
use crate::tls::{Configs, ENROLMENT};

/// What a listener serves, and to whom.
#[derive(Default)]
pub struct Services {
    served: Vec<Offer>,
    enrolment: Option<Enrolment>,
}

struct Offer {
    role: Role,
    callers: Roles,
    serve: Arc<dyn Serve>,
}

impl Services {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves one role's service to servers that have one of these roles.
    #[must_use]
    pub fn with<S: Service>(mut self, callers: Roles, handler: impl Handler<S>) -> Self {
        let serve = Arc::new(Served::<S, _>::new(handler));
        self.served.push(Offer { role: S::ROLE, callers, serve });
        self
    }

    /// Lets servers join, and renew their certificates.
    #[must_use]
    pub fn with_enrolment(mut self, enrolment: Enrolment) -> Self {
        self.enrolment = Some(enrolment);
        self
    }

    fn find(&self, number: u8, caller: &Subject) -> Result<Arc<dyn Serve>, Denied> {
        let role = role_named(number)?;
        let Some(offer) = self.served.iter().find(|offer| offer.role == role) else {
            return Err(by_us(Refused::NoService, format!("no {role} is served here")));
        };
        if !offer.callers.meets(caller.roles) {
            let why = format!("{caller} may not call {role}, only {} may", offer.callers);
            return Err(by_us(Refused::WrongRole, why));
        }
        Ok(offer.serve.clone())
    }
}

/// An open port. Dropping it closes all its connections.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener {
    /// Serves what comes to this socket.
    ///
    /// # Errors
    /// If the socket has no address.
    pub fn start(
        endpoint: &Arc<Endpoint>,
        socket: TcpListener,
        services: Services,
    ) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let house = Arc::new(House { endpoint: endpoint.clone(), services });
        let task = endpoint.runtime().spawn(accept(house, socket));
        Ok(Self { address, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// What all connections of a listener share.
struct House {
    endpoint: Arc<Endpoint>,
    services: Services,
}

async fn accept(house: Arc<House>, socket: TcpListener) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = handshakes.clone().acquire_owned().await else { return };
        let (tcp, address) = match socket.accept().await {
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
            house.refused(address, &by_us(Refused::TooMany, why));
            continue;
        }
        connections.spawn(house.clone().serve(tcp, address, permit));
    }
}

impl House {
    fn metrics(&self) -> &Arc<Metrics> {
        self.endpoint.metrics()
    }

    fn refused(&self, address: SocketAddr, denied: &Denied) {
        self.metrics().refuse(denied.reason);
        let reason = denied.reason.name();
        tracing::warn!(%address, reason, %denied, "a connection was refused");
    }

    async fn serve(
        self: Arc<Self>,
        tcp: TcpStream,
        address: SocketAddr,
        permit: OwnedSemaphorePermit,
    ) {
        let shaken = in_time(self.shake_hands(tcp, address)).await;
        drop(permit);
        match shaken {
            Ok(Some((mut wire, mut serving))) => {
                self.metrics().accepted.add(1);
                let open = Opened::new(self.metrics());
                let broken = run(&mut wire, &mut serving).await;
                drop(open);
                self.metrics().broken.add(1);
                tracing::debug!(%address, %broken, "a connection ended");
            }
            Ok(None) => {}
            Err(Broken::Denied(denied)) => self.refused(address, &denied),
            Err(Broken::Frame(error)) => {
                self.refused(address, &by_us(Refused::Garbage, error.to_string()));
            }
            Err(Broken::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
                self.refused(address, &by_us(Refused::Late, "the handshake took too long".into()));
            }
            // Whoever only looks whether the port is open.
            Err(broken) => tracing::debug!(%address, %broken, "a handshake broke"),
        }
    }

    /// Finds out who is there and what is wanted; `None` if that was done at once.
    async fn shake_hands(
        &self,
        tcp: TcpStream,
        address: SocketAddr,
    ) -> Result<Option<(Wire, Serving)>, Broken> {
        tcp.set_nodelay(true)?;
        let (mut wire, subject) = match self.endpoint.security() {
            Security::Tls(credentials) => {
                let configs = credentials.configs();
                match self.authenticate(tcp, address, &configs).await? {
                    Some(known) => known,
                    None => return Ok(None),
                }
            }
            #[cfg(feature = "plain-for-measurement")]
            Security::Plain(subject) => {
                (Wire::new(Box::new(tcp), self.metrics().clone()), *subject)
            }
        };
        let asked = hello::asked(&mut wire).await;
        let found = asked.and_then(|(version, service)| {
            let serve = self.services.find(service, &subject).map_err(Broken::Denied)?;
            Ok((version, service, serve))
        });
        match found {
            Ok((version, service, serve)) => {
                hello::welcome(&mut wire, version, service).await?;
                let from = PeerIdentity { subject, address };
                let serving = Serving::new(from, serve, version, self.metrics().clone());
                Ok(Some((wire, serving)))
            }
            Err(Broken::Denied(denied)) => {
                // Whether it still hears the reason changes nothing.
                drop(hello::refuse(&mut wire, &denied).await);
                Err(Broken::Denied(denied))
            }
            Err(broken) => Err(broken),
        }
    }

    async fn authenticate(
        &self,
        tcp: TcpStream,
        address: SocketAddr,
        configs: &Configs,
    ) -> Result<Option<(Wire, Subject)>, Broken> {
        let acceptor = LazyConfigAcceptor::new(Default::default(), buffered(tcp));
        let begun = acceptor.await?;
        let enrols = begun
            .client_hello()
            .alpn()
            .is_some_and(|mut protocols| protocols.any(|protocol| protocol == ENROLMENT));
        if let (true, Some(enrolment)) = (enrols, &self.services.enrolment) {
            let tls = begun.into_stream(configs.enrolment.clone()).await?;
            join::serve(enrolment, tls, address, self.metrics()).await?;
            return Ok(None);
        }
        let tls = begun.into_stream(configs.calls.clone()).await?;
        let subject = subject_of(tls.get_ref().1.peer_certificates())?;
        if subject.cluster != configs.subject.cluster {
            let why = format!("{subject} is of another cluster");
            return Err(Broken::Denied(by_us(Refused::UnknownAuthority, why)));
        }
        Ok(Some((Wire::new(Box::new(tls), self.metrics().clone()), subject)))
    }
}

#[cfg(test)]
mod tests;
