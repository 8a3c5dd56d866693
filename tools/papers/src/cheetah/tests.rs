//! The shape of what comes out.

use super::balance::{evenness, place, run};
use super::{part, show};
use crate::Options;

fn options() -> Options {
    Options { docs: ".".into(), seed: 1, quick: true }
}

#[test]
fn one_seed_makes_one_run() {
    for seed in 1..=10 {
        let of = || run(&Options { seed, ..options() });
        assert_eq!(of(), of());
    }
}

#[test]
fn more_groups_are_more_even_and_three_servers_are_even() {
    let rows = run(&options());
    for row in &rows {
        assert!(row.led <= 1.0 && row.members <= 1.0 && row.members > 0.5, "{row:?}");
        assert!(row.servers > 3 || row.members == 1.0, "{row:?}");
    }
    let of = |groups| rows.iter().find(|row| (row.servers, row.groups) == (15, groups));
    assert!(of(256).map(|row| row.members) < of(1024).map(|row| row.members), "{rows:?}");
}

#[test]
fn leaders_are_as_even_as_whole_groups_allow() {
    let ids = (0..15).collect();
    let led = evenness(place(&ids, 256).into_iter().map(|members| members[0]), 15);
    assert!(led > 0.9, "{led}");
}

#[test]
fn a_page_has_two_tables_and_a_plot() {
    let rows = run(&options());
    let plots = show::plots(&rows);
    let text = show::page(&rows, &plots, &part(), &options());
    assert!(text.contains("larder-papers cheetah --seed 1 --quick"), "{text}");
    assert!(text.contains("by groups led") && !text.contains("NaN"), "{text}");
    assert!(plots[0].svg.contains("<path") && !plots[0].svg.contains("NaN"));
}
