use larder_types::{BootId, Chunk, Grant, MapVersion, PgId, PvId, ServerId};
use proptest::prelude::*;

use super::*;
use crate::limits::{ORDER_FRESH_MS, REFUSED_MS, VACATE_MS};
use crate::lv::{Replica, ReplicaState};

fn info() -> LvInfo {
    let replica = |n| Replica {
        server: ServerId(n),
        boot: BootId(1),
        disk: DiskId(n),
        pv: PvId(0),
        state: ReplicaState::Current,
    };
    LvInfo {
        lv: LvId(1),
        blocks: 100,
        copies: 3,
        replicas: vec![replica(1), replica(2)],
        as_of: MapVersion(1),
    }
}

/// A group with a volume of so many replicas, each on a server of its own.
fn with_replicas(count: u32) -> VolumeGroup {
    let replica = |n| Replica { server: ServerId(n), disk: DiskId(n), ..info().replicas[0] };
    let replicas = (1..=count).map(replica).collect();
    let mut group = VolumeGroup::new(View(3));
    group.add(LvInfo { replicas, ..info() }, FreeRuns::whole(100));
    group
}

fn holders(all: &[usize]) -> Holders {
    all.iter().fold(Holders::default(), |holders, at| holders.with(*at))
}

/// A chunk of the volume, with copies on these replicas.
fn chunk(on: &[usize]) -> Chunk {
    let grant = Grant { pg: PgId(0), op: OpId::default(), attempt: 0 };
    let extents = vec![Extent { first: 0, blocks: 1 }];
    Chunk { grant, lv: LvId(1), extents, seed: 0, len: 1, sums: vec![0], holders: holders(on) }
}

fn floor(seq: u64) -> GrantKey {
    GrantKey { view: View(3), seq: OpSeq(seq) }
}

#[test]
fn space_is_given_only_after_every_replica_opened() {
    let mut group = VolumeGroup::new(View(3));
    assert_eq!(group.allocate(1, 0), Err(NoSpace::NeedLv));
    group.add(info(), FreeRuns::whole(100));
    group.floor_acknowledged(LvId(1), 0, floor(0));
    assert_eq!(group.allocate(1, 0), Err(NoSpace::Opening));
    group.floor_acknowledged(LvId(1), 1, GrantKey { view: View(2), seq: OpSeq(9) });
    assert_eq!(group.allocate(1, 0), Err(NoSpace::Opening), "another view's answer counts not");
    group.floor_acknowledged(LvId(1), 1, floor(0));
    assert_eq!(group.allocate(1, 0), Ok((LvId(1), vec![Extent { first: 0, blocks: 1 }])));
}

#[test]
fn most_replicas_give_space_while_one_is_away_and_what_was_freed_there_waits_for_it() {
    let three = |lv: u32| {
        let mut info = LvInfo { lv: LvId(lv), ..info() };
        info.replicas.push(Replica { server: ServerId(3), disk: DiskId(3), ..info.replicas[0] });
        info
    };
    let mut group = VolumeGroup::new(View(3));
    group.add(three(1), FreeRuns::whole(100));
    (0..3).for_each(|replica| {
        group.floor_acknowledged(LvId(1), replica, floor(0));
    });
    assert!(!group.has_most(), "it has all");
    let (_, freed) = group.allocate(40 * BLOCK_BYTES, 0).unwrap();
    group.close(LvId(1), 2);
    assert_eq!(group.allocate(1, 0), Err(NoSpace::NeedLv), "none has all");
    group.free(LvId(1), &freed, floor(7), false);
    assert_eq!(group.raises_due(OpSeq(8), true).len(), 1);
    (0..2).for_each(|replica| {
        group.floor_acknowledged(LvId(1), replica, floor(8));
    });
    let two = Holders::default().with(0).with(1);
    let given = group.allocate_on_most(40 * BLOCK_BYTES, 2, 0).unwrap();
    assert_eq!(given, (LvId(1), vec![Extent { first: 40, blocks: 40 }], two), "not what was freed");
    assert_eq!(group.allocate_on_most(BLOCK_BYTES, 3, 0), None, "the policy wants three");
    group.close(LvId(1), 1);
    assert!(!group.has_most(), "one of three is not most");
    assert!(group.floor_acknowledged(LvId(1), 1, floor(8)), "it is back");
    assert!(!group.floor_acknowledged(LvId(1), 1, floor(8)), "it was");
    assert!(group.has_most());
    // A narrow LV of the same group: two of two would be all, one would be less than any LV may have.
    group.add(LvInfo { lv: LvId(2), ..info() }, FreeRuns::whole(100));
    group.floor_acknowledged(LvId(2), 0, floor(0));
    group.close(LvId(2), 1);
    let (lv, ..) = group.allocate_on_most(BLOCK_BYTES, 0, 0).unwrap();
    assert_eq!(lv, LvId(1));
    group.floor_acknowledged(LvId(1), 2, floor(8));
    assert!(!group.has_most());
    assert_eq!(group.allocate(BLOCK_BYTES, 0).unwrap().0, LvId(1), "it has all again");
}

