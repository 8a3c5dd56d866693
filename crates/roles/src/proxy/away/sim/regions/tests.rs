//! Seeds that must pass, that each is the same when it is run again, and planted faults that must be found.

use super::super::tests::number;
use super::{Ran, run};
use crate::planted::Bug;

/// Seeds of every run of the tests; `LARDER_REGIONS_SEEDS` has more run by hand, and `LARDER_REGIONS_SEED` one.
const SEEDS: u64 = 3;
/// Seeds within which each planted fault must be found.
const SEEDS_OF_BUGS: u64 = 60;

fn tell(what: &str, ran: &Ran) {
    let Ran { took, rested, calls, done, lists, removed, shared, locks, met, restarts, .. } = ran;
    println!(
        "{what}: {calls} calls, {done} answers, {lists} lists, {removed} buckets deleted, {shared} shared, locks {locks:?}, in {took:.1?}, at rest after {rested:.1?}, {} pieces, {restarts} servers ended, {met:?}",
        ran.delivered.len()
    );
}

#[test]
fn the_same_seed_makes_the_same_run_of_regions_too() {
    let (one, two) = (run(0, None), run(0, None));
    let differ = one.delivered.iter().zip(&two.delivered).position(|(one, two)| one != two);
    if let Some(at) = differ {
        panic!("they differ at {at}: {:?}, {:?}", one.delivered[at], two.delivered[at]);
    }
    assert_eq!(one.delivered.len(), two.delivered.len());
    assert_eq!((one.took, one.calls, one.done), (two.took, two.calls, two.done));
}

#[test]
fn whatever_fails_regions_come_to_the_same_and_keep_what_they_answered() {
    let (first, count) = match number("LARDER_REGIONS_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("LARDER_REGIONS_SEEDS").unwrap_or(SEEDS)),
    };
    if std::env::var_os("LARDER_REGIONS_LOG").is_some() {
        super::super::cluster::print_log();
    }
    let mut failed = Vec::new();
    for seed in first..first + count {
        let ran = run(seed, None);
        tell(&format!("seed {seed}"), &ran);
        if !ran.violations.is_empty() {
            println!("seed {seed} FAILS: {}", ran.violations.join("\n"));
            failed.push(format!("seed {seed}: {}", ran.violations.join("\n")));
        }
    }
    assert!(failed.is_empty(), "LARDER_REGIONS_SEED=n repeats it\n{}", failed.join("\n\n"));
}

/// Has a planted fault found: by this seed, as the drivers are now, or by one of those behind it.
fn is_found(bug: Bug, first: u64) {
    for seed in number("LARDER_REGIONS_SEED").unwrap_or(first)..first + SEEDS_OF_BUGS {
        let ran = run(seed, Some(bug));
        if !ran.violations.is_empty() {
            return println!("{bug:?} is found by seed {seed}: {}", ran.violations.join("\n"));
        }
    }
    panic!("{bug:?} is not found in {SEEDS_OF_BUGS} seeds");
}

#[test]
fn a_change_that_counts_as_taken_before_it_is_put_is_found() {
    is_found(Bug::TakesBeforePut, 11);
}

#[test]
fn a_change_that_counts_as_taken_and_could_not_be_put_is_found() {
    is_found(Bug::CountsUntaken, 11);
}

#[test]
fn an_object_that_counts_as_gone_as_it_cannot_be_read_is_found() {
    is_found(Bug::TakesWithheldAsGone, 14);
}

#[test]
fn a_tombstone_that_goes_too_early_is_found() {
    is_found(Bug::FreesUnpassed, 4);
}

#[test]
fn a_list_of_all_regions_without_deletions_is_found() {
    is_found(Bug::ListsNoTombstones, 3);
}
