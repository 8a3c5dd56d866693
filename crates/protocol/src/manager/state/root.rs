//! Root's keys, which the managers keep from the first rotation on.
//!
//! Before it each proxy has them from its own file. A rotation makes new keys current; those before go on being taken until
//! they are retired, so that clients can be changed one by one.
//!
//! # Invariants
//!
//! 1. Each change makes the generation grow by one, and names the one that it follows: of two at once one is refused.
//! 2. Two pairs that are taken at once have different access keys: a request names its pair by the access key.
//! 3. No secret key is printed, nor told to a server that checks no requests of clients ([`RootRecord::without_secrets`]).

use std::fmt;

use serde::{Deserialize, Serialize};

use super::apply::changed;
use super::command::{Applied, Refusal};
use super::map::Topology;
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

/// Pair that a rotation leaves in force beside the new one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keep {
    /// None: requests signed with the keys before are refused as soon as a proxy hears of the rotation.
    Nothing,
    /// The current one of the record.
    Current,
    /// This one, which proxies have in their files: the managers have no record yet.
    OfFiles(KeyPair),
}

/// Root's keys as all proxies are to take them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootRecord {
    /// Changes so far, at least 1.
    pub generation: u32,
    /// The pair that clients are to sign with.
    pub current: KeyPair,
    /// The pair before, while it is taken too.
    pub previous: Option<KeyPair>,
}

impl RootRecord {
    /// The pairs that are taken.
    pub fn pairs(&self) -> impl Iterator<Item = &KeyPair> {
        std::iter::once(&self.current).chain(&self.previous)
    }

    /// The record for those who check no requests.
    #[must_use]
    pub fn without_secrets(&self) -> Self {
        Self {
            generation: self.generation,
            current: self.current.without_secret(),
            previous: self.previous.as_ref().map(KeyPair::without_secret),
        }
    }
}

impl Topology {
    /// Changes of root's keys so far.
    #[must_use]
    pub fn root_generation(&self) -> u32 {
        self.root.as_ref().map_or(0, |root| root.generation)
    }

    /// Makes a pair the current one, if the keys are still those of generation `after`.
    pub(super) fn rotate_root(&mut self, after: u32, keys: KeyPair, keep: Keep) -> Applied {
        if after != self.root_generation() {
            return Err(Refusal::RootChanged);
        }
        let generation = after.checked_add(1).ok_or(Refusal::TooMany)?;
        let previous = match (keep, &self.root) {
            // At any time: somebody may have the keys who should not.
            (Keep::Nothing, _) => None,
            (_, Some(RootRecord { previous: Some(_), .. })) => return Err(Refusal::RootNotRetired),
            (Keep::Current, Some(root)) => Some(root.current.clone()),
            (Keep::OfFiles(given), None) => Some(given),
            (Keep::Current, None) | (Keep::OfFiles(_), Some(_)) => return Err(Refusal::BadKeys),
        };
        let is_new = |pair: &KeyPair| pair.access_key != keys.access_key;
        let are_new = self.root.iter().flat_map(RootRecord::pairs).chain(&previous).all(is_new);
        if !are_new || !keys.is_sound() || !previous.as_ref().is_none_or(KeyPair::is_sound) {
            return Err(Refusal::BadKeys);
        }
        self.root = Some(RootRecord { generation, current: keys, previous });
        changed(true)
    }

    /// Has the pair before taken no more, if the keys are still those of generation `of`.
    pub(super) fn retire_root(&mut self, of: u32) -> Applied {
        if of != self.root_generation() {
            return Err(Refusal::RootChanged);
        }
        let Some(root) = self.root.as_mut() else { return changed(false) };
        if root.previous.is_none() {
            return changed(false);
        }
        root.generation = of.checked_add(1).ok_or(Refusal::TooMany)?;
        root.previous = None;
        changed(true)
    }
}
