//! That copies stay apart when volumes move, and come apart where they need not be near.

use super::*;

#[test]
fn a_volume_that_lies_close_gives_the_copy_that_sets_it_apart() {
    let mut disks = vec![disk(0, 0, 9), disk(1, 0, 9), disk(2, 1, 9), disk(3, 2, 9), disk(4, 3, 9)];
    disks[..3].iter_mut().for_each(|disk| disk.pv_free = 4);
    disks[2].pv_free = 0;
    let copies = (0..3).map(|at| LvCopy::whole(at as usize, DiskId(at))).collect();
    let lvs: Lvs = vec![(LvId(1), copies)];
    let shifts = planned(&lvs, &disks, 0, 9);
    assert!(shifts.iter().all(|shift| shift.from != DiskId(2)), "{shifts:?}");
}

#[test]
fn copies_do_not_gather_on_one_machine_though_only_disks_are_apart() {
    // Two machines: copies are to be on three disks.
    let mut disks: Vec<DiskInfo> = (0..8).map(|id| disk(id, id / 4, 40)).collect();
    let mut lvs = filled(&mut disks, 100);
    assert_eq!(lvs.len(), 100);
    assert!(lvs.iter().all(|(_, copies)| apart(copies, &disks)[1] == 2));
    disks.extend([disk(8, 0, 40), disk(9, 0, 400)]);
    assert!(settle(&mut lvs, &mut disks, 5) > 10);
    assert!(lvs.iter().all(|(_, copies)| apart(copies, &disks)[1] == 2));
}

/// A volume on these disks, the last of which was added for balance.
fn moving(on: &[u32]) -> Lvs {
    let copies = (0..).zip(on).map(|(replica, disk)| LvCopy::whole(replica, DiskId(*disk)));
    vec![(LvId(0), copies.collect())]
}

/// Plans until nothing is to be done; the disks on which the volume is then.
fn rests_on(lvs: &mut Lvs, disks: &[DiskInfo]) -> BTreeSet<u32> {
    for _ in 0..9 {
        let copies = &mut lvs[0].1;
        copies.iter_mut().for_each(|copy| copy.current = true);
        let steps = plan_moves(lvs, disks, RULES, 9);
        let copies = &mut lvs[0].1;
        match steps.first() {
            None => break,
            Some(LvMove::Drop(_, replica)) => copies.retain(|copy| copy.replica != *replica),
            Some(LvMove::Add(_, disk)) => {
                let replica = copies.iter().map(|copy| copy.replica + 1).max().unwrap_or(0);
                copies.push(LvCopy { current: false, ..LvCopy::whole(replica, *disk) });
                let now = plan_moves(lvs, disks, RULES, 9);
                let is_lost = |copy: &&LvCopy| disks.iter().all(|disk| disk.disk != copy.disk);
                let copies = lvs[0].1.iter();
                let lost: Vec<usize> = copies.filter(is_lost).map(|copy| copy.replica).collect();
                let lasts =
                    |step: &LvMove| matches!(step, LvMove::Drop(_, it) if !lost.contains(it));
                let drops_lasting = now.iter().any(lasts);
                assert!(!drops_lasting, "what goes stays while another is filled: {now:?}");
            }
        }
    }
    lvs[0].1.iter().map(|copy| copy.disk.0).collect()
}

#[test]
fn what_goes_beside_a_move_leaves_no_copies_nearer_together() {
    // Two machines: 0, 1 and 2 lie on one, 3 and 4 on the other. From 0 to 2, while 3 drains.
    let mut disks: Vec<DiskInfo> = (0..5).map(|id| disk(id, id / 3, 40)).collect();
    disks[3].placement_state = PlacementState::Out;
    let rests = rests_on(&mut moving(&[0, 1, 3, 2]), &disks);
    assert!(rests.len() == 3 && rests.contains(&4), "{rests:?}");
    // Four machines of two disks: from 0 to 1, while the machine of 4 drains.
    let mut disks: Vec<DiskInfo> = (0..8).map(|id| disk(id, id / 2, 40)).collect();
    disks[4].placement_state = PlacementState::Out;
    disks[5].placement_state = PlacementState::Out;
    let rests = rests_on(&mut moving(&[0, 2, 4, 1]), &disks);
    let machines: BTreeSet<u32> = rests.iter().map(|disk| disk / 2).collect();
    assert_eq!((rests.len(), machines), (3, BTreeSet::from([0, 1, 3])));
}

