//! A store without room looks for deletions behind what it cannot take.

use super::*;
use crate::limits::REGION_ASK_IDS_MAX;

/// Answers all fetches with this, until none is under way.
fn answer_all(site: &mut Site, answer: impl Fn(&mut Site, u64, Vec<Name>)) {
    for _ in 0..1000 {
        let fetches = site.fetches();
        if fetches.is_empty() {
            return;
        }
        fetches.into_iter().for_each(|(_, request, names)| answer(site, request, names));
    }
    panic!("fetches do not end");
}

fn cannot_take(site: &mut Site, request: u64, untaken: Vec<Name>) {
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
    let all: Vec<_> =
        (1..=REGION_CLAIMS_MAX as u64 + 4000).map(|op| marker(2, 0, op, op)).collect();
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
    site.step(Event::Told { request, pgs: vec![(PgId(0), Ok(batch))] });
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
    site.step(Event::Told { request, pgs: vec![(PgId(0), Ok(batch))] });
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
