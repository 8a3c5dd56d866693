//! The kind of a directory: a command changes directories of its own kind alone.
//!
//! `DIR/larder-dir.toml` names the kind and an id, and is written before anything else in the directory. Directories
//! without it are recognised by what is in them, and bound at their next start.
//!
//! # Invariants
//!
//! 1. A directory never changes its kind.
//! 2. [`check`] writes nothing; a refusal leaves every byte as it was.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use larder_net::{Identity, Role};
use larder_protocol::manager::state::ServerRole;
use larder_roles::identity::IDENTITY_FILE;
use serde::{Deserialize, Serialize};

use crate::private;

/// The file that binds a directory.
pub(crate) const MARKER: &str = "larder-dir.toml";
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
}

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KindError {
    #[error("{dir} is {what}: run `{command}`, or name another directory here")]
    Other { dir: String, what: &'static str, command: String },
    #[error("{path}: {source}; the kind of the directory is not known, and nothing was changed")]
    File { path: String, source: std::io::Error },
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
    const fn what(self) -> &'static str {
        match self {
            Self::Store => "the store of a single node",
            Self::Machine => "a machine of a cluster",
            Self::Worker => "the directory of a pack worker",
            Self::DevCluster => "a development cluster",
            Self::Manager => "the directory of a manager",
            Self::Meta => "the directory of a meta server",
            Self::Data => "the directory of a data server",
            Self::Proxy => "the directory of a proxy",
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
        }
    }

    /// Whether it is the directory of one server of a cluster.
    pub(crate) const fn is_role(self) -> bool {
        matches!(self, Self::Manager | Self::Meta | Self::Data | Self::Proxy)
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

/// Refuses a directory of another kind. Changes nothing.
pub(crate) fn check(dir: &Path, wanted: Kind) -> Result<(), KindError> {
    allow(dir, |found| found == wanted)
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

/// Makes the directory if it is missing, and binds it to its kind.
pub(crate) fn bind(dir: &Path, kind: Kind) -> Result<(), KindError> {
    check(dir, kind)?;
    let path = dir.join(MARKER);
    let fail = |path: &Path| {
        let path = path.display().to_string();
        move |source| KindError::File { path, source }
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fail(dir))?;
    if read(dir)?.is_some() {
        return Ok(());
    }
    let id = format!("{:016x}", larder_env::rng::unique_u64());
    let marker = toml::to_string(&Marker { version: VERSION, kind, id });
    let marker = marker.expect("numbers and words are TOML");
    private::write(&path, &format!("{HEAD}{marker}")).map_err(fail(&path))
}

/// The kind that the marker names, or else what is in the directory.
fn found(dir: &Path) -> Result<Option<Kind>, KindError> {
    Ok(match read(dir)? {
        Some(kind) => Some(kind),
        None => recognised(dir),
    })
}

fn read(dir: &Path) -> Result<Option<Kind>, KindError> {
    let path = dir.join(MARKER);
    let name = path.display().to_string();
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(source) => return Err(KindError::File { path: name, source }),
    };
    let wrong = |reason| KindError::Marker { path: name.clone(), reason };
    let marker: Marker =
        toml::from_str(&text).map_err(|error| wrong(error.message().to_owned()))?;
    if marker.version != VERSION {
        let version = marker.version;
        return Err(wrong(format!("it has version {version}, this release knows {VERSION}")));
    }
    Ok(Some(marker.kind))
}

/// The kind of a directory that no marker names.
fn recognised(dir: &Path) -> Option<Kind> {
    let has = |name: &str| dir.join(name).exists();
    if has(crate::node::RECORD) {
        return Some(Kind::Machine);
    }
    if has("cluster.toml") || has("node-1") {
        return Some(Kind::DevCluster);
    }
    if has(IDENTITY_FILE) {
        return Some(role_in(&dir.join(IDENTITY_FILE)));
    }
    if has("quorum") || has("authority.pem") {
        return Some(Kind::Manager);
    }
    // A machine that was cut off while it came in has its servers' identities, and no record.
    let is_entering = |role| has(&format!("{role}/{IDENTITY_FILE}"));
    if has("manager/quorum") || ["manager", "meta", "data", "proxy"].into_iter().any(is_entering) {
        return Some(Kind::Machine);
    }
    // Every process locks its directory first. Without the lock these names are somebody else's, such as a backend's.
    if !has("lock") {
        return has("manager/map").then_some(Kind::Store);
    }
    // Only a worker that has run writes its status: a wrong command may have left the rest.
    if has("spool") && (has("status.json") || has("worker")) {
        return Some(Kind::Worker);
    }
    if has("manager/map") {
        return Some(Kind::Store);
    }
    if has("spool") || has("worker") {
        return Some(Kind::Worker);
    }
    (has("log") || has("kv") || has("data0")).then_some(Kind::Store)
}

/// The role that the certificate names. One that cannot be read is a manager's: no other command changes it.
fn role_in(path: &Path) -> Kind {
    let Ok(identity) = Identity::load(path) else { return Kind::Manager };
    let roles = identity.subject().roles;
    [(Role::Meta, Kind::Meta), (Role::Data, Kind::Data), (Role::Proxy, Kind::Proxy)]
        .into_iter()
        .find_map(|(role, kind)| roles.has(role).then_some(kind))
        .unwrap_or(Kind::Manager)
}

#[cfg(test)]
mod tests;
