//! The page: a table, and a plot.

use std::fmt::Write;

use larder_plot::document::Part;
use larder_plot::svg::{Chart, Panel, Point, Series};
use larder_plot::{Plot, commit, number};

use super::cases::{Pace, Row};
use crate::Options;
use crate::world::truth::Sample;

const US_PER_S: f64 = 1e6;
const NONE: &str = "–";

/// The made part of the page.
pub(super) fn page(rows: &[Row], plots: &[Plot], part: &Part, options: &Options) -> String {
    let mut text = String::new();
    let quick = if options.quick { " --quick" } else { "" };
    let _ = writeln!(
        text,
        "Commit {}, simulated time:\n\n```console\n$ larder-papers gfs --seed {}{quick}\n```\n",
        commit(),
        options.seed
    );
    for lost in [1, 2] {
        table(rows, lost, &mut text);
    }
    for Plot { file, alt, .. } in plots {
        let _ = writeln!(text, "![{alt}](../{}/{file})\n", part.plots());
    }
    text.trim_end().to_owned()
}

fn seconds(us: Option<u64>) -> Option<f64> {
    us.map(|us| us as f64 / US_PER_S)
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| NONE.to_owned(), number)
}

/// Seconds from the first copy to something.
fn after_first(row: &Row, us: Option<u64>) -> Option<f64> {
    Some(seconds(us)? - seconds(row.truth.began_us)?)
}

fn table(rows: &[Row], lost: usize, text: &mut String) {
    let of: Vec<&Row> = rows.iter().filter(|row| row.case.lost == lost).collect();
    let Some(first) = of.first() else { return };
    let setup = &first.case.setup;
    let servers = if lost == 1 { "One server" } else { "Two servers" };
    let _ = writeln!(text, "### {servers} of {} lost\n", setup.servers);
    text.push_str(
        "| | GB lost | first copy after, s | all restored, minutes from then | MB/s | chunks with a single copy | these have two, s from then | less urgent copies before |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    if setup.servers == 227 {
        text.push_str(match lost {
            1 => "| the paper | 600 | not told | 23.2 | 440 | 0 | – | – |\n",
            _ => "| the paper | 1,320 | not told | not told | not told | 266 | 120 or less | not told |\n",
        });
    }
    for row in of {
        let truth = &row.truth;
        let bytes = truth.lost as f64 * setup.volume_bytes() as f64 / f64::from(setup.chunks);
        let restored = after_first(row, truth.restored_us);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            row.case.name(),
            number(bytes / 1e9),
            shown(seconds(truth.began_us)),
            shown(restored.map(|seconds| seconds / 60.0)),
            shown(restored.map(|seconds| truth.made as f64 / 1e6 / seconds)),
            number_of(truth.singles),
            if truth.singles == 0 {
                NONE.to_owned()
            } else {
                shown(after_first(row, truth.doubled_us))
            },
            number_of(truth.passed_over),
        );
    }
    text.push('\n');
}

fn number_of(count: u64) -> String {
    if count < 10 { count.to_string() } else { number(count as f64) }
}

/// The plot: copies made over time, and chunks that lack some.
pub(super) fn plots(rows: &[Row]) -> Vec<Plot> {
    let alt = "Chunks that lack copies, by minutes since servers were lost";
    let panel = |(lost, title): (usize, &str)| {
        let of = rows.iter().filter(|row| row.case.lost == lost && !row.case.removed);
        let series = of.enumerate().map(|(entry, row)| Series {
            entry,
            dashed: row.case.pace == Pace::Papers,
            points: lacking(row),
        });
        Panel {
            title: title.to_owned(),
            y_label: "chunks that lack a copy".to_owned(),
            series: series.collect(),
        }
    };
    let last = rows.iter().filter(|row| !row.case.removed);
    let last = last.filter_map(|row| row.truth.samples.last());
    let last = last.map(minutes).fold(1.0, f64::max);
    let step = (last / 5.0).ceil();
    let chart = Chart {
        title: alt.to_owned(),
        x_label: "minutes since servers were lost".to_owned(),
        legend: ["shipped", "the paper's", "no budget"].map(str::to_owned).into(),
        x_ticks: (0..=5)
            .map(|tick| f64::from(tick) * step)
            .map(|at| (at, at.to_string()))
            .collect(),
        panels: [(1, "one server lost"), (2, "two servers lost")].map(panel).into(),
    };
    vec![Plot { file: "chunks-by-time.svg", alt, svg: chart.even_svg() }]
}

fn minutes(sample: &Sample) -> f64 {
    sample.at_us as f64 / US_PER_S / 60.0
}

/// A point for every tenth look.
fn lacking(row: &Row) -> Vec<Point> {
    let samples = &row.truth.samples;
    let last = samples.len().saturating_sub(1);
    let is_shown = |(at, _): &(usize, &Sample)| at % 10 == 0 || *at == last;
    let shown = samples.iter().enumerate().filter(is_shown);
    shown.map(|(_, it)| (minutes(it), (it.single + it.double) as f64)).collect()
}
