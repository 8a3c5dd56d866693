//! Coalescing: which pieces become one, what is freed for it, and when it has no effect.

use std::ops::Range;

use bytes::Bytes;
use larder_protocol::limits::{COALESCE_PIECES_MAX, COALESCE_PIECES_MIN, COALESCE_PLANNED_MS};
use larder_protocol::region::remote_change::RemoteChange;
use larder_protocol::{
    Answer, Call, CoalesceCall, CoalescePlan, CoalesceRequest, Content, Event, Index, Refusal,
    Token,
};
use larder_types::{Body, ETag, PieceEntry, PiecesId, Request, SessionId, Stamp, StreamId, rows};

use crate::appends::{inline, piece_rows, record, record_stream, stream};
use crate::remote_change::{A, journal, region, tell};
use crate::support::{BLOCK, BUCKET, EPOCH, LV_BLOCKS, Member, name_of};

/// A member whose proxy has finished all that it asked so far, and which may coalesce.
fn member() -> Member {
    let mut member = Member::alone(1);
    member.pg.let_coalesce(true);
    member
}

/// Appends records of 3 bytes, which are named by their numbers from here on.
fn append(member: &mut Member, name: &str, numbers: Range<u32>) {
    for number in numbers {
        record(member, name, &format!("{:03}", number % 1000));
    }
    member.settle();
    member.effects.clear();
}

/// The proxy is done with all requests so far.
fn finish(member: &mut Member) {
    let Request { session, number, .. } = member.request();
    member.step(Event::Floor { session, floor: number });
}

fn plan_from(member: &mut Member, name: &str, from: u64) -> Option<CoalescePlan> {
    let ask = CoalesceRequest { bucket: BUCKET, key: name_of(name), from };
    let token = member.call(Call::PlanCoalesce(Box::new(ask)));
    match &member.answers(token)[..] {
        [Answer::Plan(plan)] => plan.as_deref().cloned(),
        other => panic!("no plan: {other:?}"),
    }
}

fn plan(member: &mut Member, name: &str) -> Option<CoalescePlan> {
    plan_from(member, name, 0)
}

fn window(member: &mut Member, name: &str) -> (PiecesId, Range<u64>) {
    let plan = plan(member, name).expect("an object with pieces");
    (plan.pieces, plan.window.expect("pieces that are worth it"))
}

fn coalesce(
    member: &mut Member,
    name: &str,
    (pieces, window): (PiecesId, Range<u64>),
    content: Content,
) -> Token {
    let request = member.request();
    let (bucket, epoch, key) = (BUCKET, EPOCH, name_of(name));
    let call = CoalesceCall { request, bucket, epoch, key, pieces, window, content };
    member.call(Call::Coalesce(Box::new(call)))
}

fn of_zeros(window: &Range<u64>) -> Content {
    Content::Inline(Bytes::from(vec![0; (window.end - window.start) as usize]))
}

fn ends(member: &Member, name: &str) -> Vec<(u64, u64)> {
    let row = member.row(name).expect("the object");
    let Body::Pieces { pieces, rows } = row.body else { panic!("no pieces: {:?}", row.body) };
    let found = piece_rows(member, pieces);
    assert_eq!(found.len(), rows as usize, "the object says how many pieces it has");
    assert_eq!(found.last().expect("a piece").0, row.metax.size);
    found.into_iter().map(|(end, piece)| (piece.start, end)).collect()
}

/// Stores a stream of one chunk that has no parent yet.
fn stored(member: &mut Member, name: &str, of: StreamId, blocks: u32) -> Content {
    let grant = member.open_chunk(name, (of, 0), blocks);
    member.sync();
    member.commit(grant, 1);
    member.settle();
    Content::Stream { stream: of, chunks: 1, chunk_bytes: blocks * BLOCK }
}

#[test]
fn small_pieces_become_one_and_the_version_stays_the_same() {
    let mut member = member();
    append(&mut member, "k", 0..70);
    finish(&mut member);
    let before = member.row("k").expect("the object");
    let (pieces, found) = window(&mut member, "k");
    assert_eq!(found, 0..210);
    let token = coalesce(&mut member, "k", (pieces, found.clone()), of_zeros(&found));
    assert_eq!(member.answers(token), [], "not before it is durable");
    member.settle();
    assert!(member.is_done(token));
    let after = member.row("k").expect("the object");
    assert_eq!((after.op, &after.metax), (before.op, &before.metax));
    assert_eq!(ends(&member, "k"), [(0, 210)]);
    append(&mut member, "k", 70..72);
    assert_eq!(ends(&member, "k"), [(0, 210), (210, 213), (213, 216)]);
    assert_eq!(member.pg.gauges().coalesced.pieces, 70);
}

