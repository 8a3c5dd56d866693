//! A call that becomes an op. It is repeated under one request number, so that it becomes one op however often it is
//! sent; a number that was refused for the bucket's record is replaced.
//!
//! # Invariants
//!
//! 1. A call goes on under a newer record of its bucket only if that one has it decided in this region, too (ADR 48).

use larder_objects::ObjectError;
use larder_protocol::{Answer, Call, Refusal};
use larder_types::{Decider, PgId, RegionId, View, home};
use tokio::time::Instant;

use super::super::append::append_decider;
use super::super::{refused, unavailable};
use super::primaries::{Primaries, in_bucket};
use super::retry::pause;
use super::route::{Primary, newer};
use super::unavailable_pgs::Wait;
use super::unfitting;
use crate::limits::STALE_TRIES_MAX;
use crate::requests::OpenRequest;
use crate::ticket::Settled;
use crate::wire::{MetaCall, MetaReply};

/// A call under way.
pub(super) struct Calling<'a> {
    primaries: &'a Primaries,
    pg: PgId,
    call: MetaCall,
    wait: Wait,
    /// In place of the request that it came with.
    renewed: Option<OpenRequest<'a>>,
    stale: u32,
    /// A primary that did not answer may have done it.
    may_be_done: bool,
}

impl<'a> Calling<'a> {
    pub(super) fn new(primaries: &'a Primaries, pg: PgId, call: Call, deadline: Instant) -> Self {
        let (call, wait) = (MetaCall::Call { pg, view: View(0), call }, Wait::of_client(deadline));
        Self { primaries, pg, call, wait, renewed: None, stale: 0, may_be_done: false }
    }

    /// A call whose end no client waits for.
    pub(super) fn of_nobody(
        primaries: &'a Primaries,
        pg: PgId,
        call: Call,
        deadline: Instant,
    ) -> Self {
        Self { wait: Wait::of_nobody(deadline), ..Self::new(primaries, pg, call, deadline) }
    }

    /// A call that was made already, and that nobody wants to be made anew.
    pub(super) fn of_orphan(
        primaries: &'a Primaries,
        pg: PgId,
        call: Call,
        deadline: Instant,
    ) -> Self {
        Self { stale: STALE_TRIES_MAX, ..Self::of_nobody(primaries, pg, call, deadline) }
    }

    /// The put that this is.
    pub(super) fn put(&self) -> Option<Call> {
        match &self.call {
            MetaCall::Call { call, .. } if call.put().is_some() => Some(call.clone()),
            _ => None,
        }
    }

    pub(super) fn primaries(&self) -> &'a Primaries {
        self.primaries
    }

    /// The deadline of this call.
    pub(super) fn deadline(&mut self) -> Instant {
        let map = self.primaries.managers().map();
        self.primaries.deadline(&map, std::iter::once(self.pg), &mut self.wait)
    }

    /// The answer of the PG's primary, and which it was. May be asked again: the answer is of the same op.
    pub(super) async fn answer(&mut self) -> Result<(Answer, Primary), ObjectError> {
        loop {
            let said = self.primaries.submit(self.pg, &mut self.call, &mut self.wait).await?;
            self.may_be_done |= said.is_repeat;
            let answer = match said.reply {
                MetaReply::Answered(answer) => answer,
                MetaReply::Refused(refusal) => Answer::Refused(refusal),
                other => return Err(unfitting(&other)),
            };
            match answer {
                // Said before the primary looks whether it has done it already.
                Answer::Refused(Refusal::Full) if self.may_be_done => {
                    return Err(unavailable(
                        "nobody knows whether it was done before space ran out",
                    ));
                }
                Answer::Refused(Refusal::StaleBucket) if self.renew().await => {}
                answer => return Ok((answer, said.at)),
            }
        }
    }

    /// Waits for what came of it.
    pub(super) async fn settled(mut self) -> Result<Settled, ObjectError> {
        match self.answer().await?.0 {
            Answer::Done { op, clock } => Ok(Settled::Done(op, clock)),
            Answer::Version(row) => Ok(Settled::Version(row)),
            Answer::AskIndex => Ok(Settled::AskIndex),
            Answer::Passed => Ok(Settled::Shows(None)),
            Answer::Settled(before) => Ok(Settled::Shows(before)),
            Answer::Appended(done) => Ok(Settled::Appended(done)),
            Answer::Plan(plan) => Ok(Settled::Plan(plan)),
            Answer::Refused(refusal) => Err(refused(refusal)),
            other @ (Answer::Granted { .. } | Answer::Persisted { .. }) => Err(unfitting(&other)),
        }
    }

    /// Either the primary or this proxy does not know yet what the managers made of the bucket: waits a little, and
    /// makes another request of the call. `false` if that is of no use.
    async fn renew(&mut self) -> bool {
        self.stale += 1;
        let MetaCall::Call { call, .. } = &mut self.call else { return false };
        let (has_condition, is_told) = (has_condition(call), matches!(call, Call::RemoteChange(_)));
        let is_append = matches!(call, Call::Append(_));
        let Some((request, bucket, epoch)) = in_bucket(call) else { return false };
        if self.stale > STALE_TRIES_MAX {
            return false;
        }
        let managers = self.primaries.managers();
        newer(managers, managers.map().version, pause(self.stale)).await;
        let map = managers.map();
        let Some(record) = map.buckets.values().find(|record| record.id == bucket) else {
            return false;
        };
        // The decision may not be this region's any more: the caller looks again.
        let decider = match is_append && map.number() != RegionId::OWN {
            true => append_decider(record),
            false => Some(home::decider(record.home.as_ref(), has_condition)),
        };
        let is_here = decider == Some(Decider::Here);
        // Another region's change is taken only into the bucket for which it was asked.
        if if is_told { record.epoch != *epoch } else { !is_here } {
            return false;
        }
        let renewed = self.primaries.requests().begin();
        (*request, *epoch) = (renewed.id(), record.epoch);
        self.renewed = Some(renewed);
        true
    }
}

/// Returns true if a client's change has a condition.
fn has_condition(call: &Call) -> bool {
    match call {
        Call::Put(put) => !put.condition.is_none(),
        Call::Append(append) => !append.condition.is_none(),
        Call::Delete { condition, .. } | Call::CompleteUpload { condition, .. } => {
            !condition.is_none()
        }
        _ => false,
    }
}
