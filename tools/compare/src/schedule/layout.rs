//! The disks that hold a placement group, and the keys that are asked for.

use larder_types::DiskId;

use larder_bench::workload::Random;

/// Copies of everything.
pub(super) const COPIES: usize = 3;

/// Placement of groups on disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// Three servers at random, and on each a disk at random: disks have more or fewer, as with hashes.
    Hashed,
    /// As many groups on each disk, and as many of which it is the first.
    Even,
}

/// The disks of each group, the primary's first. Disk d is of server d mod `servers`.
pub(super) fn layout(
    placement: Placement,
    (servers, disks, groups): (u64, u64, u64),
    dice: &mut Random,
) -> Vec<[DiskId; COPIES]> {
    let per_server = disks / servers;
    assert!(per_server * servers == disks && servers >= COPIES as u64, "copies on three servers");
    let of_group = |group: u64| match placement {
        Placement::Hashed => {
            let mut all: Vec<u64> = (0..servers).collect();
            [(); COPIES].map(|()| {
                let server = all.swap_remove(dice.below(all.len() as u64) as usize);
                DiskId((server + servers * dice.below(per_server)) as u32)
            })
        }
        Placement::Even => {
            // Each round gives every disk one group, with the others at distances that differ from round to round.
            let (first, round) = (group % disks, group / disks);
            let near = 1 + round % (servers - 1);
            let far = 1 + (round + 1 + round / (servers - 1) % (servers - 2)) % (servers - 1);
            [0, near, far].map(|server| {
                let by = if server == 0 { 0 } else { server + servers * (round * 7 % per_server) };
                DiskId(((first + by) % disks) as u32)
            })
        }
    };
    (0..groups).map(of_group).collect()
}

/// A number drawn evenly from 0 to below 1.
pub(super) fn share(dice: &mut Random) -> f64 {
    const PARTS: u64 = 1 << 53;
    dice.below(PARTS) as f64 / PARTS as f64
}

/// The keys that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    Uniform,
    /// Zipf with exponent 0.99, as in YCSB.
    Zipf,
}

impl Keys {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "Zipf 0.99",
        }
    }
}

const ZIPF_EXPONENT: f64 = 0.99;

/// Draws keys.
#[derive(Debug)]
pub(super) struct KeyDraw {
    objects: u64,
    /// The share of the keys up to each, by their frequency; empty if all are alike.
    cumulated: Vec<f64>,
}

impl KeyDraw {
    pub(super) fn new(keys: Keys, objects: u64) -> Self {
        let cumulated = match keys {
            Keys::Uniform => Vec::new(),
            Keys::Zipf => {
                let weights = (1..=objects).map(|rank| (rank as f64).powf(-ZIPF_EXPONENT));
                let sums: Vec<f64> = weights
                    .scan(0.0, |sum, weight| {
                        *sum += weight;
                        Some(*sum)
                    })
                    .collect();
                let all = sums.last().copied().unwrap_or(1.0);
                sums.into_iter().map(|sum| sum / all).collect()
            }
        };
        Self { objects, cumulated }
    }

    pub(super) fn draw(&self, dice: &mut Random) -> u64 {
        if self.cumulated.is_empty() {
            return dice.below(self.objects);
        }
        let share = share(dice);
        let rank = self.cumulated.partition_point(|sum| *sum <= share);
        (rank as u64).min(self.objects - 1)
    }
}

/// The group of a key.
pub(super) fn group(key: u64, groups: u64) -> usize {
    Random(key).below(groups) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn copies_lie_on_different_servers() {
        for placement in [Placement::Hashed, Placement::Even] {
            for shape in [(5, 30, 512), (3, 6, 64), (4, 12, 512)] {
                for disks in layout(placement, shape, &mut Random(1)) {
                    let servers = disks.map(|disk| u64::from(disk.0) % shape.0);
                    let [a, b, c] = servers;
                    assert!(a != b && b != c && a != c, "{placement:?} {shape:?}: {disks:?}");
                }
            }
        }
    }

    #[test]
    fn an_even_layout_gives_each_disk_as_much() {
        let groups = layout(Placement::Even, (5, 30, 480), &mut Random(1));
        let mut all = BTreeMap::<DiskId, [u32; 2]>::new();
        for disks in groups {
            all.entry(disks[0]).or_default()[0] += 1;
            disks.iter().for_each(|disk| all.entry(*disk).or_default()[1] += 1);
        }
        assert_eq!(all.len(), 30);
        assert!(all.values().all(|counts| *counts == [16, 48]), "{all:?}");
    }

    #[test]
    fn zipf_asks_for_the_first_key_as_often_as_it_says() {
        let (keys, mut dice) = (KeyDraw::new(Keys::Zipf, 100_000), Random(1));
        let drawn: Vec<u64> = (0..100_000).map(|_| keys.draw(&mut dice)).collect();
        // 1 / sum of r^-0.99 over 100,000.
        let first = drawn.iter().filter(|key| **key == 0).count();
        assert!((7500..8500).contains(&first), "{first}");
        assert!(drawn.iter().any(|key| *key > 50_000));
    }
}
