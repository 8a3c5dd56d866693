use larder_types::limits::{BLOCK_BYTES, CHUNK_BLOCKS_MAX};
use larder_types::{Chunk, Grant, GrantKey, Holders, MapVersion, OpId, OpSeq, PgId, View};

use super::super::{FreeRuns, VolumeGroup};
use super::*;
use crate::lv::LvInfo;

const LV: LvId = LvId(1);

fn chunk(extents: &[(u32, u32)]) -> Chunk {
    let op = OpId { view: View(1), seq: OpSeq(9) };
    Chunk {
        grant: Grant { pg: PgId(0), op, attempt: 0 },
        seed: 1,
        lv: LV,
        extents: extents.iter().map(|&(first, blocks)| Extent { first, blocks }).collect(),
        len: BLOCK_BYTES,
        sums: vec![0],
        holders: Holders(1),
    }
}

fn floor(seq: u64) -> GrantKey {
    GrantKey { view: View(1), seq: OpSeq(seq) }
}

/// An LV with one replica, in this run of its server.
fn info(blocks: u32, boot: u64, as_of: MapVersion) -> LvInfo {
    let replica = crate::lv::Replica {
        server: larder_types::ServerId(1),
        boot: larder_types::BootId(boot),
        disk: larder_types::DiskId(1),
        pv: larder_types::PvId(0),
        state: crate::lv::ReplicaState::Current,
    };
    LvInfo { lv: LV, blocks, copies: 1, replicas: vec![replica], as_of }
}

/// A group with one open LV, of which these runs are free.
fn group(blocks: u32, free: &[(u32, u32)]) -> VolumeGroup {
    let info = info(blocks, 1, MapVersion(1));
    let mut runs = FreeRuns::default();
    free.iter().for_each(|&(first, blocks)| runs.release(Extent { first, blocks }));
    let mut group = VolumeGroup::new(View(1));
    group.add(info, runs);
    group.floor_acknowledged(LV, 0, floor(0));
    group
}

/// Every eighth block of so many is used, all others are free: runs of seven.
fn sevens(blocks: u32) -> Vec<(u32, u32)> {
    (0..blocks / 8).map(|at| (at * 8 + 1, 7)).collect()
}

/// Asks for a chunk of so many blocks, and gives it back as if it had never been written.
fn ask(group: &mut VolumeGroup, blocks: u32) {
    if let Ok((lv, extents)) = group.allocate(blocks * BLOCK_BYTES, 0) {
        group.free(lv, &extents, floor(0), true);
    }
}

#[test]
fn space_in_short_pieces_is_fragmented_only_for_chunks_that_need_many_of_them() {
    let mut group = group(4096, &sevens(4096));
    let from = Fragmentation::default();
    assert_eq!(group.fragmented(from), 0, "nobody wants anything");
    ask(&mut group, 56);
    assert_eq!(group.fragmented(from), 0, "eight pieces make it");
    ask(&mut group, 57);
    assert_eq!(group.fragmented(from), 1);
    for _ in 0..2 * REQUEST_WINDOW {
        ask(&mut group, 1);
    }
    assert_eq!(group.fragmented(from), 0, "it was asked for long ago");
}

#[test]
fn what_is_full_or_has_most_of_its_space_together_is_not_fragmented() {
    let from = Fragmentation::default();
    let fragmented = |blocks, free: &[(u32, u32)]| {
        let mut group = group(blocks, free);
        ask(&mut group, CHUNK_BLOCKS_MAX);
        group.fragmented(from)
    };
    let thousands = |count: u32| (0..count).map(|at| (at * 300, 100)).collect::<Vec<_>>();
    assert_eq!(fragmented(12_000, &thousands(40)), 1, "a third is free in pieces of 100");
    assert_eq!(fragmented(40_000, &thousands(40)), 0, "a tenth is");
    let together = [&thousands(40)[..], &[(13_000, 5_000)]].concat();
    assert_eq!(fragmented(18_000, &together), 0, "most of it lies together");
    assert_eq!(fragmented(18_000, &[(0, 18_000)]), 0, "nothing was put yet");
}

#[test]
fn only_what_lies_high_moves_and_only_below_the_live_blocks() {
    // 40 live blocks: 0..10, 30..40, 80..100.
    let mut group = group(100, &[(10, 20), (40, 40)]);
    assert_eq!(group.place_below(&chunk(&[(0, 10)])), None, "it lies low");
    assert_eq!(group.place_below(&chunk(&[(30, 10)])), None, "it ends where the live blocks end");
    let placed = group.place_below(&chunk(&[(80, 12)])).expect("room for it");
    assert_eq!(placed, [Extent { first: 10, blocks: 12 }]);
    // 52 are in use now: the copy is, and the chunk still is.
    let placed = group.place_below(&chunk(&[(92, 8)])).expect("room for it");
    assert_eq!(placed, [Extent { first: 22, blocks: 8 }], "the tightest run");
}

