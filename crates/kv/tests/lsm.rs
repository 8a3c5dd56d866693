//! Behaviour that only the real index can show: files, threads, damage.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use larder_kv::limits::CACHE_BYTES;
use larder_kv::{Batch, Kv, KvError, KvReader, LsmKv, Progress};

fn numbered(round: u32) -> Batch {
    let mut batch = Batch::new();
    for key in 0..5u32 {
        batch.put(format!("row {key}").as_bytes(), &round.to_be_bytes());
    }
    batch.put(format!("own {round}").as_bytes(), &[7; 300]);
    batch.position(b"at", &round.to_be_bytes());
    batch
}

fn position(kv: &LsmKv) -> Option<u32> {
    kv.get(b"at").unwrap().map(|value| u32::from_be_bytes(value[..].try_into().unwrap()))
}

/// The number that all rows of the latest batch carry.
fn number(reader: &(impl KvReader + ?Sized)) -> Option<u32> {
    let mut numbers = Vec::new();
    reader
        .scan(b"row", None, &mut |_, value| {
            numbers.push(u32::from_be_bytes(value.try_into().unwrap()));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(numbers.is_empty() || numbers.len() == 5, "a part of a batch: {numbers:?}");
    assert!(numbers.iter().all(|number| *number == numbers[0]), "parts of batches: {numbers:?}");
    if let Some(last) = numbers.first() {
        assert!(reader.get(format!("own {last}").as_bytes()).unwrap().is_some(), "own {last}");
    }
    numbers.first().copied()
}

#[test]
fn readers_and_flushes_never_see_a_part_of_a_batch() {
    const ROUNDS: u32 = 3000;
    let dir = tempfile::tempdir().unwrap();
    let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                kv.apply(&numbered(round)).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                kv.flush().unwrap();
                kv.maintain().unwrap();
            }
        });
        let mut last = None;
        while !done.load(Ordering::Acquire) {
            let snapshot = kv.snapshot().unwrap();
            let seen = number(&*snapshot);
            assert!(seen >= last, "{seen:?} after {last:?}");
            assert_eq!(number(&*snapshot), seen, "a snapshot moved");
            last = number(&kv);
        }
    });
    let before = number(&kv);
    assert_eq!(before, Some(ROUNDS - 1));
    drop(kv);
    let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
    let flushed = number(&kv);
    assert!(flushed <= before);
    assert_eq!(position(&kv), flushed, "the position is that of the last batch in the tables");
    kv.apply(&numbered(ROUNDS)).unwrap();
    assert_eq!(
        number(&kv),
        Some(ROUNDS),
        "numbers given after a restart are above all earlier ones"
    );
}

#[test]
fn compaction_merges_tables_and_drops_what_nobody_can_read() {
    let dir = tempfile::tempdir().unwrap();
    let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
    let mut batch = Batch::new();
    for round in 0..20u8 {
        batch.clear();
        for key in 0..200u32 {
            batch.put(&key.to_be_bytes(), &[round; 500]);
        }
        kv.apply(&batch).unwrap();
        kv.flush().unwrap();
    }
    let before = kv.disk_bytes();
    let mut steps = 0;
    while kv.maintain().unwrap() == Progress::Worked {
        steps += 1;
        assert!(steps < 100, "compaction comes to an end");
    }
    assert!(steps > 0 && kv.disk_bytes() * 3 < before, "{before} to {}", kv.disk_bytes());
    let tables = std::fs::read_dir(dir.path().join("tables")).unwrap().count();
    assert!(tables < 8, "{tables} table files are left");
    for key in 0..200u32 {
        assert_eq!(&kv.get(&key.to_be_bytes()).unwrap().unwrap()[..], [19; 500]);
    }
}

#[test]
fn a_closed_snapshot_holds_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
    kv.apply(&numbered(0)).unwrap();
    let snapshot = kv.snapshot().unwrap();
    let versions = || {
        let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with('v')).count()
    };
    for round in 1..6 {
        kv.apply(&numbered(round)).unwrap();
        kv.flush().unwrap();
    }
    assert_eq!(number(&*snapshot), Some(0));
    assert!(versions() > 1);
    drop(snapshot);
    kv.apply(&numbered(6)).unwrap();
    kv.flush().unwrap();
    assert_eq!(versions(), 1);
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// Reads all rows by scan and by get, or finds that the index is damaged.
fn read_all(dir: &Path) -> Result<Rows, KvError> {
    let kv = LsmKv::open(dir, 0)?;
    let mut rows = Vec::new();
    kv.scan(b"", None, &mut |key, value| {
        rows.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    for (key, value) in &rows {
        assert_eq!(kv.get(key)?.as_deref(), Some(&value[..]));
    }
    Ok(rows)
}

#[test]
fn a_flipped_bit_in_any_file_is_never_served() {
    let dir = tempfile::tempdir().unwrap();
    {
        let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
        for round in 0..3 {
            kv.apply(&numbered(round)).unwrap();
            kv.flush().unwrap();
        }
    }
    let good = read_all(dir.path()).unwrap();
    assert_eq!(good.len(), 9);
    let mut found = 0;
    for file in files(dir.path()) {
        let bytes = std::fs::read(&file).unwrap();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << (at % 8);
            std::fs::write(&file, &bad).unwrap();
            match read_all(dir.path()) {
                Ok(rows) => assert_eq!(rows, good, "byte {at} of {}", file.display()),
                Err(KvError::Damaged { .. } | KvError::Format { .. }) => found += 1,
                Err(other) => panic!("byte {at} of {}: {other}", file.display()),
            }
        }
        std::fs::write(&file, &bytes).unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        if name == "current" || name.starts_with('v') {
            assert!(found >= bytes.len(), "every byte of {name} is checked");
        }
        found = 0;
    }
    assert_eq!(read_all(dir.path()).unwrap(), good);
}

#[test]
fn a_flipped_bit_in_any_part_of_a_table_is_found_by_verification() {
    let dir = tempfile::tempdir().unwrap();
    {
        let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
        for round in 0..10 {
            kv.apply(&numbered(round)).unwrap();
            kv.flush().unwrap();
            while kv.maintain().unwrap() == Progress::Worked {}
        }
        kv.verify_tables(&|| true).unwrap();
        assert!(kv.damage().is_none());
    }
    let tables = files(&dir.path().join("tables"));
    assert!(!tables.is_empty());
    for file in tables {
        let bytes = std::fs::read(&file).unwrap();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << (at % 8);
            std::fs::write(&file, &bad).unwrap();
            // Some parts are read when the index is opened.
            let Ok(kv) = LsmKv::open(dir.path(), 0) else { continue };
            kv.verify_tables(&|| false).unwrap();
            assert!(kv.damage().is_none(), "nothing was read");
            let found = kv.verify_tables(&|| true);
            assert!(matches!(found, Err(KvError::Damaged { .. })), "byte {at}: {found:?}");
            assert!(kv.damage().is_some());
        }
        std::fs::write(&file, &bytes).unwrap();
    }
}

