//! Connections that are open at the answering end, bounded for each region and for all strangers together.
//!
//! # Invariants
//!
//! 1. Strangers take no place of a region, and a region none of another.
//! 2. At the bound the newest takes the place of the oldest: a region whose connections were cut has its places back.
//! 3. When this is closed all of them end, and none is taken in any more.

use std::collections::{BTreeMap, VecDeque};

use larder_types::RegionId;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::limits::{CONNECTIONS_OF_PEER_MAX, CONNECTIONS_OF_STRANGERS_MAX, HANDSHAKES_MAX};

/// The owner of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Whose {
    /// It is not known yet.
    Arriving,
    /// Nobody's who is known.
    Stranger,
    /// A region's.
    Peer(RegionId),
}

impl Whose {
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
pub(crate) struct Places {
    open: Mutex<Option<BTreeMap<Whose, VecDeque<AbortHandle>>>>,
}

impl Places {
    /// With room for all that may be.
    pub(crate) fn new() -> Self {
        Self { open: Mutex::new(Some(BTreeMap::new())) }
    }

    /// Takes in a connection that was begun.
    pub(crate) fn enter(&self, whose: Whose, connection: AbortHandle) {
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

    /// Ends all of them.
    pub(crate) fn close(&self) {
        let open = self.open.lock().take().unwrap_or_default();
        open.into_values().flatten().for_each(|connection| connection.abort());
    }
}
