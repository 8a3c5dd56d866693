//! Objects and bytes of each bucket: after each batch the support of these tests holds what is counted against a scan.

use bytes::Bytes;
use larder_protocol::ledger::BucketCounts;
use larder_protocol::limits::{HISTORY_OPS_MIN, LEDGER_CHANGES_MAX};
use larder_protocol::pg::LedgerWalk;
use larder_protocol::region::RemoteChange;
use larder_protocol::{Answer, AppendCall, Call, Content, DataAnswer, Description, Event};
use larder_types::{
    Attributes, Condition, ETag, Grant, PartRef, RegionId, ServerId, Target, UploadId, View,
};

use crate::hostile::draw::Draw;
use crate::remote_change::{origin_in, region, stamp, tell, version};
use crate::support::{BLOCK, BUCKET, EPOCH, Member, data, key, name_of};
use crate::views::Cluster;

fn description(size: u64) -> Description {
    let (etag, attributes) = (ETag::Md5([1; 16]), Attributes::default());
    Description { size, etag, checksum: None, attributes }
}

fn inline(size: u64) -> Content {
    Content::Inline(Bytes::from(vec![1; size as usize]))
}

fn counting() -> Member {
    let mut member = Member::alone(1);
    member.count_objects();
    member
}

fn put(member: &mut Member, name: &str, size: u64) {
    member.put_as(name, Target::Version, size, inline(size));
    member.settle();
}

/// A put with data, granted and durable at this member.
fn put_blocks(member: &mut Member, name: &str, target: Target, blocks: u32) -> Grant {
    let size = u64::from(blocks * BLOCK);
    let token = member.put_as(name, target, size, data(blocks));
    let grant = member.granted(token);
    member.sync();
    grant
}

fn store(member: &mut Member, name: &str, target: Target, blocks: u32) {
    let grant = put_blocks(member, name, target, blocks);
    member.commit(grant, 1);
    member.settle();
}

fn append(member: &mut Member, name: &str, size: u64) {
    let request = member.request();
    member.call(Call::Append(Box::new(AppendCall {
        request,
        bucket: BUCKET,
        epoch: EPOCH,
        key: name_of(name),
        offset: None,
        description: description(size),
        content: inline(size),
        condition: Condition::default(),
    })));
    member.settle();
}

fn delete(member: &mut Member, name: &str) {
    member.delete(name);
    member.settle();
}

fn create_upload(member: &mut Member, name: &str) -> UploadId {
    let request = member.request();
    let (key, attributes) = (name_of(name), Attributes::default());
    let call = Call::CreateUpload {
        request,
        bucket: BUCKET,
        epoch: EPOCH,
        key,
        attributes,
        checksum: None,
    };
    let token = member.call(call);
    member.settle();
    match &member.answers(token)[..] {
        [Answer::Done { op, .. }] => UploadId { pg: member.pg.id(), op: *op },
        other => panic!("no upload: {other:?}"),
    }
}

/// Puts one part and completes the upload with it.
fn complete_upload(member: &mut Member, name: &str, upload: UploadId, blocks: u32) {
    let target = Target::Part { upload, number: 1 };
    let grant = put_blocks(member, name, target, blocks);
    member.commit(grant, 1);
    member.settle();
    let (request, size) = (member.request(), u64::from(blocks * BLOCK));
    let (key, description) = (name_of(name), Box::new(description(size)));
    let parts = vec![(PartRef { number: 1, len: size }, grant.op)];
    member.call(Call::CompleteUpload {
        request,
        bucket: BUCKET,
        epoch: EPOCH,
        key,
        upload,
        description,
        parts,
        condition: Condition::default(),
    });
    member.settle();
}

#[test]
fn puts_count_and_what_they_replace_counts_no_more() {
    let mut member = counting();
    assert_eq!(member.counted(), (0, 0));
    put(&mut member, "a", 5);
    put(&mut member, "b", 0);
    assert_eq!(member.counted(), (2, 5));
    put(&mut member, "a", 3);
    store(&mut member, "b", Target::Version, 2);
    let bytes = u64::from(2 * BLOCK);
    assert_eq!(member.counted(), (2, 3 + bytes));
    delete(&mut member, "a");
    delete(&mut member, "never");
    assert_eq!(member.counted(), (1, bytes));
    delete(&mut member, "b");
    assert_eq!(
        member.pg.counts(),
        Some(&BucketCounts::default()),
        "a bucket that is empty has none"
    );
}

