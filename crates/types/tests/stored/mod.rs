//! One value of every kind that is stored, with no two fields alike, so that fields that change
//! places show.

use bytes::Bytes;
use larder_types::{
    Amend, Amendments, Append, Appended, Attributes, Body, BootId, BucketId, BucketName,
    BucketRecord, BucketState, ChecksumAlgorithm, ChecksumKind, Chunk, ChunkMove, ClockFloor,
    Coalesce, CorsMethod, CorsRule, CorsRules, ETag, EncryptionEnvelope, Epoch, Extent, Freed,
    FreedTombstone, Garbage, Grant, Grow, HighWaterRow, Holders, HoldersChange, Home, HomeScope,
    HomeState, HomeTerm, HybridClock, JournalHead, JournalRow, LvId, MarkerEntry, Metax, Noted,
    ObjectChecksum, ObjectEntry, ObjectKey, Op, OpId, OpSeq, Origin, Outcome, PartRef, PartRow,
    Passed, PgId, PieceEntry, PieceRow, PiecesId, Purge, Put, Reaping, RegionId, Remembered,
    RemotePut, Renew, Request, Retention, ServerId, SessionId, SessionMemory, Sharing, SnapshotRow,
    Stamp, StreamId, Target, Tombstone, UploadId, UploadRow, VersionEntry, VersionRow, View,
    WritePolicy, rows,
};

/// Everything an op can be and contain; see [`kinds`].
pub const KINDS: &[&str] = &[
    "ViewStart",
    "Put",
    "Regrant",
    "Outcome",
    "Delete",
    "CreateUpload",
    "CompleteUpload",
    "AbortUpload",
    "SetTags",
    "DropStream",
    "SnapshotBegin",
    "SnapshotSession",
    "SnapshotEnd",
    "Holders",
    "PutEnough",
    "Append",
    "Digest",
    "Moved",
    "RemoteChange",
    "Purge",
    "Amend",
    "Noted",
    "Freed",
    "Renew",
    "Grow",
    "Reap",
    "Coalesce",
    "Target::Version",
    "Target::Chunk",
    "Target::Part",
    "Body::Inline",
    "Body::Chunk",
    "Body::Stream",
    "Body::Parts",
    "Outcome::Committed",
    "Outcome::Revoked",
    "ETag::Md5",
    "ETag::Parts",
];

/// Lists the kinds of an op and of its parts. A new variant does not compile until it is named here.
pub fn kinds(op: &Op) -> Vec<&'static str> {
    let body_of = |body: &Body| match body {
        Body::Inline(_) => "Body::Inline",
        Body::Chunk(_) => "Body::Chunk",
        Body::Stream { .. } => "Body::Stream",
        Body::Parts { .. } => "Body::Parts",
        Body::Pieces { .. } => "Body::Pieces",
    };
    let etag_of = |metax: &Metax| match metax.etag {
        ETag::Md5(_) => "ETag::Md5",
        ETag::Parts(..) => "ETag::Parts",
    };
    match op {
        Op::ViewStart { .. } => vec!["ViewStart"],
        Op::Put(put) | Op::PutEnough { put, .. } => {
            let target = match put.target {
                Target::Version => "Target::Version",
                Target::Chunk { .. } => "Target::Chunk",
                Target::Part { .. } => "Target::Part",
            };
            let kind = if op.required_copies() == 0 { "Put" } else { "PutEnough" };
            vec![kind, target, body_of(&put.body), etag_of(&put.metax)]
        }
        Op::Regrant { body, .. } => vec!["Regrant", body_of(body)],
        Op::Outcome { outcome, .. } => match outcome {
            Outcome::Committed { .. } => vec!["Outcome", "Outcome::Committed"],
            Outcome::Revoked => vec!["Outcome", "Outcome::Revoked"],
        },
        Op::Delete { .. } => vec!["Delete"],
        Op::CreateUpload { .. } => vec!["CreateUpload"],
        Op::CompleteUpload { metax, .. } => vec!["CompleteUpload", etag_of(metax)],
        Op::AbortUpload { .. } => vec!["AbortUpload"],
        Op::SetTags { .. } => vec!["SetTags"],
        Op::DropStream { .. } => vec!["DropStream"],
        Op::SnapshotBegin => vec!["SnapshotBegin"],
        Op::SnapshotSession(_) => vec!["SnapshotSession"],
        Op::SnapshotEnd { .. } => vec!["SnapshotEnd"],
        Op::Holders { .. } => vec!["Holders"],
        Op::Append(append) => vec!["Append", body_of(&append.body)],
        Op::Digest => vec!["Digest"],
        Op::Moved { .. } => vec!["Moved"],
        Op::RemoteChange(change) => vec!["RemoteChange", body_of(&change.put.body)],
        Op::Purge(_) => vec!["Purge"],
        Op::Amend(_) => vec!["Amend"],
        Op::Noted(_) => vec!["Noted"],
        Op::Freed(_) => vec!["Freed"],
        Op::Renew(_) => vec!["Renew"],
        Op::Grow(grow) => vec!["Grow", body_of(&grow.append.body)],
        Op::Reap { .. } => vec!["Reap"],
        Op::Coalesce(coalesce) => vec!["Coalesce", body_of(&coalesce.body)],
    }
}

