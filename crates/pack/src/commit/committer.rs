//! The one thread that changes anything: it takes what waits, decides it, and makes a group of it durable at once.
//!
//! # Invariants
//!
//! 1. A group is spooled and synced, then logged and synced, then shown by the index, then answered; the next one
//!    begins only after that. So whatever is decided is decided against all that was answered.
//! 2. No two commands of a group look at the same thing ([`Scope`]). Nor does one move a part behind
//!    another that may have ended the version with that part: the part would come back, and belong
//!    to nothing.
//! 3. Numbers and clocks are given once and grow. The number of a change that came to nothing is
//!    not given again by this process, but by the next one. So nothing that outlives the process
//!    may name a number that no durable record has.
//! 4. After a failed sync nothing is answered but that the store is not available.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use larder_env::{DiskError, DiskFile};
use larder_metalog::{LogError, Lsn};
use larder_objects::ObjectError;
use larder_types::{HybridClock, OpSeq};
use tokio::sync::{oneshot, watch};

use crate::bugs::{self, Bug};
use crate::commit::command::{Command, Scope};
use crate::commit::groups::Groups;
use crate::commit::in_flight::StandalonesInFlight;
use crate::commit::log::{LogRecordRef, PackLog};
use crate::commit::neighbours::Neighbours;
use crate::commit::plan::{KnownKeys, plan};
use crate::commit::policy::Packing;
use crate::commit::queue::{Answer, Queue, Request, Snapshot, Woken};
use crate::commit::slot::{Planned, Slot};
use crate::commit::spool::{Spool, UnitBytes};
use crate::commit::writers::{UnitWrite, write_lots};
use crate::counters::{Counters, add, count};
use crate::error::PackError;
use crate::format::entry::Container;
use crate::format::rows::{Applied, BlobRow};
use crate::format::upload_unit::UploadUnit;
use crate::ids::{BlobId, WorkerId};
use crate::index::Index;
use crate::limits::{
    FOOTER_BYTES_MAX, FOOTERS_BYTES_MAX, GROUP_BYTES_MAX, GROUP_CHANGES_MAX, LOG_BYTES_KEPT,
};

/// Time for which the log is idle before its last record is vouched for.
const COMMIT_MARK_AFTER: Duration = Duration::from_millis(100);

/// The parts of a store that the committer shares with the others.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) queue: Arc<Queue>,
    pub(crate) index: Arc<Index>,
    pub(crate) spool: Arc<Spool>,
    pub(crate) under_way: Arc<StandalonesInFlight>,
    pub(crate) marks: Arc<Marks>,
    pub(crate) counters: Arc<Counters>,
    /// Groups of the open blob.
    pub(crate) groups: Arc<AtomicUsize>,
    /// The other workers of the bucket, if it is shared.
    pub(crate) others: Option<Arc<dyn Neighbours>>,
    pub(crate) fatal: watch::Sender<Option<String>>,
    /// Milliseconds since 1970.
    pub(crate) now_ms: fn() -> u64,
}

impl Parts {
    /// The positions of a process that starts with an index that has reached `at`.
    pub(crate) fn of(
        (index, spool): (Arc<Index>, Arc<Spool>),
        at: &Applied,
        counters: Arc<Counters>,
        others: Option<Arc<dyn Neighbours>>,
        now_ms: fn() -> u64,
    ) -> Self {
        let marks = Arc::new(Marks::default());
        marks.applied.store(at.lsn, Ordering::Relaxed);
        Self {
            queue: Arc::default(),
            index,
            spool,
            under_way: Arc::default(),
            marks,
            counters,
            groups: Arc::default(),
            others,
            fatal: watch::Sender::new(None),
            now_ms,
        }
    }
}

/// The positions of the log that the index has reached, and the clock that it shows.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub(crate) applied: AtomicU64,
    pub(crate) flushed: AtomicU64,
    /// The clock of the last change of this process that is shown. A client that is answered finds
    /// that of its change here, or a later one: so others learn what to wait for.
    pub(crate) clock: AtomicU64,
}

