//! Barriers: callers that wait until the index shows every op accepted before their call.
//!
//! # Invariants
//!
//! 1. A barrier passes only when everything up to the op that was the last at its arrival is applied. Puts with data
//!    are excepted: these change no row before their outcome.
//! 2. It waits for those puts alone that were open then and whose row is among the rows in question: their clients may have
//!    been told that they are done. One of all rows waits for those alone that make a version of which no journal will
//!    tell. They were put before the store had a number among regions: a put that is in doubt for hours holds up no region.
//! 3. Of rows behind a put that takes long, it says nothing: what is before that row is shown.
//! 4. One that begins at the row of an open put waits for all puts in question together, for [`LIST_GATHER_MS`] at most.
//!    So a page behind many slow puts is not answered row by row, and a put in doubt far behind does not hold it up.

use larder_types::{Op, OpSeq, Put, RegionId, Target, rows};

use super::ops::chunk_of;
use super::{OpenPut, Pg, TailEntry};
use crate::index::RowSpan;
use crate::limits::{BARRIERS_MAX, LIST_GATHER_MS, SLOW_PUT_MS};
use crate::message::{Answer, Call, Effect, Outbox, Refusal, Token};

/// See the module's head.
#[derive(Debug)]
pub(super) struct Barrier {
    pub(super) token: Token,
    /// The rows in question; `None`: all, and all must show before it passes that no journal tells of.
    span: Option<RowSpan>,
    /// The last op that is to be applied before it passes.
    through: OpSeq,
    /// Open puts of these rows when it came.
    pending: Vec<OpSeq>,
    /// The tick at which it came.
    since: u64,
    /// Until then it waits for all of these puts, and does not pass before the row of a slow one.
    gathers_until_ms: u64,
}

impl Barrier {
    /// The call that it is.
    pub(super) fn call(self) -> (Token, Call) {
        (self.token, self.span.map_or(Call::Barrier, Call::Settle))
    }
}

impl Pg {
    /// Returns true if this primary's index shows everything that was taken so far of these rows: a barrier would pass.
    #[must_use]
    pub fn shows_all(&self, span: &RowSpan) -> bool {
        self.serves()
            && self.applied.seq >= self.last_effective()
            && self.pending_in(Some(span)).next().is_none()
    }

    /// `region` is the number of the store among regions.
    pub(super) fn barrier(
        &mut self,
        token: Token,
        span: Option<RowSpan>,
        region: RegionId,
        out: &mut Outbox,
    ) {
        let begins_at =
            |open: &OpenPut| span.as_ref().is_some_and(|span| row_of(open.put()) == span.from);
        let (mut pending, mut gathers) = (Vec::new(), false);
        // In a region parents of chunks and parts, which are ops of their own, make the version.
        let is_told = |open: &OpenPut| {
            let (put, is_region) = (open.put(), region != RegionId::OWN);
            is_region && (put.target != Target::Version || put.metax.stamp().is_qualified())
        };
        for open in self.pending_in(span.as_ref()) {
            if span.is_none() && is_told(open) {
                continue;
            }
            pending.push(open.id.seq);
            gathers |= begins_at(open);
        }
        let gathers_until_ms = if gathers { self.now_ms.saturating_add(LIST_GATHER_MS) } else { 0 };
        let (through, since) = (self.last_effective(), self.ticks);
        let barrier = Barrier { token, span, through, pending, since, gathers_until_ms };
        if let Some(answer) = self.passed(&barrier) {
            out.push(Effect::Reply { token, answer });
        } else if self.barriers.len() >= BARRIERS_MAX {
            self.refuse(token, Refusal::Busy, out);
        } else {
            self.barriers.push(barrier);
            out.push(Effect::SyncSoon);
        }
    }

    /// The last op that changes what can be listed or read when it is applied: garbage and coalescing cannot.
    fn last_effective(&self) -> OpSeq {
        let is_step = |op: &Op| matches!(op, Op::Reap { .. } | Op::Coalesce(_));
        let effective =
            |tail: &&TailEntry| chunk_of(&tail.entry.op).is_none() && !is_step(&tail.entry.op);
        let last = self.tail.iter().rev().find(effective);
        last.map_or(self.applied.seq, |tail| tail.entry.id.seq)
    }

    /// Open puts that may still change these rows.
    fn pending_in<'a>(&'a self, span: Option<&'a RowSpan>) -> impl Iterator<Item = &'a OpenPut> {
        let may_change = move |open: &&OpenPut| {
            !open.superseded && span.is_none_or(|span| span.has(&row_of(open.put())))
        };
        self.open.values().filter(may_change)
    }

    /// Returns the answer to a barrier, if it may pass.
    fn passed(&self, barrier: &Barrier) -> Option<Answer> {
        if self.applied.seq < barrier.through {
            return None;
        }
        let open = barrier.pending.iter().filter_map(|seq| self.open.get(seq));
        let mut pending = open.filter(|open| !open.superseded).peekable();
        let Some(span) = &barrier.span else {
            return pending.peek().is_none().then_some(Answer::Passed);
        };
        let mut first: Option<Vec<u8>> = None;
        let gathers = self.now_ms < barrier.gathers_until_ms;
        for open in pending {
            if gathers || self.age_ms(open) < SLOW_PUT_MS {
                return None;
            }
            let row = row_of(open.put());
            if first.as_ref().is_none_or(|first| row < *first) {
                first = Some(row);
            }
        }
        let shows_some = first.as_ref().is_none_or(|first| *first > span.from);
        shows_some.then_some(Answer::Settled(first))
    }

    /// Lets barriers pass that may.
    pub(super) fn pass_barriers(&mut self, out: &mut Outbox) {
        let mut waiting = std::mem::take(&mut self.barriers);
        waiting.retain(|barrier| match self.passed(barrier) {
            Some(answer) => {
                out.push(Effect::Reply { token: barrier.token, answer });
                false
            }
            None => true,
        });
        self.barriers = waiting;
    }

    /// Takes barriers that came at a tick before this one.
    pub(super) fn overdue_barriers(&mut self, before: u64) -> Vec<(Token, Call)> {
        let overdue = self.barriers.extract_if(.., |barrier| barrier.since < before);
        overdue.map(Barrier::call).collect()
    }
}

/// The row that a put makes.
fn row_of(put: &Put) -> Vec<u8> {
    match &put.target {
        Target::Version => rows::version(put.bucket, &put.key, rows::UNVERSIONED),
        Target::Chunk { stream, number } => rows::chunk(put.bucket, *stream, *number),
        Target::Part { upload, number } => rows::part(put.bucket, *upload, *number),
    }
}
