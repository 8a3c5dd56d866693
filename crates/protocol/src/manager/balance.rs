//! The balance of a map's disks, and the moves that improve it: for the leading manager, and for operators.

use std::collections::BTreeSet;

use larder_types::{DiskId, LvId, ServerId};

use super::state::{
    DiskState, LvRecord, LvState, ReplicaRecord, ReplicaState, ServerRecord, ServerRole,
    ServerState, Settings, Topology,
};
use crate::limits::{BALANCE_LVS_MAX, BALANCE_SPREAD_PERCENT, STEADY_DISKS_MAX};
use crate::placement::{
    Balance, CopyMove, CopyRules, DiskInfo, DrainOutcome, LvCopy, PlacementState, Planned, Room,
    leaving, plan_balance, wider,
};

/// The volumes that move for balance, and the next moves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BalanceOutlook {
    /// The number of volumes that move: see [`moving_volumes`].
    pub moving: usize,
    /// The moves after those, in order.
    pub next: Vec<CopyMove>,
    /// True if the plan considered all volumes: else there may be more moves.
    pub is_whole: bool,
    /// Volumes whose copies are in fewer failure domains than they could be, and stay there.
    pub near: usize,
    /// Volumes that have more copies than wanted: the managers begin no move while there are enough of these.
    pub wider: usize,
    /// The time since 1970, in milliseconds, at which an operator paused moves; `None` while they may begin.
    pub paused_ms: Option<u64>,
}

/// Returns a map's balance, with the next moves up to `limit`. No map says which disks lack room: their servers do. Servers that
/// are down keep the leading manager from beginning any; that they are lost after a while, no map says either.
#[must_use]
pub fn outlook(map: &Topology, lacking: &BTreeSet<DiskId>, limit: usize) -> BalanceOutlook {
    let Some((_, settings)) = map.founded else { return BalanceOutlook::default() };
    let rules = rules(settings);
    let disks = disks_of(map, |server| placement_state(map, server), |disk| room(disk, lacking));
    let lvs = copies_of(made(map), |_| false, |_| false, |_| true);
    let written = written(map);
    let of = Balance { lvs_max: lvs.len(), ..aims(&lvs, &written, &disks, rules) };
    let Planned { shifts: next, is_whole, near, .. } = plan_balance(&of, limit);
    let paused_ms = map.balance_paused_ms;
    let wider = wider(&lvs, &disks, rules);
    BalanceOutlook { moving: moving_volumes(map), next, is_whole, near, wider, paused_ms }
}

fn rules(settings: Settings) -> CopyRules {
    let (copies, min_copies) = (settings.copies.into(), settings.min_copies.into());
    CopyRules { copies, min_copies }
}

fn placement_state(map: &Topology, server: ServerId) -> PlacementState {
    match map.servers.get(&server) {
        Some(record) if record.draining => PlacementState::Out,
        Some(record) if record.state == ServerState::Up => PlacementState::In,
        Some(record) if record.state == ServerState::Down => PlacementState::Away,
        _ => PlacementState::Out,
    }
}

fn room(disk: DiskId, lacking: &BTreeSet<DiskId>) -> Room {
    if lacking.contains(&disk) { Room::None } else { Room::Some }
}

/// The outcome of a drain of these disks, beside what drains already, while some lack room: if servers that are down come back,
/// and if they are lost.
#[must_use]
pub fn drain_outlook(
    map: &Topology,
    leave: &BTreeSet<DiskId>,
    lacking: &BTreeSet<DiskId>,
) -> (DrainOutcome, DrainOutcome) {
    let Some((_, settings)) = map.founded else { return Default::default() };
    let lvs = copies_of(made(map), |_| false, |_| false, |_| true);
    let with = |of_down: PlacementState| {
        let placement_state = |server| match placement_state(map, server) {
            PlacementState::Away => of_down,
            placement_state => placement_state,
        };
        let mut disks = disks_of(map, placement_state, |disk| room(disk, lacking));
        disks.iter_mut().for_each(|disk| disk.up |= disk.placement_state == PlacementState::In);
        for disk in disks.iter_mut().filter(|it| leave.contains(&it.disk)) {
            disk.placement_state = PlacementState::Out;
        }
        leaving(&lvs, &disks, rules(settings), leave)
    };
    let is_down = |record: &ServerRecord| record.state == ServerState::Down && !record.draining;
    let back = with(PlacementState::In);
    (back, if map.servers.values().any(is_down) { with(PlacementState::Out) } else { back })
}

/// The number of volumes that move for balance: they have more copies than wanted, and no copy on a disk that drains or is
/// gone.
#[must_use]
pub fn moving_volumes(map: &Topology) -> usize {
    let Some((_, settings)) = map.founded else { return 0 };
    let copies = usize::from(settings.copies);
    let stays = |replica: &ReplicaRecord| {
        let server = map.servers.get(&replica.server);
        server.filter(|it| !it.draining && it.state != ServerState::Removed).is_some_and(|it| {
            it.disks.get(&replica.disk).is_some_and(|disk| disk.state == DiskState::In)
        })
    };
    let made = map.lvs.iter().filter(|lv| lv.state != LvState::Creating);
    let wider = made.filter(|lv| lv.present().count() > copies);
    wider.filter(|lv| lv.present().all(|(_, replica)| stays(replica))).count()
}

