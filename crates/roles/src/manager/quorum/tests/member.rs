//! A manager without connections, and who is to be one.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use larder_env::SimDisk;
use larder_net::limits::PROTOCOL_MAX;
use larder_protocol::limits::{
    ELECTION_MS_MIN, MANAGERS_MAX, QUORUM_LOG_ENTRIES_MAX, QUORUM_TERM_MAX, SERVER_BEAT_MS,
    SILENT_MS,
};
use larder_protocol::manager::policy::{ManagerMessage, ServerMessage};
use larder_protocol::manager::quorum::{Entries, Item, MemberChange, Members, QuorumMessage, Term};
use larder_protocol::manager::state::{
    Applied, ClusterId, Command, MapVersion, Outcome, Refusal, ServerRole, ServerState, Topology,
};
use larder_types::{BootId, ServerId};

use super::support::{SETTINGS, new_server};
use crate::limits::{MANAGER_TICK_MS, ROUTE_SILENT_MS};
use crate::manager::quorum::disk::QuorumDisk;
use crate::manager::quorum::member::{Member, MemberEffect};
use crate::manager::quorum::membership::next_change;
use crate::wire::{Beat, ManagerReply};

const ME: ServerId = ServerId(0);

fn log(disk: &Arc<SimDisk>) -> QuorumDisk {
    QuorumDisk::make(disk.clone(), larder_types::ClusterId(1), ME).unwrap()
}

/// Lets time pass until the member leads.
fn elect(member: &mut Member<u32>, from_ms: u64) {
    for turn in 0..3 {
        member.set_now(from_ms + turn * 2 * ELECTION_MS_MIN);
        member.tick().unwrap();
        member.write().unwrap();
    }
    assert!(member.leads());
}

fn agree(member: &mut Member<u32>, command: &Command) -> Applied {
    member.propose(command, 5).unwrap();
    assert_eq!(member.effects().count(), 0, "nothing leaves before it is written");
    member.write().unwrap();
    let answers: Vec<_> = member.effects().collect();
    match &answers[..] {
        [MemberEffect::Answer(5, ManagerReply::Applied(applied))] => applied.clone(),
        other => panic!("{other:?}"),
    }
}

pub(super) fn founded(disk: &Arc<SimDisk>) -> Member<u32> {
    let mut member = Member::found(ME, log(disk), 1, 0).unwrap();
    elect(&mut member, 0);
    assert_eq!(agree(&mut member, &Command::Found(ClusterId(1), SETTINGS)), Ok(Outcome::Done));
    let first = Command::AddServer(new_server("m0", ServerRole::Manager), None);
    assert_eq!(agree(&mut member, &first), Ok(Outcome::Server(ME)));
    member
}

#[test]
fn a_manager_alone_agrees_and_keeps_the_map_over_a_restart() {
    let disk = SimDisk::new(1, 1 << 24);
    let mut member = founded(&disk);
    assert_eq!(agree(&mut member, &Command::Found(ClusterId(1), SETTINGS)), Err(Refusal::Founded));
    let map = member.map().clone();
    drop(member);
    disk.crash();
    let disk = disk.reopen();
    let mut member = Member::restore(ME, log(&disk), 2, 0).unwrap();
    assert_eq!(member.map().version, MapVersion(0), "not known to be agreed on yet");
    elect(&mut member, 0);
    assert_eq!(*member.map(), map);
}

#[test]
fn a_long_log_becomes_a_snapshot_that_a_restart_begins_with() {
    let disk = SimDisk::new(1, 1 << 26);
    let mut member = founded(&disk);
    for turn in 0..QUORUM_LOG_ENTRIES_MAX {
        let draining = Command::SetDraining(ME, turn % 2 == 0);
        assert_eq!(agree(&mut member, &draining), Ok(Outcome::Done));
    }
    let map = member.map().clone();
    let stored = log(&disk).stored().clone();
    assert!(stored.snapshot.is_some() && stored.items.len() < 100);
    drop(member);
    let mut member = Member::restore(ME, log(&disk), 2, 0).unwrap();
    assert!(member.map().version > MapVersion(1000));
    elect(&mut member, 0);
    assert_eq!(*member.map(), map);
}

#[test]
fn what_is_proposed_together_shares_a_write() {
    let disk = SimDisk::new(1, 1 << 24);
    let mut member = founded(&disk);
    let before = disk.counts().syncs;
    for requester in 0..50 {
        member.propose(&Command::SetDraining(ME, requester % 2 == 0), requester).unwrap();
    }
    member.write().unwrap();
    let answered: Vec<u32> = member
        .effects()
        .filter_map(|effect| match effect {
            MemberEffect::Answer(requester, ManagerReply::Applied(Ok(_))) => Some(requester),
            _ => None,
        })
        .collect();
    assert_eq!(answered, (0..50).collect::<Vec<_>>());
    assert_eq!(disk.counts().syncs - before, 2, "the first alone, the others together");
}

