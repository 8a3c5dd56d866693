//! Whole quorums under one seeded scheduler: loss, delay, doubling, reordering, slow disks, crashes that lose
//! what was not durable, partitions, restarts, and managers that come and go.

mod bounds;
mod elections;
mod leases;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use larder_types::ServerId;
use larder_types::codec::{decode, encode};

use super::*;
use crate::limits::{ELECTION_MS_MIN, HEARTBEAT_MS, ROUND_FIRST};
use crate::manager::chance::CounterRng;

enum Happening {
    Tick(usize, u64),
    Message(usize, usize, Vec<u8>),
    Written(usize, u64, u64),
}

/// One manager's machine.
struct Machine {
    quorum: Option<Quorum>,
    run: u64,
    disk: Stored,
    /// Not durable yet.
    writing: BTreeMap<u64, LogWrite>,
    state: Vec<u64>,
    applied: LogIndex,
}

#[derive(Default, Clone, Copy)]
struct NetworkFaults {
    lost: u64,
    doubled: u64,
    late: u64,
    slow_disk: u64,
}

struct World {
    rng: CounterRng,
    now_ms: u64,
    steps: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    machines: Vec<Machine>,
    network_faults: NetworkFaults,
    /// Pairs (from, to) that cannot talk.
    cut: BTreeSet<(usize, usize)>,
    committed: BTreeMap<LogIndex, u64>,
    leaders: BTreeMap<Term, (usize, u64)>,
    /// The time that the last that was elected knows of who led before.
    shortened_since_ms: Option<u64>,
    /// Machines of an earlier release, by the rounds of their appends.
    earlier: BTreeSet<usize>,
    leases: leases::Leases,
    ended: BTreeMap<Ticket, ProposalEnd>,
    asked: BTreeMap<Ticket, (u64, u64)>,
    confirmed: BTreeSet<Ticket>,
    next: u64,
    snapshots: u64,
    restores: u64,
    tiny_snapshots: bool,
    /// Bytes that make snapshots longer than a piece.
    ballast: usize,
}

fn id(machine: usize) -> ServerId {
    ServerId(machine as u32)
}

impl World {
    fn new(seed: u64, machines: usize, voters: usize) -> Self {
        let mut world = Self {
            rng: CounterRng(seed, 0),
            now_ms: 1000,
            steps: 0,
            queue: BTreeMap::new(),
            machines: Vec::new(),
            network_faults: NetworkFaults::default(),
            cut: BTreeSet::new(),
            committed: BTreeMap::new(),
            leaders: BTreeMap::new(),
            shortened_since_ms: None,
            earlier: BTreeSet::new(),
            leases: leases::Leases::default(),
            ended: BTreeMap::new(),
            asked: BTreeMap::new(),
            confirmed: BTreeSet::new(),
            next: 0,
            snapshots: 0,
            restores: 0,
            tiny_snapshots: false,
            ballast: 0,
        };
        for _ in 0..machines {
            world.machines.push(Machine {
                quorum: None,
                run: 0,
                disk: Stored::default(),
                writing: BTreeMap::new(),
                state: Vec::new(),
                applied: LogIndex(0),
            });
        }
        let ids: Vec<ServerId> = (0..voters).map(id).collect();
        let mut out = Vec::new();
        let seed = world.rng.below(u64::MAX);
        world.machines[0].quorum = Some(Quorum::found(id(0), &ids, seed, world.now_ms, &mut out));
        world.perform(0, out);
        world.after(HEARTBEAT_MS / 3, Happening::Tick(0, 0));
        for machine in 1..machines {
            world.start(machine);
        }
        world
    }

    fn after(&mut self, delay_ms: u64, happening: Happening) {
        self.steps += 1;
        self.queue.insert((self.now_ms + delay_ms, self.steps), happening);
    }

