//! The result file of a comparison between variants of Larder: the conditions of the run, and a row for each measurement.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::document::Part;
use crate::error::CompareError;
use crate::machine;
use crate::results::{Machine, lines};

/// The conditions of a run, and its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured<R> {
    pub(crate) about: About,
    pub(crate) rows: Vec<R>,
}

/// The conditions of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct About {
    /// Day of its begin (UTC).
    pub(crate) date: String,
    /// Commit of the sources it was started among.
    pub(crate) commit: String,
    /// The command line.
    pub(crate) command: String,
    /// The machine it ran on.
    pub(crate) machine: Machine,
    /// Rounds.
    pub(crate) rounds: u64,
    /// Measured milliseconds of each row.
    pub(crate) measured_ms: u64,
}

impl About {
    /// Those of a run of `larder-compare COMMAND` that begins now.
    pub(crate) fn begin(command: &str, rounds: u64, duration: Duration, scratch: &Path) -> Self {
        let measured_ms = duration.as_millis() as u64;
        Self {
            date: machine::date(),
            commit: larder_plot::commit(),
            command: format!(
                "larder-compare {command} --rounds {rounds} --duration {measured_ms}ms"
            ),
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
    /// [`CompareError::File`] or [`CompareError::Document`].
    pub(crate) fn read(path: &Path, part: &Part) -> Result<Self, CompareError> {
        let text = fs::read_to_string(path)
            .map_err(|source| CompareError::File { path: path.to_owned(), source })?;
        serde_json::from_str(&text).map_err(|error| CompareError::Document {
            path: path.to_owned(),
            reason: format!("it is not what `larder-compare {}` writes: {error}", part.title()),
        })
    }

    /// As text, with a line for each row.
    pub(crate) fn json(&self) -> String {
        let about = serde_json::to_string_pretty(&self.about);
        let about = about.expect("numbers and text always encode").replace('\n', "\n  ");
        format!("{{\n  \"about\": {about},\n  \"rows\": {}\n}}\n", lines(&self.rows))
    }
}
