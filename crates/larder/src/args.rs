//! The command line.

mod operate;
pub(crate) mod region;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use larder_bench::units::ByteSize;
use larder_pack::WorkerName;
use larder_protocol::manager::state::ServerRole;
use larder_protocol::scheduler::Policy;
use larder_types::BucketName;

use crate::{exit, release};
pub(crate) use operate::{
    BucketCommand, DiskCommand, DoctorArgs, DrainArgs, KeysCommand, RebalanceCommand,
    RecoverCommand, RemoveArgs, StatusArgs, UsageArgs,
};
use region::RegionCommand;

/// An S3-compatible object store: durable, strongly consistent, one binary.
#[derive(Debug, Parser)]
#[command(version = release::SHOWN, about, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Program {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve S3 from a directory, alone or with others.
    ///
    /// With --peer this machine is one of a cluster of equal machines. Run the same command on each of them, in any order,
    /// with the same list of peers and the same secret (`larder secret`). Without --peer it runs as a single node.
    ///
    /// The first start makes the directory and draws root credentials. It keeps them in DIR/credentials.toml, readable by
    /// you alone, and prints them once if it is started in a terminal. It also prints a line for the AWS command line.
    /// Nothing listens beyond this machine unless you say so with --listen. SIGTERM and SIGINT let requests finish and stop
    /// the server within 10 seconds, after the time of stop_notice if that is set. An acknowledged put is on disk: the
    /// server may be killed at any moment.
    #[command(after_help = exit::HELP)]
    Server(ServerArgs),
    /// Run a manager of a cluster.
    ///
    /// Managers own the map of the cluster: its servers, and what each of them has. One, three or five managers agree on it.
    /// The first founds the cluster (`[found]` in its configuration) and lets others join.
    #[command(after_help = exit::HELP)]
    Manager(RoleArgs),
    /// Run a meta server of a cluster, which keeps metadata.
    #[command(after_help = exit::HELP)]
    Meta(RoleArgs),
    /// Run a data server of a cluster, which keeps the objects' bytes.
    #[command(after_help = exit::HELP)]
    Data(RoleArgs),
    /// Run a proxy of a cluster, which serves S3.
    #[command(after_help = exit::HELP)]
    Proxy(RoleArgs),
    /// Make a token with which another server joins a cluster.
    ///
    /// Prints the token and the lines for the new server's configuration. Run it with the configuration of a manager. The
    /// token is good as long as the manager that made it runs, for 24 hours at most.
    #[command(after_help = exit::HELP)]
    Token(TokenArgs),
    /// Make a secret for the machines of a new cluster: `larder secret > FILE`.
    ///
    /// Any machine that has it can join the cluster. Give each the same file, readable by its owner alone (chmod 600), and
    /// name it with --secret-file.
    #[command(after_help = exit::HELP)]
    Secret,
    /// Show the state of a running store, its space and its buckets, and a cluster's servers.
    ///
    /// The first line says what is wrong, and what to do. Run it as the user of the single node, or as root. In a cluster it
    /// asks the managers, with the identity of a server on this machine. Exits with 0 if all is well: in a cluster, if every
    /// server answers and every placement group and volume has all its copies. Exits with 1 if not, or if no server runs.
    /// With --breakdown it exits with 0 if every server reported its counts, and with 1 if the sums lack some.
    #[command(after_help = exit::HELP)]
    Status(StatusArgs),
    /// Move all data off a meta or data server, before you remove it.
    ///
    /// The server goes on serving until everything has left it; `larder status` shows how much is left. Run it with the
    /// configuration of a manager.
    #[command(after_help = exit::HELP)]
    Drain(DrainArgs),
    /// Remove a server from a cluster for good.
    ///
    /// Without --yes it prints what would be lost and changes nothing. A server that has the last copy of something is not
    /// removed. The process of a removed server ends, and never joins the cluster again. Run it with the configuration of a
    /// manager.
    #[command(after_help = exit::HELP)]
    Remove(RemoveArgs),
    /// Drain a disk of a data server, or remove it for good.
    Disk {
        #[command(subcommand)]
        command: DiskCommand,
    },
    /// Show, pause or resume the moves of volumes that keep a cluster's disks evenly used.
    ///
    /// The managers move volumes from fuller disks to emptier ones by themselves, when a disk joins or one is fuller than
    /// others. Run it with the configuration of a manager.
    Rebalance {
        #[command(subcommand)]
        command: RebalanceCommand,
    },
    /// Rotate root's keys of a store or a cluster while it runs, or show which ones servers accept.
    Keys {
        #[command(subcommand)]
        command: KeysCommand,
    },
    /// Recover a cluster's managers when too many of their directories are lost.
    ///
    /// Meta and data servers keep the map of the cluster. `larder recover make` makes a recovery from their copies, and
    /// `larder recover take` applies it to each directory. docs/operations.md says when to do so, and how, step by step.
    Recover {
        #[command(subcommand)]
        command: RecoverCommand,
    },
    /// Show what buckets have, and show or set the number of copies that a bucket's puts wait for.
    Bucket {
        #[command(subcommand)]
        command: BucketCommand,
    },
    /// Run a whole cluster on this machine, for trying out.
    ///
    /// Every role of every node is a process of its own. This process restarts those that exit. SIGTERM stops all, and so
    /// does the end of this process, however it comes.
    #[command(after_help = exit::HELP)]
    DevCluster(DevClusterArgs),
    /// Serve S3 over somebody else's object store, many small objects packed into few large blobs.
    ///
    /// Objects gather in DIR and go to the backend as blobs of about 1 GiB, or when the oldest has waited for --flush-ms. An
    /// acknowledged put is on this machine's disk, or, with --ack uploaded, in the backend: the process may be killed at any
    /// moment. `larder pack inspect` and `larder pack extract` read blobs without Larder's directory.
    #[command(after_help = exit::HELP)]
    Pack(Box<PackArgs>),
    /// Join stores as regions, each of which takes writes and has all objects.
    Region {
        #[command(subcommand)]
        command: RegionCommand,
    },
    /// Check a stopped store, or a stopped server of a cluster, without changing anything.
    ///
    /// Of a store it verifies the log's chain, the index against the log, that extents neither overlap nor leak, and every
    /// object's checksums. Of a server it verifies what must hold without the others. Of a manager that is log and map; of a
    /// meta server log, index, and rows against each other; of a data server superblock and headers. The report goes to
    /// stdout; its last line is the summary. Exits with 0 only if all is sound, with 1 if anything is not.
    #[command(after_help = exit::HELP)]
    Inspect(InspectArgs),
    /// Check whether this machine is fit for `larder server`: directory, disk, clock, limits, ports, other machines.
    ///
    /// Run it as the server's user, with the server's DIR and settings, before the first start or when something is wrong.
    /// It says what is wrong, and what to do. To see how long a sync takes, it writes one small file into DIR, or above it
    /// if DIR is not there yet, and removes it. Exits with 1 if a server would not start on this machine, or its data would
    /// not be safe. It does not check the store's contents: `larder inspect` does.
    #[command(after_help = exit::HELP)]
    Doctor(DoctorArgs),
    /// Measure an S3 endpoint, replay a trace, or fill a store for a trial.
    Bench {
        #[command(subcommand)]
        command: BenchTool,
    },
    /// Print a script that completes commands and options in a shell.
    ///
    /// Packages install these scripts. By hand, for bash: `larder completions bash >
    /// /etc/bash_completion.d/larder`.
    Completions {
        /// Shell that the script is for.
        shell: clap_complete::Shell,
    },
    /// Write man pages, one for each command.
    ///
    /// Packages install these pages. `man -l DIR/larder.1` shows the first without installing it.
    Man {
        /// Directory for the pages; made if it is missing. Existing pages are replaced.
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Directory of the store; made if it is missing.
    pub(crate) dir: PathBuf,
    /// Address for S3, such as 127.0.0.1:9000 (the default) or 0.0.0.0:9000. Port 0 lets the system
    /// choose.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Address where the others reach a machine of the cluster, such as host1:7000. Give it once for each machine, this one
    /// too. The first 1, 3 or 5 are managers.
    #[arg(long = "peer", value_name = "HOST:PORT")]
    pub(crate) peers: Vec<String>,
    /// The peer that this machine is. Default: the one peer that is an address of this machine.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) me: Option<String>,
    /// File with the secret that all peers share, made with `larder secret`. Needed until a machine has joined.
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Address for Prometheus' /metrics; "off" for none. Default: 127.0.0.1:9001. The start fails if the address is taken.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics_listen: Option<String>,
    /// Configuration file (TOML); see docs/configuration.md. Command-line options override it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct PackArgs {
    #[command(subcommand)]
    pub(crate) tool: Option<PackTool>,
    #[command(flatten)]
    pub(crate) serve: Option<PackServeArgs>,
}

