//! Deletes versions and tombstones that another worker's newer ones have superseded, and tombstones that
//! nothing needs any more.
//!
//! # Invariants
//!
//! 1. Each deletion is a change like all others, made only if the entry is still the one that was seen here.
//! 2. A version goes when this worker has something newer itself, or when what another has that is newer has been in the
//!    bucket for the time that things are kept.
//! 3. A tombstone goes likewise, or when three things hold. No worker has an older version. Of every
//!    other worker, everything up to the tombstone's clock has been in the bucket for that time. So has
//!    everything that this worker had heard of any of them when it saw that.
//! 4. A bucket in which this worker has objects that count comes back if another has removed it: it did not know of them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_objects::ObjectError;
use larder_types::codec::decode;
use larder_types::rows::{self as keys, parse_keyed};
use larder_types::{BucketId, BucketName, BucketRecord, HybridClock, ObjectKey, OpId, OpSeq};

use super::buckets::mark;
use super::follow::is_past;
use super::peer::{Mark, Peer};
use super::view::{Item, Rank, RowOwner};
use super::{Others, hidden};
use crate::bugs::{self, Bug};
use crate::commit::command::{Command, Relocate, Target};
use crate::commit::committer::Marks;
use crate::commit::queue::{Queue, ask};
use crate::error::PackError;
use crate::format::rows::PackedVersion;
use crate::ids::WorkerId;
use crate::index::Index;
use crate::limits::{ROUND_ROWS, TOMBSTONES_REMEMBERED};
use crate::owner::name::WorkerName;

/// The version GC, with the parts of the store that it needs.
pub(crate) struct VersionGc {
    pub(crate) others: Arc<Others>,
    pub(crate) index: Arc<Index>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) marks: Arc<Marks>,
    /// Tombstones that nothing needed in a round before, and what had been heard of the others by then.
    cleared: BTreeMap<(BucketId, ObjectKey), (OpId, Arc<ReceivedMarks>)>,
}

/// The standing of something among all that are known of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is the newest.
    Counts,
    /// There is something newer, which may be lost yet, or not be known to all.
    Waits,
    /// It is not needed.
    Superseded,
}

/// Through which change each of the others was known at the beginning of a round.
type ReceivedMarks = BTreeMap<WorkerName, (WorkerId, OpSeq)>;

impl VersionGc {
    pub(crate) fn new(
        others: Arc<Others>,
        index: Arc<Index>,
        queue: Arc<Queue>,
        marks: Arc<Marks>,
    ) -> Self {
        Self { others, index, queue, marks, cleared: BTreeMap::new() }
    }

    /// Examines all versions of this worker; returns how many were deleted.
    pub(crate) async fn round(&mut self) -> Result<u64, PackError> {
        if self.others.fresh().is_err() {
            return Ok(0);
        }
        let peers = self.others.peers();
        let received: ReceivedMarks = peers.iter().filter_map(heard_of).collect();
        let received = Arc::new(received);
        let mut given_up = 0;
        for record in self.index.buckets() {
            match self.swept(&record.name, record.location.as_deref()) {
                Some(of) => given_up += self.tombstones(&record, &of, &received).await?,
                None => given_up += self.versions(&record).await?,
            }
        }
        self.beat().await?;
        Ok(given_up)
    }

    /// The bucket whose deletions the hidden bucket records.
    fn swept(&self, name: &BucketName, location: Option<&str>) -> Option<BucketName> {
        let of = location.filter(|_| hidden::is_for_graves(name))?;
        BucketName::new(of).ok()
    }

