//! Copies of a chunk: read from whichever holders have it right, 64 KiB by 64 KiB if need be, and written to the
//! replica that lacks one, or to all of them at a new place.
//!
//! # Invariants
//!
//! 1. Nothing is written that was not verified, and the write is durable when it is answered.
//! 2. A replica is the server that the PG's machine means by its number, and not that of some map: a map that is older
//!    may name one that was given up, and the row would name a copy that is not there (ADR 28).

use std::ops::Range;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::join_all;
use larder_net::Peer;
use larder_protocol::pg::{Move, Refill};
use larder_types::limits::SUM_BYTES;
use larder_types::{Chunk, Extent, Grant, Holders, LvId, ServerId};
use larder_volume::{verify_range, whole_sums};
use tokio::time::Instant;

use super::background::Background;
use super::cluster::Cluster;
use crate::limits::{READ_PATIENCE_MS, READ_PIECE_BYTES, WRITE_PATIENCE_MS};
use crate::peers::down;
use crate::wire::{DataCall, DataReply, DataService};

/// The data servers of an LV's replicas, by number, as a PG knows them.
pub(super) type Places = Vec<ServerId>;

impl Cluster {
    /// Makes a copy; whether it is durable where it was wanted.
    pub(super) async fn copy(
        &self,
        refill: &Refill,
        places: &Places,
        background: &Background,
    ) -> bool {
        let chunk = &refill.chunk;
        for replica in refill.from.with(refill.to).iter() {
            if let Some((server, _)) = self.replica(places, replica) {
                background.works_at(server);
            }
        }
        let Some(bytes) = self.read_whole(places, chunk, refill.from).await else {
            tracing::warn!(lv = %chunk.lv, grant = ?chunk.grant, "no holder gives a chunk that is to be copied");
            return false;
        };
        let (lv, to) = (chunk.lv, refill.to);
        self.write_copy(places, (lv, to), refill.grant, &chunk.extents, bytes).await
    }

    /// Makes copies of a chunk at its new place; whether they are durable on all replicas.
    pub(super) async fn copy_to_new_place(
        &self,
        to: &Move,
        places: &Places,
        background: &Background,
    ) -> bool {
        let chunk = &to.chunk;
        for replica in to.replicas.iter() {
            if let Some((server, _)) = self.replica(places, replica) {
                background.works_at(server);
            }
        }
        let Some(bytes) = self.read_whole(places, chunk, to.replicas).await else { return false };
        let writes = to.replicas.iter().map(|replica| {
            self.write_copy(places, (chunk.lv, replica), to.grant, &to.extents, bytes.clone())
        });
        join_all(writes).await.into_iter().all(|is_written| is_written)
    }

    /// Writes a copy to a replica; whether it is durable there.
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
        let deadline = Instant::now() + Duration::from_millis(WRITE_PATIENCE_MS);
        let answered = tokio::select! {
            biased;
            answered = peer.call(&call, bytes, deadline) => answered,
            () = down(&*self.managers, server) => return false,
        };
        match answered {
            Ok((DataReply::Written, _)) => true,
            Ok((reply, _)) => {
                tracing::debug!(%server, ?reply, "a replica did not take a copy");
                false
            }
            Err(error) => {
                tracing::debug!(%server, %error, "a replica did not answer for a copy");
                false
            }
        }
    }

    /// All bytes of a chunk, verified.
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

    /// A piece of whole checksummed blocks from a holder that has all of it right.
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
            let deadline = Instant::now() + Duration::from_millis(READ_PATIENCE_MS);
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
                Err(error) => tracing::debug!(%server, %error, "a holder does not answer"),
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
