//! Faults for the simulation of the driver to find (`sim/`): each is one that a driver may have. There are none outside of
//! tests.

/// A fault of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// A put that lost its data is begun anew before its primary has said that it is revoked.
    BeginsAnewAtOnce,
    /// A put counts as written by a replica that did not take it.
    CountsFailedWrites,
    /// A put is answered before METAX is persisted.
    AnswersUnpersisted,
    /// A call is repeated under another request number.
    RepeatsUnderAnother,
    /// Bytes of a replica are given out as they come.
    ReadsUnverified,
    /// Bytes from where an object was remembered to lie are given out whichever version METAX names.
    BelievesLocations,
    /// A list gives out rows before every server has said what it has.
    MergesWithoutRows,
    /// Anything that a put holds whose client went away is never given back.
    KeepsOrphans,
    /// A replica of whose answer nobody waits any more owes it for ever.
    OwesForEver,
}

#[cfg(not(test))]
pub(super) const fn has(_: Bug) -> bool {
    false
}

#[cfg(test)]
pub(super) use chosen::{has, plant};

#[cfg(test)]
mod chosen {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static CHOSEN: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// The fault that this thread's driver has from now on.
    pub(in super::super) fn plant(bug: Option<Bug>) {
        CHOSEN.set(bug);
    }

    pub(in super::super) fn has(bug: Bug) -> bool {
        CHOSEN.get() == Some(bug)
    }
}
