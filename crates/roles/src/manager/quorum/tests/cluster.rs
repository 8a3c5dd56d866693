//! Managers over real connections.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use larder_identity::{Credentials, Identity};
use larder_net::limits::CONNECT_TIME_MAX;
use larder_net::{Endpoint, Peer};
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::state::{
    Command, Outcome, Refusal, ServerRole, ServerState, Topology,
};
use larder_types::{BootId, BucketName, ServerId};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use super::support::{
    Idle, config, contact, found_with, is, join_and_start, new_server, start, until, until_seen,
};
use crate::identity::{IDENTITY_FILE, identity_in};
use crate::limits::{MAP_WAIT_MS, NO_QUORUM_MS};
use crate::manager::quorum::{Founding, LOG_FILE, Manager, ManagerError, found};
use crate::managers::{Contacts, Managers, ManagersClient, NotProposed};
use crate::wire::{ManagerMessageIn, ManagerService};

/// Makes a bucket; asks again when nobody knows what came of it, as a manager that stops leaves it.
async fn create_bucket(manager: &Manager, name: &str) {
    let name = BucketName::new(name).unwrap();
    let mut unknown = false;
    for _ in 0..5 {
        let command = Command::CreateBucket(name.clone(), None, 1);
        match manager.managers().propose(command).await {
            Ok(Ok(Outcome::Bucket(_))) => return,
            Ok(Err(Refusal::BucketExists)) if unknown => return,
            Err(NotProposed::Unknown) => unknown = true,
            other => panic!("{other:?}"),
        }
    }
    panic!("the managers do not agree");
}

async fn until_bucket(manager: &Manager, name: &str) {
    let name = BucketName::new(name).unwrap();
    until(manager.managers(), "a bucket", |map| map.buckets.contains_key(&name)).await;
}

async fn until_voters(manager: &Manager, voters: &[u32]) {
    let voters: BTreeSet<ServerId> = voters.iter().copied().map(ServerId).collect();
    let settled = |members: &larder_protocol::manager::quorum::Members| {
        members.voters == voters && members.next_voters.is_empty()
    };
    until_seen(manager.quorum_status(), |quorum_status| settled(&quorum_status.members)).await;
}

/// Three managers that vote; the first is the founder.
async fn three() -> Vec<(TempDir, Manager)> {
    let others = ["m1", "m2"].map(|name| new_server(name, ServerRole::Manager));
    let (dir, tokens) = found_with(others.to_vec());
    let founder = start(dir.path(), Vec::new()).await;
    let mut managers = vec![(dir, founder)];
    for (_, token) in &tokens {
        let dir = tempfile::tempdir().unwrap();
        let manager = join_and_start(dir.path(), &managers[0].1, token).await;
        managers.push((dir, manager));
    }
    for (_, manager) in &managers {
        until_voters(manager, &[0, 1, 2]).await;
    }
    // A manager votes before the map calls it up; none may be removed until then.
    let all_up = |map: &Topology| (0..3).all(|id| is(map, ServerId(id), ServerState::Up));
    until(managers[0].1.managers(), "all up", all_up).await;
    managers
}

#[tokio::test]
async fn what_all_managers_know_is_agreed_on() {
    // Each has spoken to the leader, on a connection of this release: else they would not vote.
    let managers = three().await;
    let forgotten = managers[0].1.managers().propose(Command::ForgetTokens(0)).await;
    assert_eq!(forgotten, Ok(Ok(Outcome::Already)));
}

#[tokio::test]
async fn a_founded_cluster_keeps_its_map_over_a_restart() {
    let (dir, _) = found_with(Vec::new());
    let manager = start(dir.path(), Vec::new()).await;
    let first = until(manager.managers(), "up", |map| is(map, ServerId(0), ServerState::Up)).await;
    create_bucket(&manager, "kept").await;
    manager.stop().await.unwrap();

    let manager = start(dir.path(), Vec::new()).await;
    until_bucket(&manager, "kept").await;
    let boot = first.servers[&ServerId(0)].boot;
    let again =
        |map: &_| is(map, ServerId(0), ServerState::Up) && map.servers[&ServerId(0)].boot != boot;
    let map = until(manager.managers(), "its next run", again).await;
    assert_eq!(map.founded, first.founded);
}

