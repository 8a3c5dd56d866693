//! Custom verifiers of certificates, for connections on which an authority and a name do not decide.
//!
//! # Invariants
//!
//! 1. A judge decides about the certificate alone. The handshake's signature, which shows that the other end has the
//!    certificate's key, is verified as on any connection.
//! 2. TLS 1.3 alone.

use std::fmt::Debug;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error as TlsError, SignatureScheme};

use crate::ciphers::provider;

/// Decides about the certificate that the other end shows.
pub trait CertificatePolicy: Debug + Send + Sync + 'static {
    /// Accepts a certificate, shown with these others, or refuses it.
    ///
    /// # Errors
    /// The reason for refusing it.
    fn judge(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), TlsError>;
}

/// A verifier for either end, which demands a certificate and accepts those that the judge accepts.
#[derive(Debug)]
pub struct PolicyVerifier<J> {
    judge: J,
    provider: CryptoProvider,
}

impl<J: CertificatePolicy> PolicyVerifier<J> {
    /// A verifier with this judge.
    #[must_use]
    pub fn by(judge: J) -> Arc<Self> {
        Arc::new(Self { judge, provider: provider() })
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

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn unsupported_version() -> Result<HandshakeSignatureValid, TlsError> {
    Err(TlsError::General("TLS 1.2 is not spoken".into()))
}

impl<J: CertificatePolicy> ServerCertVerifier for PolicyVerifier<J> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        self.judge.judge(end_entity, intermediates, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        unsupported_version()
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
        self.schemes()
    }
}

impl<J: CertificatePolicy> ClientCertVerifier for PolicyVerifier<J> {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        true
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        self.judge.judge(end_entity, intermediates, now).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        unsupported_version()
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
        self.schemes()
    }
}
