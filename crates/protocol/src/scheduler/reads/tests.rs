//! Whom reads ask, and what becomes of it.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde::de::IntoDeserializer;

use super::*;
use crate::limits::{HEDGE_AFTER_US_MAX, HEDGED_PART, HEDGES_SAVED_MAX, REFUSED_US, STALE_US_MAX};
use crate::scheduler::counter_rng::CounterRng;
use crate::scheduler::meter::Load;

const BYTES: u64 = 8192;

fn replica(index: usize) -> Replica {
    let (server, disk) = (ServerId(10 + index as u32), DiskId(20 + index as u32));
    Replica { index, server, disk, is_near: false, health: ServerHealth::Up }
}

fn down(index: usize) -> Replica {
    Replica { health: ServerHealth::Down, ..replica(index) }
}

fn near(index: usize) -> Replica {
    Replica { is_near: true, ..replica(index) }
}

fn three() -> [Replica; 3] {
    [replica(0), replica(1), replica(2)]
}

fn all() -> Holders {
    Holders(0b111)
}

fn reads(policy: Policy) -> Reads {
    Reads::new(policy)
}

/// So many small requests at a disk that takes so long for each.
fn report(requests: u32, service_us: u32) -> Report {
    let mut report = Report { lanes: 1, ..Report::default() };
    report.waiting[0] = Load { requests, bytes: u64::from(requests) * BYTES };
    report.service_us[0] = service_us;
    report
}

/// Has every one of these asked once, and answer with its report.
fn take_reports(reads: &mut Reads, now_us: u64, reported: &[(Replica, Report)]) {
    for (replica, report) in reported {
        let mut reading = Reading::of(Holders(u16::MAX), [*replica], BYTES);
        let asked = reads.next(now_us, &mut reading, 0).unwrap();
        reads.answered(now_us, asked, Some(*report));
    }
}

/// Returns the holders that may be asked first now.
fn firsts(reads: &mut Reads, now_us: u64, holders: Holders, of: &[Replica]) -> BTreeSet<usize> {
    let first = |draw| {
        reads.begin();
        let mut reading = Reading::of(holders, of.iter().copied(), BYTES);
        let asked = reads.next(now_us, &mut reading, draw).unwrap();
        let index = asked.replica.index;
        reads.gave_up(asked);
        index
    };
    (0..12).map(first).collect()
}

#[test]
fn only_holders_are_asked_and_each_once() {
    for policy in Policy::ALL {
        let (mut reads, mut rng) = (reads(policy), CounterRng(3, 0));
        for _ in 0..50 {
            let mut reading = Reading::of(Holders(0b101), three(), BYTES);
            let mut asked = BTreeSet::new();
            while let Some(one) = reads.next(0, &mut reading, rng.next()) {
                assert!(asked.insert(one.replica.index), "{policy:?}: twice");
                reads.gave_up(one);
            }
            assert_eq!(asked, [0, 2].into(), "{policy:?}");
        }
        assert_eq!(reads.outstanding(), 0);
    }
}

#[test]
fn those_that_are_down_are_asked_last() {
    for policy in Policy::ALL {
        let mut reads = reads(policy);
        assert_eq!(firsts(&mut reads, 0, all(), &[down(0), replica(1), down(2)]), [1].into());
        let mut reading = Reading::of(all(), [down(0), down(1)], BYTES);
        assert!(reads.hedge(0, &mut reading, 1).is_none(), "{policy:?}: it helps nobody");
        assert_eq!(reads.counts().hedges_spared, 0);
        let asked = [0, 1].map(|_| reads.next(0, &mut reading, 5).map(|it| it.replica.index));
        assert_eq!(BTreeSet::from(asked), [Some(0), Some(1)].into(), "{policy:?}");
        assert!(reads.next(0, &mut reading, 5).is_none());
    }
}

#[test]
fn one_that_refuses_at_once_is_asked_after_the_others_for_a_while() {
    for policy in Policy::ALL {
        let mut reads = reads(policy);
        let mut reading = Reading::of(all(), [replica(0)], BYTES);
        let asked = reads.next(0, &mut reading, 0).unwrap();
        reads.refused(0, asked);
        assert_eq!(reads.outstanding(), 0);
        let of = [replica(0), replica(1), down(2)];
        assert_eq!(firsts(&mut reads, REFUSED_US - 1, all(), &of), [1].into(), "{policy:?}");
        let mut reading = Reading::of(all(), of, BYTES);
        let asked = [(); 3].map(|()| reads.next(1, &mut reading, 7).unwrap().replica.index);
        assert_eq!(asked, [1, 0, 2], "{policy:?}: before one that is down");
        let later = firsts(&mut reads, REFUSED_US, all(), &of);
        assert!(later.contains(&0) || policy == Policy::C3, "{policy:?}: it is tried again");
    }
}

