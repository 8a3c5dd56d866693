//! Chunks that move within a fragmented LV while clients go on.

use larder_protocol::limits::VACATE_MS;
use larder_protocol::pg::{Move, MoveCounts, StartedCompaction, chunk_at};
use larder_protocol::space::Fragmentation;
use larder_protocol::{DataAnswer, DataRequest, Effect, Event, Index, LogEntry};
use larder_types::{Body, Chunk, Extent, Grant, Holders, Op, OpSeq};

use crate::support::{BLOCK, LV, Member, info, key};

/// Any free space is worth it as soon as the largest chunk of late does not fit a piece of it.
const EAGER: Fragmentation = Fragmentation { free_percent: 1, scattered_percent: 1, pieces: 1 };
const BOTH: Holders = Holders(0b11);
/// Where `b` lies at first, and where it is to lie.
const HIGH: Extent = Extent { first: 60, blocks: 10 };
const LOW: Extent = Extent { first: 31, blocks: 10 };

impl Member {
    /// One LV with `x` in its first 31 blocks, `b` in 10 from block 60 on, and nothing else.
    fn scattered() -> Self {
        let mut pg = Self::alone(2);
        pg.store("a", 60, 2);
        pg.store("b", 10, 2);
        pg.delete("a");
        pg.settle();
        let token = pg.put_data("x", 31);
        pg.raise();
        let grant = pg.granted(token);
        pg.sync();
        pg.commit(grant, 2);
        pg.settle();
        pg.effects.clear();
        assert_eq!(pg.chunk("b").extents, [HIGH]);
        pg
    }

    /// Both replicas answer the floors that they were asked for; returns the highest.
    fn raise(&mut self) -> Option<OpSeq> {
        let raised = self.requests().into_iter().filter_map(|(replica, request)| match request {
            DataRequest::RaiseFloor { floor } => Some((replica, floor)),
            _ => None,
        });
        let raised: Vec<_> = raised.collect();
        for &(replica, floor) in &raised {
            self.answer(replica, DataAnswer::Floor(floor));
        }
        raised.iter().map(|(_, floor)| floor.seq).max()
    }

    fn chunk(&self, name: &str) -> Chunk {
        match self.row(name).expect("an object").body {
            Body::Chunk(chunk) => chunk,
            other => panic!("no chunk: {other:?}"),
        }
    }

    /// Walks over the index; returns the chunks that are to move.
    fn compact(&mut self) -> Vec<Move> {
        let mut rows = Vec::new();
        let scanned = self.table.scan_prefix(b"", &mut |row, value| {
            rows.push((row.to_vec(), value.to_vec()));
            std::ops::ControlFlow::Continue(())
        });
        scanned.expect("a scan");
        let mut moves = Vec::new();
        for (row, value) in rows {
            let found = chunk_at(&row, &value, 1, |_| true).expect("a readable row");
            if let Some((_, chunk)) = found {
                let found = self.pg.consider_move(&row, &chunk, &self.table);
                moves.extend(found.expect("a readable row").map(|to| *to));
            }
        }
        moves
    }

    /// `b` is to move.
    fn begin_move(&mut self) -> Move {
        assert_eq!(self.pg.begin_compaction(EAGER).lvs, 1);
        let mut moves = self.compact();
        assert_eq!(moves.len(), 1, "{moves:?}");
        moves.remove(0)
    }

    fn moved(&mut self, to: &Move, is_copied: bool) {
        let (row, grant) = (to.row.clone(), to.grant);
        self.step(Event::Moved { row, grant, is_copied });
    }

    /// The copies are durable, and the index shows what comes of it.
    fn end_move(&mut self, to: &Move) {
        self.moved(to, true);
        self.step(Event::Tick);
        self.settle();
    }

    /// Blocks that are free or rest, and that wait.
    fn unused(&self) -> (u64, u64) {
        let space = self.pg.gauges().space;
        (space.free + space.resting, space.waiting)
    }
}

