//! A log-linear histogram of durations: bounded memory, a known error, nothing lost at the far end.
//!
//! # Invariants
//! - A quantile is never below the true one and at most 1/[`SUB_BUCKETS`] above it.
//! - Every nanosecond count a `u64` can hold has a bucket; recording never allocates.

use std::time::Duration;

const SUB_BITS: u32 = 7;
/// Buckets between a power of two and the next.
pub const SUB_BUCKETS: usize = 1 << SUB_BITS;
/// Values below [`SUB_BUCKETS`] have one each; every higher power of two has as many again.
const BUCKETS: usize = SUB_BUCKETS * (u64::BITS - SUB_BITS + 1) as usize;

/// Counts of durations.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Box<[u64]>,
    total: u64,
    largest: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into_boxed_slice(), total: 0, largest: 0 }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
        self.largest = self.largest.max(nanos);
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.largest = self.largest.max(other.largest);
    }

    /// The duration that a `per_million` of all do not exceed; `None` if nothing was recorded.
    ///
    /// # Panics
    /// If `per_million` is more than a million.
    #[must_use]
    pub fn quantile(&self, per_million: u32) -> Option<Duration> {
        assert!(per_million <= 1_000_000, "a quantile is a share of the whole");
        let rank = (u128::from(self.total) * u128::from(per_million)).div_ceil(1_000_000).max(1);
        let mut seen = 0u128;
        for (index, &count) in self.counts.iter().enumerate() {
            seen += u128::from(count);
            if seen >= rank {
                return Some(Duration::from_nanos(top(index).min(self.largest)));
            }
        }
        assert_eq!(self.total, 0, "the counts add up to the total");
        None
    }
}

/// The bucket that holds `nanos`.
fn bucket(nanos: u64) -> usize {
    if nanos < SUB_BUCKETS as u64 {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - SUB_BITS;
    // The leading bit is in the bucket's group already; the next SUB_BITS choose inside it.
    let inside = (nanos >> shift) as usize - SUB_BUCKETS;
    (shift as usize + 1) * SUB_BUCKETS + inside
}

/// The largest value of a bucket.
fn top(index: usize) -> u64 {
    if index < SUB_BUCKETS {
        return index as u64;
    }
    let shift = index / SUB_BUCKETS - 1;
    let first = ((index % SUB_BUCKETS + SUB_BUCKETS) as u64) << shift;
    first + ((1u64 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_a_bucket_at_most_a_part_above_it() {
        let mut values: Vec<u64> = (0..64u32)
            .flat_map(|bit| {
                let power = 1u64 << bit;
                [power - 1, power, power + power / 3, power + power / 2 + 1]
            })
            .collect();
        values.push(u64::MAX);
        for value in values {
            let top = top(bucket(value));
            assert!(top >= value, "{value}");
            assert!(top - value <= value / SUB_BUCKETS as u64, "{value} {top}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn buckets_follow_each_other_without_gap() {
        for index in 1..BUCKETS {
            assert_eq!(bucket(top(index - 1) + 1), index);
        }
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(500_000), None);
        let values: Vec<u64> = (0..10_000u64).map(|i| 1_000 + i * i).collect();
        values.iter().for_each(|&nanos| histogram.record(Duration::from_nanos(nanos)));
        for per_million in [1, 500_000, 990_000, 999_000, 1_000_000] {
            let rank = (values.len() * per_million as usize).div_ceil(1_000_000);
            let exact = values[rank - 1];
            let found = histogram.quantile(per_million).unwrap().as_nanos() as u64;
            assert!(found >= exact && found - exact <= exact / SUB_BUCKETS as u64, "{per_million}");
        }
    }

    #[test]
    fn merging_equals_recording_in_one() {
        let (mut left, mut right, mut both) =
            (Histogram::default(), Histogram::default(), Histogram::default());
        for nanos in [3, 500, 80_000, 7_000_000_000] {
            let half = if nanos % 2 == 0 { &mut left } else { &mut right };
            half.record(Duration::from_nanos(nanos));
            both.record(Duration::from_nanos(nanos));
        }
        left.merge(&right);
        for per_million in [250_000, 500_000, 750_000, 1_000_000] {
            assert_eq!(left.quantile(per_million), both.quantile(per_million));
        }
    }
}