impl Marks {
    /// Returns true if so much of the log waits for the index that it should be flushed.
    pub(crate) fn is_flush_due(&self) -> bool {
        let (applied, flushed) = (&self.applied, &self.flushed);
        let behind =
            applied.load(Ordering::Relaxed).saturating_sub(flushed.load(Ordering::Relaxed));
        behind >= LOG_BYTES_KEPT
    }
}

/// The limits at which a blob is full, and the policy by which bodies lie together in it.
#[derive(Debug, Clone)]
pub(crate) struct BlobLimits {
    pub(crate) blob_bytes: u64,
    pub(crate) spool_bytes: u64,
    pub(crate) flush_timeout: Duration,
    pub(crate) packing: Packing,
    /// Threads that write bodies of one group of changes.
    pub(crate) packing_threads: usize,
}

impl BlobLimits {
    /// Returns true if a blob with so much takes a body of so many bytes in a unit. An empty blob
    /// takes one of any size.
    fn fits(&self, bodies: &UnitBytes, unit: UploadUnit, bytes: u64) -> bool {
        let fits = |used: u64, most: u64| used == 0 || used + bytes <= most;
        // With its bundles it is no more than half of the spool: another one fills while it goes up.
        fits(bodies.of(unit), self.blob_bytes) && fits(bodies.total(), self.spool_bytes / 2)
    }
}

/// The reason for which a blob is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Full,
    Due,
    Asked,
}

/// The thread's state.
pub(crate) struct Committer {
    parts: Parts,
    limits: BlobLimits,
    worker: WorkerId,
    log: PackLog,
    /// The state after the last change that was decided; its number is the last that was given.
    at: Applied,
    /// The last number that a durable record has.
    recorded: OpSeq,
    waiting: VecDeque<Request>,
    groups: Groups,
}

/// A change of a group, with the reply that somebody waits for.
struct Member {
    planned: Planned,
    reply: oneshot::Sender<Answer>,
    /// The unit for which it brings a body, if it does.
    brings: Option<UploadUnit>,
    end: Option<Lsn>,
}

/// Changes that become durable together.
#[derive(Default)]
struct Group {
    members: Vec<Member>,
    scopes: BTreeSet<Scope>,
    bytes: u64,
    /// True if a member may end the parts of an object.
    ends_parts: bool,
}

impl Group {
    fn takes(&self, command: &Command, scopes: &[Scope], body_bytes: u64) -> bool {
        self.members.is_empty()
            || self.members.len() < GROUP_CHANGES_MAX
                && !(self.ends_parts && command.moves_part() && !bugs::planted(Bug::PartOutlives))
                && self.bytes + body_bytes <= GROUP_BYTES_MAX
                && !scopes.contains(&Scope::Everything)
                && !scopes.iter().any(|scope| self.scopes.contains(scope))
                && !self.scopes.contains(&Scope::Everything)
    }
}

impl Committer {
    pub(crate) fn new(
        parts: Parts,
        limits: BlobLimits,
        worker: WorkerId,
        log: PackLog,
        at: Applied,
    ) -> Self {
        let groups = Groups::new(limits.blob_bytes);
        let recorded = at.seq;
        Self { parts, limits, worker, log, at, recorded, waiting: VecDeque::new(), groups }
    }

    /// Runs until the queue is stopped and empty, or until nothing can be made durable any more.
    pub(crate) fn run(mut self) {
        if let Err(error) = self.serve() {
            tracing::error!(%error, "the store stops: nothing more can be made durable");
            self.parts.queue.stop();
            self.parts.fatal.send_replace(Some(error.to_string()));
            // Callers that wait learn of it from the replies that are dropped.
            let mut rest = VecDeque::new();
            self.parts.queue.take(&mut rest, Some(Instant::now()));
        }
    }

    fn serve(&mut self) -> Result<(), PackError> {
        while self.turn(self.due())? {}
        Ok(())
    }

    /// Does what waits first, or waits for it until `due`. False once it is stopped and nothing waits.
    pub(crate) fn turn(&mut self, due: Option<Instant>) -> Result<bool, PackError> {
        match self.parts.queue.take(&mut self.waiting, due) {
            Woken::Asked => self.next()?,
            Woken::Due => self.idle()?,
            Woken::Stopped => {
                self.log.write_commit_mark()?;
                return Ok(false);
            }
        }
        self.seal_if_due();
        Ok(true)
    }

