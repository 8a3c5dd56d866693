//! `larder region`: makes a store, or a cluster, one of several regions, and shows and changes the list of them.
//!
//! Every command but the drill works under a lock on files in the directory of a store, or of the cluster's gateway. It
//! needs no server, but for `join`, which asks that of the first region. A running server looks at the files.

mod bucket;
mod compare;
mod drill;
mod home;
mod managers;
mod policy;
mod show;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use larder_link::{
    Address, JoinToken, LinkError, Members, Peer, PeerStatus, RegionStatus, Usage, limits,
};
use larder_roles::identity::IDENTITY_FILE;
use larder_roles::limits::REGION_BYTES_PER_S;
use larder_types::RegionId;

use crate::args::region::{
    CompareArgs, CreateArgs, DrillArgs, JoinArgs, NamedArgs, PlaceArgs, RegionCommand, Switch,
};
use crate::cluster::RoleError;
use crate::exit;
use crate::kind::{self, Kind, KindError};

/// Rate that holds unless another is set.
const MIB_PER_S: u32 = (REGION_BYTES_PER_S >> 20) as u32;

/// Failure of a command.
#[derive(Debug, thiserror::Error)]
enum RegionError {
    #[error(transparent)]
    Kind(#[from] KindError),
    #[error(
        "{dir} is {what}: name the directory of one of the cluster's proxies. That proxy then speaks with the other \
         regions for the cluster"
    )]
    NoProxy { dir: String, what: &'static str },
    #[error("{dir} is {what}, which becomes no region")]
    Unfit { dir: String, what: &'static str },
    #[error(
        "{0} is shared: the other regions keep what they have of it, as a bucket of theirs. The two go on apart, and one of them has \
         to be deleted before the other can be shared again. Add --yes to do it"
    )]
    StaysElsewhere(String),
    #[error("{dir} has no store: start `larder server {dir}` once, then it can become a region")]
    NoStore { dir: String },
    #[error(
        "{dir} belongs to no cluster yet: start its server once, then the cluster can become a region"
    )]
    NoMember { dir: String },
    #[error("--listen {0:?} is no address: it is such as 0.0.0.0:7001, with a port above 0")]
    Listen(String),
    #[error(
        "--advertise is needed: other regions do not reach this one at {0}; name a host that they know, such as \
         eu.example.org:7001"
    )]
    Advertise(String),
    #[error("{} was removed from its regions: `larder region list` shows them as they were", .0.display())]
    Removed(PathBuf),
    #[error(
        "{} is not the gateway of its cluster, which is region {number}: run the command at {gateway}, with that one's directory",
        .dir.display()
    )]
    OtherGateway { dir: PathBuf, number: RegionId, gateway: String },
    #[error("there is no bucket {0:?}")]
    NoBucket(String),
    #[error("{0:?} is no name of a bucket: it has 3 to 63 of a-z, 0-9, - and .")]
    BadName(String),
    #[error(
        "{} has {count} buckets, such as {first}. Those that the other regions have, too, are merged with theirs. Of two \
         objects with the same key the older is gone, in all. `larder region compare` shows what that would be. Add --merge to \
         do it, or join with an empty store",
        .dir.display()
    )]
    HasBuckets { dir: PathBuf, count: usize, first: String },
    #[error(
        "it is not known whether the cluster of {} has buckets, which would be merged with those of other regions: {why}. \
         Name the directory of a machine whose managers run, or add --merge if it has none, or they may be merged",
        .dir.display()
    )]
    Buckets { dir: PathBuf, why: String },
    #[error("{}", policy::few_regions(*.wanted, *.known))]
    FewRegions { wanted: u8, known: usize },
    #[error("{0} stays as it is: {1}")]
    NotShared(String, larder_types::NotShared),
    #[error("the server of {} has not responded for a while: start it", .0.display())]
    Silent(PathBuf),
    #[error("{0}")]
    Map(String),
    #[error(transparent)]
    Cluster(#[from] RoleError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Drill(#[from] drill::RegionAccessError),
    #[error("the system does not let the command run: {0}")]
    System(std::io::Error),
}

