//! Measures what an index of very many objects takes: memory, disk, time. By default they are a
//! few; by hand, in release, as many as wanted:
//!
//! ```text
//! LARDER_PACK_ENTRIES=10000000 LARDER_PACK_DIR=/some/disk \
//!     cargo test --release -p larder-pack --lib many_entries -- --nocapture
//! ```
//!
//! The entries go in as a rebuild applies those of footers, with the flushes that a running store makes. Their keys come
//! in no order, which is the most that one can ask of the tree.

use std::time::{Duration, Instant};

use larder_env::SeededRng;
use larder_kv::Progress;
use larder_types::{BucketId, ETag, HybridClock, Metax, ObjectKey, OpSeq};

use crate::format::entry::{Change, Container, Content, Entry, Place};
use crate::format::rows::Applied;
use crate::ids::{BlobId, WorkerId};
use crate::index::Index;

const BUCKET: BucketId = BucketId(7);
/// Bytes of every object, and objects of a blob.
const OBJECT_BYTES: u64 = 8192;
const OBJECTS_OF_BLOB: u64 = 131_072;
/// Entries that are quick enough for every run of the tests.
const ENTRIES: u64 = 10_000;
/// Lookups that are timed.
const LOOKUPS: u64 = 10_000;
/// Bytes of memory that an index may have taken at the end, however many entries it has.
const MEMORY_BYTES_MAX: u64 = 768 << 20;

fn key(number: u64) -> ObjectKey {
    // Mixed by a bijection, so that no two numbers give the same.
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
    ObjectKey::new(&format!("data/{:04x}/{mixed:016x}.bin", mixed >> 52)).unwrap()
}

fn entry(number: u64) -> (BlobId, Entry) {
    let here = BlobId { worker: WorkerId(1), seq: 1 + number / OBJECTS_OF_BLOB };
    let (seed, sums) = (number, vec![number.wrapping_mul(3)]);
    let offset = number % OBJECTS_OF_BLOB * OBJECT_BYTES;
    let container = Container::Blob(here);
    let place = Place { container, offset, len: OBJECT_BYTES, seed, sum_bytes: 65_536, sums };
    let clock = HybridClock::at_ms(1_700_000_000_000 + number);
    let metax = Metax::new(
        OBJECT_BYTES,
        clock,
        ETag::Md5(u128::from(number).wrapping_mul(0xABCD_EF01_2345).to_le_bytes()),
    );
    let content = Content::Run(place);
    let change = Change::Put { bucket: BUCKET, key: key(number), metax, content };
    (here, Entry { seq: OpSeq(1 + number), clock, change })
}

/// Bytes of memory of this process that no file backs.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn maintain(index: &Index) {
    index.flush().unwrap();
    while index.maintain().unwrap() == Progress::Worked {}
}

/// Looks for entries, or for keys that there are not; how long each took.
fn look(index: &Index, entries: u64, is_there: bool) -> Duration {
    let mut rng = SeededRng::new(entries);
    let begun = Instant::now();
    for _ in 0..LOOKUPS {
        let number = rng.below(entries) + if is_there { 0 } else { 1 << 50 };
        assert_eq!(index.version(BUCKET, &key(number)).unwrap().is_some(), is_there);
    }
    begun.elapsed() / LOOKUPS as u32
}

fn report(index: &Index, entries: u64, took: Duration) {
    maintain(index);
    let (there, not) = (look(index, entries, true), look(index, entries, false));
    let disk = index.disk_bytes();
    println!(
        "{entries:>11} entries: {:>4} MiB of memory, {:>6} MiB on disk ({:.0} bytes an entry), {:.1} µs an entry, \
         lookup {:.1} µs, of what is not there {:.1} µs",
        memory() >> 20,
        disk >> 20,
        disk as f64 / entries as f64,
        took.as_secs_f64() * 1e6 / entries as f64,
        there.as_secs_f64() * 1e6,
        not.as_secs_f64() * 1e6,
    );
}

#[test]
fn many_entries_take_bounded_memory() {
    let said = std::env::var("LARDER_PACK_ENTRIES").ok();
    let entries = said.map_or(ENTRIES, |entries| entries.parse().unwrap());
    let dir = match std::env::var_os("LARDER_PACK_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let (index, _) = Index::open(dir.path()).unwrap();
    let (begun, mut looked) = (Instant::now(), Duration::ZERO);
    let mut next = (10 * ENTRIES).min(entries);
    for number in 0..entries {
        let (here, entry) = entry(number);
        let applied =
            Applied { lsn: number, seq: entry.seq, clock: entry.clock, blob: here.seq, rebuilt: 0 };
        index.apply(here, &entry, Some(&applied)).unwrap();
        if index.unflushed_bytes() >= larder_kv::limits::FLUSH_BYTES {
            maintain(&index);
        }
        if number + 1 == next {
            let looking = Instant::now();
            report(&index, next, looking.duration_since(begun) - looked);
            looked += looking.elapsed();
            next = (next * 10).min(entries);
        }
    }
    let used = memory();
    assert!(used <= MEMORY_BYTES_MAX, "{used} bytes of memory for {entries} entries");
}
