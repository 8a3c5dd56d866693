//! Handles requests and messages to a manager, and checks that the sender may send them. It answers with maps itself, on the
//! connection's task; proposals and messages go to the thread that owns the manager's state.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use larder_env::clock::uptime_ms;
use larder_identity::{Role, Subject};
use larder_net::{Handler, PeerIdentity, Responder};
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::quorum::QuorumMessage;
use larder_protocol::manager::state::{
    Command, MapPlace, MapVersion, NewServer, ServerRecord, ServerRole, ServerState,
};
use larder_types::ServerId;
use larder_types::codec::{decode, encode};
use tokio::time::timeout;

use super::counts::ManagerCounts;
use super::driver::{Input, LedAt, Route};
use super::maps::{Later, Maps, checks_requests};
use super::tokens::Issuer;
use crate::inbox::{Inbox, InboxError};
use crate::limits::{MAP_WAIT_MS, PROTOCOL_COMMITTED};
use crate::managers::NotIssued;
use crate::observed::Observed;
use crate::wire::{ManagerCall, ManagerMessageIn, ManagerReply, ManagerService};

/// The handler of a manager's service.
pub(super) struct ManagerHandler {
    pub(super) inbox: Inbox<Input>,
    pub(super) maps: Maps,
    pub(super) led: Arc<LedAt>,
    pub(super) issuer: Arc<Issuer>,
    pub(super) counts: Arc<ManagerCounts>,
    pub(super) observed: Arc<Observed>,
}

impl Handler<ManagerService> for ManagerHandler {
    fn request(
        &self,
        from: &PeerIdentity,
        request: ManagerCall,
        _: Bytes,
        responder: Responder<ManagerService>,
    ) {
        self.counts.requests.note_request(&request);
        match request {
            ManagerCall::Map(known) => {
                self.serve_map(from.subject, MapRequest::Whole(known), responder)
            }
            ManagerCall::MapSince { known, timeline } => {
                self.serve_map(from.subject, MapRequest::Since(known, timeline), responder);
            }
            ManagerCall::MapPage(from_place) => {
                let (maps, requester) = (self.maps.clone(), from.subject);
                tokio::spawn(answer_page(maps, Some(from_place), requester, responder));
            }
            ManagerCall::Propose(command) => {
                let subject = &from.subject;
                if may_propose(subject, &command) && !self.was_removed(subject.server) {
                    return self.put(Input::Propose(command, responder));
                }
                tracing::warn!(%from, ?command, "refused a proposal that the server may not make");
                responder.answer(&ManagerReply::NotAllowed, Bytes::new());
            }
            ManagerCall::IssueToken(server, expires_ms) => {
                let manages = from.subject.roles.has(Role::Manager);
                if !manages || self.was_removed(from.subject.server) {
                    tracing::warn!(%from, "refused a request for a join token: only managers of the cluster may ask");
                    let why = b"only a manager of the cluster may ask for join tokens";
                    let why = Bytes::from_static(why);
                    responder.answer(&ManagerReply::NotIssued, why);
                } else {
                    let expires = expires_ms.map(|ms| UNIX_EPOCH + Duration::from_millis(ms));
                    tokio::spawn(issue(self.issuer.clone(), *server, expires, responder));
                }
            }
            ManagerCall::Authority => {
                let (reply, text) = self.authority_for(from);
                responder.answer(&reply, text);
            }
            ManagerCall::Observed if self.was_removed(from.subject.server) => {
                responder.answer(&ManagerReply::NotAllowed, Bytes::new());
            }
            ManagerCall::Committed if self.was_removed(from.subject.server) => {
                responder.answer(&ManagerReply::NotAllowed, Bytes::new());
            }
            ManagerCall::Committed => self.put(Input::Committed(responder)),
            ManagerCall::Observed => {
                let now = self.observed.now(uptime_ms());
                responder.answer(&ManagerReply::Observed, encode(&now).into());
            }
        }
    }

