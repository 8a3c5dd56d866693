//! Brings lots to the backend: as one request where the backend takes that, and in parts after one broke off.
//!
//! One request for a blob is what the bill wants. It also is all or nothing: on a way that is slow or breaks off it may
//! never come through. Parts that came through stay, and several go beside each other.
//!
//! # Invariants
//!
//! 1. A lot of which one request broke off goes up in parts from then on, until the backend has it.
//! 2. After that as many lots go in parts from the start as [`Trust`] says.
//! 3. While so much waits that puts are soon refused, lots go in parts: that is quicker.

use super::parts::Going;
use crate::backend::{Backend, Source, Unread};
use crate::blob::{TRAILER_BYTES, Trailer};
use crate::entry::BlobId;
use crate::error::PackError;
use crate::limits::{PART_BYTES, PARTS_IN_A_ROW_MAX};
use crate::spool::SealedLot;

/// Decides whether one request for a lot is worth a try, by how it went lately.
#[derive(Debug, Default)]
pub(super) struct Trust {
    /// Lots that go in parts before the next try.
    in_parts: u32,
    /// Their number after the last one that broke off.
    last: u32,
}

impl Trust {
    fn is_given(&self) -> bool {
        self.in_parts == 0
    }

    fn came_through(&mut self) {
        *self = Self::default();
    }

    fn broke_off(&mut self) {
        self.last = (self.last * 2).clamp(1, PARTS_IN_A_ROW_MAX);
        // The one that broke off goes in parts beside those.
        self.in_parts = self.last + 1;
    }

    fn went_in_parts(&mut self) {
        self.in_parts = self.in_parts.saturating_sub(1);
    }
}

/// Progress of a lot that goes up.
#[derive(Default)]
pub(super) struct Progress {
    /// One request is not tried again.
    in_parts: bool,
    parts: Going,
}

/// A lot, and where it goes.
pub(super) struct Bound<'a> {
    pub(super) id: BlobId,
    pub(super) lot: &'a SealedLot,
    pub(super) name: &'a str,
    /// So much waits that puts are soon refused.
    pub(super) is_urgent: bool,
}

/// Takes up what is missing of a lot, and looks at the end of it.
pub(super) async fn bring(
    backend: &Backend,
    trust: &mut Trust,
    progress: &mut Progress,
    bound: &Bound<'_>,
) -> Result<(), PackError> {
    let Bound { lot, name, .. } = bound;
    let Some(file) = &lot.file else {
        backend.put(name, lot.tail.clone()).await?;
        return verify(backend, bound).await;
    };
    let source = Source::new(file.clone(), lot.body_bytes, lot.tail.clone());
    if source.len() <= PART_BYTES as u64 {
        let whole = source.read(0..source.len()).await?.concat();
        backend.put(name, whole.into()).await?;
        return verify(backend, bound).await;
    }
    let fits = source.len() <= backend.put_bytes_max();
    progress.in_parts |= !fits || !trust.is_given() || bound.is_urgent;
    if !progress.in_parts {
        return whole(backend, trust, progress, bound, &source).await;
    }
    if let Err(error) = progress.parts.go_on(backend, name, &source).await {
        let is_there = progress.parts.is_whole() && verify(backend, bound).await.is_ok();
        if !is_there {
            return Err(error);
        }
        progress.parts.is_there();
    }
    trust.went_in_parts();
    verify(backend, bound).await
}

/// Sends all of it with one request.
async fn whole(
    backend: &Backend,
    trust: &mut Trust,
    progress: &mut Progress,
    bound: &Bound<'_>,
    source: &Source,
) -> Result<(), PackError> {
    let Err(broken) = backend.put_from(bound.name, source).await else {
        trust.came_through();
        return verify(backend, bound).await;
    };
    // Where all went out the answer may have been lost.
    if broken.sent == source.len() && verify(backend, bound).await.is_ok() {
        trust.came_through();
        return Ok(());
    }
    // Where nothing went out the request was not made.
    if broken.sent > 0 {
        tracing::info!(
            name = bound.name,
            sent = broken.sent,
            "one request for it broke off; it goes on in parts"
        );
        progress.in_parts = true;
        trust.broke_off();
    }
    Err(broken.error)
}

/// The backend has all of it: the last bytes are where they belong.
async fn verify(backend: &Backend, bound: &Bound<'_>) -> Result<(), PackError> {
    let Bound { id, lot, name, .. } = *bound;
    let end = lot.bytes();
    let last = backend.read_uploaded(name, end - TRAILER_BYTES as u64..end).await;
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

#[cfg(test)]
mod tests;
