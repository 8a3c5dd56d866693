//! Having a server's directory take a recovery. Everything blocks.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_env::disk::{read_file, replace_file};
use larder_env::{Disk, DiskError, RealDisk};
use larder_identity::{Authority, Identity, IdentityError};
use larder_protocol::manager::state::{ServerRecord, ServerRole, ServerState, Topology};
use larder_types::{ClusterId, ServerId};

use super::v1::Recovery;
use crate::directory::LOCK_FILE;
use crate::identity::{IDENTITY_FILE, roles_of};
use crate::manager::quorum::{
    AUTHORITY_FILE, LogStart, ManagerError, before, begin_log, forget_tokens_of, has_taken,
};
use crate::managers::{BadMap, MAP_FILE, StoredMap};

/// A directory that has taken a recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredDirectory {
    /// Its server.
    pub server: ServerId,
    /// The server's name.
    pub name: String,
    /// A manager's log goes on from the recovery already, and was left as it is.
    pub goes_on: bool,
    /// Where a manager's log of before lies now.
    pub aside: Option<PathBuf>,
}

/// The reason why a directory takes no recovery, by what to do. It is as it was, unless a disk failed.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryRefused {
    /// Stop the server.
    #[error("{dir} is in use: stop its server first")]
    InUse {
        /// The directory.
        dir: String,
    },
    /// Name it.
    #[error(
        "{dir} has no identity: name its server with --server ID, of the managers whose directories are lost"
    )]
    Nobody {
        /// The directory.
        dir: String,
    },
    /// Take the right directory.
    #[error("{dir} is server {found}'s, and not server {wanted}'s")]
    OtherServer {
        /// The directory.
        dir: String,
        /// The server that it belongs to.
        found: ServerId,
        /// The server that it should belong to.
        wanted: ServerId,
    },
    /// Take the right recovery.
    #[error("{dir} is of cluster {found:016x}, and the recovery of {wanted:016x}")]
    OtherCluster {
        /// The directory.
        dir: String,
        /// Its cluster.
        found: u64,
        /// The recovery's.
        wanted: u64,
    },
    /// Give it up, or make another recovery.
    #[error("server {server} is none of the recovery's map, or was removed from the cluster")]
    NoSuchServer {
        /// The server.
        server: ServerId,
    },
    /// Only a manager's directory is made anew.
    #[error(
        "server {server} ({name}) is no manager: what it had is lost. Start the cluster without it, remove it with `larder remove`, \
         and have the machine join again"
    )]
    Lost {
        /// The server.
        server: ServerId,
        /// Its name.
        name: String,
    },
    /// Name it with `--lost` no more.
    #[error(
        "server {server} ({name}) is a manager that was named as lost: make the recovery without --lost for it"
    )]
    NoVoter {
        /// The server.
        server: ServerId,
        /// Its name.
        name: String,
    },
    /// Make the recovery again, with this directory's map.
    #[error(
        "{dir} has heard of map {kept}, of which the recovery, of map {made}, lacks something: make it again, with this directory's \
         {MAP_FILE} among the files. If the cluster has gone on already, a proxy's {MAP_FILE} may be deleted; another server is removed \
         and joins anew"
    )]
    Later {
        /// The directory.
        dir: String,
        /// Version of its map.
        kept: u64,
        /// The recovery's.
        made: u64,
    },
    /// Have it removed.
    #[error(
        "{dir} has taken this recovery before, and its log cannot be read or is gone. A manager is not made anew twice, as it would have \
         forgotten what it agreed to. Remove it with `larder remove`"
    )]
    Forgotten {
        /// The directory.
        dir: String,
    },
    /// Nothing is to be done.
    #[error("{dir} has already taken this recovery, and has run since")]
    Continued {
        /// The directory.
        dir: String,
    },
    /// Have it joined anew.
    #[error(
        "{dir} has no {MAP_FILE}: it is not known what its server did last. Start the cluster without it, remove it with `larder \
         remove`, and have the machine join again with an empty directory"
    )]
    Unknown {
        /// The directory.
        dir: String,
    },
    /// Use a newer release; have one that is damaged joined anew.
    #[error("{dir}/{MAP_FILE}: {reason}")]
    BadMap {
        /// The directory.
        dir: String,
        /// The reason.
        reason: BadMap,
    },
    /// Look at the disk.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Look at the disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// As it says.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// As it says.
    #[error(transparent)]
    Manager(#[from] ManagerError),
}

