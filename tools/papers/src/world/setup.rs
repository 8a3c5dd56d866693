//! The cluster as it begins: servers that are all up, volumes that are full, groups that are led.

use std::collections::{BTreeMap, BTreeSet};

use larder_bench::workload::Random;
use larder_protocol::limits::{LEADS_MAX, SERVER_BEAT_MS, WALK_CHECK_MS};
use larder_protocol::manager::policy::{Policy, PolicyEvent};
use larder_protocol::manager::state::{
    ClusterId, Command, LvRecord, LvState, MapVersion, NewServer, PgRecord, ReplicaRecord,
    ReplicaState, ServerRecord, ServerRole, Settings, Topology,
};
use larder_protocol::placement::{
    ActingPg, CopyRules, DiskInfo, FailureDomains, GroupRules, MachineId, MetaServer,
    PlacementState, RackId, Room, Weight, balance_primaries, place_lv, target_members,
};
use larder_types::limits::BLOCK_BYTES;
use larder_types::{BootId, DiskId, LvId, PgId, PvId, RegionId, ServerId, View};

use super::copying::Copying;
use super::group::Group;
use super::hardware::{Hardware, Machine};
use super::meta::Meta;
use super::truth::{COPIES, Truth};
use super::{GROUP_TICK_US, Happening, US_PER_MS, World};

/// The hash of the token with which all servers join.
const TOKEN: [u8; 32] = [1; 32];
/// Managers: more make no difference here.
const MANAGERS: u32 = 3;
/// The view that all groups are in: the log of the one before has all chunks.
const BEGINS: View = View(2);
/// The cluster's version: the newest, so that all that ships is used.
const VERSION: u8 = larder_roles::limits::PROTOCOL_COPIES;

/// The members of each group.
pub(crate) const GROUP_RULES: GroupRules = GroupRules { members: COPIES as usize, min_members: 2 };

/// A cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setup {
    /// Servers, each of them a meta server and a data server.
    pub(crate) servers: u32,
    /// Racks among which they are divided in turn.
    pub(crate) racks: u32,
    /// Disks of a server.
    pub(crate) disks: u32,
    pub(crate) groups: u32,
    /// Physical volumes of a disk.
    pub(crate) pvs: u32,
    /// MiB of a volume.
    pub(crate) volume_mib: u32,
    pub(crate) volumes: u32,
    /// Chunks of a volume, and MiB of each.
    pub(crate) chunks: u32,
    pub(crate) chunk_mib: u32,
    /// Bytes a second that background work of each meta server may take.
    pub(crate) background: u64,
    pub(crate) hardware: Hardware,
    /// Moves what servers do at the same time apart.
    pub(crate) seed: u64,
}

impl Setup {
    /// Bytes that a volume has.
    pub(crate) fn volume_bytes(&self) -> u64 {
        u64::from(self.chunks) * u64::from(self.chunk_mib) * 1024 * 1024
    }

    /// Rows of a server's index: each group has three members.
    pub(crate) fn index_rows(&self) -> u64 {
        u64::from(self.volumes) * u64::from(self.chunks) * u64::from(COPIES)
            / u64::from(self.servers)
    }

    fn blocks(mib: u32) -> u32 {
        mib * (1024 * 1024 / BLOCK_BYTES)
    }
}

