//! The runs of the simulation.

use std::thread;

use larder_protocol::limits::BALANCE_SPREAD_PERCENT;

use super::cluster::{Cluster, Setup};
use super::measure::{Week, least_mib};
use super::moves::{Planner, rebalance};
use crate::args::RebalanceArgs;

const GB_MIB: f64 = 1e9 / (1024.0 * 1024.0);
/// MiB that the shipped limits move in a week: two volumes at a time, each at the 64 MiB/s that `background_mib_per_s` is.
const PACED_MIB: u64 = 2 * 64 * 7 * 24 * 3600;
/// Weeks of a quick run, and its servers: these have room for all that is written until then.
const QUICK: (u32, u32) = (30, 30);

/// The simulated cases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) setup: Setup,
    /// The set-up's name.
    pub(super) name: &'static str,
    pub(super) planner: Planner,
    /// Volumes that move in a week at most.
    pub(super) volumes_max: u64,
}

impl Run {
    pub(super) fn moves_any(&self) -> bool {
        self.planner != Planner::None
    }

    pub(super) fn planner_name(&self) -> &'static str {
        match self.planner {
            Planner::None => "nothing moves",
            Planner::Use { .. } => "by use",
            Planner::Shares { .. } if self.volumes_max == u64::MAX => "by shares",
            Planner::Shares { .. } => "by shares, paced",
        }
    }
}

/// A run, and its weeks.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) run: Run,
    pub(super) weeks: Vec<Week>,
}

/// The paper's cluster: volumes of 100 GB on disks of 4 TB, and 1,200 that are written.
pub(super) fn papers(seed: u64) -> Setup {
    Setup {
        servers: 15,
        servers_max: 240,
        disks_per_server: 10,
        pvs: 40,
        volume_mib: (100.0 * GB_MIB) as u64,
        groups: 1200,
        weekly_mib: (7200.0 * GB_MIB) as u64,
        weeks: 400,
        seed,
    }
}

/// The same cluster with three times as many volumes: those of Larder are smaller still, 16 GiB at most.
pub(super) fn smaller(seed: u64) -> Setup {
    Setup { pvs: 116, volume_mib: 32 * 1024, groups: 2048, ..papers(seed) }
}

/// All runs.
pub(super) fn runs(args: &RebalanceArgs) -> Vec<Run> {
    let spread_percent = BALANCE_SPREAD_PERCENT;
    let shares = Planner::Shares { spread_percent };
    let setups = [("100 GB volumes", papers(args.seed)), ("32 GiB volumes", smaller(args.seed))];
    let mut runs = Vec::new();
    for (name, mut setup) in setups {
        if args.quick {
            (setup.weeks, setup.servers_max) = QUICK;
        }
        for planner in [Planner::None, Planner::Use { spread_percent }, shares] {
            runs.push(Run { setup: setup.clone(), name, planner, volumes_max: u64::MAX });
        }
    }
    // The plots are of the last set-up, and so is this.
    if let Some(Run { setup, name, .. }) = runs.last().cloned() {
        let volumes_max = PACED_MIB / setup.volume_mib;
        runs.push(Run { setup, name, planner: shares, volumes_max });
    }
    runs
}

pub(super) fn simulate(run: &Run, each: impl Fn()) -> Row {
    let mut cluster = Cluster::new(&run.setup, matches!(run.planner, Planner::Shares { .. }));
    let week = |_| {
        let joined = cluster.pass_week();
        let least = least_mib(&cluster);
        let moved = rebalance(&mut cluster, run.planner, run.volumes_max);
        each();
        Week::of(&cluster, joined, moved, least)
    };
    let weeks = (0..run.setup.weeks).map(week).collect();
    Row { run: run.clone(), weeks }
}

/// Runs all, side by side.
pub(super) fn run(args: &RebalanceArgs) -> Vec<Row> {
    let runs = runs(args);
    let weeks: u64 = runs.iter().map(|run| u64::from(run.setup.weeks)).sum();
    let bar = indicatif::ProgressBar::new(weeks);
    let rows = thread::scope(|scope| {
        let bar = &bar;
        let begin = |run| scope.spawn(move || simulate(run, || bar.inc(1)));
        let under_way: Vec<_> = runs.iter().map(begin).collect();
        let ended = under_way.into_iter().map(|run| run.join());
        ended.map(|row| row.expect("a simulation does not fail")).collect()
    });
    bar.finish_and_clear();
    rows
}
