//! Connections between servers of one process that share a port. Their bytes pass through memory: no socket, no TLS.
//!
//! # Invariants
//!
//! 1. Both ends are known for certain. Who calls holds the credentials of its endpoint, and who answers is a server of
//!    this process. Cluster, role, removal and the certificates' end are looked at as they are of a connection from outside.
//! 2. Neither end asks whether the other lives: a server's end goes with it.
//! 3. A pipe holds [`PIPE_BYTES`] each way at most: a writer into a full one waits until it was read.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use tokio::io::{DuplexStream, duplex};

use crate::connection::Broken;
use crate::endpoint::Endpoint;
use crate::error::{Denied, Refused};
use crate::identity::Subject;
use crate::limits::PIPE_BYTES;
use crate::link::Target;
use crate::port::{Ear, Street};

/// The port that a server shares with others of its process.
pub(crate) struct Shared {
    street: Weak<Street>,
    address: SocketAddr,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The called end of a pipe, and who calls.
pub(crate) struct Local {
    pub(crate) pipe: DuplexStream,
    pub(crate) from: Subject,
}

impl Endpoint {
    /// Speaks within the process with servers that share this port, from the next connection on. Does nothing where the
    /// port is not shared.
    pub fn share(&self, ear: &Ear) {
        let Ear::Shared(port) = ear else { return };
        let shared = Shared { street: Arc::downgrade(port.street()), address: port.address() };
        // An endpoint is one server's, and that has one port.
        drop(self.shared.set(shared));
    }

    /// Connects to a server of this process; `None` if it is none.
    pub(crate) fn connect_locally(&self, target: &Target) -> Result<Option<DuplexStream>, Broken> {
        let (Some(from), Some(shared)) = (self.subject(), self.shared.get()) else {
            return Ok(None);
        };
        let street = shared.street.upgrade();
        let Some(house) = street.and_then(|street| street.house(from.cluster, target.server))
        else {
            return Ok(None);
        };
        let found = house.subject();
        if !found.is_some_and(|it| it.roles.has(target.role)) {
            let why = format!("server {} has not the role {}", target.server, target.role);
            return Err(Broken::Denied(Denied::by_us(Refused::WrongRole, why)));
        }
        let (ours, pipe) = duplex(PIPE_BYTES);
        self.metrics().local.add(1);
        drop(self.runtime().spawn(house.serve_local(Local { pipe, from }, shared.address)));
        Ok(Some(ours))
    }
}

#[cfg(test)]
mod tests;
