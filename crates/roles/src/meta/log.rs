//! The log's driver: appends under the PGs' locks, and one thread that writes and syncs groups of records.
//!
//! # Invariants
//!
//! 1. An op that a machine has taken is appended before any later one. If the appender has no room for it, it waits here in
//!    order, with all later ones behind it. A log with a gap could not be read again. A slow disk never ends the process. One
//!    without room for an op that waits does, after the log thread has looked for room once more.
//! 2. The ops that wait are bounded at their sources. Calls and other members' ops are turned away while
//!    the log is busy, but for an op of each group now and then (`op_quota.rs`).
//! 3. While an op waits for room the log thread has a turn due, as only its turns make room: no op waits for the next one
//!    to come.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_env::threads::Condvar;
use larder_metalog::{Appender, Batch, LogError, Lsn, Progress, Record, Writer};
use larder_protocol::pg::Retained;
use larder_protocol::{Event, LogEntry};
use larder_types::codec::encode_into;
use larder_types::{Op, OpId, OpSeq, PgId};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Meta;
use super::rate::Rate;
use crate::limits::{LOG_BUFFER_BYTES_MAX, LOG_BUFFER_SEGMENT_PART};
use crate::planted::{Bug, has};
use crate::progress::{LogKept, LogStatus};

/// Counts of the log, for metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogCounters {
    /// Groups written and synced.
    pub groups: u64,
    /// Ops in them.
    pub ops: u64,
    /// Position through which the log is synced; grows by the bytes written.
    pub synced: u64,
    /// Nanoseconds spent writing and syncing.
    pub sync_ns: u64,
    /// Bytes of ops that wait to be written.
    pub buffered_bytes: u64,
    /// Bytes of the log on disk.
    pub disk_bytes: u64,
    /// Bytes from the beginning of its oldest segment to its end.
    pub untrimmed_bytes: u64,
    /// Bytes trimmed since the start.
    pub trimmed_bytes: u64,
}

/// The log that all PGs share.
pub(super) struct Log {
    state: Mutex<LogState>,
    ready: Condvar,
    segment_bytes: u64,
    groups: AtomicU64,
    ops: AtomicU64,
    synced: AtomicU64,
    sync_ns: AtomicU64,
    disk_bytes: AtomicU64,
    /// Segments below this may be freed: the flush thread sets it, the log thread frees.
    free_below: AtomicU64,
    /// Bytes trimmed since the start.
    trimmed: AtomicU64,
    rates: Mutex<Rates>,
}

/// Bytes written and trimmed.
#[derive(Default)]
struct Rates {
    written: Rate,
    trimmed: Rate,
}

/// An op that waits for room in the appender.
struct Deferred {
    pg: PgId,
    id: OpId,
    commit: OpSeq,
    payload: Vec<u8>,
}

struct LogState {
    appender: Appender,
    deferred: VecDeque<Deferred>,
    deferred_bytes: u64,
    segment_bytes: u64,
    /// The last op of each PG in the buffer.
    last: Vec<OpId>,
    /// The PGs that have ops in the buffer.
    touched: Vec<PgId>,
    /// The log thread has a turn due.
    urgent: bool,
    /// The last record is a mark that all records before it are synced.
    has_commit_mark: bool,
    stopped: bool,
    /// Highest op of each PG in each segment, oldest segment first.
    segments: Vec<Segment>,
}

struct Segment {
    start: Lsn,
    highest: Vec<OpSeq>,
}

impl LogState {
    fn untrimmed_bytes(&self) -> u64 {
        let end = self.appender.end();
        self.segments.first().map_or(0, |oldest| end.0 - oldest.start.0)
    }

    fn waiting_bytes(&self) -> u64 {
        self.appender.buffered_bytes() + self.deferred_bytes
    }

    /// Appends an op.
    fn place(&mut self, id: OpId, record: &Record<'_>) -> Result<(), LogError> {
        let (pg, end) = (record.pg, self.appender.append(record)?);
        self.has_commit_mark = false;
        self.note(pg, id.seq, end, self.segment_bytes);
        let before = std::mem::replace(&mut self.last[pg.0 as usize], id);
        if before == OpId::default() {
            self.touched.push(pg);
        }
        Ok(())
    }

