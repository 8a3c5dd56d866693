//! Which blobs are repacked, and in which order. Pure.
//!
//! Two reasons there are: bytes that nobody needs, and blobs so small that requests are all they cost. A blob whose
//! bodies are `below` percent live is worth copying; at 80 % all blobs together take at most 1.25 times what is live,
//! and a byte freed costs four copied at worst. Of small blobs, many of about one size become one.

use std::collections::BTreeMap;

use crate::entry::BlobId;
use crate::limits::{SMALL_BLOB_SHARE, SMALL_BLOBS_MAX};
use crate::rows::{BlobContent, BlobRow};

/// A blob that is in the backend and stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blob {
    pub(crate) id: BlobId,
    pub(crate) row: BlobRow,
    pub(crate) content: BlobContent,
}

/// What is worth repacking, the most worth first.
pub(crate) fn choose(blobs: &[Blob], below_percent: u8, blob_bytes: u64) -> Vec<Blob> {
    let is_dead = |blob: &&Blob| {
        let (live, all) = (u128::from(blob.content.live), u128::from(blob.row.footer_offset));
        live * 100 < all * u128::from(below_percent)
    };
    let mut chosen: Vec<Blob> = blobs.iter().filter(is_dead).copied().collect();
    // By the share that is live; a cross product keeps to whole numbers.
    chosen.sort_by(|a, b| {
        let share =
            |x: &Blob, y: &Blob| u128::from(x.content.live) * u128::from(y.row.footer_offset);
        share(a, b).cmp(&share(b, a)).then(a.id.cmp(&b.id))
    });
    let mut sizes: BTreeMap<u32, Vec<Blob>> = BTreeMap::new();
    for blob in blobs {
        if blob.row.bytes < blob_bytes / SMALL_BLOB_SHARE && !is_dead(&blob) {
            // Sixteen times as large is another size, so that what became one is not soon taken up again.
            sizes.entry(blob.row.bytes.ilog2() / 4).or_default().push(*blob);
        }
    }
    chosen.extend(sizes.into_values().filter(|some| some.len() >= SMALL_BLOBS_MAX).flatten());
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::WorkerId;
    use larder_types::{HybridClock, OpSeq};

    const MIB: u64 = 1 << 20;

    fn blob(seq: u64, bodies: u64, live: u64) -> Blob {
        let op = OpSeq(seq);
        let content = BlobContent { first: op, last: op, clock: HybridClock(1), end: bodies, live };
        let row = BlobRow { created_ms: 1, footer_offset: bodies, bytes: bodies + 1000 };
        Blob { id: BlobId { worker: WorkerId(1), seq }, row, content }
    }

    fn chosen(blobs: &[Blob]) -> Vec<u64> {
        choose(blobs, 80, 64 * MIB).iter().map(|blob| blob.id.seq).collect()
    }

    #[test]
    fn blobs_below_the_threshold_are_chosen_the_deadest_first() {
        let some = [
            blob(1, 50 * MIB, 50 * MIB),
            blob(2, 50 * MIB, 39 * MIB),
            blob(3, 50 * MIB, 40 * MIB),
            blob(4, 40 * MIB, 0),
            blob(5, 64 * MIB, 10 * MIB),
        ];
        assert_eq!(chosen(&some), [4, 5, 2]);
        let left: u64 = [50, 50].iter().sum();
        let live: u64 = [50, 40].iter().sum();
        assert!(left as f64 / live as f64 <= 1.3);
    }

    #[test]
    fn many_small_blobs_become_one_and_that_one_is_left_alone() {
        let few: Vec<_> = (1..SMALL_BLOBS_MAX as u64).map(|seq| blob(seq, 5000, 5000)).collect();
        assert_eq!(chosen(&few), [0; 0]);
        let mut many = few.clone();
        many.push(blob(1000, 0, 0));
        assert_eq!(chosen(&many), [0; 0], "without bodies it is of another size");
        many.push(blob(1001, 6000, 6000));
        assert_eq!(chosen(&many).len(), SMALL_BLOBS_MAX);
        let merged = [blob(2000, 5000 * SMALL_BLOBS_MAX as u64, 5000 * SMALL_BLOBS_MAX as u64)];
        assert_eq!(chosen(&[&merged[..], &few[..]].concat()), [0; 0]);
    }
}
