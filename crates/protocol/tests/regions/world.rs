//! Regions, links, clients and time.

mod clocks;
mod counts;
mod faults;
pub mod homes;
mod lacking;
pub mod parts;

use std::collections::{BTreeMap, BTreeSet};

use larder_protocol::Planted;
use larder_protocol::region::pull::{Alarm, Bounds, Effect, Event, Fetched, LocalBucket, Source};
use larder_protocol::region::{Entry, EntryKind, Name, Range, Slot, Token, compare};
use larder_types::{BucketId, ObjectKey, PgId, RegionId};

use super::judge::{Acknowledged, Judge};
use super::site::{Site, pg_of};
use clocks::{ClockEvent, ClockWord};
pub use counts::Counts;
use homes::{Timer, Word};
use parts::{PartAsk, PartReply};

/// The faults that are planted on purpose, in the machines or in the stores around them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bug {
    pub machine: Planted,
    /// A store frees a tombstone at once.
    pub frees_early: bool,
    /// A store does not see that something is here, and records what changed nothing.
    pub loops: bool,
    /// A journal goes on behind a token whose outcomes it has dropped.
    pub overlooks_overruns: bool,
    /// A store that does not know whether something is here says that it is not.
    pub takes_unknown_for_nothing: bool,
    /// A region becomes the home though it lacks changes.
    pub home_lacks_changes: bool,
    /// A store dates changes by its machine's clock, whatever other regions' clocks say.
    pub believes_its_clock: bool,
    /// A region says that it gave a home, or accepted a claim, and has not written that down.
    pub home_unwritten: bool,
}

/// Each with a seed that is tried first, as it found it: all that precede it take minutes for some. One that finds it no more, after a
/// change of what runs do, costs time and nothing else.
#[cfg(feature = "planted-bugs")]
pub fn bugs() -> Vec<(String, Bug, u64)> {
    let machines = [
        (Planted::ResyncWithoutTombstones, 0),
        (Planted::TieByClock, 5),
        (Planted::TokenBeforeBytes, 10),
        (Planted::ForgottenOrigins, 0),
        (Planted::ClocksAheadTaken, 0),
    ];
    let machine =
        |(machine, first)| (format!("{machine:?}"), Bug { machine, ..Bug::default() }, first);
    let stores = [
        ("FreesEarly", Bug { frees_early: true, ..Bug::default() }),
        ("OverrunUnnoticed", Bug { overlooks_overruns: true, ..Bug::default() }),
        ("Loops", Bug { loops: true, ..Bug::default() }),
        ("UnknownIsNothing", Bug { takes_unknown_for_nothing: true, ..Bug::default() }),
        ("ClockBelieved", Bug { believes_its_clock: true, ..Bug::default() }),
    ];
    let homes = [
        ("HomeLacksChanges", Bug { home_lacks_changes: true, ..Bug::default() }, 253),
        ("HomeUnwritten", Bug { home_unwritten: true, ..Bug::default() }, 5),
    ];
    let stores = stores.into_iter().map(|(name, bug)| (name, bug, 0)).chain(homes);
    let stores = stores.map(|(name, bug, first)| (name.to_owned(), bug, first));
    machines.into_iter().map(machine).chain(stores).collect()
}

/// Numbers of a seed.
pub struct SimRng(u64);

impl SimRng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    pub fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { Some(of[self.below(of.len() as u64) as usize].clone()) }
    }
}

/// A message of one region to another.
#[derive(Debug, Clone)]
enum Message {
    Ask { request: u64, pgs: Vec<(PgId, Token, Token)>, ids_max: usize },
    Walk { request: u64, range: Range },
    List { request: u64, range: Range },
    FindBuckets { request: u64, buckets: Vec<BucketId> },
    Fetch { request: u64, names: Vec<Name> },
    FetchPart(PartAsk),
    Part(PartReply),
    Answer(Event),
    Home(Word),
    Clock(ClockWord),
}

