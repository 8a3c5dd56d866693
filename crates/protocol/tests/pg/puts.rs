//! Puts, deletes and reads at one member: what is answered when, and what a reader may see.

use crate::support::{BUCKET, EPOCH, LV_BLOCKS, Member, data, key, mismatch, name_of, put};
use bytes::Bytes;
use larder_protocol::{Answer, Call, Content, DataAnswer, DataRequest, Effect, Event, Refusal};
use larder_types::{Body, Condition, EtagList, Extent, Grant, OpId, Request, SessionId, View};

fn if_absent() -> Condition {
    Condition { if_none_match: Some(EtagList::Any), ..Condition::default() }
}

fn inline(text: &'static str) -> Content {
    Content::Inline(Bytes::from_static(text.as_bytes()))
}

/// The body that a read shows without the index.
fn shown(answers: &[Answer]) -> Body {
    match answers {
        [Answer::Version(Some(row))] => row.body.clone(),
        other => panic!("no version: {other:?}"),
    }
}

#[test]
fn an_answer_leaves_only_below_the_commit_point() {
    let mut member = Member::alone(1);
    let put = member.put_inline("k", "one");
    assert_eq!(member.answers(put), []);
    member.sync();
    assert!(member.is_done(put));
}

#[test]
fn a_grant_leaves_at_once_and_persisted_when_it_is() {
    let mut member = Member::alone(1);
    let put = member.put_data("k", 2);
    let grant = member.granted(put);
    member.sync();
    assert_eq!(member.answers(put), [Answer::Persisted { grant }]);
}

#[test]
fn a_grant_is_known_by_its_op_until_the_outcome() {
    let mut member = Member::alone(1);
    let grant = member.open_put("k", 2);
    assert_eq!(member.pg.grant_of(grant.op), Some((grant, false)));
    member.sync();
    assert_eq!(member.pg.grant_of(grant.op), Some((grant, true)));
    let other = OpId { view: View(grant.op.view.0 + 1), ..grant.op };
    assert_eq!(member.pg.grant_of(other), None, "another op in its place is another put");
    member.commit(grant, 1);
    assert_eq!(member.pg.grant_of(grant.op), None);
}

#[test]
fn a_get_sees_nothing_that_is_not_durable() {
    let mut member = Member::alone(1);
    member.put_inline("k", "one");
    let get = member.read("k");
    assert_eq!(member.answers(get), [Answer::AskIndex], "the index has no such key");
}

#[test]
fn a_get_shows_a_durable_put_before_the_index_does() {
    let mut member = Member::alone(1);
    member.put_inline("k", "one");
    member.sync();
    let get = member.read("k");
    assert_eq!(shown(&member.answers(get)), Body::Inline(Bytes::from_static(b"one")));
    assert_eq!(member.row("k"), None);
}

#[test]
fn a_get_waits_for_a_pending_version() {
    let mut member = Member::alone(1);
    let grant = member.pending_put("k", 2);
    let get = member.read("k");
    assert_eq!(member.answers(get), [], "its outcome is not known");
    member.commit(grant, 1);
    assert!(matches!(shown(&member.answers(get)), Body::Chunk(chunk) if chunk.grant == grant));
}

#[test]
fn an_overwrite_shows_the_old_version_until_it_is_durable() {
    let mut member = Member::alone(1);
    let old = member.store("k", 1, 1);
    member.put_data("k", 1);
    let get = member.read("k");
    assert_eq!(member.answers(get), [Answer::AskIndex]);
    let Body::Chunk(chunk) = member.row("k").expect("the old version").body else { panic!() };
    assert_eq!(chunk.grant, old);
}

#[test]
fn a_get_does_not_wait_for_puts_that_came_after_it() {
    let mut member = Member::alone(1);
    let first = member.pending_put("k", 1);
    let get = member.read("k");
    let second = member.pending_put("k", 1);
    assert_eq!(member.answers(get), []);
    member.commit(first, 1);
    assert!(matches!(&shown(&member.answers(get)), Body::Chunk(chunk) if chunk.grant == first));

    let gauges = member.pg.gauges();
    assert_eq!((gauges.reads_waited, gauges.reads_passed), (1, 1));

    let later = member.read("k");
    assert_eq!(member.answers(later), [], "the second was there when it came");
    member.commit(second, 1);
    assert!(matches!(&shown(&member.answers(later)), Body::Chunk(chunk) if chunk.grant == second));
    let gauges = member.pg.gauges();
    assert_eq!((gauges.reads_waited, gauges.reads_passed), (2, 1));
}

