use super::*;
use crate::disk::{read_file, replace_file};

const MIB: u64 = 1 << 20;

fn write(file: &Arc<dyn DiskFile>, offset: u64, bytes: &[u8]) {
    file.write_at(offset, &[IoSlice::new(bytes)]).unwrap();
}

/// A file that exists durably, with these bytes, synced.
fn synced_file(disk: &SimDisk, name: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = disk.open(name, OpenMode::CreateNew).unwrap();
    write(&file, 0, bytes);
    file.sync().unwrap();
    disk.sync_dir(split_name(name).unwrap().0).unwrap();
    file
}

#[test]
fn reads_see_writes_at_any_alignment() {
    let disk = SimDisk::new(1, MIB);
    let file = disk.open("d/f", OpenMode::CreateNew).unwrap();
    file.write_at(700, &[IoSlice::new(&[1; 400]), IoSlice::new(&[2; 3])]).unwrap();
    let mut bytes = vec![9; 2000];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), 1103);
    assert!(bytes[..700].iter().all(|b| *b == 0));
    assert!(bytes[700..1100].iter().all(|b| *b == 1));
    assert_eq!(bytes[1100..1103], [2; 3]);
    assert_eq!(file.read_at(1102, &mut bytes).unwrap(), 1);
    assert_eq!(file.read_at(5000, &mut bytes).unwrap(), 0);
}

#[test]
fn synced_bytes_survive_every_crash() {
    for seed in 0..50 {
        let disk = SimDisk::new(seed, MIB);
        let bytes: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
        synced_file(&disk, "d/f", &bytes);
        disk.crash();
        assert_eq!(read_file(&*disk.reopen(), "d/f").unwrap(), bytes);
    }
}

#[test]
fn unsynced_sectors_are_kept_or_lost_one_by_one() {
    let (mut torn, mut first_lost_second_kept) = (0, 0);
    for seed in 0..100 {
        let disk = SimDisk::new(seed, MIB);
        let file = synced_file(&disk, "f", &[1; 2048]);
        write(&file, 0, &[2; 2048]);
        disk.crash();
        let after = read_file(&*disk.reopen(), "f").unwrap();
        let kept: Vec<u8> = after.chunks(512).map(|sector| sector[0]).collect();
        for sector in after.chunks(512) {
            assert!(sector.iter().all(|b| *b == sector[0]), "a sector is never torn");
        }
        torn += u32::from(kept.contains(&1) && kept.contains(&2));
        first_lost_second_kept += u32::from(kept[..2] == [1, 2]);
    }
    assert!(torn > 50 && first_lost_second_kept > 10, "{torn} {first_lost_second_kept}");
}

#[test]
fn an_older_unsynced_image_of_a_sector_may_be_what_survives() {
    let survivors: std::collections::BTreeSet<u8> = (0..50)
        .map(|seed| {
            let disk = SimDisk::new(seed, MIB);
            let file = synced_file(&disk, "f", &[1; 512]);
            write(&file, 0, &[2; 512]);
            write(&file, 0, &[3; 512]);
            disk.crash();
            read_file(&*disk.reopen(), "f").unwrap()[0]
        })
        .collect();
    assert_eq!(survivors.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn unsynced_lengths_may_be_lost_and_bytes_behind_them_with_them() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let disk = SimDisk::new(seed, MIB);
        let file = synced_file(&disk, "f", &[1; 1024]);
        file.set_len(512).unwrap();
        file.allocate(0, 4096).unwrap();
        write(&file, 2048, &[5; 512]);
        disk.crash();
        let after = read_file(&*disk.reopen(), "f").unwrap();
        lengths.insert(after.len());
        assert!(after.len() < 2560 || matches!(after[2048], 0 | 5));
    }
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [512, 1024, 4096]);
}

