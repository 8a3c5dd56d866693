//! Tables and plots of the runs.

use std::fmt::Write;

use larder_protocol::scheduler::Policy;

use super::cases::{IN_FLIGHT, KINDS, ORDERS, OURS, Row, SLOW, STALLS, Section};
use super::disk::Kind;
use super::layout::Keys;
use super::world::{Order, Outcome, Setup};
use crate::args::ScheduleArgs;
use crate::document::Part;
use crate::statistics::Spread;
use larder_plot::Plot;
use larder_plot::commit;
use larder_plot::number;
use larder_plot::svg::{Chart, Panel, Series};

type Figure = fn(&Outcome) -> f64;

fn per_s(outcome: &Outcome) -> f64 {
    outcome.per_s
}

fn mean(outcome: &Outcome) -> f64 {
    outcome.mean_us
}

fn p50(outcome: &Outcome) -> f64 {
    outcome.p50_us
}

fn p99(outcome: &Outcome) -> f64 {
    outcome.p99_us
}

fn p999(outcome: &Outcome) -> f64 {
    outcome.p999_us
}

/// Columns of a table of reads.
const FIGURES: [(&str, Figure); 4] =
    [("requests per second", per_s), ("mean", mean), ("p99", p99), ("p99.9", p999)];

/// Microseconds, in what suits the disks.
fn time(kind: Kind, micros: f64) -> String {
    match kind {
        Kind::Hdd => number(micros / 1000.0),
        Kind::Ssd => number(micros),
    }
}

fn unit(kind: Kind) -> &'static str {
    match kind {
        Kind::Hdd => "ms",
        Kind::Ssd => "µs",
    }
}

fn shown(kind: Kind, (name, figure): (&str, Figure), outcome: &Outcome) -> String {
    let value = figure(outcome);
    if name == FIGURES[0].0 { number(value) } else { time(kind, value) }
}

/// The run of a section that is asked for.
fn of(rows: &[Row], section: Section, is_it: impl Fn(&Setup) -> bool) -> &Outcome {
    let mut found = rows.iter().filter(|row| row.section == section && is_it(&row.setup));
    &found.next().expect("the run was made").outcome
}

/// By how many percent it is more.
fn more(value: f64, than: f64) -> String {
    format!("{:+.1} %", 100.0 * (value / than - 1.0)).replace('-', "−")
}

/// The made part of the page.
pub(super) fn page(rows: &[Row], plots: &[Plot], part: &Part, args: &ScheduleArgs) -> String {
    let mut text = String::new();
    let quick = if args.quick { " --quick" } else { "" };
    let _ = writeln!(
        text,
        "Commit {}:\n\n```console\n$ larder-compare schedule --seed {}{quick}\n```\n",
        commit(),
        args.seed
    );
    papers(rows, &mut text);
    for kind in KINDS {
        gets(rows, kind, &mut text);
    }
    for Plot { file, alt, .. } in plots {
        let _ = writeln!(text, "![{alt}]({}/{file})\n", part.plots());
    }
    by_policy(rows, &mut text, "An even layout", Section::Even, |_| true);
    by_policy(rows, &mut text, "Zipf's law, exponent 0.99", Section::Skewed, |_| true);
    let slow = |setup: &Setup| setup.trouble == SLOW;
    by_policy(rows, &mut text, "One disk of 30 is ten times slower", Section::Trouble, slow);
    let stalls = |setup: &Setup| setup.trouble == STALLS;
    let title = "One disk of 30 stands still for 500 ms of every 5 s";
    by_policy(rows, &mut text, title, Section::Trouble, stalls);
    let title = "64 primaries and 16 proxies over 12 disks";
    by_policy(rows, &mut text, title, Section::Herd, |setup| setup.trouble != SLOW);
    let title = "The same, one of the 12 ten times slower";
    by_policy(rows, &mut text, title, Section::Herd, slow);
    dependencies(rows, &mut text);
    merging(rows, &mut text);
    windows(rows, &mut text);
    text.trim_end().to_owned()
}

/// A policy's figure as a multiple of that of primary-first, on each layout.
fn ratios(rows: &[Row], kind: Kind, policy: Policy, in_flight: usize, figure: Figure) -> Vec<f64> {
    let of = |policy| {
        rows.iter().filter(move |Row { section, setup: it, .. }| {
            *section == Section::Layouts
                && (it.kind, it.policy, it.in_flight) == (kind, policy, in_flight)
        })
    };
    let pairs = of(policy).zip(of(Policy::PrimaryFirst));
    pairs
        .map(|(ours, first)| {
            assert_eq!(ours.setup.seed, first.setup.seed, "both are of one layout");
            figure(&ours.outcome) / figure(&first.outcome)
        })
        .collect()
}

/// The middle and the ends.
fn spread(values: &[f64], shown: impl Fn(f64) -> String) -> String {
    Spread::of(values.iter().copied()).map_or_else(String::new, |it| {
        format!("{} ({} to {})", shown(it.median), shown(it.min), shown(it.max))
    })
}

/// A ratio as by how many percent it is above 1.
fn percent(ratio: f64) -> String {
    more(ratio, 1.0)
}

