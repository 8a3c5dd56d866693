//! Bytes of a chunk from whichever replica has them right.

use std::ops::Range;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use larder_net::{CallError, Peer};
use larder_protocol::Call;
use larder_protocol::manager::state::Topology;
use larder_protocol::scheduler::{Reading, Replica};
use larder_types::Chunk;
use larder_volume::{SumRange, whole_sums};
use tokio::time::{Instant, sleep, timeout};

use super::RemoteRoles;
use super::counters::count;
use super::planted::{self, Bug};
use super::reads::Holder;
use super::retry::pause;
use super::route::newer;
use crate::data::{ReadFailure, verified};
use crate::limits::{
    MAP_LATE_MAX, READ_MAPS_MAX, READ_PAUSES_CUT_MAX, READ_SILENT_MAX, READ_TIMEOUT_MS,
};
use crate::managers::down;
use crate::wire::{DataCall, DataService};

/// The grounds on which a chunk is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Certainty {
    /// METAX names it.
    Named,
    /// METAX named it once: it may have been freed since, and its place may have other bytes.
    Remembered,
}

/// The reason why a replica did not give its bytes. Of several, the greatest is the one that is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Failed {
    /// It cannot read there.
    Unreadable,
    /// Its bytes are not the chunk's.
    Mismatch,
    /// It does not answer, or has too much to do: says nothing about the data.
    Silent,
    /// The place that was remembered has other bytes now, it seems.
    Freed,
}

/// The bytes that a read wants.
struct Wanted<'a> {
    chunk: &'a Chunk,
    range: Range<u32>,
    /// The range in whole checksummed blocks.
    sums: SumRange,
    certainty: Certainty,
}

/// Reads bytes of a chunk and verifies them; asks one replica after the other until one has them right. Of
/// a chunk that is only remembered each is asked once. Such a chunk is given up at the first replica that
/// has other bytes: its place may have been given to another.
pub(super) async fn read(
    remote: &RemoteRoles,
    chunk: &Chunk,
    range: Range<u32>,
    certainty: Certainty,
) -> Result<Bytes, ReadFailure> {
    let sums = whole_sums(chunk, range.clone());
    let wanted = Wanted { chunk, range, sums, certainty };
    remote.replicas.reads.begin(&remote.managers.map());
    let silent_by = Instant::now() + READ_SILENT_MAX;
    let (mut silent, mut mismatches) = (0, 0);
    loop {
        // A round may take long by itself: one that began in time is followed by another.
        let began = Instant::now();
        let map = remote.managers.map();
        let mut reading = reading(remote, &map, &wanted);
        match read_once(remote, &map, &mut reading, &wanted).await {
            Ok(bytes) => return Ok(bytes),
            Err(_) if certainty == Certainty::Remembered => return Err(ReadFailure::Unreadable),
            Err(Failed::Freed) => unreachable!("what METAX names is not only remembered"),
            // It is damaged only if every holder was heard, and none has it. By an older map others are asked.
            Err(Failed::Mismatch) => {
                mismatches += 1;
                newer(&*remote.managers, map.version, MAP_LATE_MAX).await;
                if mismatches == READ_MAPS_MAX || remote.managers.map().version == map.version {
                    return Err(ReadFailure::Mismatch);
                }
            }
            Err(Failed::Unreadable) => return Err(ReadFailure::Unreadable),
            Err(Failed::Silent) if began < silent_by => {
                silent += 1;
                match silent <= READ_PAUSES_CUT_MAX {
                    true => drop(newer(&*remote.managers, map.version, pause(silent)).await),
                    false => sleep(pause(silent)).await,
                }
            }
            Err(Failed::Silent) => return Err(ReadFailure::Unreadable),
        }
    }
}

/// Asks each holder once: one after the other, and another beside one that takes long.
async fn read_once(
    remote: &RemoteRoles,
    map: &Topology,
    reading: &mut Reading,
    wanted: &Wanted<'_>,
) -> Result<Bytes, Failed> {
    // Of none: the map does not show the chunk's volume yet.
    let mut all = if reading.is_over() { Failed::Silent } else { Failed::Unreadable };
    while let Some(holder) = Holder::next(&remote.replicas, reading, remote.counters()) {
        let mut first = pin!(read_at(remote, map, &holder, wanted));
        let answered = loop {
            if let Ok(answered) = timeout(holder.hedge_after, first.as_mut()).await {
                break answered;
            }
            // Where the share of hedges is spent, it may not be a while later.
            if let Some(beside) = Holder::beside(&remote.replicas, reading, remote.counters()) {
                let other = read_at(remote, map, &beside, wanted);
                break Box::pin(either(remote, &holder, first, other)).await;
            }
        };
        match answered {
            Ok(bytes) => return Ok(bytes),
            Err(Failed::Freed) => return Err(Failed::Freed),
            Err(failed) => all = all.max(failed),
        }
    }
    Err(all)
}

