//! A log on a simulated disk, and what it must have kept.

use std::sync::Arc;

use larder_env::{Disk, SeededRng, SimDisk};
use larder_metalog::limits::SEGMENT_BYTES_MIN;
use larder_metalog::{
    Appender, Batch, LogConfig, LogError, Lsn, Record, Recovered, Recovery, Writer, recover,
};
use larder_types::{OpSeq, PgId, View};

pub const DIR: &str = "log";
pub const MIB: u64 = 1024 * 1024;

/// A record that owns its payload, with the place it has in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub start: Option<Lsn>,
    pub end: Lsn,
    pub pg: u32,
    pub seq: u64,
    pub payload: Vec<u8>,
}

impl Entry {
    fn same(&self, other: &Self) -> bool {
        (self.end, self.pg, self.seq, &self.payload)
            == (other.end, other.pg, other.seq, &other.payload)
    }
}

pub fn same_entries(a: &[Entry], b: &[Entry]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(b))
}

pub struct Log {
    pub appender: Appender,
    pub writer: Writer,
    pub recovery: Recovery,
    pub batch: Batch,
    next_seq: u64,
}

pub fn config() -> LogConfig {
    LogConfig { segment_bytes: SEGMENT_BYTES_MIN, ..LogConfig::new(0xABCD_EF01) }
}

pub fn entry(found: Recovered<'_>) -> Entry {
    assert_eq!(found.record.view, View(3));
    Entry {
        start: Some(found.start),
        end: found.end,
        pg: found.record.pg.0,
        seq: found.record.seq.0,
        payload: found.record.payload.to_vec(),
    }
}

pub fn open(disk: &Arc<SimDisk>) -> Result<(Log, Vec<Entry>), LogError> {
    open_with(disk, &config())
}

pub fn open_with(disk: &Arc<SimDisk>, config: &LogConfig) -> Result<(Log, Vec<Entry>), LogError> {
    let mut entries = Vec::new();
    let disk: Arc<dyn Disk> = disk.clone();
    let (appender, writer, recovery) =
        recover(disk, DIR, config, &mut |found| entries.push(entry(found)))?;
    assert_eq!(recovery.records, entries.len() as u64);
    Ok((Log::new(appender, writer, recovery, &entries), entries))
}

impl Log {
    pub fn new(appender: Appender, writer: Writer, recovery: Recovery, found: &[Entry]) -> Self {
        let next_seq = found.iter().map(|entry| entry.seq).max().unwrap_or(0) + 1;
        Self { appender, writer, recovery, batch: Batch::default(), next_seq }
    }

    pub fn append(&mut self, pg: u32, payload: &[u8]) -> Result<Entry, LogError> {
        let seq = self.next_seq;
        let record = Record {
            pg: PgId(pg),
            view: View(3),
            seq: OpSeq(seq),
            commit: OpSeq(seq.saturating_sub(1)),
            payload,
        };
        let end = self.appender.append(&record)?;
        self.next_seq += 1;
        Ok(Entry { start: None, end, pg, seq, payload: payload.to_vec() })
    }

    /// Writes and syncs what is buffered; returns how far the log is durable.
    pub fn commit(&mut self) -> Result<Option<Lsn>, LogError> {
        if !self.appender.take_batch(&mut self.batch) {
            return Ok(None);
        }
        let progress = self.writer.commit(&mut self.batch)?;
        self.appender.note(progress);
        let prepared = self.writer.prepare()?;
        self.appender.note(prepared);
        Ok(Some(progress.synced))
    }

    /// Appends and commits one record.
    pub fn put(&mut self, pg: u32, payload: &[u8]) -> Entry {
        let entry = self.append(pg, payload).unwrap();
        assert_eq!(self.commit().unwrap(), Some(entry.end));
        entry
    }

    /// Appends one record and writes it without a sync: what a crash leaves is up to chance.
    pub fn put_unsynced(&mut self, disk: &SimDisk, pg: u32, payload: &[u8]) -> Entry {
        let entry = self.append(pg, payload).unwrap();
        assert!(self.appender.take_batch(&mut self.batch));
        disk.fail_after(2);
        self.writer.commit(&mut self.batch).unwrap_err();
        entry
    }
}

/// A payload of random length, seldom large.
pub fn random_payload(rng: &mut SeededRng) -> Vec<u8> {
    let len = if rng.one_in(8) { rng.below(300_000) } else { rng.below(2000) };
    vec![rng.next_u64() as u8; len as usize]
}
