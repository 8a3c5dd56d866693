//! A start: index and log first, and what is missing of the index from the backend.
//!
//! 1. Open the index. If it does not say how far it is, it is none: [rebuild](crate::rebuild) it.
//! 2. Read the log. Changes behind the index are applied; those of blobs that are not in the backend become those
//!    blobs again, sealed.
//! 3. Remove files of the spool that no record names.
//! 4. Look in the backend for later blobs of this worker. If there are any, the directory is an older copy: it would
//!    give their numbers again, and does not know what is in them.
//! 5. Draw the process's incarnation (`lineage.rs`), before anything is told or answered.

use std::sync::Arc;

use larder_env::Disk;
use larder_metalog::{LogConfig, Lsn, Recovered};
use larder_types::BucketName;
use larder_types::codec::decode;

use crate::backend::{Backend, Unread};
use crate::backup::Head;
use crate::blob::{self, BlobName, TRAILER_BYTES, Trailer};
use crate::bugs::{self, Bug};
use crate::entry::{BlobId, Entry, WorkerId};
use crate::error::PackError;
use crate::index::Index;
use crate::limits::LOG_SEGMENT_BYTES;
use crate::lineage::Lineage;
use crate::log::{self, LogRecord, PackLog};
use crate::rebuild::{Rebuild, Rebuilt};
use crate::rows::Applied;
use crate::spool::Spool;

/// What a start found.
pub(crate) struct Start {
    pub(crate) index: Index,
    pub(crate) log: PackLog,
    pub(crate) spool: Spool,
    pub(crate) at: Applied,
    /// Backups that a rebuild may use.
    pub(crate) backups: Vec<Head>,
    pub(crate) lineage: Lineage,
}

/// Opens everything that lies in a directory.
pub(crate) async fn recover(
    disk: Arc<dyn Disk>,
    index: (Index, Option<Applied>),
    rebuild: &Rebuild<'_>,
) -> Result<Start, PackError> {
    let worker = rebuild.worker;
    let is_known = index.1.is_some();
    let (index, Rebuilt { applied, backups }) = match index {
        (index, Some(applied)) => (index, Rebuilt { applied, backups: rebuild.backups.to_vec() }),
        (index, None) => {
            let rebuilt = rebuild.run(&index).await?;
            index.set_applied(&rebuilt.applied)?;
            index.flush()?;
            (index, rebuilt)
        }
    };
    let spool = Spool::new(disk.clone(), worker)?;
    let config = LogConfig {
        segment_bytes: LOG_SEGMENT_BYTES,
        ..LogConfig::new(larder_env::rng::unique_u64())
    };
    let mut replay = Replay {
        index: &index,
        spool: &spool,
        worker,
        at: applied,
        shown: Lsn(applied.lsn),
        rebuilt: match applied.lsn > 0 && bugs::planted(Bug::RebuiltForgotten) {
            true => 0,
            false => applied.rebuilt,
        },
        failed: None,
    };
    let (appender, writer, recovery) =
        larder_metalog::recover(disk.clone(), log::DIR, &config, &mut |record| {
            replay.take(&record)
        })?;
    if let Some(error) = replay.failed {
        return Err(error);
    }
    let at = replay.at;
    if applied.lsn > recovery.end.0 {
        return Err(PackError::damaged(log::DIR, "it ends before what the index shows"));
    }
    spool.start(at.blob);
    // An index that was made just now has all that is there.
    if is_known {
        refuse_older_copy(rebuild.backend, &spool, worker).await?;
    }
    spool.open_files()?;
    tracing::info!(
        records = recovery.records,
        torn_bytes = recovery.torn_bytes,
        blobs = spool.waiting(),
        "the log was read; blobs that wait go up"
    );
    let lineage = Lineage::begin(&*disk, at.seq)?;
    spool.begin(lineage.clone());
    let log = PackLog::new(appender, writer, worker, at.seq);
    Ok(Start { index, log, spool, at, backups, lineage })
}

