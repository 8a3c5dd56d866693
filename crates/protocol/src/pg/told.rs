//! A store among regions: changes have stamps, and those of other regions are taken (ADR 43).
//!
//! ```text
//!  Call::Told ──▶ key at rest? ──▶ greater than what is here? ──Op::Told, Purge, Amend──▶ log ──▶ apply: rows, journal
//!                 waits             no: Beaten
//! ```
//!
//! # Invariants
//!
//! 1. Of a key's ops each later one has the greater stamp, whoever made it: so the later op wins, as in a store that is
//!    alone. A change of another region is taken only by a key at rest, and only if its stamp is greater than that of
//!    what is here. A change of a client gets a clock above all that is here of its key, and that the PG has seen.
//! 2. Each op that changes what a key is to other regions writes one row of the journal, in the same batch.
//! 3. A store that is in no region does none of this.

use larder_types::codec::encode;
use larder_types::{
    Amend, Amendments, BucketId, JournalHead, Noted, ObjectEntry, ObjectKey, Op, OpId, OpSeq,
    Origin, Purge, RegionId, Request, Stamp, Target, ToldPut, Tombstone, VersionRow, rows,
};

use super::apply::Batch;
use super::calls::{Step, epoch_holds};
use super::slots::Slot;
use super::{Pg, ReplyKind};
use crate::index::{Index, IndexError};
use crate::limits::{REGION_FORGET_OPS_MAX, REGION_NOTES_MAX};
use crate::message::{Outbox, PutCall, Refusal, Token};
use crate::region::entry::Entry;
use crate::region::kept::{self, Kept};
use crate::region::merge::join_amendments;
use crate::region::told::{Told, ToldVersion};

/// A put that is about to get its place in the log: what goes with its METAX.
pub(super) enum Put<'a> {
    /// A client's.
    Own(&'a PutCall),
    /// Another region's.
    Told(&'a ToldVersion),
}

impl<'a> Put<'a> {
    pub(super) fn call(&self) -> &'a PutCall {
        match self {
            Self::Own(call) => call,
            Self::Told(told) => &told.put,
        }
    }

    /// The op with this METAX. `enough` counts for one with data alone.
    pub(super) fn op(&self, put: larder_types::Put, enough: u8) -> Op {
        match self {
            Self::Own(_) => Op::of_put(put, enough),
            Self::Told(told) => {
                let ToldVersion { origin, parts, amended, .. } = (*told).clone();
                Op::Told(Box::new(ToldPut { put, enough, origin, parts, amended }))
            }
        }
    }
}

impl Pg {
    /// The stamp of a client's change of a key: greater than that of all that is here of it.
    pub(super) fn stamp_of(
        &mut self,
        bucket: BucketId,
        key: &ObjectKey,
        index: &dyn Index,
    ) -> Result<Stamp, IndexError> {
        let region = index.region();
        if region != RegionId::OWN
            && let Some(at) = Kept::read(bucket, key, index)?.latest(region)
        {
            self.clock = self.clock.max(at.clock);
        }
        Ok(Stamp { clock: self.tick_clock(), region })
    }

    /// The stamp of a put: that which it is told with, or a new one. What is no version of its own has a clock alone.
    pub(super) fn stamp_of_put(
        &mut self,
        put: &Put<'_>,
        index: &dyn Index,
    ) -> Result<Stamp, IndexError> {
        match put {
            Put::Told(told) => Ok(told.at),
            Put::Own(call) if call.target == Target::Version => {
                self.stamp_of(call.bucket, &call.key, index)
            }
            Put::Own(_) => Ok(Stamp { clock: self.tick_clock(), region: RegionId::OWN }),
        }
    }

