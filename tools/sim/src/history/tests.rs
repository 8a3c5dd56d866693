use super::*;

/// Calls as (asked, begin, end, answered); an end of [`NEVER`] is one that was not answered.
fn check(calls: &[(Invocation, u64, u64, CallResult)]) -> Result<(), String> {
    let mut history = History::new(1);
    for &(asked, begun, ended, answered) in calls {
        history.keys[0].push(Entry { asked, begun, ended, answered });
    }
    let judged = history.check();
    if let Some(is_explained) = outside::is_explained(&history.keys[0]) {
        assert_eq!(is_explained, judged.is_ok(), "the two checkers agree: {judged:?}");
    }
    judged
}

const fn put(value: u64) -> Invocation {
    Invocation::Put(value, CallCondition::Always)
}

fn shows(value: u64) -> CallResult {
    CallResult::Shows(Some(Shown::put(value)))
}

const NOTHING: CallResult = CallResult::Shows(None);
use CallResult::{Done, NoSuchKey, Refused, Unknown, Unmet};
use Invocation::{Delete, Get, SetTags};

#[test]
fn calls_one_after_the_other_are_explained() {
    let calls = [
        (Get, 1, 2, NOTHING),
        (put(7), 3, 4, Done),
        (Get, 5, 6, shows(7)),
        (Delete(CallCondition::Always), 7, 8, Done),
        (Get, 9, 10, NOTHING),
    ];
    assert_eq!(check(&calls), Ok(()));
}

#[test]
fn an_acknowledged_put_that_is_not_seen_is_found() {
    assert!(check(&[(put(7), 1, 2, Done), (Get, 3, 4, NOTHING)]).is_err());
    assert!(check(&[(put(7), 1, 2, Done), (put(8), 3, 4, Done), (Get, 5, 6, shows(7))]).is_err());
}

#[test]
fn a_value_once_seen_does_not_vanish() {
    let calls = [
        (put(1), 1, 2, Done),
        (put(2), 3, NEVER, Unknown),
        (Get, 4, 5, shows(2)),
        (Get, 6, 7, shows(1)),
    ];
    assert!(check(&calls).is_err());
}

#[test]
fn a_call_without_an_answer_may_take_effect_late_or_never() {
    let unknown = (put(2), 1, NEVER, Unknown);
    assert_eq!(check(&[unknown, (put(1), 2, 3, Done), (Get, 4, 5, shows(1))]), Ok(()));
    let late = [unknown, (put(1), 2, 3, Done), (Get, 4, 5, shows(1)), (Get, 6, 7, shows(2))];
    assert_eq!(check(&late), Ok(()));
    let deleted = [
        (put(1), 1, 2, Done),
        (Delete(CallCondition::Always), 3, NEVER, Unknown),
        (Get, 4, 5, shows(1)),
        (Get, 6, 7, NOTHING),
    ];
    assert_eq!(check(&deleted), Ok(()));
}

#[test]
fn a_refused_call_has_no_effect() {
    assert!(check(&[(put(2), 1, 2, Refused), (Get, 3, 4, shows(2))]).is_err());
}

#[test]
fn concurrent_calls_may_take_either_order_but_all_readers_the_same() {
    let puts = [(put(1), 1, 10, Done), (put(2), 2, 11, Done)];
    let seen = |first, second| {
        let mut calls = puts.to_vec();
        calls.push((Get, 12, 13, shows(first)));
        calls.push((Get, 14, 15, shows(second)));
        check(&calls)
    };
    assert_eq!(seen(1, 1), Ok(()));
    assert_eq!(seen(2, 2), Ok(()));
    assert!(seen(1, 2).is_err());
}

#[test]
fn of_two_conditional_creations_one_fails() {
    let create = |value| Invocation::Put(value, CallCondition::Absent);
    let both = |second| check(&[(create(1), 1, 10, Done), (create(2), 2, 11, second)]);
    assert_eq!(both(Unmet), Ok(()));
    assert!(both(Done).is_err());
}

