//! Members and views: replication of the log, and levelling at the start of a view ("Crashes" in `ARCHITECTURE.md`).
//!
//! Who follows a primary is a member of its view, whose acknowledgement every commit needs, or a
//! learner, which nobody waits for until the manager makes it a member.
//!
//! # Invariants
//!
//! 1. A member takes nothing from a view older than its own.
//! 2. Ops at or below a commit point are never cut. A new primary keeps the longest log by (view, seq) among all
//!    members of the view, and every member is needed for it.
//! 3. A primary serves only after an op of its own view is durable on all members.
//! 4. A follower is sent what follows an op that both logs have, or a snapshot: a log never has a gap.
//! 5. A member whose rows are not whole leads no view.
//! 6. A follower is sent an op once, and again only after it has not got on for a tick for each MiB that it lacks. It
//!    reports a gap once as well. So neither ticks nor losses cost more than the way between two servers carries.

use std::sync::Arc;

use larder_types::{BootId, Op, OpId, OpSeq, ServerId, View};

use super::capacity::bytes_of;
use super::digest::Digests;
use super::history::History;
use super::level::repeat_after;
use super::moves::Moves;
use super::ops::request_of_op;
use super::refill::Refills;
use super::resolve::Retry;
use super::slots::slots_of;
use super::{Pg, Role};
use crate::index::{Index, IndexError};
use crate::limits::{IDLE_TICKS, LEARNER_TICKS_MAX, SILENT_TICKS_MAX};
use crate::message::{Effect, LogEntry, Outbox, PeerMessage, Refusal, Report, SnapshotHeader};

/// The primary's knowledge of one that follows it.
#[derive(Debug, Clone, Default)]
pub(super) struct Follower {
    /// A member of the view; else a learner.
    counts: bool,
    /// Through here its log is this one's.
    shared: OpSeq,
    /// Highest op that it made durable in this view.
    acked: OpSeq,
    /// The snapshot that it takes.
    copies: Option<Arc<SnapshotHeader>>,
    /// The manager was told that it has everything.
    knows_commit: bool,
    /// Through here it was sent all.
    sent: OpSeq,
    /// The tick from which on it is sent again what it has not acknowledged.
    due: u64,
    /// Until that tick all that follows `shared` is taken to be on its way, as it was sent together.
    in_flight_until: u64,
    /// The commit point that a tick told it last.
    sent_commit: OpSeq,
    /// Ticks since it said something.
    silent_ticks: u32,
}

impl Pg {
    pub(super) fn begin_view(
        &mut self,
        view: View,
        members: Vec<ServerId>,
        boot: BootId,
        out: &mut Outbox,
    ) {
        assert!(members.contains(&self.me), "pg {}: a view is told to its members", self.id);
        // A backup may come back into the view in which it went; a primary never: ops that it issued
        // there may be lost. A learner may have been told of its place before the view of it.
        let leads = members[0] == self.me;
        let rejoins = self.role == Role::Down && !leads && view == self.view;
        if view <= self.view && !rejoins || leads && !self.is_whole {
            return;
        }
        self.leave_view(out);
        self.view = view;
        self.boot = boot;
        self.members = members;
        let early = std::mem::take(&mut self.early);
        self.apply_what_is_committed(out);
        if leads {
            self.role = Role::Levelling;
            self.reports = early.of_members(view, &self.members[1..]);
            self.level_if_reported(out);
        } else {
            self.role = Role::Backup;
            self.report(out);
        }
    }

    /// Follows a view's primary without being a member.
    pub(super) fn learn(&mut self, view: View, primary: ServerId, out: &mut Outbox) {
        assert!(primary != self.me, "pg {}: nobody follows itself", self.id);
        let follows = matches!(self.role, Role::Learner) && self.members[0] == primary;
        let is_member = !matches!(self.role, Role::Learner | Role::Down);
        if view < self.view || view == self.view && (follows || is_member) {
            return;
        }
        let is_odd = self.digests.is_odd() && !self.planted.follows_though_odd();
        self.leave_view(out);
        self.view = view;
        self.members = vec![primary];
        self.role = Role::Learner;
        // From here on nothing counts on what it has: it takes all of it anew.
        self.is_whole &= !is_odd;
        self.apply_what_is_committed(out);
        self.report(out);
    }