#[tokio::test]
async fn one_process_at_a_time_uses_a_directory_and_nobody_founds_twice_in_it() {
    let (dir, _) = found_with(Vec::new());
    let manager = start(dir.path(), Vec::new()).await;
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = config(dir.path(), Vec::new());
    assert!(matches!(Manager::start(config, socket), Err(ManagerError::Disk(_))));
    manager.stop().await.unwrap();
    let founding = Founding {
        settings: super::support::SETTINGS,
        manager: new_server("m0", ServerRole::Manager),
        servers: Vec::new(),
        expires: None,
    };
    assert!(matches!(found(dir.path(), founding), Err(ManagerError::Taken)));
}

#[tokio::test]
async fn a_manager_whose_log_is_gone_does_not_start_as_one_that_never_voted() {
    let (dir, tokens) = found_with(vec![new_server("m1", ServerRole::Manager)]);
    let founder = start(dir.path(), Vec::new()).await;
    let home = tempfile::tempdir().unwrap();
    let joined = join_and_start(home.path(), &founder, &tokens[0].1).await;
    until_voters(&joined, &[0, 1]).await;
    joined.stop().await.unwrap();
    let log = home.path().join(LOG_FILE);
    std::fs::remove_file(&log).unwrap();
    for _ in 0..2 {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refused = Manager::start(config(home.path(), vec![contact(&founder)]), socket);
        assert!(matches!(refused, Err(ManagerError::LogGone)));
        assert!(!log.exists());
    }
}

#[tokio::test]
async fn a_manager_whose_end_somebody_waited_for_frees_its_directory_before_it_is_stopped() {
    let (dir, _) = found_with(Vec::new());
    let mut manager = start(dir.path(), Vec::new()).await;
    assert!(manager.ended().now_or_never().is_none(), "it runs");
    manager.stop().await.unwrap();
    start(dir.path(), Vec::new()).await.stop().await.unwrap();
}

#[tokio::test]
async fn two_of_three_managers_go_on_and_the_third_catches_up_at_another_address() {
    let mut managers = three().await;
    create_bucket(&managers[1].1, "all").await;

    // The founder goes, which probably leads.
    let (dir, founder) = managers.remove(0);
    founder.stop().await.unwrap();
    create_bucket(&managers[0].1, "two").await;
    create_bucket(&managers[1].1, "more").await;

    // It returns elsewhere, with what its log says of the others, and counts again.
    let founder = start(dir.path(), Vec::new()).await;
    until_bucket(&founder, "more").await;
    until(managers[0].1.managers(), "its new address", |map| {
        map.servers[&ServerId(0)].addresses == [founder.address().to_owned()]
    })
    .await;
    managers.remove(0).1.stop().await.unwrap();
    create_bucket(&founder, "three").await;
    until_bucket(&managers[0].1, "three").await;
}

#[tokio::test]
async fn managers_that_all_lost_their_power_find_each_other_by_their_logs() {
    let managers = three().await;
    create_bucket(&managers[1].1, "kept").await;
    let mut homes = Vec::new();
    for (dir, manager) in managers {
        let address = manager.address().to_owned();
        manager.stop().await.unwrap();
        homes.push((dir, address));
    }
    // Two are enough; one of them was not told of the other when it joined.
    let mut managers = Vec::new();
    for (dir, address) in &homes[1..] {
        let socket = bind_again(address).await;
        managers.push(Manager::start(config(dir.path(), Vec::new()), socket).unwrap());
    }
    for manager in &managers {
        until_bucket(manager, "kept").await;
    }
    create_bucket(&managers[0], "after").await;
}

