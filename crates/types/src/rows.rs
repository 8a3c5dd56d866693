//! Keys of the KV's rows. Big-endian throughout, so that byte order is S3's order.
//!
//! ```text
//! 'A' pg(4)                                       applied position
//! 'F' pg(4)                                       clock of the PG below which nothing is put
//! 'H' pg(4)                                       high-water marks of the PG's volumes
//! 'J' pg(4) seq(8)                               outcome that other regions may lack; of op 0, the journal's head
//! 'K' bucket(8) session(8) number(8) chunk(4)      chunk of a stream
//! 'O' bucket(8) session(8) number(8)               open stream: value is the key's PG
//! 'P' bucket(8) pg(4) view(8) seq(8) part(2)       part of an upload
//! 'Q' pg(4) beginning*                            garbage: rows that begin so go in steps; without a beginning, in which
//! 'R' pg(4) region(2) source(4)                  how far the journal of another region's PG is here
//! 'S' pg(4)                                       snapshot that the PG's rows came with, if any
//! 'T' bucket(8) key* slot                          tombstone of a purged version
//! 'U' bucket(8) key* pg(4) view(8) seq(8)          open upload, in the order of S3's list
//! 'V' bucket(8) key* slot                          version, newest first
//! 'W' bucket(8) pg(4) view(8) seq(8) end(8)        piece of a version that was appended to
//! ```
//! `key*` is the key with each 00 written 00 FF, ended by 00 01: no key's rows come between another
//! key's rows, and keys sort as their bytes do.
//!
//! `slot` is FF*8 for the one version of a key in an unversioned bucket. It is !clock(8) !region(2) for a version that
//! has its place by its stamp: newest first, equal clocks by their regions. FF*8 sorts behind all of these, as no clock
//! is 0.
//!
//! Pieces come behind versions, and a chunk only ever moves from a version to a piece. So a walk over all rows from the
//! first to the last meets every chunk that is there from beginning to end.

use bytes::Bytes;

use crate::ids::{
    BucketId, OpId, OpSeq, PgId, PiecesId, RegionId, SessionId, StreamId, UploadId, View,
};
use crate::metax::HybridClock;
use crate::name::ObjectKey;
use crate::stamp::Stamp;

/// Tables whose rows name space, or what names it, in their order: chunks, open streams, parts, uploads, versions,
/// pieces.
pub const SPACE_TABLES: [u8; 6] = *b"KOPUVW";
/// The slot of the one version that a key has in an unversioned bucket.
pub const UNVERSIONED: VersionSlot = VersionSlot::Unversioned;
const UNVERSIONED_BYTES: [u8; 8] = [0xFF; 8];

/// Where a version's row stands among those of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum VersionSlot {
    /// Behind all others: the null version, put while its bucket had no versioning; later, where the null version is.
    Unversioned,
    /// By its stamp, newest first.
    At(Stamp),
}

impl VersionSlot {
    /// Returns true if it is that of unversioned buckets.
    #[must_use]
    pub fn is_unversioned(self) -> bool {
        self == Self::Unversioned
    }

    fn push(self, row: &mut Vec<u8>) {
        match self {
            Self::Unversioned => row.extend(UNVERSIONED_BYTES),
            Self::At(Stamp { clock, region }) => {
                assert!(clock.0 > 0, "a version has a clock");
                row.extend((!clock.0).to_be_bytes());
                row.extend((!region.0).to_be_bytes());
            }
        }
    }

    fn parse(tail: &[u8]) -> Option<Self> {
        if tail == UNVERSIONED_BYTES {
            return Some(Self::Unversioned);
        }
        let (clock, region) = take_u64(tail)?;
        let region = RegionId(!u16::from_be_bytes(region.try_into().ok()?));
        let clock = HybridClock(!clock);
        (clock.0 > 0).then_some(Self::At(Stamp { clock, region }))
    }
}

/// Row of a PG's applied position.
#[must_use]
pub fn applied(pg: PgId) -> Vec<u8> {
    let mut row = vec![b'A'];
    row.extend(pg.0.to_be_bytes());
    row
}

