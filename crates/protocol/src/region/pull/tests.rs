//! One region that pulls from regions 2 and 3, step by step.

use larder_types::{Amendments, BucketId, ETag, Metax, ObjectKey, OpId, OpSeq, Stamp, View};

use super::super::entry::{Base, EntryKind, Id, Object, Slot};
use super::super::journal::VoidReason;
use super::*;
use crate::limits::{
    CLIENTS_QUEUE, REGION_ANSWER_MS, REGION_AWAITED_TRIES_MAX, REGION_BACK_MS_MAX,
    REGION_CHANGED_TRIES_MAX, REGION_CLOCK_AHEAD_MS_MAX, REGION_FETCH_IDS_MAX, REGION_FETCHES_MAX,
    REGION_HELD_MS, REGION_HELD_MS_MAX, REGION_POLL_MS, REGION_REQUEST_IDS_MAX,
    REGION_REQUEST_PGS_MAX, REGION_SILENT_MS, REGION_STUCK_MAX, REGION_STUCK_TURN,
    REGION_UNKNOWN_MS, REGION_UNKNOWN_TRIES_MAX,
};

/// The entries that are here, by name, and whether lookups have no answer.
#[derive(Default)]
struct Here(BTreeMap<Name, Entry>, bool);

impl LocalEntries for Here {
    fn entry(&self, name: &Name) -> Lookup {
        if self.1 { Lookup::Unknown } else { Lookup::Found(self.0.get(name).cloned()) }
    }

    fn sum(&self, _: RegionId, range: &Range) -> Sum {
        let ids = self.0.iter().map(|(name, entry)| entry.id(name.clone()));
        let ids: Vec<_> = ids.filter(|id| range.has(&id.name)).collect();
        Sum::of(ids.iter())
    }
}

struct Site {
    pull: Pull,
    here: Here,
    now: EventTime,
    out: Vec<Effect>,
}

/// By the clock on the wall.
const START_MS: u64 = 1_000_000;
/// By the steady one.
const UPTIME_MS: u64 = 7_000;
/// Bytes from which on entries come in parts.
const PART_BYTES: u64 = 1 << 30;

fn source(region: u16, pg: u32) -> Source {
    Source { region: RegionId(region), pg: PgId(pg) }
}

impl Site {
    fn new(sources: &[(u16, u32)], bytes_per_s: u64) -> Self {
        Self::bounded(Bounds::default(), sources, bytes_per_s)
    }

    fn bounded(bounds: Bounds, sources: &[(u16, u32)], bytes_per_s: u64) -> Self {
        let regions = sources.iter().map(|(region, _)| (RegionId(*region), bytes_per_s));
        let config = Config {
            own: RegionId(1),
            bytes_per_s: regions.collect(),
            part_bytes: PART_BYTES,
            bounds,
            first_request: 100,
            planted: Planted::default(),
        };
        let tokens = sources.iter().map(|(region, pg)| (source(*region, *pg), Token::default()));
        let now = EventTime { steady_ms: UPTIME_MS, wall_ms: START_MS };
        let pull = Pull::new(now, config, tokens.collect());
        let mut site = Self { pull, here: Here::default(), now, out: Vec::new() };
        site.step(Event::Tick);
        site
    }

    fn step(&mut self, event: Event) {
        self.pull.step(self.now, event, &self.here, &mut self.out);
    }

    fn pass(&mut self, ms: u64) {
        self.now = EventTime { steady_ms: self.now.steady_ms + ms, wall_ms: self.now.wall_ms + ms };
        self.step(Event::Tick);
    }

    /// Lets a long time pass. Requests that nobody answers begin anew, and are under way at its end.
    fn rest(&mut self, ms: u64) {
        let short_ms = ms.min(3 * REGION_POLL_MS);
        self.pass(ms - short_ms);
        self.pass(short_ms / 2);
        self.pass(short_ms - short_ms / 2);
    }

    fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.out)
    }

    /// The request for ids that a region was sent last.
    fn asked(&mut self, of: u16) -> u64 {
        let asked = self.out.iter().rev().find_map(|effect| match effect {
            Effect::Ask { region, request, .. } if region.0 == of => Some(*request),
            _ => None,
        });
        asked.expect("it is asked for ids")
    }

    fn tell(&mut self, of: u16, pg: u32, ids_of: &[(u64, &Entry)]) {
        let request = self.asked(of);
        let ids: Vec<_> = ids_of.iter().map(|(op, entry)| (OpSeq(*op), id(entry))).collect();
        let last = ids_of.last().map_or(OpSeq(0), |(op, _)| OpSeq(*op));
        let batch = Batch { ids, token: Token { through: last }, last, left: (0, 0) };
        self.step(Event::Told {
            request,
            unnamed: BTreeMap::new(),
            pgs: vec![(PgId(pg), Ok(batch))],
        });
    }

    /// The fetches since the last look: region, request, entries.
    fn fetches(&mut self) -> Vec<(u16, u64, Vec<Name>)> {
        let all = self.effects();
        let fetches = all.iter().filter_map(|effect| match effect {
            Effect::Fetch { region, request, names } => {
                let names = names.iter().map(|(name, _)| name.clone()).collect();
                Some((region.0, *request, names))
            }
            _ => None,
        });
        let fetches = fetches.collect();
        self.out = all;
        self.out.retain(|effect| !matches!(effect, Effect::Fetch { .. }));
        fetches
    }

    fn answer(&mut self, request: u64, fetched: Fetched) {
        self.step(Event::Fetched { request, fetched });
    }

    fn bring(&mut self, request: u64, entries: &[&Entry]) {
        let received_bytes = 100 * entries.len() as u64;
        let entries = entries.iter().map(|it| (name(it), Some((*it).clone()))).collect();
        self.answer(request, Fetched { entries, received_bytes, ..Fetched::default() });
    }

    /// A region answers that it cannot read an entry.
    fn withhold(&mut self, request: u64, name: &Name) {
        let withheld = vec![name.clone()];
        self.answer(request, Fetched { withheld, ..Fetched::default() });
    }

    /// A region answers that it does not know an entry's end behind the base.
    fn lack_base(&mut self, request: u64, name: &Name) {
        let baseless = vec![name.clone()];
        self.answer(request, Fetched { baseless, ..Fetched::default() });
    }

    fn keep(&mut self, entry: &Entry) {
        self.here.0.insert(name(entry), entry.clone());
        self.step(Event::Merged { names: vec![name(entry)] });
    }

    fn saved(&mut self) -> Vec<(Source, u64)> {
        let saved = self.effects().into_iter().filter_map(|effect| match effect {
            Effect::SaveToken { source, token } => Some((source, token.through.0)),
            _ => None,
        });
        saved.collect()
    }

    fn alarms(&mut self) -> Vec<Alarm> {
        let alarms = self.effects().into_iter().filter_map(|effect| match effect {
            Effect::Alarm(alarm) => Some(alarm),
            _ => None,
        });
        alarms.collect()
    }
}

/// A delete marker: the smallest entry.
fn marker(region: u16, pg: u32, op: u64, ms: u64) -> Entry {
    let at = Stamp { clock: HybridClock::at_ms(ms), region: RegionId(region) };
    let op = OpId { view: View(1), seq: OpSeq(op) };
    let origin = Origin { region: RegionId(region), pg: PgId(pg), op };
    Entry { at, origin, what: EntryKind::Marker }
}

fn name(entry: &Entry) -> Name {
    let key = ObjectKey::new("k").unwrap();
    Name { bucket: BucketId(1), key, slot: Slot::Version(entry.at) }
}

fn id(entry: &Entry) -> Id {
    Id { bytes: 100, ..entry.id(name(entry)) }
}

#[test]
fn a_token_moves_only_over_what_is_durable() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let (one, two) = (marker(2, 0, 1, 10), marker(2, 0, 2, 20));
    site.tell(2, 0, &[(1, &one), (2, &two)]);
    let (_, request, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&one), name(&two)], "the oldest first");
    site.bring(request, &[&one, &two]);
    assert_eq!(site.saved(), [], "what came is not durable yet");
    site.keep(&two);
    assert_eq!(site.saved(), [], "an earlier one is not");
    site.keep(&one);
    assert_eq!(site.saved(), [(source(2, 0), 2)]);
    assert!(site.pull.is_level());
}

