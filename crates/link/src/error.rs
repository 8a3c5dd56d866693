//! Errors, sorted by what the caller should do.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use larder_types::RegionId;
use serde::{Deserialize, Serialize};

use crate::limits::{CALL_TIME_MAX, NUMBERS_MAX, REGIONS_MAX, TOKEN_LIFE, TOKENS_MAX, WAITING_MAX};
use crate::name::{Address, RegionName};

/// Failure of a request to another region, or of a command.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Try again later.
    #[error(transparent)]
    Later(#[from] Later),
    /// Tell the operator; trying again helps when something was changed.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Raise an alarm: the other region sent what no region sends, and nothing of it is used.
    #[error("the other region sent an invalid response: {0}")]
    Unsound(String),
    /// Correct the command.
    #[error(transparent)]
    Usage(#[from] Usage),
    /// A file of this region cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file of this region is not what it should be.
    #[error("{path}: {why}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault, and the remedy.
        why: String,
    },
    /// The system gives no randomness, or TLS cannot use a key.
    #[error("the region's key cannot be used: {0}")]
    Key(String),
}

/// A failure that passes by itself.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Later {
    /// No connection could be made.
    #[error("{address} does not answer: {why}")]
    Unreachable {
        /// The address.
        address: Address,
        /// The reason.
        why: Arc<str>,
    },
    /// The connection broke before the answer was complete.
    #[error("the connection broke: {0}")]
    Broken(Arc<str>),
    /// No answer came in time.
    #[error("no answer came for {} s", CALL_TIME_MAX.as_secs())]
    Late,
    /// The other region has too much to do.
    #[error("the other region has too much to do")]
    Busy,
    /// The other region is about to start.
    #[error("the other region is about to start")]
    NotReady,
}

/// A failure that an operator has to look at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The address answers with another region's key.
    #[error("{0} answers with another key than that region's: is the address still that region's?")]
    WrongKey(Address),
    /// The other region does not know this one.
    #[error(
        "the other region does not know this one: if it joined just now, the other hears of it from the region that let \
         it in"
    )]
    Stranger,
    /// This region was removed.
    #[error(
        "this region was removed: others take nothing from it and give it nothing. Copy over S3 what the others lack; it comes \
         back as a new region, with an empty directory"
    )]
    Removed,
    /// The two releases have no protocol in common.
    #[error("{0} supports no protocol version of this release: use one release everywhere")]
    Release(Address),
    /// It may not join.
    #[error(transparent)]
    Join(#[from] JoinRefused),
}

/// A command that cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Usage {
    /// The store is a region that was removed.
    #[error("{} was removed from its regions for good: let an empty directory join in its place", dir.display())]
    WasRemoved {
        /// The store's directory.
        dir: PathBuf,
    },
    /// The store is a region already.
    #[error("{} is region {number} ({name}) already", dir.display())]
    AlreadyRegion {
        /// The store's directory.
        dir: PathBuf,
        /// Its number.
        number: RegionId,
        /// Its name.
        name: RegionName,
    },
    /// The store is no region.
    #[error(
        "{} is no region: run `larder region create` for the first, `larder region join` for another", .0.display()
    )]
    NotRegion(PathBuf),
    /// Only the first region lets others join.
    #[error(
        "only region 1{} gives tokens, so that no number is given twice: run `larder region token` there",
        .0.as_ref().map_or_else(String::new, |name| format!(" ({name})"))
    )]
    NotFounder(Option<RegionName>),
    /// There are as many regions as may be.
    #[error("there are {REGIONS_MAX} regions, more are not possible: remove one first")]
    Full,
    /// There are as many tokens as may be.
    #[error("there are {TOKENS_MAX} unused tokens: wait until one of them expires")]
    TooManyTokens,
    /// No number is left.
    #[error("no number for another region is left")]
    NoNumber,
    /// No region has the name.
    #[error("no other region is named {name:?}; there {known}")]
    NoPeer {
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// The text is no token.
    #[error(transparent)]
    Token(#[from] TokenFault),
    /// There are as many settings as may be.
    #[error("{WAITING_MAX} settings wait for the server of this region: start it")]
    ManyWait,
}

/// Reason for not letting a store join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum JoinRefused {
    /// The token is not known, or the proof is of another.
    #[error(
        "the first region does not know this token: make another there with `larder region token`"
    )]
    TokenUnknown,
    /// It has expired.
    #[error(
        "this token has expired, {} minutes after it was made: make another with `larder region token`",
        TOKEN_LIFE.as_secs() / 60
    )]
    TokenExpired,
    /// Another store joined with it, or the region that did was removed.
    #[error("this token was used: each is for one region, make another with `larder region token`")]
    TokenUsed,
    /// Another region has the name.
    #[error("another region has this name: choose another with --name")]
    NameTaken,
    /// There are as many regions as may be.
    #[error(
        "there are {REGIONS_MAX} regions, or {NUMBERS_MAX} that ever were: no more can join before one is removed"
    )]
    Full,
    /// A region has, or had, this key.
    #[error(
        "a region has the key of this one, or had it: delete DIR/region/identity and join with a new one"
    )]
    KeyKnown,
}

/// Reason for not reading a text as a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// It does not begin as one.
    #[error(
        "this is no token of a region: `larder region token DIR`, run at the first region, prints one"
    )]
    NotAToken,
    /// Its sum does not match.
    #[error("the token is mistyped or incomplete: copy the whole line")]
    Mistyped,
    /// A later release made it.
    #[error("the token was made by a later release (version {0}): use that one here, too")]
    Version(u32),
}

impl LinkError {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    pub(crate) fn broken(why: impl ToString) -> Self {
        Later::Broken(why.to_string().into()).into()
    }
}