#[test]
fn a_failed_condition_needs_a_reason() {
    let alone = (Invocation::Put(2, CallCondition::Absent), 5, 6, Unmet);
    assert!(check(&[alone]).is_err());
    assert_eq!(check(&[(put(1), 1, NEVER, Unknown), alone]), Ok(()), "an unseen put explains it");
    assert!(check(&[(Invocation::Put(2, CallCondition::Value(9)), 1, 2, Done)]).is_err());
    assert_eq!(check(&[(Invocation::Put(2, CallCondition::Value(9)), 1, 2, NoSuchKey)]), Ok(()));
    assert!(
        check(&[(put(9), 1, 2, Done), (Invocation::Put(2, CallCondition::Value(9)), 3, 4, Unmet)])
            .is_err()
    );
}

#[test]
fn tags_belong_to_their_version() {
    let tagged = |value, tags| CallResult::Shows(Some(Shown { tags, ..Shown::put(value) }));
    let calls = [(put(1), 1, 2, Done), (SetTags(5), 3, 4, Done), (Get, 5, 6, tagged(1, 5))];
    assert_eq!(check(&calls), Ok(()));
    let mut overwritten = calls.to_vec();
    overwritten.push((put(2), 7, 8, Done));
    overwritten.push((Get, 9, 10, tagged(2, 5)));
    assert!(check(&overwritten).is_err());
    assert!(check(&[(SetTags(5), 1, 2, Done)]).is_err(), "nothing was there to be tagged");
}

#[test]
fn a_long_history_with_many_open_calls_is_decided_quickly() {
    let mut calls = Vec::new();
    for n in 0..200u64 {
        calls.push((put(n + 1), n * 10 + 1, n * 10 + 2, Done));
        if n % 8 == 0 {
            calls.push((put(n + 10_000), n * 10 + 3, NEVER, Unknown));
            calls.push((Delete(CallCondition::Present), n * 10 + 4, NEVER, Unknown));
        }
        calls.push((Get, n * 10 + 5, n * 10 + 6, shows(n + 1)));
    }
    assert_eq!(check(&calls), Ok(()));
}

const fn record(value: u64) -> Invocation {
    Invocation::Append(value, None, CallCondition::Always)
}

const fn append_at(value: u64, at: u64) -> Invocation {
    Invocation::Append(value, Some(at), CallCondition::Always)
}

/// An object of a value and those appended to it.
fn grown_by(first: u64, next: &[u64]) -> CallResult {
    let whole = next.iter().fold(Shown::put(first), |shown, value| shown.with(*value));
    CallResult::Shows(Some(whole))
}

use CallResult::{Ends, Grown};

#[test]
fn appends_follow_each_other() {
    let calls = [
        (record(5), 1, 2, Grown(0)),
        (record(7), 3, 6, Grown(5)),
        (append_at(9, 12), 4, 7, Grown(12)),
        (append_at(3, 12), 8, 9, Ends(21)),
        (Get, 10, 11, grown_by(5, &[7, 9])),
        (put(4), 12, 13, Done),
        (record(2), 14, 15, Grown(4)),
        (Get, 16, 17, grown_by(4, &[2])),
    ];
    assert_eq!(check(&calls), Ok(()));
}

#[test]
fn a_record_that_is_lost_or_there_twice_is_found() {
    let appended = [(record(5), 1, 2, Grown(0)), (record(7), 3, 4, Grown(5))];
    let then = |shown| check(&[appended[0], appended[1], (Get, 5, 6, shown)]);
    assert_eq!(then(grown_by(5, &[7])), Ok(()));
    assert!(then(shows(5)).is_err(), "the second is lost");
    assert!(then(grown_by(5, &[7, 7])).is_err(), "it is there twice");
    assert!(then(grown_by(7, &[5])).is_err(), "another order than the offsets say");
}

