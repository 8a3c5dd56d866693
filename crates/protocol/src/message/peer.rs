//! Messages between the members of a PG.

use std::sync::Arc;

use larder_types::{HybridClock, Op, OpId, OpSeq, SessionMemory, View};
use serde::{Deserialize, Serialize};

use crate::digest::Summed;
use crate::index::Row;

/// An op on its way between members, or read back from the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// View and position under which it was issued.
    pub id: OpId,
    /// The op, shared by the log, the tail and the messages to peers.
    pub op: Arc<Op>,
}

/// A member's or learner's log as it tells it to a primary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// True if its rows are all there; if not, it has nothing.
    pub is_whole: bool,
    /// Its last op.
    pub last: OpId,
    /// The op at its commit point, or one after it from which on its primary has asked.
    pub prev: OpId,
    /// Its ops above that, or the first of them.
    pub entries: Vec<LogEntry>,
}

impl Report {
    /// The last op that it tells.
    pub(crate) fn end(&self) -> OpId {
        self.entries.last().map_or(self.prev, |entry| entry.id)
    }
}

/// The content of a snapshot besides rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHeader {
    /// Last op that its rows show.
    pub at: OpId,
    /// The PG's clock.
    pub clock: HybridClock,
    /// Puts up to it whose outcome is not applied, in order, with the place of their latest attempt.
    pub open: Vec<OpenEntry>,
    /// The memory of sessions; of one with many requests in several parts.
    pub sessions: Vec<SessionMemory>,
}

/// A put that is open in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenEntry {
    /// The put.
    pub entry: LogEntry,
    /// True if it will make nothing when it is committed.
    pub superseded: bool,
}

/// Some rows of a snapshot, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Rows and values.
    pub rows: Vec<Row>,
    /// Nothing follows.
    pub is_last: bool,
}

/// A message between the members of a PG.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// Append these, which follow `prev`.
    Append {
        /// The primary's view.
        view: View,
        /// The op before the first entry.
        prev: OpId,
        /// Ops.
        entries: Vec<LogEntry>,
        /// The commit point as the primary knows it.
        commit: OpSeq,
    },
    /// All ops through this one are durable here.
    Acked {
        /// View in which this is said.
        view: View,
        /// Highest durable op.
        through: OpId,
    },
    /// To the primary of a view, from a member or learner: this is what I have.
    Report {
        /// The view.
        view: View,
        /// The log and index that it has.
        report: Report,
    },
    /// To a follower that has no op in common with its primary: take the PG as it is here.
    Snapshot {
        /// View.
        view: View,
        /// The snapshot's content besides rows.
        header: Arc<SnapshotHeader>,
    },
    /// To the primary: the rows of the snapshot at `at` that come next.
    SnapshotNext {
        /// View.
        view: View,
        /// The op of the snapshot.
        at: OpId,
        /// The last row that is there.
        after: Option<Vec<u8>>,
    },
    /// The rows that were asked for.
    SnapshotRows {
        /// View.
        view: View,
        /// The op of the snapshot.
        at: OpId,
        /// The row that the request named.
        after: Option<Vec<u8>>,
        /// The rows.
        piece: Piece,
    },
    /// To a member: what did your index show at this op?
    AskDigest {
        /// View.
        view: View,
        /// The op, an [`Op::Digest`].
        at: OpId,
    },
    /// To the primary: this.
    Digest {
        /// View.
        view: View,
        /// The op.
        at: OpId,
        /// The sum of the index at that op.
        sum: Summed,
    },
    /// To a member: at this op your index showed something else than those of most others.
    IsOdd {
        /// View.
        view: View,
        /// The op.
        at: OpId,
    },
}

impl PeerMessage {
    /// The view in which it is said.
    #[must_use]
    pub fn view(&self) -> View {
        match self {
            Self::Append { view, .. }
            | Self::Acked { view, .. }
            | Self::Report { view, .. }
            | Self::Snapshot { view, .. }
            | Self::SnapshotNext { view, .. }
            | Self::SnapshotRows { view, .. }
            | Self::AskDigest { view, .. }
            | Self::Digest { view, .. }
            | Self::IsOdd { view, .. } => *view,
        }
    }
}
