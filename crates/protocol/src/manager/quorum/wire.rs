//! Messages between managers, and the records on a manager's disk. `larder_types::codec` encodes all of them, with a version
//! byte first.

use std::collections::BTreeSet;

use bytes::Bytes;
use larder_types::ServerId;
use serde::{Deserialize, Serialize};

/// Number of a leadership of the quorum.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Term(pub u64);

/// Place of an entry in the quorum's log; the first is 1.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct LogIndex(pub u64);

/// The position of an entry, by term and index: entries of one position are equal on all managers.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Position {
    /// Term in which it was appended.
    pub term: Term,
    /// Its index.
    pub index: LogIndex,
}

/// The managers, by their part in the quorum.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Members {
    /// They vote and count for commits.
    pub voters: BTreeSet<ServerId>,
    /// The voters after a change that is under way (joint consensus): a majority of both sets is needed. Else empty.
    pub next_voters: BTreeSet<ServerId>,
    /// They follow the log and do not vote.
    pub learners: BTreeSet<ServerId>,
}

impl Members {
    /// Returns true if `agree` has a majority of the voters, and of the voters to be if there are any.
    #[must_use]
    pub fn have_majority(&self, agree: impl Fn(ServerId) -> bool) -> bool {
        let majority = |voters: &BTreeSet<ServerId>| {
            2 * voters.iter().filter(|voter| agree(**voter)).count() > voters.len()
        };
        majority(&self.voters) && (self.next_voters.is_empty() || majority(&self.next_voters))
    }
}

/// The content of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// A leader's first entry.
    Term,
    /// The managers from here on.
    Members(Members),
    /// A command of the state machine.
    Command(Bytes),
}

/// Entries that follow a position without a gap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entries {
    /// The position before the first.
    pub after: Position,
    /// Each with its term.
    pub items: Vec<(Term, Item)>,
}

/// The state machine as of a position, in place of the log up to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Last entry that is in it.
    pub at: Position,
    /// The managers as of then.
    pub members: Members,
    /// The state machine's bytes.
    pub state: Bytes,
}

/// The state that must survive a crash besides the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HardState {
    /// Highest term seen.
    pub term: Term,
    /// The manager that got this one's vote in it.
    pub voted_for: Option<ServerId>,
}

/// One atomic write of a manager's disk. A driver may keep these as records of a log of its
/// own and replay them with [`Stored::take`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogWrite {
    /// The hard state from here on.
    pub hard: HardState,
    /// A snapshot that replaces everything up to its position.
    pub snapshot: Option<Snapshot>,
    /// Entries. They replace all entries behind their start.
    pub entries: Option<Entries>,
}

/// The content of a manager's disk.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stored {
    /// Hard state.
    pub hard: HardState,
    /// Latest snapshot.
    pub snapshot: Option<Snapshot>,
    /// Entries behind it.
    pub items: Vec<(Term, Item)>,
}

impl Stored {
    /// The position before the first entry.
    #[must_use]
    pub fn base(&self) -> Position {
        self.snapshot.as_ref().map_or(Position::default(), |snapshot| snapshot.at)
    }

    /// Applies one write.
    ///
    /// # Panics
    /// If the entries leave a gap: a write is missing.
    pub fn take(&mut self, write: LogWrite) {
        self.hard = write.hard;
        if let Some(snapshot) = write.snapshot {
            let gone = (snapshot.at.index.0 - self.base().index.0) as usize;
            let follows =
                gone == 0 || self.items.get(gone - 1).is_some_and(|i| i.0 == snapshot.at.term);
            if follows {
                self.items.drain(..gone);
            } else {
                self.items.clear();
            }
            self.snapshot = Some(snapshot);
        }
        if let Some(entries) = write.entries {
            let kept = entries.after.index.0.checked_sub(self.base().index.0);
            let kept = kept.expect("entries begin behind the snapshot") as usize;
            assert!(kept <= self.items.len(), "the log has a gap at {:?}", entries.after);
            self.items.truncate(kept);
            self.items.extend(entries.items);
        }
    }
}

/// A message between managers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuorumMessage {
    /// Would you vote for me? Changes no term and no vote at the receiver; a follower that says yes puts off its own election.
    PreVote {
        /// Names the attempt.
        round: u64,
        /// End of the asker's log.
        last: Position,
    },
    /// Yes. There is no "no": a manager that gets no majority asks again later.
    PreVoteGranted {
        /// The attempt.
        round: u64,
    },
    /// Vote for me.
    Vote {
        /// The candidate's term.
        term: Term,
        /// End of its log.
        last: Position,
    },
    /// Answer to `Vote`.
    Voted {
        /// The voter's term.
        term: Term,
        /// True if the vote was granted.
        granted: bool,
    },
    /// The next entries of the leader's log, and its heartbeat.
    Append {
        /// The leader's term.
        term: Term,
        /// The leader's round; echoed, so that it knows since when it has been confirmed.
        round: u64,
        /// Its commit point.
        commit: LogIndex,
        /// Entries; may be empty.
        entries: Entries,
    },
    /// Answer to `Append`: all through `last` is durable here.
    Appended {
        /// The follower's term.
        term: Term,
        /// Round of the `Append`.
        round: u64,
        /// End of its log.
        last: Position,
    },
    /// A piece of a snapshot, for a manager that lacks entries which the leader has no more.
    SnapshotPiece {
        /// The leader's term.
        term: Term,
        /// The snapshot.
        at: Position,
        /// Managers as of it.
        members: Members,
        /// Where in the state's bytes the piece begins.
        offset: u64,
        /// Bytes of the whole state.
        total: u64,
        /// The piece.
        piece: Bytes,
    },
    /// The bytes of the snapshot up to `offset` have arrived.
    SnapshotReceived {
        /// The snapshot.
        at: Position,
        /// Bytes that are here.
        offset: u64,
    },
}
