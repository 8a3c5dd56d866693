//! The list of regions, as one of them knows it.
//!
//! # Invariants
//!
//! 1. A number names one key for ever: region 1 alone gives numbers, counting up, and gives none again after a removal.
//! 2. The lists of two regions are joined: numbers by union, and a removal wins. A region takes nothing of a list that
//!    gives a number another key.
//! 3. A pause, a rate and compression are this region's own: no other region learns them.

use std::collections::{BTreeMap, BTreeSet};

use larder_identity::TokenId;
use larder_identity::session::SessionSecret;
use larder_types::RegionId;
use larder_types::codec::{self, CodecError, V2, V3};
use serde::{Deserialize, Serialize};

use crate::error::{JoinRefused, LinkError, Usage};
use crate::identity::Fingerprint;
use crate::limits::{NUMBERS_MAX, REGIONS_MAX, TOKENS_MAX};
use crate::name::{Address, RegionName};
use crate::token::{JoinToken, TokenRecord};

const WHAT: &str = "list of regions";

/// The number of the region that gives the others theirs.
const FOUNDER: RegionId = RegionId(1);

/// The list of regions. Stored: `docs/formats/region.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// This region.
    pub own: OwnRegion,
    /// The others in the order of their numbers, removed ones too.
    pub peers: Vec<Peer>,
    /// Tokens that region 1 has given.
    tokens: Vec<TokenRecord>,
    /// Most MiB a second that are pulled from a region, where an operator has set that. Stored beside the rest.
    #[serde(skip)]
    rates: BTreeMap<RegionId, u32>,
    /// Regions whose answers to fetches are to be compressed. Stored beside the rest, too.
    #[serde(skip)]
    compressed: BTreeSet<RegionId>,
}

/// This region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnRegion {
    /// Its number.
    pub number: RegionId,
    /// Its name.
    pub name: RegionName,
    /// Address that it listens on.
    pub listen: String,
    /// Address that others reach it at.
    pub advertise: Address,
    /// Its key.
    pub fingerprint: Fingerprint,
    /// The others have removed it.
    pub removed: bool,
}

/// Another region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its number.
    pub number: RegionId,
    /// Its name.
    pub name: RegionName,
    /// Address that it is reached at.
    pub address: Address,
    /// Its key.
    pub fingerprint: Fingerprint,
    /// This region pulls nothing from it.
    pub paused: bool,
    /// It was removed.
    pub removed: bool,
}

/// A region in the list that regions exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Its number.
    pub number: RegionId,
    /// Its name.
    pub name: RegionName,
    /// Address that it is reached at.
    pub address: Address,
    /// Its key.
    pub fingerprint: Fingerprint,
    /// It was removed.
    pub removed: bool,
}

/// A store that asks to join, and its proof.
#[derive(Debug)]
pub(crate) struct Joiner<'a> {
    pub(crate) token: TokenId,
    pub(crate) proof: &'a [u8; 32],
    pub(crate) session: &'a SessionSecret,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) name: &'a RegionName,
    pub(crate) address: &'a Address,
}

impl Members {
    /// The list of a new first region.
    #[must_use]
    pub(crate) fn first(own: OwnRegion) -> Self {
        assert_eq!(own.number, FOUNDER, "the first region gives the others their numbers");
        Self::stored_as(own, Vec::new(), Vec::new())
    }

    /// The list of a region that has just joined.
    pub(crate) fn joined(own: OwnRegion, known: &[Known]) -> Result<Self, LinkError> {
        let mut members = Self::stored_as(own, Vec::new(), Vec::new());
        members.merge(known)?;
        Ok(members)
    }

    /// The list as files of the first release have it.
    pub(crate) fn stored_as(own: OwnRegion, peers: Vec<Peer>, tokens: Vec<TokenRecord>) -> Self {
        Self { own, peers, tokens, rates: BTreeMap::new(), compressed: BTreeSet::new() }
    }

