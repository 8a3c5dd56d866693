//! The steps that all kinds of mutations share, and what the index holds for a mutation's bucket and key.

use larder_types::{BucketId, Epoch, ObjectKey, VersionRow, rows};

use super::slots::Slot;
use crate::index::{Index, IndexError};
use crate::message::Refusal;

/// The progress of a mutation.
pub(super) enum Step {
    Done,
    Refuse(Refusal),
    /// Run it again when this slot is at rest.
    Wait(Slot),
    /// Run it again when there is space.
    Starve,
}

pub(super) fn epoch_holds(index: &dyn Index, bucket: BucketId, epoch: Epoch) -> bool {
    index.bucket_epoch(bucket) == Some(epoch)
}

/// The key's null version as the index shows it.
pub(super) fn current(
    bucket: BucketId,
    key: &ObjectKey,
    index: &dyn Index,
) -> Result<Option<VersionRow>, IndexError> {
    let row = index.get(&rows::version(bucket, key, rows::UNVERSIONED))?;
    Ok(row.map(|row| VersionRow::read(&row)).transpose()?)
}
