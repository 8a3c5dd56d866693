//! A session with as many requests above its floor as it may have: what is remembered goes along with a snapshot, and the
//! floor is the way out.

use bytes::Bytes;
use larder_protocol::limits::{RECORD_REPEATS_MAX, REPEATS_MAX};
use larder_protocol::{Call, Content, Event, PeerMessage, Refusal, Token};
use larder_types::codec::encode;
use larder_types::limits::OP_BYTES_MAX;
use larder_types::{Condition, Op, Request, ServerId, SessionId, View};

use crate::support::{Member, put};

const SESSION: SessionId = SessionId(7);
/// Numbers of a proxy that has made many requests, at a time of today: none of them is short.
const FIRST: u64 = 1 << 40;
const WALL_MS: u64 = 1_780_000_000_000;

fn ask(member: &mut Member, number: u64) -> Token {
    let request = Request { session: SESSION, number, floor: FIRST };
    member.call(repeat(request))
}

fn repeat(request: Request) -> Call {
    put(request, "k", Content::Inline(Bytes::from_static(b"x")), Condition::default())
}

/// A member alone, whose only session has no room for another request; and the number of that.
fn full() -> (Member, u64) {
    let mut member = Member::alone(1);
    member.wall_ms = WALL_MS;
    let end = FIRST + REPEATS_MAX as u64;
    for number in FIRST..end {
        ask(&mut member, number);
        if number % 128 == 127 {
            member.settle();
            member.effects.clear();
        }
    }
    (member, end)
}

/// Settles a member and has another hear what it says.
fn tell(from: &mut Member, to: &mut Member, said: &mut Vec<PeerMessage>) {
    from.settle();
    from.flush();
    from.serve_snapshots();
    for (_, message) in from.messages() {
        let bytes = encode(&message).len();
        to.pg.admits(&message, bytes).expect("it is what a member says");
        to.step(Event::Peer { from: from.me, message: message.clone() });
        said.push(message);
    }
}

/// Member 2 follows the first, which is alone in its view, until all was said.
fn follow(primary: &mut Member, learner: &mut Member) -> Vec<PeerMessage> {
    learner.step(Event::Learn { view: View(1), primary: primary.me });
    let mut said = Vec::new();
    for _ in 0..8 {
        tell(learner, primary, &mut said);
        tell(primary, learner, &mut said);
    }
    said
}

#[test]
fn a_full_session_goes_along_with_a_snapshot_and_through_a_restart() {
    let (mut primary, end) = full();
    let mut learner = Member::new(2);
    let said = follow(&mut primary, &mut learner);
    let is_header = |message: &&PeerMessage| matches!(message, PeerMessage::Snapshot { .. });
    let Some(PeerMessage::Snapshot { header, .. }) = said.iter().find(is_header) else {
        panic!("it takes a snapshot");
    };
    let parts = header.sessions.iter().filter(|memory| memory.session == SESSION);
    assert_eq!(parts.count(), REPEATS_MAX.div_ceil(RECORD_REPEATS_MAX));
    assert!(primary.caught_up().contains(&ServerId(2)));
    let records =
        learner.log.iter().filter(|(entry, _)| matches!(*entry.op, Op::SnapshotSession(_)));
    assert!(records.clone().all(|(entry, _)| encode(&*entry.op).len() <= OP_BYTES_MAX));
    assert!(records.count() > 1);
    let mut learner = learner.restart();
    learner.begin(2, &[2]);
    learner.serve(1);
    for number in [FIRST, FIRST + RECORD_REPEATS_MAX as u64, end - 1] {
        let again = ask(&mut learner, number);
        assert!(learner.is_done(again), "{number} was done");
    }
    let more = ask(&mut learner, end);
    assert_eq!(learner.refusal(more), Refusal::Busy, "what was full is full here too");
}

#[test]
fn a_memory_that_an_earlier_release_tells_in_one_part_is_taken() {
    let (mut primary, _) = full();
    let mut learner = Member::new(2);
    learner.step(Event::Learn { view: View(1), primary: primary.me });
    let report = learner.messages().remove(0).1;
    primary.step(Event::Peer { from: learner.me, message: report });
    let (_, message) = primary.messages().remove(0);
    let PeerMessage::Snapshot { view, header } = message else { panic!("a snapshot: {message:?}") };
    let mut header = (*header).clone();
    let whole = header.sessions.iter().flat_map(|memory| memory.requests.iter().copied());
    header.sessions[0].requests = whole.collect();
    header.sessions.truncate(1);
    let message = PeerMessage::Snapshot { view, header: header.into() };
    let bytes = encode(&message).len();
    assert!(bytes > OP_BYTES_MAX);
    assert_eq!(learner.pg.admits(&message, bytes), Ok(()));
}

#[test]
fn a_session_that_is_full_goes_on_when_its_floor_is_raised() {
    let (mut member, end) = full();
    let more = ask(&mut member, end);
    assert_eq!(member.refusal(more), Refusal::Busy);
    let known = ask(&mut member, FIRST);
    assert!(member.is_done(known), "a repeat is answered");
    member.step(Event::Floor { session: SESSION, floor: FIRST + 1 });
    let more = ask(&mut member, end);
    member.settle();
    assert!(member.is_done(more));
    let next = ask(&mut member, end + 1);
    assert_eq!(member.refusal(next), Refusal::Busy);
}
