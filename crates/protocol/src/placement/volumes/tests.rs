//! Volumes beside disks that are full, away or gone.

use larder_types::{RegionId, ServerId};

use super::*;
use crate::placement::{FailureDomains, MachineId, RackId};

const RULES: CopyRules = CopyRules { copies: 3, min_copies: 2 };
const LV: LvId = LvId(0);

/// Disks, each of a machine of its own, of which a fifth is used.
fn disks(count: u32) -> Vec<DiskInfo> {
    let disk = |id| DiskInfo {
        disk: DiskId(id),
        server: ServerId(id),
        domains: FailureDomains { region: RegionId(0), rack: RackId(0), machine: MachineId(id) },
        weight: Weight(100),
        pv_count: 100,
        pv_free: 80,
        placement_state: PlacementState::In,
        up: true,
        room: Room::Some,
    };
    (0..count).map(disk).collect()
}

fn mark_full(disks: &mut [DiskInfo], id: usize) {
    (disks[id].placement_state, disks[id].room) = (PlacementState::Away, Room::None);
}

fn is_down(disks: &mut [DiskInfo], id: usize) {
    (disks[id].placement_state, disks[id].up) = (PlacementState::Away, false);
}

/// A volume's copies on these disks, in their order; those of the second are being filled.
fn copies(whole: &[u32], filled: &[u32]) -> Vec<LvCopy> {
    let copies = (0..).zip(whole.iter().chain(filled));
    copies
        .map(|(at, disk)| LvCopy { current: at < whole.len(), ..LvCopy::whole(at, DiskId(*disk)) })
        .collect()
}

fn next(copies: &[LvCopy], disks: &[DiskInfo]) -> Option<LvMove> {
    let moves = plan_moves(&[(LV, copies.to_vec())], disks, RULES, 100);
    assert!(moves.len() < 2, "a step of each volume at a time");
    moves.first().copied()
}

#[test]
fn a_copy_that_is_filled_stays_while_a_server_is_down_that_has_another() {
    for fuller in 0..4 {
        let mut disks = disks(4);
        disks[fuller].pv_free = 10;
        is_down(&mut disks, 2);
        let filled = copies(&[0, 1, 2], &[3]);
        assert_eq!(
            next(&filled, &disks),
            None,
            "the lost one counted as away again, for a new leader"
        );
        mark_full(&mut disks, 3);
        assert_eq!(next(&filled, &disks), None, "it may be all that is left");
        is_down(&mut disks, 1);
        assert_eq!(next(&filled, &disks), None);
        disks[2].up = true;
        disks[1].up = true;
        assert_eq!(next(&filled, &disks), Some(LvMove::Drop(LV, 3)), "there are three that are up");
    }
}

#[test]
fn what_is_gone_goes_before_a_copy_that_a_full_disk_cannot_take() {
    let mut disks = disks(6);
    mark_full(&mut disks, 4);
    let beside = copies(&[0, 1, 3, 2], &[4]);
    // Its server is lost, and its disk not removed yet: the primary gives up what the full disk has, once three have it.
    disks[2].up = false;
    disks[2].placement_state = PlacementState::Out;
    assert_eq!(next(&beside, &disks), Some(LvMove::Drop(LV, 4)));
    disks.remove(2);
    assert_eq!(next(&beside, &disks), Some(LvMove::Drop(LV, 3)));
}

#[test]
fn full_disks_one_after_the_other_leave_no_volume_with_a_copy_less() {
    let mut disks = disks(7);
    mark_full(&mut disks, 3);
    mark_full(&mut disks, 4);
    let is_added = |step| matches!(step, Some(LvMove::Add(LV, DiskId(5 | 6))));
    let two = copies(&[0, 1], &[3, 4]);
    assert!(is_added(next(&two, &disks[..])), "{:?}", next(&two, &disks));
    let mut one = copies(&[0, 5], &[3, 4]);
    assert_ne!(next(&one, &disks), None);
    one = copies(&[0], &[3, 4, 5]);
    assert_eq!(next(&one, &disks), None, "one is being filled");
    let many = copies(&[0, 1], &[2, 3, 4, 5, 6]);
    (2..7).for_each(|id| mark_full(&mut disks, id));
    assert_eq!(next(&many, &disks), None, "there is an end to it");
}

#[test]
fn copies_that_are_to_leave_keep_no_others_from_coming() {
    let mut disks = disks(10);
    (0..5).for_each(|id| disks[id].placement_state = PlacementState::Out);
    let of_five_drains = copies(&[0, 1, 2, 3, 4, 5, 6], &[]);
    let step = next(&of_five_drains, &disks);
    assert!(matches!(step, Some(LvMove::Add(LV, DiskId(7..=9)))), "{step:?}");
}

#[test]
fn of_two_copies_the_one_on_a_full_disk_is_the_one_too_many() {
    let mut disks = disks(4);
    disks[0].pv_free = 10;
    let moved = copies(&[0, 1, 2, 3], &[]);
    assert_eq!(next(&moved, &disks), Some(LvMove::Drop(LV, 0)), "the fullest by volumes");
    mark_full(&mut disks, 2);
    assert_eq!(next(&moved, &disks), Some(LvMove::Drop(LV, 2)), "it may lack what was put of late");
    // Not if the others would lie nearer together then.
    disks[1].domains = disks[0].domains;
    assert_eq!(next(&moved, &disks), Some(LvMove::Drop(LV, 0)));
}

