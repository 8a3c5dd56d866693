//! Rebuild: walks over the index for the PGs that this server leads, and makes the copies that they lack.
//!
//! ```text
//!  look, every so often ─▶ walk: rows, piece by piece ─▶ copies of the piece, a few at a time ─▶ next piece
//!                                                          └── paced by the budget
//! ```
//!
//! # Invariants
//!
//! 1. A walk's copies are all over before it ends: a PG is told that it was walked over only then.
//! 2. Copies take no more than the budget: so many at a time, so many bytes a second.
//! 3. What is read or written here is bounded by a piece: rows, copies, and the bytes of a chunk for each copy.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use larder_kv::KvReader;
use larder_protocol::pg::{Refill, Walk, chunk_in, owner};
use larder_protocol::{Event, IndexError};
use larder_types::PgId;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Meta;
use super::index::index_error;
use crate::limits::{
    REBUILD_COPIES_MAX, REBUILD_LOOK, REBUILD_PAUSE_MAX, REBUILD_PIECE_COPIES_MAX, REBUILD_ROWS_MAX,
};

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

/// Paces copies: so many bytes a second over all of them.
struct Budget {
    bytes_per_s: u64,
    next: Instant,
}

impl Budget {
    /// Waits until a copy of so many bytes may begin.
    async fn wait_for(&mut self, bytes: u64) {
        let begins = self.next.max(Instant::now());
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        self.next = begins + takes;
        sleep_until(begins).await;
    }
}

/// A piece of a walk: the copies to be made, and after which row it goes on; `None` at the end.
struct Piece {
    walk: Walk,
    refills: Vec<(PgId, Refill)>,
    after: Option<Vec<u8>>,
}

/// Rebuilds until the server is gone.
pub(super) async fn run(meta: Weak<Meta>, bytes_per_s: u64) {
    let mut budget = Budget { bytes_per_s, next: Instant::now() };
    let (mut good_max, mut pause) = (1, REBUILD_LOOK);
    loop {
        sleep_until(Instant::now() + pause).await;
        let Some(meta) = meta.upgrade() else { return };
        if meta.is_stopping() {
            return;
        }
        let Some(walk) = meta.wanted_walk(good_max) else {
            (good_max, pause) = (1, REBUILD_LOOK);
            continue;
        };
        match meta.walk(walk, &mut budget).await {
            Ok(walk) => {
                good_max = walk.next_good_max();
                // Where nothing can be done now it is not tried at once again.
                let longer = (2 * pause).min(REBUILD_PAUSE_MAX);
                pause = if walk.has_effect() { REBUILD_LOOK } else { longer };
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

    async fn walk(self: &Arc<Self>, walk: Walk, budget: &mut Budget) -> Result<Walk, IndexError> {
        self.rebuild.walks.fetch_add(1, Ordering::Relaxed);
        let mut piece = Piece { walk, refills: Vec::new(), after: Some(Vec::new()) };
        while let Some(after) = piece.after.take() {
            let (meta, walk) = (self.clone(), piece.walk);
            let looked = tokio::task::spawn_blocking(move || meta.consider_rows(walk, &after));
            piece = match looked.await {
                Ok(looked) => looked?,
                Err(error) => return Err(IndexError(error.to_string())),
            };
            self.copy_all(std::mem::take(&mut piece.refills), budget).await;
            if self.is_stopping() {
                break;
            }
        }
        let walk = piece.walk;
        self.rebuild.lacking.lock().clone_from(walk.lacking());
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
        let (mut refills, mut rows) = (Vec::new(), 0);
        let (mut last, mut failed) = (None, None);
        let mut from = after.to_vec();
        from.push(0);
        let mut visit = |row: &[u8], value: &[u8]| {
            rows += 1;
            match self.consider_row(&mut walk, row, value) {
                Ok(found) => refills.extend(found),
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            if rows < REBUILD_ROWS_MAX && refills.len() < REBUILD_PIECE_COPIES_MAX {
                return ControlFlow::Continue(());
            }
            last = Some(row.to_vec());
            ControlFlow::Break(())
        };
        self.index.kv.scan(&from, None, &mut visit).map_err(index_error)?;
        failed.map_or(Ok(Piece { walk, refills, after: last }), Err)
    }

    fn consider_row(
        &self,
        walk: &mut Walk,
        row: &[u8],
        value: &[u8],
    ) -> Result<Option<(PgId, Refill)>, IndexError> {
        let of = owner(row, value, self.pgs.len() as u32)?;
        let Some(pg) = of.filter(|pg| walk.is_for(*pg)) else { return Ok(None) };
        let Some(chunk) = chunk_in(row, value)? else { return Ok(None) };
        let mut member = self.lock(pg);
        let found = walk.consider(&mut member.pg, (row, &chunk), &self.index)?;
        Ok(found.map(|refill| (pg, *refill)))
    }

    /// Makes copies, a few at a time.
    async fn copy_all(self: &Arc<Self>, refills: Vec<(PgId, Refill)>, budget: &mut Budget) {
        let mut under_way = JoinSet::new();
        for (pg, refill) in refills {
            budget.wait_for(u64::from(refill.chunk.len)).await;
            while under_way.len() >= REBUILD_COPIES_MAX {
                under_way.join_next().await;
            }
            let meta = self.clone();
            under_way.spawn(async move {
                let Some(cluster) = meta.cluster() else { return };
                let is_copied = cluster.copy(&refill).await;
                meta.rebuild.count(&refill, is_copied);
                let Refill { row, grant, .. } = refill;
                let event = Event::Refilled { row, grant, is_copied };
                meta.step(&mut meta.lock(pg), event);
            });
        }
        while under_way.join_next().await.is_some() {}
    }
}
