//! Carries out the reads of a data server's disk: the [machine](DiskReads) decides which are at the device, and blocking
//! threads of the runtime read.
//!
//! # Invariants
//!
//! 1. Only a read that is at the device has a thread: one that waits costs memory alone.
//! 2. Each read is answered, or its responder dropped, exactly once, and never under the queue's lock.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use larder_net::Responder;
use larder_net::limits::PROTOCOL_MAX;
use larder_protocol::scheduler::{
    ActiveRead, Arrival, DiskCounts, DiskReads, DiskTurn, Report, Urgency,
};
use larder_types::{Chunk, Extent, LvId};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::blocking;
use crate::breakdown::DiskOps;
use crate::data::disk::{Client, DataServer, OfKind};
use crate::limits::{DATA_ANSWER_MAX, READ_TIMEOUT_MS};
use crate::wire::{CopyState, DataReply, DataService};

/// A read to carry out.
pub(super) enum ReadCommand {
    /// Unverified bytes, for a caller that has the checksums.
    Bytes {
        lv: LvId,
        extents: Vec<Extent>,
        range: Range<u32>,
        /// Set if a client waits: background work yields while the read is under way.
        client: Option<Client>,
    },
    /// The verification of a whole copy, for a scrub.
    Copy(Box<Chunk>),
    /// Whole checksummed pieces of a chunk, if they verify: for a copy elsewhere.
    Verified { chunk: Box<Chunk>, range: Range<u32> },
}

impl ReadCommand {
    fn urgency(&self) -> Urgency {
        match self {
            Self::Bytes { client: Some(_), .. } => Urgency::Client,
            Self::Bytes { client: None, .. } | Self::Verified { .. } => Urgency::Repair,
            Self::Copy(_) => Urgency::Scrub,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Bytes { range, .. } | Self::Verified { range, .. } => range.len() as u64,
            Self::Copy(chunk) => u64::from(chunk.len),
        }
    }

    /// The counts of its kind of operation. A read of bytes without a client is a meta server's.
    fn counts(&self) -> OfKind {
        match self {
            Self::Bytes { client: Some(_), .. } => |ops| &ops.read,
            Self::Bytes { client: None, .. } | Self::Verified { .. } => |ops| &ops.read_copy,
            Self::Copy(_) => |ops| &ops.verify,
        }
    }

    /// The time for which the caller waits for the answer.
    fn max_wait(&self) -> Duration {
        match self {
            Self::Bytes { .. } | Self::Verified { .. } => Duration::from_millis(READ_TIMEOUT_MS),
            Self::Copy(_) => DATA_ANSWER_MAX,
        }
    }
}

struct Read {
    wanted: ReadCommand,
    requester: Requester,
    arrived_us: u64,
}

/// The caller that waits for a read.
enum Requester {
    Server(Responder<DataService>),
    /// This server itself.
    Here(oneshot::Sender<(DataReply, Bytes)>),
}

impl Requester {
    fn version(&self) -> u8 {
        match self {
            Self::Server(responder) => responder.version(),
            Self::Here(_) => PROTOCOL_MAX,
        }
    }

    fn answer(self, reply: DataReply, bytes: Bytes) {
        match self {
            Self::Server(responder) => responder.answer(&reply, bytes),
            Self::Here(waits) => drop(waits.send((reply, bytes))),
        }
    }

    /// Refuses the read, because too many wait. A read of this server itself gets no answer.
    fn busy(self) {
        if let Self::Server(responder) = self {
            responder.busy();
        }
    }
}

/// The reads of a data server's disk.
pub(super) struct Reads {
    server: Arc<DataServer>,
    queue: Mutex<DiskReads<Read>>,
    began: Instant,
}

/// A read that is at the device; when it is dropped, however the read ended, the next begins.
struct AtDevice {
    reads: Arc<Reads>,
    /// `None` once it has ended.
    begun: Option<ActiveRead>,
    /// True if its time is a measure for other reads: it read bytes as clients do, and succeeded.
    is_measure: bool,
    timed: Timed,
}

/// The times of a read, which count once it was served.
struct Timed {
    counts: OfKind,
    bytes: u64,
    waited_us: u64,
    /// True if the disk gave the bytes: the time of a failure does not count.
    is_served: bool,
}

impl Timed {
    fn of(begun: &ActiveRead, read: &Read) -> Self {
        let waited_us = begun.since_us().saturating_sub(read.arrived_us);
        let Read { wanted, .. } = read;
        Self { counts: wanted.counts(), bytes: wanted.bytes(), waited_us, is_served: false }
    }

    fn note(&self, ops: &DiskOps, served_us: u64) {
        if self.is_served {
            (self.counts)(ops).note_time(self.bytes, self.waited_us, served_us);
        }
    }
}

impl Drop for AtDevice {
    fn drop(&mut self) {
        let Some(begun) = self.begun.take() else { return };
        let now_us = self.reads.now_us();
        self.timed.note(self.reads.server.ops(), now_us.saturating_sub(begun.since_us()));
        let (mut begin, mut late) = (Vec::new(), Vec::new());
        let mut queue = self.reads.queue.lock();
        queue.served(now_us, begun, self.is_measure);
        while let Some(turn) = queue.next(now_us) {
            match turn {
                DiskTurn::Begins(begun, read) => begin.push((begun, read)),
                DiskTurn::Late(read) => late.push(read),
            }
        }
        drop(queue);
        for (begun, read) in begin {
            self.reads.begin(begun, read);
        }
        drop(late);
    }
}

