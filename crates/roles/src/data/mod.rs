//! The data server: it knows blocks and grants, and no objects.
//!
//! | file | what |
//! |---|---|
//! | `disk.rs` | a disk's queue, and the thread that writes and syncs groups of it: in every process with data |
//! | `node/` | a server of a cluster around it: how it takes up its disk, and what it answers others |

mod disk;
pub mod node;

pub use disk::{DataServer, DiskCounters, ReadFailure};
pub(crate) use disk::{PutWrite, Then, verified};
