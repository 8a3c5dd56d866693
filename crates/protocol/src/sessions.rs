//! Outcomes of requests, kept until the session's floor passes them ("A put" in `ARCHITECTURE.md`). So a repeat gets
//! the same answer, and a late repeat never resurrects a deleted object.
//!
//! What became an op is found again in the log, which is kept back to the oldest op remembered
//! ([`Sessions::oldest`]), and goes along with a snapshot. What was refused is known to one run of one
//! member alone: a proxy that asked in several views believes the latest of them.
//!
//! # Invariants
//!
//! 1. A primary's memory fits a snapshot's header, and each part of it a record of the log. A session that has too many
//!    requests above its floor is turned away, and so are all while their group has too many. Floors, which proxies tell
//!    at each beat, are the way out.
//! 2. Of sessions there are [`GROUP_SESSIONS_MAX`] at most, and a header tells the floor of each. The ones forgotten are
//!    over, and of those the ones of which that was known first. One more that is not known is turned away while none is
//!    over, and nothing that its proxy says is noted; only what is in the log always is.
//! 3. A request of a session that was forgotten is New here. It is kept out by those who know which sessions are open: the
//!    server refuses it ([`Refusal::Finished`]).

use std::collections::BTreeMap;

use larder_types::{HybridClock, OpId, OpSeq, Remembered, Request, SessionId, SessionMemory};

use crate::limits::{GROUP_REPEATS_MAX, GROUP_SESSIONS_MAX, RECORD_REPEATS_MAX, REPEATS_MAX};
use crate::message::Refusal;

/// The state of a request.
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
    /// The session, or its group, has too many requests above its floor: slow down.
    TooMany,
}

#[derive(Debug, Default)]
struct Session {
    floor: u64,
    ops: BTreeMap<u64, Remembered>,
    refused: BTreeMap<u64, Refusal>,
    /// The tick at which its proxy was heard last by this run of this member.
    touched: Option<u64>,
    /// The number of sessions that were over when it was found to be.
    ended: u64,
}

impl Session {
    fn is_over(&self) -> bool {
        self.floor == u64::MAX
    }

    /// Returns how many ops were forgotten.
    fn raise_floor(&mut self, floor: u64) -> usize {
        if floor <= self.floor {
            return 0;
        }
        let before = self.ops.len();
        self.floor = floor;
        self.ops = self.ops.split_off(&floor);
        self.refused = self.refused.split_off(&floor);
        before - self.ops.len()
    }
}

/// The sessions that a PG has heard of.
#[derive(Debug, Default)]
pub struct Sessions {
    open: BTreeMap<SessionId, Session>,
    /// Ops remembered of all of them.
    remembered: usize,
    /// Sessions that are over.
    over: usize,
    /// Sessions that were ever found to be over.
    endings: u64,
}

impl Sessions {
    /// Makes room for a session, if there are too many: one that is over goes.
    fn make_room(&mut self, session: SessionId) {
        while self.open.len() >= GROUP_SESSIONS_MAX && !self.open.contains_key(&session) {
            let over = self.open.iter().filter(|(_, known)| known.is_over());
            let oldest = over.min_by_key(|(session, known)| (known.ended, **session));
            let Some(oldest) = oldest.map(|(session, _)| *session) else { break };
            self.open.remove(&oldest);
            self.over -= 1;
        }
    }

    /// Raises a session's floor, and notes it.
    fn note_floor(&mut self, session: SessionId, floor: u64) -> &mut Session {
        self.make_room(session);
        let known = self.open.entry(session).or_default();
        let was_over = known.is_over();
        self.remembered -= known.raise_floor(floor);
        if known.is_over() && !was_over {
            known.ended = self.endings;
            self.over += 1;
            self.endings += 1;
        }
        known
    }

