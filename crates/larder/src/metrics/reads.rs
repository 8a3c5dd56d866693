//! Counters of reads in placement groups, for a store and for a meta server of a cluster.

use larder_roles::meta::Meta;

/// Name without prefix, help, value.
type Metric = (&'static str, &'static str, f64);

pub(super) fn counters(meta: &Meta) -> [Metric; 2] {
    let (mut waited, mut passed) = (0, 0);
    for pg in meta.pg_ids() {
        let gauges = meta.gauges(pg);
        waited += gauges.reads_waited;
        passed += gauges.reads_passed;
    }
    [
        ("reads_waited", "Reads that waited for puts of their key", waited as f64),
        (
            "reads_passed",
            "Reads of these answered while later puts of their key had no outcome",
            passed as f64,
        ),
    ]
}
