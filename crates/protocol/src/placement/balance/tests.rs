use larder_types::{RegionId, ServerId};
use proptest::prelude::*;

use super::*;
use crate::placement::{FailureDomains, LvMove, MachineId, RackId, place_lv, plan_moves};

const RULES: CopyRules = CopyRules { copies: 3, min_copies: 2 };

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
        standing: Standing::In,
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

fn planned(lvs: &Lvs, disks: &[DiskInfo], spread_percent: u64, limit: usize) -> Vec<Shift> {
    let written = lvs.iter().map(|(lv, _)| *lv).filter(|lv| lv.0 % 4 == 0).collect();
    plan_balance(&Balance { lvs, written: &written, disks, rules: RULES, spread_percent }, limit)
}

/// Moves as a cluster does, a copy more and then one less, until nothing is planned; the moves.
fn settle(lvs: &mut Lvs, disks: &mut [DiskInfo], spread_percent: u64) -> usize {
    let mut moves = 0;
    loop {
        let shifts = planned(lvs, disks, spread_percent, 2);
        if shifts.is_empty() {
            return moves;
        }
        for shift in shifts {
            moves += 1;
            assert!(moves < 10_000, "moving ends");
            let before = machines(&lvs[shift.lv.0 as usize].1, disks);
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
            let after = machines(&lvs[shift.lv.0 as usize].1, disks);
            assert!(
                after >= before,
                "copies of {shift:?} lie on {after} machines, {before} before"
            );
        }
    }
}

/// How many machines copies lie on.
fn machines(copies: &[LvCopy], disks: &[DiskInfo]) -> usize {
    let machine = |copy: &LvCopy| disks.iter().find(|disk| disk.disk == copy.disk).unwrap().server;
    copies.iter().map(machine).collect::<BTreeSet<_>>().len()
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

/// Has one copy more dropped than wanted of each volume, a few at a time, while orders are repeated as managers do and
/// disks get and lose room; which disk each left.
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
    disks[0].standing = Standing::Out;
    disks.push(disk(4, 4, 1));
    let next = plan_moves(&lvs, &disks, RULES, 9);
    assert_eq!(next, [LvMove::Add(LvId(0), DiskId(4))], "it counts for nothing");
    lvs[0].1.push(LvCopy::whole(4, DiskId(4)));
    assert_eq!(plan_moves(&lvs, &disks, RULES, 9), [LvMove::Drop(LvId(0), 1)]);
}

#[test]
fn a_disk_that_takes_nothing_is_given_nothing() {
    let mut disks: Vec<DiskInfo> = (0..3).map(|id| disk(id, id, 10)).collect();
    let lvs = filled(&mut disks, 9);
    for (standing, weight) in [(Standing::Away, 9), (Standing::Out, 9), (Standing::In, 0)] {
        let new = DiskInfo { standing, weight: Weight(weight), ..disk(3, 3, 10) };
        let disks: Vec<DiskInfo> = disks.iter().copied().chain([new]).collect();
        assert_eq!(planned(&lvs, &disks, 0, 9), [], "{standing:?}, {weight}");
    }
}

proptest! {
    #[test]
    fn moving_ends_is_safe_lowers_the_spread_and_moves_no_more_than_needed(
        sizes in proptest::collection::vec((0..6u32, 1..40u32), 3..14),
        share in 1..100u32,
        late in 1..4usize,
        spread_percent in 0..10u64,
    ) {
        let mut disks: Vec<DiskInfo> =
            (0..).zip(&sizes).map(|(id, (machine, size))| disk(id, *machine, *size)).collect();
        let late = disks.split_off(disks.len() - late.min(disks.len() - 1));
        let machines: BTreeSet<ServerId> = disks.iter().map(|disk| disk.server).collect();
        prop_assume!(machines.len() >= 3);
        let room: u32 = disks.iter().map(|disk| disk.pv_count).sum();
        let mut lvs = filled(&mut disks, (room * share).div_ceil(300));
        disks.extend(late);
        let sum = |disks: &[DiskInfo]| -> f64 {
            disks.iter().map(|disk| f64::from(used(disk)).powi(2) / f64::from(disk.pv_count)).sum()
        };
        let (before, least) = (sum(&disks), least(&disks));
        let moves = settle(&mut lvs, &mut disks, spread_percent);
        prop_assert!(moves <= least, "{} of {}", moves, least);
        prop_assert!(moves == 0 || sum(&disks) < before);
    }
}
