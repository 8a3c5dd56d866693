//! Maps buckets of other regions to those here: each region has bucket ids of its own, and buckets are the same by name.

use std::collections::{BTreeMap, BTreeSet};

use larder_objects::{ObjectError, Objects};
use larder_protocol::region::{Id, Name};
use larder_types::{BucketId, BucketName, RegionId};
use parking_lot::RwLock;

use super::Shared;
use crate::proxy::RegionReach;

/// Bucket ids of one other region.
#[derive(Debug, Default, Clone)]
struct Known {
    /// Ids here, by those there.
    here: BTreeMap<BucketId, BucketId>,
    there: BTreeMap<BucketId, BucketId>,
}

/// Buckets of other regions, and the same ones here.
#[derive(Debug, Default)]
pub(super) struct BucketIds {
    known: RwLock<BTreeMap<RegionId, Known>>,
}

impl BucketIds {
    /// A region's bucket ids in order, each with its id here.
    pub(super) fn of(&self, region: RegionId) -> BTreeMap<BucketId, BucketId> {
        self.known.read().get(&region).map(|known| known.here.clone()).unwrap_or_default()
    }

    /// Translates a name of this region into the other's.
    pub(super) fn there(&self, region: RegionId, name: &Name) -> Option<Name> {
        let bucket = *self.known.read().get(&region)?.there.get(&name.bucket)?;
        Some(Name { bucket, ..name.clone() })
    }

    /// Translates ids that a region tells into those here; `None` if the bucket of one is not known, as no id may be
    /// passed over.
    pub(super) fn translate(&self, region: RegionId, ids: Vec<Id>) -> Option<Vec<Id>> {
        let known = self.known.read();
        let of_region = known.get(&region);
        let here = |mut id: Id| {
            id.name.bucket = *of_region?.here.get(&id.name.bucket)?;
            Some(id)
        };
        ids.into_iter().map(here).collect()
    }

    fn learn(&self, region: RegionId, there: BucketId, here: BucketId) {
        let mut known = self.known.write();
        let known = known.entry(region).or_default();
        known.here.insert(there, here);
        known.there.insert(here, there);
    }
}

impl<R: RegionReach> Shared<R> {
    /// Learns a region's buckets, and makes those that are not here. One that cannot be made is an error only if it is
    /// `needed`.
    pub(super) async fn learn_names(
        &self,
        region: RegionId,
        told: Vec<(BucketId, BucketName)>,
        needed: &BTreeSet<BucketId>,
    ) -> Result<(), ObjectError> {
        for (there, name) in told {
            if self.shown.bucket(&name).is_none() {
                match self.proxy.create_bucket(&name, None).await {
                    Ok(_) => tracing::info!(bucket = %name, %region, "made: another region has it"),
                    // This process may not know yet a bucket that another made: until it does, nothing of it is taken.
                    Err(ObjectError::BucketExists) => {}
                    Err(error) if needed.contains(&there) => return Err(error),
                    Err(error) => self.watch.cannot_take(region, &error),
                }
            }
            if let Some(here) = self.shown.bucket(&name) {
                self.names.learn(region, there, here);
            }
        }
        Ok(())
    }
}
