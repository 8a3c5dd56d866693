use super::*;
use crate::manager::state::RegionRecord;
use larder_types::RegionId;

/// A region of this number, known by the key of which each byte of the fingerprint is this.
pub(super) fn record(number: u16, fingerprint: u8) -> RegionRecord {
    RegionRecord { number: RegionId(number), fingerprint: [fingerprint; 32] }
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