#[derive(Debug)]
enum Happening {
    Tick(RegionId, u64),
    Client(usize),
    Deliver {
        from: RegionId,
        to: RegionId,
        message: Message,
    },
    /// The entries that are being joined are durable, up to so many.
    Merged(RegionId, u64),
    TokensSaved(RegionId, u64),
    Start(usize),
    Fault,
    Home(RegionId, u64, Timer),
    Clock(ClockEvent),
}

/// Milliseconds since 1970 at which runs begin.
/// Step of the clocks of one in four seeds.
const COARSE_CLOCK_MS: u64 = 1_000;
const BEGIN_MS: u64 = 1_800_000_005_000;
const TICK_MS: u64 = 200;
/// So much longer everything lasts where days pass, and milliseconds between two ticks there.
const DAYS_PACE: u64 = 1_000;
const DAYS_TICK_MS: u64 = 30_000;
/// Time in which all must be level again once nothing goes wrong any more.
const HEALED_MS: u64 = 900_000;
/// Time for which all are level before that is believed: what one was not told yet it does not lack.
const LEVEL_MS: u64 = 20_000;
const KEYS: u64 = 6;
/// Entries of an answer to a walk: few, so that much happens between two of its answers.
const WALK_IDS: usize = 3;
const BYTES_PER_S: u64 = 20_000;
const FEW: Bounds = Bounds { stuck: 4, unnamed: 3, unnamed_of_bucket: 2 };

/// See the module's head.
pub struct World {
    rng: SimRng,
    now_ms: u64,
    number: u64,
    happenings: BTreeMap<(u64, u64), Happening>,
    pub sites: Vec<Site>,
    /// The regions that are, and how many PGs each has.
    regions: BTreeMap<RegionId, u32>,
    /// The last number that a region was given.
    last: RegionId,
    cuts: BTreeSet<(RegionId, RegionId)>,
    journal_max: usize,
    bug: Bug,
    judge: Judge,
    faulty_until_ms: u64,
    counts: Counts,
    /// Seconds last so many times as long while there are faults: in some seeds days pass.
    pace: u64,
    /// Regions leave for good, and others join, in some seeds.
    has_leavers: bool,
    /// Places of regions that have left.
    left: BTreeSet<usize>,
    /// A bucket has a home in some seeds, beside what is drawn for the rest.
    has_homes: bool,
    home_rng: SimRng,
    /// A clock is ahead by days for a while in some seeds, and regions ask each other what their clocks say.
    has_clocks: bool,
    clock_dice: SimRng,
    /// In some seeds regions lack buckets, or room, for a while.
    has_lacks: bool,
    /// The token behind which each region has asked each journal last.
    asked: BTreeMap<(RegionId, Source), Token>,
}