#[test]
fn an_index_without_its_version_is_not_taken_for_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    {
        let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
        kv.apply(&numbered(0)).unwrap();
        kv.flush().unwrap();
    }
    std::fs::remove_file(dir.path().join("current")).unwrap();
    assert!(matches!(LsmKv::open(dir.path(), CACHE_BYTES), Err(KvError::Damaged { .. })));
}

#[test]
fn after_a_failed_flush_none_is_tried_and_reads_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let (tables, away) = (dir.path().join("tables"), dir.path().join("elsewhere"));
    let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
    kv.apply(&numbered(0)).unwrap();
    kv.flush().unwrap();
    kv.apply(&numbered(1)).unwrap();
    std::fs::rename(&tables, &away).unwrap();
    let failed = kv.flush().unwrap_err();
    std::fs::rename(&away, &tables).unwrap();
    assert_eq!(kv.flush(), Err(failed.clone()));
    assert_eq!(kv.maintain(), Err(failed));
    kv.apply(&numbered(2)).unwrap();
    assert_eq!(number(&kv), Some(2));
    drop(kv);
    let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
    assert_eq!(number(&kv), Some(0));
}

#[test]
fn a_position_alone_is_durable_after_a_flush() {
    let dir = tempfile::tempdir().unwrap();
    for round in [4_u32, 9] {
        let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
        for at in [round - 1, round] {
            let mut batch = Batch::new();
            batch.position(b"at", &at.to_be_bytes());
            kv.apply(&batch).unwrap();
        }
        assert!(kv.unflushed_bytes() > 0);
        kv.flush().unwrap();
        assert_eq!(kv.unflushed_bytes(), 0);
        drop(kv);
        assert_eq!(position(&LsmKv::open(dir.path(), CACHE_BYTES).unwrap()), Some(round));
    }
}

/// Rows of several tables, in turns, so that a compaction merges these.
fn in_turns(tables: u32) -> impl Iterator<Item = (u32, Vec<u8>, Vec<u8>)> {
    (0..tables * 100).map(move |number| {
        let value = number.to_be_bytes().repeat(100);
        (number % tables, format!("in turn {number:06}").into_bytes(), value)
    })
}

#[test]
fn a_compaction_that_meets_a_rotten_block_leaves_all_else_as_it_was() {
    const TABLES: u32 = 5;
    let dir = tempfile::tempdir().unwrap();
    {
        let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
        for table in 0..TABLES {
            let mut batch = Batch::new();
            in_turns(TABLES)
                .filter(|(of, ..)| *of == table)
                .for_each(|(_, key, value)| batch.put(&key, &value));
            kv.apply(&batch).unwrap();
            kv.flush().unwrap();
        }
        assert_eq!(kv.damage(), None);
    }
    let needle = 250u32.to_be_bytes().repeat(99);
    let rotten = files(&dir.path().join("tables")).into_iter().find_map(|file| {
        let bytes = std::fs::read(&file).unwrap();
        let at = bytes.windows(needle.len()).position(|window| window == needle)?;
        Some((file, at, bytes))
    });
    let (file, at, mut bytes) = rotten.unwrap();
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();

    let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
    let met = (0..10).find_map(|_| kv.maintain().err());
    let met = met.expect("the rotten table is among those that are merged");
    assert!(matches!(met, KvError::Damaged { .. }), "{met}");
    assert_eq!(kv.damage(), Some(&met));
    let files_before = files(&dir.path().join("tables")).len();
    assert_eq!(kv.maintain(), Err(met), "none is begun again");
    assert_eq!(files(&dir.path().join("tables")).len(), files_before);
    kv.apply(&numbered(0)).unwrap();
    kv.flush().unwrap();
    drop(kv);
    for _ in 0..2 {
        let kv = LsmKv::open(dir.path(), CACHE_BYTES).unwrap();
        assert_eq!(number(&kv), Some(0), "flushes go on");
        let mut lost = Vec::new();
        for (_, key, value) in in_turns(TABLES) {
            match kv.get(&key) {
                Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
                Err(KvError::Damaged { .. }) => lost.push(key),
                Err(other) => panic!("{other}"),
            }
        }
        assert!(lost.contains(&b"in turn 000250".to_vec()) && lost.len() < 30, "{}", lost.len());
        assert!(kv.damage().is_some());
    }
}
