//! A PG's outcomes after a token, as regions send them: the token, the response to it, and its errors. Meta servers
//! answer from the rows of the journal.
//!
//! # Invariants
//!
//! 1. Outcomes are in the order of their ops, and each op is below the commit point when it is recorded.
//! 2. The asking region gets every outcome behind its token, or hears that the token is void: no outcome is left out.
//! 3. The number of kept outcomes is bounded, however long a region is away.
//! 4. An id is kept as it was recorded, also when its entry is gone.

use larder_types::OpSeq;
use serde::{Deserialize, Serialize};

use super::entry::Id;

/// A region's position in a PG's journal: it has every outcome up to this op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Token {
    /// The op.
    pub through: OpSeq,
}

/// The answer to a void token. The asking region compares all keys, and goes on from `resume` afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Void {
    /// The fault of the token.
    pub why: VoidReason,
    /// A token that holds now.
    pub resume: Token,
}

/// A fault of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum VoidReason {
    /// The journal no longer keeps all outcomes behind it.
    Overrun,
    /// It is ahead of the journal, which has lost outcomes that it told.
    Ahead,
}

/// Outcomes behind a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Each with its op.
    pub ids: Vec<(OpSeq, Id)>,
    /// The token once all of these are durable in the asking region.
    pub token: Token,
    /// The last outcome of the journal.
    pub last: OpSeq,
    /// Outcomes behind `token`, and their bytes.
    pub left: (u64, u64),
}
