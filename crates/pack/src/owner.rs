//! The right to act for a worker. It belongs to the directory with the latest claim (`identity.rs`), and there to the
//! process that was numbered last: a copy of the directory has the same claim.
//!
//! A process numbers itself in the backend with an object `incarnations/WORKER-NUMBER`, which is made only if there is none
//! and has its [`Lineage`]. It does so before its first upload, and not before it serves: one that starts while the backend
//! takes no writes serves what it has, and its uploads wait.
//!
//! # Invariants
//!
//! 1. A process has the next number before it uploads or removes anything, and lists the worker's blobs after that. It stops
//!    if the list has a blob that the directory does not know (`recover.rs`).
//! 2. Of numbers the last [`INCARNATIONS_KEPT`] stay, and they go in their order: if the next number is missing and a
//!    process's own is there, it has the last one. It looks in that order. An object that was removed may come back by a
//!    request that comes late: so a process that got a number looks whether there are greater ones.
//! 3. A number is a process's if its object has that process's lineage: a request of which the answer was lost may have
//!    come through, and may come through late.
//!
//! So if processes ask after an upload whether they still are the owner, of two processes on copies of a directory the later
//! one sees in its list what the earlier one counts as uploaded, or the earlier one sees that it was superseded.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::try_join;
use larder_env::Disk;
use larder_types::codec::encode;

use crate::backend::{Backend, Unread};
use crate::entry::WorkerId;
use crate::error::PackError;
use crate::identity::check_claim;
use crate::limits::{INCARNATIONS_KEPT, LINEAGE_BYTES_MAX};
use crate::lineage::Lineage;
use crate::recover::refuse_older_copy;
use crate::spool::Spool;

/// Prefix of the objects that number incarnations.
const PREFIX: &str = "incarnations";

/// What one process asks before it does what only the owner may.
#[derive(Clone)]
pub(crate) struct Owner(Arc<Process>);

struct Process {
    backend: Backend,
    worker: WorkerId,
    lineage: Lineage,
    spool: Arc<Spool>,
    disk: Arc<dyn Disk>,
    numbering: tokio::sync::Mutex<Numbering>,
}

#[derive(Default)]
struct Numbering {
    /// Its number, once it has one.
    number: Option<u64>,
    /// Whether it asked for one, and did not hear that it has it.
    has_asked: bool,
}

impl Owner {
    /// The process of a worker that ends the lineage.
    pub(crate) fn new(
        backend: Backend,
        worker: WorkerId,
        lineage: Lineage,
        spool: Arc<Spool>,
        disk: Arc<dyn Disk>,
    ) -> Self {
        let numbering = tokio::sync::Mutex::default();
        Self(Arc::new(Process { backend, worker, lineage, spool, disk, numbering }))
    }

    /// Whether nobody has claimed the backend since, nor started with a copy of the directory. Asks for a number first, if
    /// this process has none.
    ///
    /// # Errors
    /// [`PackError::is_superseded`], or why nobody knows.
    pub(crate) async fn check(&self) -> Result<(), PackError> {
        let Process { backend, worker, .. } = &*self.0;
        let claim = check_claim(backend, *worker);
        let latest = async {
            let number = self.number().await?;
            Ok((number, is_latest(backend, *worker, number).await?))
        };
        match try_join(claim, latest).await? {
            (_, (_, true)) => Ok(()),
            (_, (number, false)) => {
                Err(PackError::Copied { worker: *worker, name: path(*worker, number + 1) })
            }
        }
    }

    async fn number(&self) -> Result<u64, PackError> {
        let Process { backend, worker, lineage, spool, disk, numbering } = &*self.0;
        let mut numbering = numbering.lock().await;
        if let Some(number) = numbering.number {
            return Ok(number);
        }
        // Before that: a copy that is refused must not supersede the owner.
        refuse_older_copy(backend, spool, *worker).await?;
        let mut last = latest(backend, *worker).await?;
        // What was asked before may have come through.
        let mut has_it = numbering.has_asked && self.is_own(last).await?;
        numbering.has_asked = true;
        while !has_it {
            last += 1;
            let bytes = Bytes::from(encode(lineage));
            has_it =
                backend.put_new(&path(*worker, last), bytes).await? || self.is_own(last).await?;
        }
        let all = numbers(backend, *worker).await?;
        if let Some(greater) = all.last().filter(|number| **number > last) {
            return Err(PackError::Copied { worker: *worker, name: path(*worker, *greater) });
        }
        // After that: what a process before this one counts as uploaded is in the list.
        refuse_older_copy(backend, spool, *worker).await?;
        lineage.last().is_numbered(&**disk)?;
        numbering.number = Some(last);
        for old in all.into_iter().take_while(|number| number + INCARNATIONS_KEPT <= last) {
            if let Err(error) = backend.remove(&path(*worker, old)).await {
                // In their order: the next start goes on here.
                tracing::debug!(%error, "numbers of earlier processes were not removed");
                break;
            }
        }
        Ok(last)
    }

    /// Whether a number is this process's.
    async fn is_own(&self, number: u64) -> Result<bool, PackError> {
        let Process { backend, worker, lineage, .. } = &*self.0;
        Ok(read(backend, *worker, number).await?.as_ref() == Some(lineage))
    }
}

/// Which number of a worker's processes is the last; 0 if there is none.
pub(crate) async fn latest(backend: &Backend, worker: WorkerId) -> Result<u64, PackError> {
    let mut last = numbers(backend, worker).await?.last().copied().unwrap_or(0);
    // Lists may be late.
    while backend.size(&path(worker, last + 1)).await?.is_some() {
        last += 1;
    }
    Ok(last)
}

/// Whether a number that a process has, or had, is the last.
pub(crate) async fn is_latest(
    backend: &Backend,
    worker: WorkerId,
    number: u64,
) -> Result<bool, PackError> {
    Ok(backend.size(&path(worker, number + 1)).await?.is_none()
        && backend.size(&path(worker, number)).await?.is_some())
}

/// The lineage of the process with a number; `None` if nobody has it, or has it any more.
pub(crate) async fn read(
    backend: &Backend,
    worker: WorkerId,
    number: u64,
) -> Result<Option<Lineage>, PackError> {
    let path = path(worker, number);
    match backend.whole(&path, LINEAGE_BYTES_MAX).await {
        Ok(bytes) => Lineage::read_bytes(&path, &bytes).map(Some),
        Err(Unread::Missing) => Ok(None),
        Err(Unread::Failed(error)) => Err(error),
    }
}

/// Numbers of a worker's processes that are in the backend, in their order.
async fn numbers(backend: &Backend, worker: WorkerId) -> Result<Vec<u64>, PackError> {
    let names = backend.names_after(PREFIX, &format!("{:016x}-", worker.0)).await?;
    let mut numbers: Vec<_> = names.iter().filter_map(|(name, _)| parse(name, worker)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn path(worker: WorkerId, number: u64) -> String {
    format!("{PREFIX}/{:016x}-{number:016x}", worker.0)
}

/// Reads what [`path`] wrote for the worker, without the prefix; `None` for anything else.
fn parse(file: &str, worker: WorkerId) -> Option<u64> {
    let (_, number) = file.split_once('-')?;
    let number = u64::from_str_radix(number, 16).ok()?;
    (path(worker, number)[PREFIX.len() + 1..] == *file).then_some(number)
}
