use larder_types::limits::BLOCK_BYTES;
use larder_types::{
    BootId, DiskId, GrantKey, Holders, MapVersion, OpId, OpSeq, PvId, ServerId, View,
};

use super::*;
use crate::limits::FREED_REST_MS_MAX;
use crate::lv::{LvInfo, Replica, ReplicaState};
use crate::space::{FreeRuns, NoSpace, SpaceUse};

const LV: LvId = LvId(1);
const OTHER: LvId = LvId(2);
const REST: u64 = 1000;
/// Blocks of a volume, and those that rest at most.
const BLOCKS: u32 = 200;
const BLOCKS_REST: u32 = 100;

fn info(lv: LvId, blocks: u32, replicas: u32) -> LvInfo {
    let replica = |at| Replica {
        server: ServerId(at),
        boot: BootId(1),
        disk: DiskId(at),
        pv: PvId(0),
        state: ReplicaState::Current,
    };
    let replicas: Vec<_> = (1..=replicas).map(replica).collect();
    LvInfo { lv, blocks, copies: replicas.len() as u8, replicas, as_of: MapVersion(1) }
}

/// A group without volumes, where what is freed rests for a second.
fn empty() -> VolumeGroup {
    let mut group = VolumeGroup::new(View(3));
    group.rest_for(REST);
    group
}

fn add(group: &mut VolumeGroup, info: LvInfo) {
    let (lv, blocks, replicas) = (info.lv, info.blocks, info.replicas.len());
    group.add(info, FreeRuns::whole(blocks));
    for replica in 0..replicas {
        group.floor_acknowledged(lv, replica, floor(0));
    }
}

/// A group of one volume on one replica.
fn group() -> VolumeGroup {
    let mut group = empty();
    add(&mut group, info(LV, BLOCKS, 1));
    group
}

fn floor(seq: u64) -> GrantKey {
    GrantKey { view: View(3), seq: OpSeq(seq) }
}

fn extent(first: u32, blocks: u32) -> Extent {
    Extent { first, blocks }
}

fn allocate(group: &mut VolumeGroup, blocks: u32) -> Result<Vec<Extent>, NoSpace> {
    group.allocate(blocks * BLOCK_BYTES, 0).map(|(_, extents)| extents)
}

/// All blocks of a volume are used.
fn fill(group: &mut VolumeGroup, lv: LvId) {
    group.lvs.get_mut(&lv).unwrap().runs = FreeRuns::default();
}

/// An op frees an extent, and the floor passes it.
fn free_in(group: &mut VolumeGroup, lv: LvId, extent: Extent, by: u64, now_ms: u64) {
    group.set_now(now_ms);
    group.free(lv, &[extent], OpId { view: View(3), seq: OpSeq(by) }, false);
    group.raises_due(OpSeq(by + 1), true);
    group.floor_acknowledged(lv, 0, floor(by + 1));
}

fn free(group: &mut VolumeGroup, extent: Extent, by: u64, now_ms: u64) {
    free_in(group, LV, extent, by, now_ms);
}

#[test]
fn freed_blocks_are_given_after_those_that_were_free_before() {
    let mut group = group();
    assert_eq!(allocate(&mut group, 40).unwrap(), vec![extent(0, 40)]);
    free(&mut group, extent(0, 40), 7, 100);
    let usage = SpaceUse { total: 200, free: 160, resting: 40, ..SpaceUse::default() };
    assert_eq!(group.usage(), usage);
    assert!(group.wants_tick());
    assert_eq!(allocate(&mut group, 30).unwrap(), vec![extent(40, 30)], "not the tightest run");
    group.set_now(100 + REST - 1);
    group.end_rests(REST);
    assert_eq!(group.usage().resting, 40);
    group.set_now(100 + REST);
    group.end_rests(FREED_REST_MS_MAX);
    assert_eq!(group.usage().resting, 40, "it is read");
    group.end_rests(REST);
    assert_eq!(group.usage().resting, 0);
    assert!(!group.wants_tick(), "nothing is left to do");
    assert_eq!(allocate(&mut group, 30).unwrap(), vec![extent(0, 30)]);
    assert_eq!(group.given_up(), 0);
}

