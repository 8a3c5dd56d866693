//! Root's keys of a single node: its file is changed, then the process that serves it reads it anew.
//!
//! # Invariants
//!
//! 1. The file is replaced as a whole, under a lock: of two commands at once the second sees what the first has done.
//! 2. It has the new pair before a process takes it. A command that was cut off in between is finished by the next one.
//! 3. Nothing is changed while a process serves the directory that cannot be asked.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::{Done, KeysError, NewKeys, used};
use crate::credentials::{self, CredentialsError, Root};
use crate::kind::{self, Kind};
use crate::root_keys::KeysStatus;
use crate::store_status::{SocketRequest, request_keys};

/// Time that another command has to end.
const LOCKED_WITHIN: Duration = Duration::from_secs(15);

/// The file with root's keys, which no other command changes meanwhile, and what a process takes.
struct Locked<'a> {
    dir: &'a Path,
    path: PathBuf,
    root: Root,
    /// `None` if no process serves the store.
    now: Option<KeysStatus>,
    /// Lines about an earlier command.
    notes: Vec<String>,
    _lock: File,
}

impl<'a> Locked<'a> {
    fn open(dir: &'a Path) -> Result<Self, KeysError> {
        // A file of root's would be none that the server's user can read.
        kind::check(dir, Kind::Store)?;
        let now = now(dir)?;
        refuse_if_fixed(now.as_ref())?;
        if now.is_none() && kind::is_held(dir)? {
            return Err(KeysError::NotDone(format!(
                "a server runs on {} that cannot be asked, or one that starts or stops: nothing was changed. Try again; \
                 if that stays so, restart it",
                dir.display()
            )));
        }
        let path = dir.join(credentials::FILE);
        is_larders(&path)?;
        let lock = lock(&path)?;
        let root = credentials::read_kept(&path)?;
        // It may have changed before the lock.
        let now = if now.is_some() { self::now(dir)? } else { None };
        Ok(Self { dir, path, root, now, notes: Vec::new(), _lock: lock })
    }

    /// Has the process take the file where an earlier command was cut off before it could. Such a file has the pair that clients
    /// sign with; another is somebody else's, and would end that pair.
    fn settle(&mut self, at_once: bool) -> Result<(), KeysError> {
        let Some(now) = self.now.as_ref().filter(|now| !now.are_of_file) else { return Ok(()) };
        let mut pairs = std::iter::once(&self.root.keys).chain(&self.root.previous);
        if pairs.any(|pair| pair.access_key == now.access_key) {
            self.now = self.reload()?;
            self.notes
                .push("the server takes what is in the file now: it had not read it".to_owned());
        } else if !at_once {
            return Err(KeysError::NotDone(format!(
                "the server takes access key {}, and {} has others: restart it to have it take these, or put the file back. \
                 Nothing was changed",
                now.access_key,
                self.path.display()
            )));
        }
        Ok(())
    }

    /// Has the process take what the file has.
    fn reload(&self) -> Result<Option<KeysStatus>, KeysError> {
        request_keys(self.dir, SocketRequest::ReadAnew).map_err(|error| {
            KeysError::NotDone(format!(
                "the file has changed, and the running server may not have taken it: {error}. Run `larder keys status \
                 {}`, or restart it",
                self.dir.display()
            ))
        })
    }

    /// Replaces the file, and has a process take it.
    fn write(
        &self,
        keys: &larder_s3::Credentials,
        previous: Option<&larder_s3::Credentials>,
    ) -> Result<Option<KeysStatus>, KeysError> {
        let failed =
            |source| CredentialsError::File { path: self.path.display().to_string(), source };
        credentials::write(&self.path, keys, previous).map_err(failed)?;
        self.reload()
    }
}

/// Locks the file as it is there.
fn lock(path: &Path) -> Result<File, KeysError> {
    let failed = |source| CredentialsError::File { path: path.display().to_string(), source };
    let until = Instant::now() + LOCKED_WITHIN;
    loop {
        let file = File::open(path).map_err(failed)?;
        let left = until.saturating_duration_since(Instant::now());
        let lock = locked(file, left).map_err(failed)?.ok_or_else(|| {
            KeysError::NotDone(
                "another `larder keys` is at work here: nothing was changed".to_owned(),
            )
        })?;
        let (locked, there) =
            (lock.metadata().map_err(failed)?, fs::metadata(path).map_err(failed)?);
        // Else another command has replaced it while this one waited.
        if locked.ino() == there.ino() && locked.dev() == there.dev() {
            return Ok(lock);
        }
    }
}

/// The file, locked; `None` if another process has the lock for so long.
fn locked(file: File, within: Duration) -> std::io::Result<Option<File>> {
    let (tell, notes) = mpsc::channel();
    // It ends with this process at the latest.
    std::thread::spawn(move || tell.send(file.lock().map(|()| file)));
    notes.recv_timeout(within).map_or(Ok(None), |locked| locked.map(Some))
}

