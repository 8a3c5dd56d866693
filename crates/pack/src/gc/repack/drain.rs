//! Empties one blob: what of it is still needed is re-logged, by changes like all others.
//!
//! 1. Bodies: versions and parts that have bytes in it get them in the blob that is open then.
//! 2. Its footer, entry by entry: what is still true and nothing later tells; what was removed and must stay so.
//! 3. That it is retired.
//!
//! If it is cut off anywhere, it is begun again: a change that is re-logged twice is true twice.
//!
//! # Invariant
//!
//! A blob is retired after all of that, in the order of changes. So a reader of the retirement
//! reads the rest too.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use futures::future::join_all;
use larder_types::{BucketId, BucketName, OpId, View};

use super::moving::{Mover, RelocationRecord};
use super::needs::Needs;
use crate::backup::BackupAt;
use crate::bugs::{self, Bug};
use crate::commit::command::{Relocate, RelocateTo};
use crate::error::PackError;
use crate::format::blob::FooterReader;
use crate::format::entry::{Change, Container, Content, Entry, Place};
use crate::format::rows::BlobRow;
use crate::ids::{BackupId, BlobId, Run, WorkerId};
use crate::limits::RELOCATED_MAX;

/// One blob being emptied.
pub(super) struct Drain<'a> {
    pub(super) mover: Mover<'a>,
    pub(super) id: BlobId,
    pub(super) row: BlobRow,
    pub(super) needs: Needs,
    /// Blobs that are not retired.
    pub(super) kept: BTreeSet<BlobId>,
    /// Backups that were counted in what is needed.
    pub(super) backups: Vec<BackupAt>,
}

/// Retired blobs that are told of, and the backups for which they are.
#[derive(Debug, Clone)]
struct Retirement {
    run: Run,
    backups: BTreeSet<BackupId>,
}

/// Retirements by worker and first blob.
type Retirements = BTreeMap<(WorkerId, u64), Retirement>;

