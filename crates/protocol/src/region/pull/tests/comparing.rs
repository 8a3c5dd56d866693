//! Journals of region 2 that are void, and what is compared for them.

use super::super::super::compare::{listed, summed};
use super::stuck::answer_all;
use super::*;
use crate::limits::REGION_POLL_MS;

/// The entries of a region, in the order of its rows.
fn ids_of(entries: &[&Entry]) -> Vec<Id> {
    let mut ids: Vec<_> = entries.iter().map(|entry| id(entry)).collect();
    ids.sort_by_key(|id| id.name.place());
    ids
}

impl Site {
    /// These journals are void, and go on behind these ops.
    pub(super) fn void(&mut self, journals: &[(u32, u64)]) {
        let request = self.asked(2);
        self.effects();
        let void =
            |through| Void { why: VoidReason::Overrun, resume: Token { through: OpSeq(through) } };
        let pgs = journals.iter().map(|(pg, through)| (PgId(*pg), Err(void(*through))));
        self.step(Event::Told { request, unnamed: BTreeMap::new(), pgs: pgs.collect() });
    }

    pub(super) fn walks(&self) -> Vec<(u64, Range)> {
        let walks = self.out.iter().filter_map(|effect| match effect {
            Effect::Walk { region: RegionId(2), request, range } => Some((*request, range.clone())),
            _ => None,
        });
        walks.collect()
    }

    pub(super) fn lists(&self) -> Vec<(u64, Range)> {
        let lists = self.out.iter().filter_map(|effect| match effect {
            Effect::List { region: RegionId(2), request, range } => Some((*request, range.clone())),
            _ => None,
        });
        lists.collect()
    }

    /// The walk that was asked for shows these.
    pub(super) fn walk(&mut self, theirs: &[&Entry]) {
        let (request, range) = self.walks().pop().expect("a walk is asked for");
        self.out.clear();
        let summed = summed(Planted::default(), &range, ids_of(theirs).into_iter());
        self.step(Event::Walked { request, summed });
    }

    /// The run that was asked for has these.
    pub(super) fn list(&mut self, theirs: &[&Entry]) {
        let (request, range) = self.lists().pop().expect("a list is asked for");
        let listed = listed(Planted::default(), &range, ids_of(theirs).into_iter());
        self.answer_list(request, listed);
    }

    /// A list has these. A key's group is the one in which its entry was made.
    pub(super) fn answer_list(&mut self, request: u64, listed: Listed) {
        let groups = listed.ids.iter().map(|id| id.origin.pg).collect();
        self.step(Event::Listed { request, listed, groups, unnamed: vec![] });
    }

    /// All that is fetched comes, and is durable.
    fn take(&mut self, of: &[&Entry]) {
        for (_, request, names) in self.fetches() {
            let brought: Vec<_> =
                of.iter().copied().filter(|it| names.contains(&name(it))).collect();
            self.bring(request, &brought);
            brought.iter().for_each(|entry| self.keep(entry));
        }
    }

    pub(super) fn is_comparing(&self) -> bool {
        self.pull.lags()[&RegionId(2)].is_comparing
    }
}

#[test]
fn a_void_token_compares_all_keys_and_goes_on_where_it_is_told() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let (here, lacking) = (marker(2, 0, 1, 10), marker(2, 0, 2, 20));
    site.here.0.insert(name(&here), here.clone());
    site.void(&[(0, 70)]);
    assert!(site.is_comparing());
    site.walk(&[&lacking, &here]);
    site.list(&[&lacking, &here]);
    let (_, request, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&lacking)]);
    assert_eq!(site.saved(), [], "what differs is not here yet");
    site.bring(request, &[&lacking]);
    site.keep(&lacking);
    assert_eq!(site.saved(), [(source(2, 0), 70)]);
    assert!(site.pull.is_level());
}

