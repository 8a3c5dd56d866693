//! Appends: where they begin, when they are answered, and what is left of those that did not happen.

use bytes::Bytes;
use larder_protocol::{
    Answer, AppendCall, AppendRefusal, Call, Content, Description, Index, Refusal, Token,
};
use larder_types::codec::decode;
use larder_types::limits::PIECES_UNCOALESCED_MAX;
use larder_types::{
    Appended, Attributes, Body, Condition, ETag, EtagList, PieceRow, PiecesId, Request, SessionId,
    StreamId, Target, rows,
};

use crate::support::{BLOCK, BUCKET, EPOCH, LV_BLOCKS, Member, mismatch, name_of};

fn description(size: u64) -> Description {
    let etag = ETag::Md5([size as u8; 16]);
    Description { size, etag, checksum: None, attributes: Attributes::default() }
}

fn call(
    request: Request,
    name: &str,
    offset: Option<u64>,
    size: u64,
    content: Content,
) -> AppendCall {
    AppendCall {
        request,
        bucket: BUCKET,
        epoch: EPOCH,
        key: name_of(name),
        offset,
        description: description(size),
        content,
        condition: Condition::default(),
    }
}

pub(super) fn inline(request: Request, name: &str, offset: Option<u64>, text: &str) -> Call {
    let content = Content::Inline(Bytes::copy_from_slice(text.as_bytes()));
    Call::Append(Box::new(call(request, name, offset, text.len() as u64, content)))
}

pub(super) fn record(member: &mut Member, name: &str, text: &str) -> Token {
    let request = member.request();
    member.call(inline(request, name, None, text))
}

fn append_at(member: &mut Member, name: &str, offset: u64, text: &str) -> Token {
    let request = member.request();
    member.call(inline(request, name, Some(offset), text))
}

/// Returns the version that an append has made, if that is all that its caller was answered.
fn made(member: &mut Member, token: Token) -> Appended {
    match &member.answers(token)[..] {
        [Answer::Appended(done)] => done.made.clone(),
        other => panic!("not just an append: {other:?}"),
    }
}

fn offset(member: &mut Member, token: Token) -> u64 {
    made(member, token).offset
}

fn ends_at(size: u64) -> Refusal {
    Refusal::Append(AppendRefusal::Offset { size })
}

/// Where the pieces of an object begin and end, and of which bytes those are that lie inline.
fn pieces(member: &Member, name: &str) -> Vec<(u64, u64, Option<Bytes>)> {
    let row = member.row(name).expect("the object");
    let Body::Pieces { pieces, rows } = row.body else { panic!("no pieces: {:?}", row.body) };
    let found = piece_rows(member, pieces);
    assert_eq!(found.len(), rows as usize, "the object says how many pieces it has");
    let bytes = |piece: PieceRow| match piece.body {
        Body::Inline(bytes) => Some(bytes),
        _ => None,
    };
    found.into_iter().map(|(end, piece)| (piece.start, end, bytes(piece))).collect()
}

pub(super) fn piece_rows(member: &Member, pieces: PiecesId) -> Vec<(u64, PieceRow)> {
    let mut found = Vec::new();
    let visited = member.table.scan_prefix(&rows::pieces(BUCKET, pieces), &mut |row, value| {
        let (_, _, end) = rows::parse_piece(row).expect("a piece's row");
        found.push((end, decode("piece row", value).expect("a piece")));
        std::ops::ControlFlow::Continue(())
    });
    visited.expect("a scan");
    found
}

pub(super) fn stream(number: u64) -> StreamId {
    StreamId { session: SessionId(1), number }
}

/// Appends a stream of one chunk as a record.
pub(super) fn record_stream(member: &mut Member, name: &str, of: StreamId, blocks: u32) -> Token {
    let request = member.request();
    let size = u64::from(blocks * BLOCK);
    let content = Content::Stream { stream: of, chunks: 1, chunk_bytes: blocks * BLOCK };
    member.call(Call::Append(Box::new(call(request, name, None, size, content))))
}

#[test]
fn an_append_is_answered_when_the_index_shows_it() {
    let mut member = Member::alone(1);
    member.put_inline("k", "one");
    member.settle();
    let token = append_at(&mut member, "k", 1, "two");
    assert_eq!(member.answers(token), [], "it is not durable");
    member.sync();
    assert_eq!(member.answers(token), [], "a get would not see it yet");
    member.apply();
    let made = made(&mut member, token);
    assert_eq!((made.offset, made.size, made.etag.parts()), (1, 4, 2));
    let row = member.row("k").expect("the object");
    assert_eq!((row.metax.size, &row.metax.etag), (4, &made.etag));
}

