//! The command line of `larder bench`.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::error::Pid;
use crate::units::{ByteSize, parse_duration};
use crate::workload::Mix;

/// Most requests in flight.
const CONCURRENCY_MAX: u64 = 1024;
/// Most event loops.
const THREADS_MAX: u64 = 64;
/// Most objects of a run.
const OBJECTS_MAX: u64 = 1_000_000_000;
/// Most rounds of a comparison.
const ROUNDS_MAX: u64 = 100;
/// Keys on a page of a list (S3).
const PAGE_MAX: u64 = 1000;

/// Below the options of every command that makes requests.
const NOTES: &str = "\
Credentials are those in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; the region is that in AWS_REGION,
else us-east-1. The run's objects stay in the bucket.

The result goes to stdout, everything else to stderr. Exit codes:
  0  all went well
  1  a request failed or an answer was wrong
  2  the command line, the environment or the trace is wrong
  3  the endpoint or the system did not let the run begin";

/// Below the options of `compare`.
const COMPARE_NOTES: &str = "\
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
The program must be built with the feature for it: cargo build --release --features ablation. Never serve
anything of value with such a program.

The tables go to stdout, everything else to stderr. Exit codes:
  0  all went well
  1  a put failed
  2  the command line, a file or a document is wrong, or a cluster did not start
  3  the system did not let the run begin, or it was interrupted";

/// Below the options of `policies`.
const POLICIES_NOTES: &str = "\
The program must be built with the feature for it: cargo build --release --features ablation. Never serve
anything of value with such a program.

The tables go to stdout, everything else to stderr. Exit codes:
  0  all went well
  1  a get failed
  2  the command line, a file or a document is wrong, or a cluster did not start
  3  the system did not let the run begin, or it was interrupted";

/// Measure an S3 endpoint, replay a trace against it, or serve as the floor to compare with.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Put new objects, each with content of its own
    #[command(after_help = NOTES)]
    Put(LoadArgs),
    /// Append records to a few objects, as many clients do to one log
    #[command(after_help = NOTES)]
    Append(AppendArgs),
    /// Read preloaded objects at random, comparing every byte
    #[command(after_help = NOTES)]
    Get(PreloadedArgs),
    /// Ask for the heads of preloaded objects at random, checking their sizes
    #[command(after_help = NOTES)]
    Head(PreloadedArgs),
    /// Get, put and delete together
    #[command(after_help = NOTES)]
    Mixed(MixedArgs),
    /// Delete preloaded objects; ends early when none is left
    #[command(after_help = NOTES)]
    Delete(PreloadedArgs),
    /// List pages of preloaded objects, begun at random, checking every key
    #[command(after_help = NOTES)]
    List(ListArgs),
    /// Replay a trace of requests as fast as the endpoint takes them
    #[command(after_help = NOTES)]
    Replay(ReplayArgs),
    /// Measure larder, the floor and every peer that is installed, and write the comparison down
    #[command(after_help = COMPARE_NOTES)]
    Compare(CompareArgs),
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

impl BenchCommand {
    /// Folders that it writes into.
    #[must_use]
    pub fn written(&self) -> Vec<&Path> {
        let (docs, scratch) = match self {
            Self::Compare(args) => (&args.docs, args.scratch.as_deref()),
            Self::Ordered(args) => (&args.docs, args.scratch.as_deref()),
            Self::Policies(args) => (&args.docs, args.scratch.as_deref()),
            Self::Schedule(args) => (&args.docs, None),
            Self::Rebalance(args) => (&args.docs, None),
            _ => return Vec::new(),
        };
        std::iter::once(docs.as_path()).chain(scratch).collect()
    }
}