/// The replicas among which the holders are.
fn reading(remote: &RemoteRoles, map: &Topology, wanted: &Wanted<'_>) -> Reading {
    let (holders, bytes) = (wanted.chunk.holders, u64::from(wanted.sums.len));
    let Some(record) = map.lvs.get(wanted.chunk.lv.0 as usize) else {
        return Reading::of(holders, [], bytes);
    };
    let place = |server| map.servers.get(&server).map(|record| record.domains);
    let (here, now) = (place(remote.me), Instant::now());
    let detectors = remote.replicas.detectors.lock();
    let replicas = record.present().map(|(index, replica)| Replica {
        index,
        server: replica.server,
        disk: replica.disk,
        is_near: here.is_some() && place(replica.server) == here,
        health: detectors.health(replica.server, now),
    });
    Reading::of(holders, replicas, bytes)
}

/// Waits for a replica that takes long and for another one; the first right answer counts, and the other is cancelled.
async fn either(
    remote: &RemoteRoles,
    holder: &Holder<'_>,
    first: Pin<&mut impl Future<Output = Result<Bytes, Failed>>>,
    other: impl Future<Output = Result<Bytes, Failed>>,
) -> Result<Bytes, Failed> {
    count(&remote.counters().reads_hedged);
    let (answered, by_other) = match select(first, pin!(other)).await {
        Either::Left((Err(Failed::Freed), _)) | Either::Right((Err(Failed::Freed), _)) => {
            (Err(Failed::Freed), false)
        }
        Either::Left((Err(failed), other)) => (other.await.map_err(|it| it.max(failed)), true),
        Either::Right((Err(failed), first)) => (first.await.map_err(|it| it.max(failed)), false),
        Either::Left((answered, _)) => (answered, false),
        Either::Right((answered, _)) => {
            holder.outrun();
            (answered, true)
        }
    };
    if by_other && answered.is_ok() {
        count(&remote.counters().hedges_won);
    }
    answered
}

/// One replica's bytes, verified.
async fn read_at(
    remote: &RemoteRoles,
    map: &Topology,
    holder: &Holder<'_>,
    wanted: &Wanted<'_>,
) -> Result<Bytes, Failed> {
    let read = match remote.replicas.data.of(map, holder.server()) {
        Some(peer) => read_from(remote, &peer, holder, wanted).await,
        None => Err(Failed::Silent),
    };
    if read.as_ref().is_err_and(|failed| *failed != Failed::Freed) {
        // Also if another that was asked beside it is still waited for.
        holder.gave_up();
        count(&remote.counters().failed_reads);
    }
    read
}

async fn read_from(
    remote: &RemoteRoles,
    peer: &Peer<DataService>,
    holder: &Holder<'_>,
    wanted: &Wanted<'_>,
) -> Result<Bytes, Failed> {
    let (server, Wanted { chunk, range, sums, certainty }) = (holder.server(), wanted);
    let (lv, extents) = (chunk.lv, chunk.extents.clone());
    let call = DataCall::Read { lv, extents, from: sums.from_byte, len: sums.len };
    let deadline = Instant::now() + Duration::from_millis(READ_TIMEOUT_MS);
    let answered = tokio::select! {
        biased;
        answered = peer.call_while_wanted(&call, Bytes::new(), deadline) => answered,
        () = down(&*remote.managers, server) => return Err(Failed::Silent),
    };
    let (reply, bytes) = match answered {
        Ok(answered) => answered,
        Err(error) => {
            tracing::debug!(%server, %error, "a replica did not respond to a read");
            // One that has too much to do is up.
            match error {
                CallError::Busy(_) => holder.is_busy(),
                _ => holder.failed(),
            }
            return Err(Failed::Silent);
        }
    };
    let report = reply.report();
    let is_named = *certainty == Certainty::Named;
    if !reply.has_bytes() {
        if !is_named {
            holder.forgot();
            return Err(Failed::Freed);
        }
        holder.refused();
        return Err(Failed::Unreadable);
    }
    if planted::has(Bug::ReadsUnverified) {
        let from = (range.start - sums.from_byte) as usize;
        return Ok(bytes.slice(from..from + range.len()));
    }
    let right = bytes.len() == sums.len as usize;
    match right.then(|| verified(chunk, range.clone(), *sums, bytes)) {
        Some(Ok(bytes)) => {
            holder.answered(report);
            Ok(bytes)
        }
        _ if !is_named => {
            holder.forgot();
            Err(Failed::Freed)
        }
        _ => {
            holder.refused();
            tracing::debug!(%server, lv = %chunk.lv, "a replica's bytes failed verification");
            count(&remote.counters().mismatches);
            // Or the object was replaced while it was read: then its primary finds nothing to mend.
            let suspect = Call::Suspect { grant: chunk.grant, server };
            remote.primaries.notify(chunk.grant.pg, suspect);
            Err(Failed::Mismatch)
        }
    }
}
