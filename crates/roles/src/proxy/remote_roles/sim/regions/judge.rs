//! The versions that a key may have, by what clients changed and were answered.
//!
//! All regions have one clock on the wall, so a change's own clock lies between the time at which it was asked for and that
//! of its answer. Of a delete no more is known. Where a bucket that one region had alone is shared, its objects get clocks
//! just above their own, or above those of their tags.

use larder_types::{RegionId, Stamp};

use super::clients::{Change, ChangeKind, Log, Sum};

/// A version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At {
    pub(super) sum: Sum,
    pub(super) stamp: Stamp,
}

/// The reason why no order of the changes of a key explains what was found, where all that was
/// acknowledged by then counts: `None` if one does.
pub(super) fn unexplained(
    log: &Log,
    key: usize,
    found: Option<At>,
    acked_by_ms: u64,
) -> Option<String> {
    let of_key = || log.changes.iter().filter(|it| it.key == key);
    // A change that was answered within the same millisecond may have been answered later.
    let acked = || of_key().filter(|it| it.acked_ms.is_some_and(|at| at < acked_by_ms));
    match found {
        Some(at) => {
            let made = |it: &Change| {
                it.what == ChangeKind::Put(at.sum)
                    && it.region == at.stamp.region
                    && it.clock.is_none_or(|clock| log.shows_as(clock, at.stamp.clock))
            };
            let Some(put) = of_key().filter(|it| made(it)).max_by_key(|it| it.clock) else {
                return Some(format!("key {key} has {at:?}, which nobody put"));
            };
            let own = stamp(put).unwrap_or(at.stamp);
            let later = acked().find(|it| match it.what {
                ChangeKind::Put(_) => stamp(it).is_some_and(|stamp| stamp > own),
                ChangeKind::Delete | ChangeKind::Empty => it.began_ms > own.clock.ms(),
            });
            later.map(|later| format!("key {key} has {at:?} in spite of {later:?}"))
        }
        None => {
            let last = acked().filter_map(|it| Some((stamp(it)?, it))).max_by_key(|it| it.0);
            let (last, put) = last?;
            let may_win = |it: &Change| it.acked_ms.is_none_or(|at| at >= last.clock.ms());
            let is_deleted = of_key().any(|it| it.what == ChangeKind::Delete && may_win(it));
            (!is_deleted).then(|| format!("key {key} is gone, and was put as {put:?}"))
        }
    }
}

/// Returns true if a region that shows this of a key has had a put of it that was acknowledged.
pub(super) fn has(log: &Log, put: &Change, found: Option<At>) -> bool {
    let Some(own) = stamp(put) else { return true };
    match found {
        Some(at) => at.stamp >= own,
        None => log.changes.iter().any(|it| {
            let may_win = it.acked_ms.is_none_or(|at| at >= own.clock.ms());
            it.key == put.key && it.what == ChangeKind::Delete && may_win
        }),
    }
}

fn stamp(put: &Change) -> Option<Stamp> {
    let region: RegionId = put.region;
    put.clock.map(|clock| Stamp { clock, region })
}
