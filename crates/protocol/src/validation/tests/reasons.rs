//! Each check by the frame that it alone refuses: the same frame is sound once that one thing is put right.

use larder_types::{
    Append, Appended, BootId, ChecksumAlgorithm, ChecksumKind, ChunkMove, DiskId, HoldersChange,
    MapVersion, PiecesId, PvId, RegionId, Remembered, ServerId, SessionMemory, Stamp, UploadId,
};

use super::*;
use crate::lv::{Replica, ReplicaState};

const PG: PgId = PgId(0);
const BUCKET: BucketId = BucketId(1);
/// Where the ops of these tests stand.
const HERE: OpId = OpId { view: View(3), seq: OpSeq(9) };
const SESSION: SessionId = SessionId(1);
const STREAM: StreamId = StreamId { session: SESSION, number: 2 };

/// The reason of a refusal; nothing, if there is none.
fn why(judged: Validated) -> &'static str {
    judged.map_or_else(|InvalidMessage(reason)| reason, |()| "")
}

fn why_op(op: &Op) -> &'static str {
    why(check_op(PG, HERE, op))
}

fn key_of(name: &str) -> ObjectKey {
    ObjectKey::new(name).unwrap()
}

fn upload(of: PgId, op: OpId) -> UploadId {
    UploadId { pg: of, op }
}

fn metax(size: u64) -> Metax {
    Metax::new(size, HybridClock(7), ETag::Md5([1; 16]))
}

fn bytes(len: usize) -> Body {
    Body::Inline(Bytes::from(vec![7; len]))
}

fn chunk(op: OpId, blocks: u32) -> Chunk {
    Chunk {
        grant: Grant { pg: PG, op, attempt: 0 },
        seed: 0,
        lv: LvId(0),
        extents: vec![Extent { first: 7, blocks }],
        len: 2 * BLOCK_BYTES,
        sums: vec![0; 1],
        holders: Holders::default(),
    }
}

fn put_of(target: Target, body: Body, size: u64) -> Put {
    let key = key_of("k");
    Put { request: REQUEST, bucket: BUCKET, key, target, metax: metax(size), body }
}

fn op_of(target: Target, body: Body, size: u64) -> Op {
    Op::Put(Box::new(put_of(target, body, size)))
}

fn part(number: u16, len: u64) -> PartRef {
    PartRef { number, len }
}

#[test]
fn parts_are_numbered_follow_each_other_and_add_up() {
    let judge = |parts: &[PartRef], size| {
        let op = Op::CompleteUpload {
            request: REQUEST,
            bucket: BUCKET,
            key: key_of("k"),
            upload: upload(PG, id(3, 2)),
            metax: Box::new(metax(size)),
            parts: parts.to_vec(),
        };
        let call = Call::CompleteUpload {
            request: REQUEST,
            bucket: BUCKET,
            epoch: Epoch(1),
            key: key_of("k"),
            upload: upload(PG, id(3, 2)),
            description: Box::new(description(size)),
            parts: parts.iter().map(|part| (*part, id(3, 5))).collect(),
            condition: Condition::default(),
        };
        let of_call = why(check_call(&call));
        assert_eq!(why_op(&op), of_call, "{parts:?}");
        of_call
    };
    let order = "parts are not in the order of their numbers";
    let sum = "parts are not as long as their object";
    assert_eq!(judge(&[part(1, 3), part(PART_NUMBER_MAX, 4)], 7), "");
    assert_eq!(judge(&[part(2, 3), part(1, 4)], 7), order);
    assert_eq!(judge(&[part(1, 3), part(1, 4)], 7), order);
    assert_eq!(judge(&[part(0, 3)], 3), order);
    assert_eq!(judge(&[part(PART_NUMBER_MAX + 1, 3)], 3), order);
    assert_eq!(judge(&[part(1, u64::MAX), part(2, 1)], 0), "parts are too long");
    assert_eq!(judge(&[], 0), "an upload has no part");
    assert_eq!(judge(&[part(1, 3)], 4), sum);
    assert_eq!(judge(&[part(1, OBJECT_BYTES_MAX + 1)], OBJECT_BYTES_MAX + 1), sum);
}