    /// The time of the next work that no request triggers.
    fn due(&self) -> Option<Instant> {
        let since = self.parts.spool.open().and_then(|open| open.since);
        let seal = since.map(|since| since + self.limits.flush_timeout);
        let write_commit_mark =
            self.log.lacks_commit_mark().then(|| Instant::now() + COMMIT_MARK_AFTER);
        [seal, write_commit_mark].into_iter().flatten().min()
    }

    fn idle(&mut self) -> Result<(), PackError> {
        if self.log.lacks_commit_mark() {
            self.log.write_commit_mark()?;
        }
        Ok(())
    }

    fn seal_if_due(&mut self) {
        let due = |since: Instant| since.elapsed() >= self.limits.flush_timeout;
        if self.parts.spool.open().and_then(|open| open.since).is_some_and(due) {
            self.seal(Reason::Due);
        }
    }

    /// Closes the open blob with its bundles, if there is one; gives the number of the last one.
    fn seal(&mut self, reason: Reason) -> u64 {
        if self.parts.spool.open().is_some() {
            let counters = &self.parts.counters;
            count(match reason {
                Reason::Full => &counters.sealed_full,
                Reason::Due => &counters.sealed_due,
                Reason::Asked => &counters.sealed_on_request,
            });
        }
        self.groups.close();
        self.parts.groups.store(0, Ordering::Relaxed);
        self.parts.spool.seal()
    }

    /// Does what waits first: one request of the store's own, or a group of changes.
    fn next(&mut self) -> Result<(), PackError> {
        match self.waiting.pop_front() {
            Some(Request::Uploaded { seq, row, reply }) => {
                self.uploaded(seq, row)?;
                drop(reply);
                self.free_log()
            }
            Some(Request::Forget { blob, reply }) => {
                self.parts.index.forget_blob(blob)?;
                drop(reply);
                Ok(())
            }
            Some(Request::ForgetBundle { own, process, reply }) => {
                // A bundle that is counted wrong is not removed; nothing else waits for it.
                let _stopped = reply.send(self.parts.index.forget_bundle(own, process));
                Ok(())
            }
            Some(Request::Snapshot { reply }) => {
                let rows = self.parts.index.snapshot()?;
                let at = Applied { seq: self.recorded, ..self.at };
                let _nobody_waits = reply.send(Snapshot { rows, at });
                Ok(())
            }
            Some(Request::UnwantedSince { own, reply }) => {
                let holders = self.parts.index.holders(Container::Own(own), 0, 1)?;
                let is_unwanted = holders.is_empty() && !self.parts.under_way.has(own);
                let _nobody_waits = reply.send(is_unwanted.then_some(self.at.blob));
                Ok(())
            }
            Some(Request::Seal { reply }) => {
                let _nobody_waits = reply.send(self.seal(Reason::Asked));
                Ok(())
            }
            Some(change @ Request::Change { .. }) => {
                self.waiting.push_front(change);
                let group = self.gather();
                if group.members.is_empty() {
                    return Ok(());
                }
                self.commit(group)?;
                self.log.prepare()?;
                self.free_log()
            }
            None => Ok(()),
        }
    }

