//! Copies that this server makes on the order of a primary, of bytes that other data servers hold. The holder verifies the
//! bytes before it sends them, and this server before it writes them. No byte passes through the primary.
//!
//! ```text
//!  DataCall::Copy ─▶ its turn ─▶ pieces: ReadVerified at a holder, or here ─▶ verified again ─▶ disk queue ─▶ Copied
//! ```
//!
//! # Invariants
//!
//! 1. Only bytes that were verified here are written, and `Durable` is answered only once they are durable.
//! 2. A copy is written under the grant of its order, as a put's data would be. However late it is, it never overwrites
//!    another object's bytes (ADR 13): an order that outlives its primary does no harm.
//! 3. At most [`COPIES_MAX`] chunks are in memory, those that wait for the disk included, and [`COPIES_WAITING_MAX`] orders wait.
//! 4. Reads for copies on other servers take no turn here, so servers that copy from one another never deadlock.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::iter;
use larder_net::{Endpoint, Responder};
use larder_types::limits::SUM_BYTES;
use larder_types::{Chunk, Counter, ServerId};
use larder_volume::{Action, Answer, Refusal, verify_range};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use super::DataNode;
use super::reads::ReadCommand;
use crate::limits::{
    COPIES_MAX, COPIES_WAITING_MAX, COPY_MARGIN_MS, COPY_READS_MAX, COPY_TIMEOUT_MS,
    COPY_TURN_MS_MAX, READ_PIECE_BYTES, READ_TIMEOUT_MS,
};
use crate::managers::down;
use crate::peers::Peers;
use crate::wire::{CopyEnd, CopyOrder, CopyState, DataCall, DataReply, DataService};

/// Counts of a data server's work for copies since its start.
#[derive(Debug, Default)]
pub struct CopyCounters {
    /// Orders that wait for their turn or are carried out.
    orders: AtomicUsize,
    /// Copies made here.
    pub made: Counter,
    /// Bytes of them.
    pub bytes: Counter,
    /// Copies that could not be made here. Their primaries try again.
    pub failed: Counter,
    /// Bytes that were read and verified here for copies on other servers.
    pub given: Counter,
}

impl CopyCounters {
    /// Orders that wait for their turn or are carried out.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.orders.load(Ordering::Relaxed)
    }

    fn ended(&self, end: CopyEnd, len: u32) {
        if end == CopyEnd::Durable {
            self.made.add(1);
            self.bytes.add(len.into());
        } else {
            self.failed.add(1);
        }
    }
}

/// Carries out orders for copies.
pub(super) struct Copies {
    node: Arc<DataNode>,
    holders: Peers<DataService>,
    slots: Arc<Semaphore>,
}

/// An order's place among those that wait or are carried out.
struct Place<'a>(&'a CopyCounters);

impl<'a> Place<'a> {
    fn take(counters: &'a CopyCounters) -> Option<Self> {
        let place = Self(counters);
        let before = counters.orders.fetch_add(1, Ordering::Relaxed);
        (before < COPIES_MAX + COPIES_WAITING_MAX).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.orders.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The holders of one order, and the experience with them.
struct Holders<'a> {
    order: &'a CopyOrder,
    /// The one that gave the last piece is asked first.
    first: AtomicUsize,
    /// Those whose own copy does not verify.
    bad: Mutex<BTreeSet<ServerId>>,
}

/// Too many orders or writes are under way: the primary may repeat the order.
struct Busy;

impl Copies {
    pub(super) fn new(node: Arc<DataNode>, endpoint: &Arc<Endpoint>) -> Arc<Self> {
        let slots = Arc::new(Semaphore::new(COPIES_MAX));
        Arc::new(Self { node, holders: Peers::new(endpoint), slots })
    }

    /// Carries out an order that was checked, and answers. Stops when the primary cancels it.
    pub(super) fn make(self: &Arc<Self>, order: Box<CopyOrder>, responder: Responder<DataService>) {
        let copies = self.clone();
        let (gone, unwanted) = oneshot::channel::<()>();
        responder.when_unwanted(move || {
            // It fails if the order ended at the same time.
            let _ended = gone.send(());
        });
        tokio::spawn(async move {
            let counters = &copies.node.copies;
            let Some(_place) = Place::take(counters) else { return responder.busy() };
            let made = tokio::select! {
                biased;
                Ok(()) = unwanted => return,
                made = copies.make_in_turn(&order) => made,
            };
            match made {
                Ok((end, bad)) => {
                    counters.ended(end, order.chunk.len);
                    responder.answer(&DataReply::Copied(end, bad), Bytes::new());
                }
                Err(Busy) => responder.busy(),
            }
        });
    }

