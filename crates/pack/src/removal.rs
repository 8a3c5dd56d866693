//! Removing from the backend what nothing needs any more: retired blobs, and objects of their own that no version has.
//!
//! # Invariants
//!
//! 1. Nothing goes before the backend has all that says that it may: of a retired blob the one that retires it, of an
//!    object the one with the change since which nothing names it. Else a lost directory would bring back its names.
//! 2. A grace time has passed since, by this process's steady clock from when it knew, and nobody reads who began
//!    before. Clocks that tell the time may be set, and those of other workers take this one's along.
//! 3. An object of its own goes only when the committer says that nothing has it and no request is about to name it.
//!    Then nothing ever will: its name is given once.
//! 4. Only the owner removes anything. It asks whether it still is before every few removals, and after the upload
//!    that a removal goes by: an heir that came before that upload does not know of it.
//!
//! What a crash leaves behind in between is found again: retired blobs by their rows, objects by listing them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::backend::{Backend, Listing};
use crate::blob::BlobName;
use crate::bugs::{self, Bug};
use crate::counters::{Counters, add, count};
use crate::entry::{OwnId, Within, WorkerId};
use crate::error::PackError;
use crate::horizon::Horizon;
use crate::index::Index;
use crate::limits::{REMOVED_UNASKED_MAX, UNWANTED_MAX};
use crate::own;
use crate::owner::Owner;
use crate::queue::{Queue, Request};
use crate::readers::{Mark, Readers};
use crate::repack::pace::Pace;
use crate::spool::Spool;

/// What removing works with.
pub(crate) struct Remover {
    pub(crate) backend: Backend,
    pub(crate) index: Arc<Index>,
    pub(crate) spool: Arc<Spool>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) worker: WorkerId,
    pub(crate) owner: Owner,
    /// Which blobs of earlier workers there are.
    pub(crate) horizon: Horizon,
    pub(crate) grace: Duration,
    pub(crate) pace: Pace,
    /// Since when nothing needs these.
    pub(crate) unwanted: BTreeMap<Within, Unwanted>,
    /// Removals since the owner was asked for.
    pub(crate) unasked: u64,
    /// The last blob that was uploaded before that.
    pub(crate) vouched: u64,
}

/// When something was first seen that nothing needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unwanted {
    since: Instant,
    mark: Mark,
    /// The blob that says so, or a later one.
    told: u64,
}

