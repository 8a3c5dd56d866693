//! The manager: owner of the topology map. `managers/` has the clients of managers.
//!
//! | file | what |
//! |---|---|
//! | `alone.rs` | the manager of a single node: the map is a file |
//! | `quorum/` | a manager of a cluster, one of up to five that agree on each change |

mod alone;
pub mod quorum;

pub use alone::{
    Genesis, LocalManager, LocalManagerError, LvRecord, MANAGER_DIR, Map, PgRecord, Published,
    ReplicaPlace, load, map_bytes,
};
