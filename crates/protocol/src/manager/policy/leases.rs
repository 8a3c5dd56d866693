//! Leases of PGs' primaries: granted, confirmed, waited out.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{BootId, PgId, ServerId, View};

use super::message::ManagerMessage;
use super::{PolicyEffect, StepContext, Subject};
use crate::limits::{
    CONFIRM_MS_MAX, GRANTS_WAITING_MAX, HEARTBEAT_MS, LEASE_DRIFT_MS, LEASE_GRANTED_MS, LEASE_MS,
    SERVER_BEAT_MS, SILENT_MS,
};
use crate::manager::quorum::Ticket;
use crate::manager::state::{PgRecord, ServerState};

#[derive(Debug)]
struct Renewal {
    server: ServerId,
    boot: BootId,
    /// From when the leases count, on the server's clock.
    from_ms: u64,
    granted: Vec<(PgId, View)>,
}

/// A request to the quorum to confirm that this manager leads.
#[derive(Debug)]
struct Question {
    ticket: Ticket,
    requested_ms: u64,
    /// Renewals that came before.
    renewals: Vec<Renewal>,
}

/// Leases as the leader knows them.
#[derive(Debug)]
pub(super) struct Leases {
    /// Until when leases that a leader before may have granted hold.
    inherited_until_ms: u64,
    /// Until when the leases that were granted in a PG's latest view hold.
    until_ms: BTreeMap<PgId, (View, u64)>,
    /// The run and time of each server's latest renewal that was taken.
    renewed: BTreeMap<ServerId, (BootId, u64)>,
    /// PGs whose lease is not renewed, because another is to lead.
    pub(super) withdrawn: BTreeSet<PgId>,
    question: Option<Question>,
    waiting: Vec<Renewal>,
    /// One of them does not wait for the next question that is due.
    is_urgent: bool,
    /// The time at which the latest question was asked that the quorum answered.
    confirmed_ms: u64,
}

/// Until when leases may hold that leaders before one who is elected now granted: for [`LEASE_MS`], if they were of earlier
/// releases. None of these led since the one before it did, if that one grants leases as this release does.
pub(in crate::manager) fn inherited_until_ms(now_ms: u64, shortened_since_ms: Option<u64>) -> u64 {
    let of_any_ms = shortened_since_ms.map_or(now_ms, |since_ms| since_ms.min(now_ms)) + LEASE_MS;
    of_any_ms.max(now_ms + LEASE_GRANTED_MS) + LEASE_DRIFT_MS
}

impl Leases {
    /// The leases of a manager that leads from now on.
    pub(super) fn new(now_ms: u64, shortened_since_ms: Option<u64>) -> Self {
        Self {
            inherited_until_ms: inherited_until_ms(now_ms, shortened_since_ms),
            until_ms: BTreeMap::new(),
            renewed: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            question: None,
            waiting: Vec::new(),
            is_urgent: false,
            confirmed_ms: now_ms,
        }
    }

    /// Returns true if a majority follows this manager, as far as it can know: no request has waited for long. A
    /// manager without followers may be isolated, and its successor commits what it proposes: it must not declare
    /// servers down.
    pub(super) fn is_followed(&self, now_ms: u64) -> bool {
        let is_late = |question: &Question| now_ms >= question.requested_ms + CONFIRM_MS_MAX;
        !self.question.as_ref().is_some_and(is_late)
    }

    /// The next renewal starts a round at once, together with all that wait.
    pub(super) fn do_not_wait(&mut self) {
        self.is_urgent = true;
    }

    /// Returns true if a renewal for this lease may wait for the next question that is due: the lease lasts until the renewal
    /// after that is granted. One of a new view has none yet, and one of which a renewal was lost runs out. That a grant was lost
    /// the server has to say: it is counted here like one that came.
    fn may_wait(&self, (pg, view): (PgId, View), now_ms: u64) -> bool {
        let until_ms = self.until_ms.get(&pg).filter(|(of, _)| *of == view).map_or(0, |it| it.1);
        until_ms >= now_ms + LEASE_DRIFT_MS + SERVER_BEAT_MS + HEARTBEAT_MS
    }

    /// Returns true if no primary of the PG's present view or one before may hold a lease any more. In a view that is active no
    /// earlier lease counts: another primary's was waited out, and its own died when it entered the view.
    pub(super) fn have_run_out(&self, pg: PgId, record: &PgRecord, now_ms: u64) -> bool {
        let counts = |(view, _): &(View, u64)| *view == record.view || !record.is_active();
        let own_ms = self.until_ms.get(&pg).copied().filter(counts).map_or(0, |(_, ms)| ms);
        now_ms >= own_ms.max(self.inherited_until_ms)
    }
}

