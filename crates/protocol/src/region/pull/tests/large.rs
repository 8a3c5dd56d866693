//! Entries of many bytes, which come in parts that others pass.

use super::*;

/// A large entry, with the id by which it is told.
fn large(op: u64, ms: u64, bytes: u64) -> (Entry, Id) {
    let entry = marker(2, 0, op, ms);
    let id = Id { bytes, ..id(&entry) };
    (entry, id)
}

/// Tells of entries by these ids.
fn tell_of(site: &mut Site, ids: &[&Id]) {
    let request = site.asked(2);
    let ids: Vec<_> = (1..).map(OpSeq).zip(ids.iter().copied().cloned()).collect();
    let last = ids.last().map_or(OpSeq(0), |(op, _)| *op);
    let batch = Batch { ids, token: Token { through: last }, last, left: (0, 0) };
    site.step(Event::Told { request, unnamed: BTreeMap::new(), pgs: vec![(PgId(0), Ok(batch))] });
}

/// The parts that are asked for since the last look: requests, entries, and most bytes.
fn parts(site: &mut Site) -> Vec<(u64, Name, u64)> {
    let parts = site.out.extract_if(.., |effect| matches!(effect, Effect::FetchPart { .. }));
    let parts = parts.filter_map(|effect| match effect {
        Effect::FetchPart { request, name, bytes_max, .. } => Some((request, name, bytes_max)),
        _ => None,
    });
    parts.collect()
}

/// A part has come, which is not the last.
fn part(received_bytes: u64) -> Fetched {
    Fetched { received_bytes, ..Fetched::default() }
}

#[test]
fn an_entry_of_many_bytes_comes_in_parts_and_others_pass_it() {
    let mut site = Site::new(&[(2, 0)], PART_BYTES);
    let all: Vec<_> = (1..=5).map(|op| large(op, op, 10 * PART_BYTES)).collect();
    let small = marker(2, 0, 9, 99);
    let mut ids: Vec<_> = all.iter().map(|(_, id)| id).collect();
    let last = id(&small);
    ids.push(&last);
    tell_of(&mut site, &ids);
    assert_eq!(site.pull.oldest()[&RegionId(2)].1, &name(&all[0].0));
    let first = parts(&mut site);
    assert_eq!(first.len(), 1, "the budget of a second is used up: {first:?}");
    assert_eq!(first[0].1, name(&all[0].0), "the oldest first");
    assert_eq!(first[0].2, PART_BYTES, "as much as a second has");
    site.pass(1000);
    let (_, _, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&small)], "the newest passes four that are older");
    (0..5).for_each(|_| site.pass(1000));
    assert_eq!(parts(&mut site).len(), 2, "of all requests one is for others");
    let (request, of, _) = first[0].clone();
    site.answer(request, part(PART_BYTES));
    site.pass(1000);
    let again = parts(&mut site);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].1, of, "the oldest goes on");
    let done = vec![(of, Some(all[0].0.clone()))];
    site.answer(again[0].0, Fetched { entries: done, ..part(PART_BYTES) });
    site.keep(&all[0].0);
    site.pass(1000);
    assert_eq!(parts(&mut site)[0].1, name(&all[3].0), "then the next");
    assert_eq!(site.saved(), [(source(2, 0), 1)]);
}

#[test]
fn a_part_resumes_at_any_region_that_sent_the_entry() {
    let mut site = Site::new(&[(2, 0), (3, 0)], 4 * PART_BYTES);
    let (entry, reported) = large(1, 1, 100 * PART_BYTES);
    tell_of(&mut site, &[&reported]);
    let (request, of, bytes_max) = parts(&mut site).remove(0);
    assert_eq!(bytes_max, 4 * PART_BYTES, "a part is no larger");
    let ids = vec![(OpSeq(1), reported)];
    let batch = Batch { ids, token: Token { through: OpSeq(1) }, last: OpSeq(1), left: (0, 0) };
    let asked = site.asked(3);
    site.step(Event::Told {
        request: asked,
        unnamed: BTreeMap::new(),
        pgs: vec![(PgId(0), Ok(batch))],
    });
    assert_eq!(parts(&mut site), [], "one request is under way for it");
    // Region 2 is not reached any more.
    site.answer(request, part(0));
    let (request, again, _) = parts(&mut site).remove(0);
    assert_eq!(again, of);
    let done = vec![(of, Some(entry.clone()))];
    site.answer(request, Fetched { entries: done, ..part(5) });
    site.keep(&entry);
    assert_eq!(site.saved(), [(source(2, 0), 1), (source(3, 0), 1)]);
}

#[test]
fn only_what_came_is_charged() {
    // Ten seconds' worth is told, and hardly anything comes before the answer breaks off.
    let mut site = Site::new(&[(2, 0)], 1_000);
    let (broken, reported) = large(1, 1, 10_000);
    let other = marker(2, 0, 2, 2);
    tell_of(&mut site, &[&reported, &id(&other)]);
    let (_, request, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&broken)]);
    let untaken = vec![name(&broken)];
    site.answer(request, Fetched { untaken, ..part(10) });
    let (_, _, names) = site.fetches().remove(0);
    assert_eq!(names, [name(&other)], "no time has passed");
}

#[test]
fn what_does_not_come_at_all_is_asked_for_a_little_later() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let version = marker(2, 0, 1, 10);
    site.tell(2, 0, &[(1, &version)]);
    let (_, request, _) = site.fetches().remove(0);
    site.answer(request, part(0));
    assert_eq!(site.fetches(), [], "the region is left alone for a moment");
    site.pass(REGION_POLL_MS);
    assert_eq!(site.fetches().len(), 1);
}