#[test]
fn names_are_kept_or_lost_until_their_directory_is_synced() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let disk = SimDisk::new(seed, MIB);
        synced_file(&disk, "d/old", b"old");
        synced_file(&disk, "d/doomed", b"doomed");
        let file = disk.open("d/draft", OpenMode::CreateNew).unwrap();
        write(&file, 0, b"new");
        file.sync().unwrap();
        disk.rename("d/draft", "d/old").unwrap();
        disk.remove("d/doomed").unwrap();
        disk.crash();
        let disk = disk.reopen();
        let content = read_file(&*disk, "d/old").unwrap();
        assert!(content == b"old" || content == b"new", "a rename is atomic");
        seen.insert((disk.list("d").unwrap().join(" "), content));
    }
    let seen: Vec<_> = seen
        .iter()
        .map(|(names, content)| (&names[..], std::str::from_utf8(content).unwrap()))
        .collect();
    let expected = [
        ("doomed draft old", "old"),
        ("doomed old", "new"),
        ("doomed old", "old"),
        ("draft old", "old"),
        ("old", "new"),
        ("old", "old"),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn synced_names_survive_every_crash() {
    for seed in 0..50 {
        let disk = SimDisk::new(seed, MIB);
        replace_file(&*disk, "d", "f", b"first").unwrap();
        replace_file(&*disk, "d", "f", b"second").unwrap();
        disk.remove("d/none").unwrap_err();
        disk.crash();
        let disk = disk.reopen();
        assert_eq!(read_file(&*disk, "d/f").unwrap(), b"second");
        assert_eq!(disk.list("d").unwrap(), ["f"]);
    }
}

#[test]
fn handles_die_with_their_boot() {
    let disk = SimDisk::new(1, MIB);
    let file = synced_file(&disk, "f", b"x");
    disk.crash();
    assert!(!disk.is_up() && disk.reopen().is_up());
    assert_eq!(file.read_at(0, &mut [0]), Err(DiskError::PoweredOff));
    assert_eq!(file.sync(), Err(DiskError::PoweredOff));
    assert_eq!(disk.list(""), Err(DiskError::PoweredOff));
    let disk = disk.reopen();
    let file = disk.open("f", OpenMode::Read).unwrap();
    disk.kill();
    assert_eq!(file.len(), Err(DiskError::PoweredOff));
}

#[test]
fn a_killed_process_leaves_its_writes_in_the_cache_and_unsynced() {
    let mut lost = 0;
    for seed in 0..20 {
        let disk = SimDisk::new(seed, MIB);
        let file = synced_file(&disk, "f", &[1; 512]);
        write(&file, 0, &[2; 512]);
        disk.kill();
        let disk = disk.reopen();
        assert_eq!(read_file(&*disk, "f").unwrap(), [2; 512]);
        disk.crash();
        lost += u32::from(read_file(&*disk.reopen(), "f").unwrap()[0] == 1);
    }
    assert!(lost > 3, "{lost}");
}

#[test]
fn power_goes_during_the_chosen_operation() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let disk = SimDisk::new(seed, MIB);
        let file = synced_file(&disk, "f", &[1; 1024]);
        disk.power_off_after(2);
        write(&file, 1024, &[1; 512]);
        assert_eq!(file.write_at(0, &[IoSlice::new(&[2; 1024])]), Err(DiskError::PoweredOff));
        assert_eq!(file.sync(), Err(DiskError::PoweredOff));
        let after = read_file(&*disk.reopen(), "f").unwrap();
        outcomes.insert((after[0], after[512]));
    }
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), [(1, 1), (1, 2), (2, 1), (2, 2)]);
}

#[test]
fn a_sync_cut_short_by_power_promises_nothing() {
    let kept = (0..50).filter(|seed| {
        let disk = SimDisk::new(*seed, MIB);
        let file = synced_file(&disk, "f", &[1; 512]);
        write(&file, 0, &[2; 512]);
        disk.power_off_after(1);
        assert_eq!(file.sync(), Err(DiskError::PoweredOff));
        read_file(&*disk.reopen(), "f").unwrap()[0] == 2
    });
    assert!((5..45).contains(&kept.count()));
}

#[test]
fn a_failed_sync_forgets_what_it_dropped() {
    let mut lost = 0;
    for seed in 0..50 {
        let disk = SimDisk::new(seed, MIB);
        let file = synced_file(&disk, "f", &[1; 512]);
        write(&file, 0, &[2; 512]);
        disk.fail_next_sync();
        assert!(matches!(file.sync(), Err(DiskError::Broken { .. })));
        file.sync().unwrap();
        assert_eq!(read_file(&*disk, "f").unwrap()[0], 2, "the cache still has it");
        disk.crash();
        lost += u32::from(read_file(&*disk.reopen(), "f").unwrap()[0] == 1);
    }
    assert!((5..45).contains(&lost), "{lost}");
}