    fn message(&self, from: &PeerIdentity, message: ManagerMessageIn, payload: Bytes) {
        self.counts.requests.note_message(&message);
        let subject = from.subject;
        let manager = subject.roles.has(Role::Manager);
        // The quorum itself decides which managers' messages count: a manager learns of its removal from the log.
        if !matches!(message, ManagerMessageIn::Peer) && self.was_removed(subject.server) {
            tracing::warn!(%from, "refused a message from a server that was removed from the cluster");
            return;
        }
        // A message that changes nothing is taken at the thread's next look at what is due, by which silence is counted too.
        let may_wait = match &message {
            ManagerMessageIn::Server(message) | ManagerMessageIn::HandedOn(_, message) => {
                matches!(message, ServerMessage::Heartbeat(_))
            }
            ManagerMessageIn::Beat(beat) => beat.heard_by.is_some(),
            ManagerMessageIn::Peer | ManagerMessageIn::HandedBack(..) => false,
        };
        let input = match message {
            ManagerMessageIn::Server(message) => {
                Input::Server(subject.server, message, Route::Direct(from.version))
            }
            ManagerMessageIn::Beat(beat) if subject.roles.has(Role::Meta) => {
                Input::Beat(subject.server, from.version, beat)
            }
            ManagerMessageIn::Beat(_) => {
                tracing::warn!(%from, "refused heartbeats for other servers: only meta servers may send them");
                return;
            }
            ManagerMessageIn::HandedOn(server, message) if manager => {
                Input::Server(server, message, Route::HandedOn(subject.server))
            }
            ManagerMessageIn::HandedBack(server, message) if manager => {
                Input::HandedBack(server, message)
            }
            ManagerMessageIn::Peer if manager => {
                match decode::<QuorumMessage>("a message of a manager", &payload) {
                    Ok(message) => Input::Peer(subject.server, from.version, message),
                    Err(error) => {
                        tracing::warn!(%from, %error, "a message cannot be decoded");
                        return;
                    }
                }
            }
            ManagerMessageIn::HandedOn(..)
            | ManagerMessageIn::HandedBack(..)
            | ManagerMessageIn::Peer => {
                tracing::warn!(%from, "refused a message that only managers may send");
                return;
            }
        };
        // The inbox is full or has ended: messages may be lost.
        let put = if may_wait { self.inbox.put_quietly(input) } else { self.inbox.put(input) };
        if put.is_err() {
            tracing::debug!(%from, "a message was dropped");
        }
    }
}

/// Returns true if a server with this certificate may propose the command. Commands of the policy do not
/// come this way.
fn may_propose(subject: &Subject, command: &Command) -> bool {
    let has = |role| subject.roles.has(role);
    match command {
        // The leading manager raises it itself, by the versions that servers speak: one that is too high would shut them out
        // for good.
        Command::RaiseClusterVersion(_) => false,
        _ if has(Role::Manager) => true,
        Command::AddDisk(server, ..) => has(Role::Data) && *server == subject.server,
        Command::CreateBucket(..)
        | Command::BeginDeletion(_)
        | Command::EndDeletion(..)
        | Command::EndDeletionOf(..)
        | Command::SetRegion(..)
        | Command::SetCors(..)
        | Command::CloseBucket(_) => has(Role::Proxy),
        Command::ClaimGateway(_, gateway)
        | Command::KeepRegions(gateway, ..)
        | Command::DeleteClosed(gateway, ..)
        | Command::SetHome(gateway, ..)
        | Command::AdoptBucket(gateway, ..)
        | Command::ShareBucket(gateway, ..) => has(Role::Proxy) && gateway.server == subject.server,
        _ => false,
    }
}

impl ManagerHandler {
    fn serve_map(
        &self,
        requester: Subject,
        asked: MapRequest,
        responder: Responder<ManagerService>,
    ) {
        answer_map((self.maps.clone(), self.led.clone()), requester, asked, responder);
    }

    /// Returns true if this manager's map says that a server was removed. Its certificate may be valid for a while
    /// yet.
    fn was_removed(&self, server: ServerId) -> bool {
        let newest = self.maps.newest();
        let state = newest.map.servers.get(&server).map(|record| record.state);
        state == Some(ServerState::Removed)
    }

    /// The authority's key, for a server that is a manager by its certificate and by the map.
    fn authority_for(&self, from: &PeerIdentity) -> (ManagerReply, Bytes) {
        let record = self.maps.newest().map.servers.get(&from.subject.server).cloned();
        let manages = |record: &ServerRecord| {
            record.roles.contains(&ServerRole::Manager) && record.state != ServerState::Removed
        };
        if !from.subject.roles.has(Role::Manager) || !record.as_ref().is_none_or(manages) {
            tracing::warn!(%from, "refused a request for the authority's key: only managers may have it");
            return (ManagerReply::NotAllowed, Bytes::new());
        }
        match self.issuer.authority.get() {
            // A map without the asker is older than its joining: the asker asks again.
            Some(authority) if record.is_some() => {
                tracing::info!(%from, "sending the authority's key to another manager");
                (ManagerReply::Authority, authority.to_pem().into())
            }
            _ => (ManagerReply::NoAuthority, Bytes::new()),
        }
    }

