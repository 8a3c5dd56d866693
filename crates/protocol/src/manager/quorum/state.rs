//! The state of one manager's part in the quorum. Its methods are in [`super::node`], which takes events, and in
//! [`super::follow`] and [`super::lead`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use larder_types::ServerId;

use super::event::{QuorumEffect, QuorumEvent, Ticket};
use super::raft::{members_of, server_id};
use super::wire::{LogIndex, Members, Position, Snapshot, Term};

/// One manager's part in the quorum.
#[derive(Debug)]
pub struct Quorum {
    pub(super) me: ServerId,
    pub(super) seed: u64,
    pub(super) draws: u64,
    pub(super) node: noraft::Node,
    pub(super) now_ms: u64,
    pub(super) timer_ms: u64,
    pub(super) leader_heartbeat_ms: u64,
    /// The last time at which a leader sent a message in this run; `None` before the first.
    pub(super) led_heartbeat_ms: Option<u64>,
    /// The latest term whose leader is known to grant short leases: it counts rounds from `ROUND_FIRST` on.
    pub(super) leader_term: Option<LeaderTerm>,
    pub(super) pre_voting: Option<PreVoting>,
    /// The time at which it asked for votes last.
    pub(super) voted_ms: u64,
    pub(super) receiving: Option<Receiving>,
    /// Commands behind the snapshot.
    pub(super) payloads: BTreeMap<LogIndex, Bytes>,
    /// Commands of the message that is being handled.
    pub(super) incoming: BTreeMap<LogIndex, Bytes>,
    /// Round of the `Append` that is being handled.
    pub(super) replying: u64,
    pub(super) snapshot: Option<Snapshot>,
    pub(super) unwritten_snapshot: bool,
    pub(super) snapshot_requested: bool,
    pub(super) applied: LogIndex,
    /// Place of the latest change of managers in the log.
    pub(super) members_at: LogIndex,
    pub(super) writes: u64,
    pub(super) busy: Option<u64>,
    pub(super) waiting: VecDeque<QuorumEvent>,
    pub(super) held: Vec<QuorumEffect>,
    pub(super) tickets: BTreeMap<LogIndex, (Term, Ticket)>,
    pub(super) led: Option<Led>,
    pub(super) halted: bool,
}

/// A pre-vote: an attempt to find out if a majority would vote for this manager.
#[derive(Debug)]
pub(super) struct PreVoting {
    pub(super) round: u64,
    pub(super) begun_ms: u64,
    pub(super) granted: BTreeSet<ServerId>,
}

/// A snapshot that arrives in pieces.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) at: Position,
    pub(super) state: Vec<u8>,
}

/// The state of a leader besides `noraft`'s.
#[derive(Debug)]
pub(super) struct Led {
    pub(super) term: Term,
    pub(super) first: LogIndex,
    pub(super) announced: bool,
    /// It was announced in this step: proposals that wait come behind those that the election causes.
    pub(super) is_fresh: bool,
    /// See [`QuorumEffect::Elected`].
    pub(super) shortened_since_ms: Option<u64>,
    pub(super) round: u64,
    /// The times at which rounds not yet confirmed began.
    pub(super) began_ms: BTreeMap<u64, u64>,
    pub(super) acked: BTreeMap<ServerId, u64>,
    pub(super) questions: BTreeMap<u64, Vec<Ticket>>,
    /// Start of the latest round that a majority answered.
    pub(super) confirmed_ms: u64,
    /// Followers that have answered since the last majority of answers was complete.
    pub(super) answered: BTreeSet<ServerId>,
    /// Checks of the followers since then.
    pub(super) silent_beats: u32,
    /// The time of the next check.
    pub(super) checks_ms: u64,
    /// Bytes of the snapshot that each follower has.
    pub(super) sending: BTreeMap<ServerId, (LogIndex, u64)>,
}

/// A term that had a leader.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaderTerm {
    pub(super) term: Term,
    /// The time at which this manager knew of it first.
    pub(super) since_ms: u64,
}

impl Quorum {
    /// A number below `bound`, from the seed.
    pub(super) fn draw(&mut self, bound: u64) -> u64 {
        self.draws += 1;
        crate::placement::hash(self.seed, &[self.draws]) % bound
    }

    /// The term as this manager knows it.
    #[must_use]
    pub fn term(&self) -> Term {
        Term(self.node.current_term().get())
    }

    /// End of the log.
    #[must_use]
    pub fn last(&self) -> Position {
        self.node.log().last_position().into()
    }

    /// Last entry that is applied.
    #[must_use]
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// The managers.
    #[must_use]
    pub fn members(&self) -> Members {
        members_of(self.node.config())
    }

    /// The leader, as far as this manager knows.
    #[must_use]
    pub fn leader(&self) -> Option<ServerId> {
        match self.node.role() {
            noraft::Role::Leader => Some(self.me),
            noraft::Role::Follower => self.node.voted_for().map(server_id),
            noraft::Role::Candidate => None,
        }
    }

    /// Returns true if this manager leads: from its effect `Elected` to `Deposed`.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.led.as_ref().is_some_and(|led| led.announced)
    }
}