impl Drain<'_> {
    /// Empties and retires the blob. False if it could not be, as others took up bytes in it meanwhile.
    pub(super) async fn run(mut self) -> Result<bool, PackError> {
        self.mover.run().await?;
        let tail = self.mover.read(self.row.footer_offset, self.row.bytes).await?;
        let name = self.mover.name.clone();
        let footer = FooterReader::new(&name, &tail)?;
        let names: BTreeMap<_, _> = footer.head.buckets.iter().cloned().collect();
        let (mut peer_clock, mut runs) = (Vec::new(), Retirements::new());
        for entry in footer {
            let entry = entry?;
            if let Change::Retired { run, backups } = &entry.change {
                let op = entry.op(self.id.worker);
                let knows = |backup: &&BackupAt| backup.op > op || backups.contains(&backup.id);
                let backups = self.backups.iter().filter(knows).map(|backup| backup.id);
                self.merge(Retirement { run: *run, backups: backups.collect() }, &mut runs);
            }
            if let Some(relogged) = self.needed(entry.clone(), &names)? {
                peer_clock.push((entry, relogged));
            }
            if peer_clock.len() >= RELOCATED_MAX {
                self.tell(std::mem::take(&mut peer_clock), &names).await?;
            }
        }
        self.tell(peer_clock, &names).await?;
        self.retire(runs).await
    }

    fn container(&self) -> Container {
        Container::Blob(self.id)
    }

    fn name_of(&self, bucket: BucketId) -> Option<BucketName> {
        self.mover.name_of(bucket)
    }

    /// Returns what must be re-logged of an entry, if anything: all but bytes that lie here, which
    /// were moved.
    fn needed(
        &self,
        entry: Entry,
        names: &BTreeMap<BucketId, BucketName>,
    ) -> Result<Option<RelocationRecord>, PackError> {
        let op = entry.op(self.id.worker);
        let Some(bucket) = entry.change.bucket() else { return Ok(None) };
        let live_name = self.name_of(bucket);
        let carry = match entry.change {
            Change::BucketMade(record) => Some(Relocate::Bucket(record.id)),
            Change::BucketRemoved(bucket) => self.bucket_gone(bucket, op),
            Change::BucketGone { bucket, upto } => self.bucket_gone(bucket, upto),
            // All else that a removed bucket had goes with it.
            _ if live_name.is_none() => None,
            Change::Put { bucket, key, content, .. } => {
                self.version(bucket, key, op, content, op)?
            }
            Change::Moved { bucket, key, op: put, content, .. } => {
                self.version(bucket, key, put, content, op)?
            }
            Change::UploadCompleted { bucket, key, upload, parts, .. } => {
                self.version(bucket, key, op, Content::Parts { upload, parts }, op)?
            }
            Change::Deleted { bucket, key } => {
                let since = OpId { view: View(0), ..OpId::default() };
                self.gone(Change::Gone { bucket, key, since, upto: op }, since, op)
            }
            Change::Gone { bucket, key, since, upto } => {
                self.gone(Change::Gone { bucket, key, since, upto }, since, upto)
            }
            Change::UploadBegun { bucket, row } => {
                Some(Relocate::Upload { bucket, key: row.key, upload: row.upload })
            }
            Change::PartPut { bucket, upload, number, place, .. } => {
                self.part(bucket, upload, number, op, place)
            }
            Change::PartMoved { bucket, upload, number, op, place, .. } => {
                self.part(bucket, upload, number, op, place)
            }
            Change::UploadAborted { bucket, key, upload } => {
                let change = Change::UploadGone { bucket, key, upload, upto: op };
                self.gone(change, upload.op, op)
            }
            Change::UploadGone { bucket, key, upload, upto } => {
                let change = Change::UploadGone { bucket, key, upload, upto };
                self.gone(change, upload.op, upto)
            }
            Change::Retired { .. } => None,
        };
        let name = live_name.or_else(|| names.get(&bucket).cloned());
        Ok(carry.map(|carry| (name, carry)))
    }

    /// A version that this blob tells of. If it is not the key's any more, an upload that it came from stays ended.
    fn version(
        &self,
        bucket: BucketId,
        key: larder_types::ObjectKey,
        op: OpId,
        content: Content,
        relogged: OpId,
    ) -> Result<Option<Relocate>, PackError> {
        let now = self.mover.repacker.index.version(bucket, &key)?;
        if now.as_ref().is_some_and(|now| now.op == op && now.content == content) {
            let to = RelocateTo::Same;
            return Ok(self.is_elsewhere(&content).then_some(Relocate::Version {
                bucket,
                key,
                op,
                from: content,
                to,
            }));
        }
        let upload = content.upload();
        // A later version of the same parts tells of their upload itself.
        let upload = upload.filter(|_| now.and_then(|now| now.content.upload()) != upload);
        Ok(upload.and_then(|upload| {
            let change = Change::UploadGone { bucket, key, upload, upto: relogged };
            self.gone(change, upload.op, relogged)
        }))
    }

    fn part(
        &self,
        bucket: BucketId,
        upload: larder_types::UploadId,
        number: u16,
        op: OpId,
        from: Place,
    ) -> Option<Relocate> {
        let is_elsewhere = from.container != self.container() || from.len == 0;
        is_elsewhere.then_some(Relocate::Part {
            bucket,
            upload,
            number,
            op,
            from,
            to: RelocateTo::Same,
        })
    }

    /// Returns true if the bytes do not lie in this blob; those that do were moved.
    fn is_elsewhere(&self, content: &Content) -> bool {
        match content {
            Content::Run(place) => place.container != self.container() || place.len == 0,
            Content::Parts { .. } => true,
        }
    }

    fn gone(&self, change: Change, since: OpId, upto: OpId) -> Option<Relocate> {
        let is_needed = self.needs.removal(since, upto) && !bugs::planted(Bug::DeletesNotRelocated);
        is_needed.then(|| Relocate::Removal(Box::new(change)))
    }

    fn bucket_gone(&self, bucket: BucketId, upto: OpId) -> Option<Relocate> {
        let is_needed = self.needs.bucket_removal(bucket, upto);
        is_needed.then(|| Relocate::Removal(Box::new(Change::BucketGone { bucket, upto })))
    }

    /// The run of retired blobs around some that this blob names; those of one run are re-logged once, for the backups
    /// that need all of them.
    fn merge(&self, retired: Retirement, runs: &mut Retirements) {
        let Retirement { run, backups } = retired;
        let around = self.around(BlobId { worker: run.worker, seq: run.first }, run.last);
        let new = || Retirement { run: around, backups: backups.clone() };
        let known = runs.entry((around.worker, around.first)).or_insert_with(new);
        known.run.last = known.run.last.max(around.last);
        known.backups.retain(|backup| backups.contains(backup));
    }

    /// Blobs from `first` to `last`, and those next to them that are retired too.
    fn around(&self, first: BlobId, last: u64) -> Run {
        let worker = first.worker;
        let id = |seq| BlobId { worker, seq };
        let others = |range: (Bound<BlobId>, Bound<BlobId>)| {
            self.kept.range(range).filter(|kept| **kept != self.id).map(|kept| kept.seq)
        };
        let before = others((Bound::Included(id(0)), Bound::Excluded(first))).next_back();
        let behind = others((Bound::Excluded(id(last)), Bound::Included(id(u64::MAX)))).next();
        Run {
            worker,
            first: before.map_or(1, |seq| seq + 1),
            last: behind.map_or(last, |seq| seq - 1),
        }
    }

    /// Says that the blob is not needed any more, after all else.
    async fn retire(&mut self, mut runs: Retirements) -> Result<bool, PackError> {
        let run = self.around(self.id, self.id.seq);
        let backups = self.backups.iter().map(|backup| backup.id).collect();
        self.merge(Retirement { run, backups }, &mut runs);
        let mut is_retired = false;
        // One run has this blob. The others tell of blobs that are retired already.
        for Retirement { run, backups } in runs.into_values() {
            let backups = backups.into_iter().collect();
            let carry = match run.has(self.id) {
                true => Relocate::Retire { blob: self.id, run, backups },
                false => Relocate::Removal(Box::new(Change::Retired { run, backups })),
            };
            let relogged = self.mover.ask((None, carry)).await?;
            is_retired |= run.has(self.id) && relogged.is_some();
        }
        Ok(is_retired)
    }

    /// Re-logs each. A version that was replaced meanwhile is examined again: the end of its upload must still be
    /// re-logged.
    async fn tell(
        &self,
        mut peer_clock: Vec<(Entry, RelocationRecord)>,
        names: &BTreeMap<BucketId, BucketName>,
    ) -> Result<(), PackError> {
        while !peer_clock.is_empty() {
            let asked = peer_clock.iter().map(|(_, relogged)| self.mover.ask(relogged.clone()));
            let answers = join_all(asked).await;
            let mut again = Vec::new();
            for ((entry, (_, carry)), answer) in peer_clock.into_iter().zip(answers) {
                let is_replaced = answer?.is_none() && matches!(carry, Relocate::Version { .. });
                if is_replaced && let Some(relogged) = self.needed(entry.clone(), names)? {
                    again.push((entry, relogged));
                }
            }
            peer_clock = again;
        }
        Ok(())
    }
}
