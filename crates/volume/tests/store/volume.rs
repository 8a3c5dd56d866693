//! Data, space, failures and what a volume says about itself.

use std::io::IoSlice;
use std::sync::Arc;

use crate::support::*;
use larder_env::{Disk, DiskError, DiskFile, OpenMode, RealDisk, SimDisk};
use larder_types::limits::{CHUNK_BYTES_MAX, SUM_BYTES};
use larder_types::{BootId, Extent, LvId, PvId};
use larder_volume::{
    Answer, Mismatch, ReadError, Refusal, Volume, VolumeConfig, VolumeError, describe,
    verify_range, whole_sums,
};

fn extent(first: u32, blocks: u32) -> Extent {
    Extent { first, blocks }
}

#[test]
fn what_is_written_is_read_and_verified() {
    let (mut disk, mut volume) = opened(1);
    let scattered =
        chunk(grant(1, 5), vec![extent(100, 20), extent(7, 1), extent(300, 19)], 160_000);
    let small = chunk_at(grant(1, 6), 8, 1);
    let answers = all(&mut volume, vec![write(&scattered), write(&small)]);
    assert_eq!(answers, [Ok(Answer::Written); 2]);
    let reader = volume.reader();
    for (from, len) in [(0, 160_000), (81_920, 4096), (81_900, 5000), (159_999, 1), (5, 0)] {
        let expected = content(&scattered.grant, 160_000).slice(from..from + len);
        let (from, len) = (from as u32, len as u32);
        assert_eq!(reader.read(LV, &scattered.extents, from, len).unwrap(), expected);
        let cached = reader.read_cached(LV, &scattered.extents, from, len).unwrap();
        assert_eq!(cached, Some(expected));
    }
    let padded = reader.read(LV, &small.extents, 0, 4096).unwrap();
    assert!(padded[1..].iter().all(|byte| *byte == 0), "the last block is filled with zeros");
    drop(volume);
    let mut volume = restart(&mut disk, 2);
    let answers = all(&mut volume, vec![verify(&scattered), verify(&small)]);
    assert_eq!(answers, [verified(2); 2]);
}

#[test]
fn the_largest_chunk_goes_through() {
    let (_disk, mut volume) = opened(2);
    let large = chunk_at(grant(1, 5), 11, CHUNK_BYTES_MAX);
    assert_eq!(
        all(&mut volume, vec![write(&large), verify(&large)]),
        [Ok(Answer::Written), verified(1)]
    );
}

#[test]
fn a_group_costs_one_sync_and_adjacent_writes_one_write() {
    let (_disk, mut volume) = opened(3);
    one(&mut volume, write(&chunk_at(grant(1, 1), 200, 1))).unwrap();
    let before = volume.counters();
    let mut group: Vec<_> =
        (0..50).map(|n| write(&chunk_at(grant(1, 10 + n), 2 * n as u32, 8192))).collect();
    group.push(raise(key(1, 10)));
    group.push(void(grant(1, 11)));
    assert!(all(&mut volume, group).iter().all(Result::is_ok));
    let after = volume.counters();
    assert_eq!(after.syncs - before.syncs, 1);
    assert_eq!(after.headers_written - before.headers_written, 1);
    assert_eq!(after.writes - before.writes, 1);
    assert_eq!(after.bytes_written - before.bytes_written, 50 * 8192);
    assert_eq!((after.groups - before.groups, after.largest_group), (1, 52));
}

#[test]
fn a_group_that_changes_nothing_costs_no_sync() {
    let (_disk, mut volume) = opened(4);
    let before = volume.counters().syncs;
    let chunk = chunk_at(grant(1, 5), 0, 100);
    all(
        &mut volume,
        vec![
            open(1, key(1, 0), 1),
            raise(key(1, 0)),
            verify(&chunk),
            write(&chunk_at(grant(2, 5), 0, 100)),
        ],
    );
    assert_eq!(volume.counters().syncs, before);
}

