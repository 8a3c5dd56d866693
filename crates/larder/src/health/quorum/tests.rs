use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{ClusterId, Command, DiskRecord, LvState, ReplicaRecord};
use larder_protocol::placement::{FailureDomains, MachineId, Weight};
use larder_types::{BootId, DiskId, MapVersion, PgId, PvId, View};

use super::*;

/// Three machines with a server of all roles each, a placement group, and a volume.
fn map() -> Topology {
    let mut map = Topology::default();
    let settings = Settings {
        pg_count: 1,
        members: 3,
        min_members: 2,
        copies: 3,
        min_copies: 2,
        lv_blocks: 100,
    };
    map.apply(LogIndex(1), Command::Found(ClusterId(1), settings)).expect("founded");
    let all = [0, 1, 2].map(ServerId);
    for id in all {
        map.servers.insert(id, server(id));
    }
    map.pgs[0] = PgRecord {
        view: View(3),
        activated: View(3),
        members: all.into(),
        qualified: all.into(),
        ..PgRecord::default()
    };
    let replicas = all.map(|server| ReplicaRecord {
        server,
        disk: DiskId(server.0),
        pv: PvId(0),
        state: ReplicaState::Current,
    });
    map.lvs = vec![LvRecord {
        pg: PgId(0),
        blocks: 100,
        width: 3,
        replicas: replicas.into(),
        state: LvState::Open,
    }];
    map
}

fn server(id: ServerId) -> ServerRecord {
    let disk = DiskRecord {
        weight: Weight(1),
        pv_count: 6,
        next_pv: PvId(1),
        freed: BTreeSet::new(),
        state: DiskState::In,
    };
    ServerRecord {
        name: format!("host{id}"),
        roles: [ServerRole::Manager, ServerRole::Meta, ServerRole::Data, ServerRole::Proxy].into(),
        addresses: Vec::new(),
        domains: FailureDomains { machine: MachineId(id.0), ..FailureDomains::default() },
        weight: Weight(1),
        state: ServerState::Up,
        draining: false,
        boot: BootId(1),
        ended: std::collections::VecDeque::new(),
        started: MapVersion(1),
        disks: [(DiskId(id.0), disk)].into(),
    }
}

/// The machines of the three that can be spared, and true if writes are taken.
fn judged(change: impl FnOnce(&mut Topology)) -> ([bool; 3], bool) {
    let mut map = map();
    change(&mut map);
    let spared = [0, 1, 2].map(|id| can_spare_machine_of(&map, ServerId(id)));
    (spared, takes_writes(&map))
}

fn set(map: &mut Topology, id: u32, state: ServerState) {
    map.servers.get_mut(&ServerId(id)).expect("it is there").state = state;
}

#[test]
fn each_of_three_machines_can_be_spared_while_all_are_well() {
    assert_eq!(judged(|_| {}), ([true; 3], true));
    assert_eq!(write_quorum(&map()), 2);
}

#[test]
fn when_one_of_three_is_down_no_other_can_be_spared() {
    assert_eq!(judged(|map| set(map, 2, ServerState::Down)), ([false, false, true], true));
}

#[test]
fn managers_keep_a_majority_of_all() {
    let others = |map: &mut Topology| {
        for id in [3, 4] {
            let record =
                ServerRecord { roles: [ServerRole::Manager].into(), ..server(ServerId(id)) };
            map.servers.insert(ServerId(id), record);
        }
    };
    let down =
        |map: &mut Topology| [3, 4].into_iter().for_each(|id| set(map, id, ServerState::Down));
    assert_eq!(judged(others), ([true; 3], true));
    assert_eq!(
        judged(|map| {
            others(map);
            down(map)
        }),
        ([false; 3], true)
    );
    let joining =
        |map: &mut Topology| [3, 4].into_iter().for_each(|id| set(map, id, ServerState::Joining));
    let with_tokens = judged(|map| {
        others(map);
        joining(map)
    });
    assert_eq!(with_tokens, ([true; 3], true), "a token that nobody has used is no vote");
    let removed = |map: &mut Topology| {
        [3, 4].into_iter().for_each(|id| set(map, id, ServerState::Removed));
    };
    assert_eq!(
        judged(|map| {
            others(map);
            removed(map)
        }),
        ([true; 3], true)
    );
}