#[test]
fn a_get_does_not_wait_for_an_append() {
    let mut member = Member::alone(1);
    member.put_inline("k", "one");
    member.settle();
    record(&mut member, "k", "two");
    member.sync();
    let get = member.read("k");
    assert_eq!(member.answers(get), [Answer::AskIndex]);
    assert_eq!(member.row("k").expect("the object").metax.size, 1, "it is as it was before");
}

#[test]
fn appends_in_flight_follow_each_other() {
    let mut member = Member::alone(1);
    let tokens: Vec<Token> =
        ["a", "bcd", "ef"].iter().map(|text| record(&mut member, "k", text)).collect();
    let late = append_at(&mut member, "k", 6, "!");
    member.settle();
    let offsets: Vec<u64> = tokens.iter().map(|token| offset(&mut member, *token)).collect();
    assert_eq!(offsets, [0, 1, 4]);
    assert_eq!(offset(&mut member, late), 6);
    let found: Vec<u8> =
        pieces(&member, "k").iter().flat_map(|(_, _, bytes)| bytes.clone().unwrap()).collect();
    assert_eq!(found, b"abcdef!", "one after the other, each once");
}

#[test]
fn of_appends_at_one_offset_one_wins() {
    let mut member = Member::alone(1);
    let first = append_at(&mut member, "k", 0, "one");
    let second = append_at(&mut member, "k", 0, "two");
    member.settle();
    assert_eq!(offset(&mut member, first), 0);
    assert_eq!(member.refusal(second), ends_at(3));
    let third = append_at(&mut member, "k", 2, "x");
    assert_eq!(member.refusal(third), ends_at(3));
    let absent = append_at(&mut member, "other", 1, "x");
    assert_eq!(member.refusal(absent), ends_at(0));
}

#[test]
fn an_append_waits_for_a_put_without_an_outcome() {
    let mut member = Member::alone(1);
    let put = member.put_data("k", 2);
    let grant = member.granted(put);
    let token = record(&mut member, "k", "tail");
    member.settle();
    assert_eq!(member.answers(token), []);
    member.commit(grant, 1);
    member.settle();
    assert_eq!(offset(&mut member, token), 1, "behind the put");
    assert_eq!(pieces(&member, "k").len(), 2);
}

#[test]
fn a_later_put_takes_the_place_of_all_pieces() {
    let mut member = Member::alone(1);
    record(&mut member, "k", "one");
    record(&mut member, "k", "two");
    member.put_inline("k", "three");
    let after = record(&mut member, "k", "four");
    member.settle();
    assert_eq!(offset(&mut member, after), 1, "where the later put ends");
    assert_eq!(pieces(&member, "k").len(), 2);
}

#[test]
fn chunks_are_appended_with_the_sync_of_their_outcome() {
    let mut member = Member::alone(1);
    let grant = member.open_chunk("k", (stream(7), 0), 2);
    member.sync();
    member.commit(grant, 1);
    let token = record_stream(&mut member, "k", stream(7), 2);
    member.settle();
    assert_eq!(made(&mut member, token).size, u64::from(2 * BLOCK));
    let open = member.table.get(&rows::open_stream(BUCKET, stream(7)));
    assert_eq!(open, Ok(None), "the object has claimed the chunks");
}

#[test]
fn a_record_whose_data_is_revoked_leaves_no_hole() {
    let mut member = Member::alone(1);
    let first = record(&mut member, "k", "one");
    let grant = member.open_chunk("k", (stream(7), 0), 2);
    let lost = record_stream(&mut member, "k", stream(7), 2);
    let last = record(&mut member, "k", "two");
    member.sync();
    member.call(Call::Abandon { op: grant.op, disk_full: false });
    member.answer(0, larder_protocol::DataAnswer::Voided(grant));
    member.answer(0, mismatch(grant));
    member.settle();
    assert_eq!(member.refusal(lost), Refusal::StreamIncomplete);
    assert_eq!((offset(&mut member, first), offset(&mut member, last)), (0, 3));
}

