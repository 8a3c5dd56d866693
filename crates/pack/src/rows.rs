//! What the index keeps, beside the rows that it shares with the store: their keys are those of
//! `larder_types::rows`.
//!
//! ```text
//! 'A' 0(4)                          how far the index is: Applied
//! 'B' worker(8) seq(8)              a blob that was uploaded: BlobRow
//! 'N' bucket(8)                     a bucket: BucketRecord
//! 'P' 'U' 'V'                       a part: PackedPart; an upload: UploadRow; a version: PackedVersion
//! ```

use larder_types::{BucketId, HybridClock, Metax, OpId, OpSeq, PgId, UploadId, rows};
use serde::{Deserialize, Serialize};

use crate::blob::BlobName;
use crate::entry::{BlobId, Content, Place};

/// A key's version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PackedVersion {
    /// The change that put it: view is its worker.
    pub(crate) op: OpId,
    pub(crate) metax: Metax,
    pub(crate) content: Content,
}

/// A part of an open or completed upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PackedPart {
    pub(crate) op: OpId,
    pub(crate) metax: Metax,
    pub(crate) place: Place,
}

/// A blob that is in the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlobRow {
    pub(crate) created_ms: u64,
    pub(crate) footer_offset: u64,
    /// Bytes of the whole blob.
    pub(crate) bytes: u64,
}

impl BlobRow {
    pub(crate) fn name(&self, id: BlobId) -> BlobName {
        BlobName { id, created_ms: self.created_ms, footer_offset: self.footer_offset }
    }
}

/// How far the index is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Applied {
    /// End of the last record of the log that it shows.
    pub(crate) lsn: u64,
    /// The last number given to a record.
    pub(crate) seq: OpSeq,
    /// The greatest clock.
    pub(crate) clock: HybridClock,
    /// The worker's blobs up to this one are older than any that may be begun.
    pub(crate) blob: u64,
}

pub(crate) fn applied() -> Vec<u8> {
    rows::applied(PgId(0))
}

pub(crate) fn blob(id: BlobId) -> Vec<u8> {
    let mut row = vec![b'B'];
    row.extend(id.worker.0.to_be_bytes());
    row.extend(id.seq.to_be_bytes());
    row
}

pub(crate) fn bucket(id: BucketId) -> Vec<u8> {
    rows::bucket(b'N', id)
}

/// The upload that the row of a part belongs to.
pub(crate) fn upload_of_part(row: &[u8]) -> Option<(UploadId, u16)> {
    Some((rows::parse_part(row)?, rows::part_number(row)?))
}
