//! Quiescence: groups are not examined again while the inputs of the last examination are unchanged.
//!
//! What each group needs is asked at every tick, so that nothing that was lost has to be remembered. With thousands of
//! groups, of which none needs anything, that alone keeps a core busy.
//!
//! # Invariants
//!
//! 1. An examination that proposed, sent or waits for anything is followed by another at the next tick.
//! 2. An examination depends on the map, on reports and proposals, on the servers' heartbeats, and on timers. A change
//!    of the first three ends quiescence; there is none while a timer runs.
//! 3. As a safeguard, quiescence ends after [`QUIESCENT_MS_MAX`].

use larder_types::ServerId;

use super::{PolicyEvent, ServerMessage, StepContext};
use crate::limits::QUIESCENT_MS_MAX;
use crate::manager::state::MapVersion;

/// The standing of a server by what was heard of it: what time alone may change.
#[derive(Debug, PartialEq, Eq)]
struct Condition {
    server: ServerId,
    is_alive: bool,
    is_settled: bool,
    is_lost: bool,
}

/// The inputs of an examination that found nothing to do.
#[derive(Debug)]
pub(super) struct Quiescence {
    map: MapVersion,
    servers: Vec<Condition>,
    since_ms: u64,
}

/// Returns true for events that can change the outcome of examining the groups. Beats cannot, as they only show a
/// server's condition; nor can events that are handled at once.
pub(super) fn ends_quiescence(event: &PolicyEvent) -> bool {
    match event {
        PolicyEvent::From(_, said) => !matches!(
            said,
            ServerMessage::Heartbeat(_)
                | ServerMessage::Renew { .. }
                | ServerMessage::Active(..)
                | ServerMessage::NoRoom(..)
                | ServerMessage::SessionBegun(..)
        ),
        PolicyEvent::Decided(..) => true,
        _ => false,
    }
}

impl StepContext<'_> {
    /// Looks at all groups, unless they rest.
    pub(super) fn check_groups(&mut self) {
        let servers = self.conditions();
        let goes_on = |rest: &Quiescence| {
            let is_short = self.now_ms.saturating_sub(rest.since_ms) < QUIESCENT_MS_MAX;
            is_short && rest.map == self.map.version && rest.servers == servers
        };
        if self.leading.rest.as_ref().is_some_and(goes_on) {
            #[cfg(test)]
            assert!(self.decides_nothing(), "nothing has changed: {:?}", self.leading.rest);
            return;
        }
        self.leading.looks += 1;
        let rests = self.decides_nothing() && self.leading.proposals.is_empty();
        let rest = Quiescence { map: self.map.version, servers, since_ms: self.now_ms };
        self.leading.rest = rests.then_some(rest);
    }

    /// Does what is due for the groups; whether that was nothing, and nothing is waited for.
    fn decides_nothing(&mut self) -> bool {
        let before = self.out.len();
        self.decide_groups();
        let waits = !self.leading.leases.withdrawn.is_empty()
            || !self.leading.partition_reports.is_empty()
            || !self.leading.targets.are_right(self.map.pgs.len());
        self.out.len() == before && !waits
    }

    fn conditions(&self) -> Vec<Condition> {
        let (healths, now_ms) = (&self.leading.healths, self.now_ms);
        let of = |&server: &ServerId| Condition {
            server,
            is_alive: healths.is_alive(server, now_ms),
            is_settled: healths.is_settled(server, now_ms),
            is_lost: healths.is_lost(server, now_ms),
        };
        self.map.servers.keys().map(of).collect()
    }
}
