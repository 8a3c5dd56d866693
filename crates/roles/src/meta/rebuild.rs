//! Rebuild: walks over the index for the PGs that this server leads, and makes the copies that they lack.
//!
//! ```text
//!  look, every so often ─▶ walk: rows, piece by piece ─▶ copies of the piece, a few at a time ─▶ next piece
//!                                                          └── each when the budget lets it begin    └── in its turn
//! ```
//!
//! # Invariants
//!
//! 1. All copies of a walk have ended before it ends. Only then do PGs learn that they were walked over; a walk that a stop
//!    has interrupted tells them nothing.
//! 2. Copies take no more than the budget of background work and the budgets that other meta servers lend.
//! 3. Memory is bounded by a piece: its rows, its copies, and the bytes of a chunk for each copy.

mod order;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use larder_kv::KvReader;
use larder_protocol::background::Work;
use larder_protocol::limits::WALK_CHECK_MS;
use larder_protocol::pg::{CopyPriority, Refill, Walk, WalkSchedule, chunk_at};
use larder_protocol::{Call, Event, IndexError};
use larder_types::{Chunk, Counter, Holders, PgId, View};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Meta;
use super::callers::NOBODY;
use super::copy::{Ending, Places};
use super::index::index_error;
use crate::blocking;
use crate::clock::now;
use crate::limits::{
    REBUILD_PIECE_COPIES_MAX, REBUILD_PIECE_SECONDS, REBUILD_ROWS_MAX, SINGLE_COPIES_PAUSE,
};
use crate::progress::RebuildStatus;
use order::Order;

/// Copies made are counted by the number of good copies before, up to this one.
const GOOD_MAX: usize = 4;

/// Counts of a server's rebuild since its start.
#[derive(Debug, Default)]
pub struct RebuildCounters {
    /// Walks over the index.
    pub walks: Counter,
    made: [Counter; GOOD_MAX],
    /// Damaged copies that were made anew.
    pub mended: Counter,
    /// Bytes of copies made.
    pub bytes: Counter,
    /// Copies that could not be made, and are tried again.
    pub failed: Counter,
    /// Copies that were not tried yet, as their servers were busy.
    pub put_off: Counter,
    /// Chunks that the last walk found with a copy too few or misplaced, by the number of copies that can be read.
    lacking: Mutex<BTreeMap<usize, u64>>,
    extent: Mutex<Extent>,
    /// The order of copies among the meta servers of the cluster.
    pub(super) order: Order,
}

/// The most chunks that lacked copies since none did last, and those that are left.
#[derive(Debug, Default)]
struct Extent {
    chunks: u64,
    left: u64,
}

impl Extent {
    /// Notes what a walk has found and made so far; `before` chunks were known to be left when it began.
    fn note(&mut self, before: u64, lacking: &BTreeMap<usize, u64>, made: u64) {
        let found = before.max(lacking.values().sum());
        self.left = found.saturating_sub(made);
        self.chunks = if found == 0 { 0 } else { self.chunks.max(found) };
    }
}

impl RebuildCounters {
    /// Copies made, by the number of good copies before: from 1 up to [`GOOD_MAX`], which stands for more, too.
    pub fn made(&self) -> impl Iterator<Item = (usize, u64)> {
        let made = self.made.each_ref().map(Counter::get);
        (1..).zip(made)
    }

    /// Milliseconds for which copies waited for more urgent ones of other servers.
    #[must_use]
    pub fn waited_ms(&self) -> u64 {
        self.order.waited_ms()
    }

    /// Chunks that the last walk found with a copy too few or misplaced, by the number of copies that can
    /// be read. The data of chunks at 0 are lost or out of reach.
    #[must_use]
    pub fn lacking(&self) -> BTreeMap<usize, u64> {
        self.lacking.lock().clone()
    }

    /// Its progress.
    #[must_use]
    pub fn now(&self) -> RebuildStatus {
        let (extent, lacking) = (self.extent.lock(), self.lacking.lock());
        let of = |good: usize| lacking.get(&good).copied().unwrap_or_default();
        RebuildStatus {
            chunks: extent.chunks,
            left: extent.left,
            lost: of(0),
            single: of(1),
            made: self.made().map(|(_, made)| made).sum::<u64>() + self.mended.get(),
            failed: self.failed.get(),
        }
    }

    fn count(&self, refill: &Refill, ending: Ending) {
        match ending {
            Ending::Durable => {}
            Ending::PutOff => {
                self.put_off.add(1);
                return;
            }
            Ending::Failed => {
                self.failed.add(1);
                return;
            }
        }
        if refill.chunk.holders.has(refill.to) {
            self.mended.add(1);
        } else {
            let had = refill.from.count().clamp(1, GOOD_MAX);
            self.made[had - 1].add(1);
        }
        self.bytes.add(u64::from(refill.chunk.len));
    }
}

