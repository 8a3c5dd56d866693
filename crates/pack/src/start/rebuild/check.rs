//! Checks a rebuilt index: everything that it names is in the backend. If it is not, writes down
//! what is lost.

use std::collections::BTreeSet;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;

use larder_types::codec::decode;
use larder_types::rows::parse_keyed;
use larder_types::{BucketId, ObjectKey, OpId, UploadId};

use super::{Rebuild, orphans};
use crate::error::PackError;
use crate::format::entry::{Container, Content, Place};
use crate::format::rows::{self, PackedPart, PackedVersion};
use crate::ids::BlobId;
use crate::index::Index;

/// A blob that a rebuild has to do without.
pub(super) struct Loss {
    pub(super) blob: BlobId,
    pub(super) error: PackError,
}

/// Removes parts that belong to nothing, and verifies that the rest is in one of the blobs `there`. `known` is the blob
/// up to which a backup knew all changes.
///
/// # Errors
/// The first loss, if it may not go on without it.
pub(super) fn check(
    rebuild: &Rebuild<'_>,
    index: &Index,
    there: &BTreeSet<BlobId>,
    mut losses: Vec<Loss>,
    known: Option<BlobId>,
) -> Result<(), PackError> {
    orphans::remove(index)?;
    losses.sort_by_key(|loss| loss.blob);
    if losses.is_empty() && lost(index, there, &mut |_| Ok(()))? == 0 {
        return Ok(());
    }
    let Some(path) = rebuild.accept_loss else {
        let unknown = "objects or parts lie in blobs that nothing tells of; --accept-loss goes on without them";
        let first = losses.into_iter().next().map(|loss| loss.error);
        return Err(first.unwrap_or_else(|| PackError::damaged("the backend", unknown)));
    };
    let mut report = BufWriter::new(std::fs::File::create(path)?);
    let lost = write_report(index, there, &losses, known, &mut report)?;
    report.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
    tracing::error!(
        blobs = losses.len(),
        lost,
        report = %path.display(),
        "the store starts without some blobs: the report lists what is affected"
    );
    Ok(())
}

/// Calls `tell` for all that has bytes in a blob that is none of those that are `sound`; returns
/// how many.
fn lost(
    index: &Index,
    sound: &BTreeSet<BlobId>,
    tell: &mut dyn FnMut(Named) -> Result<(), PackError>,
) -> Result<u64, PackError> {
    let blob_of = |place: &Place| match place.container {
        Container::Blob(id) if place.len > 0 => Some(id),
        _ => None,
    };
    let is_lost = |id: &BlobId| !sound.contains(id);
    let mut count = 0;
    index.visit(b"V", &mut |row, value| {
        let version = decode::<PackedVersion>("a version's row", value)?;
        if let Content::Run(place) = &version.content
            && let Some(blob) = blob_of(place).filter(is_lost)
            && let Some((bucket, key, _)) = parse_keyed(row)
        {
            count += 1;
            tell(Named { bucket, key: Some(key), part: None, blob })?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    index.visit(b"P", &mut |row, value| {
        let part = decode::<PackedPart>("a part's row", value)?;
        if let Some(blob) = blob_of(&part.place).filter(is_lost)
            && let Some((upload, number)) = rows::upload_of_part(row)
        {
            count += 1;
            let bucket = rows::bucket_of_part(row);
            tell(Named { bucket, key: None, part: Some((upload, number)), blob })?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(count)
}

/// Something whose bytes are lost.
struct Named {
    bucket: BucketId,
    key: Option<ObjectKey>,
    part: Option<(UploadId, u16)>,
    blob: BlobId,
}

/// Writes down what the losses concern; gives how many objects and parts have lost bytes.
fn write_report(
    index: &Index,
    there: &BTreeSet<BlobId>,
    losses: &[Loss],
    known: Option<BlobId>,
    out: &mut dyn Write,
) -> Result<u64, PackError> {
    let name = |bucket: BucketId| {
        let record = index.bucket_by_id(bucket);
        record.map_or_else(|| format!("bucket {}", bucket.0), |record| record.name.to_string())
    };
    for Loss { blob, error } in losses {
        writeln!(out, "blob {blob}: {error}")?;
    }
    let damaged: BTreeSet<_> = losses.iter().map(|loss| loss.blob).collect();
    let sound = there.difference(&damaged).copied().collect();
    let lost = lost(index, &sound, &mut |named| {
        let Named { bucket, key, part, blob } = named;
        let what = match (key, part) {
            (Some(key), _) => format!("{}/{}", name(bucket), key.as_str()),
            (None, Some((upload, number))) => {
                format!("part {number} of upload {upload} in {}", name(bucket))
            }
            (None, None) => name(bucket),
        };
        Ok(writeln!(out, "lost {what}: its bytes are in blob {blob}")?)
    })?;
    let unknown = losses.iter().filter(|loss| known.is_none_or(|known| loss.blob > known));
    let Some(last) = unknown.map(|loss| loss.blob).max() else { return Ok(lost) };
    writeln!(
        out,
        "objects whose last change was in these blobs are missing without a trace, unless a line above names them. \
         Those below may have been replaced or deleted by a change that was in them"
    )?;
    let next = index.standing()?.into_iter().find(|(id, _)| *id > last);
    let end = next.map(|(id, content)| rows::op(id.worker, content.first));
    index.visit(b"V", &mut |row, value| {
        let op: OpId = decode::<PackedVersion>("a version's row", value)?.op;
        if end.is_none_or(|end| op < end)
            && let Some((bucket, key, _)) = parse_keyed(row)
        {
            writeln!(out, "perhaps {}/{}", name(bucket), key.as_str())?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(lost)
}
