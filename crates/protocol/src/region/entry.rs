//! Entries: the parts of a key that regions exchange.
//!
//! A key has a null register and any number of versions. A bucket without versioning has the register alone. Each is an
//! entry, known by its name, and each is merged by itself: a change touches one entry, however many a key has.
//!
//! # Invariants
//!
//! 1. Stamps and origins of entries have the numbers of their regions, never 0.
//! 2. An entry does not say where its bytes lie, as each region has a place of its own for them.
//! 3. Equal entries have equal prints in every release: prints are compared between regions.

use std::collections::BTreeMap;

use larder_types::codec::encode;
use larder_types::{
    Amendments, BucketId, ETag, HybridClock, Metax, ObjectChecksum, ObjectKey, Origin, PartRef,
    Stamp,
};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// One of a key's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Slot {
    /// The null register: the null version, or its absence.
    Null,
    /// The version of this stamp.
    Version(Stamp),
}

/// The name of an entry among all regions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Name {
    /// The bucket, by the id that its regions agreed on.
    pub bucket: BucketId,
    /// The key.
    pub key: ObjectKey,
    /// One of the key's entries.
    pub slot: Slot,
}

/// The state of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The stamp of its put; once it is purged, of the purge.
    pub at: Stamp,
    /// The op that put it; once it is purged, the op that purged it.
    pub origin: Origin,
    /// Its kind and content.
    pub what: EntryKind,
}

/// The kind of a version, and its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// Content.
    Object(Box<Object>),
    /// A delete marker.
    Marker,
    /// A purge: the version is gone.
    Purged,
}

/// A version with content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// METAX of the put, with the tags that were set last.
    pub metax: Metax,
    /// The parts that it was uploaded in.
    pub parts: Vec<PartRef>,
    /// The appended pieces by their stamps: in this order they follow the bytes of the put.
    pub pieces: BTreeMap<Stamp, Piece>,
    /// Fields that were set since.
    pub amended: Amendments,
}

/// The bytes that one append added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Number of bytes.
    pub len: u64,
    /// Entity tag of these bytes.
    pub etag: ETag,
    /// S3 checksum of these bytes.
    pub checksum: Option<ObjectChecksum>,
    /// The op that appended it.
    pub origin: Origin,
}

/// An entry as a journal or a comparison names it: enough to know whether it is here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Id {
    /// Its name.
    pub name: Name,
    /// [`Entry::at`].
    pub at: Stamp,
    /// [`Entry::origin`].
    pub origin: Origin,
    /// True if it is purged.
    pub is_purged: bool,
    /// Bytes of its content.
    pub bytes: u64,
    /// [`Entry::print`].
    pub print: u128,
}

/// A version that is here, and may be the beginning of another region's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Its stamp.
    pub at: Stamp,
    /// Bytes of its content, above 0.
    pub size: u64,
}

/// The part of an entry that is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Need {
    /// The fields that may be set later.
    Fields,
    /// Its bytes too. Of a version that grew out of the base, if there is one, those behind it will do.
    Bytes(Option<Base>),
}

impl Need {
    /// True if bytes are needed.
    #[must_use]
    pub fn has_bytes(self) -> bool {
        matches!(self, Self::Bytes(_))
    }
}

impl Object {
    /// METAX as clients see it: with the appended pieces.
    #[must_use]
    pub fn shown(&self) -> Metax {
        let mut metax = self.metax.clone();
        for (at, piece) in &self.pieces {
            metax.size = metax.size.saturating_add(piece.len);
            metax.etag = metax.etag.followed_by(&piece.etag);
            metax.clock = metax.clock.max(at.clock);
            metax.checksum = None;
        }
        metax
    }

    /// Bytes of its content.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let pieces = self.pieces.values().map(|piece| piece.len);
        pieces.fold(self.metax.size, u64::saturating_add)
    }
}

impl Entry {
    /// The beginning that it may be of a version with so many bytes.
    #[must_use]
    pub fn base(&self, bytes: u64) -> Option<Base> {
        let EntryKind::Object(object) = &self.what else { return None };
        let (at, size) = (self.at, object.metax.size);
        (size > 0 && size < bytes).then_some(Base { at, size })
    }

    /// True if the version is gone.
    #[must_use]
    pub fn is_purged(&self) -> bool {
        matches!(self.what, EntryKind::Purged)
    }

    /// Bytes of its content.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        if let EntryKind::Object(object) = &self.what { object.bytes() } else { 0 }
    }

    /// Its hash: the same for equal entries, in every region and release.
    #[must_use]
    pub fn print(&self) -> u128 {
        xxh3_128(&encode(self))
    }

    /// The greatest clock in it.
    #[must_use]
    pub fn clock(&self) -> HybridClock {
        let EntryKind::Object(object) = &self.what else { return self.at.clock };
        let last = object.pieces.keys().next_back().map_or(self.at.clock, |last| last.clock);
        last.max(self.at.clock).max(object.amended.clock())
    }

    /// Its id, for journals and comparisons.
    #[must_use]
    pub fn id(&self, name: Name) -> Id {
        let Self { at, origin, .. } = *self;
        let (is_purged, bytes) = (self.is_purged(), self.bytes());
        Id { name, at, origin, is_purged, bytes, print: self.print() }
    }

    /// True if it may be in this slot, and could come from a region.
    #[must_use]
    pub fn is_sound(&self, slot: Slot) -> bool {
        let is_named = match slot {
            Slot::Version(stamp) if self.is_purged() => stamp.is_qualified() && stamp < self.at,
            Slot::Version(stamp) => stamp == self.at,
            Slot::Null => true,
        };
        let is_put_here = match &self.what {
            EntryKind::Object(object) => {
                let are_qualified =
                    object.pieces.keys().all(|at| at.is_qualified() && *at > self.at);
                are_qualified && object.metax.stamp() == self.at
            }
            EntryKind::Marker | EntryKind::Purged => true,
        };
        is_named && is_put_here && self.at.is_qualified() && self.origin.region == self.at.region
    }
}

/// The current version of a key, of all its entries: the newest that is not purged, unless it is a delete marker.
pub fn current<'a>(entries: impl Iterator<Item = &'a Entry>) -> Option<&'a Entry> {
    let newest = entries.filter(|entry| !entry.is_purged()).max_by_key(|entry| entry.at);
    newest.filter(|entry| entry.what != EntryKind::Marker)
}
