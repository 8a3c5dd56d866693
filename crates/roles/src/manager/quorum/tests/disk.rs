//! The log's file under crashes and damage.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use larder_env::disk::read_file;
use larder_env::{Disk, DiskError, OpenMode, SimDisk};
use larder_protocol::manager::quorum::{
    Entries, HardState, Item, LogIndex, LogWrite, Members, Position, Snapshot, Stored, Term,
};
use larder_types::{ClusterId, ServerId};

use crate::manager::quorum::ManagerError;
use crate::manager::quorum::disk::{PATH, QuorumDisk};
use crate::manager::quorum::v1::{
    BadFile, FILE_HEADER_BYTES, FileHeader, RECORD_HEADER_BYTES, decode_file, encode_header,
    encode_record,
};

const CLUSTER: ClusterId = ClusterId(7);
const ME: ServerId = ServerId(3);

fn at(term: u64, index: u64) -> Position {
    Position { term: Term(term), index: LogIndex(index) }
}

fn hard(term: u64) -> HardState {
    HardState { term: Term(term), voted_for: Some(ServerId(1)) }
}

fn entries(after: Position, term: u64, bytes: usize) -> Option<Entries> {
    let command = Item::Command(Bytes::from(vec![term as u8; bytes]));
    Some(Entries { after, items: vec![(Term(term), Item::Term), (Term(term), command)] })
}

/// Votes, entries, entries that replace others, a snapshot, and entries behind it.
fn writes() -> Vec<LogWrite> {
    let voters = BTreeSet::from([ServerId(1), ME]);
    let members = Members { voters, ..Members::default() };
    let state = Bytes::from(vec![9; 3000]);
    let snapshot = Some(Snapshot { at: at(3, 3), members, state });
    let write = |term, entries| LogWrite { hard: hard(term), snapshot: None, entries };
    vec![
        write(1, None),
        write(1, entries(at(0, 0), 1, 700)),
        write(2, entries(at(1, 2), 2, 2000)),
        write(3, entries(at(1, 2), 3, 40)),
        LogWrite { hard: hard(3), snapshot, entries: None },
        write(4, entries(at(3, 4), 4, 1200)),
        write(5, None),
    ]
}

fn after(writes: &[LogWrite]) -> Stored {
    let mut stored = Stored::default();
    writes.iter().for_each(|write| stored.take(write.clone()));
    stored
}

fn open(disk: &Arc<SimDisk>) -> Result<QuorumDisk, ManagerError> {
    QuorumDisk::make(disk.clone(), CLUSTER, ME)
}

fn written(count: usize) -> Arc<SimDisk> {
    let disk = SimDisk::new(1, 1 << 24);
    let mut log = open(&disk).unwrap();
    writes().into_iter().take(count).for_each(|write| log.write(write).unwrap());
    disk
}

#[test]
fn what_was_written_is_read_back() {
    for count in 0..=writes().len() {
        let disk = written(count);
        assert_eq!(*open(&disk).unwrap().stored(), after(&writes()[..count]), "{count} writes");
    }
}

#[test]
fn a_crash_at_any_moment_loses_nothing_that_was_acknowledged() {
    let all = writes();
    let (mut losses, mut kept_more) = (0, 0);
    for seed in 0..40 {
        for moment in 1..40 {
            let disk = SimDisk::new(seed, 1 << 24);
            disk.power_off_after(moment);
            let mut acknowledged = 0;
            if let Ok(mut log) = open(&disk) {
                let done = all.iter().take_while(|write| log.write((*write).clone()).is_ok());
                acknowledged = done.count();
            }
            losses += u64::from(!disk.is_up());
            if disk.is_up() {
                disk.crash();
            }
            let disk = disk.reopen();
            let mut log = open(&disk).unwrap();
            let found = log.stored().clone();
            let more = found != after(&all[..acknowledged]);
            if more {
                assert_eq!(found, after(&all[..=acknowledged]), "seed {seed} moment {moment}");
                kept_more += 1;
            }
            // A write that follows lands where the torn record was cut.
            for write in &all[acknowledged + usize::from(more)..] {
                log.write(write.clone()).unwrap();
            }
            assert_eq!(*open(&disk).unwrap().stored(), after(&all), "seed {seed} moment {moment}");
        }
    }
    assert!(losses > 500 && kept_more > 20, "{losses} losses, {kept_more} kept more");
}

#[test]
fn a_file_cut_within_its_last_record_loses_that_one_alone() {
    let disk = written(4);
    let bytes = read_file(&*disk, PATH).unwrap();
    let whole = decode_file(&bytes).unwrap();
    let last = encode_record(&whole.header, 0, 4, &writes()[3]).len();
    for cut in bytes.len() - last..bytes.len() {
        let contents = decode_file(&bytes[..cut]).unwrap();
        assert!(contents.end <= cut);
        // The zeros that fill up a record are no part of what must be there.
        let count = contents.writes.len();
        assert!(count == 3 || count == 4 && bytes[cut..].iter().all(|byte| *byte == 0), "{cut}");
    }
}

