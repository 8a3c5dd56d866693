//! Appends in a store among regions: each makes a new version, which others know by its stamp (ADR 53).

use std::ops::ControlFlow;

use bytes::Bytes;
use larder_protocol::region::entry::EntryKind;
use larder_protocol::region::{Entry, RemoteAppend, RemoteChange};
use larder_protocol::{Answer, AppendRefusal, Call, Content, Index, Refusal};
use larder_types::{
    Amendments, Appended, Attributes, Body, ETag, OpSeq, Origin, PieceEntry, RegionId, Stamp, rows,
};

use crate::appends::record;
use crate::remote_change::{entry, is_beaten, journal, origin_in, region, stamp, tell, version};
use crate::support::{BUCKET, EPOCH, Member, PG, name_of};

const A: RegionId = RegionId(1);
const B: RegionId = RegionId(2);

/// The stamps of a key's pieces, with the bytes at which they end.
fn pieces(member: &Member, name: &str) -> Vec<(u64, Stamp)> {
    let Body::Pieces { pieces, .. } = member.row(name).expect("an object").body else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let visited = member.table.scan_prefix(&rows::pieces(BUCKET, pieces), &mut |row, value| {
        let (_, _, end) = rows::parse_piece(row).expect("a piece's row");
        found.push((end, PieceEntry::decode(value).expect("a piece with its stamp").at));
        ControlFlow::Continue(())
    });
    visited.expect("a scan");
    found
}

fn appended(member: &mut Member, name: &str, text: &str) -> Appended {
    let token = record(member, name, text);
    member.settle();
    match &member.answers(token)[..] {
        [Answer::Appended(done)] => done.made.clone(),
        other => panic!("not just an append: {other:?}"),
    }
}

fn size(entry: &Entry) -> u64 {
    let EntryKind::Object(object) = &entry.what else { panic!("no object: {entry:?}") };
    object.metax.size
}

/// Tells the end of a version, as another region has it, behind `onto`.
fn tail(
    member: &mut Member,
    name: &str,
    (onto, offset): (Stamp, u64),
    (at, text): (Stamp, &str),
) -> RemoteChange {
    let (request, bucket, epoch, key) = (member.request(), BUCKET, EPOCH, name_of(name));
    let etag = ETag::Parts([at.clock.0 as u8; 16], 7);
    let made = Appended { offset, size: offset + text.len() as u64, etag, checksum: None };
    let attributes =
        Attributes { content_type: Some("text/plain".to_owned()), ..Attributes::default() };
    let content = Content::Inline(Bytes::copy_from_slice(text.as_bytes()));
    let (etag, origin) = (ETag::Md5([3; 16]), origin_in(at.region, at.clock.ms()));
    RemoteChange::Append(Box::new(RemoteAppend {
        request,
        bucket,
        epoch,
        key,
        onto,
        made,
        attributes,
        etag,
        content,
        at,
        origin,
    }))
}

fn is_appended(answers: &[Answer]) -> bool {
    matches!(answers, [Answer::Appended(_)])
}

#[test]
fn an_append_makes_a_new_version_that_the_journal_has() {
    let mut member = region(A);
    member.put_inline("k", "one");
    member.settle();
    let put = entry(&member, "k").expect("an object");
    appended(&mut member, "k", "two");
    let grown = entry(&member, "k").expect("an object");
    assert!(grown.at > put.at, "the greater stamp has more");
    assert_eq!(grown.at.region, A);
    assert_eq!(grown.origin, Origin { region: A, pg: PG, op: member.pg.applied() });
    let (before, after) = (size(&put), size(&put) + 3);
    assert_eq!(size(&grown), after);
    assert!(grown.is_sound(larder_protocol::region::Slot::Null));
    let reported = journal(&member);
    let last = reported.last().expect("it is told");
    assert_eq!((last.1.at, last.1.bytes, last.1.print), (grown.at, after, grown.print()));
    // A region that has either version can be told the rest.
    assert_eq!(pieces(&member, "k"), [(before, put.at), (after, grown.at)]);
}

#[test]
fn appends_that_wait_for_each_other_get_stamps_in_their_order() {
    let mut member = region(A);
    let all = ["one", "two", "three"].map(|text| record(&mut member, "k", text));
    member.settle();
    for token in all {
        assert!(is_appended(&member.answers(token)));
    }
    let found = pieces(&member, "k");
    assert_eq!(found.iter().map(|piece| piece.0).collect::<Vec<_>>(), [3, 6, 11]);
    assert!(found.is_sorted_by(|one, next| one.1 < next.1), "{found:?}");
    assert_eq!(found[2].1, entry(&member, "k").expect("an object").at);
}

#[test]
fn an_append_is_stamped_above_tombstones_and_remote_versions() {
    let mut member = region(A);
    let theirs = version(&mut member, "k", stamp(900_000, B), "theirs");
    tell(&mut member, theirs);
    appended(&mut member, "k", "ours");
    let grown = entry(&member, "k").expect("an object");
    assert!(grown.at > stamp(900_000, B), "whatever this machine's clock says");
    assert_eq!(pieces(&member, "k")[0], (6, stamp(900_000, B)));
    member.delete("k");
    member.settle();
    let gone = entry(&member, "k").expect("a tombstone");
    assert!(gone.is_purged());
    appended(&mut member, "k", "new");
    let made = entry(&member, "k").expect("an object");
    assert!(made.at > gone.at && size(&made) == 3);
}

