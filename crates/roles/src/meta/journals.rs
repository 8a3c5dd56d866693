//! Reads journals of outcomes, for the driver that reports them to other regions.
//!
//! Other regions hold tokens of a PG's journal, and the PG's primary may change. A token never passes an outcome that
//! its region lacks, because:
//!
//! - A token, and a token to resume from, is an op that the index of a primary showed, so it is not above the commit point.
//!   Every later primary has it in its log, and a PG's op numbers go on across views.
//! - Applying an op writes its row of the journal: all members have the same. A later primary whose index shows less
//!   for the moment answers that there is nothing new yet. It calls the token ahead only if its log ends before it.
//! - A comparison of all keys scans settled rows (`scan.rs`). So the primary shows its whole log, with all outcomes
//!   that a token of an earlier primary passed.
//! - Puts from before the store had a region's number leave no row. Before a PG's journal is reported, a barrier passes in
//!   the PG under a map with the number. Later views begin under no older maps (`orders.rs`), so later puts have the number.
//!
//! # Invariants
//!
//! 1. Rows leave a server of a cluster only if the PG's lease holds after they were read.
//! 2. An answer has the outcomes behind a token only if the journal had forgotten none of them once they were read.
//! 3. One answer is bounded in outcomes, in bytes, and in its wait for news. Requests that wait are bounded in number.
//! 4. A token behind which no outcome is does not stay far behind the log: ops that tell nothing would have the journal forget it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use larder_kv::KvReader;
use larder_net::Responder;
use larder_protocol::manager::state::MapVersion;
use larder_protocol::region::journal::{Batch, VoidReason};
use larder_protocol::region::{Token, Void, key_rows};
use larder_protocol::{Call, IndexError, Refusal};
use larder_types::codec::encode;
use larder_types::{JournalHead, JournalRow, OpSeq, PgId, View, rows};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use super::Meta;
use super::callers::refuse;
use super::cluster::Cluster;
use super::index::index_error;
use crate::blocking;
use crate::limits::{
    JOURNAL_BYTES_MAX, JOURNAL_SETTLE_MS, JOURNAL_WAITS_MAX, JOURNALS_MAX, MAP_LAG_MAX,
    REGION_LEFT_COUNTED_MAX, REGION_QUIET_OPS, REGION_UPDATE_MS,
};
use crate::ticket::{Settled, Ticket};
use crate::wire::{JournalReply, JournalShown, MetaReply, MetaService};

/// The result of the last read of a journal to its end.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// The last op that the index showed then, at least.
    applied: OpSeq,
    /// The last outcome in it.
    last: OpSeq,
    /// The last outcome that it had forgotten.
    forgotten: OpSeq,
}

/// The last reads of all PGs' journals, and the bound on requests that wait.
pub(super) struct Journals {
    /// By PG.
    seen: Vec<Mutex<Seen>>,
    /// Bounds the requests that wait for news.
    waits: Semaphore,
}

impl Journals {
    pub(super) fn new(pgs: usize) -> Self {
        let seen = (0..pgs).map(|_| Mutex::default()).collect();
        Self { seen, waits: Semaphore::new(JOURNAL_WAITS_MAX) }
    }
}

/// A request for outcomes of several PGs.
#[derive(Debug, Clone)]
pub(crate) struct JournalCall {
    /// PGs in their views, and the tokens behind which outcomes are wanted.
    pub(crate) pgs: Vec<(PgId, View, Token)>,
    /// Most outcomes of all PGs together; 0 asks only if there are any.
    pub(crate) ids_max: usize,
    /// True if the index must first show all ops that these PGs had taken.
    pub(crate) settled: bool,
    /// Time for which the answer may wait for news.
    pub(crate) wait: Duration,
}

impl JournalShown {
    fn has_updates(&self) -> bool {
        self.batch.as_ref().map_or(true, |batch| !batch.ids.is_empty() || batch.left.0 > 0)
    }
}

