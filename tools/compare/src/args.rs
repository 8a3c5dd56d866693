//! The command line of `larder-compare`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use larder_bench::units::parse_duration;

/// Most rounds of a comparison.
const ROUNDS_MAX: u64 = 100;
/// Most objects that are listed.
const OBJECTS_MAX: u64 = 1_000_000_000;

/// Below the options of `systems`.
const SYSTEMS_NOTES: &str = "\
Peers are looked for in --peers, then in PATH: weed (SeaweedFS), minio (MinIO), garage (Garage), rustfs
(RustFS). One that is not there is left out, and how to install it is said.

Works are named OPERATION-SIZE-CONNECTIONS, and OPERATION-SIZE-CONNECTIONS@RATE in an open loop, as in
put-8KiB-20 and put-8KiB-64@1000. Further there are replay, which needs --trace, and list-million, which is
done only if named: it puts a million objects into every system, which takes slow ones an hour. A system
that fails a work gets a row that says so.

After the systems of a round, larder is offered the most puts of 8 KiB that each peer did in it.

The tables go to stdout, everything else to stderr. Exit codes:
  0  all went well for larder and the floor
  1  a work of theirs failed
  2  the command line, a file or a document is wrong
  3  the system did not let the run begin, or it was interrupted";

/// Below the options of `ordered`.
const ORDERED_NOTES: &str = "\
The program must be built with ordered puts: cargo xtask ablation ordered. Never serve anything of value with
such a program.

The tables go to stdout, everything else to stderr. Exit codes:
  0  all went well
  1  a put failed
  2  the command line, a file or a document is wrong, or a cluster did not start
  3  the system did not let the run begin, or it was interrupted";

/// Below the options of `policies`.
const POLICIES_NOTES: &str = "\
The tables go to stdout, everything else to stderr. Exit codes:
  0  all went well
  1  a get failed
  2  the command line, a file or a document is wrong, or a cluster did not start
  3  the system did not let the run begin, or it was interrupted";

/// Compare Larder with other stores, and with itself without parts of its design.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub(crate) struct Program {
    /// The comparison
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The comparisons, and the server that they begin with.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure larder, the floor and every peer that is installed, and write the comparison down
    #[command(after_help = SYSTEMS_NOTES)]
    Systems(SystemsArgs),
    /// Measure puts in parallel against puts in order, in clusters with a slowed down network and slowed down disks
    #[command(after_help = ORDERED_NOTES)]
    Ordered(OrderedArgs),
    /// Measure policies of the read scheduler in clusters whose disks are slowed down
    #[command(after_help = POLICIES_NOTES)]
    Policies(PoliciesArgs),
    /// Simulate policies of the read scheduler on modelled disks, and write the comparison down
    Schedule(ScheduleArgs),
    /// Simulate eight years of a growing cluster with rebalancing and without, and write the comparison down
    Rebalance(RebalanceArgs),
    /// Serve S3 without a store: what HTTP, authentication and digests alone cost
    Floor(FloorArgs),
}

impl Command {
    /// Folders that it writes into.
    pub(crate) fn written(&self) -> Vec<&Path> {
        let (docs, scratch) = match self {
            Self::Systems(args) => (&args.docs, args.scratch.as_deref()),
            Self::Ordered(args) => (&args.docs, args.scratch.as_deref()),
            Self::Policies(args) => (&args.docs, args.scratch.as_deref()),
            Self::Schedule(args) => (&args.docs, None),
            Self::Rebalance(args) => (&args.docs, None),
            Self::Floor(_) => return Vec::new(),
        };
        std::iter::once(docs.as_path()).chain(scratch).collect()
    }
}

/// A comparison.
///
/// Each round starts every system once, in an order drawn anew, on an empty directory and free ports of the loopback
/// interface. It gives each the same works with the same client, stops it and removes the directory. All rows go to
/// DOCS/benchmarks.json; the tables in DOCS/benchmarks/all-systems.md and the plots in DOCS/plots are made from them.
#[derive(Debug, Clone, Args)]
pub(crate) struct SystemsArgs {
    /// Make table and plots from the rows in FILE; measure nothing
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
    /// Folder of benchmarks.json, benchmarks/ and plots/
    #[arg(long, value_name = "DIR", default_value = "docs")]
    pub(crate) docs: PathBuf,
    /// The larder to measure; by default the one beside this program
    #[arg(long, value_name = "FILE")]
    pub(crate) larder: Option<PathBuf>,
    /// Folder to look for peers in, before PATH
    #[arg(long, value_name = "DIR")]
    pub(crate) peers: Option<PathBuf>,
    /// Folder on the disk to measure, in which each server gets a folder of its own; by default that
    /// of temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u64).range(1..=ROUNDS_MAX))]
    pub(crate) rounds: u64,
    /// Measured time of each work
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    pub(crate) duration: Duration,
    /// Time under load before the measured time; its requests do not count
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse_duration)]
    pub(crate) warmup: Duration,
    /// Only works whose names begin so, as in put-8KiB,head
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) works: Vec<String>,
    /// Only systems whose names begin so, as in larder,garage-durable
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) systems: Vec<String>,
    /// Trace to replay as one of the works
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Write DOCS/benchmarks-NAME.json, DOCS/plots-NAME and DOCS/benchmarks/NAME.md
    #[arg(long, value_name = "NAME")]
    pub(crate) part: Option<String>,
    /// Objects in the bucket that pages are listed of
    #[arg(long, value_name = "N", default_value_t = 5000,
          value_parser = clap::value_parser!(u64).range(1..=OBJECTS_MAX))]
    pub(crate) listed: u64,
    /// Number that the order of the systems is drawn from; by default drawn from the clock
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Compare clusters that keep three copies, each of several processes on this machine, in place of single
    /// servers; without --part the part is named cluster
    #[arg(long)]
    pub(crate) cluster: bool,
    /// One round, half a second for each work
    #[arg(long, conflicts_with_all = ["rounds", "duration", "from"])]
    pub(crate) quick: bool,
}