/// Founds a cluster of servers with disks that have nothing yet.
fn found(setup: &Setup) -> Topology {
    let settings = Settings {
        pg_count: setup.groups,
        members: COPIES,
        min_members: 2,
        copies: COPIES,
        min_copies: 2,
        lv_blocks: Setup::blocks(setup.volume_mib),
    };
    let mut commands =
        vec![Command::Found(ClusterId(1), settings), Command::AddToken(TOKEN, u64::MAX)];
    for id in 0..setup.servers {
        let mut roles = BTreeSet::from([ServerRole::Meta, ServerRole::Data, ServerRole::Proxy]);
        if id < MANAGERS {
            roles.insert(ServerRole::Manager);
        }
        let domains = FailureDomains {
            region: RegionId(0),
            rack: RackId(id % setup.racks),
            machine: MachineId(id),
        };
        let (name, addresses, weight) = (format!("s{id}"), Vec::new(), Weight(100));
        let new = NewServer { name, roles, addresses, domains, weight };
        commands.push(Command::AddServer(new, (id > 0).then_some((TOKEN, 0))));
        let boot = BootId(u64::from(id) << 32 | 1);
        commands.push(Command::ServerStarted(ServerId(id), boot, Vec::new(), Vec::new()));
        let disk = Command::AddDisk(ServerId(id), Weight(setup.pvs), setup.pvs);
        commands.extend(std::iter::repeat_n(disk, setup.disks as usize));
    }
    commands.push(Command::RaiseClusterVersion(VERSION));
    let mut map = Topology::default();
    for command in commands {
        let index = larder_protocol::manager::quorum::LogIndex(map.applied.0 + 1);
        map.apply(index, command).expect("a cluster is founded");
    }
    map
}

/// Gives the groups volumes where `place_lv` puts them, in turn.
fn draw_volumes(setup: &Setup, map: &mut Topology) {
    let rules = CopyRules { copies: COPIES.into(), min_copies: 2 };
    let disk = |id: u32| DiskInfo {
        disk: DiskId(id),
        server: ServerId(id / setup.disks),
        domains: map.servers[&ServerId(id / setup.disks)].domains,
        weight: Weight(setup.pvs),
        pv_count: setup.pvs,
        pv_free: setup.pvs,
        placement_state: PlacementState::In,
        up: true,
        room: Room::Some,
    };
    let mut disks: Vec<DiskInfo> = (0..setup.servers * setup.disks).map(disk).collect();
    for lv in 0..setup.volumes {
        let placed = place_lv(LvId(lv), &disks, rules).expect("disks have room");
        assert!(!placed.narrow, "every volume has all copies");
        let replica = |disk: DiskId| {
            let info = &mut disks[disk.0 as usize];
            let pv = PvId(info.pv_count - info.pv_free);
            info.pv_free -= 1;
            ReplicaRecord { server: info.server, disk, pv, state: ReplicaState::Current }
        };
        let replicas = placed.disks.into_iter().map(replica).collect();
        let (pg, blocks) = (PgId(lv % setup.groups), Setup::blocks(setup.volume_mib));
        map.lvs.push(LvRecord { pg, blocks, width: COPIES, replicas, state: LvState::Open });
    }
    for info in disks {
        let record = map.servers.get_mut(&info.server).and_then(|it| it.disks.get_mut(&info.disk));
        record.expect("every disk has a record").next_pv = PvId(info.pv_count - info.pv_free);
    }
}

/// The meta servers of a map, all of them in.
pub(crate) fn meta_servers(map: &Topology) -> Vec<MetaServer> {
    let server = |(server, record): (&ServerId, &ServerRecord)| MetaServer {
        server: *server,
        domains: record.domains,
        weight: record.weight,
        placement_state: PlacementState::In,
    };
    map.servers.iter().map(server).collect()
}

/// The members that groups ought to have, as managers choose them.
pub(crate) fn targets(servers: &[MetaServer], groups: u32) -> Vec<Vec<ServerId>> {
    let of = |pg| target_members(PgId(pg), servers, GROUP_RULES).picks;
    (0..groups).map(|pg| of(pg).into_iter().map(ServerId).collect()).collect()
}

