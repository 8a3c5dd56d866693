//! A manager's log made anew from a map, when managers were lost: see `crate::recover`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use larder_env::disk::read_file;
use larder_env::{Disk, DiskError};
use larder_protocol::manager::quorum::{
    HardState, Item, LogIndex, LogWrite, Members, Position, Snapshot, Stored, Term,
};
use larder_protocol::manager::state::{Command, Timeline, Topology};
use larder_types::codec::decode;
use larder_types::{ClusterId, ServerId};

use super::disk::{DIR, PATH, QuorumDisk};
use super::error::ManagerError;
use super::tokens;
use super::v1::{BadFile, decode_file};

/// Term of the snapshot that managers made anew begin with. It may be low: no manager from before the recovery is admitted.
const FIRST_TERM: Term = Term(1);

/// The outcome of [`begin_log`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LogStart {
    /// The log begins with the map. A log from before was renamed to this.
    New(Option<PathBuf>),
    /// The log had begun with the map before, and is kept: the manager may have voted in it.
    GoesOn,
    /// The log is left as it is. It had begun with the map before, but what it had since is lost.
    Forgotten,
}

/// Begins a manager's log with a map, the same for all managers. `has_begun` is true if this was done before with this map:
/// it is never done twice.
pub(crate) fn begin_log(
    disk: Arc<dyn Disk>,
    (cluster, me): (ClusterId, ServerId),
    map: &Topology,
    voters: &BTreeSet<ServerId>,
    has_begun: bool,
) -> Result<LogStart, ManagerError> {
    let mut aside = None;
    match log_of(&*disk)? {
        Log::Of(before) if has_taken(&before, map) => return Ok(LogStart::GoesOn),
        _ if has_begun => return Ok(LogStart::Forgotten),
        Log::None => {}
        Log::Of(_) | Log::Unreadable => {
            let name = format!("{PATH}.{}", before(map));
            // A file of that name is the managers' log from before the recovery: a later one must not replace it.
            match read_file(&*disk, &name) {
                Err(DiskError::NotFound { .. }) => disk.rename(PATH, &name)?,
                read => drop(read?),
            }
            disk.remove(PATH).or_else(|error| match error {
                DiskError::NotFound { .. } => Ok(()),
                error => Err(error),
            })?;
            disk.sync_dir(DIR)?;
            aside = Some(PathBuf::from(name));
        }
    }
    let mut log = QuorumDisk::make(disk, cluster, me)?;
    let at = Position { term: FIRST_TERM, index: map.applied };
    let members = Members { voters: voters.clone(), ..Members::default() };
    let snapshot = Some(Snapshot { at, members, state: map.encode().into() });
    let hard = HardState { term: FIRST_TERM, voted_for: None };
    log.write(LogWrite { hard, snapshot, entries: None })?;
    Ok(LogStart::New(aside))
}

/// Suffix of the names of files from before a recovery.
pub(crate) fn before(recovered: &Topology) -> String {
    let id = recovered.timelines.last().map_or(0, |timeline| timeline.id);
    format!("before-{id:016x}")
}

/// Returns true if a map belongs to the history that begins with a recovery.
pub(crate) fn has_taken(of: &Topology, recovered: &Topology) -> bool {
    let id = |timeline: Timeline| timeline.id;
    recovered
        .timelines
        .last()
        .is_some_and(|last| of.timeline_at(last.since).map(id) == Some(last.id))
}

/// Removes the join tokens from before a recovery: they name the former authority.
pub(crate) fn forget_tokens_of(disk: &dyn Disk) -> Result<(), DiskError> {
    match disk.remove(tokens::FILE) {
        Ok(()) | Err(DiskError::NotFound { .. }) => disk.sync_dir(""),
        Err(error) => Err(error),
    }
}

/// A manager's log as found on disk.
enum Log {
    /// There is no log, or one without a record.
    None,
    /// A log that makes this map, if all of it was agreed on.
    Of(Box<Topology>),
    /// A log that cannot be read.
    Unreadable,
}

/// The manager and the map of a log's bytes, if all of it was agreed on. `None` if it is no log at all.
pub(crate) fn map_in_log(bytes: &[u8]) -> Option<Result<(ServerId, Topology), ()>> {
    let contents = match decode_file(bytes) {
        Err(BadFile::Header) => return None,
        Err(_) => return Some(Err(())),
        Ok(contents) => contents,
    };
    let server = contents.header.server;
    let map = map_of(contents.writes).filter(|map| map.contradiction().is_none());
    Some(map.map(|map| (server, map)).ok_or(()))
}

fn log_of(disk: &dyn Disk) -> Result<Log, DiskError> {
    let bytes = match read_file(disk, PATH) {
        Err(DiskError::NotFound { .. }) => return Ok(Log::None),
        read => read?,
    };
    let Ok(contents) = decode_file(&bytes) else { return Ok(Log::Unreadable) };
    if contents.writes.is_empty() {
        return Ok(Log::None);
    }
    Ok(map_of(contents.writes).map_or(Log::Unreadable, |map| Log::Of(Box::new(map))))
}

/// The map that a log makes if all of it was agreed on.
fn map_of(writes: Vec<LogWrite>) -> Option<Topology> {
    let mut stored = Stored::default();
    writes.into_iter().for_each(|write| stored.take(write));
    let mut map = match &stored.snapshot {
        None => Topology::default(),
        Some(snapshot) => Topology::decode(&snapshot.state).ok()?,
    };
    for (index, (_, item)) in (stored.base().index.0 + 1..).zip(&stored.items) {
        if let Item::Command(command) = item {
            let command: Command = decode("a command of the managers", command).ok()?;
            // A refusal is an outcome too, and the same on every manager.
            drop(map.apply(LogIndex(index), command));
        }
    }
    Some(map)
}
