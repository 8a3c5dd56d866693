//! Managers of several releases, of which not all know every command.

use std::collections::BTreeSet;
use std::sync::Arc;

use larder_env::SimDisk;
use larder_net::limits::{PROTOCOL_MAX, PROTOCOL_MIN};
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::quorum::{Item, QuorumMessage};
use larder_protocol::manager::state::{Command, Outcome, ServerRole, ServerState};
use larder_types::codec::decode;
use larder_types::{BootId, BucketName, ServerId};

use super::member::{founded, members};
use super::support::new_server;
use crate::limits::{
    BALANCE_HELD_UP_MS, PROTOCOL_BALANCE, PROTOCOL_CLUSTER_VERSION, PROTOCOL_FORGETS,
    VERSION_HELD_BACK_MS,
};
use crate::manager::quorum::disk::QuorumDisk;
use crate::manager::quorum::member::{Member, MemberEffect};
use crate::manager::quorum::releases::Releases;
use crate::wire::ManagerReply;

const ME: ServerId = ServerId(0);
/// A server that is no manager, and has not begun.
const DATA: ServerId = ServerId(3);

/// Three managers, of which the first leads, and a net that loses nothing.
struct Trio {
    members: Vec<Member<u32>>,
    /// The newest version of the protocol that each speaks.
    speaks: [u8; 3],
    now_ms: u64,
    answers: Vec<ManagerReply>,
}

/// Returns true if a manager takes a message, of which an older one knows less.
fn takes(speaks: u8, said: &QuorumMessage) -> bool {
    let QuorumMessage::Append { entries, .. } = said else { return true };
    speaks >= PROTOCOL_FORGETS
        || entries.items.iter().all(|(_, item)| match item {
            Item::Command(command) => {
                !matches!(decode::<Command>("a command", command), Ok(Command::ForgetTokens(_)))
            }
            Item::Term | Item::Members(_) => true,
        })
}

fn started(manager: u32) -> ServerMessage {
    ServerMessage::Started(BootId(9), vec![format!("m{manager}:1")], Vec::new())
}

impl Trio {
    fn new(speaks: [u8; 3]) -> Self {
        let disks: [Arc<SimDisk>; 3] = [1, 2, 3].map(|seed| SimDisk::new(seed, 1 << 24));
        let mut all = vec![founded(&disks[0])];
        for id in [1, 2] {
            let (id, disk) = (ServerId(id), disks[id as usize].clone());
            let log = QuorumDisk::make(disk, larder_types::ClusterId(1), id).unwrap();
            all.push(Member::restore(id, log, u64::from(id.0), 0).unwrap());
        }
        let mut trio = Self { members: all, speaks, now_ms: 10_000, answers: Vec::new() };
        trio.propose(&Command::AddToken([1; 32], u64::MAX));
        let joins =
            [("m1", ServerRole::Manager), ("m2", ServerRole::Manager), ("d0", ServerRole::Data)];
        for (name, role) in joins {
            trio.propose(&Command::AddServer(new_server(name, role), Some(([1; 32], 0))));
        }
        for id in [1, 2] {
            trio.members[0].receive(ServerId(id), started(id), None).unwrap();
        }
        let all_vote =
            |trio: &Self| trio.members[0].quorum_status().members == members(&[0, 1, 2], &[]);
        trio.run_until("three vote", all_vote);
        trio
    }

    /// Ten milliseconds.
    fn turn(&mut self) {
        self.now_ms += 10;
        let mut sent = Vec::new();
        for (id, member) in self.members.iter_mut().enumerate() {
            member.set_now(self.now_ms);
            member.tick().unwrap();
            member.write().unwrap();
            for effect in member.effects() {
                match effect {
                    MemberEffect::Send(to, said) => sent.push((ServerId(id as u32), to, said)),
                    MemberEffect::Answer(_, reply) => self.answers.push(reply),
                    _ => {}
                }
            }
        }
        for (from, to, said) in sent {
            let [ours, theirs] = [to, from].map(|it| self.speaks[it.0 as usize]);
            if takes(ours, &said) {
                let member = &mut self.members[to.0 as usize];
                member.note_version(from, ours.min(theirs));
                member.peer(from, said).unwrap();
            }
        }
        for id in [1, 2] {
            self.members[0]
                .receive(ServerId(id), ServerMessage::Heartbeat(BootId(9)), None)
                .unwrap();
        }
    }

