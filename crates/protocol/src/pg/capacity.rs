//! Limits of ops and open puts. One message must be able to carry what a member sends to another: the ops above its
//! commit point in a report, and open puts in a snapshot's header. A message that does not fit a frame is never sent,
//! and the view that waits for it never begins.
//!
//! # Invariants
//!
//! 1. `called`, `own` and `bytes` are the sums of what is in the tail and of open puts: these change through here alone.
//! 2. A call's op is appended only where there is room: the tail then has at most [`TAIL_BYTES_MAX`] and one op more of
//!    calls. [`OWN_BYTES_MAX`] bounds the ops that a primary makes of itself, so that calls never take their room.
//! 3. An outcome always has room: it was kept when its put was taken. Outcomes are the way out of a full table of open
//!    puts.
//! 4. Nothing another server says makes the tail longer than [`FOLLOWED_OPS_MAX`] ops and [`FOLLOWED_BYTES_MAX`] and one
//!    op. A follower takes the rest when it has applied some; a primary has room to spare when it begins its view.
//! 5. A call that is turned away for want of room has the log synced and the index brought up to the commit point. Then
//!    there is room, unless a member does not acknowledge. That one goes unheard, and the next view is without it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;

use larder_types::codec::encoded_len;
use larder_types::{Op, OpSeq};

use super::ops::{chunk_of, request_of_op};
use super::{OpenPut, Pg, ReplyKind, TailEntry};
use crate::index::{Index, IndexError};
use crate::limits::{
    DROPS_WAITING_MAX, FOLLOWED_BYTES_MAX, FOLLOWED_OPS_MAX, LONGEST_BYTES_MAX, LONGEST_OPS_MAX,
    OP_ID_BYTES_MAX, OPEN_BYTES_MAX, OPEN_PUT_BYTES_MIN, OUTCOME_BYTES_MAX, OWN_BYTES_MAX,
    TAIL_BYTES_MAX, TAIL_OPS_MAX, WAITING_CALLS_MAX,
};
use crate::message::{Call, Content, Effect, LogEntry, Outbox, Refusal, Token};

/// Ops above the applied position, in order.
#[derive(Debug, Default)]
pub(super) struct Tail {
    ops: VecDeque<TailEntry>,
    /// Bytes of the ops that calls became.
    called: usize,
    /// Bytes of the ops that primaries made of themselves, but for outcomes.
    own: usize,
}

impl Tail {
    /// An op that takes so many bytes of a message.
    pub(super) fn push_back(
        &mut self,
        entry: LogEntry,
        reply: Option<(Token, ReplyKind)>,
        bytes: usize,
    ) {
        if let Some(sum) = self.sum_of(&entry.op) {
            *sum += bytes;
        }
        self.ops.push_back(TailEntry { entry, reply, bytes });
    }

    pub(super) fn pop_front(&mut self) -> Option<TailEntry> {
        let popped = self.ops.pop_front()?;
        self.leave(&popped);
        Some(popped)
    }