impl World {
    pub fn new(seed: u64, bug: Bug) -> Self {
        let mut rng = SimRng(seed.wrapping_mul(0x2545_F491_4F6C_DD1D));
        let count = 2 + rng.below(4);
        let journal_max = if rng.one_in(2) { 5 + rng.below(20) as usize } else { 1000 };
        // Most seeds have clocks that differ little, so that equal ones occur; some have one far ahead.
        let ahead = rng.one_in(4).then(|| rng.below(count));
        let mut sites = Vec::new();
        for at in 0..count {
            let pgs = 1 + rng.below(4) as u32;
            let mut skew_ms = rng.below(3) as i64 - 1;
            if rng.one_in(3) {
                skew_ms = rng.below(40_000) as i64 - 20_000;
            }
            if ahead == Some(at) {
                skew_ms = 65_000 + rng.below(100_000) as i64;
            }
            let site = Site::new(RegionId(1 + at as u16), pgs, journal_max, skew_ms, bug);
            // Beside what is drawn, so that other seeds do what they did.
            let clock_step_ms = if seed % 4 == 3 { COARSE_CLOCK_MS } else { 1 };
            // In some, most objects come in parts.
            let part_bytes = if seed % 5 == 2 { 500 } else { 1 << 20 };
            // In some, machines keep so little that they pass over changes.
            let bounds = if seed % 3 == 1 { FEW } else { Bounds::default() };
            sites.push(Site { clock_step_ms, part_bytes, bounds, ..site });
        }
        let regions: BTreeMap<_, _> = sites.iter().map(|site| (site.id, site.pgs())).collect();
        let pace = if seed % 24 == 23 { DAYS_PACE } else { 1 };
        let faulty_until_ms = BEGIN_MS + pace * (20_000 + rng.below(100_000));
        let mut world = Self {
            rng,
            now_ms: BEGIN_MS,
            number: 0,
            happenings: BTreeMap::new(),
            sites,
            last: RegionId(count as u16),
            regions,
            cuts: BTreeSet::new(),
            journal_max,
            bug,
            judge: Judge::default(),
            faulty_until_ms,
            counts: Counts::default(),
            pace,
            has_leavers: seed % 8 == 6,
            left: BTreeSet::new(),
            has_homes: seed % 4 == 1,
            home_rng: SimRng(seed ^ 0x0068_6F6D_6573),
            has_clocks: seed % 8 == 4,
            clock_dice: SimRng(seed ^ 0x636C_6F63_6B73),
            has_lacks: seed % 6 >= 4,
            asked: BTreeMap::new(),
        };
        world.begin_clocks();
        for site in &mut world.sites {
            site.disk.has_bucket = true;
        }
        for at in 0..count as usize {
            world.start(at);
            world.later(1, Happening::Client(at));
        }
        world.later(500, Happening::Fault);
        world
    }

    pub fn run(mut self) -> Result<Counts, String> {
        let (mut healed_ms, mut level_ms) = (None, None);
        while let Some(((at_ms, _), happening)) = self.happenings.pop_first() {
            assert!(at_ms >= self.now_ms, "time does not go back");
            self.now_ms = at_ms;
            let is_tick = matches!(happening, Happening::Tick(..));
            self.happen(happening)?;
            if at_ms < self.faulty_until_ms || !is_tick {
                continue;
            }
            // Where days pass all regions may be away until long behind the last fault.
            let since_ms = *healed_ms.get_or_insert_with(|| {
                self.heal();
                at_ms
            });
            level_ms = self.is_level().then(|| level_ms.unwrap_or(at_ms));
            if level_ms.is_some_and(|since_ms| at_ms >= since_ms + LEVEL_MS) {
                self.judge.check(&self.here().collect::<Vec<_>>())?;
                self.check_order()?;
                return Ok(self.counts);
            }
            if at_ms > since_ms + HEALED_MS {
                return Err(self.judge.why_not_level(self.here()));
            }
        }
        Err("nothing happens any more".to_owned())
    }

    /// Returns true if all regions have all, and have freed what can be freed.
    fn is_level(&self) -> bool {
        self.here().all(|site| {
            let has_no_tombstone = !site.disk.entries.values().any(|kept| kept.entry.is_purged());
            let is_level = site.pull.as_ref().is_some_and(larder_protocol::region::Pull::is_level);
            is_level && has_no_tombstone && site.merging.is_empty()
        }) && self.homes_rest()
    }

    /// The regions that have not left.
    fn here(&self) -> impl Iterator<Item = &Site> {
        let is_here = |(at, _): &(usize, &Site)| !self.left.contains(at);
        self.sites.iter().enumerate().filter(is_here).map(|(_, site)| site)
    }

    fn later(&mut self, ms: u64, happening: Happening) {
        self.number += 1;
        self.happenings.insert((self.now_ms + ms, self.number), happening);
    }

    fn at(&self, region: RegionId) -> Option<usize> {
        self.sites.iter().position(|site| site.id == region)
    }

