//! Runs of two regions that differ in some entries.

use larder_types::{BucketId, HybridClock, ObjectKey, OpId, Origin, PgId, RegionId, Stamp};

use super::*;

/// Entries of many keys, some with two, in the order of their rows; some of them purged.
fn ids(count: u64) -> Vec<Id> {
    let at = |clock| Stamp { clock: HybridClock(clock), region: RegionId(1) };
    let id = |number: u64| {
        let slot = if number.is_multiple_of(3) { Slot::Null } else { Slot::Version(at(number)) };
        let key = ObjectKey::new(&format!("k{:05}", number / 2)).unwrap();
        let name = Name { bucket: BucketId(1), key, slot };
        let origin = Origin { region: RegionId(1), pg: PgId(0), op: OpId::default() };
        let is_purged = number.is_multiple_of(7);
        Id { name, at: at(number), origin, is_purged, bytes: 0, print: u128::from(number) }
    };
    let mut ids: Vec<_> = (1..=count).map(id).collect();
    ids.sort_by_key(|id| id.name.place());
    ids
}

/// Walks over all that one region has, and counts runs whose sums differ from those of the other.
fn differing(theirs: &[Id], here: &[Id]) -> (Vec<Range>, usize) {
    let (mut differing, mut answers) = (Vec::new(), 0);
    let mut rest = Some(Range::default());
    while let Some(range) = rest {
        let of_range = theirs.iter().filter(|id| range.has(&id.name)).cloned();
        let summed = summed(Planted::default(), &range, of_range);
        assert!(summed.covers(&range), "{summed:?}");
        for (run, sum) in &summed.runs {
            if Sum::of(here.iter().filter(|id| run.has(&id.name))) != *sum {
                differing.push(run.clone());
            }
        }
        (rest, answers) = (summed.rest, answers + 1);
    }
    (differing, answers)
}

#[test]
fn runs_that_differ_have_all_entries_that_differ_and_no_others_are_listed() {
    let theirs = ids(2_000);
    assert_eq!(differing(&theirs, &theirs), (vec![], 1));
    for at in [0, 255, 256, 700, 1_999] {
        let mut here = theirs.clone();
        let lacking = here.remove(at);
        let (runs, _) = differing(&theirs, &here);
        assert_eq!(runs.len(), 1, "{at}");
        assert!(runs[0].has(&lacking.name));
        let (runs, _) = differing(&here, &theirs);
        assert!(runs.len() == 1 && runs[0].has(&lacking.name), "here alone: {at}");
        let mut other = theirs.clone();
        other[at].print += 1;
        assert_eq!(differing(&theirs, &other).0.len(), 1, "another state: {at}");
    }
}

#[test]
fn nothing_and_much_are_walked_over_in_bounded_answers() {
    assert_eq!(differing(&[], &[]), (vec![], 1));
    assert_eq!(differing(&[], &ids(3)).0.len(), 1, "what is here alone is seen");
    let count = REGION_RUN_IDS_MAX * REGION_RUNS_MAX;
    let first = summed(Planted::default(), &Range::default(), ids(count as u64 + 10).into_iter());
    assert!(first.covers(&Range::default()) && first.runs.len() == REGION_RUNS_MAX);
    assert_eq!(first.runs.iter().map(|(_, sum)| sum.count).sum::<u64>(), count as u64);
    assert_eq!(
        first.rest.map(|rest| Some(rest.from)),
        Some(first.runs.last().unwrap().0.to.clone())
    );
}

#[test]
fn a_run_that_has_grown_is_listed_in_parts() {
    let (all, range) = (ids(REGION_REQUEST_IDS_MAX as u64 + 5), Range::default());
    let first = listed(Planted::default(), &range, all.iter().cloned());
    let rest = first.rest.clone().unwrap();
    let behind = all.iter().filter(|id| rest.has(&id.name)).cloned();
    let second = listed(Planted::default(), &rest, behind);
    assert!(first.covers(&range) && second.covers(&rest) && second.rest.is_none());
    assert_eq!([first.ids.clone(), second.ids].concat(), all);
    assert!(!Listed { rest: Some(range.clone()), ..first }.covers(&range), "an endless list");
}

#[test]
fn an_answer_that_leaves_something_out_is_none() {
    let (theirs, range) = (ids(600), Range::default());
    let sound = summed(Planted::default(), &range, theirs.into_iter());
    assert!(sound.covers(&range) && sound.runs.len() == 3);
    let spoiled = |spoil: &dyn Fn(&mut Summed)| {
        let mut summed = sound.clone();
        spoil(&mut summed);
        summed.covers(&range)
    };
    assert!(!spoiled(&|it| drop(it.runs.remove(1))), "a run in the middle");
    assert!(!spoiled(&|it| drop(it.runs.pop())), "the last run");
    assert!(!spoiled(&|it| it.runs.clear()), "all runs");
    // A rest that is the whole again would be walked over for ever.
    assert!(!spoiled(&|it| it.rest = Some(Range::default())), "an endless walk");
    assert!(!spoiled(&|it| it.runs[1].0.to = Some(it.runs[1].0.from.clone())), "an empty run");
}
