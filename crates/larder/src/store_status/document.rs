//! The state of a single node: the document of [`super::socket`], and of `larder status DIR --json`.

use larder_roles::observed::Growth;
use larder_roles::progress::Progress;
use serde::{Deserialize, Serialize};

use crate::cluster::status::space::{Bucket, Space};
use crate::cluster::status::usage::Usage;

/// See the module's head. Fields are added, and keep their meaning; one that is added has `#[serde(default)]`, as the server that
/// is asked may be of an earlier release.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Document {
    /// The worst that is wrong, with the remedy, in a line.
    pub(super) verdict: String,
    /// False if somebody should look at it.
    pub(super) is_well: bool,
    /// Milliseconds since 1970 from when on it is so, as far as this process has seen: to ten seconds.
    pub(super) since_ms: u64,
    /// Version and commit of the program that runs.
    pub(super) release: String,
    /// Milliseconds since 1970 when it began to serve.
    pub(super) began_ms: u64,
    /// True if `/readyz` says that it serves.
    pub(super) is_ready: bool,
    pub(super) space: Space,
    /// Growth of what is taken of `space`.
    pub(super) growth: Option<Growth>,
    pub(super) load: Load,
    pub(super) pgs: usize,
    /// Groups of these that are not served, because their metadata contradicts itself.
    pub(super) pgs_halted: usize,
    /// Milliseconds since 1970 when damage of the index was found, since which the store takes no changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) index_damaged_since_ms: Option<u64>,
    /// Objects of all buckets, and their bytes as clients see them.
    pub(super) objects: u64,
    pub(super) object_bytes: u64,
    /// The buckets with the most bytes come first.
    pub(super) buckets: Vec<Bucket>,
    /// Buckets that are not named, as there are too many.
    pub(super) buckets_not_named: u64,
    /// Placement groups whose objects are being counted, after a start.
    pub(super) pgs_uncounted: u64,
    /// Puts whose outcome is being found out, and for how many milliseconds the oldest has been open.
    pub(super) puts_in_doubt: u64,
    pub(super) put_in_doubt_oldest_ms: u64,
    /// Bytes of the index on disk.
    pub(super) index_bytes: u64,
    /// Bytes of the metadata log on disk.
    pub(super) log_bytes: u64,
    /// Its number among regions, if it is one of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) region: Option<u16>,
    /// Its background work.
    pub(super) progress: Progress,
}

impl Document {
    /// The part of it about buckets.
    pub(super) fn usage(self) -> Usage {
        let Self {
            objects, object_bytes: bytes, buckets, buckets_not_named, pgs_uncounted, ..
        } = self;
        // A group that is not served shows none of its objects.
        let pgs_uncounted = pgs_uncounted.max(self.pgs_halted as u64);
        let is_exact = pgs_uncounted == 0 && buckets_not_named == 0;
        Usage {
            is_exact,
            is_latest: true,
            pgs_uncounted,
            buckets,
            buckets_not_named,
            objects,
            bytes,
        }
    }
}

/// Requests of late.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Load {
    /// Requests that ended, per second.
    pub(super) requests_per_s: f64,
    /// Requests of these that failed or were turned away (status 500 and above), per second.
    pub(super) failed_per_s: f64,
}
