//! Changes that cannot be taken for long hold up no others.

use super::*;

/// Answers all fetches with this, until none is under way.
pub(super) fn answer_all(site: &mut Site, answer: impl Fn(&mut Site, u64, Vec<Name>)) {
    for _ in 0..1000 {
        let fetches = site.fetches();
        if fetches.is_empty() {
            return;
        }
        fetches.into_iter().for_each(|(_, request, names)| answer(site, request, names));
    }
    panic!("fetches do not end");
}

pub(super) fn cannot_take(site: &mut Site, request: u64, untaken: Vec<Name>) {
    site.answer(request, Fetched { untaken, ..Fetched::default() });
}

/// The token behind which ids are asked for, if they are.
pub(super) fn requested_behind(site: &mut Site) -> Option<u64> {
    site.out.iter().rev().find_map(|effect| match effect {
        Effect::Ask { pgs, .. } => Some(pgs[0].1.through.0),
        _ => None,
    })
}

#[test]
fn deletions_are_received_behind_changes_over_capacity() {
    let mut site = Site::new(&[(2, 0)], 1 << 40);
    let all: Vec<_> = (1..=REGION_STUCK_MAX as u64 + 4000).map(|op| marker(2, 0, op, op)).collect();
    let mut reported = 0;
    for batch in all.chunks(REGION_REQUEST_IDS_MAX) {
        assert_eq!(
            requested_behind(&mut site),
            Some(reported),
            "it is asked for all, though none can be taken"
        );
        let ids: Vec<_> = (reported + 1..).zip(batch).collect();
        site.tell(2, 0, &ids);
        reported += batch.len() as u64;
        answer_all(&mut site, cannot_take);
        assert_eq!(site.saved(), []);
        site.pass(REGION_POLL_MS);
    }
    assert_eq!(site.pull.lags()[&RegionId(2)].outcomes, reported, "what was passed over is behind");
    // A deletion is told last.
    let deletion = marker(2, 0, reported + 1, reported + 1);
    let (request, op) = (site.asked(2), OpSeq(reported + 1));
    let ids = vec![(op, deletion.id(name(&deletion)))];
    let batch = Batch { ids, token: Token { through: op }, last: op, left: (0, 0) };
    site.step(Event::Told { request, unnamed: BTreeMap::new(), pgs: vec![(PgId(0), Ok(batch))] });
    let (_, request, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&deletion)]);
    site.bring(request, &[&deletion]);
    site.keep(&deletion);
    assert_eq!(site.saved(), [], "what was told before is not here");

    // There is room again: what was held is taken, then what was passed over is told again.
    site.pass(REGION_HELD_MS);
    let by_name: BTreeMap<Name, &Entry> = all.iter().map(|entry| (name(entry), entry)).collect();
    let bring = |site: &mut Site, request, names: Vec<Name>| {
        let brought: Vec<_> = names.iter().filter_map(|name| by_name.get(name).copied()).collect();
        site.bring(request, &brought);
        brought.iter().for_each(|entry| site.keep(entry));
    };
    answer_all(&mut site, bring);
    let mut behind = REGION_STUCK_MAX as u64;
    let is_early =
        |it: &Effect| matches!(it, Effect::SaveToken { token, .. } if token.through.0 > behind);
    assert!(!site.out.iter().any(is_early), "not over what was passed over");
    while behind < reported + 1 {
        assert_eq!(requested_behind(&mut site), Some(behind), "from there on, all is told again");
        let rest = all[behind as usize..].iter().chain([&deletion]).take(REGION_REQUEST_IDS_MAX);
        let ids: Vec<_> = (behind + 1..).zip(rest).collect();
        site.tell(2, 0, &ids);
        behind += ids.len() as u64;
        answer_all(&mut site, bring);
        site.pass(REGION_POLL_MS);
    }
    assert_eq!(site.saved().last(), Some(&(source(2, 0), reported + 1)));
    assert!(site.pull.is_level());
}

/// Tells all of these in turn, and answers each fetch.
fn send_all(site: &mut Site, all: &[Entry], answer: impl Fn(&mut Site, u64, Vec<Name>)) {
    let mut reported = 0;
    for batch in all.chunks(REGION_REQUEST_IDS_MAX) {
        assert_eq!(requested_behind(site), Some(reported), "it is asked on");
        let ids: Vec<_> = (reported + 1..).zip(batch).collect();
        site.tell(2, 0, &ids);
        reported += batch.len() as u64;
        answer_all(site, &answer);
        site.pass(REGION_POLL_MS);
    }
}

