use larder_types::{RegionId, ServerId};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;
use crate::limits::BALANCE_LVS_MAX;
use crate::placement::{FailureDomains, LvMove, MachineId, RackId, filling, place_lv, plan_moves};

const RULES: CopyRules = CopyRules { copies: 3, min_copies: 2 };

mod apart;
mod shares;

type Lvs = Vec<(LvId, Vec<LvCopy>)>;

fn disk(id: u32, machine: u32, size: u32) -> DiskInfo {
    let domains = FailureDomains {
        region: RegionId::default(),
        rack: RackId(0),
        machine: MachineId(machine),
    };
    DiskInfo {
        disk: DiskId(id),
        server: ServerId(machine),
        domains,
        weight: Weight(size),
        pv_count: size,
        pv_free: size,
        placement_state: PlacementState::In,
        up: true,
        room: Room::Some,
    }
}

fn take(disks: &mut [DiskInfo], id: DiskId) {
    let disk = disks.iter_mut().find(|disk| disk.disk == id).unwrap();
    disk.pv_free -= 1;
}

/// Volumes until no more fit, or so many.
fn filled(disks: &mut [DiskInfo], count: u32) -> Lvs {
    let mut lvs = Vec::new();
    for lv in (0..count).map(LvId) {
        let Some(placed) = place_lv(lv, disks, RULES).filter(|placed| !placed.narrow) else {
            break;
        };
        placed.disks.iter().for_each(|disk| take(disks, *disk));
        let copies = placed.disks.into_iter().enumerate();
        let copy = |(replica, disk)| LvCopy::whole(replica, disk);
        lvs.push((lv, copies.map(copy).collect()));
    }
    lvs
}

fn planned(lvs: &Lvs, disks: &[DiskInfo], spread_percent: u64, limit: usize) -> Vec<CopyMove> {
    let written = lvs.iter().map(|(lv, _)| *lv).filter(|lv| lv.0 % 4 == 0).collect();
    plan_balance(&of(lvs, &written, disks, spread_percent), limit).shifts
}

fn of<'a>(
    lvs: &'a Lvs,
    written: &'a BTreeSet<LvId>,
    disks: &'a [DiskInfo],
    spread_percent: u64,
) -> Balance<'a> {
    let (first, lvs_max) = (0, usize::MAX);
    let written_on = None;
    Balance { lvs, written, written_on, disks, rules: RULES, spread_percent, first, lvs_max }
}

/// Moves as a cluster does, a copy more and then one less, until nothing is planned; the moves.
fn settle(lvs: &mut Lvs, disks: &mut [DiskInfo], spread_percent: u64) -> usize {
    settle_by(lvs, disks, |lvs, disks| planned(lvs, disks, spread_percent, 2))
}

fn settle_by(
    lvs: &mut Lvs,
    disks: &mut [DiskInfo],
    plan: impl Fn(&Lvs, &[DiskInfo]) -> Vec<CopyMove>,
) -> usize {
    let mut moves = 0;
    loop {
        let shifts = plan(lvs, disks);
        if shifts.is_empty() {
            return moves;
        }
        for shift in shifts {
            moves += 1;
            assert!(moves < 10_000, "moving ends");
            let before = apart(&lvs[shift.lv.0 as usize].1, disks);
            let copies = &mut lvs[shift.lv.0 as usize].1;
            assert!(copies.iter().all(|copy| copy.disk != shift.to));
            let replica = (0..).find(|at| copies.iter().all(|copy| copy.replica != *at)).unwrap();
            copies.push(LvCopy { current: false, ..LvCopy::whole(replica, shift.to) });
            take(disks, shift.to);
            // While it is filled nothing goes.
            assert_eq!(plan_moves(lvs, disks, RULES, 9), [], "{shift:?}");
            lvs[shift.lv.0 as usize].1.last_mut().unwrap().current = true;
            let steps = plan_moves(lvs, disks, RULES, 9);
            let [LvMove::Drop(lv, replica)] = steps[..] else { panic!("{shift:?}: {steps:?}") };
            let copies = &mut lvs[lv.0 as usize].1;
            let at = copies.iter().position(|copy| copy.replica == replica).unwrap();
            let gone = copies.remove(at).disk;
            assert_ne!(gone, shift.to, "a move is not undone");
            disks.iter_mut().find(|disk| disk.disk == gone).unwrap().pv_free += 1;
            // A volume that was made while few machines had room may lie on fewer than three.
            let after = apart(&lvs[shift.lv.0 as usize].1, disks);
            assert!(
                after.iter().zip(&before).all(|(after, before)| after >= before),
                "copies of {shift:?} lie in {after:?} domains, {before:?} before"
            );
        }
    }
}