    /// Decides what may be decided side by side.
    fn gather(&mut self) -> Group {
        let mut group = Group::default();
        let mut blob = self.parts.spool.open();
        let mut bodies = blob.map_or_else(UnitBytes::default, |open| open.bodies);
        while let Some(request) = self.waiting.pop_front() {
            let Request::Change { command, reply } = request else {
                self.waiting.push_front(request);
                break;
            };
            let (scopes, body_bytes) = (command.scopes(), command.body_bytes());
            let (mut unit, name) = self.upload_unit_of(&command);
            let full = !self.limits.fits(&bodies, unit, body_bytes)
                || blob.is_some_and(|open| open.footer_bytes >= FOOTER_BYTES_MAX);
            if !group.takes(&command, &scopes, body_bytes) || full && !group.members.is_empty() {
                self.waiting.push_front(Request::Change { command, reply });
                break;
            }
            if full {
                self.seal(Reason::Full);
                (blob, bodies) = (None, UnitBytes::default());
                unit = name.as_deref().map_or(UploadUnit::SHARED, |name| self.groups.unit(name));
            }
            let seq = blob.map_or(self.at.blob + 1, |open| open.seq);
            let container = unit.container(BlobId { worker: self.worker, seq });
            let may_end_parts = command.may_end_parts();
            match self.decide(*command, container, bodies.of(unit), group.bytes) {
                Ok(planned) => {
                    group.bytes += body_bytes;
                    group.scopes.extend(scopes);
                    group.ends_parts |= may_end_parts;
                    bodies.add(unit, body_bytes);
                    if let Some(name) = name {
                        self.groups.add(&name, unit, body_bytes);
                    }
                    let brings = (body_bytes > 0).then_some(unit);
                    group.members.push(Member { planned, reply, brings, end: None });
                }
                Err(refusal) => {
                    let _nobody_waits = reply.send(Err(refusal));
                }
            }
        }
        group
    }

    /// The unit for which a command brings a body, and the group that the body is of, if it is of one.
    fn upload_unit_of(&self, command: &Command) -> (UploadUnit, Option<String>) {
        let body_bytes = command.body_bytes();
        let packed = command.packed_for().filter(|_| body_bytes > 0);
        let name = packed.and_then(|(bucket, key)| {
            self.limits.packing.group(bucket.as_str(), key.as_str(), body_bytes)
        });
        let unit = name.as_deref().map_or(UploadUnit::SHARED, |name| self.groups.unit(name));
        (unit, name.map(Cow::into_owned))
    }

    fn decide(
        &mut self,
        command: Command,
        container: Container,
        offset: u64,
        group_bytes: u64,
    ) -> Result<Planned, ObjectError> {
        self.admit(&command, group_bytes)?;
        let others = self.parts.others.as_deref();
        // Held until it is planned.
        let deciding = others.map(|others| others.peer_clock().decide());
        let clock_floor = deciding.as_ref().map_or(HybridClock(0), |deciding| deciding.clock);
        let slot = Slot {
            worker: self.worker,
            seq: self.at.seq.next(),
            clock: self.at.clock.max(clock_floor).advance((self.parts.now_ms)()),
            container,
            offset,
        };
        let planned = plan(command, KnownKeys { index: &self.parts.index, others }, &slot)?;
        (self.at.seq, self.at.clock) = (slot.seq, slot.clock);
        Ok(planned)
    }

    /// Refuses a command for which there is no room.
    fn admit(&self, command: &Command, group_bytes: u64) -> Result<(), ObjectError> {
        let (bodies, footers) = self.parts.spool.waiting_bytes();
        let bodies = bodies + group_bytes + command.body_bytes();
        if footers >= FOOTERS_BYTES_MAX {
            return Err(ObjectError::SlowDown);
        }
        if let Command::Relocate { .. } = command {
            // Puts of clients go before bodies that only move.
            let is_crowded = bodies > self.limits.spool_bytes / 2 || self.log.is_full();
            return if is_crowded { Err(ObjectError::SlowDown) } else { Ok(()) };
        }
        match command.only_ends() {
            // Deletes free nothing here; the log's last room is for blobs that go up, which does.
            true if self.log.is_full() => Err(ObjectError::SlowDown),
            true => Ok(()),
            false if bodies > self.limits.spool_bytes => Err(ObjectError::SlowDown),
            false if self.log.is_full() => Err(ObjectError::Full),
            false => Ok(()),
        }
    }