    fn start(&mut self, at: usize) {
        self.sites[at].start(self.now_ms, &self.regions, BYTES_PER_S);
        let by = self.sites[at].id;
        self.asked.retain(|(of, _), _| *of != by);
        let (id, life) = (self.sites[at].id, self.sites[at].life);
        self.later(self.rng.0 % TICK_MS, Happening::Tick(id, life));
        if self.has_homes {
            self.begin_homes(at);
        }
    }

    fn happen(&mut self, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Tick(region, life) => {
                let Some(at) = self.alive(region, life) else { return Ok(()) };
                self.step(at, Event::Tick);
                let others = self.others(region);
                self.ask_clocks(at, &others);
                self.counts.freed += self.sites[at].free(&others);
                let is_slow = self.pace > 1 && self.now_ms < self.faulty_until_ms;
                let tick_ms = if is_slow { DAYS_TICK_MS } else { TICK_MS };
                self.later(tick_ms, Happening::Tick(region, life));
            }
            Happening::Client(at) => {
                if self.now_ms < self.faulty_until_ms {
                    if self.sites[at].pull.is_some() && self.may_date(at) {
                        self.change(at)?;
                    }
                    let pause = if self.rng.one_in(3) { 0 } else { self.rng.below(600) };
                    self.later(self.pace * pause + 1, Happening::Client(at));
                }
            }
            Happening::Deliver { from, to, message } => self.deliver(from, to, message),
            Happening::Merged(region, life) => {
                let Some(at) = self.alive(region, life) else { return Ok(()) };
                for (name, entry) in std::mem::take(&mut self.sites[at].merging) {
                    self.sites[at].keep(&name, &entry, None)?;
                    self.judge.seen(self.now_ms, &self.sites[at], &name)?;
                    self.counts.merges += 1;
                    self.step(at, Event::Merged { names: vec![name] });
                }
            }
            Happening::TokensSaved(region, life) => {
                let Some(at) = self.alive(region, life) else { return Ok(()) };
                let tokens = std::mem::take(&mut self.sites[at].tokens);
                self.sites[at].disk.tokens.extend(tokens);
            }
            Happening::Home(region, life, timer) => {
                if let Some(at) = self.alive(region, life) {
                    self.home_timer(at, timer)?;
                }
            }
            Happening::Clock(event) => self.clock_event(event),
            Happening::Start(at) => {
                if self.sites[at].pull.is_none() && !self.left.contains(&at) {
                    self.start(at);
                }
            }
            Happening::Fault => {
                if self.now_ms < self.faulty_until_ms {
                    self.fault();
                    let pause = self.rng.below(4_000);
                    self.later(self.pace * pause + 1, Happening::Fault);
                }
            }
        }
        Ok(())
    }

    fn alive(&self, region: RegionId, life: u64) -> Option<usize> {
        self.at(region).filter(|at| self.sites[*at].life == life)
    }

    fn others(&self, region: RegionId) -> BTreeSet<RegionId> {
        self.regions.keys().copied().filter(|it| *it != region).collect()
    }

    fn heal(&mut self) {
        self.cuts.clear();
        for at in 0..self.sites.len() {
            if self.sites[at].pull.is_none() && !self.left.contains(&at) {
                self.start(at);
            }
        }
    }

    fn change(&mut self, at: usize) -> Result<(), String> {
        let key = self.rng.below(KEYS);
        let site = &self.sites[at];
        let key_of = ObjectKey::new(&format!("key {key}")).expect("a key");
        let of_key = |(name, kept): (&Name, &super::site::Kept)| {
            let is_live = name.key == key_of && !kept.entry.is_purged();
            is_live.then(|| (name.clone(), kept.entry.clone()))
        };
        let live: Vec<_> = site.disk.entries.iter().filter_map(of_key).collect();
        // Odd keys are in a bucket with versioning, on or suspended.
        let is_null = key.is_multiple_of(2) || self.rng.one_in(4);
        let name = |slot| Name { bucket: BucketId(key % 2), key: key_of.clone(), slot };
        let pg = pg_of(&name(Slot::Null), site.pgs());
        let (stamp, origin) = self.sites[at].next(self.now_ms, pg, &mut self.rng);
        self.check_date(at, stamp)?;
        let (name, reported) = match (self.rng.below(9), self.rng.pick(&live)) {
            (0 | 1, Some((name, _))) => {
                (name, Entry { at: stamp, origin, what: EntryKind::Purged })
            }
            (2..=4, Some((name, entry))) => {
                let Some(reported) = super::judge::amended(&entry, stamp, origin, &mut self.rng)
                else {
                    return Ok(());
                };
                (name, reported)
            }
            (roll, _) => {
                let slot = if is_null { Slot::Null } else { Slot::Version(stamp) };
                let what = if roll == 5 {
                    EntryKind::Marker
                } else {
                    super::judge::object(stamp, &mut self.rng)
                };
                (name(slot), Entry { at: stamp, origin, what })
            }
        };
        self.sites[at].keep(&name, &reported, Some(origin.op.seq))?;
        self.counts.changes += 1;
        self.judge.seen(self.now_ms, &self.sites[at], &name)?;
        let region = self.sites[at].id;
        self.judge.acknowledged.push(Acknowledged {
            region,
            name,
            entry: reported,
            stamp,
            at_ms: self.now_ms,
            is_lost: false,
        });
        Ok(())
    }

    fn step(&mut self, at: usize, event: Event) {
        let effects = self.sites[at].step(self.now_ms, event);
        let (id, life) = (self.sites[at].id, self.sites[at].life);
        for effect in effects {
            match effect {
                Effect::Ask { region, request, pgs, ids_max } => {
                    self.note_asked(id, region, &pgs);
                    self.send(id, region, Message::Ask { request, pgs, ids_max });
                }
                Effect::Walk { region, request, range } => {
                    self.send(id, region, Message::Walk { request, range });
                }
                Effect::List { region, request, range } => {
                    self.send(id, region, Message::List { request, range });
                }
                Effect::FindBuckets { region, request, buckets } => {
                    self.counts.looks += 1;
                    self.send(id, region, Message::FindBuckets { request, buckets });
                }
                Effect::Fetch { region, request, names } => {
                    let names = names.into_iter().map(|(name, _)| name).collect();
                    self.send(id, region, Message::Fetch { request, names });
                }
                Effect::FetchPart { region, request, name, bytes_max } => {
                    let ask = self.sites[at].request_part(request, name, bytes_max);
                    self.send(id, region, Message::FetchPart(ask));
                }
                Effect::Merge { name, entry } => {
                    if self.sites[at].merging.is_empty() {
                        let sync = self.rng.below(400);
                        self.later(sync, Happening::Merged(id, life));
                    }
                    self.sites[at].merging.push((name, entry));
                }
                Effect::SaveToken { source, token } => {
                    if self.sites[at].tokens.is_empty() {
                        let sync = self.rng.below(400);
                        self.later(sync, Happening::TokensSaved(id, life));
                    }
                    self.sites[at].tokens.push((source, token));
                }
                Effect::Alarm(alarm) => self.count(&alarm),
            }
        }
    }

    fn count(&mut self, alarm: &Alarm) {
        match alarm {
            Alarm::ClockAhead { .. } => self.counts.clocks_ahead += 1,
            Alarm::Void { .. } => self.counts.voids += 1,
            Alarm::Resync { .. } => self.counts.resyncs += 1,
            alarm => panic!("no region tells such things: {alarm:?}"),
        }
    }

    /// Messages are late, lost and doubled while there are faults, and overtake each other.
    fn send(&mut self, from: RegionId, to: RegionId, message: Message) {
        let is_faulty = self.now_ms < self.faulty_until_ms;
        if is_faulty && self.rng.one_in(20) {
            return;
        }
        if is_faulty && self.rng.one_in(10) {
            let late = self.rng.below(15_000);
            let message = message.clone();
            self.later(late, Happening::Deliver { from, to, message });
        }
        let late = 1 + if self.rng.one_in(20) && is_faulty { 9_000 } else { self.rng.below(80) };
        self.later(late, Happening::Deliver { from, to, message });
    }

    fn deliver(&mut self, from: RegionId, to: RegionId, message: Message) {
        let is_cut = self.cuts.contains(&(from, to));
        let (Some(at), Some(_)) = (self.at(to), self.at(from)) else { return };
        if is_cut || self.sites[at].pull.is_none() {
            return;
        }
        match message {
            Message::Answer(event) => {
                let event = self.lacking(at, event);
                self.step(at, event);
            }
            Message::Home(word) => self.receive_word(from, at, word),
            Message::Clock(word) => self.hear_clock(from, at, word),
            Message::FetchPart(ask) => {
                let reported = parts::tell(&self.sites[at], ask);
                self.send(to, from, Message::Part(reported));
            }
            Message::Part(reported) => {
                let (event, is_part) = self.sites[at].take_part(self.now_ms, reported);
                self.counts.parts += u64::from(is_part);
                self.step(at, event);
            }
            asked => {
                let event = answer(&mut self.sites[at], from, asked);
                self.send(to, from, Message::Answer(event));
            }
        }
    }
}