    /// Queues an op until there is room. The caller must wake the log thread, even for an outcome.
    fn defer(&mut self, id: OpId, record: &Record<'_>) {
        let (pg, commit, payload) = (record.pg, record.commit, record.payload.to_vec());
        self.deferred_bytes += payload.len() as u64;
        self.deferred.push_back(Deferred { pg, id, commit, payload });
    }

    /// Appends ops that wait, as far as there is room. If not all are, tells why; those left stay in order.
    fn place_deferred(&mut self) -> Result<(), LogError> {
        while let Some(Deferred { pg, id, commit, payload }) = self.deferred.pop_front() {
            let (view, seq) = (id.view, id.seq);
            let record = Record { pg, view, seq, commit, payload: &payload };
            if let Err(error) = self.place(id, &record) {
                self.deferred.push_front(Deferred { pg, id, commit, payload });
                return Err(error);
            }
            self.deferred_bytes -= payload.len() as u64;
        }
        Ok(())
    }

    /// Takes in what the writer answered to the question for room. Ops that wait are appended, as far as there is room now.
    ///
    /// # Errors
    /// [`LogError::Full`] if an op waits for room that the disk does not have.
    fn note_free_space(&mut self, progress: Progress) -> Result<(), LogError> {
        self.appender.note(progress);
        match self.place_deferred() {
            Ok(()) | Err(LogError::Busy) => {}
            Err(error) => return Err(error),
        }
        self.urgent |= !self.touched.is_empty() || !self.deferred.is_empty();
        Ok(())
    }

    /// Notes the segment of a record of `pg` at `seq`, which ends at `end`.
    fn note(&mut self, pg: PgId, seq: OpSeq, end: Lsn, segment_bytes: u64) {
        let start = Lsn((end.0 - 1) / segment_bytes * segment_bytes);
        if self.segments.last().is_none_or(|segment| segment.start < start) {
            let highest = vec![OpSeq(0); self.last.len()];
            self.segments.push(Segment { start, highest });
        }
        if let Some(segment) = self.segments.last_mut() {
            let highest = &mut segment.highest[pg.0 as usize];
            *highest = (*highest).max(seq);
        }
    }
}

impl Log {
    pub(super) fn new(
        appender: Appender,
        segment_bytes: u64,
        pg_count: usize,
        recovered: &[(PgId, OpSeq, Lsn)],
    ) -> Self {
        let mut state = LogState {
            appender,
            deferred: VecDeque::new(),
            deferred_bytes: 0,
            segment_bytes,
            last: vec![OpId::default(); pg_count],
            touched: Vec::new(),
            urgent: false,
            has_commit_mark: true,
            stopped: false,
            segments: Vec::new(),
        };
        for &(pg, seq, end) in recovered {
            state.note(pg, seq, end, segment_bytes);
        }
        Self {
            state: Mutex::new(state),
            ready: Condvar::new(),
            segment_bytes,
            groups: AtomicU64::new(0),
            ops: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            sync_ns: AtomicU64::new(0),
            disk_bytes: AtomicU64::new(0),
            free_below: AtomicU64::new(0),
            trimmed: AtomicU64::new(0),
            rates: Mutex::default(),
        }
    }

    /// Buffers an op. Outcomes are synced with the next op or tick; all other ops, and those that wait for room, wake the log
    /// thread.
    pub(super) fn append(&self, pg: PgId, entry: &LogEntry, commit: OpSeq, scratch: &mut Vec<u8>) {
        scratch.clear();
        encode_into(&*entry.op, scratch);
        let record =
            Record { pg, view: entry.id.view, seq: entry.id.seq, commit, payload: scratch };
        let mut state = self.state.lock();
        // Behind one that waits, also where this one would fit. The log thread meets the reason.
        if !state.deferred.is_empty() || state.place(entry.id, &record).is_err() {
            state.defer(entry.id, &record);
        }
        self.ops.fetch_add(1, Ordering::Relaxed);
        let is_lazy = matches!(*entry.op, Op::Outcome { .. }) && state.deferred.is_empty();
        if !is_lazy && !std::mem::replace(&mut state.urgent, true) {
            self.ready.notify_one();
        }
    }

