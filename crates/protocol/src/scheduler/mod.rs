//! The read scheduler: it merges requests on a key, orders those that depend on each other, and chooses the holder that
//! serves a read (ADR 31 and 32).
//!
//! ```text
//!  requests ─▶ window ─▶ merge ─▶ dependencies ─▶ begin ─▶ balance ─▶ a holder
//!                                      ▲                      ▲
//!                                   ended             reports of data servers
//! ```
//!
//! | module | what it decides |
//! |---|---|
//! | [`window`] | whether a request begins at once or waits for others to merge with |
//! | [`merge`] | which requests of a window are carried out as one |
//! | [`dependencies`] | which of them wait for others of their key |
//! | [`front`] | the three together, as the paper has them at a primary |
//! | [`meter`] | what a data server reports of a disk's queue |
//! | [`balance`] | which holder is asked |
//! | [`reads`] | which holder a proxy asks, when it asks another too, and which |
//! | [`disk`] | which reads of a data server are at the device, wait, or are cancelled |
//!
//! Proxies drive [`reads`] with [`balance`], and data servers [`disk`] with [`meter`]. No role drives the first four: they are
//! there for the comparison with the paper (`docs/scheduling.md`).
//!
//! Times are microseconds of the driver's steady clock. The driver chooses the type of keys: a row's key, or a number in a
//! simulation.
//!
//! These machines hold no data and decide nothing about versions: whatever order they give, a read answers the version that
//! the PG says, and its bytes are verified. A wrong choice costs time.

pub mod balance;
pub mod dependencies;
pub mod disk;
mod hedge;
pub mod merge;
pub mod meter;
pub mod primary_queue;
pub mod reads;
pub mod window;

#[cfg(test)]
mod counter_rng;

pub use balance::{Balance, Policy};
pub use dependencies::{Access, Dependencies, ReadWrite};
pub use disk::{ActiveRead, Arrival, DiskCounts, DiskReads, DiskTurn, Urgency};
pub use merge::{Bars, Group, Kind, Merge, QueuedRequest};
pub use meter::{Load, Meter, Report, SIZE_CLASSES, SizeClass};
pub use primary_queue::{Full, PrimaryQueue};
pub use reads::{RANKS, ReadCounts, Reading, Reads, Replica, ServerHealth};
pub use window::Window;