#[test]
fn a_part_has_a_number_and_an_earlier_upload_of_the_group() {
    let judge = |number, upload| why_op(&op_of(Target::Part { upload, number }, bytes(3), 3));
    let earlier = upload(PG, id(3, 8));
    assert_eq!(judge(1, earlier), "");
    assert_eq!(judge(0, earlier), "there is no part of this number");
    assert_eq!(judge(PART_NUMBER_MAX + 1, earlier), "there is no part of this number");
    let other = "an upload is of another group or a later op";
    assert_eq!(judge(1, upload(PG, HERE)), other);
    assert_eq!(judge(1, upload(PgId(1), id(3, 8))), other);
    let abort = |upload| {
        let key = key_of("k");
        why_op(&Op::AbortUpload { request: REQUEST, bucket: BUCKET, key, upload })
    };
    assert_eq!((abort(earlier), abort(upload(PG, HERE))), ("", other));
}

#[test]
fn an_upload_has_the_id_of_its_op() {
    let judge = |id| {
        let (upload, key, attributes) = (upload(PG, id), key_of("k"), Attributes::default());
        let row = UploadRow { upload, key, clock: HybridClock(7), attributes, checksum: None };
        why_op(&Op::CreateUpload { request: REQUEST, bucket: BUCKET, row: Box::new(row) })
    };
    assert_eq!((judge(HERE), judge(id(3, 8))), ("", "an upload has another op's id"));
}

#[test]
fn what_describes_an_object_fits_an_op() {
    let long = || "x".repeat(OP_DESCRIPTION_BYTES_MAX / 2);
    let judge = |attributes: Attributes| {
        let key = key_of("k");
        let put = put_of(Target::Version, bytes(3), 3);
        let metax = Metax { attributes: attributes.clone(), ..put.metax.clone() };
        let of_op = why_op(&Op::Put(Box::new(Put { metax, ..put })));
        let call = Call::CreateUpload {
            request: REQUEST,
            bucket: BUCKET,
            epoch: Epoch(1),
            key,
            attributes,
            checksum: None,
        };
        assert_eq!(why(check_call(&call)), of_op);
        of_op
    };
    let pair = |name: String| vec![(name, "y".to_owned())];
    let text = |cache_control| Attributes { cache_control, ..Attributes::default() };
    assert_eq!(judge(text(Some(long()))), "");
    assert_eq!(judge(text(Some(long() + "x"))), TOO_LONG);
    assert_eq!(judge(Attributes { user: pair(long()), ..Attributes::default() }), TOO_LONG);
    assert_eq!(judge(Attributes { tags: pair(long()), ..Attributes::default() }), TOO_LONG);
    let tags =
        Op::SetTags { request: REQUEST, bucket: BUCKET, key: key_of("k"), tags: pair(long()) };
    assert_eq!(why_op(&tags), TOO_LONG);
    let summed = |len| {
        let checksum = Some(ObjectChecksum {
            algorithm: ChecksumAlgorithm::Sha256,
            kind: ChecksumKind::FullObject,
            value: vec![0; len],
            parts: None,
        });
        let put = put_of(Target::Version, bytes(3), 3);
        let metax = Metax { checksum, ..put.metax.clone() };
        why_op(&Op::Put(Box::new(Put { metax, ..put })))
    };
    assert_eq!(summed(32), "");
    assert_eq!(summed(OP_DESCRIPTION_BYTES_MAX / 2 + 1), "a checksum is too long");
}

#[test]
fn a_chunk_lies_in_runs_that_are_some_and_apart() {
    let judge = |runs: &[(u32, u32)]| {
        let extents = runs.iter().map(|&(first, blocks)| Extent { first, blocks }).collect();
        why(check_chunk(&Chunk { extents, ..chunk(HERE, 2) }))
    };
    assert_eq!(judge(&[(9, 1), (4, 1)]), "");
    for none in [&[(4, 2), (9, 0)][..], &[(4, 2), (5, 1)], &[(u32::MAX, 2)]] {
        assert_eq!(judge(none), "an extent is none", "{none:?}");
    }
    assert_eq!(judge(&[(4, 1)]), "a chunk has too few blocks");
    assert_eq!(judge(&[]), "a chunk has too few blocks");
}

