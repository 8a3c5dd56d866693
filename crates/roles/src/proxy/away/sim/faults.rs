//! Faults, and the check that all is well in the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_types::{PgId, ServerId};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{DATA, METAS, Mood, PGS, PROXIES, World};

/// Has faults happen, and go on, until it is dropped.
pub(super) async fn happen(world: Arc<World>) {
    let dice = world.dice.clone();
    let pause = 100 + dice.below(3000);
    let mut under_way = JoinSet::new();
    loop {
        sleep(dice.ms(pause)).await;
        while under_way.try_join_next().is_some() {}
        let world = world.clone();
        match dice.below(12) {
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
    ServerId(world.dice.below(u64::from(DATA.end)) as u32)
}

fn proxy(world: &World) -> ServerId {
    let proxies = u64::from(PROXIES.end - PROXIES.start);
    ServerId(PROXIES.start + world.dice.below(proxies) as u32)
}

async fn change_primary(world: Arc<World>) {
    let pg = PgId(world.dice.below(u64::from(PGS)) as u32);
    if !world.agreed.begin_view(pg) {
        return;
    }
    // An op that is not persisted when the view before ends may be lost with it.
    let lost = world.dice.one_in(2);
    world.store.lock().begin_view(pg, lost);
    world.changed.notify_waiters();
    sleep(world.dice.ms(300)).await;
    world.agreed.activate(pg);
    world.changed.notify_waiters();
}

/// A data server does something else than it should, for a while.
async fn spoil(world: Arc<World>) {
    let disk = &world.disks[world.dice.below(world.disks.len() as u64) as usize];
    let mood = Mood::BAD[world.dice.below(Mood::BAD.len() as u64) as usize];
    if mood == Mood::Corrupt {
        world.findings.was_corrupt.store(true, Ordering::Relaxed);
    }
    disk.become_(mood);
    sleep(world.dice.ms(6000)).await;
    disk.become_(Mood::Fine);
}

/// Nothing goes through between a proxy and a server, in one direction or both.
async fn cut(world: Arc<World>) {
    let (one, other) = (proxy(&world), server(&world));
    let which = world.dice.below(3);
    if which != 0 {
        world.network.cut(one, other);
    }
    if which != 1 {
        world.network.cut(other, one);
    }
    sleep(world.dice.ms(if world.dice.one_in(3) { 12_000 } else { 1500 })).await;
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
    sleep(Duration::from_millis(500) + world.dice.ms(1500)).await;
    let is_told = DATA.contains(&server.0) && world.dice.one_in(2);
    if is_told {
        world.agreed.set_up(server, false);
    }
    sleep(world.dice.ms(4000)).await;
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
    world.disks.iter().for_each(|disk| disk.become_(Mood::Fine));
    (0..PGS).for_each(|pg| world.agreed.activate(PgId(pg)));
    world.changed.notify_waiters();
}
