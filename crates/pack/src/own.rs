//! Bodies too large to be packed: each is an object of its own in the backend, written while it arrives.

use bytes::Bytes;
use larder_objects::{ObjectError, PutBody};
use larder_types::limits::PUT_BYTES_MAX;

use crate::backend::{Backend, BackendUpload};
use crate::entry::{OwnId, Place, Within};
use crate::error::PackError;
use crate::limits::{OWN_SUM_BYTES, PART_BYTES};
use crate::sums::Summing;

/// Parts of one body under way beside the one being filled: together what a request has reserved.
const UNDER_WAY_MAX: usize = 1;

impl OwnId {
    /// Its name in the backend.
    #[must_use]
    pub fn path(&self) -> String {
        format!("objects/{:016x}-{:016x}-{:016x}", self.worker.0, self.run, self.number)
    }
}

/// A body on its way to the backend.
pub(crate) struct OwnBody {
    id: OwnId,
    upload: BackendUpload,
    summing: Summing,
    filling: Vec<Bytes>,
    filled: usize,
}

impl OwnBody {
    pub(crate) async fn begin(
        backend: &Backend,
        id: OwnId,
        seed: u64,
    ) -> Result<Self, ObjectError> {
        let upload = backend.begin(&id.path()).await.map_err(unreached)?;
        let summing = Summing::new(seed, OWN_SUM_BYTES);
        Ok(Self { id, upload, summing, filling: Vec::new(), filled: 0 })
    }

    /// Takes the next bytes; waits while the backend is behind.
    pub(crate) async fn add(&mut self, mut piece: Bytes) -> Result<(), ObjectError> {
        self.summing.add(&piece);
        if self.summing.len() > PUT_BYTES_MAX {
            return Err(ObjectError::TooLarge { what: "the body", limit_bytes: PUT_BYTES_MAX });
        }
        while self.filled + piece.len() >= PART_BYTES {
            let rest = piece.split_off(PART_BYTES - self.filled);
            self.filling.push(std::mem::replace(&mut piece, rest));
            self.send().await?;
        }
        self.filled += piece.len();
        if !piece.is_empty() {
            self.filling.push(piece);
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<(), ObjectError> {
        let pieces = std::mem::take(&mut self.filling);
        self.filled = 0;
        self.upload.add(pieces, UNDER_WAY_MAX).await.map_err(unreached)
    }

    /// The rest of a body, and its end.
    pub(crate) async fn take<B: PutBody>(
        mut self,
        body: &mut B,
    ) -> Result<(Place, larder_objects::BodyDigest), ObjectError> {
        while let Some(piece) = body.next().await {
            self.add(piece?).await?;
        }
        // What the client announced is verified before there is an object.
        let digest = body.finish()?;
        if self.filled > 0 {
            self.send().await?;
        }
        self.upload.finish().await.map_err(unreached)?;
        Ok((self.summing.finish().placed(Within::Own(self.id), 0), digest))
    }
}

fn unreached(error: PackError) -> ObjectError {
    tracing::warn!(%error, "a large body could not be written to the backend");
    ObjectError::Unavailable { reason: "the backend cannot be reached".to_owned() }
}
