//! The thread that owns a manager's state. For each batch of inputs it writes once, then shows the map and sends the effects.
//!
//! It blocks on the disk on purpose: while a write is under way a member of the quorum may do nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_env::FileLock;
use larder_net::{Endpoint, Responder, SendError};
use larder_protocol::limits::LEADER_SILENT_MS;
use larder_protocol::manager::policy::{ManagerMessage, ServerMessage};
use larder_protocol::manager::quorum::QuorumMessage;
use larder_protocol::manager::state::{Command, ServerRole};
use larder_types::ServerId;
use larder_types::codec::encode;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::counts::{ManagerCounts, QuorumStatus};
use super::error::ManagerError;
use super::maps::{Published, Publisher};
use super::member::{Member, MemberEffect};
use crate::inbox::InboxReceiver;
use crate::limits::{MANAGER_BATCH_MAX, MANAGER_TICK_EARLY_MS, MANAGER_TICK_MS};
use crate::managers::Contacts;
use crate::peers::Peers;
use crate::wire::{
    Beat, DataMessage, DataService, ManagerMessageIn, ManagerService, MetaMessage, MetaService,
    ProxyMessage, ProxyService,
};

/// The responder of a proposal or of a question that waits for its outcome.
pub(super) type Requester = Responder<ManagerService>;

/// An input of a manager from outside.
pub(super) enum Input {
    /// A message of another manager, in this version of the protocol.
    Peer(ServerId, u8, QuorumMessage),
    /// A message of a server, on this route.
    Server(ServerId, ServerMessage, Route),
    /// The beat of a meta server, in this version of the protocol, for the servers of its process.
    Beat(ServerId, u8, Beat),
    /// A message of the leading manager, to be forwarded to this server.
    HandedBack(ServerId, ManagerMessage),
    /// A command to be agreed on.
    Propose(Command, Requester),
    /// A question for the committed version of the map.
    Committed(Requester),
}

/// The route of a server's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// It came from the server, in this version of the protocol.
    Direct(u8),
    /// This manager forwarded it.
    HandedOn(ServerId),
}

/// The last turn of the thread in which it knew of a leader. A thread that hangs in a write takes no turn.
#[derive(Debug, Default)]
pub(super) struct LedAt(Mutex<Option<Instant>>);

impl LedAt {
    pub(super) fn note(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    /// Returns true if that was less than [`LEADER_SILENT_MS`] ago.
    pub(super) fn is_led(&self) -> bool {
        let late = Duration::from_millis(LEADER_SILENT_MS);
        self.0.lock().is_some_and(|at| at.elapsed() < late)
    }
}

/// The state of a manager's thread.
pub(super) struct Driver {
    pub(super) member: Member<Requester>,
    pub(super) inbox: InboxReceiver<Input>,
    pub(super) out: PeerConnections,
    pub(super) maps: Publisher,
    pub(super) quorum_status: watch::Sender<QuorumStatus>,
    pub(super) led: Arc<LedAt>,
    pub(super) counts: Arc<ManagerCounts>,
    pub(super) stopping: Arc<AtomicBool>,
    /// The directory is this manager's until the thread ends.
    pub(super) lock: Option<FileLock>,
}

impl Driver {
    /// Runs until the manager is stopped or cannot go on.
    pub(super) fn run(mut self) -> Result<(), ManagerError> {
        let began = Instant::now();
        let mut tick_at = began;
        while !self.stopping.load(Ordering::Acquire) {
            let (mut next, mut taken) = (self.inbox.take_until(tick_at), 0);
            // Read after the input came, so that no lease counts from before its request.
            self.member.set_now(began.elapsed().as_millis() as u64);
            while let Some(input) = next {
                self.take(input)?;
                taken += 1;
                next = (taken < MANAGER_BATCH_MAX).then(|| self.inbox.take()).flatten();
                self.member.set_now(began.elapsed().as_millis() as u64);
            }
            let now = Instant::now();
            if now + Duration::from_millis(MANAGER_TICK_EARLY_MS) >= tick_at {
                self.member.tick()?;
                tick_at = now + Duration::from_millis(MANAGER_TICK_MS);
            }
            self.member.write()?;
            self.publish();
            if self.member.is_led() {
                self.led.note();
            }
            self.counts.show(taken as u64, &self.member.status());
            self.send();
        }
        drop(self.lock);
        Ok(())
    }