#[test]
fn while_one_volume_moves_most_replicas_of_others_give_space() {
    let mut group = VolumeGroup::new(View(3));
    let replica = |n| Replica { server: ServerId(n), disk: DiskId(n), ..info().replicas[0] };
    let mut add = |lv: u32, replicas: u32| {
        let replicas: Vec<Replica> = (1..=replicas).map(replica).collect();
        let count = replicas.len();
        group.add(LvInfo { lv: LvId(lv), replicas, ..info() }, FreeRuns::whole(100));
        (0..count).for_each(|at| {
            group.floor_acknowledged(LvId(lv), at, floor(0));
        });
    };
    add(1, 4);
    add(2, 3);
    // The one that moves is full.
    group.allocate(90 * BLOCK_BYTES, 4).unwrap();
    group.close(LvId(2), 0);
    group.close(LvId(1), 0);
    assert!(group.has_most() && group.awaits_replicas());
    let (lv, _, within) = group.allocate_on_most(BLOCK_BYTES, 2, 0).unwrap();
    assert_eq!((lv, within), (LvId(2), Holders::default().with(1).with(2)));
    group.close(LvId(2), 1);
    assert!(!group.has_most(), "one of three is not most");
}

#[test]
fn most_replicas_give_nothing_before_they_opened() {
    let mut group = VolumeGroup::new(View(3));
    let mut three = info();
    three.replicas.push(Replica { server: ServerId(3), disk: DiskId(3), ..three.replicas[0] });
    group.add(three, FreeRuns::whole(100));
    group.close(LvId(1), 2);
    group.floor_acknowledged(LvId(1), 0, floor(0));
    assert!(!group.has_most(), "an older write may still reach the second");
    group.floor_acknowledged(LvId(1), 1, floor(0));
    assert!(group.has_most());
}

#[test]
fn what_leaves_is_given_up_only_when_what_stays_can_be_trusted() {
    let mut group = VolumeGroup::new(View(3));
    group.add(LvInfo { copies: 1, ..info() }, FreeRuns::whole(100));
    group.vacate((LvId(1), 0), MapVersion(5), (false, Holders::default()), 0);
    let chunk = chunk(&[0, 1]);
    let (first, second) = (Holders::default().with(0), Holders::default().with(1));
    assert_eq!(group.need(&chunk, Holders::default()).surplus, first);
    let doubted = group.need(&chunk, second);
    assert_eq!((doubted.surplus, doubted.good), (Holders::default(), first), "it is read from");
}

