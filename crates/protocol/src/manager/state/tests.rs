//! The map under any commands.

use std::collections::BTreeSet;

use larder_types::codec::{decode, encode};
use larder_types::limits::BUCKETS_MAX;
use larder_types::{
    BootId, BucketId, BucketName, DiskId, Epoch, HomeState, LvId, PgId, PvId, RegionId, ServerId,
    SessionId, Sharing, View, WritePolicy,
};
use proptest::prelude::*;

use super::*;
use crate::limits::{ENDED_RUNS_MAX, SERVERS_MAX, SESSIONS_MAX, TOKENS_MAX};
use crate::manager::quorum::LogIndex;
use crate::placement::{FailureDomains, MachineId, RackId, Weight};

mod changes;
mod cors;
mod mark;
mod pages;
mod region;
mod root;

const SETTINGS: Settings =
    Settings { pg_count: 4, members: 3, min_members: 2, copies: 3, min_copies: 2, lv_blocks: 100 };
const HASH: [u8; 32] = [7; 32];

fn new_server(name: &str) -> NewServer {
    NewServer {
        name: name.to_owned(),
        roles: BTreeSet::from([ServerRole::Meta, ServerRole::Data, ServerRole::Proxy]),
        addresses: vec!["10.0.0.1:7000".to_owned()],
        domains: FailureDomains { region: RegionId(1), rack: RackId(2), machine: MachineId(3) },
        weight: Weight(100),
    }
}

/// A map that takes commands one after the other.
struct Log(Topology);

impl Log {
    fn apply(&mut self, command: Command) -> Applied {
        let index = LogIndex(self.0.applied.0 + 1);
        let bytes = encode(&command);
        self.0.apply(index, decode("command", &bytes).unwrap())
    }

    fn done(&mut self, command: Command) -> Outcome {
        self.apply(command.clone()).unwrap_or_else(|refusal| panic!("{command:?}: {refusal}"))
    }

    /// A cluster of servers that are up, with a disk each.
    fn cluster(servers: u32) -> Self {
        let mut log = Self(Topology::default());
        log.done(Command::Found(ClusterId(9), SETTINGS));
        log.done(Command::AddToken(HASH, 1000));
        for id in 0..servers {
            let token = (id > 0).then_some((HASH, 10));
            let added = log.done(Command::AddServer(new_server(&format!("s{id}")), token));
            assert_eq!(added, Outcome::Server(ServerId(id)));
            log.done(started(id, 1));
            log.done(Command::AddDisk(ServerId(id), Weight(100), 3));
        }
        log
    }

    fn view(&mut self, pg: u32, from: u64, members: &[u32]) -> Applied {
        self.apply(Command::BeginView(PgId(pg), View(from), ids(members)))
    }

    fn lv(&mut self, disks: &[u32]) -> Applied {
        let disks = disks.iter().map(|disk| (ServerId(*disk), DiskId(*disk))).collect();
        self.apply(Command::CreateLv(PgId(0), disks))
    }
}

fn ids(servers: &[u32]) -> Vec<ServerId> {
    servers.iter().copied().map(ServerId).collect()
}

fn started(server: u32, boot: u64) -> Command {
    let addresses = vec!["10.0.0.1:7000".to_owned()];
    let has = (0..4).map(|pg| (PgId(pg), Some(View(9)))).collect();
    Command::ServerStarted(ServerId(server), BootId(boot), addresses, has)
}

#[test]
fn nothing_is_done_before_the_cluster_is_founded_and_founding_is_once() {
    let mut log = Log(Topology::default());
    assert_eq!(log.apply(started(0, 1)), Err(Refusal::NotFounded));
    let bad = Settings { min_members: 4, ..SETTINGS };
    assert_eq!(log.apply(Command::Found(ClusterId(1), bad)), Err(Refusal::BadSettings));
    log.done(Command::Found(ClusterId(1), SETTINGS));
    assert_eq!(log.apply(Command::Found(ClusterId(2), SETTINGS)), Err(Refusal::Founded));
}

#[test]
fn servers_join_with_a_token_that_is_good() {
    let mut log = Log::cluster(1);
    let join = |at| Command::AddServer(new_server("new"), at);
    assert_eq!(log.apply(join(None)), Err(Refusal::BadToken));
    assert_eq!(log.apply(join(Some(([8; 32], 10)))), Err(Refusal::BadToken));
    assert_eq!(log.apply(join(Some((HASH, 1000)))), Err(Refusal::BadToken), "it is expired");
    log.done(join(Some((HASH, 999))));
    assert_eq!(log.apply(join(Some((HASH, 999)))), Err(Refusal::NameTaken));
    log.done(Command::RevokeToken(TokenId(0)));
    let other = Command::AddServer(new_server("other"), Some((HASH, 10)));
    assert_eq!(log.apply(other), Err(Refusal::BadToken));
}

