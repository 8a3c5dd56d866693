//! TLS between regions: version 1.3 alone, both ends with a certificate, each known by its key.
//!
//! # Invariants
//!
//! 1. The caller speaks only with the region whose key it expects. The answering region decides after the handshake, by
//!    the caller's key, what it may ask ([`crate::requests`]). Both ends prove in the handshake that they have their key.
//! 2. Names and dates of certificates are not looked at. A certificate is signed by its own key, whose owner could
//!    write any date. A key ends when its region is removed from the list, which the request handler looks at for each request.
//! 3. Every connection is verified anew: no tickets, and no early data, which could be replayed.

use std::sync::Arc;

use larder_identity::ciphers::provider;
use larder_identity::session::{self, SessionSecret};
use larder_identity::verifier::{CertificatePolicy, PolicyVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, ConnectionCommon, Error as TlsError, ServerConfig};

use crate::error::LinkError;
use crate::identity::{Fingerprint, Identity};

/// The protocol, as TLS names it.
pub(crate) const PROTOCOL: &[u8] = b"larder-region-1";

/// Configuration for connections to the region with this key.
pub(crate) fn client(
    identity: &Identity,
    other: Fingerprint,
) -> Result<Arc<ClientConfig>, LinkError> {
    let by_key = PolicyVerifier::by(ByKey { wanted: Some(other) });
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(by_key)
        .with_client_auth_cert(vec![identity.certificate()], identity.key())
        .map_err(unusable)?;
    config.enable_sni = false;
    Ok(session::client(config, PROTOCOL))
}

/// Configuration for connections of any caller that has a key.
pub(crate) fn server(identity: &Identity) -> Result<Arc<ServerConfig>, LinkError> {
    let by_key = PolicyVerifier::by(ByKey { wanted: None });
    let config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(by_key)
        .with_single_cert(vec![identity.certificate()], identity.key())
        .map_err(unusable)?;
    Ok(session::server(config, PROTOCOL))
}

/// A name, as TLS wants one; neither end looks at it.
pub(crate) fn no_name() -> ServerName<'static> {
    ServerName::try_from("region.larder.internal").expect("a DNS name")
}

/// The value of a session that binds proofs to it.
pub(crate) fn session_secret<T>(session: &ConnectionCommon<T>) -> Result<SessionSecret, TlsError> {
    session::secret(session, b"EXPORTER-larder-region-join-1")
}

fn unusable(error: TlsError) -> LinkError {
    LinkError::Key(error.to_string())
}

/// Goes by the other end's key. The handshake's signature shows that it has the key.
#[derive(Debug)]
struct ByKey {
    /// The key that it must have; `None` for any, where the request handler decides afterwards.
    wanted: Option<Fingerprint>,
}

impl CertificatePolicy for ByKey {
    fn judge(
        &self,
        certificate: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<(), TlsError> {
        let shown = Fingerprint::of(certificate)?;
        match self.wanted {
            Some(wanted) if wanted != shown => {
                Err(TlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
            }
            _ => Ok(()),
        }
    }
}