#[test]
fn a_server_that_starts_is_named_and_one_that_falls_silent_is_down() {
    let disk = SimDisk::new(1, 1 << 24);
    let mut member = founded(&disk);
    let started = ServerMessage::Started(BootId(9), vec!["m0:1".to_owned()], Vec::new());
    member.receive(ME, started, None).unwrap();
    member.write().unwrap();
    let state =
        |member: &Member<u32>| (member.map().servers[&ME].state, member.map().servers[&ME].boot);
    assert_eq!(state(&member), (ServerState::Up, BootId(9)));
    // The first look comes late: the manager stood still, and what servers said meanwhile is on its way.
    for now_ms in (100_000..100_000 + 2 * SILENT_MS).step_by(MANAGER_TICK_MS as usize) {
        member.set_now(now_ms);
        member.tick().unwrap();
        member.write().unwrap();
        assert!(now_ms >= 100_000 + SILENT_MS || state(&member).0 == ServerState::Up);
    }
    assert_eq!(state(&member), (ServerState::Down, BootId(9)));
}

#[test]
fn a_server_reachable_only_by_others_gets_orders_through_them() {
    let disk = SimDisk::new(1, 1 << 24);
    let mut member = founded(&disk);
    let unknown = ServerMessage::Heartbeat(BootId(9));
    member.effects();
    let began_ms = 1_000_000;
    let mut reported = |by, after_ms| {
        member.set_now(began_ms + after_ms);
        member.receive(ME, unknown.clone(), by).unwrap();
        member.effects().collect::<Vec<_>>()
    };
    let asked = || MemberEffect::Tell(ME, ManagerMessage::WhoAreYou);
    assert_eq!(reported(None, 0), [asked()]);
    assert_eq!(reported(Some(ServerId(1)), 0), [asked()], "it was heard just now");
    let back = MemberEffect::HandBack(ServerId(1), ME, ManagerMessage::WhoAreYou);
    assert_eq!(reported(Some(ServerId(1)), ROUTE_SILENT_MS), [back, asked()]);
    assert_eq!(reported(None, ROUTE_SILENT_MS), [asked()]);
}

#[test]
fn one_that_does_not_lead_hands_nothing_on_that_was_handed_on() {
    let disk = SimDisk::new(1, 1 << 24);
    let mut member: Member<u32> = Member::restore(ME, log(&disk), 1, 0).unwrap();
    let beat = ServerMessage::Heartbeat(BootId(1));
    member.receive(ServerId(4), beat.clone(), None).unwrap();
    member.receive(ServerId(4), beat, Some(ServerId(1))).unwrap();
    assert_eq!(member.effects().count(), 0, "nobody is known to lead");
    member.propose(&Command::SetDraining(ME, true), 1).unwrap();
    let answers: Vec<_> = member.effects().collect();
    assert_eq!(answers, [MemberEffect::Answer(1, ManagerReply::NotLeader(None))]);
}

/// The messages of a leader, with what no manager says in its place: commands that are none, and a term
/// beyond all terms.
fn spoiled(said: &QuorumMessage) -> Vec<QuorumMessage> {
    let QuorumMessage::Append { term, round, commit, entries } = said else { return Vec::new() };
    let (round, commit) = (*round, *commit);
    let none = |(term, item): &(Term, Item)| match item {
        Item::Command(_) => (*term, Item::Command(Bytes::from_static(b"no command"))),
        item => (*term, item.clone()),
    };
    let items: Vec<_> = entries.items.iter().map(none).collect();
    if items == entries.items {
        return Vec::new();
    }
    let no_command = Entries { after: entries.after, items };
    let late = Term(QUORUM_TERM_MAX + 1);
    vec![
        QuorumMessage::Append { term: *term, round, commit, entries: no_command },
        QuorumMessage::Append { term: late, round, commit, entries: entries.clone() },
    ]
}

