//! The command line.

mod operate;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use larder_bench::units::ByteSize;
use larder_pack::WorkerName;
use larder_protocol::manager::state::ServerRole;
use larder_protocol::scheduler::Policy;
use larder_types::BucketName;

use crate::region::RegionCommand;
use crate::{exit, release};
pub(crate) use operate::{
    BucketCommand, DiskCommand, DoctorArgs, DrainArgs, KeysCommand, RebalanceCommand,
    RecoverCommand, RemoveArgs, StatusArgs,
};

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
    /// With --peer it is one machine of a cluster of equal ones: the same command on each of them, in any order, with
    /// the same list and the same secret (`larder secret`). Without --peer it runs as a single node.
    ///
    /// The first start makes the directory, draws root credentials (kept in DIR/credentials.toml,
    /// readable by you alone, and printed once, if it is started in a terminal) and prints a line for the AWS command line. Nothing
    /// listens beyond this machine unless you say so with --listen. SIGTERM and SIGINT let requests
    /// finish and stop the server within 10 seconds, and the time of stop_notice besides, if that is set. A
    /// put that was answered is on disk: the server may be killed at any moment.
    #[command(after_help = exit::HELP)]
    Server(ServerArgs),
    /// Run a manager of a cluster.
    ///
    /// Managers own the map of the cluster: who is in it, which servers have what. One, three or five of
    /// them agree. The first founds the cluster (`[found]` in its configuration) and lets others join.
    #[command(after_help = exit::HELP)]
    Manager(RoleArgs),
    /// Run a meta server of a cluster: it keeps metadata.
    #[command(after_help = exit::HELP)]
    Meta(RoleArgs),
    /// Run a data server of a cluster: it keeps the objects' bytes.
    #[command(after_help = exit::HELP)]
    Data(RoleArgs),
    /// Run a proxy of a cluster: it serves S3.
    #[command(after_help = exit::HELP)]
    Proxy(RoleArgs),
    /// Let another server join a cluster.
    ///
    /// Prints a join token and the lines for the new server's configuration. To be run with the configuration
    /// of a manager. The token is good as long as the manager that made it runs.
    #[command(after_help = exit::HELP)]
    Token(TokenArgs),
    /// Make a secret for the machines of a new cluster: `larder secret > FILE`.
    ///
    /// Whoever has it can become a machine of the cluster. Give each the same file, readable by its owner alone
    /// (chmod 600), and name it with --secret-file.
    #[command(after_help = exit::HELP)]
    Secret,
    /// Show the state of a running store, its space and its buckets; of a cluster, its servers too.
    ///
    /// The first line says what is wrong, and what to do. A single node is asked itself, by its user or by root. A cluster's
    /// managers are asked with the identity of a server on this machine. Exits with 0 if all is well: in a cluster, if every
    /// server answers and every placement group and volume has all its copies. Exits with 1 if not, or if no server runs.
    #[command(after_help = exit::HELP)]
    Status(StatusArgs),
    /// Have what a meta or data server holds go elsewhere, before it is taken away.
    ///
    /// It goes on serving until everything has left it; `larder status` shows how much is left. To be run with
    /// the configuration of a manager.
    #[command(after_help = exit::HELP)]
    Drain(DrainArgs),
    /// Remove a server from a cluster for good.
    ///
    /// Without --yes it prints what would be lost and changes nothing. A server that has the last copy of
    /// something is not removed. Its process ends, and never becomes part of the cluster again. To be run with the
    /// configuration of a manager.
    #[command(after_help = exit::HELP)]
    Remove(RemoveArgs),
    /// Drain a disk of a data server, or remove it for good.
    Disk {
        #[command(subcommand)]
        command: DiskCommand,
    },
    /// Show how evenly a cluster's disks are used and which volumes move for it, pause that or let it go on.
    ///
    /// The managers move volumes from fuller disks to emptier ones by themselves, when a disk joins or one is fuller than
    /// others. To be run with the configuration of a manager.
    Rebalance {
        #[command(subcommand)]
        command: RebalanceCommand,
    },
    /// Rotate root's keys of a store or a cluster while it runs, or show which are taken.
    Keys {
        #[command(subcommand)]
        command: KeysCommand,
    },
    /// Make a cluster's managers anew when too many of their directories are lost.
    ///
    /// Meta and data servers keep the map of the cluster. `larder recover make` makes a recovery of their copies, and `larder recover
    /// take` has each directory take it. The page on operations says when, and step by step how.
    Recover {
        #[command(subcommand)]
        command: RecoverCommand,
    },
    /// Show or set how many copies a bucket's puts wait for.
    Bucket {
        #[command(subcommand)]
        command: BucketCommand,
    },
    /// Run a whole cluster on this machine, for trying out.
    ///
    /// Every role of every node is a process of its own. What dies is started again; SIGTERM stops all,
    /// and so does the end of this process, however it comes.
    #[command(after_help = exit::HELP)]
    DevCluster(DevClusterArgs),
    /// Serve S3 over somebody else's object store, many small objects packed into few large blobs.
    ///
    /// Objects gather in DIR and go to the backend as blobs of about 1 GiB, or when the oldest has waited for the
    /// flush timeout. A put that was answered is on this machine's disk (or, with --ack uploaded, in the backend):
    /// the process may be killed at any moment. Blobs can be read without Larder's directory: `larder pack inspect`
    /// and `larder pack extract`.
    #[command(after_help = exit::HELP)]
    Pack(PackArgs),
    /// Have a store be one of several regions, each of which takes writes and has all objects.
    Region {
        #[command(subcommand)]
        command: RegionCommand,
    },
    /// Check a stopped store, or a stopped server of a cluster, without changing anything.
    ///
    /// Of a store it verifies the log's chain, the index against the log, that extents neither overlap nor
    /// leak, and every object's checksums. Of a manager, meta or data server it verifies what must hold
    /// without the others: log and map; log, index, and rows against each other; superblock and headers.
    /// The report goes to stdout; its last line is the summary. Exits with 0 only if all is sound, with 1
    /// if anything is not.
    #[command(after_help = exit::HELP)]
    Inspect(InspectArgs),
    /// Check whether this machine is fit for `larder server`: directory, disk, clock, limits, ports, other machines.
    ///
    /// Run it as the server's user, with the server's DIR and settings, before the first start or when something is wrong.
    /// It says what is wrong, and what to do. It writes one small file into DIR, or above it if DIR is not there yet, to see
    /// how long a sync takes, and removes it. Exits with 1 if this machine would keep a server from starting, or what the
    /// server keeps would not be safe. What is in the store is for `larder inspect`.
    #[command(after_help = exit::HELP)]
    Doctor(DoctorArgs),
    /// Measure an S3 endpoint, replay a trace, run the floor server, or fill a store for a trial.
    Bench {
        #[command(subcommand)]
        command: BenchTool,
    },
    /// Print a script with which a shell completes commands and options.
    ///
    /// Packages install these. By hand, of bash: `larder completions bash > /etc/bash_completion.d/larder`.
    Completions {
        /// Shell that the script is for.
        shell: clap_complete::Shell,
    },
    /// Write man pages, one for each command.
    ///
    /// Packages install these. `man -l DIR/larder.1` shows the first without installing it.
    Man {
        /// Directory for them; made if it is missing. Pages that are there are replaced.
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
    /// A machine of the cluster, where the others reach it, such as host1:7000; once for each, this one too. The
    /// first 1, 3 or 5 are its managers.
    #[arg(long = "peer", value_name = "HOST:PORT")]
    pub(crate) peers: Vec<String>,
    /// Which of the peers this machine is. Found out if only one of them is an address of this machine.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) me: Option<String>,
    /// File with the secret that all peers share, made with `larder secret`. Needed until a machine has joined.
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Address for Prometheus' /metrics; "off" for none. Default: 127.0.0.1:9001; the start
    /// fails if that is taken.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics_listen: Option<String>,
    /// Configuration file (TOML); see docs/configuration.md. Options on the command line override it.
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

/// What can be done beside serving.
#[derive(Debug, Subcommand)]
pub(crate) enum PackTool {
    /// Show what is in a blob, as lines of JSON: its trailer, then every entry of its index.
    Inspect {
        /// The blob, as a file.
        blob: PathBuf,
        /// Verify the bytes of every object too. Exits with 1 if any does not verify.
        #[arg(long)]
        verify: bool,
    },
    /// Show what the worker of a directory has asked of its backend, and the bill.
    ///
    /// Works while the worker runs, and tells what it said last if it does not. Exits with 0 only if it runs, and
    /// with 1 if not. The bill is what the requests cost at the prices of the worker's configuration, beside what
    /// they would have cost had clients made them to the backend themselves.
    Status {
        /// Directory of the worker.
        dir: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Get objects out of a blob, into DIR/BUCKET/KEY.
    ///
    /// Files that are there are left alone. Exits with 1 if any object wanted could not be got.
    Extract {
        /// The blob, as a file.
        blob: PathBuf,
        /// Where the objects go.
        dir: PathBuf,
        /// Only this object; may be repeated. All, if it is left out.
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

#[derive(Debug, Args)]
pub(crate) struct PackServeArgs {
    /// Directory of the worker: log, spool and index; made if it is missing.
    pub(crate) dir: PathBuf,
    /// Where blobs go: file:///DIRECTORY, s3://BUCKET/PREFIX?endpoint=URL&region=NAME,
    /// gs://BUCKET/PREFIX?endpoint=URL or az://CONTAINER/PREFIX?account=NAME&endpoint=URL. Keys are taken from the
    /// environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS,
    /// AZURE_STORAGE_ACCOUNT_KEY, and others that those stores' own tools know.
    #[arg(long, value_name = "URL")]
    pub(crate) backend: String,
    /// Address for S3, such as 127.0.0.1:9000 (the default). Port 0 lets the system choose. "off" for none, with --mount.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Show the bucket's objects as files in the directory PATH, which must be empty. Linux, as root or with fusermount3.
    #[arg(long, value_name = "BUCKET:PATH", value_parser = MountArg::parse)]
    pub(crate) mount: Option<MountArg>,
    /// Address for Prometheus' /metrics; "off" for none. Default: 127.0.0.1:9001; the start
    /// fails if that is taken.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics_listen: Option<String>,
    /// Configuration file (TOML) with listen, metrics_listen, region, domains, html_forms, presigned_v2, access_log, stop_notice, log_format, and the tables [prices] and [packing].
    /// Options on the command line override it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What a put that is answered has behind it: this machine's disk, or the backend.
    #[arg(long, value_enum, default_value_t = AckArg::Local)]
    pub(crate) ack: AckArg,
    /// MiB of objects at which a blob is full.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) blob_mib: u32,
    /// Milliseconds for which the oldest change of a blob waits at most before the blob goes up.
    #[arg(long, value_name = "N", default_value_t = 5000)]
    pub(crate) flush_ms: u64,
    /// KiB of the largest object that is packed, at most 8192 and a blob. Larger ones become objects of their
    /// own. Default: 8192, or a blob.
    #[arg(long, value_name = "N")]
    pub(crate) packed_kib: Option<u32>,
    /// What goes together: what arrives together, keys with the same beginning, objects of about one size, or what the
    /// rules of the configuration file say. Default: arrival, or what the file says.
    #[arg(long, value_enum)]
    pub(crate) packing: Option<PackingArg>,
    /// Threads that write objects into DIR at once, each for other groups. Default: one for each core, 4 to 9.
    #[arg(long, value_name = "N")]
    pub(crate) packing_threads: Option<usize>,
    /// MiB of objects that may wait in DIR; beyond it puts are answered 503. At least two blobs.
    #[arg(long, value_name = "N", default_value_t = 8192)]
    pub(crate) spool_mib: u32,
    /// Percent of a blob's objects that are live below which it is repacked; 0 for never. At 80, blobs take at most
    /// 1.25 times what is live, and a byte that is freed costs at most four that are copied.
    #[arg(long, value_name = "PERCENT", default_value_t = 80)]
    pub(crate) repack_below: u8,
    /// Seconds for which blobs and objects that nothing needs any more stay in the backend. Restored copies of DIR that
    /// are older than this may name what is gone.
    #[arg(long, value_name = "N", default_value_t = 86400)]
    pub(crate) grace_s: u64,
    /// MiB per second that repacking reads, and backups write.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(crate) background_mib_s: u32,
    /// Seconds from one backup of the index to the next; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 3600)]
    pub(crate) backup_s: u64,
    /// Rebuild the index without blobs that are missing or damaged. Which keys are lost, or may be, is written to
    /// DIR/lost.txt.
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// Requests a second that the backend is asked at most; readers go first. Default: as many as it takes.
    #[arg(long, value_name = "N")]
    pub(crate) requests_per_second: Option<f64>,
    /// What requests may cost in a day, in the currency of [prices]. When that is used up uploads wait; reads do not.
    #[arg(long, value_name = "AMOUNT")]
    pub(crate) spend_per_day: Option<f64>,
    /// MiB of DIR that keep what was read from blobs: 0 for none, else at least 16.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) cache_mib: u32,
    /// KiB that are read ahead at most where keys are read in their order: 0 for none, at most 16384. Wants a cache.
    /// Default: 2048, or 0 without a cache.
    #[arg(long, value_name = "N")]
    pub(crate) ahead_kib: Option<u32>,
    /// Take the backend over from a worker whose directory is lost; with --worker, that worker's place in it. What that
    /// worker had not uploaded is lost; if it still runs, it stops.
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Share the backend with other workers, under this name: 1 to 32 of a-z, 0-9 and -. DIR keeps it: another is refused.
    #[arg(long, value_name = "NAME", value_parser = worker_name)]
    pub(crate) worker: Option<WorkerName>,
    /// Address at which other workers hear of changes, and read objects, that are not in the backend yet. What it sends is
    /// not encrypted. Port 0 lets the system choose. Default: none; they learn from the backend alone.
    #[arg(long, value_name = "ADDR", requires = "worker")]
    pub(crate) peer_listen: Option<String>,
    /// Where other workers reach that address, if it is not the same, such as host1:9002.
    #[arg(long, value_name = "HOST:PORT", requires = "peer_listen")]
    pub(crate) peer_advertise: Option<String>,
    /// Seconds from one look in the backend for what other workers changed to the next.
    #[arg(long, value_name = "N", default_value_t = 10, requires = "worker")]
    pub(crate) look_s: u64,
    /// Seconds for which what another worker has replaced or deleted stays. A worker that could not look in the backend for
    /// a third of it answers 503.
    #[arg(long, value_name = "N", default_value_t = 1800, requires = "worker")]
    pub(crate) kept_s: u64,
}

fn worker_name(text: &str) -> Result<WorkerName, String> {
    WorkerName::new(text).map_err(|error| error.to_string())
}

fn bucket_name(text: &str) -> Result<BucketName, String> {
    BucketName::new(text).map_err(|error| error.to_string())
}

/// When a put is answered, as it is named on the command line.
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
    /// Stop when stdin ends, as it does when the process that started this one is gone.
    #[arg(long, hide = true)]
    pub(crate) while_stdin_open: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// Configuration file of a manager of this machine, or directory of `larder server --peer`.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Name of the new server; no other has it.
    #[arg(long)]
    pub(crate) name: String,
    /// What it does.
    #[arg(long, value_enum)]
    pub(crate) role: RoleName,
    /// Number of the machine that it runs on: copies lie on different machines where there are enough.
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
    /// Nodes of a new cluster, 1 to 15; 3 if it is left out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=15))]
    pub(crate) nodes: Option<u8>,
    /// Print one line of JSON on stdout when the cluster is ready, and nothing else there.
    #[arg(long)]
    pub(crate) json: bool,
    /// Leave dead what dies.
    #[arg(long)]
    pub(crate) no_restart: bool,
    /// Read policy of the proxies of a new cluster, as `read_policy` in their configurations.
    #[arg(long, value_name = "POLICY", value_parser = read_policy)]
    pub(crate) read_policy: Option<Policy>,
    /// What makes the processes of a new cluster worse, as the section `ablation` of their configurations.
    #[cfg(feature = "ablation")]
    #[arg(long, hide = true, value_name = "TOML", default_value = "")]
    pub(crate) ablation: toml::Table,
    /// Proxy of a new cluster that writes in order; a node's number.
    #[cfg(feature = "ablation")]
    #[arg(long, hide = true, value_name = "N")]
    pub(crate) ordered_node: Option<usize>,
    /// Further of that section, of one node.
    #[cfg(feature = "ablation")]
    #[arg(long, hide = true, value_name = "TOML", default_value = "")]
    pub(crate) worse: toml::Table,
    /// That node's number.
    #[cfg(feature = "ablation")]
    #[arg(long, hide = true, value_name = "N")]
    pub(crate) worse_node: Option<usize>,
}

/// Commands that measure, and that prepare what is measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchTool {
    #[command(flatten)]
    Measure(larder_bench::BenchCommand),
    /// Write objects into the store of a single node that is not running, for trials with many.
    ///
    /// They go into index and volumes without requests, many times faster than puts. DIR is made if it is missing. All are
    /// of one size, at most 8MiB, in a bucket of their own: fill-SEED/000000000000 and so on. A second fill with the same
    /// seed goes on behind the last. Afterwards they are objects like all others. Use a store that may be lost: the command
    /// writes and removes nothing else, but the disk may become full.
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
    /// Bytes of each object: 100, 4KiB, 1MiB. Up to 2KiB lie in the index alone.
    #[arg(long, value_name = "SIZE", default_value = "100")]
    pub(crate) size: ByteSize,
    /// Bucket of all objects, made if it is missing. It may have no objects but those of fills.
    #[arg(long, value_name = "NAME", default_value = "larder-fill", value_parser = bucket_name)]
    pub(crate) bucket: BucketName,
    /// Number that keys, and so contents, are made from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Configuration file of the server, if its data lies on a block device.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Directory of the store or server; no process may be running on it.
    pub(crate) dir: PathBuf,
    /// Configuration file of the server, if its data lies on a block device.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Skip reading every object's data: check a store's metadata and space only.
    #[arg(long)]
    pub(crate) metadata_only: bool,
}
