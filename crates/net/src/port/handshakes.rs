//! Handshakes under way at a port.
//!
//! # Invariants
//!
//! 1. At most [`HANDSHAKES_MAX`] are under way. A new one beyond that evicts the oldest handshake of the address that has
//!    most of them. Unfinished handshakes of one address therefore never keep another address out.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::limits::HANDSHAKES_MAX;

/// The handshakes of one port.
#[derive(Default)]
pub(super) struct PendingHandshakes {
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    /// The oldest first.
    taken: VecDeque<Place>,
    last: u64,
}

struct Place {
    number: u64,
    address: IpAddr,
    crowded_out: oneshot::Sender<()>,
}

/// The place of one handshake; dropping it frees the place.
pub(super) struct HandshakeSlot {
    of: Arc<PendingHandshakes>,
    number: u64,
    lost: oneshot::Receiver<()>,
}

impl HandshakeSlot {
    /// Completes when a newer handshake has evicted this one.
    pub(super) async fn lost(&mut self) {
        // The sender is dropped only with the place that `self` gives back.
        let _ = (&mut self.lost).await;
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.of.places.lock().taken.retain(|place| place.number != self.number);
    }
}

impl PendingHandshakes {
    /// Takes a place for a handshake with this address, by eviction if none is free.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> HandshakeSlot {
        let mut places = self.places.lock();
        if places.taken.len() >= HANDSHAKES_MAX {
            let victim = places.victim();
            if let Some(place) = places.taken.remove(victim) {
                // Nobody listens if that handshake is just ending.
                let _ = place.crowded_out.send(());
            }
        }
        places.last += 1;
        let number = places.last;
        let (crowded_out, lost) = oneshot::channel();
        places.taken.push_back(Place { number, address, crowded_out });
        assert!(places.taken.len() <= HANDSHAKES_MAX, "each takes one place");
        HandshakeSlot { of: self.clone(), number, lost }
    }
}

impl Places {
    /// Index of the oldest place of the address that holds the most places.
    fn victim(&self) -> usize {
        let mut of_address = BTreeMap::<IpAddr, (usize, usize)>::new();
        for (at, place) in self.taken.iter().enumerate() {
            of_address.entry(place.address).or_insert((0, at)).0 += 1;
        }
        let (_, oldest) =
            of_address.values().copied().max_by_key(|&(count, _)| count).unwrap_or_default();
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn has_lost(taken: &mut HandshakeSlot) -> bool {
        taken.lost.try_recv().is_ok()
    }

    #[test]
    fn the_address_with_most_handshakes_loses_its_oldest() {
        let under_way = Arc::new(PendingHandshakes::default());
        let mut honest = under_way.enter(address(1));
        let mut many: Vec<_> = (1..HANDSHAKES_MAX).map(|_| under_way.enter(address(2))).collect();
        let late: Vec<_> = (0..3).map(|_| under_way.enter(address(3))).collect();
        assert!(!has_lost(&mut honest));
        let lost = many.iter_mut().map(has_lost).collect::<Vec<_>>();
        assert_eq!(lost.iter().filter(|&&lost| lost).count(), 3);
        assert!(lost[..3].iter().all(|&lost| lost), "the oldest");
        drop((honest, many, late));
        assert!(under_way.places.lock().taken.is_empty());
    }

    #[test]
    fn a_freed_place_is_taken_without_eviction() {
        let under_way = Arc::new(PendingHandshakes::default());
        let mut all: Vec<_> = (0..HANDSHAKES_MAX).map(|_| under_way.enter(address(1))).collect();
        drop(all.remove(7));
        let _next = under_way.enter(address(2));
        assert!(!all.iter_mut().any(has_lost));
    }
}