#[test]
fn a_managers_message_that_none_sends_is_not_stepped() {
    let disks = [SimDisk::new(1, 1 << 24), SimDisk::new(2, 1 << 24)];
    let mut leader = founded(&disks[0]);
    let other = ServerId(1);
    agree(&mut leader, &Command::AddToken([1; 32], u64::MAX)).unwrap();
    let new = Command::AddServer(new_server("m1", ServerRole::Manager), Some(([1; 32], 0)));
    assert_eq!(agree(&mut leader, &new), Ok(Outcome::Server(other)));
    let started = ServerMessage::Started(BootId(9), vec!["m1:1".to_owned()], Vec::new());
    leader.receive(other, started, None).unwrap();
    leader.write().unwrap();
    let log = QuorumDisk::make(disks[1].clone(), larder_types::ClusterId(1), other).unwrap();
    let mut learner: Member<u32> = Member::restore(other, log, 2, 0).unwrap();
    let (mut tried, mut now_ms) = (0, 10 * ELECTION_MS_MIN);
    while learner.map().founded.is_none() {
        now_ms += 10;
        leader.set_now(now_ms);
        leader.tick().unwrap();
        leader.write().unwrap();
        for effect in leader.effects().collect::<Vec<_>>() {
            let MemberEffect::Send(_, said) = effect else { continue };
            for said in spoiled(&said) {
                tried += 1;
                learner.peer(ME, said).unwrap();
                learner.write().unwrap();
                assert_eq!(learner.effects().count(), 0, "it is not answered");
            }
            learner.peer(ME, said).unwrap();
            learner.write().unwrap();
        }
        for effect in learner.effects().collect::<Vec<_>>() {
            if let MemberEffect::Send(_, said) = effect {
                leader.peer(other, said).unwrap();
            }
        }
        assert!(now_ms < 1000 * ELECTION_MS_MIN, "it follows who says what can be");
    }
    assert!(tried > 0);
}

/// A meta server, a data server at its address, and one elsewhere.
const AT: [(u32, &str); 3] = [(1, "here:1"), (2, "here:1"), (3, "there:1")];

fn add(leader: &mut Member<u32>, id: u32, role: ServerRole) {
    let token = [id as u8; 32];
    agree(leader, &Command::AddToken(token, u64::MAX)).unwrap();
    let new = Command::AddServer(new_server(&format!("s{id}"), role), Some((token, 0)));
    assert_eq!(agree(leader, &new), Ok(Outcome::Server(ServerId(id))));
}

/// A manager that leads a cluster with these servers.
fn with_servers(disk: &Arc<SimDisk>) -> Member<u32> {
    let mut leader = founded(disk);
    for (id, at) in AT {
        add(&mut leader, id, if id == 1 { ServerRole::Meta } else { ServerRole::Data });
        let boot = BootId(u64::from(id));
        let started = Command::ServerStarted(ServerId(id), boot, vec![at.to_owned()], Vec::new());
        agree(&mut leader, &started).unwrap();
    }
    leader
}

fn beat(heard_by: Option<ServerId>) -> Beat {
    let beside = AT.iter().map(|(id, _)| (ServerId(*id), BootId(u64::from(*id)))).collect();
    Beat { boot: BootId(1), sent_ms: 1, led: Vec::new(), heard_by, beside }
}

#[test]
fn a_meta_server_sends_beats_only_for_servers_at_its_address() {
    let disk = SimDisk::new(1, 1 << 24);
    let mut leader = with_servers(&disk);
    let began_ms = 1_000_000;
    for after_ms in (0..3 * SILENT_MS).step_by(MANAGER_TICK_MS as usize) {
        leader.set_now(began_ms + after_ms);
        if after_ms.is_multiple_of(SERVER_BEAT_MS) {
            leader.beat(ServerId(1), PROTOCOL_MAX, beat(Some(ME))).unwrap();
        }
        leader.tick().unwrap();
        leader.write().unwrap();
    }
    let is_up = |id| leader.map().is_up(ServerId(id));
    assert_eq!([1, 2, 3].map(is_up), [true, true, false]);
}

