//! Calls of proxies.

use std::ops::ControlFlow;

use larder_types::codec::decode;
use larder_types::{
    Body, BucketId, Condition, Holders, Metax, ObjectKey, Op, OpId, Outcome, PartRow, Put,
    RegionId, Stamp, StreamId, Target, Unmet, UploadId, UploadRow, rows,
};

use super::barrier::Barrier;
use super::garbage::is_garbage;
use super::mutation::{Step, current, epoch_holds};
use super::remote_change::Put as Mutation;
use super::slots::{Slot, slot_of_call, slots_of};
use super::space_waiters::SpaceWaiter;
use super::{Pg, ReplyKind};
use crate::index::{Index, IndexError};
use crate::message::{Answer, Call, Content, Description, Effect, Outbox, Refusal, Token};
use crate::sessions::Known;

impl Pg {
    pub(super) fn call(
        &mut self,
        token: Token,
        call: Call,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        if !self.serves() {
            self.refuse(token, Refusal::NotPrimary, out);
            return Ok(());
        }
        match call {
            Call::Commit { op, attempt, holders } => {
                self.commit_put(op, Outcome::Committed { attempt, holders }, true, out);
                Ok(())
            }
            Call::Abandon { op, disk_full } => {
                if disk_full {
                    self.withhold(op, Holders::default());
                }
                self.begin_resolution(op, out);
                Ok(())
            }
            Call::Withdraw { op, disk_full } => {
                if disk_full {
                    self.withhold(op, Holders::default());
                }
                // No copy is examined, so none has to be voided: floors refuse late writes before the blocks are
                // reused.
                self.probe(op, out);
                self.commit_put(op, Outcome::Revoked, false, out);
                // Its proxy waits until the outcome can be lost no more.
                out.push(Effect::SyncSoon);
                Ok(())
            }
            Call::NoRoom { op, replicas } => {
                self.withhold(op, replicas);
                Ok(())
            }
            Call::Suspect { grant, server } => {
                self.suspect(grant, server);
                Ok(())
            }
            Call::Barrier => {
                self.barrier(token, None, index.region(), out);
                Ok(())
            }
            Call::Settle(span) => {
                self.barrier(token, Some(span), index.region(), out);
                Ok(())
            }
            Call::Read { bucket, key } => {
                self.read(token, bucket, key, out);
                Ok(())
            }
            Call::PlanCoalesce(ask) => {
                let last = self.last();
                let planned = self.plan_coalesce(token, &ask, index, out);
                planned.or_else(|error| self.undecided(token, error, last, index, out))
            }
            call => self.mutate(token, call, false, index, out),
        }
    }

    /// Runs a mutation, or queues it; `resumed` ones have waited already and go before others.
    pub(super) fn mutate(
        &mut self,
        token: Token,
        call: Call,
        resumed: bool,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        // Before there is a look at the room: a repeat of what was done needs none.
        if let Some(request) = call.request() {
            self.sessions.touch(request.session, self.ticks);
            match self.sessions.lookup(request) {
                Known::New => {}
                Known::Op(_)
                    if self.planted.repeats_appends() && matches!(call, Call::Append(_)) => {}
                // It is not done: a member of an earlier release may have said so.
                Known::Op(known) if self.is_cut(known.op) => {}
                Known::Op(known) => {
                    let last = self.last();
                    let repeated = self.repeat(token, &call, known, index, out);
                    return repeated.or_else(|it| self.undecided(token, it, last, index, out));
                }
                Known::Refused(refusal) => {
                    self.refuse(token, refusal, out);
                    return Ok(());
                }
                Known::Finished => {
                    self.refuse(token, Refusal::Finished, out);
                    return Ok(());
                }
                Known::TooMany => {
                    self.refuse(token, Refusal::Busy, out);
                    return Ok(());
                }
            }
        }
        if !self.has_capacity_for(&call) || !self.may_wait() {
            self.reject(token, call, out);
            return Ok(());
        }
        if let Some(slot) = slot_of_call(&call)
            && !resumed
            && self.slots.has_queue(&slot)
        {
            self.slots.wait_at_rest(slot, token, call, false);
            return Ok(());
        }
        let last = self.last();
        let step = match self.attempt(token, &call, index, out) {
            Ok(step) => step,
            Err(error) => return self.undecided(token, error, last, index, out),
        };
        match step {
            Step::Done => {}
            Step::Refuse(refusal) => self.refuse_for_good(token, &call, refusal, out),
            Step::Wait(slot) => {
                self.slots.wait_at_rest(slot, token, call, resumed);
                out.push(Effect::SyncSoon);
            }
            Step::Starve => self.starve(token, call),
        }
        Ok(())
    }

