//! Synced records survive, and nothing that was cut comes back, whatever the disk does.

use std::sync::Arc;

use crate::harness::{Entry, Log, open, random_payload, same_entries};
use larder_env::{DiskError, RealDisk, SeededRng, SimDisk};
use larder_metalog::{LogError, Lsn, Recovered, recover};

const CAPACITY: u64 = 64 * crate::harness::MIB;

#[test]
fn what_was_appended_is_read_back_in_order() {
    let disk = SimDisk::new(1, CAPACITY);
    let (mut log, entries) = open(&disk).unwrap();
    assert!(log.recovery.created && entries.is_empty());
    let mut rng = SeededRng::new(1);
    let mut history = Vec::new();
    for number in 0..300 {
        history.push(log.append(number % 7, &random_payload(&mut rng)).unwrap());
        if rng.one_in(5) {
            log.commit().unwrap();
        }
    }
    log.commit().unwrap();
    drop(log);
    let (log, entries) = open(&disk).unwrap();
    assert!(same_entries(&entries, &history));
    assert!(!log.recovery.created);
    assert_eq!(log.recovery.end, history.last().unwrap().end);
    assert_eq!(log.recovery.torn_bytes, 0);
    for pair in entries.windows(2) {
        assert!(pair[0].end <= pair[1].start.unwrap());
    }
}

#[test]
fn a_log_on_a_real_disk_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
        let mut entries = Vec::new();
        let mut visit = |found: Recovered<'_>| entries.push(crate::harness::entry(found));
        let (appender, writer, recovery) =
            recover(disk, "log", &crate::harness::config(), &mut visit).unwrap();
        (Log::new(appender, writer, recovery, &entries), entries)
    };
    let mut history = Vec::new();
    for _ in 0..3 {
        let (mut log, found) = open();
        assert!(same_entries(&found, &history));
        for pg in 0..12 {
            history.push(log.put(pg, &[pg as u8; 120_000]));
        }
    }
    let (mut log, found) = open();
    assert!(same_entries(&found, &history));
    log.writer.free_below(log.recovery.end).unwrap();
    for pg in 0..24 {
        history.push(log.put(pg, &[pg as u8; 120_000]));
    }
    drop(log);
    let (_, found) = open();
    assert!((24..history.len()).contains(&found.len()));
    assert!(same_entries(&found, &history[history.len() - found.len()..]));
}

/// One machine over several boots, and what its log must have.
struct Life {
    disk: Arc<SimDisk>,
    rng: SeededRng,
    /// All records that may be in the log, in order.
    history: Vec<Entry>,
    /// Those up to here must be.
    durable: Lsn,
    /// Those below here need not be any more.
    freed: Lsn,
}

impl Life {
    fn new(seed: u64) -> Self {
        Self {
            disk: SimDisk::new(seed, CAPACITY),
            rng: SeededRng::new(seed ^ 0x5EED),
            history: Vec::new(),
            durable: Lsn(0),
            freed: Lsn(0),
        }
    }

    /// Recovers and holds what was found against what must be there.
    fn recover(&mut self, seed: u64) -> Result<Log, LogError> {
        let (log, found) = open(&self.disk)?;
        let skipped = self.history.len() - self.durable_suffix(&found);
        let expected = &self.history[skipped..][..found.len().min(self.history.len() - skipped)];
        assert!(same_entries(&found, expected), "seed {seed}: other records than were appended");
        let freed = self.history[..skipped].iter().all(|entry| entry.end <= self.freed);
        assert!(freed, "seed {seed}: records at the beginning are lost");
        let lost = self.history[skipped + found.len()..].iter().any(|e| e.end <= self.durable);
        assert!(!lost, "seed {seed}: durable records are lost");
        self.durable = log.recovery.end;
        self.history = found;
        Ok(log)
    }

    /// The number of the history's records from the first one found.
    fn durable_suffix(&self, found: &[Entry]) -> usize {
        let first = match found.first() {
            Some(entry) => entry.end,
            None => return self.history.iter().filter(|entry| entry.end > self.freed).count(),
        };
        self.history.iter().filter(|entry| entry.end >= first).count()
    }

    fn work(&mut self, log: &mut Log) -> Result<(), LogError> {
        for _ in 0..self.rng.below(60) {
            let payload = random_payload(&mut self.rng);
            match log.append(self.rng.below(5) as u32, &payload) {
                Ok(entry) => self.history.push(entry),
                Err(LogError::Busy) => {}
                Err(error) => return Err(error),
            }
            if self.rng.one_in(20) {
                log.appender.mark()?;
            }
            if self.rng.one_in(4)
                && let Some(synced) = log.commit()?
            {
                self.durable = synced;
            }
            if self.rng.one_in(20) {
                let lsn = Lsn(self.rng.below(self.durable.0 + 1));
                self.freed = self.freed.max(lsn);
                log.writer.free_below(lsn)?;
            }
        }
        Ok(())
    }

    fn end_boot(&mut self) {
        if self.disk.is_up() {
            if self.rng.one_in(3) { self.disk.kill() } else { self.disk.crash() }
        }
        self.disk = self.disk.reopen();
    }
}

