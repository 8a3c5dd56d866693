//! The data server's disk: a raw block service that knows grants and floors, but no objects.
//!
//! One [`Volume`] owns one disk: a growing file or a block device with a range per physical volume.
//! It is a synchronous core with one owner. The driver, a thread or the simulator, hands it groups of
//! [`Command`]s; [`VolumeReader`]s read beside it.
//!
//! # Invariants
//!
//! 1. Commands take effect in order, and a group is finished before the next begins. So when a control
//!    command (`Open`, `RaiseFloor`, `Void`, `Verify`) is answered, every write that was queued before
//!    it has drained: it is on the device, or was refused.
//! 2. What is answered is durable: a group's writes and headers are synced, once, before its first
//!    completion leaves. After a failed sync nothing is answered but [`Refusal::Broken`], for good.
//! 3. View and floor of a PV never go down. A void lasts until the floor or the view is above it, as long as the
//!    PV is its LV's. All three survive restarts.
//! 4. After a restart no write is admitted before an [`Action::Open`] for this run of the server.
//! 5. Of the two slots of a PV's header at most one is unsynced at any time.
//! 6. A PV is its LV's until a newer map gives it to another, or the LV another PV of the disk, or says that it is
//!    nobody's. Until then it is kept, whatever may have become of the replica; from then on nothing of the former LV is
//!    read or written.
//!
//! # Not here
//!
//! Checksums of data are the reader's and the primary's: a write is stored as it comes. Nothing here
//! allocates extents, retries, or has a clock or a thread.

#![deny(unsafe_code)]

mod buffers;
mod command;
mod create;
mod describe;
mod error;
mod execute;
mod extents;
mod free;
mod give;
pub mod limits;
mod planted;
mod pv;
mod reader;
mod v1;
mod verify;
mod volume;

pub use command::{Action, Answer, Command, Completion, Refusal};
pub use create::VolumeConfig;
pub use describe::{Description, PvDescription, describe, reader};
pub use error::{ReadError, VolumeError};
pub use planted::Planted;
pub use reader::{Mismatch, SumRange, VolumeReader, verify_range, whole_sums};
pub use volume::{Counters, Volume};
