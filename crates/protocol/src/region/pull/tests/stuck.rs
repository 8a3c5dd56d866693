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
fn asked_behind(site: &mut Site) -> Option<u64> {
    site.out.iter().rev().find_map(|effect| match effect {
        Effect::Ask { pgs, .. } => Some(pgs[0].1.through.0),
        _ => None,
    })
}

#[test]
fn deletions_are_heard_behind_changes_for_which_there_is_no_room() {
    let mut site = Site::new(&[(2, 0)], 1 << 40);
    let all: Vec<_> = (1..=REGION_STUCK_MAX as u64 + 4000).map(|op| marker(2, 0, op, op)).collect();
    let mut told = 0;
    for batch in all.chunks(REGION_ASK_IDS_MAX) {
        assert_eq!(
            asked_behind(&mut site),
            Some(told),
            "it is asked for all, though none can be taken"
        );
        let ids: Vec<_> = (told + 1..).zip(batch).collect();
        site.tell(2, 0, &ids);
        told += batch.len() as u64;
        answer_all(&mut site, cannot_take);
        assert_eq!(site.saved(), []);
        site.pass(REGION_POLL_MS);
    }
    assert_eq!(site.pull.lags()[&RegionId(2)].outcomes, told, "what was passed over is behind");
    // A deletion is told last.
    let deletion = marker(2, 0, told + 1, told + 1);
    let (request, op) = (site.asked(2), OpSeq(told + 1));
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
    // The request from before that tells nothing new.
    let (request, token) = (site.asked(2), Token { through: op });
    let first = site.saved().last().map(|(_, through)| *through).expect("the token has moved");
    let batch = Batch { ids: Vec::new(), token, last: op, left: (0, 0) };
    site.step(Event::Told { request, unnamed: BTreeMap::new(), pgs: vec![(PgId(0), Ok(batch))] });
    assert!(first < all.len() as u64, "not over what was passed over");
    let mut behind = first;
    while behind < told + 1 {
        site.pass(REGION_POLL_MS);
        assert_eq!(asked_behind(&mut site), Some(behind), "from there on, all is told again");
        let rest = all[behind as usize..].iter().chain([&deletion]).take(REGION_ASK_IDS_MAX);
        let ids: Vec<_> = (behind + 1..).zip(rest).collect();
        site.tell(2, 0, &ids);
        behind += ids.len() as u64;
        answer_all(&mut site, bring);
    }
    assert_eq!(site.saved().last(), Some(&(source(2, 0), told + 1)));
    assert!(site.pull.is_level());
}

/// Tells all of these in turn, and answers each fetch.
fn tell_all(site: &mut Site, all: &[Entry], answer: impl Fn(&mut Site, u64, Vec<Name>)) {
    let mut told = 0;
    for batch in all.chunks(REGION_ASK_IDS_MAX) {
        assert_eq!(asked_behind(site), Some(told), "it is asked on");
        let ids: Vec<_> = (told + 1..).zip(batch).collect();
        site.tell(2, 0, &ids);
        told += batch.len() as u64;
        answer_all(site, &answer);
        site.pass(REGION_POLL_MS);
    }
}

