//! Changes of buckets that are not known here, for a while or for good, hold up no others.

use super::super::super::compare::{Listed, Summed};
use super::stuck::requested_behind;
use super::*;

/// A bucket of region 2 that is not known here.
const THERE: BucketId = BucketId(70);

/// Its id here, once it is known. That is the one of all entries in these tests.
const HERE: BucketId = BucketId(1);

/// An entry's id as region 2 tells it, of this bucket.
fn id_there(entry: &Entry, bucket: BucketId) -> Id {
    let mut id = id(entry);
    id.name.bucket = bucket;
    id
}

/// Region 2 tells of these, the second ones of buckets that are not known.
fn tell_some(site: &mut Site, named: &[(u64, &Entry)], unnamed: &[(u64, &Entry, BucketId)]) {
    let request = site.asked(2);
    let ids: Vec<_> = named.iter().map(|(op, entry)| (OpSeq(*op), id(entry))).collect();
    let unnamed = unnamed.iter().map(|(op, it, bucket)| (OpSeq(*op), id_there(it, *bucket)));
    let unnamed: Vec<_> = unnamed.collect();
    let last = ids.iter().chain(&unnamed).map(|(op, _)| *op).max().expect("some are told");
    let batch = Batch { ids, token: Token { through: last }, last, left: (0, 0) };
    let unnamed = BTreeMap::from([(PgId(0), unnamed)]);
    site.step(Event::Told { request, pgs: vec![(PgId(0), Ok(batch))], unnamed });
}

/// Region 2 tells nothing new.
fn tell_nothing(site: &mut Site) {
    let (request, through) = (site.asked(2), OpSeq(requested_behind(site).expect("it is asked")));
    let batch = Batch { ids: vec![], token: Token { through }, last: through, left: (0, 0) };
    site.out.retain(|effect| !matches!(effect, Effect::Ask { .. }));
    site.step(Event::Told { request, pgs: vec![(PgId(0), Ok(batch))], unnamed: BTreeMap::new() });
}

/// The looks for buckets since the last look: requests and buckets.
fn looks(site: &mut Site) -> Vec<(u64, Vec<BucketId>)> {
    let looks = site.out.extract_if(.., |effect| matches!(effect, Effect::FindBuckets { .. }));
    let looks = looks.filter_map(|effect| match effect {
        Effect::FindBuckets { request, buckets, .. } => Some((request, buckets)),
        _ => None,
    });
    looks.collect()
}

fn find(site: &mut Site, request: u64, found: &[(BucketId, LocalBucket)]) {
    let event = Event::FoundBuckets { request, found: found.iter().copied().collect() };
    site.step(event);
}

/// Finds this bucket at the next look for it.
fn find_at_last(site: &mut Site, bucket: BucketId, found: LocalBucket) {
    for _ in 0..=REGION_BACK_MS_MAX / REGION_POLL_MS {
        site.pass(REGION_POLL_MS);
        for (request, buckets) in looks(site) {
            let is_it = buckets.contains(&bucket);
            let all = [(bucket, found)];
            find(site, request, &all[..usize::from(is_it)]);
            if is_it {
                return;
            }
        }
    }
    panic!("{bucket:?} is not looked for");
}

fn bring_all(site: &mut Site, all: &[&Entry]) {
    for (_, request, names) in site.fetches() {
        let brought: Vec<_> = all.iter().copied().filter(|it| names.contains(&name(it))).collect();
        assert_eq!(brought.len(), names.len(), "these alone are wanted");
        site.bring(request, &brought);
        brought.iter().for_each(|entry| site.keep(entry));
    }
}

