//! Equal machines that form a cluster: all have the same list of machines and the same secret, and each runs every
//! role.
//!
//! ```text
//!  a machine with an empty directory asks all others of its list, again and again
//!    ├─ a member of a cluster answers ──▶ it is let in: identities, managers, root's keys
//!    └─ nobody does, it is the first of the list, and all others have asked it
//!         with the same list ──▶ it founds the cluster, and lets them in
//! ```
//!
//! | file | what |
//! |---|---|
//! | `v1.rs` | what is said: `docs/formats/node.md` |
//! | `enter.rs` | the machine that comes in: discovery, and founding |
//! | `bootstrap.rs` | who has asked the first of the list while there is no cluster |
//! | `admit.rs` | the members, who let machines in |
//!
//! # Invariants
//!
//! 1. A cluster is founded by one machine alone. It is the first of a list that all machines of the list
//!    have told it, while none of them belonged to a cluster. So two are never founded by mistake, in
//!    whatever order machines start.
//! 2. A machine's name is its place in the list. While a server of that name lives nobody else gets one, but for a
//!    machine that was cut off before it had begun.
//! 3. A machine has all its identities or, as far as its caller keeps [`Entered`] last, none that counts.

mod admit;
mod bootstrap;
mod enter;
mod v1;

use std::path::PathBuf;
use std::time::Duration;

use larder_identity::{IdentityError, PeerSecret};
use larder_protocol::limits::MANAGERS_MAX;
use larder_protocol::manager::state::{ServerRole, Settings};
use larder_types::{ClusterId, ServerId};
use serde::{Deserialize, Serialize};

use crate::manager::quorum::ManagerError;

pub use admit::{Admission, RootHere, admit_machines};
pub use enter::enter;

/// The roles of a machine, in the order of its servers.
pub const ROLES: [ServerRole; 4] =
    [ServerRole::Manager, ServerRole::Meta, ServerRole::Data, ServerRole::Proxy];

/// A machine that comes in.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its directory, with one for each role in it.
    pub dir: PathBuf,
    /// Its name: its own place in the list.
    pub name: String,
    /// All machines, `host:port`.
    pub peers: Vec<String>,
    /// The secret that it shares with them.
    pub secret: PeerSecret,
    /// The settings that a cluster is founded with.
    pub settings: Settings,
    /// Root's keys of a cluster that is founded.
    pub root: RootKeys,
    /// The time for which certificates are valid.
    pub certificate_life: Duration,
}

/// Root's keys, the same for all proxies.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootKeys {
    /// Names them.
    pub access_key: String,
    /// Secret.
    pub secret_key: String,
}

impl std::fmt::Debug for RootKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RootKeys").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// A machine that is a member. Its identities are in its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entered {
    /// The cluster.
    pub cluster: ClusterId,
    /// Its servers.
    pub servers: Vec<(ServerRole, ServerId)>,
    /// Managers to begin with.
    pub managers: Vec<(ServerId, String)>,
    /// Root's keys.
    pub root: RootKeys,
}

/// The reason why a machine did not come in, by what to do.
#[derive(Debug, thiserror::Error)]
pub enum NotEntered {
    /// Give all machines the same secret.
    #[error("the machine at {at} has another secret: give all machines the same file")]
    OtherSecret {
        /// Where.
        at: String,
    },
    /// Give all machines the same list.
    #[error(
        "the machine at {at} was given another list of peers ({theirs}) than this one ({ours}): until the cluster is \
         formed all need the same, in the same order"
    )]
    OtherList {
        /// Where.
        at: String,
        /// Its list.
        theirs: String,
        /// The list here.
        ours: String,
    },
    /// Bring the directory back, or remove the servers and start again.
    #[error(
        "a machine of the name {name} is in the cluster already ({servers}), and this directory is not its own. Bring \
         its directory back. If it is lost for good, remove these servers with `larder remove` on another machine \
         and start again"
    )]
    Taken {
        /// The name.
        name: String,
        /// Its servers.
        servers: String,
    },
    /// Use one release.
    #[error("the machine at {at} is not understood: use one release ({why})")]
    NotUnderstood {
        /// Where.
        at: String,
        /// The reason.
        why: String,
    },
    /// Fix the list.
    #[error(
        "a cluster of {peers} peers cannot keep {copies} copies: name more peers, or set copies"
    )]
    TooFew {
        /// Machines.
        peers: usize,
        /// Copies of everything.
        copies: u8,
    },
    /// As it says.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// As it says.
    #[error("the cluster cannot be founded: {0}")]
    Found(#[from] ManagerError),
    /// Look at the disk.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
}

/// Of so many machines, so many are managers: an odd number, as one more would only have more to wait for.
#[must_use]
pub fn managers_of(machines: usize) -> usize {
    match machines {
        0..=2 => 1,
        3..=4 => 3,
        _ => MANAGERS_MAX,
    }
}

/// The roles of the machine at this place of a list.
fn roles_at(place: Option<usize>, machines: usize) -> impl Iterator<Item = ServerRole> {
    let manages = place.is_some_and(|place| place < managers_of(machines));
    ROLES.into_iter().filter(move |role| manages || *role != ServerRole::Manager)
}

/// A role, as directories and servers' names have it.
#[must_use]
pub fn role_name(role: ServerRole) -> &'static str {
    match role {
        ServerRole::Manager => "manager",
        ServerRole::Meta => "meta",
        ServerRole::Data => "data",
        ServerRole::Proxy => "proxy",
    }
}

/// The name of a machine's server.
#[must_use]
pub fn server_name(node: &str, role: ServerRole) -> String {
    format!("{node}/{}", role_name(role))
}

/// The machine of a server with such a name.
#[must_use]
pub fn node_of(server: &str) -> Option<&str> {
    let (node, role) = server.rsplit_once('/')?;
    ROLES.iter().any(|known| role_name(*known) == role).then_some(node)
}

#[cfg(test)]
mod tests;