/// Returns the answer of a region about what is durable there.
fn answer(site: &mut Site, from: RegionId, asked: Message) -> Event {
    let planted = site.bug.machine;
    match asked {
        Message::Ask { request, pgs, ids_max } => {
            let mut left = ids_max;
            let of_pg = |(pg, behind, passed): (PgId, Token, Token)| {
                let journal = &mut site.disk.logs[pg.0 as usize].journal;
                journal.passed(from, passed);
                let reported = journal.since(behind, left);
                left -= reported.as_ref().map_or(0, |batch| batch.ids.len());
                (pg, reported)
            };
            let pgs = pgs.into_iter().map(of_pg).collect();
            Event::Told { request, pgs, unnamed: BTreeMap::new() }
        }
        Message::Walk { request, range } => {
            let mut ids = site.disk.ids(&range);
            let next = ids.get(WALK_IDS).map(|id| id.name.place());
            ids.truncate(WALK_IDS);
            let to = next.clone().or_else(|| range.to.clone());
            let run = Range { from: range.from, to };
            let mut summed = compare::summed(planted, &run, ids.into_iter());
            summed.rest = next.map(|from| Range { from, to: range.to });
            Event::Walked { request, summed }
        }
        Message::List { request, range } => {
            let ids = site.disk.ids(&range);
            let listed = compare::listed(planted, &range, ids.into_iter());
            let groups = listed.ids.iter().map(|id| pg_of(&id.name, site.pgs())).collect();
            Event::Listed { request, listed, groups, unnamed: Vec::new() }
        }
        Message::FindBuckets { request, buckets } => {
            let found = buckets.into_iter().map(|it| (it, LocalBucket::Shared(it)));
            Event::FoundBuckets { request, found: found.collect() }
        }
        Message::Fetch { request, names } => {
            let entry = |name: Name| {
                let kept = site.disk.entries.get(&name).map(|kept| kept.entry.clone());
                (name, kept)
            };
            let entries: Vec<_> = names.into_iter().map(entry).collect();
            let bytes = |(name, entry): &(Name, Option<Entry>)| {
                entry.as_ref().map_or(0, |entry| entry.id(name.clone()).bytes)
            };
            let received_bytes = entries.iter().map(bytes).sum();
            Event::Fetched {
                request,
                fetched: Fetched { entries, received_bytes, ..Fetched::default() },
            }
        }
        Message::FetchPart(_)
        | Message::Part(_)
        | Message::Answer(_)
        | Message::Home(_)
        | Message::Clock(_) => {
            unreachable!("it is none of these questions")
        }
    }
}
