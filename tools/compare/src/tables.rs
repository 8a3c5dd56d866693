//! The tables: medians with their spread, and ratios of larder to each other system.

use std::fmt::Write;

use larder_plot::{Plot, number};

use crate::document::Part;
use crate::results::{AtPeak, Entrant, Figures, Peak, Results};
use crate::statistics::{InRound, Spread, ratio};
use crate::systems::{FLOOR, LARDER};
use crate::works::{LARGE_FACTOR, Op, Work};

const MIB: f64 = (1u64 << 20) as f64;
const MICROS_PER_MILLI: f64 = 1000.0;

/// The made part of the document, which shows `plots`.
pub(crate) fn render(results: &Results, plots: &[Plot], part: &Part) -> String {
    let mut text = String::new();
    head(results, part, &mut text);
    systems(results, &mut text);
    ratios(results, &mut text);
    at_peaks(results, &mut text);
    let all: Vec<&Entrant> = results.about.systems.iter().collect();
    let stores: Vec<&Entrant> = all.iter().copied().filter(|system| !system.floor).collect();
    let works = results.works();
    let pick =
        |wanted: fn(&Work) -> bool| -> Vec<Work> { works.iter().copied().filter(wanted).collect() };
    let closed_bodies =
        pick(|w| matches!(w.op, Op::Put | Op::Get | Op::Replay) && w.rate.is_none());
    let puts = pick(|w| w.op == Op::Put && w.rate.is_none());
    let cpu = Grid::of(results, &all, &works, |f| f.server_cpu_us_per_op);
    cpu.write("Server CPU, µs per operation", "", &mut text);
    Grid::of(results, &all, &works, |f| Some(f.ops_s)).write(
        "Operations per second",
        "",
        &mut text,
    );
    Grid::of(results, &all, &closed_bodies, |f| Some(f.mib_s)).write(
        "MiB per second",
        "",
        &mut text,
    );
    latencies(results, &all, &works, &mut text);
    let memory = Grid::of(results, &all, &works, |f| Some(f.memory_peak_bytes as f64 / MIB));
    memory.write("Largest memory of the server during the work, MiB", MEMORY_NOTE, &mut text);
    let many = pick(|w| w.op == Op::ListMillion);
    let at_end = |f: &Figures| f.memory_end_bytes.map(|bytes| bytes as f64 / MIB);
    Grid::of(results, &all, &many, at_end).write(
        "Memory of the server after a million objects, MiB",
        "After the lists in it, without files that are mapped.",
        &mut text,
    );
    let mut written = Grid::of(results, &stores, &puts, |f| per_byte(f, f.written_bytes as f64));
    written.sum(results, &stores, &puts, |f| f.written_bytes as f64);
    written.write(
        "Bytes written per byte put",
        "As the kernel accounts them to the server.",
        &mut text,
    );
    let mut occupied = Grid::of(results, &stores, &puts, |f| per_byte(f, f.occupied_bytes as f64));
    occupied.sum(results, &stores, &puts, |f| f.occupied_bytes as f64);
    occupied.write("Bytes occupied on disk per byte put", SPACE_NOTE, &mut text);
    faults(results, &mut text);
    for Plot { file, alt, .. } in plots {
        let _ = writeln!(text, "![{alt}](../{}/{file})\n", part.plots());
    }
    text.trim_end().to_owned()
}

fn head(results: &Results, part: &Part, text: &mut String) {
    let about = &results.about;
    let machine = &about.machine;
    let _ = writeln!(text, "## {}, commit {}: {}\n", about.date, about.commit, part.title());
    let _ = writeln!(
        text,
        "{}, {} cores, {:.1} GiB, Linux {}, {}, load average at the begin {}. Client and server share \
         the cores; nothing is pinned.\n",
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
        "Rounds: {}, each of all systems in an order drawn anew, on an empty directory. Each work was \
         measured for {} ms after {} ms under load, with 10 MiB objects for {LARGE_FACTOR} times that. \
         Where nothing else is said, it is 20 connections and 8 KiB. Pages are listed of {} objects. Every byte \
         read was compared. Figures are medians, with the smallest and largest round in parentheses. \
         The rows are in [{rows}](../{rows}).\n",
        about.rounds,
        about.measured_ms,
        about.warm_up_ms,
        about.listed,
        rows = part.rows(),
    );
}

