//! A server's key, its certificate and the authority's certificate, which are one file.
//!
//! # Invariants
//!
//! 1. The three belong together: a certificate that the authority did not sign, or of another key, is refused
//!    when an identity is made or loaded. Each handshake checks that the certificate is valid now.
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

use crate::ciphers::provider;
use crate::error::IdentityError;
use crate::key::{PublicKey, ServerKey};
use crate::key_file;
use crate::limits::{CLOCK_MARGIN, RENEWAL_PART, WARNING_PART};
use crate::subject::Subject;

/// A server's certificate with the authority's, which verifies it.
#[derive(Clone)]
pub(crate) struct Chain {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) authority: CertificateDer<'static>,
}

/// The certificate and key that make a process the server that it is.
pub struct Identity {
    subject: Subject,
    key: PrivatePkcs8KeyDer<'static>,
    chain: Chain,
    valid_from: SystemTime,
    valid_until: SystemTime,
}

/// A key that waits for its certificate, which a manager signs. The private half leaves only into an [`Identity`].
pub struct IdentityRequest(ServerKey);

impl IdentityRequest {
    /// Draws a key.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn new() -> Result<Self, IdentityError> {
        ServerKey::new().map(Self)
    }

    /// The key that is to be signed.
    #[must_use]
    pub fn key(&self) -> PublicKey {
        self.0.public()
    }

    /// Makes an identity of the key, the certificate that a manager signed for it, and the authority's, both DER.
    ///
    /// # Errors
    /// If they do not belong together.
    pub fn complete(
        self,
        certificate: Vec<u8>,
        authority: Vec<u8>,
    ) -> Result<Identity, IdentityError> {
        let (certificate, authority) = (certificate.into(), authority.into());
        Identity::new(self.0, Chain { certificate, authority })
    }
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
        let (from, until) = validity(&chain.certificate, &roots).map_err(unusable)?;
        verify(&chain.certificate, &roots, until).map_err(unusable)?;
        let subject = Subject::read(&chain.certificate)?;
        let [valid_from, valid_until] =
            [from, until].map(|time| UNIX_EPOCH + Duration::from_secs(time.as_secs()));
        Ok(Self { subject, key, chain, valid_from, valid_until })
    }

    /// Reads one from its file.
    ///
    /// # Errors
    /// If the file cannot be read, is not private, or its parts do not belong together.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let bytes = key_file::read(path)?;
        let mut keys = key_file::sections::<PrivatePkcs8KeyDer<'static>>(&bytes)?;
        let mut certificates = key_file::sections::<CertificateDer<'static>>(&bytes)?;
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
        let text = key_file::pem("PRIVATE KEY", self.key.secret_pkcs8_der())
            + &key_file::pem("CERTIFICATE", &self.chain.certificate)
            + &key_file::pem("CERTIFICATE", &self.chain.authority);
        key_file::write(path, &text)
    }

    /// The server that the certificate names.
    #[must_use]
    pub fn subject(&self) -> Subject {
        self.subject
    }

    /// The time at which its certificate expires.
    #[must_use]
    pub fn valid_until(&self) -> SystemTime {
        self.valid_until
    }

    /// Returns true if it should be renewed now: enough of its life is left to find out why renewing fails.
    #[must_use]
    pub fn renewal_due(&self, now: SystemTime) -> bool {
        now >= self.renewal_at()
    }

    /// The time from which it should be renewed: a third of its life is left.
    #[must_use]
    pub fn renewal_at(&self) -> SystemTime {
        self.valid_until - self.life() / RENEWAL_PART
    }

    /// The time from which an operator should be warned that it was not renewed.
    #[must_use]
    pub fn warning_at(&self) -> SystemTime {
        self.valid_until - self.life() / WARNING_PART
    }

    /// The life that its authority gave it, without the margin for clocks that are behind.
    fn life(&self) -> Duration {
        let whole = self.valid_until.duration_since(self.valid_from).unwrap_or_default();
        whole.saturating_sub(CLOCK_MARGIN)
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from(self.key.clone_key())
    }

    pub(crate) fn chain(&self) -> &Chain {
        &self.chain
    }
}

/// The trust anchors that verify certificates of this authority and of no other.
pub(crate) fn roots(
    authority: &CertificateDer<'static>,
) -> Result<Arc<RootCertStore>, IdentityError> {
    let mut roots = RootCertStore::empty();
    roots
        .add(authority.clone())
        .map_err(|error| IdentityError::unusable("authority's certificate", error))?;
    Ok(Arc::new(roots))
}

/// Verifies that the authority signed the certificate, and that it is valid at that time.
pub(crate) fn verify(
    certificate: &CertificateDer<'_>,
    roots: &RootCertStore,
    at: UnixTime,
) -> Result<(), TlsError> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    let algorithms = provider().signature_verification_algorithms;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, &[], at, algorithms.all)
}

/// The beginning and end of a certificate's validity. The verifier names them when it is asked about a time outside. That saves
/// a parser of certificates, and the dates are those that are verified.
fn validity(
    certificate: &CertificateDer<'_>,
    roots: &RootCertStore,
) -> Result<(UnixTime, UnixTime), TlsError> {
    use CertificateError::{ExpiredContext, NotValidYetContext};
    let outside = |at| match verify(certificate, roots, UnixTime::since_unix_epoch(at)) {
        Err(TlsError::InvalidCertificate(
            ExpiredContext { not_after: bound, .. } | NotValidYetContext { not_before: bound, .. },
        )) => Ok(bound),
        Err(error) => Err(error),
        Ok(()) => Err(TlsError::InvalidCertificate(CertificateError::BadEncoding)),
    };
    Ok((outside(Duration::ZERO)?, outside(Duration::from_secs(u64::MAX))?))
}

#[cfg(test)]
mod tests;