#[test]
fn what_was_appended_elsewhere_goes_behind_what_is_here() {
    let mut member = region(A);
    let theirs = version(&mut member, "k", stamp(1000, B), "one");
    tell(&mut member, theirs);
    let (base, at) = ((stamp(1000, B), 3), stamp(5000, B));
    let reported = tail(&mut member, "k", base, (at, "twothree"));
    assert!(is_appended(&tell(&mut member, reported.clone())));
    let grown = entry(&member, "k").expect("an object");
    assert_eq!((grown.at, size(&grown)), (at, 11));
    assert_eq!(grown.origin, origin_in(B, 5000), "it is the region's own change");
    let EntryKind::Object(object) = &grown.what else { panic!("no object") };
    assert_eq!(object.metax.etag, ETag::Parts([at.clock.0 as u8; 16], 7), "as it is there");
    assert_eq!(object.metax.attributes.content_type.as_deref(), Some("text/plain"));
    assert_eq!(object.amended, Amendments::default());
    assert_eq!(journal(&member).len(), 2);
    assert_eq!(pieces(&member, "k"), [(3, stamp(1000, B)), (11, at)]);
    // Another time, it is here.
    let again = tail(&mut member, "k", base, (at, "twothree"));
    assert!(is_beaten(&tell(&mut member, again)));
    // An append here goes on where it goes on there.
    let made = appended(&mut member, "k", "four");
    assert_eq!((made.offset, made.size, made.etag.parts()), (11, 15, 8));
}

#[test]
fn what_was_appended_to_another_version_is_refused() {
    let mut member = region(A);
    let theirs = version(&mut member, "k", stamp(1000, B), "one");
    tell(&mut member, theirs);
    let refused = |size| vec![Answer::Refused(Refusal::Append(AppendRefusal::Offset { size }))];
    // Of the same length, so that only the stamp tells them apart.
    let other = tail(&mut member, "k", (stamp(900, B), 3), (stamp(5000, B), "two"));
    assert_eq!(tell(&mut member, other), refused(3));
    let longer = tail(&mut member, "k", (stamp(1000, B), 4), (stamp(5000, B), "two"));
    assert_eq!(tell(&mut member, longer), refused(3));
    let nothing = tail(&mut member, "nothing", (stamp(1000, B), 3), (stamp(5000, B), "two"));
    assert_eq!(tell(&mut member, nothing), refused(0));
    // A purge took it, and is older than the append.
    let (request, bucket, epoch, key) = (member.request(), BUCKET, EPOCH, name_of("k"));
    let (at, origin) = (stamp(2000, B), origin_in(B, 2000));
    tell(&mut member, RemoteChange::Purge { request, bucket, epoch, key, at, origin });
    let purged = tail(&mut member, "k", (stamp(1000, B), 3), (stamp(5000, B), "two"));
    assert_eq!(tell(&mut member, purged), refused(0));
    let beaten = tail(&mut member, "k", (stamp(1000, B), 3), (stamp(1500, B), "two"));
    assert!(is_beaten(&tell(&mut member, beaten)), "the purge is later");
    assert_eq!(journal(&member).len(), 2);
}

#[test]
fn a_tail_waits_until_the_key_rests() {
    let mut member = region(A);
    let theirs = version(&mut member, "k", stamp(1000, B), "one");
    tell(&mut member, theirs);
    let open = member.open_put("k", 1);
    member.settle();
    let reported = tail(&mut member, "k", (stamp(1000, B), 3), (stamp(5000, B), "two"));
    let token = member.call(Call::RemoteChange(Box::new(reported)));
    member.settle();
    assert_eq!(member.answers(token), [], "the put may win");
    member.commit(open, 1);
    member.settle();
    let refused = member.answers(token);
    let is_offset = |it: &Answer| matches!(it, Answer::Refused(Refusal::Append(_)));
    assert!(refused.len() == 1 && refused.iter().all(is_offset), "it has won: {refused:?}");
}

#[test]
fn a_store_that_becomes_a_region_has_pieces_without_stamps() {
    let mut member = Member::alone(1);
    record(&mut member, "k", "one");
    record(&mut member, "k", "two");
    member.settle();
    member.table.1.set(A);
    appended(&mut member, "k", "three");
    let row = member.row("k").expect("an object");
    let Body::Pieces { pieces, rows } = row.body else { panic!("no pieces") };
    assert_eq!(rows, 3);
    let mut stamped = Vec::new();
    let visited = member.table.scan_prefix(&rows::pieces(BUCKET, pieces), &mut |row, value| {
        let (_, _, end) = rows::parse_piece(row).expect("a piece's row");
        stamped.push((end, PieceEntry::decode(value).is_ok()));
        ControlFlow::Continue(())
    });
    visited.expect("a scan");
    assert_eq!(stamped, [(3, false), (6, false), (11, true)]);
    assert_eq!(journal(&member).last().map(|(op, _)| *op), Some(OpSeq(member.pg.applied().seq.0)));
}
