//! Outcomes of requests, kept until the session's floor passes them, so that a repeat gets the same
//! answer and a late repeat never resurrects a deleted object (DESIGN §5).
//!
//! What became an op is found again in the log, which is kept back to the oldest op remembered
//! ([`Sessions::oldest`]), and goes along with a snapshot. What was refused is known to one run of one
//! member alone: a proxy that asked in several views believes the latest of them.

use std::collections::BTreeMap;

use larder_types::{HybridClock, OpId, OpSeq, Remembered, Request, SessionId, SessionMemory};

use crate::limits::REPEATS_MAX;
use crate::message::Refusal;

/// What is known of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Nothing: do it.
    New,
    /// It became an op.
    Op(Remembered),
    /// It was refused: a copy of it that comes late must not be done after all.
    Refused(Refusal),
    /// It is finished: refuse.
    Finished,
    /// The session has too many requests above its floor: slow down.
    TooMany,
}

#[derive(Debug, Default)]
struct Session {
    floor: u64,
    ops: BTreeMap<u64, Remembered>,
    refused: BTreeMap<u64, Refusal>,
    /// The tick at which its proxy was heard last by this run of this member.
    heard: Option<u64>,
}

impl Session {
    fn raise_floor(&mut self, floor: u64) {
        if floor > self.floor {
            self.floor = floor;
            self.ops = self.ops.split_off(&floor);
            self.refused = self.refused.split_off(&floor);
        }
    }
}

/// The sessions that a PG has heard of.
#[derive(Debug, Default)]
pub struct Sessions {
    open: BTreeMap<SessionId, Session>,
}

impl Sessions {
    /// What is known of a request, before it is done.
    #[must_use]
    pub fn lookup(&self, request: &Request) -> Known {
        let Some(session) = self.open.get(&request.session) else { return Known::New };
        if request.number < session.floor {
            return Known::Finished;
        }
        // This member may have refused what a later primary did: the later one counts.
        if let Some(&op) = session.ops.get(&request.number) {
            return Known::Op(op);
        }
        match session.refused.get(&request.number) {
            Some(&refusal) => Known::Refused(refusal),
            None if session.ops.len() + session.refused.len() >= REPEATS_MAX => Known::TooMany,
            None => Known::New,
        }
    }

    /// The session's proxy says something.
    pub fn heard(&mut self, session: SessionId, tick: u64) {
        self.open.entry(session).or_default().heard = Some(tick);
    }

    /// The tick at which a session's proxy was heard last, if it ever was.
    #[must_use]
    pub fn last_heard(&self, session: SessionId) -> Option<u64> {
        self.open.get(&session)?.heard
    }

    /// The request became this op.
    pub fn record(&mut self, request: &Request, op: OpId, clock: HybridClock) {
        let session = self.open.entry(request.session).or_default();
        session.raise_floor(request.floor);
        if request.number >= session.floor {
            session.ops.insert(request.number, Remembered { op, clock, revoked: false });
        }
    }

    /// The request was refused, and its proxy told so. Known to this member alone: copies sent to
    /// another are answered there.
    pub fn refuse(&mut self, request: &Request, refusal: Refusal) {
        let session = self.open.entry(request.session).or_default();
        session.raise_floor(request.floor);
        if request.number >= session.floor {
            session.refused.insert(request.number, refusal);
        }
    }

    /// The request's put was revoked.
    pub fn revoke(&mut self, request: &Request) {
        if let Some(session) = self.open.get_mut(&request.session)
            && let Some(known) = session.ops.get_mut(&request.number)
        {
            known.revoked = true;
        }
    }

    /// The proxy says that every number below `floor` is finished: all of them, if its session is over.
    pub fn raise_floor(&mut self, session: SessionId, floor: u64) {
        self.open.entry(session).or_default().raise_floor(floor);
    }

    /// Every session so far is over.
    pub fn end_all(&mut self) {
        self.open.values_mut().for_each(|session| session.raise_floor(u64::MAX));
    }

    /// The oldest op that a repeat may still ask for.
    #[must_use]
    pub fn oldest(&self) -> Option<OpSeq> {
        let ops = self.open.values().flat_map(|session| session.ops.values());
        ops.map(|known| known.op.seq).min()
    }

