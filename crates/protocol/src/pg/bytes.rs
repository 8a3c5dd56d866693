//! Bytes of the ops that a member may have to tell another in one message: those above its commit point in a report, and
//! open puts in a snapshot's header. A primary takes no more calls while there are too many.
//!
//! # Invariants
//!
//! 1. `tail_bytes` and `open_bytes` are the weights of what is in `tail` and `open`; these change through here alone.
//! 2. No op is encoded in more bytes than its weight.

use larder_types::codec::encode;
use larder_types::limits::CHUNK_EXTENTS_MAX;
use larder_types::{Attributes, Body, Op, OpSeq, Put};

use super::{OpenPut, Pg, TailEntry};
use crate::limits::{OPEN_BYTES_MAX, PUT_WEIGHT_MIN, TAIL_BYTES_MAX, TAIL_OPS_MAX};
use crate::message::{Call, Content};

/// Most bytes of a number.
const NUMBER: usize = 10;

impl Pg {
    /// Whether the tail has no room for another op: there is some when ops are committed and applied.
    pub(super) fn tail_is_full(&self) -> bool {
        self.tail.len() >= TAIL_OPS_MAX || self.tail_bytes >= TAIL_BYTES_MAX
    }

    /// Whether a call would open a put, and there is no room for another: there is some when one has an outcome.
    pub(super) fn opens_too_many(&self, call: &Call) -> bool {
        let has_data = match call {
            Call::Put(put) => matches!(put.content, Content::Data { .. }),
            _ => false,
        };
        has_data && self.open_bytes >= OPEN_BYTES_MAX
    }

    pub(super) fn push_tail(&mut self, entry: TailEntry) {
        self.tail_bytes += weight(&entry.entry.op);
        self.tail.push_back(entry);
    }

    pub(super) fn pop_tail_front(&mut self) -> Option<TailEntry> {
        let popped = self.tail.pop_front()?;
        self.tail_bytes -= weight(&popped.entry.op);
        Some(popped)
    }

    pub(super) fn pop_tail_back(&mut self) -> Option<TailEntry> {
        let popped = self.tail.pop_back()?;
        self.tail_bytes -= weight(&popped.entry.op);
        Some(popped)
    }

    pub(super) fn insert_open(&mut self, open: OpenPut) {
        self.open_bytes += weight(&open.put);
        // The log of one that took a snapshot tells of it twice.
        if let Some(before) = self.open.insert(open.id.seq, open) {
            self.open_bytes -= weight(&before.put);
        }
    }

    pub(super) fn remove_open(&mut self, put: OpSeq) -> Option<OpenPut> {
        let open = self.open.remove(&put)?;
        self.open_bytes -= weight(&open.put);
        Some(open)
    }

    /// Forgets the tail and open puts.
    pub(super) fn clear_tail_and_open(&mut self) {
        self.tail.clear();
        self.open.clear();
        (self.tail_bytes, self.open_bytes) = (0, 0);
    }
}

/// See the module's head. Of puts, which are most of all that is long, it is added up and not encoded.
fn weight(op: &Op) -> usize {
    match op {
        Op::Put(put) | Op::PutEnough { put, .. } => put_weight(put),
        op => encode(op).len(),
    }
}

fn put_weight(put: &Put) -> usize {
    let metax = &put.metax;
    let checksum = metax.checksum.as_ref().map_or(0, |checksum| checksum.value.len());
    let body = match &put.body {
        Body::Inline(bytes) => bytes.len(),
        // It may get another place, in as many extents as there may be.
        Body::Chunk(chunk) => chunk.sums.len() * NUMBER + CHUNK_EXTENTS_MAX * 2 * NUMBER,
        Body::Parts { parts, .. } => parts.len() * 2 * NUMBER,
        Body::Stream { .. } | Body::Pieces { .. } => 0,
    };
    PUT_WEIGHT_MIN + put.key.as_str().len() + checksum + attributes_weight(&metax.attributes) + body
}

