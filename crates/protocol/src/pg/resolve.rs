//! Puts in doubt: fence, then verify, then decide (DESIGN §7). And space: floors, new LVs, ticks.
//!
//! # Invariants
//!
//! 1. No copy is verified before its replica has voided the grant, durably and after its queued writes
//!    drained, or has answered the `Open` of a later view, which does the same; nor before every other
//!    replica has done so too, or is out of reach.
//! 2. If any copy verifies the put rolls forward, with the copies that do. It is revoked only when every
//!    replica was looked at and none verifies, or when one was fenced before it ever acknowledged the
//!    data: every replica must, before a client is told. Anything else stays in doubt and is asked
//!    again.

use larder_types::{Chunk, Grant, Holders, LvId, OpId, OpSeq, Outcome};

use super::{Pg, Role};
use crate::index::{Index, IndexError};
use crate::limits::{GRANT_MS_MAX, LV_FAILURES_MAX};
use crate::message::{DataAnswer, DataRequest, Effect, Outbox, Refusal};
use crate::space::{FreeRuns, LvInfo, VolumeGroup};

/// How far the resolution of a put has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Resolution {
    voided: Holders,
    verified: Holders,
    mismatched: Holders,
    /// Those of the mismatched that never acknowledged the data and never will.
    unacknowledged: Holders,
    /// Out of reach.
    gone: Holders,
    verifying: bool,
    /// A replica failed: ask everything again at the next tick.
    failed: bool,
}

