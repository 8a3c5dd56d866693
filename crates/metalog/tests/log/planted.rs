//! Each planted bug does the harm that the simulator is to find.

use crate::harness::{MIB, config, open_with, same_entries};
use larder_env::SimDisk;
use larder_metalog::{Bugs, LogConfig};

fn with(bugs: Bugs) -> LogConfig {
    LogConfig { bugs, ..config() }
}

#[test]
fn an_answer_before_the_sync_loses_what_was_answered() {
    let config = with(Bugs { ack_before_sync: true, ..Bugs::default() });
    let lost = (0..20).filter(|seed| {
        let disk = SimDisk::new(*seed, 64 * MIB);
        let (mut log, _) = open_with(&disk, &config).unwrap();
        log.append(1, b"answered").unwrap();
        let batch = &mut log.batch;
        assert!(log.appender.take_batch(batch));
        log.writer.commit(batch).unwrap();
        disk.crash();
        open_with(&disk.reopen(), &config).unwrap().1.is_empty()
    });
    assert!(lost.count() > 2);
}

#[test]
fn a_tail_that_is_not_cut_comes_back_or_stops_the_start() {
    let config = with(Bugs { cut_tail_not_synced: true, ..Bugs::default() });
    let wrong = (0..40).filter(|seed| {
        let disk = SimDisk::new(*seed, 64 * MIB);
        let (mut log, _) = open_with(&disk, &config).unwrap();
        log.put(1, &[0; 448]);
        for pg in 1..4 {
            log.append(pg, &[1; 448]).unwrap();
        }
        log.appender.take_batch(&mut log.batch);
        disk.power_off_after(2);
        log.writer.commit(&mut log.batch).unwrap_err();
        let disk = disk.reopen();
        let (mut log, mut expected) = open_with(&disk, &config).unwrap();
        expected.push(log.put(4, &[2; 448]));
        disk.crash();
        let found = open_with(&disk.reopen(), &config);
        found.map_or(true, |(_, entries)| !same_entries(&entries, &expected))
    });
    assert!(wrong.count() > 2);
}

#[test]
fn an_unchecked_chain_passes_over_lost_records() {
    let config = with(Bugs { chain_not_checked: true, ..Bugs::default() });
    let disk = SimDisk::new(1, 64 * MIB);
    let (mut log, _) = open_with(&disk, &config).unwrap();
    for _ in 0..5 {
        log.put(1, b"some op");
    }
    drop(log);
    let (log, found) = open_with(&disk, &config).unwrap();
    drop(log);
    let place = found[2].start.unwrap();
    disk.flip_bit("log/0000000000000000.log", place.0 + 64).unwrap();
    let (_, found) = open_with(&disk, &config).unwrap();
    assert_eq!(found.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [1, 2, 4, 5]);
}
