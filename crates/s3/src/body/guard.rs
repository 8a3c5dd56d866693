//! Keeps clients from making the protocol library hold more of an aws-chunked body than we allow.
//!
//! The library collects each aws-chunk whole before it hands it on, whatever size its header
//! declares. This watch stands in front of it, reads the chunk headers as bytes stream through, and
//! ends the stream at a header that declares too much. It copies no data, checks no signature, and
//! refuses every framing that the library might read differently.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::watched::{Found, Watch};
use crate::admission::Admission;
use crate::limits::{AWS_CHUNK_BYTES_COVERED, AWS_CHUNK_BYTES_MAX, AWS_CHUNK_LINE_BYTES_MAX};

/// The reason that a body was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GuardError {
    /// A chunk header declares more than [`AWS_CHUNK_BYTES_MAX`].
    #[error("an aws-chunk declares {declared} bytes; {AWS_CHUNK_BYTES_MAX} are allowed")]
    ChunkTooLarge {
        /// The bytes that it declares.
        declared: u64,
    },
    /// There is no memory for a large chunk.
    #[error("no memory for so large an aws-chunk now")]
    Overloaded,
    /// Not aws-chunked framing.
    #[error("the body is not framed as aws-chunked")]
    Malformed,
    /// The stream ends before the chunk of size 0 that ends it: the library would not miss it.
    #[error("the body ends before its last aws-chunk")]
    Unended,
}

/// The verdict on a guarded body; shared with the operation that reads it.
pub(crate) type Verdict = Found<GuardError>;

/// The guard of one body.
pub(crate) struct ChunkGuard {
    scanner: Scanner,
    admission: Arc<Admission>,
    held: Option<(u32, OwnedSemaphorePermit)>,
}

impl ChunkGuard {
    pub(crate) fn new(admission: Arc<Admission>) -> Self {
        Self { scanner: Scanner::default(), admission, held: None }
    }

    /// Takes memory for the largest chunk seen so far; it is held until the body is dropped.
    fn cover(&mut self, largest: u64) -> Result<(), GuardError> {
        let excess = u32::try_from(largest.saturating_sub(AWS_CHUNK_BYTES_COVERED))
            .map_err(|_| GuardError::Overloaded)?;
        let held = self.held.as_ref().map_or(0, |(bytes, _)| *bytes);
        if excess <= held {
            return Ok(());
        }
        let more = self.admission.more(excess - held).map_err(|_| GuardError::Overloaded)?;
        match &mut self.held {
            None => self.held = Some((excess, more)),
            Some((bytes, permit)) => {
                *bytes = excess;
                permit.merge(more);
            }
        }
        Ok(())
    }
}

impl Watch for ChunkGuard {
    type Fault = GuardError;

    fn look(&mut self, piece: &[u8]) -> Result<(), GuardError> {
        let largest = self.scanner.scan(piece)?;
        self.cover(largest)
    }

    fn end(&mut self) -> Result<(), GuardError> {
        if self.scanner.at == At::Trailers { Ok(()) } else { Err(GuardError::Unended) }
    }
}

/// Where in the framing the next byte stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// In the size at the beginning of a chunk's header line.
    Size,
    /// After the size, in the rest of the line.
    Rest,
    /// In data, or, below 2, in the line end after it.
    Data,
    /// After the last chunk: trailers, which the library bounds.
    Trailers,
}

/// Reads chunk headers in a stream of pieces.
#[derive(Debug)]
struct Scanner {
    at: At,
    size: u64,
    digits: usize,
    line: usize,
    left: u64,
    largest: u64,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { at: At::Size, size: 0, digits: 0, line: 0, left: 0, largest: 0 }
    }
}

impl Scanner {
    /// Reads on; returns the largest size declared so far.
    fn scan(&mut self, mut data: &[u8]) -> Result<u64, GuardError> {
        while let Some((&byte, rest)) = data.split_first() {
            match self.at {
                At::Trailers => break,
                At::Data if self.left > 2 => {
                    let skip = usize::try_from(self.left - 2).unwrap_or(usize::MAX).min(data.len());
                    self.left -= skip as u64;
                    data = &data[skip..];
                    continue;
                }
                At::Data => self.line_end(byte)?,
                At::Size => self.size_byte(byte)?,
                At::Rest => self.rest_byte(byte)?,
            }
            data = rest;
        }
        Ok(self.largest)
    }

    fn line_end(&mut self, byte: u8) -> Result<(), GuardError> {
        let expected = if self.left == 2 { b'\r' } else { b'\n' };
        if byte != expected {
            return Err(GuardError::Malformed);
        }
        self.left -= 1;
        if self.left == 0 {
            (self.at, self.size, self.digits, self.line) = (At::Size, 0, 0, 0);
        }
        Ok(())
    }