/// The paper's figures beside these.
fn papers(rows: &[Row], text: &mut String) {
    text.push_str("### The paper's figures beside these\n\n");
    text.push_str("| against primary-first | paper | policy |");
    KINDS.iter().for_each(|kind| {
        let _ = write!(text, " {} |", kind.name());
    });
    text.push_str("\n|---|---:|---|---:|---:|\n");
    let mut line = |what: &str, papers: &str, policy: &str, values: [String; 2]| {
        let _ = writeln!(text, "| {what} | {papers} | {policy} | {} | {} |", values[0], values[1]);
    };
    for policy in OURS {
        let name = policy.name();
        let by = |figure: Figure| {
            KINDS.map(|kind| spread(&ratios(rows, kind, policy, 64, figure), percent))
        };
        line("throughput, 64 in flight", "+41.8 %", name, by(per_s));
        line("mean latency, 64 in flight", "−42.5 %", name, by(mean));
        let times = KINDS.map(|kind| {
            let ratios = ratios(rows, kind, policy, 256, p999);
            let lower: Vec<f64> = ratios.iter().map(|ratio| 1.0 / ratio).collect();
            spread(&lower, |times| format!("{}×", number(times)))
        });
        line("p99.9 lower, 256 in flight", "10.3×", name, times);
    }
    for keys in [Keys::Uniform, Keys::Zipf] {
        let lost = KINDS.map(|kind| {
            let with = |order| dependent(rows, kind, keys, 70, order).per_s;
            more(with(ORDERS[1]), with(Order::None))
        });
        let what = format!("dependencies, 70 % reads, {} keys", keys.name());
        line(&what, "−7.2 % at most", "parallel", lost);
    }
    let gained = KINDS.map(|kind| {
        let with = |window| merged(rows, kind, 64, 20, window).per_s;
        more(with(true), with(false))
    });
    line("merging, 20 % equal, 64 in flight", "+6.4 %", "parallel", gained);
    text.push('\n');
}

/// A table for each figure: policies by requests in flight.
fn gets(rows: &[Row], kind: Kind, text: &mut String) {
    let _ = writeln!(text, "### All gets, {}\n", kind.name());
    for figure in FIGURES {
        let unit = if figure.0 == FIGURES[0].0 { "" } else { unit(kind) };
        let _ = write!(text, "| {}{}{unit} |", figure.0, if unit.is_empty() { "" } else { ", " });
        Policy::ALL.iter().for_each(|policy| {
            let _ = write!(text, " {} |", policy.name());
        });
        let _ = writeln!(text, "\n|---|{}", "---:|".repeat(Policy::ALL.len()));
        for in_flight in IN_FLIGHT {
            let _ = write!(text, "| {} in flight |", number(in_flight as f64).replace(".0", ""));
            for policy in Policy::ALL {
                let outcome = of(rows, Section::Gets, |it| {
                    (it.kind, it.policy, it.in_flight) == (kind, policy, in_flight)
                });
                let _ = write!(text, " {} |", shown(kind, figure, outcome));
            }
            text.push('\n');
        }
        text.push('\n');
    }
}

/// A table for each kind of disks: all figures of each policy.
fn by_policy(
    rows: &[Row],
    text: &mut String,
    title: &str,
    section: Section,
    is_shown: impl Fn(&Setup) -> bool,
) {
    let _ = writeln!(text, "### {title}\n");
    let shown_rows = || rows.iter().filter(|row| row.section == section && is_shown(&row.setup));
    for kind in KINDS {
        let of_kind = shown_rows().filter(|row| row.setup.kind == kind);
        let mut numbers: Vec<usize> = of_kind.map(|row| row.setup.in_flight).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let _ = write!(text, "| {}, times in {} |", kind.name(), unit(kind));
        for in_flight in &numbers {
            let _ = write!(text, " {in_flight} in flight: per second | mean | p99 | p99.9 |");
        }
        let _ = writeln!(text, "\n|---|{}", "---:|".repeat(FIGURES.len() * numbers.len()));
        for policy in Policy::ALL {
            let _ = write!(text, "| {} |", policy.name());
            for in_flight in &numbers {
                let mut found = shown_rows().filter(|row| {
                    let it = &row.setup;
                    (it.kind, it.policy, it.in_flight) == (kind, policy, *in_flight)
                });
                let outcome = &found.next().expect("the run was made").outcome;
                for figure in FIGURES {
                    let _ = write!(text, " {} |", shown(kind, figure, outcome));
                }
            }
            text.push('\n');
        }
        text.push('\n');
    }
}

fn dependent(rows: &[Row], kind: Kind, keys: Keys, reads: u64, order: Order) -> &Outcome {
    of(rows, Section::Dependencies, |it| {
        (it.kind, it.keys, it.reads_percent, it.order) == (kind, keys, reads, order)
    })
}