    fn run_until(&mut self, what: &str, is: impl Fn(&Self) -> bool) {
        let deadline_ms = self.now_ms + 60_000;
        while !is(self) {
            assert!(self.now_ms < deadline_ms, "{what}, in a minute");
            self.turn();
        }
    }

    /// The leader's answer, which it gives within a minute.
    fn propose(&mut self, command: &Command) -> ManagerReply {
        self.members[0].propose(command, 7).unwrap();
        self.run_until(&format!("{command:?} is answered"), |trio| !trio.answers.is_empty());
        self.answers.pop().unwrap()
    }

    /// From now on a manager speaks this version, and the others have heard it.
    fn send_version(&mut self, id: usize, version: u8) {
        self.speaks[id] = version;
        (0..100).for_each(|_| self.turn());
    }
}

#[test]
fn a_command_that_a_voter_may_not_know_is_refused_and_holds_up_no_other() {
    let (older, newer) = (PROTOCOL_FORGETS - 1, PROTOCOL_MAX);
    let mut trio = Trio::new([newer, older, older]);
    let forget = Command::ForgetTokens(0);
    trio.members[0].propose(&forget, 7).unwrap();
    let bucket = |name| Command::CreateBucket(BucketName::new(name).unwrap(), None, 0);
    trio.members[0].propose(&bucket("behind"), 8).unwrap();
    trio.run_until("the other is applied", |trio| trio.members[2].map().buckets.len() == 1);
    assert_eq!(trio.answers[0], ManagerReply::OlderManager(ServerId(1)));
    trio.answers.clear();
    trio.send_version(1, newer);
    assert_eq!(trio.propose(&forget), ManagerReply::OlderManager(ServerId(2)));
    trio.send_version(2, newer);
    assert_eq!(trio.propose(&forget), ManagerReply::Applied(Ok(Outcome::Already)));
    assert!(matches!(trio.propose(&bucket("last")), ManagerReply::Applied(Ok(_))));
}

#[test]
fn what_the_policy_wants_waits_until_every_voter_knows_it() {
    // No release that is spoken with knows so little.
    let less = PROTOCOL_MIN - 1;
    let mut trio = Trio::new([PROTOCOL_MAX; 3]);
    let begins = |trio: &mut Trio| {
        let started = ServerMessage::Started(BootId(1), vec!["d0:1".to_owned()], Vec::new());
        trio.members[0].receive(DATA, started, None).unwrap();
        (0..100).for_each(|_| trio.turn());
        trio.members[0].map().servers[&DATA].state
    };
    trio.send_version(2, less);
    assert_eq!(begins(&mut trio), ServerState::Joining);
    trio.send_version(2, PROTOCOL_MIN);
    assert_eq!(begins(&mut trio), ServerState::Up, "it is said again, and done");
}

#[test]
fn the_clusters_version_is_raised_once_all_servers_speak_it_and_every_voter_knows_of_it() {
    let mut trio = Trio::new([PROTOCOL_MAX; 3]);
    let data = ServerMessage::Started(BootId(1), vec!["d0:1".to_owned()], Vec::new());
    trio.members[0].receive(DATA, data, None).unwrap();
    trio.members[0].receive(ME, started(0), None).unwrap();
    let raised = |trio: &mut Trio, data: u8, older: u8| {
        trio.send_version(2, older);
        for (server, boot, version) in [(1, 9, PROTOCOL_MAX), (2, 9, older), (3, 1, data)] {
            trio.members[0].note_server_version(ServerId(server), BootId(boot), version);
        }
        for _ in 0..1000 {
            trio.members[0].receive(DATA, ServerMessage::Heartbeat(BootId(1)), None).unwrap();
            trio.members[0].receive(ME, ServerMessage::Heartbeat(BootId(9)), None).unwrap();
            trio.turn();
        }
        trio.members.iter().map(|member| member.map().cluster_version).collect::<Vec<_>>()
    };
    let (newest, before) = (PROTOCOL_MAX, PROTOCOL_CLUSTER_VERSION - 1);
    assert_eq!(raised(&mut trio, before, before), [0; 3], "a voter does not know of it");
    assert_eq!(raised(&mut trio, before, newest), [0; 3], "a server does not: all may go back");
    assert_eq!(raised(&mut trio, newest, before), [0; 3]);
    assert_eq!(raised(&mut trio, newest, newest), [newest; 3]);
}

