//! The lines that an operator reads.

use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{ClusterId, NewServer, Settings};
use larder_protocol::placement::{FailureDomains, Weight};
use larder_roles::progress::{DiskRoomStatus, FileStatus};
use larder_types::{BootId, LvId, PgId, View};

use super::*;

/// A cluster of a manager, three meta servers and two data servers, all of them up.
fn map() -> Topology {
    let mut map = Topology::default();
    let mut apply = |command| {
        let index = LogIndex(map.applied.0 + 1);
        map.apply(index, command).expect("the cluster is sound")
    };
    let settings = Settings {
        pg_count: 2,
        members: 3,
        min_members: 2,
        copies: 2,
        min_copies: 1,
        lv_blocks: 9,
    };
    apply(Command::Found(ClusterId(1), settings));
    apply(Command::AddToken([1; 32], 1000));
    let roles = [("m-0", ServerRole::Manager), ("meta-1", ServerRole::Meta)];
    let roles =
        roles.into_iter().chain([("meta-2", ServerRole::Meta), ("meta-3", ServerRole::Meta)]);
    let roles = roles.chain([("data-4", ServerRole::Data), ("data-5", ServerRole::Data)]);
    for (id, (name, role)) in (0..).map(ServerId).zip(roles) {
        let server = NewServer {
            name: name.to_owned(),
            roles: [role].into(),
            addresses: Vec::new(),
            domains: FailureDomains::default(),
            weight: Weight(1),
        };
        apply(Command::AddServer(server, (id.0 > 0).then_some(([1; 32], 1))));
        apply(Command::ServerStarted(id, BootId(1), Vec::new(), Vec::new()));
        if role == ServerRole::Data {
            apply(Command::AddDisk(id, Weight(1), 9));
        }
    }
    let members = vec![ServerId(1), ServerId(2), ServerId(3)];
    apply(Command::BeginView(PgId(0), View(0), members));
    let (one, two) = ((ServerId(4), DiskId(0)), (ServerId(5), DiskId(1)));
    apply(Command::CreateLv(PgId(0), vec![one, two]));
    apply(Command::LvCreated(LvId(0)));
    apply(Command::CreateLv(PgId(0), vec![one]));
    apply(Command::LvCreated(LvId(1)));
    map
}

/// The same with two machines of equal ones.
fn with_machines() -> Topology {
    let mut map = map();
    for (machine, at) in [("a:7000", 6), ("b:7000", 10)] {
        let roles = [ServerRole::Manager, ServerRole::Meta, ServerRole::Data, ServerRole::Proxy];
        for (role, id) in roles.into_iter().zip((at..).map(ServerId)) {
            let server = NewServer {
                name: format!("{machine}/{}", role_name(role)),
                roles: [role].into(),
                addresses: Vec::new(),
                domains: FailureDomains::default(),
                weight: Weight(1),
            };
            for command in [
                Command::AddServer(server, Some(([1; 32], 1))),
                Command::ServerStarted(id, BootId(1), Vec::new(), Vec::new()),
            ] {
                let index = LogIndex(map.applied.0 + 1);
                map.apply(index, command).expect("the cluster is sound");
            }
        }
    }
    map
}

#[test]
fn the_name_of_a_machine_stands_for_its_servers_in_the_order_in_which_they_go() {
    let map = with_machines();
    let all = |name| Subject::all(&map, name, None).map_err(|error| error.to_string());
    let names = |name| -> Vec<String> { all(name).unwrap().iter().map(Subject::name).collect() };
    let of = |machine: &str, roles: &[&str]| -> Vec<String> {
        roles.iter().map(|role| format!("{machine}/{role}")).collect()
    };
    assert_eq!(names("b:7000"), of("b:7000", &["data", "meta", "proxy", "manager"]));
    assert_eq!(names("b:7000/meta"), ["b:7000/meta"]);
    assert_eq!(names("meta-1"), ["meta-1"]);
    let holding = all("a:7000").unwrap().into_iter().filter(Subject::holds_something);
    assert_eq!(holding.map(|it| it.name()).collect::<Vec<_>>(), of("a:7000", &["data", "meta"]));
    let wrong = all("c:7000").map(|all| all.len()).unwrap_err();
    assert!(wrong.contains("no server \"c:7000\", nor a machine"), "{wrong}");
    let disk = Subject::all(&map, "a:7000", Some(DiskId(0))).map(|all| all.len());
    assert!(disk.is_err(), "a machine has no disks, its data server has");
}