#[test]
fn appends_under_way_stand_in_the_log_before_and_behind_it() {
    let mut member = member();
    append(&mut member, "k", 0..64);
    finish(&mut member);
    let (pieces, found) = window(&mut member, "k");
    record(&mut member, "k", "abc");
    let token = coalesce(&mut member, "k", (pieces, found.clone()), of_zeros(&found));
    record(&mut member, "k", "def");
    member.settle();
    assert!(member.is_done(token));
    assert_eq!(ends(&member, "k"), [(0, 192), (192, 195), (195, 198)]);
}

#[test]
fn few_pieces_are_left_as_they_are() {
    let mut member = member();
    append(&mut member, "k", 0..COALESCE_PIECES_MIN as u32 - 1);
    finish(&mut member);
    let plan = plan(&mut member, "k").expect("an object with pieces");
    assert_eq!((plan.window, plan.settled, plan.goes_on), (None, 0, false));
}

#[test]
fn one_op_takes_as_many_rows_as_a_step_of_garbage() {
    let mut member = member();
    append(&mut member, "k", 0..300);
    append(&mut member, "j", 0..300);
    finish(&mut member);
    assert_eq!(window(&mut member, "k").1, 0..3 * COALESCE_PIECES_MAX as u64);
    member.pg.reap_in_steps_of(140);
    assert_eq!(window(&mut member, "j").1, 0..3 * 69);
}

#[test]
fn nothing_is_coalesced_before_all_servers_support_it() {
    let mut member = member();
    append(&mut member, "k", 0..70);
    finish(&mut member);
    let (pieces, found) = window(&mut member, "k");
    member.pg.let_coalesce(false);
    assert_eq!(plan(&mut member, "k"), None);
    let token = coalesce(&mut member, "k", (pieces, found.clone()), of_zeros(&found));
    assert_eq!(member.refusal(token), Refusal::NoSuchKey);
}

/// Its offset would not be found any more.
#[test]
fn pieces_whose_appends_may_be_repeated_stay() {
    let mut member = member();
    append(&mut member, "k", 0..70);
    finish(&mut member);
    let request = member.request();
    member.call(inline(request, "k", None, "abc"));
    member.settle();
    append(&mut member, "k", 0..70);
    let (pieces, found) = window(&mut member, "k");
    assert_eq!(found, 0..210, "only what came before");
    let wide = 0..213;
    let token = coalesce(&mut member, "k", (pieces, wide.clone()), of_zeros(&wide));
    assert_eq!(member.refusal(token), Refusal::NoSuchKey, "the primary looks once more");
    let token = coalesce(&mut member, "k", (pieces, found.clone()), of_zeros(&found));
    member.settle();
    assert!(member.is_done(token));
    let again = member.call(inline(request, "k", None, "abc"));
    let answers = member.answers(again);
    assert!(matches!(&answers[..], [Answer::Appended(done)] if done.made.offset == 210));
}

#[test]
fn a_chunk_takes_the_place_of_others_whose_blocks_are_freed() {
    let mut member = member();
    for number in 1..=16 {
        stored(&mut member, "k", stream(number), 1);
        record_stream(&mut member, "k", stream(number), 1);
        member.settle();
    }
    append(&mut member, "k", 0..60);
    finish(&mut member);
    let (pieces, found) = window(&mut member, "k");
    assert_eq!(found, 0..16 * u64::from(BLOCK) + 180);
    stored(&mut member, "k", stream(1000), 17);
    let chunk_bytes = (found.end - found.start) as u32;
    let joined = Content::Stream { stream: stream(1000), chunks: 1, chunk_bytes };
    let token = coalesce(&mut member, "k", (pieces, found), joined);
    member.settle();
    assert!(member.is_done(token));
    let space = member.pg.gauges().space;
    assert_eq!((space.free, space.waiting), (u64::from(LV_BLOCKS) - 33, 16));
    assert_eq!(ends(&member, "k").len(), 1);
    let open = member.table.get(&rows::open_stream(BUCKET, stream(1000)));
    assert_eq!(open, Ok(None), "the piece has claimed the chunk");
    member.delete("k");
    member.settle();
    assert_eq!(member.pg.gauges().space.waiting, 33, "each block is freed once");
}

