//! Repacking: what is live in a blob that is mostly dead goes into the blob that is open, and the old one is retired.
//!
//! ```text
//!  choose ──▶ drain ──read──▶ carry: a wish like all others ──▶ committer ──▶ spool, log, index ──▶ backend
//!                                                                    │
//!            removal.rs: delete the object  ◀── after a grace time ── retired
//! ```
//!
//! There is no second way into the index or the backend: a version that moves is a change that the committer decides,
//! against the index as it is then. Why a rebuild is right at every step stands in ADR 16.
//!
//! # Invariants
//!
//! 1. One blob at a time is emptied.
//! 2. Requests and bytes keep to a [pace](pace::Pace). Nothing is begun while uploads wait for money.
//! 3. A blob that cannot be emptied stays as it is, and is looked at again after the next start.

mod choose;
mod drain;
pub(crate) mod needs;
pub(crate) mod pace;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::backend::Backend;
use crate::backup::Backups;
use crate::bugs::{self, Bug};
use crate::counters::{Counters, count};
use crate::entry::BlobId;
use crate::error::PackError;
use crate::index::Index;
use crate::queue::{Queue, Request};
use crate::rows;
use choose::{Blob, choose};
use drain::Drain;
use needs::Needs;
use pace::Pace;

/// What repacking works with.
pub(crate) struct Repacker {
    pub(crate) backend: Backend,
    pub(crate) index: Arc<Index>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) backups: Arc<Backups>,
    pub(crate) pace: Pace,
    pub(crate) below_percent: u8,
    pub(crate) blob_bytes: u64,
    /// Blobs that could not be emptied.
    pub(crate) set_aside: BTreeSet<BlobId>,
}

impl Repacker {
    /// Empties all blobs that are worth it. Gives how many were retired.
    pub(crate) async fn round(&mut self) -> Result<u64, PackError> {
        if self.below_percent == 0 {
            return Ok(0);
        }
        let chosen = choose(&self.blobs()?, self.below_percent, self.blob_bytes);
        let mut retired = 0;
        for Blob { id, row, .. } in chosen {
            // Money is for what clients put.
            if self.backend.is_spent() {
                break;
            }
            match self.drain(id, row).await {
                Ok(true) => {
                    retired += 1;
                    count(&self.counters.repacked_blobs);
                }
                Ok(false) => {}
                Err(error @ (PackError::Damaged { .. } | PackError::Missing { .. })) => {
                    tracing::error!(blob = %id, %error, "a blob cannot be repacked; it stays as it is");
                    self.set_aside.insert(id);
                }
                Err(error) => {
                    self.seal();
                    return Err(error);
                }
            }
        }
        // What was told anew goes up without waiting for a client's change.
        if retired > 0 {
            self.seal();
        }
        Ok(retired)
    }

    fn seal(&self) {
        let (reply, _nobody_waits) = oneshot::channel();
        // A store that stops seals at its next start.
        let _stopping = self.queue.push(Request::Seal { reply });
    }

    /// Blobs that are in the backend and stand.
    fn blobs(&self) -> Result<Vec<Blob>, PackError> {
        let rows: BTreeMap<_, _> = self.index.uploaded()?.into_iter().collect();
        let standing = self.index.standing()?.into_iter();
        let standing = standing.filter(|(id, _)| !self.set_aside.contains(id));
        let blobs = standing
            .filter_map(|(id, content)| rows.get(&id).map(|row| Blob { id, row: *row, content }));
        Ok(blobs.collect())
    }

    /// Blobs that are not retired, in their order: those that stand, and those that are lost. Whoever has bytes in a
    /// lost one says so until the key is replaced.
    fn kept(&self) -> Result<BTreeSet<BlobId>, PackError> {
        let retired: BTreeSet<_> = self.index.retired()?.into_iter().map(|(id, _)| id).collect();
        let uploaded = self.index.uploaded()?.into_iter().map(|(id, _)| id);
        let standing = self.index.standing()?.into_iter().map(|(id, _)| id);
        Ok(uploaded.chain(standing).filter(|id| !retired.contains(id)).collect())
    }

    async fn drain(&mut self, id: BlobId, row: rows::BlobRow) -> Result<bool, PackError> {
        let standing = self.index.standing()?;
        if !standing.iter().any(|(of, _)| *of == id) {
            return Ok(false);
        }
        let backups = self.backups.known();
        let counted = match bugs::planted(Bug::BackupsNotCounted) {
            true => Vec::new(),
            false => backups.clone(),
        };
        let drain = Drain {
            id,
            row,
            needs: Needs::without(id, &standing, counted),
            kept: self.kept()?,
            backups,
            repacker: self,
        };
        drain.run().await
    }

    /// Bytes of bodies in blobs that stand in the backend, and how many of them are live.
    pub(crate) fn use_of(index: &Index) -> Result<(u64, u64), PackError> {
        let there: BTreeSet<_> = index.uploaded()?.into_iter().map(|(id, _)| id).collect();
        let standing = index.standing()?.into_iter().filter(|(id, _)| there.contains(id));
        Ok(standing
            .fold((0, 0), |(all, live), (_, content)| (all + content.end, live + content.live)))
    }
}
