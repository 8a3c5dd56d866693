//! Numbers as people read them.

/// Bytes in the largest unit of which there is one.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [(u32, &str); 5] =
        [(50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = UNITS.into_iter().find(|(shift, _)| count >> shift > 0);
    unit.map_or_else(
        || format!("{count} B"),
        |(shift, name)| format!("{:.1} {name}", count as f64 / (1_u64 << shift) as f64),
    )
}
