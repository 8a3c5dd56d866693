//! The status that a map gives.

use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{
    ClusterId, Command, DiskRecord, LvRecord, LvState, ReplicaRecord, ReplicaState, ServerRecord,
};
use larder_protocol::placement::{FailureDomains, Weight};
use larder_types::{BootId, DiskId, MapVersion, PgId, PvId, ServerId, View};

use larder_roles::observed::{HealthIssue, SpaceSample};
use larder_roles::progress::{DiskRoomStatus, FileStatus, SpaceStatus, VolumeStatus};

use super::*;

fn map() -> Topology {
    let mut map = Topology::default();
    let settings = Settings {
        pg_count: 4,
        members: 2,
        min_members: 1,
        copies: 2,
        min_copies: 1,
        lv_blocks: 100,
    };
    map.apply(LogIndex(1), Command::Found(ClusterId(0xab), settings)).expect("founded");
    map
}

/// The state by a map, of which no server says anything.
fn shown(map: &Topology) -> Status {
    status(map, true, Vec::new(), &DiskFreeSpace::default(), MergedObservations::default())
}

#[test]
fn placement_groups_are_sorted_by_what_they_lack() {
    let mut map = map();
    let (one, two) = (ServerId(1), ServerId(2));
    let whole = PgRecord {
        view: View(3),
        activated: View(3),
        members: vec![two, one],
        ..PgRecord::default()
    };
    map.pgs[1] = whole.clone();
    map.pgs[2] = PgRecord { members: vec![two], learners: [one].into(), ..whole.clone() };
    map.pgs[3] = PgRecord { members: vec![two], ..whole };
    let pgs = shown(&map).pgs;
    assert_eq!((pgs.total, pgs.clean, pgs.degraded, pgs.recovering, pgs.inactive), (4, 1, 1, 1, 1));
    let states: Vec<_> = pgs.unclean.iter().map(|pg| (pg.id, pg.state)).collect();
    assert_eq!(states, [(0, "inactive"), (2, "recovering"), (3, "degraded")]);
    let mut text = Vec::new();
    text::write_text(&mut text, &shown(&map)).expect("memory takes it");
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("cluster 00000000000000ab"), "{text}");
    assert!(text.contains("4, of these 1 clean, 1 degraded, 1 recovering, 1 inactive"), "{text}");
}

/// A data server with one disk, on which 4 of 6 volumes were given out and 3 of these came back.
fn data_server(id: u32, state: ServerState, draining: bool) -> ServerRecord {
    let disk = DiskRecord {
        weight: Weight(1),
        pv_count: 6,
        next_pv: PvId(4),
        freed: [PvId(0), PvId(1), PvId(2)].into(),
        state: DiskState::In,
    };
    ServerRecord {
        name: format!("data-{id}"),
        roles: [ServerRole::Data].into(),
        addresses: Vec::new(),
        domains: FailureDomains::default(),
        weight: Weight(1),
        state,
        draining,
        boot: BootId(1),
        ended: std::collections::VecDeque::new(),
        started: MapVersion(1),
        disks: [(DiskId(id), disk)].into(),
    }
}

#[test]
fn copies_are_identified_by_content_and_place() {
    let mut map = map();
    let replica = |server, state| ReplicaRecord {
        server: ServerId(server),
        disk: DiskId(server),
        pv: PvId(3),
        state,
    };
    for (id, state) in [(0, ServerState::Up), (1, ServerState::Down), (2, ServerState::Removed)] {
        map.servers.insert(ServerId(id), data_server(id, state, id == 0));
    }
    let gone = map.servers.get_mut(&ServerId(2)).and_then(|it| it.disks.get_mut(&DiskId(2)));
    gone.expect("it has a disk").state = DiskState::Removed;
    let (current, rebuilding) = (ReplicaState::Current, ReplicaState::Rebuilding);
    let lv = |replicas: &[(u32, ReplicaState)]| LvRecord {
        pg: PgId(1),
        blocks: 100,
        width: 2,
        replicas: replicas.iter().map(|(server, state)| replica(*server, *state)).collect(),
        state: LvState::Open,
    };
    map.lvs = vec![
        lv(&[(0, current), (1, current)]),
        lv(&[(0, current), (1, rebuilding), (2, current)]),
        lv(&[(1, ReplicaState::Gone), (0, current)]),
    ];
    let status = shown(&map);
    let reported: Vec<_> = status
        .volumes
        .unclean
        .iter()
        .map(|it| (it.id, it.current, it.away, it.rebuilding, it.gone))
        .collect();
    assert_eq!(reported, [(0, 1, 1, 0, 0), (1, 1, 0, 1, 1), (2, 1, 0, 0, 0)]);
    assert_eq!(status.volumes.degraded, 2);
    let copies = (status.volumes.replicas_current, status.volumes.replicas_wanted);
    assert_eq!(copies, (4, 6));
    let mut text = Vec::new();
    text::write_text(&mut text, &status).expect("memory takes it");
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("data-0 drains: 3 copies of volumes"), "{text}");
    assert!(text.contains("[###############-----]  75 %"), "three of four have left it: {text}");
    assert!(text.contains("4 of 6 copies are current"), "{text}");
    assert!(text.contains("1 being rebuilt, 1 gone"), "{text}");
    assert!(!text.contains("data-2"), "what was removed is told to machines alone: {text}");
}

