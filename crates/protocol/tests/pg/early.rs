//! Serving before the rows are read.

use larder_protocol::pg::{LedgerWalk, Role};
use larder_protocol::{
    Answer, Changes, DataAnswer, DataRequest, Effect, Event, Index, Refusal, Token,
};
use larder_types::codec::{decode, encode};
use larder_types::{Body, Extent, Grant, HighWaterRow, OpId, OpSeq, VersionRow, View, rows};

use super::appends::record;
use super::support::{BUCKET, LV, LV_BLOCKS, Member, PG, key, name_of};

fn granted(member: &mut Member, token: Token) -> (Grant, Extent) {
    match &member.answers(token)[..] {
        [Answer::Granted { grant, extents, .. }] => (*grant, extents[0]),
        other => panic!("not just a grant: {other:?}"),
    }
}

/// Puts an object and has the index show it; returns its first block and the one behind its last.
fn put(member: &mut Member, name: &str, blocks: u32) -> (u32, u32) {
    let token = member.put_data(name, blocks);
    let (grant, extent) = granted(member, token);
    member.sync();
    member.commit(grant, 1);
    member.settle();
    (extent.first, extent.end())
}

/// Has the data server's floors pass all that was freed.
fn pass_floors(member: &mut Member) {
    let (view, last) = (member.pg.view().0, member.pg.last().seq.0);
    member.step(Event::Tick);
    for (replica, request) in member.requests() {
        if let DataRequest::RaiseFloor { floor } = request {
            member.answer(replica, DataAnswer::Floor(floor));
        }
    }
    member.answer(0, DataAnswer::Floor(key(view, last + 1)));
}

fn marks(member: &Member) -> Option<HighWaterRow> {
    let row = member.table.get(&rows::high_water(PG)).expect("a table in memory")?;
    Some(decode("marks row", &row).expect("marks"))
}

fn mark(member: &Member) -> u32 {
    let row = marks(member).expect("each batch has marks");
    assert_eq!(row.op, member.pg.applied(), "they are tied to the applied position");
    row.marks.iter().find(|(lv, _)| *lv == LV).map_or(0, |(_, mark)| *mark)
}

/// Starts again in the next view.
fn restarted(member: Member, view: u64) -> Member {
    let mut member = member.restart();
    member.begin(view, &[1]);
    member.settle();
    member
}

fn read_all(member: &mut Member, walk: &mut LedgerWalk) {
    while !member.read_rows(walk, 1) {}
    member.complete();
}

/// A row that names blocks which another row has.
fn damage(member: &Member, like: &str, name: &str) {
    let row = |name| rows::version(BUCKET, &name_of(name), rows::UNVERSIONED);
    let value = member.table.get(&row(like)).expect("a table in memory").expect("a row");
    let mut changes = Changes::default();
    changes.put(row(name), value.to_vec());
    member.table.write(changes).expect("a table in memory");
}

#[test]
fn each_batch_has_marks_above_what_it_names_with_its_op() {
    let mut member = Member::alone(1);
    for turn in 0..9 {
        let (_, end) = put(&mut member, &format!("o{turn}"), 4);
        assert_eq!(mark(&member), end);
    }
    member.delete("o8");
    member.settle();
    assert_eq!(mark(&member), 36, "marks do not fall");
}

#[test]
fn a_start_gives_what_lies_above_and_the_rest_once_it_is_read() {
    let mut member = Member::alone(1);
    put(&mut member, "a", 20);
    put(&mut member, "b", 20);
    member.delete("a");
    member.settle();
    let mut member = restarted(member, 2);
    assert!(member.pg.has_marks());
    let mut walk = member.serve_early(1);
    assert_eq!(put(&mut member, "c", 15), (40, 55), "the hole of 20 below is not known yet");
    read_all(&mut member, &mut walk);
    assert!(!member.pg.is_unread());
    assert_eq!(put(&mut member, "d", 15), (0, 15), "now it is");
    let space = member.pg.gauges().space;
    assert_eq!((space.free, space.unread, mark(&member)), (50, 0, 55));
    // After all of this the index shows no block that is used twice.
    let mut member = restarted(member, 3);
    member.serve(1);
}

#[test]
fn marks_are_of_the_volumes_that_rows_name() {
    let mut member = Member::alone(1);
    assert!(member.pg.marks_are_of(|_| false), "no row names any");
    put(&mut member, "a", 20);
    let member = restarted(member, 2);
    assert!(member.pg.marks_are_of(|lv| lv == LV));
    assert!(!member.pg.marks_are_of(|_| false), "the map is older than the index");
}

