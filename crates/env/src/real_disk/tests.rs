use std::io::IoSlice;

use super::*;
use crate::disk::{read_file, replace_file};

fn disk() -> (tempfile::TempDir, RealDisk) {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(dir.path()).unwrap();
    (dir, disk)
}

#[test]
fn parts_are_written_one_after_the_other() {
    let (_dir, disk) = disk();
    let file = disk.open("a/b", OpenMode::CreateNew).unwrap();
    file.write_at(3, &[IoSlice::new(b"one"), IoSlice::new(b""), IoSlice::new(b"two")]).unwrap();
    file.sync().unwrap();
    let mut bytes = [0xFF; 16];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), 9);
    assert_eq!(&bytes[..9], b"\0\0\0onetwo");
    assert_eq!(file.read_device_at(3, &mut bytes).unwrap(), 6);
    assert_eq!(&bytes[..6], b"onetwo");
    assert_eq!(file.len().unwrap(), 9);
}

/// A file that is open for reading stands for one whose file system has ended: syncs succeed, writes do not.
#[test]
fn a_sync_after_which_nothing_can_be_written_is_not_believed() {
    let (_dir, disk) = disk();
    disk.open("a", OpenMode::CreateNew).unwrap().sync().unwrap();
    let file = disk.open("a", OpenMode::Read).unwrap();
    let failed = file.sync().unwrap_err();
    assert!(
        matches!(failed, DiskError::Broken { operation: "write after the sync", .. }),
        "{failed}"
    );
}

#[test]
fn more_parts_than_one_call_takes_are_all_written() {
    let (_dir, disk) = disk();
    let file = disk.open("many", OpenMode::CreateNew).unwrap();
    let pieces: Vec<[u8; 2]> = (0..3000u16).map(u16::to_le_bytes).collect();
    let parts: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    file.write_at(0, &parts).unwrap();
    assert_eq!(read_file(&disk, "many").unwrap(), pieces.concat());
}

#[test]
fn the_rest_of_a_short_write_begins_where_it_ended() {
    let parts = [IoSlice::new(b"abc"), IoSlice::new(b"defg")];
    let text = |written| {
        remaining_of(&parts, written).iter().flat_map(|p| p.to_vec()).collect::<Vec<u8>>()
    };
    assert_eq!(text(2), b"cdefg");
    assert_eq!(text(3), b"defg");
    assert_eq!(text(6), b"g");
}

#[test]
fn cached_reads_give_the_bytes_or_nothing() {
    let (_dir, disk) = disk();
    let file = disk.open("cached", OpenMode::CreateNew).unwrap();
    file.write_at(0, &[IoSlice::new(&[7; 10_000])]).unwrap();
    let mut bytes = [0; 10_000];
    if let Some(read) = file.read_cached_at(0, &mut bytes).unwrap() {
        assert_eq!(read, 10_000);
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
}

#[test]
fn allocated_ranges_are_zeros_and_lengths_can_be_cut() {
    let (_dir, disk) = disk();
    let file = disk.open("reserved", OpenMode::CreateNew).unwrap();
    file.allocate(0, 100_000).unwrap();
    assert_eq!(file.len().unwrap(), 100_000);
    let mut bytes = vec![1; 100_000];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), 100_000);
    assert!(bytes.iter().all(|byte| *byte == 0));
    file.set_len(10).unwrap();
    assert_eq!(file.len().unwrap(), 10);
    file.set_len(0).unwrap();
    assert!(file.is_empty().unwrap());
}

#[test]
fn zeros_at_the_end_are_known_only_where_nothing_was_written() {
    let (_dir, disk) = disk();
    let file = disk.open("reserved", OpenMode::CreateNew).unwrap();
    assert_eq!(file.zeros_from().unwrap(), 0);
    file.allocate(0, 1 << 20).unwrap();
    for (offset, len) in [(0, 10), (500_000, 70_000), (300_000, 1), ((1 << 20) - 1, 1)] {
        file.write_at(offset, &[IoSlice::new(&vec![7; len])]).unwrap();
        file.sync().unwrap();
        let from = file.zeros_from().unwrap();
        let mut bytes = vec![1; 1 << 20];
        file.read_device_at(0, &mut bytes).unwrap();
        assert!(from >= offset + len as u64 && from <= 1 << 20, "{from} after {offset}");
        assert!(bytes[from as usize..].iter().all(|byte| *byte == 0), "behind {from}");
    }
    file.set_len(100).unwrap();
    assert!(file.zeros_from().unwrap() <= 100);
}

#[test]
fn holes_are_believed_only_of_file_systems_that_are_known() {
    let [zfs, fuse, overlay, nfs] = [0x2FC1_2FC1, 0x6573_5546, 0x794C_7630, 0x6969];
    for magic in [zfs, fuse, overlay, nfs] {
        assert!(!are_holes_zeros(magic), "{magic:x}");
    }
    let (dir, disk) = disk();
    let file = disk.open("reserved", OpenMode::CreateNew).unwrap();
    file.allocate(0, 1 << 20).unwrap();
    file.sync().unwrap();
    let known = are_holes_zeros(rustix::fs::statfs(dir.path()).unwrap().f_type as u32);
    assert!(known || file.zeros_from().unwrap() == 1 << 20, "all of it is read elsewhere");
}