impl RegionError {
    fn code(&self) -> u8 {
        match self {
            Self::Kind(_)
            | Self::NoProxy { .. }
            | Self::Unfit { .. }
            | Self::NoStore { .. }
            | Self::NoMember { .. } => exit::CANNOT_START,
            Self::Listen(_)
            | Self::Advertise(_)
            | Self::Removed(_)
            | Self::OtherGateway { .. }
            | Self::NoBucket(_)
            | Self::BadName(_)
            | Self::HasBuckets { .. }
            | Self::StaysElsewhere(_)
            | Self::NotShared(..)
            | Self::FewRegions { .. } => exit::USAGE,
            Self::Silent(_) | Self::Buckets { .. } => exit::FAULTS,
            Self::Map(_) => exit::CANNOT_START,
            Self::Cluster(error) => error.code(),
            Self::Link(LinkError::Usage(_)) => exit::USAGE,
            Self::Link(LinkError::File { .. } | LinkError::Damaged { .. } | LinkError::Key(_))
            | Self::System(_) => exit::CANNOT_START,
            Self::Drill(error) if error.is_usage() => exit::USAGE,
            Self::Link(_) | Self::Drill(_) => exit::FAULTS,
        }
    }
}

/// Runs a command.
pub(crate) fn run(command: RegionCommand) -> ExitCode {
    let done = match command {
        RegionCommand::Create(args) => create(&args),
        RegionCommand::Join(args) => join(&args),
        RegionCommand::Token { dir } => token(&dir),
        RegionCommand::List { dir, json } => show::list(&dir, json),
        RegionCommand::Status { dir, json } => show::status(&dir, json),
        RegionCommand::Drill(args) => drill(&args),
        RegionCommand::Compare(args) => compare(&args),
        RegionCommand::Pause(args) => pause(&args, true),
        RegionCommand::Resume(args) => pause(&args, false),
        RegionCommand::Remove { region, yes } => remove(&region, yes),
        RegionCommand::Policy(args) => policy::policy(&args),
        RegionCommand::Bucket(args) => bucket::bucket(&args),
        RegionCommand::Home(args) => home::home(&args),
        RegionCommand::Rate { region, mib_per_s } => rate(&region, mib_per_s),
        RegionCommand::Compress { region, set } => compress(&region, set),
    };
    exit::code(done.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        error.code()
    }))
}

/// Refuses a directory that is neither the store of a single node nor that of a cluster's proxy.
fn check(dir: &Path) -> Result<(), RegionError> {
    let name = dir.display().to_string();
    match kind::found(dir)? {
        Some(Kind::Store) if dir.join("manager/map").exists() => Ok(()),
        Some(Kind::Store) | None => Err(RegionError::NoStore { dir: name }),
        Some(Kind::Proxy) if dir.join(IDENTITY_FILE).exists() => Ok(()),
        Some(Kind::Machine) if dir.join("proxy").join(IDENTITY_FILE).exists() => Ok(()),
        Some(Kind::Proxy | Kind::Machine) => Err(RegionError::NoMember { dir: name }),
        Some(kind @ Kind::DevCluster) => Err(RegionError::Unfit { dir: name, what: kind.what() }),
        Some(kind) if kind.is_role() => Err(RegionError::NoProxy { dir: name, what: kind.what() }),
        Some(_) => Ok(kind::allow(dir, |found| found == Kind::Store)?),
    }
}

/// The list of regions in a directory.
fn members(dir: &Path) -> Result<Members, RegionError> {
    check(dir)?;
    match larder_link::read(dir)? {
        Some(members) => Ok(members),
        None => Err(not_region(dir)),
    }
}

/// Says where the commands of a cluster's region are to be run, if its managers can be asked.
fn not_region(dir: &Path) -> RegionError {
    let is_cluster = matches!(kind::found(dir), Ok(Some(Kind::Proxy | Kind::Machine)));
    // Of managers that do not answer it is not known.
    let known = if is_cluster { managers::gateway(dir).ok().flatten() } else { None };
    match known {
        Some((number, gateway)) => {
            RegionError::OtherGateway { dir: dir.to_owned(), number, gateway }
        }
        None => LinkError::from(Usage::NotRegion(dir.to_owned())).into(),
    }
}

/// The same, unless the region was removed.
fn live_members(dir: &Path) -> Result<Members, RegionError> {
    let members = members(dir)?;
    if members.own.removed { Err(RegionError::Removed(dir.to_owned())) } else { Ok(members) }
}

