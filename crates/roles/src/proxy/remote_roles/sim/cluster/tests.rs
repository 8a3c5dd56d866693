//! Seeds that must pass, that each is the same when it is run again, and planted faults that must be found.

use std::fmt::Debug;

use super::super::tests::{number, print_summary};
use super::alone::run_alone;
use super::{Coverage, ManagerKind, Ran, run};
use crate::planted::Bug;

/// Seeds of every run of the tests; `LARDER_CLUSTER_SEEDS` has more run by hand, and `LARDER_CLUSTER_SEED` one.
const SEEDS: u64 = 3;
/// The same of managers alone.
const SEEDS_ALONE: u64 = 8;
/// Seeds within which each planted fault must be found.
const SEEDS_OF_BUGS: u64 = 100;

fn print_coverage(what: &str, ran: &Ran, coverage: &impl Debug) {
    print_summary(what, ran);
    println!("  {coverage:?}");
}

/// Runs seeds that must pass: those of the tests from the first on, as many as are asked for, or the one that is asked for.
pub(super) fn all_pass<M: Default + Debug>(
    first: u64,
    of_tests: u64,
    run: impl Fn(u64) -> (Ran, M),
    add: impl Fn(&mut M, &M),
) -> (u64, Ran, M) {
    let (first, count) = match number("LARDER_CLUSTER_SEED") {
        Some(seed) => (seed, 1),
        None => (first, number("LARDER_CLUSTER_SEEDS").unwrap_or(of_tests)),
    };
    let mut failed = Vec::new();
    let (mut all, mut met_all) = (Ran::default(), M::default());
    if std::env::var_os("LARDER_CLUSTER_LOG").is_some() {
        print_log();
    }
    for seed in first..first + count {
        let (ran, coverage) = run(seed);
        print_coverage(&format!("seed {seed}"), &ran, &coverage);
        if !ran.violations.is_empty() {
            println!("seed {seed} FAILS: {}", ran.violations.join("\n"));
            failed.push(format!("seed {seed}: {}", ran.violations.join("\n")));
        }
        all.add(&ran);
        add(&mut met_all, &coverage);
    }
    print_coverage(&format!("{count} seeds"), &all, &met_all);
    assert!(failed.is_empty(), "LARDER_CLUSTER_SEED=n repeats it\n{}", failed.join("\n\n"));
    (count, all, met_all)
}

fn whole_clusters_pass(by: ManagerKind, first: u64) -> Coverage {
    let (count, all, coverage) = all_pass(first, SEEDS, |seed| run(seed, by, None), Coverage::add);
    let counts =
        [coverage.restarts, coverage.views, coverage.early, coverage.log_groups, all.retries];
    let met_all = counts.iter().all(|coverage| *coverage > 0) && 2 * all.done > all.calls;
    let met_all = met_all && (all.buckets_caught_up > 0 || by == ManagerKind::Recovered);
    assert!(count < SEEDS || met_all, "runs that meet nothing show nothing");
    coverage
}

#[test]
fn whatever_fails_a_cluster_of_real_servers_keeps_what_it_answered_and_comes_to_rest() {
    whole_clusters_pass(ManagerKind::StandIn, 0);
}

#[test]
fn whatever_fails_a_cluster_with_real_managers_keeps_what_it_answered_and_comes_to_rest() {
    whole_clusters_pass(ManagerKind::Quorum, 0);
}

#[test]
fn managers_that_are_made_anew_lose_nothing_that_was_answered() {
    // One that loses them, as the drivers are now.
    let coverage = whole_clusters_pass(ManagerKind::Recovered, 2);
    assert!(coverage.managers.recoveries > 0, "managers that are never lost show nothing");
}

#[test]
fn whatever_fails_managers_keep_what_they_answered_and_come_to_rest() {
    let (count, _, coverage) =
        all_pass(0, SEEDS_ALONE, |seed| run_alone(seed, None), Coverage::add);
    let coverage = coverage.managers;
    let met_all = coverage.restarts.min(coverage.terms) > 2 * count && coverage.tokens > 50 * count;
    let met_all = met_all && coverage.snapshots > 0;
    assert!(count < SEEDS_ALONE || met_all, "runs that meet nothing show nothing");
}

