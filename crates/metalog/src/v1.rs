//! Version 1 of the format: `docs/formats/metadata-log.md` gives it byte by byte.
//!
//! # Invariant
//!
//! Tag and checksum of a record depend on the log's id and on the record's place in it. Bytes of
//! another log, of a recycled segment's earlier life, or of a write that went astray never verify.

use std::fmt;

use larder_types::limits::{OP_BYTES_MAX, PG_COUNT_MAX};
use larder_types::{OpSeq, PgId, View};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::Record;
use crate::limits::{
    RECORD_ALIGN_BYTES, RECORD_HEADER_BYTES, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN,
    SEGMENT_HEADER_BYTES, WRITE_ALIGN_BYTES,
};

/// A byte offset in the whole log: segment `n` covers `n * segment_bytes` and up, headers included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

const MAGIC: [u8; 8] = *b"LARDRLOG";
const VERSION: u32 = 1;
/// Bytes of a segment header that have a meaning; the rest are zeros.
const SEGMENT_FIELDS_BYTES: usize = 56;
const HEADER: usize = RECORD_HEADER_BYTES as usize;

/// The layout that all segments of a log share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) log_id: u64,
    pub(crate) segment_bytes: u64,
}

impl Layout {
    pub(crate) fn segment_of(&self, lsn: Lsn) -> u64 {
        lsn.0 / self.segment_bytes
    }

    pub(crate) fn offset_of(&self, lsn: Lsn) -> u64 {
        lsn.0 % self.segment_bytes
    }

    pub(crate) fn start_of(&self, segment: u64) -> Lsn {
        Lsn(segment * self.segment_bytes)
    }

    /// The seed of the checksum of a record at `lsn`: SplitMix64 of id and place.
    fn seed(&self, lsn: Lsn) -> u64 {
        let mut z = self.log_id.wrapping_add(lsn.0.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// The reason that a segment header is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    /// It is whole and of a later release.
    Version(u32),
    /// It does not verify.
    Damaged,
}

pub(crate) fn encode_segment_header(
    layout: &Layout,
    segment: u64,
) -> [u8; SEGMENT_HEADER_BYTES as usize] {
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    bytes[0..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..24].copy_from_slice(&layout.log_id.to_le_bytes());
    bytes[24..32].copy_from_slice(&segment.to_le_bytes());
    bytes[32..40].copy_from_slice(&layout.start_of(segment).0.to_le_bytes());
    bytes[40..48].copy_from_slice(&layout.segment_bytes.to_le_bytes());
    let checksum = xxh3_64(&bytes[0..48]);
    bytes[48..56].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Reads the header of a segment that is known to be number `segment`.
pub(crate) fn decode_segment_header(bytes: &[u8], segment: u64) -> Result<Layout, BadHeader> {
    if bytes.len() < SEGMENT_FIELDS_BYTES
        || bytes[0..8] != MAGIC
        || u64_at(bytes, 48) != xxh3_64(&bytes[0..48])
    {
        return Err(BadHeader::Damaged);
    }
    if u32_at(bytes, 8) != VERSION {
        return Err(BadHeader::Version(u32_at(bytes, 8)));
    }
    let layout = Layout { log_id: u64_at(bytes, 16), segment_bytes: u64_at(bytes, 40) };
    let sound = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&layout.segment_bytes)
        && layout.segment_bytes.is_multiple_of(WRITE_ALIGN_BYTES)
        && u64_at(bytes, 24) == segment
        && segment.checked_mul(layout.segment_bytes) == Some(u64_at(bytes, 32));
    if sound { Ok(layout) } else { Err(BadHeader::Damaged) }
}

/// The kinds of stored records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// An op of a PG.
    Op = 1,
    /// The rest of the segment is unused.
    Padding = 2,
    /// Nothing but the synced position.
    Mark = 3,
}

/// A record as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored<'a> {
    pub(crate) kind: Kind,
    /// Checksum of the PG's record before; 0 if that is not known.
    pub(crate) chain: u64,
    /// All of the log below was known to be synced.
    pub(crate) synced: Lsn,
    pub(crate) record: Record<'a>,
}