pub fn op_id() -> OpId {
    OpId { view: View(3), seq: OpSeq(70_000) }
}

pub fn key() -> ObjectKey {
    ObjectKey::new("cat/é.jpg").unwrap()
}

pub fn stream() -> StreamId {
    StreamId { session: SessionId(0x1112_1314_1516_1718), number: 25 }
}

pub fn upload() -> UploadId {
    UploadId { pg: PgId(200), op: OpId { view: View(2), seq: OpSeq(130) } }
}

fn request() -> Request {
    Request { session: SessionId(0xF1F2_F3F4_F5F6_F7F8), number: 9, floor: 5 }
}

fn digest(first: u8) -> [u8; 16] {
    std::array::from_fn(|at| first + at as u8)
}

pub fn chunk() -> Chunk {
    Chunk {
        grant: Grant { pg: PgId(17), op: op_id(), attempt: 2 },
        seed: 0xA1A2_A3A4_A5A6_A7A8,
        lv: LvId(129),
        extents: vec![Extent { first: 16, blocks: 15 }, Extent { first: 4096, blocks: 2 }],
        len: 66_000,
        sums: vec![0xB1B2_B3B4_B5B6_B7B8, 0xC1],
        holders: Holders(0b101),
    }
}

fn bare_metax() -> Metax {
    Metax {
        size: 5,
        clock: HybridClock::at_ms(1_795_000_000_000),
        region: RegionId(0),
        etag: ETag::Md5(digest(0x10)),
        checksum: None,
        attributes: Attributes::default(),
        expires_ms: None,
        encryption: None,
        retention: None,
    }
}

/// METAX with everything that version 1 has room for.
fn full_metax() -> Metax {
    Metax {
        size: 66_000,
        clock: HybridClock((1_795_000_000_001 << 16) | 0x0102),
        region: RegionId(6),
        etag: ETag::Parts(digest(0x20), 3),
        checksum: Some(ObjectChecksum {
            algorithm: ChecksumAlgorithm::Crc64Nvme,
            kind: ChecksumKind::Composite,
            value: vec![0x91, 0x92, 0x93],
            parts: Some(3),
        }),
        attributes: full_attributes(),
        expires_ms: Some(1_800_000_000_000),
        encryption: Some(EncryptionEnvelope {
            key_name: "master".into(),
            wrapped_key: vec![0x81, 0x82],
            scheme: 4,
        }),
        retention: Some(Retention {
            until_ms: 1_900_000_000_000,
            governance: true,
            legal_hold: false,
        }),
    }
}

