use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use larder_identity::{Authority, Identity, Roles};
use larder_net::ListenSocket;
use larder_protocol::limits::{MANAGERS_MAX, TIMELINES_VERSION};
use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{
    ClusterId, Command, Keep, KeyPair, NewServer, Outcome, RootRecord, ServerRole, Settings,
    Topology,
};
use larder_protocol::placement::{FailureDomains, Weight};
use larder_types::{BootId, BucketName, DiskId, LvId, PgId, ServerId, View};
use tokio::net::TcpListener;

use super::*;
use crate::identity::{IDENTITY_FILE, roles_of};
use crate::limits::{IDS_SKIPPED, VERSIONS_SKIPPED};
use crate::manager::quorum::{AUTHORITY_FILE, Manager, ManagerConfig, before, has_taken};
use crate::managers::{BadMap, MAP_FILE, Managers, StoredMap};

const CLUSTER: u64 = 0xc0ffee;
const TOKEN: [u8; 32] = [7; 32];
/// Machines, each with a manager, a meta and a data server, and a proxy, in this order of ids.
const MACHINES: u32 = 3;

/// Managers' map, command by command.
#[derive(Clone)]
struct Log(Topology);

impl Log {
    fn done(&mut self, command: Command) -> Outcome {
        let index = LogIndex(self.0.applied.0 + 1);
        self.0.apply(index, command).expect("the test's commands are right")
    }

    fn cluster() -> Self {
        let mut log = Self(Topology::default());
        let settings = Settings {
            pg_count: 2,
            members: 3,
            min_members: 2,
            copies: 3,
            min_copies: 2,
            lv_blocks: 64,
        };
        log.done(Command::Found(ClusterId(CLUSTER), settings));
        log.done(Command::AddToken(TOKEN, u64::MAX));
        for machine in 0..MACHINES {
            for role in [ServerRole::Manager, ServerRole::Meta, ServerRole::Data, ServerRole::Proxy]
            {
                let name = format!("host{machine}:7000/{}", crate::node::role_name(role));
                let new = NewServer {
                    name,
                    roles: BTreeSet::from([role]),
                    addresses: Vec::new(),
                    domains: FailureDomains::default(),
                    weight: Weight(100),
                };
                let is_first = log.0.servers.is_empty();
                log.done(Command::AddServer(new, (!is_first).then_some((TOKEN, 0))));
            }
        }
        for id in 0..4 * MACHINES {
            log.started(id, 1);
        }
        log.done(Command::RaiseClusterVersion(TIMELINES_VERSION));
        log
    }

    fn started(&mut self, id: u32, run: u64) {
        self.done(Command::ServerStarted(ServerId(id), BootId(run), Vec::new(), Vec::new()));
    }

    fn timeline(mut self, id: u64) -> Self {
        self.done(Command::BeginTimeline(id));
        self
    }
}

/// The map of a meta server (1, 5, 9) or a data server (2, 6, 10).
fn file(server: u32, log: &Log) -> Source {
    let bytes = StoredMap::encode(ServerId(server), &log.0);
    read(format!("map-{server}"), &bytes).unwrap()
}

fn files(log: &Log) -> Vec<Source> {
    [1, 2, 5, 6, 9, 10].map(|server| file(server, log)).into()
}

fn recovered(files: &[Source], lost: &[&str]) -> MadeRecovery {
    let lost: Vec<String> = lost.iter().map(|name| (*name).to_owned()).collect();
    make(files, &lost, false).unwrap()
}

fn refusal(files: &[Source], lost: &[&str]) -> String {
    let lost: Vec<String> = lost.iter().map(|name| (*name).to_owned()).collect();
    make(files, &lost, false).expect_err("it is refused").to_string()
}

#[test]
fn the_latest_map_is_gone_on_from_under_a_timeline_and_an_authority_of_its_own() {
    let mut log = Log::cluster().timeline(5);
    let mut maps = files(&log);
    log.started(0, 2);
    maps[3] = file(6, &log);
    let made = recovered(&maps, &[]);
    assert_eq!(made.of, "map-6");
    let Recovery { map, voters, authority } = &made.recovery;
    assert_eq!(*voters, [0, 4, 8].map(ServerId).into());
    assert_eq!(map.version.0, log.0.version.0 + 1 + VERSIONS_SKIPPED);
    assert_eq!(
        map.timelines[1].since.0,
        log.0.version.0 + 1,
        "what others made since is not of it"
    );
    assert_eq!(map.timelines.len(), 2);
    assert_eq!(map.next.bucket.0, log.0.next.bucket.0 + u64::from(IDS_SKIPPED));
    let expected = Topology {
        version: map.version,
        applied: map.applied,
        timelines: map.timelines.clone(),
        next: map.next,
        tokens: map.tokens.clone(),
        ..log.0.clone()
    };
    assert_eq!(*map, expected, "nothing else is changed");
    let again = recovered(&maps, &[]).recovery;
    assert_ne!((&again.authority, &again.map.timelines), (authority, &map.timelines));
    assert_eq!((made.loss, made.forgets_root), (Loss::default(), false));
}