#[test]
fn ops_of_one_batch_count_one_after_the_other() {
    let mut member = counting();
    for size in [4, 9, 2] {
        member.put_as("k", Target::Version, size, inline(size));
    }
    member.delete("k");
    member.put_as("k", Target::Version, 6, inline(6));
    member.put_as("other", Target::Version, 1, inline(1));
    member.settle();
    assert_eq!(member.counted(), (2, 7));
}

#[test]
fn a_put_counts_with_its_outcome_and_one_that_is_revoked_or_beaten_never() {
    let mut member = counting();
    let revoked = put_blocks(&mut member, "k", Target::Version, 3);
    member.apply();
    assert_eq!(member.counted(), (0, 0), "it has no outcome");
    member.call(Call::Withdraw { op: revoked.op, disk_full: false });
    member.answer(0, DataAnswer::Voided(revoked));
    member.settle();
    assert_eq!(member.counted(), (0, 0));
    let older = put_blocks(&mut member, "k", Target::Version, 4);
    member.put_as("k", Target::Version, 7, inline(7));
    member.settle();
    assert_eq!(member.counted(), (1, 7));
    member.commit(older, 1);
    member.settle();
    assert_eq!(member.counted(), (1, 7), "the later op won");
}

#[test]
fn an_upload_counts_when_it_is_complete() {
    let mut member = counting();
    put(&mut member, "k", 5);
    let upload = create_upload(&mut member, "k");
    let target = Target::Part { upload, number: 1 };
    store(&mut member, "k", target.clone(), 9);
    store(&mut member, "k", target, 3);
    assert_eq!(member.counted(), (1, 5), "parts count nothing");
    complete_upload(&mut member, "k", upload, 2);
    assert_eq!(member.counted(), (1, u64::from(2 * BLOCK)), "it replaced what was there");
    let other = create_upload(&mut member, "other");
    store(&mut member, "other", Target::Part { upload: other, number: 4 }, 1);
    let (request, key) = (member.request(), name_of("other"));
    member.call(Call::AbortUpload { request, bucket: BUCKET, key, upload: other });
    member.settle();
    assert_eq!(member.counted(), (1, u64::from(2 * BLOCK)));
}

#[test]
fn an_append_counts_its_bytes_and_its_object_once() {
    let mut member = counting();
    append(&mut member, "log", 5);
    append(&mut member, "log", 6);
    store(&mut member, "data", Target::Version, 1);
    append(&mut member, "data", 1);
    assert_eq!(member.counted(), (2, 11 + u64::from(BLOCK) + 1));
    delete(&mut member, "log");
    put(&mut member, "data", 2);
    assert_eq!(member.counted(), (1, 2), "pieces go with their object");
}

#[test]
fn what_another_region_tells_counts_as_a_put_does() {
    const B: RegionId = RegionId(2);
    let mut member = region(RegionId(1));
    member.count_objects();
    put(&mut member, "k", 4);
    let older = version(&mut member, "k", stamp(1, B), "beaten");
    tell(&mut member, older);
    assert_eq!(member.counted(), (1, 4));
    for (name, text) in [("k", "theirs"), ("new", "also theirs")] {
        let reported = version(&mut member, name, stamp(50_000, B), text);
        tell(&mut member, reported);
    }
    assert_eq!(member.counted(), (2, 17));
    append(&mut member, "new", 3);
    assert_eq!(member.counted(), (2, 20));
    let (request, key, origin) = (member.request(), name_of("k"), origin_in(B, 9));
    let (bucket, epoch, at) = (BUCKET, EPOCH, stamp(60_000, B));
    tell(&mut member, RemoteChange::Purge { request, bucket, epoch, key, at, origin });
    assert_eq!(member.counted(), (1, 14), "a tombstone counts nothing");
    delete(&mut member, "new");
    assert_eq!(member.pg.counts(), Some(&BucketCounts::default()));
}

