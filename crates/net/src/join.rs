//! Joining a cluster, and renewing a certificate: `docs/formats/rpc.md` has the bytes.
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
//! 3. The private key is made by the server and never leaves it.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use larder_types::ServerId;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ConnectionCommon, DigitallySignedStruct, Error as TlsError,
    SignatureScheme,
};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client, server};

use crate::authority::{Authority, PublicKey, ServerKey, Validity, fingerprint};
use crate::certificate::{Chain, Identity, roots, verify};
use crate::connection::{Broken, Duplex, Wire};
use crate::endpoint::{buffered, in_time, subject_of};
use crate::error::{Decider, JoinError, Refusal};
use crate::frame::{FrameError, Kind, Outgoing};
use crate::identity::{Role, Roles, Subject, server_name};
use crate::metrics::Metrics;
use crate::tls::{Credentials, ENROLMENT, provider};
use crate::token::{JoinToken, SessionSecret, TokenId, TokenRecord};

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
}

/// A question of a joiner; grows by variants.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Asked {
    Join { token: TokenId, key: PublicKey, proof: [u8; 32] },
    Renew { key: PublicKey },
}

/// An answer to a joiner; grows by variants.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    Signed { certificate: Vec<u8> },
    Refused(Refusal),
}

/// The value of a session that proofs are bound to.
fn session_secret<T>(session: &ConnectionCommon<T>) -> Result<SessionSecret, TlsError> {
    session.export_keying_material([0; 32], b"EXPORTER-larder-join-1", None)
}

/// Answers one request for a certificate.
pub(crate) async fn serve<S: Duplex + 'static>(
    enrolment: &Enrolment,
    tls: server::TlsStream<S>,
    address: SocketAddr,
    metrics: &Arc<Metrics>,
) -> Result<(), Broken> {
    let session = session_secret(tls.get_ref().1).map_err(std::io::Error::other)?;
    let known = match tls.get_ref().1.peer_certificates() {
        Some(chain) => Some(subject_of(Some(chain))?),
        None => None,
    };
    let mut wire = Wire::new(Box::new(tls), metrics.clone());
    let frame = wire.hear().await?;
    if frame.header.kind != Kind::Request {
        return Err(Broken::Frame(FrameError::NotDue));
    }
    let asked = frame.decode().map_err(Broken::Frame)?;
    let told = match decide(enrolment, &asked, &session, known) {
        Ok((server, roles, key)) => sign(enrolment, server, roles, &key, address),
        Err(refusal) => {
            if let Some(without_line) = metrics.refuse_joiner(refusal) {
                tracing::warn!(%address, %refusal, without_line, "a server was not given a certificate");
            }
            Told::Refused(refusal)
        }
    };
    wire.say(frame_of(Kind::Answer, &told)?).await
}

fn decide(
    enrolment: &Enrolment,
    asked: &Asked,
    session: &SessionSecret,
    known: Option<Subject>,
) -> Result<(ServerId, Roles, PublicKey), Refusal> {
    match asked {
        Asked::Join { token, key, proof } => {
            let record = enrolment.admission.token(*token)?;
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
            enrolment.admission.renews(&subject)?;
            Ok((subject.server, subject.roles, *key))
        }
    }
}

