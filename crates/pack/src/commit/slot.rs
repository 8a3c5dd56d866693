//! A change about to be made: its place in the order, and that of its body.

use bytes::Bytes;
use larder_types::{BucketName, HybridClock, OpSeq};

use crate::commit::command::{Body, Done};
use crate::format::entry::{Container, Entry, Place};
use crate::ids::WorkerId;

/// The place of a change in the order, if it is made, and that of its body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) worker: WorkerId,
    pub(crate) seq: OpSeq,
    pub(crate) clock: HybridClock,
    /// The object that a body lies within, and where.
    pub(crate) container: Container,
    pub(crate) offset: u64,
}

/// A change about to be made.
pub(crate) struct Planned {
    /// Name of the bucket that it is about.
    pub(crate) bucket: Option<BucketName>,
    pub(crate) entry: Entry,
    pub(crate) pieces: Vec<Bytes>,
    pub(crate) done: Done,
}

/// The place of a body that is taken, and the pieces that are to be packed there.
pub(crate) fn place(body: Body, slot: &Slot) -> (Place, Vec<Bytes>) {
    match body {
        Body::Packed { pieces, sums } => {
            // No bytes lie nowhere: their place needs no file.
            let offset = if sums.len == 0 { 0 } else { slot.offset };
            (sums.placed(slot.container, offset), pieces)
        }
        Body::There { place, .. } => (place, Vec::new()),
    }
}