#[test]
fn a_get_waits_for_all_puts_that_were_there_when_it_came() {
    let mut member = Member::alone(1);
    let [first, second] = [member.pending_put("k", 1), member.pending_put("k", 1)];
    let get = member.read("k");
    member.pending_put("k", 1);
    member.commit(first, 1);
    assert_eq!(member.answers(get), [], "a client may have been told of the second");
    member.commit(second, 1);
    assert!(matches!(&shown(&member.answers(get)), Body::Chunk(chunk) if chunk.grant == second));
}

#[test]
fn a_get_shows_a_put_that_came_after_it_and_is_committed_before_what_it_waits_for() {
    let mut member = Member::alone(1);
    member.pending_put("k", 1);
    let get = member.read("k");
    let later = member.pending_put("k", 1);
    member.commit(later, 1);
    assert!(matches!(&shown(&member.answers(get)), Body::Chunk(chunk) if chunk.grant == later));
}

#[test]
fn a_get_of_a_key_that_is_always_being_put_is_answered() {
    let mut member = Member::alone(1);
    let mut before = member.pending_put("k", 1);
    for round in 0..20 {
        let get = member.read("k");
        let next = member.pending_put("k", 1);
        member.commit(before, 1);
        let answers = member.answers(get);
        assert!(matches!(answers[..], [Answer::Version(Some(_))]), "round {round}: {answers:?}");
        before = next;
    }
}

#[test]
fn a_conditional_put_waits_for_a_pending_one() {
    let mut member = Member::alone(1);
    let grant = member.pending_put("k", 1);
    let request = member.request();
    let second = member.call(put(request, "k", inline("two"), if_absent()));
    assert_eq!(member.answers(second), [], "whether the key is there is not known yet");
    member.commit(grant, 1);
    member.settle();
    assert_eq!(member.refusal(second), Refusal::PreconditionFailed);
}

#[test]
fn calls_behind_a_waiting_call_keep_their_order() {
    let mut member = Member::alone(1);
    let grant = member.pending_put("k", 1);
    let request = member.request();
    let second = member.call(put(request, "k", inline("two"), if_absent()));
    let third = member.put_inline("k", "three");
    member.sync();
    assert_eq!(member.answers(third), [], "it came after a call that waits");
    member.call(Call::Abandon { op: grant.op, disk_full: false });
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(0, mismatch(grant));
    member.settle();
    assert!(member.is_done(second));
    assert!(member.is_done(third));
    let body = member.row("k").expect("the third").body;
    assert_eq!(body, Body::Inline(Bytes::from_static(b"three")));
}

#[test]
fn a_delete_supersedes_an_older_put_whose_outcome_comes_later() {
    let mut member = Member::alone(1);
    let put = member.put_data("k", 3);
    let grant = member.granted(put);
    member.delete("k");
    member.settle();
    member.commit(grant, 1);
    let get = member.read("k");
    assert_eq!(member.answers(get), [Answer::AskIndex]);
    member.settle();
    assert_eq!(member.row("k"), None, "the put was before the delete");
    assert_eq!(member.pg.gauges().space.waiting, 3, "and its blocks are freed");
}

/// Two puts of one key; the newer is committed, and of the older no outcome is known.
fn newer_is_committed(member: &mut Member) -> [Grant; 2] {
    let (older, newer) = (member.open_put("k", 1), member.pending_put("k", 1));
    member.commit(newer, 1);
    member.settle();
    [older, newer]
}

#[test]
fn an_older_put_never_shows_over_a_newer_one() {
    let mut member = Member::alone(1);
    let [older, newer] = newer_is_committed(&mut member);
    let get = member.read("k");
    assert_eq!(member.answers(get), [Answer::AskIndex], "the older one's outcome does not matter");
    member.commit(older, 1);
    let get = member.read("k");
    assert_eq!(member.answers(get), [Answer::AskIndex]);
    member.settle();
    assert_eq!(member.row("k").expect("the newer").op, newer.op);
}

#[test]
fn an_older_put_stays_superseded_after_a_restart() {
    let mut member = Member::alone(1);
    let [older, newer] = newer_is_committed(&mut member);
    let mut member = member.restart();
    member.begin(2, &[1]);
    member.serve(1);
    member.answer(0, DataAnswer::Floor(key(2, 0)));
    let get = member.read("k");
    assert_eq!(member.answers(get), [Answer::AskIndex]);
    member.answer(0, DataAnswer::Verified(older));
    member.settle();
    assert_eq!(member.row("k").expect("the newer").op, newer.op);
}

