//! A data server that keeps what it is given, unless the test has it fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use larder_net::{Handler, PeerIdentity, Responder};
use larder_protocol::scheduler::Report;
use larder_types::LvId;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::wire::{DataCall, DataMessage, DataReply, DataService};

/// A fault of a data server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Fault {
    #[default]
    None,
    /// Refuses the next write.
    NextWrite,
    /// Has no room for the next write.
    NextWriteFull,
    /// Has no room for any.
    Full,
    /// Has too much to do for writes.
    Busy,
    /// Gives wrong bytes.
    Corrupt,
    /// Answers nothing.
    Silent,
    /// Does not answer reads before [`Disk::release`].
    Hangs,
    /// Never answers writes.
    HangsWrites,
}

#[derive(Default)]
pub(super) struct Disk {
    pub(super) fault: Mutex<Fault>,
    /// By LV and first block.
    extents: Mutex<BTreeMap<(LvId, u32), Bytes>>,
    pub(super) reads: Mutex<u32>,
    /// The report of its queue, if its release makes one.
    pub(super) report: Mutex<Option<Report>>,
    /// Reads that hang, and that were cancelled.
    pub(super) unwanted: watch::Sender<u32>,
    /// Writes for which it had too much to do.
    pub(super) turned_away: watch::Sender<u32>,
    /// Reads that hang.
    held: Mutex<Vec<(DataCall, Responder<DataService>)>>,
}

impl Disk {
    /// The number of chunks that it has.
    pub(super) fn chunks(&self) -> usize {
        self.extents.lock().len()
    }

    /// Nothing is wrong any more, and what hangs is answered.
    pub(super) fn release(self: &Arc<Self>) {
        *self.fault.lock() = Fault::None;
        for (request, responder) in std::mem::take(&mut *self.held.lock()) {
            FakeData(self.clone()).answer(request, Bytes::new(), responder);
        }
    }
}

pub(super) struct FakeData(pub(super) Arc<Disk>);

impl FakeData {
    fn answer(&self, request: DataCall, payload: Bytes, responder: Responder<DataService>) {
        let mut fault = self.0.fault.lock();
        let mut bytes = Bytes::new();
        let reply = match (request, *fault) {
            // The responder is dropped.
            (_, Fault::Silent) => return,
            (request @ DataCall::Write { .. }, Fault::HangsWrites) => {
                return self.0.held.lock().push((request, responder));
            }
            (DataCall::Write { .. }, Fault::Busy) => {
                self.0.turned_away.send_modify(|count| *count += 1);
                return responder.busy();
            }
            (request @ DataCall::Read { .. }, Fault::Hangs) => {
                *self.0.reads.lock() += 1;
                let unwanted = self.0.unwanted.clone();
                responder.when_unwanted(move || unwanted.send_modify(|count| *count += 1));
                return self.0.held.lock().push((request, responder));
            }
            (DataCall::Write { .. }, Fault::NextWrite) => {
                *fault = Fault::None;
                DataReply::NotWritten
            }
            (DataCall::Write { .. }, Fault::NextWriteFull) => {
                *fault = Fault::None;
                DataReply::Full
            }
            (DataCall::Write { .. }, Fault::Full) => DataReply::Full,
            (DataCall::Write { lv, extents, len, .. }, _) => {
                assert_eq!(payload.len(), len as usize, "the payload is the data");
                self.0.extents.lock().insert((lv, extents[0].first), payload);
                DataReply::Written
            }
            (DataCall::Read { lv, extents, from, len }, fault) => {
                *self.0.reads.lock() += 1;
                match self.0.extents.lock().get(&(lv, extents[0].first)) {
                    Some(data) => {
                        let mut read = data[from as usize..(from + len) as usize].to_vec();
                        if fault == Fault::Corrupt {
                            read[0] ^= 1;
                        }
                        bytes = read.into();
                        match *self.0.report.lock() {
                            Some(report) => DataReply::BytesAnd(report),
                            None => DataReply::Bytes,
                        }
                    }
                    None => DataReply::Unreadable,
                }
            }
            (
                DataCall::Pg { .. }
                | DataCall::Verify(_)
                | DataCall::Load
                | DataCall::Copy(_)
                | DataCall::Room
                | DataCall::Counts
                | DataCall::ReadVerified { .. },
                _,
            ) => {
                unreachable!("no meta server asks")
            }
        };
        drop(fault);
        responder.answer(&reply, bytes);
    }
}

impl Handler<DataService> for FakeData {
    fn request(
        &self,
        _: &PeerIdentity,
        request: DataCall,
        payload: Bytes,
        responder: Responder<DataService>,
    ) {
        self.answer(request, payload, responder);
    }

    fn message(&self, _: &PeerIdentity, _: DataMessage, _: Bytes) {}
}
