//! A primary that serves above its high-water marks before its rows are read.

use larder_protocol::{Answer, Changes, DataAnswer, Effect, Index, Token};
use larder_types::codec::{decode, encode};
use larder_types::{Body, Extent, Grant, HighWaterRow, LvId, View, rows};

use crate::support::{LV, LV_BLOCKS, Member, PG};

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

fn mark(member: &Member) -> Option<(View, u32)> {
    let row = member.table.get(&rows::high_water(PG)).expect("a table in memory")?;
    let HighWaterRow { view, marks } = decode("marks row", &row).expect("marks");
    Some((view, marks.iter().find(|(lv, _)| *lv == LV).map_or(0, |(_, mark)| *mark)))
}

#[test]
fn each_batch_that_names_blocks_has_marks_above_them() {
    let mut member = Member::alone(1);
    for turn in 0..20 {
        let (_, end) = put(&mut member, &format!("o{turn}"), 4);
        let (view, mark) = mark(&member).unwrap();
        assert!(view == View(1) && mark >= end && mark <= end + end / 8, "{mark} for {end}");
    }
}

#[test]
fn a_start_gives_what_lies_above_and_the_rest_once_it_is_read() {
    let mut member = Member::alone(1);
    put(&mut member, "a", 20);
    put(&mut member, "b", 20);
    member.delete("a");
    member.settle();
    let mut member = member.restart();
    member.begin(2, &[1]);
    let space = member.serve_early(1);
    let above = mark(&member).unwrap().1;
    assert!((40..=45).contains(&above));
    let (first, _) = put(&mut member, "c", 15);
    assert_eq!(first, above, "the hole of 20 below is not known yet");
    member.complete(space);
    assert_eq!(put(&mut member, "d", 15).0, 0, "now it is");
    assert_eq!(mark(&member).unwrap(), (View(2), above + 15), "the mark fell to the end of c");
    // What the index shows after all of this leaves no block used twice.
    let mut member = member.restart();
    member.begin(3, &[1]);
    member.serve(1);
}

#[test]
fn a_put_that_is_open_at_a_start_keeps_its_blocks_and_raises_the_mark_when_it_is_committed() {
    let mut member = Member::alone(1);
    let token = member.put_data("open", 30);
    let (grant, extent) = granted(&mut member, token);
    member.sync();
    let mut member = member.restart();
    member.begin(2, &[1]);
    let space = member.serve_early(1);
    assert_eq!(mark(&member).unwrap(), (View(2), 0), "no row names anything");
    let other = put(&mut member, "other", 10);
    assert!(other.0 >= extent.end() || other.1 <= extent.first, "{other:?}");
    member.answer(0, DataAnswer::Voided(grant));
    member.answer(0, DataAnswer::Verified(grant));
    member.settle();
    assert!(matches!(member.row("open").unwrap().body, Body::Chunk(_)));
    assert!(mark(&member).unwrap().1 >= extent.end());
    member.complete(space);
    let mut member = member.restart();
    member.begin(3, &[1]);
    member.serve(1);
}

#[test]
fn marks_of_another_view_than_the_rows_are_not_believed() {
    let mut member = Member::alone(1);
    put(&mut member, "a", 20);
    // As an earlier release leaves it, which has run since.
    let old = HighWaterRow { view: View(0), marks: vec![(LV, 1), (LvId(9), 3)] };
    let mut changes = Changes::default();
    changes.put(rows::high_water(PG), encode(&old));
    member.table.write(changes).unwrap();
    let mut member = member.restart();
    member.begin(2, &[1]);
    let space = member.serve_early(1);
    let token = member.put_data("b", 10);
    assert!(member.answers(token).is_empty(), "nothing is known to be free: it waits");
    assert!(!member.effects.iter().any(|effect| matches!(effect, Effect::NeedLv)), "yet");
    member.now_ms += 5_000;
    let later = member.put_data("c", 10);
    assert!(member.answers(later).is_empty());
    assert!(member.effects.iter().any(|effect| matches!(effect, Effect::NeedLv)), "it takes long");
    member.complete(space);
    for token in [token, later] {
        assert!(matches!(member.answers(token)[..], [Answer::Granted { .. }]), "they are fed");
    }
    assert!(mark(&member).unwrap().1 >= 20 && mark(&member).unwrap().1 <= LV_BLOCKS);
}