#[test]
fn a_chunk_that_lies_high_moves_below_the_live_blocks() {
    let mut pg = Member::scattered();
    assert_eq!(pg.pg.fragmented(EAGER), 1);
    assert_eq!(pg.compact(), [], "nothing moves before compaction begins");
    let applied = pg.pg.applied().seq;
    let before = pg.chunk("b");
    let to = pg.begin_move();
    assert_eq!((&to.chunk, &to.extents[..], to.replicas), (&before, &[LOW][..], BOTH));
    assert_eq!(to.grant.op, key(1, applied.0 + 1), "below every op that can free its place");
    assert_eq!(pg.chunk("b").extents, [HIGH], "it lies there until it is copied");
    pg.end_move(&to);
    let after = pg.chunk("b");
    assert_eq!((after.lv, &after.extents[..], after.holders), (LV, &[LOW][..], BOTH));
    assert_eq!((after.seed, after.len, &after.sums), (before.seed, before.len, &before.sums));
    let is_move = |(entry, _): &&(LogEntry, OpSeq)| matches!(*entry.op, Op::Moved { .. });
    let op = pg.log.iter().rfind(is_move).expect("an op moves it").0.id;
    assert_eq!(after.grant, Grant { op, attempt: 0, ..before.grant }, "a place of its own");
    assert_eq!(pg.unused(), (49, 10), "what it left waits");
    assert_eq!(pg.pg.move_counts(), MoveCounts { moved: 1, void: 0 });
    // 60 blocks would fit what is free when the floors have passed the move.
    let token = pg.put_data("big", 55);
    assert_eq!(pg.raise(), Some(op.seq.next()));
    let grant = pg.granted(token);
    pg.sync();
    pg.commit(grant, 2);
    pg.settle();
    assert_eq!(pg.chunk("big").extents, [Extent { first: 41, blocks: 55 }], "in one piece");
}

#[test]
fn no_floor_passes_a_copy_under_way_and_a_failed_one_gives_its_place_back() {
    let mut pg = Member::scattered();
    let to = pg.begin_move();
    assert_eq!(pg.unused(), (49, 0));
    pg.delete("x");
    pg.settle();
    let token = pg.put_data("big", 50);
    assert_eq!(pg.raise(), None, "it would void the copy, and frees nothing");
    pg.moved(&to, false);
    assert_eq!(pg.unused(), (49, 31 + 10), "a late write of the copy is waited for");
    pg.step(Event::Tick);
    pg.put_data("bigger", 51);
    let floor = pg.raise().expect("a floor");
    assert!(floor > to.grant.op.seq, "a late copy is void");
    assert_eq!(pg.granted(token).op.view, to.grant.op.view);
    assert!(!pg.log.iter().any(|(entry, _)| matches!(*entry.op, Op::Moved { .. })));
    pg.moved(&to, true);
    pg.step(Event::Tick);
    assert_eq!(pg.pg.gauges().moves, 0, "it is over");
}

#[test]
fn a_chunk_that_is_gone_or_replaced_leaves_its_new_place_free() {
    for is_replaced in [false, true] {
        let mut pg = Member::scattered();
        let to = pg.begin_move();
        let grant = if is_replaced {
            Some(pg.store("b", 3, 2))
        } else {
            pg.delete("b");
            pg.settle();
            None
        };
        pg.end_move(&to);
        assert_eq!(pg.row("b").map(|_| pg.chunk("b").grant), grant);
        assert_eq!(pg.pg.move_counts(), MoveCounts { moved: 0, void: 1 });
        let (free, waiting) = pg.unused();
        let used = 31 + if is_replaced { 3 } else { 0 };
        assert_eq!((free + waiting, waiting), (100 - used, 20), "both places wait");
    }
}

#[test]
fn of_two_moves_of_one_chunk_the_later_is_void() {
    let mut pg = Member::scattered();
    let first = pg.begin_move();
    pg.moved(&first, true);
    pg.step(Event::Tick);
    pg.pg.end_compaction();
    assert_eq!(
        pg.pg.begin_compaction(EAGER),
        StartedCompaction::default(),
        "not while one is in the log"
    );
    pg.settle();
    pg.moved(&first, true);
    pg.step(Event::Tick);
    pg.settle();
    assert_eq!(pg.pg.move_counts(), MoveCounts { moved: 1, void: 0 });
}

