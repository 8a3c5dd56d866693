//! The names of files that a server's directory has whatever its role is. Identities have `identity.rs`.

/// File that a running server holds locked.
pub const LOCK_FILE: &str = "lock";
/// Default file of the data.
pub const DATA_FILE: &str = "data0";
