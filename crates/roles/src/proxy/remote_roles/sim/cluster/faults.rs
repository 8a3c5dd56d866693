//! Faults. Each ends by itself, and none begins once the world is calm.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_types::{PgId, ServerId};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::{DATA, METAS, PGS, SimRng};
use super::World;
use super::cluster_network::ClusterNetwork;
use super::managers::ClusterManagers;
use super::places::Ends;
use super::quorum::{MANAGERS, Quorum};
use super::recovery::recover;
use super::servers::FaultMode;

/// Has faults happen until the world is calm, and waits for the end of each.
pub(super) async fn happen(world: Arc<World>) {
    let sim_rng = world.sim_rng.clone();
    let pause = 500 + sim_rng.below(6000);
    let mut under_way = JoinSet::new();
    while !world.is_calm.load(Ordering::Relaxed) {
        sleep(sim_rng.ms(pause)).await;
        while let Some(ended) = under_way.try_join_next() {
            report(&world, ended);
        }
        let world = world.clone();
        if world.recovers && sim_rng.one_in(8) {
            under_way.spawn(recover(world));
            continue;
        }
        // Those behind are the managers'.
        let kinds = match &world.managing {
            ClusterManagers::StandIn(_) => 22,
            ClusterManagers::Quorum(_) => 30,
        };
        match sim_rng.below(kinds) {
            0..4 => drop(under_way.spawn(end_meta(world))),
            4 => drop(under_way.spawn(end_all_metas(world))),
            5..7 => drop(under_way.spawn(end_data(world))),
            7..10 => drop(under_way.spawn(spoil(world))),
            10..12 => drop(under_way.spawn(cut(world))),
            12..14 => drop(under_way.spawn(part(world))),
            14 => reset(&world),
            15 => world.managing.close_a_session(&world.sim_rng),
            16..18 => drop(under_way.spawn(stall(world))),
            18 => drop(under_way.spawn(break_a_meta(world))),
            19 => drop(under_way.spawn(break_a_data(world))),
            20..22 => world.metas.flush(sim_rng.below(METAS.len() as u64) as usize),
            _ => drop(under_way.spawn(disturb_managers(world))),
        }
    }
    while let Some(ended) = under_way.join_next().await {
        report(&world, ended);
    }
}

fn report(world: &World, ended: Result<(), tokio::task::JoinError>) {
    if let Err(panic) = ended {
        world.findings.violated(format!("a fault: {panic}"));
    }
}

fn away(sim_rng: &SimRng) -> Duration {
    sim_rng.ms(match sim_rng.below(4) {
        0 => 10,
        1 => 12_000,
        _ => 2500,
    })
}

pub(super) fn ends(sim_rng: &SimRng) -> Ends {
    [Ends::Power, Ends::Killed, Ends::Stopped][sim_rng.below(3) as usize]
}

async fn end_meta(world: Arc<World>) {
    let at = world.sim_rng.below(METAS.len() as u64) as usize;
    let ends = match world.sim_rng.one_in(3) && may_be_wiped(&world, at) {
        true => Ends::Wiped,
        false => ends(&world.sim_rng),
    };
    let away = away(&world.sim_rng);
    world.restart_meta(at, ends, away).await;
}

/// Returns true if all that this server has is elsewhere too, by what the managers know.
fn may_be_wiped(world: &World, at: usize) -> bool {
    let me = ServerId(METAS.start + at as u32);
    let others = |pg| {
        let (_, members) = world.managing.view(pg);
        members.iter().filter(|member| **member != me).count()
    };
    world.metas.all_run()
        && !world.is_recovering.load(Ordering::Relaxed)
        && (0..PGS).map(PgId).all(|pg| world.managing.is_active(pg) && others(pg) == 2)
}

async fn end_all_metas(world: Arc<World>) {
    let ends = ends(&world.sim_rng);
    let all = (0..METAS.len()).map(|at| {
        let away = away(&world.sim_rng);
        world.clone().restart_meta(at, ends, away)
    });
    futures::future::join_all(all).await;
}

async fn end_data(world: Arc<World>) {
    let at = world.sim_rng.below(DATA.len() as u64) as usize;
    let (ends, away) = (ends(&world.sim_rng), away(&world.sim_rng));
    world.restart_data(at, ends, away).await;
}

async fn break_a_meta(world: Arc<World>) {
    let at = world.sim_rng.below(METAS.len() as u64) as usize;
    let (after, away) = (world.sim_rng.ms(3000), away(&world.sim_rng));
    world.break_meta(at, after, away).await;
}

async fn break_a_data(world: Arc<World>) {
    let at = world.sim_rng.below(DATA.len() as u64) as usize;
    let (after, away) = (world.sim_rng.ms(3000), away(&world.sim_rng));
    world.break_data(at, after, away).await;
}

/// A data server does something else than it should, for a while.
async fn spoil(world: Arc<World>) {
    let at = world.sim_rng.below(DATA.len() as u64) as usize;
    world
        .datas
        .become_(at, FaultMode::BAD[world.sim_rng.below(FaultMode::BAD.len() as u64) as usize]);
    sleep(world.sim_rng.ms(5000)).await;
    world.datas.become_(at, FaultMode::Fine);
}

/// A meta server's disk takes its time.
async fn stall(world: Arc<World>) {
    let pace = world.metas.pace(world.sim_rng.below(METAS.len() as u64) as usize);
    pace.stall(50 + world.sim_rng.below(1500));
    sleep(world.sim_rng.ms(5000)).await;
    pace.stall(0);
}

