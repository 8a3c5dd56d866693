//! Space: bounded buffers, full disks, segments given up and used again.

use crate::harness::{DIR, MIB, config, open, open_with, same_entries};
use larder_env::{Disk, SimDisk};
use larder_metalog::limits::{BUFFER_BYTES_MAX, SEGMENT_BYTES_MIN};
use larder_metalog::{LogConfig, LogError, Lsn};

static LARGE: [u8; 500_000] = [5; 500_000];

#[test]
fn appends_beyond_the_buffer_are_refused_until_a_commit() {
    let disk = SimDisk::new(1, 64 * MIB);
    let (mut log, _) = open(&disk).unwrap();
    let mut count = 0;
    while let Ok(_entry) = log.append(1, &LARGE) {
        count += 1;
    }
    assert!(count >= 4);
    assert_eq!(log.append(1, &LARGE), Err(LogError::Busy));
    assert!(log.appender.buffered_bytes() <= BUFFER_BYTES_MAX);
    assert!(!log.appender.is_full());
    log.commit().unwrap();
    log.append(1, &LARGE).unwrap();
}

#[test]
fn a_full_disk_refuses_before_it_tears_and_recovers_when_freed() {
    let disk = SimDisk::new(1, 7 * MIB);
    let (mut log, _) = open(&disk).unwrap();
    let mut entries = Vec::new();
    while !log.appender.is_full() {
        entries.push(log.put(1, &LARGE));
    }
    let reserve = log.append(2, b"a delete goes on").unwrap();
    entries.push(reserve);
    log.commit().unwrap();
    let refusal = loop {
        match log.append(1, &LARGE) {
            Ok(entry) => entries.push(entry),
            Err(LogError::Busy) => drop(log.commit().unwrap()),
            Err(error) => break error,
        }
        log.commit().unwrap();
    };
    assert_eq!(refusal, LogError::Full { dir: DIR.to_owned() });
    assert!(refusal.to_string().contains("free some"), "{refusal}");
    drop(log);

    let (mut log, found) = open(&disk).unwrap();
    assert!(same_entries(&found, &entries), "nothing that was taken is torn");
    assert!(log.appender.is_full(), "still full after a restart");
    log.writer.free_below(log.recovery.end).unwrap();
    log.appender.note(log.writer.prepare().unwrap());
    assert!(!log.appender.is_full());
    log.put(1, &LARGE);
}

#[test]
fn a_disk_too_small_for_a_log_is_refused() {
    let disk = SimDisk::new(1, MIB);
    assert!(matches!(open(&disk).map(|_| ()), Err(LogError::Full { .. })));
    disk.set_capacity(64 * MIB);
    open(&disk).unwrap();
}

#[test]
fn freed_segments_are_used_again_and_what_they_held_never_shows() {
    let disk = SimDisk::new(1, 64 * MIB);
    let (mut log, _) = open(&disk).unwrap();
    let mut entries = Vec::new();
    for round in 0..40u32 {
        entries.push(log.put(round % 2, &vec![round as u8; 400_000]));
        if round % 8 == 7 {
            log.writer.free_below(log.appender.end()).unwrap();
        }
    }
    let bytes = log.writer.disk_bytes();
    assert!(bytes <= 6 * SEGMENT_BYTES_MIN, "{bytes}");
    let files = disk.list(DIR).unwrap();
    assert!(files.iter().any(|name| name.ends_with(".spare")), "{files:?}");
    assert_eq!(files.len() as u64 * SEGMENT_BYTES_MIN, bytes);
    drop(log);
    let (log, found) = open(&disk).unwrap();
    assert!(found.len() < entries.len());
    assert!(same_entries(&found, &entries[entries.len() - found.len()..]));
    assert_eq!(log.recovery.torn_bytes, 0, "what a spare held is no tail");
    assert_eq!(log.writer.disk_bytes(), bytes);
}

#[test]
fn the_segment_in_use_is_never_given_up() {
    let disk = SimDisk::new(1, 64 * MIB);
    let (mut log, _) = open(&disk).unwrap();
    log.writer.free_below(Lsn(u64::MAX)).unwrap();
    let entry = log.put(1, b"here");
    log.writer.free_below(Lsn(u64::MAX)).unwrap();
    drop(log);
    assert!(same_entries(&open(&disk).unwrap().1, &[entry]));
}

#[test]
fn a_log_keeps_the_size_and_id_it_was_made_with() {
    let disk = SimDisk::new(1, 64 * MIB);
    drop(open(&disk).unwrap());
    let other = LogConfig { segment_bytes: 2 * SEGMENT_BYTES_MIN, ..LogConfig::new(9) };
    let (log, _) = open_with(&disk, &other).unwrap();
    assert_eq!(log.recovery.log_id, config().new_log_id);
    assert_eq!(log.writer.disk_bytes(), 2 * SEGMENT_BYTES_MIN);
}

#[test]
fn a_wrong_segment_size_is_refused_by_name() {
    let disk = SimDisk::new(1, 64 * MIB);
    for segment_bytes in [0, SEGMENT_BYTES_MIN - 4096, SEGMENT_BYTES_MIN + 8, 1 << 40] {
        let error =
            open_with(&disk, &LogConfig { segment_bytes, ..config() }).map(|_| ()).unwrap_err();
        assert_eq!(error, LogError::SegmentBytes { found: segment_bytes });
        assert!(error.to_string().contains("segment_bytes"), "{error}");
    }
}

#[test]
fn the_largest_record_fits_anywhere_in_a_segment() {
    let disk = SimDisk::new(1, 64 * MIB);
    let (mut log, _) = open(&disk).unwrap();
    let largest = vec![1; larder_types::limits::OP_BYTES_MAX];
    let mut entries = Vec::new();
    for number in 0..6usize {
        entries.push(log.put(1, &largest));
        entries.push(log.put(1, &vec![2; number * 8191]));
    }
    // Leave less than a header, exactly a header, and nothing at a segment's end.
    for left in [0, 8, 56, 64, 72] {
        let offset = log.appender.end().0 % SEGMENT_BYTES_MIN;
        let room = if offset == 0 { SEGMENT_BYTES_MIN - 4096 } else { SEGMENT_BYTES_MIN - offset };
        let mut room = room as usize;
        while room > larder_types::limits::OP_BYTES_MAX {
            entries.push(log.put(1, &vec![3; 500_000 - 64]));
            room -= 500_000;
        }
        if room > 64 + left {
            entries.push(log.put(1, &vec![4; room - 64 - left]));
            assert_eq!(
                log.appender.end().0 % SEGMENT_BYTES_MIN,
                (SEGMENT_BYTES_MIN - left as u64) % SEGMENT_BYTES_MIN
            );
        }
        entries.push(log.put(1, &[5; 100]));
        drop(log);
        let (reopened, found) = open(&disk).unwrap();
        assert!(same_entries(&found, &entries), "{left} bytes left");
        log = reopened;
    }
}