/// Row of a PG's high-water marks; see [`HighWaterRow`](crate::HighWaterRow).
#[must_use]
pub fn high_water(pg: PgId) -> Vec<u8> {
    let mut row = vec![b'H'];
    row.extend(pg.0.to_be_bytes());
    row
}

/// Row that says with which snapshot a PG's rows came; see [`SnapshotRow`](crate::SnapshotRow).
#[must_use]
pub fn snapshot(pg: PgId) -> Vec<u8> {
    let mut row = vec![b'S'];
    row.extend(pg.0.to_be_bytes());
    row
}

/// The common beginning of the rows of a PG's journal.
#[must_use]
pub fn journal(pg: PgId) -> Vec<u8> {
    let mut row = vec![b'J'];
    row.extend(pg.0.to_be_bytes());
    row
}

/// Row of the outcome of an op; of op 0, of the journal's head.
#[must_use]
pub fn outcome(pg: PgId, op: OpSeq) -> Vec<u8> {
    let mut row = journal(pg);
    row.extend(op.0.to_be_bytes());
    row
}

/// Reads a row made by [`outcome`].
#[must_use]
pub fn parse_outcome(row: &[u8]) -> Option<(PgId, OpSeq)> {
    let [b'J', rest @ ..] = row else { return None };
    let (pg, rest) = rest.split_first_chunk::<4>()?;
    let (op, rest) = take_u64(rest)?;
    rest.is_empty().then_some((PgId(u32::from_be_bytes(*pg)), OpSeq(op)))
}

/// Row of the clock that a PG's puts are above, if there is one.
#[must_use]
pub fn clock_floor(pg: PgId) -> Vec<u8> {
    let mut row = vec![b'F'];
    row.extend(pg.0.to_be_bytes());
    row
}

/// Reads a row made by [`clock_floor`].
#[must_use]
pub fn parse_clock_floor(row: &[u8]) -> Option<PgId> {
    let [b'F', pg @ ..] = row else { return None };
    Some(PgId(u32::from_be_bytes(pg.try_into().ok()?)))
}

/// Row that says in what steps a PG's garbage goes; see [`Reaping`](crate::Reaping). All rows of its garbage begin so.
#[must_use]
pub fn garbage(pg: PgId) -> Vec<u8> {
    let mut row = vec![b'Q'];
    row.extend(pg.0.to_be_bytes());
    row
}

/// Row of garbage: rows that begin with what [`stream`], [`parts`] or [`pieces`] made are named by nothing any more.
#[must_use]
pub fn garbage_of(pg: PgId, beginning: &[u8]) -> Vec<u8> {
    let mut row = garbage(pg);
    row.extend(beginning);
    row
}

/// Reads a row made by [`garbage`], whose beginning is empty, or [`garbage_of`].
#[must_use]
pub fn parse_garbage(row: &[u8]) -> Option<(PgId, &[u8])> {
    let [b'Q', rest @ ..] = row else { return None };
    let (pg, beginning) = rest.split_first_chunk::<4>()?;
    let pg = PgId(u32::from_be_bytes(*pg));
    match beginning {
        [] => Some((pg, beginning)),
        [b'K', _stream @ ..] if beginning.len() == 25 => Some((pg, beginning)),
        [b'P' | b'W', _bucket @ ..] => {
            let of = parse_upload_tail(beginning.get(9..)?)?;
            (of.pg == pg).then_some((pg, beginning))
        }
        _ => None,
    }
}

/// The bucket of the rows that begin as a row of garbage says.
#[must_use]
pub fn bucket_of_garbage(beginning: &[u8]) -> Option<BucketId> {
    Some(BucketId(take_u64(beginning.get(1..)?)?.0))
}

/// The common beginning of the rows that a PG has of journals of other regions.
#[must_use]
pub fn passed_by(pg: PgId) -> Vec<u8> {
    let mut row = vec![b'R'];
    row.extend(pg.0.to_be_bytes());
    row
}

