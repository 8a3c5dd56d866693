//! Takes sealed blobs to the backend, in their order.
//!
//! # Invariants
//!
//! 1. A blob goes up only while this worker owns the backend.
//! 2. It counts as uploaded only when the backend gives its trailer back, at the place where it belongs: the same to the
//!    byte, and so with the same sum of the footer, which has the sums of all bodies.
//! 3. What has a lot's name already is that lot, or a process that was superseded has made it too late: this one, which has
//!    a later number (`owner.rs`), listed the blobs since and had not found it. Only then the blob gets another name, and
//!    what else has its number is removed. A store has no condition for objects in parts: for one, it is looked before the
//!    first part, and the owner is asked before the parts become an object.
//! 4. A bundle goes up before the blob that tells of it.
//! 5. A blob that cannot be uploaded is tried again, with growing pauses, for ever: what is in it was answered. A try
//!    goes on with what is missing (`uploader/parts.rs`).

mod parts;

use std::sync::Arc;

use bytes::Bytes;
use larder_env::DiskFile;
use tokio::sync::{oneshot, watch};

use self::parts::Going;
use crate::backend::{Backend, Unread, jittered};
use crate::blob::{self, BlobName, TRAILER_BYTES, Trailer};
use crate::blocking;
use crate::bugs::{self, Bug};
use crate::counters::{add, count};
use crate::entry::{BlobId, Within};
use crate::error::PackError;
use crate::limits::{PART_BYTES, UPLOAD_PAUSE, UPLOAD_PAUSE_MAX};
use crate::lot::Lot;
use crate::owner::Owner;
use crate::queue::{Queue, Request};
use crate::rows::BlobRow;
use crate::spool::{Sealed, SealedLot, Spool};