#[test]
fn what_is_here_is_not_fetched() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let (here, own) = (marker(2, 0, 1, 10), marker(1, 0, 9, 20));
    site.here.0.insert(name(&here), here.clone());
    // Its own change comes back through another region, after it was purged and its tombstone was freed.
    site.tell(2, 0, &[(1, &here), (7, &own)]);
    assert_eq!(site.fetches(), []);
    assert_eq!(site.saved(), [(source(2, 0), 6), (source(2, 0), 7)]);
}

#[test]
fn what_may_be_here_is_not_fetched_before_that_is_known() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let (here, new) = (marker(2, 0, 1, 10), marker(2, 0, 2, 20));
    site.here.0.insert(name(&here), here.clone());
    site.here.1 = true;
    site.tell(2, 0, &[(1, &here), (2, &new)]);
    site.pass(REGION_UNKNOWN_MS - 1);
    assert_eq!((site.fetches(), site.saved()), (Vec::new(), Vec::new()));
    site.here.1 = false;
    site.pass(1);
    assert_eq!(site.fetches().remove(0).2, [name(&new)]);
}

#[test]
fn what_stays_unknown_is_fetched() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let here = marker(2, 0, 1, 10);
    site.here.0.insert(name(&here), here.clone());
    site.here.1 = true;
    site.tell(2, 0, &[(1, &here)]);
    for _ in 1..REGION_UNKNOWN_TRIES_MAX {
        site.pass(REGION_UNKNOWN_MS);
        assert_eq!(site.fetches(), [], "its PG may have a primary soon");
    }
    site.pass(REGION_UNKNOWN_MS);
    assert_eq!(site.fetches().remove(0).2, [name(&here)], "the primary decides");
}

#[test]
fn two_regions_that_tell_of_one_version_are_asked_once() {
    let mut site = Site::new(&[(2, 0), (3, 7)], 1 << 20);
    let version = marker(2, 0, 1, 10);
    site.tell(2, 0, &[(1, &version)]);
    site.tell(3, 7, &[(1, &version)]);
    let fetches = site.fetches();
    assert_eq!(fetches.len(), 1, "{fetches:?}");
    site.bring(fetches[0].1, &[&version]);
    site.keep(&version);
    assert_eq!(site.saved(), [(source(2, 0), 1), (source(3, 7), 1)]);
    site.pass(1);
    assert_eq!(site.fetches(), []);
}

#[test]
fn another_region_is_asked_for_what_one_does_not_bring() {
    let mut site = Site::new(&[(2, 0), (3, 7)], 1 << 20);
    let version = marker(2, 0, 1, 10);
    site.tell(2, 0, &[(1, &version)]);
    site.tell(3, 7, &[(1, &version)]);
    let (first, request, _) = site.fetches().remove(0);
    site.step(Event::Unanswered { request });
    let (second, again, _) = site.fetches().remove(0);
    assert_ne!(first, second);
    site.pass(1);
    assert_eq!(site.fetches(), [], "one request is under way");
    // The answer to the first comes after all, and counts for nothing.
    site.bring(request, &[&version]);
    assert!(!site.effects().iter().any(|it| matches!(it, Effect::Merge { .. })));
    site.bring(again, &[&version]);
    assert!(site.effects().iter().any(|it| matches!(it, Effect::Merge { .. })));
}

#[test]
fn what_a_region_cannot_read_is_asked_of_another_at_once() {
    let mut site = Site::new(&[(2, 0), (3, 7)], 1 << 20);
    let version = marker(2, 0, 1, 10);
    site.tell(2, 0, &[(1, &version)]);
    site.tell(3, 7, &[(1, &version)]);
    let (first, request, _) = site.fetches().remove(0);
    site.withhold(request, &name(&version));
    let (second, again, _) = site.fetches().remove(0);
    assert_ne!(first, second);
    site.bring(again, &[&version]);
    site.keep(&version);
    assert_eq!(site.saved().len(), 1, "the other region's token");
    site.pass(REGION_HELD_MS);
    assert_eq!(site.saved().len(), 1, "it is here: nothing is fetched for the first one");
    assert_eq!(site.fetches(), []);
}