#[test]
fn tags_and_renewals_leave_the_counts() {
    let mut member = region(RegionId(1));
    member.count_objects();
    put(&mut member, "k", 4);
    let request = member.request();
    let (key, tags) = (name_of("k"), vec![("a".to_owned(), "b".to_owned())]);
    member.call(Call::SetTags { request, bucket: BUCKET, key, tags });
    member.settle();
    let (request, was) = (member.request(), member.row("k").expect("an object").op);
    let (bucket, epoch, key) = (BUCKET, EPOCH, name_of("k"));
    tell(&mut member, RemoteChange::Renew { request, bucket, epoch, key, was });
    assert_ne!(member.row("k").expect("an object").op, was);
    assert_eq!(member.counted(), (1, 4));
}

#[test]
fn before_all_rows_are_read_nothing_is_counted_and_then_all_is_wherever_changes_came() {
    for stop in 0..=5 {
        let mut member = Member::alone(1);
        for (name, size) in [("a", 1), ("b", 20), ("c", 300), ("d", 0), ("e", 4000)] {
            put(&mut member, name, size);
        }
        let mut walk = LedgerWalk::new(1);
        walk.add(&mut member.pg);
        let mut is_read = (0..stop).any(|_| member.read_rows(&mut walk, 1));
        delete(&mut member, "b");
        put(&mut member, "a", 7);
        put(&mut member, "e", 8);
        put(&mut member, "bb", 9);
        append(&mut member, "c", 11);
        assert_eq!(member.pg.counts().is_none(), !is_read, "stopped at {stop}");
        while !is_read {
            is_read = member.read_rows(&mut walk, 1);
        }
        member.check_counts();
        assert_eq!(member.counted(), (5, 7 + 8 + 9 + 311), "stopped at {stop}");
    }
}

#[test]
fn what_is_known_of_blocks_may_be_given_up_and_learnt_again_without_the_counts() {
    let mut member = counting();
    put(&mut member, "a", 5);
    assert_eq!((member.pg.ledger(), member.counted()), (None, (1, 5)));
    let mut walk = LedgerWalk::new(1);
    walk.add(&mut member.pg);
    put(&mut member, "b", 6);
    assert_eq!(member.counted(), (2, 11), "they are known all the while");
    while !member.read_rows(&mut walk, 1) {}
    assert!(member.pg.ledger().is_some());
    member.check_counts();
}

#[test]
fn blocks_that_are_given_up_during_a_walk_leave_it_the_counts() {
    let mut member = Member::alone(1);
    put(&mut member, "a", 5);
    let mut walk = LedgerWalk::new(1);
    walk.add(&mut member.pg);
    assert!(!member.read_rows(&mut walk, 0));
    member.pg.forget_ledger();
    while !member.read_rows(&mut walk, 1) {}
    assert_eq!((member.pg.ledger(), member.counted()), (None, (1, 5)));
}

#[test]
fn a_walk_that_too_many_changes_overtook_counts_nothing_and_the_next_does() {
    let mut member = Member::alone(1);
    let mut walk = LedgerWalk::new(1);
    walk.add(&mut member.pg);
    for turn in 0..=LEDGER_CHANGES_MAX {
        member.put_as("k", Target::Version, 3, inline(3));
        if turn % 100 == 0 {
            member.settle();
        }
        member.effects.clear();
    }
    member.settle();
    while !member.read_rows(&mut walk, 1) {}
    assert!(member.pg.counts().is_none() && member.pg.wants_count());
    member.count_objects();
    assert_eq!(member.counted(), (1, 3));
}

#[test]
fn after_a_start_the_rows_are_counted_anew() {
    let mut member = counting();
    put(&mut member, "a", 5);
    let mut member = member.restart();
    assert_eq!(member.pg.counts(), None);
    member.begin(2, &[1]);
    put(&mut member, "b", 1);
    member.serve(1);
    member.count_objects();
    assert_eq!(member.counted(), (1, 5));
}

