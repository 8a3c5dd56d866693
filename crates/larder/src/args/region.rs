//! The command line of `larder region`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use larder_link::{Address, RegionName};
use larder_types::BucketName;

use crate::exit;

/// Differing keys that are printed of each bucket, unless another number is asked for.
const KEYS_SHOWN: usize = 5;

#[derive(Debug, Subcommand)]
pub(crate) enum RegionCommand {
    /// Make a store, or a cluster, the first region.
    ///
    /// The first region gives the others their numbers: `larder region token` on this machine lets one join. The server
    /// listens for other regions from its next start.
    #[command(after_help = exit::HELP)]
    Create(CreateArgs),
    /// Make a store, or a cluster, another region, with a token of the first one.
    ///
    /// Asks the first region, whose server must run. This server listens for other regions, and pulls from them, from its
    /// next start. If the answer is lost, run the same command again.
    #[command(after_help = exit::HELP)]
    Join(JoinArgs),
    /// Print a token that lets one store become a region, within an hour.
    ///
    /// Run it on the machine of the first region. Anyone who has the token can join: send it as you would a password.
    #[command(after_help = exit::HELP)]
    Token {
        /// Directory of the first region.
        dir: PathBuf,
    },
    /// List the regions.
    #[command(after_help = exit::HELP)]
    List {
        /// Directory of the store.
        dir: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show how far this region is behind the others.
    ///
    /// Prints what the running server wrote last. Exits with 0 only if this region has everything that the others have, or
    /// is getting it. Exits with 1 if a region cannot be reached, nothing moves, or the server does not run.
    #[command(after_help = exit::HELP)]
    Status {
        /// Directory of the store.
        dir: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Test over S3 that changes reach all regions.
    ///
    /// Puts, changes and deletes objects through each region's S3 endpoint and waits until all others show it; with --away
    /// also while one of them is stopped. It uses the keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for all regions.
    /// Exits with 1 if a change does not arrive in time.
    #[command(after_help = exit::HELP)]
    Drill(DrillArgs),
    /// Show what two stores have in common, and what would be lost if they became regions of each other.
    ///
    /// Lists both over S3. Of two objects with the same key the older would be lost, in both. It uses the keys in
    /// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for both stores. Exits with 1 if a key has two contents. Of regions that
    /// are level it shows that they have the same.
    #[command(after_help = exit::HELP)]
    Compare(CompareArgs),
    /// Stop pulling from a region until it is resumed.
    ///
    /// The other regions still pull from it, and it still pulls from this one. A running server
    /// notices within a second.
    #[command(after_help = exit::HELP)]
    Pause(NamedArgs),
    /// Pull again from a region that was paused.
    #[command(after_help = exit::HELP)]
    Resume(NamedArgs),
    /// Remove a region for good.
    ///
    /// Without --yes it prints what would be lost and changes nothing. This region notifies the others. The removed region
    /// keeps its data; its number is never given again. A running server notices within a second.
    #[command(after_help = exit::HELP)]
    Remove {
        #[command(flatten)]
        region: NamedArgs,
        /// Remove it. Without this, print what would be lost.
        #[arg(long)]
        yes: bool,
    },
    /// Show or set the highest average rate at which this region pulls from another.
    ///
    /// The default is 256 MiB a second. A single object may pass faster: the next fetch then waits until the average is at
    /// the rate again. With a low rate large objects delay those behind them. A running server notices within a second.
    #[command(after_help = exit::HELP)]
    Rate {
        #[command(flatten)]
        region: NamedArgs,
        /// MiB a second, 1 to 10000. Without it the rate is shown.
        #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
        mib_per_s: Option<u32>,
    },
    /// Show or set whether a region compresses the objects that this region pulls from it.
    ///
    /// Off by default. LZ4: worth it where the link is slow and objects repeat themselves, such as text. Bytes that do not
    /// shrink go as they are. A running server notices within a second.
    #[command(after_help = exit::HELP)]
    Compress {
        #[command(flatten)]
        region: NamedArgs,
        /// on or off. Without it the setting is shown.
        set: Option<Switch>,
    },
    /// Show or set how many regions must have a bucket's changes before clients get an answer.
    ///
    /// The default is 1: this region alone. With N, a put, delete or change of tags succeeds once N regions have it durably.
    /// After 5 seconds it gets 503, but the change is made here and still reaches the others. The setting holds in this
    /// region only.
    #[command(after_help = exit::HELP)]
    Policy(PolicyArgs),
    /// Show or set the regions that have a bucket: this one alone, or all.
    ///
    /// All regions have a bucket unless it is `local`: then no other region learns of it, or takes anything from it. They
    /// keep what they had of it before. `shared` lets them have it, unless one of them has a bucket of that name.
    #[command(after_help = exit::HELP)]
    Bucket(BucketArgs),
    /// Show or move the home of a bucket: the region that decides about conditions for all regions.
    ///
    /// A bucket has none by default: then conditions, such as If-None-Match, hold within each region alone. With a home all
    /// regions send changes with conditions there. Run it at the region that is to be the home; in a cluster, with the
    /// directory of its gateway. The server executes the move, and continues even after this command has ended.
    #[command(after_help = exit::HELP)]
    Home(HomeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct HomeArgs {
    /// Directory of the store, or of a cluster's gateway.
    pub(crate) dir: PathBuf,
    /// Bucket. Without it the homes of all buckets are listed.
    pub(crate) bucket: Option<String>,
    /// `here` makes this region the home; `none`, at the home, leaves the bucket without one. Without it the home is shown.
    pub(crate) place: Option<Place>,
    /// With `here`: all changes of clients go to the home, not only those with conditions.
    #[arg(long)]
    pub(crate) all_writes: bool,
}

/// The state of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    /// The setting is on.
    On,
    /// The setting is off.
    Off,
}

/// The place where a home is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Place {
    /// This region.
    Here,
    /// No region.
    None,
}

#[derive(Debug, Args)]
pub(crate) struct BucketArgs {
    /// Directory of the store. For a cluster, the directory of a machine with a manager, or a
    /// manager's configuration.
    pub(crate) dir: PathBuf,
    /// Bucket. Without it all buckets are listed.
    pub(crate) bucket: Option<String>,
    /// `local`: this region alone has the bucket, which is made if it is missing. `shared`: all
    /// regions have it. Without it the setting is shown.
    pub(crate) scope: Option<Scope>,
    /// With `local`: confirm it for a shared bucket. The other regions keep what they have of it, as a bucket of their own.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// The regions that are to have a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scope {
    /// This one alone.
    Local,
    /// All of them.
    Shared,
}

#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    /// Directory of the store. For a cluster, the directory of a machine, or the configuration of a
    /// manager.
    pub(crate) dir: PathBuf,
    /// Bucket. Without it the buckets that wait for other regions are listed.
    pub(crate) bucket: Option<String>,
    /// Number of regions, this one included. on or off. Without it the setting is shown.
    #[arg(value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) regions: Option<u8>,
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Directory of the store. For a cluster, the directory of a proxy or machine, which becomes its gateway. Its server
    /// must have run at least once.
    pub(crate) dir: PathBuf,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// Directory of the store. For a cluster, the directory of a proxy or machine, which becomes its gateway. Its server
    /// must have run at least once.
    pub(crate) dir: PathBuf,
    /// Token that `larder region token` printed at the first region.
    pub(crate) token: String,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Join with a store that has buckets. Buckets that other regions have, too, are merged with
    /// theirs, for good.
    #[arg(long)]
    pub(crate) merge: bool,
}

/// Name and addresses of a region.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// Name of this region: 1 to 32 of a-z, 0-9 and -.
    #[arg(long)]
    pub(crate) name: RegionName,
    /// Address for the other regions, such as 0.0.0.0:7001.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: String,
    /// Address under which the other regions reach --listen, such as eu.example.org:7001. It is kept for ever. Default: that
    /// address; needed if others cannot reach it, such as 0.0.0.0.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<Address>,
}

