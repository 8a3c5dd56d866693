//! A manager's disk: a log of its quorum's writes, each a record that is whole or not there.
//!
//! A killed process leaves its writes in the page cache. A loss of power leaves those that were synced, and any
//! beginning of the rest: the log's records are chained.

use larder_env::SeededRng;
use larder_protocol::manager::quorum::{LogWrite, Stored};
use larder_types::codec::{decode, encode};

#[derive(Debug, Default)]
pub(super) struct ManagerDisk {
    records: Vec<Vec<u8>>,
    synced: usize,
}

impl ManagerDisk {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn append(&mut self, write: &LogWrite) {
        self.records.push(encode(write));
    }

    pub(super) fn sync(&mut self) {
        self.synced = self.records.len();
    }

    /// The power is gone.
    pub(super) fn crash(&mut self, rng: &mut SeededRng) {
        let unsynced = self.records.len() - self.synced;
        self.records.truncate(self.synced + rng.below(unsynced as u64 + 1) as usize);
        self.synced = self.records.len();
    }

    /// Reads the log for a manager that starts, which syncs it before it acts on it.
    pub(super) fn read(&mut self) -> Stored {
        self.sync();
        let mut stored = Stored::default();
        for record in &self.records {
            stored.take(decode::<LogWrite>("write of a quorum", record).expect("what was encoded"));
        }
        stored
    }
}
