//! Puts whose proxy died, or whose last word was lost: they are resolved soon, and safely if the proxy lives after all.

use std::sync::Arc;

use crate::support::{Member, mismatch};
use larder_protocol::limits::{ABANDONED_TICKS, SESSION_TICKS_MAX};
use larder_protocol::{Answer, DataAnswer, DataRequest, Event};
use larder_types::{Grant, SessionId};

const SESSION: SessionId = SessionId(1);

/// A put whose METAX is durable; its request's number.
fn pending() -> (Member, Grant, u64) {
    let mut member = Member::alone(1);
    let number = member.request().number + 1;
    let grant = member.open_put("k", 1);
    member.settle();
    (member, grant, number)
}

fn ticks(member: &mut Member, count: u64) {
    (0..count).for_each(|_| member.step(Event::Tick));
}

fn finished(below: u64, open: &[u64]) -> Event {
    Event::Finished { session: SESSION, below, open: Arc::from(open) }
}

#[test]
fn a_put_of_a_silent_proxy_is_resolved_after_some_ticks() {
    let (mut member, grant, _) = pending();
    ticks(&mut member, SESSION_TICKS_MAX - 1);
    assert_eq!(member.requests(), []);
    ticks(&mut member, 1);
    assert_eq!(member.requests(), [(0, DataRequest::Void { grant })]);
    let list = member.read("k");
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(0, DataAnswer::Verified(grant));
    member.settle();
    assert_eq!(member.answers(list), [Answer::AskIndex]);
    assert_eq!(member.row("k").expect("it was durable").op, grant.op);
}

#[test]
fn a_put_of_a_live_proxy_continues() {
    let (mut member, _, number) = pending();
    for _ in 0..3 {
        ticks(&mut member, SESSION_TICKS_MAX - 1);
        member.step(Event::Floor { session: SESSION, floor: number });
        ticks(&mut member, SESSION_TICKS_MAX - 1);
        member.step(finished(number + 5, &[number]));
    }
    assert_eq!(member.requests(), []);
}

#[test]
fn a_put_whose_commit_was_lost_is_settled_when_its_proxy_is_done_with_it() {
    let (mut member, grant, number) = pending();
    member.step(finished(number + 1, &[number - 1]));
    ticks(&mut member, ABANDONED_TICKS - 1);
    assert_eq!(member.requests(), [], "its commit may be on the way");
    ticks(&mut member, 1);
    assert_eq!(member.requests(), [(0, DataRequest::Void { grant })]);
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(0, DataAnswer::Verified(grant));
    member.settle();
    assert!(member.row("k").is_some(), "its client was told that it is done");
}

#[test]
fn a_put_whose_withdrawal_was_lost_is_settled_by_the_floor() {
    let (mut member, grant, number) = pending();
    member.step(Event::Floor { session: SESSION, floor: number + 1 });
    ticks(&mut member, ABANDONED_TICKS);
    assert_eq!(member.requests(), [(0, DataRequest::Void { grant })]);
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(0, mismatch(grant));
    member.settle();
    assert_eq!((member.row("k"), member.pg.gauges().open_puts), (None, 0));
}

#[test]
fn a_put_of_a_session_that_ended_is_resolved() {
    let (mut member, grant, _) = pending();
    member.step(Event::Floor { session: SESSION, floor: u64::MAX });
    ticks(&mut member, ABANDONED_TICKS);
    assert_eq!(member.requests(), [(0, DataRequest::Void { grant })]);
}

#[test]
fn a_commit_that_comes_late_is_in_time() {
    let (mut member, grant, number) = pending();
    member.step(finished(number + 1, &[]));
    ticks(&mut member, ABANDONED_TICKS - 1);
    member.commit(grant, 1);
    ticks(&mut member, ABANDONED_TICKS);
    member.settle();
    assert_eq!(member.requests(), []);
    assert!(member.row("k").is_some());
}

#[test]
fn a_proxy_that_was_silent_and_lives_commits_what_was_not_decided() {
    let (mut member, grant, _) = pending();
    ticks(&mut member, SESSION_TICKS_MAX);
    member.answer(0, DataAnswer::Voided(grant));
    member.commit(grant, 1);
    member.answer(0, mismatch(grant));
    member.settle();
    assert!(member.row("k").is_some(), "every replica had acknowledged the data");
}

#[test]
fn a_put_in_doubt_names_the_replicas_that_it_waits_for() {
    let mut member = Member::alone(2);
    let grant = member.open_put("k", 1);
    member.settle();
    ticks(&mut member, SESSION_TICKS_MAX);
    member.now_ms += 7000;
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(1, DataAnswer::Failed);
    member.answer(0, mismatch(grant));
    ticks(&mut member, 1);
    let doubts: Vec<_> = member.pg.doubts().collect();
    let [doubt] = &doubts[..] else { panic!("{doubts:?}") };
    assert_eq!((doubt.op, doubt.open_ms), (grant.op, 7000));
    assert_eq!((doubt.key.as_bytes(), doubt.away.iter().collect()), (&b"k"[..], vec![1]));
    assert_eq!(member.pg.gauges().in_doubt_ms, 7000);
}