/// An object as a key's null version, of so many bytes.
fn object(region: u16, op: u64, ms: u64, size: u64) -> Entry {
    let Entry { at, origin, .. } = marker(region, 0, op, ms);
    let metax = Metax { region: at.region, ..Metax::new(size, at.clock, ETag::Md5([1; 16])) };
    let (parts, pieces, amended) = (Vec::new(), BTreeMap::new(), Amendments::default());
    Entry {
        at,
        origin,
        what: EntryKind::Object(Box::new(Object { metax, parts, pieces, amended })),
    }
}

/// A site that has the first 300 bytes of a version of 400, and regions that tell of it. Gives its name, and the base.
fn site_with_base(of: &[u16]) -> (Site, Name, Base) {
    let sources: Vec<_> = of.iter().map(|region| (*region, 0)).collect();
    let mut site = Site::new(&sources, 1 << 20);
    let (here, ids_of) = (object(2, 1, 10, 300), object(2, 2, 20, 400));
    let null = Name { slot: Slot::Null, ..name(&here) };
    site.here.0.insert(null.clone(), here.clone());
    for region in of {
        let (request, last) = (site.asked(*region), OpSeq(2));
        let ids = vec![(last, ids_of.id(null.clone()))];
        let batch = Batch { ids, token: Token { through: last }, last, left: (0, 0) };
        site.step(Event::Told {
            request,
            unnamed: BTreeMap::new(),
            pgs: vec![(PgId(0), Ok(batch))],
        });
    }
    (site, null, Base { at: here.at, size: 300 })
}

/// A fetch found another version of an entry here than it was asked for by.
fn changed(request: u64, name: &Name) -> Event {
    let changed = vec![name.clone()];
    Event::Fetched { request, fetched: Fetched { changed, ..Fetched::default() } }
}

/// The one fetch since the last look: region, request, and need.
fn one_fetch(site: &mut Site) -> (u16, u64, Need) {
    let all = site.effects();
    let mut fetches = all.into_iter().filter_map(|effect| match effect {
        Effect::Fetch { region, request, names } => Some((region.0, request, names[0].1)),
        _ => None,
    });
    let one = fetches.next().expect("it is fetched");
    assert_eq!(fetches.next(), None, "once");
    one
}

#[test]
fn a_region_reports_partial_versions_to_regions_that_support_it() {
    let (mut site, null, base) = site_with_base(&[2]);
    let (_, request, need) = one_fetch(&mut site);
    assert_eq!(need, Need::Bytes(Some(base)));
    site.lack_base(request, &null);
    assert_eq!(site.fetches(), [], "the region that appended may tell of it");
    site.pass(REGION_UNKNOWN_MS);
    assert_eq!(one_fetch(&mut site).2, Need::Bytes(None), "all of it");
}

#[test]
fn what_cannot_be_read_once_is_asked_for_behind_its_base_again() {
    let (mut site, null, base) = site_with_base(&[2]);
    let (_, request, _) = one_fetch(&mut site);
    site.withhold(request, &null);
    site.pass(REGION_UNKNOWN_MS);
    assert_eq!(site.fetches(), []);
    site.pass(REGION_HELD_MS);
    assert_eq!(one_fetch(&mut site).2, Need::Bytes(Some(base)));
}

/// An append that goes on what is here is asked for behind what is here now, at once: to wait would have each region lag behind
/// appends.
#[test]
fn what_has_changed_here_is_looked_up_and_asked_for_again() {
    let (mut site, null, base) = site_with_base(&[2, 3]);
    let (_, request, need) = one_fetch(&mut site);
    assert_eq!(need, Need::Bytes(Some(base)));
    let grown = object(2, 3, 15, 350);
    let now = Base { at: grown.at, size: 350 };
    site.here.0.insert(null.clone(), grown);
    assert!(site.pull.lookups(site.now, &changed(request, &null)).names.contains(&null));
    site.step(changed(request, &null));
    let (_, request, need) = one_fetch(&mut site);
    assert_eq!(need, Need::Bytes(Some(now)));
    // It has come meanwhile.
    site.here.0.insert(null.clone(), object(2, 2, 20, 400));
    site.step(changed(request, &null));
    assert_eq!(site.fetches(), []);
    assert_eq!(site.saved(), [(source(2, 0), 2), (source(3, 0), 2)]);
}

