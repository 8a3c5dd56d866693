//! A store among regions: stamps, tombstones, the journal, and what others tell.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use larder_protocol::limits::{REGION_FORGET_OPS_MAX, REGION_JOURNAL_OPS_MAX};
use larder_protocol::pg::Recovering;
use larder_protocol::region::key_rows::{KeyRows, journal_row_id};
use larder_protocol::region::{Entry, RemoteChange, RemotePutCall, entry::EntryKind};
use larder_protocol::{
    Answer, Call, Content, Description, Event, Index, Planted, PutCall, Refusal, RowSpan,
};
use larder_types::{
    Amendments, Condition, FreedTombstone, HybridClock, JournalRow, OpId, OpSeq, Origin, Passed,
    PgId, RegionId, Request, Stamp, Target, View, rows,
};

use crate::hostile::draw::Draw;
use crate::support::{BUCKET, EPOCH, Member, PG, name_of, origin};

pub(super) const A: RegionId = RegionId(1);
const B: RegionId = RegionId(2);

pub(super) fn region(number: RegionId) -> Member {
    let member = Member::alone(1);
    member.table.1.set(number);
    member
}

pub(super) fn stamp(ms: u64, region: RegionId) -> Stamp {
    Stamp { clock: HybridClock::at_ms(ms), region }
}

pub(super) fn origin_in(region: RegionId, op: u64) -> Origin {
    Origin { region, pg: PgId(7), op: OpId { view: View(1), seq: OpSeq(op) } }
}

fn kept(member: &Member, name: &str) -> KeyRows {
    KeyRows::read(BUCKET, &name_of(name), &member.table).expect("readable rows")
}

pub(super) fn entry(member: &Member, name: &str) -> Option<Entry> {
    kept(member, name).entry(member.table.1.get(), PG)
}

/// A version of a few bytes, as another region has it.
pub(super) fn version(member: &mut Member, name: &str, at: Stamp, text: &str) -> RemoteChange {
    let put = PutCall {
        request: member.request(),
        bucket: BUCKET,
        epoch: EPOCH,
        key: name_of(name),
        target: Target::Version,
        description: Description {
            size: text.len() as u64,
            etag: larder_types::ETag::Md5([at.clock.0 as u8; 16]),
            checksum: None,
            attributes: larder_types::Attributes::default(),
        },
        content: Content::Inline(Bytes::copy_from_slice(text.as_bytes())),
        condition: Condition::default(),
        required_copies: 0,
    };
    let (origin, amended) = (origin_in(at.region, at.clock.ms()), Amendments::default());
    RemoteChange::Put(Box::new(RemotePutCall { put, at, origin, parts: Vec::new(), amended }))
}

/// The call that has an entry taken.
fn change(member: &mut Member, name: &str, entry: &Entry) -> RemoteChange {
    let request = member.request();
    let (bucket, epoch, key) = (BUCKET, EPOCH, name_of(name));
    match &entry.what {
        EntryKind::Object(object) => {
            let put = PutCall {
                request,
                bucket,
                epoch,
                key,
                target: Target::Version,
                description: Description {
                    size: object.metax.size,
                    etag: object.metax.etag.clone(),
                    checksum: object.metax.checksum.clone(),
                    attributes: object.metax.attributes.clone(),
                },
                content: Content::Inline(Bytes::from(vec![1; object.metax.size as usize])),
                condition: Condition::default(),
                required_copies: 0,
            };
            let (at, origin, parts) = (entry.at, entry.origin, object.parts.clone());
            let amended = object.amended;
            RemoteChange::Put(Box::new(RemotePutCall { put, at, origin, parts, amended }))
        }
        EntryKind::Purged => {
            RemoteChange::Purge { request, bucket, epoch, key, at: entry.at, origin: entry.origin }
        }
        EntryKind::Marker => unreachable!("no bucket has versions"),
    }
}

pub(super) fn tell(member: &mut Member, change: RemoteChange) -> Vec<Answer> {
    assert_eq!(member.pg.admits_call(&Call::RemoteChange(Box::new(change.clone()))), Ok(()));
    let token = member.call(Call::RemoteChange(Box::new(change)));
    member.settle();
    member.answers(token)
}

pub(super) fn is_beaten(answers: &[Answer]) -> bool {
    answers == [Answer::Refused(Refusal::Beaten)]
}

