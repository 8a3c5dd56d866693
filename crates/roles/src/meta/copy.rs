//! Copies of a chunk, for a replica that lacks it, or for all replicas at a new place. The data server that is to
//! have a copy makes it, of bytes that it reads from the holders (`data/node/copies.rs`).
//!
//! Until the cluster's version is [`PROTOCOL_COPIES`], servers of an earlier release may be among them. Then this server
//! reads the bytes from holders whose copies verify, 64 KiB by 64 KiB if need be, and writes them.
//!
//! # Invariants
//!
//! 1. Only verified bytes are written, and a copy counts as made only once it is durable.
//! 2. The server of a replica is the one that the PG's machine has, and not that of a map. An older map may name
//!    a replica that was given up, and the row would then name a copy that does not exist (ADR 28).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::join_all;
use larder_net::{CallError, Peer};
use larder_protocol::pg::{Move, Refill};
use larder_types::limits::SUM_BYTES;
use larder_types::{Chunk, Extent, Grant, Holders, LvId, ServerId};
use larder_volume::{verify_range, whole_sums};
use tokio::time::Instant;

use super::background::Background;
use super::cluster::Cluster;
use crate::limits::{
    COPY_LATE_MS, COPY_TIMEOUT_MS, PROTOCOL_COPIES, READ_PIECE_BYTES, READ_TIMEOUT_MS,
    WRITE_TIMEOUT_MS,
};
use crate::managers::down;
use crate::wire::{CopyEnd, CopyOrder, DataCall, DataReply, DataService};

/// The data servers of an LV's replicas, by number, as a PG knows them.
pub(super) type Places = Vec<ServerId>;

/// The outcome of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ending {
    Durable,
    /// It was not tried: its server was busy, or let another copy time out a moment ago.
    PutOff,
    Failed,
}

/// The outcome of a chunk's copies.
#[derive(Debug)]
pub(super) struct Copied {
    /// The worst outcome of them.
    pub(super) ending: Ending,
    /// Replicas whose servers say that their own copy does not verify.
    pub(super) bad: Holders,
}

impl Copied {
    fn ended(ending: Ending) -> Self {
        Self { ending, bad: Holders::default() }
    }

    fn through_here(are_durable: bool) -> Self {
        Self::ended(if are_durable { Ending::Durable } else { Ending::Failed })
    }

    fn and(self, other: Self) -> Self {
        Self { ending: self.ending.max(other.ending), bad: self.bad.union(other.bad) }
    }
}

impl Cluster {
    /// Has a copy made.
    pub(super) async fn copy(
        &self,
        refill: &Refill,
        places: &Places,
        background: &Arc<Background>,
    ) -> Copied {
        let Refill { chunk, from, to, grant, .. } = refill;
        // The first holder is nearly always the only one that is asked.
        let holder = in_order(places, (*from, *to), chunk).into_iter().take(1);
        let _at_work = background.at_work(holder.chain(places.get(*to).copied()).collect());
        if self.data_servers_copy() {
            return self.have_copied(places, (*from, *to), chunk, (*grant, &chunk.extents)).await;
        }
        let Some(bytes) = self.read_whole(places, chunk, *from).await else {
            tracing::warn!(lv = %chunk.lv, grant = ?chunk.grant, "no source could supply a chunk to be copied");
            return Copied::ended(Ending::Failed);
        };
        let write = self.write_copy(places, (chunk.lv, *to), *grant, &chunk.extents, bytes);
        Copied::through_here(write.await)
    }

    /// Has copies of a chunk made at its new place, on all replicas.
    pub(super) async fn copy_to_new_place(
        &self,
        to: &Move,
        places: &Places,
        background: &Arc<Background>,
    ) -> Copied {
        let Move { chunk, replicas, extents, grant, .. } = to;
        let _at_work = background.at_work(servers(places, *replicas));
        if self.data_servers_copy() {
            let copies = replicas.iter().map(|replica| {
                self.have_copied(places, (*replicas, replica), chunk, (*grant, extents))
            });
            let copied = join_all(copies).await.into_iter();
            return copied.fold(Copied::ended(Ending::Durable), Copied::and);
        }
        let Some(bytes) = self.read_whole(places, chunk, *replicas).await else {
            return Copied::ended(Ending::Failed);
        };
        let writes = replicas.iter().map(|replica| {
            self.write_copy(places, (chunk.lv, replica), *grant, extents, bytes.clone())
        });
        Copied::through_here(join_all(writes).await.into_iter().all(|is_written| is_written))
    }

