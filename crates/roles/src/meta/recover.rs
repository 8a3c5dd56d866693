//! Opens a meta server: index and log; on a single node also views, space, and the threads.
//!
//! The order matters. The log is cut and synced before anything is appended; the view is in the map before
//! an op carries it. PGs serve, and rows are read for their space (`space.rs`), only once all ops
//! through the view's first are applied.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use larder_env::Disk;
use larder_env::threads::{self, JoinHandle};
use larder_kv::{KvReader, LsmKv};
use larder_metalog::{LogConfig, Lsn, Record, Writer};
use larder_protocol::pg::{LedgerWalk, Origin, Recovering, Role};
use larder_protocol::{Event, Index, Pg, Planted};
use larder_types::codec::decode;
use larder_types::{BucketId, Op, OpId, OpSeq, PgId, ServerId, StreamId, rows};
use larder_volume::Volume;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::damage::{self, Damage};
use super::error::OpenError;
use super::index::{Buckets, IndexPort};
use super::log::{Group, Log};
use super::maintain::FlushSignal;
use super::space::SpaceReadiness;
use super::{Callers, Here, Member, Meta, OtherRoles, PgQueue, PgViewState};
use crate::clock::StoreClock;
use crate::data::DataServer;
use crate::limits::KV_CACHE_BYTES;
use crate::manager::LocalManager;
use crate::notifier::Notifier;
use crate::planted::{Bug, has};

/// Directory of the log's segments.
pub const LOG_DIR: &str = "log";
/// Directory of the index.
pub const KV_DIR: &str = "kv";

/// The parameters that a meta server is opened with.
#[derive(Debug, Clone)]
pub struct MetaConfig {
    /// This server.
    pub me: ServerId,
    /// The log's settings.
    pub log: LogConfig,
}

/// PGs as replayed from the index and the log.
pub(crate) struct Replayed {
    pub(crate) pgs: Vec<Pg>,
    pub(crate) highest: Vec<(PgId, OpSeq, Lsn)>,
}

/// Replays records of the log into PGs.
pub(crate) struct Replay {
    pgs: Vec<Recovering>,
    highest: BTreeMap<(u64, PgId), (OpSeq, Lsn)>,
    segment_bytes: u64,
    error: Option<OpenError>,
}

impl Replay {
    pub(crate) fn new(
        kv: &dyn KvReader,
        me: ServerId,
        pg_count: usize,
        segment_bytes: u64,
    ) -> Result<Self, OpenError> {
        let mut pgs = Vec::with_capacity(pg_count);
        for pg in (0..pg_count as u32).map(PgId) {
            let applied = match kv.get(&rows::applied(pg))? {
                Some(row) => decode::<OpId>("applied position", &row)?,
                None => OpId::default(),
            };
            let snapshot = kv.get(&rows::snapshot(pg))?;
            let snapshot = snapshot.map(|row| decode("snapshot row", &row)).transpose()?;
            let high_water = kv.get(&rows::high_water(pg))?;
            let high_water = high_water.map(|row| decode("marks row", &row)).transpose()?;
            let (pg_count, planted) = (pg_count as u32, Planted::default());
            let origin = Origin { pg, pg_count, me, applied, snapshot, high_water, planted };
            pgs.push(Recovering::new(origin));
        }
        Ok(Self { pgs, highest: BTreeMap::new(), segment_bytes, error: None })
    }

    /// Replays a record; after an error it skips the rest.
    pub(crate) fn record(&mut self, record: &Record<'_>, end: Lsn) {
        if self.error.is_some() {
            return;
        }
        if let Err(error) = self.try_record(record) {
            self.error = Some(error);
        }
        let key = ((end.0 - 1) / self.segment_bytes, record.pg);
        let highest = self.highest.entry(key).or_insert((record.seq, end));
        *highest = (highest.0.max(record.seq), end);
    }

    fn try_record(&mut self, record: &Record<'_>) -> Result<(), OpenError> {
        let op = decode::<Op>("op", record.payload)?;
        let recovering = self.pgs.get_mut(record.pg.0 as usize).ok_or_else(|| {
            OpenError::Record(format!("it is of pg {}, which does not exist", record.pg))
        })?;
        let id = OpId { view: record.view, seq: record.seq };
        recovering.replay(id, op, record.commit);
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<Replayed, OpenError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let highest =
            self.highest.into_iter().map(|((_, pg), (seq, end))| (pg, seq, end)).collect();
        let mut pgs: Vec<Pg> =
            self.pgs.into_iter().map(Recovering::finish).collect::<Result<_, _>>()?;
        if has(Bug::ReusesAtOnce) {
            pgs.iter_mut().for_each(|pg| pg.rest_for(0));
        }
        Ok(Replayed { pgs, highest })
    }
}

