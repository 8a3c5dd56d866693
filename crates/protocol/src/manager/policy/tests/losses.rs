//! Disks that are lost for good, several at once.

use super::*;
use crate::manager::state::LvRecord;

/// Five servers, and a volume of each group on the first three.
fn with_volumes(seed: u64) -> World {
    let mut world = World::new(seed, 5);
    world.astray = 0;
    world.calm_down();
    for pg in 0..SETTINGS.pg_count {
        let places = (0..3).map(|id| (ServerId(id), DiskId(id))).collect();
        let Ok(Outcome::Lv(lv)) = world.apply(Command::CreateLv(PgId(pg), places)) else {
            panic!("there is room");
        };
        world.apply(Command::LvCreated(lv)).unwrap();
    }
    world
}

/// Removes the disks of some servers, with all that they have. The groups keep their members.
fn lose(world: &mut World, servers: &[u32]) {
    for server in servers.iter().copied().map(ServerId) {
        for disk in world.map.servers[&server].disks.keys().copied().collect::<Vec<_>>() {
            world.apply(Command::RemoveDisk(server, disk)).unwrap();
        }
    }
}

/// Copies that are there, whole or being filled.
fn copies(world: &World, lv: &LvRecord) -> usize {
    lv.present().filter(|(_, replica)| world.map.exists(replica)).count()
}

#[test]
fn a_volume_with_one_copy_left_gets_a_place_for_another_before_any_walk_is_through() {
    let mut world = with_volumes(31);
    world.walk_ms = 240_000;
    lose(&mut world, &[1, 2]);
    world.run_for(2 * LV_PLAN_MS);
    let there: Vec<usize> = world.map.lvs.iter().map(|lv| copies(&world, lv)).collect();
    assert!(there.iter().all(|copies| *copies >= 2), "{there:?}");
    world.run_for(world.walk_ms / 4);
    let there: Vec<usize> = world.map.lvs.iter().map(|lv| copies(&world, lv)).collect();
    assert!(there.iter().all(|copies| *copies == 3), "{there:?}");
    assert!(world.vacated.len() >= world.map.lvs.len(), "what is lost is given up meanwhile");
    world.run_for(3 * world.walk_ms);
    let records: Vec<usize> = world.map.lvs.iter().map(|lv| lv.present().count()).collect();
    assert!(records.iter().all(|count| *count == 3), "what was lost is gone: {records:?}");
}