/// Where requests go and who makes them.
#[derive(Debug, Clone, Args)]
pub struct EndpointArgs {
    /// The endpoint, as http://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub endpoint: String,
    /// Bucket of all objects; made if it is not there
    #[arg(long, value_name = "NAME", default_value = "larder-bench")]
    pub bucket: String,
    /// Server process whose CPU time per request is reported; repeat for several
    #[arg(long = "pid", value_name = "PID")]
    pub pids: Vec<Pid>,
    /// Requests in flight at most, each on a connection of its own
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..=CONCURRENCY_MAX))]
    pub concurrency: u64,
    /// Event loops to spread the connections over; by default one per core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
    pub threads: Option<u64>,
    /// Time allowed for one request
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Leave bodies out of the signature (UNSIGNED-PAYLOAD) instead of signing their SHA-256
    #[arg(long)]
    pub unsigned_payload: bool,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A measured load.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Where to, and with how many connections
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Bytes of each object: 512, 8KiB, 1MiB, 10MB
    #[arg(long, value_name = "SIZE", default_value = "8KiB")]
    pub size: ByteSize,
    /// Open loop: begin N requests a second whether or not earlier ones are answered, and count
    /// latencies from the moment each was due
    #[arg(long, value_name = "N")]
    pub rate: Option<NonZeroU32>,
    /// Measured time
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Time under load before the measured time; its requests do not count
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub warmup: Duration,
    /// The endpoint is `larder bench floor`: reads give its one file, lists are empty
    #[arg(long)]
    pub floor: bool,
}

/// A load of records.
#[derive(Debug, Clone, Args)]
pub struct AppendArgs {
    /// The load; a record has --size bytes, at most 8 MiB
    #[command(flatten)]
    pub load: LoadArgs,
    /// Objects that are appended to
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=OBJECTS_MAX))]
    pub objects: u64,
}

/// A measured load on objects that are put first.
#[derive(Debug, Clone, Args)]
pub struct PreloadedArgs {
    /// The load
    #[command(flatten)]
    pub load: LoadArgs,
    /// Objects put before the measured time; by default as many as fit 256 MiB, at most 10,000 (for
    /// deletes 1 GiB and 100,000, or as many as --rate needs)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=OBJECTS_MAX))]
    pub objects: Option<u64>,
}

/// A mixed load.
#[derive(Debug, Clone, Args)]
pub struct MixedArgs {
    /// The load, and what it is put on
    #[command(flatten)]
    pub preloaded: PreloadedArgs,
    /// Percentages of get, put and delete
    #[arg(long, value_name = "GET,PUT,DELETE", default_value = "70,25,5")]
    pub mix: Mix,
}

/// A load of lists.
#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    /// The load, and what it is put on
    #[command(flatten)]
    pub preloaded: PreloadedArgs,
    /// Keys on a page
    #[arg(long, value_name = "N", default_value_t = PAGE_MAX,
          value_parser = clap::value_parser!(u64).range(1..=PAGE_MAX))]
    pub page: u64,
}

/// A replay.
///
/// What the trace reads or deletes without having put it is put first, untimed. Then all requests
/// are made as fast as the endpoint answers, those on one name in the order of the file. In the
/// end every object that should be there is read and compared, and every other must be gone.
#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// The trace: on each line milliseconds, PUT, GET or DELETE, a name, and bytes; # begins a
    /// comment
    pub file: PathBuf,
    /// Where to, and with how many connections
    #[command(flatten)]
    pub endpoint: EndpointArgs,
}

/// The floor server.
///
/// It takes S3 requests with the same HTTP stack, authentication and digests as `larder server`, and keeps nothing. It reads
/// bodies and drops them, and its lists are empty. It answers a get from one page-cached file. The answer has as many bytes
/// as the number that the key ends in (as in `name-8192`), or else as the last put had. Drive it with `--floor`. Its
/// credentials are those in LARDER_ROOT_ACCESS_KEY and LARDER_ROOT_SECRET_KEY.
#[derive(Debug, Clone, Args)]
pub struct FloorArgs {
    /// Address to listen on; port 0 lets the system choose
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9002")]
    pub listen: SocketAddr,
    /// HTTP alone: no S3, no authentication, no digests. Shows what the floor itself costs
    #[arg(long)]
    pub bare: bool,
}

