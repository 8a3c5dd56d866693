//! Whom each policy asks.

use std::collections::BTreeSet;

use super::*;
use crate::scheduler::counter_rng::CounterRng;

const BYTES: u64 = 4096;
const HOLDERS: [DiskId; 3] = [DiskId(1), DiskId(2), DiskId(3)];
/// Those that go by what was heard.
const REPORTING_POLICIES: [Policy; 4] =
    [Policy::C3, Policy::Prequal, Policy::EarliestFinish, Policy::Parallel];

/// So many small requests at a disk that takes so long for each and serves one at a time.
fn report(requests: u32, service_us: u32) -> Report {
    let mut report = Report { lanes: 1, ..Report::default() };
    report.waiting[0] = Load { requests, bytes: u64::from(requests) * BYTES };
    report.service_us[0] = service_us;
    report
}

fn balance_after(policy: Policy, reports: [Report; 3]) -> Balance {
    let mut balance = Balance::new(policy, 1);
    for (disk, report) in HOLDERS.into_iter().zip(reports) {
        balance.sent(0, disk, BYTES);
        let took_us = u64::from(report.service_us[0]) * u64::from(1 + report.waiting[0].requests);
        balance.answered(0, disk, BYTES, took_us, report);
    }
    balance
}

/// All that it may choose now.
fn choices(balance: &mut Balance, now_us: u64) -> BTreeSet<u32> {
    let choose = |draw| balance.choose(now_us, &HOLDERS, BYTES, draw).expect("there are holders").0;
    (0..12).map(choose).collect()
}

fn all() -> BTreeSet<u32> {
    HOLDERS.map(|disk| disk.0).into()
}

#[test]
fn policies_have_different_names() {
    assert_eq!(Policy::ALL.map(Policy::name).into_iter().collect::<BTreeSet<_>>().len(), 7);
}

#[test]
fn without_holders_none_is_chosen() {
    for policy in Policy::ALL {
        assert_eq!(Balance::new(policy, 1).choose(0, &[], BYTES, 7), None);
    }
}

#[test]
fn policies_that_hear_nothing_take_the_first_any_or_turns() {
    let chosen = |policy| choices(&mut Balance::new(policy, 1), 0);
    assert_eq!(chosen(Policy::PrimaryFirst), [1].into());
    assert_eq!(chosen(Policy::Random), all());
    let mut turns = Balance::new(Policy::RoundRobin, 1);
    let mut next = || turns.choose(0, &HOLDERS, BYTES, 0).unwrap();
    let round = [next(), next(), next()];
    assert_eq!(BTreeSet::from(round.map(|disk| disk.0)), all());
    assert_eq!([next(), next(), next()], round);
}

#[test]
fn without_reports_any_holder_may_be_read() {
    for policy in REPORTING_POLICIES {
        assert_eq!(choices(&mut Balance::new(policy, 1), 0), all(), "{policy:?}");
    }
}

#[test]
fn the_least_queue_is_asked_by_all_that_hear() {
    for policy in REPORTING_POLICIES {
        let mut balance =
            balance_after(policy, [report(9, 1000), report(2, 1000), report(8, 1000)]);
        assert_eq!(choices(&mut balance, 1), [2].into(), "{policy:?}");
    }
}

#[test]
fn equals_are_taken_at_random() {
    for policy in REPORTING_POLICIES {
        let mut balance =
            balance_after(policy, [report(2, 1000), report(9, 1000), report(2, 1000)]);
        assert_eq!(choices(&mut balance, 1), [1, 3].into(), "{policy:?}");
    }
}

#[test]
fn what_was_sent_since_counts() {
    for policy in REPORTING_POLICIES {
        let mut balance =
            balance_after(policy, [report(4, 1000), report(2, 1000), report(9, 1000)]);
        (0..8).for_each(|_| balance.sent(1, DiskId(2), BYTES));
        assert_eq!(choices(&mut balance, 1), [1].into(), "{policy:?}");
    }
}

#[test]
fn what_was_given_up_counts_no_more() {
    for policy in REPORTING_POLICIES {
        let mut balance =
            balance_after(policy, [report(4, 1000), report(2, 1000), report(9, 1000)]);
        (0..8).for_each(|_| balance.sent(1, DiskId(2), BYTES));
        (0..8).for_each(|_| balance.gave_up(DiskId(2), BYTES));
        assert_eq!(choices(&mut balance, 1), [2].into(), "{policy:?}");
    }
}

#[test]
fn a_slow_disk_with_a_short_queue_deceives_parallel_alone() {
    let reports = [report(2, 10_000), report(4, 1000), report(5, 1000)];
    assert_eq!(choices(&mut balance_after(Policy::Parallel, reports), 1), [1].into());
    for policy in [Policy::C3, Policy::Prequal, Policy::EarliestFinish] {
        let chosen = choices(&mut balance_after(policy, reports), 1);
        assert!(!chosen.contains(&1), "{policy:?}: {chosen:?}");
    }
}

