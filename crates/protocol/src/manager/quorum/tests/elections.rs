//! The times for which there is no leader.

use super::World;
use crate::limits::{
    ELECTION_JITTER_MS, ELECTION_MS_MIN, HEARTBEAT_MS, LEADER_SILENT_BEATS_MAX, LEADER_SILENT_MS,
};
use crate::manager::quorum::{ProposalEnd, QuorumEvent, Term};

/// Milliseconds that two looks at the time, and the messages and writes of an election take.
const VOTES_MS: u64 = 200;
/// Milliseconds in which somebody leads, no matter who asks first and how long the logs are.
const SETTLED_MS: u64 = 6 * (ELECTION_MS_MIN + ELECTION_JITTER_MS);

impl World {
    /// Milliseconds until one leads; `None` if that takes longer than so many.
    fn until_led_ms(&mut self, most_ms: u64) -> Option<u64> {
        let begun_ms = self.now_ms;
        while self.leader().is_none() && self.now_ms < begun_ms + most_ms {
            self.run_for(5);
        }
        self.leader().map(|_| self.now_ms - begun_ms)
    }

    fn cut_link(&mut self, one: usize, other: usize) {
        self.cut.extend([(one, other), (other, one)]);
    }

    /// All stop at once, and start again with what was durable.
    fn restart_all(&mut self) {
        for at in 0..self.machines.len() {
            self.crash(at);
        }
        for at in 0..self.machines.len() {
            self.start(at);
        }
    }
}

/// A world of three that the last one leads.
fn led_by_the_last(seed: u64) -> Option<World> {
    let mut world = World::new(seed, 3, 3);
    world.run_for(5000);
    for other in [0, 1] {
        if world.leader() == Some(other) {
            world.cut_off(other);
            world.run_for(SETTLED_MS);
            world.cut.clear();
            world.run_for(SETTLED_MS);
        }
    }
    (world.leader() == Some(2)).then_some(world)
}

#[test]
fn two_that_miss_their_leader_do_not_take_each_others_votes() {
    for seed in 0..400 {
        let mut world = World::new(seed, 3, 3);
        world.run_for(5000);
        let leader = world.leader().expect("one leads");
        world.crash(leader);
        let most_ms = ELECTION_MS_MIN + ELECTION_JITTER_MS + VOTES_MS;
        let took_ms = world.until_led_ms(SETTLED_MS);
        assert!(took_ms.is_some_and(|ms| ms <= most_ms), "seed {seed}: {took_ms:?}");
    }
}

#[test]
fn a_manager_with_the_longest_log_and_the_highest_id_is_elected() {
    let mut tried = 0;
    for seed in 0..100 {
        let Some(mut world) = led_by_the_last(seed) else { continue };
        tried += 1;
        // Each has more than those of lower ids, and only the last can win.
        world.cut_off(0);
        world.propose(2);
        world.run_for(HEARTBEAT_MS);
        world.cut_link(1, 2);
        world.propose(2);
        world.run_for(HEARTBEAT_MS);
        world.cut.clear();
        world.restart_all();
        let took_ms = world.until_led_ms(SETTLED_MS);
        assert!(took_ms.is_some(), "seed {seed}: nobody leads");
    }
    assert!(tried >= 20, "{tried} worlds are led by the last");
}

#[test]
fn a_lagging_candidate_does_not_prevent_an_election() {
    let mut tried = 0;
    for seed in 0..100 {
        let Some(mut world) = led_by_the_last(seed) else { continue };
        tried += 1;
        world.cut_off(0);
        for _ in 0..5 {
            world.propose(2);
            world.run_for(HEARTBEAT_MS);
        }
        // It has asked for long, and asks on.
        world.run_for(SETTLED_MS);
        world.cut.clear();
        world.crash(2);
        world.start(2);
        let took_ms = world.until_led_ms(SETTLED_MS);
        assert!(took_ms.is_some(), "seed {seed}: nobody leads");
        assert_ne!(world.leader(), Some(0), "it lacks what was committed");
    }
    assert!(tried >= 20, "{tried} worlds are led by the last");
}

#[test]
fn two_that_hear_only_a_third_get_a_leader() {
    for hub in 0..3 {
        let (one, other) = ((hub + 1) % 3, (hub + 2) % 3);
        for seed in 0..100 {
            let mut world = World::new(seed, 3, 3);
            world.run_for(5000);
            world.cut_link(one, other);
            world.restart_all();
            let took_ms = world.until_led_ms(SETTLED_MS);
            assert!(took_ms.is_some(), "hub {hub}, seed {seed}: nobody leads");
        }
    }
}

