use larder_types::limits::BLOCK_BYTES;
use larder_types::{
    BootId, DiskId, GrantKey, Holders, MapVersion, OpId, OpSeq, PvId, ServerId, View,
};

use super::*;
use crate::limits::FREED_REST_MS_MAX;
use crate::lv::{LvInfo, Replica, ReplicaState};
use crate::space::{FreeRuns, NoSpace, SpaceUse};

const LV: LvId = LvId(1);
const REST: u64 = 1000;

/// A group of one volume of 100 blocks on one replica, where what is freed rests for a second.
fn group() -> VolumeGroup {
    let (server, disk) = (ServerId(1), DiskId(1));
    let replica =
        Replica { server, boot: BootId(1), disk, pv: PvId(0), state: ReplicaState::Current };
    let info =
        LvInfo { lv: LV, blocks: 100, copies: 1, replicas: vec![replica], as_of: MapVersion(1) };
    let mut group = VolumeGroup::new(View(3));
    group.rest_for(REST);
    group.add(info, FreeRuns::whole(100));
    group.floor_acknowledged(LV, 0, floor(0));
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

/// An op frees an extent, and the floor passes it.
fn free(group: &mut VolumeGroup, extent: Extent, by: u64, now_ms: u64) {
    group.set_now(now_ms);
    group.free(LV, &[extent], OpId { view: View(3), seq: OpSeq(by) }, false);
    group.raises_due(OpSeq(by + 1), true);
    group.floor_acknowledged(LV, 0, floor(by + 1));
}

#[test]
fn freed_blocks_are_given_after_those_that_were_free_before() {
    let mut group = group();
    assert_eq!(allocate(&mut group, 40).unwrap(), vec![extent(0, 40)]);
    free(&mut group, extent(0, 40), 7, 100);
    let usage = SpaceUse { total: 100, free: 60, resting: 40, ..SpaceUse::default() };
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
    assert_eq!(allocate(&mut group, 30).unwrap(), vec![extent(70, 30)]);
    assert_eq!(allocate(&mut group, 30).unwrap(), vec![extent(0, 30)]);
    assert_eq!(group.given_up(), 0);
}

#[test]
fn a_put_that_finds_no_other_space_is_given_what_has_rested_longest() {
    let mut group = group();
    allocate(&mut group, 100).unwrap();
    free(&mut group, extent(60, 20), 5, 100);
    free(&mut group, extent(0, 20), 7, 200);
    assert_eq!(allocate(&mut group, 20).unwrap(), vec![extent(60, 20)]);
    assert_eq!((group.usage().resting, group.given_up()), (20, 20));
    assert_eq!(allocate(&mut group, 20).unwrap(), vec![extent(0, 20)]);
    assert_eq!(allocate(&mut group, 1), Err(NoSpace::NeedLv), "nothing rests any more");
}

#[test]
fn blocks_that_rest_do_not_make_a_volume_full() {
    let mut group = group();
    allocate(&mut group, 90).unwrap();
    free(&mut group, extent(0, 80), 7, 100);
    // 90 percent of it are used or rest.
    assert_eq!(allocate(&mut group, 10).unwrap(), vec![extent(90, 10)]);
    assert_eq!(allocate(&mut group, 70).unwrap(), vec![extent(0, 70)]);
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
fn no_more_extents_rest_than_are_remembered() {
    let mut resting = group();
    let lv = resting.lvs.get_mut(&LV).unwrap();
    let rest = Rest { for_ms: REST, ..Rest::default() };
    lv.runs = FreeRuns::default();
    lv.info.blocks = 2 * RESTING_EXTENTS_MAX as u32;
    for at in 0..=RESTING_EXTENTS_MAX as u32 {
        lv.rest(extent(2 * at, 1), rest);
    }
    assert_eq!(lv.resting.blocks() as usize, RESTING_EXTENTS_MAX);
    assert_eq!(lv.runs.blocks(), 1);
    assert_eq!(resting.given_up(), 1);
}