fn server(id: u32, state: &'static str, space: Space) -> Server {
    Server {
        id,
        name: format!("host{id}:7000/data"),
        roles: vec!["data"],
        state,
        draining: false,
        address: None,
        member_of: 0,
        leads: 0,
        volumes: 0,
        volumes_free: 0,
        copies: 0,
        space,
        growth: None,
        disks: Vec::new(),
    }
}

const MIB: u64 = 1 << 20;

fn with_free(free: u64) -> Space {
    Space { bytes: 100 * MIB, used: (100 - free) * MIB, free: free * MIB, ..Space::default() }
}

#[test]
fn the_first_line_says_what_is_wrong_and_what_to_do() {
    let map = map();
    let verdict = |change: &dyn Fn(&mut Status)| {
        let mut status = shown(&map);
        status.pgs = Pgs { total: 4, clean: 4, ..Pgs::default() };
        status.space.all = with_free(59);
        status.servers = vec![server(1, "up", with_free(59)), server(2, "removed", with_free(0))];
        change(&mut status);
        verdict::of(&status)
    };
    assert_eq!(
        verdict(&|_| {}),
        "well: all 1 servers are up, all copies are there, 41 % of 100.0 MiB taken"
    );
    let is_down = |status: &mut Status| status.servers[0].state = "down";
    assert!(verdict(&is_down).starts_with("NOT WELL: host1:7000/data is down. Start"));
    let many_down = |status: &mut Status| {
        status.servers = (1..6).map(|id| server(id, "down", Space::default())).collect();
    };
    assert!(verdict(&many_down).contains("host3:7000/data and 2 more are down"));
    let unserved = |status: &mut Status| {
        is_down(status);
        (status.pgs.clean, status.pgs.inactive) = (3, 1);
    };
    assert!(verdict(&unserved).contains("1 of 4 placement groups are not served: host1"));
    let unled = |status: &mut Status| {
        unserved(status);
        status.is_latest = false;
    };
    assert!(verdict(&unled).starts_with("NOT WELL: no manager leads"));
    let rebuilding = |status: &mut Status| {
        status.volumes.degraded = 1;
        (status.volumes.replicas_current, status.volumes.replicas_wanted) = (5, 6);
    };
    assert!(verdict(&rebuilding).starts_with("NOT WELL YET: 5 of 6 copies"));
    let members = |status: &mut Status| status.pgs.clean = 3;
    assert!(verdict(&members).starts_with("NOT WELL YET: 3 of 4 placement groups"));
    let full = |status: &mut Status| status.servers[0].space = with_free(9);
    assert!(verdict(&full).contains("host1:7000/data is nearly full: 91 % of 100.0 MiB taken"));
    let all_full = |status: &mut Status| status.space.all = with_free(10);
    assert!(verdict(&all_full).starts_with("NEARLY FULL: 90 %"), "{}", verdict(&all_full));
    // As while meta servers of an earlier release are there.
    let untold = Space { bytes: 100 * MIB, unknown: 100 * MIB, ..Space::default() };
    assert!(verdict(&|status| status.space.all = untold).starts_with("well"));
    let led_by_none = |status: &mut Status| (status.pgs.clean, status.pgs.inactive) = (3, 1);
    assert!(verdict(&led_by_none).contains("are given primaries within seconds"));
}

