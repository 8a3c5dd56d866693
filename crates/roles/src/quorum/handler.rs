//! What a manager answers to whom. Maps are answered here, on the connection's task; all else goes to the thread
//! that owns the manager's state.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use larder_net::{Handler, PeerIdentity, Responder, Role};
use larder_protocol::manager::quorum::QuorumMessage;
use larder_protocol::manager::state::{Command, MapVersion, NewServer};
use larder_types::codec::decode;
use tokio::sync::watch;
use tokio::time::timeout;

use super::driver::Input;
use super::maps::Published;
use super::tokens::Issuer;
use crate::limits::MAP_WAIT_MS;
use crate::wire::{ManagerCall, ManagerMessageIn, ManagerReply, ManagerService};

/// See the module's head.
pub(super) struct Desk {
    pub(super) inbox: SyncSender<Input>,
    pub(super) maps: watch::Receiver<Arc<Published>>,
    /// The founder's.
    pub(super) issuer: Option<Arc<Issuer>>,
}

impl Handler<ManagerService> for Desk {
    fn request(
        &self,
        from: &PeerIdentity,
        request: ManagerCall,
        _: Bytes,
        responder: Responder<ManagerService>,
    ) {
        match request {
            ManagerCall::Map(known) => answer_map(self.maps.clone(), known, responder),
            ManagerCall::Propose(command) => self.propose(command, responder),
            ManagerCall::IssueToken(server, expires_ms) => {
                if !from.subject.roles.has(Role::Manager) {
                    tracing::warn!(%from, "only a manager may ask for join tokens");
                    let why = Bytes::from_static(b"only a manager may ask for join tokens");
                    responder.answer(&ManagerReply::NotIssued, why);
                } else if let Some(issuer) = &self.issuer {
                    let expires = expires_ms.map(|ms| UNIX_EPOCH + Duration::from_millis(ms));
                    tokio::spawn(issue(issuer.clone(), *server, expires, responder));
                } else {
                    responder.answer(&ManagerReply::NotFounder, Bytes::new());
                }
            }
        }
    }

    fn message(&self, from: &PeerIdentity, message: ManagerMessageIn, payload: Bytes) {
        let subject = from.subject;
        let manager = subject.roles.has(Role::Manager);
        let input = match message {
            ManagerMessageIn::Server(message) => Input::Server(subject.server, message, true),
            ManagerMessageIn::HandedOn(server, message) if manager => {
                Input::Server(server, message, false)
            }
            ManagerMessageIn::Peer if manager => {
                match decode::<QuorumMessage>("a message of a manager", &payload) {
                    Ok(message) => Input::Peer(subject.server, message),
                    Err(error) => {
                        tracing::warn!(%from, %error, "a message was not understood");
                        return;
                    }
                }
            }
            ManagerMessageIn::HandedOn(..) | ManagerMessageIn::Peer => {
                tracing::warn!(%from, "only managers may say this");
                return;
            }
        };
        // Full, or ended: messages may be lost.
        if self.inbox.try_send(input).is_err() {
            tracing::debug!(%from, "a message was dropped");
        }
    }
}

impl Desk {
    fn propose(&self, command: Command, responder: Responder<ManagerService>) {
        let (reply, input) = match self.inbox.try_send(Input::Propose(command, responder)) {
            Ok(()) => return,
            Err(TrySendError::Full(input)) => (ManagerReply::Busy, input),
            Err(TrySendError::Disconnected(input)) => (ManagerReply::NotLeader(None), input),
        };
        if let Input::Propose(_, responder) = input {
            responder.answer(&reply, Bytes::new());
        }
    }
}

async fn issue(
    issuer: Arc<Issuer>,
    server: NewServer,
    expires: Option<SystemTime>,
    responder: Responder<ManagerService>,
) {
    match issuer.issue(server, expires).await {
        Ok((server, token)) => {
            responder.answer(&ManagerReply::Issued(server), token.to_string().into());
        }
        Err(error) => {
            tracing::warn!(%error, "no join token was made");
            responder.answer(&ManagerReply::NotIssued, error.to_string().into());
        }
    }
}

/// Answers as soon as there is a newer map. As many may wait as connections have room for.
fn answer_map(
    mut maps: watch::Receiver<Arc<Published>>,
    known: MapVersion,
    responder: Responder<ManagerService>,
) {
    let newest = maps.borrow_and_update().clone();
    if newest.map.version > known {
        responder.answer(&ManagerReply::Map, newest.encoded());
        return;
    }
    tokio::spawn(async move {
        let newer = maps.wait_for(|newest| newest.map.version > known);
        let newer = match timeout(Duration::from_millis(MAP_WAIT_MS), newer).await {
            Ok(Ok(newest)) => newest.clone(),
            // The manager has stopped: without an answer the asker goes to another.
            Ok(Err(_)) => return,
            Err(_late) => return responder.answer(&ManagerReply::Unchanged, Bytes::new()),
        };
        responder.answer(&ManagerReply::Map, newer.encoded());
    });
}
