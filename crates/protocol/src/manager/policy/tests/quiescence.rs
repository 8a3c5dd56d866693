//! Groups that rest. While they do, every test looks at them all the same, and asserts that nothing comes of it.

use super::*;
use crate::limits::QUIESCENT_MS_MAX;

impl World {
    fn looks(&self) -> u64 {
        let leading = self.policies[self.leader.0].leading.as_ref();
        leading.expect("the leader leads").looks
    }
}

#[test]
fn groups_are_looked_at_seldom_while_nothing_changes_and_at_once_when_something_does() {
    let mut world = World::new(21, 4);
    world.astray = 0;
    world.calm_down();
    world.run_for(2 * PROBATION_MS);
    let (before, seconds) = (world.looks(), 30);
    world.run_for(1000 * seconds);
    let looks = world.looks() - before;
    assert!(looks <= 1000 * seconds / QUIESCENT_MS_MAX + 1, "{looks} looks in {seconds} s");
    world.servers.get_mut(&0).unwrap().cut = true;
    world.run_for(SILENT_MS + LEASE_MS + 1000);
    let away = |pg: &PgRecord| pg.members[0] != ServerId(0);
    assert!(world.map.pgs.iter().all(away), "its groups are led by others");
}
