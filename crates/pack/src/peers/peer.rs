//! Another worker as this one follows it: an index of all its changes received so far, and their position.
//!
//! # Invariants
//!
//! 1. The index of another worker has a prefix of its changes, in their order, as its own index has them.
//! 2. The position of the index changes with the index, in one batch. Changes that the worker told
//!    itself are durable before the index shows them (`received_log.rs`): a process that is killed goes on
//!    with all that it has shown.
//! 3. An index is made anew when the worker's numbers have a gap that does not close, and when
//!    another directory has taken it over. Changes that were heard and never uploaded are in none
//!    of the new index, and are written down first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use larder_kv::Batch;
use larder_types::{HybridClock, OpSeq};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::Instant;

use super::feed::FeedPosition;
use super::received_log::{ReceivedEntries, ReceivedLog};
use crate::backend::Backend;
use crate::bugs::{self, Bug};
use crate::clock::SuspendAwareInstant;
use crate::commit::peer_clock::PeerClock;
use crate::error::PackError;
use crate::format::entry::{Change, Entry};
use crate::format::rows::{Applied, BlobRow};
use crate::ids::{BlobId, WorkerId};
use crate::index::Index;
use crate::limits::MARKS_MAX;
use crate::owner::announce::Announcement;
use crate::owner::counting::{self, Counting};
use crate::owner::name::WorkerName;
use crate::read::Bodies;

/// Another worker.
pub(crate) struct Peer {
    pub(crate) name: WorkerName,
    /// Where its things lie.
    pub(crate) backend: Backend,
    known: RwLock<Option<Arc<FollowedIndex>>>,
    announcement: Arc<Mutex<Announcement>>,
    pace: Mutex<PeerTimes>,
    gaps: AtomicU32,
    /// The records of its processes that were read.
    records: counting::Known,
    /// Held while the index is changed.
    pub(super) following: tokio::sync::Mutex<()>,
}

/// The knowledge of a worker since the same claim.
pub(crate) struct FollowedIndex {
    pub(crate) worker: WorkerId,
    pub(crate) bodies: Arc<Bodies>,
    peer_clock: Arc<PeerClock>,
    /// Held while entries go into the file and the index, and while the index is made durable and the file emptied.
    received: Mutex<ReceivedLog>,
    /// True if the index has something that is neither durable nor in the file.
    unlogged: AtomicBool,
    /// The position of its index. `blob` is the last blob of which everything is known. `lsn` is
    /// how many bytes of the entries of the next one are known, and `rebuilt` is the last blob that
    /// is known to be in the bucket.
    pub(super) at: Mutex<Applied>,
    /// The last change that is known to be in the bucket.
    uploaded: Mutex<Mark>,
    /// The clock of the last change that is known.
    reached: watch::Sender<HybridClock>,
}

/// The times at which it was heard, and what was in the bucket then.
struct PeerTimes {
    /// The time at which the last look at the bucket began that found everything; `None` before the
    /// first.
    looked: Option<SuspendAwareInstant>,
    /// The time at which it answered last itself.
    received: Option<Instant>,
    /// Entries that it had beyond what is known here, when it answered last.
    behind_bytes: u64,
    /// The marks of what was in the bucket, and since when that is known; oldest first.
    marks: VecDeque<(Instant, Mark)>,
}

/// The last change through which everything is in the bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) worker: WorkerId,
    pub(crate) seq: OpSeq,
    pub(crate) clock: HybridClock,
}

impl Peer {
    /// `absent` is when the bucket was last seen without it, if it was.
    pub(crate) fn new(
        announcement: Announcement,
        root: &Backend,
        absent: Option<SuspendAwareInstant>,
    ) -> Self {
        let marks = VecDeque::new();
        let pace = PeerTimes { looked: absent, received: None, behind_bytes: 0, marks };
        Self {
            name: announcement.name.clone(),
            backend: root.below(&announcement.prefix),
            known: RwLock::new(None),
            announcement: Arc::new(Mutex::new(announcement)),
            gaps: AtomicU32::new(0),
            records: counting::Known::default(),
            pace: Mutex::new(pace),
            following: tokio::sync::Mutex::default(),
        }
    }

    /// The knowledge of it; `None` until it was looked at.
    pub(crate) fn known(&self) -> Option<Arc<FollowedIndex>> {
        self.known.read().clone()
    }

    pub(super) fn show(&self, known: Arc<FollowedIndex>) {
        *self.known.write() = Some(known);
    }

    /// Its last announcement.
    pub(crate) fn announcement(&self) -> Announcement {
        self.announcement.lock().clone()
    }

    /// The same for a link that goes on asking it.
    pub(super) fn peer_clock(&self) -> Arc<Mutex<Announcement>> {
        self.announcement.clone()
    }