/// In how many racks, machines and disks copies lie.
fn apart(copies: &[LvCopy], disks: &[DiskInfo]) -> [usize; 3] {
    let of = |copy: &LvCopy| disks.iter().find(|disk| disk.disk == copy.disk).unwrap();
    let count = |of_disk: fn(&DiskInfo) -> u32| {
        copies.iter().map(|copy| of_disk(of(copy))).collect::<BTreeSet<_>>().len()
    };
    let rack = |disk: &DiskInfo| disk.domains.rack.0;
    [count(rack), count(|disk| disk.domains.machine.0), count(|disk| disk.disk.0)]
}

fn used(disk: &DiskInfo) -> u32 {
    disk.pv_count - disk.pv_free
}

/// Copies above the ideal: as many have to move, at least.
fn least(disks: &[DiskInfo]) -> usize {
    let (all, size): (u32, u32) =
        (disks.iter().map(used).sum(), disks.iter().map(|disk| disk.pv_count).sum());
    let above = |disk: &DiskInfo| {
        let ideal = f64::from(all) * f64::from(disk.pv_count) / f64::from(size);
        (f64::from(used(disk)) - ideal).ceil().max(0.0) as usize
    };
    disks.iter().map(above).sum()
}

#[test]
fn a_full_cluster_with_an_empty_machine_makes_room_with_two_moves() {
    let mut disks: Vec<DiskInfo> = (0..3).map(|id| disk(id, id, 10)).collect();
    let lvs = filled(&mut disks, 99);
    assert_eq!(lvs.len(), 10);
    disks.push(disk(3, 3, 10));
    assert_eq!(place_lv(LvId(99), &disks, RULES), None, "nothing fits though a machine is empty");
    let shifts = planned(&lvs, &disks, 5, 2);
    let from: BTreeSet<DiskId> = shifts.iter().map(|shift| shift.from).collect();
    assert_eq!((shifts.len(), from.len()), (2, 2), "from two machines at once: {shifts:?}");
    assert!(shifts.iter().all(|shift| shift.to == DiskId(3) && shift.lv.0 % 4 == 0));
    for shift in shifts {
        disks[shift.from.0 as usize].pv_free += 1;
        take(&mut disks, shift.to);
    }
    let placed = place_lv(LvId(99), &disks, RULES).unwrap();
    assert!(!placed.narrow && placed.disks.len() == 3);
}

#[test]
fn a_new_machine_takes_its_share_and_no_more_is_moved() {
    let mut disks: Vec<DiskInfo> = (0..6).map(|id| disk(id, id / 2, 100)).collect();
    let mut lvs = filled(&mut disks, 180);
    disks.extend([disk(6, 3, 100), disk(7, 3, 100)]);
    let least = least(&disks);
    let moves = settle(&mut lvs, &mut disks, 0);
    assert!(moves <= least, "{moves} of {least}");
    let spread = disks.iter().map(used).max().unwrap() - disks.iter().map(used).min().unwrap();
    assert!(spread <= 1, "{:?}", disks.iter().map(used).collect::<Vec<_>>());
}

#[test]
fn disks_that_differ_by_less_than_the_spread_move_nothing() {
    let mut disks: Vec<DiskInfo> = (0..4).map(|id| disk(id, id, 400)).collect();
    let lvs = filled(&mut disks, 5);
    assert_ne!(planned(&lvs, &disks, 0, 9), [], "they could be more even");
    assert_eq!(planned(&lvs, &disks, 5, 9), []);
}

#[test]
fn a_copy_that_is_filled_where_it_helps_nobody_goes() {
    let mut disks: Vec<DiskInfo> = (0..4).map(|id| disk(id, id, 10)).collect();
    let copy = |replica: u32| LvCopy {
        current: replica < 3,
        ..LvCopy::whole(replica as usize, DiskId(replica))
    };
    let lvs = vec![(LvId(0), (0..4).map(copy).collect::<Vec<_>>())];
    for disk in &mut disks {
        disk.pv_free = 5;
    }
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), [LvMove::Drop(LvId(0), 3)]);
    disks[1].pv_free = 4;
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), [], "it helps disk 1");
}

