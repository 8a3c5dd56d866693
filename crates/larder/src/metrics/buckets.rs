//! Objects and bytes of each bucket, in a store and in a cluster's meta server: of the groups that it leads.

use std::fmt::Write;

use larder_protocol::ledger::ObjectCount;
use larder_roles::meta::Meta;
use larder_types::BucketName;

use super::write_gauge;

/// Buckets that are shown by name: those with the most bytes. A label for each of all that there may be would be more than
/// Prometheus is to keep.
const BUCKETS_SHOWN_MAX: usize = 100;

/// A number of a bucket: its name, its help, and how it is read.
type OfBucket = (&'static str, &'static str, fn(&ObjectCount) -> u64);

const OF_BUCKET: [OfBucket; 2] = [
    (
        "bucket_objects",
        "Objects of the bucket in the placement groups that the server leads",
        |it| it.objects,
    ),
    ("bucket_bytes", "Bytes of the bucket's objects, as clients see them", |it| it.bytes),
];

/// The part of the metrics that tells of buckets.
#[derive(Debug, PartialEq, Eq)]
struct BucketRanking {
    by_name: Vec<(BucketName, ObjectCount)>,
    /// Buckets that are not shown by name, and what they have.
    rest: usize,
    of_rest: ObjectCount,
}

impl BucketRanking {
    /// The largest of these by name, the rest in sum.
    fn of(mut buckets: Vec<(Option<BucketName>, ObjectCount)>) -> Self {
        // Of equally large ones the same at each scrape.
        buckets.sort_by(|(name, one), (other_name, other)| {
            (other.bytes, name).cmp(&(one.bytes, other_name))
        });
        let (mut by_name, mut rest, mut of_rest) = (Vec::new(), 0, ObjectCount::default());
        for (name, count) in buckets {
            match name.filter(|_| by_name.len() < BUCKETS_SHOWN_MAX) {
                Some(name) => by_name.push((name, count)),
                None => {
                    rest += 1;
                    of_rest.objects = of_rest.objects.saturating_add(count.objects);
                    of_rest.bytes = of_rest.bytes.saturating_add(count.bytes);
                }
            }
        }
        Self { by_name, rest, of_rest }
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        for (name, help, of) in OF_BUCKET {
            writeln!(out, "# HELP larder_{name} {help}.\n# TYPE larder_{name} gauge")?;
            for (bucket, count) in &self.by_name {
                writeln!(out, "larder_{name}{{bucket=\"{bucket}\"}} {}", of(count))?;
            }
        }
        let Self { rest, of_rest: ObjectCount { objects, bytes }, .. } = *self;
        write_gauge(out, "buckets_not_shown", "Buckets that are not shown by name", rest as f64)?;
        write_gauge(out, "buckets_not_shown_objects", "Objects of those buckets", objects as f64)?;
        write_gauge(out, "buckets_not_shown_bytes", "Bytes of those objects", bytes as f64)
    }
}

pub(super) fn write(meta: &Meta, out: &mut String) -> std::fmt::Result {
    let used = meta.bucket_use();
    let names = meta.bucket_names();
    let named = used.counts.iter().map(|(bucket, count)| (names.get(bucket).cloned(), *count));
    BucketRanking::of(named.collect()).write(out)?;
    let help = "Placement groups that the server leads, and whose objects are not counted yet";
    write_gauge(out, "pgs_uncounted", help, used.uncounted as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(name: &str, objects: u64, bytes: u64) -> (Option<BucketName>, ObjectCount) {
        (Some(BucketName::new(name).expect("a name")), ObjectCount { objects, bytes })
    }

    #[test]
    fn the_largest_are_shown_by_name_and_the_rest_in_sum() {
        let mut all: Vec<_> = (0..BUCKETS_SHOWN_MAX as u64 + 2)
            .map(|at| bucket(&format!("bucket-{at:03}"), 2, 1000 + at))
            .collect();
        all.push((None, ObjectCount { objects: 1, bytes: 1 << 40 }));
        let shown = BucketRanking::of(all);
        assert_eq!(shown.by_name.len(), BUCKETS_SHOWN_MAX);
        assert_eq!(shown.by_name[0].0.as_str(), "bucket-101");
        let of_rest = ObjectCount { objects: 5, bytes: (1 << 40) + 1000 + 1001 };
        assert_eq!((shown.rest, shown.of_rest), (3, of_rest), "one of them has no name any more");
    }

    #[test]
    fn a_bucket_is_written_with_its_name() {
        let mut out = String::new();
        BucketRanking::of(vec![bucket("photos", 3, 70), bucket("empty", 1, 0)])
            .write(&mut out)
            .unwrap();
        for line in [
            "larder_bucket_objects{bucket=\"photos\"} 3",
            "larder_bucket_bytes{bucket=\"photos\"} 70",
            "larder_bucket_bytes{bucket=\"empty\"} 0",
            "larder_buckets_not_shown 0",
        ] {
            assert!(out.lines().any(|it| it == line), "{line} in {out}");
        }
    }
}
