//! Scrub: rounds over the index, in which the data server of every copy of every chunk verifies it. No bytes of copies cross
//! the network.
//!
//! ```text
//!  due ─▶ rows, piece by piece ─▶ each copy: pace, budget ─▶ DataCall::Verify ─┬─▶ right
//!           │                                                                 ├─▶ damaged, and still named: Call::Suspect
//!           └── where it is: a file, every so often                           └─▶ no answer: the group stays due
//! ```
//!
//! # Invariants
//!
//! 1. A copy counts as damaged only if the index shows its chunk after it was verified (`Pg::is_damaged`).
//! 2. Damage is logged and, if there is another copy, mended by the rebuild. The scrub removes nothing.
//! 3. A round reads the whole index, also rows that name nothing: so damage of the index is found while there are backups
//!    of it (`damage.rs`).
//! 4. Memory is bounded by a piece. While the scrub waits for its turn it does not keep the server from being dropped.

mod v1;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use larder_env::disk::{read_file, replace_file};
use larder_env::{Disk, DiskError};
use larder_kv::KvReader;
use larder_protocol::background::Work;
use larder_protocol::pg::{Role, chunk_at};
use larder_protocol::scrub::{Scrub, Tally};
use larder_protocol::{Call, Event, IndexError};
use larder_types::codec::CodecError;
use larder_types::{Chunk, PgId, ServerId};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::background::Background;
use super::callers::NOBODY;
use super::cluster::Cluster;
use super::index::index_error;
use super::{Meta, OtherRoles};
use crate::blocking;
use crate::clock::now_ms;
use crate::limits::{
    DATA_ANSWER_MAX, SCRUB_CHECK_INTERVAL, SCRUB_LED_TIMEOUT, SCRUB_LOGGED_MAX, SCRUB_PIECE_BYTES,
    SCRUB_PIECE_COPIES_MAX, SCRUB_ROWS_MAX, SCRUB_SAVE,
};
use crate::managers::down;
use crate::progress::ScrubStatus;
use crate::wire::{CopyState, DataCall, DataReply};

/// The file of the scrub's state, in the server's directory.
pub const SCRUB_FILE: &str = "scrub";

/// The scrub waits one part in this many of its period for groups that this server does not lead yet.
const LED_PART: u32 = 16;

/// The state of a server's scrub, and its findings since the server's start.
#[derive(Debug, Default)]
pub(super) struct Scrubbing {
    /// Its state, and its period in milliseconds; `None` if this server does not scrub.
    state: Mutex<Option<(Scrub, u64)>>,
    right: AtomicU64,
    bad: AtomicU64,
    unanswered: AtomicU64,
}

/// A copy to be verified.
#[derive(Clone)]
struct Copy {
    pg: PgId,
    row: Bytes,
    chunk: Arc<Chunk>,
    replica: usize,
    server: ServerId,
}

/// A piece of a round: the copies that some rows name.
#[derive(Default)]
struct Piece {
    copies: Vec<Copy>,
    /// PGs with rows in it that this server does not lead now.
    missed: BTreeSet<PgId>,
    /// The row after which the round goes on; `None` at the end.
    after: Option<Vec<u8>>,
}