impl PlaceArgs {
    /// The address that others reach the region at.
    fn advertised(&self) -> Result<Address, RegionError> {
        let address = self.listen.parse::<Address>();
        let is_bound = self.listen.parse::<SocketAddr>().is_ok_and(|addr| addr.port() != 0);
        if address.is_err() && !is_bound {
            return Err(RegionError::Listen(self.listen.clone()));
        }
        let advertised = self.advertise.clone().or_else(|| address.ok());
        advertised.ok_or_else(|| RegionError::Advertise(self.listen.clone()))
    }
}

fn create(args: &CreateArgs) -> Result<u8, RegionError> {
    let place = &args.place;
    let advertised = place.advertised()?;
    check(&args.dir)?;
    let (name, listen) = (place.name.clone(), place.listen.clone());
    let members = larder_link::found(&args.dir, name, listen, advertised)?;
    print_begin(&args.dir, &members);
    println!("  then let another one join: larder region token {}", args.dir.display());
    Ok(exit::OK)
}

fn join(args: &JoinArgs) -> Result<u8, RegionError> {
    let place = &args.place;
    let advertised = place.advertised()?;
    let token: JoinToken =
        args.token.parse().map_err(|fault| LinkError::from(Usage::Token(fault)))?;
    check(&args.dir)?;
    check_buckets(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(RegionError::System)?;
    let (name, listen) = (place.name.clone(), place.listen.clone());
    let joining = larder_link::join(&args.dir, &token, name, listen, advertised);
    let members = runtime.block_on(joining)?;
    print_begin(&args.dir, &members);
    for peer in members.live() {
        println!("  region {} ({}) is reached at {}", peer.number, peer.name, peer.address);
    }
    println!(
        "  root keys, and settings of buckets but their homes, stay each region's own: set them here, too"
    );
    Ok(exit::OK)
}

fn drill(args: &DrillArgs) -> Result<u8, RegionError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(RegionError::System)?.block_on(drill::drill(args))?;
    Ok(exit::OK)
}

fn compare(args: &CompareArgs) -> Result<u8, RegionError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let is_same = runtime.map_err(RegionError::System)?.block_on(compare::compare(args))?;
    Ok(if is_same { exit::OK } else { exit::FAULTS })
}

/// Refuses a store with buckets, unless they are to be merged with those of the other regions.
fn check_buckets(args: &JoinArgs) -> Result<(), RegionError> {
    // One that is a region already has an answer that was lost, or is refused anyway.
    if args.merge || larder_link::read(&args.dir)?.is_some() {
        return Ok(());
    }
    let records = match kind::found(&args.dir)? {
        Some(Kind::Store) | None => bucket::of_map(&args.dir)?,
        Some(_) => managers::records(&args.dir).map_err(|error| RegionError::Buckets {
            dir: args.dir.clone(),
            why: error.to_string(),
        })?,
    };
    match records.first() {
        None => Ok(()),
        Some(first) => Err(RegionError::HasBuckets {
            dir: args.dir.clone(),
            count: records.len(),
            first: first.name.to_string(),
        }),
    }
}

/// Tells the operator the next step for a new region.
fn print_begin(dir: &Path, members: &Members) {
    let (own, dir) = (&members.own, dir.display());
    println!("{dir} is region {} ({}), reached at {}", own.number, own.name, own.advertise);
    println!("  start (or restart) its server: it listens for other regions on {}", own.listen);
}

fn token(dir: &Path) -> Result<u8, RegionError> {
    live_members(dir)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = now.as_millis() as u64;
    let (token, members) = larder_link::change(dir, |members| members.issue(now_ms))?;
    println!("{token}");
    eprintln!(
        "for one region, within {} minutes; the server of this one must run ({}):",
        limits::TOKEN_LIFE.as_secs() / 60,
        members.own.advertise
    );
    eprintln!("  larder region join DIR TOKEN --name NAME --listen ADDR --advertise HOST:PORT");
    Ok(exit::OK)
}

fn pause(args: &NamedArgs, paused: bool) -> Result<u8, RegionError> {
    live_members(&args.dir)?;
    let was = larder_link::change(&args.dir, |members| {
        let was = named(members, &args.name).map(|peer| peer.paused);
        members.pause(&args.name, paused).map(|()| was)
    })?;
    let name = &args.name;
    match (was.0 == Some(paused), paused) {
        (true, _) => println!("nothing to do: {name} was so already"),
        (false, true) => println!(
            "nothing is pulled from {name} until `larder region resume {} {name}`",
            args.dir.display()
        ),
        (false, false) => println!("{name} is pulled from again"),
    }
    Ok(exit::OK)
}

