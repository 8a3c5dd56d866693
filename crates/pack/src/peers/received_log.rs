//! Stores changes received from another worker that its index has not made durable yet: in a file of the directory,
//! `heard/NAME/` and the name of the index.
//!
//! ```text
//! record*    bytes of the record u32, XXH3-64 of them u64, then the record: version byte 1, blob u64, from u64,
//!            whether the entries are the last of the blob u8, entries as they came
//! ```
//! Integers are little-endian.
//!
//! # Invariants
//!
//! 1. Entries are synced here before the index shows them. So whatever is shown of another worker, or decided by it, is
//!    known after a crash too: from its blobs in the bucket, or from here.
//! 2. When a record is appended the index has durably all that is before it and not here. So
//!    records that are read in their order go on where the index is, or say what it knows.
//! 3. The file is emptied when the index is durable. Records that a crash leaves in it are known,
//!    and do nothing.

use std::io::IoSlice;
use std::sync::Arc;

use larder_env::{Disk, DiskError, DiskFile, OpenMode};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::PackError;
use crate::limits::FEED_BYTES_MAX;
use crate::owner::name::WorkerName;

/// Directory of all of them.
const DIR: &str = "heard";
const VERSION: u8 = 1;
/// Bytes of a record before its entries.
const HEAD_BYTES: usize = 18;
/// Bytes before a record.
const FRAME_BYTES: usize = 12;

/// The file.
pub(crate) struct ReceivedLog {
    disk: Arc<dyn Disk>,
    dir: String,
    path: String,
    file: Option<Arc<dyn DiskFile>>,
    end: u64,
    /// A sync failed: nothing that is written here counts any more.
    is_broken: bool,
}

/// Entries of a blob from a byte on, as a worker told them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReceivedEntries {
    pub(super) blob: u64,
    pub(super) from: u64,
    pub(super) is_whole: bool,
    pub(super) bytes: Vec<u8>,
}

impl ReceivedLog {
    /// Opens the file of one index of a worker, if there is one.
    pub(crate) fn of(
        disk: Arc<dyn Disk>,
        name: &WorkerName,
        index: &str,
    ) -> Result<Self, DiskError> {
        let dir = format!("{DIR}/{name}");
        disk.create_dir(&dir)?;
        let path = format!("{dir}/{index}");
        let file = match disk.open(&path, OpenMode::ReadWrite) {
            Ok(file) => Some(file),
            Err(DiskError::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(Self { disk, dir, path, file, end: 0, is_broken: false })
    }

    /// Removes those of other indexes of the same worker.
    pub(crate) fn remove_others(&self) -> Result<(), DiskError> {
        for name in self.disk.list(&self.dir)? {
            let path = format!("{}/{name}", self.dir);
            if path != self.path {
                self.disk.remove(&path)?;
            }
        }
        self.disk.sync_dir(&self.dir)
    }

    /// Reads all records, up to the first that a crash has cut off.
    pub(super) fn read(&mut self) -> Result<Vec<ReceivedEntries>, DiskError> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let len = file.len()?;
        let mut records = Vec::new();
        while let Some(record) = read_at(&**file, self.end, len)? {
            self.end += (FRAME_BYTES + HEAD_BYTES + record.bytes.len()) as u64;
            records.push(record);
        }
        Ok(records)
    }

    /// Appends a record, and syncs it.
    ///
    /// # Errors
    /// [`PackError::Disk`]: it is not there.
    pub(super) fn append(&mut self, record: &ReceivedEntries) -> Result<(), PackError> {
        if self.is_broken {
            let reason = format!("{} failed before; entries come from the bucket alone", self.path);
            return Err(PackError::Deferred { reason });
        }
        let file = match &self.file {
            Some(file) => file.clone(),
            None => {
                let file = self.disk.open(&self.path, OpenMode::CreateNew)?;
                self.disk.sync_dir(&self.dir)?;
                self.file.insert(file).clone()
            }
        };
        let mut head = Vec::with_capacity(HEAD_BYTES + record.bytes.len());
        head.push(VERSION);
        head.extend(record.blob.to_le_bytes());
        head.extend(record.from.to_le_bytes());
        head.push(u8::from(record.is_whole));
        head.extend_from_slice(&record.bytes);
        let len = u32::try_from(head.len()).map_err(|_| too_long(&self.path))?;
        let frame = [&len.to_le_bytes()[..], &xxh3_64(&head).to_le_bytes()].concat();
        file.write_at(self.end, &[IoSlice::new(&frame), IoSlice::new(&head)])?;
        if let Err(error) = file.sync() {
            self.is_broken = true;
            return Err(error.into());
        }
        self.end += (frame.len() + head.len()) as u64;
        Ok(())
    }

    /// Bytes of all records.
    pub(super) fn len(&self) -> u64 {
        self.end
    }

    /// The index has durably all that is here.
    pub(super) fn clear(&mut self) -> Result<(), DiskError> {
        if let Some(file) = self.file.as_ref().filter(|_| self.end > 0) {
            file.set_len(0)?;
        }
        self.end = 0;
        Ok(())
    }
}

/// The record that begins at a position, if it is whole.
fn read_at(file: &dyn DiskFile, at: u64, end: u64) -> Result<Option<ReceivedEntries>, DiskError> {
    let mut frame = [0; FRAME_BYTES];
    if file.read_at(at, &mut frame)? < FRAME_BYTES {
        return Ok(None);
    }
    let [a, b, c, d, sum @ ..] = frame;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    let is_possible = (HEAD_BYTES..=HEAD_BYTES + FEED_BYTES_MAX).contains(&len);
    if !is_possible || at + (FRAME_BYTES + len) as u64 > end {
        return Ok(None);
    }
    let mut record = vec![0; len];
    let read = file.read_at(at + FRAME_BYTES as u64, &mut record)?;
    if read < len || xxh3_64(&record) != u64::from_le_bytes(sum) || record[0] != VERSION {
        return Ok(None);
    }
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| record[at + i]));
    let (blob, from, is_whole) = (number(1), number(9), record[17] != 0);
    Ok(Some(ReceivedEntries { blob, from, is_whole, bytes: record.split_off(HEAD_BYTES) }))
}

