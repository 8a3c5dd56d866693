//! Root's keys of a single node: its file is changed, then the process that serves it reads it anew.
//!
//! # Invariants
//!
//! 1. The file is replaced as a whole, under a lock: of two commands at once the second sees what the first has done.
//! 2. It has the new pair before a process takes it.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{KeysError, KeysNow, Wanted, used};
use crate::credentials::{self, CredentialsError, Root};
use crate::kind::{self, Kind};
use crate::store_status::{Asked, ask_keys};

/// The file with root's keys, which no other command changes meanwhile.
struct Locked {
    path: PathBuf,
    root: Root,
    _lock: File,
}

impl Locked {
    fn open(dir: &Path) -> Result<Self, KeysError> {
        // A root's file would be none that the server's user can read.
        kind::check(dir, Kind::Store)?;
        let path = dir.join(credentials::FILE);
        let failed = |source| CredentialsError::File { path: path.display().to_string(), source };
        loop {
            let lock = File::open(&path).map_err(failed)?;
            lock.lock().map_err(failed)?;
            let (locked, there) =
                (lock.metadata().map_err(failed)?, fs::metadata(&path).map_err(failed)?);
            // Else another command has replaced it while this one waited.
            if locked.ino() == there.ino() && locked.dev() == there.dev() {
                let root = credentials::load_file(&path)?;
                return Ok(Self { path, root, _lock: lock });
            }
        }
    }

    /// Refuses a link, which is an operator's, and with it the file that it leads to.
    fn is_larders(&self) -> Result<(), KeysError> {
        match fs::symlink_metadata(&self.path).is_ok_and(|about| about.is_file()) {
            true => Ok(()),
            false => Err(KeysError::NotDone(format!(
                "{} is a link, whose file somebody else keeps: change it there, then restart the server",
                self.path.display()
            ))),
        }
    }
}

/// What the process takes; `None` if there is none.
fn now(dir: &Path) -> Result<Option<KeysNow>, KeysError> {
    let asked = ask_keys(dir, Asked::Now);
    asked.map_err(|error| KeysError::NotDone(format!("nothing was changed: {error}")))
}

/// Has the process take what the file has.
fn told(dir: &Path) -> Result<Option<KeysNow>, KeysError> {
    ask_keys(dir, Asked::ReadAnew).map_err(|error| {
        KeysError::NotDone(format!(
            "the file has changed, and the running server goes on with the keys before: {error}. Restart it"
        ))
    })
}

const fn by_whom(now: Option<&KeysNow>) -> &'static str {
    match now {
        Some(_) => "the running server takes them",
        None => "no server runs: the next start takes them",
    }
}

fn refuse_if_fixed(now: Option<&KeysNow>) -> Result<(), KeysError> {
    match now {
        Some(KeysNow { is_fixed: true, .. }) => Err(KeysError::NotDone(format!(
            "the server has root's keys from its environment: change {} and {}, then restart it",
            credentials::ACCESS_VARIABLE,
            credentials::SECRET_VARIABLE
        ))),
        _ => Ok(()),
    }
}

pub(super) fn rotate(dir: &Path, wanted: &Wanted<'_>) -> Result<Vec<String>, KeysError> {
    let file = Locked::open(dir)?;
    file.is_larders()?;
    refuse_if_fixed(now(dir)?.as_ref())?;
    let (root, name) = (&file.root, file.path.display());
    if root.previous.is_some() {
        return Err(KeysError::NotDone(format!(
            "the keys before the present ones are still taken: retire them first (larder keys retire {})",
            dir.display()
        )));
    }
    let new = wanted.made()?;
    if new.access_key == root.keys.access_key {
        return Err(KeysError::Usage("the new access key is the present one".to_owned()));
    }
    let previous = (!wanted.at_once).then_some(&root.keys);
    let failed = |source| CredentialsError::File { path: name.to_string(), source };
    credentials::write(&file.path, &new, previous).map_err(failed)?;
    let told = told(dir)?;
    let mut lines = vec![format!(
        "root's keys are rotated: {}. The new ones are in {name}, access key {}",
        by_whom(told.as_ref()),
        new.access_key
    )];
    lines.push(if wanted.at_once {
        format!("requests signed with access key {} are refused", root.keys.access_key)
    } else {
        format!(
            "access key {} is taken, too, until `larder keys retire {}`",
            root.keys.access_key,
            dir.display()
        )
    });
    Ok(lines)
}

pub(super) fn retire(dir: &Path, yes: bool) -> Result<Vec<String>, KeysError> {
    let file = Locked::open(dir)?;
    let now = now(dir)?;
    let Some(previous) = &file.root.previous else {
        return Ok(vec!["nothing to do: one pair of keys is taken".to_owned()]);
    };
    file.is_larders()?;
    refuse_if_fixed(now.as_ref())?;
    let use_of = |now: &KeysNow| used(now.previous_requests, now.previous_last_s);
    let mut lines = vec![now.as_ref().map_or("no server runs".to_owned(), use_of)];
    if !yes {
        lines.push(format!(
            "requests signed with access key {} would be refused. Nothing was changed: to do it, add --yes",
            previous.access_key
        ));
        return Ok(lines);
    }
    let failed = |source| CredentialsError::File { path: file.path.display().to_string(), source };
    credentials::write(&file.path, &file.root.keys, None).map_err(failed)?;
    told(dir)?;
    lines.push(format!("requests signed with access key {} are refused", previous.access_key));
    Ok(lines)
}

pub(super) fn status(dir: &Path) -> Result<Vec<String>, KeysError> {
    kind::allow(dir, |found| found == Kind::Store)?;
    match now(dir)? {
        Some(now) => {
            let whence = if now.is_fixed { "its environment" } else { "its file" };
            let mut lines = vec![format!("access key {}, from {whence}", now.access_key)];
            if now.takes_previous {
                lines.push(used(now.previous_requests, now.previous_last_s));
            }
            Ok(lines)
        }
        None => Err(KeysError::NotDone(format!(
            "no server runs on {0}; the next start takes the keys in {0}/{1}",
            dir.display(),
            credentials::FILE
        ))),
    }
}