    fn take(&mut self, input: Input) -> Result<(), ManagerError> {
        match input {
            Input::Peer(from, version, message) => {
                self.member.note_version(from, version);
                self.member.peer(from, message)
            }
            Input::Server(from, message, Route::Direct(version)) => {
                if let Some(boot) = message.boot() {
                    self.member.note_server_version(from, boot, version);
                }
                self.member.receive(from, message, None)
            }
            Input::Server(from, message, Route::HandedOn(by)) => {
                self.member.receive(from, message, Some(by))
            }
            Input::Beat(from, version, beat) => self.member.beat(from, version, beat),
            Input::HandedBack(to, message) => {
                self.out.to_server(&self.maps.newest(), to, message);
                Ok(())
            }
            Input::Propose(command, requester) => self.member.propose(&command, requester),
            Input::Committed(requester) => self.member.ask_committed(requester),
        }
    }

    /// Shows map and status if they have changed, but no map older than the log with which this run began. It runs before answers
    /// leave, so that an asker that got the outcome of a command finds it in the map here.
    fn publish(&self) {
        let shown = self.maps.newest().map.version;
        if self.member.map().version != shown && self.member.is_current() {
            self.maps.publish(self.member.map().clone());
        }
        self.quorum_status.send_if_modified(|shown| {
            let quorum_status = self.member.quorum_status();
            let changed = quorum_status != *shown;
            *shown = quorum_status;
            changed
        });
    }

    fn send(&mut self) {
        let map = self.maps.newest();
        for effect in self.member.effects() {
            match effect {
                MemberEffect::Send(to, message) => self.out.to_manager(&map, to, &message),
                MemberEffect::Tell(to, message) => self.out.to_server(&map, to, message),
                MemberEffect::HandOn(leader, from, message) => {
                    let message = ManagerMessageIn::HandedOn(from, message);
                    self.out.hand(&map, leader, &message, &Bytes::new());
                }
                MemberEffect::HandBack(by, to, message) => {
                    let message = ManagerMessageIn::HandedBack(to, message);
                    self.out.hand(&map, by, &message, &Bytes::new());
                }
                MemberEffect::Answer(requester, reply) => {
                    let reply = reply.in_version(requester.version());
                    requester.answer(&reply, Bytes::new());
                }
            }
        }
    }
}

/// Connections to all servers. Any message may be lost: senders repeat what must arrive.
pub(super) struct PeerConnections {
    managers: Arc<Contacts>,
    metas: Peers<MetaService>,
    datas: Peers<DataService>,
    proxies: Peers<ProxyService>,
}

impl PeerConnections {
    pub(super) fn new(endpoint: &Arc<Endpoint>, managers: Arc<Contacts>) -> Self {
        let (metas, datas) = (Peers::new(endpoint), Peers::new(endpoint));
        Self { managers, metas, datas, proxies: Peers::new(endpoint) }
    }

    fn to_manager(&self, map: &Published, to: ServerId, message: &QuorumMessage) {
        self.hand(map, to, &ManagerMessageIn::Peer, &encode(message).into());
    }

    fn hand(&self, map: &Published, to: ServerId, message: &ManagerMessageIn, payload: &Bytes) {
        let sent = self.managers.send(&map.map, to, message, payload);
        note(to, sent);
    }

    /// Sends a message to the first role of a server that takes managers' messages.
    fn to_server(&self, map: &Published, to: ServerId, message: ManagerMessage) {
        let Some(record) = map.map.servers.get(&to) else { return };
        let has = |role| record.roles.contains(&role);
        let map = &map.map;
        let sent = if has(ServerRole::Meta) {
            let peer = self.metas.of(map, to);
            peer.map(|peer| peer.send(&MetaMessage::Manager(message), Bytes::new()))
        } else if has(ServerRole::Data) {
            let peer = self.datas.of(map, to);
            peer.map(|peer| peer.send(&DataMessage::Manager(message), Bytes::new()))
        } else if has(ServerRole::Proxy) {
            let peer = self.proxies.of(map, to);
            peer.map(|peer| peer.send(&ProxyMessage::Manager(message), Bytes::new()))
        } else {
            // A server that is a manager alone needs no message: it has the map.
            None
        };
        note(to, sent.unwrap_or(Ok(())));
    }
}

fn note(to: ServerId, sent: Result<(), SendError>) {
    match sent {
        Ok(()) => {}
        Err(error @ SendError::TooLong) => {
            tracing::error!(%to, %error, "a message to another manager cannot be encoded");
        }
        Err(error) => tracing::debug!(%to, %error, "a message to another manager was not sent"),
    }
}
