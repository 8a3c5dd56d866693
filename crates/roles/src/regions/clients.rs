//! Tracks the number of client requests under way at the busiest machine of the store: pulling and renewing yield to
//! them.
//!
//! A single node counts its own. Of a cluster the gateway asks the other proxies, while there is something to yield.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::Shared;
use crate::limits::{REGION_CLIENTS_MS, REGION_CLIENTS_PULLED_MS};
use crate::proxy::RegionAccess;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Clients {
    elsewhere: AtomicU32,
}

impl<R: RegionAccess> Shared<R> {
    /// Requests of clients that are under way at the busiest machine.
    pub(super) fn clients_in_flight(&self) -> u32 {
        let elsewhere = self.clients.elsewhere.load(Ordering::Relaxed);
        self.proxy.clients_in_flight().max(elsewhere)
    }

    /// Returns true if something is pulled, or renewed.
    fn may_yield(&self) -> bool {
        let lately = Duration::from_millis(REGION_CLIENTS_PULLED_MS);
        self.in_flight.began_within(lately) || !self.shown.buckets().sharing().is_empty()
    }
}

/// Asks the other machines. Does not end.
pub(super) async fn watch<R: RegionAccess>(shared: Arc<Shared<R>>) {
    loop {
        sleep(Duration::from_millis(REGION_CLIENTS_MS)).await;
        let elsewhere = match shared.may_yield() {
            true => shared.shown.access().clients_elsewhere().await,
            false => 0,
        };
        shared.clients.elsewhere.store(elsewhere, Ordering::Relaxed);
    }
}
