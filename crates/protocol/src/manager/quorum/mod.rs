//! The managers' agreement on one log of commands: Raft, by the `noraft` crate, which does no I/O either
//! (ADR 10).
//!
//! ```text
//!  Tick ─┐                     ┌─▶ Persist ──(driver)──▶ Persisted
//!  Peer ─┤                     ├─▶ Send
//!  Propose ─▶ Quorum ─ noraft ─┼─▶ Apply, Restore, TakeSnapshot
//!  ChangeMembers ┘             └─▶ Elected, Deposed, Decided, Confirmed
//! ```
//!
//! # Invariants
//!
//! 1. No message leaves and no entry is applied before everything decided so far is durable here: while a write
//!    is under way, events wait.
//! 2. Entries are applied in order, once, and only up to the commit point.
//! 3. `Elected` comes only once the leader's own first entry is applied: its state then is the latest.
//! 4. `Confirmed` comes for a question once a majority has said, after the question, that it follows this leader
//!    in its term. A leader of a later term was elected after that.
//! 5. Only messages that [`Quorum::admits`] are stepped, so their content may be asserted.
//! 6. No clock and no randomness but the seed: equal events make equal effects.

mod event;
mod follow;
mod lead;
mod node;
mod raft;
mod state;
mod validation;
mod wire;

pub use event::{ChangeRefused, MemberChange, ProposalEnd, QuorumEffect, QuorumEvent, Ticket};
pub use state::Quorum;
pub use wire::{
    Entries, HardState, Item, LogIndex, LogWrite, Members, Position, QuorumMessage, Snapshot,
    Stored, Term,
};

#[cfg(test)]
mod tests;
