//! Makes the index from the backend alone: from the newest backup, then the footers of later blobs
//! in the order of their names. If no backup can be used, it takes all footers.
//!
//! 1. List: blobs that [count](crate::owner::counting) and are not beyond a [takeover fence](crate::owner::takeover_fence), backups.
//! 2. Read the footers, for what they say was [retired](Change::Retired): such blobs may be missing, and are not read.
//! 3. Replay the others.
//! 4. [Check](check) that everything that is named is there.
//! 5. [Find](bundles) the names of bundles: the process that uploaded one stood in the name of its
//!    blob, which may be gone.
//!
//! # Invariants
//!
//! 1. A blob that is missing or damaged and was not retired stops it, since what that blob deleted
//!    would come back. If it was told to go on, it goes on and writes down what that concerns. A
//!    blob is missing if a later one is there. It is missing too if it or a later one is known to
//!    be uploaded, by what an heir or a process has written down.
//! 2. The index depends on what is in the backend alone: not on whether a backup was used.
//! 3. The owner removes a backup that is passed over. The index does not know since when the backup
//!    may have had a key, which deletes have to say.

mod bundles;
mod check;
mod footers;
mod orphans;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use larder_kv::Progress;
use larder_types::{HybridClock, OpId};

use crate::backend::Backend;
use crate::backup::{self, Head};
use crate::error::PackError;
use crate::format::blob::FooterReader;
use crate::format::entry::Change;
use crate::format::rows::{Applied, BlobRow, RetiredRow};
use crate::ids::{BackupId, BlobId, Run, WorkerId};
use crate::index::Index;
use crate::owner::counting::{Known, Listed};
use crate::owner::takeover_fence::TakeoverFence;
use check::Loss;
use footers::{Footers, List};

/// A rebuild, with the parts of the store that it needs.
pub(crate) struct Rebuild<'a> {
    pub(crate) backend: &'a Backend,
    pub(crate) worker: WorkerId,
    pub(crate) takeover_fence: &'a TakeoverFence,
    /// Records of processes that were read before.
    pub(crate) records: &'a Known,
    /// Backups whose heads verify, oldest first.
    pub(crate) backups: &'a [Head],
    /// The file in which it writes down what is lost, if it may go on without.
    pub(crate) accept_loss: Option<&'a Path>,
    /// True if the backend is this worker's own: else nothing is removed from it.
    pub(crate) is_own: bool,
}

/// The result of a rebuild.
pub(crate) struct Rebuilt {
    /// The position of the index, as the worker counts: with the numbers of its own blobs and the
    /// greatest clock of all.
    pub(crate) applied: Applied,
    /// Backups that may be used again.
    pub(crate) backups: Vec<Head>,
}

/// The retirements that footers name.
#[derive(Debug, Default)]
struct Retirements {
    retirements: Vec<Retirement>,
}

/// The blobs that one change retires.
#[derive(Debug)]
struct Retirement {
    run: Run,
    row: RetiredRow,
    /// The change.
    op: OpId,
    /// Backups made before it that may be used all the same.
    backups: Vec<BackupId>,
}

impl Retirements {
    fn of(&self, blob: BlobId) -> Option<&RetiredRow> {
        self.retirements.iter().find(|it| it.run.has(blob)).map(|it| &it.row)
    }

    /// The greatest number of a worker that is known to have been a blob's.
    fn last(&self, worker: WorkerId) -> u64 {
        let of = self.retirements.iter().filter(|it| it.run.worker == worker);
        of.map(|it| it.run.last).max().unwrap_or(0)
    }

    /// Returns true if a backup has all that was not carried on when these were retired.
    fn allow(&self, head: &Head) -> bool {
        let later = self.retirements.iter().filter(|it| it.op > head.op());
        later.map(|it| &it.backups).all(|backups| backups.contains(&head.id))
    }
}

