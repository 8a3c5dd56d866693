//! The shape of what comes out, in a small cluster: not how long it takes.

use super::cases::{Pace, Row, all, case, simulate, small};
use super::{part, show};
use crate::Options;
use crate::world::setup::Setup;

fn options() -> Options {
    Options { docs: ".".into(), seed: 1, quick: true }
}

/// One that is simulated many times.
fn tiny(seed: u64) -> Setup {
    Setup { servers: 10, groups: 8, volumes: 60, chunks: 4, ..small(seed) }
}

fn row(pace: Pace, lost: usize, removed: bool) -> Row {
    simulate(&case(&small(1), pace, lost, removed))
}

#[test]
fn one_seed_makes_one_run() {
    let of = |seed| format!("{:?}", simulate(&case(&tiny(seed), Pace::Shipped, 2, true)).truth);
    for seed in 1..=10 {
        assert_eq!(of(seed), of(seed), "seed {seed}");
    }
    assert_ne!(of(1), of(2));
}

#[test]
fn every_chunk_has_all_copies_again_and_none_is_made_twice() {
    for (pace, lost, removed) in [(Pace::Shipped, 1, false), (Pace::Unbounded, 2, true)] {
        let Row { truth, .. } = row(pace, lost, removed);
        assert_eq!(truth.chunks_made, truth.lost);
        assert_eq!((truth.needless, truth.is_restored()), (0, true));
    }
}

#[test]
fn single_copies_come_first() {
    let removed = (1..=10).map(|seed| (seed, true));
    for (seed, removed) in removed.chain([(1, false), (2, false)]) {
        let Row { truth, .. } = simulate(&case(&tiny(seed), Pace::Papers, 2, removed));
        assert!(truth.singles > 0, "two servers share volumes");
        assert_eq!(truth.passed_over, 0, "seed {seed}, removed: {removed}");
        assert!(truth.doubled_us < truth.restored_us);
    }
}

#[test]
fn a_page_has_tables_and_a_plot() {
    let rows: Vec<Row> = all(&options()).iter().map(simulate).collect();
    let plots = show::plots(&rows);
    let text = show::page(&rows, &plots, &part(), &options());
    assert!(text.contains("larder-papers gfs --seed 1 --quick"), "{text}");
    assert!(text.contains("Two servers of 24 lost") && !text.contains("NaN"), "{text}");
    assert!(plots[0].svg.contains("<path") && !plots[0].svg.contains("NaN"));
}
