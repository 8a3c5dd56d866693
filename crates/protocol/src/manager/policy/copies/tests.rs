//! The order of turns, and that all have theirs.

use super::*;
use crate::copy_pacing::CopyPacing;
use crate::manager::chance::CounterRng;

const BEGAN_MS: u64 = 50_000;
const NOW_MS: u64 = BEGAN_MS + COPY_NEED_MS;

fn need(good: usize, made: u64) -> CopyNeed {
    CopyNeed { priority: CopyPriority::new(good, false), made, bytes_per_s: 100, waits: false }
}

fn copies() -> Copies {
    Copies::new(BEGAN_MS)
}

#[test]
fn a_leader_without_all_reports_grants_no_copy_turns() {
    let mut copies = copies();
    assert_eq!(copies.receive(NOW_MS - 1, ServerId(1), need(2, 0)), None);
    assert!(copies.receive(NOW_MS, ServerId(1), need(2, 0)).is_some());
}

#[test]
fn those_with_the_fewest_copies_come_first_and_take_what_the_others_lend() {
    let mut copies = copies();
    let hear = |copies: &mut Copies, server, good| {
        let turn = copies.receive(NOW_MS, ServerId(server), need(good, 0)).unwrap();
        (turn.upto.good, turn.bytes_per_s)
    };
    assert_eq!(hear(&mut copies, 1, 3), (3, 100));
    assert_eq!(hear(&mut copies, 2, 2), (2, 200), "one lends, one takes");
    assert_eq!(hear(&mut copies, 1, 3), (2, 100), "it waits");
    assert_eq!(hear(&mut copies, 3, 2), (2, 150), "two take");
    assert_eq!(hear(&mut copies, 4, 1), (1, 400));
    assert_eq!(hear(&mut copies, 2, 2), (1, 100));
}

#[test]
fn hot_volumes_come_before_cold_ones_with_as_many_copies_and_after_those_with_fewer() {
    let mut copies = copies();
    let hot = |good| CopyNeed { priority: CopyPriority::new(good, true), ..need(good, 0) };
    copies.receive(NOW_MS, ServerId(1), need(2, 0)).unwrap();
    let turn = copies.receive(NOW_MS, ServerId(2), hot(2)).unwrap();
    assert_eq!(turn.upto, hot(2).priority);
    let turn = copies.receive(NOW_MS, ServerId(1), need(2, 0)).unwrap();
    assert_eq!(turn.upto, hot(2).priority);
    let turn = copies.receive(NOW_MS, ServerId(3), need(1, 0)).unwrap();
    assert_eq!(turn.upto, need(1, 0).priority);
}

#[test]
fn who_says_no_more_or_makes_no_copies_holds_up_nobody() {
    let mut copies = copies();
    copies.receive(NOW_MS, ServerId(1), need(1, 0)).unwrap();
    let turn = copies.receive(NOW_MS + COPY_NEED_MS - 1, ServerId(2), need(2, 0)).unwrap();
    assert_eq!(turn.upto.good, 1);
    let turn = copies.receive(NOW_MS + COPY_NEED_MS, ServerId(2), need(2, 0)).unwrap();
    assert_eq!(turn.upto.good, 2, "the other is silent");
    let (mut now_ms, mut held_ms) = (NOW_MS + COPY_NEED_MS, 0);
    let turn = loop {
        copies.receive(now_ms, ServerId(1), need(1, 0)).unwrap();
        let turn = copies.receive(now_ms, ServerId(2), need(2, held_ms)).unwrap();
        if turn.upto.good == 2 {
            break turn;
        }
        (now_ms, held_ms) = (now_ms + 300, held_ms + 300);
        assert!(held_ms <= COPY_STUCK_MS, "it is held up for ever");
    };
    assert_eq!(turn.bytes_per_s, 200);
    let turn = copies.receive(now_ms, ServerId(1), need(1, 1)).unwrap();
    assert_eq!(turn.upto.good, 1, "it goes on: it is the first again");
}

#[test]
fn who_waits_for_long_is_not_stuck() {
    let mut copies = copies();
    let waits = |good| CopyNeed { waits: true, ..need(good, 0) };
    let mut made = 0;
    for now_ms in (NOW_MS..NOW_MS + 3 * COPY_STUCK_MS).step_by(300) {
        made += 1;
        copies.receive(now_ms, ServerId(1), need(1, made)).unwrap();
        for (server, good) in [(2, 2), (3, 3)] {
            assert_eq!(copies.receive(now_ms, ServerId(server), waits(good)).unwrap().upto.good, 1);
        }
    }
    let then_ms = NOW_MS + 3 * COPY_STUCK_MS + COPY_NEED_MS;
    copies.receive(then_ms - 300, ServerId(2), waits(2)).unwrap();
    let turn = copies.receive(then_ms, ServerId(3), waits(3)).unwrap();
    assert_eq!(turn.upto.good, 2, "the first has ended, and the second comes before the third");
}

#[test]
fn all_that_are_stuck_may_go_on() {
    let mut copies = copies();
    for now_ms in (NOW_MS..NOW_MS + 2 * COPY_STUCK_MS).step_by(300) {
        copies.receive(now_ms, ServerId(1), need(1, 0)).unwrap();
        copies.receive(now_ms, ServerId(2), need(2, 0)).unwrap();
    }
    let turn = copies.receive(NOW_MS + 2 * COPY_STUCK_MS, ServerId(2), need(2, 0)).unwrap();
    assert_eq!((turn.upto.good, turn.bytes_per_s), (2, 200));
}

