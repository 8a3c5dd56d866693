//! What background work counts, in a store and in a cluster's meta server.

use larder_roles::meta::Meta;

/// Name without prefix, help, value.
type Metric = (&'static str, &'static str, f64);

pub(super) fn counters(meta: &Meta) -> Vec<Metric> {
    let now = meta.background_now();
    let mut all = vec![
        ("background_yields", "Times that background work yielded to clients", now.yields as f64),
        ("background_scrub_bytes", "Bytes of copies given to be verified", now.scrub_bytes as f64),
        ("background_rebuild_bytes", "Bytes of copies given to be made", now.rebuild_bytes as f64),
    ];
    if let Some(scrub) = meta.scrub_now() {
        all.extend([
            ("scrub_rounds", "Rounds of the scrub that are over, ever", scrub.rounds as f64),
            ("scrub_right_copies", "Copies that the scrub found right", scrub.right as f64),
            (
                "scrub_bad_copies",
                "Copies that the scrub found damaged",
                scrub.bad_since_start as f64,
            ),
            (
                "scrub_unanswered_copies",
                "Copies that no server verified when it was asked to",
                scrub.unanswered as f64,
            ),
        ]);
    }
    all
}

pub(super) fn gauges(meta: &Meta) -> Vec<Metric> {
    let now = meta.background_now();
    let mut all = vec![
        (
            "background_bytes_per_second_max",
            "Bytes a second that background work may take at most",
            now.bytes_per_s_max as f64,
        ),
        (
            "background_bytes_per_second_allowed",
            "Bytes a second that it may take now",
            now.bytes_per_s_allowed as f64,
        ),
        (
            "background_bytes_per_second",
            "Bytes a second that it has taken of late",
            now.bytes_per_s as f64,
        ),
        ("background_pieces", "Pieces of background work under way", now.under_way as f64),
    ];
    if let Some(scrub) = meta.scrub_now() {
        all.extend([
            (
                "scrub_round_share",
                "Share of the round under way that is done; 0 between two",
                f64::from(scrub.share.unwrap_or(0)) / 1000.0,
            ),
            (
                "scrub_oldest_seconds",
                "Seconds for which a copy may not have been verified",
                scrub.oldest_ms as f64 / 1000.0,
            ),
            (
                "scrub_period_seconds",
                "Seconds within which every copy is to be verified",
                scrub.period_ms as f64 / 1000.0,
            ),
            (
                "scrub_damaged_copies",
                "Damaged copies found by the last whole round, or by the one under way if those are more",
                scrub.bad as f64,
            ),
        ]);
    }
    all
}
