//! Connections between servers of one process that share a port. Their bytes pass through memory: no socket, no TLS.
//!
//! # Invariants
//!
//! 1. Both ends are authenticated: the caller holds the credentials of its endpoint, and the other end is a server of
//!    this process. Cluster, role, removal and expiry of certificates are checked as for a connection from outside.
//! 2. Neither end pings: when a server ends, so does its end of the pipe.
//! 3. A pipe holds [`PIPE_BYTES`] each way at most: a writer into a full one waits until the other end has read.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use tokio::io::{DuplexStream, duplex};

use crate::connection::Broken;
use crate::endpoint::Endpoint;
use crate::error::{Denied, Refused};
use crate::limits::PIPE_BYTES;
use crate::port::{ListenSocket, ServerTable};
use crate::target::Target;

impl Endpoint {
    /// Connects through memory to servers that share this port, from the next connection on. Does nothing where the
    /// port is not shared.
    pub fn share(&self, listen_socket: &ListenSocket) {
        let ListenSocket::Shared(port) = listen_socket else { return };
        let (server_table, address) = (Arc::downgrade(port.server_table()), port.address());
        self.set_local_connector(Box::new(move |endpoint, target| {
            connect(endpoint, target, (&server_table, address))
        }));
    }
}

/// Connects to a server behind this port; `None` if the target is not behind it.
fn connect(
    endpoint: &Endpoint,
    target: &Target,
    (server_table, address): (&Weak<ServerTable>, SocketAddr),
) -> Result<Option<DuplexStream>, Broken> {
    let Some(from) = endpoint.subject() else { return Ok(None) };
    let server_table = server_table.upgrade();
    let Some(virtual_server) = server_table
        .and_then(|server_table| server_table.virtual_server(from.cluster, target.server))
    else {
        return Ok(None);
    };
    let found = virtual_server.subject();
    if !found.is_some_and(|it| it.roles.has(target.role)) {
        let why = format!("server {} has not the role {}", target.server, target.role);
        return Err(Broken::Denied(Denied::by_us(Refused::WrongRole, why)));
    }
    let (ours, theirs) = duplex(PIPE_BYTES);
    endpoint.metrics().local.add(1);
    drop(endpoint.runtime().spawn(virtual_server.serve_local((theirs, from), address)));
    Ok(Some(ours))
}

#[cfg(test)]
mod tests;