    /// Returns the state of a request, before it is done.
    #[must_use]
    pub fn lookup(&self, request: &Request) -> Known {
        let is_full = self.remembered >= GROUP_REPEATS_MAX;
        let Some(session) = self.open.get(&request.session) else {
            let is_one_too_many = is_full || !self.has_place(request.session);
            return if is_one_too_many { Known::TooMany } else { Known::New };
        };
        if request.number < session.floor {
            return Known::Finished;
        }
        // This member may have refused what a later primary did: the later one counts.
        if let Some(&op) = session.ops.get(&request.number) {
            return Known::Op(op);
        }
        match session.refused.get(&request.number) {
            Some(&refusal) => Known::Refused(refusal),
            None if is_full || session.ops.len() + session.refused.len() >= REPEATS_MAX => {
                Known::TooMany
            }
            None => Known::New,
        }
    }

    /// The session's proxy says something. Nothing is noted of one that would be turned away.
    pub fn touch(&mut self, session: SessionId, tick: u64) {
        if self.has_place(session) {
            self.make_room(session);
            self.open.entry(session).or_default().touched = Some(tick);
        }
    }

    /// Returns true if something may be remembered of a session.
    fn has_place(&self, session: SessionId) -> bool {
        self.open.len() < GROUP_SESSIONS_MAX || self.over > 0 || self.open.contains_key(&session)
    }

    /// The tick at which a session's proxy was heard last, if it ever was.
    #[must_use]
    pub fn last_seen_tick(&self, session: SessionId) -> Option<u64> {
        self.open.get(&session)?.touched
    }

    /// The request became this op.
    pub fn record(&mut self, request: &Request, op: OpId, clock: HybridClock) {
        let session = self.note_floor(request.session, request.floor);
        if request.number >= session.floor {
            let known = Remembered { op, clock, revoked: false };
            let before = session.ops.insert(request.number, known);
            self.remembered += usize::from(before.is_none());
        }
    }

    /// The request was refused, and its proxy told so. Known to this member alone: copies sent to
    /// another are answered there.
    pub fn refuse(&mut self, request: &Request, refusal: Refusal) {
        let session = self.note_floor(request.session, request.floor);
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

    /// The proxy says that every number below `floor` is finished: all of them, if its session is over. Nothing is noted
    /// of one that would be turned away.
    pub fn raise_floor(&mut self, session: SessionId, floor: u64) {
        if self.has_place(session) {
            self.note_floor(session, floor);
        }
    }

    /// Sessions that are not over, as far as this member knows.
    pub fn not_over(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.open.iter().filter(|(_, known)| !known.is_over()).map(|(session, _)| *session)
    }

    /// Every session so far is over.
    pub fn end_all(&mut self) {
        for session in self.open.values_mut().filter(|session| !session.is_over()) {
            self.remembered -= session.raise_floor(u64::MAX);
            session.ended = self.endings;
            self.endings += 1;
        }
        self.over = self.open.len();
    }

    /// The oldest op that a repeat may still ask for.
    #[must_use]
    pub fn oldest(&self) -> Option<OpSeq> {
        let ops = self.open.values().flat_map(|session| session.ops.values());
        ops.map(|known| known.op.seq).min()
    }

    /// Requests remembered that became ops.
    #[must_use]
    pub fn remembered_count(&self) -> usize {
        self.remembered
    }

    /// All that is remembered of ops through `last`, session by session, in parts that each fit a record of the log.
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
        self.open.iter().map(memory).flat_map(|memory| in_records(&memory)).collect()
    }

    /// Takes what another member remembered, or a part of that.
    pub fn restore(&mut self, memory: &SessionMemory) {
        let session = self.note_floor(memory.session, memory.floor);
        let (from, before) = (session.floor, session.ops.len());
        session.ops.extend(memory.requests.iter().copied().filter(|(number, _)| *number >= from));
        self.remembered += session.ops.len() - before;
    }

    /// The op was cut off the log: the request did not become it.
    pub fn forget(&mut self, request: &Request, op: OpId) {
        if let Some(session) = self.open.get_mut(&request.session)
            && session.ops.get(&request.number).is_some_and(|known| known.op == op)
        {
            session.ops.remove(&request.number);
            self.remembered -= 1;
        }
    }
}