/// Row that says how far the journal of a PG of another region is here.
#[must_use]
pub fn passed(pg: PgId, region: RegionId, source: PgId) -> Vec<u8> {
    let mut row = passed_by(pg);
    row.extend(region.0.to_be_bytes());
    row.extend(source.0.to_be_bytes());
    row
}

/// Reads the PG that has a row made by [`passed`].
#[must_use]
pub fn parse_passed(row: &[u8]) -> Option<PgId> {
    let [b'R', rest @ ..] = row else { return None };
    let (pg, rest) = rest.split_first_chunk::<4>()?;
    (rest.len() == 6).then_some(PgId(u32::from_be_bytes(*pg)))
}

/// The common beginning of the rows of one stream.
#[must_use]
pub fn stream(bucket: BucketId, stream: StreamId) -> Vec<u8> {
    let mut row = start(b'K', bucket);
    row.extend(stream.session.0.to_be_bytes());
    row.extend(stream.number.to_be_bytes());
    row
}

/// Row of one chunk of a stream.
#[must_use]
pub fn chunk(bucket: BucketId, id: StreamId, number: u32) -> Vec<u8> {
    let mut row = stream(bucket, id);
    row.extend(number.to_be_bytes());
    row
}

/// Reads the number off a row made by [`chunk`].
#[must_use]
pub fn chunk_number(row: &[u8]) -> Option<u32> {
    let (_stream, number) = row.split_last_chunk::<4>()?;
    Some(u32::from_be_bytes(*number))
}

/// Row of an open stream.
#[must_use]
pub fn open_stream(bucket: BucketId, id: StreamId) -> Vec<u8> {
    let mut row = stream(bucket, id);
    row[0] = b'O';
    row
}

/// Reads a row made by [`open_stream`].
#[must_use]
pub fn parse_open_stream(row: &[u8]) -> Option<(BucketId, StreamId)> {
    let [b'O', rest @ ..] = row else { return None };
    let (bucket, rest) = take_u64(rest)?;
    let (session, rest) = take_u64(rest)?;
    let (number, rest) = take_u64(rest)?;
    let id = StreamId { session: SessionId(session), number };
    rest.is_empty().then_some((BucketId(bucket), id))
}

/// The common beginning of the rows of one upload's parts.
#[must_use]
pub fn parts(bucket: BucketId, upload: UploadId) -> Vec<u8> {
    let mut row = start(b'P', bucket);
    push_upload(&mut row, upload);
    row
}

/// Row of one part.
#[must_use]
pub fn part(bucket: BucketId, upload: UploadId, number: u16) -> Vec<u8> {
    let mut row = parts(bucket, upload);
    row.extend(number.to_be_bytes());
    row
}

/// Reads the part number off a row made by [`part`].
#[must_use]
pub fn part_number(row: &[u8]) -> Option<u16> {
    let tail = row.get(row.len().checked_sub(2)?..)?;
    Some(u16::from_be_bytes(tail.try_into().ok()?))
}

/// Reads the upload off a row made by [`part`].
#[must_use]
pub fn parse_part(row: &[u8]) -> Option<UploadId> {
    let [b'P', rest @ ..] = row else { return None };
    let (_bucket, rest) = take_u64(rest)?;
    let (upload, _number) = rest.split_last_chunk::<2>()?;
    parse_upload_tail(upload)
}

/// The common beginning of the rows of one version's pieces.
#[must_use]
pub fn pieces(bucket: BucketId, id: PiecesId) -> Vec<u8> {
    let mut row = start(b'W', bucket);
    push_upload(&mut row, UploadId { pg: id.pg, op: id.op });
    row
}

/// Row of the piece that ends at byte `end` of its object. The first row at or behind that of `at + 1` has byte `at`.
#[must_use]
pub fn piece(bucket: BucketId, id: PiecesId, end: u64) -> Vec<u8> {
    let mut row = pieces(bucket, id);
    row.extend(end.to_be_bytes());
    row
}