#[test]
fn what_seems_to_change_here_all_the_time_is_held_for_a_while() {
    let (mut site, null, _) = site_with_base(&[2]);
    for _ in 0..REGION_CHANGED_TRIES_MAX {
        let (_, request, _) = one_fetch(&mut site);
        site.step(changed(request, &null));
    }
    let (_, request, _) = one_fetch(&mut site);
    site.step(changed(request, &null));
    site.pass(REGION_UNKNOWN_MS);
    assert_eq!(site.fetches(), []);
    site.pass(REGION_HELD_MS);
    one_fetch(&mut site);
}

#[test]
fn a_region_that_lacks_a_base_is_not_asked_for_all_while_another_may_have_it() {
    let (mut site, null, base) = site_with_base(&[2, 3]);
    let (first, request, _) = one_fetch(&mut site);
    site.lack_base(request, &null);
    let (second, request, need) = one_fetch(&mut site);
    assert_ne!(first, second);
    assert_eq!(need, Need::Bytes(Some(base)), "the other may have it");
    for _ in 0..3 {
        site.step(Event::Coming { request });
        site.pass(REGION_UNKNOWN_MS);
        assert_eq!(site.fetches(), [], "it is slow");
    }
    site.step(Event::Unanswered { request });
    assert_eq!(site.fetches(), [], "it is left alone for a moment");
    let mut asked = Vec::new();
    while asked.is_empty() {
        site.pass(REGION_UNKNOWN_MS);
        let all = site.effects();
        asked.extend(all.into_iter().filter_map(|effect| match effect {
            Effect::Fetch { region, names, .. } => Some((region.0, names[0].1)),
            _ => None,
        }));
    }
    assert_eq!(asked, [(second, Need::Bytes(Some(base)))], "it is back, and knows the base still");
}

#[test]
fn a_region_that_lacks_a_base_is_asked_for_all_if_no_other_gives_the_end() {
    let (mut site, null, _) = site_with_base(&[2, 3]);
    let (first, request, _) = one_fetch(&mut site);
    site.lack_base(request, &null);
    let (second, mut request, _) = one_fetch(&mut site);
    let mut asked = Vec::new();
    for _ in 0..2 * REGION_AWAITED_TRIES_MAX {
        // Its packets vanish.
        site.step(Event::Unanswered { request });
        site.pass(REGION_UNKNOWN_MS);
        let all = site.effects();
        asked.extend(all.into_iter().filter_map(|effect| match effect {
            Effect::Fetch { region, request: it, names } => {
                request = it;
                Some((region.0, names[0].1))
            }
            _ => None,
        }));
    }
    assert!(asked.iter().filter(|it| it.0 == second).count() > 1, "{asked:?}");
    assert!(asked.contains(&(first, Need::Bytes(None))), "{asked:?}");
}

#[test]
fn a_region_that_lacks_a_base_of_which_it_was_not_told_is_not_asked_again_at_once() {
    let (mut site, null, _) = site_with_base(&[2]);
    let (_, request, _) = one_fetch(&mut site);
    site.lack_base(request, &null);
    site.pass(REGION_UNKNOWN_MS);
    let (_, request, need) = one_fetch(&mut site);
    assert_eq!(need, Need::Bytes(None));
    site.lack_base(request, &null);
    assert_eq!(site.fetches(), []);
    site.pass(REGION_HELD_MS);
    assert_eq!(one_fetch(&mut site).2, Need::Bytes(None));
}

