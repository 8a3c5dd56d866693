//! The identity of a server: cluster, server id and roles, as its certificate says.
//!
//! # Invariants
//!
//! 1. A subject is read only from a certificate whose chain was verified.
//! 2. It is in the certificate's DNS names, so that verifying a name verifies the server id. Nobody resolves these names:
//!    a server may move to another address, and its certificate stays true.

use std::fmt;

use larder_types::{ClusterId, ServerId};
use rustls::pki_types::{CertificateDer, ServerName};
use serde::{Deserialize, Serialize};

use crate::error::IdentityError;

/// A task that a server has in its cluster, or among the workers of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Owns the topology map, and signs certificates.
    Manager,
    /// Keeps METAX.
    Meta,
    /// Keeps blocks.
    Data,
    /// Serves clients.
    Proxy,
    /// Packs objects, beside other workers of the same bucket. No server of a cluster has this role.
    Worker,
}

impl Role {
    /// All roles. A role's index here is its number on the wire; new roles are appended.
    pub const ALL: [Self; 5] = [Self::Manager, Self::Meta, Self::Data, Self::Proxy, Self::Worker];
    /// The roles of a cluster's servers.
    pub const OF_CLUSTERS: [Self; 4] = [Self::Manager, Self::Meta, Self::Data, Self::Proxy];

    /// Its name, as certificates have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Manager => "manager",
            Self::Meta => "meta",
            Self::Data => "data",
            Self::Proxy => "proxy",
            Self::Worker => "worker",
        }
    }

    /// Its number on the wire.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The role with this number on the wire; `None` for one of a later release.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of roles.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Roles(u8);

impl Roles {
    /// The set of these roles.
    #[must_use]
    pub fn of(roles: &[Role]) -> Self {
        Self(roles.iter().fold(0, |set, role| set | 1 << role.number()))
    }

    /// All of a cluster.
    #[must_use]
    pub fn all() -> Self {
        Self::of(&Role::OF_CLUSTERS)
    }

    /// Returns true if the set has this role.
    #[must_use]
    pub fn has(self, role: Role) -> bool {
        self.0 & 1 << role.number() != 0
    }

    /// Returns true if the sets have a role in common.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The roles of the set.
    pub fn iter(self) -> impl Iterator<Item = Role> {
        Role::ALL.into_iter().filter(move |role| self.has(*role))
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, role) in self.iter().enumerate() {
            write!(f, "{}{role}", if n > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Roles({self})")
    }
}

/// The server that a certificate names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject {
    /// Cluster.
    pub cluster: ClusterId,
    /// Server.
    pub server: ServerId,
    /// The roles that it may take.
    pub roles: Roles,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {} ({}) of cluster {:016x}", self.server, self.roles, self.cluster.0)
    }
}

impl Subject {
    /// The DNS names of its certificate.
    pub(crate) fn names(&self) -> Vec<String> {
        let server = format!("server-{}", self.server);
        let roles = self.roles.iter().map(|role| format!("role-{role}"));
        std::iter::once(server).chain(roles).map(|first| name(&first, self.cluster)).collect()
    }

    /// Reads the subject of a certificate that was verified.
    ///
    /// # Errors
    /// If it names no server, two servers or clusters, or anything else than a server and its roles.
    pub fn read(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let unusable = |why: &dyn fmt::Display| IdentityError::unusable("certificate", why);
        let parsed =
            webpki::EndEntityCert::try_from(certificate).map_err(|error| unusable(&error))?;
        let (mut cluster, mut server, mut roles) = (None, None, Roles::default());
        for name in parsed.valid_dns_names() {
            let (first, of) = split(name).ok_or_else(|| unusable(&"a name is none of ours"))?;
            if *cluster.get_or_insert(of) != of {
                return Err(unusable(&"it names two clusters"));
            }
            if let Some(id) = first.strip_prefix("server-").and_then(|id| id.parse().ok()) {
                if server.replace(ServerId(id)).is_some() {
                    return Err(unusable(&"it names two servers"));
                }
            } else if let Some(role) = first.strip_prefix("role-") {
                // A role of a later release gives no right here.
                let known = Role::ALL.into_iter().find(|known| known.name() == role);
                roles.0 |= known.map_or(0, |role| 1 << role.number());
            }
        }
        match (cluster, server) {
            (Some(cluster), Some(server)) => Ok(Self { cluster, server, roles }),
            _ => Err(unusable(&"it names no server")),
        }
    }
}

/// The name that a server's certificate must have.
#[must_use]
pub fn server_name(cluster: ClusterId, server: ServerId) -> ServerName<'static> {
    let name = dns_name(cluster, server);
    ServerName::try_from(name).expect("digits and letters make a DNS name")
}

/// The same as text.
pub(crate) fn dns_name(cluster: ClusterId, server: ServerId) -> String {
    name(&format!("server-{server}"), cluster)
}

fn name(first: &str, cluster: ClusterId) -> String {
    format!("{first}.{:016x}.{SUFFIX}", cluster.0)
}

const SUFFIX: &str = "larder.internal";

fn split(name: &str) -> Option<(&str, ClusterId)> {
    let (first, cluster) = name.strip_suffix(SUFFIX)?.strip_suffix('.')?.split_once('.')?;
    let digits = cluster.len() == 16 && cluster.bytes().all(|b| b.is_ascii_hexdigit());
    let cluster = digits.then(|| u64::from_str_radix(cluster, 16).ok())??;
    Some((first, ClusterId(cluster)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_numbered_by_their_place() {
        for role in Role::ALL {
            assert_eq!(Role::from_number(role.number()), Some(role));
        }
        assert_eq!(Role::from_number(5), None);
    }

    #[test]
    fn a_server_with_all_roles_of_a_cluster_is_no_worker() {
        assert!(!Roles::all().has(Role::Worker));
        assert!(Role::OF_CLUSTERS.into_iter().all(|role| Roles::all().has(role)));
    }

    #[test]
    fn names_read_back_and_others_are_refused() {
        let cluster = ClusterId(0xc0ff_ee00_0000_0001);
        assert_eq!(split(&name("server-7", cluster)), Some(("server-7", cluster)));
        for other in ["server-7.larder.internal", "server-7.c0ffee.larder.internal", "x.example"] {
            assert_eq!(split(other), None, "{other}");
        }
    }
}
