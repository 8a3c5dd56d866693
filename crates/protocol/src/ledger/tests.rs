use larder_types::limits::BUCKETS_MAX;
use larder_types::{Grant, MapVersion, OpSeq, PgId, View};

use super::*;
use crate::limits::LEDGER_CHANGES_MAX;

const ALL: Holders = Holders(0b111);

fn op(seq: u64) -> OpId {
    OpId { view: View(1), seq: OpSeq(seq) }
}

fn chunk(first: u32, blocks: u32) -> Chunk {
    Chunk {
        grant: Grant { pg: PgId(0), op: op(u64::from(first) + 1), attempt: 0 },
        seed: 1,
        lv: LvId(1),
        extents: vec![Extent { first, blocks }],
        len: blocks * 4096,
        sums: vec![0],
        holders: ALL,
    }
}

/// A change of an op, to the row of the chunk that begins there.
fn changed(seq: u64, change: Change) -> Changed<Change> {
    let row = match &change {
        Change::Named(blocks) | Change::Freed(blocks) | Change::Left(blocks) => {
            row(blocks.extents[0].first)
        }
        Change::Held { .. } => row(0),
    };
    Changed { op: op(seq), row, change }
}

fn row(first: u32) -> Vec<u8> {
    vec![b'V', first as u8]
}

fn named(first: u32, blocks: u32) -> Change {
    Change::Named((&chunk(first, blocks)).into())
}

fn freed(first: u32, blocks: u32) -> Change {
    Change::Freed((&chunk(first, blocks)).into())
}

/// The end of a stretch whose rows have no object.
fn end_stretch(
    ledger: &mut Ledger,
    walk: u64,
    named: Result<NamedBlocks, SpaceFault>,
    at: OpId,
    until: Option<&[u8]>,
) {
    ledger.end_stretch(walk, Stretch { named, ..Stretch::default() }, at, until);
}

fn lv(blocks: u32) -> LvInfo {
    LvInfo { lv: LvId(1), blocks, copies: 3, replicas: Vec::new(), as_of: MapVersion(1) }
}

fn empty() -> Ledger {
    let mut ledger = Ledger::default();
    ledger.begin_empty();
    ledger
}

fn free(ledger: &Ledger) -> u32 {
    let named = ledger.known().expect("the ledger is known");
    named.space(std::iter::once(lv(100)), std::iter::empty()).unwrap().lvs[0].1.blocks()
}

#[test]
fn what_is_named_is_not_free_until_it_is_freed() {
    let mut ledger = empty();
    for (seq, first) in [(1, 10), (2, 30), (3, 20)] {
        ledger.take(changed(seq, named(first, 10)));
    }
    assert_eq!(free(&ledger), 70);
    ledger.take(changed(4, freed(20, 10)));
    assert_eq!(free(&ledger), 80);
    ledger.take(changed(5, named(20, 4)));
    ledger.take(changed(6, freed(10, 10)));
    ledger.take(changed(7, freed(30, 10)));
    ledger.take(changed(8, freed(20, 4)));
    assert_eq!(ledger.known(), Some(&NamedBlocks::default()));
}

#[test]
fn a_block_named_twice_or_freed_twice_makes_it_void() {
    for change in [named(14, 1), named(19, 5), named(5, 6), freed(9, 2), freed(40, 1)] {
        let mut ledger = empty();
        ledger.take(changed(1, named(10, 10)));
        ledger.take(changed(2, change.clone()));
        assert!(ledger.known().is_none() && ledger.fault().is_some(), "{change:?}");
    }
}

#[test]
fn blocks_outside_of_a_volume_and_of_open_puts_are_not_free() {
    let mut ledger = empty();
    ledger.take(changed(1, named(90, 10)));
    let known = ledger.known().unwrap();
    let none = || std::iter::empty();
    let extent = Extent { first: 90, blocks: 10 };
    let outside = SpaceFault::Overlap { lv: LvId(1), extent };
    assert_eq!(known.space(std::iter::once(lv(95)), none()).unwrap_err(), outside);
    assert_eq!(
        known.space(std::iter::empty(), none()).unwrap_err(),
        SpaceFault::UnknownLv { lv: LvId(1) }
    );
    let open = [chunk(0, 10), chunk(85, 5)];
    let space = known.space(std::iter::once(lv(100)), open.iter()).unwrap();
    assert_eq!(space.lvs[0].1.blocks(), 75);
    let twice = known.space(std::iter::once(lv(100)), [chunk(99, 1)].iter());
    assert!(twice.is_err());
}