#[test]
fn a_volume_whose_copies_lie_near_moves_apart_whatever_the_loads() {
    // A disk that was removed before the copy of a move had everything left all three on one machine.
    let mut disks: Vec<DiskInfo> = (0..6).map(|id| disk(id, id / 3, 40)).collect();
    disks[..3].iter_mut().for_each(|disk| disk.pv_free = 39);
    disks[3..].iter_mut().for_each(|disk| disk.pv_free = 20);
    let mut lvs = moving(&[0, 1, 2]);
    lvs[0].0 = LvId(1);
    let shifts = planned(&lvs, &disks, 5, 9);
    assert!(matches!(shifts[..], [CopyMove { to: DiskId(3..6), .. }]), "{shifts:?}");
    lvs[0].1.push(LvCopy::whole(3, shifts[0].to));
    let goes = plan_moves(&lvs, &disks, RULES, 9);
    assert_eq!(goes, [LvMove::Drop(LvId(1), shifts[0].from.0 as usize)]);
    lvs[0].1.remove(shifts[0].from.0 as usize);
    assert_eq!(planned(&lvs, &disks, 99, 9), []);
    // On two machines of three that have room: one lies on both, and its twin goes to the third.
    disks.push(disk(6, 2, 40));
    let shifts = planned(&lvs, &disks, 99, 9);
    assert!(
        matches!(shifts[..], [CopyMove { to: DiskId(6), from: DiskId(0..3), .. }]),
        "{shifts:?}"
    );
    for unfit in [
        DiskInfo { pv_free: 0, ..disks[6] },
        DiskInfo { room: Room::Doubtful, ..disks[6] },
        DiskInfo { placement_state: PlacementState::Away, ..disks[6] },
    ] {
        disks[6] = unfit;
        assert_eq!(planned(&lvs, &disks, 99, 9), [], "{unfit:?}");
    }
}

#[test]
fn many_disks_of_one_machine_hold_up_no_move() {
    // The fullest disk is the only one of its machine: of none of its volumes a copy may go to the other machine's disks, of
    // which 200 are emptier. The next one can give to any of those.
    let mut disks: Vec<DiskInfo> = (0..200).map(|id| disk(id, 0, 100)).collect();
    disks.push(disk(200, 1, 4000));
    let mut lvs: Lvs = Vec::new();
    for lv in 0..3900 {
        let first = if lv < 90 { 0 } else { 1 + lv % 99 };
        let on = [first, 100 + lv % 100, 200];
        on.iter().for_each(|id| take(&mut disks, DiskId(*id)));
        let copies = (0..).zip(on).map(|(replica, disk)| LvCopy::whole(replica, DiskId(disk)));
        lvs.push((LvId(lv), copies.collect()));
    }
    let written = BTreeSet::new();
    let of = of(&lvs, &written, &disks, 5);
    let mut plan = Plan::new(&of);
    let shifts = plan.even_out(2);
    assert_eq!(shifts.len(), 2);
    assert!(shifts.iter().all(|it| it.from == DiskId(0) && it.to < DiskId(200)), "{shifts:?}");
    assert!(plan.looks < 20 * lvs.len(), "{} looks", plan.looks);
}

/// True if a disk of another machine would take one of these copies, which lie on a single one.
pub(super) fn has_other_machine(copies: &[LvCopy], disks: &[DiskInfo]) -> bool {
    let machine = |id: DiskId| disks.iter().find(|disk| disk.disk == id).unwrap().domains.machine;
    let takes = |disk: &DiskInfo| 4 * used(disk) < 3 * disk.pv_count;
    disks.iter().any(|disk| takes(disk) && disk.domains.machine != machine(copies[0].disk))
}

#[test]
fn a_small_machine_is_not_filled_by_volumes_that_could_lie_further_apart() {
    for size in [60, 100, 150] {
        let mut disks: Vec<DiskInfo> = (0..8).map(|id| disk(id, id / 4, 100)).collect();
        let mut lvs = filled(&mut disks, 160);
        disks.push(disk(8, 2, size));
        let moves = settle(&mut lvs, &mut disks, 5);
        assert!(moves > 20 && disks[8].pv_free > size / 4, "{moves}, {:?}", disks[8]);
        let placed = place_lv(LvId(999), &disks, RULES).unwrap();
        assert!(!placed.narrow, "three machines have room for new volumes");
        let near = lvs.iter().filter(|(_, copies)| apart(copies, &disks)[1] == 2).count();
        let written = BTreeSet::new();
        let planned = plan_balance(&of(&lvs, &written, &disks, 5), 9);
        assert!(near > 40 && planned.near == near, "{near}, {planned:?}");
    }
}

#[test]
fn machines_that_join_one_keep_room_for_what_is_made_on_three() {
    for size in [20, 40, 100] {
        let mut disks: Vec<DiskInfo> = (0..4).map(|id| disk(id, 0, 100)).collect();
        let mut lvs = filled(&mut disks, 100);
        assert!(lvs.len() == 100 && disks.iter().map(used).sum::<u32>() == 300);
        disks.extend([disk(4, 1, size), disk(5, 2, size)]);
        settle(&mut lvs, &mut disks, 5);
        let least = size / 5;
        assert!(disks[4].pv_free.min(disks[5].pv_free) >= least, "{size}: {:?}", &disks[4..]);
        assert!(disks[4].pv_free < size / 3, "{size}: {:?}", disks[4]);
        let placed = place_lv(LvId(999), &disks, RULES).unwrap();
        assert_eq!(placed.level, Level::Machine, "three machines have room for new volumes");
    }
}