fn systems(results: &Results, text: &mut String) {
    text.push_str(
        "| system | version | setting | what an answered put has behind it | command |\n",
    );
    text.push_str("|---|---|---|---|---|\n");
    for Entrant { system, version, setting, durability, command, .. } in &results.about.systems {
        let _ = writeln!(text, "| {system} | {version} | {setting} | {durability} | `{command}` |");
    }
    text.push('\n');
    for line in &results.about.absent {
        let _ = writeln!(text, "{line}.\n");
    }
}

/// Larder against each other system.
fn ratios(results: &Results, text: &mut String) {
    let Some(larder) = results.system(LARDER) else { return };
    let others = results.about.systems.iter().filter(|system| system.system != LARDER);
    let mut columns: Vec<(String, &Entrant, Figure)> = Vec::new();
    for other in others {
        let label = results.label(other);
        if other.system == FLOOR || !other.floor {
            columns.push((format!("CPU ÷ {label}"), other, cpu));
        }
        if !other.floor {
            columns.push((format!("ops/s ÷ {label}"), other, throughput));
            columns.push((format!("p99 ÷ {label}"), other, p99));
        }
    }
    let mut grid = Grid::new(columns.iter().map(|(name, ..)| name.clone()));
    for work in results.works() {
        let cells = columns.iter().map(|(_, other, figure)| {
            ratio(&results.of(larder, &work, figure), &results.of(other, &work, figure))
        });
        grid.row(work.title(), cells);
    }
    grid.write(
        "Larder against the others",
        "Medians of each round's own ratio. Of CPU and p99 less is better, of ops/s more.",
        text,
    );
}

/// Larder under each peer's peak load, against the peer.
fn at_peaks(results: &Results, text: &mut String) {
    let columns = ["puts/s", "p99, ms", "larder's puts/s", "larder's p99, ms", "p99 ÷ p99"];
    let mut grid = Grid::new(columns.map(str::to_owned).into_iter());
    for system in &results.about.systems {
        let rounds = || results.at_peaks.iter().filter(|at_peak| at_peak.peak.is_of(system));
        let of_peer = |figure: fn(&Peak) -> f64| rounds().map(move |at| figure(&at.peak));
        let of_larder = |figure: Figure| rounds().filter_map(move |at| figure(at.larder.as_ref()?));
        let quotient = |at: &AtPeak| Some(at.larder.as_ref()?.p99_us? / at.peak.p99_us);
        let cells = [
            Spread::of(of_peer(|peak| peak.ops_s)),
            Spread::of(of_peer(|peak| peak.p99_us / MICROS_PER_MILLI)),
            Spread::of(of_larder(throughput)),
            Spread::of(of_larder(|figures| Some(figures.p99_us? / MICROS_PER_MILLI))),
            Spread::of(rounds().filter_map(quotient)),
        ];
        grid.row(results.label(system), cells.into_iter());
    }
    grid.write(
        "Larder under each peer's peak load",
        "In each round larder got as many 8 KiB puts a second as the peer's most in that round, in an open loop over as \
         many connections.",
        text,
    );
}

type Figure = fn(&Figures) -> Option<f64>;

fn cpu(figures: &Figures) -> Option<f64> {
    figures.server_cpu_us_per_op
}

fn throughput(figures: &Figures) -> Option<f64> {
    Some(figures.ops_s)
}

fn p99(figures: &Figures) -> Option<f64> {
    figures.p99_us
}

fn per_byte(figures: &Figures, bytes: f64) -> Option<f64> {
    (figures.put_bytes > 0).then(|| bytes / figures.put_bytes as f64)
}

fn latencies(results: &Results, systems: &[&Entrant], works: &[Work], text: &mut String) {
    let median = |system: &Entrant, work: &Work, figure: Figure| {
        let millis =
            Spread::of(values(results.of(system, work, figure)))?.median / MICROS_PER_MILLI;
        Some(number(millis))
    };
    let mut grid = Grid::new(systems.iter().map(|system| results.label(system)));
    for work in works {
        let cells = systems.iter().map(|system| {
            let figures: [Figure; 3] = [|f| f.p50_us, p99, |f| f.p999_us];
            let quantiles: Option<Vec<String>> =
                figures.into_iter().map(|figure| median(system, work, figure)).collect();
            quantiles.map_or_else(|| NONE.to_owned(), |quantiles| quantiles.join(" / "))
        });
        grid.rows.push((work.title(), cells.collect()));
    }
    grid.write("Latency p50 / p99 / p99.9, ms", "", text);
}

