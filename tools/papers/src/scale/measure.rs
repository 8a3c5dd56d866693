//! Counts and times of a large cluster's managers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use larder_protocol::limits::{LV_PLAN_MS, PRESENCE_BEAT_MS, SERVER_BEAT_MS};
use larder_protocol::manager::balance::outlook;
use larder_protocol::manager::policy::{
    ManagerMessage, Policy, PolicyEffect, PolicyEvent, ServerMessage,
};
use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{Command, PgRecord, ReplicaRecord, ReplicaState, Topology};
use larder_roles::limits::MANAGER_TICK_MS;
use larder_types::codec::encode;
use larder_types::{BootId, DiskId, LvId, PgId, PvId, ServerId};

use crate::Options;
use crate::world::hardware::Hardware;
use crate::world::setup::{Setup, meta_servers, targets, topology};

/// Milliseconds of the clock when the managers begin.
const BEGIN_MS: u64 = 1_000_000;
/// Shifts that are planned at a time.
const SHIFTS_MAX: usize = 4096;

/// A step of the policy, and how long it took.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) count: usize,
    pub(super) mean: Duration,
    pub(super) max: Duration,
}

/// The loss of a rack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rack {
    pub(super) servers: usize,
    /// Volumes that lose a copy, and those that lose more than one.
    pub(super) volumes: usize,
    pub(super) worse: usize,
    /// Groups that lose a member, and those that lose more than one.
    pub(super) groups: usize,
    pub(super) worse_groups: usize,
}

/// The growth of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Growth {
    pub(super) before: u32,
    pub(super) after: u32,
    /// Places in groups that change, and the least that have to for an even share.
    pub(super) members: usize,
    pub(super) members_least: usize,
    /// Copies of volumes that move, and the least that have to.
    pub(super) copies: usize,
    pub(super) copies_least: usize,
}

/// All of it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) setup: Setup,
    pub(super) map_bytes: usize,
    pub(super) volumes_bytes: usize,
    pub(super) encode: Duration,
    pub(super) decode: Duration,
    /// Commands of the managers' log, with their bytes.
    pub(super) commands: Vec<(&'static str, usize)>,
    /// Messages of servers a second, and their bytes.
    pub(super) messages_per_s: f64,
    pub(super) messages_bytes_per_s: f64,
    pub(super) steps: Vec<Step>,
    pub(super) rack: Rack,
    pub(super) growth: Growth,
}

/// The cluster that is measured.
fn large(seed: u64) -> Setup {
    Setup {
        servers: 1000,
        racks: 25,
        disks: 10,
        groups: 4096,
        pvs: 40,
        volume_mib: 16_384,
        volumes: 100_000,
        chunks: 1,
        chunk_mib: 8,
        background: 0,
        hardware: Hardware::GFS,
        seed,
    }
}

/// One that a test measures in a moment.
pub(super) fn small(seed: u64) -> Setup {
    Setup { servers: 40, racks: 4, disks: 4, groups: 128, volumes: 1600, ..large(seed) }
}

pub(super) fn run(options: &Options) -> Found {
    let setup = if options.quick { small(options.seed) } else { large(options.seed) };
    let mut map = topology(&setup);
    map.pgs.iter_mut().for_each(|pg| pg.activated = pg.view);
    let encoded = timed(|| map.encode());
    let decoded = timed(|| Topology::decode(&encoded.0).expect("what was encoded"));
    assert_eq!(decoded.0, map, "nothing is lost");
    let without = Topology { lvs: Vec::new(), ..map.clone() };
    let (messages_per_s, messages_bytes_per_s) = talk(&map);
    Found {
        map_bytes: encoded.0.len(),
        volumes_bytes: encoded.0.len() - without.encode().len(),
        encode: encoded.1,
        decode: decoded.1,
        commands: commands(&map),
        messages_per_s,
        messages_bytes_per_s,
        steps: steps(&map),
        rack: lose_rack(&map),
        growth: grow(&setup),
        setup,
    }
}

fn timed<T>(of: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let made = of();
    (made, began.elapsed())
}