#[test]
fn a_server_that_holds_back_the_clusters_version_is_reported() {
    let mut releases = Releases::default();
    let (one, other) = (Some(ServerId(1)), Some(ServerId(2)));
    for (server, now_ms, is_told) in [
        (one, 10, Some(false)),
        (other, VERSION_HELD_BACK_MS + 9, Some(false)),
        (other, 2 * VERSION_HELD_BACK_MS + 8, Some(false)),
        (other, 2 * VERSION_HELD_BACK_MS + 9, Some(true)),
        (None, 2 * VERSION_HELD_BACK_MS + 10, None),
    ] {
        releases.holds_back(server, now_ms);
        assert_eq!(releases.keeps_version.map(|it| it.2), is_told, "{now_ms}");
    }
}

#[test]
fn a_voter_that_has_not_spoken_counts_as_old_and_a_learner_does_not_count() {
    let forget = Command::ForgetTokens(0);
    let mut releases = Releases::default();
    assert_eq!(releases.held_up_by(ME, &members(&[0], &[1]), &forget), None);
    let both = members(&[0, 1], &[]);
    assert_eq!(releases.held_up_by(ME, &both, &forget), Some(ServerId(1)));
    let others = Command::SetDraining(ME, true);
    assert_eq!(releases.held_up_by(ME, &both, &others), None);
    releases.note_version(ServerId(1), PROTOCOL_FORGETS);
    assert_eq!(releases.held_up_by(ME, &both, &forget), None);
    let mut changing = both.clone();
    changing.next_voters = BTreeSet::from([ServerId(0), ServerId(2)]);
    assert_eq!(releases.held_up_by(ME, &changing, &forget), Some(ServerId(2)));
    releases.note_version(ServerId(1), PROTOCOL_FORGETS - 1);
    assert_eq!(
        releases.held_up_by(ME, &both, &forget),
        Some(ServerId(1)),
        "an older build took its place"
    );
}

#[test]
fn volumes_move_once_all_voters_know_such_moves_and_one_that_keeps_them_is_told_of() {
    let (alone, both) = (members(&[0], &[]), members(&[0, 1], &[]));
    let mut releases = Releases::default();
    assert!(releases.may_balance(ME, &alone, (0, true)));
    let reported = |releases: &Releases| releases.keeps_balance.is_some_and(|it| it.2);
    for (now_ms, leads, is_told) in [
        (10, true, false),
        (BALANCE_HELD_UP_MS, true, false),
        (BALANCE_HELD_UP_MS + 1, false, false),
        (BALANCE_HELD_UP_MS + 2, true, false),
        (2 * BALANCE_HELD_UP_MS + 2, true, true),
    ] {
        assert!(!releases.may_balance(ME, &both, (now_ms, leads)));
        assert_eq!(reported(&releases), is_told, "{now_ms}");
    }
    releases.note_version(ServerId(1), PROTOCOL_BALANCE - 1);
    assert!(!releases.may_balance(ME, &both, (3 * BALANCE_HELD_UP_MS, true)));
    releases.note_version(ServerId(1), PROTOCOL_BALANCE);
    assert!(releases.may_balance(ME, &both, (3 * BALANCE_HELD_UP_MS, true)));
    assert_eq!(releases.keeps_balance, None);
}