/// A put and a deletion of other keys are told behind these, which stay as they are. Both are to be fetched.
fn others_pass(site: &mut Site, all: &[Entry], answer: impl Fn(&mut Site, u64, Vec<Name>)) {
    tell_all(site, all, answer);
    let told = all.len() as u64;
    let (put, deletion) = (marker(2, 0, told + 1, 1), marker(2, 0, told + 2, 2));
    let (request, last) = (site.asked(2), OpSeq(told + 2));
    let ids = vec![(OpSeq(told + 1), id(&put)), (last, deletion.id(name(&deletion)))];
    let batch = Batch { ids, token: Token { through: last }, last, left: (0, 0) };
    site.step(Event::Told { request, unnamed: BTreeMap::new(), pgs: vec![(PgId(0), Ok(batch))] });
    let (_, request, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&deletion), name(&put)], "a deletion may make room");
    site.bring(request, &[&deletion, &put]);
    site.keep(&put);
    site.keep(&deletion);
    assert_eq!(site.saved(), [], "the token stays before what is not here");
    assert_eq!(site.pull.lags()[&RegionId(2)].outcomes, told, "what was passed over is behind");
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
    for batch in all[behind as usize..].chunks(REGION_ASK_IDS_MAX) {
        assert_eq!(asked_behind(&mut site), Some(behind));
        let ids: Vec<_> = (behind + 1..).zip(batch).collect();
        site.tell(2, 0, &ids);
        behind += batch.len() as u64;
        answer_all(&mut site, bring);
        assert_eq!(site.saved().last(), Some(&(source(2, 0), behind)));
        site.pass(REGION_POLL_MS);
    }
}

/// Region 2 tells of op 1, which has no bucket here if it is unnamed, of op 2, and of those behind.
fn tell_unnamed(site: &mut Site, first: Option<&Entry>, second: &Entry) {
    let request = site.asked(2);
    let ids = first.into_iter().map(|first| (OpSeq(1), id(first)));
    let ids = ids.chain([(OpSeq(2), id(second))]).collect();
    let batch = Batch { ids, token: Token { through: OpSeq(2) }, last: OpSeq(2), left: (0, 0) };
    let skipped = Skipped { first: OpSeq(1), count: 1, bytes: 100 };
    let unnamed = first.is_none().then_some((PgId(0), skipped)).into_iter().collect();
    site.step(Event::Told { request, pgs: vec![(PgId(0), Ok(batch))], unnamed });
}

#[test]
fn what_has_no_bucket_here_yet_is_passed_over_and_told_again() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let (first, second) = (marker(2, 0, 1, 10), marker(2, 0, 2, 20));
    tell_unnamed(&mut site, None, &second);
    let (_, request, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&second)]);
    site.bring(request, &[&second]);
    site.keep(&second);
    assert_eq!(site.saved(), [], "the token stays before what has no bucket");
    assert_eq!(site.pull.lags()[&RegionId(2)].outcomes, 1, "it is behind");
    // The longer its bucket cannot be made the more seldom all is told again.
    let mut pause_ms = REGION_POLL_MS;
    while pause_ms < REGION_BACK_MS_MAX {
        site.pass(pause_ms);
        assert_eq!(asked_behind(&mut site), Some(0), "from there on");
        tell_unnamed(&mut site, None, &second);
        assert_eq!(site.fetches(), [], "the other is here");
        pause_ms = (2 * pause_ms).min(REGION_BACK_MS_MAX);
        site.effects();
        site.pass(REGION_POLL_MS);
        assert_eq!(asked_behind(&mut site), Some(2), "not at once again");
        let request = site.asked(2);
        site.step(Event::Unanswered { request });
    }
    site.pass(pause_ms);
    tell_unnamed(&mut site, Some(&first), &second);
    let (_, request, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&first)]);
    site.bring(request, &[&first]);
    site.keep(&first);
    assert_eq!(site.saved(), [(source(2, 0), 2)]);
    assert!(site.pull.is_level());
}

#[test]
fn what_has_no_bucket_lies_where_its_batch_does() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    for first in [0, 8] {
        let (request, token) = (site.asked(2), Token { through: OpSeq(7) });
        let batch = Batch { ids: Vec::new(), token, last: OpSeq(7), left: (0, 0) };
        let skipped = Skipped { first: OpSeq(first), count: 1, bytes: 100 };
        let unnamed = BTreeMap::from([(PgId(0), skipped)]);
        site.step(Event::Told { request, pgs: vec![(PgId(0), Ok(batch))], unnamed });
        assert_eq!(site.alarms(), [Alarm::Unsound { region: RegionId(2) }]);
        site.pass(REGION_POLL_MS);
    }
}