/// A directory that may take a recovery.
struct Fit {
    server: ServerId,
    record: ServerRecord,
    manages: bool,
}

/// Checks that a directory may take a recovery. Changes nothing. `server` names the one of a manager's directory that is lost; of
/// others it is checked.
///
/// # Errors
/// [`RecoveryRefused`], by what to do.
pub fn check(
    recovery: &Recovery,
    dir: &Path,
    server: Option<ServerId>,
) -> Result<(), RecoveryRefused> {
    fit(recovery, dir, server).map(drop)
}

fn fit(recovery: &Recovery, dir: &Path, server: Option<ServerId>) -> Result<Fit, RecoveryRefused> {
    let shown = || dir.display().to_string();
    let map = &recovery.map;
    let identity = dir.join(IDENTITY_FILE);
    let found = identity.exists().then(|| Identity::load(&identity)).transpose()?;
    let found = found.as_ref().map(Identity::subject);
    if let Some(found) = &found {
        let (found, wanted) = (found.cluster.0, cluster_of(map).0);
        if found != wanted {
            return Err(RecoveryRefused::OtherCluster { dir: shown(), found, wanted });
        }
    }
    let known = found.map(|found| found.server);
    if let (Some(found), Some(wanted)) = (known, server)
        && found != wanted
    {
        return Err(RecoveryRefused::OtherServer { dir: shown(), found, wanted });
    }
    let server = known.or(server).ok_or_else(|| RecoveryRefused::Nobody { dir: shown() })?;
    let record = map.servers.get(&server).filter(|it| it.state != ServerState::Removed);
    let record = record.ok_or(RecoveryRefused::NoSuchServer { server })?.clone();
    let (name, has) = (record.name.clone(), |role| record.roles.contains(&role));
    let manages = has(ServerRole::Manager);
    let holds_data = has(ServerRole::Meta) || has(ServerRole::Data);
    if known.is_none() && holds_data {
        return Err(RecoveryRefused::Lost { server, name });
    }
    if manages && !recovery.voters.contains(&server) {
        return Err(RecoveryRefused::NoVoter { server, name });
    }
    if dir.exists() {
        check_kept(&RealDisk::open(dir)?, dir, map, holds_data)?;
    }
    Ok(Fit { server, record, manages })
}

/// Has the directory of a server take a recovery: see [`check`]. It may be repeated.
///
/// # Errors
/// [`RecoveryRefused`], by what to do.
pub fn take(
    recovery: &Recovery,
    dir: &Path,
    server: Option<ServerId>,
) -> Result<RecoveredDirectory, RecoveryRefused> {
    let (map, cluster) = (&recovery.map, cluster_of(&recovery.map));
    fit(recovery, dir, server)?;
    fs::create_dir_all(dir).map_err(|source| RecoveryRefused::File { path: dir.into(), source })?;
    let disk: Arc<RealDisk> = Arc::new(RealDisk::open(dir)?);
    let _lock = disk.lock(LOCK_FILE).map_err(|error| match error {
        DiskError::Held { .. } => RecoveryRefused::InUse { dir: dir.display().to_string() },
        error => error.into(),
    })?;
    // Under the lock, as it was when nobody could change it.
    let Fit { server, record, manages } = fit(recovery, dir, server)?;
    let authority = Authority::from_pem(cluster, recovery.authority.as_bytes())?;
    let (mut aside, mut goes_on) = (None, false);
    let has_taken = has_identity_of(dir, &authority)?;
    if !has_taken {
        keep_before(&*disk, dir, map, &authority)?;
    }
    if manages {
        authority.save(&dir.join(AUTHORITY_FILE))?;
        aside = match begin_log(disk.clone(), (cluster, server), map, &recovery.voters, has_taken)?
        {
            LogStart::New(aside) => aside,
            LogStart::GoesOn => {
                goes_on = true;
                None
            }
            LogStart::Forgotten => {
                return Err(RecoveryRefused::Forgotten { dir: dir.display().to_string() });
            }
        };
        if !has_taken {
            // The authority before has signed them. Since then no manager has run here: it would not have started.
            forget_tokens_of(&*disk)?;
        }
    }
    // Last: with another authority's it finds no manager, and a manager does not start.
    let identity = authority.identity(server, roles_of(&record.roles))?;
    identity.save(&dir.join(IDENTITY_FILE))?;
    let aside = aside.map(|aside| dir.join(aside));
    Ok(RecoveredDirectory { server, name: record.name, goes_on, aside })
}