#[test]
fn overlapping_writes_of_one_group_land_in_order() {
    let (_disk, mut volume) = opened(5);
    let (first, second) = (chunk_at(grant(1, 5), 0, 20_000), chunk_at(grant(1, 6), 2, 20_000));
    let answers = all(&mut volume, vec![write(&first), write(&second), verify(&second)]);
    assert_eq!(answers, [Ok(Answer::Written), Ok(Answer::Written), verified(1)]);
    let bad = one(&mut volume, verify(&first));
    assert_eq!(
        bad,
        Ok(Answer::Mismatch { boot: BootId(1), first_bad_sum: 0, is_unacknowledged: false })
    );
}

#[test]
fn writes_that_do_not_fit_their_extents_are_refused() {
    let (_disk, mut volume) = opened(6);
    let blocks = volume.pv_blocks();
    for extents in [
        vec![],
        vec![extent(0, 3)],
        vec![extent(0, 1)],
        vec![extent(blocks - 1, 2)],
        vec![extent(u32::MAX, 2)],
        vec![extent(0, 1), extent(0, 1)],
    ] {
        let misfit = chunk(grant(1, 5), extents, 8000);
        assert_eq!(one(&mut volume, write(&misfit)), Err(Refusal::OutOfRange));
        assert_eq!(one(&mut volume, verify(&misfit)), Err(Refusal::OutOfRange));
    }
    let mut short = chunk_at(grant(1, 5), 0, 8000);
    short.sums.pop();
    assert_eq!(one(&mut volume, verify(&short)), Err(Refusal::OutOfRange));
    assert_eq!(
        one(&mut volume, write(&chunk_at(grant(1, 5), blocks - 2, 8000))),
        Ok(Answer::Written)
    );
}

#[test]
fn damage_on_the_device_is_a_mismatch_at_its_place() {
    let (disk, mut volume) = opened(7);
    let chunk = chunk_at(grant(1, 5), 0, 3 * SUM_BYTES + 100);
    one(&mut volume, write(&chunk)).unwrap();
    let start = describe(&*disk, NAME).unwrap().data_start;
    disk.flip_bit(NAME, start + u64::from(2 * SUM_BYTES) + 77).unwrap();
    let mismatch =
        Ok(Answer::Mismatch { boot: BootId(1), first_bad_sum: 2, is_unacknowledged: false });
    assert_eq!(one(&mut volume, verify(&chunk)), mismatch);
    let never_written = chunk_at(grant(1, 6), 2000, 100);
    let mismatch =
        Ok(Answer::Mismatch { boot: BootId(1), first_bad_sum: 0, is_unacknowledged: false });
    assert_eq!(one(&mut volume, verify(&never_written)), mismatch);
}

#[test]
fn reads_are_widened_to_what_can_be_verified() {
    let (_disk, mut volume) = opened(8);
    let chunk = chunk_at(grant(1, 5), 3, 3 * SUM_BYTES + 100);
    one(&mut volume, write(&chunk)).unwrap();
    let reader = volume.reader();
    for (range, first_sum, len) in [
        (0..1, 0, SUM_BYTES),
        (SUM_BYTES - 1..SUM_BYTES + 1, 0, 2 * SUM_BYTES),
        (3 * SUM_BYTES + 5..chunk.len, 3, 100),
        (0..chunk.len, 0, chunk.len),
    ] {
        let whole = whole_sums(&chunk, range);
        assert_eq!((whole.first_sum, whole.len), (first_sum, len));
        let bytes = reader.read(LV, &chunk.extents, whole.from_byte, whole.len).unwrap();
        assert_eq!(verify_range(&chunk, whole.first_sum, &bytes), Ok(()));
        let mut bad = bytes.to_vec();
        *bad.last_mut().unwrap() ^= 1;
        let last = whole.first_sum + (whole.len - 1) / SUM_BYTES;
        assert_eq!(verify_range(&chunk, first_sum, &bad), Err(Mismatch { sum_index: last }));
    }
}

