//! Frames: the units that two servers send each other, byte by byte in `docs/formats/rpc.md`.
//!
//! # Invariants
//!
//! 1. A header is used only once its checksum was found right, and a length only once it was found within the
//!    present [`Bounds`]. So no peer makes this one allocate more than those.
//! 2. Header and body each have a checksum. A stream that lost its place is therefore noticed at the next header, and not
//!    after as many bytes as a length may name. The payload has no checksum here: TLS authenticates it on the
//!    wire, and the process that keeps it has an end-to-end checksum of it.
//! 3. The layout of the header, of hello and of goodbye is the same in every version.

use bytes::{Buf, Bytes};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::limits::{BODY_BYTES_MAX, HEADER_BYTES, HELLO_BYTES_MAX, PAYLOAD_BYTES_MAX};

/// A fault of bytes that a peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame does not begin with these bytes.
    #[error("the bytes are no frame")]
    Magic,
    /// The header's checksum is wrong.
    #[error("the header's checksum is wrong")]
    HeaderSum,
    /// The body's checksum is wrong.
    #[error("the body's checksum is wrong")]
    BodySum,
    /// A frame of another version than was agreed.
    #[error("a frame of version {0}")]
    Version(u8),
    /// A kind or status that is not defined, or a reserved byte that is not 0.
    #[error("a header that means nothing")]
    Meaning,
    /// Longer than the present bounds allow.
    #[error("a frame with {body} bytes of body and {payload} of payload")]
    TooLong {
        /// Bytes of its body.
        body: u32,
        /// Bytes of its payload.
        payload: u32,
    },
    /// A frame of a kind that is not allowed at this point of the connection.
    #[error("a frame that is not due now")]
    NotDue,
    /// A body that cannot be decoded as its kind requires.
    #[error("a body that cannot be decoded")]
    Body,
}

/// Version 1 of the header. All versions of the protocol so far have it.
pub(crate) mod v1 {
    use xxhash_rust::xxh3::xxh3_64;

    use super::FrameError;
    use crate::limits::HEADER_BYTES;

    /// The bytes that every frame begins with.
    pub(crate) const MAGIC: [u8; 2] = *b"Lr";

    /// The kind of a frame.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Kind {
        Hello,
        Request,
        Answer,
        Message,
        Ping,
        Pong,
        Goodbye,
        /// The caller no longer waits for the request with this number.
        Cancel,
    }

    impl Kind {
        const ALL: [(u8, Kind); 8] = [
            (1, Kind::Hello),
            (2, Kind::Request),
            (3, Kind::Answer),
            (4, Kind::Message),
            (5, Kind::Ping),
            (6, Kind::Pong),
            (7, Kind::Goodbye),
            (8, Kind::Cancel),
        ];
    }

    /// The outcome of a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Status {
        /// The body is the answer. Frames of other kinds have this status too.
        Done,
        /// Not executed: too much is under way.
        Busy,
        /// Not executed: the peer cannot decode the body as a request.
        NotUnderstood,
        /// Perhaps executed: the handler gave no answer.
        NoAnswer,
        /// Perhaps executed: the answer is longer than a frame may be. In versions from
        /// [`PROTOCOL_TOO_LONG`](crate::limits::PROTOCOL_TOO_LONG) on.
        TooLong,
    }

    impl Status {
        const ALL: [(u8, Status); 5] = [
            (0, Status::Done),
            (1, Status::Busy),
            (2, Status::NotUnderstood),
            (3, Status::NoAnswer),
            (4, Status::TooLong),
        ];
    }

    fn number<T: Copy + PartialEq>(all: &[(u8, T)], value: T) -> u8 {
        all.iter().find(|(_, v)| *v == value).expect("every value has a number").0
    }

    fn value<T: Copy>(all: &[(u8, T)], number: u8) -> Result<T, FrameError> {
        all.iter().find(|(n, _)| *n == number).map(|(_, v)| *v).ok_or(FrameError::Meaning)
    }

    /// A frame's header.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Header {
        pub(crate) version: u8,
        pub(crate) kind: Kind,
        pub(crate) status: Status,
        /// The number of the request, also in its answer and its cancel; or of the ping, also in its pong; else 0.
        pub(crate) number: u64,
        pub(crate) body_len: u32,
        pub(crate) payload_len: u32,
        pub(crate) body_sum: u64,
    }

    impl Header {
        pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
            let mut bytes = [0; HEADER_BYTES];
            bytes[..2].copy_from_slice(&MAGIC);
            bytes[2] = self.version;
            bytes[3] = number(&Kind::ALL, self.kind);
            bytes[4] = number(&Status::ALL, self.status);
            bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
            bytes[16..20].copy_from_slice(&self.body_len.to_le_bytes());
            bytes[20..24].copy_from_slice(&self.payload_len.to_le_bytes());
            bytes[24..32].copy_from_slice(&self.body_sum.to_le_bytes());
            let sum = xxh3_64(&bytes[..32]);
            bytes[32..].copy_from_slice(&sum.to_le_bytes());
            bytes
        }

        pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
            if bytes[..2] != MAGIC {
                return Err(FrameError::Magic);
            }
            let long =
                |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
            let short =
                |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
            if long(32) != xxh3_64(&bytes[..32]) {
                return Err(FrameError::HeaderSum);
            }
            if bytes[5..8] != [0; 3] {
                return Err(FrameError::Meaning);
            }
            Ok(Self {
                version: bytes[2],
                kind: value(&Kind::ALL, bytes[3])?,
                status: value(&Status::ALL, bytes[4])?,
                number: long(8),
                body_len: short(16),
                payload_len: short(20),
                body_sum: long(24),
            })
        }
    }
}