#[test]
fn what_is_joined_is_looked_up_only_for_claims_that_its_region_did_not_make() {
    let mut site = Site::new(&[(2, 0), (3, 7)], 1 << 20);
    let all: Vec<_> = (1..=50).map(|op| marker(2, 0, op, op)).collect();
    let ids_of: Vec<_> = (1..).zip(&all).collect();
    site.tell(2, 0, &ids_of);
    let (_, request, names) = site.fetches().remove(0);
    site.bring(request, &all.iter().collect::<Vec<_>>());
    let joined = Event::Merged { names };
    assert_eq!(site.pull.lookups(site.now, &joined), Lookups::default());
    site.tell(3, 7, &[(1, &all[8])]);
    let lookups = site.pull.lookups(site.now, &joined);
    assert_eq!(lookups.names, BTreeSet::from([name(&all[8])]));
    site.here.0.extend(all.iter().map(|entry| (name(entry), entry.clone())));
    site.effects();
    site.step(joined);
    let saved = site.saved();
    assert!(saved.contains(&(source(2, 0), 50)) && saved.contains(&(source(3, 7), 1)), "{saved:?}");
    site.pass(1);
}

#[test]
fn what_its_region_has_no_more_is_passed_over() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let version = marker(2, 0, 1, 10);
    site.tell(2, 0, &[(1, &version)]);
    let (_, request, _) = site.fetches().remove(0);
    let entries = vec![(name(&version), None)];
    site.answer(request, Fetched { entries, ..Fetched::default() });
    assert_eq!(site.saved(), [(source(2, 0), 1)]);
}

#[test]
fn a_request_that_is_not_answered_in_time_is_repeated() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let version = marker(2, 0, 1, 10);
    site.tell(2, 0, &[(1, &version)]);
    assert_eq!(site.fetches().len(), 1);
    site.pass(REGION_ANSWER_MS - 1);
    assert_eq!(site.fetches(), []);
    site.pass(1);
    site.pass(1000);
    assert_eq!(site.fetches().len(), 1);
}

#[test]
fn a_clock_too_far_ahead_is_an_alarm_and_is_taken_when_it_is_due() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let ahead = marker(2, 0, 1, START_MS + REGION_CLOCK_AHEAD_MS_MAX + 1);
    let other = marker(2, 0, 2, 10);
    site.tell(2, 0, &[(1, &ahead), (2, &other)]);
    let (_, request, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&other)], "the others are not held up");
    let alarm = Alarm::ClockAhead { region: RegionId(2), clock: ahead.at.clock };
    assert_eq!(site.alarms(), [alarm]);
    site.bring(request, &[&other]);
    site.keep(&other);
    assert_eq!(site.saved(), [], "the token stays before it");
    assert_eq!(
        site.pull.lags()[&RegionId(2)].oldest,
        Some(ahead.at.clock),
        "it is shown as what is behind"
    );
    site.pass(REGION_HELD_MS);
    let (_, _, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&ahead)]);
}

#[test]
fn a_region_is_asked_for_no_more_bytes_than_its_budget() {
    // Each id says 100 bytes.
    let mut site = Site::new(&[(2, 0)], 1000);
    let all: Vec<_> = (1..=400).map(|op| marker(2, 0, op, op)).collect();
    let ids_of: Vec<_> = (1..).zip(&all).collect();
    site.tell(2, 0, &ids_of);
    let mut entries = 0;
    for second in 0..20 {
        for (_, request, names) in site.fetches() {
            entries += names.len();
            let brought: Vec<_> = all.iter().filter(|it| names.contains(&name(it))).collect();
            site.bring(request, &brought);
            brought.iter().for_each(|entry| site.keep(entry));
        }
        // The last entry of each request may overdraw it.
        assert!(entries <= 10 * (second + 1) + 1, "{entries} entries after {second} s");
        site.pass(1000);
    }
    assert!(entries >= 190, "the budget is used: {entries}");
}

#[test]
fn a_region_is_asked_for_less_under_client_load() {
    let mut site = Site::new(&[(2, 0)], 1000);
    let all: Vec<_> = (1..=400).map(|op| marker(2, 0, op, op)).collect();
    let ids_of: Vec<_> = (1..).zip(&all).collect();
    site.tell(2, 0, &ids_of);
    let of_seconds = |site: &mut Site, clients: u32| {
        let mut entries = 0;
        for _ in 0..10 {
            site.step(Event::Clients(clients));
            for (_, request, names) in site.fetches() {
                entries += names.len();
                let brought: Vec<_> = all.iter().filter(|it| names.contains(&name(it))).collect();
                site.bring(request, &brought);
                brought.iter().for_each(|entry| site.keep(entry));
            }
            site.pass(1000);
        }
        entries
    };
    let (alone, beside) = (of_seconds(&mut site, 0), of_seconds(&mut site, CLIENTS_QUEUE));
    assert!(alone >= 90 && (10..=30).contains(&beside), "{alone} entries, then {beside}");
    assert!(site.pull.share() < 0.2);
}