fn is_done(answers: &[Answer]) -> bool {
    matches!(answers, [Answer::Done { .. }])
}

pub(super) fn journal(member: &Member) -> Vec<(OpSeq, JournalRow)> {
    let mut found = Vec::new();
    let scanned = member.table.scan_prefix(&rows::journal(PG), &mut |row, value| {
        let (pg, op) = rows::parse_outcome(row).expect("an outcome");
        assert_eq!(pg, PG);
        if op > OpSeq(0) {
            found.push((op, JournalRow::decode(value).expect("a row of the journal")));
        }
        ControlFlow::Continue(())
    });
    scanned.expect("a scan");
    found
}

#[test]
fn a_store_that_is_alone_writes_nothing_of_regions() {
    let mut member = Member::alone(1);
    member.put_inline("k", "one");
    member.settle();
    member.delete("k");
    member.settle();
    assert_eq!(journal(&member), []);
    assert_eq!(kept(&member, "k"), KeyRows::default());
    let change = version(&mut member, "k", stamp(500, B), "theirs");
    assert_eq!(tell(&mut member, change), [Answer::Refused(Refusal::NoRegion)]);
}

#[test]
fn an_append_begun_before_the_store_was_a_region_is_replicated() {
    let mut member = region(A);
    crate::appends::record(&mut member, "k", "piece");
    member.settle();
    let made = entry(&member, "k").expect("an object");
    assert_eq!((journal(&member).len(), made.at.region), (1, A));
}

#[test]
fn the_greater_stamp_wins_whoever_made_it() {
    let mut member = region(A);
    member.put_inline("k", "ours");
    member.settle();
    let ours = entry(&member, "k").expect("an object");
    assert_eq!((ours.at.region, ours.origin.region, ours.origin.pg), (A, A, PG));
    let older = version(&mut member, "k", stamp(999, B), "older");
    assert!(is_beaten(&tell(&mut member, older)), "ours is newer");
    // Of one clock the region with the greater number wins.
    let same = Stamp { region: B, ..ours.at };
    let tie = version(&mut member, "k", same, "tie");
    assert!(is_done(&tell(&mut member, tie)));
    let theirs = entry(&member, "k").expect("an object");
    assert_eq!((theirs.at, theirs.origin.region), (same, B));
    let again = version(&mut member, "k", same, "tie");
    assert!(is_beaten(&tell(&mut member, again)), "it is here");
    member.wall_ms = 1001;
    member.put_inline("k", "ours again");
    member.settle();
    assert!(entry(&member, "k").expect("an object").at > same);
}

#[test]
fn a_change_is_above_what_it_replaces_after_a_restart_and_when_the_clock_goes_back() {
    let mut member = region(A);
    let ahead = version(&mut member, "k", stamp(50_000, B), "from a fast clock");
    assert!(is_done(&tell(&mut member, ahead)));
    // The log that tells of it is trimmed.
    member.log.clear();
    member.synced = 0;
    let mut member = member.restart();
    member.begin(2, &[1]);
    member.serve(1);
    member.put_inline("k", "ours");
    member.settle();
    let ours = entry(&member, "k").expect("an object");
    assert_eq!(ours.at, Stamp { clock: HybridClock(stamp(50_000, B).clock.0 + 1), region: A });
    // The same for a purge that another region told.
    let request = member.request();
    let (bucket, epoch, key) = (BUCKET, EPOCH, name_of("k"));
    let (at, origin) = (stamp(60_000, B), origin_in(B, 9));
    let purge = RemoteChange::Purge { request, bucket, epoch, key, at, origin };
    assert!(is_done(&tell(&mut member, purge)));
    assert!(entry(&member, "k").expect("a tombstone").is_purged());
    member.put_inline("k", "there again");
    member.settle();
    assert!(entry(&member, "k").expect("an object").at > at);
}

#[test]
fn a_delete_leaves_a_tombstone_that_beats_what_is_older_and_not_what_is_newer() {
    let mut member = region(A);
    member.delete("k");
    member.settle();
    let purged = entry(&member, "k").expect("a tombstone, though there was no object");
    assert!(purged.is_purged());
    let older = version(&mut member, "k", stamp(900, B), "older");
    assert!(is_beaten(&tell(&mut member, older)));
    assert!(member.row("k").is_none());
    let newer = version(&mut member, "k", stamp(2000, B), "newer");
    assert!(is_done(&tell(&mut member, newer)));
    assert!(!entry(&member, "k").expect("an object").is_purged());
    assert!(kept(&member, "k").tombstone.is_some(), "a put leaves it alone");
}