    /// Takes what another region tells, if it is not beaten by what is here.
    pub(super) fn take_told(
        &mut self,
        token: Token,
        told: &Told,
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<Step, IndexError> {
        let own = index.region();
        if own == RegionId::OWN {
            return Ok(Step::Refuse(Refusal::NoRegion));
        }
        if let Told::Note { request, passed, forgotten } = told {
            let (request, passed, forgotten) = (*request, passed.clone(), *forgotten);
            let op = Op::Noted(Box::new(Noted { request, passed, forgotten }));
            self.append_op(op, Some((token, ReplyKind::Done)), out);
            return Ok(Step::Done);
        }
        let (bucket, key) = told.key().expect("all others change a key");
        if !told.epoch().is_some_and(|epoch| epoch_holds(index, bucket, epoch)) {
            return Ok(Step::Refuse(Refusal::StaleBucket));
        }
        let slot = Slot::Version(bucket, key.clone());
        if !self.slots.at_rest(&slot) {
            return Ok(Step::Wait(slot));
        }
        let kept = Kept::read(bucket, key, index)?;
        let latest = kept.latest(own).filter(|_| !self.planted.takes_what_is_beaten());
        match told {
            Told::Put(version) if latest.is_some_and(|latest| latest >= version.at) => {
                Ok(Step::Refuse(Refusal::Beaten))
            }
            Told::Put(version) => self.put(token, &Put::Told(version), index, out),
            Told::Purge { at, .. } if latest.is_some_and(|latest| latest >= *at) => {
                Ok(Step::Refuse(Refusal::Beaten))
            }
            Told::Purge { request, at, origin, .. } => {
                self.append_purge(token, *request, (bucket, key), (*at, Some(*origin)), out);
                Ok(Step::Done)
            }
            Told::Amend { request, at, tags, amended, .. } => {
                let is_here = kept.version.is_some_and(|it| it.put_at.told_by(own) == *at);
                if !is_here || latest.is_some_and(|latest| latest > *at) {
                    return Ok(Step::Refuse(Refusal::Beaten));
                }
                let (key, put_at, tags) = (key.clone(), *at, tags.clone());
                let (request, amended) = (*request, *amended);
                let op = Op::Amend(Amend { request, bucket, key, put_at, tags, amended }.into());
                self.append_op(op, Some((token, ReplyKind::Done)), out);
                Ok(Step::Done)
            }
            Told::Note { .. } => unreachable!("it changes no key"),
        }
    }

    /// A client replaces the tags of a key's version, which is there and at rest.
    pub(super) fn amend_tags(
        &mut self,
        token: Token,
        request: Request,
        (bucket, key): (BucketId, &ObjectKey),
        tags: &[(String, String)],
        index: &dyn Index,
        out: &mut Outbox,
    ) -> Result<Step, IndexError> {
        let Some(version) = Kept::read(bucket, key, index)?.version else {
            return Ok(Step::Refuse(Refusal::NoSuchKey));
        };
        self.clock = self.clock.max(version.amended.clock());
        let tags_at = Some(self.stamp_of(bucket, key, index)?);
        let put_at = version.put_at.told_by(index.region());
        let (key, tags) = (key.clone(), tags.to_vec());
        let amended = Amendments { tags_at, ..Amendments::default() };
        let op = Op::Amend(Amend { request, bucket, key, put_at, tags, amended }.into());
        self.append_op(op, Some((token, ReplyKind::Done)), out);
        Ok(Step::Done)
    }

    /// A key's null version ends, and it is told on.
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
    /// A key's null version is this from now on, by the op `now`.
    pub(super) fn set_version(
        &mut self,
        (bucket, key): (BucketId, &ObjectKey),
        version: ObjectEntry,
        now: OpId,
    ) {
        // Also of one that was put before there were regions, and has an outcome only now.
        let own = self.index.region();
        if own != RegionId::OWN {
            self.record((bucket, key), &kept::of_version(own, self.pg, &version), now);
        }
        self.changes.put(rows::version(bucket, key, rows::UNVERSIONED), version.write());
    }

    fn record(&mut self, (bucket, key): (BucketId, &ObjectKey), entry: &Entry, now: OpId) {
        let row = rows::outcome(self.pg, now.seq);
        self.changes.put(row, kept::journaled(bucket, key, entry).encode());
    }

    pub(super) fn purge(&mut self, purge: &Purge, now: OpId) -> Result<(), IndexError> {
        let Purge { bucket, key, at, origin, .. } = purge;
        self.remove_version(*bucket, key, now)?;
        let tombstone = Tombstone { op: now, at: *at, origin: *origin };
        self.record((*bucket, key), &kept::of_tombstone(at.region, self.pg, &tombstone), now);
        self.changes.put(kept::tombstone_row(*bucket, key), encode(&tombstone));
        Ok(())
    }

    pub(super) fn amend(&mut self, amend: &Amend, now: OpId) -> Result<(), IndexError> {
        let Amend { bucket, key, put_at, tags, amended, .. } = amend;
        let row = rows::version(*bucket, key, rows::UNVERSIONED);
        let Some(value) = self.changes.get(self.index, &row)? else { return Ok(()) };
        let mut version = ObjectEntry::read(&value)?;
        // What was put before there were regions has no number in its row; that it is told with is this store's.
        let own = put_at.region;
        if version.put_at.told_by(own) != *put_at {
            return Ok(());
        }
        if amended.tags_at > version.amended.tags_at {
            version.row.metax.attributes.tags.clone_from(tags);
        }
        version.amended = join_amendments(version.amended, *amended);
        self.record((*bucket, key), &kept::of_version(own, self.pg, &version), now);
        self.changes.put(row, version.write());
        Ok(())
    }

    pub(super) fn note(&mut self, noted: &Noted, now: OpId) -> Result<(), IndexError> {
        for passed in noted.passed.iter().take(REGION_NOTES_MAX) {
            let row = rows::passed(self.pg, passed.region, passed.pg);
            self.changes.put(row, passed.encode());
        }
        let Some((from, upto)) = noted.forgotten else { return Ok(()) };
        let head = rows::outcome(self.pg, OpSeq(0));
        let before = self.changes.get(self.index, &head)?;
        let before = before.map(|value| JournalHead::decode(&value)).transpose()?;
        let first = before.map_or(OpSeq(1), |head| head.forgotten.next()).max(from);
        // By number, not as found: members apply in batches of their own, and must remove the same rows.
        let last = OpSeq(upto.0.min(first.0.saturating_add(REGION_FORGET_OPS_MAX - 1)));
        if last < first {
            return Ok(());
        }
        for op in first.0..=last.0 {
            self.changes.remove(rows::outcome(self.pg, OpSeq(op)));
        }
        self.changes.put(head, JournalHead { op: now, forgotten: last }.encode());
        Ok(())
    }
}

/// The row of a put's version.
pub(super) fn version_of(row: VersionRow, told: Option<&ToldPut>) -> ObjectEntry {
    let version = ObjectEntry::of_row(row);
    let Some(told) = told else { return version };
    let (parts, amended) = (told.parts.clone(), told.amended);
    ObjectEntry { origin: Some(told.origin), parts, amended, ..version }
}
