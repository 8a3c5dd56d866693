//! A placement group: its allocator, and all the steps of one put.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::ControlFlow;

use bytes::Bytes;
use larder_protocol::index::Visit;
use larder_protocol::manager::state::{MapVersion, ReplicaState};
use larder_protocol::pg::{Origin, Recovering};
use larder_protocol::rebuild::Space;
use larder_protocol::{
    Answer, Call, Changes, Content, DataAnswer, Description, Effect, Event, EventTime, FreeRuns,
    Index, IndexError, LvInfo, Outbox, Pg, Planted, PutCall, Replica, Token,
};
use larder_types::{
    Attributes, BootId, BucketId, Condition, DiskId, ETag, Epoch, Grant, GrantKey, Holders, LvId,
    ObjectKey, OpId, OpSeq, PgId, PvId, Request, ServerId, SessionId, Target, View,
};

use crate::Outcome;

const LV_BLOCKS: u32 = 4 << 20;
const NOW: EventTime = EventTime { steady_ms: 1000, wall_ms: 1000 };
const ME: ServerId = ServerId(0);

pub(crate) fn allocate(count: u64) -> Outcome {
    let mut runs = FreeRuns::whole(LV_BLOCKS);
    for _ in 0..count {
        let extents = black_box(runs.allocate(2)).ok_or("the volume is full")?;
        extents.into_iter().for_each(|extent| runs.release(extent));
    }
    Ok(())
}

/// An index of ordered rows.
#[derive(Default)]
struct Table(RefCell<BTreeMap<Vec<u8>, Bytes>>);

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
        let mut table = self.0.borrow_mut();
        for (row, value) in changes.into_parts().0 {
            match value {
                Some(value) => table.insert(row, value.into()),
                None => table.remove(&row),
            };
        }
        Ok(())
    }

    fn bucket_epoch(&self, _: BucketId) -> Option<Epoch> {
        Some(Epoch(1))
    }
}

/// The only member of a group, with a log that is durable as soon as it is told.
struct Member {
    pg: Pg,
    table: Table,
    out: Outbox,
    last: OpId,
}

impl Member {
    fn serving() -> Result<Self, Box<dyn std::error::Error>> {
        let origin = Origin {
            pg: PgId(0),
            pg_count: 1,
            me: ME,
            applied: OpId::default(),
            snapshot: None,
            high_water: None,
            planted: Planted::default(),
        };
        let pg = Recovering::new(origin).finish()?;
        let (table, out) = (Table::default(), Outbox::new());
        let mut member = Self { pg, table, out, last: OpId::default() };
        member.step(Event::NewView { view: View(1), members: vec![ME], boot: BootId(1) });
        member.sync();
        let (disk, pv, state) = (DiskId(0), PvId(0), ReplicaState::Current);
        let replicas = vec![Replica { server: ME, boot: BootId(1), disk, pv, state }];
        let as_of = MapVersion(1);
        let info = LvInfo { lv: LvId(0), blocks: LV_BLOCKS, copies: 1, replicas, as_of };
        let lvs = vec![(info, FreeRuns::whole(LV_BLOCKS))];
        member.pg.adopt_space(Space { lvs, is_as_wanted: true }, &mut member.out);
        let floor = GrantKey { view: View(1), seq: OpSeq(0) };
        let answer = DataAnswer::Floor(floor);
        member.step(Event::Data { lv: LvId(0), replica: 0, answer });
        Ok(member)
    }

    /// Steps the machine; returns a grant, if it gave one.
    fn step(&mut self, event: Event) -> Option<Grant> {
        self.pg.step(NOW, event, &self.table, &mut self.out);
        let mut granted = None;
        for effect in self.out.drain(..) {
            match effect {
                Effect::Append(entry) => self.last = entry.id,
                Effect::Reply { answer: Answer::Granted { grant, .. }, .. } => {
                    granted = Some(grant)
                }
                _ => {}
            }
        }
        granted
    }

    fn sync(&mut self) {
        self.step(Event::Durable(self.last));
        while self.pg.apply(NOW, &self.table, &mut self.out) > 0 {}
        self.out.clear();
    }
}

pub(crate) fn put(count: u64) -> Outcome {
    let mut member = Member::serving()?;
    for number in 1..=count {
        let call = PutCall {
            request: Request { session: SessionId(1), number, floor: number },
            bucket: BucketId(1),
            epoch: Epoch(1),
            key: ObjectKey::new(&format!(
                "objects/{:016x}",
                number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
            ))?,
            target: Target::Version,
            description: Description {
                size: 8192,
                etag: ETag::Md5([1; 16]),
                checksum: None,
                attributes: Attributes::default(),
            },
            content: Content::Data {
                len: 8192,
                seed: number,
                sums: [number].into_iter().collect(),
            },
            condition: Condition::default(),
            required_copies: 0,
        };
        let call = Call::Put(Box::new(call));
        let grant = member.step(Event::Call { token: Token(1), call }).ok_or("no grant")?;
        member.sync();
        let holders = Holders::default().with(0);
        let call = Call::Commit { op: grant.op, attempt: grant.attempt, holders };
        member.step(Event::Call { token: Token(2), call });
        member.sync();
    }
    Ok(())
}
