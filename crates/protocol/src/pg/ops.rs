//! Facts that ops of the log state, each for many kinds of ops at once.

use larder_types::{Body, Chunk, HybridClock, Op, Request};

use crate::message::{Answer, AppendDone, LogEntry};

/// The chunk of a put with data.
pub(super) fn chunk_of(op: &Op) -> Option<&Chunk> {
    match &op.put()?.body {
        Body::Chunk(chunk) => Some(chunk),
        _ => None,
    }
}

/// The request that became an op, if a session numbers it.
pub(super) fn request_of_op(op: &Op) -> Option<&Request> {
    match op {
        Op::Put(put) | Op::PutEnough { put, .. } => Some(&put.request),
        Op::Append(append) => Some(&append.request),
        Op::Coalesce(coalesce) => Some(&coalesce.request),
        Op::RemoteChange(change) => Some(&change.put.request),
        Op::Purge(purge) => Some(&purge.request),
        Op::Amend(amend) => Some(&amend.request),
        Op::Noted(noted) => Some(&noted.request),
        Op::Freed(freed) => Some(&freed.request),
        Op::Renew(renew) => Some(&renew.request),
        Op::Grow(grow) => Some(&grow.append.request),
        Op::Delete { request, .. }
        | Op::SetTags { request, .. }
        | Op::CreateUpload { request, .. }
        | Op::CompleteUpload { request, .. }
        | Op::AbortUpload { request, .. } => Some(request),
        _ => None,
    }
}

/// The clock of an op's changes; the lowest if it has none.
pub(super) fn clock_of(op: &Op) -> HybridClock {
    match op {
        Op::Put(put) | Op::PutEnough { put, .. } => put.metax.clock,
        Op::Append(append) => append.clock,
        Op::RemoteChange(change) => change.put.metax.clock,
        Op::Purge(purge) => purge.at.clock,
        Op::Renew(renew) => renew.at.clock,
        Op::Grow(grow) => grow.at.clock,
        Op::Amend(amend) => amend.amended.clock(),
        Op::Delete { clock, .. } => *clock,
        Op::CreateUpload { row, .. } => row.clock,
        Op::CompleteUpload { metax, .. } => metax.clock,
        _ => HybridClock::default(),
    }
}

/// The answer to the call that became this op.
pub(super) fn answer_of(entry: &LogEntry) -> Answer {
    if let Some(append) = entry.op.append() {
        let (op, clock, made) = (entry.id, append.clock, append.made.clone());
        return Answer::Appended(Box::new(AppendDone { op, clock, made }));
    }
    match chunk_of(&entry.op) {
        Some(chunk) => Answer::Persisted { grant: chunk.grant },
        None => done(entry),
    }
}

fn done(entry: &LogEntry) -> Answer {
    Answer::Done { op: entry.id, clock: clock_of(&entry.op) }
}
