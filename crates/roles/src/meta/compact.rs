//! Compaction: walks over the index for badly fragmented volumes of the PGs that this server leads, and copies chunks
//! to new places in them (ADR 24).
//!
//! ```text
//!  look, every so often ─▶ walk: rows, piece by piece ─▶ chunks of the piece, a few at a time ─▶ next piece
//!                                                          └── each when the budget lets it begin
//! ```
//!
//! # Invariants
//!
//! 1. All copies of a walk have ended before it ends.
//! 2. Copies take no more than the budget of background work, after all other work.
//! 3. Memory is bounded by a piece: its rows, its copies, and the bytes of a chunk for each copy.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use larder_protocol::background::Work;
use larder_protocol::limits::{COMPACT_PAUSE_MS, COMPACT_PAUSE_WALKS, MOVES_MAX};
use larder_protocol::pg::{Move, StartedCompaction, chunk_at};
use larder_protocol::space::Fragmentation;
use larder_protocol::{Event, IndexError};
use larder_types::{Chunk, PgId};
use larder_volume::{Action, Answer};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::copy::Ending;
use super::{Here, Meta, OtherRoles};
use crate::blocking;
use crate::data::DataServer;
use crate::limits::READ_PIECE_BYTES;
use crate::progress::CompactionStatus;

/// Counts of the compaction of a server's volumes.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    walks: AtomicU64,
    chunks: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    /// Badly fragmented volumes at the last look.
    fragmented: AtomicU64,
    /// Of the walk under way: volumes, bytes to be moved about, and bytes moved.
    under_way: AtomicU64,
    bytes_wanted: AtomicU64,
    bytes_made: AtomicU64,
}

impl Compaction {
    fn begin(&self, begun: StartedCompaction) {
        self.walks.fetch_add(1, Ordering::Relaxed);
        self.bytes_made.store(0, Ordering::Relaxed);
        self.bytes_wanted.store(begun.bytes, Ordering::Relaxed);
        self.under_way.store(begun.lvs as u64, Ordering::Relaxed);
    }

    fn end(&self) {
        for of_walk in [&self.under_way, &self.bytes_wanted, &self.bytes_made] {
            of_walk.store(0, Ordering::Relaxed);
        }
    }

