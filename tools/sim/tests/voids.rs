//! A placement group and a real volume: more puts are given up in one view than a PV remembers voids.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use larder_env::SimDisk;
use larder_protocol::index::Visit;
use larder_protocol::manager::state::{MapVersion, ReplicaState};
use larder_protocol::pg::{Origin, Recovering};
use larder_protocol::rebuild::Space;
use larder_protocol::{
    Answer, Call, Changes, Content, DataAnswer, DataRequest, Description, Effect, Event, EventTime,
    FreeRuns, Index, IndexError, LvInfo, Outbox, Pg, Planted, PutCall, Replica, Token,
};
use larder_types::checksum::sum;
use larder_types::limits::BLOCK_BYTES;
use larder_types::{
    Attributes, BootId, BucketId, Condition, DiskId, ETag, Epoch, Extent, Grant, LvId, ObjectKey,
    OpId, PgId, PvId, Request, ServerId, SessionId, Target, View, rows,
};
use larder_volume::limits::{PV_BYTES_STEP, VOIDS_MAX};
use larder_volume::{Action, Command, Refusal, Volume, VolumeConfig};

const LV: LvId = LvId(4);
const NOW: EventTime = EventTime { steady_ms: 1000, wall_ms: 1000 };
const BUCKET: BucketId = BucketId(1);
const EPOCH: Epoch = Epoch(1);
const BOOT: BootId = BootId(7);
const PUTS: usize = 2 * VOIDS_MAX + 80;

#[derive(Default)]
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
}

/// The primary, its rows and the one data server; its log is synced at once.
struct Store {
    pg: Pg,
    rows: Rows,
    volume: Volume,
    replies: BTreeMap<Token, Answer>,
    /// Voids that the volume had no room for.
    refused: usize,
}

impl Store {
    fn new() -> Self {
        let disk = SimDisk::new(1, 64 << 20);
        let (cluster, disk_id) = (11, DiskId(3));
        let config =
            VolumeConfig { cluster, disk_id, pv_bytes: 2 * PV_BYTES_STEP, pv_count_max: 1 };
        let volume = Volume::create(&*disk, "volume", config, BOOT).expect("a volume");
        let (me, applied) = (ServerId(0), OpId::default());
        let (pg, pg_count, planted) = (PgId(0), 1, Planted::default());
        let (snapshot, high_water) = (None, None);
        let origin = Origin { pg, pg_count, me, applied, snapshot, high_water, planted };
        let pg = Recovering::new(origin).finish().expect("nothing to fit");
        let mut store =
            Self { pg, rows: Rows::default(), volume, replies: BTreeMap::new(), refused: 0 };
        let map = MapVersion(1);
        store.execute(Action::CreatePv { pv: PvId(0), lv: LV, replica: 0, map }).expect("a PV");
        store.step(Event::NewView { view: View(1), members: vec![me], boot: BOOT });
        let state = ReplicaState::Current;
        let replica = Replica { server: me, boot: BOOT, disk: disk_id, pv: PvId(0), state };
        let blocks = store.volume.pv_blocks();
        let info = LvInfo { lv: LV, blocks, copies: 1, replicas: vec![replica], as_of: map };
        let mut out = Outbox::new();
        let lvs = vec![(info, FreeRuns::whole(blocks))];
        store.pg.adopt_space(Space { lvs, is_as_wanted: true }, &mut out);
        store.perform(out);
        store
    }

    fn execute(&mut self, action: Action) -> Result<larder_volume::Answer, Refusal> {
        let mut done = Vec::new();
        self.volume.execute(vec![Command { tag: 0, action }], &mut done);
        done.remove(0).result
    }

    fn step(&mut self, event: Event) {
        let mut out = Outbox::new();
        self.pg.step(NOW, event, &self.rows, &mut out);
        self.perform(out);
    }

    /// Does what the machine asks for, and all that comes of it.
    fn perform(&mut self, mut effects: Outbox) {
        while !effects.is_empty() {
            let mut out = Outbox::new();
            for effect in effects {
                let event = match effect {
                    Effect::Append(entry) => Event::Durable(entry.id),
                    Effect::Data { lv, replica, request } => {
                        Event::Data { lv, replica, answer: self.answer(request) }
                    }
                    Effect::Reply { token, answer } => {
                        self.replies.entry(token).or_insert(answer);
                        continue;
                    }
                    Effect::Halt(why) => panic!("{why}"),
                    _ => continue,
                };
                self.pg.step(NOW, event, &self.rows, &mut out);
            }
            while self.pg.apply(NOW, &self.rows, &mut out) > 0 {}
            effects = out;
        }
    }

