//! Takes sealed blobs to the backend, in their order.
//!
//! # Invariants
//!
//! 1. A blob goes up only while this process owns the backend, and counts as uploaded only if it owns it still once the
//!    blob is there. Below and in `numbering.rs` it stands why that is enough.
//! 2. It counts as uploaded only when the backend gives its trailer back, at the place where it belongs: the same to the
//!    byte, and so with the same sum of the footer, which has the sums of all bodies.
//! 3. A bundle goes up before the blob that tells of it. Names have this process's number: nobody else writes to them.
//! 4. A blob that cannot be uploaded is tried again, with growing pauses, for ever: what is in it was answered. A try
//!    goes on with what is missing (`uploader/parts.rs`).
//!
//! # Nothing that was acknowledged is void
//!
//! An heir writes its claim, then lists the blobs, then writes its horizon from that list: a blob that is not in it is
//! void. This worker uploads a blob, then looks for a claim, then acknowledges. Requests and lists see every request
//! that was answered before they began. If the look found no claim, it began before the claim was answered, and the list
//! began after that: so it shows the blob, which was there before the look. If the blob is not in the list, it arrived
//! after the list began, and the look, which came later still, found the claim. A later process of this worker does the
//! same with its number.

mod parts;

use std::sync::Arc;

use bytes::Bytes;
use larder_env::DiskFile;
use tokio::sync::oneshot;

use self::parts::Going;
use crate::backend::{Backend, Unread, jittered};
use crate::blob::{TRAILER_BYTES, Trailer};
use crate::blocking;
use crate::bugs::{self, Bug};
use crate::counters::{add, count};
use crate::entry::{BlobId, Within};
use crate::error::PackError;
use crate::limits::{PART_BYTES, UPLOAD_PAUSE, UPLOAD_PAUSE_MAX};
use crate::ownership::Ownership;
use crate::queue::{Queue, Request};
use crate::spool::{Sealed, SealedLot, Spool};

/// What the uploader works with.
pub(crate) struct Uploader {
    pub(crate) backend: Backend,
    pub(crate) spool: Arc<Spool>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) owner: Arc<Ownership>,
}

/// What the backend has of a blob that goes up.
#[derive(Default)]
struct Progress {
    /// Lots that are there.
    lots: usize,
    /// The next one.
    going: Going,
}

impl Uploader {
    /// Runs until it is dropped, the store stops, or the backend belongs to another.
    pub(crate) async fn run(self) {
        // At once: a process on a copy of the directory is superseded now, and not only by the next upload.
        if let Err(error) = self.owner.ask().await {
            if error.is_superseded() {
                return;
            }
            tracing::warn!(%error, "this process has no number in the backend yet; uploads wait for that");
        }
        loop {
            let mut sealed = self.spool.next_sealed().await;
            let (mut pause, mut progress) = (UPLOAD_PAUSE, Progress::default());
            while let Err(error) = self.upload(&mut sealed, &mut progress).await {
                if error.is_superseded() {
                    return;
                }
                count(&self.backend.counters().failed_uploads);
                tracing::warn!(blob = %sealed.id, %error, ?pause, "a blob was not uploaded; it is tried again");
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(UPLOAD_PAUSE_MAX);
            }
            count(&self.backend.counters().blobs);
            add(&self.backend.counters().bundles, sealed.lots.len() as u64 - 1);
            let (reply, durable) = oneshot::channel();
            let told = Request::Uploaded { seq: sealed.id.seq, row: sealed.row, reply };
            if self.queue.push(told).is_err() {
                return;
            }
            // Dropped when it is done; if the committer is gone it is done at the next start.
            let _answered = durable.await;
        }
    }

    /// Takes up what is missing of a blob.
    async fn upload(&self, sealed: &mut Sealed, progress: &mut Progress) -> Result<(), PackError> {
        let process = self.owner.ask_to_begin().await?;
        if let Some(row) = self.owner.adopted(sealed.id.seq) {
            tracing::info!(blob = %sealed.id, by = %row.process, "a blob that waits is in the backend already");
            sealed.row = row;
            return Ok(());
        }
        sealed.row.process = process;
        let mut lots: Vec<_> = sealed.lots.iter().collect();
        if bugs::planted(Bug::BundleAfterBlob) {
            lots.reverse();
        }
        for lot in lots.into_iter().skip(progress.lots) {
            let name = match lot.lot.within(sealed.id) {
                Within::Blob(id) => sealed.row.name(id).path(),
                Within::Own(bundle) => bundle.path_of(process),
            };
            match &lot.file {
                Some(file) if lot.bytes() > PART_BYTES as u64 => {
                    let going = &mut progress.going;
                    if let Err(error) = going.go_on(&self.backend, &name, file, lot).await {
                        let is_there =
                            going.is_whole() && self.verify(&name, sealed.id, lot).await.is_ok();
                        if !is_there {
                            return Err(error);
                        }
                        going.is_there();
                    }
                }
                Some(file) => {
                    let body = read_spool(file.clone(), 0, lot.body_bytes).await?;
                    let whole = [body, lot.tail.clone()].concat();
                    self.backend.put(&name, whole.into()).await?;
                }
                None => self.backend.put(&name, lot.tail.clone()).await?,
            }
            self.verify(&name, sealed.id, lot).await?;
            progress.lots += 1;
            progress.going = Going::default();
        }
        if bugs::planted(Bug::OwnerAskedOnce) {
            return Ok(());
        }
        // An heir that claimed the backend meanwhile may have listed the blobs without this one.
        self.owner.ask().await.map(drop)
    }

    /// The backend has all of it: the last bytes are where they belong.
    async fn verify(&self, name: &str, id: BlobId, lot: &SealedLot) -> Result<(), PackError> {
        let end = lot.bytes();
        let last = self.backend.read_uploaded(name, end - TRAILER_BYTES as u64..end).await;
        let last = last.map_err(|unread| match unread {
            Unread::Missing => PackError::damaged(name, "it was uploaded and is not there"),
            Unread::Failed(error) => error,
        })?;
        let trailer = Trailer::decode(name, &last)?;
        if (trailer.id, trailer.lot) != (id, lot.lot) || last != lot.trailer() {
            return Err(PackError::damaged(name, "it came back as another blob"));
        }
        Ok(())
    }
}

async fn read_spool(file: Arc<dyn DiskFile>, from: u64, to: u64) -> Result<Bytes, PackError> {
    blocking::run(move || {
        let mut bytes = vec![0; (to - from) as usize];
        let read = file.read_at(from, &mut bytes)?;
        match read == bytes.len() {
            true => Ok(Bytes::from(bytes)),
            false => Err(PackError::damaged("a file of the spool", "it is too short")),
        }
    })
    .await?
}
