//! Finds what counts of a key: the newest that any worker has of it.

use std::sync::Arc;

use larder_types::{BucketId, BucketName, HybridClock, Metax, ObjectKey, UploadRow};

use super::peer::FollowedIndex;
use super::{Others, hidden};
use crate::commit::neighbours::Neighbours;
use crate::commit::peer_clock::PeerClock;
use crate::error::PackError;
use crate::format::rows::PackedVersion;
use crate::ids::WorkerId;
use crate::index::Index;

/// The rank that decides which of two counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    clock: HybridClock,
    /// Decides between two that have the same.
    worker: WorkerId,
}

impl Rank {
    pub(crate) fn of(version: &PackedVersion) -> Self {
        Self { clock: version.metax.clock, worker: WorkerId(version.op.view.0) }
    }

    pub(crate) fn of_upload(upload: &UploadRow) -> Self {
        Self { clock: upload.clock, worker: WorkerId(upload.upload.op.view.0) }
    }
}

/// The worker whose index has something.
#[derive(Clone)]
pub(crate) enum RowOwner {
    Own,
    Other(Arc<FollowedIndex>),
}

/// A version or tombstone that one worker has of a key.
pub(crate) struct Item {
    pub(crate) whose: RowOwner,
    /// The bucket in that worker's index.
    pub(crate) bucket: BucketId,
    pub(crate) version: PackedVersion,
    pub(crate) is_tombstone: bool,
}

impl Item {
    pub(crate) fn rank(&self) -> Rank {
        Rank::of(&self.version)
    }
}

impl Others {
    /// The newest version of a key, as far as is known; `None` if there is none, or a later delete.
    pub(crate) fn newest(
        &self,
        own: &Index,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<Option<Item>, PackError> {
        let newest = self.items(own, bucket, key)?.into_iter().max_by_key(Item::rank);
        Ok(newest.filter(|item| !item.is_tombstone))
    }

    /// Everything that is known of a key, of all workers.
    pub(crate) fn items(
        &self,
        own: &Index,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<Vec<Item>, PackError> {
        let tombstones = hidden::tombstones(bucket);
        let mut items = Vec::new();
        let mut add = |index: &Index, whose: &RowOwner| -> Result<(), PackError> {
            for (name, is_tombstone) in [(bucket, false), (&tombstones, true)] {
                if let Some(id) = index.bucket_id(name)
                    && let Some(version) = index.version(id, key)?
                {
                    items.push(Item { whose: whose.clone(), bucket: id, version, is_tombstone });
                }
            }
            Ok(())
        };
        add(own, &RowOwner::Own)?;
        for known in self.known() {
            add(known.index(), &RowOwner::Other(known.clone()))?;
        }
        Ok(items)
    }
}

impl Neighbours for Others {
    fn peer_clock(&self) -> &PeerClock {
        &self.peer_clock
    }

    fn current(
        &self,
        own: &Index,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<Option<Metax>, PackError> {
        Ok(self.newest(own, bucket, key)?.map(|item| item.version.metax))
    }
}