#[test]
fn reads_outside_of_what_is_there_are_refused() {
    let (_disk, volume) = opened(9);
    let reader = volume.reader();
    let out_of_range = Err(ReadError::OutOfRange { lv: LV });
    assert_eq!(reader.read(LV, &[extent(0, 1)], 1, 4096), out_of_range);
    assert_eq!(reader.read(LV, &[extent(volume.pv_blocks(), 1)], 0, 1), out_of_range);
    assert_eq!(reader.read(LV, &[extent(0, 1)], 0, 1), Err(ReadError::Short { lv: LV }));
    let unknown = LvId(41);
    let refused = reader.read(unknown, &[extent(0, 1)], 0, 1);
    assert_eq!(refused, Err(ReadError::UnknownLv { lv: unknown }));
}

#[test]
fn a_full_disk_refuses_writes_and_nothing_else() {
    let (mut disk, mut volume) = opened(10);
    let kept = chunk_at(grant(1, 5), 0, 100_000);
    one(&mut volume, write(&kept)).unwrap();
    let used = CAPACITY - disk.free_bytes().unwrap();
    disk.set_capacity(used + 8192);
    let (small, large) =
        (chunk_at(grant(1, 6), 256, 8192), chunk_at(grant(1, 7), 1000, CHUNK_BYTES_MAX));
    let inside = chunk_at(grant(1, 8), 100, 4096);
    let answers = all(
        &mut volume,
        vec![
            write(&large),
            write(&inside),
            write(&small),
            raise(key(1, 6)),
            void(grant(1, 7)),
            write(&chunk_at(grant(1, 9), 258, 1)),
        ],
    );
    assert_eq!(
        answers,
        [
            Err(Refusal::Full),
            Ok(Answer::Written),
            Ok(Answer::Written),
            Ok(Answer::Floor(key(1, 6))),
            Ok(Answer::Voided),
            Err(Refusal::Full),
        ]
    );
    drop(volume);
    let mut volume = restart(&mut disk, 2);
    let answers = all(&mut volume, vec![verify(&kept), verify(&small), verify(&inside)]);
    assert_eq!(answers, [verified(2); 3]);
    one(&mut volume, open(1, key(1, 0), 2)).unwrap();
    assert_eq!(one(&mut volume, write(&inside)), Ok(Answer::Written), "reserved space stays so");
    disk.set_capacity(CAPACITY);
    assert_eq!(one(&mut volume, write(&chunk_at(grant(1, 9), 500, 1))), Ok(Answer::Written));
}

#[test]
fn space_is_reserved_in_growing_steps() {
    let (disk, mut volume) = opened(11);
    let mut seen = Vec::new();
    for block in (0..volume.pv_blocks()).step_by(128) {
        one(&mut volume, write(&chunk_at(grant(1, 5), block, 1))).unwrap();
        let now = volume.counters().provisioned_bytes >> 20;
        if seen.last() != Some(&now) {
            seen.push(now);
        }
    }
    assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 16]);
    assert_eq!(describe(&*disk, NAME).unwrap().pvs[0].provisioned_bytes, 16 << 20);
}

#[test]
fn a_volume_that_may_not_grow_takes_writes_where_space_was_reserved() {
    let (_disk, mut volume) = opened(13);
    one(&mut volume, write(&chunk_at(grant(1, 5), 0, 1))).unwrap();
    volume.set_growth(0);
    one(&mut volume, write(&chunk_at(grant(1, 6), 255, 1))).unwrap();
    let beyond = write(&chunk_at(grant(1, 7), 256, 1));
    assert_eq!(one(&mut volume, beyond.clone()), Err(Refusal::Full));
    volume.set_growth((1 << 20) + 5000);
    one(&mut volume, beyond).unwrap();
    let next_step = write(&chunk_at(grant(1, 8), 512, 1));
    one(&mut volume, next_step).unwrap();
    let next_block = write(&chunk_at(grant(1, 9), 513, 1));
    assert_eq!(one(&mut volume, next_block), Err(Refusal::Full), "all of it was taken");
}