fn is_the_same_twice(run: impl Fn() -> (Ran, Coverage)) {
    let ((one, _), (two, _)) = (run(), run());
    let differ = one.delivered.iter().zip(&two.delivered).position(|(one, two)| one != two);
    if let Some(at) = differ {
        panic!("they differ at {at}: {:?}, {:?}", one.delivered[at], two.delivered[at]);
    }
    assert_eq!(one.delivered.len(), two.delivered.len());
    assert_eq!((one.took, one.calls, one.done), (two.took, two.calls, two.done));
}

#[test]
fn the_same_seed_makes_the_same_run_with_threads_too() {
    is_the_same_twice(|| run(0, ManagerKind::StandIn, None));
}

#[test]
fn the_same_seed_makes_the_same_run_with_managers_too() {
    is_the_same_twice(|| run_alone(0, None));
    is_the_same_twice(|| run(0, ManagerKind::Quorum, None));
}

#[test]
fn the_same_seed_makes_the_same_run_with_managers_that_are_made_anew_too() {
    // In this one, as the drivers are now, a manager whose disk failed closes its connections by itself.
    is_the_same_twice(|| run(21, ManagerKind::Recovered, None));
}

/// Has what the servers log printed.
pub(in super::super) fn print_log() {
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
    finds(bug, first, says, |seed| run(seed, ManagerKind::StandIn, Some(bug)));
}

/// The same, by runs of managers alone.
fn is_found_alone(bug: Bug, first: u64) {
    finds(bug, first, "", |seed| run_alone(seed, Some(bug)));
}

fn finds(bug: Bug, first: u64, says: &str, run: impl Fn(u64) -> (Ran, Coverage)) {
    for seed in number("LARDER_CLUSTER_SEED").unwrap_or(first)..first + SEEDS_OF_BUGS {
        let mut violations = run(seed).0.violations;
        violations.retain(|violation| violation.contains(says));
        if !violations.is_empty() {
            return println!("{bug:?} is found by seed {seed}: {}", violations.join("\n"));
        }
    }
    panic!("{bug:?} is not found in {SEEDS_OF_BUGS} seeds");
}

#[test]
fn an_op_that_is_called_durable_before_it_is_written_is_found() {
    is_found(Bug::DurableBeforeWritten, 49);
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
    is_found(Bug::SkipsRows, 70);
}

#[test]
fn keys_of_a_bucket_that_is_gone_are_found() {
    is_found_by(Bug::ShowsDeletedBuckets, 52, "no order explains");
}

#[test]
fn a_group_whose_rows_are_read_needlessly_is_found() {
    is_found_by(Bug::ForgetsEarly, 57, "unread");
}

#[test]
fn a_group_that_is_never_applied_again_is_found() {
    is_found(Bug::LosesPushes, 1);
}

#[test]
fn a_log_of_managers_that_is_not_synced_is_found() {
    is_found_alone(Bug::UnsyncedQuorum, 0);
}

#[test]
fn a_start_of_a_manager_that_believes_the_page_cache_is_found() {
    is_found_alone(Bug::BelievesPageCache, 58);
}

#[test]
fn a_proposal_that_is_answered_before_it_is_agreed_on_is_found() {
    is_found_alone(Bug::AnswersUnagreed, 0);
}

#[test]
fn a_proposal_that_is_made_again_though_it_may_have_been_taken_is_found() {
    is_found_alone(Bug::RepeatsUnknown, 0);
}

#[test]
fn a_server_that_acts_by_a_map_that_it_has_not_kept_is_found() {
    let bug = Bug::ActsUnkept;
    finds(bug, 5, "", |seed| run(seed, ManagerKind::Recovered, Some(bug)));
}

#[test]
fn a_manager_that_confirms_itself_is_found() {
    let bug = Bug::ConfirmsItself;
    finds(bug, 26, "answer alone", |seed| run(seed, ManagerKind::Quorum, Some(bug)));
}
