//! The layout of a development cluster's directory.

use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};

use larder_env::rng::unique_u64;
use serde::{Deserialize, Serialize};

/// Managers that vote in a cluster of at least as many nodes.
const MANAGERS: usize = 3;

/// Ports that are drawn. Below those that Linux gives to outgoing connections (`net.ipv4.ip_local_port_range`): a process
/// that was down for a moment would find its port taken by one of these.
const PORTS: Range<u16> = 20_000..32_000;
/// Ports tried for one address. With so many of them taken, something else is wrong.
const DRAWS_MAX: usize = 100;

/// All nodes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Layout {
    pub(super) nodes: Vec<Node>,
}

/// A node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub(super) name: String,
    /// Where it serves S3.
    pub(super) s3: String,
    pub(super) parts: Vec<PartPlace>,
}

/// One process of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PartPlace {
    pub(super) role: PartRole,
    pub(super) dir: PathBuf,
    /// Where the other servers reach it.
    pub(super) listen: String,
}

/// The roles of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PartRole {
    Manager,
    Meta,
    Data,
    Proxy,
}

impl PartRole {
    pub(super) const ALL: [Self; 4] = [Self::Manager, Self::Meta, Self::Data, Self::Proxy];

    /// As the command line, directories and reports have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Manager => "manager",
            Self::Meta => "meta",
            Self::Data => "data",
            Self::Proxy => "proxy",
        }
    }
}

impl Layout {
    /// Draws places for so many nodes.
    pub(super) fn draw(root: &Path, nodes: usize) -> std::io::Result<Self> {
        // All sockets are held until all are drawn, so that no address is drawn twice.
        let mut held = Vec::new();
        let mut address = || {
            let socket = free_socket()?;
            let address = socket.local_addr()?.to_string();
            held.push(socket);
            Ok::<_, std::io::Error>(address)
        };
        let managers = if nodes < MANAGERS { 1 } else { MANAGERS };
        let mut node = |number: usize| {
            let name = format!("node-{}", number + 1);
            let roles = PartRole::ALL.into_iter().skip(usize::from(number >= managers));
            let place = |role: PartRole| {
                let dir = root.join(&name).join(role.name());
                Ok(PartPlace { role, dir, listen: address()? })
            };
            let parts = roles.map(place).collect::<std::io::Result<_>>()?;
            Ok(Node { s3: address()?, name, parts })
        };
        Ok(Self { nodes: (0..nodes).map(&mut node).collect::<std::io::Result<_>>()? })
    }
}

/// A socket on a port that was free.
fn free_socket() -> std::io::Result<TcpListener> {
    let draw = || {
        let ports = u64::from(PORTS.end - PORTS.start);
        TcpListener::bind(("127.0.0.1", PORTS.start + (unique_u64() % ports) as u16))
    };
    let bound = (1..DRAWS_MAX).find_map(|_| draw().ok());
    bound.map_or_else(draw, Ok)
}

/// Threads for the event loop of each process where so many nodes share this machine. With one for each core in
/// every process, threads of a busy cluster mostly wake each other: a put then costs half as much CPU again.
pub(super) fn threads(nodes: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / nodes).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn three_of_five_nodes_have_a_manager_and_no_address_is_drawn_twice() {
        let layout = Layout::draw(Path::new("/c"), 5).unwrap();
        let managers = layout.nodes.iter().filter(|node| node.parts[0].role == PartRole::Manager);
        assert_eq!(managers.count(), 3);
        let inner = layout.nodes.iter().flat_map(|node| node.parts.iter().map(|part| &part.listen));
        let all: Vec<_> = inner.chain(layout.nodes.iter().map(|node| &node.s3)).collect();
        assert_eq!(all.len(), 5 * 4 + 3);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        for address in all {
            let port = address.parse::<SocketAddr>().unwrap().port();
            assert!(PORTS.contains(&port), "{address} may be given to a connection");
        }
    }

    #[test]
    fn a_layout_is_read_as_it_was_written() {
        let layout = Layout::draw(Path::new("/c"), 2).unwrap();
        let text = toml::to_string(&layout).unwrap();
        let read: Layout = toml::from_str(&text).unwrap();
        assert_eq!(toml::to_string(&read).unwrap(), text);
        assert!(toml::from_str::<Layout>(&text.replace("proxy", "cook")).is_err());
    }
}
