//! Servers come in, go silent and come back.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::StreamExt;
use larder_identity::{Authority, Credentials, Identity, Refusal, Role, Roles, TokenRecord};
use larder_net::{Endpoint, JoinError, join};
use larder_protocol::limits::TOKENS_MAX;
use larder_protocol::manager::state::{self, Command, Outcome, ServerRole, ServerState};
use larder_types::{BootId, ClusterId, ServerId};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use super::support::{
    Idle, config, contact, found_with, is, join_and_start, new_server, start, until,
    until_it_signs, until_seen,
};
use crate::identity::{IDENTITY_FILE, identity_in};
use crate::manager::quorum::{AUTHORITY_FILE, Manager, QuorumStatus};
use crate::managers::NotIssued;
use crate::managers::{Contacts, Managers, ManagersClient};
use crate::renewal::Renewal;
use crate::wire::{ManagerCall, ManagerReply};

async fn refused(manager: &Manager, token: &larder_identity::JoinToken) -> Refusal {
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

    // A token is for a first run: a process that finds it now is nobody.
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
async fn expired_tokens_are_evicted_for_new_ones() {
    let (dir, _) = found_with(Vec::new());
    let manager = start(dir.path(), Vec::new()).await;
    until(manager.managers(), "up", |map| is(map, ServerId(0), ServerState::Up)).await;
    let expired = (0..TOKENS_MAX as u64).map(|id| {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&id.to_le_bytes());
        manager.managers().propose(Command::AddToken(hash, 1))
    });
    let added: Vec<_> = futures::stream::iter(expired).buffer_unordered(64).collect().await;
    assert!(added.iter().all(|added| matches!(added, Ok(Ok(Outcome::Token(_))))));

    let (server, token) =
        manager.issue_token(new_server("d0", ServerRole::Data), None).await.unwrap();
    let identity = join(manager.address(), &token).await.unwrap();
    assert_eq!(identity.subject().server, server);
}

#[tokio::test]
async fn tokens_outlive_a_restart_and_every_manager_makes_them() {
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
    until_it_signs(&other).await;
    // It is good where it was made, and the joiner finds out.
    let p1 = new_server("p1", ServerRole::Proxy);
    let (p1_id, p1_token) = other.issue_token(p1, None).await.unwrap();
    assert_eq!(refused(&founder, &p1_token).await, Refusal::Token);
    let home = tempfile::tempdir().unwrap();
    let both = [founder.address().to_owned(), other.address().to_owned()];
    let joined = identity_in(home.path(), &both, Some(&p1_token)).await.unwrap();
    assert_eq!(joined.subject().server, p1_id);

    // A proxy can have none made, nor is it given the authority's key.
    let endpoint = Endpoint::new(Credentials::new(&identity).unwrap());
    let contacts = Arc::new(Contacts::new(&endpoint, vec![contact(&founder)]));
    let proxy = ManagersClient::start(contacts);
    let refused = proxy.issue_token(new_server("p2", ServerRole::Proxy), None).await;
    assert!(matches!(refused, Err(NotIssued::Told(_))), "{refused:?}");
    let map = until(&proxy, "the map", |map| map.servers.contains_key(&p1_id)).await;
    assert!(map.servers.values().all(|server| server.name != "p2"));
    assert_eq!(proxy.authority(ServerId(99)).await, None);
    let managers = Contacts::new(&other_endpoint(home.path()), vec![contact(&founder)]);
    let (deadline, asked) = (Instant::now() + Duration::from_secs(10), ManagerCall::Authority);
    let answer = managers.call(&map, founder.server(), &asked, deadline).await.unwrap();
    assert_eq!(answer, (ManagerReply::NotAllowed, Bytes::new()));
}

/// As the server whose identity is in this directory.
fn other_endpoint(dir: &Path) -> Arc<Endpoint> {
    let identity = Identity::load(&dir.join(IDENTITY_FILE)).unwrap();
    Endpoint::new(Credentials::new(&identity).unwrap())
}

/// Three managers of which the founder is then lost for good.
#[tokio::test]
async fn servers_join_and_renew_without_the_founder() {
    let servers = vec![
        new_server("m1", ServerRole::Manager),
        new_server("m2", ServerRole::Manager),
        new_server("d0", ServerRole::Data),
    ];
    let (dir, tokens) = found_with(servers);
    let mut brief = config(dir.path(), Vec::new());
    brief.certificate_life = Duration::from_secs(3);
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let founder = Manager::start(brief, socket).unwrap();
    let homes = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let m1 = join_and_start(homes[0].path(), &founder, &tokens[0].1).await;
    let m2 = join_and_start(homes[1].path(), &founder, &tokens[1].1).await;
    for manager in [&m1, &m2] {
        until_it_signs(manager).await;
        let all_vote = |quorum_status: &QuorumStatus| quorum_status.members.voters.len() == 3;
        until_seen(manager.quorum_status(), all_vote).await;
    }
    let mode = homes[0].path().join(AUTHORITY_FILE).metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "its owner's alone");

    // A data server with a certificate of three seconds.
    let address = founder.address().to_owned();
    let path = homes[2].path().join(IDENTITY_FILE);
    let identity = identity_in(homes[2].path(), &[address], Some(&tokens[2].1)).await.unwrap();
    let ends = identity.valid_until();
    assert!(ends <= SystemTime::now() + Duration::from_secs(3));
    founder.stop().await.unwrap();
    drop(dir);

    let credentials = Credentials::new(&identity).unwrap();
    let endpoint = Endpoint::new(credentials.clone());
    let contacts = || Arc::new(Contacts::new(&endpoint, vec![contact(&m1), contact(&m2)]));
    let client = Arc::new(ManagersClient::start(contacts()));
    let renewal = Renewal::of_member(path.clone(), identity, credentials, client.clone());
    until_seen(renewal.certificate_expiry().renewals(), |times| *times >= 1).await;
    assert!(renewal.certificate_expiry().seconds_left() > 80.0 * 86_400.0, "as long as theirs is");
    assert!(Identity::load(&path).unwrap().valid_until() > ends, "and kept");
    // New connections go on after the old certificate's end: nothing was started again.
    while SystemTime::now() <= ends {
        sleep(Duration::from_millis(20)).await;
    }
    let later = ManagersClient::start(contacts());
    until(&later, "the map", |map| map.founded.is_some()).await;

    let (d1, token) = m2.issue_token(new_server("d1", ServerRole::Data), None).await.unwrap();
    let identity = join(m2.address(), &token).await.unwrap();
    assert_eq!(identity.subject().server, d1);
}

#[tokio::test]
async fn a_manager_whose_certificate_has_ended_signs_another_for_itself() {
    let (dir, _) = found_with(Vec::new());
    let path = dir.path().join(IDENTITY_FILE);
    let subject = Identity::load(&path).unwrap().subject();
    let authority = dir.path().join(AUTHORITY_FILE);
    let authority = Authority::load(subject.cluster, &authority).unwrap();
    let ended = authority.identity_for(subject.server, subject.roles, Duration::ZERO).unwrap();
    ended.save(&path).unwrap();
    let manager = start(dir.path(), Vec::new()).await;
    assert!(manager.certificate_expiry().seconds_left() > 80.0 * 86_400.0);
    let is_up = |map: &state::Topology| is(map, ServerId(0), ServerState::Up);
    until(manager.managers(), "up", is_up).await;
}
