//! Choosing the map to go on from.

use std::collections::{BTreeMap, BTreeSet};

use larder_env::rng::unique_u64;
use larder_identity::{Authority, IdentityError};
use larder_protocol::limits::{MANAGERS_MAX, TIMELINES_VERSION};
use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{
    Command, KeyPair, LvRecord, LvState, PgRecord, ReplicaRecord, ReplicaState, RootRecord,
    ServerRecord, ServerRole, ServerState, Topology,
};
use larder_types::{ClusterId, MapVersion, ServerId, View};

use super::v1::Recovery;
use crate::limits::{IDS_SKIPPED, VERSIONS_SKIPPED};
use crate::node::node_of;

/// A recovery, and its facts for the operator.
#[derive(Debug)]
pub struct MadeRecovery {
    /// The recovery.
    pub recovery: Recovery,
    /// File with the latest map.
    pub of: String,
    /// Its version.
    pub version: MapVersion,
    /// Managers' logs that were of no use: they have something that was never agreed on.
    pub passed_over: Vec<String>,
    /// The managers, with their names.
    pub managers: Vec<(ServerId, String)>,
    /// Managers of the map, the lost ones too.
    pub managers_before: usize,
    /// Servers that are lost, with their names.
    pub lost: Vec<(ServerId, String)>,
    /// Data that is out of reach unless a lost server is brought back; none unless that was accepted.
    pub loss: Loss,
    /// Root's keys are not known to the managers any more: proxies take those of their files.
    pub forgets_root: bool,
}

/// Data that is out of reach without the servers that are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Loss {
    /// Meta servers are lost, as many as acknowledge puts: these may have been in views that are unknown to all others.
    pub metas: Option<(usize, usize)>,
    /// Data servers are lost, as many as a put waits for at least: objects may have had copies on these alone.
    pub datas: Option<(usize, usize)>,
    /// Placement groups that can begin no view: too few of their members are left, or none that may lead.
    pub groups: usize,
    /// Volumes with something in them of which no copy is left.
    pub volumes: usize,
}

impl Loss {
    fn is_any(self) -> bool {
        self != Self::default()
    }
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some((lost, least)) = self.metas {
            write!(
                f,
                "{lost} meta servers are lost, and {least} are enough to acknowledge without the others; "
            )?;
        }
        if let Some((lost, least)) = self.datas {
            write!(
                f,
                "{lost} data servers are lost, and some objects may have had only {least} copies; "
            )?;
        }
        write!(
            f,
            "{} placement groups can begin no view, and {} volumes have no copy left",
            self.groups, self.volumes
        )
    }
}

/// The reason why no managers can be made, by what to do.
#[derive(Debug, thiserror::Error)]
pub enum NotMade {
    /// Name files.
    #[error("no file was given: name the `cluster-map` of each server")]
    NoMap,
    /// Leave one of them out.
    #[error("{one} and {other} are of different clusters")]
    OtherCluster {
        /// A file.
        one: String,
        /// Another.
        other: String,
    },
    /// Find out which one is right.
    #[error(
        "{other} (version {other_version}) has something that {latest} (version {version}), the latest, lacks: they are of different \
         histories. One of them comes from a copy that went on by itself: leave it out, and if it is a meta or data server's name that \
         with --lost"
    )]
    OtherHistory {
        /// The latest map.
        latest: String,
        /// Its version.
        version: u64,
        /// The one that does not fit.
        other: String,
        /// Its version.
        other_version: u64,
    },
    /// Give them, or say that they are lost.
    #[error(
        "the map of these servers is missing: {servers}. Any of them may have heard of later changes. Name their `cluster-map`, or \
         --lost NAME for a machine or a server whose directory is gone for good"
    )]
    Missing {
        /// Their names and ids.
        servers: String,
    },
    /// Fix the name.
    #[error(
        "--lost {name}: no meta or data server, and no manager, has that name or id; there are {names}"
    )]
    NoSuchServer {
        /// As it was given.
        name: String,
        /// Those that there are.
        names: String,
    },
    /// Leave `--lost` out, or the file.
    #[error("--lost {name}: {file} is its map, so it is not lost")]
    NotLost {
        /// As it was given.
        name: String,
        /// The file.
        file: String,
    },
    /// Bring one back, or accept it.
    #[error("{0}. Bring the directory of a lost server back, or go on without with --accept-loss")]
    Loss(Loss),
    /// Wait until all servers are of this release.
    #[error(
        "the cluster's version is {version}, and servers keep all that is needed from {TIMELINES_VERSION} on: not all of them were \
         upgraded when the managers were lost"
    )]
    TooOld {
        /// The cluster's version.
        version: u8,
    },
    /// Leave one of them out of `--lost`: it is made anew on another machine.
    #[error(
        "all managers are named as lost. A manager's directory is made anew: name only machines whose data is gone, too"
    )]
    NoManager,
    /// Name some.
    #[error(
        "there are more managers than may vote ({MANAGERS_MAX}): {names}. Name those that did not with --lost; they follow again when the \
         cluster runs"
    )]
    TooManyManagers {
        /// Their names.
        names: String,
    },
    /// As it says.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Makes a recovery of the maps in these files, without these machines or servers.
