//! A packed store under one seed. It has the production plan, index, log, spool, upload, repacking,
//! removal, backup and rebuild, over a simulated disk and a backend that fails, with the processes
//! killed at any step.
//!
//! In place of threads and tasks one seed chooses what goes on next. The committer takes a group.
//! The uploader or the housekeeper goes on until its next request. A client asks, or a request of
//! long ago takes effect. The process is killed, the machine loses power, the index or the whole
//! directory is lost, or another worker takes over while this one runs on. Everything that a client
//! was told is [kept](model) and compared at every start, and the index is checked against itself.
//! In the end an index that is rebuilt from a backup is compared with one that is rebuilt from
//! footers alone. What clients see meanwhile goes to the history checker of the store's own
//! simulator ([calls]).
//!
//! `several/` has three workers over one bucket, their clocks apart: what each shows never goes back, and in the end all
//! show what was put last.
//!
//! Not here: listeners, reads that are under way while something is removed, uploads of blobs that are larger than a part
//! (`uploader/units/tests.rs` has those).

mod answers;
mod calls;
mod check;
mod groups;
mod model;
mod process;
mod several;
mod starts;
mod store;
mod tests;
mod world;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::bugs::{Bug, plant};

pub(crate) use store::SimStore;

thread_local! {
    static RUNNING: Cell<bool> = const { Cell::new(false) };
    static NOW_MS: Cell<u64> = const { Cell::new(1_700_000_000_000) };
    /// Old numbers of processes are removed at once.
    static KEEPS_FEW: Cell<bool> = const { Cell::new(false) };
    /// Time by which the clock of the machine that does something now is ahead.
    static AHEAD_MS: Cell<u64> = const { Cell::new(0) };
}

/// Returns true if a simulation runs on this thread: then nothing runs on another.
pub(crate) fn is_running() -> bool {
    RUNNING.get()
}

/// Returns true if the simulation on this thread removes old numbers of processes at once.
pub(crate) fn keeps_few() -> bool {
    KEEPS_FEW.get()
}

/// A fault that is planted fails one of so many seeds.
fn is_found<T>(bug: Bug, seeds: u64, run: fn(u64) -> T) {
    is_found_from(bug, 0, seeds, run);
}

/// The same, beginning with the seed that found it last, where others take long.
fn is_found_from<T>(bug: Bug, first: u64, seeds: u64, run: fn(u64) -> T) {
    plant(Some(bug));
    let mut all = (first..seeds).chain(0..first);
    let found = all.find(|seed| catch_unwind(AssertUnwindSafe(|| run(*seed))).is_err());
    plant(None);
    RUNNING.set(false);
    KEEPS_FEW.set(false);
    AHEAD_MS.set(0);
    println!("{bug:?}: seed {found:?}");
    assert!(found.is_some(), "{bug:?} was not found in {seeds} seeds");
}

/// The simulated time.
fn now_ms() -> u64 {
    NOW_MS.set(NOW_MS.get() + 1);
    NOW_MS.get() + AHEAD_MS.get()
}