/// A comparison.
///
/// Each round starts every system once, in an order drawn anew, on an empty directory and free ports of the loopback
/// interface. It gives each the same works with the same client, stops it and removes the directory. All rows go to
/// DOCS/benchmarks.json; the tables in DOCS/benchmarks/all-systems.md and the plots in DOCS/plots are made from them.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Make table and plots from the rows in FILE; measure nothing
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Folder of benchmarks.json, benchmarks/ and plots/
    #[arg(long, value_name = "DIR", default_value = "docs")]
    pub docs: PathBuf,
    /// Folder to look for peers in, before PATH
    #[arg(long, value_name = "DIR")]
    pub peers: Option<PathBuf>,
    /// Folder on the disk to measure, in which each server gets a folder of its own; by default that
    /// of temporary files
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u64).range(1..=ROUNDS_MAX))]
    pub rounds: u64,
    /// Measured time of each work
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Time under load before the measured time; its requests do not count
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Only works whose names begin so, as in put-8KiB,head
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub works: Vec<String>,
    /// Only systems whose names begin so, as in larder,garage-durable
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub systems: Vec<String>,
    /// Trace to replay as one of the works
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write DOCS/benchmarks-NAME.json, DOCS/plots-NAME and DOCS/benchmarks/NAME.md
    #[arg(long, value_name = "NAME")]
    pub part: Option<String>,
    /// Objects in the bucket that pages are listed of
    #[arg(long, value_name = "N", default_value_t = 5000,
          value_parser = clap::value_parser!(u64).range(1..=OBJECTS_MAX))]
    pub listed: u64,
    /// Number that the order of the systems is drawn from; by default drawn from the clock
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Compare clusters that keep three copies, each of several processes on this machine, in place of single
    /// servers; without --part the part is named cluster
    #[arg(long)]
    pub cluster: bool,
    /// One round, half a second for each work
    #[arg(long, conflicts_with_all = ["rounds", "duration", "from"])]
    pub quick: bool,
}

/// A comparison of parallel and ordered puts.
///
/// Each round starts a cluster of three nodes on this machine for each pair of delays, in an order drawn anew. It puts
/// through a proxy that writes in parallel and one that writes in order, and removes the cluster. The rows go to
/// DOCS/benchmarks-ordered.json; DOCS/benchmarks/ordered.md and the plots are made from them.
#[derive(Debug, Clone, Args)]
pub struct OrderedArgs {
    /// Make tables and plots from the rows in FILE; measure nothing
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Folder of benchmarks/, the rows and the plots
    #[arg(long, value_name = "DIR", default_value = "docs")]
    pub docs: PathBuf,
    /// Folder on the disk to measure, in which each cluster gets a folder of its own; by default that of temporary
    /// files
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u64).range(1..=ROUNDS_MAX))]
    pub rounds: u64,
    /// Measured time of each work
    #[arg(long, value_name = "TIME", default_value = "600ms", value_parser = parse_duration)]
    pub duration: Duration,
    /// Time under load before the measured time; its puts do not count
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = parse_duration)]
    pub warmup: Duration,
}

/// A comparison of the ways to choose a copy.
///
/// Each round starts a cluster of three nodes on this machine for each policy and each state of the disks, in an order drawn
/// anew. It reads from the cluster in an open loop, and removes it. The rows go to DOCS/benchmarks-policies.json; the part
/// of DOCS/scheduling.md is made from them.
#[derive(Debug, Clone, Args)]
pub struct PoliciesArgs {
    /// Make the tables from the rows in FILE; measure nothing
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Folder of scheduling.md and the rows
    #[arg(long, value_name = "DIR", default_value = "docs")]
    pub docs: PathBuf,
    /// Folder on the disk to measure, in which each cluster gets a folder of its own; by default that of temporary
    /// files
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u64).range(1..=ROUNDS_MAX))]
    pub rounds: u64,
    /// Measured time of each policy in each state
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Time under load before the measured time; its reads do not count
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Only these policies, as in earliest-finish,c3
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub policies: Vec<String>,
}

/// A simulation of the read scheduler.
///
/// It runs the scheduler's own machines over modelled disks, in simulated time: one seed makes one document, on any
/// machine. The tables in DOCS/scheduling.md and the plots in DOCS/plots-schedule are made.
#[derive(Debug, Clone, Args)]
pub struct ScheduleArgs {
    /// Folder of scheduling.md and the plots
    #[arg(long, value_name = "DIR", default_value = "docs")]
    pub docs: PathBuf,
    /// Number that layout, requests and service times are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// A tenth of the requests
    #[arg(long)]
    pub quick: bool,
}

/// Options of `larder bench rebalance`.
///
/// It drives the planner of the managers over a modelled cluster that grows, in simulated time: one seed makes one document,
/// on any machine. The tables in DOCS/rebalancing.md and the plots in DOCS/plots-rebalance are made.
#[derive(Debug, Clone, Args)]
pub struct RebalanceArgs {
    /// Folder of rebalancing.md and the plots
    #[arg(long, value_name = "DIR", default_value = "docs")]
    pub docs: PathBuf,
    /// Number that the fill of volumes and the writes are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Up to 30 servers alone, in 40 weeks
    #[arg(long)]
    pub quick: bool,
}
