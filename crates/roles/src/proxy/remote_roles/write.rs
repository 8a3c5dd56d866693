//! A put's data, on its way to every replica.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use larder_net::CallError;
use larder_protocol::manager::state::Topology;
use larder_types::{Holders, ServerId};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, timeout};

use super::super::role_access::Lost;
use super::counters::{ProxyCounters, count};
use super::planted::{self, Bug};
use super::retry::pause;
use super::route::{found, replicas};
use super::{RemoteRoles, Replicas};
use crate::limits::{STRAGGLER_MAX, STRAGGLERS_KIB_MAX, WITHDRAWAL_MS, WRITE_TIMEOUT_MS};
use crate::managers::down;
use crate::ticket::{Granted, WriteOutcome};
use crate::wire::{DataCall, DataReply};

/// A write to one replica: its index, and what came of it.
type Write = BoxFuture<'static, (usize, WriteOutcome)>;

/// The replies of replicas to a put's data.
#[derive(Default)]
pub(super) struct WriteAcks {
    /// Those that have it.
    pub(super) holders: Holders,
    /// Those that had no room for it.
    pub(super) full: Holders,
    has_failed: bool,
}

impl WriteAcks {
    fn note(&mut self, replica: usize, outcome: WriteOutcome, counters: &ProxyCounters) {
        match outcome {
            WriteOutcome::Durable => self.holders = self.holders.with(replica),
            WriteOutcome::Full => self.full = self.full.with(replica),
            _ if planted::has(Bug::CountsFailedWrites) => self.holders = self.holders.with(replica),
            WriteOutcome::Busy | WriteOutcome::Failed => self.has_failed = true,
        }
        if outcome != WriteOutcome::Durable {
            count(&counters.failed_writes);
        }
    }
}

/// A put's data is on enough replicas.
pub(super) struct Written {
    /// The replies so far.
    pub(super) seen: WriteAcks,
    /// Replicas that are still being given it.
    pub(super) rest: Option<Stragglers>,
}

/// Writes that go on after a put's client was answered. They hold its data, within a bound for all of them.
pub(super) struct Stragglers {
    writes: FuturesUnordered<Write>,
    _permit: OwnedSemaphorePermit,
}

impl Stragglers {
    /// Waits for the rest, but not for long: readers of the object may be waiting.
    pub(super) async fn join(mut self, seen: &mut WriteAcks, counters: &ProxyCounters) {
        let all = async {
            while let Some((replica, outcome)) = self.writes.next().await {
                seen.note(replica, outcome, counters);
            }
        };
        if timeout(STRAGGLER_MAX, all).await.is_err() {
            count(&counters.late_writes);
        }
    }
}

/// Writes the data to every replica that the grant names, and returns once `enough` have it; 0: all of them. The put
/// is to end `by` then.
pub(super) async fn write(
    remote: &RemoteRoles,
    granted: &Granted,
    data: &Bytes,
    required_copies: u8,
    by: Instant,
) -> Result<Written, Lost> {
    // Writes that are not done by then have to be taken back in what is left.
    let last = by - Duration::from_millis(WITHDRAWAL_MS);
    let deadline = last.min(Instant::now() + Duration::from_millis(WRITE_TIMEOUT_MS));
    // A server that has been given up accepts writes until it learns that: its data is not copied.
    let place = |map: &Topology| {
        let is_new = map.version >= granted.as_of;
        is_new.then(|| replicas(map, granted.lv, granted.replicas)).flatten()
    };
    let Some(replicas) = found(&*remote.managers, deadline, place).await else {
        tracing::warn!(lv = %granted.lv, "the map does not name the replicas of a grant's volume");
        return Err(Lost::default());
    };
    let required_copies =
        if required_copies == 0 { replicas.len() } else { usize::from(required_copies) };
    let call = Arc::new(DataCall::Write {
        lv: granted.lv,
        grant: granted.grant,
        extents: granted.extents.clone(),
        len: data.len() as u32,
    });
    let one = |(replica, server)| -> Write {
        let (to, call, data) = (remote.replicas.clone(), call.clone(), data.clone());
        Box::pin(async move { (replica, write_to(&to, server, &call, &data, deadline).await) })
    };
    let mut writes: FuturesUnordered<Write> = replicas.iter().copied().map(one).collect();
    let mut seen = WriteAcks::default();
    while seen.holders.count() < required_copies
        && let Some((replica, outcome)) = writes.next().await
    {
        seen.note(replica, outcome, remote.counters());
        if seen.has_failed && seen.holders.count() + writes.len() < required_copies {
            return Err(Lost { full: seen.full });
        }
    }
    if seen.holders.count() < required_copies {
        return Err(Lost { full: seen.full });
    }
    let rest = if writes.is_empty() { None } else { stragglers(remote, writes, data.len()) };
    Ok(Written { seen, rest })
}

/// Has what is left of a put's writes go on, if there is room for its data.
fn stragglers(
    remote: &RemoteRoles,
    writes: FuturesUnordered<Write>,
    bytes: usize,
) -> Option<Stragglers> {
    count(&remote.counters().answered_early);
    let kib = bytes.div_ceil(1024).min(STRAGGLERS_KIB_MAX) as u32;
    let room = remote.stragglers.clone().try_acquire_many_owned(kib).ok();
    if room.is_none() {
        count(&remote.counters().late_writes);
    }
    Some(Stragglers { writes, _permit: room? })
}

/// Writes the data to one replica, slower where there is too much to do.
async fn write_to(
    to: &Replicas,
    server: ServerId,
    call: &DataCall,
    data: &Bytes,
    deadline: Instant,
) -> WriteOutcome {
    let Some(peer) = to.data.of(&to.managers.map(), server) else {
        return WriteOutcome::Failed;
    };
    for tries in 1.. {
        let answered = tokio::select! {
            biased;
            answered = peer.call(call, data.clone(), deadline) => answered,
            () = down(&*to.managers, server) => {
                tracing::debug!(%server, "a replica went down during a write");
                return WriteOutcome::Failed;
            }
        };
        if answered.is_ok() {
            to.detectors.lock().answered(server);
        }
        match answered {
            Ok((DataReply::Written, _)) => return WriteOutcome::Durable,
            Ok((DataReply::Full, _)) => return WriteOutcome::Full,
            Ok((reply, _)) => {
                tracing::debug!(%server, ?reply, "a replica refused a put's data");
                return WriteOutcome::Failed;
            }
            Err(CallError::Busy(_)) if Instant::now() < deadline => sleep(pause(tries)).await,
            Err(error) => {
                tracing::debug!(%server, %error, "a replica did not respond to a write");
                to.detectors.lock().failed(server, Instant::now());
                return WriteOutcome::Failed;
            }
        }
    }
    unreachable!("the deadline comes before the last number")
}
