//! Counters of appends, and of pieces that are coalesced behind them, wherever the proxy runs.

use std::sync::atomic::{AtomicU64, Ordering};

use larder_roles::proxy::Proxy;

use super::Metric;

pub(super) fn counters<R>(proxy: &Proxy<R>) -> [Metric; 6] {
    let (appends, coalesced) = (proxy.appends(), proxy.coalesced());
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    [
        ("appends", "Appends at an offset that were acknowledged", load(&appends.at_offset)),
        ("records", "Records that were acknowledged", load(&appends.records)),
        (
            "appended_bytes",
            "Bytes of appends and records that were acknowledged",
            load(&appends.bytes),
        ),
        (
            "coalesces",
            "Times that adjacent pieces of an object were stored as one",
            load(&coalesced.windows),
        ),
        (
            "coalesced_bytes",
            "Bytes of these pieces, which were read and stored again",
            load(&coalesced.bytes),
        ),
        (
            "coalesces_failed",
            "Objects whose pieces were left as they are until later appends",
            load(&coalesced.failed),
        ),
    ]
}
