//! Golden bytes of everything that packing stores. A line of the file is never edited: bytes that differ mean that
//! this release would not read what an earlier one wrote. `docs/formats/blob.md` says what each byte is.

use std::fmt::Debug;

use bytes::Bytes;
use larder_identity::proof::Secret;
use larder_types::codec::{decode, encode};
use larder_types::{
    Attributes, BucketId, BucketName, BucketRecord, BucketState, ChecksumAlgorithm, ChecksumKind,
    ETag, Epoch, HybridClock, Metax, ObjectChecksum, ObjectKey, OpId, OpSeq, PartRef, PgId,
    RegionId, UploadId, UploadRow, View,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::backup::{Head, Segment, read_segment};
use crate::commit::log::{LogRecord, LogRecordRef};
use crate::format::blob::{BlobName, FooterHead, FooterReader, encode_footer};
use crate::format::entry::{Change, Container, Content, Entry, Place};
use crate::format::rows::{
    self, Applied, BlobContent, BlobRow, Holder, PackedPart, PackedVersion, RetiredRow,
};
use crate::format::sums::BodySums;
use crate::format::upload_unit::{BundleContent, UploadUnit};
use crate::ids::{BackupId, BlobId, ProcessId, Run, StandaloneId, WorkerId};
use crate::owner::announce::Announcement;
use crate::owner::counting::{self, Record};
use crate::owner::identity::{Claim, Identity};
use crate::owner::name::WorkerName;
use crate::owner::naming::Named;
use crate::owner::numbering::{Number, Numbered};
use crate::owner::takeover_fence::Inheritance;
use crate::peers::feed::FeedPosition;
use crate::peers::feed::identity::{credentials, server_of};
use crate::peers::feed::wire::{FeedReply, FeedRequest, Refusal};

/// The file, read when a test runs.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/pack.hex");
const BLOB: BlobId = BlobId { worker: WorkerId(3), seq: 0x0102 };

/// The bytes of a name: `[name]`, then lines in hexadecimal.
fn golden(name: &str) -> Option<Vec<u8>> {
    let head = format!("[{name}]\n");
    let all = std::fs::read_to_string(GOLDEN).unwrap();
    let text = &all[all.find(&head)? + head.len()..];
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
    let container = Container::Own(StandaloneId { worker: WorkerId(3), run: 0xAABB, number: 5 });
    Place { container, offset: 0, len: 9, seed: 4, sum_bytes: 1 << 20, sums: vec![u64::MAX] }
}

fn place(offset: u64, body: &'static [u8]) -> Place {
    let sums = BodySums::of(0x1122_3344, 65_536, &[Bytes::from_static(body)]);
    sums.placed(Container::Blob(BLOB), offset)
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
        regions: 1,
        home: None,
        sharing: larder_types::Sharing::All,
        cors: None,
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

/// One of each kind that came later.
fn entries_of_version_2() -> Vec<Entry> {
    let (bucket, key) = (BucketId(0x0506), ObjectKey::new("a/ü").unwrap());
    let op = |seq| OpId { view: View(3), seq: OpSeq(seq) };
    let content = Content::Run(place(0, b"hello"));
    let (upload, metax) = (upload(), metax(5));
    let run = Run { worker: WorkerId(3), first: 7, last: 9 };
    let backups = vec![BackupId { worker: WorkerId(3), number: 290 }];
    let changes = [
        Change::Gone { bucket, key: key.clone(), since: op(300), upto: op(305) },
        Change::Moved { bucket, key: key.clone(), op: op(301), metax: metax.clone(), content },
        Change::PartMoved { bucket, upload, number: 2, op: op(303), metax, place: own() },
        Change::UploadGone { bucket, key, upload, upto: op(304) },
        Change::BucketGone { bucket, upto: op(306) },
        Change::Retired { run, backups },
    ];
    let entry = |(at, change)| {
        let at = at as u64;
        Entry { seq: OpSeq(400 + at), clock: HybridClock(2_000_000 + at), change }
    };
    changes.into_iter().enumerate().map(entry).collect()
}

fn process_31() -> ProcessId {
    ProcessId::new(31).unwrap()
}

fn row(created_ms: u64, process: ProcessId) -> BlobRow {
    BlobRow { created_ms, footer_offset: 9, bytes: 500, process }
}

fn name() -> BucketName {
    BucketName::new("first").unwrap()
}

#[test]
fn a_blob_is_written_as_ever_and_read_back() {
    let entries = [entries(), entries_of_version_2()].concat();
    let head = head(&entries);
    let mut encoded = Vec::new();
    for entry in &entries {
        encoded = postcard::to_extend(entry, encoded).unwrap();
    }
    let tail = encode_footer(BLOB, UploadUnit::SHARED, 9, &head, &encoded);
    check("blob of version 2", &[&b"hellopart"[..], &tail].concat());
    assert_eq!(read_back("blob of version 2"), (head, entries));
    let (created_ms, process) = (1_700_000_000_000, ProcessId::UNNUMBERED);
    let named = BlobName { id: BLOB, created_ms, footer_offset: 9, process };
    assert_eq!(named.path(), "blobs/0000000000000003-0000000000000102-018bcfe56800-0000000009");
    assert_eq!(
        BlobName { process: process_31(), ..named }.path(),
        "blobs/0000000000000003-0000000000000102-018bcfe56800-0000000009-0000001f"
    );
}

#[test]
fn a_bundle_has_its_format_and_identifies_itself() {
    let unit = UploadUnit::numbered(2).unwrap();
    let sums = BodySums::of(0x1122_3344, 65_536, &[Bytes::from_static(b"hello")]);
    let (bucket, key) = (BucketId(0x0506), ObjectKey::new("a/ü").unwrap());
    let content = Content::Run(sums.placed(unit.container(BLOB), 0));
    let change = Change::Put { bucket, key, metax: metax(5), content };
    let entry = Entry { seq: OpSeq(301), clock: HybridClock(1_000_001), change };
    let head = head(std::slice::from_ref(&entry));
    let encoded = postcard::to_extend(&entry, Vec::new()).unwrap();
    let tail = encode_footer(BLOB, unit, 5, &head, &encoded);
    check("bundle", &[&b"hello"[..], &tail].concat());
    let footer = FooterReader::new("golden", &tail).unwrap();
    assert_eq!((footer.trailer.id, footer.trailer.unit), (BLOB, unit));
    let Container::Own(bundle) = footer.trailer.container() else { panic!("it is a bundle") };
    let path = "objects/0000000000000003-0000000000000000-0000000000010202";
    assert_eq!(bundle.path_of(ProcessId::UNNUMBERED), path);
    assert_eq!(bundle.path_of(process_31()), format!("{path}-0000001f"));
    for (file, process) in [("", ProcessId::UNNUMBERED), ("-0000001f", process_31())] {
        let file = format!("{}{file}", path.strip_prefix("objects/").unwrap());
        assert_eq!(StandaloneId::parse(&file), Some((bundle, process)));
    }
    let large = "0000000000000003-00000000000000bb-0000000000010202";
    assert!(StandaloneId::parse(large).is_some());
    assert_eq!(StandaloneId::parse(&format!("{large}-0000001f")), None);
    check("key of a bundle", &rows::bundle(bundle));
    assert_eq!(rows::parse_bundle(&rows::bundle(bundle)), Some(bundle));
    let content = BundleContent { end: 9, live: 5, process: ProcessId::UNNUMBERED };
    check_value("content of a bundle", &content);
    let content = BundleContent { process: process_31(), ..content };
    check_value("content of a bundle that a process uploaded", &content);
}

#[test]
fn a_blob_of_version_1_is_read() {
    let entries = entries();
    assert_eq!(read_back("blob"), (head(&entries), entries));
}

fn head(entries: &[Entry]) -> FooterHead {
    FooterHead {
        created_ms: 1_700_000_000_000,
        entries: entries.len() as u64,
        buckets: vec![(BucketId(0x0506), name())],
    }
}

fn read_back(name: &str) -> (FooterHead, Vec<Entry>) {
    let blob = golden(name).unwrap();
    let footer = FooterReader::new("golden", &blob[9..]).unwrap();
    assert_eq!(footer.trailer.id, BLOB);
    assert_eq!(footer.trailer.blob_bytes(), blob.len() as u64);
    (footer.head.clone(), footer.map(Result::unwrap).collect())
}

#[test]
fn a_footer_with_any_byte_changed_is_refused() {
    let blob = golden("blob of version 2").unwrap();
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
            let (blob, bucket) = (0x0102, &self::name());
            check(name, &encode(&LogRecordRef::Changed { blob, bucket, entry: &entry }));
            let (bucket, entry) = (self::name(), Box::new(entry));
            check_value(name, &LogRecord::Changed { blob, bucket, entry });
        }
    }
    let row = row(1_700_000_000_000, ProcessId::UNNUMBERED);
    check("log uploaded", &encode(&LogRecordRef::Uploaded { blob: 0x0102, row }));
    check_value("log uploaded", &LogRecord::<Box<Entry>>::Uploaded { blob: 0x0102, row });
    let row = self::row(1_700_000_000_000, process_31());
    check_value(
        "log uploaded by a process",
        &LogRecord::<Box<Entry>>::Uploaded { blob: 0x0102, row },
    );
    let entry = entries_of_version_2().pop().unwrap();
    check("log noted", &encode(&LogRecordRef::Noted { blob: 0x0102, entry: &entry }));
    let entry = Box::new(entry);
    check_value("log noted", &LogRecord::<Box<Entry>>::Noted { blob: 0x0102, entry });
}

