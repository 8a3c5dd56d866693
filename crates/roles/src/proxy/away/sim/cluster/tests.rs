//! Seeds that must pass, that each is the same when it is run again, and planted faults that must be found.

use super::super::tests::{number, tell};
use super::{Met, Ran, run};
use crate::meta::planted::Bug;

/// Seeds of every run of the tests; `LARDER_CLUSTER_SEEDS` has more run by hand, and `LARDER_CLUSTER_SEED` one.
const SEEDS: u64 = 3;
/// Seeds within which each planted fault must be found.
const SEEDS_OF_BUGS: u64 = 100;

fn tell_met(what: &str, ran: &Ran, met: &Met) {
    tell(what, ran);
    println!("  {met:?}");
}

#[test]
fn whatever_fails_a_cluster_of_real_servers_keeps_what_it_answered_and_comes_to_rest() {
    let (first, count) = match number("LARDER_CLUSTER_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("LARDER_CLUSTER_SEEDS").unwrap_or(SEEDS)),
    };
    let mut failed = Vec::new();
    let (mut all, mut met_all) = (Ran::default(), Met::default());
    if std::env::var_os("LARDER_CLUSTER_LOG").is_some() {
        print_log();
    }
    for seed in first..first + count {
        let (ran, met) = run(seed, None);
        tell_met(&format!("seed {seed}"), &ran, &met);
        if !ran.violations.is_empty() {
            println!("seed {seed} FAILS: {}", ran.violations.join("\n"));
            failed.push(format!("seed {seed}: {}", ran.violations.join("\n")));
        }
        all.add(&ran);
        met_all.restarts += met.restarts;
        met_all.views += met.views;
        met_all.snapshots += met.snapshots;
        met_all.early += met.early;
        met_all.rebuilt += met.rebuilt;
        met_all.log_groups += met.log_groups;
        met_all.differing += met.differing;
    }
    tell_met(&format!("{count} seeds"), &all, &met_all);
    assert!(failed.is_empty(), "LARDER_CLUSTER_SEED=n repeats it\n{}", failed.join("\n\n"));
    let met = [met_all.restarts, met_all.views, met_all.early, met_all.log_groups, all.retries];
    let met_all = met.iter().all(|met| *met > 0) && 2 * all.done > all.calls;
    assert!(count < SEEDS || met_all, "runs that meet nothing show nothing");
}

#[test]
fn the_same_seed_makes_the_same_run_with_threads_too() {
    for seed in 0..1 {
        let ((one, _), (two, _)) = (run(seed, None), run(seed, None));
        let differ = one.delivered.iter().zip(&two.delivered).position(|(one, two)| one != two);
        if let Some(at) = differ {
            panic!("seed {seed} differs at {at}: {:?}, {:?}", one.delivered[at], two.delivered[at]);
        }
        assert_eq!(one.delivered.len(), two.delivered.len());
        assert_eq!((one.took, one.calls, one.done), (two.took, two.calls, two.done));
    }
}

/// Has what the servers log printed.
fn print_log() {
    let levels = tracing_subscriber::filter::LevelFilter::DEBUG;
    let format = tracing_subscriber::fmt().with_max_level(levels).without_time();
    format.with_ansi(false).with_thread_names(true).init();
}

/// Has a planted fault found: by this seed, as the drivers are now, or by one of those behind it.
fn is_found(bug: Bug, first: u64) {
    is_found_by(bug, first, "");
}

/// Has it found by a violation that says this.
fn is_found_by(bug: Bug, first: u64, says: &str) {
    if std::env::var_os("LARDER_CLUSTER_LOG").is_some() {
        print_log();
    }
    for seed in number("LARDER_CLUSTER_SEED").unwrap_or(first)..first + SEEDS_OF_BUGS {
        let mut violations = run(seed, Some(bug)).0.violations;
        violations.retain(|violation| violation.contains(says));
        if !violations.is_empty() {
            return println!("{bug:?} is found by seed {seed}: {}", violations.join("\n"));
        }
    }
    panic!("{bug:?} is not found in {SEEDS_OF_BUGS} seeds");
}

#[test]
fn an_op_that_is_called_durable_before_it_is_written_is_found() {
    is_found(Bug::DurableBeforeWritten, 1);
}

#[test]
fn a_wait_for_metax_that_ends_an_op_too_late_is_found() {
    is_found(Bug::AnswersOneLate, 0);
}

#[test]
fn an_order_of_the_manager_that_is_ignored_is_found() {
    is_found(Bug::IgnoresViews, 0);
}

#[test]
fn a_snapshot_that_goes_on_a_row_too_late_is_found() {
    is_found(Bug::SkipsRows, 8);
}

#[test]
fn keys_of_a_bucket_that_is_gone_are_found() {
    is_found_by(Bug::ShowsGoneBuckets, 24, "no order explains");
}

#[test]
fn a_group_whose_rows_are_read_for_nobody_is_found() {
    is_found_by(Bug::ForgetsEarly, 0, "unread");
}

#[test]
fn a_group_that_is_never_applied_again_is_found() {
    is_found(Bug::LosesPushes, 0);
}
