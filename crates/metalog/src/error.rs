//! Errors of the log, sorted by what the caller should do.

use std::fmt;

use larder_env::DiskError;
use larder_types::PgId;

use crate::limits::{PGS_NAMED_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

/// Errors of the log, by what the caller should do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The writer is behind: try again after its next commit. Nothing was appended.
    #[error("the metadata log is busy")]
    Busy,
    /// No space for another segment: free some. Nothing was appended.
    #[error("no space for another segment of the metadata log in {dir}: free some on that disk")]
    Full {
        /// Directory of the log.
        dir: String,
    },
    /// A write or sync failed: this log takes no more records. Replace the disk or start again.
    #[error("the metadata log cannot be used: {source}")]
    Broken {
        /// The first failure.
        #[from]
        source: DiskError,
    },
    /// Durable records are lost: do not serve the PGs named until they are restored.
    #[error("{0}")]
    Damaged(Damage),
    /// Written by a later release: use that one.
    #[error("{file} has format version {found}, this release knows up to 1: use a newer release")]
    Version {
        /// The segment file.
        file: String,
        /// Version found.
        found: u32,
    },
    /// The configuration is wrong.
    #[error(
        "segment_bytes = {found} is not allowed: give a multiple of 4096 between \
         {SEGMENT_BYTES_MIN} and {SEGMENT_BYTES_MAX}"
    )]
    SegmentBytes {
        /// The value given.
        found: u64,
    },
}

/// A place where durable records are lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The segment file, as the disk names it.
    pub file: String,
    /// Number of the segment.
    pub segment: u64,
    /// Byte offset in the file.
    pub offset: u64,
    /// The kind of damage.
    pub kind: DamageKind,
    /// PGs of which records are known to be missing; those of a PG with no record after the damage
    /// cannot be known.
    pub pgs: Vec<PgId>,
}

/// The kinds of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamageKind {
    /// A segment file between others is not there.
    Missing,
    /// The segment's header does not verify.
    Header,
    /// The segment's file is shorter than it was made.
    Short,
    /// Records below a position known to be synced do not verify.
    Record,
    /// Records below a position known to be synced lie where the device cannot be read.
    Unreadable,
    /// A record verifies but does not follow its PG's record before.
    Chain,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the metadata log is damaged: {} ", self.file)?;
        match self.kind {
            DamageKind::Missing => write!(f, "is missing")?,
            DamageKind::Header => write!(f, "has a segment header that does not verify")?,
            DamageKind::Short => write!(f, "was cut off at byte {}", self.offset)?,
            DamageKind::Record => {
                write!(f, "lost durable records at byte {}", self.offset)?;
            }
            DamageKind::Unreadable => {
                write!(f, "has durable records at byte {} that the disk cannot read", self.offset)?;
            }
            DamageKind::Chain => {
                write!(f, "has a record that follows a lost one at byte {}", self.offset)?;
            }
        }
        for (index, pg) in self.pgs.iter().take(PGS_NAMED_MAX).enumerate() {
            let before = if index == 0 { "; placement groups that lost records: " } else { ", " };
            write!(f, "{before}{pg}")?;
        }
        if let Some(more @ 1..) = self.pgs.len().checked_sub(PGS_NAMED_MAX) {
            write!(f, " and {more} more")?;
        }
        write!(
            f,
            ". Keep the file as it is; restore it from a copy, or remove this server and let its \
             peers rebuild it"
        )
    }
}