#[test]
fn journals_that_are_void_at_once_are_compared_by_one_walk() {
    let mut site = Site::new(&[(2, 0), (2, 1), (2, 2)], 1 << 20);
    let theirs = [marker(2, 0, 1, 10), marker(2, 1, 1, 20), marker(2, 2, 1, 30)];
    let theirs: Vec<&Entry> = theirs.iter().collect();
    site.void(&[(0, 70), (2, 90)]);
    let begun = Effect::Alarm(Alarm::Resync { region: RegionId(2), journals: 2 });
    assert_eq!(site.out.iter().filter(|it| **it == begun).count(), 1, "{:?}", site.out);
    assert_eq!(site.walks().iter().map(|it| &it.1).collect::<Vec<_>>(), [&Range::default()]);
    site.walk(&theirs);
    assert_eq!(site.walks(), [], "one walk shows all");
    site.list(&theirs);
    site.take(&theirs);
    assert_eq!(site.saved(), [(source(2, 0), 70), (source(2, 2), 90)]);
    site.pass(REGION_POLL_MS);
    assert_eq!((site.walks(), site.is_comparing()), (vec![], false));
}

#[test]
fn a_void_journal_is_not_asked_for_ids_and_the_others_are() {
    let mut site = Site::new(&[(2, 0), (2, 1)], 1 << 20);
    site.void(&[(0, 70)]);
    site.pass(REGION_POLL_MS);
    let asked = site.out.iter().find_map(|effect| match effect {
        Effect::Ask { pgs, .. } => Some(pgs.iter().map(|(pg, ..)| pg.0).collect::<Vec<_>>()),
        _ => None,
    });
    assert_eq!(asked, Some(vec![1]));
}

#[test]
fn a_journal_that_becomes_void_meanwhile_has_a_comparison_of_its_own() {
    let mut site = Site::new(&[(2, 0), (2, 1)], 1 << 20);
    let (first, second) = (marker(2, 0, 1, 10), marker(2, 1, 80, 20));
    site.void(&[(0, 70)]);
    let (walk, range) = site.walks().remove(0);
    site.pass(REGION_POLL_MS);
    // The walk that is under way may have passed by what lies at or below this resume token.
    site.void(&[(1, 90)]);
    assert_eq!(site.walks(), [], "one comparison is under way");
    let summed = summed(Planted::default(), &range, ids_of(&[&first]).into_iter());
    site.step(Event::Walked { request: walk, summed });
    site.list(&[&first]);
    site.take(&[&first]);
    assert!(site.is_comparing());
    assert_eq!(site.walks().len(), 1, "now it begins");
    site.walk(&[&first, &second]);
    assert_eq!(site.saved(), [], "it is not covered by the first");
    site.pass(REGION_ANSWER_MS);
    site.pass(REGION_POLL_MS);
    site.list(&[&first, &second]);
    site.take(&[&first, &second]);
    assert_eq!(site.saved(), [(source(2, 1), 90)]);
}

#[test]
fn no_token_moves_before_all_that_a_comparison_found_in_its_group_is_here() {
    let mut site = Site::new(&[(2, 0), (2, 1)], 1 << 20);
    let (of_first, of_second) = (marker(2, 0, 1, 10), marker(2, 1, 1, 20));
    let theirs = [&of_first, &of_second];
    site.void(&[(0, 70), (1, 90)]);
    site.walk(&theirs);
    site.list(&theirs);
    let (_, request, _) = site.fetches().remove(0);
    site.bring(request, &theirs);
    assert_eq!(site.saved(), [], "neither is durable yet");
    assert!(!site.pull.was_here(of_first.origin));
    site.keep(&of_first);
    assert_eq!(site.saved(), [(source(2, 0), 70)]);
    assert!(site.pull.was_here(of_first.origin) && !site.pull.was_here(of_second.origin));
    site.keep(&of_second);
    assert_eq!(site.saved(), [(source(2, 1), 90)]);
    assert!(site.pull.was_here(of_second.origin));
}

