//! Names and addresses of regions, checked once where they enter.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::{ADDRESS_BYTES_MAX, NAME_BYTES_MAX};

/// A region's name, for people: 1 to 32 of a-z, 0-9 and -.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RegionName(String);

/// Address of a region: `host:port`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address(String);

impl RegionName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Address {
    /// The address as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RegionName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let is_known = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-');
        match (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_known) {
            true => Ok(Self(name)),
            false => Err(format!("a region's name has 1 to {NAME_BYTES_MAX} of a-z, 0-9 and -")),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(address: String) -> Result<Self, String> {
        let (host, port) = split(&address).ok_or("an address is HOST:PORT")?;
        let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if address.len() > ADDRESS_BYTES_MAX || address.bytes().any(|b| !b.is_ascii_graphic()) {
            return Err(format!(
                "an address is HOST:PORT, of at most {ADDRESS_BYTES_MAX} characters"
            ));
        }
        if ip.is_ok_and(|ip| ip.is_unspecified()) {
            return Err(
                "it is no address at which another region reaches this one: name the host".into()
            );
        }
        if port == 0 {
            return Err("the port must be the same at each start: name one above 0".into());
        }
        Ok(Self(address))
    }
}

/// The two parts of an address.
pub(crate) fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let is_host = !host.is_empty() && (!host.contains(':') || host.starts_with('['));
    port.parse().ok().filter(|_| is_host).map(|port| (host, port))
}

impl FromStr for RegionName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        name.to_owned().try_into()
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(address: &str) -> Result<Self, String> {
        address.to_owned().try_into()
    }
}

impl From<RegionName> for String {
    fn from(name: RegionName) -> Self {
        name.0
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.0
    }
}

impl fmt::Display for RegionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_checked_where_they_enter() {
        for name in ["a", "eu-west-1", &"x".repeat(32)] {
            assert!(name.parse::<RegionName>().is_ok(), "{name}");
        }
        for name in ["", "A", "a b", "a.b", &"x".repeat(33)] {
            assert!(name.parse::<RegionName>().is_err(), "{name}");
        }
        for address in ["a:1", "10.0.0.1:7001", "[::1]:7001", "store.example.org:65535"] {
            assert!(address.parse::<Address>().is_ok(), "{address}");
        }
        for address in
            ["", "a", ":7001", "a:0", "a:65536", "0.0.0.0:7001", "[::]:7001", "::1:7", "a b:1"]
        {
            assert!(address.parse::<Address>().is_err(), "{address}");
        }
    }
}
