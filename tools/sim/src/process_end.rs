//! The fate of a process when a part of it fails.

use crate::net::Net;

/// The reason that a process cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// Its machine lost power during an operation of its disk.
    PowerLost,
    /// It ends by itself, and says why.
    Ends(String),
    /// It has no way out, and says why: this must never be.
    Stuck(String),
}

impl ProcessEnd {
    /// The managers take another run for the one that goes on.
    pub(crate) fn superseded(net: &mut Net) -> Self {
        net.faults.add("runs superseded", 1);
        ProcessEnd::Ends("another run is in its place".to_owned())
    }
}