    fn leave_view(&mut self, out: &mut Outbox) {
        for (token, _) in self.drain_waiting() {
            self.refuse(token, Refusal::NotPrimary, out);
        }
        for tail in self.tail.iter_mut() {
            if let Some((token, _)) = tail.reply.take() {
                let answer = crate::Answer::Refused(Refusal::NotPrimary);
                out.push(Effect::Reply { token, answer });
            }
        }
        for open in self.open.values_mut() {
            (open.resolution, open.retry) = (None, Retry::default());
        }
        for (to, follower) in std::mem::take(&mut self.followers) {
            if follower.copies.is_some() {
                out.push(Effect::SnapshotOver { to });
            }
        }
        self.copy = None;
        self.unrested += self.space.take().map_or(0, |space| space.given_up());
        self.refills = Refills::default();
        self.moves = Moves::default();
        self.reaper.begin_view();
        self.departed.begin_view();
        self.lv_requested = false;
        self.pool_empty_ms = None;
        self.wider_due_ms = None;
        self.reports.clear();
        (self.levelled, self.following_requested) = (false, false);
        self.primary_answered = false;
        self.silent_ticks = 0;
        self.quiet.clear();
        self.digests = Digests::default();
    }

    pub(super) fn peer(
        &mut self,
        from: ServerId,
        message: PeerMessage,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        if message.view() > self.view {
            self.early.keep(from, message);
            return Ok(());
        }
        if message.view() < self.view {
            return Ok(());
        }
        if self.follows(from) {
            self.primary_answered = true;
            if self.is_awaited(&message) {
                self.silent_ticks = 0;
            }
            match message {
                PeerMessage::Append { prev, entries, commit, .. }
                    if self.copy.is_none() && self.is_whole =>
                {
                    self.append_from_primary(prev, entries, commit, out);
                }
                PeerMessage::Snapshot { header, .. } => self.begin_copy(header, out),
                PeerMessage::SnapshotRows { at, after, piece, .. } => {
                    return self.take_rows(at, after.as_deref(), &piece, index, out);
                }
                PeerMessage::AskDigest { at, .. } => self.send_digest(at, out),
                PeerMessage::IsOdd { at, .. } => self.called_odd(at),
                _ => {}
            }
            return Ok(());
        }
        if self.acknowledges(&message) {
            self.quiet.remove(&from);
        }
        if let Some(follower) = self.followers.get_mut(&from) {
            follower.silent_ticks = 0;
        }
        match message {
            PeerMessage::Acked { through, .. } => self.acked(from, through, out),
            PeerMessage::Report { report, .. } => self.reported(from, report, out),
            PeerMessage::Digest { at, sum, .. } => self.receive_digest(from, at, sum, out),
            PeerMessage::SnapshotNext { at, after, .. } => {
                let copies = self.followers.get(&from).and_then(|known| known.copies.as_ref());
                if self.leads() && copies.is_some_and(|header| header.at == at) {
                    out.push(Effect::SnapshotRows { to: from, at, after });
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn follows(&self, whom: ServerId) -> bool {
        matches!(self.role, Role::Backup | Role::Learner) && self.members[0] == whom
    }

    fn acked(&mut self, from: ServerId, through: OpId, out: &mut Outbox) {
        if !self.leads() || self.id_at(through.seq) != Some(through) {
            return;
        }
        let Some(follower) = self.followers.get_mut(&from) else { return };
        let gets_on = follower.acked < through.seq;
        follower.acked = follower.acked.max(through.seq);
        follower.shared = follower.shared.max(through.seq);
        if gets_on {
            // The ops that it has not acknowledged are on their way, by all that is known.
            follower.due = follower.due.max(self.ticks + 2);
        }
        if follower.copies.as_ref().is_some_and(|header| header.at.seq <= through.seq) {
            follower.copies = None;
            out.push(Effect::SnapshotOver { to: from });
            self.send_from(from, through.seq, out);
        }
        if gets_on || through == self.last() {
            self.quiet.remove(&from);
        }
        self.primary_advance(out);
        self.report_caught_up(out);
    }

    /// Sends a new op to those who follow.
    pub(super) fn replicate(&mut self, entry: &LogEntry, out: &mut Outbox) {
        let (view, prev, commit, ticks) = (self.view, self.last(), self.commit, self.ticks);
        for (&to, follower) in &mut self.followers {
            if follower.copies.is_none() && follower.sent == prev.seq {
                follower.sent = entry.id.seq;
                if follower.shared == prev.seq {
                    follower.due = follower.due.max(ticks + 2);
                }
                let entries = vec![entry.clone()];
                let message = PeerMessage::Append { view, prev, entries, commit };
                out.push(Effect::Send { to, message });
            }
        }
    }

    /// Lets a member or learner follow from the last op that both logs are known to have, or from a
    /// snapshot.
    pub(super) fn place(&mut self, from: ServerId, report: &Report, out: &mut Outbox) {
        let counts = self.members[1..].contains(&from);
        let shared = self.last_shared(report);
        if let Some(shared) = shared
            && self.is_in_flight(from, counts, shared.seq)
        {
            return;
        }
        let known = self.followers.remove(&from);
        let acked = known.as_ref().map_or(OpSeq(0), |known| known.acked);
        let copies = known.and_then(|known| known.copies);
        let mut placed = Follower { counts, acked, ..Follower::default() };
        if let Some(shared) = shared {
            if copies.is_some() {
                out.push(Effect::SnapshotOver { to: from });
            }
            placed.shared = shared.seq;
            self.followers.insert(from, placed);
            self.send_from(from, shared.seq, out);
            return;
        }
        if self.applied.seq == OpSeq(0) {
            // There is nothing to copy yet; it asks again.
            return;
        }
        if self.predates_history(report) {
            if copies.is_some() {
                out.push(Effect::SnapshotOver { to: from });
            }
            return self.request_more_entries(from, report.end(), OpSeq(0), out);
        }
        if copies.as_ref().is_some_and(|header| !self.goes_on(header)) {
            self.history.was_too_short();
        }
        // The header may have been lost.
        let header = copies.filter(|header| self.goes_on(header)).unwrap_or_else(|| {
            out.push(Effect::Snapshot { to: from, at: self.applied });
            Arc::new(self.snapshot_header())
        });
        placed.shared = header.at.seq;
        placed.copies = Some(header.clone());
        self.followers.insert(from, placed);
        self.message(from, PeerMessage::Snapshot { view: self.view, header }, out);
    }

    /// Returns true if a follower was sent just now what follows an op: it has reported several times before that came.
    fn is_in_flight(&self, to: ServerId, counts: bool, shared: OpSeq) -> bool {
        self.followers.get(&to).is_some_and(|known| {
            let is_as_before = known.counts == counts && known.shared == shared;
            is_as_before && known.copies.is_none() && self.ticks < known.in_flight_until
        })
    }

    /// Returns true if a learner's message makes this primary begin a snapshot. A driver may hold it for a while, so
    /// that it reads its index once for several: a learner reports on and on until it is heard.
    #[must_use]
    pub fn begins_snapshot(&self, from: ServerId, message: &PeerMessage) -> bool {
        let PeerMessage::Report { view, report } = message else { return false };
        let copies = self.followers.get(&from).and_then(|follower| follower.copies.as_ref());
        *view == self.view
            && self.leads()
            && !self.members.contains(&from)
            && self.applied.seq > OpSeq(0)
            && self.last_shared(report).is_none()
            && !self.predates_history(report)
            && !copies.is_some_and(|header| self.goes_on(header))
    }

    /// Returns true if this log goes on from a snapshot: others are of no use.
    fn goes_on(&self, header: &SnapshotHeader) -> bool {
        self.id_at(header.at.seq) == Some(header.at)
    }

    /// The last op that another's log shares with this one: logs that have an op in common have all
    /// before it in common.
    fn last_shared(&self, report: &Report) -> Option<OpId> {
        if !report.is_whole {
            return None;
        }
        let ids = report.entries.iter().rev().map(|entry| entry.id);
        ids.chain([report.prev]).find(|id| self.id_at(id.seq) == Some(*id))
    }

    /// Returns true if a report covers only ops before those remembered here, and not all of its member's log. The rest
    /// may well have ops in common with this one. A member with ops of this view does not answer such requests.
    fn predates_history(&self, report: &Report) -> bool {
        let is_cut = !report.entries.is_empty() && report.end() < report.last;
        let answers = report.is_whole && report.last.view < self.view;
        answers && is_cut && report.end().seq < self.history.before().seq
    }

    /// Sends a follower all that comes after `seq`; one of whom that is not known any more reports anew.
    fn send_from(&mut self, to: ServerId, seq: OpSeq, out: &mut Outbox) {
        let Some(prev) = self.id_at(seq) else {
            self.followers.remove(&to);
            return;
        };
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for (entry, len) in self.sized_after(seq) {
            bytes += len;
            entries.push(entry.clone());
        }
        let (last, due) = (self.last().seq, self.ticks + repeat_after(bytes));
        if let Some(follower) = self.followers.get_mut(&to) {
            (follower.sent, follower.due) = (last, due);
            follower.in_flight_until = if bytes > 0 { due } else { 0 };
        }
        let (view, commit) = (self.view, self.commit);
        self.message(to, PeerMessage::Append { view, prev, entries, commit }, out);
    }

    /// Repeats to a follower what it has not acknowledged, if that is due; else the op that its log continues from, so
    /// that it responds. A follower that has everything and was sent the commit point gets a message now and then.
    fn repeat_to(&mut self, to: ServerId, out: &mut Outbox) {
        let (last, commit, ticks) = (self.last().seq, self.commit, self.ticks);
        let Some(follower) = self.followers.get_mut(&to) else { return };
        let has_all = follower.acked >= last && follower.sent_commit == commit;
        // At the same ticks for all groups of a server, whose messages go together.
        if has_all && !ticks.is_multiple_of(IDLE_TICKS) {
            return;
        }
        follower.sent_commit = commit;
        let shared = follower.shared;
        if ticks >= follower.due {
            return self.send_from(to, shared, out);
        }
        let Some(prev) = self.id_at(shared) else {
            self.followers.remove(&to);
            return;
        };
        let view = self.view;
        self.message(to, PeerMessage::Append { view, prev, entries: Vec::new(), commit }, out);
    }

    /// Returns true if all other members follow by the log. One that was let go as a learner follows too, until the view ends.
    pub(super) fn all_follow(&self) -> bool {
        let follows = |it: &&Follower| it.counts && it.copies.is_none();
        self.followers.values().filter(follows).count() + 1 == self.members.len()
    }

    /// Repeats what may have been lost on the way.
    pub(super) fn repeat_to_peers(&mut self, out: &mut Outbox) {
        self.count_quiet();
        match self.role {
            Role::Backup | Role::Learner => {
                self.silent_ticks += 1;
                if self.silent_ticks > SILENT_TICKS_MAX {
                    self.primary_answered = false;
                    self.abandon_copy();
                }
                if self.copy.is_some() {
                    self.request_rows(out);
                } else if !self.primary_answered && self.ticks >= self.report_due {
                    self.report(out);
                }
            }
            Role::Levelling | Role::Active | Role::Serving if self.levelled => {
                let following: Vec<ServerId> = (self.followers.iter())
                    .filter(|(_, follower)| follower.copies.is_none())
                    .map(|(to, _)| *to)
                    .collect();
                for to in following {
                    self.repeat_to(to, out);
                }
                self.drop_silent(out);
                self.report_caught_up(out);
                self.request_digests(out);
            }
            _ => {}
        }
    }

    /// Lets go of learners that say nothing any more: what they have not got is remembered no longer.
    fn drop_silent(&mut self, out: &mut Outbox) {
        self.followers.retain(|&to, follower| {
            follower.knows_commit = false;
            follower.silent_ticks += 1;
            let stays = follower.counts || follower.silent_ticks <= LEARNER_TICKS_MAX;
            if !stays && follower.copies.is_some() {
                out.push(Effect::SnapshotOver { to });
            }
            stays
        });
    }

    fn report_caught_up(&mut self, out: &mut Outbox) {
        let (view, commit) = (self.view, self.commit);
        for (&learner, follower) in &mut self.followers {
            if !follower.counts && !follower.knows_commit && follower.acked >= commit {
                follower.knows_commit = true;
                out.push(Effect::CaughtUp { view, learner });
            }
        }
    }

    /// Returns true if this is the primary of a view in which no op was issued yet: not every member has reported.
    pub(super) fn is_levelling(&self) -> bool {
        self.role == Role::Levelling && !self.levelled
    }

    /// Returns true if this is the primary and its log is the one that counts.
    pub(super) fn leads(&self) -> bool {
        self.levelled && matches!(self.role, Role::Levelling | Role::Active | Role::Serving)
    }

    /// Returns the last op that a member of the view has acknowledged.
    pub(super) fn acked_by(&self, member: ServerId) -> OpSeq {
        self.followers.get(&member).map_or(OpSeq(0), |follower| follower.acked)
    }

    fn append_from_primary(
        &mut self,
        prev: OpId,
        entries: Vec<LogEntry>,
        commit: OpSeq,
        out: &mut Outbox,
    ) {
        let Some(agreed) = self.follow(prev, &entries, out) else {
            // Those that came behind the one that is missing do not fit either.
            if self.ticks >= self.report_due {
                self.report(out);
            }
            return;
        };
        if self.is_following_requested(prev, &entries) {
            // An append that ticks repeat asks for the same again and again.
            if prev != self.reported_from || self.ticks >= self.report_due {
                self.report_from(prev, out);
            }
        } else if !entries.is_empty() {
            self.report_due = 0;
        }
        // Only ops known to be the primary's may take effect here.
        self.primary_commit = self.primary_commit.max(commit.min(agreed.seq));
        self.advance(self.primary_commit.min(self.durable), out);
        if agreed.seq <= self.durable
            && let Some(through) = self.id_at(agreed.seq)
        {
            let message = PeerMessage::Acked { view: self.view, through };
            self.message(self.members[0], message, out);
        }
    }

    /// Makes this log go on after `prev` with `entries`, cutting what differs, as far as there is room. Returns the op
    /// through which it does; nothing if `prev` is not in this log, or views would go back in it.
    pub(super) fn follow(
        &mut self,
        prev: OpId,
        entries: &[LogEntry],
        out: &mut Outbox,
    ) -> Option<OpId> {
        if prev.seq > self.last().seq {
            return None;
        }
        if prev.seq >= self.applied.seq && self.id_at(prev.seq) != Some(prev) {
            return None;
        }
        let mut through = prev;
        for entry in entries {
            if entry.id.seq <= self.commit {
                through = entry.id;
                continue;
            }
            if entry.id.seq <= self.last().seq {
                if self.id_at(entry.id.seq) == Some(entry.id) {
                    through = entry.id;
                    continue;
                }
                self.cut(entry.id.seq);
            }
            if entry.id.view < self.last().view {
                return None;
            }
            if self.is_over_capacity() {
                self.make_room(out);
                break;
            }
            self.take(entry.clone(), None, out);
            through = entry.id;
        }
        Some(through)
    }

    /// Cuts the log from `first` on, and undoes what was noted of it: keys in motion, puts that it opened, and
    /// requests. It also undoes places and outcomes that it gave to older puts. Nothing of it was applied, so rows,
    /// superseded puts, freed space and answers know nothing of it; that floors of sessions were raised stays true.
    pub(super) fn cut(&mut self, first: OpSeq) {
        assert!(first > self.commit, "pg {}: ops up to the commit point are never cut", self.id);
        while self.last().seq >= first && !self.tail.is_empty() {
            let Some(tail) = self.tail.pop_back() else { break };
            let cut = tail.entry;
            for slot in slots_of(cut.id, self.id, &cut.op).into_iter().flatten() {
                let _rests: bool = self.slots.leave(&slot, cut.id.seq);
            }
            self.open.remove(&cut.id.seq);
            if let Op::Outcome { put, .. } | Op::Regrant { put, .. } = &*cut.op
                && let Some(open) = self.open.get_mut(put)
            {
                open.undo(&cut);
            }
            if let Some(request) = request_of_op(&cut.op) {
                self.sessions.forget(request, cut.id);
            }
        }
        let last = OpSeq(first.0 - 1);
        (self.durable, self.primary_commit) =
            (self.durable.min(last), self.primary_commit.min(last));
    }

    /// The op at a position, as far back as it is remembered.
    pub(super) fn id_at(&self, seq: OpSeq) -> Option<OpId> {
        if seq == self.applied.seq {
            return Some(self.applied);
        }
        if let Some(tail) = self.tail_at(seq) {
            return Some(tail.entry.id);
        }
        self.history.id(seq)
    }

    /// Returns true if another op, or none yet, stands at an op's position, as far as that is known.
    pub(super) fn is_cut(&self, op: OpId) -> bool {
        let open = self.open.get(&op.seq).map(|open| open.id);
        op.seq > self.last().seq || self.id_at(op.seq).or(open).is_some_and(|id| id != op)
    }

    /// Ops after a position, as far back as they are remembered, each with the bytes that it takes of a message.
    pub(super) fn sized_after(&self, seq: OpSeq) -> impl Iterator<Item = (&LogEntry, usize)> {
        let skipped = usize::try_from(seq.0.saturating_sub(self.applied.seq.0));
        let tail = self.tail.range(skipped.unwrap_or(usize::MAX).min(self.tail.len())..);
        let applied = self.history.ops_after(seq).map(|entry| (entry, bytes_of(&entry.op)));
        applied.chain(tail.map(|tail| (&tail.entry, tail.bytes)))
    }

    /// Remembers an op that was applied, for those who have yet to get it.
    pub(super) fn remember(&mut self, entry: LogEntry) {
        let id = entry.id;
        if self.members.len() == 1 && self.followers.is_empty() {
            self.history = History::after(id);
            return;
        }
        let shared = self.followers.values().map(|follower| follower.shared);
        let needed = shared.min().unwrap_or(OpSeq(u64::MAX));
        if self.followers.values().all(|follower| follower.copies.is_none()) {
            self.history.is_long_enough();
        }
        self.history.push(entry, needed);
    }
}
