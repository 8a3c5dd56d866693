//! A meta server of a cluster takes its damaged index out of service, and begins without one: the other members have all
//! of it (ADR 81). Its groups go on without the server first, by views of which it is no member. Then index and log are
//! set aside. The server comes back as one that lost its disk does: as a learner, by snapshots.
//!
//! ```text
//!  damage ─▶ no group counts on it ─▶ file: moving ─▶ kv/, log/ renamed ─▶ file: moved ─▶ opens with nothing
//!              │ not within the wait                    ▲ a start goes on here
//!              ▼                                        └ crash
//!         stays out
//! ```
//!
//! # Invariants
//!
//! 1. Nothing is moved before a map shows that nothing counts on what this server has of any group. It is no member, or one
//!    that *lacks* what the others have: such a member leads no view, and is given all anew. Each group that it is to have
//!    again is active, and another member that may lead it is up. A manager has confirmed that map since this start began.
//! 2. Until then the managers do not hear that this run began. So it is in no view that begins meanwhile before it has come
//!    back with nothing.
//! 3. Index and log are of one moment, and are moved together. The server opens neither before both are moved.
//! 4. One index is kept aside at a time. The next damage waits until an operator has looked, and removed it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use larder_env::disk::{read_file, replace_file};
use larder_env::{Disk, DiskError};
use larder_protocol::manager::policy::ServerMessage;
use larder_types::ServerId;
use larder_types::codec::CodecError;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::damage::INDEX_DAMAGE_FILE;
use super::error::{NotSetAside, OpenError};
use super::recover::{KV_DIR, LOG_DIR};
use super::spare::{needed_by, to_leave};
use super::summed;
use crate::clock::now_ms;
use crate::limits::{LEAVE_ASK_AFTER_MS, LEAVE_ASK_MS, LEAVE_LOOK_MS, LEAVE_WAIT_MS};
use crate::managers::Managers;

/// The file that says where a damaged index was set aside, in the server's directory.
pub const SET_ASIDE_FILE: &str = "index-set-aside";

/// An index and a log that were set aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAside {
    /// Milliseconds since 1970 when it began.
    pub since_ms: u64,
    /// The damage.
    pub reason: String,
    /// The folder that has them, in the server's directory.
    pub folder: String,
    /// Both are there.
    is_moved: bool,
}

/// Sets a member's damaged index and its log aside, once its groups go on without it. `stamp` is a part of the folder's
/// name. Nobody has the directory open, `root` is the root of `disk`, and this start has said nothing to managers yet.
///
/// # Errors
/// [`OpenError::NotSetAside`]: the index stays where it is, unless the system refused in the middle. Then the next start
/// goes on.
pub async fn set_index_aside(
    (disk, root): (&dyn Disk, &Path),
    managers: &dyn Managers,
    (me, stamp): (ServerId, &str),
    damage: &OpenError,
) -> Result<SetAside, OpenError> {
    if let Some(before) = load(disk)? {
        return Err(NotSetAside::Before(before.folder).into());
    }
    let needed = bytes_below(&root.join(KV_DIR)) + bytes_below(&root.join(LOG_DIR));
    let free = disk.free_bytes()?;
    if free < needed {
        return Err(NotSetAside::NoRoom { free, needed }.into());
    }
    tracing::error!(
        %damage,
        "the index is damaged: it is set aside once all groups go on without this server, and copied from their other members"
    );
    wait_to_leave(managers, me, Duration::from_millis(LEAVE_WAIT_MS)).await?;
    let (since_ms, reason) = (now_ms(), damage.to_string());
    let folder = format!("{SET_ASIDE_FILE}-{stamp}");
    let aside = SetAside { since_ms, reason, folder, is_moved: false };
    store(disk, &aside)?;
    finish(disk, root, aside)
}

