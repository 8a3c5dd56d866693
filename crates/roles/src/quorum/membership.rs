//! Who ought to be a manager: what the leader changes of the quorum to make it what the map says.

use larder_protocol::limits::MANAGERS_MAX;
use larder_protocol::manager::quorum::{MemberChange, Members};
use larder_protocol::manager::state::{ServerRecord, ServerRole, ServerState, Topology};

/// The next change, if one is due: those who are gone go first, learners are promoted before others begin to learn.
/// A manager that is merely down stays: only its operator knows whether it comes back.
pub(super) fn next_change(map: &Topology, members: &Members) -> Option<MemberChange> {
    if !members.next_voters.is_empty() {
        return None;
    }
    let belongs = |record: &ServerRecord| {
        record.state != ServerState::Removed && record.roles.contains(&ServerRole::Manager)
    };
    let present: Vec<_> = members.voters.union(&members.learners).copied().collect();
    let gone = |server: &&_| !map.servers.get(server).is_some_and(belongs);
    if let Some(gone) = present.iter().find(gone) {
        return (present.len() > 1).then_some(MemberChange::Remove(*gone));
    }
    let is_up = |server| map.servers.get(server).is_some_and(|it| it.state == ServerState::Up);
    if members.voters.len() < MANAGERS_MAX
        && let Some(learner) = members.learners.iter().find(|server| is_up(server))
    {
        return Some(MemberChange::Promote(*learner));
    }
    if present.len() >= MANAGERS_MAX {
        return None;
    }
    let mut others = map.servers.iter().filter(|(server, _)| !present.contains(server));
    let new = others.find(|(_, record)| belongs(record) && record.state == ServerState::Up);
    new.map(|(server, _)| MemberChange::AddLearner(*server))
}
