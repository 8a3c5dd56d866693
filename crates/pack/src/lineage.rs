//! The incarnations of a worker: which processes have acted for its directory, and from which entry on each gave numbers
//! of its own.
//!
//! An entry's number is given once by a directory, but again by an older copy of it. So a number means something only
//! together with the incarnation that gave it. A peer that followed one incarnation asks the lineage of the next how
//! much of what it knows both have in common.
//!
//! # Invariants
//!
//! 1. Each incarnation goes on where the one before it in the lineage ended: the directory's log is the same.
//! 2. Incarnation 0 stands for all processes of releases that had none.

use bytes::Bytes;
use larder_env::disk::{read_file, replace_file};
use larder_env::{Disk, DiskError};
use larder_types::OpSeq;
use larder_types::codec::{decode, encode};
use serde::{Deserialize, Serialize};

use crate::backend::{Backend, Unread};
use crate::entry::WorkerId;
use crate::error::PackError;
use crate::limits::{LINEAGE_BYTES_MAX, LINEAGE_MAX};

/// File of the directory.
const FILE: &str = "lineage";
/// Prefix of the objects that number incarnations.
const PREFIX: &str = "incarnations";

/// One process of a worker: each start makes the next.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub(crate) struct Incarnation(pub(crate) u64);

/// Incarnations with the last entry that was there when each began, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lineage(Vec<(Incarnation, OpSeq)>);

impl Incarnation {
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Name of its object.
    pub(crate) fn path(self, worker: WorkerId) -> String {
        format!("{PREFIX}/{:016x}-{:016x}", worker.0, self.0)
    }

    fn parse(file: &str, worker: WorkerId) -> Option<Self> {
        let (of, number) = file.split_once('-')?;
        let number = Self(u64::from_str_radix(number, 16).ok()?);
        (of == format!("{:016x}", worker.0) && number.path(worker)[PREFIX.len() + 1..] == *file)
            .then_some(number)
    }
}

impl Default for Lineage {
    fn default() -> Self {
        Self(vec![(Incarnation(0), OpSeq(0))])
    }
}

