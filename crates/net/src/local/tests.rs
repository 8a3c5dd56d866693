//! Servers of one process that speak with each other without a socket.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use larder_identity::{Authority, Role, Roles};
use larder_types::ServerId;

use crate::limits::{PIPE_BYTES, SILENCE_MAX};
use crate::tests::{
    Echo, Echoing, RecordedCalls, authority, caller, endpoint, expired, peer, socket, soon,
};
use crate::{CallError, Endpoint, ListenSocket, Listener, Port, Refused, Services};

/// A data server and a meta server at one port.
struct Machine {
    port: Arc<Port>,
    ours: Arc<Endpoint>,
    theirs: Arc<Endpoint>,
    listener: Listener,
    recorded: RecordedCalls,
}

impl Machine {
    async fn of(authority: &Authority) -> Self {
        let port = Port::open(socket().await).unwrap();
        let identity = authority.identity(ServerId(2), Roles::of(&[Role::Data])).unwrap();
        let (theirs, (echoing, recorded)) = (endpoint(&identity), Echoing::new());
        let services = Services::new().with::<Echo>(Roles::of(&[Role::Meta]), echoing);
        let listener = Listener::start(&theirs, port.clone(), services).unwrap();
        let ours = caller(authority);
        ours.share(&ListenSocket::Shared(port.clone()));
        Self { port, ours, theirs, listener, recorded }
    }

    async fn ask(&self, payload: Bytes) -> Result<(String, Bytes), CallError> {
        let to = peer(&self.ours, 2, self.port.address());
        to.call(&"x".into(), payload, soon()).await
    }

    /// Has a server that shares the port call the data server.
    async fn answers(&self, endpoint: &Arc<Endpoint>) -> Result<(), CallError> {
        endpoint.share(&ListenSocket::Shared(self.port.clone()));
        let to = peer(endpoint, 2, self.port.address());
        to.call(&"x".into(), Bytes::new(), soon()).await.map(drop)
    }
}

#[tokio::test]
async fn servers_of_one_process_need_no_socket() {
    let mut machine = Machine::of(&authority()).await;
    // Longer than a pipe holds.
    let payload = Bytes::from(vec![7; 5 * PIPE_BYTES + 3]);
    let answered = machine.ask(payload.clone()).await.unwrap();
    assert_eq!(answered, ("x".to_owned(), payload));
    let to = peer(&machine.ours, 2, machine.port.address());
    to.send(&5, Bytes::new()).unwrap();
    assert_eq!(machine.recorded.recorded.recv().await, Some(5));
    let (ours, theirs) = (machine.ours.metrics(), machine.theirs.metrics());
    assert_eq!((ours.local.get(), theirs.accepted.get()), (2, 2));
    // At an address where nobody listens.
    let to = peer(&machine.ours, 2, "127.0.0.1:1".parse().unwrap());
    assert!(to.call(&"x".into(), Bytes::new(), soon()).await.is_ok());
}

#[tokio::test]
async fn others_are_reached_over_sockets() {
    let authority = authority();
    let machine = Machine::of(&authority).await;
    let elsewhere = Machine::of(&authority).await;
    drop(machine.listener);
    // It is at the other port, which this endpoint does not share.
    let to = peer(&machine.ours, 2, elsewhere.port.address());
    to.call(&"x".into(), Bytes::new(), soon()).await.unwrap();
    assert_eq!(machine.ours.metrics().local.get(), 0);
}

#[tokio::test]
async fn a_server_of_this_process_is_checked_as_others_are() {
    let authority = authority();
    let machine = Machine::of(&authority).await;
    // One that may not call.
    let proxy = endpoint(&authority.identity(ServerId(3), Roles::of(&[Role::Proxy])).unwrap());
    let CallError::Denied(denied) = machine.answers(&proxy).await.unwrap_err() else {
        panic!("it is denied")
    };
    assert_eq!(denied.reason, Refused::WrongRole);
    assert_eq!(machine.theirs.metrics().refused(Refused::WrongRole), 1);
    // One of another cluster with the same id is not meant.
    let stranger = caller(&Authority::create(larder_types::ClusterId(8)).unwrap());
    machine.answers(&stranger).await.unwrap_err();
    assert_eq!((stranger.metrics().local.get(), proxy.metrics().local.get()), (0, 1));
    // One that is removed.
    machine.ask(Bytes::new()).await.unwrap();
    machine.theirs.refuse_removed(BTreeSet::from([ServerId(1)]));
    let CallError::Denied(denied) = machine.ask(Bytes::new()).await.unwrap_err() else {
        panic!("it is denied")
    };
    assert_eq!(denied.reason, Refused::Removed);
}

#[tokio::test]
async fn a_certificate_that_has_ended_is_refused_as_elsewhere() {
    let authority = authority();
    let machine = Machine::of(&authority).await;
    let roles = Roles::of(&[Role::Meta]);
    let old = endpoint(&authority.identity_valid(ServerId(1), roles, expired()).unwrap());
    let CallError::Denied(denied) = machine.answers(&old).await.unwrap_err() else {
        panic!("it is denied")
    };
    assert_eq!((denied.reason, old.metrics().local.get()), (Refused::Expired, 0));
}

#[tokio::test(start_paused = true)]
async fn local_servers_get_no_pings() {
    let machine = Machine::of(&authority()).await;
    let to = peer(&machine.ours, 2, machine.port.address());
    to.call(&"x".into(), Bytes::new(), soon()).await.unwrap();
    let sent = || (machine.ours.metrics().sent.get(), machine.theirs.metrics().sent.get());
    let before = sent();
    tokio::time::sleep(10 * SILENCE_MAX).await;
    assert_eq!(sent(), before);
    to.call(&"x".into(), Bytes::new(), soon()).await.unwrap();
    assert_eq!(machine.ours.metrics().local.get(), 1, "on the same connection");
}

#[tokio::test]
async fn a_server_that_ends_ends_its_connections() {
    let mut machine = Machine::of(&authority()).await;
    let to = Arc::new(peer(&machine.ours, 2, machine.port.address()));
    let waits = tokio::spawn({
        let to = to.clone();
        async move { to.call(&"wait".into(), Bytes::new(), soon()).await }
    });
    let _asked = machine.recorded.asked.recv().await.expect("the question has come");
    drop(machine.listener);
    let error = waits.await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
    // It is asked for at the port, where nobody answers for it.
    assert!(to.call(&"x".into(), Bytes::new(), soon()).await.is_err());
}
