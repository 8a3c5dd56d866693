//! The command line of `larder bench`.

use std::num::NonZeroU32;
use std::path::PathBuf;
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
/// Keys on a page of a list (S3).
const PAGE_MAX: u64 = 1000;

/// Below the options of every command that makes requests.
const NOTES: &str = "\
Credentials are those in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; the region is that in AWS_REGION,
else us-east-1. The run's objects stay in the bucket, unless --clean says otherwise; a replay's do.

The result goes to stdout, everything else to stderr. Exit codes:
  0  all went well
  1  a request failed or an answer was wrong
  2  the command line, the environment or the trace is wrong
  3  the endpoint or the system did not let the run begin";

/// Measure an S3 endpoint, or replay a trace against it.
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
    /// Delete the run's objects at the end, untimed; a delete that fails counts as an error
    #[arg(long)]
    pub clean: bool,
    /// The endpoint is `larder-compare floor`: reads give its one file, lists are empty
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
