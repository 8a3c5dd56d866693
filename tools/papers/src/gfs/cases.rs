//! The runs: how many servers are lost, and how much copies may take.

use std::collections::BTreeSet;
use std::thread;

use larder_types::ServerId;

use crate::Options;
use crate::world::World;
use crate::world::hardware::Hardware;
use crate::world::setup::Setup;
use crate::world::truth::Truth;

const MIB: u64 = 1024 * 1024;
/// MiB/s that background work of a meta server may take: the default of `background_mib_per_s`.
const SHIPPED: u64 = 64 * MIB;
/// Bytes a second for all copies of the paper's cluster: 91 at a time, each at 6.25 MB/s at most.
const PAPERS_BYTES_PER_S: u64 = 91 * 6_250_000;
/// More than any link or disk here carries.
const UNBOUNDED: u64 = 1 << 40;

/// The pace of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// Each meta server has the budget that is the default.
    Shipped,
    /// All meta servers together have what the paper let copies take.
    Papers,
    /// No budget.
    Unbounded,
}

impl Pace {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shipped => "the budget that ships",
            Self::Papers => "the paper's budget",
            Self::Unbounded => "no budget",
        }
    }
}

/// A simulated case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) setup: Setup,
    pub(super) pace: Pace,
    /// Servers that are lost at once.
    pub(super) lost: usize,
    /// An operator removes them at once; else the managers wait until they count as lost.
    pub(super) removed: bool,
}

impl Case {
    pub(super) fn name(&self) -> String {
        let servers = if self.lost == 1 { "one server" } else { "two servers" };
        let removed = if self.removed { ", removed at once" } else { "" };
        format!("{servers}{removed}, {}", self.pace.name())
    }
}

/// A case, and what came of it.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) truth: Truth,
}

/// The paper's cluster B with so many bytes on a server: 227 servers of 793 GB.
fn papers(bytes: u64, seed: u64) -> Setup {
    let (servers, chunks, chunk_mib) = (227, 436, 8);
    let volumes = u64::from(servers) * bytes / 3 / (u64::from(chunks * chunk_mib) * MIB);
    Setup {
        servers,
        racks: 1,
        disks: 1,
        groups: 256,
        pvs: 184,
        volume_mib: 4096,
        volumes: volumes as u32,
        chunks,
        chunk_mib,
        background: SHIPPED,
        hardware: Hardware::GFS,
        seed,
    }
}

/// A cluster that a test simulates in a second.
pub(super) fn small(seed: u64) -> Setup {
    Setup {
        servers: 24,
        groups: 32,
        pvs: 60,
        volume_mib: 64,
        volumes: 320,
        chunks: 6,
        ..papers(600_000_000_000, seed)
    }
}

/// All cases.
pub(super) fn all(options: &Options) -> Vec<Case> {
    let gb = |gb: u64| papers(gb * 1_000_000_000, options.seed);
    let (one, two) = match options.quick {
        true => (small(options.seed), small(options.seed)),
        false => (gb(600), gb(660)),
    };
    let paces = [Pace::Shipped, Pace::Papers, Pace::Unbounded];
    let mut cases: Vec<Case> = Vec::new();
    for (setup, lost) in [(one, 1), (two, 2)] {
        cases.extend(paces.map(|pace| case(&setup, pace, lost, false)));
        cases.push(case(&setup, Pace::Shipped, lost, true));
    }
    cases
}

pub(super) fn case(setup: &Setup, pace: Pace, lost: usize, removed: bool) -> Case {
    let background = match pace {
        Pace::Shipped => SHIPPED,
        Pace::Papers => PAPERS_BYTES_PER_S / u64::from(setup.servers),
        Pace::Unbounded => UNBOUNDED,
    };
    Case { setup: Setup { background, ..setup.clone() }, pace, lost, removed }
}

pub(super) fn simulate(case: &Case) -> Row {
    // The last ones are no managers; which of them makes no difference.
    let last = case.setup.servers - 1;
    let victims = |_: &_| (0..case.lost as u32).map(|n| ServerId(last - n)).collect();
    let (mut world, victims): (World, BTreeSet<ServerId>) = World::new(&case.setup, victims);
    world.settle();
    world.lose(&victims, case.removed);
    assert!(world.restore(), "{}: some chunk lacks a copy for ever", case.name());
    Row { case: case.clone(), truth: world.truth }
}

/// Runs all, side by side.
pub(super) fn run(options: &Options) -> Vec<Row> {
    let cases = all(options);
    thread::scope(|scope| {
        let begin = |case| scope.spawn(move || simulate(case));
        let under_way: Vec<_> = cases.iter().map(begin).collect();
        let ended = under_way.into_iter().map(|run| run.join());
        ended.map(|row| row.expect("a simulation does not fail")).collect()
    })
}
