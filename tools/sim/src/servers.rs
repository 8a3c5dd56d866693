//! The servers of the simulated world. Every process is a server of its own, because every process dies alone.

use larder_protocol::manager::state::ServerRole;

/// A part of the world that the map names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Node(usize),
    Store(usize),
    Proxy(usize),
    Manager(usize),
}

impl Server {
    pub(crate) fn role(self) -> ServerRole {
        match self {
            Server::Node(_) => ServerRole::Meta,
            Server::Store(_) => ServerRole::Data,
            Server::Proxy(_) => ServerRole::Proxy,
            Server::Manager(_) => ServerRole::Manager,
        }
    }
}

/// The processes that stop or start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of a machine's.
    Machine(usize),
    /// Its meta server.
    Node(usize),
    /// Its data server.
    Store(usize),
    /// A proxy.
    Proxy(usize),
    /// Its manager.
    Manager(usize),
}
