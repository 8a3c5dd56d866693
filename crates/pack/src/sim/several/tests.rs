//! Seeds that must pass, and planted faults that must be found.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::world::World;
use crate::bugs::Bug;
use crate::sim::{AHEAD_MS, NOW_MS, RUNNING, is_found, is_found_from};

/// Steps of one run.
const STEPS: u64 = 3000;
/// Seeds of every run of the tests; `LARDER_PACK_SEEDS` has more run by hand.
const SEEDS: u64 = 6;
/// Seeds within which each planted fault must be found.
const SEEDS_OF_BUGS: u64 = 60;

/// Directories lost, changes lost with them, answers heard before the bucket had what they tell, and reads of bundles
/// that waited at another worker.
fn run(seed: u64) -> [u64; 4] {
    RUNNING.set(true);
    NOW_MS.set(1_700_000_000_000);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let counts = runtime.unwrap().block_on(async {
        let mut world = World::new(seed).await;
        world.run(STEPS).await;
        [world.losses, world.lost, world.received, world.bundled]
    });
    RUNNING.set(false);
    AHEAD_MS.set(0);
    counts
}

#[test]
fn workers_of_one_bucket_never_go_back_and_end_up_the_same() {
    let more = std::env::var("LARDER_PACK_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let mut sums = [0; 4];
    for seed in 0..more.unwrap_or(SEEDS) {
        let ran = catch_unwind(AssertUnwindSafe(|| run(seed)));
        let counts = ran.unwrap_or_else(|_| panic!("seed {seed} failed"));
        sums = std::array::from_fn(|at| sums[at] + counts[at]);
    }
    assert!(
        sums.iter().all(|sum| *sum > SEEDS),
        "what is lost, heard or read shows nothing: {sums:?}"
    );
}

#[test]
fn giving_up_what_is_not_replaced_for_good_is_found() {
    is_found_from(Bug::GivenUpEarly, 6, SEEDS_OF_BUGS, run);
}

#[test]
fn a_bundle_that_is_not_awaited_is_found() {
    is_found(Bug::BundleNotAwaited, SEEDS_OF_BUGS, run);
}

#[test]
fn a_bundle_mistaken_for_its_blob_is_found() {
    is_found(Bug::BundleNotAnnounced, SEEDS_OF_BUGS, run);
}

#[test]
fn a_delete_that_is_forgotten_early_is_found() {
    is_found(Bug::TombstoneForgottenEarly, SEEDS_OF_BUGS, run);
}

#[test]
fn what_is_heard_and_not_kept_is_found() {
    is_found(Bug::ReceivedNotStored, SEEDS_OF_BUGS, run);
}

#[test]
fn a_clock_that_does_not_follow_is_found() {
    is_found(Bug::ClockNotFollowed, SEEDS_OF_BUGS, run);
}