#[test]
fn a_put_that_finds_no_other_space_is_given_what_has_rested_longest() {
    let mut group = group();
    fill(&mut group, LV);
    free(&mut group, extent(60, 80), 5, 100);
    free(&mut group, extent(0, 20), 7, 200);
    assert_eq!(allocate(&mut group, 20).unwrap(), vec![extent(60, 20)]);
    assert_eq!((group.usage().resting, group.given_up()), (20, 80));
    assert_eq!(allocate(&mut group, 80).unwrap(), vec![extent(80, 60), extent(0, 20)]);
    assert_eq!(allocate(&mut group, 1), Err(NoSpace::NeedLv), "nothing rests any more");
}

#[test]
fn blocks_that_rest_do_not_make_a_volume_full() {
    let mut group = group();
    allocate(&mut group, 169).unwrap();
    free(&mut group, extent(0, 100), 7, 100);
    assert_eq!(allocate(&mut group, 31).unwrap(), vec![extent(169, 31)]);
    assert_eq!(group.usage().resting, 100, "all others are used");
    assert_eq!(allocate(&mut group, 20).unwrap(), vec![extent(0, 20)]);
}

#[test]
fn overwrites_write_no_more_of_a_volume_than_what_is_live_and_what_may_rest() {
    let mut group = group();
    let (mut used, mut end) = (Vec::new(), 0);
    for round in 1..100 {
        let next = allocate(&mut group, 20).unwrap();
        end = end.max(next.iter().map(Extent::end).max().unwrap());
        for extent in std::mem::replace(&mut used, next) {
            free(&mut group, extent, round, round);
        }
    }
    // An object that is written while the one before it is live, and what rests.
    assert_eq!(end, 20 + 20 + BLOCKS_REST);
    assert_eq!(group.usage().resting, u64::from(BLOCKS_REST));
}

#[test]
fn a_small_volume_has_half_of_it_rest_and_a_large_one_a_part() {
    let rest = |blocks| info(LV, blocks, 1).resting_max();
    assert_eq!([rest(200), rest(32_768), rest(40_000)], [100, 16_384, 16_384]);
    assert_eq!([rest(131_072), rest(524_288)], [16_384, 65_536]);
}

#[test]
fn an_extent_of_more_blocks_than_may_rest_is_free_at_once() {
    let mut group = group();
    fill(&mut group, LV);
    free(&mut group, extent(0, 40), 7, 100);
    free(&mut group, extent(50, BLOCKS_REST + 1), 8, 100);
    let usage = group.usage();
    assert_eq!((usage.free, usage.resting, group.given_up()), (101, 40, 101));
}

#[test]
fn while_a_disk_has_no_room_nothing_rests() {
    let mut group = group();
    allocate(&mut group, 40).unwrap();
    free(&mut group, extent(0, 20), 7, 100);
    let refused = allocate(&mut group, 30).unwrap();
    group.withhold(LV, &refused, Holders::default(), 200);
    assert_eq!(group.usage().resting, 0);
    assert_eq!(allocate(&mut group, 20).unwrap(), vec![extent(0, 20)], "it was written before");
    free(&mut group, extent(20, 20), 8, 300);
    assert_eq!(group.usage().resting, 0);
    assert_eq!(allocate(&mut group, 20).unwrap(), vec![extent(20, 20)]);
}

#[test]
fn while_little_room_is_left_on_a_disk_nothing_rests() {
    let mut group = group();
    allocate(&mut group, 80).unwrap();
    free(&mut group, extent(0, 40), 7, 100);
    group.note_free_space(true);
    free(&mut group, extent(40, 20), 8, 100);
    assert_eq!((group.usage().resting, group.given_up()), (40, 20));
    group.end_rests(REST);
    assert_eq!((group.usage().resting, group.given_up()), (0, 60));
    group.note_free_space(false);
    free(&mut group, extent(60, 20), 9, 100);
    assert_eq!(group.usage().resting, 20, "there is room again");
}

