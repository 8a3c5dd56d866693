//! Members of a PG that cannot reach each other, though the manager reaches both. A view with all of them commits
//! nothing, so the next view leaves out one side.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{PgId, ServerId, View};

use super::StepContext;
use crate::limits::{PROBATION_MS, SERVER_BEAT_MS};
use crate::manager::state::PgRecord;

/// A message of a primary.
#[derive(Debug)]
struct PrimaryReport {
    view: View,
    unheard: BTreeSet<ServerId>,
    until_ms: u64,
}

/// The messages of primaries of late.
#[derive(Debug, Default)]
pub(super) struct PartitionReports {
    reports: BTreeMap<PgId, PrimaryReport>,
    /// Servers that a PG does without, until when.
    left_out: BTreeMap<(PgId, ServerId), u64>,
}

impl PartitionReports {
    pub(super) fn forget_old(&mut self, now_ms: u64) {
        self.reports.retain(|_, reports| reports.until_ms > now_ms);
        self.left_out.retain(|_, until_ms| *until_ms > now_ms);
    }

    /// Returns true if no primary said anything that still counts.
    pub(super) fn is_empty(&self) -> bool {
        self.reports.is_empty() && self.left_out.is_empty()
    }

    /// Returns true if a server was left out of a PG's view a while ago: where it comes and goes the others are not held up
    /// again at once.
    pub(super) fn leaves_out(&self, pg: PgId, server: ServerId) -> bool {
        self.left_out.contains_key(&(pg, server))
    }
}

impl StepContext<'_> {
    /// The primary of a view does not hear some of its members.
    pub(super) fn unheard(&mut self, pg: PgId, view: View, unheard: Vec<ServerId>) {
        // Said again at each beat, as long as it is so.
        let until_ms = self.now_ms + 2 * SERVER_BEAT_MS;
        let reports = PrimaryReport { view, unheard: unheard.into_iter().collect(), until_ms };
        self.leading.partition_reports.reports.insert(pg, reports);
        let Some(record) = self.map.pg(pg) else { return };
        for server in self.partition_reports(pg, record) {
            // One that this manager does not hear either is about to be found down, and may come back at once.
            if self.leading.healths.is_alive(server, self.now_ms) {
                self.leading
                    .partition_reports
                    .left_out
                    .insert((pg, server), self.now_ms + PROBATION_MS);
            }
        }
        self.decide_group(pg);
    }

    /// Members that the next view excludes: those that the primary cannot reach. If it reaches too few, the primary
    /// itself, as long as this manager reaches enough of the others.
    pub(super) fn partition_reports(&self, pg: PgId, record: &PgRecord) -> BTreeSet<ServerId> {
        let lately = |reports: &&PrimaryReport| {
            reports.view == record.view && reports.until_ms > self.now_ms
        };
        let Some(reports) = self.leading.partition_reports.reports.get(&pg).filter(lately) else {
            return BTreeSet::new();
        };
        let hears = |s: &&ServerId| self.map.is_up(**s) && !reports.unheard.contains(s);
        if record.members.iter().filter(hears).count() >= self.rules().min_members {
            return reports.unheard.clone();
        }
        // A view without the primary needs the others. Those that this manager does not hear either are about to be found
        // down. The primary is all that is left, and could not come back into a view that was begun without it.
        let primary = record.members.first().copied();
        let go_on = |s: &&ServerId| {
            Some(**s) != primary
                && self.map.is_up(**s)
                && self.leading.healths.is_alive(**s, self.now_ms)
        };
        let others = record.members.iter().filter(go_on).count();
        primary.filter(|_| others >= self.rules().min_members).into_iter().collect()
    }
}
