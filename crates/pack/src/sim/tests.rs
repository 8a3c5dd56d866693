//! Seeds that must pass, and planted faults that must be found.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::world::{Outcomes, World};
use super::{KEEPS_FEW, NOW_MS, RUNNING, is_found, is_found_from};
use crate::bugs::{Bug, plant};

/// Steps of one run.
const STEPS: u64 = 1500;
/// Seeds of every run of the tests; `LARDER_PACK_SEEDS` has more run by hand.
const SEEDS: u64 = 40;
/// The same with copies of directories, which take longer.
const SEEDS_OF_COPIES: u64 = 20;
/// Seeds within which each planted fault must be found.
const SEEDS_OF_BUGS: u64 = 400;

/// Runs one seed; gives how often the index was rebuilt from the backend.
fn run(seed: u64) -> u64 {
    RUNNING.set(true);
    NOW_MS.set(1_700_000_000_000);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let rebuilds = runtime.unwrap().block_on(async {
        let mut world = World::new(seed).await;
        world.run(STEPS).await;
        world.rebuilds
    });
    RUNNING.set(false);
    rebuilds
}

#[test]
fn whatever_fails_what_was_answered_is_there_and_nothing_comes_back() {
    let more = std::env::var("LARDER_PACK_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let mut rebuilds = 0;
    for seed in 0..more.unwrap_or(SEEDS) {
        let ran = catch_unwind(AssertUnwindSafe(|| run(seed)));
        rebuilds += ran.unwrap_or_else(|_| panic!("seed {seed} failed"));
    }
    assert!(rebuilds > SEEDS, "runs that lose nothing show nothing");
}

/// Else two threads would write the rows of bundles.
#[test]
fn a_bundle_is_forgotten_in_the_committers_turn_and_never_while_it_has_live_bytes() {
    RUNNING.set(true);
    NOW_MS.set(1_700_000_000_000);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async { World::new(1).await.forget_bundles() });
    RUNNING.set(false);
}

/// Otherwise an index that is made of the backup would pass over what the next process tells.
#[test]
fn a_backup_names_no_number_that_is_given_again() {
    RUNNING.set(true);
    NOW_MS.set(1_700_000_000_000);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let (named, known) =
        runtime.unwrap().block_on(async { World::new(1).await.numbers_after_a_full_disk().await });
    RUNNING.set(false);
    assert_eq!(named, known);
}

/// Runs one seed of a world in which directories are copied; gives what came of that.
fn run_with_copies(seed: u64) -> Outcomes {
    run_with_older_copies(seed, None)
}

/// The same, with a fault that shows only while somebody takes over from an older copy.
fn run_with_older_copies(seed: u64, bug: Option<Bug>) -> Outcomes {
    RUNNING.set(true);
    // In every second one what comes late does so after records that speak of it are gone.
    KEEPS_FEW.set(seed % 2 == 1);
    NOW_MS.set(1_700_000_000_000);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let outcomes = runtime.unwrap().block_on(async {
        let mut world = match bug {
            Some(bug) => World::with_older_copies(seed, bug).await,
            None => World::with_copies(seed).await,
        };
        world.run(STEPS).await;
        world.outcomes()
    });
    RUNNING.set(false);
    KEEPS_FEW.set(false);
    outcomes
}