/// Commands in the managers' log for a volume that is moved or made anew, and for a view.
fn commands(map: &Topology) -> Vec<(&'static str, usize)> {
    let (lv, pg) = (LvId(map.lvs.len() as u32 - 1), PgId(map.pgs.len() as u32 - 1));
    let (server, disk) = (ServerId(map.next.server.0 - 1), DiskId(map.next.disk.0 - 1));
    let record = &map.pgs[pg.0 as usize];
    let places = map.lvs[lv.0 as usize].replicas.iter().map(|it| (it.server, it.disk)).collect();
    let bytes = |command: &Command| encode(command).len();
    vec![
        ("a server is down", bytes(&Command::ServerDown(server, boot(map, server)))),
        (
            "a group's next view",
            bytes(&Command::BeginView(pg, record.view, record.members.clone())),
        ),
        ("a volume is drawn", bytes(&Command::CreateLv(pg, places))),
        ("a copy is added", bytes(&Command::AddReplica(lv, server, disk))),
        ("a copy has everything", bytes(&Command::ReplicaCurrent(lv, 3))),
        ("a copy is dropped", bytes(&Command::DropVacated(lv, 3, record.view))),
    ]
}

fn boot(map: &Topology, server: ServerId) -> BootId {
    map.servers[&server].boot
}

/// Groups that each server leads.
fn led(map: &Topology) -> BTreeMap<ServerId, Vec<(PgId, larder_types::View)>> {
    let mut led: BTreeMap<ServerId, Vec<_>> = BTreeMap::new();
    for (pg, record) in (0..).map(PgId).zip(&map.pgs) {
        led.entry(record.members[0]).or_default().push((pg, record.view));
    }
    led
}

fn renewal(
    map: &Topology,
    server: ServerId,
    led: Vec<(PgId, larder_types::View)>,
) -> ServerMessage {
    ServerMessage::Renew { boot: boot(map, server), sent_ms: BEGIN_MS, led }
}

/// Messages that servers send to the leading manager while nothing happens: as meta servers, and as data servers and proxies.
fn talk(map: &Topology) -> (f64, f64) {
    let per_s = |beat_ms: u64| 1000.0 / beat_ms as f64;
    let led = led(map);
    let (mut messages, mut bytes) = (0.0, 0.0);
    for &server in map.servers.keys() {
        let renewal = renewal(map, server, led.get(&server).cloned().unwrap_or_default());
        let presence = ServerMessage::Heartbeat(boot(map, server));
        for (message, rate) in [
            (renewal, per_s(SERVER_BEAT_MS)),
            (presence.clone(), per_s(PRESENCE_BEAT_MS)),
            (presence, per_s(PRESENCE_BEAT_MS)),
        ] {
            messages += rate;
            bytes += rate * encode(&message).len() as f64;
        }
    }
    (messages, bytes)
}

/// The leading manager, and the times that its steps took.
struct Manager<'a> {
    map: &'a Topology,
    policy: Policy,
    now_ms: u64,
    took: BTreeMap<&'static str, Vec<Duration>>,
}

impl Manager<'_> {
    fn step(&mut self, name: &'static str, event: PolicyEvent) -> Vec<PolicyEffect> {
        let mut out = Vec::new();
        let ((), took) = timed(|| self.policy.step(self.now_ms, event, self.map, &mut out));
        self.took.entry(name).or_default().push(took);
        out
    }
}

/// Steps of a leader in a cluster at rest, and those with which it meets a group that needs a volume.
fn steps(map: &Topology) -> Vec<Step> {
    let (policy, took) = (Policy::default(), BTreeMap::new());
    let mut manager = Manager { map, policy, now_ms: BEGIN_MS, took };
    manager.step("elected", PolicyEvent::Elected { shortened_since_ms: None });
    let led = led(map);
    let until_ms = BEGIN_MS + 3 * LV_PLAN_MS;
    let mut answered = Vec::new();
    while manager.now_ms < until_ms {
        if (manager.now_ms - BEGIN_MS).is_multiple_of(SERVER_BEAT_MS) {
            for (&server, groups) in &led {
                let message = renewal(map, server, groups.clone());
                let out = manager.step("a renewal", PolicyEvent::From(server, message));
                answered.extend(out);
            }
        }
        for effect in std::mem::take(&mut answered) {
            match effect {
                PolicyEffect::Confirm(ticket) => {
                    answered.extend(manager.step("leases granted", PolicyEvent::Confirmed(ticket)));
                }
                PolicyEffect::Tell(server, ManagerMessage::NewView { pg, view, boot, .. }) => {
                    let message = ServerMessage::Told(boot, pg, view);
                    manager.step("a view is told", PolicyEvent::From(server, message));
                }
                PolicyEffect::Propose(_, command) => panic!("a cluster at rest has {command:?}"),
                PolicyEffect::Tell(..) => {}
            }
        }
        answered.extend(manager.step("a tick", PolicyEvent::Tick));
        manager.now_ms += MANAGER_TICK_MS;
    }
    for pg in (0..map.pgs.len() as u32).step_by(map.pgs.len().div_ceil(16)).map(PgId) {
        let record = &map.pgs[pg.0 as usize];
        let has = map.lvs.iter().filter(|lv| lv.pg == pg).count();
        let message = ServerMessage::need_lv(pg, record.view, has, false);
        manager.step("a group needs a volume", PolicyEvent::From(record.members[0], message));
    }
    let step = |(name, took): (&'static str, Vec<Duration>)| Step {
        name,
        count: took.len(),
        mean: took.iter().sum::<Duration>() / took.len() as u32,
        max: took.into_iter().max().unwrap_or_default(),
    };
    manager.took.into_iter().map(step).collect()
}

