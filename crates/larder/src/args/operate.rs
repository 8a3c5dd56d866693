//! Arguments of the commands that show a store's state, and of those that change a cluster.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use larder_types::WritePolicy;

use crate::exit;

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Directory of a store, of a machine of a cluster, of a development cluster or of a pack worker.
    #[arg(value_name = "DIR", required_unless_present = "config")]
    pub(crate) dir: Option<PathBuf>,
    /// Configuration file of a `larder manager`, `meta`, `data` or `proxy` on this machine, in place of DIR.
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Refresh every two seconds, until you stop it.
    #[arg(long)]
    pub(crate) watch: bool,
    /// Show operations of clients and of disks by size, and requests to meta servers by kind, since each server's start.
    #[arg(long)]
    pub(crate) breakdown: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Directory of a store or of a machine of a cluster, which may not exist yet.
    pub(crate) dir: PathBuf,
    /// Configuration file of the server, with its list of peers if it has one.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// Configuration file of a manager of this machine, or directory of `larder server --peer`.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Name of the server, as `larder status` shows it, or of a machine, such as host2:7000, for all its servers.
    pub(crate) name: String,
    /// Cancel the drain: data may go there again.
    #[arg(long)]
    pub(crate) undo: bool,
    /// Begin even if some copies of volumes find no place elsewhere. Those stay until there is one.
    #[arg(long, conflicts_with = "undo")]
    pub(crate) partly: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// Configuration file of a manager of this machine, or directory of `larder server --peer`.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Name of the server, as `larder status` shows it, or of a machine, such as host2:7000, for all its servers.
    pub(crate) name: String,
    /// Remove it. Without this, print what would be lost.
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DiskCommand {
    /// Move all data off a disk.
    #[command(after_help = exit::HELP)]
    Drain {
        #[command(flatten)]
        server: DrainArgs,
        /// Number of the disk, as `larder status` shows it.
        disk: u32,
    },
    /// Remove a disk for good, with all its data.
    ///
    /// Without --yes it prints what would be lost and changes nothing.
    #[command(after_help = exit::HELP)]
    Remove {
        #[command(flatten)]
        server: RemoveArgs,
        /// Number of the disk, as `larder status` shows it.
        disk: u32,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum RebalanceCommand {
    /// List the moves that would follow now.
    #[command(after_help = exit::HELP)]
    Plan {
        /// Configuration file of a manager of this machine, or directory of `larder server --peer`.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Show the use of each disk, and the numbers of volumes that move and that are to follow.
    #[command(after_help = exit::HELP)]
    Status {
        /// Configuration file of a manager of this machine, or directory of `larder server --peer`.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Begin no further move for balance until `larder rebalance start`.
    ///
    /// Moves under way go on to their end. The managers still make missing copies and empty disks
    /// that drain.
    #[command(after_help = exit::HELP)]
    Pause {
        /// Configuration file of a manager of this machine, or directory of `larder server --peer`.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Let volumes move for balance again.
    #[command(after_help = exit::HELP)]
    Start {
        /// Configuration file of a manager of this machine, or directory of `larder server --peer`.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

/// Where root's keys are kept.
#[derive(Debug, Args)]
pub(crate) struct KeysOf {
    /// Directory of a store, or of a machine of a cluster.
    #[arg(value_name = "DIR", required_unless_present = "config")]
    pub(crate) dir: Option<PathBuf>,
    /// Configuration file of a manager of this machine, in place of DIR.
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Show the access key that each server accepts, and whether clients still use the old one.
    #[command(after_help = exit::HELP)]
    Status {
        #[command(flatten)]
        of: KeysOf,
    },
    /// Replace root's keys on all servers. They accept the old keys, too, until `larder keys retire`.
    ///
    /// Names the file that has the new keys. Restarts no server. Exits with 1 if some proxies do
    /// not accept the new keys yet.
    #[command(after_help = exit::HELP)]
    Rotate {
        #[command(flatten)]
        of: KeysOf,
        /// File with the new keys, in the form of credentials.toml. Default: the keys are drawn.
        #[arg(long, value_name = "FILE")]
        keys: Option<PathBuf>,
        /// Refuse all old keys at once, for when somebody else may have them.
        #[arg(long)]
        at_once: bool,
        /// With --config, at the first rotation: file with the keys that proxies have now.
        #[arg(long, value_name = "FILE")]
        current: Option<PathBuf>,
        /// With --config: file to write the new keys to. It must not be there yet.
        #[arg(long, value_name = "FILE")]
        into: Option<PathBuf>,
    },
    /// Refuse the old keys, on all servers.
    ///
    /// Without --yes it prints whether clients still use the old keys, and changes nothing.
    #[command(after_help = exit::HELP)]
    Retire {
        #[command(flatten)]
        of: KeysOf,
        /// Refuse them. Without this, print whether clients still use them.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum RecoverCommand {
    /// Make a recovery from the maps that meta and data servers keep. Changes no directory.
    ///
    /// All processes of the cluster must be stopped. It chooses the latest map, and refuses if that map could lack anything
    /// that a server did.
    #[command(after_help = exit::HELP)]
    Make {
        /// Copies of `cluster-map` from all meta and data servers, and from proxies that have one. The `quorum/log` of a
        /// manager that is left helps, too.
        #[arg(value_name = "FILE", required = true)]
        maps: Vec<PathBuf>,
        /// A machine or a server whose directory is gone for good, by its name or id. May be repeated.
        #[arg(long, value_name = "NAME")]
        lost: Vec<String>,
        /// Go on even if the loss puts placement groups or volumes out of reach, or may include
        /// acknowledged puts.
        #[arg(long)]
        accept_loss: bool,
        /// File to write the recovery to. It has the key of a new authority: keep it secret, and
        /// delete it once every directory has taken it.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Apply a recovery to a directory. Run it on each machine, before you start anything.
    ///
    /// Every server gets a new identity, and every manager a new log. A manager's old log is kept
    /// beside the new one.
    #[command(after_help = exit::HELP)]
    Take {
        /// The recovery.
        #[arg(value_name = "RECOVERY")]
        recovery: PathBuf,
        /// Directory of a machine, or of one server.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// With an empty directory: id of the manager whose directory it becomes.
        #[arg(long, value_name = "ID")]
        server: Option<u32>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    /// Directory of a store, of a machine of a cluster, or of a development cluster.
    #[arg(value_name = "DIR", required_unless_present = "config")]
    pub(crate) dir: Option<PathBuf>,
    /// Configuration file of a `larder manager`, `meta`, `data` or `proxy` on this machine, in place of DIR.
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    pub(crate) config: Option<PathBuf>,
    /// Show this bucket alone.
    #[arg(long, value_name = "NAME")]
    pub(crate) bucket: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BucketCommand {
    /// Show how many objects and bytes each bucket has.
    ///
    /// The store counts them with each change, so this scans nothing. Objects count once, however many copies they have.
    /// Parts of uploads that are not complete do not count. Exits with 0 if the counts are exact, and with 1 if they lack
    /// some: after a start, or while a meta server does not answer.
    #[command(after_help = exit::HELP)]
    Usage(UsageArgs),
    /// Show or set a bucket's write policy: the copies that a put waits for.
    ///
    /// all: a put is acknowledged when every copy within reach is durable (default). majority: when more than half of the
    /// copies are. one, or a number: when so many are. The other copies follow meanwhile, or soon after; until then the loss
    /// of fewer disks loses the object. Run it with the configuration of a manager.
    #[command(after_help = exit::HELP)]
    Policy {
        /// Configuration file of a manager of this machine, or directory of `larder server --peer`.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Name of the bucket.
        name: String,
        /// all, majority, one, or a number of copies. Without it the policy is shown.
        policy: Option<WritePolicy>,
    },
}