impl Remover {
    /// Removes retired blobs whose time has come; how many.
    pub(crate) async fn blobs(&mut self) -> Result<u64, PackError> {
        let mut removed = 0;
        for (id, retired) in self.index.retired()? {
            let is_own = retired.by.worker == self.worker;
            let seen = self.see(Within::Blob(id), if is_own { retired.by.seq } else { 0 });
            if !self.is_due(seen) {
                continue;
            }
            // A blob that a rebuild has only heard of has no row: it is gone.
            if let Some(row) = self.index.blob(id)? {
                self.remove(&row.name(id).path(), seen.told).await?;
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
            self.unwanted.remove(&Within::Blob(id));
        }
        Ok(removed)
    }

    /// Looks through the backend for what nothing needs, and removes what was seen like that for the grace time: objects
    /// of their own that no version has, and blobs that came back after they were removed, or too late. How many.
    pub(crate) async fn strays(&mut self) -> Result<u64, PackError> {
        let mut there = BTreeSet::new();
        let mut removed = self.stray_blobs(&mut there).await?;
        let mut listing = self.list(own::PREFIX).await;
        while let Some(some) = listing.next().await? {
            for (name, bytes) in some {
                let Some(own) = OwnId::parse(&name) else {
                    tracing::warn!(name, "an object that is not Larder's lies among its own");
                    continue;
                };
                removed += self.stray(own, bytes, &mut there).await?;
            }
        }
        // What went by itself, as a removal that failed had come through, is not remembered for ever. A retired blob is
        // forgotten by the index first.
        there.extend(self.index.retired()?.into_iter().map(|(id, _)| Within::Blob(id)));
        self.unwanted.retain(|within, _| there.contains(within));
        tracing::debug!(removed, "looked for objects that nothing names");
        Ok(removed)
    }

    /// Looks at one object of its own; 1 if it is removed. Whatever is remembered and is there goes into `there`.
    async fn stray(
        &mut self,
        own: OwnId,
        bytes: u64,
        there: &mut BTreeSet<Within>,
    ) -> Result<u64, PackError> {
        let within = Within::Own(own);
        if !self.unwanted.contains_key(&within) {
            if !self.index.holders(within, 0, 1)?.is_empty() {
                return Ok(0);
            }
            let Some(told) = self.unwanted_since(own).await else { return Ok(0) };
            self.notice(within, told);
        }
        let Some(seen) = self.due(within) else {
            if self.unwanted.contains_key(&within) {
                there.insert(within);
            }
            return Ok(0);
        };
        self.remove(&own.path(), seen.told).await?;
        add(&self.counters.freed_bytes, bytes);
        count(&self.counters.removed_objects);
        self.unwanted.remove(&within);
        Ok(1)
    }

    /// Blobs that the index does not have, though it is past them: none that a rebuild would read.
    async fn stray_blobs(&mut self, there: &mut BTreeSet<Within>) -> Result<u64, PackError> {
        // Before the list: what is uploaded after it is not in it.
        let uploaded = *self.spool.uploaded().borrow();
        let mut removed = 0;
        self.pace.spend(0).await;
        for (name, bytes) in self.backend.names(crate::blob::PREFIX).await? {
            let Some(name) = BlobName::parse(&name) else { continue };
            let is_past = name.id.worker < self.worker
                || name.id.worker == self.worker && name.id.seq <= uploaded;
            let within = Within::Blob(name.id);
            there.insert(within);
            if !is_past || self.is_known(name)? {
                continue;
            }
            // It was void, or removed once: who says so is in the backend. Of a number that the index has the owner is
            // asked after the list: a later process may have uploaded it.
            if self.index.blob(name.id)?.is_some() {
                self.unasked = 0;
            }
            self.notice(within, 0);
            let Some(seen) = self.due(within) else { continue };
            tracing::info!(blob = %name.id, "a blob that was retired or void is removed");
            self.remove(&name.path(), seen.told).await?;
            add(&self.counters.freed_bytes, bytes);
            count(&self.counters.removed_objects);
            self.unwanted.remove(&within);
            removed += 1;
        }
        Ok(removed)
    }

    /// Whether a blob is one of the index, or one that it should have: then nothing is removed. Of another name it is
    /// what a superseded process has uploaded late; a row without bytes is that of a blob that was missing.
    fn is_known(&self, name: BlobName) -> Result<bool, PackError> {
        if let Some(row) = self.index.blob(name.id)? {
            return Ok(row.name(name.id) == name || row.bytes == 0);
        }
        // Standing by its changes alone: its upload is being told.
        Ok(self.index.blob_content(name.id)?.is_some() && self.horizon.has(name.id))
    }

    async fn list(&mut self, prefix: &str) -> Listing {
        self.pace.spend(0).await;
        self.backend.list(prefix)
    }

    /// When it was first seen; that is now, if it was not. `told` says through which blob it may go.
    fn see(&mut self, within: Within, told: u64) -> Unwanted {
        let mark = self.readers.mark();
        let now = Unwanted { since: Instant::now(), mark, told };
        *self.unwanted.entry(within).or_insert(now)
    }

    /// Remembers that nothing needs it. More wait for the next look, so that what is remembered is bounded.
    fn notice(&mut self, within: Within, told: u64) {
        if self.unwanted.len() < UNWANTED_MAX {
            self.see(within, told);
        }
    }

    /// When it was first seen, if that is long enough ago to remove it.
    fn due(&self, within: Within) -> Option<Unwanted> {
        let seen = *self.unwanted.get(&within)?;
        self.is_due(seen).then_some(seen)
    }

    fn is_due(&self, seen: Unwanted) -> bool {
        seen.since.elapsed() >= self.grace && self.is_settled(seen)
    }

    /// Whether the backend has what says that it may go, and all are done that began to read before.
    fn is_settled(&self, seen: Unwanted) -> bool {
        let uploaded = *self.spool.uploaded().borrow();
        let is_told = uploaded >= seen.told || bugs::planted(Bug::RemoveBeforeUpload);
        is_told && self.readers.are_done(seen.mark)
    }

    /// The last blob that there is, if nothing has the object and nothing will; the change that said so is in it or
    /// before.
    async fn unwanted_since(&self, own: OwnId) -> Option<u64> {
        let (reply, answer) = oneshot::channel();
        self.queue.push(Request::UnwantedSince { own, reply }).ok()?;
        answer.await.ok()?
    }

    async fn remove(&mut self, name: &str, told: u64) -> Result<(), PackError> {
        if self.unasked == 0 || told > self.vouched {
            let uploaded = *self.spool.uploaded().borrow();
            self.owner.check().await?;
            (self.unasked, self.vouched) = (0, uploaded);
        }
        self.unasked = (self.unasked + 1) % REMOVED_UNASKED_MAX;
        self.pace.spend(0).await;
        self.backend.remove(name).await
    }
}
