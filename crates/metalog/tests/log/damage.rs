//! Damage is told from a torn tail, and neither passes unseen.

use std::sync::Arc;

use crate::harness::{DIR, Entry, Log, MIB, open, same_entries};
use larder_env::disk::read_file;
use larder_env::{Disk, OpenMode, SimDisk};
use larder_metalog::{Damage, DamageKind, LogError, scan};
use larder_types::PgId;

const FIRST: &str = "log/0000000000000000.log";
const SECOND: &str = "log/0000000000000001.log";

/// A log of three segments or so, all synced.
fn filled(disk: &Arc<SimDisk>) -> (Log, Vec<Entry>) {
    let (mut log, _) = open(disk).unwrap();
    for number in 0..20 {
        log.put(number % 3, &[number as u8; 250_000]);
    }
    drop(log);
    open(disk).unwrap()
}

fn damage(disk: &Arc<SimDisk>) -> Damage {
    let Err(LogError::Damaged(damage)) = open(disk).map(|_| ()) else {
        panic!("the damage passed unseen");
    };
    let report = scan(&**disk, DIR, &mut |_| ()).unwrap();
    assert_eq!(report.damages.first(), Some(&damage), "a scan sees what a start sees");
    damage
}

#[test]
fn a_flipped_bit_below_the_synced_position_is_damage() {
    let disk = SimDisk::new(1, 64 * MIB);
    let (_, entries) = filled(&disk);
    let hit = &entries[5];
    let start = hit.start.unwrap();
    disk.flip_bit(FIRST, start.0 + 70).unwrap();
    let damage = damage(&disk);
    assert_eq!((damage.kind, damage.segment), (DamageKind::Record, 0));
    assert_eq!((damage.file.as_str(), damage.offset), (FIRST, start.0));
    assert_eq!(damage.pgs, [PgId(hit.pg)], "only the PG whose record is lost");
    let text = LogError::Damaged(damage).to_string();
    for part in [FIRST, &format!("byte {start}"), "placement groups", "restore"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn any_rotten_bit_that_matters_is_seen() {
    for seed in 0..25 {
        let disk = SimDisk::new(seed, 64 * MIB);
        let (mut log, entries) = filled(&disk);
        log.appender.mark().unwrap();
        log.commit().unwrap();
        drop(log);
        let (name, offset) = disk.rot("log/").unwrap();
        match open(&disk) {
            Err(LogError::Damaged(damage)) => {
                assert!(damage.file == name && damage.offset <= offset, "{damage:?} {offset}");
            }
            Ok((log, found)) => {
                assert!(same_entries(&found, &entries), "{name} {offset}");
                assert_eq!(log.recovery.end, log.appender.end());
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn the_last_commit_is_vouched_for_by_a_mark() {
    let lost = |with_mark: bool| {
        let disk = SimDisk::new(2, 64 * MIB);
        let (mut log, _) = open(&disk).unwrap();
        log.put(1, b"first");
        log.put(1, b"last");
        if with_mark {
            log.appender.mark().unwrap();
            log.commit().unwrap();
        }
        drop(log);
        let (log, entries) = open(&disk).unwrap();
        drop(log);
        disk.flip_bit(FIRST, entries[1].start.unwrap().0 + 64).unwrap();
        open(&disk).map(|(_, entries)| entries.len())
    };
    assert!(matches!(lost(true), Err(LogError::Damaged(_))));
    assert_eq!(lost(false).unwrap(), 1);
}

#[test]
fn a_flipped_bit_in_the_unsynced_tail_is_cut() {
    let disk = SimDisk::new(4, 64 * MIB);
    let (mut log, _) = open(&disk).unwrap();
    let kept = log.put(1, b"kept");
    let start = log.appender.end();
    for pg in 1..4 {
        log.append(pg, &[pg as u8; 600]).unwrap();
    }
    log.appender.take_batch(&mut log.batch);
    disk.fail_after(2);
    log.writer.commit(&mut log.batch).unwrap_err();
    disk.kill();
    let disk = disk.reopen();
    disk.open(FIRST, OpenMode::ReadWrite).unwrap().sync().unwrap();
    disk.flip_bit(FIRST, start.0 + 100).unwrap();

    let report = scan(&*disk, DIR, &mut |_| ()).unwrap();
    assert!(report.damages.is_empty());
    assert_eq!((report.records, report.end), (1, kept.end));
    assert_eq!(report.torn_bytes, 3 * (64 + 600));
    let (log, found) = open(&disk).unwrap();
    assert!(same_entries(&found, &[kept]));
    assert_eq!(log.recovery.torn_bytes, report.torn_bytes);
    drop(log);
    let again = scan(&*disk, DIR, &mut |_| ()).unwrap();
    assert_eq!((again.torn_bytes, again.end), (0, report.end));
}

#[test]
fn a_record_that_does_not_follow_its_own_is_damage() {
    let write = |disk: &Arc<SimDisk>, last: &[u8]| {
        let (mut log, _) = open(disk).unwrap();
        log.put(1, b"first");
        log.put(1, last);
        let place = log.appender.end();
        log.put(1, b"third");
        place
    };
    let (one, other) = (SimDisk::new(1, 64 * MIB), SimDisk::new(2, 64 * MIB));
    let place = write(&one, b"second");
    assert_eq!(write(&other, b"SECOND"), place);
    let copy = |from: &SimDisk, to: &SimDisk| {
        let mut record = [0; 72];
        from.open(FIRST, OpenMode::Read).unwrap().read_at(place.0, &mut record).unwrap();
        let file = to.open(FIRST, OpenMode::ReadWrite).unwrap();
        file.write_at(place.0, &[std::io::IoSlice::new(&record)]).unwrap();
    };
    copy(&other, &one);
    let damage = damage(&one);
    assert_eq!((damage.kind, damage.offset), (DamageKind::Chain, place.0));
    assert_eq!(damage.pgs, [PgId(1)]);
}

#[test]
fn a_misdirected_write_is_damage_where_it_should_have_gone() {
    let disk = SimDisk::new(9, 64 * MIB);
    let (mut log, _) = open(&disk).unwrap();
    log.put(1, b"first");
    let place = log.appender.end();
    disk.misdirect_next_write(FIRST);
    log.put(1, b"astray");
    assert_eq!(disk.counts().writes_misdirected, 1);
    log.put(2, b"third");
    log.put(2, b"fourth");
    drop(log);
    let damage = damage(&disk);
    assert_eq!((damage.kind, damage.offset), (DamageKind::Record, place.0));
}

#[test]
fn a_missing_segment_is_damage() {
    let disk = SimDisk::new(1, 64 * MIB);
    drop(filled(&disk));
    disk.remove(SECOND).unwrap();
    let damage = damage(&disk);
    assert_eq!((damage.kind, damage.file.as_str()), (DamageKind::Missing, SECOND));
}

#[test]
fn a_bad_header_is_written_anew_where_records_stand_for_it() {
    for (number, segment) in [FIRST, SECOND].into_iter().enumerate() {
        let disk = SimDisk::new(1, 64 * MIB);
        let (log, entries) = filled(&disk);
        drop(log);
        let good = read_file(&*disk, segment).unwrap();
        for is_lost in [false, true] {
            match is_lost {
                false => disk.flip_bit(segment, 20).unwrap(),
                true => disk.fail_reads(segment, 0..4096).unwrap(),
            }
            let report = scan(&*disk, DIR, &mut |_| ()).unwrap();
            assert_eq!((report.damages, report.bad_headers), (vec![], vec![number as u64]));
            assert_eq!(report.unreadable_pages, u64::from(is_lost));
            let (log, found) = open(&disk).unwrap();
            assert!(same_entries(&found, &entries), "{segment}");
            assert_eq!(log.recovery.bad_headers, 1);
            drop(log);
            assert!(read_file(&*disk, segment).unwrap() == good, "it is as it was");
        }
    }
}

#[test]
fn a_bad_header_is_damage_where_the_records_behind_it_are_damaged_too() {
    let disk = SimDisk::new(1, 64 * MIB);
    drop(filled(&disk));
    disk.flip_bit(SECOND, 20).unwrap();
    disk.flip_bit(SECOND, 4096 + 70).unwrap();
    let damage = damage(&disk);
    assert_eq!((damage.kind, damage.file.as_str()), (DamageKind::Header, SECOND));
}

#[test]
fn an_unused_segment_with_a_bad_header_is_made_anew() {
    let disk = SimDisk::new(1, 64 * MIB);
    let (mut log, _) = open(&disk).unwrap();
    let entry = log.put(1, b"kept");
    drop(log);
    disk.flip_bit(SECOND, 20).unwrap();
    let (mut log, found) = open(&disk).unwrap();
    assert!(same_entries(&found, &[entry]));
    for _ in 0..40 {
        log.put(1, &[1; 100_000]);
    }
}

#[test]
fn a_page_that_cannot_be_read_is_damage_only_where_records_are_lost_with_it() {
    let disk = SimDisk::new(1, 64 * MIB);
    let (_, entries) = filled(&disk);
    let hit = entries[5].start.unwrap();
    let page = (hit.0 + 8192) / 4096 * 4096;
    disk.fail_reads(FIRST, page..page + 4096).unwrap();
    let lost = damage(&disk);
    assert_eq!((lost.kind, lost.offset), (DamageKind::Unreadable, hit.0));
    assert_eq!(lost.pgs, [PgId(entries[5].pg)]);
    assert!(lost.to_string().contains("that the disk cannot read"), "{lost}");

    // Behind the end nothing has a meaning.
    let disk = SimDisk::new(1, 64 * MIB);
    let (mut log, _) = open(&disk).unwrap();
    let kept = log.put(1, b"kept");
    drop(log);
    let behind = kept.end.0.next_multiple_of(4096);
    disk.fail_reads(FIRST, behind..behind + 8192).unwrap();
    disk.fail_reads(SECOND, 4096..8192).unwrap();
    let report = scan(&*disk, DIR, &mut |_| ()).unwrap();
    assert_eq!((report.damages, report.unreadable_pages), (vec![], 3));
    let (mut log, found) = open(&disk).unwrap();
    assert!(same_entries(&found, std::slice::from_ref(&kept)));
    assert_eq!((log.recovery.unreadable_pages, log.recovery.torn_bytes), (3, 0));
    let next = log.put(1, &[2; 9000]);
    drop(log);
    let (log, found) = open(&disk).unwrap();
    assert!(same_entries(&found, &[kept, next]));
    assert_eq!(log.recovery.unreadable_pages, 0, "they were written over");
}

#[test]
fn an_end_in_a_page_of_zeros_that_cannot_be_read_is_gone_on_at() {
    let disk = SimDisk::new(1, 64 * MIB);
    let (mut log, _) = open(&disk).unwrap();
    // It ends with zeros, the last of which lie in a page of their own.
    let zeros = log.put(1, &[0; 8100]);
    let page = zeros.end.0 / 4096 * 4096;
    assert!(page > 4096 + 64 && page < zeros.end.0);
    drop(log);
    disk.fail_reads(FIRST, page..page + 4096).unwrap();
    let (mut log, _) = open(&disk).unwrap();
    let next = log.put(1, b"next");
    drop(log);
    let (log, found) = open(&disk).unwrap();
    assert!(same_entries(&found, &[zeros, next]));
    assert_eq!(log.recovery.unreadable_pages, 0);
}

#[test]
fn a_segment_cut_short_is_damage_wherever_it_was_cut() {
    let disk = SimDisk::new(1, 64 * MIB);
    let (_, entries) = filled(&disk);
    let hit = entries[5].start.unwrap();
    disk.open(FIRST, OpenMode::ReadWrite).unwrap().set_len(hit.0 + 30).unwrap();
    assert_eq!(damage(&disk).offset, hit.0);

    // Nothing vouches for the last record, and none was lost for certain.
    for cut in [0, 8, 64] {
        let disk = SimDisk::new(1, 64 * MIB);
        let (mut log, _) = open(&disk).unwrap();
        let end = log.put(1, b"kept").end;
        drop(log);
        disk.open(FIRST, OpenMode::ReadWrite).unwrap().set_len(end.0 - cut).unwrap();
        let damage = damage(&disk);
        assert_eq!((damage.kind, damage.offset), (DamageKind::Short, end.0 - cut));
    }
}

#[test]
fn a_scan_changes_nothing() {
    let disk = SimDisk::new(4, 64 * MIB);
    let (mut log, _) = open(&disk).unwrap();
    log.put(1, b"kept");
    log.put_unsynced(&disk, 1, b"tail");
    disk.kill();
    let disk = disk.reopen();
    let before = disk.counts();
    let report = scan(&*disk, DIR, &mut |_| ()).unwrap();
    assert_eq!(disk.counts(), before);
    assert_eq!((report.log_id, report.segments), (Some(0xABCD_EF01), 2));
}

#[test]
fn a_log_without_any_sound_header_is_damaged() {
    let disk = SimDisk::new(4, 64 * MIB);
    drop(open(&disk).unwrap());
    disk.flip_bit(FIRST, 0).unwrap();
    disk.flip_bit(SECOND, 0).unwrap();
    assert_eq!(damage(&disk).kind, DamageKind::Header);
}
