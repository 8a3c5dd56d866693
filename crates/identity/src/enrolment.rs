//! Certificates for servers that join, and new ones for members: the request, the answer, and what both ends decide.
//!
//! The joiner verifies the cluster first: the server's certificate must be a manager's, signed by an
//! authority whose certificate has the fingerprint in the token. Only then does it speak. It proves with an
//! HMAC under the token's secret that it has the token. The HMAC is of a value that TLS exports from this
//! one session (RFC 8446, 7.5), of the token's id and of the key that it wants signed.
//!
//! # Invariants
//!
//! 1. The secret is never sent. A proof holds for one session, because both ends put fresh randomness into the
//!    exported value, and for one key. An attacker in the middle cannot use it: the sessions with the two ends
//!    export different values.
//! 2. A certificate names the server id and the roles of the token's record, or of the certificate that
//!    is renewed; nothing that the joiner says changes them.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use larder_types::ServerId;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, ConnectionCommon, Error as TlsError};
use serde::{Deserialize, Serialize};

use crate::authority::{Authority, Validity, fingerprint};
use crate::certificate::{roots, verify};
use crate::ciphers::provider;
use crate::error::Refusal;
use crate::key::PublicKey;
use crate::proof::Proof;
use crate::session::{self, SessionSecret};
use crate::subject::{Role, Roles, Subject};
use crate::tls::ENROLMENT;
use crate::token::{JoinToken, TokenId, TokenRecord};
use crate::verifier::{CertificatePolicy, PolicyVerifier};

/// The register of servers that may join and stay: kept by the managers.
pub trait Admission: Send + Sync + 'static {
    /// The token with this id.
    ///
    /// # Errors
    /// [`Refusal::Token`] if it is unknown or revoked; [`Refusal::NotNow`] if this manager does not know yet.
    fn token(&self, id: TokenId) -> Result<TokenRecord, Refusal>;
    /// Refuses to renew this server's certificate, or allows it.
    ///
    /// # Errors
    /// [`Refusal::NotRenewed`] if the cluster has removed it; [`Refusal::NotNow`] if this manager does not know yet.
    fn renews(&self, subject: &Subject) -> Result<(), Refusal>;
}

/// The authority of a manager, once it has it.
pub type AuthorityCell = Arc<OnceLock<Authority>>;

/// The enrolment of servers at a manager: its authority, the register of tokens and members, and the life of certificates.
pub struct Enrolment {
    authority: AuthorityCell,
    admission: Box<dyn Admission>,
    life: Duration,
}

impl Enrolment {
    /// Signs with this authority, as soon as the manager has it, for servers that `admission` allows. Certificates are valid
    /// for `life`.
    #[must_use]
    pub fn new(authority: AuthorityCell, admission: impl Admission, life: Duration) -> Self {
        Self { authority, admission: Box::new(admission), life }
    }

    /// Decides a request that came in this session. `known` is the server whose certificate the caller showed, if it showed
    /// one.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn decide(
        &self,
        asked: &EnrolmentRequest,
        session: &SessionSecret,
        known: Option<Subject>,
    ) -> Result<(ServerId, Roles, PublicKey), Refusal> {
        match asked {
            EnrolmentRequest::Join { token, key, proof } => {
                let record = self.admission.token(*token)?;
                if !record.proves(session, key, proof) {
                    return Err(Refusal::Token);
                }
                if record.expired(SystemTime::now()) {
                    return Err(Refusal::Expired);
                }
                Ok((record.server(), record.roles(), *key))
            }
            EnrolmentRequest::Renew { key } => {
                let subject = known.ok_or(Refusal::NotRenewed)?;
                self.admission.renews(&subject)?;
                Ok((subject.server, subject.roles, *key))
            }
        }
    }

    /// Signs a server's key, as [`Enrolment::decide`] has granted it to the caller at `address`.
    pub fn sign(
        &self,
        (server, roles, key): (ServerId, Roles, PublicKey),
        address: SocketAddr,
    ) -> EnrolmentReply {
        let Some(authority) = self.authority.get() else {
            tracing::warn!(%address, %server, "this manager cannot sign certificates: it does not have the authority's key yet");
            return EnrolmentReply::Refused(Refusal::NotNow);
        };
        match authority.sign(server, roles, &key, Validity::for_the_next(self.life)) {
            Ok(certificate) => {
                tracing::info!(%address, %server, %roles, "a certificate was issued to a server");
                EnrolmentReply::Signed { certificate: certificate.to_vec() }
            }
            Err(error) => {
                tracing::error!(%address, %server, %error, "a certificate could not be signed");
                EnrolmentReply::Refused(Refusal::NotNow)
            }
        }
    }
}

/// A request for a certificate; grows by variants at its end.
#[derive(Debug, Serialize, Deserialize)]
pub enum EnrolmentRequest {
    /// A certificate for a server that a token names.
    Join {
        /// The token.
        token: TokenId,
        /// The key that is to be signed.
        key: PublicKey,
        /// Proves that the joiner has the token.
        proof: Proof,
    },
    /// A new certificate for the server that showed one.
    Renew {
        /// The key that is to be signed.
        key: PublicKey,
    },
}

/// The answer to a request for a certificate; grows by variants at its end.
#[derive(Debug, Serialize, Deserialize)]
pub enum EnrolmentReply {
    /// The certificate.
    Signed {
        /// As DER.
        certificate: Vec<u8>,
    },
    /// There is none.
    Refused(Refusal),
}

/// The value that TLS exports from a session for joining; proofs are bound to it.
///
/// # Errors
/// If the handshake is not over.
pub fn session_secret<T>(session: &ConnectionCommon<T>) -> Result<SessionSecret, TlsError> {
    session::secret(session, b"EXPORTER-larder-join-1")
}

/// TLS for a joiner: it connects to a manager of the token's cluster and to no other server.
///
/// # Errors
/// If TLS cannot be set up.
pub fn joining(token: &JoinToken) -> Result<Arc<ClientConfig>, TlsError> {
    let config = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(PolicyVerifier::by(Pinned { token: token.clone() }))
        .with_no_client_auth();
    Ok(session::client(config, ENROLMENT))
}

/// The certificate of the authority that the token names, among those that a server shows.
#[must_use]
pub fn find_authority<'a>(
    chain: &'a [CertificateDer<'a>],
    token: &JoinToken,
) -> Option<&'a CertificateDer<'a>> {
    chain.iter().find(|certificate| fingerprint(certificate) == *token.authority())
}

/// Accepts a manager of the token's cluster and no other server.
#[derive(Debug)]
struct Pinned {
    token: JoinToken,
}

impl CertificatePolicy for Pinned {
    fn judge(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), TlsError> {
        let stranger = || TlsError::InvalidCertificate(CertificateError::UnknownIssuer);
        let authority = find_authority(others, &self.token).ok_or_else(stranger)?;
        let roots = roots(&authority.clone().into_owned()).map_err(|_unusable| stranger())?;
        verify(certificate, &roots, now)?;
        let subject = Subject::read(certificate).map_err(|_unusable| stranger())?;
        match subject.roles.has(Role::Manager) {
            true => Ok(()),
            false => {
                Err(TlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
            }
        }
    }
}