/// Has other members lead, primaries first, until managers would leave it so.
pub(crate) fn even_leaders(groups: &mut [Vec<ServerId>], servers: &[MetaServer]) {
    let qualified: BTreeSet<ServerId> = servers.iter().map(|server| server.server).collect();
    let nobody = BTreeMap::new();
    loop {
        let acting = |members| ActingPg { members, qualified: &qualified, learners: &nobody };
        let all: Vec<(PgId, ActingPg<'_>)> =
            (0..).map(PgId).zip(groups.iter().map(|members| acting(members))).collect();
        let leads = balance_primaries(&all, servers, LEADS_MAX);
        if leads.is_empty() {
            return;
        }
        for (pg, to) in leads {
            let members = &mut groups[pg.0 as usize];
            let at = members.iter().position(|member| *member == to);
            members.swap(0, at.expect("a member is to lead"));
        }
    }
}

/// Gives the groups the members that they ought to have, in a view that is not active yet.
fn make_members(setup: &Setup, map: &mut Topology) {
    let servers = meta_servers(map);
    let targets = targets(&servers, setup.groups);
    let mut members = targets.clone();
    even_leaders(&mut members, &servers);
    let begun = MapVersion(map.version.0 + 1);
    let record = |(target, members): (Vec<ServerId>, Vec<ServerId>)| PgRecord {
        view: BEGINS,
        begun,
        qualified: members.iter().copied().collect(),
        target,
        members,
        ..PgRecord::default()
    };
    map.pgs = targets.into_iter().zip(members).map(record).collect();
    map.version = begun;
}

/// The map of a cluster in which nothing is missing.
pub(crate) fn topology(setup: &Setup) -> Topology {
    let mut map = found(setup);
    draw_volumes(setup, &mut map);
    make_members(setup, &mut map);
    map
}

impl World {
    /// A cluster in which nothing is missing. The volumes that have copies on these servers have rows in the index.
    pub(crate) fn new(
        setup: &Setup,
        victims: impl Fn(&Topology) -> BTreeSet<ServerId>,
    ) -> (Self, BTreeSet<ServerId>) {
        let map = topology(setup);
        let victims = victims(&map);
        let count = setup.servers as usize;
        let chunks_max = u64::from(setup.volumes.div_ceil(setup.groups)) * u64::from(setup.chunks);
        let group = |pg| Group::new(PgId(pg), setup.groups, chunks_max);
        let mut world = Self {
            setup: setup.clone(),
            now_us: 1_000 * US_PER_MS,
            steps: 0,
            queue: BTreeMap::new(),
            policy: Policy::default(),
            groups: (0..setup.groups).map(group).collect(),
            metas: (0..count).map(|_| Meta::new(setup.background)).collect(),
            machines: (0..count).map(|_| Machine::default()).collect(),
            copying: Copying::default(),
            gone: BTreeSet::new(),
            truth: Truth::default(),
            commands: 0,
            map,
        };
        world.fill(&victims);
        world.policy(PolicyEvent::Elected { shortened_since_ms: None });
        world.after(0, Happening::ManagersTick);
        world.after(GROUP_TICK_US, Happening::GroupsTick);
        // Servers beat and look at times of their own.
        let mut dice = Random(setup.seed);
        for id in 0..setup.servers {
            let (beat_ms, look_ms) = (dice.below(SERVER_BEAT_MS), dice.below(WALK_CHECK_MS));
            world.after(beat_ms * US_PER_MS, Happening::Beat(ServerId(id)));
            world.plan(ServerId(id), look_ms * US_PER_MS);
        }
        (world, victims)
    }

    fn fill(&mut self, victims: &BTreeSet<ServerId>) {
        let blocks = Setup::blocks(self.setup.chunk_mib);
        for (id, lv) in (0..).map(LvId).zip(&self.map.lvs) {
            let lost = lv.replicas.iter().filter(|it| victims.contains(&it.server)).count();
            if lost > 0 {
                let group = &mut self.groups[lv.pg.0 as usize];
                group.fill(id, lv.replicas.len(), (self.setup.chunks, blocks));
                self.truth.lose(id, self.setup.chunks as usize, lost as u8);
            }
        }
    }
}