#[test]
fn a_puts_data_is_its_own_and_lies_where_puts_lie() {
    let size = u64::from(2 * BLOCK_BYTES);
    let with = |chunk| op_of(Target::Version, Body::Chunk(chunk), size);
    assert_eq!(why_op(&with(chunk(HERE, 2))), "");
    let others = "a put's data has another put's grant";
    assert_eq!(why_op(&with(chunk(id(3, 8), 2))), others);
    let grant = Grant { pg: PG, op: HERE, attempt: 1 };
    assert_eq!(why_op(&with(Chunk { grant, ..chunk(HERE, 2) })), others);
    let pieces = Body::Pieces { pieces: PiecesId { pg: PG, op: id(3, 8) }, rows: 1 };
    let parts = Body::Parts { upload: upload(PG, id(3, 8)), parts: vec![part(1, 3)] };
    for body in [pieces, parts] {
        assert_eq!(why_op(&op_of(Target::Version, body, 3)), "a put lies where no put does");
    }
    let enough = |body, size| {
        let put = Box::new(put_of(Target::Version, body, size));
        why_op(&Op::PutEnough { put, required_copies: 1 })
    };
    assert_eq!(enough(Body::Chunk(chunk(HERE, 2)), size), "");
    assert_eq!(enough(bytes(3), 3), "a put without data waits for copies");
}

#[test]
fn an_append_extends_an_earlier_version_in_rows() {
    let judge = |onto, (offset, size), body| {
        let made = Appended { offset, size, etag: ETag::Md5([1; 16]), checksum: None };
        let (bucket, key, clock) = (BUCKET, key_of("k"), HybridClock(7));
        let append =
            Append { request: REQUEST, bucket, key, onto, made, clock, body, attributes: None };
        why_op(&Op::Append(Box::new(append)))
    };
    assert_eq!(judge(Some(id(3, 8)), (4, 7), bytes(3)), "");
    assert_eq!(judge(None, (0, 3), bytes(3)), "");
    assert_eq!(judge(Some(HERE), (4, 7), bytes(3)), "an append goes on a later op");
    for made in [(4, 4), (4, 3)] {
        assert_eq!(judge(None, made, bytes(0)), "an append has no bytes", "{made:?}");
    }
    let large = OBJECT_BYTES_MAX + 1;
    assert_eq!(judge(None, (large - 3, large), bytes(3)), "an object is too long");
    let nowhere = judge(None, (0, u64::from(2 * BLOCK_BYTES)), Body::Chunk(chunk(HERE, 2)));
    assert_eq!(nowhere, "an append lies where no append does");
}

#[test]
fn what_no_release_gives_a_place_is_refused() {
    let start = |members: u32| {
        let members = (0..members).map(ServerId).collect();
        why_op(&Op::ViewStart { members, boot: BootId(1) })
    };
    let most = PG_MEMBERS_MAX as u32;
    assert_eq!((start(most), start(most + 1)), ("", "a view has too many members"));
    let outcome = |attempt| {
        let outcome = Outcome::Committed { attempt, holders: Holders(1) };
        why_op(&Op::Outcome { put: OpSeq(8), outcome })
    };
    assert_eq!((outcome(0), outcome(1)), ("", "an outcome is of an attempt that there was not"));
    let regrant = Op::Regrant { put: OpSeq(8), body: Body::Chunk(chunk(HERE, 2)) };
    assert_eq!(why_op(&regrant), "a second attempt at a put: no release issues one");
}

#[test]
fn rows_of_ops_have_keys_and_chunks_move_somewhere() {
    let no_key = "a row's key is empty or too long";
    let holders = |len| {
        let grant = Grant { pg: PG, op: id(3, 8), attempt: 0 };
        let (row, gained, lost) = (vec![b'V'; len].into(), Holders(1), Holders(0));
        why_op(&Op::Holders { changes: vec![HoldersChange { row, grant, gained, lost }] })
    };
    assert_eq!(holders(ROW_KEY_BYTES_MAX), "");
    assert_eq!((holders(0), holders(ROW_KEY_BYTES_MAX + 1)), (no_key, no_key));
    let moved = |len, runs: &[(u32, u32)]| {
        let extents = runs.iter().map(|&(first, blocks)| Extent { first, blocks }).collect();
        let grant = Grant { pg: PG, op: id(3, 8), attempt: 0 };
        let (row, lv, holders) = (vec![b'V'; len].into(), LvId(0), Holders(1));
        why_op(&Op::Moved { moves: vec![ChunkMove { row, grant, lv, extents, holders }] })
    };
    assert_eq!((moved(9, &[(4, 1)]), moved(0, &[(4, 1)])), ("", no_key));
    for nowhere in [&[][..], &[(4, 0)], &[(u32::MAX, 2)]] {
        assert_eq!(moved(9, nowhere), "a chunk moves nowhere", "{nowhere:?}");
    }
    let settle = |from: Vec<u8>, to| why(check_call(&Call::Settle(RowSpan { from, to })));
    assert_eq!((settle(vec![1], Some(vec![2])), settle(vec![], None)), ("", no_key));
    assert_eq!(settle(vec![1], Some(vec![])), no_key);
}

