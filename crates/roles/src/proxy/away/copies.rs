//! Bytes of a chunk from whichever replica has them right.

use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use larder_net::{CallError, Peer};
use larder_protocol::Call;
use larder_protocol::manager::state::Topology;
use larder_types::{Chunk, ServerId};
use larder_volume::whole_sums;
use tokio::time::{Instant, timeout};

use super::Away;
use super::counters::count;
use super::detector::{Asked, Standing};
use super::retry::pause;
use super::route::newer;
use crate::data::{ReadFailure, verified};
use crate::limits::{MAP_LATE_MAX, READ_PATIENCE_MS, READ_ROUNDS_MAX};
use crate::peers::down;
use crate::wire::{DataCall, DataService};

/// Why a replica did not help. Of several, the greatest says what is known of the chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Failed {
    /// It cannot read there.
    Unreadable,
    /// Its bytes are not the chunk's.
    Mismatch,
    /// It does not answer, or has too much to do: says nothing about the data.
    Silent,
}

/// What is read.
struct Wanted<'a> {
    chunk: &'a Chunk,
    range: Range<u32>,
}

/// Reads bytes of a chunk and verifies them; asks one replica after the other until one has them right.
pub(super) async fn read(
    away: &Away,
    chunk: &Chunk,
    range: Range<u32>,
) -> Result<Bytes, ReadFailure> {
    let (wanted, turn) = (Wanted { chunk, range }, away.turn.fetch_add(1, Ordering::Relaxed));
    for round in 1..=READ_ROUNDS_MAX {
        let map = away.managers.map();
        match read_once(away, &map, &holders(away, &map, chunk, turn), &wanted).await {
            Ok(bytes) => return Ok(bytes),
            // It is damaged only if every holder was heard, and none has it. By an older map others are asked.
            Err(Failed::Mismatch) => {
                newer(&*away.managers, map.version, MAP_LATE_MAX).await;
                if round == READ_ROUNDS_MAX || away.managers.map().version == map.version {
                    return Err(ReadFailure::Mismatch);
                }
            }
            Err(Failed::Unreadable) => return Err(ReadFailure::Unreadable),
            Err(Failed::Silent) if round < READ_ROUNDS_MAX => {
                newer(&*away.managers, map.version, pause(round)).await;
            }
            Err(Failed::Silent) => {}
        }
    }
    Err(ReadFailure::Unreadable)
}

/// Asks each holder once: one after the other, and the next beside one that takes long.
async fn read_once(
    away: &Away,
    map: &Topology,
    holders: &[ServerId],
    wanted: &Wanted<'_>,
) -> Result<Bytes, Failed> {
    // Of none: the map does not show the chunk's volume yet.
    let mut all = if holders.is_empty() { Failed::Silent } else { Failed::Unreadable };
    let mut left = holders.iter().copied().peekable();
    while let Some(server) = left.next() {
        let asked = asked(away, server);
        let mut first = pin!(read_at(away, map, asked, wanted));
        let answered = match timeout(asked.hedge_after, first.as_mut()).await {
            Ok(answered) => answered,
            Err(_late) => match left.next_if(|other| may_hedge(away, *other)) {
                Some(other) => {
                    let other = read_at(away, map, self::asked(away, other), wanted);
                    Box::pin(either(away, asked, first, other)).await
                }
                None => first.await,
            },
        };
        match answered {
            Ok(bytes) => return Ok(bytes),
            Err(failed) => all = all.max(failed),
        }
    }
    Err(all)
}

/// Servers that have the chunk, in the order in which they are asked.
fn holders(away: &Away, map: &Topology, chunk: &Chunk, turn: usize) -> Vec<ServerId> {
    let Some(record) = map.lvs.get(chunk.lv.0 as usize) else { return Vec::new() };
    let place = |server| map.servers.get(&server).map(|record| record.domains);
    let (here, now) = (place(away.me), Instant::now());
    let mut detectors = away.replicas.detectors.lock();
    detectors.read_begins();
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

/// Waits for a replica that takes long and for another one; the first right answer counts.
async fn either<F: Future<Output = Result<Bytes, Failed>>>(
    away: &Away,
    asked: Asked,
    first: Pin<&mut F>,
    other: F,
) -> Result<Bytes, Failed> {
    count(&away.counters().reads_hedged);
    let (answered, by_other) = match select(first, pin!(other)).await {
        Either::Left((Err(failed), other)) => (other.await.map_err(|it| it.max(failed)), true),
        Either::Right((Err(failed), first)) => (first.await.map_err(|it| it.max(failed)), false),
        Either::Left((answered, _)) => (answered, false),
        Either::Right((answered, _)) => {
            away.replicas.detectors.lock().outrun(&asked, Instant::now());
            (answered, true)
        }
    };
    if by_other && answered.is_ok() {
        count(&away.counters().hedges_won);
    }
    answered
}

/// Whether another replica is asked beside one that takes long.
fn may_hedge(away: &Away, other: ServerId) -> bool {
    away.replicas.detectors.lock().may_hedge(other, Instant::now())
}

/// A server is about to be asked.
fn asked(away: &Away, server: ServerId) -> Asked {
    let asked = away.replicas.detectors.lock().asked(server, Instant::now());
    if asked.is_probe {
        count(&away.counters().probes);
    }
    asked
}

/// One replica's bytes, verified.
async fn read_at(
    away: &Away,
    map: &Topology,
    asked: Asked,
    wanted: &Wanted<'_>,
) -> Result<Bytes, Failed> {
    let read = match away.replicas.data.of(map, asked.server) {
        Some(peer) => read_from(away, &peer, asked, wanted).await,
        None => Err(Failed::Silent),
    };
    if read.is_err() {
        count(&away.counters().failed_reads);
    }
    read
}

async fn read_from(
    away: &Away,
    peer: &Peer<DataService>,
    asked: Asked,
    wanted: &Wanted<'_>,
) -> Result<Bytes, Failed> {
    let (server, Wanted { chunk, range }) = (asked.server, wanted);
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
                away.replicas.detectors.lock().failed(server, Instant::now());
            }
            return Err(Failed::Silent);
        }
    };
    away.replicas.detectors.lock().answered_read(&asked, Instant::now());
    if !reply.has_bytes() {
        return Err(Failed::Unreadable);
    }
    let right = bytes.len() == sums.len as usize;
    match right.then(|| verified(chunk, range.clone(), sums, bytes)) {
        Some(Ok(bytes)) => Ok(bytes),
        _ => {
            tracing::debug!(%server, lv = %chunk.lv, "a replica's bytes do not verify");
            count(&away.counters().mismatches);
            // Or the object was replaced while it was read: then its primary finds nothing to mend.
            let suspect = Call::Suspect { grant: chunk.grant, server };
            away.primaries.tell(chunk.grant.pg, suspect);
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
