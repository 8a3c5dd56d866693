//! Knowledge of a PG's rows: learnt from one walk over them, and kept op by op from then on.
//!
//! ```text
//!            the driver's walk over the index, one stretch of rows after the other
//!  Unknown ─────────────────────────────────▶ Reading ─────────────▶ Known
//!     ▲                                          │ each change         │ each change
//!     └───── a change does not fit: Contradicts ◀┴─────────────────────┘
//!
//!  rows   ──── read ────┬── this stretch ──┬──── not read ────
//!  change takes effect: │ when it is over  │ never: a later stretch shows it
//!         at once       │
//! ```
//!
//! # Invariants
//!
//! 1. A change takes effect exactly once: those that the snapshot of a stretch shows already are passed over.
//! 2. Each change names its row: it is by the row that the walk has passed it or has not.
//! 3. A stretch counts for the walk alone that began the reading: any other is passed over.

use std::fmt::Debug;

use larder_types::OpId;

use crate::limits::LEDGER_CHANGES_MAX;

/// Knowledge that comes from rows in any order of stretches, and is kept by changes.
pub(crate) trait DerivedState: Default {
    /// An effect of an op on it.
    type Change: Debug;
    /// Rows or changes contradict each other.
    type Fault: Copy + Debug;

    /// Takes what an op did.
    fn take(&mut self, change: &Self::Change) -> Result<(), Self::Fault>;
    /// Takes what other rows say.
    fn absorb(&mut self, other: Self) -> Result<(), Self::Fault>;
}

/// A change with the op that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Changed<C> {
    pub(crate) op: OpId,
    /// The changed row; empty if no reader needs it ([`Followed::wants_rows`]).
    pub(crate) row: Vec<u8>,
    pub(crate) change: C,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) enum Followed<T: DerivedState> {
    #[default]
    Unknown,
    Reading(Reading<T>),
    Known(T),
    Contradicts(T::Fault),
}

/// A walk is under way.
#[derive(Debug)]
pub(crate) struct Reading<T: DerivedState> {
    /// The number of the walk.
    walk: u64,
    /// Of the rows before `from`, as they are now.
    derived: T,
    /// The stretch begins with this row; empty for the first of all.
    from: Vec<u8>,
    /// Changes of rows from `from` on, applied since the stretch began.
    waiting: Vec<Changed<T::Change>>,
}

impl<T: DerivedState> Followed<T> {
    /// There are no rows.
    pub(crate) fn empty() -> Self {
        Self::Known(T::default())
    }

    /// The walk with this number is to be begun, unless all is known.
    pub(crate) fn begin_walk(&mut self, walk: u64) {
        if self.known().is_none() {
            let (from, waiting) = (Vec::new(), Vec::new());
            *self = Self::Reading(Reading { walk, derived: T::default(), from, waiting });
        }
    }

    /// The walk has read the rows up to `until`, all of them if there is none, from a snapshot that shows everything up to an
    /// op.
    pub(crate) fn end_stretch(
        &mut self,
        walk: u64,
        found: Result<T, T::Fault>,
        at: OpId,
        until: Option<&[u8]>,
    ) {
        let Self::Reading(reading) = self else { return };
        if walk != reading.walk {
            return;
        }
        let mut derived = std::mem::take(&mut reading.derived);
        let waiting = std::mem::take(&mut reading.waiting);
        let is_missing = |changed: &&Changed<T::Change>| {
            changed.op > at && until.is_none_or(|until| changed.row[..] < *until)
        };
        // Before both are joined: what the snapshot shows may have been undone, and done by a row before, since.
        let joined = found.and_then(|mut found| {
            let mut missing = waiting.iter().filter(is_missing);
            missing.try_for_each(|changed| found.take(&changed.change))?;
            derived.absorb(found).map(|()| derived)
        });
        *self = match (joined, until) {
            (Err(fault), _) => Self::Contradicts(fault),
            (Ok(derived), None) => Self::Known(derived),
            (Ok(derived), Some(until)) => {
                let (from, waiting) = (until.to_vec(), Vec::new());
                Self::Reading(Reading { walk, derived, from, waiting })
            }
        };
    }

    /// Takes what an op did.
    pub(crate) fn take(&mut self, changed: Changed<T::Change>) {
        let taken = match self {
            Self::Known(derived) => derived.take(&changed.change),
            Self::Reading(Reading { derived, from, .. }) if changed.row < *from => {
                derived.take(&changed.change)
            }
            Self::Reading(reading) if reading.waiting.len() < LEDGER_CHANGES_MAX => {
                reading.waiting.push(changed);
                Ok(())
            }
            Self::Reading(_) => {
                *self = Self::Unknown;
                Ok(())
            }
            Self::Unknown | Self::Contradicts(_) => Ok(()),
        };
        if let Err(fault) = taken {
            *self = Self::Contradicts(fault);
        }
    }

    /// Takes what rows of a snapshot say that this member takes.
    pub(crate) fn learn(&mut self, take: impl FnOnce(&mut T) -> Result<(), T::Fault>) {
        if let Self::Known(derived) = self
            && let Err(fault) = take(derived)
        {
            *self = Self::Contradicts(fault);
        }
    }

    /// Returns whether it hears of changes at all.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self, Self::Known(_) | Self::Reading(_))
    }

    /// Returns whether changes must name their rows.
    pub(crate) fn wants_rows(&self) -> bool {
        matches!(self, Self::Reading(_))
    }

    pub(crate) fn known(&self) -> Option<&T> {
        if let Self::Known(derived) = self { Some(derived) } else { None }
    }

    pub(crate) fn fault(&self) -> Option<T::Fault> {
        if let Self::Contradicts(fault) = self { Some(*fault) } else { None }
    }
}
