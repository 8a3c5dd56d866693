use super::*;
use crate::limits::{BUCKET_REGIONS_MAX, REGION_LIST_BYTES_MAX};
use crate::manager::state::{GatewayRecord, RegionRecord};
use larder_types::{
    BucketState, Home, HomeNotSet, HomeScope, HomeState, HomeTerm, NotShared, RegionId, Sharing,
};

/// A region of this number, known by the key of which each byte of the fingerprint is this.
pub(super) fn record(number: u16, fingerprint: u8) -> RegionRecord {
    RegionRecord { number: RegionId(number), fingerprint: [fingerprint; 32] }
}

fn gateway((server, boot): (u32, u64)) -> GatewayRecord {
    GatewayRecord { server: ServerId(server), boot: BootId(boot) }
}

pub(super) fn claim((number, key): (u16, u8), by: (u32, u64)) -> Command {
    Command::ClaimGateway(record(number, key), gateway(by))
}

pub(super) fn keep(by: (u32, u64), list: &[u8]) -> Command {
    Command::KeepRegions(gateway(by), list.len() as u32, list.to_vec())
}

pub(super) fn delete(by: (u32, u64), id: u64, name: &str, epoch: u64) -> Command {
    let name = BucketName::new(name).unwrap();
    Command::DeleteClosed(gateway(by), BucketId(id), name, Epoch(epoch))
}

/// The home of region 2, in the term of this count.
pub(super) fn home(count: u64, state: HomeState) -> Home {
    let term = HomeTerm { count, of: RegionId(2) };
    Home { term, scope: HomeScope::Conditions, state }
}

pub(super) fn set_home(by: (u32, u64), (before, next): (Option<Home>, Home)) -> Command {
    Command::SetHome(gateway(by), BucketName::new("abc").unwrap(), before, next)
}

pub(super) fn adopt(by: (u32, u64), home: Home) -> Command {
    Command::AdoptBucket(gateway(by), BucketName::new("abc").unwrap(), 11, home)
}

pub(super) fn share(by: (u32, u64), id: u64, (epoch, next): (u64, Sharing)) -> Command {
    let name = BucketName::new("abc").unwrap();
    Command::ShareBucket(gateway(by), BucketId(id), name, Epoch(epoch), next)
}

#[test]
fn a_bucket_is_local_from_its_making_and_shared_once_its_gateway_has_seen_to_it() {
    let mut log = Log::cluster(2);
    let set = |is_local| Command::SetLocal(BucketName::new("abc").unwrap(), is_local, 11);
    assert_eq!(log.apply(set(true)), Err(Refusal::NotInRegion));
    log.done(claim((2, 1), (0, 1)));
    assert_eq!(log.apply(set(false)), Err(Refusal::NoSuchBucket));
    let Outcome::Bucket(made) = log.done(set(true)) else { panic!("no record") };
    assert_eq!((made.sharing, made.created_ms), (Sharing::Local, 11));
    assert_eq!(log.done(set(true)), Outcome::Already);
    let homed = set_home((0, 1), (None, home(1, HomeState::Claimed(true))));
    assert_eq!(log.apply(homed), Err(Refusal::Home(HomeNotSet::Local)));
    let Outcome::Bucket(opened) = log.done(set(false)) else { panic!("no record") };
    assert_eq!((opened.sharing, opened.epoch), (Sharing::Opening, Epoch(3)));
    assert_eq!(Topology::decode(&log.0.encode()).as_ref(), Ok(&log.0));
    let (id, renewing) = (opened.id.0, (3, Sharing::Renewing));
    assert_eq!(log.apply(share((1, 1), id, renewing)), Err(Refusal::NoGateway));
    let before = share((0, 1), id, (2, Sharing::Renewing));
    assert_eq!(log.done(before), Outcome::Already, "it was local since");
    assert_eq!(log.done(share((0, 1), id + 1, renewing)), Outcome::Already, "another bucket");
    assert_eq!(log.0.buckets[&opened.name].sharing, Sharing::Opening);
    assert_eq!(log.done(share((0, 1), id, renewing)), Outcome::Done);
    assert_eq!(log.done(share((0, 1), id, (3, Sharing::All))), Outcome::Done);
    assert_eq!(log.0.buckets[&opened.name].sharing, Sharing::All);
    log.done(Command::CloseBucket(opened.name.clone()));
    assert_eq!(log.apply(set(true)), Err(Refusal::NotShared(NotShared::Deleting)));
}