/// The input of a plan for balance, with the leading manager's limits.
pub(super) fn aims<'a>(
    lvs: &'a [(LvId, Vec<LvCopy>)],
    written: &'a BTreeSet<LvId>,
    disks: &'a [DiskInfo],
    rules: CopyRules,
) -> Balance<'a> {
    let (spread_percent, lvs_max) = (BALANCE_SPREAD_PERCENT, BALANCE_LVS_MAX);
    Balance { lvs, written, written_on: None, disks, rules, spread_percent, first: 0, lvs_max }
}

/// The newest volume of each group, which takes its writes: the others were nearly full when the group got it.
pub(super) fn written(map: &Topology) -> BTreeSet<LvId> {
    let mut last = vec![None; map.pgs.len()];
    for (id, lv) in made(map) {
        if let Some(last) = last.get_mut(lv.pg.0 as usize) {
            *last = Some(id);
        }
    }
    last.into_iter().flatten().collect()
}

/// The disks that were not removed.
pub(super) fn disks_of(
    map: &Topology,
    placement_state: impl Fn(ServerId) -> PlacementState,
    room: impl Fn(DiskId) -> Room,
) -> Vec<DiskInfo> {
    let mut disks = Vec::new();
    for (server, record) in &map.servers {
        if !record.roles.contains(&ServerRole::Data) {
            continue;
        }
        let of_server = placement_state(*server);
        let there = record.disks.iter().filter(|(_, disk)| disk.state != DiskState::Removed);
        disks.extend(there.map(|(id, disk)| DiskInfo {
            disk: *id,
            server: *server,
            domains: record.domains,
            weight: disk.weight,
            pv_count: disk.pv_count,
            pv_free: disk.pv_free(),
            placement_state: match disk.state {
                DiskState::In if of_server == PlacementState::In && room(*id).takes_none() => {
                    PlacementState::Away
                }
                DiskState::In => of_server,
                _ => PlacementState::Out,
            },
            up: record.state == ServerState::Up,
            room: room(*id),
        }));
    }
    disks
}

/// Volumes that are made.
pub(super) fn made(map: &Topology) -> impl Iterator<Item = (LvId, &LvRecord)> {
    (0..).map(LvId).zip(&map.lvs).filter(|(_, lv)| lv.state != LvState::Creating)
}

/// Disks that keep what they have, and whose servers are up.
pub(super) struct StableDisks(Vec<bool>);

impl StableDisks {
    pub(super) fn new(disks: &[DiskInfo]) -> Self {
        let kept = |disk: &&DiskInfo| disk.up && disk.placement_state != PlacementState::Out;
        let kept = || disks.iter().filter(kept).map(|disk| disk.disk.0 as usize);
        let count = kept().max().map_or(0, |last| last + 1).min(STEADY_DISKS_MAX);
        let mut steady = Self(vec![false; count]);
        for disk in kept() {
            steady.0.get_mut(disk).into_iter().for_each(|is| *is = true);
        }
        steady
    }

    /// Returns true if a volume has as many copies as wanted, all of them whole and on such disks: no plan but that for balance
    /// has anything for it.
    pub(super) fn keeps(&self, lv: &LvRecord, copies: usize) -> bool {
        let is_kept = |replica: &ReplicaRecord| {
            let is_steady = self.0.get(replica.disk.0 as usize).copied().unwrap_or(false);
            is_steady && replica.state == ReplicaState::Current
        };
        lv.present().count() == copies && lv.present().all(|(_, replica)| is_kept(replica))
    }
}

/// Volumes with their copies, of which some are empty or were told to become so, and of some the PV is there.
pub(super) fn copies_of<'a>(
    lvs: impl Iterator<Item = (LvId, &'a LvRecord)>,
    is_emptied: impl Fn((LvId, u8)) -> bool,
    is_ordered: impl Fn((LvId, u8)) -> bool,
    is_made: impl Fn((LvId, u8)) -> bool,
) -> Vec<(LvId, Vec<LvCopy>)> {
    let copies = |id: LvId, lv: &LvRecord| {
        let copy = |(replica, r): (usize, &ReplicaRecord)| LvCopy {
            replica,
            disk: r.disk,
            current: r.state == ReplicaState::Current,
            emptied: is_emptied((id, replica as u8)),
            ordered: is_ordered((id, replica as u8)),
            made: r.state == ReplicaState::Current || is_made((id, replica as u8)),
        };
        lv.present().map(copy).collect()
    };
    lvs.map(|(id, lv)| (id, copies(id, lv))).collect()
}
