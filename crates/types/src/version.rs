//! Values of rows about versions in buckets that have versioning, or that several regions have (ADR 40).
//!
//! # Invariants
//!
//! 1. A version keeps its stamp for ever, whatever is set on it. A null version that is appended to in a store of several regions is a
//!    new version (ADR 53).
//! 2. A row that says no more than a [`VersionRow`] is written as one: releases that know nothing else read every row of
//!    a bucket without versioning and regions.
//! 3. A row at a stamp is never written as a [`VersionRow`]: such a release refuses it by name.

use serde::{Deserialize, Serialize};

use crate::codec::{self, CodecError, V1, V2};
use crate::ids::OpId;
use crate::metax::{Body, ETag, Metax, ObjectChecksum, PartRef, VersionRow};
use crate::rows::VersionSlot;
use crate::stamp::{Origin, Stamp};
use crate::{HybridClock, PieceRow};

const VERSION: &str = "version row";
const PIECE: &str = "piece row";

/// The content of a row of table `V`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum VersionEntry {
    /// There is an object.
    Object(Box<ObjectEntry>),
    /// The key was deleted here: a version without content.
    Marker(MarkerEntry),
    /// In the slot of unversioned buckets: the null version lies in the row of this stamp.
    NullAt(Stamp),
}

/// A version with content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectEntry {
    /// The version's description and place. Its METAX has the clock of the last append.
    pub row: VersionRow,
    /// Its stamp: that of its put.
    pub put_at: Stamp,
    /// True if it is the key's null version.
    pub is_null: bool,
    /// The op that put it, where that is not the row's: another region put it.
    pub origin: Option<Origin>,
    /// The parts in which it was uploaded, where its body does not say so: another region took it.
    pub parts: Vec<PartRef>,
    /// The fields that were set on it since.
    pub amended: Amendments,
}

/// A delete marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkerEntry {
    /// The op of this store that made the row.
    pub op: OpId,
    /// Its stamp.
    pub at: Stamp,
    /// True if it is the key's null version.
    pub is_null: bool,
    /// The op that made it, if another region did.
    pub origin: Option<Origin>,
}

/// The fields that were set on a version since its put. The later stamp of a field wins, but nothing shortens
/// compliance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amendments {
    /// The time at which its tags were set; `None`: with the put.
    pub tags_at: Option<Stamp>,
    /// Legal hold, and when it was set.
    pub legal_hold: Option<(bool, Stamp)>,
    /// Milliseconds since 1970 until which governance keeps it, 0 for none, and when that was set.
    pub governance: Option<(u64, Stamp)>,
    /// Milliseconds since 1970 until which compliance keeps it: only grows.
    pub compliance_until_ms: u64,
}

/// A version that was purged: a row of table `T`, in the slot in which the version was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// The op of this store that made the row.
    pub op: OpId,
    /// The time at which it was purged. Of a key's null version every one up to this stamp is gone.
    pub at: Stamp,
    /// The op that purged it, if another region did.
    pub origin: Option<Origin>,
}

/// The content of a row of table `W`: a piece that several regions are to have in the same place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceEntry {
    /// Where it begins and lies, and the tags of the object that ends with it.
    pub row: PieceRow,
    /// Its stamp: that of its append. Pieces of a version stand in the order of their stamps.
    pub at: Stamp,
    /// Entity tag of its bytes.
    pub etag: ETag,
    /// S3 checksum of its bytes.
    pub checksum: Option<ObjectChecksum>,
    /// The op that appended it, if another region did.
    pub origin: Option<Origin>,
}

impl Amendments {
    /// The greatest clock in it.
    #[must_use]
    pub fn clock(&self) -> HybridClock {
        let Self { tags_at, legal_hold, governance, .. } = *self;
        let stamps = [tags_at, legal_hold.map(|(_, at)| at), governance.map(|(_, at)| at)];
        let clocks = stamps.into_iter().flatten().map(|stamp| stamp.clock);
        clocks.max().unwrap_or_default()
    }
}

impl Metax {
    /// Returns the stamp of its put, or of the last append to it.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp { clock: self.clock, region: self.region }
    }
}

impl VersionRow {
    /// Reads the content and place in the row of a key's null version in a bucket without versioning.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn read(bytes: &[u8]) -> Result<Self, CodecError> {
        if bytes.first() == Some(&V1) {
            return codec::decode(VERSION, bytes);
        }
        ObjectEntry::read(bytes).map(|entry| entry.row)
    }
}

impl ObjectEntry {
    /// Returns the entry of a row without more: the null version.
    #[must_use]
    pub fn of_row(row: VersionRow) -> Self {
        let (put_at, amended) = (row.metax.stamp(), Amendments::default());
        Self { row, put_at, is_null: true, origin: None, parts: Vec::new(), amended }
    }

