//! Volumes with one copy too many, and volumes that move to a less used disk.

use super::*;
use crate::limits::{BALANCE_MOVES_MAX, UNMADE_MS_MAX};
use crate::manager::state::{LvRecord, ReplicaRecord};

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
fn one_surplus_copy_of_each_volume_is_removed() {
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
        let reported = world.vacated.iter().map(|(lv, _)| *lv).collect::<BTreeSet<_>>().len();
        assert_eq!(reported, world.vacated.len(), "seed {seed}: {:?}", world.vacated);
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
    // A late word comes once. A group that emptied the copy by it says so again and again: it goes, and
    // another is filled in its place.
    let mut said = 0;
    while !world.vacated.contains(&(lv, index)) && said < 90 {
        world.say(pg.members[0].0, ServerMessage::Vacated(lv, index, pg.view, early));
        world.run_for(1_000);
        said += 1;
    }
    assert!((1..5).contains(&said), "it is ordered anew after {said} times more");
    world.run_for(30_000);
    assert_eq!(world.map.lv(lv).unwrap().present().count(), 3);
}

/// A cluster of three full machines, and an empty one that joins it; volumes may move.
fn with_an_empty_machine(seed: u64) -> World {
    let mut world = widened(seed, 3, 2);
    world.run_for(10_000);
    world.policies.iter_mut().for_each(|policy| policy.let_volumes_move(true));
    world.add_server();
    world
}

fn used(world: &World) -> Vec<u32> {
    let disks = world.map.servers.values().flat_map(|server| server.disks.values());
    disks.map(|disk| disk.pv_count - disk.pv_free()).collect()
}

/// Runs, and sees that no more than two volumes have a copy more, and none has a copy less.
fn watch(world: &mut World, ms: u64) {
    for _ in 0..ms / 100 {
        world.run_for(100);
        let wider = world.map.lvs.iter().filter(|lv| lv.present().count() > 3).count();
        assert!(wider <= BALANCE_MOVES_MAX, "{wider} volumes move");
        let current = |lv: &LvRecord| {
            lv.present().filter(|(_, it)| it.state == ReplicaState::Current).count()
        };
        let short = world.map.lvs.iter().find(|lv| current(lv) < 3);
        assert!(short.is_none(), "{short:?}");
    }
}

#[test]
fn an_empty_machine_takes_its_share_two_volumes_at_a_time_whoever_leads() {
    for seed in 0..4 {
        let mut world = with_an_empty_machine(seed);
        world.lost = 5;
        for _ in 0..10 {
            watch(&mut world, 20_000);
            world.change_leader();
        }
        watch(&mut world, 60_000);
        assert_eq!(crate::manager::balance::moving_volumes(&world.map), 0);
        // Each group has one volume that stays, as it takes writes.
        assert!(used(&world)[3] >= SETTINGS.pg_count, "{:?}", used(&world));
    }
}

#[test]
fn a_new_leader_collects_reports_before_it_plans() {
    let mut world = with_an_empty_machine(5);
    world.policies.iter_mut().for_each(|policy| policy.let_volumes_move(false));
    world.run_for(10_000);
    world.change_leader();
    world.policies.iter_mut().for_each(|policy| policy.let_volumes_move(true));
    world.run_for(LV_PLAN_MS - 1_000);
    assert_eq!(used(&world)[3], 0);
    world.run_for(3_000);
    assert_ne!(used(&world)[3], 0);
}

#[test]
fn an_empty_machine_gets_volumes_as_soon_as_it_is_up() {
    for seed in 0..6 {
        let mut world = with_an_empty_machine(seed);
        world.astray = 0;
        world.run_for(2_000);
        assert_eq!(used(&world)[3], 2, "seed {seed}");
    }
}

