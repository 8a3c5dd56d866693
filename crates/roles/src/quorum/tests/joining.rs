//! How servers come in, go silent and come back.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use larder_net::{
    Authority, Credentials, Endpoint, JoinError, Refusal, Role, Roles, TokenRecord, join,
};
use larder_protocol::manager::state::{self, Command, Outcome, ServerRole, ServerState};
use larder_types::{BootId, ClusterId, ServerId};

use super::support::{Idle, contact, found_with, is, join_and_start, new_server, start, until};
use crate::managers::{Contacts, Managers, ManagersClient};
use crate::quorum::{Manager, NotIssued};

async fn refused(manager: &Manager, token: &larder_net::JoinToken) -> Refusal {
    match join(manager.address(), token).await {
        Err(JoinError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_joins_with_its_token_goes_silent_and_comes_back() {
    let (dir, tokens) = found_with(vec![new_server("d0", ServerRole::Data)]);
    let manager = start(dir.path(), Vec::new()).await;
    let (server, token) = &tokens[0];
    let home = tempfile::tempdir().unwrap();
    let known = vec![contact(&manager)];
    let idle = Idle::start(home.path(), (known.clone(), Some(token)), BootId(1)).await;
    let map = until(&idle.client, "up", |map| is(map, *server, ServerState::Up)).await;
    assert_eq!(map.servers[server].boot, BootId(1));

    // A token is for a first run: whoever finds it now is nobody.
    until(manager.managers(), "up", |map| is(map, *server, ServerState::Up)).await;
    assert_eq!(refused(&manager, token).await, Refusal::Token);

    drop(idle);
    until(manager.managers(), "down", |map| is(map, *server, ServerState::Down)).await;
    let _idle = Idle::start(home.path(), (known, None), BootId(2)).await;
    let back = |map: &state::Topology| {
        is(map, *server, ServerState::Up) && map.servers[server].boot == BootId(2)
    };
    until(manager.managers(), "up again", back).await;
}

#[tokio::test]
async fn unknown_revoked_and_expired_tokens_are_refused() {
    let (dir, _) = found_with(Vec::new());
    let manager = start(dir.path(), Vec::new()).await;
    let data = |name| new_server(name, ServerRole::Data);
    let map = until(manager.managers(), "up", |map| is(map, ServerId(0), ServerState::Up)).await;

    // Of this authority, but in no book.
    let cluster = ClusterId(map.founded.unwrap().0.0);
    let authority = Authority::load(cluster, &dir.path().join("authority.pem")).unwrap();
    let roles = Roles::of(&[Role::Data]);
    let (_, unknown) =
        TokenRecord::issue(authority.fingerprint(), ServerId(1), roles, None).unwrap();
    assert_eq!(refused(&manager, &unknown).await, Refusal::Token);

    // Of another cluster.
    let (_dir, others) = found_with(vec![data("d0")]);
    let stranger = join(manager.address(), &others[0].1).await;
    assert!(matches!(stranger, Err(JoinError::Stranger(_))), "{stranger:?}");

    let soon = SystemTime::now() + Duration::from_secs(3600);
    let (_, revoked) = manager.issue_token(data("d1"), Some(soon)).await.unwrap();
    let revoke = Command::RevokeToken(state::TokenId(0));
    assert_eq!(manager.managers().propose(revoke).await, Ok(Ok(Outcome::Done)));
    assert_eq!(refused(&manager, &revoked).await, Refusal::Token);

    // One that has expired is not even given a place.
    let before = SystemTime::now() - Duration::from_secs(1);
    let expired = manager.issue_token(data("d2"), Some(before)).await;
    assert!(matches!(expired, Err(NotIssued::Refused(state::Refusal::BadToken))), "{expired:?}");
}

#[tokio::test]
async fn tokens_outlive_a_restart_and_only_the_founder_makes_them() {
    let (dir, tokens) = found_with(vec![new_server("m1", ServerRole::Manager)]);
    let founder = start(dir.path(), Vec::new()).await;
    let (server, token) =
        founder.issue_token(new_server("p0", ServerRole::Proxy), None).await.unwrap();
    founder.stop().await.unwrap();

    let founder = start(dir.path(), Vec::new()).await;
    // Until the log is known to be agreed on it lets nobody in.
    until(founder.managers(), "the map", |map| map.servers.contains_key(&server)).await;
    let identity = join(founder.address(), &token).await.unwrap();
    assert_eq!(identity.subject().server, server);
    assert_eq!(identity.subject().roles, Roles::of(&[Role::Proxy]));

    let home = tempfile::tempdir().unwrap();
    let other = join_and_start(home.path(), &founder, &tokens[0].1).await;
    let p1 = || new_server("p1", ServerRole::Proxy);
    let issued = other.issue_token(p1(), None).await;
    assert!(matches!(issued, Err(NotIssued::NotFounder)), "{issued:?}");

    // It can have the founder make them; a proxy cannot.
    let (p1_id, p1_token) = other.managers().issue_token(p1(), None).await.unwrap();
    assert_eq!(join(founder.address(), &p1_token).await.unwrap().subject().server, p1_id);
    let endpoint = Endpoint::new(Credentials::new(&identity).unwrap());
    let contacts = Arc::new(Contacts::new(&endpoint, vec![contact(&founder)]));
    let proxy = ManagersClient::start(contacts);
    let refused = proxy.issue_token(new_server("p2", ServerRole::Proxy), None).await;
    assert!(matches!(refused, Err(NotIssued::Told(_))), "{refused:?}");
    let map = until(&proxy, "the map", |map| map.servers.contains_key(&p1_id)).await;
    assert!(map.servers.values().all(|server| server.name != "p2"));
}