impl Reads {
    pub(super) fn new(server: Arc<DataServer>) -> Arc<Self> {
        Arc::new(Self { server, queue: Mutex::default(), began: Instant::now() })
    }

    /// Reads and answers, in the queue's order. A read that the asker cancels while it waits is not carried out.
    pub(super) fn read(self: &Arc<Self>, wanted: ReadCommand, responder: Responder<DataService>) {
        let number = self.queue.lock().number();
        let reads = Arc::downgrade(self);
        responder.when_unwanted(move || cancel(&reads, number));
        self.arrive(number, wanted, Requester::Server(responder));
    }

    /// Reads for this server itself, in the queue's order.
    pub(super) fn read_here(
        self: &Arc<Self>,
        wanted: ReadCommand,
    ) -> oneshot::Receiver<(DataReply, Bytes)> {
        let (waits, answer) = oneshot::channel();
        let number = self.queue.lock().number();
        self.arrive(number, wanted, Requester::Here(waits));
        answer
    }

    fn arrive(self: &Arc<Self>, number: u64, wanted: ReadCommand, requester: Requester) {
        let (now_us, what) = (self.now_us(), (wanted.urgency(), wanted.bytes()));
        let until_us = now_us + wanted.max_wait().as_micros() as u64;
        let read = Read { wanted, requester, arrived_us: now_us };
        let arrival = self.queue.lock().arrive(now_us, number, what, until_us, read);
        match arrival {
            Arrival::Begins(begun, read) => self.begin(begun, read),
            Arrival::Waits => {}
            Arrival::TurnedAway(read) => read.requester.busy(),
        }
    }

    /// Ends reads whose askers wait no longer.
    pub(super) fn shed(&self) {
        let late = self.queue.lock().shed(self.now_us());
        drop(late);
    }

    /// The report of the disk that answers carry.
    pub(super) fn report(&self) -> Report {
        let now_us = self.now_us();
        self.queue.lock().report(now_us)
    }

    /// Notes that the page cache answered a client's read of so many bytes. Returns the report for its answer.
    pub(super) fn answered_by_cache(&self, bytes: usize) -> Report {
        let now_us = self.now_us();
        let mut queue = self.queue.lock();
        queue.answered_by_cache(bytes as u64);
        queue.report(now_us)
    }

    /// The outcomes of reads that the page cache could not answer, and how many wait.
    pub(super) fn counts(&self) -> (DiskCounts, usize) {
        let queue = self.queue.lock();
        (queue.counts(), queue.waits())
    }

    /// Counts a write of so many bytes, which begins.
    pub(super) fn write_begins(&self, bytes: usize) {
        self.queue.lock().write_begins(bytes as u64);
    }

    /// Ends the count of a write.
    pub(super) fn write_ends(&self, bytes: usize) {
        self.queue.lock().write_ends(bytes as u64);
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Carries out a read on a blocking thread. If the runtime ends and drops the closure, the read stays counted as at the
    /// device: the queue is not used after that.
    fn begin(self: &Arc<Self>, begun: ActiveRead, read: Read) {
        let reads = self.clone();
        let timed = Timed::of(&begun, &read);
        drop(blocking::run(move || {
            perform(AtDevice { begun: Some(begun), is_measure: false, timed, reads }, read);
        }));
    }
}

fn cancel(reads: &Weak<Reads>, number: u64) {
    let read = reads.upgrade().and_then(|reads| reads.queue.lock().cancel(number));
    drop(read);
}

fn perform(mut at_device: AtDevice, Read { wanted, requester, .. }: Read) {
    let (reads, version) = (at_device.reads.clone(), requester.version());
    match wanted {
        ReadCommand::Bytes { lv, extents, range, client } => {
            let read = reads.server.read_raw(lv, &extents, range, at_device.timed.counts);
            at_device.is_measure = read.is_ok();
            at_device.timed.is_served = read.is_ok();
            drop((at_device, client));
            let answer = DataReply::of_read(read.is_ok(), version, reads.report());
            let bytes = read.unwrap_or_else(|error| {
                tracing::debug!(%lv, %error, "a chunk cannot be read");
                Bytes::new()
            });
            requester.answer(answer, bytes);
        }
        ReadCommand::Copy(chunk) => {
            let state = reads.server.verify_copy(&chunk);
            at_device.timed.is_served = state != CopyState::Unreadable;
            drop(at_device);
            requester.answer(DataReply::Verified(state), Bytes::new());
        }
        ReadCommand::Verified { chunk, range } => {
            let read = reads.server.read_verified(&chunk, range);
            at_device.timed.is_served = !matches!(read, Err(CopyState::Unreadable));
            drop(at_device);
            match read {
                Ok(bytes) => requester.answer(DataReply::Bytes, bytes),
                Err(state) => requester.answer(DataReply::Verified(state), Bytes::new()),
            }
        }
    }
}
