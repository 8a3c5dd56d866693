//! Events and effects of a manager's state machine.

use bytes::Bytes;
use larder_types::ServerId;

use super::wire::{LogIndex, LogWrite, QuorumMessage, Term};

/// The proposer's number for a proposal, a change of managers or a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A change of the managers, one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberChange {
    /// A server begins to follow the log, without a vote.
    AddLearner(ServerId),
    /// A learner that has caught up gets a vote.
    Promote(ServerId),
    /// A server is no manager any more.
    Remove(ServerId),
}

/// The reason for which a change of managers was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeRefused {
    /// Ask again: the change before is not committed.
    InProgress,
    /// Ask again: the learner has not caught up.
    Behind,
    /// Fix the request: the server is that already, or is no manager.
    Pointless,
    /// Fix the request: the quorum would have no voters, or more than [`MANAGERS_MAX`](crate::limits::MANAGERS_MAX).
    Count,
}

/// The outcome of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProposalEnd {
    /// It is applied, at this index.
    Applied(LogIndex),
    /// It will never be applied.
    Lost,
    /// This manager stopped leading: it may be applied or not.
    Unknown,
    /// Not begun: another manager leads, or none.
    NotLeader,
    /// Not begun: too much is under way.
    Busy,
    /// Not begun: the change of managers is refused.
    Refused(ChangeRefused),
}

/// An event for a manager of the quorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuorumEvent {
    /// Time passed.
    Tick,
    /// A message of another manager came.
    Peer(ServerId, QuorumMessage),
    /// Append a command.
    Propose(Ticket, Bytes),
    /// Change the managers.
    ChangeMembers(Ticket, MemberChange),
    /// Confirm, once a majority has followed this leader after the question, that it led then.
    Confirm(Ticket),
    /// A write is durable.
    Persisted(u64),
    /// The state machine's bytes as of an applied entry, which `TakeSnapshot` asked for.
    Snapshot(LogIndex, Bytes),
}

/// An action for the driver, to be done in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuorumEffect {
    /// Make durable, then give the event `Persisted`.
    Persist(u64, LogWrite),
    /// Send; may be lost, doubled or late.
    Send(ServerId, QuorumMessage),
    /// Apply to the state machine.
    Apply(LogIndex, Bytes),
    /// Replace the state machine by this one.
    Restore(LogIndex, Bytes),
    /// Answer with the state machine's bytes: the log has become long.
    TakeSnapshot,
    /// This manager leads, and its state is the latest.
    Elected {
        /// Its term.
        term: Term,
        /// The time on this manager's clock by which a leader that grants leases of
        /// [`LEASE_GRANTED_MS`](crate::limits::LEASE_GRANTED_MS) led in the term before; `None` if that is not known.
        shortened_since_ms: Option<u64>,
    },
    /// This manager does not lead any more.
    Deposed(Term),
    /// A proposal has this outcome.
    Decided(Ticket, ProposalEnd),
    /// This manager led after the question was asked.
    Confirmed(Ticket),
    /// It cannot go on: its disk contradicts the leader's.
    Halt(String),
}