#[test]
fn a_near_holder_is_read_unless_a_far_one_is_better_by_the_round_trip() {
    let replicas = [replica(0), near(1), replica(2)];
    let mut reads = reads(Policy::EarliestFinish);
    assert_eq!(firsts(&mut reads, 0, all(), &replicas), [1].into(), "nothing was heard");
    let reported = |queue| {
        let [first, second, third] = replicas;
        [(first, report(0, 100)), (second, report(queue, 100)), (third, report(9, 100))]
    };
    take_reports(&mut reads, 1, &reported(2));
    assert_eq!(firsts(&mut reads, 1, all(), &replicas), [1].into(), "the trip takes longer");
    take_reports(&mut reads, 2, &reported(3));
    assert_eq!(firsts(&mut reads, 2, all(), &replicas), [0].into());
    assert_eq!(firsts(&mut reads, 2, all(), &three()), [0].into(), "all are far");
    let later = 2 + 10 * STALE_US_MAX;
    assert_eq!(firsts(&mut reads, later, all(), &replicas), [1].into(), "it was long ago");
}

#[test]
fn turns_are_taken_among_near_ones() {
    let mut reads = reads(Policy::RoundRobin);
    let replicas = [near(0), replica(1), near(2)];
    assert_eq!(firsts(&mut reads, 0, all(), &replicas), [0, 2].into());
}

#[test]
fn a_replica_that_fails_does_not_cost_the_others_their_turns() {
    let mut reads = reads(Policy::RoundRobin);
    let mut first = || {
        reads.begin();
        let mut reading = Reading::of(Holders(0b11), three(), BYTES);
        let [first, then] = [(); 2].map(|()| reads.next(0, &mut reading, 0).unwrap());
        let index = first.replica.index;
        reads.gave_up(first);
        reads.gave_up(then);
        index
    };
    assert_ne!(first(), first(), "though each asked both");
}

#[test]
fn a_disk_that_never_reports_is_taken_for_one_like_the_others() {
    for policy in [Policy::EarliestFinish, Policy::Parallel, Policy::C3] {
        let mut reads = reads(policy);
        take_reports(
            &mut reads,
            0,
            &[(replica(0), report(2, 1000)), (replica(1), report(2, 1000))],
        );
        let silent = |reads: &mut Reads, count| {
            let ask = |_| {
                let mut reading = Reading::of(all(), [replica(2)], BYTES);
                reads.next(0, &mut reading, 0).unwrap()
            };
            (0..count).map(ask).collect::<Vec<_>>()
        };
        let once = silent(&mut reads, 1);
        once.into_iter().for_each(|it| reads.answered(0, it, None));
        let asked = silent(&mut reads, 1);
        assert!(firsts(&mut reads, 1, all(), &three()).contains(&2), "{policy:?}: it has less");
        let more = silent(&mut reads, 9);
        assert!(!firsts(&mut reads, 1, all(), &three()).contains(&2), "{policy:?}: it has more");
        asked.into_iter().chain(more).for_each(|it| reads.answered(2, it, None));
        assert!(firsts(&mut reads, 2, all(), &three()).contains(&2), "{policy:?}: it has answered");
    }
}

#[test]
fn no_disk_starves_on_account_of_an_old_report() {
    for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::PrimaryFirst) {
        let mut reads = reads(policy);
        let slow = report(500, 900_000);
        take_reports(&mut reads, 0, &[(replica(0), slow), (replica(1), report(0, 100))]);
        take_reports(&mut reads, STALE_US_MAX, &[(replica(1), report(0, 100))]);
        let now_us = STALE_US_MAX + 1;
        assert!(firsts(&mut reads, now_us, all(), &three()[..2]).contains(&0), "{policy:?}");
    }
}