    /// Takes a new announcement. One of a worker that was superseded comes too late.
    pub(super) fn announced(&self, announcement: Announcement) {
        let mut last = self.announcement.lock();
        if announcement.worker >= last.worker {
            *last = announcement;
        }
    }

    /// Records of its processes that were read.
    pub(super) fn records(&self) -> &counting::Known {
        &self.records
    }

    /// Decides which of its blobs count, as the bucket says now.
    pub(super) async fn counting(&self) -> Result<Counting, PackError> {
        Counting::read(&self.backend, &self.records).await
    }

    /// The number of looks in a row that found that a blob is missing.
    pub(super) fn gaps(&self) -> u32 {
        self.gaps.load(Ordering::Relaxed)
    }

    /// The same, with this one.
    pub(super) fn count_gap(&self) -> u32 {
        self.gaps.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn no_gap(&self) {
        self.gaps.store(0, Ordering::Relaxed);
    }

    /// Everything that was in the bucket at `begun` is known.
    pub(super) fn looked(&self, begun: SuspendAwareInstant, mark: Mark, spacing: Duration) {
        let mut pace = self.pace.lock();
        pace.looked = Some(begun);
        let is_due = pace.marks.back().is_none_or(|(at, last)| {
            *last != mark && begun.steady.duration_since(*at) >= spacing
                || last.worker != mark.worker
        });
        if is_due {
            pace.marks.push_back((begun.steady, mark));
        }
        while pace.marks.len() > MARKS_MAX {
            pace.marks.pop_front();
        }
    }

    /// The mark of what has been in the bucket for as long as `age`, as far as is known.
    pub(crate) fn aged(&self, age: Duration) -> Mark {
        let pace = self.pace.lock();
        let old = pace.marks.iter().rev().find(|(at, _)| at.elapsed() >= age);
        old.map_or_else(Mark::default, |(_, mark)| *mark)
    }

    /// Time since the last look began that found everything; longer than ever if none did.
    pub(crate) fn unseen(&self) -> Duration {
        self.pace.lock().looked.map_or(Duration::MAX, |looked| looked.elapsed())
    }

    /// Time since it answered itself; `None` if it never did.
    pub(crate) fn silent_for(&self) -> Option<Duration> {
        self.pace.lock().received.map(|received| received.elapsed())
    }

    pub(super) fn answered(&self, behind_bytes: u64) {
        let mut pace = self.pace.lock();
        pace.received = Some(Instant::now());
        pace.behind_bytes = behind_bytes;
    }

    /// Bytes of changes that it had and this worker did not, when it answered last.
    pub(crate) fn behind_bytes(&self) -> u64 {
        self.pace.lock().behind_bytes
    }
}

impl FollowedIndex {
    pub(super) fn new(
        worker: WorkerId,
        (bodies, received): (Bodies, ReceivedLog),
        at: Applied,
        peer_clock: Arc<PeerClock>,
    ) -> Result<Self, PackError> {
        let last = BlobId { worker, seq: at.rebuilt };
        let content = bodies.index.blob_content(last)?;
        let mark = match content {
            // Of an index just made everything is in the bucket.
            _ if at.lsn == 0 && at.blob == at.rebuilt => {
                Mark { worker, seq: at.seq, clock: at.clock }
            }
            Some(content) => Mark { worker, seq: content.last, clock: content.clock },
            None => Mark { worker, ..Mark::default() },
        };
        Ok(Self {
            worker,
            bodies: Arc::new(bodies),
            received: Mutex::new(received),
            unlogged: AtomicBool::new(false),
            peer_clock,
            reached: watch::Sender::new(at.clock),
            at: Mutex::new(at),
            uploaded: Mutex::new(mark),
        })
    }

    pub(crate) fn index(&self) -> &Index {
        &self.bodies.index
    }

    /// The position of its index.
    pub(crate) fn at(&self) -> Applied {
        *self.at.lock()
    }

    /// From where on it is asked for more.
    pub(crate) fn asks(&self) -> Result<FeedPosition, PackError> {
        let (at, mut last) = (self.at(), None);
        let blob = at.blob + 1;
        if at.lsn > 0 {
            let content = self.index().blob_content(self.blob(blob))?;
            last = content.map(|content| (content.last, content.clock));
        }
        Ok(FeedPosition { blob, from: at.lsn, last })
    }

    /// The last change that is known to be in the bucket.
    pub(crate) fn mark(&self) -> Mark {
        *self.uploaded.lock()
    }

