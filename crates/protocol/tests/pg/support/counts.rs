//! The counts of a member, held against a scan of its rows each time that it has applied something.

use std::ops::ControlFlow;

use larder_protocol::Index;
use larder_protocol::ledger::{BucketCounts, ObjectCount};
use larder_protocol::pg::LedgerWalk;
use larder_types::{VersionRow, rows};

use super::{BUCKET, Member};

impl Member {
    /// Has the rows counted, as a single node does: of what they name it keeps nothing.
    pub fn count_objects(&mut self) {
        let mut walk = LedgerWalk::new(1);
        walk.add(&mut self.pg);
        while !self.read_rows(&mut walk, usize::MAX) {}
        self.pg.forget_ledger();
        self.check_counts();
        assert!(!self.pg.wants_count());
    }

    /// The objects that a scan of the rows finds.
    pub fn scanned(&self) -> BucketCounts {
        let mut counts = BucketCounts::default();
        let scanned = self.table.scan_prefix(b"V", &mut |row, value| {
            let bucket = rows::bucket_of(row).expect("a key's row");
            let size = VersionRow::read(value).expect("a version").metax.size;
            counts.note(bucket, size).expect("few objects");
            ControlFlow::Continue(())
        });
        scanned.expect("a scan");
        counts
    }

    /// If the rows were counted, the counts are what a scan finds.
    pub fn check_counts(&self) {
        assert_eq!(self.pg.count_fault(), None);
        if let Some(counts) = self.pg.counts() {
            assert_eq!(counts, &self.scanned());
        }
    }

    /// Objects and bytes that are counted.
    pub fn counted(&self) -> (u64, u64) {
        let counts = self.pg.counts().expect("the rows were counted");
        assert!(counts.iter().all(|(bucket, count)| bucket == BUCKET && count.objects > 0));
        let ObjectCount { objects, bytes } = counts.of(BUCKET);
        (objects, bytes)
    }
}
