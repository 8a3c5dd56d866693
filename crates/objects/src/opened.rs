//! A version that was found.

use std::sync::Arc;

use bytes::Bytes;
use larder_types::{Body, BucketId, Metax, ObjectKey, OpId, PartRef};

use crate::Remote;

/// A version found by [`Objects::open`](crate::Objects::open): what it is, and where to read it.
#[derive(Debug, Clone)]
pub struct Opened {
    /// Bucket.
    pub bucket: BucketId,
    /// Key.
    pub key: ObjectKey,
    /// The op that put it.
    pub op: OpId,
    /// Its size, entity tag, checksum and attributes.
    pub metax: Metax,
    /// Where it is.
    pub body: Body,
    /// All its bytes, if they were read while it was looked up.
    pub bytes: Option<Bytes>,
    /// The parts in which another region took it. Here its bytes lie as those of any object.
    pub remote_parts: Vec<PartRef>,
    /// The store that has its bytes, if this one does not have them yet.
    pub remote: Option<Arc<dyn Remote>>,
}

impl Opened {
    /// True if its parts can be asked for one by one, with their checksums ([`Objects::part`](crate::Objects::part)).
    #[must_use]
    pub fn keeps_parts(&self) -> bool {
        matches!(self.body, Body::Parts { .. })
    }

    /// The parts of an object that was uploaded in parts; empty for others.
    #[must_use]
    pub fn parts(&self) -> &[PartRef] {
        match &self.body {
            Body::Parts { parts, .. } => parts,
            _ => &self.remote_parts,
        }
    }
}
