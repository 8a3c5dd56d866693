//! The way of bytes to the backend: sealed blobs with their bundles, in their order, and bodies too large to be packed.

pub(crate) mod standalone;
pub(crate) mod uploader;
