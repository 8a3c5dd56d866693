//! Brings units to the backend: as one request where the backend takes that, and in parts after one broke off.
//!
//! One request for a blob is what the bill wants. It also is all or nothing: on a way that is slow or breaks off it may
//! never come through. Parts that came through stay, and several go beside each other.
//!
//! # Invariants
//!
//! 1. A unit of which one request broke off goes up in parts from then on, until the backend has it.
//! 2. After that as many units go in parts from the start as [`WholeUploadBackoff`] says.
//! 3. While so much waits that puts are soon refused, units go in parts: that is quicker. Where that is so at the end of
//!    one request, the units after it do.
//! 4. A unit of which all went out is looked at before any of it is sent again.
//! 5. Tries of one request that was made come to an end: each that fails is looked at, leads to parts, or counts towards
//!    [`EARLY_TRIES_MAX`].

use super::parts::PartsUpload;
use crate::backend::{Backend, BrokenOff, Source, Unread};
use crate::commit::spool::SealedUnit;
use crate::counters::add;
use crate::error::PackError;
use crate::format::blob::{TRAILER_BYTES, Trailer};
use crate::ids::BlobId;
use crate::limits::{EARLY_TRIES_MAX, PART_BYTES, PARTS_IN_A_ROW_MAX};

/// Decides whether one request for a unit is worth a try, by how it went lately.
#[derive(Debug, Default)]
pub(super) struct WholeUploadBackoff {
    /// Lots that go in parts before the next try.
    in_parts: u32,
    /// Their number after the last one that broke off, or was too slow.
    last: u32,
}

impl WholeUploadBackoff {
    fn is_given(&self) -> bool {
        self.in_parts == 0
    }

    fn whole_upload_succeeded(&mut self) {
        *self = Self::default();
    }

    fn broke_off(&mut self) {
        self.was_too_slow();
        // The one that broke off goes in parts beside those.
        self.in_parts += 1;
    }

    fn was_too_slow(&mut self) {
        self.last = (self.last * 2).clamp(1, PARTS_IN_A_ROW_MAX);
        self.in_parts = self.last;
    }

    fn went_in_parts(&mut self) {
        self.in_parts = self.in_parts.saturating_sub(1);
    }
}

/// Progress of a unit that goes up.
#[derive(Default)]
pub(super) struct Progress {
    /// One request is not tried again.
    in_parts: bool,
    /// All bytes were sent, and the backend has not confirmed the object.
    all_went: bool,
    /// Requests that were made, and failed with hardly anything gone out.
    early: u32,
    parts: PartsUpload,
}

/// A unit, and where it goes.
pub(super) struct Bound<'a> {
    pub(super) id: BlobId,
    pub(super) unit: &'a SealedUnit,
    pub(super) name: &'a str,
    /// Says whether so much waits that puts are soon refused.
    pub(super) is_urgent: &'a (dyn Fn() -> bool + Sync),
}

/// The reason for which it is not known that the backend has a unit.
enum Unverified {
    /// It has none, or another.
    NotThere(PackError),
    /// It did not say.
    Unanswered(PackError),
}

impl From<Unverified> for PackError {
    fn from(unverified: Unverified) -> Self {
        match unverified {
            Unverified::NotThere(error) | Unverified::Unanswered(error) => error,
        }
    }
}

/// Takes up what is missing of a unit, and looks at the end of it.
pub(super) async fn bring(
    backend: &Backend,
    whole_upload: &mut WholeUploadBackoff,
    progress: &mut Progress,
    bound: &Bound<'_>,
) -> Result<(), PackError> {
    let Bound { unit, name, .. } = bound;
    let Some(file) = &unit.file else {
        backend.put(name, unit.tail.clone()).await?;
        return Ok(verify(backend, bound).await?);
    };
    let source = Source::new(file.clone(), unit.body_bytes, unit.tail.clone());
    if source.len() <= PART_BYTES as u64 {
        let whole = source.read(0..source.len()).await?.concat();
        backend.put(name, whole.into()).await?;
        return Ok(verify(backend, bound).await?);
    }
    if progress.all_went && all_is_there(backend, whole_upload, progress, bound).await? {
        return Ok(());
    }
    let fits = source.len() <= backend.put_bytes_max();
    progress.in_parts |= !fits || !whole_upload.is_given() || (bound.is_urgent)();
    if !progress.in_parts {
        return whole(backend, whole_upload, progress, bound, &source).await;
    }
    if let Err(error) = progress.parts.go_on(backend, name, &source).await {
        let is_there = progress.parts.is_whole() && verify(backend, bound).await.is_ok();
        if !is_there {
            return Err(error);
        }
        progress.parts.is_there();
    }
    whole_upload.went_in_parts();
    progress.all_went = true;
    match all_is_there(backend, whole_upload, progress, bound).await? {
        true => Ok(()),
        false => Err(not_there(name)),
    }
}

