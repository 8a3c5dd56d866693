//! Messages between regions. `docs/formats/region.md` has the bytes.
//!
//! A request is one HTTP request, and its answer one HTTP answer. Both are encoded with a version byte. The answer to a
//! fetch is a stream ([`crate::frame`]).
//!
//! # Invariants
//!
//! 1. Enums grow by variants at their end; nothing is changed or removed while a release that says it may be in use.
//! 2. The answering region checks a request before its source sees it ([`Request::check`]).

mod changes;

use larder_identity::TokenId;
use larder_protocol::limits::{REGION_SERVED_ENTRIES_MAX, REGION_SERVED_PGS_MAX};
use larder_protocol::region::deletion::Mark;
use larder_protocol::region::home::HomeRequest;
use larder_protocol::region::journal::Batch;
use larder_protocol::region::listing::{KeysAnswer, KeysRequest};
use larder_protocol::region::{Base, Entry, Listed, Name, Range, Summed, Token, Void};
use larder_types::home::HOME_COUNT_MAX;
use larder_types::{BucketId, BucketName, Home, PgId, RegionId, Stamp};
use serde::{Deserialize, Serialize};

pub use self::changes::{
    Change, ChangeAnswer, ChangeKind, PartNamed, UploadAnswer, UploadRefusal, UploadStep,
};
pub use crate::error::JoinRefused;
use crate::error::{Later, LinkError, Refused};
use crate::limits::{HOMES_REPORTED_MAX, NUMBERS_MAX, REGIONS_MAX};
use crate::members::Known;
use crate::name::{Address, RegionName};

/// Path of every request.
pub(crate) const PATH: &str = "/region";

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Asks for the region's own description: [`Hello`].
    Hello,
    /// Asks for the ids behind tokens: [`IdsReply`].
    IdsQuery(IdsQuery),
    /// Asks for the sums of runs: [`WalkAnswer`].
    Walk(Walk),
    /// Asks for the ids of a run: [`ListAnswer`].
    List(List),
    /// Asks for entries: a stream of [`Fetched`].
    Fetch(Fetch),
    /// Exchanges lists of regions: [`RegionList`].
    Members(RegionList),
    /// Asks to become a region: [`Joined`].
    Join(Join),
    /// Reports how far it is, without waiting for news: nothing is answered.
    Report(Report),
    /// Asks to close a bucket that is to be deleted: [`CloseAnswer`](larder_protocol::region::deletion::CloseAnswer).
    CloseBucket(CloseBucket),
    /// Asks to delete a closed bucket, or to open it again: true if it is as asked.
    EndClosed(EndClosed),
    /// Asks about the home of a bucket: [`HomeAnswer`](larder_protocol::region::home::HomeAnswer).
    AskHome(AskHome),
    /// Tells the homes of buckets: nothing is answered.
    TellHomes(TellHomes),
    /// Asks the home of a bucket to make a client's change: [`ChangeAnswer`].
    Change(Box<Change>),
    /// Asks for keys of a bucket, for a list of all regions: [`KeysReply`].
    Keys(Keys),
    /// Asks for entries of which beginnings are there: a stream of [`Fetched`].
    FetchSince(FetchSince),
    /// Asks for a part of an entry's bytes: a stream of one [`Fetched`].
    FetchPart(FetchPart),
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
pub struct IdsQuery {
    /// PGs, each with the token behind which ids are wanted, and the token up to which all is durable in the asking
    /// region.
    pub pgs: Vec<(PgId, Token, Token)>,
    /// Most ids of all PGs together.
    pub ids_max: u32,
}

/// Reports how far the asking region is. An [`IdsQuery`] says the same, but may be waiting for news.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// PGs, each with the token up to which all is durable in the asking region.
    pub pgs: Vec<(PgId, Token)>,
}

/// Asks to close a bucket, as another region deletes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseBucket {
    /// Its name.
    pub bucket: BucketName,
    /// All regions that are asked, and the asking one.
    pub regions: Vec<RegionId>,
}

/// Asks to end the closing of a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndClosed {
    /// Its name.
    pub bucket: BucketName,
    /// The mark under which it was closed; `None` if there was no such bucket.
    pub mark: Option<Mark>,
    /// Delete it; else open it again.
    pub delete: bool,
}

