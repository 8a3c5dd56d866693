//! Removes parts whose upload is neither open nor any version's. The change that ended the upload
//! stood in a blob that was retired, when no blob had the upload any more. A part that was moved
//! later may have outlived it.
//!
//! An index may name more uploads than memory has room for, so they are looked at some at a time.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use larder_types::codec::decode;
use larder_types::rows::prefix_end;
use larder_types::{UploadId, UploadRow};

use crate::error::PackError;
use crate::format::rows::{self, Holder, PackedPart, PackedVersion};
use crate::index::Index;
use crate::limits::{ORPHANS_AT_ONCE, UPLOADS_AT_ONCE};

/// The most that is held in memory at once.
#[derive(Debug, Clone, Copy)]
struct AtOnce {
    uploads: usize,
    /// Rows of parts.
    orphans: usize,
}

/// Removes parts that belong to nothing.
pub(super) fn remove(index: &Index) -> Result<(), PackError> {
    remove_some(index, AtOnce { uploads: UPLOADS_AT_ONCE, orphans: ORPHANS_AT_ONCE })
}

fn remove_some(index: &Index, at_once: AtOnce) -> Result<(), PackError> {
    let mut from = Some(b"P".to_vec());
    while let Some(first) = from {
        let (mut uploads, next) = uploads_from(index, &first, at_once.uploads)?;
        leave_orphans(index, &mut uploads)?;
        remove_parts(index, &uploads, &first, next.as_deref(), at_once.orphans)?;
        from = next;
    }
    Ok(())
}