fn is_down(error: &LogError) -> bool {
    matches!(error, LogError::Broken { source: DiskError::PoweredOff })
}

/// Lives of several boots that end by a crash at any operation, also within recovery.
fn live(seed: u64) {
    let mut life = Life::new(seed);
    for _ in 0..6 {
        let n = 1 + life.rng.below(80);
        life.disk.power_off_after(n);
        if life.rng.one_in(6) {
            life.disk.fail_next_sync();
        }
        let outcome = life.recover(seed).and_then(|mut log| life.work(&mut log));
        if let Err(error) = outcome {
            let failed_sync = matches!(
                &error,
                LogError::Broken { source: DiskError::Broken { operation: "sync", .. } }
            );
            assert!(is_down(&error) || failed_sync, "seed {seed}: {error}");
        }
        life.end_boot();
    }
    life.recover(seed).unwrap();
    let first = std::mem::take(&mut life.history);
    life.history = first.clone();
    life.disk.crash();
    life.disk = life.disk.reopen();
    life.recover(seed).unwrap();
    assert!(same_entries(&first, &life.history), "seed {seed}: a second recovery differs");
}

#[test]
fn crashes_at_any_operation_lose_nothing_synced_and_revive_nothing_cut() {
    for seed in 0..60 {
        live(seed);
    }
}

#[test]
fn a_crash_at_each_operation_of_one_run_is_survived() {
    for n in 1..120 {
        let mut life = Life::new(7);
        life.disk.power_off_after(n);
        let outcome = life.recover(n).and_then(|mut log| life.work(&mut log));
        assert!(outcome.is_err_and(|error| is_down(&error)) || life.disk.is_up());
        life.end_boot();
        life.recover(n).unwrap();
    }
}

#[test]
fn a_failed_sync_ends_the_writer() {
    let disk = SimDisk::new(3, CAPACITY);
    let (mut log, _) = open(&disk).unwrap();
    log.put(1, b"before");
    log.append(1, b"lost?").unwrap();
    disk.fail_next_sync();
    assert!(matches!(log.commit(), Err(LogError::Broken { .. })));
    log.append(1, b"after").unwrap();
    assert!(matches!(log.commit(), Err(LogError::Broken { .. })));
    assert!(matches!(log.writer.prepare(), Err(LogError::Broken { .. })));
    assert!(matches!(log.writer.free_below(Lsn(0)), Err(LogError::Broken { .. })));
}

#[test]
fn what_only_the_page_cache_has_after_a_failed_sync_is_not_given_back() {
    let mut given_back_then_lost = 0;
    for seed in 0..30 {
        let disk = SimDisk::new(seed, CAPACITY);
        let (mut log, _) = open(&disk).unwrap();
        log.put(1, b"before");
        log.append(1, &[7; 700]).unwrap();
        disk.fail_next_sync();
        log.commit().unwrap_err();
        disk.kill();
        let disk = disk.reopen();
        let (_, found) = open(&disk).unwrap();
        disk.crash();
        let (_, after) = open(&disk.reopen()).unwrap();
        given_back_then_lost += u32::from(!same_entries(&found, &after));
    }
    assert_eq!(given_back_then_lost, 0);
}

#[test]
fn a_cut_tail_never_comes_back() {
    let mut cut = 0;
    for seed in 0..150 {
        let disk = SimDisk::new(seed, CAPACITY);
        let (mut log, _) = open(&disk).unwrap();
        let kept = log.put(1, b"kept");
        log.append(1, &[1; 900]).unwrap();
        log.append(2, &[2; 900]).unwrap();
        log.append(3, &[3; 900]).unwrap();
        log.appender.take_batch(&mut log.batch);
        disk.power_off_after(2);
        log.writer.commit(&mut log.batch).unwrap_err();
        drop(log);

        let disk = disk.reopen();
        disk.power_off_after(1 + seed % 6);
        let during = open(&disk).map(|(log, _)| log.recovery);
        if disk.is_up() {
            disk.crash();
        }
        let disk = disk.reopen();
        let (mut log, found) = open(&disk).unwrap();
        cut += u32::from(during.is_ok_and(|r| r.torn_bytes > 0) || log.recovery.torn_bytes > 0);
        assert!(found[0].end == kept.end && found.len() <= 4);
        let known = found.len();
        let mut expected = found;
        for _ in 0..3 {
            expected.push(log.put(4, &[9; 900]));
        }
        disk.crash();
        let (_, after) = open(&disk.reopen()).unwrap();
        assert!(same_entries(&after, &expected), "seed {seed}: {known} were found before");
    }
    assert!(cut > 20, "{cut}");
}

#[test]
fn records_are_durable_only_by_a_commit() {
    let lost = (0..20).filter(|seed| {
        let disk = SimDisk::new(*seed, CAPACITY);
        let (mut log, _) = open(&disk).unwrap();
        log.put(1, b"kept");
        log.put_unsynced(&disk, 1, b"perhaps");
        disk.crash();
        let (_, found) = open(&disk.reopen()).unwrap();
        found.len() == 1
    });
    assert!((2..19).contains(&lost.count()));
}
