//! Puts in doubt: fence, then verify, then decide ("Puts in doubt" in `docs/cluster.md`). And space: floors, new LVs,
//! ticks.
//!
//! # Invariants
//!
//! 1. No copy is verified before its replica has voided the grant, durably and after its queued writes drained. To
//!    answer the `Open` of a later view does the same. Nor is one verified before every other replica has done so too, or
//!    is out of reach.
//! 2. If any copy verifies the put rolls forward, with the copies that do. It is revoked only when every replica was
//!    looked at and none verifies, or when too few are left for a client to have been told. That is so when too many
//!    were fenced before they ever acknowledged the data: as many must acknowledge it as the put names, or all.
//!    Anything else stays in doubt and is asked again.
//! 3. A resolution that fails begins again after ever more ticks, [`RETRY_TICKS_MAX`] at most, or as soon as a replica is
//!    back or has room. A put that cannot be decided costs its replicas next to nothing, and waits for nobody for ever.
//! 4. A replica that remembers as many voids as it can is given a floor instead ([`Pg::raise_over_voids`]): so the
//!    number of puts that are resolved in one view has no bound.

use std::collections::BTreeSet;

use larder_types::{Chunk, Grant, Holders, LvId, MapVersion, OpId, OpSeq, Outcome};

use super::space_waiters::SpaceWaiter;
use super::{OpenPut, Pg, Role};
use crate::high_water::HighWater;
use crate::index::{Index, IndexError};
use crate::limits::{GRANT_MS_MAX, LV_FAILURES_MAX, LV_REOPEN_MS, RETRY_TICKS_MAX};
use crate::lv::LvInfo;
use crate::message::{DataAnswer, DataRequest, Effect, Outbox, Refusal};
use crate::space::{FloorRaise, FreeRuns, Space, VolumeGroup};

/// The progress of a put's resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Resolution {
    voided: Holders,
    verified: Holders,
    mismatched: Holders,
    /// Mismatched replicas that never acknowledged the data and never will.
    unacknowledged: Holders,
    /// Out of reach.
    gone: Holders,
    verifying: bool,
    /// It failed: all requests are repeated when [`Retry`] is due.
    failed: bool,
    /// A replica has no room for another void: raise its floor first.
    lacks_room: bool,
}

/// The time at which a resolution that failed begins again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Retry {
    /// Resolutions that began since a replica came back.
    begun: u32,
    /// The tick from which on the next may begin.
    due: u64,
}

impl Retry {
    /// A resolution begins at this tick.
    fn begin(&mut self, tick: u64) {
        self.due = tick + (1 << self.begun.min(RETRY_TICKS_MAX.ilog2()));
        self.begun += 1;
    }

    /// The cause of its failure is over: the next begins at the next tick.
    fn soon(&mut self) {
        self.due = 0;
    }
}

impl Pg {
    /// The proxy gave the put up, or its view began without one.
    pub(super) fn begin_resolution(&mut self, op: OpId, out: &mut Outbox) {
        let view = self.view;
        let fence_known = self.planted.skips_fence();
        let Some(space) = self.space.as_ref() else { return };
        let Some(open) = self.open.get_mut(&op.seq) else { return };
        if open.id != op || open.outcome.is_some() || open.resolution.is_some() {
            return;
        }
        if self.planted.revokes_unseen() {
            return self.commit_put(op, Outcome::Revoked, false, out);
        }
        if space.info(open.chunk.lv).is_none() {
            return;
        }
        let fenced_by_open = open.chunk.grant.op.view < view;
        if fenced_by_open && !space.is_fenced(open.chunk.lv) {
            return;
        }
        let mut resolution = Resolution::default();
        let (lv, grant, replicas) = (open.chunk.lv, open.chunk.grant, given(space, &open.chunk));
        if fenced_by_open || fence_known {
            resolution.verifying = true;
            resolution.gone = space.gone(lv);
            request_verify(&open.chunk, replicas, resolution.gone, out);
        } else {
            for replica in replicas.iter() {
                let request = DataRequest::Void { grant };
                out.push(Effect::Data { lv, replica, request });
            }
        }
        // None says anything.
        resolution.failed = replicas.is_empty();
        open.resolution = Some(resolution);
        open.retry.begin(self.ticks);
        // Nobody may be within reach to answer.
        self.decide(grant, out);
    }

