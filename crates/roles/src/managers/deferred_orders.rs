//! Orders of managers that came before the map was kept by which they were given. They are held until it is: a server takes up no view
//! and no volume by a map that its directory may not have ([`MapStore`](super::MapStore)).

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_protocol::manager::policy::ManagerMessage;
use larder_protocol::manager::state::MapVersion;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::Managers;
use crate::limits::{DEFERRED_ORDER_MAX, DEFERRED_ORDERS_MAX};

/// See the module's head. `K` is what an order is about. Of two orders the earlier one waits: each later one wants a later map, which
/// may never be the one that is kept, and managers repeat what has changed since.
pub(crate) struct DeferredOrders<K> {
    managers: Arc<dyn Managers>,
    orders: Mutex<BTreeMap<K, ManagerMessage>>,
}

impl<K: Ord + Send + 'static> DeferredOrders<K> {
    pub(crate) fn new(managers: Arc<dyn Managers>) -> Arc<Self> {
        Arc::new(Self { managers, orders: Mutex::default() })
    }

    /// Holds an order that came when the map of version `kept` was kept, and wants one of version `wants`. `heed` gets it when a later
    /// map is kept, and may have it held again. It is dropped if none is within [`DEFERRED_ORDER_MAX`], or too many are held: managers repeat
    /// what has no effect.
    pub(crate) fn hold(
        self: &Arc<Self>,
        runtime: &Handle,
        (kept, wants, key): (MapVersion, MapVersion, K),
        order: ManagerMessage,
        heed: impl Fn(ManagerMessage) + Send + 'static,
    ) {
        let mut versions = self.managers.kept_versions();
        if self.managers.map().version < wants {
            self.managers.note_newer_map(wants);
        }
        let mut orders = self.orders.lock();
        let is_awaited = !orders.is_empty();
        if orders.len() < DEFERRED_ORDERS_MAX {
            orders.entry(key).or_insert(order);
        }
        drop(orders);
        if is_awaited {
            return;
        }
        // Not to keep a server that is stopped.
        let deferred_orders = Arc::downgrade(self);
        runtime.spawn(async move {
            let is_over = || {
                deferred_orders
                    .upgrade()
                    .is_none_or(|deferred_orders| deferred_orders.managers.kept() > kept)
            };
            let later = async {
                while !is_over() {
                    versions.changed().await?;
                }
                Ok::<(), super::NoMoreVersions>(())
            };
            let came = timeout(DEFERRED_ORDER_MAX, later).await;
            let Some(deferred_orders) = deferred_orders.upgrade() else { return };
            let orders = std::mem::take(&mut *deferred_orders.orders.lock());
            if let Ok(Ok(())) = came {
                orders.into_values().for_each(heed);
            } else {
                tracing::debug!(
                    orders = orders.len(),
                    "dropped orders whose map could not be saved"
                );
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::BoxFuture;
    use larder_protocol::manager::policy::ServerMessage;
    use larder_protocol::manager::state::{Applied, Command, Topology};
    use larder_types::SessionId;
    use tokio::sync::mpsc::{Receiver, Sender, channel};
    use tokio::time::sleep;

    use super::*;
    use crate::managers::{NotProposed, VersionWatch, Versions};

    /// More than a test has orders heeded.
    const HANDLED_MAX: usize = 64;

    /// Managers of whom only versions are known.
    struct Kept(Versions, Mutex<MapVersion>);

    impl Managers for Kept {
        fn map(&self) -> Arc<Topology> {
            Arc::new(Topology { version: self.0.subscribe().latest(), ..Topology::default() })
        }

        fn versions(&self) -> VersionWatch {
            self.0.subscribe()
        }

        fn note_newer_map(&self, version: MapVersion) {
            *self.1.lock() = version;
        }

        fn propose(&self, _: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
            Box::pin(std::future::ready(Err(NotProposed::NoLeader)))
        }

        fn send_message(&self, _: ServerMessage) {}
    }

    fn order(version: u64) -> ManagerMessage {
        ManagerMessage::SessionClosed(SessionId(version))
    }

    /// A server that heeds an order of the version that its number says. Orders of even versions are about one thing, and those of odd
    /// ones about another.
    struct Server {
        managers: Arc<Kept>,
        deferred_orders: Arc<DeferredOrders<u64>>,
        handled: Sender<u64>,
    }

    impl Server {
        fn new() -> (Arc<Self>, Receiver<u64>) {
            let managers = Arc::new(Kept(Versions::new(MapVersion(1)), Mutex::default()));
            let (handled, hears) = channel(HANDLED_MAX);
            let deferred_orders = DeferredOrders::new(managers.clone());
            (Arc::new(Self { managers, deferred_orders, handled }), hears)
        }

        fn reported(self: &Arc<Self>, version: u64) {
            let kept = self.managers.kept();
            if kept.0 >= version {
                return self.handled.try_send(version).unwrap();
            }
            let again = self.clone();
            let about = (kept, MapVersion(version), version % 2);
            self.deferred_orders.hold(&Handle::current(), about, order(version), move |order| {
                let ManagerMessage::SessionClosed(SessionId(version)) = order else {
                    unreachable!("it is what was held")
                };
                again.reported(version);
            });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_is_heeded_when_its_map_is_kept_and_dropped_when_none_is_for_long() {
        let (server, mut hears) = Server::new();
        server.reported(1);
        assert_eq!(hears.recv().await, Some(1), "it is not early");
        server.reported(4);
        server.reported(3);
        assert_eq!(*server.managers.1.lock(), MapVersion(3), "the map is asked for");
        for version in [2, 3] {
            sleep(Duration::from_secs(1)).await;
            server.managers.0.show(MapVersion(version));
        }
        assert_eq!(hears.recv().await, Some(3));
        sleep(2 * DEFERRED_ORDER_MAX).await;
        server.managers.0.show(MapVersion(9));
        sleep(Duration::from_secs(1)).await;
        assert!(hears.try_recv().is_err(), "the other was dropped");
        server.reported(10);
        server.managers.0.show(MapVersion(10));
        assert_eq!(hears.recv().await, Some(10), "it was told again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_map_that_changes_faster_than_it_is_kept_keeps_no_order_for_ever() {
        let (server, mut hears) = Server::new();
        // Said each 300 ms, by the map of then; what is kept is 400 ms behind, and changes each 700 ms.
        for turn in 0..40 {
            let now_ms = turn * 100;
            if now_ms % 300 == 0 {
                server.reported(10 + 2 * (now_ms / 200));
            }
            if now_ms % 700 == 0 {
                server.managers.0.show(MapVersion(6 + now_ms / 100));
            }
            sleep(Duration::from_millis(100)).await;
        }
        assert!(hears.try_recv().is_ok(), "it is heeded within seconds");
    }
}
