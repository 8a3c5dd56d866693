//! Comparison of the members' indexes: all sum the PG's rows as they are at one op of the log, and the primary
//! compares the sums (ADR 20).
//!
//! ```text
//!  primary                                              member
//!  Event::Compare: Op::Digest into the log     ──▶
//!  applied, and the batch ends: Effect::Digest          applied, and the batch ends: Effect::Digest
//!  Event::Digested                                      Event::Digested
//!                                              ◀──      Digest, at once and whenever it is asked for
//!  all are there: Effect::Compared
//!  to the one that is odd: IsOdd               ──▶      is_odd: its driver says so to the managers
//!                                                       in the next view a learner: it takes a snapshot
//! ```
//!
//! # Invariants
//!
//! 1. A sum is of the rows as they are after its op and before the next. A digest is the last op of its batch, and the
//!    driver keeps its reader before it has the next batch applied.
//! 2. Compared are sums of one op of the present view, of all its members. With the view ends what is known of it, who
//!    is odd too.
//! 3. At most one member is odd, and only if more than half of the view's members have other rows, all the same.
//! 4. One that is odd has all its rows and stays what it is, until it is no member any more. Then it gives them up as a
//!    learner, on which nothing counts.

use std::collections::BTreeMap;

use larder_types::{Op, OpId, ServerId};

use super::{Pg, Role};
use crate::digest::{Compared, Summed, compare, odd_to};
use crate::limits::{DIGEST_RETRY_TICKS, DIGEST_TICKS_MAX};
use crate::message::{Effect, Outbox, PeerMessage};

/// The state of digests in the present view.
#[derive(Debug, Default)]
pub(super) struct Digests {
    /// The last digest that was applied here, and its sum when it is known.
    own: Option<(OpId, Option<Summed>)>,
    /// At a primary: the comparison under way.
    under_way: Option<Comparison>,
    /// At a primary: what the last one came to.
    last: Option<(OpId, Compared)>,
    /// This member's rows are odd.
    is_odd: bool,
    /// Ticks since the last request for digests, or the last notice to members that differ.
    ticks: u32,
}

#[derive(Debug)]
struct Comparison {
    at: OpId,
    sums: BTreeMap<ServerId, Summed>,
    ticks: u32,
}

impl Digests {
    pub(super) fn is_odd(&self) -> bool {
        self.is_odd
    }
}

impl Pg {
    /// Returns true if the members' indexes can be compared now: this member serves, all others follow, and no comparison is
    /// under way.
    #[must_use]
    pub fn may_compare(&self) -> bool {
        let is_idle = self.digests.under_way.is_none();
        self.serves() && self.members.len() > 1 && is_idle && self.all_follow()
    }

    /// The op at which this primary compares.
    #[must_use]
    pub fn comparing(&self) -> Option<OpId> {
        self.digests.under_way.as_ref().map(|it| it.at)
    }

    /// Returns the result of the last comparison of this primary in this view.
    #[must_use]
    pub fn compared(&self) -> Option<Compared> {
        self.digests.last.map(|(_, outcome)| outcome)
    }

    /// Returns true if the sum at this op is still wanted.
    #[must_use]
    pub fn wants_sum(&self, at: OpId) -> bool {
        matches!(self.digests.own, Some((own, None)) if own == at)
    }

    /// Returns true if this member's rows are not those of the others: the managers are to hear of it.
    #[must_use]
    pub fn is_odd(&self) -> bool {
        self.digests.is_odd
    }

    /// Begins a comparison, if it may.
    pub(super) fn compare(&mut self, out: &mut Outbox) {
        if !self.may_compare() {
            return;
        }
        let at = self.append_op(Op::Digest, None, out);
        self.digests.under_way = Some(Comparison { at, sums: BTreeMap::new(), ticks: 0 });
    }

    /// Returns how many of the next `ready` ops are applied together: a digest ends its batch.
    pub(super) fn until_digest(&self, ready: usize) -> usize {
        if self.planted.sums_after_batch() {
            return ready;
        }
        let is_digest = |at: &usize| matches!(*self.tail[*at].entry.op, Op::Digest);
        (0..ready).find(is_digest).map_or(ready, |at| at + 1)
    }

    /// The digest among the next `count` ops.
    pub(super) fn digest_within(&self, count: usize) -> Option<OpId> {
        let mut ops = self.tail.iter().take(count).map(|tail| &tail.entry);
        ops.find(|entry| matches!(*entry.op, Op::Digest)).map(|entry| entry.id)
    }

