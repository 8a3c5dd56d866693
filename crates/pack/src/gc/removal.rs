//! Removes from the backend what nothing needs any more: retired blobs, and objects of their own
//! that no version has.
//!
//! # Invariants
//!
//! 1. Nothing goes before the backend has the blob that says that it may. For a retired blob, that
//!    is the one that retires it. For an object, it is the one with the change since which nothing
//!    names it. Else a lost directory would bring back its names.
//! 2. A grace time has passed since, by this process's steady clock from when it knew, and no
//!    reader goes on that began before. Clocks that tell the time may be set, and those of other
//!    workers take this one's along.
//! 3. An object of its own goes only when the committer says that nothing has it and no request is about to name it.
//!    Then nothing ever will: its name is given once.
//! 4. Only the owner removes anything. It asks if it still is the owner before every few removals,
//!    and after the upload that a removal goes by. An heir that came before that upload does not
//!    know of it.
//! 5. An object of its own goes only when a blob is uploaded that this process began. A copy of the
//!    directory that has changes which name the object lacks that blob, and is refused.
//! 6. Nothing goes that the index names, even if something else says that it may.
//! 7. An object that a superseded process uploaded too late goes by its name, which has the number
//!    of that process. It counts for nobody, by what is written down in the backend
//!    ([`crate::owner::counting`]), and nobody uploads anything of that name again.
//!
//! What a crash leaves behind in between is found again: retired blobs by their rows, objects by listing them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::backend::token_bucket::TokenBucket;
use crate::backend::{Backend, Listing};
use crate::bugs::{self, Bug};
use crate::commit::queue::{Queue, Request};
use crate::commit::spool::Spool;
use crate::counters::{Counters, add, count};
use crate::error::PackError;
use crate::format::blob::BlobName;
use crate::format::entry::Container;
use crate::format::names;
use crate::ids::{ProcessId, StandaloneId, WorkerId};
use crate::index::Index;
use crate::limits::{REMOVED_UNREQUESTED_MAX, UNWANTED_MAX};
use crate::owner::counting::{self, Counting};
use crate::owner::numbering::forgetting;
use crate::owner::ownership::Ownership;
use crate::owner::takeover_fence::TakeoverFence;
use crate::read::readers::{Mark, Readers};

/// The remover, with the parts of the store that it needs.
pub(crate) struct Remover {
    pub(crate) backend: Backend,
    pub(crate) index: Arc<Index>,
    pub(crate) spool: Arc<Spool>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) worker: WorkerId,
    pub(crate) owner: Arc<Ownership>,
    /// The blobs that earlier workers have.
    pub(crate) takeover_fence: TakeoverFence,
    /// The processes and their records, as they were last read.
    pub(crate) counting: Counting,
    /// True if a look has found anything that is void by a record.
    pub(crate) has_void: bool,
    pub(crate) grace: Duration,
    pub(crate) pace: TokenBucket,
    /// Since when nothing needs these.
    pub(crate) unwanted: BTreeMap<Stray, Unwanted>,
    /// The first blob that this process begins itself.
    pub(crate) began: u64,
    /// Removals since the owner was asked for.
    pub(crate) unrequested: u64,
    /// The last blob that was uploaded before that.
    pub(crate) vouched: u64,
}

/// A blob or object, with the process that uploaded it: several may have one of the same number.
pub(crate) type Stray = (Container, ProcessId);

/// The first sight of something that nothing needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unwanted {
    since: Instant,
    mark: Mark,
    /// The blob that says so, or a later one.
    last_named: u64,
}

impl Remover {
    /// Removes retired blobs whose time has come; returns how many.
    pub(crate) async fn blobs(&mut self) -> Result<u64, PackError> {
        let mut removed = 0;
        for (id, retired) in self.index.retired()? {
            let is_own = retired.by.worker == self.worker;
            let row = self.index.blob(id)?;
            let stray = (Container::Blob(id), row.map(|row| row.process).unwrap_or_default());
            let seen = self.see(stray, if is_own { retired.by.seq } else { 0 });
            if !self.is_due(seen) {
                continue;
            }
            // A blob that a rebuild found only mentioned has no row: it was removed.
            if let Some(row) = row {
                self.remove(&row.name(id).path(), seen.last_named).await?;
                add(&self.counters.freed_bytes, row.bytes);
                count(&self.counters.removed_blobs);
                removed += 1;
            }
            let (reply, done) = oneshot::channel();
            if self.queue.push(Request::Forget { blob: id, reply }).is_err() {
                return Ok(removed);
            }
            // Dropped when it is done. If the store stops first, it is removed once more, which is no error.
            let _answered = done.await;
            self.unwanted.remove(&stray);
        }
        Ok(removed)
    }