/// Commands of `larder pack` beside serving.
#[derive(Debug, Subcommand)]
pub(crate) enum PackTool {
    /// Show a blob's contents as lines of JSON: its trailer, then every entry of its index.
    Inspect {
        /// The blob, as a file.
        blob: PathBuf,
        /// Verify the bytes of every object too. Exits with 1 if any does not verify.
        #[arg(long)]
        verify: bool,
    },
    /// Show a worker's requests to its backend, and the bill.
    ///
    /// If the worker does not run, shows what it last wrote. Exits with 0 only if the worker runs, and with 1 if not. The
    /// bill has the cost of the requests at the prices of the worker's configuration. Beside it stands their cost had
    /// clients made them to the backend themselves.
    Status {
        /// Directory of the worker.
        dir: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Extract objects from a blob into DIR/BUCKET/KEY.
    ///
    /// Existing files are left alone. Exits with 1 if an object could not be extracted.
    Extract {
        /// The blob, as a file.
        blob: PathBuf,
        /// Directory for the objects.
        dir: PathBuf,
        /// Extract only this object; may be repeated. Default: all objects.
        #[arg(long = "key", value_name = "BUCKET/KEY")]
        keys: Vec<String>,
    },
}

/// A bucket, and the directory that shows it.
#[derive(Debug, Clone)]
pub(crate) struct MountArg {
    pub(crate) bucket: BucketName,
    pub(crate) path: PathBuf,
}

impl MountArg {
    /// `BUCKET:PATH`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (bucket, path) = text.split_once(':').ok_or("write BUCKET:PATH")?;
        if path.is_empty() {
            return Err("name the directory behind the colon: BUCKET:PATH".into());
        }
        let bucket = BucketName::new(bucket).map_err(|error| error.to_string())?;
        Ok(Self { bucket, path: PathBuf::from(path) })
    }
}

