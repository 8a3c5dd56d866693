//! Looks up the rows that a read needs: chunks, parts and pieces of its object. If the object was replaced, its rows
//! have left the index and can still be read for a while (ADR 76).
//!
//! # Invariants
//!
//! 1. The group knows of a read before the index is asked: what goes after that is kept.
//! 2. The index is asked first. A row that is there says where a chunk lies now; one that went says where it lay.

use std::collections::BTreeMap;

use bytes::Bytes;
use larder_env::clock::uptime_ms;
use larder_types::PgId;

use super::{Member, Meta};

/// Returns true if a row is one of those that an object's body names.
fn is_of_body(row: &[u8]) -> bool {
    matches!(row.first(), Some(b'K' | b'P' | b'W'))
}

impl Member {
    /// A row is about to be looked up: a read of an object may need what follows it.
    pub(super) fn note_reader(&mut self, row: &[u8]) {
        if is_of_body(row) {
            self.pg.note_reader(uptime_ms());
        }
    }

    /// Adds to rows that the index has between two places those that went: so many together at most.
    pub(super) fn join_departed<V: From<Bytes>>(
        &mut self,
        (from, to): (&[u8], &[u8]),
        count: usize,
        rows: &mut Vec<(Vec<u8>, V)>,
    ) {
        let departed = self.pg.departed_from((from, to), count, uptime_ms());
        let mut joined: BTreeMap<Vec<u8>, V> =
            departed.into_iter().map(|(row, value)| (row, value.into())).collect();
        if !joined.is_empty() {
            joined.extend(rows.drain(..));
            rows.extend(joined.into_iter().take(count));
        }
    }
}

impl Meta {
    /// Has freed blocks of all groups rest for so long, for tests.
    #[cfg(test)]
    pub(crate) fn rest_for(&self, ms: u64) {
        self.pg_ids().for_each(|pg| self.lock(pg).pg.rest_for(ms));
    }

    /// As [`Member::note_reader`].
    pub(crate) fn note_reader(&self, pg: PgId, row: &[u8]) {
        if is_of_body(row) {
            self.lock(pg).note_reader(row);
        }
    }

    /// The value of a row that the index has no more.
    pub(crate) fn departed(&self, pg: PgId, row: &[u8]) -> Option<Bytes> {
        if is_of_body(row) { self.lock(pg).pg.departed(row, uptime_ms()) } else { None }
    }

    /// As [`Member::join_departed`].
    pub(crate) fn join_departed(
        &self,
        pg: PgId,
        (from, to): (&[u8], &[u8]),
        count: usize,
        rows: &mut Vec<(Vec<u8>, Bytes)>,
    ) {
        if is_of_body(from) {
            self.lock(pg).join_departed((from, to), count, rows);
        }
    }
}
