//! Knocking: a machine that belongs to nobody yet speaks to those it was told to form a cluster with. It
//! does so before there is any certificate that it could believe; `docs/formats/rpc.md` has the bytes.
//!
//! Both ends have the same [`PeerSecret`]. Each proves it with an HMAC of a value that TLS derives from
//! this one session (RFC 8446, 7.5) and of what it says. An attacker in between has two sessions with
//! different values, and no proof that holds in both. So certificates are not looked at, and the
//! doorkeeper's is made for the occasion.
//!
//! # Invariants
//!
//! 1. Nobody without the secret is told anything but that.
//! 2. The knocker believes nothing before the proof that comes with it.
//! 3. What is said is of no concern here: it is handed on as it is.

use std::net::SocketAddr;
use std::pin::Pin;
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
use serde::{Deserialize, Serialize};
use tokio_rustls::client;

use crate::connection::{Broken, Duplex, Wire};
use crate::endpoint::in_time;
use crate::error::{Denied, IdentityError, KnockError, Refused};
use crate::frame::{FrameError, Kind};
use crate::join::{connect, frame_of};
use crate::metrics::Metrics;
use crate::port::Handshake;
use crate::secret::{PeerSecret, Prover};
use crate::tls::provider;
use crate::token::SessionSecret;

/// Protocol of knocking, as TLS names it.
pub(crate) const KNOCKING: &[u8] = b"larder-knock";

/// A question to a doorkeeper; grows by variants.
#[derive(Debug, Serialize, Deserialize)]
enum Asked {
    Knock { said: Vec<u8>, proof: [u8; 32] },
}

/// An answer of a doorkeeper; grows by variants.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    Answer {
        said: Vec<u8>,
        proof: [u8; 32],
    },
    /// The proof does not hold: the knocker has another secret.
    OtherSecret,
}

/// The answer of a doorkeeper to a knock.
pub type Reply = Pin<Box<dyn Future<Output = Vec<u8>> + Send>>;

/// Answers those who knock at a [`Port`](crate::Port), if they have the secret.
pub struct Doorkeeper {
    secret: PeerSecret,
    config: Arc<ServerConfig>,
    decide: Box<dyn Fn(SocketAddr, Vec<u8>) -> Reply + Send + Sync>,
}

impl Doorkeeper {
    /// `decide` is told from where somebody knocks and what was said.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn new(
        secret: PeerSecret,
        decide: impl Fn(SocketAddr, Vec<u8>) -> Reply + Send + Sync + 'static,
    ) -> Result<Self, IdentityError> {
        let unusable = |error: &dyn std::fmt::Display| IdentityError::unusable("knocking", error);
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(|_none| IdentityError::Random)?;
        let params = CertificateParams::new(vec![NAME.to_owned()]);
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
        Ok(Self { secret, config: Arc::new(config), decide: Box::new(decide) })
    }

    /// Hears one knock, and answers it.
    pub(crate) async fn answer(
        &self,
        begun: Handshake,
        address: SocketAddr,
        metrics: &Arc<Metrics>,
    ) -> Result<(), Broken> {
        let tls = begun.into_stream(self.config.clone()).await?;
        let session = session_secret(tls.get_ref().1).map_err(std::io::Error::other)?;
        let mut wire = Wire::new(Box::new(tls), metrics.clone());
        let frame = wire.hear().await?;
        if frame.header.kind != Kind::Request {
            return Err(Broken::Frame(FrameError::NotDue));
        }
        let Asked::Knock { said, proof } = frame.decode().map_err(Broken::Frame)?;
        if !self.secret.verifies(Prover::Knocker, &session, &said, &proof) {
            wire.say(frame_of(Kind::Answer, &Told::OtherSecret)?).await?;
            let why = "it knocks with another secret than this machine's".to_owned();
            return Err(Broken::Denied(Denied::by_us(Refused::OtherSecret, why)));
        }
        let said = (self.decide)(address, said).await;
        let proof = self.secret.prove(Prover::Doorkeeper, &session, &said);
        wire.say(frame_of(Kind::Answer, &Told::Answer { said, proof })?).await
    }
}

/// Says this to the server at `host:port`, and returns what is answered.
///
/// # Errors
/// [`KnockError`], by what to do.
pub async fn knock(address: &str, secret: &PeerSecret, said: &[u8]) -> Result<Vec<u8>, KnockError> {
    let unreachable = |error: &dyn std::fmt::Display| KnockError::Unreachable(error.to_string());
    let tls = connect_knocking(address).await?;
    let session = session_secret(tls.get_ref().1).map_err(|error| unreachable(&error))?;
    let proof = secret.prove(Prover::Knocker, &session, said);
    let asking = async {
        let mut wire = Wire::new(Box::new(tls), Arc::default());
        wire.say(frame_of(Kind::Request, &Asked::Knock { said: said.to_vec(), proof })?).await?;
        let frame = wire.hear().await?;
        if frame.header.kind != Kind::Answer {
            return Err(Broken::Frame(FrameError::NotDue));
        }
        frame.decode().map_err(Broken::Frame)
    };
    match in_time(asking).await.map_err(|error| unreachable(&error))? {
        Told::Answer { said, proof } => {
            let holds = secret.verifies(Prover::Doorkeeper, &session, &said, &proof);
            if holds { Ok(said) } else { Err(KnockError::OtherSecret) }
        }
        Told::OtherSecret => Err(KnockError::OtherSecret),
    }
}

async fn connect_knocking(
    address: &str,
) -> Result<client::TlsStream<impl Duplex + 'static>, KnockError> {
    let unreachable = |error: &dyn std::fmt::Display| KnockError::Unreachable(error.to_string());
    let provider = Arc::new(provider());
    let anybody = Arc::new(Anybody { provider: provider.clone() });
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let mut config = config
        .map_err(|error| unreachable(&error))?
        .dangerous()
        .with_custom_certificate_verifier(anybody)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![KNOCKING.to_vec()];
    let name = ServerName::try_from(NAME).expect("a DNS name");
    let tls = connect(address, name, Arc::new(config)).await;
    tls.map_err(|error| unreachable(&error))
}

/// Whom a knocker asks for: nobody in particular.
const NAME: &str = "anybody.larder.internal";

fn session_secret<T>(session: &ConnectionCommon<T>) -> Result<SessionSecret, TlsError> {
    session.export_keying_material([0; 32], b"EXPORTER-larder-knock-1", None)
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

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
