//! Entries that are being fetched, for the machine or for a client, so that none is fetched twice at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use larder_protocol::region::Name;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    names: Mutex<BTreeMap<Name, usize>>,
    /// Tells when a fetch is over.
    ends: Notify,
    /// Time at which the last fetch began.
    began: Mutex<Option<Instant>>,
}

/// Names that count as being fetched until this is dropped.
#[derive(Debug)]
pub(super) struct InFlightGuard {
    in_flight: Arc<InFlight>,
    names: Vec<Name>,
}

impl InFlight {
    /// Counts these names as being fetched.
    pub(super) fn begin(self: &Arc<Self>, names: Vec<Name>) -> InFlightGuard {
        *self.began.lock() = Some(Instant::now());
        let mut coming = self.names.lock();
        names.iter().for_each(|name| *coming.entry(name.clone()).or_default() += 1);
        InFlightGuard { in_flight: self.clone(), names }
    }

    /// Counts a name as being fetched, after every fetch of it that is under way.
    pub(super) async fn begin_after(self: &Arc<Self>, name: &Name) -> InFlightGuard {
        loop {
            if let Some(alone) = self.begin_alone(name) {
                return alone;
            }
            self.ended(name).await;
        }
    }

    fn begin_alone(self: &Arc<Self>, name: &Name) -> Option<InFlightGuard> {
        let mut coming = self.names.lock();
        if coming.contains_key(name) {
            return None;
        }
        coming.insert(name.clone(), 1);
        *self.began.lock() = Some(Instant::now());
        Some(InFlightGuard { in_flight: self.clone(), names: vec![name.clone()] })
    }

    pub(super) fn has(&self, name: &Name) -> bool {
        self.names.lock().contains_key(name)
    }

    /// Returns once a name is not being fetched any more.
    pub(super) async fn ended(&self, name: &Name) {
        loop {
            // Registered before the look: no end is missed.
            let mut ends = std::pin::pin!(self.ends.notified());
            ends.as_mut().enable();
            if !self.has(name) {
                return;
            }
            ends.await;
        }
    }

    /// Returns true if something is being fetched, or a fetch began so lately.
    pub(super) fn began_within(&self, lately: Duration) -> bool {
        let began = *self.began.lock();
        !self.names.lock().is_empty() || began.is_some_and(|began| began.elapsed() < lately)
    }

    fn end(&self, name: &Name) {
        let mut coming = self.names.lock();
        let count = coming.get_mut(name).expect("it was begun");
        *count -= 1;
        if *count == 0 {
            coming.remove(name);
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| self.in_flight.end(name));
        self.in_flight.ends.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use larder_protocol::region::Slot;
    use larder_types::{BucketId, ObjectKey};

    use super::*;

    fn name(key: &str) -> Name {
        Name { bucket: BucketId(1), key: ObjectKey::new(key).unwrap(), slot: Slot::Null }
    }

    #[tokio::test]
    async fn whoever_waits_for_a_name_goes_on_once_it_is_not_fetched_any_more() {
        let in_flight = Arc::new(InFlight::default());
        let (ab, b) =
            (in_flight.begin(vec![name("a"), name("b")]), in_flight.begin(vec![name("b")]));
        let waits = |of: &str| {
            let (in_flight, of) = (in_flight.clone(), name(of));
            tokio::spawn(async move { in_flight.ended(&of).await })
        };
        let (waits_a, waits_b) = (waits("a"), waits("b"));
        tokio::task::yield_now().await;
        assert!(in_flight.begin_alone(&name("a")).is_none(), "it is being fetched");
        drop(ab);
        waits_a.await.unwrap();
        assert!(!waits_b.is_finished() && in_flight.has(&name("b")), "by another, too");
        let alone = in_flight.begin_alone(&name("a")).unwrap();
        drop((b, alone));
        waits_b.await.unwrap();
        in_flight.ended(&name("a")).await;
        assert!(in_flight.names.lock().is_empty());
    }
}