#[test]
fn who_is_elected_knows_since_when_the_one_before_led() {
    let mut known = 0;
    for seed in 0..50 {
        let mut world = World::new(seed, 3, 3);
        world.run_for(5000);
        let leader = world.leader().expect("one leads");
        let led = world.machines[leader].quorum.as_ref().expect("it runs").term();
        world.crash(leader);
        let crashed_ms = world.now_ms;
        world.until_led_ms(SETTLED_MS).expect("another leads");
        let next = world.leader().expect("another leads");
        let leads = world.machines[next].quorum.as_ref().expect("it runs").term();
        // Somebody may have led in a term between.
        assert_eq!(world.shortened_since_ms.is_some(), leads == Term(led.0 + 1), "seed {seed}");
        if let Some(since_ms) = world.shortened_since_ms {
            known += 1;
            assert!((1000..crashed_ms).contains(&since_ms), "seed {seed}: {since_ms}");
        }
    }
    assert!(known > 40, "{known}: an election seldom takes two terms");
}

#[test]
fn grants_of_an_older_leader_are_unknown() {
    for seed in 0..50 {
        let mut world = World::new(seed, 3, 3);
        world.earlier = (0..3).collect();
        world.run_for(5000);
        let leader = world.leader().expect("one leads");
        world.crash(leader);
        world.until_led_ms(SETTLED_MS).expect("another leads");
        assert_eq!(world.shortened_since_ms, None, "seed {seed}");
    }
}

#[test]
fn a_restarted_manager_forgets_the_earlier_leader() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3, 3);
        world.run_for(5000);
        world.restart_all();
        world.until_led_ms(SETTLED_MS).expect("one leads");
        assert_eq!(world.shortened_since_ms, None, "seed {seed}");
    }
}

#[test]
fn a_leader_that_no_majority_answers_gives_up_and_leads_again_when_they_are_back() {
    let mut world = World::new(8, 3, 3);
    world.run_for(5000);
    let leader = world.leader().unwrap();
    let quorum =
        |world: &World| world.machines[leader].quorum.as_ref().map(|it| (it.leads(), it.is_led()));
    for other in (0..3).filter(|at| *at != leader) {
        world.crash(other);
    }
    world.run_for(LEADER_SILENT_MS / 2);
    assert_eq!(quorum(&world), Some((true, true)), "a few heartbeats may be lost");
    world.run_for(LEADER_SILENT_MS);
    assert_eq!(quorum(&world), Some((true, false)), "it does not say so any more");
    world.run_for(u64::from(LEADER_SILENT_BEATS_MAX) * HEARTBEAT_MS);
    assert_eq!(quorum(&world), Some((false, false)));
    let question = world.confirm(leader);
    world.run_for(60_000);
    assert!(!world.confirmed.contains(&question));
    let term = world.machines[leader].quorum.as_ref().unwrap().term();
    world.heal();
    world.run_for(5000);
    let ticket = world.propose(world.leader().unwrap());
    world.run_for(1000);
    assert!(matches!(world.ended[&ticket], ProposalEnd::Applied(_)));
    let now = world.machines[leader].quorum.as_ref().unwrap().term();
    assert!(now.0 <= term.0 + 2, "waiting alone raises no terms: {term:?}, {now:?}");
}

#[test]
fn a_leader_whose_followers_answer_proposals_alone_leads_on() {
    let mut world = World::new(10, 3, 3);
    world.run_for(5000);
    let leader = world.leader().unwrap();
    let term = world.machines[leader].quorum.as_ref().unwrap().term();
    let until_ms = world.now_ms + 2 * u64::from(LEADER_SILENT_BEATS_MAX) * HEARTBEAT_MS;
    while world.now_ms < until_ms {
        world.propose(leader);
        world.run_for(HEARTBEAT_MS / 2);
    }
    let quorum = world.machines[leader].quorum.as_ref().unwrap();
    assert!(quorum.leads() && quorum.is_led() && quorum.term() == term);
}

#[test]
fn a_starting_manager_reports_no_leader_before_it_knows_one() {
    let mut world = World::new(11, 3, 3);
    world.run_for(5000);
    let leader = world.leader().unwrap();
    let other = (leader + 1) % 3;
    for at in 0..3 {
        world.crash(at);
    }
    world.start(other);
    world.run_for(100);
    assert!(!world.machines[other].quorum.as_ref().unwrap().is_led());
}

#[test]
fn a_stalled_leader_continues_if_no_other_was_elected() {
    let mut world = World::new(9, 1, 1);
    world.run_for(100);
    let mut quorum = world.machines[0].quorum.take().unwrap();
    let mut out = Vec::new();
    quorum.step(1_000_000, QuorumEvent::Tick, &mut out);
    assert!(quorum.leads() && quorum.is_led());
}