///
/// # Errors
/// [`NotMade`], by what to do.
///
/// # Panics
/// If a map has no cluster, which is none that a server keeps.
pub fn make(
    files: &[Source],
    lost: &[String],
    accepts_loss: bool,
) -> Result<MadeRecovery, NotMade> {
    let (latest, passed_over) = latest_of(files)?;
    let map = &latest.map;
    let (cluster, settings) = map.founded.expect("servers keep maps of clusters that were founded");
    if map.cluster_version < TIMELINES_VERSION {
        return Err(NotMade::TooOld { version: map.cluster_version });
    }
    let given: BTreeMap<ServerId, &String> = files.iter().map(|it| (it.server, &it.name)).collect();
    let lost = lost_of(map, lost, &given)?;
    let needed = started(map).filter(|(_, record)| holds_data(record));
    let missing = needed.filter(|(id, _)| !given.contains_key(id) && !lost.contains(id));
    let missing: Vec<String> = missing.map(|(id, record)| named(id, record)).collect();
    if !missing.is_empty() {
        return Err(NotMade::Missing { servers: missing.join(", ") });
    }
    let managers: Vec<(ServerId, String)> = started(map)
        .filter(|(id, record)| record.roles.contains(&ServerRole::Manager) && !lost.contains(id))
        .map(|(id, record)| (id, record.name.clone()))
        .collect();
    let all = started(map).filter(|(_, record)| record.roles.contains(&ServerRole::Manager));
    let managers_before = all.count();
    if managers.is_empty() {
        return Err(NotMade::NoManager);
    }
    if managers.len() > MANAGERS_MAX {
        let names: Vec<String> = managers.into_iter().map(|(_, name)| name).collect();
        return Err(NotMade::TooManyManagers { names: names.join(", ") });
    }
    let least = (usize::from(settings.min_members), usize::from(settings.min_copies));
    let loss = loss_of(map, &lost, least);
    if loss.is_any() && !accepts_loss {
        return Err(NotMade::Loss(loss));
    }
    let root = root_of(files, map);
    let forgets_root = map.root.is_some() && root.is_none();
    let map = begun(Topology { root, ..map.clone() });
    let authority = Authority::create(ClusterId(cluster.0))?.to_pem();
    let voters = managers.iter().map(|(id, _)| *id).collect();
    let lost = lost.iter().map(|id| (*id, map.servers[id].name.clone())).collect();
    let recovery = Recovery { map, voters, authority };
    let (of, version) = (latest.name.clone(), latest.map.version);
    Ok(MadeRecovery {
        recovery,
        of,
        version,
        passed_over,
        managers,
        managers_before,
        lost,
        loss,
        forgets_root,
    })
}

/// A map of a file, and whose it is.
#[derive(Debug, Clone)]
pub struct Source {
    /// The file.
    pub name: String,
    /// The server that kept it.
    pub server: ServerId,
    /// It is of a manager's log, if all of that was agreed on.
    pub is_log: bool,
    /// The map.
    pub map: Topology,
}

/// The map that managers go on with from another: of a timeline of its own, and without versions and ids that may have been given
/// since.
fn begun(mut map: Topology) -> Topology {
    map.next.server.0 += IDS_SKIPPED;
    map.next.disk.0 += IDS_SKIPPED;
    map.next.bucket.0 += u64::from(IDS_SKIPPED);
    map.next.token.0 += IDS_SKIPPED;
    // The authority before has signed them.
    map.tokens.clear();
    let applied = map.apply(LogIndex(map.applied.0 + 1), Command::BeginTimeline(unique_u64()));
    assert!(applied.is_ok(), "a timeline that was drawn begins: {applied:?}");
    // The changes that managers made in the versions between are not of that timeline.
    map.version.0 += VERSIONS_SKIPPED;
    map
}

/// Root's keys, if their latest record is in one of the files with its secrets, as managers' logs have it.
fn root_of(files: &[Source], latest: &Topology) -> Option<RootRecord> {
    let roots = files.iter().filter_map(|it| it.map.root.clone());
    let has_secrets = |root: &RootRecord| root.pairs().all(KeyPair::is_sound);
    let mut roots = roots.filter(|it| it.generation == latest.root_generation());
    roots.find(has_secrets)
}