#[test]
fn a_device_read_passes_the_cache_by() {
    let seen: std::collections::BTreeSet<u8> = (0..50)
        .map(|seed| {
            let disk = SimDisk::new(seed, MIB);
            let file = synced_file(&disk, "f", &[1; 512]);
            write(&file, 0, &[2; 512]);
            disk.fail_next_sync();
            file.sync().unwrap_err();
            let mut byte = [0];
            file.read_device_at(0, &mut byte).unwrap();
            byte[0]
        })
        .collect();
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn an_operation_can_be_made_to_fail_once() {
    let disk = SimDisk::new(1, MIB);
    let file = synced_file(&disk, "f", b"x");
    disk.fail_after(2);
    write(&file, 0, b"y");
    let answer = file.write_at(0, &[IoSlice::new(b"z")]);
    assert!(matches!(answer, Err(DiskError::Broken { operation: "write", .. })));
    assert_eq!(read_file(&*disk, "f").unwrap(), b"y");
    write(&file, 0, b"z");
}

#[test]
fn space_is_counted_and_given_back() {
    let disk = SimDisk::new(1, 40_960);
    let file = disk.open("f", OpenMode::CreateNew).unwrap();
    file.allocate(0, 30_000).unwrap();
    assert_eq!(disk.free_bytes().unwrap(), 40_960 - 32_768);
    assert!(matches!(file.allocate(32_768, 8193), Err(DiskError::Full { .. })));
    let full = file.write_at(40_960, &[IoSlice::new(&[1; 8193])]);
    assert!(matches!(full, Err(DiskError::Full { .. })));
    write(&file, 0, &[1; 30_000]);
    write(&file, 32_768, &[1; 8192]);
    assert_eq!(disk.free_bytes().unwrap(), 0);
    file.set_len(4096).unwrap();
    assert_eq!(disk.free_bytes().unwrap(), 36_864);
    disk.sync_dir("").unwrap();
    disk.remove("f").unwrap();
    disk.sync_dir("").unwrap();
    assert_eq!(disk.free_bytes().unwrap(), 36_864, "an open file keeps its space");
    drop(file);
    assert_eq!(disk.free_bytes().unwrap(), 40_960);
    disk.set_capacity(0);
    assert_eq!(disk.free_bytes().unwrap(), 0);
}

#[test]
fn a_hole_reads_as_zeros_and_takes_no_space() {
    let disk = SimDisk::new(1, 10 * MIB);
    let file = synced_file(&disk, "f", &[7; 20_000]);
    assert_eq!(file.punch(100, 12_188), Ok(true));
    let mut bytes = [9; 20_000];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), 20_000, "it stays as long");
    assert!(bytes[..100].iter().chain(&bytes[12_288..]).all(|byte| *byte == 7));
    assert_eq!(bytes[100..12_288], [0; 12_188]);
    assert_eq!(disk.free_bytes().unwrap(), 10 * MIB - 3 * 4096, "two of five blocks are free");
    let mut block = [9; 4096];
    file.read_device_at(4096, &mut block).unwrap();
    assert_eq!(block, [0; 4096], "the device shows it before the sync");
    file.sync().unwrap();
    disk.crash();
    let disk = disk.reopen();
    let file = disk.open("f", OpenMode::ReadWrite).unwrap();
    file.read_at(4096, &mut block).unwrap();
    assert_eq!(block, [0; 4096]);
    disk.set_punches(false);
    assert_eq!(file.punch(0, 4096), Ok(false));
    file.read_at(12_288, &mut block).unwrap();
    assert_eq!(block, [7; 4096]);
}

