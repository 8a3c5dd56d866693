//! The one file that answers every get.
//!
//! It holds the beginning of [`Content::of_floor`], as much of it as was ever asked for, and is
//! removed with the process. It is small and hot, so that reads come from the page cache.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use rustix::buffer::spare_capacity;

use larder_bench::content::{Content, PIECE_BYTES};

/// Most bytes of the file, and so of a get.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 30;

const _: () = assert!(FILE_BYTES_MAX.is_multiple_of(PIECE_BYTES as u64), "it is whole pieces");

pub(super) struct FloorFile {
    file: File,
    /// Bytes written; grows by whole pieces.
    written: AtomicU64,
    growing: Mutex<()>,
    /// Bytes of the last put: the size of objects whose key says none.
    last_put: AtomicU64,
}

impl FloorFile {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            file: tempfile::tempfile()?,
            written: AtomicU64::new(0),
            growing: Mutex::new(()),
            last_put: AtomicU64::new(0),
        })
    }

    /// Takes note of the size of a put.
    pub(super) fn note_put(&self, bytes: u64) {
        self.last_put.store(bytes, Ordering::Relaxed);
    }

    /// The size of the object `key`: the number that it ends in, or that of the last put.
    pub(super) fn size_of(&self, key: &str) -> u64 {
        let named = key.rsplit_once('-').and_then(|(_, number)| number.parse().ok());
        named.unwrap_or_else(|| self.last_put.load(Ordering::Relaxed))
    }

    /// Reads a range, which is at most a piece long and ends within [`FILE_BYTES_MAX`].
    pub(super) fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        assert!(range.end <= FILE_BYTES_MAX && range.end - range.start <= PIECE_BYTES as u64);
        if range.end > self.written.load(Ordering::Acquire) {
            self.grow(range.end)?;
        }
        let len = (range.end - range.start) as usize;
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let position = range.start + bytes.len() as u64;
            if rustix::io::pread(&self.file, spare_capacity(&mut bytes), position)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        // The vector may have room for more than was asked for, and the file have it.
        bytes.truncate(len);
        Ok(Bytes::from(bytes))
    }

    fn grow(&self, bytes: u64) -> io::Result<()> {
        let _alone = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let content = Content::of_floor(FILE_BYTES_MAX);
        let mut written = self.written.load(Ordering::Acquire);
        while written < bytes {
            let piece = content.piece(written);
            self.file.write_all_at(&piece, written)?;
            written += piece.len() as u64;
            self.written.store(written, Ordering::Release);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_bench::content::Verifier;

    #[test]
    fn keys_that_end_in_a_number_name_their_size() {
        let file = FloorFile::new().unwrap();
        assert_eq!(file.size_of("run/0000000001-8192"), 8192);
        assert_eq!(file.size_of("name"), 0);
        file.note_put(77);
        assert_eq!(file.size_of("name"), 77);
        assert_eq!(file.size_of("name-x"), 77);
        assert_eq!(file.size_of("name-5"), 5);
    }

    #[test]
    fn every_size_is_the_beginning_of_one_content() {
        let file = FloorFile::new().unwrap();
        let piece = PIECE_BYTES as u64;
        for size in [1, 8192, piece, 3 * piece + 5, 100] {
            let mut verifier = Verifier::new(Content::of_floor(size));
            for start in (0..size).step_by(PIECE_BYTES) {
                verifier.accept(&file.read(start..size.min(start + piece)).unwrap());
            }
            assert!(verifier.is_complete(), "{size}");
        }
        assert!(file.read(5..5).unwrap().is_empty());
    }
}
