//! The number of a process, without which it uploads and removes nothing. By it one of several
//! processes on copies of a directory becomes the owner of its worker. It also settles what the
//! others upload too late.
//!
//! 1. List the blobs. If one counts that the directory does not know, it is an older copy, and asks for nothing.
//! 2. Mark the backend, so that earlier builds stop there (`identity.rs`).
//! 3. Take the next number: an object that is made only if there is none.
//! 4. [Close](close) the numbers before it that have no record.
//! 5. List the blobs again. One that counts and is the same as one that waits is *adopted*: it counts as uploaded. One that
//!    is not known otherwise stops the process, as in 1.
//! 6. Write the record: the first blob that is not known as uploaded. Blobs of earlier processes from there on are void. Where the
//!    index is lost, what the last process knew is known, unless it waits here.
//!
//! A process that has no number yet serves what it has: the backend may take no writes.
//!
//! # Invariants
//!
//! 1. A number is one process's: its object has the nonce that the process drew. A request for it
//!    may come through late, and the process may have a greater one then.
//! 2. A record is written after the blobs were listed, which is after the number is there, and only
//!    while nobody has claimed the backend since. Its content is decided once.
//!
//! # Nothing that was acknowledged is void
//!
//! A process n acknowledges a blob s after it is there, and after a look found no number above n
//! (`uploader.rs`). So each later process finds it in its list of step 5, whatever becomes of it,
//! and knows it, adopts it, or stops: its record begins behind s. A blob that a list of step 5
//! lacked, with a number from the record on, was never acknowledged and never will be. A blob that
//! process n adopted was in its list of step 5. The list of each later process has it too, as it is
//! begun after the record of n was written. Or the later process closes the number of n, and then n
//! adopts nothing.

pub(crate) mod forgetting;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::future::try_join;
use larder_env::disk::{read_file, replace_file};
use larder_env::{Disk, DiskError};
use larder_types::codec::{decode, encode};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::backend::{Backend, Unread};
use crate::bugs::{self, Bug};
use crate::clock::{SuspendAwareInstant, Uptime};
use crate::commit::spool::Spool;
use crate::error::PackError;
use crate::format::blob::{self, BlobName, TRAILER_BYTES};
use crate::format::rows::BlobRow;
use crate::ids::{BlobId, ProcessId, WorkerId};
use crate::limits::{OWN_NUMBER_SEEN_MAX, RECORD_BYTES_MAX};
use crate::owner::counting::{
    Counting, Known, Listed, Numbers, Record, path, read_record, record_path,
};
use crate::owner::identity::check_owner;
use crate::owner::marker::mark_numbered;

/// File of the directory.
const FILE: &str = "numbered";

/// A number as the backend has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Number {
    /// Drawn by its process.
    pub(crate) nonce: u64,
}

/// The last process of a directory that had a number and a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Numbered {
    pub(crate) process: ProcessId,
}

/// The knowledge that a directory has of its worker's blobs.
#[derive(Clone, Copy)]
pub(crate) enum Knows<'a> {
    /// The spool's blobs wait, and all blobs before them are uploaded.
    All(&'a Spool),
    /// Those that wait as the log and [`Numbering::numbers_in_use`] say. The index is to be made of the others, which are
    /// uploaded.
    Log(&'a Spool),
}

/// The evidence by which a question may be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumberingEvidence {
    /// The backend's objects alone: something is counted or removed by the answer.
    Backend,
    /// Clocks too, which stand still while a machine is paused: what is begun by the answer is asked for again before it
    /// counts.
    Clocks,
}

/// One process's number.
pub(crate) struct Numbering {
    backend: Backend,
    worker: WorkerId,
    disk: Arc<dyn Disk>,
    nonce: u64,
    taking: tokio::sync::Mutex<Taking>,
    taken: OnceLock<Taken>,
    /// Records that were read.
    records: Arc<Known>,
    /// The time at which the last question began that found the own number.
    own_seen: Mutex<Option<SuspendAwareInstant>>,
    uptime: Uptime,
}

