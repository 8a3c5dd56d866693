//! Members and views: replication of the log, and levelling at the start of a view (DESIGN §7).
//!
//! # Invariants
//!
//! 1. A member takes nothing from a view older than its own.
//! 2. Ops at or below a commit point are never cut; a new primary keeps the longest log by (view, seq)
//!    among all members of the view, and every member is needed for it.
//! 3. A primary serves only after an op of its own view is durable on all members.

use larder_types::{BootId, Op, OpId, OpSeq, ServerId, View};

use super::{Pg, Role};
use crate::message::{Effect, LogEntry, Outbox, PeerMessage, Refusal};

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
        // there may be lost.
        let rejoins = self.role == Role::Down && members[0] != self.me && view == self.view;
        if view <= self.view && !rejoins {
            return;
        }
        for (token, _) in self.drain_waiting() {
            self.refuse(token, Refusal::NotPrimary, out);
        }
        for tail in &mut self.tail {
            if let Some((token, _)) = tail.reply.take() {
                out.push(Effect::Reply {
                    token,
                    answer: crate::Answer::Refused(Refusal::NotPrimary),
                });
            }
        }
        for open in self.open.values_mut() {
            open.resolution = None;
        }
        self.view = view;
        self.boot = boot;
        self.space = None;
        self.lv_asked = false;
        self.acked.clear();
        self.reports.clear();
        self.levelled = false;
        self.heard = false;
        let primary = members[0];
        self.members = members;
        if primary == self.me {
            self.role = Role::Levelling;
            self.level_if_reported(out);
        } else {
            self.role = Role::Backup;
            self.report(out);
        }
    }

    pub(super) fn peer(&mut self, from: ServerId, message: PeerMessage, out: &mut Outbox) {
        match message {
            PeerMessage::Append { view, prev, entries, commit } => {
                if view == self.view && self.role == Role::Backup && from == self.members[0] {
                    self.append_from_primary(prev, entries, commit, out);
                }
            }
            PeerMessage::Acked { view, through } => {
                if view == self.view && self.leads() && self.id_at(through.seq) == through {
                    let acked = self.acked.entry(from).or_default();
                    *acked = (*acked).max(through.seq);
                    self.primary_advance(out);
                }
            }
            PeerMessage::Resend { view, from: first } => {
                if view == self.view && self.leads() {
                    self.send_from(from, OpSeq(first.0.saturating_sub(1)), out);
                }
            }
            PeerMessage::Report { view, last, prev, entries } => {
                if view == self.view && self.role == Role::Levelling && !self.levelled {
                    self.reports.insert(from, (last, prev, entries));
                    self.level_if_reported(out);
                }
            }
        }
    }

    /// Sends a new op to the backups.
    pub(super) fn replicate(&self, entry: &LogEntry, out: &mut Outbox) {
        for &member in &self.members[1..] {
            let message = PeerMessage::Append {
                view: self.view,
                prev: self.last(),
                entries: vec![entry.clone()],
                commit: self.commit,
            };
            self.message(member, message, out);
        }
    }

    /// Sends a member what follows `seq`. What is applied here is durable on every member already, so
    /// nothing below that is ever missing.
    fn send_from(&self, member: ServerId, seq: OpSeq, out: &mut Outbox) {
        let prev = self.id_at(seq.max(self.applied.seq));
        let message = PeerMessage::Append {
            view: self.view,
            prev,
            entries: self.entries_after(prev.seq),
            commit: self.commit,
        };
        self.message(member, message, out);
    }

    /// Repeats what may have been lost on the way.
    pub(super) fn repeat_to_peers(&mut self, out: &mut Outbox) {
        match self.role {
            Role::Backup if !self.heard => self.report(out),
            Role::Levelling | Role::Active | Role::Serving if self.levelled => {
                for &member in &self.members[1..] {
                    let acked = self.acked.get(&member).copied().unwrap_or_default();
                    self.send_from(member, acked, out);
                }
            }
            _ => {}
        }
    }

    fn report(&self, out: &mut Outbox) {
        let prev = self.id_at(self.commit);
        let entries = self.entries_after(self.commit);
        let report = PeerMessage::Report { view: self.view, last: self.last(), prev, entries };
        self.message(self.members[0], report, out);
    }

    /// Whether this is the primary and its log is the one that counts.
    fn leads(&self) -> bool {
        self.levelled && matches!(self.role, Role::Levelling | Role::Active | Role::Serving)
    }

    /// Every member has reported: take the longest log, send it round, begin the view.
    fn level_if_reported(&mut self, out: &mut Outbox) {
        if self.members[1..].iter().any(|member| !self.reports.contains_key(member)) {
            return;
        }
        let longest = self.reports.iter().max_by_key(|(_, (last, ..))| *last);
        if let Some((_, (last, prev, entries))) = longest
            && *last > self.last()
        {
            let (prev, entries) = (*prev, entries.clone());
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
        for (member, (_, prev, _)) in reports {
            // A member may hold ops above its commit point that are not in the longest log: it is sent
            // everything from there, and cuts what differs.
            self.send_from(member, prev.seq, out);
        }
        let members = self.members.clone();
        self.append_op(Op::ViewStart { members, boot: self.boot }, None, out);
        self.primary_advance(out);
    }

    /// The view is active once an op of its own is below the commit point.
    pub(super) fn view_progress(&mut self, out: &mut Outbox) {
        if self.role == Role::Levelling && self.id_at(self.commit).view == self.view {
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
        self.heard = true;
        if !self.follow(prev, &entries, out) {
            let from = self.commit.next();
            let message = PeerMessage::Resend { view: self.view, from };
            self.message(self.members[0], message, out);
            return;
        }
        let agreed = entries.last().map_or(prev, |entry| entry.id);
        // Only ops known to be the primary's may take effect here.
        self.advance(commit.min(agreed.seq).min(self.durable), out);
        if agreed.seq <= self.durable {
            let through = self.id_at(agreed.seq);
            let message = PeerMessage::Acked { view: self.view, through };
            self.message(self.members[0], message, out);
        }
    }

    /// Makes this log go on after `prev` with `entries`, cutting what differs. `false` if `prev` is not
    /// in this log.
    fn follow(&mut self, prev: OpId, entries: &[LogEntry], out: &mut Outbox) -> bool {
        if prev.seq > self.last().seq {
            return false;
        }
        if prev.seq >= self.applied.seq && self.id_at(prev.seq) != prev {
            return false;
        }
        for entry in entries {
            if entry.id.seq <= self.commit {
                continue;
            }
            if entry.id.seq <= self.last().seq {
                if self.id_at(entry.id.seq) == entry.id {
                    continue;
                }
                self.cut(entry.id.seq);
            }
            self.take(entry.clone(), None, out);
        }
        true
    }

    /// Cuts the log from `first` on.
    pub(super) fn cut(&mut self, first: OpSeq) {
        assert!(first > self.commit, "pg {}: ops up to the commit point are never cut", self.id);
        while self.last().seq >= first && !self.tail.is_empty() {
            let Some(tail) = self.tail.pop_back() else { break };
            let (id, op) = (tail.entry.id, tail.entry.op);
            for slot in super::slots_of(id, self.id, &op).into_iter().flatten() {
                let _rests: bool = self.slots.leave(&slot, id.seq);
            }
            self.open.remove(&id.seq);
            if let Op::Outcome { put, .. } = &*op
                && let Some(open) = self.open.get_mut(put)
            {
                open.outcome = None;
            }
            if let Some(request) = super::append::request_of_op(&op) {
                self.sessions.forget(request);
            }
        }
        self.durable = self.durable.min(OpSeq(first.0 - 1));
    }

    /// The op at a position at or above the applied one.
    pub(super) fn id_at(&self, seq: OpSeq) -> OpId {
        match self.tail_at(seq) {
            Some(tail) => tail.entry.id,
            None if seq == self.applied.seq => self.applied,
            None => OpId { view: View(0), seq },
        }
    }

    fn entries_after(&self, seq: OpSeq) -> Vec<LogEntry> {
        let tail = self.tail.iter().map(|tail| &tail.entry);
        tail.filter(|entry| entry.id.seq > seq).cloned().collect()
    }
}
