use larder_types::{BootId, DiskId, GrantKey, MapVersion, OpId, OpSeq, PvId, ServerId, View};

use super::*;
use crate::lv::{Replica, ReplicaState};
use crate::space::{NoSpace, SpaceUse};

const LV: LvId = LvId(1);
const MARK: u32 = 60;

fn extent(first: u32, blocks: u32) -> Extent {
    Extent { first, blocks }
}

fn key(seq: u64) -> GrantKey {
    GrantKey { view: View(3), seq: OpSeq(seq) }
}

/// An LV of 100 blocks, of which those below the mark are not known.
fn group() -> VolumeGroup {
    let replica = Replica {
        server: ServerId(1),
        boot: BootId(1),
        disk: DiskId(1),
        pv: PvId(0),
        state: ReplicaState::Current,
    };
    let info =
        LvInfo { lv: LV, blocks: 100, copies: 1, replicas: vec![replica], as_of: MapVersion(1) };
    let mut group = VolumeGroup::new(View(3));
    group.add_above(info, MARK, std::iter::empty()).unwrap();
    group.floor_acknowledged(LV, 0, key(0));
    group
}

fn free(group: &mut VolumeGroup, freed: Extent, by: u64) {
    group.free(LV, &[freed], OpId { view: View(3), seq: OpSeq(by) }, false);
    group.raises_due(OpSeq(by + 1), true);
    group.floor_acknowledged(LV, 0, key(by + 1));
}

#[test]
fn nothing_below_the_mark_is_given_before_the_rows_are_read() {
    let mut group = group();
    assert_eq!(group.allocate(30 * 4096, 0), Ok((LV, vec![extent(60, 30)])));
    free(&mut group, extent(10, 20), 5);
    assert_eq!(group.allocate(20 * 4096, 0), Err(NoSpace::Unread), "another row may name it");
    let usage = SpaceUse { total: 100, free: 10, waiting: 20, resting: 0, withheld: 0, unread: 40 };
    assert_eq!(group.usage(), usage);
    // Rows name all below the mark but for what was freed, and one what was given.
    let named = [extent(0, 10), extent(30, 30), extent(60, 30)];
    assert_eq!(group.complete(LV, named.into_iter()), Ok(()));
    let usage = SpaceUse { total: 100, free: 30, waiting: 0, resting: 0, withheld: 0, unread: 0 };
    assert_eq!(group.usage(), usage);
    assert_eq!(group.unread(), None);
    assert_eq!(group.allocate(20 * 4096, 0), Ok((LV, vec![extent(10, 20)])));
}

#[test]
fn what_waits_for_floors_goes_on_to_wait_when_the_rows_are_read() {
    let mut group = group();
    group.free(LV, &[extent(10, 20)], OpId { view: View(3), seq: OpSeq(5) }, false);
    group.complete(LV, std::iter::once(extent(0, 10))).unwrap();
    let usage = SpaceUse { total: 100, free: 70, waiting: 20, resting: 0, withheld: 0, unread: 0 };
    assert_eq!(group.usage(), usage);
    group.raises_due(OpSeq(6), true);
    group.floor_acknowledged(LV, 0, key(6));
    assert_eq!(group.usage().free, 90);
}

#[test]
fn rows_that_name_what_was_freed_or_is_free_are_a_contradiction() {
    for (named, is_sound) in [
        (extent(0, 10), true),
        (extent(29, 1), false),
        (extent(90, 1), false),
        (extent(60, 30), true),
        (extent(99, 2), false),
    ] {
        let mut group = group();
        group.allocate(30 * 4096, 0).unwrap();
        free(&mut group, extent(10, 20), 5);
        let completed = group.complete(LV, std::iter::once(named));
        assert_eq!(completed.is_ok(), is_sound, "{named:?}: {completed:?}");
    }
}

#[test]
fn the_top_is_where_all_behind_are_free() {
    let mut group = group();
    assert_eq!(group.tops(), [(LV, MARK)].into());
    let (_, given) = group.allocate(10 * 4096, 0).unwrap();
    assert_eq!(group.tops(), [(LV, MARK + 10)].into());
    group.withhold(LV, &given, larder_types::Holders::default(), 0);
    assert_eq!(group.tops(), [(LV, MARK + 10)].into(), "what is withheld is free");
    group.complete(LV, std::iter::once(given[0])).unwrap();
    assert_eq!(group.tops(), [(LV, MARK + 10)].into());
}

#[test]
fn open_puts_have_their_blocks_wherever_they_lie() {
    let grant = larder_types::Grant {
        pg: larder_types::PgId(0),
        op: OpId { view: View(2), seq: OpSeq(9) },
        attempt: 0,
    };
    let chunk = |extents: Vec<Extent>| Chunk {
        grant,
        seed: 1,
        lv: LV,
        len: 4096,
        sums: vec![0],
        holders: larder_types::Holders(1),
        extents,
    };
    let info = group().info(LV).unwrap().clone();
    let open = [chunk(vec![extent(50, 20)]), chunk(vec![extent(90, 10), extent(0, 1)])];
    let mut group = VolumeGroup::new(View(3));
    group.add_above(info.clone(), MARK, open.iter()).unwrap();
    assert_eq!(group.usage().free, 20);
    let twice = [chunk(vec![extent(50, 20)]), chunk(vec![extent(55, 1)])];
    let mut other = VolumeGroup::new(View(3));
    let overlap = SpaceFault::Overlap { lv: LV, extent: extent(55, 1) };
    assert_eq!(other.add_above(info, MARK, twice.iter()), Err(overlap));
}
