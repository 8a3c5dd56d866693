//! Volumes with a copy more than wanted, and those that move for balance.

use super::*;
use crate::manager::state::ReplicaRecord;

/// Servers with so many volumes of every group, each of which has a copy on each server.
fn widened(seed: u64, servers: u32, each: usize) -> World {
    let mut world = World::new(seed, servers);
    world.calm_down();
    for _ in 0..each {
        for pg in 0..SETTINGS.pg_count {
            let places = (0..3).map(|id| (ServerId(id), DiskId(id))).collect();
            let Ok(Outcome::Lv(lv)) = world.apply(Command::CreateLv(PgId(pg), places)) else {
                panic!("there is room");
            };
            world.apply(Command::LvCreated(lv)).unwrap();
            for id in 3..servers {
                let add = Command::AddReplica(lv, ServerId(id), DiskId(id));
                assert_eq!(world.apply(add), Ok(Outcome::Replica(lv, id as u8)));
                world.apply(Command::ReplicaCurrent(lv, id as u8)).unwrap();
            }
        }
    }
    world
}

#[test]
fn of_many_volumes_with_a_copy_too_many_one_each_is_told_to_go() {
    for seed in 0..8 {
        let mut world = widened(seed, 4, 2);
        world.lost = 4;
        for turn in 0..40 {
            world.run_for(1_500);
            if turn % 7 == 3 {
                world.change_leader();
            }
        }
        let copies: Vec<usize> = world.map.lvs.iter().map(|lv| lv.present().count()).collect();
        assert!(copies.iter().all(|count| *count == 3), "seed {seed}: {copies:?}");
        let told = world.vacated.iter().map(|(lv, _)| *lv).collect::<BTreeSet<_>>().len();
        assert_eq!(told, world.vacated.len(), "seed {seed}: {:?}", world.vacated);
    }
}

#[test]
fn what_was_said_of_an_index_before_another_copy_had_it_empties_nothing() {
    let mut world = widened(3, 4, 1);
    world.run_for(60_000);
    let lv = LvId(0);
    let record = world.map.lv(lv).unwrap().clone();
    assert_eq!(record.present().count(), 3);
    let early = world.map.version;
    // A copy of it is lost, and another takes the index of one that went.
    let (lost, _) = record.present().next().unwrap();
    world.apply(Command::DropReplica(lv, lost as u8)).unwrap();
    world.run_for(30_000);
    let after = world.map.lv(lv).unwrap().clone();
    let is_new = |(index, it): &(usize, &ReplicaRecord)| record.replicas.get(*index) != Some(it);
    let index = after.present().find(is_new).map(|(index, _)| index as u8).unwrap();
    world.vacated.clear();
    let pg = world.map.pg(PgId(0)).unwrap().clone();
    world.astray = 0;
    world.say(pg.members[0].0, ServerMessage::Vacated(lv, index, pg.view, early));
    world.run_for(30_000);
    assert_eq!(world.vacated, BTreeSet::new());
    assert_eq!(world.map.lv(lv).unwrap().present().count(), 3);
}