#[test]
fn what_clients_do_while_rows_are_read_leaves_the_space_that_rows_leave() {
    // At each place of the walk: before all, between any two rows, behind all.
    for stop in 0..=5 {
        let mut member = Member::alone(1);
        for name in ["a", "b", "c", "d", "e"] {
            put(&mut member, name, 8);
        }
        let mut member = restarted(member, 2);
        let mut walk = member.serve_early(1);
        let mut is_read = (0..stop).any(|_| member.read_rows(&mut walk, 1));
        member.delete("b");
        put(&mut member, "a", 3);
        put(&mut member, "e", 5);
        put(&mut member, "bb", 2);
        put(&mut member, "f", 4);
        // Its chunk goes on from the object's row to one behind all others.
        record(&mut member, "c", "more");
        member.settle();
        pass_floors(&mut member);
        while !is_read {
            is_read = member.read_rows(&mut walk, 1);
        }
        member.complete();
        assert_eq!(member.pg.contradiction(), None);
        pass_floors(&mut member);
        let early = member.pg.gauges().space;
        let mut member = restarted(member, 3);
        member.serve(1);
        let read_first = member.pg.gauges().space;
        let total = |space: larder_protocol::SpaceUse| space.free + space.waiting + space.resting;
        assert_eq!(total(early), total(read_first), "stopped at {stop}");
        assert_eq!(early.unread, 0);
    }
}

#[test]
fn a_put_that_is_open_at_a_start_keeps_its_blocks_and_raises_the_mark_when_it_is_committed() {
    let mut member = Member::alone(1);
    let token = member.put_data("open", 30);
    let (grant, extent) = granted(&mut member, token);
    member.sync();
    let mut member = restarted(member, 2);
    let mut walk = member.serve_early(1);
    assert_eq!(mark(&member), 0, "no row names anything");
    let other = put(&mut member, "other", 10);
    assert!(other.0 >= extent.end() || other.1 <= extent.first, "{other:?}");
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(0, DataAnswer::Verified(grant));
    member.settle();
    assert!(matches!(member.row("open").unwrap().body, Body::Chunk(_)));
    assert!(mark(&member) >= extent.end());
    read_all(&mut member, &mut walk);
    assert_eq!(member.pg.gauges().space.free, 60);
}

#[test]
fn marks_of_another_op_than_the_applied_one_are_not_believed() {
    let mut member = Member::alone(1);
    put(&mut member, "a", 20);
    let before = marks(&member).unwrap();
    put(&mut member, "b", 20);
    // As a release leaves it that does not know them: the position has moved on.
    let mut changes = Changes::default();
    changes.put(rows::high_water(PG), encode(&before));
    member.table.write(changes).unwrap();
    let mut member = restarted(member, 2);
    assert!(!member.pg.has_marks(), "blocks of b lie above");
    assert_eq!(marks(&member).unwrap(), before, "no batch makes them good");
    member.serve(1);
    assert!(member.pg.has_marks(), "all rows were read");
    member.pg.write_marks(&member.table).unwrap();
    assert_eq!(mark(&member), 40);
    let member = restarted(member, 3);
    assert!(member.pg.has_marks());
}

#[test]
fn rows_without_marks_are_read_first() {
    let mut member = Member::alone(1);
    put(&mut member, "a", 20);
    let mut changes = Changes::default();
    changes.remove(rows::high_water(PG));
    member.table.write(changes).unwrap();
    assert!(!restarted(member, 2).pg.has_marks());
}

#[test]
fn a_put_without_space_above_the_marks_waits_and_is_never_refused_as_full() {
    let mut member = Member::alone(1);
    put(&mut member, "a", 50);
    put(&mut member, "b", 20);
    member.delete("a");
    member.settle();
    let mut member = restarted(member, 2);
    let mut walk = member.serve_early(1);
    put(&mut member, "c", LV_BLOCKS - 70);
    let needs_lv = |member: &mut Member| {
        let before = member.effects.len();
        member.effects.retain(|effect| !matches!(effect, Effect::NeedLv));
        member.effects.len() < before
    };
    let token = member.put_data("d", 10);
    assert!(member.answers(token).is_empty() && !needs_lv(&mut member), "it is read soon");
    member.now_ms += 4_000;
    let later = member.put_data("e", 10);
    assert!(needs_lv(&mut member), "it takes long");
    member.step(Event::PoolEmpty);
    assert!(member.answers(later).is_empty(), "there may be space");
    let third = member.put_data("f", 10);
    assert!(!needs_lv(&mut member), "there was none a moment ago");
    for _ in 0..=larder_protocol::limits::DOUBT_TICKS_MAX {
        member.step(Event::Tick);
    }
    for token in [token, later, third] {
        assert_eq!(member.refusal(token), Refusal::Busy, "its proxy may ask again");
    }
    let last = member.put_data("g", 10);
    read_all(&mut member, &mut walk);
    assert_eq!(granted(&mut member, last).1, Extent { first: 0, blocks: 10 }, "it is fed");
}

