//! Bucket records. They belong to the manager and are cached everywhere.

use serde::{Deserialize, Serialize};

use crate::ids::{BucketId, Epoch};
use crate::name::BucketName;

/// Whether a bucket takes puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BucketState {
    /// It does.
    Live,
    /// It is being found empty; puts are refused.
    Deleting,
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketRecord {
    /// Never used again after its deletion.
    pub id: BucketId,
    /// Its name.
    pub name: BucketName,
    /// Grows with each change of this record; a put that carries an older one is refused.
    pub epoch: Epoch,
    /// Whether it takes puts.
    pub state: BucketState,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// `LocationConstraint` as given at creation.
    pub location: Option<String>,
}
