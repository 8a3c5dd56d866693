//! Puts in order, to measure what writing in parallel gains. Only with the feature `ablation`, which no release has.

use std::sync::atomic::{AtomicBool, Ordering};

static ORDERED: AtomicBool = AtomicBool::new(false);

/// From now on this process, a proxy, writes data only after METAX was persisted.
pub fn order_writes() {
    ORDERED.store(true, Ordering::Relaxed);
}

pub(crate) fn writes_are_ordered() -> bool {
    ORDERED.load(Ordering::Relaxed)
}
