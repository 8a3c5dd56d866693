//! Rotation of root's keys.
//!
//! A rotation makes new keys current. The former ones stay valid until they are retired, so that clients can be changed
//! one by one.
//!
//! # Invariants
//!
//! 1. Each change makes the generation grow by one, and names the one that it follows: of two concurrent ones one is refused.
//! 2. Two pairs that are valid at once have different access keys: a request names its pair by the access key.

use super::command::{Applied, Refusal, changed};
use super::map::Topology;
use super::root::{Keep, KeyPair, RootRecord};

impl Topology {
    /// The number of changes of root's keys so far.
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
            // Allowed at any time: the keys may have leaked.
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

    /// Ends the validity of the former pair, if the keys are still those of generation `of`.
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
