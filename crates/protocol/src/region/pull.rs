//! Pulls entries that are not here from other regions.
//!
//! ```text
//!  ask: ids since the tokens ──▶ filter ──▶ wants ──▶ fetch, oldest first ──▶ merge ──▶ durable ──▶ tokens move
//!        void ──▶ walk, list ──────┘                                                      │
//!                                   ◀─────── claims that another region may satisfy ──────┘
//! ```
//!
//! A want is an entry that is not here, or not all of it. Ids of several regions for one entry are claims of one want,
//! so it is fetched from one of them at a time. A claim is settled when its region's entry is durable here, or one that
//! wins over it. A token moves over settled claims alone.
//!
//! Where a journal's token is void, all keys of its region are compared, in one walk for all journals that are void
//! when it begins. The answering region gives a resume token with each of them, before the walk begins. So a change
//! whose op is at or below a resume token is in the region's index by then: the walk shows it, or what won over it. A
//! change that the walk misses has an op above, which the journal tells afterwards. So once all claims of the
//! comparison are settled, all up to the resume tokens is durable here. A key's changes are all told by one journal. So those
//! that a comparison lists hold up the token of that one alone.
//!
//! # Invariants
//!
//! 1. For each entry at most one request is under way, to one region. An answer counts only while its request is under
//!    way.
//! 2. A token is saved only when every claim up to it is settled. That of a journal which was void is saved only when every
//!    claim of comparisons on its keys is.
//! 3. No change is taken whose clock is further ahead than may be. Its claim stays, so that its token does, and is
//!    taken when it is due.
//! 4. Fetches of a region are within its budget of bytes, but for the last entry. Each is charged before it begins, with what the
//!    region told; in the end with what has come. Budgets yield to clients.
//! 5. The claims of each region are bounded: at the bound it is asked for no more ids. Those that cannot be taken have bounds of
//!    their own, beyond which they are passed over. At most one request at a time asks for them. So they hold up no other claim,
//!    and no other region. Everything that was passed over is found again while the machine lives.
//! 6. All that a region sends is checked before it counts: no region can break an assertion.
//! 7. An entry of many bytes comes in parts, each with a request of its own. Others pass it: they have their turn after each part, and
//!    of the requests to a region one is never for a part.
//! 8. Timers and budgets go by the steady clock. The wall's clock judges stamps alone, so that a clock that is set
//!    stops nothing.
//! 9. At most one comparison of a region is under way. It covers only journals that were void before it began.

mod budget;
mod check;
mod comparing;
mod lack;
mod lag;
mod lookups;
mod queue;
mod requests;
mod requests_sent;
mod stream;
mod stuck;
mod unnamed;
mod wants;

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{BucketId, HybridClock, OpSeq, Origin, PgId, RegionId};

use self::budget::Budget;
use self::comparing::Comparison;
pub use self::lag::Lag;
pub use self::lookups::Lookups;
use self::queue::Queue;
use self::requests::Request;
use self::stream::{JournalState, Stream};
use self::stuck::FindAgain;
use self::unnamed::Unnamed;
use self::wants::{Claim, Want};
use super::compare::{Listed, Range, Sum, Summed};
use super::entry::{Entry, Id, Name, Need};
use super::journal::{Batch, Token, Void};
use super::merge::Contradiction;
use crate::limits::{REGION_STUCK_MAX, REGION_UNNAMED_MAX, REGION_UNNAMED_OF_BUCKET_MAX};
use crate::now::EventTime;
use crate::planted::Planted;

/// A journal: a PG of another region, as that region numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// The region.
    pub region: RegionId,
    /// The PG.
    pub pg: PgId,
}

/// The result of a lookup of an entry in this region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// The entry that is here, if there is one.
    Found(Option<Entry>),
    /// The lookup had no answer: a put of the key is in doubt, or its PG has no primary. Most such moments pass, so the entry
    /// is looked up again, a few times. Then it is fetched, though it may be here: the primary decides.
    Unknown,
}

/// The durable entries of this region. A step asks only for those that [`Pull::lookups`] named before it.
pub trait LocalEntries {
    /// An entry.
    fn entry(&self, name: &Name) -> Lookup;

    /// The sum of the entries of a range, in the order of that region. A run has at most
    /// [`REGION_RUN_IDS_MAX`](crate::limits::REGION_RUN_IDS_MAX): of a longer range the sum of its first entries does,
    /// if these are more.
    fn sum(&self, region: RegionId, range: &Range) -> Sum;
}

