//! Managers among servers whose certificates are good and whose words are not; and servers that were removed.

use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use larder_identity::{Credentials, Role, Roles};
use larder_net::{
    CallError, Endpoint, Handler, Listener, Peer, PeerIdentity, Refused, RefusingSide, Responder,
    Services,
};
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::state::{
    Command, Outcome, Refusal, ServerRole, ServerState, Topology,
};
use larder_types::{BootId, BucketName, ServerId};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use super::raw::{InBytes, Raw, corpus, panics, rounds, spoiled};
use super::support::{Idle, contact, found_with, is, join_and_start, new_server, start, until};
use crate::identity::identity_in;
use crate::manager::quorum::Manager;
use crate::managers::{Managers, NotProposed};
use crate::wire::{
    DataCall, DataMessage, DataReply, DataService, ManagerCall, ManagerMessageIn, ManagerService,
};

/// A data server that has a load, and nothing else.
struct Loaded;

impl Handler<DataService> for Loaded {
    fn request(&self, _: &PeerIdentity, _: DataCall, _: Bytes, to: Responder<DataService>) {
        to.answer(&DataReply::Load(7), Bytes::new());
    }

    fn message(&self, _: &PeerIdentity, _: DataMessage, _: Bytes) {}
}

async fn idle(founder: &Manager, name: &str, role: ServerRole) -> (ServerId, Idle) {
    let (server, token) = founder.issue_token(new_server(name, role), None).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let known = (vec![contact(founder)], Some(&token));
    let idle = Idle::start(dir.path(), known, BootId(u64::from(server.0))).await;
    until(&idle.client, "up", |map| is(map, server, ServerState::Up)).await;
    (server, idle)
}

#[tokio::test]
async fn a_removed_server_is_refused_by_the_others_and_finds_out_from_managers() {
    let (dir, _) = found_with(Vec::new());
    let founder = start(dir.path(), Vec::new()).await;
    let (data, serving) = idle(&founder, "d0", ServerRole::Data).await;
    let (proxy, calling) = idle(&founder, "p0", ServerRole::Proxy).await;
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let services = Services::new().with::<DataService>(Roles::of(&[Role::Proxy]), Loaded);
    let listener = Listener::start(&serving.endpoint, socket, services).unwrap();
    let peer: Peer<DataService> =
        Peer::new(&calling.endpoint, data, listener.address().to_string());
    let soon = || Instant::now() + Duration::from_secs(20);
    let load = async || peer.call(&DataCall::Load, Bytes::new(), soon()).await;
    assert_eq!(load().await.unwrap().0, DataReply::Load(7));

    let removed = founder.managers().propose(Command::RemoveServer(proxy)).await;
    assert_eq!(removed, Ok(Ok(Outcome::Done)));
    until(&serving.client, "removed", |map| is(map, proxy, ServerState::Removed)).await;
    let denied = loop {
        match load().await {
            Err(CallError::Denied(denied)) => break denied,
            // The connection was just closed.
            Err(CallError::NotSent(_) | CallError::Unknown(_)) => {}
            other => panic!("a removed server is served: {other:?}"),
        }
    };
    assert_eq!((denied.by, denied.reason), (RefusingSide::Peer, Refused::Removed));
    assert!(denied.why.contains("was removed from the cluster"), "{denied}");
    assert!(serving.endpoint.metrics().refused(Refused::Removed) > 0);

    until(&calling.client, "it hears", |map| is(map, proxy, ServerState::Removed)).await;
    let bucket = Command::CreateBucket(BucketName::new("late").unwrap(), None, 1);
    assert_eq!(calling.client.propose(bucket).await, Err(NotProposed::NotAllowed));
}