/// Volumes with four copies, on three full disks and a fourth that came back, of so many.
fn returned(lvs: u32) -> (Lvs, Vec<DiskInfo>) {
    let mut disks: Vec<DiskInfo> = (0..4).map(|id| disk(id, id, lvs)).collect();
    let copies = |_| (0..4).map(|at| LvCopy::whole(at as usize, DiskId(at))).collect();
    disks.iter_mut().for_each(|disk| disk.pv_free = 0);
    ((0..lvs).map(|lv| (LvId(lv), copies(lv))).collect(), disks)
}

/// Has one copy more dropped than wanted of each volume, a few at a time. Meanwhile orders are repeated as managers do,
/// and disks get and lose room. Returns the disk that each left.
fn leave_one_each(
    lvs: &mut Lvs,
    disks: &mut [DiskInfo],
    drops: impl Fn(usize) -> usize,
) -> Vec<DiskId> {
    let mut ordered: BTreeMap<LvId, BTreeSet<usize>> = BTreeMap::new();
    let mut left = Vec::new();
    for turn in 0.. {
        let moves = plan_moves(lvs, disks, RULES, 128);
        let goes = |lv, replica| moves.contains(&LvMove::Drop(lv, replica));
        for (lv, copies) in &mut *lvs {
            copies.iter_mut().for_each(|copy| copy.ordered = goes(*lv, copy.replica));
            let now = copies.iter().filter(|copy| copy.ordered).map(|copy| copy.replica);
            ordered.entry(*lv).or_default().extend(now);
            assert!(ordered[lv].len() <= 1, "{lv} was told to empty {:?}", ordered[lv]);
        }
        if moves.is_empty() {
            break;
        }
        for step in moves.iter().rev().take(drops(turn)) {
            let LvMove::Drop(lv, replica) = *step else { panic!("{step:?}") };
            let copies = &mut lvs[lv.0 as usize].1;
            let at = copies.iter().position(|copy| copy.replica == replica).unwrap();
            left.push(copies.remove(at).disk);
            disks.iter_mut().find(|disk| disk.disk == left[left.len() - 1]).unwrap().pv_free += 1;
            ordered.remove(&lv);
        }
    }
    left
}

#[test]
fn a_volume_has_one_copy_told_to_go_until_it_is_gone_whatever_becomes_of_others() {
    for count in [2, 3, 40, 300] {
        let (mut lvs, mut disks) = returned(count);
        let left = leave_one_each(&mut lvs, &mut disks, |turn| turn % 3);
        assert_eq!(left.len(), count as usize);
        assert!(lvs.iter().all(|(_, copies)| copies.len() == RULES.copies));
    }
}

#[test]
fn many_volumes_with_a_copy_too_many_leave_disks_evenly() {
    let (mut lvs, mut disks) = returned(100);
    lvs.truncate(75);
    disks[3].pv_free = 25;
    leave_one_each(&mut lvs, &mut disks, |_| 128);
    let used: Vec<u32> = disks.iter().map(used).collect();
    let spread = used.iter().max().unwrap() - used.iter().min().unwrap();
    assert!(spread <= 1, "{used:?}");
}

#[test]
fn a_copy_that_is_empty_goes_before_any_other_does() {
    let (mut lvs, mut disks) = returned(1);
    disks[1].pv_free = 1;
    lvs[0].1[1].emptied = true;
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), [LvMove::Drop(LvId(0), 1)]);
    disks[0].placement_state = PlacementState::Out;
    disks.push(disk(4, 4, 1));
    let next = plan_moves(&lvs, &disks, RULES, 9);
    assert_eq!(next, [LvMove::Add(LvId(0), DiskId(4))], "it counts for nothing");
    lvs[0].1.push(LvCopy::whole(4, DiskId(4)));
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), [LvMove::Drop(LvId(0), 1)]);
}

/// Volumes with a copy on each of three machines of so many disks. Those of the first are small and fuller: each volume has
/// a copy on every machine, so that none can move.
fn stuck(count: u32, disks_each: u32) -> (Lvs, Vec<DiskInfo>) {
    let size = |machine| if machine == 0 { count } else { 2 * count };
    let place =
        |machine, n| disk(machine * disks_each + n, machine, size(machine) / disks_each + 9);
    let mut disks: Vec<DiskInfo> =
        (0..3).flat_map(|machine| (0..disks_each).map(move |n| place(machine, n))).collect();
    let on = |lv: u32, machine: u32| DiskId(machine * disks_each + lv % disks_each);
    let copies = |lv| (0..3).map(|at| LvCopy::whole(at as usize, on(lv, at))).collect();
    let lvs: Lvs = (0..count).map(|lv| (LvId(lv), copies(lv))).collect();
    for copy in lvs.iter().flat_map(|(_, copies)| copies) {
        disks[copy.disk.0 as usize].pv_free -= 1;
    }
    (lvs, disks)
}

