//! Members and views: replication of the log, and levelling at the start of a view (DESIGN §7).
//!
//! Who follows a primary is a member of its view, whose acknowledgement every commit needs, or a
//! learner, which nobody waits for until the manager makes it a member.
//!
//! # Invariants
//!
//! 1. A member takes nothing from a view older than its own.
//! 2. Ops at or below a commit point are never cut; a new primary keeps the longest log by (view, seq)
//!    among all members of the view, and every member is needed for it.
//! 3. A primary serves only after an op of its own view is durable on all members.
//! 4. A follower is sent what follows an op that both logs have, or a snapshot: a log never has a gap.
//! 5. A member whose rows are not whole leads no view.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_types::{BootId, Op, OpId, OpSeq, ServerId, View};
use serde::{Deserialize, Serialize};

use super::digest::Digests;
use super::moves::Moves;
use super::refill::Refills;
use super::resolve::Retry;
use super::{Pg, Role, SnapshotHeader};
use crate::index::{Index, IndexError};
use crate::limits::{
    HISTORY_OPS_MAX, HISTORY_OPS_MIN, LEARNER_TICKS_MAX, PG_MEMBERS_MAX, SILENT_TICKS_MAX,
};
use crate::message::{Effect, LogEntry, Outbox, PeerMessage, Refusal};

/// What a member or learner has when it meets a primary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Whether its rows are all there; if not, it has nothing.
    pub is_whole: bool,
    /// Its last op.
    pub last: OpId,
    /// The op at its commit point.
    pub prev: OpId,
    /// Its ops above that.
    pub entries: Vec<LogEntry>,
}

/// Reports to the primary of a view of which this member has not been told yet: others were told first, and would
/// repeat them at a tick.
#[derive(Debug, Default)]
pub(super) struct EarlyReports {
    view: View,
    reports: BTreeMap<ServerId, Report>,
}

impl EarlyReports {
    /// Keeps those of the latest view.
    fn keep(&mut self, from: ServerId, message: PeerMessage) {
        let PeerMessage::Report { view, report } = message else { return };
        if view > self.view {
            *self = Self { view, reports: BTreeMap::new() };
        }
        if view == self.view && self.reports.len() < PG_MEMBERS_MAX {
            self.reports.insert(from, report);
        }
    }

    /// Those of a view that begins now. Whoever has an op of it already is not believed: its primary has issued none.
    fn of_members(self, view: View, members: &[ServerId]) -> BTreeMap<ServerId, Report> {
        let Self { view: of, mut reports } = self;
        let is_before = |report: &Report| report.last.view < view;
        reports.retain(|from, it| of == view && members.contains(from) && is_before(it));
        reports
    }
}

