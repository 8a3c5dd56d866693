//! The quorum's state on a manager's disk: one file of checksummed records, one synced write for each.
//!
//! # Invariants
//!
//! 1. A write is on disk as a whole when [`QuorumDisk::write`] has returned, and after a crash as a whole or not at
//!    all.
//! 2. A snapshot replaces the file: the old one stands until the new one is durable.
//! 3. After an error nothing more is written: only the next start finds out what the file holds.
//! 4. A start reads from the device. After a failed sync the page cache may have data that no later sync writes.
//! 5. A file that is damaged, or another server's, is refused. A torn record at the end, which was never acknowledged, is cut.
//! 6. A log is made before its server's identity is kept, and never again: a manager that made another would have forgotten
//!    what it agreed to, and could vote twice.

use std::io::IoSlice;
use std::sync::Arc;

use larder_env::disk::{read_file, replace_file};
use larder_env::rng::unique_u64;
use larder_env::{Disk, DiskError, DiskFile, OpenMode};
use larder_protocol::manager::quorum::{Entries, LogWrite, Stored};
use larder_types::{ClusterId, ServerId};

use super::error::ManagerError;
use super::v1::{BadFile, FileHeader, decode_file, encode_header, encode_record};
use crate::limits::QUORUM_FILE_BYTES_MAX;
use crate::planted::{Bug, has};

/// Directory of the log.
pub(super) const DIR: &str = "quorum";
/// The log, within its directory.
const FILE: &str = "log";
/// The log, as messages name it.
pub const PATH: &str = "quorum/log";

/// The log of a manager's quorum on disk.
pub(super) struct QuorumDisk {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    header: FileHeader,
    /// The content of the file.
    stored: Stored,
    /// Number of the last record.
    number: u64,
    /// Where the next record begins.
    end: usize,
    /// Length of the file when it was last replaced.
    replaced_len: usize,
    /// A write failed.
    broken: bool,
}

impl QuorumDisk {
    /// Opens the log, or makes an empty one for a server that has not begun. An empty one of another server is replaced: its
    /// identity was never kept.
    pub(super) fn make(
        disk: Arc<dyn Disk>,
        cluster: ClusterId,
        server: ServerId,
    ) -> Result<Self, ManagerError> {
        let is_needed = match read_file(&*disk, PATH) {
            Err(DiskError::NotFound { .. }) => true,
            read => decode_file(&read?).is_ok_and(|found| {
                let of = (found.header.cluster, found.header.server);
                found.writes.is_empty() && of != (cluster, server)
            }),
        };
        if is_needed {
            disk.create_dir(DIR)?;
            let bytes = encode_header(&FileHeader { cluster, server, id: unique_u64() });
            replace_file(&*disk, DIR, FILE, &bytes)?;
        }
        Self::open(disk, cluster, server)
    }

    /// Opens the log.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        cluster: ClusterId,
        server: ServerId,
    ) -> Result<Self, ManagerError> {
        let file = match disk.open(PATH, OpenMode::ReadWrite) {
            Err(DiskError::NotFound { .. }) => return Err(ManagerError::LogGone),
            opened => opened?,
        };
        // Writes of a process that was killed may be in the page cache alone.
        file.sync()?;
        let bytes = on_device(&*file)?;
        let unusable = |why: BadFile| ManagerError::Unusable { file: PATH, why: why.to_string() };
        let contents = decode_file(&bytes).map_err(unusable)?;
        let header = contents.header;
        if (header.cluster, header.server) != (cluster, server) {
            let FileHeader { cluster, server, .. } = header;
            let why = format!("it is of server {server} of cluster {:016x}", cluster.0);
            return Err(ManagerError::Unusable { file: PATH, why });
        }
        if (contents.end as u64) < file.len()? {
            tracing::info!(file = PATH, at = contents.end, "a torn record was truncated");
            file.set_len(contents.end as u64)?;
            file.sync()?;
        }
        let mut stored = Stored::default();
        let number = contents.writes.len() as u64;
        contents.writes.into_iter().for_each(|write| stored.take(write));
        let end = contents.end;
        let (replaced_len, broken) = (end, false);
        Ok(Self { disk, file, header, stored, number, end, replaced_len, broken })
    }

    /// The content of the disk.
    pub(super) fn stored(&self) -> &Stored {
        &self.stored
    }

    /// Makes a write durable.
    ///
    /// # Panics
    /// After it has returned an error.
    pub(super) fn write(&mut self, write: LogWrite) -> Result<(), DiskError> {
        assert!(!self.broken, "nothing is written after a failure");
        self.broken = true;
        let whole = write.snapshot.is_some()
            || self.end >= self.replaced_len.saturating_add(QUORUM_FILE_BYTES_MAX);
        if whole {
            self.stored.take(write);
            self.replace()?;
        } else {
            let record = encode_record(&self.header, self.end, self.number + 1, &write);
            self.file.write_at(self.end as u64, &[IoSlice::new(&record)])?;
            if !has(Bug::UnsyncedQuorum) {
                self.file.sync()?;
            }
            self.stored.take(write);
            self.number += 1;
            self.end += record.len();
        }
        self.broken = false;
        Ok(())
    }

    /// Replaces the file by a new one, which has the whole content in one record.
    fn replace(&mut self) -> Result<(), DiskError> {
        let Stored { hard, snapshot, items } = self.stored.clone();
        let entries = Some(Entries { after: self.stored.base(), items });
        self.header.id = unique_u64();
        let mut bytes = encode_header(&self.header);
        let write = LogWrite { hard, snapshot, entries };
        bytes.extend(encode_record(&self.header, bytes.len(), 1, &write));
        replace_file(&*self.disk, DIR, FILE, &bytes)?;
        self.file = self.disk.open(PATH, OpenMode::ReadWrite)?;
        (self.number, self.end, self.replaced_len) = (1, bytes.len(), bytes.len());
        Ok(())
    }
}

/// The bytes of a file that was synced, as the device has them.
fn on_device(file: &dyn DiskFile) -> Result<Vec<u8>, DiskError> {
    let mut bytes = vec![0; file.len()? as usize];
    let read = match has(Bug::BelievesPageCache) {
        true => file.read_at(0, &mut bytes)?,
        false => file.read_device_at(0, &mut bytes)?,
    };
    bytes.truncate(read);
    Ok(bytes)
}
