//! Seeds that must pass, that each is the same when it is run again, and planted faults that must be found.

use super::super::cluster::ManagerKind;
use super::super::tests::number;
use super::{Ran, change_many, compare_and_swap, race, read_large, run};
use crate::planted::Bug;

/// Seeds of every run of the tests; `LARDER_REGIONS_SEEDS` has more run by hand, and `LARDER_REGIONS_SEED` one.
const SEEDS: u64 = 3;
/// Seeds of reads of large objects: two and three regions are among them.
const SEEDS_OF_LARGE: u64 = 8;
/// Seeds of changes of objects of many bytes.
const SEEDS_OF_MANY: u64 = 2;
/// Seeds within which each planted fault must be found.
const SEEDS_OF_BUGS: u64 = 60;

fn print_summary(what: &str, ran: &Ran) {
    let Ran {
        took,
        rested,
        calls,
        done,
        lists,
        removed,
        shared,
        waited,
        locks,
        records,
        uploaded,
        coverage,
        restarts,
        ..
    } = ran;
    println!(
        "{what}: {calls} calls, {done} answers, {lists} lists, {removed} buckets deleted, {shared} shared, {waited} waited, locks {locks:?}, {records} records, {uploaded} uploads, in {took:.1?}, at rest after {rested:.1?}, {} pieces, {restarts} servers ended, {coverage:?}",
        ran.delivered.len()
    );
}

#[test]
fn the_same_seed_makes_the_same_run_of_regions_too() {
    let (one, two) = (run(0, ManagerKind::StandIn, None), run(0, ManagerKind::StandIn, None));
    let differ = one.delivered.iter().zip(&two.delivered).position(|(one, two)| one != two);
    if let Some(at) = differ {
        panic!("they differ at {at}: {:?}, {:?}", one.delivered[at], two.delivered[at]);
    }
    assert_eq!(one.delivered.len(), two.delivered.len());
    assert_eq!((one.took, one.calls, one.done), (two.took, two.calls, two.done));
}

/// Prints the log if `LARDER_REGIONS_LOG` is set.
fn log_if_asked() {
    if std::env::var_os("LARDER_REGIONS_LOG").is_some() {
        super::super::cluster::print_log();
    }
}

/// Runs seeds that must pass: those of the tests, or those that are asked for.
fn all_pass(first: u64, of_tests: u64, by: ManagerKind) -> (u64, Ran) {
    let (first, count) = match number("LARDER_REGIONS_SEED") {
        Some(seed) => (seed, 1),
        None => (first, number("LARDER_REGIONS_SEEDS").unwrap_or(of_tests)),
    };
    log_if_asked();
    let (mut failed, mut all) = (Vec::new(), Ran::default());
    for seed in first..first + count {
        let ran = run(seed, by, None);
        print_summary(&format!("seed {seed}"), &ran);
        if !ran.violations.is_empty() {
            println!("seed {seed} FAILS: {}", ran.violations.join("\n"));
            failed.push(format!("seed {seed}: {}", ran.violations.join("\n")));
        }
        all.add(&ran);
    }
    print_summary(&format!("{count} seeds"), &all);
    assert!(failed.is_empty(), "LARDER_REGIONS_SEED=n repeats it\n{}", failed.join("\n\n"));
    (count, all)
}

#[test]
fn whatever_fails_regions_come_to_the_same_and_keep_what_they_answered() {
    // From a seed on that meets everything, as the drivers are now.
    let (count, all) = all_pass(35, SEEDS, ManagerKind::StandIn);
    let Ran { lists, shared, waited, locks, records, uploaded, coverage, .. } = all;
    let counts = [lists, shared, waited, locks.0, locks.1, records, uploaded, coverage.tails];
    let counts = [&counts[..], &[coverage.taken, coverage.freed, coverage.restarts]].concat();
    let met_all = counts.iter().all(|count| *count > 0) && 2 * all.done > all.calls;
    assert!(count < SEEDS || met_all, "runs that meet nothing show nothing");
}

#[test]
fn whatever_fails_regions_with_real_managers_come_to_the_same() {
    all_pass(0, 1, ManagerKind::Quorum);
}

/// Has a planted fault found: by this seed, as the drivers are now, or by one of those behind it.
fn is_found(bug: Bug, first: u64) {
    for seed in number("LARDER_REGIONS_SEED").unwrap_or(first)..first + SEEDS_OF_BUGS {
        let ran = run(seed, ManagerKind::StandIn, Some(bug));
        if !ran.violations.is_empty() {
            return println!("{bug:?} is found by seed {seed}: {}", ran.violations.join("\n"));
        }
    }
    panic!("{bug:?} is not found in {SEEDS_OF_BUGS} seeds");
}

