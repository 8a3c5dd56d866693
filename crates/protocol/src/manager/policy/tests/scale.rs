//! A large cluster: the work of one step is bounded, however many servers, groups and volumes there are.

use larder_types::PvId;

use super::*;
use crate::limits::{LV_MOVES_MAX, TARGET_DRAWS_MAX};
use crate::manager::state::{
    DiskRecord, DiskState, LvRecord, LvState, ReplicaRecord, ServerRecord,
};
use crate::placement::{CHOICES, GroupRules, MetaServer, target_members};

struct Size {
    servers: u32,
    disks: u32,
    pgs: u32,
    lvs: u32,
}

/// A map of that size, in which all is well.
fn map(size: &Size) -> Topology {
    let settings = Settings { pg_count: size.pgs, ..SETTINGS };
    let mut map = Topology {
        founded: Some((ClusterId(1), settings)),
        version: MapVersion(5),
        ..Topology::default()
    };
    let mut used = vec![0; (size.servers * size.disks) as usize];
    for lv in 0..size.lvs {
        let replica = |copy: u32, used: &mut Vec<u32>| {
            let server = (lv + copy * (1 + lv / size.servers % 97)) % size.servers;
            let disk = server * size.disks + lv / size.servers % size.disks;
            let pv = PvId(used[disk as usize]);
            used[disk as usize] += 1;
            let (server, disk) = (ServerId(server), DiskId(disk));
            ReplicaRecord { server, disk, pv, state: ReplicaState::Current }
        };
        let replicas = (0..3).map(|copy| replica(copy, &mut used)).collect();
        let (pg, state) = (PgId(lv % size.pgs), LvState::Open);
        map.lvs.push(LvRecord { pg, blocks: 64, width: 3, replicas, state });
    }
    for id in 0..size.servers {
        let disk = |at: u32| {
            let (weight, next_pv) = (Weight(100), PvId(used[(id * size.disks + at) as usize]));
            let (freed, state) = (BTreeSet::new(), DiskState::In);
            let pv_count = 2 * (3 * size.lvs / (size.servers * size.disks)) + 64;
            let record = DiskRecord { weight, pv_count, next_pv, freed, state };
            (DiskId(id * size.disks + at), record)
        };
        let machine = MachineId(id);
        let record = ServerRecord {
            name: format!("s{id}"),
            roles: [ServerRole::Meta, ServerRole::Data].into(),
            addresses: Vec::new(),
            domains: FailureDomains { region: RegionId(0), rack: RackId(id / 20), machine },
            weight: Weight(100),
            state: ServerState::Up,
            draining: false,
            boot: BootId(1),
            ended: Default::default(),
            started: MapVersion(1),
            disks: (0..size.disks).map(disk).collect(),
        };
        map.servers.insert(ServerId(id), record);
    }
    let pg = |id: u32| {
        let members: Vec<ServerId> = (0..3).map(|m| ServerId((id + m) % size.servers)).collect();
        PgRecord {
            view: View(1),
            begun: MapVersion(2),
            qualified: members.iter().copied().collect(),
            activated: View(1),
            target: members.clone(),
            members,
            ..PgRecord::default()
        }
    };
    map.pgs = (0..size.pgs).map(pg).collect();
    assert_eq!(map.contradiction(), None);
    map
}

impl Size {
    /// A tick of a leader that has heard all servers.
    fn tick(&self, policy: &mut Policy, now_ms: u64, map: &Topology) -> Vec<PolicyEffect> {
        let mut out = Vec::new();
        for id in (0..self.servers).map(ServerId) {
            let beat = PolicyEvent::From(id, ServerMessage::Heartbeat(BootId(1)));
            policy.step(now_ms, beat, map, &mut out);
        }
        policy.step(now_ms, PolicyEvent::Tick, map, &mut out);
        out
    }
}

fn elected(map: &Topology) -> Policy {
    let mut policy = Policy::default();
    let elected = PolicyEvent::Elected { shortened_since_ms: None };
    policy.step(1_000, elected, map, &mut Vec::new());
    policy
}

const LARGE: Size = Size { servers: 200, disks: 5, pgs: 512, lvs: 20_000 };

