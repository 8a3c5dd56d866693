//! Bytes of a chunk from whichever replica has them right.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use larder_net::CallError;
use larder_protocol::manager::state::Topology;
use larder_types::{Chunk, ServerId};
use larder_volume::whole_sums;
use tokio::time::Instant;

use super::Away;
use super::counters::count;
use super::detector::Standing;
use super::retry::pause;
use super::route::newer;
use crate::data::{ReadFailure, verified};
use crate::limits::{READ_PATIENCE_MS, READ_ROUNDS_MAX};
use crate::peers::down;
use crate::wire::{DataCall, DataReply};

/// Why a replica did not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failed {
    /// It does not answer, or has too much to do: says nothing about the data.
    Silent,
    /// It cannot read there.
    Unreadable,
    /// Its bytes are not the chunk's.
    Mismatch,
}

/// Reads bytes of a chunk and verifies them; asks one replica after the other until one has them right.
pub(super) async fn read(
    away: &Away,
    chunk: &Chunk,
    range: Range<u32>,
) -> Result<Bytes, ReadFailure> {
    let turn = away.turn.fetch_add(1, Ordering::Relaxed);
    let mut failures = Vec::new();
    for round in 1..=READ_ROUNDS_MAX {
        let map = away.managers.map();
        let holders = holders(away, &map, chunk, turn);
        failures.clear();
        if holders.is_empty() {
            // The map does not show the chunk's volume yet.
            failures.push(Failed::Silent);
        }
        for server in holders {
            match read_at(away, &map, server, chunk, range.clone()).await {
                Ok(bytes) => return Ok(bytes),
                Err(failed) => failures.push(failed),
            }
            count(&away.counters().failed_reads);
        }
        if !failures.contains(&Failed::Silent) {
            break;
        }
        if round < READ_ROUNDS_MAX {
            newer(&*away.managers, map.version, pause(round)).await;
        }
    }
    // It is damaged only if every holder was heard, and none has it.
    let all_heard = !failures.contains(&Failed::Silent);
    let damaged = all_heard && failures.contains(&Failed::Mismatch);
    Err(if damaged { ReadFailure::Mismatch } else { ReadFailure::Unreadable })
}

/// Servers that have the chunk, in the order in which they are asked.
fn holders(away: &Away, map: &Topology, chunk: &Chunk, turn: usize) -> Vec<ServerId> {
    let Some(record) = map.lvs.get(chunk.lv.0 as usize) else { return Vec::new() };
    let place = |server| map.servers.get(&server).map(|record| record.domains);
    let (here, now) = (place(away.me), Instant::now());
    let detectors = away.detectors.lock();
    let present = record.present().filter(|(index, _)| chunk.holders.has(*index));
    let candidates = present.map(|(_, replica)| {
        let is_near = here.is_some() && place(replica.server) == here;
        (replica.server, is_near, detectors.standing(replica.server, now))
    });
    in_order(candidates.collect(), turn)
}

/// Those that are down last, as nothing else may be left; near ones before others; else by turns.
fn in_order(mut candidates: Vec<(ServerId, bool, Standing)>, turn: usize) -> Vec<ServerId> {
    if !candidates.is_empty() {
        let by = turn % candidates.len();
        candidates.rotate_left(by);
    }
    candidates.sort_by_key(|(_, is_near, standing)| (*standing == Standing::Down, !is_near));
    candidates.into_iter().map(|(server, ..)| server).collect()
}

async fn read_at(
    away: &Away,
    map: &Topology,
    server: ServerId,
    chunk: &Chunk,
    range: Range<u32>,
) -> Result<Bytes, Failed> {
    let peer = away.data.of(map, server).ok_or(Failed::Silent)?;
    if away.detectors.lock().asked(server, Instant::now()) {
        count(&away.counters().probes);
    }
    let sums = whole_sums(chunk, range.clone());
    let (lv, extents) = (chunk.lv, chunk.extents.clone());
    let call = DataCall::Read { lv, extents, from: sums.from_byte, len: sums.len };
    let deadline = Instant::now() + Duration::from_millis(READ_PATIENCE_MS);
    let answered = tokio::select! {
        biased;
        answered = peer.call(&call, Bytes::new(), deadline) => answered,
        () = down(&*away.managers, server) => return Err(Failed::Silent),
    };
    let (reply, bytes) = match answered {
        Ok(answered) => answered,
        Err(error) => {
            tracing::debug!(%server, %error, "a replica did not answer a read");
            // One that has too much to do is up.
            if !matches!(error, CallError::Busy(_)) {
                away.detectors.lock().failed(server, Instant::now());
            }
            return Err(Failed::Silent);
        }
    };
    away.detectors.lock().answered(server);
    if reply != DataReply::Bytes {
        return Err(Failed::Unreadable);
    }
    let right = bytes.len() == sums.len as usize;
    match right.then(|| verified(chunk, range, sums, bytes)) {
        Some(Ok(bytes)) => Ok(bytes),
        _ => {
            tracing::debug!(%server, lv = %chunk.lv, "a replica's bytes do not verify");
            count(&away.counters().mismatches);
            Err(Failed::Mismatch)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_take_turns_near_ones_first_and_those_down_last() {
        let up = |id, is_near| (ServerId(id), is_near, Standing::Up);
        let ids = |order: Vec<ServerId>| order.into_iter().map(|id| id.0).collect::<Vec<_>>();
        let far = vec![up(1, false), up(2, false), up(3, false)];
        assert_eq!(ids(in_order(far.clone(), 0)), [1, 2, 3]);
        assert_eq!(ids(in_order(far, 4)), [2, 3, 1]);
        let near = vec![up(1, false), up(2, true), (ServerId(3), true, Standing::Down)];
        assert_eq!(ids(in_order(near.clone(), 0)), [2, 1, 3]);
        assert_eq!(ids(in_order(near, 2)), [2, 1, 3]);
        let due = vec![up(1, false), (ServerId(2), true, Standing::Due)];
        assert_eq!(ids(in_order(due, 0)), [2, 1], "a probe goes where a request would have gone");
        assert_eq!(ids(in_order(Vec::new(), 5)), [0; 0]);
    }
}