    pub(super) fn data_answered(
        &mut self,
        lv: LvId,
        replica: usize,
        answer: DataAnswer,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        match answer {
            DataAnswer::Floor(floor) => {
                if let Some(space) = self.space_mut()
                    && space.floor_acknowledged(lv, replica, floor)
                {
                    // Objects that were put meanwhile have no copy there.
                    self.refills.want_walk();
                    self.retry_anew(lv);
                }
                self.retry_voids(lv);
                self.feed_starved(index, out)?;
                self.resolve_older_views(out);
            }
            DataAnswer::Voided(grant) => self.voided(grant, replica, out),
            DataAnswer::Verified(grant) => {
                if let Some((_, resolution, _)) = self.resolving(grant) {
                    resolution.verified = resolution.verified.with(replica);
                }
                self.decide(grant, out);
            }
            DataAnswer::Mismatch { grant, is_unacknowledged } => {
                if let Some((_, resolution, _)) = self.resolving(grant) {
                    resolution.mismatched = resolution.mismatched.with(replica);
                    if is_unacknowledged {
                        resolution.unacknowledged = resolution.unacknowledged.with(replica);
                    }
                }
                self.decide(grant, out);
            }
            DataAnswer::NotNow(grant) => {
                if let Some((_, resolution, _)) = self.resolving(grant) {
                    resolution.failed = true;
                    resolution.lacks_room = !resolution.verifying;
                }
            }
            DataAnswer::Failed => self.replica_failed(lv, replica, index, out)?,
        }
        Ok(())
    }

    /// A replica is back: puts in doubt for want of it are asked about at once, and as often as new ones.
    fn retry_anew(&mut self, lv: LvId) {
        for open in self.open.values_mut().filter(|open| open.chunk.lv == lv) {
            open.retry = Retry::default();
        }
    }

    /// A floor was raised: where there was no room for another void there is now.
    fn retry_voids(&mut self, lv: LvId) {
        let lacks_room = |open: &&mut OpenPut| {
            open.chunk.lv == lv && open.resolution.is_some_and(|it| it.lacks_room)
        };
        self.open.values_mut().filter(lacks_room).for_each(|open| open.retry.soon());
    }

    /// A replica is out of reach, or its disk is out: its LV takes nothing more until it answers again.
    fn replica_failed(
        &mut self,
        lv: LvId,
        replica: usize,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        let Some(space) = self.space_mut() else { return Ok(()) };
        let is_news = space.close(lv, replica);
        let is_alone = space.present(lv).count() == 1;
        let mut waiting = Vec::new();
        for open in self.open.values_mut().filter(|open| open.chunk.lv == lv) {
            if let Some(resolution) = &mut open.resolution {
                resolution.gone = resolution.gone.with(replica);
                waiting.push(open.chunk.grant);
            }
        }
        for grant in waiting {
            self.verify_if_fenced(grant, out);
            self.decide(grant, out);
        }
        self.resolve_older_views(out);
        if !is_news {
            return Ok(());
        }
        if is_alone || self.lv_failures >= LV_FAILURES_MAX {
            for SpaceWaiter { token, .. } in std::mem::take(&mut self.starved) {
                self.refuse(token, Refusal::DiskFailed, out);
            }
            return Ok(());
        }
        // Others may be within reach, or the manager makes one of those that are.
        self.lv_failures += 1;
        self.feed_starved(index, out)
    }

    fn voided(&mut self, grant: Grant, replica: usize, out: &mut Outbox) {
        let Some((_, resolution, _)) = self.resolving(grant) else { return };
        resolution.voided = resolution.voided.with(replica);
        self.verify_if_fenced(grant, out);
        self.decide(grant, out);
    }

    /// Verifies the reachable replicas once all of them are fenced. There may be none, and then no answer comes: decide
    /// afterwards.
    fn verify_if_fenced(&mut self, grant: Grant, out: &mut Outbox) {
        let lost = self.lost_of(grant);
        let Some((replicas, resolution, chunk)) = self.resolving(grant) else { return };
        let is_fenced = replicas.without(resolution.voided).without(resolution.gone).is_empty();
        if !is_fenced || resolution.verifying {
            return;
        }
        // Those that are gone for good take no writes.
        if resolution.voided.is_empty() && !replicas.without(lost).is_empty() {
            resolution.failed = true;
            return;
        }
        resolution.verifying = true;
        let gone = resolution.gone;
        request_verify(chunk, replicas, gone, out);
    }

