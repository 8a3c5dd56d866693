//! The ports through which Larder touches the world: disk, clock, randomness,
//! threads.
//!
//! Each port has a real and a simulated side. Stores and roles are written against the port and
//! never against the operating system. So the simulator can lose, tear and corrupt what a real
//! machine would.

#![deny(unsafe_code)]

pub mod clock;
pub mod disk;
mod failure;
pub mod hostile;
pub mod open_files;
mod real_disk;
pub mod rng;
mod seeded;
pub mod sim_disk;
#[cfg(feature = "simulated")]
pub mod simulated;
pub mod threads;
mod wrapping;

pub use disk::{Disk, DiskError, DiskFile, OpenMode};
pub use real_disk::{FileLock, RealDisk};
pub use seeded::SeededRng;
pub use sim_disk::SimDisk;
pub use wrapping::wrap_files;