fn header() -> SnapshotHeader {
    SnapshotHeader { at: HERE, clock: HybridClock(7), open: vec![], sessions: vec![] }
}

fn why_header(view: u64, header: SnapshotHeader) -> &'static str {
    why(check_message(&PeerMessage::Snapshot { view: View(view), header: Arc::new(header) }))
}

#[test]
fn a_snapshot_is_of_its_view_and_has_open_puts_with_data() {
    assert_eq!(why_header(3, header()), "");
    assert_eq!(why_header(2, header()), "a snapshot is of a later view");
    let open = |op| {
        let entry = LogEntry { id: id(3, 8), op: Arc::new(op) };
        let open = vec![OpenEntry { entry, superseded: false }];
        why_header(3, SnapshotHeader { open, ..header() })
    };
    let data = Body::Chunk(chunk(id(3, 8), 2));
    assert_eq!(open(op_of(Target::Version, data, u64::from(2 * BLOCK_BYTES))), "");
    let no_data = "an open put has no data";
    assert_eq!(open(op_of(Target::Version, bytes(3), 3)), no_data);
    assert_eq!(open(Op::Digest), no_data);
}

#[test]
fn a_snapshots_sessions_are_of_its_time() {
    let with = |requests: Vec<(u64, Remembered)>| {
        let sessions = vec![SessionMemory { session: SESSION, floor: 0, requests }];
        why_header(3, SnapshotHeader { sessions, ..header() })
    };
    let known = |op| Remembered { op, clock: HybridClock(7), revoked: false };
    let many = |count: usize| (0..count as u64).map(|number| (number, known(HERE))).collect();
    assert_eq!(with(many(REPEATS_MAX)), "");
    assert_eq!(with(many(REPEATS_MAX + 1)), "a session has too many requests");
    for later in [id(3, 10), id(4, 9)] {
        assert_eq!(with(vec![(1, known(later))]), "a request became a later op", "{later:?}");
    }
}

fn why_row(row: Vec<u8>, value: Vec<u8>) -> &'static str {
    let piece = Piece { rows: vec![(row, value)], is_last: true };
    why(check_piece((PG, 1), HERE, None, &piece))
}

#[test]
fn rows_of_a_snapshot_can_be_read_and_name_what_there_is() {
    let unread = "a row cannot be read";
    let of_chunk = |chunk: &Chunk| why_row(rows::chunk(BUCKET, STREAM, 0), encode(chunk));
    assert_eq!(of_chunk(&chunk(id(3, 8), 2)), "");
    assert_eq!(of_chunk(&chunk(id(3, 8), 1)), "a chunk has too few blocks");
    let version = rows::version(BUCKET, &key_of("k"), rows::UNVERSIONED);
    let of_version = |op, body, size| {
        why_row(version.clone(), encode(&VersionRow { op, metax: metax(size), body }))
    };
    let pieces = |rows| Body::Pieces { pieces: PiecesId { pg: PG, op: id(3, 8) }, rows };
    assert_eq!(of_version(id(3, 8), pieces(1), 3), "");
    assert_eq!(of_version(id(3, 8), pieces(0), 3), "an object has no pieces");
    assert_eq!(of_version(id(3, 8), pieces(1), 0), "an object has no pieces");
    assert_eq!(of_version(id(3, 8), pieces(PIECES_MAX), 3), "");
    let many = "an object has too many pieces";
    assert_eq!(of_version(id(3, 8), pieces(PIECES_MAX + 1), 3), many);
    let parts = Body::Parts { upload: upload(PG, id(3, 8)), parts: vec![] };
    assert_eq!(of_version(HERE, parts, 0), "an upload has no part");
    assert_eq!(why_row(version, vec![1, 2, 3]), unread);
    assert_eq!(why_row(vec![b'V', 1], vec![]), unread);
    assert_eq!(why_row(vec![], vec![]), "a row's key is empty or too long");
    let long = vec![0; ROW_VALUE_BYTES_MAX + 1];
    assert_eq!(why_row(rows::chunk(BUCKET, STREAM, 0), long), "a row is too long for the index");
}

