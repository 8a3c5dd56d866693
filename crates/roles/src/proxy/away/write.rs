//! A put's data, on its way to every replica.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use larder_net::CallError;
use larder_protocol::manager::state::Topology;
use larder_types::{Holders, ServerId};
use tokio::time::{Instant, sleep};

use super::super::reach::Lost;
use super::Away;
use super::counters::count;
use super::retry::pause;
use super::route::{found, replicas};
use crate::limits::WRITE_PATIENCE_MS;
use crate::peers::down;
use crate::ticket::{Granted, WriteOutcome};
use crate::wire::{DataCall, DataReply};

/// Writes the data to every replica that the grant names; returns those that have it, which are all.
pub(super) async fn write(away: &Away, granted: &Granted, data: &Bytes) -> Result<Holders, Lost> {
    let deadline = Instant::now() + Duration::from_millis(WRITE_PATIENCE_MS);
    let place = |map: &Topology| replicas(map, granted.lv, granted.replicas);
    let Some(replicas) = found(&*away.managers, deadline, place).await else {
        tracing::warn!(lv = %granted.lv, "the map does not name the replicas of a grant's volume");
        return Err(Lost { disk_full: false, in_doubt: false });
    };
    let call = DataCall::Write {
        lv: granted.lv,
        grant: granted.grant,
        extents: granted.extents.clone(),
        len: data.len() as u32,
    };
    let one =
        async |(replica, server)| (replica, write_to(away, server, &call, data, deadline).await);
    let mut writes: FuturesUnordered<_> = replicas.iter().copied().map(one).collect();
    let (mut holders, mut full) = (Holders::default(), 0);
    while let Some((replica, outcome)) = writes.next().await {
        match outcome {
            WriteOutcome::Durable => holders = holders.with(replica),
            WriteOutcome::Full => {
                count(&away.counters().failed_writes);
                full += 1;
            }
            WriteOutcome::Failed => {
                count(&away.counters().failed_writes);
                return Err(Lost { disk_full: full > 0, in_doubt: true });
            }
        }
    }
    if full > 0 {
        // One that has no room wrote nothing.
        return Err(Lost { disk_full: true, in_doubt: holders.count() > 0 });
    }
    Ok(holders)
}

/// Writes the data to one replica, slower where there is too much to do.
async fn write_to(
    away: &Away,
    server: ServerId,
    call: &DataCall,
    data: &Bytes,
    deadline: Instant,
) -> WriteOutcome {
    let Some(peer) = away.data.of(&away.managers.map(), server) else {
        return WriteOutcome::Failed;
    };
    for tries in 1.. {
        let answered = tokio::select! {
            biased;
            answered = peer.call(call, data.clone(), deadline) => answered,
            () = down(&*away.managers, server) => {
                tracing::debug!(%server, "a replica went down during a write");
                return WriteOutcome::Failed;
            }
        };
        if answered.is_ok() {
            away.detectors.lock().answered(server);
        }
        match answered {
            Ok((DataReply::Written, _)) => return WriteOutcome::Durable,
            Ok((DataReply::Full, _)) => return WriteOutcome::Full,
            Ok((reply, _)) => {
                tracing::debug!(%server, ?reply, "a replica did not take a put's data");
                return WriteOutcome::Failed;
            }
            Err(CallError::Busy(_)) if Instant::now() < deadline => sleep(pause(tries)).await,
            Err(error) => {
                tracing::debug!(%server, %error, "a replica did not answer a write");
                away.detectors.lock().failed(server, Instant::now());
                return WriteOutcome::Failed;
            }
        }
    }
    unreachable!("the deadline comes before the last number")
}