/// A port that was in use a moment ago.
async fn bind_again(address: &str) -> TcpListener {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match TcpListener::bind(address).await {
            Ok(socket) => return socket,
            Err(error) if Instant::now() > deadline => panic!("{error}"),
            Err(_in_use) => tokio::task::yield_now().await,
        }
    }
}

/// A manager, and a client of it that waits for another one, which takes connections and says nothing.
struct Silent {
    founder: Manager,
    client: ManagersClient,
    _asked: (TcpListener, TcpStream),
    _dirs: [TempDir; 2],
}

async fn asks_a_silent_manager() -> Silent {
    let (dir, tokens) = found_with(vec![new_server("d0", ServerRole::Data)]);
    let founder = start(dir.path(), Vec::new()).await;
    let data = tempfile::tempdir().unwrap();
    let identity = identity_in(data.path(), &[contact(&founder).1], Some(&tokens[0].1)).await;
    let endpoint = Endpoint::new(Credentials::new(&identity.unwrap()).unwrap());
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let managers = vec![contact(&founder), (ServerId(77), address)];
    let client = ManagersClient::start(Arc::new(Contacts::new(&endpoint, managers)));
    // The other has had no news for long enough; now this one is asked, which says nothing for seconds.
    let asked = timeout(Duration::from_secs(60), silent.accept()).await.expect("in time").unwrap();
    Silent { founder, client, _asked: (silent, asked.0), _dirs: [dir, data] }
}

#[tokio::test]
async fn a_stalled_manager_does_not_delay_an_announced_map() {
    let all = asks_a_silent_manager().await;
    let Silent { founder, client, .. } = &all;
    create_bucket(founder, "told").await;
    until_bucket(founder, "told").await;
    let begun = Instant::now();
    client.note_newer_map(founder.managers().map().version);
    let bucket = BucketName::new("told").unwrap();
    until(client, "the other's map", |map| map.buckets.contains_key(&bucket)).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(MAP_WAIT_MS), "{took:?}");
}

#[tokio::test]
async fn another_manager_is_queried_beside_a_late_one() {
    let all = asks_a_silent_manager().await;
    let Silent { founder, client, .. } = &all;
    create_bucket(founder, "news").await;
    let begun = Instant::now();
    let notifier = BucketName::new("news").unwrap();
    until(client, "the other's map", |map| map.buckets.contains_key(&notifier)).await;
    let took = begun.elapsed();
    assert!(took < CONNECT_TIME_MAX / 2, "{took:?}");
}

#[tokio::test]
async fn a_removed_manager_leaves_the_quorum() {
    let managers = three().await;
    let (_, founder) = &managers[0];
    let removed = founder.managers().propose(Command::RemoveServer(ServerId(2))).await;
    assert_eq!(removed, Ok(Ok(Outcome::Done)));
    until_voters(founder, &[0, 1]).await;
    until_voters(&managers[1].1, &[0, 1]).await;
    create_bucket(founder, "after").await;
    // It hears of that, and has no say any more.
    let removed = &managers[2].1;
    until(removed.managers(), "removed", |map| is(map, ServerId(2), ServerState::Removed)).await;
    let back = removed.managers().propose(Command::SetDraining(ServerId(0), true)).await;
    assert_eq!(back, Err(NotProposed::NotAllowed));
    let token = removed.managers().issue_token(new_server("d9", ServerRole::Data), None).await;
    assert!(token.is_err(), "a removed manager lets nobody join: {token:?}");
}

