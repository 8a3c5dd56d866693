//! A region that the others have removed takes no changes of clients: no other region would ever have them.

use std::sync::atomic::{AtomicU64, Ordering};

use larder_link::message::RegionList;
use larder_objects::ObjectError;
use larder_protocol::manager::state::Topology;
use larder_types::RegionId;
use larder_types::codec::decode;

use super::role_access::RoleAccess;
use super::{Proxy, unavailable};

const REMOVED: &str = "this region was removed, so that no other would have the change: use another region. Reads go on";

/// Tells from the list of regions in the managers' map that this one was removed. A list is decoded once.
#[derive(Debug, Default)]
pub(super) struct Removal {
    /// `regions_known << 1 | is_removed` of the list that was decoded last.
    seen: AtomicU64,
}

impl Removal {
    pub(super) fn of(&self, map: &Topology) -> bool {
        let known = u64::from(map.regions_known);
        let seen = self.seen.load(Ordering::Relaxed);
        if seen >> 1 == known {
            return seen & 1 == 1;
        }
        let is_removed = lists_as_removed(&map.regions, map.number());
        self.seen.store(known << 1 | u64::from(is_removed), Ordering::Relaxed);
        is_removed
    }
}

fn lists_as_removed(list: &[u8], own: RegionId) -> bool {
    match decode::<RegionList>("the list of regions", list) {
        Ok(list) => list.regions.iter().any(|region| region.number == own && region.removed),
        Err(error) => {
            tracing::error!(%error, "the managers' list of regions cannot be used");
            false
        }
    }
}

impl<R: RoleAccess> Proxy<R> {
    /// Returns true if this store is a region that the others have removed, as far as it has heard.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.access.is_removed() || self.elsewhere().is_some_and(|it| it.is_removed())
    }

    /// Refuses clients' changes in a region that was removed.
    pub(super) fn may_change(&self) -> Result<(), ObjectError> {
        if self.is_removed() { Err(unavailable(REMOVED)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_link::{Fingerprint, Known};
    use larder_protocol::manager::state::RegionRecord;
    use larder_types::codec::encode;

    /// The map of region 2, whose list has such regions.
    fn map(regions: &[(u16, bool)]) -> Topology {
        let known = |(number, removed): &(u16, bool)| Known {
            number: RegionId(*number),
            name: format!("r{number}").parse().expect("a name"),
            address: "eu.example.org:7001".parse().expect("an address"),
            fingerprint: Fingerprint([*number as u8; 32]),
            removed: *removed,
        };
        let list = RegionList { regions: regions.iter().map(known).collect() };
        let region = Some(RegionRecord { number: RegionId(2), fingerprint: [2; 32] });
        let (regions_known, regions) = (list.known(), encode(&list));
        Topology { region, regions, regions_known, ..Topology::default() }
    }

    #[test]
    fn a_cluster_learns_from_its_map_that_its_region_was_removed() {
        let removal = Removal::default();
        assert!(!removal.of(&Topology::default()), "it is in no region");
        assert!(!removal.of(&map(&[(1, false), (2, false)])));
        assert!(!removal.of(&map(&[(1, true), (2, false)])), "another one was removed");
        let removed = map(&[(1, true), (2, true)]);
        assert!(removal.of(&removed));
        assert!(removal.of(&removed), "so it stays");
    }

    #[test]
    fn a_list_that_cannot_be_used_says_nothing() {
        let map = Topology { regions_known: 2, regions: vec![0xFF; 3], ..Topology::default() };
        assert!(!Removal::default().of(&map));
    }
}
