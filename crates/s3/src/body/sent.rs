//! The sending of a body, for the operation that reads it: the request's extensions carry it.

use super::unframed::{ChunkFault, Trailers};
use super::watched::Found;

/// The things known of a body beside its bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sent {
    /// The SHA-256 of its bytes that the request signs.
    pub(crate) hash: Option<[u8; 32]>,
    /// Where its trailers will be.
    pub(crate) trailers: Trailers,
    /// Where a fault of its framing will be.
    pub(crate) fault: Found<ChunkFault>,
}