#[test]
fn rows_and_files_are_written_as_ever() {
    let op = OpId { view: View(3), seq: OpSeq(301) };
    let content = Content::Run(place(0, b"hello"));
    let since = OpId { view: View(2), seq: OpSeq(7) };
    check_value("version with since", &PackedVersion { op, metax: metax(5), content, since });
    let content = Content::Parts { upload: upload(), parts: vec![PartRef { number: 1, len: 9 }] };
    check_value(
        "version in parts with since",
        &PackedVersion { op, metax: metax(9), content, since },
    );
    check_value("part", &PackedPart { op, metax: metax(9), place: own() });
    check_value("blob row", &row(1, ProcessId::UNNUMBERED));
    check_value("blob row of a process", &row(1, process_31()));
    check_value("number of a process", &Number { nonce: 0xAABB });
    check_value("record of a process", &Record::From(0x0103));
    check_value("record of a closed process", &Record::Closed);
    check_value("numbered", &Numbered { process: process_31() });
    let number = "incarnations/0000000000000003-0000001f";
    assert_eq!(counting::path(WorkerId(3), process_31()), number);
    assert_eq!(counting::record_path(WorkerId(3), process_31()), format!("{number}-from"));
    let applied = Applied { lsn: 4096, seq: OpSeq(9), clock: HybridClock(10), blob: 2, rebuilt: 1 };
    check_value("applied with rebuilt", &applied);
    check("key of a blob", &rows::blob(BLOB));
    check("key of a bucket", &rows::bucket(BucketId(0x0506)));
    check_value("layout", &rows::LAYOUT_UNMARKED);
    check_value("layout since backends are marked", &rows::LAYOUT);
    let (first, last, clock) = (OpSeq(301), OpSeq(309), HybridClock(1_000_009));
    let (first_clock, end, live) = (Some(HybridClock(1_000_001)), 9, 5);
    let content = BlobContent { first, first_clock, last, clock, end, live };
    let of_v1 = BlobContent { first_clock: None, ..content };
    for (name, content) in
        [("content of a blob", of_v1), ("content of a blob of version 2", content)]
    {
        check(name, &content.encode());
        assert_eq!(BlobContent::decode(&golden(name).unwrap()), Ok(content));
    }
    check_value("retired blob", &RetiredRow { retired_ms: 1_700_000_000_000, by: BLOB });
    check("key of a blob's content", &rows::content(BLOB));
    check("key of a retired blob", &rows::retired(BLOB));
    let bucket = BucketId(0x0506);
    let holder = Holder::Key(bucket, ObjectKey::new("a/ü").unwrap());
    check("key of a version's bytes", &rows::held(&place(5, b"part"), &holder));
    check("key of a part's bytes", &rows::held(&own(), &Holder::Part(bucket, upload(), 2)));
    let identity = Identity { worker: WorkerId(3), nonce: 0xAABB, claimed: true };
    check_value("worker", &identity);
    check_value("claim", &Claim { nonce: 0xAABB, claimed_ms: 1_700_000_000_000 });
    let last = BlobId { worker: WorkerId(2), seq: 0x0103 };
    check_value("horizon", &Inheritance { last: vec![last] });
}

