//! What a failing part does to its process.

/// Why a process cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its machine lost power during an operation of its disk.
    PowerLost,
    /// It ends by itself, and says why.
    Ends(String),
}