    fn put(&self, input: Input) {
        let (reply, input) = match self.inbox.put(input) {
            Ok(()) => return,
            Err(InboxError::Full(input)) => (ManagerReply::Busy, input),
            Err(InboxError::Over(input)) => (ManagerReply::NotLeader(None), input),
        };
        if let Input::Propose(_, responder) | Input::Committed(responder) = input {
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
        Err(NotIssued::NoAuthority) => responder.answer(&ManagerReply::NoAuthority, Bytes::new()),
        Err(error) => {
            tracing::warn!(%error, "no join token was made");
            responder.answer(&ManagerReply::NotIssued, error.to_string().into());
        }
    }
}

/// A question for a map later than the one of this version.
#[derive(Debug, Clone, Copy)]
enum MapRequest {
    /// For the whole, in one answer.
    Whole(MapVersion),
    /// For the shortest way from one of this timeline.
    Since(MapVersion, Option<u64>),
}

impl MapRequest {
    fn known(self) -> MapVersion {
        let (Self::Whole(known) | Self::Since(known, _)) = self;
        known
    }

    async fn answer(self, maps: Maps, requester: Subject, responder: Responder<ManagerService>) {
        let Self::Since(known, timeline) = self else {
            let newest = maps.newest();
            let checks = checks_requests(&requester, &newest.map);
            let map = newest.encoded_for(responder.version(), checks);
            return responder.answer(&ManagerReply::Map, map);
        };
        match maps.since((known, timeline), &requester, responder.version()) {
            Later::Changes(changes) => responder.answer(&ManagerReply::MapChanges, changes),
            Later::Whole(map) => responder.answer(&ManagerReply::Map, map),
            Later::Pages => answer_page(maps, None, requester, responder).await,
        }
    }
}

async fn answer_page(
    maps: Maps,
    from: Option<MapPlace>,
    requester: Subject,
    responder: Responder<ManagerService>,
) {
    match maps.page(from, &requester).await {
        Some(page) => responder.answer(&ManagerReply::MapPage, page),
        None => responder.busy(),
    }
}

/// Responds with the changes to a newer map, as soon as there is one (a long poll). The limit of connections bounds the
/// waiting requests. A manager without a leader cannot confirm that its map is the latest. It says that it has no quorum, and
/// the server asks another. A manager that is behind the server responds busy.
fn answer_map(
    (mut maps, led): (Maps, Arc<LedAt>),
    requester: Subject,
    asked: MapRequest,
    responder: Responder<ManagerService>,
) {
    tokio::spawn(async move {
        let known = asked.known();
        let newer = maps.wait_for(|map| map.version > known);
        match timeout(Duration::from_millis(MAP_WAIT_MS), newer).await {
            Ok(Ok(_newer)) => asked.answer(maps, requester, responder).await,
            // The manager has stopped: without an answer the asker goes to another.
            Ok(Err(_)) => {}
            Err(_late) if !led.is_led() => match unled(responder.version()) {
                Some(reply) => responder.answer(&reply, Bytes::new()),
                None => responder.busy(),
            },
            Err(_late) if maps.newest().map.version < known => responder.busy(),
            Err(_late) => responder.answer(&ManagerReply::Unchanged, Bytes::new()),
        }
    });
}

/// The answer of a manager without a leader to a peer of this protocol version; `None`: that it is busy, which is all that
/// earlier ones know.
fn unled(version: u8) -> Option<ManagerReply> {
    (version >= PROTOCOL_COMMITTED).then_some(ManagerReply::NoQuorum)
}

#[cfg(test)]
mod tests {
    use larder_identity::Roles;
    use larder_protocol::manager::state::{GatewayRecord, Keep, KeyPair, RegionRecord, Topology};
    use larder_protocol::placement::{FailureDomains, Weight};
    use larder_types::{
        BootId, BucketId, BucketName, ClusterId, Epoch, Home, HomeScope, HomeState, HomeTerm,
        RegionId, Sharing, WritePolicy,
    };

    use super::*;