fn loss_of(
    map: &Topology,
    lost: &BTreeSet<ServerId>,
    (least, least_copies): (usize, usize),
) -> Loss {
    let stays = |server: &ServerId| {
        let record = map.servers.get(server).filter(|it| it.state != ServerState::Removed);
        record.is_some() && !lost.contains(server)
    };
    let is_dead = |pg: &&PgRecord| {
        let left = pg.members.iter().filter(|it| stays(it)).count();
        pg.view > View(0) && (left < least || !pg.qualified.iter().any(stays))
    };
    let is_gone = |lv: &&LvRecord| {
        let mut present = lv.present().map(|(_, replica)| replica).peekable();
        let is_kept = |it: &ReplicaRecord| it.state == ReplicaState::Current && stays(&it.server);
        lv.state != LvState::Creating && present.peek().is_some() && !present.any(is_kept)
    };
    let lost_of = |role| lost.iter().filter(|id| map.servers[*id].roles.contains(&role)).count();
    let (metas, datas) = (lost_of(ServerRole::Meta), lost_of(ServerRole::Data));
    Loss {
        metas: (metas >= least).then_some((metas, least)),
        datas: (datas >= least_copies).then_some((datas, least_copies)),
        groups: map.pgs.iter().filter(is_dead).count(),
        volumes: map.lvs.iter().filter(is_gone).count(),
    }
}

/// The latest map, which has what all others have. A manager's log may have a tail that was never agreed on: one that the servers' maps
/// contradict is passed over.
fn latest_of(files: &[Source]) -> Result<(&Source, Vec<String>), NotMade> {
    let kept = files.iter().filter(|it| !it.is_log);
    let latest = kept.clone().max_by_key(|it| it.map.version).ok_or(NotMade::NoMap)?;
    for it in kept.clone() {
        check(it, latest)?;
    }
    let mut logs: Vec<_> = files.iter().filter(|it| it.is_log).collect();
    logs.sort_by_key(|it| std::cmp::Reverse(it.map.version));
    let is_later = |log: &&&Source| check(latest, log).is_ok();
    let log = logs.iter().find(is_later).copied();
    let agrees = |it: &&Source| check(it, log.unwrap_or(latest)).is_ok();
    let passed_over = logs.iter().filter(|it| !agrees(it)).map(|it| it.name.clone()).collect();
    Ok((log.unwrap_or(latest), passed_over))
}

/// Checks that the latest map has what another one has.
fn check(it: &Source, latest: &Source) -> Result<(), NotMade> {
    let cluster = |map: &Topology| map.founded.map(|(cluster, _)| cluster);
    let (one, other) = (latest.name.clone(), it.name.clone());
    if cluster(&it.map) != cluster(&latest.map) {
        return Err(NotMade::OtherCluster { one, other });
    }
    if !it.map.map_mark().is_some_and(|mark| mark.is_reached_by(&latest.map)) {
        let (version, other_version) = (latest.map.version.0, it.map.version.0);
        return Err(NotMade::OtherHistory { latest: one, version, other, other_version });
    }
    Ok(())
}

/// Servers that may have anything: one that never started has nothing.
fn started(map: &Topology) -> impl Iterator<Item = (ServerId, &ServerRecord)> {
    let has_started =
        |record: &ServerRecord| matches!(record.state, ServerState::Up | ServerState::Down);
    let servers = map.servers.iter().map(|(id, record)| (*id, record));
    servers.filter(move |(_, record)| has_started(record))
}

fn holds_data(record: &ServerRecord) -> bool {
    [ServerRole::Meta, ServerRole::Data].iter().any(|role| record.roles.contains(role))
}

fn named(id: ServerId, record: &ServerRecord) -> String {
    format!("{} (server {id})", record.name)
}

/// The servers of these names: of a machine, of a server, or ids.
fn lost_of(
    map: &Topology,
    names: &[String],
    given: &BTreeMap<ServerId, &String>,
) -> Result<BTreeSet<ServerId>, NotMade> {
    let counts =
        |record: &ServerRecord| holds_data(record) || record.roles.contains(&ServerRole::Manager);
    let mut lost = BTreeSet::new();
    for name in names {
        let is_it = |(id, record): &(ServerId, &ServerRecord)| {
            record.name == *name || node_of(&record.name) == Some(name) || id.to_string() == *name
        };
        let of_name: Vec<_> =
            started(map).filter(is_it).filter(|(_, record)| counts(record)).collect();
        if of_name.is_empty() {
            let all = started(map).filter(|(_, record)| counts(record));
            let names = all.map(|(id, record)| named(id, record)).collect::<Vec<_>>().join(", ");
            return Err(NotMade::NoSuchServer { name: name.clone(), names });
        }
        if let Some(file) = of_name.iter().find_map(|(id, _)| given.get(id)) {
            return Err(NotMade::NotLost { name: name.clone(), file: (*file).clone() });
        }
        lost.extend(of_name.into_iter().map(|(id, _)| id));
    }
    Ok(lost)
}
