//! Knocking: a machine that belongs to no cluster yet sends a message to the machines that it is to form a cluster with. There
//! is no certificate yet that it could verify. `docs/formats/rpc.md` has the bytes.
//!
//! Both ends prove that they have the same [`PeerSecret`], as `knocking.rs` of `larder-identity` says.
//!
//! # Invariants
//!
//! 1. A machine with another secret learns nothing but that the secrets differ.
//! 2. The knocker uses an answer only once its proof was verified.
//! 3. This module does not interpret messages: it hands their bytes on.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use larder_identity::knocking::{anybody, doorkeeper, knocker, session_secret};
use larder_identity::{IdentityError, PeerSecret, Prover};
use rustls::ServerConfig;
use serde::{Deserialize, Serialize};
use tokio_rustls::client;

use crate::connection::{Broken, Duplex, Wire};
use crate::error::{Denied, KnockError, Refused};
use crate::frame::{FrameError, Kind};
use crate::handshake::{Handshake, in_time};
use crate::join::{connect, frame_of};
use crate::metrics::Metrics;

/// A request to a doorkeeper; grows by variants at its end.
#[derive(Debug, Serialize, Deserialize)]
enum Asked {
    Knock { said: Vec<u8>, proof: [u8; 32] },
}

/// An answer of a doorkeeper; grows by variants at its end.
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
    /// A doorkeeper that has `decide` make the answers, of a knocker's address and message.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn new(
        secret: PeerSecret,
        decide: impl Fn(SocketAddr, Vec<u8>) -> Reply + Send + Sync + 'static,
    ) -> Result<Self, IdentityError> {
        Ok(Self { secret, config: doorkeeper()?, decide: Box::new(decide) })
    }

    /// Receives one knock, and answers it.
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

/// Sends a message to the doorkeeper at `host:port`, and returns the answer.
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
    let config = knocker().map_err(|error| unreachable(&error))?;
    let tls = connect(address, anybody(), config).await;
    tls.map_err(|error| unreachable(&error))
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
