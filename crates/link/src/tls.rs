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

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ConnectionCommon, DigitallySignedStruct, DistinguishedName,
    Error as TlsError, ServerConfig, SignatureScheme,
};

use crate::ciphers::provider;
use crate::error::LinkError;
use crate::identity::{Fingerprint, Identity};
use crate::token::SessionSecret;

/// The protocol, as TLS names it.
pub(crate) const PROTOCOL: &[u8] = b"larder-region-1";

/// Configuration for connections to the region with this key.
pub(crate) fn client(
    identity: &Identity,
    other: Fingerprint,
) -> Result<Arc<ClientConfig>, LinkError> {
    let provider = Arc::new(provider());
    let by_key = Arc::new(ByKey { wanted: Some(other), provider: provider.clone() });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(by_key)
        .with_client_auth_cert(vec![identity.certificate()], identity.key())
        .map_err(unusable)?;
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}

/// Configuration for connections of any caller that has a key.
pub(crate) fn server(identity: &Identity) -> Result<Arc<ServerConfig>, LinkError> {
    let provider = Arc::new(provider());
    let by_key = Arc::new(ByKey { wanted: None, provider: provider.clone() });
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(by_key)
        .with_single_cert(vec![identity.certificate()], identity.key())
        .map_err(unusable)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}

/// A name, as TLS wants one; neither end looks at it.
pub(crate) fn no_name() -> ServerName<'static> {
    ServerName::try_from("region.larder.internal").expect("a DNS name")
}

/// The value of a session that binds proofs to it.
pub(crate) fn session_secret<T>(session: &ConnectionCommon<T>) -> Result<SessionSecret, TlsError> {
    session.export_keying_material([0; 32], b"EXPORTER-larder-region-join-1", None)
}

fn unusable(error: TlsError) -> LinkError {
    LinkError::Key(error.to_string())
}

/// Verifies the other end's key. The handshake's signature shows that it has the key.
#[derive(Debug)]
struct ByKey {
    /// The key that it must have; `None` for any, where the request handler decides afterwards.
    wanted: Option<Fingerprint>,
    provider: Arc<CryptoProvider>,
}

impl ByKey {
    fn verify(&self, certificate: &CertificateDer<'_>) -> Result<(), TlsError> {
        let shown = Fingerprint::of(certificate)?;
        match self.wanted {
            Some(wanted) if wanted != shown => {
                Err(TlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
            }
            _ => Ok(()),
        }
    }

    fn signed(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }
}

fn not_spoken() -> Result<HandshakeSignatureValid, TlsError> {
    Err(TlsError::General("TLS 1.2 is not spoken".into()))
}

impl ServerCertVerifier for ByKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        self.verify(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        not_spoken()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.signed(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for ByKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        true
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        self.verify(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        not_spoken()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.signed(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
