//! Bodies too large to be packed: each is an object of its own in the backend, written while it arrives.

use bytes::Bytes;
use larder_objects::{ObjectError, PutBody};
use larder_types::limits::PUT_BYTES_MAX;

use crate::backend::{Backend, BackendUpload};
use crate::commit::in_flight::InFlightUpload;
use crate::error::PackError;
use crate::format::entry::{Container, Place};
use crate::format::sums::Summing;
use crate::ids::StandaloneId;
use crate::limits::{OWN_SUM_BYTES, PART_BYTES};

/// Parts of one body under way beside the one being filled: together what a request has reserved. A body that ends before
/// they are full is one request.
const UNDER_WAY_MAX: usize = 1;

/// A body on its way to the backend.
pub(crate) struct StandaloneBody {
    backend: Backend,
    id: StandaloneId,
    under_way: InFlightUpload,
    /// Begun when the second part is full.
    upload: Option<BackendUpload>,
    /// The first part, until then.
    first: Vec<Bytes>,
    summing: Summing,
    filling: Vec<Bytes>,
    filled: usize,
}

impl StandaloneBody {
    pub(crate) fn new(backend: &Backend, under_way: InFlightUpload, seed: u64) -> Self {
        let (backend, id) = (backend.clone(), under_way.id());
        let summing = Summing::new(seed, OWN_SUM_BYTES);
        let (first, filling) = (Vec::new(), Vec::new());
        Self { backend, id, under_way, upload: None, first, summing, filling, filled: 0 }
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

    /// Sends a part that is full, or the last one; keeps the first.
    async fn send(&mut self) -> Result<(), ObjectError> {
        let pieces = std::mem::take(&mut self.filling);
        self.filled = 0;
        let upload = match &mut self.upload {
            Some(upload) => upload,
            None if self.first.is_empty() => {
                self.first = pieces;
                return Ok(());
            }
            None => {
                let mut upload = self.backend.begin(&self.id.path()).await.map_err(unreached)?;
                let first = std::mem::take(&mut self.first);
                upload.add(first, UNDER_WAY_MAX).await.map_err(unreached)?;
                self.upload.insert(upload)
            }
        };
        upload.add(pieces, UNDER_WAY_MAX).await.map_err(unreached)
    }

    /// Sends what is left, and makes the object.
    async fn finish(&mut self) -> Result<(), ObjectError> {
        if self.upload.is_none() {
            let mut pieces = std::mem::take(&mut self.first);
            pieces.append(&mut self.filling);
            return self.backend.put_pieces(&self.id.path(), pieces).await.map_err(unreached);
        }
        if self.filled > 0 {
            self.send().await?;
        }
        let upload = self.upload.as_mut().expect("it was begun");
        upload.finish().await.map_err(unreached)
    }

    /// The rest of a body, and its end.
    pub(crate) async fn take<B: PutBody>(
        mut self,
        body: &mut B,
    ) -> Result<(Place, InFlightUpload, larder_objects::BodyDigest), ObjectError> {
        while let Some(piece) = body.next().await {
            self.add(piece?).await?;
        }
        // The digests that the client announced are verified before there is an object.
        let digest = body.finish()?;
        self.finish().await?;
        let place = self.summing.finish().placed(Container::Own(self.id), 0);
        Ok((place, self.under_way, digest))
    }
}

fn unreached(error: PackError) -> ObjectError {
    tracing::warn!(%error, "a large body could not be written to the backend");
    ObjectError::Unavailable { reason: "the backend cannot be reached".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::fakes;
    use crate::class::Requests;
    use crate::commit::in_flight::StandalonesInFlight;
    use crate::ids::WorkerId;

    const ID: StandaloneId = StandaloneId { worker: WorkerId(1), run: 2, number: 3 };

    /// Brings a body in pieces of some size; the requests that write.
    async fn bring(bytes: usize, piece: usize) -> (u64, u64) {
        let (backend, _) = fakes::google();
        let body: Vec<u8> = (0..bytes).map(|at| (at / 777) as u8).collect();
        let under_way = Arc::<StandalonesInFlight>::default().enter(ID);
        let mut own = StandaloneBody::new(&backend, under_way, 7);
        for piece in body.chunks(piece) {
            own.add(Bytes::copy_from_slice(piece)).await.unwrap();
        }
        own.finish().await.unwrap();
        assert_eq!(backend.at_once(&ID.path()).await.unwrap(), body);
        let Requests { put, part, .. } = backend.counters().requests.load();
        (put, part)
    }

    #[tokio::test]
    async fn a_body_of_less_than_two_parts_is_one_request() {
        assert_eq!(bring(PART_BYTES + 1, 1 << 20).await, (1, 0));
        assert_eq!(bring(2 * PART_BYTES - 1, 3 * PART_BYTES).await, (1, 0));
        assert_eq!(bring(2 * PART_BYTES, 1 << 20).await, (2, 2));
        assert_eq!(bring(3 * PART_BYTES + 5, 7_777_777).await, (2, 4));
    }
}