impl Pg {
    /// The proxy gave the put up, or its view began without one.
    pub(super) fn begin_resolution(
        &mut self,
        op: OpId,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        let view = self.view;
        let fence_known = self.planted.skips_fence();
        let Some(space) = self.space.as_ref() else { return Ok(()) };
        let Some(open) = self.open.get_mut(&op.seq) else { return Ok(()) };
        if open.id != op || open.outcome.is_some() || open.resolution.is_some() {
            return Ok(());
        }
        if self.planted.revokes_unseen() {
            return self.commit_put(op, Outcome::Revoked, false, index, out);
        }
        let Some(info) = space.info(open.chunk.lv) else { return Ok(()) };
        let fenced_by_open = open.chunk.grant.op.view < view;
        if fenced_by_open && !space.is_fenced(open.chunk.lv) {
            return Ok(());
        }
        let mut resolution = Resolution::default();
        let (lv, grant, replicas) = (open.chunk.lv, open.chunk.grant, info.replicas.len());
        if fenced_by_open || fence_known {
            resolution.verifying = true;
            resolution.gone = space.gone(lv);
            ask_to_verify(&open.chunk, replicas, resolution.gone, out);
        } else {
            for replica in 0..replicas {
                let request = DataRequest::Void { grant };
                out.push(Effect::Data { lv, replica, request });
            }
        }
        open.resolution = Some(resolution);
        Ok(())
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
                if let Some(space) = self.space_mut() {
                    space.floor_acknowledged(lv, replica, floor);
                }
                self.feed_starved(index, out)?;
                self.resolve_older_views(index, out)
            }
            DataAnswer::Voided(grant) => {
                self.voided(grant, replica, out);
                Ok(())
            }
            DataAnswer::Verified(grant) => {
                if let Some((_, resolution, _)) = self.resolving(grant) {
                    resolution.verified = resolution.verified.with(replica);
                }
                self.decide(grant, index, out)
            }
            DataAnswer::Mismatch { grant, is_unacknowledged } => {
                if let Some((_, resolution, _)) = self.resolving(grant) {
                    resolution.mismatched = resolution.mismatched.with(replica);
                    if is_unacknowledged {
                        resolution.unacknowledged = resolution.unacknowledged.with(replica);
                    }
                }
                self.decide(grant, index, out)
            }
            DataAnswer::NotNow(grant) => {
                if let Some((_, resolution, _)) = self.resolving(grant) {
                    resolution.failed = true;
                }
                Ok(())
            }
            DataAnswer::Failed => self.replica_failed(lv, replica, index, out),
        }
    }

    /// A replica is out of reach, or its disk is out: its LV takes nothing more in this view.
    fn replica_failed(
        &mut self,
        lv: LvId,
        replica: usize,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        let Some(space) = self.space_mut() else { return Ok(()) };
        space.close(lv, replica);
        let is_alone = space.info(lv).is_some_and(|info| info.replicas.len() == 1);
        let mut fenced = Vec::new();
        let mut asked = Vec::new();
        for open in self.open.values_mut().filter(|open| open.chunk.lv == lv) {
            if let Some(resolution) = &mut open.resolution {
                resolution.gone = resolution.gone.with(replica);
                let grants = if resolution.verifying { &mut asked } else { &mut fenced };
                grants.push(open.chunk.grant);
            }
        }
        fenced.into_iter().for_each(|grant| self.verify_if_fenced(grant, out));
        for grant in asked {
            self.decide(grant, index, out)?;
        }
        self.resolve_older_views(index, out)?;
        if is_alone || self.lv_failures >= LV_FAILURES_MAX {
            for (token, _) in std::mem::take(&mut self.starved) {
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
    }

    /// Verifies what is within reach once all of that is fenced.
    fn verify_if_fenced(&mut self, grant: Grant, out: &mut Outbox) {
        let Some((replicas, resolution, chunk)) = self.resolving(grant) else { return };
        let is_fenced = (0..replicas)
            .all(|replica| resolution.voided.has(replica) || resolution.gone.has(replica));
        if !is_fenced || resolution.verifying {
            return;
        }
        if resolution.voided.count() == 0 {
            resolution.failed = true;
            return;
        }
        resolution.verifying = true;
        let gone = resolution.gone;
        ask_to_verify(chunk, replicas, gone, out);
    }

    /// Decides what becomes of a put, once each of its replicas has answered or is out of reach.
    fn decide(
        &mut self,
        grant: Grant,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        let Some((replicas, resolution, _)) = self.resolving(grant) else { return Ok(()) };
        let is_known = |replica: usize| {
            resolution.verified.has(replica)
                || resolution.mismatched.has(replica)
                || resolution.gone.has(replica)
        };
        if !resolution.verifying || !(0..replicas).all(is_known) {
            return Ok(());
        }
        let holders = resolution.verified;
        let outcome = if holders.count() > 0 {
            Outcome::Committed { attempt: grant.attempt, holders }
        } else if resolution.mismatched.count() == replicas || resolution.unacknowledged.count() > 0
        {
            Outcome::Revoked
        } else {
            resolution.failed = true;
            return Ok(());
        };
        if grant.op.seq > self.commit && matches!(outcome, Outcome::Committed { .. }) {
            // METAX is not durable on all members yet: decide at the next tick.
            if let Some((_, resolution, _)) = self.resolving(grant) {
                resolution.failed = true;
            }
            return Ok(());
        }
        self.commit_put(grant.op, outcome, false, index, out)
    }

    /// The resolution under way of the put that holds exactly this grant.
    fn resolving(&mut self, grant: Grant) -> Option<(usize, &mut Resolution, &Chunk)> {
        let open = self.open.get_mut(&grant.op.seq)?;
        if open.chunk.grant != grant {
            return None;
        }
        let replicas = self.space.as_ref()?.info(open.chunk.lv)?.replicas.len();
        Some((replicas, open.resolution.as_mut()?, &open.chunk))
    }

    /// Puts of earlier views have no proxy that could still commit them.
    fn resolve_older_views(
        &mut self,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        let view = self.view;
        let older: Vec<OpId> = self
            .open
            .values()
            .filter(|open| open.id.view < view && open.outcome.is_none())
            .filter(|open| open.resolution.is_none())
            .map(|open| open.id)
            .collect();
        for op in older {
            self.begin_resolution(op, index, out)?;
        }
        Ok(())
    }

    /// Takes the group's space, as METAX describes it, and serves from now on. Call it when the view is
    /// active and everything through its start is applied.
    ///
    /// # Panics
    /// If the view is not active.
    pub fn adopt_space(&mut self, lvs: Vec<(LvInfo, FreeRuns)>, out: &mut Outbox) {
        assert_eq!(self.role, Role::Active, "pg {}: space is adopted in an active view", self.id);
        let mut space = VolumeGroup::new(self.view);
        for (info, runs) in lvs {
            self.open_lv(&info, out);
            space.add(info, runs);
        }
        self.space = Some(space);
        self.role = Role::Serving;
    }

    fn open_lv(&self, info: &LvInfo, out: &mut Outbox) {
        let view = self.view;
        let floor = OpId { view, seq: OpSeq(0) };
        for (replica, server) in info.replicas.iter().enumerate() {
            let request = DataRequest::Open { view, floor, boot: server.boot };
            out.push(Effect::Data { lv: info.lv, replica, request });
        }
    }

    pub(super) fn lv_added(
        &mut self,
        info: LvInfo,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<(), IndexError> {
        self.lv_asked = false;
        if self.space.as_ref().is_none_or(|space| space.info(info.lv).is_some()) {
            return Ok(());
        }
        self.open_lv(&info, out);
        let runs = FreeRuns::whole(info.blocks);
        if let Some(space) = self.space_mut() {
            space.add(info, runs);
        }
        self.feed_starved(index, out)
    }

    /// No LV is left: calls that wait for space will not get it, unless floors that were asked for
    /// give some back.
    pub(super) fn pool_empty(&mut self, out: &mut Outbox) {
        self.lv_asked = false;
        if self.space.as_ref().is_some_and(VolumeGroup::regains) {
            return;
        }
        for (token, call) in std::mem::take(&mut self.starved) {
            self.refuse_for_good(token, &call, Refusal::Full, out);
        }
    }

    fn feed_starved(&mut self, index: &dyn Index, out: &mut Outbox) -> Result<(), IndexError> {
        for (token, call) in std::mem::take(&mut self.starved) {
            self.mutate(token, call, true, index, out)?;
        }
        Ok(())
    }

    /// A replica had no room for a put's data: nothing is given there, and behind it, for a while.
    pub(super) fn withhold(&mut self, op: OpId) {
        let (now_ms, open) = (self.now_ms, self.open.get(&op.seq));
        if let Some(open) = open.filter(|open| open.id == op)
            && let Some(space) = self.space.as_mut()
        {
            space.withhold(open.chunk.lv, &open.chunk.extents, now_ms);
        }
    }

    /// Raises floors over what is not open any more, so that freed space can be used again.
    pub(super) fn raise_floors(&mut self, short: bool, out: &mut Outbox) {
        let oldest_open =
            self.open.keys().next().copied().unwrap_or_else(|| self.last().seq.next());
        let Some(space) = self.space_mut() else { return };
        for raise in space.raises_due(oldest_open, short) {
            let replicas = space.info(raise.lv).map_or(0, |info| info.replicas.len());
            for replica in 0..replicas {
                let request = DataRequest::RaiseFloor { floor: raise.floor };
                out.push(Effect::Data { lv: raise.lv, replica, request });
            }
        }
    }

    pub(super) fn tick(&mut self, index: &dyn Index, out: &mut Outbox) -> Result<(), IndexError> {
        self.repeat_to_peers(out);
        if !self.serves() {
            return Ok(());
        }
        self.lv_failures = 0;
        let now_ms = self.now_ms;
        if let Some(space) = self.space_mut() {
            space.offer_again(now_ms);
        }
        let mut again = Vec::new();
        for open in self.open.values_mut() {
            let failed = open.resolution.is_some_and(|resolution| resolution.failed);
            let overdue = open.resolution.is_none()
                && open.outcome.is_none()
                && now_ms.saturating_sub(open.since_ms) > GRANT_MS_MAX;
            if failed || overdue {
                open.resolution = None;
                again.push(open.id);
            }
        }
        for op in again {
            self.begin_resolution(op, index, out)?;
        }
        self.resolve_older_views(index, out)?;
        self.raise_floors(false, out);
        Ok(())
    }
}

fn ask_to_verify(chunk: &Chunk, replicas: usize, gone: Holders, out: &mut Outbox) {
    for replica in (0..replicas).filter(|replica| !gone.has(*replica)) {
        let request = DataRequest::Verify { chunk: Box::new(chunk.clone()) };
        out.push(Effect::Data { lv: chunk.lv, replica, request });
    }
}