#[test]
fn volumes_that_cannot_move_are_looked_at_a_few_times_each_and_a_part_at_a_time() {
    let (lvs, disks) = stuck(100_000, 24);
    let written = BTreeSet::new();
    let of = |first, lvs_max| Balance { first, lvs_max, ..of(&lvs, &written, &disks, 5) };
    let (mut first, mut plans) = (0, 0);
    while plans == 0 || first >= BALANCE_LVS_MAX {
        let aims = of(first, BALANCE_LVS_MAX);
        let mut plan = Plan::new(&aims);
        assert_eq!((plan.set_apart(2), plan.even_out(2)), (vec![], vec![]));
        assert_eq!(plan.seen, BALANCE_LVS_MAX, "from {first}");
        assert!(plan.looks < 12 * BALANCE_LVS_MAX, "{} looks", plan.looks);
        let planned = plan_balance(&aims, 2);
        assert!(planned.shifts.is_empty() && !planned.is_whole);
        (first, plans) = (planned.next, plans + 1);
    }
    assert_eq!(plans, 100_000usize.div_ceil(BALANCE_LVS_MAX), "all had their turn");
    let all = of(0, usize::MAX);
    let mut plan = Plan::new(&all);
    assert_eq!((plan.set_apart(1000), plan.even_out(1000)), (vec![], vec![]));
    assert!(plan.looks < BALANCE_CANDIDATES_MAX + 100, "{} looks", plan.looks);
    assert_eq!(plan_balance(&all, 0).shifts, []);
}

#[test]
fn disks_that_are_even_cost_one_look_at_a_volume() {
    let (lvs, mut disks) = stuck(1000, 4);
    disks.iter_mut().for_each(|disk| (disk.pv_count, disk.pv_free) = (1000, 500));
    let written = BTreeSet::new();
    let of = of(&lvs, &written, &disks, 0);
    let mut plan = Plan::new(&of);
    assert_eq!((plan.set_apart(9), plan.even_out(9)), (vec![], vec![]));
    let looks = lvs.len() + 2 * disks.len();
    assert!(plan.seen == lvs.len() && plan.looks <= looks, "{} looks", plan.looks);
    assert!(plan_balance(&of, 9).is_whole);
}

#[test]
fn a_plan_goes_on_where_the_one_before_ended() {
    let (mut lvs, mut disks) = stuck(100, 2);
    // Of all volumes one has no copy on the third machine.
    lvs[70].1[2].disk = DiskId(6);
    disks.push(disk(6, 3, 1));
    disks[6].pv_free = 0;
    let written = BTreeSet::new();
    let (mut first, mut found) = (0, Vec::new());
    for _ in 0..10 {
        let of = Balance { first, lvs_max: 20, ..of(&lvs, &written, &disks, 5) };
        let planned = plan_balance(&of, 2);
        found.extend(planned.shifts.iter().map(|shift| (first, shift.lv)));
        first = planned.next;
    }
    assert_eq!(found, [(60, LvId(70)), (60, LvId(70))]);
}

#[test]
fn a_volume_that_lacks_a_copy_does_not_move() {
    let mut disks = vec![disk(0, 0, 4), disk(1, 1, 9), disk(2, 2, 4), disk(3, 0, 9)];
    let copies = || vec![LvCopy::whole(0, DiskId(0)), LvCopy::whole(1, DiskId(1))];
    let mut lvs: Lvs = (0..4).map(|lv| (LvId(lv), copies())).collect();
    (disks[0].pv_free, disks[1].pv_free, disks[2].pv_free) = (0, 5, 0);
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), [], "no third machine has room");
    assert_eq!(planned(&lvs, &disks, 5, 9), [], "a copy more would be none too many");
    for (_, copies) in &mut lvs {
        copies.push(LvCopy::whole(2, DiskId(2)));
    }
    let shifts = planned(&lvs, &disks, 5, 9);
    assert!(!shifts.is_empty());
    assert!(shifts.iter().all(|it| (it.from, it.to) == (DiskId(0), DiskId(3))), "{shifts:?}");
}

