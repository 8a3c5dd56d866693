//! How a packed store is opened.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::PackError;
use crate::limits::{
    BACKGROUND_BYTES_PER_S_DEFAULT, BACKUP_INTERVAL_DEFAULT, BLOB_BYTES_DEFAULT, BLOB_BYTES_MAX,
    BLOB_BYTES_MIN, FLUSH_TIMEOUT_DEFAULT, GRACE_DEFAULT, HOUSEKEEPING_PERIOD_DEFAULT,
    PACKED_BYTES_MAX, REPACK_BELOW_PERCENT_DEFAULT, SPOOL_BYTES_DEFAULT,
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
    /// Percent of a blob's bodies that are live below which it is repacked; 0 for never.
    pub repack_below_percent: u8,
    /// How long what nothing needs any more stays in the backend.
    pub grace: Duration,
    /// Bytes per second that work in the background reads or writes.
    pub background_bytes_per_s: u64,
    /// Time from one look whether there is work in the background to the next.
    pub housekeeping_period: Duration,
    /// Time from one backup of the index to the next; zero for none.
    pub backup_interval: Duration,
    /// Whether the index may be rebuilt without blobs that are missing or damaged.
    pub accept_loss: bool,
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
            repack_below_percent: REPACK_BELOW_PERCENT_DEFAULT,
            grace: GRACE_DEFAULT,
            background_bytes_per_s: BACKGROUND_BYTES_PER_S_DEFAULT,
            housekeeping_period: HOUSEKEEPING_PERIOD_DEFAULT,
            backup_interval: BACKUP_INTERVAL_DEFAULT,
            accept_loss: false,
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
        if self.repack_below_percent >= 100 {
            let (what, found) =
                ("the share below which blobs are repacked", self.repack_below_percent);
            let remedy = "0 to 99: full blobs would be repacked for ever".to_owned();
            return Err(PackError::Config { what, found: format!("{found} %"), remedy });
        }
        if self.background_bytes_per_s == 0 {
            return refuse("the pace of work in the background", 0, "more than that".to_owned());
        }
        Ok(())
    }
}