#[test]
fn what_has_no_bucket_here_is_kept_and_taken_once_it_has() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let (first, second) = (marker(2, 0, 1, 10), marker(2, 0, 2, 20));
    tell_some(&mut site, &[(2, &second)], &[(1, &first, THERE)]);
    bring_all(&mut site, &[&second]);
    assert_eq!(site.saved(), [], "the token stays before what has no bucket");
    assert_eq!(site.pull.lags()[&RegionId(2)].outcomes, 1, "it is behind");
    // The longer its bucket cannot be made the more seldom it is looked for. Nothing is told again.
    let mut pause_ms = REGION_POLL_MS;
    site.pass(REGION_POLL_MS);
    while pause_ms < REGION_BACK_MS_MAX {
        let (request, buckets) = looks(&mut site).remove(0);
        assert_eq!(buckets, [THERE]);
        find(&mut site, request, &[]);
        pause_ms = (2 * pause_ms).min(REGION_BACK_MS_MAX);
        site.rest(pause_ms - 1);
        assert_eq!(looks(&mut site), [], "not before {pause_ms} ms");
        assert_eq!(requested_behind(&mut site), Some(2));
        site.pass(1);
    }
    let (request, _) = looks(&mut site).remove(0);
    find(&mut site, request, &[(THERE, LocalBucket::Shared(HERE))]);
    bring_all(&mut site, &[&first]);
    assert_eq!(site.saved(), [(source(2, 0), 2)]);
    assert!(site.pull.is_level());
}

#[test]
fn an_entry_is_looked_up_by_the_id_that_its_bucket_has_here() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let first = marker(2, 0, 1, 10);
    tell_some(&mut site, &[], &[(1, &first, THERE)]);
    assert!(!site.pull.is_aware_of(&id_there(&first, THERE).name));
    site.pass(REGION_POLL_MS);
    let (request, _) = looks(&mut site).remove(0);
    let found = BTreeMap::from([(THERE, LocalBucket::Shared(HERE))]);
    let event = Event::FoundBuckets { request, found };
    assert_eq!(site.pull.lookups(site.now, &event).names, BTreeSet::from([name(&first)]));
    site.here.0.insert(name(&first), first.clone());
    site.step(event);
    assert_eq!(site.saved(), [(source(2, 0), 1)], "it is here already");
}

/// The pause of a bucket that cannot be made is the longest.
#[test]
fn a_new_bucket_does_not_wait_for_one_that_cannot_be_made() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let (first, second) = (marker(2, 0, 1, 10), marker(2, 0, 2, 20));
    tell_some(&mut site, &[], &[(1, &first, THERE)]);
    for _ in 0..20 {
        site.rest(REGION_BACK_MS_MAX);
        let (request, _) = looks(&mut site).remove(0);
        find(&mut site, request, &[]);
    }
    tell_some(&mut site, &[], &[(2, &second, BucketId(71))]);
    site.pass(REGION_POLL_MS);
    let (request, buckets) = looks(&mut site).remove(0);
    assert_eq!(buckets, [BucketId(71)]);
    find(&mut site, request, &[(BucketId(71), LocalBucket::Shared(HERE))]);
    bring_all(&mut site, &[&second]);
}

#[test]
fn a_region_that_does_not_answer_is_asked_for_its_buckets_again() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    tell_some(&mut site, &[], &[(1, &marker(2, 0, 1, 10), THERE)]);
    for _ in 0..20 {
        site.pass(REGION_POLL_MS);
        let (request, _) = looks(&mut site).remove(0);
        site.step(Event::Unanswered { request });
    }
}

#[test]
fn what_a_region_has_under_the_name_of_a_local_bucket_is_not_taken() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    tell_some(&mut site, &[], &[(1, &marker(2, 0, 1, 10), THERE)]);
    find_at_last(&mut site, THERE, LocalBucket::Local);
    assert_eq!(site.fetches(), []);
    assert_eq!(site.saved(), [(source(2, 0), 1)]);
}

/// Its region may have deleted it, or be about to: its journal says which.
#[test]
fn what_a_region_names_no_more_is_told_again() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let (first, second) = (marker(2, 0, 1, 10), marker(2, 0, 2, 20));
    tell_some(&mut site, &[(2, &second)], &[(1, &first, THERE)]);
    bring_all(&mut site, &[&second]);
    find_at_last(&mut site, THERE, LocalBucket::Gone);
    tell_nothing(&mut site);
    site.pass(REGION_POLL_MS);
    assert_eq!(requested_behind(&mut site), Some(0), "from there on");
    assert_eq!(site.saved(), []);
    site.pass(REGION_ANSWER_MS);
    site.pass(REGION_POLL_MS);
    site.tell(2, 0, &[(2, &second)]);
    assert_eq!(site.saved(), [(source(2, 0), 2)]);
    assert!(site.pull.is_level());
}

