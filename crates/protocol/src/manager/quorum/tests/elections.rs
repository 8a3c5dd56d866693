//! How long there is no leader.

use super::World;
use crate::limits::{ELECTION_LOT_MS, ELECTION_MS_MIN};

/// Milliseconds that two looks at the time, and the messages and writes of an election take.
const VOTES_MS: u64 = 200;

#[test]
fn two_that_miss_their_leader_do_not_take_each_others_votes() {
    for seed in 0..400 {
        let mut world = World::new(seed, 3, 3);
        world.run_for(5000);
        let leader = world.leader().expect("one leads");
        world.crash(leader);
        let crashed_ms = world.now_ms;
        while world.leader().is_none() {
            world.run_for(5);
        }
        let took_ms = world.now_ms - crashed_ms;
        let most_ms = ELECTION_MS_MIN + ELECTION_LOT_MS + VOTES_MS;
        assert!(took_ms <= most_ms, "seed {seed}: no leader for {took_ms} ms");
    }
}
