//! New volumes that a disk cannot make in the place chosen for them, for example as its record of that place is damaged.

use super::*;
use crate::limits::{LV_PLAN_MS, LVS_UNMADE_MAX, UNMADE_MS_MAX};
use crate::manager::state::LvState;

/// The first group asks for a volume beside those that it has; how many it has then.
fn need(world: &mut World) -> u32 {
    let pg = world.pg(0).clone();
    let known = |world: &World| world.servers[&pg.members[0].0].pgs[&PgId(0)].lvs;
    let has = known(world);
    world.say(pg.members[0].0, ServerMessage::NeedLv(PgId(0), pg.view, has));
    world.run_for(1000);
    known(world)
}

#[test]
fn a_group_whose_volume_cannot_be_made_gets_another() {
    let mut world = World::new(21, 3);
    world.astray = 0;
    world.calm_down();
    world.bad = (0..1).map(LvId).collect();
    assert_eq!((need(&mut world), world.map.lvs.len()), (0, 1));
    world.run_for(UNMADE_MS_MAX / 2);
    assert_eq!((need(&mut world), world.map.lvs.len()), (0, 1), "it may be made yet");
    world.run_for(UNMADE_MS_MAX / 2 + LV_PLAN_MS);
    assert_eq!((need(&mut world), world.map.lvs.len()), (1, 2));
    assert_eq!(world.map.lv(LvId(0)).unwrap().state, LvState::Creating);
    // Where none can be made not all places are tried.
    world.bad = (0..100).map(LvId).collect();
    for _ in 0..2 * LVS_UNMADE_MAX {
        need(&mut world);
        world.run_for(UNMADE_MS_MAX + 2 * LV_PLAN_MS);
    }
    assert_eq!((need(&mut world), world.map.lvs.len()), (1, 1 + LVS_UNMADE_MAX));
    // Nor does another group draw one where so many could not be made.
    let (pg, empty) = (world.pg(1).clone(), world.pool_empty);
    world.say(pg.members[0].0, ServerMessage::NeedLv(PgId(1), pg.view, 0));
    world.run_for(1000);
    assert_eq!((world.map.lvs.len(), world.pool_empty), (1 + LVS_UNMADE_MAX, empty + 1));
    world.bad.clear();
    world.run_for(60_000);
    let all = 2 + LVS_UNMADE_MAX as u32;
    assert_eq!(need(&mut world), all, "they are made when they can be, and another is drawn");
}