fn anyone(world: &World) -> ServerId {
    ServerId(world.sim_rng.below(u64::from(world.managing.ids().end)) as u32)
}

/// Nothing goes through between two servers, in one direction or both.
async fn cut(world: Arc<World>) {
    let (one, other) = (anyone(&world), anyone(&world));
    if one == other {
        return;
    }
    cut_between(&world.sim_network, &world.sim_rng, one, other).await;
}

async fn cut_between(
    sim_network: &ClusterNetwork,
    sim_rng: &SimRng,
    one: ServerId,
    other: ServerId,
) {
    let which = sim_rng.below(3);
    if which != 0 {
        sim_network.cut(one, other);
    }
    if which != 1 {
        sim_network.cut(other, one);
    }
    sleep(sim_rng.ms(if sim_rng.one_in(3) { 10_000 } else { 1500 })).await;
    // One that is away stays so.
    for (from, to) in [(one, other), (other, one)] {
        sim_network.heal(from, to);
    }
}

/// The servers are parted: those of one side hear each other. Half the time it is one meta server with some
/// proxies that may not know yet of a view in which another leads. In half of those cases the manager that
/// leads is with it.
async fn part(world: Arc<World>) {
    let alone = world.sim_rng.one_in(2).then(|| world.sim_rng.below(METAS.len() as u64) as u32);
    let friend = match &world.managing {
        ClusterManagers::Quorum(quorum) if alone.is_some() && world.sim_rng.one_in(2) => {
            quorum.leader()
        }
        _ => None,
    };
    let friend = friend.map(manager);
    let is_apart = |server: &ServerId| match alone {
        Some(meta) if METAS.contains(&server.0) => server.0 == METAS.start + meta,
        Some(_) if world.managing.ids().contains(&server.0) => friend == Some(*server),
        Some(_) => world.sim_rng.one_in(2),
        None => world.sim_rng.one_in(4),
    };
    let (one, other): (Vec<ServerId>, Vec<ServerId>) = world.sim_network.all().partition(is_apart);
    let across = |part: &dyn Fn(ServerId, ServerId)| {
        for (one, other) in one.iter().flat_map(|one| other.iter().map(move |it| (*one, *it))) {
            part(one, other);
            part(other, one);
        }
    };
    across(&|from, to| world.sim_network.cut(from, to));
    sleep(world.sim_rng.ms(8000)).await;
    across(&|from, to| world.sim_network.heal(from, to));
}

fn reset(world: &World) {
    let (one, other) = (anyone(world), anyone(world));
    if one != other {
        world.sim_network.network.reset(one, other);
    }
}

async fn disturb_managers(world: Arc<World>) {
    if let ClusterManagers::Quorum(quorum) = &world.managing {
        trouble(quorum.clone()).await;
    }
}

/// Something befalls the managers.
pub(super) async fn trouble(quorum: Arc<Quorum>) {
    let sim_rng = quorum.sim_rng.clone();
    let any = sim_rng.below(MANAGERS.len() as u64) as usize;
    // Half of the time it is the one that leads.
    let at = if sim_rng.one_in(2) { quorum.leader().unwrap_or(any) } else { any };
    let away = away(&sim_rng);
    match sim_rng.below(13) {
        0..3 => quorum.restart(at, ends(&sim_rng), away).await,
        3 => end_all(quorum, away).await,
        4..6 => {
            let other = (at + 1 + sim_rng.below(2) as usize) % MANAGERS.len();
            cut_between(&quorum.sim_network, &sim_rng, manager(at), manager(other)).await;
        }
        6..8 => cut_off(&quorum, at, |id| MANAGERS.contains(&id.0)).await,
        8 => cut_off(&quorum, at, |id| !MANAGERS.contains(&id.0)).await,
        9..11 => {
            quorum.pace(at).stall(50 + sim_rng.below(3000));
            sleep(sim_rng.ms(6000)).await;
            quorum.pace(at).stall(0);
        }
        _ => {
            let longest = sim_rng.ms(3000);
            quorum.break_disk(at, longest, away).await;
        }
    }
}

fn manager(at: usize) -> ServerId {
    ServerId(MANAGERS.start + at as u32)
}

async fn end_all(quorum: Arc<Quorum>, longest: Duration) {
    let (sim_rng, ends) = (quorum.sim_rng.clone(), ends(&quorum.sim_rng));
    let all = (0..MANAGERS.len()).map(|at| {
        let away = sim_rng.ms(longest.as_millis() as u64);
        quorum.clone().restart(at, ends, away)
    });
    futures::future::join_all(all).await;
}

/// A manager neither hears such servers nor is heard by them, or only one of the two.
async fn cut_off(quorum: &Quorum, at: usize, from: impl Fn(ServerId) -> bool) {
    let (sim_network, sim_rng, me) = (&quorum.sim_network, &quorum.sim_rng, manager(at));
    let others: Vec<ServerId> = sim_network.all().filter(|id| *id != me && from(*id)).collect();
    let which = sim_rng.below(4);
    for other in &others {
        if which != 0 {
            sim_network.cut(me, *other);
        }
        if which != 1 {
            sim_network.cut(*other, me);
        }
    }
    sleep(sim_rng.ms(if sim_rng.one_in(3) { 10_000 } else { 3000 })).await;
    for other in &others {
        sim_network.heal(me, *other);
        sim_network.heal(*other, me);
    }
}
