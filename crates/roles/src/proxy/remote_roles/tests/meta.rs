//! Meta servers that share one index, in which each answers for the PGs that it leads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use larder_net::{Handler, PeerIdentity, Responder};
use larder_protocol::manager::state::MapVersion;
use larder_protocol::placement::pg_of;
use larder_protocol::{Answer, AppendDone, Call, Content, Description, PutCall, Refusal};
use larder_types::codec::{decode, encode};
use larder_types::{
    Appended, Attributes, Body, BucketId, Chunk, ETag, Extent, Grant, Holders, HybridClock, LvId,
    Metax, ObjectKey, OpId, OpSeq, PartRow, PgId, PieceRow, PiecesId, ServerId, SessionId, Target,
    UploadId, UploadRow, VersionRow, View, rows,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::managers::{FakeManagers, PGS};
use crate::wire::{MetaCall, MetaMessage, MetaReply, MetaService, Rows};

/// The state that all meta servers know.
#[derive(Default)]
pub(super) struct Index {
    rows: BTreeMap<Vec<u8>, (PgId, Vec<u8>)>,
    /// Puts with a grant and without an outcome.
    open: BTreeMap<OpSeq, (PutCall, Chunk)>,
    /// Answers, by request.
    answered: BTreeMap<(SessionId, u64), Answer>,
    seq: u64,
    block: u32,
    /// The map by which is granted.
    pub(super) as_of: MapVersion,
    abandoned: BTreeSet<OpSeq>,
    /// Scans that were answered, by server.
    pub(super) scans: BTreeMap<ServerId, u32>,
}

/// The state of the meta servers, and what the test may have them do.
pub(super) struct World {
    pub(super) managers: Arc<FakeManagers>,
    pub(super) index: Mutex<Index>,
    /// Await is not answered in this view, and nobody there remembers a request.
    pub(super) forgetful: Mutex<Option<View>>,
    /// True if the next put is not answered.
    pub(super) holds_put: Mutex<bool>,
    held: Mutex<Vec<Responder<MetaService>>>,
    /// Counts the calls that were refused because another leads, and those that are not answered.
    pub(super) refused: watch::Sender<u32>,
    pub(super) holding: watch::Sender<u32>,
    /// The number below which all requests are finished, and those that are not, as told last.
    pub(super) finished: watch::Sender<(u64, Vec<u64>)>,
    /// Counts the floors that were told.
    pub(super) floors: watch::Sender<u32>,
    /// Counts puts that were abandoned.
    pub(super) abandoned: watch::Sender<u32>,
    /// True if the next word on a put that is taken back, or given up, is lost on the way.
    pub(super) loses_word: Mutex<bool>,
    /// True if a put that is taken back was rolled forward before, with its first copy.
    pub(super) rolls_forward: Mutex<bool>,
    /// True if each scan is given one row more, and never the last.
    pub(super) drips: Mutex<bool>,
    /// Counts puts of which a replica had no room for a copy that was not needed.
    pub(super) without_room: watch::Sender<u32>,
}

impl World {
    pub(super) fn new(managers: Arc<FakeManagers>) -> Arc<Self> {
        Arc::new(Self {
            managers,
            index: Mutex::default(),
            forgetful: Mutex::default(),
            holds_put: Mutex::default(),
            held: Mutex::default(),
            refused: watch::Sender::new(0),
            holding: watch::Sender::new(0),
            finished: watch::Sender::default(),
            floors: watch::Sender::new(0),
            abandoned: watch::Sender::new(0),
            loses_word: Mutex::default(),
            rolls_forward: Mutex::default(),
            drips: Mutex::default(),
            without_room: watch::Sender::new(0),
        })
    }

    fn leads(&self, server: ServerId, pg: PgId, view: View) -> bool {
        self.managers.leader(pg) == (server, view)
    }

    fn call(&self, pg: PgId, view: View, call: Call) -> Answer {
        let mut index = self.index.lock();
        match call {
            Call::Put(put) => {
                let request = (put.request.session, put.request.number);
                if let Some(answer) = index.answered.get(&request) {
                    return answer.clone();
                }
                if self.managers.epoch(put.bucket) != Some(put.epoch) {
                    return Answer::Refused(Refusal::StaleBucket);
                }
                let current = index.version(put.bucket, &put.key);
                let answer = match put.condition.check(current.as_ref().map(|row| &row.metax)) {
                    Ok(()) => index.put(pg, view, *put),
                    Err(_unmet) => Answer::Refused(Refusal::PreconditionFailed),
                };
                if *self.forgetful.lock() != Some(view) {
                    index.answered.insert(request, answer.clone());
                }
                answer
            }
            Call::Delete { bucket, key, .. } => {
                index.rows.remove(&rows::version(bucket, &key, rows::UNVERSIONED));
                Answer::Done { op: index.next_op(view), clock: HybridClock(1) }
            }
            Call::CreateUpload { bucket, key, attributes, checksum, .. } => {
                let op = index.next_op(view);
                let (upload, clock) = (UploadId { pg, op }, HybridClock(op.seq.0));
                let row = rows::upload(bucket, &key, upload);
                let value = encode(&UploadRow { upload, key, clock, attributes, checksum });
                index.rows.insert(row, (pg, value));
                Answer::Done { op, clock }
            }
            Call::CompleteUpload { bucket, key, upload, description, parts, .. } => {
                let op = index.next_op(view);
                index.rows.remove(&rows::upload(bucket, &key, upload));
                let parts = parts.iter().map(|(part, _)| *part).collect();
                let metax = metax_of(*description, op);
                let value = encode(&VersionRow { op, metax, body: Body::Parts { upload, parts } });
                let row = rows::version(bucket, &key, rows::UNVERSIONED);
                index.rows.insert(row, (pg, value));
                Answer::Done { op, clock: HybridClock(op.seq.0) }
            }
            Call::Append(append) => {
                if self.managers.epoch(append.bucket) != Some(append.epoch) {
                    return Answer::Refused(Refusal::StaleBucket);
                }
                let op = index.next_op(view);
                let Description { size, etag, checksum, .. } = append.description;
                let made = Appended { offset: 0, size, etag, checksum };
                Answer::Appended(Box::new(AppendDone { op, clock: HybridClock(op.seq.0), made }))
            }
            other => unreachable!("no test makes this call: {other:?}"),
        }
    }
}

impl Index {
    /// Puts that were granted and have no outcome.
    pub(super) fn granted(&self) -> usize {
        self.open.len()
    }

    /// Has a version's row say something else of its body.
    pub(super) fn spoil(
        &mut self,
        bucket: BucketId,
        key: &ObjectKey,
        spoil: impl FnOnce(&mut Body),
    ) {
        let row = rows::version(bucket, key, rows::UNVERSIONED);
        let (_, value) = self.rows.get_mut(&row).expect("the object is there");
        let mut version: VersionRow = decode("version row", value).unwrap();
        spoil(&mut version.body);
        *value = encode(&version);
    }

    /// Has an object of one chunk become the piece of one that was appended to.
    pub(super) fn as_a_piece(&mut self, bucket: BucketId, key: &ObjectKey) {
        let row = rows::version(bucket, key, rows::UNVERSIONED);
        let (pg, value) = self.rows.get_mut(&row).expect("the object is there");
        let mut version: VersionRow = decode("version row", value).unwrap();
        let pieces = PiecesId { pg: *pg, op: version.op };
        let piece = rows::piece(bucket, pieces, version.metax.size);
        let was = std::mem::replace(&mut version.body, Body::Pieces { pieces, rows: 1 });
        *value = encode(&version);
        let value = PieceRow::first(VersionRow { body: was, ..version });
        let pg = *pg;
        self.rows.insert(piece, (pg, encode(&value)));
    }

    /// Has the only piece of an object say something else of its body.
    fn change_piece(&mut self, bucket: BucketId, key: &ObjectKey, change: impl FnOnce(&mut Body)) {
        let Some(VersionRow { body: Body::Pieces { pieces, .. }, metax, .. }) =
            self.version(bucket, key)
        else {
            panic!("{key:?} has no pieces");
        };
        let row = rows::piece(bucket, pieces, metax.size);
        let (_, value) = self.rows.get_mut(&row).expect("the piece is there");
        *value = PieceRow::rewrite(value, |body| {
            change(body);
            true
        })
        .unwrap()
        .expect("it was changed");
    }

    /// Has a piece's chunk have other sums than its bytes.
    pub(super) fn spoil_piece(&mut self, bucket: BucketId, key: &ObjectKey) {
        self.change_piece(bucket, key, |body| {
            let Body::Chunk(chunk) = body else { panic!("no chunk: {body:?}") };
            chunk.seed ^= 1;
        });
    }

    /// Has an object's piece lie where another object does.
    pub(super) fn coalesce(&mut self, bucket: BucketId, key: &ObjectKey, other: &ObjectKey) {
        let other = self.version(bucket, other).expect("the object is there");
        self.change_piece(bucket, key, |body| *body = other.body);
    }

    fn next_op(&mut self, view: View) -> OpId {
        self.seq += 1;
        OpId { view, seq: OpSeq(self.seq) }
    }

    fn put(&mut self, pg: PgId, view: View, put: PutCall) -> Answer {
        let op = self.next_op(view);
        let clock = HybridClock(op.seq.0);
        let body = match &put.content {
            Content::Inline(bytes) => Body::Inline(bytes.clone()),
            Content::Stream { stream, chunks, chunk_bytes } => {
                Body::Stream { stream: *stream, chunks: *chunks, chunk_bytes: *chunk_bytes }
            }
            Content::Data { len, seed, sums } => {
                let extents = vec![Extent { first: self.block, blocks: len.div_ceil(4096) }];
                self.block += extents[0].blocks;
                let (lv, grant) = (LvId(pg.0), Grant { pg, op, attempt: 0 });
                let (to, replicas) = (extents.clone(), Holders(0b11));
                let as_of = self.as_of;
                let answer = Answer::Granted { grant, lv, extents: to, replicas, clock, as_of };
                let (seed, len, sums) = (*seed, *len, sums.clone());
                let holders = Holders::default();
                let chunk = Chunk { grant, seed, lv, extents, len, sums, holders };
                let of_another_try = |open: &PutCall| {
                    (&open.key, &open.target) == (&put.key, &put.target)
                        && open.request.number != put.request.number
                };
                assert!(
                    !self.open.values().any(|(open, _)| of_another_try(open)),
                    "the try before may still take effect"
                );
                self.open.insert(op.seq, (put, chunk));
                return answer;
            }
        };
        self.close(pg, op, put, body);
        Answer::Done { op, clock }
    }

    /// The row of a put that is committed.
    fn close(&mut self, pg: PgId, op: OpId, put: PutCall, body: Body) {
        let metax = metax_of(put.description, op);
        let (row, value) = match (put.target, body) {
            (Target::Version, body) => {
                let row = rows::version(put.bucket, &put.key, rows::UNVERSIONED);
                (row, encode(&VersionRow { op, metax, body }))
            }
            (Target::Part { upload, number }, body) => {
                (rows::part(put.bucket, upload, number), encode(&PartRow { op, metax, body }))
            }
            (Target::Chunk { stream, number }, Body::Chunk(chunk)) => {
                (rows::chunk(put.bucket, stream, number), encode(&chunk))
            }
            (Target::Chunk { .. }, body) => unreachable!("a chunk has data: {body:?}"),
        };
        self.rows.insert(row, (pg, value));
    }
}

fn metax_of(description: Description, op: OpId) -> Metax {
    Metax {
        checksum: description.checksum,
        attributes: description.attributes,
        ..Metax::new(description.size, HybridClock(op.seq.0), description.etag)
    }
}

pub(super) struct FakeMeta {
    pub(super) me: ServerId,
    pub(super) world: Arc<World>,
}

impl FakeMeta {
    pub(super) fn answer(&self, call: MetaCall) -> (MetaReply, Bytes) {
        let index = self.world.index.lock();
        let mut payload = Bytes::new();
        let reply = match call {
            MetaCall::Call { pg, view, call } => {
                drop(index);
                MetaReply::Answered(self.world.call(pg, view, call))
            }
            MetaCall::Await { pg, op, .. } => {
                let grant = Grant { pg, op, attempt: 0 };
                MetaReply::Answered(Answer::Persisted { grant })
            }
            MetaCall::Find { bucket, key, .. } => match index.version(bucket, &key) {
                None if self.world.managers.epoch(bucket).is_none() => {
                    MetaReply::Refused(Refusal::StaleBucket)
                }
                found => MetaReply::Found(found.map(Box::new)),
            },
            MetaCall::GetRow { row, .. } => {
                let found = index.rows.get(&row).map(|(_, value)| Bytes::from(value.clone()));
                let is_there = found.is_some();
                payload = found.unwrap_or_default();
                MetaReply::Row(is_there)
            }
            MetaCall::Scan { from, .. } if *self.world.drips.lock() => {
                payload = encode(&Rows::from([(from.clone(), Vec::new())])).into();
                MetaReply::Rows(Some([&from[..], &[0]].concat()))
            }
            MetaCall::Scan { pgs, from, to, count_max, .. } => {
                drop(index);
                let mut index = self.world.index.lock();
                *index.scans.entry(self.me).or_default() += 1;
                let bucket = rows::bucket_of(&from);
                let asked = |pg: PgId| pgs.iter().any(|(asked, _)| *asked == pg);
                let mut found = index
                    .rows
                    .range(from..)
                    .take_while(|(row, _)| to.as_ref().is_none_or(|to| *row < to))
                    .filter(|(_, (pg, _))| asked(*pg));
                let taken: Rows = found
                    .by_ref()
                    .take(count_max as usize)
                    .map(|(row, (_, value))| (row.clone(), value.clone()))
                    .collect();
                let next = found.next().map(|(row, _)| row.clone());
                if taken.is_empty()
                    && bucket.is_some_and(|it| self.world.managers.epoch(it).is_none())
                {
                    return (MetaReply::Refused(Refusal::StaleBucket), payload);
                }
                payload = encode(&taken).into();
                MetaReply::Rows(next)
            }
            MetaCall::Progress
            | MetaCall::Doubts
            | MetaCall::Space
            | MetaCall::Counts
            | MetaCall::Journals { .. }
            | MetaCall::Kept { .. }
            | MetaCall::TellPositions(_)
            | MetaCall::Positions { .. } => unreachable!("no proxy asks"),
        };
        (reply, payload)
    }

    fn leads_all(&self, call: &MetaCall) -> bool {
        let leads = |pg, view| self.world.leads(self.me, pg, view);
        match call {
            MetaCall::Call { pg, view, .. }
            | MetaCall::Await { pg, view, .. }
            | MetaCall::Find { pg, view, .. }
            | MetaCall::GetRow { pg, view, .. }
            | MetaCall::Positions { pg, view, .. } => leads(*pg, *view),
            MetaCall::Scan { pgs, .. } => pgs.iter().all(|(pg, view)| leads(*pg, *view)),
            MetaCall::Progress
            | MetaCall::Doubts
            | MetaCall::Space
            | MetaCall::Counts
            | MetaCall::Journals { .. }
            | MetaCall::Kept { .. }
            | MetaCall::TellPositions(_) => true,
        }
    }
}

impl Index {
    /// Shows an empty object.
    pub(super) fn show(&mut self, bucket: BucketId, key: &ObjectKey) {
        let op = OpId::default();
        let description = Description {
            size: 0,
            etag: ETag::Md5([0; 16]),
            checksum: None,
            attributes: Attributes::default(),
        };
        let metax = metax_of(description, op);
        let value = encode(&VersionRow { op, metax, body: Body::Inline(Bytes::new()) });
        let row = rows::version(bucket, key, rows::UNVERSIONED);
        self.rows.insert(row, (pg_of(bucket, key, PGS), value));
    }

    fn version(&self, bucket: BucketId, key: &ObjectKey) -> Option<VersionRow> {
        let (_, value) = self.rows.get(&rows::version(bucket, key, rows::UNVERSIONED))?;
        Some(decode("version row", value).unwrap())
    }
}

impl Handler<MetaService> for FakeMeta {
    fn request(
        &self,
        _: &PeerIdentity,
        request: MetaCall,
        _: Bytes,
        responder: Responder<MetaService>,
    ) {
        if !self.leads_all(&request) {
            responder.answer(&MetaReply::Refused(Refusal::NotPrimary), Bytes::new());
            self.world.refused.send_modify(|count| *count += 1);
            return;
        }
        let is_held = match &request {
            MetaCall::Await { view, .. } => Some(*view) == *self.world.forgetful.lock(),
            MetaCall::Call { call: Call::Put(_), .. } => {
                std::mem::take(&mut *self.world.holds_put.lock())
            }
            _ => false,
        };
        if is_held {
            if let MetaCall::Call { .. } = &request {
                // It is done, and the caller does not hear of it.
                let _unheard = self.answer(request);
            }
            self.world.held.lock().push(responder);
            self.world.holding.send_modify(|count| *count += 1);
            return;
        }
        let (reply, payload) = self.answer(request);
        responder.answer(&reply, payload);
    }

    fn message(&self, _: &PeerIdentity, message: MetaMessage, _: Bytes) {
        let mut index = self.world.index.lock();
        match message {
            MetaMessage::Call { call: Call::Abandon { .. } | Call::Withdraw { .. }, .. }
                if std::mem::take(&mut *self.world.loses_word.lock()) => {}
            MetaMessage::Call {
                pg,
                call: Call::Withdraw { op, .. } | Call::Abandon { op, .. },
                ..
            } if *self.world.rolls_forward.lock() => {
                if let Some((put, chunk)) = index.open.remove(&op.seq) {
                    let request = (put.request.session, put.request.number);
                    let done = Answer::Done { op, clock: HybridClock(op.seq.0) };
                    index.answered.insert(request, done);
                    let holders = Holders::default().with(0);
                    index.close(pg, op, put, Body::Chunk(Chunk { holders, ..chunk }));
                }
            }
            MetaMessage::Call { pg, call: Call::Commit { op, holders, .. }, .. } => {
                if let Some((put, chunk)) = index.open.remove(&op.seq) {
                    let body = Body::Chunk(Chunk { holders, ..chunk });
                    index.close(pg, op, put, body);
                }
            }
            MetaMessage::Call {
                call: Call::Abandon { op, .. } | Call::Withdraw { op, .. },
                ..
            } => {
                // It may be said again, until its proxy hears what came of it.
                if index.abandoned.insert(op.seq) {
                    let (put, _) = index.open.remove(&op.seq).expect("it was under way");
                    let refused = Answer::Refused(Refusal::Revoked);
                    index.answered.insert((put.request.session, put.request.number), refused);
                    self.world.abandoned.send_modify(|count| *count += 1);
                }
            }
            MetaMessage::Call { call: Call::NoRoom { op, .. }, .. } => {
                assert!(index.open.contains_key(&op.seq), "said before its outcome");
                self.world.without_room.send_modify(|count| *count += 1);
            }
            MetaMessage::Call { call: Call::Suspect { .. }, .. } => {}
            MetaMessage::Finished { below, open, .. } => {
                self.world.finished.send_replace((below, open));
            }
            MetaMessage::Floor { .. } => self.world.floors.send_modify(|count| *count += 1),
            other => unreachable!("no test says this: {other:?}"),
        }
    }
}