fn too_long(path: &str) -> PackError {
    PackError::damaged(path, "what another worker told is too long for a record")
}

#[cfg(test)]
mod tests {
    use larder_env::SimDisk;

    use super::*;

    fn record(blob: u64, bytes: &[u8]) -> ReceivedEntries {
        ReceivedEntries { blob, from: 300, is_whole: blob == 2, bytes: bytes.to_vec() }
    }

    fn log(disk: &Arc<SimDisk>) -> ReceivedLog {
        ReceivedLog::of(disk.clone(), &WorkerName::new("a").unwrap(), "1").unwrap()
    }

    #[test]
    fn records_survive_a_crash_and_one_cut_off_is_none() {
        let disk = SimDisk::new(1, 1 << 20);
        let mut received = log(&disk);
        assert!(received.read().unwrap().is_empty());
        let all = [record(1, b"first"), record(2, b""), record(3, &[7; 3000])];
        for record in &all {
            received.append(record).unwrap();
        }
        disk.crash();
        let disk = disk.reopen();
        let mut received = log(&disk);
        assert_eq!(received.read().unwrap(), all);
        received.append(&record(4, b"fourth")).unwrap();
        let file = disk.open("heard/a/1", OpenMode::ReadWrite).unwrap();
        file.set_len(received.len() - 1).unwrap();
        let mut received = log(&disk);
        assert_eq!(received.read().unwrap(), all);
        received.append(&record(5, b"fifth")).unwrap();
        let read = log(&disk).read().unwrap();
        assert_eq!(read[3], record(5, b"fifth"), "it took the place of what was cut off");
    }

    #[test]
    fn it_is_empty_when_the_index_is_durable_and_others_go() {
        let disk = SimDisk::new(1, 1 << 20);
        let mut received = log(&disk);
        received.append(&record(1, b"first")).unwrap();
        received.clear().unwrap();
        assert!(log(&disk).read().unwrap().is_empty());
        let name = WorkerName::new("a").unwrap();
        let mut next = ReceivedLog::of(disk.clone(), &name, "2").unwrap();
        next.append(&record(2, b"second")).unwrap();
        next.remove_others().unwrap();
        assert_eq!(disk.list("heard/a").unwrap(), ["2"]);
    }

    #[test]
    fn a_record_is_written_as_ever() {
        let disk = SimDisk::new(1, 1 << 20);
        log(&disk).append(&record(2, b"e")).unwrap();
        let file = disk.open("heard/a/1", OpenMode::Read).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(0, &mut bytes).unwrap();
        let record =
            [&[1, 2, 0, 0, 0, 0, 0, 0, 0, 0x2c, 1, 0, 0, 0, 0, 0, 0, 1][..], b"e"].concat();
        let frame = [&19_u32.to_le_bytes()[..], &xxh3_64(&record).to_le_bytes()].concat();
        assert_eq!(bytes, [frame, record].concat());
    }
}