/// Reads a row made by [`piece`].
#[must_use]
pub fn parse_piece(row: &[u8]) -> Option<(BucketId, PiecesId, u64)> {
    let [b'W', rest @ ..] = row else { return None };
    let (bucket, rest) = take_u64(rest)?;
    let (id, end) = rest.split_last_chunk::<8>()?;
    let UploadId { pg, op } = parse_upload_tail(id)?;
    Some((BucketId(bucket), PiecesId { pg, op }, u64::from_be_bytes(*end)))
}

/// Row of an open upload.
#[must_use]
pub fn upload(bucket: BucketId, key: &ObjectKey, id: UploadId) -> Vec<u8> {
    let mut row = start(b'U', bucket);
    push_key(&mut row, key.as_bytes());
    push_upload(&mut row, id);
    row
}

/// Rows of a bucket in one table: `'U'` or `'V'`.
#[must_use]
pub fn bucket(table: u8, bucket: BucketId) -> Vec<u8> {
    start(table, bucket)
}

/// The bucket of a row that stands in the order of keys, or of the beginning of one.
#[must_use]
pub fn bucket_of(row: &[u8]) -> Option<BucketId> {
    let [b'U' | b'V', rest @ ..] = row else { return None };
    Some(BucketId(take_u64(rest)?.0))
}

/// Where a scan of a table for keys that begin with `prefix` starts, and, without a terminator, the
/// common beginning of all those rows.
#[must_use]
pub fn key_prefix(table: u8, bucket: BucketId, prefix: &[u8]) -> Vec<u8> {
    let mut row = start(table, bucket);
    push_escaped(&mut row, prefix);
    row
}

/// The least row after every row of `key`.
#[must_use]
pub fn after_key(table: u8, bucket: BucketId, key: &[u8]) -> Vec<u8> {
    let mut row = start(table, bucket);
    push_escaped(&mut row, key);
    row.extend([0x00, 0x02]);
    row
}

/// The common beginning of the rows of a key's versions in table `'T'` or `'V'`.
#[must_use]
pub fn versions(table: u8, bucket: BucketId, key: &ObjectKey) -> Vec<u8> {
    let mut row = start(table, bucket);
    row.reserve(key.as_bytes().len() + 12);
    push_key(&mut row, key.as_bytes());
    row
}

/// Row of a version.
#[must_use]
pub fn version(bucket: BucketId, key: &ObjectKey, slot: VersionSlot) -> Vec<u8> {
    let mut row = versions(b'V', bucket, key);
    slot.push(&mut row);
    row
}

/// Row of the tombstone of a version that was in this slot.
#[must_use]
pub fn tombstone(bucket: BucketId, key: &ObjectKey, slot: VersionSlot) -> Vec<u8> {
    let mut row = versions(b'T', bucket, key);
    slot.push(&mut row);
    row
}

/// Reads a row made by [`version`] or [`tombstone`].
#[must_use]
pub fn parse_version(row: &[u8]) -> Option<(BucketId, ObjectKey, VersionSlot)> {
    let (b'T' | b'V') = row.first()? else { return None };
    let (bucket, key, tail) = parse_keyed(row)?;
    Some((bucket, key, VersionSlot::parse(tail)?))
}

/// Reads bucket, key and the bytes after the key's terminator off a row of table `'T'`, `'U'` or `'V'`.
#[must_use]
pub fn parse_keyed(row: &[u8]) -> Option<(BucketId, ObjectKey, &[u8])> {
    let [b'T' | b'U' | b'V', rest @ ..] = row else { return None };
    let (bucket, mut rest) = take_u64(rest)?;
    let mut key = Vec::with_capacity(rest.len());
    loop {
        match rest {
            [0x00, 0x01, tail @ ..] => {
                let key = ObjectKey::try_from(Bytes::from(key)).ok()?;
                return Some((BucketId(bucket), key, tail));
            }
            [0x00, 0xFF, tail @ ..] => {
                key.push(0);
                rest = tail;
            }
            [0x00, ..] | [] => return None,
            [byte, tail @ ..] => {
                key.push(*byte);
                rest = tail;
            }
        }
    }
}