#[test]
fn a_home_is_set_by_the_gateway_under_a_new_epoch_and_holds_the_bucket() {
    let mut log = Log::cluster(2);
    log.done(claim((2, 1), (0, 1)));
    let elsewhere = home(1, HomeState::Elsewhere);
    assert_eq!(log.apply(adopt((1, 1), elsewhere)), Err(Refusal::NoGateway));
    let Outcome::Bucket(made) = log.done(adopt((0, 1), elsewhere)) else { panic!("no record") };
    assert_eq!((made.home, made.epoch), (Some(elsewhere), Epoch(1)));
    assert_eq!(log.apply(adopt((0, 1), elsewhere)), Err(Refusal::BucketExists));
    let coming = home(2, HomeState::Claimed(true));
    assert_eq!(log.apply(set_home((1, 1), (made.home, coming))), Err(Refusal::NoGateway));
    let changed = Err(Refusal::Home(HomeNotSet::Changed));
    assert_eq!(log.apply(set_home((0, 1), (None, coming))), changed);
    assert_eq!(log.apply(set_home((0, 1), (made.home, home(1, HomeState::Here)))), changed);
    let Outcome::Bucket(set) = log.done(set_home((0, 1), (made.home, coming))) else {
        panic!("no record")
    };
    assert_eq!((set.home, set.epoch), (Some(coming), Epoch(2)));
    let close = || Command::CloseBucket(BucketName::new("abc").unwrap());
    assert_eq!(log.apply(close()), Err(Refusal::HasHome));
    let nowhere = home(3, HomeState::Nowhere);
    log.done(set_home((0, 1), (Some(coming), nowhere)));
    log.done(close());
    let deleting = Err(Refusal::Home(HomeNotSet::Deleting));
    assert_eq!(
        log.apply(set_home((0, 1), (Some(nowhere), home(4, HomeState::Elsewhere)))),
        deleting
    );
    assert_eq!(Topology::decode(&log.0.encode()).as_ref(), Ok(&log.0));
}

#[test]
fn another_gateway_begins_only_when_the_sessions_of_the_one_before_are_closed() {
    let mut log = Log::cluster(2);
    let session = SessionId(5);
    log.done(Command::OpenSession(session, ServerId(0), BootId(1)));
    assert_eq!(log.apply(claim((2, 1), (0, 9))), Err(Refusal::OtherBoot));
    assert_eq!(log.done(claim((2, 1), (0, 1))), Outcome::Done);
    assert_eq!(log.0.number(), RegionId(2), "the first one says which region it is");
    assert_eq!(log.done(claim((2, 1), (0, 1))), Outcome::Already);
    assert_eq!(log.apply(claim((2, 1), (1, 1))), Err(Refusal::OtherGateway));
    assert_eq!(log.apply(claim((2, 7), (0, 1))), Err(Refusal::OtherRegion), "of another key");
    log.done(Command::CloseSession(session));
    assert_eq!(log.done(claim((2, 1), (1, 1))), Outcome::Done);
    assert_eq!(log.0.gateway, Some(gateway((1, 1))));
}

#[test]
fn the_list_of_regions_is_kept_for_the_gateway_alone() {
    let mut log = Log::cluster(2);
    assert_eq!(log.apply(keep((0, 1), b"list")), Err(Refusal::NoGateway));
    log.done(claim((2, 1), (0, 1)));
    assert_eq!(log.done(keep((0, 1), b"list")), Outcome::Done);
    assert_eq!(log.done(keep((0, 1), b"list")), Outcome::Already);
    assert_eq!(log.apply(keep((1, 1), b"another")), Err(Refusal::NoGateway));
    assert_eq!(log.apply(keep((0, 1), b"old")), Err(Refusal::OlderList), "it comes late");
    assert_eq!(log.apply(keep((0, 1), &vec![1; REGION_LIST_BYTES_MAX + 1])), Err(Refusal::TooMany));
    assert_eq!(log.0.regions, b"list");
    assert_eq!(Topology::decode(&log.0.encode()).as_ref(), Ok(&log.0));
}

#[test]
fn a_bucket_of_a_region_waits_for_no_more_regions_than_there_may_be_and_keeps_its_epoch() {
    let mut log = Log::cluster(2);
    let name = || BucketName::new("photos").unwrap();
    let set = |regions| Command::SetRegions(name(), regions);
    log.done(Command::CreateBucket(name(), None, 5));
    assert_eq!(log.apply(set(2)), Err(Refusal::BadRegions), "it is no region");
    log.done(claim((2, 1), (0, 1)));
    for wrong in [0, BUCKET_REGIONS_MAX + 1] {
        assert_eq!(log.apply(set(wrong)), Err(Refusal::BadRegions));
    }
    let Outcome::Bucket(record) = log.done(set(2)) else { panic!("no record") };
    assert_eq!((record.regions, record.epoch), (2, Epoch(1)));
    assert_eq!(log.done(set(2)), Outcome::Already);
    let another = Command::SetRegions(BucketName::new("films").unwrap(), 2);
    assert_eq!(log.apply(another), Err(Refusal::NoSuchBucket));
    assert_eq!(Topology::decode(&log.0.encode()).as_ref(), Ok(&log.0));
}

