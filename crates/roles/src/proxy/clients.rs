//! Counts client requests under way at a proxy: applying changes of other regions yields to them.

use std::sync::atomic::{AtomicU32, Ordering};

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Clients(AtomicU32);

/// A request that is under way until this is dropped.
#[derive(Debug)]
pub(super) struct ClientRequest<'a>(&'a Clients);

impl Clients {
    pub(super) fn begin(&self) -> ClientRequest<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        ClientRequest(self)
    }

    pub(super) fn under_way(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl<R> super::Proxy<R> {
    /// Requests of clients that are under way, without bytes that clients are still reading.
    pub(crate) fn clients_in_flight(&self) -> u32 {
        self.clients.under_way()
    }
}

impl Drop for ClientRequest<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_until_it_is_dropped() {
        let clients = Clients::default();
        let (one, other) = (clients.begin(), clients.begin());
        assert_eq!(clients.under_way(), 2);
        drop(one);
        assert_eq!(clients.under_way(), 1);
        drop(other);
        assert_eq!(clients.under_way(), 0);
    }
}