#[test]
fn what_was_under_way_is_forgotten_with_its_view() {
    let mut pg = Member::scattered();
    let to = pg.begin_move();
    pg.begin(2, &[1]);
    pg.serve(2);
    assert_eq!(pg.unused(), (59, 0), "rows and open puts alone use space");
    pg.moved(&to, true);
    assert_eq!((pg.pg.gauges().moves, pg.chunk("b").extents), (0, vec![HIGH]));
}

#[test]
fn a_move_in_the_log_takes_effect_in_the_next_view() {
    let mut pg = Member::scattered();
    let to = pg.begin_move();
    pg.moved(&to, true);
    pg.step(Event::Tick);
    pg.sync();
    let mut pg = pg.restart();
    pg.begin(2, &[1]);
    pg.serve(2);
    assert_eq!(pg.chunk("b").extents, [LOW]);
    assert_eq!(pg.unused(), (59, 0));
}

#[test]
fn nothing_moves_while_copies_are_to_be_made_or_given_up() {
    let mut pg = Member::scattered();
    let to = pg.begin_move();
    let (lv, order) = (LV, larder_protocol::manager::state::MapVersion(9));
    pg.step(Event::Vacate { lv, replica: 1, order, is_lost: false, away: Holders::default() });
    assert_eq!(pg.pg.wants_walk(), None, "the copy under way is for it as well");
    pg.moved(&to, true);
    assert_eq!(pg.unused(), (49, 10), "it is not to be named any more");
    pg.step(Event::Tick);
    pg.settle();
    assert_eq!(pg.chunk("b").extents, [HIGH]);
    assert!(pg.pg.wants_walk().is_some());
    assert_eq!(pg.pg.begin_compaction(EAGER), StartedCompaction::default());
    assert_eq!(pg.pg.fragmented(EAGER), 0, "it takes no objects");
}

#[test]
fn what_a_walk_passed_over_for_copies_is_compacted_soon_after_them() {
    let mut pg = Member::scattered();
    assert_eq!(pg.pg.begin_compaction(EAGER).lvs, 1);
    let (lv, order) = (LV, larder_protocol::manager::state::MapVersion(9));
    pg.step(Event::Vacate { lv, replica: 1, order, is_lost: false, away: Holders::default() });
    assert_eq!(pg.compact(), [], "copies come first");
    pg.pg.end_compaction();
    // The order is not repeated, so it was taken back, and nothing lacks a copy.
    pg.now_ms += VACATE_MS + 1;
    pg.step(Event::Tick);
    while let Some(walk) = pg.pg.wants_walk() {
        pg.step(Event::Walked { walk, unmet: std::collections::BTreeSet::new() });
    }
    assert_eq!(pg.begin_move().extents, [LOW]);
}

#[test]
fn a_walk_counts_for_nothing_while_a_chunk_moves() {
    let mut pg = Member::scattered();
    let to = pg.begin_move();
    let walk = pg.pg.wants_walk();
    assert_eq!(walk, None, "there is no reason");
    // A replica comes: the copy under way is not given to it.
    let mut wider = info(3);
    wider.as_of = larder_protocol::manager::state::MapVersion(2);
    pg.step(Event::Lv(wider));
    pg.effects.clear();
    pg.step(Event::Walked { walk: 1, unmet: std::collections::BTreeSet::new() });
    let reported = |effect: &Effect| matches!(effect, Effect::Rebuilt { .. });
    assert!(!pg.effects.iter().any(reported), "it lacks what moves");
    pg.moved(&to, true);
    assert_eq!(pg.unused(), (49, 10), "one replica has no copy there");
    assert!(pg.pg.wants_walk().is_some());
    assert_eq!(u64::from(to.chunk.len), 10 * u64::from(BLOCK));
}
