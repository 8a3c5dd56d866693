//! The read scheduler: which requests on a key are one, which wait for another, and which holder serves a read
//! (ADR 31 and 32).
//!
//! ```text
//!  requests ─▶ window ─▶ merge ─▶ dependencies ─▶ begin ─▶ balance ─▶ a holder
//!                                      ▲                      ▲
//!                                   ended             reports of data servers
//! ```
//!
//! | module | what it decides |
//! |---|---|
//! | [`window`] | whether a request goes at once or waits for company |
//! | [`merge`] | which requests of a window are one |
//! | [`dependencies`] | which of them wait for others of their key |
//! | [`front`] | the three together, as a primary has them |
//! | [`meter`] | what a data server reports of a disk's queue |
//! | [`balance`] | which holder is asked |
//! | [`reads`] | which holder a proxy asks, which one beside it, and when |
//! | [`disk`] | which reads of a data server are at the device, wait, or are cancelled |
//!
//! Times are microseconds of the driver's steady clock. A key is whatever the driver takes for one: a row's key at a
//! primary, a number in a simulation.
//!
//! These machines hold no data and decide nothing about versions: whatever order they give, a read answers what the PG
//! says, and its bytes are verified. A wrong choice costs time.

pub mod balance;
pub mod dependencies;
pub mod disk;
pub mod front;
mod hedge;
pub mod merge;
pub mod meter;
pub mod reads;
pub mod window;

#[cfg(test)]
mod dice;

pub use balance::{Balance, Policy};
pub use dependencies::{Access, Dependencies, ReadWrite};
pub use disk::{Arrival, Begun, DiskCounts, DiskReads, Turn, Urgency};
pub use front::{Front, Full};
pub use merge::{Asked, Bars, Group, Kind, Merge};
pub use meter::{Load, Meter, Report, SIZE_CLASSES, SizeClass};
pub use reads::{RANKS, ReadCounts, Reading, Reads, Replica, Standing};
pub use window::Window;
