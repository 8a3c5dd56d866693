//! The start of a view: every member reports what it has, and the primary takes the longest log.
//!
//! ```text
//!  member                                     primary, levelling
//!  Report: ops above its commit point  ──▶    keeps it until all have reported
//!                                      ◀──    Append { prev: the last op of a report that was cut off, no ops }
//!  Report: ops after that              ──▶    …
//!                                             has the longest log: places all, appends the view's start
//! ```
//!
//! # Invariants
//!
//! 1. A report fits a frame. A log that an earlier release wrote may have more ops than that. Its report is cut off at
//!    its end, never at its beginning: the primary may lack the first of them.
//! 2. Where a report is cut off before what the primary remembers, it is asked for the rest too. Whether the logs have an
//!    op in common is not known yet, so nothing of it counts as this primary's.
//! 3. A primary that has a part of the longest log keeps every op that any member was told is committed. These are in all
//!    logs, and it cuts only where another op stands in the longest.

use std::collections::BTreeMap;

use larder_types::{Op, OpId, OpSeq, ServerId, View};

use super::{Pg, Role};
use crate::limits::{
    PEER_FRAME_BYTES_MAX, PEER_HEAD_BYTES_MAX, PG_MEMBERS_MAX, REPEAT_BYTES_PER_TICK,
    REPEAT_TICKS_MAX, UNRESPONSIVE_TICKS_MAX,
};
use crate::message::{Effect, LogEntry, Outbox, PeerMessage, Report};

/// Reports to the primary of a view that this member has not learned yet: others learned it first, and would repeat
/// their reports at a tick.
#[derive(Debug, Default)]
pub(super) struct EarlyReports {
    view: View,
    reports: BTreeMap<ServerId, Report>,
}

impl EarlyReports {
    /// Keeps those of the latest view.
    pub(super) fn keep(&mut self, from: ServerId, message: PeerMessage) {
        let PeerMessage::Report { view, report } = message else { return };
        if view > self.view {
            *self = Self { view, reports: BTreeMap::new() };
        }
        if view == self.view && self.reports.len() < PG_MEMBERS_MAX {
            self.reports.insert(from, report);
        }
    }

    /// The early reports that belong to a view that begins now. One with an op of that view is dropped: its primary has issued
    /// none.
    pub(super) fn of_members(self, view: View, members: &[ServerId]) -> BTreeMap<ServerId, Report> {
        let Self { view: of, mut reports } = self;
        let is_before = |report: &Report| report.last.view < view;
        reports.retain(|from, it| of == view && members.contains(from) && is_before(it));
        reports
    }
}

/// Ticks after which a message of so many bytes is repeated, if it had no effect.
pub(super) fn repeat_after(bytes: usize) -> u64 {
    (1 + (bytes / REPEAT_BYTES_PER_TICK) as u64).min(REPEAT_TICKS_MAX)
}

impl Pg {
    pub(super) fn reported(&mut self, from: ServerId, report: Report, out: &mut Outbox) {
        if self.leads() {
            self.place(from, &report, out);
        } else if self.is_levelling() && self.members[1..].contains(&from) {
            self.reports.insert(from, report);
            self.level_if_reported(out);
        }
    }

    /// Tells the primary what there is above the commit point.
    pub(super) fn report(&mut self, out: &mut Outbox) {
        let prev = self.id_at(self.commit).unwrap_or_default();
        self.report_from(prev, out);
    }

    /// Tells the primary what there is after an op, as much as a message holds.
    pub(super) fn report_from(&mut self, prev: OpId, out: &mut Outbox) {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for (entry, len) in self.sized_after(prev.seq) {
            if bytes + len > PEER_FRAME_BYTES_MAX - PEER_HEAD_BYTES_MAX {
                break;
            }
            bytes += len;
            entries.push(entry.clone());
        }
        let (is_whole, last) = (self.is_whole, self.last());
        (self.report_due, self.reported_from) = (self.ticks + repeat_after(bytes), prev);
        let report = Report { is_whole, last, prev, entries };
        self.message(self.members[0], PeerMessage::Report { view: self.view, report }, out);
    }

    /// Every member has reported: take the longest log, send it round, begin the view.
    pub(super) fn level_if_reported(&mut self, out: &mut Outbox) {
        if self.members[1..].iter().any(|member| !self.reports.contains_key(member)) {
            return;
        }
        let longest = self.reports.iter().max_by_key(|(_, report)| report.last);
        if let Some((&whose, longest)) = longest
            && longest.last > self.last()
        {
            if self.tail.is_as_long_as_any() {
                // It reports again until it is heard.
                self.reports.remove(&whose);
                self.make_room(out);
                if self.applied.seq == self.commit {
                    // No release leaves so long a log: the next view is without it.
                    self.quiet.insert(whose, UNRESPONSIVE_TICKS_MAX + 1);
                }
                return;
            }
            let (prev, last) = (longest.prev, longest.last);
            let entries = longest.entries.clone();
            let is_open = prev.seq >= self.applied.seq;
            if self.following_requested && is_open && self.id_at(prev.seq) != Some(prev) {
                // A late answer about a log that was the longest no more. What is applied here every log has.
                self.reports.remove(&whose);
                return;
            }
            let Some(through) = self.follow(prev, &entries, out) else {
                let reason = format!("pg {}: the longest log starts at {prev:?}", self.id);
                self.role = Role::Halted;
                out.push(Effect::Halt(reason));
                return;
            };
            if through < last {
                self.request_following(whose, through, !entries.is_empty(), out);
                return;
            }
        }
        // The ops that were durable before this view are durable here; others say so for themselves.
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

    /// The longest log continues after what its member has sent. If the request is lost the member reports again, as
    /// one that gets nothing from its primary.
    fn request_following(&mut self, whose: ServerId, end: OpId, is_more: bool, out: &mut Outbox) {
        self.reports.remove(&whose);
        self.following_requested = true;
        if is_more {
            self.request_more_entries(whose, end, self.commit, out);
        }
    }

    /// Asks a member for what its log has after an op. That op is committed only if it is in this log: else the commit
    /// point is none.
    pub(super) fn request_more_entries(
        &self,
        whose: ServerId,
        end: OpId,
        commit: OpSeq,
        out: &mut Outbox,
    ) {
        let message =
            PeerMessage::Append { view: self.view, prev: end, entries: Vec::new(), commit };
        self.message(whose, message, out);
    }

    /// A levelling primary requests the ops after one: no op of its view is here yet, though there are some that it has
    /// not received.
    pub(super) fn is_following_requested(&self, prev: OpId, entries: &[LogEntry]) -> bool {
        let last = self.last();
        entries.is_empty() && last.view < self.view && prev.seq < last.seq
    }

    /// The view is active once an op of its own is below the commit point.
    pub(super) fn view_progress(&mut self, out: &mut Outbox) {
        if self.role == Role::Levelling
            && self.id_at(self.commit).is_some_and(|id| id.view == self.view)
        {
            self.role = Role::Active;
            out.push(Effect::ViewActive(self.view));
        }
    }
}