#[test]
fn a_look_at_all_groups_passes_over_each_volume_a_few_times() {
    let (mut map, size) = (map(&LARGE), LARGE);
    let mut policy = elected(&map);
    size.tick(&mut policy, 1_010, &map);
    // A data server has begun another run: each group is asked which of its volumes lie there.
    map.version = MapVersion(6);
    let server = map.servers.get_mut(&ServerId(7)).unwrap();
    server.started = MapVersion(6);
    map.pgs.iter_mut().for_each(|pg| pg.data_started = MapVersion(6));
    let passed = |policy: &Policy| policy.leading.as_ref().unwrap().of_groups.passed();
    let before = passed(&policy);
    let out = size.tick(&mut policy, 1_060, &map);
    let views = out
        .iter()
        .filter(|effect| matches!(effect, PolicyEffect::Propose(_, Command::BeginView(..))));
    assert!(views.count() > 100, "groups with volumes there begin views");
    let looks = passed(&policy) - before;
    let lvs = u64::from(size.lvs);
    assert!((lvs..=4 * lvs).contains(&looks), "{looks} looks at {lvs} volumes");
}

#[test]
fn targets_are_computed_for_some_groups_at_a_time_until_all_are_right() {
    let (mut map, size) = (map(&LARGE), LARGE);
    let mut policy = elected(&map);
    let most = TARGET_DRAWS_MAX / size.servers as usize;
    assert!(most < size.pgs as usize / 2);
    let (mut looks, mut now_ms) = (0, 1_000);
    let are_right = |policy: &Policy, map: &Topology| {
        policy.leading.as_ref().unwrap().targets.are_right(map.pgs.len())
    };
    while !are_right(&policy, &map) {
        (looks, now_ms) = (looks + 1, now_ms + 50);
        assert!(looks < 20, "they come to an end");
        for effect in size.tick(&mut policy, now_ms, &map) {
            let PolicyEffect::Propose(ticket, command) = effect else { continue };
            // Of all else nothing becomes, and the first proposal is lost.
            let applied = match command {
                Command::Retarget(targets) if looks > 1 => {
                    assert!(targets.len() <= most, "{} groups", targets.len());
                    for (pg, target) in targets {
                        map.pgs[pg.0 as usize].target = target;
                    }
                    map.version = MapVersion(map.version.0 + 1);
                    Some(Ok(Outcome::Done))
                }
                _ => None,
            };
            policy.step(now_ms, PolicyEvent::Decided(ticket, applied), &map, &mut Vec::new());
        }
    }
    let rules = GroupRules { members: 3, min_members: 2 };
    let server = |(id, record): (&ServerId, &ServerRecord)| MetaServer {
        server: *id,
        domains: record.domains,
        weight: record.weight,
        placement_state: PlacementState::In,
    };
    let servers: Vec<MetaServer> = map.servers.iter().map(server).collect();
    for (pg, record) in (0..).map(PgId).zip(&map.pgs) {
        let picks = target_members(pg, &servers, rules).picks;
        assert_eq!(picks, record.target.iter().map(|it| it.0).collect::<Vec<_>>(), "{pg}");
    }
}

#[test]
fn all_that_is_lost_is_given_up_at_once_and_the_fewest_copies_get_places_first() {
    let (mut map, size) = (map(&LARGE), LARGE);
    for server in [10, 13].map(ServerId) {
        let disks = &mut map.servers.get_mut(&server).unwrap().disks;
        disks.values_mut().for_each(|disk| disk.state = DiskState::Removed);
    }
    let lost = |lv: &LvRecord| lv.present().filter(|(_, it)| !map.exists(it)).count();
    let twice = map.lvs.iter().filter(|lv| lost(lv) == 2).count();
    let all: usize = map.lvs.iter().map(lost).sum();
    assert!((1..LV_MOVES_MAX).contains(&twice) && all > 2 * LV_MOVES_MAX, "{twice}, {all}");
    let mut policy = elected(&map);
    let out = size.tick(&mut policy, 1_000 + LV_PLAN_MS, &map);
    let ordered = out
        .iter()
        .filter(|effect| matches!(effect, PolicyEffect::Tell(_, ManagerMessage::Vacate(..))));
    assert_eq!(ordered.count(), all);
    let placed = out.iter().filter_map(|effect| match effect {
        PolicyEffect::Propose(_, Command::AddReplica(lv, ..)) => Some(lost(map.lv(*lv).unwrap())),
        _ => None,
    });
    let placed: Vec<usize> = placed.collect();
    assert_eq!(placed.len(), LV_MOVES_MAX);
    assert!(placed[..twice].iter().all(|lost| *lost == 2), "{placed:?}");
    // Those that were told to go do not have a place sought for each: there is none to give beyond the bound. Each test plans twice.
    let before = CHOICES.get();
    size.tick(&mut policy, 1_000 + 2 * LV_PLAN_MS, &map);
    let most = 2 * LV_MOVES_MAX + TARGET_DRAWS_MAX / size.servers as usize;
    let choices = CHOICES.get() - before;
    assert!((1..=most).contains(&choices), "{choices} choices, {all} lost");
}
