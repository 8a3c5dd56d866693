//! A store among regions: a PG stamps its changes, and takes those of other regions (ADR 43).
//!
//! ```text
//!  Call::Told ──▶ key at rest? ──▶ greater than what is here? ──Op::Told, Purge, Amend, Grow──▶ log ──▶ apply: rows, journal
//!                 waits             no: Beaten
//! ```
//!
//! # Invariants
//!
//! 1. Each later op of a key has the greater stamp, be it a client's or another region's. So the later op wins, as in a
//!    store that is alone. The primary takes another region's change only for a key at rest, and only if its stamp is
//!    greater than that of what is here. A client's change gets a clock above all that is here of its key, and that the
//!    PG has seen.
//! 2. Each op that changes a key's entry writes one row of the journal, in the same batch.
//! 3. A store that is no region does none of this. Members see by the stamps of ops that it is one, so that all members
//!    of a PG do the same.
//! 4. The origin of a change is the op whose row of the journal told it first. So a region that has passed the origin
//!    has what it made, or what came after. The outcome of a put with data writes its row, and may stand far behind the
//!    put.
//! 5. The PG alone bounds its journal, with or without a gateway that other regions ask.
//! 6. A version that is renewed is a new one, made by that op, with the content that it had: it was in no other region.
//! 7. A key of which nothing is here may have had a tombstone that was freed. A client's put of it gets a clock above
//!    all freed ones: another region may have the tombstone still.

use std::ops::ControlFlow;

use larder_types::codec::{decode, encode};
use larder_types::{
    Amend, Amendments, BucketId, ClockFloor, Freed, FreedTombstone, HybridClock, JournalHead,
    Noted, ObjectEntry, ObjectKey, Op, OpId, OpSeq, Origin, PgId, Purge, RegionId, RemotePut,
    Renew, Request, Stamp, Target, Tombstone, VersionRow, rows,
};

use super::batch::Batch;
use super::mutation::{Step, epoch_holds};
use super::slots::Slot;
use super::{Pg, ReplyKind};
use crate::index::{Index, IndexError};
use crate::limits::{
    REGION_FORGET_OPS_MAX, REGION_FREED_MAX, REGION_JOURNAL_OPS_MAX, REGION_NOTES_MAX,
};
use crate::message::{Outbox, PutCall, Refusal, RemoteChange, RemotePutCall, Token};
use crate::region::key_rows::{self, KeyRows};
use crate::region::merge::join_amendments;

const FLOOR: &str = "clock floor";

/// A put that is about to get its place in the log.
pub(super) enum Put<'a> {
    /// A client's.
    Own(&'a PutCall),
    /// Another region's.
    RemoteChange(&'a RemotePutCall),
}

impl<'a> Put<'a> {
    pub(super) fn call(&self) -> &'a PutCall {
        match self {
            Self::Own(call) => call,
            Self::RemoteChange(change) => &change.put,
        }
    }

    /// The op with this METAX. `enough` counts for one with data alone.
    pub(super) fn op(&self, put: larder_types::Put, required_copies: u8) -> Op {
        match self {
            Self::Own(_) => Op::of_put(put, required_copies),
            Self::RemoteChange(change) => {
                let RemotePutCall { origin, parts, amended, .. } = (*change).clone();
                Op::RemoteChange(Box::new(RemotePut {
                    put,
                    required_copies,
                    origin,
                    parts,
                    amended,
                }))
            }
        }
    }
}

impl Pg {
    /// Gives a client's change of a key its stamp: greater than that of all that is here of the key.
    pub(super) fn stamp_of(
        &mut self,
        bucket: BucketId,
        key: &ObjectKey,
        index: &dyn Index,
    ) -> Result<Stamp, IndexError> {
        let region = index.region();
        if region != RegionId::OWN {
            let here = match KeyRows::read(bucket, key, index)?.latest(region) {
                Some(at) => Some(at.clock),
                // Its tombstone may have been freed here, and be there still in another region.
                None => clock_floor(self.id, index)?,
            };
            self.clock = here.map_or(self.clock, |here| self.clock.max(here));
        }
        Ok(Stamp { clock: self.tick_clock(), region })
    }