/// Sends all of it with one request.
async fn whole(
    backend: &Backend,
    whole_upload: &mut WholeUploadBackoff,
    progress: &mut Progress,
    bound: &Bound<'_>,
    source: &Source,
) -> Result<(), PackError> {
    let broken = match backend.put_from(bound.name, source).await {
        Ok(()) => None,
        // The answer may have been lost.
        Err(broken) if broken.sent == source.len() => Some(broken.error),
        Err(broken) => return Err(broke_off(whole_upload, progress, bound, broken)),
    };
    progress.all_went = true;
    match all_is_there(backend, whole_upload, progress, bound).await? {
        true => Ok(()),
        false => Err(broken.unwrap_or_else(|| not_there(bound.name))),
    }
}

/// Decides how a unit goes on of which not all went out.
fn broke_off(
    whole_upload: &mut WholeUploadBackoff,
    progress: &mut Progress,
    bound: &Bound<'_>,
    broken: BrokenOff,
) -> PackError {
    let BrokenOff { error, sent, is_made, is_refused } = broken;
    if !is_made && sent == 0 {
        return error;
    }
    progress.early += 1;
    let is_early = sent <= PART_BYTES as u64 && !is_refused;
    if is_early && progress.early < EARLY_TRIES_MAX {
        return error;
    }
    tracing::info!(name = bound.name, sent, "an upload in one request failed: continuing in parts");
    progress.in_parts = true;
    whole_upload.broke_off();
    error
}

/// Looks for a unit of which all went out; true if the backend has it.
async fn all_is_there(
    backend: &Backend,
    whole_upload: &mut WholeUploadBackoff,
    progress: &mut Progress,
    bound: &Bound<'_>,
) -> Result<bool, PackError> {
    match verify(backend, bound).await {
        Ok(()) => {
            // Parts count their bytes.
            if !progress.in_parts {
                add(&backend.counters().uploaded_bytes, bound.unit.bytes());
                match (bound.is_urgent)() {
                    true => whole_upload.was_too_slow(),
                    false => whole_upload.whole_upload_succeeded(),
                }
            }
            Ok(true)
        }
        Err(Unverified::NotThere(error)) => {
            tracing::info!(name = bound.name, %error, "an upload was sent whole without an answer: continuing in parts");
            if !progress.in_parts {
                whole_upload.broke_off();
            }
            (progress.all_went, progress.in_parts) = (false, true);
            Ok(false)
        }
        Err(Unverified::Unanswered(error)) => Err(error),
    }
}

fn not_there(name: &str) -> PackError {
    PackError::damaged(name, "it was uploaded and is not there")
}

/// The backend has all of it: the last bytes are where they belong.
async fn verify(backend: &Backend, bound: &Bound<'_>) -> Result<(), Unverified> {
    let Bound { id, unit, name, .. } = *bound;
    let end = unit.bytes();
    let last = backend.read_uploaded(name, end - TRAILER_BYTES as u64..end).await;
    let last = last.map_err(|unread| match unread {
        Unread::Missing => Unverified::NotThere(not_there(name)),
        Unread::Failed(error) => Unverified::Unanswered(error),
    })?;
    let trailer = Trailer::decode(name, &last).map_err(Unverified::NotThere)?;
    if (trailer.id, trailer.unit) != (id, unit.unit) || last != unit.trailer() {
        let other = PackError::damaged(name, "it came back as another blob");
        return Err(Unverified::NotThere(other));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
