//! Golden bytes of everything that is stored: ops, values of rows, keys of rows.
//!
//! The files in `golden/` hold what the first release wrote. A line in them is never edited: bytes
//! that differ mean that this release would not read what an earlier one stored. `docs/formats/`
//! says what each byte is.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stored;

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};

use larder_types::codec::{CodecError, decode, encode};
use larder_types::{
    BucketId, BucketRecord, Chunk, ClockFloor, JournalHead, JournalRow, ObjectKey, Op, OpId, OpSeq,
    PartRow, Passed, PgId, PieceEntry, PieceRow, RegionId, Tombstone, UploadRow, VersionEntry,
    VersionRow, VersionSlot, rows,
};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes by name: a name in brackets, then its bytes in hexadecimal.
struct Golden {
    values: BTreeMap<String, Vec<u8>>,
    faults: Vec<String>,
}

impl Golden {
    fn read(text: &str) -> Self {
        let mut values: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut name = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(next) = line.strip_prefix('[') {
                name = next.trim_end_matches(']').to_owned();
                let before = values.insert(name.clone(), Vec::new());
                assert!(before.is_none(), "{name} stands in the file twice");
            } else if !line.starts_with('#') {
                let bytes = line.split_whitespace().map(|digits| {
                    u8::from_str_radix(digits, 16)
                        .unwrap_or_else(|_| panic!("{digits:?} of {name} is not a byte"))
                });
                values.entry(name.clone()).or_default().extend(bytes);
            }
        }
        values.remove("");
        Self { values, faults: Vec::new() }
    }

    fn ops() -> Self {
        Self::read(include_str!("golden/ops.hex"))
    }

    fn values() -> Self {
        Self::read(include_str!("golden/values.hex"))
    }

    fn keys() -> Self {
        Self::read(include_str!("golden/keys.hex"))
    }

    /// Holds `bytes`, as written now, against what stands in the file.
    fn check(&mut self, name: &str, bytes: &[u8]) {
        self.faults.extend(match self.values.remove(name) {
            Some(golden) if golden == bytes => None,
            Some(_) => Some(format!(
                "the encoding of {name} has changed: stored data would become unreadable. Keep \
                 version 1 as it was and write a new version beside it. It is now:\n{}",
                lines(name, bytes)
            )),
            None => Some(format!("{name} has no golden bytes yet; add:\n{}", lines(name, bytes))),
        });
    }

    fn check_value<T>(&mut self, name: &str, value: &T)
    where
        T: Serialize + DeserializeOwned + PartialEq + Debug,
    {
        let bytes = encode(value);
        self.check(name, &bytes);
        assert_eq!(decode::<T>("value", &bytes).as_ref(), Ok(value), "{name} is read back");
    }

    /// Every name in the file was checked and is as it was.
    fn finish(self) {
        assert!(self.faults.is_empty(), "{}", self.faults.join("\n"));
        let left: Vec<_> = self.values.keys().collect();
        assert!(left.is_empty(), "golden bytes of {left:?} are no longer checked");
    }
}

fn lines(name: &str, bytes: &[u8]) -> String {
    let mut text = format!("[{name}]\n");
    for line in bytes.chunks(16) {
        for (at, byte) in line.iter().enumerate() {
            let _ = write!(text, "{}{byte:02x}", if at == 0 { "" } else { " " });
        }
        text.push('\n');
    }
    text
}

#[test]
fn ops_keep_their_golden_bytes() {
    let mut golden = Golden::ops();
    for (name, op) in stored::ops() {
        golden.check_value(name, &op);
    }
    golden.finish();
}

