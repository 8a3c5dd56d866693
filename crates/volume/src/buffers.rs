//! Memory that reads use again.
//!
//! A fresh buffer for every piece of a large object has to be zeroed, and takes the cache from what is
//! in use. The buffer that came back last is given out first: it is the likeliest to be in a cache.
//!
//! # Invariants
//!
//! 1. Nobody sees bytes of an earlier read: a reader hands a buffer on only after all of it was read.
//! 2. What is kept is bounded: [`READ_BUFFERS_KEPT_MAX`] buffers of [`READ_BUFFER_BYTES`].

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::limits::{READ_BUFFER_BYTES, READ_BUFFERS_KEPT_MAX};

/// Buffers that are not in use.
#[derive(Clone, Default)]
pub(crate) struct Buffers {
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// A buffer in use; it goes back when it is dropped.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    home: Buffers,
}

impl Buffers {
    /// A buffer of `len` bytes, whatever they are. One of which most would lie idle is made to measure.
    pub(crate) fn take(&self, len: usize) -> Buffer {
        let bytes = if (READ_BUFFER_BYTES / 2..=READ_BUFFER_BYTES).contains(&len) {
            let kept = self.kept.lock().pop();
            kept.unwrap_or_else(|| vec![0; READ_BUFFER_BYTES])
        } else {
            vec![0; len]
        };
        Buffer { bytes, len, home: self.clone() }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes.len() == READ_BUFFER_BYTES {
            let mut kept = self.home.kept.lock();
            if kept.len() < READ_BUFFERS_KEPT_MAX {
                kept.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_is_used_again_and_a_small_one_is_not_kept() {
        let buffers = Buffers::default();
        let first = buffers.take(READ_BUFFER_BYTES);
        let place = first.as_ptr();
        drop(first);
        let again = buffers.take(READ_BUFFER_BYTES / 2);
        assert_eq!((again.as_ptr(), again.len()), (place, READ_BUFFER_BYTES / 2));
        drop(again);
        assert_eq!(buffers.take(1).len(), 1);
        assert_eq!(buffers.take(READ_BUFFER_BYTES + 1).len(), READ_BUFFER_BYTES + 1);
        assert_eq!(buffers.kept.lock().len(), 1);
    }

    #[test]
    fn no_more_buffers_are_kept_than_the_limit_says() {
        let buffers = Buffers::default();
        let many: Vec<Buffer> =
            (0..=READ_BUFFERS_KEPT_MAX).map(|_| buffers.take(READ_BUFFER_BYTES)).collect();
        drop(many);
        assert_eq!(buffers.kept.lock().len(), READ_BUFFERS_KEPT_MAX);
    }
}
