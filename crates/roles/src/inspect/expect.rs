//! Compares the index with the log: what the index must hold for each key in ops that the log still has.

use std::collections::BTreeMap;

use larder_metalog::Record;
use larder_protocol::Index;
use larder_types::codec::decode;
use larder_types::{
    Body, BucketId, ObjectKey, Op, OpId, OpSeq, Outcome, PgId, Put, Target, VersionRow, rows,
};

use super::report::Report;
use super::shown;

/// The last op that decides what a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Put(OpId),
    Delete(OpId),
}

/// The keys that the log touches, with its last word on each.
#[derive(Debug, Default)]
pub(super) struct Expectations {
    keys: BTreeMap<(BucketId, ObjectKey), Last>,
    /// Puts with data that have no outcome yet.
    open: BTreeMap<(PgId, OpSeq), (OpId, BucketId, ObjectKey)>,
}

impl Expectations {
    pub(super) fn record(&mut self, record: &Record<'_>) {
        let id = OpId { view: record.view, seq: record.seq };
        // The replay reports an op that cannot be decoded.
        let Ok(op) = decode::<Op>("op", record.payload) else { return };
        match op {
            Op::Put(put) | Op::PutEnough { put, .. } => self.put(record, id, *put),
            Op::RemoteChange(change) => self.put(record, id, change.put),
            Op::Purge(purge) => self.note(purge.bucket, purge.key, Last::Delete(id)),
            Op::Outcome { put, outcome } => {
                if let Some((id, bucket, key)) = self.open.remove(&(record.pg, put))
                    && matches!(outcome, Outcome::Committed { .. })
                {
                    self.note(bucket, key, Last::Put(id));
                }
            }
            Op::Delete { bucket, key, .. } => self.note(bucket, key, Last::Delete(id)),
            Op::CompleteUpload { bucket, key, .. } => self.note(bucket, key, Last::Put(id)),
            Op::Append(append) => self.note(append.bucket, append.key, Last::Put(id)),
            Op::Grow(grow) => self.note(grow.append.bucket, grow.append.key, Last::Put(id)),
            Op::Renew(renew) => self.note(renew.bucket, renew.key, Last::Put(id)),
            _ => {}
        }
    }

    fn put(&mut self, record: &Record<'_>, id: OpId, put: Put) {
        if put.target != Target::Version {
            return;
        }
        if matches!(put.body, Body::Chunk(_)) {
            self.open.insert((record.pg, record.seq), (id, put.bucket, put.key));
        } else {
            self.note(put.bucket, put.key, Last::Put(id));
        }
    }

    fn note(&mut self, bucket: BucketId, key: ObjectKey, last: Last) {
        let id = |last: &Last| match last {
            Last::Put(id) | Last::Delete(id) => *id,
        };
        let entry = self.keys.entry((bucket, key)).or_insert(last);
        if id(entry) < id(&last) {
            *entry = last;
        }
    }

    /// Holds every key against the index.
    pub(super) fn check(&self, index: &dyn Index, report: &mut Report) {
        report.section("index against log");
        for ((bucket, key), last) in &self.keys {
            let row = match index.get(&rows::version(*bucket, key, rows::UNVERSIONED)) {
                Ok(row) => row,
                Err(error) => {
                    report.fault(format!("object {} of bucket {bucket}: {error}", shown(key)));
                    continue;
                }
            };
            let found = row.and_then(|row| VersionRow::read(&row).ok());
            let fits = match last {
                Last::Put(id) => found.as_ref().is_some_and(|row| row.op == *id),
                Last::Delete(_) => found.is_none(),
            };
            if !fits {
                report.fault(format!(
                    "object {} of bucket {bucket}: the log ends with {last:?}, the index has {:?}",
                    shown(key),
                    found.map(|row| row.op)
                ));
            }
        }
        report.line(format!("{} keys that the log names are as it says", self.keys.len()));
    }
}