#[test]
fn an_entry_that_stays_withheld_costs_nothing_of_the_budget() {
    // Each id says 100 bytes: one fetch overdraws ten seconds.
    let mut site = Site::new(&[(2, 0)], 10);
    let (unreadable, other) = (marker(2, 0, 1, 1), marker(2, 0, 2, 2));
    site.tell(2, 0, &[(1, &unreadable), (2, &other)]);
    let (_, request, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&unreadable)]);
    site.withhold(request, &name(&unreadable));
    let (_, _, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&other)], "no time has passed");
}

#[test]
fn lagging_journals_are_requested_first_and_in_batches() {
    let pgs: Vec<_> = (0..REGION_REQUEST_PGS_MAX as u32 + 5).map(|pg| (2, pg)).collect();
    let mut site = Site::new(&pgs, 1 << 20);
    let asked = |site: &mut Site| {
        let ask = site.effects().into_iter().find_map(|effect| match effect {
            Effect::Ask { request, pgs, .. } => Some((request, pgs)),
            _ => None,
        });
        let (request, pgs) = ask.expect("ids are asked for");
        (request, pgs.iter().map(|(pg, ..)| pg.0).collect::<Vec<_>>())
    };
    let (request, first) = asked(&mut site);
    let most = REGION_REQUEST_PGS_MAX as u32;
    assert_eq!(first, (0..most).collect::<Vec<_>>());
    let ids_of = |left| {
        let (token, last) = (Token::default(), OpSeq(9));
        Ok(Batch { ids: Vec::new(), token, last, left: (left, 0) })
    };
    site.pass(1);
    site.step(Event::Told {
        request,
        unnamed: BTreeMap::new(),
        pgs: vec![(PgId(13), ids_of(4)), (PgId(2), ids_of(0))],
    });
    let (_, second) = asked(&mut site);
    assert_eq!(second[..2], [13, most], "then those that were not asked for the longest time");
}

#[test]
fn a_contradiction_is_an_alarm_and_is_tried_again() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let version = marker(2, 0, 1, 10);
    site.tell(2, 0, &[(1, &version)]);
    let (_, request, _) = site.fetches().remove(0);
    site.bring(request, &[&version]);
    let why = Contradiction { at: version.at, what: "kinds" };
    site.effects();
    site.step(Event::Contradicted { name: name(&version), why });
    assert_eq!(site.alarms(), [Alarm::Contradiction { name: name(&version), why }]);
    site.pass(REGION_HELD_MS - 1);
    assert_eq!(site.fetches(), []);
    site.pass(1);
    assert_eq!(site.fetches().len(), 1);
    assert!(!site.pull.is_level());
}

/// An operator sets this region's clock, which was ten minutes ahead.
#[test]
fn a_clock_that_is_set_back_stops_nothing() {
    const AHEAD_MS: u64 = 600_000;
    // Each id says 100 bytes: the first takes all that there is.
    let mut site = Site::new(&[(2, 0)], 100);
    let due_later_ms = START_MS - AHEAD_MS + REGION_CLOCK_AHEAD_MS_MAX + REGION_HELD_MS;
    let (first, second) = (marker(2, 0, 1, 10), marker(2, 0, 2, due_later_ms));
    site.tell(2, 0, &[(1, &first)]);
    let (_, request, _) = site.fetches().remove(0);
    site.now.wall_ms -= AHEAD_MS;
    site.pass(REGION_POLL_MS);
    site.tell(2, 0, &[(2, &second)]);
    assert_eq!(site.alarms().len(), 1, "it is ahead of the clock as that is now");
    site.bring(request, &[&first]);
    site.keep(&first);
    assert!(site.pull.silent(site.now).is_empty());
    site.pass(REGION_POLL_MS);
    site.asked(2);
    site.pass(REGION_HELD_MS);
    assert_eq!(site.fetches().remove(0).2, [name(&second)], "it was looked at again");
    site.pass(REGION_SILENT_MS + 1);
    assert_eq!(site.pull.silent(site.now)[&RegionId(2)], PgId(0), "it tells nothing meanwhile");
}