/// Of five, managers and disks stay, and a group that does not have its members on those that do.
#[test]
fn writes_need_the_members_of_each_group() {
    let five = |down: &[u32]| {
        let mut map = map();
        for id in [3, 4].map(ServerId) {
            map.servers.insert(id, server(id));
        }
        down.iter().for_each(|id| set(&mut map, *id, ServerState::Down));
        map
    };
    assert!(takes_writes(&five(&[1])));
    assert!(takes_writes(&five(&[1, 3])), "the group has two members");
    assert!(!takes_writes(&five(&[1, 2])), "the group has one member, and is active in the map");
    assert!(!can_spare_machine_of(&five(&[1, 2]), ServerId(1)), "nor would it with the others");
    let mut catches_up = five(&[2]);
    catches_up.pgs[0].lacking = [ServerId(1)].into();
    assert!(takes_writes(&catches_up));
    let mut unled = five(&[0]);
    unled.pgs[0].qualified = [ServerId(0)].into();
    assert!(!takes_writes(&unled), "nobody may lead it");
}

#[test]
fn a_group_that_catches_up_needs_the_members_that_have_all() {
    let one = ServerId(1);
    let lacks = |map: &mut Topology| map.pgs[0].lacking = [one].into();
    assert_eq!(judged(lacks), ([false, true, false], true));
    let learns = |map: &mut Topology| {
        map.pgs[0].members.retain(|it| *it != one);
        map.pgs[0].learners.insert(one);
    };
    assert_eq!(judged(learns), ([false, true, false], true));
    let leads = |map: &mut Topology| map.pgs[0].qualified = [one].into();
    assert_eq!(judged(leads), ([true, false, true], true));
    assert!(!judged(|map| map.pgs[0].activated = View(2)).1, "nobody leads it");
}

#[test]
fn no_volume_loses_its_last_copy() {
    let narrow = |map: &mut Topology| {
        map.lvs[0].replicas[1].state = ReplicaState::Rebuilding;
        map.lvs[0].replicas[2].state = ReplicaState::Gone;
    };
    assert_eq!(judged(narrow), ([false, true, true], true));
    assert_eq!(judged(|map| map.lvs[0].replicas.clear()), ([true; 3], true));
}

#[test]
fn new_volumes_need_disks_that_take_data() {
    let drains = |map: &mut Topology, id| {
        map.servers.get_mut(&ServerId(id)).expect("it is there").draining = true;
    };
    assert_eq!(judged(|map| drains(map, 2)), ([false, false, true], true));
    assert!(!judged(|map| [1, 2].into_iter().for_each(|id| drains(map, id))).1);
}

/// Roles in processes of their own on one machine go together.
#[test]
fn a_machine_goes_with_all_its_servers() {
    let apart = |map: &mut Topology| {
        let proxy = ServerRecord { roles: [ServerRole::Proxy].into(), ..server(ServerId(0)) };
        map.servers.insert(ServerId(7), proxy);
    };
    let mut map = map();
    apart(&mut map);
    assert!(can_spare_machine_of(&map, ServerId(7)));
    set(&mut map, 1, ServerState::Down);
    assert!(!can_spare_machine_of(&map, ServerId(7)), "it goes with the member of server 0");
    assert!(!can_spare_machine_of(&map, ServerId(9)), "nobody knows it");
}

/// The founding manager of a cluster that is set up role by role has no number of its own.
#[test]
fn a_machine_goes_with_the_servers_at_its_address() {
    let mut map = map();
    for id in [0, 1, 2].map(ServerId) {
        let one = map.servers.get_mut(&id).expect("it is there");
        one.roles.remove(&ServerRole::Manager);
        one.domains.machine = MachineId(id.0 + 1);
        one.addresses = vec![format!("10.0.0.{}:7001", id.0 + 1)];
    }
    for (id, machine) in [(3, 0), (4, 2), (5, 3)] {
        let record = ServerRecord {
            roles: [ServerRole::Manager].into(),
            addresses: vec![format!("10.0.0.{}:7000", id - 2)],
            domains: FailureDomains { machine: MachineId(machine), ..FailureDomains::default() },
            disks: std::collections::BTreeMap::new(),
            ..server(ServerId(id))
        };
        map.servers.insert(ServerId(id), record);
    }
    assert!(can_spare_machine_of(&map, ServerId(0)));
    set(&mut map, 5, ServerState::Down);
    assert!(!can_spare_machine_of(&map, ServerId(0)), "the founder goes with 10.0.0.1");
    for record in map.servers.values_mut() {
        record.addresses = vec!["127.0.0.1:7000".to_owned(), "[::1]:7000".to_owned()];
    }
    assert!(can_spare_machine_of(&map, ServerId(0)), "loopback is no machine's own");
}
