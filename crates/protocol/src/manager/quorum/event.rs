//! Events that go into a manager's machine, and effects that come out of it.

use bytes::Bytes;
use larder_types::ServerId;

use super::wire::{LogIndex, LogWrite, QuorumMessage, Term};

/// Names a proposal, a change of managers or a question of its asker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A change of the managers, one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberChange {
    /// A server follows without counting.
    AddLearner(ServerId),
    /// A learner that has caught up counts.
    Promote(ServerId),
    /// A server goes.
    Remove(ServerId),
}

/// The reason for which a change of managers was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeRefused {
    /// Ask again: the change before is not through.
    InProgress,
    /// Ask again: the learner has not caught up.
    Behind,
    /// Fix the request: it is there already, or is not there.
    Pointless,
    /// Fix the request: the quorum would have none, or more than [`MANAGERS_MAX`](crate::limits::MANAGERS_MAX).
    Count,
}

/// The end of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProposalEnd {
    /// It is applied, at this place.
    Applied(LogIndex),
    /// It will never be applied.
    Lost,
    /// This manager stopped leading: it may be applied or not.
    Unknown,
    /// Not begun: another leads, or nobody.
    NotLeader,
    /// Not begun: slow down.
    Busy,
    /// Not begun: the change of managers is refused.
    Refused(ChangeRefused),
}

/// An event for a manager of the quorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuorumEvent {
    /// Time passed.
    Tick,
    /// A manager says something.
    Peer(ServerId, QuorumMessage),
    /// Append a command.
    Propose(Ticket, Bytes),
    /// Change the managers.
    ChangeMembers(Ticket, MemberChange),
    /// Tell when it is sure that this manager led after the question.
    Confirm(Ticket),
    /// A write is durable.
    Persisted(u64),
    /// The state machine as of an applied entry, asked for by `TakeSnapshot`.
    Snapshot(LogIndex, Bytes),
}

/// An action for the driver, to be done in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuorumEffect {
    /// Make durable, then say `Persisted`.
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
        /// Since when at least, on this manager's clock, somebody led in the term before who grants leases of
        /// [`LEASE_GRANTED_MS`](crate::limits::LEASE_GRANTED_MS); `None` if that is not known.
        brief_since_ms: Option<u64>,
    },
    /// It does not any more.
    Deposed(Term),
    /// A proposal's end.
    Decided(Ticket, ProposalEnd),
    /// This manager led after the question was asked.
    Confirmed(Ticket),
    /// It cannot go on: its disk contradicts the leader's.
    Halt(String),
}
