//! The kind of a directory: a command changes directories of its own kind alone.
//!
//! `DIR/larder-dir.toml` names the kind and an id, and is written before anything else in the directory. Directories
//! without it are recognised by what is in them, and bound at their next start. The backend of a worker has no such
//! file: its claims say what it is.
//!
//! # Invariants
//!
//! 1. A directory never changes its kind, and lies in none that has one.
//! 2. [`check`] writes nothing; a refusal leaves every byte as it was.

mod locked;
mod nesting;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use larder_identity::{Identity, Role};
use larder_protocol::manager::state::ServerRole;
use larder_roles::identity::IDENTITY_FILE;
use serde::{Deserialize, Serialize};

pub(crate) use locked::{LockedDirectory, bind, is_held};
pub(crate) use nesting::check_backend;

/// The file that binds a directory.
pub(crate) const MARKER: &str = "larder-dir.toml";
/// The file that says which machine of which cluster a directory is.
pub(crate) const RECORD: &str = "node.toml";
const VERSION: u32 = 1;
const HEAD: &str =
    "# Kind of this directory, written by larder. Commands for other kinds refuse it.\n";

/// Kinds of directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Of `larder server DIR`.
    Store,
    /// Of `larder server DIR --peer …`.
    Machine,
    /// Of `larder pack DIR`.
    Worker,
    /// Of `larder dev-cluster DIR`.
    DevCluster,
    /// Of `larder manager`.
    Manager,
    /// Of `larder meta`.
    Meta,
    /// Of `larder data`.
    Data,
    /// Of `larder proxy`.
    Proxy,
    /// Of blobs: `larder pack --backend file://DIR`. No marker names it.
    #[serde(skip)]
    Backend,
}

/// Refusals of a directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KindError {
    #[error("{dir} is {what}: run `{command}`, or name another directory here")]
    Other { dir: String, what: &'static str, command: String },
    #[error("{dir} is inside {outer}, which is {what}: name a directory outside of it")]
    Inside { dir: String, outer: String, what: &'static str },
    #[error("{dir} has {inner} in it, which is {what}: name a directory without it")]
    Around { dir: String, inner: String, what: &'static str },
    #[error(
        "the backend {backend} and the worker's directory {dir} are the same, or one is in the other: name two \
         directories apart from each other"
    )]
    Nested { backend: String, dir: String },
    #[error("{dir} is in use by another process: stop that one first, or name another directory")]
    InUse { dir: String },
    #[error("{path}: {source}; the kind of the directory is not known, and nothing was changed")]
    File { path: String, source: std::io::Error },
    #[error("{path}: {source}; the directory is as it was")]
    Bind { path: String, source: std::io::Error },
    #[error(
        "{dir} is user {owner}'s, and this would run as root, whose files that user could not read then. Start it as \
         that user (systemctl start larder, or runuser -u '#{owner}' -- larder …)"
    )]
    OfUser { dir: String, owner: u32 },
    #[error("{path} is empty: delete it, and the other files show the kind of the directory")]
    Empty { path: String },
    #[error(
        "{path} cannot be read: {reason}; use the release that wrote it, or restore it from a backup"
    )]
    Marker { path: String, reason: String },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Marker {
    version: u32,
    kind: Kind,
    /// 16 hexadecimal digits, drawn when the directory was bound.
    id: String,
}

impl Kind {
    pub(crate) const fn what(self) -> &'static str {
        match self {
            Self::Store => "the store of a single node",
            Self::Machine => "a machine of a cluster",
            Self::Worker => "the directory of a pack worker",
            Self::DevCluster => "a development cluster",
            Self::Manager => "the directory of a manager",
            Self::Meta => "the directory of a meta server",
            Self::Data => "the directory of a data server",
            Self::Proxy => "the directory of a proxy",
            Self::Backend => "the backend of a pack worker",
        }
    }

    fn command(self, dir: &str) -> String {
        match self {
            Self::Store => format!("larder server {dir}"),
            Self::Machine => format!("larder server {dir} --peer HOST:PORT …"),
            Self::Worker => format!("larder pack {dir} --backend URL"),
            Self::DevCluster => format!("larder dev-cluster {dir}"),
            Self::Manager => "larder manager --config FILE".to_owned(),
            Self::Meta => "larder meta --config FILE".to_owned(),
            Self::Data => "larder data --config FILE".to_owned(),
            Self::Proxy => "larder proxy --config FILE".to_owned(),
            Self::Backend => format!("larder pack DIR --backend file://{dir}"),
        }
    }

    /// True if it is the directory of one server of a cluster.
    pub(crate) const fn is_role(self) -> bool {
        self.role_dir().is_some()
    }

    /// The directory that a development cluster gives such a server of a node.
    const fn role_dir(self) -> Option<&'static str> {
        match self {
            Self::Manager => Some("manager"),
            Self::Meta => Some("meta"),
            Self::Data => Some("data"),
            Self::Proxy => Some("proxy"),
            _ => None,
        }
    }
}

impl From<ServerRole> for Kind {
    fn from(role: ServerRole) -> Self {
        match role {
            ServerRole::Manager => Self::Manager,
            ServerRole::Meta => Self::Meta,
            ServerRole::Data => Self::Data,
            ServerRole::Proxy => Self::Proxy,
        }
    }
}