fn attributes_weight(attributes: &Attributes) -> usize {
    let Attributes {
        content_type,
        cache_control,
        content_disposition,
        content_encoding,
        content_language,
        expires,
        website_redirect,
        storage_class,
        user,
        tags,
    } = attributes;
    let texts = [
        content_type,
        cache_control,
        content_disposition,
        content_encoding,
        content_language,
        expires,
        website_redirect,
        storage_class,
    ];
    let texts = texts.into_iter().flatten().map(|text| text.len() + NUMBER);
    let pairs = user.iter().chain(tags).map(|(name, value)| name.len() + value.len() + 2 * NUMBER);
    texts.chain(pairs).sum()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use larder_types::{
        BucketId, ChecksumAlgorithm, ChecksumKind, Chunk, ETag, Extent, Grant, Holders,
        HybridClock, LvId, Metax, ObjectChecksum, ObjectKey, OpId, PartRef, PgId, RegionId,
        Request, Retention, SessionId, StreamId, Target, UploadId, View,
    };

    use super::*;

    /// A put whose numbers are all long.
    fn put(key: &str, attributes: Attributes, body: Body) -> Op {
        let metax = Metax {
            size: u64::MAX,
            clock: HybridClock(u64::MAX),
            region: RegionId(u16::MAX),
            etag: ETag::Parts([255; 16], u32::MAX),
            checksum: Some(ObjectChecksum {
                algorithm: ChecksumAlgorithm::Sha256,
                kind: ChecksumKind::Composite,
                value: vec![255; 32],
                parts: Some(u32::MAX),
            }),
            attributes,
            expires_ms: Some(u64::MAX),
            encryption: None,
            retention: Some(Retention { until_ms: u64::MAX, governance: true, legal_hold: true }),
        };
        let session = SessionId(u64::MAX);
        Op::Put(Box::new(Put {
            request: Request { session, number: u64::MAX, floor: u64::MAX },
            bucket: BucketId(u64::MAX),
            key: ObjectKey::new(key).unwrap(),
            target: Target::Chunk {
                stream: StreamId { session, number: u64::MAX },
                number: u32::MAX,
            },
            metax,
            body,
        }))
    }

    #[test]
    fn no_op_is_longer_than_its_weight() {
        let op = OpId { view: View(u64::MAX), seq: OpSeq(u64::MAX) };
        let extent = Extent { first: u32::MAX, blocks: u32::MAX };
        let chunk = |sums| Chunk {
            grant: Grant { pg: PgId(u32::MAX), op, attempt: u32::MAX },
            seed: u64::MAX,
            lv: LvId(u32::MAX),
            extents: vec![extent; CHUNK_EXTENTS_MAX],
            len: u32::MAX,
            sums: vec![u64::MAX; sums],
            holders: Holders(u16::MAX),
        };
        let pairs = vec![("a".repeat(200), "b".repeat(20_000)); 10];
        let all = Attributes {
            content_type: Some("a".repeat(20_000)),
            storage_class: Some(String::new()),
            user: pairs.clone(),
            tags: pairs,
            ..Attributes::default()
        };
        let upload = UploadId { pg: PgId(u32::MAX), op };
        let parts = vec![PartRef { number: u16::MAX, len: u64::MAX }; 10_000];
        for (attributes, body) in [
            (Attributes::default(), Body::Inline(Bytes::new())),
            (all.clone(), Body::Inline(Bytes::from(vec![0; 2048]))),
            (Attributes::default(), Body::Chunk(chunk(0))),
            (all.clone(), Body::Chunk(chunk(128))),
            (all, Body::Parts { upload, parts }),
        ] {
            for key in ["k", &"k".repeat(1024)] {
                let op = put(key, attributes.clone(), body.clone());
                let (bytes, weight) = (encode(&op).len(), weight(&op));
                assert!(bytes <= weight, "{bytes} bytes in {weight}");
            }
        }
    }
}
