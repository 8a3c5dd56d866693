//! Copies that find a place elsewhere, and such that do not.

use larder_types::{LvId, RegionId, ServerId};

use super::*;
use crate::placement::{FailureDomains, MachineId, PlacementState, RackId, Room, Weight};

const RULES: CopyRules = CopyRules { copies: 2, min_copies: 1 };

/// A disk of a machine of its own, unless another has that number, with places in all and those that are free.
fn disk(id: u32, machine: u32, (pv_count, pv_free): (u32, u32)) -> DiskInfo {
    let domains =
        FailureDomains { region: RegionId(0), rack: RackId(0), machine: MachineId(machine) };
    let (server, weight) = (ServerId(machine), Weight(100));
    let (placement_state, up, room) = (PlacementState::In, true, Room::Some);
    DiskInfo {
        disk: DiskId(id),
        server,
        domains,
        weight,
        pv_count,
        pv_free,
        placement_state,
        up,
        room,
    }
}

/// Volumes, each with copies on these disks.
fn volumes(on: &[&[u32]]) -> Vec<(LvId, Vec<LvCopy>)> {
    let copies = |disks: &[u32]| {
        disks.iter().enumerate().map(|(at, disk)| LvCopy::whole(at, DiskId(*disk))).collect()
    };
    (0..).map(LvId).zip(on.iter().map(|disks| copies(disks))).collect()
}

/// Copies on these disks, and those that stay there, if they drain.
fn left(lvs: &[(LvId, Vec<LvCopy>)], disks: &[DiskInfo], leave: &[u32]) -> (usize, usize) {
    let leave: BTreeSet<DiskId> = leave.iter().map(|id| DiskId(*id)).collect();
    let mut disks = disks.to_vec();
    for disk in disks.iter_mut().filter(|disk| leave.contains(&disk.disk)) {
        disk.placement_state = PlacementState::Out;
    }
    let DrainOutcome { copies, stay } = leaving(lvs, &disks, RULES, &leave);
    (copies, stay)
}

#[test]
fn what_the_others_have_no_room_for_stays() {
    let lvs = volumes(&[&[0, 1], &[0, 2], &[0, 1], &[1, 2]]);
    let with = |free| [disk(0, 0, (9, 6)), disk(1, 1, (9, free)), disk(2, 2, (9, free))];
    assert_eq!(left(&lvs, &with(6), &[0]), (3, 0));
    assert_eq!(left(&lvs, &with(1), &[0]), (3, 1), "two places for three copies");
    assert_eq!(left(&lvs, &with(0), &[0]), (3, 3));
    assert_eq!(left(&lvs, &with(0), &[]), (0, 0));
}

#[test]
fn a_place_is_none_on_a_disk_without_room() {
    let lvs = volumes(&[&[0, 1], &[0, 1]]);
    let mut disks = [disk(0, 0, (9, 7)), disk(1, 1, (9, 7)), disk(2, 2, (9, 9))];
    assert_eq!(left(&lvs, &disks, &[0]), (2, 0));
    (disks[2].placement_state, disks[2].room) = (PlacementState::Away, Room::None);
    assert_eq!(left(&lvs, &disks, &[0]), (2, 2));
    let mut filled = volumes(&[&[0, 1, 2]]);
    filled[0].1[2].current = false;
    assert_eq!(left(&filled, &disks, &[0]), (1, 1), "nor is one filled there");
}

#[test]
fn a_place_is_none_for_a_second_copy_of_a_volume() {
    let lvs = volumes(&[&[0, 1], &[0, 1]]);
    let two = [disk(0, 0, (9, 7)), disk(1, 1, (9, 7))];
    assert_eq!(left(&lvs, &two, &[0]), (2, 2));
    // Two disks of one machine: nearer together than before is better than nowhere.
    let three = [two[0], two[1], disk(2, 1, (9, 9))];
    assert_eq!(left(&lvs, &three, &[0]), (2, 0));
}

#[test]
fn disks_that_drain_already_take_places_and_give_none() {
    let lvs = volumes(&[&[0, 2], &[1, 2], &[1, 2]]);
    let mut disks =
        [disk(0, 0, (9, 8)), disk(1, 1, (9, 7)), disk(2, 2, (9, 6)), disk(3, 3, (9, 2))];
    assert_eq!(left(&lvs, &disks, &[0]), (1, 0));
    disks[1].placement_state = PlacementState::Out;
    assert_eq!(left(&lvs, &disks, &[0]), (1, 0), "the first volume is the first to take one");
    assert_eq!(left(&lvs, &disks, &[0, 1]), (3, 1), "three for two places");
    // One of a server that is down takes nothing.
    disks[3].placement_state = PlacementState::Away;
    assert_eq!(left(&lvs, &disks, &[0]), (1, 1));
}

#[test]
fn volumes_all_of_whose_copies_leave_are_moved_one_copy_at_a_time() {
    let lvs = volumes(&[&[0, 1], &[0, 1], &[1, 0]]);
    let disks = [disk(0, 0, (9, 6)), disk(1, 1, (9, 6)), disk(2, 2, (9, 9)), disk(3, 3, (9, 9))];
    assert_eq!(left(&lvs, &disks, &[0, 1]), (6, 0));
}

#[test]
fn copies_that_are_being_filled_count_as_filled() {
    let disks = [disk(0, 0, (9, 7)), disk(1, 1, (9, 7)), disk(2, 2, (9, 8)), disk(3, 3, (9, 9))];
    let mut lvs = volumes(&[&[0, 1, 2], &[0, 1]]);
    lvs[0].1[2].current = false;
    assert_eq!(left(&lvs, &disks, &[0]), (2, 0), "one moves for balance");
    lvs[1].1[1].current = false;
    assert_eq!(left(&lvs, &disks, &[0]), (2, 0), "one is repaired");
    let mut down = disks;
    (down[1].placement_state, down[1].up) = (PlacementState::Away, false);
    (down[3].placement_state, down[3].up) = (PlacementState::Away, false);
    assert_eq!(left(&lvs, &down, &[0]), (2, 2), "what is being filled there is not");
}
