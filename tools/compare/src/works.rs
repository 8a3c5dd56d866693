//! The works of every system, and their amounts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::args::SystemsArgs;
use crate::error::CompareError;
use larder_bench::Pid;
use larder_bench::args::{EndpointArgs, LoadArgs, ReplayArgs};
use larder_bench::replay;
use larder_bench::report::Report;
use larder_bench::scenario;
use larder_bench::sign::Credentials;
use larder_bench::units::ByteSize;
use larder_bench::workload::Operation;

/// Bucket of all works.
pub(crate) const BUCKET: &str = "larder-bench";

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Sizes that puts and gets are measured at, in bytes.
const SIZES: [u64; 4] = [8 * KIB, 64 * KIB, 512 * KIB, 10 * MIB];
/// Size of objects where size is not what is asked, in bytes.
const SMALL: u64 = SIZES[0];
/// Connections where their number is not what is asked.
const CONNECTIONS: u64 = 20;
/// Further numbers of connections that small puts are measured at.
const CONNECTIONS_OF_SCALING: [u64; 3] = [64, 100, 1000];
/// Rates that small puts are offered at in an open loop, per second, and connections for them.
const RATES: [u32; 4] = [500, 1000, 2000, 4000];
const CONNECTIONS_OF_RATES: u64 = 64;

/// Objects, and their bytes, that reads are spread over.
const READ_OBJECTS: u64 = 2000;
const READ_BYTES: u64 = 128 * MIB;
/// Objects to delete; a fast system ends before the time does.
const DELETED_OBJECTS: u64 = 16_000;
/// Objects of the bucket that is listed only on request, since no system puts them in a moment.
const MANY_OBJECTS: u64 = 1_000_000;
/// Keys on a page.
const PAGE: u64 = 1000;
/// From this size on a work is measured longer, since few objects go by in a second. Requests under
/// way at either end of the time would count for too much.
const LARGE: u64 = MIB;
/// The factor of that longer time.
pub(crate) const LARGE_FACTOR: u32 = 4;
/// Time allowed for one request.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    Put,
    Get,
    Head,
    List,
    Delete,
    /// All requests of a trace.
    Replay,
    /// Lists in a bucket of a million objects.
    ListMillion,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Head => "head",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Replay => "replay",
            Self::ListMillion => "list-million",
        }
    }

    /// True if a system that keeps nothing cannot do it.
    pub(crate) fn needs_store(self) -> bool {
        matches!(self, Self::List | Self::Replay | Self::ListMillion)
    }
}

/// One work: a kind of request, on objects of one size, over so many connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Work {
    /// Kind of request.
    pub(crate) op: Op,
    /// Bytes of each object.
    pub(crate) size: u64,
    /// Connections, each with one request in flight.
    pub(crate) connections: u64,
    /// Requests a second of an open loop; `None`: as many as are answered.
    pub(crate) rate: Option<u32>,
}

impl Work {
    pub(crate) const fn new(op: Op, size: u64) -> Self {
        Self { op, size, connections: CONNECTIONS, rate: None }
    }

    /// True if it is this kind of request on small objects.
    pub(crate) fn is_small(&self, op: Op) -> bool {
        self.op == op && self.size == SMALL
    }

    /// Its name on the command line.
    pub(crate) fn name(&self) -> String {
        let (op, size) = (self.op.name(), ByteSize(self.size));
        if matches!(self.op, Op::Replay | Op::ListMillion) {
            return op.to_owned();
        }
        let rate = self.rate.map(|rate| format!("@{rate}")).unwrap_or_default();
        format!("{op}-{size}-{}{rate}", self.connections)
    }

    /// Its name in tables.
    pub(crate) fn title(&self) -> String {
        let rate = self.rate.map(|rate| format!(", {rate}/s offered")).unwrap_or_default();
        let what = match self.op {
            Op::Put | Op::Get => {
                let size = ByteSize(self.size).to_string();
                let unit = size.trim_start_matches(|c: char| c.is_ascii_digit());
                let number = &size[..size.len() - unit.len()];
                format!("{} {number} {unit}", self.op.name())
            }
            Op::List => format!("list {PAGE} keys"),
            Op::ListMillion => format!("list {PAGE} keys of a million"),
            Op::Replay => "replay of a trace".to_owned(),
            Op::Head | Op::Delete => self.op.name().to_owned(),
        };
        match self.connections {
            CONNECTIONS => format!("{what}{rate}"),
            connections => format!("{what}, {connections} connections{rate}"),
        }
    }

    /// Objects put before a load of this kind.
    fn objects(&self, listed: u64) -> Option<u64> {
        match self.op {
            Op::Put | Op::Replay => None,
            Op::Get | Op::Head => {
                Some((READ_BYTES / self.size.max(1)).min(READ_OBJECTS).max(self.connections))
            }
            Op::List => Some(listed),
            Op::ListMillion => Some(MANY_OBJECTS),
            Op::Delete => Some(DELETED_OBJECTS),
        }
    }

