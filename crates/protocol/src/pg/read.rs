//! Reads and repeats: what is answered without appending anything.

use larder_types::{
    Body, BucketId, Grant, ObjectKey, Op, OpId, OpSeq, Outcome, Remembered, VersionRow,
};

use super::ops::{answer_of, chunk_of};
use super::pieces::appended_before;
use super::slots::{Reader, Slot};
use super::{Pg, ReplyKind};
use crate::index::{Index, IndexError};
use crate::limits::WAITING_CALLS_MAX;
use crate::message::{Answer, Call, Effect, Outbox, Refusal, Token};

/// The version that a read finds without the index.
enum Visible {
    Index,
    Version(Option<Box<VersionRow>>),
    Pending,
    Unapplied,
}

impl Pg {
    /// Returns true if this primary's index alone can answer a read of the key: no op on it is under way.
    #[must_use]
    pub fn is_quiescent(&self, bucket: BucketId, key: &ObjectKey) -> bool {
        self.serves() && self.slots.at_rest(&Slot::Version(bucket, key.clone()))
    }

    /// The grant of a put whose outcome this serving primary does not know yet, and whether its METAX is below the
    /// commit point. `None` if it has no such put, or another op stands in its place.
    #[must_use]
    pub fn grant_of(&self, op: OpId) -> Option<(Grant, bool)> {
        let open = self.open.get(&op.seq).filter(|open| open.id == op)?;
        (open.outcome.is_none() && self.serves()).then(|| (open.chunk.grant, op.seq <= self.commit))
    }

    /// Answers a repeat of a request that became the op at `seq`.
    pub(super) fn repeat(
        &mut self,
        token: Token,
        call: &Call,
        known: Remembered,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        let seq = known.op.seq;
        if let Some(open) = self.open.get(&seq) {
            let (chunk, clock) = (&open.chunk, open.put().metax.clock);
            let (grant, lv, extents) = (chunk.grant, chunk.lv, chunk.extents.clone());
            let replicas = self.given(chunk);
            let as_of = self.as_of(lv);
            let answer = Answer::Granted { grant, lv, extents, replicas, clock, as_of };
            out.push(Effect::Reply { token, answer });
            if seq <= self.commit {
                out.push(Effect::Reply { token, answer: Answer::Persisted { grant } });
                return Ok(());
            }
        }
        let commit = self.commit;
        match self.tail_at_mut(seq) {
            Some(tail) if tail.entry.op.append().is_some() => {
                tail.reply = Some((token, ReplyKind::Applied));
            }
            Some(tail) if seq > commit => {
                let kind = match chunk_of(&tail.entry.op) {
                    Some(_) => ReplyKind::Persisted,
                    None => ReplyKind::Done,
                };
                tail.reply = Some((token, kind));
            }
            Some(tail) => {
                let answer = answer_of(&tail.entry);
                out.push(Effect::Reply { token, answer });
            }
            None if known.revoked => self.refuse(token, Refusal::Revoked, out),
            None => {
                let answer = match call {
                    Call::Append(append) => appended_before(append, known, index)?,
                    _ => Answer::Done { op: known.op, clock: known.clock },
                };
                out.push(Effect::Reply { token, answer });
            }
        }
        Ok(())
    }

    pub(super) fn read(
        &mut self,
        token: Token,
        bucket: BucketId,
        key: ObjectKey,
        out: &mut Outbox,
    ) {
        let reader = self.slots.reader(token, bucket, key);
        self.read_for(reader, out);
    }

    /// Goes on with reads that waited for an outcome.
    pub(super) fn resume(&mut self, readers: Vec<Reader>, out: &mut Outbox) {
        for reader in readers {
            if self.serves() {
                self.read_for(reader, out);
            } else {
                self.refuse(reader.token, Refusal::NotPrimary, out);
            }
        }
    }

    fn read_for(&mut self, reader: Reader, out: &mut Outbox) {
        let token = reader.token;
        let slot = Slot::Version(reader.bucket, reader.key.clone());
        let answer = match self.visible(&slot, reader.upto) {
            Visible::Index => Answer::AskIndex,
            Visible::Version(row) => Answer::Version(row),
            Visible::Pending | Visible::Unapplied if self.waiting_calls() >= WAITING_CALLS_MAX => {
                return self.refuse(token, Refusal::Busy, out);
            }
            Visible::Pending => {
                out.push(Effect::SyncSoon);
                return self.slots.wait_outcome(slot, reader);
            }
            Visible::Unapplied => {
                let call = Call::Read { bucket: reader.bucket, key: reader.key };
                out.push(Effect::SyncSoon);
                return self.slots.wait_at_rest(slot, token, call, true);
            }
        };
        let is_passed = self.slots.entries(&slot).last().is_some_and(|&last| last > reader.upto);
        self.slots.reads_passed += u64::from(reader.has_waited && is_passed);
        out.push(Effect::Reply { token, answer });
    }

    /// The newest version that may be shown to a read that came after the op `upto` and before the next of its key. It
    /// is committed, though the index may not show it yet.
    ///
    /// A put that came after the read and is pending does not hold it up. Nobody was answered that it is there before the
    /// read had come, so that both orders are right. On a key that is always being written the read would wait for ever.
    fn visible(&self, slot: &Slot, upto: OpSeq) -> Visible {
        for &seq in self.slots.entries(slot).iter().rev() {
            if let Some(open) = self.open.get(&seq) {
                if open.superseded {
                    continue;
                }
                let is_later = seq > upto;
                match open.outcome {
                    Some(Outcome::Committed { .. }) if !open.is_told && is_later => {}
                    Some(Outcome::Committed { .. }) if !open.is_told => return Visible::Pending,
                    Some(Outcome::Committed { holders, .. }) => {
                        let mut chunk = open.chunk.clone();
                        chunk.holders = holders;
                        let (op, metax) = (open.id, open.put().metax.clone());
                        let row = VersionRow { op, metax, body: Body::Chunk(chunk) };
                        return Visible::Version(Some(Box::new(row)));
                    }
                    Some(Outcome::Revoked) => {}
                    None if self.planted.reads_past_pending() => {}
                    None if seq <= self.commit && !is_later => return Visible::Pending,
                    None => {}
                }
                continue;
            }
            if seq > self.commit {
                continue;
            }
            let Some(tail) = self.tail_at(seq) else { continue };
            let is_later = seq > upto;
            return match &*tail.entry.op {
                Op::Delete { .. } | Op::Purge(_) => Visible::Version(None),
                // Nobody was answered before the index shows it.
                Op::Append(_) | Op::Grow(_) => continue,
                Op::Put(put) if matches!(put.body, Body::Inline(_)) => {
                    let (metax, body) = (put.metax.clone(), put.body.clone());
                    let op = tail.entry.id;
                    Visible::Version(Some(Box::new(VersionRow { op, metax, body })))
                }
                // One that came later is shown once the index shows it.
                _ if is_later => continue,
                _ => Visible::Unapplied,
            };
        }
        Visible::Index
    }
}