/// An event that the driver reports.
#[derive(Debug, Clone)]
pub enum Event {
    /// Time passed.
    Tick,
    /// The number of requests of clients under way.
    Clients(u32),
    /// A region answers [`Effect::Ask`].
    Told {
        /// Number of the request.
        request: u64,
        /// The answer about each PG.
        pgs: Vec<(PgId, Result<Batch, Void>)>,
        /// Outcomes that these batches lack, as their buckets are not known here: their ids have buckets as there.
        unnamed: BTreeMap<PgId, Vec<(OpSeq, Id)>>,
    },
    /// A region answers [`Effect::Walk`].
    Walked {
        /// Number of the request.
        request: u64,
        /// The sums.
        summed: Summed,
    },
    /// A region answers [`Effect::List`].
    Listed {
        /// Number of the request.
        request: u64,
        /// The ids.
        listed: Listed,
        /// For each id the PG of its key there: the claim on it holds up that journal alone.
        groups: Vec<PgId>,
        /// Ids that it lacks, as their buckets are not known here, with their buckets as there: each with the PG of its key there.
        unnamed: Vec<(PgId, Id)>,
    },
    /// A region answers [`Effect::FindBuckets`].
    FoundBuckets {
        /// Number of the request.
        request: u64,
        /// These buckets as they are here, without those that are still not known.
        found: BTreeMap<BucketId, LocalBucket>,
    },
    /// A region answers [`Effect::Fetch`] or [`Effect::FetchPart`].
    Fetched {
        /// Number of the request.
        request: u64,
        /// The answer.
        fetched: Fetched,
    },
    /// The answer to one of these is still coming.
    Coming {
        /// Number of the request.
        request: u64,
    },
    /// Answers on their way about journals, runs and buckets count no more: regions are asked again.
    VoidAnswers,
    /// A region does not answer.
    Unanswered {
        /// Number of the request.
        request: u64,
    },
    /// Entries of [`Effect::Merge`] are durable, joined with what was there.
    Merged {
        /// The entries.
        names: Vec<Name>,
    },
    /// An entry cannot be joined with what is there.
    Contradicted {
        /// The entry.
        name: Name,
        /// The reason.
        why: Contradiction,
    },
}

/// A bucket of another region, as it is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalBucket {
    /// The same bucket, by its id here.
    Shared(BucketId),
    /// This region alone has one of that name: nothing is taken into it.
    Local,
    /// The region does not name it any more.
    Gone,
}

/// The answer to a fetch. Of an entry in none of these lists nothing has come, or a part: it is asked for again.
#[derive(Debug, Clone, Default)]
pub struct Fetched {
    /// The entries; `None` for one that is there no more.
    pub entries: Vec<(Name, Option<Entry>)>,
    /// Entries that cannot be taken now: they hold up no other.
    pub untaken: Vec<Name>,
    /// Entries that the region cannot read now. Other regions that named them are asked.
    pub withheld: Vec<Name>,
    /// Entries whose end the region cannot send after the base that it was given. Other regions are asked, then this
    /// one for all bytes.
    pub baseless: Vec<Name>,
    /// Entries whose local version has changed since they were requested. They are looked up and requested again.
    pub changed: Vec<Name>,
    /// Bytes of entries that came: the region's budget is charged with these.
    pub received_bytes: u64,
}

/// An effect that the driver carries out.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask a region for the ids behind tokens.
    Ask {
        /// The region.
        region: RegionId,
        /// Number of the request.
        request: u64,
        /// PGs, each with the token behind which ids are wanted, and the token up to which all is durable here.
        pgs: Vec<(PgId, Token, Token)>,
        /// Most ids of all PGs together.
        ids_max: usize,
    },
    /// Ask a region for the sums of runs of a range.
    Walk {
        /// The region.
        region: RegionId,
        /// Number of the request.
        request: u64,
        /// The range.
        range: Range,
    },
    /// Ask a region for the ids of a run.
    List {
        /// The region.
        region: RegionId,
        /// Number of the request.
        request: u64,
        /// The run.
        range: Range,
    },
    /// Ask a region for its buckets, make those that are not here, and find these.
    FindBuckets {
        /// The region.
        region: RegionId,
        /// Number of the request.
        request: u64,
        /// Buckets by their ids there.
        buckets: Vec<BucketId>,
    },
    /// Ask a region for entries, each with its bytes, or without if they are here.
    Fetch {
        /// The region.
        region: RegionId,
        /// Number of the request.
        request: u64,
        /// The entries.
        names: Vec<(Name, Need)>,
    },
    /// Ask a region for a part of an entry's bytes: those that follow the ones which came before.
    FetchPart {
        /// The region.
        region: RegionId,
        /// Number of the request.
        request: u64,
        /// The entry.
        name: Name,
        /// Most bytes that are to come.
        bytes_max: u64,
    },
    /// Join an entry with what is there, in the log of its key's PG, and make its bytes durable.
    Merge {
        /// The entry's name.
        name: Name,
        /// The entry that the other region has.
        entry: Entry,
    },
    /// Save a token.
    SaveToken {
        /// The journal.
        source: Source,
        /// The token.
        token: Token,
    },
    /// Tell the operator.
    Alarm(Alarm),
}