/// A piece of a walk: the copies to make, and the row after which the walk goes on; `None` at the end.
struct Piece {
    walk: Walk,
    refills: Vec<(PgId, Refill)>,
    after: Option<Vec<u8>>,
}

impl Piece {
    fn before(walk: Walk) -> Self {
        Self { walk, refills: Vec::new(), after: Some(Vec::new()) }
    }
}

/// The looks at groups for chunks with a single copy, which interrupt a less urgent walk.
#[derive(Default)]
struct RebuildState {
    /// The number of replica changes of each group at its last look.
    known: ReplicaChanges,
    /// The time before which no other look begins.
    not_before: Option<Instant>,
}

/// The number of changes of replicas in each group, in its view.
type ReplicaChanges = BTreeMap<PgId, (View, u64)>;

impl RebuildState {
    fn begin(&mut self, walk: &Walk, now: &ReplicaChanges) {
        self.known.extend(walk.pgs().filter_map(|pg| Some((pg, *now.get(&pg)?))));
    }

    /// Has groups that still have chunks with a single copy looked at again.
    fn ended(&mut self, walk: &Walk) {
        for pg in walk.still_single() {
            self.known.remove(&pg);
        }
    }

    fn are_due(&self) -> bool {
        self.not_before.is_none_or(|not_before| Instant::now() >= not_before)
    }
}

/// Rebuilds until the server is gone.
pub(super) async fn run(meta: Weak<Meta>) {
    let (mut bound, mut walk_schedule, began) =
        (CopyPriority::FIRST, WalkSchedule::default(), Instant::now());
    let mut looks = RebuildState::default();
    loop {
        sleep_until(Instant::now() + Duration::from_millis(WALK_CHECK_MS)).await;
        let Some(meta) = meta.upgrade() else { return };
        if meta.is_stopping() {
            return;
        }
        // Read before the walk, so that the next look sees later changes.
        let changes = meta.replica_changes();
        let Some(walk) = meta.wanted_walk(bound) else {
            bound = CopyPriority::FIRST;
            meta.rebuild.order.rest();
            walk_schedule.cancel();
            continue;
        };
        let uptime_ms = || began.elapsed().as_millis() as u64;
        if !walk_schedule.is_due(uptime_ms(), &walk) {
            meta.rebuild.order.rest();
            continue;
        }
        if walk.bound().is_single() {
            looks.begin(&walk, &changes);
        }
        match meta.walk(walk, &mut looks).await {
            Ok(walk) => {
                bound = walk.next_bound();
                walk_schedule.ended(uptime_ms(), &walk);
            }
            Err(error) => return meta.fail(format!("the index cannot be walked over: {error}")),
        }
    }
}

impl Meta {
    /// A walk for all PGs that need one.
    fn wanted_walk(&self, bound: CopyPriority) -> Option<Walk> {
        let mut walk = Walk::new(bound.max(self.first(self.pg_ids())));
        self.pg_ids().for_each(|pg| walk.add(&self.lock(pg).pg));
        walk.pgs().next()?;
        Some(walk)
    }

    /// A look at the PGs among these that may lack copies.
    fn scan_groups(&self, pgs: &[PgId], bound: CopyPriority) -> Option<Walk> {
        let mut look = Walk::new(bound.max(self.first(pgs.iter().copied())));
        pgs.iter().for_each(|pg| look.look_at(&self.lock(*pg).pg));
        look.pgs().next()?;
        Some(look)
    }

    /// The most urgent priority that copies in these PGs may have. Only if a volume is read much is it the first of all.
    fn first(&self, mut pgs: impl Iterator<Item = PgId>) -> CopyPriority {
        let now_ms = now().steady_ms;
        CopyPriority::new(1, pgs.any(|pg| self.lock(pg).pg.has_hot(now_ms)))
    }

