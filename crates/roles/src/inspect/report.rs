//! What an inspection found.

use std::fmt;

/// Faults that are shown one by one; more are counted.
const FAULTS_SHOWN_MAX: usize = 200;

#[derive(Debug)]
enum Entry {
    Section(&'static str),
    Line(String),
    Fault(String),
}

/// What an inspection found, in the order in which it was found.
#[derive(Debug, Default)]
pub struct Report {
    entries: Vec<Entry>,
    faults: usize,
    pub(super) objects: u64,
}

impl Report {
    pub(super) fn section(&mut self, name: &'static str) {
        self.entries.push(Entry::Section(name));
    }

    pub(super) fn line(&mut self, text: String) {
        self.entries.push(Entry::Line(text));
    }

    pub(super) fn fault(&mut self, text: String) {
        self.faults += 1;
        if self.faults <= FAULTS_SHOWN_MAX {
            self.entries.push(Entry::Fault(text));
        }
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.faults == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.entries {
            match entry {
                Entry::Section(name) => writeln!(f, "{name}")?,
                Entry::Line(text) => writeln!(f, "  {text}")?,
                Entry::Fault(text) => writeln!(f, "  FAULT: {text}")?,
            }
        }
        if self.faults > FAULTS_SHOWN_MAX {
            writeln!(f, "  and {} more faults", self.faults - FAULTS_SHOWN_MAX)?;
        }
        match self.faults {
            0 => write!(f, "sound: {} objects, no fault", self.objects),
            n => write!(f, "NOT SOUND: {n} faults"),
        }
    }
}