/// A condition that an operator has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alarm {
    /// A region's clock is ahead: its changes are not taken before they are due.
    ClockAhead {
        /// The region that took the change.
        region: RegionId,
        /// The change's clock.
        clock: HybridClock,
    },
    /// Two regions tell different things of one version.
    Contradiction {
        /// The version.
        name: Name,
        /// The contradiction.
        why: Contradiction,
    },
    /// A token is void: all keys are to be compared.
    Void {
        /// The journal.
        source: Source,
        /// The reason.
        void: Void,
    },
    /// All keys are compared.
    Resync {
        /// The other region.
        region: RegionId,
        /// Number of its journals that are followed again afterwards.
        journals: usize,
    },
    /// A region sent what no region sends.
    Unsound {
        /// The region.
        region: RegionId,
    },
}

/// A region.
#[derive(Debug)]
struct Peer {
    budget: Budget,
    /// It did not answer: it is asked nothing before this time.
    quiet_until_ms: u64,
    /// Next time that it is asked for ids though nothing is known to be behind.
    poll_ms: u64,
    comparison: Option<Comparison>,
    /// Claims on what it told, and those of them that are stuck.
    claims: usize,
    stuck: usize,
    /// Claims on entries whose buckets are not known here: some of `claims`.
    unnamed: Unnamed,
    again: FindAgain,
    /// Wants that it claims and that no request is under way for.
    queue: Queue,
    /// The last fetch was of an entry of many bytes.
    had_part: bool,
    /// Fetches since the last one of what is stuck.
    turns: usize,
}

/// Bounds on what a machine keeps of each other region beside what may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Most claims that cannot be taken.
    pub stuck: usize,
    /// Most claims on entries whose buckets are not known, and most of such buckets.
    pub unnamed: usize,
    /// Most of these claims for one bucket.
    pub unnamed_of_bucket: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        let (stuck, unnamed) = (REGION_STUCK_MAX, REGION_UNNAMED_MAX);
        Self { stuck, unnamed, unnamed_of_bucket: REGION_UNNAMED_OF_BUCKET_MAX }
    }
}

/// This region, the others' budgets, and the first request's number.
#[derive(Debug, Clone)]
pub struct Config {
    /// This region.
    pub own: RegionId,
    /// Bytes a second that each other region is asked for.
    pub bytes_per_s: BTreeMap<RegionId, u64>,
    /// Bytes from which on an entry comes in parts. These have the bytes of a second, but half as many as this at least, and four times
    /// as many at most.
    pub part_bytes: u64,
    /// See there.
    pub bounds: Bounds,
    /// A number that no earlier run of the process has reached with its requests.
    pub first_request: u64,
    /// A bug, in simulations.
    pub planted: Planted,
}

/// See the module's head.
#[derive(Debug)]
pub struct Pull {
    own: RegionId,
    planted: Planted,
    part_bytes: u64,
    bounds: Bounds,
    peers: BTreeMap<RegionId, Peer>,
    streams: BTreeMap<Source, Stream>,
    wants: BTreeMap<Name, Want>,
    /// Wants that a request is under way for, or that are being joined.
    busy: usize,
    /// Claims that cannot be taken now, and until when.
    held: Vec<(u64, Claim)>,
    requests: BTreeMap<u64, Request>,
    next_request: u64,
    /// The wall's clock at the step under way. It judges stamps, and times nothing: somebody may set it.
    wall_ms: u64,
}

impl Pull {
    /// Begins with the saved tokens; a PG without one has token 0. The machine asks the regions that have a budget.
    /// Tokens of removed regions show how much of them is here.
    ///
    /// # Panics
    /// If this region has a budget.
    #[must_use]
    pub fn new(now: EventTime, config: Config, tokens: BTreeMap<Source, Token>) -> Self {
        let now_ms = now.steady_ms;
        let peer = |(region, rate): (RegionId, u64)| {
            assert_ne!(region, config.own, "a region does not pull from itself");
            (region, Peer::new(Budget::new(now_ms, rate)))
        };
        let peers: BTreeMap<_, _> = config.bytes_per_s.into_iter().map(peer).collect();
        let stream = |(source, settled)| (source, Stream::new(now_ms, settled));
        let streams = tokens.into_iter().map(stream).collect();
        Self {
            own: config.own,
            planted: config.planted,
            part_bytes: config.part_bytes,
            bounds: config.bounds,
            streams,
            peers,
            wants: BTreeMap::new(),
            busy: 0,
            held: Vec::new(),
            requests: BTreeMap::new(),
            next_request: config.first_request,
            wall_ms: now.wall_ms,
        }
    }