/// Uploads of parts from a row on, and where they end if there are more.
fn uploads_from(
    index: &Index,
    from: &[u8],
    count_max: usize,
) -> Result<(BTreeSet<UploadId>, Option<Vec<u8>>), PackError> {
    let (mut uploads, mut next) = (BTreeSet::new(), None);
    index.visit_between(from, prefix_end(b"P").as_deref(), &mut |row, _| {
        let Some((upload, _)) = rows::upload_of_part(row) else {
            return Ok(ControlFlow::Continue(()));
        };
        if uploads.len() == count_max && !uploads.contains(&upload) {
            next = Some(row.to_vec());
            return Ok(ControlFlow::Break(()));
        }
        uploads.insert(upload);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((uploads, next))
}

/// Takes out those that are open, or a version's.
fn leave_orphans(index: &Index, uploads: &mut BTreeSet<UploadId>) -> Result<(), PackError> {
    if uploads.is_empty() {
        return Ok(());
    }
    index.visit(b"U", &mut |_, value| {
        uploads.remove(&decode::<UploadRow>("an upload's row", value)?.upload);
        Ok(ControlFlow::Continue(()))
    })?;
    index.visit(b"V", &mut |_, value| {
        let version = decode::<PackedVersion>("a version's row", value)?;
        if let Some(upload) = version.content.upload() {
            uploads.remove(&upload);
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Removes the parts of these uploads from one row to another.
fn remove_parts(
    index: &Index,
    uploads: &BTreeSet<UploadId>,
    from: &[u8],
    to: Option<&[u8]>,
    count_max: usize,
) -> Result<(), PackError> {
    if uploads.is_empty() {
        return Ok(());
    }
    let end = prefix_end(b"P");
    let to = to.or(end.as_deref());
    let mut from = Some(from.to_vec());
    while let Some(first) = from.take() {
        let mut orphans = Vec::new();
        index.visit_between(&first, to, &mut |row, value| {
            let Some((upload, number)) = rows::upload_of_part(row) else {
                return Ok(ControlFlow::Continue(()));
            };
            if !uploads.contains(&upload) {
                return Ok(ControlFlow::Continue(()));
            }
            if orphans.len() == count_max {
                from = Some(row.to_vec());
                return Ok(ControlFlow::Break(()));
            }
            let place = decode::<PackedPart>("a part's row", value)?.place;
            let holder = Holder::Part(rows::bucket_of_part(row), upload, number);
            orphans.push((row.to_vec(), place, holder));
            Ok(ControlFlow::Continue(()))
        })?;
        let mut ledger = index.ledger();
        for (row, place, holder) in orphans {
            ledger.release(&place, &holder)?;
            ledger.batch.delete(&row);
        }
        index.commit(ledger.finish(), None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use larder_kv::Batch;
    use larder_types::rows::upload as upload_row;
    use larder_types::{
        Attributes, BucketId, ETag, HybridClock, Metax, ObjectKey, OpId, OpSeq, PartRef, PgId, View,
    };

    use super::*;
    use crate::format::entry::{Change, Container, Entry, Place};
    use crate::ids::{BlobId, WorkerId};

    const BUCKET: BucketId = BucketId(7);
    const BLOB: BlobId = BlobId { worker: WorkerId(1), seq: 1 };
    const BYTES: u64 = 100;
    const PARTS: u16 = 3;

    fn upload(number: u64) -> UploadId {
        UploadId { pg: PgId(0), op: OpId { view: View(1), seq: OpSeq(number) } }
    }

    fn key(number: u64) -> ObjectKey {
        ObjectKey::new(&format!("k{number}")).unwrap()
    }

    fn metax() -> Metax {
        Metax::new(BYTES, HybridClock(1), ETag::Md5([0; 16]))
    }

    /// An upload of some parts; those with odd numbers are completed.
    fn changes(number: u64) -> Vec<Change> {
        let (bucket, upload) = (BUCKET, upload(number));
        let attributes = Attributes::default();
        let (clock, checksum) = (HybridClock(1), None);
        let row = UploadRow { upload, key: key(number), clock, attributes, checksum };
        let mut changes = vec![Change::UploadBegun { bucket, row }];
        for part in 1..=PARTS {
            let offset = (number * u64::from(PARTS) + u64::from(part)) * BYTES;
            let (container, sums) = (Container::Blob(BLOB), vec![0]);
            let place = Place { container, offset, len: BYTES, seed: 0, sum_bytes: 65_536, sums };
            changes.push(Change::PartPut { bucket, upload, number: part, metax: metax(), place });
        }
        if number % 2 == 1 {
            let parts = (1..=PARTS).map(|number| PartRef { number, len: BYTES }).collect();
            let (key, metax) = (key(number), metax());
            changes.push(Change::UploadCompleted { bucket, key, upload, metax, parts });
        }
        changes
    }

    fn parts(index: &Index) -> Vec<(u64, u16)> {
        let mut found = Vec::new();
        let mut visit = |row: &[u8], _: &[u8]| {
            found.extend(rows::upload_of_part(row).map(|(upload, part)| (upload.op.seq.0, part)));
            Ok(ControlFlow::Continue(()))
        };
        index.visit(b"P", &mut visit).unwrap();
        found
    }

    #[test]
    fn parts_of_no_upload_and_no_version_go_however_few_are_looked_at_at_once() {
        for (uploads, orphans) in [(1, 1), (3, 2), (20, 4), (1000, 1000)] {
            let dir = tempfile::tempdir().unwrap();
            let (index, _) = Index::open(dir.path()).unwrap();
            remove(&index).unwrap();
            let mut seq = 0;
            for change in (1..=20).flat_map(changes) {
                seq += 1;
                let entry = Entry { seq: OpSeq(seq), clock: HybridClock(1), change };
                index.apply(BLOB, &entry, None).unwrap();
            }
            // The changes that ended these were not re-logged.
            let ended = |number: u64| number.is_multiple_of(4);
            let mut batch = Batch::new();
            for number in (1..=20).filter(|number| ended(*number)) {
                batch.delete(&upload_row(BUCKET, &key(number), upload(number)));
            }
            index.commit(batch, None).unwrap();
            let all = parts(&index);
            assert_eq!(all.len(), 20 * usize::from(PARTS));
            remove_some(&index, AtOnce { uploads, orphans }).unwrap();
            let left: Vec<_> = all.into_iter().filter(|(number, _)| !ended(*number)).collect();
            assert_eq!(parts(&index), left);
            let live = index.blob_content(BLOB).unwrap().unwrap().live;
            assert_eq!(live, left.len() as u64 * BYTES, "their bytes are dead");
        }
    }
}