/// The threads of a meta server, on a single node with that of the disk. They end after [`Meta::stop`] and
/// [`DataServer::stop`].
pub struct Threads(Vec<JoinHandle<()>>);

impl Threads {
    pub(super) fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) {
        let thread = threads::spawn(name, run)
            .unwrap_or_else(|error| panic!("the system gives no thread for {name}: {error}"));
        self.0.push(thread);
    }

    /// Waits for all of them.
    pub fn join(self) {
        for thread in self.0 {
            if thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
    }
}

impl Meta {
    /// Opens the meta server of a single node and begins its views.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is served then.
    pub fn open(
        disk: Arc<dyn Disk>,
        root: &Path,
        manager: Arc<LocalManager>,
        data: Arc<DataServer>,
        volume: Volume,
        config: &MetaConfig,
    ) -> Result<(Arc<Self>, Threads), OpenError> {
        let pg_count = manager.map().map.pgs.len();
        let recovered = recover(disk.clone(), root, pg_count, config)?;
        let began_before = manager.map().map.pgs.iter().any(|pg| pg.view.0 > 0);
        if recovered.created && began_before {
            let reason = "the map says that this store has run, but its log is gone: restore log/";
            return Err(OpenError::Contradiction(reason.to_owned()));
        }
        let damage = damage::load_or_assume(&*disk)?;
        damage.iter().for_each(damage::notify);
        let here = Here { manager: manager.clone(), data, disk };
        let (mut meta, mut writer) =
            recovered.assemble(Buckets::Here(manager), OtherRoles::Here(here));
        meta.damage = Damage::new(damage);
        let meta = Arc::new(meta);
        let OtherRoles::Here(here) = &meta.other_roles else { unreachable!("made above") };
        let stepped = Arc::downgrade(&meta);
        here.data.answer_to(Box::new(move |pg, lv, replica, answer| {
            if let Some(meta) = stepped.upgrade() {
                meta.data_answered(pg, lv, replica, answer);
            }
        }));
        meta.begin_views(here, &mut writer)?;
        let dead_streams = meta.dead_streams()?;
        let walk = meta.begin_space(here)?;
        let threads = Self::start_here(&meta, writer, volume, walk);
        for (bucket, stream, pg) in dead_streams {
            if meta.is_read_only() {
                break;
            }
            meta.drop_streams(&mut meta.lock(pg), [(bucket, stream)]);
        }
        Ok((meta, threads))
    }

    /// Begins a view of every PG, and applies all ops through its first.
    fn begin_views(&self, here: &Here, writer: &mut Writer) -> Result<(), OpenError> {
        let map = here.manager.begin_views()?;
        for (pg, record) in self.pg_ids().zip(&map.map.pgs) {
            let (view, members) = (record.view, record.members.clone());
            let boot = here.data.boot();
            self.step(&mut self.lock(pg), Event::NewView { view, members, boot });
        }
        self.log.nudge();
        self.log_group(writer, &mut Group::default())?;
        for pg in self.pg_ids() {
            let mut member = self.lock(pg);
            self.apply_all(&mut member);
            // Its log has an op that needs a row which cannot be read.
            let goes_on = self.index.is_damaged() && member.pg.role() == Role::Halted;
            if member.pg.role() != Role::Active && !goes_on {
                let reason = self.fatal.borrow().clone().unwrap_or_default();
                return Err(OpenError::Contradiction(format!("pg {pg} has no view: {reason}")));
            }
        }
        Ok(())
    }

    /// Open streams, with the PG of each: their writers were in a process that is gone.
    fn dead_streams(&self) -> Result<Vec<(BucketId, StreamId, PgId)>, OpenError> {
        let of_pg = |(pg, streams): (PgId, BTreeSet<(BucketId, StreamId)>)| {
            streams.into_iter().map(move |(bucket, stream)| (bucket, stream, pg))
        };
        match self.open_streams() {
            // They are left to a start that may drop them.
            _ if self.is_read_only() => Ok(Vec::new()),
            streams => Ok(streams?.into_iter().flat_map(of_pg).collect()),
        }
    }

