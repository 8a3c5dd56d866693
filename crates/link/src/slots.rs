//! Connections that are open at the answering end, bounded for each region and for all strangers together.
//!
//! # Invariants
//!
//! 1. Strangers take no place of a region, and a region none of another.
//! 2. At the bound the newest takes the place of the oldest: a region whose connections were cut has its slots back.
//! 3. Once this is closed all connections end, and no more is taken in.

use std::collections::{BTreeMap, VecDeque};

use larder_types::RegionId;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::limits::{CONNECTIONS_OF_PEER_MAX, CONNECTIONS_OF_STRANGERS_MAX, HANDSHAKES_MAX};

/// The owner of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SlotOwner {
    /// Not known before the end of the handshake.
    Arriving,
    /// A caller that is no region.
    Stranger,
    /// A region.
    Peer(RegionId),
}

impl SlotOwner {
    const fn max(self) -> usize {
        match self {
            Self::Arriving => HANDSHAKES_MAX,
            Self::Stranger => CONNECTIONS_OF_STRANGERS_MAX,
            Self::Peer(_) => CONNECTIONS_OF_PEER_MAX,
        }
    }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    open: Mutex<Option<BTreeMap<SlotOwner, VecDeque<AbortHandle>>>>,
}

impl ConnectionSlots {
    /// Opens the slots, all of them free.
    pub(crate) fn new() -> Self {
        Self { open: Mutex::new(Some(BTreeMap::new())) }
    }

    /// Gives a connection a place; at the bound it takes that of the oldest.
    pub(crate) fn enter(&self, whose: SlotOwner, connection: AbortHandle) {
        let mut open = self.open.lock();
        let Some(open) = &mut *open else {
            connection.abort();
            return;
        };
        let open = open.entry(whose).or_default();
        open.retain(|connection| !connection.is_finished());
        if open.len() >= whose.max()
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(connection);
        assert!(open.len() <= whose.max(), "connections are bounded");
    }

    /// Ends all connections.
    pub(crate) fn close(&self) {
        let open = self.open.lock().take().unwrap_or_default();
        open.into_values().flatten().for_each(|connection| connection.abort());
    }
}
