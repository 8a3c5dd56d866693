//! Rebuild: walks over the index for the PGs that this server leads, and makes the copies that they lack.
//!
//! ```text
//!  look, every so often ─▶ walk: rows, piece by piece ─▶ copies of the piece, a few at a time ─▶ next piece
//!                                                          └── each when the budget lets it begin
//! ```
//!
//! # Invariants
//!
//! 1. A walk's copies are all over before it ends: a PG is told that it was walked over only then.
//! 2. Copies take no more than the budget of background work.
//! 3. What is read or written here is bounded by a piece: rows, copies, and the bytes of a chunk for each copy.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use larder_kv::KvReader;
use larder_protocol::background::Work;
use larder_protocol::limits::WALK_LOOK_MS;
use larder_protocol::pg::{Refill, Rhythm, Walk, chunk_at};
use larder_protocol::{Event, IndexError};
use larder_types::PgId;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Meta;
use super::index::index_error;
use crate::blocking;
use crate::limits::{REBUILD_PIECE_COPIES_MAX, REBUILD_ROWS_MAX};
use crate::progress::RebuildNow;

/// Bounds of a chunk's copies for which copies are counted one by one.
const GOOD_MAX: usize = 4;

/// What the rebuild of a server's PGs has done.
#[derive(Debug, Default)]
pub struct RebuildCounters {
    walks: AtomicU64,
    made: [AtomicU64; GOOD_MAX],
    mended: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    /// Chunks that the last walk found lacking something, by the number of copies that can be read.
    lacking: Mutex<BTreeMap<usize, u64>>,
    extent: Mutex<Extent>,
}

/// How much there was to do since all was well, and is left.
#[derive(Debug, Default)]
struct Extent {
    chunks: u64,
    left: u64,
}

impl Extent {
    /// A walk has found this so far, and has had copies made; `before` were known to be left when it began.
    fn note(&mut self, before: u64, lacking: &BTreeMap<usize, u64>, made: u64) {
        let found = before.max(lacking.values().sum());
        self.left = found.saturating_sub(made);
        self.chunks = if found == 0 { 0 } else { self.chunks.max(found) };
    }
}

impl RebuildCounters {
    /// Walks over the index.
    #[must_use]
    pub fn walks(&self) -> u64 {
        self.walks.load(Ordering::Relaxed)
    }

    /// Copies made of chunks of which so many could be read before: at least 1; the last number is for it and more.
    pub fn made(&self) -> impl Iterator<Item = (usize, u64)> {
        let made = self.made.each_ref().map(|made| made.load(Ordering::Relaxed));
        (1..).zip(made)
    }

    /// Copies that were damaged, and were made anew.
    #[must_use]
    pub fn mended(&self) -> u64 {
        self.mended.load(Ordering::Relaxed)
    }

    /// Bytes of copies made.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Copies that could not be made, and are tried again.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Chunks that the last walk found with a copy too few or in the wrong place, by the number of copies that can
    /// be read; with none at all their data is lost, or out of reach.
    #[must_use]
    pub fn lacking(&self) -> BTreeMap<usize, u64> {
        self.lacking.lock().clone()
    }

    /// How far it is.
    #[must_use]
    pub fn now(&self) -> RebuildNow {
        let (extent, lacking) = (self.extent.lock(), self.lacking.lock());
        let of = |good: usize| lacking.get(&good).copied().unwrap_or_default();
        RebuildNow {
            chunks: extent.chunks,
            left: extent.left,
            lost: of(0),
            single: of(1),
            made: self.made().map(|(_, made)| made).sum::<u64>() + self.mended(),
            failed: self.failed(),
        }
    }

    fn count(&self, refill: &Refill, is_copied: bool) {
        if !is_copied {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if refill.chunk.holders.has(refill.to) {
            self.mended.fetch_add(1, Ordering::Relaxed);
        } else {
            let had = refill.from.count().clamp(1, GOOD_MAX);
            self.made[had - 1].fetch_add(1, Ordering::Relaxed);
        }
        self.bytes.fetch_add(u64::from(refill.chunk.len), Ordering::Relaxed);
    }
}

/// A piece of a walk: the copies to be made, and after which row it goes on; `None` at the end.
struct Piece {
    walk: Walk,
    refills: Vec<(PgId, Refill)>,
    after: Option<Vec<u8>>,
}

/// Rebuilds until the server is gone.
pub(super) async fn run(meta: Weak<Meta>) {
    let (mut good_max, mut rhythm, began) = (1, Rhythm::default(), Instant::now());
    loop {
        sleep_until(Instant::now() + Duration::from_millis(WALK_LOOK_MS)).await;
        let Some(meta) = meta.upgrade() else { return };
        if meta.is_stopping() {
            return;
        }
        let Some(walk) = meta.wanted_walk(good_max) else {
            good_max = 1;
            rhythm.rests();
            continue;
        };
        let uptime_ms = || began.elapsed().as_millis() as u64;
        if !rhythm.is_due(uptime_ms(), &walk) {
            continue;
        }
        match meta.walk(walk).await {
            Ok(walk) => {
                good_max = walk.next_good_max();
                rhythm.ended(uptime_ms(), &walk);
            }
            Err(error) => return meta.fail(format!("the index cannot be walked over: {error}")),
        }
    }
}

impl Meta {
    /// A walk for all PGs that want one.
    fn wanted_walk(&self, good_max: usize) -> Option<Walk> {
        let mut walk = Walk::new(good_max);
        self.pg_ids().for_each(|pg| walk.add(&self.lock(pg).pg));
        walk.pgs().next()?;
        Some(walk)
    }

