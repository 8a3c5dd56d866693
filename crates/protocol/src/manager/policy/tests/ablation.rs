//! The moves for a fourth server, with volume groups and without.

use super::*;
use crate::manager::state::LvRecord;

/// Replicas that a new server has at the end, of one LV for each PG, and how many of these LVs lie on their PG's members.
fn grown(without_groups: bool) -> (usize, usize) {
    let mut world = World::new(21, 3);
    world.policies = (0..2).map(|_| Policy::without_groups(without_groups)).collect();
    world.policies.iter_mut().for_each(|policy| policy.let_volumes_move(true));
    world.elect(0);
    world.calm_down();
    let mut asked = 0;
    while let Some(pg) = (0..SETTINGS.pg_count).find(|pg| world.map.lvs_of(PgId(*pg)).count() == 0)
    {
        let record = world.pg(pg).clone();
        world.say(record.members[0].0, ServerMessage::NeedLv(PgId(pg), record.view, 0));
        world.run_for(1000);
        asked += 1;
        assert!(asked < 100, "no volume for {pg}: {:?}", world.map.lvs);
    }
    let new = ServerId(world.add_server());
    world.calm_down();
    world.run_for(300_000);
    let servers = |lv: &LvRecord| lv.present().map(|(_, r)| r.server).collect::<BTreeSet<_>>();
    let lvs = || world.map.lvs.iter();
    let moved = lvs().filter(|lv| servers(lv).contains(&new)).count();
    let beside = lvs()
        .filter(|lv| servers(lv) == world.map.pg(lv.pg).unwrap().members.iter().copied().collect());
    (moved, beside.count())
}

#[test]
fn without_groups_the_volumes_of_a_group_follow_its_members() {
    let all = SETTINGS.pg_count as usize;
    let (moved, beside) = grown(true);
    assert!(moved > 0);
    assert_eq!(beside, all, "each volume lies where its group does");
    let (moved, beside) = grown(false);
    assert_eq!(moved, 0, "with groups a new server takes no volume that takes writes");
    assert!(beside < all, "though groups have moved");
}