    /// Looks through the backend for what nothing needs, and removes what was seen like that for
    /// the grace time. That is objects of their own that no version has, and blobs that came back
    /// after they were removed, or too late. Returns how many.
    pub(crate) async fn strays(&mut self) -> Result<u64, PackError> {
        let mut there = BTreeSet::new();
        let mut removed = self.stray_blobs(&mut there).await?;
        let mut listing = self.list(names::PREFIX).await;
        while let Some(some) = listing.next().await? {
            // After the list: a process that uploads has its record before.
            let has_bundles = some.iter().any(|(name, _)| name.len() > names::NAME_BYTES);
            if has_bundles {
                self.pace.spend(0).await;
                self.read_counting().await?;
            }
            for (name, bytes) in some {
                let Some((own, process)) = StandaloneId::parse(&name) else {
                    tracing::warn!(name, "found a foreign object among Larder's own");
                    continue;
                };
                removed += self.stray(own, process, bytes, &mut there).await?;
            }
        }
        // Strays that went by themselves, as a removal that failed had come through, are not
        // remembered for ever. The index forgets a retired blob first.
        let retired: BTreeSet<_> =
            self.index.retired()?.into_iter().map(|(id, _)| Container::Blob(id)).collect();
        self.unwanted.retain(|stray, _| there.contains(stray) || retired.contains(&stray.0));
        self.forget_processes().await?;
        tracing::debug!(removed, "searched for unreferenced objects");
        Ok(removed)
    }

    /// Looks at one object of its own; returns 1 if it is removed. A stray that is remembered and
    /// is there goes into `there`.
    async fn stray(
        &mut self,
        own: StandaloneId,
        process: ProcessId,
        bytes: u64,
        there: &mut BTreeSet<Stray>,
    ) -> Result<u64, PackError> {
        let stray = (Container::Own(own), process);
        let is_void = self.is_void_bundle(own, process);
        self.has_void |= is_void;
        if !self.unwanted.contains_key(&stray) {
            let is_held = !self.index.holders(stray.0, 0, 1)?.is_empty();
            let named = match own.bundle() {
                Some(_) => self.index.bundle_process(own)?.unwrap_or_default(),
                None => process,
            };
            // As of blobs, in `is_known`.
            let is_earlier = is_held && process < named;
            let last_named = match is_void || is_earlier {
                true if is_held && named == process => {
                    tracing::error!(object = %own.path_of(process), "a void blob is still referenced by the index and will be kept");
                    None
                }
                true => Some(0),
                // A process on a copy of this directory may have acknowledged a change that names
                // it, and go on when this one stops. It cannot any more, once there is a blob that
                // it lacks.
                false if !is_held => {
                    self.unwanted_since(own).await.map(|last_named| last_named.max(self.began))
                }
                false => None,
            };
            let Some(last_named) = last_named else { return Ok(0) };
            self.notice(stray, last_named);
        }
        let Some(seen) = self.due(stray) else {
            if self.unwanted.contains_key(&stray) {
                there.insert(stray);
            }
            return Ok(0);
        };
        if own.bundle().is_some() && !self.forget_bundle(own, process).await? {
            return Ok(0);
        }
        self.remove(&own.path_of(process), seen.last_named).await?;
        add(&self.counters.freed_bytes, bytes);
        count(&self.counters.removed_objects);
        self.unwanted.remove(&stray);
        Ok(1)
    }

    /// Has the committer forget a bundle; false if the store stops first.
    async fn forget_bundle(
        &self,
        own: StandaloneId,
        process: ProcessId,
    ) -> Result<bool, PackError> {
        let (reply, forgotten) = oneshot::channel();
        if self.queue.push(Request::ForgetBundle { own, process, reply }).is_err() {
            return Ok(false);
        }
        forgotten.await.map_or(Ok(false), |forgotten| forgotten.map(|()| true))
    }

    /// Returns true if a superseded process uploaded a bundle too late.
    fn is_void_bundle(&self, own: StandaloneId, process: ProcessId) -> bool {
        own.bundle().is_some_and(|(blob, _)| !self.counting.counts(blob.worker, process, blob.seq))
    }

