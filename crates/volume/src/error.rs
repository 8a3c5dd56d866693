//! Errors of a disk that cannot be made, opened or read. Refusals of commands are
//! [`crate::Refusal`].

use larder_env::DiskError;
use larder_types::LvId;

/// Errors of making or opening a volume, sorted by what the caller should do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// Fix the configuration.
    #[error("{field} is {found}; it must be {rule}")]
    Config {
        /// The setting.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// Choose another name, or open it.
    #[error("{name} is a volume already")]
    Exists {
        /// The file or device.
        name: String,
    },
    /// Use a newer release.
    #[error(
        "{name} has volume format {found}, this release knows up to {known}: use a newer release"
    )]
    Version {
        /// The file or device.
        name: String,
        /// Version found.
        found: u32,
        /// Newest version known.
        known: u32,
    },
    /// Replace the disk and rebuild its PVs from other replicas: its superblocks are gone.
    #[error("{name} is not a volume, or its superblocks are damaged: {reason}")]
    Damaged {
        /// The file or device.
        name: String,
        /// The fault found.
        reason: &'static str,
    },
    /// As the disk says.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// The reason that bytes were not read. In each case another holder may have them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The LV is not on this disk: look at the map again.
    #[error("LV {lv} is not on this disk")]
    UnknownLv {
        /// The LV.
        lv: LvId,
    },
    /// The extents leave the LV, or the range leaves the extents: METAX is wrong.
    #[error("the range is outside the extents or the extents are outside LV {lv}")]
    OutOfRange {
        /// The LV.
        lv: LvId,
    },
    /// The disk ends before the range: what is asked for was never written here.
    #[error("the disk ends before the range asked for in LV {lv}")]
    Short {
        /// The LV.
        lv: LvId,
    },
    /// As the disk says.
    #[error(transparent)]
    Disk(#[from] DiskError),
}
