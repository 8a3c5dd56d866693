//! The manager: owner of the topology map. `managers/` is how others speak with it.
//!
//! | file | what |
//! |---|---|
//! | `alone.rs` | a single node's: the map is a file |
//! | `quorum/` | a cluster's: up to five, which agree on each change |

mod alone;
pub mod quorum;

pub use alone::{
    Genesis, LocalManager, LocalManagerError, LvRecord, MANAGER_DIR, Map, PgRecord, Published,
    ReplicaPlace, load, map_bytes,
};
