//! Refusals: the error that a program gets, and the one that each error of a store becomes.

use fuser::Errno;
use larder_objects::ObjectError;

/// The reason that something was not done. Each is one `errno`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// `ENOENT`.
    #[error("there is no such file")]
    NotFound,
    /// `EEXIST`.
    #[error("it is there already")]
    Exists,
    /// `ENOTDIR`.
    #[error("it is not a directory")]
    NotADirectory,
    /// `EISDIR`.
    #[error("it is a directory")]
    IsADirectory,
    /// `ENOTEMPTY`.
    #[error("the directory is not empty")]
    NotEmpty,
    /// `ENAMETOOLONG`: a name, or the key that the path would be.
    #[error("the name is too long")]
    NameTooLong,
    /// `EILSEQ`: keys are UTF-8.
    #[error("the name is not UTF-8")]
    NameNotText,
    /// `EPERM`: files have no such thing here.
    #[error("this cannot be done to files of a mount")]
    NotPermitted,
    /// `EINVAL`.
    #[error("the request makes no sense")]
    Invalid,
    /// `EBADF`.
    #[error("the file is not open for this")]
    BadHandle,
    /// `EFBIG`.
    #[error("the file is too large")]
    TooLarge,
    /// `ENOSPC`: in the store, on the worker's disk, or of the bytes that may be written at once.
    #[error("no space is left")]
    NoSpace,
    /// `EXDEV`: the program that renames must copy.
    #[error("it cannot be renamed in one step")]
    CopyInstead,
    /// `ESTALE`: another client replaced or deleted it.
    #[error("another client has changed it")]
    Stale,
    /// `EAGAIN`: the store was at its limit for [`PATIENCE`](crate::limits::PATIENCE).
    #[error("the store is at its limit")]
    TryAgain,
    /// `ENFILE`.
    #[error("too many files are open")]
    TooManyOpen,
    /// `ENOMEM`.
    #[error("the kernel references too many files")]
    TooManyNodes,
    /// `ENOTSUP`.
    #[error("this store does not do it")]
    NotSupported,
    /// `EIO`: the store or the worker's disk failed.
    #[error("the store failed")]
    Failed,
}

impl Refusal {
    /// The error that the program sees.
    #[must_use]
    pub fn errno(self) -> Errno {
        match self {
            Self::NotFound => Errno::ENOENT,
            Self::Exists => Errno::EEXIST,
            Self::NotADirectory => Errno::ENOTDIR,
            Self::IsADirectory => Errno::EISDIR,
            Self::NotEmpty => Errno::ENOTEMPTY,
            Self::NameTooLong => Errno::ENAMETOOLONG,
            Self::NameNotText => Errno::EILSEQ,
            Self::NotPermitted => Errno::EPERM,
            Self::Invalid => Errno::EINVAL,
            Self::BadHandle => Errno::EBADF,
            Self::TooLarge => Errno::EFBIG,
            Self::NoSpace => Errno::ENOSPC,
            Self::CopyInstead => Errno::EXDEV,
            Self::Stale => Errno::ESTALE,
            Self::TryAgain => Errno::EAGAIN,
            Self::TooManyOpen => Errno::ENFILE,
            Self::TooManyNodes => Errno::ENOMEM,
            Self::NotSupported => Errno::ENOTSUP,
            Self::Failed => Errno::EIO,
        }
    }

    /// True if an operator should know: the store, the disk or a limit, not the program's question.
    #[must_use]
    pub fn is_fault(self) -> bool {
        matches!(
            self,
            Self::Failed
                | Self::NoSpace
                | Self::Stale
                | Self::TryAgain
                | Self::TooManyOpen
                | Self::TooManyNodes
        )
    }
}

/// Translates a store's error for a program. A mount sets conditions only where something must not be there yet, or must
/// still be as it was. Callers that mean the former say so themselves.
impl From<ObjectError> for Refusal {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::NoSuchKey => Self::NotFound,
            ObjectError::Changed | ObjectError::PreconditionFailed | ObjectError::NoSuchBucket => {
                Self::Stale
            }
            ObjectError::TooLarge { .. } => Self::TooLarge,
            ObjectError::Full => Self::NoSpace,
            ObjectError::SlowDown => Self::TryAgain,
            ObjectError::Unsupported { .. } => Self::NotSupported,
            error => {
                tracing::warn!(%error, "a request of the mount failed");
                Self::Failed
            }
        }
    }
}

/// Translates an error of the worker's disk for a program.
impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::StorageFull {
            return Self::NoSpace;
        }
        tracing::warn!(%error, "a file being written could not be kept on the worker's disk");
        Self::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_an_error_that_it_can_act_on() {
        let errno = |error: ObjectError| i32::from(Refusal::from(error).errno());
        assert_eq!(errno(ObjectError::NoSuchKey), nix::libc::ENOENT);
        assert_eq!(errno(ObjectError::Full), nix::libc::ENOSPC);
        assert_eq!(errno(ObjectError::Changed), nix::libc::ESTALE);
        assert_eq!(errno(ObjectError::SlowDown), nix::libc::EAGAIN);
        assert_eq!(errno(ObjectError::Damaged), nix::libc::EIO);
        assert_eq!(i32::from(Refusal::CopyInstead.errno()), nix::libc::EXDEV);
    }

    #[test]
    fn a_missing_file_is_no_fault() {
        assert!(!Refusal::NotFound.is_fault() && !Refusal::CopyInstead.is_fault());
        assert!(Refusal::Failed.is_fault() && Refusal::NoSpace.is_fault());
    }
}