#[test]
fn what_was_freed_below_the_mark_is_not_used_again_before_the_rows_are_read() {
    let mut member = Member::alone(1);
    put(&mut member, "a", 50);
    let mut member = restarted(member, 2);
    let mut walk = member.serve_early(1);
    member.delete("a");
    member.settle();
    pass_floors(&mut member);
    let space = member.pg.gauges().space;
    assert_eq!((space.free, space.waiting), (50, 50), "the floors have passed it");
    read_all(&mut member, &mut walk);
    let space = member.pg.gauges().space;
    assert_eq!((space.free, space.resting, space.waiting), (50, 50, 0));
}

#[test]
fn rows_that_contradict_each_other_halt_the_group_and_void_its_marks() {
    // Both rows are read; or one is gone by then, and what it had was freed.
    for is_deleted in [false, true] {
        let mut member = Member::alone(1);
        put(&mut member, "a", 20);
        damage(&member, "a", "b");
        let mut member = restarted(member, 2);
        let mut walk = member.serve_early(1);
        put(&mut member, "c", 5);
        if is_deleted {
            member.delete("a");
            member.settle();
            pass_floors(&mut member);
        }
        let waits = member.put_data("d", LV_BLOCKS - 10);
        let under_way = member.put_inline("w", "w");
        read_all(&mut member, &mut walk);
        assert_eq!(member.pg.role(), Role::Halted, "deleted: {is_deleted}");
        assert!(member.pg.contradiction().is_some());
        for token in [waits, under_way] {
            assert_eq!(member.refusal(token), Refusal::IndexDamaged, "nobody waits for ever");
        }
        let halts = member.effects.iter().any(|effect| matches!(effect, Effect::Halt(_)));
        assert!(!halts, "the process goes on: other groups are served");
        let later = member.put_inline("e", "e");
        assert_eq!(member.refusal(later), Refusal::IndexDamaged);
        assert_eq!(marks(&member).unwrap().op, OpId::default());
        assert!(!member.restart().pg.has_marks(), "the next start reads the rows first");
    }
}

#[test]
fn a_row_above_the_marks_contradicts_what_is_free_there() {
    let mut member = Member::alone(1);
    put(&mut member, "a", 20);
    let row = rows::version(BUCKET, &name_of("a"), rows::UNVERSIONED);
    let mut version: VersionRow =
        decode("version row", &member.table.get(&row).unwrap().unwrap()).expect("a version");
    let Body::Chunk(chunk) = &mut version.body else { panic!("it has data") };
    chunk.extents[0].first = 70;
    let mut changes = Changes::default();
    changes.put(row, encode(&version));
    member.table.write(changes).unwrap();
    let mut member = restarted(member, 2);
    let mut walk = member.serve_early(1);
    read_all(&mut member, &mut walk);
    assert_eq!(member.pg.role(), Role::Halted);
}

#[test]
fn a_walk_that_too_many_changes_overtook_is_made_again() {
    let mut member = Member::alone(1);
    put(&mut member, "a", 20);
    let mut member = restarted(member, 2);
    let mut walk = member.serve_early(1);
    // As the ledger does of its own accord when changes pile up.
    member.pg.forget_ledger();
    read_all(&mut member, &mut walk);
    assert!(member.pg.is_unread() && member.pg.contradiction().is_none());
    let mut again = LedgerWalk::new(1);
    again.add(&mut member.pg);
    read_all(&mut member, &mut again);
    assert!(!member.pg.is_unread());
    assert_eq!(member.pg.gauges().space.free, 80);
    let applied = OpId { view: View(2), seq: OpSeq(member.pg.applied().seq.0) };
    assert_eq!(member.pg.applied(), applied);
}