#[test]
fn what_leaves_is_given_up_once_as_many_that_stay_have_it_as_are_wanted() {
    // The fourth is away for long, and the fifth lies on a disk that is full.
    let mut group = with_replicas(5);
    group.vacate((LvId(1), 4), MapVersion(5), (false, Holders::default()), 0);
    let surplus =
        |on: &[usize], suspected: &[usize]| group.need(&chunk(on), holders(suspected)).surplus;
    assert_eq!(surplus(&[0, 1, 2, 3, 4], &[]), holders(&[4]));
    assert_eq!(surplus(&[0, 1, 2, 4], &[]), holders(&[4]), "three have it, without the fourth");
    assert_eq!(surplus(&[0, 1, 4], &[]), holders(&[]), "two are too few");
    assert_eq!(surplus(&[0, 1, 2, 4], &[2]), holders(&[]), "two that can be trusted");
}

#[test]
fn what_leaves_stays_for_those_that_are_away() {
    let (mut group, chunk) = (with_replicas(4), chunk(&[0, 1, 2, 3]));
    let mut surplus = |away: &[usize]| {
        let is_news = group.vacate((LvId(1), 0), MapVersion(5), (false, holders(away)), 0);
        (group.need(&chunk, Holders::default()).surplus, is_news)
    };
    assert_eq!(surplus(&[2]), (holders(&[]), true), "two of three are up");
    assert_eq!(surplus(&[2]), (holders(&[]), false), "said again");
    assert_eq!(surplus(&[1, 2, 3]), (holders(&[]), false), "it is the last within reach");
    assert_eq!(surplus(&[]), (holders(&[0]), false), "they are back");
    assert_eq!(surplus(&[0]), (holders(&[0]), false), "it is away itself, and three are not");
}

#[test]
fn what_leaves_stays_as_soon_as_others_are_known_to_be_away() {
    let (mut group, chunk) = (with_replicas(4), chunk(&[0, 1, 2, 3]));
    let nobody = Holders::default();
    group.vacate((LvId(1), 0), MapVersion(5), (false, nobody), 0);
    let surplus = |group: &VolumeGroup| group.need(&chunk, nobody).surplus;
    assert_eq!(surplus(&group), holders(&[0]));
    group.set_away(LvId(1), holders(&[1]));
    assert_eq!(surplus(&group), nobody, "the map says so, between two orders");
    group.set_away(LvId(1), nobody);
    assert_eq!(surplus(&group), holders(&[0]));
    group.close(LvId(1), 2);
    assert_eq!(surplus(&group), nobody, "a request to it failed");
}

#[test]
fn who_is_away_is_said_of_a_server_and_not_of_a_number() {
    let (mut group, chunk) = (with_replicas(4), chunk(&[0, 1, 2, 3]));
    let nobody = Holders::default();
    let within_reach = |group: &VolumeGroup| group.need(&chunk, nobody).within_reach;
    group.set_away(LvId(1), holders(&[1]));
    assert_eq!(within_reach(&group), holders(&[0, 1, 2, 3]), "no copies come or go");
    group.vacate((LvId(1), 0), MapVersion(5), (false, holders(&[1, 2, 9])), 0);
    assert_eq!(within_reach(&group), holders(&[0, 3]));
    let mut other = group.info(LvId(1)).expect("it is there").clone();
    other.replicas[1].server = ServerId(77);
    other.replicas[2].boot = BootId(78);
    group.update(other);
    assert_eq!(within_reach(&group), holders(&[0, 1, 2, 3]), "another server, and another run");
    group.set_away(LvId(1), holders(&[3]));
    group.forget_orders(VACATE_MS + 1);
    assert_eq!(within_reach(&group), holders(&[0, 1, 2, 3]), "nobody says it any more");
}

