//! The set-up of TLS: version 1.3 alone, both sides with a certificate of the cluster's authority.
//!
//! # Invariants
//!
//! 1. Every connection verifies both certificates anew. There are no session tickets, so that none outlives an
//!    expired certificate. There is no early data, which could be replayed.
//! 2. A peer whose certificate has expired, or that has none, gets no further than [`ENROLMENT`]. There an expired
//!    certificate can be renewed, and serves for nothing else.

use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::RwLock;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error as TlsError,
    ServerConfig, SignatureScheme,
};

use crate::certificate::{Identity, roots};
use crate::ciphers::provider;
use crate::error::IdentityError;
use crate::session;
use crate::subject::{Subject, dns_name};

/// ALPN name of the protocol of calls.
pub const CALLS: &[u8] = b"larder-calls";
/// Protocol of streams, as TLS names it.
pub const STREAMS: &[u8] = b"larder-streams";
/// Protocol of joining and of renewing certificates.
pub const ENROLMENT: &[u8] = b"larder-enrolment";

/// An identity's configurations of TLS.
pub struct Configs {
    /// The server.
    pub subject: Subject,
    /// The time at which its certificate expires.
    pub valid_until: SystemTime,
    /// The certificate of its authority.
    pub authority: CertificateDer<'static>,
    /// For calls to others.
    pub client: Arc<ClientConfig>,
    /// For streams to others.
    pub streaming: Arc<ClientConfig>,
    /// For asking for another certificate.
    pub enrolling: Arc<ClientConfig>,
    /// For calls of others.
    pub calls: Arc<ServerConfig>,
    /// For streams of others.
    pub streams: Arc<ServerConfig>,
    /// For others that ask for a certificate.
    pub enrolment: Arc<ServerConfig>,
}

impl Configs {
    /// Returns true if the name in a client's hello (SNI) is this server's.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        name == dns_name(self.subject.cluster, self.subject.server)
    }

    /// Returns true if the name is one of a server of the same cluster.
    #[must_use]
    pub fn is_beside(&self, name: &str) -> bool {
        let own = dns_name(self.subject.cluster, self.subject.server);
        let cluster = |name: &str| name.split_once('.').map(|(_, cluster)| cluster.to_owned());
        cluster(name) == cluster(&own)
    }

    fn new(identity: &Identity) -> Result<Self, IdentityError> {
        let unusable = |error: TlsError| IdentityError::unusable("identity", error);
        let bad_verifier = |error| IdentityError::unusable("authority's certificate", error);
        let provider = Arc::new(provider());
        let chain = identity.chain();
        let roots = roots(&chain.authority)?;
        let servers = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(bad_verifier)?;
        let clients =
            || WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());

        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(vec![chain.certificate.clone()], identity.key())
            .map_err(unusable)?;

        let server = |verifier: Arc<dyn ClientCertVerifier>, certificates, protocol: &[u8]| {
            let config = ServerConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(&[&TLS13])?
                .with_client_cert_verifier(verifier)
                .with_single_cert(certificates, identity.key())?;
            Ok(session::server(config, protocol))
        };
        let members: Arc<dyn ClientCertVerifier> = clients().build().map_err(bad_verifier)?;
        let anybody = clients().allow_unauthenticated().build().map_err(bad_verifier)?;
        let anybody: Arc<dyn ClientCertVerifier> = Arc::new(EvenEnded(anybody));
        let own = vec![chain.certificate.clone()];
        // A joiner knows the authority by its fingerprint alone and must be shown the certificate.
        let whole = vec![chain.certificate.clone(), chain.authority.clone()];
        Ok(Self {
            subject: identity.subject(),
            valid_until: identity.valid_until(),
            authority: chain.authority.clone(),
            client: session::client(client.clone(), CALLS),
            streaming: session::client(client.clone(), STREAMS),
            enrolling: session::client(client, ENROLMENT),
            calls: server(members.clone(), own.clone(), CALLS).map_err(unusable)?,
            streams: server(members, own, STREAMS).map_err(unusable)?,
            enrolment: server(anybody, whole, ENROLMENT).map_err(unusable)?,
        })
    }
}

/// Verifies an expired client certificate as of its last moment. Machines that were off for long come back this way: they
/// still have their key, and [`Admission::renews`](crate::Admission::renews) decides whether they get a new certificate.
#[derive(Debug)]
struct EvenEnded(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for EvenEnded {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        match self.0.verify_client_cert(end_entity, intermediates, now) {
            Err(TlsError::InvalidCertificate(CertificateError::ExpiredContext {
                not_after,
                ..
            })) => self.0.verify_client_cert(end_entity, intermediates, not_after),
            decided => decided,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// A server's identity, which can be replaced while connections are open: those go on.
pub struct Credentials {
    configs: RwLock<Arc<Configs>>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("subject", &self.subject()).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Credentials with this identity.
    ///
    /// # Errors
    /// If TLS cannot use the identity.
    pub fn new(identity: &Identity) -> Result<Arc<Self>, IdentityError> {
        let configs = RwLock::new(Arc::new(Configs::new(identity)?));
        Ok(Arc::new(Self { configs }))
    }

    /// Uses a renewed certificate from now on.
    ///
    /// # Errors
    /// If TLS cannot use it, or it is another server's; the old one then stays.
    pub fn replace(&self, identity: &Identity) -> Result<(), IdentityError> {
        let (old, new) = (self.subject(), identity.subject());
        if (old.cluster, old.server) != (new.cluster, new.server) {
            let why = format!("it is of {new}, this is {old}");
            return Err(IdentityError::unusable("renewed certificate", why));
        }
        *self.configs.write() = Arc::new(Configs::new(identity)?);
        Ok(())
    }

    /// The identity of this server.
    #[must_use]
    pub fn subject(&self) -> Subject {
        self.configs.read().subject
    }

    /// The configurations of TLS for the present identity.
    #[must_use]
    pub fn configs(&self) -> Arc<Configs> {
        self.configs.read().clone()
    }
}
