//! Version 1 of a backup of the index: `docs/formats/blob.md` gives it byte by byte.

use larder_kv::Batch;
use larder_kv::limits::{ROW_KEY_BYTES_MAX, ROW_VALUE_BYTES_MAX};
use larder_types::codec::{decode, encode};
use larder_types::{HybridClock, OpSeq};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::PackError;
use crate::ids::BackupId;

/// Version of segments.
const VERSION: u8 = 1;
/// Bytes of the lengths before each row.
const LENGTHS: usize = 6;
/// Bytes of the sum at the end of a head.
const SUM: usize = 8;

/// The head of a backup: its contents, and the sums that verify its segments. It is written last:
/// without it there is no backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) id: BackupId,
    pub(crate) made_ms: u64,
    /// The last change that it shows, of the worker that made it; and every one of earlier workers.
    pub(crate) seq: OpSeq,
    /// The greatest clock.
    pub(crate) clock: HybridClock,
    /// The worker's last blob of which it shows anything.
    pub(crate) blob: u64,
    pub(crate) segments: Vec<SegmentSum>,
}

/// The sum that verifies a segment, with its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentSum {
    pub(crate) bytes: u64,
    pub(crate) rows: u64,
    /// XXH3-64 of all its bytes.
    pub(crate) sum: u64,
}

impl Head {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = encode(self);
        let sum = xxh3_64(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// Reads the head of the backup `id`.
    pub(crate) fn decode(id: BackupId, bytes: &[u8]) -> Result<Self, PackError> {
        let damaged = |reason| PackError::damaged(id.head_path(), reason);
        let (value, sum) =
            bytes.split_last_chunk::<SUM>().ok_or_else(|| damaged("it is too short"))?;
        if u64::from_le_bytes(*sum) != xxh3_64(value) {
            return Err(damaged("it does not verify"));
        }
        let head: Self = decode("the head of a backup", value)?;
        match head.id == id {
            true => Ok(head),
            false => Err(damaged("it is that of another backup")),
        }
    }
}

/// Rows on their way into a segment.
#[derive(Debug)]
pub(crate) struct Segment {
    bytes: Vec<u8>,
    rows: u64,
}

impl Default for Segment {
    fn default() -> Self {
        Self { bytes: vec![VERSION], rows: 0 }
    }
}

impl Segment {
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        let key_bytes = u16::try_from(key.len()).expect("keys of rows are shorter");
        let value_bytes = u32::try_from(value.len()).expect("values of rows are shorter");
        self.bytes.extend(key_bytes.to_le_bytes());
        self.bytes.extend(value_bytes.to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.rows += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn finish(self) -> (Vec<u8>, SegmentSum) {
        let Self { bytes, rows } = self;
        let sum = SegmentSum { bytes: bytes.len() as u64, rows, sum: xxh3_64(&bytes) };
        (bytes, sum)
    }
}

/// Hands the rows of a segment to `take` in batches of at most `batch_bytes` or one row.
pub(crate) fn read_segment(
    name: &str,
    bytes: &[u8],
    expected: SegmentSum,
    batch_bytes: usize,
    take: &mut dyn FnMut(Batch) -> Result<(), PackError>,
) -> Result<(), PackError> {
    let damaged = |reason: &str| PackError::damaged(name, reason);
    if bytes.len() as u64 != expected.bytes || xxh3_64(bytes) != expected.sum {
        return Err(damaged("it does not verify"));
    }
    let (version, mut rest) = bytes.split_first().ok_or_else(|| damaged("it is empty"))?;
    if *version != VERSION {
        let (found, known) = (u32::from(*version), u32::from(VERSION));
        return Err(PackError::Version { name: name.to_owned(), found, known });
    }
    let (mut batch, mut rows) = (Batch::new(), 0);
    while !rest.is_empty() {
        let short = || damaged("a row of it is cut off");
        let (lengths, tail) = rest.split_first_chunk::<LENGTHS>().ok_or_else(short)?;
        let key_bytes = usize::from(u16::from_le_bytes([lengths[0], lengths[1]]));
        let value_bytes = u32::from_le_bytes(std::array::from_fn(|i| lengths[2 + i])) as usize;
        let (key, tail) = tail.split_at_checked(key_bytes).ok_or_else(short)?;
        let (value, tail) = tail.split_at_checked(value_bytes).ok_or_else(short)?;
        if !(1..=ROW_KEY_BYTES_MAX).contains(&key_bytes) || value_bytes > ROW_VALUE_BYTES_MAX {
            return Err(damaged("a row of it is too long, or has no key"));
        }
        batch.put(key, value);
        rest = tail;
        rows += 1;
        if batch.bytes() >= batch_bytes {
            take(std::mem::take(&mut batch))?;
        }
    }
    if rows != expected.rows {
        return Err(damaged("it does not have as many rows as it should"));
    }
    take(batch)
}
