//! `larder bench fill`: writes objects into the index and volumes of a store that is not serving, without requests. For
//! measurements of stores with many objects.
//!
//! ```text
//!  threads:  content ─ data to the disk thread, wait until durable ─ rows to the index
//!  caller:   flushes and compacts the index behind them
//! ```
//!
//! # Invariants
//!
//! 1. No row is ever replaced: keys are those of the fill alone, and numbers go on behind the last that the bucket has.
//! 2. A chunk is durable before the row that names it is in the index.
//! 3. Each row has the op that its PG applied last. Every op to come is later, so that a put or delete of the key wins. No
//!    op of that view is a put, so that (op, attempt) is the grant of one chunk alone.
//! 4. Space is the PG's to give, as for a put, and its high-water marks are in the index before a row that names it. What
//!    was given and is named by no row is free again at the next start.

mod keys;
mod writes;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_env::rng::unique_u64;
use larder_kv::limits::FLUSH_BYTES;
use larder_kv::{Batch, Kv, KvError, LsmKv, Progress};
use larder_protocol::IndexError;
use larder_protocol::space::NoSpace;
use larder_types::checksum::{seed_of, sum_blocks};
use larder_types::codec::encode_into;
use larder_types::limits::{CHUNK_BYTES_MAX, INLINE_BYTES_MAX};
use larder_types::{
    Body, BucketId, BucketName, Chunk, ETag, Extent, Grant, Holders, HybridClock, LvId, Metax,
    OpId, PgId, Request, SessionId, VersionRow, rows,
};
use larder_volume::{Action, Refusal};
use md5::{Digest, Md5};
use parking_lot::{Condvar, Mutex};

use crate::clock::now_ms;
use crate::limits::{
    FILL_BATCH_BYTES, FILL_BATCH_OBJECTS, FILL_PLACE_TRIES, FILL_THREADS_MAX,
    FILL_UNFLUSHED_BYTES_MAX,
};
use crate::manager::LocalManagerError;
use crate::store::{Store, StoreConfig, StoreError};
use writes::Writes;

/// The bytes of an object, by its key and size.
pub type Content<'a> = dyn Fn(&str, u64) -> Bytes + Sync + 'a;

/// Objects to be written.
#[derive(Debug, Clone)]
pub struct FillConfig {
    /// The store.
    pub store: StoreConfig,
    /// Bucket of all objects, made if it is missing. One that has other objects is refused.
    pub bucket: BucketName,
    /// Number of objects.
    pub objects: u64,
    /// Bytes of each.
    pub bytes: u64,
    /// Names the keys.
    pub seed: u64,
}

impl FillConfig {
    /// Checks what can be without the store.
    ///
    /// # Errors
    /// [`FillError::Config`].
    pub fn check(&self) -> Result<(), FillError> {
        let wrong = |field, found, remedy| Err(FillError::Config { field, found, remedy });
        if self.objects == 0 || self.objects > keys::NUMBERS {
            return wrong("objects", self.objects, format!("1 to {}", keys::NUMBERS));
        }
        if self.bytes > u64::from(CHUNK_BYTES_MAX) {
            return wrong("size", self.bytes, format!("at most {CHUNK_BYTES_MAX}, one chunk"));
        }
        Ok(())
    }
}

/// Objects and bytes that a fill wrote.
#[derive(Debug, Clone, Copy)]
pub struct Filled {
    /// Number of the first object, more than 0 if the bucket had some already.
    pub first: u64,
    /// Objects written.
    pub objects: u64,
    /// For how long, the last flush of the index included.
    pub elapsed: Duration,
    /// Bytes of the whole index on disk, before and after.
    pub index_bytes: [u64; 2],
}

/// The reason why objects were not written, or not all of them. Those that are in the index are whole.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// Fix the arguments.
    #[error("{field}: {found} is not allowed; use {remedy}")]
    Config {
        /// The argument.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The limit.
        remedy: String,
    },
    /// Name another bucket.
    #[error(
        "bucket {bucket:?} has objects or uploads that no fill made: name another with --bucket"
    )]
    NotOfAFill {
        /// The bucket.
        bucket: String,
    },
    /// The store does not open.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The map cannot be changed.
    #[error(transparent)]
    Manager(#[from] LocalManagerError),
    /// The index cannot be written.
    #[error("the index: {0}")]
    Kv(#[from] KvError),
    /// Make room, or write fewer objects.
    #[error("the disk has no room for more objects")]
    Full,
    /// Look at the log, and run `larder inspect`: what is free is not known.
    #[error("the rows of the index could not be read for what is free: run `larder inspect`")]
    Unread,
    /// The index cannot be written.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// Start again: the data server refused a write.
    #[error("data cannot be written: {0}")]
    Write(Refusal),
}

/// Writes objects into a store that no process serves; `written` hears now and then of how many there are.
///
/// # Errors
/// [`FillError`].
pub fn fill(
    config: &FillConfig,
    content: &Content<'_>,
    written: &dyn Fn(u64),
) -> Result<Filled, FillError> {
    config.check()?;
    let store = Store::open(&config.store)?;
    let filled = Filling::begin(&store, config, content).and_then(|it| it.run(written));
    store.close();
    filled
}

/// A fill under way.
struct Filling<'a> {
    store: &'a Store,
    config: &'a FillConfig,
    content: &'a Content<'a>,
    bucket: BucketId,
    /// The last applied op of each PG.
    ops: Vec<OpId>,
    first: u64,
    /// Number of the next object that nobody writes yet.
    next: AtomicU64,
    written: AtomicU64,
    /// Chunks so far, by which their grants differ.
    attempts: AtomicU64,
    session: SessionId,
    clock: HybridClock,
    state: Mutex<State>,
    /// Of the state, or of what the index has not flushed.
    changed: Condvar,
}

