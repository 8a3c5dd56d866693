//! One meta server's log as its driver keeps it: a batch under way, what may be trimmed, and ops that wait for room.
//!
//! # Invariants
//!
//! 1. A log that has no room at the moment ends nothing: the op waits, and every later one behind it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use larder_env::{Disk, DiskError, SeededRng, SimDisk};
use larder_metalog::limits::RECORD_HEADER_BYTES;
use larder_metalog::{Appender, Batch, LogConfig, LogError, Lsn, Record, Recovered, Writer};
use larder_protocol::LogEntry;
use larder_types::codec::encode;
use larder_types::{OpId, OpSeq, PgId};

use crate::planted::Bugs;
use crate::process_end::ProcessEnd;

/// Directory of the log.
pub(crate) const LOG_DIR: &str = "log";
/// Bytes of its segments.
const SEGMENT_BYTES: u64 = larder_metalog::limits::SEGMENT_BYTES_MIN;

/// See the module's head.
pub(crate) struct Log {
    appender: Appender,
    writer: Writer,
    batch: Batch,
    /// Last op of each PG in the batch under way.
    in_flight: Vec<(PgId, OpId)>,
    is_writing: bool,
    /// Last op of each PG that waits to be taken.
    last: BTreeMap<PgId, OpId>,
    records: VecDeque<(PgId, OpSeq, Lsn)>,
    /// Ops that the appender had no room for, in order, each with the commit point when it came.
    deferred: VecDeque<(PgId, LogEntry, OpSeq)>,
}