#[test]
fn expired_tokens_are_evicted_for_new_ones() {
    let mut log = Log(Topology::default());
    log.done(Command::Found(ClusterId(9), SETTINGS));
    let hash = |id: usize| {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&(id as u64).to_le_bytes());
        hash
    };
    for id in 0..TOKENS_MAX {
        let expires_ms = if id < 2 { 1000 } else { 2000 };
        log.done(Command::AddToken(hash(id), expires_ms));
    }
    let another = Command::AddToken(hash(TOKENS_MAX), 2000);
    assert_eq!(log.apply(another.clone()), Err(Refusal::TooMany));
    assert_eq!(log.done(Command::ForgetTokens(999)), Outcome::Already, "all of them are good");
    log.done(Command::RevokeToken(TokenId(7)));
    log.done(Command::ForgetTokens(1000));
    let left: Vec<u32> = log.0.tokens.keys().take(7).map(|token| token.0).collect();
    assert_eq!(left, [2, 3, 4, 5, 6, 8, 9]);
    assert_eq!(log.done(another), Outcome::Token(TokenId(TOKENS_MAX as u32)), "no id comes back");
    assert_eq!(log.apply(Command::RevokeToken(TokenId(7))), Err(Refusal::NoSuchToken));
    let join = Command::AddServer(new_server("s0"), Some((hash(3), 1999)));
    log.done(Command::AddServer(new_server("founder"), None));
    log.done(join);
}

#[test]
fn only_a_qualified_member_leads_and_views_grow_by_one() {
    let mut log = Log::cluster(5);
    assert_eq!(log.view(0, 0, &[0]), Err(Refusal::BadMembers), "fewer than the least");
    assert_eq!(log.view(0, 0, &[0, 0]), Err(Refusal::BadMembers));
    assert_eq!(log.view(0, 0, &[0, 9]), Err(Refusal::BadMembers));
    assert_eq!(log.view(0, 0, &[0, 1, 2]), Ok(Outcome::View(PgId(0), View(1))));
    assert_eq!(log.view(0, 0, &[1, 0, 2]), Err(Refusal::OtherView));
    assert_eq!(log.view(0, 1, &[0, 1, 3]), Err(Refusal::BadMembers), "3 has learnt nothing");
    log.done(Command::AddLearner(PgId(0), ServerId(3)));
    assert_eq!(log.apply(Command::AddLearner(PgId(0), ServerId(4))), Err(Refusal::TooMany));
    log.view(0, 1, &[0, 1, 3]).unwrap();
    assert_eq!(log.view(0, 2, &[3, 0]), Err(Refusal::NotQualified), "its view is not activated");
    let stale = Command::ViewActivated(PgId(0), View(1));
    assert_eq!(log.apply(stale), Err(Refusal::OtherView));
    log.done(Command::ViewActivated(PgId(0), View(2)));
    log.view(0, 2, &[3, 0]).unwrap();
    // 1 was a member once, but not of the latest view.
    assert_eq!(log.view(0, 3, &[1, 3]), Err(Refusal::BadMembers));
    log.done(Command::AddLearner(PgId(0), ServerId(1)));
    log.view(0, 3, &[0, 3, 1]).unwrap();
    assert_eq!(log.view(0, 4, &[1, 0]), Err(Refusal::NotQualified), "it has to be levelled anew");
}

#[test]
fn what_was_removed_never_comes_back_and_is_never_the_last() {
    let mut log = Log::cluster(4);
    log.view(0, 0, &[0, 1, 2]).unwrap();
    log.lv(&[0, 1]).unwrap();
    log.done(Command::LvCreated(LvId(0)));
    log.done(Command::RemoveServer(ServerId(0)));
    assert_eq!(log.apply(Command::RemoveServer(ServerId(1))), Err(Refusal::LastCopy));
    let disk = Command::RemoveDisk(ServerId(1), DiskId(1));
    assert_eq!(log.apply(disk), Err(Refusal::LastCopy));
    assert_eq!(log.apply(started(0, 2)), Err(Refusal::ServerRemoved));
    assert_eq!(log.view(0, 1, &[1, 0]), Err(Refusal::BadMembers));
    // Its name may be used again, its id may not.
    let again = Command::AddServer(new_server("s0"), Some((HASH, 10)));
    assert_eq!(log.done(again), Outcome::Server(ServerId(4)));
}