    /// All that is remembered of ops through `last`, session by session.
    #[must_use]
    pub fn remembered(&self, last: OpSeq) -> Vec<SessionMemory> {
        let memory = |(&session, known): (&SessionId, &Session)| SessionMemory {
            session,
            floor: known.floor,
            requests: (known.ops.iter())
                .filter(|(_, known)| known.op.seq <= last)
                .map(|(number, known)| (*number, *known))
                .collect(),
        };
        self.open.iter().map(memory).collect()
    }

    /// Takes what another member remembered.
    pub fn restore(&mut self, memory: &SessionMemory) {
        let session = self.open.entry(memory.session).or_default();
        session.raise_floor(memory.floor);
        let from = session.floor;
        session.ops.extend(memory.requests.iter().copied().filter(|(number, _)| *number >= from));
    }

    /// The op was cut off the log: the request did not become it.
    pub fn forget(&mut self, request: &Request, op: OpId) {
        if let Some(session) = self.open.get_mut(&request.session)
            && session.ops.get(&request.number).is_some_and(|known| known.op == op)
        {
            session.ops.remove(&request.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_types::{OpSeq, View};

    use super::*;

    fn request(number: u64, floor: u64) -> Request {
        Request { session: SessionId(1), number, floor }
    }

    #[test]
    fn a_repeat_is_known_until_the_floor_passes_it() {
        let mut sessions = Sessions::default();
        let op = |seq| OpId { view: View(1), seq: OpSeq(seq) };
        let clock = HybridClock(5);
        assert_eq!(sessions.lookup(&request(5, 0)), Known::New);
        sessions.record(&request(5, 0), op(9), clock);
        let known = Remembered { op: op(9), clock, revoked: false };
        assert_eq!(sessions.lookup(&request(5, 0)), Known::Op(known));
        sessions.revoke(&request(5, 0));
        assert_eq!(
            sessions.lookup(&request(5, 0)),
            Known::Op(Remembered { revoked: true, ..known })
        );
        sessions.record(&request(7, 6), op(10), clock);
        assert_eq!(sessions.lookup(&request(5, 0)), Known::Finished);
        sessions.forget(&request(7, 6), op(9));
        assert!(matches!(sessions.lookup(&request(7, 6)), Known::Op(_)), "another op was cut");
        sessions.forget(&request(7, 6), op(10));
        assert_eq!(sessions.lookup(&request(7, 6)), Known::New);
    }

    #[test]
    fn what_is_remembered_is_restored_elsewhere() {
        let op = |seq| OpId { view: View(1), seq: OpSeq(seq) };
        let mut sessions = Sessions::default();
        sessions.record(&request(5, 3), op(9), HybridClock(5));
        sessions.record(&request(7, 4), op(12), HybridClock(6));
        assert_eq!(sessions.oldest(), Some(OpSeq(9)));
        let mut other = Sessions::default();
        sessions.remembered(OpSeq(9)).iter().for_each(|memory| other.restore(memory));
        assert_eq!(other.lookup(&request(5, 4)), sessions.lookup(&request(5, 4)));
        assert_eq!(other.lookup(&request(7, 4)), Known::New, "it came after the snapshot");
        assert_eq!(other.lookup(&request(3, 3)), Known::Finished);
        other.raise_floor(SessionId(1), 6);
        assert_eq!((other.oldest(), other.lookup(&request(5, 5))), (None, Known::Finished));
        sessions.end_all();
        assert_eq!((sessions.oldest(), sessions.lookup(&request(8, 8))), (None, Known::Finished));
    }

    #[test]
    fn a_copy_of_a_refused_request_is_refused_again_unless_it_was_done_since() {
        let mut sessions = Sessions::default();
        sessions.refuse(&request(5, 0), Refusal::NoSuchKey);
        assert_eq!(sessions.lookup(&request(5, 0)), Known::Refused(Refusal::NoSuchKey));
        // A later primary did it, and its op reaches this member: the refusal is not repeated.
        let op = OpId { view: View(2), seq: OpSeq(9) };
        let done = Remembered { op, clock: HybridClock(5), revoked: false };
        sessions.record(&request(5, 0), op, done.clock);
        assert_eq!(sessions.lookup(&request(5, 0)), Known::Op(done));
        sessions.forget(&request(5, 0), op);
        assert_eq!(sessions.lookup(&request(5, 0)), Known::Refused(Refusal::NoSuchKey));
        sessions.refuse(&request(6, 6), Refusal::Full);
        assert_eq!(sessions.lookup(&request(5, 0)), Known::Finished);
    }
}