    /// Does it, with the driver of all other commands.
    pub(crate) fn run(&self, on: &Subject<'_>, args: &SystemsArgs) -> Result<Report, CompareError> {
        let endpoint = EndpointArgs {
            endpoint: on.endpoint.to_owned(),
            bucket: BUCKET.to_owned(),
            pids: on.pids.to_vec(),
            concurrency: self.connections,
            threads: None,
            timeout: TIMEOUT,
            unsigned_payload: false,
            json: false,
        };
        let operation = match self.op {
            Op::Put => Operation::Put,
            Op::Get => Operation::Get,
            Op::Head => Operation::Head,
            Op::List | Op::ListMillion => Operation::List { page: PAGE },
            Op::Delete => Operation::Delete,
            Op::Replay => {
                let file = args.trace.clone().ok_or_else(no_trace)?;
                let asked = ReplayArgs { file, endpoint };
                return Ok(replay::replay(&asked, on.credentials.clone())?);
            }
        };
        let load = LoadArgs {
            endpoint,
            size: ByteSize(self.size),
            rate: self.rate.and_then(std::num::NonZeroU32::new),
            duration: args.duration * if self.size >= LARGE { LARGE_FACTOR } else { 1 },
            // A warm-up would use the objects up.
            warmup: if self.op == Op::Delete { Duration::ZERO } else { args.warmup },
            clean: false,
            floor: on.floor,
        };
        let objects = self.objects(args.listed);
        Ok(scenario::load(operation, &load, objects, on.credentials.clone())?)
    }
}

fn no_trace() -> CompareError {
    CompareError::usage("--works", "a replay needs a trace: name its file with --trace")
}

/// The system that a work is done on.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) endpoint: &'a str,
    pub(crate) pids: &'a [Pid],
    pub(crate) credentials: &'a Credentials,
    /// True if it keeps nothing.
    pub(crate) floor: bool,
}

/// All works, in the order in which they are done.
pub(crate) fn all() -> Vec<Work> {
    let small = Work::new(Op::Put, SMALL);
    let mut works: Vec<Work> = SIZES.map(|size| Work::new(Op::Put, size)).into();
    works.extend(CONNECTIONS_OF_SCALING.map(|connections| Work { connections, ..small }));
    works.extend(RATES.map(|rate| Work {
        rate: Some(rate),
        connections: CONNECTIONS_OF_RATES,
        ..small
    }));
    works.extend(SIZES.map(|size| Work::new(Op::Get, size)));
    works.extend([Op::Head, Op::List, Op::Delete].map(|op| Work::new(op, SMALL)));
    works.extend([Work::new(Op::Replay, 0), Work::new(Op::ListMillion, SMALL)]);
    works
}

/// The works whose names begin with one of `prefixes`. If there are none, all but the replay, unless
/// there is a trace, and the list of a million, which only its whole name chooses.
///
/// # Errors
/// [`CompareError::Usage`] naming a prefix that no work has, or for want of a trace.
pub(crate) fn chosen(prefixes: &[String], trace: bool) -> Result<Vec<Work>, CompareError> {
    let works = all();
    let chooses = |prefix: &String, work: &Work| match work.op {
        Op::ListMillion => *prefix == work.name(),
        _ => work.name().starts_with(prefix),
    };
    for prefix in prefixes {
        if !works.iter().any(|work| chooses(prefix, work)) {
            let names: Vec<String> = works.iter().map(Work::name).collect();
            let reason = format!("no work begins with {prefix:?}; there are {}", names.join(", "));
            return Err(CompareError::usage("--works", reason));
        }
    }
    let is_chosen = |work: &Work| match prefixes {
        [] if work.op == Op::Replay => trace,
        [] => work.op != Op::ListMillion,
        _ => prefixes.iter().any(|prefix| chooses(prefix, work)),
    };
    let chosen: Vec<Work> = works.into_iter().filter(is_chosen).collect();
    match !trace && chosen.iter().any(|work| work.op == Op::Replay) {
        true => Err(no_trace()),
        false => Ok(chosen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(prefixes: &[&str], trace: bool) -> Vec<String> {
        let prefixes: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
        chosen(&prefixes, trace).unwrap().iter().map(Work::name).collect()
    }

    #[test]
    fn works_are_chosen_by_how_their_names_begin() {
        assert_eq!(names(&["head", "put-10MiB"], false), ["put-10MiB-20", "head-8KiB-20"]);
        assert_eq!(names(&["put-8KiB-64@1000"], false), ["put-8KiB-64@1000"]);
        let error = chosen(&["putt".into()], false).unwrap_err().to_string();
        assert!(error.contains("putt") && error.contains("put-8KiB-1000"), "{error}");
    }

    #[test]
    fn a_replay_needs_a_trace_and_a_million_objects_are_put_only_on_request() {
        assert_eq!(names(&[], true).len(), all().len() - 1);
        assert_eq!(names(&[], false).len(), all().len() - 2);
        assert_eq!(names(&["list"], false), ["list-8KiB-20"]);
        assert_eq!(names(&["list-million"], false), ["list-million"]);
        assert_eq!(names(&["replay"], true), ["replay"]);
        let error = chosen(&["replay".into()], false).unwrap_err().to_string();
        assert!(error.contains("--trace"), "{error}");
    }

    #[test]
    fn titles_say_what_differs_from_the_usual() {
        let small = Work::new(Op::Put, SMALL);
        assert_eq!(small.title(), "put 8 KiB");
        assert_eq!(Work { connections: 100, ..small }.title(), "put 8 KiB, 100 connections");
        let offered = Work { connections: 64, rate: Some(500), ..small };
        assert_eq!(offered.title(), "put 8 KiB, 64 connections, 500/s offered");
        assert_eq!(Work::new(Op::List, SMALL).title(), "list 1000 keys");
    }

    #[test]
    fn reads_have_objects_enough_for_every_connection() {
        for work in all().iter().filter(|work| matches!(work.op, Op::Get | Op::Head)) {
            assert!(work.objects(0) >= Some(work.connections), "{}", work.name());
        }
    }
}