/// A session's memory in parts that each fit a record of the log; one at least, which tells its floor.
pub(crate) fn in_records(memory: &SessionMemory) -> Vec<SessionMemory> {
    let part = |requests: &[_]| SessionMemory { requests: requests.to_vec(), ..*memory };
    match &memory.requests[..] {
        [] => vec![part(&[])],
        requests => requests.chunks(RECORD_REPEATS_MAX).map(part).collect(),
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

    #[test]
    fn a_group_that_remembers_too_much_takes_no_more_until_a_floor_is_raised() {
        let op = |seq| OpId { view: View(1), seq: OpSeq(seq) };
        let of = |session, number| Request { session: SessionId(session), number, floor: 0 };
        let mut sessions = Sessions::default();
        let mut seq = 0;
        let full = (GROUP_REPEATS_MAX / 4) as u64;
        for session in 0..4 {
            for number in 0..full {
                assert_eq!(sessions.lookup(&of(session, number)), Known::New);
                seq += 1;
                sessions.record(&of(session, number), op(seq), HybridClock(5));
                // The same op, at a replay.
                sessions.record(&of(session, number), op(seq), HybridClock(5));
            }
        }
        for session in [0, 9] {
            assert_eq!(sessions.lookup(&of(session, full)), Known::TooMany);
        }
        assert!(matches!(sessions.lookup(&of(3, 0)), Known::Op(_)), "a repeat is answered");
        let mut other = Sessions::default();
        for _ in 0..2 {
            sessions.remembered(op(seq).seq).iter().for_each(|memory| other.restore(memory));
        }
        assert_eq!(other.lookup(&of(9, 0)), Known::TooMany);
        for sessions in [&mut sessions, &mut other] {
            sessions.forget(&of(3, full - 1), op(seq));
            assert_eq!(sessions.lookup(&of(9, 0)), Known::New);
            sessions.record(&of(9, 0), op(seq), HybridClock(5));
            assert_eq!(sessions.lookup(&of(9, 1)), Known::TooMany);
            sessions.raise_floor(SessionId(0), 2);
            assert_eq!(sessions.lookup(&of(9, 1)), Known::New);
            sessions.end_all();
            assert_eq!(sessions.remembered, 0);
        }
    }

    #[test]
    fn sessions_that_are_over_are_forgotten_when_there_are_too_many() {
        let of = |session, number| Request { session: SessionId(session), number, floor: 0 };
        let id = |seq| OpId { view: View(1), seq: OpSeq(seq) };
        let mut sessions = Sessions::default();
        let count = GROUP_SESSIONS_MAX as u64;
        for session in 0..count {
            sessions.record(&of(session, 1), id(2 + session), HybridClock(5));
        }
        sessions.touch(SessionId(count), 1);
        assert_eq!(sessions.lookup(&of(count, 1)), Known::TooMany, "none is over");
        assert!(matches!(sessions.lookup(&of(3, 1)), Known::Op(_)), "a repeat is answered");
        for floor in [1, u64::MAX] {
            sessions.raise_floor(SessionId(count), floor);
            assert_eq!(
                sessions.open.len(),
                GROUP_SESSIONS_MAX,
                "what is turned away leaves nothing"
            );
        }
        // Neither ids nor ops say which of them ended first.
        for session in [5, 3, 9] {
            sessions.raise_floor(SessionId(session), u64::MAX);
            sessions.raise_floor(SessionId(session), u64::MAX);
        }
        assert_eq!(sessions.lookup(&of(count, 1)), Known::New);
        for session in count..count + 2 {
            sessions.record(&of(session, 1), id(session + 9), HybridClock(5));
            assert_eq!(sessions.remembered(OpSeq(u64::MAX)).len(), GROUP_SESSIONS_MAX);
        }
        let over = [5, 3, 9].map(|session| sessions.lookup(&of(session, 1)));
        let gone = Known::New;
        assert_eq!(over, [gone, gone, Known::Finished], "the one that ended last is left");
        assert!(matches!(sessions.lookup(&of(4, 1)), Known::Op(_)), "none that is not over");
        sessions.end_all();
        for session in 0..3 * count {
            sessions.raise_floor(SessionId(session), u64::MAX);
        }
        assert_eq!((sessions.open.len(), sessions.remembered), (GROUP_SESSIONS_MAX, 0));
    }
}