#[test]
fn what_a_server_did_that_was_not_asked_is_not_left_out_in_silence() {
    let log = Log::cluster();
    let all = files(&log);
    let missing = refusal(&all[1..], &[]);
    assert!(
        missing.contains("host0:7000/meta (server 1)") && missing.contains("--lost"),
        "{missing}"
    );
    let without = recovered(&all[2..], &["host0:7000"]);
    assert_eq!(without.recovery.voters, [4, 8].map(ServerId).into(), "its manager is lost, too");
    assert_eq!(without.lost.len(), 3);
    recovered(&all[1..], &["1"]);
    recovered(&all[1..], &["host0:7000/meta"]);
    let two = refusal(&all[4..], &["host0:7000", "host1:7000"]);
    assert!(two.contains("2 meta servers are lost, and 2 are enough"), "{two}");
    let lost = ["host0:7000".to_owned(), "host1:7000".to_owned()];
    assert_eq!(make(&all[4..], &lost, true).unwrap().loss.metas, Some((2, 2)));
    let given = refusal(&all, &["host0:7000"]);
    assert!(given.contains("so it is not lost"), "{given}");
    let unknown = refusal(&all, &["host9:7000"]);
    assert!(unknown.contains("host0:7000/manager (server 0)"), "{unknown}");
    let managers = ["host0:7000/manager", "host1:7000/manager", "host2:7000/manager"];
    assert!(refusal(&all, &managers).contains("all managers"));
    assert!(refusal(&[], &[]).contains("cluster-map"));
}

#[test]
fn unreachable_groups_and_volumes_are_reported_before_anything_changes() {
    let mut log = Log::cluster();
    for id in [2, 6, 10] {
        log.done(Command::AddDisk(ServerId(id), Weight(1), 9));
    }
    let all = |ids: [u32; 3]| ids.map(ServerId).to_vec();
    for pg in [0, 1].map(PgId) {
        log.done(Command::BeginView(pg, View(0), all([1, 5, 9])));
        log.done(Command::ViewActivated(pg, View(1)));
    }
    let disks = |servers: &[u32]| {
        let disk = |id: &u32| (ServerId(*id), DiskId((id - 2) / 4));
        servers.iter().map(disk).collect::<Vec<_>>()
    };
    log.done(Command::CreateLv(PgId(0), disks(&[2, 6])));
    log.done(Command::LvCreated(LvId(0)));
    assert_eq!(recovered(&files(&log)[2..], &["host0:7000"]).loss, Loss::default());
    // One went, so only two are left, of which one may be lost no more.
    log.done(Command::BeginView(PgId(1), View(1), vec![ServerId(1), ServerId(5)]));
    log.done(Command::ViewActivated(PgId(1), View(2)));
    let refused = refusal(&files(&log)[2..], &["host0:7000"]);
    assert!(refused.contains("1 placement groups can begin no view, and 0 volumes"), "{refused}");
    let lost = ["host0:7000/data".to_owned(), "host1:7000/data".to_owned()];
    let kept = [1, 5, 9, 10].map(|server| file(server, &log));
    let loss = make(&kept, &lost, true).unwrap().loss;
    assert_eq!((loss.volumes, loss.datas), (1, Some((2, 2))));
}

#[test]
fn more_managers_than_may_vote_are_to_be_chosen_from() {
    let mut log = Log::cluster();
    for number in 0..MANAGERS_MAX as u32 {
        let new = NewServer {
            name: format!("more{number}"),
            roles: BTreeSet::from([ServerRole::Manager]),
            addresses: Vec::new(),
            domains: FailureDomains::default(),
            weight: Weight(100),
        };
        log.done(Command::AddServer(new, Some((TOKEN, 0))));
        log.started(4 * MACHINES + number, 1);
    }
    let refused = refusal(&files(&log), &[]);
    assert!(refused.contains("more managers than may vote (5)"), "{refused}");
    let made = recovered(&files(&log), &["more0", "more1", "more2"]);
    assert_eq!(made.recovery.voters.len(), MANAGERS_MAX);
}

