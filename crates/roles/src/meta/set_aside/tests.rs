use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use larder_env::RealDisk;
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{
    Applied, ClusterId, Command, NewServer, ServerRole, Settings, Topology,
};
use larder_protocol::placement::{FailureDomains, Weight};
use larder_types::{BootId, MapVersion, PgId, View};
use parking_lot::Mutex;

use super::*;
use crate::managers::{NotProposed, VersionWatch, Versions};
use crate::meta::spare::can_be_spared;

const ME: ServerId = ServerId(2);

fn apply(map: &mut Topology, command: Command) {
    let index = LogIndex(map.version.0 + 1);
    map.apply(index, command).unwrap();
}

/// Three meta servers that are up, and a group of these members in an active view, of which these may lead.
fn map(members: &[u32], qualified: &[u32]) -> Topology {
    let mut map = Topology::default();
    let settings = Settings {
        pg_count: 1,
        members: 3,
        min_members: 2,
        copies: 1,
        min_copies: 1,
        lv_blocks: 256,
    };
    apply(&mut map, Command::Found(ClusterId(7), settings));
    apply(&mut map, Command::AddToken([1; 32], u64::MAX));
    for id in 0..3 {
        let new = NewServer {
            name: format!("s{id}"),
            roles: BTreeSet::from([ServerRole::Meta]),
            addresses: Vec::new(),
            domains: FailureDomains::default(),
            weight: Weight(100),
        };
        apply(&mut map, Command::AddServer(new, (id > 0).then_some(([1; 32], 0))));
        let boot = BootId(u64::from(id) + 1);
        apply(&mut map, Command::ServerStarted(ServerId(id), boot, vec![], vec![]));
    }
    let pg = &mut map.pgs[0];
    (pg.view, pg.activated) = (View(3), View(3));
    pg.members = members.iter().copied().map(ServerId).collect();
    pg.qualified = qualified.iter().copied().map(ServerId).collect();
    pg.target = (0..3).map(ServerId).collect();
    map
}

fn down(mut map: Topology, server: u32) -> Topology {
    apply(&mut map, Command::ServerDown(ServerId(server), BootId(u64::from(server) + 1)));
    map
}

#[test]
fn one_that_a_group_may_count_on_forgets_nothing() {
    let needed = Some(PgId(0));
    assert_eq!(needed_by(&map(&[0, 1], &[0, 1]), ME), None);
    assert_eq!(needed_by(&map(&[0, 1, 2], &[0, 1, 2]), ME), needed, "it is a member");
    assert_eq!(needed_by(&map(&[0, 1, 2], &[0, 1]), ME), needed, "a member that may not lead");
    let mut begun = map(&[0, 1], &[0, 1]);
    begun.pgs[0].view = View(4);
    assert_eq!(needed_by(&begun, ME), needed, "the view without it is not active");
    assert_eq!(needed_by(&down(map(&[0, 1], &[0]), 1), ME), None);
    assert_eq!(needed_by(&down(map(&[0, 1], &[0]), 0), ME), needed, "the one that has all is down");
    let mut others = down(map(&[0, 1], &[0]), 0);
    others.pgs[0].target = vec![ServerId(0), ServerId(1)];
    assert_eq!(needed_by(&others, ME), None, "it is to have nothing of that group");
    let lacking = |members: &[u32], qualified: &[u32]| {
        let mut lacking = map(members, qualified);
        lacking.pgs[0].lacking.insert(ME);
        lacking
    };
    assert_eq!(needed_by(&lacking(&[2, 0], &[0]), ME), None, "nothing counts on what it has");
    assert_eq!(needed_by(&down(lacking(&[2, 0], &[0]), 0), ME), needed, "nobody may lead");
}

#[test]
fn a_server_asks_to_leave_only_where_nothing_is_lost_with_it() {
    assert_eq!(to_leave(&map(&[2, 0], &[2, 0]), ME), [(PgId(0), View(3))]);
    assert_eq!(to_leave(&map(&[2, 0], &[2]), ME), []);
    assert_eq!(to_leave(&down(map(&[2, 0], &[2, 0]), 0), ME), []);
    let mut two = map(&[2, 0], &[2, 0]);
    two.pgs.push(map(&[2, 1], &[2]).pgs[0].clone());
    assert_eq!(to_leave(&two, ME), [], "it stays for the other one");
}