    /// True if all data servers, those that join later too, make copies by themselves.
    pub(super) fn data_servers_copy(&self) -> bool {
        self.managers.map().cluster_version >= PROTOCOL_COPIES
    }

    /// Has the data server of replica `to` make a copy of a chunk that the replicas `from` hold.
    async fn have_copied(
        &self,
        places: &Places,
        (from, to): (Holders, usize),
        chunk: &Chunk,
        (grant, extents): (Grant, &[Extent]),
    ) -> Copied {
        let Some((server, peer)) = self.replica(places, to) else {
            return Copied::ended(Ending::Failed);
        };
        if self.copy_backoff.has(server) {
            return Copied::ended(Ending::PutOff);
        }
        let order = CopyOrder {
            chunk: chunk.clone(),
            holders: in_order(places, (from, to), chunk),
            grant,
            extents: extents.to_vec(),
            max_wait_ms: COPY_TIMEOUT_MS as u32,
        };
        let call = DataCall::Copy(Box::new(order));
        let asked = Instant::now();
        let deadline = asked + Duration::from_millis(COPY_TIMEOUT_MS);
        let answered = tokio::select! {
            biased;
            answered = peer.call_while_wanted(&call, Bytes::new(), deadline) => answered,
            () = down(&*self.managers, server) => return Copied::ended(Ending::Failed),
        };
        let (lv, of) = (chunk.lv, chunk.grant);
        let (ending, bad) = match answered {
            Ok((DataReply::Copied(CopyEnd::Durable, bad), _)) => (Ending::Durable, bad),
            Ok((DataReply::Copied(end, bad), _)) => {
                if end == CopyEnd::NoHolder {
                    tracing::warn!(%server, %lv, grant = ?of, "no source could supply a chunk to be copied");
                }
                tracing::debug!(%server, %lv, ?end, "a replica refused a copy");
                (Ending::Failed, bad)
            }
            Ok((reply, _)) => {
                tracing::debug!(%server, %lv, ?reply, "a replica could not make a copy");
                (Ending::Failed, Vec::new())
            }
            Err(CallError::Busy(_)) => {
                if asked.elapsed() >= Duration::from_millis(COPY_LATE_MS) {
                    self.copy_backoff.add(server);
                }
                (Ending::PutOff, Vec::new())
            }
            Err(error) => {
                tracing::debug!(%server, %lv, %error, "a replica did not respond to a copy");
                self.copy_backoff.add(server);
                (Ending::Failed, Vec::new())
            }
        };
        if ending == Ending::Failed && asked.elapsed() >= Duration::from_millis(COPY_LATE_MS) {
            self.copy_backoff.add(server);
        }
        let is_bad = |replica: &usize| places.get(*replica).is_some_and(|at| bad.contains(at));
        Copied { ending, bad: from.iter().filter(is_bad).fold(Holders::default(), Holders::with) }
    }

    /// Writes a copy to a replica. Returns true if it is durable there.
    async fn write_copy(
        &self,
        places: &Places,
        (lv, replica): (LvId, usize),
        grant: Grant,
        extents: &[Extent],
        bytes: Bytes,
    ) -> bool {
        let Some((server, peer)) = self.replica(places, replica) else { return false };
        let call =
            DataCall::Write { lv, grant, extents: extents.to_vec(), len: bytes.len() as u32 };
        let deadline = Instant::now() + Duration::from_millis(WRITE_TIMEOUT_MS);
        let answered = tokio::select! {
            biased;
            answered = peer.call(&call, bytes, deadline) => answered,
            () = down(&*self.managers, server) => return false,
        };
        match answered {
            Ok((DataReply::Written, _)) => true,
            Ok((reply, _)) => {
                tracing::debug!(%server, ?reply, "a replica refused a copy");
                false
            }
            Err(error) => {
                tracing::debug!(%server, %error, "a replica did not respond to a copy");
                false
            }
        }
    }

