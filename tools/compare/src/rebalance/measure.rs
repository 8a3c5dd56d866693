//! Measures of evenness: of the disks in one week, and averaged over all weeks.

use super::cluster::{Cluster, Load};

/// By which age reads are asked for. The first is that of the plots.
pub(super) const AGES: [Age; 3] = [
    Age { name: "(1 + age)^−1.5", of_age: |weeks| 1.0 / (after(weeks) * after(weeks).sqrt()) },
    Age { name: "(1 + age)^−1", of_age: |weeks| 1.0 / after(weeks) },
    Age { name: "(1 + age)^−2", of_age: |weeks| 1.0 / (after(weeks) * after(weeks)) },
];
/// Bytes read for one that is written.
const READS_PER_WRITE: f64 = 19.0;
/// Seconds of a week.
const WEEK_S: f64 = 7.0 * 24.0 * 3600.0;
const KIB_PER_MIB: f64 = 1024.0;

fn after(weeks: u32) -> f64 {
    f64::from(weeks) + 1.0
}

/// Reads of a byte by its age in weeks.
pub(super) struct Age {
    pub(super) name: &'static str,
    pub(super) of_age: fn(u32) -> f64,
}

/// A figure of all disks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shape {
    pub(super) mean: f64,
    pub(super) deviation: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Shape {
    pub(super) fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { mean, deviation: (squares / count).sqrt(), min, max }
    }

    pub(super) fn range(&self) -> f64 {
        self.max - self.min
    }
}

/// The figures of disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Figure {
    /// KiB read in a second, by the age of this place among [`AGES`].
    Reads(usize),
    /// KiB written in a second.
    Writes,
    /// Bytes in use, in percent of the disk.
    Use,
}

/// The end of a week, after all moves.
#[derive(Debug, Clone)]
pub(super) struct Week {
    pub(super) servers: usize,
    pub(super) joined: bool,
    reads: Vec<Shape>,
    writes: Shape,
    used: Shape,
    /// Bytes moved in it.
    pub(super) moved: Moved,
    /// The least that had to be moved at its begin for all disks to be as full as the average.
    pub(super) least_mib: u64,
}

/// Moves of a week.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) volumes: u64,
    pub(super) mib: u64,
    /// Those of them that took writes.
    pub(super) written_volumes: u64,
    pub(super) written_mib: u64,
}

impl Week {
    pub(super) fn of(cluster: &Cluster, joined: bool, moved: Moved, least_mib: u64) -> Self {
        let ages: Vec<&dyn Fn(u32) -> f64> =
            AGES.iter().map(|age| &age.of_age as &dyn Fn(u32) -> f64).collect();
        let loads = cluster.loads(&ages);
        let setup = &cluster.setup;
        let size_mib = (u64::from(setup.pvs) * setup.volume_mib) as f64;
        let shape = |figure: &dyn Fn(&Load) -> f64| {
            Shape::of(&loads.iter().map(figure).collect::<Vec<f64>>())
        };
        let per_s = |mib: f64| mib * KIB_PER_MIB / WEEK_S;
        let read_mib = READS_PER_WRITE * setup.weekly_mib as f64;
        let reads = (0..AGES.len()).map(|age| {
            let whole: f64 = loads.iter().map(|load| load.reads[age]).sum();
            shape(&|load| per_s(load.reads[age] / whole * read_mib))
        });
        Self {
            servers: loads.len() / setup.disks_per_server as usize,
            joined,
            reads: reads.collect(),
            writes: shape(&|load| per_s(load.writes_mib as f64)),
            used: shape(&|load| 100.0 * load.used_mib as f64 / size_mib),
            moved,
            least_mib,
        }
    }

    pub(super) fn shape(&self, figure: Figure) -> &Shape {
        match figure {
            Figure::Reads(age) => &self.reads[age],
            Figure::Writes => &self.writes,
            Figure::Use => &self.used,
        }
    }
}

/// Bytes above the average of all disks, which are alike: each of them has to move at least.
pub(super) fn least_mib(cluster: &Cluster) -> u64 {
    let loads = cluster.loads(&[]);
    let all: u64 = loads.iter().map(|load| load.used_mib).sum();
    let ideal = all / loads.len() as u64;
    loads.iter().map(|load| load.used_mib.saturating_sub(ideal)).sum()
}

/// The sum over all weeks.
pub(super) fn over(weeks: &[Week], of: impl Fn(&Week) -> f64) -> f64 {
    weeks.iter().map(of).sum()
}
