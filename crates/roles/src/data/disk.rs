//! A disk of a data server: one thread, which writes and syncs groups of commands.
//!
//! # Invariants
//!
//! 1. Commands reach the volume in the order in which they were submitted: a control command is answered
//!    after every write submitted before it has drained.
//! 2. Writes that wait are bounded in bytes and in number. Beyond that a write is refused at once and not
//!    executed: a proxy of a cluster repeats it, and on a single node the client is told to slow down. Requests of
//!    PGs are never refused while the thread runs. A PG has at most a few of them under way for each of its LVs
//!    and open puts, which are bounded.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use larder_env::Disk;
use larder_env::threads::Condvar;
use larder_protocol::{DataAnswer, DataRequest};
use larder_types::{BootId, Chunk, Extent, Grant, LvId, MapVersion, PgId};
use larder_volume::limits::GROUP_COMMANDS_MAX;
use larder_volume::{
    Action, Answer, Command, Completion, ReadError, Refusal, SumRange, Volume, VolumeReader,
    verify_range, whole_sums,
};
use parking_lot::Mutex;

use crate::breakdown::{BySize, CountsStatus, DiskOps};
use crate::limits::{
    DISK_GROUP_BYTES_MAX, DISK_QUEUE_BYTES_MAX, DISK_QUEUE_COMMANDS_MAX, LITTLE_ROOM_PART,
    LV_FREE_BYTES_MIN, NEARLY_FULL_BYTES, RESERVE_BYTES, RESERVE_LAST_PART, RESERVE_PART,
};
use crate::manager::LvRecord;
use crate::ticket::{Ticket, WriteOutcome};
use crate::wire::CopyState;

/// The receiver of a command's completion.
enum Concerned {
    /// A put, whose data one replica writes.
    Put { ticket: Arc<Ticket>, replica: usize, _client: Client },
    /// A PG, for a request of its own.
    Pg { pg: PgId, lv: LvId, replica: usize, grant: Option<Grant> },
    /// A caller's callback.
    OnComplete(OnComplete),
    /// None; a failure is logged.
    Nobody,
}

/// A callback that gets the result of a command. It runs on the disk's thread and must not block.
pub(crate) type OnComplete = Box<dyn FnOnce(Result<Answer, Refusal>) + Send>;

/// Selects the counts of one kind of operation.
pub(crate) type OfKind = fn(&DiskOps) -> &BySize;

/// Gives a PG's machine the answer of one of its replicas, on the disk's thread.
pub(crate) type ToPg = Box<dyn Fn(PgId, LvId, usize, DataAnswer) + Send + Sync>;

/// Counts a client's request as under way until this is dropped: background work yields to such requests.
pub(crate) struct Client(Arc<AtomicU32>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Action, Concerned, usize)>,
    bytes: usize,
    stopped: bool,
}

/// The write of a put's data to one replica.
pub(crate) struct PutWrite {
    pub(crate) extents: Vec<Extent>,
    pub(crate) data: Vec<Bytes>,
    pub(crate) len: u32,
    pub(crate) replica: usize,
}

/// The counts of what the disk did, for metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskCounters {
    /// Groups written and synced.
    pub groups: u64,
    /// Commands in them.
    pub commands: u64,
    /// Bytes of data in them.
    pub bytes: u64,
    /// Nanoseconds spent writing and syncing.
    pub group_ns: u64,
    /// Commands that wait.
    pub queued_commands: u64,
    /// Bytes of data that wait.
    pub queued_bytes: u64,
    /// Bytes free in the file system.
    pub free_bytes: u64,
}

/// A data server with one disk.
pub struct DataServer {
    boot: BootId,
    queue: Mutex<Queue>,
    ready: Condvar,
    reader: VolumeReader,
    disk: Arc<dyn Disk>,
    pgs: OnceLock<ToPg>,
    reserve_bytes: u64,
    /// With less free nothing rests (ADR 76).
    little_bytes: u64,
    free_bytes: AtomicU64,
    /// Bytes that the disk's thread has reserved for PVs.
    held_bytes: AtomicU64,
    broken: AtomicBool,
    /// Requests of clients under way.
    clients: Arc<AtomicU32>,
    groups: AtomicU64,
    commands: AtomicU64,
    bytes: AtomicU64,
    group_ns: AtomicU64,
    ops: DiskOps,
}