    pub(super) fn pop_back(&mut self) -> Option<TailEntry> {
        let popped = self.ops.pop_back()?;
        self.leave(&popped);
        Some(popped)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut TailEntry> {
        self.ops.get_mut(at)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut TailEntry> {
        self.ops.iter_mut()
    }

    pub(super) fn range_mut(
        &mut self,
        range: std::ops::Range<usize>,
    ) -> impl Iterator<Item = &mut TailEntry> {
        self.ops.range_mut(range)
    }

    fn leave(&mut self, popped: &TailEntry) {
        if let Some(sum) = self.sum_of(&popped.entry.op) {
            *sum -= popped.bytes;
        }
    }

    /// Returns true if no sound log has more above its commit point, up to which all is applied.
    pub(super) fn is_as_long_as_any(&self) -> bool {
        self.ops.len() >= LONGEST_OPS_MAX || self.called + self.own >= LONGEST_BYTES_MAX
    }

    /// Returns true if there is no room for another op of a primary.
    pub(super) fn is_at_its_end(&self) -> bool {
        self.ops.len() >= FOLLOWED_OPS_MAX || self.called + self.own >= FOLLOWED_BYTES_MAX
    }

    /// The sum that an op belongs to.
    fn sum_of(&mut self, op: &Op) -> Option<&mut usize> {
        match op {
            Op::Outcome { .. } => None,
            op if request_of_op(op).is_some() => Some(&mut self.called),
            _ => Some(&mut self.own),
        }
    }
}

impl Deref for Tail {
    type Target = VecDeque<TailEntry>;

    fn deref(&self) -> &VecDeque<TailEntry> {
        &self.ops
    }
}

/// Puts without an outcome that is applied.
#[derive(Debug, Default)]
pub(super) struct OpenPuts {
    puts: BTreeMap<OpSeq, OpenPut>,
    bytes: usize,
}

impl OpenPuts {
    pub(super) fn insert(&mut self, open: OpenPut) {
        self.bytes += open.bytes;
        // The log of one that took a snapshot tells of it twice.
        if let Some(before) = self.puts.insert(open.id.seq, open) {
            self.bytes -= before.bytes;
        }
    }

    pub(super) fn remove(&mut self, put: &OpSeq) -> Option<OpenPut> {
        let open = self.puts.remove(put)?;
        self.bytes -= open.bytes;
        Some(open)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn get_mut(&mut self, put: &OpSeq) -> Option<&mut OpenPut> {
        self.puts.get_mut(put)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut OpenPut> {
        self.puts.values_mut()
    }
}

impl Deref for OpenPuts {
    type Target = BTreeMap<OpSeq, OpenPut>;

    fn deref(&self) -> &BTreeMap<OpSeq, OpenPut> {
        &self.puts
    }
}

/// Returns the bytes that an op takes of a message, with its id. That it is measured once shows in what a put costs.
pub(super) fn bytes_of(op: &Op) -> usize {
    match op {
        Op::Outcome { .. } => OUTCOME_BYTES_MAX,
        op => encoded_len(op) + OP_ID_BYTES_MAX,
    }
}

/// Returns the bytes that an open put takes of a snapshot's header, if its op takes so much: at least what keeps the number
/// of outcomes down.
pub(super) fn open_bytes_of(op_bytes: usize) -> usize {
    (op_bytes + 1).max(OPEN_PUT_BYTES_MIN)
}

impl Pg {
    /// Returns true if the log has room for what a call becomes.
    pub(super) fn has_capacity_for(&self, call: &Call) -> bool {
        match call {
            Call::DropStream { .. } => self.has_capacity_for_own(),
            Call::Put(put) if matches!(put.content, Content::Data { .. }) => {
                self.has_capacity_for_data()
            }
            Call::RemoteChange(change) if change.has_data() => self.has_capacity_for_data(),
            _ => self.has_capacity_for_calls(),
        }
    }

    fn has_capacity_for_data(&self) -> bool {
        self.has_capacity_for_calls() && self.open.bytes < OPEN_BYTES_MAX
    }

    fn has_capacity_for_calls(&self) -> bool {
        self.tail.len() < TAIL_OPS_MAX && self.tail.called < TAIL_BYTES_MAX
    }

    /// Returns true if the log has room for another op that this primary makes of itself.
    pub(super) fn has_capacity_for_own(&self) -> bool {
        self.tail.own < OWN_BYTES_MAX
    }

    /// Asserts that an op which this primary is about to append has room.
    pub(super) fn check_capacity(&self, op: &Op) {
        let opens = chunk_of(op).is_some();
        assert!(
            request_of_op(op).is_none()
                || (if opens {
                    self.has_capacity_for_data()
                } else {
                    self.has_capacity_for_calls()
                }),
            "pg {}: a call's op is appended without room for it",
            self.id
        );
    }

    /// Has what is in the way of more ops brought to its end.
    pub(super) fn make_room(&self, out: &mut Outbox) {
        out.push(Effect::SyncSoon);
        self.apply_what_is_committed(out);
    }

    /// Has the index brought up to the commit point: after a start the tail has all that was not flushed before.
    pub(super) fn apply_what_is_committed(&self, out: &mut Outbox) {
        if self.is_whole && self.applied.seq < self.commit {
            out.push(Effect::Committed);
        }
    }

    /// Returns true if nothing more is taken of another's log. A primary that has taken the longest has room left at those who
    /// follow it.
    pub(super) fn is_over_capacity(&self) -> bool {
        self.tail.is_at_its_end() || self.is_levelling() && self.tail.is_as_long_as_any()
    }

    /// There is no room for a call. One that nobody repeats waits for it, in a queue of its own. Where that is full, the
    /// stream is dropped when its session ends or the group is served anew.
    pub(super) fn reject(&mut self, token: Token, call: Call, out: &mut Outbox) {
        self.make_room(out);
        if matches!(call, Call::DropStream { .. }) && self.drops.len() < DROPS_WAITING_MAX {
            self.drops.push_back((token, call));
        } else {
            self.refuse(token, Refusal::Busy, out);
        }
    }

    /// Returns true if a call that is to be queued may be.
    pub(super) fn may_wait(&self) -> bool {
        self.waiting_calls() < WAITING_CALLS_MAX
    }

    /// Runs calls that waited for room, as far as there is some.
    pub(super) fn resume_drops(
        &mut self,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        while self.has_capacity_for_own()
            && self.may_wait()
            && let Some((token, call)) = self.drops.pop_front()
        {
            self.mutate(token, call, false, index, out)?;
        }
        if !self.drops.is_empty() {
            self.make_room(out);
        }
        Ok(())
    }

    /// The sums are those of what is there.
    #[cfg(debug_assertions)]
    pub(super) fn check_sums(&self) {
        let bytes = |own: bool| {
            let ops = self.tail.iter().filter(move |tail| {
                let op = &*tail.entry.op;
                !matches!(op, Op::Outcome { .. }) && request_of_op(op).is_none() == own
            });
            ops.map(|tail| tail.bytes).sum::<usize>()
        };
        assert_eq!((self.tail.called, self.tail.own), (bytes(false), bytes(true)));
    }
}
