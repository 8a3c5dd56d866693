//! Reads keys of a range from their rows, a few at a time. So a comparison takes as much time and memory as
//! an answer has entries, however many objects there are.
//!
//! # Invariants
//!
//! 1. A slice has all that tables `V` and `T` show of its keys: both are cut at the same place.
//! 2. The rest behind a slice begins behind the slice's beginning, so that reading goes on to an end.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use larder_objects::ObjectError;
use larder_protocol::Planted;
use larder_protocol::region::{Id, KeyRows, Range, Summed, compare};
use larder_types::codec::{CodecError, decode};
use larder_types::{BucketId, ObjectEntry, ObjectKey, rows};

/// Failure to read the rows of the store.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error(transparent)]
    Store(#[from] ObjectError),
    #[error(transparent)]
    Row(#[from] CodecError),
    #[error("row {0} has no such form")]
    Form(String),
}

/// A source of rows.
pub(super) trait Rows {
    /// Visits rows from one on up to another, until `visit` breaks off. About `wanted` will do.
    fn visit<V>(
        &self,
        from: &[u8],
        to: &[u8],
        wanted: usize,
        visit: V,
    ) -> impl Future<Output = Result<(), Unreadable>> + Send
    where
        V: FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, Unreadable> + Send;
}

/// Rows of a bucket here, as places in table `V`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    from: Vec<u8>,
    to: Vec<u8>,
}

/// The first keys of a span.
#[derive(Debug)]
pub(super) struct Slice {
    /// The keys, each with its rows.
    pub(super) keys: BTreeMap<ObjectKey, KeyRows>,
    /// The span behind the keys.
    pub(super) rest: Option<Span>,
}

impl Span {
    /// The rows here of that part of a range there that lies in a bucket.
    pub(super) fn of(range: &Range, there: BucketId, here: BucketId) -> Option<Self> {
        let (first, own) = (rows::bucket(b'V', there), rows::bucket(b'V', here));
        let (behind, own_behind) = (rows::prefix_end(&first)?, rows::prefix_end(&own)?);
        let moved = |row: &[u8]| [&own[..], &row[first.len()..]].concat();
        let from = match &range.from {
            from if *from >= behind => return None,
            from if from.starts_with(&first) => moved(from),
            _ => own.clone(),
        };
        let to = match &range.to {
            Some(to) if *to <= first => return None,
            Some(to) if to.starts_with(&first) => moved(to),
            _ => own_behind,
        };
        Some(Self { from, to })
    }

    /// Its beginning, as a place there.
    pub(super) fn place(&self, there: BucketId, here: BucketId) -> Vec<u8> {
        let behind = rows::bucket(b'V', here).len();
        [&rows::bucket(b'V', there)[..], &self.from[behind..]].concat()
    }
}

/// Sums the ids read of a range: of all of it, or of the part before `left_at`.
pub(super) fn summed(range: &Range, ids: Vec<Id>, left_at: Option<Vec<u8>>) -> Summed {
    let to = left_at.or_else(|| range.to.clone());
    let read = Range { from: range.from.clone(), to };
    let mut summed = compare::summed(Planted::default(), &read, ids.into_iter());
    if read.to != range.to {
        let from = summed.rest.map(|rest| rest.from).or(read.to);
        summed.rest = from.map(|from| Range { from, to: range.to.clone() });
    }
    summed
}

impl Slice {
    /// Reads at most `rows_max` rows of each table.
    pub(super) async fn read<S: Rows>(
        store: &S,
        bucket: BucketId,
        Span { from, to: end }: Span,
        rows_max: usize,
    ) -> Result<Self, Unreadable> {
        assert!(rows_max > 0, "a slice has something");
        let mut keys: BTreeMap<ObjectKey, KeyRows> = BTreeMap::new();
        let mut to = end.clone();
        // Each table is read up to where the one before was left.
        for table in *b"VT" {
            let in_table = |row: &[u8]| [&[table], &row[1..]].concat();
            let (first, behind) = (in_table(&from), in_table(&to));
            let mut count = 0;
            let visit = |row: &[u8], value: &[u8]| {
                if count == rows_max {
                    to = [b"V", &row[1..]].concat();
                    return Ok(ControlFlow::Break(()));
                }
                count += 1;
                let form = || Unreadable::Form(row.escape_ascii().to_string());
                let (_, key, slot) = rows::parse_version(row).ok_or_else(form)?;
                if slot.is_unversioned() {
                    let kept = keys.entry(key).or_default();
                    match table {
                        b'V' => kept.version = Some(ObjectEntry::read(value)?),
                        _ => kept.tombstone = Some(decode("tombstone", value)?),
                    }
                }
                Ok(ControlFlow::Continue(()))
            };
            // One row more than is read shows where to go on.
            store.visit(&first, &behind, rows_max + 1, visit).await?;
        }
        keys.retain(|key, _| rows::version(bucket, key, rows::UNVERSIONED) < to);
        assert!(to > from || from >= end, "a slice goes on");
        let rest = (to < end).then_some(Span { from: to, to: end });
        Ok(Self { keys, rest })
    }
}

#[cfg(test)]
#[path = "runs/tests.rs"]
mod tests;
