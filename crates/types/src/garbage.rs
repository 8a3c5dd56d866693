//! Garbage: rows of chunks, parts and pieces that nothing names any more. An object may have a million of these, so they go
//! in steps of a bounded number (ADR 55).

use serde::{Deserialize, Serialize};

use crate::ids::OpId;

/// In what steps the garbage of a PG goes: the row [`garbage`](crate::rows::garbage). Without that row everything goes at
/// once, with the op that ends an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reaping {
    /// The op that said so.
    pub op: OpId,
    /// Rows that one op removes at most, from that op on; at least 1.
    pub rows_max: u32,
}

/// Rows with a common beginning are garbage: a row [`garbage_of`](crate::rows::garbage_of).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Garbage {
    /// The op that left them.
    pub op: OpId,
    /// The last row that is removed, without the beginning; empty if none is. A step that began with the first row again would
    /// pass over all that are removed.
    pub through: Vec<u8>,
}
