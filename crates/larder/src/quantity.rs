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

/// A time as people read it: in its largest unit.
pub(crate) fn span(seconds: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(24 * 3600, "day"), (3600, "hour"), (60, "minute")];
    let unit = UNITS.into_iter().find(|(of, _)| seconds >= *of);
    let (count, name) = unit.map_or((seconds, "second"), |(of, name)| (seconds / of, name));
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_their_largest_unit() {
        for (seconds, shown) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (119, "1 minute"),
            (7200, "2 hours"),
            (86_399, "23 hours"),
            (9 * 86_400, "9 days"),
        ] {
            assert_eq!(span(seconds), shown);
        }
    }
}
