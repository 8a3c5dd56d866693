//! A manager among managers whose words are not good, and a map under commands that no policy would want.

use std::collections::BTreeSet;

use bytes::Bytes;
use larder_protocol::manager::policy::{Policy, PolicyEffect, PolicyEvent, ServerMessage};
use larder_protocol::manager::quorum::{
    Entries, Item, LogIndex, Members, Position, Quorum, QuorumEffect, QuorumEvent, QuorumMessage,
    Stored, Term, Ticket,
};
use larder_protocol::manager::state::{
    ClusterId, Command, GatewayRecord, Keep, KeyPair, NewServer, ServerRole, Settings, TokenId,
    Topology,
};
use larder_protocol::placement::{FailureDomains, MachineId, RackId, Weight};
use larder_types::codec::{decode, encode};
use larder_types::{
    BootId, BucketId, BucketName, DiskId, Epoch, Home, HomeScope, HomeState, HomeTerm, LvId,
    MapVersion, PgId, PvId, RegionId, ServerId, SessionId, Sharing, View, WritePolicy,
};

use super::draw::Draw;
use super::{Tally, repeat};

/// A server's report of itself at its start: its run, its addresses, and the views that it has groups in.
type Started = (BootId, Vec<String>, Vec<(PgId, Option<View>)>);

const ME: ServerId = ServerId(1);

/// One manager of three, and the disk that it writes.
struct Victim {
    quorum: Quorum,
    stored: Stored,
    now_ms: u64,
    /// Rounds in which it asked for votes, and in which it said something as a leader.
    rounds: Vec<u64>,
}

impl Victim {
    fn new(seed: u64) -> Self {
        let (mut out, ids) = (Vec::new(), [ME, ServerId(2), ServerId(3)]);
        let quorum = Quorum::found(ME, &ids, seed, 0, &mut out);
        let mut victim = Self { quorum, stored: Stored::default(), now_ms: 0, rounds: vec![1] };
        victim.perform(out);
        victim
    }

    fn step(&mut self, event: QuorumEvent) {
        let mut out = Vec::new();
        self.quorum.step(self.now_ms, event, &mut out);
        self.perform(out);
    }

    fn perform(&mut self, effects: Vec<QuorumEffect>) {
        for effect in effects {
            match effect {
                QuorumEffect::Persist(number, write) => {
                    self.stored.take(write);
                    self.step(QuorumEvent::Persisted(number));
                }
                QuorumEffect::TakeSnapshot => {
                    let state = Bytes::from_static(b"state");
                    self.step(QuorumEvent::Snapshot(self.quorum.applied(), state));
                }
                QuorumEffect::Send(
                    _,
                    QuorumMessage::PreVote { round, .. } | QuorumMessage::Append { round, .. },
                ) => self.rounds.push(round),
                _ => {}
            }
        }
    }
}

impl Draw {
    fn term(&mut self, of: &Victim) -> Term {
        let term = of.quorum.term().0 + u64::from(self.one_in(8));
        Term(self.num(term))
    }

    fn position(&mut self, of: &Victim) -> Position {
        let last = of.quorum.last();
        let back = self.below(3);
        let index = if self.one_in(2) { last.index.0 } else { last.index.0.saturating_sub(back) };
        let term = if self.one_in(8) { of.quorum.term() } else { last.term };
        Position { term: Term(self.num(term.0)), index: LogIndex(self.num(index)) }
    }

    fn members(&mut self) -> Members {
        let mut ids = |count: u64| -> BTreeSet<ServerId> {
            let count = self.num(count).min(2000);
            (0..count).map(|id| ServerId(id as u32 + 1)).collect()
        };
        Members { voters: ids(3), next_voters: ids(0), learners: ids(0) }
    }