#[test]
fn names_do_not_leave_the_root() {
    let (_dir, disk) = disk();
    for name in ["../x", "a/../../x", "", "a//b", "a/", "./a", "a\0b"] {
        let answer = disk.open(name, OpenMode::CreateNew);
        assert!(matches!(answer, Err(DiskError::BadName { .. })), "{name:?}");
        assert!(matches!(disk.remove(name), Err(DiskError::BadName { .. })), "{name:?}");
    }
    let answer = disk.open("/dev/null", OpenMode::ReadWrite);
    assert!(matches!(answer, Err(DiskError::BadName { .. })));
    disk.open("here", OpenMode::CreateNew).unwrap();
    assert!(matches!(disk.rename("here", "d/there"), Err(DiskError::BadName { .. })));
}

#[test]
fn missing_and_present_files_are_distinguished() {
    let (_dir, disk) = disk();
    assert!(matches!(disk.open("x", OpenMode::Read), Err(DiskError::NotFound { .. })));
    assert!(matches!(disk.open("x", OpenMode::ReadWrite), Err(DiskError::NotFound { .. })));
    disk.open("x", OpenMode::CreateNew).unwrap();
    assert!(matches!(disk.open("x", OpenMode::CreateNew), Err(DiskError::Exists { .. })));
    assert!(matches!(disk.list("d"), Err(DiskError::NotFound { .. })));
    assert!(matches!(RealDisk::open("/no/such/place"), Err(DiskError::NotFound { .. })));
}

#[test]
fn lists_name_files_only_and_in_order() {
    let (_dir, disk) = disk();
    for name in ["d/2", "d/10", "d/1", "d/e/3"] {
        disk.open(name, OpenMode::CreateNew).unwrap();
    }
    disk.create_dir("d/f/g").unwrap();
    disk.create_dir("d/f").unwrap();
    disk.rename("d/2", "d/1").unwrap();
    disk.sync_dir("d").unwrap();
    assert_eq!(disk.list("d").unwrap(), ["1", "10"]);
    assert_eq!(disk.list("d/f/g").unwrap(), Vec::<String>::new());
}

#[test]
fn a_file_is_replaced_whole() {
    let (_dir, disk) = disk();
    replace_file(&disk, "", "f", b"first").unwrap();
    replace_file(&disk, "", "f", b"second").unwrap();
    assert_eq!(read_file(&disk, "f").unwrap(), b"second");
    assert_eq!(disk.list("").unwrap(), ["f"]);
}

#[test]
fn a_second_lock_is_refused_until_the_first_ends() {
    let (dir, disk) = disk();
    let lock = disk.lock("lock").unwrap();
    let other = RealDisk::create(dir.path().join("new/sub")).unwrap();
    other.lock("lock").unwrap();
    let again = RealDisk::open(dir.path()).unwrap();
    assert!(matches!(again.lock("lock"), Err(DiskError::Held { .. })));
    drop(lock);
    again.lock("lock").unwrap();
}

#[test]
fn a_hole_gives_space_back_where_the_file_system_can() {
    use std::os::unix::fs::MetadataExt;
    let (dir, disk) = disk();
    let file = disk.open("f", OpenMode::CreateNew).unwrap();
    file.write_at(0, &[IoSlice::new(&[7; 1 << 20])]).unwrap();
    file.sync().unwrap();
    let blocks = || std::fs::metadata(dir.path().join("f")).unwrap().blocks();
    let before = blocks();
    let punched = file.punch(65_536, 1 << 19).unwrap();
    let mut bytes = vec![9; 1 << 20];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), 1 << 20);
    let zeros = bytes.iter().filter(|byte| **byte == 0).count();
    if punched {
        assert_eq!(bytes[65_536..65_536 + (1 << 19)], vec![0; 1 << 19]);
        assert_eq!(zeros, 1 << 19);
        assert!(blocks() < before, "{} of {before} blocks", blocks());
    } else {
        assert_eq!((zeros, blocks()), (0, before), "nothing has changed");
    }
}

#[test]
fn a_full_device_is_reported() {
    if let Ok(disk) = RealDisk::open("/dev/shm") {
        let free = disk.free_bytes().unwrap();
        let name = format!("larder-full-{}", crate::rng::unique_u64());
        let file = disk.open(&name, OpenMode::CreateNew).unwrap();
        let answer = file.allocate(0, free + (1 << 40));
        disk.remove(&name).unwrap();
        assert!(matches!(answer, Err(DiskError::Full { .. })), "{answer:?}");
    }
}

#[test]
fn large_writes_read_back_as_written_wherever_they_begin_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(dir.path()).unwrap();
    let file = disk.open("f", OpenMode::CreateNew).unwrap();
    let mut expected = vec![0; 4 << 20];
    file.allocate(0, expected.len() as u64).unwrap();
    let body: Vec<u8> =
        (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let writes =
        [(0, 2_500_000), (4096, 1 << 20), (8192, 131_072), (100, 400_000), (1 << 20, 131_071)];
    for (number, (offset, len)) in writes.into_iter().enumerate() {
        let whole = &body[number..number + len];
        let parts: Vec<IoSlice<'_>> = whole.chunks(70_001).map(IoSlice::new).collect();
        file.write_at(offset as u64, &parts).unwrap();
        expected[offset..offset + len].copy_from_slice(whole);
        let mut found = vec![0; expected.len()];
        file.read_at(0, &mut found).unwrap();
        assert!(found == expected, "after write {number} of {len} bytes at {offset}");
    }
    file.sync().unwrap();
    let mut found = vec![0; expected.len()];
    file.read_device_at(0, &mut found).unwrap();
    assert!(found == expected, "on the device");
}