    async fn walk(self: &Arc<Self>, walk: Walk) -> Result<Walk, IndexError> {
        self.rebuild.walks.fetch_add(1, Ordering::Relaxed);
        let (before, mut made) = (self.rebuild.extent.lock().left, 0);
        let mut piece = Piece { walk, refills: Vec::new(), after: Some(Vec::new()) };
        while let Some(after) = piece.after.take() {
            let (meta, walk) = (self.clone(), piece.walk);
            let looked = blocking::run(move || meta.consider_rows(walk, &after));
            piece = match looked.await {
                Ok(looked) => looked?,
                Err(error) => return Err(IndexError(error.to_string())),
            };
            let copied = self.copy_all(std::mem::take(&mut piece.refills)).await;
            if copied > 0 {
                piece.walk.copied();
            }
            made += copied;
            self.rebuild.extent.lock().note(before, piece.walk.lacking(), made);
            if self.is_stopping() {
                break;
            }
        }
        let walk = piece.walk;
        self.rebuild.lacking.lock().clone_from(walk.lacking());
        self.rebuild.extent.lock().note(0, walk.lacking(), made);
        if !self.is_stopping() {
            for pg in walk.pgs() {
                let mut member = self.lock(pg);
                if let Some(event) = walk.ended(&member.pg) {
                    self.step(&mut member, event);
                }
            }
        }
        Ok(walk)
    }

    /// Looks at the rows after one, until there is enough to do.
    fn consider_rows(&self, mut walk: Walk, after: &[u8]) -> Result<Piece, IndexError> {
        let look = |row: &[u8], value: &[u8]| self.consider_row(&mut walk, row, value);
        let (refills, after) = self.rows_after(after, REBUILD_PIECE_COPIES_MAX, look)?;
        Ok(Piece { walk, refills, after })
    }

    /// Looks at the rows after one, until enough were looked at or so much was found to do; returns that, and after
    /// which row to go on, if there are more.
    pub(super) fn rows_after<T>(
        &self,
        after: &[u8],
        found_max: usize,
        mut look: impl FnMut(&[u8], &[u8]) -> Result<Option<T>, IndexError>,
    ) -> Result<(Vec<T>, Option<Vec<u8>>), IndexError> {
        let (mut found, mut rows) = (Vec::new(), 0);
        let (mut last, mut failed) = (None, None);
        let mut from = after.to_vec();
        from.push(0);
        let mut visit = |row: &[u8], value: &[u8]| {
            rows += 1;
            match look(row, value) {
                Ok(one) => found.extend(one),
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            if rows < REBUILD_ROWS_MAX && found.len() < found_max {
                return ControlFlow::Continue(());
            }
            last = Some(row.to_vec());
            ControlFlow::Break(())
        };
        self.index.kv.scan(&from, None, &mut visit).map_err(index_error)?;
        failed.map_or(Ok((found, last)), Err)
    }

    fn consider_row(
        &self,
        walk: &mut Walk,
        row: &[u8],
        value: &[u8],
    ) -> Result<Option<(PgId, Refill)>, IndexError> {
        let pg_count = self.pgs.len() as u32;
        let found = chunk_at(row, value, pg_count, |pg| walk.is_for(pg))?;
        let Some((pg, chunk)) = found else { return Ok(None) };
        let mut member = self.lock(pg);
        let found = walk.consider(&mut member.pg, (row, &chunk), &self.index)?;
        Ok(found.map(|refill| (pg, *refill)))
    }

    /// Makes copies, as many at a time as the budget lets begin; returns how many were made.
    async fn copy_all(self: &Arc<Self>, refills: Vec<(PgId, Refill)>) -> u64 {
        let mut under_way = JoinSet::new();
        for (pg, refill) in refills {
            let is_single = refill.from.count() <= 1;
            let work = if is_single { Work::RebuildSingle } else { Work::Rebuild };
            let piece = self.background.begin(work, u64::from(refill.chunk.len)).await;
            let meta = self.clone();
            under_way.spawn(async move {
                let Some(cluster) = meta.cluster() else { return false };
                let places = meta.lock(pg).duties.places_of(refill.chunk.lv);
                let is_copied = cluster.copy(&refill, &places, &meta.background).await;
                drop(piece);
                meta.rebuild.count(&refill, is_copied);
                let Refill { row, grant, .. } = refill;
                let event = Event::Refilled { row, grant, is_copied };
                meta.step(&mut meta.lock(pg), event);
                is_copied
            });
        }
        let mut made = 0;
        while let Some(copied) = under_way.join_next().await {
            made += u64::from(matches!(copied, Ok(true)));
        }
        made
    }
}
