//! The plots: what is drawn in each.

use crate::results::{Entrant, Figures, Results};
use crate::statistics::Spread;
use crate::works::{Op, Work};
use larder_bench::units::ByteSize;
use larder_plot::Plot;
use larder_plot::svg::{Chart, Panel, Point, Series};

/// Their files, and what they show.
const NAMES: [(&str, &str); 4] = [
    ("throughput-by-size.svg", "Throughput of puts and gets by object size"),
    ("cpu-by-size.svg", "Server CPU of puts and gets by object size"),
    ("latency-by-load.svg", "Latency of 8 KiB puts by the load offered"),
    ("scaling-by-connections.svg", "Throughput and latency of 8 KiB puts by connections"),
];

const MICROS_PER_MILLI: f64 = 1000.0;

type Figure = fn(&Figures) -> Option<f64>;

/// All plots in which there is something to see.
pub(crate) fn all(results: &Results) -> Vec<Plot> {
    let charts = [
        by_size(results, NAMES[0].1, "MiB per second", |f| Some(f.mib_s)),
        by_size(results, NAMES[1].1, "server CPU, µs per operation", |f| f.server_cpu_us_per_op),
        by_load(results),
        by_connections(results),
    ];
    let named = NAMES.iter().zip(charts).filter(|(_, chart)| !chart.is_empty());
    named.map(|((file, alt), chart)| Plot { file, alt, svg: chart.svg() }).collect()
}

/// The works of a comparison that differ in one number only, each with that number.
struct Line {
    works: Vec<(f64, Work)>,
}

impl Line {
    fn of(results: &Results, number: impl Fn(&Work) -> Option<f64>) -> Self {
        let mut works: Vec<(f64, Work)> =
            results.works().into_iter().filter_map(|work| Some((number(&work)?, work))).collect();
        works.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        Self { works }
    }

    fn ticks(&self, label: impl Fn(f64) -> String) -> Vec<(f64, String)> {
        self.works.iter().map(|(number, _)| (*number, label(*number))).collect()
    }

    /// A line for each system.
    fn series(&self, results: &Results, dashed: bool, figure: Figure) -> Vec<Series> {
        let systems = results.about.systems.iter().enumerate();
        systems
            .map(|(entry, system)| Series {
                entry,
                dashed,
                points: self.points(results, system, figure),
            })
            .collect()
    }

    fn points(&self, results: &Results, system: &Entrant, figure: Figure) -> Vec<Point> {
        let point = |(number, work): &(f64, Work)| {
            let figures = results.of(system, work, figure);
            let spread = Spread::of(figures.into_iter().map(|(_, value)| value))?;
            (spread.median > 0.0).then_some((*number, spread.median))
        };
        self.works.iter().filter_map(point).collect()
    }
}

fn legend(results: &Results) -> Vec<String> {
    results.about.systems.iter().map(|system| results.label(system)).collect()
}

pub(crate) fn size_label(bytes: f64) -> String {
    let text = ByteSize(bytes as u64).to_string();
    text.replace("KiB", " KiB").replace("MiB", " MiB")
}

fn by_size(results: &Results, title: &str, y_label: &str, figure: Figure) -> Chart {
    let usual = Work::new(Op::Put, 0).connections;
    let sizes = |op: Op| {
        Line::of(results, move |work| {
            let plain = work.op == op && work.connections == usual && work.rate.is_none();
            plain.then_some(work.size as f64)
        })
    };
    let (puts, gets) = (sizes(Op::Put), sizes(Op::Get));
    let mut x_ticks = puts.ticks(size_label);
    x_ticks.extend(gets.ticks(size_label));
    x_ticks.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    x_ticks.dedup();
    let panel = |title: &str, line: &Line| Panel {
        title: title.to_owned(),
        y_label: y_label.to_owned(),
        series: line.series(results, false, figure),
    };
    Chart {
        title: title.to_owned(),
        x_label: format!("object size, {usual} connections"),
        legend: legend(results),
        x_ticks,
        panels: vec![panel("put", &puts), panel("get", &gets)],
    }
}

fn p50(figures: &Figures) -> Option<f64> {
    figures.p50_us.map(|micros| micros / MICROS_PER_MILLI)
}

fn p99(figures: &Figures) -> Option<f64> {
    figures.p99_us.map(|micros| micros / MICROS_PER_MILLI)
}

fn by_load(results: &Results) -> Chart {
    let rates = Line::of(results, |work| work.rate.map(f64::from));
    let panel = |title: &str, figure| Panel {
        title: title.to_owned(),
        y_label: "latency, ms".to_owned(),
        series: rates.series(results, false, figure),
    };
    Chart {
        title: NAMES[2].1.to_owned(),
        x_label: "puts offered per second".to_owned(),
        legend: legend(results),
        x_ticks: rates.ticks(|rate| rate.to_string()),
        panels: vec![panel("p50", p50), panel("p99", p99)],
    }
}

fn by_connections(results: &Results) -> Chart {
    let line = Line::of(results, |work| {
        let plain = work.is_small(Op::Put) && work.rate.is_none();
        plain.then_some(work.connections as f64)
    });
    Chart {
        title: NAMES[3].1.to_owned(),
        x_label: "connections".to_owned(),
        legend: legend(results),
        x_ticks: line.ticks(|connections| connections.to_string()),
        panels: vec![
            Panel {
                title: "throughput".to_owned(),
                y_label: "puts per second".to_owned(),
                series: line.series(results, false, |f| Some(f.ops_s)),
            },
            Panel {
                title: "p50 (dashed) and p99".to_owned(),
                y_label: "latency, ms".to_owned(),
                series: {
                    let mut series = line.series(results, true, p50);
                    series.extend(line.series(results, false, p99));
                    series
                },
            },
        ],
    }
}
