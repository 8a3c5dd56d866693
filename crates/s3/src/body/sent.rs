//! The sending of a body, for the operation that reads it.

use std::sync::{Arc, OnceLock};

use http_body::Body as _;

use super::inbound::Inbound;
use super::unframed::{ChunkFault, Trailers, Unframed};
use crate::auth::signature::Payload;

/// A fault of a body, where the answer is made, once one was found.
pub(crate) type Found<Fault> = Arc<OnceLock<Fault>>;

/// The things known of a body beside its bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sent {
    /// The SHA-256 of its bytes that the request signs.
    pub(crate) hash: Option<[u8; 32]>,
    /// Its length without its framing, if it comes in aws-chunks.
    pub(crate) len: Option<u64>,
    /// Where its trailers will be.
    pub(crate) trailers: Trailers,
    /// Where a fault of its framing will be.
    pub(crate) fault: Found<ChunkFault>,
}

impl Sent {
    /// A body without its framing, and what the request's signature says of it.
    pub(crate) fn of(body: Inbound, payload: Payload) -> (s3s::Body, Self) {
        let mut sent = Self::default();
        if let Payload::Chunks { len, signer } = payload {
            let body = Unframed::new(body, len, signer);
            sent.len = Some(len);
            (sent.trailers, sent.fault) = (body.trailers(), body.fault());
            return (s3s::Body::http_body(body), sent);
        }
        if let Payload::Hash(hash) = payload {
            sent.hash = Some(hash);
        }
        // Less is done about a body of which it shows that it is empty.
        match body.is_end_stream() {
            true => (s3s::Body::empty(), sent),
            false => (s3s::Body::http_body(body), sent),
        }
    }
}
