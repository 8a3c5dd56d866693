//! Entries as a store keeps them: rows of its index.
//!
//! A key's null version has a row of table `V`, and its last purge one of table `T`. Of the two the one with the greater
//! stamp is the entry. A put leaves the tombstone before it alone: it is void, and goes when another purge replaces it or
//! when tombstones are freed.

use larder_types::codec::{CodecError, decode};
use larder_types::{
    Body, BucketId, JournalRow, ObjectEntry, ObjectKey, OpId, Origin, PgId, RegionId, Stamp,
    Tombstone, rows,
};

use super::entry::{Entry, EntryKind, Id, Name, Object, Slot};
use crate::index::{Index, IndexError};

/// A key's null version and tombstone, as its rows have them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyRows {
    /// The row of table `V`.
    pub version: Option<ObjectEntry>,
    /// The row of table `T`.
    pub tombstone: Option<Tombstone>,
}

/// The row of the tombstone of a key's null version.
#[must_use]
pub fn tombstone_row(bucket: BucketId, key: &ObjectKey) -> Vec<u8> {
    rows::tombstone(bucket, key, rows::UNVERSIONED)
}

impl KeyRows {
    /// Reads both rows of a key from an index.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn read(bucket: BucketId, key: &ObjectKey, index: &dyn Index) -> Result<Self, IndexError> {
        let version = index.get(&rows::version(bucket, key, rows::UNVERSIONED))?;
        let tombstone = index.get(&tombstone_row(bucket, key))?;
        Ok(Self::of_values(version.as_deref(), tombstone.as_deref())?)
    }

    /// Decodes the values of the two rows.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn of_values(version: Option<&[u8]>, tombstone: Option<&[u8]>) -> Result<Self, CodecError> {
        let version = version.map(ObjectEntry::read).transpose()?;
        let tombstone = tombstone.map(|value| decode("tombstone", value)).transpose()?;
        Ok(Self { version, tombstone })
    }

    /// The greater stamp of the two, for a store that has this number.
    #[must_use]
    pub fn latest(&self, own: RegionId) -> Option<Stamp> {
        let version = self.version.as_ref().map(|version| version.put_at.qualified_by(own));
        version.max(self.tombstone.map(|tombstone| tombstone.at.qualified_by(own)))
    }

    /// The entry, for a store that has this number; the key is of its PG `pg`.
    #[must_use]
    pub fn entry(&self, own: RegionId, pg: PgId) -> Option<Entry> {
        let version = self.version.as_ref().map(|version| of_version(own, pg, version));
        let tombstone = self.tombstone.map(|tombstone| of_tombstone(own, pg, &tombstone));
        match (version, tombstone) {
            (Some(version), Some(tombstone)) if tombstone.at > version.at => Some(tombstone),
            (version, tombstone) => version.or(tombstone),
        }
    }
}

/// A version, as the entry that other regions get.
#[must_use]
pub fn of_version(own: RegionId, pg: PgId, version: &ObjectEntry) -> Entry {
    let at = version.put_at.qualified_by(own);
    let mut metax = version.row.metax.clone();
    (metax.clock, metax.region) = (at.clock, at.region);
    let parts = match &version.row.body {
        Body::Parts { parts, .. } => parts.clone(),
        _ => version.parts.clone(),
    };
    let object = Object { metax, parts, pieces: Default::default(), amended: version.amended };
    let origin = origin_of(version.origin, at, pg, version.row.op);
    Entry { at, origin, what: EntryKind::Object(Box::new(object)) }
}

/// A tombstone, as the entry that other regions get.
#[must_use]
pub fn of_tombstone(own: RegionId, pg: PgId, tombstone: &Tombstone) -> Entry {
    let at = tombstone.at.qualified_by(own);
    Entry { at, origin: origin_of(tombstone.origin, at, pg, tombstone.op), what: EntryKind::Purged }
}

fn origin_of(reported: Option<Origin>, at: Stamp, pg: PgId, op: OpId) -> Origin {
    reported.unwrap_or(Origin { region: at.region, pg, op })
}

/// The journal's row of an outcome that made an entry.
#[must_use]
pub fn journaled(bucket: BucketId, key: &ObjectKey, entry: &Entry) -> JournalRow {
    let (at, origin) = (entry.at, entry.origin);
    let (is_purged, bytes, print) = (entry.is_purged(), entry.bytes(), entry.print());
    JournalRow { bucket, key: key.clone(), at, origin, is_purged, bytes, print }
}

/// The id of an outcome, for other regions.
#[must_use]
pub fn journal_row_id(row: JournalRow) -> Id {
    let JournalRow { bucket, key, at, origin, is_purged, bytes, print } = row;
    Id { name: Name { bucket, key, slot: Slot::Null }, at, origin, is_purged, bytes, print }
}