#[test]
fn a_hole_or_an_overlap_is_found() {
    assert!(check(&[(record(5), 1, 2, Grown(0)), (record(7), 3, 4, Grown(6))]).is_err());
    assert!(check(&[(record(5), 1, 2, Grown(0)), (record(7), 3, 4, Grown(0))]).is_err());
    let late = [(record(5), 1, 2, Grown(0)), (put(9), 3, 4, Done), (record(7), 5, 6, Grown(5))];
    assert!(check(&late).is_err(), "the object was another by then");
}

#[test]
fn an_append_without_an_answer_may_be_there_once_or_never() {
    let unknown = (record(6), 1, NEVER, Unknown);
    assert_eq!(check(&[unknown, (record(5), 2, 3, Grown(0)), (Get, 4, 5, shows(5))]), Ok(()));
    let late = [unknown, (record(5), 2, 3, Grown(0)), (Get, 4, 5, grown_by(5, &[6]))];
    assert_eq!(check(&late), Ok(()));
    let before = [unknown, (record(5), 2, 3, Grown(6)), (put(1), 4, 5, Done)];
    assert_eq!(check(&before), Ok(()), "seen by the offset alone");
    let twice = [unknown, (record(5), 2, 3, Grown(6)), (record(4), 4, 5, Grown(17))];
    assert!(check(&twice).is_err());
}

#[test]
fn of_two_appends_at_one_offset_one_is_done() {
    let both = [(append_at(5, 0), 1, 3, Grown(0)), (append_at(6, 0), 2, 4, Grown(0))];
    assert!(check(&both).is_err());
    let one = [(append_at(5, 0), 1, 3, Grown(0)), (append_at(6, 0), 2, 4, Ends(5))];
    assert_eq!(check(&one), Ok(()));
}

#[test]
fn many_appends_without_an_answer_may_all_be_seen_at_once() {
    let values = [3, 4, 6, 7, 8, 9];
    let mut calls = vec![(put(5), 1, 2, Done), (put(2), 3, NEVER, Unknown)];
    calls.extend(values.iter().zip(4..).map(|(value, at)| (record(*value), at, NEVER, Unknown)));
    let seen = |order: &[u64]| {
        let last = (Get, 20, 21, grown_by(2, order));
        let mut history = History::new(1);
        for &(asked, begun, ended, answered) in calls.iter().chain([&last]) {
            history.keys[0].push(Entry { asked, begun, ended, answered });
        }
        history.read(&[&[2], order].concat());
        history.check()
    };
    assert_eq!(seen(&[9, 3, 4, 8, 6]), Ok(()));
    assert_eq!(seen(&[3, 4, 6, 7, 8, 9]), Ok(()));
    assert!(seen(&[9, 3, 4, 8, 3]).is_err(), "one is there twice");
}

#[test]
fn what_was_read_says_in_which_order_it_was_appended() {
    // In any order they would be more than can be tried.
    let values: Vec<u64> = (1..=24).map(|number| number << 20 | 100).collect();
    let mut history = History::new(1);
    let mut add = |asked, begun, ended, answered| {
        history.keys[0].push(Entry { asked, begun, ended, answered });
    };
    add(put(5), 1, 2, Done);
    for (&value, at) in values.iter().zip(3..) {
        add(record(value), at, NEVER, Unknown);
    }
    let order: Vec<u64> = values.iter().rev().step_by(3).copied().collect();
    add(Get, 40, 41, grown_by(5, &order));
    history.read(&[&[5], &order[..]].concat());
    assert_eq!(history.check(), Ok(()));
    history.keys[0].push(Entry { asked: Get, begun: 42, ended: 43, answered: shows(5) });
    assert!(history.check().is_err(), "they are lost");
}

