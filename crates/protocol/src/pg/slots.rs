//! Keys with pending ops: the ops of a key that the index does not show yet, and the calls that wait for them.
//!
//! Mutations that need the key at rest queue in order behind it, and every later mutation of that key
//! queues behind them, so that none starves. Nor does a read: it waits for what was pending when it came, not for what
//! comes after it ([`Reader`]).

use std::collections::{BTreeMap, VecDeque};

use larder_types::{
    Append, Body, BucketId, ObjectKey, Op, OpId, OpSeq, PgId, Put, StreamId, Target, UploadId,
};

use crate::message::{Call, Token};

/// A key, stream or upload whose ops are kept in order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    /// The versions of a key.
    Version(BucketId, ObjectKey),
    /// The chunks of a stream.
    Stream(StreamId),
    /// An upload and its parts.
    Upload(UploadId),
}

#[derive(Debug, Default)]
pub(super) struct SlotState {
    /// Ops that the index does not show, ascending.
    pub(super) entries: Vec<OpSeq>,
    /// Reads that wait for a pending version's outcome.
    readers: Vec<Reader>,
    /// Calls that wait for the slot to come to rest.
    queue: VecDeque<Waiter>,
}

/// A call that waits.
#[derive(Debug)]
struct Waiter {
    token: Token,
    call: Call,
    /// The tick at which it began to wait here.
    since: u64,
}

/// A read of a key of which the newest version is pending.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) token: Token,
    pub(super) bucket: BucketId,
    pub(super) key: ObjectKey,
    /// The last op of the key that was there when the read came. What comes after it is concurrent with the read, which may
    /// show it and need not.
    pub(super) upto: OpSeq,
    /// The tick at which it came.
    pub(super) since: u64,
    pub(super) has_waited: bool,
}

#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: BTreeMap<Slot, SlotState>,
    waiting: usize,
    tick: u64,
    /// Reads that waited for puts of their key.
    pub(super) reads_waited: u64,
    /// Those answered while puts that came after them had no outcome.
    pub(super) reads_passed: u64,
}

impl Slots {
    /// Time has passed.
    pub(super) fn tick(&mut self, tick: u64) {
        self.tick = tick;
    }

    /// A read that comes now: it depends on the ops of its key that are there.
    pub(super) fn reader(&self, token: Token, bucket: BucketId, key: ObjectKey) -> Reader {
        let slot = Slot::Version(bucket, key.clone());
        let upto = self.entries(&slot).last().copied().unwrap_or(OpSeq(0));
        Reader { token, bucket, key, upto, since: self.tick, has_waited: false }
    }

    pub(super) fn entries(&self, slot: &Slot) -> &[OpSeq] {
        self.slots.get(slot).map_or(&[], |state| &state.entries)
    }

    pub(super) fn at_rest(&self, slot: &Slot) -> bool {
        self.entries(slot).is_empty()
    }

    /// The slots with ops that the index does not show.
    pub(super) fn in_motion(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|(_, state)| !state.entries.is_empty()).map(|(slot, _)| slot)
    }

    pub(super) fn has_queue(&self, slot: &Slot) -> bool {
        self.slots.get(slot).is_some_and(|state| !state.queue.is_empty())
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn enter(&mut self, slot: Slot, seq: OpSeq) {
        let entries = &mut self.slots.entry(slot).or_default().entries;
        assert!(entries.last().is_none_or(|&last| last < seq), "ops of a key enter in order");
        entries.push(seq);
    }

    /// Called when the index shows the op, or the op was cut. Returns true if the slot has no pending op left.
    pub(super) fn leave(&mut self, slot: &Slot, seq: OpSeq) -> bool {
        let Some(state) = self.slots.get_mut(slot) else { return false };
        state.entries.retain(|&entry| entry != seq);
        let rests = state.entries.is_empty();
        self.drop_if_idle(slot);
        rests
    }

    pub(super) fn wait_at_rest(&mut self, slot: Slot, token: Token, call: Call, first: bool) {
        let waiter = Waiter { token, call, since: self.tick };
        let queue = &mut self.slots.entry(slot).or_default().queue;
        if first {
            queue.push_front(waiter);
        } else {
            queue.push_back(waiter);
        }
        self.waiting += 1;
    }

    pub(super) fn wait_outcome(&mut self, slot: Slot, mut reader: Reader) {
        self.reads_waited += u64::from(!reader.has_waited);
        reader.has_waited = true;
        self.slots.entry(slot).or_default().readers.push(reader);
        self.waiting += 1;
    }

    pub(super) fn take_readers(&mut self, slot: &Slot) -> Vec<Reader> {
        let Some(state) = self.slots.get_mut(slot) else { return Vec::new() };
        let readers = std::mem::take(&mut state.readers);
        self.waiting -= readers.len();
        self.drop_if_idle(slot);
        readers
    }

    /// The next queued call, if the slot is at rest.
    pub(super) fn next_queued(&mut self, slot: &Slot) -> Option<(Token, Call)> {
        let state = self.slots.get_mut(slot)?;
        if !state.entries.is_empty() {
            return None;
        }
        let next = state.queue.pop_front();
        self.waiting -= usize::from(next.is_some());
        self.drop_if_idle(slot);
        next.map(Waiter::call)
    }

    /// Takes calls that began to wait at a tick before this one.
    pub(super) fn overdue(&mut self, before: u64) -> Vec<(Token, Call)> {
        let mut overdue = Vec::new();
        if self.waiting == 0 {
            return overdue;
        }
        self.slots.retain(|_, state| {
            let readers = state.readers.extract_if(.., |reader| reader.since < before);
            overdue.extend(readers.map(Reader::call));
            // Those behind came later, but for ones that waited elsewhere before.
            while let Some(waiter) = state.queue.pop_front_if(|waiter| waiter.since < before) {
                overdue.push(waiter.call());
            }
            !state.is_idle()
        });
        self.waiting -= overdue.len();
        overdue
    }

    pub(super) fn drain(&mut self) -> Vec<(Token, Call)> {
        let mut calls = Vec::new();
        for state in self.slots.values_mut() {
            calls.extend(state.readers.drain(..).map(Reader::call));
            calls.extend(state.queue.drain(..).map(Waiter::call));
        }
        self.waiting = 0;
        self.slots.retain(|_, state| !state.entries.is_empty());
        calls
    }

    fn drop_if_idle(&mut self, slot: &Slot) {
        if self.slots.get(slot).is_some_and(SlotState::is_idle) {
            self.slots.remove(slot);
        }
    }
}

