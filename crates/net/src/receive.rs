//! Parses frames out of the bytes that a socket gives.
//!
//! # Invariants
//!
//! 1. At most one read and one frame of the largest length that the bounds allow are buffered.
//! 2. A payload is a slice of the buffer that it was read into. It is copied only in a short frame
//!    ([`COPIED_FRAME_BYTES_MAX`]), or for the part of a frame that came before its buffer was made.

use bytes::{Bytes, BytesMut};
use xxhash_rust::xxh3::xxh3_64;

use crate::frame::{Bounds, Frame, FrameError, Header};
use crate::limits::{COPIED_FRAME_BYTES_MAX, HEADER_BYTES, READ_BUFFER_BYTES_MIN, READ_BYTES};

/// A buffer for reads of the socket, which gives the frames in it.
#[derive(Debug)]
pub(crate) struct Receiver {
    buffer: BytesMut,
    /// Header of the frame whose rest has not all arrived.
    header: Option<Header>,
    bounds: Bounds,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self { buffer: BytesMut::new(), header: None, bounds: Bounds::HELLO }
    }

    /// Changes the bounds, once both sides have said hello.
    pub(crate) fn agreed(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// The version that frames must have.
    pub(crate) fn version(&self) -> u8 {
        self.bounds.version
    }

    /// Returns true if no byte waits to become a frame.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty() && self.header.is_none()
    }

    /// Where the next bytes go: room for what is missing of a frame, or for a read.
    pub(crate) fn room(&mut self) -> &mut BytesMut {
        let missing = match &self.header {
            Some(header) => rest_len(header).saturating_sub(self.buffer.len()),
            None => 0,
        };
        let room = self.buffer.capacity() - self.buffer.len();
        if room < missing.max(READ_BUFFER_BYTES_MIN) {
            self.buffer.reserve(missing.max(READ_BYTES));
        }
        &mut self.buffer
    }

    /// The next frame, if all of it has arrived.
    pub(crate) fn frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let Some(bytes) = self.buffer.first_chunk::<HEADER_BYTES>() else {
                    return Ok(None);
                };
                let header = Header::decode(bytes)?;
                self.bounds.admit(&header)?;
                drop(self.buffer.split_to(HEADER_BYTES));
                self.header = Some(header);
                header
            }
        };
        if self.buffer.len() < rest_len(&header) {
            return Ok(None);
        }
        self.header = None;
        let body_len = header.body_len as usize;
        if xxh3_64(&self.buffer[..body_len]) != header.body_sum {
            return Err(FrameError::BodySum);
        }
        let rest = self.buffer.split_to(rest_len(&header));
        let copied = header.payload_len > 0 && rest.len() <= COPIED_FRAME_BYTES_MAX;
        let bytes = if copied { Bytes::copy_from_slice(&rest) } else { rest.freeze() };
        Ok(Some(Frame { header, bytes }))
    }
}

fn rest_len(header: &Header) -> usize {
    header.body_len as usize + header.payload_len as usize
}