impl Meta {
    /// Reads a PG's journal behind a token. Blocks.
    pub(crate) fn journal_since(
        &self,
        pg: PgId,
        token: Token,
        (ids_max, bytes_max): (usize, usize),
    ) -> Result<JournalShown, IndexError> {
        let (applied, end) = {
            let member = self.lock(pg);
            (member.pg.applied().seq, member.pg.last().seq)
        };
        let seen = *self.journals.seen[pg.0 as usize].lock();
        // Only an op makes a journal forget.
        let forgotten = if seen.applied == applied { seen.forgotten } else { self.forgotten(pg)? };
        let nothing = |last| Batch { ids: Vec::new(), token, last, left: (0, 0) };
        let is_far = applied.0.saturating_sub(token.through.0) >= REGION_QUIET_OPS;
        let ahead = if is_far { Token { through: applied } } else { token };
        let map = self.index.map_version();
        let shown = |batch| Ok(JournalShown { applied, forgotten, map, batch });
        let void = |why| Err(Void { why, resume: Token { through: applied } });
        if token.through > end {
            return shown(void(VoidReason::Ahead));
        }
        if token.through > applied {
            // For the moment this index shows less than the former primary's did.
            return shown(Ok(nothing(token.through)));
        }
        // No journal has outcomes from before the store had a region's number.
        if token.through == OpSeq(0) || token.through < forgotten {
            return shown(void(VoidReason::Overrun));
        }
        if seen.applied == applied && seen.last <= token.through {
            return shown(Ok(Batch { token: ahead, ..nothing(seen.last) }));
        }
        let (mut batch, mut counted, mut bytes) = (nothing(token.through), 0, 0);
        // A request for no ids only asks if there are any.
        let left_max = if ids_max == 0 { 1 } else { ids_max as u64 + REGION_LEFT_COUNTED_MAX };
        let (mut is_all, mut failed) = (true, None);
        let mut visit = |row: &[u8], value: &[u8]| -> Result<ControlFlow<()>, IndexError> {
            let form = || IndexError(format!("row {} has no such form", row.escape_ascii()));
            let (_, op) = rows::parse_outcome(row).ok_or_else(form)?;
            let id = JournalRow::decode(value).map_err(|error| IndexError(error.to_string()))?;
            let id = key_rows::journal_row_id(id);
            counted += 1;
            if batch.left.0 == 0 && batch.ids.len() < ids_max && bytes < bytes_max {
                bytes += row.len() + value.len();
                (batch.token, batch.last) = (Token { through: op }, op);
                batch.ids.push((op, id));
            } else if counted <= left_max {
                batch.left = (batch.left.0 + 1, batch.left.1.saturating_add(id.bytes));
            } else {
                is_all = false;
                return Ok(ControlFlow::Break(()));
            }
            Ok(ControlFlow::Continue(()))
        };
        let (from, to) =
            (rows::outcome(pg, token.through.next()), rows::prefix_end(&rows::journal(pg)));
        let scanned = self.index.kv.scan(&from, to.as_deref(), &mut |row, value| {
            visit(row, value).unwrap_or_else(|error| {
                failed = Some(error);
                ControlFlow::Break(())
            })
        });
        scanned.map_err(index_error)?;
        if let Some(error) = failed {
            return Err(error);
        }
        // Outcomes that the scan did not find may have been forgotten since the token was checked.
        if token.through < self.forgotten(pg)? {
            return shown(void(VoidReason::Overrun));
        }
        if is_all && batch.left.0 == 0 {
            if batch.ids.is_empty() {
                batch.token = ahead;
            }
            let seen = Seen { applied, last: batch.last, forgotten };
            *self.journals.seen[pg.0 as usize].lock() = seen;
        }
        shown(Ok(batch))
    }

    /// Reads the last outcome that a PG's journal has forgotten.
    fn forgotten(&self, pg: PgId) -> Result<OpSeq, IndexError> {
        let head = self.index.kv.get(&rows::outcome(pg, OpSeq(0))).map_err(index_error)?;
        let head = head.map(|head| JournalHead::decode(&head)).transpose();
        let head = head.map_err(|error| IndexError(error.to_string()))?;
        Ok(head.map_or(OpSeq(0), |head| head.forgotten))
    }

    /// Waits until the index shows all ops that a PG has taken. Returns true if it does in time.
    pub(crate) async fn settles(&self, pg: PgId) -> bool {
        let ticket = Arc::new(Ticket::default());
        self.call(pg, Call::Barrier, &ticket);
        let settled = timeout(Duration::from_millis(JOURNAL_SETTLE_MS), ticket.settled()).await;
        matches!(settled, Ok(Settled::Shows(None)))
    }