    /// The stamp of a put: the one that another region gave it, or a new one. A put that is no version has a clock
    /// alone.
    pub(super) fn stamp_of_put(
        &mut self,
        put: &Put<'_>,
        index: &dyn Index,
    ) -> Result<Stamp, IndexError> {
        match put {
            Put::RemoteChange(change) => Ok(change.at),
            Put::Own(call) if call.target == Target::Version => {
                self.stamp_of(call.bucket, &call.key, index)
            }
            Put::Own(_) => Ok(Stamp { clock: self.tick_clock(), region: RegionId::OWN }),
        }
    }

    /// Takes another region's change, if nothing that is here beats it.
    pub(super) fn take_remote_change(
        &mut self,
        token: Token,
        change: &RemoteChange,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<Step, IndexError> {
        let own = index.region();
        if own == RegionId::OWN {
            return Ok(Step::Refuse(Refusal::NoRegion));
        }
        if let RemoteChange::Note { request, passed, forgotten } = change {
            let (request, passed, forgotten) = (*request, passed.clone(), *forgotten);
            let op = Op::Noted(Box::new(Noted { request, passed, forgotten }));
            self.append_op(op, Some((token, ReplyKind::Done)), out);
            return Ok(Step::Done);
        }
        if let RemoteChange::Free { request, tombstones } = change {
            return self.free(token, *request, tombstones, index, out);
        }
        let (bucket, key) = change.key().expect("all others change a key");
        if !change.epoch().is_some_and(|epoch| epoch_holds(index, bucket, epoch)) {
            return Ok(Step::Refuse(Refusal::StaleBucket));
        }
        let slot = Slot::Version(bucket, key.clone());
        if !self.slots.at_rest(&slot) {
            return Ok(Step::Wait(slot));
        }
        let kept = KeyRows::read(bucket, key, index)?;
        let latest = kept.latest(own).filter(|_| !self.planted.takes_what_is_beaten());
        match change {
            RemoteChange::Put(version) if latest.is_some_and(|latest| latest >= version.at) => {
                Ok(Step::Refuse(Refusal::Beaten))
            }
            RemoteChange::Append(append) if latest.is_some_and(|latest| latest >= append.at) => {
                Ok(Step::Refuse(Refusal::Beaten))
            }
            RemoteChange::Append(append) => {
                let here =
                    kept.version.as_ref().filter(|it| Some(it.put_at.qualified_by(own)) == latest);
                self.append_remote(token, append, here, index, out)
            }
            RemoteChange::Put(version) => self.put(token, &Put::RemoteChange(version), index, out),
            RemoteChange::Purge { at, .. } if latest.is_some_and(|latest| latest >= *at) => {
                Ok(Step::Refuse(Refusal::Beaten))
            }
            RemoteChange::Purge { request, at, origin, .. } => {
                self.append_purge(token, *request, (bucket, key), (*at, Some(*origin)), out);
                Ok(Step::Done)
            }
            RemoteChange::Amend { request, at, tags, amended, .. } => {
                let is_here = kept.version.is_some_and(|it| it.put_at.qualified_by(own) == *at);
                if !is_here || latest.is_some_and(|latest| latest > *at) {
                    return Ok(Step::Refuse(Refusal::Beaten));
                }
                let (key, put_at, tags) = (key.clone(), *at, tags.clone());
                let (request, amended) = (*request, *amended);
                let op = Op::Amend(Amend { request, bucket, key, put_at, tags, amended }.into());
                self.append_op(op, Some((token, ReplyKind::Done)), out);
                Ok(Step::Done)
            }
            RemoteChange::Renew { request, was, .. } => {
                let Some(version) = kept.version.filter(|version| version.row.op == *was) else {
                    return Ok(Step::Refuse(Refusal::Beaten));
                };
                // Just above what is here: what another region changed since is later.
                let here = latest.map_or(HybridClock::default(), |latest| latest.clock);
                let clock = here.max(version.amended.clock()).advance(0);
                let at = Stamp { clock, region: own };
                let (request, key, was) = (*request, key.clone(), *was);
                let op = Op::Renew(Renew { request, bucket, key, was, at }.into());
                self.append_op(op, Some((token, ReplyKind::Done)), out);
                Ok(Step::Done)
            }
            RemoteChange::Note { .. } | RemoteChange::Free { .. } => {
                unreachable!("it changes no key")
            }
        }
    }

    /// Frees the tombstones that are here still. That of a key that is changing stays: it may be needed.
    fn free(
        &mut self,
        token: Token,
        request: Request,
        tombstones: &[FreedTombstone],
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<Step, IndexError> {
        let mut here = Vec::new();
        for it in tombstones.iter().take(REGION_FREED_MAX) {
            let slot = Slot::Version(it.bucket, it.key.clone());
            let kept = KeyRows::read(it.bucket, &it.key, index)?.tombstone;
            if self.slots.at_rest(&slot) && kept.is_some_and(|kept| kept.at == it.at) {
                here.push(it.clone());
            }
        }
        if here.is_empty() {
            return Ok(Step::Refuse(Refusal::Beaten));
        }
        let op = Op::Freed(Box::new(Freed { request, tombstones: here }));
        self.append_op(op, Some((token, ReplyKind::Done)), out);
        Ok(Step::Done)
    }

    /// Replaces the tags of a key's version for a client. The version is there and at rest.
    pub(super) fn amend_tags(
        &mut self,
        token: Token,
        request: Request,
        (bucket, key): (BucketId, &ObjectKey),
        tags: &[(String, String)],
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<Step, IndexError> {
        let Some(version) = KeyRows::read(bucket, key, index)?.version else {
            return Ok(Step::Refuse(Refusal::NoSuchKey));
        };
        self.clock = self.clock.max(version.amended.clock());
        let tags_at = Some(self.stamp_of(bucket, key, index)?);
        let put_at = version.put_at.qualified_by(index.region());
        let (key, tags) = (key.clone(), tags.to_vec());
        let amended = Amendments { tags_at, ..Amendments::default() };
        let op = Op::Amend(Amend { request, bucket, key, put_at, tags, amended }.into());
        self.append_op(op, Some((token, ReplyKind::Done)), out);
        Ok(Step::Done)
    }

    /// Appends the purge of a key's null version, which the journal tells on.
    pub(super) fn append_purge(
        &mut self,
        token: Token,
        request: Request,
        (bucket, key): (BucketId, &ObjectKey),
        (at, origin): (Stamp, Option<Origin>),
        out: &mut Outbox,
    ) {
        let op = Op::Purge(Purge { request, bucket, key: key.clone(), at, origin }.into());
        self.append_op(op, Some((token, ReplyKind::Done)), out);
    }
}

impl Batch<'_> {
    pub(super) fn purge(&mut self, purge: &Purge, now: OpId) -> Result<(), IndexError> {
        let Purge { bucket, key, at, origin, .. } = purge;
        self.remove_version(*bucket, key, now)?;
        let tombstone = Tombstone { op: now, at: *at, origin: *origin };
        self.record((*bucket, key), &key_rows::of_tombstone(at.region, self.pg, &tombstone), now);
        self.changes.put(key_rows::tombstone_row(*bucket, key), encode(&tombstone));
        Ok(())
    }

    pub(super) fn amend(&mut self, amend: &Amend, now: OpId) -> Result<(), IndexError> {
        let Amend { bucket, key, put_at, tags, amended, .. } = amend;
        let row = rows::version(*bucket, key, rows::UNVERSIONED);
        let Some(value) = self.changes.get(self.index, &row)? else { return Ok(()) };
        let mut version = ObjectEntry::read(&value)?;
        // A row from before there were regions has no number; other regions hear this store's.
        let own = put_at.region;
        if version.put_at.qualified_by(own) != *put_at {
            return Ok(());
        }
        if amended.tags_at > version.amended.tags_at {
            version.row.metax.attributes.tags.clone_from(tags);
        }
        version.amended = join_amendments(version.amended, *amended);
        self.record((*bucket, key), &key_rows::of_version(own, self.pg, &version), now);
        self.changes.put(row, version.write());
        Ok(())
    }

    /// Has a key's null version be this op's: its origin is no other, and no region has passed it.
    pub(super) fn renew(&mut self, renew: &Renew, now: OpId) -> Result<(), IndexError> {
        let Renew { bucket, key, was, at, .. } = renew;
        let row = rows::version(*bucket, key, rows::UNVERSIONED);
        let Some(value) = self.changes.get(self.index, &row)? else { return Ok(()) };
        let mut version = ObjectEntry::read(&value)?;
        if version.row.op != *was {
            return Ok(());
        }
        version.row.op = now;
        (version.row.metax.clock, version.row.metax.region) = (at.clock, at.region);
        (version.put_at, version.origin) = (*at, None);
        // Its tags are those of the put now.
        version.amended.tags_at = None;
        self.set_version((*bucket, key), version, now);
        Ok(())
    }

    pub(super) fn free_tombstones(
        &mut self,
        pg: PgId,
        freed: &Freed,
        now: OpId,
    ) -> Result<(), IndexError> {
        let row = rows::clock_floor(pg);
        let floor = self.changes.get(self.index, &row)?;
        let floor = floor.map(|value| decode::<ClockFloor>(FLOOR, &value)).transpose()?;
        let mut clock = floor.map(|floor| floor.clock).unwrap_or_default();
        for FreedTombstone { bucket, key, at } in freed.tombstones.iter().take(REGION_FREED_MAX) {
            let row = key_rows::tombstone_row(*bucket, key);
            let Some(value) = self.changes.get(self.index, &row)? else { continue };
            if decode::<Tombstone>("tombstone", &value)?.at == *at {
                self.changes.remove(row);
                clock = clock.max(at.clock);
            }
        }
        if floor.is_none_or(|floor| floor.clock < clock) {
            self.changes.put(row, encode(&ClockFloor { op: now, clock }));
        }
        Ok(())
    }

    pub(super) fn note(&mut self, noted: &Noted, now: OpId) -> Result<(), IndexError> {
        for passed in noted.passed.iter().take(REGION_NOTES_MAX) {
            let row = rows::passed(self.pg, passed.region, passed.pg);
            self.changes.put(row, passed.encode());
        }
        let Some((from, upto)) = noted.forgotten else { return Ok(()) };
        let first = self.forgotten()?.next().max(from);
        self.forget((first, upto), REGION_FORGET_OPS_MAX, now);
        Ok(())
    }

    /// Forgets outcomes that are further back than a journal reaches, even if regions lack them: while a cluster's
    /// gateway is away, no region asks for them. It does so at certain ops and by their numbers, as all members must do
    /// the same.
    pub(super) fn bound_journal(&mut self, now: OpId) -> Result<(), IndexError> {
        let behind = OpSeq(now.seq.0.saturating_sub(REGION_JOURNAL_OPS_MAX));
        if !now.seq.0.is_multiple_of(REGION_FORGET_OPS_MAX) || behind == OpSeq(0) {
            return Ok(());
        }
        let from = rows::outcome(self.pg, self.forgotten()?.next());
        let to = rows::outcome(self.pg, behind.next());
        let mut first = None;
        self.index.scan(&from, Some(&to), &mut |row, _| {
            first = rows::parse_outcome(row).map(|(_, op)| op);
            ControlFlow::Break(())
        })?;
        // Twice as many as come meanwhile: a longer journal of an earlier release becomes as short as any.
        if let Some(first) = first {
            self.forget((first, behind), 2 * REGION_FORGET_OPS_MAX, now);
        }
        Ok(())
    }

    /// The last outcome that the journal has forgotten.
    fn forgotten(&self) -> Result<OpSeq, IndexError> {
        let head = self.changes.get(self.index, &rows::outcome(self.pg, OpSeq(0)))?;
        let head = head.map(|value| JournalHead::decode(&value)).transpose()?;
        Ok(head.map_or(OpSeq(0), |head| head.forgotten))
    }

    /// Forgets outcomes of the first `ops_max` of these ops: by number, not as found, as members apply in batches of
    /// their own and must remove the same rows.
    fn forget(&mut self, (first, upto): (OpSeq, OpSeq), ops_max: u64, now: OpId) {
        let last = OpSeq(upto.0.min(first.0.saturating_add(ops_max - 1)));
        if last < first {
            return;
        }
        for op in first.0..=last.0 {
            self.changes.remove(rows::outcome(self.pg, OpSeq(op)));
        }
        let head = rows::outcome(self.pg, OpSeq(0));
        self.changes.put(head, JournalHead { op: now, forgotten: last }.encode());
    }
}

/// The clock that a PG's puts are above: the greatest of the tombstones that it freed.
fn clock_floor(pg: PgId, index: &dyn Index) -> Result<Option<HybridClock>, IndexError> {
    let value = index.get(&rows::clock_floor(pg))?;
    let floor = value.map(|value| decode::<ClockFloor>(FLOOR, &value)).transpose()?;
    Ok(floor.map(|floor| floor.clock))
}

/// The row of a put's version.
pub(super) fn version_of(row: VersionRow, remote: Option<&RemotePut>) -> ObjectEntry {
    let version = ObjectEntry::of_row(row);
    let Some(remote) = remote else { return version };
    let (parts, amended) = (remote.parts.clone(), remote.amended);
    ObjectEntry { origin: Some(remote.origin), parts, amended, ..version }
}