#[tokio::test]
async fn a_removed_manager_no_longer_forwards_messages() {
    let (dir, _) = found_with(Vec::new());
    let founder = start(dir.path(), Vec::new()).await;
    let (data, _) = founder.issue_token(new_server("d0", ServerRole::Data), None).await.unwrap();
    // Two that agree, and one that has joined and does nothing else.
    let (second, token) =
        founder.issue_token(new_server("m1", ServerRole::Manager), None).await.unwrap();
    let second_home = tempfile::tempdir().unwrap();
    let _second = join_and_start(second_home.path(), &founder, &token).await;
    until(founder.managers(), "up", |map| is(map, second, ServerState::Up)).await;
    let another = new_server("m2", ServerRole::Manager);
    let (manager, token) = founder.issue_token(another, None).await.unwrap();
    let (home, (to, address)) = (tempfile::tempdir().unwrap(), contact(&founder));
    let identity =
        identity_in(home.path(), std::slice::from_ref(&address), Some(&token)).await.unwrap();
    let endpoint = Endpoint::new(Credentials::new(&identity).unwrap());
    let peer: Peer<ManagerService> = Peer::new(&endpoint, to, address);
    let says = async |boot: u64| {
        let started = ServerMessage::Started(BootId(boot), vec![format!("d{boot}:1")], Vec::new());
        peer.send(&ManagerMessageIn::HandedOn(data, started), Bytes::new()).unwrap();
        // The question is answered after what it said before was heard.
        let deadline = Instant::now() + Duration::from_secs(20);
        drop(peer.call(&ManagerCall::Authority, Bytes::new(), deadline).await.unwrap());
    };
    says(7).await;
    let of = |map: &Topology| (map.servers[&data].boot, map.servers[&data].addresses.clone());
    let before = (BootId(7), vec!["d7:1".to_owned()]);
    until(founder.managers(), "it is heard", |map| of(map) == before).await;

    // One that has no answer in time may be done all the same.
    until_it_agrees(&founder, Command::RemoveServer(manager)).await;
    until(founder.managers(), "removed", |map| is(map, manager, ServerState::Removed)).await;
    says(8).await;
    // Commands are agreed on in the order in which they came.
    let later = BucketName::new("later").unwrap();
    until_it_agrees(&founder, Command::CreateBucket(later, None, 1)).await;
    assert_eq!(of(&founder.maps().newest().map), before, "where a server is, it does not say");
}

/// A command is agreed on, at the first try or at a later one.
async fn until_it_agrees(founder: &Manager, command: Command) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match founder.managers().propose(command.clone()).await {
            // A manager that was not heard for a while, on a busy machine, counts as down.
            Ok(Err(Refusal::NoMajority)) => assert!(Instant::now() < deadline, "one is down"),
            Ok(_) => return,
            // Busy with what was sent before.
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_from_certified_servers_end_no_manager() {
    let (dir, _) = found_with(Vec::new());
    let mut founder = start(dir.path(), Vec::new()).await;
    let (_, data) = idle(&founder, "d0", ServerRole::Data).await;
    let (_, meta) = idle(&founder, "t0", ServerRole::Meta).await;
    let (_, proxy) = idle(&founder, "p0", ServerRole::Proxy).await;
    let (to, address) = contact(&founder);
    let callers = [&data, &meta, &proxy]
        .map(|idle| Peer::<InBytes<ManagerService>>::new(&idle.endpoint, to, address.clone()));
    let (corpus, before) = (corpus(), panics());
    for mut draw in rounds() {
        let calls = (0..20).map(|_| {
            let peer = &callers[draw.below(callers.len() as u64) as usize];
            let (body, payload) =
                (Raw(spoiled(&mut draw, &corpus)), Bytes::from(spoiled(&mut draw, &corpus)));
            if draw.below(2) == 0 {
                drop(peer.send(&body, payload));
                return None;
            }
            let deadline = Instant::now() + Duration::from_millis(100);
            Some(async move { peer.call(&body, payload, deadline).await.map(|_| ()) })
        });
        let calls: Vec<_> = calls.collect();
        drop(futures::future::join_all(calls.into_iter().flatten()).await);
    }
    let good = BucketName::new("good").unwrap();
    until_it_agrees(&founder, Command::CreateBucket(good, None, 1)).await;
    assert_eq!(panics(), before, "nothing panicked");
    assert!(founder.ended().now_or_never().is_none(), "it runs");
}