    fn count(&self, bytes: u32, is_copied: bool) {
        if !is_copied {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.chunks.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(u64::from(bytes), Ordering::Relaxed);
        self.bytes_made.fetch_add(u64::from(bytes), Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> CompactionStatus {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CompactionStatus {
            fragmented: load(&self.fragmented),
            under_way: load(&self.under_way),
            bytes_wanted: load(&self.bytes_wanted),
            bytes_made: load(&self.bytes_made),
            walks: load(&self.walks),
            chunks: load(&self.chunks),
            bytes: load(&self.bytes),
            failed: load(&self.failed),
        }
    }
}

/// Compacts until the server is gone.
pub(super) async fn run(meta: Weak<Meta>) {
    let mut pause = Duration::from_millis(COMPACT_PAUSE_MS);
    loop {
        sleep_until(Instant::now() + pause).await;
        let Some(meta) = meta.upgrade() else { return };
        if meta.is_stopping() {
            return;
        }
        if meta.is_read_only() {
            continue;
        }
        let read = match meta.compact().await {
            Ok(read) => read,
            Err(_) if meta.is_read_only() => continue,
            Err(error) => return meta.fail(format!("the index cannot be walked over: {error}")),
        };
        // Copies have a budget; this pause bounds the reading of rows.
        pause = (read * COMPACT_PAUSE_WALKS as u32).max(Duration::from_millis(COMPACT_PAUSE_MS));
    }
}

impl Meta {
    /// Walks over the index if a volume is badly fragmented. Returns the time for which it read rows.
    async fn compact(self: &Arc<Self>) -> Result<Duration, IndexError> {
        let (pgs, begun) = self.begin_compaction();
        if pgs.is_empty() {
            return Ok(Duration::ZERO);
        }
        self.compaction.begin(begun);
        let pgs = Arc::new(pgs);
        let walked = self.compact_all(&pgs).await;
        for &pg in &*pgs {
            self.lock(pg).pg.end_compaction();
        }
        self.compaction.end();
        walked
    }

    /// PGs with volumes that are to be compacted now.
    fn begin_compaction(&self) -> (BTreeSet<PgId>, StartedCompaction) {
        let from = Fragmentation::default();
        let (mut pgs, mut fragmented, mut all) = (BTreeSet::new(), 0, StartedCompaction::default());
        for pg in self.pg_ids() {
            let mut member = self.lock(pg);
            fragmented += member.pg.fragmented(from);
            let begun = member.pg.begin_compaction(from);
            if begun.lvs > 0 {
                pgs.insert(pg);
                all =
                    StartedCompaction { lvs: all.lvs + begun.lvs, bytes: all.bytes + begun.bytes };
            }
        }
        self.compaction.fragmented.store(fragmented as u64, Ordering::Relaxed);
        (pgs, all)
    }

    async fn compact_all(
        self: &Arc<Self>,
        pgs: &Arc<BTreeSet<PgId>>,
    ) -> Result<Duration, IndexError> {
        let (mut after, mut read) = (Some(Vec::new()), Duration::ZERO);
        while let Some(row) = after.take() {
            let began = Instant::now();
            let (meta, pgs) = (self.clone(), pgs.clone());
            let looked = blocking::run(move || {
                let look = |row: &[u8], value: &[u8]| meta.consider_move(&pgs, row, value);
                // One PG may have all of them.
                meta.rows_after(&row, |moves: &[_]| moves.len() >= MOVES_MAX, look)
            });
            let (moves, more) = looked.await.map_err(|error| IndexError(error.to_string()))??;
            read += began.elapsed();
            self.move_all(moves).await;
            if self.is_stopping() || self.is_read_only() {
                break;
            }
            after = more;
        }
        Ok(read)
    }

    fn consider_move(
        &self,
        pgs: &BTreeSet<PgId>,
        row: &[u8],
        value: &[u8],
    ) -> Result<Option<(PgId, Move)>, IndexError> {
        let found = chunk_at(row, value, self.pgs.len() as u32, |pg| pgs.contains(&pg))?;
        let Some((pg, chunk)) = found else { return Ok(None) };
        let found = self.lock(pg).pg.consider_move(row, &chunk, &self.index)?;
        Ok(found.map(|to| (pg, *to)))
    }

    /// Makes copies, as many at a time as the budget lets begin.
    async fn move_all(self: &Arc<Self>, moves: Vec<(PgId, Move)>) {
        let mut under_way = JoinSet::new();
        for (pg, to) in moves {
            let piece = self.background.begin(Work::Compact, u64::from(to.chunk.len)).await;
            let meta = self.clone();
            under_way.spawn(async move {
                let is_copied = match &meta.other_roles {
                    OtherRoles::Here(here) => here.copy_to_new_place(&to).await,
                    OtherRoles::Apart(cluster) => {
                        let places = meta.lock(pg).view_state.places_of(to.chunk.lv);
                        let copied =
                            cluster.copy_to_new_place(&to, &places, &meta.background).await;
                        meta.suspect_copies(pg, (&to.row, &to.chunk), (copied.bad, &places));
                        copied.ending == Ending::Durable
                    }
                };
                drop(piece);
                meta.compaction.count(to.chunk.len, is_copied);
                // A copy that no op names yet is given back.
                let is_copied = is_copied && !meta.is_read_only();
                let Move { row, grant, .. } = to;
                meta.step(&mut meta.lock(pg), Event::Moved { row, grant, is_copied });
            });
        }
        while under_way.join_next().await.is_some() {}
    }
}

impl Here {
    /// Copies a chunk to its new place. Returns true if the copy is durable.
    async fn copy_to_new_place(&self, to: &Move) -> bool {
        let (data, chunk) = (self.data.clone(), to.chunk.clone());
        let read = blocking::run(move || read_whole(&data, &chunk));
        let Ok(Some(bytes)) = read.await else { return false };
        let (lv, grant, extents) = (to.chunk.lv, to.grant, to.extents.clone());
        let action = Action::Write { lv, grant, extents, data: vec![bytes], len: to.chunk.len };
        let (sender, receiver) = oneshot::channel();
        let then = move |result| {
            // The waiting caller is gone only with the server.
            let _gone = sender.send(result);
        };
        self.data.perform(action, to.chunk.len as usize, Box::new(then));
        match receiver.await {
            Ok(Ok(Answer::Written)) => true,
            outcome => {
                tracing::debug!(%lv, ?outcome, "the disk refused a copy");
                false
            }
        }
    }
}

/// Reads and verifies all bytes of a chunk; blocks.
fn read_whole(data: &DataServer, chunk: &Chunk) -> Option<Bytes> {
    let mut whole = BytesMut::with_capacity(chunk.len as usize);
    let step = READ_PIECE_BYTES as u32;
    for start in (0..chunk.len).step_by(step as usize) {
        let range = start..chunk.len.min(start + step);
        match data.read_verified(chunk, range) {
            Ok(bytes) => whole.extend_from_slice(&bytes),
            Err(state) => {
                // It is damaged, or was deleted meanwhile: the scrub finds out.
                tracing::debug!(lv = %chunk.lv, ?state, "a chunk to be moved failed verification");
                return None;
            }
        }
    }
    Some(whole.freeze())
}
