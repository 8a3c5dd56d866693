//! Errors, sorted by what the caller should do about them.

use std::sync::Arc;

use larder_identity::{IdentityError, Refusal};

/// The reason why a call was not answered, sorted by what the caller should do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// Ask another server, or this one later: it was not executed.
    #[error("not sent: {0}")]
    NotSent(NotSent),
    /// Slow down and repeat the same: it was not executed, because too much is under way.
    #[error("too much is under way {0}")]
    Busy(Side),
    /// It may have been executed: repeat it only if it is idempotent, or ask for its outcome.
    #[error("sent, but not answered: {0}")]
    Unknown(Unknown),
    /// Give up: it will never be executed in this form.
    #[error("refused: {0}")]
    Rejected(Rejected),
    /// Fix the configuration: one of the two servers refuses the other. Not executed.
    #[error("{0}")]
    Denied(Denied),
}

/// The reason why a call was not sent.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NotSent {
    /// No connection could be made, now or shortly before.
    #[error("no connection: {0}")]
    Unreachable(Arc<str>),
    /// The connection broke before the call was sent whole.
    #[error("the connection broke: {0}")]
    Broken(Arc<str>),
    /// The deadline passed before the call was sent whole.
    #[error("the deadline passed")]
    Late,
}

/// The side whose bound was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Ours.
    Here,
    /// The peer's.
    There,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Here => "here",
            Self::There => "at the peer",
        })
    }
}

/// The reason why the outcome of a call that was sent is unknown.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Unknown {
    /// The deadline passed.
    #[error("the deadline passed")]
    Late,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(Arc<str>),
    /// The peer's handler dropped it without an answer.
    #[error("the peer gave no answer")]
    NoAnswer,
    /// Ask for less: the answer would be as long again.
    #[error("the peer's answer is longer than a frame may be")]
    TooLong,
    /// The answer is none that this release knows.
    #[error("the answer cannot be decoded: use the peer's release")]
    Unreadable,
}

/// The reason why a request can never be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// Longer than a frame may be.
    #[error("it is too long")]
    TooLong,
    /// The peer's release does not know the request.
    #[error("the peer does not know it: use one release everywhere")]
    NotUnderstood,
}

/// The reason why one of the two sides refused a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The peer showed no certificate.
    NoCertificate,
    /// The certificate is no longer valid, or a clock is wrong.
    Expired,
    /// The certificate is not valid yet, or a clock is wrong.
    NotYetValid,
    /// Another authority signed the certificate: most likely it is of another cluster.
    UnknownAuthority,
    /// The certificate cannot be used for some other reason.
    BadCertificate,
    /// The peer is another server than the caller asked for.
    WrongServer,
    /// Its certificate lacks the role that is needed.
    WrongRole,
    /// No version of the protocol is known to both sides.
    Version,
    /// The peer does not serve the service that was asked for.
    NoService,
    /// It sent what the protocol does not allow.
    Garbage,
    /// The handshake did not end in time.
    Late,
    /// The listener has as many connections or handshakes as it allows.
    TooMany,
    /// It came with another secret.
    OtherSecret,
    /// The server was removed from the cluster.
    Removed,
}

impl Refused {
    /// All of them, in the order of the variants. A place in it is a number on the wire: later reasons are appended.
    pub const ALL: [Self; 14] = [
        Self::NoCertificate,
        Self::Expired,
        Self::NotYetValid,
        Self::UnknownAuthority,
        Self::BadCertificate,
        Self::WrongServer,
        Self::WrongRole,
        Self::Version,
        Self::NoService,
        Self::Garbage,
        Self::Late,
        Self::TooMany,
        Self::OtherSecret,
        Self::Removed,
    ];

    /// Its label in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::UnknownAuthority => "unknown_authority",
            Self::BadCertificate => "bad_certificate",
            Self::WrongServer => "wrong_server",
            Self::WrongRole => "wrong_role",
            Self::Version => "version",
            Self::NoService => "no_service",
            Self::Garbage => "garbage",
            Self::Late => "late",
            Self::TooMany => "too_many",
            Self::OtherSecret => "other_secret",
            Self::Removed => "removed",
        }
    }
}

/// The refusal of a connection by one of its two sides.
#[derive(Debug, Clone, thiserror::Error)]
#[error("denied by {by}: {why}")]
pub struct Denied {
    /// The side that denied it.
    pub by: RefusingSide,
    /// The reason as a class.
    pub reason: Refused,
    /// The reason as text.
    pub why: Arc<str>,
}

impl Denied {
    pub(crate) fn by_us(reason: Refused, why: String) -> Self {
        Self { by: RefusingSide::Us, reason, why: why.into() }
    }
}

/// The side that denied a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusingSide {
    /// This server.
    Us,
    /// The other one.
    Peer,
}

impl std::fmt::Display for RefusingSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Us => "this server",
            Self::Peer => "the peer",
        })
    }
}

/// The reason why a message was not queued. A queued one may still be lost with its connection.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SendError {
    /// Slow down: the queue is full.
    #[error("the queue is full")]
    Busy,
    /// Try later: there is no connection, and the pause before the next attempt is not over.
    #[error("no connection: {0}")]
    Unreachable(Arc<str>),
    /// Give up: longer than a frame may be.
    #[error("the message is too long")]
    TooLong,
    /// Fix the configuration.
    #[error("{0}")]
    Denied(Denied),
}

/// The reason why a discovery request failed.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// Try again: nobody answers there, or not in time.
    #[error("no server answers: {0}")]
    Unreachable(String),
    /// Give both ends the same secret.
    #[error("the machine there has another secret")]
    OtherSecret,
}

/// The reason why a server could not join, or renew its certificate.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Try again: the cluster could not be reached, or did not answer.
    #[error("the cluster cannot be reached: {0}")]
    Unreachable(String),
    /// The server at this address is not of the token's cluster, or no manager. Nothing was sent to it.
    #[error("the server at this address is not a manager of the token's cluster: {0}")]
    Stranger(String),
    /// Get a new token: this one is unknown, revoked, or expired.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The answer cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_stand_at_their_counters() {
        for (at, why) in Refused::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, at);
        }
    }
}