#[test]
fn what_only_an_answered_call_can_have_made_is_not_looked_for_among_the_others() {
    let mut made = KnownObjects::default();
    made.learn(&[5]);
    made.learn(&[6, 7]);
    let mut calls = vec![(Delete(CallCondition::Always), 1, NEVER, Unknown)];
    calls.extend((1..=40u64).map(|n| (record((n << 20) | (n * 1_637)), n + 1, NEVER, Unknown)));
    calls.extend([
        (Get, 50, 90, shows(5)),
        (put(5), 51, 60, Done),
        (Get, 52, 80, grown_by(6, &[7])),
        (put(6), 53, 70, Done),
        (record(7), 71, NEVER, Unknown),
    ]);
    let entry = |(asked, begun, ended, answered)| Entry { asked, begun, ended, answered };
    let entries: Vec<Entry> = calls.into_iter().map(entry).collect();
    let mut search = Search::new(&entries, &made, Limits::PATIENT);
    assert_eq!(search.run(), Verdict::Explained);
    assert!(search.tried() < 10_000, "{} calls tried", search.tried());
}

#[test]
fn a_value_that_was_read_at_two_places_is_found() {
    let mut history = History::new(1);
    let calls = [
        (record(5), 1, 2, Grown(0)),
        (record(7), 3, NEVER, Unknown),
        (Get, 4, 5, grown_by(5, &[7])),
        (put(6), 6, 7, Done),
        (Get, 8, 9, grown_by(6, &[7])),
    ];
    for (asked, begun, ended, answered) in calls {
        history.keys[0].push(Entry { asked, begun, ended, answered });
    }
    history.read(&[5, 7]);
    history.read(&[6, 7]);
    assert!(history.check().is_err());
}

#[test]
fn of_an_object_that_was_only_listed_it_is_found_of_which_appends_it_is_made() {
    // Not knowing that, the search would have to try nearly all orders of all of them.
    let values: Vec<u64> =
        (1..=40u64).map(|number| (number << 20) | (number * 32_749 % 65_521)).collect();
    let mut calls = vec![(put(5), 1, 2, Done)];
    let unanswered = values.iter().zip(3..);
    calls.extend(unanswered.map(|(&value, at)| match value >> 20 {
        // Where two of them begin was named.
        20 => (append_at(value, 5 + len_of(values[2])), at, NEVER, Unknown),
        21 => (append_at(value, 1), at, NEVER, Unknown),
        _ => (record(value), at, NEVER, Unknown),
    }));
    let listed = |order: &[usize]| {
        let order: Vec<u64> = order.iter().map(|&at| values[at]).collect();
        (Get, 100, 101, grown_by(5, &order))
    };
    let entries = |order: &[usize]| -> Vec<Entry> {
        let calls = calls.iter().copied().chain([listed(order)]);
        let entry = |(asked, begun, ended, answered)| Entry { asked, begun, ended, answered };
        calls.map(entry).collect()
    };
    let knows = |order: &[usize]| {
        let entries = entries(order);
        let object = entries.last().and_then(shown_in).unwrap().value;
        KnownObjects::default().with_listed(&entries).knows(object)
    };
    assert!(knows(&[2, 19, 30, 11, 4]));
    assert!(!knows(&[2, 20, 30, 11, 4]), "one was to begin elsewhere");
    let five = [listed(&[2, 19, 30, 11, 4]), (Get, 102, 103, NOTHING)];
    let deleted = (Delete(CallCondition::Always), 50, NEVER, Unknown);
    assert_eq!(check(&[&calls[..], &[deleted], &five].concat()), Ok(()));
}

#[test]
fn what_was_put_and_appended_to_without_an_answer_may_have_been_tagged_too() {
    let seen = |tags| match grown_by(2, &[3, 4, 6]) {
        CallResult::Shows(Some(shown)) => CallResult::Shows(Some(Shown { tags, ..shown })),
        other => other,
    };
    let check = |tags| {
        let mut calls = vec![(put(5), 1, 2, Done), (put(2), 3, NEVER, Unknown)];
        calls.extend([(4, 4), (3, 5), (6, 6)].map(|(n, at)| (record(n), at, NEVER, Unknown)));
        calls.push((SetTags(9), 7, NEVER, Unknown));
        calls.push((SetTags(8), 8, NEVER, Unknown));
        calls.push((Get, 9, 10, seen(tags)));
        check(&calls)
    };
    assert_eq!(check(9), Ok(()));
    assert_eq!(check(0), Ok(()));
    assert!(check(7).is_err(), "nobody set these");
}