/// Refuses a directory that is an older copy of the worker's: the backend has a blob beyond those that the directory knows to
/// be there, and it is not one that waits here. One that waits may have gone up before a crash: then it is the same
/// to the byte, which its trailer says: it has the sum of the footer, and that has the sums of all bodies. A process that was
/// superseded may have uploaded one after this directory's processes had listed all: that one it has not acknowledged.
pub(crate) async fn refuse_older_copy(
    backend: &Backend,
    spool: &Spool,
    worker: WorkerId,
) -> Result<(), PackError> {
    let seq = *spool.uploaded().borrow();
    let after = BlobName::behind(BlobId { worker, seq });
    for (file, bytes) in backend.names_after(blob::PREFIX, &after).await? {
        let Some(name) = BlobName::parse(&file).filter(|name| name.id.worker == worker) else {
            continue;
        };
        let waits = spool.row(name.id.seq);
        let is_long =
            waits.is_some_and(|row| (row.footer_offset, row.bytes) == (name.footer_offset, bytes));
        let found = trailer(backend, name, bytes).await?;
        if is_long && spool.trailer(name.id.seq) == found {
            continue;
        }
        let found = found.and_then(|found| Trailer::decode(&file, &found).ok());
        if !found.is_some_and(|found| spool.is_superseded(found.made_by)) {
            return Err(PackError::OlderCopy { name: name.path() });
        }
        tracing::warn!(%file, "a superseded process has uploaded this blob too late: it counts for nobody");
    }
    Ok(())
}

/// The trailer of a blob; `None` if it has gone since it was listed, or is too short for one.
async fn trailer(
    backend: &Backend,
    name: BlobName,
    bytes: u64,
) -> Result<Option<Vec<u8>>, PackError> {
    let Some(from) = bytes.checked_sub(TRAILER_BYTES as u64) else { return Ok(None) };
    match backend.read(&name.path(), from..bytes).await {
        Ok(found) => Ok(Some(found.to_vec())),
        Err(Unread::Missing) => Ok(None),
        Err(Unread::Failed(error)) => Err(error),
    }
}

/// Takes records one by one.
struct Replay<'a> {
    index: &'a Index,
    spool: &'a Spool,
    worker: WorkerId,
    at: Applied,
    /// The index shows everything that ends here or before.
    shown: Lsn,
    /// Of an index that was rebuilt: it shows every change of this worker's blobs up to this one. Their files are gone.
    rebuilt: u64,
    failed: Option<PackError>,
}

impl Replay<'_> {
    fn take(&mut self, recovered: &Recovered<'_>) {
        if self.failed.is_none() {
            self.failed = self.replay(recovered).err();
        }
    }

    fn replay(&mut self, recovered: &Recovered<'_>) -> Result<(), PackError> {
        let record = decode::<LogRecord>("a record of the log", recovered.record.payload)?;
        self.at.seq = self.at.seq.max(recovered.record.seq);
        match record {
            LogRecord::Changed { blob, bucket, entry } => {
                self.change(recovered, blob, Some(&bucket), &entry)
            }
            LogRecord::Noted { blob, entry } => self.change(recovered, blob, None, &entry),
            LogRecord::Uploaded { blob, row } => {
                self.spool.forget(blob);
                if !self.is_shown(recovered) && blob > self.rebuilt {
                    self.at.lsn = recovered.end.0;
                    let id = BlobId { worker: self.worker, seq: blob };
                    self.index.add_blob(id, &row, Some(&self.at))?;
                }
                Ok(())
            }
        }
    }

    fn change(
        &mut self,
        recovered: &Recovered<'_>,
        blob: u64,
        bucket: Option<&BucketName>,
        entry: &Entry,
    ) -> Result<(), PackError> {
        self.at.blob = self.at.blob.max(blob);
        self.at.clock = self.at.clock.max(entry.clock);
        if blob <= self.rebuilt {
            return Ok(());
        }
        self.spool.add(blob, bucket, entry, recovered.start, None);
        if !self.is_shown(recovered) {
            self.at.lsn = recovered.end.0;
            let here = BlobId { worker: self.worker, seq: blob };
            self.index.apply(here, entry, Some(&self.at))?;
        }
        Ok(())
    }

    fn is_shown(&self, recovered: &Recovered<'_>) -> bool {
        recovered.end <= self.shown
    }
}
