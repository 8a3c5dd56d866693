//! Takes sealed blobs to the backend, in their order.
//!
//! # Invariants
//!
//! 1. A blob goes up only while this worker owns the backend.
//! 2. It counts as uploaded only when the backend gives its trailer back, at the place where it belongs: the same to the
//!    byte, and so with the same sum of the footer, which has the sums of all bodies.
//! 3. Nothing is written over: what has the name already is this lot, or another process of this worker has made it, and
//!    this one stops. A store has no condition for objects in parts: for one, it is looked before the first part and
//!    before the parts become an object.
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
use crate::blob::{TRAILER_BYTES, Trailer};
use crate::blocking;
use crate::bugs::{self, Bug};
use crate::counters::{add, count};
use crate::entry::{BlobId, Within, WorkerId};
use crate::error::PackError;
use crate::identity::check_owner;
use crate::limits::{PART_BYTES, UPLOAD_PAUSE, UPLOAD_PAUSE_MAX};
use crate::queue::{Queue, Request};
use crate::spool::{Sealed, SealedLot, Spool};

/// What the uploader works with.
pub(crate) struct Uploader {
    pub(crate) backend: Backend,
    pub(crate) spool: Arc<Spool>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) worker: WorkerId,
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
        loop {
            let sealed = self.spool.next_sealed().await;
            let (mut pause, mut progress) = (UPLOAD_PAUSE, Progress::default());
            while let Err(error) = self.upload(&sealed, &mut progress).await {
                if error.is_superseded() {
                    tracing::error!(%error, "the store stops");
                    self.queue.stop();
                    self.fatal.send_replace(Some(error.to_string()));
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
    async fn upload(&self, sealed: &Sealed, progress: &mut Progress) -> Result<(), PackError> {
        check_owner(&self.backend, self.worker).await?;
        let mut lots: Vec<_> = sealed.lots.iter().collect();
        if bugs::planted(Bug::BundleAfterBlob) {
            lots.reverse();
        }
        for lot in lots.into_iter().skip(progress.lots) {
            let name = match lot.lot.within(sealed.id) {
                Within::Blob(id) => sealed.row.name(id).path(),
                Within::Own(bundle) => bundle.path(),
            };
            match &lot.file {
                Some(file) if lot.bytes() > PART_BYTES as u64 => {
                    self.make_of_parts(&name, (file, lot), &mut progress.going).await?;
                }
                file => {
                    let whole = whole(file.as_ref(), lot).await?;
                    if !self.backend.put_new(&name, whole).await? {
                        self.refuse_another(&name, lot).await?;
                    }
                }
            }
            self.verify(&name, sealed.id, lot).await?;
            progress.lots += 1;
            progress.going = Going::default();
        }
        Ok(())
    }

    /// Makes an object of parts, if it is not there.
    async fn make_of_parts(
        &self,
        name: &str,
        (file, lot): (&Arc<dyn DiskFile>, &SealedLot),
        going: &mut Going,
    ) -> Result<(), PackError> {
        // Also what an earlier try has made, when the answer to its end was lost.
        if self.backend.size(name).await?.is_some() {
            self.refuse_another(name, lot).await?;
            going.is_there();
            return Ok(());
        }
        let is_free = async {
            match self.backend.size(name).await? {
                Some(_) => self.refuse_another(name, lot).await,
                None => Ok(()),
            }
        };
        let tried = going.go_on(&self.backend, name, (file, lot), is_free).await;
        match tried {
            Err(error) if going.is_whole() => match self.backend.size(name).await {
                Ok(Some(_)) => {
                    self.refuse_another(name, lot).await?;
                    going.is_there();
                    Ok(())
                }
                _ => Err(error),
            },
            tried => tried,
        }
    }

    /// Refuses an object that has a lot's name and is another.
    async fn refuse_another(&self, name: &str, lot: &SealedLot) -> Result<(), PackError> {
        let another = || PackError::Copied { worker: self.worker, name: name.to_owned() };
        match self.backend.size(name).await? {
            Some(bytes) if bytes == lot.bytes() => {}
            Some(_) => return Err(another()),
            None => return Err(PackError::damaged(name, "it was there and is gone")),
        }
        let from = lot.bytes() - TRAILER_BYTES as u64;
        match self.backend.read_uploaded(name, from..lot.bytes()).await {
            Ok(found) if found == lot.trailer() => Ok(()),
            Ok(_) => Err(another()),
            Err(Unread::Missing) => Err(PackError::damaged(name, "it was there and is gone")),
            Err(Unread::Failed(error)) => Err(error),
        }
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
