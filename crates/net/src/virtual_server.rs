//! One server behind a port: authenticates callers, and serves those who may call.
//!
//! # Invariants
//!
//! 1. No caller reaches a handler whose certificate was not verified, whose cluster is another, or who has none
//!    of the roles that may call the service. Every refusal is counted, and logged with address and reason unless one for
//!    that reason was logged just before.
//! 2. A server that was removed from the cluster reaches no handler either, but those that were added with
//!    [`Services::with_removed`]. Its other connections are closed when the endpoint hears of the removal.

use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::sync::Arc;

use larder_identity::tls::{Configs, ENROLMENT, STREAMS};
use larder_identity::{Enrolment, Role, Roles, Subject};
use tokio::io::DuplexStream;
use tokio::time::timeout;

use crate::connection::{Broken, Wire, run};
use crate::endpoint::{Endpoint, Security};
use crate::error::{Denied, Refused};
use crate::handshake::{
    AcceptedConnection, Handshake, in_time, offers_protocol, refused, subject_of,
};
use crate::hello;
use crate::join;
use crate::limits::CONNECT_TIME_MAX;
use crate::metrics::{ConnectionSide, Metrics, Opened};
use crate::service::{Handler, PeerIdentity, Serve, Served, Service};
use crate::serving::Serving;
use crate::stream::{Stream, StreamHandler, StreamOffer, Streaming};
use crate::watched::Watched;

/// The services of a listener, and the servers that may call them.
#[derive(Default)]
pub struct Services {
    served: Vec<Offer>,
    streams: Option<StreamOffer>,
    enrolment: Option<Enrolment>,
}

struct Offer {
    role: Role,
    callers: Roles,
    /// True if servers that were removed from the cluster are served too.
    tells_removed: bool,
    serve: Arc<dyn Serve>,
}

impl Services {
    /// No services.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves one role's service to servers that have one of these roles.
    #[must_use]
    pub fn with<S: Service>(self, callers: Roles, handler: impl Handler<S>) -> Self {
        self.offer(callers, false, handler)
    }

    /// As [`Services::with`], but serves servers that were removed from the cluster too, so that they learn of the removal.
    /// The handler decides what they may ask.
    #[must_use]
    pub fn with_removed<S: Service>(self, callers: Roles, handler: impl Handler<S>) -> Self {
        self.offer(callers, true, handler)
    }

    fn offer<S: Service>(
        mut self,
        callers: Roles,
        tells_removed: bool,
        handler: impl Handler<S>,
    ) -> Self {
        let serve = Arc::new(Served::<S, _>::new(handler));
        self.served.push(Offer { role: S::ROLE, callers, tells_removed, serve });
        self
    }

    /// Serves streams of one role to servers that have one of these roles.
    #[must_use]
    pub fn with_streams(mut self, role: Role, callers: Roles, handler: impl StreamHandler) -> Self {
        self.streams = Some(StreamOffer { role, callers, handler: Arc::new(handler) });
        self
    }

    /// Lets servers join, and renew their certificates.
    #[must_use]
    pub fn with_enrolment(mut self, enrolment: Enrolment) -> Self {
        self.enrolment = Some(enrolment);
        self
    }

    fn find(&self, number: u8, caller: &Subject) -> Result<&Offer, Denied> {
        let role = role_named(number)?;
        let Some(offer) = self.served.iter().find(|offer| offer.role == role) else {
            return Err(Denied::by_us(Refused::NoService, format!("no {role} is served here")));
        };
        if !offer.callers.meets(caller.roles) {
            let why = format!("{caller} may not call {role}, only {} may", offer.callers);
            return Err(Denied::by_us(Refused::WrongRole, why));
        }
        Ok(offer)
    }
}

/// One server behind a port: the state that all its accepted connections share.
pub(crate) struct VirtualServer {
    endpoint: Arc<Endpoint>,
    services: Services,
    /// True once all its connections are to end.
    closing: Watched<bool>,
}

impl VirtualServer {
    pub(crate) fn new(endpoint: Arc<Endpoint>, services: Services) -> Arc<Self> {
        Arc::new(Self { endpoint, services, closing: Watched::default() })
    }

    /// Ends all its connections, also those that are accepted later.
    pub(crate) fn close(&self) {
        self.closing.set(true);
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        self.endpoint.metrics()
    }

    /// The server, until its certificate expires.
    pub(crate) fn subject(&self) -> Option<Subject> {
        self.endpoint.subject()
    }

