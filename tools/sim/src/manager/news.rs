//! Counts the news in a map, and answers them with the world's ill will.

use larder_protocol::manager::state::Topology;
use larder_types::{PgId, ServerId};

use crate::event::SimEvent;
use crate::faults::FaultKind;
use crate::net::Net;
use crate::places::{names, primary_of};
use crate::setup::Setup;

/// One in so many primaries that are deposed while they run hears of it late.
const LATE_ONE_IN: u64 = 2;

/// Counts what is new in a map.
pub(super) fn count(before: &Topology, map: &Topology, net: &mut Net) {
    let views = |map: &Topology| map.pgs.iter().map(|pg| pg.view.0).sum::<u64>();
    let members = |map: &Topology| map.pgs.iter().map(|pg| pg.members.len()).sum::<usize>();
    let lacking = |map: &Topology| map.pgs.iter().map(|pg| pg.lacking.len()).sum::<usize>();
    let narrow = |map: &Topology| {
        map.lvs.iter().filter(|lv| lv.replicas.len() < usize::from(map.settings().copies)).count()
    };
    if map.version <= before.version || before.founded.is_none() {
        return;
    }
    let (more, fewer) = (
        members(map).saturating_sub(members(before)),
        members(before).saturating_sub(members(map)),
    );
    net.faults.add("views begun", views(map).saturating_sub(views(before)));
    net.faults.add("members that returned", more as u64);
    net.faults.add("members let go", fewer as u64);
    let lost = lacking(map).saturating_sub(lacking(before));
    net.faults.add("members that lost everything", lost as u64);
    net.faults.add("narrow volumes", narrow(map).saturating_sub(narrow(before)) as u64);
    let closed = map.closed.difference(&before.closed).count();
    net.faults.add("sessions closed", closed as u64);
}

/// Tells a timeline what is new in a map.
pub(super) fn tell(before: &Topology, map: &Topology, setup: &Setup, net: &mut Net) {
    if map.version <= before.version || !net.trace.wants_timeline() {
        return;
    }
    for (pg, record) in map.pgs.iter().enumerate() {
        let known = before.pgs.get(pg);
        if known.is_none_or(|known| known.view != record.view) {
            let (view, members) = (record.view, ids(&record.members));
            net.tell(format_args!("pg {pg}: view {view} begins, of meta servers {members}"));
        } else if known.is_some_and(|known| known.activated != record.activated) {
            net.tell(format_args!("pg {pg}: view {} is active", record.view));
        }
    }
    for (id, record) in &map.servers {
        let (known, server) = (before.servers.get(id), setup.server(*id));
        if known.is_some_and(|known| known.state != record.state) {
            net.tell(format_args!("{server:?} is {:?} in the map", record.state));
        }
    }
    for (_, session) in map.closed.difference(&before.closed) {
        net.tell(format_args!("{session:?} is closed"));
    }
}

fn ids(servers: &[ServerId]) -> String {
    let ids: Vec<String> = servers.iter().map(ToString::to_string).collect();
    ids.join(", ")
}

/// A primary that another takes the place of while it runs may hear of it late: what keeps it from answering until
/// then is its lease alone.
pub(super) fn delay_deposed(setup: &Setup, before: &Topology, map: &Topology, net: &mut Net) {
    if map.version <= before.version {
        return;
    }
    for pg in (0..before.pgs.len() as u32).map(PgId) {
        let ((old, view), (new, _)) = (primary_of(before, pg), primary_of(map, pg));
        let server = ServerId(old as u32);
        let runs = before.servers.get(&server).is_some_and(|old| names(map, server, old.boot));
        if view.0 == 0 || old == new || !runs {
            continue;
        }
        net.faults.add("primaries deposed while they run", 1);
        if net.rng.one_in(LATE_ONE_IN) {
            net.after(0, SimEvent::Strikes(FaultKind::Laggard(setup.server(server))));
        }
    }
}
