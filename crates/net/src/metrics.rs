//! Counts of connections, frames, calls and refusals, for a role to export.

use std::time::{Duration, Instant};

use larder_identity::{Refusal, Role};
use larder_types::{Counter, LogLimiter};
use parking_lot::Mutex;

use crate::error::Refused;

/// The end of a connection that this server is: the client or the server of its service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionSide {
    /// The client: it asks.
    Asks,
    /// The server: it answers.
    Serves,
}

impl ConnectionSide {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Asks, Self::Serves];

    /// Its label in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Asks => "asks",
            Self::Serves => "serves",
        }
    }
}

/// Bytes of frames on connections of one kind, without those of TLS.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Bytes received.
    pub received: Counter,
    /// Bytes sent.
    pub sent: Counter,
}

/// A histogram of the round trips of calls: bucket n counts those of less than 2^(n+4) µs that no bucket before it counts.
#[derive(Debug, Default)]
pub struct RoundTrips {
    buckets: [Counter; Self::BUCKETS],
    microseconds: Counter,
}

impl RoundTrips {
    /// Bounds from 16 µs to 16.8 s, and a bucket for longer ones.
    pub const BUCKETS: usize = 22;

    pub(crate) fn took(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - (us >> 4).leading_zeros()) as usize;
        self.buckets[bucket.min(Self::BUCKETS - 1)].add(1);
        self.microseconds.add(us);
    }

    /// The upper bound of each bucket but the last, which has none, with the number of calls in it.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        self.buckets.iter().enumerate().map(|(n, count)| {
            let bound = (n + 1 < Self::BUCKETS).then(|| Duration::from_micros(1 << (n + 4)));
            (bound, count.get())
        })
    }

    /// The sum of all round trips.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.microseconds.get())
    }
}

/// Bounds the log lines about refusals, as anyone who reaches the port can cause refusals.
#[derive(Debug)]
struct Lines {
    since: Instant,
    of_refusals: Mutex<[LogLimiter; Refused::ALL.len()]>,
    of_joiners: Mutex<[LogLimiter; Refusal::NotNow as usize + 1]>,
}

impl Default for Lines {
    fn default() -> Self {
        let (of_refusals, of_joiners) = (Mutex::default(), Mutex::default());
        Self { since: Instant::now(), of_refusals, of_joiners }
    }
}

impl Lines {
    fn now_ms(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }
}

/// The counts of all connections of one endpoint, or of a shared port before they reach a server.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Connections that are open, either way.
    pub open: Counter,
    /// Connections that this server opened.
    pub connected: Counter,
    /// Of those, the ones to servers of the same process.
    pub local: Counter,
    /// Connections accepted.
    pub accepted: Counter,
    /// Attempts to connect that failed, but not because either side refused the other.
    pub unreachable: Counter,
    /// Connections that broke after the hellos.
    pub broken: Counter,
    refused: [Counter; Refused::ALL.len()],
    lines: Lines,
    /// Frames received.
    pub received: Counter,
    /// Frames sent.
    pub sent: Counter,
    /// By service and end.
    traffic: [[Traffic; ConnectionSide::ALL.len()]; Role::ALL.len()],
    /// Bytes on connections whose service is not agreed on yet.
    shaking_hands: Traffic,
    /// One-way messages that were not queued, lost in the queue, or not understood.
    pub dropped: Counter,
    /// Requests refused because too much was under way, here or at the peer.
    pub busy: Counter,
    /// Calls under way.
    pub in_flight: Counter,
    /// Requests that handlers have not answered.
    pub handling: Counter,
    /// Times of answered calls, by service.
    round_trips: [RoundTrips; Role::ALL.len()],
}

impl Metrics {
    /// Connections refused for this reason.
    #[must_use]
    pub fn refused(&self, why: Refused) -> u64 {
        self.refused[why as usize].get()
    }

    /// Bytes on connections of a service, of those at which this server is this end.
    #[must_use]
    pub fn traffic(&self, service: Role, stands: ConnectionSide) -> &Traffic {
        &self.traffic[service as usize][stands as usize]
    }

    /// As [`Metrics::traffic`]; `None` stands for connections whose service is not agreed on yet.
    pub(crate) fn traffic_of(&self, carries: Option<(Role, ConnectionSide)>) -> &Traffic {
        carries.map_or(&self.shaking_hands, |(service, stands)| self.traffic(service, stands))
    }

    /// Bytes on all connections: received, and sent.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        let all = self.traffic.iter().flatten().chain([&self.shaking_hands]);
        all.fold((0, 0), |(received, sent), of| {
            (received + of.received.get(), sent + of.sent.get())
        })
    }

    /// Times of calls to a service that were answered.
    #[must_use]
    pub fn round_trips(&self, service: Role) -> &RoundTrips {
        &self.round_trips[service as usize]
    }

    pub(crate) fn refuse(&self, why: Refused) {
        self.refused[why as usize].add(1);
    }

    /// Counts the refusal of a connection that was not authenticated. `Some` if it is to be logged, with the number of such
    /// refusals since the last line.
    pub(crate) fn refuse_stranger(&self, why: Refused) -> Option<u64> {
        self.refuse(why);
        self.lines.of_refusals.lock()[why as usize].happens(self.lines.now_ms())
    }

    /// As [`Metrics::refuse_stranger`], for a server that is not given a certificate.
    pub(crate) fn refuse_joiner(&self, why: Refusal) -> Option<u64> {
        self.lines.of_joiners.lock()[why as usize].happens(self.lines.now_ms())
    }
}

/// Counts a connection as open until this is dropped, however its task ends.
pub(crate) struct Opened<'a>(&'a Metrics);

impl<'a> Opened<'a> {
    pub(crate) fn new(metrics: &'a Metrics) -> Self {
        metrics.open.add(1);
        Self(metrics)
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.0.open.sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_by_service_and_end_and_in_sum() {
        let metrics = Metrics::default();
        metrics.traffic_of(Some((Role::Data, ConnectionSide::Serves))).received.add(7);
        metrics.traffic_of(Some((Role::Data, ConnectionSide::Asks))).sent.add(30);
        metrics.traffic_of(None).sent.add(200);
        for service in Role::ALL {
            for stands in ConnectionSide::ALL {
                let of = metrics.traffic(service, stands);
                let expected = match (service, stands) {
                    (Role::Data, ConnectionSide::Serves) => (7, 0),
                    (Role::Data, ConnectionSide::Asks) => (0, 30),
                    _ => (0, 0),
                };
                assert_eq!((of.received.get(), of.sent.get()), expected, "{service} {stands:?}");
            }
        }
        assert_eq!(metrics.bytes(), (7, 230));
    }

    #[test]
    fn round_trips_are_counted_below_their_bound() {
        let trips = RoundTrips::default();
        for us in [0, 15, 16, 31, 32, 1 << 40] {
            trips.took(Duration::from_micros(us));
        }
        let counts: Vec<u64> = trips.buckets().map(|(_, count)| count).collect();
        assert_eq!(counts[..4], [2, 2, 1, 0]);
        assert_eq!(counts[RoundTrips::BUCKETS - 1], 1);
        assert_eq!(trips.buckets().last().map(|(bound, _)| bound), Some(None));
    }
}
