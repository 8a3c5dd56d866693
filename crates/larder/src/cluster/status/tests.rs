//! What is told of a map.

use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{
    ClusterId, Command, DiskRecord, LvRecord, ReplicaRecord, ServerRecord,
};
use larder_protocol::placement::{FailureDomains, Weight};
use larder_types::{BootId, DiskId, MapVersion, PgId, PvId, ServerId, View};

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
    let pgs = status(&map, Vec::new()).pgs;
    assert_eq!((pgs.total, pgs.clean, pgs.degraded, pgs.recovering, pgs.inactive), (4, 1, 1, 1, 1));
    let states: Vec<_> = pgs.unclean.iter().map(|pg| (pg.id, pg.state)).collect();
    assert_eq!(states, [(0, "inactive"), (2, "recovering"), (3, "degraded")]);
    let mut text = Vec::new();
    text::people(&mut text, &status(&map, Vec::new())).expect("memory takes it");
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
fn copies_are_told_by_what_they_hold_and_where_they_are() {
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
    let status = status(&map, Vec::new());
    let told: Vec<_> = status
        .volumes
        .unclean
        .iter()
        .map(|it| (it.id, it.current, it.away, it.rebuilding, it.gone))
        .collect();
    assert_eq!(told, [(0, 1, 1, 0, 0), (1, 1, 0, 1, 1), (2, 1, 0, 0, 0)]);
    assert_eq!(status.volumes.degraded, 2);
    let copies = (status.volumes.replicas_current, status.volumes.replicas_wanted);
    assert_eq!(copies, (4, 6));
    let mut text = Vec::new();
    text::people(&mut text, &status).expect("memory takes it");
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("data-0 drains: 3 copies of volumes"), "{text}");
    assert!(text.contains("[###############-----]  75 %"), "three of four have left it: {text}");
    assert!(text.contains("4 of 6 copies are current"), "{text}");
    assert!(text.contains("1 being rebuilt, 1 gone"), "{text}");
    assert!(!text.contains("data-2"), "what was removed is told to machines alone: {text}");
}