/// A comparison of parallel and ordered puts.
///
/// Each round starts a cluster of three nodes on this machine for each pair of delays, in an order drawn anew. It puts
/// through a proxy that writes in parallel and one that writes in order, and removes the cluster. The rows go to
/// DOCS/benchmarks-ordered.json; DOCS/benchmarks/ordered.md and the plots are made from them.
#[derive(Debug, Clone, Args)]
pub(crate) struct OrderedArgs {
    /// Make tables and plots from the rows in FILE; measure nothing
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
    /// Folder of benchmarks/, the rows and the plots
    #[arg(long, value_name = "DIR", default_value = "docs")]
    pub(crate) docs: PathBuf,
    /// Folder on the disk to measure, in which each cluster gets a folder of its own; by default that of temporary
    /// files
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u64).range(1..=ROUNDS_MAX))]
    pub(crate) rounds: u64,
    /// Measured time of each work
    #[arg(long, value_name = "TIME", default_value = "600ms", value_parser = parse_duration)]
    pub(crate) duration: Duration,
    /// Time under load before the measured time; its puts do not count
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = parse_duration)]
    pub(crate) warmup: Duration,
}

/// A comparison of the ways to choose a copy.
///
/// Each round starts a cluster of three nodes on this machine for each policy and each state of the disks, in an order drawn
/// anew. It reads from the cluster in an open loop, and removes it. The rows go to DOCS/benchmarks-policies.json; the part
/// of DOCS/scheduling.md is made from them.
#[derive(Debug, Clone, Args)]
pub(crate) struct PoliciesArgs {
    /// Make the tables from the rows in FILE; measure nothing
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
    /// Folder of scheduling.md and the rows
    #[arg(long, value_name = "DIR", default_value = "docs")]
    pub(crate) docs: PathBuf,
    /// Folder on the disk to measure, in which each cluster gets a folder of its own; by default that of temporary
    /// files
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u64).range(1..=ROUNDS_MAX))]
    pub(crate) rounds: u64,
    /// Measured time of each policy in each state
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) duration: Duration,
    /// Time under load before the measured time; its reads do not count
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub(crate) warmup: Duration,
    /// Only these policies, as in earliest-finish,c3
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) policies: Vec<String>,
}

/// A simulation of the read scheduler.
///
/// It runs the scheduler's own machines over modelled disks, in simulated time: one seed makes one document, on any
/// machine. The tables in DOCS/scheduling.md and the plots in DOCS/plots-schedule are made.
#[derive(Debug, Clone, Args)]
pub(crate) struct ScheduleArgs {
    /// Folder of scheduling.md and the plots
    #[arg(long, value_name = "DIR", default_value = "docs")]
    pub(crate) docs: PathBuf,
    /// Number that layout, requests and service times are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// A tenth of the requests
    #[arg(long)]
    pub(crate) quick: bool,
}

/// Options of `larder-compare rebalance`.
///
/// It drives the planner of the managers over a modelled cluster that grows, in simulated time: one seed makes one document,
/// on any machine. The tables in DOCS/rebalancing.md and the plots in DOCS/plots-rebalance are made.
#[derive(Debug, Clone, Args)]
pub(crate) struct RebalanceArgs {
    /// Folder of rebalancing.md and the plots
    #[arg(long, value_name = "DIR", default_value = "docs")]
    pub(crate) docs: PathBuf,
    /// Number that the fill of volumes and the writes are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Up to 30 servers alone, in 30 weeks
    #[arg(long)]
    pub(crate) quick: bool,
}

/// The floor server.
///
/// It takes S3 requests with the same HTTP stack, authentication and digests as `larder server`, and keeps nothing. It reads
/// bodies and drops them, and its lists are empty. It answers a get from one page-cached file. The answer has as many bytes
/// as the number that the key ends in (as in `name-8192`), or else as the last put had. Drive it with `larder bench put --floor`. Its
/// credentials are those in LARDER_ROOT_ACCESS_KEY and LARDER_ROOT_SECRET_KEY.
#[derive(Debug, Clone, Args)]
pub(crate) struct FloorArgs {
    /// Address to listen on; port 0 lets the system choose
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9002")]
    pub(crate) listen: SocketAddr,
    /// HTTP alone: no S3, no authentication, no digests. Shows what the floor itself costs
    #[arg(long)]
    pub(crate) bare: bool,
}