#[test]
fn of_as_many_requests_those_with_fewer_bytes_are_the_shorter_queue() {
    let mut large = report(2, 1000);
    large.waiting[0].bytes = 1 << 20;
    let mut balance = balance_after(Policy::Parallel, [large, report(2, 1000), large]);
    assert_eq!(choices(&mut balance, 1), [2].into());
}

#[test]
fn large_requests_take_longer_to_finish() {
    let mut large = report(0, 1000);
    large.waiting[3] = Load { requests: 1, bytes: 8 << 20 };
    large.service_us[3] = 50_000;
    let reports = [large, report(9, 1000), large];
    assert_eq!(choices(&mut balance_after(Policy::EarliestFinish, reports), 1), [2].into());
}

#[test]
fn averages_that_differ_by_chance_make_no_difference() {
    let reports = [report(3, 1000), report(3, 1300), report(3, 1900)];
    assert_eq!(choices(&mut balance_after(Policy::EarliestFinish, reports), 1), all());
}

#[test]
fn a_disk_whose_device_served_nothing_yet_is_not_the_quickest() {
    let mut balance =
        balance_after(Policy::EarliestFinish, [report(0, 5_000), report(0, 5_000), report(0, 0)]);
    assert_eq!(choices(&mut balance, 0), all());
    for _ in 0..4 {
        balance.sent(0, HOLDERS[2], BYTES);
    }
    assert_eq!(choices(&mut balance, 0), [1, 2].into(), "what waits there counts");
}

#[test]
fn a_disk_that_reports_no_more_is_like_the_mean_of_the_others() {
    let mut balance =
        balance_after(Policy::EarliestFinish, [report(0, 5_000), report(0, 5_000), report(0, 500)]);
    assert_eq!(choices(&mut balance, 0), [3].into());
    balance.sent(0, HOLDERS[2], BYTES);
    balance.answered(0, HOLDERS[2], BYTES, 500, None);
    assert_eq!(choices(&mut balance, 0), all());
}

#[test]
fn what_one_has_there_itself_is_a_sample_of_what_all_have() {
    let mut balance =
        balance_after(Policy::EarliestFinish, [report(2, 1000), report(4, 1000), report(9, 1000)]);
    balance.askers = 10;
    assert_eq!(choices(&mut balance, 1), [1].into());
    balance.sent(1, DiskId(1), BYTES);
    assert_eq!(choices(&mut balance, 1), [2].into(), "others may have sent some there too");
}

#[test]
fn a_disk_that_serves_many_at_once_is_done_earlier() {
    let wide = Report { lanes: 8, ..report(8, 1000) };
    let mut balance =
        balance_after(Policy::EarliestFinish, [wide, report(4, 1000), report(4, 1000)]);
    assert_eq!(choices(&mut balance, 1), [1].into());
}

#[test]
fn a_disk_with_an_overdue_reply_gets_no_reads() {
    let mut balance = balance_after(Policy::EarliestFinish, [report(0, 1000); 3]);
    balance.sent(1, DiskId(1), BYTES);
    assert!(!choices(&mut balance, 100_000).contains(&1));
    assert!(!choices(&mut balance, 10 * STALE_US_MAX).contains(&1), "nor for being unheard");
    balance.answered(10 * STALE_US_MAX, DiskId(1), BYTES, 1000, report(0, 1000));
    assert!(choices(&mut balance, 10 * STALE_US_MAX).contains(&1));
}

#[test]
fn the_report_of_a_long_queue_fades() {
    for policy in [Policy::EarliestFinish, Policy::Parallel] {
        let mut balance =
            balance_after(policy, [report(50, 1000), report(4, 1000), report(5, 1000)]);
        assert_eq!(choices(&mut balance, 1), [2].into(), "{policy:?}");
        // It would have served these by now several times over; the others reported again what they have.
        for disk in [DiskId(2), DiskId(3)] {
            balance.record_report(500_000, disk, report(20, 1000));
        }
        assert!(choices(&mut balance, 500_000).contains(&1), "{policy:?}");
    }
}

