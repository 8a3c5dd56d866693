//! How evenly the disks of a map are used, and what moves for it: for the manager that leads, and for operators.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{DiskId, LvId, PgId, ServerId};

use super::state::{
    DiskState, LvRecord, LvState, ReplicaRecord, ReplicaState, ServerRole, ServerState, Topology,
};
use crate::limits::BALANCE_SPREAD_PERCENT;
use crate::placement::{Balance, CopyRules, DiskInfo, LvCopy, Shift, Standing, plan_balance};

/// What is moving for balance, and what is to follow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Volumes that have a copy more than wanted.
    pub moving: usize,
    /// The moves after those, in their order.
    pub next: Vec<Shift>,
}

/// What a map says of its balance, with the next moves up to `limit`. Servers that are down keep the leading manager from
/// beginning any.
#[must_use]
pub fn outlook(map: &Topology, limit: usize) -> Outlook {
    let Some((_, settings)) = map.founded else { return Outlook::default() };
    let rules = CopyRules {
        copies: usize::from(settings.copies),
        min_copies: usize::from(settings.min_copies),
    };
    let standing = |server: ServerId| match map.servers.get(&server) {
        Some(record) if record.draining => Standing::Out,
        Some(record) if record.state == ServerState::Up => Standing::In,
        Some(record) if record.state == ServerState::Down => Standing::Away,
        _ => Standing::Out,
    };
    let disks = disks_of(map, standing, |_| true);
    let lvs = copies_of(map, |_| false, |_| false);
    let (moving, written) = (moving(&lvs, rules), written(map));
    Outlook { moving, next: plan_balance(&aims(&lvs, &written, &disks, rules), limit) }
}

/// Volumes of a map that have a copy more than wanted.
#[must_use]
pub fn moving_volumes(map: &Topology) -> usize {
    let Some((_, settings)) = map.founded else { return 0 };
    let copies = usize::from(settings.copies);
    let made = map.lvs.iter().filter(|lv| lv.state != LvState::Creating);
    made.filter(|lv| lv.present().count() > copies).count()
}

/// What a plan for balance looks at.
pub(super) fn aims<'a>(
    lvs: &'a [(LvId, Vec<LvCopy>)],
    written: &'a BTreeSet<LvId>,
    disks: &'a [DiskInfo],
    rules: CopyRules,
) -> Balance<'a> {
    Balance { lvs, written, disks, rules, spread_percent: BALANCE_SPREAD_PERCENT }
}

/// Volumes that have a copy more than wanted.
pub(super) fn moving(lvs: &[(LvId, Vec<LvCopy>)], rules: CopyRules) -> usize {
    lvs.iter().filter(|(_, copies)| copies.len() > rules.copies).count()
}

/// The volume that each group was given last: the others were nearly full by then.
pub(super) fn written(map: &Topology) -> BTreeSet<LvId> {
    let last: BTreeMap<PgId, LvId> =
        (0..).map(LvId).zip(&map.lvs).map(|(id, lv)| (lv.pg, id)).collect();
    last.into_values().collect()
}

/// Disks that are not gone.
pub(super) fn disks_of(
    map: &Topology,
    standing: impl Fn(ServerId) -> Standing,
    has_room: impl Fn(DiskId) -> bool,
) -> Vec<DiskInfo> {
    let mut disks = Vec::new();
    for (server, record) in &map.servers {
        if !record.roles.contains(&ServerRole::Data) {
            continue;
        }
        let of_server = standing(*server);
        let there = record.disks.iter().filter(|(_, disk)| disk.state != DiskState::Removed);
        disks.extend(there.map(|(id, disk)| DiskInfo {
            disk: *id,
            server: *server,
            domains: record.domains,
            weight: disk.weight,
            pv_count: disk.pv_count,
            pv_free: disk.pv_free(),
            standing: match disk.state {
                DiskState::In if of_server == Standing::In && !has_room(*id) => Standing::Away,
                DiskState::In => of_server,
                _ => Standing::Out,
            },
        }));
    }
    disks
}

/// Volumes that are made, with their copies, of which some are empty or were told to become so.
pub(super) fn copies_of(
    map: &Topology,
    is_emptied: impl Fn((LvId, u8)) -> bool,
    is_ordered: impl Fn((LvId, u8)) -> bool,
) -> Vec<(LvId, Vec<LvCopy>)> {
    let copies = |id: LvId, lv: &LvRecord| {
        let copy = |(replica, r): (usize, &ReplicaRecord)| LvCopy {
            replica,
            disk: r.disk,
            current: r.state == ReplicaState::Current,
            emptied: is_emptied((id, replica as u8)),
            ordered: is_ordered((id, replica as u8)),
        };
        lv.present().map(copy).collect()
    };
    let made = (0..).map(LvId).zip(&map.lvs).filter(|(_, lv)| lv.state != LvState::Creating);
    made.map(|(id, lv)| (id, copies(id, lv))).collect()
}
