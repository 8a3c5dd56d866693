//! Tables of what was measured.

use std::fmt::Write;

use larder_protocol::scheduler::Policy;

use super::cases::{Disks, OBJECTS, RATE, READ_LANES, READ_US, SIZE, WORSE_NODE};
use super::measure::{Results, Row};
use crate::document::Part;
use crate::plots::size_label;
use crate::statistics::{InRound, Spread, ratio};
use larder_plot::number;

/// Stands where nothing was measured.
const NONE: &str = "–";

type Figure = fn(&Row) -> Option<f64>;

fn p99_ms(row: &Row) -> Option<f64> {
    Some(row.p99_us? / 1000.0)
}

/// A figure in each round.
fn of(results: &Results, (disks, policy): (Disks, Policy), figure: Figure) -> Vec<InRound> {
    let is_it = |row: &&Row| row.disks == disks && row.policy == policy.name();
    results.rows.iter().filter(is_it).filter_map(|row| Some((row.round, figure(row)?))).collect()
}

fn spread(figures: &[InRound]) -> String {
    let spread = Spread::of(figures.iter().map(|(_, value)| *value));
    spread.map_or_else(
        || NONE.to_owned(),
        |Spread { median, min, max }| {
            format!("{} ({}–{})", number(median), number(min), number(max))
        },
    )
}

fn times(ratio: Option<Spread>) -> String {
    ratio.map_or_else(|| NONE.to_owned(), |ratio| format!("{:.2}", ratio.median))
}

/// The made part of the page.
pub(super) fn page(results: &Results, part: &Part) -> String {
    let mut text = String::new();
    head(results, part, &mut text);
    for disks in Disks::ALL {
        let _ = writeln!(
            text,
            "### {}\n\n\
             | policy | gets/s | p50, ms | p99, ms | p99.9, ms | p99 ÷ p99 while all are well | CPU per get, µs |\n\
             |---|---:|---:|---:|---:|---:|---:|",
            capitalized(disks.title())
        );
        for policy in Policy::ALL {
            line(results, (disks, policy), &mut text);
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

fn line(results: &Results, of_what: (Disks, Policy), text: &mut String) {
    let (_, policy) = of_what;
    let p99 = of(results, of_what, p99_ms);
    if p99.is_empty() {
        return;
    }
    let well = of(results, (Disks::Healthy, policy), p99_ms);
    let figures: [Figure; 4] = [
        |row| Some(row.ops_s),
        |row| Some(row.p50_us? / 1000.0),
        |row| Some(row.p999_us? / 1000.0),
        |row| row.server_cpu_us_per_op,
    ];
    let [ops, p50, p999, cpu] = figures.map(|figure| spread(&of(results, of_what, figure)));
    let _ = writeln!(
        text,
        "| `{}` | {ops} | {p50} | {} | {p999} | {} | {cpu} |",
        policy.name(),
        spread(&p99),
        times(ratio(&p99, &well)),
    );
}

fn capitalized(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn head(results: &Results, part: &Part, text: &mut String) {
    let about = &results.about;
    let machine = &about.machine;
    let _ = writeln!(
        text,
        "{}, commit {}. {}, {} cores, {:.1} GiB, Linux {}, {}, load average at the begin {}.\n",
        about.date,
        about.commit,
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
        "Clusters of three nodes, twelve processes, on one machine; three copies of {OBJECTS} objects of {}. A read \
         takes {} ms at the disk, {READ_LANES} at once, and no page cache answers any. {RATE} gets a second begin \
         whether or not others are answered, all through the proxy of node {WORSE_NODE}. Its disk is the one that is \
         worse and the nearest to it. Rounds: {}, {} ms each. Medians, with the smallest and largest. The rows are in \
         [{rows}]({rows}).\n",
        size_label(SIZE as f64),
        READ_US / 1000,
        about.rounds,
        about.measured_ms,
        rows = part.rows(),
    );
    let faults = results.faults();
    if faults > 0 {
        let _ = writeln!(text, "In {faults} rows there were errors.\n");
    }
}
