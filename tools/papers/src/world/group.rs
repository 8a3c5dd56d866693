//! A placement group: the machine of its primary over an index in memory.
//!
//! # Invariants
//!
//! 1. The machine is the protocol's own. Its other members are left out: it is the only member of each of its views. A
//!    server that leads it next goes on with it.
//! 2. The index has the rows of chunks in the volumes that lose copies, and of no others: those would be passed over.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use larder_protocol::index::Visit;
use larder_protocol::manager::state::LvRecord;
use larder_protocol::pg::{Origin, Recovering, Role, Walk, chunk_at};
use larder_protocol::rebuild::SpaceScan;
use larder_protocol::{
    Changes, Effect, Event, EventTime, Index, IndexError, LvInfo, Outbox, Pg, Planted, Replica,
};
use larder_types::codec::encode;
use larder_types::{
    BlockSums, BootId, BucketId, Chunk, Epoch, Extent, Grant, Holders, LvId, MapVersion, OpId,
    OpSeq, PgId, RegionId, ServerId, SessionId, StreamId, View, rows,
};

use larder_protocol::pg::Refill;

/// The machine's own name: only it is asked.
const ME: ServerId = ServerId(0);
const BUCKET: BucketId = BucketId(1);
/// The view in which all chunks were put; the first one that is simulated comes after it.
pub(crate) const PAST: View = View(1);

/// Rows in memory.
#[derive(Debug, Default)]
struct Rows(RefCell<BTreeMap<Vec<u8>, Bytes>>);

impl Index for Rows {
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
        let (changed, positions) = changes.into_parts();
        let positions = positions.into_iter().map(|(row, value)| (row, Some(value)));
        let mut all = self.0.borrow_mut();
        for (row, value) in changed.into_iter().chain(positions) {
            match value {
                Some(value) => all.insert(row, value.into()),
                None => all.remove(&row),
            };
        }
        Ok(())
    }

    fn bucket_epoch(&self, bucket: BucketId) -> Option<Epoch> {
        (bucket == BUCKET).then_some(Epoch(1))
    }

    fn region(&self) -> RegionId {
        RegionId::OWN
    }
}

/// A placement group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) pg: Pg,
    rows: Rows,
    /// The server that leads it.
    pub(crate) leader: Option<ServerId>,
    /// Volumes as it was told of them last.
    reported: BTreeMap<LvId, LvInfo>,
    /// The last op of its log.
    last: Option<OpId>,
    /// A sync of its log is under way.
    pub(crate) syncs: bool,
    chunks: u64,
}

/// A volume's chunk by its place: which of them it is.
pub(crate) fn number_of(chunk: &Chunk) -> usize {
    let first = chunk.extents.first().map_or(0, |extent| extent.first);
    (first / chunk.extents.first().map_or(1, |extent| extent.blocks)) as usize
}

impl Group {
    pub(crate) fn new(pg: PgId, pg_count: u32, chunks_max: u64) -> Self {
        let applied = OpId { view: PAST, seq: OpSeq(chunks_max + 1) };
        let (snapshot, high_water, planted) = (None, None, Planted::default());
        let origin = Origin { pg, pg_count, me: ME, applied, snapshot, high_water, planted };
        Self {
            pg: Recovering::new(origin).finish().expect("an empty log fits"),
            rows: Rows::default(),
            leader: None,
            reported: BTreeMap::new(),
            last: None,
            syncs: false,
            chunks: 0,
        }
    }

    /// Fills a volume with chunks of so many blocks, of which all replicas have a copy.
    pub(crate) fn fill(&mut self, lv: LvId, replicas: usize, (chunks, blocks): (u32, u32)) {
        let holders = (0..replicas).fold(Holders::default(), Holders::with);
        for number in 0..chunks {
            self.chunks += 1;
            let op = OpId { view: PAST, seq: OpSeq(self.chunks) };
            let chunk = Chunk {
                grant: Grant { pg: self.pg.id(), op, attempt: 0 },
                seed: 1,
                lv,
                extents: vec![Extent { first: number * blocks, blocks }],
                len: blocks * larder_types::limits::BLOCK_BYTES,
                sums: BlockSums::default(),
                holders,
            };
            // Chunks of a volume lie among those of others in the order of rows: it goes by names.
            let stream = StreamId { session: SessionId(1), number: scattered(self.chunks) };
            let value = encode(&chunk).into();
            self.rows.0.borrow_mut().insert(rows::chunk(BUCKET, stream, 0), value);
        }
    }

    /// Steps the machine; what the log and the index have to do is done here, but for syncs.
    pub(crate) fn step(&mut self, now_us: u64, event: Event) -> Outbox {
        let mut out = Outbox::new();
        self.pg.step(now(now_us), event, &self.rows, &mut out);
        self.kept(now_us, out)
    }