    /// Has buffered ops synced at once.
    pub(super) fn nudge(&self) {
        let mut state = self.state.lock();
        if !state.touched.is_empty() && !std::mem::replace(&mut state.urgent, true) {
            self.ready.notify_one();
        }
    }

    /// Has outcomes synced that came alone. Once the log is idle, appends a mark that its last group was synced.
    /// While the disk has no room for another segment, has the log thread check again: data is refused meanwhile, so no op may
    /// come that would wake it.
    pub(super) fn tick(&self) -> Result<(), LogError> {
        let mut state = self.state.lock();
        let seeks_room = state.appender.is_full();
        if state.touched.is_empty() {
            if state.has_commit_mark || state.waiting_bytes() > 0 {
                if !seeks_room {
                    return Ok(());
                }
            } else {
                match state.appender.mark() {
                    // No segment is ready: at another tick.
                    Err(LogError::Busy | LogError::Full { .. }) if seeks_room => {}
                    Err(LogError::Busy) => return Ok(()),
                    marked => {
                        marked?;
                        state.has_commit_mark = true;
                    }
                }
            }
        }
        if !std::mem::replace(&mut state.urgent, true) {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Returns true if calls must be turned away until the log has caught up.
    pub(super) fn is_busy(&self) -> bool {
        let busy = LOG_BUFFER_BYTES_MAX.min(self.segment_bytes / LOG_BUFFER_SEGMENT_PART);
        self.state.lock().waiting_bytes() > busy
    }

    /// Returns true if the space that the log has left is reserved for ops that free space.
    pub(super) fn is_full(&self) -> bool {
        self.state.lock().appender.is_full()
    }

    /// Bytes appended so far.
    pub(super) fn end(&self) -> Lsn {
        self.state.lock().appender.end()
    }

    /// Frees the oldest segments that no PG needs: `retain[pg]` is the oldest op that it needs.
    pub(super) fn free(&self, retain: &[OpSeq]) {
        let mut state = self.state.lock();
        let unneeded = |segment: &Segment| {
            segment.highest.iter().zip(retain).all(|(highest, oldest)| highest < oldest)
        };
        while state.segments.len() > 1 && unneeded(&state.segments[0]) {
            state.segments.remove(0);
            self.trimmed.fetch_add(self.segment_bytes, Ordering::Relaxed);
        }
        if let Some(oldest) = state.segments.first() {
            self.free_below.fetch_max(oldest.start.0, Ordering::Release);
            self.ready.notify_one();
        }
    }

    pub(super) fn note_rates(&self, seconds: f64) {
        let (written, trimmed) = (self.end().0, self.trimmed.load(Ordering::Relaxed));
        let mut rates = self.rates.lock();
        rates.written.note(written, seconds);
        rates.trimmed.note(trimmed, seconds);
    }

    /// The progress of trimming. `retained` has the oldest op that each PG needs now, and the reason.
    pub(super) fn now(&self, retained: &[(OpSeq, Retained)]) -> LogStatus {
        let state = self.state.lock();
        let untrimmed_bytes = state.untrimmed_bytes();
        let kept = kept(&state.segments, retained);
        drop(state);
        let rates = self.rates.lock();
        LogStatus {
            disk_bytes: self.disk_bytes.load(Ordering::Relaxed),
            untrimmed_bytes,
            trimmed_bytes: self.trimmed.load(Ordering::Relaxed),
            written_per_s: rates.written.per_s(),
            trimmed_per_s: rates.trimmed.per_s(),
            kept,
        }
    }

    /// Waits for a turn and takes buffered ops. Returns true if the log is stopping and nothing is left after this group.
    fn take_group(&self, group: &mut Group) -> bool {
        let mut state = self.state.lock();
        while !state.urgent
            && !state.stopped
            && self.free_below.load(Ordering::Acquire) <= group.freed
        {
            self.ready.wait(&mut state);
        }
        state.urgent = false;
        let LogState { touched, last, appender, .. } = &mut *state;
        let touched = touched.drain(..);
        group.last.extend(touched.map(|pg| (pg, std::mem::take(&mut last[pg.0 as usize]))));
        appender.take_batch(&mut group.batch);
        // An op for which there is no room is tried again once the disk was asked for some.
        let _no_room_yet = state.place_deferred();
        // Ops that were appended just now, and those that still wait, are for the next turn.
        state.urgent = !state.touched.is_empty() || !state.deferred.is_empty();
        state.stopped && !state.urgent
    }

    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.ready.notify_one();
    }

    pub(super) fn counters(&self) -> LogCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let state = self.state.lock();
        LogCounters {
            groups: load(&self.groups),
            ops: load(&self.ops),
            synced: load(&self.synced),
            sync_ns: load(&self.sync_ns),
            disk_bytes: load(&self.disk_bytes),
            trimmed_bytes: load(&self.trimmed),
            untrimmed_bytes: state.untrimmed_bytes(),
            buffered_bytes: state.waiting_bytes(),
        }
    }
}