    /// Reads and verifies all bytes of a chunk.
    async fn read_whole(&self, places: &Places, chunk: &Chunk, from: Holders) -> Option<Bytes> {
        let mut whole = BytesMut::with_capacity(chunk.len as usize);
        let step = READ_PIECE_BYTES as u32;
        for start in (0..chunk.len).step_by(step as usize) {
            let range = start..chunk.len.min(start + step);
            if let Some(bytes) = self.read_piece(places, chunk, from, range.clone()).await {
                whole.extend_from_slice(&bytes);
                continue;
            }
            for start in range.clone().step_by(SUM_BYTES as usize) {
                let range = start..range.end.min(start + SUM_BYTES);
                whole.extend_from_slice(&self.read_piece(places, chunk, from, range).await?);
            }
        }
        Some(whole.freeze())
    }

    /// Reads a piece of whole checksummed blocks from a holder whose copy of it verifies.
    async fn read_piece(
        &self,
        places: &Places,
        chunk: &Chunk,
        from: Holders,
        range: Range<u32>,
    ) -> Option<Bytes> {
        let sums = whole_sums(chunk, range);
        let (lv, extents) = (chunk.lv, chunk.extents.clone());
        let call = DataCall::Read { lv, extents, from: sums.from_byte, len: sums.len };
        for replica in from.iter() {
            let Some((server, peer)) = self.replica(places, replica) else { continue };
            let deadline = Instant::now() + Duration::from_millis(READ_TIMEOUT_MS);
            let answered = tokio::select! {
                biased;
                answered = peer.call(&call, Bytes::new(), deadline) => answered,
                () = down(&*self.managers, server) => continue,
            };
            match answered {
                Ok((reply, bytes))
                    if reply.has_bytes()
                        && bytes.len() == sums.len as usize
                        && verify_range(chunk, sums.first_sum, &bytes).is_ok() =>
                {
                    return Some(bytes);
                }
                Ok(_) => tracing::warn!(%server, %lv, grant = ?chunk.grant, "a copy is damaged"),
                Err(error) => tracing::debug!(%server, %error, "a source did not respond"),
            }
        }
        None
    }

    /// The data server of a replica.
    fn replica(&self, places: &Places, replica: usize) -> Option<(ServerId, Peer<DataService>)> {
        let server = *places.get(replica)?;
        Some((server, self.data.of(&self.managers.map(), server)?))
    }
}

/// The data servers of replicas.
fn servers(places: &Places, replicas: Holders) -> Vec<ServerId> {
    replicas.iter().filter_map(|replica| places.get(replica).copied()).collect()
}

/// Data servers in the order in which the maker of a copy asks them. The maker itself comes first if it holds the chunk, as
/// nothing crosses the network then. The chunk decides which of the others comes first, so that all give about as much.
fn in_order(places: &Places, (from, to): (Holders, usize), chunk: &Chunk) -> Vec<ServerId> {
    let mut others: Vec<usize> = from.iter().filter(|replica| *replica != to).collect();
    if !others.is_empty() {
        let first = chunk.grant.op.seq.0 % others.len() as u64;
        others.rotate_left(first as usize);
    }
    let own = from.has(to).then_some(to);
    own.into_iter().chain(others).filter_map(|replica| places.get(replica).copied()).collect()
}

#[cfg(test)]
mod tests {
    use larder_types::{LvId, OpId, OpSeq, PgId, View};

    use super::*;

    fn chunk(seq: u64) -> Chunk {
        let op = OpId { view: View(1), seq: OpSeq(seq) };
        let grant = Grant { pg: PgId(0), op, attempt: 0 };
        let holders = Holders::default();
        let (extents, sums) = (Vec::new(), Vec::new());
        Chunk { grant, seed: 0, lv: LvId(0), extents, len: 0, sums, holders }
    }

    #[test]
    fn sources_take_turns_and_the_local_one_is_first() {
        let places: Places = [10, 11, 12].map(ServerId).to_vec();
        let all = Holders::default().with(0).with(1).with(2);
        let asked = |from, to, seq| {
            in_order(&places, (from, to), &chunk(seq))
                .into_iter()
                .map(|it| it.0)
                .collect::<Vec<_>>()
        };
        let two = Holders::default().with(0).with(2);
        assert_eq!(asked(two, 1, 4), [10, 12]);
        assert_eq!(asked(two, 1, 5), [12, 10], "the other gives the next one");
        assert_eq!(asked(all, 1, 4), [11, 10, 12], "a move within a volume");
        assert_eq!(asked(Holders::default(), 1, 4), [0; 0]);
    }
}