#[test]
fn a_pg_keeps_members_enough_to_go_on() {
    let mut log = Log::cluster(4);
    log.view(0, 0, &[0, 1, 2]).unwrap();
    log.done(Command::RemoveServer(ServerId(2)));
    let loss = log.0.loss_of_server(ServerId(1));
    assert_eq!((loss.pgs, loss.pgs_short, loss.pgs_last), (vec![PgId(0)], vec![PgId(0)], vec![]));
    assert_eq!(log.apply(Command::RemoveServer(ServerId(1))), Err(Refusal::TooFewMembers));
    log.done(Command::ViewActivated(PgId(0), View(1)));
    log.done(Command::AddLearner(PgId(0), ServerId(3)));
    assert_eq!(log.apply(Command::RemoveServer(ServerId(1))), Err(Refusal::TooFewMembers));
    log.view(0, 1, &[0, 1, 3]).unwrap();
    log.done(Command::RemoveServer(ServerId(1)));
}

#[test]
fn managers_that_stay_can_agree() {
    let mut log = Log::cluster(1);
    for id in 1..4 {
        let roles = BTreeSet::from([ServerRole::Manager]);
        let manager = NewServer { roles, ..new_server(&format!("m{id}")) };
        log.done(Command::AddServer(manager, Some((HASH, 10))));
        log.done(started(id, 1));
    }
    log.done(Command::ServerDown(ServerId(1), BootId(1)));
    let remove = |id| Command::RemoveServer(ServerId(id));
    assert_eq!(log.apply(remove(2)), Err(Refusal::NoMajority), "one of two would be up");
    log.done(remove(1));
    assert_eq!(log.apply(remove(2)), Err(Refusal::NoMajority), "two decide by both votes");
    assert_eq!(log.apply(remove(3)), Err(Refusal::NoMajority), "two decide by both votes");
}

#[test]
fn a_restart_is_a_new_run_and_a_late_down_is_refused() {
    let mut log = Log::cluster(3);
    log.view(0, 0, &[0, 1, 2]).unwrap();
    log.lv(&[0, 1, 2]).unwrap();
    log.done(Command::OpenSession(SessionId(5), ServerId(1), BootId(1)));
    assert_eq!(log.done(started(1, 1)), Outcome::Already);
    log.done(started(1, 2));
    let pg = log.0.pg(PgId(0)).unwrap();
    assert_eq!(pg.data_started, log.0.version);
    assert!(pg.begun < log.0.servers[&ServerId(1)].started);
    assert_eq!(log.apply(Command::ServerDown(ServerId(1), BootId(1))), Err(Refusal::OtherBoot));
    assert!(log.0.sessions.is_empty(), "sessions end with their run");
    let late = Command::OpenSession(SessionId(5), ServerId(1), BootId(2));
    assert_eq!(log.apply(late), Err(Refusal::SessionClosed));
    // Silent for a while, and the same run again: nothing begins anew.
    let before = log.0.servers[&ServerId(1)].started;
    log.done(Command::ServerDown(ServerId(1), BootId(2)));
    log.done(started(1, 2));
    assert_eq!(log.0.servers[&ServerId(1)].started, before);
}

#[test]
fn a_run_that_has_ended_does_not_come_back() {
    let mut log = Log::cluster(1);
    for boot in 2..100 {
        log.done(started(0, boot));
        let before = log.0.clone();
        assert_eq!(log.apply(started(0, boot - 1)), Err(Refusal::RunEnded));
        assert_eq!(log.0.servers, before.servers);
    }
    assert_eq!(log.0.servers[&ServerId(0)].ended.len(), ENDED_RUNS_MAX);
}

#[test]
fn one_that_lost_what_it_had_may_not_lead_until_it_was_levelled_in_another_view() {
    let mut log = Log::cluster(3);
    log.view(0, 0, &[0, 1, 2]).unwrap();
    log.done(Command::ViewActivated(PgId(0), View(1)));
    log.view(0, 1, &[0, 1, 2]).unwrap();
    let without = |server: u32, boot, last| {
        let has = vec![(PgId(0), last)];
        Command::ServerStarted(ServerId(server), BootId(boot), Vec::new(), has)
    };
    log.done(without(1, 2, Some(View(1))));
    log.done(without(2, 2, None));
    assert_eq!(log.view(0, 2, &[2, 0]), Err(Refusal::NotQualified));
    // The report that the view was active comes late: 2 has lost since what it had then.
    log.done(Command::ViewActivated(PgId(0), View(2)));
    assert_eq!(log.view(0, 2, &[2, 0]), Err(Refusal::NotQualified));
    log.view(0, 2, &[1, 0, 2]).unwrap();
    log.done(Command::ViewActivated(PgId(0), View(3)));
    log.view(0, 3, &[2, 0]).unwrap();
}