    fn start(&mut self, at: usize) {
        let seed = self.rng.below(u64::MAX);
        let machine = &mut self.machines[at];
        assert!(machine.quorum.is_none());
        machine.run += 1;
        machine.state.clear();
        machine.applied = LogIndex(0);
        let run = machine.run;
        let stored = encode(&machine.disk);
        let stored = decode::<Stored>("stored", &stored).unwrap();
        let mut out = Vec::new();
        machine.quorum = Some(Quorum::restore(id(at), stored, seed, self.now_ms, &mut out));
        self.perform(at, out);
        self.after(1, Happening::Tick(at, run));
    }

    fn crash(&mut self, at: usize) {
        let machine = &mut self.machines[at];
        machine.quorum = None;
        machine.writing.clear();
    }

    fn step(&mut self, at: usize, event: QuorumEvent) {
        let now_ms = self.now_ms;
        let Some(quorum) = &mut self.machines[at].quorum else { return };
        let mut out = Vec::new();
        quorum.step(now_ms, event, &mut out);
        self.perform(at, out);
    }

    fn perform(&mut self, at: usize, out: Vec<QuorumEffect>) {
        for effect in out {
            let run = self.machines[at].run;
            match effect {
                QuorumEffect::Persist(number, write) => {
                    self.machines[at].writing.insert(number, write);
                    let slow =
                        if self.rng.one_in(self.network_faults.slow_disk) { 1500 } else { 4 };
                    let delay = self.rng.below(slow);
                    self.after(delay, Happening::Written(at, run, number));
                }
                QuorumEffect::Send(to, message) => {
                    let to = to.0 as usize;
                    let message = self.as_released(at, to, message);
                    if self.rng.one_in(self.network_faults.lost) || self.cut.contains(&(at, to)) {
                        continue;
                    }
                    let copies = if self.rng.one_in(self.network_faults.doubled) { 2 } else { 1 };
                    for _ in 0..copies {
                        let late =
                            if self.rng.one_in(self.network_faults.late) { 3000 } else { 10 };
                        let delay = 1 + self.rng.below(late);
                        self.after(delay, Happening::Message(at, to, encode(&message)));
                    }
                }
                QuorumEffect::Apply(index, command) => {
                    let value = decode::<u64>("command", &command).unwrap();
                    let known = *self.committed.entry(index).or_insert(value);
                    assert_eq!(known, value, "{index:?} was committed as something else");
                    let machine = &mut self.machines[at];
                    assert!(index > machine.applied);
                    machine.applied = index;
                    machine.state.push(value);
                    if self.tiny_snapshots && self.rng.one_in(20) {
                        self.snapshot(at, index);
                    }
                }
                QuorumEffect::Restore(index, state) => {
                    self.restores += 1;
                    let machine = &mut self.machines[at];
                    let (values, ballast): (Vec<u64>, Bytes) = decode("state", &state).unwrap();
                    assert_eq!(ballast.len(), self.ballast);
                    machine.state = values;
                    machine.applied = index;
                    let reported: Vec<u64> =
                        self.committed.range(..=index).map(|(_, value)| *value).collect();
                    assert_eq!(machine.state, reported, "a snapshot holds what was committed");
                }
                QuorumEffect::TakeSnapshot => {
                    let index = self.machines[at].applied;
                    self.snapshot(at, index);
                }
                QuorumEffect::Elected { term, shortened_since_ms } => {
                    self.shortened_since_ms = shortened_since_ms;
                    self.waits_out(at, term, shortened_since_ms);
                    let leader = *self.leaders.entry(term).or_insert((at, self.steps));
                    assert_eq!(leader.0, at, "{term:?} has two leaders");
                    let state = &self.machines[at].state;
                    assert_eq!(
                        state.len(),
                        self.committed.len(),
                        "a new leader's state is the latest"
                    );
                }
                QuorumEffect::Deposed(term) => assert_eq!(self.leaders[&term].0, at),
                QuorumEffect::Decided(ticket, end) => {
                    assert_eq!(self.ended.insert(ticket, end), None, "{ticket:?} ended twice");
                }
                QuorumEffect::Confirmed(ticket) => {
                    let (requested_ms, asked) = self.asked[&ticket];
                    let quorum = self.machines[at].quorum.as_ref().unwrap();
                    let later = quorum.term();
                    let usurper = self.leaders.range(later..).skip(1).find(|(_, l)| l.1 < asked);
                    assert_eq!(usurper, None, "confirmed although another led before the question");
                    self.confirmed.insert(ticket);
                    self.grants(at, later, requested_ms);
                }
                QuorumEffect::Halt(reason) => panic!("{reason}"),
            }
        }
    }