    /// Decides what becomes of a put, once each of its replicas has answered or is out of reach.
    fn decide(&mut self, grant: Grant, out: &mut Outbox) {
        let lost = self.lost_of(grant);
        let required_copies = self.required_copies(grant);
        let Some((replicas, resolution, chunk)) = self.resolving(grant) else { return };
        let looked_at = resolution.verified.union(resolution.mismatched);
        let is_answered = replicas.without(looked_at.union(resolution.gone)).is_empty();
        if replicas.is_empty() || !resolution.verifying || !is_answered {
            return;
        }
        let holders = resolution.verified;
        let is_nowhere = replicas.without(resolution.mismatched.union(lost)).is_empty();
        // So many never had it that no client was told.
        let may_have = chunk.holders.union(replicas).without(resolution.unacknowledged).count();
        let outcome = if !holders.is_empty() {
            Outcome::Committed { attempt: grant.attempt, holders }
        } else if is_nowhere || may_have < required_copies {
            Outcome::Revoked
        } else {
            resolution.failed = true;
            return;
        };
        if grant.op.seq > self.commit && matches!(outcome, Outcome::Committed { .. }) {
            // METAX is not durable on all members yet: decide later.
            if let Some((_, resolution, _)) = self.resolving(grant) {
                resolution.failed = true;
            }
            return;
        }
        self.commit_put(grant.op, outcome, false, out);
    }

    /// The resolution under way of the put that holds exactly this grant, and the replicas that were to be given
    /// its data.
    fn resolving(&mut self, grant: Grant) -> Option<(Holders, &mut Resolution, &Chunk)> {
        let open = self.open.get_mut(&grant.op.seq)?;
        if open.chunk.grant != grant {
            return None;
        }
        let replicas = given(self.space.as_ref()?, &open.chunk);
        Some((replicas, open.resolution.as_mut()?, &open.chunk))
    }

    /// Replicas that are to be given an open put's data.
    pub(super) fn given(&self, chunk: &Chunk) -> Holders {
        self.space.as_ref().map_or(chunk.holders, |space| given(space, chunk))
    }

    /// The map that names the replicas of an LV as this primary knows them.
    pub(super) fn as_of(&self, lv: LvId) -> MapVersion {
        let info = self.space.as_ref().and_then(|space| space.info(lv));
        info.map_or(MapVersion(0), |info| info.as_of)
    }

    /// Returns the number of replicas that must have had an open put's data for its client to have been told.
    fn required_copies(&self, grant: Grant) -> usize {
        let Some(open) = self.open.get(&grant.op.seq) else { return 0 };
        let given = open.chunk.holders.union(self.given(&open.chunk)).count();
        if self.planted.takes_policies_for_all() { given } else { open.required_copies(given) }
    }

    /// Replicas of an open put's LV that are gone for good.
    fn lost_of(&self, grant: Grant) -> Holders {
        let open = self.open.get(&grant.op.seq);
        let lost = open.zip(self.space.as_ref()).map(|(open, space)| space.lost(open.chunk.lv));
        lost.unwrap_or_default()
    }

    /// Puts of earlier views have no proxy that could still commit them.
    fn resolve_older_views(&mut self, out: &mut Outbox) {
        let view = self.view;
        let older: Vec<OpId> = self
            .open
            .values()
            .filter(|open| open.id.view < view && open.outcome.is_none())
            .filter(|open| open.resolution.is_none())
            .map(|open| open.id)
            .collect();
        for op in older {
            self.begin_resolution(op, out);
        }
    }

    /// Takes the group's space, as METAX describes it, and serves from now on. Call it when the view is
    /// active and everything through its start is applied.
    ///
    /// # Panics
    /// If the view is not active.
    pub fn adopt_space(&mut self, space: Space, out: &mut Outbox) {
        let mut group = VolumeGroup::new(self.view);
        for (info, runs) in space.lvs {
            group.add(info, runs);
        }
        self.high_water = Some(HighWater::known(group.tops()));
        self.serve_in(group, out);
        if !space.is_as_wanted {
            self.refills.want_walk();
        }
    }

    /// Serves from now on in these LVs.
    pub(super) fn serve_in(&mut self, mut group: VolumeGroup, out: &mut Outbox) {
        group.rest_for(self.rest_ms());
        group.set_now(self.now_ms);
        assert_eq!(self.role, Role::Active, "pg {}: space is adopted in an active view", self.id);
        for info in group.infos() {
            self.open_lv(info, info.present().iter(), OpSeq(0), out);
        }
        self.space = Some(group);
        self.role = Role::Serving;
        for open in self.open.values_mut().filter(|open| open.since_ms == 0) {
            // It was taken from the log, before there was a clock.
            open.since_ms = self.now_ms;
        }
    }

