//! The rows of the index, beside those that it shares with the store: their keys are those of
//! `larder_types::rows`.
//!
//! ```text
//! 'A' 0(4)                          how far the index is: Applied
//! 'B' worker(8) seq(8)              a blob that was uploaded: BlobRow
//! 'C' worker(8) seq(8)              what a blob has, also one that waits: BlobContent
//! 'G' worker(8) seq(8)              a blob that was retired and is still in the backend: RetiredRow
//! 'L'                               the layout of all these rows: a number
//! 'N' bucket(8)                     a bucket: BucketRecord
//! 'O' worker(8) run(8) number(8)    a bundle that has live bytes, or is this worker's and was uploaded: BundleContent
//! 'P' 'U' 'V'                       a part: PackedPart; an upload: UploadRow; a version: PackedVersion
//! 'R' container* offset(8) holder*     a version or part that has its bytes there; without a value
//! ```
//! `container*` is 0 worker(8) seq(8) for a blob, and 1 worker(8) run(8) number(8) for an object of
//! its own. `holder*` is 0 bucket(8) key for a version, and 1 bucket(8) pg(4) view(8) seq(8)
//! number(2) for a part.

use larder_types::codec::{decode, encode};
use larder_types::{
    BucketId, CodecError, HybridClock, Metax, ObjectKey, OpId, OpSeq, PgId, UploadId, View, rows,
};
use serde::{Deserialize, Serialize};

use crate::format::blob::BlobName;
use crate::format::entry::{Container, Content, Place};
use crate::ids::{BlobId, ProcessId, StandaloneId, WorkerId};

/// The layout that this release writes. An index of an earlier one is rebuilt, but for one of [`LAYOUT_UNMARKED`].
pub(crate) const LAYOUT: u32 = 3;
/// The layout of builds from before the markers of `identity.rs`, which call an index of [`LAYOUT`] none. Its rows are read.
pub(crate) const LAYOUT_UNMARKED: u32 = 2;

/// A key's version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PackedVersion {
    /// The change that put it: view is its worker.
    pub(crate) op: OpId,
    pub(crate) metax: Metax,
    pub(crate) content: Content,
    /// The first change of this key since it was last deleted, of those that blobs still have.
    pub(crate) since: OpId,
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
#[serde(from = "StoredBlobRow", into = "StoredBlobRow")]
pub(crate) struct BlobRow {
    pub(crate) created_ms: u64,
    pub(crate) footer_offset: u64,
    /// Bytes of the whole blob.
    pub(crate) bytes: u64,
    /// The process that uploaded it.
    pub(crate) process: ProcessId,
}

impl BlobRow {
    /// Of a blob that is lost: a name that no blob has.
    pub(crate) const NONE: Self =
        Self { created_ms: 0, footer_offset: 0, bytes: 0, process: ProcessId::UNNUMBERED };

    pub(crate) fn name(&self, id: BlobId) -> BlobName {
        let Self { created_ms, footer_offset, process, .. } = *self;
        BlobName { id, created_ms, footer_offset, process }
    }
}

/// A [`BlobRow`] as it is stored and sent. That of a process without a number is as it was before there were numbers.
#[derive(Serialize, Deserialize)]
struct StoredBlobRow {
    created_ms: u64,
    /// Where the footer begins, with the process.
    footer: u64,
    bytes: u64,
}

impl From<StoredBlobRow> for BlobRow {
    fn from(stored: StoredBlobRow) -> Self {
        let (process, footer_offset) = ProcessId::without(stored.footer);
        Self { created_ms: stored.created_ms, footer_offset, bytes: stored.bytes, process }
    }
}

impl From<BlobRow> for StoredBlobRow {
    fn from(row: BlobRow) -> Self {
        let BlobRow { created_ms, footer_offset, bytes, process } = row;
        Self { created_ms, footer: process.with(footer_offset), bytes }
    }
}

/// The content of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlobContent {
    /// Its first change.
    pub(crate) first: OpSeq,
    /// The clock of that; `None` in a row of an earlier build.
    pub(crate) first_clock: Option<HybridClock>,
    /// Its last change.
    pub(crate) last: OpSeq,
    /// The clock of its last change.
    pub(crate) clock: HybridClock,
    /// Where the last of its bodies ends.
    pub(crate) end: u64,
    /// Bytes of bodies that versions and parts have; those that several have count once.
    pub(crate) live: u64,
}

/// A [`BlobContent`] as it was first stored, and as rows of version 2 begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct BlobContentV1 {
    first: OpSeq,
    last: OpSeq,
    clock: HybridClock,
    end: u64,
    live: u64,
}

/// Version of a row of [`BlobContent`] that has the clock of the first change.
const CONTENT_V2: u8 = 2;

impl BlobContent {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let &Self { first, first_clock, last, clock, end, live } = self;
        let v1 = BlobContentV1 { first, last, clock, end, live };
        match first_clock {
            None => encode(&v1),
            Some(first_clock) => {
                let row = postcard::to_extend(&(v1, first_clock), vec![CONTENT_V2]);
                row.expect("plain data always encodes")
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        const WHAT: &str = "what a blob has";
        let (v1, first_clock) = match bytes.split_first() {
            Some((&CONTENT_V2, body)) => {
                let damaged = |reason: String| CodecError::Damaged { what: WHAT, reason };
                let (row, rest) = postcard::take_from_bytes::<(BlobContentV1, HybridClock)>(body)
                    .map_err(|error| damaged(error.to_string()))?;
                if !rest.is_empty() {
                    return Err(damaged(format!("{} bytes are left over", rest.len())));
                }
                (row.0, Some(row.1))
            }
            _ => (decode(WHAT, bytes)?, None),
        };
        let BlobContentV1 { first, last, clock, end, live } = v1;
        Ok(Self { first, first_clock, last, clock, end, live })
    }
}

/// A blob that nothing needs any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RetiredRow {
    /// The time at which it was retired, in milliseconds since 1970.
    pub(crate) retired_ms: u64,
    /// The blob that says so.
    pub(crate) by: BlobId,
}

