//! Faults for the simulation of whole clusters to find (`proxy/away/sim/cluster/`): each is one that a driver may have. There
//! are none outside of tests.

/// A fault of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The groups of a log's batch hear that it is durable before it is written.
    DurableBeforeWritten,
    /// Of those who wait for METAX that is persisted at once, one hears of it.
    ForgetsAwaited,
    /// A view that follows another is not heeded while the group is served.
    IgnoresViews,
    /// A primary tells what is there after its lease has ended.
    LeasesForEver,
    /// A piece of a snapshot is being read for ever.
    ForgetsPieces,
    /// Of groups that were taken from a queue together only the first can be put in again.
    LosesPushes,
}

#[cfg(not(test))]
pub(super) const fn has(_: Bug) -> bool {
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