impl DataServer {
    /// A server for an open volume that lies on `disk`, a file system of `capacity_bytes`.
    ///
    /// # Errors
    /// If the free space cannot be read.
    pub fn new(
        disk: Arc<dyn Disk>,
        capacity_bytes: u64,
        volume: &Volume,
        boot: BootId,
    ) -> Result<Arc<Self>, larder_env::DiskError> {
        let free = disk.free_bytes()?;
        let reserve_bytes = RESERVE_BYTES.min(capacity_bytes / RESERVE_PART);
        Ok(Arc::new(Self {
            boot,
            queue: Mutex::new(Queue::default()),
            ready: Condvar::new(),
            reader: volume.reader(),
            disk,
            pgs: OnceLock::new(),
            reserve_bytes,
            little_bytes: reserve_bytes + capacity_bytes / LITTLE_ROOM_PART,
            free_bytes: AtomicU64::new(free),
            held_bytes: AtomicU64::new(volume.counters().provisioned_bytes),
            broken: AtomicBool::new(false),
            clients: Arc::default(),
            groups: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            group_ns: AtomicU64::new(0),
            ops: DiskOps::default(),
        }))
    }

    /// Sends the answers to PGs' requests through `pgs` from now on.
    pub(crate) fn answer_to(&self, pgs: ToPg) {
        assert!(self.pgs.set(pgs).is_ok(), "answers go to one meta server");
    }

    /// The id of this run.
    #[must_use]
    pub fn boot(&self) -> BootId {
        self.boot
    }