#[test]
fn workers_tell_each_other_what_they_ever_did() {
    let name = WorkerName::new("a").unwrap();
    let prefix = name.prefix();
    check_value("name of a worker", &Named { name: name.clone(), prefix: prefix.clone() });
    let (worker, address) = (WorkerId(0x1_0001), Some("host:9002".to_owned()));
    let announced_ms = 1_700_000_000_000;
    let reported = Announcement { name, prefix, worker, address, announced_ms };
    check_value("announcement", &reported);
}

/// The bodies of calls and answers, which are values without a version byte: frames have one.
#[test]
fn workers_say_things_as_ever() {
    let (worker, ms) = (WorkerId(0x1_0001), 1_700_000_000_000);
    let last = Some((OpSeq(20), HybridClock(0x0123_4567_89ab_cdef)));
    let (from, to, unit) = (300, 500, 2);
    check_golden_wire("call of version 4 for changes", &{
        FeedRequest::Changes { worker, asked: FeedPosition { blob: 7, from: 0, last: None } }
    });
    check_golden_wire("call of version 4 for changes behind an entry", &{
        FeedRequest::Changes { worker, asked: FeedPosition { blob: 7, from, last } }
    });
    check_golden_wire(
        "call of version 4 for a body",
        &FeedRequest::Body { worker, blob: 7, unit, from, to },
    );
    let row = row(ms, process_31());
    let refusals =
        [Refusal::OtherClaim, Refusal::Diverged, Refusal::Absent, Refusal::Range, Refusal::Failed];
    let reported = [
        FeedReply::Entries { blob: 7, from, is_whole: true, behind: 5 },
        FeedReply::Uploaded { blob: 7, row },
        FeedReply::Nothing { blob: 7 },
        FeedReply::Body,
        FeedReply::BundleUploaded(process_31()),
    ];
    for (nth, reported) in reported.into_iter().chain(refusals.map(FeedReply::Refused)).enumerate()
    {
        check_golden_wire(&format!("answer {nth} of version 4"), &reported);
    }
    let subject = credentials(&Secret::of([7; 32]), worker).unwrap().subject();
    let named = [&subject.cluster.0.to_le_bytes()[..], &server_of(worker).0.to_le_bytes()].concat();
    check("cluster and server of a worker", &named);
    assert_eq!((subject.server, subject.roles.to_string()), (server_of(worker), "worker".into()));
}