/// A put and a deletion of other keys are told behind these, which stay as they are. Both are to be fetched.
fn others_pass(site: &mut Site, all: &[Entry], answer: impl Fn(&mut Site, u64, Vec<Name>)) {
    send_all(site, all, answer);
    let reported = all.len() as u64;
    let (put, deletion) = (marker(2, 0, reported + 1, 1), marker(2, 0, reported + 2, 2));
    let (request, last) = (site.asked(2), OpSeq(reported + 2));
    let ids = vec![(OpSeq(reported + 1), id(&put)), (last, deletion.id(name(&deletion)))];
    let batch = Batch { ids, token: Token { through: last }, last, left: (0, 0) };
    site.step(Event::Told { request, unnamed: BTreeMap::new(), pgs: vec![(PgId(0), Ok(batch))] });
    let (_, request, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&deletion), name(&put)], "a deletion may make room");
    site.bring(request, &[&deletion, &put]);
    site.keep(&put);
    site.keep(&deletion);
    assert_eq!(site.saved(), [], "the token stays before what is not here");
    assert_eq!(site.pull.lags()[&RegionId(2)].outcomes, reported, "what was passed over is behind");
}

#[test]
fn what_cannot_be_read_there_takes_no_room_of_others() {
    let mut site = Site::new(&[(2, 0)], 1 << 40);
    let all: Vec<_> =
        (1..=REGION_STUCK_MAX as u64 + 4000).map(|op| marker(2, 0, op, 10 + op)).collect();
    let withhold = |site: &mut Site, request, withheld| {
        site.answer(request, Fetched { withheld, ..Fetched::default() });
    };
    others_pass(&mut site, &all, withhold);
}

#[test]
fn clocks_ahead_take_no_room_of_others_and_all_is_taken_once_it_is_due() {
    const AHEAD_MS: u64 = 10 * REGION_CLOCK_AHEAD_MS_MAX;
    let mut site = Site::new(&[(2, 0)], 1 << 40);
    let ahead = |op| marker(2, 0, op, START_MS + AHEAD_MS + op);
    let all: Vec<_> = (1..=REGION_STUCK_MAX as u64 + 4000).map(ahead).collect();
    let none = |_: &mut Site, _: u64, names: Vec<Name>| panic!("these are not due: {names:?}");
    others_pass(&mut site, &all, none);
    site.now.wall_ms += AHEAD_MS;
    site.pass(REGION_HELD_MS);
    let by_name: BTreeMap<Name, &Entry> = all.iter().map(|entry| (name(entry), entry)).collect();
    let bring = |site: &mut Site, request, names: Vec<Name>| {
        let brought: Vec<_> = names.iter().map(|name| by_name[name]).collect();
        site.bring(request, &brought);
        brought.iter().for_each(|entry| site.keep(entry));
    };
    answer_all(&mut site, bring);
    // Those that were passed over are told again, behind the first of them.
    let mut behind = REGION_STUCK_MAX as u64;
    assert_eq!(site.saved().last(), Some(&(source(2, 0), behind)));
    site.pass(REGION_ANSWER_MS);
    site.pass(REGION_POLL_MS);
    for batch in all[behind as usize..].chunks(REGION_REQUEST_IDS_MAX) {
        assert_eq!(requested_behind(&mut site), Some(behind));
        let ids: Vec<_> = (behind + 1..).zip(batch).collect();
        site.tell(2, 0, &ids);
        behind += batch.len() as u64;
        answer_all(&mut site, bring);
        assert_eq!(site.saved().last(), Some(&(source(2, 0), behind)));
        site.pass(REGION_POLL_MS);
    }
}

/// Tells so many that stay withheld, and lets the time pass after which they are asked for again.
fn hold(site: &mut Site, count: u64) -> Vec<Entry> {
    let all: Vec<_> = (1..=count).map(|op| marker(2, 0, op, op)).collect();
    send_all(site, &all, |site, request, withheld| {
        site.answer(request, Fetched { withheld, ..Fetched::default() });
    });
    site.pass(REGION_HELD_MS);
    all
}