    fn snapshot(&mut self, at: usize, index: LogIndex) {
        self.snapshots += 1;
        let ballast = Bytes::from(vec![7; self.ballast]);
        let state = Bytes::from(encode(&(&self.machines[at].state, ballast)));
        self.step(at, QuorumEvent::Snapshot(index, state));
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Tick(at, run) if self.machines[at].run == run => {
                self.step(at, QuorumEvent::Tick);
                let pause = HEARTBEAT_MS / 3 + self.rng.below(10);
                self.after(pause, Happening::Tick(at, run));
            }
            Happening::Message(from, to, bytes) => {
                let message = decode("message", &bytes).unwrap();
                self.step(to, QuorumEvent::Peer(id(from), message));
            }
            Happening::Written(at, run, number) if self.machines[at].run == run => {
                let machine = &mut self.machines[at];
                if let Some(write) = machine.writing.remove(&number) {
                    machine.disk.take(write);
                    self.step(at, QuorumEvent::Persisted(number));
                }
            }
            _ => {}
        }
    }

    fn run_for(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        while let Some(entry) = self.queue.first_entry() {
            let at_ms = entry.key().0;
            if at_ms > end {
                break;
            }
            let happening = entry.remove();
            self.now_ms = self.now_ms.max(at_ms);
            self.happen(happening);
        }
        self.now_ms = end;
    }

    fn leader(&self) -> Option<usize> {
        let leads = |at: &usize| self.machines[*at].quorum.as_ref().is_some_and(Quorum::leads);
        let term = |at: &usize| self.machines[*at].quorum.as_ref().map(Quorum::term);
        (0..self.machines.len()).filter(leads).max_by_key(term)
    }

    fn ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }

    fn propose(&mut self, at: usize) -> Ticket {
        let ticket = self.ticket();
        let command = Bytes::from(encode(&ticket.0));
        self.step(at, QuorumEvent::Propose(ticket, command));
        ticket
    }

    fn change(&mut self, at: usize, change: MemberChange) -> Ticket {
        let ticket = self.ticket();
        self.step(at, QuorumEvent::ChangeMembers(ticket, change));
        ticket
    }

    fn confirm(&mut self, at: usize) -> Ticket {
        let ticket = self.ticket();
        self.steps += 1;
        self.asked.insert(ticket, (self.now_ms, self.steps));
        self.step(at, QuorumEvent::Confirm(ticket));
        ticket
    }

    fn cut_off(&mut self, at: usize) {
        for other in (0..self.machines.len()).filter(|other| *other != at) {
            self.cut.extend([(at, other), (other, at)]);
        }
    }

    /// Everything works again: there is a leader, and everybody has what it has.
    fn heal(&mut self) {
        self.network_faults = NetworkFaults::default();
        self.cut.clear();
        for at in 0..self.machines.len() {
            if self.machines[at].quorum.is_none() {
                self.start(at);
            }
        }
        for _ in 0..30 {
            self.run_for(ELECTION_MS_MIN * 2);
            let Some(leader) = self.leader() else { continue };
            let last = self.propose(leader);
            self.run_for(HEARTBEAT_MS * 4);
            if matches!(self.ended.get(&last), Some(ProposalEnd::Applied(_))) {
                self.check_equal();
                return;
            }
        }
        panic!("no leader comes up after everything works again");
    }

    fn check_equal(&mut self) {
        self.run_for(ELECTION_MS_MIN * 4);
        let leader = self.leader().expect("the leader stays");
        let quorum = self.machines[leader].quorum.as_ref().unwrap();
        let members = quorum.members();
        let all: Vec<u64> = self.committed.values().copied().collect();
        for member in members.voters.iter().chain(&members.learners) {
            let machine = &self.machines[member.0 as usize];
            assert_eq!(machine.state, all, "{member} has something else");
        }
        for (ticket, end) in &self.ended {
            match end {
                ProposalEnd::Applied(index) if self.committed.contains_key(index) => {
                    assert_eq!(self.committed[index], ticket.0, "{index:?}");
                }
                ProposalEnd::Applied(_) | ProposalEnd::Unknown => {}
                _ => assert!(!all.contains(&ticket.0), "{ticket:?} was said to be {end:?}"),
            }
        }
    }
}