#[test]
fn changes_that_the_walk_saw_are_taken_once() {
    let mut ledger = Ledger::default();
    ledger.take(changed(1, named(0, 5)));
    let walk = ledger.begin_walk();
    ledger.take(changed(2, named(10, 5)));
    ledger.take(changed(3, freed(0, 5)));
    // The snapshot was taken between ops 2 and 3.
    let mut found = NamedBlocks::default();
    found.name(&(&chunk(0, 5)).into()).unwrap();
    found.name(&(&chunk(10, 5)).into()).unwrap();
    end_stretch(&mut ledger, walk, Ok(found), op(2), None);
    assert_eq!(free(&ledger), 95);
}

#[test]
fn an_overtaken_walk_reports_nothing() {
    let mut ledger = Ledger::default();
    let walk = ledger.begin_walk();
    ledger.begin_empty();
    let mut found = NamedBlocks::default();
    found.name(&(&chunk(0, 5)).into()).unwrap();
    end_stretch(&mut ledger, walk, Ok(found), op(2), None);
    assert_eq!(free(&ledger), 100);
}

/// The result of a stretch: chunks of five blocks each.
fn found(firsts: &[u32]) -> Result<NamedBlocks, SpaceFault> {
    let mut found = NamedBlocks::default();
    firsts.iter().try_for_each(|first| found.note(&chunk(*first, 5))).map(|()| found)
}

#[test]
fn a_change_before_the_stretch_counts_at_once_in_it_at_its_end_and_behind_it_never() {
    let mut ledger = Ledger::default();
    let walk = ledger.begin_walk();
    end_stretch(&mut ledger, walk, found(&[0, 10, 20]), op(1), Some(&row(30)));
    // Before what is read, within, and behind it: a chunk goes and one comes, each.
    for (seq, gone, new) in [(2, 10, 15), (4, 30, 35), (6, 60, 65)] {
        ledger.take(changed(seq, freed(gone, 5)));
        ledger.take(changed(seq + 1, named(new, 5)));
    }
    // The snapshot of the stretch shows everything through op 4.
    end_stretch(&mut ledger, walk, found(&[40]), op(4), Some(&row(50)));
    assert!(ledger.known().is_none());
    end_stretch(&mut ledger, walk, found(&[50, 65]), op(7), None);
    let mut all = NamedBlocks::default();
    [0, 15, 20, 35, 40, 50, 65].iter().for_each(|first| all.note(&chunk(*first, 5)).unwrap());
    assert_eq!(ledger.known(), Some(&all));
}

#[test]
fn a_chunk_that_goes_on_to_a_later_row_counts_once_wherever_the_walk_is() {
    // The chunk at 10 goes on from row 10 to row 60; what each walk reads before that, and after.
    let walks: [(&[u32], &[u32], u32); 3] =
        [(&[], &[10, 20], 5), (&[10, 20], &[10], 30), (&[10, 20], &[], 70)];
    for (before, after, until) in walks {
        let mut ledger = Ledger::default();
        let walk = ledger.begin_walk();
        end_stretch(&mut ledger, walk, found(before), op(1), Some(&row(until)));
        let blocks = || Blocks::from(&chunk(10, 5));
        ledger.take(Changed { op: op(2), row: row(10), change: Change::Left(blocks()) });
        ledger.take(Changed { op: op(2), row: row(60), change: Change::Named(blocks()) });
        end_stretch(&mut ledger, walk, found(after), op(2), None);
        assert_eq!(ledger.known(), found(&[10, 20]).ok().as_ref(), "{until}: {:?}", ledger.fault());
    }
}

#[test]
fn a_block_that_a_row_read_before_took_over_since_is_no_contradiction() {
    let mut ledger = Ledger::default();
    let walk = ledger.begin_walk();
    end_stretch(&mut ledger, walk, found(&[]), op(1), Some(&row(30)));
    // The snapshot shows it in row 40; then it is freed, and given to a row before the stretch.
    ledger.take(changed(2, freed(40, 5)));
    let change = named(40, 5);
    ledger.take(Changed { row: row(3), ..changed(9, change) });
    end_stretch(&mut ledger, walk, found(&[40]), op(1), None);
    assert_eq!(ledger.known(), found(&[40]).ok().as_ref());
}

