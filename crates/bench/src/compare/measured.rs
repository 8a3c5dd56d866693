//! The result file of a comparison between variants of Larder: the conditions of the run, and a row for each measurement.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::document::Part;
use super::machine;
use super::results::{Machine, lines};
use crate::BenchError;

/// The conditions of a run, and its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured<R> {
    pub(super) about: About,
    pub(super) rows: Vec<R>,
}

/// The conditions of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct About {
    /// Day of its begin (UTC).
    pub(super) date: String,
    /// Commit of the sources it was started among.
    pub(super) commit: String,
    /// The command line.
    pub(super) command: String,
    /// The machine it ran on.
    pub(super) machine: Machine,
    /// Rounds.
    pub(super) rounds: u64,
    /// Measured milliseconds of each row.
    pub(super) measured_ms: u64,
}

impl About {
    /// Those of a run of `larder bench COMMAND` that begins now.
    pub(super) fn begin(command: &str, rounds: u64, duration: Duration, scratch: &Path) -> Self {
        let measured_ms = duration.as_millis() as u64;
        Self {
            date: machine::date(),
            commit: machine::commit(),
            command: format!("larder bench {command} --rounds {rounds} --duration {measured_ms}ms"),
            machine: machine::machine(scratch),
            rounds,
            measured_ms,
        }
    }
}

impl<R: Serialize + DeserializeOwned> Measured<R> {
    /// Reads the file of a part.
    ///
    /// # Errors
    /// [`BenchError::File`] or [`BenchError::Document`].
    pub(super) fn read(path: &Path, part: &Part) -> Result<Self, BenchError> {
        let text = fs::read_to_string(path)
            .map_err(|source| BenchError::File { path: path.to_owned(), source })?;
        serde_json::from_str(&text).map_err(|error| BenchError::Document {
            path: path.to_owned(),
            reason: format!("it is not what `larder bench {}` writes: {error}", part.title()),
        })
    }

    /// As text, with a line for each row.
    pub(super) fn json(&self) -> String {
        let about = serde_json::to_string_pretty(&self.about);
        let about = about.expect("numbers and text always encode").replace('\n', "\n  ");
        format!("{{\n  \"about\": {about},\n  \"rows\": {}\n}}\n", lines(&self.rows))
    }
}
