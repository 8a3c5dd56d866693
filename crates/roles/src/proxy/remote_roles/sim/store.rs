//! The state that all meta servers of the simulation share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use larder_protocol::manager::state::MapVersion;
use larder_protocol::{Answer, Call, Content, Description, PutCall, Refusal};
use larder_types::codec::{decode, encode};
use larder_types::{
    Body, BucketId, Chunk, Epoch, Extent, Grant, Holders, HybridClock, LvId, Metax, ObjectKey,
    OpId, OpSeq, PgId, RegionId, Request, SessionId, Target, VersionRow, View, rows,
};
use tokio::time::Instant;

use super::meta::Sessions;
use crate::wire::Rows;

/// A put with a grant and without an outcome.
pub(super) struct Open {
    pub(super) pg: PgId,
    pub(super) op: OpId,
    pub(super) put: PutCall,
    pub(super) chunk: Chunk,
    /// The row that it makes.
    pub(super) row: Vec<u8>,
    granted: Answer,
    is_persisted: bool,
    is_resolving: bool,
    since: Instant,
    finished_since: Option<Instant>,
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, put, is_persisted, is_resolving, .. } = self;
        write!(f, "put {:?} of {:?}", put.request, op)?;
        write!(f, " (persisted {is_persisted}, resolving {is_resolving})")
    }
}

/// See the module's head.
#[derive(Default)]
pub(super) struct Store {
    rows: BTreeMap<Vec<u8>, (PgId, Vec<u8>)>,
    /// The last op of each row, also of those that are gone.
    last: BTreeMap<Vec<u8>, OpSeq>,
    open: BTreeMap<OpSeq, Open>,
    answered: BTreeMap<(SessionId, u64), Answer>,
    /// The outcomes of ops with grants.
    ended: BTreeMap<OpId, Answer>,
    seq: u64,
    block: u32,
    sessions: Sessions,
    /// Times that each entity tag came to be that of a version.
    effects: BTreeMap<String, u32>,
}

fn of(request: &Request) -> (SessionId, u64) {
    (request.session, request.number)
}

impl Store {
    pub(super) fn open(&self) -> impl Iterator<Item = &Open> {
        self.open.values()
    }

    pub(super) fn latest(&self) -> OpSeq {
        OpSeq(self.seq)
    }

    pub(super) fn observe(&mut self, session: SessionId) {
        self.sessions.observe(session);
    }

    pub(super) fn finished_below(&mut self, session: SessionId, floor: u64) {
        self.sessions.finished_below(session, floor);
    }

    pub(super) fn finished(&mut self, session: SessionId, below: u64, open: Vec<u64>) {
        self.sessions.finished(session, below, open);
    }

    /// Puts that took effect more than once.
    pub(super) fn twice(&self) -> Vec<&String> {
        self.effects.iter().filter(|(_, count)| **count > 1).map(|(etag, _)| etag).collect()
    }

    pub(super) fn row(&self, row: &[u8]) -> Option<Bytes> {
        self.rows.get(row).map(|(_, value)| value.clone().into())
    }

    pub(super) fn version(&self, bucket: BucketId, key: &ObjectKey) -> Option<VersionRow> {
        let (_, value) = self.rows.get(&rows::version(bucket, key, rows::UNVERSIONED))?;
        Some(decode("version row", value).expect("it was encoded here"))
    }

    pub(super) fn scan(
        &self,
        pgs: &BTreeSet<PgId>,
        from: Vec<u8>,
        to: Option<Vec<u8>>,
        count: usize,
    ) -> (Rows, Option<Vec<u8>>) {
        let mut found = self
            .rows
            .range(from..)
            .take_while(|(row, _)| to.as_ref().is_none_or(|to| *row < to))
            .filter(|(_, (pg, _))| pgs.contains(pg));
        let taken =
            found.by_ref().take(count).map(|(row, (_, value))| (row.clone(), value.clone()));
        let taken = taken.collect();
        (taken, found.next().map(|(row, _)| row.clone()))
    }

    fn next_op(&mut self, view: View) -> OpId {
        self.seq += 1;
        OpId { view, seq: OpSeq(self.seq) }
    }

    /// The reason why a request is not begun, or what became of it.
    fn known(&self, request: &Request, (said, epoch): (Epoch, Option<Epoch>)) -> Option<Answer> {
        if let Some(answer) = self.answered.get(&of(request)) {
            return Some(answer.clone());
        }
        if self.sessions.is_finished(request.session, request.number) {
            return Some(Answer::Refused(Refusal::Finished));
        }
        (epoch != Some(said)).then_some(Answer::Refused(Refusal::StaleBucket))
    }