/// Waits until all groups go on without a server.
async fn wait_to_leave(
    managers: &dyn Managers,
    me: ServerId,
    wait: Duration,
) -> Result<(), NotSetAside> {
    let began = Instant::now();
    let mut asks_from = Duration::from_millis(LEAVE_ASK_AFTER_MS);
    loop {
        let is_confirmed = managers.silent() < began.elapsed();
        let needed = needed_by(&managers.map(), me);
        let why = match needed {
            None if is_confirmed => return Ok(()),
            None => NotSetAside::NoManagers,
            Some(pg) => NotSetAside::Needed(pg),
        };
        if began.elapsed() >= wait {
            return Err(why);
        }
        if began.elapsed() >= asks_from {
            asks_from += Duration::from_millis(LEAVE_ASK_MS);
            ask_to_leave(managers, me);
        }
        tokio::time::sleep(Duration::from_millis(LEAVE_LOOK_MS)).await;
    }
}

/// Has the managers no longer count on what this server has of groups that cannot go on without it as a member: they have
/// too few others. The managers refuse it for the last member that may lead. This is the word of the run before, which the
/// map has until the next is told.
fn ask_to_leave(managers: &dyn Managers, me: ServerId) {
    let map = managers.map();
    let Some(boot) = map.servers.get(&me).map(|record| record.boot) else { return };
    for (pg, view) in to_leave(&map, me) {
        managers.send_message(ServerMessage::Lacks(boot, pg, view));
    }
}

/// Goes on with what a crash cut off. Returns the index that is kept aside; one whose folder an operator removed is
/// forgotten.
pub(super) fn resume(disk: &dyn Disk, root: &Path) -> Result<Option<SetAside>, OpenError> {
    match load(disk)? {
        Some(aside) if !aside.is_moved => finish(disk, root, aside).map(Some),
        Some(aside) if !root.join(&aside.folder).exists() => {
            remove(disk, SET_ASIDE_FILE)?;
            Ok(None)
        }
        aside => Ok(aside),
    }
}

/// Moves what is still where it was.
fn finish(disk: &dyn Disk, root: &Path, mut aside: SetAside) -> Result<SetAside, OpenError> {
    let folder = root.join(&aside.folder);
    let moved = || -> std::io::Result<()> {
        std::fs::create_dir_all(&folder)?;
        File::open(root)?.sync_all()?;
        for dir in [KV_DIR, LOG_DIR] {
            let (from, to) = (root.join(dir), folder.join(dir));
            if from.exists() && !to.exists() {
                std::fs::rename(from, to)?;
            }
        }
        File::open(&folder)?.sync_all()?;
        File::open(root)?.sync_all()
    };
    moved().map_err(NotSetAside::System)?;
    remove(disk, INDEX_DAMAGE_FILE)?;
    aside.is_moved = true;
    store(disk, &aside)?;
    tracing::warn!(folder = %folder.display(), "the damaged index was set aside: this server begins without one, and copies its groups from their other members");
    Ok(aside)
}

fn store(disk: &dyn Disk, aside: &SetAside) -> Result<(), DiskError> {
    replace_file(disk, "", SET_ASIDE_FILE, &summed::encode_file(aside))
}

fn remove(disk: &dyn Disk, file: &str) -> Result<(), DiskError> {
    match disk.remove(file) {
        Err(DiskError::NotFound { .. }) => Ok(()),
        removed => removed.and_then(|()| disk.sync_dir("")),
    }
}

fn load(disk: &dyn Disk) -> Result<Option<SetAside>, OpenError> {
    match read_file(disk, SET_ASIDE_FILE) {
        // Where something is cannot be guessed.
        Ok(bytes) => match decode_file(&bytes) {
            Ok(aside) => Ok(Some(aside)),
            Err(error) => Err(NotSetAside::System(std::io::Error::other(error)).into()),
        },
        Err(DiskError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn decode_file(bytes: &[u8]) -> Result<SetAside, CodecError> {
    summed::decode_file("where the damaged index was set aside", bytes)
}

/// Bytes of the files below a directory, as far as they can be looked at.
fn bytes_below(dir: &Path) -> u64 {
    let (mut bytes, mut dirs) = (0, vec![PathBuf::from(dir)]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(of) if of.is_dir() => dirs.push(entry.path()),
                Ok(of) => bytes += of.len(),
                Err(_) => {}
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
