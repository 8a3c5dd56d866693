//! Answers requests of other servers to a data server.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use larder_identity::{Role, Roles};
use larder_net::{Endpoint, Handler, PeerIdentity, Responder};
use larder_protocol::validation::check_chunk;
use larder_types::codec::encode;
use larder_types::limits::{CHUNK_BYTES_MAX, CHUNK_EXTENTS_MAX, REPLICAS_MAX, SUM_BYTES};
use larder_types::{Chunk, Extent, LvId};
use larder_volume::{Action, Answer, Refusal};

use super::DataNode;
use super::copies::Copies;
use super::reads::ReadCommand;
use crate::data::disk::{Client, OfKind, action_of, pg_answer};
use crate::limits::READ_PIECE_BYTES;
use crate::wire::{CopyOrder, DataCall, DataMessage, DataReply, DataService};

/// Answers requests for a [`DataNode`].
pub struct DataHandler {
    node: Arc<DataNode>,
    copies: Arc<Copies>,
}

impl Handler<DataService> for DataHandler {
    fn request(
        &self,
        from: &PeerIdentity,
        request: DataCall,
        payload: Bytes,
        responder: Responder<DataService>,
    ) {
        if !may_query(from.subject.roles, &request) {
            tracing::warn!(from = %from.subject, "a server sent a request that its role does not permit");
            return;
        }
        match request {
            DataCall::Write { lv, grant, extents, len } => {
                if self.node.server.is_full() {
                    return answer(responder, &DataReply::Full);
                }
                let (client, reads) = (self.client(from), self.node.reads.clone());
                let bytes = payload.len();
                reads.write_begins(bytes);
                let action = Action::Write { lv, grant, extents, data: vec![payload], len };
                let written = Box::new(move |result| {
                    reads.write_ends(bytes);
                    match written(lv, result) {
                        Some(reply) => answer(responder, &reply),
                        None => responder.busy(),
                    }
                    drop(client);
                });
                self.node.server.perform(action, bytes, written);
            }
            DataCall::Read { lv, extents, from: first, len } => match piece(first, len) {
                Some(range) if extents.len() <= CHUNK_EXTENTS_MAX => {
                    self.read(from, (lv, extents, range), responder);
                }
                _ => self.unreadable(responder),
            },
            DataCall::Pg { lv, request } => {
                let (action, grant) = action_of(lv, request);
                let done = Box::new(move |result| {
                    answer(responder, &DataReply::Pg(pg_answer(result, grant)));
                });
                self.node.server.perform(action, 0, done);
            }
            DataCall::Verify(chunk) => {
                if is_sound(from, &chunk) {
                    self.node.reads.read(ReadCommand::Copy(chunk), responder);
                }
            }
            DataCall::Copy(order) => {
                // The copy is a chunk too, at its own place.
                let CopyOrder { chunk, extents, .. } = &*order;
                let copy = Chunk { extents: extents.clone(), ..chunk.clone() };
                let fits =
                    extents.len() <= CHUNK_EXTENTS_MAX && order.holders.len() <= REPLICAS_MAX;
                if fits && is_sound(from, chunk) && is_sound(from, &copy) {
                    self.copies.make(order, responder);
                }
            }
            DataCall::ReadVerified { chunk, from: first, len } => {
                let Some(range) = verified_piece(&chunk, first, len) else {
                    return self.unreadable(responder);
                };
                if is_sound(from, &chunk) {
                    self.node.copies.given.add(range.len() as u64);
                    self.node.reads.read(ReadCommand::Verified { chunk, range }, responder);
                }
            }
            DataCall::Counts => {
                let counts = self.node.server.counts_now();
                responder.answer(&DataReply::Counts, encode(&counts).into());
            }
            DataCall::Room => {
                responder.answer(&DataReply::Room, encode(&self.node.free_space()).into());
            }
            DataCall::Load => answer(responder, &DataReply::Load(self.node.server.clients())),
        }
    }

    fn message(&self, from: &PeerIdentity, message: DataMessage, _payload: Bytes) {
        let DataMessage::Manager(message) = message;
        if from.subject.roles.has(Role::Manager) {
            self.node.receive_order(&message);
        } else {
            tracing::warn!(from = %from.subject, "refused a message that only managers may send");
        }
    }
}

impl DataHandler {
    /// The handler of a node. It reads bytes of copies that it makes through the endpoint.
    #[must_use]
    pub fn new(node: Arc<DataNode>, endpoint: &Arc<Endpoint>) -> Self {
        let copies = Copies::new(node.clone(), endpoint);
        Self { node, copies }
    }

