//! The half of the log that one thread owns: it writes batches, syncs them, and keeps the next
//! segment ready.
//!
//! # Invariants
//!
//! 1. A commit answers only after every file it wrote was synced.
//! 2. After the first failure it answers nothing but [`LogError::Broken`].
//! 3. Batches are written in the order in which they were taken, none twice and none left out.
//!
//! # Why zeros are written ahead
//!
//! On ext4 a sync of bytes that were only reserved costs a journal commit, one of bytes written over
//! does not. A commit of 20 records of 300 bytes took 155 µs on average where space was only
//! reserved. It took 80 to 115 µs over zeros, and 98 to 113 µs in segments used again
//! (`examples/log_speed.rs`; two cores, a virtual disk). Writes end on whole pages for a like reason:
//! a page written in part would first be read, where a segment that is used again has left the page
//! cache.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;

use larder_env::{DiskError, DiskFile};

use crate::batch::{Batch, Progress};
use crate::config::LogConfig;
use crate::error::LogError;
use crate::limits::{SEGMENT_HEADER_BYTES, WRITE_ALIGN_BYTES, ZERO_AHEAD_BYTES};
use crate::segments::{Segments, ZEROS, write_zeros};
use crate::v1::Lsn;

/// Writes batches. Owned by one thread.
pub struct Writer {
    segments: Segments,
    config: LogConfig,
    /// Files of the segments that are, or will be, written.
    files: BTreeMap<u64, Arc<dyn DiskFile>>,
    synced: Lsn,
    /// Zeros were written, or are not needed, up to here.
    zeroed: Lsn,
    full: bool,
    broken: Option<DiskError>,
    turn: u64,
}

impl Writer {
    /// A writer that goes on at `synced`, with the next segment ready if there is room for it.
    pub(crate) fn new(
        segments: Segments,
        config: LogConfig,
        synced: Lsn,
    ) -> Result<Self, LogError> {
        let mut writer = Self {
            segments,
            config,
            files: BTreeMap::new(),
            synced,
            zeroed: synced,
            full: false,
            broken: None,
            turn: 0,
        };
        writer.prepare()?;
        Ok(writer)
    }

    /// Writes and syncs a batch, and empties it. Returns when all of it is durable.
    ///
    /// # Errors
    /// [`LogError::Broken`], for ever: whether any of the batch is durable is not known.
    ///
    /// # Panics
    /// If batches are not given in the order in which they were taken.
    pub fn commit(&mut self, batch: &mut Batch) -> Result<Progress, LogError> {
        self.check_sound()?;
        assert_eq!(batch.start, self.synced, "batches are written in order");
        let outcome = self.write(batch).and_then(|()| self.sync(batch));
        batch.clear();
        outcome.map_err(|error| self.fail(error))?;
        self.synced = batch.end;
        let current = self.segments.layout().segment_of(self.synced);
        self.files.retain(|number, _| *number >= current);
        Ok(self.progress())
    }

    /// Makes the next segment, and the next part of this one, ready if they are not. Call it after
    /// each commit, when those who wait for it have been answered: it may take several syncs.
    ///
    /// # Errors
    /// [`LogError::Broken`]. A full disk is no error: the progress says so, and the next call tries
    /// again.
    pub fn prepare(&mut self) -> Result<Progress, LogError> {
        self.check_sound()?;
        self.zero_ahead().map_err(|error| self.fail(error))?;
        let wanted = self.segments.layout().segment_of(self.synced) + 2;
        while self.segments.end() < wanted {
            match self.segments.extend() {
                Ok(()) => {}
                Err(DiskError::Full { .. }) => {
                    self.full = true;
                    return Ok(self.progress());
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
        self.full = false;
        Ok(self.progress())
    }

    /// Gives up whole segments of which everything is below `lsn` and durable.
    ///
    /// # Errors
    /// [`LogError::Broken`].
    pub fn free_below(&mut self, lsn: Lsn) -> Result<(), LogError> {
        self.check_sound()?;
        let keep = self.segments.layout().segment_of(lsn.min(self.synced));
        let keep = keep.min(self.segments.end() - 1);
        self.segments.free_before(keep).map_err(|error| self.fail(error))
    }

    /// Bytes that the log takes on its disk.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.segments.disk_bytes()
    }

    /// The writer's progress.
    pub(crate) fn progress(&mut self) -> Progress {
        self.turn += 1;
        let ready = self.segments.layout().start_of(self.segments.end());
        Progress { synced: self.synced, ready, full: self.full, turn: self.turn }
    }

    fn write(&mut self, batch: &Batch) -> Result<(), DiskError> {
        let layout = self.segments.layout();
        for (at, bytes) in batch.pieces() {
            let segment = layout.segment_of(at);
            let end = at.0 + bytes.len() as u64;
            assert!(end <= layout.start_of(segment + 1).0, "a piece lies within one segment");
            let fill = match self.config.cuts_durably() {
                true => (end.next_multiple_of(WRITE_ALIGN_BYTES) - end) as usize,
                false => 0,
            };
            let parts = [IoSlice::new(bytes), IoSlice::new(&ZEROS[..fill])];
            self.file(segment)?.write_at(layout.offset_of(at), &parts)?;
        }
        Ok(())
    }

    fn sync(&mut self, batch: &Batch) -> Result<(), DiskError> {
        if !self.config.syncs_commits() {
            return Ok(());
        }
        let layout = self.segments.layout();
        for (at, _) in batch.pieces() {
            self.file(layout.segment_of(at))?.sync()?;
        }
        Ok(())
    }

    /// Writes zeros over the next part of a segment that was only reserved so far.
    fn zero_ahead(&mut self) -> Result<(), DiskError> {
        let layout = self.segments.layout();
        let segment = layout.segment_of(self.synced);
        let used = Lsn(self.synced.0.next_multiple_of(WRITE_ALIGN_BYTES));
        let begun = layout.start_of(segment).0 + SEGMENT_HEADER_BYTES;
        let from = self.zeroed.max(used).0.max(begun);
        let end = layout.start_of(segment + 1).0;
        let wanted = from < end && from <= used.0 + ZERO_AHEAD_BYTES / 2;
        let useful = segment < self.segments.end() && self.segments.is_unwritten(segment);
        if !wanted || !useful || !self.config.cuts_durably() {
            return Ok(());
        }
        let to = end.min(from + ZERO_AHEAD_BYTES);
        let offset = layout.offset_of(Lsn(from));
        let file = self.file(segment)?;
        write_zeros(file, offset, offset + (to - from))?;
        file.sync()?;
        self.zeroed = Lsn(to);
        Ok(())
    }

    fn file(&mut self, segment: u64) -> Result<&dyn DiskFile, DiskError> {
        if !self.files.contains_key(&segment) {
            self.files.insert(segment, self.segments.open_segment(segment)?);
        }
        Ok(self.files[&segment].as_ref())
    }

    fn check_sound(&self) -> Result<(), LogError> {
        match &self.broken {
            None => Ok(()),
            Some(source) => Err(LogError::Broken { source: source.clone() }),
        }
    }

    /// Ends the writer: what the disk holds is no longer known.
    fn fail(&mut self, source: DiskError) -> LogError {
        self.broken = Some(source.clone());
        LogError::Broken { source }
    }
}
