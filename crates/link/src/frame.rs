//! The answer to a fetch, as a stream of frames: a length (u32, little-endian), an encoded [`Fetched`], then its bytes.
//!
//! # Invariants
//!
//! 1. Only bytes that have arrived take memory, never a length that was announced.
//! 2. A stream that ends within a frame is broken, never a short one.

use bytes::{Buf, Bytes};
use larder_types::codec::{decode, encode_into};

use crate::limits::FETCHED_BYTES_MAX;
use crate::message::Fetched;

/// Bytes of the length.
const LEN_BYTES: usize = 4;

/// The head of a frame.
///
/// # Errors
/// If the entry is longer than one may be.
pub(crate) fn head(fetched: &Fetched) -> Result<Bytes, String> {
    let mut out = vec![0; LEN_BYTES];
    encode_into(fetched, &mut out);
    let len = out.len() - LEN_BYTES;
    if len > FETCHED_BYTES_MAX {
        return Err(format!("an entry of {len} bytes is longer than one may be"));
    }
    out[..LEN_BYTES].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(out.into())
}

/// Splits a stream into frames, whatever the pieces that it arrives in.
#[derive(Debug, Default)]
pub(crate) struct Unframer {
    /// Bytes that arrived and were not taken yet.
    held: Bytes,
    /// The beginning of a head that is not complete.
    head: Vec<u8>,
    /// Bytes of the last entry that were not taken yet.
    left: u64,
}

impl Unframer {
    /// Adds bytes that have arrived.
    ///
    /// # Panics
    /// If what came before is not taken yet.
    pub(crate) fn push(&mut self, arrived: Bytes) {
        assert!(self.held.is_empty(), "what arrives is taken piece by piece");
        self.held = arrived;
    }

    /// Takes the next entry, if its head has arrived as a whole, and drops the rest of the one before.
    ///
    /// # Errors
    /// The fault of the stream.
    pub(crate) fn entry(&mut self) -> Result<Option<Fetched>, String> {
        while self.left > 0 {
            if self.bytes().is_none() {
                return Ok(None);
            }
        }
        if !self.fill(LEN_BYTES) {
            return Ok(None);
        }
        let len = self.head.first_chunk().map_or(0, |len| u32::from_le_bytes(*len) as usize);
        if len > FETCHED_BYTES_MAX {
            return Err(format!("an entry of {len} bytes"));
        }
        if !self.fill(LEN_BYTES + len) {
            return Ok(None);
        }
        let fetched: Fetched =
            decode("fetched entry", &self.head[LEN_BYTES..]).map_err(|error| error.to_string())?;
        self.head.clear();
        self.left = fetched.bytes;
        Ok(Some(fetched))
    }

    /// Moves bytes that have arrived into the head, up to a length.
    fn fill(&mut self, len: usize) -> bool {
        let part = self.held.len().min(len.saturating_sub(self.head.len()));
        self.head.extend_from_slice(&self.held[..part]);
        self.held.advance(part);
        self.head.len() >= len
    }

    /// Takes bytes of the last entry that have arrived.
    pub(crate) fn bytes(&mut self) -> Option<Bytes> {
        let part =
            usize::try_from(self.left).map_or(self.held.len(), |left| left.min(self.held.len()));
        if part == 0 {
            return None;
        }
        self.left -= part as u64;
        Some(self.held.split_to(part))
    }

    /// Bytes of the last entry that are still to come.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// True where a stream may end.
    pub(crate) fn is_between(&self) -> bool {
        self.left == 0 && self.head.is_empty() && self.held.is_empty()
    }
}

#[cfg(test)]
#[path = "frame/tests.rs"]
mod tests;