#[test]
fn an_order_that_is_not_repeated_lets_nothing_go() {
    let (mut group, chunk) = (with_replicas(4), chunk(&[0, 1, 2, 3]));
    let nobody = Holders::default();
    group.vacate((LvId(1), 0), MapVersion(5), (false, nobody), 0);
    group.forget_orders(ORDER_FRESH_MS);
    assert_eq!(group.need(&chunk, nobody).surplus, holders(&[0]));
    group.forget_orders(ORDER_FRESH_MS + 1);
    let need = group.need(&chunk, nobody);
    assert_eq!((need.leaving, need.surplus), (holders(&[0]), nobody), "its manager may be gone");
    group.vacate((LvId(1), 0), MapVersion(5), (false, nobody), ORDER_FRESH_MS + 2);
    assert_eq!(group.need(&chunk, nobody).surplus, holders(&[0]));
}

#[test]
fn nothing_goes_where_too_few_are_to_stay() {
    let mut group = with_replicas(3);
    group.vacate((LvId(1), 2), MapVersion(5), (false, Holders::default()), 0);
    let need = group.need(&chunk(&[0, 1, 2]), Holders::default());
    assert_eq!(need.surplus, Holders::default(), "two are left of three that are wanted");
}

#[test]
fn one_replica_of_a_volume_leaves_at_a_time_unless_its_disk_is_lost() {
    let mut group = with_replicas(5);
    let (order, later) = (MapVersion(5), MapVersion(6));
    let (staying, lost) = ((false, Holders::default()), (true, Holders::default()));
    let leaves = |group: &VolumeGroup| -> Vec<_> { group.orders().map(|(_, at, _)| at).collect() };
    assert!(group.vacate((LvId(1), 0), order, staying, 0));
    assert!(!group.vacate((LvId(1), 1), later, staying, 0), "another leaves");
    assert_eq!(leaves(&group), [0]);
    // The first order is not repeated, and forgotten.
    group.forget_orders(VACATE_MS + 1);
    assert!(group.vacate((LvId(1), 1), later, staying, VACATE_MS + 1));
    assert_eq!(leaves(&group), [1]);
    assert!(group.vacate((LvId(1), 2), later, lost, VACATE_MS + 1));
    assert_eq!(leaves(&group), [2], "with a lost one the copy that was to go is wanted");
    assert!(!group.vacate((LvId(1), 1), later, staying, VACATE_MS + 1), "the lost one goes first");
    assert!(group.vacate((LvId(1), 3), later, lost, VACATE_MS + 1));
    assert_eq!(leaves(&group), [2, 3], "what is lost, is");
}

#[test]
fn what_the_managers_may_have_dropped_is_not_taken_back_for_another() {
    let mut group = with_replicas(5);
    group.vacate((LvId(1), 0), MapVersion(5), (false, Holders::default()), 0);
    group.vacated(LvId(1), 0);
    group.forget_orders(9 * VACATE_MS);
    assert!(!group.vacate((LvId(1), 1), MapVersion(6), (false, Holders::default()), 9 * VACATE_MS));
    group.vacate((LvId(1), 2), MapVersion(6), (true, Holders::default()), 9 * VACATE_MS);
    let leaves: Vec<_> = group.orders().map(|(_, at, _)| at).collect();
    assert_eq!(leaves, [0, 2]);
}

#[test]
fn a_lost_replica_stays_lost_when_its_server_restarts() {
    let mut group = VolumeGroup::new(View(3));
    group.add(info(), FreeRuns::whole(100));
    group.vacate((LvId(1), 0), MapVersion(5), (true, Holders::default()), 0);
    let mut restarted = info();
    restarted.replicas[0].boot = BootId(9);
    assert_eq!(group.update(restarted), [0]);
    assert_eq!(group.lost(LvId(1)), Holders::default().with(0));
}