#[test]
fn a_stream_is_appended_once() {
    let mut member = Member::alone(1);
    let grant = member.open_chunk("k", (stream(7), 0), 1);
    member.sync();
    member.commit(grant, 1);
    record_stream(&mut member, "k", stream(7), 1);
    let again = record_stream(&mut member, "k", stream(7), 1);
    member.settle();
    assert_eq!(member.refusal(again), Refusal::StreamIncomplete);
    assert_eq!(member.row("k").expect("the object").metax.size, u64::from(BLOCK));
}

#[test]
fn a_repeat_gets_the_first_answer_at_every_stage() {
    let mut member = Member::alone(1);
    record(&mut member, "k", "one");
    let request = member.request();
    let again = || inline(request, "k", None, "two");
    member.call(again());
    let unsynced = member.call(again());
    member.sync();
    let unapplied = member.call(again());
    member.apply();
    assert_eq!(member.answers(unsynced), [], "the last to ask is answered");
    let first = made(&mut member, unapplied);
    assert_eq!((first.offset, first.size), (3, 6));
    let applied = member.call(again());
    assert_eq!(made(&mut member, applied), first);
    record(&mut member, "k", "three");
    member.settle();
    let followed = member.call(again());
    assert_eq!(made(&mut member, followed), first);
    let mut member = member.restart();
    member.begin(2, &[1]);
    member.serve(1);
    let restarted = member.call(again());
    assert_eq!(made(&mut member, restarted), first);
    assert_eq!(member.row("k").expect("the object").metax.size, 11, "it was appended once");
    member.delete("k");
    member.settle();
    let gone = member.call(again());
    assert_eq!(member.refusal(gone), Refusal::Append(AppendRefusal::PlaceForgotten));
    assert_eq!(member.row("k"), None, "a late repeat does not bring it back");
}

#[test]
fn a_repeat_of_the_append_that_made_an_object_finds_it() {
    let mut member = Member::alone(1);
    let request = member.request();
    let again = || inline(request, "k", Some(0), "one");
    let first = member.call(again());
    member.settle();
    let first = made(&mut member, first);
    let alone = member.call(again());
    assert_eq!(made(&mut member, alone), first);
    record(&mut member, "k", "two");
    member.settle();
    let followed = member.call(again());
    assert_eq!(made(&mut member, followed), first);
}

#[test]
fn an_append_that_was_not_synced_is_lost_with_those_behind_it() {
    let mut member = Member::alone(1);
    record(&mut member, "k", "one");
    member.settle();
    record(&mut member, "k", "two");
    record(&mut member, "k", "three");
    let mut member = member.restart();
    member.begin(2, &[1]);
    member.serve(1);
    let next = record(&mut member, "k", "four");
    member.settle();
    assert_eq!(offset(&mut member, next), 3, "no hole");
}

#[test]
fn an_append_that_was_synced_is_there_after_a_crash() {
    let mut member = Member::alone(1);
    record(&mut member, "k", "one");
    let request = member.request();
    member.call(inline(request, "k", None, "two"));
    member.sync();
    let mut member = member.restart();
    member.begin(2, &[1]);
    member.serve(1);
    assert_eq!(pieces(&member, "k").len(), 2);
    let again = member.call(inline(request, "k", None, "two"));
    assert_eq!(offset(&mut member, again), 3);
}

#[test]
fn a_delete_frees_all_pieces_once() {
    let mut member = Member::alone(1);
    member.store("k", 3, 1);
    for number in 1..=3 {
        let grant = member.open_chunk("k", (stream(number), 0), 2);
        member.sync();
        member.commit(grant, 1);
        record_stream(&mut member, "k", stream(number), 2);
        member.settle();
    }
    let space = member.pg.gauges().space;
    assert_eq!((space.free, space.waiting), (u64::from(LV_BLOCKS) - 9, 0), "nothing moved");
    member.delete("k");
    member.settle();
    let space = member.pg.gauges().space;
    assert_eq!((space.free, space.waiting), (u64::from(LV_BLOCKS) - 9, 9));
    let mut left = 0;
    let visited = member.table.scan_prefix(b"", &mut |row, _| {
        left += usize::from(!matches!(row[0], b'A' | b'H'));
        std::ops::ControlFlow::Continue(())
    });
    visited.expect("a scan");
    assert_eq!(left, 0, "no row is left of it");
}

