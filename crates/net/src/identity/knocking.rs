//! TLS between machines that belong to nobody yet: certificates prove nothing, and are not looked at.
//!
//! Both ends have the same [`PeerSecret`](super::PeerSecret). Each proves it with an HMAC of a value that TLS derives
//! from this one session (RFC 8446, 7.5) and of what it says. An attacker in between has two sessions with different
//! values, and no proof that holds in both.

use std::fmt::Display;
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ConnectionCommon, DigitallySignedStruct, Error as TlsError, ServerConfig,
    SignatureScheme,
};

use super::ciphers::provider;
use super::error::IdentityError;
use super::token::SessionSecret;

/// Protocol of knocking, as TLS names it.
pub(crate) const KNOCKING: &[u8] = b"larder-knock";

/// Whom a knocker asks for: nobody in particular.
const ANYBODY: &str = "anybody.larder.internal";

/// The name that a knocker asks for.
pub(crate) fn anybody() -> ServerName<'static> {
    ServerName::try_from(ANYBODY).expect("a DNS name")
}

/// The value of a session that proofs are bound to.
pub(crate) fn session_secret<T>(session: &ConnectionCommon<T>) -> Result<SessionSecret, TlsError> {
    session.export_keying_material([0; 32], b"EXPORTER-larder-knock-1", None)
}

/// A doorkeeper's end, with a certificate that is made for the occasion.
pub(crate) fn doorkeeper() -> Result<ServerConfig, IdentityError> {
    let unusable = |error: &dyn Display| IdentityError::unusable("knocking", error);
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(|_none| IdentityError::Random)?;
    let params = CertificateParams::new(vec![ANYBODY.to_owned()]);
    let certificate = params.and_then(|params| params.self_signed(&key));
    let certificate = certificate.map_err(|error| unusable(&error))?.into();
    let key = PrivatePkcs8KeyDer::from(key.serialized_der().to_vec());
    let config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])
        .map(|config| config.with_no_client_auth())
        .and_then(|config| config.with_single_cert(vec![certificate], key.into()));
    let mut config = config.map_err(|error| unusable(&error))?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![KNOCKING.to_vec()];
    Ok(config)
}

/// A knocker's end.
pub(crate) fn knocker() -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(provider());
    let anybody = Arc::new(Anybody { provider: provider.clone() });
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let mut config =
        config?.dangerous().with_custom_certificate_verifier(anybody).with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![KNOCKING.to_vec()];
    Ok(config)
}

/// Takes any certificate: the proofs tell who is there. That its owner holds its key is verified all the same.
#[derive(Debug)]
struct Anybody {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(TlsError::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