#[test]
fn a_member_with_other_rows_may_not_lead_until_it_was_levelled_in_another_view() {
    let mut log = Log::cluster(3);
    log.view(0, 0, &[0, 1, 2]).unwrap();
    log.done(Command::ViewActivated(PgId(0), View(1)));
    let lacks = |view, server| Command::MemberLacks(PgId(0), View(view), ServerId(server));
    assert_eq!(log.apply(lacks(2, 1)), Err(Refusal::OtherView));
    assert_eq!(log.apply(lacks(1, 4)), Err(Refusal::BadMembers));
    log.done(lacks(1, 1));
    assert_eq!(log.done(lacks(1, 1)), Outcome::Already);
    assert_eq!(log.view(0, 1, &[1, 0]), Err(Refusal::NotQualified));
    log.done(lacks(1, 0));
    assert_eq!(log.apply(lacks(1, 2)), Err(Refusal::LastCopy), "who else has anything?");
    log.view(0, 1, &[2, 0, 1]).unwrap();
    log.done(Command::ViewActivated(PgId(0), View(2)));
    assert_eq!(log.apply(lacks(1, 1)), Err(Refusal::OtherView), "said late");
    log.view(0, 2, &[1, 2]).unwrap();
}

#[test]
fn pvs_are_drawn_returned_and_drawn_again() {
    let mut log = Log::cluster(4);
    assert_eq!(log.lv(&[0]), Err(Refusal::BadReplicas), "narrower than the least");
    assert_eq!(log.lv(&[0, 0]), Err(Refusal::BadReplicas));
    for lv in 0..3 {
        assert_eq!(log.lv(&[0, 1, 2]), Ok(Outcome::Lv(LvId(lv))));
    }
    let before = log.0.clone();
    assert_eq!(log.lv(&[3, 0]), Err(Refusal::DiskFull));
    assert_eq!(log.0.servers, before.servers, "nothing is drawn");
    log.done(Command::LvCreated(LvId(1)));
    let add = Command::AddReplica(LvId(1), ServerId(3), DiskId(3));
    assert_eq!(log.done(add.clone()), Outcome::Replica(LvId(1), 3));
    assert_eq!(log.apply(add), Err(Refusal::BadReplicas), "one replica per disk");
    log.done(Command::DropReplica(LvId(1), 0));
    assert_eq!(log.apply(Command::DropReplica(LvId(1), 1)), Err(Refusal::LastCopy));
    log.done(Command::ReplicaCurrent(LvId(1), 3));
    log.done(Command::DropReplica(LvId(1), 1));
    // Index and PV of what is gone are used again.
    let back = Command::AddReplica(LvId(1), ServerId(0), DiskId(0));
    assert_eq!(log.done(back), Outcome::Replica(LvId(1), 0));
    assert_eq!(log.0.lv(LvId(1)).unwrap().replicas[0].pv, PvId(1));
}

#[test]
fn what_a_primary_said_in_another_view_drops_no_replica() {
    let mut log = Log::cluster(3);
    log.view(0, 0, &[0, 1]).unwrap();
    assert_eq!(log.lv(&[0, 1, 2]), Ok(Outcome::Lv(LvId(0))));
    log.done(Command::LvCreated(LvId(0)));
    let view = log.0.pg(PgId(0)).unwrap().view;
    let late = Command::DropVacated(LvId(0), 2, View(view.0 + 1));
    assert_eq!(log.apply(late), Err(Refusal::OtherView));
    log.done(Command::DropVacated(LvId(0), 2, view));
    let replicas = &log.0.lv(LvId(0)).unwrap().replicas;
    assert_eq!(replicas[2].state, ReplicaState::Gone);
}

#[test]
fn a_deletion_that_was_overtaken_is_refused() {
    let mut log = Log::cluster(1);
    let name = BucketName::new("photos").unwrap();
    log.done(Command::CreateBucket(name.clone(), None, 5));
    let again = Command::CreateBucket(name.clone(), None, 5);
    assert_eq!(log.apply(again), Err(Refusal::BucketExists));
    log.done(Command::BeginDeletion(name.clone()));
    log.done(Command::BeginDeletion(name.clone()));
    let lost = Command::EndDeletion(name.clone(), Epoch(2), true);
    assert_eq!(log.apply(lost), Err(Refusal::OtherEpoch));
    log.done(Command::EndDeletion(name.clone(), Epoch(3), false));
    log.done(Command::BeginDeletion(name.clone()));
    log.done(Command::EndDeletion(name.clone(), Epoch(5), true));
    let Outcome::Bucket(record) = log.done(Command::CreateBucket(name, None, 6)) else { panic!() };
    assert_eq!((record.id.0, record.epoch), (2, Epoch(1)));
}