#[test]
fn values_of_rows_keep_their_golden_bytes() {
    let mut golden = Golden::values();
    golden.check_value("applied position", &stored::op_id());
    golden.check_value("open stream", &PgId(300));
    golden.check_value("chunk", &stored::chunk());
    golden.check_value("version, bare", &stored::bare_version());
    golden.check_value("version, everything set", &stored::full_version());
    golden.check_value("version, appended to", &stored::appended_version());
    golden.check_value("part", &stored::part());
    golden.check_value("piece", &stored::piece());
    golden.check_value("upload", &stored::upload_row());
    golden.check_value("checksum algorithms", &stored::algorithms());
    golden.check_value("snapshot", &stored::snapshot_row());
    golden.check_value("high-water marks", &stored::high_water_row());
    golden.check_value("bucket, live", &stored::live_bucket());
    golden.check_value("bucket, deleting", &stored::deleting_bucket());
    golden.check_value("bucket, two copies are enough", &stored::lax_bucket());
    golden.check_value("bucket, two regions are enough", &stored::regional_bucket());
    let [nowhere, elsewhere, claimed, coming, given, here] = stored::homed_buckets();
    golden.check_value("bucket without a home any more", &nowhere);
    golden.check_value("bucket, all writes go to another region", &elsewhere);
    golden.check_value("bucket, its home is claimed", &claimed);
    golden.check_value("bucket, its home is coming from a region", &coming);
    golden.check_value("bucket, its home was given", &given);
    golden.check_value("bucket, its home is here", &here);
    let [local, opening, renewing] = stored::local_buckets();
    golden.check_value("bucket of one region alone", &local);
    golden.check_value("bucket that other regions are to have", &opening);
    golden.check_value("bucket whose objects are renewed", &renewing);
    let [open, local] = stored::cors_buckets();
    golden.check_value("bucket that all origins may read", &open);
    golden.check_value("bucket of one region alone with CORS rules", &local);
    golden.check_value("tombstone", &stored::tombstone());
    golden.check_value("journal", &stored::journal_row());
    golden.check_value("journal, its head", &stored::journal_head());
    golden.check_value("clock floor", &stored::clock_floor());
    golden.check_value("passed", &stored::passed());
    golden.check_value("garbage, its steps", &stored::reaping());
    golden.check_value("garbage", &stored::garbage());
    for (name, entry, slot) in stored_entries() {
        let bytes = entry.encode(slot);
        golden.check(name, &bytes);
        assert_eq!(VersionEntry::decode(slot, &bytes), Ok(entry), "{name} is read back");
    }
    let piece = stored::piece_entry();
    golden.check("piece with a stamp", &piece.encode());
    assert_eq!(PieceEntry::decode(&piece.encode()), Ok(piece));
    golden.finish();
}