#[test]
fn a_failed_sync_breaks_the_disk_for_good() {
    let (mut disk, mut volume) = opened(12);
    let before = chunk_at(grant(1, 4), 0, 100);
    one(&mut volume, write(&before)).unwrap();
    let chunk = chunk_at(grant(1, 5), 8, 100);
    disk.fail_next_sync();
    let answers = all(
        &mut volume,
        vec![
            write(&chunk),
            write(&chunk_at(grant(9, 9), 0, 1)),
            raise(key(1, 5)),
            void(grant(1, 6)),
        ],
    );
    assert_eq!(answers, [Err(Refusal::Broken); 4]);
    assert!(matches!(volume.broken(), Some(DiskError::Broken { .. })));
    let later = all(&mut volume, vec![verify(&before), write(&chunk), open(2, key(1, 5), 1)]);
    assert_eq!(later, [Err(Refusal::Broken); 3], "it is never tried again");
    drop(volume);
    let mut volume = restart(&mut disk, 2);
    assert_eq!(one(&mut volume, verify(&before)), verified(2));
}

#[test]
fn a_failed_sync_before_a_verification_fails_the_whole_group() {
    let (disk, mut volume) = opened(13);
    let chunk = chunk_at(grant(1, 5), 0, 100);
    disk.fail_next_sync();
    let answers = all(&mut volume, vec![write(&chunk), verify(&chunk), raise(key(1, 5))]);
    assert_eq!(answers, [Err(Refusal::Broken); 3]);
}

#[test]
fn an_lv_has_one_pv_and_a_pv_one_lv() {
    let (mut disk, mut volume) = opened(14);
    assert_eq!(one(&mut volume, create(0, LV)), Ok(Answer::Created), "a repeat");
    assert_eq!(one(&mut volume, create(1, LV)), Err(Refusal::Outdated));
    assert_eq!(one(&mut volume, create(0, LvId(41))), Err(Refusal::Outdated));
    assert_eq!(one(&mut volume, create(4, LvId(41))), Err(Refusal::OutOfRange));
    let created = all(&mut volume, vec![create(3, LvId(41)), create(2, LvId(42))]);
    assert_eq!(created, [Ok(Answer::Created); 2]);
    drop(volume);
    let volume = restart(&mut disk, 2);
    let lvs: Vec<_> = volume.lvs().collect();
    assert_eq!(lvs, [(LV, PvId(0)), (LvId(41), PvId(3)), (LvId(42), PvId(2))]);
    assert_eq!(volume.free_pvs().collect::<Vec<_>>(), [PvId(1)]);
}

#[test]
fn one_slot_of_a_header_may_rot_but_not_two() {
    for both in [false, true] {
        let (mut disk, mut volume) = opened(15);
        one(&mut volume, create(1, LvId(41))).unwrap();
        one(&mut volume, raise(key(1, 9))).unwrap();
        drop(volume);
        // The older slot of PV 0 is the first: two writes made it, the open and the floor two more.
        let slots: &[u64] = if both { &[8192, 12288] } else { &[12288] };
        for slot in slots {
            disk.flip_bit(NAME, slot + 40).unwrap();
        }
        let mut volume = restart(&mut disk, 2);
        let damaged: Vec<_> = volume.damaged_pvs().collect();
        if both {
            assert_eq!(damaged, [PvId(0)]);
            assert_eq!(one(&mut volume, open(1, key(1, 0), 2)), Err(Refusal::UnknownLv));
            assert_eq!(one(&mut volume, create(0, LvId(43))), Err(Refusal::Damaged));
            assert_eq!(describe(&*disk, NAME).unwrap().damaged, [PvId(0)]);
        } else {
            assert_eq!(damaged, []);
            assert_eq!(one(&mut volume, open(1, key(1, 0), 2)), Ok(Answer::Floor(key(1, 9))));
        }
        assert!(volume.lvs().any(|(lv, _)| lv == LvId(41)), "other PVs are not concerned");
    }
}