/// What a primary knows of one that follows it.
#[derive(Debug, Clone)]
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
    told: bool,
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
        self.report(out);
    }

    fn leave_view(&mut self, out: &mut Outbox) {
        for (token, _) in self.drain_waiting() {
            self.refuse(token, Refusal::NotPrimary, out);
        }
        for tail in &mut self.tail {
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
        self.space = None;
        self.refills = Refills::default();
        self.moves = Moves::default();
        self.lv_asked = false;
        self.pool_empty_ms = None;
        self.wider_due_ms = None;
        self.reports.clear();
        self.levelled = false;
        self.heard = false;
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
            self.heard = true;
            self.silent_ticks = 0;
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
                PeerMessage::AskDigest { at, .. } => self.tell_digest(at, out),
                PeerMessage::IsOdd { at, .. } => self.called_odd(at),
                _ => {}
            }
            return Ok(());
        }
        self.quiet.remove(&from);
        if let Some(follower) = self.followers.get_mut(&from) {
            follower.silent_ticks = 0;
        }
        match message {
            PeerMessage::Acked { through, .. } => self.acked(from, through, out),
            PeerMessage::Report { report, .. } => self.reported(from, report, out),
            PeerMessage::Digest { at, sum, .. } => self.digest_told(from, at, sum, out),
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
        if !self.leads() || self.known_id(through.seq) != Some(through) {
            return;
        }
        let Some(follower) = self.followers.get_mut(&from) else { return };
        follower.acked = follower.acked.max(through.seq);
        follower.shared = follower.shared.max(through.seq);
        if follower.copies.as_ref().is_some_and(|header| header.at.seq <= through.seq) {
            follower.copies = None;
            out.push(Effect::SnapshotOver { to: from });
            self.send_from(from, through.seq, out);
        }
        self.primary_advance(out);
        self.tell_caught_up(out);
    }

    fn reported(&mut self, from: ServerId, report: Report, out: &mut Outbox) {
        if self.leads() {
            self.place(from, &report, out);
        } else if self.is_levelling() && self.members[1..].contains(&from) {
            self.reports.insert(from, report);
            self.level_if_reported(out);
        }
    }

    /// Sends a new op to those who follow.
    pub(super) fn replicate(&self, entry: &LogEntry, out: &mut Outbox) {
        for (&to, _) in self.followers.iter().filter(|(_, follower)| follower.copies.is_none()) {
            let message = PeerMessage::Append {
                view: self.view,
                prev: self.last(),
                entries: vec![entry.clone()],
                commit: self.commit,
            };
            self.message(to, message, out);
        }
    }

    /// Lets a member or learner follow from the last op that both logs are known to have, or from a
    /// snapshot.
    fn place(&mut self, from: ServerId, report: &Report, out: &mut Outbox) {
        let counts = self.members[1..].contains(&from);
        let known = self.followers.remove(&from);
        let acked = known.as_ref().map_or(OpSeq(0), |known| known.acked);
        let copies = known.and_then(|known| known.copies);
        let mut placed = Follower {
            counts,
            shared: OpSeq(0),
            acked,
            copies: None,
            told: false,
            silent_ticks: 0,
        };
        if let Some(shared) = self.last_shared(report) {
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

    /// Whether a learner's message makes this primary begin a snapshot. A driver may hold it for a while, so that it reads
    /// its index once for several: a learner reports on and on until it is heard.
    #[must_use]
    pub fn begins_snapshot(&self, from: ServerId, message: &PeerMessage) -> bool {
        let PeerMessage::Report { view, report } = message else { return false };
        let copies = self.followers.get(&from).and_then(|follower| follower.copies.as_ref());
        *view == self.view
            && self.leads()
            && !self.members.contains(&from)
            && self.applied.seq > OpSeq(0)
            && self.last_shared(report).is_none()
            && !copies.is_some_and(|header| self.goes_on(header))
    }

    /// Whether this log goes on from a snapshot: others are of no use.
    fn goes_on(&self, header: &SnapshotHeader) -> bool {
        self.known_id(header.at.seq) == Some(header.at)
    }

    /// The last op that another's log shares with this one: logs that have an op in common have all
    /// before it in common.
    fn last_shared(&self, report: &Report) -> Option<OpId> {
        if !report.is_whole {
            return None;
        }
        let ids = report.entries.iter().rev().map(|entry| entry.id);
        ids.chain([report.prev]).find(|id| self.known_id(id.seq) == Some(*id))
    }

    /// Sends a follower what comes after `seq`; one of whom that is not known any more reports anew.
    fn send_from(&mut self, to: ServerId, seq: OpSeq, out: &mut Outbox) {
        let Some(prev) = self.known_id(seq) else {
            self.followers.remove(&to);
            return;
        };
        let message = PeerMessage::Append {
            view: self.view,
            prev,
            entries: self.entries_after(prev.seq),
            commit: self.commit,
        };
        self.message(to, message, out);
    }

    /// Whether all other members follow by the log. One that was let go as a learner follows too, until the view ends.
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
                    self.heard = false;
                    self.abandon_copy();
                }
                if self.copy.is_some() {
                    self.ask_for_rows(out);
                } else if !self.heard {
                    self.report(out);
                }
            }
            Role::Levelling | Role::Active | Role::Serving if self.levelled => {
                let following: Vec<(ServerId, OpSeq)> = (self.followers.iter())
                    .filter(|(_, follower)| follower.copies.is_none())
                    .map(|(to, follower)| (*to, follower.shared))
                    .collect();
                for (to, shared) in following {
                    self.send_from(to, shared, out);
                }
                self.drop_silent(out);
                self.tell_caught_up(out);
                self.ask_for_digests(out);
            }
            _ => {}
        }
    }

    /// Lets go of learners that say nothing any more: what they have not got is remembered no longer.
    fn drop_silent(&mut self, out: &mut Outbox) {
        self.followers.retain(|&to, follower| {
            follower.told = false;
            follower.silent_ticks += 1;
            let stays = follower.counts || follower.silent_ticks <= LEARNER_TICKS_MAX;
            if !stays && follower.copies.is_some() {
                out.push(Effect::SnapshotOver { to });
            }
            stays
        });
    }

    fn tell_caught_up(&mut self, out: &mut Outbox) {
        let (view, commit) = (self.view, self.commit);
        for (&learner, follower) in &mut self.followers {
            if !follower.counts && !follower.told && follower.acked >= commit {
                follower.told = true;
                out.push(Effect::CaughtUp { view, learner });
            }
        }
    }

    fn report(&self, out: &mut Outbox) {
        let report = Report {
            is_whole: self.is_whole,
            last: self.last(),
            prev: self.known_id(self.commit).unwrap_or_default(),
            entries: self.entries_after(self.commit),
        };
        self.message(self.members[0], PeerMessage::Report { view: self.view, report }, out);
    }

    /// Whether this is the primary of a view in which no op was issued yet: not every member has reported.
    pub(super) fn is_levelling(&self) -> bool {
        self.role == Role::Levelling && !self.levelled
    }

    /// Whether this is the primary and its log is the one that counts.
    pub(super) fn leads(&self) -> bool {
        self.levelled && matches!(self.role, Role::Levelling | Role::Active | Role::Serving)
    }

    /// What a member of the view has acknowledged.
    pub(super) fn acked_by(&self, member: ServerId) -> OpSeq {
        self.followers.get(&member).map_or(OpSeq(0), |follower| follower.acked)
    }

    /// Every member has reported: take the longest log, send it round, begin the view.
    fn level_if_reported(&mut self, out: &mut Outbox) {
        if self.members[1..].iter().any(|member| !self.reports.contains_key(member)) {
            return;
        }
        let longest = self.reports.values().max_by_key(|report| report.last);
        if let Some(longest) = longest
            && longest.last > self.last()
        {
            let (prev, entries) = (longest.prev, longest.entries.clone());
            if !self.follow(prev, &entries, out) {
                let reason = format!("pg {}: the longest log starts at {prev:?}", self.id);
                self.role = Role::Halted;
                out.push(Effect::Halt(reason));
                return;
            }
        }
        // What was durable before this view is durable here; others say so for themselves.
        let reports = std::mem::take(&mut self.reports);
        self.levelled = true;
        for (member, report) in reports {
            // Ops of its that are not in the longest log are cut when it gets that one's.
            self.place(member, &report, out);
        }
        let members = self.members.clone();
        self.append_op(Op::ViewStart { members, boot: self.boot }, None, out);
        self.primary_advance(out);
    }

    /// The view is active once an op of its own is below the commit point.
    pub(super) fn view_progress(&mut self, out: &mut Outbox) {
        if self.role == Role::Levelling
            && self.known_id(self.commit).is_some_and(|id| id.view == self.view)
        {
            self.role = Role::Active;
            out.push(Effect::ViewActive(self.view));
        }
    }

    fn append_from_primary(
        &mut self,
        prev: OpId,
        entries: Vec<LogEntry>,
        commit: OpSeq,
        out: &mut Outbox,
    ) {
        if !self.follow(prev, &entries, out) {
            self.report(out);
            return;
        }
        let agreed = entries.last().map_or(prev, |entry| entry.id);
        // Only ops known to be the primary's may take effect here.
        self.advance(commit.min(agreed.seq).min(self.durable), out);
        if agreed.seq <= self.durable
            && let Some(through) = self.known_id(agreed.seq)
        {
            let message = PeerMessage::Acked { view: self.view, through };
            self.message(self.members[0], message, out);
        }
    }

    /// Makes this log go on after `prev` with `entries`, cutting what differs. `false` if `prev` is not
    /// in this log, or views would go back in it.
    fn follow(&mut self, prev: OpId, entries: &[LogEntry], out: &mut Outbox) -> bool {
        if prev.seq > self.last().seq {
            return false;
        }
        if prev.seq >= self.applied.seq && self.known_id(prev.seq) != Some(prev) {
            return false;
        }
        for entry in entries {
            if entry.id.seq <= self.commit {
                continue;
            }
            if entry.id.seq <= self.last().seq {
                if self.known_id(entry.id.seq) == Some(entry.id) {
                    continue;
                }
                self.cut(entry.id.seq);
            }
            if entry.id.view < self.last().view {
                return false;
            }
            self.take(entry.clone(), None, out);
        }
        true
    }

    /// Cuts the log from `first` on, and undoes what was noted of it: keys in motion, puts that it opened, places and
    /// outcomes that it gave to older ones, and requests. Nothing of it was applied, so rows, superseded puts, freed
    /// space and answers know nothing of it; that floors of sessions were raised stays true.
    pub(super) fn cut(&mut self, first: OpSeq) {
        assert!(first > self.commit, "pg {}: ops up to the commit point are never cut", self.id);
        while self.last().seq >= first && !self.tail.is_empty() {
            let Some(tail) = self.tail.pop_back() else { break };
            let cut = tail.entry;
            for slot in super::slots_of(cut.id, self.id, &cut.op).into_iter().flatten() {
                let _rests: bool = self.slots.leave(&slot, cut.id.seq);
            }
            self.open.remove(&cut.id.seq);
            if let Op::Outcome { put, .. } | Op::Regrant { put, .. } = &*cut.op
                && let Some(open) = self.open.get_mut(put)
            {
                open.undo(&cut);
            }
            if let Some(request) = super::append::request_of_op(&cut.op) {
                self.sessions.forget(request, cut.id);
            }
        }
        self.durable = self.durable.min(OpSeq(first.0 - 1));
    }

    /// The op at a position, as far back as it is remembered.
    pub(super) fn known_id(&self, seq: OpSeq) -> Option<OpId> {
        if seq == self.before_history.seq {
            return Some(self.before_history);
        }
        if seq == self.applied.seq {
            return Some(self.applied);
        }
        if let Some(tail) = self.tail_at(seq) {
            return Some(tail.entry.id);
        }
        let at = seq.0.checked_sub(self.before_history.seq.0 + 1)?;
        self.history.get(usize::try_from(at).ok()?).map(|entry| entry.id)
    }

    /// Whether another op, or none yet, stands at an op's position, as far as that is known.
    pub(super) fn is_cut(&self, op: OpId) -> bool {
        let open = self.open.get(&op.seq).map(|open| open.id);
        op.seq > self.last().seq || self.known_id(op.seq).or(open).is_some_and(|id| id != op)
    }

    fn entries_after(&self, seq: OpSeq) -> Vec<LogEntry> {
        let tail = self.tail.iter().map(|tail| &tail.entry);
        let entries = self.history.iter().chain(tail);
        entries.filter(|entry| entry.id.seq > seq).cloned().collect()
    }

    /// Remembers an op that was applied, for those who have yet to get it.
    pub(super) fn remember(&mut self, entry: LogEntry) {
        let id = entry.id;
        if self.members.len() == 1 && self.followers.is_empty() {
            self.history.clear();
            self.before_history = id;
            return;
        }
        self.history.push_back(entry);
        let shared = self.followers.values().map(|follower| follower.shared);
        let needed = shared.min().unwrap_or(OpSeq(u64::MAX));
        while let Some(oldest) = self.history.front()
            && (self.history.len() > HISTORY_OPS_MAX
                || self.history.len() > HISTORY_OPS_MIN && oldest.id.seq <= needed)
        {
            self.before_history = oldest.id;
            self.history.pop_front();
        }
    }
}
