//! Data servers that keep what they are given, and do with their questions what the seed draws.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use larder_net::{Handler, PeerIdentity, Responder};
use larder_protocol::scheduler::Report;
use larder_types::{Grant, LvId};
use parking_lot::Mutex;
use tokio::time::sleep;

use super::SimRng;
use crate::wire::{DataCall, DataMessage, DataReply, DataService};

/// The behaviour of a data server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultMode {
    /// It does what it should.
    Fine,
    /// It has no room.
    Full,
    /// It takes no writes.
    Refuses,
    /// It has too much to do, mostly.
    Busy,
    /// It answers nothing, though it does it.
    Silent,
    /// It takes long.
    Slow,
    /// It gives wrong bytes.
    Corrupt,
    /// It answers and does nothing, until it is well again.
    Stalled,
}

impl FaultMode {
    pub(super) const BAD: [Self; 7] = [
        Self::Full,
        Self::Refuses,
        Self::Busy,
        Self::Silent,
        Self::Slow,
        Self::Corrupt,
        Self::Stalled,
    ];
}

/// A question, and whom to answer.
type PendingRequest = (DataCall, Bytes, Responder<DataService>);

/// One data server.
pub(super) struct Disk {
    fault_mode: Mutex<FaultMode>,
    sim_rng: SimRng,
    /// By LV and first block.
    extents: Mutex<BTreeMap<(LvId, u32), Bytes>>,
    written: Mutex<BTreeSet<Grant>>,
    /// Grants under which nothing is written any more.
    void: Mutex<BTreeSet<Grant>>,
    stalled: Mutex<Vec<PendingRequest>>,
}

impl Disk {
    pub(super) fn new(sim_rng: SimRng) -> Arc<Self> {
        Arc::new(Self {
            fault_mode: Mutex::new(FaultMode::Fine),
            sim_rng,
            extents: Mutex::default(),
            written: Mutex::default(),
            void: Mutex::default(),
            stalled: Mutex::default(),
        })
    }

    pub(super) fn become_(self: &Arc<Self>, fault_mode: FaultMode) {
        *self.fault_mode.lock() = fault_mode;
        if fault_mode != FaultMode::Stalled {
            for asked in std::mem::take(&mut *self.stalled.lock()) {
                tokio::spawn(self.clone().serve(asked));
            }
        }
    }

    pub(super) fn has(&self, grant: &Grant) -> bool {
        self.written.lock().contains(grant)
    }

    /// Takes nothing under this grant any more; whether it has it.
    pub(super) fn forbid(&self, grant: Grant) -> bool {
        self.void.lock().insert(grant);
        self.has(&grant)
    }

    async fn serve(self: Arc<Self>, (call, payload, responder): PendingRequest) {
        let fault_mode = *self.fault_mode.lock();
        sleep(self.sim_rng.ms(if fault_mode == FaultMode::Slow { 1500 } else { 8 })).await;
        match fault_mode {
            FaultMode::Stalled => return self.stalled.lock().push((call, payload, responder)),
            FaultMode::Busy if !self.sim_rng.one_in(3) => return responder.busy(),
            _ => {}
        }
        let (reply, bytes) = match call {
            DataCall::Write { .. } if fault_mode == FaultMode::Full => {
                (DataReply::Full, Bytes::new())
            }
            DataCall::Write { .. } if fault_mode == FaultMode::Refuses => {
                (DataReply::NotWritten, Bytes::new())
            }
            DataCall::Write { lv, grant, extents, len } => {
                assert_eq!(payload.len(), len as usize, "the payload is the data");
                let written = !self.void.lock().contains(&grant);
                if written {
                    self.extents.lock().insert((lv, extents[0].first), payload);
                    self.written.lock().insert(grant);
                }
                (if written { DataReply::Written } else { DataReply::NotWritten }, Bytes::new())
            }
            DataCall::Read { lv, extents, from, len } => {
                let data = self.extents.lock().get(&(lv, extents[0].first)).cloned();
                let read = data.map(|data| data.slice(from as usize..(from + len) as usize));
                let report = Report { lanes: 1, ..Report::default() };
                match read {
                    Some(bytes) if fault_mode == FaultMode::Corrupt => {
                        let mut bytes = bytes.to_vec();
                        bytes[0] ^= 1;
                        (DataReply::BytesAnd(report), bytes.into())
                    }
                    Some(bytes) => (DataReply::BytesAnd(report), bytes),
                    None => (DataReply::UnreadableAnd(report), Bytes::new()),
                }
            }
            DataCall::Pg { .. }
            | DataCall::Verify(_)
            | DataCall::Load
            | DataCall::Copy(_)
            | DataCall::Room
            | DataCall::Counts
            | DataCall::ReadVerified { .. } => {
                unreachable!("no proxy asks")
            }
        };
        if fault_mode != FaultMode::Silent {
            responder.answer(&reply, bytes);
        }
    }
}

/// The handler that the connections of a data server call.
pub(super) struct DataHandler(pub(super) Arc<Disk>);

impl Handler<DataService> for DataHandler {
    fn request(
        &self,
        _: &PeerIdentity,
        request: DataCall,
        payload: Bytes,
        responder: Responder<DataService>,
    ) {
        tokio::spawn(self.0.clone().serve((request, payload, responder)));
    }

    fn message(&self, _: &PeerIdentity, _: DataMessage, _: Bytes) {}
}
