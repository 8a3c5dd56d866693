//! Tables and plots of what was measured, beside the bounds of the model.

use std::fmt::Write;

use super::cases::{ABLATED, ALONE, DELAYS, Delays, SIZES, TOGETHER, USUAL, Variant, Work, micros};
use super::measure::{Results, Row};
use crate::document::Part;
use crate::plots::size_label;
use crate::statistics::{InRound, Spread, ratio};
use larder_plot::Plot;
use larder_plot::number;
use larder_plot::svg::{Chart, Panel, Series};

/// Stands where nothing was measured.
const NONE: &str = "–";

type Figure = fn(&Row) -> Option<f64>;

fn p50(row: &Row) -> Option<f64> {
    row.p50_us
}

fn throughput(row: &Row) -> Option<f64> {
    Some(row.ops_s)
}

fn cpu(row: &Row) -> Option<f64> {
    row.server_cpu_us_per_op
}

/// A figure in each round.
fn of(
    results: &Results,
    (delays, variant, work): (Delays, Variant, Work),
    figure: Figure,
) -> Vec<InRound> {
    let is_it = |row: &&Row| row.delays == delays && row.variant == variant && row.work == work;
    results.rows.iter().filter(is_it).filter_map(|row| Some((row.round, figure(row)?))).collect()
}

fn median(figures: &[InRound]) -> Option<f64> {
    Some(Spread::of(figures.iter().map(|(_, value)| *value))?.median)
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| NONE.to_owned(), number)
}

/// A ratio as by how many percent it is below 1.
fn less(ratio: Option<Spread>) -> String {
    let percent = |ratio: f64| 100.0 * (1.0 - ratio);
    ratio.map_or_else(
        || NONE.to_owned(),
        |Spread { median, min, max }| {
            format!("{:.0} % ({:.0}–{:.0})", percent(median), percent(max), percent(min))
        },
    )
}

/// A ratio as by how many percent it is above 1.
fn more(ratio: Option<Spread>) -> String {
    let percent = |ratio: f64| 100.0 * (ratio - 1.0);
    ratio.map_or_else(
        || NONE.to_owned(),
        |Spread { median, min, max }| {
            format!("{:.0} % ({:.0}–{:.0})", percent(median), percent(min), percent(max))
        },
    )
}

fn times(ratio: Option<Spread>) -> String {
    ratio.map_or_else(
        || NONE.to_owned(),
        |Spread { median, min, max }| {
            format!("{} ({}–{})", number(median), number(min), number(max))
        },
    )
}

/// The made part of the page.
pub(super) fn page(results: &Results, plots: &[Plot], part: &Part) -> String {
    let mut text = String::new();
    head(results, part, &mut text);
    latencies(results, &mut text);
    throughputs(results, &mut text);
    ablations(results, &mut text);
    for Plot { file, alt, .. } in plots {
        let _ = writeln!(text, "![{alt}](../{}/{file})\n", part.plots());
    }
    text.trim_end().to_owned()
}

fn head(results: &Results, part: &Part, text: &mut String) {
    let about = &results.about;
    let machine = &about.machine;
    let _ =
        writeln!(text, "## {}, commit {}: parallel against ordered\n", about.date, about.commit);
    let _ = writeln!(
        text,
        "{}, {} cores, {:.1} GiB, Linux {}, {}, load average at the begin {}.\n",
        machine.processor,
        machine.cores,
        machine.memory_mib as f64 / 1024.0,
        machine.kernel,
        machine.file_system,
        machine.load_average,
    );
    let _ = writeln!(text, "```console\n$ {}\n```\n", about.command);
    let _ = writeln!(
        text,
        "Clusters of three nodes, twelve processes, on one machine; three copies of everything. Each pair of figures \
         is of one cluster: puts through a proxy that writes data and METAX in parallel, and through one that writes \
         data when METAX is persisted. Every hop between processes takes half of the network's time longer, and \
         every sync at least the disk's. The time of the cores comes on top, and on {} cores that is much. Rounds: {}, \
         each work measured for {} ms. Figures are medians; ratios those of each round, with the smallest and \
         largest. The rows are in [{rows}](../{rows}).\n",
        machine.cores,
        about.rounds,
        about.measured_ms,
        rows = part.rows(),
    );
    let faults = results.faults();
    if faults > 0 {
        let _ = writeln!(text, "In {faults} rows there were errors.\n");
    }
}

fn latencies(results: &Results, text: &mut String) {
    text.push_str("### Latency of a put alone, p50 in µs\n\n");
    text.push_str(
        "The bound is two round trips and a sync in parallel, three and two in order. Less is better.\n\n\
         | network, sync | size | bound, parallel | parallel | bound, ordered | ordered | bound lower by | lower by |\n\
         |---|---|---:|---:|---:|---:|---:|---:|\n",
    );
    for delays in DELAYS {
        for size in SIZES {
            let work = Work { size, connections: ALONE };
            let [parallel, ordered] = [Variant::Parallel, Variant::Ordered]
                .map(|variant| of(results, (delays, variant, work), p50));
            let bounds = [Variant::Parallel, Variant::Ordered].map(|v| delays.bound_us(v));
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {:.0} % | {} |",
                delays.title(),
                size_label(size as f64),
                number(bounds[0]),
                shown(median(&parallel)),
                number(bounds[1]),
                shown(median(&ordered)),
                100.0 * (1.0 - bounds[0] / bounds[1]),
                less(ratio(&parallel, &ordered)),
            );
        }
    }
    text.push('\n');
}