#[test]
fn nothing_moves_while_a_manager_would_undo_it() {
    let mut world = with_an_empty_machine(1);
    world.policies.iter_mut().for_each(|policy| policy.let_volumes_move(false));
    watch(&mut world, 60_000);
    assert_eq!(used(&world), [16, 16, 16, 0]);
    world.policies.iter_mut().for_each(|policy| policy.let_volumes_move(true));
    watch(&mut world, 60_000);
    assert_ne!(used(&world)[3], 0);
}

#[test]
fn nothing_begins_to_move_while_operators_have_it_paused_and_what_moves_goes_on() {
    let mut world = with_an_empty_machine(6);
    world.run_for(2_000);
    assert_eq!(used(&world)[3], 2);
    world.apply(Command::PauseBalance(Some(5))).unwrap();
    watch(&mut world, 120_000);
    assert_eq!(crate::manager::balance::moving_volumes(&world.map), 0);
    let paused = used(&world);
    assert!((2..5).contains(&paused[3]), "{paused:?}");
    world.change_leader();
    watch(&mut world, 60_000);
    assert_eq!(used(&world), paused, "another leader keeps to it");
    world.apply(Command::PauseBalance(None)).unwrap();
    watch(&mut world, 60_000);
    assert!(used(&world)[3] > paused[3], "{:?}", used(&world));
}

#[test]
fn nothing_begins_to_move_while_a_data_server_is_down_or_a_copy_is_missing() {
    let mut world = with_an_empty_machine(2);
    world.policies.iter_mut().for_each(|policy| policy.let_volumes_move(false));
    world.stop(1);
    world.run_for(10_000);
    assert_eq!(world.map.servers[&ServerId(1)].state, ServerState::Down);
    world.policies.iter_mut().for_each(|policy| policy.let_volumes_move(true));
    watch(&mut world, 60_000);
    assert_eq!(used(&world), [16, 16, 16, 0]);
    world.start(1);
    watch(&mut world, 120_000);
    assert!(used(&world)[3] > 9, "{:?}", used(&world));
}

#[test]
fn moves_to_a_disk_that_turns_out_to_have_no_room_end_and_others_begin() {
    let mut world = with_an_empty_machine(3);
    let full = DiskId(3);
    world.fills = false;
    world.run_for(15_000);
    assert_eq!(used(&world), [16, 16, 16, 2]);
    let boot = world.servers[&3].boot;
    world.add_server();
    let no_room = |world: &mut World, ms: u64| {
        for _ in 0..ms / SERVER_BEAT_MS {
            world.say(3, ServerMessage::NoRoom(boot, full));
            world.run_for(SERVER_BEAT_MS);
        }
    };
    no_room(&mut world, 30_000);
    world.fills = true;
    no_room(&mut world, 60_000);
    assert_eq!(used(&world)[3], 0, "{:?}", used(&world));
    assert!(used(&world)[4] > 6, "{:?}", used(&world));
    // It has room again, and is not trusted with more for a while.
    watch(&mut world, LOST_MS / 2);
    assert_eq!(used(&world)[3], 0);
    watch(&mut world, LOST_MS);
    assert!(used(&world)[3] > 6, "{:?}", used(&world));
}

#[test]
fn a_move_whose_volume_cannot_be_made_ends() {
    let mut world = with_an_empty_machine(4);
    world.makes = false;
    world.run_for(15_000);
    assert_eq!(used(&world), [16, 16, 16, 2]);
    world.add_server();
    world.run_for(UNMADE_MS_MAX / 2);
    assert_eq!(used(&world)[3], 2);
    world.run_for(UNMADE_MS_MAX);
    assert_eq!(used(&world)[3], 0, "{:?}", used(&world));
    assert!(world.vacated.is_empty(), "no primary knew of it");
    // Nor does a leader that follows wait for ever.
    assert_eq!(used(&world)[4], 2);
    world.change_leader();
    world.run_for(3 * UNMADE_MS_MAX);
    assert_eq!(used(&world), [16, 16, 16, 0, 0]);
}
