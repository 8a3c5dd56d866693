//! What other servers ask a data server.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use larder_net::{Handler, PeerIdentity, Responder, Role};
use larder_protocol::sound::check_chunk;
use larder_types::limits::{CHUNK_BYTES_MAX, CHUNK_EXTENTS_MAX};
use larder_types::{Extent, LvId};
use larder_volume::{Action, Answer, Refusal};

use super::DataNode;
use super::reads::Wanted;
use crate::data::{Client, action_of, pg_answer};
use crate::wire::{DataCall, DataMessage, DataReply, DataService};

/// Answers for a [`DataNode`].
pub struct DataFace(pub Arc<DataNode>);

impl Handler<DataService> for DataFace {
    fn request(
        &self,
        from: &PeerIdentity,
        request: DataCall,
        payload: Bytes,
        responder: Responder<DataService>,
    ) {
        match request {
            DataCall::Write { lv, grant, extents, len } => {
                if self.0.server.is_full() {
                    return answer(responder, &DataReply::Full);
                }
                let (client, reads) = (self.client(from), self.0.reads.clone());
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
                self.0.server.carry_out(action, bytes, written);
            }
            DataCall::Read { lv, extents, from: first, len } => match piece(first, len) {
                Some(range) if extents.len() <= CHUNK_EXTENTS_MAX => {
                    self.read(from, (lv, extents, range), responder);
                }
                _ => self.unreadable(responder),
            },
            DataCall::Pg { lv, request } => {
                if !from.subject.roles.has(Role::Meta) {
                    tracing::warn!(from = %from.subject, "only meta servers may speak for a PG");
                    return;
                }
                let (action, grant) = action_of(lv, request);
                let done = Box::new(move |result| {
                    answer(responder, &DataReply::Pg(pg_answer(result, grant)));
                });
                self.0.server.carry_out(action, 0, done);
            }
            DataCall::Verify(chunk) => {
                if !from.subject.roles.has(Role::Meta) {
                    tracing::warn!(from = %from.subject, "only meta servers have copies verified");
                    return;
                }
                if let Err(why) = check_chunk(&chunk) {
                    tracing::error!(from = %from.subject, ?chunk, %why, "a chunk is refused");
                    return;
                }
                self.0.reads.read(Wanted::Copy(chunk), responder);
            }
            DataCall::Load => answer(responder, &DataReply::Load(self.0.server.clients())),
        }
    }

    fn message(&self, from: &PeerIdentity, message: DataMessage, _payload: Bytes) {
        let DataMessage::Manager(message) = message;
        if from.subject.roles.has(Role::Manager) {
            self.0.told(&message);
        } else {
            tracing::warn!(from = %from.subject, "only managers may say this");
        }
    }
}

impl DataFace {
    /// What a proxy asks for, a client waits for; meta servers do what nobody waits for.
    fn client(&self, from: &PeerIdentity) -> Option<Client> {
        from.subject.roles.has(Role::Proxy).then(|| self.0.server.client())
    }

    /// Answers at once what the page cache has; the rest waits for the device.
    fn read(
        &self,
        from: &PeerIdentity,
        (lv, extents, range): (LvId, Vec<Extent>, Range<u32>),
        responder: Responder<DataService>,
    ) {
        match self.0.server.read_raw_cached(lv, &extents, range.clone()) {
            Ok(Some(bytes)) => {
                let report = match from.subject.roles.has(Role::Proxy) {
                    true => self.0.reads.answered_by_cache(bytes.len()),
                    false => self.0.reads.report(),
                };
                let reply = DataReply::of_read(true, responder.version(), report);
                responder.answer(&reply, bytes);
            }
            Ok(None) => {
                let client = self.client(from);
                self.0.reads.read(Wanted::Bytes { lv, extents, range, client }, responder);
            }
            Err(error) => {
                tracing::debug!(%lv, %error, "a chunk cannot be read");
                self.unreadable(responder);
            }
        }
    }

    fn unreadable(&self, responder: Responder<DataService>) {
        let report = self.0.reads.report();
        let reply = DataReply::of_read(false, responder.version(), report);
        answer(responder, &reply);
    }
}

/// What is said of a write; nothing of one that was not tried, which its proxy repeats.
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

/// The range of a read, if it is one inside a chunk.
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