#[test]
fn what_cannot_be_filled_holds_up_no_repair() {
    let mut disks: Vec<DiskInfo> = (0..4).map(|id| disk(id, id, 500)).collect();
    let pair = || vec![LvCopy::whole(0, DiskId(0)), LvCopy::whole(1, DiskId(1))];
    let mut lvs: Lvs = (0..200).map(|lv| (LvId(lv), pair())).collect();
    for (_, copies) in &mut lvs[..128] {
        copies.push(LvCopy { current: false, made: false, ..LvCopy::whole(2, DiskId(2)) });
    }
    assert_eq!(filling(&lvs, &disks).all(), 128);
    disks[2].placement_state = PlacementState::Out;
    assert_eq!(filling(&lvs, &disks).all(), 0);
    (disks[2].placement_state, disks[2].room) = (PlacementState::Away, Room::None);
    assert_eq!(filling(&lvs, &disks).all(), 0);
    // One that is there stays, and another is filled beside it.
    let mut there = lvs.clone();
    there.iter_mut().flat_map(|lv| &mut lv.1).for_each(|copy| copy.made = true);
    assert_eq!(filling(&there, &disks).all(), 0);
    let adds = plan_moves(&there, &disks, RULES, 128);
    assert!(adds.iter().all(|step| matches!(step, LvMove::Add(_, DiskId(3)))), "{adds:?}");
    assert_eq!(adds.len(), 128);
    there[0].1.push(LvCopy { current: false, ..LvCopy::whole(3, DiskId(3)) });
    assert_eq!(plan_moves(&there[..1], &disks, RULES, 9), [], "it is filled");
    there[0].1[3].current = true;
    assert_eq!(plan_moves(&there[..1], &disks, RULES, 9), [LvMove::Drop(LvId(0), 2)]);
    let drops = plan_moves(&lvs, &disks, RULES, 128);
    assert!(
        drops.iter().all(|step| matches!(step, LvMove::Add(_, DiskId(3)) | LvMove::Drop(_, 2)))
    );
    let adds = drops.iter().filter(|step| matches!(step, LvMove::Add(..))).count();
    assert_eq!((drops.len(), adds), (128, 0), "those with the fewest copies go first");
    disks.remove(2);
    assert_eq!(filling(&lvs, &disks).all(), 0);
    let disks: Vec<DiskInfo> =
        disks.iter().map(|it| DiskInfo { up: it.disk == DiskId(3), ..*it }).collect();
    assert_eq!(plan_moves(&lvs[128..], &disks, RULES, 9), [], "nobody has them to copy");
}

#[test]
fn what_is_stuck_counts_for_nothing_and_keeps_no_copy_from_a_drain() {
    // 0, 1 and 2 lie on one machine, 3, 4 and 5 on the other: 3 drains, and 4 has no room for what it was to be given.
    let mut disks: Vec<DiskInfo> = (0..6).map(|id| disk(id, id / 3, 40)).collect();
    disks[3].placement_state = PlacementState::Out;
    (disks[4].placement_state, disks[4].room) = (PlacementState::Away, Room::None);
    let stuck =
        |replica| LvCopy { current: false, made: false, ..LvCopy::whole(replica, DiskId(4)) };
    let mut lvs = moving(&[0, 1, 2, 3]);
    lvs[0].1.push(stuck(4));
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), [LvMove::Drop(LvId(0), 4)]);
    lvs[0].1[4].made = true;
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), [LvMove::Drop(LvId(0), 4)], "made or not");
    let mut lvs = moving(&[0, 1, 2, 3]);
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), [LvMove::Add(LvId(0), DiskId(5))]);
    assert!(rests_on(&mut lvs, &disks).contains(&5));
    // A move's copy is stuck when the third copy's disk is lost.
    for is_removed in [false, true] {
        let mut lvs = moving(&[0, 1, 3]);
        lvs[0].1.push(stuck(3));
        let there: Vec<DiskInfo> =
            disks.iter().copied().filter(|it| !is_removed || it.disk != DiskId(3)).collect();
        assert_eq!(plan_moves(&lvs, &there, RULES, 9), [LvMove::Drop(LvId(0), 3)]);
        lvs[0].1.pop();
        let rests = rests_on(&mut lvs, &there);
        assert!(rests.len() == 3 && rests.contains(&5), "{rests:?}");
    }
    // Removed while a move's copy is filled, and of four copies on one machine.
    let there: Vec<DiskInfo> = disks.iter().copied().filter(|it| it.disk != DiskId(3)).collect();
    let mut lvs = moving(&[0, 1, 2, 3]);
    lvs[0].1[2].current = false;
    assert_eq!(plan_moves(&lvs, &there, RULES, 9), [LvMove::Add(LvId(0), DiskId(5))]);
    disks.push(disk(6, 0, 40));
    let rests = rests_on(&mut moving(&[0, 1, 2, 6, 3]), &disks);
    assert!(rests.len() == 3 && rests.contains(&5), "{rests:?}");
}