#[test]
fn what_takes_writes_moves_only_from_full_disks_and_while_nothing_new_has_room() {
    let mut disks: Vec<DiskInfo> = (0..3).map(|id| disk(id, id, 12)).collect();
    let lvs = filled(&mut disks, 12);
    let written = |shifts: &[CopyMove]| shifts.iter().filter(|shift| shift.lv.0 % 4 == 0).count();
    disks.push(disk(3, 3, 12));
    let shifts = planned(&lvs, &disks, 5, 9);
    assert!(shifts.len() > 4);
    assert_eq!((written(&shifts), written(&shifts[..2])), (2, 2), "{shifts:?}");
    disks.extend([disk(4, 4, 12), disk(5, 5, 12)]);
    let shifts = planned(&lvs, &disks, 5, 9);
    assert_eq!((shifts.len(), written(&shifts)), (9, 0), "three machines have room");
}

#[test]
fn a_disk_without_room_is_full_however_many_places_it_has() {
    let mut disks: Vec<DiskInfo> = (0..3).map(|id| disk(id, id, 512)).collect();
    let lvs = filled(&mut disks, 8);
    disks.push(disk(3, 3, 512));
    assert_eq!(planned(&lvs, &disks, 5, 9), [], "8 of 512 are no reason to move");
    for disk in &mut disks[..3] {
        (disk.placement_state, disk.room) = (PlacementState::Away, Room::None);
    }
    let shifts = planned(&lvs, &disks, 5, 2);
    assert_eq!(shifts.len(), 2, "a new volume has one machine of three");
    assert!(shifts.iter().all(|it| it.to == DiskId(3) && it.lv.0 % 4 == 0), "{shifts:?}");
}

#[test]
fn no_copy_goes_while_too_few_of_the_others_are_on_servers_that_are_up() {
    let (lvs, mut disks) = returned(1);
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), [LvMove::Drop(LvId(0), 0)]);
    (disks[2].placement_state, disks[2].up) = (PlacementState::Away, false);
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), []);
    let mut lvs = lvs;
    lvs[0].1[0].ordered = true;
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), [], "an order is not repeated either");
    lvs[0].1[0].ordered = false;
    lvs[0].1[2].ordered = true;
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), [LvMove::Drop(LvId(0), 2)], "it may itself");
}

#[test]
fn a_copy_that_is_filled_on_a_disk_without_room_goes() {
    let (mut lvs, mut disks) = returned(1);
    (disks[3].pv_count, disks[3].pv_free) = (9, 8);
    lvs[0].1[3].current = false;
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), [], "it is filled");
    (disks[3].placement_state, disks[3].room) = (PlacementState::Away, Room::None);
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), [LvMove::Drop(LvId(0), 3)]);
    (disks[3].placement_state, disks[3].room) = (PlacementState::In, Room::Doubtful);
    lvs[0].1[3].ordered = true;
    assert_eq!(
        plan_moves(&lvs, &disks, RULES, 9),
        [LvMove::Drop(LvId(0), 3)],
        "once told, it goes"
    );
}

#[test]
fn a_disk_that_had_no_room_of_late_is_given_nothing() {
    let mut disks: Vec<DiskInfo> = (0..3).map(|id| disk(id, id, 10)).collect();
    let lvs = filled(&mut disks, 9);
    disks.push(DiskInfo { room: Room::Doubtful, ..disk(3, 3, 10) });
    assert_eq!(planned(&lvs, &disks, 0, 9), []);
}

#[test]
fn uses_differ_by_so_many_points_exactly() {
    let of = |used, size| Load {
        used,
        aside: 0,
        written: 0,
        size,
        free: 1,
        is_open: true,
        takes: true,
        lacks_room: false,
        domain: leaf(&disk(0, 0, 1)).domain(Level::Machine),
    };
    let five = Ratio(5, 100);
    assert!(of(109, 1000).is_wide(&of(50, 1000), five), "10.9 against 5.0");
    assert!(of(100, 1000).is_wide(&of(50, 1000), five), "10 against 5");
    assert!(!of(99, 1000).is_wide(&of(50, 1000), five), "9.9 against 5");
    assert!(of(7, 7).is_wide(&of(99, 100), five), "a full one");
    assert!(!of(1, 7).is_wide(&of(99, 100), five), "another");
    let full = Load { lacks_room: true, ..of(1, 7) };
    assert!(full.is_wide(&of(99, 100), five), "one whose file system is");
}

