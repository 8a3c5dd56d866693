//! The log's tail: how an op gets its place, and what is noted of it.

use std::sync::Arc;

use larder_types::{Body, HybridClock, Op, OpId};

use super::capacity::{bytes_of, open_bytes_of};
use super::ops::{answer_of, chunk_of, clock_of, request_of_op};
use super::resolve::Retry;
use super::slots::slots_of;
use super::{OpenPut, Pg, ReplyKind, Role};
use crate::message::{Effect, LogEntry, Outbox, Token};
use crate::space::VolumeGroup;

impl Pg {
    pub(super) fn next_id(&self) -> OpId {
        OpId { view: self.view, seq: self.last().seq.next() }
    }

    pub(super) fn tick_clock(&mut self) -> HybridClock {
        self.clock = self.clock.advance(self.wall_ms);
        self.clock
    }

    /// Appends an op of this view.
    pub(super) fn append_op(
        &mut self,
        op: Op,
        reply: Option<(Token, ReplyKind)>,
        out: &mut Outbox,
    ) -> OpId {
        assert!(
            matches!(self.role, Role::Levelling | Role::Active | Role::Serving),
            "only a primary appends"
        );
        self.check_capacity(&op);
        assert!(self.last().view <= self.view, "pg {}: views never go back in a log", self.id);
        let id = self.next_id();
        let entry = LogEntry { id, op: Arc::new(op) };
        self.replicate(&entry, out);
        self.take(entry, reply, out);
        id
    }

    /// Takes an op that has its place in the log: notes what it opens and whom it concerns.
    pub(super) fn take(
        &mut self,
        entry: LogEntry,
        reply: Option<(Token, ReplyKind)>,
        out: &mut Outbox,
    ) {
        assert_eq!(entry.id.seq, self.last().seq.next(), "ops are taken in order");
        for slot in slots_of(entry.id, self.id, &entry.op).into_iter().flatten() {
            self.slots.enter(slot, entry.id.seq);
        }
        let bytes = bytes_of(&entry.op);
        self.note_open(&entry, bytes);
        if let Some(request) = request_of_op(&entry.op) {
            self.sessions.record(request, entry.id, clock_of(&entry.op));
        }
        self.clock = self.clock.max(clock_of(&entry.op));
        self.unsynced = Some(entry.id);
        out.push(Effect::Append(entry.clone()));
        if let Some((token, _)) = reply
            && self.planted.answers_before_commit()
        {
            let answer = answer_of(&entry);
            out.push(Effect::Reply { token, answer });
        }
        self.tail.push_back(entry, reply, bytes);
    }

    /// Remembers a put with data, whose op takes so many bytes of a message, until its outcome is applied, and what became
    /// of one.
    pub(super) fn note_open(&mut self, entry: &LogEntry, bytes: usize) {
        if let Some(chunk) = chunk_of(&entry.op) {
            let open = OpenPut {
                id: entry.id,
                put: entry.op.clone(),
                bytes: open_bytes_of(bytes),
                chunk: chunk.clone(),
                earlier: Vec::new(),
                since_ms: self.now_ms,
                outcome: None,
                is_told: false,
                superseded: false,
                abandoned_since: None,
                resolution: None,
                retry: Retry::default(),
            };
            self.open.insert(open);
        }
        match &*entry.op {
            Op::Outcome { put, outcome } => {
                if let Some(open) = self.open.get_mut(put) {
                    open.outcome = Some(*outcome);
                }
            }
            Op::Regrant { put, body: Body::Chunk(chunk) } => {
                if let Some(open) = self.open.get_mut(put) {
                    let before = std::mem::replace(&mut open.chunk, chunk.clone());
                    open.earlier.push((entry.id.seq, before));
                }
            }
            _ => {}
        }
    }

    pub(super) fn space_mut(&mut self) -> Option<&mut VolumeGroup> {
        self.space.as_mut()
    }
}