    fn said(&mut self, of: &Victim) -> QuorumMessage {
        let (term, at) = (self.term(of), self.position(of));
        let round = of.rounds[self.below(of.rounds.len() as u64) as usize];
        let round = self.num(round);
        match self.below(12) {
            0 => QuorumMessage::PreVote { round, last: at },
            1 => QuorumMessage::PreVoteGranted { round },
            2 => QuorumMessage::Vote { term, last: at },
            3 | 4 => QuorumMessage::Voted { term, granted: self.one_in(2) },
            5..=7 => {
                let mut items = Vec::new();
                let mut of_term = at.term.0;
                for _ in 0..self.below(4) {
                    let grows = u64::from(self.one_in(3) && of_term < term.0);
                    of_term = of_term.wrapping_add(grows);
                    let item = match self.below(6) {
                        0 => Item::Members(self.members()),
                        1 => Item::Term,
                        // A leader's first entry of a term says so.
                        _ if grows == 1 => Item::Term,
                        _ => Item::Command(Bytes::from_static(b"command")),
                    };
                    items.push((Term(self.num(of_term)), item));
                }
                let entries = Entries { after: at, items };
                let commit = LogIndex(self.num(at.index.0));
                QuorumMessage::Append { term, round, commit, entries }
            }
            8 | 9 => QuorumMessage::Appended { term, round, last: at },
            10 => {
                let (offset, total) = (self.num(0), self.num(5));
                let (members, piece) = (self.members(), Bytes::from_static(b"state"));
                QuorumMessage::SnapshotPiece { term, at, members, offset, total, piece }
            }
            _ => QuorumMessage::SnapshotReceived { at, offset: self.num(3) },
        }
    }
}

fn quorum_case(seed: u64, tally: &mut Tally) {
    let mut draw = Draw::new(seed);
    let mut victim = Victim::new(seed);
    for ticket in 0..20 + draw.below(80) {
        match draw.below(8) {
            0 => {
                victim.now_ms += draw.below(3000);
                victim.step(QuorumEvent::Tick);
            }
            1 => {
                let command = Bytes::from_static(b"command");
                victim.step(QuorumEvent::Propose(Ticket(ticket), command));
            }
            _ => {
                let from = ServerId(2 + draw.below(3) as u32);
                let said = draw.said(&victim);
                if victim.quorum.admits(&said).is_err() {
                    tally.refused += 1;
                } else {
                    tally.stepped += 1;
                    victim.step(QuorumEvent::Peer(from, said));
                }
            }
        }
    }
    // It can begin again with what it has written.
    let mut out = Vec::new();
    Quorum::restore(ME, victim.stored, seed, victim.now_ms, &mut out);
}

/// `noraft` asserts it, at the end of a change of voters.
#[test]
fn managers_that_vote_and_learn_at_once_are_refused() {
    let victim = Victim::new(7);
    let ids = |ids: &[u32]| ids.iter().copied().map(ServerId).collect::<BTreeSet<_>>();
    let said = |next: &[u32], learners: &[u32]| {
        let voters = ids(&[1, 2, 3]);
        let members = Members { voters, next_voters: ids(next), learners: ids(learners) };
        let (term, after) = (victim.quorum.term(), victim.quorum.last());
        let entries = Entries { after, items: vec![(after.term, Item::Members(members))] };
        let term = Term(term.0 + 1);
        let said = QuorumMessage::Append { term, round: 1, commit: LogIndex(0), entries };
        victim.quorum.admits(&said)
    };
    assert!(said(&[1, 2], &[4]).is_ok());
    assert!(said(&[], &[3]).is_err() && said(&[1, 4], &[4]).is_err());
}

#[test]
fn hostile_managers_end_no_quorum() {
    repeat(4000, quorum_case);
}

const SETTINGS: Settings =
    Settings { pg_count: 4, members: 3, min_members: 1, copies: 3, min_copies: 1, lv_blocks: 100 };

impl Draw {
    fn small(&mut self) -> u32 {
        let usual = self.below(4);
        self.num(usual) as u32
    }

    fn server(&mut self) -> ServerId {
        ServerId(self.small())
    }

    fn disk(&mut self) -> DiskId {
        DiskId(self.small())
    }

    fn pg(&mut self) -> PgId {
        PgId(self.small())
    }

    fn lv(&mut self) -> LvId {
        LvId(self.small())
    }

    fn view(&mut self, map: &Topology, pg: PgId) -> View {
        let view = map.pg(pg).map_or(0, |record| record.view.0);
        View(self.num(view))
    }

    fn servers(&mut self) -> Vec<ServerId> {
        let count = self.num(2).min(2000);
        (0..count).map(|_| self.server()).collect()
    }

    fn bucket(&mut self) -> BucketName {
        BucketName::new(["abc", "abd"][self.below(2) as usize]).expect("a name")
    }

    fn gateway(&mut self) -> GatewayRecord {
        GatewayRecord { server: self.server(), boot: BootId(self.num(1)) }
    }

    fn home(&mut self) -> Home {
        let of = RegionId(self.small() as u16);
        let states = [HomeState::Nowhere, HomeState::Elsewhere, HomeState::Here, HomeState::Given];
        let state = states[self.below(4) as usize];
        let term = HomeTerm { count: self.num(1), of };
        Home { term, scope: HomeScope::Conditions, state }
    }