#[test]
fn what_is_beyond_the_bounds_is_told_again_only_once_its_bucket_is_known() {
    let bounds = Bounds { unnamed: 6, unnamed_of_bucket: 4, ..Bounds::default() };
    let mut site = Site::bounded(bounds, &[(2, 0)], 1 << 20);
    let all: Vec<_> = (1..=10).map(|op| marker(2, 0, op, op)).collect();
    // Six of the first bucket, of which two are beyond its bound. Then three of the second, of which one is beyond that of all.
    let bucket = |op| if op <= 6 { THERE } else { BucketId(71) };
    let unnamed: Vec<_> = (1..).zip(&all[..9]).map(|(op, it)| (op, it, bucket(op))).collect();
    tell_some(&mut site, &[(10, &all[9])], &unnamed);
    bring_all(&mut site, &[&all[9]]);
    assert_eq!(site.pull.lags()[&RegionId(2)].outcomes, 9);
    for _ in 0..100 {
        site.rest(REGION_BACK_MS_MAX);
        let looks = looks(&mut site);
        looks.into_iter().for_each(|(request, _)| find(&mut site, request, &[]));
        assert_eq!(requested_behind(&mut site), Some(10), "nothing is told again");
        tell_nothing(&mut site);
    }
    find_at_last(&mut site, THERE, LocalBucket::Shared(HERE));
    bring_all(&mut site, &all[..4].iter().collect::<Vec<_>>());
    assert_eq!(site.saved().last(), Some(&(source(2, 0), 4)));
    site.pass(REGION_ANSWER_MS);
    site.pass(REGION_POLL_MS);
    assert_eq!(requested_behind(&mut site), Some(4), "from the first that was passed over");
    let named: Vec<_> = [5, 6, 10].map(|op: usize| (op as u64, &all[op - 1])).to_vec();
    tell_some(&mut site, &named, &unnamed[6..]);
    bring_all(&mut site, &[&all[4], &all[5]]);
    find_at_last(&mut site, BucketId(71), LocalBucket::Shared(HERE));
    bring_all(&mut site, &all[6..9].iter().collect::<Vec<_>>());
    assert_eq!(site.saved().last(), Some(&(source(2, 0), 10)));
    assert!(site.pull.is_level());
}

/// More buckets than have places: nobody looks for the others.
#[test]
fn changes_of_a_bucket_without_a_place_are_told_again_by_time() {
    let bounds = Bounds { unnamed: 1, unnamed_of_bucket: 1, ..Bounds::default() };
    let mut site = Site::bounded(bounds, &[(2, 0)], 1 << 20);
    let (first, second) = (marker(2, 0, 1, 10), marker(2, 0, 2, 20));
    tell_some(&mut site, &[], &[(1, &first, THERE), (2, &second, BucketId(71))]);
    tell_nothing_until(&mut site, 1);
    tell_some(&mut site, &[(2, &second)], &[]);
    bring_all(&mut site, &[&second]);
    find_at_last(&mut site, THERE, LocalBucket::Shared(HERE));
    bring_all(&mut site, &[&first]);
    assert_eq!(site.saved().last(), Some(&(source(2, 0), 2)));
}

/// Nothing new is told until ids are asked for behind this op.
fn tell_nothing_until(site: &mut Site, behind: u64) {
    for _ in 0..REGION_BACK_MS_MAX / REGION_POLL_MS {
        site.pass(REGION_POLL_MS);
        if requested_behind(site) == Some(behind) {
            return;
        }
        tell_nothing(site);
    }
    panic!("it is not asked behind {behind}");
}

#[test]
fn what_has_no_bucket_lies_where_its_batch_does() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let (first, second) = (marker(2, 0, 1, 10), marker(2, 0, 2, 20));
    let there = |op, entry| (OpSeq(op), id_there(entry, THERE));
    let answers = [
        vec![there(0, &first)],
        vec![there(8, &first)],
        vec![there(5, &first), there(4, &second)],
        vec![there(7, &first)],
    ];
    for unnamed in answers {
        let request = site.asked(2);
        let (ids, last) = (vec![(OpSeq(7), id(&second))], OpSeq(7));
        let batch = Batch { ids, token: Token { through: last }, last, left: (0, 0) };
        let unnamed = BTreeMap::from([(PgId(0), unnamed)]);
        site.step(Event::Told { request, pgs: vec![(PgId(0), Ok(batch))], unnamed });
        assert_eq!(site.alarms(), [Alarm::Unsound { region: RegionId(2) }]);
        site.pass(REGION_POLL_MS);
    }
}

