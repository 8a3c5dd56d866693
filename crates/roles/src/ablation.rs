//! Puts in order, to measure what writing in parallel gains, and volumes that follow PGs. Only with the feature `ablation`, which no release has.

use std::sync::atomic::{AtomicBool, Ordering};

static ORDERED: AtomicBool = AtomicBool::new(false);
static WITHOUT_GROUPS: AtomicBool = AtomicBool::new(false);

/// From now on this process, a proxy, writes data only after METAX was persisted.
pub fn order_writes() {
    ORDERED.store(true, Ordering::Relaxed);
}

pub(crate) fn writes_are_ordered() -> bool {
    ORDERED.load(Ordering::Relaxed)
}

/// From now on this process, a manager, has the volumes of a PG follow its members.
pub fn leave_out_groups() {
    WITHOUT_GROUPS.store(true, Ordering::Relaxed);
}

pub(crate) fn groups_are_left_out() -> bool {
    WITHOUT_GROUPS.load(Ordering::Relaxed)
}