    /// Versions of a bucket, and whether there must be the bucket.
    async fn versions(&mut self, record: &BucketRecord) -> Result<u64, PackError> {
        let (mut given_up, mut after, mut counts) = (0, None, false);
        loop {
            let some = self.some(record.id, after.as_ref())?;
            let Some((last, _)) = some.last() else { break };
            after = Some(last.clone());
            for (key, version) in some {
                let state = self.state(&record.name, &key, &version)?;
                counts |= state == State::Counts;
                if state == State::Superseded {
                    given_up += self.give_up(&record.name, key, version.op).await?;
                }
            }
            tokio::task::yield_now().await;
        }
        let is_of_clients = !hidden::is_hidden(&record.name);
        if is_of_clients && counts {
            self.restore(record).await?;
        }
        Ok(given_up)
    }

    /// Tombstones in a bucket for those of `of`.
    async fn tombstones(
        &mut self,
        record: &BucketRecord,
        of: &BucketName,
        received: &Arc<ReceivedMarks>,
    ) -> Result<u64, PackError> {
        let (mut given_up, mut after) = (0, None);
        loop {
            let some = self.some(record.id, after.as_ref())?;
            let Some((last, _)) = some.last() else { break };
            after = Some(last.clone());
            for (key, tombstone) in some {
                let is_superseded = self.state(of, &key, &tombstone)? == State::Superseded;
                if is_superseded || self.is_unneeded(of, (record.id, &key), &tombstone, received)? {
                    given_up += self.give_up(&record.name, key, tombstone.op).await?;
                }
            }
            tokio::task::yield_now().await;
        }
        Ok(given_up)
    }

