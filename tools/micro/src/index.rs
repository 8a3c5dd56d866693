//! The index, on a real disk.

use std::hint::black_box;

use larder_kv::limits::CACHE_BYTES;
use larder_kv::{Batch, Kv, KvReader, LsmKv};

use crate::Outcome;

const ROWS: u64 = 10_000;
const VALUE: [u8; 300] = [5; 300];

fn key(number: u64) -> [u8; 24] {
    let mut key = [b'k'; 24];
    // Neighbours in time are far apart in order, as keys of many clients are.
    key[8..16].copy_from_slice(&number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    key
}

pub(crate) fn apply(count: u64) -> Outcome {
    let dir = tempfile::tempdir()?;
    let kv = LsmKv::open(dir.path(), CACHE_BYTES)?;
    let mut batch = Batch::new();
    for number in 0..count {
        batch.clear();
        batch.position(&(number % 256).to_be_bytes(), &number.to_be_bytes());
        batch.put(&key(number), &VALUE);
        kv.apply(&batch)?;
    }
    Ok(())
}

pub(crate) fn get(count: u64) -> Outcome {
    let dir = tempfile::tempdir()?;
    let kv = LsmKv::open(dir.path(), CACHE_BYTES)?;
    let mut batch = Batch::new();
    for number in 0..ROWS {
        batch.clear();
        batch.put(&key(number), &VALUE);
        kv.apply(&batch)?;
    }
    kv.flush()?;
    for number in 0..count {
        black_box(kv.get(&key(number % ROWS))?.ok_or("a row is missing")?);
    }
    Ok(())
}
