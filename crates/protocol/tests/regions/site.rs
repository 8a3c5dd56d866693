//! A region's store: entries and journals that are durable, what is not yet, and the machine that pulls.

use std::collections::{BTreeMap, BTreeSet};

use larder_protocol::EventTime;
use larder_protocol::clock_offsets::{ClockBound, ClockOffsets};
use larder_protocol::region::pull::{
    Bounds, Config, Effect, Event, LocalEntries, Lookup, Lookups, Source,
};
use larder_protocol::region::{Entry, Id, Name, Pull, Range, Slot, Sum, Token, compare, join};
use larder_types::{Home, HybridClock, OpId, OpSeq, Origin, PgId, RegionId, Stamp, View};

use super::journal::Journal;
use super::world::homes::Homes;
use super::world::{Bug, SimRng};

/// An entry, and the op of this store that it has since.
#[derive(Debug, Clone)]
pub struct Kept {
    pub entry: Entry,
    pub op: OpSeq,
    /// Told from the entry and its name once: comparisons ask for all of a store, time and again.
    id: Id,
    place: Vec<u8>,
}

/// The state that survives a crash.
#[derive(Default)]
pub struct Disk {
    pub entries: BTreeMap<Name, Kept>,
    pub tokens: BTreeMap<Source, Token>,
    /// By PG.
    pub logs: Vec<Log>,
    pub clock: HybridClock,
    /// The bucket that may have a home, and the record of that.
    pub has_bucket: bool,
    pub home: Option<Home>,
}

/// The log of a PG: its last op, and the journal of its outcomes.
pub struct Log {
    pub last: OpSeq,
    pub journal: Journal,
}

/// See the module's head.
pub struct Site {
    pub id: RegionId,
    pub skew_ms: i64,
    /// Stamps tell the time in steps of so many milliseconds: the coarser, the more often two regions have the same.
    pub clock_step_ms: u64,
    pub part_bytes: u64,
    pub bounds: Bounds,
    pub disk: Disk,
    pub pull: Option<Pull>,
    /// Counts starts: what an earlier one was waiting for is void.
    pub life: u64,
    pub merging: Vec<(Name, Entry)>,
    /// Versions which come in parts: bytes that have come, and when the last of them did.
    pub partials: BTreeMap<Name, (Stamp, u64, u64)>,
    pub tokens: Vec<(Source, Token)>,
    /// Versions that are purged here: none is ever seen again.
    pub purged: BTreeSet<Name>,
    pub bug: Bug,
    pub homes: Homes,
    /// The other regions' clocks.
    pub clocks: ClockOffsets<RegionId>,
}

/// The view that the machine has of a store.
struct Shown<'a> {
    disk: &'a Disk,
    bug: Bug,
    lookups: Lookups,
    now_ms: u64,
}

/// The PG of a key where there are so many.
pub fn pg_of(name: &Name, count: u32) -> PgId {
    let key = name.key.as_bytes().iter().map(|byte| u32::from(*byte)).sum::<u32>();
    PgId(key % count)
}

impl LocalEntries for Shown<'_> {
    fn entry(&self, name: &Name) -> Lookup {
        assert!(self.lookups.names.contains(name), "a step lookups at what it said before");
        // Now and then nobody who knows answers in time.
        let key = name.key.as_bytes().iter().map(|byte| u64::from(*byte)).sum::<u64>();
        if (self.now_ms + key).is_multiple_of(7) {
            return match self.bug.takes_unknown_for_nothing {
                true => Lookup::Found(None),
                false => Lookup::Unknown,
            };
        }
        let kept = self.disk.entries.get(name).filter(|_| !self.bug.loops);
        Lookup::Found(kept.map(|kept| kept.entry.clone()))
    }

    fn sum(&self, region: RegionId, range: &Range) -> Sum {
        let look = (region, range.clone());
        assert!(self.lookups.sums.contains(&look), "a step lookups at what it said before");
        let ids = self.disk.ids(range);
        Sum::of(compare::counted(self.bug.machine, ids.into_iter()).collect::<Vec<_>>().iter())
    }
}

impl Disk {
    /// Ids of a range in the order of their rows.
    pub fn ids(&self, range: &Range) -> Vec<Id> {
        let is_there =
            |place: &Vec<u8>| *place >= range.from && range.to.as_ref().is_none_or(|to| place < to);
        let mut of_range: Vec<&Kept> =
            self.entries.values().filter(|kept| is_there(&kept.place)).collect();
        of_range.sort_by(|one, two| one.place.cmp(&two.place));
        of_range.into_iter().map(|kept| kept.id.clone()).collect()
    }
}

impl Site {
    pub fn new(id: RegionId, pgs: u32, journal_max: usize, skew_ms: i64, bug: Bug) -> Self {
        let journal = || Journal::new(OpSeq(0), journal_max, bug.overlooks_overruns);
        let log = || Log { last: OpSeq(0), journal: journal() };
        let disk = Disk { logs: (0..pgs).map(|_| log()).collect(), ..Disk::default() };
        Self {
            id,
            skew_ms,
            clock_step_ms: 1,
            part_bytes: 1 << 20,
            bounds: Bounds::default(),
            disk,
            pull: None,
            life: 0,
            merging: Vec::new(),
            partials: BTreeMap::new(),
            tokens: Vec::new(),
            purged: BTreeSet::new(),
            bug,
            homes: Homes::default(),
            clocks: ClockOffsets::default(),
        }
    }

    pub fn pgs(&self) -> u32 {
        self.disk.logs.len() as u32
    }

