//! Finds the peer that this machine is.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};

use larder_roles::limits::{PEER_NAME_BYTES_MAX, PEERS_MAX};

use super::NodeError;
use crate::cluster::record::Record;
use crate::config::Config;

/// The name of this machine: what its directory says, then what its operator says, then the one peer that is an address
/// of this machine.
pub(super) fn found_out(config: &Config, record: Option<&Record>) -> Result<String, NodeError> {
    check(&config.peers)?;
    let listed = |name: &String| config.peers.contains(name);
    if let Some(me) = config.me.as_ref().filter(|me| !listed(me)) {
        return Err(NodeError::NotAPeer { me: me.clone() });
    }
    if let Some(Record { name, .. }) = record {
        return match &config.me {
            Some(me) if me != name => {
                Err(NodeError::OtherName { name: name.clone(), me: me.clone() })
            }
            _ if !listed(name) => Err(NodeError::NotListed { name: name.clone() }),
            _ => Ok(name.clone()),
        };
    }
    match &config.me {
        Some(me) => Ok(me.clone()),
        None => only_one(&config.peers, is_here),
    }
}

fn check(peers: &[String]) -> Result<(), NodeError> {
    let wrong = |what, found: String, remedy| Err(NodeError::Peers { what, found, remedy });
    for peer in peers {
        let port = peer.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
        if peer.len() > PEER_NAME_BYTES_MAX {
            return wrong("the peer", peer.clone(), "a name of 80 bytes at most, with its port");
        }
        if port.is_none_or(|port| port == 0) {
            let remedy = "HOST:PORT, such as host1:7000, where the other machines reach it";
            return wrong("the peer", peer.clone(), remedy);
        }
    }
    let distinct: BTreeSet<_> = peers.iter().collect();
    if distinct.len() != peers.len() {
        return wrong("the list of peers", peers.join(" "), "each machine once");
    }
    if peers.len() > PEERS_MAX {
        let remedy = "32 machines at most: all that a new machine needs is some that it can ask";
        return wrong("a list of so many peers", peers.len().to_string(), remedy);
    }
    Ok(())
}

/// The one peer that is here. If none is, and what one stands for is not known, that may be known later.
fn only_one(
    peers: &[String],
    is_here: impl Fn(&str) -> io::Result<bool>,
) -> Result<String, NodeError> {
    let (mut here, mut unknown) = (Vec::new(), None);
    for peer in peers {
        match is_here(peer) {
            Ok(true) => here.push(peer),
            Ok(false) => {}
            Err(source) => unknown = unknown.or(Some((peer.clone(), source))),
        }
    }
    match (&here[..], unknown) {
        ([me], _) => Ok((*me).clone()),
        ([], Some((name, source))) => Err(NodeError::Unresolved { name, source }),
        ([], None) => Err(NodeError::WhoAmI { why: "none of them is an address of it".to_owned() }),
        _ => {
            let here: Vec<&str> = here.into_iter().map(String::as_str).collect();
            Err(NodeError::WhoAmI { why: format!("{} are all addresses of it", here.join(", ")) })
        }
    }
}

/// True for an address of this machine: only those can be bound.
fn is_here(peer: &str) -> io::Result<bool> {
    let addresses = peer.to_socket_addrs()?;
    let bound = |address: SocketAddr| UdpSocket::bind(SocketAddr::new(address.ip(), 0)).is_ok();
    Ok(addresses.into_iter().any(bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_one_peer_that_is_here_is_this_machine() {
        let peers = list(&["127.0.0.1:7000", "192.0.2.1:7000", "nowhere.invalid:7000"]);
        assert_eq!(only_one(&peers, is_here).unwrap(), "127.0.0.1:7000");
        let unknown = only_one(&peers[1..], is_here).unwrap_err();
        assert!(unknown.to_string().contains("nowhere.invalid:7000"), "{unknown}");
        assert_eq!(unknown.code(), crate::exit::CANNOT_START, "it may be known later");
        let none = only_one(&peers[1..2], is_here).unwrap_err().to_string();
        assert!(none.contains("none of them") && none.contains("--me"), "{none}");
        let both = list(&["127.0.0.1:7000", "127.0.0.1:7001"]);
        let several = only_one(&both, is_here).unwrap_err().to_string();
        assert!(several.contains("127.0.0.1:7000, 127.0.0.1:7001"), "{several}");
    }

    #[test]
    fn lists_that_cannot_be_meant_are_refused() {
        for (peers, says) in [
            (list(&["host1"]), "HOST:PORT"),
            (list(&["host1:0"]), "HOST:PORT"),
            (list(&[":7000"]), "HOST:PORT"),
            (list(&["host1:port"]), "HOST:PORT"),
            (list(&["a:1", "b:1", "a:1"]), "each machine once"),
            ((0..33).map(|n| format!("h{n}:1")).collect(), "32 machines"),
        ] {
            let error = check(&peers).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(error.code(), crate::exit::USAGE);
        }
    }

    #[test]
    fn a_directory_missing_from_the_list_of_peers_is_refused_with_the_remedy() {
        let record = Record { name: "b:1".to_owned(), ..Record::default() };
        let config = |peers: &[&str], me: Option<&str>| Config {
            peers: list(peers),
            me: me.map(str::to_owned),
            ..Config::default()
        };
        let of = |config: &Config| found_out(config, Some(&record));
        assert_eq!(of(&config(&["a:1", "b:1"], None)).unwrap(), "b:1");
        assert_eq!(
            of(&config(&["d:1", "a:1", "b:1"], Some("b:1"))).unwrap(),
            "b:1",
            "it has grown"
        );
        let gone = of(&config(&["a:1", "c:1"], None)).unwrap_err().to_string();
        assert!(gone.contains("larder remove") && gone.contains("b:1"), "{gone}");
        let other = of(&config(&["a:1", "b:1"], Some("a:1"))).unwrap_err().to_string();
        assert!(other.contains("a machine keeps its name"), "{other}");
        let none = of(&config(&["a:1"], Some("b:1"))).unwrap_err().to_string();
        assert!(none.contains("none of the peers"), "{none}");
    }
}
