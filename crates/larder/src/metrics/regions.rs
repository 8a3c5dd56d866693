//! Metrics of a region: its lag behind each other region, and the traffic of its links.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use larder_link::{PeerMetrics, PeerStatus};
use larder_roles::regions::Regions;

/// A number of each other region: its name, its help, and how it is read.
type OfPeer = (&'static str, &'static str, fn(&PeerStatus) -> f64);

const BEHIND: [OfPeer; 8] = [
    ("region_behind_operations", "Changes of the region that are not here yet", |it| {
        it.operations_behind as f64
    }),
    ("region_behind_bytes", "Bytes of those changes", |it| it.bytes_behind as f64),
    ("region_behind_seconds", "Age of the oldest of those changes", |it| {
        it.seconds_behind.unwrap_or_default()
    }),
    (
        "region_comparing",
        "1 while all keys are compared: what is behind is not known before that ends",
        |it| f64::from(u8::from(it.comparing)),
    ),
    ("region_unreachable", "1 while the region cannot be reached", |it| {
        f64::from(u8::from(it.unreachable.is_some()))
    }),
    ("region_lacks_seconds", "Seconds for which the region has lacked changes of this one", |it| {
        it.lacks_seconds
    }),
    (
        "region_asked_seconds",
        "Seconds since the region asked for changes of this one, or since the start",
        |it| it.asked_seconds,
    ),
    ("region_stuck", "1 when changes are pending and none was applied for a minute", |it| {
        f64::from(u8::from(it.stuck))
    }),
];

/// A counter of the link to each other region: its name, its help, and how it is read.
type OfLink = (&'static str, &'static str, fn(&PeerMetrics) -> u64);

const PASSED: [OfLink; 8] = [
    ("region_requests", "Requests to the region", |it| it.asked.get()),
    ("region_requests_failed", "Those that were not answered, or declined", |it| it.failed.get()),
    ("region_requests_answered", "Requests of the region", |it| it.answered.get()),
    ("region_requests_declined", "Those that were declined", |it| it.declined.get()),
    ("region_bytes_asked", "Bytes of requests to the region", |it| it.bytes_requested.get()),
    ("region_bytes_received", "Bytes of its answers", |it| it.bytes_told.get()),
    ("region_bytes_sent", "Bytes of answers to it", |it| it.bytes_answered.get()),
    ("region_bytes_spared", "Bytes by which compression made answers to it shorter", |it| {
        it.bytes_spared.get()
    }),
];