#[test]
fn what_cannot_be_read_of_a_comparison_holds_up_its_group_alone() {
    let mut site = Site::new(&[(2, 0), (2, 1)], 1 << 20);
    let (unreadable, other) = (marker(2, 0, 1, 10), marker(2, 1, 1, 20));
    site.void(&[(0, 70), (1, 90)]);
    site.walk(&[&unreadable, &other]);
    site.list(&[&unreadable, &other]);
    let (_, request, _) = site.fetches().remove(0);
    let entries = vec![(name(&other), Some(other.clone()))];
    let withheld = vec![name(&unreadable)];
    site.answer(request, Fetched { entries, withheld, received_bytes: 100, ..Fetched::default() });
    site.keep(&other);
    assert_eq!(site.saved(), [(source(2, 1), 90)]);
    site.pass(REGION_POLL_MS);
    let later = marker(2, 1, 95, 30);
    site.tell(2, 1, &[(95, &later)]);
    site.take(&[&later]);
    assert_eq!(site.saved(), [(source(2, 1), 94), (source(2, 1), 95)]);
    site.pass(REGION_HELD_MS);
    site.take(&[&unreadable]);
    assert_eq!(site.saved(), [(source(2, 0), 70)], "it can be read again");
}

/// The walk has passed its place when it is put.
#[test]
fn a_change_that_comes_during_a_comparison_is_taken_afterwards() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let (before, meanwhile) = (marker(2, 0, 1, 10), marker(2, 0, 75, 20));
    site.void(&[(0, 70)]);
    site.walk(&[&before]);
    site.list(&[&before]);
    site.take(&[&before]);
    assert_eq!(site.saved(), [(source(2, 0), 70)]);
    site.pass(REGION_POLL_MS);
    let behind = site.out.iter().find_map(|effect| match effect {
        Effect::Ask { pgs, .. } => Some(pgs[0].1.through),
        _ => None,
    });
    assert_eq!(behind, Some(OpSeq(70)), "it is asked from the resume token on");
    site.tell(2, 0, &[(75, &meanwhile)]);
    site.take(&[&meanwhile]);
    assert!(site.here.0.contains_key(&name(&meanwhile)));
    assert_eq!(site.saved(), [(source(2, 0), 74), (source(2, 0), 75)]);
}

/// A clock that is far ahead, among what a comparison finds.
#[test]
fn what_a_comparison_cannot_take_holds_up_a_token_alone() {
    let mut site = Site::new(&[(2, 0), (2, 1)], 1 << 20);
    let ahead = marker(2, 0, 1, START_MS + REGION_CLOCK_AHEAD_MS_MAX + REGION_HELD_MS);
    let later = marker(2, 0, 75, 20);
    site.void(&[(0, 70), (1, 90)]);
    site.walk(&[&ahead]);
    site.list(&[&ahead]);
    assert!(!site.is_comparing(), "all that differs is known");
    assert_eq!(site.saved(), [(source(2, 1), 90)], "its group is another one");
    site.pass(REGION_POLL_MS);
    site.tell(2, 0, &[(75, &later)]);
    site.take(&[&later]);
    assert!(site.here.0.contains_key(&name(&later)), "what comes is taken");
    // The journal overruns once more: that needs another comparison, also while something of the first is held.
    site.pass(REGION_POLL_MS);
    site.void(&[(1, 95)]);
    site.walk(&[&ahead, &later]);
    site.list(&[&ahead, &later]);
    assert_eq!(site.saved(), [(source(2, 1), 95)], "the token stays before what is not here");
    site.pass(REGION_HELD_MS);
    site.take(&[&ahead]);
    assert_eq!(site.saved(), [(source(2, 0), 75)]);
}

