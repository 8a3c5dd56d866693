//! What goes wrong. Each fault ends by itself, and none begins once the world is calm.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_types::{PgId, ServerId};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::{DATA, METAS, PGS, PROXIES};
use super::World;
use super::desk::MANAGER;
use super::servers::{Ends, Mood};

/// Has faults happen until the world is calm, and waits for the end of each.
pub(super) async fn happen(world: Arc<World>) {
    let dice = world.dice.clone();
    let pause = 500 + dice.below(6000);
    let mut under_way = JoinSet::new();
    while !world.is_calm.load(Ordering::Relaxed) {
        sleep(dice.ms(pause)).await;
        while let Some(ended) = under_way.try_join_next() {
            report(&world, ended);
        }
        let world = world.clone();
        match dice.below(22) {
            0..4 => drop(under_way.spawn(end_meta(world))),
            4 => drop(under_way.spawn(end_all_metas(world))),
            5..7 => drop(under_way.spawn(end_data(world))),
            7..10 => drop(under_way.spawn(spoil(world))),
            10..12 => drop(under_way.spawn(cut(world))),
            12..14 => drop(under_way.spawn(part(world))),
            14 => reset(&world),
            15 => world.desk.close_a_session(),
            16..18 => drop(under_way.spawn(stall(world))),
            18 => drop(under_way.spawn(break_a_meta(world))),
            19 => drop(under_way.spawn(break_a_data(world))),
            _ => world.metas.flush(dice.below(METAS.len() as u64) as usize),
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

fn away(world: &World) -> Duration {
    world.dice.ms(match world.dice.below(4) {
        0 => 10,
        1 => 12_000,
        _ => 2500,
    })
}

fn ends(world: &World) -> Ends {
    [Ends::Power, Ends::Killed, Ends::Stopped][world.dice.below(3) as usize]
}

async fn end_meta(world: Arc<World>) {
    let at = world.dice.below(METAS.len() as u64) as usize;
    let ends = match world.dice.one_in(3) && may_be_wiped(&world, at) {
        true => Ends::Wiped,
        false => ends(&world),
    };
    let away = away(&world);
    world.restart_meta(at, ends, away).await;
}

/// Whether all that this server has is elsewhere too, by what the managers know.
fn may_be_wiped(world: &World, at: usize) -> bool {
    let me = ServerId(METAS.start + at as u32);
    let others = |pg| {
        let (_, members) = world.desk.view(pg);
        members.iter().filter(|member| **member != me).count()
    };
    world.metas.all_run()
        && (0..PGS).map(PgId).all(|pg| world.desk.is_active(pg) && others(pg) == 2)
}

async fn end_all_metas(world: Arc<World>) {
    let ends = ends(&world);
    let all = (0..METAS.len()).map(|at| {
        let away = away(&world);
        world.clone().restart_meta(at, ends, away)
    });
    futures::future::join_all(all).await;
}

async fn end_data(world: Arc<World>) {
    let at = world.dice.below(DATA.len() as u64) as usize;
    let (ends, away) = (ends(&world), away(&world));
    world.restart_data(at, ends, away).await;
}

async fn break_a_meta(world: Arc<World>) {
    let at = world.dice.below(METAS.len() as u64) as usize;
    let (after, away) = (world.dice.ms(3000), away(&world));
    world.break_meta(at, after, away).await;
}

async fn break_a_data(world: Arc<World>) {
    let at = world.dice.below(DATA.len() as u64) as usize;
    let (after, away) = (world.dice.ms(3000), away(&world));
    world.break_data(at, after, away).await;
}

/// A data server does something else than it should, for a while.
async fn spoil(world: Arc<World>) {
    let at = world.dice.below(DATA.len() as u64) as usize;
    world.datas.become_(at, Mood::BAD[world.dice.below(Mood::BAD.len() as u64) as usize]);
    sleep(world.dice.ms(5000)).await;
    world.datas.become_(at, Mood::Fine);
}

/// A meta server's disk takes its time.
async fn stall(world: Arc<World>) {
    let pace = world.metas.pace(world.dice.below(METAS.len() as u64) as usize);
    pace.stall(50 + world.dice.below(1500));
    sleep(world.dice.ms(5000)).await;
    pace.stall(0);
}

fn anyone(world: &World) -> ServerId {
    let all = u64::from(PROXIES.end) + 1;
    match world.dice.below(all) as u32 {
        id if id == PROXIES.end => MANAGER,
        id => ServerId(id),
    }
}

/// Nothing goes through between two servers, in one direction or both.
async fn cut(world: Arc<World>) {
    let (one, other) = (anyone(&world), anyone(&world));
    if one == other {
        return;
    }
    let which = world.dice.below(3);
    if which != 0 {
        world.network.cut(one, other);
    }
    if which != 1 {
        world.network.cut(other, one);
    }
    sleep(world.dice.ms(if world.dice.one_in(3) { 10_000 } else { 1500 })).await;
    // One that is away stays so.
    for (from, to) in [(one, other), (other, one)] {
        world.heal(from, to);
    }
}

/// The servers are parted: those of one side hear each other. Half the time it is one meta server with some proxies that may
/// not know yet of a view in which another leads.
async fn part(world: Arc<World>) {
    let all = (METAS.start..PROXIES.end).chain([MANAGER.0]).map(ServerId);
    let alone = world.dice.one_in(2).then(|| world.dice.below(METAS.len() as u64) as u32);
    let is_apart = |server: &ServerId| match alone {
        Some(meta) if METAS.contains(&server.0) => server.0 == METAS.start + meta,
        Some(_) => *server != MANAGER && world.dice.one_in(2),
        None => world.dice.one_in(4),
    };
    let (one, other): (Vec<ServerId>, Vec<ServerId>) = all.partition(is_apart);
    let across = |part: &dyn Fn(ServerId, ServerId)| {
        for (one, other) in one.iter().flat_map(|one| other.iter().map(move |it| (*one, *it))) {
            part(one, other);
            part(other, one);
        }
    };
    across(&|from, to| world.network.cut(from, to));
    sleep(world.dice.ms(8000)).await;
    across(&|from, to| world.heal(from, to));
}

fn reset(world: &World) {
    let (one, other) = (anyone(world), anyone(world));
    if one != other {
        world.network.reset(one, other);
    }
}