/// One region whose clock is far ahead, and which tells without end.
#[test]
fn a_region_whose_changes_cannot_be_taken_holds_up_no_other() {
    let mut site = Site::new(&[(2, 0), (3, 0)], 1 << 20);
    let ahead_ms = START_MS + 10 * REGION_CLOCK_AHEAD_MS_MAX;
    for op in (0..3 * REGION_STUCK_MAX as u64).step_by(REGION_REQUEST_IDS_MAX) {
        let last = op + REGION_REQUEST_IDS_MAX as u64;
        let ids_of: Vec<_> = (op + 1..=last).map(|op| marker(2, 0, op, ahead_ms + op)).collect();
        let request = site.asked(2);
        site.effects();
        let ids = ids_of.iter().map(|it| (it.origin.op.seq, id(it))).collect();
        let (token, last) = (Token { through: OpSeq(last) }, OpSeq(last + 9));
        let batch = Batch { ids, token, last, left: (9, 9) };
        site.step(Event::Told {
            request,
            unnamed: BTreeMap::new(),
            pgs: vec![(PgId(0), Ok(batch))],
        });
        assert!(site.pull.all_claims().count() <= REGION_STUCK_MAX, "what is held is bounded");
    }
    site.pass(REGION_ANSWER_MS);
    site.pass(1000);
    let other = marker(3, 0, 1, 10);
    site.tell(3, 0, &[(1, &other)]);
    assert_eq!(site.fetches()[0].2, [name(&other)]);
}

/// Each unsound answer raises an alarm, and the machine goes on.
#[test]
fn answers_that_no_region_gives_break_nothing() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let (first, second) = (marker(2, 0, 1, 10), marker(2, 0, 2, 20));
    let ids_of = |ids: Vec<(u64, &Entry)>, through| {
        let ids: Vec<_> = ids.into_iter().map(|(op, entry)| (OpSeq(op), id(entry))).collect();
        Batch {
            ids,
            token: Token { through: OpSeq(through) },
            last: OpSeq(9),
            left: (u64::MAX, u64::MAX),
        }
    };
    let answers = [
        ids_of(vec![(2, &first), (1, &second)], 2),
        ids_of(vec![(0, &first)], 2),
        ids_of(vec![(3, &first)], 2),
        ids_of((0..1001).map(|at| (at + 1, &first)).collect(), 2000),
    ];
    for batch in answers {
        let request = site.asked(2);
        site.effects();
        site.step(Event::Told {
            request,
            unnamed: BTreeMap::new(),
            pgs: vec![(PgId(0), Ok(batch)), (PgId(9), Ok(ids_of(vec![], 5)))],
        });
        let all = site.effects();
        let unsound = Effect::Alarm(Alarm::Unsound { region: RegionId(2) });
        assert!(all.contains(&unsound), "{all:?}");
        site.pass(1000);
    }
    // An own stamp without a region, and another region's op.
    let mut nobodys = first.clone();
    nobodys.at.region = RegionId(0);
    let mut foreign = second.clone();
    foreign.origin.region = RegionId(3);
    site.tell(2, 0, &[(1, &nobodys), (2, &foreign)]);
    assert_eq!(site.fetches(), []);
    let unsound = Alarm::Unsound { region: RegionId(2) };
    assert_eq!(site.alarms(), [unsound.clone(), unsound]);
    assert!(site.pull.lags().values().all(|lag| lag.outcomes > 0));
}

#[path = "tests/comparing.rs"]
mod comparing;

#[path = "tests/large.rs"]
mod large;

#[path = "tests/stuck.rs"]
mod stuck;

#[path = "tests/unnamed.rs"]
mod unnamed;
