//! Joining a cluster, and renewing a certificate: `docs/formats/rpc.md` has the bytes.
//!
//! `enrolment.rs` of `larder-identity` decides; this module sends the request and the answer over a connection.
//!
//! # Invariants
//!
//! 1. The private key is made by the server and never leaves it.

use std::net::SocketAddr;
use std::sync::Arc;

use larder_identity::enrolment::{
    EnrolmentReply, EnrolmentRequest, find_authority, joining, session_secret,
};
use larder_identity::{
    Credentials, Enrolment, Identity, IdentityRequest, JoinToken, Role, server_name,
};
use larder_types::ServerId;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use serde::Serialize;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client, server};

use crate::connection::{Broken, Duplex, Wire};
use crate::error::{JoinError, RefusingSide};
use crate::frame::{FrameError, Kind, Outgoing};
use crate::handshake::{buffered, in_time, subject_of};
use crate::metrics::Metrics;

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
    let frame = wire.receive_frame().await?;
    if frame.header.kind != Kind::Request {
        return Err(Broken::Frame(FrameError::NotDue));
    }
    let asked = frame.decode().map_err(Broken::Frame)?;
    let decision = match enrolment.decide(&asked, &session, known) {
        Ok(granted) => enrolment.sign(granted, address),
        Err(refusal) => {
            if let Some(without_line) = metrics.refuse_joiner(refusal) {
                tracing::warn!(%address, %refusal, without_line, "a server's request for a certificate was refused");
            }
            EnrolmentReply::Refused(refusal)
        }
    };
    wire.send_frame(frame_of(Kind::Answer, &decision)?).await
}

pub(crate) fn frame_of<T: Serialize>(kind: Kind, body: &T) -> Result<Outgoing, Broken> {
    let mut frame = Outgoing::new(kind, body, bytes::Bytes::new()).map_err(Broken::Frame)?;
    frame.address(1);
    Ok(frame)
}

/// Joins the cluster that made the token, through a manager at `host:port`. The caller saves the identity.
///
/// # Errors
/// [`JoinError`], by what to do.
pub async fn join(address: &str, token: &JoinToken) -> Result<Identity, JoinError> {
    let tls = connect_joining(address, token).await?;
    let session = session_secret(tls.get_ref().1).map_err(|e| unreachable(&e))?;
    let key = IdentityRequest::new()?;
    let public = key.key();
    let proof = token.prove(&session, &public);
    let asked = EnrolmentRequest::Join { token: token.id(), key: public, proof };
    let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
    let authority = find_authority(chain, token)
        .ok_or_else(|| JoinError::Stranger("it shows no authority".into()))?
        .clone()
        .into_owned();
    obtain(tls, asked, key, authority).await
}

/// Renews the certificate of a server that has one, through the manager with this id at `host:port`. The caller saves the
/// identity, then gives it to [`Credentials::replace`].
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
    let key = IdentityRequest::new()?;
    let asked = EnrolmentRequest::Renew { key: key.key() };
    obtain(tls, asked, key, configs.authority.clone()).await
}

pub(crate) async fn connect_joining(
    address: &str,
    token: &JoinToken,
) -> Result<client::TlsStream<impl Duplex + 'static>, JoinError> {
    let config = joining(token).map_err(|e| unreachable(&e))?;
    // The verifier accepts any manager of the authority, so the name is not one server's.
    let name = ServerName::try_from("manager.larder.internal").expect("a DNS name");
    connect(address, name, config).await
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

/// Asks for a certificate, and makes an identity of it and the key.
async fn obtain<S: Duplex + 'static>(
    tls: client::TlsStream<S>,
    asked: EnrolmentRequest,
    key: IdentityRequest,
    authority: CertificateDer<'static>,
) -> Result<Identity, JoinError> {
    match in_time(ask(tls, &asked)).await.map_err(failed)? {
        EnrolmentReply::Signed { certificate } => {
            Ok(key.complete(certificate, authority.to_vec())?)
        }
        EnrolmentReply::Refused(refusal) => Err(JoinError::Refused(refusal)),
    }
}

async fn ask<S: Duplex + 'static>(
    tls: client::TlsStream<S>,
    asked: &EnrolmentRequest,
) -> Result<EnrolmentReply, Broken> {
    let mut wire = Wire::new(Box::new(tls), Arc::default());
    wire.send_frame(frame_of(Kind::Request, asked)?).await?;
    let frame = wire.receive_frame().await?;
    if frame.header.kind != Kind::Answer {
        return Err(Broken::Frame(FrameError::NotDue));
    }
    frame.decode().map_err(Broken::Frame)
}

fn failed(broken: Broken) -> JoinError {
    match broken {
        Broken::Denied(denied) if denied.by == RefusingSide::Us => {
            JoinError::Stranger(denied.why.to_string())
        }
        other => unreachable(&other),
    }
}

fn unreachable(error: &dyn std::fmt::Display) -> JoinError {
    JoinError::Unreachable(error.to_string())
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
