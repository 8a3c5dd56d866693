//! Where the indexes of other workers lie: `peers/NAME/CLAIM-NUMBER` in the directory.
//!
//! # Invariant
//!
//! The index of a worker that is used is the one of its claim with the greatest number that is whole. Others are removed
//! when one is opened.

use std::path::{Path, PathBuf};

use larder_kv::LsmKv;

use super::name::WorkerName;
use crate::entry::WorkerId;
use crate::error::PackError;
use crate::index::Index;
use crate::limits::PEER_INDEX_CACHE_BYTES;
use crate::rows::Applied;

/// Directory of all of them.
const DIR: &str = "peers";

/// Where indexes come from: a directory, or the memory of a simulation.
pub(crate) trait Shelf: Send + Sync {
    /// The index of a claim that is whole, if there is one. What else there is of the worker goes.
    fn open(
        &self,
        name: &WorkerName,
        worker: WorkerId,
    ) -> Result<Option<(Index, Applied)>, PackError>;

    /// An empty one in its place, which counts once it says how far it is.
    fn make(&self, name: &WorkerName, worker: WorkerId) -> Result<Index, PackError>;
}

/// Those of a directory.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn of(dir: &Path) -> Self {
        Self(dir.join(DIR))
    }

    /// Numbers of the indexes of a claim, and the paths of all others.
    fn list(
        &self,
        name: &WorkerName,
        worker: WorkerId,
    ) -> Result<(Vec<u64>, Vec<PathBuf>), PackError> {
        let dir = self.0.join(name.as_str());
        std::fs::create_dir_all(&dir)?;
        let (mut numbers, mut others) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            let file = entry.file_name();
            let number = file.to_str().and_then(|file| {
                let (claim, number) = file.split_once('-')?;
                let is_of = u64::from_str_radix(claim, 16).ok()? == worker.0;
                number.parse().ok().filter(|_| is_of)
            });
            match number {
                Some(number) => numbers.push(number),
                None => others.push(entry.path()),
            }
        }
        numbers.sort_unstable();
        Ok((numbers, others))
    }

    fn path(&self, name: &WorkerName, worker: WorkerId, number: u64) -> PathBuf {
        self.0.join(name.as_str()).join(format!("{:016x}-{number}", worker.0))
    }
}

impl Shelf for Directory {
    fn open(
        &self,
        name: &WorkerName,
        worker: WorkerId,
    ) -> Result<Option<(Index, Applied)>, PackError> {
        let (numbers, mut others) = self.list(name, worker)?;
        let mut found = None;
        for number in numbers.into_iter().rev() {
            let path = self.path(name, worker, number);
            if found.is_none()
                && let (index, Some(applied)) = open(&path)?
            {
                found = Some((index, applied));
            } else {
                others.push(path);
            }
        }
        for path in others {
            std::fs::remove_dir_all(path)?;
        }
        Ok(found)
    }

    fn make(&self, name: &WorkerName, worker: WorkerId) -> Result<Index, PackError> {
        let (numbers, _) = self.list(name, worker)?;
        let number = numbers.last().map_or(1, |last| last + 1);
        Ok(open(&self.path(name, worker, number))?.0)
    }
}

fn open(path: &Path) -> Result<(Index, Option<Applied>), PackError> {
    Index::over(Box::new(LsmKv::open(path, PEER_INDEX_CACHE_BYTES)?))
}
