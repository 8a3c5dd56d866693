//! Backups of the index in the backend: a rebuild begins from one, and reads only the footers of later blobs.
//!
//! A backup is a chain of segments, all rows of one state of the index, and a head that names and verifies them.
//!
//! # Invariants
//!
//! 1. The head is written last, once every blob of which the backup shows anything is in the
//!    backend, and only by the owner. A backup without a head is none.
//! 2. As long as a backup may be used, some blob says what was removed since and the backup still
//!    has: repacking counts [known](Backups::known) backups as it counts blobs. A change that
//!    retires blobs names the backups that were counted. So a backup that was not known then, as
//!    its head came late or was removed, is not used, even if it is there.
//! 3. Of those kept the newest is used; one that does not verify is passed over.

mod read;
mod v1;
mod write;

use larder_types::{HybridClock, OpId};
use parking_lot::Mutex;

use crate::format::rows;
use crate::ids::{BackupId, BlobId, WorkerId};

pub(crate) use read::{known, restore};
pub(crate) use v1::Head;
#[cfg(test)]
pub(crate) use v1::{Segment, SegmentSum, read_segment};
pub(crate) use write::BackupWriter;

/// Prefix of the heads' names.
pub(crate) const HEADS: &str = "backups";
/// Prefix of the segments' names.
pub(crate) const SEGMENTS: &str = "index";

impl BackupId {
    pub(crate) fn head_path(&self) -> String {
        format!("{HEADS}/{:016x}-{:016x}", self.worker.0, self.number)
    }

    pub(crate) fn segment_path(&self, segment: usize) -> String {
        format!("{SEGMENTS}/{:016x}-{:016x}-{segment:08x}", self.worker.0, self.number)
    }

    /// Reads a name without its prefix: the backup, and the segment if it is one's.
    fn parse(file: &str) -> Option<(Self, Option<usize>)> {
        let mut fields = file.split('-');
        let mut field = |width: usize| {
            let text = fields.next().filter(|text| text.len() == width)?;
            u64::from_str_radix(text, 16).ok()
        };
        let id = Self { worker: WorkerId(field(16)?), number: field(16)? };
        match field(8) {
            Some(segment) => Some((id, usize::try_from(segment).ok())),
            None => (file.len() == 33).then_some((id, None)),
        }
    }
}

impl Head {
    /// The last change that it shows.
    pub(crate) fn op(&self) -> OpId {
        rows::op(self.id.worker, self.seq)
    }

    /// The last blob of which it shows anything.
    pub(crate) fn blob(&self) -> BlobId {
        BlobId { worker: self.id.worker, seq: self.blob }
    }
}

/// The position of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BackupAt {
    pub(crate) id: BackupId,
    pub(crate) op: OpId,
    pub(crate) clock: HybridClock,
}

/// Backups that a rebuild may use.
#[derive(Debug, Default)]
pub(crate) struct Backups(Mutex<Vec<BackupAt>>);

impl Backups {
    pub(crate) fn of(heads: &[Head]) -> Self {
        let backups = Self::default();
        for head in heads {
            backups.add(head);
        }
        backups
    }

    /// The positions of all backups, oldest first.
    pub(crate) fn known(&self) -> Vec<BackupAt> {
        self.0.lock().clone()
    }

    fn ids(&self) -> Vec<BackupId> {
        self.0.lock().iter().map(|backup| backup.id).collect()
    }

    fn add(&self, head: &Head) {
        let mut all = self.0.lock();
        all.push(BackupAt { id: head.id, op: head.op(), clock: head.clock });
        all.sort_by_key(|backup| backup.id);
    }

    fn forget(&self, gone: BackupId) {
        self.0.lock().retain(|backup| backup.id != gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        let id = BackupId { worker: WorkerId(2), number: 0x1F };
        let (head, segment) = (id.head_path(), id.segment_path(3));
        assert_eq!(BackupId::parse(head.split_once('/').unwrap().1), Some((id, None)));
        assert_eq!(BackupId::parse(segment.split_once('/').unwrap().1), Some((id, Some(3))));
        for other in ["", "x", "0-0", &head[9..], &format!("{}-1", &head[8..])] {
            assert_eq!(BackupId::parse(other), None, "{other}");
        }
    }
}