    /// Returns true if the name in a client's hello (SNI) is this server's.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        match self.endpoint.security() {
            Security::Tls(credentials) => credentials.configs().is_named(name),
            #[cfg(feature = "plain-for-measurement")]
            Security::Plain(_) => true,
            #[cfg(feature = "simulated")]
            Security::Simulated(_) => true,
        }
    }

    /// Returns true if the name is one of a server of the same cluster.
    pub(crate) fn is_beside(&self, name: &str) -> bool {
        match self.endpoint.security() {
            Security::Tls(credentials) => credentials.configs().is_beside(name),
            #[cfg(feature = "plain-for-measurement")]
            Security::Plain(_) => true,
            #[cfg(feature = "simulated")]
            Security::Simulated(_) => true,
        }
    }

    /// Returns true if servers join here.
    pub(crate) fn enrols(&self) -> bool {
        self.services.enrolment.is_some()
    }

    /// Returns true if connections begin with TLS.
    #[cfg(feature = "plain-for-measurement")]
    pub(crate) fn is_secure(&self) -> bool {
        matches!(self.endpoint.security(), Security::Tls(_))
    }

    /// Serves a server of this process, which is authenticated without TLS (`local.rs`).
    pub(crate) async fn serve_local(
        self: Arc<Self>,
        (pipe, from): (DuplexStream, Subject),
        address: SocketAddr,
    ) {
        match in_time(self.shake_hands(AcceptedConnection::Local(pipe, from), address)).await {
            Ok(Some(admitted)) => self.serve(admitted, address).await,
            Ok(None) => {}
            Err(Broken::Denied(denied)) => refused(self.metrics(), address, &denied),
            // The caller gave up before the handshake was over.
            Err(broken) => tracing::debug!(%address, %broken, "a handshake broke"),
        }
    }

    /// Serves until the connection ends or the listener is dropped.
    pub(crate) async fn serve(&self, admitted: Admitted, address: SocketAddr) {
        self.metrics().accepted.add(1);
        match admitted {
            Admitted::Calls(wire, serving) => self.answer(*wire, serving, address).await,
            Admitted::Stream(from, streaming) => self.stream(from, streaming).await,
        }
    }

    /// Serves a stream. It ends without a word if its caller is not served any more: words would be bytes of it.
    async fn stream(&self, from: PeerIdentity, streaming: Streaming) {
        let denied = tokio::select! {
            biased;
            denied = self.endpoint.removal(from.subject.server) => denied,
            denied = poll_fn(|_| self.endpoint.outdated(from.version)) => denied,
            () = self.closing.until(|closing| *closing) => return,
            () = streaming => return,
        };
        self.metrics().refuse(denied.reason);
        let reason = denied.reason.name();
        tracing::warn!(%from, reason, %denied, "a stream was closed");
    }

    async fn answer(&self, mut wire: Wire, mut serving: Serving, address: SocketAddr) {
        let open = Opened::new(self.metrics());
        let (counts, version) = (serving.ends_with(), wire.version());
        let removed = async {
            match counts {
                Some(server) => self.endpoint.removal(server).await,
                None => pending().await,
            }
        };
        let broken = tokio::select! {
            // A removed server is served nothing more, however much it sends.
            biased;
            denied = removed => Broken::Denied(denied),
            denied = poll_fn(|_| self.endpoint.outdated(version)) => Broken::Denied(denied),
            () = self.closing.until(|closing| *closing) => Broken::Unused,
            broken = run(&mut wire, &mut serving) => broken,
        };
        if let Broken::Denied(denied) = &broken {
            self.metrics().refuse(denied.reason);
            let reason = denied.reason.name();
            tracing::warn!(%address, reason, %denied, "a connection was closed");
            // The connection ends whether or not the peer hears the reason.
            drop(timeout(CONNECT_TIME_MAX, hello::refuse(&mut wire, denied)).await);
        }
        drop(open);
        self.metrics().broken.add(1);
        tracing::debug!(%address, %broken, "a connection ended");
    }

    /// Authenticates the caller and finds the service that it asks for; `None` if it asked for a certificate, which was
    /// answered.
    pub(crate) async fn shake_hands(
        &self,
        begun: AcceptedConnection,
        address: SocketAddr,
    ) -> Result<Option<Admitted>, Broken> {
        let mut streams = None;
        let (mut wire, subject) = match (self.endpoint.security(), begun) {
            (Security::Tls(credentials), AcceptedConnection::Tls(begun)) => {
                let configs = credentials.configs();
                streams =
                    self.services.streams.as_ref().filter(|_| offers_protocol(&begun, STREAMS));
                match self.authenticate(*begun, address, &configs).await? {
                    Some(known) => known,
                    None => return Ok(None),
                }
            }
            (Security::Tls(_), AcceptedConnection::Local(pipe, from)) => {
                (Wire::local(pipe, self.metrics().clone()), from)
            }
            #[cfg(feature = "plain-for-measurement")]
            (Security::Plain(subject), AcceptedConnection::Plain(tcp)) => {
                (Wire::new(Box::new(tcp), self.metrics().clone()), *subject)
            }
            #[cfg(feature = "simulated")]
            (Security::Simulated(_), AcceptedConnection::Simulated(pipe, subject)) => {
                (Wire::new(pipe, self.metrics().clone()), subject)
            }
            #[cfg(any(feature = "plain-for-measurement", feature = "simulated"))]
            _ => {
                return Err(Broken::Denied(Denied::by_us(
                    Refused::Garbage,
                    "it is not secured".into(),
                )));
            }
        };
        let asked = hello::asked(&mut wire, self.endpoint.supported_versions()).await;
        if let Some(offer) = streams {
            return self.admit_stream(offer, asked, (wire, subject, address)).await.map(Some);
        }
        let found = asked.and_then(|(version, service)| {
            let offer = self.services.find(service, &subject).map_err(Broken::Denied)?;
            if !offer.tells_removed {
                self.endpoint.admit(subject.server).map_err(Broken::Denied)?;
            }
            Ok((version, service, offer))
        });
        match found {
            Ok((version, service, offer)) => {
                hello::welcome(&mut wire, version, service).await?;
                wire.carries(Role::from_number(service), ConnectionSide::Serves);
                let from = PeerIdentity { subject, address, version };
                let serve = offer.serve.clone();
                let (metrics, ping_schedule) =
                    (self.metrics().clone(), self.endpoint.ping_schedule());
                let ends_with = (!offer.tells_removed).then_some(subject.server);
                let serving = Serving::new((from, ends_with), serve, (metrics, ping_schedule));
                Ok(Some(Admitted::Calls(Box::new(wire), serving)))
            }
            Err(broken) => Err(refuse(&mut wire, broken).await),
        }
    }

    /// Admits who asks for a stream, and hands it to its handler.
    async fn admit_stream(
        &self,
        offer: &StreamOffer,
        asked: Result<(u8, u8), Broken>,
        (mut wire, subject, address): (Wire, Subject, SocketAddr),
    ) -> Result<Admitted, Broken> {
        let found = asked.and_then(|(version, service)| {
            offer.admit(service, &subject).map_err(Broken::Denied)?;
            self.endpoint.admit(subject.server).map_err(Broken::Denied)?;
            Ok(version)
        });
        let version = match found {
            Ok(version) => version,
            Err(broken) => return Err(refuse(&mut wire, broken).await),
        };
        hello::welcome(&mut wire, version, offer.role.number()).await?;
        let stream = Stream::behind(wire, self.metrics(), (offer.role, ConnectionSide::Serves))?;
        let from = PeerIdentity { subject, address, version };
        Ok(Admitted::Stream(from, offer.handler.serve(from, stream)))
    }

    async fn authenticate(
        &self,
        begun: Handshake,
        address: SocketAddr,
        configs: &Configs,
    ) -> Result<Option<(Wire, Subject)>, Broken> {
        if let (true, Some(enrolment)) =
            (offers_protocol(&begun, ENROLMENT), &self.services.enrolment)
        {
            let tls = begun.into_stream(configs.enrolment.clone()).await?;
            join::serve(enrolment, tls, address, self.metrics()).await?;
            return Ok(None);
        }
        let config = match self.services.streams.is_some() && offers_protocol(&begun, STREAMS) {
            true => &configs.streams,
            false => &configs.calls,
        };
        let tls = begun.into_stream(config.clone()).await?;
        let subject = subject_of(tls.get_ref().1.peer_certificates())?;
        if subject.cluster != configs.subject.cluster {
            let why = format!("{subject} is of another cluster");
            return Err(Broken::Denied(Denied::by_us(Refused::UnknownAuthority, why)));
        }
        Ok(Some((Wire::new(Box::new(tls), self.metrics().clone()), subject)))
    }
}

/// A caller that was admitted, with what it wants.
pub(crate) enum Admitted {
    Calls(Box<Wire>, Serving),
    Stream(PeerIdentity, Streaming),
}

/// Tells a caller why it is refused.
async fn refuse(wire: &mut Wire, broken: Broken) -> Broken {
    if let Broken::Denied(denied) = &broken {
        // It changes nothing if the peer does not hear the reason.
        drop(hello::refuse(wire, denied).await);
    }
    broken
}

/// The role that a caller asks for by its number.
fn role_named(number: u8) -> Result<Role, Denied> {
    Role::from_number(number).ok_or_else(|| {
        Denied::by_us(Refused::NoService, format!("no role has the number {number}"))
    })
}