    fn size_byte(&mut self, byte: u8) -> Result<(), GuardError> {
        self.line += 1;
        if let Some(digit) = (byte as char).to_digit(16) {
            self.digits += 1;
            self.size = self.size * 16 + u64::from(digit);
            // The library reads eight digits and no more.
            return if self.digits <= 8 { Ok(()) } else { Err(GuardError::Malformed) };
        }
        if self.digits == 0 || !matches!(byte, b';' | b'\r') {
            return Err(GuardError::Malformed);
        }
        self.at = At::Rest;
        if self.size > AWS_CHUNK_BYTES_MAX {
            return Err(GuardError::ChunkTooLarge { declared: self.size });
        }
        self.largest = self.largest.max(self.size);
        Ok(())
    }

    fn rest_byte(&mut self, byte: u8) -> Result<(), GuardError> {
        self.line += 1;
        if self.line > AWS_CHUNK_LINE_BYTES_MAX {
            return Err(GuardError::Malformed);
        }
        if byte == b'\n' {
            self.left = self.size + 2;
            self.at = if self.size == 0 { At::Trailers } else { At::Data };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::body::watched::Watched;

    fn scan(body: &[u8], piece: usize) -> Result<u64, GuardError> {
        let mut scanner = Scanner::default();
        let mut largest = 0;
        for data in body.chunks(piece) {
            largest = scanner.scan(data)?;
        }
        Ok(largest)
    }

    #[test]
    fn chunk_headers_are_found_however_the_body_is_cut() {
        let body = b"5;chunk-signature=ab\r\nhello\r\nA\r\n0\r\n1000000\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n";
        for piece in 1..=body.len() {
            assert_eq!(scan(body, piece), Ok(10), "{piece}");
        }
    }

    #[tokio::test]
    async fn a_body_without_its_last_chunk_is_refused() {
        let read = async |framed: &'static [u8]| {
            let body = http_body_util::Full::new(Bytes::from_static(framed));
            let admission = Arc::new(Admission::new(1, 4 * 1024 * 1024, 1));
            let verdict = Verdict::default();
            let guarded = Watched::new(body, ChunkGuard::new(admission), verdict.clone());
            let read = http_body_util::BodyExt::collect(guarded).await;
            assert_eq!(read.is_err(), verdict.get().is_some());
            verdict.get().copied()
        };
        assert_eq!(read(b"1\r\na\r\n0\r\n\r\n").await, None);
        for cut in [&b"1\r\na\r\n"[..], b"1\r\na\r\n0", b"1\r\n", b""] {
            assert_eq!(read(cut).await, Some(GuardError::Unended), "{cut:?}");
        }
    }

    #[test]
    fn a_chunk_above_the_cap_is_refused_at_its_header() {
        for piece in [1, 3, 100] {
            assert_eq!(scan(b"1000000\r\nx", piece), Ok(AWS_CHUNK_BYTES_MAX));
            let declared = AWS_CHUNK_BYTES_MAX + 1;
            let refused = scan(b"1\r\na\r\n1000001;chunk-signature=", piece);
            assert_eq!(refused, Err(GuardError::ChunkTooLarge { declared }));
            assert!(scan(b"ffffffff\r\n", piece).is_err());
        }
    }

    #[test]
    fn framing_that_could_be_read_in_two_ways_is_refused() {
        for body in [
            &b"\r\n"[..],
            b"x\r\n",
            b"+5\r\n",
            b"000000001\r\n",
            b"1\r\nab\r\n",
            b"1\r\na\n\n",
            b" 1\r\n",
        ] {
            assert_eq!(scan(body, 1), Err(GuardError::Malformed), "{body:?}");
        }
        let long = [b"1;".to_vec(), vec![b'x'; AWS_CHUNK_LINE_BYTES_MAX]].concat();
        assert_eq!(scan(&long, 7), Err(GuardError::Malformed));
    }

    #[test]
    fn a_large_chunk_takes_memory_or_is_refused() {
        let admission = Arc::new(Admission::new(1, 4 * 1024 * 1024, 1));
        let mut guard = ChunkGuard::new(Arc::clone(&admission));
        guard.cover(AWS_CHUNK_BYTES_COVERED).unwrap();
        assert!(guard.held.is_none());
        guard.cover(4 * 1024 * 1024).unwrap();
        assert!(admission.more(1024 * 1024 + 1).is_err());
        assert_eq!(guard.cover(6 * 1024 * 1024), Err(GuardError::Overloaded));
        drop(guard);
        assert!(admission.more(4 * 1024 * 1024).is_ok());
    }
}
