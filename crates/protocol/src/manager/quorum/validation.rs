//! The check of other managers' messages before a quorum takes them: `noraft` and this module assume what is
//! checked here.
//!
//! A leader whose log contradicts entries that are committed here is refused, and not followed: one of the two has lost
//! committed entries. A leader's log that contradicts the snapshot on this manager's disk still ends this manager.

use std::collections::BTreeSet;

use larder_types::ServerId;

use super::state::Quorum;
use super::wire::{Entries, Item, LogIndex, Members, Position, QuorumMessage, Term};
use crate::limits::{
    COMMAND_BYTES_MAX, MANAGERS_MAX, MAP_BYTES_MAX, QUORUM_INDEX_MAX, QUORUM_TERM_MAX, SERVERS_MAX,
};
use crate::validation::{Validated, check};

impl Quorum {
    /// Checks a message of another manager.
    ///
    /// # Errors
    /// [`InvalidMessage`](crate::validation::InvalidMessage): no manager that works right sends it.
    pub fn admits(&self, message: &QuorumMessage) -> Validated {
        match message {
            QuorumMessage::PreVote { last, .. } => check_position(*last, Term(QUORUM_TERM_MAX)),
            QuorumMessage::PreVoteGranted { .. } => Ok(()),
            QuorumMessage::Vote { term, last } => {
                check_term(*term)?;
                check_position(*last, *term)
            }
            QuorumMessage::Voted { term, .. } => check_term(*term),
            QuorumMessage::Append { term, commit, entries, .. } => {
                check_term(*term)?;
                check_index(*commit)?;
                check_entries(entries, *term)?;
                // A deposed leader must learn of the new term, whatever its log is.
                if *term < self.term() { Ok(()) } else { self.goes_on(entries) }
            }
            QuorumMessage::Appended { term, last, .. } => {
                check_term(*term)?;
                check_position(*last, *term)
            }
            QuorumMessage::SnapshotPiece { term, at, members, offset, total, piece } => {
                check_term(*term)?;
                check_position(*at, *term)?;
                check_members(members)?;
                let end = offset.checked_add(piece.len() as u64);
                let fits = end.is_some_and(|end| end <= *total) && *total <= MAP_BYTES_MAX;
                check(fits, "a piece of a map is longer than the map")
            }
            QuorumMessage::SnapshotReceived { at, .. } => {
                check_position(*at, Term(QUORUM_TERM_MAX))
            }
        }
    }

    /// Checks that the leader's log has the entries that are committed here: these are never replaced.
    fn goes_on(&self, entries: &Entries) -> Validated {
        let commit = self.node.commit_index().get();
        let log = self.node.log().entries();
        let base = log.prev_position().index.get();
        let mut at = entries.after;
        let mut terms = entries.items.iter().map(|(term, _)| *term);
        while at.index.0 <= commit {
            let known = log.get_term(noraft::LogIndex::new(at.index.0));
            let is_same = at.index.0 <= base || known.is_some_and(|known| known.get() == at.term.0);
            check(is_same, "a leader's log is another than what was agreed on")?;
            let Some(term) = terms.next() else { break };
            at = Position { term, index: LogIndex(at.index.0 + 1) };
        }
        Ok(())
    }
}

fn check_term(term: Term) -> Validated {
    check(term.0 <= QUORUM_TERM_MAX, "there were not so many terms")
}

fn check_index(index: LogIndex) -> Validated {
    check(index.0 <= QUORUM_INDEX_MAX, "there are not so many entries")
}

fn check_position(at: Position, latest: Term) -> Validated {
    check(at.term <= latest, "an entry is of a later term than its message")?;
    check_term(at.term)?;
    check_index(at.index)
}

fn check_entries(entries: &Entries, term: Term) -> Validated {
    check_position(entries.after, term)?;
    let mut before = entries.after.term;
    for (of, item) in &entries.items {
        check(before <= *of && *of <= term, "terms of entries go back, or beyond the leader's")?;
        before = *of;
        match item {
            Item::Term => {}
            Item::Members(members) => check_members(members)?,
            Item::Command(command) => {
                check(command.len() <= COMMAND_BYTES_MAX, "a command is too long")?;
            }
        }
    }
    Ok(())
}

fn check_members(members: &Members) -> Validated {
    let Members { voters, next_voters, learners } = members;
    let few = |of: &BTreeSet<ServerId>| of.len() <= MANAGERS_MAX;
    check(!voters.is_empty() && few(voters), "there are no voters, or too many")?;
    check(few(next_voters) && learners.len() <= SERVERS_MAX, "there are too many managers")?;
    let votes = voters.is_disjoint(learners) && next_voters.is_disjoint(learners);
    check(votes, "a manager votes and learns")
}

#[cfg(test)]
mod tests;