#[test]
fn a_change_that_counts_as_taken_before_it_is_put_is_found() {
    is_found(Bug::TakesBeforePut, 33);
}

#[test]
fn a_change_that_counts_as_taken_and_could_not_be_put_is_found() {
    is_found(Bug::CountsUntaken, 56);
}

#[test]
fn a_tombstone_that_goes_too_early_is_found() {
    is_found(Bug::FreesUnpassed, 22);
}

#[test]
fn a_list_of_all_regions_without_deletions_is_found() {
    is_found(Bug::ListsNoTombstones, 23);
}

#[test]
fn counting_a_request_as_possession_is_found() {
    is_found(Bug::TrustsRequests, 7);
}

#[test]
fn a_home_that_moves_too_early_is_found() {
    is_found(Bug::MovesHomeEarly, 54);
}

#[test]
fn an_append_that_goes_on_any_version_is_found() {
    is_found(Bug::TakesAnyBase, 68);
}

/// A put with data is decided when it is granted a place, and told to other regions when its data are durable.
#[test]
fn a_home_moves_behind_open_puts() {
    for seed in 0..SEEDS {
        assert_eq!(race(seed, None), [""; 0], "seed {seed}");
    }
}

#[test]
fn a_home_that_moves_while_puts_are_open_is_found() {
    let found =
        (9..9 + SEEDS_OF_BUGS).find(|seed| !race(*seed, Some(Bug::LeavesPutsOpen)).is_empty());
    println!("{:?} is found by seed {found:?}", Bug::LeavesPutsOpen);
    assert!(found.is_some(), "it is found by none of {SEEDS_OF_BUGS} seeds");
}

#[test]
fn changes_under_conditions_are_linearizable_wherever_the_home_is() {
    log_if_asked();
    let count = number("LARDER_REGIONS_SEEDS").unwrap_or(SEEDS);
    let first = number("LARDER_REGIONS_SEED").unwrap_or(0);
    let (mut done, mut unmet, mut unknown, mut judged, mut completed) = (0, 0, 0, 0, 0);
    for seed in first..first + count {
        let (counts, violations) = compare_and_swap(seed, None);
        println!("seed {seed}: {counts:?}");
        assert_eq!(violations, [""; 0], "seed {seed}");
        done += counts.done;
        unmet += counts.unmet;
        unknown += counts.unknown;
        judged += counts.judged;
        completed += counts.completed;
    }
    let met_all = done > count && unmet > count && unknown > 0 && completed > 0;
    let is_judged = judged >= 2 * count;
    let counts = format!("{done}, {unmet}, {unknown}, {judged}, {completed}");
    assert!(count < SEEDS || met_all && is_judged, "{counts}");
}

#[test]
fn a_history_that_no_order_explains_is_found() {
    let bug = Bug::MovesHomeEarly;
    let found = (4..4 + SEEDS_OF_BUGS).find(|seed| {
        let (_, violations) = compare_and_swap(*seed, Some(bug));
        violations.iter().any(|it| it.contains("no order explains"))
    });
    println!("{bug:?} is found by seed {found:?}");
    assert!(found.is_some(), "it is found by none of {SEEDS_OF_BUGS} seeds");
}

#[test]
fn counting_a_version_as_sent_before_its_outcome_is_found() {
    let bug = Bug::CountsPutAsSent;
    let found = (80..80 + SEEDS_OF_BUGS).find(|seed| {
        let (_, violations) = compare_and_swap(*seed, Some(bug));
        violations.iter().any(|it| it.contains("is in all regions, and"))
    });
    println!("{bug:?} is found by seed {found:?}");
    assert!(found.is_some(), "it is found by none of {SEEDS_OF_BUGS} seeds");
}

#[test]
fn a_large_object_is_read_where_it_is_until_it_has_come() {
    log_if_asked();
    let seeds = number("LARDER_REGIONS_SEED").map_or(0..SEEDS_OF_LARGE, |seed| seed..seed + 1);
    let is_one = seeds.end - seeds.start == 1;
    let had_third = seeds.map(|seed| {
        let (had_third, violations) = read_large(seed);
        assert_eq!(violations, [""; 0], "seed {seed}");
        had_third
    });
    let had_any = had_third.fold(false, |any, had_third| any | had_third);
    assert!(is_one || had_any, "one has three regions");
}

#[test]
fn objects_of_many_bytes_come_to_be_the_same_in_all_regions_whatever_breaks_off() {
    let all = 0..number("LARDER_REGIONS_SEEDS").unwrap_or(SEEDS_OF_MANY);
    for seed in number("LARDER_REGIONS_SEED").map_or(all, |seed| seed..seed + 1) {
        assert_eq!(change_many(seed), [""; 0], "seed {seed}");
    }
}