struct State {
    /// Threads that write.
    writers: usize,
    /// One of them, or the flush, has failed: all end.
    has_failed: bool,
}

/// A thread that writes, however it ends.
struct Writer<'a>(&'a Filling<'a>);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.0.state.lock().writers -= 1;
        self.0.changed.notify_all();
    }
}

impl<'a> Filling<'a> {
    fn begin(
        store: &'a Store,
        config: &'a FillConfig,
        content: &'a Content<'a>,
    ) -> Result<Self, FillError> {
        let (manager, meta) = (store.manager(), store.meta());
        if !meta.await_space() {
            return Err(FillError::Unread);
        }
        let known = manager.map().bucket(&config.bucket).map(|bucket| bucket.id);
        let bucket = match known {
            Some(bucket) => bucket,
            None => manager.create_bucket(&config.bucket, (None, None), now_ms())?.id,
        };
        let first = keys::next_number(meta.kv(), bucket, config)?;
        let left = keys::NUMBERS - first;
        if config.objects > left {
            let remedy = format!("at most {left}, or another seed");
            return Err(FillError::Config { field: "objects", found: config.objects, remedy });
        }
        Ok(Self {
            store,
            config,
            content,
            bucket,
            ops: meta.pg_ids().map(|pg| meta.applied(pg)).collect(),
            first,
            next: AtomicU64::new(first),
            written: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            session: SessionId(unique_u64()),
            clock: HybridClock::at_ms(now_ms()),
            state: Mutex::new(State { writers: 0, has_failed: false }),
            changed: Condvar::new(),
        })
    }

    fn kv(&self) -> &LsmKv {
        self.store.meta().kv()
    }

