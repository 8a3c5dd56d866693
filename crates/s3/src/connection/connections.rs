//! The connections that are open, and which of them makes room for another.
//!
//! # Invariants
//!
//! 1. No more are open than allowed, nor more of one network; a connection chosen for closing no longer counts.
//! 2. Only one that has no request, and had none for a while, is closed ([`super::activity`]).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::activity::ConnectionActivity;

/// One client: an address, or the 64 bits that one customer of IPv6 has at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Network(u64, bool);

impl Network {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(u64::from(address.to_bits()), false),
            IpAddr::V6(address) => Self((address.to_bits() >> 64) as u64, true),
        }
    }
}

/// Limits of connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Most {
    pub(crate) open: usize,
    pub(crate) of_network: usize,
    /// Time that a connection must have been idle to be closed for another.
    pub(crate) idle: Duration,
}

/// All connections of a server.
pub(crate) struct Connections {
    most: Most,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    open: BTreeMap<u64, Entry>,
    of_network: HashMap<Network, usize>,
}

struct Entry {
    network: Network,
    activity: Arc<ConnectionActivity>,
    close: Arc<Notify>,
}

impl State {
    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.open.remove(&id)?;
        if let Some(count) = self.of_network.get_mut(&entry.network) {
            *count -= 1;
            if *count == 0 {
                self.of_network.remove(&entry.network);
            }
        }
        Some(entry)
    }

    /// The connection that is idle longest, for `idle` at least.
    fn idlest(&self, idle: Duration, network: Option<Network>) -> Option<u64> {
        let wanted = |entry: &&Entry| network.is_none_or(|network| entry.network == network);
        let mut idlest = None;
        for (id, entry) in self.open.iter().filter(|(_, entry)| wanted(entry)) {
            let since = entry.activity.idle_for().filter(|since| *since >= idle);
            idlest = idlest.max(since.map(|since| (since, *id)));
        }
        idlest.map(|(_, id)| id)
    }

    /// Closes that connection; `None` if there is none.
    fn close_idlest(&mut self, idle: Duration, network: Option<Network>) -> Option<()> {
        loop {
            let id = self.idlest(idle, network)?;
            // If a request has arrived meanwhile, the next idle connection is sought.
            if self.open.get(&id).is_some_and(|entry| entry.activity.close_if_idle(idle)) {
                self.remove(id)?.close.notify_one();
                return Some(());
            }
        }
    }
}

impl Connections {
    pub(crate) fn new(most: Most) -> Self {
        Self { most, state: Mutex::default() }
    }

    /// A place for a connection from there, if need be that of an idle one.
    pub(crate) fn admit(self: &Arc<Self>, from: IpAddr) -> Option<Place> {
        let network = Network::of(from);
        let mut state = self.state();
        let of_network = state.of_network.get(&network).copied().unwrap_or(0);
        let crowd = match of_network >= self.most.of_network {
            true => Some(Some(network)),
            false => (state.open.len() >= self.most.open).then_some(None),
        };
        if let Some(crowd) = crowd {
            state.close_idlest(self.most.idle, crowd)?;
        }
        state.last += 1;
        let (id, activity, close) =
            (state.last, Arc::<ConnectionActivity>::default(), Arc::<Notify>::default());
        let entry = Entry { network, activity: Arc::clone(&activity), close: Arc::clone(&close) };
        state.open.insert(id, entry);
        *state.of_network.entry(network).or_default() += 1;
        drop(state);
        Some(Place { id, connections: Arc::clone(self), activity, close })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place; dropping it gives it back.
pub(crate) struct Place {
    id: u64,
    connections: Arc<Connections>,
    pub(crate) activity: Arc<ConnectionActivity>,
    /// Told when the connection is to make room.
    pub(crate) close: Arc<Notify>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.state().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use futures::FutureExt;

    use super::*;
    use crate::connection::activity::Working;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn connections(open: usize, of_network: usize) -> Arc<Connections> {
        Arc::new(Connections::new(Most { open, of_network, idle: Duration::ZERO }))
    }

    fn was_closed(place: &Place) -> bool {
        place.close.notified().now_or_never().is_some()
    }

    #[test]
    fn the_idlest_makes_room_and_one_that_works_does_not() {
        let connections = connections(2, 2);
        let (first, second) = (connections.admit(A).unwrap(), connections.admit(B).unwrap());
        let working = Working::begin(&first.activity).unwrap();
        let third = connections.admit(A).unwrap();
        assert!(was_closed(&second) && !was_closed(&first));
        drop(second);
        let fourth = connections.admit(A).unwrap();
        assert!(was_closed(&third) && !was_closed(&first));
        let busy = Working::begin(&fourth.activity).unwrap();
        assert!(connections.admit(B).is_none(), "all of them work");
        fourth.activity.answered();
        assert!(connections.admit(B).is_none(), "an answer is on its way");
        drop((working, busy, fourth));
        assert!(connections.admit(B).is_some());
    }

    #[test]
    fn one_network_cannot_take_the_places_of_others() {
        let connections = connections(10, 2);
        let other = connections.admit(B).unwrap();
        let own = [connections.admit(A).unwrap(), connections.admit(A).unwrap()];
        let _more = connections.admit(A).unwrap();
        assert!(was_closed(&own[0]) && !was_closed(&own[1]) && !was_closed(&other));
    }

    #[test]
    fn a_connection_that_was_just_used_is_not_closed() {
        let most = Most { open: 1, of_network: 1, idle: Duration::from_secs(3600) };
        let connections = Arc::new(Connections::new(most));
        let place = connections.admit(A).unwrap();
        assert!(connections.admit(A).is_none());
        drop(place);
        assert!(connections.admit(A).is_some());
    }

    #[test]
    fn an_ipv6_customer_is_one_client() {
        let of = |text: &str| Network::of(IpAddr::V6(text.parse::<Ipv6Addr>().unwrap()));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), Network::of(A));
    }
}
