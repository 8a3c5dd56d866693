//! The rounds: a cluster for each policy and state of the disks.

use std::num::NonZeroU32;
use std::path::Path;

use larder_protocol::scheduler::Policy;
use serde::{Deserialize, Serialize};

use super::cases::{CONNECTIONS, Disks, OBJECTS, RATE, SIZE, WORSE_NODE};
use crate::args::PoliciesArgs;
use crate::devcluster::{NODES, Starter};
use crate::error::CompareError;
use crate::machine;
use crate::measured::{About, Measured};
use crate::rounds::shuffled;
use crate::works::{BUCKET, TIMEOUT};
use larder_bench::args::{EndpointArgs, LoadArgs};
use larder_bench::report::Report;
use larder_bench::scenario::{self, run_number};
use larder_bench::units::ByteSize;
use larder_bench::workload::{Operation, Random};

const _: () = assert!(WORSE_NODE <= NODES);

/// All that was found.
pub(super) type Results = Measured<Row>;

/// Result of one policy in one state of the disks, in one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) round: u64,
    pub(super) disks: Disks,
    pub(super) policy: String,
    pub(super) ops_s: f64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) p999_us: Option<f64>,
    pub(super) server_cpu_us_per_op: Option<f64>,
    /// Reads that were due and never begun.
    pub(super) unsent: u64,
    pub(super) errors: u64,
}

impl Results {
    /// Rows in which something went wrong.
    pub(super) fn faults(&self) -> u64 {
        self.rows.iter().filter(|row| row.errors > 0).count() as u64
    }
}

pub(super) fn run(args: &PoliciesArgs) -> Result<Results, CompareError> {
    let policies = chosen(&args.policies)?;
    let scratch = machine::scratch(args.scratch.as_deref())?;
    let about = About::begin("policies", args.rounds, args.duration, &scratch);
    let starter = Starter::new()?;
    let mut results = Results { about, rows: Vec::new() };
    let mut random = Random((run_number() % u128::from(u64::MAX)) as u64);
    let cases: Vec<(Disks, Policy)> =
        Disks::ALL.iter().flat_map(|disks| policies.iter().map(|it| (*disks, *it))).collect();
    for round in 1..=args.rounds {
        for index in shuffled(cases.len(), &mut random) {
            let (disks, policy) = cases[index];
            let report = measure(args, &scratch, &starter, (disks, policy))?;
            starter.interrupts.check()?;
            results.rows.push(row(round, disks, policy, &report));
        }
    }
    Ok(results)
}

fn chosen(names: &[String]) -> Result<Vec<Policy>, CompareError> {
    let all = Policy::ALL.map(Policy::name);
    if let Some(odd) = names.iter().find(|name| !all.contains(&name.as_str())) {
        let reason = format!("{odd:?} is no policy: there are {}", all.join(", "));
        return Err(CompareError::usage("--policies", reason));
    }
    let is_chosen =
        |policy: &Policy| names.is_empty() || names.iter().any(|it| it == policy.name());
    Ok(Policy::ALL.into_iter().filter(is_chosen).collect())
}

/// One policy in one cluster.
fn measure(
    args: &PoliciesArgs,
    scratch: &Path,
    starter: &Starter,
    (disks, policy): (Disks, Policy),
) -> Result<Report, CompareError> {
    let directory = tempfile::Builder::new().prefix("larder-policies-").tempdir_in(scratch);
    let directory = directory.map_err(CompareError::System)?;
    let options = ["--read-policy", policy.name()];
    let (server, endpoints) = starter.start(directory.path(), &disks.sections(), &options, &[])?;
    let endpoint = EndpointArgs {
        endpoint: endpoints[WORSE_NODE - 1].clone(),
        bucket: BUCKET.to_owned(),
        pids: server.pids().map_err(CompareError::System)?,
        concurrency: CONNECTIONS,
        threads: Some(1),
        timeout: TIMEOUT,
        unsigned_payload: false,
        json: false,
    };
    let load = LoadArgs {
        endpoint,
        size: ByteSize(SIZE),
        rate: NonZeroU32::new(RATE),
        duration: args.duration,
        warmup: args.warmup,
        clean: false,
        floor: false,
    };
    Ok(scenario::load(Operation::Get, &load, Some(OBJECTS), starter.credentials.clone())?)
}

fn row(round: u64, disks: Disks, policy: Policy, report: &Report) -> Row {
    let ms = |us: Option<f64>| us.unwrap_or_default() / 1000.0;
    eprintln!(
        "round {round}, {}, {}: {:.0} gets/s, p50 {:.1} ms, p99 {:.1} ms, p99.9 {:.1} ms, {} errors",
        disks.title(),
        policy.name(),
        report.ops_s,
        ms(report.p50_us),
        ms(report.p99_us),
        ms(report.p999_us),
        report.errors
    );
    Row {
        round,
        disks,
        policy: policy.name().to_owned(),
        ops_s: report.ops_s,
        p50_us: report.p50_us,
        p99_us: report.p99_us,
        p999_us: report.p999_us,
        server_cpu_us_per_op: report.server_cpu_us_per_op,
        unsent: report.unsent,
        errors: report.errors,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_chosen_by_name_and_all_if_none_is_named() {
        assert_eq!(chosen(&[]).unwrap(), Policy::ALL);
        let names = ["c3", "random"].map(str::to_owned);
        assert_eq!(chosen(&names).unwrap(), [Policy::Random, Policy::C3]);
        let error = chosen(&["fastest".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("fastest") && error.contains("earliest-finish"), "{error}");
    }
}