#[test]
fn freed_space_waits_for_the_lowest_floor() {
    let mut group = VolumeGroup::new(View(3));
    group.add(info(), FreeRuns::whole(100));
    group.floor_acknowledged(LvId(1), 0, floor(0));
    group.floor_acknowledged(LvId(1), 1, floor(0));
    let (lv, extents) = group.allocate(40 * BLOCK_BYTES, 0).unwrap();
    group.free(lv, &extents, floor(7), false);
    assert!(group.raises_due(OpSeq(7), true).is_empty(), "a floor at the op itself frees nothing");
    assert!(!group.regains());
    assert_eq!(group.raises_due(OpSeq(8), true), vec![FloorRaise { lv, floor: floor(8) }]);
    assert!(group.regains());
    assert!(group.raises_due(OpSeq(8), true).is_empty(), "asked once");
    group.floor_acknowledged(lv, 0, floor(8));
    assert_eq!(group.usage().waiting, 40);
    group.floor_acknowledged(lv, 1, floor(7));
    assert_eq!(group.usage().waiting, 40, "a floor at the freeing op is not above it");
    group.floor_acknowledged(lv, 1, floor(8));
    assert_eq!(group.usage(), SpaceUse { total: 100, free: 100, ..SpaceUse::default() });
}

#[test]
fn a_replica_that_is_back_is_asked_again_for_the_floor_that_it_missed() {
    let mut group = VolumeGroup::new(View(3));
    group.add(info(), FreeRuns::whole(100));
    (0..2).for_each(|replica| {
        group.floor_acknowledged(LvId(1), replica, floor(0));
    });
    let (lv, extents) = group.allocate(40 * BLOCK_BYTES, 0).unwrap();
    group.free(lv, &extents, floor(7), false);
    assert_eq!(group.raises_due(OpSeq(8), true).len(), 1);
    group.floor_acknowledged(lv, 0, floor(8));
    assert!(group.close(lv, 1));
    assert!(!group.close(lv, 1), "that is no news");
    assert_eq!(group.closed().count(), 1);
    group.floor_acknowledged(lv, 1, floor(5));
    assert_eq!(group.closed().count(), 0);
    assert_eq!(group.raises_due(OpSeq(8), true), vec![FloorRaise { lv, floor: floor(8) }]);
    group.floor_acknowledged(lv, 1, floor(8));
    assert_eq!(group.usage().waiting, 0);
}

#[test]
fn what_a_disk_has_no_room_for_is_withheld_for_a_while() {
    let mut group = VolumeGroup::new(View(3));
    group.add(info(), FreeRuns::whole(100));
    group.floor_acknowledged(LvId(1), 0, floor(0));
    group.floor_acknowledged(LvId(1), 1, floor(0));
    let (lv, written) = group.allocate(40 * BLOCK_BYTES, 0).unwrap();
    let (_, refused) = group.allocate(20 * BLOCK_BYTES, 0).unwrap();
    group.withhold(lv, &refused, Holders::default(), 1_000);
    assert_eq!(
        group.usage(),
        SpaceUse { total: 100, free: 0, waiting: 0, resting: 0, withheld: 40, unread: 0 }
    );
    assert_eq!(group.allocate(1, 0), Err(NoSpace::DiskFull), "another LV would be as full");
    // Space that was written to is given again; that of the refused put is not.
    group.free(lv, &refused, floor(6), false);
    group.free(lv, &written, floor(7), false);
    assert_eq!(group.raises_due(OpSeq(8), true).len(), 1);
    group.floor_acknowledged(lv, 0, floor(8));
    group.floor_acknowledged(lv, 1, floor(8));
    assert_eq!(
        group.usage(),
        SpaceUse { total: 100, free: 40, waiting: 0, resting: 0, withheld: 60, unread: 0 }
    );
    let (_, again) = group.allocate(30 * BLOCK_BYTES, 0).unwrap();
    assert_eq!(again, vec![Extent { first: 0, blocks: 30 }]);
    assert_eq!(group.allocate(20 * BLOCK_BYTES, 0), Err(NoSpace::DiskFull));
    assert!(group.wants_tick());
    group.offer_again(1_000 + WITHHELD_MS - 1);
    assert_eq!(group.usage().withheld, 60);
    group.offer_again(1_000 + WITHHELD_MS);
    assert_eq!(
        group.usage(),
        SpaceUse { total: 100, free: 70, waiting: 0, resting: 0, withheld: 0, unread: 0 }
    );
    assert_eq!(group.allocate(20 * BLOCK_BYTES, 0).unwrap().1[0].first, 30);
}