fn rate(args: &NamedArgs, wanted: Option<u32>) -> Result<u8, RegionError> {
    let mut members = live_members(&args.dir)?;
    if let Some(mib_per_s) = wanted {
        let set = (mib_per_s != MIB_PER_S).then_some(mib_per_s);
        members = larder_link::change(&args.dir, |members| members.set_rate(&args.name, set))?.1;
    }
    let Some(peer) = named(&members, &args.name) else {
        members.set_rate(&args.name, None)?;
        unreachable!("a name that no region has was refused");
    };
    let mib_per_s = members.rate(peer.number).unwrap_or(MIB_PER_S);
    println!("this region pulls at most {mib_per_s} MiB a second from {}, on average", peer.name);
    Ok(exit::OK)
}

fn compress(args: &NamedArgs, set: Option<Switch>) -> Result<u8, RegionError> {
    let mut members = live_members(&args.dir)?;
    if let Some(set) = set {
        let on = set == Switch::On;
        let change = |members: &mut Members| members.set_compressed(&args.name, on);
        members = larder_link::change(&args.dir, change)?.1;
    }
    let Some(peer) = named(&members, &args.name) else {
        members.set_compressed(&args.name, false)?;
        unreachable!("a name that no region has was refused");
    };
    match members.is_compressed(peer.number) {
        true => println!("{} compresses objects that this region pulls from it", peer.name),
        false => println!("{} sends objects as they are to this region", peer.name),
    }
    Ok(exit::OK)
}

fn named<'a>(members: &'a Members, name: &str) -> Option<&'a Peer> {
    members.live().find(|peer| peer.name.as_str() == name)
}

fn remove(args: &NamedArgs, yes: bool) -> Result<u8, RegionError> {
    let mut members = live_members(&args.dir)?;
    let Some(peer) = named(&members, &args.name).cloned() else {
        members.remove(&args.name)?;
        unreachable!("a name that no region has was refused");
    };
    let mut lines = loss(&args.dir, &peer)?;
    if yes {
        larder_link::change(&args.dir, |members| members.remove(&args.name))?;
        lines.insert(0, format!("region {} ({}) is removed for good:", peer.number, peer.name));
    } else {
        lines.insert(
            0,
            format!("region {} ({}) would be removed for good:", peer.number, peer.name),
        );
        lines.push("nothing was changed: to do it, add --yes".to_owned());
    }
    println!("{}", lines.join("\n"));
    Ok(exit::OK)
}

/// Lists what is lost with a region.
fn loss(dir: &Path, peer: &Peer) -> Result<Vec<String>, RegionError> {
    let mut lines = vec![
        "  the other regions take nothing from it any more, and give it nothing; what it has stays there".to_owned(),
    ];
    let status = RegionStatus::read(dir)?.filter(RegionStatus::is_fresh);
    let known = status.iter().flat_map(|status| &status.peers);
    lines.push(lacking({ known }.find(|it| it.number == peer.number)));
    lines.push("  its local buckets, which no other region has, are lost with it".to_owned());
    lines.push(
        "  buckets that wait for more regions than are left get 503 until `larder region policy` is lowered"
            .to_owned(),
    );
    let is_home = |known: &&larder_link::HomeStatus| {
        known.home.is_some_and(|home| home.region() == Some(peer.number))
    };
    let homes: Vec<_> = status.iter().flat_map(|status| &status.homes).filter(is_home).collect();
    if let Some(first) = homes.first() {
        lines.push(format!(
            "  it is the home of {} buckets, such as {}: these take no changes with conditions until `larder region home` gives them \
             a new one",
            homes.len(),
            first.bucket
        ));
    }
    if peer.number == RegionId(1) {
        lines.push("  it gives the others their numbers: no region can join afterwards".to_owned());
    }
    Ok(lines)
}

/// Says what is lost of a region's changes, as far as it is known.
fn lacking(known: Option<&PeerStatus>) -> String {
    let Some(it) = known else {
        return "  what it has that is not here yet is not known".to_owned();
    };
    let changes = match (it.operations_behind, it.comparing) {
        (0, false) => "all that it has told is here".to_owned(),
        (count, comparing) => format!(
            "{}{count} changes of it ({} bytes) are not here yet",
            if comparing { "at least " } else { "" },
            it.bytes_behind
        ),
    };
    match it.unreachable {
        Some(_) => {
            format!("  when it answered last: {changes}; what it took afterwards is not known")
        }
        None => format!("  {changes}"),
    }
}
