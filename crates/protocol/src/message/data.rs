//! Requests of a primary to the data servers of its volumes, and their answers.

use larder_types::{BootId, Chunk, Grant, GrantKey, View};
use serde::{Deserialize, Serialize};

/// A request to the data servers of an LV.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataRequest {
    /// Admit writes of this view.
    Open {
        /// View.
        view: View,
        /// Floor.
        floor: GrantKey,
        /// Run of the server that is meant.
        boot: BootId,
    },
    /// Void every grant below.
    RaiseFloor {
        /// New floor.
        floor: GrantKey,
    },
    /// Void one grant.
    Void {
        /// The grant.
        grant: Grant,
    },
    /// Sync, then compare what the device holds with the sums.
    Verify {
        /// The chunk.
        chunk: Box<Chunk>,
    },
}

/// A data server's answer to a [`DataRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataAnswer {
    /// `Open` or `RaiseFloor` took effect, durably.
    Floor(GrantKey),
    /// `Void` took effect, durably.
    Voided(Grant),
    /// `Verify` found the data.
    Verified(Grant),
    /// `Verify` found other bytes.
    Mismatch {
        /// The grant.
        grant: Grant,
        /// The data was never acknowledged there and never will be; `false` says nothing.
        is_unacknowledged: bool,
    },
    /// It could not be done now; nothing has changed.
    NotNow(Grant),
    /// The server or its disk is gone for now.
    Failed,
}
