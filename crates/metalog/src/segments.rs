//! The directory of segment files: making them ready, giving them up, using them again.
//!
//! # Invariants
//!
//! 1. A file has a segment's name only after its whole size and its header were synced. So a
//!    segment with a bad header was damaged, and a draft or a spare has nothing of value.
//! 2. Segments come and go one at a time, each synced into the directory before the next, lowest
//!    first: whatever a crash keeps, their numbers have no gap.
//!
//! Segments are used again because a sync of bytes written over is cheaper than one of bytes that
//! were only reserved.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::Arc;

use larder_env::{Disk, DiskError, DiskFile, OpenMode};

use crate::limits::{FREE_BYTES_MIN, SPARES_MAX, ZERO_AHEAD_BYTES};
use crate::v1::{self, Layout};

pub(crate) static ZEROS: [u8; ZERO_AHEAD_BYTES as usize] = [0; ZERO_AHEAD_BYTES as usize];

const SEGMENT_SUFFIX: &str = ".log";
const SPARE_SUFFIX: &str = ".spare";
const DRAFT: &str = "segment.draft";

/// The contents of a log's directory.
pub(crate) struct Listing {
    /// Numbers of the segments, ascending.
    pub(crate) segments: Vec<u64>,
    spares: Vec<String>,
}

pub(crate) fn list(disk: &dyn Disk, dir: &str) -> Result<Listing, DiskError> {
    let mut listing = Listing { segments: Vec::new(), spares: Vec::new() };
    for name in disk.list(dir)? {
        if let Some(number) = number_of(&name, SEGMENT_SUFFIX) {
            listing.segments.push(number);
        } else if number_of(&name, SPARE_SUFFIX).is_some() {
            listing.spares.push(name);
        }
    }
    listing.segments.sort_unstable();
    Ok(listing)
}

/// Writes zeros from `from` to `to`.
pub(crate) fn write_zeros(file: &dyn DiskFile, from: u64, to: u64) -> Result<(), DiskError> {
    let mut at = from;
    while at < to {
        let take = (to - at).min(ZERO_AHEAD_BYTES);
        file.write_at(at, &[IoSlice::new(&ZEROS[..take as usize])])?;
        at += take;
    }
    Ok(())
}

/// Path of a segment's file.
pub(crate) fn segment_path(dir: &str, number: u64) -> String {
    path_in(dir, &format!("{number:016x}{SEGMENT_SUFFIX}"))
}

fn path_in(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

fn number_of(name: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_suffix(suffix)?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (format!("{number:016x}") == digits).then_some(number)
}

fn remove_draft(disk: &dyn Disk, dir: &str) -> Result<(), DiskError> {
    match disk.remove(&path_in(dir, DRAFT)) {
        Err(DiskError::NotFound { .. }) => Ok(()),
        other => other,
    }
}

/// The segment files of one log.
pub(crate) struct Segments {
    disk: Arc<dyn Disk>,
    dir: String,
    layout: Layout,
    /// The segments that exist, from the first to before the end.
    first: u64,
    end: u64,
    /// Segments that may have reserved parts which were never written.
    unwritten: BTreeSet<u64>,
    spares: Vec<String>,
}

impl Segments {
    /// Takes over a directory; drafts, and more spares than are of use, are removed.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: &str,
        layout: Layout,
        listing: Listing,
    ) -> Result<Self, DiskError> {
        remove_draft(&*disk, dir)?;
        let mut spares = Vec::new();
        for name in listing.spares {
            let path = path_in(dir, &name);
            let whole = disk.open(&path, OpenMode::Read)?.len()? == layout.segment_bytes;
            if whole && spares.len() < SPARES_MAX {
                spares.push(path);
            } else {
                disk.remove(&path)?;
            }
        }
        let first = listing.segments.first().copied().unwrap_or(0);
        let end = listing.segments.last().map_or(first, |last| last + 1);
        let unwritten = (first..end).collect();
        Ok(Self { disk, dir: dir.to_owned(), layout, first, end, unwritten, spares })
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Number of the first segment.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// One more than the number of the last segment.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// True if parts of a segment may be reserved and never written.
    pub(crate) fn is_unwritten(&self, number: u64) -> bool {
        self.unwritten.contains(&number)
    }

    /// Bytes that all files of the log take.
    pub(crate) fn disk_bytes(&self) -> u64 {
        (self.end - self.first + self.spares.len() as u64) * self.layout.segment_bytes
    }

    pub(crate) fn open_segment(&self, number: u64) -> Result<Arc<dyn DiskFile>, DiskError> {
        assert!((self.first..self.end).contains(&number), "segment {number} does not exist");
        self.disk.open(&segment_path(&self.dir, number), OpenMode::ReadWrite)
    }

    /// Makes the next segment, durably and at its full size.
    ///
    /// # Errors
    /// [`DiskError::Full`] if there is no room; nothing has changed then.
    pub(crate) fn extend(&mut self) -> Result<(), DiskError> {
        let (path, file) = match self.spares.last() {
            Some(spare) => (spare.clone(), self.disk.open(spare, OpenMode::ReadWrite)?),
            None => self.draft()?,
        };
        let header = v1::encode_segment_header(&self.layout, self.end);
        file.write_at(0, &[IoSlice::new(&header)])?;
        file.sync()?;
        self.disk.rename(&path, &segment_path(&self.dir, self.end))?;
        self.disk.sync_dir(&self.dir)?;
        if self.spares.pop().is_none() {
            self.unwritten.insert(self.end);
        }
        self.end += 1;
        Ok(())
    }

    fn draft(&self) -> Result<(String, Arc<dyn DiskFile>), DiskError> {
        let path = path_in(&self.dir, DRAFT);
        if self.disk.free_bytes()? < self.layout.segment_bytes + FREE_BYTES_MIN {
            return Err(DiskError::Full { path });
        }
        remove_draft(&*self.disk, &self.dir)?;
        let file = self.disk.open(&path, OpenMode::CreateNew)?;
        if let Err(error) = file.allocate(0, self.layout.segment_bytes) {
            self.disk.remove(&path)?;
            return Err(error);
        }
        Ok((path, file))
    }

    /// Gives up the segments before `number`.
    pub(crate) fn free_before(&mut self, number: u64) -> Result<(), DiskError> {
        assert!(number < self.end, "the segment that is written stays");
        while self.first < number {
            let path = segment_path(&self.dir, self.first);
            if self.spares.len() < SPARES_MAX {
                let spare = path_in(&self.dir, &format!("{:016x}{SPARE_SUFFIX}", self.first));
                self.disk.rename(&path, &spare)?;
                self.spares.push(spare);
            } else {
                self.disk.remove(&path)?;
            }
            self.disk.sync_dir(&self.dir)?;
            self.unwritten.remove(&self.first);
            self.first += 1;
        }
        Ok(())
    }

    /// Removes the segments from `number` on, of which nothing is to be kept.
    pub(crate) fn cut_from(&mut self, number: u64) -> Result<(), DiskError> {
        assert!(number > self.first, "a log keeps its first segment");
        while self.end > number {
            self.disk.remove(&segment_path(&self.dir, self.end - 1))?;
            self.disk.sync_dir(&self.dir)?;
            self.end -= 1;
        }
        Ok(())
    }
}