    /// Makes the copies of a walk. It pauses between two pieces while other servers have more urgent copies, and for looks for
    /// chunks with a single copy in groups of this server whose replicas have changed.
    async fn walk(
        self: &Arc<Self>,
        walk: Walk,
        looks: &mut RebuildState,
    ) -> Result<Walk, IndexError> {
        let (before, mut made) = (self.rebuild.extent.lock().left, 0);
        self.rebuild.walks.add(1);
        self.rebuild.order.begin(walk.bound());
        let mut piece = Piece::before(walk);
        while piece.after.is_some() && !self.is_stopping() {
            if !piece.walk.bound().is_single() {
                if looks.are_due()
                    && let Some(singles) = self.find_single_copies(looks).await?
                {
                    made += singles;
                    self.rebuild.order.begin(piece.walk.bound());
                }
                if !self.rebuild.order.may_copy(self.cluster()) {
                    self.rebuild.order.wait().await;
                    continue;
                }
            }
            let copied;
            (piece, copied) = self.do_piece(piece).await?;
            made += copied;
            self.rebuild.extent.lock().note(before, piece.walk.lacking(), made);
        }
        let walk = piece.walk;
        looks.ended(&walk);
        if piece.after.is_some() {
            return Ok(walk);
        }
        self.rebuild.lacking.lock().clone_from(walk.lacking());
        self.rebuild.extent.lock().note(0, walk.lacking(), made);
        self.log_walked(&walk);
        Ok(walk)
    }

    /// Looks at groups whose replicas have changed since their last look, as long as they have chunks with a single
    /// copy. Returns the number of copies made; `None` if there is no such group. The groups do not count as walked over: the
    /// walk that pauses meanwhile has not looked at all of their rows.
    async fn find_single_copies(
        self: &Arc<Self>,
        looks: &mut RebuildState,
    ) -> Result<Option<u64>, IndexError> {
        let (now, began, mut made) = (self.replica_changes(), Instant::now(), None);
        let is_news = |pg: &PgId| looks.known.get(pg) != now.get(pg);
        let notifier: Vec<PgId> = now.keys().copied().filter(is_news).collect();
        let mut bound = CopyPriority::FIRST;
        while let Some(walk) = self.scan_groups(&notifier, bound) {
            self.rebuild.walks.add(1);
            self.rebuild.order.begin(walk.bound());
            looks.begin(&walk, &now);
            let (mut piece, mut made_now) = (Piece::before(walk), 0);
            while piece.after.is_some() && !self.is_stopping() {
                let copied;
                (piece, copied) = self.do_piece(piece).await?;
                made_now += copied;
            }
            looks.ended(&piece.walk);
            *made.get_or_insert(0) += made_now;
            let walked_to = piece.walk.bound();
            match piece.walk.left().filter(|left| left.is_single()) {
                // One group had too many to be made at once, or there are others that are read less.
                Some(left) if made_now > 0 || left > walked_to => bound = left,
                _ => break,
            }
        }
        // However often replicas change, less urgent copies have half of the time.
        let pause = began.elapsed().max(SINGLE_COPIES_PAUSE);
        looks.not_before = made.map(|_| Instant::now() + pause).or(looks.not_before);
        Ok(made)
    }

    fn replica_changes(&self) -> ReplicaChanges {
        let of = |pg| {
            let member = self.lock(pg);
            (pg, (member.pg.view(), member.pg.replica_changes()))
        };
        self.pg_ids().map(of).collect()
    }

    /// Tells PGs that they were walked over.
    fn log_walked(&self, walk: &Walk) {
        for pg in walk.pgs() {
            let mut member = self.lock(pg);
            if let Some(event) = walk.ended(&member.pg) {
                self.step(&mut member, event);
            }
        }
    }

    /// Looks at the rows of a piece, and makes their copies. Returns the next piece and the number of copies made.
    async fn do_piece(self: &Arc<Self>, piece: Piece) -> Result<(Piece, u64), IndexError> {
        let Piece { walk, after, .. } = piece;
        let (meta, after) = (self.clone(), after.unwrap_or_default());
        let looked = blocking::run(move || meta.consider_rows(walk, &after));
        let mut piece = match looked.await {
            Ok(looked) => looked?,
            Err(error) => return Err(IndexError(error.to_string())),
        };
        let refills = std::mem::take(&mut piece.refills);
        self.rebuild.order.found(refills.iter().map(|(_, refill)| refill.priority).min());
        let made = self.copy_all(refills, &mut piece.walk).await;
        self.rebuild.order.found(None);
        if made > 0 {
            piece.walk.copied();
        }
        Ok((piece, made))
    }

    /// Looks at the rows after one, until there are enough copies for [`REBUILD_PIECE_SECONDS`]: floors wait for copies that
    /// were begun, so a piece must be short.
    fn consider_rows(&self, mut walk: Walk, after: &[u8]) -> Result<Piece, IndexError> {
        let (mut bytes, bytes_max) = (0, self.background.copy_rate() * REBUILD_PIECE_SECONDS);
        let look = |row: &[u8], value: &[u8]| self.consider_row(&mut walk, row, value);
        let is_enough = |refills: &[(PgId, Refill)]| {
            bytes += refills.last().map_or(0, |(_, refill)| u64::from(refill.chunk.len));
            refills.len() >= REBUILD_PIECE_COPIES_MAX || bytes >= bytes_max
        };
        let (refills, after) = self.rows_after(after, is_enough, look)?;
        Ok(Piece { walk, refills, after })
    }