/// Asks about the home of a bucket, which the asking region is to become.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskHome {
    /// Its name.
    pub bucket: BucketName,
    /// The question.
    pub ask: HomeRequest,
    /// All regions that the asking one knows, and itself.
    pub regions: Vec<RegionId>,
}

/// Tells the homes of buckets, as the telling region knows them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TellHomes {
    /// Buckets and their homes, at most [`HOMES_REPORTED_MAX`].
    pub homes: Vec<(BucketName, Home)>,
}

/// Asks for keys of a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    /// Its name.
    pub bucket: BucketName,
    /// The keys.
    pub ask: KeysRequest,
    /// All regions that are asked, and the asking one.
    pub regions: Vec<RegionId>,
}

/// The answer to [`Keys`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeysReply {
    /// These.
    Keys(KeysAnswer),
    /// It shares no bucket of this name: none of its keys is one of the list.
    NoBucket,
    /// It knows other regions: a list without them would lack their keys.
    OtherRegions,
}

/// Names of the buckets that an answer has entries of.
pub type Buckets = Vec<(BucketId, BucketName)>;

/// Ids behind tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdsReply {
    /// For each PG its ids, or that its token is void.
    pub pgs: Vec<(PgId, Result<Batch, Void>)>,
    /// Names of the buckets.
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
pub struct WalkAnswer {
    /// The sums.
    pub summed: Summed,
    /// Names of the buckets.
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
pub struct ListAnswer {
    /// The ids.
    pub listed: Listed,
    /// Names of the buckets.
    pub buckets: Buckets,
}

/// Asks for entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// Names of entries; true to have the bytes too.
    pub names: Vec<(Name, bool)>,
}

/// Asks for entries. Of some the asking region has what may be the beginning.
///
/// Where the answering region's version grew out of a base by appends, the bytes behind the base are all that follows its entry. Else
/// all its bytes do, as in the answer to a [`Fetch`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchSince {
    /// Names of entries; true to have the bytes too.
    pub names: Vec<(Name, bool)>,
    /// Bases, each with the place of its entry among the names, from 0, in their order.
    pub bases: Vec<(u32, Base)>,
}

impl FetchSince {
    /// True if each base is of an entry of which bytes are wanted, and there is one of an entry at most.
    fn is_sound(&self) -> bool {
        let wants_bytes = |at: u32| self.names.get(at as usize).is_some_and(|(_, bytes)| *bytes);
        let are_wanted = self.bases.iter().all(|(at, base)| wants_bytes(*at) && base.size > 0);
        are_wanted && self.bases.is_sorted_by(|one, next| one.0 < next.0)
    }
}

impl From<Fetch> for FetchSince {
    fn from(Fetch { names }: Fetch) -> Self {
        Self { names, bases: Vec::new() }
    }
}

/// Asks for a part of an entry's bytes: those from a place on.
///
/// If the entry's version is another one by now than the one that parts came of, the answer is the entry without bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchPart {
    /// Name of the entry.
    pub name: Name,
    /// The version of the parts that arrived before; `None` if none did.
    pub at: Option<Stamp>,
    /// Bytes that came before.
    pub from: u64,
    /// Most bytes that are wanted.
    pub bytes_max: u64,
}

/// The entries, or the part of one, that a region is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchRequest {
    /// Entries.
    Entries(FetchSince),
    /// A part of one.
    Part(FetchPart),
}

impl FetchRequest {
    /// The names of the entries that are to come; true for those that may have bytes.
    pub(crate) fn names(&self) -> Vec<(Name, bool)> {
        match self {
            Self::Entries(fetch) => fetch.names.clone(),
            Self::Part(part) => vec![(part.name.clone(), true)],
        }
    }
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
    /// The answering region cannot read it now: it is to be asked for again.
    pub is_withheld: bool,
}

/// The list of regions that one of them knows. A cluster that is a region stores it in its map, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionList {
    /// All regions, removed ones too.
    pub regions: Vec<Known>,
}

impl RegionList {
    /// A measure of the list: it grows when a region joins or is removed, and never shrinks.
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
    /// Proof that the joiner has it.
    pub(crate) proof: [u8; 32],
    /// Its name.
    pub(crate) name: RegionName,
    /// Address that others reach it at.
    pub(crate) address: Address,
}