#[test]
fn a_beat_that_the_leader_hears_itself_is_not_handed_on() {
    let disks = [SimDisk::new(1, 1 << 24), SimDisk::new(2, 1 << 24)];
    let (mut leader, other) = (with_servers(&disks[0]), ServerId(4));
    add(&mut leader, other.0, ServerRole::Manager);
    let started = ServerMessage::Started(BootId(9), vec!["m1:1".to_owned()], Vec::new());
    leader.receive(other, started, None).unwrap();
    leader.write().unwrap();
    let log = QuorumDisk::make(disks[1].clone(), larder_types::ClusterId(1), other).unwrap();
    let mut learner: Member<u32> = Member::restore(other, log, 2, 0).unwrap();
    let mut now_ms = 10 * ELECTION_MS_MIN;
    while learner.map().servers.len() < 5 {
        now_ms += 10;
        leader.set_now(now_ms);
        leader.tick().unwrap();
        leader.write().unwrap();
        for effect in leader.effects().collect::<Vec<_>>() {
            let MemberEffect::Send(_, said) = effect else { continue };
            learner.peer(ME, said).unwrap();
            learner.write().unwrap();
        }
        for effect in learner.effects().collect::<Vec<_>>() {
            if let MemberEffect::Send(_, said) = effect {
                leader.peer(other, said).unwrap();
            }
        }
        assert!(now_ms < 1000 * ELECTION_MS_MIN, "it follows");
    }
    let mut said = |heard_by| {
        learner.beat(ServerId(1), PROTOCOL_MAX, beat(heard_by)).unwrap();
        learner.effects().collect::<Vec<_>>()
    };
    assert_eq!(said(Some(ME)), []);
    let renewal = ServerMessage::Renew { boot: BootId(1), sent_ms: 1, led: Vec::new() };
    let handed_on = || {
        let beside = ServerMessage::Heartbeat(BootId(2));
        let on = |from, said| MemberEffect::HandOn(ME, ServerId(from), said);
        vec![on(1, renewal.clone()), on(2, beside)]
    };
    assert_eq!(said(None), handed_on(), "nobody has granted anything");
    assert_eq!(said(Some(other)), handed_on(), "it takes another for the leader");
}

/// A map with managers in these states.
fn managers(states: &[ServerState]) -> Topology {
    let disk = SimDisk::new(1, 1 << 24);
    let mut map = founded(&disk).map().clone();
    let record = map.servers[&ME].clone();
    for (id, state) in states.iter().enumerate() {
        let mut record = record.clone();
        record.state = *state;
        map.servers.insert(ServerId(id as u32), record);
    }
    map
}

pub(super) fn members(voters: &[u32], learners: &[u32]) -> Members {
    let set = |ids: &[u32]| ids.iter().copied().map(ServerId).collect::<BTreeSet<_>>();
    Members { voters: set(voters), next_voters: BTreeSet::new(), learners: set(learners) }
}

#[test]
fn managers_that_are_up_learn_then_vote_and_removed_ones_go_first() {
    use ServerState::{Down, Joining, Removed, Up};
    let map = managers(&[Up, Joining, Up]);
    let add = Some(MemberChange::AddLearner(ServerId(2)));
    assert_eq!(next_change(&map, &members(&[0], &[])), add);
    let promote = Some(MemberChange::Promote(ServerId(2)));
    assert_eq!(next_change(&map, &members(&[0], &[2])), promote);
    assert_eq!(next_change(&map, &members(&[0, 2], &[])), None);

    let map = managers(&[Up, Removed, Up, Down]);
    let remove = Some(MemberChange::Remove(ServerId(1)));
    assert_eq!(next_change(&map, &members(&[0, 1], &[2])), remove);
    assert_eq!(next_change(&map, &members(&[0, 2, 3], &[])), None, "down is not gone");
    let mut changing = members(&[0, 1], &[]);
    changing.next_voters = BTreeSet::from([ServerId(0)]);
    assert_eq!(next_change(&map, &changing), None, "one change at a time");

    let map = managers(&[Up; MANAGERS_MAX + 1]);
    let all: Vec<u32> = (0..MANAGERS_MAX as u32).collect();
    assert_eq!(next_change(&map, &members(&all, &[])), None, "there are enough");
}

#[test]
fn a_leader_tells_what_was_committed_before_the_question() {
    let disk = SimDisk::new(1, 1 << 24);
    let mut member = founded(&disk);
    member.ask_committed(7).unwrap();
    member.write().unwrap();
    let version = member.map().version;
    let answers: Vec<_> = member.effects().collect();
    assert_eq!(answers, [MemberEffect::Answer(7, ManagerReply::Committed(version))]);
    assert_eq!(agree(&mut member, &Command::SetDraining(ME, true)), Ok(Outcome::Done));
    member.ask_committed(8).unwrap();
    member.ask_committed(9).unwrap();
    let later = member.map().version;
    assert!(later > version);
    let reported = |asker| MemberEffect::Answer(asker, ManagerReply::Committed(later));
    assert_eq!(member.effects().collect::<Vec<_>>(), [reported(8), reported(9)]);
}

#[test]
fn a_manager_without_a_leader_says_that_it_has_no_quorum() {
    let disk = SimDisk::new(1, 1 << 24);
    drop(founded(&disk));
    let mut member = Member::restore(ME, log(&disk), 2, 0).unwrap();
    member.ask_committed(7).unwrap();
    let answers: Vec<_> = member.effects().collect();
    assert_eq!(answers, [MemberEffect::Answer(7, ManagerReply::NoQuorum)]);
}
