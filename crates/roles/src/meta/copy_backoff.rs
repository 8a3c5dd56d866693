//! Backoff of data servers whose copies failed: they get no copy requests for a while.

use std::collections::BTreeMap;

use larder_types::ServerId;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limits::COPY_BACKOFF;

/// Data servers that let a copy time out, each with the time until which it is asked for no other.
#[derive(Debug, Default)]
pub(super) struct CopyBackoff(Mutex<BTreeMap<ServerId, Instant>>);

impl CopyBackoff {
    /// Returns true if a server is asked for no copies now.
    pub(super) fn has(&self, server: ServerId) -> bool {
        let mut copy_backoff = self.0.lock();
        let is_over = copy_backoff.get(&server).map(|until| *until <= Instant::now());
        if is_over == Some(true) {
            copy_backoff.remove(&server);
        }
        is_over == Some(false)
    }

    pub(super) fn add(&self, server: ServerId) {
        self.0.lock().insert(server, Instant::now() + COPY_BACKOFF);
    }
}
