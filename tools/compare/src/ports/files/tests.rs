//! The promises of a disk that worse disks keep, and what they cost.

use std::time::Instant;

use super::*;
use larder_env::{Disk, OpenMode, RealDisk};

const BLOCK: usize = 4096;

fn file(chosen: &Files, name: &str) -> (tempfile::TempDir, Arc<dyn DiskFile>) {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(dir.path()).unwrap();
    let file = disk.open(name, OpenMode::CreateNew).unwrap();
    let file = shaped(chosen, dir.path(), name, file).unwrap();
    (dir, file)
}

fn write(file: &dyn DiskFile, at: u64, parts: &[&[u8]]) {
    let parts: Vec<_> = parts.iter().map(|part| std::io::IoSlice::new(part)).collect();
    file.write_at(at, &parts).unwrap();
}

fn files_in(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_sync_takes_no_less_than_was_chosen() {
    let sync_min = Duration::from_millis(20);
    let (_dir, file) = file(&Files { sync_min, ..Files::default() }, "f");
    let begun = Instant::now();
    file.sync().unwrap();
    assert!(begun.elapsed() >= sync_min);
}

#[test]
fn objects_become_files_with_their_padding_and_headers_do_not() {
    let chosen = Files { plain_files: Some("f".into()), ..Files::default() };
    let (dir, file) = file(&chosen, "f");
    let pieces = dir.path().join("f.pieces");
    file.allocate(0, 2 * BLOCK as u64).unwrap();
    write(&*file, 0, &[&[1; BLOCK]]);
    assert_eq!(files_in(&pieces), 0, "nothing was reserved for data yet");
    let base = 2 * BLOCK as u64;
    file.allocate(base, 8 * BLOCK as u64).unwrap();
    let (one, padding, other) = ([7; 100], [0; BLOCK - 100], [9; 2 * BLOCK]);
    write(&*file, base, &[&one, &padding, &other]);
    assert_eq!(files_in(&pieces), 2);
    let mut read = vec![1; 3 * BLOCK];
    assert_eq!(file.read_at(base, &mut read).unwrap(), 3 * BLOCK);
    assert_eq!((read[99], read[100], read[BLOCK], read[3 * BLOCK - 1]), (7, 0, 9, 9));
    let mut header = [0; BLOCK];
    assert_eq!(file.read_at(0, &mut header).unwrap(), BLOCK);
    assert_eq!(header[0], 1);
}

#[test]
fn a_file_takes_the_place_of_those_before_it() {
    let chosen = Files { plain_files: Some("f".into()), ..Files::default() };
    let (dir, file) = file(&chosen, "f");
    let at = |block: u64| block * BLOCK as u64;
    file.allocate(at(1), at(8)).unwrap();
    write(&*file, at(1), &[&[1; BLOCK], &[2; BLOCK], &[3; BLOCK]]);
    write(&*file, at(2), &[&[4; 2 * BLOCK]]);
    assert_eq!(files_in(&dir.path().join("f.pieces")), 2);
    let mut read = vec![0; 4 * BLOCK];
    assert_eq!(
        file.read_at(at(1), &mut read).unwrap(),
        3 * BLOCK,
        "what was never written is not there"
    );
    assert_eq!((read[0], read[BLOCK], read[2 * BLOCK]), (1, 4, 4));
}

#[test]
fn metax_in_three_writes_takes_three_syncs() {
    let sync_min = Duration::from_millis(10);
    let separate_metax = Some("log".into());
    let chosen = Files { sync_min, separate_metax, ..Files::default() };
    let (dir, file) = file(&chosen, "log/1");
    write(&*file, 0, &[&[1; BLOCK]]);
    let begun = Instant::now();
    file.sync().unwrap();
    assert!(begun.elapsed() >= 3 * sync_min);
    let beside = dir.path().join("log.1.apart");
    assert_eq!(std::fs::metadata(beside).unwrap().len(), 2 * BLOCK as u64 / ENTRIES);
}

const ENTRIES: u64 = 4;

#[test]
fn reads_take_their_time_a_few_at_once_and_stand_still_at_the_end_of_a_period() {
    let shape = ModelledReads {
        read_min: Duration::from_millis(20),
        lanes: 2,
        stall: Duration::from_millis(200),
        stall_every: Duration::from_millis(1_000),
    };
    let chosen = Files { reads: Some(("f".into(), shape)), ..Files::default() };
    let begun = Instant::now();
    let (_dir, file) = file(&chosen, "f");
    write(&*file, 0, &[&[7; BLOCK]]);
    assert_eq!(file.read_cached_at(0, &mut [0; 8]).unwrap(), None, "nothing is cached");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut read = [0; 8];
                assert_eq!((file.read_at(0, &mut read).unwrap(), read), (8, [7; 8]));
            });
        }
    });
    assert!(begun.elapsed() >= 2 * shape.read_min, "two at once");
    slow::last(begun, Duration::from_millis(850));
    file.read_at(0, &mut [0; 8]).unwrap();
    assert!(begun.elapsed() >= shape.stall_every, "it stood still: {:?}", begun.elapsed());
}
