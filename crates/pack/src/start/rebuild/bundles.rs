//! Finds the names that the bundles of an index have. The process that uploaded a bundle stood in
//! the name of its blob, and that may have been retired and removed since: so the bundles are
//! listed.

use std::collections::{BTreeMap, BTreeSet};

use larder_kv::Batch;

use crate::backend::Backend;
use crate::error::PackError;
use crate::format::names;
use crate::ids::{BlobId, ProcessId, StandaloneId};
use crate::index::Index;
use crate::owner::counting::Counting;

/// Writes into an index who uploaded the bundles of which anything is live.
pub(super) async fn name(
    backend: &Backend,
    counting: &Counting,
    index: &Index,
) -> Result<(), PackError> {
    let bundles: BTreeSet<_> = index.bundles()?.into_iter().map(|(id, _)| id).collect();
    if bundles.is_empty() {
        return Ok(());
    }
    let (mut listing, mut uploaded) = (backend.list(names::PREFIX), Uploaded::default());
    while let Some(some) = listing.next().await? {
        for (id, process) in some.iter().filter_map(|(name, _)| StandaloneId::parse(name)) {
            let blob = id.bundle().map(|(blob, _)| blob).filter(|_| bundles.contains(&id));
            if let Some(blob) = blob.filter(|blob| counting.counts(blob.worker, process, blob.seq))
            {
                uploaded.by(blob, process);
            }
        }
    }
    for (blob, process) in uploaded.0 {
        index.add_bundles(blob, process, Batch::new(), None)?;
    }
    Ok(())
}

/// The last process that uploaded bundles of each blob. Those of an earlier one are void by a record that is gone, as it is
/// so long ago.
#[derive(Debug, Default)]
struct Uploaded(BTreeMap<BlobId, ProcessId>);

impl Uploaded {
    fn by(&mut self, blob: BlobId, process: ProcessId) {
        let last = self.0.entry(blob).or_default();
        *last = process.max(*last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WorkerId;

    #[test]
    fn of_several_that_uploaded_a_bundle_the_last_counts_in_whatever_order_they_are_listed() {
        let blob = BlobId { worker: WorkerId(3), seq: 4 };
        let process = |number| ProcessId::new(number).unwrap();
        for order in [[0, 7, 8], [8, 7, 0], [7, 8, 0]] {
            let mut uploaded = Uploaded::default();
            for number in order {
                uploaded.by(blob, process(number));
            }
            assert_eq!(uploaded.0, BTreeMap::from([(blob, process(8))]));
        }
    }
}
