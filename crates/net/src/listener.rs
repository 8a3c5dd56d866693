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
use crate::house::{House, Services};
use crate::port::{Ear, Street};
use crate::transport::Acceptor;

/// Accepts connections for one server. Dropping it closes them all.
pub struct Listener {
    address: SocketAddr,
    house: Arc<House>,
    street: Arc<Street>,
    /// Accepts connections, if the port is this server's alone; a shared port has its own task.
    task: Option<JoinHandle<()>>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        self.street.close(&self.house);
        self.house.close();
    }
}

impl Listener {
    /// Serves connections to this socket; of a shared port, those that name this server.
    ///
    /// # Errors
    /// If the socket has no address.
    pub fn start(
        endpoint: &Arc<Endpoint>,
        ear: impl Into<Ear>,
        services: Services,
    ) -> io::Result<Self> {
        let house = House::new(endpoint.clone(), services);
        let ear = ear.into();
        let address = ear.address()?;
        let alone = |acceptor| {
            let street = Street::of_one(house.clone());
            let accepting = street.clone().accept(acceptor);
            (street, Some(endpoint.runtime().spawn(accepting)))
        };
        let (street, task) = match ear {
            Ear::Own(socket) => alone(Acceptor::Tcp(socket)),
            Ear::Shared(port) => {
                port.street().open(house.clone());
                (port.street().clone(), None)
            }
            #[cfg(feature = "simulated")]
            Ear::Simulated(arrivals) => alone(Acceptor::Simulated(arrivals)),
        };
        Ok(Self { address, house, street, task })
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
