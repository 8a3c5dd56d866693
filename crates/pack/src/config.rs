//! How a packed store is opened.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::PackError;
use crate::limits::{
    BLOB_BYTES_DEFAULT, BLOB_BYTES_MAX, BLOB_BYTES_MIN, FLUSH_TIMEOUT_DEFAULT, PACKED_BYTES_MAX,
    SPOOL_BYTES_DEFAULT,
};

/// When a change is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledge {
    /// When it is durable in the directory.
    Local,
    /// When, besides, the blob with it is uploaded.
    Uploaded,
}

/// Settings of a packed store.
#[derive(Debug, Clone)]
pub struct PackConfig {
    /// Its directory; made if it is missing.
    pub dir: PathBuf,
    /// Bytes of bodies at which a blob is full.
    pub blob_bytes: u64,
    /// Age of a blob's oldest change at which it goes up.
    pub flush_timeout: Duration,
    /// Most bytes of an object that is packed.
    pub packed_bytes: u64,
    /// Bytes of bodies that may wait in the directory.
    pub spool_bytes: u64,
    /// When a change is answered.
    pub acknowledge: Acknowledge,
    /// Whether a new directory may take a backend over from the worker that has it.
    pub take_over: bool,
}

impl PackConfig {
    /// The defaults, for a directory.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            blob_bytes: BLOB_BYTES_DEFAULT,
            flush_timeout: FLUSH_TIMEOUT_DEFAULT,
            packed_bytes: PACKED_BYTES_MAX,
            spool_bytes: SPOOL_BYTES_DEFAULT,
            acknowledge: Acknowledge::Local,
            take_over: false,
        }
    }

    pub(crate) fn check(&self) -> Result<(), PackError> {
        let refuse = |what, found: u64, remedy: String| {
            Err(PackError::Config { what, found: format!("{found} bytes"), remedy })
        };
        if !(BLOB_BYTES_MIN..=BLOB_BYTES_MAX).contains(&self.blob_bytes) {
            let remedy = format!("{BLOB_BYTES_MIN} to {BLOB_BYTES_MAX}");
            return refuse("the size of blobs", self.blob_bytes, remedy);
        }
        let packed_max = PACKED_BYTES_MAX.min(self.blob_bytes);
        if self.packed_bytes > packed_max {
            let remedy = format!("at most {packed_max}");
            return refuse("the size of packed objects", self.packed_bytes, remedy);
        }
        if self.spool_bytes < 2 * self.blob_bytes {
            let remedy = format!("twice the size of a blob, {}, at least", 2 * self.blob_bytes);
            return refuse("the size of the spool", self.spool_bytes, remedy);
        }
        Ok(())
    }
}