    /// As a data server's driver does.
    fn answer(&mut self, request: DataRequest) -> DataAnswer {
        use larder_volume::Answer as Done;
        let (action, grant) = match request {
            DataRequest::Open { view, floor, boot } => {
                (Action::Open { lv: LV, view, floor, boot }, None)
            }
            DataRequest::RaiseFloor { floor } => (Action::RaiseFloor { lv: LV, floor }, None),
            DataRequest::Void { grant } => (Action::Void { lv: LV, grant }, Some(grant)),
            DataRequest::Verify { chunk } => {
                let grant = chunk.grant;
                (Action::Verify { chunk }, Some(grant))
            }
        };
        match (self.execute(action), grant) {
            (Ok(Done::Floor(floor)), _) => DataAnswer::Floor(floor),
            (Ok(Done::Voided), Some(grant)) => DataAnswer::Voided(grant),
            (Ok(Done::Verified { .. }), Some(grant)) => DataAnswer::Verified(grant),
            (Ok(Done::Mismatch { is_unacknowledged, .. }), Some(grant)) => {
                DataAnswer::Mismatch { grant, is_unacknowledged }
            }
            (Err(Refusal::Busy), Some(grant)) => {
                self.refused += 1;
                DataAnswer::NotNow(grant)
            }
            other => panic!("{other:?}"),
        }
    }

    /// A put of one block, which is granted and written; its proxy never says so.
    fn put_and_write(&mut self, number: u64) -> (Grant, Vec<Extent>) {
        let (len, seed, bytes) = (BLOCK_BYTES, number, content(number));
        let request = Request { session: SessionId(1), number, floor: 0 };
        let description = Description {
            size: u64::from(len),
            etag: ETag::Md5([1; 16]),
            checksum: None,
            attributes: Attributes::default(),
        };
        let call = Call::Put(Box::new(PutCall {
            request,
            bucket: BUCKET,
            epoch: EPOCH,
            key: name_of(number),
            target: Target::Version,
            description,
            content: Content::Data { len, seed, sums: vec![sum(seed, 0, &bytes)] },
            condition: Condition::default(),
            required_copies: 0,
        }));
        self.step(Event::Call { token: Token(number), call });
        let Some(Answer::Granted { grant, extents, .. }) = self.replies.remove(&Token(number))
        else {
            panic!("no grant: {:?}", self.replies);
        };
        let data = vec![bytes];
        let write = Action::Write { lv: LV, grant, extents: extents.clone(), data, len };
        self.execute(write).expect("it is written");
        (grant, extents)
    }
}

fn content(number: u64) -> Bytes {
    vec![number as u8; BLOCK_BYTES as usize].into()
}

fn name_of(number: u64) -> ObjectKey {
    ObjectKey::new(&format!("k{number}")).expect("a short name")
}

#[test]
fn more_puts_are_given_up_in_a_view_than_a_pv_remembers_voids_and_none_stays_open() {
    let mut store = Store::new();
    let puts: Vec<_> = (1..=PUTS as u64).map(|number| store.put_and_write(number)).collect();
    for (grant, _) in &puts {
        store.step(Event::Call {
            token: Token(0),
            call: Call::Abandon { op: grant.op, disk_full: false },
        });
    }
    assert_eq!(store.refused, PUTS - VOIDS_MAX, "a PV remembers so many");
    store.step(Event::Tick);
    assert_eq!(store.pg.gauges().open_puts, 0);
    for number in 1..=PUTS as u64 {
        let row = rows::version(BUCKET, &name_of(number), rows::UNVERSIONED);
        assert!(store.rows.get(&row).expect("a row").is_some(), "put {number} was written");
    }
    // All are fenced, and what comes next is not.
    for (number, (grant, extents)) in (1..).zip(&puts) {
        let (data, len) = (vec![content(number)], BLOCK_BYTES);
        let write = Action::Write { lv: LV, grant: *grant, extents: extents.clone(), data, len };
        let refused = store.execute(write);
        assert!(matches!(refused, Err(Refusal::BelowFloor | Refusal::Voided)), "{refused:?}");
    }
    store.put_and_write(PUTS as u64 + 1);
}
