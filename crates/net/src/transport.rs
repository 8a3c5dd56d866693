//! The stream under connections: TCP, or in simulations a network within the process (`simulated.rs`).

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};

#[cfg(feature = "simulated")]
use crate::simulated::{Arrivals, Pipe};
#[cfg(feature = "simulated")]
use larder_identity::Subject;

/// The source of a listener's connections.
pub(crate) enum Acceptor {
    Tcp(TcpListener),
    #[cfg(feature = "simulated")]
    Simulated(Arrivals),
}

/// An accepted connection.
pub(crate) enum Arrived {
    Tcp(TcpStream),
    /// With the server that opened it.
    #[cfg(feature = "simulated")]
    Simulated(Box<Pipe>, Subject),
}

impl Acceptor {
    pub(crate) async fn accept(&mut self) -> io::Result<(Arrived, SocketAddr)> {
        match self {
            Self::Tcp(socket) => {
                let (tcp, address) = socket.accept().await?;
                Ok((Arrived::Tcp(tcp), address))
            }
            #[cfg(feature = "simulated")]
            Self::Simulated(arrivals) => {
                let (pipe, subject, address) = arrivals.next().await;
                Ok((Arrived::Simulated(Box::new(pipe), subject), address))
            }
        }
    }
}
