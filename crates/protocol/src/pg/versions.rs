//! The row of a key's null version: the later op's counts, whatever the order of outcomes. In a store among regions the
//! journal has it too, in the same batch.

use larder_types::{BucketId, ObjectEntry, ObjectKey, OpId, Origin, RegionId, VersionRow, rows};

use super::batch::Batch;
use crate::index::IndexError;
use crate::ledger::Resized;
use crate::region::Entry;
use crate::region::key_rows;

impl Batch<'_> {
    /// Makes a version the key's, unless a later op's is there.
    pub(super) fn put_version(
        &mut self,
        (bucket, key): (BucketId, &ObjectKey),
        version: ObjectEntry,
        now: OpId,
    ) -> Result<(), IndexError> {
        let row = rows::version(bucket, key, rows::UNVERSIONED);
        let mut before = None;
        if let Some(old) = self.changes.get(self.index, &row)? {
            let old = VersionRow::read(&old)?;
            if old.op > version.row.op {
                return self.free_body(&row, bucket, &version.row.body, now);
            }
            self.free_body(&row, bucket, &old.body, now)?;
            before = Some(old.metax.size);
        }
        let after = Some(version.row.metax.size);
        self.resize(&row, Resized { bucket, before, after }, now);
        self.set_version((bucket, key), version, now);
        Ok(())
    }

    /// Removes the key's version, which an op before made.
    pub(super) fn remove_version(
        &mut self,
        bucket: BucketId,
        key: &ObjectKey,
        now: OpId,
    ) -> Result<(), IndexError> {
        let row = rows::version(bucket, key, rows::UNVERSIONED);
        let Some(old) = self.changes.get(self.index, &row)? else { return Ok(()) };
        let old = VersionRow::read(&old)?;
        assert!(old.op < now, "a row is removed by a later op than made it");
        self.free_body(&row, bucket, &old.body, now)?;
        self.resize(&row, Resized { bucket, before: Some(old.metax.size), after: None }, now);
        self.changes.remove(row);
        Ok(())
    }

    /// Sets a key's null version, by the op `now`.
    pub(super) fn set_version(
        &mut self,
        (bucket, key): (BucketId, &ObjectKey),
        version: ObjectEntry,
        now: OpId,
    ) {
        let own = version.put_at.region;
        let mut version = version;
        self.note_size(&version.row.body);
        if own != RegionId::OWN {
            if version.origin.is_none() && version.row.op != now {
                version.origin = Some(Origin { region: own, pg: self.pg, op: now });
            }
            self.record((bucket, key), &key_rows::of_version(own, self.pg, &version), now);
        }
        self.changes.put(rows::version(bucket, key, rows::UNVERSIONED), version.write());
    }

    /// Notes in the journal what an op made of a key.
    pub(super) fn record(
        &mut self,
        (bucket, key): (BucketId, &ObjectKey),
        entry: &Entry,
        now: OpId,
    ) {
        let row = rows::outcome(self.pg, now.seq);
        self.changes.put(row, key_rows::journaled(bucket, key, entry).encode());
    }
}
