//! Changes of the quorum's members towards those of the map, and the addresses of managers that a log names. The leader
//! makes the changes. A manager uses the addresses before it has a map.

use larder_protocol::limits::MANAGERS_MAX;
use larder_protocol::manager::quorum::{Item, LogIndex, MemberChange, Members, Stored};
use larder_protocol::manager::state::{ServerRecord, ServerRole, ServerState, Topology};
use larder_types::ServerId;
use larder_types::codec::decode;

/// The next change, if one is due: removed managers first, then the promotion of learners, then new learners.
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

/// Managers with their addresses as the log names them, agreed on or not, so that managers find each other. They serve for
/// nothing else: after a power loss of all managers none of them knows which entries were agreed on. Entries that cannot be
/// decoded are skipped.
pub(super) fn named_in(stored: &Stored) -> Vec<(ServerId, String)> {
    let snapshot = stored.snapshot.as_ref();
    let map = snapshot.and_then(|snapshot| Topology::decode(&snapshot.state).ok());
    let mut map: Topology = map.unwrap_or_default();
    for (index, (_, item)) in (stored.base().index.0 + 1..).zip(&stored.items) {
        if let Item::Command(command) = item
            && let Ok(command) = decode("a command of the managers", command)
        {
            // The command's outcome does not matter: only what the map then says.
            let _ = map.apply(LogIndex(index), command);
        }
    }
    let managers = map.servers.into_iter().filter(|(_, record)| {
        record.roles.contains(&ServerRole::Manager) && record.state != ServerState::Removed
    });
    managers.filter_map(|(id, record)| Some((id, record.addresses.into_iter().next()?))).collect()
}
