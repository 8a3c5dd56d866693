//! One member with an index in memory, a log that is synced when told, and effects to be looked at.

mod counts;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use larder_protocol::index::Visit;
use larder_protocol::manager::state::{MapVersion, ReplicaState};
use larder_protocol::pg::{LedgerWalk, LogGap, Origin, Recovering, Role, read_piece};
use larder_protocol::rebuild::SpaceScan;
use larder_protocol::{
    Answer, Call, Changes, Content, DataAnswer, DataRequest, Description, Effect, Event, EventTime,
    Index, IndexError, LogEntry, LvInfo, Outbox, PeerMessage, Pg, Planted, PutCall, Refusal,
    Replica, Token,
};
use larder_types::codec::decode;
use larder_types::{
    Attributes, BootId, BucketId, Condition, DiskId, ETag, Epoch, Grant, GrantKey, Holders, LvId,
    ObjectKey, OpId, OpSeq, PgId, PvId, RegionId, Request, ServerId, SessionId, SnapshotRow,
    StreamId, Target, VersionRow, View, rows,
};

pub const PG: PgId = PgId(0);
pub const BUCKET: BucketId = BucketId(1);
pub const EPOCH: Epoch = Epoch(1);
pub const LV: LvId = LvId(4);
pub const LV_BLOCKS: u32 = 100;
pub const BLOCK: u32 = 4096;

/// Rows in memory.
#[derive(Default, Clone)]
pub struct Table(RefCell<BTreeMap<Vec<u8>, Bytes>>, pub Cell<RegionId>);

impl Table {
    /// Replaces the value of a row; returns the one before.
    pub fn replace(&self, row: Vec<u8>, value: Bytes) -> Option<Bytes> {
        self.0.borrow_mut().insert(row, value)
    }
}

impl Index for Table {
    fn get(&self, row: &[u8]) -> Result<Option<Bytes>, IndexError> {
        Ok(self.0.borrow().get(row).cloned())
    }

