//! Gathers writes that lie one behind the other on the disk into one vectored write.

use std::io::IoSlice;
use std::ops::Range;

use larder_env::{DiskError, DiskFile};

use crate::limits::IO_PARTS_MAX;

/// Adjacent bytes not yet handed to the disk. They belong to the writes whose completions are in
/// `owners`, some of which may have been refused and have none.
pub(crate) struct Run<'a> {
    parts: Vec<IoSlice<'a>>,
    start: u64,
    len: u64,
    owners: Range<usize>,
}

/// A write that found the disk full, and the completions that it concerns.
pub(crate) struct FoundFull {
    pub owners: Range<usize>,
}

impl<'a> Run<'a> {
    pub(crate) fn new() -> Self {
        Self { parts: Vec::new(), start: 0, len: 0, owners: 0..0 }
    }

    /// True if bytes for `offset` can be added without writing first.
    pub(crate) fn continues_at(&self, offset: u64) -> bool {
        self.parts.is_empty()
            || (self.start + self.len == offset && self.parts.len() < IO_PARTS_MAX)
    }

    /// Adds bytes of the write with completion `owner`, where [`Run::continues_at`].
    pub(crate) fn add(&mut self, offset: u64, bytes: &'a [u8], owner: usize) {
        assert!(self.continues_at(offset), "a run has no gaps");
        if self.parts.is_empty() {
            self.start = offset;
            self.owners.start = owner;
        }
        self.owners.end = owner + 1;
        self.len += bytes.len() as u64;
        self.parts.push(IoSlice::new(bytes));
    }

    /// Writes what was gathered; returns its length.
    pub(crate) fn write(
        &mut self,
        file: &dyn DiskFile,
    ) -> Result<Result<u64, FoundFull>, DiskError> {
        if self.parts.is_empty() {
            return Ok(Ok(0));
        }
        let written = file.write_at(self.start, &self.parts);
        self.parts.clear();
        let len = std::mem::take(&mut self.len);
        match written {
            Ok(()) => Ok(Ok(len)),
            Err(DiskError::Full { .. }) => Ok(Err(FoundFull { owners: self.owners.clone() })),
            Err(error) => Err(error),
        }
    }
}