/// Tells these behind so many others.
fn tell_behind(site: &mut Site, reported: u64, these: &[Entry]) {
    let request = site.asked(2);
    let ids: Vec<_> = (reported + 1..).map(OpSeq).zip(these.iter().map(id)).collect();
    let last = OpSeq(reported + these.len() as u64);
    let batch = Batch { ids, token: Token { through: last }, last, left: (0, 0) };
    site.step(Event::Told { request, unnamed: BTreeMap::new(), pgs: vec![(PgId(0), Ok(batch))] });
}

/// Tells all of these that are asked for; returns the position behind which that is.
fn tell_rest(site: &mut Site, all: &[Entry]) -> u64 {
    let (request, behind) =
        (site.asked(2), requested_behind(site).expect("it is asked all the time"));
    site.effects();
    let ids: Vec<_> = (1..).map(OpSeq).zip(all.iter().map(id)).skip(behind as usize).collect();
    let last = OpSeq(all.len() as u64);
    let batch = Batch { ids, token: Token { through: last }, last, left: (0, 0) };
    site.step(Event::Told { request, unnamed: BTreeMap::new(), pgs: vec![(PgId(0), Ok(batch))] });
    behind
}

/// They are the oldest.
#[test]
fn what_is_stuck_takes_no_turns_of_others() {
    let mut site = Site::new(&[(2, 0)], 1 << 40);
    let stuck = REGION_STUCK_MAX as u64;
    hold(&mut site, stuck);
    let again = site.fetches();
    assert_eq!(again.len(), 1, "one request asks for what is stuck: {}", again.len());
    let put = marker(2, 0, stuck + 1, stuck + 1);
    tell_behind(&mut site, stuck, std::slice::from_ref(&put));
    assert_eq!(site.fetches().remove(0).2, [name(&put)]);
}

#[test]
fn what_is_stuck_has_a_turn_while_others_wait() {
    let mut site = Site::new(&[(2, 0)], 1 << 40);
    let unreadable = marker(2, 0, 1, 1);
    site.tell(2, 0, &[(1, &unreadable)]);
    let (_, request, _) = site.fetches().remove(0);
    site.withhold(request, &name(&unreadable));
    let (count, mut under_way) = (8 * REGION_REQUEST_IDS_MAX as u64, Vec::new());
    let puts: Vec<_> = (2..=count + 1).map(|op| marker(2, 0, op, op)).collect();
    for (at, puts) in puts.chunks(REGION_REQUEST_IDS_MAX).enumerate() {
        site.pass(REGION_POLL_MS);
        tell_behind(&mut site, 1 + (at * REGION_REQUEST_IDS_MAX) as u64, puts);
        under_way.extend(site.fetches());
    }
    assert_eq!(under_way.len(), REGION_FETCHES_MAX);
    site.pass(REGION_HELD_MS);
    let is_stuck = |names: &[Name]| names.contains(&name(&unreadable));
    let mut others = 0;
    while !under_way.iter().any(|(_, _, names)| is_stuck(names)) {
        let (_, request, names) = under_way.remove(0);
        let entries = names.into_iter().map(|name| (name, None)).collect();
        site.answer(request, Fetched { entries, ..Fetched::default() });
        under_way.extend(site.fetches());
        others += 1;
        assert!(others <= REGION_STUCK_TURN, "it has a turn");
    }
    assert!(others * REGION_FETCH_IDS_MAX < puts.len(), "others wait still");
}

#[test]
fn the_longer_something_is_stuck_the_more_seldom_it_is_asked_for() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let unreadable = marker(2, 0, 1, 10);
    site.tell(2, 0, &[(1, &unreadable)]);
    let mut pause_ms = REGION_HELD_MS;
    for _ in 0..8 {
        let (_, request, _) = site.fetches().remove(0);
        site.withhold(request, &name(&unreadable));
        site.rest(pause_ms - 1);
        assert_eq!(site.fetches(), [], "not before {pause_ms} ms");
        site.pass(1);
        pause_ms = (2 * pause_ms).min(REGION_HELD_MS_MAX);
    }
    assert_eq!(pause_ms, REGION_HELD_MS_MAX);
}

