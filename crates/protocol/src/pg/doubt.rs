//! Open puts without a proxy that will end them: it has died, or its last message about them was lost. Also the puts in
//! doubt, for operators.
//!
//! To resolve a put whose proxy is alive after all is safe, and costs only that put. The grant is voided before its
//! copies are looked at, and what its client may have been told decides (`resolve.rs`).
//!
//! A put in doubt blocks its own key alone, but it has a price until it is decided:
//!
//! - It holds down the floors of its group (`resolve.rs`): what is deleted after it is not given to others there. The
//!   group draws other volumes meanwhile, until no disk has room for one.
//! - Its METAX is nowhere but in the log, which is therefore kept from its op on ([`Pg::retained`]). The log grows by what all
//!   groups of the server write, and a restart reads that much. When the disk has no room for another segment everything new
//!   is refused; deletes go on and nothing is lost.
//!
//! To cut the log, such a put would have to stand in the index, as a row of the member's own. That row would go with its
//! outcome in one batch, and say whether it is superseded. A release that does not know the row would lose the put.
//!
//! # Invariants
//!
//! 1. No call waits without end for a put in doubt: it is refused in time, so that such calls do not take the room of
//!    those that concern other keys.

use larder_types::{BucketId, Holders, LvId, ObjectKey, OpId, SessionId};

use super::{OpenPut, Pg};
use crate::limits::{ABANDONED_TICKS, DOUBT_TICKS_MAX, SESSION_TICKS_MAX};
use crate::message::{Outbox, Refusal};
use crate::sessions::Sessions;

/// A put of which it is not known whether its client may have been told that it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// The put.
    pub op: OpId,
    /// Its bucket.
    pub bucket: BucketId,
    /// Its key.
    pub key: ObjectKey,
    /// Milliseconds for which this member has had it open.
    pub open_ms: u64,
    /// Where its data lies.
    pub lv: LvId,
    /// Replicas that may have its data and are out of reach.
    pub away: Holders,
}

impl OpenPut {
    /// Returns true if its proxy will not end it any more: it is silent, or has said its last of it.
    pub(super) fn is_orphan(&self, tick: u64, sessions: &Sessions) -> bool {
        let passed = |since: Option<u64>, ticks| since.is_some_and(|it| tick - it >= ticks);
        passed(self.abandoned_since, ABANDONED_TICKS)
            || passed(sessions.last_seen_tick(self.put().request.session), SESSION_TICKS_MAX)
    }
}

impl Pg {
    /// A proxy reported that it has finished all requests below a number, except some.
    pub(super) fn forsake(&mut self, session: SessionId, below: u64, but_for: &[u64]) {
        let tick = self.ticks;
        self.sessions.touch(session, tick);
        for open in self.open.values_mut() {
            let request = open.put().request;
            let is_over = request.session == session
                && request.number < below
                && but_for.binary_search(&request.number).is_err();
            if is_over && open.outcome.is_none() {
                open.abandoned_since.get_or_insert(tick);
            }
        }
    }

    /// Refuses calls that have waited long for a row of which a put is open, or for space.
    pub(super) fn refuse_overdue(&mut self, out: &mut Outbox) {
        let Some(before) = self.ticks.checked_sub(DOUBT_TICKS_MAX) else { return };
        self.refuse_starved(before, out);
        let mut overdue = self.slots.overdue(before);
        overdue.extend(self.overdue_barriers(before));
        for (token, call) in overdue {
            self.refuse_for_good(token, &call, Refusal::InDoubt, out);
        }
    }

    /// Open puts that are being resolved, or wait for it.
    pub(super) fn in_doubt(&self) -> impl Iterator<Item = &OpenPut> {
        self.open.values().filter(|open| {
            let is_older = self.serves() && open.id.view < self.view;
            open.outcome.is_none() && (open.resolution.is_some() || is_older)
        })
    }

    pub(super) fn age_ms(&self, open: &OpenPut) -> u64 {
        self.now_ms.saturating_sub(open.since_ms)
    }

    /// Puts in doubt, with what they wait for.
    pub fn doubts(&self) -> impl Iterator<Item = Doubt> + '_ {
        self.in_doubt().map(|open| {
            let (put, lv) = (open.put(), open.chunk.lv);
            let out_of_reach = |space: &crate::VolumeGroup| space.gone(lv).without(space.lost(lv));
            let away = self.space.as_ref().map(out_of_reach).unwrap_or_default();
            Doubt {
                op: open.id,
                bucket: put.bucket,
                key: put.key.clone(),
                open_ms: self.age_ms(open),
                lv,
                away: self.given(&open.chunk).common(away),
            }
        })
    }
}
