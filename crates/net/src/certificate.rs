//! A server's key, its certificate and the authority's, as they lie in one file.
//!
//! # Invariants
//!
//! 1. The three belong together: a certificate that the authority did not sign, or of another key, is refused
//!    when it is put together or loaded. Whether it is valid now is asked at each handshake.
//! 2. They are one file, so that a crash while a certificate is renewed leaves a key with its own certificate.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::CertificateError;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{Error as TlsError, RootCertStore};

use crate::authority::ServerKey;
use crate::error::IdentityError;
use crate::identity::Subject;
use crate::keyfile;
use crate::limits::RENEWAL_MARGIN;
use crate::tls::provider;

/// A certificate with the one that verifies it.
#[derive(Clone)]
pub(crate) struct Chain {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) authority: CertificateDer<'static>,
}

/// What makes a process the server that it is.
pub struct Identity {
    subject: Subject,
    key: PrivatePkcs8KeyDer<'static>,
    chain: Chain,
    valid_until: SystemTime,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("subject", &self.subject).finish_non_exhaustive()
    }
}

impl Identity {
    pub(crate) fn new(key: ServerKey, chain: Chain) -> Result<Self, IdentityError> {
        Self::together(key.private(), chain)
    }

    fn together(key: PrivatePkcs8KeyDer<'static>, chain: Chain) -> Result<Self, IdentityError> {
        let unusable = |error: TlsError| IdentityError::unusable("identity", error);
        let private = PrivateKeyDer::from(key.clone_key());
        CertifiedKey::from_der(vec![chain.certificate.clone()], private, &provider())
            .map_err(unusable)?;
        let roots = roots(&chain.authority)?;
        let valid_until = valid_until(&chain.certificate, &roots).map_err(unusable)?;
        verify(&chain.certificate, &roots, valid_until).map_err(unusable)?;
        let subject = Subject::read(&chain.certificate)?;
        let valid_until = UNIX_EPOCH + Duration::from_secs(valid_until.as_secs());
        Ok(Self { subject, key, chain, valid_until })
    }

    /// Reads one from its file.
    ///
    /// # Errors
    /// If the file cannot be read, is not private, or its parts do not belong together.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let bytes = keyfile::read(path)?;
        let mut keys = keyfile::sections::<PrivatePkcs8KeyDer<'static>>(&bytes)?;
        let mut certificates = keyfile::sections::<CertificateDer<'static>>(&bytes)?;
        match (keys.pop(), certificates.pop(), certificates.pop()) {
            (Some(key), Some(authority), Some(certificate))
                if keys.is_empty() && certificates.is_empty() =>
            {
                Self::together(key, Chain { certificate, authority })
            }
            _ => {
                let why = "it does not have one key and two certificates";
                Err(IdentityError::unusable("identity", why))
            }
        }
    }

    /// Writes it to its file, durably.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        let text = keyfile::pem("PRIVATE KEY", self.key.secret_pkcs8_der())
            + &keyfile::pem("CERTIFICATE", &self.chain.certificate)
            + &keyfile::pem("CERTIFICATE", &self.chain.authority);
        keyfile::write(path, &text)
    }

    /// Who it is.
    #[must_use]
    pub fn subject(&self) -> Subject {
        self.subject
    }

    /// When its certificate ends.
    #[must_use]
    pub fn valid_until(&self) -> SystemTime {
        self.valid_until
    }

    /// Whether it should be renewed now, while there is time to find out why it cannot be.
    #[must_use]
    pub fn renewal_due(&self, now: SystemTime) -> bool {
        now + RENEWAL_MARGIN >= self.valid_until
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from(self.key.clone_key())
    }

    pub(crate) fn chain(&self) -> &Chain {
        &self.chain
    }
}

/// What verifies certificates of this authority and of no other.
pub(crate) fn roots(
    authority: &CertificateDer<'static>,
) -> Result<Arc<RootCertStore>, IdentityError> {
    let mut roots = RootCertStore::empty();
    roots
        .add(authority.clone())
        .map_err(|error| IdentityError::unusable("authority's certificate", error))?;
    Ok(Arc::new(roots))
}

/// Whether the authority signed the certificate, and it is valid at that time.
pub(crate) fn verify(
    certificate: &CertificateDer<'_>,
    roots: &RootCertStore,
    at: UnixTime,
) -> Result<(), TlsError> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    let algorithms = provider().signature_verification_algorithms;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, &[], at, algorithms.all)
}

/// The verifier names a certificate's end when asked about a time after it: one parser of certificates
/// less, and no date that could differ from what is verified.
fn valid_until(
    certificate: &CertificateDer<'_>,
    roots: &RootCertStore,
) -> Result<UnixTime, TlsError> {
    let never = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    match verify(certificate, roots, never) {
        Err(TlsError::InvalidCertificate(CertificateError::ExpiredContext {
            not_after, ..
        })) => Ok(not_after),
        Err(error) => Err(error),
        Ok(()) => Err(TlsError::InvalidCertificate(CertificateError::BadEncoding)),
    }
}
