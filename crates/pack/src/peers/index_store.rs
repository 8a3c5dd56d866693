//! Keeps the indexes of other workers in `peers/NAME/CLAIM-NUMBER` of the directory. Beside each is the log of changes
//! received since the index was durable (`received_log.rs`).
//!
//! # Invariant
//!
//! The index of a worker that is used is the one of its claim with the greatest number that is whole. Others are removed
//! when it is opened: until then what they know beyond it was not written down.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_env::{Disk, RealDisk};
use larder_kv::LsmKv;

use super::received_log::ReceivedLog;
use crate::error::PackError;
use crate::format::rows::Applied;
use crate::ids::WorkerId;
use crate::index::Index;
use crate::limits::PEER_INDEX_CACHE_BYTES;
use crate::owner::name::WorkerName;

/// Directory of all of them.
const DIR: &str = "peers";

/// An index of another worker, and what was heard beyond it.
pub(crate) struct PeerIndex {
    pub(crate) index: Index,
    pub(crate) received: ReceivedLog,
}

/// Where indexes come from: a directory, or the memory of a simulation.
pub(crate) trait PeerIndexStore: Send + Sync {
    /// The index of a claim that is whole, if there is one. Removes all else that there is of the
    /// worker.
    fn open(
        &self,
        name: &WorkerName,
        worker: WorkerId,
    ) -> Result<Option<(PeerIndex, Applied)>, PackError>;

    /// The index of an earlier claim, if there is one that is whole.
    fn earlier(
        &self,
        name: &WorkerName,
        worker: WorkerId,
    ) -> Result<Option<(WorkerId, PeerIndex, Applied)>, PackError>;

    /// An empty one in its place, which counts once it says how far it is.
    fn make(&self, name: &WorkerName, worker: WorkerId) -> Result<PeerIndex, PackError>;
}

/// Indexes in a directory.
pub(crate) struct Directory {
    indexes: PathBuf,
    disk: Arc<dyn Disk>,
}

impl Directory {
    pub(crate) fn of(dir: &Path) -> Result<Self, PackError> {
        Ok(Self { indexes: dir.join(DIR), disk: Arc::new(RealDisk::open(dir)?) })
    }

    /// Claims and numbers of all indexes of a worker, in their order.
    fn list(&self, name: &WorkerName) -> Result<Vec<(WorkerId, u64)>, PackError> {
        let dir = self.indexes.join(name.as_str());
        std::fs::create_dir_all(&dir)?;
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&dir)? {
            let file = entry?.file_name();
            let parsed = file.to_str().and_then(|file| {
                let (claim, number) = file.split_once('-')?;
                let claim = u64::from_str_radix(claim, 16).ok()?;
                Some((WorkerId(claim), number.parse().ok()?))
            });
            let unknown = || PackError::damaged(dir.display().to_string(), "it has a strange file");
            found.push(parsed.ok_or_else(unknown)?);
        }
        found.sort_unstable();
        Ok(found)
    }

    fn path(&self, name: &WorkerName, worker: WorkerId, number: u64) -> PathBuf {
        self.indexes.join(name.as_str()).join(file(worker, number))
    }

    fn received(
        &self,
        name: &WorkerName,
        worker: WorkerId,
        number: u64,
    ) -> Result<ReceivedLog, PackError> {
        Ok(ReceivedLog::of(self.disk.clone(), name, &file(worker, number))?)
    }
}

impl PeerIndexStore for Directory {
    fn open(
        &self,
        name: &WorkerName,
        worker: WorkerId,
    ) -> Result<Option<(PeerIndex, Applied)>, PackError> {
        let all = self.list(name)?;
        for (claim, number) in all.iter().rev().filter(|(claim, _)| *claim == worker) {
            if let (index, Some(applied)) = open(&self.path(name, *claim, *number))? {
                for (other, of) in all.iter().filter(|at| **at != (*claim, *number)) {
                    LsmKv::remove(&self.path(name, *other, *of))?;
                }
                let received = self.received(name, *claim, *number)?;
                received.remove_others()?;
                return Ok(Some((PeerIndex { index, received }, applied)));
            }
        }
        Ok(None)
    }

    fn earlier(
        &self,
        name: &WorkerName,
        worker: WorkerId,
    ) -> Result<Option<(WorkerId, PeerIndex, Applied)>, PackError> {
        let all = self.list(name)?.into_iter().rev();
        for (claim, number) in all.filter(|(claim, _)| *claim < worker) {
            if let (index, Some(applied)) = open(&self.path(name, claim, number))? {
                let received = self.received(name, claim, number)?;
                return Ok(Some((claim, PeerIndex { index, received }, applied)));
            }
        }
        Ok(None)
    }

    fn make(&self, name: &WorkerName, worker: WorkerId) -> Result<PeerIndex, PackError> {
        let all = self.list(name)?;
        let last = all.into_iter().rfind(|(claim, _)| *claim == worker);
        let number = last.map_or(1, |(_, number)| number + 1);
        let (index, _) = open(&self.path(name, worker, number))?;
        let mut received = self.received(name, worker, number)?;
        // A try before may have left one.
        received.read()?;
        received.clear()?;
        Ok(PeerIndex { index, received })
    }
}

/// Name of an index, and of what was heard beyond it.
fn file(worker: WorkerId, number: u64) -> String {
    format!("{:016x}-{number}", worker.0)
}

fn open(path: &Path) -> Result<(Index, Option<Applied>), PackError> {
    Index::of_another(Box::new(LsmKv::open(path, PEER_INDEX_CACHE_BYTES)?))
}
