//! The rounds: a cluster for each of the delays, and what each variant did in it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::cases::{ABLATED, ALONE, DELAYS, Delays, SIZES, TOGETHER, Variant, Work};
use crate::args::OrderedArgs;
use crate::devcluster::{NODES, Starter};
use crate::error::CompareError;
use crate::machine;
use crate::measured::{About, Measured};
use crate::ports::{Ports, Sections};
use crate::rounds::shuffled;
use crate::works::{BUCKET, TIMEOUT};
use larder_bench::args::{EndpointArgs, LoadArgs};
use larder_bench::report::Report;
use larder_bench::scenario::{self, run_number};
use larder_bench::units::ByteSize;
use larder_bench::workload::{Operation, Random};

/// The node whose proxy writes in order; the first does not.
const ORDERED_NODE: usize = 2;
const _: () = assert!(ORDERED_NODE <= NODES);

/// True in a program with the patch `ordered`: a proxy whose command line has the word in [`ORDERED_VARIABLE`] writes in
/// order.
const HAS_ORDERED_PUTS: bool = false;
/// See [`HAS_ORDERED_PUTS`].
const ORDERED_VARIABLE: &str = "LARDER_ORDERED";

/// All that was found.
pub(super) type Results = Measured<Row>;

/// The result of one variant in one work of one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) round: u64,
    pub(super) delays: Delays,
    pub(super) variant: Variant,
    pub(super) work: Work,
    pub(super) ops_s: f64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) server_cpu_us_per_op: Option<f64>,
    pub(super) errors: u64,
}

impl Results {
    /// Rows in which something went wrong.
    pub(super) fn faults(&self) -> u64 {
        self.rows.iter().filter(|row| row.errors > 0).count() as u64
    }
}

/// A cluster that is to be measured.
#[derive(Debug, Clone, Copy)]
struct Setup {
    delays: Delays,
    /// The variant of its first node; of a parallel one the second is measured too, and writes in
    /// order.
    variant: Variant,
}

impl Setup {
    fn all() -> Vec<Self> {
        let pairs = DELAYS.map(|delays| Self { delays, variant: Variant::Parallel });
        let others = [Variant::SeparateMetax, Variant::PlainFiles]
            .into_iter()
            .flat_map(|variant| ABLATED.map(|delays| Self { delays, variant }));
        pairs.into_iter().chain(others).collect()
    }

    /// The ports of its processes.
    fn ports(self) -> Ports {
        let Delays { network_us, sync_us } = self.delays;
        Ports {
            network_us,
            sync_us,
            separate_metax: self.variant == Variant::SeparateMetax,
            plain_files: self.variant == Variant::PlainFiles,
            ..Ports::default()
        }
    }

    /// The variants measured in it, by node.
    fn measured(self) -> Vec<(Variant, usize)> {
        match self.variant {
            Variant::Parallel => vec![(Variant::Parallel, 1), (Variant::Ordered, ORDERED_NODE)],
            variant => vec![(variant, 1)],
        }
    }
}

struct Plan<'a> {
    args: &'a OrderedArgs,
    scratch: &'a Path,
    starter: Starter,
}

pub(super) fn run(args: &OrderedArgs) -> Result<Results, CompareError> {
    if !HAS_ORDERED_PUTS {
        let reason = "this program writes in parallel alone: build one that does not with `cargo xtask ablation ordered`";
        return Err(CompareError::usage("ordered", reason));
    }
    let scratch = machine::scratch(args.scratch.as_deref())?;
    let about = About::begin("ordered", args.rounds, args.duration, &scratch);
    let starter = Starter::new()?;
    let plan = Plan { args, scratch: &scratch, starter };
    let mut results = Results { about, rows: Vec::new() };
    let mut random = Random((run_number() % u128::from(u64::MAX)) as u64);
    let setups = Setup::all();
    for round in 1..=args.rounds {
        for index in shuffled(setups.len(), &mut random) {
            plan.measure(round, setups[index], &mut random, &mut results.rows)?;
        }
    }
    Ok(results)
}

impl Plan<'_> {
    /// One cluster in one round.
    fn measure(
        &self,
        round: u64,
        setup: Setup,
        random: &mut Random,
        rows: &mut Vec<Row>,
    ) -> Result<(), CompareError> {
        let directory = tempfile::Builder::new().prefix("larder-ordered-").tempdir_in(self.scratch);
        let directory = directory.map_err(CompareError::System)?;
        let sections = Sections::all(setup.ports());
        // A part of the path of its configuration.
        let ordered = format!("/node-{ORDERED_NODE}/");
        let variables = [(ORDERED_VARIABLE, ordered.as_str())];
        let (server, endpoints) =
            self.starter.start(directory.path(), &sections, &[], &variables)?;
        let pids = server.pids().map_err(CompareError::System)?;
        // Volumes are drawn and connections made at the first puts, measured or not.
        for (_, node) in setup.measured() {
            let size = SIZES[0];
            self.put(&endpoints[node - 1], &pids, Work { size, connections: TOGETHER })?;
            self.starter.interrupts.check()?;
        }
        for connections in [ALONE, TOGETHER] {
            for size in SIZES {
                let work = Work { size, connections };
                let measured = setup.measured();
                for index in shuffled(measured.len(), random) {
                    let (variant, node) = measured[index];
                    let report = self.put(&endpoints[node - 1], &pids, work)?;
                    self.starter.interrupts.check()?;
                    rows.push(row(round, setup.delays, variant, work, &report));
                }
            }
        }
        Ok(())
    }

    fn put(&self, endpoint: &str, pids: &[u32], work: Work) -> Result<Report, CompareError> {
        let endpoint = EndpointArgs {
            endpoint: endpoint.to_owned(),
            bucket: BUCKET.to_owned(),
            pids: pids.to_vec(),
            concurrency: work.connections,
            threads: Some(1),
            timeout: TIMEOUT,
            unsigned_payload: false,
            json: false,
        };
        let load = LoadArgs {
            endpoint,
            size: ByteSize(work.size),
            rate: None,
            duration: self.args.duration,
            warmup: self.args.warmup,
            clean: false,
            floor: false,
        };
        Ok(scenario::load(Operation::Put, &load, None, self.starter.credentials.clone())?)
    }
}

fn row(round: u64, delays: Delays, variant: Variant, work: Work, report: &Report) -> Row {
    eprintln!(
        "round {round}, {}, {}, {} over {}: p50 {:.0} us, {:.0} puts/s, {} errors",
        delays.title(),
        variant.title(),
        ByteSize(work.size),
        work.connections,
        report.p50_us.unwrap_or_default(),
        report.ops_s,
        report.errors
    );
    Row {
        round,
        delays,
        variant,
        work,
        ops_s: report.ops_s,
        p50_us: report.p50_us,
        p99_us: report.p99_us,
        server_cpu_us_per_op: report.server_cpu_us_per_op,
        errors: report.errors,
    }
}
