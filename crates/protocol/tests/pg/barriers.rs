//! Barriers over rows: a list waits for those pending puts alone that could be on its page.

use crate::support::{BUCKET, Member, name_of};
use larder_protocol::limits::{DOUBT_TICKS_MAX, LIST_GATHER_MS, SLOW_PUT_MS, WAITING_CALLS_MAX};
use larder_protocol::{Answer, Call, Event, Refusal, RowSpan, Token};
use larder_types::{BucketId, Grant, rows};

fn version(name: &str) -> Vec<u8> {
    rows::version(BUCKET, &name_of(name), rows::UNVERSIONED)
}

/// All keys of a bucket that begin so.
fn prefix(bucket: BucketId, prefix: &str) -> RowSpan {
    let from = rows::key_prefix(b'V', bucket, prefix.as_bytes());
    let to = rows::prefix_end(&from);
    RowSpan { from, to }
}

fn list(member: &mut Member, span: RowSpan) -> Token {
    let token = member.call(Call::Settle(span));
    member.settle();
    token
}

/// A member with a put that is pending: METAX is durable, and nobody has said what became of it.
fn pending(name: &str) -> (Member, Grant) {
    let mut member = Member::alone(1);
    let grant = member.open_put(name, 1);
    member.settle();
    (member, grant)
}

#[test]
fn a_list_of_another_bucket_or_prefix_passes_while_a_put_is_pending() {
    let (mut member, _) = pending("k/1");
    let other_bucket = list(&mut member, prefix(BucketId(BUCKET.0 + 1), ""));
    assert_eq!(member.answers(other_bucket), [Answer::Settled(None)]);
    let before = list(&mut member, prefix(BUCKET, "j/"));
    assert_eq!(member.answers(before), [Answer::Settled(None)]);
    let behind = list(&mut member, prefix(BUCKET, "l/"));
    assert_eq!(member.answers(behind), [Answer::Settled(None)]);
    assert!(member.pg.shows_all(&prefix(BUCKET, "l/")));
    assert!(!member.pg.shows_all(&prefix(BUCKET, "k/")));
}

#[test]
fn a_list_does_not_wait_until_puts_of_other_keys_are_durable_or_applied() {
    let mut member = Member::alone(1);
    member.put_data("k", 1);
    let page = member.call(Call::Settle(prefix(BUCKET, "l")));
    assert_eq!(member.answers(page), [Answer::Settled(None)]);
    member.sync();
    let page = member.call(Call::Settle(prefix(BUCKET, "l")));
    assert_eq!(member.answers(page), [Answer::Settled(None)], "nothing would apply it");
}

#[test]
fn a_list_waits_for_a_pending_put_on_its_page() {
    let (mut member, grant) = pending("k");
    let page = list(&mut member, prefix(BUCKET, ""));
    assert_eq!(member.answers(page), [], "its client may have been told that it is done");
    member.commit(grant, 1);
    member.settle();
    assert_eq!(member.answers(page), [Answer::Settled(None)]);
    assert!(member.row("k").is_some());
}

#[test]
fn a_list_does_not_wait_for_puts_that_came_after_it() {
    let (mut member, grant) = pending("k");
    let page = list(&mut member, prefix(BUCKET, ""));
    member.put_data("a", 1);
    member.commit(grant, 1);
    member.settle();
    assert_eq!(member.answers(page), [Answer::Settled(None)]);
}

#[test]
fn a_list_sees_what_was_taken_before_it_though_it_is_not_durable_yet() {
    let mut member = Member::alone(1);
    member.put_inline("k", "one");
    let page = member.call(Call::Settle(prefix(BUCKET, "")));
    assert_eq!(member.answers(page), []);
    member.settle();
    assert_eq!(member.answers(page), [Answer::Settled(None)]);
    assert!(member.row("k").is_some());
}

#[test]
fn what_is_before_a_put_that_takes_long_is_shown() {
    let (mut member, _) = pending("k");
    let page = list(&mut member, prefix(BUCKET, ""));
    assert_eq!(member.answers(page), [], "most puts are done soon");
    member.now_ms += SLOW_PUT_MS;
    member.step(Event::Tick);
    assert_eq!(member.answers(page), [Answer::Settled(Some(version("k")))]);
    // The page reaches the put: its row may be there or not.
    let rest = RowSpan { from: version("k"), to: None };
    let rest = list(&mut member, rest);
    assert_eq!(member.answers(rest), []);
}

