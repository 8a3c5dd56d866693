//! The latest map that a server has received, stored in its directory: `cluster-map`, as `docs/formats/quorum.md` says.
//!
//! It exposes managers that run from an older copy of their state, and lost managers are rebuilt from it
//! ([`crate::recover`]).
//!
//! # Invariants
//!
//! 1. A map that lacks something of one that was kept, or accepted in this run, is not accepted: nothing is done by it.
//! 2. What is accepted is kept soon, and again and again until the disk takes it. What a recovery must know is done by maps alone
//!    that are kept: views, volumes and disks ([`Managers::kept`](super::Managers::kept)).
//! 3. What cannot be read is taken for nothing only if it is damaged. A disk that fails, or a file of a later release, is an error.
//! 4. Only what managers agreed on is kept, and no secret.

use std::convert::Infallible;
use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use larder_env::disk::{read_file, replace_file};
use larder_env::{Disk, DiskError, RealDisk};
use larder_protocol::limits::TIMELINES_VERSION;
use larder_protocol::manager::state::{MapMark, MapVersion, RootRecord, Topology};
use larder_types::ServerId;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::stored_map::{BadMap, StoredMap};
use super::{VersionWatch, Versions};
use crate::blocking;
use crate::limits::MAP_KEEP_PAUSE_MS;

/// File in a server's directory.
pub const MAP_FILE: &str = "cluster-map";
/// That of the release before, which kept marks alone.
const MARK_FILE: &str = "map-mark";

/// The managers' map lacks changes that this server has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the managers' map is of version {newest} and lacks what this server has heard of in version {kept}: put back the managers' latest \
     directories, or make managers anew with `larder recover`. With an older copy of them, which gives volumes and ids a second time, \
     what was acknowledged since would be overwritten"
)]
pub struct OlderMap {
    /// Version of the map that managers tell.
    pub newest: u64,
    /// Version of the map that was heard of.
    pub kept: u64,
}

impl OlderMap {
    /// Returns true if the managers have another history. Else one of them may merely be behind.
    #[must_use]
    pub fn is_of_another_history(&self) -> bool {
        self.newest >= self.kept
    }
}

/// The reason why the map of a directory is not known.
#[derive(Debug, thiserror::Error)]
pub enum MapStoreError {
    /// Look at the disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Use the release that wrote it.
    #[error("{MAP_FILE}: {0}")]
    File(BadMap),
}

/// See the module's head.
pub struct MapStore {
    disk: Arc<dyn Disk>,
    server: ServerId,
    accepted: Mutex<Accepted>,
    /// Version of the map that is kept.
    kept: Versions,
}

#[derive(Default)]
struct Accepted {
    mark: Option<MapMark>,
    /// It is of this run, and not of the file.
    is_reported: bool,
}

impl MapStore {
    /// That of the directory of a server, which is there. Blocks.
    ///
    /// # Errors
    /// [`MapStoreError`].
    pub fn open(dir: &Path, server: ServerId) -> Result<Arc<Self>, MapStoreError> {
        Self::on(Arc::new(RealDisk::open(dir)?), server)
    }