/// A run with every kind of fault; what it says is a hash of all that happened.
fn storm(seed: u64, machines: usize, voters: usize, changes: bool) -> (u64, usize) {
    let mut world = World::new(seed, machines, voters);
    world.tiny_snapshots = seed.is_multiple_of(2);
    world.ballast = if seed % 16 == 3 { crate::limits::MAP_PIECE_BYTES * 2 } else { 0 };
    world.network_faults = NetworkFaults {
        lost: 5 + world.rng.below(60),
        doubled: 5 + world.rng.below(30),
        late: 10 + world.rng.below(60),
        slow_disk: 20 + world.rng.below(100),
    };
    for _ in 0..120 {
        let pause = world.rng.below(600);
        world.run_for(pause);
        let at = world.rng.below(machines as u64) as usize;
        match world.rng.below(14) {
            0 => world.crash(at),
            1 | 2 if world.machines[at].quorum.is_none() => world.start(at),
            3 => world.cut_off(at),
            4 => {
                let other = world.rng.below(machines as u64) as usize;
                world.cut.insert((at, other));
            }
            5 => world.cut.clear(),
            6 if changes => {
                if let Some(leader) = world.leader() {
                    let change = match world.rng.below(5) {
                        0 | 1 => MemberChange::AddLearner(id(at)),
                        2 | 3 => MemberChange::Promote(id(at)),
                        _ => MemberChange::Remove(id(at)),
                    };
                    world.change(leader, change);
                }
            }
            7 => {
                world.confirm(at);
            }
            _ => {
                for leader in 0..machines {
                    if world.machines[leader].quorum.as_ref().is_some_and(Quorum::leads) {
                        let count = 1 + world.rng.below(6);
                        for _ in 0..count {
                            world.propose(leader);
                        }
                    }
                }
            }
        }
    }
    world.heal();
    let parts: Vec<u64> = world.committed.values().copied().collect();
    (crate::placement::hash(world.steps, &parts), world.committed.len())
}

fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("QUORUM_SEEDS").ok().and_then(|n| n.parse().ok());
    0..count.unwrap_or(20)
}

#[test]
fn one_manager_keeps_its_word() {
    let committed: usize = seeds().map(|seed| storm(seed, 1, 1, false).1).sum();
    assert!(committed > 20, "{committed}");
}

#[test]
fn three_managers_keep_their_word() {
    let committed: usize = seeds().map(|seed| storm(seed, 3, 3, false).1).sum();
    assert!(committed > 100, "{committed}");
}

#[test]
fn five_managers_keep_their_word() {
    let committed: usize = seeds().map(|seed| storm(seed, 5, 5, false).1).sum();
    assert!(committed > 100, "{committed}");
}

