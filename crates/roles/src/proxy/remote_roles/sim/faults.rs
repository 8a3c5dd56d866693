//! Faults, and the check that all is well in the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_types::{PgId, ServerId};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{DATA, FaultMode, METAS, PGS, PROXIES, World};

/// Has faults happen, and go on, until it is dropped.
pub(super) async fn happen(world: Arc<World>) {
    let sim_rng = world.sim_rng.clone();
    let pause = 100 + sim_rng.below(3000);
    let mut under_way = JoinSet::new();
    loop {
        sleep(sim_rng.ms(pause)).await;
        while under_way.try_join_next().is_some() {}
        let world = world.clone();
        match sim_rng.below(12) {
            0..2 => drop(under_way.spawn(change_primary(world))),
            2..5 => drop(under_way.spawn(spoil(world))),
            5..8 => drop(under_way.spawn(cut(world))),
            8 => reset(&world),
            9 => world.agreed.close_a_session(),
            10 => world.agreed.renew_bucket(),
            _ => drop(under_way.spawn(go_down(world))),
        }
    }
}

fn server(world: &World) -> ServerId {
    ServerId(world.sim_rng.below(u64::from(DATA.end)) as u32)
}

fn proxy(world: &World) -> ServerId {
    let proxies = u64::from(PROXIES.end - PROXIES.start);
    ServerId(PROXIES.start + world.sim_rng.below(proxies) as u32)
}

async fn change_primary(world: Arc<World>) {
    let pg = PgId(world.sim_rng.below(u64::from(PGS)) as u32);
    if !world.agreed.begin_view(pg) {
        return;
    }
    // An op that is not persisted when the view before ends may be lost with it.
    let lost = world.sim_rng.one_in(2);
    world.store.lock().begin_view(pg, lost);
    world.changed.notify_waiters();
    sleep(world.sim_rng.ms(300)).await;
    world.agreed.activate(pg);
    world.changed.notify_waiters();
}

/// A data server does something else than it should, for a while.
async fn spoil(world: Arc<World>) {
    let disk = &world.disks[world.sim_rng.below(world.disks.len() as u64) as usize];
    let fault_mode = FaultMode::BAD[world.sim_rng.below(FaultMode::BAD.len() as u64) as usize];
    if fault_mode == FaultMode::Corrupt {
        world.findings.was_corrupt.store(true, Ordering::Relaxed);
    }
    disk.become_(fault_mode);
    sleep(world.sim_rng.ms(6000)).await;
    disk.become_(FaultMode::Fine);
}

/// Nothing goes through between a proxy and a server, in one direction or both.
async fn cut(world: Arc<World>) {
    let (one, other) = (proxy(&world), server(&world));
    let which = world.sim_rng.below(3);
    if which != 0 {
        world.network.cut(one, other);
    }
    if which != 1 {
        world.network.cut(other, one);
    }
    sleep(world.sim_rng.ms(if world.sim_rng.one_in(3) { 12_000 } else { 1500 })).await;
    world.network.heal(one, other);
    world.network.heal(other, one);
}

fn reset(world: &World) {
    world.network.reset(proxy(world), server(world));
}

/// A server is gone for a while, and the managers find out.
async fn go_down(world: Arc<World>) {
    let server = server(&world);
    world.network.refuse(server, true);
    PROXIES.for_each(|proxy| world.network.reset(ServerId(proxy), server));
    sleep(Duration::from_millis(500) + world.sim_rng.ms(1500)).await;
    let is_told = DATA.contains(&server.0) && world.sim_rng.one_in(2);
    if is_told {
        world.agreed.set_up(server, false);
    }
    sleep(world.sim_rng.ms(4000)).await;
    world.network.refuse(server, false);
    world.agreed.set_up(server, true);
}

/// Nothing fails any more, and each PG has a primary.
pub(super) fn end(world: &Arc<World>) {
    for server in METAS.chain(DATA).map(ServerId) {
        world.network.refuse(server, false);
        world.agreed.set_up(server, true);
        for proxy in PROXIES.map(ServerId) {
            world.network.heal(server, proxy);
            world.network.heal(proxy, server);
        }
    }
    world.disks.iter().for_each(|disk| disk.become_(FaultMode::Fine));
    (0..PGS).for_each(|pg| world.agreed.activate(PgId(pg)));
    world.changed.notify_waiters();
}
