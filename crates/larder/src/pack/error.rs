//! Errors with which a pack worker does not start, or stops.

use larder_mount::MountError;
use larder_pack::PackError;

use crate::access_log::AccessLogError;
use crate::config::ConfigError;
use crate::exit;
use crate::kind::KindError;
use crate::serving::ServingError;

/// See the module's head.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkerError {
    #[error(transparent)]
    Serving(#[from] ServingError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Pack(#[from] PackError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("with --listen off there must be a --mount")]
    NothingToServe,
    #[error(transparent)]
    Kind(#[from] KindError),
    #[error(transparent)]
    AccessLog(#[from] AccessLogError),
}

impl WorkerError {
    pub(super) fn code(&self) -> u8 {
        match self {
            Self::Serving(error) => error.code(),
            Self::Config(_) | Self::Pack(PackError::Config { .. }) | Self::NothingToServe => {
                exit::USAGE
            }
            _ => exit::CANNOT_START,
        }
    }
}