#[test]
fn a_repeat_gets_the_same_answer_and_makes_nothing_new() {
    let mut member = Member::alone(1);
    let request = member.request();
    let call = put(request, "k", inline("one"), Condition::default());
    let first = member.call(call.clone());
    member.settle();
    let answers = member.answers(first);
    let repeat = member.call(call);
    assert_eq!(member.answers(repeat), answers);
    assert_eq!(member.pg.applied().seq.0, 2, "the view's start and one put");
}

#[test]
fn a_repeat_of_an_open_put_gets_the_same_grant() {
    let mut member = Member::alone(1);
    let request = member.request();
    let call = put(request, "k", data(1), Condition::default());
    let first = member.call(call.clone());
    let grant = member.granted(first);
    let repeat = member.call(call);
    assert_eq!(member.granted(repeat), grant);
    member.sync();
    assert_eq!(member.answers(repeat), [Answer::Persisted { grant }]);
}

#[test]
fn a_repeat_after_the_delete_resurrects_nothing() {
    let mut member = Member::alone(1);
    let request = member.request();
    let call = put(request, "k", inline("one"), Condition::default());
    member.call(call.clone());
    member.delete("k");
    member.settle();
    let repeat = member.call(call.clone());
    assert!(member.is_done(repeat));
    member.settle();
    assert_eq!(member.row("k"), None);
    // Once the session's floor has passed it, it is not even answered.
    let later = Request { session: SessionId(1), number: 90, floor: 90 };
    member.call(put(later, "other", inline("two"), Condition::default()));
    member.settle();
    let repeat = member.call(call);
    assert_eq!(member.refusal(repeat), Refusal::Finished);
    assert_eq!(member.row("k"), None);
}

#[test]
fn a_late_copy_of_a_refused_request_is_not_done_after_all() {
    let mut member = Member::alone(1);
    member.put_inline("k", "one");
    member.settle();
    let request = member.request();
    let call = put(request, "k", inline("two"), if_absent());
    let first = member.call(call.clone());
    assert_eq!(member.refusal(first), Refusal::PreconditionFailed);
    member.delete("k");
    member.settle();
    let copy = member.call(call);
    assert_eq!(member.refusal(copy), Refusal::PreconditionFailed);
    member.settle();
    assert_eq!(member.row("k"), None);
}

#[test]
fn a_barrier_passes_when_the_index_shows_all_that_came_before() {
    let mut member = Member::alone(1);
    let put = member.put_data("k", 1);
    let grant = member.granted(put);
    member.sync();
    let barrier = member.call(Call::Barrier);
    member.settle();
    assert_eq!(member.answers(barrier), [], "a put that is older is pending");
    member.put_data("other", 1);
    member.commit(grant, 1);
    member.settle();
    assert_eq!(member.answers(barrier), [Answer::Passed], "a later one does not matter");
}

/// Fills the only LV up to where it takes no more, and frees what was put first.
fn filled(replicas: usize) -> Member {
    let mut member = Member::alone(replicas);
    member.store("old", 80, replicas);
    member.store("more", 6, replicas);
    member.delete("old");
    member.settle();
    assert_eq!(member.pg.gauges().space.waiting, 80);
    member.effects.clear();
    member
}

#[test]
fn freed_space_is_given_again_only_when_every_floor_is_above_the_freeing_op() {
    let mut member = filled(2);
    let put = member.put_data("new", 40);
    assert_eq!(member.answers(put), [], "what is freed may still be written late");
    let [(0, DataRequest::RaiseFloor { floor }), (1, DataRequest::RaiseFloor { floor: same })] =
        member.requests()[..]
    else {
        panic!("no floor is raised")
    };
    assert_eq!(floor, same);
    member.step(Event::PoolEmpty);
    assert_eq!(member.answers(put), [], "floors that are under way will give space");
    member.answer(0, DataAnswer::Floor(floor));
    assert_eq!(member.answers(put), [], "one replica is not enough");
    member.answer(1, DataAnswer::Floor(floor));
    assert!(matches!(member.answers(put)[..], [Answer::Granted { .. }]));
}