/// The progress of taking a number. A caller that retries after a failure, or after being dropped, resumes here.
#[derive(Default)]
struct Taking {
    /// The last number that was asked for.
    asked: Option<ProcessId>,
    own: Option<ProcessId>,
    decided: Option<Decided>,
}

/// Where a process begins.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Decided {
    /// The first blob that it uploads itself.
    first: u64,
    /// Blobs before that, of those that waited, as they are in the backend.
    adopted: BTreeMap<u64, BlobRow>,
}

struct Taken {
    process: ProcessId,
    adopted: BTreeMap<u64, BlobRow>,
}

impl Knows<'_> {
    fn spool(&self) -> &Spool {
        let (Self::All(spool) | Self::Log(spool)) = self;
        spool
    }
}

impl Numbering {
    /// Of a process that has none yet.
    pub(crate) fn new(
        backend: Backend,
        worker: WorkerId,
        disk: Arc<dyn Disk>,
        uptime: Uptime,
    ) -> Self {
        let nonce = larder_env::rng::unique_u64();
        let (taking, taken) = (tokio::sync::Mutex::default(), OnceLock::new());
        let (records, own_seen) = (Arc::default(), Mutex::default());
        Self { backend, worker, disk, nonce, taking, taken, records, own_seen, uptime }
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Records of processes that were read.
    pub(crate) fn records(&self) -> &Arc<Known> {
        &self.records
    }

    /// Its number, if it has one.
    pub(crate) fn known(&self) -> Option<ProcessId> {
        self.taken.get().map(|taken| taken.process)
    }

    /// The row of a blob that waits and is in the backend already; `None` if it is not there.
    pub(crate) fn adopted(&self, seq: u64) -> Option<BlobRow> {
        self.taken.get()?.adopted.get(&seq).copied()
    }

    /// Checks that nobody has claimed the backend since, nor numbered a process; takes a number
    /// first, if it has none.
    ///
    /// # Errors
    /// [`PackError::is_superseded`], or the reason why that cannot be found out.
    pub(crate) async fn check(
        &self,
        knows: Knows<'_>,
        by: NumberingEvidence,
    ) -> Result<ProcessId, PackError> {
        let process = self.number(knows).await?;
        try_join(check_owner(&self.backend, self.worker), self.check_latest(process, by)).await?;
        Ok(process)
    }

    /// As [`Numbering::check`], but takes no number: a process that has none learns only of claims. Writes nothing.
    ///
    /// # Errors
    /// As for [`Numbering::check`].
    pub(crate) async fn refresh(&self) -> Result<(), PackError> {
        let claim = check_owner(&self.backend, self.worker);
        match self.known() {
            Some(process) => try_join(claim, self.check_latest(process, NumberingEvidence::Clocks))
                .await
                .map(drop),
            None => claim.await,
        }
    }

    /// The first blob that the last process of this directory did not know as uploaded when it had its number. The log may
    /// say that ones before it wait: it is not told what an index that was made anew has of uploaded blobs. They may have
    /// been removed since.
    ///
    /// # Errors
    /// [`PackError`], if that cannot be found out.
    pub(crate) async fn numbers_in_use(&self) -> Result<u64, PackError> {
        match read_record(&self.backend, self.worker, numbered(&*self.disk)?).await? {
            Some(Record::From(first)) => Ok(first),
            Some(Record::Closed) | None => Ok(0),
        }
    }

    /// Refuses a directory that does not know a blob that counts.
    ///
    /// # Errors
    /// [`PackError::OlderCopy`].
    pub(crate) async fn refuse_older_copy(&self, knows: Knows<'_>) -> Result<(), PackError> {
        self.decide(knows).await.map(drop)
    }

    /// Its number, taken if it has none.
    ///
    /// # Errors
    /// As for [`Numbering::check`].
    pub(crate) async fn number(&self, knows: Knows<'_>) -> Result<ProcessId, PackError> {
        if let Some(process) = self.known() {
            return Ok(process);
        }
        let mut taking = self.taking.lock().await;
        if let Some(process) = self.known() {
            return Ok(process);
        }
        let own = match taking.own {
            Some(own) => own,
            None => {
                self.refuse_older_copy(knows).await?;
                if matches!(knows, Knows::Log(_)) {
                    // It is written in the end: a disk without room for it takes the worker from nobody.
                    self.write_down(numbered(&*self.disk)?)?;
                }
                // A number that is never used has others wait.
                check_owner(&self.backend, self.worker).await?;
                mark_numbered(&self.backend).await?;
                let own = self.take(&mut taking.asked).await?;
                *taking.own.insert(own)
            }
        };
        let before = Numbers::list(&self.backend).await?;
        if let Some(later) = before.of_worker(self.worker).next_back().filter(|last| *last > own) {
            return Err(self.copied(later));
        }
        close(&self.backend, &before, |process| process < (self.worker, own)).await?;
        let Decided { first, adopted } = match &taking.decided {
            Some(decided) => decided.clone(),
            None => {
                let decided = self.decide(knows).await?;
                // After the number is there: an heir that claimed the backend before that has closed what it saw.
                check_owner(&self.backend, self.worker).await?;
                taking.decided.insert(decided).clone()
            }
        };
        self.record(own, first).await?;
        if let Err(error) = self.write_down(own) {
            if matches!(knows, Knows::Log(_)) {
                // Nothing else says, if the index is lost again, which blobs it had.
                return Err(error.into());
            }
            // It only spares looks then: a full disk must not keep the spool from getting empty.
            tracing::warn!(%error, process = %own, "this process's number could not be recorded");
        }
        if let Err(error) = self.forget_old(own, &before).await {
            tracing::warn!(%error, "markers of earlier processes were not removed: a later start will retry");
        }
        tracing::info!(process = %own, first, adopted = adopted.len(), "this process was given a number");
        let taken = self.taken.set(Taken { process: own, adopted });
        assert!(taken.is_ok(), "a process has one number");
        Ok(own)
    }

    /// Writes into the directory which of its processes has a number and a record.
    fn write_down(&self, process: ProcessId) -> Result<(), DiskError> {
        replace_file(&*self.disk, "", FILE, &encode(&Numbered { process }))
    }

    /// The next number, as this process's.
    async fn take(&self, asked: &mut Option<ProcessId>) -> Result<ProcessId, PackError> {
        if let Some(asked) = *asked
            && self.has(asked).await?
        {
            return Ok(asked);
        }
        let mut last = self.latest().await?;
        loop {
            let next = last.next();
            let next = next.ok_or_else(|| {
                PackError::damaged(
                    path(self.worker, last),
                    "it is the last that a process may have: take the worker over with an empty directory",
                )
            })?;
            *asked = Some(next);
            let bytes = Bytes::from(encode(&Number { nonce: self.nonce }));
            if self.backend.put_new(&path(self.worker, next), bytes).await?
                || self.has(next).await?
            {
                return Ok(next);
            }
            last = next;
        }
    }

    /// The last number that there is.
    async fn latest(&self) -> Result<ProcessId, PackError> {
        let numbers = Numbers::list(&self.backend).await?;
        let listed = numbers.of_worker(self.worker).next_back().unwrap_or_default();
        let mut last = listed.max(numbered(&*self.disk)?);
        // Lists may be late.
        while let Some(next) = last.next()
            && self.backend.size(&path(self.worker, next)).await?.is_some()
        {
            last = next;
        }
        Ok(last)
    }

    /// Returns true if a number is this process's.
    async fn has(&self, process: ProcessId) -> Result<bool, PackError> {
        match self.backend.whole(&path(self.worker, process), RECORD_BYTES_MAX).await {
            Ok(bytes) => {
                Ok(decode::<Number>("the number of a process", &bytes)?.nonce == self.nonce)
            }
            Err(Unread::Missing) => Ok(false),
            Err(Unread::Failed(error)) => Err(error),
        }
    }

    /// Writes the record.
    async fn record(&self, own: ProcessId, first: u64) -> Result<(), PackError> {
        let (record, name) = (Record::From(first), record_path(self.worker, own));
        if self.backend.put_new(&name, encode(&record).into()).await? {
            return Ok(());
        }
        // A try before may have come through.
        match read_record(&self.backend, self.worker, own).await? {
            Some(there) if there == record => Ok(()),
            _ => Err(PackError::Copied { worker: self.worker, name }),
        }
    }

    /// Compares what counts in the backend with what the directory knows.
    async fn decide(&self, knows: Knows<'_>) -> Result<Decided, PackError> {
        let (spool, is_made_anew) = (knows.spool(), matches!(knows, Knows::Log(_)));
        let uploaded = *spool.uploaded().borrow();
        let floor = if is_made_anew { 0 } else { uploaded };
        let after = BlobName::behind(BlobId { worker: self.worker, seq: floor });
        let names = self.backend.names_after(blob::PREFIX, &after).await?;
        let mut listed = Listed::all(names)?;
        listed.retain(|blob| blob.name.id.worker == self.worker);
        // The last process of the directory may have uploaded what waits, and what no list shows yet.
        let unlisted = match spool.waiting() {
            0 => None,
            _ => Some(numbered(&*self.disk)?),
        };
        let processes = listed.iter().map(|blob| blob.name.process).chain(unlisted);
        let from = (self.worker, processes.min().unwrap_or(ProcessId::LAST));
        let counting = match bugs::planted(Bug::AdoptedThoughVoid) {
            true => Counting::default(),
            false if is_made_anew => Counting::read(&self.backend, &self.records).await?,
            false => Counting::read_from(&self.backend, &self.records, from).await?,
        };
        let mut decided = Decided { first: uploaded + 1, adopted: BTreeMap::new() };
        // Blobs that the last process knew are uploaded, even if they are lost: then they are not
        // void when they are back.
        if is_made_anew
            && let Some(known) = counting.known().get(&self.worker)
            && spool.waiting_before(known + 1).is_empty()
        {
            decided.first = decided.first.max(known + 1);
        }
        for blob in counting.counted(listed)? {
            let (seq, path) = (blob.name.id.seq, blob.name.path());
            if is_made_anew && !spool.waits(seq) {
                decided.first = decided.first.max(seq + 1);
                continue;
            }
            if !self.is_same(spool, &blob).await? {
                return Err(PackError::OlderCopy { name: path });
            }
            if !is_made_anew && seq != decided.first {
                return Err(PackError::damaged(path, "a blob before it is missing"));
            }
            decided.first = seq + 1;
            decided.adopted.insert(seq, blob.row());
        }
        while let Some(last) = unlisted
            && let Some(row) = self.unlisted(spool, (&counting, last), decided.first).await?
        {
            decided.adopted.insert(decided.first, row);
            decided.first += 1;
        }
        // The blobs that this process has in their place are not in the backend: that has gone
        // another way.
        let passed = (spool.waiting_before(decided.first).into_iter())
            .find(|seq| !decided.adopted.contains_key(seq));
        match passed {
            Some(seq) => {
                let blob = BlobId { worker: self.worker, seq };
                Err(PackError::OlderCopy { name: format!("blobs after {blob}") })
            }
            None => Ok(decided),
        }
    }

    /// A blob that waits, if the last process of this directory has uploaded it: a list may be late with what is most often
    /// there.
    async fn unlisted(
        &self,
        spool: &Spool,
        (counting, process): (&Counting, ProcessId),
        seq: u64,
    ) -> Result<Option<BlobRow>, PackError> {
        let Some((row, _)) = spool.sealed(seq) else { return Ok(None) };
        let (id, row) = (BlobId { worker: self.worker, seq }, BlobRow { process, ..row });
        if !counting.counts(self.worker, process, seq) {
            return Ok(None);
        }
        let name = row.name(id);
        let Some(bytes) = self.backend.size(&name.path()).await? else { return Ok(None) };
        Ok(self.is_same(spool, &Listed { name, bytes }).await?.then_some(row))
    }

    /// Returns true if a blob in the backend is one that waits, to the byte. Its trailer has the
    /// sum of the footer, and that has the sums of all bodies.
    async fn is_same(&self, spool: &Spool, blob: &Listed) -> Result<bool, PackError> {
        let Some((row, trailer)) = spool.sealed(blob.name.id.seq) else { return Ok(false) };
        let row = BlobRow { process: blob.name.process, ..row };
        if row.name(blob.name.id) != blob.name || row.bytes != blob.bytes {
            return Ok(false);
        }
        let from = blob.bytes - TRAILER_BYTES as u64;
        match self.backend.read_uploaded(&blob.name.path(), from..blob.bytes).await {
            Ok(found) => Ok(found == trailer),
            Err(Unread::Missing) => Err(PackError::Missing { blob: blob.name.id }),
            Err(Unread::Failed(error)) => Err(error),
        }
    }

    /// Refuses if this process no longer has the last number. Old numbers go in their order. So a
    /// process that finds its own, and did not find the next before, had the last then. The next
    /// may come and go again only [`PROCESS_AGE_MIN`] later: until long before that, by clocks, the
    /// own number need not be looked at.
    async fn check_latest(&self, own: ProcessId, by: NumberingEvidence) -> Result<(), PackError> {
        let begun = SuspendAwareInstant::now(self.uptime);
        let next = own.next().unwrap_or(own);
        if next > own && self.backend.size(&path(self.worker, next)).await?.is_some() {
            return Err(self.copied(next));
        }
        // Only now: the answer may have been long on its way.
        let own_seen = *self.own_seen.lock();
        let is_recent = own_seen.is_some_and(|seen| seen.elapsed() <= OWN_NUMBER_SEEN_MAX);
        if by == NumberingEvidence::Clocks && is_recent {
            return Ok(());
        }
        if self.backend.size(&path(self.worker, own)).await?.is_some() {
            *self.own_seen.lock() = Some(begun);
            return Ok(());
        }
        // Old numbers go when there are many later ones. Or the backend does not show it for a moment, or somebody removed it.
        let all = Numbers::list(&self.backend).await?;
        match all.of_worker(self.worker).next_back().filter(|last| *last > own) {
            Some(last) => Err(self.copied(last)),
            None => Err(PackError::Backend {
                operation: "find",
                name: path(self.worker, own),
                reason: "this process's number is gone, and nobody has a greater one; if that lasts, somebody removed it: \
                         start this process again"
                    .to_owned(),
            }),
        }
    }

    fn copied(&self, by: ProcessId) -> PackError {
        PackError::Copied { worker: self.worker, name: path(self.worker, by) }
    }
}

/// Closes numbers without a record, of those that `is_before` tells: their processes upload nothing.
pub(crate) async fn close(
    backend: &Backend,
    numbers: &Numbers,
    is_before: impl Fn((WorkerId, ProcessId)) -> bool,
) -> Result<(), PackError> {
    if bugs::planted(Bug::NumbersNotClosed) {
        return Ok(());
    }
    for (worker, process) in numbers.open().filter(|process| is_before(*process)) {
        // If there is one by now, that counts.
        let record = encode(&Record::Closed).into();
        let _is_closed = backend.put_new(&record_path(worker, process), record).await?;
    }
    Ok(())
}

/// The last process of a directory that had a number and a record.
fn numbered(disk: &dyn Disk) -> Result<ProcessId, PackError> {
    match read_file(disk, FILE) {
        Ok(bytes) => Ok(decode::<Numbered>("which process had a number", &bytes)?.process),
        Err(DiskError::NotFound { .. }) => Ok(ProcessId::UNNUMBERED),
        Err(error) => Err(error.into()),
    }
}