    /// Looks at the rows after one, until [`REBUILD_ROWS_MAX`] rows were read or `is_enough` says so of the findings, after each.
    /// Returns the findings, and the row after which to go on if there are more.
    pub(super) fn rows_after<T>(
        &self,
        after: &[u8],
        mut is_enough: impl FnMut(&[T]) -> bool,
        mut look: impl FnMut(&[u8], &[u8]) -> Result<Option<T>, IndexError>,
    ) -> Result<(Vec<T>, Option<Vec<u8>>), IndexError> {
        let (mut found, mut rows) = (Vec::new(), 0);
        let (mut last, mut failed) = (None, None);
        let mut from = after.to_vec();
        from.push(0);
        let mut visit = |row: &[u8], value: &[u8]| {
            rows += 1;
            let mut enough = rows >= REBUILD_ROWS_MAX;
            match look(row, value) {
                Ok(Some(one)) => {
                    found.push(one);
                    enough |= is_enough(&found);
                }
                Ok(None) => {}
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            if !enough {
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

    /// Makes copies, as many at a time as the budget allows. Returns the number of copies made.
    async fn copy_all(self: &Arc<Self>, refills: Vec<(PgId, Refill)>, walk: &mut Walk) -> u64 {
        let mut under_way = JoinSet::new();
        for (pg, refill) in refills {
            if self.is_shunned(pg, &refill) {
                if refill.priority.is_single() {
                    walk.missed_single(pg);
                }
                self.refilled((pg, refill), Ending::PutOff);
                continue;
            }
            let is_single = refill.priority.is_single();
            let work = if is_single { Work::RebuildSingle } else { Work::Rebuild };
            let piece = self.background.begin(work, u64::from(refill.chunk.len)).await;
            let meta = self.clone();
            under_way.spawn(async move {
                let ending = meta.copy_one(pg, &refill).await;
                drop(piece);
                meta.refilled((pg, refill), ending);
                (pg, is_single, ending)
            });
        }
        let mut made = 0;
        while let Some(ended) = under_way.join_next().await {
            match ended {
                Ok((_, _, Ending::Durable)) => made += 1,
                Ok((pg, true, _)) => walk.missed_single(pg),
                Ok((_, false, _)) | Err(_) => {}
            }
        }
        made
    }

    /// Returns true if the data server that is to make a copy let another time out a moment ago.
    fn is_shunned(&self, pg: PgId, refill: &Refill) -> bool {
        let server = self.lock(pg).view_state.place(refill.chunk.lv, refill.to);
        let copy_backoff = self.cluster().map(|cluster| &cluster.copy_backoff);
        server.zip(copy_backoff).is_some_and(|(server, copy_backoff)| copy_backoff.has(server))
    }

    fn refilled(&self, (pg, refill): (PgId, Refill), ending: Ending) {
        self.rebuild.count(&refill, ending);
        let Refill { row, grant, .. } = refill;
        let event = Event::Refilled { row, grant, is_copied: ending == Ending::Durable };
        self.step(&mut self.lock(pg), event);
    }

    async fn copy_one(&self, pg: PgId, refill: &Refill) -> Ending {
        let Some(cluster) = self.cluster() else { return Ending::Failed };
        let places = self.lock(pg).view_state.places_of(refill.chunk.lv);
        let copied = cluster.copy(refill, &places, &self.background).await;
        self.suspect_copies(pg, (&refill.row, &refill.chunk), (copied.bad, &places));
        copied.ending
    }

    /// Reports copies whose servers say that they do not verify. They are made anew, unless the chunk was deleted or
    /// moved meanwhile.
    pub(super) fn suspect_copies(
        &self,
        pg: PgId,
        (row, chunk): (&[u8], &Chunk),
        (bad, places): (Holders, &Places),
    ) {
        for replica in bad.iter() {
            let Some(&server) = places.get(replica) else { continue };
            let mut member = self.lock(pg);
            match member.pg.is_damaged(row, chunk, replica, &self.index) {
                Ok(Some(true)) => {
                    let (lv, grant) = (chunk.lv, chunk.grant);
                    tracing::error!(%pg, %lv, ?grant, %server, "a copy is damaged on a disk that is failing");
                    let call = Call::Suspect { grant, server };
                    self.step(&mut member, Event::Call { token: NOBODY, call });
                }
                Ok(_) => {}
                Err(error) => tracing::error!(%error, "a row of the index cannot be read"),
            }
        }
    }
}