impl Stored<'_> {
    /// A record of no PG.
    pub(crate) fn bare(kind: Kind, synced: Lsn) -> Self {
        let record =
            Record { pg: PgId(0), view: View(0), seq: OpSeq(0), commit: OpSeq(0), payload: &[] };
        Self { kind, chain: 0, synced, record }
    }
}

/// Bytes that a record with this payload takes in the log.
pub(crate) fn stored_bytes(payload_bytes: usize) -> u64 {
    RECORD_HEADER_BYTES + (payload_bytes as u64).next_multiple_of(RECORD_ALIGN_BYTES)
}

/// Appends the record that is to lie at `at` to `out`; returns its checksum.
pub(crate) fn encode(layout: &Layout, at: Lsn, stored: &Stored<'_>, out: &mut Vec<u8>) -> u64 {
    let Record { pg, view, seq, commit, payload } = stored.record;
    assert!(payload.len() <= OP_BYTES_MAX, "a payload of {} bytes is no op", payload.len());
    assert!(pg.0 < PG_COUNT_MAX, "there is no PG {pg}");
    let seed = layout.seed(at);
    let mut header = [0; HEADER];
    header[8..12].copy_from_slice(&tag(seed).to_le_bytes());
    header[12] = stored.kind as u8;
    header[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[20..24].copy_from_slice(&pg.0.to_le_bytes());
    header[24..32].copy_from_slice(&stored.chain.to_le_bytes());
    header[32..40].copy_from_slice(&stored.synced.0.to_le_bytes());
    header[40..48].copy_from_slice(&view.0.to_le_bytes());
    header[48..56].copy_from_slice(&seq.0.to_le_bytes());
    header[56..64].copy_from_slice(&commit.0.to_le_bytes());
    let start = out.len();
    let end = start + HEADER + payload.len();
    out.extend_from_slice(&header);
    out.extend_from_slice(payload);
    out.resize(start + stored_bytes(payload.len()) as usize, 0);
    let checksum = xxh3_64_with_seed(&out[start + 8..end], seed);
    out[start..start + 8].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// The record at `at`, with its checksum, if one begins there and verifies. `bytes` end with its
/// segment or before.
pub(crate) fn decode<'a>(layout: &Layout, at: Lsn, bytes: &'a [u8]) -> Option<(Stored<'a>, u64)> {
    if !begins(layout, at, bytes) {
        return None;
    }
    let kind = match bytes[12] {
        1 => Kind::Op,
        2 => Kind::Padding,
        3 => Kind::Mark,
        _ => return None,
    };
    let length = u32_at(bytes, 16) as usize;
    if length > OP_BYTES_MAX || (bytes.len() as u64) < stored_bytes(length) {
        return None;
    }
    let checksum = u64_at(bytes, 0);
    let pg = PgId(u32_at(bytes, 20));
    if checksum != xxh3_64_with_seed(&bytes[8..HEADER + length], layout.seed(at))
        || pg.0 >= PG_COUNT_MAX
    {
        return None;
    }
    let record = Record {
        pg,
        view: View(u64_at(bytes, 40)),
        seq: OpSeq(u64_at(bytes, 48)),
        commit: OpSeq(u64_at(bytes, 56)),
        payload: &bytes[HEADER..HEADER + length],
    };
    let stored = Stored { kind, chain: u64_at(bytes, 24), synced: Lsn(u64_at(bytes, 32)), record };
    Some((stored, checksum))
}

/// Bytes that a record at `at` takes, as far as its beginning tells.
pub(crate) fn extent(layout: &Layout, at: Lsn, bytes: &[u8]) -> u64 {
    if !begins(layout, at, bytes) {
        return RECORD_HEADER_BYTES;
    }
    stored_bytes((u32_at(bytes, 16) as usize).min(OP_BYTES_MAX))
}

/// True if a record of this log begins at `at`, whole or not.
pub(crate) fn begins(layout: &Layout, at: Lsn, bytes: &[u8]) -> bool {
    bytes.len() >= HEADER && u32_at(bytes, 8) == tag(layout.seed(at))
}

/// The first bytes by which a record is told from what else may lie at its place.
fn tag(seed: u64) -> u32 {
    (seed >> 32) as u32
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests;
