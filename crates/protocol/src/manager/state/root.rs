//! Root's keys, which the map has from the first rotation ([`super::rotation`]) on. Before it each proxy has them from
//! its own file.
//!
//! No secret key is printed, nor sent to a server that checks no requests of clients ([`RootRecord::without_secrets`]).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::limits::{ACCESS_KEY_BYTES, SECRET_KEY_BYTES};

/// An access key and its secret key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyPair {
    /// Letters, digits or `_`, `-`, `.`; [`ACCESS_KEY_BYTES`] of them.
    pub access_key: String,
    /// [`SECRET_KEY_BYTES`], without control characters. Never printed.
    pub secret_key: String,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

impl KeyPair {
    /// True if requests can be signed with it.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        ACCESS_KEY_BYTES.contains(&self.access_key.len())
            && self.access_key.bytes().all(is_plain)
            && SECRET_KEY_BYTES.contains(&self.secret_key.len())
            && !self.secret_key.contains(char::is_control)
    }

    fn without_secret(&self) -> Self {
        Self { access_key: self.access_key.clone(), secret_key: String::new() }
    }
}

/// The pair that a rotation leaves valid beside the new one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keep {
    /// None: a proxy refuses requests signed with the former keys as soon as it has the map of the rotation.
    Nothing,
    /// The pair that was current in the map.
    Current,
    /// This pair, which proxies have in their files: the map has none yet.
    OfFiles(KeyPair),
}

/// Root's keys, by which all proxies check requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootRecord {
    /// The number of changes so far, at least 1.
    pub generation: u32,
    /// The pair that clients are to sign with.
    pub current: KeyPair,
    /// The former pair, until it is retired.
    pub previous: Option<KeyPair>,
}

impl RootRecord {
    /// The valid pairs.
    pub fn pairs(&self) -> impl Iterator<Item = &KeyPair> {
        std::iter::once(&self.current).chain(&self.previous)
    }

    /// The record for servers that check no requests.
    #[must_use]
    pub fn without_secrets(&self) -> Self {
        Self {
            generation: self.generation,
            current: self.current.without_secret(),
            previous: self.previous.as_ref().map(KeyPair::without_secret),
        }
    }
}