    /// Takes entries that the worker told, from a byte of a blob's entries on: first into the file.
    pub(super) fn hear(
        &self,
        name: &WorkerName,
        received: &ReceivedEntries,
    ) -> Result<(), PackError> {
        let entries = received.parse(name)?;
        let mut log = self.received.lock();
        if self.unlogged.load(Ordering::Relaxed) {
            self.settle(&mut log)?;
        }
        if !bugs::planted(Bug::ReceivedNotStored) {
            log.append(received)?;
        }
        self.take_all(received, entries)
    }

    /// Takes what was heard before the process ended, and not made durable in the index.
    pub(super) fn recall(&self, name: &WorkerName) -> Result<(), PackError> {
        let mut log = self.received.lock();
        for received in log.read()? {
            let at = self.at();
            if received.blob == at.blob + 1 && received.from <= at.lsn {
                let entries = received.parse(name)?;
                self.take_all(&received, entries)?;
            }
        }
        Ok(())
    }

    fn take_all(
        &self,
        received: &ReceivedEntries,
        entries: Vec<(Entry, u64)>,
    ) -> Result<(), PackError> {
        for (entry, end) in entries {
            self.take(received.blob, &entry, end)?;
        }
        if received.is_whole { self.whole(received.blob) } else { Ok(()) }
    }

    /// Something comes from the bucket, past the file.
    pub(super) fn takes_unlogged(&self) {
        self.unlogged.store(true, Ordering::Relaxed);
    }

    /// Bytes of what was heard and is not durable in the index.
    pub(super) fn received_bytes(&self) -> u64 {
        self.received.lock().len()
    }

    /// Takes a change of its blob `seq`; one that is known already does nothing. `heard` is how many bytes of the
    /// blob's entries are known then.
    pub(super) fn take(&self, seq: u64, entry: &Entry, received: u64) -> Result<(), PackError> {
        let mut at = self.at();
        if entry.seq <= at.seq {
            return Ok(());
        }
        at.seq = entry.seq;
        at.clock = at.clock.max(entry.clock);
        at.lsn = received;
        let index = self.index();
        self.peer_clock.show(entry.clock, || index.apply(self.blob(seq), entry, Some(&at)))?;
        *self.at.lock() = at;
        self.reached.send_replace(at.clock);
        if let Change::Retired { run, .. } = &entry.change {
            // Only the owner needs to know of them until they are gone.
            let retired = index.retired()?.into_iter().map(|(id, _)| id);
            for id in retired.filter(|id| run.has(*id)) {
                index.forget_blob(id)?;
            }
        }
        Ok(())
    }

    /// Waits until every change up to a clock is known.
    pub(crate) async fn reaches(&self, clock: HybridClock) {
        let mut reached = self.reached.subscribe();
        // The sender lives as long as this.
        let _reached = reached.wait_for(|reached| *reached >= clock).await;
    }

    /// Everything of its blob `seq` is known.
    pub(super) fn whole(&self, seq: u64) -> Result<(), PackError> {
        self.step(|at| (at.blob, at.lsn) = (at.blob.max(seq), 0))
    }

    /// Its blob `seq`, of which everything is known, is in the bucket.
    pub(super) fn uploaded(&self, seq: u64, row: &BlobRow) -> Result<(), PackError> {
        self.takes_unlogged();
        let mut at = self.at();
        assert!(seq <= at.blob, "a blob is shown once all of it is known");
        at.rebuilt = at.rebuilt.max(seq);
        match self.index().blob_content(self.blob(seq))? {
            Some(content) => {
                self.index().add_blob(self.blob(seq), row, Some(&at))?;
                let mut mark = self.uploaded.lock();
                (mark.seq, mark.clock) =
                    (mark.seq.max(content.last), mark.clock.max(content.clock));
            }
            // Retired by a change that was heard before; its bundles may be there.
            None => {
                let batch = Batch::new();
                self.index().add_bundles(self.blob(seq), row.process, batch, Some(&at))?;
            }
        }
        *self.at.lock() = at;
        Ok(())
    }

    fn step(&self, change: impl FnOnce(&mut Applied)) -> Result<(), PackError> {
        let mut at = self.at();
        change(&mut at);
        self.index().set_applied(&at)?;
        *self.at.lock() = at;
        Ok(())
    }

    /// Makes durable what was taken.
    pub(super) fn flush(&self) -> Result<(), PackError> {
        self.settle(&mut self.received.lock())?;
        while self.index().maintain()? == larder_kv::Progress::Worked {}
        Ok(())
    }

    fn settle(&self, log: &mut ReceivedLog) -> Result<(), PackError> {
        if self.index().unflushed_bytes() > 0 {
            self.index().flush()?;
        }
        log.clear()?;
        self.unlogged.store(false, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn blob(&self, seq: u64) -> BlobId {
        BlobId { worker: self.worker, seq }
    }
}