/// Lists errors, a line for each system and work.
fn faults(results: &Results, text: &mut String) {
    let mut lines = Vec::new();
    for row in results.rows.iter().filter(|row| row.is_fault()) {
        let what = what(row.failure.as_deref(), row.figures.as_ref());
        let (system, setting, work) = (&row.system, &row.setting, row.work.title());
        lines.push(format!("- round {}, {system} ({setting}), {work}: {what}", row.round));
    }
    for at_peak in results.at_peaks.iter().filter(|at_peak| at_peak.is_fault()) {
        let what = what(at_peak.failure.as_deref(), at_peak.larder.as_ref());
        let Peak { round, system, setting, .. } = &at_peak.peak;
        lines.push(format!("- round {round}, larder at the peak of {system} ({setting}): {what}"));
    }
    text.push_str("### Errors\n\n");
    match lines.is_empty() {
        true => text.push_str("None.\n\n"),
        false => {
            let _ = writeln!(text, "{}\n", lines.join("\n"));
        }
    }
}

fn what(failure: Option<&str>, figures: Option<&Figures>) -> String {
    match (failure, figures) {
        (Some(failure), _) => failure.to_owned(),
        (None, Some(figures)) => format!("{} errors, {}", figures.errors, figures.error_kind),
        (None, None) => "no figures".to_owned(),
    }
}

const MEMORY_NOTE: &str =
    "Resident, with the files that the server maps: the database of Garage is one.";

const SPACE_NOTE: &str = "By how much the server's files grew. A volume of Larder grows by an eighth of what it \
    has, by 1 MiB at least and 64 MiB at most, and its log by 64 MiB. So a short work alone says little.";

/// Stands where nothing was measured.
const NONE: &str = "–";

/// A table with a work in each row.
struct Grid {
    columns: Vec<String>,
    rows: Vec<(String, Vec<String>)>,
}

impl Grid {
    fn new(columns: impl Iterator<Item = String>) -> Self {
        Self { columns: columns.collect(), rows: Vec::new() }
    }

    /// The spread of a figure of each system in each work.
    fn of(
        results: &Results,
        systems: &[&Entrant],
        works: &[Work],
        figure: impl Fn(&Figures) -> Option<f64>,
    ) -> Self {
        let mut grid = Self::new(systems.iter().map(|system| results.label(system)));
        for work in works {
            let spread = |system| Spread::of(values(results.of(system, work, &figure)));
            grid.row(work.title(), systems.iter().map(|system| spread(system)));
        }
        grid
    }

    fn row(&mut self, title: String, cells: impl Iterator<Item = Option<Spread>>) {
        self.rows.push((title, cells.map(cell).collect()));
    }

    /// A last row: all works together, per byte put in them.
    fn sum(
        &mut self,
        results: &Results,
        systems: &[&Entrant],
        works: &[Work],
        bytes: impl Fn(&Figures) -> f64,
    ) {
        let in_round = |system: &Entrant, round: u64, figure: &dyn Fn(&Figures) -> f64| -> f64 {
            let all = works.iter().flat_map(|work| results.of(system, work, |f| Some(figure(f))));
            all.filter(|(of, _)| *of == round).map(|(_, value)| value).sum()
        };
        let cells = systems.iter().map(|system| {
            Spread::of((1..=results.about.rounds).filter_map(|round| {
                let put = in_round(system, round, &|f| f.put_bytes as f64);
                (put > 0.0).then(|| in_round(system, round, &bytes) / put)
            }))
        });
        self.row("all of these".to_owned(), cells);
    }

    /// Writes it below its title and a note; nothing if there is no cell to show.
    fn write(&self, title: &str, note: &str, text: &mut String) {
        if self.rows.iter().all(|(_, cells)| cells.iter().all(|cell| cell == NONE)) {
            return;
        }
        let _ = writeln!(text, "### {title}\n");
        if !note.is_empty() {
            let _ = writeln!(text, "{note}\n");
        }
        let _ = writeln!(text, "| | {} |", self.columns.join(" | "));
        let _ = writeln!(text, "|---|{}", "---:|".repeat(self.columns.len()));
        for (work, cells) in self.rows.iter().filter(|(_, c)| c.iter().any(|cell| cell != NONE)) {
            let _ = writeln!(text, "| {work} | {} |", cells.join(" | "));
        }
        text.push('\n');
    }
}

fn values(figures: Vec<InRound>) -> impl Iterator<Item = f64> {
    figures.into_iter().map(|(_, value)| value)
}

fn cell(spread: Option<Spread>) -> String {
    let Some(Spread { median, min, max }) = spread else { return NONE.to_owned() };
    match min == max {
        true => number(median),
        false => format!("{} ({}–{})", number(median), number(min), number(max)),
    }
}

#[cfg(test)]
mod tests;