    /// The log is synced.
    pub(crate) fn synced(&mut self, now_us: u64) -> Outbox {
        self.syncs = false;
        match self.last.take() {
            Some(last) => self.step(now_us, Event::Durable(last)),
            None => Outbox::new(),
        }
    }

    /// Takes out what goes to the log and the index.
    fn kept(&mut self, now_us: u64, mut out: Outbox) -> Outbox {
        let mut others = Outbox::new();
        while !out.is_empty() {
            let mut is_committed = false;
            for effect in std::mem::take(&mut out) {
                match effect {
                    Effect::Append(entry) => self.last = Some(entry.id),
                    Effect::Committed => is_committed = true,
                    Effect::FlushIndex(flush) => {
                        self.pg.step(now(now_us), Event::IndexFlushed(flush), &self.rows, &mut out);
                    }
                    Effect::Halt(why) => panic!("{}: {why}", self.pg.id()),
                    other => others.push(other),
                }
            }
            if is_committed {
                while self.pg.apply(now(now_us), &self.rows, &mut out) > 0 {}
            }
        }
        others
    }

    /// Returns true if its log has something to be synced.
    pub(crate) fn wants_sync(&self) -> bool {
        self.last.is_some() && !self.syncs
    }

    /// The managers describe the group's volumes.
    pub(crate) fn handle_volumes(
        &mut self,
        now_us: u64,
        view: View,
        lvs: Vec<(LvId, LvRecord)>,
        (as_of, boots): (MapVersion, &BTreeMap<ServerId, BootId>),
    ) -> Outbox {
        if self.pg.view() != view {
            return Outbox::new();
        }
        let infos = lvs.into_iter().map(|(id, lv)| info_of(id, &lv, as_of, boots));
        match self.pg.role() {
            Role::Active => self.adopt(now_us, infos.collect()),
            Role::Serving => {
                let mut out = Outbox::new();
                for info in infos.collect::<Vec<_>>() {
                    if self.reported.get(&info.lv).is_none_or(|known| !is_same(known, &info)) {
                        self.reported.insert(info.lv, info.clone());
                        out.extend(self.step(now_us, Event::Lv(info)));
                    }
                }
                out
            }
            _ => Outbox::new(),
        }
    }

    /// Derives the group's space and serves.
    fn adopt(&mut self, now_us: u64, infos: Vec<LvInfo>) -> Outbox {
        let mut scan = SpaceScan::new(infos.iter().cloned());
        for (row, value) in self.rows.0.borrow().iter() {
            scan.note(row, value).expect("rows are readable");
        }
        let derived = scan.finish();
        assert_eq!(derived.faults, [], "no block is used twice");
        self.reported = infos.into_iter().map(|info| (info.lv, info)).collect();
        let mut out = Outbox::new();
        self.pg.adopt_space(derived.space, &mut out);
        self.kept(now_us, out)
    }

    /// The server of a replica, as the group was told.
    pub(crate) fn server_of(&self, lv: LvId, replica: usize) -> Option<ServerId> {
        Some(self.reported.get(&lv)?.replicas.get(replica)?.server)
    }

    /// Looks at the rows behind one, until there is enough to do. Returns the row to go on behind, if there are more, and
    /// how many were looked at.
    pub(crate) fn consider(
        &mut self,
        walk: &mut Walk,
        after: &[u8],
        mut is_enough: impl FnMut(u64, Option<Refill>) -> bool,
    ) -> (Option<Vec<u8>>, u64) {
        let Self { pg, rows, .. } = self;
        let (mut looked, mut last) = (0, None);
        let mut from = after.to_vec();
        from.push(0);
        let rows_from = rows.0.borrow();
        for (row, value) in rows_from.range(from..) {
            looked += 1;
            let found = chunk_at(row, value, 1, |pg| walk.is_for(pg)).expect("rows are readable");
            let refill = found.and_then(|(_, chunk)| {
                let found = walk.consider(pg, (row, &chunk), rows);
                found.expect("rows are readable").map(|refill| *refill)
            });
            if is_enough(looked, refill) {
                last = Some(row.clone());
                break;
            }
        }
        (last, looked)
    }
}

fn now(now_us: u64) -> EventTime {
    EventTime { steady_ms: now_us / 1000, wall_ms: now_us / 1000 }
}

fn is_same(one: &LvInfo, other: &LvInfo) -> bool {
    one.replicas == other.replicas && one.copies == other.copies
}

fn info_of(
    lv: LvId,
    record: &LvRecord,
    as_of: MapVersion,
    boots: &BTreeMap<ServerId, BootId>,
) -> LvInfo {
    let replica = |it: &larder_protocol::manager::state::ReplicaRecord| Replica {
        server: it.server,
        boot: boots.get(&it.server).copied().unwrap_or_default(),
        disk: it.disk,
        pv: it.pv,
        state: it.state,
    };
    let replicas = record.replicas.iter().map(replica).collect();
    LvInfo { lv, blocks: record.blocks, copies: record.width, replicas, as_of }
}

/// A number for each number, in another order.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}