#[test]
fn a_condition_that_is_not_met_may_come_after_more_calls_than_one() {
    let appended = Invocation::Append(8, None, CallCondition::Always);
    let not_met = Invocation::Append(9, None, CallCondition::Value(7));
    let calls = [
        // Alone it would do, and nothing that comes after it would be explained.
        (put(5), 1, NEVER, Unknown),
        (Get, 2, 3, NOTHING),
        (Invocation::Put(7, CallCondition::Absent), 4, NEVER, Unknown),
        (appended, 5, NEVER, Unknown),
        (not_met, 6, 7, Unmet),
        (Get, 8, 9, CallResult::Shows(Some(Shown::put(7).with(8)))),
    ];
    assert_eq!(check(&calls), Ok(()));
    // Nothing puts what the last shows.
    let without = [calls[0], calls[1], calls[3], calls[4], calls[5]];
    assert!(check(&without).is_err());
}

#[test]
fn a_reply_with_only_a_length_may_follow_many_appends() {
    let calls = [
        // It alone is as long, and nothing leads from it to what is seen.
        (put(10), 1, NEVER, Unknown),
        (record(1), 2, NEVER, Unknown),
        (record(2), 3, NEVER, Unknown),
        (record(3), 4, NEVER, Unknown),
        (record(4), 5, NEVER, Unknown),
        (append_at(9, 999), 6, 7, Ends(10)),
        (Get, 8, 9, grown_by(1, &[2, 3, 4])),
    ];
    assert_eq!(check(&calls), Ok(()));
    let without = [&calls[..4], &calls[5..]].concat();
    assert!(check(&without).is_err(), "nothing appends what is seen last");
}

#[test]
fn of_appends_of_one_length_that_nobody_saw_several_may_be_done() {
    let six = |number: u64| record(number << 20 | 6);
    let done = |size| {
        let unknown = (1..=3).map(|at| (six(at), at, NEVER, Unknown));
        check(&unknown.chain([(record(5), 5, 6, Grown(size))]).collect::<Vec<_>>())
    };
    assert_eq!([0, 6, 12, 18].map(done), [const { Ok(()) }; 4]);
    assert!(done(24).is_err(), "there are three");
    assert!(done(9).is_err(), "all or nothing");
}

#[test]
fn a_wrong_history_with_many_open_calls_is_called_wrong_in_bounded_time_and_memory() {
    let number = |n: u64| n << 20 | (1_000 + n);
    let open = (1..=30).map(|n| match n % 3 {
        0 => (record(number(n)), n, NEVER, Unknown),
        _ => (put(number(n)), n, NEVER, Unknown),
    });
    // Each may come after any three of those.
    let unmet =
        (100..110).map(|n| (Invocation::Put(number(n), CallCondition::Absent), n, n + 100, Unmet));
    let wrong = (Get, 400, 401, shows(number(99)));
    let mut history = History::new(1);
    for (asked, begun, ended, answered) in open.chain(unmet).chain([wrong]) {
        history.keys[0].push(Entry { asked, begun, ended, answered });
    }
    let check = |limits| history.check_within(limits).unwrap_err();
    let few_tries = check(Limits { tried: 20_000_000, ..Limits::PATIENT });
    let few_moves = check(Limits { moves: 100_000, ..Limits::PATIENT });
    for error in [few_tries, few_moves] {
        assert!(error.contains("no order with few unanswered calls"), "{error}");
        assert!(error.contains("answered by 401"), "{error}");
    }
}