/// Reads the upload id at the end of a row made by [`upload`].
#[must_use]
pub fn parse_upload_tail(tail: &[u8]) -> Option<UploadId> {
    let (pg, rest) = tail.split_first_chunk::<4>()?;
    let (view, rest) = take_u64(rest)?;
    let (seq, rest) = take_u64(rest)?;
    let op = OpId { view: View(view), seq: OpSeq(seq) };
    rest.is_empty().then_some(UploadId { pg: PgId(u32::from_be_bytes(*pg)), op })
}

/// The least row that does not begin with `prefix`; `None` if there is none.
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

fn start(table: u8, bucket: BucketId) -> Vec<u8> {
    let mut row = Vec::with_capacity(48);
    row.push(table);
    row.extend(bucket.0.to_be_bytes());
    row
}

fn push_escaped(row: &mut Vec<u8>, key: &[u8]) {
    if !key.contains(&0) {
        row.extend_from_slice(key);
        return;
    }
    for &byte in key {
        row.push(byte);
        if byte == 0 {
            row.push(0xFF);
        }
    }
}

fn push_key(row: &mut Vec<u8>, key: &[u8]) {
    push_escaped(row, key);
    row.extend([0x00, 0x01]);
}

fn push_upload(row: &mut Vec<u8>, upload: UploadId) {
    row.extend(upload.pg.0.to_be_bytes());
    row.extend(upload.op.view.0.to_be_bytes());
    row.extend(upload.op.seq.0.to_be_bytes());
}

fn take_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*head), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(clock: u64, region: u16) -> VersionSlot {
        VersionSlot::At(Stamp { clock: HybridClock(clock), region: RegionId(region) })
    }

    proptest! {
        #[test]
        fn rows_sort_as_keys_do(a in "[\\x00-\\x02a-c]{1,6}", b in "[\\x00-\\x02a-c]{1,6}") {
            let (ka, kb) = (ObjectKey::new(&a).unwrap(), ObjectKey::new(&b).unwrap());
            let slot = at(5, 2);
            let (ra, rb) = (version(BucketId(1), &ka, slot), version(BucketId(1), &kb, slot));
            prop_assert_eq!(ka.cmp(&kb), ra.cmp(&rb));
            prop_assert_eq!(parse_version(&ra), Some((BucketId(1), ka.clone(), slot)));
            prop_assert_eq!(parse_keyed(&ra).map(|(_, key, _)| key), Some(ka.clone()));
            prop_assert!(ra < after_key(b'V', BucketId(1), ka.as_bytes()));
            prop_assert_eq!(ka < kb, after_key(b'V', BucketId(1), ka.as_bytes()) < rb);
            prop_assert_eq!(b.starts_with(&a), rb.starts_with(&key_prefix(b'V', BucketId(1), a.as_bytes())));
        }
    }

    #[test]
    fn newer_versions_come_first_and_equal_clocks_by_region() {
        let row = |slot| version(BucketId(1), &ObjectKey::new("k").unwrap(), slot);
        let newest_first =
            [at(u64::MAX, 1), at(9, 2), at(9, 1), at(9, 0), at(8, 7), at(1, 0), UNVERSIONED];
        for pair in newest_first.windows(2) {
            assert!(row(pair[0]) < row(pair[1]), "{pair:?}");
        }
        for slot in newest_first {
            let read = parse_version(&row(slot)).map(|(_, _, slot)| slot);
            assert_eq!(read, Some(slot));
            let mut tombstone = tombstone(BucketId(1), &ObjectKey::new("k").unwrap(), slot);
            tombstone[0] = b'V';
            assert_eq!(tombstone, row(slot), "a tombstone stands where the version stood");
        }
    }

    #[test]
    fn other_slots_are_none() {
        let key = versions(b'V', BucketId(1), &ObjectKey::new("k").unwrap());
        for tail in [&[0xFF; 10][..], &[0xFF; 9], &[0xFE; 8], &[0xFE; 11], &[]] {
            assert_eq!(parse_version(&[&key, tail].concat()), None, "{tail:?}");
        }
    }

    #[test]
    fn a_prefix_ends_before_the_next() {
        assert_eq!(prefix_end(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_end(b"a\xFF"), Some(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xFF\xFF"), None);
    }
}
