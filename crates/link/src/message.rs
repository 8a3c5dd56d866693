//! Messages between regions. `docs/formats/region.md` has the bytes.
//!
//! A request is one HTTP request, and its answer the answer; each is encoded with a version byte. The answer to a fetch
//! is a stream ([`crate::frame`]).
//!
//! # Invariants
//!
//! 1. Enums grow by variants at their end; nothing is changed or removed while a release that says it may be in use.
//! 2. A request is checked before anybody is asked to answer it ([`Request::check`]).

use larder_protocol::limits::{REGION_SERVED_ENTRIES_MAX, REGION_SERVED_PGS_MAX};
use larder_protocol::region::journal::Batch;
use larder_protocol::region::{Entry, Listed, Name, Range, Summed, Token, Void};
use larder_types::{BucketId, BucketName, PgId, RegionId};
use serde::{Deserialize, Serialize};

use crate::limits::{NUMBERS_MAX, REGIONS_MAX, TOKEN_LIFE};
use crate::members::Known;
use crate::name::{Address, RegionName};
use crate::token::TokenId;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Asks for the region's own description: [`Hello`].
    Hello,
    /// The ids behind tokens: [`Told`].
    Ask(Ask),
    /// The sums of runs: [`Walked`].
    Walk(Walk),
    /// The ids of a run: [`ListedIn`].
    List(List),
    /// Entries: a stream of [`Fetched`].
    Fetch(Fetch),
    /// Which regions it knows, from one that knows these: [`KnownRegions`].
    Members(KnownRegions),
    /// To become a region: [`Joined`].
    Join(Join),
}

/// A region's own description.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its number.
    pub number: RegionId,
    /// Its placement groups.
    pub pg_count: u32,
    /// Its clock: milliseconds since 1970.
    pub now_ms: u64,
}

/// Asks for the ids behind tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// PGs: the token behind which ids are wanted, and up to which all is durable with who asks.
    pub pgs: Vec<(PgId, Token, Token)>,
    /// Most ids of all PGs together.
    pub ids_max: u32,
}

/// Names of the buckets that an answer has entries of.
pub type Buckets = Vec<(BucketId, BucketName)>;

/// Ids behind tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Of each PG.
    pub pgs: Vec<(PgId, Result<Batch, Void>)>,
    /// Of these buckets.
    pub buckets: Buckets,
}

/// Asks for the sums of runs of a range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walk {
    /// The range.
    pub range: Range,
}

/// Sums of runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walked {
    /// The sums.
    pub summed: Summed,
    /// Of these buckets.
    pub buckets: Buckets,
}

/// Asks for the ids of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// The run.
    pub range: Range,
}

/// Ids of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedIn {
    /// The ids.
    pub listed: Listed,
    /// Of these buckets.
    pub buckets: Buckets,
}

/// Asks for entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// Which; whether with its bytes.
    pub names: Vec<(Name, bool)>,
}

/// An entry in the answer to a fetch. They come in the order in which they were asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// Its name.
    pub name: Name,
    /// The entry; `None` if it is there no more.
    pub entry: Option<Entry>,
    /// Bytes of content that follow.
    pub bytes: u64,
    /// Nothing is said of it now: it is to be asked for again.
    pub is_withheld: bool,
}

/// Regions that one of them knows. Also stored, in the map of a cluster that is a region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownRegions {
    /// Each, also those that are no more.
    pub regions: Vec<Known>,
}

impl KnownRegions {
    /// A measure of what is known: it grows when a region comes, or is removed, and never shrinks.
    #[must_use]
    pub fn known(&self) -> u32 {
        let removed = self.regions.iter().filter(|region| region.removed).count();
        (self.regions.len() + removed) as u32
    }
}

/// Asks to become a region. Its key is that of the connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The token.
    pub(crate) token: TokenId,
    /// Shows that it has it.
    pub(crate) proof: [u8; 32],
    /// Its name.
    pub(crate) name: RegionName,
    /// Where others reach it.
    pub(crate) address: Address,
}

/// It is a region now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Its number.
    pub number: RegionId,
    /// All regions, it too.
    pub known: KnownRegions,
}

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Declined {
    /// Too much is under way.
    #[error("too much is under way")]
    Busy,
    /// The region does not serve yet.
    #[error("it does not serve yet")]
    NotReady,
    /// No region asks that.
    #[error("no region asks that: {0}")]
    Unsound(String),
    /// The asker is no region that is known here.
    #[error("who asks is not known")]
    Stranger,
    /// The asker was removed.
    #[error("who asks was removed")]
    Removed,
    /// The asker may not join.
    #[error("{0}")]
    Join(JoinRefused),
}

/// Why a store does not become a region.
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
    /// Another has joined with it, or who did was removed.
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

impl Request {
    /// Its name in metrics and logs.
    #[must_use]
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Ask(_) => "ask",
            Self::Walk(_) => "walk",
            Self::List(_) => "list",
            Self::Fetch(_) => "fetch",
            Self::Members(_) => "members",
            Self::Join(_) => "join",
        }
    }

    /// Refuses a request that no region makes.
    pub(crate) fn check(&self) -> Result<(), Declined> {
        let is_sound = match self {
            Self::Hello | Self::Join(_) => true,
            Self::Ask(Ask { pgs, ids_max }) => {
                (1..=REGION_SERVED_PGS_MAX).contains(&pgs.len()) && *ids_max > 0
            }
            Self::Walk(Walk { range }) | Self::List(List { range }) => {
                range.to.as_ref().is_none_or(|to| *to > range.from)
            }
            Self::Fetch(Fetch { names }) => (1..=REGION_SERVED_ENTRIES_MAX).contains(&names.len()),
            Self::Members(known) => known.regions.len() <= usize::from(NUMBERS_MAX),
        };
        let unsound = || Declined::Unsound(format!("its {} is out of bounds", self.name()));
        if is_sound { Ok(()) } else { Err(unsound()) }
    }
}

#[cfg(test)]
#[path = "message/tests.rs"]
mod tests;