/// However bad the news of a disk was, it is asked again, even if the others always have good news.
#[test]
fn no_disk_starves_on_account_of_an_old_report() {
    for policy in REPORTING_POLICIES {
        let mut balance =
            balance_after(policy, [report(10_000, 100_000), report(0, 100), report(0, 100)]);
        let mut rng = CounterRng(7, 0);
        let (mut now_us, mut asked) = (0, None);
        while asked.is_none() && now_us < 2 * STALE_US_MAX {
            now_us += 100_000;
            let disk = balance.choose(now_us, &HOLDERS, BYTES, rng.next()).unwrap();
            balance.sent(now_us, disk, BYTES);
            if disk == DiskId(1) {
                asked = Some(now_us);
            } else {
                balance.answered(now_us, disk, BYTES, 100, report(0, 100));
            }
        }
        let asked_us = asked.unwrap_or_else(|| panic!("{policy:?} never asks it again"));
        assert!(asked_us >= STALE_US_MAX / 2, "{policy:?} asks a slow one after {asked_us} µs");
        // It has recovered, and says so: it is one of the best from then on.
        balance.answered(now_us, DiskId(1), BYTES, 100, report(0, 100));
        for _ in 0..300 {
            balance.sent(now_us, DiskId(1), BYTES);
            balance.answered(now_us, DiskId(1), BYTES, 100, report(0, 100));
        }
        assert!(choices(&mut balance, now_us).contains(&1), "{policy:?}");
    }
}

#[test]
fn a_disk_with_bad_news_is_no_better_because_the_others_were_not_heard_for_long() {
    for policy in REPORTING_POLICIES {
        let mut balance =
            balance_after(policy, [report(100, 100_000), report(0, 100), report(1, 100)]);
        assert_eq!(choices(&mut balance, 2 * STALE_US_MIN), [2, 3].into(), "{policy:?}");
    }
}

#[test]
fn c3_counts_its_own_requests_once_for_each_asker() {
    let reports = [report(4, 1000), report(1, 1000), report(9, 1000)];
    let asked_after_one = |askers| {
        let mut balance = balance_after(Policy::C3, reports);
        balance.askers = askers;
        balance.sent(1, DiskId(2), BYTES);
        choices(&mut balance, 1)
    };
    assert_eq!(asked_after_one(1), [2].into());
    assert_eq!(asked_after_one(8), [1].into());
}

#[test]
fn prequal_asks_the_least_queue_when_all_are_long() {
    let mut balance =
        balance_after(Policy::Prequal, [report(30, 10), report(20, 5000), report(25, 10)]);
    for _ in 0..16 {
        balance.record_report(1, DiskId(99), report(1, 1000));
    }
    assert_eq!(choices(&mut balance, 1), [2].into());
}

#[test]
fn another_policy_starts_from_earlier_reports() {
    let mut balance =
        balance_after(Policy::Random, [report(9, 1000), report(2, 1000), report(8, 1000)]);
    assert_eq!((choices(&mut balance, 1), balance.policy()), (all(), Policy::Random));
    balance.set_policy(Policy::Parallel);
    assert_eq!(choices(&mut balance, 1), [2].into());
}

#[test]
fn what_is_remembered_is_bounded_and_what_owes_is_kept() {
    let mut balance = Balance::new(Policy::Parallel, 1);
    balance.sent(0, DiskId(0), BYTES);
    for number in 1..2 * HOLDERS_TRACKED_MAX as u32 {
        balance.record_report(u64::from(number), DiskId(number), report(1, 1000));
        assert!(balance.disks() <= HOLDERS_TRACKED_MAX);
    }
    assert!(balance.known[&DiskId(0)].outstanding() == 1);
    for number in 0..2 * HOLDERS_TRACKED_MAX as u32 {
        balance.sent(0, DiskId(1_000_000 + number), BYTES);
        assert!(balance.disks() <= HOLDERS_TRACKED_MAX);
    }
}

/// Extreme reports, as a hostile or broken data server may send them, break nothing.
#[test]
fn any_report_leaves_a_choice() {
    let load = Load { requests: u32::MAX, bytes: u64::MAX };
    let worst = Report { waiting: [load; 4], service_us: [u32::MAX; 4], lanes: 0 };
    for policy in Policy::ALL {
        let mut balance = Balance::new(policy, u32::MAX);
        let mut rng = CounterRng(3, 0);
        for round in 0..2000_u64 {
            let disk = HOLDERS[rng.below(3) as usize];
            let report = if rng.below(2) == 0 { worst } else { Report::default() };
            match rng.below(5) {
                0 => balance.sent(round * 1000, disk, rng.next()),
                1 => balance.answered(round * 1000, disk, rng.next(), rng.next(), report),
                2 => balance.answered(round * 1000, disk, rng.next(), rng.next(), None),
                3 => balance.gave_up(disk, rng.next()),
                _ => balance.record_report(rng.next(), disk, report),
            }
            let among = (&HOLDERS[..], rng.next() as u16);
            let chosen = balance.choose_near(round * 1000, among, rng.next(), rng.next());
            assert!(chosen.is_some_and(|disk| HOLDERS.contains(&disk)));
        }
    }
}