#[test]
fn a_chunk_is_cut_into_few_pieces_if_no_run_below_holds_it() {
    let free: Vec<_> = (0..10).map(|at| (at * 10, 5)).collect();
    let mut uncut = group(400, &[&free[..], &[(150, 200)]].concat());
    assert_eq!(uncut.place_below(&chunk(&[(360, 21)])), None, "five pieces are too many");
    let placed = uncut.place_below(&chunk(&[(360, 17)])).expect("four are not");
    assert_eq!(
        placed.iter().map(|it| (it.first, it.blocks)).collect::<Vec<_>>(),
        [(0, 5), (10, 5), (20, 5), (30, 2)]
    );
    let had_five: Vec<_> = (0..5).map(|at| (350 + at * 10, 5)).collect();
    let mut group = group(400, &[&free[..], &[(150, 200)]].concat());
    assert_eq!(group.place_below(&chunk(&had_five)).map(|it| it.len()), Some(5), "it had as many");
}

#[test]
fn compaction_ends_and_leaves_space_together() {
    // Runs of seven among single blocks, each of a chunk of its own.
    let mut group = group(8000, &sevens(8000));
    ask(&mut group, 1000);
    assert_eq!(group.begin_compaction(Fragmentation::default()).keys().collect::<Vec<_>>(), [&LV]);
    let mut chunks: Vec<Chunk> = (0..1000).map(|at| chunk(&[(at * 8, 1)])).collect();
    let (mut moves, mut op) = (0, 10);
    for chunk in &mut chunks {
        let before = chunk.extents[0].end();
        while let Some(place) = group.place_below(chunk) {
            assert!(place[0].end() < before, "each move brings its end down");
            let left = std::mem::replace(&mut chunk.extents, place);
            op += 1;
            group.free(LV, &left, floor(op), false);
            moves += 1;
        }
    }
    assert!(moves <= 875, "what lies low stays, and nothing moves twice: {moves}");
    assert!(group.begin_compaction(Fragmentation::default()).is_empty(), "nothing became free yet");
    assert_eq!(group.raises_due(OpSeq(op + 1), true).len(), 1);
    group.floor_acknowledged(LV, 0, floor(op + 1));
    assert_eq!(group.fragmented(Fragmentation::default()), 0);
    let (_, extents) = group.allocate(2000 * BLOCK_BYTES, 0).expect("space together");
    assert_eq!(extents.len(), 1, "{extents:?}");
}

#[test]
fn what_could_not_be_moved_is_tried_again_only_when_space_became_free() {
    let from = Fragmentation::default();
    let mut group = group(4096, &sevens(4096));
    ask(&mut group, 1000);
    let high = group.begin_compaction(from);
    assert_eq!(high[&LV], 448, "of 512 blocks, 64 lie low");
    assert!(group.begin_compaction(from).is_empty());
    group.compact_again(LV);
    assert_eq!(group.begin_compaction(from).len(), 1, "for want of a moment");
    let place = group.place_below(&chunk(&[(4088, 1)])).expect("room for it");
    group.give_back(LV, &place, floor(1), true);
    for at in 0..256 / 8 {
        group.free(LV, &[Extent { first: at * 8, blocks: 1 }], floor(1), true);
    }
    assert!(group.begin_compaction(from).is_empty(), "32 blocks are little");
    for at in 0..300 {
        let place = group.place_below(&chunk(&[(4088, 1)])).expect("room for it");
        group.give_back(LV, &place, floor(at), true);
    }
    assert!(group.begin_compaction(from).is_empty(), "what did not move was not freed");
    for at in 0..224 {
        group.free(LV, &[Extent { first: (32 + 2 * at) * 8, blocks: 1 }], floor(1), true);
    }
    assert_eq!(group.begin_compaction(from).len(), 1, "a sixteenth is enough");
}

#[test]
fn what_could_not_be_copied_is_tried_again_when_a_replica_runs_anew() {
    let from = Fragmentation::default();
    let mut group = group(4096, &sevens(4096));
    ask(&mut group, 1000);
    assert_eq!(group.begin_compaction(from).len(), 1);
    assert_eq!(group.update(info(4096, 1, MapVersion(2))), [0; 0]);
    assert!(group.begin_compaction(from).is_empty(), "it runs as before");
    assert_eq!(group.update(info(4096, 2, MapVersion(3))), [0]);
    group.floor_acknowledged(LV, 0, floor(0));
    assert_eq!(group.begin_compaction(from).len(), 1);
}
