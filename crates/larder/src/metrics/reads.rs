//! Counters of placement groups: reads that wait, rows that go in steps, pieces that are coalesced; for a store and for a meta server of a cluster.

use larder_roles::meta::Meta;

use super::Metric;

pub(super) fn gauge(meta: &Meta) -> Metric {
    let reaping = meta.pg_ids().filter(|pg| meta.gauges(*pg).is_reaping).count();
    let help = "Placement groups led here in which rows of large objects are being removed";
    ("pgs_reaping", help, reaping as f64)
}

pub(super) fn counters(meta: &Meta) -> [Metric; 5] {
    let (mut waited, mut passed, mut reaped) = (0, 0, 0);
    let (mut pieces, mut void) = (0, 0);
    for pg in meta.pg_ids() {
        let gauges = meta.gauges(pg);
        waited += gauges.reads_waited;
        passed += gauges.reads_passed;
        reaped += gauges.reaped_rows;
        pieces += gauges.coalesced.pieces;
        void += gauges.coalesced.void;
    }
    [
        ("reads_waited", "Reads that waited for puts of their key", waited as f64),
        (
            "reads_passed",
            "Reads of these answered while later puts of their key had no outcome",
            passed as f64,
        ),
        ("reaped_rows", "Rows of large objects that were removed in steps", reaped as f64),
        ("coalesced_pieces", "Pieces of objects that became part of larger ones", pieces as f64),
        (
            "coalesce_void",
            "Pieces that were stored as one, while their object became another",
            void as f64,
        ),
    ]
}