#[derive(Debug, Args)]
pub(crate) struct PackServeArgs {
    /// Directory of the worker: log, spool and index; made if it is missing.
    pub(crate) dir: PathBuf,
    /// Object store for the blobs: file:///DIRECTORY, s3://BUCKET/PREFIX?endpoint=URL&region=NAME,
    /// gs://BUCKET/PREFIX?endpoint=URL or az://CONTAINER/PREFIX?account=NAME&endpoint=URL. Keys come from the environment:
    /// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY, and others
    /// that those stores' own tools know.
    #[arg(long, value_name = "URL")]
    pub(crate) backend: String,
    /// Address for S3, such as 127.0.0.1:9000 (the default). Port 0 lets the system choose. "off"
    /// for none, only with --mount.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Show the bucket's objects as files in the directory PATH, which must be empty. Linux, as root or with fusermount3.
    #[arg(long, value_name = "BUCKET:PATH", value_parser = MountArg::parse)]
    pub(crate) mount: Option<MountArg>,
    /// Address for Prometheus' /metrics; "off" for none. Default: 127.0.0.1:9001. The start fails if the address is taken.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics_listen: Option<String>,
    /// Configuration file (TOML). Command-line options override it. Settings: listen, metrics_listen, region, domains,
    /// html_forms, presigned_v2, access_log, stop_notice, log_format, and the tables [prices] and [packing].
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Durability that a put needs before it is acknowledged: on this machine's disk, or in the
    /// backend.
    #[arg(long, value_enum, default_value_t = AckArg::Local)]
    pub(crate) ack: AckArg,
    /// Size of a full blob, in MiB of objects: 1 to 4096.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) blob_mib: u32,
    /// Longest time that a change waits before its blob is uploaded, in milliseconds.
    #[arg(long, value_name = "N", default_value_t = 5000)]
    pub(crate) flush_ms: u64,
    /// Size of the largest object that is packed, in KiB: at most 8192, and at most a blob. Larger objects go to the backend
    /// on their own. Default: 8192, or --blob-mib if that is smaller.
    #[arg(long, value_name = "N")]
    pub(crate) packed_kib: Option<u32>,
    /// Policy for the objects that share a blob: those that arrive together, keys with the same beginning, objects of about
    /// one size, or the configuration file's rules. Default: the file's policy, or arrival.
    #[arg(long, value_enum)]
    pub(crate) packing: Option<PackingArg>,
    /// Number of threads that write objects into DIR, each for other groups. Default: one for each core, 4 to 9.
    #[arg(long, value_name = "N")]
    pub(crate) packing_threads: Option<usize>,
    /// Most MiB of objects that wait in DIR, at least two blobs. Beyond it puts get 503.
    #[arg(long, value_name = "N", default_value_t = 8192)]
    pub(crate) spool_mib: u32,
    /// Repack a blob once less than this percentage of its bytes is live; 0 for never. At 80, blobs take at most 1.25 times
    /// the live bytes, and each freed byte costs at most four copied ones.
    #[arg(long, value_name = "PERCENT", default_value_t = 80)]
    pub(crate) repack_below: u8,
    /// Time that unneeded blobs and objects stay in the backend, in seconds. A restored copy of DIR that is older may name
    /// objects that are gone.
    #[arg(long, value_name = "N", default_value_t = 86400)]
    pub(crate) grace_s: u64,
    /// Most MiB per second that repacking reads, and that backups write.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(crate) background_mib_s: u32,
    /// Time from one backup of the index to the next, in seconds; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 3600)]
    pub(crate) backup_s: u64,
    /// Rebuild the index without blobs that are missing or damaged. DIR/lost.txt then lists the keys that are lost, or may
    /// be.
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// Most requests a second to the backend, 0.1 or more; reads go first. Default: as many as the
    /// backend takes.
    #[arg(long, value_name = "N")]
    pub(crate) requests_per_second: Option<f64>,
    /// Budget for requests in a day, in the currency of [prices]. When it is used up uploads wait;
    /// reads do not. Default: no budget.
    #[arg(long, value_name = "AMOUNT")]
    pub(crate) spend_per_day: Option<f64>,
    /// Size of the cache in DIR for what was read from blobs, in MiB: 0 for none, else at least 16.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) cache_mib: u32,
    /// Most KiB to read ahead where a client reads keys in order: 0 for none, at most 16384. Needs a cache. Default: 2048,
    /// or 0 without a cache.
    #[arg(long, alias = "ahead-kib", value_name = "N")]
    pub(crate) readahead_kib: Option<u32>,
    /// Take the backend over from a worker whose directory is lost; with --worker, that worker's place in it. Objects that
    /// the worker had not uploaded are lost. If it still runs, it stops.
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Share the backend with other workers, under this name: 1 to 32 of a-z, 0-9 and -. DIR keeps
    /// the name: a start with another is refused.
    #[arg(long, value_name = "NAME", value_parser = worker_name)]
    pub(crate) worker: Option<WorkerName>,
    /// Address where other workers get changes, and read objects, that are not in the backend yet, over TLS. Port 0 lets
    /// the system choose. Default: none; they learn from the backend alone.
    #[arg(long, value_name = "ADDR", requires = "worker")]
    pub(crate) peer_listen: Option<String>,
    /// Address under which other workers reach --peer-listen, such as host1:9002. Default: that address; needed if it is
    /// 0.0.0.0.
    #[arg(long, value_name = "HOST:PORT", requires = "peer_listen")]
    pub(crate) peer_advertise: Option<String>,
    /// Interval of polling the backend for changes of other workers, in seconds.
    #[arg(long, alias = "look-s", value_name = "N", default_value_t = 10, requires = "worker")]
    pub(crate) poll_interval_s: u64,
    /// Time that an object stays after another worker has replaced or deleted it, in seconds. A worker that could not look
    /// in the backend for a third of that time answers 503.
    #[arg(long, alias = "kept-s", value_name = "N", default_value_t = 1800, requires = "worker")]
    pub(crate) superseded_retention_s: u64,
}

