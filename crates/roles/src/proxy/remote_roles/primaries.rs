//! Sends calls to a PG's current primary.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{Either, select};
use larder_net::Peer;
use larder_objects::ObjectError;
use larder_protocol::manager::state::Topology;
use larder_protocol::{Answer, Call, Refusal};
use larder_types::{BucketId, Epoch, PgId, Request, ServerId, View};
use tokio::time::Instant;

use super::super::unavailable;
use super::counters::{ProxyCounters, count};
use super::planted::{self, Bug};
use super::retry::{RetryState, TryError};
use super::route::{Primary, newer, primary, view_passed};
use super::unavailable_pgs::{UNLED, UnavailablePgs, Wait, are_led};
use crate::managers::Managers;
use crate::peers::Peers;
use crate::requests::Requests;
use crate::wire::{MetaCall, MetaMessage, MetaReply, MetaService};

/// The meta servers, as leaders of PGs.
pub(super) struct Primaries {
    managers: Arc<dyn Managers>,
    peers: Peers<MetaService>,
    requests: Arc<Requests>,
    counters: ProxyCounters,
    unserved: UnavailablePgs,
}

/// The answer of a primary.
#[derive(Debug)]
pub(super) struct PrimaryReply {
    pub(super) at: Primary,
    pub(super) reply: MetaReply,
    pub(super) payload: Bytes,
    /// True if the call was sent before and may have taken effect then.
    pub(super) is_repeat: bool,
}

impl Primaries {
    pub(super) fn new(
        managers: Arc<dyn Managers>,
        peers: Peers<MetaService>,
        requests: Arc<Requests>,
    ) -> Self {
        let (counters, unserved) = (ProxyCounters::default(), UnavailablePgs::default());
        Self { managers, peers, requests, counters, unserved }
    }

    pub(super) fn managers(&self) -> &dyn Managers {
        &*self.managers
    }

    pub(super) fn requests(&self) -> &Arc<Requests> {
        &self.requests
    }

    pub(super) fn counters(&self) -> &ProxyCounters {
        &self.counters
    }

    pub(super) fn peer(&self, map: &Topology, server: ServerId) -> Option<Peer<MetaService>> {
        self.peers.of(map, server)
    }

    /// The deadline of a question to these PGs.
    pub(super) fn deadline(
        &self,
        map: &Topology,
        pgs: impl Iterator<Item = PgId>,
        wait: &mut Wait,
    ) -> Instant {
        self.unserved.deadline(self.managers(), map, pgs, wait)
    }

    /// Asks until there is an answer other than that another leads; the call gets the view in which it is asked.
    ///
    /// # Errors
    /// If there is none by the deadline, or [soon](Unserved) where the PG cannot be served: it may have been executed then.
    pub(super) async fn submit(
        &self,
        pg: PgId,
        call: &mut MetaCall,
        wait: &mut Wait,
    ) -> Result<PrimaryReply, ObjectError> {
        let (mut tries, mut is_repeat, mut asked) = (RetryState::default(), false, None);
        loop {
            let map = self.managers.map();
            let deadline = self.deadline(&map, std::iter::once(pg), wait);
            let at = primary(&map, pg);
            if at != asked {
                tries.restart();
                asked = at;
            }
            let tried = match at {
                Some(at) => {
                    set_view(call, at.view);
                    self.call_once(pg, at, call, deadline).await
                }
                None => Err(TryError::NoPrimary),
            };
            let trouble = match tried {
                Ok(said) => return Ok(PrimaryReply { is_repeat, ..said }),
                Err(trouble) => trouble,
            };
            is_repeat |= trouble.may_be_done();
            if planted::has(Bug::RepeatsUnderAnother) {
                with_another_number(call);
            }
            match tries.pause_after(&trouble) {
                Some(pause) if Instant::now() < deadline => {
                    tracing::debug!(%pg, ?trouble, "asking a primary again");
                    count(&self.counters.retries);
                    let pause = pause.min(deadline - Instant::now());
                    if newer(&*self.managers, map.version, pause).await {
                        tries.cut_short();
                    }
                }
                _ if trouble.may_pass() && !are_led(self.managers()) => {
                    return Err(unavailable(UNLED));
                }
                _ => return Err(trouble.final_error()),
            }
        }
    }

