//! The cluster's version.

use super::*;

/// A quiet cluster of four, whose servers have not said which version they speak.
fn quiet() -> (World, Vec<ServerId>) {
    let mut world = World::new(3, 4);
    world.run_for(60_000);
    assert_eq!(world.map.cluster_version, 0, "nobody has said");
    let ids = world.map.servers.keys().copied().collect();
    (world, ids)
}

/// The cluster's version once servers have spoken these, in the runs that the map knows.
fn after(world: &mut World, spoken: &[(ServerId, u8)]) -> u8 {
    let leader = world.leader.0;
    for (id, version) in spoken {
        let boot = world.map.servers[id].boot;
        world.policy(leader, PolicyEvent::VersionReported(*id, boot, *version));
    }
    world.run_for(30_000);
    assert_eq!(world.leader.0, leader, "the same one leads");
    world.map.cluster_version
}

#[test]
fn the_clusters_version_follows_the_oldest_server_and_never_falls() {
    let (mut world, ids) = quiet();
    let mut speak = |versions: [u8; 4]| {
        let spoken: Vec<_> = ids.iter().copied().zip(versions).collect();
        after(&mut world, &spoken)
    };
    assert_eq!(speak([5, 6, 5, 7]), 5);
    assert_eq!(speak([6, 6, 6, 7]), 6);
    assert_eq!(speak([4, 6, 6, 7]), 6, "it is a promise");
    assert_eq!(speak([8, 8, 8, 8]), 8);
}

#[test]
fn one_that_was_not_heard_holds_it_back_and_so_does_one_that_is_down() {
    let (mut world, ids) = quiet();
    let held_back = |world: &World| world.policies[world.leader.0].held_back_by(&world.map, 5);
    let all: Vec<_> = ids.iter().map(|id| (*id, 5)).collect();
    assert_eq!(after(&mut world, &all[1..]), 0);
    assert_eq!(held_back(&world), Some(ids[0]));
    assert_eq!(after(&mut world, &[(ids[0], 4)]), 4);
    assert_eq!(held_back(&world), Some(ids[0]), "it speaks an older one");
    world.stop(ids[3].0);
    assert_eq!(after(&mut world, &[]), 4);
    assert_eq!(world.map.servers[&ids[3]].state, ServerState::Down);
    assert_eq!(after(&mut world, &all[..3]), 4, "one is down");
    assert_eq!(held_back(&world), Some(ids[3]));
    world.apply(Command::RemoveServer(ids[3])).unwrap();
    assert_eq!(after(&mut world, &[]), 5);
    assert_eq!(held_back(&world), None);
}

#[test]
fn a_new_run_reports_its_version_again() {
    let (mut world, ids) = quiet();
    let all: Vec<_> = ids.iter().map(|id| (*id, 5)).collect();
    assert_eq!(after(&mut world, &all[1..]), 0);
    let ended = world.map.servers[&ids[1]].boot;
    world.restart(ids[1].0);
    world.run_for(10_000);
    assert_eq!(after(&mut world, &all[..1]), 0, "it has begun anew since it was heard");
    let leader = world.leader.0;
    world.policy(leader, PolicyEvent::VersionReported(ids[1], BootId(77), 5));
    world.policy(leader, PolicyEvent::VersionReported(ids[1], ended, 5));
    assert_eq!(after(&mut world, &[]), 0, "neither is the run that the map knows");
    assert_eq!(after(&mut world, &all[1..2]), 5);
}

#[test]
fn one_that_has_a_token_and_never_started_holds_nothing_back() {
    let (mut world, ids) = quiet();
    let new = NewServer {
        name: "late".to_owned(),
        addresses: Vec::new(),
        roles: BTreeSet::from([ServerRole::Proxy]),
        domains: FailureDomains { region: RegionId(0), rack: RackId(0), machine: MachineId(9) },
        weight: Weight(1),
    };
    world.apply(Command::AddServer(new, Some(([1; 32], 0)))).unwrap();
    let all: Vec<_> = ids.iter().map(|id| (*id, 5)).collect();
    assert_eq!(after(&mut world, &all), 5);
}