fn check_golden_wire<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str, value: &T) {
    check(name, &postcard::to_allocvec(value).unwrap());
    assert_eq!(&postcard::from_bytes::<T>(&golden(name).unwrap()).unwrap(), value);
}

#[test]
fn backups_are_written_as_ever_and_read_back() {
    let mut segment = Segment::default();
    segment.push(b"key", b"value");
    segment.push(b"empty", b"");
    let (bytes, sum) = segment.finish();
    check("segment of a backup", &bytes);
    let mut rows = Vec::new();
    read_segment("golden", &bytes, sum, usize::MAX, &mut |batch| {
        rows.push(batch.len());
        Ok(())
    })
    .unwrap();
    assert_eq!(rows, [2]);
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let read = read_segment("changed", &changed, sum, usize::MAX, &mut |_| Ok(()));
        assert!(read.is_err(), "byte {at}");
    }
    let id = BackupId { worker: WorkerId(3), number: 4 };
    let (seq, clock) = (OpSeq(309), HybridClock(1_000_009));
    let made_ms = 1_700_000_000_000;
    let head = Head { id, made_ms, seq, clock, blob: 0x0102, segments: vec![sum] };
    let bytes = head.encode();
    check("head of a backup", &bytes);
    assert_eq!(Head::decode(id, &bytes).unwrap(), head);
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(Head::decode(id, &changed).is_err(), "byte {at}");
    }
    assert!(Head::decode(BackupId { number: 5, ..id }, &bytes).is_err());
}
