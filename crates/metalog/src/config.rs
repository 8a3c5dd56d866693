//! The settings that a log is created with.

use crate::error::LogError;
use crate::limits::{
    SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, WRITE_ALIGN_BYTES,
};

/// The settings of a new log. A log that exists keeps the size and the id it was created with.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// Bytes of a segment file of a new log: a multiple of 4096 between
    /// [`SEGMENT_BYTES_MIN`] and [`SEGMENT_BYTES_MAX`].
    pub segment_bytes: u64,
    /// Id of a new log: drawn at random, so that bytes of another log never pass for its own.
    pub new_log_id: u64,
    /// Faults planted on purpose.
    #[cfg(feature = "planted-bugs")]
    pub bugs: crate::bugs::Bugs,
}

impl LogConfig {
    /// Segments of the default size.
    #[must_use]
    pub fn new(new_log_id: u64) -> Self {
        Self {
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            new_log_id,
            #[cfg(feature = "planted-bugs")]
            bugs: crate::bugs::Bugs::default(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), LogError> {
        let bytes = self.segment_bytes;
        let in_range = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes);
        if in_range && bytes.is_multiple_of(WRITE_ALIGN_BYTES) {
            Ok(())
        } else {
            Err(LogError::SegmentBytes { found: bytes })
        }
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn checks_chains(&self) -> bool {
        !self.bugs.chain_not_checked
    }

    #[cfg(not(feature = "planted-bugs"))]
    pub(crate) fn checks_chains(&self) -> bool {
        true
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn cuts_durably(&self) -> bool {
        !self.bugs.cut_tail_not_synced
    }

    #[cfg(not(feature = "planted-bugs"))]
    pub(crate) fn cuts_durably(&self) -> bool {
        true
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn syncs_commits(&self) -> bool {
        !self.bugs.ack_before_sync
    }

    #[cfg(not(feature = "planted-bugs"))]
    pub(crate) fn syncs_commits(&self) -> bool {
        true
    }
}