/// More than may be held stays as it is.
#[test]
fn comparisons_of_what_was_passed_over_leave_half_of_the_time() {
    let bounds = Bounds { stuck: 1, ..Bounds::default() };
    let mut site = Site::bounded(bounds, &[(2, 0)], 1 << 20);
    let theirs = [marker(2, 0, 1, 10), marker(2, 0, 2, 20)];
    let theirs: Vec<&Entry> = theirs.iter().collect();
    let withhold = |site: &mut Site, request, withheld| {
        site.answer(request, Fetched { withheld, ..Fetched::default() });
    };
    // The answer to a list takes so long.
    let slow_ms = 2 * REGION_BACK_MS_MAX;
    site.void(&[(0, 70)]);
    let mut ended_ms = site.now.steady_ms;
    for _ in 0..4 {
        let (request, range) = site.walks().pop().expect("all is compared again");
        let begun_ms = site.now.steady_ms;
        site.out.clear();
        let summed = summed(Planted::default(), &range, ids_of(&theirs).into_iter());
        site.step(Event::Walked { request, summed });
        for _ in 0..slow_ms / REGION_HELD_MS {
            site.pass(REGION_HELD_MS);
            answer_all(&mut site, withhold);
        }
        site.pass(REGION_POLL_MS);
        site.list(&theirs);
        answer_all(&mut site, withhold);
        assert!(site.is_comparing(), "one was passed over");
        ended_ms = site.now.steady_ms.max(ended_ms);
        let took_ms = ended_ms - begun_ms;
        site.out.clear();
        while site.walks().is_empty() {
            site.pass(REGION_HELD_MS);
            answer_all(&mut site, withhold);
            assert!(site.now.steady_ms < ended_ms + 2 * slow_ms, "another one begins");
        }
        assert!(site.now.steady_ms >= ended_ms + took_ms, "half of the time is left");
    }
    assert_eq!(site.saved(), []);
}

/// As a local bucket is deleted: what was translated before may be of it.
#[test]
fn a_comparison_goes_on_when_answers_on_their_way_are_void() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let (first, second) = (marker(2, 0, 1, 10), marker(2, 0, 2, 20));
    site.void(&[(0, 70)]);
    let (walk, range) = site.walks().remove(0);
    site.out.clear();
    let half = Range { from: range.from, to: Some(name(&second).place()) };
    let rest = Some(Range { from: name(&second).place(), to: None });
    let runs = vec![(half, Sum { count: 1, hash: 1 })];
    site.step(Event::Walked { request: walk, summed: Summed { runs, rest } });
    let (list, _) = site.lists().pop().expect("the first half differs");
    site.out.clear();
    site.step(Event::VoidAnswers);
    let (again, _) = site.lists().pop().expect("it is asked for again");
    site.answer_list(list, Listed { ids: vec![id(&first)], rest: None });
    assert_eq!(site.fetches(), [], "this answer is void");
    site.answer_list(again, Listed { ids: vec![id(&first)], rest: None });
    site.take(&[&first]);
    let (_, range) = site.walks().pop().expect("it goes on");
    assert_eq!(range.from, name(&second).place(), "where it was");
    site.walk(&[&second]);
    site.list(&[&second]);
    site.take(&[&second]);
    assert_eq!(site.saved(), [(source(2, 0), 70)]);
}

/// After each unsound answer the region is asked once more, a little later.
#[test]
fn answers_to_walks_and_lists_that_no_region_gives_break_nothing() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let entry = marker(2, 0, 1, 10);
    site.void(&[(0, 70), (0, 90), (5, 3)]);
    let (request, _) = site.walks().remove(0);
    site.out.clear();
    site.step(Event::Walked { request, summed: Summed { runs: vec![], rest: None } });
    assert_eq!(site.walks(), [], "not at once");
    assert_eq!(site.alarms(), [Alarm::Unsound { region: RegionId(2) }]);
    site.pass(REGION_POLL_MS);
    site.walk(&[&entry]);
    let (mut request, range) = site.lists().remove(0);
    let one = || vec![id(&entry)];
    let answers = [
        (Listed { ids: vec![], rest: Some(range) }, vec![]),
        (Listed { ids: one(), rest: None }, vec![PgId(9)]),
        (Listed { ids: one(), rest: None }, vec![]),
    ];
    for (listed, groups) in answers {
        site.out.clear();
        site.step(Event::Listed { request, listed, groups, unnamed: vec![] });
        assert_eq!(site.lists(), [], "not at once");
        assert_eq!(site.alarms(), [Alarm::Unsound { region: RegionId(2) }]);
        site.pass(REGION_POLL_MS);
        request = site.lists()[0].0;
    }
    site.list(&[&entry]);
    site.take(&[&entry]);
    assert_eq!(site.saved(), [(source(2, 0), 70)]);
}