#[test]
fn a_cluster_with_servers_that_keep_no_maps_is_refused() {
    let mut log = Log::cluster();
    log.0.cluster_version = TIMELINES_VERSION - 1;
    let refused = refusal(&files(&log), &[]);
    assert!(refused.contains("cluster's version is 20"), "{refused}");
}

#[test]
fn a_surviving_managers_log_may_be_ahead_of_all_servers() {
    let log = Log::cluster();
    let root = tempfile::tempdir().unwrap();
    let recovery = recovered(&files(&log), &[]).recovery;
    let dir = root.path().join("manager");
    take(&recovery, &dir, Some(ServerId(8))).unwrap();
    let bytes = fs::read(dir.join("quorum/log")).unwrap();
    let of_log = read("log".to_owned(), &bytes).unwrap();
    assert_eq!((of_log.server, &of_log.map), (ServerId(8), &recovery.map));
    let mut maps = files(&log);
    maps.push(of_log);
    assert_eq!(recovered(&maps, &[]).of, "log");
    // A tail that was never agreed on is of no use.
    let mut ahead = log.clone().timeline(99);
    ahead.started(0, 7);
    let mut later = log.clone().timeline(98);
    later.started(4, 7);
    let maps = files(&log).into_iter().chain([
        file(1, &later),
        Source { name: "torn".to_owned(), server: ServerId(0), is_log: true, map: ahead.0 },
    ]);
    let made = recovered(&maps.collect::<Vec<_>>(), &[]);
    assert_eq!((&*made.of, made.passed_over), ("map-1", vec!["torn".to_owned()]));
    let unreadable = read("log".to_owned(), &bytes[..bytes.len() - 8]).unwrap_err();
    assert_eq!(unreadable, NoSource::Log, "its only record is torn");
    assert_eq!(read("x".to_owned(), b"x").unwrap_err(), BadMap::Damaged.into());
}

#[test]
fn maps_of_other_clusters_or_histories_are_refused() {
    let mut log = Log::cluster().timeline(5);
    let mut maps = files(&log);
    let mut other = log.clone();
    other.0.founded = other.0.founded.map(|(_, settings)| (ClusterId(1), settings));
    maps[0] = file(1, &other);
    assert!(refusal(&maps, &[]).contains("different clusters"));
    let copy = log.clone();
    log = log.timeline(6);
    log.started(0, 2);
    maps = files(&log);
    // It went on by itself, and is of a later version.
    let mut other = copy.timeline(7);
    for run in 10..15 {
        other.started(0, run);
    }
    maps[2] = file(5, &other);
    let refused = refusal(&maps, &[]);
    assert!(refused.contains("different histories") && refused.contains("map-5"), "{refused}");
}

#[test]
fn root_keys_are_gone_on_with_if_a_managers_log_has_them() {
    let mut log = Log::cluster();
    let pair = KeyPair { access_key: "abc".to_owned(), secret_key: "a-secret-key".to_owned() };
    log.done(Command::RotateRoot(0, pair.clone(), Keep::Nothing));
    let root = log.0.root.clone();
    let bare = root.as_ref().map(RootRecord::without_secrets);
    let kept = Log(Topology { root: bare, ..log.0.clone() });
    let without = recovered(&files(&kept), &[]);
    assert_eq!((without.recovery.map.root, without.forgets_root), (None, true));
    let mut maps = files(&kept);
    maps.push(Source { name: "log".to_owned(), server: ServerId(0), is_log: true, map: log.0 });
    let with = recovered(&maps, &[]);
    assert_eq!((with.recovery.map.root, with.forgets_root), (root, false));
}

#[test]
fn a_recovery_has_golden_bytes_prints_no_key_and_reads_back() {
    let map = Log(Topology::default()).0;
    let recovery =
        Recovery { map, voters: [300].map(ServerId).into(), authority: "pem".to_owned() };
    let bytes = recovery.encode();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, include_str!("../../tests/golden/recovery.hex").trim_end());
    assert_eq!(Recovery::decode(&bytes), Ok(recovery.clone()));
    assert!(!format!("{recovery:?}").contains("pem"));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert_eq!(Recovery::decode(&damaged), Err(BadRecovery::Damaged));
        assert_eq!(Recovery::decode(&bytes[..at]), Err(BadRecovery::Damaged));
    }
}

/// The directory of a server with an identity of the authority before, and its map.
fn server_dir(root: &Path, server: u32, log: &Log) -> std::path::PathBuf {
    let dir = root.join(server.to_string());
    fs::create_dir_all(&dir).unwrap();
    let roles = roles_of(&log.0.servers[&ServerId(server)].roles);
    identify(&dir, CLUSTER, server, roles);
    if !server.is_multiple_of(4) {
        fs::write(dir.join(MAP_FILE), StoredMap::encode(ServerId(server), &log.0)).unwrap();
    }
    dir
}