#[test]
fn tombstones_of_a_snapshot_have_their_slot_and_believable_clocks() {
    let at = |clock| Stamp { clock, region: RegionId(2) };
    let row = |slot| rows::tombstone(BUCKET, &key_of("k"), slot);
    let of = |slot, op, clock| {
        why_row(row(slot), encode(&Tombstone { op, at: at(clock), origin: None }))
    };
    let purged = |clock| VersionSlot::At(at(clock));
    assert_eq!(of(purged(HybridClock(6)), id(3, 8), HybridClock(7)), "");
    assert_eq!(of(rows::UNVERSIONED, id(3, 8), CLOCK_MAX), "");
    let ahead = "a clock is thousands of years ahead";
    let beyond = HybridClock(CLOCK_MAX.0 + 1);
    assert_eq!(of(rows::UNVERSIONED, id(3, 8), beyond), ahead);
    assert_eq!(of(purged(beyond), id(3, 8), HybridClock(7)), ahead);
    let later = "a row is of a later op than its snapshot";
    assert_eq!(of(rows::UNVERSIONED, id(3, 10), HybridClock(7)), later);
    let mut other = row(rows::UNVERSIONED);
    other.push(0xFF);
    let tombstone = Tombstone { op: id(3, 8), at: at(HybridClock(7)), origin: None };
    assert_eq!(why_row(other, encode(&tombstone)), "a row has no such form");
}

#[test]
fn rows_of_a_snapshot_are_of_no_later_op() {
    let later = "a row is of a later op than its snapshot";
    let of = upload(PG, id(3, 8));
    let of_part = |op| {
        let part = PartRow { op, metax: metax(3), body: bytes(3) };
        why_row(rows::part(BUCKET, of, 1), encode(&part))
    };
    let of_upload = |op| {
        let (upload, key, attributes) = (upload(PG, op), key_of("k"), Attributes::default());
        let row = rows::upload(BUCKET, &key, upload);
        let clock = HybridClock(7);
        why_row(row, encode(&UploadRow { upload, key, clock, attributes, checksum: None }))
    };
    let of_piece = |op, start, end| {
        let etag = ETag::Md5([1; 16]);
        let piece = PieceRow { op, start, body: bytes(3), etag, checksum: None };
        let pieces = PiecesId { pg: PG, op: id(3, 8) };
        why_row(rows::piece(BUCKET, pieces, end), encode(&piece))
    };
    for op in [id(3, 10), id(4, 9)] {
        assert_eq!((of_part(op), of_upload(op), of_piece(op, 4, 7)), (later, later, later));
    }
    assert_eq!((of_part(HERE), of_upload(HERE), of_piece(HERE, 4, 7)), ("", "", ""));
    assert_eq!(of_piece(HERE, 8, 7), "a piece ends before it begins");
    assert_eq!(of_piece(HERE, 4, 8), "what lies inline is not as long as its object");
}

#[test]
fn an_op_fits_the_log_whatever_came_with_it() {
    let long = op_of(Target::Version, bytes(OP_BYTES_MAX), OP_BYTES_MAX as u64);
    let short = Op::Digest;
    let judge = |op: &Op| why(check_lengths([op, &short].into_iter(), 2 * OP_BYTES_MAX));
    assert_eq!((judge(&long), judge(&short)), ("an op is too long for the log", ""));
}

#[test]
fn a_volume_has_no_more_replicas_than_holders_can_name() {
    let state = ReplicaState::Current;
    let (server, boot, disk, pv) = (ServerId(1), BootId(1), DiskId(1), PvId(1));
    let judge = |count| {
        let replicas = vec![Replica { server, boot, disk, pv, state }; count];
        let (lv, as_of) = (LvId(0), MapVersion(1));
        why(check_lv(&LvInfo { lv, blocks: 100, copies: 3, replicas, as_of }, None))
    };
    let many = "a volume has too many replicas";
    assert_eq!((judge(REPLICAS_MAX), judge(REPLICAS_MAX + 1)), ("", many));
}