    fn open_lv(
        &self,
        info: &LvInfo,
        replicas: impl Iterator<Item = usize>,
        floor: OpSeq,
        out: &mut Outbox,
    ) {
        let view = self.view;
        let floor = OpId { view, seq: floor };
        for replica in replicas {
            let boot = info.replicas[replica].boot;
            let request = DataRequest::Open { view, floor, boot };
            out.push(Effect::Data { lv: info.lv, replica, request });
        }
    }

    /// Asks replicas that were out of reach to open again. The floor is one that every replica may be given at any
    /// time: what was granted below it and is still open was not written there, or has been.
    fn reopen(&self, out: &mut Outbox) {
        let Some(space) = self.space.as_ref() else { return };
        for (info, gone) in space.closed() {
            self.open_lv(info, gone.iter(), self.applied.seq.next(), out);
        }
    }

    /// An LV is new, or its replicas have changed.
    pub(super) fn take_lv(
        &mut self,
        info: LvInfo,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        let above_applied = self.applied.seq.next();
        let Some(space) = self.space.as_mut() else { return Ok(()) };
        match space.info(info.lv) {
            None => {
                self.lv_requested = false;
                self.pool_empty_ms = None;
                let runs = FreeRuns::whole(info.blocks);
                space.add(info.clone(), runs);
                self.open_lv(&info, info.present().iter(), OpSeq(0), out);
            }
            // Of two maps the newer one is right, whichever is heard of first.
            Some(known) if known.is_equivalent(&info) || info.as_of < known.as_of => return Ok(()),
            Some(_) => {
                let fresh = space.update(info.clone());
                self.retry_anew(info.lv);
                self.open_lv(&info, fresh.into_iter(), above_applied, out);
                self.refills.want_walk();
            }
        }
        self.feed_starved(index, out)
    }

    /// No LV is left: calls that wait for space will not get it, unless floors that were asked for
    /// give some back, or rows that are read leave some.
    pub(super) fn pool_empty(&mut self, out: &mut Outbox) {
        self.pool_empty_ms = Some(self.now_ms);
        self.draws_none(self.no_space(), out);
    }

    /// No LV can be drawn before servers return: calls that wait for space are refused until then, unless this group has some
    /// soon. As the pool is not empty it is asked again for the next call.
    pub(super) fn too_few_servers(&mut self, out: &mut Outbox) {
        self.draws_none(Refusal::TooFewCopies, out);
    }

    /// Returns true if calls that wait for space may have some in a moment, without another LV.
    fn has_some_soon(&self) -> bool {
        self.reaper.has_garbage() || self.space.as_ref().is_some_and(VolumeGroup::has_some_soon)
    }

    fn draws_none(&mut self, why: Refusal, out: &mut Outbox) {
        self.lv_requested = false;
        if self.has_some_soon() {
            return;
        }
        for SpaceWaiter { token, call, .. } in std::mem::take(&mut self.starved) {
            self.refuse_for_good(token, &call, why, out);
        }
    }

    /// Replicas had no room for a put's data: nothing is given there, and behind it, for a while, or only on the others.
    pub(super) fn withhold(&mut self, op: OpId, crowded: Holders) {
        let (now_ms, open) = (self.now_ms, self.open.get(&op.seq));
        if let Some(open) = open.filter(|open| open.id == op)
            && let Some(space) = self.space.as_mut()
        {
            space.withhold(open.chunk.lv, &open.chunk.extents, crowded, now_ms);
        }
    }

    /// Finds out which replicas of an open put take writes: where one does not, nothing more is given that needs it. A put
    /// is tried again soon after it was taken back, and would be given the same replicas for ever. They are asked to open
    /// as they are open: a server that has begun another run takes a higher floor, but neither that nor a write.
    pub(super) fn probe(&mut self, op: OpId, out: &mut Outbox) {
        let Some(lv) =
            self.open.get(&op.seq).filter(|open| open.id == op).map(|open| open.chunk.lv)
        else {
            return;
        };
        let view = self.view;
        let Some(space) = self.space_mut() else { return };
        for (replica, floor) in space.probes(lv) {
            let Some(boot) = space.boot(lv, replica) else { continue };
            out.push(Effect::Data {
                lv,
                replica,
                request: DataRequest::Open { view, floor, boot },
            });
        }
    }