/// Rows of table `V` that a [`VersionRow`] does not say, in their slots.
fn stored_entries() -> [(&'static str, VersionEntry, VersionSlot); 3] {
    [
        ("version with a stamp", stored::object_entry(), at_stamp()),
        ("delete marker", stored::marker_entry(), at_stamp()),
        ("where the null version is", VersionEntry::NullAt(stored::stamp()), rows::UNVERSIONED),
    ]
}

/// Stores without versioning and regions stay readable by releases that know neither.
#[test]
fn a_plain_entry_is_stored_as_a_version_row() {
    for row in [stored::bare_version(), stored::full_version(), stored::appended_version()] {
        let bytes = encode(&row);
        let entry = VersionEntry::decode(rows::UNVERSIONED, &bytes).unwrap();
        assert_eq!(entry.encode(rows::UNVERSIONED), bytes);
        let at = VersionSlot::At(row.metax.stamp());
        let misplaced = VersionEntry::decode(at, &bytes);
        assert!(matches!(misplaced, Err(CodecError::Damaged { .. })), "{misplaced:?}");
        let refused = decode::<VersionRow>("version row", &entry.encode(at));
        assert!(matches!(refused, Err(CodecError::Version { found: 2, known: 1, .. })));
    }
}

#[test]
fn an_entry_in_another_slot_is_damage() {
    for (name, entry, slot) in stored_entries() {
        let bytes = entry.encode(slot);
        let mut other = stored::stamp();
        other.region.0 += 1;
        let others = [rows::UNVERSIONED, at_stamp(), VersionSlot::At(other)];
        for other in others.into_iter().filter(|other| *other != slot) {
            // The null version alone may lie in either.
            let may = matches!(&entry, VersionEntry::Object(_)) && other == rows::UNVERSIONED;
            let read = VersionEntry::decode(other, &bytes);
            assert_eq!(read.is_ok(), may, "{name} in {other:?}: {read:?}");
        }
        for end in 0..bytes.len() {
            assert!(VersionEntry::decode(slot, &bytes[..end]).is_err(), "{name} cut at {end}");
        }
        let later = [&[3], &bytes[1..]].concat();
        let refused = VersionEntry::decode(slot, &later);
        assert!(matches!(refused, Err(CodecError::Version { found: 3, known: 2, .. })));
    }
}

#[test]
fn keys_of_rows_keep_their_golden_bytes() {
    let mut golden = Golden::keys();
    let (bucket, key, stream, upload) =
        (BucketId(0x0102_0304_0506_0708), stored::key(), stored::stream(), stored::upload());
    let zeros = ObjectKey::new("a\0b").unwrap();
    golden.check("applied position", &rows::applied(PgId(0x0102_0304)));
    golden.check("snapshot", &rows::snapshot(PgId(0x0102_0304)));
    golden.check("high-water marks", &rows::high_water(PgId(0x0102_0304)));
    golden.check("rows of a stream", &rows::stream(bucket, stream));
    golden.check("chunk of a stream", &rows::chunk(bucket, stream, 0x0A0B_0C0D));
    golden.check("open stream", &rows::open_stream(bucket, stream));
    golden.check("parts of an upload", &rows::parts(bucket, upload));
    golden.check("part", &rows::part(bucket, upload, 10_000));
    golden.check("upload", &rows::upload(bucket, &key, upload));
    golden.check("pieces of a version", &rows::pieces(bucket, stored::pieces()));
    golden.check("piece", &rows::piece(bucket, stored::pieces(), 0x0A0B_0C0D_0E0F));
    golden.check("rows of a bucket", &rows::bucket(b'U', bucket));
    golden.check("rows of a prefix", &rows::key_prefix(b'V', bucket, b"a\0"));
    golden.check("behind a key", &rows::after_key(b'V', bucket, b"a\0"));
    golden.check("version", &rows::version(bucket, &key, rows::UNVERSIONED));
    golden.check("version with a stamp", &rows::version(bucket, &key, at_stamp()));
    golden.check("tombstone", &rows::tombstone(bucket, &key, at_stamp()));
    golden.check("outcome", &rows::outcome(PgId(0x0102_0304), OpSeq(0x0A0B_0C0D_0E0F)));
    golden.check("clock floor", &rows::clock_floor(PgId(0x0102_0304)));
    golden.check("passed", &rows::passed(PgId(0x0102_0304), RegionId(0x0506), PgId(0x0708_090A)));
    let rows_of_stream = rows::stream(bucket, stream);
    golden.check("garbage, its steps", &rows::garbage(PgId(0x0102_0304)));
    golden.check("garbage", &rows::garbage_of(PgId(0x0102_0304), &rows_of_stream));
    let seven = [rows::versions(b'V', bucket, &zeros), 7u64.to_be_bytes().to_vec()].concat();
    assert_eq!(rows::parse_version(&seven), None, "no release has written such a slot");
    golden.check("version of a key with a zero", &seven);
    golden.finish();
}

fn at_stamp() -> VersionSlot {
    VersionSlot::At(stored::stamp())
}

#[test]
fn golden_keys_are_read_back() {
    let golden = Golden::keys().values;
    let bucket = BucketId(0x0102_0304_0506_0708);
    assert_eq!(rows::parse_open_stream(&golden["open stream"]), Some((bucket, stored::stream())));
    let outcome = (PgId(0x0102_0304), OpSeq(0x0A0B_0C0D_0E0F));
    assert_eq!(rows::parse_outcome(&golden["outcome"]), Some(outcome));
    assert_eq!(rows::parse_clock_floor(&golden["clock floor"]), Some(PgId(0x0102_0304)));
    assert_eq!(rows::parse_passed(&golden["passed"]), Some(PgId(0x0102_0304)));
    let of_stream = &golden["garbage"][5..];
    let garbage = Some((PgId(0x0102_0304), of_stream));
    assert_eq!(rows::parse_garbage(&golden["garbage"]), garbage);
    assert_eq!(rows::bucket_of_garbage(of_stream), Some(bucket));
    let steps = Some((PgId(0x0102_0304), &[][..]));
    assert_eq!(rows::parse_garbage(&golden["garbage, its steps"]), steps);
    assert_eq!(rows::part_number(&golden["part"]), Some(10_000));
    assert_eq!(rows::parse_part(&golden["part"]), Some(stored::upload()));
    let piece = Some((bucket, stored::pieces(), 0x0A0B_0C0D_0E0F));
    assert_eq!(rows::parse_piece(&golden["piece"]), piece);
    assert_eq!(rows::chunk_number(&golden["chunk of a stream"]), Some(0x0A0B_0C0D));
    let (of, key, tail) = rows::parse_keyed(&golden["upload"]).unwrap();
    assert_eq!((of, key), (bucket, stored::key()));
    assert_eq!(rows::parse_upload_tail(tail), Some(stored::upload()));
    for (name, slot) in [
        ("version", rows::UNVERSIONED),
        ("version with a stamp", at_stamp()),
        ("tombstone", at_stamp()),
    ] {
        let read = rows::parse_version(&golden[name]);
        assert_eq!(read, Some((bucket, stored::key(), slot)), "{name}");
    }
    let (of, key, tail) = rows::parse_keyed(&golden["version of a key with a zero"]).unwrap();
    assert_eq!((of, key.as_bytes(), tail), (bucket, &b"a\0b"[..], &7u64.to_be_bytes()[..]));
}

/// Version 1 can hold what later releases will write: they need no new version for it, and this one
/// does not lose it.
#[test]
fn version_1_has_room_for_what_is_to_come() {
    let golden = Golden::values().values;
    let row: VersionRow = decode("version row", &golden["version, everything set"]).unwrap();
    let metax = row.metax;
    let retention = metax.retention.expect("object lock");
    assert!(retention.governance && !retention.legal_hold && retention.until_ms > 0);
    let envelope = metax.encryption.expect("server-side encryption");
    assert!(!envelope.key_name.is_empty() && !envelope.wrapped_key.is_empty());
    assert_ne!(envelope.scheme, 0);
    assert!(metax.expires_ms.is_some(), "a time to live");
    assert_ne!(metax.region.0, 0, "regions");
    assert_ne!(metax.clock.0 & 0xFFFF, 0, "a clock with its counter");
    assert!(!metax.attributes.tags.is_empty(), "tags");
}

#[test]
fn every_kind_of_op_target_body_and_outcome_has_golden_bytes() {
    let names: Vec<_> = stored::ops().iter().map(|(_, op)| stored::kinds(op)).collect();
    for kind in stored::KINDS {
        assert!(names.iter().any(|kinds| kinds.contains(kind)), "no golden op has {kind}");
    }
}

/// Decodes bytes as everything that is stored.
fn decode_all(bytes: &[u8]) -> [Result<(), CodecError>; 14] {
    [
        decode::<Op>("op", bytes).map(drop),
        decode::<VersionRow>("version row", bytes).map(drop),
        decode::<PartRow>("part row", bytes).map(drop),
        decode::<PieceRow>("piece row", bytes).map(drop),
        decode::<UploadRow>("upload row", bytes).map(drop),
        decode::<Chunk>("chunk row", bytes).map(drop),
        decode::<BucketRecord>("bucket", bytes).map(drop),
        decode::<OpId>("applied position", bytes).map(drop),
        decode::<PgId>("open stream row", bytes).map(drop),
        decode::<Tombstone>("tombstone", bytes).map(drop),
        JournalRow::decode(bytes).map(drop),
        JournalHead::decode(bytes).map(drop),
        Passed::decode(bytes).map(drop),
        decode::<ClockFloor>("clock floor", bytes).map(drop),
    ]
}

/// Decodes bytes as what has a second version.
fn decode_entries(bytes: &[u8]) {
    for slot in [rows::UNVERSIONED, at_stamp()] {
        if let Ok(entry) = VersionEntry::decode(slot, bytes) {
            let written = entry.encode(slot);
            assert_eq!(VersionEntry::decode(slot, &written), Ok(entry), "what is read is written");
        }
    }
    let _piece = PieceEntry::decode(bytes);
}

fn golden_bytes() -> Vec<Vec<u8>> {
    Golden::ops().values.into_values().chain(Golden::values().values.into_values()).collect()
}

#[test]
fn a_value_cut_short_is_refused() {
    for (name, op) in stored::ops() {
        let bytes = encode(&op);
        for end in 0..bytes.len() {
            assert!(decode::<Op>("op", &bytes[..end]).is_err(), "{name} cut at {end}");
        }
    }
    let bytes = encode(&stored::full_version());
    for end in 0..bytes.len() {
        assert!(decode::<VersionRow>("version row", &bytes[..end]).is_err(), "cut at {end}");
    }
}

#[test]
fn a_later_version_is_refused_and_named() {
    for mut bytes in golden_bytes() {
        bytes[0] = 2;
        for result in decode_all(&bytes) {
            assert!(matches!(result, Err(CodecError::Version { found: 2, .. })), "{result:?}");
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        versioned in any::<bool>(),
    ) {
        if versioned && let Some(version) = bytes.first_mut() {
            *version = 1 + *version % 2;
        }
        let _results = decode_all(&bytes);
        decode_entries(&bytes);
        let _parsed = rows::parse_keyed(&bytes);
        let _parsed = rows::parse_open_stream(&bytes);
        let _parsed = rows::parse_upload_tail(&bytes);
        let _parsed = rows::part_number(&bytes);
        let _parsed = rows::parse_piece(&bytes);
        let _parsed = rows::parse_version(&bytes);
    }

    #[test]
    fn no_changed_byte_makes_decoding_panic(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        end in any::<prop::sample::Index>(),
    ) {
        let mut all = golden_bytes();
        let mut bytes = all.swap_remove(which.index(all.len()));
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _results = decode_all(&bytes);
        decode_entries(&bytes);
        bytes.truncate(end.index(bytes.len()));
        let _results = decode_all(&bytes);
        decode_entries(&bytes);
    }
}
