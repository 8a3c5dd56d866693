//! Turns of meta servers at copies: those with the most urgent ones in the whole cluster make theirs first. The others
//! wait, and lend them their budgets.
//!
//! # Invariants
//!
//! 1. A leader grants turns only after the time in which all servers with copies to make report.
//! 2. A server that has a turn and has made no copy for [`COPY_STUCK_MS`] delays no other.
//! 3. The granted budgets add up to those of all servers with copies to make, apart from what a server would have had
//!    by itself.

use std::collections::BTreeMap;

use larder_types::{BootId, ServerId};

use super::StepContext;
use super::message::ManagerMessage;
use crate::copy_pacing::{CopyNeed, CopyPriority, CopyTurn};
use crate::limits::{COPY_NEED_MS, COPY_STUCK_MS};
use crate::manager::state::ServerRole;

/// The last message of a meta server.
#[derive(Debug, Clone, Copy)]
struct CopyReport {
    need: CopyNeed,
    at_ms: u64,
    /// Milliseconds for which it might make copies, and has made none.
    still_ms: u64,
}

impl CopyReport {
    /// The same up to now, when it says this. The time for which it waits does not count.
    fn still_until(&self, now_ms: u64, need: CopyNeed) -> u64 {
        match (self.need.made == need.made, self.need.waits) {
            (false, _) => 0,
            (true, true) => self.still_ms,
            (true, false) => self.still_ms + now_ms.saturating_sub(self.at_ms),
        }
    }
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Copies {
    since_ms: u64,
    reports: BTreeMap<ServerId, CopyReport>,
}

impl Copies {
    /// The state of a manager that leads from now on.
    pub(super) fn new(now_ms: u64) -> Self {
        Self { since_ms: now_ms, reports: BTreeMap::new() }
    }

    /// A server says what it has to copy; returns its turn.
    fn receive(&mut self, now_ms: u64, server: ServerId, need: CopyNeed) -> Option<CopyTurn> {
        self.reports.retain(|_, reports| now_ms < reports.at_ms + COPY_NEED_MS);
        let still_ms =
            self.reports.get(&server).map_or(0, |before| before.still_until(now_ms, need));
        self.reports.insert(server, CopyReport { need, at_ms: now_ms, still_ms });
        (now_ms >= self.since_ms + COPY_NEED_MS).then(|| self.turn(need))
    }

    fn turn(&self, own: CopyNeed) -> CopyTurn {
        let moving = self.reports.values().filter(|it| it.still_ms < COPY_STUCK_MS);
        let moving: Vec<CopyNeed> = moving.map(|reports| reports.need).collect();
        let first = moving.iter().map(|need| need.priority).min();
        let upto = first.unwrap_or(own.priority);
        let all: u64 = self
            .reports
            .values()
            .map(|reports| reports.need.bytes_per_s)
            .fold(0, u64::saturating_add);
        let sharers = moving.iter().filter(|need| need.priority <= upto).count() as u64;
        let bytes_per_s = match own.priority <= upto {
            true => (all / sharers.max(1)).max(own.bytes_per_s),
            false => own.bytes_per_s,
        };
        CopyTurn { upto, bytes_per_s }
    }
}

impl StepContext<'_> {
    /// A run of a meta server says what it has to copy.
    pub(super) fn needs_copies(
        &mut self,
        (server, boot): (ServerId, BootId),
        sent_ms: u64,
        need: CopyNeed,
    ) {
        let is_meta = self.map.servers[&server].roles.contains(&ServerRole::Meta);
        if !is_meta || need.priority < CopyPriority::FIRST {
            return;
        }
        if let Some(turn) = self.leading.copies.receive(self.now_ms, server, need) {
            self.tell(server, ManagerMessage::CopyTurn { boot, sent_ms, turn });
        }
    }
}

#[cfg(test)]
mod tests;
