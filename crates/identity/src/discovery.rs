//! TLS between machines that belong to no cluster yet: their certificates prove nothing, and are not verified.
//!
//! Both ends have the same [`PeerSecret`](crate::PeerSecret). Each proves it with an HMAC of a value that TLS exports
//! from this one session (RFC 8446, 7.5) and of its message. An attacker in the middle has two sessions with different
//! values, and no proof that holds in both.

use std::fmt::Display;
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{ClientConfig, ConnectionCommon, Error as TlsError, ServerConfig};

use crate::ciphers::provider;
use crate::error::IdentityError;
use crate::session::{self, SessionSecret};
use crate::verifier::{CertificatePolicy, PolicyVerifier};

/// ALPN name of the protocol of discovery.
pub const DISCOVERY: &[u8] = b"larder-knock";

/// The server name that a requester sends: it means no server in particular.
const ANYBODY: &str = "anybody.larder.internal";

/// The server name that a requester sends.
#[must_use]
pub fn anybody() -> ServerName<'static> {
    ServerName::try_from(ANYBODY).expect("a DNS name")
}

/// The value that TLS exports from a session for discovery; proofs are bound to it.
///
/// # Errors
/// If the handshake is not over.
pub fn session_secret<T>(session: &ConnectionCommon<T>) -> Result<SessionSecret, TlsError> {
    session::secret(session, b"EXPORTER-larder-knock-1")
}

/// TLS of a responder, with a new self-signed certificate.
///
/// # Errors
/// If the system gives no randomness.
pub fn discovery_responder() -> Result<Arc<ServerConfig>, IdentityError> {
    let unusable = |error: &dyn Display| IdentityError::unusable("discovery request", error);
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(|_none| IdentityError::Random)?;
    let params = CertificateParams::new(vec![ANYBODY.to_owned()]);
    let certificate = params.and_then(|params| params.self_signed(&key));
    let certificate = certificate.map_err(|error| unusable(&error))?.into();
    let key = PrivatePkcs8KeyDer::from(key.serialized_der().to_vec());
    let config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])
        .map(|config| config.with_no_client_auth())
        .and_then(|config| config.with_single_cert(vec![certificate], key.into()));
    Ok(session::server(config.map_err(|error| unusable(&error))?, DISCOVERY))
}

/// TLS of a requester.
///
/// # Errors
/// If TLS cannot be set up.
pub fn discovery_requester() -> Result<Arc<ClientConfig>, TlsError> {
    let config = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(PolicyVerifier::by(Anybody))
        .with_no_client_auth();
    Ok(session::client(config, DISCOVERY))
}

/// Accepts any certificate: the proofs authenticate both ends.
#[derive(Debug)]
struct Anybody;

impl CertificatePolicy for Anybody {
    fn judge(
        &self,
        _certificate: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<(), TlsError> {
        Ok(())
    }
}