#[test]
fn a_member_that_takes_a_snapshot_counts_what_it_takes() {
    let mut cluster = Cluster::serving(1, [2, 3]);
    for (name, size) in [("a", 1), ("b", 20)] {
        cluster.at(1).put_as(name, Target::Version, size, inline(size));
    }
    // More ops than a primary remembers for others.
    for turn in 0..=HISTORY_OPS_MIN {
        cluster.at(1).put_as("c", Target::Version, 300, inline(300));
        if turn % 50 == 0 {
            cluster.settle();
        }
    }
    cluster.settle();
    // A new machine in place of the third.
    cluster.replace(3);
    for id in [1, 2] {
        cluster.at(id).begin(2, &[1, 2]);
    }
    cluster.settle();
    cluster.at(1).serve(1);
    cluster.at(3).step(Event::Learn { view: View(2), primary: ServerId(1) });
    assert_eq!(cluster.at(3).pg.counts(), None, "its rows are not here");
    cluster.settle();
    assert_eq!(cluster.at(1).snapshots_begun, 1);
    assert_eq!(cluster.at(3).counted(), (3, 321));
    delete(cluster.at(1), "b");
    append(cluster.at(1), "a", 2);
    cluster.settle();
    assert_eq!(cluster.at(3).counted(), (2, 303), "it hears of changes like any other");
    cluster.at(2).count_objects();
    assert_eq!(cluster.at(2).counted(), (2, 303));
}

/// Puts without an outcome, of which each ends later in some way.
struct Open(Vec<Grant>);

fn act(member: &mut Member, draw: &mut Draw, open: &mut Open) {
    let name = format!("k{}", draw.below(6));
    let size = draw.below(9);
    match draw.below(10) {
        0..=2 => drop(member.put_as(&name, Target::Version, size, inline(size))),
        3 => drop(member.delete(&name)),
        4 => append(member, &name, size + 1),
        5 => {
            let size = u64::from(BLOCK);
            let token = member.put_as(&name, Target::Version, size, data(1));
            if let [Answer::Granted { grant, .. }] = member.answers(token)[..] {
                open.0.push(grant);
            }
        }
        6 if !open.0.is_empty() => {
            let at = draw.below(open.0.len() as u64) as usize;
            let grant = open.0.swap_remove(at);
            member.commit(grant, 1);
        }
        7 if !open.0.is_empty() => {
            let Grant { op, .. } = open.0.swap_remove(0);
            member.call(Call::Withdraw { op, disk_full: false });
        }
        8 => member.settle(),
        _ => member.sync(),
    }
    for (replica, request) in member.requests() {
        use larder_protocol::DataRequest::{RaiseFloor, Void};
        match request {
            Void { grant, .. } => member.answer(replica, DataAnswer::Voided(grant)),
            RaiseFloor { floor } => member.answer(replica, DataAnswer::Floor(floor)),
            _ => {}
        }
    }
}

#[test]
fn whatever_clients_do_and_whenever_rows_are_read_the_counts_are_those_of_a_scan() {
    for seed in 0..200 {
        let mut draw = Draw::new(seed);
        let (mut member, mut open) = (Member::alone(1), Open(Vec::new()));
        let mut walk = LedgerWalk::new(1);
        let mut is_read = false;
        for turn in 0..150 {
            act(&mut member, &mut draw, &mut open);
            if turn == 40 {
                walk.add(&mut member.pg);
            }
            if turn >= 40 && !is_read && draw.one_in(4) {
                is_read = member.read_rows(&mut walk, 1 + draw.below(4) as usize);
            }
        }
        while !is_read {
            is_read = member.read_rows(&mut walk, 2);
        }
        open.0.drain(..).for_each(|grant| member.commit(grant, 1));
        let floor = key(1, member.pg.last().seq.0 + 1);
        member.answer(0, DataAnswer::Floor(floor));
        member.settle();
        assert_eq!(member.pg.counts(), Some(&member.scanned()), "seed {seed}");
    }
}