    /// Reads the row of a key's null version in a bucket without versioning.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn read(bytes: &[u8]) -> Result<Self, CodecError> {
        match VersionEntry::decode(VersionSlot::Unversioned, bytes)? {
            VersionEntry::Object(object) => Ok(*object),
            VersionEntry::NullAt(_) | VersionEntry::Marker(_) => {
                let reason = "it says where another version is: use a newer release".to_owned();
                Err(CodecError::Damaged { what: VERSION, reason })
            }
        }
    }

    /// The value of its row, that of a key's null version in a bucket without versioning.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn write(self) -> Vec<u8> {
        VersionEntry::Object(Box::new(self)).encode(VersionSlot::Unversioned)
    }

    /// The parts in which it was uploaded.
    #[must_use]
    pub fn parts(&self) -> &[PartRef] {
        if let Body::Parts { parts, .. } = &self.row.body { parts } else { &self.parts }
    }

    /// Returns true if a [`VersionRow`] says all of it.
    fn is_plain(&self) -> bool {
        let Self { row, put_at, is_null, origin, parts, amended } = self;
        let is_put = *put_at == row.metax.stamp() && *is_null && origin.is_none();
        is_put && parts.is_empty() && *amended == Amendments::default()
    }
}

impl VersionEntry {
    /// The value of a row in this slot.
    ///
    /// # Panics
    /// If it does not belong there.
    #[must_use]
    pub fn encode(&self, slot: VersionSlot) -> Vec<u8> {
        assert!(self.belongs_in(slot), "a version lies in its own slot: {slot:?}");
        match self {
            Self::Object(object) if slot == VersionSlot::Unversioned && object.is_plain() => {
                codec::encode(&object.row)
            }
            entry => codec::encode_as(V2, entry),
        }
    }

    /// Reads the value of a row in this slot.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn decode(slot: VersionSlot, bytes: &[u8]) -> Result<Self, CodecError> {
        let entry = if bytes.first() == Some(&V1) {
            let row = codec::decode::<VersionRow>(VERSION, bytes)?;
            Self::Object(Box::new(ObjectEntry::of_row(row)))
        } else {
            codec::decode_as(VERSION, V2, bytes)?
        };
        let misplaced = || CodecError::Damaged {
            what: VERSION,
            reason: format!("it does not belong in {slot:?}"),
        };
        let is_in_place = entry.belongs_in(slot) && (slot.is_unversioned() || bytes[0] != V1);
        if is_in_place { Ok(entry) } else { Err(misplaced()) }
    }

    fn belongs_in(&self, slot: VersionSlot) -> bool {
        match (self, slot) {
            (Self::Object(object), VersionSlot::At(stamp)) => object.put_at == stamp,
            (Self::Marker(marker), VersionSlot::At(stamp)) => marker.at == stamp,
            (Self::Object(object), VersionSlot::Unversioned) => object.is_null,
            (Self::NullAt(stamp), VersionSlot::Unversioned) => stamp.clock > HybridClock(0),
            (Self::NullAt(_), VersionSlot::At(_)) | (Self::Marker(_), VersionSlot::Unversioned) => {
                false
            }
        }
    }
}

impl PieceEntry {
    /// The value of its row.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        codec::encode_as(V2, self)
    }

    /// Reads what [`PieceEntry::encode`] wrote. A [`PieceRow`] is another value: it has no stamp.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        codec::decode_as(PIECE, V2, bytes)
    }

    /// The piece that a version becomes which had none.
    #[must_use]
    pub fn first(version: ObjectEntry) -> Self {
        let ObjectEntry { row, put_at: at, origin, .. } = version;
        let (etag, checksum) = (row.metax.etag.clone(), row.metax.checksum.clone());
        Self { row: PieceRow::first(row), at, etag, checksum, origin }
    }
}

impl PieceRow {
    /// Reads the content and place of a piece from a row of table `W`, of either version.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn read(bytes: &[u8]) -> Result<Self, CodecError> {
        if bytes.first() == Some(&V1) {
            return codec::decode(PIECE, bytes);
        }
        PieceEntry::decode(bytes).map(|entry| entry.row)
    }

    /// Changes the body in a row of table `W`, and keeps the rest and the version in which it was written. Returns `None` if `change`
    /// changes nothing.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn rewrite(
        bytes: &[u8],
        change: impl FnOnce(&mut Body) -> bool,
    ) -> Result<Option<Vec<u8>>, CodecError> {
        if bytes.first() == Some(&V1) {
            let mut row: Self = codec::decode(PIECE, bytes)?;
            return Ok(change(&mut row.body).then(|| codec::encode(&row)));
        }
        let mut entry = PieceEntry::decode(bytes)?;
        Ok(change(&mut entry.row.body).then(|| entry.encode()))
    }
}