#[test]
fn no_more_extents_rest_than_are_remembered() {
    let mut resting = group();
    let lv = resting.lvs.get_mut(&LV).unwrap();
    let rest = Rest { for_ms: REST, ..Rest::default() };
    lv.runs = FreeRuns::default();
    lv.info.blocks = 4 * RESTING_EXTENTS_MAX as u32;
    for at in 0..=RESTING_EXTENTS_MAX as u32 {
        lv.rest(extent(2 * at, 1), rest);
    }
    assert_eq!(lv.resting.blocks() as usize, RESTING_EXTENTS_MAX);
    assert_eq!(lv.resting.extents.capacity(), RESTING_EXTENTS_MAX, "memory for no more either");
    assert_eq!(lv.runs.blocks(), 1);
    assert_eq!(resting.given_up(), 1);
    let lv = resting.lvs.get_mut(&LV).unwrap();
    while lv.give_oldest().is_some() {}
    assert!(lv.resting.extents.capacity() <= GIVEN_UP_TOGETHER, "memory is given back");
}

#[test]
fn one_tick_ends_the_rest_of_a_bounded_number_of_extents() {
    let mut group = group();
    let lv = group.lvs.get_mut(&LV).unwrap();
    let rest = Rest { for_ms: REST, ..Rest::default() };
    lv.runs = FreeRuns::default();
    lv.info.blocks = 4 * RESTING_EXTENTS_MAX as u32;
    (0..RESTING_EXTENTS_MAX as u32).for_each(|at| lv.rest(extent(2 * at, 1), rest));
    group.set_now(REST);
    group.end_rests(REST);
    assert_eq!(group.usage().free as usize, RESTS_ENDED_MAX);
    assert!(group.wants_tick());
    group.end_rests(REST);
    assert_eq!((group.usage().resting, group.given_up()), (0, 0));
}

#[test]
fn the_volume_gives_first_whose_blocks_have_rested_longest() {
    let mut group = empty();
    for lv in [LV, OTHER] {
        add(&mut group, info(lv, BLOCKS, 1));
        fill(&mut group, lv);
    }
    free_in(&mut group, OTHER, extent(0, 50), 5, 100);
    free_in(&mut group, LV, extent(0, 50), 6, 200);
    free_in(&mut group, LV, extent(100, 30), 7, 300);
    // There are not so many in the other, which keeps them.
    let given = group.allocate(70 * BLOCK_BYTES, 0).unwrap();
    assert_eq!(given, (LV, vec![extent(0, 50), extent(100, 20)]));
    assert_eq!(group.usage().resting, 50);
    free_in(&mut group, LV, extent(0, 50), 8, 400);
    let given = group.allocate(10 * BLOCK_BYTES, 0).unwrap();
    assert_eq!(given, (LV, vec![extent(120, 10)]), "it is free");
    let given = group.allocate(10 * BLOCK_BYTES, 0).unwrap();
    assert_eq!(given, (OTHER, vec![extent(0, 10)]), "the oldest");
}

#[test]
fn what_rests_is_given_on_most_replicas_after_what_is_free_there() {
    let mut group = empty();
    for lv in [LV, OTHER] {
        add(&mut group, info(lv, BLOCKS, 3));
        group.close(lv, 2);
    }
    fill(&mut group, LV);
    let lv = group.lvs.get_mut(&LV).unwrap();
    lv.rest(extent(0, 40), Rest { for_ms: REST, ..Rest::default() });
    let most = Holders(0b011);
    let given = group.allocate_on_most(20 * BLOCK_BYTES, 2, 0).unwrap();
    assert_eq!(given, (OTHER, vec![extent(0, 20)], most));
    fill(&mut group, OTHER);
    let given = group.allocate_on_most(20 * BLOCK_BYTES, 2, 0).unwrap();
    assert_eq!(given, (LV, vec![extent(0, 20)], most));
}
