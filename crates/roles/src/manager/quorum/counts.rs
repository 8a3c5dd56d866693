//! Counts and state of a manager, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use larder_protocol::manager::quorum::Members;
use larder_types::ServerId;

use crate::breakdown::ByKind;
use crate::wire::{ManagerCall, ManagerMessageIn};

/// A manager's knowledge of the quorum.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QuorumStatus {
    /// True if it leads.
    pub leads: bool,
    /// The manager that leads, if that is known.
    pub leader: Option<ServerId>,
    /// The managers.
    pub members: Members,
}

/// Names of the kinds of requests and messages, in the order of their counts.
const KINDS: [&str; 12] = [
    "map",
    "propose",
    "issue_token",
    "authority",
    "peer",
    "server",
    "handed_on",
    "handed_back",
    "observed",
    "beat",
    "map_page",
    "committed",
];

/// Requests and messages to a manager by kind, refused ones included.
#[derive(Debug, Default)]
pub struct ManagerRequests(ByKind<{ KINDS.len() }>);

impl ManagerRequests {
    pub(super) fn note_request(&self, request: &ManagerCall) {
        self.0.note(match request {
            ManagerCall::Map(_) | ManagerCall::MapSince { .. } => 0,
            ManagerCall::Propose(_) => 1,
            ManagerCall::IssueToken(..) => 2,
            ManagerCall::Authority => 3,
            ManagerCall::Observed => 8,
            ManagerCall::MapPage(_) => 10,
            ManagerCall::Committed => 11,
        });
    }

    pub(super) fn note_message(&self, message: &ManagerMessageIn) {
        self.0.note(match message {
            ManagerMessageIn::Peer => 4,
            ManagerMessageIn::Server(_) => 5,
            ManagerMessageIn::HandedOn(..) => 6,
            ManagerMessageIn::HandedBack(..) => 7,
            ManagerMessageIn::Beat(_) => 9,
        });
    }

    /// Each kind by name.
    pub fn sums(&self) -> impl Iterator<Item = (&'static str, u64)> {
        KINDS.into_iter().enumerate().map(|(kind, name)| (name, self.0.of(kind).0))
    }
}

/// Written by the manager's thread after each batch, read by the tasks that show metrics.
#[derive(Debug, Default)]
pub struct ManagerCounts {
    /// 1 while it leads.
    pub leads: AtomicU64,
    /// 1 while it knows who leads.
    pub has_leader: AtomicU64,
    /// Managers that vote, by its log.
    pub voters: AtomicU64,
    /// Its term: grows with each election.
    pub term: AtomicU64,
    /// Last entry of its log.
    pub log_last: AtomicU64,
    /// Last entry that it has applied.
    pub log_applied: AtomicU64,
    /// Version of the map that these entries made.
    pub map_version: AtomicU64,
    /// The cluster's version in that map: a version of the protocol that all servers speak.
    pub cluster_version: AtomicU64,
    /// Volumes that move, and have a copy more than wanted meanwhile.
    pub moving: AtomicU64,
    /// 1 while an operator keeps further volumes from moving for balance.
    pub balance_paused: AtomicU64,
    /// Messages and proposals that it has taken.
    pub taken: AtomicU64,
    /// Writes of its log, each synced.
    pub writes: AtomicU64,
    /// Requests and messages by kind, counted as they come.
    pub requests: ManagerRequests,
}

/// The state of a manager at one moment.
pub(super) struct ManagerStatus {
    pub(super) leads: bool,
    pub(super) has_leader: bool,
    pub(super) voters: usize,
    pub(super) term: u64,
    pub(super) log_last: u64,
    pub(super) log_applied: u64,
    pub(super) map_version: u64,
    pub(super) cluster_version: u8,
    pub(super) moving: u64,
    pub(super) balance_paused: bool,
    pub(super) writes: u64,
}

impl ManagerCounts {
    /// Adds the inputs that were taken, and shows the present state.
    pub(super) fn show(&self, taken: u64, now: &ManagerStatus) {
        self.taken.fetch_add(taken, Ordering::Relaxed);
        for (shown, value) in [
            (&self.leads, u64::from(now.leads)),
            (&self.has_leader, u64::from(now.has_leader)),
            (&self.voters, now.voters as u64),
            (&self.term, now.term),
            (&self.log_last, now.log_last),
            (&self.log_applied, now.log_applied),
            (&self.map_version, now.map_version),
            (&self.cluster_version, u64::from(now.cluster_version)),
            (&self.moving, now.moving),
            (&self.balance_paused, u64::from(now.balance_paused)),
            (&self.writes, now.writes),
        ] {
            shown.store(value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_protocol::manager::policy::{ManagerMessage, ServerMessage};
    use larder_protocol::manager::state::{Command, MapPlace, MapVersion};
    use larder_types::{BootId, LvId, ServerId, SessionId};

    use super::*;
    use crate::wire::Beat;

    #[test]
    fn each_kind_is_counted_at_its_name() {
        let requests = ManagerRequests::default();
        let asked = [
            ManagerCall::Map(MapVersion(1)),
            ManagerCall::Propose(Command::CloseSession(SessionId(5))),
            ManagerCall::Authority,
        ];
        for (count, request) in (1..).zip(&asked) {
            (0..count).for_each(|_| requests.note_request(request));
        }
        requests.note_request(&ManagerCall::Observed);
        (0..10).for_each(|_| requests.note_request(&ManagerCall::Committed));
        (0..9).for_each(|lv| requests.note_request(&ManagerCall::MapPage(MapPlace::Lv(LvId(lv)))));
        let (server, boot) = (ServerId(4), BootId(7));
        let (led, beside) = (Vec::new(), Vec::new());
        let beat = Beat { boot, sent_ms: 1, led, heard_by: None, beside };
        let said = [
            ManagerMessageIn::Peer,
            ManagerMessageIn::Server(ServerMessage::Heartbeat(boot)),
            ManagerMessageIn::HandedOn(server, ServerMessage::Heartbeat(boot)),
            ManagerMessageIn::HandedBack(server, ManagerMessage::WhoAreYou),
            ManagerMessageIn::Beat(beat),
        ];
        for (count, message) in (4..).zip(&said) {
            (0..count).for_each(|_| requests.note_message(message));
        }
        let seen: Vec<(&str, u64)> = requests.sums().collect();
        let expected = [
            ("map", 1),
            ("propose", 2),
            ("issue_token", 0),
            ("authority", 3),
            ("peer", 4),
            ("server", 5),
            ("handed_on", 6),
            ("handed_back", 7),
            ("observed", 1),
            ("beat", 8),
            ("map_page", 9),
            ("committed", 10),
        ];
        assert_eq!(seen, expected);
    }
}