#[test]
fn what_is_told_waits_for_a_pending_put_and_is_then_looked_at() {
    let mut member = region(A);
    let grant = member.open_put("k", 1);
    member.settle();
    let newer = version(&mut member, "k", stamp(2000, B), "newer");
    let token = member.call(Call::RemoteChange(Box::new(newer)));
    member.settle();
    assert_eq!(member.answers(token), [], "the put's outcome would come later and win");
    member.commit(grant, 1);
    member.settle();
    assert!(is_done(&member.answers(token)));
    assert_eq!(entry(&member, "k").expect("an object").at, stamp(2000, B));
    // A client's put that comes after one of another region whose data is on its way is greater, and wins.
    let mut late = version(&mut member, "k", stamp(3000, B), "");
    if let RemoteChange::Put(version) = &mut late {
        version.put.content = crate::support::data(1);
        version.put.description.size = 4096;
    }
    let token = member.call(Call::RemoteChange(Box::new(late)));
    let grant = member.granted(token);
    member.put_inline("k", "ours");
    member.settle();
    member.commit(grant, 1);
    member.settle();
    let ours = entry(&member, "k").expect("an object");
    assert_eq!(ours.at.region, A);
    assert!(ours.at > stamp(3000, B));
}

#[test]
fn every_change_has_a_journal_row_that_is_trimmed_once_sent() {
    let mut member = region(A);
    for text in ["one", "two"] {
        member.put_inline("k", text);
        member.settle();
    }
    let grant = member.open_put("l", 1);
    member.settle();
    assert_eq!(journal(&member).len(), 2, "what has no outcome is not told of");
    member.commit(grant, 1);
    member.settle();
    let request = member.request();
    let (bucket, key, tags) = (BUCKET, name_of("l"), vec![("a".to_owned(), "b".to_owned())]);
    member.call(Call::SetTags { request, bucket, key, tags });
    member.settle();
    member.delete("k");
    member.settle();
    let rows = journal(&member);
    assert_eq!(rows.len(), 5);
    for (name, at) in [("k", 4), ("l", 3)] {
        let id =
            entry(&member, name).expect("an entry").id(journal_row_id(rows[at].1.clone()).name);
        assert_eq!(
            journal_row_id(rows[at].1.clone()),
            id,
            "the last row of a key tells what is there"
        );
    }
    let told_at: Vec<OpSeq> = rows.iter().map(|(_, row)| row.origin.op.seq).collect();
    let (of_l, ops) = (rows[2].0, rows.iter().map(|(op, _)| *op).collect::<Vec<_>>());
    assert_eq!(
        told_at,
        [ops[0], ops[1], of_l, of_l, ops[4]],
        "whoever has passed an origin has the change"
    );
    let request = member.request();
    let passed = vec![Passed { region: B, pg: PgId(9), through: OpSeq(77) }];
    let forgotten = Some((rows[0].0, rows[2].0));
    let note = RemoteChange::Note { request, passed: passed.clone(), forgotten };
    assert!(is_done(&tell(&mut member, note)));
    assert_eq!(journal(&member), rows[3..]);
    let row = member.table.get(&rows::passed(PG, B, PgId(9))).expect("a row").expect("noted");
    assert_eq!(Passed::decode(&row), Ok(passed[0]));
    let head = member.table.get(&rows::outcome(PG, OpSeq(0))).expect("a row").expect("a head");
    assert_eq!(larder_types::JournalHead::decode(&head).expect("a head").forgotten, rows[2].0);
}

#[test]
fn a_journal_is_kept_for_its_time_whether_or_not_it_is_read() {
    let mut member = region(A);
    member.put_inline("first", "one");
    member.settle();
    let first = journal(&member)[0].0;
    let end = |member: &Member| member.pg.applied().seq.0;
    let go_on = |member: &mut Member, upto: u64| {
        while end(member) < upto {
            for _ in 0..64 {
                member.put_inline("k", "again");
            }
            member.settle();
            member.effects.clear();
            let Request { session, number: floor, .. } = member.request();
            member.step(Event::Floor { session, floor });
        }
    };
    go_on(&mut member, REGION_JOURNAL_OPS_MAX);
    assert_eq!(journal(&member)[0].0, first, "no region has been told of it yet");
    let upto = end(&member) + 2 * REGION_FORGET_OPS_MAX;
    go_on(&mut member, upto);
    let kept = journal(&member);
    assert!(kept[0].0.0 + REGION_JOURNAL_OPS_MAX + REGION_FORGET_OPS_MAX >= end(&member));
    assert!(kept[0].0.0 + REGION_JOURNAL_OPS_MAX <= end(&member), "it reaches back so far");
    let head = member.table.get(&rows::outcome(PG, OpSeq(0))).expect("a row").expect("a head");
    let forgotten = larder_types::JournalHead::decode(&head).expect("a head").forgotten;
    assert!(first <= forgotten && forgotten < kept[0].0);
}

