//! The port to the KV index and the cached bucket table, and the changes that a batch of ops makes to it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use larder_types::codec::CodecError;
use larder_types::{BucketId, Epoch, RegionId, rows};
use serde::{Deserialize, Serialize};

/// The index cannot be trusted or reached: the PG stops until it is rebuilt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the index failed: {0}")]
pub struct IndexError(pub String);

impl From<CodecError> for IndexError {
    fn from(error: CodecError) -> Self {
        Self(error.to_string())
    }
}

/// Called for each row of a scan, with row and value; says whether to go on.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Visits the rows from one on, in order, of an index that does not change meanwhile.
pub type ScanFrom<'a> = dyn Fn(&[u8], &mut Visit<'_>) -> Result<(), IndexError> + 'a;

/// Rows from one on, up to another if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowSpan {
    /// The first.
    pub from: Vec<u8>,
    /// The row behind the last, if any.
    pub to: Option<Vec<u8>>,
}

impl RowSpan {
    /// Returns true if it has a row.
    #[must_use]
    pub fn has(&self, row: &[u8]) -> bool {
        *row >= self.from[..] && self.to.as_deref().is_none_or(|to| row < to)
    }
}

/// A row and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// The KV as the machine sees it. All calls are local, and reads repeatable between two writes.
pub trait Index {
    /// A row's value.
    ///
    /// # Errors
    /// [`IndexError`].
    fn get(&self, row: &[u8]) -> Result<Option<Bytes>, IndexError>;
    /// Visits the rows with `from <= row` and, if `to` is given, `row < to`, in order, until told to
    /// stop.
    ///
    /// # Errors
    /// [`IndexError`].
    fn scan(&self, from: &[u8], to: Option<&[u8]>, visit: &mut Visit<'_>)
    -> Result<(), IndexError>;
    /// Visits the rows that begin with `prefix`, in order, until told to stop.
    ///
    /// # Errors
    /// [`IndexError`].
    fn scan_prefix(&self, prefix: &[u8], visit: &mut Visit<'_>) -> Result<(), IndexError> {
        self.scan(prefix, rows::prefix_end(prefix).as_deref(), visit)
    }
    /// Applies changes atomically; they need not be durable.
    ///
    /// # Errors
    /// [`IndexError`].
    fn write(&self, changes: Changes) -> Result<(), IndexError>;
    /// Epoch of a bucket that takes puts, as this server knows it; `None` for any other.
    fn bucket_epoch(&self, bucket: BucketId) -> Option<Epoch>;
    /// Returns true if reads have failed, and the store serves what is left: a call that cannot be decided for it is refused.
    /// Otherwise its group is halted.
    fn is_damaged(&self) -> bool {
        false
    }
    /// This store's number among regions; [`RegionId::OWN`] if it is alone.
    fn region(&self) -> RegionId {
        RegionId::OWN
    }
}

/// Bytes that an index may keep beside a value, such as its checksum.
const ROW_OVERHEAD_BYTES: usize = 16;

/// Rows and their new values; `None` removes.
pub type RowChanges = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Rows written and removed by a batch of ops, the last word on each row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    rows: RowChanges,
    /// Bytes of keys and values set, a row that was set twice counted twice.
    bytes: usize,
    positions: Vec<Row>,
}

impl Changes {
    /// Sets a row.
    pub fn put(&mut self, row: Vec<u8>, value: Vec<u8>) {
        self.bytes += row.len() + value.len() + ROW_OVERHEAD_BYTES;
        self.rows.insert(row, Some(value));
    }

    /// Removes a row.
    pub fn remove(&mut self, row: Vec<u8>) {
        self.bytes += row.len();
        self.rows.insert(row, None);
    }

    /// About how many bytes these changes take in a batch of the index.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets a row that says how far the index shows this PG: durable with these changes, read only after a restart. Each
    /// row is set once.
    pub fn set_position(&mut self, row: Vec<u8>, value: Vec<u8>) {
        self.positions.push((row, value));
    }

    /// The changes and the positions.
    #[must_use]
    pub fn into_parts(self) -> (RowChanges, Vec<Row>) {
        (self.rows, self.positions)
    }

    /// A row as it will be once these changes are written.
    ///
    /// # Errors
    /// As [`Index::get`].
    pub fn get(&self, index: &dyn Index, row: &[u8]) -> Result<Option<Bytes>, IndexError> {
        match self.rows.get(row) {
            Some(value) => Ok(value.as_ref().map(|value| Bytes::copy_from_slice(value))),
            None => index.get(row),
        }
    }

    /// Rows that begin with `prefix`, from one on, as they will be, up to a number of them; and whether these are all.
    ///
    /// # Errors
    /// As [`Index::scan_prefix`].
    pub fn scan_some(
        &self,
        index: &dyn Index,
        (prefix, from): (&[u8], &[u8]),
        count_max: usize,
    ) -> Result<(Vec<Row>, bool), IndexError> {
        // One more is looked for, to see whether there is any.
        let enough = count_max.saturating_add(1);
        let changed = self.rows.range(from.to_vec()..);
        let changed = changed.take_while(|(row, _)| row.starts_with(prefix));
        let added = changed.filter_map(|(row, value)| Some((row.clone(), value.clone()?)));
        let mut found: BTreeMap<Vec<u8>, Vec<u8>> = added.take(enough).collect();
        let mut unchanged = 0;
        index.scan(from, rows::prefix_end(prefix).as_deref(), &mut |row, value| {
            if !self.rows.contains_key(row) {
                found.insert(row.to_vec(), value.to_vec());
                unchanged += 1;
            }
            if unchanged < enough { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let is_all = found.len() <= count_max;
        Ok((found.into_iter().take(count_max).collect(), is_all))
    }

    /// The rows that begin with `prefix`, as they will be.
    ///
    /// # Errors
    /// As [`Index::scan_prefix`].
    pub fn scan(&self, index: &dyn Index, prefix: &[u8]) -> Result<Vec<Row>, IndexError> {
        let mut rows = BTreeMap::new();
        index.scan_prefix(prefix, &mut |row, value| {
            rows.insert(row.to_vec(), Some(value.to_vec()));
            ControlFlow::Continue(())
        })?;
        for (row, value) in
            self.rows.range(prefix.to_vec()..).take_while(|(row, _)| row.starts_with(prefix))
        {
            rows.insert(row.clone(), value.clone());
        }
        Ok(rows.into_iter().filter_map(|(row, value)| Some((row, value?))).collect())
    }
}