/// Another object of the key may have pieces that begin and end there, too.
#[test]
fn a_window_of_a_version_that_is_gone_is_void_and_its_chunk_is_dropped() {
    for put_again in [false, true] {
        let mut member = member();
        append(&mut member, "k", 0..70);
        finish(&mut member);
        let (pieces, found) = window(&mut member, "k");
        let joined = stored(&mut member, "k", stream(7), 1);
        let window = (pieces, found.start..found.end);
        let size = u64::from(BLOCK);
        let stream_of = |chunk_bytes| Content::Stream { stream: stream(7), chunks: 1, chunk_bytes };
        assert_eq!(joined, stream_of(size as u32));
        member.delete("k");
        let token = coalesce(&mut member, "k", window, stream_of(210));
        if put_again {
            for number in 0..70 {
                record(&mut member, "k", &format!("{number:03}"));
            }
        }
        member.settle();
        assert!(member.is_done(token), "it was in the log before anybody knew");
        assert_eq!(member.pg.gauges().coalesced.void, 1);
        let space = member.pg.gauges().space;
        assert_eq!((space.free, space.waiting), (u64::from(LV_BLOCKS) - 1, 1));
        let left = member.table.get(&rows::chunk(BUCKET, stream(7), 0));
        assert_eq!(left, Ok(None));
        if put_again {
            assert_eq!(ends(&member, "k").len(), 70, "the new object is untouched");
        } else {
            assert!(member.row("k").is_none());
        }
    }
}

#[test]
fn of_two_that_coalesce_the_same_pieces_one_does() {
    let mut member = member();
    append(&mut member, "k", 0..70);
    finish(&mut member);
    let (pieces, found) = window(&mut member, "k");
    let both = [(); 2].map(|()| {
        let window = (pieces, found.clone());
        coalesce(&mut member, "k", window, of_zeros(&found))
    });
    member.settle();
    for token in both {
        assert!(member.is_done(token));
    }
    let counts = member.pg.gauges().coalesced;
    assert_eq!((counts.pieces, counts.void), (70, 1));
    assert_eq!(ends(&member, "k"), [(0, 210)]);
}

#[test]
fn bounds_that_no_piece_has_are_refused() {
    let mut member = member();
    append(&mut member, "k", 0..70);
    finish(&mut member);
    let (pieces, _) = window(&mut member, "k");
    for wrong in [1..210, 0..209, 0..213, 207..210] {
        let content = of_zeros(&wrong);
        let token = coalesce(&mut member, "k", (pieces, wrong), content);
        assert_eq!(member.refusal(token), Refusal::NoSuchKey);
    }
    let other = PiecesId { op: member.pg.applied(), ..pieces };
    let token = coalesce(&mut member, "k", (other, 0..210), of_zeros(&(0..210)));
    assert_eq!(member.refusal(token), Refusal::NoSuchKey);
}

#[test]
fn it_is_there_after_a_crash_or_not_at_all() {
    for synced in [false, true] {
        let mut member = member();
        append(&mut member, "k", 0..70);
        finish(&mut member);
        let (pieces, found) = window(&mut member, "k");
        coalesce(&mut member, "k", (pieces, found.clone()), of_zeros(&found));
        if synced {
            member.sync();
        }
        let mut member = member.restart();
        member.begin(2, &[1]);
        member.serve(1);
        assert_eq!(ends(&member, "k").len(), if synced { 1 } else { 70 });
    }
}

/// Long after the entity tag has counted more appends than an object may have pieces.
#[test]
fn an_object_takes_appends_without_an_end() {
    let mut member = member();
    let unlimited = larder_types::limits::PIECES_UNCOALESCED_MAX + 500;
    let mut at = 0;
    while at < unlimited {
        append(&mut member, "k", at..at + 128);
        at += 128;
        finish(&mut member);
        while let Some(CoalescePlan { pieces, window: Some(found), .. }) = plan(&mut member, "k") {
            let content = if found.end - found.start <= 2048 {
                of_zeros(&found)
            } else {
                let size = (found.end - found.start) as u32;
                stored(&mut member, "k", stream(u64::from(at)), size.div_ceil(BLOCK));
                Content::Stream { stream: stream(u64::from(at)), chunks: 1, chunk_bytes: size }
            };
            coalesce(&mut member, "k", (pieces, found), content);
            member.settle();
            finish(&mut member);
        }
    }
    let row = member.row("k").expect("the object");
    assert_eq!(row.metax.size, u64::from(3 * at));
    assert_eq!(row.metax.etag.parts(), at);
    assert!(ends(&member, "k").len() < 2 * COALESCE_PIECES_MAX, "{:?}", ends(&member, "k").len());
    // A cluster in which not all servers know of coalescing goes by the rows that there are.
    member.pg.let_coalesce(false);
    let more = record(&mut member, "k", "abc");
    member.settle();
    let answers = member.answers(more);
    assert!(matches!(&answers[..], [Answer::Appended(_)]), "{answers:?}");
}