fn worker_name(text: &str) -> Result<WorkerName, String> {
    WorkerName::new(text).map_err(|error| error.to_string())
}

fn bucket_name(text: &str) -> Result<BucketName, String> {
    BucketName::new(text).map_err(|error| error.to_string())
}

/// The durability that a put waits for, as it is named on the command line.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum AckArg {
    Local,
    Uploaded,
}

/// A packing policy, as it is named on the command line and in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PackingArg {
    Arrival,
    Prefix,
    Size,
    Custom,
}

#[derive(Debug, Args)]
pub(crate) struct RoleArgs {
    /// Configuration file (TOML); see docs/configuration.md.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Stop when stdin ends, as it does once the process that started this one is gone.
    #[arg(long, hide = true)]
    pub(crate) while_stdin_open: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// Configuration file of a manager of this machine, or directory of `larder server --peer`.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Name of the new server, unlike that of any other.
    #[arg(long)]
    pub(crate) name: String,
    /// Role of the new server.
    #[arg(long, value_enum)]
    pub(crate) role: RoleName,
    /// Number of the machine that it runs on. Copies go to different machines where there are
    /// enough.
    #[arg(long, value_name = "N")]
    pub(crate) machine: u32,
}

/// A role, as it is named on the command line.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum RoleName {
    Manager,
    Meta,
    Data,
    Proxy,
}