pub(crate) use v1::{Header, Kind, Status};

/// The version of frames, and the bounds on their length, at some point of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) version: u8,
    pub(crate) body: usize,
    pub(crate) payload: usize,
}

impl Bounds {
    /// The bounds before both sides have said hello. Frames are of version 1 until a version is agreed on.
    pub(crate) const HELLO: Self = Self { version: 1, body: HELLO_BYTES_MAX, payload: 0 };

    /// The bounds once both have.
    pub(crate) fn agreed(version: u8) -> Self {
        Self { version, body: BODY_BYTES_MAX, payload: PAYLOAD_BYTES_MAX }
    }

    pub(crate) fn admit(self, header: &Header) -> Result<(), FrameError> {
        // A goodbye may come from a peer with which no version could be agreed on.
        if header.version != self.version && header.kind != Kind::Goodbye {
            return Err(FrameError::Version(header.version));
        }
        if header.body_len as usize > self.body || header.payload_len as usize > self.payload {
            return Err(FrameError::TooLong { body: header.body_len, payload: header.payload_len });
        }
        Ok(())
    }
}

/// A frame that was received whole, and whose checksums are right.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) header: Header,
    /// Body, then payload.
    pub(crate) bytes: Bytes,
}

impl Frame {
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[..self.header.body_len as usize]
    }

    /// Decodes the body; bytes left over behind the value are an error.
    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<T, FrameError> {
        match postcard::take_from_bytes(self.body()) {
            Ok((value, [])) => Ok(value),
            Ok(_) | Err(_) => Err(FrameError::Body),
        }
    }

    /// The payload, which follows the body.
    pub(crate) fn into_payload(mut self) -> Bytes {
        self.bytes.advance(self.header.body_len as usize);
        self.bytes
    }
}

/// A frame to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Header and body.
    head: Vec<u8>,
    payload: Bytes,
    header: Header,
}

impl Outgoing {
    /// A frame with a body. [`address`](Self::address) completes it once its connection is known.
    pub(crate) fn new<T: Serialize>(
        kind: Kind,
        body: &T,
        payload: Bytes,
    ) -> Result<Self, FrameError> {
        let mut head = Vec::with_capacity(HEADER_BYTES + 128);
        head.resize(HEADER_BYTES, 0);
        let head = postcard::to_extend(body, head).map_err(|_unencodable| FrameError::Body)?;
        let lengths = (head.len() - HEADER_BYTES, payload.len());
        let as_u32 = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let (body_len, payload_len) = (as_u32(lengths.0), as_u32(lengths.1));
        if lengths.0 > BODY_BYTES_MAX || lengths.1 > PAYLOAD_BYTES_MAX {
            return Err(FrameError::TooLong { body: body_len, payload: payload_len });
        }
        let body_sum = xxhash_rust::xxh3::xxh3_64(&head[HEADER_BYTES..]);
        let (version, status, number) = (1, Status::Done, 0);
        let header = Header { version, kind, status, number, body_len, payload_len, body_sum };
        Ok(Self { head, payload, header })
    }

    /// A frame that is a header alone.
    pub(crate) fn bare(kind: Kind, status: Status) -> Self {
        let body_sum = xxhash_rust::xxh3::xxh3_64(&[]);
        let (version, number, body_len, payload_len) = (1, 0, 0, 0);
        let header = Header { version, kind, status, number, body_len, payload_len, body_sum };
        Self { head: vec![0; HEADER_BYTES], payload: Bytes::new(), header }
    }

    /// Sets the number of the request or ping.
    pub(crate) fn numbered(mut self, number: u64) -> Self {
        self.header.number = number;
        self
    }

    /// Completes the header with the connection's version of the protocol.
    pub(crate) fn address(&mut self, version: u8) {
        self.header.version = version;
        self.head[..HEADER_BYTES].copy_from_slice(&self.header.encode());
    }

    pub(crate) fn is_message(&self) -> bool {
        self.header.kind == Kind::Message
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Header and body, then payload: the order on the wire.
    pub(crate) fn slices(&self) -> [&[u8]; 2] {
        [&self.head, &self.payload]
    }

    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }
}

#[cfg(test)]
mod tests;