/// One run has all keys and differs. Lists these in turn, and answers each fetch.
fn compare_with(site: &mut Site, ids: &[Id], answer: impl Fn(&mut Site, u64, Vec<Name>)) {
    let (request, range) = site.walks().pop().expect("a walk is asked for");
    site.out.clear();
    let runs = vec![(range, Sum { count: 1, hash: 1 })];
    site.step(Event::Walked { request, summed: Summed { runs, rest: None } });
    let mut chunks = ids.chunks(REGION_REQUEST_IDS_MAX).peekable();
    while let Some(ids) = chunks.next() {
        let (request, range) = site.lists().pop().expect("all of it is listed");
        site.out.retain(|effect| !matches!(effect, Effect::List { .. }));
        let next = chunks.peek().map(|ids| ids[0].name.place());
        let rest = next.map(|from| Range { from, to: range.to });
        site.answer_list(request, Listed { ids: ids.to_vec(), rest });
        answer_all(site, &answer);
    }
}

#[test]
fn a_comparison_passes_over_what_cannot_be_read_and_another_finds_it() {
    let mut site = Site::new(&[(2, 0)], 1 << 40);
    let count = REGION_STUCK_MAX + 4000;
    let all: Vec<_> = (1..=count as u64).map(|op| marker(2, 0, op, op)).collect();
    let ids = ids_of(&all.iter().collect::<Vec<_>>());
    let by_name: BTreeMap<Name, &Entry> = all.iter().map(|entry| (name(entry), entry)).collect();
    let of_first = ids[..REGION_STUCK_MAX + 1000].iter().map(|id| id.name.clone());
    let unreadable: BTreeSet<Name> = of_first.collect();
    let bring_but = |site: &mut Site, request, names: Vec<Name>, unreadable: &BTreeSet<Name>| {
        let (withheld, read): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| unreadable.contains(name));
        let entries = read.iter().map(|name| (name.clone(), Some(by_name[name].clone())));
        let entries: Vec<_> = entries.collect();
        let received_bytes = 100 * entries.len() as u64;
        site.answer(request, Fetched { entries, withheld, received_bytes, ..Fetched::default() });
        read.iter().for_each(|name| site.keep(by_name[name]));
    };
    site.void(&[(0, count as u64)]);
    compare_with(&mut site, &ids, |site, request, names| {
        bring_but(site, request, names, &unreadable);
    });
    assert_eq!(site.here.0.len(), 3000, "what can be read is here, though it is listed last");
    assert!(site.is_comparing(), "some were passed over");
    assert_eq!((site.walks(), site.saved()), (vec![], vec![]));
    // All can be read again.
    let bring = |site: &mut Site, request, names: Vec<Name>| {
        bring_but(site, request, names, &BTreeSet::new());
    };
    site.pass(REGION_HELD_MS);
    answer_all(&mut site, bring);
    assert_eq!(site.here.0.len(), REGION_STUCK_MAX + 3000, "what was held");
    compare_with(&mut site, &ids, bring);
    assert_eq!(site.here.0.len(), count, "what was passed over");
    assert_eq!(site.saved(), [(source(2, 0), count as u64)]);
    assert!(!site.is_comparing());
}

#[test]
fn a_comparison_without_capacity_still_receives_deletions() {
    let mut site = Site::new(&[(2, 0)], 1 << 40);
    let all: Vec<_> = (1..=REGION_STUCK_MAX as u64 + 1000).map(|op| marker(2, 0, op, op)).collect();
    let mut ids = ids_of(&all.iter().collect::<Vec<_>>());
    let deleted = ids.last_mut().expect("there are many");
    deleted.bytes = 0;
    let deleted = deleted.name.clone();
    let deletion = all.iter().find(|entry| name(entry) == deleted).expect("it is one of them");
    site.void(&[(0, 70_000)]);
    compare_with(&mut site, &ids, |site, request, names| {
        let (entries, untaken): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| *name == deleted);
        let entries: Vec<_> =
            entries.into_iter().map(|name| (name, Some(deletion.clone()))).collect();
        let has_come = !entries.is_empty();
        site.answer(request, Fetched { entries, untaken, ..Fetched::default() });
        if has_come {
            site.keep(deletion);
        }
    });
    assert!(site.here.0.contains_key(&deleted), "it is listed last");
}
