//! Takes sealed blobs to the backend, in their order.
//!
//! # Invariants
//!
//! 1. A blob goes up only while this process owns the backend, and counts as uploaded only if it owns it still once the
//!    blob is there. Below and in `numbering.rs` it stands why that is enough.
//! 2. It counts as uploaded only when the backend gives its trailer back, at the place where it
//!    belongs and the same to the byte. So the sum of the footer is the same, and the footer has
//!    the sums of all bodies.
//! 3. A bundle goes up before the blob that tells of it. Names have this process's number: nobody else writes to them.
//! 4. A blob that cannot be uploaded is tried again, with growing pauses, for ever: what is in it was answered. A try
//!    goes on with what is missing (`uploader/units.rs`, `uploader/parts.rs`).
//!
//! # Nothing that was acknowledged is void
//!
//! An heir writes its claim, then lists the blobs, then writes its takeover fence from that list: a blob that is not in it is
//! void. This worker uploads a blob, then looks for a claim, then acknowledges. Requests and lists see every request
//! that was answered before they began. If the look found no claim, it began before the claim was answered, and the list
//! began after that: so it shows the blob, which was there before the look. If the blob is not in the list, it arrived
//! after the list began, and the look, which came later still, found the claim. A later process of this worker does the
//! same with its number.

mod parts;
mod units;

use std::sync::Arc;

use tokio::sync::oneshot;

use self::units::{Bound, WholeUploadBackoff};
use crate::backend::{Backend, jittered};
use crate::bugs::{self, Bug};
use crate::commit::queue::{Queue, Request};
use crate::commit::spool::{Sealed, Spool};
use crate::counters::{add, count};
use crate::error::PackError;
use crate::format::entry::Container;
use crate::limits::{SPOOL_BEHIND_PERCENT, UPLOAD_PAUSE, UPLOAD_PAUSE_MAX};
use crate::owner::ownership::Ownership;

/// The uploader, with the parts of the store that it needs.
pub(crate) struct Uploader {
    pub(crate) backend: Backend,
    pub(crate) spool: Arc<Spool>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) owner: Arc<Ownership>,
    /// Bytes of bodies that may wait in the spool.
    pub(crate) spool_bytes: u64,
}

/// The part of a blob that goes up which the backend has.
#[derive(Default)]
struct Progress {
    /// Lots that are there.
    units: usize,
    /// The next one.
    next: units::Progress,
}

impl Uploader {
    /// Runs until it is dropped, the store stops, or the backend belongs to another.
    pub(crate) async fn run(self) {
        // At once: a process on a copy of the directory is superseded now, and not only by the next upload.
        if let Err(error) = self.owner.ask().await {
            if error.is_superseded() {
                return;
            }
            tracing::warn!(%error, "uploads wait until this process has a number in the backend");
        }
        let mut whole_upload = WholeUploadBackoff::default();
        loop {
            let mut sealed = self.spool.next_sealed().await;
            let (mut pause, mut progress) = (UPLOAD_PAUSE, Progress::default());
            while let Err(error) = self.upload(&mut sealed, &mut whole_upload, &mut progress).await
            {
                if error.is_superseded() {
                    return;
                }
                count(&self.backend.counters().failed_uploads);
                tracing::warn!(blob = %sealed.id, %error, ?pause, "uploading a blob failed: will retry");
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(UPLOAD_PAUSE_MAX);
            }
            count(&self.backend.counters().blobs);
            add(&self.backend.counters().bundles, sealed.units.len() as u64 - 1);
            let (reply, durable) = oneshot::channel();
            let uploaded = Request::Uploaded { seq: sealed.id.seq, row: sealed.row, reply };
            if self.queue.push(uploaded).is_err() {
                return;
            }
            // Dropped when it is done; if the committer is gone it is done at the next start.
            let _answered = durable.await;
        }
    }

    /// Takes up what is missing of a blob.
    async fn upload(
        &self,
        sealed: &mut Sealed,
        whole_upload: &mut WholeUploadBackoff,
        progress: &mut Progress,
    ) -> Result<(), PackError> {
        let process = self.owner.check_before_begin().await?;
        if let Some(row) = self.owner.adopted(sealed.id.seq) {
            tracing::info!(blob = %sealed.id, by = %row.process, "a pending blob is in the backend already");
            sealed.row = row;
            return Ok(());
        }
        sealed.row.process = process;
        let mut units: Vec<_> = sealed.units.iter().collect();
        if bugs::planted(Bug::BundleAfterBlob) {
            units.reverse();
        }
        for unit in units.into_iter().skip(progress.units) {
            let name = match unit.unit.container(sealed.id) {
                Container::Blob(id) => sealed.row.name(id).path(),
                Container::Own(bundle) => bundle.path_of(process),
            };
            let is_urgent = || self.is_behind();
            let bound = Bound { id: sealed.id, unit, name: &name, is_urgent: &is_urgent };
            units::bring(&self.backend, whole_upload, &mut progress.next, &bound).await?;
            progress.units += 1;
            progress.next = units::Progress::default();
        }
        if bugs::planted(Bug::OwnerReadOnce) {
            return Ok(());
        }
        // An heir that claimed the backend meanwhile may have listed the blobs without this one.
        self.owner.ask().await.map(drop)
    }

    /// Returns true if so much waits that puts are soon refused.
    fn is_behind(&self) -> bool {
        let (waiting, _) = self.spool.waiting_bytes();
        waiting > self.spool_bytes / 100 * SPOOL_BEHIND_PERCENT
    }
}
