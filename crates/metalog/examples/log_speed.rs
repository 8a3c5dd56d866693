//! Measures the log on a real directory: time of an append, and of a commit into segments that are
//! new and into segments that are used again.
//!
//! `cargo run --release -p larder-metalog --example log_speed -- DIR`

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_env::RealDisk;
use larder_metalog::limits::SEGMENT_BYTES_DEFAULT;
use larder_metalog::{Appender, Batch, LogConfig, LogError, Record, Writer, recover};
use larder_types::{OpSeq, PgId, View};

const PAYLOAD: [u8; 300] = [7; 300];
const APPENDS: u32 = 2_000_000;
const RECORDS_PER_COMMIT: u32 = 20;

fn main() -> Result<(), LogError> {
    let root = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let disk = Arc::new(RealDisk::create(root)?);
    let config = LogConfig::new(larder_env::rng::unique_u64());
    let (mut appender, mut writer, _) = recover(disk, "log-speed", &config, &mut |_| ())?;
    appends(&mut appender, &mut writer)?;
    writer.free_below(appender.end())?;
    for round in 0..4 {
        commits(&mut appender, &mut writer, round)?;
    }
    Ok(())
}

fn append(appender: &mut Appender, number: u32) -> Result<(), LogError> {
    let seq = OpSeq(u64::from(number) + 1);
    let record =
        Record { pg: PgId(number % 256), view: View(1), seq, commit: seq, payload: &PAYLOAD };
    black_box(appender.append(&record)?);
    Ok(())
}

fn commit(
    appender: &mut Appender,
    writer: &mut Writer,
    batch: &mut Batch,
) -> Result<Duration, LogError> {
    appender.take_batch(batch);
    let begun = Instant::now();
    appender.note(writer.commit(batch)?);
    let took = begun.elapsed();
    appender.note(writer.prepare()?);
    Ok(took)
}

fn appends(appender: &mut Appender, writer: &mut Writer) -> Result<(), LogError> {
    let mut batch = Batch::default();
    let mut spent = Duration::ZERO;
    let mut number = 0;
    while number < APPENDS {
        let begun = Instant::now();
        for _ in 0..10_000 {
            append(appender, number)?;
            number += 1;
        }
        spent += begun.elapsed();
        commit(appender, writer, &mut batch)?;
    }
    println!("append of {} bytes: {} ns", PAYLOAD.len(), spent.as_nanos() / u128::from(APPENDS));
    Ok(())
}

/// Commits a segment's worth of small batches, then gives it up, so that the rounds go from new
/// segments to those used again.
fn commits(appender: &mut Appender, writer: &mut Writer, round: u32) -> Result<(), LogError> {
    let mut batch = Batch::default();
    let mut took = Vec::new();
    let end = appender.end().0 + SEGMENT_BYTES_DEFAULT;
    while appender.end().0 < end {
        for number in 0..RECORDS_PER_COMMIT {
            append(appender, number)?;
        }
        took.push(commit(appender, writer, &mut batch)?);
    }
    writer.free_below(appender.end())?;
    took.sort_unstable();
    let mean = took.iter().sum::<Duration>() / took.len() as u32;
    println!(
        "round {round}: {} commits of {RECORDS_PER_COMMIT}, mean {mean:?}, median {:?}, p99 {:?}",
        took.len(),
        took[took.len() / 2],
        took[took.len() * 99 / 100],
    );
    Ok(())
}