    fn new_server(&mut self, name: &str) -> NewServer {
        NewServer {
            name: name.to_owned(),
            roles: BTreeSet::from([ServerRole::Meta, ServerRole::Data, ServerRole::Proxy]),
            addresses: vec!["10.0.0.1:7000".to_owned(); self.num(1).min(3000) as usize],
            domains: FailureDomains { region: RegionId(1), rack: RackId(2), machine: MachineId(3) },
            weight: Weight(self.num(100) as u32),
        }
    }

    fn started(&mut self, map: &Topology) -> Started {
        let has = (0..4).map(|_| {
            let pg = self.pg();
            (pg, self.one_in(2).then(|| self.view(map, pg)))
        });
        let has = has.collect();
        (BootId(self.num(1)), vec!["10.0.0.1:7000".to_owned()], has)
    }

    fn command(&mut self, map: &Topology) -> Command {
        let (pg, lv, server, disk) = (self.pg(), self.lv(), self.server(), self.disk());
        let view = self.view(map, pg);
        let replica = self.small() as u8;
        match self.below(26) {
            0 => Command::Found(ClusterId(1), SETTINGS),
            1 => Command::AddServer(self.new_server("x"), Some(([7; 32], self.num(10)))),
            2 => {
                let (boot, addresses, has) = self.started(map);
                Command::ServerStarted(server, boot, addresses, has)
            }
            3 => Command::ServerDown(server, BootId(self.num(1))),
            4 => Command::SetWeight(server, Weight(self.num(1) as u32)),
            5 => Command::SetDraining(server, self.one_in(2)),
            6 => Command::RemoveServer(server),
            7 => Command::AddDisk(server, Weight(self.num(1) as u32), self.num(3) as u32),
            8 => Command::SetDiskDraining(server, disk, self.one_in(2)),
            9 => Command::RemoveDisk(server, disk),
            10 => Command::Retarget(vec![(pg, self.servers())]),
            11 => Command::AddLearner(pg, server),
            12 => Command::DropLearner(pg, server),
            13 => Command::BeginView(pg, view, self.servers()),
            14 => Command::ViewActivated(pg, view),
            15 => Command::CreateLv(pg, (0..3).map(|_| (self.server(), self.disk())).collect()),
            16 => Command::LvCreated(lv),
            17 => Command::AddReplica(lv, server, disk),
            18 => Command::ReplicaCurrent(lv, replica),
            19 => Command::DropVacated(lv, replica, view),
            20 => Command::OpenSession(SessionId(self.num(1)), server, BootId(self.num(1))),
            21 => Command::CreateBucket(self.bucket(), None, self.num(1)),
            22 => Command::EndDeletion(self.bucket(), Epoch(self.num(1)), self.one_in(2)),
            23 => Command::AddToken([7; 32], self.num(1000)),
            24 => match self.below(16) {
                0 => Command::RevokeToken(TokenId(self.small())),
                1 => Command::ForgetTokens(self.num(1000)),
                2 => {
                    let id = BucketId(self.num(4));
                    Command::EndDeletionOf(id, self.bucket(), Epoch(self.num(2)), self.one_in(2))
                }
                3 => Command::SetRegions(self.bucket(), self.small() as u8),
                4 => Command::CloseBucket(self.bucket()),
                5 => Command::SetHome(self.gateway(), self.bucket(), None, self.home()),
                6 => Command::AdoptBucket(self.gateway(), self.bucket(), 5, self.home()),
                7 => Command::SetLocal(self.bucket(), self.one_in(2), 5),
                8 => {
                    let (id, epoch) = (BucketId(self.num(4)), Epoch(self.num(3)));
                    let next = if self.odd() { Sharing::Renewing } else { Sharing::All };
                    Command::ShareBucket(self.gateway(), id, self.bucket(), epoch, next)
                }
                9 => Command::PauseBalance(self.odd().then_some(5)),
                10 => Command::SetCors(self.bucket(), None),
                11 => Command::RaiseClusterVersion(self.small() as u8),
                12 => {
                    let keep = if self.odd() { Keep::Current } else { Keep::Nothing };
                    let access_key = format!("key-{}", self.small());
                    let keys = KeyPair { access_key, secret_key: "12345678".to_owned() };
                    Command::RotateRoot(self.small(), keys, keep)
                }
                13 => Command::RetireRoot(self.small()),
                14 => Command::BeginTimeline(self.num(1)),
                _ => Command::SetWritePolicy(self.bucket(), WritePolicy::Majority),
            },
            _ => Command::MemberLacks(pg, view, server),
        }
    }

