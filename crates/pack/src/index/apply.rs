//! Applies a change to the index: in the same way whether it is new, from the log, or from a
//! footer.
//!
//! # Invariants
//!
//! 1. One batch a change, in which rows of versions and parts change together with those of who has which bytes.
//! 2. Changes that are re-logged ([`Change::Moved`], [`Change::Gone`] and so on) do nothing to
//!    anything later than what they say, and nothing if they come a second time. So a blob may be
//!    left out once other blobs say what is still true of it.

use std::ops::ControlFlow;

use larder_types::codec::{decode, encode};
use larder_types::rows::{self as keys, UNVERSIONED};
use larder_types::{BucketId, HybridClock, Metax, ObjectKey, OpId, UploadId};

use crate::error::PackError;
use crate::format::entry::{Change, Content, Entry};
use crate::format::rows::{self, Applied, Holder, PackedPart, PackedVersion, RetiredRow};
use crate::ids::{BlobId, Run};
use crate::index::Index;
use crate::index::extent_refs::ExtentRefs;
use crate::limits::REMOVED_ROWS_MAX;

/// A version to be.
struct Version<'a> {
    bucket: BucketId,
    key: &'a ObjectKey,
    op: OpId,
    metax: &'a Metax,
    content: Content,
}

impl Index {
    /// Applies a change of the blob `here`; then the index is as far as `applied` says. While it is rebuilt it says
    /// nothing of that: half an index is none.
    pub(crate) fn apply(
        &self,
        here: BlobId,
        entry: &Entry,
        applied: Option<&Applied>,
    ) -> Result<(), PackError> {
        let mut ledger = self.ledger();
        ledger.note(here, entry.seq, entry.clock)?;
        let (op, clock) = (entry.op(here.worker), entry.clock);
        let mut applying = Applying { index: self, ledger, here, op, clock };
        applying.apply(entry)?;
        self.commit(applying.ledger.finish(), applied)
    }
}

/// One change on its way into the index.
struct Applying<'a> {
    index: &'a Index,
    ledger: ExtentRefs<'a>,
    here: BlobId,
    /// The change.
    op: OpId,
    clock: HybridClock,
}