/// What the uploader works with.
pub(crate) struct Uploader {
    pub(crate) backend: Backend,
    pub(crate) spool: Arc<Spool>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) owner: Owner,
    pub(crate) fatal: watch::Sender<Option<String>>,
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
        if let Err(error) = self.owner.check().await {
            if self.stops(&error) {
                return;
            }
            tracing::warn!(%error, "this process has no number in the backend yet; uploads wait for that");
        }
        // Whether this process has made no blob yet.
        let mut is_first = true;
        loop {
            let mut sealed = self.spool.next_sealed().await;
            let (mut pause, mut progress) = (UPLOAD_PAUSE, Progress::default());
            while let Err(error) = self.upload(&mut sealed, &mut progress, &mut is_first).await {
                if self.stops(&error) {
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

    /// Stops the store if another process owns the backend by now.
    fn stops(&self, error: &PackError) -> bool {
        if error.is_superseded() {
            tracing::error!(%error, "the store stops");
            self.queue.stop();
            self.fatal.send_replace(Some(error.to_string()));
        }
        error.is_superseded()
    }

    /// Takes up what is missing of a blob.
    async fn upload(
        &self,
        sealed: &mut Sealed,
        progress: &mut Progress,
        is_first: &mut bool,
    ) -> Result<(), PackError> {
        self.owner.check().await?;
        let mut lots: Vec<_> = sealed.lots.iter().collect();
        if bugs::planted(Bug::BundleAfterBlob) {
            lots.reverse();
        }
        let mut row = sealed.row;
        for lot in lots.into_iter().skip(progress.lots) {
            let going = &mut progress.going;
            let (name, is_new) = match lot.lot.within(sealed.id) {
                Within::Blob(id) => self.make_blob((id, &mut row), lot, going).await?,
                Within::Own(bundle) => self.make_bundle(bundle.path(), lot, going).await?,
            };
            self.verify(&name, sealed.id, lot).await?;
            going.is_there();
            if lot.lot == Lot::SHARED && *is_first {
                self.remove_others(row.name(sealed.id)).await?;
                *is_first = !is_new;
            }
            progress.lots += 1;
            progress.going = Going::default();
        }
        sealed.row = row;
        Ok(())
    }

    /// Makes a blob, if it is not there; its name, and whether it was made. If another has the name, it gets one with a
    /// later time, again and again the same.
    async fn make_blob(
        &self,
        (id, row): (BlobId, &mut BlobRow),
        lot: &SealedLot,
        going: &mut Going,
    ) -> Result<(String, bool), PackError> {
        loop {
            let name = row.name(id).path();
            let is_new = self.make(&name, lot, going).await?;
            if is_new || self.is_there(&name, lot).await? {
                return Ok((name, is_new));
            }
            self.owner.check().await?;
            tracing::warn!(name, "a superseded process has uploaded another blob of this name");
            (row.created_ms, *going) = (row.created_ms + 1, Going::default());
        }
    }

    /// Makes a bundle, if it is not there; its name, and whether it was made. No other has the name of one: what has it, and
    /// is of a superseded process, is written over.
    async fn make_bundle(
        &self,
        name: String,
        lot: &SealedLot,
        going: &mut Going,
    ) -> Result<(String, bool), PackError> {
        let is_new = self.make(&name, lot, going).await?;
        if !is_new && !self.is_there(&name, lot).await? {
            self.owner.check().await?;
            tracing::warn!(name, "a superseded process has uploaded another bundle of this name");
            self.replace(&name, lot, going).await?;
        }
        Ok((name, is_new))
    }

    /// Writes a lot, if there is nothing of its name; false if there is.
    async fn make(
        &self,
        name: &str,
        lot: &SealedLot,
        going: &mut Going,
    ) -> Result<bool, PackError> {
        match &lot.file {
            Some(file) if lot.bytes() > PART_BYTES as u64 => {
                // Also what an earlier try has made, when the answer to its end was lost.
                if self.backend.size(name).await?.is_some() {
                    return Ok(false);
                }
                self.send_parts(name, (file, lot), going).await
            }
            file => self.backend.put_new(name, whole(file.as_ref(), lot).await?).await,
        }
    }

    /// Writes a lot over whatever has its name.
    async fn replace(
        &self,
        name: &str,
        lot: &SealedLot,
        going: &mut Going,
    ) -> Result<(), PackError> {
        match &lot.file {
            Some(file) if lot.bytes() > PART_BYTES as u64 => {
                self.send_parts(name, (file, lot), going).await.map(drop)
            }
            file => self.backend.put(name, whole(file.as_ref(), lot).await?).await,
        }
    }

    /// Sends the parts of a lot that are missing, and has the object made of them while this process is the owner. False
    /// if the answer to that was lost, and there is an object.
    async fn send_parts(
        &self,
        name: &str,
        (file, lot): (&Arc<dyn DiskFile>, &SealedLot),
        going: &mut Going,
    ) -> Result<bool, PackError> {
        match going.go_on(&self.backend, name, (file, lot), self.owner.check()).await {
            Ok(()) => Ok(true),
            Err(_) if going.is_whole() && self.is_there(name, lot).await? => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether what has a lot's name is that lot.
    async fn is_there(&self, name: &str, lot: &SealedLot) -> Result<bool, PackError> {
        if self.backend.size(name).await? != Some(lot.bytes()) {
            return Ok(false);
        }
        let from = lot.bytes() - TRAILER_BYTES as u64;
        match self.backend.read(name, from..lot.bytes()).await {
            Ok(found) => Ok(found == lot.trailer()),
            Err(Unread::Missing) => Ok(false),
            Err(Unread::Failed(error)) => Err(error),
        }
    }

    /// Removes other blobs of this number. Only the first blob that a process makes can meet one: a process before it
    /// had one upload under way.
    async fn remove_others(&self, own: BlobName) -> Result<(), PackError> {
        let BlobId { worker, seq } = own.id;
        let after = BlobName::behind(BlobId { worker, seq: seq - 1 });
        let names = self.backend.names_after(blob::PREFIX, &after).await?;
        let names = names.iter().filter_map(|(name, _)| BlobName::parse(name));
        let others: Vec<_> = names.filter(|name| name.id == own.id && *name != own).collect();
        if !others.is_empty() {
            // After the list: what a later process uploads is not in it.
            self.owner.check().await?;
        }
        for other in others {
            let name = other.path();
            tracing::warn!(
                name,
                "a superseded process has uploaded another blob of this number; it is removed"
            );
            self.backend.remove(&name).await?;
        }
        Ok(())
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

/// All bytes of a lot.
async fn whole(file: Option<&Arc<dyn DiskFile>>, lot: &SealedLot) -> Result<Bytes, PackError> {
    let Some(file) = file else { return Ok(lot.tail.clone()) };
    let body = read_spool(file.clone(), 0, lot.body_bytes).await?;
    Ok([body, lot.tail.clone()].concat().into())
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