#[test]
fn managers_come_and_go_under_faults() {
    let committed: usize = seeds().map(|seed| storm(seed, 6, 3, true).1).sum();
    assert!(committed > 100, "{committed}");
}

#[test]
fn a_seed_decides_everything() {
    assert_eq!(storm(7, 5, 3, true), storm(7, 5, 3, true));
    assert_ne!(storm(7, 5, 3, true), storm(8, 5, 3, true));
}

#[test]
fn a_quorum_of_one_leads_as_soon_as_its_disk_has_answered() {
    let mut world = World::new(1, 1, 1);
    world.run_for(20);
    assert_eq!(world.leader(), Some(0));
    let ticket = world.propose(0);
    let question = world.confirm(0);
    assert!(!world.ended.contains_key(&ticket), "not before it is durable");
    world.run_for(20);
    assert!(matches!(world.ended[&ticket], ProposalEnd::Applied(_)));
    assert!(world.confirmed.contains(&question));
}

#[test]
fn a_minority_commits_nothing_and_confirms_nothing() {
    let mut world = World::new(3, 5, 5);
    world.run_for(5000);
    let old = world.leader().unwrap();
    let friend = (old + 1) % 5;
    world.cut_off(old);
    world.cut_off(friend);
    world.cut.retain(|pair| *pair != (old, friend) && *pair != (friend, old));
    let before = world.committed.len();
    let (command, question) = (world.propose(old), world.confirm(old));
    world.run_for(12_000);
    assert_eq!(world.committed.len(), before);
    let unknown = matches!(world.ended[&command], ProposalEnd::Unknown);
    assert!(unknown && !world.confirmed.contains(&question));
    let new = world.leader().unwrap();
    assert!(new != old && new != friend, "the majority has elected another");
    world.heal();
    assert!(!matches!(world.ended[&command], ProposalEnd::Applied(_)));
    assert!(!world.confirmed.contains(&question));
}

/// Seed 3002611 of the simulator: two servers answered reads alone.
#[test]
fn a_round_of_an_earlier_term_confirms_nothing() {
    let mut world = World::new(5, 3, 3);
    world.run_for(5000);
    let leader = world.leader().unwrap();
    let late = QuorumMessage::Append {
        term: Term(0),
        round: ROUND_FIRST + 1_000_000,
        commit: LogIndex(0),
        entries: Entries { after: Position::default(), items: Vec::new() },
    };
    for follower in (0..3).filter(|at| *at != leader) {
        world.step(follower, QuorumEvent::Peer(id(leader), late.clone()));
    }
    // Their answers come in the leader's term.
    world.run_for(1000);
    world.cut_off(leader);
    let question = world.confirm(leader);
    world.run_for(100);
    assert!(!world.confirmed.contains(&question), "nobody has heard the question");
}

#[test]
fn one_that_was_cut_off_does_not_depose_the_leader_when_it_is_back() {
    let mut world = World::new(4, 3, 3);
    world.run_for(5000);
    let leader = world.leader().unwrap();
    let term = world.machines[leader].quorum.as_ref().unwrap().term();
    world.cut_off((leader + 1) % 3);
    world.run_for(60_000);
    world.cut.clear();
    world.run_for(10_000);
    assert_eq!(world.leader(), Some(leader));
    assert_eq!(world.machines[leader].quorum.as_ref().unwrap().term(), term);
}