    fn commit(&mut self, mut group: Group) -> Result<(), PackError> {
        let open = self.parts.spool.open();
        let blob = open.map_or(self.at.blob + 1, |open| open.seq);
        let first = self.log.end();
        let files = match group.bytes {
            0 => BTreeMap::new(),
            _ => self.write_bodies(&mut group, blob, open.map(|open| open.bodies))?,
        };
        if files.is_empty() {
            group.bytes = 0;
        }
        self.append(&mut group, blob)?;
        self.log.commit(self.at.seq)?;
        let last = group.members.iter().rfind(|member| member.end.is_some());
        self.recorded = last.map_or(self.recorded, |member| member.planned.entry.seq);
        count(&self.parts.counters.groups);
        add(&self.parts.counters.packed_bytes, group.bytes);
        for Member { planned: Planned { bucket, entry, done, .. }, reply, brings, end } in
            group.members
        {
            let Some(end) = end else { continue };
            self.at.blob = blob;
            self.at.lsn = end.0;
            count(&self.parts.counters.changes);
            // The blob has it before the index shows it, so that readers find the body.
            let file = brings.and_then(|unit| files.get(&unit));
            self.parts.spool.add(blob, bucket.as_ref(), &entry, first, file);
            let here = BlobId { worker: self.worker, seq: blob };
            self.parts.index.apply(here, &entry, Some(&self.at))?;
            self.parts.marks.clock.store(entry.clock.0, Ordering::Relaxed);
            let _nobody_waits = reply.send(Ok((done, blob)));
        }
        self.parts.marks.applied.store(self.at.lsn, Ordering::Relaxed);
        self.parts.groups.store(self.groups.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Writes the bodies of a group, one behind the other, into the files of their units. If the disk is full, the
    /// requests with bodies fail, and no file is returned.
    fn write_bodies(
        &mut self,
        group: &mut Group,
        blob: u64,
        open: Option<UnitBytes>,
    ) -> Result<BTreeMap<UploadUnit, Arc<dyn DiskFile>>, PackError> {
        let open = open.unwrap_or_default();
        let mut units: BTreeMap<UploadUnit, UnitWrite> = BTreeMap::new();
        for member in &mut group.members {
            let Some(unit) = member.brings else { continue };
            let new = || UnitWrite { blob, unit, offset: open.of(unit), pieces: Vec::new() };
            let pieces = std::mem::take(&mut member.planned.pieces);
            units.entry(unit).or_insert_with(new).pieces.extend(pieces);
        }
        let threads = self.limits.packing_threads;
        match write_lots(&self.parts.spool, units.into_values().collect(), threads) {
            Ok(files) => Ok(files),
            Err(DiskError::Full { .. }) => {
                let members = std::mem::take(&mut group.members).into_iter();
                let (refused, kept): (Vec<_>, Vec<_>) =
                    members.partition(|member| member.brings.is_some());
                group.members = kept;
                for member in refused {
                    let _nobody_waits = member.reply.send(Err(ObjectError::Full));
                }
                Ok(BTreeMap::new())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn append(&mut self, group: &mut Group, blob: u64) -> Result<(), PackError> {
        for member in &mut group.members {
            let Planned { bucket, entry, .. } = &member.planned;
            let seq = entry.seq;
            let record = match bucket {
                Some(bucket) => LogRecordRef::Changed { blob, bucket, entry },
                None => LogRecordRef::Noted { blob, entry },
            };
            match self.log.append(seq, &record) {
                Ok(end) => member.end = Some(end),
                Err(LogError::Full { .. } | LogError::Busy) => {
                    let (replaced, _) = oneshot::channel();
                    let reply = std::mem::replace(&mut member.reply, replaced);
                    let _nobody_waits = reply.send(Err(ObjectError::Full));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// A blob is in the backend: that is made durable before its file goes.
    fn uploaded(&mut self, seq: u64, row: BlobRow) -> Result<(), PackError> {
        self.at.seq = self.at.seq.next();
        let end = self.log.append(self.at.seq, &LogRecordRef::Uploaded { blob: seq, row })?;
        self.log.commit(self.at.seq)?;
        self.recorded = self.at.seq;
        self.at.lsn = end.0;
        let id = BlobId { worker: self.worker, seq };
        self.parts.index.add_blob(id, &row, Some(&self.at))?;
        self.parts.marks.applied.store(self.at.lsn, Ordering::Relaxed);
        Ok(self.parts.spool.remove(seq)?)
    }

    /// Gives up the log that neither the index nor a blob that waits needs.
    fn free_log(&mut self) -> Result<(), PackError> {
        let flushed = Lsn(self.parts.marks.flushed.load(Ordering::Relaxed));
        let needed = self.parts.spool.first_needed().unwrap_or(flushed);
        Ok(self.log.free_below(flushed.min(needed))?)
    }
}