#[test]
fn a_hole_that_was_not_synced_may_be_gone_block_by_block() {
    let (mut gone, mut there) = (0, 0);
    for seed in 0..20 {
        let disk = SimDisk::new(seed, 10 * MIB);
        let file = synced_file(&disk, "f", &[7; 3 * 4096]);
        assert_eq!(file.punch(0, 3 * 4096), Ok(true));
        disk.crash();
        let disk = disk.reopen();
        let bytes = read_file(&*disk, "f").unwrap();
        for block in bytes.chunks(4096) {
            assert!(block.iter().all(|byte| *byte == block[0]), "whole blocks");
            if block[0] == 0 { gone += 1 } else { there += 1 }
        }
    }
    assert!(gone > 10 && there > 10, "{gone} punched, {there} not");
}

#[test]
fn rot_and_flips_change_one_bit_on_the_medium() {
    let disk = SimDisk::new(7, MIB);
    synced_file(&disk, "a/f", &[0; 4096]);
    synced_file(&disk, "b/f", &[0; 4096]);
    assert_eq!(disk.rot("c/"), None);
    let (name, offset) = disk.rot("b/").unwrap();
    assert_eq!(name, "b/f");
    let bytes = read_file(&*disk, "b/f").unwrap();
    assert_eq!(bytes.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
    assert_ne!(bytes[offset as usize], 0);
    disk.flip_bit("a/f", 77).unwrap();
    disk.crash();
    assert_eq!(read_file(&*disk.reopen(), "a/f").unwrap()[77], 1);
}

#[test]
fn a_sector_that_cannot_be_read_fails_reads_until_it_is_written() {
    let disk = SimDisk::new(7, MIB);
    synced_file(&disk, "a/f", &[1; 4096]);
    disk.fail_reads("a/f", 1000..1025).unwrap();
    disk.crash();
    let disk = disk.reopen();
    let file = disk.open("a/f", OpenMode::ReadWrite).unwrap();
    let read = |from: u64, len: usize| {
        let mut bytes = vec![0; len];
        let read = file.read_at(from, &mut bytes);
        assert_eq!(file.read_device_at(from, &mut bytes), read);
        read
    };
    assert_eq!(read(0, 512), Ok(512));
    assert!(matches!(read(0, 513), Err(DiskError::Broken { .. })));
    assert!(matches!(read(1535, 1), Err(DiskError::Broken { .. })));
    assert_eq!(read(1536, 4096), Ok(2560));
    assert_eq!(disk.counts().reads_failed, 4);
    write(&file, 512, &[2; 600]);
    assert_eq!(read(0, 1024), Ok(1024));
    assert!(matches!(read(1024, 1), Err(DiskError::Broken { .. })), "half of it was written");
}

#[test]
fn a_misdirected_write_lands_elsewhere_in_the_same_file() {
    let disk = SimDisk::new(3, MIB);
    let small = synced_file(&disk, "d/small", &[1; 512]);
    let file = synced_file(&disk, "d/f", &[1; 4096]);
    disk.misdirect_next_write("d/");
    write(&small, 0, &[2; 512]);
    assert_eq!(read_file(&*disk, "d/small").unwrap(), [2; 512]);
    while disk.counts().writes_misdirected == 0 {
        write(&file, 0, &[2; 512]);
    }
    write(&file, 0, &[1; 512]);
    let bytes = read_file(&*disk, "d/f").unwrap();
    assert_eq!(bytes.iter().filter(|b| **b == 2).count(), 512);
}

#[test]
fn equal_seeds_have_equal_futures() {
    let run = |seed| {
        let disk = SimDisk::new(seed, MIB);
        let file = synced_file(&disk, "f", &[1; 8192]);
        write(&file, 0, &[2; 8192]);
        disk.crash();
        (read_file(&*disk.reopen(), "f").unwrap(), disk.counts())
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn a_handle_open_for_reading_does_not_write() {
    let disk = SimDisk::new(1, MIB);
    synced_file(&disk, "f", b"x");
    let file = disk.open("f", OpenMode::Read).unwrap();
    assert!(matches!(file.write_at(0, &[IoSlice::new(b"y")]), Err(DiskError::Broken { .. })));
    assert!(matches!(disk.open("f", OpenMode::CreateNew), Err(DiskError::Exists { .. })));
    assert!(matches!(disk.open("../f", OpenMode::Read), Err(DiskError::BadName { .. })));
}