    /// Blobs that the index does not have, though it is past them, and those that are void: none that a rebuild would read.
    async fn stray_blobs(&mut self, there: &mut BTreeSet<Stray>) -> Result<u64, PackError> {
        // Before the list: what is uploaded after it is not in it.
        let uploaded = *self.spool.uploaded().borrow();
        let mut removed = 0;
        self.pace.spend(0).await;
        let listed = self.backend.names(crate::format::blob::PREFIX).await?;
        self.pace.spend(0).await;
        self.read_counting().await?;
        for (name, bytes) in listed {
            let Some(name) = BlobName::parse(&name) else { continue };
            let is_past = name.id.worker < self.worker
                || name.id.worker == self.worker && name.id.seq <= uploaded;
            let stray = (Container::Blob(name.id), name.process);
            there.insert(stray);
            let is_void = !self.counting.counts(name.id.worker, name.process, name.id.seq);
            let row = self.index.blob(name.id)?;
            if is_void && row.is_some_and(|row| row.process == name.process) {
                tracing::error!(blob = %name.path(), "a void blob is still referenced by the index and will be kept");
                continue;
            }
            if !is_void && (!is_past || self.is_known(name)?) {
                continue;
            }
            self.has_void |= is_void;
            // It was void, or removed once: the record of that is in the backend.
            self.notice(stray, 0);
            let Some(seen) = self.due(stray) else { continue };
            tracing::info!(blob = %name.id, "removed a retired or void blob");
            self.remove(&name.path(), seen.last_named).await?;
            add(&self.counters.freed_bytes, bytes);
            count(&self.counters.removed_objects);
            self.unwanted.remove(&stray);
            removed += 1;
        }
        Ok(removed)
    }

    /// Returns true if a blob is one of the index, or one that it should have: then nothing is
    /// removed.
    fn is_known(&self, name: BlobName) -> Result<bool, PackError> {
        if let Some(row) = self.index.blob(name.id)? {
            // One of an earlier process is void by a record that is gone, as it is so long ago.
            return Ok(name.process >= row.process);
        }
        // Standing by its changes alone: its upload is being told.
        Ok(self.index.blob_content(name.id)?.is_some() && self.takeover_fence.has(name.id))
    }

    async fn read_counting(&mut self) -> Result<(), PackError> {
        self.counting = Counting::read(&self.backend, self.owner.records()).await?;
        Ok(())
    }

    /// Removes numbers and records of processes that are old, unless anything may be there still that is void by them.
    async fn forget_processes(&mut self) -> Result<(), PackError> {
        if std::mem::take(&mut self.has_void) {
            return Ok(());
        }
        let old = forgetting::old(&self.counting.numbers, self.worker);
        for (worker, process) in forgetting::removable(&self.counting, old) {
            self.remove(&counting::path(worker, process), 0).await?;
            self.remove(&counting::record_path(worker, process), 0).await?;
        }
        Ok(())
    }

    async fn list(&mut self, prefix: &str) -> Listing {
        self.pace.spend(0).await;
        self.backend.list(prefix)
    }

    /// The first sight of it; that is now, if it was not seen before. `told` says through which
    /// blob it may go.
    fn see(&mut self, stray: Stray, last_named: u64) -> Unwanted {
        let mark = self.readers.mark();
        let now = Unwanted { since: Instant::now(), mark, last_named };
        *self.unwanted.entry(stray).or_insert(now)
    }

    /// Remembers that nothing needs it. More wait for the next look, so that what is remembered is bounded.
    fn notice(&mut self, stray: Stray, last_named: u64) {
        if self.unwanted.len() < UNWANTED_MAX {
            self.see(stray, last_named);
        }
    }

    /// The first sight of it, if that is long enough ago to remove it.
    fn due(&self, stray: Stray) -> Option<Unwanted> {
        let seen = *self.unwanted.get(&stray)?;
        self.is_due(seen).then_some(seen)
    }

    fn is_due(&self, seen: Unwanted) -> bool {
        seen.since.elapsed() >= self.grace && self.is_settled(seen)
    }

    /// Returns true if the backend has what says that it may go, and all are done that began to
    /// read before.
    fn is_settled(&self, seen: Unwanted) -> bool {
        let uploaded = *self.spool.uploaded().borrow();
        let is_told = uploaded >= seen.last_named || bugs::planted(Bug::RemoveBeforeUpload);
        is_told && self.readers.are_done(seen.mark)
    }

    /// The last blob that there is, if nothing has the object and nothing will; the change that said so is in it or
    /// before.
    async fn unwanted_since(&self, own: StandaloneId) -> Option<u64> {
        let (reply, answer) = oneshot::channel();
        self.queue.push(Request::UnwantedSince { own, reply }).ok()?;
        answer.await.ok()?
    }

    async fn remove(&mut self, name: &str, last_named: u64) -> Result<(), PackError> {
        if self.unrequested == 0 || last_named > self.vouched {
            let uploaded = *self.spool.uploaded().borrow();
            self.owner.ask().await?;
            (self.unrequested, self.vouched) = (0, uploaded);
        }
        self.unrequested = (self.unrequested + 1) % REMOVED_UNREQUESTED_MAX;
        self.pace.spend(0).await;
        self.backend.remove(name).await
    }
}