/// A meta server with copies to make: so many of chunks with one copy, with two and with three.
#[derive(Debug, Default)]
struct Server {
    turns: CopyPacing,
    left: [u32; 3],
    /// It can make none of them.
    is_stuck: bool,
    made: u64,
    /// Since when it has had chunks with a single copy and copied them.
    single_since_ms: Option<u64>,
}

impl Server {
    fn least(&self) -> Option<usize> {
        (1..).zip(self.left).find(|(_, left)| *left > 0).map(|(good, _)| good)
    }

    /// 100 ms of work; returns of how many copies the chunk had that was copied.
    fn work(&mut self, now_ms: u64, doing: &mut Option<usize>) -> Option<usize> {
        let Some(good) = self.least() else {
            self.turns.rest();
            *doing = None;
            return None;
        };
        if *doing != Some(good) {
            self.turns.begin(now_ms, CopyPriority::new(good, false));
            *doing = Some(good);
        }
        if !self.turns.may_copy(now_ms) {
            self.turns.wait();
            return None;
        }
        self.turns.found(Some(CopyPriority::new(good, false)));
        if self.is_stuck {
            return None;
        }
        self.left[good - 1] -= 1;
        self.made += 1;
        Some(good)
    }
}

/// A cluster under one seed: beats come late and are lost, leaders change, replicas are lost, servers get stuck.
struct Cluster {
    rng: CounterRng,
    leader: Copies,
    servers: Vec<Server>,
    doing: Vec<Option<usize>>,
    /// The needs that are on their way, by the times at which they come.
    to_leader: Vec<(u64, usize, u64, CopyNeed)>,
    to_servers: Vec<(u64, usize, u64, CopyTurn)>,
    /// Copies made although others with fewer had been at it for long.
    too_soon: u32,
}

/// Milliseconds that a turn may be late: a few beats that are lost, there and back.
const LATE_MS: u64 = 3_000;

impl Cluster {
    fn new(seed: u64) -> Self {
        let mut rng = CounterRng(seed, 0);
        let count = 3 + rng.below(6) as usize;
        let mut servers: Vec<Server> = Vec::new();
        for _ in 0..count {
            let left = [0, rng.below(200) as u32, rng.below(200) as u32];
            let is_stuck = rng.one_in(8);
            servers.push(Server { left, is_stuck, ..Server::default() });
        }
        let (doing, leader) = (vec![None; count], Copies::new(0));
        let (to_leader, to_servers) = (Vec::new(), Vec::new());
        Self { rng, leader, servers, doing, to_leader, to_servers, too_soon: 0 }
    }

    fn step(&mut self, now_ms: u64) {
        if self.rng.one_in(300) {
            self.leader = Copies::new(now_ms);
        }
        let lost = self.rng.below(self.servers.len() as u64) as usize;
        if self.rng.one_in(100) {
            // One replica of what had two is lost.
            let server = &mut self.servers[lost];
            let of = server.left[1].min(20);
            server.left = [server.left[0] + of, server.left[1] - of, server.left[2]];
        }
        self.deliver(now_ms);
        for at in 0..self.servers.len() {
            let server = &mut self.servers[at];
            let copied = server.work(now_ms, &mut self.doing[at]);
            let single = server.left[0] > 0 && !server.is_stuck;
            server.single_since_ms = single.then(|| server.single_since_ms.unwrap_or(now_ms));
            let need = server.turns.need().filter(|_| now_ms % 300 == 100 * (at as u64 % 3));
            if let Some((priority, waits)) = need {
                let need = CopyNeed { priority, made: server.made, bytes_per_s: 100, waits };
                if !self.rng.one_in(20) {
                    self.to_leader.push((now_ms + self.rng.below(200), at, now_ms, need));
                }
            }
            let is_long = |it: &Server| it.single_since_ms.is_some_and(|ms| ms + LATE_MS < now_ms);
            if copied.is_some_and(|good| good > 1) && self.servers.iter().any(is_long) {
                self.too_soon += 1;
            }
        }
    }

    fn deliver(&mut self, now_ms: u64) {
        let (due, rest) = self.to_leader.drain(..).partition(|(at_ms, ..)| *at_ms <= now_ms);
        self.to_leader = rest;
        let due: Vec<_> = due;
        for (_, server, sent_ms, need) in due {
            if let Some(turn) = self.leader.receive(now_ms, ServerId(server as u32), need)
                && !self.rng.one_in(20)
            {
                let at_ms = now_ms + self.rng.below(200);
                self.to_servers.push((at_ms, server, sent_ms, turn));
            }
        }
        let (due, rest) = self.to_servers.drain(..).partition(|(at_ms, ..)| *at_ms <= now_ms);
        self.to_servers = rest;
        let due: Vec<_> = due;
        for (_, server, sent_ms, turn) in due {
            self.servers[server].turns.receive_turn(sent_ms, turn);
        }
    }
}

#[test]
fn in_the_whole_cluster_single_copies_come_first_and_all_are_made() {
    let mut single = 0;
    for seed in 0..200 {
        let mut cluster = Cluster::new(seed);
        let mut now_ms = 0;
        while cluster.servers.iter().any(|it| !it.is_stuck && it.least().is_some()) {
            now_ms += 100;
            cluster.step(now_ms);
            assert!(now_ms < 1_000_000, "seed {seed}: copies are never made");
        }
        assert_eq!(cluster.too_soon, 0, "seed {seed}: others with fewer copies had begun");
        single += cluster.servers.iter().map(|it| it.made).sum::<u64>();
    }
    assert!(single > 100_000, "there was work: {single}");
}