    /// Reads the journals of PGs, as they are. Blocks.
    pub(crate) fn journals_now(
        &self,
        call: &JournalCall,
    ) -> Result<Vec<(PgId, JournalShown)>, IndexError> {
        let (mut ids_left, mut bytes_left) = (call.ids_max, JOURNAL_BYTES_MAX);
        let mut shown = Vec::with_capacity(call.pgs.len());
        for (pg, _, token) in &call.pgs {
            // A journal that cannot be read holds up no other.
            let now = match self.journal_since(*pg, *token, (ids_left, bytes_left)) {
                Ok(now) => now,
                Err(error) => {
                    tracing::error!(%pg, %error, "the journal of outcomes cannot be read");
                    continue;
                }
            };
            if let Ok(batch) = &now.batch {
                ids_left -= batch.ids.len();
                let bytes = batch.ids.iter().map(|(_, id)| id.name.key.as_bytes().len() + 128);
                bytes_left = bytes_left.saturating_sub(bytes.sum());
            }
            shown.push((*pg, now));
        }
        Ok(shown)
    }

    /// Answers the gateway, once this map is known here.
    pub(super) fn serve_journals(
        &self,
        cluster: &Cluster,
        map: MapVersion,
        call: JournalCall,
        responder: Responder<MetaService>,
    ) {
        let Some(meta) = cluster.meta() else { return };
        if call.pgs.len() > JOURNALS_MAX || call.pgs.iter().any(|(pg, ..)| !self.has(*pg)) {
            // Dropping the responder tells the caller that there is no answer.
            return tracing::error!(
                "refused an invalid request for journals: do all servers run one release?"
            );
        }
        let mut versions = cluster.managers.versions();
        cluster.runtime.spawn(async move {
            match timeout(MAP_LAG_MAX, versions.reaches(map)).await {
                Ok(Ok(())) => meta.answer_journals(call, responder).await,
                Ok(Err(_)) | Err(_) => refuse(responder, Refusal::Busy),
            }
        });
    }

    pub(super) fn has(&self, pg: PgId) -> bool {
        (pg.0 as usize) < self.pgs.len()
    }

    async fn answer_journals(
        self: Arc<Self>,
        mut call: JournalCall,
        responder: Responder<MetaService>,
    ) {
        let asked: Vec<PgId> = call.pgs.iter().map(|(pg, ..)| *pg).collect();
        let until = Instant::now() + call.wait.min(Duration::from_millis(REGION_UPDATE_MS));
        call.pgs.retain(|&(pg, view, _)| self.lock(pg).accepts_reads(view));
        if call.settled {
            let settling = call.pgs.iter().map(|(pg, ..)| self.settles(*pg));
            let settled = futures::future::join_all(settling).await;
            let mut settled = settled.into_iter();
            call.pgs.retain(|_| settled.next().unwrap_or(false));
        }
        let mut more = self.shows_more();
        let place = self.journals.waits.try_acquire();
        loop {
            more.mark_seen();
            let (meta, asking) = (self.clone(), call.clone());
            let read = blocking::run(move || {
                let now = meta.journals_now(&asking)?;
                let views =
                    asking.pgs.iter().map(|&(pg, view, _)| meta.lock(pg).accepts_reads(view));
                let batch =
                    now.into_iter().zip(views).filter_map(|(now, tells)| tells.then_some(now));
                Ok::<BTreeMap<_, _>, IndexError>(batch.collect())
            });
            let mut shown = match read.await {
                Ok(Ok(shown)) => shown,
                Ok(Err(error)) => {
                    tracing::error!(%error, "the journals of outcomes cannot be read");
                    return refuse(responder, Refusal::IndexDamaged);
                }
                Err(_panicked) => return,
            };
            let is_news =
                shown.len() < asked.len() || shown.values().any(JournalShown::has_updates);
            // A request that may not wait is answered at once.
            if !is_news
                && place.is_ok()
                && matches!(timeout_at(until, more.changed()).await, Ok(Ok(())))
            {
                continue;
            }
            let now = |pg| match shown.remove(&pg) {
                Some(shown) => (pg, JournalReply::Shows(shown)),
                None => (pg, JournalReply::NotNow),
            };
            let answer: Vec<_> = asked.into_iter().map(now).collect();
            return responder.answer(&MetaReply::Journals, encode(&answer).into());
        }
    }
}
