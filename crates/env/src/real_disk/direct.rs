//! Past the page cache: large writes, and reads of what the device has.
//!
//! A large object is written once and seldom read at once. In the page cache it would push out what is
//! read, and take fresh pages, which cost more than the copy itself on a machine that is virtual. So
//! it goes through a buffer of the file's own, straight to the device. A copy that is verified is read
//! so too: what memory remembers of it proves nothing, and what it remembers of others is kept.
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
/// Bytes of one write: few enough to stay in a core's cache between the copy and the device.
const BUFFER_BYTES: usize = 1024 * 1024;

const _: () =
    assert!(DIRECT_BYTES_MIN.is_multiple_of(PAGE_BYTES), "the least write is whole pages");

/// A file's way past the page cache.
pub(super) struct Direct {
    file: OwnedFd,
    buffer: Mutex<Vec<u8>>,
}

impl Direct {
    /// Opens the file of a descriptor anew; `None` where the file system has no such way.
    pub(super) fn of(file: &OwnedFd) -> Option<Self> {
        let same = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let direct = retry_on_intr(|| rustix::fs::open(&same, flags, Mode::empty())).ok()?;
        let (known, found) = (rustix::fs::fstat(file).ok()?, rustix::fs::fstat(&direct).ok()?);
        let is_same = (known.st_dev, known.st_ino) == (found.st_dev, found.st_ino);
        is_same.then(|| Self { file: direct, buffer: Mutex::new(Vec::new()) })
    }

    /// Reads what the device has until `buf` is full or the file ends; returns the bytes read. `None` if that
    /// cannot be done this way.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> Option<usize> {
        let (mut pages, mut filled) = (vec![0; BUFFER_BYTES + PAGE_BYTES], 0);
        let start = pages.as_ptr().align_offset(PAGE_BYTES);
        let pages = &mut pages[start..start + BUFFER_BYTES];
        while filled < buf.len() {
            let at = offset + filled as u64;
            let before = (at % PAGE_BYTES as u64) as usize;
            let wanted = (before + buf.len() - filled).next_multiple_of(PAGE_BYTES);
            let now = &mut pages[..wanted.min(BUFFER_BYTES)];
            let read =
                retry_on_intr(|| rustix::io::pread(&self.file, &mut *now, at - before as u64));
            let useful = read.ok()?.saturating_sub(before).min(buf.len() - filled);
            if useful == 0 {
                break;
            }
            buf[filled..filled + useful].copy_from_slice(&now[before..before + useful]);
            filled += useful;
        }
        Some(filled)
    }

    /// Writes `parts` at `offset` as far as whole pages go without an error; returns how many bytes
    /// that was. What is left, and what its error is, is found out by writing it the usual way.
    pub(super) fn write(&self, offset: u64, parts: &[IoSlice<'_>]) -> usize {
        if !offset.is_multiple_of(PAGE_BYTES as u64) {
            return 0;
        }
        let mut buffer = self.buffer.lock();
        buffer.resize(BUFFER_BYTES + PAGE_BYTES, 0);
        let start = buffer.as_ptr().align_offset(PAGE_BYTES);
        let buffer = &mut buffer[start..start + BUFFER_BYTES];
        let mut source = Source { parts, at: 0 };
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let end = len - len % PAGE_BYTES;
        let mut written = 0;
        while written < end {
            let now = &mut buffer[..BUFFER_BYTES.min(end - written)];
            source.fill(now);
            let at = offset + written as u64;
            let wrote = retry_on_intr(|| rustix::io::pwrite(&self.file, now, at)).unwrap_or(0);
            written += wrote;
            if wrote < now.len() {
                break;
            }
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
    fn fill(&mut self, mut into: &mut [u8]) {
        while !into.is_empty() {
            let part = &self.parts[0][self.at..];
            let now = part.len().min(into.len());
            let (head, rest) = into.split_at_mut(now);
            head.copy_from_slice(&part[..now]);
            into = rest;
            self.at += now;
            if self.at == self.parts[0].len() {
                (self.parts, self.at) = (&self.parts[1..], 0);
            }
        }
    }
}