#[test]
fn one_slot_of_a_header_may_be_unreadable_but_not_two() {
    for both in [false, true] {
        let (mut disk, mut volume) = opened(15);
        one(&mut volume, create(1, LvId(41))).unwrap();
        one(&mut volume, raise(key(1, 9))).unwrap();
        drop(volume);
        // As above: the newer slot of PV 0 is the first.
        let lost = if both { 8192..16384 } else { 12288..16384 };
        disk.fail_reads(NAME, lost).unwrap();
        let damaged = if both { vec![PvId(0)] } else { vec![] };
        assert_eq!(describe(&*disk, NAME).unwrap().damaged, damaged);
        let mut volume = restart(&mut disk, 2);
        assert!(disk.counts().reads_failed > 0);
        assert_eq!(volume.damaged_pvs().collect::<Vec<_>>(), damaged);
        let expected = if both { Err(Refusal::UnknownLv) } else { Ok(Answer::Floor(key(1, 9))) };
        assert_eq!(one(&mut volume, open(1, key(1, 0), 2)), expected);
        assert!(volume.lvs().any(|(lv, _)| lv == LvId(41)), "other PVs are not concerned");
    }
}

#[test]
fn a_superblock_copy_that_cannot_be_read_is_replaced() {
    for copy in [0, 4096] {
        let (mut disk, volume) = opened(16);
        drop(volume);
        disk.fail_reads(NAME, copy..copy + 4096).unwrap();
        assert_eq!(describe(&*disk, NAME).unwrap().superblock_copies, 1);
        let volume = restart(&mut disk, 2);
        assert_eq!(volume.identity(), (11, config().disk_id));
        assert_eq!(describe(&*disk, NAME).unwrap().superblock_copies, 2);
        drop(volume);
        disk.fail_reads(NAME, 0..8192).unwrap();
        let refused = Volume::open(&*disk, NAME, BootId(3)).map(|_| ());
        assert!(matches!(refused, Err(VolumeError::Disk(_))), "{refused:?}");
    }
}

#[test]
fn a_rotten_superblock_copy_is_replaced() {
    let (mut disk, volume) = opened(16);
    drop(volume);
    disk.flip_bit(NAME, 20).unwrap();
    assert_eq!(describe(&*disk, NAME).unwrap().superblock_copies, 1);
    let volume = restart(&mut disk, 2);
    assert_eq!(volume.identity(), (11, config().disk_id));
    assert_eq!(describe(&*disk, NAME).unwrap().superblock_copies, 2);
    drop(volume);
    for copy in [0, 4096] {
        disk.flip_bit(NAME, copy + 20).unwrap();
    }
    let refused = Volume::open(&*disk, NAME, BootId(3)).map(|_| ());
    assert!(matches!(refused, Err(VolumeError::Damaged { .. })), "{refused:?}");
}

#[test]
fn a_volume_is_made_once_and_with_sane_numbers() {
    let disk = SimDisk::new(17, CAPACITY);
    let create = |config| Volume::create(&*disk, NAME, config, BootId(1)).map(|_| ());
    for bad in [
        VolumeConfig { pv_bytes: 0, ..config() },
        VolumeConfig { pv_bytes: 1 << 40, ..config() },
        VolumeConfig { pv_bytes: (1 << 20) + 4096, ..config() },
        VolumeConfig { pv_count_max: 0, ..config() },
        VolumeConfig { pv_count_max: 20_000, ..config() },
    ] {
        assert!(matches!(create(bad), Err(VolumeError::Config { .. })), "{bad:?}");
    }
    create(config()).unwrap();
    assert_eq!(create(config()), Err(VolumeError::Exists { name: NAME.into() }));
    assert_eq!(disk.list("volumes").unwrap(), ["disk"]);
    let missing = Volume::open(&*disk, "volumes/other", BootId(1)).map(|_| ());
    assert!(matches!(missing, Err(VolumeError::Disk(DiskError::NotFound { .. }))));
    disk.open("volumes/junk", OpenMode::CreateNew).unwrap().set_len(1 << 20).unwrap();
    let junk = Volume::open(&*disk, "volumes/junk", BootId(1)).map(|_| ());
    assert!(matches!(junk, Err(VolumeError::Damaged { .. })));
}

/// A disk whose file system forgets reservations of data, as those that copy on write do.
struct Forgetful(Arc<SimDisk>);

struct ForgetfulFile(Arc<dyn DiskFile>);