#[test]
fn what_no_journal_tells_of_is_waited_for_and_nothing_else() {
    let mut member = Member::alone(1);
    let before = member.open_put("before", 1);
    member.settle();
    member.table.1.set(A);
    member.put_data("in doubt", 1);
    member.settle();
    let barrier = member.call(Call::Barrier);
    member.settle();
    assert_eq!(member.answers(barrier), [], "nobody else would tell of it");
    member.commit(before, 1);
    member.settle();
    assert_eq!(member.answers(barrier), [Answer::Passed]);
}

/// A home moves behind the ends of journals: what was decided before has to be in them. A barrier does not say that of a put with data.
#[test]
fn a_put_with_data_is_replicated_before_its_row_settles() {
    let mut member = region(A);
    let put = member.open_put("k", 1);
    member.settle();
    let from = rows::bucket(b'V', BUCKET);
    let span = RowSpan { to: rows::prefix_end(&from), from };
    let (barrier, settled) = (member.call(Call::Barrier), member.call(Call::Settle(span)));
    member.settle();
    assert_eq!(member.answers(barrier), [Answer::Passed]);
    assert_eq!(member.answers(settled), []);
    let end = member.pg.applied().seq;
    member.commit(put, 1);
    member.settle();
    assert_eq!(member.answers(settled), [Answer::Settled(None)]);
    let last = journal(&member).last().expect("it is told").0;
    assert!(end < last && last <= member.pg.applied().seq);
}

#[test]
fn tags_go_by_the_last_writer_and_with_their_version_alone() {
    let mut member = region(A);
    member.put_inline("k", "one");
    member.settle();
    let put_at = entry(&member, "k").expect("an object").at;
    let amend = |member: &mut Member, at, tags_at, tag: &str| {
        let request = member.request();
        let (bucket, epoch, key) = (BUCKET, EPOCH, name_of("k"));
        let amended = Amendments { tags_at: Some(tags_at), ..Amendments::default() };
        let tags = vec![("tag".to_owned(), tag.to_owned())];
        tell(member, RemoteChange::Amend { request, bucket, epoch, key, at, tags, amended })
    };
    let tag = |member: &Member| match entry(member, "k").expect("an object").what {
        EntryKind::Object(object) => object.metax.attributes.tags[0].1.clone(),
        what => panic!("no object: {what:?}"),
    };
    assert!(is_done(&amend(&mut member, put_at, stamp(3000, B), "late")));
    assert!(is_done(&amend(&mut member, put_at, stamp(2000, B), "early")));
    assert_eq!(tag(&member), "late");
    assert!(is_beaten(&amend(&mut member, stamp(1, B), stamp(9000, B), "of another version")));
    // A client of this region sets them later, whatever its clock says.
    let request = member.request();
    let (bucket, key, tags) = (BUCKET, name_of("k"), vec![("tag".to_owned(), "ours".to_owned())]);
    member.call(Call::SetTags { request, bucket, key, tags });
    member.settle();
    assert_eq!(tag(&member), "ours");
    assert_eq!(entry(&member, "k").expect("an object").at, put_at, "it is the same version");
}

/// Renews the version of a key that this op made.
fn renew(member: &mut Member, name: &str, was: OpId) -> Vec<Answer> {
    let (request, bucket, epoch, key) = (member.request(), BUCKET, EPOCH, name_of(name));
    tell(member, RemoteChange::Renew { request, bucket, epoch, key, was })
}