impl From<RoleName> for ServerRole {
    fn from(name: RoleName) -> Self {
        match name {
            RoleName::Manager => Self::Manager,
            RoleName::Meta => Self::Meta,
            RoleName::Data => Self::Data,
            RoleName::Proxy => Self::Proxy,
        }
    }
}

fn read_policy(name: &str) -> Result<Policy, String> {
    let known = Policy::ALL.map(Policy::name);
    let at = known.iter().position(|known| *known == name);
    at.map(|at| Policy::ALL[at]).ok_or_else(|| format!("it is one of {}", known.join(", ")))
}

#[derive(Debug, Args)]
pub(crate) struct DevClusterArgs {
    /// Directory of the cluster; made if it is missing.
    pub(crate) dir: PathBuf,
    /// Number of nodes of a new cluster, 1 to 15. Default: 3.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=15))]
    pub(crate) nodes: Option<u8>,
    /// Print one line of JSON on stdout when the cluster is ready, and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not restart processes that exit.
    #[arg(long)]
    pub(crate) no_restart: bool,
    /// Read policy of the proxies of a new cluster, as `read_policy` in their configurations.
    #[arg(long, value_name = "POLICY", value_parser = read_policy)]
    pub(crate) read_policy: Option<Policy>,
}

/// Commands that measure, and that prepare a measurement.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchTool {
    #[command(flatten)]
    Measure(larder_bench::BenchCommand),
    /// Write objects into the store of a single node that is not running, for trials with many.
    ///
    /// They go into index and volumes without requests, many times faster than puts. DIR is made if it is missing. All
    /// objects have one size, at most 8MiB, in a bucket of their own: fill-SEED/000000000000 and so on. A second fill with
    /// the same seed goes on behind the last. Afterwards they are objects like all others. Use a store that may be lost: the
    /// command writes and removes nothing else, but the disk may become full.
    ///
    /// The command prints what it wrote to stdout.
    #[command(after_help = exit::HELP)]
    Fill(FillArgs),
}

#[derive(Debug, Args)]
pub(crate) struct FillArgs {
    /// Directory of the store.
    pub(crate) dir: PathBuf,
    /// Number of objects to write.
    #[arg(long, value_name = "N")]
    pub(crate) objects: u64,
    /// Size of each object, such as 100, 4KiB or 1MiB. Objects of up to 2KiB lie in the index
    /// alone.
    #[arg(long, value_name = "SIZE", default_value = "100")]
    pub(crate) size: ByteSize,
    /// Bucket of all objects, made if it is missing. It may hold no objects but those of fills.
    #[arg(long, value_name = "NAME", default_value = "larder-fill", value_parser = bucket_name)]
    pub(crate) bucket: BucketName,
    /// Seed of the keys, and so of the contents.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Configuration file of the server, if its data is on a block device.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Directory of the store or server; no process may be running on it.
    pub(crate) dir: PathBuf,
    /// Configuration file of the server, if its data is on a block device.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Skip reading every object's data: check a store's metadata and space only.
    #[arg(long)]
    pub(crate) metadata_only: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_worker_have_their_earlier_names_too() {
        let given = |names: [&str; 3]| {
            let [interval, retention, readahead] = names;
            let words = ["larder", "pack", "dir", "--backend", "file:///blobs", "--worker", "a"];
            let values = [interval, "3", retention, "400", readahead, "5"];
            let program = Program::try_parse_from(words.into_iter().chain(values)).unwrap();
            let Command::Pack(pack) = program.command else { panic!("it packs") };
            let args = pack.serve.expect("it serves");
            (args.poll_interval_s, args.superseded_retention_s, args.readahead_kib)
        };
        for names in [
            ["--poll-interval-s", "--superseded-retention-s", "--readahead-kib"],
            ["--look-s", "--kept-s", "--ahead-kib"],
        ] {
            assert_eq!(given(names), (3, 400, Some(5)), "{names:?}");
        }
    }

    #[test]
    fn a_mount_is_a_bucket_and_a_path() {
        let mount = MountArg::parse("files:/mnt/a:b").unwrap();
        assert_eq!((mount.bucket.as_str(), mount.path), ("files", PathBuf::from("/mnt/a:b")));
        for wrong in ["files", "files:", ":/mnt", "Files:/mnt"] {
            assert!(MountArg::parse(wrong).is_err(), "{wrong}");
        }
    }
}