    pub fn now_ms(&self, now_ms: u64) -> u64 {
        now_ms.checked_add_signed(self.skew_ms).expect("time has begun long ago")
    }

    /// The time by both clocks of the machine: the steady one has no skew, as nobody sets it.
    pub fn machine_time(&self, now_ms: u64) -> EventTime {
        EventTime { steady_ms: now_ms, wall_ms: self.now_ms(now_ms) }
    }

    /// The time by which the store goes.
    fn now(&self, now_ms: u64) -> EventTime {
        let bound = self.clocks.bound(now_ms);
        let bound = if self.bug.believes_its_clock { ClockBound::default() } else { bound };
        bound.hold_back(self.machine_time(now_ms))
    }

    /// The time by which it judges changes of others.
    fn judging_now(&self, now_ms: u64) -> EventTime {
        self.clocks.judging_bound(now_ms).hold_back(self.machine_time(now_ms))
    }

    /// Starts, with the tokens that are durable.
    pub fn start(&mut self, now_ms: u64, regions: &BTreeMap<RegionId, u32>, bytes_per_s: u64) {
        self.life += 1;
        self.forget();
        let others = regions.iter().filter(|(region, _)| **region != self.id);
        let config = Config {
            own: self.id,
            bytes_per_s: others.clone().map(|(region, _)| (*region, bytes_per_s)).collect(),
            part_bytes: self.part_bytes,
            bounds: self.bounds,
            first_request: self.life << 40,
            planted: self.bug.machine,
        };
        let mut tokens = self.disk.tokens.clone();
        for (region, pgs) in others {
            for pg in (0..*pgs).map(PgId) {
                tokens.entry(Source { region: *region, pg }).or_default();
            }
        }
        self.pull = Some(Pull::new(self.judging_now(now_ms), config, tokens));
    }

    pub fn crash(&mut self) {
        self.pull = None;
        self.life += 1;
        self.forget();
    }

    /// Drops everything that was not durable.
    fn forget(&mut self) {
        self.merging.clear();
        self.partials.clear();
        self.tokens.clear();
        self.homes = Homes::default();
        self.clocks = ClockOffsets::default();
    }

    pub fn step(&mut self, now_ms: u64, event: Event) -> Vec<Effect> {
        let (now, dated_ms) = (self.judging_now(now_ms), self.now(now_ms).wall_ms);
        let mut out = Vec::new();
        if let Some(pull) = &mut self.pull {
            let lookups = pull.lookups(now, &event);
            let view = Shown { disk: &self.disk, bug: self.bug, lookups, now_ms: dated_ms };
            pull.step(now, event, &view, &mut out);
        }
        out
    }

    /// The stamp and the op of a change that a client makes.
    pub fn next(&mut self, now_ms: u64, name_pg: PgId, rng: &mut SimRng) -> (Stamp, Origin) {
        let now_ms = self.now(now_ms).wall_ms;
        self.disk.clock = self.disk.clock.advance(now_ms - now_ms % self.clock_step_ms);
        let stamp = Stamp { clock: self.disk.clock, region: self.id };
        let log = &mut self.disk.logs[name_pg.0 as usize];
        // Ops that are no outcomes stand between.
        log.last = OpSeq(log.last.0 + 1 + rng.below(3));
        let op = OpId { view: View(1), seq: log.last };
        (stamp, Origin { region: self.id, pg: name_pg, op })
    }

    /// An entry is joined with what is there, and durable. The op is given if it is that of a client.
    pub fn keep(&mut self, name: &Name, reported: &Entry, op: Option<OpSeq>) -> Result<(), String> {
        let planted = self.bug.machine;
        let here = self.disk.entries.get(name).map(|kept| kept.entry.clone());
        let joined = match &here {
            Some(here) => {
                join(planted, name.slot, here, reported).map_err(|why| why.to_string())?
            }
            None => reported.clone(),
        };
        self.disk.clock = self.disk.clock.max(reported.clock());
        if here.as_ref() == Some(&joined) && !self.bug.loops {
            return Ok(());
        }
        let pg = pg_of(name, self.pgs());
        let log = &mut self.disk.logs[pg.0 as usize];
        let op = op.unwrap_or_else(|| log.last.next());
        log.last = op;
        let id = joined.id(name.clone());
        log.journal.record(op, id.clone());
        if let Slot::Version(_) = name.slot {
            if joined.is_purged() {
                self.purged.insert(name.clone());
            } else if self.purged.contains(name) {
                return Err(format!("region {}: {name:?} was purged and is there again", self.id));
            }
        }
        let kept = Kept { entry: joined, op, id, place: name.place() };
        self.disk.entries.insert(name.clone(), kept);
        Ok(())
    }

    /// Frees tombstones that all regions have passed.
    pub fn free(&mut self, others: &BTreeSet<RegionId>) -> u64 {
        let Some(pull) = &self.pull else { return 0 };
        let (pgs, logs) = (self.pgs(), &self.disk.logs);
        let removable = |name: &Name, kept: &Kept| {
            let journal = &logs[pg_of(name, pgs).0 as usize].journal;
            let passed = journal.passed_by_all(others.iter().copied());
            let with_all = passed >= kept.op || self.bug.frees_early;
            let is_former = !others.contains(&kept.entry.origin.region);
            let removable = pull.may_free(name, kept.entry.origin, is_former);
            kept.entry.is_purged() && with_all && removable
        };
        let before = self.disk.entries.len();
        self.disk.entries.retain(|name, kept| !removable(name, kept));
        (before - self.disk.entries.len()) as u64
    }
}
