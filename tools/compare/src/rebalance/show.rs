//! Tables and plots of the runs.

use std::fmt::Write;

use super::cases::{Row, Run};
use super::measure::{AGES, Figure, Shape, Week, over};
use crate::args::RebalanceArgs;
use crate::document::Part;
use larder_plot::Plot;
use larder_plot::commit;
use larder_plot::number;
use larder_plot::svg::{Chart, Panel, Point, Series};

const MIB_PER_TB: f64 = 1e12 / (1024.0 * 1024.0);
/// Weeks between two labels of an axis.
const TICK_WEEKS: u32 = 100;

/// Columns of the tables, with their units.
fn figures() -> Vec<(String, Figure)> {
    let reads = |age: usize| format!("reads by {}, KiB/s", AGES[age].name);
    let others = (1..AGES.len()).map(|age| (reads(age), Figure::Reads(age)));
    let first = [
        (reads(0), Figure::Reads(0)),
        ("writes, KiB/s".to_owned(), Figure::Writes),
        ("use, %".to_owned(), Figure::Use),
    ];
    first.into_iter().chain(others).collect()
}

/// The made part of the page.
pub(super) fn page(rows: &[Row], plots: &[Plot], part: &Part, args: &RebalanceArgs) -> String {
    let mut text = String::new();
    let quick = if args.quick { " --quick" } else { "" };
    let _ = writeln!(
        text,
        "Commit {}:\n\n```console\n$ larder-compare rebalance --seed {}{quick}\n```\n",
        commit(),
        args.seed
    );
    for rows in by_setup(rows) {
        evenness(rows, &mut text);
        moved(rows, &mut text);
    }
    for Plot { file, alt, .. } in plots {
        let _ = writeln!(text, "![{alt}]({}/{file})\n", part.plots());
    }
    text.trim_end().to_owned()
}

/// The rows of each set-up: that in which nothing moves comes first.
fn by_setup(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|a, b| a.run.setup == b.run.setup)
}

/// The weekly average of something.
fn average(row: &Row, figure: Figure, of: fn(&Shape) -> f64) -> f64 {
    over(&row.weeks, |week| of(week.shape(figure))) / row.weeks.len() as f64
}

/// The paper's Table 4.
fn evenness(rows: &[Row], text: &mut String) {
    let Run { setup, name, .. } = &rows[0].run;
    let servers = rows[0].weeks.last().map_or(setup.servers as usize, |week| week.servers);
    let _ = writeln!(
        text,
        "### {name}: range and deviation over {} weeks, {} to {servers} servers\n",
        setup.weeks, setup.servers
    );
    text.push_str("| weekly average over disks | mean |");
    for row in rows {
        let planner = row.run.planner_name();
        let _ = write!(text, " {planner}: range | deviation |");
    }
    let _ = writeln!(text, "\n|---|---:|{}", "---:|---:|".repeat(rows.len()));
    for (name, figure) in figures() {
        let _ = write!(text, "| {name} | {} |", number(average(&rows[0], figure, |it| it.mean)));
        for row in rows {
            for of in [Shape::range as fn(&Shape) -> f64, |shape| shape.deviation] {
                let (value, without) = (average(row, figure, of), average(&rows[0], figure, of));
                let times = without / value;
                let _ = match row.run.moves_any() {
                    true => write!(text, " {} ({}×) |", number(value), number(times)),
                    false => write!(text, " {} |", number(value)),
                };
            }
        }
        text.push('\n');
    }
    text.push('\n');
}

/// Terabytes of some weeks.
fn tb(weeks: &[Week], mib: impl Fn(&Week) -> u64) -> f64 {
    over(weeks, |week| mib(week) as f64) / MIB_PER_TB
}

/// The weeks from each join up to the next.
fn stages(row: &Row) -> impl Iterator<Item = &[Week]> {
    row.weeks.chunk_by(|_, next| !next.joined).filter(|weeks| weeks[0].joined)
}

/// The least that had to move at all joins.
fn least_tb(row: &Row) -> f64 {
    stages(row).map(|weeks| tb(&weeks[..1], |week| week.least_mib)).sum()
}