fn find(map: &Topology, name: &str, disk: Option<u32>) -> Result<Subject, String> {
    Subject::find(map, name, disk.map(DiskId)).map_err(|error| error.to_string())
}

#[test]
fn missing_names_and_disks_are_reported_with_the_present_ones() {
    let mut map = map();
    let error = find(&map, "data-9", None).err().expect("there is none");
    assert!(error.contains("\"data-9\"") && error.contains("m-0, meta-1"), "{error}");
    let error = find(&map, "data-5", Some(0)).err().expect("that is another's");
    assert!(error.contains("has no disk 0") && error.contains("is 1"), "{error}");
    assert!(find(&map, "meta-1", Some(0)).err().expect("no disks").contains("none"));
    assert_eq!(find(&map, "data-5", Some(1)).expect("it is there").name(), "disk 1 of data-5");
    map.servers.get_mut(&ServerId(5)).expect("it is there").state = ServerState::Removed;
    let error = find(&map, "data-5", None).err().expect("it is gone");
    assert!(error.contains("removed for good already"), "{error}");
}

#[test]
fn the_last_copy_is_refused_by_name_and_others_are_told() {
    let map = map();
    let loss = map.loss_of_server(ServerId(4));
    let reasons = reasons_against(&map, &loss).expect("volume 1 is nowhere else");
    assert!(
        reasons.contains("the last copy of 1 volume (1)") && reasons.contains("drain"),
        "{reasons}"
    );
    let loss = map.loss_of_disk(DiskId(1));
    assert_eq!(reasons_against(&map, &loss), None);
    let report = find(&map, "data-5", Some(1)).expect("it is there").loss_report(&loss);
    assert!(report[0].contains("a copy of 1 volume (0) is gone"), "{report:?}");
    assert!(report[1].contains("runs, and ends"), "{report:?}");
}

#[test]
fn a_group_with_too_few_members_and_a_lone_manager_are_refused_with_what_to_do() {
    let mut map = map();
    let apply = |map: &mut Topology, command| {
        let index = LogIndex(map.applied.0 + 1);
        map.apply(index, command).expect("it is sound")
    };
    let loss = map.loss_of_server(ServerId(3));
    assert_eq!(reasons_against(&map, &loss), None);
    apply(&mut map, Command::RemoveServer(ServerId(3)));
    let loss = map.loss_of_server(ServerId(2));
    let reasons = reasons_against(&map, &loss).expect("one is too few");
    assert!(reasons.contains("1 placement group (0) would have fewer than 2 members"), "{reasons}");
    let loss = map.loss_of_server(ServerId(0));
    let reasons = reasons_against(&map, &loss).expect("it is the only manager");
    assert!(reasons.contains("no majority"), "{reasons}");
}

#[test]
fn a_drain_reports_what_will_move_and_whether_it_fits() {
    let map = map();
    let report = |name: &str, disk, undo| {
        let subject = find(&map, name, disk).expect("it is there");
        subject.drain_report(&map, undo).map_err(|error| error.to_string())
    };
    let lines = report("data-4", None, false).expect("it holds data");
    assert!(lines[0].contains("2 copies of volumes and 0 places"), "{lines:?}");
    assert!(lines[1].contains("only 1 others"), "two copies do not fit one server: {lines:?}");
    assert!(report("m-0", None, false).expect_err("it holds nothing").contains("removed as it is"));
    assert!(
        report("meta-1", None, true).expect("it is so")[0].contains("drain of meta-1 is cancelled")
    );
}