/// Returns true if the directory has taken the recovery of this authority: a manager has begun its log then.
fn has_identity_of(dir: &Path, authority: &Authority) -> Result<bool, RecoveryRefused> {
    let path = dir.join(IDENTITY_FILE);
    Ok(path.exists() && authority.signed(&Identity::load(&path)?))
}

/// Copies identity and authority beside the files that are replaced: with these the server belongs to the managers of before, if
/// they go on after all. A copy is durable, as a whole, before the file is replaced. One that is torn is made again, unless
/// the file was replaced already.
fn keep_before(
    disk: &dyn Disk,
    dir: &Path,
    map: &Topology,
    new: &Authority,
) -> Result<(), RecoveryRefused> {
    let cluster = cluster_of(map);
    let authority = |path: &Path| Authority::load(cluster, path);
    for name in [IDENTITY_FILE, AUTHORITY_FILE] {
        let before = format!("{name}.{}", before(map));
        let (path, copy) = (dir.join(name), dir.join(&before));
        let (is_replaced, is_kept) = match name {
            AUTHORITY_FILE => (
                authority(&path).is_ok_and(|found| found.fingerprint() == new.fingerprint()),
                authority(&copy).is_ok(),
            ),
            _ => (false, Identity::load(&copy).is_ok()),
        };
        if path.exists() && !is_replaced && !is_kept {
            // Its owner's alone, as the file itself.
            replace_file(disk, "", &before, &read_file(disk, name)?)?;
        }
    }
    Ok(())
}

/// The cluster of a recovery.
///
/// # Panics
/// If there is none, which [`make`](super::make) never makes.
fn cluster_of(map: &Topology) -> ClusterId {
    ClusterId(map.founded.expect("a recovery is of a cluster that was founded").0.0)
}

/// Refuses a directory whose own map has something that the recovery lacks; of one that holds data also one whose map is not known.
fn check_kept(
    disk: &dyn Disk,
    dir: &Path,
    map: &Topology,
    holds_data: bool,
) -> Result<(), RecoveryRefused> {
    let shown = || dir.display().to_string();
    let kept = match read_file(disk, MAP_FILE) {
        Err(DiskError::NotFound { .. }) if holds_data => {
            return Err(RecoveryRefused::Unknown { dir: shown() });
        }
        Err(DiskError::NotFound { .. }) => return Ok(()),
        read => StoredMap::decode(&read?),
    };
    let kept = match kept {
        Ok(kept) => kept.map,
        Err(BadMap::Damaged) if !holds_data => return Ok(()),
        Err(reason) => return Err(RecoveryRefused::BadMap { dir: shown(), reason }),
    };
    if kept.map_mark().is_none_or(|mark| mark.is_reached_by(map)) {
        return Ok(());
    }
    if has_taken(&kept, map) {
        return Err(RecoveryRefused::Continued { dir: shown() });
    }
    Err(RecoveryRefused::Later { dir: shown(), kept: kept.version.0, made: map.version.0 })
}
