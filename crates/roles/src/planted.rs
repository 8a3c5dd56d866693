//! Faults for the simulations of whole clusters and of regions to find (`proxy/remote_roles/sim/cluster/`, `proxy/remote_roles/sim/regions/`):
//! each is one that a driver may have. There are none outside of tests.

/// A fault of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The groups of a log's batch hear that it is durable before it is written.
    DurableBeforeWritten,
    /// The waiter for METAX hears of it when the next op is persisted.
    AnswersOneLate,
    /// A view that follows another is not heeded while the group is served.
    IgnoresViews,
    /// Between two pieces of a snapshot a row is left out.
    SkipsRows,
    /// Of groups that were taken from a queue together only the first can be put in again.
    LosesPushes,
    /// Of a bucket that is gone it says that it has no keys.
    ShowsDeletedBuckets,
    /// A group that serves before its rows are read is not told when they are.
    ForgetsEarly,
    /// A manager acknowledges a write of its log before it is synced.
    UnsyncedQuorum,
    /// A manager that starts reads its log from the page cache.
    BelievesPageCache,
    /// A manager answers a proposal before the others have agreed.
    AnswersUnagreed,
    /// A manager that leads takes itself for confirmed by the others.
    ConfirmsItself,
    /// A server takes up views and volumes by a map that is not in its directory yet.
    ActsUnkept,
    /// A proposal with an unknown outcome is made again.
    RepeatsUnknown,
    /// A region counts another's change as taken before its put has ended.
    TakesBeforePut,
    /// A region counts another's change as taken that could not be put.
    CountsUntaken,
    /// A tombstone goes before all other regions have passed it.
    FreesUnpassed,
    /// A list of all regions is told without tombstones.
    ListsNoTombstones,
    /// A region counts as having what it has asked for.
    TrustsRequests,
    /// A home moves before the next one has all that the one before decided.
    MovesHomeEarly,
    /// A home moves while puts with data are open that the one before decided.
    LeavesPutsOpen,
    /// A region that has another version of that length is given what was appended, as if it had the base.
    TakesAnyBase,
    /// A put with data counts as told by its own op.
    CountsPutAsSent,
    /// Freed blocks do not rest, nor do rows that went.
    ReusesAtOnce,
}

#[cfg(not(test))]
pub(crate) const fn has(_: Bug) -> bool {
    false
}

#[cfg(test)]
pub(crate) use chosen::{has, plant};

#[cfg(test)]
mod chosen {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static CHOSEN: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// The fault that the drivers of this thread have from now on.
    pub(crate) fn plant(bug: Option<Bug>) {
        CHOSEN.set(bug);
    }

    pub(crate) fn has(bug: Bug) -> bool {
        CHOSEN.get() == Some(bug)
    }
}
