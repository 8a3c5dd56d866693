//! The shape of what the scheduler gains, with one seed: not how much it is.

use larder_protocol::scheduler::{Policy, ReadWrite};

use super::cases::{SLOW, herd, usual};
use super::disk::Kind;
use super::layout::Keys;
use super::world::{Order, Outcome, Setup, run};

/// Those that go by what was heard.
const REPORTING_POLICIES: [Policy; 4] =
    [Policy::C3, Policy::Prequal, Policy::EarliestFinish, Policy::Parallel];

fn quick(setup: Setup) -> Outcome {
    run(&Setup { requests: 20_000, seed: 7, ..setup })
}

#[test]
fn one_seed_makes_one_run() {
    let of = |seed| {
        let setup = usual(Kind::Ssd, Policy::EarliestFinish, 64);
        run(&Setup { requests: 5000, seed, ..setup })
    };
    assert_eq!(format!("{:?}", of(1)), format!("{:?}", of(1)));
    assert_ne!(format!("{:?}", of(1)), format!("{:?}", of(2)));
}

#[test]
fn policies_that_hear_beat_primary_first() {
    let of = |policy| quick(usual(Kind::Hdd, policy, 64));
    let first = of(Policy::PrimaryFirst);
    for policy in [Policy::EarliestFinish, Policy::Parallel] {
        let other = of(policy);
        assert!(other.per_s > 1.2 * first.per_s, "{policy:?}: {other:?}, {first:?}");
        assert!(other.p999_us < first.p999_us / 2.0, "{policy:?}: {other:?}, {first:?}");
    }
}

#[test]
fn no_policy_is_worse_than_random_with_many_askers_over_few_disks() {
    for kind in [Kind::Hdd, Kind::Ssd] {
        let of = |policy| quick(herd(kind, policy, 256));
        let random = of(Policy::Random);
        for policy in REPORTING_POLICIES {
            let other = of(policy);
            assert!(other.per_s > 0.98 * random.per_s, "{policy:?}: {other:?}, {random:?}");
            assert!(other.p99_us < 1.02 * random.p99_us, "{policy:?}: {other:?}, {random:?}");
        }
    }
}

#[test]
fn earliest_finish_leaves_a_slow_disk_alone() {
    let of = |policy| quick(Setup { trouble: SLOW, ..usual(Kind::Hdd, policy, 64) });
    let (random, earliest) = (of(Policy::Random), of(Policy::EarliestFinish));
    assert!(earliest.per_s > 2.0 * random.per_s, "{earliest:?}, {random:?}");
    assert!(earliest.p99_us < random.p99_us / 4.0, "{earliest:?}, {random:?}");
}

#[test]
fn one_in_flight_is_as_fast_with_windows_as_without() {
    let of = |window_us| {
        quick(Setup { window_us, ..usual(Kind::Ssd, Policy::EarliestFinish, 1) }).p50_us
    };
    assert_eq!(of(500), of(0));
}

#[test]
fn dependencies_cost_little_while_keys_differ() {
    let of = |order| {
        let usual = usual(Kind::Ssd, Policy::Parallel, 256);
        quick(Setup { order, reads_percent: 70, ..usual }).per_s
    };
    let none = of(Order::None);
    for read_write in [ReadWrite::Waits, ReadWrite::Passes] {
        assert!(of(Order::Of(read_write)) > 0.95 * none, "{read_write:?}");
    }
}

#[test]
fn equal_requests_are_merged_in_windows() {
    let of = |window_us| {
        let usual = usual(Kind::Ssd, Policy::Parallel, 256);
        quick(Setup { equal_percent: 20, window_us, keys: Keys::Uniform, ..usual })
    };
    assert_eq!(of(0).merged_percent, 0.0);
    assert!(of(500).merged_percent > 5.0, "{:?}", of(500));
}