    fn scan(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<(), IndexError> {
        for (row, value) in self.0.borrow().range(from.to_vec()..) {
            if to.is_some_and(|to| &row[..] >= to) || visit(row, value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, changes: Changes) -> Result<(), IndexError> {
        let (rows, positions) = changes.into_parts();
        let positions = positions.into_iter().map(|(row, value)| (row, Some(value)));
        for (row, value) in rows.into_iter().chain(positions) {
            match value {
                Some(value) => self.0.borrow_mut().insert(row, value.into()),
                None => self.0.borrow_mut().remove(&row),
            };
        }
        Ok(())
    }

    fn bucket_epoch(&self, bucket: BucketId) -> Option<Epoch> {
        (bucket == BUCKET).then_some(EPOCH)
    }

    fn is_damaged(&self) -> bool {
        self.0.borrow().values().any(|value| &value[..] == b"rot")
    }

    fn region(&self) -> RegionId {
        self.1.get()
    }
}

/// Returns the state that a member of the PG begins with.
pub fn origin(me: ServerId, applied: OpId, snapshot: Option<SnapshotRow>) -> Origin {
    let planted = Planted::default();
    Origin { pg: PG, pg_count: 1, me, applied, snapshot, high_water: None, planted }
}

/// See the module's head.
pub struct Member {
    pub me: ServerId,
    pub pg: Pg,
    pub table: Table,
    /// Everything appended, with the commit point known then.
    pub log: Vec<(LogEntry, OpSeq)>,
    /// The number of entries of it that are synced.
    pub synced: usize,
    pub effects: Outbox,
    /// By the steady clock.
    pub now_ms: u64,
    /// By the wall clock.
    pub wall_ms: u64,
    /// The index as others are to get it.
    snapshots: BTreeMap<ServerId, (OpId, Table)>,
    /// The snapshot whose rows others send.
    pub taking: Option<OpId>,
    /// Snapshots that were begun.
    pub snapshots_begun: usize,
    next_token: u64,
    next_number: u64,
}

impl Member {
    /// A new member that no view has told anything.
    pub fn new(me: u32) -> Self {
        let me = ServerId(me);
        Self {
            me,
            pg: Recovering::new(origin(me, OpId::default(), None))
                .finish()
                .expect("nothing to fit"),
            table: Table::default(),
            log: Vec::new(),
            synced: 0,
            effects: Vec::new(),
            now_ms: 1000,
            wall_ms: 1000,
            snapshots: BTreeMap::new(),
            taking: None,
            snapshots_begun: 0,
            next_token: 1,
            next_number: 1,
        }
    }

    /// The only member, serving in view 1 from one LV of so many replicas.
    pub fn alone(replicas: usize) -> Self {
        Self::alone_in(info(replicas))
    }

    /// The same, in this LV.
    pub fn alone_in(lv: LvInfo) -> Self {
        let replicas = lv.replicas.len();
        let mut member = Self::new(1);
        member.begin(1, &[1]);
        member.serve_in(lv);
        for replica in 0..replicas {
            member.answer(replica, DataAnswer::Floor(key(1, 0)));
        }
        member.effects.clear();
        member
    }

    pub fn now(&self) -> EventTime {
        EventTime { steady_ms: self.now_ms, wall_ms: self.wall_ms }
    }

    pub fn step(&mut self, event: Event) {
        self.pg.step(self.now(), event, &self.table, &mut self.effects);
        self.keep_log();
    }

    fn keep_log(&mut self) {
        let commit = self.pg.commit();
        let (log, effects) = (&mut self.log, std::mem::take(&mut self.effects));
        for effect in effects {
            match effect {
                Effect::Append(entry) => log.push((entry, commit)),
                effect => self.effects.push(effect),
            }
        }
    }

    pub fn begin(&mut self, view: u64, members: &[u32]) {
        let members = members.iter().map(|member| ServerId(*member)).collect();
        self.step(Event::NewView { view: View(view), members, boot: BootId(9) });
    }

    /// Syncs the log and tells the machine.
    pub fn sync(&mut self) {
        self.synced = self.log.len();
        if let Some((last, _)) = self.log.last() {
            let id = last.id;
            self.step(Event::Durable(id));
        }
    }

    pub fn apply(&mut self) {
        while self.pg.apply(self.now(), &self.table, &mut self.effects) > 0 {
            self.check_counts();
        }
        self.keep_log();
    }

    /// Syncs and applies until nothing is left.
    pub fn settle(&mut self) {
        while self.synced < self.log.len() {
            self.sync();
            self.apply();
        }
        self.apply();
    }

    /// Derives space from the rows and serves.
    pub fn serve(&mut self, replicas: usize) {
        self.serve_in(info(replicas));
    }

    fn serve_in(&mut self, lv: LvInfo) {
        self.settle();
        assert_eq!(self.pg.role(), Role::Active);
        let mut scan = SpaceScan::new(std::iter::once(lv));
        self.table
            .scan_prefix(b"", &mut |row, value| {
                scan.note(row, value).expect("a readable row");
                ControlFlow::Continue(())
            })
            .expect("a scan");
        self.pg.open_chunks().for_each(|chunk| scan.claim(chunk));
        let derived = scan.finish();
        assert_eq!(derived.faults, [], "no block is used twice");
        self.pg.adopt_space(derived.space, &mut self.effects);
        self.keep_log();
    }

    /// Serves above the marks; a walk over the rows is begun.
    pub fn serve_early(&mut self, replicas: usize) -> LedgerWalk {
        self.settle();
        let mut walk = LedgerWalk::new(1);
        walk.add(&mut self.pg);
        let lvs = std::iter::once(info(replicas));
        self.pg.adopt_early(lvs, &mut self.effects).expect("open puts that do not overlap");
        self.keep_log();
        let view = self.pg.view().0;
        (0..replicas).for_each(|replica| self.answer(replica, DataAnswer::Floor(key(view, 0))));
        walk
    }

    /// Reads so many rows for the ledger; returns whether all are read.
    pub fn read_rows(&mut self, walk: &mut LedgerWalk, count: usize) -> bool {
        walk.shows(PG, self.pg.applied());
        let (mut until, mut read) = (None, 0);
        let from = walk.from().to_vec();
        self.table
            .scan(&from, None, &mut |row, value| {
                if LedgerWalk::is_behind_all(row) {
                    return ControlFlow::Break(());
                }
                if read == count {
                    until = Some(row.to_vec());
                    return ControlFlow::Break(());
                }
                read += 1;
                walk.note(row, value).expect("a readable row");
                ControlFlow::Continue(())
            })
            .expect("a scan");
        walk.end_stretch(&mut self.pg, until.as_deref());
        let is_last = until.is_none();
        until.into_iter().for_each(|until| walk.go_on(until));
        is_last
    }

    /// Takes what the rows leave free.
    pub fn complete(&mut self) {
        while self.pg.complete_space(self.now(), &self.table, &mut self.effects) {}
        self.keep_log();
    }

    /// The process and its machine start again: only what was synced is left of the log.
    pub fn restart(self) -> Self {
        self.try_restart().expect("a log that fits")
    }

    /// As [`Member::restart`], with a log that may not fit the index.
    pub fn try_restart(self) -> Result<Self, LogGap> {
        let stored = |row: Vec<u8>| self.table.get(&row).expect("a row");
        let applied = stored(rows::applied(PG))
            .map(|row| decode("applied position", &row).expect("a position"));
        let snapshot = stored(rows::snapshot(PG))
            .map(|row| decode("snapshot row", &row).expect("a snapshot row"));
        let high_water =
            stored(rows::high_water(PG)).map(|row| decode("marks row", &row).expect("marks"));
        let origin = origin(self.me, applied.unwrap_or_default(), snapshot);
        let mut recovering = Recovering::new(Origin { high_water, ..origin });
        let mut log = self.log;
        log.truncate(self.synced);
        for (entry, commit) in &log {
            recovering.replay(entry.id, (*entry.op).clone(), *commit);
        }
        Ok(Self {
            pg: recovering.finish()?,
            synced: log.len(),
            log,
            effects: Vec::new(),
            me: self.me,
            table: self.table,
            now_ms: self.now_ms,
            wall_ms: self.wall_ms,
            snapshots: BTreeMap::new(),
            taking: None,
            snapshots_begun: 0,
            next_token: self.next_token,
            // A proxy in the same process begins another session; numbers may go on.
            next_number: self.next_number,
        })
    }

    pub fn call(&mut self, call: Call) -> Token {
        let token = Token(self.next_token);
        self.next_token += 1;
        self.step(Event::Call { token, call });
        token
    }

    pub fn request(&mut self) -> Request {
        self.next_number += 1;
        Request { session: SessionId(1), number: self.next_number, floor: 0 }
    }

    pub fn put_inline(&mut self, name: &str, text: &str) -> Token {
        let request = self.request();
        let content = Content::Inline(Bytes::copy_from_slice(text.as_bytes()));
        self.call(put(request, name, content, Condition::default()))
    }

    /// Puts an object as another proxy.
    pub fn request_of(&mut self, session: SessionId, name: &str) -> Token {
        let request = Request { session, ..self.request() };
        let content = Content::Inline(Bytes::from_static(b"x"));
        self.call(put(request, name, content, Condition::default()))
    }

    pub fn put_data(&mut self, name: &str, blocks: u32) -> Token {
        let request = self.request();
        self.call(put(request, name, data(blocks), Condition::default()))
    }

    /// Puts a version, or what becomes part of one, of so many bytes.
    pub fn put_as(&mut self, name: &str, target: Target, size: u64, content: Content) -> Token {
        let request = self.request();
        let mut call = put_call(request, name, content);
        (call.target, call.description.size) = (target, size);
        self.call(Call::Put(Box::new(call)))
    }

    /// A put of data that was granted.
    pub fn open_put(&mut self, name: &str, blocks: u32) -> Grant {
        let put = self.put_data(name, blocks);
        self.granted(put)
    }

    /// A put of which METAX is durable and no outcome is known.
    pub fn pending_put(&mut self, name: &str, blocks: u32) -> Grant {
        let grant = self.open_put(name, blocks);
        self.sync();
        grant
    }

    /// A chunk of a stream that was granted.
    pub fn open_chunk(
        &mut self,
        name: &str,
        (stream, number): (StreamId, u32),
        blocks: u32,
    ) -> Grant {
        let (target, size) = (Target::Chunk { stream, number }, u64::from(blocks * BLOCK));
        let put = self.put_as(name, target, size, data(blocks));
        self.granted(put)
    }

    pub fn delete(&mut self, name: &str) -> Token {
        let request = self.request();
        let condition = Condition::default();
        self.call(Call::Delete {
            request,
            bucket: BUCKET,
            epoch: EPOCH,
            key: name_of(name),
            condition,
        })
    }

    pub fn read(&mut self, name: &str) -> Token {
        self.call(Call::Read { bucket: BUCKET, key: name_of(name) })
    }

    pub fn commit(&mut self, grant: Grant, replicas: usize) {
        let holders = (0..replicas).fold(Holders::default(), Holders::with);
        self.call(Call::Commit { op: grant.op, attempt: grant.attempt, holders });
    }

    /// A data server answers.
    pub fn answer(&mut self, replica: usize, answer: DataAnswer) {
        self.step(Event::Data { lv: LV, replica, answer });
    }

    /// Answers to a call since the last look.
    pub fn answers(&mut self, wanted: Token) -> Vec<Answer> {
        let mut answers = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::Reply { token, answer } if *token == wanted => {
                answers.push(answer.clone());
                false
            }
            _ => true,
        });
        answers
    }

    /// Returns true if a call was done since the last look, and nothing else answered it.
    pub fn is_done(&mut self, token: Token) -> bool {
        matches!(self.answers(token)[..], [Answer::Done { .. }])
    }

    /// The grant that answered a call, and nothing else has.
    pub fn granted(&mut self, token: Token) -> Grant {
        match &self.answers(token)[..] {
            [Answer::Granted { grant, .. }] => *grant,
            other => panic!("not just a grant: {other:?}"),
        }
    }

    pub fn refusal(&mut self, token: Token) -> Refusal {
        match &self.answers(token)[..] {
            [Answer::Refused(refusal)] => *refusal,
            other => panic!("not just a refusal: {other:?}"),
        }
    }

    /// Requests to data servers since the last look.
    pub fn requests(&mut self) -> Vec<(usize, DataRequest)> {
        let mut requests = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::Data { replica, request, .. } => {
                requests.push((*replica, request.clone()));
                false
            }
            _ => true,
        });
        requests
    }

    /// Messages to other members since the last look.
    pub fn messages(&mut self) -> Vec<(ServerId, PeerMessage)> {
        let mut messages = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::Send { to, message } => {
                messages.push((*to, message.clone()));
                false
            }
            _ => true,
        });
        messages
    }

    /// Keeps and reads snapshots for others, as a driver does.
    pub fn serve_snapshots(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Snapshot { to, at } => {
                    self.snapshots_begun += 1;
                    self.snapshots.insert(to, (at, self.table.clone()));
                }
                Effect::SnapshotOver { to } => {
                    self.snapshots.remove(&to);
                }
                Effect::SnapshotRows { to, at, after } => {
                    let (of, table) = &self.snapshots[&to];
                    assert_eq!(*of, at, "the snapshot that was begun last");
                    let scan = |from: &[u8], visit: &mut Visit<'_>| table.scan(from, None, visit);
                    let piece =
                        read_piece(&scan, (PG, 1), after.as_deref()).expect("readable rows");
                    let message =
                        PeerMessage::SnapshotRows { view: self.pg.view(), at, after, piece };
                    self.effects.push(Effect::Send { to, message });
                }
                effect => self.effects.push(effect),
            }
        }
    }

    /// Makes the index durable, as far as that was asked for.
    pub fn flush(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::FlushIndex(flush) => self.step(Event::IndexFlushed(flush)),
                effect => self.effects.push(effect),
            }
        }
    }

    /// Learners that are said to have everything.
    pub fn caught_up(&mut self) -> Vec<ServerId> {
        let mut learners = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::CaughtUp { learner, .. } => {
                learners.push(*learner);
                false
            }
            _ => true,
        });
        learners
    }

    /// Returns the version of a key that the index shows.
    pub fn row(&self, name: &str) -> Option<VersionRow> {
        let row = rows::version(BUCKET, &name_of(name), rows::UNVERSIONED);
        let value = self.table.get(&row).expect("a row")?;
        Some(VersionRow::read(&value).expect("a version"))
    }

    /// Stores an object of some blocks and has it in the index.
    pub fn store(&mut self, name: &str, blocks: u32, replicas: usize) -> Grant {
        let grant = self.pending_put(name, blocks);
        self.commit(grant, replicas);
        self.settle();
        self.effects.clear();
        grant
    }
}