/// Refuses a link, which is an operator's, and with it the file that it leads to.
fn is_larders(path: &Path) -> Result<(), KeysError> {
    match fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_symlink()) {
        false => Ok(()),
        true => Err(KeysError::NotDone(format!(
            "{} is a link, whose file somebody else keeps: change it there, then restart the server",
            path.display()
        ))),
    }
}

/// Keys that the process takes; `None` if no process runs.
fn now(dir: &Path) -> Result<Option<KeysStatus>, KeysError> {
    let asked = request_keys(dir, SocketRequest::Now);
    asked.map_err(|error| KeysError::NotDone(format!("nothing was changed: {error}")))
}

fn refuse_if_fixed(now: Option<&KeysStatus>) -> Result<(), KeysError> {
    match now {
        Some(KeysStatus { is_fixed: true, .. }) => Err(KeysError::NotDone(format!(
            "the server has root's keys from its environment: change {} and {}, then restart it. Nothing was changed",
            credentials::ACCESS_VARIABLE,
            credentials::SECRET_VARIABLE
        ))),
        _ => Ok(()),
    }
}

pub(super) fn rotate(dir: &Path, wanted: &NewKeys<'_>) -> Result<Done, KeysError> {
    let mut file = Locked::open(dir)?;
    file.settle(wanted.at_once)?;
    if file.root.previous.is_some() && !wanted.at_once {
        let notes = file.notes.iter().map(|line| format!("{line}; ")).collect::<String>();
        return Err(KeysError::NotDone(format!(
            "{notes}the earlier keys are still valid: retire them first (larder keys retire {})",
            dir.display()
        )));
    }
    let (new, present) = (wanted.made()?, &file.root.keys);
    let mut taken = std::iter::once(present).chain(&file.root.previous);
    if taken.any(|pair| pair.access_key == new.access_key) {
        return Err(KeysError::Usage(
            "the new access key is one of those that are taken".to_owned(),
        ));
    }
    let now = file.write(&new, (!wanted.at_once).then_some(present))?;
    let by_whom = match now {
        Some(_) => "the running server takes them",
        None => "no server runs: the next start takes them",
    };
    let mut lines = file.notes;
    lines.push(format!(
        "root's keys are rotated: {by_whom}. Both are in {}, access key {}",
        file.path.display(),
        new.access_key
    ));
    let before = &present.access_key;
    lines.push(match wanted.at_once {
        true => "requests signed with the keys before are refused".to_owned(),
        false => {
            format!(
                "access key {before} is taken, too, until `larder keys retire {}`",
                dir.display()
            )
        }
    });
    Ok(Done::all(lines))
}

pub(super) fn retire(dir: &Path, yes: bool) -> Result<Done, KeysError> {
    let mut file = Locked::open(dir)?;
    if yes {
        file.settle(false)?;
    }
    let mut lines = file.notes.clone();
    let Some(previous) = &file.root.previous else {
        lines.push("nothing to do: one pair of keys is taken".to_owned());
        return Ok(Done::all(lines));
    };
    let use_of = |now: &KeysStatus| used(now.previous_requests, now.previous_last_s);
    lines.push(file.now.as_ref().map_or("no server runs".to_owned(), use_of));
    let access_key = &previous.access_key;
    if !yes {
        lines.push(format!(
            "requests signed with access key {access_key} would be refused. Nothing was changed: to do it, add --yes"
        ));
        return Ok(Done::all(lines));
    }
    file.write(&file.root.keys, None)?;
    lines.push(format!("requests signed with access key {access_key} are refused"));
    Ok(Done::all(lines))
}

pub(super) fn status(dir: &Path) -> Result<Done, KeysError> {
    kind::allow(dir, |found| found == Kind::Store)?;
    let Some(now) = now(dir)? else {
        return Err(KeysError::NotDone(format!(
            "no server that can be asked runs on {0}; the next start takes the keys in {0}/{1}",
            dir.display(),
            credentials::FILE
        )));
    };
    let whence = if now.is_fixed { "its environment" } else { "its file" };
    let mut lines = vec![format!("the server takes access key {}, from {whence}", now.access_key)];
    if let Some(previous) = &now.previous_access_key {
        let used = used(now.previous_requests, now.previous_last_s);
        lines.push(format!("and access key {previous}: {used}"));
    }
    if now.is_fixed {
        return Ok(Done::all(lines));
    }
    let file = dir.join(credentials::FILE);
    let takes_it = now.are_of_file;
    if let Err(error) = credentials::read_kept(&file) {
        lines.push(format!("its file cannot be read: {error}"));
    } else if !takes_it {
        lines.push(format!(
            "{} HAS OTHER KEYS: a command was cut off, or somebody changed it. A restart has the server take them",
            file.display()
        ));
    }
    Ok(Done { lines, is_whole: takes_it })
}