/// A version or part that has a run of bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    Key(BucketId, ObjectKey),
    Part(BucketId, UploadId, u16),
}

/// The position of the index. In that of another worker (`peers/peer.rs`) `lsn` counts bytes of
/// entries, and `rebuilt` is the last blob that is known to be in the bucket.
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
    /// The worker's blobs up to this one were in the backend when the index was rebuilt from there: whatever the log
    /// says of them, they do not wait.
    pub(crate) rebuilt: u64,
}

pub(crate) fn applied() -> Vec<u8> {
    rows::applied(PgId(0))
}

pub(crate) fn blob(id: BlobId) -> Vec<u8> {
    of_blob(b'B', id)
}

pub(crate) fn content(id: BlobId) -> Vec<u8> {
    of_blob(b'C', id)
}

pub(crate) fn retired(id: BlobId) -> Vec<u8> {
    of_blob(b'G', id)
}

pub(crate) fn bundle(id: StandaloneId) -> Vec<u8> {
    let mut row = vec![b'O'];
    for number in [id.worker.0, id.run, id.number] {
        row.extend(number.to_be_bytes());
    }
    row
}

/// The bundle that a row of table `O` is about.
pub(crate) fn parse_bundle(row: &[u8]) -> Option<StandaloneId> {
    let (_table, rest) = row.split_first()?;
    let (worker, rest) = take_u64(rest)?;
    let (run, rest) = take_u64(rest)?;
    let (number, rest) = take_u64(rest)?;
    rest.is_empty().then_some(StandaloneId { worker: WorkerId(worker), run, number })
}

pub(crate) fn layout() -> Vec<u8> {
    vec![b'L']
}

fn of_blob(table: u8, id: BlobId) -> Vec<u8> {
    let mut row = vec![table];
    row.extend(id.worker.0.to_be_bytes());
    row.extend(id.seq.to_be_bytes());
    row
}

/// The blob that a row of table `B`, `C` or `G` is about.
pub(crate) fn parse_blob(row: &[u8]) -> Option<BlobId> {
    let (_table, rest) = row.split_first()?;
    let (worker, rest) = take_u64(rest)?;
    let (seq, rest) = take_u64(rest)?;
    rest.is_empty().then_some(BlobId { worker: WorkerId(worker), seq })
}

/// The common beginning of the rows of all that lies within.
pub(crate) fn held_within(container: Container) -> Vec<u8> {
    let mut row = vec![b'R'];
    match container {
        Container::Blob(id) => {
            row.push(0);
            row.extend(id.worker.0.to_be_bytes());
            row.extend(id.seq.to_be_bytes());
        }
        Container::Own(id) => {
            row.push(1);
            row.extend(id.worker.0.to_be_bytes());
            row.extend(id.run.to_be_bytes());
            row.extend(id.number.to_be_bytes());
        }
    }
    row
}

/// The common beginning of the rows of all that have the bytes from here on.
pub(crate) fn held_at(container: Container, offset: u64) -> Vec<u8> {
    let mut row = held_within(container);
    row.extend(offset.to_be_bytes());
    row
}

pub(crate) fn held(place: &Place, holder: &Holder) -> Vec<u8> {
    let mut row = held_at(place.container, place.offset);
    match holder {
        Holder::Key(bucket, key) => {
            row.push(0);
            row.extend(bucket.0.to_be_bytes());
            row.extend(key.as_bytes());
        }
        Holder::Part(bucket, upload, number) => {
            row.push(1);
            row.extend(bucket.0.to_be_bytes());
            row.extend(upload.pg.0.to_be_bytes());
            row.extend(upload.op.view.0.to_be_bytes());
            row.extend(upload.op.seq.0.to_be_bytes());
            row.extend(number.to_be_bytes());
        }
    }
    row
}

/// Reads what follows [`held_within`] in a row made by [`held`]: the offset and the holder.
pub(crate) fn parse_held(tail: &[u8]) -> Option<(u64, Holder)> {
    let (offset, rest) = take_u64(tail)?;
    let (tag, rest) = rest.split_first()?;
    let (bucket, rest) = take_u64(rest)?;
    let bucket = BucketId(bucket);
    let holder = match tag {
        0 => {
            let key = ObjectKey::try_from(bytes::Bytes::copy_from_slice(rest)).ok()?;
            Holder::Key(bucket, key)
        }
        1 => {
            let (upload, number) = rest.split_last_chunk::<2>()?;
            let upload = rows::parse_upload_tail(upload)?;
            Holder::Part(bucket, upload, u16::from_be_bytes(*number))
        }
        _ => return None,
    };
    Some((offset, holder))
}

/// The bucket that the row of a part belongs to.
pub(crate) fn bucket_of_part(row: &[u8]) -> BucketId {
    let bucket = row.get(1..).and_then(take_u64);
    BucketId(bucket.expect("the row of a part names its bucket").0)
}

fn take_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*head), rest))
}

/// An op of a worker.
pub(crate) fn op(worker: WorkerId, seq: OpSeq) -> OpId {
    OpId { view: View(worker.0), seq }
}

pub(crate) fn bucket(id: BucketId) -> Vec<u8> {
    rows::bucket(b'N', id)
}

/// The upload that the row of a part belongs to.
pub(crate) fn upload_of_part(row: &[u8]) -> Option<(UploadId, u16)> {
    Some((rows::parse_part(row)?, rows::part_number(row)?))
}