    /// Counts a proxy's request as a client's: a client waits for it. No client waits for what other servers ask.
    fn client(&self, from: &PeerIdentity) -> Option<Client> {
        from.subject.roles.has(Role::Proxy).then(|| self.node.server.client())
    }

    /// Answers at once if the page cache has the bytes; else the read waits for the device.
    fn read(
        &self,
        from: &PeerIdentity,
        (lv, extents, range): (LvId, Vec<Extent>, Range<u32>),
        responder: Responder<DataService>,
    ) {
        let is_clients = from.subject.roles.has(Role::Proxy);
        let counts: OfKind = if is_clients { |ops| &ops.read_cached } else { |ops| &ops.read_copy };
        match self.node.server.read_raw_cached(lv, &extents, range.clone(), counts) {
            Ok(Some(bytes)) => {
                let report = match is_clients {
                    true => self.node.reads.answered_by_cache(bytes.len()),
                    false => self.node.reads.report(),
                };
                let reply = DataReply::of_read(true, responder.version(), report);
                responder.answer(&reply, bytes);
            }
            Ok(None) => {
                let client = self.client(from);
                self.node.reads.read(ReadCommand::Bytes { lv, extents, range, client }, responder);
            }
            Err(error) => {
                tracing::debug!(%lv, %error, "a chunk cannot be read");
                self.unreadable(responder);
            }
        }
    }

    fn unreadable(&self, responder: Responder<DataService>) {
        let report = self.node.reads.report();
        let reply = DataReply::of_read(false, responder.version(), report);
        answer(responder, &reply);
    }
}

/// The reply to a write; `None` if the queue was full and the write not executed: its proxy repeats it.
fn written(lv: LvId, result: Result<Answer, Refusal>) -> Option<DataReply> {
    match result {
        Ok(_) => Some(DataReply::Written),
        Err(Refusal::Busy) => None,
        Err(Refusal::Full) => Some(DataReply::Full),
        Err(refusal) => {
            tracing::debug!(%lv, %refusal, "a write was refused");
            Some(DataReply::NotWritten)
        }
    }
}

/// Returns true if a server of these roles may ask this. Data servers may read chunks that they copy, and nothing else.
fn may_query(roles: Roles, request: &DataCall) -> bool {
    match request {
        DataCall::Pg { .. } | DataCall::Verify(_) | DataCall::Copy(_) => roles.has(Role::Meta),
        DataCall::ReadVerified { .. } => roles.has(Role::Data),
        // Operators ask it with the certificate of any server.
        DataCall::Room => true,
        DataCall::Write { .. } | DataCall::Read { .. } | DataCall::Load | DataCall::Counts => {
            roles.meets(Roles::of(&[Role::Manager, Role::Meta, Role::Proxy]))
        }
    }
}

fn is_sound(from: &PeerIdentity, chunk: &Chunk) -> bool {
    let judged = check_chunk(chunk);
    if let Err(why) = judged {
        tracing::error!(from = %from.subject, ?chunk, %why, "a chunk is refused");
    }
    judged.is_ok()
}

/// The range of a verified read, if it covers whole checksummed pieces of the chunk.
fn verified_piece(chunk: &Chunk, from: u32, len: u32) -> Option<Range<u32>> {
    let end = from.checked_add(len)?;
    let is_whole = |at: u32| at.is_multiple_of(SUM_BYTES);
    let is_piece = is_whole(from) && (is_whole(end) || end == chunk.len) && end <= chunk.len;
    let fits = u64::from(len) <= READ_PIECE_BYTES && chunk.extents.len() <= CHUNK_EXTENTS_MAX;
    (is_piece && len > 0 && fits).then_some(from..end)
}

/// The range of a read, if it is not empty and a chunk can have it.
fn piece(from: u32, len: u32) -> Option<Range<u32>> {
    let end = from.checked_add(len)?;
    (len > 0 && end <= CHUNK_BYTES_MAX).then_some(from..end)
}

fn answer(responder: Responder<DataService>, reply: &DataReply) {
    responder.answer(reply, Bytes::new());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_write_that_was_not_tried_may_be_repeated_under_its_grant() {
        let said = |result| written(LvId(0), result);
        assert_eq!(said(Err(Refusal::Busy)), None);
        assert_eq!(said(Ok(Answer::Written)), Some(DataReply::Written));
        assert_eq!(said(Err(Refusal::Full)), Some(DataReply::Full));
        for refusal in [Refusal::Broken, Refusal::Voided, Refusal::BelowFloor] {
            assert_eq!(said(Err(refusal)), Some(DataReply::NotWritten));
        }
    }
}
