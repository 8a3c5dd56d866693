//! What other servers ask a data server.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use larder_net::{Handler, PeerIdentity, Responder, Role};
use larder_protocol::sound::check_chunk;
use larder_types::limits::CHUNK_BYTES_MAX;
use larder_types::{Chunk, Extent, LvId};
use larder_volume::{Action, Refusal};

use super::DataNode;
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
                let client = self.client(from);
                let bytes = payload.len();
                let action = Action::Write { lv, grant, extents, data: vec![payload], len };
                let written = Box::new(move |result: Result<_, Refusal>| {
                    let reply = match result {
                        Ok(_) => DataReply::Written,
                        Err(Refusal::Full) => DataReply::Full,
                        Err(refusal) => {
                            tracing::debug!(%lv, %refusal, "a write was refused");
                            DataReply::NotWritten
                        }
                    };
                    answer(responder, &reply);
                    drop(client);
                });
                self.0.server.carry_out(action, bytes, written);
            }
            DataCall::Read { lv, extents, from: first, len } => {
                let wanted = Wanted { lv, extents, first, len, client: self.client(from) };
                self.read(wanted, responder);
            }
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
                self.verify(chunk, responder);
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

/// What is to be read, as it lies there.
struct Wanted {
    lv: LvId,
    extents: Vec<Extent>,
    first: u32,
    len: u32,
    client: Option<Client>,
}

impl DataFace {
    /// What a proxy asks for, a client waits for; meta servers do what nobody waits for.
    fn client(&self, from: &PeerIdentity) -> Option<Client> {
        from.subject.roles.has(Role::Proxy).then(|| self.0.server.client())
    }

    fn read(&self, wanted: Wanted, responder: Responder<DataService>) {
        let Wanted { lv, extents, first, len, client } = wanted;
        let Some(range) = piece(first, len) else {
            return answer(responder, &DataReply::Unreadable);
        };
        match self.0.server.read_raw_cached(lv, &extents, range.clone()) {
            Ok(Some(bytes)) => responder.answer(&DataReply::Bytes, bytes),
            Ok(None) => {
                let server = self.0.server.clone();
                tokio::task::spawn_blocking(move || {
                    match server.read_raw(lv, &extents, range) {
                        Ok(bytes) => responder.answer(&DataReply::Bytes, bytes),
                        Err(error) => unreadable(lv, &error, responder),
                    }
                    drop(client);
                });
            }
            Err(error) => unreadable(lv, &error, responder),
        }
    }

    /// Verifies a copy beside what the disk's thread does, a few at a time. Those that wait are bounded by what meta
    /// servers have under way.
    fn verify(&self, chunk: Box<Chunk>, responder: Responder<DataService>) {
        let (server, places) = (self.0.server.clone(), self.0.verifying.clone());
        tokio::spawn(async move {
            let Ok(place) = places.acquire_owned().await else { return };
            let verified = tokio::task::spawn_blocking(move || {
                let state = server.verify_copy(&chunk);
                answer(responder, &DataReply::Verified(state));
                drop(place);
            });
            if let Err(error) = verified.await {
                tracing::error!(%error, "a copy could not be verified");
            }
        });
    }
}

/// The range of a read, if it is one inside a chunk.
fn piece(from: u32, len: u32) -> Option<Range<u32>> {
    let end = from.checked_add(len)?;
    (len > 0 && end <= CHUNK_BYTES_MAX).then_some(from..end)
}

fn unreadable(lv: LvId, error: &larder_volume::ReadError, responder: Responder<DataService>) {
    tracing::debug!(%lv, %error, "a chunk cannot be read");
    answer(responder, &DataReply::Unreadable);
}

fn answer(responder: Responder<DataService>, reply: &DataReply) {
    responder.answer(reply, Bytes::new());
}