#[test]
fn the_end_of_a_deletion_that_comes_late_leaves_the_next_bucket_of_that_name() {
    let mut log = Log::cluster(1);
    let name = BucketName::new("photos").unwrap();
    let ends = |id| {
        Command::EndDeletionOf(BucketId(id), BucketName::new("photos").unwrap(), Epoch(2), true)
    };
    for id in [1, 2] {
        let make = Command::CreateBucket(name.clone(), None, 5);
        let Outcome::Bucket(made) = log.done(make) else { panic!("no bucket") };
        assert_eq!(made.id, BucketId(id));
        let Outcome::Bucket(marked) = log.done(Command::BeginDeletion(name.clone())) else {
            panic!("no mark")
        };
        assert_eq!(marked.epoch, Epoch(2), "as the one before");
        if id == 2 {
            assert_eq!(log.apply(ends(1)), Err(Refusal::NoSuchBucket), "the answer was lost");
        }
        assert_eq!(log.done(ends(id)), Outcome::BucketGone(BucketId(id)));
    }
}

#[test]
fn a_write_policy_asks_for_no_more_copies_than_there_are_and_leaves_the_epoch() {
    let mut log = Log::cluster(1);
    let name = BucketName::new("photos").unwrap();
    let set = |policy| Command::SetWritePolicy(BucketName::new("photos").unwrap(), policy);
    assert_eq!(log.apply(set(WritePolicy::Majority)), Err(Refusal::NoSuchBucket));
    log.done(Command::CreateBucket(name.clone(), None, 5));
    let copies = log.0.settings().copies;
    let too_many = set(WritePolicy::AtLeast(copies + 1));
    assert_eq!(log.apply(too_many), Err(Refusal::TooManyCopies));
    let policy = WritePolicy::AtLeast(copies);
    let Outcome::Bucket(record) = log.done(set(policy)) else { panic!() };
    assert_eq!((record.write_policy, record.epoch), (policy, Epoch(1)));
    assert_eq!(log.done(set(policy)), Outcome::Already);
    assert_eq!(Topology::decode(&log.0.encode()).as_ref(), Ok(&log.0));
}

