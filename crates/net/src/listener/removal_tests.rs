//! Servers that the map calls removed: refused at the handshake, and cut off.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use larder_identity::{Role, Roles};
use larder_types::ServerId;

use crate::tests::{
    Echo, Echoing, Log, authority, caller, data_server, endpoint, peer, socket, soon,
};
use crate::{
    CallError, Endpoint, Listener, NotSent, Peer, Refused, RefusingSide, Services, Unknown,
};

fn remove(at: &Endpoint, server: u32) {
    at.refuse_removed(BTreeSet::from([ServerId(server)]));
}

async fn ask(peer: &Peer<Echo>) -> Result<String, CallError> {
    peer.call(&"x".into(), Bytes::new(), soon()).await.map(|(answer, _)| answer)
}

fn denied(error: CallError) -> crate::Denied {
    let CallError::Denied(denied) = error else { panic!("{error}") };
    denied
}

#[tokio::test]
async fn a_removed_server_is_refused_at_the_handshake_with_the_reason() {
    let authority = authority();
    let (theirs, listener, _heard) = data_server(&authority, 2).await;
    remove(&theirs, 1);
    let denied = denied(ask(&peer(&caller(&authority), 2, listener.address())).await.unwrap_err());
    assert_eq!((denied.by, denied.reason), (RefusingSide::Peer, Refused::Removed));
    assert_eq!(&*denied.why, "server 1 was removed from the cluster");
    assert_eq!(theirs.metrics().refused(Refused::Removed), 1);
}

#[tokio::test]
async fn others_are_served_as_before() {
    let authority = authority();
    let (theirs, listener, _heard) = data_server(&authority, 2).await;
    let peer = peer(&caller(&authority), 2, listener.address());
    ask(&peer).await.unwrap();
    remove(&theirs, 3);
    assert_eq!(ask(&peer).await.unwrap(), "x");
    assert_eq!((theirs.metrics().accepted.get(), theirs.metrics().broken.get()), (1, 0));
}

#[tokio::test]
async fn the_open_connection_of_a_server_ends_when_it_is_removed() {
    let authority = authority();
    let (log, _guard) = Log::begin();
    let (theirs, listener, mut recorded) = data_server(&authority, 2).await;
    let peer = Arc::new(peer(&caller(&authority), 2, listener.address()));
    let waits = tokio::spawn({
        let peer = peer.clone();
        async move { peer.call(&"wait".into(), Bytes::new(), soon()).await }
    });
    let _asked = recorded.asked.recv().await.expect("the question has come");
    remove(&theirs, 1);
    let error = waits.await.unwrap().unwrap_err();
    let CallError::Unknown(Unknown::Broken(why)) = &error else { panic!("{error}") };
    assert!(why.contains("server 1 was removed from the cluster"), "{why}");
    assert_eq!(denied(ask(&peer).await.unwrap_err()).reason, Refused::Removed);
    assert!(log.text().contains("a connection was closed"), "{}", log.text());
    assert_eq!(theirs.metrics().refused(Refused::Removed), 2);
}

#[tokio::test]
async fn a_service_that_tells_removed_servers_serves_them() {
    let authority = authority();
    let identity = authority.identity(ServerId(2), Roles::of(&[Role::Data])).unwrap();
    let (theirs, (echoing, _heard)) = (endpoint(&identity), Echoing::new());
    remove(&theirs, 1);
    let services = Services::new().with_removed::<Echo>(Roles::of(&[Role::Meta]), echoing);
    let listener = Listener::start(&theirs, socket().await, services).unwrap();
    assert_eq!(ask(&peer(&caller(&authority), 2, listener.address())).await.unwrap(), "x");
}

#[tokio::test]
async fn nobody_calls_a_server_that_was_removed() {
    let authority = authority();
    let (_theirs, listener, _heard) = data_server(&authority, 2).await;
    let ours = caller(&authority);
    let peer = peer(&ours, 2, listener.address());
    ask(&peer).await.unwrap();
    remove(&ours, 2);
    let refused = loop {
        match ask(&peer).await.unwrap_err() {
            CallError::Denied(denied) => break denied,
            // The open connection was just closed.
            CallError::NotSent(NotSent::Broken(_)) | CallError::Unknown(_) => {}
            other => panic!("{other}"),
        }
    };
    assert_eq!((refused.by, refused.reason), (RefusingSide::Us, Refused::Removed));
}
