//! The data server: it stores blocks under grants, and has no notion of objects.
//!
//! | file | what |
//! |---|---|
//! | `disk.rs` | a disk's queue, and the thread that writes and syncs groups of commands: on a single node too |
//! | `node/` | the data server of a cluster: opening its disk, and answering other servers |

mod disk;
pub mod node;

pub use disk::{DataServer, DiskCounters, ReadFailure};
pub(crate) use disk::{OnComplete, PutWrite, verified};
