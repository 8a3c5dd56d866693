//! Repacking: the live bodies of a blob that is mostly dead go into the blob that is open, and the
//! old one is retired.
//!
//! ```text
//!  choose ──▶ drain ──read──▶ carry: a command like all others ──▶ committer ──▶ spool, log, index ──▶ backend
//!                                                                    │
//!            removal.rs: delete the object  ◀── after a grace time ── retired
//! ```
//!
//! There is no second way into the index or the backend: a version that moves is a change that the
//! committer decides, against the index as it is then. ADR 16 says why a rebuild is right at every
//! step.
//!
//! # Invariants
//!
//! 1. One blob or bundle at a time is emptied. A bundle tells of nothing: when its bodies have moved, nothing names it
//!    any more, and it is removed as any object of its own is.
//! 2. Requests and bytes keep to a pace. Nothing is begun while uploads wait for money.
//! 3. A blob that cannot be emptied stays as it is. If it is missing or damaged it is set aside,
//!    and tried again after a pause that doubles (`backoff.rs`).

pub(crate) mod backoff;
mod choose;
mod drain;
mod moving;
pub(crate) mod needs;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::backend::Backend;
use crate::backend::token_bucket::TokenBucket;
use crate::backup::Backups;
use crate::bugs::{self, Bug};
use crate::commit::queue::{Queue, Request};
use crate::counters::{Counters, count};
use crate::error::PackError;
use crate::format::entry::Container;
use crate::format::rows::BlobRow;
use crate::format::upload_unit::BundleContent;
use crate::ids::{BlobId, StandaloneId};
use crate::index::Index;
use backoff::RepackBackoff;
use choose::{Candidate, choose};
use drain::Drain;
use moving::Mover;
use needs::Needs;

/// The repacker, with the parts of the store that it needs.
pub(crate) struct Repacker {
    pub(crate) backend: Backend,
    pub(crate) index: Arc<Index>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) backups: Arc<Backups>,
    pub(crate) pace: TokenBucket,
    pub(crate) below_percent: u8,
    pub(crate) blob_bytes: u64,
    /// Blobs and bundles that could not be emptied.
    pub(crate) set_aside: RepackBackoff,
}

impl Repacker {
    /// Empties all blobs that are worth it. Gives how many were retired.
    pub(crate) async fn round(&mut self) -> Result<u64, PackError> {
        if self.below_percent == 0 {
            return Ok(0);
        }
        let mut all = self.blobs()?;
        all.extend(self.bundles()?);
        let chosen = choose(&all, self.below_percent, self.blob_bytes);
        let mut retired = 0;
        for Candidate { container, .. } in chosen {
            // Money is for what clients put.
            if self.backend.is_spent() {
                break;
            }
            match self.empty(container).await {
                Ok(true) => {
                    self.set_aside.forget(container);
                    retired += 1;
                    count(&self.counters.repacked_blobs);
                }
                Ok(false) => {}
                Err(error @ (PackError::Damaged { .. } | PackError::Missing { .. })) => {
                    let pause = self.set_aside.add(container, Instant::now());
                    tracing::error!(?container, %error, ?pause, "a blob cannot be repacked: will retry later");
                }
                Err(error) => {
                    self.seal();
                    return Err(error);
                }
            }
        }
        // Re-logged changes go up without waiting for a client's change.
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
    fn blobs(&self) -> Result<Vec<Candidate>, PackError> {
        let rows: BTreeMap<_, _> = self.index.uploaded()?.into_iter().collect();
        let standing = self.index.standing()?.into_iter();
        let blobs = standing.filter_map(|(id, content)| {
            let BlobRow { footer_offset: bodies, bytes, .. } = *rows.get(&id)?;
            Some(Candidate { container: Container::Blob(id), bodies, live: content.live, bytes })
        });
        let now = Instant::now();
        Ok(blobs.filter(|blob| !self.set_aside.has(blob.container, now)).collect())
    }

    /// Bundles that are in the backend.
    fn bundles(&self) -> Result<Vec<Candidate>, PackError> {
        let (mut bundles, now) = (Vec::new(), Instant::now());
        for (id, BundleContent { end, live, .. }) in self.index.bundles()? {
            let container = Container::Own(id);
            if Self::is_there(&self.index, id)? && !self.set_aside.has(container, now) {
                bundles.push(Candidate { container, bodies: end, live, bytes: end });
            }
        }
        Ok(bundles)
    }

    /// Returns true if a bundle is in the backend: it is before its blob, and may be there when
    /// that is gone.
    fn is_there(index: &Index, bundle: StandaloneId) -> Result<bool, PackError> {
        bundle.bundle().map_or(Ok(false), |(blob, _)| index.is_uploaded(blob))
    }

    /// Moves what is live in a blob or bundle. True if the blob is retired, or nothing has bytes in the bundle.
    async fn empty(&mut self, container: Container) -> Result<bool, PackError> {
        match container {
            Container::Blob(id) => match self.index.blob(id)? {
                Some(row) => self.drain(id, row).await,
                None => Ok(false),
            },
            Container::Own(bundle) => {
                let name = self.index.bundle_path(bundle)?;
                Mover { repacker: self, container, name }.run().await
            }
        }
    }

    /// Blobs that are not retired, in their order: those that stand, and those that are lost. The
    /// holders of bytes in a lost one name it until their keys are replaced.
    fn kept(&self) -> Result<BTreeSet<BlobId>, PackError> {
        let retired: BTreeSet<_> = self.index.retired()?.into_iter().map(|(id, _)| id).collect();
        let uploaded = self.index.uploaded()?.into_iter().map(|(id, _)| id);
        let standing = self.index.standing()?.into_iter().map(|(id, _)| id);
        Ok(uploaded.chain(standing).filter(|id| !retired.contains(id)).collect())
    }

    async fn drain(&mut self, id: BlobId, row: BlobRow) -> Result<bool, PackError> {
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
            mover: Mover {
                container: Container::Blob(id),
                name: row.name(id).path(),
                repacker: self,
            },
        };
        drain.run().await
    }

    /// Bytes of bodies in blobs that stand in the backend, and in bundles, and how many of them are live.
    pub(crate) fn use_of(index: &Index) -> Result<(u64, u64), PackError> {
        let there: BTreeSet<_> = index.uploaded()?.into_iter().map(|(id, _)| id).collect();
        let standing = index.standing()?.into_iter().filter(|(id, _)| there.contains(id));
        let mut used = standing
            .fold((0, 0), |(all, live), (_, content)| (all + content.end, live + content.live));
        for (id, content) in index.bundles()? {
            if Self::is_there(index, id)? {
                used = (used.0 + content.end, used.1 + content.live);
            }
        }
        Ok(used)
    }
}
