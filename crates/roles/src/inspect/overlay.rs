//! The index as it would be, without writing to it.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bytes::Bytes;
use larder_kv::{KvError, KvReader, LsmKv};
use larder_protocol::{Changes, Index, IndexError};
use larder_types::{BucketId, Epoch};

use super::go_on;
use crate::manager::Map;

type Rows = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// An index with changes on top that stay in memory.
pub(super) struct Overlay<'a> {
    kv: &'a LsmKv,
    map: &'a Map,
    rows: RefCell<Rows>,
}

impl<'a> Overlay<'a> {
    pub(super) fn new(kv: &'a LsmKv, map: &'a Map) -> Self {
        Self { kv, map, rows: RefCell::new(Rows::new()) }
    }

    pub(super) fn changed_rows(&self) -> usize {
        let is_position = |row: &&Vec<u8>| matches!(row.first(), Some(b'A' | b'H'));
        self.rows.borrow().keys().filter(|row| !is_position(row)).count()
    }

    /// Visits every row.
    pub(super) fn visit(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), KvError> {
        let rows = self.rows.borrow();
        self.kv.scan(&[], None, &mut |row, value| {
            if !rows.contains_key(row) {
                visit(row, value);
            }
            go_on()
        })?;
        for (row, value) in rows.iter() {
            if let Some(value) = value {
                visit(row, value);
            }
        }
        Ok(())
    }
}

impl Index for Overlay<'_> {
    fn get(&self, row: &[u8]) -> Result<Option<Bytes>, IndexError> {
        match self.rows.borrow().get(row) {
            Some(value) => Ok(value.as_ref().map(|value| Bytes::copy_from_slice(value))),
            None => self.kv.get(row).map_err(|error| IndexError(error.to_string())),
        }
    }

    fn scan(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut larder_protocol::index::Visit<'_>,
    ) -> Result<(), IndexError> {
        let mut merged: Rows = BTreeMap::new();
        self.kv
            .scan(from, to, &mut |row, value| {
                merged.insert(row.to_vec(), Some(value.to_vec()));
                go_on()
            })
            .map_err(|error| IndexError(error.to_string()))?;
        let rows = self.rows.borrow();
        let changed =
            rows.range(from.to_vec()..).take_while(|(row, _)| to.is_none_or(|to| &row[..] < to));
        merged.extend(changed.map(|(row, value)| (row.clone(), value.clone())));
        for (row, value) in &merged {
            if let Some(value) = value
                && visit(row, value).is_break()
            {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, changes: Changes) -> Result<(), IndexError> {
        let (rows, positions) = changes.into_parts();
        let positions = positions.into_iter().map(|(row, value)| (row, Some(value)));
        self.rows.borrow_mut().extend(rows.into_iter().chain(positions));
        Ok(())
    }

    fn bucket_epoch(&self, bucket: BucketId) -> Option<Epoch> {
        let mut buckets = self.map.buckets.values();
        buckets.find(|record| record.id == bucket).map(|record| record.epoch)
    }
}