/// More than half of the places are taken for good.
#[test]
fn what_was_passed_over_is_found_again_though_most_stays_stuck() {
    let bounds = Bounds { stuck: 16, ..Bounds::default() };
    let mut site = Site::bounded(bounds, &[(2, 0)], 1 << 40);
    let all: Vec<_> = (1..=20).map(|op| marker(2, 0, op, op)).collect();
    let (unreadable, later) = all.split_at(9);
    let unreadable: BTreeSet<Name> = unreadable.iter().map(name).collect();
    send_all(&mut site, &all, |site, request, names| {
        let (withheld, untaken) = names.into_iter().partition(|name| unreadable.contains(name));
        site.answer(request, Fetched { withheld, untaken, ..Fetched::default() });
    });
    // There is room again.
    let mut left: BTreeSet<Name> = later.iter().map(name).collect();
    for _ in 0..2 * REGION_BACK_MS_MAX / REGION_POLL_MS {
        site.pass(REGION_POLL_MS);
        answer_all(&mut site, |site, request, names| {
            let (withheld, read): (Vec<_>, Vec<_>) =
                names.into_iter().partition(|name| unreadable.contains(name));
            let read: Vec<_> = all.iter().filter(|it| read.contains(&name(it))).collect();
            let entries = read.iter().map(|it| (name(it), Some((*it).clone()))).collect();
            site.answer(request, Fetched { entries, withheld, ..Fetched::default() });
            read.iter().for_each(|entry| site.keep(entry));
        });
        left.retain(|name| !site.here.0.contains_key(name));
        if left.is_empty() {
            break;
        }
        tell_rest(&mut site, &all);
    }
    assert_eq!(left, BTreeSet::new(), "these could be taken");
    assert!(site.now.steady_ms < UPTIME_MS + REGION_BACK_MS_MAX);
    assert_eq!(site.pull.lags()[&RegionId(2)].outcomes, 9);
}

/// While all stays as it is, all is told again at most once in the longest pause.
#[test]
fn nothing_is_told_again_without_end() {
    let bounds = Bounds { stuck: 4, ..Bounds::default() };
    let mut site = Site::bounded(bounds, &[(2, 0)], 1 << 40);
    let all: Vec<_> = (1..=8).map(|op| marker(2, 0, op, op)).collect();
    let withhold = |site: &mut Site, request, withheld| {
        site.answer(request, Fetched { withheld, ..Fetched::default() });
    };
    send_all(&mut site, &all, withhold);
    let mut again = Vec::new();
    let begun_ms = site.now.steady_ms;
    while site.now.steady_ms < begun_ms + 6 * REGION_BACK_MS_MAX {
        site.pass(10 * REGION_POLL_MS);
        answer_all(&mut site, withhold);
        if tell_rest(&mut site, &all) < 8 {
            again.push(site.now.steady_ms);
        }
    }
    let pauses: Vec<_> = again.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.is_sorted() && pauses.len() > 6, "{pauses:?}");
    assert!(pauses.last().is_some_and(|last| *last >= REGION_BACK_MS_MAX), "{pauses:?}");
}

/// The region was put back from a copy, and gives positions anew. One of them is claimed still.
#[test]
fn a_journal_that_tells_something_else_at_a_position_has_lost_changes() {
    let bounds = Bounds { stuck: 1, ..Bounds::default() };
    let mut site = Site::bounded(bounds, &[(2, 0)], 1 << 40);
    let all: Vec<_> = (1..=3).map(|op| marker(2, 0, op, op)).collect();
    tell_behind(&mut site, 0, &all);
    let (_, request, mut withheld) = site.fetches().remove(0);
    withheld.pop();
    site.answer(request, Fetched { withheld, ..Fetched::default() });
    let (_, request, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&all[2])], "it is on its way");
    site.pass(REGION_POLL_MS);
    while requested_behind(&mut site) == Some(3) {
        site.step(Event::Coming { request });
        tell_rest(&mut site, &all);
        site.pass(REGION_HELD_MS);
    }
    assert_eq!(requested_behind(&mut site), Some(1), "the second was passed over");
    let anew = marker(2, 0, 3, 50);
    tell_behind(&mut site, 1, &[all[1].clone(), anew]);
    let resume = Token { through: OpSeq(3) };
    let void = Void { why: VoidReason::Ahead, resume };
    assert!(site.alarms().contains(&Alarm::Void { source: source(2, 0), void }));
    assert!(site.pull.lags()[&RegionId(2)].is_comparing, "all keys tell what is new");
}
