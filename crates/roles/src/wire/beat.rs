//! The beat of a meta server to the managers, for all servers of its process.

use larder_types::{BootId, PgId, ServerId, View};
use serde::{Deserialize, Serialize};

/// Asks for leases, and says that the servers of a process go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// Run of the meta server that sends it.
    pub boot: BootId,
    /// Its clock when it sent this; echoed.
    pub sent_ms: u64,
    /// The groups that it leads, each with its view.
    pub led: Vec<(PgId, View)>,
    /// The manager that granted the leases requested by the previous beat. A follower of this manager does not forward
    /// the beat: the leader gets it directly.
    pub heard_by: Option<ServerId>,
    /// Other servers at the same address, each with its run.
    pub beside: Vec<(ServerId, BootId)>,
}