#[test]
fn damage_before_the_last_record_is_refused_and_names_the_file() {
    let bytes = read_file(&*written(4), PATH).unwrap();
    let header = decode_file(&bytes).unwrap().header;
    let length =
        |number: u64| encode_record(&header, 0, number, &writes()[number as usize - 1]).len();
    let last = bytes.len() - length(4);
    for offset in 0..last {
        let disk = written(4);
        disk.flip_bit(PATH, offset as u64).unwrap();
        match open(&disk) {
            Err(ManagerError::Unusable { file, .. }) => assert_eq!(file, PATH),
            Err(other) => panic!("byte {offset}: {other}"),
            // The zeros between records hold nothing.
            Ok(log) => assert_eq!(*log.stored(), after(&writes()[..4]), "byte {offset}"),
        }
    }
}

#[test]
fn another_servers_log_is_refused() {
    let disk = written(2);
    let other = QuorumDisk::open(disk.clone(), CLUSTER, ServerId(4));
    assert!(matches!(other, Err(ManagerError::Unusable { .. })));
    let other = QuorumDisk::open(disk, ClusterId(8), ME);
    assert!(matches!(other, Err(ManagerError::Unusable { .. })));
}

#[test]
fn an_empty_log_of_another_server_gives_way_to_one_that_has_not_begun() {
    let make = |disk: &Arc<SimDisk>| QuorumDisk::make(disk.clone(), CLUSTER, ServerId(4));
    let disk = written(0);
    make(&disk).unwrap();
    open(&disk).unwrap();
    let disk = written(1);
    assert!(matches!(make(&disk), Err(ManagerError::Unusable { .. })));
    assert_eq!(*open(&disk).unwrap().stored(), after(&writes()[..1]));
}

#[test]
fn a_log_that_is_gone_is_not_made_anew_by_a_start() {
    let disk = written(3);
    disk.remove(PATH).unwrap();
    for _ in 0..2 {
        let opened = QuorumDisk::open(disk.clone(), CLUSTER, ME);
        assert!(matches!(opened, Err(ManagerError::LogGone)));
    }
}

#[test]
fn a_later_format_is_named_as_such() {
    let header = FileHeader { cluster: CLUSTER, server: ME, id: 5 };
    let mut bytes = encode_header(&header);
    bytes[8] = 2;
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..32]);
    bytes[32..40].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(decode_file(&bytes), Err(BadFile::Version(2)));
}

#[test]
fn after_a_failed_sync_the_manager_stops_and_the_next_start_finds_what_there_is() {
    let disk = written(3);
    let mut log = open(&disk).unwrap();
    disk.fail_next_sync();
    assert!(matches!(log.write(writes()[3].clone()), Err(DiskError::Broken { .. })));
    drop(log);
    let found = open(&disk).unwrap().stored().clone();
    assert!(found == after(&writes()[..3]) || found == after(&writes()[..4]));
}

#[test]
fn a_record_whose_sync_failed_is_not_believed_though_memory_has_it() {
    // Of the record any part may be on the device: the seed decides.
    for seed in 0..20 {
        let disk = SimDisk::new(seed, 1 << 24);
        let mut log = open(&disk).unwrap();
        let write = |term, entries| LogWrite { hard: hard(term), snapshot: None, entries };
        log.write(write(1, entries(at(0, 0), 1, 700))).unwrap();
        disk.fail_next_sync();
        assert!(log.write(write(1, entries(at(1, 2), 1, 2000))).is_err());
        disk.kill();

        let disk = disk.reopen();
        let mut log = open(&disk).unwrap();
        log.write(write(2, None)).unwrap();
        let stored = log.stored().clone();
        disk.crash();
        let found = open(&disk.reopen());
        let found = found.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(*found.stored(), stored, "seed {seed}");
    }
}

#[test]
fn the_file_keeps_its_golden_bytes() {
    let header = FileHeader { cluster: ClusterId(0x0102_0304_0506_0708), server: ME, id: 0x1122 };
    let mut bytes = encode_header(&header);
    bytes.extend(encode_record(&header, FILE_HEADER_BYTES, 1, &writes()[0]));
    let second = LogWrite { entries: entries(at(0, 0), 1, 3), ..writes()[1].clone() };
    bytes.extend(encode_record(&header, bytes.len(), 2, &second));
    let text = include_str!("../../../../tests/golden/quorum_log.hex");
    let digits = text.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace);
    let golden: Vec<u8> = digits.map(|d| u8::from_str_radix(d, 16).unwrap()).collect();
    assert!(
        bytes == golden,
        "the format of the managers' log has changed: managers would not start. Keep version 1 \
         as it was and write a new version beside it. It is now:\n{bytes:02x?}"
    );
    let contents = decode_file(&golden).unwrap();
    assert_eq!((contents.header, contents.end), (header, golden.len()));
    assert_eq!(contents.writes, [writes()[0].clone(), second]);
    assert!(RECORD_HEADER_BYTES < golden.len() - FILE_HEADER_BYTES);
}

#[test]
fn a_directory_with_an_unreadable_header_is_refused() {
    let disk = written(2);
    disk.open(PATH, OpenMode::ReadWrite).unwrap().set_len(10).unwrap();
    assert!(matches!(open(&disk), Err(ManagerError::Unusable { .. })));
}
