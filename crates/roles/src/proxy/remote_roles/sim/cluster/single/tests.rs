//! Seeds that must pass, that each is the same when it is run again, and a planted fault that must be found.

use super::super::tests::all_pass;
use super::{Coverage, run};
use crate::planted::Bug;

/// Seeds of every run of the tests; `LARDER_CLUSTER_SEEDS` has more run by hand, and `LARDER_CLUSTER_SEED` one.
const SEEDS: u64 = 3;
/// The first of them: they meet all that is counted, as the drivers are now.
const FIRST: u64 = 81;
/// A short one.
const SHORT: u64 = 18;
/// Seeds within which a planted fault must be found.
const SEEDS_OF_BUGS: u64 = 40;

#[test]
fn whatever_fails_a_single_node_keeps_what_it_answered_and_comes_to_rest() {
    let (count, all, coverage) = all_pass(FIRST, SEEDS, |seed| run(seed, None), Coverage::add);
    let shapes = coverage.shapes;
    let counts =
        [coverage.inspected, coverage.verified, coverage.moved, coverage.rotten, coverage.windows];
    let of_shapes = [shapes.appended, shapes.uploaded, shapes.tagged, shapes.read];
    let met_all =
        counts.iter().chain(&of_shapes).all(|coverage| *coverage > 0) && 2 * all.done > all.calls;
    assert!(count < SEEDS || met_all, "runs that meet nothing show nothing");
}

#[test]
fn the_same_seed_makes_the_same_run_of_a_single_node() {
    let ((one, _), (two, _)) = (run(SHORT, None), run(SHORT, None));
    assert_eq!((one.took, one.calls, one.done), (two.took, two.calls, two.done));
}

#[test]
fn an_op_that_a_single_node_calls_durable_before_it_is_written_is_found() {
    let bug = Some(Bug::DurableBeforeWritten);
    let found = (0..SEEDS_OF_BUGS).find(|seed| !run(*seed, bug).0.violations.is_empty());
    println!("{bug:?} is found by seed {found:?}");
    assert!(found.is_some(), "it is not found in {SEEDS_OF_BUGS} seeds");
}

#[test]
fn blocks_that_a_single_node_gives_again_at_once_are_found() {
    let bug = Some(Bug::ReusesAtOnce);
    let found = (0..SEEDS_OF_BUGS).find(|seed| !run(*seed, bug).0.violations.is_empty());
    println!("{bug:?} is found by seed {found:?}");
    assert!(found.is_some(), "it is not found in {SEEDS_OF_BUGS} seeds");
}