#[test]
fn one_is_spared_by_enough_others_of_whom_one_has_all() {
    assert!(can_be_spared(&map(&[0, 1, 2], &[0, 1, 2]), ME));
    assert!(can_be_spared(&map(&[0, 1], &[0, 1]), ME), "no member");
    assert!(!can_be_spared(&map(&[0, 2], &[0, 2]), ME), "one other is too few");
    assert!(!can_be_spared(&map(&[0, 1, 2], &[2]), ME), "no other has all");
    assert!(!can_be_spared(&down(map(&[0, 1, 2], &[0, 1, 2]), 1), ME), "one of two others is down");
}

fn aside(folder: &str, is_moved: bool) -> SetAside {
    SetAside { since_ms: 1000, reason: "rot".to_owned(), folder: folder.to_owned(), is_moved }
}

#[test]
fn the_file_keeps_its_bytes() {
    let bytes = summed::encode_file(&aside("index-set-aside-x", true));
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex, "01e80703726f7411696e6465782d7365742d61736964652d780130d0a4448abbd29b",
        "bytes that another release wrote must be read"
    );
    assert_eq!(decode_file(&bytes), Ok(aside("index-set-aside-x", true)));
}

/// A start after a crash at any place moves what is left, each once, and never what came after.
#[test]
fn a_crash_at_any_place_leaves_both_aside() {
    for moved_before in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let (root, disk) = (dir.path(), RealDisk::open(dir.path()).unwrap());
        let folder = root.join("index-set-aside-x");
        std::fs::create_dir(&folder).unwrap();
        for (place, of) in [KV_DIR, LOG_DIR].into_iter().enumerate() {
            let at = if place < moved_before { &folder } else { root };
            std::fs::create_dir(at.join(of)).unwrap();
            std::fs::write(at.join(of).join("old"), of).unwrap();
        }
        replace_file(&disk, "", INDEX_DAMAGE_FILE, b"rot").unwrap();
        store(&disk, &aside("index-set-aside-x", false)).unwrap();
        let kept = resume(&disk, root).unwrap().unwrap();
        assert!(kept.is_moved && !root.join(INDEX_DAMAGE_FILE).exists());
        for of in [KV_DIR, LOG_DIR] {
            assert!(folder.join(of).join("old").exists() && !root.join(of).exists());
            std::fs::create_dir(root.join(of)).unwrap();
        }
        assert_eq!(resume(&disk, root).unwrap(), Some(kept), "the new ones stay");
        assert!(root.join(KV_DIR).exists() && root.join(LOG_DIR).exists());
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(resume(&disk, root).unwrap(), None, "an operator has removed it");
        assert!(!root.join(SET_ASIDE_FILE).exists());
    }
}

/// Managers that show maps, each for a second, and the last one from then on. They keep what they are told.
struct Showing {
    maps: Mutex<Vec<Topology>>,
    since: Instant,
    silent: Duration,
    reported: Mutex<Vec<ServerMessage>>,
}

impl Managers for Showing {
    fn map(&self) -> Arc<Topology> {
        let maps = self.maps.lock();
        let at = self.since.elapsed().as_secs() as usize;
        Arc::new(maps[at.min(maps.len() - 1)].clone())
    }

    fn versions(&self) -> VersionWatch {
        Versions::new(MapVersion(0)).subscribe()
    }

    fn silent(&self) -> Duration {
        self.silent
    }

    fn note_newer_map(&self, _: MapVersion) {}

    fn propose(&self, _: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
        unreachable!("this start is not known")
    }

    fn send_message(&self, message: ServerMessage) {
        self.reported.lock().push(message);
    }
}

impl Showing {
    fn new(maps: Vec<Topology>, silent: Duration) -> Self {
        Self { maps: Mutex::new(maps), since: Instant::now(), silent, reported: Mutex::default() }
    }
}

type Told = Vec<ServerMessage>;