    /// A digest was applied, and nothing after it.
    pub(super) fn begin_sum(&mut self, at: OpId, out: &mut Outbox) {
        let is_member = self.role == Role::Backup || self.serves();
        // That of an older view is compared by nobody.
        if at.view != self.view || !is_member {
            return;
        }
        assert!(
            at == self.applied || self.planted.sums_after_batch(),
            "pg {}: rows are summed at op {at:?}, but show {:?}",
            self.id,
            self.applied
        );
        self.digests.own = Some((at, None));
        out.push(Effect::Digest { at });
    }

    /// This member's rows were summed.
    pub(super) fn digested(&mut self, at: OpId, sum: Summed, out: &mut Outbox) {
        if !self.wants_sum(at) {
            return;
        }
        self.digests.own = Some((at, Some(sum.clone())));
        if self.role == Role::Backup {
            self.message(self.members[0], PeerMessage::Digest { view: self.view, at, sum }, out);
        } else {
            self.receive_digest(self.me, at, sum, out);
        }
    }

    /// The primary asks for the sum at an op. One whose log does not reach there yet, or whose sum is under way, says
    /// nothing.
    pub(super) fn send_digest(&self, at: OpId, out: &mut Outbox) {
        let sum = match &self.digests.own {
            Some((own, sum)) if *own == at => sum.clone(),
            _ => (self.applied.seq >= at.seq).then_some(Summed::Nothing),
        };
        if let Some(sum) = sum.filter(|_| self.role == Role::Backup) {
            self.message(self.members[0], PeerMessage::Digest { view: self.view, at, sum }, out);
        }
    }

    /// The primary says that the sum which this member told is odd.
    pub(super) fn called_odd(&mut self, at: OpId) {
        let is_told = matches!(&self.digests.own, Some((own, Some(_))) if *own == at);
        self.digests.is_odd |= is_told && self.role == Role::Backup;
    }

    /// A member tells its sum.
    pub(super) fn receive_digest(
        &mut self,
        from: ServerId,
        at: OpId,
        sum: Summed,
        out: &mut Outbox,
    ) {
        let is_member = self.members.contains(&from);
        let Some(comparison) = self.digests.under_way.as_mut().filter(|it| it.at == at) else {
            return;
        };
        if is_member {
            comparison.sums.insert(from, sum);
            self.judge(out);
        }
    }

    /// Compares the digests once all members have sent theirs, or one has reported that it cannot.
    fn judge(&mut self, out: &mut Outbox) {
        let all = self.members.len();
        let is_over = |it: &mut Comparison| {
            it.sums.len() == all || it.sums.values().any(|sum| !matches!(sum, Summed::Sum(_)))
        };
        let Some(Comparison { at, sums, .. }) = self.digests.under_way.take_if(is_over) else {
            return;
        };
        let outcome = match (compare(&sums), sums.get(&self.me)) {
            (Compared::Odd(_), Some(Summed::Sum(own)))
                if self.planted.takes_primary_for_right() =>
            {
                odd_to(own, &sums)
            }
            (outcome, _) => outcome,
        };
        self.decided(at, outcome, sums, out);
    }

    fn decided(
        &mut self,
        at: OpId,
        outcome: Compared,
        sums: BTreeMap<ServerId, Summed>,
        out: &mut Outbox,
    ) {
        self.digests.last = Some((at, outcome));
        if outcome == Compared::Odd(self.me) {
            self.digests.is_odd = true;
        }
        self.send_outliers(out);
        out.push(Effect::Compared { at, outcome, sums });
    }

    fn send_outliers(&self, out: &mut Outbox) {
        if let Some((at, Compared::Odd(odd))) = self.digests.last
            && odd != self.me
        {
            self.message(odd, PeerMessage::IsOdd { view: self.view, at }, out);
        }
    }

    /// A tick of a primary: asks for what it lacks, and says again what may have been lost on the way.
    pub(super) fn request_digests(&mut self, out: &mut Outbox) {
        self.digests.ticks += 1;
        let is_time = self.digests.ticks >= DIGEST_RETRY_TICKS;
        if is_time {
            self.digests.ticks = 0;
            self.send_outliers(out);
        }
        let Some(comparison) = &mut self.digests.under_way else { return };
        comparison.ticks += 1;
        if comparison.ticks > DIGEST_TICKS_MAX {
            if let Some(Comparison { at, sums, .. }) = self.digests.under_way.take() {
                self.decided(at, Compared::Void, sums, out);
            }
            return;
        }
        if is_time {
            let Comparison { at, sums, .. } = comparison;
            let (at, view) = (*at, self.view);
            let lacking = self.members[1..].iter().filter(|member| !sums.contains_key(member));
            out.extend(
                lacking.map(|to| Effect::Send {
                    to: *to,
                    message: PeerMessage::AskDigest { view, at },
                }),
            );
        }
    }
}
