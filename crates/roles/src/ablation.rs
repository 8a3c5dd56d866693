//! Puts in order, to measure what writing in parallel gains, volumes that follow PGs, and reads that wait for METAX. Only with the feature `ablation`, which no release has.

use std::sync::atomic::{AtomicBool, Ordering};

static ORDERED: AtomicBool = AtomicBool::new(false);
static WITHOUT_LOCATIONS: AtomicBool = AtomicBool::new(false);
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

/// From now on this process, a proxy, reads nothing before METAX has named it.
pub fn leave_out_locations() {
    WITHOUT_LOCATIONS.store(true, Ordering::Relaxed);
}

pub(crate) fn locations_are_left_out() -> bool {
    WITHOUT_LOCATIONS.load(Ordering::Relaxed)
}
