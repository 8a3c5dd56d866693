//! The shape of what rebalancing gains, with one seed: not how much it is.

use larder_protocol::limits::BALANCE_SPREAD_PERCENT;

use super::cases::{Row, Run, papers, runs, simulate, smaller};
use super::cluster::Setup;
use super::measure::{Figure, Shape, over};
use super::moves::Planner;
use super::show;
use crate::args::RebalanceArgs;
use crate::document;

const USE: Planner = Planner::Use { spread_percent: BALANCE_SPREAD_PERCENT };
const SHARES: Planner = Planner::Shares { spread_percent: BALANCE_SPREAD_PERCENT };

/// 5 servers, which become 15 in 60 weeks.
fn small(planner: Planner) -> Run {
    let setup = Setup {
        servers: 5,
        servers_max: 15,
        disks_per_server: 4,
        pvs: 60,
        volume_mib: 1000,
        groups: 100,
        weekly_mib: 16_000,
        weeks: 60,
        seed: 1,
    };
    Run { setup, name: "small", planner, volumes_max: u64::MAX }
}

fn row(planner: Planner) -> Row {
    simulate(&small(planner), || ())
}

fn sum(row: &Row, figure: Figure, of: fn(&Shape) -> f64) -> f64 {
    over(&row.weeks, |week| of(week.shape(figure)))
}

/// By how many times range and deviation are smaller.
fn times(row: &Row, without: &Row, figure: Figure) -> [f64; 2] {
    let of: [fn(&Shape) -> f64; 2] = [Shape::range, |shape| shape.deviation];
    of.map(|of| sum(without, figure, of) / sum(row, figure, of))
}

/// Bytes moved in all, as a part of those that had to be at least when servers joined.
fn moved(row: &Row) -> f64 {
    let joins = row.weeks.iter().filter(|week| week.joined);
    let least: u64 = joins.map(|week| week.least_mib).sum();
    over(&row.weeks, |week| week.moved.mib as f64) / least as f64
}

#[test]
fn no_run_fills_all_servers() {
    for quick in [false, true] {
        for Run { setup, .. } in runs(&RebalanceArgs { docs: "docs".into(), seed: 1, quick }) {
            let pvs = setup.servers_max * setup.disks_per_server * setup.pvs;
            let written = u64::from(setup.weeks) * setup.weekly_mib / setup.volume_mib;
            let volumes = u64::from(setup.groups) + written;
            assert!(3 * volumes * 100 < u64::from(pvs) * 95, "{setup:?}");
        }
    }
}

#[test]
fn one_seed_makes_one_run() {
    let of = |seed| {
        let run = small(SHARES);
        let setup = Setup { seed, weeks: 20, ..run.setup.clone() };
        format!("{:?}", simulate(&Run { setup, ..run }, || ()).weeks)
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}

#[test]
fn rebalancing_by_use_evens_use_and_by_shares_requests_too() {
    let [none, by_use, by_shares] = [Planner::None, USE, SHARES].map(row);
    assert_eq!(none.weeks.iter().filter(|week| week.joined).count(), 2);
    assert_eq!(none.weeks.iter().map(|week| week.moved.volumes).sum::<u64>(), 0);
    let times_of = |row, figure| times(row, &none, figure);
    let shown = [Figure::Reads(0), Figure::Writes, Figure::Use]
        .map(|figure| (times_of(&by_use, figure), times_of(&by_shares, figure)));
    let [reads, writes, used] = shown;
    assert!(used.0.iter().all(|times| *times > 2.0), "{shown:?}");
    assert!(writes.0.iter().all(|times| *times < 3.0), "by use writes stay uneven: {shown:?}");
    for times in [reads.1, writes.1, used.1] {
        assert!(times[0] > 2.5 && times[1] > 3.5, "{shown:?}");
    }
    assert!(moved(&by_shares) < 1.5, "{} of the least", moved(&by_shares));
    assert!(moved(&by_shares) < moved(&by_use), "{}", moved(&by_use));
}

#[test]
fn no_more_volumes_move_in_a_week_than_it_may() {
    let run = Run { volumes_max: 7, ..small(SHARES) };
    let row = simulate(&run, || ());
    let most = row.weeks.iter().map(|week| week.moved.volumes).max();
    assert_eq!(most, Some(7), "after a join there is more to do");
}

#[test]
fn a_page_has_tables_of_each_set_up_and_four_plots() {
    let rows = [Planner::None, USE, SHARES].map(row);
    let args = RebalanceArgs { docs: ".".into(), seed: 1, quick: true };
    let plots = show::plots(&rows);
    let text = show::page(&rows, &plots, &document::of_command("rebalance", "rebalance"), &args);
    assert!(text.contains("larder-compare rebalance --seed 1 --quick"), "{text}");
    assert!(text.contains("small: range and deviation over 60 weeks, 5 to 15 servers"), "{text}");
    assert!(text.contains("small: data moved") && !text.contains("NaN"), "{text}");
    assert_eq!(plots.len(), 4);
    for plot in plots {
        assert!(plot.svg.contains("<path") && !plot.svg.contains("NaN"), "{}", plot.file);
    }
}

#[test]
fn set_ups_begin_and_end_as_in_the_paper() {
    for setup in [papers(1), smaller(1)] {
        assert_eq!((setup.servers, setup.servers_max, setup.weeks), (15, 240, 400));
        let disk_gb = u64::from(setup.pvs) * setup.volume_mib * 1024 * 1024 / 1_000_000_000;
        assert!((3980..4010).contains(&disk_gb), "{disk_gb}");
        let copies = 3 * u64::from(setup.groups);
        let pvs = u64::from(setup.servers * setup.disks_per_server * setup.pvs);
        assert!(copies < pvs, "each group has a volume at first");
    }
}