impl SlotState {
    fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.readers.is_empty() && self.queue.is_empty()
    }
}

impl Waiter {
    fn call(self) -> (Token, Call) {
        (self.token, self.call)
    }
}

impl Reader {
    fn call(self) -> (Token, Call) {
        (self.token, Call::Read { bucket: self.bucket, key: self.key })
    }
}

/// The keys whose order an op keeps.
pub(super) fn slots_of(id: OpId, pg: PgId, op: &Op) -> [Option<Slot>; 2] {
    match op {
        Op::Put(put) | Op::PutEnough { put, .. } => match (&put.target, &put.body) {
            (Target::Version, _) => slots_of_version(put),
            (Target::Chunk { stream, .. }, _) => [Some(Slot::Stream(*stream)), None],
            (Target::Part { upload, .. }, Body::Stream { stream, .. }) => {
                [Some(Slot::Upload(*upload)), Some(Slot::Stream(*stream))]
            }
            (Target::Part { upload, .. }, _) => [Some(Slot::Upload(*upload)), None],
        },
        Op::Delete { bucket, key, .. } | Op::SetTags { bucket, key, .. } => {
            [Some(Slot::Version(*bucket, key.clone())), None]
        }
        Op::CompleteUpload { bucket, key, upload, .. } => {
            [Some(Slot::Version(*bucket, key.clone())), Some(Slot::Upload(*upload))]
        }
        Op::RemoteChange(change) => slots_of_version(&change.put),
        Op::Purge(purge) => [Some(Slot::Version(purge.bucket, purge.key.clone())), None],
        Op::Amend(amend) => [Some(Slot::Version(amend.bucket, amend.key.clone())), None],
        Op::Renew(renew) => [Some(Slot::Version(renew.bucket, renew.key.clone())), None],
        Op::Append(append) => slots_of_append(append),
        Op::Grow(grow) => slots_of_append(&grow.append),
        // It changes nothing that calls of the key go by.
        Op::Coalesce(coalesce) => [None, slot_of_stream(&coalesce.body)],
        Op::CreateUpload { .. } => [Some(Slot::Upload(UploadId { pg, op: id })), None],
        Op::AbortUpload { upload, .. } => [Some(Slot::Upload(*upload)), None],
        Op::DropStream { stream, .. } => [Some(Slot::Stream(*stream)), None],
        Op::ViewStart { .. }
        | Op::Regrant { .. }
        | Op::Outcome { .. }
        | Op::Holders { .. }
        | Op::Moved { .. }
        | Op::Digest
        | Op::Noted(_)
        | Op::Freed(_)
        | Op::Reap { .. }
        | Op::SnapshotBegin
        | Op::SnapshotSession(_)
        | Op::SnapshotEnd { .. } => [None, None],
    }
}

fn slots_of_append(append: &Append) -> [Option<Slot>; 2] {
    [Some(Slot::Version(append.bucket, append.key.clone())), slot_of_stream(&append.body)]
}

/// The keys of a put that makes a version.
fn slots_of_version(put: &Put) -> [Option<Slot>; 2] {
    [Some(Slot::Version(put.bucket, put.key.clone())), slot_of_stream(&put.body)]
}

fn slot_of_stream(body: &Body) -> Option<Slot> {
    if let Body::Stream { stream, .. } = body { Some(Slot::Stream(*stream)) } else { None }
}

/// The key whose order a call keeps.
pub(super) fn slot_of_call(call: &Call) -> Option<Slot> {
    Some(match call {
        Call::Put(put) => match &put.target {
            Target::Version => Slot::Version(put.bucket, put.key.clone()),
            Target::Chunk { stream, .. } => Slot::Stream(*stream),
            Target::Part { upload, .. } => Slot::Upload(*upload),
        },
        Call::Append(append) => Slot::Version(append.bucket, append.key.clone()),
        Call::RemoteChange(change) => {
            let (bucket, key) = change.key()?;
            Slot::Version(bucket, key.clone())
        }
        Call::Delete { bucket, key, .. }
        | Call::SetTags { bucket, key, .. }
        | Call::CompleteUpload { bucket, key, .. } => Slot::Version(*bucket, key.clone()),
        Call::AbortUpload { upload, .. } => Slot::Upload(*upload),
        Call::DropStream { stream, .. } => Slot::Stream(*stream),
        _ => return None,
    })
}
