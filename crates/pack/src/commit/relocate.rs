//! Re-logs the metadata that only a blob to be removed has, and moves its live bodies.
//!
//! # Invariants
//!
//! 1. A version or part is moved only if it is still the one that was read, with its bytes at that
//!    place. So anything that was overwritten or deleted meanwhile does not come back.
//! 2. A blob is retired only when nothing has bytes in it, in the order of all changes: no change after that names it.

use bytes::Bytes;
use larder_objects::ObjectError;
use larder_types::BucketName;

use crate::bugs::{self, Bug};
use crate::commit::command::{Body, Done, Relocate, RelocateTo};
use crate::commit::slot::{Planned, Slot, place};
use crate::error::unread;
use crate::format::entry::{Change, Container, Content, Entry, Place};
use crate::index::Index;

/// Decides what is told.
///
/// # Errors
/// [`ObjectError::Changed`] if it is not so any more, [`ObjectError::Unavailable`].
pub(crate) fn plan(
    name: Option<BucketName>,
    carry: Relocate,
    index: &Index,
    slot: &Slot,
) -> Result<Planned, ObjectError> {
    let (mut moved, mut pieces) = (None, Vec::new());
    let change = match carry {
        Relocate::Version { bucket, key, op, from, to } => {
            let version = index.version(bucket, &key).map_err(unread)?;
            let version = version.ok_or(ObjectError::Changed)?;
            let is_same = version.op == op && version.content == from;
            if !is_same && !bugs::planted(Bug::SwapWithoutCompare) {
                return Err(ObjectError::Changed);
            }
            let content = match (from, to) {
                (content, RelocateTo::Same) => content,
                (_, to) => Content::Run(settle(to, slot, &mut moved, &mut pieces)),
            };
            let op = if is_same { op } else { version.op };
            Change::Moved { bucket, key, op, metax: version.metax, content }
        }
        Relocate::Part { bucket, upload, number, op, from, to } => {
            let part = index.part(bucket, upload, number).map_err(unread)?;
            let part = part.filter(|part| part.op == op && part.place == from);
            let metax = part.ok_or(ObjectError::Changed)?.metax;
            let place = match to {
                RelocateTo::Same => from,
                to => settle(to, slot, &mut moved, &mut pieces),
            };
            Change::PartMoved { bucket, upload, number, op, metax, place }
        }
        Relocate::Bucket(id) => {
            Change::BucketMade(index.bucket_by_id(id).ok_or(ObjectError::Changed)?)
        }
        Relocate::Upload { bucket, key, upload } => {
            let row = index.upload(bucket, &key, upload).map_err(unread)?;
            Change::UploadBegun { bucket, row: row.ok_or(ObjectError::Changed)? }
        }
        Relocate::Removal(change) => *change,
        Relocate::Retire { blob, run, backups } => {
            let held = index.holders(Container::Blob(blob), 0, 1).map_err(unread)?;
            let live = index.blob_content(blob).map_err(unread)?.map_or(0, |content| content.live);
            assert_eq!(live == 0, held.is_empty(), "blob {blob} has what its versions have");
            if !held.is_empty() {
                return Err(ObjectError::Changed);
            }
            Change::Retired { run, backups }
        }
    };
    let entry = Entry { seq: slot.seq, clock: slot.clock, change };
    Ok(Planned { bucket: name, entry, pieces, done: Done::Carried(moved) })
}

fn settle(
    to: RelocateTo,
    slot: &Slot,
    moved: &mut Option<Place>,
    pieces: &mut Vec<Bytes>,
) -> Place {
    let there = match to {
        RelocateTo::Packed { pieces: body, sums } => {
            let (there, body) = place(Body::Packed { pieces: body, sums }, slot);
            *pieces = body;
            there
        }
        RelocateTo::There(there) => there,
        RelocateTo::Same => unreachable!("what stays is not settled"),
    };
    *moved = Some(there.clone());
    there
}