    /// The same, on a disk.
    ///
    /// # Errors
    /// [`MapStoreError`].
    pub fn on(disk: Arc<dyn Disk>, server: ServerId) -> Result<Arc<Self>, MapStoreError> {
        let mark = match read_file(&*disk, MAP_FILE) {
            Ok(bytes) => match StoredMap::decode(&bytes) {
                Ok(kept) => kept.map.map_mark(),
                Err(error @ BadMap::Damaged) => {
                    tracing::warn!(%error, file = MAP_FILE, "this server cannot tell which version of the map it had");
                    None
                }
                Err(error) => return Err(MapStoreError::File(error)),
            },
            Err(DiskError::NotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        // The release before may have run since.
        let before = mark_before(&*disk)?;
        let mark = mark.into_iter().chain(before).max_by_key(|mark| mark.version);
        let accepted = Mutex::new(Accepted { mark, is_reported: false });
        // The map in the file is older than the first map of this run.
        let kept = Versions::new(MapVersion(0));
        Ok(Arc::new(Self { disk, server, accepted, kept }))
    }

    /// Version of the map of this run that is kept; 0 for none.
    #[must_use]
    pub fn version(&self) -> MapVersion {
        self.kept.subscribe().latest()
    }

    /// Changes with each map that is kept.
    #[must_use]
    pub fn versions(&self) -> VersionWatch {
        self.kept.subscribe()
    }

    /// Accepts a map, before it is shown to anybody; `false` if it is no later one.
    ///
    /// # Errors
    /// [`OlderMap`] if it lacks something: then it is not to be shown.
    pub fn accept(&self, map: &Topology) -> Result<bool, OlderMap> {
        let mut accepted = self.accepted.lock();
        let Some(mark) = map.map_mark() else { return Ok(false) };
        if let Some(before) = &accepted.mark {
            // Answers of two managers may come in any order.
            if accepted.is_reported && mark.version <= before.version {
                return Ok(false);
            }
            if !before.is_reached_by(map) {
                return Err(OlderMap { newest: mark.version.0, kept: before.version.0 });
            }
        }
        *accepted = Accepted { mark: Some(mark), is_reported: true };
        Ok(true)
    }

    /// Keeps each map that is shown.
    pub async fn keep(
        &self,
        mut shown: VersionWatch,
        latest: impl Fn() -> Arc<Topology>,
    ) -> Infallible {
        let mut is_logged = false;
        loop {
            let map = latest();
            let version = map.version;
            if map.founded.is_none() || version <= self.version() {
                if shown.changed().await.is_err() {
                    return pending().await;
                }
                continue;
            }
            match self.write(map).await {
                Ok(()) => {
                    self.kept.show(version);
                    if std::mem::take(&mut is_logged) {
                        tracing::info!(%version, file = MAP_FILE, "the map can be saved again");
                    }
                }
                Err(why) => {
                    if !std::mem::replace(&mut is_logged, true) {
                        tracing::warn!(
                            %why, %version, file = MAP_FILE,
                            "the map cannot be saved: retrying, and until then this server accepts no new view, volume or disk"
                        );
                    }
                    sleep(Duration::from_millis(MAP_KEEP_PAUSE_MS)).await;
                }
            }
        }
    }

    async fn write(&self, map: Arc<Topology>) -> Result<(), String> {
        let (disk, server) = (self.disk.clone(), self.server);
        let written = blocking::run(move || {
            let root = map.root.as_ref().map(RootRecord::without_secrets);
            let bytes = match root {
                Some(root) => StoredMap::encode(
                    server,
                    &Topology { root: Some(root), ..Topology::clone(&map) },
                ),
                None => StoredMap::encode(server, &map),
            };
            replace_file(&*disk, "", MAP_FILE, &bytes)?;
            // A server of the release before, which may come back until then, knows marks alone.
            if map.cluster_version < TIMELINES_VERSION {
                return Ok(());
            }
            match disk.remove(MARK_FILE) {
                Ok(()) | Err(DiskError::NotFound { .. }) => Ok(()),
                Err(error) => Err(error),
            }
        });
        outcome(written).await
    }
}

/// The outcome of a write. One that is cancelled as the process ends has none: the task that waits for it ends, too.
async fn outcome(written: JoinHandle<Result<(), DiskError>>) -> Result<(), String> {
    match written.await {
        Ok(written) => written.map_err(|error| error.to_string()),
        Err(ended) if ended.is_cancelled() => pending().await,
        Err(ended) => Err(ended.to_string()),
    }
}

/// The mark that the release before kept.
fn mark_before(disk: &dyn Disk) -> Result<Option<MapMark>, DiskError> {
    match read_file(disk, MARK_FILE) {
        Ok(bytes) => match MapMark::decode(&bytes) {
            Ok(mark) => Ok(Some(mark)),
            Err(error) => {
                tracing::warn!(%error, file = MARK_FILE, "this server cannot tell which version of the map it had");
                Ok(None)
            }
        },
        Err(DiskError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
