//! Detects sequential reads of keys in the order of a list. Pure.
//!
//! A sequence is known by the last key that was read, or read ahead, for it. A read that had to ask the backend goes
//! on with a sequence if its key is among the next few. The second time that it does so is no chance: from then on
//! more is read ahead each time.

use std::collections::VecDeque;

use larder_types::{BucketId, ObjectKey};

use crate::limits::{AHEAD_BYTES_START, AHEAD_DOUBLED_MAX, SEQUENCES_MAX};

/// Sequences of reads, the one used last at the end.
#[derive(Debug, Default)]
pub(crate) struct Sequences {
    known: VecDeque<Sequence>,
}

/// Keys of a bucket that are read in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sequence {
    pub(crate) bucket: BucketId,
    pub(crate) last: ObjectKey,
    /// Times that it went on.
    pub(crate) steps: u32,
}

impl Sequence {
    /// Bytes to read ahead with its last key, of `most`.
    pub(crate) fn ahead_bytes(&self, most: u64) -> u64 {
        let Some(doubled) = self.steps.checked_sub(2) else { return 0 };
        (AHEAD_BYTES_START << doubled.min(AHEAD_DOUBLED_MAX)).min(most)
    }
}

impl Sequences {
    /// The sequence that a key may go on with: the one that came closest before it, in the same
    /// directory. The index says if it does.
    pub(crate) fn before(&self, bucket: BucketId, key: &ObjectKey) -> Option<Sequence> {
        let fits = |sequence: &&Sequence| {
            sequence.bucket == bucket
                && sequence.last < *key
                && directory(&sequence.last) == directory(key)
        };
        self.known.iter().filter(fits).max_by(|a, b| a.last.cmp(&b.last)).cloned()
    }

    /// `from` goes on up to `to`; without one, `to` begins a sequence.
    pub(crate) fn goes_on(&mut self, from: Option<&Sequence>, to: Sequence) {
        self.known.retain(|known| Some(known) != from && *known != to);
        if self.known.len() >= SEQUENCES_MAX {
            self.known.pop_front();
        }
        self.known.push_back(to);
    }
}

/// A key up to its last slash.
fn directory(key: &ObjectKey) -> &str {
    key.as_str().rfind('/').map_or("", |slash| &key.as_str()[..slash])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(key: &str, steps: u32) -> Sequence {
        Sequence { bucket: BucketId(1), last: ObjectKey::new(key).unwrap(), steps }
    }

    fn before(sequences: &Sequences, key: &str) -> Option<Sequence> {
        sequences.before(BucketId(1), &ObjectKey::new(key).unwrap())
    }

    #[test]
    fn a_key_goes_on_with_the_closest_before_it_in_its_directory() {
        let mut sequences = Sequences::default();
        for key in ["a/1", "a/5", "b/1"] {
            sequences.goes_on(None, sequence(key, 0));
        }
        assert_eq!(before(&sequences, "a/6"), Some(sequence("a/5", 0)));
        assert_eq!(before(&sequences, "a/3"), Some(sequence("a/1", 0)));
        assert_eq!(before(&sequences, "a/0"), None);
        assert_eq!(before(&sequences, "a/1"), None, "itself");
        assert_eq!(before(&sequences, "c/1"), None);
        assert_eq!(sequences.before(BucketId(2), &ObjectKey::new("a/6").unwrap()), None);
        sequences.goes_on(Some(&sequence("a/5", 0)), sequence("a/9", 1));
        assert_eq!(before(&sequences, "a/6"), Some(sequence("a/1", 0)), "a/5 went on");
    }

    #[test]
    fn it_doubles_up_to_the_most_and_old_ones_are_forgotten() {
        let most = 8 * AHEAD_BYTES_START;
        let ahead =
            [0, 1, 2, 3, 5, 6, u32::MAX].map(|steps| sequence("k", steps).ahead_bytes(most));
        let start = AHEAD_BYTES_START;
        assert_eq!(ahead, [0, 0, start, 2 * start, most, most, most]);
        assert_eq!(sequence("k", 9).ahead_bytes(10), 10);
        let mut sequences = Sequences::default();
        for number in 0..2 * SEQUENCES_MAX {
            sequences.goes_on(None, sequence(&format!("d{number}/k"), 0));
        }
        assert_eq!(sequences.known.len(), SEQUENCES_MAX);
        assert_eq!(before(&sequences, "d0/l"), None);
    }
}
