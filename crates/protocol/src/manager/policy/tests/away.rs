//! New volumes while data servers are away, or have just returned: that is not a pool without room.

use super::*;
use crate::limits::TOO_FEW_SERVERS_VERSION;

/// Four servers, whose cluster says what is missing.
fn world(seed: u64) -> World {
    let mut world = World::new(seed, 4);
    world.astray = 0;
    world.apply(Command::RaiseClusterVersion(TOO_FEW_SERVERS_VERSION)).unwrap();
    world.calm_down();
    world
}

/// A group asks for its first volume; the volumes that there are then.
fn need(world: &mut World, pg: u32) -> usize {
    let record = world.pg(pg).clone();
    world.say(record.members[0].0, ServerMessage::NeedLv(PgId(pg), record.view, 0));
    world.run_for(1000);
    world.map.lvs.len()
}

#[test]
fn a_volume_lies_on_servers_that_have_just_returned_where_there_are_no_others() {
    let mut world = world(31);
    for _ in 0..3 {
        for server in 1..4 {
            world.restart(server);
            world.run_for(4000);
        }
    }
    assert!((1..4).all(|id| world.map.is_up(ServerId(id))), "all are back");
    let is_settled = |id| {
        let healths = &world.policies[world.leader.0].leading.as_ref().unwrap().healths;
        healths.is_settled(ServerId(id), world.now_ms)
    };
    assert!(!(1..4).any(is_settled), "they have returned often");
    let before = (world.pool_empty, world.too_few);
    assert_eq!(need(&mut world, 0), 1);
    assert_eq!((world.pool_empty, world.too_few), before);
    assert_eq!(world.map.lv(LvId(0)).unwrap().replicas.len(), 3);
}

#[test]
fn a_server_that_comes_and_goes_takes_no_volume_from_the_pool_each_time() {
    let mut world = world(34);
    assert_eq!(need(&mut world, 0), 1);
    let on: Vec<u32> =
        world.map.lv(LvId(0)).unwrap().replicas.iter().map(|it| it.server.0).collect();
    let others = (0..4).filter(|id| !on.contains(id));
    // Those of the volume alone are left, and of these one that stays.
    for server in others {
        world.apply(Command::SetDiskDraining(ServerId(server), DiskId(server), true)).unwrap();
    }
    world.stop(on[1]);
    for _ in 0..10 {
        world.stop(on[2]);
        world.run_for(4000);
        world.start(on[2]);
        world.run_for(2000);
        let pg = world.pg(0).clone();
        let has = lvs_of(&world.map, PgId(0)).len() as u32;
        world.say(pg.members[0].0, ServerMessage::NeedLv(PgId(0), pg.view, has));
        world.run_for(1000);
    }
    let drawn = world.map.lvs.len();
    assert!(drawn <= 3, "{drawn} volumes: it returned ten times");
    assert_eq!(world.pool_empty, 0);
}

#[test]
fn while_servers_are_away_nobody_is_told_that_the_pool_is_empty() {
    let mut world = world(32);
    for server in [0, 1] {
        world.apply(Command::SetDiskDraining(ServerId(server), DiskId(server), true)).unwrap();
    }
    world.stop(2);
    world.run_for(5000);
    let pg = (0..8).find(|pg| world.pg(*pg).members[0] != ServerId(2)).unwrap();
    assert_eq!((need(&mut world, pg), world.pool_empty, world.too_few), (0, 0, 1));
    world.start(2);
    world.run_for(5000);
    assert_eq!((need(&mut world, pg), world.pool_empty), (1, 0), "it is asked again, and drawn");
    // Where those that are there have no place left, it is full.
    while world.map.lvs.len() < 16 {
        need(&mut world, pg);
        let has = lvs_of(&world.map, PgId(pg)).len() as u32;
        let record = world.pg(pg).clone();
        let ask = ServerMessage::NeedLv(PgId(pg), record.view, has);
        world.say(record.members[0].0, ask);
        world.run_for(1000);
    }
    world.stop(2);
    world.run_for(5000);
    let pg = (0..8).find(|pg| world.pg(*pg).members[0] != ServerId(2)).unwrap();
    let few = world.too_few;
    let has = lvs_of(&world.map, PgId(pg)).len() as u32;
    let record = world.pg(pg).clone();
    world.say(record.members[0].0, ServerMessage::NeedLv(PgId(pg), record.view, has));
    world.run_for(1000);
    assert_eq!(
        (world.pool_empty, world.too_few),
        (0, few + 1),
        "a server is missing, whatever it has"
    );
    world.start(2);
    world.run_for(20_000);
    let record = world.pg(pg).clone();
    world.say(record.members[0].0, ServerMessage::NeedLv(PgId(pg), record.view, has));
    world.run_for(1000);
    assert_eq!((world.pool_empty, world.too_few), (1, few + 1), "with that server it is full, too");
}

#[test]
fn primaries_of_an_earlier_release_are_told_what_they_understand() {
    let mut world = World::new(33, 4);
    world.astray = 0;
    world.calm_down();
    for server in [0, 1, 3] {
        world.apply(Command::SetDiskDraining(ServerId(server), DiskId(server), true)).unwrap();
    }
    assert_eq!((need(&mut world, 0), world.pool_empty, world.too_few), (0, 1, 0));
}