    /// The next rows of a bucket.
    fn some(
        &self,
        bucket: BucketId,
        after: Option<&ObjectKey>,
    ) -> Result<Vec<(ObjectKey, PackedVersion)>, PackError> {
        let from = match after {
            None => keys::bucket(b'V', bucket),
            Some(key) => keys::after_key(b'V', bucket, key.as_bytes()),
        };
        let end = keys::prefix_end(&keys::bucket(b'V', bucket));
        let (mut some, mut damaged) = (Vec::new(), None);
        self.index.scan(&from, end.as_deref(), &mut |row, value| {
            let key = parse_keyed(row).map(|(_, key, _)| key);
            match (key, decode::<PackedVersion>("a version's row", value)) {
                (Some(key), Ok(version)) => some.push((key, version)),
                (_, found) => {
                    let unnamed = || PackError::damaged("a version's row", "it names no key");
                    damaged = Some(found.err().map_or_else(unnamed, PackError::from));
                    return ControlFlow::Break(());
                }
            }
            match some.len() < ROUND_ROWS {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        damaged.map_or(Ok(some), Err)
    }

    /// The standing of a version or tombstone of this worker among all that are known of its key.
    fn state(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        of: &PackedVersion,
    ) -> Result<State, PackError> {
        let rank = Rank::of(of);
        let mut items = self.others.items(&self.index, bucket, key)?;
        items.retain(|item| item.rank() > rank);
        Ok(match (items.is_empty(), items.iter().any(|item| self.is_kept(item))) {
            (true, _) => State::Counts,
            (false, true) => State::Superseded,
            (false, false) => State::Waits,
        })
    }

    /// Returns true if something stays though its worker's directory is lost, and is known to all
    /// that answer.
    fn is_kept(&self, item: &Item) -> bool {
        let RowOwner::Other(known) = &item.whose else { return true };
        let peers = self.others.peers();
        let peer = peers
            .iter()
            .find(|peer| peer.known().is_some_and(|of| of.worker.line() == known.worker.line()));
        let put = WorkerId(item.version.op.view.0);
        peer.is_some_and(|peer| is_past(&self.aged(peer), put, item.version.op.seq))
    }

    fn aged(&self, peer: &Peer) -> Mark {
        peer.aged(self.others.settings().kept)
    }

    /// Returns true if no worker has, or may come to have, what a tombstone is for.
    fn is_unneeded(
        &mut self,
        of: &BucketName,
        (bucket, key): (BucketId, &ObjectKey),
        tombstone: &PackedVersion,
        received: &Arc<ReceivedMarks>,
    ) -> Result<bool, PackError> {
        let rank = Rank::of(tombstone);
        let at = (bucket, key.clone());
        let peers = self.others.peers();
        let items = self.others.items(&self.index, of, key)?;
        let is_clear = items.iter().all(|item| item.is_tombstone || item.rank() > rank);
        let all_passed = peers.iter().all(|peer| self.aged(peer).clock >= tombstone.metax.clock);
        if bugs::planted(Bug::TombstoneForgottenEarly) {
            return Ok(is_clear);
        }
        if !is_clear || !all_passed {
            self.cleared.remove(&at);
            return Ok(false);
        }
        let is_settled = |then: &Arc<ReceivedMarks>| {
            peers.iter().all(|peer| match then.get(&peer.name) {
                Some((worker, seq)) => is_past(&self.aged(peer), *worker, *seq),
                None => false,
            })
        };
        match self.cleared.get(&at) {
            Some((op, then)) if *op == tombstone.op => Ok(is_settled(then)),
            _ => {
                if self.cleared.len() < TOMBSTONES_REMEMBERED {
                    self.cleared.insert(at, (tombstone.op, received.clone()));
                }
                Ok(false)
            }
        }
    }

    async fn give_up(
        &mut self,
        bucket: &BucketName,
        key: ObjectKey,
        op: OpId,
    ) -> Result<u64, PackError> {
        if let Some(id) = self.index.bucket_id(bucket) {
            self.cleared.remove(&(id, key.clone()));
        }
        let target = Target { bucket: bucket.clone(), key };
        self.ask(Command::Yield { target, op }).await
    }

    /// There is the bucket, or will be again.
    async fn restore(&self, record: &BucketRecord) -> Result<(), PackError> {
        let (buckets, key) = (hidden::buckets(), hidden::key_of(&record.name));
        if self.others.newest(&self.index, &buckets, &key)?.is_some() {
            return Ok(());
        }
        tracing::warn!(bucket = %record.name, "a worker removed a bucket without knowing of objects in it: creating the bucket again");
        let location = record.location.clone();
        let command = mark(&self.queue, &self.index, &record.name, location).await;
        let command = command.map_err(|error| PackError::Deferred { reason: error.to_string() })?;
        self.ask(command).await.map(drop)
    }

    /// Lets the others know that nothing older comes from here, if they have tombstones that wait for it.
    async fn beat(&self) -> Result<(), PackError> {
        let last = HybridClock(self.marks.clock.load(Ordering::Relaxed));
        let Some(id) = self.index.bucket_id(&hidden::buckets()) else { return Ok(()) };
        for known in self.others.known() {
            for record in known.index().buckets() {
                if hidden::is_for_graves(&record.name) && has_later(known.index(), record.id, last)?
                {
                    let bucket = Some(hidden::buckets());
                    self.ask(Command::Relocate { bucket, carry: Relocate::Bucket(id) }).await?;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// 1 if it was done, 0 if it is not so any more.
    async fn ask(&self, command: Command) -> Result<u64, PackError> {
        match ask(&self.queue, command).await {
            Ok(_) => Ok(1),
            Err(ObjectError::Changed | ObjectError::PreconditionFailed) => Ok(0),
            Err(error) => Err(PackError::Deferred { reason: error.to_string() }),
        }
    }
}

fn heard_of(peer: &Arc<Peer>) -> Option<(WorkerName, (WorkerId, OpSeq))> {
    let known = peer.known()?;
    Some((peer.name.clone(), (known.worker, known.at().seq)))
}

/// Returns true if a bucket has a version that is later.
fn has_later(index: &Index, bucket: BucketId, than: HybridClock) -> Result<bool, PackError> {
    let mut found = false;
    index.visit(&keys::bucket(b'V', bucket), &mut |_, value| {
        let version = decode::<PackedVersion>("a version's row", value)?;
        found = version.metax.clock > than;
        Ok(if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(found)
}