pub(super) fn write(regions: &Regions, out: &mut String) -> std::fmt::Result {
    let (counters, homes) = (regions.counters(), regions.homes());
    let links = regions.links();
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    for (name, help, value) in [
        (
            "region_entries_taken",
            "Changes of other regions that were applied",
            load(&counters.taken),
        ),
        ("region_entries_taken_bytes", "Bytes of their objects", load(&counters.taken_bytes)),
        (
            "region_entries_failed",
            "Changes of other regions that could not be taken, and are asked for again",
            load(&counters.failed),
        ),
        (
            "region_entries_told",
            "Changes that other regions fetched here",
            load(&counters.entries_sent),
        ),
        ("region_entries_told_bytes", "Bytes of their objects", load(&counters.sent_bytes)),
        (
            "region_misses",
            "Keys that clients asked for, that were not here, and that other regions were asked for",
            load(&counters.misses),
        ),
        ("region_misses_filled", "Those that another region had", load(&counters.misses_filled)),
        (
            "region_misses_remote",
            "Those that are large, and were read from another region",
            load(&counters.misses_remote),
        ),
        (
            "region_tombstones_freed",
            "Tombstones that all regions have passed, and that were freed",
            load(&counters.freed),
        ),
        (
            "region_comparisons",
            "Comparisons of all keys with another region",
            load(&counters.comparisons),
        ),
        (
            "region_buckets_deleted",
            "Buckets that were deleted in all regions, for clients of this one",
            load(&counters.deleted),
        ),
        (
            "region_buckets_undeleted",
            "Buckets that were to be deleted, but a region has objects in them or does not answer",
            load(&counters.undeleted),
        ),
        (
            "region_left_out",
            "Changes that were not told or not taken, as this region alone has a bucket of the name",
            load(&counters.left_out),
        ),
        (
            "region_renewed",
            "Objects that were renewed, as their bucket is shared with other regions",
            load(&counters.renewed),
        ),
        (
            "region_tails",
            "Objects of which the beginning was here, so that only what was appended was fetched",
            load(&counters.tails),
        ),
        (
            "region_tails_spared_bytes",
            "Bytes of these beginnings, which were not fetched",
            load(&counters.tails_spared_bytes),
        ),
        (
            "region_parts",
            "Parts of large objects of other regions that came, each with a request of its own",
            load(&counters.parts),
        ),
        ("region_lists", "Pages that were listed of all regions", load(&counters.lists)),
        (
            "region_lists_failed",
            "Pages that were not listed, as a region did not tell its keys",
            load(&counters.lists_failed),
        ),
        (
            "region_home_asked",
            "Changes of clients that the home of their bucket, another region, answered",
            load(&homes.asked),
        ),
        (
            "region_home_unanswered",
            "Changes of clients that the home of their bucket did not answer",
            load(&homes.unanswered),
        ),
        ("region_home_made", "Changes of other regions' clients that were made", load(&homes.made)),
        (
            "region_home_refused",
            "Changes of other regions' clients that were not made, such as for their condition",
            load(&homes.refused),
        ),
        (
            "region_homes_taken",
            "Times that this region became the home of a bucket",
            load(&homes.taken),
        ),
        (
            "region_homes_given",
            "Times that this region gave the home of a bucket to another, or gave it up",
            load(&homes.given),
        ),
        (
            "region_alarms",
            "Clocks ahead, contradictions, and what no region says",
            load(&counters.alarms),
        ),
        (
            "region_strangers",
            "Connections refused as not from a known region",
            links.strangers.get(),
        ),
        ("region_joins_refused", "Requests to join that were refused", links.joins_refused.get()),
    ] {
        writeln!(out, "# HELP larder_{name} {help}.\n# TYPE larder_{name} counter")?;
        writeln!(out, "larder_{name}_total {value}")?;
    }
    let removed = f64::from(u8::from(regions.is_removed()));
    for (name, help, value) in [
        (
            "region_pull_share",
            "Part of the rates at which is pulled now, as clients are served",
            counters.share(),
        ),
        (
            "region_parts_waiting_bytes",
            "Bytes of large objects of other regions of which the rest is still to come",
            load(&counters.parts_waiting_bytes) as f64,
        ),
        (
            "region_clock_ahead_seconds",
            "Time by which the clock here is ahead of those of a majority of other regions, if it is more than 30 s; else 0",
            counters.clock_ahead_seconds(),
        ),
        ("region_removed", "1 once the other regions have removed this one", removed),
    ] {
        writeln!(out, "# HELP larder_{name} {help}.\n# TYPE larder_{name} gauge")?;
        writeln!(out, "larder_{name} {value}")?;
    }
    let status = regions.status();
    for (name, help, read) in BEHIND {
        writeln!(out, "# HELP larder_{name} {help}.\n# TYPE larder_{name} gauge")?;
        for peer in &status.peers {
            writeln!(out, "larder_{name}{{region=\"{}\"}} {}", peer.name, read(peer))?;
        }
    }
    let peers = links.peers();
    for (name, help, read) in PASSED {
        writeln!(out, "# HELP larder_{name} {help}.\n# TYPE larder_{name} counter")?;
        for peer in &status.peers {
            let passed = peers.iter().find(|(number, _)| *number == peer.number);
            let value = passed.map_or(0, |(_, passed)| read(passed));
            writeln!(out, "larder_{name}_total{{region=\"{}\"}} {value}", peer.name)?;
        }
    }
    Ok(())
}