    /// Executes a call that needs no data, as one that is durable.
    pub(super) fn execute(
        &mut self,
        pg: PgId,
        view: View,
        call: Call,
        epoch_of: impl Fn(BucketId) -> Option<Epoch>,
    ) -> Answer {
        match call {
            Call::Put(put) => {
                let PutCall { request, bucket, epoch, key, condition, .. } = &*put;
                if let Some(answer) = self.known(request, (*epoch, epoch_of(*bucket))) {
                    return answer;
                }
                let current = self.version(*bucket, key);
                if condition.check(current.as_ref().map(|row| &row.metax)).is_err() {
                    return Answer::Refused(Refusal::PreconditionFailed);
                }
                let op = self.next_op(view);
                let Content::Inline(bytes) = put.content else { panic!("no stream is put") };
                let row = row_of(put.bucket, &put.key);
                self.show(pg, op, row, (put.description, Body::Inline(bytes)));
                self.done(&put.request, op)
            }
            Call::Delete { request, bucket, epoch, key, .. } => {
                if let Some(answer) = self.known(&request, (epoch, epoch_of(bucket))) {
                    return answer;
                }
                let (op, row) = (self.next_op(view), row_of(bucket, &key));
                self.rows.remove(&row);
                self.last.insert(row, op.seq);
                self.done(&request, op)
            }
            other => unreachable!("no client has this asked: {other:?}"),
        }
    }

    fn done(&mut self, request: &Request, op: OpId) -> Answer {
        let answer = Answer::Done { op, clock: HybridClock(op.seq.0) };
        self.answered.insert(of(request), answer.clone());
        answer
    }

    /// Shows a version, unless a later op was shown before.
    fn show(&mut self, pg: PgId, op: OpId, row: Vec<u8>, (said, body): (Description, Body)) {
        *self.effects.entry(said.etag.text()).or_default() += 1;
        if self.last.get(&row).is_some_and(|last| *last > op.seq) {
            return;
        }
        let metax = metax_of(said, op);
        self.last.insert(row.clone(), op.seq);
        self.rows.insert(row, (pg, encode(&VersionRow { op, metax, body })));
    }

    /// Grants a put its place, or says what became of it.
    pub(super) fn grant(
        &mut self,
        (pg, view): (PgId, View),
        put: PutCall,
        epoch: Option<Epoch>,
        (replicas, as_of): (Holders, MapVersion),
    ) -> Answer {
        if let Some(open) = self.open.values().find(|open| open.put.request == put.request) {
            let grant = open.chunk.grant;
            let persisted = Answer::Persisted { grant };
            return if open.is_resolving { persisted } else { open.granted.clone() };
        }
        if let Some(answer) = self.known(&put.request, (put.epoch, epoch)) {
            return answer;
        }
        let current = self.version(put.bucket, &put.key);
        if put.condition.check(current.as_ref().map(|row| &row.metax)).is_err() {
            return Answer::Refused(Refusal::PreconditionFailed);
        }
        if replicas.is_empty() || replicas.count() < usize::from(put.required_copies) {
            return Answer::Refused(Refusal::TooFewCopies);
        }
        let op = self.next_op(view);
        let Content::Data { len, seed, sums } = put.content.clone() else {
            panic!("a put with data has data");
        };
        assert!(matches!(put.target, Target::Version), "no other is put");
        let extents = vec![Extent { first: self.block, blocks: len.div_ceil(4096) }];
        self.block += extents[0].blocks;
        let (lv, grant) = (LvId(pg.0), Grant { pg, op, attempt: 0 });
        let clock = HybridClock(op.seq.0);
        let to = extents.clone();
        let granted = Answer::Granted { grant, lv, extents: to, replicas, clock, as_of };
        let chunk = Chunk { grant, seed, lv, extents, len, sums, holders: Holders::default() };
        let open = Open {
            pg,
            op,
            row: row_of(put.bucket, &put.key),
            put,
            chunk,
            granted: granted.clone(),
            is_persisted: false,
            is_resolving: false,
            since: Instant::now(),
            finished_since: None,
        };
        self.open.insert(op.seq, open);
        granted
    }

    pub(super) fn persist(&mut self, op: OpId) {
        if let Some(open) = self.open.get_mut(&op.seq) {
            open.is_persisted = true;
        }
    }