#[test]
fn a_block_that_rows_of_two_stretches_name_is_a_contradiction() {
    let mut ledger = Ledger::default();
    let walk = ledger.begin_walk();
    end_stretch(&mut ledger, walk, found(&[0, 10]), op(1), Some(&row(30)));
    end_stretch(&mut ledger, walk, found(&[12]), op(1), None);
    let extent = Extent { first: 12, blocks: 5 };
    assert_eq!(ledger.fault(), Some(SpaceFault::Overlap { lv: LvId(1), extent }));
}

#[test]
fn too_many_changes_during_a_walk_make_it_unknown_again() {
    let mut ledger = Ledger::default();
    let walk = ledger.begin_walk();
    for seq in 0..=LEDGER_CHANGES_MAX as u64 {
        ledger.take(changed(seq + 1, named(seq as u32, 1)));
    }
    end_stretch(&mut ledger, walk, Ok(NamedBlocks::default()), op(0), None);
    assert!(ledger.known().is_none() && ledger.fault().is_none());
}

#[test]
fn copies_that_are_missing_are_noticed() {
    let mut ledger = empty();
    ledger.take(changed(1, named(0, 5)));
    let space = |ledger: &Ledger| {
        ledger.known().unwrap().space(std::iter::once(lv(9)), std::iter::empty()).unwrap()
    };
    // The LV of these tests has no replicas.
    assert!(!space(&ledger).is_as_wanted);
    let (lv, none) = (LvId(1), Holders::default());
    ledger.take(changed(2, Change::Held { lv, before: ALL, after: none }));
    assert!(space(&ledger).is_as_wanted);
    ledger.take(changed(3, Change::Held { lv, before: ALL, after: none }));
    assert_eq!(ledger.fault(), Some(SpaceFault::Uncounted { lv }));
}

fn resized(seq: u64, first: u32, before: Option<u64>, after: Option<u64>) -> Changed<Recount> {
    let change = Resized { bucket: BucketId(1), before, after };
    Changed { op: op(seq), row: row(first), change: change.into() }
}

fn counted(ledger: &Ledger) -> Vec<(u64, u64, u64)> {
    let counts = ledger.counts().expect("the rows are counted");
    counts.iter().map(|(bucket, count)| (bucket.0, count.objects, count.bytes)).collect()
}

#[test]
fn an_object_that_was_not_counted_or_had_another_size_makes_counts_void_and_them_alone() {
    let wrong = [(None, Some(u64::MAX)), (Some(6), None), (Some(4), None), (Some(9), Some(1))];
    for (before, after) in wrong {
        let mut ledger = empty();
        ledger.count(resized(1, 1, None, Some(5)));
        assert_eq!(counted(&ledger), [(1, 1, 5)]);
        ledger.count(resized(2, 1, before, after));
        assert!(ledger.counts().is_none(), "{before:?} {after:?}");
        assert!(ledger.count_fault().is_some() && ledger.known().is_some());
        let walk = ledger.begin_walk();
        ledger.end_stretch(walk, Stretch::default(), op(2), None);
        assert_eq!(counted(&ledger), [], "a walk mends them");
    }
}

#[test]
fn counts_of_more_buckets_than_there_can_be_are_void() {
    let mut counts = BucketCounts::default();
    for bucket in 0..BUCKETS_MAX as u64 {
        counts.note(BucketId(bucket), 1).expect("so many there may be");
    }
    counts.note(BucketId(3), 1).expect("it has an entry");
    assert_eq!(counts.note(BucketId(u64::MAX), 1), Err(CountFault::TooManyBuckets));
}

#[test]
fn what_ops_did_to_one_bucket_counts_in_sum_and_to_another_by_itself() {
    let resized = |bucket, before, after| Resized { bucket: BucketId(bucket), before, after };
    let mut sum = Recount::from(resized(1, None, Some(5)));
    assert_eq!(sum.join(resized(1, Some(5), Some(7)).into()), None);
    assert_eq!(sum.join(resized(1, Some(7), None).into()), None);
    assert_eq!(sum.join(resized(1, None, Some(2)).into()), None);
    let other = Recount::from(resized(2, None, Some(9)));
    assert_eq!(sum.join(other.clone()), Some(other.clone()));
    let mut counts = BucketCounts::default();
    [sum, other].iter().for_each(|it| counts.take(it).expect("they fit"));
    let found: Vec<_> = counts.iter().map(|(_, it)| (it.objects, it.bytes)).collect();
    assert_eq!(found, [(1, 2), (1, 9)]);
}