#[test]
fn a_second_refusal_withholds_from_the_lower_of_both() {
    let mut group = VolumeGroup::new(View(3));
    group.add(info(), FreeRuns::whole(100));
    let extent = |first, blocks| Extent { first, blocks };
    group.withhold(LvId(1), &[extent(10, 5), extent(60, 5)], Holders::default(), 0);
    assert_eq!(group.usage().withheld, 40);
    group.withhold(LvId(1), &[extent(30, 5)], Holders::default(), 0);
    assert_eq!(group.usage().withheld, 70);
    group.withhold(LvId(1), &[extent(80, 5)], Holders::default(), 0);
    assert_eq!(
        group.usage(),
        SpaceUse { total: 100, free: 30, waiting: 0, resting: 0, withheld: 70, unread: 0 }
    );
}

#[test]
fn most_replicas_give_what_is_withheld_because_one_has_no_room_and_it_is_given_no_copies() {
    let mut group = VolumeGroup::new(View(3));
    let mut three = info();
    three.replicas.push(three.replicas[1]);
    group.add(three, FreeRuns::whole(100));
    (0..3).for_each(|replica| {
        group.floor_acknowledged(LvId(1), replica, floor(0));
    });
    let (lv, refused) = group.allocate(20 * BLOCK_BYTES, 0).unwrap();
    let (full, others) = (Holders::default().with(1), Holders::default().with(0).with(2));
    group.withhold(lv, &refused, full, 0);
    assert_eq!(group.allocate(30 * BLOCK_BYTES, 0), Err(NoSpace::DiskFull));
    assert!(
        group.allocate_on_most(30 * BLOCK_BYTES, 3, 0).is_none(),
        "it has fewer than are wanted"
    );
    let (_, extents, holders) = group.allocate_on_most(30 * BLOCK_BYTES, 2, 0).unwrap();
    assert_eq!((extents[0].first, holders), (20, others));
    assert!(group.has_most());
    let chunk = Chunk {
        grant: Grant { pg: PgId(0), op: floor(9), attempt: 0 },
        seed: 0,
        lv,
        extents,
        len: 30 * BLOCK_BYTES,
        sums: Vec::new(),
        holders,
    };
    let need = |group: &VolumeGroup| group.need(&chunk, Holders::default());
    assert_eq!((need(&group).absent, need(&group).missing), (full, Holders::default()));
    // Two that have no room are most of it.
    group.withhold(lv, &refused, others, 1);
    assert!(group.allocate_on_most(BLOCK_BYTES, 0, 0).is_none());
    assert!(group.offer_again(1 + WITHHELD_MS));
    assert_eq!(need(&group).missing, full);
    assert!(!group.offer_again(2 + 2 * WITHHELD_MS), "nothing is withheld");
    assert_eq!(group.usage().free, 50, "the refused put has its blocks until it is decided");
    assert_eq!(group.allocate(30 * BLOCK_BYTES, 3).unwrap().1[0].first, 50);
}

