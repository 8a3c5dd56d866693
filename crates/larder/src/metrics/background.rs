//! Counts of background work, in a store and in a cluster's meta server.

use larder_roles::meta::Meta;

use super::Metric;

pub(super) fn counters(meta: &Meta) -> Vec<Metric> {
    let now = meta.background_now();
    let mut all = vec![
        ("background_yields", "Times that background work yielded to clients", now.yields as f64),
        ("background_scrub_bytes", "Bytes of copies sent to be verified", now.scrub_bytes as f64),
        ("background_rebuild_bytes", "Bytes of copies ordered", now.rebuild_bytes as f64),
        ("background_digest_bytes", "Bytes of rows read to be summed", now.digest_bytes as f64),
    ];
    let compaction = meta.compaction_now();
    all.extend([
        ("compaction_walks", "Walks over the index to compact volumes", compaction.walks as f64),
        (
            "compaction_moved_chunks",
            "Chunks copied to another place in their volume",
            compaction.chunks as f64,
        ),
        ("compaction_moved_bytes", "Bytes of such chunks", compaction.bytes as f64),
        (
            "compaction_failed_chunks",
            "Chunks that could not be copied to another place",
            compaction.failed as f64,
        ),
        (
            "log_trimmed_bytes",
            "Bytes of the log given up since the start",
            meta.log_counters().trimmed_bytes as f64,
        ),
    ]);
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
    if let Some(digests) = meta.digests_now() {
        all.extend([
            ("digest_comparisons", "Comparisons of members' indexes begun", digests.begun as f64),
            ("digest_equal", "Comparisons that found all equal", digests.found_equal as f64),
            (
                "digest_odd",
                "Comparisons that found one member with other rows than most",
                digests.found_odd as f64,
            ),
            (
                "digest_unclear",
                "Comparisons that found different rows, and no majority",
                digests.found_unclear as f64,
            ),
            ("digest_void", "Comparisons without a result", digests.void as f64),
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
        (
            "compaction_fragmented_volumes",
            "Badly fragmented volumes at the last look",
            meta.compaction_now().fragmented as f64,
        ),
        (
            "log_untrimmed_bytes",
            "Bytes of the log that are kept, or not trimmed yet",
            meta.log_counters().untrimmed_bytes as f64,
        ),
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
    if let Some(digests) = meta.digests_now() {
        all.extend([
            (
                "digest_period_seconds",
                "Seconds within which the members of each group are to be compared",
                digests.period_ms as f64 / 1000.0,
            ),
            (
                "digest_oldest_seconds",
                "Seconds since the members of a group were found equal, where that is longest",
                digests.oldest_ms as f64 / 1000.0,
            ),
            (
                "digest_differing_groups",
                "Groups whose members were found to differ, and not equal since",
                digests.differing as f64,
            ),
        ]);
    }
    all
}