/// A journal has forgotten where its token is, as something has no bucket here.
#[test]
fn a_comparison_passes_by_a_bucket_that_cannot_be_made() {
    let mut site = Site::new(&[(2, 0)], 1 << 20);
    let (first, second) = (marker(2, 0, 1, 10), marker(2, 0, 2, 20));
    tell_some(&mut site, &[], &[(1, &first, THERE)]);
    site.pass(REGION_POLL_MS);
    site.void(&[(0, 70_000)]);
    let (walk, _) = site.walks().pop().expect("a walk is asked for");
    site.out.clear();
    let middle = name(&second).place();
    let (one, two) =
        (Range { from: vec![], to: Some(middle.clone()) }, Range { from: middle, to: None });
    let sum = Sum { count: 1, hash: 1 };
    let runs = vec![(one, sum), (two, sum)];
    site.step(Event::Walked { request: walk, summed: Summed { runs, rest: None } });
    let (request, _) = site.lists().pop().expect("the first run is listed");
    site.out.clear();
    let unnamed = vec![(PgId(0), id_there(&first, THERE))];
    let listed = Listed { ids: vec![], rest: None };
    site.step(Event::Listed { request, listed, groups: vec![], unnamed });
    let (request, _) = site.lists().pop().expect("so is the second");
    site.answer_list(request, Listed { ids: vec![id(&second)], rest: None });
    bring_all(&mut site, &[&second]);
    assert_eq!(site.saved(), [], "the token stays before what is not here");
    site.pass(REGION_POLL_MS);
    assert_eq!(requested_behind(&mut site), Some(70_000), "the journal is followed");
    let third = marker(2, 0, 70_001, 30);
    site.tell(2, 0, &[(70_001, &third)]);
    bring_all(&mut site, &[&third]);
    assert_eq!(site.saved(), []);
    find_at_last(&mut site, THERE, LocalBucket::Shared(HERE));
    bring_all(&mut site, &[&first]);
    assert_eq!(site.saved(), [(source(2, 0), 70_001)]);
    assert!(site.pull.is_level());
}

#[test]
fn another_comparison_finds_what_was_beyond_the_bounds_once_its_bucket_is_known() {
    let bounds = Bounds { unnamed: 2, unnamed_of_bucket: 1, ..Bounds::default() };
    let mut site = Site::bounded(bounds, &[(2, 0)], 1 << 20);
    let all = [marker(2, 0, 1, 10), marker(2, 0, 2, 20)];
    let all: Vec<&Entry> = all.iter().collect();
    site.void(&[(0, 70)]);
    site.walk(&all);
    let (request, _) = site.lists().pop().expect("all is listed");
    let unnamed = all.iter().map(|it| (PgId(0), id_there(it, THERE))).collect();
    let listed = Listed { ids: vec![], rest: None };
    site.step(Event::Listed { request, listed, groups: vec![], unnamed });
    for _ in 0..100 {
        site.rest(REGION_BACK_MS_MAX);
        assert_eq!(site.walks(), [], "it would find the same");
        looks(&mut site).into_iter().for_each(|(request, _)| find(&mut site, request, &[]));
    }
    assert!(site.is_comparing());
    find_at_last(&mut site, THERE, LocalBucket::Shared(HERE));
    bring_all(&mut site, &all[..1]);
    assert_eq!(site.saved(), []);
    site.pass(REGION_POLL_MS);
    site.pass(REGION_ANSWER_MS);
    site.pass(REGION_POLL_MS);
    site.walk(&all);
    site.list(&all);
    bring_all(&mut site, &all[1..]);
    assert_eq!(site.saved(), [(source(2, 0), 70)]);
    assert!(site.pull.is_level());
}
