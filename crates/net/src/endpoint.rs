//! One server's end of all its connections: its identity, its counts, and the way it connects. A process that is several
//! servers has an endpoint for each.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::SystemTime;

use larder_identity::{Credentials, Subject, proof, server_name};
use larder_types::ServerId;
use tokio::io::DuplexStream;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;

use crate::connection::{Broken, Duplex, PingSchedule, Wire};
use crate::error::{Denied, Refused, RefusingSide};
use crate::handshake::{buffered, in_time, subject_of};
use crate::hello::{self, SupportedVersions};
use crate::limits::{PROTOCOL_MAX, PROTOCOL_MIN};
use crate::metrics::{ConnectionSide, Metrics};
#[cfg(feature = "simulated")]
use crate::simulated::Host;
use crate::target::Target;
use crate::watched::Watched;

/// The state that the peers and the listener of one server share.
pub struct Endpoint {
    security: Security,
    metrics: Arc<Metrics>,
    runtime: Handle,
    ping_schedule: PingSchedule,
    /// Servers that were removed from the cluster: their certificates count no more.
    removed: Watched<BTreeSet<ServerId>>,
    /// Oldest version of the protocol that it still speaks: [`Endpoint::require`] raises it.
    oldest: AtomicU8,
    /// Newest version that it speaks.
    newest: u8,
    neighbours: OnceLock<LocalConnector>,
}

/// Connects an endpoint to a server of this process; `None` if the target is not in this process.
pub(crate) type LocalConnector =
    Box<dyn Fn(&Endpoint, &Target) -> Result<Option<DuplexStream>, Broken> + Send + Sync>;

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("security", &self.security).finish_non_exhaustive()
    }
}

/// The purpose of a connection, which TLS names.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Dialled {
    Calls,
    Stream,
}

/// The way in which connections are secured.
#[derive(Debug)]
pub(crate) enum Security {
    Tls(Arc<Credentials>),
    /// Not at all: every caller counts as this server.
    #[cfg(feature = "plain-for-measurement")]
    Plain(Subject),
    /// The simulated network knows each caller's identity.
    #[cfg(feature = "simulated")]
    Simulated(Host),
}

impl Endpoint {
    /// An endpoint whose connections run on the current tokio runtime.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[must_use]
    pub fn new(credentials: Arc<Credentials>) -> Arc<Self> {
        Self::with(Security::Tls(credentials), PROTOCOL_MAX)
    }

    /// Speaks no version newer than this, as an older release does: for tests of clusters of two releases.
    ///
    /// # Panics
    /// Outside of a runtime, or if this release does not speak the version.
    #[must_use]
    pub fn as_of(credentials: Arc<Credentials>, newest: u8) -> Arc<Self> {
        assert!((PROTOCOL_MIN..=PROTOCOL_MAX).contains(&newest), "a version that is spoken");
        Self::with(Security::Tls(credentials), newest)
    }

    /// One without TLS, to measure what that costs.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[cfg(feature = "plain-for-measurement")]
    #[must_use]
    pub fn plain(subject: Subject) -> Arc<Self> {
        Self::with(Security::Plain(subject), PROTOCOL_MAX)
    }

    /// One whose connections go over a simulated network.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[cfg(feature = "simulated")]
    #[must_use]
    pub fn simulated(host: Host) -> Arc<Self> {
        Self::with(Security::Simulated(host), PROTOCOL_MAX)
    }

    fn with(security: Security, newest: u8) -> Arc<Self> {
        let (metrics, runtime) = (Arc::default(), Handle::current());
        let (removed, oldest) = (Watched::default(), AtomicU8::new(PROTOCOL_MIN));
        #[cfg(feature = "simulated")]
        let is_simulated = matches!(security, Security::Simulated(_));
        #[cfg(not(feature = "simulated"))]
        let is_simulated = false;
        let ping_schedule =
            if is_simulated { PingSchedule::begin() } else { PingSchedule::of_process() };
        let neighbours = OnceLock::new();
        Arc::new(Self {
            security,
            metrics,
            runtime,
            ping_schedule,
            removed,
            oldest,
            newest,
            neighbours,
        })
    }

    /// The counts of what its connections did.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Refuses these servers from now on, whatever their certificates say, and closes all connections from and to them.
    /// Until this is called, certificates alone decide.
    pub fn refuse_removed(&self, servers: BTreeSet<ServerId>) {
        self.removed.set(servers);
    }

    /// Speaks no version of the protocol older than this from now on. It refuses peers that speak older ones alone, and
    /// closes connections made in an older version; both sides may make them anew. A version once required is never
    /// lowered.
    pub fn require(&self, oldest: u8) {
        self.oldest.fetch_max(oldest, Ordering::AcqRel);
    }

    /// Refuses a server that was removed.
    pub(crate) fn admit(&self, server: ServerId) -> Result<(), Denied> {
        if self.removed.is(|all| all.contains(&server)) { Err(removed(server)) } else { Ok(()) }
    }

