//! Removing from the backend what nothing needs any more: retired blobs, and objects of their own that no version has.
//!
//! # Invariants
//!
//! 1. A retired blob goes only when the blob that says so is in the backend, a grace time has passed since, and nobody
//!    reads who began before.
//! 2. An object of its own goes only when the committer says that no version has it and no request is about to name
//!    it, after it was seen like that for a grace time.
//! 3. Only the owner removes anything, and asks before every few objects whether it still is.
//!
//! What a crash leaves behind in between is found again: retired blobs by their rows, objects by listing them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::backend::Backend;
use crate::blob::BlobName;
use crate::bugs::{self, Bug};
use crate::counters::{Counters, add, count};
use crate::entry::{OwnId, Within, WorkerId};
use crate::error::PackError;
use crate::horizon::Horizon;
use crate::identity::check_owner;
use crate::index::Index;
use crate::limits::{REMOVED_UNASKED_MAX, UNWANTED_MAX};
use crate::own;
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
    /// Which blobs of earlier workers there are.
    pub(crate) horizon: Horizon,
    pub(crate) grace: Duration,
    pub(crate) pace: Pace,
    /// Since when nothing needs these.
    pub(crate) unwanted: BTreeMap<Within, Unwanted>,
    /// Removals since the owner was asked for.
    pub(crate) unasked: u64,
}

/// When something was first seen that nothing needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unwanted {
    since: Instant,
    mark: Mark,
}

impl Remover {
    /// Removes retired blobs whose time has come; how many.
    pub(crate) async fn blobs(&mut self, now_ms: u64) -> Result<u64, PackError> {
        let mut removed = 0;
        for (id, retired) in self.index.retired()? {
            let seen = self.see(Within::Blob(id));
            let is_told = retired.by.worker != self.worker
                || *self.spool.uploaded().borrow() >= retired.by.seq
                || bugs::planted(Bug::RemoveBeforeUpload);
            let is_old = now_ms.saturating_sub(retired.retired_ms) >= self.grace.as_millis() as u64;
            if !is_told || !is_old || !self.readers.are_done(seen.mark) {
                continue;
            }
            // A blob that a rebuild has only heard of has no row: it is gone.
            if let Some(row) = self.index.blob(id)? {
                self.remove(&row.name(id).path()).await?;
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
        let mut removed = self.stray_blobs().await?;
        let listed = self.list(own::PREFIX).await?;
        let mut wanted = 0;
        for (name, bytes) in listed {
            let Some(own) = OwnId::parse(&name) else {
                tracing::warn!(name, "an object that is not Larder's lies among its own");
                continue;
            };
            let within = Within::Own(own);
            if !self.index.holders(within, 0, 1)?.is_empty() {
                self.unwanted.remove(&within);
                wanted += 1;
            } else if self.is_due(within) && self.is_unwanted(own).await {
                self.remove(&own.path()).await?;
                add(&self.counters.freed_bytes, bytes);
                count(&self.counters.removed_objects);
                self.unwanted.remove(&within);
                removed += 1;
            }
        }
        tracing::debug!(wanted, removed, "looked for objects that nothing names");
        Ok(removed)
    }

    /// Blobs that the index does not have, though it is past them: none that a rebuild would read.
    async fn stray_blobs(&mut self) -> Result<u64, PackError> {
        // Before the list: what is uploaded after it is not in it.
        let uploaded = *self.spool.uploaded().borrow();
        let mut removed = 0;
        for (name, bytes) in self.list(crate::blob::PREFIX).await? {
            let Some(name) = BlobName::parse(&name) else { continue };
            let is_past = name.id.worker < self.worker
                || name.id.worker == self.worker && name.id.seq <= uploaded;
            let within = Within::Blob(name.id);
            if !is_past || self.is_known(name)? || !self.is_due(within) {
                continue;
            }
            tracing::info!(blob = %name.id, "a blob that was retired or void is removed");
            self.remove(&name.path()).await?;
            add(&self.counters.freed_bytes, bytes);
            count(&self.counters.removed_objects);
            self.unwanted.remove(&within);
            removed += 1;
        }
        Ok(removed)
    }

    /// Whether a blob is one of the index, or one that it should have: then nothing is removed.
    fn is_known(&self, name: BlobName) -> Result<bool, PackError> {
        if self.index.blob(name.id)?.is_some() {
            return Ok(true);
        }
        // Standing by its changes alone: its upload is being told.
        Ok(self.index.blob_content(name.id)?.is_some() && self.horizon.has(name.id))
    }

    async fn list(&mut self, prefix: &str) -> Result<Vec<(String, u64)>, PackError> {
        self.pace.spend(0).await;
        self.backend.names(prefix).await
    }

    fn see(&mut self, within: Within) -> Unwanted {
        let mark = self.readers.mark();
        *self.unwanted.entry(within).or_insert(Unwanted { since: Instant::now(), mark })
    }

    /// Whether it was seen as not needed for long enough.
    fn is_due(&mut self, within: Within) -> bool {
        // More wait for the next look, so that what is remembered is bounded.
        if self.unwanted.len() >= UNWANTED_MAX && !self.unwanted.contains_key(&within) {
            return false;
        }
        let seen = self.see(within);
        seen.since.elapsed() >= self.grace && self.readers.are_done(seen.mark)
    }

    async fn is_unwanted(&self, own: OwnId) -> bool {
        let (reply, answer) = oneshot::channel();
        match self.queue.push(Request::IsUnwanted { own, reply }) {
            Ok(()) => answer.await.unwrap_or(false),
            Err(_) => false,
        }
    }

    async fn remove(&mut self, name: &str) -> Result<(), PackError> {
        if self.unasked == 0 {
            check_owner(&self.backend, self.worker).await?;
        }
        self.unasked = (self.unasked + 1) % REMOVED_UNASKED_MAX;
        self.pace.spend(0).await;
        self.backend.remove(name).await
    }
}