#[test]
fn space_is_put_together_from_what_meta_servers_say_of_volumes() {
    use larder_roles::progress::BucketUsage;
    let mut map = map();
    let create =
        Command::CreateBucket(larder_types::BucketName::new("photos").expect("a name"), None, 1);
    map.apply(LogIndex(2), create).expect("made");
    for id in 0..2 {
        map.servers.insert(ServerId(id), data_server(id, ServerState::Up, false));
    }
    let replica = |server| ReplicaRecord {
        server: ServerId(server),
        disk: DiskId(server),
        pv: PvId(3),
        state: ReplicaState::Current,
    };
    let lv =
        |replicas| LvRecord { pg: PgId(1), blocks: 100, width: 2, replicas, state: LvState::Open };
    map.lvs = vec![lv(vec![replica(0), replica(1)]), lv(vec![replica(0)])];
    let photos = map.buckets.values().next().expect("it is there").id.0;
    let volume = VolumeStatus { volume: 0, blocks: 100, free: 40, waiting: 10, unread: 0 };
    let bucket = |objects, bytes| BucketUsage { bucket: photos, objects, bytes };
    let reported = [
        SpaceStatus {
            volumes: vec![volume],
            buckets: vec![bucket(2, 70)],
            ..SpaceStatus::default()
        },
        SpaceStatus { buckets: vec![bucket(1, 3 << 20)], uncounted: 1, ..SpaceStatus::default() },
    ];
    map.pgs.iter_mut().for_each(|pg| pg.members = vec![ServerId(0)]);
    map.pgs[3].members = vec![ServerId(7)];
    let spaces = Spaces::of(
        &map,
        reported.iter().enumerate().map(|(id, it)| (ServerId(id as u32), it)),
        &DiskFreeSpace::default(),
    );
    let blocks = |count: u64| count * 4096;
    // Five volumes of a hundred blocks have no copy on each disk.
    let one = Space {
        bytes: blocks(600 + 100),
        used: blocks(50),
        waiting: blocks(10),
        free: blocks(40 + 500),
        unknown: blocks(100),
    };
    assert_eq!(spaces.by_server[&ServerId(0)], one);
    let other = Space { bytes: blocks(600), unknown: 0, ..one };
    assert_eq!(spaces.by_disk[&DiskId(1)], other);
    assert_eq!((spaces.all.bytes, spaces.all.used), (blocks(1300), blocks(100)));
    assert_eq!((spaces.objects, spaces.object_bytes), (3, (3 << 20) + 70));
    assert_eq!(
        spaces.pgs_uncounted, 2,
        "one says so, and one is led by a server that says nothing"
    );
    let mut text = Vec::new();
    space::write_text(&mut text, &spaces, None).expect("memory takes it");
    let text = String::from_utf8(text).expect("text");
    for line in [
        "space: [#-------------------]   9 % of 5.1 MiB, 4.2 MiB free, 80.0 KiB waiting",
        "of 400.0 KiB nobody says now",
        "buckets: 1, with 3 objects of 3.0 MiB",
        "without those of 2 placement groups",
        "3.0 MiB             3 objects  photos",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

/// A map with a server that is up and one that is down since version 9 of it.
fn with_one_down() -> Topology {
    let mut map = map();
    for (id, state) in [(0, ServerState::Up), (1, ServerState::Down)] {
        map.servers.insert(ServerId(id), data_server(id, state, false));
    }
    map.servers.get_mut(&ServerId(1)).expect("it is there").started = MapVersion(9);
    let members = vec![ServerId(0), ServerId(1)];
    let whole = PgRecord { view: View(3), activated: View(3), members, ..PgRecord::default() };
    map.pgs.iter_mut().for_each(|pg| *pg = whole.clone());
    map
}

const HOUR_MS: u64 = 3_600_000;

fn observed(
    issues: &[(HealthIssue, u64, bool)],
    fills: &[(Place, u64, u64)],
) -> MergedObservations {
    let issues = issues.iter().map(|&(issue, for_ms, is_exact)| {
        (issue, larder_roles::observed::IssueDuration { for_ms, is_exact })
    });
    let fills =
        fills.iter().map(|&(place, taken, within_s)| SpaceSample { place, taken, within_s });
    let now = Observations { issues: issues.collect(), fills: fills.collect() };
    Observations::together([now])
}

#[test]
fn the_first_line_says_since_when_as_far_as_managers_know() {
    let map = with_one_down();
    let down = |server, started| HealthIssue::ServerDown(server, started);
    let reported = |of: &[(HealthIssue, u64, bool)]| {
        status(&map, true, Vec::new(), &DiskFreeSpace::default(), observed(of, &[]))
    };
    let exact = reported(&[(down(1, 9), 3 * HOUR_MS, true)]);
    let line = &exact.verdict;
    assert!(line.starts_with("NOT WELL: data-1 is down, for 3 hours (since 2"), "{line}");
    assert!(line.contains("Z). Start what is down"), "{line}");
    let least = reported(&[(down(1, 9), 2 * HOUR_MS, false)]).verdict;
    assert!(least.contains("is down, for at least 2 hours (since 2"), "{least}");
    assert!(least.contains("Z or before). Start"), "{least}");
    // It was up since, as the map knows.
    let another = reported(&[(down(1, 8), 3 * HOUR_MS, true), (down(0, 1), HOUR_MS, true)]).verdict;
    assert!(another.starts_with("NOT WELL: data-1 is down. Start"), "{another}");
    let json = serde_json::to_value(&exact).expect("JSON");
    let issue = &json["troubles"][0];
    assert_eq!((&issue["kind"], &issue["server"]), (&"server_down".into(), &1.into()));
    assert!(issue["since_ms"].is_u64() && issue["is_exact"] == true, "{issue}");
    let unled = observed(&[(HealthIssue::NoLeader, 60_000, true)], &[]);
    let unled = status(&map, false, Vec::new(), &DiskFreeSpace::default(), unled).verdict;
    assert!(unled.contains("none is reached, for 1 minute (since 2"), "{unled}");
}

#[test]
fn the_time_of_groups_that_are_not_served_is_not_that_of_a_server() {
    let mut map = with_one_down();
    map.pgs[0] = PgRecord::default();
    let reported = [
        (HealthIssue::ServerDown(1, 9), 24 * HOUR_MS, true),
        (HealthIssue::PgsInactive, 60_000, true),
    ];
    let line =
        status(&map, true, Vec::new(), &DiskFreeSpace::default(), observed(&reported, &[])).verdict;
    assert!(line.contains("groups are not served, for 1 minute (since 2"), "{line}");
    assert!(line.ends_with(": data-1 is down. Start what is down"), "{line}");
}

#[test]
fn a_place_begins_to_be_nearly_full_only_if_it_was_known_to_be_less_full() {
    const DISK: Place = Place::Disk(1);
    let unknown = Space { bytes: 100 * MIB, unknown: 100 * MIB, ..Space::default() };
    let begins = |fullness: &mut issues::Fullness, space: Space| {
        fullness.look(&[(DISK, space)].into());
        fullness.full.get(&HealthIssue::NearlyFull(DISK)).copied()
    };
    let mut fullness = issues::Fullness::default();
    assert_eq!(begins(&mut fullness, unknown), None);
    assert_eq!(begins(&mut fullness, with_free(5)), Some(false), "as after a start");
    assert_eq!(begins(&mut fullness, with_free(50)), None);
    assert_eq!(begins(&mut fullness, with_free(5)), Some(true));
    assert_eq!(begins(&mut fullness, with_free(50)), None);
    fullness.forget_below();
    assert_eq!(begins(&mut fullness, with_free(5)), Some(false), "it was not looked at");
}

#[test]
fn the_first_of_several_down_servers_is_reported() {
    let mut map = with_one_down();
    map.servers.insert(ServerId(2), data_server(2, ServerState::Down, false));
    let started = map.servers[&ServerId(2)].started.0;
    let (first, second) = (HealthIssue::ServerDown(1, 9), HealthIssue::ServerDown(2, started));
    let reported = observed(&[(first, 3 * HOUR_MS, true), (second, HOUR_MS, true)], &[]);
    let line = status(&map, true, Vec::new(), &DiskFreeSpace::default(), reported).verdict;
    assert!(line.contains("data-1, data-2 are down, the first for 3 hours"), "{line}");
}

#[test]
fn what_fills_is_foretold_of_the_cluster_its_servers_and_disks() {
    let mut map = map();
    map.servers.insert(ServerId(0), data_server(0, ServerState::Up, false));
    let members = vec![ServerId(0), ServerId(1)];
    let whole = PgRecord { view: View(3), activated: View(3), members, ..PgRecord::default() };
    map.pgs.iter_mut().for_each(|pg| *pg = whole.clone());
    let replica = ReplicaRecord {
        server: ServerId(0),
        disk: DiskId(0),
        pv: PvId(3),
        state: ReplicaState::Current,
    };
    let replicas = vec![replica; 2];
    map.lvs = vec![LvRecord { pg: PgId(1), blocks: 100, width: 2, replicas, state: LvState::Open }];
    let day_s = 24 * 3600;
    let volume =
        larder_roles::progress::VolumeStatus { volume: 0, blocks: 100, ..Default::default() };
    let space = larder_roles::progress::SpaceStatus { volumes: vec![volume], ..Default::default() };
    let background = |space| {
        let name = "meta-0".to_owned();
        vec![Background { server: 0, name, progress: None, doubts: None, space }]
    };
    let before: Vec<_> = [Place::Cluster, Place::Server(0), Place::Disk(0)]
        .map(|place| (place, 100 * 4096, 2 * day_s))
        .into();
    let reported = status(
        &map,
        true,
        background(Some(space)),
        &DiskFreeSpace::default(),
        observed(&[], &before),
    );
    // 200 of 700 blocks are taken, and were 100 two days ago.
    let expected = Growth { bytes: 100 * 4096, within_s: 2 * day_s, full_in_s: 10 * day_s };
    assert_eq!(reported.growth, Some(expected));
    assert_eq!(reported.servers[0].growth, Some(expected));
    assert_eq!(reported.servers[0].disks[0].growth, Some(expected));
    let line = &reported.verdict;
    assert!(line.ends_with("taken, full in 10 days at the rate of the last 2 days"), "{line}");
    let mut text = Vec::new();
    text::write_text(&mut text, &reported).expect("memory takes it");
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("400.0 KiB more taken than 2 days ago"), "{text}");
    let unknown =
        status(&map, true, background(None), &DiskFreeSpace::default(), observed(&[], &before));
    assert_eq!(unknown.growth, None, "part of it is not known now");
}

#[test]
fn copies_that_move_are_no_growth_and_what_drains_has_no_room() {
    let mut map = map();
    for (id, draining) in [(0, false), (1, true)] {
        map.servers.insert(ServerId(id), data_server(id, ServerState::Up, draining));
    }
    let replica = |server, state| ReplicaRecord {
        server: ServerId(server),
        disk: DiskId(server),
        pv: PvId(3),
        state,
    };
    let replicas = vec![replica(1, ReplicaState::Current), replica(0, ReplicaState::Rebuilding)];
    map.lvs = vec![LvRecord { pg: PgId(1), blocks: 100, width: 1, replicas, state: LvState::Open }];
    let volume = VolumeStatus { volume: 0, blocks: 100, ..VolumeStatus::default() };
    let reported = [SpaceStatus { volumes: vec![volume], ..SpaceStatus::default() }];
    let spaces =
        Spaces::of(&map, reported.iter().map(|it| (ServerId(0), it)), &DiskFreeSpace::default());
    let blocks = |count: u64| count * 4096;
    let (from, to) = (Place::Disk(1), Place::Disk(0));
    let all = Some(blocks(100));
    let expected = [(Place::Cluster, all), (Place::Server(1), all), (from, all)];
    let taken = issues::taken(&issues::places(&spaces), &spaces);
    assert_eq!(taken, BTreeMap::from(expected), "one copy is wanted");
    let day_s = 24 * 3600;
    let before = [Place::Cluster, from, to].map(|place| (place, blocks(50), day_s));
    let issues = HealthIssues::of(&map, true, &spaces, observed(&[], &before));
    let growth = |place, space| issues.growth(place, space, &spaces);
    // 500 blocks are free where volumes may be made.
    let cluster = Growth { bytes: blocks(50), within_s: day_s, full_in_s: 10 * day_s };
    assert_eq!(growth(Place::Cluster, &spaces.all), Some(cluster));
    assert_eq!(growth(to, &spaces.by_disk[&DiskId(0)]), None);
    assert!(growth(from, &spaces.by_disk[&DiskId(1)]).is_some());
}

/// A disk whose file holds so many blocks, and may take more.
fn room(disk: u32, held: u64, spare: u64) -> DiskRoomStatus {
    let file = FileStatus { held: held * 4096, spare: spare * 4096 };
    DiskRoomStatus { disk, lacks_room: spare == 0, file: Some(file) }
}

/// Two servers with a volume on both, of which 60 blocks of 100 hold data.
fn with_a_volume() -> (Topology, SpaceStatus) {
    let mut map = map();
    for id in 0..2 {
        map.servers.insert(ServerId(id), data_server(id, ServerState::Up, false));
    }
    let replica = |server| ReplicaRecord {
        server: ServerId(server),
        disk: DiskId(server),
        pv: PvId(3),
        state: ReplicaState::Current,
    };
    let replicas = vec![replica(0), replica(1)];
    map.lvs = vec![LvRecord { pg: PgId(1), blocks: 100, width: 2, replicas, state: LvState::Open }];
    let volume = VolumeStatus { volume: 0, blocks: 100, free: 40, ..VolumeStatus::default() };
    (map, SpaceStatus { volumes: vec![volume], ..SpaceStatus::default() })
}

#[test]
fn a_disk_has_the_space_of_its_file_system_where_that_is_less_than_its_places() {
    let (map, reported) = with_a_volume();
    let blocks = |count: u64| count * 4096;
    let of = |disk_free_space: DiskFreeSpace| {
        Spaces::of(&map, [(ServerId(0), &reported)].into_iter(), &disk_free_space)
    };
    let of_places = of(DiskFreeSpace::default());
    assert_eq!(
        of_places.by_disk[&DiskId(0)].bytes,
        blocks(600),
        "of the other nobody says anything"
    );
    // A quarter of its places is below the first disk; the second is a device.
    let device = DiskRoomStatus { disk: 1, lacks_room: false, file: None };
    let spaces = of([room(0, 70, 80), device].into_iter().collect());
    let expected =
        Space { bytes: blocks(150), used: blocks(60), free: blocks(90), ..Space::default() };
    assert_eq!(spaces.by_disk[&DiskId(0)], expected);
    assert_eq!(spaces.by_disk[&DiskId(1)], of_places.by_disk[&DiskId(1)]);
    assert_eq!(spaces.all.bytes, blocks(750));
    assert_eq!(spaces.free_given, blocks(90 + 540), "the forecast looks at the same");
    let more = of([room(0, 70, 8000)].into_iter().collect());
    assert_eq!(more.by_disk, of_places.by_disk, "places are the least");
    // A part that is not known yet takes no more than there is.
    let unknown = Spaces::of(&map, std::iter::empty(), &[room(0, 70, 0)].into_iter().collect());
    let expected = Space { bytes: blocks(70), unknown: blocks(70), ..Space::default() };
    assert_eq!(unknown.by_disk[&DiskId(0)], expected);
}

#[test]
fn full_file_systems_are_not_well() {
    let (map, reported) = with_a_volume();
    let reported = |disk_free_space: &[DiskRoomStatus]| {
        let space = Some(reported.clone());
        let background =
            Background { server: 0, name: String::new(), progress: None, doubts: None, space };
        let disk_free_space = disk_free_space.iter().copied().collect();
        let mut status =
            status(&map, true, vec![background], &disk_free_space, MergedObservations::default());
        status.pgs = Pgs { total: 4, clean: 4, ..Pgs::default() };
        status.verdict = verdict::of(&status);
        status
    };
    let full = reported(&[room(0, 70, 0), room(1, 64, 0)]);
    assert!(
        full.verdict
            .starts_with("NOT WELL: new volumes find no room, and puts may get 507: the file systems of data-0, data-1 are full."),
        "{}",
        full.verdict
    );
    assert!(!is_well(&full), "the exit code says so");
    // New volumes have one copy at least here.
    let one = reported(&[room(0, 70, 0), room(1, 64, 100)]);
    assert!(!one.verdict.contains("507") && is_well(&one), "{}", one.verdict);
    let nearly = reported(&[room(0, 64, 1), room(1, 64, 1)]);
    assert!(nearly.verdict.starts_with("NEARLY FULL: 92 % of"), "{}", nearly.verdict);
    let deleted = reported(&[room(0, 200, 0), room(1, 200, 0)]);
    assert!(is_well(&deleted), "most of what the files hold is free: {}", deleted.verdict);
}

#[test]
fn minios_client_is_shown_what_the_document_has() {
    let mut status = shown(&map());
    status.servers = vec![server(1, "up", with_free(59)), server(2, "removed", with_free(0))];
    let space = with_free(59);
    let (volumes, volumes_used, volumes_freed) = (1, 1, 0);
    let disk =
        Disk { id: 3, draining: false, volumes, volumes_used, volumes_freed, space, growth: None };
    status.servers[0].disks.push(disk);
    let info = crate::minio::info(&serde_json::to_vec(&status).unwrap()).expect("it has it all");
    let info: serde_json::Value = serde_json::from_slice(&info).unwrap();
    assert_eq!(info["servers"].as_array().unwrap().len(), 1, "{info}");
    assert_eq!(info["servers"][0]["drives"][0]["usedspace"], 41 * MIB);
}