#[test]
fn a_version_that_is_renewed_is_one_that_no_region_has_passed() {
    let mut member = region(A);
    let theirs = version(&mut member, "k", stamp(500_000, B), "theirs");
    tell(&mut member, theirs);
    let (request, bucket, key) = (member.request(), BUCKET, name_of("k"));
    let tags = vec![("tag".to_owned(), "ours".to_owned())];
    member.call(Call::SetTags { request, bucket, key, tags: tags.clone() });
    member.settle();
    let before = entry(&member, "k").expect("an object");
    let was = kept(&member, "k").version.expect("a version").row.op;
    let other = OpId { view: was.view, seq: OpSeq(was.seq.0 + 1) };
    assert!(is_beaten(&renew(&mut member, "k", other)), "another version");
    assert!(is_beaten(&renew(&mut member, "nothing", was)));
    assert_eq!(entry(&member, "k").as_ref(), Some(&before));
    assert!(is_done(&renew(&mut member, "k", was)));
    let after = entry(&member, "k").expect("an object");
    let op = member.pg.applied();
    assert_eq!(after.origin, Origin { region: A, pg: PG, op }, "it was in no other region");
    let above = Stamp { clock: before.clock().advance(0), region: A };
    assert_eq!(after.at, above, "what another region does of it is later");
    assert!(after.is_sound(larder_protocol::region::Slot::Null));
    let (EntryKind::Object(before), EntryKind::Object(after)) = (before.what, after.what) else {
        panic!("no objects")
    };
    assert_eq!(after.metax.attributes.tags, tags);
    assert_eq!((after.metax.size, &after.metax.etag), (before.metax.size, &before.metax.etag));
    assert_eq!(after.amended, Amendments::default());
    assert_eq!(journal(&member).last().map(|(op, _)| *op), Some(op.seq), "it is told");
    assert!(is_beaten(&renew(&mut member, "k", was)), "once");
    // A change of B's to the version that was renewed is older.
    let tells = version(&mut member, "k", stamp(500_000, B), "theirs");
    assert!(is_beaten(&tell(&mut member, tells)));
}

#[test]
fn a_put_that_is_under_way_is_not_renewed_away() {
    let mut member = region(A);
    member.store("k", 1, 1);
    let was = kept(&member, "k").version.expect("a version").row.op;
    let open = member.open_put("k", 1);
    member.settle();
    assert_eq!(renew(&mut member, "k", was), [], "it waits for the put");
    member.commit(open, 1);
    member.settle();
    let now = kept(&member, "k").version.expect("a version").row.op;
    assert_eq!(now, open.op, "the put wins");
    assert!(is_done(&renew(&mut member, "k", now)));
    member.delete("k");
    member.settle();
    assert!(
        kept(&member, "k").version.is_none(),
        "its blocks are freed by the row that names them"
    );
}

/// The call that frees the tombstone of a key.
fn free(member: &mut Member, name: &str, at: Stamp) -> RemoteChange {
    let (bucket, key, request) = (BUCKET, name_of(name), member.request());
    RemoteChange::Free { request, tombstones: vec![FreedTombstone { bucket, key, at }] }
}

#[test]
fn a_put_after_a_tombstone_was_freed_is_above_it() {
    let mut member = region(A);
    let (bucket, epoch, key) = (BUCKET, EPOCH, name_of("k"));
    let (at, origin) = (stamp(60_000, B), origin_in(B, 9));
    let request = member.request();
    assert!(is_done(&tell(
        &mut member,
        RemoteChange::Purge { request, bucket, epoch, key, at, origin }
    )));
    let call = free(&mut member, "k", at);
    assert!(is_done(&tell(&mut member, call)));
    assert_eq!(kept(&member, "k"), KeyRows::default());
    // The log that tells of it is trimmed, and the clock is behind it.
    member.log.clear();
    member.synced = 0;
    let mut member = member.restart();
    member.begin(2, &[1]);
    member.serve(1);
    member.put_inline("k", "there again");
    member.settle();
    assert!(entry(&member, "k").expect("an object").at > at, "region B has the tombstone still");
    // It is of the group, not of the key.
    member.put_inline("another", "new");
    member.settle();
    assert!(entry(&member, "another").expect("an object").at > at);
}

