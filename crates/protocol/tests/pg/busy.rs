//! Each bound by which a group answers "slow down", filled by what proxies and managers may send, and what empties it:
//! a good request is served afterwards.

use larder_protocol::limits::{
    BARRIERS_MAX, DOUBT_TICKS_MAX, REPEATS_MAX, TAIL_OPS_MAX, WAITING_CALLS_MAX,
};
use larder_protocol::manager::state::{MapVersion, ReplicaState};
use larder_protocol::{Answer, Call, DataAnswer, Effect, Event, LvInfo, Refusal, Token};
use larder_types::{Condition, LvId, Request, SessionId};

use crate::support::{BUCKET, EPOCH, LV_BLOCKS, Member, data, info, key, name_of, put, replica};

const GOOD: SessionId = SessionId(77);

/// The request of a client whose calls are refused or wait.
fn hostile(number: u64) -> Request {
    Request { session: SessionId(5), number, floor: 0 }
}

fn is_busy(member: &mut Member) -> bool {
    let token = member.request_of(GOOD, "good");
    let answers = member.answers(token);
    assert!(matches!(answers[..], [] | [Answer::Refused(Refusal::Busy)]), "{answers:?}");
    !answers.is_empty()
}

fn is_served(member: &mut Member) {
    let token = member.request_of(GOOD, "good");
    member.settle();
    assert!(member.is_done(token), "it is served");
}

fn ticks(member: &mut Member, count: u64) {
    for _ in 0..count {
        member.now_ms += 100;
        member.step(Event::Tick);
    }
}

/// Of these calls, those that were answered `Busy`.
fn refused(member: &mut Member, calls: &[Token]) -> usize {
    let busy = |effect: &Effect| match effect {
        Effect::Reply { token, answer } => {
            calls.contains(token) && *answer == Answer::Refused(Refusal::Busy)
        }
        _ => false,
    };
    let count = member.effects.iter().filter(|effect| busy(effect)).count();
    member.effects.clear();
    count
}

#[test]
fn ops_that_are_not_durable_make_room_when_they_are() {
    let mut member = Member::alone(1);
    for number in 0..TAIL_OPS_MAX as u64 {
        let condition = Condition::default();
        let (request, bucket, epoch, key) = (hostile(number), BUCKET, EPOCH, name_of("k"));
        member.call(Call::Delete { request, bucket, epoch, key, condition });
    }
    assert!(is_busy(&mut member));
    member.settle();
    is_served(&mut member);
}

#[test]
fn a_session_of_too_many_requests_has_room_when_its_floor_is_told_and_others_have_it_before() {
    let mut member = Member::alone(1);
    let count = REPEATS_MAX as u64;
    let delete = |number| {
        let (bucket, epoch, key) = (BUCKET, EPOCH, name_of("k"));
        let (request, condition) = (hostile(number), Condition::default());
        Call::Delete { request, bucket, epoch, key, condition }
    };
    for number in 0..count {
        member.call(delete(number));
        if number % 1000 == 0 {
            member.settle();
        }
        member.effects.clear();
    }
    member.settle();
    member.effects.clear();
    let token = member.call(delete(count));
    assert_eq!(member.refusal(token), Refusal::Busy);
    is_served(&mut member);
    member.step(Event::Floor { session: SessionId(5), floor: count });
    let token = member.call(delete(count));
    member.settle();
    assert!(member.is_done(token));
}

/// Has puts with data wait until no more may.
fn starve(member: &mut Member) -> Vec<Token> {
    let calls = (0..WAITING_CALLS_MAX as u64)
        .map(|number| member.call(put(hostile(number), "k", data(2), Condition::default())));
    calls.collect()
}

/// A member with a volume that has no room for two blocks.
fn without_room() -> Member {
    let mut member = Member::alone(1);
    let grant = member.pending_put("all", LV_BLOCKS - 1);
    member.commit(grant, 1);
    member.settle();
    member.effects.clear();
    member
}

#[test]
fn calls_that_wait_for_space_are_refused_in_time() {
    let mut member = without_room();
    let calls = starve(&mut member);
    assert!(member.effects.contains(&Effect::NeedLv));
    assert_eq!(refused(&mut member, &calls), 0);
    assert!(is_busy(&mut member));
    // A floor is heard again and again: those who wait are tried each time, and no sooner wait anew.
    for _ in 0..4 {
        ticks(&mut member, DOUBT_TICKS_MAX / 4 + 1);
        member.answer(0, DataAnswer::Floor(key(1, 0)));
    }
    assert_eq!(refused(&mut member, &calls), calls.len());
    is_served(&mut member);
}

/// A manager that is wrong may name one, and one that is right when all its replicas are lost.
#[test]
fn a_volume_without_replicas_is_not_waited_for() {
    let mut member = without_room();
    let lost = |n| larder_protocol::Replica { state: ReplicaState::Gone, ..replica(n) };
    let replicas = vec![lost(0), lost(1)];
    let lv = LvInfo { lv: LvId(77), replicas, as_of: MapVersion(2), ..info(1) };
    assert_eq!(member.pg.admits_lv(&lv), Ok(()));
    member.step(Event::Lv(lv));
    member.effects.clear();
    member.put_data("more", 2);
    assert!(member.effects.contains(&Effect::NeedLv), "another is asked for");
    let as_of = MapVersion(3);
    member.step(Event::Lv(LvInfo { lv: LvId(78), as_of, ..info(1) }));
    let lv = LvId(78);
    member.step(Event::Data { lv, replica: 0, answer: DataAnswer::Floor(key(1, 0)) });
    let granted = |effect: &Effect| matches!(effect, Effect::Reply { answer: Answer::Granted { lv, .. }, .. } if *lv == LvId(78));
    assert!(member.effects.iter().any(granted), "{:?}", member.effects);
}

#[test]
fn calls_that_wait_for_a_put_in_doubt_are_refused_in_time() {
    let mut member = Member::alone(1);
    member.put_data("k", 1);
    member.settle();
    let append = |number| {
        let (request, bucket, key) = (hostile(number), BUCKET, name_of("k"));
        Call::SetTags { request, bucket, key, tags: vec![] }
    };
    for number in 0..WAITING_CALLS_MAX as u64 {
        member.call(append(number));
    }
    assert!(is_busy(&mut member));
    for _ in 0..=DOUBT_TICKS_MAX {
        ticks(&mut member, 1);
        member.answer(0, DataAnswer::Failed);
    }
    is_served(&mut member);
}

#[test]
fn barriers_that_wait_are_refused_in_time() {
    let mut member = Member::alone(1);
    member.put_data("k", 1);
    member.settle();
    for _ in 0..BARRIERS_MAX {
        member.call(Call::Barrier);
    }
    let token = member.call(Call::Barrier);
    assert_eq!(member.refusal(token), Refusal::Busy);
    is_served(&mut member);
    for _ in 0..=DOUBT_TICKS_MAX {
        ticks(&mut member, 1);
        member.answer(0, DataAnswer::Failed);
    }
    member.effects.clear();
    let token = member.call(Call::Barrier);
    assert_eq!(member.answers(token), [], "it waits with room again");
}