/// Reads the state of the scrub; `None` if there is no file.
///
/// # Errors
/// [`DiskError`] if the file cannot be read, and [`CodecError`] if it cannot be decoded.
pub(crate) fn load(disk: &dyn Disk) -> Result<Option<Result<Scrub, CodecError>>, DiskError> {
    match read_file(disk, SCRUB_FILE) {
        Ok(bytes) => Ok(Some(v1::decode_file(&bytes))),
        Err(DiskError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The driver of a server's scrub.
pub(super) struct Scrubber {
    pub(super) meta: Weak<Meta>,
    pub(super) background: Arc<Background>,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) period: Duration,
    /// The time before which the next copy is not verified.
    pub(super) next: Instant,
    /// The time at which the state was last written.
    pub(super) saved: Instant,
}

impl Scrubber {
    /// Verifies until the server is gone.
    pub(super) async fn run(mut self) {
        if self.begin().await.is_none() {
            return;
        }
        let mut looked = Instant::now();
        loop {
            sleep_until(looked + SCRUB_CHECK_INTERVAL).await;
            looked = Instant::now();
            let Some(meta) = self.meta.upgrade().filter(|meta| !meta.is_stopping()) else { return };
            meta.begin_round();
            let is_under_way = meta.scrub.with(|scrub| scrub.round().is_some());
            drop(meta);
            if is_under_way == Some(true) && self.round().await.is_none() {
                return;
            }
        }
    }

    /// Loads the state that the last run has written. Here and below: `None` once the server is gone.
    async fn begin(&mut self) -> Option<()> {
        let disk = self.disk.clone();
        let loaded = blocking::run(move || load(&*disk)).await.ok()?;
        let scrub = match loaded {
            Ok(Some(Ok(scrub))) => scrub,
            Ok(Some(Err(error))) => {
                tracing::warn!(%error, "the scrub starts from the beginning");
                Scrub::new(now_ms())
            }
            Ok(None) => Scrub::new(now_ms()),
            Err(error) => {
                tracing::warn!(%error, "the scrub's position cannot be read: starting from the beginning");
                Scrub::new(now_ms())
            }
        };
        let state = (scrub, self.period.as_millis() as u64);
        *self.meta.upgrade()?.scrub.state.lock() = Some(state);
        self.save().await
    }

    /// Carries out the round under way to its end.
    async fn round(&mut self) -> Option<()> {
        self.save().await?;
        loop {
            self.wait_to_lead().await?;
            let meta = self.meta.upgrade()?;
            let server = meta.clone();
            let looked = blocking::run(move || server.copies_to_verify());
            let piece = match looked.await.ok()? {
                Ok(piece) => piece,
                Err(error) => {
                    tracing::error!(%error, "a scrub round was abandoned: the index cannot be read");
                    meta.give_up_round();
                    return self.save().await;
                }
            };
            drop(meta);
            self.verify(piece.copies).await?;
            let is_over = piece.after.is_none();
            self.meta.upgrade()?.scrub.with(|scrub| {
                piece.missed.iter().for_each(|pg| scrub.missed(*pg));
                scrub.found(Tally::default(), piece.after);
                if is_over {
                    scrub.end(now_ms());
                }
            });
            if is_over || self.saved.elapsed() >= SCRUB_SAVE {
                self.save().await?;
            }
            if is_over {
                return Some(());
            }
        }
    }

    /// Waits a while to lead the groups of the round: after a restart this server leads none at first. Another server leads
    /// those that do not come.
    async fn wait_to_lead(&mut self) -> Option<()> {
        let until = Instant::now() + (self.period / LED_PART).min(SCRUB_LED_TIMEOUT);
        loop {
            let meta = self.meta.upgrade().filter(|meta| !meta.is_stopping())?;
            let led = meta.led();
            let apart: Vec<PgId> = meta
                .scrub
                .with(|scrub| scrub.round().map(|it| it.pgs.difference(&led).copied().collect()))?
                .unwrap_or_default();
            if apart.is_empty() {
                return Some(());
            }
            if Instant::now() >= until {
                meta.scrub.with(|scrub| apart.into_iter().for_each(|pg| scrub.missed(pg)));
                return Some(());
            }
            drop(meta);
            sleep_until(until.min(Instant::now() + SCRUB_CHECK_INTERVAL)).await;
        }
    }

    /// Has copies verified, as many at a time as the budget allows.
    async fn verify(&mut self, copies: Vec<Copy>) -> Option<()> {
        let mut under_way = JoinSet::new();
        for copy in copies {
            let bytes = u64::from(copy.chunk.len);
            self.keep_pace(bytes).await?;
            let piece = self.background.begin(Work::Scrub, bytes).await;
            let meta = self.meta.upgrade().filter(|meta| !meta.is_stopping())?;
            under_way.spawn(async move {
                let state = meta.state_of(&copy).await;
                drop(piece);
                meta.judge(&copy, state);
            });
        }
        while under_way.join_next().await.is_some() {}
        Some(())
    }

    /// Waits as the pace of the round requires.
    async fn keep_pace(&mut self, bytes: u64) -> Option<()> {
        let meta = self.meta.upgrade()?;
        let (now_ms, period_ms) = (now_ms(), self.period.as_millis() as u64);
        let per_s = meta.scrub.with(|scrub| scrub.pace(now_ms, period_ms))?;
        drop(meta);
        let begins = self.next.max(Instant::now());
        self.next = begins + Duration::from_secs_f64(bytes as f64 / per_s as f64);
        sleep_until(begins).await;
        Some(())
    }

    /// Writes the state, so that a restart goes on from it.
    async fn save(&mut self) -> Option<()> {
        let bytes = self.meta.upgrade()?.scrub.with(|scrub| v1::encode_file(scrub))?;
        let disk = self.disk.clone();
        let saving = move || replace_file(&*disk, "", SCRUB_FILE, &bytes);
        if let Err(error) = blocking::run(saving).await.ok()? {
            tracing::warn!(%error, "the scrub's position was not saved: a restart will verify more than it needs to");
        }
        self.saved = Instant::now();
        Some(())
    }
}

impl Scrubbing {
    fn with<T>(&self, look: impl FnOnce(&mut Scrub) -> T) -> Option<T> {
        self.state.lock().as_mut().map(|(scrub, _)| look(scrub))
    }

    fn note(&self, tally: Tally) {
        self.right.fetch_add(tally.right, Ordering::Relaxed);
        self.bad.fetch_add(tally.bad, Ordering::Relaxed);
        self.unanswered.fetch_add(tally.unanswered, Ordering::Relaxed);
        self.with(|scrub| scrub.found(tally, None));
    }
}

impl Meta {
    /// The PGs that this server leads and serves.
    pub(super) fn led(&self) -> BTreeSet<PgId> {
        self.pg_ids().filter(|pg| self.lock(*pg).pg.role() == Role::Serving).collect()
    }

    /// Begins a round if one is due.
    fn begin_round(&self) {
        if self.is_read_only() {
            return;
        }
        let (now_ms, led) = (now_ms(), self.led());
        let Some((due, number)) = self.scrub.state.lock().as_mut().map(|(scrub, period_ms)| {
            scrub.observe_clock(now_ms);
            (scrub.due(now_ms, *period_ms, &led), scrub.rounds() + 1)
        }) else {
            return;
        };
        if due.is_empty() {
            return;
        }
        let bytes = due.iter().map(|pg| self.lock(*pg).pg.copied_bytes()).sum();
        tracing::info!(round = number, groups = due.len(), bytes, "a scrub round starts");
        self.scrub.with(|scrub| scrub.begin(now_ms, due, bytes));
    }

    fn give_up_round(&self) {
        self.scrub.with(|scrub| {
            let pgs = scrub.round().map(|round| round.pgs.clone()).unwrap_or_default();
            pgs.into_iter().for_each(|pg| scrub.missed(pg));
            scrub.end(now_ms());
        });
    }

    /// The copies of the next rows of the round.
    fn copies_to_verify(&self) -> Result<Piece, IndexError> {
        let round =
            self.scrub.with(|scrub| scrub.round().map(|it| (it.after.clone(), it.pgs.clone())));
        let Some((mut from, pgs)) = round.flatten() else { return Ok(Piece::default()) };
        from.push(0);
        let (mut piece, mut rows, mut bytes, mut failed) = (Piece::default(), 0, 0, None);
        let mut visit = |row: &[u8], value: &[u8]| {
            rows += 1;
            match self.note_copies(&mut piece, &pgs, row, value) {
                Ok(found) => bytes += found,
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            let is_enough = rows >= SCRUB_ROWS_MAX
                || bytes >= SCRUB_PIECE_BYTES
                || piece.copies.len() >= SCRUB_PIECE_COPIES_MAX;
            if !is_enough {
                return ControlFlow::Continue(());
            }
            piece.after = Some(row.to_vec());
            ControlFlow::Break(())
        };
        self.index.kv.scan(&from, None, &mut visit).map_err(index_error)?;
        failed.map_or(Ok(piece), Err)
    }

    /// Notes the copies that a row names. Returns the number of their bytes.
    fn note_copies(
        &self,
        piece: &mut Piece,
        pgs: &BTreeSet<PgId>,
        row: &[u8],
        value: &[u8],
    ) -> Result<u64, IndexError> {
        let pg_count = self.pgs.len() as u32;
        let found =
            chunk_at(row, value, pg_count, |pg| pgs.contains(&pg) && !piece.missed.contains(&pg))?;
        let Some((pg, chunk)) = found else { return Ok(0) };
        let Some(copies) = self.lock(pg).pg.copies_of(row, &chunk) else {
            piece.missed.insert(pg);
            return Ok(0);
        };
        let (row, chunk) = (Bytes::copy_from_slice(row), Arc::new(chunk));
        let bytes = u64::from(chunk.len) * copies.len() as u64;
        piece.copies.extend(copies.into_iter().map(|(replica, server)| Copy {
            pg,
            row: row.clone(),
            chunk: chunk.clone(),
            replica,
            server,
        }));
        Ok(bytes)
    }

    /// Has a copy verified by its data server; `None` if that does not answer.
    async fn state_of(&self, copy: &Copy) -> Option<CopyState> {
        match &self.other_roles {
            OtherRoles::Here(here) => {
                let (data, chunk) = (here.data.clone(), copy.chunk.clone());
                blocking::run(move || data.verify_copy(&chunk)).await.ok()
            }
            OtherRoles::Apart(cluster) => {
                let _at_work = self.background.at_work(vec![copy.server]);
                cluster.verify(copy.server, &copy.chunk).await
            }
        }
    }

    /// Counts the result for a copy, and has it mended if it is damaged.
    fn judge(&self, copy: &Copy, state: Option<CopyState>) {
        let looked_at = Tally { bytes: u64::from(copy.chunk.len), ..Tally::default() };
        let tally = match state {
            Some(CopyState::Right) => Tally { right: 1, ..looked_at },
            Some(CopyState::Damaged | CopyState::Unreadable) => {
                match self.lock(copy.pg).pg.is_damaged(
                    &copy.row,
                    &copy.chunk,
                    copy.replica,
                    &self.index,
                ) {
                    Ok(Some(true)) => Tally { bad: 1, ..looked_at },
                    // It was deleted, moved or mended meanwhile.
                    Ok(Some(false)) => looked_at,
                    // Another server leads now, and will verify it.
                    Ok(None) => Tally { unanswered: 1, ..looked_at },
                    Err(error) => {
                        tracing::error!(%error, "a row of the index cannot be read");
                        Tally { unanswered: 1, ..looked_at }
                    }
                }
            }
            None => Tally { unanswered: 1, ..looked_at },
        };
        self.scrub.note(tally);
        if tally.unanswered > 0 {
            self.scrub.with(|scrub| scrub.missed(copy.pg));
        }
        if tally.bad > 0 {
            self.report_damage(copy);
        }
    }

    fn report_damage(&self, copy: &Copy) {
        let Copy { pg, row, chunk, server, .. } = copy;
        let has_others = self.cluster().is_some() && chunk.holders.count() > 1;
        if self.scrub.with(|scrub| scrub.round().map_or(0, |it| it.tally.bad))
            <= Some(SCRUB_LOGGED_MAX)
        {
            tracing::error!(
                %pg, lv = %chunk.lv, %server, extents = ?chunk.extents, row = %row.escape_ascii(), has_others,
                "a copy is damaged on a disk that is failing"
            );
        }
        if self.cluster().is_some() {
            let call = Call::Suspect { grant: chunk.grant, server: *server };
            let mut member = self.lock(*pg);
            self.step(&mut member, Event::Call { token: NOBODY, call });
            // The group remembers a bounded number of damaged copies: another round of it comes soon.
            if !member.pg.is_suspected(chunk.grant, *server) {
                self.scrub.with(|scrub| scrub.missed(*pg));
            }
        }
    }

    /// The progress of the scrub; `None` if this server does not scrub.
    #[must_use]
    pub fn scrub_now(&self) -> Option<ScrubStatus> {
        let led = self.led();
        let state = self.scrub.state.lock();
        let (scrub, period_ms) = state.as_ref()?;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Some(ScrubStatus {
            period_ms: *period_ms,
            oldest_ms: scrub.oldest_ms(now_ms(), &led),
            share: scrub.share(),
            rounds: scrub.rounds(),
            bad: scrub.bad(),
            right: load(&self.scrub.right),
            bad_since_start: load(&self.scrub.bad),
            unanswered: load(&self.scrub.unanswered),
            never: led.iter().filter(|pg| !scrub.is_on_record(**pg)).count() as u64,
        })
    }
}

impl Cluster {
    /// Has a data server verify its copy of a chunk.
    async fn verify(&self, server: ServerId, chunk: &Chunk) -> Option<CopyState> {
        let peer = self.data.of(&self.managers.map(), server)?;
        let call = DataCall::Verify(Box::new(chunk.clone()));
        let answered = tokio::select! {
            biased;
            answered = peer.call(&call, Bytes::new(), Instant::now() + DATA_ANSWER_MAX) => answered,
            () = down(&*self.managers, server) => return None,
        };
        match answered {
            Ok((DataReply::Verified(state), _)) => Some(state),
            answer => {
                tracing::debug!(%server, ?answer, "a data server could not verify a copy");
                None
            }
        }
    }
}