#[test]
fn a_closed_bucket_of_a_region_is_deleted_by_its_gateway_alone_and_under_its_mark() {
    let mut log = Log::cluster(2);
    let close = || Command::CloseBucket(BucketName::new("photos").unwrap());
    log.done(Command::CreateBucket(BucketName::new("photos").unwrap(), None, 5));
    assert_eq!(log.apply(close()), Err(Refusal::NotInRegion));
    log.done(claim((2, 1), (0, 1)));
    let Outcome::Bucket(record) = log.done(close()) else { panic!("no record") };
    assert_eq!((record.state, record.epoch), (BucketState::Deleting, Epoch(2)));
    let id = record.id.0;
    assert_eq!(log.apply(delete((1, 1), id, "photos", 2)), Err(Refusal::NoGateway));
    assert_eq!(log.apply(delete((0, 1), id, "photos", 1)), Err(Refusal::OtherEpoch));
    assert_eq!(log.apply(delete((0, 1), id + 1, "photos", 2)), Err(Refusal::NoSuchBucket));
    let Outcome::Bucket(record) = log.done(close()) else { panic!("no record") };
    assert_eq!(record.epoch, Epoch(3), "another deletion has begun");
    assert_eq!(log.apply(delete((0, 1), id, "photos", 2)), Err(Refusal::OtherEpoch));
    let lift = Command::EndDeletionOf(record.id, record.name.clone(), record.epoch, false);
    log.done(lift);
    assert_eq!(log.apply(delete((0, 1), id, "photos", 3)), Err(Refusal::OtherEpoch), "it is open");
    log.done(close());
    assert_eq!(log.done(delete((0, 1), id, "photos", 5)), Outcome::BucketGone(record.id));
    assert_eq!(log.apply(close()), Err(Refusal::NoSuchBucket));
}

#[test]
fn the_map_of_a_region_with_a_gateway_says_what_it_is_first() {
    let mut log = Log::cluster(2);
    log.done(claim((0x102, 0xab), (1, 1)));
    log.done(keep((1, 1), b"list"));
    let map = log.0.encode();
    assert_eq!(Topology::decode(&map).as_ref(), Ok(&log.0));
    let (region, gateway) = (log.0.region.take(), log.0.gateway.take());
    assert!(region.is_some() && gateway.is_some());
    // Version 3; number, fingerprint; the gateway's server and run; the list, behind its length, and how
    // much it knows; what version 1 has.
    let head = [&[3, 0x82, 0x02][..], &[0xab; 32], &[1, 1], &[4], b"list", &[4]].concat();
    assert_eq!(map, [&head[..], &log.0.encode()[1..]].concat());
}

#[test]
fn a_cluster_is_one_region_for_ever() {
    let mut log = Log::cluster(2);
    let set = |number, fingerprint| Command::SetRegion(record(number, fingerprint));
    assert_eq!(log.0.number(), RegionId::OWN);
    assert_eq!(log.apply(set(0, 1)), Err(Refusal::NoSuchRegion));
    let name = BucketName::new("abc").unwrap();
    log.done(Command::CreateBucket(name.clone(), None, 1));
    assert_eq!(log.done(set(2, 1)), Outcome::Done);
    assert_eq!(log.0.number(), RegionId(2));
    assert_eq!(log.apply(Command::BeginDeletion(name)), Err(Refusal::InRegion));
    assert_eq!(log.done(set(2, 1)), Outcome::Already);
    assert_eq!(log.apply(set(3, 1)), Err(Refusal::OtherRegion), "another number");
    assert_eq!(log.apply(set(2, 2)), Err(Refusal::OtherRegion), "another key");
    assert_eq!(Topology::decode(&log.0.encode()).as_ref(), Ok(&log.0));
}

#[test]
fn the_map_of_a_region_is_that_of_a_cluster_behind_what_it_is() {
    let mut log = Log::cluster(2);
    let alone = log.0.encode();
    log.done(Command::SetRegion(record(0x102, 0xab)));
    let Topology { version, applied, .. } = log.0;
    let region = log.0.encode();
    log.0.region = None;
    let same = Topology { version, applied, ..Topology::decode(&alone).unwrap() };
    // Version 2; the number as a varint; the fingerprint; and what version 1 has.
    let head = [&[2, 0x82, 0x02][..], &[0xab; 32]].concat();
    assert_eq!(region, [&head[..], &same.encode()[1..]].concat());
}