#[test]
fn a_late_read_is_hedged_with_another_holder() {
    let mut reads = reads(Policy::EarliestFinish);
    let mut reading = Reading::of(all(), three(), BYTES);
    let first = reads.next(0, &mut reading, 1).unwrap();
    assert_eq!(first.hedge_after_us, HEDGE_AFTER_US_MAX, "before anything was answered");
    let other = reads.hedge(300_000, &mut reading, 1).unwrap();
    assert_ne!(first.replica, other.replica);
    assert_eq!(reads.outstanding(), 2);
    reads.answered(301_000, other, Some(report(0, 1000)));
    reads.outrun(301_000, first);
    assert_eq!((reads.outstanding(), reads.counts().hedges, reads.counts().hedges_won), (0, 1, 1));
}

#[test]
fn the_delay_is_that_of_the_size() {
    let mut reads = reads(Policy::Random);
    for number in 0..2000 {
        let mut reading = Reading::of(all(), three(), BYTES);
        let asked = reads.next(number, &mut reading, number).unwrap();
        reads.answered(number + 4000, asked, None);
    }
    let small = reads.hedge_after_us(SizeClass::Small);
    assert!((3000..6000).contains(&small), "{small}");
    assert_eq!(reads.hedge_after_us(SizeClass::Huge), HEDGE_AFTER_US_MAX);
}

#[test]
fn a_holder_that_may_be_down_is_read_and_is_no_hedge() {
    let due = |index| Replica { health: ServerHealth::Due, ..replica(index) };
    for policy in Policy::ALL {
        let mut reads = reads(policy);
        let mut reading = Reading::of(Holders(0b11), [due(0), due(1)], BYTES);
        let first = reads.next(0, &mut reading, 1).unwrap();
        assert!(reads.hedge(0, &mut reading, 1).is_none(), "{policy:?}");
        reads.gave_up(first);
        let mut reading = Reading::of(all(), [down(0), replica(1), due(2)], BYTES);
        for place in 1..=3 {
            let asked = reads.next(0, &mut reading, 1).unwrap();
            let is_last = asked.replica.health == ServerHealth::Down;
            assert_eq!(is_last, place == 3, "{policy:?}");
            reads.gave_up(asked);
        }
    }
    let mut reads = reads(Policy::Random);
    let mut reading = Reading::of(all(), [due(0), replica(1), due(2)], BYTES);
    assert_eq!(reads.hedge(0, &mut reading, 5).map(|asked| asked.replica.index), Some(1));
}

#[test]
fn at_most_three_percent_of_reads_are_hedged() {
    let mut reads = reads(Policy::Random);
    let count = 50_000;
    for number in 0..count {
        reads.begin();
        let mut reading = Reading::of(all(), three(), BYTES);
        let first = reads.next(number, &mut reading, number).unwrap();
        if let Some(other) = reads.hedge(number, &mut reading, number) {
            reads.gave_up(other);
        }
        reads.gave_up(first);
    }
    let hedges = reads.counts().hedges;
    assert!(hedges <= count * 3 / 100 + u64::from(HEDGES_SAVED_MAX), "{hedges} of {count}");
    assert!(hedges >= count / u64::from(HEDGED_PART), "{hedges} of {count}");
    assert_eq!(hedges + reads.counts().hedges_spared, count);
}

#[test]
fn counts_are_by_policy_rank_and_age() {
    let mut reads = reads(Policy::PrimaryFirst);
    take_reports(&mut reads, 1000, &[(replica(0), report(0, 100))]);
    let mut reading = Reading::of(Holders(0b110), three(), BYTES);
    let asked = reads.next(3000, &mut reading, 0).unwrap();
    reads.gave_up(asked);
    reads.set_policy(Policy::Random);
    reads.set_requesters(4);
    let mut reading = Reading::of(Holders(0b001), three(), BYTES);
    let asked = reads.next(3500, &mut reading, 0).unwrap();
    reads.gave_up(asked);
    let counts = reads.counts();
    assert_eq!(counts.asked[Policy::PrimaryFirst as usize], [2, 0, 0, 0]);
    assert_eq!(counts.asked[Policy::Random as usize], [1, 0, 0, 0]);
    assert_eq!((counts.reports, counts.report_age_us), (1, 2500));
}

#[test]
fn a_policy_is_configured_by_its_name_and_counted_at_its_place() {
    type Told = serde::de::value::Error;
    let read = |name: &'static str| {
        let name: serde::de::value::StrDeserializer<'_, Told> = name.into_deserializer();
        Policy::deserialize(name)
    };
    for (place, policy) in Policy::ALL.into_iter().enumerate() {
        assert_eq!(read(policy.name()), Ok(policy));
        assert_eq!(policy as usize, place, "{policy:?}");
    }
    assert!(read("fastest").unwrap_err().to_string().contains("earliest-finish"));
}
