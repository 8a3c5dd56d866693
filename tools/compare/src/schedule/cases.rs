//! The runs of the simulation.

use larder_protocol::limits::WINDOW_US;
use larder_protocol::scheduler::{Policy, ReadWrite};

use super::disk::{Kind, Trouble};
use super::layout::{Keys, Placement};
use super::world::{Askers, Order, Outcome, Setup, run as simulate};
use crate::args::ScheduleArgs;

/// Requests that count in a run.
const HDD_REQUESTS: u64 = 100_000;
const SSD_REQUESTS: u64 = 400_000;
/// A quick run has one of so many.
const QUICK_PART: u64 = 10;
/// Stalls come every 5 s: so long a run has two of them.
const STALLS_US: u64 = 11_000_000;

pub(super) const KINDS: [Kind; 2] = [Kind::Hdd, Kind::Ssd];
pub(super) const IN_FLIGHT: [usize; 8] = [16, 32, 64, 128, 256, 512, 1024, 2048];
/// Layouts that the paper's figures are taken of.
const LAYOUTS: u64 = 5;
/// Policies of which they are.
pub(super) const OURS: [Policy; 3] = [Policy::Parallel, Policy::EarliestFinish, Policy::C3];
pub(super) const SLOW: Trouble = Trouble::Slow(10);
pub(super) const STALLS: Trouble = Trouble::Stalls { for_us: 500_000, every_us: 5_000_000 };
pub(super) const ORDERS: [Order; 3] =
    [Order::None, Order::Of(ReadWrite::Waits), Order::Of(ReadWrite::Passes)];

/// A table or a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    /// All gets, by requests in flight.
    Gets,
    /// The paper's figures, on several layouts drawn by chance.
    Layouts,
    /// The same on a layout without accidents.
    Even,
    /// All gets by Zipf's law.
    Skewed,
    /// One disk is slow, or stands still now and then.
    Trouble,
    /// Many askers over few disks.
    Herd,
    /// Gets and puts, by what waits for what.
    Dependencies,
    /// Equal requests, with windows and without.
    Merging,
    /// The cost of windows, by the load from which they open.
    Windows,
}

/// A run and its results.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) section: Section,
    pub(super) setup: Setup,
    pub(super) outcome: Outcome,
}

/// The paper's set-up: everything else says what differs.
pub(super) fn usual(kind: Kind, policy: Policy, in_flight: usize) -> Setup {
    Setup {
        policy,
        kind,
        trouble: Trouble::None,
        shape: (5, 30, 512),
        placement: Placement::Hashed,
        askers: Askers { primaries: 5, proxies: 0 },
        in_flight,
        objects: 100_000,
        keys: Keys::Uniform,
        reads_percent: 100,
        equal_percent: 0,
        order: Order::Of(ReadWrite::Passes),
        window_us: 0,
        loaded_from: 1,
        requests: match kind {
            Kind::Hdd => HDD_REQUESTS,
            Kind::Ssd => SSD_REQUESTS,
        },
        least_us: 0,
        seed: 0,
    }
}

/// Many askers over few disks.
pub(super) fn herd(kind: Kind, policy: Policy, in_flight: usize) -> Setup {
    Setup {
        shape: (4, 12, 512),
        placement: Placement::Even,
        askers: Askers { primaries: 64, proxies: 16 },
        ..usual(kind, policy, in_flight)
    }
}

/// All runs.
fn setups() -> Vec<(Section, Setup)> {
    let mut all = Vec::new();
    for kind in KINDS {
        for policy in Policy::ALL {
            for in_flight in IN_FLIGHT {
                all.push((Section::Gets, usual(kind, policy, in_flight)));
            }
            for in_flight in [64, 256, 1024] {
                let usual = usual(kind, policy, in_flight);
                let even = Setup { placement: Placement::Even, ..usual.clone() };
                all.push((Section::Even, even));
                all.push((Section::Skewed, Setup { keys: Keys::Zipf, ..usual }));
            }
            for in_flight in [64, 256] {
                let usual = usual(kind, policy, in_flight);
                all.push((Section::Trouble, Setup { trouble: SLOW, ..usual.clone() }));
                // Of solid state disks with 256 in flight that would be nine million requests.
                if kind == Kind::Hdd || in_flight == 64 {
                    let stalls = Setup { trouble: STALLS, least_us: STALLS_US, ..usual };
                    all.push((Section::Trouble, stalls));
                }
            }
            for in_flight in [64, 256, 1024] {
                let herd = herd(kind, policy, in_flight);
                all.push((Section::Herd, Setup { trouble: SLOW, ..herd.clone() }));
                all.push((Section::Herd, herd));
            }
        }
        all.extend(layouts(kind));
        all.extend(mixed(kind));
        all.extend(merging(kind));
        all.extend(windows(kind));
    }
    all
}

fn layouts(kind: Kind) -> Vec<(Section, Setup)> {
    let mut all = Vec::new();
    for seed in 0..LAYOUTS {
        for policy in OURS.into_iter().chain([Policy::PrimaryFirst]) {
            for in_flight in [64, 256] {
                let usual = usual(kind, policy, in_flight);
                all.push((Section::Layouts, Setup { seed, ..usual }));
            }
        }
    }
    all
}

fn mixed(kind: Kind) -> Vec<(Section, Setup)> {
    let mut all = Vec::new();
    for keys in [Keys::Uniform, Keys::Zipf] {
        for reads_percent in [70, 80, 90, 100] {
            for order in ORDERS {
                let usual = usual(kind, Policy::Parallel, 256);
                let setup = Setup { keys, reads_percent, order, ..usual };
                all.push((Section::Dependencies, setup));
            }
        }
    }
    all
}

fn merging(kind: Kind) -> Vec<(Section, Setup)> {
    let mut all = Vec::new();
    for in_flight in [64, 256, 1024] {
        for equal_percent in [0, 5, 10, 20] {
            for window_us in [0, WINDOW_US] {
                let usual = usual(kind, Policy::Parallel, in_flight);
                all.push((Section::Merging, Setup { equal_percent, window_us, ..usual }));
            }
        }
    }
    all
}

fn windows(kind: Kind) -> Vec<(Section, Setup)> {
    let mut all = Vec::new();
    for in_flight in [1, 4, 16, 64, 256] {
        for (window_us, loaded_from) in [(0, 1), (WINDOW_US, 1), (WINDOW_US, 16), (WINDOW_US, 64)] {
            let usual = usual(kind, Policy::EarliestFinish, in_flight);
            all.push((Section::Windows, Setup { window_us, loaded_from, ..usual }));
        }
    }
    all
}

/// Runs all.
pub(super) fn run(args: &ScheduleArgs) -> Vec<Row> {
    let part = if args.quick { QUICK_PART } else { 1 };
    let of_run = |(section, setup): (Section, Setup)| {
        let requests = setup.requests / part;
        let setup = Setup { seed: args.seed + setup.seed, requests, ..setup };
        let outcome = simulate(&setup);
        Row { section, setup, outcome }
    };
    let bar = indicatif::ProgressBar::new(setups().len() as u64);
    let rows = bar.wrap_iter(setups().into_iter()).map(of_run).collect();
    bar.finish_and_clear();
    rows
}
