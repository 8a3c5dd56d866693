//! Chooses the blobs and bundles that are repacked, and their order. Pure.
//!
//! There are two reasons: bytes that no object needs, and blobs or bundles so small that requests are all they cost. A
//! blob whose bodies are below `below` percent live is worth copying. At 80 % all blobs together take at most 1.25
//! times what is live, and a byte freed costs four copied at worst. Of small blobs, many of about one size become one.

use std::collections::BTreeMap;

use crate::format::entry::Container;
use crate::limits::{SMALL_BLOB_SHARE, SMALL_BLOBS_MAX};

/// A blob that is in the backend and stands, or a bundle that is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) container: Container,
    /// Bytes of bodies.
    pub(crate) bodies: u64,
    /// Bytes of these that are live.
    pub(crate) live: u64,
    /// Bytes of all of it, about.
    pub(crate) bytes: u64,
}

/// Returns the candidates that are worth repacking, the most worth first.
pub(crate) fn choose(all: &[Candidate], below_percent: u8, blob_bytes: u64) -> Vec<Candidate> {
    let is_dead = |some: &&Candidate| {
        let (live, bodies) = (u128::from(some.live), u128::from(some.bodies));
        live * 100 < bodies * u128::from(below_percent)
    };
    let mut chosen: Vec<Candidate> = all.iter().filter(is_dead).copied().collect();
    // By the share that is live; a cross product keeps to whole numbers.
    chosen.sort_by(|a, b| {
        let share = |x: &Candidate, y: &Candidate| u128::from(x.live) * u128::from(y.bodies);
        share(a, b).cmp(&share(b, a)).then(a.container.cmp(&b.container))
    });
    let mut sizes: BTreeMap<u32, Vec<Candidate>> = BTreeMap::new();
    for some in all {
        if some.bytes < blob_bytes / SMALL_BLOB_SHARE && !is_dead(&some) {
            // Sixteen times as large is another size, so that what became one is not soon taken up again.
            sizes.entry(some.bytes.ilog2() / 4).or_default().push(*some);
        }
    }
    chosen.extend(sizes.into_values().filter(|some| some.len() >= SMALL_BLOBS_MAX).flatten());
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BlobId, StandaloneId, WorkerId};

    const MIB: u64 = 1 << 20;

    fn blob(seq: u64, bodies: u64, live: u64) -> Candidate {
        let container = Container::Blob(BlobId { worker: WorkerId(1), seq });
        Candidate { container, bodies, live, bytes: bodies + 1000 }
    }

    fn bundle(number: u64, bodies: u64, live: u64) -> Candidate {
        let container = Container::Own(StandaloneId { worker: WorkerId(1), run: 0, number });
        Candidate { container, ..blob(number, bodies, live) }
    }

    fn chosen(all: &[Candidate]) -> Vec<u64> {
        let number = |container| match container {
            Container::Blob(blob) => blob.seq,
            Container::Own(own) => own.number,
        };
        choose(all, 80, 64 * MIB).iter().map(|some| number(some.container)).collect()
    }

    #[test]
    fn blobs_below_the_threshold_are_chosen_the_deadest_first() {
        let some = [
            blob(1, 50 * MIB, 50 * MIB),
            blob(2, 50 * MIB, 39 * MIB),
            blob(3, 50 * MIB, 40 * MIB),
            blob(4, 40 * MIB, 0),
            blob(5, 64 * MIB, 10 * MIB),
            bundle(6, 64 * MIB, 20 * MIB),
            bundle(7, 64 * MIB, 60 * MIB),
        ];
        assert_eq!(chosen(&some), [4, 5, 6, 2]);
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