    /// The index could not be read for a call. If nothing was appended, the caller is refused. A store that goes on with a
    /// damaged index then goes on with this group too: no op of it needs what is lost. Otherwise the error halts it.
    fn undecided(
        &mut self,
        token: Token,
        error: IndexError,
        last: OpId,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        if self.last() != last {
            return Err(error);
        }
        self.refuse(token, Refusal::IndexDamaged, out);
        if index.is_damaged() { Ok(()) } else { Err(error) }
    }

    fn attempt(
        &mut self,
        token: Token,
        call: &Call,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<Step, IndexError> {
        match call {
            Call::Put(put) => self.put(token, &Mutation::Own(put), index, out),
            Call::RemoteChange(change) => self.take_remote_change(token, change, index, out),
            Call::Append(append) => self.append_to(token, append, index, out),
            Call::Coalesce(coalesce) => self.coalesce(token, coalesce, index, out),
            Call::Delete { request, bucket, epoch, key, condition } => {
                if !epoch_holds(index, *bucket, *epoch) {
                    return Ok(Step::Refuse(Refusal::StaleBucket));
                }
                if let Some(step) = self.unmet(*bucket, key, condition, index)? {
                    return Ok(step);
                }
                let at = self.stamp_of(*bucket, key, index)?;
                if at.region != RegionId::OWN {
                    self.append_purge(token, *request, (*bucket, key), (at, None), out);
                    return Ok(Step::Done);
                }
                let (request, bucket, key) = (*request, *bucket, key.clone());
                let op = Op::Delete { request, bucket, key, clock: at.clock };
                self.append_op(op, Some((token, ReplyKind::Done)), out);
                Ok(Step::Done)
            }
            Call::SetTags { request, bucket, key, tags } => {
                let slot = Slot::Version(*bucket, key.clone());
                if !self.slots.at_rest(&slot) {
                    return Ok(Step::Wait(slot));
                }
                if current(*bucket, key, index)?.is_none() {
                    let is_live = index.bucket_epoch(*bucket).is_some();
                    let refusal = if is_live { Refusal::NoSuchKey } else { Refusal::StaleBucket };
                    return Ok(Step::Refuse(refusal));
                }
                if index.region() != RegionId::OWN {
                    return self.amend_tags(token, *request, (*bucket, key), tags, index, out);
                }
                let (request, bucket, key) = (*request, *bucket, key.clone());
                let op = Op::SetTags { request, bucket, key, tags: tags.clone() };
                self.append_op(op, Some((token, ReplyKind::Done)), out);
                Ok(Step::Done)
            }
            Call::CreateUpload { request, bucket, epoch, key, attributes, checksum } => {
                if !epoch_holds(index, *bucket, *epoch) {
                    return Ok(Step::Refuse(Refusal::StaleBucket));
                }
                let upload = UploadId { pg: self.id, op: self.next_id() };
                let clock = self.tick_clock();
                let (attributes, checksum) = (attributes.clone(), *checksum);
                let row = UploadRow { upload, key: key.clone(), clock, attributes, checksum };
                let op =
                    Op::CreateUpload { request: *request, bucket: *bucket, row: Box::new(row) };
                self.append_op(op, Some((token, ReplyKind::Done)), out);
                Ok(Step::Done)
            }
            Call::CompleteUpload { .. } => self.complete(token, call, index, out),
            Call::AbortUpload { request, bucket, key, upload } => {
                if let Some(step) = self.upload_unready(*bucket, key, *upload, index)? {
                    return Ok(step);
                }
                let (request, bucket, key) = (*request, *bucket, key.clone());
                let op = Op::AbortUpload { request, bucket, key, upload: *upload };
                self.append_op(op, Some((token, ReplyKind::Done)), out);
                Ok(Step::Done)
            }
            Call::DropStream { bucket, stream } => {
                let slot = Slot::Stream(*stream);
                if !self.slots.at_rest(&slot) {
                    return Ok(Step::Wait(slot));
                }
                let op = Op::DropStream { bucket: *bucket, stream: *stream };
                self.append_op(op, Some((token, ReplyKind::Done)), out);
                Ok(Step::Done)
            }
            Call::Commit { .. }
            | Call::Abandon { .. }
            | Call::Withdraw { .. }
            | Call::NoRoom { .. }
            | Call::Suspect { .. }
            | Call::Barrier
            | Call::Settle(_)
            | Call::PlanCoalesce(_)
            | Call::Read { .. } => unreachable!("not a mutation: handled in call()"),
        }
    }

    pub(super) fn put(
        &mut self,
        token: Token,
        mutation: &Mutation<'_>,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<Step, IndexError> {
        let call = mutation.call();
        if !epoch_holds(index, call.bucket, call.epoch) {
            return Ok(Step::Refuse(Refusal::StaleBucket));
        }
        if let Some(step) = self.unmet(call.bucket, &call.key, &call.condition, index)? {
            return Ok(step);
        }
        if let Target::Part { upload, .. } = call.target
            && let Some(step) = self.part_unready(call.bucket, &call.key, upload, index)?
        {
            return Ok(step);
        }
        let body = match &call.content {
            Content::Inline(bytes) => Body::Inline(bytes.clone()),
            Content::Stream { stream, chunks, chunk_bytes } => {
                let slot = Slot::Stream(*stream);
                if !self.slots.at_rest(&slot) {
                    return Ok(Step::Wait(slot));
                }
                let of = (call.bucket, *stream);
                if !stream_is_whole(call.bucket, *stream, *chunks, index)?
                    || is_garbage(index, self.id, of)?
                {
                    return Ok(Step::Refuse(Refusal::StreamIncomplete));
                }
                Body::Stream { stream: *stream, chunks: *chunks, chunk_bytes: *chunk_bytes }
            }
            Content::Data { len, seed, sums } => {
                match self.grant((*len, *seed, sums), call.required_copies, out) {
                    Ok(chunk) => Body::Chunk(chunk),
                    Err(step) => return Ok(step),
                }
            }
        };
        let at = self.stamp_of_put(mutation, index)?;
        let (metax, clock) = (metax_of(&call.description, at), at.clock);
        let granted = match &body {
            Body::Chunk(chunk) => Some(Answer::Granted {
                grant: chunk.grant,
                lv: chunk.lv,
                extents: chunk.extents.clone(),
                replicas: chunk.holders,
                clock,
                as_of: self.as_of(chunk.lv),
            }),
            _ => None,
        };
        let put = Put {
            request: call.request,
            bucket: call.bucket,
            key: call.key.clone(),
            target: call.target.clone(),
            metax,
            body,
        };
        let op = mutation.op(put, if granted.is_some() { call.required_copies } else { 0 });
        let kind = if granted.is_some() { ReplyKind::Persisted } else { ReplyKind::Done };
        self.append_op(op, Some((token, kind)), out);
        if let Some(answer) = granted {
            out.push(Effect::Reply { token, answer });
        }
        Ok(Step::Done)
    }

    fn complete(
        &mut self,
        token: Token,
        call: &Call,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<Step, IndexError> {
        let Call::CompleteUpload {
            request,
            bucket,
            epoch,
            key,
            upload,
            description,
            parts,
            condition,
        } = call
        else {
            unreachable!("called with a completion");
        };
        if !epoch_holds(index, *bucket, *epoch) {
            return Ok(Step::Refuse(Refusal::StaleBucket));
        }
        let slot = Slot::Version(*bucket, key.clone());
        if !self.slots.at_rest(&slot) {
            return Ok(Step::Wait(slot));
        }
        if let Some(step) = self.upload_unready(*bucket, key, *upload, index)? {
            if let Some(row) = current(*bucket, key, index)?
                && matches!(row.body, Body::Parts { upload: done, .. } if done == *upload)
            {
                let answer = Answer::Done { op: row.op, clock: row.metax.clock };
                out.push(Effect::Reply { token, answer });
                return Ok(Step::Done);
            }
            return Ok(step);
        }
        if let Some(step) = self.unmet(*bucket, key, condition, index)? {
            return Ok(step);
        }
        for (part, seen) in parts {
            let row = index.get(&rows::part(*bucket, *upload, part.number))?;
            let row = row.map(|row| decode::<PartRow>("part row", &row)).transpose()?;
            if !row.is_some_and(|row| row.op == *seen && row.metax.size == part.len) {
                return Ok(Step::Refuse(Refusal::InvalidPart(part.number)));
            }
        }
        let at = self.stamp_of(*bucket, key, index)?;
        let op = Op::CompleteUpload {
            request: *request,
            bucket: *bucket,
            key: key.clone(),
            upload: *upload,
            metax: Box::new(metax_of(description, at)),
            parts: parts.iter().map(|(part, _)| *part).collect(),
        };
        self.append_op(op, Some((token, ReplyKind::Done)), out);
        Ok(Step::Done)
    }

    /// Decides a condition; `Some` if the call must not go on now.
    pub(super) fn unmet(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        condition: &Condition,
        index: &dyn Index,
    ) -> Result<Option<Step>, IndexError> {
        if condition.is_none() {
            return Ok(None);
        }
        let slot = Slot::Version(bucket, key.clone());
        if !self.slots.at_rest(&slot) {
            return Ok(Some(Step::Wait(slot)));
        }
        let row = current(bucket, key, index)?;
        Ok(match condition.check(row.as_ref().map(|row| &row.metax)) {
            Ok(()) => None,
            Err(Unmet::Failed) => Some(Step::Refuse(Refusal::PreconditionFailed)),
            Err(Unmet::NoSuchKey) => Some(Step::Refuse(Refusal::NoSuchKey)),
        })
    }

    /// Checks that an upload is open and at rest; `Some` if not.
    fn upload_unready(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        upload: UploadId,
        index: &dyn Index,
    ) -> Result<Option<Step>, IndexError> {
        let slot = Slot::Upload(upload);
        if !self.slots.at_rest(&slot) {
            return Ok(Some(Step::Wait(slot)));
        }
        upload_missing(bucket, key, upload, index)
    }

    /// Checks that an upload takes parts: other parts may be under way.
    fn part_unready(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        upload: UploadId,
        index: &dyn Index,
    ) -> Result<Option<Step>, IndexError> {
        let slot = Slot::Upload(upload);
        let changing = self
            .slots
            .entries(&slot)
            .iter()
            .any(|&seq| self.tail_at(seq).is_some_and(|tail| tail.entry.op.put().is_none()));
        if changing {
            return Ok(Some(Step::Wait(slot)));
        }
        upload_missing(bucket, key, upload, index)
    }

    /// The outcome of a put is known, from its proxy or by looking: log it, and let its readers go on. Those of a put
    /// that was rolled forward wait until the outcome is applied. If it is lost, the next primary to look may find
    /// other copies within reach, and decide otherwise (ADR 9).
    pub(super) fn commit_put(
        &mut self,
        op: OpId,
        outcome: Outcome,
        is_told: bool,
        out: &mut Outbox,
    ) {
        let commit = self.commit;
        let Some(open) = self.open.get_mut(&op.seq) else { return };
        if open.id != op || open.outcome.is_some() {
            return;
        }
        if let Outcome::Committed { attempt, .. } = outcome
            && (op.seq > commit || attempt != open.chunk.grant.attempt)
        {
            return;
        }
        open.outcome = Some(outcome);
        open.is_told = is_told;
        open.resolution = None;
        let shows_at_once = is_told || outcome == Outcome::Revoked;
        let slot = slots_of(open.id, self.id, &open.put).into_iter().flatten().next();
        self.append_op(Op::Outcome { put: op.seq, outcome }, None, out);
        if !shows_at_once {
            out.push(Effect::SyncSoon);
            return;
        }
        let slot = slot.expect("a put has a slot");
        let readers = self.slots.take_readers(&slot);
        self.resume(readers, out);
    }

    /// Refuses a call, and every copy of it that is still on its way.
    pub(super) fn refuse_for_good(
        &mut self,
        token: Token,
        call: &Call,
        refusal: Refusal,
        out: &mut Outbox,
    ) {
        if let Some(request) = call.request() {
            self.sessions.refuse(request, refusal);
        }
        self.refuse(token, refusal, out);
    }

    pub(super) fn refuse(&self, token: Token, refusal: Refusal, out: &mut Outbox) {
        out.push(Effect::Reply { token, answer: Answer::Refused(refusal) });
    }

    pub(super) fn waiting_calls(&self) -> usize {
        self.slots.waiting() + self.starved.len()
    }

    /// Takes every call that waits, to refuse it.
    pub(super) fn drain_waiting(&mut self) -> Vec<(Token, Call)> {
        let mut calls = self.slots.drain();
        calls.extend(self.starved.drain(..).map(SpaceWaiter::call));
        calls.extend(self.drops.drain(..));
        calls.extend(self.barriers.drain(..).map(Barrier::call));
        calls
    }
}

/// A refusal if the index has no such upload.
fn upload_missing(
    bucket: BucketId,
    key: &ObjectKey,
    upload: UploadId,
    index: &dyn Index,
) -> Result<Option<Step>, IndexError> {
    let row = index.get(&rows::upload(bucket, key, upload))?;
    Ok(row.is_none().then_some(Step::Refuse(Refusal::NoSuchUpload)))
}

fn metax_of(description: &Description, at: Stamp) -> Metax {
    Metax {
        region: at.region,
        checksum: description.checksum.clone(),
        attributes: description.attributes.clone(),
        ..Metax::new(description.size, at.clock, description.etag.clone())
    }
}

fn stream_is_whole(
    bucket: BucketId,
    stream: StreamId,
    chunks: u32,
    index: &dyn Index,
) -> Result<bool, IndexError> {
    let mut found = 0;
    index.scan_prefix(&rows::stream(bucket, stream), &mut |row, _| {
        if row == rows::chunk(bucket, stream, found) {
            found += 1;
        }
        ControlFlow::Continue(())
    })?;
    Ok(found == chunks)
}