#[test]
fn a_manager_is_added_and_another_removed_while_commands_go_on() {
    let mut world = World::new(5, 4, 1);
    world.run_for(500);
    for at in 1..4 {
        let added = world.change(0, MemberChange::AddLearner(id(at)));
        world.propose(0);
        world.run_for(2000);
        assert!(matches!(world.ended[&added], ProposalEnd::Applied(_)));
        let promoted = world.change(0, MemberChange::Promote(id(at)));
        world.run_for(2000);
        assert!(matches!(world.ended[&promoted], ProposalEnd::Applied(_)), "{at}");
    }
    let again = world.change(0, MemberChange::AddLearner(id(2)));
    assert_eq!(world.ended[&again], ProposalEnd::Refused(ChangeRefused::Pointless));
    // The leader itself goes: the others elect one of them.
    world.change(0, MemberChange::Remove(id(0)));
    world.run_for(10_000);
    let leader = world.leader().unwrap();
    assert_ne!(leader, 0);
    let members = world.machines[leader].quorum.as_ref().unwrap().members();
    assert_eq!(members.voters, BTreeSet::from([id(1), id(2), id(3)]));
    assert!(members.next_voters.is_empty());
    world.crash(0);
    world.heal();
}

#[test]
fn the_last_manager_cannot_be_removed_nor_a_learner_promoted_that_has_nothing() {
    let mut world = World::new(6, 2, 1);
    world.run_for(100);
    let last = world.change(0, MemberChange::Remove(id(0)));
    assert_eq!(world.ended[&last], ProposalEnd::Refused(ChangeRefused::Count));
    world.crash(1);
    world.change(0, MemberChange::AddLearner(id(1)));
    world.run_for(2000);
    let promoted = world.change(0, MemberChange::Promote(id(1)));
    assert_eq!(world.ended[&promoted], ProposalEnd::Refused(ChangeRefused::Behind));
}

#[test]
fn one_that_was_away_for_long_gets_a_snapshot_in_pieces() {
    let mut world = World::new(9, 3, 3);
    world.ballast = crate::limits::MAP_PIECE_BYTES * 5 / 2;
    world.run_for(5000);
    let leader = world.leader().unwrap();
    let away = (leader + 1) % 3;
    world.crash(away);
    // More entries than the log keeps.
    for _ in 0..60 {
        for _ in 0..100 {
            world.propose(leader);
        }
        world.run_for(100);
    }
    assert!(world.snapshots >= 2, "{}", world.snapshots);
    let restores = world.restores;
    world.start(away);
    world.run_for(5000);
    assert!(world.restores > restores);
    world.check_equal();
}

#[test]
fn messages_and_writes_are_encoded_as_ever() {
    let at = Position { term: Term(3), index: LogIndex(300) };
    let members = Members {
        voters: BTreeSet::from([ServerId(1), ServerId(2)]),
        next_voters: BTreeSet::from([ServerId(2)]),
        learners: BTreeSet::from([ServerId(9)]),
    };
    let items = vec![
        (Term(3), Item::Term),
        (Term(3), Item::Members(members.clone())),
        (Term(3), Item::Command(Bytes::from_static(b"do"))),
    ];
    let entries = Entries { after: at, items };
    let snapshot = Snapshot { at, members: members.clone(), state: Bytes::from_static(b"all") };
    let hard = HardState { term: Term(4), voted_for: Some(ServerId(2)) };
    let write = LogWrite { hard, snapshot: Some(snapshot), entries: Some(entries.clone()) };
    let messages = [
        QuorumMessage::PreVote { round: 5, last: at },
        QuorumMessage::PreVoteGranted { round: 5 },
        QuorumMessage::Vote { term: Term(4), last: at },
        QuorumMessage::Voted { term: Term(4), granted: true },
        QuorumMessage::Append { term: Term(4), round: 6, commit: LogIndex(299), entries },
        QuorumMessage::Appended { term: Term(4), round: 6, last: at },
        QuorumMessage::SnapshotPiece {
            term: Term(4),
            at,
            members,
            offset: 1,
            total: 3,
            piece: Bytes::from_static(b"ll"),
        },
        QuorumMessage::SnapshotReceived { at, offset: 3 },
    ];
    let mut hex: Vec<String> = messages.iter().map(|message| to_hex(&encode(message))).collect();
    hex.push(to_hex(&encode(&write)));
    assert_eq!(hex.join("\n"), include_str!("golden.hex").trim_end());
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
