//! Draws what hostile servers send: mostly as a release would, with a number or two out of all bounds, so that much of
//! it gets past the door.

use std::sync::Arc;

use bytes::Bytes;
use larder_protocol::digest::{IndexSum, Summed, TableSum};
use larder_protocol::pg::{OpenEntry, Piece, Report, SnapshotHeader};
use larder_protocol::{
    AppendCall, Call, CoalesceCall, CoalesceRequest, Content, DataAnswer, Description, LogEntry,
    PeerMessage, Pg, PutCall,
};
use larder_types::codec::encode;
use larder_types::{
    Append, Appended, Attributes, Body, BootId, Chunk, ChunkMove, Coalesce, Condition, ETag,
    Extent, Grant, Holders, HoldersChange, HybridClock, LvId, Metax, ObjectKey, Op, OpId, OpSeq,
    Outcome, PartRef, PgId, PieceRow, PiecesId, Put, Remembered, Request, ServerId, SessionId,
    SessionMemory, StreamId, Target, UploadId, UploadRow, VersionRow, View, rows,
};

use crate::support::{BLOCK, BUCKET, EPOCH, LV, PG, name_of};

/// Numbers from a seed: splitmix64.
pub struct Draw {
    state: u64,
    /// One number in this many is out of bounds.
    odd_in: u64,
}

