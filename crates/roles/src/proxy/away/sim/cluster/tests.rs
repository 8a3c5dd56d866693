//! Seeds that must pass, that each is the same when it is run again, and planted faults that must be found.

use super::super::tests::{number, tell};
use super::{Met, Ran, run};
use crate::meta::planted::Bug;

/// Seeds of every run of the tests; `LARDER_CLUSTER_SEEDS` has more run by hand, and `LARDER_CLUSTER_SEED` one.
const SEEDS: u64 = 10;
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
    for seed in first..first + count {
        let (ran, met) = run(seed, None);
        tell_met(&format!("seed {seed}"), &ran, &met);
        if !ran.violations.is_empty() {
            failed.push(format!("seed {seed}: {}", ran.violations.join("\n")));
        }
        all.add(&ran);
        met_all.restarts += met.restarts;
        met_all.views += met.views;
        met_all.snapshots += met.snapshots;
        met_all.rebuilt += met.rebuilt;
        met_all.log_groups += met.log_groups;
        met_all.differing += met.differing;
    }
    tell_met(&format!("{count} seeds"), &all, &met_all);
    assert!(failed.is_empty(), "LARDER_CLUSTER_SEED=n repeats it\n{}", failed.join("\n\n"));
    let met = [met_all.restarts, met_all.views, met_all.snapshots, all.retries];
    let met_all = met.iter().all(|met| *met > 0) && 2 * all.done > all.calls;
    assert!(count < SEEDS || met_all, "runs that meet nothing show nothing");
}

#[test]
fn the_same_seed_makes_the_same_run_with_threads_too() {
    for seed in 0..3 {
        let ((one, _), (two, _)) = (run(seed, None), run(seed, None));
        let differ = one.delivered.iter().zip(&two.delivered).position(|(one, two)| one != two);
        if let Some(at) = differ {
            panic!("seed {seed} differs at {at}: {:?}, {:?}", one.delivered[at], two.delivered[at]);
        }
        assert_eq!(one.delivered.len(), two.delivered.len());
        assert_eq!((one.took, one.calls, one.done), (two.took, two.calls, two.done));
    }
}

/// Has a planted fault found.
fn is_found(bug: Bug) {
    for seed in 0..SEEDS_OF_BUGS {
        if let Some(first) = run(seed, Some(bug)).0.violations.first() {
            return println!("{bug:?} is found by seed {seed}: {first}");
        }
    }
    panic!("{bug:?} is not found in {SEEDS_OF_BUGS} seeds");
}

#[test]
fn an_op_that_is_called_durable_before_it_is_written_is_found() {
    is_found(Bug::DurableBeforeWritten);
}

#[test]
fn a_wait_for_metax_that_nobody_ends_is_found() {
    is_found(Bug::ForgetsAwaited);
}

#[test]
fn an_order_of_the_manager_that_is_ignored_is_found() {
    is_found(Bug::IgnoresViews);
}

#[test]
fn a_lease_that_never_ends_is_found() {
    is_found(Bug::LeasesForEver);
}

#[test]
fn a_snapshot_that_is_not_gone_on_with_is_found() {
    is_found(Bug::ForgetsPieces);
}

#[test]
fn a_group_that_is_never_applied_again_is_found() {
    is_found(Bug::LosesPushes);
}