impl Rebuild<'_> {
    /// Fills an empty index.
    pub(crate) async fn run(&self, index: &Index) -> Result<Rebuilt, PackError> {
        let mut backups = self.backups.to_vec();
        let of = (self.worker, self.takeover_fence);
        let list = footers::list(self.backend, of, self.records).await?;
        let (listed, counting) = (&list.blobs, &list.counting);
        while let Some(head) = backups.last() {
            let later = listed.iter().filter(|blob| blob.name.id >= head.blob()).copied();
            let mut footers = Footers::new(self.backend, later.collect());
            let retired = self.retired(&mut footers).await?;
            if retired.allow(head) && backup::restore(self.backend, index, head).await? {
                let number = head.id.number;
                tracing::info!(
                    backup = number,
                    blobs = footers.len(),
                    "the index is rebuilt from a backup"
                );
                let applied = self.replay(index, &list, footers, &retired, Some(head)).await?;
                bundles::name(self.backend, counting, index).await?;
                return Ok(Rebuilt { applied, backups });
            }
            if self.is_own {
                self.backend.remove(&head.id.head_path()).await?;
            }
            backups.pop();
        }
        tracing::info!(blobs = listed.len(), "the index is rebuilt from all blobs");
        let mut footers = Footers::new(self.backend, listed.clone());
        let retired = self.retired(&mut footers).await?;
        let applied = self.replay(index, &list, footers, &retired, None).await?;
        bundles::name(self.backend, counting, index).await?;
        Ok(Rebuilt { applied, backups })
    }

    async fn retired(&self, footers: &mut Footers<'_>) -> Result<Retirements, PackError> {
        let mut retired = Retirements::default();
        while let Some((blob, tail)) = footers.next().await? {
            let Ok(tail) = tail else { continue };
            for entry in FooterReader::new(&blob.name.path(), &tail)? {
                let entry = entry?;
                let op = entry.op(blob.name.id.worker);
                if let Change::Retired { run, backups } = entry.change {
                    let row = RetiredRow { retired_ms: entry.clock.ms(), by: blob.name.id };
                    retired.retirements.push(Retirement { run, row, op, backups });
                }
            }
        }
        footers.again();
        Ok(retired)
    }

    async fn replay(
        &self,
        index: &Index,
        list: &List,
        mut footers: Footers<'_>,
        retired: &Retirements,
        backup: Option<&Head>,
    ) -> Result<Applied, PackError> {
        let from = backup.map_or(OpId::default(), Head::op);
        let clock = backup.map_or(HybridClock(0), |head| head.clock);
        let mut taking = Taking { index, from, last: from, clock };
        let mut losses = Vec::new();
        while let Some((blob, tail)) = footers.next().await? {
            if retired.of(blob.name.id).is_some() {
                continue;
            }
            match tail {
                Ok(tail) => taking.take(blob, &tail)?,
                Err(error) => {
                    // Known, so that it is not taken for one that nothing needs.
                    index.add_blob(blob.name.id, &blob.row(), None)?;
                    losses.push(Loss { blob: blob.name.id, error });
                }
            }
        }
        for blob in &list.blobs {
            self.show(index, blob, retired.of(blob.name.id))?;
        }
        let there: BTreeSet<_> = list.blobs.iter().map(|blob| blob.name.id).collect();
        for blob in self.missing(index, (&there, list.known), retired, backup)? {
            // Known likewise, under a name that no blob has.
            index.add_blob(blob, &BlobRow::NONE, None)?;
            losses.push(Loss { blob, error: PackError::Missing { blob } });
        }
        check::check(self, index, &there, losses, backup.map(Head::blob))?;
        Ok(self.applied(&taking, list, retired, backup))
    }

    /// The rows of a blob that is in the backend, also of one that was retired: it is to be removed.
    fn show(
        &self,
        index: &Index,
        blob: &Listed,
        retired: Option<&RetiredRow>,
    ) -> Result<(), PackError> {
        let id = blob.name.id;
        match retired {
            Some(row) => {
                index.add_blob(id, &blob.row(), None)?;
                index.add_retired(id, row)
            }
            // A backup may have seen the end of one that came back since.
            None if index.blob_content(id)?.is_some() => index.add_blob(id, &blob.row(), None),
            None => Ok(()),
        }
    }

    /// Blobs that should be there and are not.
    fn missing(
        &self,
        index: &Index,
        (there, known): (&BTreeSet<BlobId>, u64),
        retired: &Retirements,
        backup: Option<&Head>,
    ) -> Result<BTreeSet<BlobId>, PackError> {
        let standing = index.standing()?.into_iter().map(|(id, _)| id);
        let mut missing: BTreeSet<_> = standing.filter(|id| !there.contains(id)).collect();
        let mut last: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for worker in (self.worker.first().0..=self.worker.0).map(WorkerId) {
            let inherited = self.takeover_fence.last(worker).unwrap_or(0);
            last.insert(worker, inherited.max(retired.last(worker)));
        }
        let own = last.entry(self.worker).or_default();
        *own = known.max(*own);
        for id in there {
            let seq = last.entry(id.worker).or_default();
            *seq = id.seq.max(*seq);
        }
        for (worker, last) in last {
            // Blobs before a backup that it does not have were gone before it.
            let first = match backup.map(Head::blob) {
                Some(blob) if worker < blob.worker => continue,
                Some(blob) if worker == blob.worker => blob.seq + 1,
                _ => 1,
            };
            let ids = (first..=last).map(|seq| BlobId { worker, seq });
            missing.extend(ids.filter(|id| !there.contains(id) && retired.of(*id).is_none()));
        }
        Ok(missing)
    }

    fn applied(
        &self,
        taking: &Taking<'_>,
        list: &List,
        retired: &Retirements,
        backup: Option<&Head>,
    ) -> Applied {
        let mut applied = Applied { clock: taking.clock, ..Applied::default() };
        if taking.last.view.0 == self.worker.0 {
            applied.seq = taking.last.seq;
        }
        // Also of blobs that were retired, or lost: their numbers are not given again.
        let own = list.blobs.iter().map(|blob| blob.name.id).filter(|id| id.worker == self.worker);
        let last = own.map(|id| id.seq).max().unwrap_or(0);
        applied.blob = last.max(retired.last(self.worker)).max(list.known);
        if let Some(head) = backup.filter(|head| head.id.worker == self.worker) {
            applied.blob = applied.blob.max(head.blob);
        }
        Applied { rebuilt: applied.blob, ..applied }
    }
}

/// Footers on their way into the index.
struct Taking<'a> {
    index: &'a Index,
    /// The index has everything up to this.
    from: OpId,
    last: OpId,
    clock: HybridClock,
}

impl Taking<'_> {
    fn take(&mut self, blob: Listed, tail: &[u8]) -> Result<(), PackError> {
        let (id, path) = (blob.name.id, blob.name.path());
        for entry in FooterReader::new(&path, tail)? {
            let entry = entry?;
            let op = entry.op(id.worker);
            if op <= self.from {
                continue;
            }
            if op <= self.last {
                return Err(PackError::damaged(path, "its changes are older than those before"));
            }
            self.last = op;
            self.clock = self.clock.max(entry.clock);
            self.index.apply(id, &entry, None)?;
        }
        if self.index.unflushed_bytes() >= larder_kv::limits::FLUSH_BYTES {
            self.index.flush()?;
            while self.index.maintain()? == Progress::Worked {}
        }
        Ok(())
    }
}