#[test]
fn a_disk_that_takes_nothing_is_given_nothing() {
    let mut disks: Vec<DiskInfo> = (0..3).map(|id| disk(id, id, 10)).collect();
    let lvs = filled(&mut disks, 9);
    for (placement_state, weight) in
        [(PlacementState::Away, 9), (PlacementState::Out, 9), (PlacementState::In, 0)]
    {
        let new = DiskInfo { placement_state, weight: Weight(weight), ..disk(3, 3, 10) };
        let disks: Vec<DiskInfo> = disks.iter().copied().chain([new]).collect();
        assert_eq!(planned(&lvs, &disks, 0, 9), [], "{placement_state:?}, {weight}");
    }
}

#[test]
fn copies_that_leave_hold_up_no_repair() {
    let mut disks: Vec<DiskInfo> = (0..5).map(|id| disk(id, id, 99)).collect();
    disks[4].placement_state = PlacementState::Out;
    let whole = |lv: u32, on: [u32; 3]| {
        let copies = (0..).zip(on).map(|(replica, disk)| LvCopy::whole(replica, DiskId(disk)));
        (LvId(lv), copies.collect::<Vec<_>>())
    };
    let mut lvs: Lvs = (0..4).map(|lv| whole(lv, [0, 1, 2])).collect();
    for (_, copies) in &mut lvs {
        copies.push(LvCopy { ordered: true, ..LvCopy::whole(3, DiskId(3)) });
    }
    lvs.extend((4..8).map(|lv| whole(lv, [0, 1, 4])));
    let adds = plan_moves(&lvs, &disks, RULES, 4);
    let adds = adds.iter().filter(|step| matches!(step, LvMove::Add(..))).count();
    assert_eq!(adds, 4);
}

/// Disks, by machine and size, in so many racks: filled to a share of a third of their room, and with the last ones added
/// after that. `None` of disks of one machine.
fn filled_and_grown(
    sizes: &[(u32, u32)],
    share: u32,
    late: usize,
    racks: u32,
) -> Option<(Lvs, Vec<DiskInfo>)> {
    let mut disks: Vec<DiskInfo> =
        (0..).zip(sizes).map(|(id, (machine, size))| disk(id, *machine, *size)).collect();
    disks.iter_mut().for_each(|it| it.domains.rack = RackId(it.server.0 % racks));
    let late = disks.split_off(disks.len() - late.min(disks.len() - 1));
    let machines: BTreeSet<ServerId> = disks.iter().map(|disk| disk.server).collect();
    if machines.len() < 2 {
        return None;
    }
    let room: u32 = disks.iter().map(|disk| disk.pv_count).sum();
    let lvs = filled(&mut disks, (room * share).div_ceil(300));
    disks.extend(late);
    Some((lvs, disks))
}

proptest! {
    #[test]
    fn moving_ends_is_safe_lowers_the_spread_and_moves_no_more_than_needed(
        sizes in proptest::collection::vec((0..6u32, 1..40u32), 3..14),
        share in 1..100u32,
        late in 1..4usize,
        spread_percent in 0..10u64,
        racks in 1..4u32,
    ) {
        let Some((mut lvs, mut disks)) = filled_and_grown(&sizes, share, late, racks) else {
            return Err(TestCaseError::reject("the disks are one machine's"));
        };
        let sum = |disks: &[DiskInfo]| -> f64 {
            disks.iter().map(|disk| f64::from(used(disk)).powi(2) / f64::from(disk.pv_count)).sum()
        };
        let (before, least) = (sum(&disks), least(&disks));
        // For use alone.
        let moves = settle_by(&mut lvs, &mut disks, |lvs, disks| {
            let written = BTreeSet::new();
            Plan::new(&of(lvs, &written, disks, spread_percent)).even_out(2)
        });
        // A disk a part of a PV below its ideal takes one, and may give one again.
        prop_assert!(moves <= least + disks.len(), "{} of {}", moves, least);
        prop_assert!(moves == 0 || sum(&disks) < before);
        // And for distance.
        settle(&mut lvs, &mut disks, spread_percent);
        for (lv, copies) in &lvs {
            prop_assert!(apart(copies, &disks)[1] > 1 || !apart::has_other_machine(copies, &disks), "{} {:?}", lv, copies);
        }
    }
}
