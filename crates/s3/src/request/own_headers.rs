//! Headers that are Larder's own, beside those of S3.

/// The beginning of all their names.
pub(crate) const PREFIX: &str = "x-larder-";
/// Asks for a record append.
pub(crate) const RECORD: &str = "x-larder-append";
/// Says where a record begins in its object.
pub(crate) const OFFSET: &str = "x-larder-offset";
/// Asks a list for the keys of all regions, and says that it has them.
pub(crate) const LIST_REGIONS: &str = "x-larder-list-regions";
/// Says which regions have a version.
pub(crate) const REPLICATION_REGIONS: &str = "x-larder-replication-regions";