    fn server_message(&mut self, map: &Topology) -> ServerMessage {
        let (pg, lv, boot) = (self.pg(), self.lv(), BootId(self.num(1)));
        let (view, replica) = (self.view(map, pg), self.small() as u8);
        match self.below(13) {
            0 => {
                let (boot, addresses, has) = self.started(map);
                ServerMessage::Started(boot, addresses, has)
            }
            1 if self.odd() => {
                let (boot, addresses, has) = self.started(map);
                let before = BootId(self.num(1));
                ServerMessage::StartedAfter { before, boot, addresses, has }
            }
            1 => ServerMessage::Heartbeat(boot),
            2 => ServerMessage::Renew { boot, sent_ms: self.num(1), led: vec![(pg, view); 3] },
            3 => ServerMessage::Told(boot, pg, view),
            4 => ServerMessage::Active(boot, pg, view),
            5 => ServerMessage::CaughtUp(pg, view, self.server()),
            6 => ServerMessage::NeedLv(pg, view, self.num(0) as u32),
            7 => ServerMessage::Created(lv, replica, self.disk(), PvId(self.small())),
            8 => ServerMessage::Rebuilt(lv, replica, self.disk()),
            9 => ServerMessage::Vacated(lv, replica, view, MapVersion(self.num(1))),
            10 => ServerMessage::SessionBegun(boot, SessionId(self.num(1))),
            11 => ServerMessage::Unheard(boot, pg, view, self.servers()),
            _ => match self.one_in(2) {
                true => ServerMessage::NoRoom(boot, self.disk()),
                false => ServerMessage::Lacks(boot, pg, view),
            },
        }
    }
}

/// A map, and the policy of the manager that leads.
struct Leading {
    map: Topology,
    policy: Policy,
    now_ms: u64,
}

impl Leading {
    fn apply(&mut self, command: &Command) {
        let index = LogIndex(self.map.applied.0 + 1);
        let decoded = decode("command", &encode(command)).expect("it was encoded here");
        drop(self.map.apply(index, decoded));
    }

    /// Agrees on what the policy wants agreed on, and on what comes of that too.
    fn consider(&mut self, event: PolicyEvent) {
        let mut events = vec![event];
        for _ in 0..50 {
            let Some(event) = events.pop() else { return };
            let mut effects = Vec::new();
            self.policy.step(self.now_ms, event, &self.map, &mut effects);
            for effect in effects {
                match effect {
                    PolicyEffect::Propose(ticket, command) => {
                        let index = LogIndex(self.map.applied.0 + 1);
                        let applied = self.map.apply(index, command);
                        events.push(PolicyEvent::Decided(ticket, Some(applied)));
                    }
                    PolicyEffect::Confirm(ticket) => events.push(PolicyEvent::Confirmed(ticket)),
                    PolicyEffect::Tell(..) => {}
                }
            }
        }
    }
}

fn map_case(seed: u64, tally: &mut Tally) {
    let mut draw = Draw::new(seed);
    let policy = Policy::default();
    let mut leading = Leading { map: Topology::default(), policy, now_ms: 1000 };
    leading.apply(&Command::Found(ClusterId(9), SETTINGS));
    leading.apply(&Command::AddToken([7; 32], 1 << 40));
    for id in 0..3 {
        let token = (id > 0).then_some(([7; 32], 10));
        leading.apply(&Command::AddServer(draw.new_server(&format!("s{id}")), token));
        let has = (0..4).map(|pg| (PgId(pg), Some(View(0)))).collect();
        leading.apply(&Command::ServerStarted(ServerId(id), BootId(1), Vec::new(), has));
        leading.apply(&Command::AddDisk(ServerId(id), Weight(100), 3));
    }
    leading.consider(PolicyEvent::Elected { shortened_since_ms: None });
    for _ in 0..20 + draw.below(60) {
        tally.stepped += 1;
        match draw.below(4) {
            0 | 1 => {
                let command = draw.command(&leading.map);
                leading.apply(&command);
            }
            2 => {
                let message = draw.server_message(&leading.map);
                let from = draw.server();
                leading.consider(PolicyEvent::From(from, message));
            }
            _ => {
                leading.now_ms += draw.below(5000);
                leading.consider(PolicyEvent::Tick);
            }
        }
        assert_eq!(leading.map.contradiction(), None);
    }
}

#[test]
fn hostile_commands_and_servers_end_no_manager() {
    repeat(2000, map_case);
}