fn throughputs(results: &Results, text: &mut String) {
    let _ = writeln!(
        text,
        "### Puts per second over {TOGETHER} connections\n\n\
         | network, sync | size | parallel | ordered | more by |\n|---|---|---:|---:|---:|"
    );
    for delays in DELAYS {
        for size in SIZES {
            let work = Work { size, connections: TOGETHER };
            let [parallel, ordered] = [Variant::Parallel, Variant::Ordered]
                .map(|variant| of(results, (delays, variant, work), throughput));
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} |",
                delays.title(),
                size_label(size as f64),
                shown(median(&parallel)),
                shown(median(&ordered)),
                more(ratio(&parallel, &ordered)),
            );
        }
    }
    text.push('\n');
}

fn ablations(results: &Results, text: &mut String) {
    let _ = writeln!(
        text,
        "### Without METAX, without volumes\n\n\
         Against the same puts with both, in the same round but another cluster. Latency of a put alone; puts and \
         CPU over {TOGETHER} connections.\n\n\
         | network, sync | size | variant | bound ÷ bound | latency ÷ | puts/s ÷ | CPU ÷ |\n\
         |---|---|---|---:|---:|---:|---:|"
    );
    for variant in [Variant::SeparateMetax, Variant::PlainFiles] {
        for delays in ABLATED {
            for size in SIZES {
                let quotient = |connections, figure: Figure| {
                    let work = Work { size, connections };
                    let [over, under] = [variant, Variant::Parallel]
                        .map(|variant| of(results, (delays, variant, work), figure));
                    times(ratio(&over, &under))
                };
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {} | {} | {} | {} |",
                    delays.title(),
                    size_label(size as f64),
                    variant.title(),
                    number(delays.bound_us(variant) / delays.bound_us(Variant::Parallel)),
                    quotient(ALONE, p50),
                    quotient(TOGETHER, throughput),
                    quotient(TOGETHER, cpu),
                );
            }
        }
    }
    text.push('\n');
}

/// The plots in which there is something to see.
pub(super) fn plots(results: &Results) -> Vec<Plot> {
    let by_sync = |delays: &Delays| delays.network_us == USUAL.network_us;
    let by_network = |delays: &Delays| delays.sync_us == USUAL.sync_us;
    let charts = [
        (
            ("latency-by-sync.svg", "Latency of puts by the time of a sync, the network at 200 µs"),
            chart(results, by_sync, |delays| delays.sync_us, ALONE),
        ),
        (
            (
                "latency-by-network.svg",
                "Latency of puts by the network's round trip, a sync at 1 ms",
            ),
            chart(results, by_network, |delays| delays.network_us, ALONE),
        ),
        (
            (
                "throughput-by-sync.svg",
                "Puts per second by the time of a sync, the network at 200 µs",
            ),
            chart(results, by_sync, |delays| delays.sync_us, TOGETHER),
        ),
    ];
    let seen = charts.into_iter().filter(|(_, chart)| !chart.is_empty());
    seen.map(|((file, alt), chart)| {
        let svg = Chart { title: alt.to_owned(), ..chart }.svg();
        Plot { file, alt, svg }
    })
    .collect()
}

/// A panel for each size, a line for each variant, over the delays that are chosen. Latency has its bounds dashed.
fn chart(
    results: &Results,
    is_chosen: impl Fn(&Delays) -> bool,
    x: impl Fn(&Delays) -> u64,
    connections: u64,
) -> Chart {
    let delays: Vec<Delays> = DELAYS.into_iter().filter(is_chosen).collect();
    let variants = [Variant::Parallel, Variant::Ordered];
    let (figure, y_label): (Figure, _) = match connections {
        ALONE => (p50, "p50 of a put alone, µs"),
        _ => (throughput, "puts per second, 8 connections"),
    };
    let panel = |size: u64| {
        let work = Work { size, connections };
        let measured = variants.iter().enumerate().map(|(entry, &variant)| {
            let point = |delays: &Delays| {
                Some((x(delays) as f64, median(&of(results, (*delays, variant, work), figure))?))
            };
            Series { entry, dashed: false, points: delays.iter().filter_map(point).collect() }
        });
        let bounds = variants.iter().enumerate().map(|(entry, &variant)| {
            let points = delays.iter().map(|it| (x(it) as f64, it.bound_us(variant))).collect();
            Series { entry, dashed: true, points }
        });
        let mut series: Vec<Series> = measured.collect();
        if connections == ALONE && series.iter().any(|series| !series.points.is_empty()) {
            series.extend(bounds);
        }
        Panel { title: size_label(size as f64), y_label: y_label.to_owned(), series }
    };
    Chart {
        title: String::new(),
        x_label: "time put in (dashed: the model's bound)".to_owned(),
        legend: variants.map(|variant| variant.title().to_owned()).into(),
        x_ticks: delays.iter().map(|delays| (x(delays) as f64, micros(x(delays)))).collect(),
        panels: SIZES.map(panel).into(),
    }
}

#[cfg(test)]
mod tests;