impl Draw {
    pub fn new(seed: u64) -> Self {
        let mut draw = Self { state: seed, odd_in: 1 };
        draw.odd_in = [1_000_000, 200, 40, 12][draw.below(4) as usize];
        draw
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    pub(super) fn odd(&mut self) -> bool {
        let of = self.odd_in;
        self.one_in(of)
    }

    /// The usual number, or one that breaks arithmetic.
    pub fn num(&mut self, usual: u64) -> u64 {
        if !self.odd() {
            return usual;
        }
        let extremes = [
            0,
            1,
            usual.wrapping_add(1),
            usual.wrapping_sub(1),
            u64::from(u16::MAX),
            u64::from(u32::MAX),
            u64::from(u32::MAX) + 1,
            1 << 62,
            (1 << 62) + 1,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
        ];
        let at = self.below(extremes.len() as u64 + 1) as usize;
        extremes.get(at).copied().unwrap_or_else(|| self.next())
    }

    fn num32(&mut self, usual: u32) -> u32 {
        self.num(u64::from(usual)) as u32
    }

    fn some<T>(&mut self, of: Vec<T>) -> T {
        let at = self.below(of.len() as u64) as usize;
        of.into_iter().nth(at).expect("one of them")
    }

    pub(super) fn key(&mut self) -> ObjectKey {
        let name = ["a", "b", "c"][self.below(3) as usize];
        name_of(name)
    }

    pub(super) fn request(&mut self) -> Request {
        let session = SessionId(1 + self.below(3));
        let number = self.below(40);
        Request { session, number: self.num(number), floor: self.num(0) }
    }

    fn stream(&mut self) -> StreamId {
        StreamId { session: SessionId(1), number: self.below(3) }
    }

    fn holders(&mut self) -> Holders {
        Holders(self.num(3) as u16)
    }

    pub(super) fn clock(&mut self) -> HybridClock {
        HybridClock(self.num(1 << 40))
    }

    /// An op near the end of what a member has.
    pub(super) fn near(&mut self, pg: &Pg) -> OpId {
        let seqs = vec![pg.last().seq.0, pg.commit().0, pg.applied().seq.0, pg.last().seq.0 + 1, 1];
        let (seq, view) = (self.some(seqs), self.some(vec![pg.view().0, pg.last().view.0, 1]));
        OpId { view: View(self.num(view)), seq: OpSeq(self.num(seq)) }
    }

    fn upload(&mut self, pg: &Pg) -> UploadId {
        UploadId { pg: PgId(self.num32(PG.0)), op: self.near(pg) }
    }

    pub(super) fn checksumless(&mut self) -> Attributes {
        let mut attributes = Attributes::default();
        if self.odd() {
            let len = self.some(vec![10, 1 << 18, 1 << 20]);
            attributes.tags = vec![("t".to_owned(), "v".repeat(len))];
        }
        attributes
    }

    pub(super) fn etag(&mut self) -> ETag {
        if self.one_in(2) { ETag::Md5([1; 16]) } else { ETag::Parts([2; 16], self.num32(2)) }
    }

    fn metax(&mut self, size: u64) -> Metax {
        let metax = Metax::new(self.num(size), self.clock(), self.etag());
        Metax { attributes: self.checksumless(), ..metax }
    }

    fn extents(&mut self, blocks: u32) -> Vec<Extent> {
        let first = self.below(60) as u32;
        let mut all = vec![Extent { first: self.num32(first), blocks: self.num32(blocks) }];
        if self.odd() {
            all.push(Extent { first: self.num32(first), blocks: self.num32(1) });
        }
        all
    }

    fn chunk(&mut self, id: OpId) -> Chunk {
        let blocks = 1 + self.below(20) as u32;
        let len = self.num32(blocks * BLOCK - 7);
        let sums = self.num(u64::from(len.div_ceil(65_536))).min(300) as usize;
        let op = if self.odd() { OpId::default() } else { id };
        Chunk {
            grant: Grant { pg: PgId(self.num32(PG.0)), op, attempt: self.num32(0) },
            seed: 1,
            lv: LvId(self.num32(LV.0)),
            extents: self.extents(blocks),
            len,
            sums: vec![0; sums],
            holders: self.holders(),
        }
    }

    /// A body, and the size of what lies there.
    fn body(&mut self, pg: &Pg, id: OpId) -> (Body, u64) {
        let kinds = if self.odd() { 5 } else { 3 };
        match self.below(kinds) {
            0 => {
                let len = self.num(3).min(4000) as usize;
                (Body::Inline(Bytes::from(vec![7; len])), len as u64)
            }
            1 => {
                let chunk = self.chunk(id);
                let size = u64::from(chunk.len);
                (Body::Chunk(chunk), size)
            }
            2 => {
                let (chunks, chunk_bytes) = (self.num32(2), self.num32(BLOCK));
                let stream = self.stream();
                (Body::Stream { stream, chunks, chunk_bytes }, 2 * u64::from(BLOCK) - 5)
            }
            3 => {
                let (parts, size) = self.parts();
                (Body::Parts { upload: self.upload(pg), parts }, size)
            }
            _ => {
                let pieces = PiecesId { pg: PG, op: self.near(pg) };
                (Body::Pieces { pieces, rows: self.num32(1) }, 5)
            }
        }
    }

    pub(super) fn parts(&mut self) -> (Vec<PartRef>, u64) {
        let count = 1 + self.below(3) as u16;
        let parts: Vec<PartRef> = (1..=count)
            .map(|number| PartRef { number: self.num(u64::from(number)) as u16, len: self.num(9) })
            .collect();
        let size = parts.iter().fold(0_u64, |sum, part| sum.wrapping_add(part.len));
        (parts, size)
    }

    pub(super) fn target(&mut self, pg: &Pg) -> Target {
        match self.below(4) {
            0 => Target::Chunk { stream: self.stream(), number: self.num32(1) },
            1 => Target::Part { upload: self.upload(pg), number: self.num(1) as u16 },
            _ => Target::Version,
        }
    }

    pub(super) fn put(&mut self, pg: &Pg, id: OpId) -> Put {
        let (mut body, mut size) = self.body(pg, id);
        let target = self.target(pg);
        if matches!(target, Target::Chunk { .. }) && !self.odd() {
            let chunk = self.chunk(id);
            size = u64::from(chunk.len);
            body = Body::Chunk(chunk);
        }
        let metax = self.metax(size);
        Put { request: self.request(), bucket: BUCKET, key: self.key(), target, metax, body }
    }

    fn row(&mut self) -> Bytes {
        let key = self.key();
        let row = match self.below(4) {
            0 => rows::chunk(BUCKET, self.stream(), 1),
            1 => rows::applied(PG),
            _ => rows::version(BUCKET, &key, rows::UNVERSIONED),
        };
        row.into()
    }

    /// An op that takes this place.
    pub fn op(&mut self, pg: &Pg, id: OpId) -> Op {
        let (request, bucket, key) = (self.request(), BUCKET, self.key());
        let kinds = if self.odd() { 22 } else { 19 };
        match self.below(kinds) {
            15..=18 => self.draw_remote_op(pg, id),
            0 => {
                let members = vec![ServerId(1); self.num(2).min(100) as usize];
                Op::ViewStart { members, boot: BootId(1) }
            }
            1..=3 => Op::Put(Box::new(self.put(pg, id))),
            4 => Op::PutEnough {
                put: Box::new(self.put(pg, id)),
                required_copies: self.num(1) as u8,
            },
            5 | 6 => {
                let back = 1 + self.below(4);
                let put = OpSeq(self.num(id.seq.0.saturating_sub(back)));
                let outcome = match self.one_in(3) {
                    true => Outcome::Revoked,
                    false => {
                        let (attempt, holders) = (self.num32(0), self.holders());
                        Outcome::Committed { attempt, holders }
                    }
                };
                Op::Outcome { put, outcome }
            }
            7 => Op::Delete { request, bucket, key, clock: self.clock() },
            8 => {
                let op = if self.odd() { self.near(pg) } else { id };
                let (clock, attributes) = (self.clock(), self.checksumless());
                let upload = UploadId { pg: PG, op };
                let row = UploadRow { upload, key, clock, attributes, checksum: None };
                Op::CreateUpload { request, bucket, row: Box::new(row) }
            }
            9 => {
                let ((parts, size), upload) = (self.parts(), self.upload(pg));
                let metax = Box::new(self.metax(size));
                Op::CompleteUpload { request, bucket, key, upload, metax, parts }
            }
            10 => Op::AbortUpload { request, bucket, key, upload: self.upload(pg) },
            11 => Op::SetTags { request, bucket, key, tags: self.checksumless().tags },
            12 => match self.num(0) % 4 {
                3 => self.coalesce(pg),
                0 => Op::DropStream { bucket, stream: self.stream() },
                1 => Op::Reap { rows_max: self.num(0) as u32 },
                _ => Op::Digest,
            },
            13 => self.append(pg, id),
            14 => self.change_of_copies(pg, id),
            19 => Op::Regrant { put: self.near(pg).seq, body: Body::Chunk(self.chunk(id)) },
            20 => Op::SnapshotBegin,
            _ => Op::SnapshotEnd { superseded: vec![self.near(pg).seq] },
        }
    }

    pub(super) fn append(&mut self, pg: &Pg, id: OpId) -> Op {
        let (body, len) = match self.one_in(2) {
            true => (Body::Inline(Bytes::from_static(b"piece")), 5),
            false => self.body(pg, id),
        };
        let (onto, offset) = match self.one_in(2) {
            true => (None, self.num(0)),
            false => (Some(self.near(pg)), self.num(5)),
        };
        let (size, etag) = (self.num(offset.wrapping_add(len)), self.etag());
        let attributes = onto.is_none().then(|| Box::new(self.checksumless()));
        Op::Append(Box::new(Append {
            request: self.request(),
            bucket: BUCKET,
            key: self.key(),
            onto,
            made: Appended { offset, size, etag, checksum: None },
            clock: self.clock(),
            body,
            attributes,
        }))
    }

    fn coalesce(&mut self, pg: &Pg) -> Op {
        let (request, key) = (self.request(), self.key());
        let id = self.near(pg);
        let (body, len) = self.body(pg, id);
        let start = self.num(0);
        let (end, count) = (self.num(start.wrapping_add(len)), self.num32(2));
        let pieces = PiecesId { pg: PG, op: id };
        let coalesce = Coalesce { request, bucket: BUCKET, key, pieces, start, end, count, body };
        Op::Coalesce(Box::new(coalesce))
    }

    fn change_of_copies(&mut self, pg: &Pg, id: OpId) -> Op {
        let grant = Grant { pg: PG, op: self.near(pg), attempt: 0 };
        let row = self.row();
        if self.one_in(2) {
            let (gained, lost) = (self.holders(), self.holders());
            return Op::Holders { changes: vec![HoldersChange { row, grant, gained, lost }] };
        }
        let Chunk { lv, extents, holders, .. } = self.chunk(id);
        Op::Moved { moves: vec![ChunkMove { row, grant, lv, extents, holders }] }
    }

    /// Ops that follow one.
    fn entries(&mut self, pg: &Pg, prev: OpId, view: View) -> Vec<LogEntry> {
        let (mut before, mut all) = (prev, Vec::new());
        for _ in 0..self.below(5) {
            let view = if self.one_in(3) { view } else { before.view.max(View(1)) };
            let seq = self.num(before.seq.0.wrapping_add(1));
            before = OpId { view: View(self.num(view.0)), seq: OpSeq(seq) };
            all.push(LogEntry { id: before, op: Arc::new(self.op(pg, before)) });
        }
        all
    }

    fn header(&mut self, pg: &Pg) -> SnapshotHeader {
        let seq = self.below(30) + 1;
        let at = OpId { view: View(self.num(pg.view().0)), seq: OpSeq(self.num(seq)) };
        let mut open = Vec::new();
        let mut before = OpId { view: View(1), seq: OpSeq(0) };
        for _ in 0..self.below(3) {
            let gap = 1 + self.below(3);
            let id = OpId { view: before.view, seq: OpSeq(before.seq.0.wrapping_add(gap)) };
            let id = if self.odd() { self.near(pg) } else { id };
            let mut put = self.put(pg, id);
            let chunk = self.chunk(id);
            put.metax.size = u64::from(chunk.len);
            put.body = Body::Chunk(chunk);
            let op = if self.odd() { self.op(pg, id) } else { Op::of_put(put, 0) };
            let entry = LogEntry { id, op: Arc::new(op) };
            open.push(OpenEntry { entry, superseded: self.one_in(2) });
            before = id;
        }
        let known = Remembered { op: self.near(pg), clock: self.clock(), revoked: false };
        let known = if self.odd() { known } else { Remembered { op: at, ..known } };
        let (session, floor) = (SessionId(1), self.num(0));
        let requests = vec![(self.num(3), known)];
        let sessions = vec![SessionMemory { session, floor, requests }];
        SnapshotHeader { at, clock: self.clock(), open, sessions }
    }

    fn piece(&mut self, pg: &Pg, at: OpId) -> Piece {
        let mut all = Vec::new();
        for _ in 0..self.below(4) {
            let op = OpId { view: View(1), seq: OpSeq(self.below(at.seq.0.clamp(1, 1 << 20))) };
            let op = if self.odd() { self.near(pg) } else { op };
            let key = self.key();
            let (body, size) = self.body(pg, op);
            let pieces = PiecesId { pg: PG, op };
            let row = match self.below(6) {
                0 => (rows::chunk(BUCKET, self.stream(), self.num32(1)), encode(&self.chunk(op))),
                1 => {
                    let end = self.num(size);
                    let (etag, start) = (self.etag(), self.num(0));
                    let piece = PieceRow { op, start, body, etag, checksum: None };
                    (rows::piece(BUCKET, pieces, end), encode(&piece))
                }
                2 => (rows::open_stream(BUCKET, self.stream()), encode(&PgId(self.num32(PG.0)))),
                _ => {
                    let row = VersionRow { op, metax: self.metax(size), body };
                    (rows::version(BUCKET, &key, rows::UNVERSIONED), encode(&row))
                }
            };
            all.push(row);
        }
        if self.odd() {
            all.push((rows::applied(PG), encode(&self.near(pg))));
        }
        if !self.odd() {
            all.sort();
            all.dedup_by(|one, other| one.0 == other.0);
        }
        Piece { rows: all, is_last: self.one_in(2) }
    }

    /// A message of another member.
    pub fn message(&mut self, pg: &Pg, taking: Option<OpId>) -> PeerMessage {
        let view = View(self.num(pg.view().0));
        let at = taking.unwrap_or_else(|| self.near(pg));
        match self.below(12) {
            0..=3 => {
                let prev = if self.one_in(4) { self.near(pg) } else { pg.last() };
                let entries = self.entries(pg, prev, view);
                let commit = OpSeq(self.num(prev.seq.0.saturating_add(3)));
                PeerMessage::Append { view, prev, entries, commit }
            }
            4 => PeerMessage::Acked { view, through: self.near(pg) },
            5 | 6 => {
                let prev = if self.one_in(4) { self.near(pg) } else { pg.last() };
                let entries = self.entries(pg, prev, view);
                let last = entries.last().map_or(prev, |entry| entry.id);
                let is_whole = !self.one_in(4);
                let last = if self.odd() { self.near(pg) } else { last };
                PeerMessage::Report { view, report: Report { is_whole, last, prev, entries } }
            }
            7 => PeerMessage::Snapshot { view, header: Arc::new(self.header(pg)) },
            8 => {
                let after = self.one_in(2).then(|| self.row().to_vec());
                PeerMessage::SnapshotNext { view, at, after }
            }
            9 => {
                let piece = self.piece(pg, at);
                let after = self.odd().then(|| self.row().to_vec());
                PeerMessage::SnapshotRows { view, at, after, piece }
            }
            10 => PeerMessage::AskDigest { view, at },
            _ => match self.one_in(3) {
                true => PeerMessage::IsOdd { view, at },
                false => {
                    let table = TableSum { table: b'V', rows: self.num(1), hash: [1; 16] };
                    let sum = Summed::Sum(IndexSum { tables: vec![table; 2] });
                    PeerMessage::Digest { view, at, sum }
                }
            },
        }
    }

    pub(super) fn content(&mut self) -> (Content, u64) {
        match self.below(3) {
            0 => {
                let len = self.num(3).min(4000) as usize;
                (Content::Inline(Bytes::from(vec![7; len])), len as u64)
            }
            1 => {
                let len = self.num32(3 * BLOCK);
                let sums = self.num(u64::from(len.div_ceil(65_536))).min(300) as usize;
                (Content::Data { len, seed: 1, sums: vec![0; sums] }, u64::from(len))
            }
            _ => {
                let (chunks, chunk_bytes) = (self.num32(1), self.num32(BLOCK));
                (Content::Stream { stream: self.stream(), chunks, chunk_bytes }, 9)
            }
        }
    }

    /// A call of a proxy.
    pub fn call(&mut self, pg: &Pg) -> Call {
        let (request, bucket, epoch) = (self.request(), BUCKET, EPOCH);
        let (key, condition, op) = (self.key(), Condition::default(), self.near(pg));
        let (content, size) = self.content();
        let description = Description {
            size: self.num(size),
            etag: self.etag(),
            checksum: None,
            attributes: self.checksumless(),
        };
        match self.below(18) {
            16 | 17 => Call::RemoteChange(Box::new(self.remote_change(pg))),
            0..=2 => Call::Put(Box::new(PutCall {
                request,
                bucket,
                epoch,
                key,
                target: self.target(pg),
                description,
                content,
                condition,
                required_copies: self.num(0) as u8,
            })),
            3 | 4 => {
                let offset = self.one_in(2).then(|| self.num(0));
                Call::Append(Box::new(AppendCall {
                    request,
                    bucket,
                    epoch,
                    key,
                    offset,
                    description,
                    content,
                    condition,
                }))
            }
            5 | 6 => Call::Commit { op, attempt: self.num32(0), holders: self.holders() },
            7 => Call::Abandon { op, disk_full: self.one_in(2) },
            8 => Call::Withdraw { op, disk_full: self.one_in(2) },
            9 => Call::NoRoom { op, replicas: self.holders() },
            10 => Call::Delete { request, bucket, epoch, key, condition },
            11 => {
                let attributes = self.checksumless();
                Call::CreateUpload { request, bucket, epoch, key, attributes, checksum: None }
            }
            12 => {
                let ((parts, size), upload) = (self.parts(), self.upload(pg));
                let description = Box::new(Description { size, ..description });
                let parts = parts.into_iter().map(|part| (part, op)).collect();
                Call::CompleteUpload {
                    request,
                    bucket,
                    epoch,
                    key,
                    upload,
                    description,
                    parts,
                    condition,
                }
            }
            13 => Call::AbortUpload { request, bucket, key, upload: self.upload(pg) },
            14 => Call::SetTags { request, bucket, key, tags: self.checksumless().tags },
            _ => match self.below(5) {
                3 => {
                    Call::PlanCoalesce(Box::new(CoalesceRequest { bucket, key, from: self.num(0) }))
                }
                4 => {
                    let (start, end) = (self.num(0), self.num(5));
                    let pieces = PiecesId { pg: PG, op };
                    let window = start..end;
                    let call =
                        CoalesceCall { request, bucket, epoch, key, pieces, window, content };
                    Call::Coalesce(Box::new(call))
                }
                0 => Call::DropStream { bucket, stream: self.stream() },
                1 => Call::Suspect { grant: Grant { pg: PG, op, attempt: 0 }, server: ServerId(0) },
                _ => Call::Read { bucket, key },
            },
        }
    }

    /// A data server's answer.
    pub fn data_answer(&mut self, pg: &Pg) -> DataAnswer {
        let op = self.near(pg);
        let grant = Grant { pg: PG, op, attempt: self.num32(0) };
        match self.below(7) {
            0 | 1 => DataAnswer::Floor(op),
            2 => DataAnswer::Voided(grant),
            3 => DataAnswer::Verified(grant),
            4 => DataAnswer::Mismatch { grant, is_unacknowledged: self.one_in(2) },
            5 => DataAnswer::NotNow(grant),
            _ => DataAnswer::Failed,
        }
    }
}