    fn start_here(
        meta: &Arc<Self>,
        writer: Writer,
        volume: Volume,
        walk: Option<LedgerWalk>,
    ) -> Threads {
        let mut threads = Self::start(meta, writer);
        if let Some(walk) = walk {
            let server = meta.clone();
            threads.spawn("space", move || server.space_loop(walk));
        }
        let server = meta.clone();
        threads.spawn("disk", move || {
            if let OtherRoles::Here(here) = &server.other_roles {
                here.data.disk_loop(volume);
            }
        });
        threads
    }

    /// Starts the threads that every meta server has.
    pub(super) fn start(meta: &Arc<Self>, writer: Writer) -> Threads {
        let mut threads = Threads(Vec::new());
        let server = || meta.clone();
        let (log, apply, tick, flush) = (server(), server(), server(), server());
        threads.spawn("log", move || log.log_loop(writer));
        threads.spawn("apply", move || apply.apply_loop());
        threads.spawn("tick", move || tick.tick_loop());
        threads.spawn("flush", move || flush.flush_loop());
        threads
    }
}

/// A recovered index and log.
pub(super) struct Recovered {
    kv: LsmKv,
    log: Log,
    writer: Writer,
    /// True if there was no log.
    pub(super) created: bool,
    pub(super) pgs: Vec<Pg>,
}

/// Opens the index, recovers the log, and rebuilds the PGs from both.
pub(super) fn recover(
    disk: Arc<dyn Disk>,
    root: &Path,
    pg_count: usize,
    config: &MetaConfig,
) -> Result<Recovered, OpenError> {
    let kv = LsmKv::open(&root.join(KV_DIR), KV_CACHE_BYTES)?;
    let segment_bytes = config.log.segment_bytes;
    let mut replay = Replay::new(&kv, config.me, pg_count, segment_bytes)?;
    let (appender, writer, recovery) =
        larder_metalog::recover(disk, LOG_DIR, &config.log, &mut |record| {
            replay.record(&record.record, record.end);
        })?;
    tracing::info!(
        records = recovery.records,
        end = recovery.end.0,
        torn_bytes = recovery.torn_bytes,
        created = recovery.created,
        "log recovered"
    );
    if recovery.mended() {
        tracing::warn!(
            bad_headers = recovery.bad_headers,
            unreadable_pages = recovery.unreadable_pages,
            "the log's disk lost data that the log could rebuild: watch the disk"
        );
    }
    let Replayed { pgs, highest } = replay.finish()?;
    let log = Log::new(appender, segment_bytes, pg_count, &highest);
    Ok(Recovered { kv, log, writer, created: recovery.created, pgs })
}

impl Recovered {
    /// The server, which no thread and no connection uses yet, and the writer for its log thread.
    pub(super) fn assemble(self, buckets: Buckets, other_roles: OtherRoles) -> (Meta, Writer) {
        let pg_count = self.pgs.len();
        let meta = Meta {
            background: super::Background::new(),
            rebuild: super::RebuildCounters::default(),
            compaction: super::Compaction::default(),
            scrub: super::Scrubbing::default(),
            digests: super::Digests::default(),
            snapshots: super::Snapshots::default(),
            journals: super::Journals::new(pg_count),
            positions: super::Positions::new(pg_count),
            pgs: self.pgs.into_iter().map(Member::new).map(Mutex::new).collect(),
            index: IndexPort::new(self.kv, buckets),
            other_roles,
            log: self.log,
            to_apply: PgQueue::new(pg_count),
            need_lv: PgQueue::new(pg_count),
            flush: FlushSignal::default(),
            fatal: watch::Sender::new(None),
            clock: Arc::new(StoreClock::default()),
            rounds: Notifier::default(),
            space_readiness: SpaceReadiness::default(),
            damage: Damage::default(),
            stopping: AtomicBool::new(false),
            requests: OnceLock::new(),
            requests_by_kind: super::MetaRequests::default(),
        };
        (meta, self.writer)
    }
}

impl Member {
    fn new(pg: Pg) -> Self {
        let (out, callers, scratch) = (Vec::new(), Callers::default(), Vec::new());
        let (view_state, sent, stepped_ms) = (PgViewState::default(), None, 0);
        Self { pg, out, callers, scratch, view_state, sent, stepped_ms }
    }
}
