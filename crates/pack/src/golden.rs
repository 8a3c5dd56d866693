//! Golden bytes of everything that packing stores. A line of the file is never edited: bytes that differ mean that
//! this release would not read what an earlier one wrote. `docs/formats/blob.md` says what each byte is.

use std::fmt::Debug;

use bytes::Bytes;
use larder_types::codec::{decode, encode};
use larder_types::{
    Attributes, BucketId, BucketName, BucketRecord, BucketState, ChecksumAlgorithm, ChecksumKind,
    ETag, Epoch, HybridClock, Metax, ObjectChecksum, ObjectKey, OpId, OpSeq, PartRef, PgId,
    RegionId, UploadId, UploadRow, View,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::blob::{BlobName, FooterHead, FooterReader, encode_footer};
use crate::entry::{BlobId, Change, Content, Entry, OwnId, Place, Within, WorkerId};
use crate::identity::{Claim, Identity};
use crate::log::LogRecord;
use crate::rows::{self, Applied, BlobRow, PackedPart, PackedVersion};
use crate::sums::BodySums;

const GOLDEN: &str = include_str!("../tests/golden/pack.hex");
const BLOB: BlobId = BlobId { worker: WorkerId(3), seq: 0x0102 };

/// The bytes of a name: `[name]`, then lines in hexadecimal.
fn golden(name: &str) -> Option<Vec<u8>> {
    let head = format!("[{name}]\n");
    let text = &GOLDEN[GOLDEN.find(&head)? + head.len()..];
    let text = &text[..text.find('[').unwrap_or(text.len())];
    Some(text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect())
}

fn check(name: &str, bytes: &[u8]) {
    let lines: Vec<_> = bytes
        .chunks(24)
        .map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "))
        .collect();
    assert!(
        golden(name).is_some_and(|golden| golden == bytes),
        "the encoding of {name} is new or has changed. If it is new, add:\n[{name}]\n{}\n",
        lines.join("\n")
    );
}

fn check_value<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &'static str, value: &T) {
    check(name, &encode(value));
    assert_eq!(&decode::<T>(name, &golden(name).unwrap()).unwrap(), value);
}

fn metax(size: u64) -> Metax {
    Metax {
        size,
        clock: HybridClock::at_ms(1_700_000_000_000),
        region: RegionId(0),
        etag: ETag::Md5([7; 16]),
        checksum: Some(ObjectChecksum {
            algorithm: ChecksumAlgorithm::Crc32c,
            kind: ChecksumKind::FullObject,
            value: vec![1, 2, 3, 4],
            parts: None,
        }),
        attributes: Attributes {
            content_type: Some("text/plain".into()),
            user: vec![("colour".into(), "green".into())],
            ..Attributes::default()
        },
        expires_ms: None,
        encryption: None,
        retention: None,
    }
}

fn upload() -> UploadId {
    UploadId { pg: PgId(0), op: OpId { view: View(3), seq: OpSeq(300) } }
}

fn own() -> Place {
    let within = Within::Own(OwnId { worker: WorkerId(3), run: 0xAABB, number: 5 });
    Place { within, offset: 0, len: 9, seed: 4, sum_bytes: 1 << 20, sums: vec![u64::MAX] }
}

fn place(offset: u64, body: &'static [u8]) -> Place {
    let sums = BodySums::of(0x1122_3344, 65_536, &[Bytes::from_static(body)]);
    sums.placed(Within::Blob(BLOB), offset)
}

/// One of each kind.
fn entries() -> Vec<Entry> {
    let bucket = BucketId(0x0506);
    let key = ObjectKey::new("a/ü").unwrap();
    let record = BucketRecord {
        id: bucket,
        name: name(),
        epoch: Epoch(1),
        state: BucketState::Live,
        created_ms: 1_700_000_000_000,
        location: Some("eu".into()),
        write_policy: larder_types::WritePolicy::All,
    };
    let parts = vec![PartRef { number: 1, len: 9 }];
    let row = UploadRow {
        upload: upload(),
        key: key.clone(),
        clock: HybridClock(77),
        attributes: Attributes::default(),
        checksum: Some((ChecksumAlgorithm::Sha256, ChecksumKind::Composite)),
    };
    let content = Content::Run(place(0, b"hello"));
    let (upload, metax) = (upload(), metax(5));
    let changes = [
        Change::BucketMade(record),
        Change::Put { bucket, key: key.clone(), metax: metax.clone(), content },
        Change::UploadBegun { bucket, row },
        Change::PartPut { bucket, upload, number: 1, metax: metax.clone(), place: own() },
        Change::PartPut {
            bucket,
            upload,
            number: 2,
            metax: metax.clone(),
            place: place(5, b"part"),
        },
        Change::UploadCompleted { bucket, key: key.clone(), upload, metax, parts },
        Change::UploadAborted { bucket, key: key.clone(), upload },
        Change::Deleted { bucket, key },
        Change::BucketRemoved(bucket),
    ];
    let entry = |(at, change)| {
        let at = at as u64;
        Entry { seq: OpSeq(300 + at), clock: HybridClock(1_000_000 + at), change }
    };
    changes.into_iter().enumerate().map(entry).collect()
}