impl StepContext<'_> {
    /// Returns true if a lease of the PG in this view may be granted to a server in this run.
    fn may_lease(&self, server: ServerId, boot: BootId, (pg, view): (PgId, View)) -> bool {
        let Some(record) = self.map.servers.get(&server) else { return false };
        let runs = record.state == ServerState::Up && record.boot == boot;
        // A run that began after the view leads nothing in it.
        let in_view = self.map.pg(pg).is_some_and(|pg| record.started < pg.begun);
        runs && in_view && !self.is_under_way(Subject::Pg(pg)) && self.leads(server, pg, view)
    }

    pub(super) fn renew(
        &mut self,
        server: ServerId,
        boot: BootId,
        sent_ms: u64,
        led: &[(PgId, View)],
    ) {
        // It comes by way of another manager too. A clock that went back is one of a guest that was restored.
        let is_copy = |(known, latest_ms): &(BootId, u64)| {
            *known == boot && latest_ms.checked_sub(sent_ms).is_some_and(|ms| ms < SILENT_MS)
        };
        if self.leading.leases.renewed.get(&server).is_some_and(is_copy) {
            return;
        }
        // Servers hold a lease for `LEASE_MS` from the time in the grant. One whose clock is younger than that is early.
        let Some(from_ms) = sent_ms.checked_sub(LEASE_MS - LEASE_GRANTED_MS) else { return };
        let goes_on = |pg: &PgId| !self.leading.leases.withdrawn.contains(pg);
        let led = led.iter().copied().filter(|(pg, _)| goes_on(pg));
        let granted: Vec<(PgId, View)> =
            led.filter(|pg| self.may_lease(server, boot, *pg)).collect();
        let leases = &mut self.leading.leases;
        if granted.is_empty() || leases.waiting.len() >= GRANTS_WAITING_MAX {
            return;
        }
        leases.renewed.insert(server, (boot, sent_ms));
        let now_ms = self.now_ms;
        leases.is_urgent |= !granted.iter().all(|lease| leases.may_wait(*lease, now_ms));
        // It was sent before it came: no lease outlasts this.
        let until_ms = self.now_ms + LEASE_GRANTED_MS + LEASE_DRIFT_MS;
        for (pg, view) in &granted {
            leases.until_ms.insert(*pg, (*view, until_ms));
        }
        if self.planted.confirms_no_lease() {
            self.tell(server, ManagerMessage::Leases { boot, sent_ms: from_ms, granted });
            return;
        }
        leases.waiting.push(Renewal { server, boot, from_ms, granted });
        self.ask();
    }

    /// Asks the quorum, if it was not asked for long or a renewal is urgent. Renewals of leases that last share the question,
    /// and with it a round of heartbeats.
    pub(super) fn ask(&mut self) {
        let leases = &mut self.leading.leases;
        let is_due = self.now_ms >= leases.confirmed_ms + HEARTBEAT_MS;
        if leases.question.is_some() || !leases.is_urgent && !is_due {
            return;
        }
        leases.is_urgent = false;
        let (ticket, requested_ms) = (self.ticket(), self.now_ms);
        let renewals = std::mem::take(&mut self.leading.leases.waiting);
        self.leading.leases.question = Some(Question { ticket, requested_ms, renewals });
        self.out.push(PolicyEffect::Confirm(ticket));
    }

    pub(super) fn confirmed(&mut self, ticket: Ticket) {
        let leases = &mut self.leading.leases;
        let Some(question) = leases.question.take_if(|question| question.ticket == ticket) else {
            return;
        };
        let Question { requested_ms, renewals, .. } = question;
        leases.confirmed_ms = requested_ms;
        for Renewal { server, boot, from_ms, mut granted } in renewals {
            // One that was withdrawn since is waited out like any other: it counts from when its renewal came.
            granted.retain(|pg| self.may_lease(server, boot, *pg));
            if !granted.is_empty() {
                self.tell(server, ManagerMessage::Leases { boot, sent_ms: from_ms, granted });
            }
        }
        self.ask();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds for which one that is elected now waits out leases of leaders before.
    fn waits_ms(now_ms: u64, shortened_since_ms: Option<u64>) -> u64 {
        inherited_until_ms(now_ms, shortened_since_ms) - now_ms
    }

    #[test]
    fn leases_of_the_leader_before_the_one_before_are_waited_out_too() {
        let (shortest_ms, longest_ms) =
            (LEASE_GRANTED_MS + LEASE_DRIFT_MS, LEASE_MS + LEASE_DRIFT_MS);
        assert_eq!(waits_ms(10_000, None), longest_ms, "it may have been of any release");
        assert_eq!(waits_ms(10_000, Some(10_000)), longest_ms);
        assert_eq!(waits_ms(10_000, Some(9_900)), longest_ms - 100);
        assert_eq!(waits_ms(10_000, Some(9_400)), shortest_ms);
        assert_eq!(waits_ms(10_000, Some(0)), shortest_ms);
    }
}
