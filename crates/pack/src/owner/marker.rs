//! A marker that stops earlier releases, which would misread the backend. It lies beside
//! [claims](crate::owner::identity), and beside [takeover fences](crate::owner::takeover_fence), once any process has a number in the
//! names of its blobs.
//!
//! The earliest releases do not read names with a number: they would start as if there were no such blob, or inherit
//! without it, for good. Later ones do not read rows of a backup that have the clock of a first change. To either the
//! marker is neither claim nor takeover fence, so they stop before they write anything.
//!
//! # Invariants
//!
//! 1. The marker is there before the first number, and is never removed.
//! 2. A name among claims or takeover fences that this build does not know stops it: it may be such a marker of a later one.

use bytes::Bytes;

use crate::backend::Backend;
use crate::error::PackError;

/// Prefix of all claims.
pub(crate) const CLAIMS: &str = "claims";
/// Prefix of all takeover fences.
pub(crate) const TAKEOVER_FENCES: &str = "horizons";
/// The marker, below each of [`CLAIMS`] and [`TAKEOVER_FENCES`].
pub(crate) const MARKER: &str = "numbered";
/// The marker's content, for people who find it.
pub(crate) const MARKER_TEXT: &str = "A later build of Larder has used this. Earlier ones cannot read all of it, and stop at \
     this object. Leave it here, and use a later build.\n";

/// Keeps builds that do not know the markers from starting here, and from taking over.
pub(crate) async fn mark_numbered(backend: &Backend) -> Result<(), PackError> {
    for prefix in [CLAIMS, TAKEOVER_FENCES] {
        let text = Bytes::from_static(MARKER_TEXT.as_bytes());
        let _is_first = backend.put_new(&format!("{prefix}/{MARKER}"), text).await?;
    }
    Ok(())
}
