//! The metadata log, on a real disk: its system calls are not counted, only what leads to them.

use std::sync::Arc;

use larder_env::RealDisk;
use larder_metalog::{Batch, LogConfig, Record, recover};
use larder_types::{OpSeq, PgId, View};

use crate::Outcome;

const GROUP: u64 = 16;
const PAYLOAD: [u8; 300] = [3; 300];

pub(crate) fn append(count: u64) -> Outcome {
    let dir = tempfile::tempdir()?;
    let disk = Arc::new(RealDisk::open(dir.path())?);
    let (mut appender, mut writer, _) = recover(disk, "log", &LogConfig::new(1), &mut |_| {})?;
    let mut batch = Batch::default();
    for seq in 1..=count {
        appender.append(&Record {
            pg: PgId((seq % 256) as u32),
            view: View(1),
            seq: OpSeq(seq),
            commit: OpSeq(seq - 1),
            payload: &PAYLOAD,
        })?;
        if seq % GROUP == 0 {
            appender.take_batch(&mut batch);
            appender.note(writer.commit(&mut batch)?);
            appender.note(writer.prepare()?);
        }
    }
    Ok(())
}