    /// The answer to a question for METAX: `None` of an op that nobody knows, `Some(None)` as long as it is
    /// not persisted.
    pub(super) fn persisted(&self, op: OpId) -> Option<Option<Answer>> {
        if let Some(answer) = self.ended.get(&op) {
            return Some(Some(answer.clone()));
        }
        let open = self.open.get(&op.seq)?;
        let grant = open.chunk.grant;
        Some(open.is_persisted.then_some(Answer::Persisted { grant }))
    }

    /// The view is over: what is not persisted is gone, or is not.
    pub(super) fn begin_view(&mut self, pg: PgId, is_lost: bool) {
        self.open.retain(|_, open| open.pg != pg || open.is_persisted || !is_lost);
    }

    fn close(&mut self, op: OpId, holders: Holders) {
        let Some(open) = self.open.remove(&op.seq) else { return };
        let chunk = Chunk { holders, ..open.chunk };
        let answer = self.done(&open.put.request, op);
        self.ended.insert(op, answer);
        self.show(open.pg, op, open.row, (open.put.description, Body::Chunk(chunk)));
    }

    /// # Errors
    /// If it says what is not so.
    pub(super) fn commit(
        &mut self,
        op: OpId,
        holders: Holders,
        has: impl Fn(&Open, usize) -> bool,
    ) -> Result<(), &'static str> {
        let Some(open) = self.open.get(&op.seq).filter(|open| !open.is_resolving) else {
            let revoked = Answer::Refused(Refusal::Revoked);
            let was_revoked = self.ended.get(&op) == Some(&revoked);
            return if was_revoked { Err("it was revoked") } else { Ok(()) };
        };
        if !open.is_persisted {
            return Err("METAX is not persisted");
        }
        if (0..3).any(|replica| holders.has(replica) && !has(open, replica)) {
            return Err("a replica that is named has no data");
        }
        let Answer::Granted { replicas, .. } = open.granted else { panic!("it was granted") };
        let required_copies = match open.put.required_copies {
            0 => replicas.count(),
            required_copies => usize::from(required_copies),
        };
        if holders.count() < required_copies {
            return Err("too few replicas have the data");
        }
        self.close(op, holders);
        Ok(())
    }

    /// Revokes a put that has no outcome; the grant that it had.
    pub(super) fn revoke(&mut self, op: OpId) -> Option<Grant> {
        let open = self.open.get(&op.seq).filter(|open| !open.is_resolving)?;
        let grant = open.chunk.grant;
        self.end_revoked(op);
        Some(grant)
    }

    fn end_revoked(&mut self, op: OpId) {
        let Some(open) = self.open.remove(&op.seq) else { return };
        let revoked = Answer::Refused(Refusal::Revoked);
        self.answered.insert(of(&open.put.request), revoked.clone());
        self.ended.insert(op, revoked);
    }

    /// Puts that nobody ends any more; from now on they are being resolved.
    pub(super) fn abandoned_since(&mut self, finished: Duration, silent: Duration) -> Vec<Grant> {
        let (now, mut due) = (Instant::now(), Vec::new());
        for open in self.open.values_mut().filter(|open| !open.is_resolving && open.is_persisted) {
            let request = open.put.request;
            let received = self.sessions.silent_since(request.session);
            let is_silent = now - received.unwrap_or(open.since).max(open.since) > silent;
            let is_finished = self.sessions.is_finished(request.session, request.number);
            let since = is_finished.then(|| *open.finished_since.get_or_insert(now));
            if is_silent || since.is_some_and(|since| now - since >= finished) {
                open.is_resolving = true;
                due.push(open.chunk.grant);
            }
        }
        due
    }

    /// It was looked which replicas have the data.
    pub(super) fn resolved(&mut self, op: OpId, has: &[bool]) {
        let holders = has.iter().enumerate().filter(|(_, has)| **has);
        let holders = holders.fold(Holders::default(), |all, (replica, _)| all.with(replica));
        if holders.is_empty() { self.end_revoked(op) } else { self.close(op, holders) }
    }
}

fn row_of(bucket: BucketId, key: &ObjectKey) -> Vec<u8> {
    rows::version(bucket, key, rows::UNVERSIONED)
}

fn metax_of(description: Description, op: OpId) -> Metax {
    Metax {
        size: description.size,
        etag: description.etag,
        checksum: description.checksum,
        attributes: description.attributes,
        clock: HybridClock(op.seq.0),
        region: RegionId(0),
        expires_ms: None,
        encryption: None,
        retention: None,
    }
}