#[test]
fn whichever_of_two_copies_goes_on_nothing_that_was_acknowledged_is_void() {
    let more = std::env::var("LARDER_PACK_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let mut all = Outcomes::default();
    for seed in 0..more.unwrap_or(SEEDS_OF_COPIES) {
        let ran = catch_unwind(AssertUnwindSafe(|| run_with_copies(seed)));
        let Outcomes { refused, took_over, restored_copies } =
            ran.unwrap_or_else(|_| panic!("seed {seed} failed"));
        all.refused += refused;
        all.took_over += took_over;
        all.restored_copies += restored_copies;
    }
    println!("{all:?}");
    let least = all.took_over.min(all.restored_copies);
    assert!(all.refused > 0 && least > SEEDS_OF_COPIES / 2, "{all:?}");
}

/// The index is lost twice, and between that a blob is removed that the log says to wait.
#[test]
fn seed_620_with_copies() {
    run_with_copies(620);
}

/// A directory is lost that is an older copy: another copy's blob came late, and it had no number yet.
#[test]
fn seed_996_with_copies() {
    run_with_copies(996);
}

/// A number comes late, after it and those behind it were removed.
#[test]
fn seed_325_with_copies() {
    run_with_copies(325);
}

/// Requests for the number of a process and for its record, which was closed, are late until both were removed.
#[test]
fn seed_1967_with_copies() {
    run_with_copies(1967);
}

/// A process without a number finds out by itself that its directory is an older copy.
#[test]
fn seed_191_with_copies() {
    run_with_copies(191);
}

/// Not only when the bucket is looked through in the end, for what is left of it.
#[test]
fn what_the_heir_of_an_older_copy_leaves_out_is_found_at_once() {
    let run = || run_with_older_copies(191, Some(Bug::HalfInherited));
    let found =
        catch_unwind(AssertUnwindSafe(run)).expect_err("a blob is lost, and nobody sees it");
    plant(None);
    RUNNING.set(false);
    KEEPS_FEW.set(false);
    let why = found.downcast_ref::<String>().map_or("", String::as_str);
    assert!(why.contains("what was acknowledged is lost"), "{why}");
}

#[test]
fn a_blob_that_is_adopted_though_it_is_void_is_found() {
    is_found(Bug::AdoptedThoughVoid, SEEDS_OF_BUGS, run_with_copies);
}

#[test]
fn a_process_that_does_not_close_numbers_before_its_own_is_found() {
    is_found_from(Bug::NumbersNotClosed, 149, SEEDS_OF_BUGS, run_with_copies);
}

#[test]
fn a_last_process_that_is_forgotten_is_found() {
    is_found_from(Bug::LastBegunForgotten, 97, SEEDS_OF_BUGS, run_with_copies);
}

#[test]
fn a_process_that_does_not_look_after_an_upload_is_found_beside_a_copy() {
    is_found(Bug::OwnerReadOnce, SEEDS_OF_BUGS, run_with_copies);
}

#[test]
fn a_swap_without_compare_is_found() {
    is_found(Bug::SwapWithoutCompare, SEEDS_OF_BUGS, run);
}

#[test]
fn a_removal_before_the_upload_is_found() {
    is_found(Bug::RemoveBeforeUpload, SEEDS_OF_BUGS, run);
}

#[test]
fn deletes_that_are_not_carried_are_found() {
    is_found(Bug::DeletesNotRelocated, SEEDS_OF_BUGS, run);
}

#[test]
fn a_backup_ahead_of_its_blobs_is_found() {
    is_found(Bug::BackupAheadOfBlobs, SEEDS_OF_BUGS, run);
}

#[test]
fn a_takeover_fence_that_is_not_kept_is_found() {
    is_found(Bug::TakeoverFenceNotKept, SEEDS_OF_BUGS, run);
}

#[test]
fn an_owner_that_is_asked_for_only_before_an_upload_is_found() {
    is_found(Bug::OwnerReadOnce, SEEDS_OF_BUGS, run);
}

#[test]
fn a_part_that_outlives_its_object_is_found() {
    is_found_from(Bug::PartOutlives, 307, SEEDS_OF_BUGS, run);
}

#[test]
fn a_rebuild_that_is_forgotten_is_found() {
    is_found(Bug::RebuiltForgotten, SEEDS_OF_BUGS, run);
}

#[test]
fn backups_that_are_not_counted_are_found() {
    is_found_from(Bug::BackupsNotCounted, 290, SEEDS_OF_BUGS, run);
}

#[test]
fn a_bundle_after_its_blob_is_found() {
    is_found(Bug::BundleAfterBlob, SEEDS_OF_BUGS, run);
}

#[test]
fn a_bundle_that_is_not_counted_is_found() {
    is_found(Bug::BundleNotCounted, SEEDS_OF_BUGS, run);
}