impl Lineage {
    /// That of a directory.
    pub(crate) fn of(disk: &dyn Disk) -> Result<Self, PackError> {
        match read_file(disk, FILE) {
            Ok(bytes) => Self::read_bytes(FILE, &bytes),
            Err(DiskError::NotFound { .. }) => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes it into the directory.
    pub(crate) fn keep(&self, disk: &dyn Disk) -> Result<(), PackError> {
        Ok(replace_file(disk, "", FILE, &encode(self))?)
    }

    /// Makes its last incarnation's object, with the whole lineage in it; false if there is one of that number.
    pub(crate) async fn make(
        &self,
        backend: &Backend,
        worker: WorkerId,
    ) -> Result<bool, PackError> {
        backend.put_new(&self.last().path(worker), Bytes::from(encode(self))).await
    }

    /// The latest incarnation of a worker that there is after `known`; `known` if there is none.
    pub(crate) async fn latest(
        backend: &Backend,
        worker: WorkerId,
        known: Incarnation,
    ) -> Result<Incarnation, PackError> {
        let path = known.path(worker);
        let after = &path[PREFIX.len() + 1..];
        let names = backend.names_after(PREFIX, after).await?;
        let later = names.iter().filter_map(|(name, _)| Incarnation::parse(name, worker));
        Ok(later.max().map_or(known, |latest| latest.max(known)))
    }

    /// The lineage that an incarnation has written down; `None` if there is none of that number.
    pub(crate) async fn read(
        backend: &Backend,
        worker: WorkerId,
        of: Incarnation,
    ) -> Result<Option<Self>, PackError> {
        let path = of.path(worker);
        match backend.whole(&path, LINEAGE_BYTES_MAX).await {
            Ok(bytes) => Self::read_bytes(&path, &bytes).map(Some),
            Err(Unread::Missing) => Ok(None),
            Err(Unread::Failed(error)) => Err(error),
        }
    }

    fn read_bytes(name: &str, bytes: &[u8]) -> Result<Self, PackError> {
        let lineage = decode::<Self>("a lineage", bytes)?;
        match lineage.is_whole() {
            true => Ok(lineage),
            false => Err(PackError::damaged(name, "its incarnations are not in their order")),
        }
    }

    /// Whether there is one in it, and all are in their order.
    pub(crate) fn is_whole(&self) -> bool {
        !self.0.is_empty() && self.0.is_sorted_by(|(a, from), (b, to)| a < b && from <= to)
    }

    /// The same with one incarnation more, which begins behind entry `begun`.
    pub(crate) fn grown(&self, next: Incarnation, begun: OpSeq) -> Self {
        assert!(next > self.last(), "incarnations are numbered in their order");
        let mut all = self.0.clone();
        all.push((next, begun));
        all.drain(..all.len().saturating_sub(LINEAGE_MAX));
        Self(all)
    }

    pub(crate) fn last(&self) -> Incarnation {
        self.0.last().map_or(Incarnation(0), |(last, _)| *last)
    }

    /// The last entry that an earlier incarnation has in common with the last; `None` if it is none of this directory's.
    pub(crate) fn common(&self, with: Incarnation) -> Option<OpSeq> {
        let at = self.0.binary_search_by_key(&with, |(incarnation, _)| *incarnation).ok()?;
        Some(self.0.get(at + 1).map_or(OpSeq(u64::MAX), |(_, begun)| *begun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_incarnations_have_in_common_ends_where_the_later_began() {
        let first = Lineage::default().grown(Incarnation(1), OpSeq(0));
        // The original goes on to 150 and starts again; a copy that was made at 120 starts after it.
        let original = first.grown(Incarnation(2), OpSeq(150));
        let copy = first.grown(Incarnation(3), OpSeq(120)).grown(Incarnation(4), OpSeq(160));
        assert_eq!(original.common(Incarnation(1)), Some(OpSeq(150)));
        assert_eq!(copy.common(Incarnation(1)), Some(OpSeq(120)), "though it is past 150 itself");
        assert_eq!(copy.common(Incarnation(2)), None, "it is the original's");
        assert_eq!(copy.common(Incarnation(3)), Some(OpSeq(160)));
        assert_eq!(copy.common(Incarnation(4)), Some(OpSeq(u64::MAX)));
        assert_eq!(copy.common(Incarnation(0)), Some(OpSeq(0)));
    }

    #[test]
    fn a_lineage_is_bounded_and_forgets_the_oldest() {
        let mut lineage = Lineage::default();
        for number in 1..=2 * LINEAGE_MAX as u64 {
            lineage = lineage.grown(Incarnation(number), OpSeq(number * (1 << 50)));
        }
        assert!(lineage.is_whole());
        assert!(encode(&lineage).len() as u64 <= LINEAGE_BYTES_MAX);
        assert_eq!(lineage.common(Incarnation(LINEAGE_MAX as u64)), None);
        assert!(lineage.common(Incarnation(LINEAGE_MAX as u64 + 1)).is_some());
    }

    #[test]
    fn names_read_back_and_are_of_one_worker() {
        let worker = WorkerId(0x1_0001);
        let path = Incarnation(0x2a).path(worker);
        assert_eq!(path, "incarnations/0000000000010001-000000000000002a");
        let file = path.split_once('/').unwrap().1;
        assert_eq!(Incarnation::parse(file, worker), Some(Incarnation(0x2a)));
        assert_eq!(Incarnation::parse(file, WorkerId(3)), None);
        for other in ["", "0000000000010001", "0000000000010001-2a", "0000000000010001-zz"] {
            assert_eq!(Incarnation::parse(other, worker), None, "{other}");
        }
    }
}
