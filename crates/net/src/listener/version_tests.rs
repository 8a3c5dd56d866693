//! Servers that speak no version as new as the cluster's: refused at the handshake, and cut off.

use std::sync::Arc;

use bytes::Bytes;
use larder_identity::{Authority, Credentials, Role, Roles};
use larder_types::ServerId;

use crate::limits::{PROTOCOL_MAX, PROTOCOL_MIN};
use crate::tests::{Echo, Echoing, authority, caller, data_server, peer, socket, soon};
use crate::{
    CallError, Denied, Endpoint, Listener, NotSent, Peer, Refused, RefusingSide, Services, Unknown,
};

/// A meta server of the release before this one.
fn older(authority: &Authority) -> Arc<Endpoint> {
    let identity = authority.identity(ServerId(1), Roles::of(&[Role::Meta])).unwrap();
    Endpoint::as_of(Credentials::new(&identity).unwrap(), PROTOCOL_MAX - 1)
}

async fn ask(peer: &Peer<Echo>) -> Result<String, CallError> {
    peer.call(&"x".into(), Bytes::new(), soon()).await.map(|(answer, _)| answer)
}

/// The refusal that a caller hears at last.
async fn denied(peer: &Peer<Echo>) -> Denied {
    loop {
        match ask(peer).await.unwrap_err() {
            CallError::Denied(denied) => break denied,
            // The open connection was just closed.
            CallError::NotSent(NotSent::Broken(_)) | CallError::Unknown(_) => {}
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn whoever_does_not_speak_what_is_required_is_refused_and_hears_what_to_do() {
    let authority = authority();
    let (theirs, listener, _heard) = data_server(&authority, 2).await;
    theirs.require(PROTOCOL_MAX);
    theirs.require(PROTOCOL_MIN);
    let denied = denied(&peer(&older(&authority), 2, listener.address())).await;
    assert_eq!((denied.by, denied.reason), (RefusingSide::Peer, Refused::Version));
    let (min, max, less) = (PROTOCOL_MIN, PROTOCOL_MAX, PROTOCOL_MAX - 1);
    let why = format!(
        "it speaks versions {min} to {less}, this release {min} to {max}, and this cluster {max} or newer: install its release"
    );
    assert_eq!(&*denied.why, why);
    assert_eq!(theirs.metrics().refused(Refused::Version), 1);
    let newer = peer(&caller(&authority), 2, listener.address());
    assert_eq!(ask(&newer).await.unwrap(), "x", "one of this release is served");
}

#[tokio::test]
async fn nobody_calls_a_server_that_does_not_speak_what_is_required() {
    let authority = authority();
    let identity = authority.identity(ServerId(2), Roles::of(&[Role::Data])).unwrap();
    let theirs = Endpoint::as_of(Credentials::new(&identity).unwrap(), PROTOCOL_MAX - 1);
    let (echoing, _heard) = Echoing::new();
    let services = Services::new().with::<Echo>(Roles::of(&[Role::Meta]), echoing);
    let listener = Listener::start(&theirs, socket().await, services).unwrap();
    let ours = caller(&authority);
    let peer = peer(&ours, 2, listener.address());
    ask(&peer).await.unwrap();
    ours.require(PROTOCOL_MAX);
    assert_eq!(denied(&peer).await.reason, Refused::Version);
}

#[tokio::test]
async fn a_caller_that_its_cluster_left_behind_is_refused() {
    let authority = authority();
    let (_theirs, listener, _heard) = data_server(&authority, 2).await;
    let ours = older(&authority);
    let peer = peer(&ours, 2, listener.address());
    ask(&peer).await.unwrap();
    // Of this release as the map of its cluster is: it has been left behind.
    ours.require(PROTOCOL_MAX);
    let denied = denied(&peer).await;
    assert_eq!((denied.by, denied.reason), (RefusingSide::Peer, Refused::Version));
}

#[tokio::test]
async fn an_open_connection_of_an_older_version_ends_and_one_of_the_newest_goes_on() {
    let authority = authority();
    let (theirs, listener, mut recorded) = data_server(&authority, 2).await;
    let older = Arc::new(peer(&older(&authority), 2, listener.address()));
    let newer = peer(&caller(&authority), 2, listener.address());
    ask(&newer).await.unwrap();
    let waits = tokio::spawn({
        let older = older.clone();
        async move { older.call(&"wait".into(), Bytes::new(), soon()).await }
    });
    let _asked = recorded.asked.recv().await.expect("the question has come");
    theirs.require(PROTOCOL_MAX - 1);
    assert_eq!(ask(&older).await.unwrap(), "x", "it speaks that");
    theirs.require(PROTOCOL_MAX);
    let error = waits.await.unwrap().unwrap_err();
    let CallError::Unknown(Unknown::Broken(why)) = &error else { panic!("{error}") };
    assert!(why.contains("the cluster's version is"), "{why}");
    assert_eq!(denied(&older).await.reason, Refused::Version);
    assert_eq!(ask(&newer).await.unwrap(), "x");
    assert_eq!((theirs.metrics().accepted.get(), theirs.metrics().broken.get()), (2, 1));
}
