//! The translation between `noraft`'s types and those that are sent and stored.

use std::collections::BTreeSet;

use bytes::Bytes;
use larder_types::ServerId;

use super::wire::{Entries, Item, LogIndex, Members, Position, Term};

pub(super) fn node_id(server: ServerId) -> noraft::NodeId {
    noraft::NodeId::new(u64::from(server.0))
}

pub(super) fn server_id(node: noraft::NodeId) -> ServerId {
    ServerId(u32::try_from(node.get()).expect("nodes are named after servers"))
}

pub(super) fn members_of(config: &noraft::ClusterConfig) -> Members {
    let ids = |nodes: &BTreeSet<noraft::NodeId>| nodes.iter().copied().map(server_id).collect();
    Members {
        voters: ids(&config.voters),
        next_voters: ids(&config.new_voters),
        learners: ids(&config.non_voters),
    }
}

pub(super) fn config_of(members: &Members) -> noraft::ClusterConfig {
    let ids = |servers: &BTreeSet<ServerId>| servers.iter().copied().map(node_id).collect();
    let mut config = noraft::ClusterConfig::new();
    config.voters = ids(&members.voters);
    config.new_voters = ids(&members.next_voters);
    config.non_voters = ids(&members.learners);
    config
}

pub(super) fn entry_of(entry: &noraft::LogEntry, command: Option<&Bytes>) -> Item {
    match entry {
        noraft::LogEntry::Term(_) => Item::Term,
        noraft::LogEntry::ClusterConfig(config) => Item::Members(members_of(config)),
        noraft::LogEntry::Command => {
            Item::Command(command.expect("a command is kept until a snapshot has it").clone())
        }
    }
}

/// The log of these entries; `None` if their terms are not those that `noraft` derives from them.
pub(super) fn entries_of(entries: &Entries) -> Option<noraft::LogEntries> {
    let items = entries.items.iter().map(|(term, item)| match item {
        Item::Term => noraft::LogEntry::Term(noraft::Term::new(term.0)),
        Item::Members(members) => noraft::LogEntry::ClusterConfig(config_of(members)),
        Item::Command(_) => noraft::LogEntry::Command,
    });
    let log = noraft::LogEntries::from_iter(entries.after.into(), items);
    let terms = log.iter_with_positions().map(|(at, _)| Term(at.term.get()));
    terms.eq(entries.items.iter().map(|(term, _)| *term)).then_some(log)
}

impl From<noraft::LogPosition> for Position {
    fn from(at: noraft::LogPosition) -> Self {
        Self { term: Term(at.term.get()), index: LogIndex(at.index.get()) }
    }
}

impl From<Position> for noraft::LogPosition {
    fn from(at: Position) -> Self {
        Self::new(noraft::Term::new(at.term.0), noraft::LogIndex::new(at.index.0))
    }
}