fn name() -> BucketName {
    BucketName::new("first").unwrap()
}

#[test]
fn a_blob_is_written_as_ever_and_read_back() {
    let entries = entries();
    let head = FooterHead {
        created_ms: 1_700_000_000_000,
        entries: entries.len() as u64,
        buckets: vec![(BucketId(0x0506), name())],
    };
    let mut encoded = Vec::new();
    for entry in &entries {
        encoded = postcard::to_extend(entry, encoded).unwrap();
    }
    let tail = encode_footer(BLOB, 9, &head, &encoded);
    check("blob", &[&b"hellopart"[..], &tail].concat());

    let blob = golden("blob").unwrap();
    let footer = FooterReader::new("golden", &blob[9..]).unwrap();
    assert_eq!((footer.trailer.id, footer.head.clone()), (BLOB, head));
    assert_eq!(footer.trailer.blob_bytes(), blob.len() as u64);
    let read: Vec<_> = footer.map(Result::unwrap).collect();
    assert_eq!(read, entries);
    let named = BlobName { id: BLOB, created_ms: 1_700_000_000_000, footer_offset: 9 };
    assert_eq!(named.path(), "blobs/0000000000000003-0000000000000102-018bcfe56800-0000000009");
}

#[test]
fn a_footer_with_any_byte_changed_is_refused() {
    let blob = golden("blob").unwrap();
    let tail = &blob[9..];
    for at in 0..tail.len() {
        let mut changed = tail.to_vec();
        changed[at] ^= 1;
        assert!(FooterReader::new("changed", &changed).is_err(), "byte {at}");
    }
    for cut in 0..tail.len() {
        assert!(FooterReader::new("cut", &tail[..cut]).is_err(), "{cut} bytes");
    }
}

#[test]
fn records_of_the_log_are_written_as_ever() {
    for (at, entry) in entries().into_iter().enumerate() {
        let name: &'static str =
            ["log bucket_made", "log put", "log upload_begun"].get(at).copied().unwrap_or("");
        if !name.is_empty() {
            check_value(
                name,
                &LogRecord::Changed { blob: 0x0102, bucket: self::name(), entry: Box::new(entry) },
            );
        }
    }
    let row = BlobRow { created_ms: 1_700_000_000_000, footer_offset: 9, bytes: 500 };
    check_value("log uploaded", &LogRecord::Uploaded { blob: 0x0102, row });
}

#[test]
fn rows_and_files_are_written_as_ever() {
    let op = OpId { view: View(3), seq: OpSeq(301) };
    let content = Content::Run(place(0, b"hello"));
    check_value("version", &PackedVersion { op, metax: metax(5), content });
    let content = Content::Parts { upload: upload(), parts: vec![PartRef { number: 1, len: 9 }] };
    check_value("version in parts", &PackedVersion { op, metax: metax(9), content });
    check_value("part", &PackedPart { op, metax: metax(9), place: own() });
    check_value("blob row", &BlobRow { created_ms: 1, footer_offset: 9, bytes: 500 });
    let applied = Applied { lsn: 4096, seq: OpSeq(9), clock: HybridClock(10), blob: 2 };
    check_value("applied", &applied);
    check("key of a blob", &rows::blob(BLOB));
    check("key of a bucket", &rows::bucket(BucketId(0x0506)));
    let identity = Identity { worker: WorkerId(3), nonce: 0xAABB, claimed: true };
    check_value("worker", &identity);
    check_value("claim", &Claim { nonce: 0xAABB, claimed_ms: 1_700_000_000_000 });
}
