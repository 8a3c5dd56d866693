//! Large writes past the page cache.
//!
//! A large object is written once and seldom read at once. In the page cache it would push out what is
//! read, and take fresh pages, which cost more than the copy itself on a machine that is virtual. So
//! it goes through a buffer of the file's own, straight to the device.
//!
//! # Invariants
//!
//! 1. Only whole pages at whole pages are written so; the rest goes through the page cache. The
//!    kernel keeps both views of a file the same.
//! 2. The descriptor is of the same file, whatever its name has become.
//!
//! Must not: make durable. A sync of the file covers these writes like any other.

use std::io::IoSlice;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;

/// Bytes from which on a write goes past the page cache.
pub(super) const DIRECT_BYTES_MIN: usize = 128 * 1024;
/// Unit of offset, length and memory that every device takes.
const PAGE_BYTES: usize = 4096;
/// Pages of one write.
const PAGES_MAX: usize = 256;

const _: () =
    assert!(DIRECT_BYTES_MIN.is_multiple_of(PAGE_BYTES), "the least write is whole pages");

#[derive(Clone)]
#[repr(align(4096))]
struct Page([u8; PAGE_BYTES]);

/// A file's way past the page cache.
pub(super) struct Direct {
    file: OwnedFd,
    pages: Mutex<Vec<Page>>,
}

impl Direct {
    /// Opens the file of a descriptor anew; `None` where the file system has no such way.
    pub(super) fn of(file: &OwnedFd) -> Option<Self> {
        let same = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let direct = retry_on_intr(|| rustix::fs::open(&same, flags, Mode::empty())).ok()?;
        let (known, found) = (rustix::fs::fstat(file).ok()?, rustix::fs::fstat(&direct).ok()?);
        let is_same = (known.st_dev, known.st_ino) == (found.st_dev, found.st_ino);
        is_same.then(|| Self { file: direct, pages: Mutex::new(Vec::new()) })
    }

    /// Writes `parts` at `offset` as far as whole pages go without an error; returns how many bytes
    /// that was. What is left, and what its error is, is found out by writing it the usual way.
    pub(super) fn write(&self, offset: u64, parts: &[IoSlice<'_>]) -> usize {
        if !offset.is_multiple_of(PAGE_BYTES as u64) {
            return 0;
        }
        let mut pages = self.pages.lock();
        pages.resize(PAGES_MAX, Page([0; PAGE_BYTES]));
        let mut source = Source { parts, at: 0 };
        let mut left = parts.iter().map(|part| part.len()).sum::<usize>() / PAGE_BYTES;
        let mut written = 0;
        while left > 0 {
            let count = left.min(PAGES_MAX);
            pages[..count].iter_mut().for_each(|page| source.fill(&mut page.0));
            let slices: Vec<IoSlice<'_>> =
                pages[..count].iter().map(|page| IoSlice::new(&page.0)).collect();
            let at = offset + written as u64;
            let wrote = retry_on_intr(|| rustix::io::pwritev(&self.file, &slices, at)).unwrap_or(0);
            written += wrote;
            if wrote < count * PAGE_BYTES {
                break;
            }
            left -= count;
        }
        written
    }
}

/// Where in the parts the copying is.
struct Source<'a> {
    parts: &'a [IoSlice<'a>],
    at: usize,
}

impl Source<'_> {
    fn fill(&mut self, mut page: &mut [u8]) {
        while !page.is_empty() {
            let part = &self.parts[0][self.at..];
            let now = part.len().min(page.len());
            let (head, rest) = page.split_at_mut(now);
            head.copy_from_slice(&part[..now]);
            page = rest;
            self.at += now;
            if self.at == self.parts[0].len() {
                (self.parts, self.at) = (&self.parts[1..], 0);
            }
        }
    }
}