    /// Raises floors over what is not open any more, so that freed space can be used again.
    pub(super) fn raise_floors(&mut self, short: bool, out: &mut Outbox) {
        let copies = self.refills.oldest().into_iter().chain(self.moves.oldest());
        let oldest_open = self.open.keys().next().copied().into_iter().chain(copies).min();
        let oldest_open = oldest_open.unwrap_or_else(|| self.last().seq.next());
        let Some(space) = self.space_mut() else { return };
        for raise in space.raises_due(oldest_open, short) {
            for replica in space.present(raise.lv).iter() {
                let request = DataRequest::RaiseFloor { floor: raise.floor };
                out.push(Effect::Data { lv: raise.lv, replica, request });
            }
        }
    }

    /// Raises the floors of LVs of which a replica has no room for another void, up to the oldest grant that a proxy or a
    /// copy may still write under. Every grant below is being resolved or has ended, so that its void loses nothing, and
    /// a floor is answered after the same drain as a void. The grant that holds a floor down is resolved when it is
    /// [`GRANT_MS_MAX`] old, at the latest: then it does so no more.
    fn raise_over_voids(&mut self, out: &mut Outbox) {
        let lacks_room = |open: &&OpenPut| open.resolution.is_some_and(|it| it.lacks_room);
        let lvs: BTreeSet<LvId> =
            self.open.values().filter(lacks_room).map(|open| open.chunk.lv).collect();
        let copies = self.refills.oldest().into_iter().chain(self.moves.oldest()).min();
        for lv in lvs {
            let may_write = |open: &&OpenPut| {
                open.chunk.lv == lv && open.id.view == self.view && open.resolution.is_none()
            };
            let puts = self.open.values().filter(may_write).map(|open| open.id.seq);
            let oldest = puts.chain(copies).min().unwrap_or_else(|| self.last().seq.next());
            let raise = self.space_mut().and_then(|space| space.raise_to(lv, oldest));
            let Some((FloorRaise { lv, floor }, replicas)) = raise else { continue };
            for replica in replicas.iter() {
                out.push(Effect::Data { lv, replica, request: DataRequest::RaiseFloor { floor } });
            }
        }
    }

    pub(super) fn tick(&mut self, index: &dyn Index, out: &mut Outbox) -> Result<(), IndexError> {
        self.ticks += 1;
        self.repeat_to_peers(out);
        self.slots.tick(self.ticks);
        if !self.serves() {
            return Ok(());
        }
        self.refuse_overdue(out);
        self.pass_barriers(out);
        self.lv_failures = 0;
        let now_ms = self.now_ms;
        if now_ms >= self.reopened_ms.saturating_add(LV_REOPEN_MS) {
            self.reopened_ms = now_ms;
            self.reopen(out);
        }
        if let Some(space) = self.space_mut() {
            let may_lack = space.offer_again(now_ms);
            space.forget_orders(now_ms);
            if may_lack {
                self.refills.want_walk();
            }
        }
        self.end_rests();
        self.flush_holders(out);
        self.flush_moves(out);
        self.resume_drops(index, out)?;
        self.raise_over_voids(out);
        let mut again = Vec::new();
        for open in self.open.values_mut() {
            let failed = open.resolution.is_some_and(|resolution| resolution.failed)
                && self.ticks >= open.retry.due;
            let overdue = open.resolution.is_none()
                && open.outcome.is_none()
                && (now_ms.saturating_sub(open.since_ms) > GRANT_MS_MAX
                    || open.is_orphan(self.ticks, &self.sessions));
            if failed || overdue {
                open.resolution = None;
                again.push(open.id);
            }
        }
        for op in again {
            self.begin_resolution(op, out);
        }
        self.resolve_older_views(out);
        if self.ends_reaping_first() {
            self.feed_starved(index, out)?;
        }
        // Calls that wait for space are not to wait for more of it to be freed.
        self.raise_floors(!self.starved.is_empty(), out);
        Ok(())
    }
}

/// Replicas that were to be given a put's data when it was granted. One that joined its LV later never had it, and
/// says nothing about it.
fn given(space: &VolumeGroup, chunk: &Chunk) -> Holders {
    let present = space.present(chunk.lv);
    // A put of an earlier release names none: they were all that there were.
    if chunk.holders.is_empty() { present } else { chunk.holders.common(present) }
}

fn request_verify(chunk: &Chunk, replicas: Holders, gone: Holders, out: &mut Outbox) {
    for replica in replicas.without(gone).iter() {
        let request = DataRequest::Verify { chunk: Box::new(chunk.clone()) };
        out.push(Effect::Data { lv: chunk.lv, replica, request });
    }
}