#[test]
fn what_is_derived_at_a_start_knows_pieces() {
    let mut member = Member::alone(1);
    member.store("k", 3, 1);
    record(&mut member, "k", "tail");
    member.settle();
    let free = member.pg.gauges().space.free;
    let mut member = member.restart();
    member.begin(2, &[1]);
    member.serve(1);
    assert_eq!(member.pg.gauges().space.free, free, "the chunk is in a piece's row now");
}

#[test]
fn an_empty_object_becomes_no_piece() {
    let mut member = Member::alone(1);
    member.put_as("k", Target::Version, 0, Content::Inline(Bytes::new()));
    member.settle();
    let first = append_at(&mut member, "k", 0, "one");
    record(&mut member, "k", "two");
    member.settle();
    assert_eq!(offset(&mut member, first), 0);
    let found: Vec<(u64, u64)> =
        pieces(&member, "k").into_iter().map(|(start, end, _)| (start, end)).collect();
    assert_eq!(found, [(0, 3), (3, 6)]);
}

#[test]
fn conditions_hold_of_what_is_appended_to() {
    let mut member = Member::alone(1);
    let with = |member: &mut Member, condition: Condition| {
        let request = member.request();
        let content = Content::Inline(Bytes::from_static(b"x"));
        let call = AppendCall { condition, ..call(request, "k", None, 1, content) };
        member.call(Call::Append(Box::new(call)))
    };
    let absent = Condition { if_none_match: Some(EtagList::Any), ..Condition::default() };
    let first = with(&mut member, absent.clone());
    member.settle();
    let etag = made(&mut member, first).etag;
    let second = with(&mut member, absent);
    assert_eq!(member.refusal(second), Refusal::PreconditionFailed);
    let of = |etag: &ETag| Condition {
        if_match: Some(EtagList::Of(vec![etag.text()])),
        ..Condition::default()
    };
    let third = with(&mut member, of(&etag));
    let fourth = with(&mut member, of(&etag));
    member.settle();
    assert_eq!(offset(&mut member, third), 1);
    assert_eq!(member.refusal(fourth), Refusal::PreconditionFailed, "it is another object by then");
}

#[test]
fn metadata_is_taken_by_the_append_that_makes_the_object() {
    let mut member = Member::alone(1);
    let mut with = |offset, user: &str| {
        let request = member.request();
        let content = Content::Inline(Bytes::from_static(b"x"));
        let mut call = call(request, "k", offset, 1, content);
        call.description.attributes.user = vec![("n".to_owned(), user.to_owned())];
        let token = member.call(Call::Append(Box::new(call)));
        member.settle();
        (member.answers(token), member.row("k").expect("the object").metax.attributes.user)
    };
    let first = vec![("n".to_owned(), "first".to_owned())];
    assert_eq!(with(Some(0), "first").1, first);
    let (refused, user) = with(Some(1), "second");
    assert_eq!(refused, [Answer::Refused(Refusal::Append(AppendRefusal::Attributes))]);
    assert_eq!(user, first);
    let (answers, user) = with(None, "third");
    assert!(matches!(answers[..], [Answer::Appended(_)]), "who comes first is chance: {answers:?}");
    assert_eq!(user, first);
}

#[test]
fn an_object_takes_no_more_pieces_than_servers_of_earlier_releases_read() {
    let mut member = Member::alone(1);
    for _ in 0..PIECES_UNCOALESCED_MAX / 100 {
        for _ in 0..100 {
            record(&mut member, "k", "x");
        }
        member.settle();
        member.effects.clear();
    }
    assert_eq!(member.row("k").expect("the object").metax.size, u64::from(PIECES_UNCOALESCED_MAX));
    let more = record(&mut member, "k", "x");
    assert_eq!(member.refusal(more), Refusal::Append(AppendRefusal::TooManyPieces));
}

#[test]
fn a_refusal_caused_by_an_append_waits_until_the_append_is_visible() {
    let mut member = Member::alone(1);
    let first = record(&mut member, "k", "abc");
    let late = append_at(&mut member, "k", 0, "x");
    assert_eq!(member.answers(late), [], "a reader would not see yet what it tells");
    member.sync();
    assert_eq!(member.answers(late), [], "nor now");
    member.settle();
    assert_eq!(offset(&mut member, first), 0);
    assert_eq!(member.refusal(late), ends_at(3));
}