    /// Returns true if all new data is refused, so that the log and the index keep room for deletes. A disk that is
    /// less full still takes new data where deletes have freed space.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.free_bytes.load(Ordering::Relaxed) < self.reserve_bytes / RESERVE_LAST_PART
    }

    /// Bytes of the file system that new data may still take: the free ones, less the reserve of log and index.
    #[must_use]
    pub fn spare_bytes(&self) -> u64 {
        self.free_bytes.load(Ordering::Relaxed).saturating_sub(self.reserve_bytes)
    }

    /// Bytes reserved for PVs, as far as known.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Returns true if there is no room for another LV: little is left of what data may take.
    #[must_use]
    pub fn lacks_room(&self) -> bool {
        self.free_bytes.load(Ordering::Relaxed) < self.reserve_bytes + LV_FREE_BYTES_MIN
    }

    /// Returns true if little is left of what data may take: freed space is used again at once, so that the rest is there for
    /// groups that have freed nothing.
    pub(crate) fn has_little_room(&self) -> bool {
        self.free_bytes.load(Ordering::Relaxed) < self.little_bytes
    }

    /// Returns true if the disk failed: it accepts no more commands until the process starts again.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Returns true if the free space is within [`NEARLY_FULL_BYTES`] of the reserve.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.free_bytes.load(Ordering::Relaxed) < self.reserve_bytes + NEARLY_FULL_BYTES
    }

    /// Reads the free space of the file system.
    pub(crate) fn measure_free_space(&self) {
        if let Ok(free) = self.disk.free_bytes() {
            self.free_bytes.store(free, Ordering::Relaxed);
        }
    }

    /// Counts a client's request, which begins.
    pub(crate) fn client(&self) -> Client {
        self.clients.fetch_add(1, Ordering::Relaxed);
        Client(self.clients.clone())
    }

    /// Requests of clients that are under way: writes, and reads that the page cache could not answer.
    #[must_use]
    pub fn clients(&self) -> u32 {
        self.clients.load(Ordering::Relaxed)
    }

    /// Its operations on the disk that succeeded, by size.
    #[must_use]
    pub fn ops(&self) -> &DiskOps {
        &self.ops
    }

    /// The counts of [`DataServer::ops`] now, for a sum over servers.
    #[must_use]
    pub fn counts_now(&self) -> CountsStatus {
        self.ops.now()
    }

    /// Compares a copy with its checksums, past the page cache; blocks.
    pub(crate) fn verify_copy(&self, chunk: &Chunk) -> CopyState {
        let compared = self.reader.verify(chunk);
        if compared.is_ok() {
            self.ops.verify.note(chunk.len.into());
        }
        match compared {
            Ok(Ok(())) => CopyState::Right,
            Ok(Err(mismatch)) => {
                tracing::debug!(lv = %chunk.lv, grant = ?chunk.grant, %mismatch, "a copy failed verification");
                CopyState::Damaged
            }
            Err(error) => {
                tracing::warn!(lv = %chunk.lv, grant = ?chunk.grant, %error, "a copy cannot be verified");
                CopyState::Unreadable
            }
        }
    }

    /// Reads whole checksummed pieces of a chunk, and verifies them; blocks.
    ///
    /// # Errors
    /// The state of a copy that is not right.
    pub(crate) fn read_verified(
        &self,
        chunk: &Chunk,
        range: Range<u32>,
    ) -> Result<Bytes, CopyState> {
        let sums = whole_sums(chunk, range);
        let read = self.reader.read(chunk.lv, &chunk.extents, sums.from_byte, sums.len);
        let bytes = read.map_err(|error| {
            tracing::debug!(lv = %chunk.lv, %error, "a chunk cannot be read");
            CopyState::Unreadable
        })?;
        self.ops.read_copy.note(bytes.len() as u64);
        match verify_range(chunk, sums.first_sum, &bytes) {
            Ok(()) => Ok(bytes),
            Err(_) => Err(CopyState::Damaged),
        }
    }

    /// Writes a put's data. The ticket gets the outcome.
    pub(crate) fn write(&self, lv: LvId, grant: Grant, write: PutWrite, ticket: &Arc<Ticket>) {
        let PutWrite { extents, data, len, replica } = write;
        let concerned = Concerned::Put { ticket: ticket.clone(), replica, _client: self.client() };
        let action = Action::Write { lv, grant, extents, data, len };
        self.submit(action, concerned, len as usize);
    }

    /// Carries out a PG's request.
    pub(crate) fn request(&self, pg: PgId, lv: LvId, replica: usize, request: DataRequest) {
        let (action, grant) = action_of(lv, request);
        self.submit(action, Concerned::Pg { pg, lv, replica, grant }, 0);
    }

    /// Gives an LV its PVs for good: a single node's map never gives them to another.
    pub(crate) fn create(&self, record: &LvRecord) {
        for (replica, place) in record.replicas.iter().enumerate() {
            let (pv, lv, replica) = (place.pv, record.lv, replica as u8);
            let action = Action::CreatePv { pv, lv, replica, map: MapVersion(0) };
            self.submit(action, Concerned::Nobody, 0);
        }
    }

    /// Carries out another process's request, which has `bytes` of data.
    pub(crate) fn perform(&self, action: Action, bytes: usize, then: OnComplete) {
        self.submit(action, Concerned::OnComplete(then), bytes);
    }

    /// Reads bytes of extents, unverified, if the page cache has them; counted in `counts`.
    pub(crate) fn read_raw_cached(
        &self,
        lv: LvId,
        extents: &[Extent],
        range: Range<u32>,
        counts: OfKind,
    ) -> Result<Option<Bytes>, ReadError> {
        let read = self.reader.read_cached(lv, extents, range.start, range.len() as u32);
        read.inspect(|bytes| self.note_cached(bytes.as_ref(), counts))
    }

    fn note_cached(&self, bytes: Option<&Bytes>, counts: OfKind) {
        if let Some(bytes) = bytes {
            counts(&self.ops).note(bytes.len() as u64);
        }
    }

    /// Reads bytes of extents, unverified; blocks. Counted in `counts`.
    pub(crate) fn read_raw(
        &self,
        lv: LvId,
        extents: &[Extent],
        range: Range<u32>,
        counts: OfKind,
    ) -> Result<Bytes, ReadError> {
        let read = self.reader.read(lv, extents, range.start, range.len() as u32);
        read.inspect(|bytes| counts(&self.ops).note(bytes.len() as u64))
    }

    fn submit(&self, action: Action, concerned: Concerned, bytes: usize) {
        let mut queue = self.queue.lock();
        let is_write = bytes > 0;
        let over = queue.bytes + bytes > DISK_QUEUE_BYTES_MAX
            || queue.waiting.len() >= DISK_QUEUE_COMMANDS_MAX;
        if queue.stopped || (is_write && over && !queue.waiting.is_empty()) {
            drop(queue);
            match concerned {
                Concerned::Put { ticket, replica, .. } => {
                    ticket.written(replica, WriteOutcome::Busy);
                }
                Concerned::OnComplete(then) => then(Err(Refusal::Busy)),
                Concerned::Pg { .. } | Concerned::Nobody => {}
            }
            return;
        }
        queue.bytes += bytes;
        queue.waiting.push_back((action, concerned, bytes));
        if queue.waiting.len() == 1 {
            self.ready.notify_one();
        }
    }

    /// Runs the disk thread.
    pub(crate) fn disk_loop(&self, mut volume: Volume) {
        let mut group = Vec::new();
        let mut concerned = Vec::new();
        let mut done = Vec::new();
        while self.take_group(&mut group, &mut concerned) {
            let bytes = volume.counters().bytes_written;
            let started = Instant::now();
            self.commands.fetch_add(group.len() as u64, Ordering::Relaxed);
            // Many groups fit between two ticks, in which they could use up the reserve unnoticed.
            if self.is_nearly_full() {
                self.measure_free_space();
            }
            let free = self.free_bytes.load(Ordering::Relaxed);
            volume.set_growth(free.saturating_sub(self.reserve_bytes));
            volume.execute(std::mem::take(&mut group), &mut done);
            self.group_ns.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
            self.groups.fetch_add(1, Ordering::Relaxed);
            self.held_bytes.store(volume.counters().provisioned_bytes, Ordering::Relaxed);
            self.bytes.fetch_add(volume.counters().bytes_written - bytes, Ordering::Relaxed);
            for completion in done.drain(..) {
                let (whom, bytes) = &mut concerned[completion.tag as usize];
                let whom = std::mem::replace(whom, Concerned::Nobody);
                if *bytes > 0 && completion.result.is_ok() {
                    self.ops.write.note(*bytes as u64);
                }
                self.complete(whom, completion);
            }
            concerned.clear();
        }
    }

    /// Takes waiting commands up to the bounds of a group, with their receivers and bytes. Returns false once the queue is
    /// stopped and empty.
    fn take_group(
        &self,
        group: &mut Vec<Command>,
        concerned: &mut Vec<(Concerned, usize)>,
    ) -> bool {
        let mut queue = self.queue.lock();
        while queue.waiting.is_empty() {
            if queue.stopped {
                return false;
            }
            self.ready.wait(&mut queue);
        }
        let mut group_bytes = 0;
        while group.len() < GROUP_COMMANDS_MAX && group_bytes < DISK_GROUP_BYTES_MAX {
            let Some((action, whom, bytes)) = queue.waiting.pop_front() else { break };
            queue.bytes -= bytes;
            group_bytes += bytes;
            group.push(Command { tag: concerned.len() as u64, action });
            concerned.push((whom, bytes));
        }
        true
    }

    fn complete(&self, whom: Concerned, completion: Completion) {
        if completion.result == Err(Refusal::Broken) && !self.broken.swap(true, Ordering::Relaxed) {
            tracing::error!(
                "the disk failed and is out of service until it has been checked: replace it"
            );
        }
        match whom {
            Concerned::Put { ticket, replica, .. } => {
                let outcome = match completion.result {
                    Ok(_) => WriteOutcome::Durable,
                    Err(Refusal::Full) => WriteOutcome::Full,
                    Err(refusal) => {
                        tracing::debug!(%refusal, "a write was refused");
                        WriteOutcome::Failed
                    }
                };
                ticket.written(replica, outcome);
            }
            Concerned::Pg { pg, lv, replica, grant } => {
                let answer = pg_answer(completion.result, grant);
                if let Some(tell) = self.pgs.get() {
                    tell(pg, lv, replica, answer);
                }
            }
            Concerned::OnComplete(then) => then(completion.result),
            Concerned::Nobody => {
                if let Err(refusal) = completion.result {
                    tracing::error!(%refusal, "a physical volume could not be created");
                }
            }
        }
    }

    /// Reads and verifies bytes of a chunk, if the page cache has them.
    pub(crate) fn read_cached(
        &self,
        chunk: &Chunk,
        range: Range<u32>,
    ) -> Result<Option<Bytes>, ReadFailure> {
        let sums = whole_sums(chunk, range.clone());
        let bytes = self.reader.read_cached(chunk.lv, &chunk.extents, sums.from_byte, sums.len);
        match bytes.inspect(|bytes| self.note_cached(bytes.as_ref(), |ops| &ops.read_cached)) {
            Ok(None) => Ok(None),
            Ok(Some(bytes)) => verified(chunk, range, sums, bytes).map(Some),
            Err(error) => Err(read_failed(chunk, &error)),
        }
    }

    /// Reads and verifies bytes of a chunk; blocks.
    pub(crate) fn read(&self, chunk: &Chunk, range: Range<u32>) -> Result<Bytes, ReadFailure> {
        let _client = self.client();
        let sums = whole_sums(chunk, range.clone());
        match self.reader.read(chunk.lv, &chunk.extents, sums.from_byte, sums.len) {
            Ok(bytes) => {
                self.ops.read.note(bytes.len() as u64);
                verified(chunk, range, sums, bytes)
            }
            Err(error) => Err(read_failed(chunk, &error)),
        }
    }

    /// The counts, for metrics.
    #[must_use]
    pub fn counters(&self) -> DiskCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let queue = self.queue.lock();
        DiskCounters {
            groups: load(&self.groups),
            commands: load(&self.commands),
            bytes: load(&self.bytes),
            group_ns: load(&self.group_ns),
            queued_commands: queue.waiting.len() as u64,
            queued_bytes: queue.bytes as u64,
            free_bytes: load(&self.free_bytes),
        }
    }

    /// Accepts no more commands. The thread ends once it has executed those that wait.
    pub(crate) fn stop(&self) {
        self.queue.lock().stopped = true;
        self.ready.notify_all();
    }
}

