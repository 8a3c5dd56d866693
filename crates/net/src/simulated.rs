//! A network within the process, for simulations: bytes arrive late, in pieces or not at all, as its user's random numbers
//! decide. Only with the feature `simulated`, which no release has.
//!
//! It replaces TCP and TLS alone: frames, links, listeners, deadlines and cancels above it are those of production.
//! There is no TLS, because its random bytes would make each run differ. The network knows each host's identity, and the
//! checks are those of certificates.
//!
//! # Invariants
//!
//! 1. Bytes of one direction of a connection arrive in their order, each once, or none behind the first that is lost.
//! 2. The only clock here is tokio's, and the only randomness is its user's. So on one thread with a paused clock the
//!    same random numbers make the same run.

mod channels;
mod pipe;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use larder_identity::{Role, Subject};
use larder_types::ServerId;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep};

use crate::connection::Broken;
use crate::error::{Denied, Refused};
use crate::target::Target;
use channels::ChannelTable;
pub use channels::Delivered;
pub use pipe::Pipe;

/// Connections that a listener has not accepted yet.
const BACKLOG: usize = 1024;

/// Delays of a network, and the parts in which it takes writes. A millisecond is the shortest time, as it is of tokio's timers.
#[derive(Debug, Clone, Copy, Default)]
pub struct NetworkConditions {
    /// The longest that bytes usually take.
    pub delay_ms: u64,
    /// One piece in so many takes longer; 0: none.
    pub late_one_in: u64,
    /// The longest that those take.
    pub late_ms: u64,
    /// Of one write in so many only a part is taken; 0: none.
    pub split_one_in: u64,
}

/// A network for hosts of one process.
pub struct Network {
    state: Mutex<State>,
    /// Notified when a cut is healed.
    changed: Notify,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

struct State {
    draw: Box<dyn FnMut() -> u64 + Send>,
    conditions: NetworkConditions,
    /// Listeners, by address.
    doors: BTreeMap<String, ListenerSlot>,
    channels: ChannelTable,
    refusing: BTreeSet<ServerId>,
    slow: BTreeMap<(ServerId, ServerId), Duration>,
}

struct ListenerSlot {
    subject: Subject,
    arrivals: mpsc::Sender<Arrival>,
}

/// A connection, the server that opened it, and the address of that.
pub type Arrival = (Pipe, Subject, SocketAddr);

impl State {
    fn delay(&mut self, way: (ServerId, ServerId)) -> Duration {
        let NetworkConditions { delay_ms, late_one_in, late_ms, .. } = self.conditions;
        let is_late = late_one_in > 0 && (self.draw)().is_multiple_of(late_one_in);
        let longest = if is_late { late_ms } else { delay_ms };
        let drawn = Duration::from_millis((self.draw)() % (longest + 1));
        drawn + self.slow.get(&way).copied().unwrap_or_default()
    }
}

impl Network {
    /// A network with these delays. `draw` gives the next 64 random bits.
    #[must_use]
    pub fn new(
        conditions: NetworkConditions,
        draw: impl FnMut() -> u64 + Send + 'static,
    ) -> Arc<Self> {
        let state = State {
            draw: Box::new(draw),
            conditions,
            doors: BTreeMap::new(),
            channels: ChannelTable::new(Instant::now()),
            refusing: BTreeSet::new(),
            slow: BTreeMap::new(),
        };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    /// A server's place in the network.
    #[must_use]
    pub fn host(self: &Arc<Self>, subject: Subject) -> Host {
        Host { network: self.clone(), subject }
    }

    /// Lets no bytes through from one server to another: they wait, as if a cable were pulled out.
    pub fn cut(&self, from: ServerId, to: ServerId) {
        self.state.lock().channels.cut(from, to);
    }

    /// Lets bytes through again, also those that waited.
    pub fn heal(&self, from: ServerId, to: ServerId) {
        self.state.lock().channels.heal(from, to);
        self.changed.notify_waiters();
    }

    /// Returns true while the way from one server to another is cut.
    #[must_use]
    pub fn is_cut(&self, from: ServerId, to: ServerId) -> bool {
        self.state.lock().channels.is_cut(from, to)
    }

    /// Resets all connections of two servers with each other; bytes on their way are lost.
    pub fn reset(&self, one: ServerId, other: ServerId) {
        self.state.lock().channels.reset(one, other);
    }

    /// Has a server refuse new connections, as if its process were gone, or take them again.
    pub fn refuse(&self, server: ServerId, refuses: bool) {
        let refusing = &mut self.state.lock().refusing;
        if refuses {
            refusing.insert(server)
        } else {
            refusing.remove(&server)
        };
    }

    /// Has bytes take this much longer from one server to another.
    pub fn slow(&self, from: ServerId, to: ServerId, by: Duration) {
        self.state.lock().slow.insert((from, to), by);
    }

    /// All pieces that have arrived so far, in the order of their arrival.
    #[must_use]
    pub fn delivered(&self) -> Vec<Delivered> {
        self.state.lock().channels.delivered().to_vec()
    }
}

/// A server's place in a network.
#[derive(Debug, Clone)]
pub struct Host {
    network: Arc<Network>,
    subject: Subject,
}

impl Host {
    /// Listens at an address.
    #[must_use]
    pub fn listen(&self, address: SocketAddr) -> Arrivals {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let door = ListenerSlot { subject: self.subject, arrivals: sender };
        self.network.state.lock().doors.insert(address.to_string(), door);
        Arrivals { address, receiver }
    }

