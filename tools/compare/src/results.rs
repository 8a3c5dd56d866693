//! The rows of a comparison, as `benchmarks.json` keeps them.
//!
//! # Invariants
//! - Everything that is shown is made from these: the document and the plots of equal results are
//!   equal.
//! - A row has figures or says why not.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::CompareError;
use crate::statistics::InRound;
use crate::works::{Op, Work};
use larder_bench::report::Report;

/// All that a comparison found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) about: About,
    pub(crate) rows: Vec<Row>,
    /// Larder at each peer's peak.
    #[serde(default)]
    pub(crate) at_peaks: Vec<AtPeak>,
}

/// The circumstances of a comparison: command, machine and systems.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct About {
    /// Day of its begin (UTC).
    pub(crate) date: String,
    /// Commit of the sources it was started among.
    pub(crate) commit: String,
    /// The command line.
    pub(crate) command: String,
    /// The machine that it ran on.
    pub(crate) machine: Machine,
    /// The seed of the order of the systems.
    pub(crate) seed: u64,
    /// Rounds.
    pub(crate) rounds: u64,
    /// Measured milliseconds of each work, and of load before that.
    pub(crate) measured_ms: u64,
    pub(crate) warm_up_ms: u64,
    /// Objects in the bucket that pages were listed of.
    pub(crate) listed: u64,
    /// The systems, in the order of the tables.
    pub(crate) systems: Vec<Entrant>,
    /// A line for each peer that was not there.
    pub(crate) absent: Vec<String>,
}

/// One system of a comparison, in one setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entrant {
    pub(crate) system: String,
    pub(crate) version: String,
    pub(crate) setting: String,
    pub(crate) durability: String,
    pub(crate) command: String,
    /// True if it keeps nothing.
    pub(crate) floor: bool,
}

/// The machine of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    /// That of the folder in which the servers kept their files.
    pub(crate) file_system: String,
    /// Processes that wanted to run, on average of the minute before.
    pub(crate) load_average: String,
}

/// The result of one system with one work in one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) round: u64,
    pub(crate) system: String,
    pub(crate) version: String,
    pub(crate) setting: String,
    pub(crate) work: Work,
    pub(crate) figures: Option<Figures>,
    /// The reason that there are no figures.
    pub(crate) failure: Option<String>,
}

/// The measured figures; `None` where there was nothing to measure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) ops_s: f64,
    pub(crate) mib_s: f64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) p999_us: Option<f64>,
    pub(crate) errors: u64,
    /// The kind of the most frequent errors; empty if there were none.
    pub(crate) error_kind: String,
    /// Requests of an open loop that were due but never sent.
    pub(crate) unsent: u64,
    pub(crate) server_cpu_us_per_op: Option<f64>,
    pub(crate) client_cpu_us_per_op: Option<f64>,
    pub(crate) memory_peak_bytes: u64,
    /// At the end, without files that the server maps.
    pub(crate) memory_end_bytes: Option<u64>,
    /// Object bytes that the work put; those of preloaded objects do not count.
    pub(crate) put_bytes: u64,
    /// Bytes that the server caused to be written to disk meanwhile.
    pub(crate) written_bytes: u64,
    /// Bytes by which its files grew on disk meanwhile.
    pub(crate) occupied_bytes: i64,
}

/// Larder under the load that was a peer's peak in the same round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct AtPeak {
    pub(crate) peak: Peak,
    pub(crate) larder: Option<Figures>,
    /// The reason that there are no figures.
    pub(crate) failure: Option<String>,
}

/// The result of a peer in the small puts at which it did most.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Peak {
    pub(crate) round: u64,
    pub(crate) system: String,
    pub(crate) setting: String,
    /// The work in which it was.
    pub(crate) work: Work,
    pub(crate) ops_s: f64,
    pub(crate) p99_us: f64,
}