    /// Asks the primary of a view, as long as the PG is in that view.
    pub(super) async fn call_once(
        &self,
        pg: PgId,
        at: Primary,
        call: &MetaCall,
        deadline: Instant,
    ) -> Result<PrimaryReply, TryError> {
        let peer = self.peers.of(&self.managers.map(), at.server).ok_or(TryError::NoPrimary)?;
        let asked = pin!(peer.call(call, Bytes::new(), deadline));
        let passed = pin!(view_passed(&*self.managers, pg, at));
        let (reply, payload) = match select(asked, passed).await {
            Either::Left((answered, _)) => answered?,
            Either::Right(((), _)) => return Err(TryError::ViewPassed),
        };
        match reply {
            MetaReply::Refused(Refusal::NotPrimary)
            | MetaReply::Answered(Answer::Refused(Refusal::NotPrimary)) => {
                Err(TryError::NotPrimary)
            }
            reply => Ok(PrimaryReply { at, reply, payload, is_repeat: false }),
        }
    }

    /// Tells a primary something that has no answer. It is not repeated: if it is lost, the primary finds out by itself, once
    /// the session says that the request is finished (`session.rs`).
    pub(super) fn notify(&self, pg: PgId, call: Call) {
        let map = self.managers.map();
        let Some(at) = primary(&map, pg) else { return };
        let Some(peer) = self.peers.of(&map, at.server) else { return };
        let message = MetaMessage::Call { pg, view: at.view, call };
        if let Err(error) = peer.send(&message, Bytes::new()) {
            tracing::debug!(%pg, %error, "a message to a primary was not sent");
        }
    }
}

/// Puts the call under another number, which must never be done.
fn with_another_number(call: &mut MetaCall) {
    if let MetaCall::Call { call, .. } = call
        && let Some((request, ..)) = in_bucket(call)
    {
        request.number += 1 << 32;
    }
}

fn set_view(call: &mut MetaCall, now: View) {
    match call {
        MetaCall::Call { view, .. }
        | MetaCall::Await { view, .. }
        | MetaCall::Find { view, .. }
        | MetaCall::GetRow { view, .. }
        | MetaCall::Positions { view, .. } => *view = now,
        MetaCall::Scan { pgs, .. } => {
            let [(_, view)] = &mut pgs[..] else { unreachable!("a primary is asked for one PG") };
            *view = now;
        }
        MetaCall::Progress
        | MetaCall::Doubts
        | MetaCall::Space
        | MetaCall::Counts
        | MetaCall::Journals { .. }
        | MetaCall::Kept { .. }
        | MetaCall::TellPositions(_) => unreachable!("not of one PG: {call:?}"),
    }
}

/// The bucket that a call names, if that must be the latest, and under which request.
pub(super) fn in_bucket(call: &mut Call) -> Option<(&mut Request, BucketId, &mut Epoch)> {
    match call {
        Call::Put(put) => Some((&mut put.request, put.bucket, &mut put.epoch)),
        Call::Append(append) => Some((&mut append.request, append.bucket, &mut append.epoch)),
        Call::Coalesce(of) => Some((&mut of.request, of.bucket, &mut of.epoch)),
        Call::RemoteChange(change) => change.in_bucket(),
        Call::Delete { request, bucket, epoch, .. }
        | Call::CreateUpload { request, bucket, epoch, .. }
        | Call::CompleteUpload { request, bucket, epoch, .. } => Some((request, *bucket, epoch)),
        _ => None,
    }
}