/// The reason why the oldest segment is kept.
fn kept(segments: &[Segment], retained: &[(OpSeq, Retained)]) -> LogKept {
    let [oldest, _, ..] = segments else { return LogKept::BeingWritten };
    let mut all = (0..).zip(oldest.highest.iter().zip(retained));
    let needed = all.find(|(_, (highest, (needed, _)))| *highest >= needed);
    let Some((pg, (_, &(op, why)))) = needed else { return LogKept::ToBeFlushed };
    let op = op.0;
    match why {
        Retained::OpenPut => LogKept::OpenPut { pg, op },
        Retained::Request => LogKept::Request { pg, op },
        Retained::NotApplied => LogKept::NotApplied { pg, op },
    }
}

impl Meta {
    /// Runs the log thread: it writes and syncs a group, then steps the group's PGs.
    pub(super) fn log_loop(&self, mut writer: Writer) {
        let mut group = Group::default();
        loop {
            match self.log_group(&mut writer, &mut group) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.fail(format!("the log cannot be written: {error}")),
            }
        }
    }

    /// Writes one group. Returns false once stopped with nothing left to write.
    pub(super) fn log_group(
        &self,
        writer: &mut Writer,
        group: &mut Group,
    ) -> Result<bool, LogError> {
        let log = &self.log;
        let stopped = log.take_group(group);
        if !group.batch.is_empty() {
            if has(Bug::DurableBeforeWritten) {
                self.note_durable(group);
            }
            let started = Instant::now();
            let progress = writer.commit(&mut group.batch)?;
            log.sync_ns.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
            log.groups.fetch_add(1, Ordering::Relaxed);
            log.synced.store(progress.synced.0, Ordering::Relaxed);
            log.state.lock().appender.note(progress);
            self.note_durable(group);
        } else if stopped {
            return Ok(false);
        }
        let free_below = log.free_below.load(Ordering::Acquire);
        if free_below > group.freed {
            group.freed = free_below;
            writer.free_below(Lsn(free_below))?;
        }
        let progress = writer.prepare()?;
        log.state.lock().note_free_space(progress)?;
        log.disk_bytes.store(writer.disk_bytes(), Ordering::Relaxed);
        Ok(true)
    }
}

impl Meta {
    /// Steps each PG in the group with its last op, which is durable.
    fn note_durable(&self, group: &mut Group) {
        let _held = self.to_apply.hold();
        let mut together = self.together();
        for (pg, last) in group.last.drain(..) {
            // Gathered acknowledgements, for which other members wait, do not wait for this group's lock.
            let member = self.lock_at_once(pg);
            let mut member = member.unwrap_or_else(|| {
                together.leave();
                self.lock(pg)
            });
            together.with(&mut member, |member| self.step(member, Event::Durable(last)));
        }
    }
}

/// The records that one turn of the log thread writes.
#[derive(Default)]
pub(super) struct Group {
    batch: Batch,
    /// The last op of each PG in it.
    last: Vec<(PgId, OpId)>,
    /// Segments below this were freed.
    freed: u64,
}

#[cfg(test)]
mod tests;
