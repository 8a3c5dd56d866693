//! Calls in flight in a PG, and their callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use larder_net::Responder;
use larder_protocol::{Refusal, Token};
use larder_types::{BucketId, ObjectKey, PgId, View};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::kinds::MetaKind;
use crate::blocking;
use crate::ticket::Ticket;
use crate::wire::{MetaReply, MetaService};

/// The token of no call: an answer to it is dropped.
pub(super) const NOBODY: Token = Token(u64::MAX);

/// The caller of a call.
pub(super) enum Caller {
    /// A task of this process.
    Here(Arc<Ticket>),
    /// Another process.
    Apart(Box<Requester>),
}

/// A caller at the other end of a connection.
pub(super) struct Requester {
    pub(super) since: Instant,
    pub(super) wants: Wants,
}

/// The answer that a caller waits for.
pub(super) enum Wants {
    /// The answer to its call; of a put with data the grant.
    Answer(Responder<MetaService>),
    /// The key's version.
    Version(BucketId, ObjectKey, Responder<MetaService>),
    /// Rows, once the index shows all changes that the PG had taken.
    Settled(Arc<Scan>),
}

impl Wants {
    pub(super) fn refuse(self, refusal: Refusal) {
        match self {
            Self::Answer(responder) | Self::Version(_, _, responder) => refuse(responder, refusal),
            Self::Settled(scan) => scan.refuse(refusal),
        }
    }
}

pub(super) fn refuse(responder: Responder<MetaService>, refusal: Refusal) {
    responder.answer(&MetaReply::Refused(refusal), Bytes::new());
}

/// A proxy's request for rows.
pub(super) struct ScanCall {
    pub(super) pgs: Vec<(PgId, View)>,
    pub(super) from: Vec<u8>,
    pub(super) to: Option<Vec<u8>>,
    pub(super) count_max: u32,
}

/// A scan that waits for barriers.
pub(super) struct Scan {
    pub(super) call: ScanCall,
    /// The number of barriers that have not passed, plus one while the scan sets them.
    waits_for: AtomicUsize,
    /// The first row that is not settled, if any.
    unsettled: Mutex<Option<Vec<u8>>>,
    /// `None` once the scan was answered or refused.
    responder: Mutex<Option<Responder<MetaService>>>,
    reads: Reads,
    runtime: Handle,
}

/// Reads the rows of a scan, and answers; blocks.
pub(super) type Reads = Box<dyn Fn(&Scan, Responder<MetaService>) + Send + Sync>;

impl Scan {
    /// A scan whose rows are read on the blocking pool of this runtime.
    pub(super) fn begin(
        call: ScanCall,
        responder: Responder<MetaService>,
        reads: Reads,
        runtime: Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            call,
            waits_for: AtomicUsize::new(1),
            unsettled: Mutex::new(None),
            responder: Mutex::new(Some(responder)),
            reads,
            runtime,
        })
    }

    /// Counts a barrier that a PG is about to set.
    pub(super) fn waits_for_another(&self) {
        self.waits_for.fetch_add(1, Ordering::AcqRel);
    }

    /// The first row that is not settled, if any.
    pub(super) fn take_unsettled(&self) -> Option<Vec<u8>> {
        self.unsettled.lock().take()
    }

    /// Notes that a barrier has passed: of all rows, or of those before `before`. The last one has the index read.
    pub(super) fn settled(scan: &Arc<Self>, before: Option<Vec<u8>>) {
        if let Some(before) = before {
            let mut unsettled = scan.unsettled.lock();
            let first = unsettled.take().map_or(before.clone(), |other| other.min(before));
            *unsettled = Some(first);
        }
        if scan.waits_for.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let scan = scan.clone();
        let runtime = scan.runtime.clone();
        drop(blocking::run_on(&runtime, move || {
            let responder = scan.responder.lock().take();
            if let Some(responder) = responder {
                (scan.reads)(&scan, responder);
            }
        }));
    }

    /// Refuses the scan, as a PG has refused its barrier.
    pub(super) fn refuse(&self, refusal: Refusal) {
        if let Some(responder) = self.responder.lock().take() {
            refuse(responder, refusal);
        }
    }
}

/// Calls in flight, each in the slot that its token names. A token is not used twice, so a late or second answer reaches no
/// other caller.
#[derive(Default)]
pub(super) struct Callers {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    turn: u32,
    caller: Option<Caller>,
    /// The kind of the call and the time of its first step on the steady clock, until its first answer.
    begun: Option<(MetaKind, u64)>,
}

const SLOT_BITS: u32 = 32;

impl Callers {
    pub(super) fn insert(&mut self, caller: Caller) -> Token {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { turn: 0, caller: None, begun: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[at as usize];
        slot.turn = slot.turn.wrapping_add(1);
        (slot.caller, slot.begun) = (Some(caller), None);
        Token(u64::from(slot.turn) << SLOT_BITS | u64::from(at))
    }

    fn slot(&mut self, token: Token) -> Option<&mut Slot> {
        let slot = self.slots.get_mut((token.0 & u64::from(u32::MAX)) as usize)?;
        (u64::from(slot.turn) == token.0 >> SLOT_BITS).then_some(slot)
    }

    /// Notes the kind and time of the step that takes a call.
    pub(super) fn begun(&mut self, token: Token, kind: MetaKind, now_ms: u64) {
        if let Some(slot) = self.slot(token) {
            slot.begun = Some((kind, now_ms));
        }
    }

    /// The kind and the beginning of a call that is answered for the first time.
    pub(super) fn first_answer(&mut self, token: Token) -> Option<(MetaKind, u64)> {
        self.slot(token)?.begun.take()
    }

    /// Returns the caller, if the call has not ended.
    pub(super) fn get(&mut self, token: Token) -> Option<&Caller> {
        self.slot(token)?.caller.as_ref()
    }

    /// Ends a call.
    pub(super) fn take(&mut self, token: Token) -> Option<Caller> {
        let caller = self.slot(token)?.caller.take()?;
        self.free.push(token.0 as u32);
        Some(caller)
    }

    /// The number of calls that were not answered.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.slots.iter().filter(|slot| slot.caller.is_some()).count()
    }

    /// Ends the calls of other processes for which `ends` returns true.
    pub(super) fn take_apart(&mut self, ends: impl Fn(&Requester) -> bool) -> Vec<Requester> {
        let mut taken = Vec::new();
        for (at, slot) in (0..).zip(&mut self.slots) {
            let caller = slot.caller.take_if(|caller| match caller {
                Caller::Here(_) => false,
                Caller::Apart(requester) => ends(requester),
            });
            if let Some(Caller::Apart(requester)) = caller {
                self.free.push(at);
                taken.push(*requester);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_reply_is_dropped() {
        let mut callers = Callers::default();
        let here = || Caller::Here(Arc::default());
        let first = callers.insert(here());
        assert!(callers.get(first).is_some());
        assert!(callers.take(first).is_some());
        let second = callers.insert(here());
        assert_eq!(second.0 as u32, first.0 as u32, "the slot is used again");
        assert!(callers.get(first).is_none() && callers.take(first).is_none());
        assert!(callers.take(second).is_some() && callers.take(second).is_none());
        assert!(callers.take(NOBODY).is_none());
    }
}
