//! Managers among servers whose certificates are good and whose words are not; and servers that were removed.

use std::time::Duration;

use bytes::Bytes;
use larder_net::{
    CallError, Decider, Handler, Listener, Peer, PeerIdentity, Refused, Responder, Role, Roles,
    Services,
};
use larder_protocol::manager::state::{Command, Outcome, ServerRole, ServerState};
use larder_types::{BootId, BucketName, ServerId};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use super::raw::{InBytes, Raw, corpus, panics, rounds, spoiled};
use super::support::{Idle, contact, found_with, is, new_server, start, until};
use crate::managers::{Managers, NotProposed};
use crate::quorum::Manager;
use crate::wire::{DataCall, DataMessage, DataReply, DataService, ManagerService};

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
    assert_eq!((denied.by, denied.reason), (Decider::Peer, Refused::Removed));
    assert!(denied.why.contains("was removed from the cluster"), "{denied}");
    assert!(serving.endpoint.metrics().refused(Refused::Removed) > 0);

    until(&calling.client, "it hears", |map| is(map, proxy, ServerState::Removed)).await;
    let bucket = Command::CreateBucket(BucketName::new("late").unwrap(), None, 1);
    assert_eq!(calling.client.propose(bucket).await, Err(NotProposed::NotAllowed));
}

/// Commands are agreed on.
async fn until_it_agrees(founder: &Manager, name: &str) {
    let name = BucketName::new(name).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let created = founder.managers().propose(Command::CreateBucket(name.clone(), None, 1));
        match created.await {
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
    until_it_agrees(&founder, "good").await;
    assert_eq!(panics(), before, "nothing panicked");
    assert!(founder.ended.as_mut().unwrap().try_recv().is_err(), "it runs");
}