#[tokio::test]
async fn a_follower_manager_forwards_servers_messages() {
    let managers = three().await;
    let (_, founder) = &managers[0];
    let (server, token) =
        founder.issue_token(new_server("d0", ServerRole::Data), None).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let known = (vec![contact(founder)], Some(&token));
    let idle = Idle::start(dir.path(), known, BootId(1)).await;
    until(&idle.client, "up", |map| is(map, server, ServerState::Up)).await;
    let Idle { endpoint, client, .. } = &idle;

    let follower = managers.iter().find(|(_, it)| !it.quorum_status().borrow().leads).unwrap();
    let (id, address) = contact(&follower.1);
    let peer: Peer<ManagerService> = Peer::new(endpoint, id, address);
    let moved = vec!["moved:1".to_owned()];
    let started = ServerMessage::Started(BootId(1), moved.clone(), Vec::new());
    peer.send(&ManagerMessageIn::Server(started), Bytes::new()).unwrap();
    until(client, "moved", |map| map.servers[&server].addresses == moved).await;

    // Nobody but managers speaks for others.
    let start = (BootId(5), Vec::new(), Vec::new());
    let other = ServerMessage::started(&client.map(), ServerId(0), start);
    peer.send(&ManagerMessageIn::HandedOn(ServerId(0), other), Bytes::new()).unwrap();
    let moved = vec!["again:1".to_owned()];
    let started = ServerMessage::Started(BootId(1), moved.clone(), Vec::new());
    peer.send(&ManagerMessageIn::Server(started), Bytes::new()).unwrap();
    let map = until(client, "moved again", |map| map.servers[&server].addresses == moved).await;
    assert_ne!(map.servers[&ServerId(0)].boot, BootId(5));
}

#[tokio::test]
async fn any_client_learns_what_is_committed_and_nobody_without_a_quorum() {
    let mut managers = three().await;
    let soon = || Instant::now() + Duration::from_secs(30);
    for (number, (_, manager)) in managers.iter().enumerate() {
        create_bucket(manager, &format!("bucket{number}")).await;
        let made = manager.managers().map().buckets.len();
        for (_, other) in &managers {
            let version = other.managers().committed(soon()).await.unwrap();
            let map = until(other.managers(), "caught up", |map| map.version >= version).await;
            assert!(map.buckets.len() > number && made > number, "{number}");
        }
    }
    let (_dir, left) = managers.pop().unwrap();
    for (_, manager) in managers {
        manager.stop().await.unwrap();
    }
    let soon = Instant::now() + Duration::from_secs(2);
    let reported = left.managers().committed(soon).await;
    assert_eq!(reported, Err(NotProposed::NoLeader));
}

#[tokio::test]
async fn a_client_hears_that_managers_have_no_quorum_until_they_have_one() {
    let managers = three().await;
    create_bucket(&managers[0].1, "kept").await;
    let mut homes = Vec::new();
    for (dir, manager) in managers {
        let address = manager.address().to_owned();
        manager.stop().await.unwrap();
        homes.push((dir, address));
    }
    // Its log alone does not say what was agreed on: it shows no map.
    let begin = async |at: usize| {
        let (dir, address): &(TempDir, String) = &homes[at];
        let socket = bind_again(address).await;
        Manager::start(config(dir.path(), Vec::new()), socket).unwrap()
    };
    let alone = begin(0).await;
    let identity = Identity::load(&homes[1].0.path().join(IDENTITY_FILE)).unwrap();
    let endpoint = Endpoint::new(Credentials::new(&identity).unwrap());
    let places = (0..).map(ServerId).zip(homes.iter().map(|(_, address)| address.clone()));
    let client = ManagersClient::start(Arc::new(Contacts::new(&endpoint, places.collect())));
    let begun = Instant::now();
    timeout(Duration::from_secs(60), client.without_quorum()).await.expect("it hears of it");
    assert!(client.lacks_quorum() && client.map().founded.is_none());
    assert!(begun.elapsed() >= Duration::from_millis(NO_QUORUM_MS), "{:?}", begun.elapsed());
    let other = begin(2).await;
    let kept = BucketName::new("kept").unwrap();
    until(&client, "the map", |map| map.buckets.contains_key(&kept)).await;
    assert!(!client.lacks_quorum());
    drop((alone, other));
}