    #[test]
    fn a_server_proposes_what_is_its_own_business_and_nothing_else() {
        let name = BucketName::new("abc").unwrap();
        let of = |server, role| {
            let (cluster, server) = (ClusterId(1), ServerId(server));
            Subject { cluster, server, roles: Roles::of(&[role]) }
        };
        let disk = |server| Command::AddDisk(ServerId(server), Weight(1), 3);
        let region = RegionRecord { number: RegionId(2), fingerprint: [1; 32] };
        let gateway = GatewayRecord { server: ServerId(4), boot: BootId(1) };
        let home = Home {
            term: HomeTerm { count: 1, of: RegionId(2) },
            scope: HomeScope::Writes,
            state: HomeState::Here,
        };
        let of_proxies = [
            Command::CreateBucket(name.clone(), None, 1),
            Command::BeginDeletion(name.clone()),
            Command::EndDeletion(name.clone(), Epoch(2), true),
            Command::EndDeletionOf(BucketId(1), name.clone(), Epoch(2), true),
            Command::SetRegion(region),
            Command::ClaimGateway(region, gateway),
            Command::KeepRegions(gateway, 1, vec![1]),
            Command::CloseBucket(name.clone()),
            Command::SetCors(name.clone(), None),
            Command::DeleteClosed(gateway, BucketId(1), name.clone(), Epoch(2)),
            Command::SetHome(gateway, name.clone(), None, home),
            Command::AdoptBucket(gateway, name.clone(), 5, home),
            Command::ShareBucket(gateway, BucketId(1), name, Epoch(2), Sharing::Renewing),
        ];
        let operators = [
            Command::RemoveServer(ServerId(4)),
            Command::SetDraining(ServerId(4), true),
            Command::SetWritePolicy(BucketName::new("abc").unwrap(), WritePolicy::Majority),
            Command::SetRegions(BucketName::new("abc").unwrap(), 2),
            Command::SetLocal(BucketName::new("abc").unwrap(), true, 5),
            Command::PauseBalance(Some(5)),
            Command::RotateRoot(0, pair(), Keep::Nothing),
            Command::RetireRoot(1),
            Command::BeginTimeline(1),
            Command::RevokeToken(larder_protocol::manager::state::TokenId(1)),
        ];
        assert!(may_propose(&of(4, Role::Data), &disk(4)));
        assert!(!may_propose(&of(5, Role::Data), &disk(4)), "another's disk");
        assert!(!may_propose(&of(4, Role::Meta), &disk(4)));
        assert!(of_proxies.iter().all(|command| may_propose(&of(4, Role::Proxy), command)));
        assert!(!of_proxies.iter().any(|command| may_propose(&of(4, Role::Data), command)));
        let anothers = Command::ClaimGateway(region, gateway);
        assert!(!may_propose(&of(5, Role::Proxy), &anothers), "in another's name");
        for role in [Role::Meta, Role::Data, Role::Proxy] {
            assert!(!operators.iter().any(|command| may_propose(&of(4, role), command)));
        }
        assert!(operators.iter().all(|command| may_propose(&of(0, Role::Manager), command)));
    }

    #[test]
    fn peers_of_earlier_releases_hear_that_a_manager_without_a_leader_is_busy() {
        assert_eq!(unled(PROTOCOL_COMMITTED - 1), None);
        assert_eq!(unled(PROTOCOL_COMMITTED), Some(ManagerReply::NoQuorum));
    }

    fn pair() -> KeyPair {
        KeyPair { access_key: "abc".to_owned(), secret_key: "12345678".to_owned() }
    }

    #[test]
    fn secret_keys_are_for_proxies_of_the_map_that_were_not_removed() {
        let mut map = Topology::default();
        let record = |state| ServerRecord {
            name: "s".to_owned(),
            roles: [ServerRole::Proxy].into(),
            addresses: Vec::new(),
            domains: FailureDomains::default(),
            weight: Weight(1),
            state,
            draining: false,
            boot: BootId(1),
            ended: Default::default(),
            started: MapVersion(0),
            disks: Default::default(),
        };
        map.servers.insert(ServerId(1), record(ServerState::Up));
        map.servers.insert(ServerId(2), record(ServerState::Down));
        map.servers.insert(ServerId(3), record(ServerState::Removed));
        let checks = |server, role| {
            let (cluster, server) = (ClusterId(1), ServerId(server));
            checks_requests(&Subject { cluster, server, roles: Roles::of(&[role]) }, &map)
        };
        assert!(checks(1, Role::Proxy) && checks(2, Role::Proxy));
        assert!(!checks(3, Role::Proxy), "it was removed");
        assert!(!checks(4, Role::Proxy), "nobody knows it");
        assert!(![Role::Manager, Role::Meta, Role::Data].into_iter().any(|role| checks(1, role)));
    }
}
