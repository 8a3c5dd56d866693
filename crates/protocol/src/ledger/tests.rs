use larder_types::{Grant, OpSeq, PgId, View};

use super::*;
use crate::manager::state::MapVersion;

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

fn named(first: u32, blocks: u32) -> Change {
    Change::Named((&chunk(first, blocks)).into())
}

fn freed(first: u32, blocks: u32) -> Change {
    Change::Freed((&chunk(first, blocks)).into())
}

fn lv(blocks: u32) -> LvInfo {
    LvInfo { lv: LvId(1), blocks, replicas: Vec::new(), as_of: MapVersion(1) }
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
        ledger.take(op(seq), named(first, 10));
    }
    assert_eq!(free(&ledger), 70);
    ledger.take(op(4), freed(20, 10));
    assert_eq!(free(&ledger), 80);
    ledger.take(op(5), named(20, 4));
    ledger.take(op(6), freed(10, 10));
    ledger.take(op(7), freed(30, 10));
    ledger.take(op(8), freed(20, 4));
    assert_eq!(ledger.known(), Some(&NamedBlocks::default()));
}

#[test]
fn a_block_named_twice_or_freed_twice_makes_it_void() {
    for change in [named(14, 1), named(19, 5), named(5, 6), freed(9, 2), freed(40, 1)] {
        let mut ledger = empty();
        ledger.take(op(1), named(10, 10));
        ledger.take(op(2), change.clone());
        assert!(ledger.known().is_none() && ledger.fault().is_some(), "{change:?}");
    }
}

#[test]
fn blocks_outside_of_a_volume_and_of_open_puts_are_not_free() {
    let mut ledger = empty();
    ledger.take(op(1), named(90, 10));
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
    ledger.take(op(1), named(0, 5));
    let walk = ledger.begin_walk();
    ledger.take(op(2), named(10, 5));
    ledger.take(op(3), freed(0, 5));
    // The snapshot was taken between ops 2 and 3.
    let mut found = NamedBlocks::default();
    found.name(&(&chunk(0, 5)).into()).unwrap();
    found.name(&(&chunk(10, 5)).into()).unwrap();
    ledger.end_walk(walk, Ok(found), op(2));
    assert_eq!(free(&ledger), 95);
}

#[test]
fn a_walk_that_was_overtaken_says_nothing() {
    let mut ledger = Ledger::default();
    let walk = ledger.begin_walk();
    ledger.begin_empty();
    let mut found = NamedBlocks::default();
    found.name(&(&chunk(0, 5)).into()).unwrap();
    ledger.end_walk(walk, Ok(found), op(2));
    assert_eq!(free(&ledger), 100);
}

#[test]
fn too_many_changes_during_a_walk_make_it_unknown_again() {
    let mut ledger = Ledger::default();
    let walk = ledger.begin_walk();
    for seq in 0..=LEDGER_CHANGES_MAX as u64 {
        ledger.take(op(seq + 1), named(seq as u32, 1));
    }
    ledger.end_walk(walk, Ok(NamedBlocks::default()), op(0));
    assert!(ledger.known().is_none() && ledger.fault().is_none());
}

#[test]
fn copies_that_are_missing_are_noticed() {
    let mut ledger = empty();
    ledger.take(op(1), named(0, 5));
    let space = |ledger: &Ledger| {
        ledger.known().unwrap().space(std::iter::once(lv(9)), std::iter::empty()).unwrap()
    };
    // The LV of these tests has no replicas.
    assert!(!space(&ledger).is_as_wanted);
    let (lv, none) = (LvId(1), Holders::default());
    ledger.take(op(2), Change::Held { lv, before: ALL, after: none });
    assert!(space(&ledger).is_as_wanted);
    ledger.take(op(3), Change::Held { lv, before: ALL, after: none });
    assert_eq!(ledger.fault(), Some(SpaceFault::Uncounted { lv }));
}