/// Refuses a directory of another kind, one inside a directory that has a kind, and a new one around such a
/// directory. Changes nothing.
pub(crate) fn check(dir: &Path, wanted: Kind) -> Result<(), KindError> {
    allow(dir, |found| found == wanted)?;
    let owner = fs::metadata(dir.join(MARKER)).map_or(0, |about| about.uid());
    if owner != 0 && rustix::process::geteuid().is_root() {
        return Err(KindError::OfUser { dir: dir.display().to_string(), owner });
    }
    nesting::outside(dir, Some(wanted))?;
    if found(dir)?.is_none() { nesting::around_none(dir) } else { Ok(()) }
}

/// Refuses a directory that has a kind, or lies inside one that has. Changes nothing.
pub(crate) fn check_unowned(dir: &Path) -> Result<(), KindError> {
    allow(dir, |_| false)?;
    nesting::outside(dir, None)
}

/// Refuses a directory whose kind is known and not allowed. Changes nothing.
pub(crate) fn allow(dir: &Path, allowed: impl Fn(Kind) -> bool) -> Result<(), KindError> {
    match found(dir)? {
        Some(found) if !allowed(found) => {
            let (name, what) = (dir.display().to_string(), found.what());
            Err(KindError::Other { command: found.command(&name), dir: name, what })
        }
        _ => Ok(()),
    }
}

/// The kind that the marker names, or else what is in the directory.
pub(crate) fn found(dir: &Path) -> Result<Option<Kind>, KindError> {
    Ok(match read(dir)? {
        Some(kind) => Some(kind),
        None => recognised(dir),
    })
}

fn read(dir: &Path) -> Result<Option<Kind>, KindError> {
    let path = dir.join(MARKER);
    let name = path.display().to_string();
    let wrong = |reason| KindError::Marker { path: name.clone(), reason };
    let fail = |source| KindError::File { path: name.clone(), source };
    match fs::metadata(&path) {
        // A pipe would never end.
        Ok(marker) if !marker.is_file() => return Err(wrong("it is not a file".to_owned())),
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(source) => return Err(fail(source)),
    }
    let text = fs::read_to_string(&path).map_err(fail)?;
    if text.is_empty() {
        return Err(KindError::Empty { path: name });
    }
    // The version first: what else a later release writes is not known.
    let table: toml::Table =
        text.parse().map_err(|e: toml::de::Error| wrong(e.message().to_owned()))?;
    match table.get("version").and_then(toml::Value::as_integer) {
        Some(version) if version != i64::from(VERSION) => {
            return Err(wrong(format!("it has version {version}, this release knows {VERSION}")));
        }
        _ => {}
    }
    let marker: Marker =
        table.try_into().map_err(|e: toml::de::Error| wrong(e.message().to_owned()))?;
    Ok(Some(marker.kind))
}

/// The kind of a directory that no marker names.
fn recognised(dir: &Path) -> Option<Kind> {
    certain(dir).or_else(|| likely(dir))
}

/// The kind by files that nobody else's directory has, also of a directory that is only on the way to another.
fn certain(dir: &Path) -> Option<Kind> {
    let has = |name: &str| dir.join(name).exists();
    // Only a worker that has run writes its status: a wrong command of an early release may have left the rest.
    if has("lock") && has("spool") && (has("status.json") || has("worker")) {
        return Some(Kind::Worker);
    }
    if has("manager/map") && has("log") {
        return Some(Kind::Store);
    }
    if has(RECORD) {
        return Some(Kind::Machine);
    }
    if has("cluster.toml") && has("node-1") {
        return Some(Kind::DevCluster);
    }
    if let Ok(identity) = Identity::load(&dir.join(IDENTITY_FILE)) {
        let roles = identity.subject().roles;
        let kinds =
            [(Role::Meta, Kind::Meta), (Role::Data, Kind::Data), (Role::Proxy, Kind::Proxy)];
        let kind = kinds.into_iter().find_map(|(role, kind)| roles.has(role).then_some(kind));
        return Some(kind.unwrap_or(Kind::Manager));
    }
    is_backend(dir).then_some(Kind::Backend)
}

/// The kind by what a start that was cut off may have left.
fn likely(dir: &Path) -> Option<Kind> {
    let has = |name: &str| dir.join(name).exists();
    if has("cluster.toml") || has("node-1") {
        return Some(Kind::DevCluster);
    }
    // An identity that cannot be read is a manager's: no other command changes it.
    if has(IDENTITY_FILE) || has("quorum") || has("authority.pem") {
        return Some(Kind::Manager);
    }
    // A machine that was cut off while it came in has its servers' identities, and no record.
    let is_entering = |role| has(&format!("{role}/{IDENTITY_FILE}"));
    if has("manager/quorum") || ["manager", "meta", "data", "proxy"].into_iter().any(is_entering) {
        return Some(Kind::Machine);
    }
    if has("manager/map") {
        return Some(Kind::Store);
    }
    // Every process locks its directory first. Without the lock these names are somebody else's.
    if !has("lock") {
        return None;
    }
    if has("spool") || has("worker") {
        return Some(Kind::Worker);
    }
    (has("log") || has("kv") || has("data0")).then_some(Kind::Store)
}

/// Tells if a worker has claimed it, or one of several that share it: see `docs/formats/blob.md` and `workers.md`.
fn is_backend(dir: &Path) -> bool {
    let is_claim = |name: &str| name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit());
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let is_claimed = |dir: &Path| {
        let mut claims = entries(&dir.join("claims"));
        claims.any(|claim| claim.file_name().to_str().is_some_and(is_claim))
    };
    is_claimed(dir) || entries(&dir.join("workers")).any(|worker| is_claimed(&worker.path()))
}

#[cfg(test)]
mod tests;