impl Figures {
    pub(crate) fn new(work: &Work, report: &Report, usage: &crate::usage::Usage) -> Self {
        let most = report.errors_by_kind.iter().max_by_key(|(_, count)| **count);
        Self {
            ops_s: report.ops_s,
            mib_s: report.mib_s,
            p50_us: report.p50_us,
            p99_us: report.p99_us,
            p999_us: report.p999_us,
            errors: report.errors,
            error_kind: most.map(|(kind, _)| kind.clone()).unwrap_or_default(),
            unsent: report.unsent,
            server_cpu_us_per_op: report.server_cpu_us_per_op,
            client_cpu_us_per_op: report.client_cpu_us_per_op,
            memory_peak_bytes: usage.memory_peak_bytes,
            memory_end_bytes: Some(usage.memory_end_bytes),
            put_bytes: if work.op == Op::Put { report.bytes_moved } else { 0 },
            written_bytes: usage.written_bytes,
            occupied_bytes: usage.occupied_bytes,
        }
    }
}

impl Row {
    /// True if something went wrong.
    pub(crate) fn is_fault(&self) -> bool {
        self.figures.as_ref().is_none_or(|figures| figures.errors > 0)
    }
}

impl AtPeak {
    /// True if something went wrong.
    pub(crate) fn is_fault(&self) -> bool {
        self.larder.as_ref().is_none_or(|figures| figures.errors > 0)
    }
}

impl Peak {
    pub(crate) fn is_of(&self, entrant: &Entrant) -> bool {
        self.system == entrant.system && self.setting == entrant.setting
    }
}

impl Results {
    /// Reads them from a file.
    ///
    /// # Errors
    /// [`CompareError::File`] or [`CompareError::Document`].
    pub(crate) fn read(path: &Path) -> Result<Self, CompareError> {
        let text = fs::read_to_string(path)
            .map_err(|source| CompareError::File { path: path.to_owned(), source })?;
        serde_json::from_str(&text).map_err(|error| CompareError::Document {
            path: path.to_owned(),
            reason: format!("it is not what `larder-compare systems` writes: {error}"),
        })
    }

    /// As text: one line for each row, so that two comparisons can be compared by line.
    pub(crate) fn json(&self) -> String {
        let about = serde_json::to_string_pretty(&self.about);
        let about = about.expect("numbers and text always encode").replace('\n', "\n  ");
        let (rows, at_peaks) = (lines(&self.rows), lines(&self.at_peaks));
        format!("{{\n  \"about\": {about},\n  \"rows\": {rows},\n  \"at_peaks\": {at_peaks}\n}}\n")
    }

    /// All works, each once, in the order in which they were done.
    pub(crate) fn works(&self) -> Vec<Work> {
        let mut works = Vec::new();
        for row in &self.rows {
            if !works.contains(&row.work) {
                works.push(row.work);
            }
        }
        let order = crate::works::all();
        works.sort_by_key(|work| order.iter().position(|other| other == work));
        works
    }

    /// A figure of one system in one work, of each round that has it.
    pub(crate) fn of(
        &self,
        system: &Entrant,
        work: &Work,
        figure: impl Fn(&Figures) -> Option<f64>,
    ) -> Vec<InRound> {
        let rows = self.rows.iter().filter(|row| system.is_of(row) && row.work == *work);
        rows.filter_map(|row| Some((row.round, figure(row.figures.as_ref()?)?))).collect()
    }

    /// The system of this name, if it was there; of several settings the first.
    pub(crate) fn system(&self, name: &str) -> Option<&Entrant> {
        self.about.systems.iter().find(|system| system.system == name)
    }

    /// A system's name in tables: with its setting where there are several.
    pub(crate) fn label(&self, system: &Entrant) -> String {
        let same = self.about.systems.iter().filter(|other| other.system == system.system);
        match same.count() {
            1 => system.system.clone(),
            _ => format!("{} ({})", system.system, system.setting),
        }
    }
}

impl Entrant {
    pub(crate) fn is_of(&self, row: &Row) -> bool {
        row.system == self.system && row.setting == self.setting
    }
}

/// A list with a line for each of its values.
pub(crate) fn lines<T: Serialize>(values: &[T]) -> String {
    let lines: Result<Vec<String>, _> = values.iter().map(serde_json::to_string).collect();
    let lines = lines.expect("numbers and text always encode");
    match lines.is_empty() {
        true => "[]".to_owned(),
        false => format!("[\n    {}\n  ]", lines.join(",\n    ")),
    }
}
