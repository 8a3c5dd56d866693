//! A start finds out where the last one ended: from index and log, or else from a backup and the footers behind it.

pub(crate) mod rebuild;
pub(crate) mod recover;