    /// Returns when the server is removed.
    pub(crate) async fn removal(&self, server: ServerId) -> Denied {
        self.removed.until(|all| all.contains(&server)).await;
        removed(server)
    }

    /// Ready with the reason once a connection of this version of the protocol must end. It wakes nobody: the task that
    /// moves the connection's frames polls it before each turn. So no frame is taken after [`Self::require`], and an idle
    /// connection ends at its next ping.
    pub(crate) fn outdated(&self, version: u8) -> Poll<Denied> {
        let oldest = self.oldest.load(Ordering::Acquire);
        if version >= oldest {
            return Poll::Pending;
        }
        let why = format!("the cluster's version is {oldest} by now, this connection's {version}");
        Poll::Ready(Denied { by: RefusingSide::Us, reason: Refused::Version, why: why.into() })
    }

    /// The oldest and the newest version of the protocol that it speaks.
    pub(crate) fn supported_versions(&self) -> SupportedVersions {
        SupportedVersions { oldest: self.oldest.load(Ordering::Acquire), newest: self.newest }
    }

    pub(crate) fn security(&self) -> &Security {
        &self.security
    }

    /// The server whose endpoint this is, until its certificate expires.
    pub(crate) fn subject(&self) -> Option<Subject> {
        match &self.security {
            Security::Tls(credentials) => {
                let configs = credentials.configs();
                (configs.valid_until > SystemTime::now()).then_some(configs.subject)
            }
            #[cfg(any(feature = "plain-for-measurement", feature = "simulated"))]
            _ => None,
        }
    }

    /// Connects to servers of this process in this way, from the next connection on.
    pub(crate) fn set_local_connector(&self, connect: LocalConnector) {
        // It is set once: an endpoint belongs to one server, which has one port.
        drop(self.neighbours.set(connect));
    }

    pub(crate) fn ping_schedule(&self) -> PingSchedule {
        self.ping_schedule
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Connects to the target, and verifies that it is this server, has the role and serves it.
    pub(crate) async fn connect(&self, target: &Target) -> Result<Wire, Broken> {
        let connecting = async {
            self.admit(target.server).map_err(Broken::Denied)?;
            let neighbour = self.neighbours.get().map(|connect| connect(self, target));
            let mut wire = match neighbour.transpose()?.flatten() {
                Some(pipe) => Wire::local(pipe, self.metrics.clone()),
                None => Wire::new(self.dial(target, Dialled::Calls).await?, self.metrics.clone()),
            };
            hello::call(&mut wire, target.role, self.supported_versions()).await?;
            wire.carries(Some(target.role), ConnectionSide::Asks);
            Ok(wire)
        };
        in_time(connecting).await
    }

    pub(crate) async fn dial(
        &self,
        target: &Target,
        what: Dialled,
    ) -> Result<Box<dyn Duplex>, Broken> {
        #[cfg(feature = "simulated")]
        if let Security::Simulated(host) = &self.security {
            return Ok(Box::new(host.connect(target).await?));
        }
        let tcp = TcpStream::connect(&target.address).await?;
        tcp.set_nodelay(true)?;
        self.secure(tcp, target, what).await
    }

    async fn secure(
        &self,
        tcp: TcpStream,
        target: &Target,
        what: Dialled,
    ) -> Result<Box<dyn Duplex>, Broken> {
        match &self.security {
            Security::Tls(credentials) => {
                let configs = credentials.configs();
                let name = server_name(configs.subject.cluster, target.server);
                let config = match what {
                    Dialled::Calls => &configs.client,
                    Dialled::Stream => &configs.streaming,
                };
                let connector = TlsConnector::from(config.clone());
                let tls = connector.connect(name, buffered(tcp)).await?;
                let subject = subject_of(tls.get_ref().1.peer_certificates())?;
                if !subject.roles.has(target.role) {
                    let why = format!("{subject} has not the role {}", target.role);
                    return Err(Broken::Denied(Denied::by_us(Refused::WrongRole, why)));
                }
                Ok(Box::new(tls))
            }
            #[cfg(feature = "plain-for-measurement")]
            Security::Plain(_) => Ok(Box::new(tcp)),
            #[cfg(feature = "simulated")]
            Security::Simulated(_) => unreachable!("it dials no TCP"),
        }
    }

    /// Random bits for the spread of retries, not for secrets; `None` if the system gives none.
    pub(crate) fn draw(&self) -> Option<u16> {
        #[cfg(feature = "simulated")]
        if let Security::Simulated(host) = &self.security {
            return Some(host.draw() as u16);
        }
        proof::random().map(u16::from_le_bytes).ok()
    }
}

fn removed(server: ServerId) -> Denied {
    Denied::by_us(Refused::Removed, format!("server {server} was removed from the cluster"))
}
