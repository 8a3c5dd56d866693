//! Certificates for servers that join, and new ones for members: what is asked and told, and what both ends decide.
//!
//! The joiner verifies the cluster first: the server's certificate must be a manager's, signed by an
//! authority whose certificate has the fingerprint in the token. Only then it speaks. It proves with an
//! HMAC under the token's secret that it has the token. The HMAC is of a value that TLS derives from this
//! one session (RFC 8446, 7.5), of the token's id and of the key that it wants signed.
//!
//! # Invariants
//!
//! 1. The secret is never sent. A proof is of no use in another session, because both ends put fresh
//!    randomness into the value, nor for another key. Nor is it of use to an attacker in between, who has
//!    no session with the same value at both sides.
//! 2. A certificate is signed for the server id and the roles that the token's record, or the certificate that
//!    is renewed, has; nothing that the joiner says changes them.

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
use crate::verifier::{Judge, Judged};

/// The register of servers that may join and stay: kept by the managers.
pub trait Admission: Send + Sync + 'static {
    /// The token with this id.
    ///
    /// # Errors
    /// [`Refusal::Token`] if it is unknown or revoked; [`Refusal::NotNow`] if nobody can tell yet.
    fn token(&self, id: TokenId) -> Result<TokenRecord, Refusal>;
    /// Refuses to renew this server's certificate, or allows it.
    ///
    /// # Errors
    /// [`Refusal::NotRenewed`] if the cluster has removed it; [`Refusal::NotNow`] if nobody can tell yet.
    fn renews(&self, subject: &Subject) -> Result<(), Refusal>;
}

/// The authority of a manager, once it has it.
pub type AuthorityCell = Arc<OnceLock<Authority>>;

/// The things that a manager needs to let servers join.
pub struct Enrolment {
    authority: AuthorityCell,
    admission: Box<dyn Admission>,
    life: Duration,
}

impl Enrolment {
    /// Signs with this authority, as soon as it is there, for those whom `admission` knows. Certificates are valid for
    /// `life`.
    #[must_use]
    pub fn new(authority: AuthorityCell, admission: impl Admission, life: Duration) -> Self {
        Self { authority, admission: Box::new(admission), life }
    }

    /// Decides what is asked for in this session, by the server that showed this certificate, if any.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn decide(
        &self,
        asked: &Asked,
        session: &SessionSecret,
        known: Option<Subject>,
    ) -> Result<(ServerId, Roles, PublicKey), Refusal> {
        match asked {
            Asked::Join { token, key, proof } => {
                let record = self.admission.token(*token)?;
                if !record.proves(session, key, proof) {
                    return Err(Refusal::Token);
                }
                if record.expired(SystemTime::now()) {
                    return Err(Refusal::Expired);
                }
                Ok((record.server(), record.roles(), *key))
            }
            Asked::Renew { key } => {
                let subject = known.ok_or(Refusal::NotRenewed)?;
                self.admission.renews(&subject)?;
                Ok((subject.server, subject.roles, *key))
            }
        }
    }

    /// Signs a server's key.
    pub fn sign(
        &self,
        (server, roles, key): (ServerId, Roles, PublicKey),
        address: SocketAddr,
    ) -> Told {
        let Some(authority) = self.authority.get() else {
            tracing::warn!(%address, %server, "this manager has not the authority's key yet, and signs nothing");
            return Told::Refused(Refusal::NotNow);
        };
        match authority.sign(server, roles, &key, Validity::for_the_next(self.life)) {
            Ok(certificate) => {
                tracing::info!(%address, %server, %roles, "a server was given a certificate");
                Told::Signed { certificate: certificate.to_vec() }
            }
            Err(error) => {
                tracing::error!(%address, %server, %error, "a certificate could not be signed");
                Told::Refused(Refusal::NotNow)
            }
        }
    }
}

/// A question of a joiner; grows by variants.
#[derive(Debug, Serialize, Deserialize)]
pub enum Asked {
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

/// An answer to a joiner; grows by variants.
#[derive(Debug, Serialize, Deserialize)]
pub enum Told {
    /// The certificate.
    Signed {
        /// As DER.
        certificate: Vec<u8>,
    },
    /// There is none.
    Refused(Refusal),
}

/// The value of a session that proofs are bound to.
///
/// # Errors
/// If the handshake is not over.
pub fn session_secret<T>(session: &ConnectionCommon<T>) -> Result<SessionSecret, TlsError> {
    session::secret(session, b"EXPORTER-larder-join-1")
}

/// TLS for a joiner: speaks to a manager of the token's cluster and to nobody else.
///
/// # Errors
/// If TLS cannot be set up.
pub fn joining(token: &JoinToken) -> Result<Arc<ClientConfig>, TlsError> {
    let config = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Judged::by(Pinned { token: token.clone() }))
        .with_no_client_auth();
    Ok(session::client(config, ENROLMENT))
}

/// The authority that the token names, of the certificates that a server shows.
#[must_use]
pub fn find_authority<'a>(
    chain: &'a [CertificateDer<'a>],
    token: &JoinToken,
) -> Option<&'a CertificateDer<'a>> {
    chain.iter().find(|certificate| fingerprint(certificate) == *token.authority())
}

/// Accepts a manager of the token's cluster and nobody else.
#[derive(Debug)]
struct Pinned {
    token: JoinToken,
}

impl Judge for Pinned {
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
