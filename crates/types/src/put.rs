//! Puts: what they make, their METAX, and their outcomes. Ops of clients and of other regions both have them.

use serde::{Deserialize, Serialize};

use crate::ids::{BucketId, Request, StreamId, UploadId};
use crate::metax::{Body, Holders, Metax};
use crate::name::ObjectKey;

/// The thing that a put makes when it is committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// The null version of the key.
    Version,
    /// A chunk of a stream: held until its parent names it or its session closes.
    Chunk {
        /// The stream.
        stream: StreamId,
        /// Its place in it, from 0.
        number: u32,
    },
    /// A part of an upload; replaces an earlier part of that number.
    Part {
        /// The upload.
        upload: UploadId,
        /// Part number, 1 to 10,000.
        number: u16,
    },
}

/// A put's METAX.
///
/// With an inline body, or one that names chunks already committed, it is committed as soon as it is
/// below the commit point. With [`Body::Chunk`] it is pending until its [`Op::Outcome`](crate::Op::Outcome).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// The request of the client that puts it.
    pub request: Request,
    /// The key's bucket.
    pub bucket: BucketId,
    /// The key; of chunks and parts, that of their parent, which decides the PG.
    pub key: ObjectKey,
    /// The thing that it becomes.
    pub target: Target,
    /// The description of the object.
    pub metax: Metax,
    /// Where it is.
    pub body: Body,
}

/// The outcome of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is on these replicas.
    Committed {
        /// The attempt whose data counts.
        attempt: u32,
        /// Replicas that acknowledged it.
        holders: Holders,
    },
    /// It never happened.
    Revoked,
}