#[test]
fn many_ids_are_counted() {
    let report = named("volume", (0..30).collect::<Vec<_>>().iter());
    assert_eq!(report, "30 volumes (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …)");
}

#[test]
fn a_drain_without_enough_space_reports_how_much_is_missing() {
    let mut map = map();
    let refused = |map: &Topology, name: &str, disk| {
        let subjects = Subject::all(map, name, disk).expect("it is there");
        has_places(map, &DiskFreeSpace::default(), &subjects, name)
            .map_err(|error| error.to_string())
    };
    let why = refused(&map, "data-4", None)
        .expect_err("there is one other disk, with a copy of one volume");
    assert!(why.contains("2 of its 2 copies of volumes, 0.0 GiB, would find no"), "{why}");
    assert!(why.contains("--partly"), "{why}");
    assert_eq!(refused(&map, "data-4", Some(DiskId(0))), Err(why));
    assert_eq!(refused(&map, "meta-1", None), Ok(None));
    let server = map.servers.get_mut(&ServerId(4)).expect("it is there");
    server.draining = true;
    assert_eq!(refused(&map, "data-4", None), Ok(None), "it was allowed");
}

#[test]
fn a_drain_for_which_the_others_have_places_and_no_room_does_not_begin() {
    let mut map = with_machines();
    let spare = ServerId(8);
    let index = LogIndex(map.applied.0 + 1);
    let applied = map.apply(index, Command::AddDisk(spare, Weight(1), 9));
    let Ok(Outcome::Disk(added)) = applied else { panic!("it holds data: {applied:?}") };
    let report = |disk_free_space: &[(u32, u64, u64)]| {
        let subjects = Subject::all(&map, "data-4", None).expect("it is there");
        let disk_free_space = disk_free_space.iter().map(|&(disk, held, spare)| DiskRoomStatus {
            disk,
            lacks_room: spare == 0,
            file: Some(FileStatus { held, spare }),
        });
        has_places(&map, &disk_free_space.collect(), &subjects, "data-4")
            .map_err(|error| error.to_string())
    };
    let (own, others) = (0, (1..=added.0).filter(|disk| *disk != added.0));
    let others = |spare| others.clone().map(move |disk| (disk, 0, spare));
    let with = |held, of_others, spare| -> Vec<_> {
        others(of_others).chain([(own, held, 0), (added.0, 0, spare)]).collect()
    };
    assert_eq!(report(&with(5000, 10, 5000)), Ok(None));
    let why = report(&with(5000, 10, 3990)).expect_err("it holds more");
    assert!(
        why.contains("its file holds 4.9 KiB, and the other disks have room for 3.9 KiB"),
        "{why}"
    );
    assert!(why.contains("--partly"), "{why}");
    let why = report(&with(5000, 0, 0)).expect_err("the disks with places are full");
    assert!(why.contains("would find no place"), "{why}");
    let unknown = &with(5000, 10, 3990)[1..];
    assert_eq!(report(unknown), Ok(None), "a data server of an earlier release may have room");
}

#[test]
fn a_drain_beside_a_server_that_is_down_is_foretold_both_ways() {
    let mut map = with_machines();
    let report = |map: &Topology| {
        let subjects = Subject::all(map, "data-4", None).expect("it is there");
        has_places(map, &DiskFreeSpace::default(), &subjects, "data-4")
            .map_err(|error| error.to_string())
    };
    let spare = ServerId(8);
    let index = LogIndex(map.applied.0 + 1);
    map.apply(index, Command::AddDisk(spare, Weight(1), 9)).expect("it holds data");
    assert_eq!(report(&map), Ok(None), "there is a place for both");
    map.servers.get_mut(&ServerId(5)).expect("it is there").state = ServerState::Down;
    let warning = report(&map).expect("there is, if it comes back").expect("a warning");
    assert!(warning.contains("up to 2 copies find no place"), "{warning}");
}