fn dependencies(rows: &[Row], text: &mut String) {
    text.push_str("### Dependencies, 256 in flight, parallel\n\n");
    text.push_str(
        "| disks, keys | reads | no order: per second | writes wait for reads | writes pass reads | no order: p99.9 of reads | writes wait | writes pass |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for kind in KINDS {
        for keys in [Keys::Uniform, Keys::Zipf] {
            for reads in [70, 80, 90, 100] {
                let [none, waits, passes] =
                    ORDERS.map(|order| dependent(rows, kind, keys, reads, order));
                let _ = writeln!(
                    text,
                    "| {}, {} | {reads} % | {} | {} | {} | {} {unit} | {} {unit} | {} {unit} |",
                    kind.name(),
                    keys.name(),
                    number(none.per_s),
                    more(waits.per_s, none.per_s),
                    more(passes.per_s, none.per_s),
                    time(kind, none.p999_us),
                    time(kind, waits.p999_us),
                    time(kind, passes.p999_us),
                    unit = unit(kind),
                );
            }
        }
    }
    text.push('\n');
}

fn merged(rows: &[Row], kind: Kind, in_flight: usize, equal: u64, window: bool) -> &Outcome {
    of(rows, Section::Merging, |it| {
        (it.kind, it.in_flight, it.equal_percent) == (kind, in_flight, equal)
            && (it.window_us > 0) == window
    })
}

fn merging(rows: &[Row], text: &mut String) {
    text.push_str("### Merging, all gets, parallel\n\n");
    text.push_str(
        "| disks, in flight | equal | without: per second | with windows | merged | without: mean | with windows |\n\
         |---|---:|---:|---:|---:|---:|---:|\n",
    );
    for kind in KINDS {
        for in_flight in [64, 256, 1024] {
            for equal in [0, 5, 10, 20] {
                let [without, with] =
                    [false, true].map(|window| merged(rows, kind, in_flight, equal, window));
                let _ = writeln!(
                    text,
                    "| {}, {in_flight} | {equal} % | {} | {} | {:.1} % | {} {unit} | {} |",
                    kind.name(),
                    number(without.per_s),
                    more(with.per_s, without.per_s),
                    with.merged_percent,
                    time(kind, without.mean_us),
                    more(with.mean_us, without.mean_us),
                    unit = unit(kind),
                );
            }
        }
    }
    text.push('\n');
}

fn windows(rows: &[Row], text: &mut String) {
    text.push_str("### What a window of 500 µs costs, all gets, earliest-finish\n\n");
    text.push_str("| disks, in flight | no windows: p50 | per second |");
    let opened = [1, 16, 64];
    for loaded_from in opened {
        let _ = write!(text, " from {loaded_from} at a primary: p50 | per second |");
    }
    let _ = writeln!(text, "\n|---|{}", "---:|".repeat(2 + 2 * opened.len()));
    for kind in KINDS {
        for in_flight in [1, 4, 16, 64, 256] {
            let run = |window: bool, from: usize| {
                of(rows, Section::Windows, |it| {
                    (it.kind, it.in_flight, it.loaded_from) == (kind, in_flight, from)
                        && (it.window_us > 0) == window
                })
            };
            let without = run(false, 1);
            let _ = write!(
                text,
                "| {}, {in_flight} | {} {} | {} |",
                kind.name(),
                time(kind, p50(without)),
                unit(kind),
                number(without.per_s)
            );
            for from in opened {
                let with = run(true, from);
                let _ = write!(
                    text,
                    " {} | {} |",
                    more(with.p50_us, without.p50_us),
                    more(with.per_s, without.per_s)
                );
            }
            text.push('\n');
        }
    }
    text.push('\n');
}

/// All plots.
pub(super) fn plots(rows: &[Row]) -> Vec<Plot> {
    let charts: [(&str, &str, &str, Figure); 2] = [
        (
            "throughput-by-in-flight.svg",
            "Reads per second by requests in flight",
            "reads per second",
            per_s,
        ),
        (
            "tail-by-in-flight.svg",
            "The 99.9th percentile of reads by requests in flight",
            "p99.9, ms",
            |outcome| outcome.p999_us / 1000.0,
        ),
    ];
    let plot = |(file, alt, y_label, figure): (&'static str, &'static str, &str, Figure)| {
        let panels = KINDS.map(|kind| Panel {
            title: kind.name().to_owned(),
            y_label: y_label.to_owned(),
            series: Policy::ALL
                .iter()
                .enumerate()
                .map(|it| series(rows, kind, it, figure))
                .collect(),
        });
        let chart = Chart {
            title: alt.to_owned(),
            x_label: "requests in flight".to_owned(),
            legend: Policy::ALL.map(|policy| policy.name().to_owned()).into(),
            x_ticks: IN_FLIGHT.iter().map(|it| (*it as f64, it.to_string())).collect(),
            panels: panels.into(),
        };
        Plot { file, alt, svg: chart.svg() }
    };
    charts.map(plot).into()
}

fn series(rows: &[Row], kind: Kind, (entry, policy): (usize, &Policy), figure: Figure) -> Series {
    let point = |in_flight: usize| {
        let outcome = of(rows, Section::Gets, |it| {
            (it.kind, it.policy, it.in_flight) == (kind, *policy, in_flight)
        });
        (in_flight as f64, figure(outcome))
    };
    Series { entry, dashed: false, points: IN_FLIGHT.into_iter().map(point).collect() }
}
