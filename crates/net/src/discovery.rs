//! Discovery: a machine that belongs to no cluster yet sends a message to the machines that it is to form a cluster with. There
//! is no certificate yet that it could verify. `docs/formats/rpc.md` has the bytes.
//!
//! Both ends prove that they have the same [`PeerSecret`], as `discovery.rs` of `larder-identity` says.
//!
//! # Invariants
//!
//! 1. A machine with another secret learns nothing but that the secrets differ.
//! 2. The requester uses an answer only once its proof was verified.
//! 3. This module does not interpret messages: it hands their bytes on.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use larder_identity::discovery::{
    anybody, discovery_requester, discovery_responder, session_secret,
};
use larder_identity::{IdentityError, PeerSecret, Prover};
use rustls::ServerConfig;
use serde::{Deserialize, Serialize};
use tokio_rustls::client;

use crate::connection::{Broken, Duplex, Wire};
use crate::error::{Denied, DiscoveryError, Refused};
use crate::frame::{FrameError, Kind};
use crate::handshake::{Handshake, in_time};
use crate::join::{connect, frame_of};
use crate::metrics::Metrics;

/// A request to a responder; grows by variants at its end.
#[derive(Debug, Serialize, Deserialize)]
enum RequestBody {
    DiscoveryRequest { said: Vec<u8>, proof: [u8; 32] },
}

/// An answer of a responder; grows by variants at its end.
#[derive(Debug, Serialize, Deserialize)]
enum ReplyBody {
    Answer {
        said: Vec<u8>,
        proof: [u8; 32],
    },
    /// The proof does not hold: the requester has another secret.
    OtherSecret,
}

/// The answer of a responder to a discovery request.
pub type Reply = Pin<Box<dyn Future<Output = Vec<u8>> + Send>>;

/// Answers discovery requests at a [`Port`](crate::Port), if they have the secret.
pub struct DiscoveryResponder {
    secret: PeerSecret,
    config: Arc<ServerConfig>,
    decide: Box<dyn Fn(SocketAddr, Vec<u8>) -> Reply + Send + Sync>,
}

impl DiscoveryResponder {
    /// A responder that has `decide` make the answers, of a requester's address and message.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn new(
        secret: PeerSecret,
        decide: impl Fn(SocketAddr, Vec<u8>) -> Reply + Send + Sync + 'static,
    ) -> Result<Self, IdentityError> {
        Ok(Self { secret, config: discovery_responder()?, decide: Box::new(decide) })
    }

    /// Receives one discovery request, and answers it.
    pub(crate) async fn answer(
        &self,
        begun: Handshake,
        address: SocketAddr,
        metrics: &Arc<Metrics>,
    ) -> Result<(), Broken> {
        let tls = begun.into_stream(self.config.clone()).await?;
        let session = session_secret(tls.get_ref().1).map_err(std::io::Error::other)?;
        let mut wire = Wire::new(Box::new(tls), metrics.clone());
        let frame = wire.receive_frame().await?;
        if frame.header.kind != Kind::Request {
            return Err(Broken::Frame(FrameError::NotDue));
        }
        let RequestBody::DiscoveryRequest { said, proof } =
            frame.decode().map_err(Broken::Frame)?;
        if !self.secret.verifies(Prover::DiscoveryRequester, &session, &said, &proof) {
            wire.send_frame(frame_of(Kind::Answer, &ReplyBody::OtherSecret)?).await?;
            let why = "it used another secret than this machine's".to_owned();
            return Err(Broken::Denied(Denied::by_us(Refused::OtherSecret, why)));
        }
        let said = (self.decide)(address, said).await;
        let proof = self.secret.prove(Prover::DiscoveryResponder, &session, &said);
        wire.send_frame(frame_of(Kind::Answer, &ReplyBody::Answer { said, proof })?).await
    }
}

/// Sends a message to the responder at `host:port`, and returns the answer.
///
/// # Errors
/// [`DiscoveryError`], by what to do.
pub async fn discover(
    address: &str,
    secret: &PeerSecret,
    said: &[u8],
) -> Result<Vec<u8>, DiscoveryError> {
    let unreachable =
        |error: &dyn std::fmt::Display| DiscoveryError::Unreachable(error.to_string());
    let tls = connect_for_discovery(address).await?;
    let session = session_secret(tls.get_ref().1).map_err(|error| unreachable(&error))?;
    let proof = secret.prove(Prover::DiscoveryRequester, &session, said);
    let asking = async {
        let mut wire = Wire::new(Box::new(tls), Arc::default());
        wire.send_frame(frame_of(
            Kind::Request,
            &RequestBody::DiscoveryRequest { said: said.to_vec(), proof },
        )?)
        .await?;
        let frame = wire.receive_frame().await?;
        if frame.header.kind != Kind::Answer {
            return Err(Broken::Frame(FrameError::NotDue));
        }
        frame.decode().map_err(Broken::Frame)
    };
    match in_time(asking).await.map_err(|error| unreachable(&error))? {
        ReplyBody::Answer { said, proof } => {
            let holds = secret.verifies(Prover::DiscoveryResponder, &session, &said, &proof);
            if holds { Ok(said) } else { Err(DiscoveryError::OtherSecret) }
        }
        ReplyBody::OtherSecret => Err(DiscoveryError::OtherSecret),
    }
}

async fn connect_for_discovery(
    address: &str,
) -> Result<client::TlsStream<impl Duplex + 'static>, DiscoveryError> {
    let unreachable =
        |error: &dyn std::fmt::Display| DiscoveryError::Unreachable(error.to_string());
    let config = discovery_requester().map_err(|error| unreachable(&error))?;
    let tls = connect(address, anybody(), config).await;
    tls.map_err(|error| unreachable(&error))
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
