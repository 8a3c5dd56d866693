//! Threads, and what they wait for. They are the system's. On a thread of a simulation they run one at a time, in an order
//! that its seed decides (`simulated/threads.rs`). That costs a release nothing: it has no such threads.
//!
//! # Invariants
//!
//! 1. What waits here holds no lock but the one that it waits with: in a simulation nobody else could run.
//!
//! # Not here
//!
//! Locks. In a simulation nobody meets anybody at one, because threads take turns only where they wait, and at
//! [`switch_point`].

#[cfg(not(feature = "simulated"))]
mod port {
    pub use std::thread::JoinHandle;

    pub use parking_lot::Condvar;

    /// Starts a thread.
    ///
    /// # Errors
    /// The system's, if it gives none.
    pub fn spawn(
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(name.to_owned()).spawn(run)
    }

    /// Where a thread may be overtaken by others: it holds no lock here.
    #[inline(always)]
    pub fn switch_point() {}

    /// Where a thread has worked for long: it holds no lock here. What it does takes no time in a simulation otherwise, so
    /// that nobody there would meet it at it.
    #[inline(always)]
    pub fn slow_point() {}
}

#[cfg(feature = "simulated")]
use crate::simulated::threads as port;

pub use port::{Condvar, JoinHandle, slow_point, spawn, switch_point};
