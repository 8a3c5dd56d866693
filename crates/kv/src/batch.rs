//! A batch of changes, built once and reused.

use bytes::Bytes;

use crate::limits::{BATCH_BYTES_MAX, ROW_KEY_BYTES_MAX, ROW_VALUE_BYTES_MAX};
use crate::trailer::{TRAILER_BYTES, trailer};

/// Puts and deletes in order: of several for one key the last counts.
///
/// All rows lie in one buffer, so that building a batch costs no allocation once it has grown, and
/// applying it costs one.
#[derive(Debug, Default, Clone)]
pub struct Batch {
    buffer: Vec<u8>,
    rows: Vec<Row>,
    positions: Vec<Row>,
}

/// Where a row lies: the key at `start`, the value with its trailer behind it.
#[derive(Debug, Clone, Copy)]
struct Row {
    start: u32,
    key_bytes: u16,
    /// With the trailer; `None` for a delete.
    stored_bytes: Option<u32>,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key's value.
    ///
    /// # Panics
    /// If the key is empty, or key, value or batch are longer than their limits.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        let row = self.push_row(key, value);
        self.push(row);
    }

    /// Sets a row that is read only when the index is opened anew, such as an applied position. It is
    /// durable with the rest of the batch, and until then it costs next to nothing. Of all that are
    /// set for one key between two flushes only the last is kept. Readers may not see it before.
    ///
    /// # Panics
    /// As [`Batch::put`].
    pub fn position(&mut self, key: &[u8], value: &[u8]) {
        let row = self.push_row(key, value);
        assert!(self.buffer.len() <= BATCH_BYTES_MAX, "a batch of {} bytes", self.buffer.len());
        self.positions.push(row);
    }

    /// Removes a key; no error if it is not there.
    ///
    /// # Panics
    /// As [`Batch::put`].
    pub fn delete(&mut self, key: &[u8]) {
        let row = self.push_key(key);
        self.push(row);
    }

    /// Number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len() + self.positions.len()
    }

    /// True if there is no change in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.positions.is_empty()
    }

    /// Bytes of keys, values and checksums; at most [`BATCH_BYTES_MAX`].
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.rows.clear();
        self.positions.clear();
    }

    /// The changes as (key, stored value), all of them slices of one allocation.
    pub(crate) fn changes(&self) -> impl Iterator<Item = (Bytes, Option<Bytes>)> {
        let shared = Bytes::copy_from_slice(&self.buffer);
        self.rows.iter().map(move |row| {
            let key_end = row.start as usize + usize::from(row.key_bytes);
            let key = shared.slice(row.start as usize..key_end);
            let stored =
                row.stored_bytes.map(|bytes| shared.slice(key_end..key_end + bytes as usize));
            (key, stored)
        })
    }

    /// The positions as (key, stored value).
    pub(crate) fn positions(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.positions.iter().map(|row| {
            let (key, rest) = self.buffer[row.start as usize..].split_at(row.key_bytes.into());
            (key, &rest[..row.stored_bytes.unwrap_or(0) as usize])
        })
    }

    fn push_row(&mut self, key: &[u8], value: &[u8]) -> Row {
        assert!(value.len() <= ROW_VALUE_BYTES_MAX, "a value of {} bytes", value.len());
        let mut row = self.push_key(key);
        self.buffer.extend_from_slice(value);
        self.buffer.extend_from_slice(&trailer(key, value));
        row.stored_bytes = Some((value.len() + TRAILER_BYTES) as u32);
        row
    }

    fn push_key(&mut self, key: &[u8]) -> Row {
        assert!(!key.is_empty(), "a row has a key");
        assert!(key.len() <= ROW_KEY_BYTES_MAX, "a key of {} bytes", key.len());
        let row = Row {
            start: self.buffer.len() as u32,
            key_bytes: key.len() as u16,
            stored_bytes: None,
        };
        self.buffer.extend_from_slice(key);
        row
    }

    fn push(&mut self, row: Row) {
        assert!(self.buffer.len() <= BATCH_BYTES_MAX, "a batch of {} bytes", self.buffer.len());
        self.rows.push(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cleared_batch_is_empty_and_keeps_its_memory() {
        let mut batch = Batch::new();
        batch.put(b"a", b"one");
        batch.delete(b"b");
        assert_eq!((batch.len(), batch.bytes()), (2, 1 + 3 + TRAILER_BYTES + 1));
        let capacity = batch.buffer.capacity();
        batch.clear();
        assert!(batch.is_empty());
        assert_eq!((batch.bytes(), batch.buffer.capacity()), (0, capacity));
    }

    #[test]
    fn changes_come_in_order() {
        let mut batch = Batch::new();
        batch.put(b"b", b"two");
        batch.delete(b"a");
        let changes: Vec<_> = batch.changes().collect();
        assert_eq!(changes[0].0, "b");
        assert_eq!(&changes[0].1.as_ref().unwrap()[..3], b"two");
        assert_eq!(changes[1], (Bytes::from("a"), None));
    }
}
