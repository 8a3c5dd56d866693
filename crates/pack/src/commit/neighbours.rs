//! The other workers of a shared bucket, as far as a decision depends on them.
//!
//! Committing depends on nothing else of them, so it is the same without other workers.

use larder_types::{BucketName, Metax, ObjectKey};

use crate::commit::peer_clock::PeerClock;
use crate::error::PackError;
use crate::index::Index;

/// See the module's head.
pub(crate) trait Neighbours: Send + Sync {
    /// The clocks of what they told.
    fn peer_clock(&self) -> &PeerClock;

    /// The newest version that any worker has of a key, this one with the index `own` among them.
    fn current(
        &self,
        own: &Index,
        bucket: &BucketName,
        key: &ObjectKey,
    ) -> Result<Option<Metax>, PackError>;
}