fn full_attributes() -> Attributes {
    let text = |text: &str| Some(text.to_owned());
    Attributes {
        content_type: text("image/jpeg"),
        cache_control: text("no-cache"),
        content_disposition: text("inline"),
        content_encoding: text("gzip"),
        content_language: text("de"),
        expires: text("0"),
        website_redirect: text("/x"),
        storage_class: text("STANDARD"),
        user: vec![("name".into(), "tom".into())],
        tags: vec![("colour".into(), "red".into()), ("k".into(), String::new())],
    }
}

/// All of S3's algorithms, in the order of their numbers.
pub fn algorithms() -> Vec<ChecksumAlgorithm> {
    use ChecksumAlgorithm::{Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
    vec![Crc32, Crc32c, Crc64Nvme, Sha1, Sha256]
}

pub fn bare_version() -> VersionRow {
    let body = Body::Inline(Bytes::from_static(b"hello"));
    VersionRow { op: op_id(), metax: bare_metax(), body }
}

pub fn full_version() -> VersionRow {
    VersionRow { op: op_id(), metax: full_metax(), body: Body::Chunk(chunk()) }
}

pub fn part() -> PartRow {
    PartRow { op: op_id(), metax: bare_metax(), body: stream_body() }
}

fn stream_body() -> Body {
    Body::Stream { stream: stream(), chunks: 3, chunk_bytes: 8 * 1024 * 1024 }
}

fn parts() -> Vec<PartRef> {
    vec![PartRef { number: 1, len: 5 * 1024 * 1024 }, PartRef { number: 10_000, len: 7 }]
}

pub fn high_water_row() -> HighWaterRow {
    HighWaterRow { op: op_id(), marks: vec![(LvId(7), 300), (LvId(1000), 4_194_304)] }
}

pub fn snapshot_row() -> SnapshotRow {
    SnapshotRow { at: op_id(), is_whole: true }
}

fn memory() -> SessionMemory {
    let clock = HybridClock::at_ms(1_795_000_000_000);
    let remembered = Remembered { op: op_id(), clock, revoked: true };
    SessionMemory {
        session: SessionId(0xF1F2_F3F4_F5F6_F7F8),
        floor: 5,
        requests: vec![(9, remembered)],
    }
}

pub fn upload_row() -> UploadRow {
    UploadRow {
        upload: upload(),
        key: key(),
        clock: HybridClock::at_ms(1_795_000_000_000),
        attributes: Attributes { content_type: Some("a/b".into()), ..Attributes::default() },
        checksum: Some((ChecksumAlgorithm::Sha256, ChecksumKind::FullObject)),
    }
}

pub fn live_bucket() -> BucketRecord {
    BucketRecord {
        id: BucketId(300),
        name: BucketName::new("photos").unwrap(),
        epoch: Epoch(1),
        state: BucketState::Live,
        created_ms: 1_795_000_000_000,
        location: None,
        write_policy: WritePolicy::All,
        regions: 1,
        home: None,
        sharing: Sharing::All,
        cors: None,
    }
}

pub fn deleting_bucket() -> BucketRecord {
    let (epoch, state) = (Epoch(2), BucketState::Deleting);
    BucketRecord { epoch, state, location: Some("eu-north-1".into()), ..live_bucket() }
}

pub fn lax_bucket() -> BucketRecord {
    let (location, write_policy) = (Some("eu-north-1".into()), WritePolicy::AtLeast(2));
    BucketRecord { location, write_policy, ..live_bucket() }
}

pub fn regional_bucket() -> BucketRecord {
    BucketRecord { regions: 2, ..lax_bucket() }
}

pub fn local_buckets() -> [BucketRecord; 3] {
    let [nowhere, ..] = homed_buckets();
    [
        BucketRecord { sharing: Sharing::Local, ..regional_bucket() },
        BucketRecord { sharing: Sharing::Opening, ..nowhere },
        BucketRecord { sharing: Sharing::Renewing, ..live_bucket() },
    ]
}

pub fn homed_buckets() -> [BucketRecord; 6] {
    let term = HomeTerm { count: 300, of: RegionId(2) };
    let of = |state, scope| {
        let home = Some(Home { term, scope, state });
        BucketRecord { home, ..live_bucket() }
    };
    [
        of(HomeState::Nowhere, HomeScope::Conditions),
        of(HomeState::Elsewhere, HomeScope::Writes),
        of(HomeState::Claimed(true), HomeScope::Conditions),
        of(HomeState::Coming(RegionId(3)), HomeScope::Conditions),
        of(HomeState::Given, HomeScope::Conditions),
        of(HomeState::Here, HomeScope::Conditions),
    ]
}

fn put(target: Target, metax: Metax, body: Body) -> Op {
    Op::Put(Box::new(put_of(target, metax, body)))
}

fn put_of(target: Target, metax: Metax, body: Body) -> Put {
    Put { request: request(), bucket: BucketId(300), key: key(), target, metax, body }
}

pub fn pieces() -> PiecesId {
    PiecesId { pg: PgId(201), op: OpId { view: View(4), seq: OpSeq(131) } }
}

pub fn piece() -> PieceRow {
    let Metax { etag, checksum, .. } = full_metax();
    PieceRow { op: op_id(), start: 70_001, body: stream_body(), etag, checksum }
}

pub fn appended_version() -> VersionRow {
    let body = Body::Pieces { pieces: pieces(), rows: 300 };
    VersionRow { op: op_id(), metax: bare_metax(), body }
}

fn append(onto: Option<OpId>, body: Body, attributes: Option<Box<Attributes>>) -> Op {
    Op::Append(Box::new(appended(onto, body, attributes)))
}

fn appended(onto: Option<OpId>, body: Body, attributes: Option<Box<Attributes>>) -> Append {
    let Metax { size, etag, checksum, clock, .. } = full_metax();
    Append {
        request: request(),
        bucket: BucketId(300),
        key: key(),
        onto,
        made: Appended { offset: 129, size, etag, checksum },
        clock,
        body,
        attributes,
    }
}

fn grow(body: Body, is_remote: bool) -> Op {
    let Metax { etag, checksum, .. } = full_metax();
    let (attributes, origin) =
        (is_remote.then(|| Box::new(full_attributes())), is_remote.then(origin));
    let append = appended(Some(op_id()), body, attributes);
    Op::Grow(Box::new(Grow { append, at: stamp(), origin, etag, checksum }))
}

fn coalesce(body: Body) -> Op {
    let pieces = PiecesId { pg: PgId(5), op: op_id() };
    let (request, bucket, key) = (request(), BucketId(300), key());
    let (start, end, count) = (129, 70_000, 300);
    Op::Coalesce(Box::new(Coalesce { request, bucket, key, pieces, start, end, count, body }))
}

/// Every op, by the name of its golden bytes.
pub fn ops() -> Vec<(&'static str, Op)> {
    let (request, bucket, key) = (request(), BucketId(300), key());
    let clock = HybridClock::at_ms(1_795_000_000_000);
    let put_at = OpSeq(70_000);
    vec![
        (
            "view start",
            Op::ViewStart { members: vec![ServerId(0), ServerId(200)], boot: BootId(0xD1D2_D3D4) },
        ),
        (
            "put, inline",
            put(Target::Version, bare_metax(), Body::Inline(Bytes::from_static(b"hello"))),
        ),
        (
            "put, one chunk, everything set",
            put(Target::Version, full_metax(), Body::Chunk(chunk())),
        ),
        ("put, stream", put(Target::Version, bare_metax(), stream_body())),
        (
            "put, chunk of a stream",
            put(Target::Chunk { stream: stream(), number: 2 }, bare_metax(), Body::Chunk(chunk())),
        ),
        (
            "put, part",
            put(Target::Part { upload: upload(), number: 300 }, bare_metax(), stream_body()),
        ),
        (
            "put, parts",
            put(Target::Version, full_metax(), Body::Parts { upload: upload(), parts: parts() }),
        ),
        (
            "put, two copies are enough",
            Op::PutEnough {
                put: Box::new(put_of(Target::Version, bare_metax(), Body::Chunk(chunk()))),
                required_copies: 2,
            },
        ),
        ("regrant", Op::Regrant { put: put_at, body: Body::Chunk(chunk()) }),
        (
            "outcome, committed",
            Op::Outcome {
                put: put_at,
                outcome: Outcome::Committed { attempt: 2, holders: Holders(0b101) },
            },
        ),
        ("outcome, revoked", Op::Outcome { put: put_at, outcome: Outcome::Revoked }),
        ("delete", Op::Delete { request, bucket, key: key.clone(), clock }),
        ("create upload", Op::CreateUpload { request, bucket, row: Box::new(upload_row()) }),
        (
            "complete upload",
            Op::CompleteUpload {
                request,
                bucket,
                key: key.clone(),
                upload: upload(),
                metax: Box::new(full_metax()),
                parts: parts(),
            },
        ),
        (
            "holders",
            Op::Holders {
                changes: vec![HoldersChange {
                    row: rows::chunk(BucketId(300), stream(), 2).into(),
                    grant: chunk().grant,
                    gained: Holders(0b100),
                    lost: Holders(0b1),
                }],
            },
        ),
        ("snapshot begins", Op::SnapshotBegin),
        ("snapshot, a session", Op::SnapshotSession(memory())),
        ("snapshot ends", Op::SnapshotEnd { superseded: vec![OpSeq(7), OpSeq(300)] }),
        ("abort upload", Op::AbortUpload { request, bucket, key: key.clone(), upload: upload() }),
        (
            "set tags",
            Op::SetTags {
                request,
                bucket,
                key: key.clone(),
                tags: vec![("colour".into(), "red".into())],
            },
        ),
        ("drop stream", Op::DropStream { bucket, stream: stream() }),
        ("digest", Op::Digest),
        (
            "moved",
            Op::Moved {
                moves: vec![ChunkMove {
                    row: rows::chunk(BucketId(300), stream(), 2).into(),
                    grant: chunk().grant,
                    lv: LvId(17),
                    extents: vec![
                        Extent { first: 3, blocks: 300 },
                        Extent { first: 70_000, blocks: 1 },
                    ],
                    holders: Holders(0b101),
                }],
            },
        ),
        ("append, stream", append(Some(op_id()), stream_body(), None)),
        (
            "append, inline, that makes the object",
            append(
                None,
                Body::Inline(Bytes::from_static(b"hello")),
                Some(Box::new(full_attributes())),
            ),
        ),
        ("told, one chunk", Op::RemoteChange(Box::new(remote_put()))),
        (
            "purge",
            Op::Purge(Box::new(Purge {
                request,
                bucket,
                key: key.clone(),
                at: stamp(),
                origin: None,
            })),
        ),
        (
            "purge, of another region",
            Op::Purge(Box::new(Purge {
                request,
                bucket,
                key: key.clone(),
                at: stamp(),
                origin: Some(origin()),
            })),
        ),
        (
            "amend",
            Op::Amend(Box::new(Amend {
                request,
                bucket,
                key: key.clone(),
                put_at: stamp(),
                tags: full_attributes().tags,
                amended: amendments(),
            })),
        ),
        (
            "noted",
            Op::Noted(Box::new(Noted {
                request,
                passed: vec![passed()],
                forgotten: Some((OpSeq(300), OpSeq(70_000))),
            })),
        ),
        (
            "freed",
            Op::Freed(Box::new(Freed {
                request,
                tombstones: vec![FreedTombstone { bucket, key: key.clone(), at: stamp() }],
            })),
        ),
        ("renew", Op::Renew(Box::new(Renew { request, bucket, key, was: op_id(), at: stamp() }))),
        ("grow", grow(Body::Inline(Bytes::from_static(b"abc")), false)),
        ("grow, told", grow(stream_body(), true)),
        ("reap", Op::Reap { rows_max: 300 }),
        ("coalesce, inline", coalesce(Body::Inline(Bytes::from_static(b"abc")))),
        ("coalesce, stream", coalesce(stream_body())),
    ]
}

fn remote_put() -> RemotePut {
    let mut metax = full_metax();
    (metax.clock, metax.region) = (stamp().clock, stamp().region);
    let (request, bucket, key) = (request(), BucketId(300), key());
    let put =
        Put { request, bucket, key, target: Target::Version, metax, body: Body::Chunk(chunk()) };
    RemotePut { put, required_copies: 2, origin: origin(), parts: parts(), amended: amendments() }
}

pub fn passed() -> Passed {
    Passed { region: RegionId(260), pg: PgId(301), through: OpSeq(70_001) }
}

pub fn journal_row() -> JournalRow {
    JournalRow {
        bucket: BucketId(300),
        key: key(),
        at: stamp(),
        origin: origin(),
        is_purged: true,
        bytes: 70_002,
        print: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
    }
}

pub fn reaping() -> Reaping {
    Reaping { op: op_id(), rows_max: 300 }
}

pub fn garbage() -> Garbage {
    Garbage { op: op_id(), through: vec![1, 2, 3, 4] }
}

pub fn clock_floor() -> ClockFloor {
    ClockFloor { op: op_id(), clock: stamp().clock }
}

pub fn journal_head() -> JournalHead {
    JournalHead { op: op_id(), forgotten: OpSeq(300) }
}

pub fn stamp() -> Stamp {
    Stamp { clock: HybridClock((1_795_000_000_002 << 16) | 0x0103), region: RegionId(259) }
}

fn origin() -> Origin {
    Origin { region: RegionId(260), pg: PgId(301), op: OpId { view: View(5), seq: OpSeq(140) } }
}

/// In the slot of its stamp, with all that may be said of a version.
pub fn object_entry() -> VersionEntry {
    let row = appended_version();
    let (put_at, origin) = (stamp(), Some(origin()));
    let object =
        ObjectEntry { row, put_at, is_null: true, origin, parts: parts(), amended: amendments() };
    VersionEntry::Object(Box::new(object))
}

fn amendments() -> Amendments {
    let set = |counter| Stamp { clock: HybridClock(stamp().clock.0 + counter), ..stamp() };
    Amendments {
        tags_at: Some(set(1)),
        legal_hold: Some((true, set(2))),
        governance: Some((1_900_000_000_001, set(3))),
        compliance_until_ms: 1_900_000_000_002,
    }
}

pub fn marker_entry() -> VersionEntry {
    let (at, origin) = (stamp(), Some(origin()));
    VersionEntry::Marker(MarkerEntry { op: op_id(), at, is_null: false, origin })
}

pub fn tombstone() -> Tombstone {
    Tombstone { op: op_id(), at: stamp(), origin: Some(origin()) }
}

pub fn piece_entry() -> PieceEntry {
    let (etag, checksum) = (ETag::Md5(digest(0x30)), bare_metax().checksum);
    PieceEntry { row: piece(), at: stamp(), etag, checksum, origin: Some(origin()) }
}

pub fn cors_buckets() -> [BucketRecord; 2] {
    let rule = CorsRule {
        id: None,
        methods: vec![CorsMethod::Get],
        origins: vec!["*".into()],
        headers: Vec::new(),
        exposed: Vec::new(),
        max_age_s: None,
    };
    let full = CorsRule {
        id: Some("uploads".into()),
        methods: ["GET", "PUT", "POST", "DELETE", "HEAD"].map(|it| it.parse().unwrap()).into(),
        origins: vec!["https://*.example.org".into(), "null".into()],
        headers: vec!["x-amz-*".into()],
        exposed: vec!["ETag".into(), "x-amz-request-id".into()],
        max_age_s: Some(600),
    };
    let cors = |rules| Some(CorsRules::new(rules).unwrap());
    let [local, ..] = local_buckets();
    [
        BucketRecord { cors: cors(vec![rule.clone()]), ..live_bucket() },
        BucketRecord { cors: cors(vec![full, rule]), ..local },
    ]
}