impl Disk for Forgetful {
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        Ok(Arc::new(ForgetfulFile(self.0.open(name, mode)?)))
    }
    fn create_dir(&self, name: &str) -> Result<(), DiskError> {
        self.0.create_dir(name)
    }
    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.0.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.0.rename(from, to)
    }
    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        self.0.list(dir)
    }
    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        self.0.sync_dir(dir)
    }
    fn free_bytes(&self) -> Result<u64, DiskError> {
        self.0.free_bytes()
    }
}

impl DiskFile for ForgetfulFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        self.0.read_at(offset, buf)
    }
    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<Option<usize>, DiskError> {
        self.0.read_cached_at(offset, buf)
    }
    fn read_device_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        self.0.read_device_at(offset, buf)
    }
    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DiskError> {
        self.0.write_at(offset, parts)
    }
    fn sync(&self) -> Result<(), DiskError> {
        self.0.sync()
    }
    fn allocate(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        if offset == 0 { self.0.allocate(offset, len) } else { Ok(()) }
    }
    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        self.0.set_len(len)
    }
    fn len(&self) -> Result<u64, DiskError> {
        self.0.len()
    }
}

#[test]
fn a_write_that_finds_the_disk_full_late_is_refused_alone() {
    let disk = SimDisk::new(18, CAPACITY);
    let mut volume = Volume::create(&Forgetful(disk.clone()), NAME, config(), BootId(1)).unwrap();
    all(&mut volume, vec![create(0, LV), open(1, key(1, 0), 1)]);
    let used = CAPACITY - disk.free_bytes().unwrap();
    disk.set_capacity(used + 8 * 4096);
    let (fits, adjacent) = (chunk_at(grant(1, 5), 0, 8192), chunk_at(grant(1, 6), 100, 40_000));
    let split = chunk(grant(1, 7), vec![extent(200, 20), extent(4, 1)], 21 * 4096);
    let answers = all(
        &mut volume,
        vec![
            write(&fits),
            write(&chunk_at(grant(2, 5), 50, 1)),
            write(&adjacent),
            write(&chunk_at(grant(1, 8), 110, 4096)),
            write(&split),
            raise(key(1, 1)),
        ],
    );
    assert_eq!(
        answers,
        [
            Ok(Answer::Written),
            Err(Refusal::WrongView { current: larder_types::View(1) }),
            Err(Refusal::Full),
            Err(Refusal::Full),
            Err(Refusal::Full),
            Ok(Answer::Floor(key(1, 1))),
        ]
    );
    assert_eq!(volume.broken(), None);
    assert_eq!(one(&mut volume, verify(&fits)), verified(1));
    disk.set_capacity(CAPACITY);
    assert_eq!(all(&mut volume, vec![write(&split), verify(&split)])[1], verified(1));
}

#[test]
fn it_works_on_a_real_file_from_several_threads() {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(dir.path()).unwrap();
    let mut volume = Volume::create(&disk, NAME, config(), BootId(1)).unwrap();
    all(&mut volume, vec![create(0, LV), open(1, key(1, 0), 1)]);
    let chunks: Vec<_> =
        (0..40).map(|n| chunk_at(grant(1, n), 40 * n as u32, 70_000 + n as u32)).collect();
    let reader = volume.reader();
    std::thread::scope(|scope| {
        let (written, may_read) = std::sync::mpsc::channel();
        let chunks = &chunks;
        scope.spawn(move || {
            for chunk in chunks {
                assert_eq!(one(&mut volume, write(chunk)), Ok(Answer::Written));
                written.send(chunk).unwrap();
            }
        });
        for chunk in may_read {
            let bytes = reader.read(LV, &chunk.extents, 0, chunk.len).unwrap();
            assert_eq!(verify_range(chunk, 0, &bytes), Ok(()));
        }
    });
    let mut volume = Volume::open(&disk, NAME, BootId(2)).unwrap();
    let verdicts = all(&mut volume, chunks.iter().map(verify).collect());
    assert_eq!(verdicts, vec![verified(2); chunks.len()]);
    assert_eq!(describe(&disk, NAME).unwrap().pvs.len(), 1);
}
