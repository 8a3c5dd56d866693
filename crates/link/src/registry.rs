//! The file of the list of regions. Commands and the server change it, each under the folder's lock.
//!
//! # Invariants
//!
//! 1. The file is replaced as a whole, durably, before anything acts on it.
//! 2. A writer reads it under the lock first: no change of another is lost.
//! 3. A reader verifies the file's sum and checks its content.
//! 4. No other region learns a number before the store has kept it outside the directory, if it has a place for that. So an
//!    older copy of the directory never gives the number to another region.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use larder_types::RegionId;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{LinkError, Usage};
use crate::files;
use crate::identity::Identity;
use crate::members::{Known, Members, OwnRegion};
use crate::name::{Address, RegionName};

const MEMBERS: &str = "members";
const IDENTITY: &str = "identity";
/// Bytes of the sum behind the list.
const SUM_BYTES: usize = 8;

/// Reads the key of the region in a store's directory, or draws one if there is none.
pub(crate) fn load_or_draw_identity(dir: &Path) -> Result<Identity, LinkError> {
    Identity::load_or_draw(&files::path(dir, IDENTITY))
}

/// Reads the key of the region in a store's directory.
pub(crate) fn identity(dir: &Path) -> Result<Identity, LinkError> {
    Identity::load(&files::path(dir, IDENTITY))
}

/// Makes the store in a directory the first region.
///
/// # Errors
/// [`Usage::AlreadyRegion`], and if files cannot be written.
pub fn found(
    dir: &Path,
    name: RegionName,
    listen: String,
    advertise: Address,
) -> Result<Members, LinkError> {
    files::make_folder(dir)?;
    let _lock = files::lock(dir)?;
    refuse_region(dir)?;
    let fingerprint = load_or_draw_identity(dir)?.fingerprint();
    let (number, removed) = (RegionId(1), false);
    let own = OwnRegion { number, name, listen, advertise, fingerprint, removed };
    let members = Members::first(own);
    write(dir, &members)?;
    Ok(members)
}

/// Refuses a store that is a region.
pub(crate) fn refuse_region(dir: &Path) -> Result<(), LinkError> {
    match read(dir)? {
        Some(Members { own, .. }) if own.removed => {
            Err(Usage::WasRemoved { dir: dir.to_owned() }.into())
        }
        Some(Members { own, .. }) => {
            let (dir, number, name) = (dir.to_owned(), own.number, own.name);
            Err(Usage::AlreadyRegion { dir, number, name }.into())
        }
        None => Ok(()),
    }
}

/// Reads the list of regions in a store's directory; `None` if it is no region.
///
/// # Errors
/// If the file cannot be read, or is not what was written.
pub fn read(dir: &Path) -> Result<Option<Members>, LinkError> {
    let path = files::path(dir, MEMBERS);
    match fs::metadata(&path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(source) => return Err(LinkError::File { path, source }),
        Ok(_) => {}
    }
    let bytes = files::read_private(&path)?;
    let damaged = |why: String| {
        let why = format!("{why}; restore it from a backup");
        LinkError::Damaged { path: path.clone(), why }
    };
    let (body, sum) =
        bytes.split_last_chunk::<SUM_BYTES>().ok_or_else(|| damaged("it is cut off".to_owned()))?;
    if xxh3_64(body) != u64::from_le_bytes(*sum) {
        return Err(damaged("its sum does not match".to_owned()));
    }
    let members = Members::decoded(body).map_err(|error| damaged(error.to_string()))?;
    members.check().map_err(damaged)?;
    Ok(Some(members))
}

/// Changes the list of regions in a store's directory, if the change succeeds.
///
/// # Errors
/// The errors of the change; [`Usage::NotRegion`]; or the file cannot be read or written.
pub fn change<T>(
    dir: &Path,
    change: impl FnOnce(&mut Members) -> Result<T, LinkError>,
) -> Result<(T, Members), LinkError> {
    let none = || Usage::NotRegion(dir.to_owned());
    if read(dir)?.is_none() {
        return Err(none().into());
    }
    let _lock = files::lock(dir)?;
    let before = read(dir)?.ok_or_else(none)?;
    let mut members = before.clone();
    let value = change(&mut members)?;
    if members != before {
        write(dir, &members)?;
    }
    Ok((value, members))
}