impl Log {
    /// Takes up the log; every record goes to `replay`.
    pub(crate) fn open(
        disk: &Arc<SimDisk>,
        log_id: u64,
        bugs: Bugs,
        replay: &mut dyn FnMut(&Recovered<'_>),
    ) -> Result<Self, LogError> {
        let disk: Arc<dyn Disk> = disk.clone();
        let mut records = VecDeque::new();
        let (appender, writer, _) =
            larder_metalog::recover(disk, LOG_DIR, &config(log_id, bugs), &mut |recovered| {
                records.push_back((recovered.record.pg, recovered.record.seq, recovered.end));
                replay(&recovered);
            })?;
        Ok(Self {
            appender,
            writer,
            batch: Batch::default(),
            in_flight: Vec::new(),
            is_writing: false,
            last: BTreeMap::new(),
            records,
            deferred: VecDeque::new(),
        })
    }

    /// Gives an op its place, or lets it wait for one.
    pub(crate) fn append(
        &mut self,
        pg: PgId,
        entry: LogEntry,
        commit: OpSeq,
    ) -> Result<(), ProcessEnd> {
        self.deferred.push_back((pg, entry, commit));
        self.place_deferred()
    }

    fn place_deferred(&mut self) -> Result<(), ProcessEnd> {
        while let Some((pg, entry, commit)) = self.deferred.pop_front() {
            match self.place(pg, &entry, commit) {
                Ok(()) => {}
                Err(LogError::Busy) => {
                    self.deferred.push_front((pg, entry, commit));
                    break;
                }
                Err(error) => return Err(fate(&error)),
            }
        }
        Ok(())
    }

    fn place(&mut self, pg: PgId, entry: &LogEntry, commit: OpSeq) -> Result<(), LogError> {
        let payload = encode(&*entry.op);
        let OpId { view, seq } = entry.id;
        let record = Record { pg, view, seq, commit, payload: &payload };
        let end = self.appender.append(&record)?;
        self.last.insert(pg, entry.id);
        self.records.push_back((pg, entry.id.seq, end));
        Ok(())
    }

    /// True if no new data may be taken.
    pub(crate) fn is_full(&self) -> bool {
        self.appender.is_full()
    }

    /// True if ops wait for room: calls that would bring more are turned away.
    pub(crate) fn is_busy(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Says in the log how far it is synced.
    pub(crate) fn mark(&mut self) -> Result<(), ProcessEnd> {
        match self.appender.mark() {
            Ok(_) | Err(LogError::Busy | LogError::Full { .. }) => Ok(()),
            Err(error) => Err(fate(&error)),
        }
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.appender.buffered_bytes() > 0
    }

    /// Begins to write what waits; false if there is nothing or a batch is under way.
    pub(crate) fn take(&mut self) -> bool {
        if self.is_writing || !self.appender.take_batch(&mut self.batch) {
            return false;
        }
        self.in_flight = std::mem::take(&mut self.last).into_iter().collect();
        self.is_writing = true;
        true
    }

    /// Ends writing; returns the PGs that have new durable ops.
    pub(crate) fn commit(&mut self) -> Result<Vec<(PgId, OpId)>, ProcessEnd> {
        let progress = self.writer.commit(&mut self.batch).map_err(|error| fate(&error))?;
        self.appender.note(progress);
        let progress = self.writer.prepare().map_err(|error| fate(&error))?;
        self.appender.note(progress);
        self.is_writing = false;
        self.place_deferred()?;
        let is_stuck = !self.deferred.is_empty() && !self.has_waiting();
        if is_stuck {
            return Err(ProcessEnd::Stuck("ops wait for room in a log that is empty".to_owned()));
        }
        Ok(std::mem::take(&mut self.in_flight))
    }

    /// Frees what lies before the first record that a PG still needs.
    pub(crate) fn trim(&mut self, retain: &BTreeMap<PgId, OpSeq>) -> Result<(), ProcessEnd> {
        let mut below = None;
        while let Some(&(pg, seq, end)) = self.records.front() {
            if retain.get(&pg).is_none_or(|oldest| seq >= *oldest) {
                break;
            }
            below = Some(end);
            self.records.pop_front();
        }
        below.map_or(Ok(()), |lsn| self.writer.free_below(lsn).map_err(|error| fate(&error)))
    }
}

fn config(log_id: u64, bugs: Bugs) -> LogConfig {
    #[cfg_attr(not(feature = "planted-bugs"), allow(unused_mut))]
    let mut config = LogConfig::new(log_id);
    config.segment_bytes = SEGMENT_BYTES;
    #[cfg(feature = "planted-bugs")]
    {
        config.bugs = bugs.log;
    }
    #[cfg(not(feature = "planted-bugs"))]
    let _none = bugs;
    config
}

/// The fate of a server whose log fails.
pub(crate) fn fate(error: &LogError) -> ProcessEnd {
    match error {
        LogError::Broken { source: DiskError::PoweredOff } => ProcessEnd::PowerLost,
        LogError::Busy => ProcessEnd::Stuck(error.to_string()),
        error => ProcessEnd::Ends(error.to_string()),
    }
}

/// File and offset of a random byte of a random record, if there is one.
pub(crate) fn place_in_record(disk: &SimDisk, rng: &mut SeededRng) -> Option<(String, u64)> {
    let mut records = Vec::new();
    let scanned = larder_metalog::scan(disk, LOG_DIR, &mut |found| {
        let bytes = RECORD_HEADER_BYTES + found.record.payload.len() as u64;
        records.push((found.start, bytes));
    });
    if scanned.is_err() || records.is_empty() {
        return None;
    }
    let (start, bytes) = records[rng.below(records.len() as u64) as usize];
    let at = start.0 + rng.below(bytes);
    Some((format!("{LOG_DIR}/{:016x}.log", at / SEGMENT_BYTES), at % SEGMENT_BYTES))
}

#[cfg(test)]
mod tests {
    use larder_types::{BootId, Op, ServerId, View};

    use super::*;

    #[test]
    fn ops_that_the_log_has_no_room_for_wait_and_keep_their_order() {
        let disk = SimDisk::new(1, 64 << 20);
        let open = |disk: &Arc<SimDisk>, replay: &mut dyn FnMut(&Recovered<'_>)| {
            Log::open(disk, 1, Bugs::default(), replay).expect("a log")
        };
        let mut log = open(&disk, &mut |_| panic!("it is empty"));
        let op = Arc::new(Op::ViewStart { members: vec![ServerId(0); 20_000], boot: BootId(1) });
        let size = larder_metalog::limits::RECORD_HEADER_BYTES + encode(&*op).len() as u64;
        // More than what is ready: the segment that is written and the next.
        let count = 3 * SEGMENT_BYTES / size;
        for seq in 1..=count {
            let id = OpId { view: View(1), seq: OpSeq(seq) };
            let entry = LogEntry { id, op: op.clone() };
            log.append(PgId(0), entry, OpSeq(0)).expect("it has room or waits");
        }
        assert!(log.is_busy(), "all of {count} ops have room");
        while log.take() {
            log.commit().expect("it is written");
        }
        assert!(!log.is_busy(), "none waits for good");
        drop(log);
        disk.kill();
        let mut found = 0;
        open(&disk.reopen(), &mut |recovered| {
            found += 1;
            assert_eq!(recovered.record.seq, OpSeq(found));
        });
        assert_eq!(found, count);
    }
}
