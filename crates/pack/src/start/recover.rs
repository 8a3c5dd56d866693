//! Recovers a worker at its start: the index and the log first, then what the index lacks from the backend.
//!
//! 1. Open the index. If it does not say how far it is, it is none: [rebuild](crate::start::rebuild) it. Before that the process
//!    takes its number (`numbering.rs`): which blobs count must not change any more, and the backend must have gone no other
//!    way than the blobs that wait.
//! 2. Read the log. Changes behind the index are applied; those of blobs that are not in the backend become those
//!    blobs again, sealed.
//! 3. Remove files of the spool that no record names.
//! 4. Look in the backend for later blobs of this worker. If any counts that is not one that waits, the directory is an
//!    older copy: it would give its number again, and does not know what is in it.

use std::sync::Arc;

use larder_env::Disk;
use larder_metalog::{LogConfig, LogError, Lsn, Recovered};
use larder_types::BucketName;
use larder_types::codec::decode;

use crate::backup::Head;
use crate::bugs::{self, Bug};
use crate::commit::log::{self, LogRecord, PackLog};
use crate::commit::spool::Spool;
use crate::error::PackError;
use crate::format::entry::Entry;
use crate::format::rows::Applied;
use crate::ids::{BlobId, WorkerId};
use crate::index::Index;
use crate::limits::LOG_SEGMENT_BYTES;
use crate::owner::numbering::{Knows, Numbering, NumberingEvidence};
use crate::start::rebuild::{Rebuild, Rebuilt};

/// The result of a start.
pub(crate) struct Start {
    pub(crate) index: Index,
    pub(crate) log: PackLog,
    pub(crate) spool: Spool,
    pub(crate) at: Applied,
    /// Backups that a rebuild may use.
    pub(crate) backups: Vec<Head>,
}

/// Opens everything that lies in a directory.
pub(crate) async fn recover(
    disk: Arc<dyn Disk>,
    index: (Index, Option<Applied>),
    rebuild: &Rebuild<'_>,
    numbering: &Numbering,
) -> Result<Start, PackError> {
    let worker = rebuild.worker;
    let is_known = index.1.is_some();
    let (index, Rebuilt { applied, backups }) = match index {
        (index, Some(applied)) => (index, Rebuilt { applied, backups: rebuild.backups.to_vec() }),
        (index, None) => {
            let waiting = waiting(disk.clone(), worker, numbering.numbers_in_use().await?)?;
            numbering.number(Knows::Log(&waiting)).await?;
            let rebuilt = rebuild.run(&index).await?;
            // Blobs that it lists wait no more: an heir must not have listed them before they came.
            numbering.check(Knows::Log(&waiting), NumberingEvidence::Backend).await?;
            index.set_applied(&rebuilt.applied)?;
            index.flush()?;
            (index, rebuilt)
        }
    };
    let spool = Spool::new(disk.clone(), worker)?;
    let mut replay = Replay {
        index: Some(&index),
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
        larder_metalog::recover(disk, log::DIR, &config(), &mut |record| replay.take(&record))?;
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
        numbering.refuse_older_copy(Knows::All(&spool)).await?;
    }
    spool.open_files()?;
    tracing::info!(
        records = recovery.records,
        torn_bytes = recovery.torn_bytes,
        blobs = spool.waiting(),
        "the log was replayed: uploading pending blobs"
    );
    if recovery.mended() {
        tracing::warn!(
            bad_headers = recovery.bad_headers,
            unreadable_pages = recovery.unreadable_pages,
            "the log's disk lost data that the log could rebuild: watch the disk"
        );
    }
    let log = PackLog::new(appender, writer, worker, at.seq);
    Ok(Start { index, log, spool, at, backups })
}

/// Blobs that wait, as the log says, from a number on: those before it are known to be uploaded.
fn waiting(disk: Arc<dyn Disk>, worker: WorkerId, from: u64) -> Result<Spool, PackError> {
    let spool = Spool::new(disk.clone(), worker)?;
    let (at, shown) = (Applied::default(), Lsn(0));
    let mut replay =
        Replay { index: None, spool: &spool, worker, at, shown, rebuilt: 0, failed: None };
    // Only read here: the code that goes on to write reads it again.
    disk.create_dir(log::DIR)?;
    let scanned = larder_metalog::scan(&*disk, log::DIR, &mut |record| replay.take(&record))?;
    if let Some(damage) = scanned.damages.into_iter().next() {
        return Err(LogError::Damaged(damage).into());
    }
    let Replay { at, failed, .. } = replay;
    failed.map_or(Ok(()), Err)?;
    for blob in spool.waiting_before(from) {
        spool.forget(blob);
    }
    spool.start(at.blob);
    Ok(spool)
}

fn config() -> LogConfig {
    LogConfig { segment_bytes: LOG_SEGMENT_BYTES, ..LogConfig::new(larder_env::rng::unique_u64()) }
}

/// Takes records one by one.
struct Replay<'a> {
    /// `None` if only what waits is wanted.
    index: Option<&'a Index>,
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
                    self.index.map_or(Ok(()), |index| index.add_blob(id, &row, Some(&self.at)))?;
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
            self.index.map_or(Ok(()), |index| index.apply(here, entry, Some(&self.at)))?;
        }
        Ok(())
    }

    fn is_shown(&self, recovered: &Recovered<'_>) -> bool {
        recovered.end <= self.shown
    }
}