/// Replaces the list. The caller has the lock.
pub(crate) fn write(dir: &Path, members: &Members) -> Result<(), LinkError> {
    assert_eq!(members.check(), Ok(()), "a list of regions is checked before it is kept");
    files::replace(&files::path(dir, MEMBERS), &stored(members))
}

pub(crate) fn stored(members: &Members) -> Vec<u8> {
    let mut bytes = members.encoded();
    bytes.extend(xxh3_64(&bytes).to_le_bytes());
    bytes
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = larder_env::clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

/// Version of the file: another file, or one that was written since, has another.
type Version = (u64, i64, i64, u64);

/// The list of a running server, which tells its subscribers of changes.
#[derive(Debug)]
pub(crate) struct Registry {
    dir: PathBuf,
    seen: Mutex<Option<Version>>,
    members: watch::Sender<Arc<Members>>,
    /// Numbers that are kept beside the directory, or that another region has told.
    exchangeable: Mutex<BTreeSet<RegionId>>,
    /// Notified when these are more.
    more: Notify,
}

impl Registry {
    /// Opens the list in a store's directory; `None` if the store is no region.
    pub(crate) fn open(dir: &Path) -> Result<Option<Self>, LinkError> {
        let seen = version(dir);
        let Some(members) = read(dir)? else { return Ok(None) };
        let members = watch::Sender::new(Arc::new(members));
        let (seen, exchangeable, more) = (Mutex::new(seen), Mutex::default(), Notify::new());
        Ok(Some(Self { dir: dir.to_owned(), seen, members, exchangeable, more }))
    }

    pub(crate) fn now(&self) -> Arc<Members> {
        self.members.borrow().clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Members>> {
        self.members.subscribe()
    }

    /// The regions that others may be told of: this one, and those whose numbers are kept.
    pub(crate) fn exchanged(&self) -> Vec<Known> {
        let (members, exchangeable) = (self.now(), self.exchangeable.lock());
        let mut reported = members.exchanged();
        reported.retain(|it| it.number == members.own.number || exchangeable.contains(&it.number));
        reported
    }

    /// Waits until other regions may be told of more.
    pub(crate) async fn publishes_more(&self) {
        self.more.notified().await;
    }

    /// Notes that these numbers are kept outside the directory, or by another region.
    pub(crate) fn are_kept(&self, known: &[Known]) {
        let mut exchangeable = self.exchangeable.lock();
        let before = exchangeable.len();
        exchangeable.extend(known.iter().map(|it| it.number));
        if exchangeable.len() > before {
            self.more.notify_one();
        }
    }

    /// Changes the list, here and in the file. Waits for the disk, and for commands that change the file.
    pub(crate) fn change<T>(
        &self,
        with: impl FnOnce(&mut Members) -> Result<T, LinkError>,
    ) -> Result<T, LinkError> {
        let mut seen = self.seen.lock();
        let (value, members) = change(&self.dir, with)?;
        // A command may change the file in between: the next look reads it again.
        *seen = None;
        self.publish(members);
        Ok(value)
    }

    /// Joins in another region's list. Waits for the disk if it has anything new.
    pub(crate) fn merge(&self, reported: &[Known]) -> Result<(), LinkError> {
        let now = self.now();
        let mut joined = Members::clone(&now);
        joined.merge(reported)?;
        // Before the change is published: lists that are exchanged then have it.
        self.are_kept(reported);
        if joined == *now { Ok(()) } else { self.change(|members| members.merge(reported)) }
    }

    /// Takes up changes that a command made. Waits for the disk.
    pub(crate) fn reload(&self) -> Result<(), LinkError> {
        let mut seen = self.seen.lock();
        let version = version(&self.dir);
        if version == *seen && seen.is_some() {
            return Ok(());
        }
        let members = read(&self.dir)?.ok_or_else(|| Usage::NotRegion(self.dir.clone()))?;
        *seen = version;
        self.publish(members);
        Ok(())
    }

    fn publish(&self, members: Members) {
        self.members.send_if_modified(|shown| {
            let is_new = **shown != members;
            if is_new {
                *shown = Arc::new(members);
            }
            is_new
        });
    }
}

fn version(dir: &Path) -> Option<Version> {
    let about = fs::metadata(files::path(dir, MEMBERS)).ok()?;
    Some((about.ino(), about.mtime(), about.mtime_nsec(), about.len()))
}

#[cfg(test)]
#[path = "registry/tests.rs"]
mod tests;