fn sign(
    enrolment: &Enrolment,
    server: ServerId,
    roles: Roles,
    key: &PublicKey,
    address: SocketAddr,
) -> Told {
    let Some(authority) = enrolment.authority.get() else {
        tracing::warn!(%address, %server, "this manager has not the authority's key yet, and signs nothing");
        return Told::Refused(Refusal::NotNow);
    };
    match authority.sign(server, roles, key, Validity::for_the_next(enrolment.life)) {
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

pub(crate) fn frame_of<T: Serialize>(kind: Kind, body: &T) -> Result<Outgoing, Broken> {
    let mut frame = Outgoing::new(kind, body, bytes::Bytes::new()).map_err(Broken::Frame)?;
    frame.address(1);
    Ok(frame)
}

/// Joins the cluster that made the token, through a manager at `host:port`. Save what comes back.
///
/// # Errors
/// [`JoinError`], by what to do.
pub async fn join(address: &str, token: &JoinToken) -> Result<Identity, JoinError> {
    let tls = connect_joining(address, token).await?;
    let session = session_secret(tls.get_ref().1).map_err(|e| unreachable(&e))?;
    let key = ServerKey::new()?;
    let public = key.public();
    let proof = token.prove(&session, &public);
    let asked = Asked::Join { token: token.id(), key: public, proof };
    let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
    let authority = find_authority(chain, token)
        .ok_or_else(|| JoinError::Stranger("it shows no authority".into()))?
        .clone()
        .into_owned();
    obtain(tls, asked, key, authority).await
}

/// Renews the certificate of a server that has one, through the manager with this id at `host:port`. Save what
/// comes back, then give it to [`Credentials::replace`].
///
/// # Errors
/// [`JoinError`], by what to do.
pub async fn renew(
    credentials: &Credentials,
    manager: ServerId,
    address: &str,
) -> Result<Identity, JoinError> {
    let configs = credentials.configs();
    let name = server_name(configs.subject.cluster, manager);
    let tls = connect(address, name, configs.enrolling.clone()).await?;
    let subject = subject_of(tls.get_ref().1.peer_certificates()).map_err(failed)?;
    if !subject.roles.has(Role::Manager) {
        return Err(JoinError::Stranger(format!("{subject} is no manager")));
    }
    let key = ServerKey::new()?;
    let asked = Asked::Renew { key: key.public() };
    obtain(tls, asked, key, configs.authority.clone()).await
}

pub(crate) async fn connect_joining(
    address: &str,
    token: &JoinToken,
) -> Result<client::TlsStream<impl Duplex + 'static>, JoinError> {
    let provider = Arc::new(provider());
    let pinned = Pinned { token: token.clone(), provider: provider.clone() };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| unreachable(&e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(pinned))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![ENROLMENT.to_vec()];
    // The verifier goes by the authority and the role; which manager it is does not matter.
    let name = ServerName::try_from("manager.larder.internal").expect("a DNS name");
    connect(address, name, Arc::new(config)).await
}

pub(crate) async fn connect(
    address: &str,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
) -> Result<client::TlsStream<impl Duplex + 'static>, JoinError> {
    let connecting = async {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        Ok(TlsConnector::from(config).connect(name, buffered(tcp)).await?)
    };
    in_time(connecting).await.map_err(failed)
}

/// Asks, and puts what comes back together with the key.
async fn obtain<S: Duplex + 'static>(
    tls: client::TlsStream<S>,
    asked: Asked,
    key: ServerKey,
    authority: CertificateDer<'static>,
) -> Result<Identity, JoinError> {
    match in_time(ask(tls, &asked)).await.map_err(failed)? {
        Told::Signed { certificate } => {
            let certificate = CertificateDer::from(certificate);
            Ok(Identity::new(key, Chain { certificate, authority })?)
        }
        Told::Refused(refusal) => Err(JoinError::Refused(refusal)),
    }
}

async fn ask<S: Duplex + 'static>(
    tls: client::TlsStream<S>,
    asked: &Asked,
) -> Result<Told, Broken> {
    let mut wire = Wire::new(Box::new(tls), Arc::default());
    wire.say(frame_of(Kind::Request, asked)?).await?;
    let frame = wire.hear().await?;
    if frame.header.kind != Kind::Answer {
        return Err(Broken::Frame(FrameError::NotDue));
    }
    frame.decode().map_err(Broken::Frame)
}

fn failed(broken: Broken) -> JoinError {
    match broken {
        Broken::Denied(denied) if denied.by == Decider::Us => {
            JoinError::Stranger(denied.why.to_string())
        }
        other => unreachable(&other),
    }
}

fn unreachable(error: &dyn std::fmt::Display) -> JoinError {
    JoinError::Unreachable(error.to_string())
}

fn find_authority<'a>(
    chain: &'a [CertificateDer<'a>],
    token: &JoinToken,
) -> Option<&'a CertificateDer<'a>> {
    chain.iter().find(|certificate| fingerprint(certificate) == *token.authority())
}

/// Accepts a manager of the token's cluster and nobody else.
#[derive(Debug)]
struct Pinned {
    token: JoinToken,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let stranger = || TlsError::InvalidCertificate(CertificateError::UnknownIssuer);
        let authority = find_authority(intermediates, &self.token).ok_or_else(stranger)?;
        let roots = roots(&authority.clone().into_owned()).map_err(|_unusable| stranger())?;
        verify(end_entity, &roots, now)?;
        let subject = Subject::read(end_entity).map_err(|_unusable| stranger())?;
        if !subject.roles.has(Role::Manager) {
            return Err(TlsError::InvalidCertificate(
                CertificateError::ApplicationVerificationFailure,
            ));
        }
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

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