#[test]
fn a_tombstone_that_is_another_by_now_stays() {
    let mut member = region(A);
    member.delete("k");
    member.settle();
    let first = entry(&member, "k").expect("a tombstone").at;
    member.delete("k");
    member.settle();
    let second = entry(&member, "k").expect("a tombstone").at;
    let call = free(&mut member, "k", first);
    assert!(is_beaten(&tell(&mut member, call)), "nothing is to be done");
    assert_eq!(entry(&member, "k").expect("a tombstone").at, second);
    // One below a version goes, and the version stays.
    member.put_inline("k", "there again");
    member.settle();
    let call = free(&mut member, "k", second);
    assert!(is_done(&tell(&mut member, call)));
    assert_eq!(kept(&member, "k").tombstone, None);
    assert!(entry(&member, "k").expect("an object").at > second);
    // Nor does one go whose key is changing.
    member.delete("k");
    member.settle();
    let third = entry(&member, "k").expect("a tombstone").at;
    let grant = member.open_put("k", 1);
    let call = free(&mut member, "k", third);
    assert!(is_beaten(&tell(&mut member, call)));
    member.commit(grant, 1);
    member.settle();
    assert!(entry(&member, "k").expect("an object").at > third);
}

/// Two regions that change a few keys, tell each other now and then, and start again with less of their logs and with
/// clocks that go back. In the end each hears of all that the other has. Returns how they differ.
fn two_regions(seed: u64, planted: Planted) -> Option<String> {
    let mut rng = Draw::new(seed);
    let mut members = [A, B].map(|number| {
        let mut member = region(number);
        let mut from = origin(member.me, member.pg.applied(), None);
        from.planted = planted;
        let mut recovering = Recovering::new(from);
        for (entry, commit) in &member.log {
            recovering.replay(entry.id, (*entry.op).clone(), *commit);
        }
        member.pg = recovering.finish().expect("a log that fits");
        member.begin(2, &[1]);
        member.serve(1);
        member
    });
    let names = ["a", "b", "c"];
    let mut seen: BTreeMap<(usize, &str), Stamp> = BTreeMap::new();
    for _ in 0..60 {
        let (at, name) = (rng.below(2) as usize, names[rng.below(3) as usize]);
        match rng.below(8) {
            0..=2 => {
                members[at].put_inline(name, &"x".repeat(rng.below(9) as usize));
            }
            3 => {
                members[at].delete(name);
            }
            4 => {
                let request = members[at].request();
                let tags = vec![("t".to_owned(), rng.below(1000).to_string())];
                let (bucket, key) = (BUCKET, name_of(name));
                members[at].call(Call::SetTags { request, bucket, key, tags });
            }
            5 => members[at].wall_ms = 1000 + rng.below(50),
            _ => exchange(&mut members, at, name),
        }
        members[at].settle();
        members[at].effects.clear();
        if let Some(entry) = entry(&members[at], name)
            && let Some(before) = seen.insert((at, name), entry.at)
            && before > entry.at
        {
            return Some(format!("seed {seed}: {name} goes back from {before} to {}", entry.at));
        }
    }
    for at in [0, 1, 0] {
        names.iter().for_each(|name| exchange(&mut members, at, name));
    }
    names.iter().find_map(|name| {
        let [one, other] = [0, 1].map(|at| entry(&members[at], name));
        let shown = |entry: &Option<Entry>| entry.as_ref().map(Entry::print);
        (shown(&one) != shown(&other)).then(|| format!("seed {seed}: {name}: {one:?}, {other:?}"))
    })
}

/// A region tells the other of what it has of a key.
fn exchange(members: &mut [Member; 2], to: usize, name: &str) {
    let Some(theirs) = entry(&members[1 - to], name) else { return };
    let to = &mut members[to];
    let call = change(to, name, &theirs);
    let answers = tell(to, call);
    assert!(is_done(&answers) || is_beaten(&answers), "{answers:?}");
    if let EntryKind::Object(object) = &theirs.what {
        let request = to.request();
        let (bucket, epoch, key, at) = (BUCKET, EPOCH, name_of(name), theirs.at);
        let (tags, amended) = (object.metax.attributes.tags.clone(), object.amended);
        tell(to, RemoteChange::Amend { request, bucket, epoch, key, at, tags, amended });
    }
}

#[test]
fn two_regions_come_to_the_same() {
    for seed in 0..300 {
        assert_eq!(two_regions(seed, Planted::default()), None);
    }
}

#[cfg(feature = "planted-bugs")]
#[test]
fn that_one_takes_what_is_beaten_is_found() {
    let found = (0..20).find_map(|seed| two_regions(seed, Planted::BeatenTaken));
    assert!(found.is_some(), "a region that takes what is older shows");
}