/// A command about a small cluster; most are wrong in some way.
fn any_command() -> impl Strategy<Value = Command> {
    let server = || (0..7u32).prop_map(ServerId);
    let disk = || (0..7u32).prop_map(|id| (ServerId(id), DiskId(id)));
    let pg = || (0..5u32).prop_map(PgId);
    let lv = || (0..6u32).prop_map(LvId);
    let view = || (0..6u64).prop_map(View);
    let members = || proptest::collection::vec(server(), 1..5);
    let boot = || (1..3u64).prop_map(BootId);
    let name = || prop_oneof![Just("aaa"), Just("bbb")].prop_map(|n| BucketName::new(n).unwrap());
    let session = || (0..4u64).prop_map(SessionId);
    prop_oneof![
        (0..7u32).prop_map(|n| Command::AddServer(new_server(&format!("s{n}")), Some((HASH, 1)))),
        (0..7u32, 1..3u64).prop_map(|(server, boot)| started(server, boot)),
        (0..7u32, 1..4u64).prop_map(|(server, boot)| {
            Command::ServerStarted(ServerId(server), BootId(boot), Vec::new(), Vec::new())
        }),
        (server(), boot()).prop_map(|(s, b)| Command::ServerDown(s, b)),
        (server(), any::<bool>()).prop_map(|(s, on)| Command::SetDraining(s, on)),
        server().prop_map(Command::RemoveServer),
        (server(), 1..4u32).prop_map(|(s, pvs)| Command::AddDisk(s, Weight(1), pvs)),
        (disk(), any::<bool>()).prop_map(|((s, d), on)| Command::SetDiskDraining(s, d, on)),
        disk().prop_map(|(s, d)| Command::RemoveDisk(s, d)),
        (pg(), members()).prop_map(|(pg, members)| Command::Retarget(vec![(pg, members)])),
        (pg(), server()).prop_map(|(pg, s)| Command::AddLearner(pg, s)),
        (pg(), server()).prop_map(|(pg, s)| Command::DropLearner(pg, s)),
        (pg(), view(), members()).prop_map(|(pg, v, m)| Command::BeginView(pg, v, m)),
        (pg(), view(), members()).prop_map(|(pg, v, m)| Command::BeginView(pg, v, m)),
        (pg(), view()).prop_map(|(pg, v)| Command::ViewActivated(pg, v)),
        (pg(), view(), server()).prop_map(|(pg, v, s)| Command::MemberLacks(pg, v, s)),
        Just(Command::ForgetTokens(1)),
        proptest::option::of(1..5u64).prop_map(Command::PauseBalance),
        (0..5u8).prop_map(Command::RaiseClusterVersion),
        (0..3u32, 0..4u8).prop_map(|(after, key)| root::rotation(after, key)),
        (0..3u32).prop_map(Command::RetireRoot),
        (0..9u64).prop_map(Command::BeginTimeline),
        (pg(), proptest::collection::vec(disk(), 1..4))
            .prop_map(|(pg, d)| Command::CreateLv(pg, d)),
        lv().prop_map(Command::LvCreated),
        (lv(), any::<bool>()).prop_map(|(lv, on)| Command::SetLvReadOnly(lv, on)),
        (lv(), disk()).prop_map(|(lv, (s, d))| Command::AddReplica(lv, s, d)),
        (lv(), 0..5u8).prop_map(|(lv, index)| Command::ReplicaCurrent(lv, index)),
        (lv(), 0..5u8).prop_map(|(lv, index)| Command::DropReplica(lv, index)),
        (session(), server(), boot()).prop_map(|(id, s, b)| Command::OpenSession(id, s, b)),
        session().prop_map(Command::CloseSession),
        name().prop_map(|name| Command::CreateBucket(name, None, 1)),
        name().prop_map(Command::BeginDeletion),
        name().prop_map(|n| Command::SetWritePolicy(n, WritePolicy::Majority)),
        (name(), any::<bool>())
            .prop_map(|(n, on)| Command::SetCors(n, on.then(|| cors::rules(&["*"])))),
        (name(), 1..5u64, any::<bool>()).prop_map(|(n, e, b)| Command::EndDeletion(n, Epoch(e), b)),
        (1..5u64, name(), 1..5u64, any::<bool>()).prop_map(|(id, n, e, b)| Command::EndDeletionOf(
            BucketId(id),
            n,
            Epoch(e),
            b
        )),
        Just(Command::RevokeToken(TokenId(1))),
        (0..3u16, 0..2u8).prop_map(|(n, key)| Command::SetRegion(region::record(n, key))),
        (server(), boot()).prop_map(|(s, b)| region::claim((1, 1), (s.0, b.0))),
        (server(), boot()).prop_map(|(s, b)| region::keep((s.0, b.0), &[7])),
    ]
}

/// Checks a map against the one before it.
fn follows(before: &Topology, after: &Topology) {
    assert_eq!(after.contradiction(), None);
    for (id, (old, new)) in before.pgs.iter().zip(&after.pgs).enumerate() {
        assert!(new.view.0 - old.view.0 <= 1, "pg {id}");
        if new.view == old.view {
            assert_eq!(new.members, old.members, "pg {id}: members change with the view");
        } else if old.view > View(0) {
            assert!(old.qualified.contains(&new.members[0]), "pg {id}");
            assert!(new.qualified.is_subset(&old.qualified), "pg {id}");
        }
        let activated = new.activated > old.activated;
        let new_ones = new.qualified.difference(&old.qualified).count();
        assert!(new_ones == 0 || activated || old.view == View(0), "pg {id}");
    }
    for (lv, (old, new)) in before.lvs.iter().zip(&after.lvs).enumerate() {
        assert_eq!(old.pg, new.pg, "lv {lv}");
    }
    for (id, server) in &before.servers {
        let now = &after.servers[id];
        if server.state == ServerState::Removed {
            assert_eq!(server, now, "server {id} was removed for good");
        }
    }
    for (name, bucket) in &after.buckets {
        if let Some(old) = before.buckets.get(name) {
            assert!(bucket.id >= old.id && (bucket.id > old.id || bucket.epoch >= old.epoch));
        }
    }
}

#[test]
fn a_session_too_many_is_opened_once_another_has_closed() {
    let mut log = Log::cluster(1);
    let open = |number| Command::OpenSession(SessionId(number), ServerId(0), BootId(1));
    let last = SESSIONS_MAX as u64;
    (0..last).for_each(|number| drop(log.done(open(number))));
    assert_eq!(log.apply(open(last)), Err(Refusal::TooMany));
    assert_eq!(log.done(open(0)), Outcome::Already, "one that is open stays so");
    log.done(Command::CloseSession(SessionId(0)));
    assert_eq!(log.done(open(last)), Outcome::Done);
    assert_eq!(log.apply(open(last + 1)), Err(Refusal::TooMany));
}

