//! Messages between the members of a PG.

use std::sync::Arc;

use larder_types::{Op, OpId, OpSeq, View};
use serde::{Deserialize, Serialize};

use crate::digest::Summed;
use crate::pg::{Piece, Report, SnapshotHeader};

/// An op on its way between members, or read back from the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// View and position under which it was issued.
    pub id: OpId,
    /// The op, shared by the log, the tail and the messages to peers.
    pub op: Arc<Op>,
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
