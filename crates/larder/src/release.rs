//! The release that this program is, and the commit that it was built from.

/// Version of the release.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Commit that it was built from; `unknown` of sources without one.
pub(crate) const COMMIT: &str = env!("LARDER_COMMIT");
/// Both, as `larder --version` shows them.
pub(crate) const SHOWN: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("LARDER_COMMIT"), ")");