fn identify(dir: &Path, cluster: u64, server: u32, roles: Roles) {
    let authority = Authority::create(larder_types::ClusterId(cluster)).unwrap();
    let identity = authority.identity(ServerId(server), roles).unwrap();
    identity.save(&dir.join(IDENTITY_FILE)).unwrap();
}

#[test]
fn directories_that_cannot_take_it_are_left_as_they_are() {
    let root = tempfile::tempdir().unwrap();
    let log = Log::cluster().timeline(5);
    let recovery = recovered(&files(&log), &[]).recovery;
    let meta = server_dir(root.path(), 1, &log);
    let before = fs::read(meta.join(IDENTITY_FILE)).unwrap();
    let refused = |dir: &Path, server: Option<u32>| {
        let refused = take(&recovery, dir, server.map(ServerId)).expect_err("it is refused");
        assert_eq!(
            check(&recovery, dir, server.map(ServerId)).unwrap_err().to_string(),
            refused.to_string()
        );
        refused.to_string()
    };
    assert!(refused(&meta, Some(2)).contains("is server 1's, and not server 2's"));
    let mut later = log.clone();
    later.started(0, 9);
    fs::write(meta.join(MAP_FILE), StoredMap::encode(ServerId(1), &later.0)).unwrap();
    assert!(refused(&meta, None).contains("make it again"), "it has heard of more");
    let again = recovered(&[&files(&log)[1..], &[file(1, &later)]].concat(), &[]).recovery;
    assert!(check(&again, &meta, None).is_ok(), "it is made again");
    let gone_on = Log(recovery.map.clone()).timeline(6);
    fs::write(meta.join(MAP_FILE), StoredMap::encode(ServerId(1), &gone_on.0)).unwrap();
    assert!(refused(&meta, None).contains("has run since"));
    fs::write(meta.join(MAP_FILE), b"?").unwrap();
    assert!(refused(&meta, None).contains("damaged"));
    fs::remove_file(meta.join(MAP_FILE)).unwrap();
    assert!(refused(&meta, None).contains("not known what its server did"));
    assert_eq!(fs::read(meta.join(IDENTITY_FILE)).unwrap(), before);
    let empty = root.path().join("empty");
    assert!(refused(&empty, None).contains("--server"));
    assert!(refused(&empty, Some(1)).contains("is no manager"), "a meta server has lost its data");
    assert!(refused(&empty, Some(77)).contains("none of the recovery's map"));
    identify(&meta, 1, 1, Roles::default());
    assert!(refused(&meta, None).contains("of cluster 0000000000000001"));
    assert!(!empty.exists());
    let without = recovered(&files(&log)[2..], &["host0:7000"]).recovery;
    let refused = take(&without, &empty, Some(ServerId(0))).unwrap_err();
    assert!(refused.to_string().contains("named as lost"), "{refused}");
}

async fn start(dir: &Path) -> Manager {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = ManagerConfig {
        dir: dir.to_owned(),
        address: None,
        managers: Vec::new(),
        certificate_life: Duration::from_secs(3600),
        colocated: None,
    };
    Manager::start(config, ListenSocket::from(socket)).unwrap()
}

