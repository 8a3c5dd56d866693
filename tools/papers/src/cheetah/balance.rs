//! Placement groups on meta servers, where the managers put them: how far below linear the busiest server keeps the whole.

use std::collections::{BTreeMap, BTreeSet};

use larder_bench::workload::Random;
use larder_protocol::placement::{
    FailureDomains, MachineId, MetaServer, PlacementState, RackId, Weight,
};
use larder_types::{RegionId, ServerId};

use crate::Options;
use crate::world::setup::{even_leaders, targets};

/// Clusters of other ids for each size: placement goes by ids.
const CLUSTERS: u64 = 10;
/// Ids are drawn below this.
const IDS: u64 = 10_000;

/// A number of servers, and of groups.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) servers: u32,
    pub(super) groups: u32,
    /// The part of linear that the busiest server leaves, in the worst of the clusters: by groups that it leads.
    pub(super) led: f64,
    /// The same by groups of which it is a member.
    pub(super) members: f64,
}

/// Numbers of servers: those of the paper are 3 to 15.
pub(super) fn sizes() -> impl Iterator<Item = u32> {
    (3..=15).step_by(3)
}

/// Numbers of groups: 256 is the default.
pub(super) fn counts(options: &Options) -> Vec<u32> {
    if options.quick { vec![256, 1024] } else { vec![256, 512, 1024, 2048, 4096] }
}

pub(super) fn run(options: &Options) -> Vec<Row> {
    let clusters = if options.quick { 2 } else { CLUSTERS };
    let counts = counts(options).into_iter();
    let rows = counts.flat_map(|groups| sizes().map(move |servers| (servers, groups)));
    rows.map(|(servers, groups)| row(servers, groups, options.seed, clusters)).collect()
}

fn row(servers: u32, groups: u32, seed: u64, clusters: u64) -> Row {
    let least = |of: &dyn Fn(&[Vec<ServerId>]) -> f64, placed: &[Vec<Vec<ServerId>>]| {
        placed.iter().map(|groups| of(groups)).fold(1.0, f64::min)
    };
    let placed: Vec<Vec<Vec<ServerId>>> =
        (0..clusters).map(|cluster| place(&ids(servers, seed, cluster), groups)).collect();
    let led = |groups: &[Vec<ServerId>]| evenness(groups.iter().map(|it| it[0]), servers);
    let members = |groups: &[Vec<ServerId>]| evenness(groups.iter().flatten().copied(), servers);
    Row { servers, groups, led: least(&led, &placed), members: least(&members, &placed) }
}

/// Ids of a cluster's servers.
fn ids(servers: u32, seed: u64, cluster: u64) -> BTreeSet<u32> {
    let mut dice = Random(seed.wrapping_mul(IDS).wrapping_add(cluster));
    let mut ids = BTreeSet::new();
    while ids.len() < servers as usize {
        ids.insert(dice.below(IDS) as u32);
    }
    ids
}

/// The members of each group, primary first, once the managers have evened who leads.
pub(super) fn place(ids: &BTreeSet<u32>, groups: u32) -> Vec<Vec<ServerId>> {
    let server = |id: &u32| MetaServer {
        server: ServerId(*id),
        domains: FailureDomains { region: RegionId(0), rack: RackId(0), machine: MachineId(*id) },
        weight: Weight(100),
        placement_state: PlacementState::In,
    };
    let servers: Vec<MetaServer> = ids.iter().map(server).collect();
    let mut placed = targets(&servers, groups);
    even_leaders(&mut placed, &servers);
    placed
}

/// The mean number of occurrences, as a part of the largest.
pub(super) fn evenness(of: impl Iterator<Item = ServerId>, servers: u32) -> f64 {
    let mut counts: BTreeMap<ServerId, u32> = BTreeMap::new();
    of.for_each(|server| *counts.entry(server).or_default() += 1);
    let (all, most) = (counts.values().sum::<u32>(), counts.values().max().copied().unwrap_or(1));
    f64::from(all) / f64::from(servers) / f64::from(most)
}
