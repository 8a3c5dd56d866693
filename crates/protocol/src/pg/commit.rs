//! The commit point: what is durable on all members of the view takes effect and may be answered.

use larder_types::{OpId, OpSeq};

use super::ops::{answer_of, chunk_of};
use super::{Pg, ReplyKind, Role};
use crate::message::{Effect, Outbox, PeerMessage};

impl Pg {
    /// This member's log is synced through `id`.
    pub(super) fn made_durable(&mut self, id: OpId, out: &mut Outbox) {
        if self.unsynced == Some(id) {
            self.unsynced = None;
        }
        if self.copy.is_some() {
            self.copy_synced(id, out);
            return;
        }
        // It may be of an op that was cut off since, or of one that replaced it. Only an op that is still in the log
        // counts, and ops up to a commit point are never cut.
        let known = id.seq <= self.applied.seq
            || self.tail_at(id.seq).is_some_and(|tail| tail.entry.id == id);
        if !known || id.seq <= self.durable {
            return;
        }
        self.durable = id.seq;
        match self.role {
            Role::Backup | Role::Learner => {
                let message = PeerMessage::Acked { view: self.view, through: id };
                self.message(self.members[0], message, out);
                self.advance(self.primary_commit.min(id.seq), out);
            }
            Role::Levelling | Role::Active | Role::Serving => self.primary_advance(out),
            Role::Down | Role::Halted => {}
        }
    }

    /// The primary's commit point: the highest op durable on all members, once that is an op of its own
    /// view. An op of an older view alone could still lose to one of a later view that some member has
    /// (ADR 8).
    pub(super) fn primary_advance(&mut self, out: &mut Outbox) {
        let mut point = self.durable;
        for member in &self.members[1..] {
            point = point.min(self.acked_by(*member));
        }
        if self.id_at(point).is_some_and(|op| op.view == self.view) {
            self.advance(point, out);
        }
        self.view_progress(out);
    }

    /// Raises the commit point to `point`, as far as this member is durable, and answers what waited.
    pub(super) fn advance(&mut self, point: OpSeq, out: &mut Outbox) {
        let point = point.min(self.last().seq);
        if point <= self.commit {
            return;
        }
        let from = self.commit;
        self.commit = point;
        let first = (from.0.max(self.applied.seq.0) - self.applied.seq.0) as usize;
        let until = (point.0 - self.applied.seq.0) as usize;
        let silent = self.planted.answers_before_commit();
        // METAX of a put with data changes the index only with its outcome: no apply for it alone.
        let mut takes_effect = false;
        for tail in self.tail.range_mut(first..until) {
            takes_effect |= chunk_of(&tail.entry.op).is_none();
            if let Some((token, _)) = tail.reply.take_if(|(_, kind)| *kind != ReplyKind::Applied)
                && !silent
            {
                out.push(Effect::Reply { token, answer: answer_of(&tail.entry) });
            }
        }
        if takes_effect {
            out.push(Effect::Committed);
        }
    }
}