    pub(crate) fn draw(&self) -> u64 {
        (self.network.state.lock().draw)()
    }

    /// Opens a connection to the target, and verifies that it is this server and has the role.
    pub(crate) async fn connect(&self, target: &Target) -> Result<Pipe, Broken> {
        let (there, back) = self.latencies_to(target);
        sleep(there).await;
        self.both_open(target.server).await;
        let pipe = self.enter(target)?;
        sleep(back).await;
        Ok(pipe)
    }

    /// Opens a stream for a protocol that is none of this crate's, to the server that listens at an address.
    ///
    /// # Errors
    /// If the server refuses, is another one or of another cluster, or does not have the role.
    pub async fn open(
        &self,
        (server, role): (ServerId, Role),
        address: SocketAddr,
    ) -> io::Result<Pipe> {
        let target = Target { server, role, address: address.to_string() };
        self.connect(&target).await.map_err(|broken| match broken {
            Broken::Io(error) => error,
            broken => io::Error::other(broken.to_string()),
        })
    }

    fn latencies_to(&self, target: &Target) -> (Duration, Duration) {
        let (us, them) = (self.subject.server, target.server);
        let mut state = self.network.state.lock();
        (state.delay((us, them)), state.delay((them, us)))
    }

    async fn both_open(&self, server: ServerId) {
        let us = self.subject.server;
        loop {
            let changed = self.network.changed.notified();
            if !self.network.is_cut(us, server) && !self.network.is_cut(server, us) {
                return;
            }
            changed.await;
        }
    }

    fn enter(&self, target: &Target) -> Result<Pipe, Broken> {
        let refused = || Broken::Io(io::ErrorKind::ConnectionRefused.into());
        let mut state = self.network.state.lock();
        let State { doors, channels, refusing, .. } = &mut *state;
        let door = doors.get(&target.address).ok_or_else(refused)?;
        let subject = door.subject;
        if refusing.contains(&subject.server) || door.arrivals.is_closed() {
            return Err(refused());
        }
        if subject.server != target.server || subject.cluster != self.subject.cluster {
            let why = format!("{subject} is another server than was meant");
            return Err(Broken::Denied(Denied::by_us(Refused::WrongServer, why)));
        }
        if !subject.roles.has(target.role) {
            let why = format!("{subject} has not the role {}", target.role);
            return Err(Broken::Denied(Denied::by_us(Refused::WrongRole, why)));
        }
        let (there, back) = channels.open(self.subject.server, subject.server);
        let theirs = Pipe::new(self.network.clone(), there, back);
        // The result keeps a pipe that could not be sent until the lock is free: dropping the pipe takes the lock.
        let sent = door.arrivals.try_send((theirs, self.subject, address_of(self.subject.server)));
        drop(state);
        let ours = Pipe::new(self.network.clone(), back, there);
        match sent {
            Ok(()) => Ok(ours),
            Err(_full_or_closed) => Err(refused()),
        }
    }
}

/// The address of a host.
fn address_of(server: ServerId) -> SocketAddr {
    let [_, a, b, c] = server.0.to_be_bytes();
    (Ipv4Addr::new(10, a, b, c), 1).into()
}

/// Connections that come to an address.
#[derive(Debug)]
pub struct Arrivals {
    address: SocketAddr,
    receiver: mpsc::Receiver<Arrival>,
}

impl Arrivals {
    /// The address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next one.
    pub async fn next(&mut self) -> Arrival {
        match self.receiver.recv().await {
            Some(arrival) => arrival,
            // The network is gone: no connection can come.
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests;
