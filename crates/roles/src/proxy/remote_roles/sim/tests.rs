//! Seeds that must pass, that each is the same when it is run again, and planted faults that must be found.

use std::cell::Cell;
use std::sync::Once;
use std::time::Duration;

use tokio::time::Instant;

use super::{FaultMode, Ran, Simulation, run, simulate};
use crate::limits::WRITE_TIMEOUT_MS;
use crate::proxy::remote_roles::planted::Bug;

/// Seeds of every run of the tests; `LARDER_PROXY_SEEDS` has more run by hand, and `LARDER_PROXY_SEED` one.
const SEEDS: u64 = 40;
/// Seeds within which each planted fault must be found.
const SEEDS_OF_BUGS: u64 = 300;

thread_local! {
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Notes panics of this thread from now on: those of tasks end no test by themselves.
pub(super) fn watch_panics() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICKED.set(true);
            before(info);
        }));
    });
    PANICKED.set(false);
}

pub(super) fn has_panicked() -> bool {
    PANICKED.replace(false)
}

pub(super) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

pub(super) fn print_summary(what: &str, ran: &Ran) {
    let Ran { took, calls, done, longest, delivered, .. } = ran;
    println!("{what}: {calls} calls, {done} answers, in {took:.1?}, the longest {longest:.1?}");
    let Ran {
        buckets_deleted,
        buckets_caught_up,
        retries,
        begun_anew,
        hedged,
        joined,
        located,
        located_used,
        mismatches,
        lost_sessions,
        ..
    } = ran;
    println!(
        "  {} pieces, {buckets_deleted} buckets deleted, {buckets_caught_up} caught up with, {retries} retries, {begun_anew} begun anew, {hedged} hedged, {joined} joined, {located} read where they lay and {located_used} of them of use, {mismatches} mismatches, {lost_sessions} sessions lost",
        delivered.len(),
    );
}

#[test]
fn whatever_fails_what_was_answered_is_so_and_nothing_is_left() {
    let (first, count) = match number("LARDER_PROXY_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("LARDER_PROXY_SEEDS").unwrap_or(SEEDS)),
    };
    let mut all = Ran::default();
    let mut failed = Vec::new();
    for seed in first..first + count {
        let ran = run(seed, None);
        print_summary(&format!("seed {seed}"), &ran);
        if !ran.violations.is_empty() {
            failed.push(format!("seed {seed}: {}", ran.violations.join("\n")));
        }
        all.add(&ran);
    }
    print_summary(&format!("{count} seeds"), &all);
    assert!(failed.is_empty(), "LARDER_PROXY_SEED=n repeats it\n{}", failed.join("\n\n"));
    let of_no_use = all.located - all.located_used;
    let coverage = [all.retries, all.begun_anew, all.hedged, all.joined, all.mismatches];
    let coverage = [&coverage[..], &[all.located_used, of_no_use, all.lost_sessions]].concat();
    let met_all = coverage.iter().all(|coverage| *coverage > 0) && 2 * all.done > all.calls;
    assert!(count < SEEDS || met_all, "runs that meet nothing show nothing");
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 0..4 {
        let (one, two) = (run(seed, None), run(seed, None));
        let differ = one.delivered.iter().zip(&two.delivered).position(|(one, two)| one != two);
        if let Some(at) = differ {
            panic!("seed {seed} differs at {at}: {:?}, {:?}", one.delivered[at], two.delivered[at]);
        }
        assert_eq!(one.delivered.len(), two.delivered.len());
        assert_eq!((one.took, one.calls, one.done), (two.took, two.calls, two.done));
    }
}

#[test]
fn a_put_that_no_data_server_answers_ends_in_its_time() {
    let (longest, violations) = simulate(0, async |simulation| {
        let Simulation { world, proxies, .. } = &simulation;
        proxies.make_bucket(|command| world.agreed.agree(command)).await;
        world.disks.iter().for_each(|disk| disk.become_(FaultMode::Stalled));
        let client = proxies.client(0);
        let mut longest = Duration::ZERO;
        // Some are small, and need no data server.
        for _ in 0..5 {
            let began = Instant::now();
            drop(client.put(0).await);
            longest = longest.max(began.elapsed());
        }
        (longest, world.findings.all())
    });
    assert!(longest > Duration::from_millis(WRITE_TIMEOUT_MS), "begun once: {longest:?}");
    assert!(violations.is_empty(), "{violations:?}");
}

/// Has a planted fault found: by this seed, as the drivers are now, or by one of those behind it.
fn is_found_from(bug: Bug, first: u64) {
    for seed in first..first + SEEDS_OF_BUGS {
        if let Some(first) = run(seed, Some(bug)).violations.first() {
            return println!("{bug:?} is found by seed {seed}: {first}");
        }
    }
    panic!("{bug:?} is not found in {SEEDS_OF_BUGS} seeds");
}

fn is_found(bug: Bug) {
    is_found_from(bug, 0);
}

#[test]
fn a_put_that_begins_anew_at_once_is_found() {
    is_found(Bug::BeginsAnewAtOnce);
}

#[test]
fn a_put_that_counts_failed_writes_is_found() {
    is_found(Bug::CountsFailedWrites);
}

#[test]
fn a_put_that_is_answered_before_metax_is_persisted_is_found() {
    is_found(Bug::AnswersUnpersisted);
}

#[test]
fn a_call_that_is_repeated_under_another_number_is_found() {
    is_found(Bug::RepeatsUnderAnother);
}

#[test]
fn bytes_that_nobody_verified_are_found() {
    is_found(Bug::ReadsUnverified);
}

#[test]
fn bytes_of_another_version_than_metax_names_are_found() {
    is_found(Bug::BelievesLocations);
}

#[test]
fn a_list_that_does_not_wait_for_all_servers_is_found() {
    is_found_from(Bug::MergesWithoutRows, 49);
}

#[test]
fn an_orphan_that_holds_its_place_for_ever_is_found() {
    is_found(Bug::KeepsOrphans);
}

#[test]
fn a_replica_that_owes_an_answer_for_ever_is_found() {
    is_found(Bug::OwesForEver);
}