#[test]
fn a_floor_stops_below_the_oldest_open_grant() {
    let mut member = Member::alone(1);
    let open = member.open_put("open", 1);
    member.store("old", 85, 1);
    member.delete("old");
    member.settle();
    member.effects.clear();
    let put = member.put_data("new", 40);
    assert_eq!(member.requests(), [], "the open grant is older than what was freed");
    member.step(Event::PoolEmpty);
    assert_eq!(member.refusal(put), Refusal::Full);
    member.commit(open, 1);
    member.settle();
    member.put_data("new", 40);
    assert!(matches!(member.requests()[..], [(0, DataRequest::RaiseFloor { floor })]
        if floor > open.op));
}

#[test]
fn a_full_pool_refuses_puts_and_still_takes_deletes() {
    let mut member = Member::alone(1);
    member.store("old", LV_BLOCKS, 1);
    let put = member.put_data("new", 1);
    assert!(member.effects.contains(&Effect::NeedLv));
    member.step(Event::PoolEmpty);
    assert_eq!(member.refusal(put), Refusal::Full);
    let delete = member.delete("old");
    member.settle();
    assert!(member.is_done(delete));
}

#[test]
fn puts_are_refused_for_now_while_servers_are_missing_for_another_volume() {
    let mut member = Member::alone(1);
    member.store("old", LV_BLOCKS, 1);
    let put = member.put_data("new", 1);
    assert!(member.effects.contains(&Effect::NeedLv));
    member.step(Event::TooFewServers);
    assert_eq!(member.refusal(put), Refusal::TooFewCopies, "another disk has room");
    member.effects.clear();
    let again = member.put_data("new", 1);
    assert!(member.effects.contains(&Effect::NeedLv), "it is asked for again");
    assert_eq!(member.answers(again), []);
    member.step(Event::PoolEmpty);
    assert_eq!(member.refusal(again), Refusal::Full);
}

#[test]
fn a_put_that_waits_for_a_volume_to_open_is_not_refused_for_want_of_another() {
    for said in [Event::PoolEmpty, Event::TooFewServers] {
        let mut member = Member::new(1);
        member.begin(1, &[1]);
        member.serve(2);
        let put = member.put_data("new", 1);
        assert_eq!(member.answers(put), [], "its replicas have not answered yet");
        member.step(said);
        assert_eq!(member.answers(put), []);
        (0..2).for_each(|replica| member.answer(replica, DataAnswer::Floor(key(1, 0))));
        assert!(matches!(member.answers(put)[..], [Answer::Granted { .. }]));
    }
}

#[test]
fn a_put_that_met_a_full_disk_is_tried_again_where_data_was_before() {
    let mut member = Member::alone(1);
    member.store("old", 40, 1);
    let grant = member.open_put("new", 20);
    member.delete("old");
    member.settle();
    member.call(Call::Abandon { op: grant.op, disk_full: true });
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(0, mismatch(grant));
    member.settle();
    member.effects.clear();
    let again = member.put_data("new", 20);
    assert_eq!(member.answers(again), [], "what was deleted waits for the floor");
    assert!(!member.effects.contains(&Effect::NeedLv), "another volume has no room either");
    let [(0, DataRequest::RaiseFloor { floor })] = member.requests()[..] else {
        panic!("{:?}", member.requests())
    };
    member.answer(0, DataAnswer::Floor(floor));
    let [Answer::Granted { ref extents, .. }] = member.answers(again)[..] else {
        panic!("{:?}", member.answers(again))
    };
    assert_eq!(extents[..], [Extent { first: 0, blocks: 20 }]);
    let too_large = member.put_data("more", 30);
    assert!(member.effects.contains(&Effect::NeedLv), "another disk may have room");
    member.step(Event::PoolEmpty);
    assert_eq!(member.refusal(too_large), Refusal::Full);
    member.effects.clear();
    let at_once = member.put_data("more", 30);
    assert_eq!(member.refusal(at_once), Refusal::Full);
    assert!(!member.effects.contains(&Effect::NeedLv), "it was said a moment ago");
}

#[test]
fn a_stale_epoch_is_refused() {
    let mut member = Member::alone(1);
    let request = member.request();
    let condition = Condition::default();
    let epoch = larder_types::Epoch(EPOCH.0 + 1);
    let call = Call::Delete { request, bucket: BUCKET, epoch, key: name_of("k"), condition };
    let delete = member.call(call);
    assert_eq!(member.refusal(delete), Refusal::StaleBucket);
}