    /// Takes an event.
    pub fn step(
        &mut self,
        now: EventTime,
        event: Event,
        here: &dyn LocalEntries,
        out: &mut Vec<Effect>,
    ) {
        self.wall_ms = now.wall_ms;
        let now_ms = now.steady_ms;
        match event {
            Event::Tick => {
                if cfg!(debug_assertions) {
                    self.check_queues();
                }
                self.expire(now_ms, here, out);
            }
            Event::Clients(under_way) => {
                self.peers
                    .values_mut()
                    .for_each(|peer| peer.budget.observe_clients(now_ms, under_way));
            }
            Event::Told { request, pgs, unnamed } => {
                self.take_batches(now_ms, request, (pgs, unnamed), here, out);
            }
            Event::Walked { request, summed } => self.walked(now_ms, request, summed, here, out),
            Event::Listed { request, listed, groups, unnamed } => {
                self.listed(now_ms, request, (listed, groups, unnamed), here, out);
            }
            Event::FoundBuckets { request, found } => {
                self.found_buckets(now_ms, request, &found, here, out);
            }
            Event::Fetched { request, fetched } => {
                self.fetched(now_ms, request, fetched, here, out);
            }
            Event::Coming { request } => self.extend_deadline(now_ms, request),
            Event::VoidAnswers => self.void_answers(),
            Event::Unanswered { request } => self.unanswered(now_ms, request),
            Event::Merged { names } => self.merged(now_ms, &names, here, out),
            Event::Contradicted { name, why } => self.contradicted(now_ms, name, why, out),
        }
        self.send_requests(now_ms, out);
        self.check();
    }

    /// Part of the budgets that counts now, as clients are served: from an eighth to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.peers.values().next().map_or(1.0, |peer| peer.budget.share())
    }

    /// True if a change was here: a token has passed its origin, or it is this region's own.
    #[must_use]
    pub fn was_here(&self, origin: Origin) -> bool {
        if self.planted.forgets_origins() {
            return false;
        }
        let source = Source { region: origin.region, pg: origin.pg };
        let settled = self.streams.get(&source).map(|stream| stream.settled);
        origin.region == self.own || settled.is_some_and(|it| it.through >= origin.op.seq)
    }

    /// True if all that other regions told is here.
    #[must_use]
    pub fn is_level(&self) -> bool {
        let is_asked = |source: &Source| self.peers.contains_key(&source.region);
        self.lags().values().all(|lag| lag.outcomes == 0 && !lag.is_comparing)
            && self.streams.iter().all(|(source, stream)| stream.is_heard || !is_asked(source))
    }

    /// True if a tombstone that every other region has passed may be freed: it is neither needed nor made again (ADR 42).
    /// `is_former`: its origin is a region that was removed, or that this one has not heard of.
    #[must_use]
    pub fn may_free(&self, name: &Name, origin: Origin, is_former: bool) -> bool {
        (is_former || self.was_here(origin)) && !self.is_wanted(name)
    }

    /// True if an entry of one of these buckets is wanted. Looks at all that is.
    #[must_use]
    pub fn wants_of(&self, buckets: &BTreeSet<BucketId>) -> bool {
        let held = self.held.iter().map(|(_, claim)| &claim.id.name);
        self.wants.keys().chain(held).any(|name| buckets.contains(&name.bucket))
    }

    /// True if an entry was told of that is not here.
    #[must_use]
    pub fn is_aware_of(&self, name: &Name) -> bool {
        self.is_wanted(name) || self.held.iter().any(|(_, claim)| claim.id.name == *name)
    }

    /// True if an entry is asked for, or being joined. Its tombstone has to stay: an answer that is on its way may have
    /// the version.
    #[must_use]
    pub fn is_wanted(&self, name: &Name) -> bool {
        self.wants.contains_key(name)
    }

    fn settle(&mut self, claim: &Claim, out: &mut Vec<Effect>) {
        self.release(claim);
        let source = claim.source();
        let stream = self.streams.get_mut(&source).expect("who told of it is followed");
        match claim.at {
            Some(at) if at.era == stream.era => {
                stream.open.remove(&at.op);
                stream.move_token(source, out);
            }
            Some(_) => {}
            None => {
                assert!(stream.listed > 0, "each claim of a comparison is counted");
                stream.listed -= 1;
                stream.move_compared_token(source, out);
            }
        }
    }
}

impl Peer {
    fn new(budget: Budget) -> Self {
        Self {
            budget,
            quiet_until_ms: 0,
            poll_ms: 0,
            comparison: None,
            claims: 0,
            stuck: 0,
            unnamed: Unnamed::default(),
            again: FindAgain::default(),
            queue: Queue::default(),
            had_part: false,
            turns: 0,
        }
    }
}

#[cfg(test)]
#[path = "pull/tests.rs"]
mod tests;