/// The reason why a copy could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFailure {
    /// The bytes are not the chunk's: it was replaced, or the copy is damaged.
    Mismatch,
    /// The disk cannot read them.
    Unreadable,
}

pub(crate) fn verified(
    chunk: &Chunk,
    range: Range<u32>,
    sums: SumRange,
    bytes: Bytes,
) -> Result<Bytes, ReadFailure> {
    verify_range(chunk, sums.first_sum, &bytes).map_err(|_mismatch| ReadFailure::Mismatch)?;
    let from = (range.start - sums.from_byte) as usize;
    Ok(bytes.slice(from..from + range.len()))
}

fn read_failed(chunk: &Chunk, error: &ReadError) -> ReadFailure {
    match error {
        // The volume ends before the bytes: none were written there, or the space was given back.
        ReadError::Short { .. } => ReadFailure::Mismatch,
        error => {
            tracing::warn!(lv = %chunk.lv, %error, "a chunk cannot be read");
            ReadFailure::Unreadable
        }
    }
}

/// The action that a PG's request asks of a volume, and the grant that its answer names.
pub(crate) fn action_of(lv: LvId, request: DataRequest) -> (Action, Option<Grant>) {
    match request {
        DataRequest::Open { view, floor, boot } => (Action::Open { lv, view, floor, boot }, None),
        DataRequest::RaiseFloor { floor } => (Action::RaiseFloor { lv, floor }, None),
        DataRequest::Void { grant } => (Action::Void { lv, grant }, Some(grant)),
        DataRequest::Verify { chunk } => {
            let grant = chunk.grant;
            (Action::Verify { chunk }, Some(grant))
        }
    }
}

pub(crate) fn pg_answer(result: Result<Answer, Refusal>, grant: Option<Grant>) -> DataAnswer {
    match (result, grant) {
        (Ok(Answer::Floor(floor)), _) => DataAnswer::Floor(floor),
        (Ok(Answer::Voided), Some(grant)) => DataAnswer::Voided(grant),
        (Ok(Answer::Verified { .. }), Some(grant)) => DataAnswer::Verified(grant),
        (Ok(Answer::Mismatch { is_unacknowledged, .. }), Some(grant)) => {
            DataAnswer::Mismatch { grant, is_unacknowledged }
        }
        (Err(Refusal::Busy | Refusal::Unreadable), Some(grant)) => DataAnswer::NotNow(grant),
        (Ok(_) | Err(_), _) => DataAnswer::Failed,
    }
}

#[cfg(test)]
mod tests;