impl Applying<'_> {
    fn apply(&mut self, entry: &Entry) -> Result<(), PackError> {
        let op = self.op;
        match &entry.change {
            Change::BucketMade(record) => {
                self.ledger.batch.put(&rows::bucket(record.id), &encode(record));
                self.index.buckets.write().insert(record.name.clone(), record.clone());
                Ok(())
            }
            Change::BucketRemoved(bucket) | Change::BucketGone { bucket, .. } => {
                self.remove_bucket(*bucket)
            }
            Change::Put { bucket, key, metax, content } => {
                let (bucket, content) = (*bucket, content.clone());
                self.set_version(Version { bucket, key, op, metax, content })
            }
            Change::Moved { bucket, key, op, metax, content } => {
                let (bucket, op, content) = (*bucket, *op, content.clone());
                self.set_version(Version { bucket, key, op, metax, content })
            }
            Change::UploadCompleted { bucket, key, upload, metax, parts } => {
                let content = Content::Parts { upload: *upload, parts: parts.clone() };
                self.set_version(Version { bucket: *bucket, key, op, metax, content })
            }
            Change::Deleted { bucket, key } => self.remove_version(*bucket, key, op),
            Change::Gone { bucket, key, upto, .. } => self.remove_version(*bucket, key, *upto),
            Change::UploadBegun { bucket, row } => {
                let at = keys::upload(*bucket, &row.key, row.upload);
                self.ledger.batch.put(&at, &encode(row));
                Ok(())
            }
            Change::PartPut { bucket, upload, number, metax, place } => {
                let part = PackedPart { op, metax: metax.clone(), place: place.clone() };
                self.set_part(*bucket, *upload, *number, &part)
            }
            Change::PartMoved { bucket, upload, number, op, metax, place } => {
                let part = PackedPart { op: *op, metax: metax.clone(), place: place.clone() };
                self.set_part(*bucket, *upload, *number, &part)
            }
            Change::UploadAborted { bucket, key, upload }
            | Change::UploadGone { bucket, key, upload, .. } => {
                self.ledger.batch.delete(&keys::upload(*bucket, key, *upload));
                self.remove_parts(*bucket, *upload, |_| true)
            }
            Change::Retired { run, .. } => self.retire(run),
        }
    }

    /// A key has this version. Of an upload that became it, only the parts that it names stay.
    fn set_version(&mut self, version: Version<'_>) -> Result<(), PackError> {
        let Version { bucket, key, op, metax, content } = version;
        let before = self.index.version(bucket, key)?;
        if before.as_ref().is_some_and(|before| before.op > op) {
            return Ok(());
        }
        let since = before.as_ref().map_or(self.op, |before| before.since);
        let holder = Holder::Key(bucket, key.clone());
        let before = before.map(|before| before.content);
        if before.as_ref() != Some(&content) {
            match &content {
                Content::Run(place) => self.ledger.hold(place, &holder, self.here)?,
                Content::Parts { .. } => {}
            }
            self.end_version(bucket, &holder, before, content.upload())?;
        }
        if let Content::Parts { upload, parts } = &content {
            let unnamed = |number| parts.binary_search_by_key(&number, |part| part.number).is_err();
            self.remove_parts(bucket, *upload, unnamed)?;
            self.ledger.batch.delete(&keys::upload(bucket, key, *upload));
        }
        let row = PackedVersion { op, metax: metax.clone(), content, since };
        self.ledger.batch.put(&keys::version(bucket, key, UNVERSIONED), &encode(&row));
        Ok(())
    }

    /// A key has no version of those up to `upto`.
    fn remove_version(
        &mut self,
        bucket: BucketId,
        key: &ObjectKey,
        upto: OpId,
    ) -> Result<(), PackError> {
        let version = self.index.version(bucket, key)?;
        let Some(version) = version.filter(|version| version.op <= upto) else { return Ok(()) };
        self.end_version(bucket, &Holder::Key(bucket, key.clone()), Some(version.content), None)?;
        self.ledger.batch.delete(&keys::version(bucket, key, UNVERSIONED));
        Ok(())
    }

    /// Takes from a version what it had, but for the parts of the upload `keep`.
    fn end_version(
        &mut self,
        bucket: BucketId,
        holder: &Holder,
        content: Option<Content>,
        keep: Option<UploadId>,
    ) -> Result<(), PackError> {
        match content {
            Some(Content::Run(place)) => self.ledger.release(&place, holder),
            Some(Content::Parts { upload, .. }) if keep != Some(upload) => {
                self.remove_parts(bucket, upload, |_| true)
            }
            _ => Ok(()),
        }
    }

    fn set_part(
        &mut self,
        bucket: BucketId,
        upload: UploadId,
        number: u16,
        part: &PackedPart,
    ) -> Result<(), PackError> {
        let before = self.index.part(bucket, upload, number)?;
        if before.as_ref().is_some_and(|before| before.op > part.op) {
            return Ok(());
        }
        let holder = Holder::Part(bucket, upload, number);
        let before = before.map(|before| before.place);
        if before.as_ref() != Some(&part.place) {
            self.ledger.hold(&part.place, &holder, self.here)?;
            if let Some(before) = before {
                self.ledger.release(&before, &holder)?;
            }
        }
        self.ledger.batch.put(&keys::part(bucket, upload, number), &encode(part));
        Ok(())
    }

    fn remove_parts(
        &mut self,
        bucket: BucketId,
        upload: UploadId,
        which: impl Fn(u16) -> bool,
    ) -> Result<(), PackError> {
        let mut gone = Vec::new();
        self.index.visit(&keys::parts(bucket, upload), &mut |row, value| {
            if let Some(number) = keys::part_number(row).filter(|number| which(*number)) {
                gone.push((number, decode::<PackedPart>("a part's row", value)?.place));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for (number, place) in gone {
            self.ledger.release(&place, &Holder::Part(bucket, upload, number))?;
            self.ledger.batch.delete(&keys::part(bucket, upload, number));
        }
        Ok(())
    }

    /// Removes a bucket's record with this change, its uploads and parts before: it has nothing else. Cut off in
    /// between, it is done again, as the index is not as far.
    fn remove_bucket(&mut self, bucket: BucketId) -> Result<(), PackError> {
        self.index.buckets.write().retain(|_, record| record.id != bucket);
        for table in [b'U', b'P', b'V'] {
            while self.remove_rows(table, bucket)? {}
        }
        // Those batches counted in this blob too.
        self.ledger = self.index.ledger();
        self.ledger.note(self.here, self.op.seq, self.clock)?;
        self.ledger.batch.delete(&rows::bucket(bucket));
        Ok(())
    }

    /// Removes some rows of a bucket in a batch of their own; false if there are none.
    fn remove_rows(&self, table: u8, bucket: BucketId) -> Result<bool, PackError> {
        let mut gone = Vec::new();
        self.index.visit(&keys::bucket(table, bucket), &mut |row, value| {
            if gone.len() == REMOVED_ROWS_MAX {
                return Ok(ControlFlow::Break(()));
            }
            let held = match table {
                b'P' => rows::upload_of_part(row).map(|(upload, number)| {
                    let part = decode::<PackedPart>("a part's row", value);
                    part.map(|part| (part.place, Holder::Part(bucket, upload, number)))
                }),
                b'V' => keys::parse_keyed(row).and_then(|(_, key, _)| {
                    match decode::<PackedVersion>("a version's row", value) {
                        Ok(PackedVersion { content: Content::Run(place), .. }) => {
                            Some(Ok((place, Holder::Key(bucket, key))))
                        }
                        Ok(_) => None,
                        Err(error) => Some(Err(error)),
                    }
                }),
                _ => None,
            };
            gone.push((row.to_vec(), held.transpose()?));
            Ok(ControlFlow::Continue(()))
        })?;
        if gone.is_empty() {
            return Ok(false);
        }
        let mut ledger = self.index.ledger();
        for (row, held) in gone {
            if let Some((place, holder)) = held {
                ledger.release(&place, &holder)?;
            }
            ledger.batch.delete(&row);
        }
        self.index.commit(ledger.finish(), None)?;
        Ok(true)
    }

    /// Blobs are retired; those that are gone already are not known any more.
    fn retire(&mut self, run: &Run) -> Result<(), PackError> {
        for (id, _) in self.index.standing()? {
            if run.has(id) {
                let row = RetiredRow { retired_ms: self.clock.ms(), by: self.here };
                self.ledger.batch.put(&rows::retired(id), &encode(&row));
            }
        }
        Ok(())
    }
}

impl Content {
    /// The upload whose parts it has.
    pub(crate) fn upload(&self) -> Option<UploadId> {
        match self {
            Self::Parts { upload, .. } => Some(*upload),
            Self::Run(_) => None,
        }
    }
}
