//! Volumes that take writes and full ones are evened each for themselves.

use super::*;
use crate::placement::{Shares, place_lv_of_shares, plan_moves_of_shares};

/// One of four takes writes.
fn written(lvs: &Lvs) -> BTreeSet<LvId> {
    lvs.iter().map(|(lv, _)| *lv).filter(|lv| lv.0 % 4 == 0).collect()
}

fn on(lvs: &Lvs, written: &BTreeSet<LvId>) -> BTreeMap<DiskId, u64> {
    let mut on = BTreeMap::new();
    for (_, copies) in lvs.iter().filter(|(lv, _)| written.contains(lv)) {
        copies.iter().for_each(|copy| *on.entry(copy.disk).or_default() += 1);
    }
    on
}

/// Of either kind, the number on each disk.
fn numbers(lvs: &Lvs, disks: &[DiskInfo]) -> [Vec<u32>; 2] {
    let on = on(lvs, &written(lvs));
    let number = |disk: &DiskInfo| on.get(&disk.disk).copied().unwrap_or(0) as u32;
    let full = disks.iter().map(|disk| used(disk) - number(disk)).collect();
    [disks.iter().map(number).collect(), full]
}

/// Returns the sum that each move of an even plan lessens.
fn sum(lvs: &Lvs, disks: &[DiskInfo]) -> f64 {
    let of_kind = |numbers: Vec<u32>| -> f64 {
        let square =
            |(number, disk): (u32, &DiskInfo)| f64::from(number).powi(2) / f64::from(disk.pv_count);
        numbers.into_iter().zip(disks).map(square).sum()
    };
    numbers(lvs, disks).into_iter().map(of_kind).sum()
}

fn spread(numbers: &[u32]) -> u32 {
    numbers.iter().max().unwrap() - numbers.iter().min().unwrap()
}

/// A plan of the moves for evenness alone, or of all.
fn shifts(lvs: &Lvs, disks: &[DiskInfo], spread_percent: u64, is_even: bool) -> Vec<CopyMove> {
    let written = written(lvs);
    let on = on(lvs, &written);
    let of = Balance { written_on: Some(&on), ..of(lvs, &written, disks, spread_percent) };
    if is_even { Plan::new(&of).even_shares(2) } else { plan_balance(&of, 2).shifts }
}

/// Moves as a cluster does until nothing is planned; the moves.
fn settle(lvs: &mut Lvs, disks: &mut [DiskInfo], spread_percent: u64, is_even: bool) -> usize {
    let mut moves = 0;
    loop {
        let shifts = shifts(lvs, disks, spread_percent, is_even);
        if shifts.is_empty() {
            return moves;
        }
        for shift in shifts {
            moves += 1;
            assert!(moves < 10_000, "moving ends");
            let (before, apart_before) =
                (sum(lvs, disks), apart(&lvs[shift.lv.0 as usize].1, disks));
            let copies = &mut lvs[shift.lv.0 as usize].1;
            let replica = (0..).find(|at| copies.iter().all(|copy| copy.replica != *at)).unwrap();
            copies.push(LvCopy::whole(replica, shift.to));
            take(disks, shift.to);
            let written = written(lvs);
            let shares = Shares { written: &written, on: &on(lvs, &written) };
            let steps = plan_moves_of_shares(lvs, disks, RULES, 9, shares);
            let [LvMove::Drop(lv, replica)] = steps[..] else { panic!("{shift:?}: {steps:?}") };
            let copies = &mut lvs[lv.0 as usize].1;
            let at = copies.iter().position(|copy| copy.replica == replica).unwrap();
            let gone = copies.remove(at).disk;
            assert_ne!(gone, shift.to, "a move is not undone");
            disks.iter_mut().find(|disk| disk.disk == gone).unwrap().pv_free += 1;
            let after = apart(&lvs[shift.lv.0 as usize].1, disks);
            assert!(after.iter().zip(&apart_before).all(|(after, before)| after >= before));
            if is_even {
                assert_eq!(gone, shift.from, "the comparison that began it ends it");
                assert!(sum(lvs, disks) < before, "{shift:?} makes disks more even");
            }
        }
    }
}

#[test]
fn a_new_machine_takes_its_share_of_either_kind() {
    let mut disks: Vec<DiskInfo> = (0..6).map(|id| disk(id, id / 2, 100)).collect();
    let mut lvs = filled(&mut disks, 180);
    disks.extend([disk(6, 3, 100), disk(7, 3, 100)]);
    settle(&mut lvs, &mut disks, 0, false);
    for numbers in numbers(&lvs, &disks) {
        assert!(spread(&numbers) <= 2, "{numbers:?}");
    }
}