#[test]
fn for_a_moment_nothing_is_given_on_a_disk_that_refused_data_as_long_as_others_have_room() {
    let mut group = VolumeGroup::new(View(3));
    let disk = |n| Replica { server: ServerId(n), disk: DiskId(n), ..info().replicas[0] };
    for (lv, disks) in [(1, [1, 2, 3]), (2, [1, 2, 3]), (3, [1, 2, 4])] {
        let replicas = disks.map(disk).to_vec();
        group.add(LvInfo { lv: LvId(lv), replicas, ..info() }, FreeRuns::whole(100));
        (0..3).for_each(|replica| {
            group.floor_acknowledged(LvId(lv), replica, floor(0));
        });
    }
    assert_eq!(group.allocate_degraded(1, 0, 0).unwrap().0, LvId(1));
    let (lv, refused) = group.allocate(20 * BLOCK_BYTES, 0).unwrap();
    assert!(!group.refused_lately(0));
    group.withhold(lv, &refused, Holders::default().with(2), 1000);
    assert!(
        group.refused_lately(1000 + REFUSED_MS - 1) && !group.refused_lately(1000 + REFUSED_MS)
    );
    let beside = |group: &mut VolumeGroup, now_ms| {
        group.allocate_degraded(80 * BLOCK_BYTES, 3, now_ms).map(|(lv, _)| lv)
    };
    assert_eq!(group.allocate_degraded(1, 4, 1000), None, "it has fewer than are wanted");
    assert_eq!(beside(&mut group, 1000), Some(LvId(3)), "the second lies on the same disk");
    assert_eq!(beside(&mut group, 1000), None, "the third is full");
    assert_eq!(beside(&mut group, 1000 + REFUSED_MS), Some(LvId(2)));
    group.offer_again(1000 + REFUSED_MS);
    assert!(!group.refused_lately(1000), "it is forgotten");
}

#[test]
fn most_replicas_of_a_volume_beside_a_disk_that_refused_data_come_first() {
    let mut group = VolumeGroup::new(View(3));
    let disk = |n| Replica { server: ServerId(n), disk: DiskId(n), ..info().replicas[0] };
    for (lv, disks) in [(1, [1, 2, 9]), (2, [1, 4, 5])] {
        let replicas = disks.map(disk).to_vec();
        group.add(LvInfo { lv: LvId(lv), replicas, ..info() }, FreeRuns::whole(100));
        (0..3).for_each(|replica| {
            group.floor_acknowledged(LvId(lv), replica, floor(0));
        });
    }
    assert!(group.close(LvId(1), 2));
    let (lv, refused) = group.allocate(1, 3).unwrap();
    group.withhold(lv, &refused, Holders::default().with(0), 1000);
    assert_eq!(group.allocate_on_most(1, 2, 1000).unwrap().0, LvId(2));
    assert_eq!(group.allocate_on_most(1, 2, 1000 + REFUSED_MS).unwrap().0, LvId(1));
}

#[test]
fn a_full_volume_takes_no_objects() {
    let mut group = VolumeGroup::new(View(3));
    group.add(info(), FreeRuns::whole(100));
    group.floor_acknowledged(LvId(1), 0, floor(0));
    group.floor_acknowledged(LvId(1), 1, floor(0));
    assert!(group.allocate(85 * BLOCK_BYTES, 0).is_ok());
    assert_eq!(group.allocate(1, 0), Err(NoSpace::NeedLv));
}

proptest! {
    #[test]
    fn no_block_is_given_twice_and_none_leaks(steps in prop::collection::vec((any::<bool>(), 1u32..20), 1..200)) {
        let mut runs = FreeRuns::whole(256);
        let mut held: Vec<Vec<Extent>> = Vec::new();
        let mut owner = vec![false; 256];
        for (take, n) in steps {
            if take {
                if let Some(extents) = runs.allocate(n) {
                    prop_assert_eq!(extents.iter().map(|e| e.blocks).sum::<u32>(), n);
                    for b in extents.iter().flat_map(|e| e.first..e.end()) {
                        prop_assert!(!owner[b as usize]);
                        owner[b as usize] = true;
                    }
                    held.push(extents);
                }
            } else if !held.is_empty() {
                for extent in held.swap_remove(n as usize % held.len()) {
                    for b in extent.first..extent.end() {
                        owner[b as usize] = false;
                    }
                    runs.release(extent);
                }
            }
            prop_assert_eq!(runs.blocks() as usize, owner.iter().filter(|o| !**o).count());
        }
        for extents in held {
            extents.into_iter().for_each(|e| runs.release(e));
        }
        prop_assert_eq!(runs.by_start.len(), 1);
    }
}