#[test]
fn a_list_is_shown_up_to_the_first_of_several_slow_puts() {
    let (mut member, first) = pending("m");
    member.put_data("k", 1);
    member.settle();
    member.now_ms += SLOW_PUT_MS;
    let page = list(&mut member, prefix(BUCKET, ""));
    assert_eq!(member.answers(page), [Answer::Settled(Some(version("k")))]);
    member.commit(first, 1);
    let behind = list(&mut member, prefix(BUCKET, "l"));
    assert_eq!(member.answers(behind), [Answer::Settled(None)]);
}

/// Slow puts of keys `k0` to `k4`, and a list that begins at the first of them.
fn behind_slow_puts() -> (Member, Vec<Grant>, Token) {
    let mut member = Member::alone(1);
    let mut grants = Vec::new();
    for n in 0..5 {
        let put = member.put_data(&format!("k{n}"), 1);
        grants.push(member.granted(put));
    }
    member.settle();
    member.now_ms += SLOW_PUT_MS;
    let page = list(&mut member, RowSpan { from: version("k0"), to: None });
    assert_eq!(member.answers(page), []);
    (member, grants, page)
}

#[test]
fn a_list_that_reaches_a_slow_put_waits_for_all_of_its_page_at_once() {
    let (mut member, grants, page) = behind_slow_puts();
    for grant in grants {
        assert_eq!(member.answers(page), [], "it would wait again at the next row");
        member.commit(grant, 1);
        member.settle();
        member.step(Event::Tick);
    }
    assert_eq!(member.answers(page), [Answer::Settled(None)]);
}

#[test]
fn a_list_that_reaches_a_slow_put_is_not_held_up_for_long_by_one_behind_it() {
    let (mut member, grants, page) = behind_slow_puts();
    for grant in &grants[..3] {
        member.commit(*grant, 1);
    }
    member.settle();
    member.now_ms += LIST_GATHER_MS - 1;
    member.step(Event::Tick);
    assert_eq!(member.answers(page), []);
    member.now_ms += 1;
    member.step(Event::Tick);
    assert_eq!(member.answers(page), [Answer::Settled(Some(version("k3")))]);
}

#[test]
fn a_list_does_not_wait_for_a_put_that_was_deleted_since() {
    let (mut member, _) = pending("k");
    member.delete("k");
    member.settle();
    let page = list(&mut member, prefix(BUCKET, ""));
    assert_eq!(
        member.answers(page),
        [Answer::Settled(None)],
        "whatever becomes of it, it makes nothing"
    );
}

#[test]
fn a_put_in_doubt_blocks_its_own_key_alone() {
    let (mut member, _) = pending("k");
    member.now_ms += SLOW_PUT_MS;
    for _ in 0..WAITING_CALLS_MAX {
        member.read("k");
    }
    let read = member.read("k");
    assert_eq!(member.refusal(read), Refusal::Busy, "there is no room for more that wait");
    let other = member.put_inline("other", "one");
    assert_eq!(member.refusal(other), Refusal::Busy);
    member.effects.clear();
    for _ in 0..=DOUBT_TICKS_MAX {
        member.step(Event::Tick);
    }
    let read = member.read("k");
    assert_eq!(member.answers(read), [], "those before have been told");
    let other = member.put_inline("other", "one");
    member.settle();
    assert!(member.is_done(other));
}

#[test]
fn callers_that_wait_for_a_put_in_doubt_are_refused_in_time() {
    let (mut member, _) = pending("k");
    member.now_ms += SLOW_PUT_MS;
    let read = member.read("k");
    let page = list(&mut member, RowSpan { from: version("k"), to: None });
    for _ in 0..DOUBT_TICKS_MAX {
        member.step(Event::Tick);
    }
    assert_eq!((member.answers(read), member.answers(page)), (vec![], vec![]));
    member.step(Event::Tick);
    assert_eq!(member.refusal(read), Refusal::InDoubt);
    assert_eq!(member.refusal(page), Refusal::InDoubt);
    assert_eq!(member.pg.gauges().waiting_calls, 0);
}