/// The answer to a join: the store is a region now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Its number.
    pub number: RegionId,
    /// All regions, the new one too.
    pub known: RegionList,
}

/// Reason for not answering a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Declined {
    /// Too much is under way.
    #[error("too much is under way")]
    Busy,
    /// The region does not serve yet.
    #[error("it does not serve yet")]
    NotReady,
    /// The request is one that no region sends.
    #[error("a region sent an invalid request: {0}")]
    Unsound(String),
    /// The asking store is no region that this one knows.
    #[error("the requesting server is not known")]
    Stranger,
    /// The asking region was removed.
    #[error("the requesting server was removed")]
    Removed,
    /// The asking store may not join.
    #[error("{0}")]
    Join(JoinRefused),
}

impl From<Declined> for LinkError {
    fn from(declined: Declined) -> Self {
        match declined {
            Declined::Busy => Later::Busy.into(),
            Declined::NotReady => Later::NotReady.into(),
            Declined::Unsound(why) => {
                Self::Unsound(format!("that this one's request is not sound: {why}"))
            }
            Declined::Stranger => Refused::Stranger.into(),
            Declined::Removed => Refused::Removed.into(),
            Declined::Join(refused) => Refused::Join(refused).into(),
        }
    }
}

impl Request {
    /// Its name in metrics and logs.
    #[must_use]
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::IdsQuery(_) => "ask",
            Self::Walk(_) => "walk",
            Self::List(_) => "list",
            Self::Fetch(_) => "fetch",
            Self::Members(_) => "members",
            Self::Join(_) => "join",
            Self::Report(_) => "report",
            Self::CloseBucket(_) => "close-bucket",
            Self::EndClosed(_) => "end-closed",
            Self::AskHome(_) => "ask-home",
            Self::TellHomes(_) => "tell-homes",
            Self::Change(_) => "change",
            Self::Keys(_) => "keys",
            Self::FetchSince(_) => "fetch-since",
            Self::FetchPart(_) => "fetch-part",
        }
    }

    /// Refuses a request that no region makes.
    pub(crate) fn check(&self) -> Result<(), Declined> {
        let is_sound = match self {
            Self::Hello | Self::Join(_) | Self::EndClosed(_) => true,
            Self::CloseBucket(CloseBucket { regions, .. }) => regions.len() <= REGIONS_MAX,
            Self::AskHome(AskHome { ask, regions, .. }) => {
                let count = match ask {
                    HomeRequest::Look | HomeRequest::Prepare => 0,
                    HomeRequest::Give(count, _) => *count,
                    HomeRequest::Claim(term, _) => term.count,
                };
                regions.len() <= REGIONS_MAX && count < HOME_COUNT_MAX
            }
            Self::TellHomes(TellHomes { homes }) => {
                homes.len() <= HOMES_REPORTED_MAX && homes.iter().all(|(_, home)| home.is_sound())
            }
            Self::Change(change) => change.is_sound(),
            Self::Keys(Keys { ask, regions, .. }) => ask.is_sound() && regions.len() <= REGIONS_MAX,
            Self::IdsQuery(IdsQuery { pgs, ids_max }) => {
                (1..=REGION_SERVED_PGS_MAX).contains(&pgs.len()) && *ids_max > 0
            }
            Self::Walk(Walk { range }) | Self::List(List { range }) => {
                range.to.as_ref().is_none_or(|to| *to > range.from)
            }
            Self::Report(Report { pgs }) => (1..=REGION_SERVED_PGS_MAX).contains(&pgs.len()),
            Self::Fetch(Fetch { names }) => (1..=REGION_SERVED_ENTRIES_MAX).contains(&names.len()),
            Self::FetchSince(fetch) => {
                (1..=REGION_SERVED_ENTRIES_MAX).contains(&fetch.names.len()) && fetch.is_sound()
            }
            Self::FetchPart(part) => part.bytes_max > 0 && (part.from == 0 || part.at.is_some()),
            Self::Members(known) => known.regions.len() <= usize::from(NUMBERS_MAX),
        };
        let unsound = || Declined::Unsound(format!("its {} is out of bounds", self.name()));
        if is_sound { Ok(()) } else { Err(unsound()) }
    }
}

#[cfg(test)]
#[path = "message/tests.rs"]
mod tests;