#[test]
fn a_server_too_many_joins_once_another_was_removed() {
    let mut log = Log::cluster(1);
    let join = |id| Command::AddServer(new_server(&format!("s{id}")), Some((HASH, 10)));
    let last = SERVERS_MAX as u32;
    for id in 1..last {
        assert_eq!(log.done(join(id)), Outcome::Server(ServerId(id)));
    }
    assert_eq!(log.apply(join(last)), Err(Refusal::TooMany));
    log.done(Command::RemoveServer(ServerId(7)));
    assert_eq!(log.done(join(last)), Outcome::Server(ServerId(last)));
    assert_eq!(log.apply(join(last + 1)), Err(Refusal::TooMany));
}

#[test]
fn a_bucket_too_many_is_made_once_another_was_deleted() {
    let mut log = Log::cluster(1);
    let name = |number: usize| BucketName::new(&format!("bucket-{number}")).unwrap();
    let create = |number| Command::CreateBucket(name(number), None, 1);
    (0..BUCKETS_MAX).for_each(|number| drop(log.done(create(number))));
    assert_eq!(log.apply(create(BUCKETS_MAX)), Err(Refusal::TooMany));
    log.done(Command::BeginDeletion(name(0)));
    assert_eq!(log.apply(create(BUCKETS_MAX)), Err(Refusal::TooMany), "it may not be empty");
    log.done(Command::EndDeletion(name(0), Epoch(2), true));
    log.done(create(BUCKETS_MAX));
    assert_eq!(log.apply(create(0)), Err(Refusal::TooMany));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_commands_leave_a_sound_map(commands in proptest::collection::vec(any_command(), 1..120)) {
        let mut log = Log::cluster(5);
        for pg in 0..4 {
            log.view(pg, 0, &[pg, (pg + 1) % 5, (pg + 2) % 5]).unwrap();
        }
        let mut other = Log(log.0.clone());
        for command in commands {
            let before = log.0.clone();
            let applied = log.apply(command.clone());
            follows(&before, &log.0);
            prop_assert!(before.map_mark().unwrap().is_reached_by(&log.0));
            let grew = log.0.version.0 - before.version.0;
            let changes = !matches!(applied, Err(_) | Ok(Outcome::Already));
            prop_assert_eq!(grew, u64::from(changes));
            if !changes {
                let unchanged = Topology { applied: log.0.applied, ..before };
                prop_assert_eq!(&unchanged, &log.0, "{:?}", command);
            }
            prop_assert_eq!(other.apply(command), applied);
        }
        prop_assert_eq!(&other.0, &log.0);
        prop_assert_eq!(&Topology::decode(&log.0.encode()).unwrap(), &log.0);
    }
}

#[test]
fn commands_are_encoded_as_ever() {
    let (server, pg, lv) = (ServerId(300), PgId(2), LvId(3));
    let name = BucketName::new("abc").unwrap();
    let commands = [
        Command::Found(ClusterId(9), SETTINGS),
        Command::AddServer(new_server("s"), Some(([1; 32], 5))),
        Command::ServerStarted(
            server,
            BootId(7),
            vec!["h:1".to_owned()],
            vec![(pg, Some(View(3)))],
        ),
        Command::ServerDown(server, BootId(7)),
        Command::SetWeight(server, Weight(200)),
        Command::SetDraining(server, true),
        Command::RemoveServer(server),
        Command::AddDisk(server, Weight(1), 400),
        Command::SetDiskDraining(server, DiskId(4), true),
        Command::RemoveDisk(server, DiskId(4)),
        Command::Retarget(vec![(pg, vec![server, ServerId(1)])]),
        Command::AddLearner(pg, server),
        Command::DropLearner(pg, server),
        Command::BeginView(pg, View(8), vec![server, ServerId(1)]),
        Command::ViewActivated(pg, View(9)),
        Command::CreateLv(pg, vec![(server, DiskId(4))]),
        Command::LvCreated(lv),
        Command::SetLvReadOnly(lv, true),
        Command::AddReplica(lv, server, DiskId(4)),
        Command::ReplicaCurrent(lv, 2),
        Command::DropReplica(lv, 1),
        Command::OpenSession(SessionId(6), server, BootId(7)),
        Command::CloseSession(SessionId(6)),
        Command::CreateBucket(name.clone(), Some("eu".to_owned()), 11),
        Command::BeginDeletion(name.clone()),
        Command::EndDeletion(name.clone(), Epoch(2), true),
        Command::AddToken([2; 32], 12),
        Command::RevokeToken(TokenId(1)),
        Command::DropVacated(lv, 1, View(9)),
        Command::SetWritePolicy(name.clone(), WritePolicy::AtLeast(2)),
        Command::MemberLacks(pg, View(9), server),
        Command::ForgetTokens(13),
        Command::EndDeletionOf(BucketId(300), name, Epoch(2), true),
        Command::SetRegion(region::record(3, 0xab)),
        region::claim((3, 0xab), (300, 7)),
        region::keep((300, 7), &[1, 2, 3]),
        Command::SetRegions(BucketName::new("abc").unwrap(), 2),
        Command::CloseBucket(BucketName::new("abc").unwrap()),
        region::delete((300, 7), 300, "abc", 2),
        region::set_home((300, 7), (None, region::home(300, HomeState::Claimed(true)))),
        region::adopt((300, 7), region::home(300, HomeState::Elsewhere)),
        Command::SetLocal(BucketName::new("abc").unwrap(), true, 300),
        region::share((300, 7), 300, (2, Sharing::Renewing)),
        Command::PauseBalance(Some(300)),
        Command::PauseBalance(None),
        cors::set("abc", Some(cors::rules(&["https://a.example", "*"]))),
        Command::RaiseClusterVersion(17),
        Command::RotateRoot(2, root::pair("new"), Keep::Nothing),
        Command::RotateRoot(2, root::pair("new"), Keep::Current),
        Command::RotateRoot(0, root::pair("new"), Keep::OfFiles(root::pair("old"))),
        Command::RetireRoot(300),
        Command::BeginTimeline(300),
    ];
    let hex = |bytes: Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let lines: Vec<String> = commands.iter().map(|command| hex(encode(command))).collect();
    assert_eq!(lines.join("\n"), include_str!("golden.hex").trim_end());
}