    /// The bytes of a file, in the earliest version that has all that is set: earlier releases read that.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        match (self.rates.is_empty(), self.compressed.is_empty()) {
            (true, true) => codec::encode(self),
            (false, true) => codec::encode_as(V2, &(&self.rates, self)),
            (_, false) => codec::encode_as(V3, &(&self.rates, &self.compressed, self)),
        }
    }

    /// Reads the bytes of a file.
    pub(crate) fn decoded(bytes: &[u8]) -> Result<Self, CodecError> {
        match bytes.first() {
            Some(&V3) => {
                let (rates, compressed, members): (_, _, Self) = codec::decode_as(WHAT, V3, bytes)?;
                Ok(Self { rates, compressed, ..members })
            }
            Some(&V2) => {
                let (rates, members): (_, Self) = codec::decode_as(WHAT, V2, bytes)?;
                Ok(Self { rates, ..members })
            }
            _ => codec::decode(WHAT, bytes),
        }
    }

    /// The other regions that are not removed, paused ones too.
    pub fn live(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(|peer| !peer.removed)
    }

    /// Another region by its number, if it is not removed.
    #[must_use]
    pub fn peer(&self, number: RegionId) -> Option<&Peer> {
        self.live().find(|peer| peer.number == number)
    }

    /// True if the list has another region of this number, removed or not.
    #[must_use]
    pub fn has_number(&self, number: RegionId) -> bool {
        self.peers.iter().any(|peer| peer.number == number)
    }

    /// Another region by its key, also one that was removed.
    pub(crate) fn with_key(&self, fingerprint: &Fingerprint) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.fingerprint == *fingerprint)
    }

    /// Stops pulling from a region, or resumes it.
    ///
    /// # Errors
    /// [`Usage::NoPeer`].
    pub fn pause(&mut self, name: &str, paused: bool) -> Result<(), LinkError> {
        self.named(name)?.paused = paused;
        Ok(())
    }

    /// Sets how many MiB a second are pulled from a region, at most; `None`: as many as from any.
    ///
    /// # Errors
    /// [`Usage::NoPeer`].
    pub fn set_rate(&mut self, name: &str, mib_per_s: Option<u32>) -> Result<(), LinkError> {
        let number = self.named(name)?.number;
        let _before = match mib_per_s {
            Some(mib_per_s) => self.rates.insert(number, mib_per_s),
            None => self.rates.remove(&number),
        };
        Ok(())
    }

    /// Returns the MiB a second that are pulled from a region on average, at most, if an operator has set that.
    #[must_use]
    pub fn rate(&self, number: RegionId) -> Option<u32> {
        self.rates.get(&number).copied()
    }

    /// Has a region compress its answers to fetches, or leave them as they are.
    ///
    /// # Errors
    /// [`Usage::NoPeer`].
    pub fn set_compressed(&mut self, name: &str, compressed: bool) -> Result<(), LinkError> {
        let number = self.named(name)?.number;
        let _was_other = match compressed {
            true => self.compressed.insert(number),
            false => self.compressed.remove(&number),
        };
        Ok(())
    }

    /// True if a region is to compress its answers to fetches.
    #[must_use]
    pub fn is_compressed(&self, number: RegionId) -> bool {
        self.compressed.contains(&number)
    }

    /// True if as much is pulled from the same regions.
    #[must_use]
    pub fn pulls_as(&self, other: &Self) -> bool {
        (&self.own, &self.peers, &self.rates) == (&other.own, &other.peers, &other.rates)
    }

    /// Forgets what was set for a region that is removed.
    fn forget_settings(&mut self, number: RegionId) {
        self.rates.remove(&number);
        self.compressed.remove(&number);
    }

    /// Removes a region. This one tells the others.
    ///
    /// # Errors
    /// [`Usage::NoPeer`].
    pub fn remove(&mut self, name: &str) -> Result<(), LinkError> {
        let peer = self.named(name)?;
        peer.removed = true;
        let number = peer.number;
        self.forget_settings(number);
        Ok(())
    }

    /// Notes that the others have removed this region.
    pub(crate) fn note_own_removal(&mut self) -> Result<(), LinkError> {
        self.own.removed = true;
        Ok(())
    }

    fn named(&mut self, name: &str) -> Result<&mut Peer, LinkError> {
        let known: Vec<_> = self.live().map(|peer| peer.name.to_string()).collect();
        let known = match known.len() {
            0 => "is none".to_owned(),
            1 => format!("is {}", known[0]),
            _ => format!("are {}", known.join(", ")),
        };
        let mut live = self.peers.iter_mut().filter(|peer| !peer.removed);
        let found = live.find(|peer| peer.name.as_str() == name);
        found.ok_or_else(|| Usage::NoPeer { name: name.to_owned(), known }.into())
    }

    /// The list that this region sends to others: itself, and all that it knows.
    #[must_use]
    pub fn exchanged(&self) -> Vec<Known> {
        let OwnRegion { number, fingerprint, removed, .. } = self.own;
        let (name, address) = (self.own.name.clone(), self.own.advertise.clone());
        let own = Known { number, name, address, fingerprint, removed };
        std::iter::once(own).chain(self.peers.iter().map(Known::from)).collect()
    }

    /// Joins in another region's list: all of it if it fits, else nothing.
    ///
    /// # Errors
    /// [`LinkError::Unsound`] if it contradicts what is known, or there are more regions than may be.
    pub(crate) fn merge(&mut self, received: &[Known]) -> Result<(), LinkError> {
        let mut joined = self.clone();
        for known in received {
            joined.learn(known)?;
        }
        joined.peers.sort_by_key(|peer| peer.number);
        joined.check().map_err(LinkError::Unsound)?;
        *self = joined;
        Ok(())
    }

    fn learn(&mut self, known: &Known) -> Result<(), LinkError> {
        let other_key = || {
            let why = format!("region {} has the key {}", known.number, known.fingerprint);
            LinkError::Unsound(why)
        };
        if known.number == self.own.number {
            self.own.removed |= known.removed;
            return if known.fingerprint == self.own.fingerprint {
                Ok(())
            } else {
                Err(other_key())
            };
        }
        match self.peers.iter_mut().find(|peer| peer.number == known.number) {
            Some(peer) if peer.fingerprint != known.fingerprint => return Err(other_key()),
            Some(peer) => {
                peer.removed |= known.removed;
                if peer.removed {
                    self.forget_settings(known.number);
                }
            }
            None => self.peers.push(known.into()),
        }
        Ok(())
    }

    /// Checks the invariants.
    pub(crate) fn check(&self) -> Result<(), String> {
        let numbers: Vec<_> = self.peers.iter().map(|peer| peer.number).collect();
        let is_number = |number: &RegionId| (1..=NUMBERS_MAX).contains(&number.0);
        if !numbers.iter().chain([&self.own.number]).all(is_number) {
            return Err("a region has a number that none has".into());
        }
        if !numbers.is_sorted_by(|a, b| a < b) || numbers.contains(&self.own.number) {
            return Err("two regions have one number".into());
        }
        let mut names: Vec<_> = self.live().map(|peer| &peer.name).collect();
        names.sort();
        if !names.is_sorted_by(|a, b| a < b) || names.contains(&&self.own.name) {
            return Err("two regions have one name".into());
        }
        let keys = || self.peers.iter().map(|peer| peer.fingerprint).chain([self.own.fingerprint]);
        let mut sorted: Vec<_> = keys().collect();
        sorted.sort();
        if !sorted.is_sorted_by(|a, b| a < b) {
            return Err("two regions have one key".into());
        }
        match names.len() < REGIONS_MAX {
            true => Ok(()),
            false => Err(format!("there are more than {REGIONS_MAX} regions")),
        }
    }

    /// Makes a token for another region.
    ///
    /// # Errors
    /// [`Usage`], and if the system gives no randomness.
    pub fn issue(&mut self, now_ms: u64) -> Result<JoinToken, LinkError> {
        if self.own.number != FOUNDER {
            let founder = self.peer(FOUNDER).map(|peer| peer.name.clone());
            return Err(Usage::NotFounder(founder).into());
        }
        if self.live().count() + 1 >= REGIONS_MAX {
            return Err(Usage::Full.into());
        }
        self.next_number(RegionId::OWN).ok_or(Usage::NoNumber)?;
        self.tokens.retain(|token| !token.is_expired(now_ms));
        if self.tokens.iter().filter(|token| token.used_by().is_none()).count() >= TOKENS_MAX {
            return Err(Usage::TooManyTokens.into());
        }
        let (key, address) = (self.own.fingerprint, self.own.advertise.clone());
        let (record, token) = TokenRecord::issue(now_ms, key, address)?;
        self.tokens.push(record);
        Ok(token)
    }

    /// The next number that the first region gives: above all that it knows, and above the last that it has `met`.
    fn next_number(&self, met: RegionId) -> Option<RegionId> {
        let known = self.peers.last().map_or(self.own.number, |peer| peer.number);
        let last = known.max(self.own.number).max(met);
        (last.0 < NUMBERS_MAX).then(|| RegionId(last.0 + 1))
    }

    /// Admits a store that has a token, or whose answer was lost. No number up to the last that was `met` is given.
    pub(crate) fn admit(
        &mut self,
        now_ms: u64,
        joiner: &Joiner<'_>,
        met: RegionId,
    ) -> Result<RegionId, JoinRefused> {
        let Some(token) = self.tokens.iter().position(|token| token.id() == joiner.token) else {
            return Err(JoinRefused::TokenUnknown);
        };
        let record = &self.tokens[token];
        if !record.proves(joiner.session, &joiner.fingerprint, joiner.proof) {
            return Err(JoinRefused::TokenUnknown);
        }
        if let Some(used_by) = record.used_by() {
            let before = self.with_key(&joiner.fingerprint).filter(|peer| !peer.removed);
            let before = before.filter(|_| used_by == joiner.fingerprint);
            return before.map(|peer| peer.number).ok_or(JoinRefused::TokenUsed);
        }
        if record.is_expired(now_ms) {
            return Err(JoinRefused::TokenExpired);
        }
        if self.with_key(&joiner.fingerprint).is_some()
            || joiner.fingerprint == self.own.fingerprint
        {
            return Err(JoinRefused::KeyKnown);
        }
        if self.live().any(|peer| peer.name == *joiner.name) || self.own.name == *joiner.name {
            return Err(JoinRefused::NameTaken);
        }
        if self.live().count() + 1 >= REGIONS_MAX {
            return Err(JoinRefused::Full);
        }
        let number = self.next_number(met).ok_or(JoinRefused::Full)?;
        self.tokens[token].use_by(joiner.fingerprint);
        let (name, address) = (joiner.name.clone(), joiner.address.clone());
        let fingerprint = joiner.fingerprint;
        let (paused, removed) = (false, false);
        self.peers.push(Peer { number, name, address, fingerprint, paused, removed });
        assert_eq!(self.check(), Ok(()), "who was let in fits");
        Ok(number)
    }
}

impl From<&Known> for Peer {
    fn from(known: &Known) -> Self {
        let Known { number, name, address, fingerprint, removed } = known.clone();
        Self { number, name, address, fingerprint, paused: false, removed }
    }
}

impl From<&Peer> for Known {
    fn from(peer: &Peer) -> Self {
        let Peer { number, name, address, fingerprint, removed, .. } = peer.clone();
        Self { number, name, address, fingerprint, removed }
    }
}

#[cfg(test)]
#[path = "members/tests.rs"]
mod tests;
