//! Which bucket here is which there: buckets have ids of their own in each region, and are the same by name.

use std::collections::{BTreeMap, BTreeSet};

use larder_objects::{ObjectError, Objects};
use larder_protocol::region::{Id, Name};
use larder_types::{BucketId, BucketName, RegionId};
use parking_lot::RwLock;

use super::Shared;
use crate::proxy::RegionReach;

/// Of one region.
#[derive(Debug, Default, Clone)]
struct Known {
    /// Ids there and here.
    here: BTreeMap<BucketId, BucketId>,
    there: BTreeMap<BucketId, BucketId>,
}

/// Buckets of other regions, and the same ones here.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: RwLock<BTreeMap<RegionId, Known>>,
}

impl Names {
    /// Ids of a region's buckets, in order, and what they are here.
    pub(super) fn of(&self, region: RegionId) -> BTreeMap<BucketId, BucketId> {
        self.known.read().get(&region).map(|known| known.here.clone()).unwrap_or_default()
    }

    /// A name of this region, as it is there.
    pub(super) fn there(&self, region: RegionId, name: &Name) -> Option<Name> {
        let bucket = *self.known.read().get(&region)?.there.get(&name.bucket)?;
        Some(Name { bucket, ..name.clone() })
    }

    /// Ids that a region tells, as they are here; `None` if the bucket of one is not known: what it tells of may not be passed
    /// over.
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
    /// A region tells of these buckets: those that are not here are made. One that cannot be made counts only if something in
    /// it is told of.
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
                    // Who made it may know it before this process does: until it knows it too, nothing of it is taken.
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