    fn run(&self, written: &dyn Fn(u64)) -> Result<Filled, FillError> {
        let (begun, before) = (Instant::now(), self.kv().disk_bytes());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(FILL_THREADS_MAX);
        self.state.lock().writers = threads;
        std::thread::scope(|scope| {
            let write = || {
                let _writer = Writer(self);
                self.unless_failed(self.write_all())
            };
            let writers: Vec<_> = (0..threads).map(|_| scope.spawn(write)).collect();
            let flushed = self.unless_failed(self.flush_behind(written));
            let ends = writers.into_iter().map(|writer| match writer.join() {
                Ok(end) => end,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ends.fold(flushed, Result::and)
        })?;
        self.flush()?;
        Ok(Filled {
            first: self.first,
            objects: self.written.load(Ordering::Relaxed),
            elapsed: begun.elapsed(),
            index_bytes: [before, self.kv().disk_bytes()],
        })
    }

    /// Has all others end if a part of the fill has failed.
    fn unless_failed(&self, end: Result<(), FillError>) -> Result<(), FillError> {
        if end.is_err() {
            self.state.lock().has_failed = true;
            self.changed.notify_all();
        }
        end
    }

    fn flush(&self) -> Result<(), FillError> {
        self.kv().flush()?;
        while self.kv().maintain()? == Progress::Worked {}
        Ok(())
    }

    /// Flushes the index as often as enough has piled up, until the writers have ended.
    fn flush_behind(&self, written: &dyn Fn(u64)) -> Result<(), FillError> {
        loop {
            {
                let mut state = self.state.lock();
                while self.kv().unflushed_bytes() < FLUSH_BYTES
                    && state.writers > 0
                    && !state.has_failed
                {
                    self.changed.wait(&mut state);
                }
                if state.writers == 0 || state.has_failed {
                    return Ok(());
                }
            }
            self.flush()?;
            // Under the lock: no writer is between its look and its wait.
            drop(self.state.lock());
            self.changed.notify_all();
            written(self.written.load(Ordering::Relaxed));
        }
    }

    /// One of the threads that write objects.
    fn write_all(&self) -> Result<(), FillError> {
        let (mut batch, mut value) = (Batch::new(), Vec::new());
        while let Some(numbers) = self.take() {
            batch.clear();
            let (writes, count) = (Writes::default(), numbers.end - numbers.start);
            let mut placed = BTreeSet::new();
            for number in numbers {
                placed.extend(self.put(number, &writes, &mut batch, &mut value)?);
            }
            writes.wait().map_err(|refusal| match refusal {
                Refusal::Full => FillError::Full,
                refusal => FillError::Write(refusal),
            })?;
            let meta = self.store.meta();
            placed.into_iter().try_for_each(|pg| meta.write_marks(pg))?;
            self.kv().apply(&batch)?;
            self.written.fetch_add(count, Ordering::Relaxed);
            if self.kv().unflushed_bytes() >= FLUSH_BYTES {
                drop(self.state.lock());
                self.changed.notify_all();
            }
        }
        Ok(())
    }

    /// Numbers of the next objects, once the index has room for them; `None` if all are taken or something failed.
    fn take(&self) -> Option<Range<u64>> {
        {
            let mut state = self.state.lock();
            while self.kv().unflushed_bytes() > FILL_UNFLUSHED_BYTES_MAX && !state.has_failed {
                self.changed.wait(&mut state);
            }
            if state.has_failed {
                return None;
            }
        }
        let count = (FILL_BATCH_BYTES / self.config.bytes.max(1)).clamp(1, FILL_BATCH_OBJECTS);
        let end = self.first + self.config.objects;
        let from = self.next.fetch_add(count, Ordering::Relaxed);
        (from < end).then(|| from..end.min(from + count))
    }

    /// Writes an object's data, if its row does not hold it, and adds the row to a batch. Returns its PG if there is data.
    fn put(
        &self,
        number: u64,
        writes: &Writes,
        batch: &mut Batch,
        value: &mut Vec<u8>,
    ) -> Result<Option<PgId>, FillError> {
        let key = keys::key(self.config.seed, number);
        let data = (self.content)(key.as_str(), self.config.bytes);
        assert_eq!(data.len() as u64, self.config.bytes, "{key:?} has the bytes asked for");
        let etag = ETag::Md5(Md5::digest(&data).into());
        let pg = self.store.meta().pg_of(self.bucket, &key);
        let op = self.ops[pg.0 as usize];
        let is_inline = data.len() <= INLINE_BYTES_MAX as usize;
        let body = match is_inline {
            true => Body::Inline(data),
            false => Body::Chunk(self.put_chunk(pg, op, number, data, writes)?),
        };
        value.clear();
        encode_into(&VersionRow { op, metax: self.metax(etag), body }, value);
        batch.put(&rows::version(self.bucket, &key, rows::UNVERSIONED), value);
        Ok((!is_inline).then_some(pg))
    }

    fn metax(&self, etag: ETag) -> Metax {
        Metax::new(self.config.bytes, self.clock, etag)
    }

    fn put_chunk(
        &self,
        pg: PgId,
        op: OpId,
        number: u64,
        data: Bytes,
        writes: &Writes,
    ) -> Result<Chunk, FillError> {
        let attempts = self.attempts.fetch_add(1, Ordering::Relaxed);
        let Ok(attempt) = u32::try_from(attempts) else {
            // The next start begins a view, and with it counts anew.
            let remedy = format!("at most {} with data at a time", u32::MAX);
            return Err(FillError::Config { field: "objects", found: attempts, remedy });
        };
        let grant = Grant { pg, op, attempt };
        let len = data.len() as u32;
        let (lv, extents) = self.place(pg, len)?;
        let seed = seed_of(&Request { session: self.session, number, floor: 0 });
        let sums = sum_blocks(seed, std::iter::once(&data[..]));
        let action = Action::Write { lv, grant, extents: extents.clone(), data: vec![data], len };
        self.store.data().perform(action, len as usize, writes.one());
        Ok(Chunk { grant, seed, lv, extents, len, sums, holders: Holders::default().with(0) })
    }

    /// Space of a PG, which draws a volume if it has none left.
    fn place(&self, pg: PgId, bytes: u32) -> Result<(LvId, Vec<Extent>), FillError> {
        let meta = self.store.meta();
        for _ in 0..FILL_PLACE_TRIES {
            match meta.reserve(pg, bytes) {
                Ok(place) => return Ok(place),
                // The rows were read before the fill began.
                Err(NoSpace::Opening | NoSpace::Unread) => {}
                Err(NoSpace::NeedLv) => meta.draw_lv(pg),
                Err(NoSpace::TooNarrow | NoSpace::DiskFull) => break,
            }
            self.await_opens();
        }
        Err(FillError::Full)
    }

    /// Waits until all volumes ordered to open are open. The disk thread answers requests in order, also one for a
    /// volume that does not exist.
    fn await_opens(&self) {
        let (lv, last) = (LvId(u32::MAX), Writes::default());
        let action = Action::RaiseFloor { lv, floor: OpId::default() };
        self.store.data().perform(action, 0, last.one());
        assert_eq!(last.wait(), Err(Refusal::UnknownLv), "no store has so many volumes");
    }
}
