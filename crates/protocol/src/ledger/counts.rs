//! Objects of each bucket in a PG's rows, and their bytes, kept op by op at every member: what a bucket has is known without a
//! scan. Content counts as clients see it, in whole; uploads under way, parts, tombstones and garbage count nothing.
//!
//! # Invariants
//!
//! 1. What is known is what a scan of the PG's rows at its applied position would find.
//! 2. A bucket has an entry exactly if a key of it has an object.

use std::collections::BTreeMap;

use larder_types::BucketId;
use larder_types::limits::BUCKETS_MAX;

use super::followed::DerivedState;

/// Objects and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ObjectCount {
    /// Keys that have an object.
    pub objects: u64,
    /// Bytes of their content.
    pub bytes: u64,
}

impl ObjectCount {
    fn plus(self, other: Self) -> Option<Self> {
        let objects = self.objects.checked_add(other.objects)?;
        Some(Self { objects, bytes: self.bytes.checked_add(other.bytes)? })
    }

    fn without(self, other: Self) -> Option<Self> {
        let objects = self.objects.checked_sub(other.objects)?;
        let bytes = self.bytes.checked_sub(other.bytes)?;
        // The last object has all bytes.
        (objects > 0 || bytes == 0).then_some(Self { objects, bytes })
    }

    /// An object of this size, or none.
    fn of(size: Option<u64>) -> Self {
        size.map_or(Self::default(), |bytes| Self { objects: 1, bytes })
    }
}

/// Rows or changes do not fit what was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CountFault {
    /// An object goes that was not counted.
    #[error("an object of bucket {bucket} goes that was not counted")]
    Uncounted {
        /// Bucket.
        bucket: BucketId,
    },
    /// There is more than can be.
    #[error("objects of bucket {bucket} have more bytes than can be counted")]
    TooMany {
        /// Bucket.
        bucket: BucketId,
    },
    /// There are rows of more buckets than a cluster has.
    #[error("a group has objects of more than {BUCKETS_MAX} buckets")]
    TooManyBuckets,
}

/// A key's object before an op and after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resized {
    pub(crate) bucket: BucketId,
    /// Bytes of the object that it had, if it had one.
    pub(crate) before: Option<u64>,
    /// Bytes of the object that it has, if it has one.
    pub(crate) after: Option<u64>,
}

/// Objects of a bucket that ops made and removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recount {
    bucket: BucketId,
    come: ObjectCount,
    gone: ObjectCount,
}

impl From<Resized> for Recount {
    fn from(Resized { bucket, before, after }: Resized) -> Self {
        Self { bucket, come: ObjectCount::of(after), gone: ObjectCount::of(before) }
    }
}

impl Recount {
    /// Adds what another op did, if it is of the same bucket and there is room for the sum; else returns it.
    pub(crate) fn join(&mut self, other: Self) -> Option<Self> {
        let both = self.come.plus(other.come).zip(self.gone.plus(other.gone));
        match both.filter(|_| self.bucket == other.bucket) {
            Some((come, gone)) => {
                (self.come, self.gone) = (come, gone);
                None
            }
            None => Some(other),
        }
    }
}

/// Objects in a PG's rows, by bucket: at most [`BUCKETS_MAX`] entries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BucketCounts(BTreeMap<BucketId, ObjectCount>);

impl BucketCounts {
    /// Takes an object that a row has.
    ///
    /// # Errors
    /// [`CountFault`] if there are too many.
    pub fn note(&mut self, bucket: BucketId, size: u64) -> Result<(), CountFault> {
        self.add(bucket, ObjectCount::of(Some(size)))
    }

    /// Each bucket of which there is an object, in order.
    pub fn iter(&self) -> impl Iterator<Item = (BucketId, ObjectCount)> {
        self.0.iter().map(|(&bucket, &count)| (bucket, count))
    }

    /// Objects of one bucket.
    #[must_use]
    pub fn of(&self, bucket: BucketId) -> ObjectCount {
        self.0.get(&bucket).copied().unwrap_or_default()
    }

    /// Adds what another PG has.
    ///
    /// # Errors
    /// [`CountFault`] if there are too many.
    pub fn add_all(&mut self, other: &Self) -> Result<(), CountFault> {
        other.iter().try_for_each(|(bucket, count)| self.add(bucket, count))
    }

    fn add(&mut self, bucket: BucketId, more: ObjectCount) -> Result<(), CountFault> {
        if let Some(count) = self.0.get_mut(&bucket) {
            *count = count.plus(more).ok_or(CountFault::TooMany { bucket })?;
            return Ok(());
        }
        if self.0.len() == BUCKETS_MAX {
            return Err(CountFault::TooManyBuckets);
        }
        self.0.insert(bucket, more);
        Ok(())
    }

    fn take_away(&mut self, bucket: BucketId, gone: ObjectCount) -> Result<(), CountFault> {
        let count = self.0.get_mut(&bucket).ok_or(CountFault::Uncounted { bucket })?;
        *count = count.without(gone).ok_or(CountFault::Uncounted { bucket })?;
        if count.objects == 0 {
            self.0.remove(&bucket);
        }
        Ok(())
    }
}

impl DerivedState for BucketCounts {
    type Change = Recount;
    type Fault = CountFault;

    fn take(&mut self, change: &Recount) -> Result<(), CountFault> {
        let Recount { bucket, come, gone } = *change;
        // New objects come before those go that they replace, so that their bucket's entry stays.
        if come.objects > 0 {
            self.add(bucket, come)?;
        }
        if gone.objects > 0 { self.take_away(bucket, gone) } else { Ok(()) }
    }

    fn absorb(&mut self, other: Self) -> Result<(), CountFault> {
        self.add_all(&other)
    }
}