#[test]
fn a_volume_that_no_disk_can_repair_is_none_that_is_repaired() {
    let mut disks = disks(4);
    let filled = [(LV, copies(&[0, 1], &[2]))];
    assert!(repairs(&filled, &disks, RULES));
    mark_full(&mut disks, 2);
    assert!(!repairs(&filled, &disks, RULES));
    disks[2].room = Room::Unmade;
    assert!(repairs(&filled, &disks, RULES), "what is there is filled");
    assert!(!repairs(&[(LV, copies(&[0, 1, 3], &[2]))], &disks, RULES), "it has all");
}

#[test]
fn where_one_volume_cannot_be_made_the_others_are_filled() {
    let mut disks = disks(4);
    (disks[3].placement_state, disks[3].room) = (PlacementState::Away, Room::Unmade);
    let made = copies(&[0, 1], &[3]);
    assert_eq!((next(&made, &disks), filling(&[(LV, made.clone())], &disks).all()), (None, 1));
    let unmade: Vec<LvCopy> =
        made.into_iter().map(|copy| LvCopy { made: copy.current, ..copy }).collect();
    assert_eq!(next(&unmade, &disks), Some(LvMove::Drop(LV, 2)));
}

#[test]
fn a_drain_goes_on_beside_a_disk_farther_away_that_lately_took_nothing() {
    // Three copies on one machine, and one that leaves a disk of another with a second disk.
    let mut disks = disks(5);
    disks[..3].iter_mut().for_each(|disk| disk.domains.machine = MachineId(0));
    disks[4].domains.machine = MachineId(3);
    disks[3].placement_state = PlacementState::Out;
    let mut near = copies(&[0, 1, 2, 3], &[]);
    near[3].ordered = true;
    assert_eq!(next(&near, &disks), Some(LvMove::Add(LV, DiskId(4))));
    disks[4].room = Room::Doubtful;
    assert_eq!(next(&near, &disks), Some(LvMove::Drop(LV, 3)));
}

#[test]
fn a_drain_removes_nothing_while_the_remaining_copies_are_away() {
    let mut disks = disks(4);
    disks[0].placement_state = PlacementState::Out;
    let mut drained = copies(&[0, 1, 2, 3], &[]);
    assert_eq!(next(&drained, &disks), Some(LvMove::Drop(LV, 0)));
    is_down(&mut disks, 1);
    assert_eq!(next(&drained, &disks), None, "it may be one of three that are left");
    // Told before, it is told on: its primary sees who is up, and would fill it again otherwise.
    drained[0].ordered = true;
    assert_eq!(next(&drained, &disks), Some(LvMove::Drop(LV, 0)));
    drained[0].ordered = false;
    drained[0].emptied = true;
    assert_eq!(next(&drained, &disks), Some(LvMove::Drop(LV, 0)), "it has nothing");
}

#[test]
fn a_lost_copy_is_replaced_before_it_is_given_up() {
    let mut disks = disks(6);
    disks.retain(|disk| !matches!(disk.disk, DiskId(1 | 2)));
    let two_lost = copies(&[0, 1, 2], &[]);
    let Some(LvMove::Add(LV, to)) = next(&two_lost, &disks) else { panic!("it has one copy") };
    let mut filled = copies(&[0, 1, 2], &[to.0]);
    assert_eq!(next(&filled, &disks), Some(LvMove::Drop(LV, 1)), "meanwhile");
    filled[1].ordered = true;
    assert_eq!(next(&filled, &disks), Some(LvMove::Drop(LV, 2)), "in the same walk");
    filled[3].current = true;
    assert!(matches!(next(&filled, &disks), Some(LvMove::Add(..))), "the third");
    // Where there is no place for another it is given up at once.
    disks.truncate(1);
    assert_eq!(next(&two_lost, &disks), Some(LvMove::Drop(LV, 1)));
}

#[test]
fn volumes_with_more_copies_hold_up_none_with_fewer() {
    let mut disks = disks(6);
    disks.retain(|disk| !matches!(disk.disk, DiskId(1 | 2)));
    let with_two = copies(&[0, 3], &[4]);
    let lvs: Vec<(LvId, Vec<LvCopy>)> = (0..4)
        .map(|lv| (LvId(lv), with_two.clone()))
        .chain((4..8).map(|lv| (LvId(lv), copies(&[0, 3], &[]))))
        .chain((8..12).map(|lv| (LvId(lv), copies(&[0, 1, 2], &[]))))
        .collect();
    let filling = filling(&lvs, &disks);
    assert_eq!((filling.all(), filling.up_to(1), filling.up_to(2)), (4, 0, 4));
    let planned = |limit| -> Vec<u32> {
        let moves = plan_moves_beside(&lvs, &disks, RULES, limit, &filling);
        let adds = moves.iter().map(|step| match step {
            LvMove::Add(lv, _) => lv.0,
            LvMove::Drop(..) => panic!("{moves:?}"),
        });
        adds.collect()
    };
    assert_eq!(planned(4), [8, 9, 10, 11], "those with one copy");
    assert_eq!(planned(3), [8, 9, 10], "no more than may be");
    assert_eq!(planned(10), [8, 9, 10, 11, 4, 5], "then those with two");
}