#[test]
fn an_object_without_pieces_has_no_plan() {
    let mut member = member();
    assert_eq!(plan(&mut member, "k"), None);
    member.put_inline("k", "x");
    member.settle();
    assert_eq!(plan(&mut member, "k"), None);
    append(&mut member, "k", 0..70);
    finish(&mut member);
    let size = member.row("k").expect("the object").metax.size;
    for from in [size, 1 << 40, u64::MAX] {
        let plan = plan_from(&mut member, "k", from).expect("an object with pieces");
        assert_eq!((plan.window, plan.settled), (None, size), "it is shorter");
    }
}

fn stamps(member: &Member, name: &str) -> Vec<(Stamp, ETag)> {
    let row = member.row(name).expect("the object");
    let Body::Pieces { pieces, .. } = row.body else { panic!("no pieces: {:?}", row.body) };
    let mut found = Vec::new();
    let visited = member.table.scan_prefix(&rows::pieces(BUCKET, pieces), &mut |_, value| {
        let piece = PieceEntry::decode(value).expect("a piece with its stamp");
        found.push((piece.at, piece.etag));
        std::ops::ControlFlow::Continue(())
    });
    visited.expect("a scan");
    found
}

/// It asks for the end of an object by the stamp and the length of what it has.
#[test]
fn pieces_that_another_region_may_lack_stay() {
    let mut member = region(A);
    member.pg.let_coalesce(true);
    append(&mut member, "k", 0..70);
    finish(&mut member);
    let nothing = plan(&mut member, "k").expect("an object with pieces").window;
    assert_eq!(nothing, None, "no region has anything of it yet");
    let passed = member.pg.applied().seq;
    append(&mut member, "k", 70..80);
    finish(&mut member);
    let first = journal(&member).first().expect("it is told").0;
    let (request, forgotten) = (member.request(), Some((first, passed)));
    tell(&mut member, RemoteChange::Note { request, passed: Vec::new(), forgotten });
    finish(&mut member);
    let before = stamps(&member, "k");
    let (pieces, found) = window(&mut member, "k");
    assert_eq!(found, 0..210);
    let token = coalesce(&mut member, "k", (pieces, found.clone()), of_zeros(&found));
    member.settle();
    assert!(member.is_done(token));
    let after = stamps(&member, "k");
    assert_eq!(after.len(), 11);
    assert_eq!(after[0].0, before[69].0, "that of the last of them");
    assert_eq!(after[0].1.parts(), 70);
    assert_eq!(after[1..], before[70..]);
}

#[test]
fn a_session_that_is_over_keeps_no_pieces() {
    let mut member = member();
    let session = SessionId(9);
    for number in 1..=70 {
        let request = Request { session, number, floor: 0 };
        member.call(inline(request, "k", None, "abc"));
    }
    member.settle();
    assert_eq!(plan(&mut member, "k").expect("an object with pieces").window, None);
    member.step(Event::Floor { session, floor: u64::MAX });
    assert_eq!(window(&mut member, "k").1, 0..210);
}

/// Several proxies append to one object.
#[test]
fn a_window_is_planned_once_and_again_after_a_while_if_nothing_became_of_it() {
    let mut member = member();
    append(&mut member, "k", 0..70);
    finish(&mut member);
    let (_, found) = window(&mut member, "k");
    let again = plan(&mut member, "k").expect("an object with pieces");
    assert_eq!((again.window, again.is_held), (None, true), "another proxy has it");
    // Without a tick: a group at rest wants none.
    member.now_ms += COALESCE_PLANNED_MS + 1;
    assert_eq!(window(&mut member, "k").1, found);
}