#[derive(Debug, Args)]
pub(crate) struct NamedArgs {
    /// Directory of the store.
    pub(crate) dir: PathBuf,
    /// Name of the other region, as `larder region list` shows it.
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// S3 endpoints of the two stores, such as eu=http://eu.example.org:9000.
    #[arg(required = true, num_args = 2, value_name = "NAME=URL")]
    pub(crate) stores: Vec<Named>,
    /// Most keys with two contents to print for each bucket.
    #[arg(long, value_name = "N", default_value_t = KEYS_SHOWN)]
    pub(crate) keys: usize,
}

#[derive(Debug, Args)]
pub(crate) struct DrillArgs {
    /// S3 endpoint of a region, such as eu=http://eu.example.org:9000. Give two to eight.
    #[arg(required = true, num_args = 2..=8, value_name = "NAME=URL")]
    pub(crate) regions: Vec<Named>,
    /// Bucket that the drill works in. It is made if it is missing, and stays.
    #[arg(long, value_name = "NAME", value_parser = BucketName::new, default_value = "larder-drill")]
    pub(crate) bucket: BucketName,
    /// Also test without this region: the drill says when to stop its server, and when to start it
    /// again.
    #[arg(long, value_name = "NAME")]
    pub(crate) away: Option<String>,
    /// Longest time for a change to reach another region, in seconds. You have ten times as long to stop or start a
    /// server.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,
}

/// A region as the command line names it.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) url: String,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, url) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or("write a name and an endpoint, such as eu=http://eu.example.org:9000")?;
        Ok(Self { name: name.to_owned(), url: url.to_owned() })
    }
}
