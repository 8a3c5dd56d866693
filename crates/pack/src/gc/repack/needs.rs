//! Decides which removals must be re-logged when the blob that has them goes. Pure.
//!
//! A removal ends what changes from `since` on made of a key. It is needed while anything tells of one of those
//! changes without telling of the removal too: a blob with a change in between, or a backup from in between. When
//! nothing does, a rebuild meets nothing that it would have to remove.

use larder_types::{BucketId, HybridClock, OpId};

use crate::backup::BackupAt;
use crate::format::rows::{self, BlobContent};
use crate::ids::BlobId;

/// All that a rebuild may begin from, but for the blob that goes.
pub(crate) struct Needs {
    /// First and last change and last clock of each blob, in their order; no two overlap.
    blobs: Vec<(OpId, OpId, HybridClock)>,
    backups: Vec<BackupAt>,
}

impl Needs {
    pub(crate) fn without(
        gone: BlobId,
        standing: &[(BlobId, BlobContent)],
        backups: Vec<BackupAt>,
    ) -> Self {
        let others = standing.iter().filter(|(id, _)| *id != gone);
        let spans = others.map(|(id, content)| {
            let op = |seq| rows::op(id.worker, seq);
            (op(content.first), op(content.last), content.clock)
        });
        let blobs: Vec<_> = spans.collect();
        assert!(blobs.is_sorted(), "blobs follow each other");
        Self { blobs, backups }
    }

    /// Returns true if a removal at `upto` of what changes from `since` on made must be re-logged.
    pub(crate) fn removal(&self, since: OpId, upto: OpId) -> bool {
        let from = self.blobs.partition_point(|(_, last, _)| *last < since);
        let in_blob = self.blobs.get(from).is_some_and(|(first, ..)| *first <= upto);
        in_blob || self.backups.iter().any(|backup| since <= backup.op && backup.op < upto)
    }

    /// As [`Needs::removal`], of a bucket: its id is the clock of the change that made it.
    pub(crate) fn bucket_removal(&self, bucket: BucketId, upto: OpId) -> bool {
        let since = HybridClock(bucket.0);
        let from = self.blobs.partition_point(|(.., clock)| *clock < since);
        let in_blob = self.blobs.get(from).is_some_and(|(first, ..)| *first <= upto);
        in_blob || self.backups.iter().any(|backup| since <= backup.clock && backup.op < upto)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BackupId, WorkerId};
    use larder_types::OpSeq;

    fn op(seq: u64) -> OpId {
        rows::op(WorkerId(1), OpSeq(seq))
    }

    fn needs(backups: &[u64]) -> Needs {
        let blob = |seq, first, last| {
            let (first, last) = (OpSeq(first), OpSeq(last));
            let content = BlobContent {
                first,
                first_clock: None,
                last,
                clock: HybridClock(last.0 * 10),
                end: 0,
                live: 0,
            };
            (BlobId { worker: WorkerId(1), seq }, content)
        };
        let all = [blob(1, 1, 10), blob(2, 11, 20), blob(4, 31, 40)];
        let at = |seq| {
            let id = BackupId { worker: WorkerId(1), number: seq };
            BackupAt { id, op: op(seq), clock: HybridClock(seq * 10) }
        };
        let gone = BlobId { worker: WorkerId(1), seq: 2 };
        Needs::without(gone, &all, backups.iter().map(|seq| at(*seq)).collect())
    }

    #[test]
    fn a_removal_is_needed_while_a_blob_may_have_what_it_removes() {
        let needs = needs(&[]);
        assert!(needs.removal(op(5), op(15)), "made in blob 1");
        assert!(needs.removal(op(10), op(35)));
        assert!(!needs.removal(op(11), op(15)), "made and removed in the blob that goes");
        assert!(!needs.removal(op(11), op(30)), "in that and one that has gone");
        assert!(needs.removal(op(12), op(31)));
        assert!(!needs.removal(op(41), op(45)));
        assert!(needs.bucket_removal(BucketId(100), op(15)));
        assert!(!needs.bucket_removal(BucketId(101), op(15)));
    }

    #[test]
    fn a_removal_is_needed_while_a_backup_has_what_it_removes() {
        let needs = needs(&[14]);
        assert!(needs.removal(op(12), op(15)), "the backup has it");
        assert!(!needs.removal(op(12), op(14)), "the backup knows of the removal");
        assert!(!needs.removal(op(15), op(16)), "the backup is older");
        assert!(needs.bucket_removal(BucketId(140), op(16)));
        assert!(!needs.bucket_removal(BucketId(141), op(16)));
    }
}
