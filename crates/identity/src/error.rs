//! Faults of keys, certificates, tokens and secrets, and the reasons for which a certificate is refused.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A fault of keys, certificates, tokens or their files.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file can be read by others than its owner.
    #[error("{path} can be read by others: chmod 600")]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// A file, key or certificate cannot be parsed, or does not belong with the others.
    #[error("{what}: {why}")]
    Unusable {
        /// The thing at fault.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// The system gave no randomness.
    #[error("the system gives no random bytes")]
    Random,
}

impl IdentityError {
    pub(crate) fn unusable(what: &'static str, why: impl std::fmt::Display) -> Self {
        Self::Unusable { what, why: why.to_string() }
    }
}

/// The reason why a line of text is no join token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It does not begin as tokens do.
    #[error("a join token begins with `larder-join-`")]
    NotAToken,
    /// A letter that no token has, letters too many or too few, or a wrong checksum.
    #[error("the join token is mistyped or incomplete")]
    Mistyped,
    /// Made by a later release.
    #[error("the join token is of version {0}: use the release that made it")]
    Version(u8),
}

/// The reason why a line of text is no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It does not begin as secrets do. A secret is drawn, never a passphrase.
    #[error("a secret begins with `larder-secret-` and is made by `larder secret`")]
    NotASecret,
    /// A letter that no secret has, letters too many or too few, or a wrong checksum.
    #[error("the secret is mistyped or incomplete")]
    Mistyped,
    /// Made by a later release.
    #[error("the secret is of version {0}: use the release that made it")]
    Version(u8),
}

/// The reason why a cluster gives no certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The token is unknown or revoked, or was not proved.
    #[error("the token is not valid")]
    Token,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// The server may not renew its certificate.
    #[error("the cluster does not renew this server's certificate")]
    NotRenewed,
    /// The cluster cannot sign now. Stays the last variant: counters of refusals have a place for each up to this one.
    #[error("the cluster cannot sign certificates now")]
    NotNow,
}
