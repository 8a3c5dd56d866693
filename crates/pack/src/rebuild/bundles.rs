//! Under which names the bundles of an index are. Whoever uploaded one stood in the name of its blob, and that may have been
//! retired and removed since: so the bundles are listed.

use std::collections::BTreeSet;

use larder_kv::Batch;

use crate::backend::Backend;
use crate::counting::Counting;
use crate::entry::OwnId;
use crate::error::PackError;
use crate::index::Index;
use crate::own;

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
    let mut listing = backend.list(own::PREFIX);
    while let Some(some) = listing.next().await? {
        for (id, process) in some.iter().filter_map(|(name, _)| OwnId::parse(name)) {
            let blob = id.bundle().map(|(blob, _)| blob).filter(|_| bundles.contains(&id));
            if let Some(blob) = blob.filter(|blob| counting.counts(blob.worker, process, blob.seq))
            {
                index.add_bundles(blob, process, Batch::new(), None)?;
            }
        }
    }
    Ok(())
}