/// Twelve disks of four machines, as full as each other; volumes that take writes are on three of them alone.
fn uneven() -> (Lvs, Vec<DiskInfo>) {
    let mut disks: Vec<DiskInfo> = (0..12).map(|id| disk(id, id % 4, 40)).collect();
    let mut lvs: Lvs = Vec::new();
    for lv in 0..40 {
        // Of each four the first is written, and the others fill the nine other disks.
        let first = if lv % 4 == 0 { 0 } else { 3 * (lv % 4) };
        let copies = (0..).zip(first..first + 3);
        let copies = copies.map(|(replica, disk)| LvCopy::whole(replica, DiskId(disk)));
        lvs.push((LvId(lv), copies.collect()));
        (first..first + 3).for_each(|id| take(&mut disks, DiskId(id)));
    }
    (lvs, disks)
}

#[test]
fn disks_that_are_as_full_as_each_other_share_what_is_written() {
    let (mut lvs, mut disks) = uneven();
    assert_eq!(planned(&lvs, &disks, 0, 9), [], "by use there is nothing to do");
    assert_eq!(spread(&numbers(&lvs, &disks)[0]), 10);
    let moves = settle(&mut lvs, &mut disks, 0, false);
    let numbers = numbers(&lvs, &disks);
    assert!(numbers.iter().all(|of_kind| spread(of_kind) <= 2), "{numbers:?}");
    // Of 30 copies on three disks at least 21 have to go, and as many full ones come.
    assert!(moves <= 2 * 30, "{moves}");
    let new = place_lv(LvId(99), &disks, RULES).unwrap();
    assert!(!new.narrow);
}

#[test]
fn of_those_that_take_writes_the_last_drawn_goes() {
    let mut disks: Vec<DiskInfo> = (0..4).map(|id| disk(id, id, 40)).collect();
    let mut lvs: Lvs = Vec::new();
    for lv in 0..12 {
        let first = if lv < 7 { 0 } else { 1 };
        let copies = (0..).zip(first..first + 3);
        let copies = copies.map(|(replica, disk)| LvCopy::whole(replica, DiskId(disk)));
        lvs.push((LvId(lv), copies.collect()));
        (first..first + 3).for_each(|id| take(&mut disks, DiskId(id)));
    }
    let written: BTreeSet<LvId> = lvs.iter().map(|(lv, _)| *lv).collect();
    let on = on(&lvs, &written);
    let of = Balance { written_on: Some(&on), ..of(&lvs, &written, &disks, 5) };
    let shift = CopyMove { lv: LvId(6), from: DiskId(1), to: DiskId(3) };
    assert_eq!(plan_balance(&of, 1).shifts, [shift]);
}

#[test]
fn new_volumes_go_where_few_are_written_unless_that_brings_copies_nearer_together() {
    let mut disks: Vec<DiskInfo> = (0..8).map(|id| disk(id, id % 4, 40)).collect();
    let on: BTreeMap<DiskId, u64> =
        (0..8).map(|id| (DiskId(id), if id < 5 { 9 } else { 1 })).collect();
    let place = |disks: &[DiskInfo]| {
        let placed = (0..20).map(|lv| place_lv_of_shares(LvId(lv), disks, RULES, &on).unwrap());
        placed.collect::<Vec<_>>()
    };
    for placed in place(&disks) {
        assert_eq!(placed.level, Level::Machine);
        assert!(placed.disks.iter().all(|disk| disk.0 >= 5), "{placed:?}");
    }
    // Two machines have disks below.
    disks[7].placement_state = PlacementState::Out;
    for (placed, lv) in place(&disks).into_iter().zip(0..) {
        assert_eq!(Some(placed), place_lv(LvId(lv), &disks, RULES));
    }
}

proptest! {
    #[test]
    fn moving_by_shares_ends_and_makes_both_kinds_more_even(
        sizes in proptest::collection::vec((0..6u32, 1..40u32), 3..14),
        share in 1..100u32,
        late in 1..4usize,
        spread_percent in 0..10u64,
        racks in 1..4u32,
    ) {
        let Some((mut lvs, mut disks)) = filled_and_grown(&sizes, share, late, racks) else {
            return Err(TestCaseError::reject("the disks are one machine's"));
        };
        settle(&mut lvs, &mut disks, spread_percent, true);
        prop_assert_eq!(shifts(&lvs, &disks, spread_percent, true), []);
        settle(&mut lvs, &mut disks, spread_percent, false);
        prop_assert_eq!(shifts(&lvs, &disks, spread_percent, false), []);
        for (lv, copies) in &lvs {
            prop_assert!(super::apart(copies, &disks)[1] > 1 || !super::apart::has_other_machine(copies, &disks), "{} {:?}", lv, copies);
        }
    }
}