    /// Makes a copy once it has a turn. Ends before the primary's patience does, so that no turn is spent on a copy that
    /// nobody waits for.
    async fn make_in_turn(&self, order: &CopyOrder) -> Result<(CopyEnd, Vec<ServerId>), Busy> {
        let begun = Instant::now();
        let max_wait = Duration::from_millis(u64::from(order.max_wait_ms).min(COPY_TIMEOUT_MS));
        let until = begun + max_wait.saturating_sub(Duration::from_millis(COPY_MARGIN_MS));
        let by = until.min(begun + Duration::from_millis(COPY_TURN_MS_MAX));
        let turn = timeout_at(by, self.slots.clone().acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(Busy) };
        if self.node.server.is_full() {
            return Ok((CopyEnd::Full, Vec::new()));
        }
        let (first, bad) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
        let holders = Holders { order, first, bad };
        let whole = timeout_at(until, self.read_whole(&holders)).await;
        let bad = holders.bad.into_inner().into_iter().collect();
        let Ok(Some(data)) = whole else { return Ok((CopyEnd::NoHolder, bad)) };
        let Ok(end) = timeout_at(until, self.write(order, data, turn)).await else {
            return Ok((CopyEnd::NotWritten, bad));
        };
        Ok((end?, bad))
    }

    /// Reads and verifies all bytes of a chunk.
    async fn read_whole(&self, holders: &Holders<'_>) -> Option<Vec<Bytes>> {
        let len = holders.order.chunk.len;
        let ranges = in_steps(0..len, READ_PIECE_BYTES as u32);
        let mut reads =
            iter(ranges).map(|range| self.read(holders, range)).buffered(COPY_READS_MAX);
        let mut whole = Vec::new();
        while let Some(pieces) = reads.next().await {
            whole.extend(pieces?);
        }
        Some(whole)
    }

    /// Reads a range from a holder of which all of it verifies. If copies are damaged, each checksummed piece may come from
    /// another holder.
    async fn read(&self, holders: &Holders<'_>, range: Range<u32>) -> Option<Vec<Bytes>> {
        if let Some(bytes) = self.read_from_any(holders, range.clone()).await {
            return Some(vec![bytes]);
        }
        // Smaller pieces are more requests, which holders that are late or busy do not need.
        if holders.bad.lock().is_empty() {
            return None;
        }
        let mut pieces = Vec::new();
        for piece in in_steps(range, SUM_BYTES) {
            pieces.push(self.read_from_any(holders, piece).await?);
        }
        Some(pieces)
    }

    async fn read_from_any(&self, holders: &Holders<'_>, range: Range<u32>) -> Option<Bytes> {
        let all = &holders.order.holders;
        let first = holders.first.load(Ordering::Relaxed);
        for at in (first..all.len()).chain(0..first) {
            let Some(bytes) = self.read_from(all[at], holders, range.clone()).await else {
                continue;
            };
            holders.first.store(at, Ordering::Relaxed);
            return Some(bytes);
        }
        None
    }

    /// Reads whole checksummed pieces of the chunk from one holder, if they verify there and here.
    async fn read_from(
        &self,
        holder: ServerId,
        holders: &Holders<'_>,
        range: Range<u32>,
    ) -> Option<Bytes> {
        let chunk = &holders.order.chunk;
        let (reply, bytes) = match holder == self.node.me {
            true => self.read_here(chunk, range.clone()).await?,
            false => self.order_copy(holder, chunk, range.clone()).await?,
        };
        match reply {
            DataReply::Bytes if bytes.len() == range.len() => {
                match verify_range(chunk, range.start / SUM_BYTES, &bytes) {
                    Ok(()) => return Some(bytes),
                    Err(mismatch) => {
                        let lv = chunk.lv;
                        tracing::error!(%holder, %lv, %mismatch, "bytes of a copy were damaged on their way");
                    }
                }
            }
            DataReply::Verified(state @ (CopyState::Damaged | CopyState::Unreadable)) => {
                // The chunk may have been deleted meanwhile: its primary decides that.
                let (lv, grant) = (chunk.lv, chunk.grant);
                tracing::debug!(%holder, %lv, ?grant, ?state, "a source's copy failed verification");
                holders.bad.lock().insert(holder);
            }
            reply => tracing::debug!(%holder, ?reply, "a source did not send a chunk"),
        }
        None
    }