#[test]
fn a_pause_of_rebalancing_stays_since_when_it_was_and_leaves_the_rest_of_the_map_as_it_is() {
    let mut log = Log::cluster(2);
    let before = log.0.encode();
    assert_eq!(log.apply(Command::PauseBalance(None)), Ok(Outcome::Already));
    log.done(Command::PauseBalance(Some(300)));
    assert_eq!(log.apply(Command::PauseBalance(Some(400))), Ok(Outcome::Already));
    assert_eq!(log.0.balance_paused_ms, Some(300));
    let bytes = log.0.encode();
    assert_eq!(bytes[..8], [4, 1, 0xac, 2, 0, 0, 0, 0], "version 4, the time, and no region");
    assert_eq!(Topology::decode(&bytes), Ok(log.0.clone()));
    log.done(Command::SetRegion(region::record(3, 0xab)));
    log.done(region::claim((3, 0xab), (0, 1)));
    assert_eq!(Topology::decode(&log.0.encode()), Ok(log.0.clone()), "a region with a gateway");
    log.done(Command::PauseBalance(None));
    assert_eq!((before[0], log.0.encode()[0]), (1, 3), "as before a pause was known");
}

#[test]
fn the_clusters_version_never_falls_and_leaves_the_rest_of_the_map_as_it_is() {
    let mut log = Log::cluster(2);
    assert_eq!(log.apply(Command::RaiseClusterVersion(0)), Ok(Outcome::Already));
    assert_eq!(log.0.encode()[0], 1, "as before it was known");
    log.done(Command::RaiseClusterVersion(17));
    for lower in [16, 17] {
        assert_eq!(log.apply(Command::RaiseClusterVersion(lower)), Ok(Outcome::Already));
    }
    assert_eq!(log.0.cluster_version, 17);
    let bytes = log.0.encode();
    let beginning = [5, 17, 0, 0, 0, 0, 0];
    assert_eq!(bytes[..7], beginning, "version 5, the cluster's, no pause, no region");
    assert_eq!(Topology::decode(&bytes), Ok(log.0.clone()));
    log.done(Command::PauseBalance(Some(300)));
    log.done(Command::SetRegion(region::record(3, 0xab)));
    log.done(region::claim((3, 0xab), (0, 1)));
    log.done(Command::RaiseClusterVersion(18));
    assert_eq!(Topology::decode(&log.0.encode()), Ok(log.0.clone()), "with all that there is");
}

#[test]
fn the_map_is_encoded_as_ever() {
    let mut log = Log::cluster(2);
    log.view(0, 0, &[0, 1]).unwrap();
    log.lv(&[0, 1]).unwrap();
    let name = BucketName::new("abc").unwrap();
    log.done(Command::CreateBucket(name, None, 11));
    let hex: String = log.0.encode().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, include_str!("golden_map.hex").trim_end());
}
