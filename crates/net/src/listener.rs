//! One server's listener, on a port of its own or on one that it shares (`port.rs`).
//!
//! # Invariants
//!
//! 1. No connection outlives its listener: when that is dropped they end, also on a port that other servers go on using.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::endpoint::Endpoint;
use crate::port::{ListenSocket, ServerTable};
use crate::transport::Acceptor;
use crate::virtual_server::{Services, VirtualServer};

/// Accepts connections for one server. Dropping it closes them all.
pub struct Listener {
    address: SocketAddr,
    virtual_server: Arc<VirtualServer>,
    server_table: Arc<ServerTable>,
    /// Accepts connections, if the port is this server's alone; a shared port has its own task.
    task: Option<JoinHandle<()>>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        self.server_table.close(&self.virtual_server);
        self.virtual_server.close();
    }
}

impl Listener {
    /// Serves connections to this socket; of a shared port, those that name this server.
    ///
    /// # Errors
    /// If the socket has no address.
    pub fn start(
        endpoint: &Arc<Endpoint>,
        listen_socket: impl Into<ListenSocket>,
        services: Services,
    ) -> io::Result<Self> {
        let virtual_server = VirtualServer::new(endpoint.clone(), services);
        let listen_socket = listen_socket.into();
        let address = listen_socket.address()?;
        let alone = |acceptor| {
            let server_table = ServerTable::of_one(virtual_server.clone());
            let accepting = server_table.clone().accept(acceptor);
            (server_table, Some(endpoint.runtime().spawn(accepting)))
        };
        let (server_table, task) = match listen_socket {
            ListenSocket::Own(socket) => alone(Acceptor::Tcp(socket)),
            ListenSocket::Shared(port) => {
                port.server_table().open(virtual_server.clone());
                (port.server_table().clone(), None)
            }
            #[cfg(feature = "simulated")]
            ListenSocket::Simulated(arrivals) => alone(Acceptor::Simulated(arrivals)),
        };
        Ok(Self { address, virtual_server, server_table, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod removal_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod version_tests;
