//! The page: two tables, and a plot.

use std::fmt::Write;

use larder_plot::document::Part;
use larder_plot::svg::{Chart, Panel, Series};
use larder_plot::{Plot, commit, number};

use super::balance::{Row, sizes};
use crate::Options;

/// The part of linear that is the goal: the paper's figure is a straight line.
pub(super) const GOAL: f64 = 0.9;

type Figure = fn(&Row) -> f64;

/// The made part of the page.
pub(super) fn page(rows: &[Row], plots: &[Plot], part: &Part, options: &Options) -> String {
    let mut text = String::new();
    let quick = if options.quick { " --quick" } else { "" };
    let _ = writeln!(
        text,
        "Commit {}:\n\n```console\n$ larder-papers cheetah --seed {}{quick}\n```\n",
        commit(),
        options.seed
    );
    table(rows, "groups led", |row| row.led, &mut text);
    table(rows, "groups of which a server is a member", |row| row.members, &mut text);
    for Plot { file, alt, .. } in plots {
        let _ = writeln!(text, "![{alt}](../{}/{file})\n", part.plots());
    }
    text.trim_end().to_owned()
}

fn table(rows: &[Row], name: &str, figure: Figure, text: &mut String) {
    let _ = write!(text, "### Part of linear, by {name}\n\n| groups |");
    sizes().for_each(|servers| {
        let _ = write!(text, " {servers} servers |");
    });
    let _ = writeln!(
        text,
        " {GOAL} of linear at all sizes |\n|---|{}---|",
        "---:|".repeat(sizes().count())
    );
    for rows in rows.chunk_by(|a, b| a.groups == b.groups) {
        let _ = write!(text, "| {} |", number(f64::from(rows[0].groups)));
        for row in rows {
            let _ = write!(text, " {:.2} |", figure(row));
        }
        let is_even = rows.iter().all(|row| figure(row) >= GOAL);
        let _ = writeln!(text, " {} |", if is_even { "yes" } else { "no" });
    }
    text.push('\n');
}

/// The plot: throughput by servers, in those of one.
pub(super) fn plots(rows: &[Row]) -> Vec<Plot> {
    let alt = "Throughput that the busiest meta server leaves, by the number of meta servers";
    let counts: Vec<&[Row]> = rows.chunk_by(|a, b| a.groups == b.groups).collect();
    let panel = |(title, figure): (&str, Figure)| {
        let linear = Series {
            entry: 0,
            dashed: true,
            points: sizes().map(|it| (f64::from(it), f64::from(it))).collect(),
        };
        let of = |(at, rows): (usize, &&[Row])| Series {
            entry: at + 1,
            dashed: false,
            points: rows
                .iter()
                .map(|row| (f64::from(row.servers), f64::from(row.servers) * figure(row)))
                .collect(),
        };
        Panel {
            title: title.to_owned(),
            y_label: "times one server".to_owned(),
            series: std::iter::once(linear).chain(counts.iter().enumerate().map(of)).collect(),
        }
    };
    let legend = std::iter::once("linear".to_owned());
    let chart = Chart {
        title: alt.to_owned(),
        x_label: "meta servers".to_owned(),
        legend: legend
            .chain(counts.iter().map(|rows| format!("{} groups", rows[0].groups)))
            .collect(),
        x_ticks: sizes().map(|it| (f64::from(it), it.to_string())).collect(),
        panels: [
            ("by groups led", (|row| row.led) as Figure),
            ("by memberships", |row| row.members),
        ]
        .map(panel)
        .into(),
    };
    vec![Plot { file: "throughput-by-servers.svg", alt, svg: chart.even_svg() }]
}