async fn until_leads(manager: &Manager) {
    let mut quorum_status = manager.quorum_status();
    quorum_status.wait_for(|quorum_status| quorum_status.leads).await.expect("it goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn managers_go_on_from_the_map_and_never_from_it_twice() {
    let root = tempfile::tempdir().unwrap();
    let log = Log::cluster();
    // Two of three machines, and so two of three managers, are of no account here: one is to lead alone.
    let recovery = recovered(&files(&log), &["4", "8"]).recovery;
    let manager = server_dir(root.path(), 0, &log);
    fs::create_dir(manager.join("quorum")).unwrap();
    fs::write(manager.join("quorum/log"), b"a log of before").unwrap();
    fs::write(manager.join("tokens"), b"tokens of before").unwrap();
    let taken = take(&recovery, &manager, None).unwrap();
    assert_eq!((taken.server, &*taken.name), (ServerId(0), "host0:7000/manager"));
    assert_eq!(fs::read(taken.aside.unwrap()).unwrap(), b"a log of before");
    assert!(!manager.join("tokens").exists());
    let proxy = server_dir(root.path(), 3, &log);
    take(&recovery, &proxy, None).unwrap();
    let of_proxy = Identity::load(&proxy.join(IDENTITY_FILE)).unwrap();
    let authority =
        Authority::from_pem(larder_types::ClusterId(CLUSTER), recovery.authority.as_bytes());
    let authority = authority.unwrap();
    assert!(authority.signed(&of_proxy));
    let before = proxy.join(format!("{IDENTITY_FILE}.{}", before(&recovery.map)));
    let before = Identity::load(&before).unwrap();
    assert!(!authority.signed(&before), "in case the managers before go on");
    let kept = StoredMap::decode(&fs::read(proxy.join(MAP_FILE)).unwrap()).unwrap();
    assert_eq!(kept.map, log.0, "another recovery may be made");

    // A cut-off one is repeated.
    assert_eq!(take(&recovery, &manager, None).unwrap().aside, None);
    let runs = start(&manager).await;
    until_leads(&runs).await;
    let bucket = Command::CreateBucket(BucketName::new("abc").unwrap(), None, 5);
    assert!(runs.managers().propose(bucket).await.unwrap().is_ok());
    runs.stop().await.unwrap();

    // Changes that were agreed on since are kept, whatever is repeated.
    assert!(take(&recovery, &manager, None).unwrap().goes_on);
    let runs = start(&manager).await;
    until_leads(&runs).await;
    let mut versions = runs.managers().versions();
    while runs.managers().map().buckets.is_empty() {
        versions.changed().await.unwrap();
    }
    let map = runs.managers().map();
    assert!(map.version > recovery.map.version && has_taken(&map, &recovery.map));
    assert_eq!(map.servers.len(), 12);
    let busy = take(&recovery, &manager, None).unwrap_err();
    assert!(busy.to_string().contains("stop its server first"), "{busy}");
    runs.stop().await.unwrap();

    fs::remove_file(manager.join("quorum/log")).unwrap();
    let forgotten = take(&recovery, &manager, None).unwrap_err();
    assert!(forgotten.to_string().contains("not made anew twice"), "{forgotten}");
}

#[test]
fn a_recovery_that_was_cut_off_is_taken_again() {
    let root = tempfile::tempdir().unwrap();
    let log = Log::cluster();
    let recovery = recovered(&files(&log), &["4", "8"]).recovery;
    let manager = server_dir(root.path(), 0, &log);
    let authority = Authority::create(larder_types::ClusterId(CLUSTER)).unwrap();
    authority.save(&manager.join(AUTHORITY_FILE)).unwrap();
    let names = [IDENTITY_FILE, AUTHORITY_FILE];
    let olds = names.map(|name| fs::read(manager.join(name)).unwrap());
    let copies = names.map(|name| manager.join(format!("{name}.{}", before(&recovery.map))));
    let are_kept = || assert_eq!(copies.each_ref().map(|copy| fs::read(copy).unwrap()), olds);
    // An earlier release was cut off within the copies, which had their names at once.
    copies.iter().for_each(|copy| fs::write(copy, b"").unwrap());
    take(&recovery, &manager, None).unwrap();
    are_kept();

    // Cut off behind the log, before tokens were forgotten: with the new authority, and the old identity.
    fs::write(manager.join(IDENTITY_FILE), &olds[0]).unwrap();
    fs::write(manager.join("tokens"), b"tokens of before").unwrap();
    assert!(take(&recovery, &manager, None).unwrap().goes_on);
    assert!(!manager.join("tokens").exists());
    are_kept();

    // A copy that was lost is not made of the new authority.
    fs::write(manager.join(IDENTITY_FILE), &olds[0]).unwrap();
    fs::write(&copies[1], b"").unwrap();
    take(&recovery, &manager, None).unwrap();
    assert_eq!(fs::read(&copies[1]).unwrap(), b"");
}

#[test]
fn a_directory_that_lost_its_manager_gets_one() {
    let root = tempfile::tempdir().unwrap();
    let recovery = recovered(&files(&Log::cluster()), &[]).recovery;
    let dir = root.path().join("host2/manager");
    let taken = take(&recovery, &dir, Some(ServerId(8))).unwrap();
    assert_eq!((taken.server, taken.aside), (ServerId(8), None));
    let subject = Identity::load(&dir.join(IDENTITY_FILE)).unwrap().subject();
    assert_eq!((subject.server, subject.cluster.0), (ServerId(8), CLUSTER));
    let log = crate::manager::quorum::keeps_snapshot(
        std::sync::Arc::new(larder_env::RealDisk::open(&dir).unwrap()),
        larder_types::ClusterId(CLUSTER),
        ServerId(8),
    );
    assert!(log.unwrap());
}