/// A rack goes: what lies in it is counted. No volume and no group may lose more than one.
fn lose_rack(map: &Topology) -> Rack {
    let rack = map.servers[&ServerId(0)].domains.rack;
    let lost: BTreeSet<ServerId> = map
        .servers
        .iter()
        .filter(|(_, record)| record.domains.rack == rack)
        .map(|(server, _)| *server)
        .collect();
    let of_volumes = |least: usize| {
        let lies = |it: &&ReplicaRecord| lost.contains(&it.server);
        map.lvs.iter().filter(|lv| lv.replicas.iter().filter(lies).count() >= least).count()
    };
    let of_groups = |least: usize| {
        let is_lost = |it: &&ServerId| lost.contains(it);
        map.pgs.iter().filter(|pg| pg.members.iter().filter(is_lost).count() >= least).count()
    };
    Rack {
        servers: lost.len(),
        volumes: of_volumes(1),
        worse: of_volumes(2),
        groups: of_groups(1),
        worse_groups: of_groups(2),
    }
}

/// A cluster that is smaller by a tenth of the result grows: what moves until all is even.
fn grow(large: &Setup) -> Growth {
    let (before, after) = (large.servers / 11 * 10, large.servers / 11 * 11);
    let after_setup = Setup { servers: after, ..large.clone() };
    let before_setup = Setup { servers: before, volumes: large.volumes / 11 * 10, ..large.clone() };
    let old = topology(&before_setup);
    // The new servers have nothing yet.
    let mut map = topology(&Setup { volumes: 0, ..after_setup });
    map.lvs.clone_from(&old.lvs);
    for (server, record) in &old.servers {
        let to = map.servers.get_mut(server).expect("it is in the larger cluster too");
        to.disks.clone_from(&record.disks);
    }
    let targets = targets(&meta_servers(&map), large.groups);
    let differs = |(pg, target): (&PgRecord, &Vec<ServerId>)| {
        target.iter().filter(|server| !pg.target.contains(server)).count()
    };
    let members: usize = old.pgs.iter().zip(&targets).map(differs).sum();
    let new = u64::from(after - before);
    let share = |all: usize| (all as u64 * new / u64::from(after)) as usize;
    let places = 3 * old.pgs.len();
    let all_copies = 3 * old.lvs.len();
    let copies = even(&mut map);
    Growth {
        before,
        after,
        members,
        members_least: share(places),
        copies,
        copies_least: share(all_copies),
    }
}

/// Carries out moves for balance until there are no more; returns how many.
fn even(map: &mut Topology) -> usize {
    let mut moved = 0;
    loop {
        let next = outlook(map, &BTreeSet::new(), SHIFTS_MAX).next;
        if next.is_empty() {
            return moved;
        }
        moved += next.len();
        for shift in next {
            let server = ServerId(shift.to.0 / disks_of_a_server(map));
            let disk = map.servers.get_mut(&server).and_then(|it| it.disks.get_mut(&shift.to));
            let disk = disk.expect("a move goes to a disk");
            let pv = disk.next_pv;
            disk.next_pv = PvId(pv.0 + 1);
            let lv = &mut map.lvs[shift.lv.0 as usize];
            let from = lv.replicas.iter_mut().find(|it| it.disk == shift.from);
            let from = from.expect("a move comes from a disk");
            let state = ReplicaState::Current;
            let gone = std::mem::replace(from, ReplicaRecord { server, disk: shift.to, pv, state });
            let disk =
                map.servers.get_mut(&gone.server).and_then(|it| it.disks.get_mut(&gone.disk));
            disk.expect("it has a record").freed.insert(gone.pv);
        }
        map.applied = LogIndex(map.applied.0 + 1);
    }
}

fn disks_of_a_server(map: &Topology) -> u32 {
    map.servers[&ServerId(0)].disks.len() as u32
}