/// Bytes moved in all weeks, beside the least that had to be at the joins.
fn moved(rows: &[Row], text: &mut String) {
    let Run { name, .. } = &rows[0].run;
    let _ = writeln!(text, "### {name}: data moved\n");
    text.push_str(
        "| | volumes moved | of them written | TB | of them in written ones | least at all joins, TB | moved ÷ least | joins with at most the least |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in rows.iter().filter(|row| row.run.moves_any()) {
        let count = |of: fn(&Week) -> u64| number(over(&row.weeks, |week| of(week) as f64));
        let (all, least) = (tb(&row.weeks, |week| week.moved.mib), least_tb(row));
        let is_least = |weeks: &&[Week]| {
            tb(weeks, |week| week.moved.mib) <= tb(&weeks[..1], |week| week.least_mib)
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {:.2} | {} of {} |",
            row.run.planner_name(),
            count(|week| week.moved.volumes),
            count(|week| week.moved.written_volumes),
            number(all),
            number(tb(&row.weeks, |week| week.moved.written_mib)),
            number(least),
            all / least,
            stages(row).filter(is_least).count(),
            stages(row).count(),
        );
    }
    text.push('\n');
}

/// All plots, of the last set-up.
pub(super) fn plots(rows: &[Row]) -> Vec<Plot> {
    let Some(rows) = by_setup(rows).last() else { return Vec::new() };
    let by_week: [(&str, &str, &str, Figure); 3] = [
        ("reads-by-week.svg", "Reads of disks by week", "reads, KiB per second", Figure::Reads(0)),
        ("writes-by-week.svg", "Writes of disks by week", "writes, KiB per second", Figure::Writes),
        ("use-by-week.svg", "Use of disks by week", "use, percent", Figure::Use),
    ];
    let plot = |(file, alt, y_label, figure): (&'static str, &'static str, &str, Figure)| {
        let panel = |row: &Row| Panel {
            title: row.run.planner_name().to_owned(),
            y_label: y_label.to_owned(),
            series: shapes(row, figure),
        };
        let legend = ["maximum", "mean", "minimum", "deviation"];
        let chart = Chart {
            title: alt.to_owned(),
            x_label: "week".to_owned(),
            legend: legend.map(str::to_owned).into(),
            x_ticks: ticks(rows),
            panels: rows.iter().map(panel).collect(),
        };
        Plot { file, alt, svg: chart.even_svg() }
    };
    let mut plots: Vec<Plot> = by_week.map(plot).into();
    plots.push(moved_by_join(rows));
    plots
}

fn ticks(rows: &[Row]) -> Vec<(f64, String)> {
    let weeks = rows[0].run.setup.weeks;
    let step = if weeks > TICK_WEEKS { TICK_WEEKS } else { weeks.div_ceil(4) };
    (0..=weeks).step_by(step as usize).map(|week| (f64::from(week), week.to_string())).collect()
}

/// A point for each week, counted from 1.
fn line(row: &Row, of: impl Fn(&Week) -> f64) -> Vec<Point> {
    (1..).zip(&row.weeks).map(|(at, week)| (f64::from(at), of(week))).collect()
}

fn shapes(row: &Row, figure: Figure) -> Vec<Series> {
    let of: [fn(&Shape) -> f64; 4] = [|it| it.max, |it| it.mean, |it| it.min, |it| it.deviation];
    let series = |(entry, of): (usize, fn(&Shape) -> f64)| Series {
        entry,
        dashed: false,
        points: line(row, |week| of(week.shape(figure))),
    };
    of.into_iter().enumerate().map(series).collect()
}

/// Of each join what had to move, and what was moved up to the next.
fn moved_by_join(rows: &[Row]) -> Plot {
    let alt = "Data moved after each join of servers, beside the least that had to be";
    let of = |row: &Row, of: &dyn Fn(&[Week]) -> f64| -> Vec<Point> {
        let mut week = row.weeks.iter().take_while(|week| !week.joined).count();
        let point = |weeks: &[Week]| {
            let at = week + 1;
            week += weeks.len();
            (at as f64, of(weeks))
        };
        stages(row).map(point).collect()
    };
    let panel = |row: &Row| {
        let least = of(row, &|weeks| tb(&weeks[..1], |week| week.least_mib));
        let moved = of(row, &|weeks| tb(weeks, |week| week.moved.mib));
        let series = [least, moved].into_iter().enumerate();
        Panel {
            title: row.run.planner_name().to_owned(),
            y_label: "TB".to_owned(),
            series: series
                .map(|(entry, points)| Series { entry, dashed: entry == 0, points })
                .collect(),
        }
    };
    let moving = rows.iter().filter(|row| row.run.moves_any());
    let chart = Chart {
        title: alt.to_owned(),
        x_label: "week".to_owned(),
        legend: ["least", "moved"].map(str::to_owned).into(),
        x_ticks: ticks(rows),
        panels: moving.map(panel).collect(),
    };
    Plot { file: "moved-by-join.svg", alt, svg: chart.even_svg() }
}