/// A directory with an index and a log, the outcome of setting them aside under these maps, and what managers were told.
async fn try_aside(
    maps: Vec<Topology>,
    silent: Duration,
) -> (tempfile::TempDir, Result<SetAside, OpenError>, Told) {
    let dir = tempfile::tempdir().unwrap();
    for of in [KV_DIR, LOG_DIR] {
        std::fs::create_dir(dir.path().join(of)).unwrap();
    }
    let disk = RealDisk::open(dir.path()).unwrap();
    let managers = Showing::new(maps, silent);
    let damage = OpenError::DamagedBefore("rot".to_owned());
    let here = (&disk as &dyn Disk, dir.path());
    let aside = set_index_aside(here, &managers, (ME, "x"), &damage).await;
    (dir, aside, managers.reported.into_inner())
}

fn is_as_it_was(dir: &tempfile::TempDir) -> bool {
    let has = |name: &str| dir.path().join(name).exists();
    has(KV_DIR) && has(LOG_DIR) && !has(SET_ASIDE_FILE) && !has("index-set-aside-x")
}

#[tokio::test(start_paused = true)]
async fn it_waits_until_its_groups_go_on_without_it() {
    let member = || map(&[0, 1, 2], &[0, 1, 2]);
    let maps = vec![member(), member(), map(&[0, 1], &[0, 1])];
    let began = Instant::now();
    let (dir, aside, reported) = try_aside(maps, Duration::ZERO).await;
    assert_eq!(reported, [], "its groups let it go by themselves");
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert_eq!(aside.unwrap().folder, "index-set-aside-x");
    let folder = dir.path().join("index-set-aside-x");
    assert!(folder.join(KV_DIR).exists() && folder.join(LOG_DIR).exists());
    assert!(!dir.path().join(KV_DIR).exists() && !dir.path().join(LOG_DIR).exists());
}

#[tokio::test(start_paused = true)]
async fn a_group_with_one_other_member_is_asked_to_count_on_it_no_longer() {
    let mut maps = vec![down(map(&[2, 0], &[2, 0]), 2); 15];
    let mut lacks = maps[0].clone();
    lacks.pgs[0].lacking.insert(ME);
    lacks.pgs[0].qualified.remove(&ME);
    maps.push(lacks);
    let (_dir, aside, reported) = try_aside(maps, Duration::ZERO).await;
    assert!(aside.unwrap().is_moved);
    let asked = ServerMessage::Lacks(BootId(3), PgId(0), View(3));
    assert!(
        (4..=6).contains(&reported.len()) && reported.iter().all(|it| *it == asked),
        "{reported:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn it_keeps_all_that_a_group_needs_or_may_need() {
    let needed = |aside| matches!(aside, Err(OpenError::NotSetAside(NotSetAside::Needed(PgId(0)))));
    // The managers do not agree.
    let (dir, aside, reported) = try_aside(vec![map(&[0, 2], &[0, 2])], Duration::ZERO).await;
    assert!(needed(aside) && is_as_it_was(&dir) && !reported.is_empty());
    // It has the last copy, or the others that have all are down.
    for last in [map(&[0, 2], &[2]), down(map(&[0, 2], &[0, 2]), 0)] {
        let (dir, aside, reported) = try_aside(vec![last], Duration::ZERO).await;
        assert!(needed(aside) && is_as_it_was(&dir));
        assert_eq!(reported, [], "it gives up nothing");
    }
    // The map may be from before the server was made a member.
    let old = Duration::from_secs(3600);
    let (dir, aside, _) = try_aside(vec![map(&[0, 1], &[0, 1])], old).await;
    assert!(matches!(aside, Err(OpenError::NotSetAside(NotSetAside::NoManagers))));
    assert!(is_as_it_was(&dir));
}

#[tokio::test(start_paused = true)]
async fn the_second_damage_waits_for_an_operator() {
    let (dir, aside, _) = try_aside(vec![map(&[0, 1], &[0, 1])], Duration::ZERO).await;
    assert!(aside.unwrap().is_moved);
    std::fs::create_dir(dir.path().join(KV_DIR)).unwrap();
    let disk = RealDisk::open(dir.path()).unwrap();
    let managers = Showing::new(vec![map(&[0, 1], &[0, 1])], Duration::ZERO);
    let damage = OpenError::DamagedBefore("rot".to_owned());
    let here = (&disk as &dyn Disk, dir.path());
    let again = set_index_aside(here, &managers, (ME, "y"), &damage).await;
    assert!(matches!(again, Err(OpenError::NotSetAside(NotSetAside::Before(_)))));
    assert!(dir.path().join(KV_DIR).exists() && !dir.path().join("index-set-aside-y").exists());
}