    async fn read_here(&self, chunk: &Chunk, range: Range<u32>) -> Option<(DataReply, Bytes)> {
        let wanted = ReadCommand::Verified { chunk: Box::new(chunk.clone()), range };
        // There is no answer if too many reads wait.
        self.node.reads.read_here(wanted).await.ok()
    }

    async fn order_copy(
        &self,
        holder: ServerId,
        chunk: &Chunk,
        range: Range<u32>,
    ) -> Option<(DataReply, Bytes)> {
        let managers = &*self.node.managers;
        let peer = self.holders.of(&managers.map(), holder)?;
        let (from, len) = (range.start, range.len() as u32);
        let call = DataCall::ReadVerified { chunk: Box::new(chunk.clone()), from, len };
        let deadline = Instant::now() + Duration::from_millis(READ_TIMEOUT_MS);
        let answered = tokio::select! {
            biased;
            answered = peer.call_while_wanted(&call, Bytes::new(), deadline) => answered,
            () = down(managers, holder) => return None,
        };
        answered
            .inspect_err(|error| tracing::debug!(%holder, %error, "a source did not respond"))
            .ok()
    }

    /// Writes a copy, and returns the outcome. The turn ends when the disk has executed the write, though the order was
    /// cancelled before.
    async fn write(
        &self,
        order: &CopyOrder,
        data: Vec<Bytes>,
        turn: OwnedSemaphorePermit,
    ) -> Result<CopyEnd, Busy> {
        let CopyOrder { chunk, grant, extents, .. } = order;
        let (lv, len) = (chunk.lv, chunk.len);
        let bytes = len as usize;
        let (sender, receiver) = oneshot::channel();
        let reads = self.node.reads.clone();
        reads.write_begins(bytes);
        let written = move |result| {
            drop(turn);
            reads.write_ends(bytes);
            // It fails if the order was cancelled.
            let _unwanted = sender.send(result);
        };
        let action = Action::Write { lv, grant: *grant, extents: extents.clone(), data, len };
        self.node.server.perform(action, bytes, Box::new(written));
        match receiver.await {
            Ok(Ok(Answer::Written)) => Ok(CopyEnd::Durable),
            Ok(Err(Refusal::Busy)) => Err(Busy),
            Ok(Err(Refusal::Full)) => Ok(CopyEnd::Full),
            outcome => {
                tracing::debug!(%lv, ?outcome, "the disk refused a copy");
                Ok(CopyEnd::NotWritten)
            }
        }
    }
}

/// A range in steps of so many bytes; the last may be shorter.
fn in_steps(range: Range<u32>, step: u32) -> impl Iterator<Item = Range<u32>> {
    let end = range.end;
    range.step_by(step as usize).map(move |start| start..end.min(start.saturating_add(step)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cover_a_range_and_end_with_it() {
        let steps: Vec<_> = in_steps(64..200, 64).collect();
        assert_eq!(steps, [64..128, 128..192, 192..200]);
        assert_eq!(in_steps(0..64, 64).next(), Some(0..64));
        assert_eq!(in_steps(0..64, 64).count(), 1);
        assert_eq!(in_steps(0..0, 64).count(), 0);
    }

    #[test]
    fn no_more_orders_wait_than_there_are_places() {
        let counters = CopyCounters::default();
        let all = COPIES_MAX + COPIES_WAITING_MAX;
        let mut places: Vec<_> = (0..all).map_while(|_| Place::take(&counters)).collect();
        assert_eq!((places.len(), counters.under_way()), (all, all));
        assert!(Place::take(&counters).is_none());
        assert_eq!(counters.under_way(), all, "one that is refused takes no place");
        drop(places.pop());
        assert!(Place::take(&counters).is_some());
    }
}