/// A replica that has other bytes, and does not know whether it once had the right ones.
pub fn mismatch(grant: Grant) -> DataAnswer {
    DataAnswer::Mismatch { grant, is_unacknowledged: false }
}

/// A replica that was never written to under the grant.
pub fn unacknowledged(grant: Grant) -> DataAnswer {
    DataAnswer::Mismatch { grant, is_unacknowledged: true }
}

pub fn info(replicas: usize) -> LvInfo {
    let copies = replicas as u8;
    let replicas = (0..replicas).map(replica).collect();
    LvInfo { lv: LV, blocks: LV_BLOCKS, copies, replicas, as_of: MapVersion(1) }
}

/// A replica that is current, on a server and disk of its own.
pub fn replica(n: usize) -> Replica {
    let (server, disk) = (ServerId(n as u32), DiskId(n as u32));
    Replica { server, boot: BootId(1), disk, pv: PvId(7), state: ReplicaState::Current }
}

pub fn key(view: u64, seq: u64) -> GrantKey {
    OpId { view: View(view), seq: OpSeq(seq) }
}

pub fn name_of(name: &str) -> ObjectKey {
    ObjectKey::new(name).expect("a short name")
}

pub fn data(blocks: u32) -> Content {
    let len = blocks * BLOCK;
    Content::Data { len, seed: 1, sums: vec![0; len.div_ceil(65_536) as usize] }
}

pub fn put(request: Request, name: &str, content: Content, condition: Condition) -> Call {
    Call::Put(Box::new(PutCall { condition, ..put_call(request, name, content) }))
}

fn put_call(request: Request, name: &str, content: Content) -> PutCall {
    PutCall {
        request,
        bucket: BUCKET,
        epoch: EPOCH,
        key: name_of(name),
        target: Target::Version,
        description: Description {
            size: 1,
            etag: ETag::Md5([1; 16]),
            checksum: None,
            attributes: Attributes::default(),
        },
        content,
        condition: Condition::default(),
        required_copies: 0,
    }
}

/// A put whose METAX is durable and whose proxy gives it up; the requests that follow.
pub fn abandoned(replicas: usize) -> (Member, Grant, Vec<(usize, DataRequest)>) {
    let mut member = Member::alone(replicas);
    let grant = member.open_put("k", 2);
    member.settle();
    member.call(Call::Abandon { op: grant.op, disk_full: false });
    let requests = member.requests();
    (member, grant, requests)
}
